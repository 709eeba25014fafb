"""Builds that are killed at a random moment leave nothing half-written that is read: the next start with the same store is right."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import xpuruntime as xrt
from xpuruntime.engines import lookup
from xpuruntime.storage.store import Store

SESSIONS = {
    "openvino": {"device": "cpu"},
    "native": {"device": "cpu"},
    "qnn": {"device": "npu"},
}
OPTIONS = {"qnn": {"emulator": "1", "htp_arch": "75"}}
LONGEST_S = 1.5
"""Seconds after which every build here is done, on an idle machine; a kill after that finds a whole store."""

CHILD = """
import sys
import xpuruntime as xrt
model, engine, device, options, cache = sys.argv[1:]
policy = xrt.ExecutionPolicy(engine_options={engine: eval(options)}, self_check="off")
from xpuruntime.engines import lookup
lookup(engine).load().devices()
print("begin", flush=True)
xrt.InferenceSession(model, engine=engine, device=device, exec_policy=policy, cache_dir=cache, threads=1)
print("done", flush=True)
"""


@pytest.fixture(scope="module")
def model(make: Callable[..., onnx.ModelProto], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few products and convolutions, so that a build takes a moment and its artifact has more than a page."""
    rng, node = np.random.default_rng(0), helper.make_node
    weights = {f"w{i}": rng.standard_normal((24, 24, 3, 3), dtype=np.float32) / 15 for i in range(4)}
    nodes = [
        n
        for i in range(4)
        for n in (
            node("Conv", [f"v{i}", f"w{i}"], [f"c{i}"], name=f"conv{i}", pads=[1, 1, 1, 1]),
            node("Relu", [f"c{i}"], [f"v{i + 1}"], name=f"relu{i}"),
        )
    ]
    proto = make(nodes, {"v0": ("float32", [1, 24, 8, 8])}, {"v4": ("float32", [1, 24, 8, 8])}, weights)
    path = tmp_path_factory.mktemp("killed") / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.sampled(2)
@pytest.mark.parametrize("draw", range(100))
def test_the_next_start_is_right(draw: int, model: Path, tmp_path: Path) -> None:
    engine = list(SESSIONS)[draw % len(SESSIONS)]
    if not (installed := lookup(engine).installed()):
        pytest.skip(installed.reason)
    device, options = SESSIONS[engine]["device"], OPTIONS.get(engine, {})
    command = [sys.executable, "-c", CHILD, str(model), engine, device, repr(options), str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"begin\n"
        time.sleep(random.Random(draw).uniform(0, LONGEST_S))
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    store = Store(tmp_path)
    assert store.verify() == []
    x = np.random.default_rng(draw).standard_normal((1, 24, 8, 8), dtype=np.float32)
    with xrt.InferenceSession(
        model, engine="onnxruntime", device="cpu", cache_dir=tmp_path / "reference"
    ) as sess:
        want = sess.run(v0=x)["v4"]
    policy = xrt.ExecutionPolicy(engine_options={engine: options})
    for from_store in (None, True):
        with xrt.InferenceSession(
            model, engine=engine, device=device, exec_policy=policy, cache_dir=tmp_path, threads=1
        ) as sess:
            assert np.abs(sess.run(v0=x)["v4"] - want).max() <= 1e-4 * np.abs(want).max()
            chosen = sess.plan.decision("engine").chosen
            assert chosen is not None
            assert from_store is None or chosen.facts["from_store"]
    assert store.verify() == []
