"""The CUDA backend from Python, over a driver that has no device: what is queued runs when somebody waits for it (cpp/tests/libraries)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.cuda_doubles import build_libraries

HERE = Path(__file__).resolve().parent
MEMORY = ("memory", "pooled", "pinned")
"""Cases of simulated_memory.py."""
CALLS = ("calls", "other_forms", "order", "failures", "exported")
"""Cases of simulated_calls.py."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("simulated")
    return build_libraries(folder, "simulated_driver", "simulated_kernels", "simulated_cupti")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "case",
    [
        "arrays",
        "buffers",
        "refusals",
        "reports",
        "observed",
        "receipt",
        "unobserved",
        "tensors",
        "streams",
        "constants",
        *MEMORY,
        *CALLS,
    ],
)
def test_over_the_simulated_driver(case: str, built: Mapping[str, Path]) -> None:
    scripts = dict.fromkeys(MEMORY, "simulated_memory.py") | dict.fromkeys(CALLS, "simulated_calls.py")
    script = scripts.get(case, "simulated_cuda.py")
    command = [sys.executable, str(HERE / script), case, str(built["simulated_kernels"])]
    cupti = "/nonexistent/cupti.so" if case == "unobserved" else str(built["simulated_cupti"])
    environment = {**os.environ, "XPU_LIBCUDA": str(built["simulated_driver"]), "XPU_LIBCUPTI": cupti}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("peers", [True, False])
def test_two_devices_over_the_simulated_driver(peers: bool, built: Mapping[str, Path]) -> None:
    command = [
        sys.executable,
        str(HERE / "simulated_cuda.py"),
        "two_devices",
        str(built["simulated_kernels"]),
    ]
    environment = {**os.environ, "XPU_LIBCUDA": str(built["simulated_driver"]), "SIMULATED_DEVICES": "2"}
    environment |= {} if peers else {"SIMULATED_NO_PEERS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
