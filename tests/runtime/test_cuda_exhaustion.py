"""Every way in which a CUDA driver can run out, at every use: a named error, what is loaded continues, and nothing is leaked."""

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
    folder = tmp_path_factory.mktemp("exhaustion")
    for name in ("driver", "kernels"):
        made, text = folder / f"{name}.so", LIBRARIES / f"simulated_{name}.cpp"
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(made), str(text), "-ldl"]
        subprocess.run(command, check=True)
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("call", "least"),
    [
        ("cuMemAllocFromPoolAsync", 4),
        ("cuStreamCreate", 1),
        ("cuEventCreate", 1),
        ("cuMemHostAlloc", 1),
        ("cuMemcpyHtoDAsync_v2", 4),
        ("cuMemcpyDtoHAsync_v2", 4),
        ("cuLaunchKernelEx", 4),
        ("cuGraphLaunch", 1),
        ("cuGraphInstantiateWithFlags", 0),  # such a plan runs kernel by kernel
    ],
)
def test_the_driver_runs_out_at_every_use(call: str, least: int, built: Path) -> None:
    """``least``: uses that must have failed, so that the test is known to have met them."""
    libraries = [str(built / f"{name}.so") for name in ("driver", "kernels")]
    command = [sys.executable, str(HERE / "simulated_exhaustion.py"), libraries[0], call, libraries[1]]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "XPU_LIBCUDA": libraries[0]},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= least, done.stdout
