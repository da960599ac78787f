#!/bin/sh
# Leave in an installation of recsys what its commands need: about half of the size goes.
#
#   sh slim.sh /opt/recsys
set -eu
place=$(cd "$1" && pwd)
cd "$place"/lib/python3.*/site-packages

# Tests, sources and headers of libraries; Arrow's own network services; bytecode of everything.
find . -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -r {} +
find . -type f \( -name '*.py[xi]' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.h' -o -name '*.hpp' \) \
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
"$place/bin/recsys" evaluate recsys-sample --model popular --output popular.json --quiet
"$place/bin/recsys" recommend model --all --output lists.parquet --quiet
for module in recsys.serve.app recsys.serve.protocol anyio._backends._asyncio uvicorn.lifespan.on \
    uvicorn.loops.auto uvloop adbc_driver_manager.dbapi adbc_driver_postgresql pyarrow.parquet jinja2; do
    "$place/bin/python" -c "import $module" || echo "without $module"
done 2> /dev/null
rm -r "$PWD"
