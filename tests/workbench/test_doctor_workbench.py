from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from xpuruntime import env
from xpuruntime.storage.store import Store
from xpuruntime.workbench.devices import engine_report, inventory
from xpuruntime.workbench.doctor import diagnose, smoke_model
from xpuruntime.workbench.inspection import inspect_model

onnx = pytest.importorskip("onnx")


def _by_name(found, section: str) -> dict:
    return {c.name: c for c in found.checks if c.section == section}


def test_the_smoke_model_says_what_numpy_says() -> None:
    from onnx.reference import ReferenceEvaluator

    data, feeds, wanted = smoke_model()
    (got,) = ReferenceEvaluator(onnx.load_from_string(data)).run(None, feeds)
    assert np.array_equal(got, wanted)
    assert (wanted == 0).any(), "relu has to clip something, or it is not tested"
    assert (wanted > 0).any()


def test_a_sound_machine_is_healthy() -> None:
    found = diagnose()
    assert found.healthy, [c for c in found.checks if c.status == "fail"]
    assert set(_by_name(found, "environment")) >= set(env.VARIABLES)
    engines = _by_name(found, "engines")
    for name in ("onnxruntime", "openvino"):
        if importlib.util.find_spec(name):
            assert engines[f"{name} on cpu"].status == "pass"
    assert all(c.text for c in found.checks)
    assert all(c.do or c.section == "core" for c in found.checks if c.status in ("fail", "absent"))


def test_damage_in_the_store_is_a_problem(own_store: Path) -> None:
    store = Store()
    key = store.put("artifact", {"a": 1}, b"payload")
    path = store.path("artifact", key)
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    found = diagnose()
    assert not found.healthy
    assert "does not match its checksum" in _by_name(found, "store")["integrity"].text


def test_a_store_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = diagnose(tmp_path / "file" / "store")
    assert _by_name(found, "store")["writing"].status == "fail"


def test_bad_and_misspelled_variables_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPU_CACHE_BYTES", "many")
    monkeypatch.setenv("XPU_CASHE_DIR", "x")
    environment = _by_name(diagnose(), "environment")
    assert environment["XPU_CACHE_BYTES"].status == "fail"
    assert environment["XPU_CASHE_DIR"].text == "unknown variable"


def test_inventory() -> None:
    found = inventory()
    assert found.cpu.usable_cores >= 1
    data = found.to_json()
    for engine in data["engines"]:
        assert engine["installed"]["ok"] or engine["installed"]["reason"]
        for device in engine["devices"]:
            assert device["support"]["ok"] or device["support"]["reason"]


def test_an_engine_that_is_not_installed_is_a_reason() -> None:
    if importlib.util.find_spec("tensorrt"):
        pytest.skip("TensorRT is installed")
    report = engine_report("tensorrt")
    assert not report.installed
    assert (report.installed.code, report.installed.do) == (
        "not_installed",
        "Run: pip install 'xpuruntime[tensorrt]'",
    )


def test_inspection_counts(net_path: Path) -> None:
    found = inspect_model(net_path)
    data = found.to_json()
    assert data["nodes"] == 5
    assert data["families"]["conv"] == {"Conv": 1}
    assert sum(sum(ops.values()) for ops in data["families"].values()) == 5
    assert data["parameters"]["elements"] == 4 * 3 * 3 * 3 + 4 + 40
    assert data["parameters"]["bytes"] == 4 * data["parameters"]["elements"]
    assert data["inputs"] == [{"name": "image", "spec": "float32[batch, 3, 8, 8]"}]
    assert data["precision"] == "float32"
    assert all(e["ok"] or e["reason"] for e in data["engines"])


def test_inspection_asks_about_a_device(net_path: Path) -> None:
    answers = {e.engine: e.support for e in inspect_model(net_path, "npu").engines}
    assert not any(answers.values())
    assert all(s.reason for s in answers.values())
