from __future__ import annotations

import re

import pytest

from xpuruntime.families import FAMILIES, family_of_aten, family_of_onnx
from xpuruntime.ir import OPS, aten_index, onnx_index
from xpuruntime.ir.attributes import coerce

# Where one of our ops serves an op of another family, and why.
OTHER_FAMILY = {
    ("clamp", "hardtanh"): "an activation made of a clamp",
    ("amax", "GlobalMaxPool"): "a pool over everything is a reduction",
    ("vector_norm", "GlobalLpPool"): "a pool over everything is a reduction",
    ("dropout", "Dropout"): "the identity in inference, a random draw in training",
}

# Core ATen ops that no row represents, and why.
NOT_IN_TABLE = {
    r"sym_is_contiguous|sym_storage_offset|sym_stride\.int": "layout is not part of a value: every value is dense",
    r"_local_scalar_dense": "a tensor's element as a Python number: the graph would depend on data",
    r"resize_": "mutates; functionalisation takes it away",
    r".*\.out": "out variants; functionalisation takes them away",
}


def test_every_family_exists() -> None:
    assert {row.family for row in OPS.values()} <= set(FAMILIES)


def test_families_agree_with_the_vocabulary() -> None:
    wrong = []
    for row in OPS.values():
        wrong += [(row.name, a) for a in row.aten if family_of_aten(a) != row.family]
        wrong += [(row.name, o) for o in row.onnx if family_of_onnx(o) != row.family]
    assert set(wrong) == set(OTHER_FAMILY)


@pytest.mark.parametrize("row", OPS.values(), ids=lambda r: r.name)
def test_row_is_well_formed(row) -> None:
    names = [p.name for p in (*row.inputs, *row.outputs)]
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", n) for n in [row.name, *names, *row.attrs])
    assert len({p.name for p in row.inputs}) == len(row.inputs)
    assert not any(p.rest for p in row.inputs[:-1]), "only the last operand takes the rest"
    optional = [p.optional for p in row.outputs]
    assert optional == sorted(optional), "outputs are left off from the end"
    for attr in row.attrs.values():
        if not attr.required:
            assert repr(coerce(attr.kind, attr.default)) == repr(attr.default)
    if row.commutative:
        assert row.inputs[0].number == row.inputs[1].number
    if row.data_dependent:
        assert "count" in row.attrs
    assert set(names).isdisjoint({"op", "self"})


def test_core_aten_is_covered() -> None:
    torch = pytest.importorskip("torch")
    index = aten_index()
    core = []
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or not hasattr(torch.ops.aten, base):
            continue
        packet = getattr(torch.ops.aten, base)
        if (overload or "default") in packet.overloads():
            op = getattr(packet, overload or "default")
            if torch.Tag.core in op.tags:
                core.append(f"{base}.{overload}" if overload else base)
    assert len(core) > 180
    missing = [n for n in core if n not in index and not any(re.fullmatch(p, n) for p in NOT_IN_TABLE)]
    assert missing == []


# ONNX ops that are neither in a row nor functions (which are inlined first): these stay opaque.
ONNX_OPAQUE = {
    "control flow, sequences, optional values": """If Loop Scan SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert
        SequenceLength SplitToSequence ConcatFromSequence Optional OptionalGetElement OptionalHasElement""",
    "text and files": "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer ImageDecoder",
    "decomposed by the frontend": "LpNormalization Mean Shape Size Neg ReduceSumSquare ReduceLogSum GlobalAveragePool",
    "computed from numbers when the graph is made": "MelWeightMatrix",
}


def test_onnx_is_covered() -> None:
    onnx = pytest.importorskip("onnx")
    known = {n for text in ONNX_OPAQUE.values() for n in text.split()} | set(onnx_index())
    missing = []
    for schema in onnx.defs.get_all_schemas():
        function = schema.has_function or schema.has_context_dependent_function
        if schema.domain == "" and not function and not schema.deprecated and schema.name not in known:
            missing.append(schema.name)
    assert missing == []
