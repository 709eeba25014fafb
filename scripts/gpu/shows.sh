#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: build the core, then run and measure what scripts/gpu/shows.py lists.
#
#   scripts/gpu/shows.sh 1|2|3|4|5|6|7|8 [--results FOLDER]   a visit of under ten minutes; FOLDER (default benchmarks/results) takes the files
#   scripts/gpu/shows.sh --only kernels,models              those steps; --dry-run says what each does
#
# The installation and the C++ build lie in FOLDER (default build/gpu) and are made anew only when a source changed. Needs python3 with torch (CUDA),
# scikit-build-core, nanobind, pytest and hypothesis, a C++17 compiler, CMake. No package registry is reached. Other arguments go to shows.py.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${FOLDER:-build/gpu}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
python=${PYTHON:-python3}

sources=$(find src cpp CMakeLists.txt pyproject.toml -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum)
if [ "$(cat "$folder/sources" 2>/dev/null)" != "$sources" ]; then
    echo "== install into $folder/site"
    rm -rf "$folder/site"
    { cmake -S . -B "$folder/cpp" -DXPURT_TESTS=ON -DXPURT_PYTHON=OFF >/dev/null
      cmake --build "$folder/cpp" --parallel | grep -E "error|warning" || true; } &
    "$python" -m pip install -q --no-build-isolation --no-deps --target "$folder/site" . 2>&1 | grep -v WARNING || true
    wait
    [ -d "$folder/site/xpuruntime" ] || { echo "the package did not build" >&2; exit 2; }
    echo "$sources" > "$folder/sources"
fi
export PYTHONPATH="$folder/site" XPU_CACHE_DIR="$folder/cache" XPU_GPU_FOLDER="$folder"
exec "$python" scripts/gpu/shows.py "$@"
