#!/usr/bin/env bash
# Compiles the kernels with each compiler and runs their tests: the bits of a result depend on the instruction set,
# not on the compiler.
#
# usage: tests/compilers.sh [COMPILER]...     such as g++-12 g++-14 clang++; by default all that are on the PATH
# PYTHON=... names the Python with the test tools, by default that of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-$PWD/.venv/bin/python}
python=$(type -P "$python") || { echo "PYTHON must name a Python with the test tools; run make test first." >&2; exit 2; }

compilers=("$@")
if [ $# -eq 0 ]; then
  for name in g++-{12..16} clang++-{14..22} g++ clang++; do
    if type -P "$name" >/dev/null; then compilers+=("$name"); fi
  done
fi

work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
"$python" -m pip --quiet install --target "$work/nanobind" 'nanobind>=2.4'

build() {  # FOLDER COMPILER
  cmake -S "$1" -B "$1/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$2" \
    -Dnanobind_DIR="$work/nanobind/nanobind/cmake" -DPython_EXECUTABLE="$python"
  cmake --build "$1/build" --parallel "${JOBS:-2}"
  cp "$1"/build/_core* "$1/lowrank/kernels"
}

failed=0
for compiler in "${compilers[@]}"; do
  echo "== $("$compiler" --version | head -n 1)"
  folder=$work/${compiler##*/}
  mkdir "$folder"
  cp -r lowrank recsys tests pyproject.toml CMakeLists.txt "$folder"
  rm -f "$folder"/lowrank/kernels/_core*
  if ! build "$folder" "$compiler" > "$folder/build.log" 2>&1; then
    tail -n 30 "$folder/build.log"
    failed=1
    continue
  fi
  cd "$folder"
  PYTHONPATH=$folder "$python" -m pytest -q -p no:cacheprovider tests/lowrank/test_{kernels,top_k,sparse_scores}.py || failed=1
  cd - >/dev/null
done
exit $failed
