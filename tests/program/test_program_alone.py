"""A saved program runs where nothing that made it can be had: no torch, no onnx, no compiler module, no toolchain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.native import compile_native

from xpuruntime import ir
from xpuruntime.frontends.onnx import import_onnx

RUN = """
import sys, builtins, importlib.abc

BLOCKED = ("torch", "onnx", "onnxruntime", "openvino", "onnx_ir", "onnxscript", "transformers", "safetensors", "yaml", "typer", "rich")
OURS = ("ir", "frontends", "passes", "codegen", "kernels", "compiler", "policies", "engines", "inference", "workbench", "testing", "cli")

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        parts = name.split(".")
        if parts[0] in BLOCKED or (parts[0] == "xpuruntime" and len(parts) > 1 and parts[1] in OURS):
            raise ImportError(f"{name} is not here")
        return None

sys.meta_path.insert(0, Block())
import shutil
import numpy as np
assert not any(shutil.which(t) for t in ("g++", "gcc", "cc", "c++", "clang", "clang++", "ld", "as"))
from xpuruntime.program.program import CompiledProgram
from xpuruntime.runtime import Executor

folder = sys.argv[1]
program = CompiledProgram.load(f"{folder}/m.npubin")
executor = Executor(program, threads=1)
x = np.load(f"{folder}/x.npy")
(y,) = executor.run_arrays([x])
np.save(f"{folder}/y.npy", y)
loaded = [m for m in sys.modules if m.split(".")[0] in BLOCKED or m.startswith("xpuruntime.") and m.split(".")[1] in OURS]
print(loaded)
"""


@pytest.mark.parametrize("embedded", [True, False], ids=["weights embedded", "weights beside it"])
def test_a_saved_program_runs_alone(embedded: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w, v = rng.standard_normal((2, 6, 8)).astype(np.float32)
    weights = ir.save_weights({"w": w, "v": v}, tmp_path / "w.safetensors")
    b = ir.GraphBuilder("joined")
    x = b.input("x", "float32[6, 3]")
    names = [
        b.weight(n, f.spec, file=f.file, format=f.format, key=f.key, digest=f.digest)
        for n, f in weights.items()
    ]
    b.output("y", b.permute(b.cat(x, *names, dim=1), dims=(1, 0)))
    feed = rng.standard_normal((6, 3)).astype(np.float32)
    program = compile_native(b.build(), {"x": feed})
    program.save(tmp_path / "m.npubin", {"w": w, "v": v} if embedded else None)
    np.save(tmp_path / "x.npy", feed)
    if embedded:
        (tmp_path / "w.safetensors").unlink()
    run_alone(tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.concatenate([feed, w, v], 1).T)


def test_a_network_compiled_from_onnx_runs_alone(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from examples.small_model import small_model

    graph, weights = import_onnx(small_model())
    feed = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    compile_native(graph, {"input": feed}).save(tmp_path / "m.npubin", weights)
    np.save(tmp_path / "x.npy", feed)
    run_alone(tmp_path)
    expected = ir.interp.run(graph, {"input": feed}, weights=weights)["probabilities"]
    found = np.load(tmp_path / "y.npy")
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def run_alone(folder: Path) -> None:
    """Run ``m.npubin`` on ``x.npy`` in a process that finds none of what made it."""
    (folder / "nowhere").mkdir()
    environment = os.environ | {"PATH": str(folder / "nowhere"), "CXX": "no-compiler"}
    command = [sys.executable, "-c", RUN, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
