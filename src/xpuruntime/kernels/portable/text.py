"""C text that kernels of several op families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...codegen.expr.expression import expression
from ...codegen.expr.terms import compute_type, constant
from ...codegen.loops.plans import CONSTANT, LoopPlan, Operation
from ..spec.conv_shape import ConvShape

__all__ = ["ACTIVATIONS", "braces", "offset_text", "query_offset", "shape_text", "statement"]


def braces(values: Sequence[int]) -> str:
    """Return ``{1, 2, 3}``."""
    return "{" + ", ".join(str(v) for v in values) + "}"


ACTIVATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "none": ("x", ()),
    "relu": ("relu(x)", ("arith",)),
    "relu6": ("act::relu6::of(x)", ("conv_act",)),
    "gelu": ("gelu(x)", ("erf",)),
    "gelu_tanh": ("gelu_tanh(x)", ("exp",)),
    "silu": ("silu(x)", ("exp",)),
    "sigmoid": ("sigmoid(x)", ("exp",)),
    "tanh": ("tanh(x)", ("exp",)),
    "hardswish": ("act::hardswish::of(x)", ("conv_act",)),
    "leaky_relu": ("act::leaky_relu::of(x)", ("conv_act",)),
}
"""Activations of fused ops: the expression of a result ``x``, and its prelude parts."""


def offset_text(index: str, shape: Sequence[int], strides: Sequence[int]) -> str:
    """Return the C expression of the memory offset of row-major ``index`` over ``shape`` with these strides; "0" if it is constant."""
    dims: list[list[int]] = []  # [extent, stride], with contiguous adjacent dims merged
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if dims and dims[-1][1] == stride * extent:
            dims[-1] = [dims[-1][0] * extent, stride]
        else:
            dims.append([extent, stride])
    texts, inner = [], 1
    for at, (extent, stride) in reversed(list(enumerate(dims))):
        if stride:
            part = index if inner == 1 else f"{index} / {inner}"
            if at:
                part = f"{part} % {extent}"
            texts.append(
                f"{part} * {stride}" if stride != 1 else part if at == 0 and inner == 1 else f"({part})"
            )
        inner *= extent
    return " + ".join(reversed(texts)) or "0"


def query_offset(strides: Sequence[int], index: str, queries: int) -> str:
    """Return the offset of query ``index`` of a key head's group: heads are the outer dim, positions the inner one."""
    if strides[1] == strides[2] * queries:
        return f"({index}) * {strides[2]}"
    return f"({index}) / {queries} * {strides[1]} + ({index}) % {queries} * {strides[2]}"


def statement(
    plan: LoopPlan, operation: Operation, *, declare: bool = True, functions: Mapping[str, str] | None = None
) -> tuple[str, frozenset[str]]:
    """Return the line that computes an operation, and the parts of the prelude that it needs.

    declare:   the line declares the value; otherwise it assigns to a variable that exists.
    functions: names to use instead of functions of the prelude.
    """
    name = f"const {compute_type(operation.dtype)} {operation.name}" if declare else operation.name
    if operation.op == CONSTANT:
        value = operation.operands[0]
        assert isinstance(value, bool | int | float)
        text = constant(value, operation.dtype)
        return f"{name} = {text};", frozenset()
    terms = [plan.term(o) for o in operation.operands]
    written = expression(operation.op, terms, operation.attrs, operation.dtype, functions or {})
    return f"{name} = {written.text};  // {operation.op}", written.parts


def shape_text(shape: ConvShape) -> str:
    """Return a C initializer of ``conv::Shape`` (conv_shape.h)."""
    fields = (
        shape.size, shape.out, shape.kernel, shape.stride, shape.dilation, shape.begin, shape.x, shape.y, shape.r,
    )  # fmt: skip
    lists = ", ".join(braces(f) for f in fields)
    flag = "true" if shape.transposed else "false"
    return f"{{{shape.images}, {shape.groups}, {shape.channels}, {shape.filters}, {lists}, {flag}}}"
