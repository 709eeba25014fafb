"""Rules of ``simplify`` for arithmetic: neutral operands, numbers for constant tensors, and simpler ops for the same function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ...ir import OPS, Editor, Node, infer
from ...types import DType
from .pattern_utils import forward, number, producer_of, spec_of

__all__ = ["ALL_OPS", "RULES"]


def _neutral(neutral: float, *, right_only: bool = False) -> Callable[[Editor, Node], bool]:
    """Return the rule that removes an op with a neutral operand."""

    def rule(editor: Editor, node: Node) -> bool:
        x, other = node.inputs
        if number(editor, other) == neutral and forward(editor, node, x):
            return True
        return not right_only and number(editor, x) == neutral and forward(editor, node, other)

    return rule


_remove_quotient_by_one = _neutral(1, right_only=True)


def _div_by_one(editor: Editor, node: Node) -> bool:
    """Remove a division by 1. A rounded one of floats is not neutral: ``x // 1`` is floor(x)."""
    if node.attrs["rounding_mode"] is not None and not node.spec.dtype.is_integer:
        return False
    return _remove_quotient_by_one(editor, node)


def _all_true(editor: Editor, node: Node) -> bool:
    """Remove logical_and (of bool: bitwise_and too) with true everywhere."""
    for x, other in (node.inputs, node.inputs[::-1]):
        spec = spec_of(editor, x)
        if number(editor, other) is not True or spec is None or spec.dtype is not DType.BOOL:
            continue
        if spec.shape == node.spec.shape:
            return forward(editor, node, x)
        editor.replace(node, "expand", x, size=node.spec.shape)
        return True
    return False


def _cast(editor: Editor, node: Node) -> bool:
    if forward(editor, node, node.inputs[0]):
        return True
    inner = producer_of(editor, node.inputs[0])
    if inner is None or inner.op != "cast":
        return False
    first, middle = spec_of(editor, inner.inputs[0]), inner.spec.dtype
    if first is None or not _holds(middle, first.dtype):
        return False
    if first.dtype is node.spec.dtype:
        return forward(editor, node, inner.inputs[0])
    editor.replace(node, "cast", inner.inputs[0], **node.attrs)
    return True


_MANTISSA = {DType.FLOAT64: 53, DType.FLOAT32: 24, DType.FLOAT16: 11, DType.BFLOAT16: 8}


def _holds(wide: DType, narrow: DType) -> bool:
    """Return whether ``wide`` represents every value of ``narrow``."""
    if wide is narrow or narrow is DType.BOOL:
        return wide in _MANTISSA or wide.is_integer or wide is narrow
    if narrow.is_integer:
        bits = narrow.bits - narrow.is_signed
        if wide.is_integer:
            return wide.bits - wide.is_signed >= bits and wide.is_signed >= narrow.is_signed
        return _MANTISSA.get(wide, 0) >= bits and wide is not DType.FLOAT16
    if wide in _MANTISSA and narrow in _MANTISSA:
        return wide.bits > narrow.bits and not (wide is DType.BFLOAT16 or wide.bits == 16)
    return False


def _relu(editor: Editor, node: Node) -> bool:
    """Replace maximum(x, 0) and clamp(x, 0) by relu; all of them keep NaN."""
    if not node.spec.dtype.is_float:
        return False
    x, low, high = (*node.inputs, None)[:3]
    if node.op == "maximum" and number(editor, x) == 0:
        x, low = low, x
    if (
        high is not None
        or low is None
        or number(editor, low) != 0
        or spec_of(editor, x) != node.outputs[0].spec
    ):
        return False
    editor.replace(node, "relu", x)
    return True


def _pow(editor: Editor, node: Node) -> bool:
    x, power = node.inputs[0], number(editor, node.inputs[1])
    if spec_of(editor, x) != node.outputs[0].spec or not node.spec.dtype.is_float:
        return False
    if power == 1:
        return forward(editor, node, x)
    if power == 2:
        editor.replace(node, "mul", x, x)
        return True
    if power == -1:
        editor.replace(node, "reciprocal", x)
        return True
    return False


def _reciprocal_of_sqrt(editor: Editor, node: Node) -> bool:
    """Replace 1 / sqrt(x) by rsqrt(x), and 1 / x by reciprocal(x)."""
    inner = producer_of(editor, node.inputs[-1])
    if node.op == "div" and (number(editor, node.inputs[0]) != 1 or node.attrs["rounding_mode"] is not None):
        return False
    if inner is not None and inner.op == "sqrt" and inner.spec == node.spec:
        editor.replace(node, "rsqrt", inner.inputs[0])
        return True
    if node.op == "div" and spec_of(editor, node.inputs[1]) == node.outputs[0].spec:
        editor.replace(node, "reciprocal", node.inputs[1])
        return True
    return False


def _div_by_power_of_two(editor: Editor, node: Node) -> bool:
    """Replace a division by a multiplication with the reciprocal if that is exact."""
    by = number(editor, node.inputs[1])
    if (
        node.attrs["rounding_mode"] is not None
        or not by
        or not math.isfinite(by)
        or spec_of(editor, node.inputs[0]) != node.outputs[0].spec
    ):
        return False
    if (
        abs(math.frexp(by)[0]) != 0.5
        or not 2.0**-100 < abs(by) < 2.0**100
        or not node.spec.dtype.is_float
        or node.spec.dtype.bits < 32
    ):
        return False
    editor.replace(node, "mul", node.inputs[0], 1.0 / by)
    return True


def _twice(editor: Editor, node: Node) -> bool:
    """Replace neg(neg(x)) by x, and relu(relu(x)) by relu(x)."""
    inner = producer_of(editor, node.inputs[0])
    if inner is None or inner.op != node.op:
        return False
    return forward(
        editor, node, inner.inputs[0] if node.op in ("neg", "logical_not", "bitwise_not") else node.inputs[0]
    )


def _splat_to_number(editor: Editor, node: Node) -> bool:
    """Replace a constant with equal elements by a number, if the type of the result and the value are preserved."""
    op = OPS[node.op]
    if not op.pointwise:
        return False
    for i, operand in enumerate(node.inputs):
        param = op.param(i)
        value = (
            number(editor, operand)
            if isinstance(operand, str) and param is not None and param.number
            else None
        )
        if value is None or not _exact(value, node.spec.dtype, spec_of(editor, operand)):
            continue
        inputs = (*node.inputs[:i], value, *node.inputs[i + 1 :])
        operands = [spec_of(editor, o) if isinstance(o, str) else o for o in inputs]
        if not any(isinstance(o, str) for o in inputs) or infer(node.op, operands, node.attrs) != (
            node.spec,
        ):
            continue
        if not _same_promotion(editor, node, inputs):
            continue
        editor.replace(node, node.op, *inputs, **node.attrs)
        return True
    return False


def _same_promotion(editor: Editor, node: Node, inputs: tuple[object, ...]) -> bool:
    """Return whether promotion stays the same. It is invisible in comparisons, so the other tensors must have the constant's kind of type."""
    if node.spec.dtype is not DType.BOOL:
        return True
    kinds = {s.dtype for o in node.inputs if (s := spec_of(editor, o)) is not None}
    return len(kinds - {DType.BOOL}) <= 1


def _exact(value: float, dtype: DType, own: object) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return dtype.is_float or dtype is DType.BOOL
    if dtype.is_float and dtype.bits < 32:
        return float(np.asarray(value).astype(dtype.numpy)) == value
    return True


RULES: Mapping[str, tuple[Callable[[Editor, Node], bool], ...]] = {
    "add": (_neutral(0),),
    "sub": (_neutral(0, right_only=True),),
    "mul": (_neutral(1),),
    "div": (_div_by_one, _reciprocal_of_sqrt, _div_by_power_of_two),
    "reciprocal": (_reciprocal_of_sqrt,),
    "pow": (_pow,),
    "cast": (_cast,),
    "logical_and": (_all_true,),
    "bitwise_and": (_all_true,),
    "maximum": (_relu,),
    "clamp": (_relu,),
    "neg": (_twice,),
    "relu": (_twice,),
    "logical_not": (_twice,),
}
ALL_OPS: tuple[Callable[[Editor, Node], bool], ...] = (_splat_to_number,)
"""Rules for all ops."""
