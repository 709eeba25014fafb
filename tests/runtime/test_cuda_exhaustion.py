"""Every way in which a CUDA driver can run out, at every use: a named error, what is loaded continues, and nothing is leaked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.cuda_doubles import build_libraries

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("exhaustion")
    return build_libraries(folder, "simulated_driver", "simulated_kernels")


@pytest.mark.sampled(1)
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
def test_the_driver_runs_out_at_every_use(call: str, least: int, built: Mapping[str, Path]) -> None:
    """``least``: uses that must have failed, so that the test is known to have met them."""
    libraries = [str(file) for file in built.values()]
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
