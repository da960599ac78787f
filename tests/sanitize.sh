#!/usr/bin/env bash
# Runs the kernels, random lives of a model and mutated saved models under the sanitizers of GCC for addresses and
# undefined behaviour, then the kernels under that for threads.
#
# usage: tests/sanitize.sh [address|thread]...     by default both; the builds stay in build/sanitize-*
# PYTHON=...     a Python with the test tools, by default that of .venv
# MUTANTS=4320   mutated saved models (address)
# LIFE_STEPS=300 steps of the random lives
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD

python=${PYTHON:-$PWD/.venv/bin/python}
python=$(type -P "$python") || { echo "PYTHON must name a Python with the test tools; run make test first." >&2; exit 2; }
compiler=${CXX:-g++}
# Libraries that wait in threads of their own are not what is tested.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 LIFE_STEPS=${LIFE_STEPS:-300} LIFE_SHRINK=0 PYTHONDONTWRITEBYTECODE=1

build() {  # FOLDER SANITIZERS
  local flags="-fsanitize=$2 -fno-sanitize-recover=all -fno-omit-frame-pointer -g1"
  mkdir -p "$1"
  cmake -S . -B "$1/cmake" -DCMAKE_BUILD_TYPE=Debug -DLOWRANK_OPTIMIZATION=-O1 -DCMAKE_CXX_COMPILER="$compiler" \
    -DCMAKE_CXX_FLAGS="$flags" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" -DPython_EXECUTABLE="$python"
  cmake --build "$1/cmake" --parallel "${JOBS:-2}"
  rm -rf "$1/lowrank"
  cp -r lowrank "$1"
  rm -f "$1"/lowrank/kernels/_core*
  cp "$1"/cmake/_core* "$1/lowrank/kernels"
  ln -sfn "$repository/recsys" "$1/recsys"
  ln -sfn "$repository/tests" "$1/tests"
  ln -sfn "$repository/pyproject.toml" "$1/pyproject.toml"
}

sanitized() {  # SANITIZER COMMAND...: the runtime must be the first library of the process
  local runtime
  case $1 in
    address) runtime="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)" ;;
    thread) runtime=$("$compiler" -print-file-name=libtsan.so) ;;
  esac
  shift
  # Python keeps memory to its end, which is no leak of the kernels. Threads need the same addresses each time. Reports
  # go to files, since pytest takes what tests say.
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:log_path=$PWD/report \
    UBSAN_OPTIONS=print_stacktrace=1:log_path=$PWD/report \
    TSAN_OPTIONS="exitcode=66:log_path=$PWD/report" \
    PYTHONPATH=$PWD:$PWD/tests setarch --addr-no-randomize env LD_PRELOAD="$runtime" "$@"
}

failed=0
[ $# -gt 0 ] || set -- address thread
for kind in "$@"; do
  folder=$repository/build/sanitize-$kind
  case $kind in
    address) sanitizers=address,undefined ;;
    thread) sanitizers=thread ;;
    *) echo "The sanitizers are address and thread, not $kind." >&2; exit 2 ;;
  esac
  echo "== Building the kernels with -fsanitize=$sanitizers"
  mkdir -p "$folder"
  build "$folder" "$sanitizers" > "$folder/build.log" 2>&1 || { tail -n 30 "$folder/build.log"; exit 1; }
  cd "$folder"
  rm -f report.*
  run=("$python" -m pytest -q -p no:cacheprovider -o faulthandler_timeout=0)
  echo "== Kernels"
  sanitized "$kind" "${run[@]}" tests/lowrank/test_{kernels,top_k,sparse_scores}.py tests/lowrank/completion \
    -k "not large_matrix" || failed=1
  # Under the sanitizer of threads, `import polars` ends the process by a signal.
  if [ "$kind" = address ]; then
    echo "== Random lives of a model, $LIFE_STEPS steps"
    sanitized "$kind" "${run[@]}" tests/model || failed=1
    echo "== Mutated saved models"
    sanitized "$kind" "$python" tests/fuzz/mutants.py "${MUTANTS:-4320}" || failed=1
  fi
  for report in report.*; do
    [ -e "$report" ] || continue
    failed=1
    echo "== $report"
    cat "$report"
  done
  cd "$repository"
done
exit $failed
