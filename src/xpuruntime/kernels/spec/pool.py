"""The semantics of pools: windows, divisors, and supported nodes."""

from __future__ import annotations

from ...decisions import Reason, Support
from ...ir.ops._shapes import pads
from ...types import DType
from ..kernel import NodeCall
from .conv_shape import ConvShape
from .support import NUMBERS

__all__ = ["ADAPTIVE_OPS", "MAX_OPS", "OPS", "divisor_of", "pool_shape", "supported", "window_ends"]


_FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)


MAX_OPS = {"max_pool", "adaptive_max_pool"}


ADAPTIVE_OPS = {"adaptive_max_pool", "adaptive_avg_pool"}


def _space_dims(call: NodeCall) -> int:
    return len(call.attrs["output_size" if call.op in ADAPTIVE_OPS else "kernel_size"])


def pool_shape(call: NodeCall) -> ConvShape:
    """Return the windows' sizes and the operands' strides."""
    x, y = call.tensor(0).spec, call.outputs[0]
    if call.op not in ADAPTIVE_OPS:
        return ConvShape.window(x, y, call.attrs["kernel_size"], call)
    return ConvShape.adaptive(x, y, _space_dims(call))


def window_ends(call: NodeCall, shape: ConvShape) -> tuple[list[int], list[int]]:
    """Return per dim the end of the input without the elements that negative padding crops, and the end of the elements that an average's divisor counts."""
    padding_ends: tuple[int, ...] = (0, 0, 0)
    if call.op not in ADAPTIVE_OPS:
        padding_ends = (*(0,) * (3 - shape.rank), *pads(call.attrs["padding"], shape.rank)[1])
    limits = [n + min(e, 0) for n, e in zip(shape.size, padding_ends, strict=True)]
    return limits, [n + e for n, e in zip(shape.size, padding_ends, strict=True)]


def divisor_of(call: NodeCall) -> tuple[bool, float]:
    """Return whether padding counts in a mean, and the explicit divisor, or 0."""
    mean = call.op == "avg_pool"
    return mean and bool(call.attrs["count_include_pad"]), float((call.attrs["divisor"] if mean else 0) or 0)


OPS = ("max_pool", "avg_pool", "lp_pool", "adaptive_avg_pool", "adaptive_max_pool")


def supported(call: NodeCall) -> Support:
    """Return yes for at most three spatial dims, and numbers (maxima also of bool, p-norms of floats only)."""
    spec = call.tensor(0).spec
    is_bool = spec.dtype is DType.BOOL and call.op in MAX_OPS
    if not is_bool and spec.dtype not in (_FLOATS if call.op == "lp_pool" else NUMBERS):
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"{call.op} of {spec.dtype.value}")
    space = _space_dims(call)
    if space > 3:
        return Support.no(Reason.SHAPE_UNSUPPORTED, f"{space} spatial dims; at most 3 are supported")
    if call.op == "lp_pool" and not call.attrs["p"] > 0:
        return Support.no(Reason.SHAPE_UNSUPPORTED, f"p must be positive, got {call.attrs['p']}")
    return Support.yes()
