"""Run by test_measured_variants.py in a process of its own, with XPU_LIBCUDA and XPU_LIBCUDNN naming simulated ones: `python variants_on_a_device.py CASE FOLDER`.

The simulated device executes nothing in timed runs, so every kernel takes its shortest time, and the first of them counts as the fastest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx

import xpuruntime as xrt
from xpuruntime.compiler.times import KernelTimes
from xpuruntime.inference.tuning.on_build import record_of
from xpuruntime.workbench.session_options import SessionOptions
from xpuruntime.workbench.tune import tune

FOLDER = Path(sys.argv[2])
KERNELS = {"rules": [{"forbid": ["flash_v2", "flash_simt", "flash_decode", "naive"]}]}
"""The simulated device loads no code of ours, so cuDNN's kernel is the only one."""
OFFERED = ["cudnn", "cudnn[choice=1]", "cudnn[choice=2]"]
"""The stand-in has one plan less than there are variants (``cpp/tests/libraries/computing_cudnn.cpp``)."""


def model() -> Path:
    """Return the file of a model with one call of cuDNN's."""
    values = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.BFLOAT16, [1, 2, 16, 16]) for n in "qkvy"
    ]
    node = onnx.helper.make_node("Attention", ["q", "k", "v"], ["y"])
    graph = onnx.helper.make_graph([node], "encoder", values[:3], values[3:])
    path = FOLDER / "encoder.onnx"
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=11), path
    )
    return path


def opened(**execution: Any) -> xrt.InferenceSession:
    policy = {"version": 1, "kernel": KERNELS, "execution": {"self_check": "off", **execution}}
    return xrt.InferenceSession(
        str(model()), device="cuda:0", engine="native", policy=policy, cache_dir=FOLDER / "store"
    )


def in_a_file() -> None:
    """``xpu tune`` measures what the library offers, continues, and a session takes what the file says."""
    policy = xrt.load_policy({"version": 1, "kernel": KERNELS, "execution": {"self_check": "off"}})
    options = SessionOptions(device="cuda:0", policy=policy)
    file = FOLDER / "times.json"
    first = tune(model(), file, options, rounds=3, budget_s=1e-9)
    assert (first.finished, first.measured) == (False, 1)
    then = tune(model(), file, options, rounds=3, budget_s=60.0)
    assert (then.finished, then.resumed) == (True, 1)
    (call,) = then.contested
    assert (call.default, sorted(call.times_us)) == ("cudnn", OFFERED)
    times = KernelTimes.load(file)
    (row,) = times.calls.values()
    assert sorted(row) == OFFERED
    assert times.facts["cudnn"] == "9.19.0"
    data = json.loads(file.read_text())
    for measured in data["calls"].values():  # as a device on which a variant is the fastest measures it
        measured["times_us"]["cudnn[choice=2]"] = 1e-4
    file.write_text(json.dumps(data))
    with opened(engine_options={"native": {"kernel_times": str(file)}}) as session:
        (implementation,) = session.executable.only.implementations
        assert implementation == "cudnnBackendExecute engine 1, configuration 3, workspace 0"
        (node,) = session.plan.nodes
        assert node.kernel == "attention/cudnn[choice=2]"
        lock = session.lock()
    with xrt.InferenceSession(str(model()), lock=lock) as session:
        assert session.executable.only.implementations == [implementation]
    data["facts"]["cudnn"] = "9.18.0"
    file.write_text(json.dumps(data))
    with opened(engine_options={"native": {"kernel_times": str(file)}}) as session:
        assert "cudnn is 9.19.0 here, 9.18.0 in the file" in str(session.plan.decision("times"))


def on_build() -> None:
    """A session that measures when it builds records what the library offers, and a later one measures nothing."""
    with xrt.profile() as trace, opened(tune={"on_build": 60.0}) as session:
        record = record_of(session.executable.only.program)
        assert record is not None
        (row,) = KernelTimes.load(record["times"]).calls.values()
        assert sorted(row) == OFFERED
        assert (len(record["measured"]), record["unmeasured"]) == (1, {})
    assert [s.name for s in trace.spans if s.name.startswith("measure")] == ["measure: kernels of encoder"]
    with xrt.profile() as trace, opened(tune={"on_build": 60.0}) as session:
        assert record_of(session.executable.only.program) == record
    assert not [s.name for s in trace.spans if s.name.startswith("measure")]


if __name__ == "__main__":
    globals()[sys.argv[1]]()
