from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

onnx = pytest.importorskip("onnx")


def _no_constant(text: str) -> Any:
    raise AssertionError(f"{text} is not JSON")


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The one document on stdout, by the letter of JSON: no NaN, no Infinity, nothing after it."""
        return json.loads(self.stdout, parse_constant=_no_constant)


@pytest.fixture(autouse=True)
def own_store(fresh_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XPU_POLICY", "XPU_ENGINE", "XPU_DEVICE", "XPU_NUM_THREADS", "XPU_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XPU_CACHE_DIR", str(fresh_store))
    monkeypatch.setenv("COLUMNS", "200")
    return fresh_store


@pytest.fixture
def xpu():
    """Run ``xpu`` in this process."""
    from xpuruntime.cli.app import app

    def run(*arguments: object) -> Outcome:
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def xpu_process():
    """Run ``xpu`` as users do, in a process of its own."""

    def run(*arguments: object, timeout: float = 120, **environment: str) -> Outcome:
        command = [sys.executable, "-m", "xpuruntime.cli", *map(str, arguments)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=os.environ | environment,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


def line_model(slope: float = 2.0) -> onnx.ModelProto:
    """y = slope * x + 1 over x float32[batch, 3], by a matrix product so that every engine has it."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Add", ["p", "one"], ["y"], name="sum"),
    ]
    weights = [
        numpy_helper.from_array(slope * np.eye(3, dtype=np.float32), "w"),
        numpy_helper.from_array(np.ones(3, np.float32), "one"),
    ]
    graph = helper.make_graph(
        nodes,
        "line",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "line.onnx"
    onnx.save(line_model(), path)
    return path


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The model with one weight changed by one part in a thousand."""
    from onnx import numpy_helper

    changed = line_model()
    w = numpy_helper.to_array(changed.graph.initializer[0]).copy()
    w[1, 1] *= 1.001
    changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    path = tmp_path / "other.onnx"
    onnx.save(changed, path)
    return path


@pytest.fixture
def x_file(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, np.array([[1, 2, 3]], np.float32))
    return path
