"""The PyTorch frontend on the samples of PyTorch's own op database: each sample as a module, extracted, run, compared."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xpuruntime.errors import ModelError
from xpuruntime.ir import OPS, interp
from xpuruntime.testing.conformance.opinfo import BRIDGES, LOOSE, disagreement, to_numpy
from xpuruntime.testing.conformance.opinfo.modules import ModuleCall, module_calls, opinfo_names

torch = pytest.importorskip("torch", reason="PyTorch is the judge")
pytest.importorskip("expecttest", reason="PyTorch's OpInfo needs it")

from xpuruntime.frontends.torch import import_torch  # noqa: E402
from xpuruntime.frontends.torch.ops import TABLE  # noqa: E402

CLAIMED = tuple(dict.fromkeys(bridge.info or name for name, bridge in BRIDGES.items()))
"""OpInfos of ops that the IR has."""

UNDECIDED = {
    "topk": "which of equal elements come first",
    "sort": "which of equal elements come first, unless stable",
    "kthvalue": "which of equal elements is named",
    "median": "which of equal elements is named",
    "nanmedian": "which of equal elements is named",
    "empty": "content that nobody wrote",
    "empty_like": "content that nobody wrote",
    "empty_permuted": "content that nobody wrote",
    "empty_strided": "content that nobody wrote",
    "new_empty": "content that nobody wrote",
    "new_empty_strided": "content that nobody wrote",
}
"""OpInfos of which only types and shapes (of _PLACED: all but the places) are PyTorch's word."""
_PLACED = ("topk", "sort", "kthvalue", "median", "nanmedian")

CHANGING = {"nn.functional.instance_norm"}
"""OpInfos all of whose samples change their inputs (running statistics), which is refused."""

COARSE = {
    ("_upsample_bilinear2d_aa", "float32"): (5e-5, 0.0, "PyTorch keeps the weights of the filter in float32"),
    ("nn.functional.interpolate", "bfloat16"): (
        1.6e-2,
        4e-2,
        "PyTorch rounds between the axes of a trilinear sample",
    ),
}


BATCH = 12
"""Ops whose samples are exported as one module; alone, an export takes longer than all else."""


class Together(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Several calls as one module: its inputs are theirs in order, and so are its results."""

    def __init__(self, calls: Sequence[ModuleCall]) -> None:
        super().__init__()
        self.modules_of = torch.nn.ModuleList(call.module for call in calls)
        self.counts = [len(call.inputs) for call in calls]

    def forward(self, *tensors: Any) -> Any:
        given = iter(tensors)
        return [
            module(*itertools.islice(given, count))
            for module, count in zip(self.modules_of, self.counts, strict=True)
        ]


class Parts(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A module's complex results as pairs of real numbers in a last dim: what is computed with pairs becomes no complex tensor in the IR."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *tensors: Any) -> Any:
        made = self.module(*tensors)
        flat = [made] if isinstance(made, torch.Tensor) else list(made)
        return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in flat]


def in_parts(call: ModuleCall) -> ModuleCall | None:
    """The call with pairs for complex results; None where it has none, or complex inputs."""
    if any(t.is_complex() for t in call.inputs) or not any(np.iscomplexobj(w) for w in call.want):
        return None
    want = tuple(np.stack((w.real, w.imag), -1) if np.iscomplexobj(w) else w for w in call.want)
    return replace(call, module=Parts(call.module), want=want)


def results(call: ModuleCall) -> tuple[str, list[Any]]:
    """ok, random, opaque or refused; and what was computed, or the error's text."""
    try:
        graph, weights = import_torch(call.module, call.inputs)
    except ModelError as error:
        return "refused", [str(error)]
    if any(node.op == "opaque" for node in graph):
        return "opaque", []
    feeds = {v.name: to_numpy(t) for v, t in zip(graph.inputs, call.inputs, strict=True)}
    chance = any(OPS[node.op].random for node in graph)
    return ("random" if chance else "ok"), list(interp.run(graph, feeds, weights=weights).values())


def outcome(call: ModuleCall, name: str, dtype: str) -> tuple[str, str]:
    """One of ok, random, opaque, refused, wrong; and what is wrong."""
    kind, got = results(call)
    if kind == "opaque" and (parts := in_parts(call)) is not None:
        call = parts
        kind, got = results(call)
    if kind not in ("ok", "random"):
        return kind, "".join(got)
    text = difference(call, got, name, dtype, kind == "random")
    return ("wrong", text) if text and not is_nearer(call, got) else (kind, "")


def is_nearer(call: ModuleCall, got: Sequence[Any]) -> bool:
    """Whether all results are floats and no farther from float64's than PyTorch's: it computes positions of grids in 16 bits, and polygamma inexactly."""
    if not all(np.issubdtype(w.dtype, np.floating) or w.dtype.name == "bfloat16" for w in (*call.want, *got)):
        return False
    exact = call.module(*(t.double() if t.is_floating_point() else t for t in call.inputs))
    exact = [exact] if isinstance(exact, torch.Tensor) else list(exact)
    if len({len(got), len(exact), len(call.want)}) > 1:
        return False

    def error(x: Any, reference: Any) -> float:
        wide = np.asarray(x, np.float64)
        if wide.shape != tuple(reference.shape):
            return np.inf
        return float(abs(wide - reference.numpy()).max(initial=0))

    return all(
        error(mine, e) <= error(theirs, e) < np.inf
        for mine, theirs, e in zip(got, call.want, exact, strict=True)
    )


def difference(call: ModuleCall, got: Sequence[Any], name: str, dtype: str, chance: bool) -> str:
    """How results differ from PyTorch's; empty where they do not."""
    if len(got) != len(call.want):
        return f"{len(got)} results for {len(call.want)}"
    tolerance = (LOOSE | COARSE).get((name, dtype))
    for i, (mine, theirs) in enumerate(zip(got, call.want, strict=True)):
        if chance or (name in UNDECIDED and (name not in _PLACED or i == 1)):
            if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
                return f"result {i} is {mine.dtype}{mine.shape} for {theirs.dtype}{theirs.shape}"
        elif text := disagreement(mine, theirs, tolerance and tolerance[:2]):
            return f"result {i} {text}"
    return ""


def right_together(calls: Sequence[tuple[str, str, ModuleCall]]) -> bool:
    """Whether the calls as one module are all right; False where one is refused, too."""
    every = [call for _, _, call in calls]
    whole = ModuleCall(Together(every), tuple(t for c in every for t in c.inputs), (), "")
    kind, got = results(whole)
    if kind != "ok" or len(got) != sum(len(c.want) for c in every):
        return False
    left = iter(got)
    return not any(
        difference(call, list(itertools.islice(left, len(call.want))), name, dtype, chance=False)
        for name, dtype, call in calls
    )


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


def first_samples(names: Sequence[str]) -> Iterator[tuple[str, str, ModuleCall]]:
    """Yield a sample of each op in float32, or in int64 where it has none in float32."""
    for name in names:
        fourier = name in ("fft.fft", "fft.fftn", "fft.irfft", "fft.irfftn")
        for dtype in ("complex64",) if fourier else ("float32", "int64"):
            calls = list(module_calls(name, dtype, 1))
            yield from ((name, dtype, call) for call in calls)
            if calls:
                break


def outcomes(calls: Sequence[tuple[str, str, ModuleCall]]) -> list[tuple[str, str]]:
    """``outcome`` of each call. An export takes longer than all else, so calls are halved until those that are not right are alone."""
    if len(calls) == 1:
        ((name, dtype, call),) = calls
        return [outcome(call, name, dtype)]
    if not calls or right_together(calls):
        return [("ok", "")] * len(calls)
    half = len(calls) // 2
    return outcomes(calls[:half]) + outcomes(calls[half:])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, len(CLAIMED), BATCH), ids=lambda k: CLAIMED[k])
def test_a_sample_of_each_op_that_the_ir_has(start: int) -> None:
    names = CLAIMED[start : start + BATCH]
    calls = list(first_samples(names))
    each = outcomes(calls)
    for name in names:
        mine = [found for (other, _, _), found in zip(calls, each, strict=True) if other == name]
        wrong = [text for kind, text in mine if kind == "wrong"]
        counts = Counter(kind for kind, _ in mine)
        if not counts["ok"] + counts["random"]:  # for example, its first sample changes its inputs
            counts, wrong = judged(name, ("float32", "int64"), 6)
        assert not wrong, f"{name}: {wrong[0]}"
        assert counts["ok"] + counts["random"] or (name in CHANGING and counts["refused"]), (name, counts)


@pytest.mark.sampled(1, group="wrong")
def test_a_wrong_row_is_seen_among_others(monkeypatch: Any) -> None:
    from xpuruntime.frontends.torch import lower as torch_lower

    names = ("nn.functional.silu", "add", "sin", "nn.functional.mish")
    assert right_together(list(first_samples(names)))
    monkeypatch.setattr(torch_lower, "TABLE", {**TABLE, "silu": TABLE["mish"]})
    assert not right_together(list(first_samples(names)))


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


@pytest.mark.sampled(1, group="wrong")
def test_a_wrong_row_is_seen(monkeypatch: Any) -> None:
    from xpuruntime.frontends.torch import lower as torch_lower

    rows: Any = {**TABLE, "silu": TABLE["mish"], "maximum": lambda n: str(n.b.lt(n.x, n.t("other")))}
    monkeypatch.setattr(torch_lower, "TABLE", rows)
    counts, _ = judged("nn.functional.silu", ("float32",), 1)
    assert counts["wrong"] == 1
    counts, _ = judged(
        "maximum", ("float32",), 2
    )  # of another type than PyTorch says: refused before anything runs
    assert counts["opaque"] == 2
