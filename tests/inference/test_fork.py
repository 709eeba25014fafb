"""Runs in the background after a fork: the child has threads of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import os, sys
import numpy as np
import xpuruntime as xrt
from onnx import TensorProto, helper
values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
session = xrt.InferenceSession(model, engine="native", threads=1)
x = np.array([-1, 2, -3, 4], np.float32)
run = lambda: session.run_async({"x": x}).result(60)["y"].tolist()
assert run() == [0, 2, 0, 4]
child = os.fork()
if child == 0:
    try:
        os._exit(0 if run() == [0, 2, 0, 4] else 3)
    finally:
        os._exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert run() == [0, 2, 0, 4]
print("both ran")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_fork_runs_in_the_background() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stdout) == (0, "both ran\n"), done.stderr[-2000:]
