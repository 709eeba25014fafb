"""Op families: every op that exists has one, and only one."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from xpuruntime import families
from xpuruntime.families import FAMILIES, OTHER, aten_base_name, family_of_aten, family_of_onnx


def test_families_are_named_and_explained():
    assert len(FAMILIES) <= 24, "few and crisp"
    for name, family in FAMILIES.items():
        assert name == family.name
        assert name.isidentifier()
        assert name.islower()
        assert family.meaning
        assert family.onnx or family.aten


@pytest.mark.parametrize("field", ["onnx", "aten"])
def test_an_op_stands_once(field):
    counts = Counter(op for f in FAMILIES.values() for op in getattr(f, field))
    assert [op for op, n in counts.items() if n > 1] == []


@pytest.mark.parametrize(
    ("op", "domain", "family"),
    [
        ("MatMul", "", "matmul"),
        ("MatMul", "ai.onnx", "matmul"),
        ("Conv", "", "conv"),
        ("Attention", "", "attention"),
        ("GroupQueryAttention", "com.microsoft", "attention"),
        ("FlexAttention", "ai.onnx.preview", "attention"),
        ("Adam", "ai.onnx.preview.training", "training"),
        ("TreeEnsemble", "ai.onnx.ml", "other"),
        ("MatMul", "my.domain", "other"),
        ("NoSuchOp", "", "other"),
        ("*", "", "other"),
    ],
)
def test_family_of_onnx(op, domain, family):
    assert family_of_onnx(op, domain) == family


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("mm", "matmul"),
        ("aten::mm", "matmul"),
        ("aten.addmm.default", "matmul"),
        ("torch.ops.aten.mm.out", "matmul"),
        ("add_", "elementwise"),
        ("aten.add_.Tensor", "elementwise"),
        ("gelu_backward", "activation"),
        ("_softmax_backward_data", "softmax"),
        ("convolution_backward", "conv"),
        ("embedding_dense_backward", "embedding"),
        ("_to_copy", "elementwise"),
        ("copy_", "data_movement"),
        ("view_copy", "data_movement"),
        ("_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("_scaled_dot_product_flash_attention_backward", "attention"),
        ("mylib::mm", "other"),
        ("", "other"),
    ],
)
def test_family_of_aten(name, family):
    assert family_of_aten(name) == family


def test_every_onnx_op_is_classified():
    onnx = pytest.importorskip("onnx")
    missing = [
        (s.domain, s.name)
        for s in onnx.defs.get_all_schemas_with_history()
        if (f"{s.domain}::{s.name}" if s.domain else s.name) not in families._BY_ONNX
        and f"{s.domain}::*" not in families._BY_ONNX
    ]
    assert missing == []
    assert {family_of_onnx(s.name, s.domain) for s in onnx.defs.get_all_schemas()} <= set(FAMILIES)


def test_no_onnx_name_is_made_up():
    """A default-domain name in the table is a real op (SimplifiedLayerNormalization is ONNX Runtime's, in ONNX's domain)."""
    onnx = pytest.importorskip("onnx")
    real = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}
    listed = {op for f in FAMILIES.values() for op in f.onnx if "::" not in op}
    assert listed - real == {"SimplifiedLayerNormalization"}


def _aten_packets(torch):
    names = {
        s.name.removeprefix("aten::") for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")
    }
    for name in sorted(names):
        packet = getattr(torch.ops.aten, name, None)
        if packet is not None and hasattr(packet, "overloads"):
            yield name, [getattr(packet, o) for o in packet.overloads()]


def test_every_core_aten_op_is_classified():
    torch = pytest.importorskip("torch")
    core = [n for n, ops in _aten_packets(torch) if any(torch.Tag.core in op.tags for op in ops)]
    assert len(core) > 150
    assert [n for n in core if aten_base_name(n) not in families._BY_ATEN] == []


def test_pointwise_and_reductions_are_where_torch_says():
    """torch tags its ops; our table agrees with the tags."""
    torch = pytest.importorskip("torch")
    pointwise = {"elementwise", "activation", "data_movement", "random", "reduce", "matmul"}
    for name, ops in _aten_packets(torch):
        if name.startswith(("_foreach", "mkldnn_")):
            continue
        tags = {t for op in ops for t in op.tags}
        if torch.Tag.pointwise in tags:
            assert family_of_aten(name) in pointwise, name


def test_aten_names_are_real_or_ours():
    torch = pytest.importorskip("torch")
    real = {name for name, _ in _aten_packets(torch)}
    ours = {"silu_mul", "swiglu", "rotary_embedding"}  # fused ops that ATen has no name for
    for family in FAMILIES.values():
        for op in family.aten:
            forms = {
                op,
                f"{op}_",
                *(f"{op}{s}" for s in ("_backward", "_copy", "_forward", "_out", "_backward_data")),
            }
            assert forms & real or op in ours, op


def test_a_leaf():
    """Importing the table imports no vendor."""
    code = "import sys, xpuruntime.families; assert not {'torch', 'onnx', 'numpy'} & set(sys.modules), 'not a leaf'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_is_deliberate():
    assert OTHER in FAMILIES
    assert FAMILIES[OTHER].onnx, "other lists what was put there on purpose"
