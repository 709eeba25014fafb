"""Attributes that an op does not have, or whose values are not supported: never ignored, in any domain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

pytest.importorskip("onnxruntime")

from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from support.contrib import attention, fused, packed
from support.contrib.case import Case, floats, proto_of, theirs

from xpuruntime import InferenceSession
from xpuruntime.errors import UnavailableError
from xpuruntime.frontends.model_file import open_model
from xpuruntime.frontends.onnx import lower
from xpuruntime.frontends.onnx.definitions import ATTRIBUTES
from xpuruntime.frontends.onnx.importer import import_onnx
from xpuruntime.frontends.onnx.ops import DOMAINS

_SCHEMAS = {s.name: s for s in get_all_operator_schema() if s.domain == "com.microsoft"}
_IN_DEFAULT_DOMAIN = {"LayerNormalization", "SimplifiedLayerNormalization"}


def one_node(op: str, *operands: np.ndarray, domain: str = "com.microsoft", **attributes: Any) -> bytes:
    case = Case(op, operands, attributes, domain=domain)
    return bytes(proto_of(case, [helper.make_tensor_value_info("o0", 1, None)]).SerializeToString())


@pytest.mark.parametrize("op", sorted(DOMAINS["com.microsoft"].keys() & _SCHEMAS.keys()))
def test_the_table_has_the_attributes_of_onnx_runtime(op: str) -> None:
    theirs = {n: (int(a.type), a.required) for n, a in _SCHEMAS[op].attributes.items()}
    assert {n: (int(r.type), r.required) for n, r in ATTRIBUTES[op].items()} == theirs


def test_every_op_has_an_entry() -> None:
    assert ATTRIBUTES.keys() == DOMAINS["com.microsoft"].keys() | _IN_DEFAULT_DOMAIN


class _Recorded(dict[str, Any]):
    """Attributes that record which of them are read."""

    def __init__(self, values: dict[str, Any], read: set[str]) -> None:
        super().__init__(values)
        self.read = read

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)


_NO_EFFECT = {
    "accuracy_level",  # permits rounding
    "activation_gamma",  # of no activation that is lowered
    "mask_index_type",  # the shape of an output
    "rotary_embedding_dim",  # the width of the tables says it
    "qk_output",  # of an output that is refused
    "seed",  # outside training nothing is drawn
    "stash_type",  # of outputs that are refused
    "training_mode",  # keeps operands of the gradient
}


def _cases() -> Iterator[Case]:
    yield from (
        c for c in (*fused.CASES, *attention.CASES, attention.NORMED, *packed.CASES) if c.op in ATTRIBUTES
    )


def test_every_attribute_is_read_or_has_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attribute of the table that no lowering reads would be ignored."""
    read: dict[str, set[str]] = defaultdict(set)
    plain = lower.attributes
    monkeypatch.setattr(lower, "attributes", lambda node: _Recorded(plain(node), read[node.op_type]))
    for case in _cases():
        import_onnx(proto_of(case))
    unread = {
        op: missing
        for op in read
        if (missing := {n for n, r in ATTRIBUTES[op].items() if len(r.values) != 1} - read[op] - _NO_EFFECT)
    }
    assert not unread
    assert len(read) > 40


X, W = floats(4, 4), floats(4, 4)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (one_node("FusedMatMul", X, W, tranzB=1), r"FusedMatMul \(the_node\).*no attribute 'tranzB'; did you mean 'transB'"),
        (one_node("FusedMatMul", X, W, gain=2.0), "no attribute 'gain'; it has alpha, transA"),
        (one_node("Gelu", X, approximate="tanh"), "no attribute 'approximate'; it has none"),
        (one_node("FusedMatMul", X, W, transB=1.0), "'transB' is FLOAT instead of INT"),
        (one_node("BiasSoftmax", X, X, axis=1), "'is_inner_broadcast' is missing"),
        (one_node("Softmax", X, domain="", axes=0), "no attribute 'axes'; did you mean 'axis'"),
        (one_node("Softmax", X, domain="", axis=0.0), "'axis' is FLOAT instead of INT"),
        (one_node("HardSwish", X, domain="", alpha=0.2), "no attribute 'alpha'; it has none"),
        (one_node("Cast", X, domain=""), "'to' is missing"),
    ],
)  # fmt: skip
def test_an_attribute_that_the_op_does_not_have_is_refused(model: bytes, reason: str) -> None:
    """Also by an engine that ignores it: OpenVINO would compute something else."""
    with pytest.raises(UnavailableError, match=reason) as error:
        InferenceSession(model, engine="native", device="cpu")
    assert str(error.value).endswith("Correct the attribute, or export the model again.")
    with pytest.raises(Exception, match=r"INVALID_GRAPH|ShapeInferenceError|Invalid"):
        theirs(model, {"i0": X})
    assert [bool(n.undeclared) for n in open_model(model).nodes] == [True]


def test_so_is_one_of_an_op_of_onnx_runtime_in_the_default_domain() -> None:
    """ONNX Runtime itself ignores it there."""
    model = one_node("SimplifiedLayerNormalization", X, X[0], domain="", bias=1)
    with pytest.raises(UnavailableError, match="no attribute 'bias'; it has axis, epsilon, stash_type"):
        InferenceSession(model, engine="native", device="cpu")


def test_openvino_does_not_ignore_it() -> None:
    pytest.importorskip("openvino")
    model = one_node("FusedMatMul", X, W, tranzB=1)
    with pytest.raises(UnavailableError, match=r"no attribute 'tranzB'.*OpenVINO would compute without it"):
        InferenceSession(model, engine="openvino", device="cpu")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (one_node("FusedMatMul", X, W, transB=1.0), "'transB' is FLOAT instead of INT"),
        (one_node("BiasSoftmax", X, X, axis=1), "'is_inner_broadcast' is missing"),
    ],
)
def test_only_of_an_attribute_that_is_not_declared_it_says_so(model: bytes, reason: str) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(UnavailableError, match=reason) as error:
        InferenceSession(model, engine="openvino", device="cpu")
    assert "would compute without it" not in str(error.value)


def old_norm(version: int = 11, **attributes: Any) -> bytes:
    """Return BatchNormalization of an opset that has neither ``spatial`` nor ``is_test``."""
    weights = [numpy_helper.from_array(np.array([1, 2, 3], np.float32), n) for n in "sbmv"]
    info = [helper.make_tensor_value_info(n, 1, [2, 3, 4]) for n in "xy"]
    node = helper.make_node("BatchNormalization", [*"xsbmv"], ["y"], name="norm", **attributes)
    graph = helper.make_graph([node], "g", info[:1], info[1:], weights)
    opsets = [helper.make_opsetid("", version)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=6).SerializeToString())


@pytest.mark.parametrize("engine", ["native", "openvino"])
@pytest.mark.parametrize("left", [{"spatial": 1}, {"is_test": 0, "consumed_inputs": [0, 0, 0, 1, 1]}])
def test_a_default_of_an_earlier_version_may_be_left_behind(engine: str, left: dict[str, Any]) -> None:
    pytest.importorskip(engine if engine == "openvino" else "xpuruntime")
    x, s = floats(2, 3, 4), np.array([1, 2, 3], np.float32)[:, None]
    with InferenceSession(old_norm(**left), engine=engine, device="cpu") as sess:
        (got,) = sess.run({"x": x}).values()
    np.testing.assert_allclose(got, (x - s) / np.sqrt(s + 1e-5) * s + s, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (old_norm(spatial=0), "spatial"),
        (old_norm(spatial=1.0), "spatial"),
        (one_node("Clip", X, domain="", min=-3.4028234663852886e38), "min"),  # an operand in this version
        (one_node("Softmax", X, domain="", consumed_inputs=[0]), "consumed_inputs"),  # of no version
    ],
)
def test_another_value_of_it_is_refused(model: bytes, name: str) -> None:
    with pytest.raises(UnavailableError, match=f"the op has no attribute '{name}'"):
        InferenceSession(model, engine="native", device="cpu")


def test_inside_branches_and_functions_it_is_seen_too() -> None:
    info = helper.make_tensor_value_info("y", 1, [4, 4])
    node = helper.make_node("Softmax", ["i0"], ["y"], name="inner", axes=0)
    branch = helper.make_graph([node], "branch", [], [info])
    fed = [helper.make_tensor_value_info("c", 9, []), helper.make_tensor_value_info("i0", 1, [4, 4])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    choice = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=branch, else_branch=branch)
    model = helper.make_model(
        helper.make_graph([choice], "g", fed, [info]), opset_imports=opsets, ir_version=8
    )
    (ref,) = open_model(model).nodes
    assert ref.undeclared.startswith("inside it, Softmax (inner): the op has no attribute 'axes'")
    with pytest.raises(UnavailableError, match="no attribute 'axes'"):
        InferenceSession(model, engine="native", device="cpu")
    function = helper.make_function("own", "F", ["i0"], ["y"], [node], opsets[:1])
    call = helper.make_node("F", ["i0"], ["y"], name="call", domain="own", axes=0)
    model = helper.make_model(
        helper.make_graph([call], "g", fed[1:], [info]),
        opset_imports=opsets,
        functions=[function],
        ir_version=8,
    )
    (ref,) = open_model(model).nodes
    assert ref.undeclared.startswith("inside the function 'F', Softmax (inner)")
    with pytest.raises(UnavailableError, match="no attribute 'axes'"):
        InferenceSession(model, engine="native", device="cpu")


_ONLY = [(op, n) for op, rules in ATTRIBUTES.items() for n, r in rules.items() if r.values]


@pytest.mark.parametrize(("op", "name"), _ONLY)
def test_a_value_that_is_not_supported_is_refused(op: str, name: str) -> None:
    """The reason names the value; the node itself follows its definition, so that other engines may take it."""
    case = next((c for c in _cases() if c.op == op), Case(op, (X, X, X)))
    values = ATTRIBUTES[op][name].values
    other = "PER_TENSOR" if isinstance(values[0], str) else len(values)
    needed = {
        n: r.values[0] if r.values else 1 for n, r in ATTRIBUTES[op].items() if r.required and r.type == 2
    }
    needed |= {"axes": [0]} if "axes" in ATTRIBUTES[op] else {}
    model = proto_of(case._replace(attributes={**needed, **case.attributes, name: other}))
    (opaque,) = (n for n in import_onnx(model).graph.nodes if n.op == "opaque")
    assert f"its attribute {name!r} is {other!r}; only" in str(opaque.attrs["reason"])


def test_attributes_that_an_engine_writes_for_itself_are_no_fault() -> None:
    model = one_node("Softmax", X, domain="", __engine=1)
    with InferenceSession(model, engine="native", device="cpu") as sess:
        (got,) = sess.run({"i0": X}).values()
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-5)
