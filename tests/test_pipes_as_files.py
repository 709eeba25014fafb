"""A pipe or a device in a file's place: a named error, at once. A plain ``open`` of a pipe waits for a writer for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

READERS = {
    "safetensors": "from xpuruntime.storage.tensor_files import read_safetensors as read",
    "graph.json": "from xpuruntime.ir.serialization.json_reader import load as read",
    "times.json": "from xpuruntime.compiler.times import KernelTimes; read = KernelTimes.load",
    "policy.yaml": "from xpuruntime import load_policy as read",
    "policy.json": "from xpuruntime import load_policy as read",
    "program.npubin": "import xpuruntime as x; read = x.CompiledProgram.load",
    "model.onnx": "from xpuruntime.frontends.model_file import open_model as read",
    "model.xml": "from xpuruntime.frontends.model_file import open_model as read",
    "config.json": "from pathlib import Path; from xpuruntime.llm.checkpoint.reader import _json; read = lambda p: _json(Path(p))",
}


def told(code: str, *arguments: object) -> str:
    """What the error of a process says: its class, then its text."""
    program = f"""
import sys
{code}
from xpuruntime.errors import XpuError
try:
    read(*sys.argv[1:])
except XpuError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_at_once(tmp_path: Path, name: str) -> None:
    if name.startswith("model"):
        pytest.importorskip("onnx")
    os.mkfifo(tmp_path / name)
    kind, _, text = told(READERS[name], tmp_path / name).partition(" ")
    assert kind in ("FormatError", "ModelError", "PolicyError"), text
    assert any(words in text for words in ("is a pipe", "is not a file", "is empty")), text


def test_the_weights_of_an_openvino_model_may_be_no_pipe(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    (tmp_path / "m.xml").write_text('<net name="m" version="11"><layers/><edges/></net>')
    os.mkfifo(tmp_path / "m.bin")
    assert "'m.bin': is a pipe" in told(READERS["model.xml"], tmp_path / "m.xml")


def test_a_plan_may_be_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plan.json")
    command = [sys.executable, "-m", "xpuruntime.cli", "inspect", str(tmp_path / "plan.json"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 9
    assert "is a pipe" in json.loads(done.stdout)["got"]
