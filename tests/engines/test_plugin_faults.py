"""An engine of another package that fails: the error names the package, and a fallback takes over."""

from __future__ import annotations

import subprocess
from pathlib import Path

import onnx
import pytest

from xpuruntime import children

pytest.importorskip("onnxruntime")

PLUGIN = """
from xpuruntime.plugins import EnginePlugin

PLUGIN = EnginePlugin(
    name="acme", title="Acme", aliases=(), package=("acme-npu",), module="acme", install="pip install acme-npu",
    versions=("1", "2"), formats=("onnx",), entry="acme_engine",
)
"""
# ONNX Runtime's functions, of which one fails.
ENGINE = """
import os
from xpuruntime.engines.onnxruntime.engine import *
from xpuruntime.engines.onnxruntime import engine as inner

def fails(name):
    if os.environ["FAILS"] == name:
        {}["acme " + name]

fails("import")

def devices():
    fails("devices")
    return inner.devices()

def supports(model, request):
    fails("supports")
    return inner.supports(model, request)

def fingerprint(request):
    fails("fingerprint")
    return inner.fingerprint(request)

def build(model, request):
    fails("build")
    return inner.build(model, request)

class Executable:
    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def context(self):
        return Context(self._inner.context())

class Context:
    def __init__(self, inner):
        self._inner = inner

    def run(self, feeds, watched=False):
        fails("run")
        return self._inner.run(feeds, watched)

    def stop(self):
        self._inner.stop()

def load(artifact, model, request):
    fails("load")
    return Executable(inner.load(artifact, model, request))

del stoppable_load
"""
CHILD = """
import sys
import numpy as np
import xpuruntime as xrt
try:
    with xrt.InferenceSession("m.onnx", engine="acme", device="cpu", exec_policy=xrt.ExecutionPolicy(allow_fallback=tuple(sys.argv[1:]))) as session:
        session.run(None, {"x": np.ones(4, np.float32)})
        print("ran on", next(d.chosen.name for d in session.plan.decisions if d.question == "engine"))
except xrt.errors.XpuError as error:
    print(type(error).__name__, error)
"""
WHERE = ["import", "supports", "fingerprint", "build", "load", "run"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    info = tmp_path / "acme_npu-1.4.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-npu\nVersion: 1.4\n")
    (info / "entry_points.txt").write_text("[xpuruntime.engines]\nacme = acme:PLUGIN\n")
    (info / "top_level.txt").write_text("acme\nacme_engine\n")
    (tmp_path / "acme.py").write_text(PLUGIN)
    (tmp_path / "acme_engine.py").write_text(ENGINE)
    helper = onnx.helper
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    return tmp_path


def said(folder: Path, fails: str, *fallback: str) -> str:
    environment = children.environment(FAILS=fails, XPU_CACHE_DIR=str(folder / "store"))
    environment["PYTHONPATH"] = f"{folder}:{environment['PYTHONPATH']}"
    command = children.python("-c", CHILD, *fallback)
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_engine_of_another_package_runs(folder: Path) -> None:
    assert said(folder, "nothing") == "ran on acme on cpu\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", WHERE)
def test_its_fault_is_its_own(folder: Path, place: str) -> None:
    text = said(folder, place)
    assert "plug-in 'acme' (package acme-npu 1.4, entry point of xpuruntime.engines) failed" in text
    assert f"KeyError: 'acme {place}'" in text
    assert "acme_engine.py:" in text
    assert "Report it to its authors" in text
    assert "fault of xpuruntime" not in text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", WHERE[:-1])
def test_a_fallback_takes_over(folder: Path, place: str) -> None:
    assert "ran on onnxruntime" in said(folder, place, "cpu")


def test_a_module_that_is_not_there(folder: Path) -> None:
    (folder / "acme_engine.py").unlink()
    text = said(folder, "nothing")
    assert "EngineUnavailable" in text
    assert "its module 'acme_engine' cannot be imported" in text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", ["import", "devices"])
def test_xpu_devices_lists_it_with_the_reason(folder: Path, place: str) -> None:
    environment = children.environment(FAILS=place, XPU_CACHE_DIR=str(folder / "store"), COLUMNS="400")
    environment["PYTHONPATH"] = f"{folder}:{environment['PYTHONPATH']}"
    command = children.python("-m", "xpuruntime.cli", "devices", "--json")
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "plug-in 'acme' (package acme-npu 1.4, entry point of xpuruntime.engines) failed" in done.stdout
    assert f"KeyError: 'acme {place}'" in done.stdout
