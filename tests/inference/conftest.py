"""A small real model, an input, and what the ONNX reference evaluator says to it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.cuda_doubles import build_libraries
from support.onnx_models import small_classifier

from xpuruntime.inference.selection import auto

onnx = pytest.importorskip("onnx", reason="the tests build models with onnx")


@pytest.fixture(autouse=True)
def few_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sampled run, time each candidate of ``engine="auto"`` in five bursts of 20 ms, not in a user's fifty, which take seconds for each model."""
    if os.environ["XPU_TEST_SEED"] != "all":
        monkeypatch.setattr(auto, "_MAX_RUNS", 5)


@pytest.fixture(scope="session")
def proto():
    """The classifier as a ModelProto."""
    return small_classifier()


@pytest.fixture(scope="session")
def path(proto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classifier as a file."""
    file = tmp_path_factory.mktemp("models") / "classifier.onnx"
    onnx.save(proto, file)
    return file


@pytest.fixture(scope="session")
def x() -> np.ndarray:
    """One batch of two inputs."""
    return np.random.default_rng(7).standard_normal((2, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="session")
def expected(proto, x) -> np.ndarray:
    """What the ONNX reference evaluator says for ``x``."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(proto).run(None, {"input": x})[0]


@pytest.fixture(scope="session")
def simulated_cudnn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process with a driver without a device and a cuDNN that computes on the host (cpp/tests/libraries)."""
    from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
    from xpuruntime.errors import BuildError

    try:
        nvrtc_toolchain()
    except BuildError as error:
        pytest.skip(f"{error}")
    if shutil.which("g++") is None:
        pytest.skip("the simulated libraries are compiled here")
    folder = tmp_path_factory.mktemp("simulated")
    made = build_libraries(folder, "simulated_driver", "computing_cudnn")
    return {"XPU_LIBCUDA": str(made["simulated_driver"]), "XPU_LIBCUDNN": str(made["computing_cudnn"])}
