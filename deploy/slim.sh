#!/bin/sh
# Leave in an installation of recsys what its commands need, or the service alone.
#
#   sh slim.sh /opt/recsys full|service
set -eu
place=$(cd "$1" && pwd)
kind=$2

if [ "$kind" = service ]; then
    # What reads data, tunes, reports, and talks to databases.
    "$place/bin/pip" uninstall --quiet --yes adbc-driver-manager adbc-driver-postgresql alembic \
        colorlog greenlet jinja2 mako markupsafe optuna pandas pyarrow python-dateutil pytz pyyaml six sqlalchemy tzdata
fi
"$place/bin/pip" uninstall --quiet --yes setuptools pip

# Tests, sources and headers of libraries; Arrow's own network services; bytecode of everything.
cd "$place"/lib/python3.*/site-packages
find . -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -r {} +
find . -type f \( -name '*.py[xi]' -o -name '*.pxd' -o -name '*.h' -o -name '*.hpp' \) \
    -not -name '__init__.pyi' -delete
rm -f pyarrow/*_flight* pyarrow/*_s3*

# Symbols for debuggers, but of libraries whose layout was changed for the wheel: strip breaks these.
find . -type f -name '*.so*' -not -path '*.libs/*' -exec strip --strip-unneeded {} +

# Bytecode of what the commands import.
unset PYTHONDONTWRITEBYTECODE
"$place/bin/python" -m compileall -q lowrank recsys
cd "$(mktemp -d)"
"$place/bin/recsys" data sample --quiet
"$place/bin/recsys" fit recsys-sample --model als --out model --quiet
"$place/bin/recsys" recommend model --all --output lists.parquet --quiet
modules='recsys.serve.app recsys.serve.protocol anyio._backends._asyncio uvicorn.lifespan.on uvicorn.loops.auto uvloop recsys.lsi'
if [ "$kind" = full ]; then
    "$place/bin/recsys" evaluate recsys-sample --model popular --output popular.json --quiet
    modules="$modules adbc_driver_manager.dbapi adbc_driver_postgresql pyarrow.parquet jinja2"
fi
for module in $modules; do
    "$place/bin/python" -c "import $module" || echo "without $module"
done
rm -r "$PWD"
