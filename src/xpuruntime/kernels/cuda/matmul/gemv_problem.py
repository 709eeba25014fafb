"""A product of few rows and a weight with contiguous k, in the form of ``templates/cuda/gemv.cuh`` and ``gemv_mma.cuh``, with its epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....codegen.c_types import C_TYPES, accumulator
from ....codegen.loops.points import decimal
from ....types import DType
from ...kernel import NodeCall, Stage
from ...portable.text import ACTIVATIONS
from ...spec.linear import LinearLayer
from ...spec.matmul import product_of
from ..heavy import about, argument, bytes_of, c_bool, constants, in_chunks
from ..launch import Argument, ByAlignment, LaunchConfig, cuda_stage
from .text import arguments_of, element_offset_text, matrices_of, parts_of

__all__ = ["GemvProblem", "gemv_finish", "problem_of_layer", "problem_of_product", "template_stage"]

STAGED = 32 * 1024
"""Maximum shared memory in bytes for rows that ``gemv.cuh`` stages."""


@dataclass(frozen=True, slots=True)
class GemvProblem:
    """A product in the form of the template.

    terms: values that the epilogue adds to a result: the argument, its offset by ``row`` and ``column``, a factor, and whether it is added to
           the gate.
    result_offset: the offset of a result, by ``row`` and ``column``.
    constant_weight: whether the weight is constant, so that it may be prefetched.
    scale, eps: those of the RMS norm.
    count: products of one launch, ``blockIdx.y`` each. begin: lines that find the operands ``left`` and ``right`` of one.
    """

    m: int
    n: int
    k: int
    x_row: int
    w_row: int
    dtype: DType
    arguments: Sequence[Argument]
    terms: Sequence[tuple[Argument, str, float, bool]]
    result_offset: str
    constant_weight: bool
    alpha: float = 1.0
    act: str = "none"
    gated: bool = False
    scale: Argument | None = None
    eps: float = 0.0
    count: int = 1
    begin: Sequence[str] = ("const auto *const left = a;", "const auto *const right = b;")

    @property
    def sums(self) -> str:
        return accumulator(self.dtype)

    @property
    def aligned(self) -> bool:
        return in_chunks(self.dtype, self.x_row, self.w_row, self.k)

    @property
    def staged(self) -> bool:
        size = 8 if self.sums == "double" else 4
        return self.scale is not None and self.m * self.k > 0 and self.m * (self.k + 8) * size <= STAGED


def problem_of_product(call: NodeCall) -> GemvProblem:
    """Return the problem of a product of dense operands, whose k is contiguous on both sides."""
    p, dtype = product_of(call).flat(), call.outputs[0].dtype
    sides, arguments = matrices_of(p, dtype), arguments_of(call, p)
    assert sides is not None
    terms = [
        (a, element_offset_text(p, t.strides, batched=False), float(t.factor), False)
        for t, a in zip(p.terms, arguments[2:], strict=False)
    ]
    return GemvProblem(
        p.m, p.n, p.k, sides.a_row, sides.b_line, dtype, arguments, terms, element_offset_text(p, p.y_strides, batched=False),
        call.tensor(p.b).is_weight, p.alpha, p.act,
    )  # fmt: skip


def problem_of_layer(call: NodeCall) -> GemvProblem:
    """Return the problem of a ``linear``, ``fused_linear`` or ``norm_linear`` node with dense operands."""
    layer = LinearLayer.of(call)
    n, gated = layer.n, layer.halves == 2
    extras = {name: argument(call.tensor(at).spec, f"in{at}", name) for name, at in layer.operands}
    at = f"row * {n} + column"
    terms = []
    if "bias" in extras:
        terms.append((extras["bias"], "column", 1.0, False))
        terms += [(extras["bias"], f"{n} + column", 1.0, True)] if gated else []
    if "residual" in extras:
        terms.append((extras["residual"], at, 1.0, False))
    arguments = [
        argument(call.tensor(0).spec, "in0", "a"), argument(call.tensor(1).spec, "in1", "b"), *extras.values(),
        argument(call.outputs[0], "out0", "y", written=True),
    ]  # fmt: skip
    return GemvProblem(
        layer.m, n, layer.k, layer.k, layer.k, layer.dtype, arguments, terms, at, call.tensor(1).is_weight, 1.0, layer.act, gated,
        extras.get("norm"), layer.eps,
    )  # fmt: skip


def template_stage(
    call: NodeCall,
    s: GemvProblem,
    template: str,
    launch: LaunchConfig,
    what: str,
    *,
    types: Mapping[str, str],
    numbers: Mapping[str, int],
    flags: Mapping[str, bool] | None = None,
) -> Stage:
    """Return the stage of a template (``gemv``, ``gemv_mma``). Where addresses are not multiples of 16 bytes, it runs without vector loads.

    what: how a launch divides the work, for the comment. types, numbers, flags: members of the template's parameters in addition to those of the problem.
    """
    constant_weight = s.constant_weight and (s.scale is None or call.tensor(4).is_weight)
    sizes = {"m": s.m, "n": s.n, "k": s.k, "x_row": s.x_row, "w_row": s.w_row, **numbers}
    facts = {
        "GATED": s.gated, "NORM": s.scale is not None, **(flags or {}), "PREFETCH_WEIGHTS": constant_weight, "ALIGNED": s.aligned,
    }  # fmt: skip
    before = [
        "struct KERNEL_gemv {",
        *(f"    typedef {kind} {name};" for name, kind in {"S": C_TYPES[s.dtype], **types}.items()),
        constants("int", sizes),
        constants("bool", {name: c_bool(v) for name, v in facts.items()}),
        f"    static __device__ __forceinline__ {s.sums} eps() {{ return ({s.sums}){s.eps!r}; }}",
        "};",
        *(["struct KERNEL_unaligned : KERNEL_gemv { static constexpr bool ALIGNED = false; };"] if s.aligned else []),
        *gemv_finish(s),
    ]  # fmt: skip
    scale = "(const KERNEL_gemv::S *)nullptr" if s.scale is None else s.scale.name
    fields = [*dict.fromkeys(a.name for a, *_ in s.terms), "y"]

    def run(struct: str) -> str:
        return f"{template}::run<{struct}>(left, right, {scale}, finish);"

    body = [*s.begin, f"const KERNEL_finish finish = {{{', '.join(fields)}}};"]
    end = None
    if s.aligned:  # lines are at multiples of 16 bytes from the buffers' begin
        buffers = (*(a.name for a in s.arguments[:2]), *([scale] if s.scale else []))
        end = ByAlignment(buffers, run("KERNEL_gemv"), run("KERNEL_unaligned"))
    else:
        body.append(run("KERNEL_gemv"))
    rows = s.n * (1 + s.gated)
    stem = f"{'norm_' if s.scale else ''}{template}_{s.m * s.count}x{rows}x{s.k}"
    return cuda_stage(
        f"{stem}_{s.act}" if s.gated else stem, about(call, what), s.arguments, body, launch, end=end, before=before, parts=parts_of(s.act, template),
        waits_itself=True, flops=2 * s.m * s.count * rows * s.k, bytes=bytes_of([*(o.spec for o in call.tensors), call.outputs[0]]),
    )  # fmt: skip


def gemv_finish(s: GemvProblem) -> list[str]:
    """Return the epilogue ``KERNEL_finish``: it loads terms before the sum is complete, then computes and stores the result."""
    head, kind = "    __device__ __forceinline__", s.sums
    y = s.arguments[-1]
    operands = dict.fromkeys(a.text for a, *_ in s.terms)
    lines = ["struct KERNEL_finish {", *(f"    {text};" for text in (*operands, y.text))]
    fields = "".join(f" {kind} t{i};" for i in range(len(s.terms)))
    reads = ", ".join(f"({kind})load<1>({a.name} + {offset})" for a, offset, *_ in s.terms)
    lines += [
        f"    struct Terms {{{fields} }};",
        f"{head} Terms terms(int row, int column) const {{ return {{{reads}}}; }}",
        f"{head} void write(int row, int column, {kind} sum, {kind} gate, const Terms &terms) const {{",
        f"        {kind} x = sum;",
    ]
    if s.alpha != 1:
        lines.append(f"        x = x * ({kind}){decimal(s.alpha)};")
    for i, (_, _, factor, to_gate) in enumerate(s.terms):
        target = "gate" if to_gate else "x"
        lines.append(
            f"        {target} = {target} + {'' if factor == 1 else f'({kind}){decimal(factor)} * '}terms.t{i};"
        )
    if s.act != "none":
        lines.append(f"        x = {ACTIVATIONS[s.act][0]};")
    if s.gated:
        lines.append("        x = x * gate;")
    return [
        *lines,
        f"        store<1>(y + ({s.result_offset}), (typename storage_<{y.ctype}>::compute)x);",
        "    }",
        "};",
    ]
