#!/usr/bin/env bash
# Heavy CUDA kernels and library kernels on a GPU machine without a package registry: every result against torch, times beside torch's.
#
#   scripts/gpu/kernels.sh [FOLDER] [RESULTS]   FOLDER (default build/gpu) takes the installation, RESULTS the measurements
#
# TUNE=1 also times other cuts of the kernels. Needs python3 with torch (CUDA), CuPy, scikit-build-core, nanobind, a C++17 compiler, CMake.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mkdir -p "${1:-build/gpu}" && cd "${1:-build/gpu}" && pwd)
results=$(mkdir -p "${2:-build/gpu/results}" && cd "${2:-build/gpu/results}" && pwd)
python=${PYTHON:-python3}
failed=0

echo "== kernels"
"$python" scripts/gpu/kernels.py --out "$results/cuda_kernels.json" ${TUNE:+--tune} || failed=1

echo "== install into $folder/site"
[ -d "$folder/site" ] || "$python" -m pip install -q --no-build-isolation --no-deps --upgrade --target "$folder/site" .
export PYTHONPATH="$folder/site"

echo "== libraries"
"$python" scripts/gpu/libraries.py --out "$results/cuda_libraries.json" || failed=1
exit $failed
