"""The key of an artifact: every ingredient moves it, alone; and one that is left out of the key does not go unseen."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from xpuruntime.engines import lookup
from xpuruntime.frontends.model_file import open_model
from xpuruntime.inference.native import engine as native
from xpuruntime.inference.selection import candidate as attempt
from xpuruntime.inference.selection.request import SessionRequest, kernels_key
from xpuruntime.policies import KernelPolicy, Policy, Rule
from xpuruntime.protocols import EngineRequest, ModelSource, TuneRequest
from xpuruntime.storage.store import digest
from xpuruntime.targets import DeviceId
from xpuruntime.types import DType

pytest.importorskip("onnxruntime", reason="its fingerprint is looked at")
pytest.importorskip("openvino", reason="its fingerprint is looked at")

REQUEST = EngineRequest(DeviceId("cpu"), None, 2, {"NUM_STREAMS": "1"}, 3)

# Every field of a request, with another value than REQUEST's.
OTHER: dict[str, Any] = {
    "device": DeviceId("gpu"),
    "precision": DType.FLOAT16,
    "threads": 3,
    "options": {"NUM_STREAMS": "2"},
    "optimization": 1,
    "kernels": KernelPolicy(conv="generated"),
    "locked": {"call": "generated"},
    "tune": TuneRequest(5.0),
}


class Fingerprint:
    """An engine as far as a key looks at it."""

    def __init__(self, **facts: str) -> None:
        self.facts = facts

    def fingerprint(self, request: EngineRequest) -> dict[str, str]:
        return self.facts


def moved(model: ModelSource, engine: Any, name: str) -> dict[str, bool]:
    """What is changed, one thing at a time -> whether the key is another one."""
    facts = engine.fingerprint(REQUEST)
    # The facts stay as they are while a field moves: a field must be seen by itself, on a machine without that device, too.
    asked = {"name": name, "engine": Fingerprint(**facts), "model": model, "request": REQUEST}
    base = digest(attempt.artifact_key(**asked))

    def differs(**changed: Any) -> bool:
        return digest(attempt.artifact_key(**{**asked, **changed})) != base

    found = {
        f"request.{f}": differs(request=dataclasses.replace(REQUEST, **{f: v})) for f, v in OTHER.items()
    }
    found["engine"] = differs(name="another")
    found["model.digest"] = differs(model=dataclasses.replace(model, digest="0" * 64))
    for fact in facts:
        found[f"fingerprint.{fact}"] = differs(engine=Fingerprint(**{**facts, fact: "another"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt, "__version__", "0.0.0")
        found["xpuruntime"] = differs()
    assert not differs(), "the key of the same request moved"
    return found


@pytest.fixture
def model(path) -> ModelSource:
    return open_model(path)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "native"])
def test_every_ingredient_moves_the_key(name, model) -> None:
    fields = {f.name for f in dataclasses.fields(EngineRequest)}
    assert set(OTHER) | {"store"} == fields, (
        "a new field needs a row, unless the artifact does not depend on it"
    )
    found = moved(model, lookup(name).load(), name)
    assert [what for what, differs in found.items() if not differs] == []
    assert len([w for w in found if w.startswith("fingerprint.")]) >= 3


@pytest.mark.parametrize(
    "ingredient",
    [
        "xpuruntime",
        "engine",
        "fingerprint",
        "model",
        "device",
        "precision",
        "threads",
        "options",
        "optimization",
        "kernels",
    ],
)
def test_a_key_without_an_ingredient_is_found_out(ingredient, model, monkeypatch) -> None:
    """The test above, against keys that lack one: it must fail for each."""
    whole = attempt.artifact_key
    assert ingredient in whole("openvino", lookup("openvino").load(), model, REQUEST)

    def without(*given: Any, **named: Any) -> dict[str, Any]:
        return {k: v for k, v in whole(*given, **named).items() if k != ingredient}

    monkeypatch.setattr(attempt, "artifact_key", without)
    found = moved(model, Fingerprint(version="1"), "openvino")
    missed = {
        what.partition(".")[0] if ingredient in ("model", "fingerprint") else what.removeprefix("request.")
        for what, differs in found.items()
        if not differs
    }
    assert missed == {ingredient}


def test_the_list_of_ingredients_is_the_whole_key(model) -> None:
    rows = test_a_key_without_an_ingredient_is_found_out.pytestmark[0].args[1]
    assert set(attempt.artifact_key("native", native, model, REQUEST)) == set(rows)


def test_equal_demands_on_kernels_have_one_key(model) -> None:
    """Where a demand was written is no part of it; its layers are."""
    rule = Rule(op="matmul", forbid="naive")
    named, plain = (
        KernelPolicy(conv="generated", origin=o).merge(KernelPolicy(rules=[rule], origin=o))
        for o in ("p.yaml", "")
    )
    flat = KernelPolicy(conv="generated", rules=[rule])
    requests = [dataclasses.replace(REQUEST, kernels=k) for k in (named, plain, flat)]
    first, second, other = (digest(attempt.artifact_key("native", native, model, r)) for r in requests)
    assert first == second != other
    assert kernels_key(plain) == json.dumps(plain.to_dict(), sort_keys=True), "as stores of before have it"
    assert kernels_key(None) == ""


def test_an_artifact_knows_nothing_of_where_its_demands_were_written() -> None:
    """Its key does not, so its reasons may not name a file."""
    policy = KernelPolicy(conv="generated", origin="p.yaml").merge(
        KernelPolicy(matmul="naive", origin="q.yaml")
    )
    kernels = SessionRequest(policy=Policy(kernel=policy)).kernels
    assert kernels == policy
    assert [layer.origin for layer in policy.layers] == ["q.yaml", "p.yaml"]
    assert [layer.origin for layer in kernels.layers] == ["", ""]
    assert SessionRequest().kernels is None


def test_a_model_s_digest_moves_with_its_bytes_and_its_external_data(path, proto, tmp_path) -> None:
    import onnx

    changed = onnx.ModelProto.FromString(path.read_bytes())
    data = bytearray(changed.graph.initializer[0].raw_data)
    data[0] ^= 1
    changed.graph.initializer[0].raw_data = bytes(data)
    assert open_model(changed.SerializeToString()).digest != open_model(path).digest
    file = tmp_path / "outside.onnx"
    own = onnx.ModelProto.FromString(
        proto.SerializeToString()
    )  # saving so moves the data out of the model that is handed in
    onnx.save(own, file, save_as_external_data=True, location="weights", size_threshold=0)
    before = open_model(file).digest
    assert open_model(file).digest == before
    weights = bytearray((tmp_path / "weights").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "weights").write_bytes(weights)
    assert open_model(file).digest != before


def test_a_compiler_that_changed_makes_another_key(model, monkeypatch) -> None:
    before = digest(attempt.artifact_key("native", native, model, REQUEST))
    monkeypatch.setattr(native, "_compiler_digest", lambda: "another")
    assert digest(attempt.artifact_key("native", native, model, REQUEST)) != before
