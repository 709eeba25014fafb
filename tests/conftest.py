"""What every test shares: no setting of the user's shell leaks in, and nothing is written to the user's cache."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from xpuruntime.store import Store

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


ONLY_PROCESSORS = {
    "test_amx_kernels.py", "test_int4_weights.py", "test_int8_weights.py", "test_kernel_names.py", "test_layouts.py", "test_onednn_kernels.py",
    "test_user_kernels.py", "test_errors_of_long_sums_grow_with_the_root_of_their_length",
}  # fmt: skip
"""Of tests/kernels, files and tests: what only processors have, or only our own code promises."""


def pytest_configure(config: pytest.Config) -> None:
    """``XPU_TEST_LEVEL=x86-64-v2 pytest ...``: as on a processor of that level, which must not be above this machine's.
    ``XPU_TEST_DEVICE=cuda:0 pytest tests/native tests/kernels``: native tests on that device; ``XPU_TEST_TARGET`` is its code, where it does not say."""
    where = os.environ.get("XPU_TEST_DEVICE", "")
    if where:
        from support.device_under_test import name_device

        name_device(where, os.environ.get("XPU_TEST_TARGET") or None)
    highest = os.environ.get("XPU_TEST_LEVEL", "")
    if highest:
        from xpuruntime.codegen.isa import LEVELS

        if highest not in LEVELS:
            raise pytest.UsageError(f"XPU_TEST_LEVEL is one of {', '.join(LEVELS)}; got {highest!r}")
        if lacking := _lacking(highest):
            raise pytest.UsageError(f"XPU_TEST_LEVEL={highest}: this processor lacks {lacking}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("XPU_TEST_DEVICE"):
        for item in items:
            if {item.path.name, getattr(item, "originalname", "")} & ONLY_PROCESSORS:
                item.add_marker(pytest.mark.skip(reason="about kernels that only processors have"))
        return
    for item in items:
        for level in _levels_of(item):
            if _lacking(level):
                item.add_marker(
                    pytest.mark.skip(reason=f"runs code of {level}, and this processor is below it")
                )


def _levels_of(item: pytest.Item) -> set[str]:
    """Instruction-set levels whose code a test runs: those of its ``level`` marks and of its parameters."""
    from xpuruntime.codegen.isa import LEVELS

    levels = {mark.args[0] for mark in item.iter_markers("level")}
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {p.removeprefix("cpu:") for p in parameters if isinstance(p, str) and p.startswith("cpu:")}
    return levels | named & LEVELS.keys()


@functools.cache
def _lacking(level: str) -> str:
    """Instruction sets of a level that this processor lacks, or that the system does not grant."""
    from xpuruntime import _core
    from xpuruntime.codegen.isa import LEVELS

    return ", ".join(_core.missing_requirements(sorted(LEVELS[level].features)))


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Drop every XPU_* variable and point the store at a folder of this test run (subprocesses inherit both)."""
    for name in [n for n in os.environ if n.startswith("XPU_") and not n.startswith("XPU_TEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XPU_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "xpu-cache"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture
def bare_python(tmp_path: Path) -> Callable[[str], str]:
    """Run code where only NumPy, ml_dtypes and xpuruntime exist, so that every vendor's package is really missing."""
    import ml_dtypes
    import numpy as np

    import xpuruntime

    folder = tmp_path / "bare"
    folder.mkdir()
    for package in (np, ml_dtypes, xpuruntime):
        source = Path(package.__path__[0]).resolve()
        for part in (source, source.with_name(f"{source.name}.libs")):
            if part.exists():
                (folder / part.name).symlink_to(part)

    def run(code: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        command = [sys.executable, "-S", "-c", code]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def onnx_file() -> Callable[..., Path]:
    """A seeded model's ONNX file, kept below build/ until what makes it changes."""
    from xpuruntime.testing.conformance.seeded import networks as models

    folder = Path(__file__).resolve().parents[1] / "build" / "models"

    def export(name: str, **how: Any) -> Path:
        words = [name, *(f"{k}-{v}" for k, v in how.items())]
        return models.export_onnx(name, folder / f"{'_'.join(words)}.onnx", **how)

    return export


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty one."""
    return Store(tmp_path / "store", limit=1 << 30, mode="rw")
