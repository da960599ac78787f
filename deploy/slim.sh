#!/bin/sh
# Leave in an installation of recsys what its commands need, or the service alone.
#
#   sh slim.sh /opt/recsys full
#   sh slim.sh /opt/recsys service /root-of-the-service
#
# The service gets a root of its own: the installation, Python, and the libraries that both link to.
set -eu
place=$(cd "$1" && pwd)
kind=$2
here=$(cd "$(dirname "$0")" && pwd)
unset PYTHONDONTWRITEBYTECODE

# Models of every kind, to see that the service answers from them with what is left.
models=$(mktemp -d)
cd "$models"
"$place/bin/recsys" data sample --quiet
if [ "$kind" = service ]; then
    for model in als bayes bias blend clusters ease ials implicit-als implicit-knn popular \
        softimpute sparse-ease spectral; do
        "$place/bin/recsys" fit recsys-sample --model "$model" --out "model-$model" --quiet
    done
    printf 'The nurse called the doctor.\nThe doctor came by tram.\n' >notes.txt
    "$place/bin/recsys" lsi index notes.txt --language english --out model-index --quiet

    # What fits, reads data, tunes, reports, and talks to databases. Of SciPy sparse matrices stay,
    # which need no BLAS.
    "$place/bin/pip" uninstall --quiet --yes adbc-driver-manager adbc-driver-postgresql alembic \
        backports.zstd cloudpickle colorlog greenlet implicit jinja2 joblib mako markdown-it-py markupsafe mdurl \
        narwhals optuna packaging pandas pyarrow pygments python-dateutil pytz pyyaml rich \
        scikit-learn selectolax six sqlalchemy tqdm tzdata
    cd "$place"/lib/python3.*/site-packages
    find scipy -mindepth 1 -maxdepth 1 -type d -not -name _lib -not -name sparse -exec rm -r {} +
    rm -rf scipy.libs scipy/sparse/linalg scipy/sparse/csgraph numpy/distutils recsys/sample/data
fi
"$place/bin/pip" uninstall --quiet --yes setuptools pip

# Tests, sources and headers of libraries; Arrow's own network services; bytecode of everything.
cd "$place"/lib/python3.*/site-packages
find . -type d \( -name tests -o -name __pycache__ -o -name sboms \) -prune -exec rm -r {} +
find . -type f \( -name '*.py[xi]' -o -name '*.pxd' -o -name '*.h' -o -name '*.hpp' \) \
    -not -path './recsys/*' -not -path './lowrank/*' -delete
rm -f pyarrow/*_flight* pyarrow/*_s3*

# Symbols for debuggers, but of libraries whose layout was changed for the wheel: strip breaks these.
find . -type f -name '*.so*' -not -path '*.libs/*' -exec strip --strip-unneeded {} +

# Bytecode of what the commands import.
if [ "$kind" = full ]; then
    "$place/bin/python" -m compileall -q lowrank recsys
    cd "$models"
    "$place/bin/recsys" fit recsys-sample --model als --out model --quiet
    "$place/bin/recsys" recommend model --all --output lists.parquet --quiet
    "$place/bin/recsys" evaluate recsys-sample --model popular --output popular.json --quiet
    for module in recsys.serve.app recsys.lsi adbc_driver_postgresql.dbapi pyarrow.parquet jinja2; do
        "$place/bin/python" -c "import $module" || echo "without $module"
    done
    rm -r "$models"
    exit
fi

root=$3
mkdir -p "$root/tmp" "$root/etc" "$root/usr/lib"
chmod 1777 "$root/tmp"
echo "recsys:x:10001:10001::/tmp:/sbin/nologin" >"$root/etc/passwd"
echo "recsys:x:10001:" >"$root/etc/group"
cp --parents -R "$place" /usr/bin/python3 "$(readlink -f /usr/bin/python3)" "$root"
library=$(echo /usr/lib/python3.*)
cp -R "$library" "$root/usr/lib"
cd "$root$library"
rm -rf config-* distutils ensurepip idlelib lib2to3 pydoc_data test tkinter turtle* \
    lib-dynload/_curses* lib-dynload/_dbm* lib-dynload/_sqlite3* lib-dynload/_test* \
    lib-dynload/nis* lib-dynload/readline* lib-dynload/xx*

# Bytecode in the place of the sources of Python and of libraries: without docstrings where these
# are half of it, but for Polars, which reads its own bytecode.
compiled() {
    level=$1
    shift
    find "$@" -name __pycache__ -prune -exec rm -r {} +
    "$place/bin/python" -m compileall -q -b -o "$level" "$@"
    find "$@" -name '*.py' -delete
}
compiled 2 "$root$library"
cd "$root$place"/lib/python3.*/site-packages
compiled 2 numpy scipy
for each in [a-z]*[a-z]; do
    case $each in
        lowrank | recsys | numpy | scipy | *.libs | *.dist-info | *.so) ;;
        *) compiled 0 "$each" ;;
    esac
done

find "$root" -type f \( -name '*.so*' -o -path '*/bin/python3.*' \) -exec ldd {} + |
    sed -n 's/^\t.*=> \(\/[^ ]*\) .*/\1/p; s/^\t\(\/[^ ]*\) .*/\1/p' | grep -v "^$root" | sort -u |
    xargs cp --parents -L -t "$root"

# The service answers from each model here, which makes the bytecode of what it imports.
mkdir "$root/trial"
cp -R "$models"/model-* "$here/check.py" "$root/trial"
PATH=$place/bin:$PATH chroot "$root" "$place/bin/python" /trial/check.py /trial
rm -r "$root/trial" "$models"
