#!/usr/bin/env bash
# The native engine on an NVIDIA GPU: install, C++ tests, the CUDA backend on the real driver, models against PyTorch, costs.
#
#   scripts/gpu/cuda.sh [FOLDER] [RESULT.json] [CHECK ...]    FOLDER (default build/gpu) takes the installation and the C++ build;
#                                                             CHECK: only those of scripts/gpu/cuda_backend.py, no C++ tests
#
# Needs python3 with torch (CUDA), scikit-build-core, nanobind, pytest, a C++17 compiler, CMake. No registry is reached.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mkdir -p "${1:-build/gpu}" && cd "${1:-build/gpu}" && pwd)
result=${2:-$folder/cuda.json}
shift $(($# < 2 ? $# : 2))
python=${PYTHON:-python3}

echo "== install into $folder/site"
"$python" -m pip install -q --no-build-isolation --no-deps --upgrade --target "$folder/site" . 2>&1 | grep -v WARNING || true
export PYTHONPATH="$folder/site" XPU_CACHE_DIR="$folder/cache"

if [ $# -eq 0 ]; then
    echo "== C++ tests"
    cmake -S . -B "$folder/cpp" -DXPURT_TESTS=ON -DXPURT_PYTHON=OFF >/dev/null
    cmake --build "$folder/cpp" --parallel | grep -E "error|warning" || true
    ctest --test-dir "$folder/cpp" --output-on-failure -R "cuda|executor|memory" | tail -8
fi

echo "== CUDA"
"$python" scripts/gpu/cuda_backend.py --out "$result" "$@"
