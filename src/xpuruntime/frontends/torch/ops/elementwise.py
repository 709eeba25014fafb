"""Lowerings of arithmetic, comparisons, logic, bit ops and casts."""

from __future__ import annotations

import math

from ....types import DType
from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results, TensorRef

__all__ = ["LOWERINGS", "call", "unary"]


def unary(op: str) -> OpLowering:
    """Return the lowering of an op with one tensor and no attributes."""
    return lambda n: str(n.b.call(op, n.x))


def call(op: str, *operands: str, **attrs: str) -> OpLowering:
    """Return the lowering of an op with arguments as operands, and as attributes (IR name = ATen name)."""

    def lower(n: AtenLoweringContext) -> Results:
        values = {ir_name: n[aten_name] for ir_name, aten_name in attrs.items()}
        return str(n.b.call(op, *(n.operand(o) for o in operands), **values))

    return lower


def _pair(op: str, first: str = "self", second: str = "other") -> OpLowering:
    """Return the lowering of an op with two operands; PyTorch's type promotion is the IR's."""
    return lambda n: str(n.b.call(op, n.operand(first), n.operand(second)))


def _power(n: AtenLoweringContext) -> Results:
    """Lower a power with a number. PyTorch computes those of 0.5 and -0.5 as roots, which are NaN for -inf, except in 16 bits."""
    root = {0.5: "sqrt", -0.5: "rsqrt"}.get(n["exponent"]) if isinstance(n["exponent"], float) else None
    if root is None or n.out().dtype.bits <= 16:
        return str(n.b.call("pow", n.operand("self"), n.operand("exponent")))
    return str(n.b.call(root, n.x))


def _scaled(op: str, *, swapped: bool = False) -> OpLowering:
    """Return the lowering of ``self +- alpha * other``, or of ``other - alpha * self``; the product has the result's dtype."""

    def lower(n: AtenLoweringContext) -> Results:
        first, second, alpha = n.operand("self"), n.operand("other"), n["alpha"]
        if swapped:
            first, second = second, first
        if alpha != 1:
            if isinstance(second, str):
                second = str(n.b.mul(n.cast(second, n.out().dtype), alpha))
            elif second is not None:
                second = second * alpha
        return str(n.b.call(op, first, second))

    return lower


def _div(n: AtenLoweringContext) -> Results:
    mode = n["rounding_mode"] if "rounding_mode" in n.args else None
    return str(n.b.div(n.operand("self"), n.operand("other"), rounding_mode=mode))


def _clamp(low: str | None, high: str | None) -> OpLowering:
    def lower(n: AtenLoweringContext) -> Results:
        bounds = [None if name is None else n.operand(name) for name in (low, high)]
        return str(n.b.clamp(n.x, *bounds))

    return lower


def _unless_nan(op: str) -> OpLowering:
    """Return the lowering of fmax or fmin: if one operand is NaN, the result is the other."""

    def lower(n: AtenLoweringContext) -> Results:
        x, other = n.t("self"), n.t("other")
        best = n.b.call(op, x, other)
        if not n.out().dtype.is_float:
            return str(best)
        without_nan = n.b.where(n.b.isnan(other), n.cast(x, n.out().dtype), best)
        return str(n.b.where(n.b.isnan(x), n.cast(other, n.out().dtype), without_nan))

    return lower


def _hypot(n: AtenLoweringContext) -> Results:
    """Lower hypot by the ratio of the smaller to the larger, which does not overflow. Infinity wins over NaN, as in C."""
    result = n.out().dtype
    wide = DType.FLOAT32 if result.bits < 32 else result
    x, y = (str(n.b.abs(n.cast(n.t(name), wide))) for name in ("self", "other"))
    big, small = str(n.b.maximum(x, y)), n.b.minimum(x, y)
    ratio = str(n.b.div(small, big, rounding_mode=None))
    length = n.b.mul(big, n.b.sqrt(n.b.add(n.b.mul(ratio, ratio), 1.0)))
    length = n.b.where(n.b.eq(big, 0.0), big, length)
    length = n.b.where(n.b.isinf(y), y, length)
    return n.cast(str(n.b.where(n.b.isinf(x), x, length)), result)


def _angle(n: AtenLoweringContext) -> Results:
    """Lower angle of real numbers: pi for negative ones, NaN for NaN."""
    result = n.out().dtype
    angle = str(n.b.where(n.b.lt(n.x, 0), n.like(math.pi, result), n.like(0.0, result)))
    return str(n.b.where(n.b.isnan(n.x), n.x, angle)) if n.spec().dtype.is_float else angle


def _where(n: AtenLoweringContext) -> Results:
    condition = n.t("condition")
    if n.spec(condition).dtype is not DType.BOOL:
        raise NotLowered("its condition is not bool")
    return str(n.b.where(condition, n.operand("self"), n.operand("other")))


def _masked_fill(n: AtenLoweringContext) -> Results:
    return str(n.b.where(n.t("mask"), n.typed(n.operand("value"), n.out().dtype), n.x))


def _to_copy(n: AtenLoweringContext) -> Results:
    dtype = n.dtype()
    if isinstance(n.args["self"], bool | int | float):  # as torch.func.vmap casts numbers
        return str(n.b.full(size=(), value=n["self"], dtype=dtype))
    if n.spec().dtype.is_complex and not dtype.is_complex:
        raise NotLowered("the imaginary part would be lost")
    return n.cast(n.x, dtype)


def _copy(n: AtenLoweringContext) -> Results:
    """Lower copy: the source with the shape and type of the destination."""
    source = n.cast(n.t("src"), n.out().dtype)
    n.ignore("self")
    return source if n.spec(source).shape == n.out().shape else str(n.b.expand(source, size=n.out().shape))


def _fake_quantize(n: AtenLoweringContext) -> Results:
    """Lower fake quantization by numbers, or by tensors that a flag of the module enables. The mask is for gradients only."""
    if n.has_readers(1):
        raise NotLowered("its mask is read")
    scale, zero = (
        n.like(n[name], kind) if not isinstance(n.args[name], TensorRef) else n.t(name)
        for name, kind in (("scale", DType.FLOAT32), ("zero_point", DType.INT32))
    )
    limits = {k: n[k] for k in ("quant_min", "quant_max")}
    if "axis" in n.args:
        return str(n.b.fake_quantize(n.x, scale, zero, axis=n["axis"] % n.spec().rank, **limits))
    scale, zero = (str(n.b.view(value, size=[])) for value in (scale, zero))
    y = n.b.fake_quantize(n.x, scale, zero, **limits)
    if "fake_quant_enabled" in n.args:
        enabled = n.b.view(n.t("fake_quant_enabled"), size=[])
        y = n.b.where(n.b.ne(enabled, 0), y, n.x)
    return str(y)


_SAME = (
    "abs", "neg", "sign", "ceil", "floor", "trunc", "round", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf",
    "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sin", "sinh", "sqrt", "tan", "isnan", "isinf",
    "logical_not", "bitwise_not",
)  # fmt: skip
_PAIRS = ("maximum", "minimum", "atan2", "logical_and", "logical_or", "logical_xor")
_BOTH = (
    "mul",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "fmod",
    "remainder",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
)
_FROM_NUMBER = ("remainder", "bitwise_and", "bitwise_or", "bitwise_xor")
_SIDES = (("l", "left"), ("r", "right"))
_SHIFTS = ("bitwise_left_shift", "bitwise_right_shift")

LOWERINGS: dict[str, OpLowering] = (
    {name: unary(name) for name in _SAME}
    | {name: _pair(name) for name in _PAIRS}
    | {f"{name}.{form}": _pair(name) for name in _BOTH for form in ("Tensor", "Scalar")}
    | {f"{name}.Scalar_Tensor": _pair(name) for name in _FROM_NUMBER}
    | {
        f"{name}.{form}": _pair(name)
        for name in _SHIFTS
        for form in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
    }
    | {
        f"__{side}shift__.{form}": _pair(f"bitwise_{word}_shift")
        for side, word in _SIDES
        for form in ("Tensor", "Scalar")
    }
    | {
        "add.Tensor": _scaled("add"),
        "add.Scalar": _scaled("add"),
        "sub.Tensor": _scaled("sub"),
        "sub.Scalar": _scaled("sub"),
        "rsub.Tensor": _scaled("sub", swapped=True),
        "rsub.Scalar": _scaled("sub", swapped=True),
        "div.Tensor": _div,
        "div.Scalar": _div,
        "div.Tensor_mode": _div,
        "div.Scalar_mode": _div,
        "pow.Tensor_Tensor": _pair("pow", "self", "exponent"),
        "pow.Tensor_Scalar": _power,
        "pow.Scalar": _pair("pow", "self", "exponent"),
        "round.decimals": call("round", "self", decimals="decimals"),
        "clamp": _clamp("min", "max"),
        "clamp.Tensor": _clamp("min", "max"),
        "clamp_min": _clamp("min", None),
        "clamp_min.Tensor": _clamp("min", None),
        "clamp_max": _clamp(None, "max"),
        "clamp_max.Tensor": _clamp(None, "max"),
        "where.self": _where,
        "where.ScalarOther": _where,
        "where.ScalarSelf": _where,
        "masked_fill.Scalar": _masked_fill,
        "masked_fill.Tensor": _masked_fill,
        "_to_copy": _to_copy,
        "angle": _angle,
        "hypot": _hypot,
        "fmax": _unless_nan("maximum"),
        "fmin": _unless_nan("minimum"),
        "copy": _copy,
        "fake_quantize_per_tensor_affine": _fake_quantize,
        "fake_quantize_per_tensor_affine_cachemask": _fake_quantize,
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _fake_quantize,
        "fake_quantize_per_channel_affine_cachemask": _fake_quantize,
    }
)
