"""The CUDA backend from Python, over a driver that has no device: what is queued runs when somebody waits for it (cpp/tests/libraries)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
LIBRARIES = HERE.parents[1] / "cpp" / "tests" / "libraries"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated")
    for name in ("driver", "kernels", "cupti"):
        made, text = folder / f"{name}.so", LIBRARIES / f"simulated_{name}.cpp"
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(made), str(text), "-ldl"]
        subprocess.run(command, check=True)
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "case",
    [
        "arrays",
        "buffers",
        "memory",
        "refusals",
        "reports",
        "observed",
        "receipt",
        "unobserved",
        "tensors",
        "streams",
        "pooled",
        "pinned",
    ],
)
def test_over_the_simulated_driver(case: str, built: Path) -> None:
    command = [sys.executable, str(HERE / "simulated_cuda.py"), case, str(built / "kernels.so")]
    cupti = "/nonexistent/cupti.so" if case == "unobserved" else str(built / "cupti.so")
    environment = {**os.environ, "XPU_LIBCUDA": str(built / "driver.so"), "XPU_LIBCUPTI": cupti}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("peers", [True, False])
def test_two_devices_over_the_simulated_driver(peers: bool, built: Path) -> None:
    command = [sys.executable, str(HERE / "simulated_cuda.py"), "two_devices", str(built / "kernels.so")]
    environment = {**os.environ, "XPU_LIBCUDA": str(built / "driver.so"), "SIMULATED_DEVICES": "2"}
    environment |= {} if peers else {"SIMULATED_NO_PEERS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
