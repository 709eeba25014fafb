#!/usr/bin/env bash
# The core on a machine with a GPU and no package registry: install, C++ tests, Python tests, CUDA facts.
#
#   scripts/gpu/core.sh [FOLDER]        FOLDER (default build/gpu) takes the installation and the C++ build
#
# Needs python3 with scikit-build-core, nanobind, pytest and hypothesis, a C++17 compiler, CMake. Fails when the
# driver finds no device, since then this machine proves nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mkdir -p "${1:-build/gpu}" && cd "${1:-build/gpu}" && pwd)
python=${PYTHON:-python3}

echo "== install into $folder/site"
"$python" -m pip install -q --no-build-isolation --no-deps --upgrade --target "$folder/site" .
export PYTHONPATH="$folder/site"

echo "== C++ tests"
cmake -S . -B "$folder/cpp" -DXPURT_TESTS=ON -DXPURT_PYTHON=OFF >/dev/null
cmake --build "$folder/cpp" --parallel
ctest --test-dir "$folder/cpp" --output-on-failure

echo "== Python tests"
"$python" -m pytest -q tests/cpp tests/runtime tests/profiler/test_events.py tests/profiler/test_events_nvtx.py

echo "== CUDA facts"
"$python" - <<'PY'
import json

from xpuruntime import runtime

report = runtime.cuda()
libraries = runtime.libraries()
print(json.dumps({"cuda": report.to_json(), "libraries": [x.to_json() for x in libraries]}, indent=2))
assert report.status.ok, f"{report.status.message} {report.status.advice}"
assert len(report.devices) >= 1
for device in report.devices:
    assert device.name, "no name"
    assert len(device.uuid) == 36, device.uuid
    assert device.memory_bytes > 2**30, device.memory_bytes
    assert device.multiprocessors > 0, device.multiprocessors
    assert device.clock_khz > 0, device.clock_khz
    assert device.compute_capability >= (5, 0), device.compute_capability
print("ok:", ", ".join(f"{d.index}: {d.name} ({d.target})" for d in report.devices))
PY
