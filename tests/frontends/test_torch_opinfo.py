"""The PyTorch frontend on the samples of PyTorch's own op database: each sample as a module, extracted, run, compared."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from xpuruntime.errors import ModelError
from xpuruntime.ir import OPS, interp
from xpuruntime.testing.opinfo import BRIDGES, LOOSE, disagreement, to_numpy
from xpuruntime.testing.opinfo.modules import ModuleCall, module_calls, opinfo_names

torch = pytest.importorskip("torch", reason="PyTorch is the judge")
pytest.importorskip("expecttest", reason="PyTorch's OpInfo needs it")

from xpuruntime.frontends.torch import import_torch  # noqa: E402
from xpuruntime.frontends.torch_ops import TABLE  # noqa: E402

CLAIMED = tuple(dict.fromkeys(bridge.info or name for name, bridge in BRIDGES.items()))
"""OpInfos of ops that the IR has."""

UNDECIDED = {
    "topk": "which of equal elements come first",
    "empty": "content that nobody wrote",
    "empty_like": "content that nobody wrote",
    "empty_permuted": "content that nobody wrote",
    "empty_strided": "content that nobody wrote",
    "new_empty": "content that nobody wrote",
    "new_empty_strided": "content that nobody wrote",
}
"""OpInfos of which only types and shapes (of topk: all but the places) are PyTorch's word."""

CHANGING = {"nn.functional.instance_norm"}
"""OpInfos all of whose samples change their inputs (running statistics), which is refused."""

COARSE = {
    ("_upsample_bilinear2d_aa", "float32"): (5e-5, 0.0, "PyTorch keeps the weights of the filter in float32"),
}


def outcome(call: ModuleCall, name: str, dtype: str) -> tuple[str, str]:
    """One of ok, random, opaque, refused, wrong; and what is wrong."""
    try:
        graph, weights = import_torch(call.module, call.inputs)
    except ModelError as error:
        return "refused", str(error)
    if any(node.op == "opaque" for node in graph):
        return "opaque", ""
    feeds = {v.name: to_numpy(t) for v, t in zip(graph.inputs, call.inputs, strict=True)}
    got = list(interp.run(graph, feeds, weights=weights).values())
    if len(got) != len(call.want):
        return "wrong", f"{len(got)} results for {len(call.want)}"
    chance = any(OPS[node.op].random for node in graph)
    tolerance = (LOOSE | COARSE).get((name, dtype))
    for i, (mine, theirs) in enumerate(zip(got, call.want, strict=True)):
        if chance or (name in UNDECIDED and (name != "topk" or i == 1)):
            if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
                return "wrong", f"result {i} is {mine.dtype}{mine.shape} for {theirs.dtype}{theirs.shape}"
        elif text := disagreement(mine, theirs, tolerance and tolerance[:2]):
            return "wrong", f"result {i} {text}"
    return ("random" if chance else "ok"), ""


def judged(name: str, dtypes: tuple[str, ...], limit: int | None) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    wrong = []
    for dtype in dtypes:
        for call in module_calls(name, dtype, limit):
            kind, text = outcome(call, name, dtype)
            counts[kind] += 1
            if kind == "wrong":
                wrong.append(f"{dtype} {text}: {call.sample}")
    return counts, wrong


@pytest.mark.parametrize("name", CLAIMED)
def test_a_sample_of_each_op_that_the_ir_has(name: str) -> None:
    dtype = "complex64" if name in ("fft.fft", "fft.fftn", "fft.irfft", "fft.irfftn") else "float32"
    counts, wrong = judged(name, (dtype,), 1)
    if (
        not counts["ok"] + counts["random"]
    ):  # one that has no such dtype, or whose first sample changes its inputs
        counts, wrong = judged(name, (dtype, "int64"), 6)
    assert not wrong, wrong[0]
    assert counts["ok"] + counts["random"] or (name in CHANGING and counts["refused"]), counts


@pytest.mark.conformance
@pytest.mark.parametrize("name", CLAIMED)
def test_samples_of_each_op_that_the_ir_has(name: str) -> None:
    counts, wrong = judged(name, ("float32", "float64", "bfloat16", "int64", "int8", "bool", "complex64"), 8)
    assert not wrong, "\n".join(wrong[:5])
    assert counts["ok"] + counts["random"] or (name in CHANGING and counts["refused"]), counts


@pytest.mark.conformance
@pytest.mark.parametrize("name", opinfo_names())
def test_samples_of_every_op_there_is(name: str) -> None:
    """Whatever it becomes (a composition, an opaque node, a refusal), it is not wrong."""
    _, wrong = judged(name, ("float32", "int64"), 6)
    assert not wrong, "\n".join(wrong[:5])


def test_every_row_is_an_op_of_pytorch() -> None:
    """Or one that a library adds when it is imported."""
    pytest.importorskip("transformers.integrations.moe")
    for name in TABLE:
        assert torch._C._dispatch_has_kernel(name if "::" in name else f"aten::{name}"), name


def test_every_core_op_has_a_row_or_is_decomposed() -> None:
    """Of the functional core ATen ops; what is left are questions about shapes, answered by the walk itself."""
    decomposed = {op.name().removeprefix("aten::") for op in torch.export.default_decompositions()}
    left = set()
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"), None)
        op = getattr(packet, schema.overload_name or "default", None)
        if op is not None and torch.Tag.core in op.tags and not op._schema.is_mutable:
            left |= {op.name().removeprefix("aten::")} - TABLE.keys()
    assert left - decomposed <= {"_local_scalar_dense", "sym_numel", "sym_storage_offset"}


def test_a_wrong_row_is_seen(monkeypatch: Any) -> None:
    from xpuruntime.frontends import torch_lower

    rows: Any = {**TABLE, "silu": TABLE["mish"], "maximum": lambda n: str(n.b.lt(n.x, n.t("other")))}
    monkeypatch.setattr(torch_lower, "TABLE", rows)
    counts, _ = judged("nn.functional.silu", ("float32",), 1)
    assert counts["wrong"] == 1
    counts, _ = judged(
        "maximum", ("float32",), 2
    )  # of another type than PyTorch says: refused before anything runs
    assert counts["opaque"] == 2
