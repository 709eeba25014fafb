"""Abilities that an executable may have: a session uses each that is there, and works without."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.onnx_models import small_classifier

import xpuruntime as xrt
from xpuruntime.decisions import Support
from xpuruntime.engines import ENGINES, lookup
from xpuruntime.errors import PolicyError, UnavailableError
from xpuruntime.inference.partitioned.mixed import _on_device
from xpuruntime.plugins.loader import EnginePlugin
from xpuruntime.protocols import Artifact, DeviceFact, Evidence
from xpuruntime.targets import DeviceId

NAME = "acme"
PLUGIN = EnginePlugin(
    NAME, "Acme", (), (), "json", "", ("0", "9"), ("onnx",), "acme_of_the_test", compiles_in_build=False
)


PROVIDERS = pytest.importorskip("onnxruntime").get_available_providers()


class Remote:
    """A tensor of another library in a GPU's memory."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("copied to the host")


class Plain:
    """The least that an executable is."""

    def __init__(self, model: Any) -> None:
        self.inputs, self.outputs = model.inputs, model.outputs
        self.calls: list[str] = []

    def run(self, feeds: dict[str, Any]) -> list[np.ndarray]:
        self.calls.append("run")
        return [np.zeros([int(d) for d in s.shape], np.float32) for s in self.outputs]

    def evidence(self, feeds: Any = None) -> Evidence:
        self.calls.append("evidence")
        return Evidence(NAME, "1", (), "session", fallbacks=("by evidence",))

    def close(self) -> None:
        self.calls.append("close")


class OnDevice(Plain):
    """One that runs on tensors of its device. Odd values are not for its fast path."""

    on_device = True

    def run_tensors(self, tensors: Any) -> list[Remote]:
        self.calls.append("run_tensors")
        return [Remote(10 * t.value) for t in tensors.values()]

    def try_run_tensors(self, tensors: Any) -> dict[str, Remote] | None:
        self.calls.append("try_run_tensors")
        if any(not isinstance(t, Remote) or t.value % 2 for t in tensors.values()):
            return None
        return {s.name: Remote(10 * t.value) for s, t in zip(self.outputs, tensors.values(), strict=True)}


class OnHost(OnDevice):
    """The same class of executable on a host, where arrays are as good."""

    on_device = False


class Telling(Plain):
    """One that knows its fallbacks and the reasons of its choices."""

    @property
    def decisions(self) -> tuple[xrt.Decision, ...]:
        return (xrt.Decision("kernel conv", "c", None),)

    def fallbacks(self) -> tuple[str, ...]:
        return ("known at once",)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    sessions: list[xrt.InferenceSession] = []

    def open_with(kind: type[Plain]) -> tuple[xrt.InferenceSession, Any]:
        engine = ModuleType(PLUGIN.entry)
        engine.__dict__.update(
            version=lambda: "1",
            devices=lambda: (),
            supports=lambda model, request: Support.yes(),
            fingerprint=lambda request: {},
            build=lambda model, request: Artifact(NAME, b"", False),
            load=lambda artifact, model, request: kind(model),
            PLUGIN=PLUGIN,
        )
        monkeypatch.setitem(sys.modules, PLUGIN.entry, engine)
        monkeypatch.setitem(ENGINES, NAME, f"{PLUGIN.entry}:PLUGIN")
        policy = xrt.ExecutionPolicy(self_check="off")
        sessions.append(
            xrt.InferenceSession(
                small_classifier(batch=2), device="cpu", engine=NAME, exec_policy=policy, cache_dir=tmp_path
            )
        )
        executable = sessions[-1]._executable
        executable.calls.clear()
        return sessions[-1], executable

    yield open_with
    for session in sessions:
        session.close()


def feeds(session: xrt.InferenceSession) -> dict[str, np.ndarray]:
    return {s.name: np.zeros([int(d) for d in s.shape], np.float32) for s in session.input_info}


@pytest.mark.parametrize(
    ("says", "listed", "where"),
    [
        (None, "cuda", "acme on cuda:0"),
        (None, "npu", "acme"),
        (False, "cuda", "acme"),
        (True, "npu", "acme on cuda:0"),
    ],
)
def test_regions_are_on_the_gpu_if_the_engine_has_one(
    says: bool | None, listed: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ModuleType(PLUGIN.entry)
    fact = DeviceFact(DeviceId(listed), "a device", Support.yes())
    engine.__dict__.update(devices=lambda: (fact,), PLUGIN=replace(PLUGIN, cuda=says))
    monkeypatch.setitem(sys.modules, PLUGIN.entry, engine)
    monkeypatch.setitem(ENGINES, NAME, f"{PLUGIN.entry}:PLUGIN")
    assert _on_device(NAME, DeviceId("cuda")) == where
    assert _on_device(NAME, DeviceId("cpu")) == NAME


STREAM = xrt.ExecutionPolicy(
    engine="onnxruntime",
    target="cuda",
    allow_fallback=["cpu"],
    engine_options={"onnxruntime": {"stream": "own"}},
)


@pytest.mark.skipif("CUDAExecutionProvider" in PROVIDERS, reason="nothing falls back")
def test_an_option_of_another_device_is_ignored_on_a_fallback(tmp_path: Any) -> None:
    model = small_classifier(batch=2)
    with xrt.InferenceSession(model, exec_policy=STREAM, cache_dir=tmp_path) as session:
        (decision,) = (d for d in session.plan.decisions if d.question == "engine")
        assert decision.chosen is not None
        assert decision.chosen.name == "onnxruntime on cpu"
        assert decision.chosen.facts["options_ignored"] == {"stream": ["cuda", "gpu", "auto"]}
    for named in ("cpu", "cuda"):
        with pytest.raises((PolicyError, UnavailableError)):
            xrt.InferenceSession(
                model, exec_policy=replace(STREAM, target=named, allow_fallback=None), cache_dir=tmp_path
            )


def test_an_option_of_another_device_is_ignored_in_a_region_of_the_host(tmp_path: Any) -> None:
    policy = replace(
        STREAM, target="cpu", allow_fallback=None, engine="native", place={"softmax": "onnxruntime"}
    )
    with xrt.InferenceSession(small_classifier(batch=2), exec_policy=policy, cache_dir=tmp_path) as session:
        session.run(feeds(session))
        notes = [n for e in session.receipt().evidence.values() for n in e.notes]
    assert any("options of other devices are ignored: 'stream' (for cuda, gpu, auto)" in n for n in notes)


@pytest.mark.parametrize(("says", "loads"), [(False, 0), (None, 1)])
def test_memory_that_cannot_be_limited_is_refused(
    says: bool | None, loads: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    engine, loaded = ModuleType(PLUGIN.entry), []

    def load(artifact: Any, model: Any, request: Any) -> Plain:
        loaded.append(model)
        return Plain(model)

    engine.__dict__.update(
        version=lambda: "1",
        devices=lambda: (),
        supports=lambda model, request: Support.yes(),
        fingerprint=lambda request: {},
        build=lambda model, request: Artifact(NAME, b"", False),
        load=load,
        PLUGIN=replace(PLUGIN, holds_memory=says),
    )
    monkeypatch.setitem(sys.modules, PLUGIN.entry, engine)
    monkeypatch.setitem(ENGINES, NAME, f"{PLUGIN.entry}:PLUGIN")
    policy = xrt.ExecutionPolicy(self_check="off", memory_bytes=1 << 30)
    with pytest.raises(PolicyError, match="memory_bytes cannot be enforced"):
        xrt.InferenceSession(
            small_classifier(batch=2), device="cpu", engine=NAME, exec_policy=policy, cache_dir=tmp_path
        )
    assert len(loaded) == loads


def test_built_in_engines_say_what_they_have() -> None:
    """Otherwise a vendor's package would be imported, or a model built, only to ask."""
    said = {name: (lookup(name).cuda, lookup(name).holds_memory) for name in ENGINES}
    assert said == {
        "onnxruntime": (True, False),
        "openvino": (False, False),
        "tensorrt": (True, False),
        "qnn": (False, False),
        "native": (True, True),
    }


def test_tensors_of_a_device_stay_there(opened: Any) -> None:
    session, executable = opened(OnDevice)
    (name,) = (s.name for s in session.input_info)
    (result,) = session.run({name: Remote(4)}).values()
    assert (result.value, executable.calls) == (40, ["try_run_tensors"])
    (result,) = session.run({name: Remote(3)}).values()
    assert (result.value, executable.calls) == (30, ["try_run_tensors", "try_run_tensors", "run_tensors"])
    executable.calls.clear()
    session.run(feeds(session))
    assert executable.calls == ["try_run_tensors", "run"], "arrays are for the host's path"


@pytest.mark.parametrize("kind", [OnHost, Plain])
def test_without_a_device_the_functions_are_not_called(kind: type[Plain], opened: Any) -> None:
    session, executable = opened(kind)
    session.run(feeds(session))
    assert executable.calls == ["run"]


def test_abilities_are_looked_up_when_the_session_opens(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run pays for none of them: what a class gains later is not seen."""
    session, executable = opened(Plain)
    for name in ("on_device", "run_tensors", "try_run_tensors", "takes"):
        monkeypatch.setattr(Plain, name, vars(OnDevice).get(name, lambda self, tensors: True), raising=False)
    session.run(feeds(session))
    assert executable.calls == ["run"]


def test_fallbacks_and_decisions_come_from_those_that_know_them(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session, _executable = opened(Telling)
    assert session.plan.decision("kernel conv") is not None
    assert "known at once" in caplog.text
    assert "by evidence" not in caplog.text
    caplog.clear()
    session, _ = opened(Plain)
    assert session.plan.decision("kernel conv") is None
    assert "by evidence" in caplog.text


def test_an_engine_that_compiles_on_loading_and_cannot_be_stopped_breaks_no_time_limit(
    opened: Any, tmp_path: Any
) -> None:
    opened(Plain)
    limit = xrt.ExecutionPolicy(compile_timeout_s=5, self_check="off")
    with pytest.raises(xrt.BuildError, match="cannot be stopped, so compile_timeout_s cannot be kept"):
        xrt.InferenceSession(
            small_classifier(batch=2),
            device="cpu",
            engine=NAME,
            exec_policy=limit,
            cache_dir=tmp_path / "other",
        )
