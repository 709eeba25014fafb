"""Compiled artifacts in the store: found again, never trusted when damaged, and never another model's."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import numpy as np
import pytest
from support.onnx_models import small_classifier

import xpuruntime as xrt

pytest.importorskip("openvino", reason="the engine that has artifacts worth keeping")
ASK = {"device": "cpu", "engine": "openvino"}


def start(path, x, cache, **more):
    """One session: its output bytes and the facts of its engine decision."""
    with xrt.InferenceSession(path, cache_dir=cache, **{**ASK, **more}) as sess:
        out = sess.run(input=x)["output"]
        return out.tobytes(), dict(sess.plan.decision("engine").chosen.facts)


def artifacts(store):
    """Its entries but for what is known of model files."""
    return [e for e in store.entries() if e.kind == "artifact"]


def test_the_second_start_comes_from_the_store_and_is_equal_bit_for_bit(path, x, tmp_path) -> None:
    first, cold = start(path, x, tmp_path)
    second, warm = start(path, x, tmp_path)
    assert (cold["from_store"], warm["from_store"]) == (False, True)
    assert first == second


def test_evidence_survives_the_store(path, x, tmp_path) -> None:
    named = []
    for _ in range(2):
        with xrt.InferenceSession(path, cache_dir=tmp_path, **ASK) as sess:
            sess.run(input=x)
            receipt = sess.receipt()
            assert receipt.confirmed
            named.append({n for row in receipt.evidence["r0"].rows for n in row.nodes})
    assert named[0] == named[1] != set()


def test_a_damaged_entry_is_reported_removed_and_built_again(path, x, tmp_path, caplog) -> None:
    first, _ = start(path, x, tmp_path)
    (entry,) = artifacts(xrt.Store(tmp_path))
    data = bytearray(entry.path.read_bytes())
    data[-100] ^= 1
    entry.path.write_bytes(data)
    with caplog.at_level(logging.WARNING, "xpuruntime"):
        again, facts = start(path, x, tmp_path)
    assert again == first
    assert facts["from_store"] is False
    assert "does not match its checksum" in caplog.text
    assert not xrt.Store(tmp_path).verify()


def test_a_whole_entry_that_the_vendor_refuses_is_built_again(path, x, tmp_path, caplog) -> None:
    first, _ = start(path, x, tmp_path)
    store = xrt.Store(tmp_path)
    (entry,) = artifacts(store)
    store.put(entry.kind, entry.ingredients, b"not a blob of any vendor")
    with caplog.at_level(logging.WARNING, "xpuruntime"):
        again, facts = start(path, x, tmp_path)
    assert again == first
    assert facts["from_store"] is False
    assert "rebuilt" in caplog.text


@pytest.mark.parametrize("change", ["threads", "model", "precision", "options"])
def test_every_part_of_the_request_is_part_of_the_key(change, path, x, tmp_path) -> None:
    model, more = path, {"threads": 1}
    if change == "precision":
        more["engine"] = "native"  # it computes in every float type on every processor
    start(path, x, tmp_path, **more)
    match change:
        case "threads":
            more["threads"] = 2
        case "model":
            model = small_classifier(seed=3)
        case "precision":
            more["exec_policy"] = xrt.ExecutionPolicy(precision="bfloat16")
        case "options":
            more["exec_policy"] = xrt.ExecutionPolicy(engine_options={"openvino": {"NUM_STREAMS": "2"}})
    _, facts = start(model, x, tmp_path, **more)
    assert facts["from_store"] is False


def test_caching_false_reads_and_writes_nothing(path, x, tmp_path) -> None:
    start(path, x, tmp_path, exec_policy=xrt.ExecutionPolicy(caching=False))
    assert not xrt.Store(tmp_path).entries()


FULL_DISK = """
import resource, signal, sys
import numpy as np
import xpuruntime as xrt

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write over the limit is an OSError, as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
for engine in ("openvino", "auto"):
    with xrt.InferenceSession(sys.argv[1], device="cpu", engine=engine) as sess:
        assert sess.run(input=np.zeros((1, 3, 8, 8), np.float32))["output"].shape == (1, 10)
"""


@pytest.mark.sampled(one_in=3)
def test_a_disk_that_is_full_does_not_stop_the_model(path, tmp_path) -> None:
    environment = os.environ | {"XPU_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "cannot write" in done.stderr
    assert not [f for f in tmp_path.rglob("*") if f.is_file() and f.suffix != ".lock"]  # nothing half-written


def test_a_store_path_that_is_a_file_is_one_warning_and_the_model_runs(path, x, tmp_path, caplog) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with caplog.at_level("WARNING", "xpuruntime"):
        start(path, x, file)
    (said,) = caplog.messages
    assert "XPU_CACHE_DIR" in said
    assert "Continuing without the store" in said


def test_read_only_mode_reads(path, x, tmp_path, monkeypatch) -> None:
    first, _ = start(path, x, tmp_path)
    monkeypatch.setenv("XPU_CACHE_MODE", "ro")
    second, facts = start(path, x, tmp_path)
    assert facts["from_store"] is True
    assert first == second
    assert np.frombuffer(first, np.float32).size == 20


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_the_optimization_level_reaches_the_engine_or_is_refused(level, path, x, tmp_path) -> None:
    policy = xrt.ExecutionPolicy(optimization_level=level)
    with xrt.InferenceSession(path, device="cpu", engine="onnxruntime", exec_policy=policy) as sess:
        sess.run(input=x)
        rows = sess.receipt().evidence["r0"].rows
    fused = any({"conv", "relu"} <= set(row.nodes) for row in rows)
    assert fused == (level >= 2)
    if level < 3:
        with pytest.raises(xrt.PolicyError, match=f"level {level} is not supported"):
            start(path, x, tmp_path, exec_policy=policy)
