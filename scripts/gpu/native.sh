#!/usr/bin/env bash
# The native engine on a machine without a package registry: install, its tests on that processor, its kernels beside torch's oneDNN.
#
#   scripts/gpu/native.sh [FOLDER] [RESULTS]   FOLDER (default build/gpu) takes the installation, RESULTS the measurements
#
# TESTS are the tests that run (default: those of the compiler, its kernels and the runtime), DTYPES what is measured ("float32 bfloat16").
# Needs python3 with torch, scikit-build-core, nanobind, pytest and hypothesis, a C++17 compiler, CMake. No GPU is used: such a machine has
# another processor than those that this was written on.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mkdir -p "${1:-build/gpu}" && cd "${1:-build/gpu}" && pwd)
results=$(mkdir -p "${2:-build/gpu/results}" && cd "${2:-build/gpu/results}" && pwd)
python=${PYTHON:-python3}

echo "== install into $folder/site"
"$python" -m pip install -q --no-build-isolation --no-deps --upgrade --target "$folder/site" .
export PYTHONPATH="$folder/site"
"$python" -c 'from xpuruntime.runtime.device import cpu; from xpuruntime.codegen.cpp import cpu_target; c = cpu(); print(c.model, c.usable_cores, cpu_target().name)'

echo "== tests"
parallel=$("$python" -c 'import xdist' 2>/dev/null && echo "-n 14" || true)
"$python" -m pytest -q -p no:benchmark $parallel ${TESTS:-tests/compiler tests/kernels tests/codegen tests/runtime} | tail -15

echo "== kernels"
cd benchmarks
"$python" kernels.py --dtype ${DTYPES:-bfloat16} --threads 1 2 --json "$results/kernels_xeon.json"
