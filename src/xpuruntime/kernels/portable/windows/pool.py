"""C initializers of a pool's windows (``templates/pool.h``)."""

from __future__ import annotations

from ....codegen.loops.points import number
from ....types import DType
from ...kernel import NodeCall
from ...spec.conv_shape import ConvShape, strides_of
from ...spec.pool import ADAPTIVE_OPS, MAX_OPS, divisor_of, window_ends
from ..text import braces

__all__ = ["places_text", "reducer_of", "windows_text"]


def windows_text(call: NodeCall, shape: ConvShape) -> str:
    """Return an initializer of ``pool::Windows``."""
    limit, divisor_end = window_ends(call, shape)
    padding, divisor = divisor_of(call)
    flags = [str(f).lower() for f in (call.op in ADAPTIVE_OPS, padding)]
    power = call.attrs["p"] if call.op == "lp_pool" else 0.0
    numbers = [number(float(v)) for v in (divisor, power)]
    return f"{{{braces(limit)}, {braces(divisor_end)}, {', '.join([*flags, *numbers])}}}"


def reducer_of(call: NodeCall, dtype: DType) -> tuple[str, str]:
    """Return the reducer type of pool.h, and its prelude part."""
    if call.op in MAX_OPS:
        return "Max", "pool"
    if call.op == "lp_pool":
        power = float(call.attrs["p"])
        return {1.0: ("Norm1", "pool"), 2.0: ("Norm2", "pool")}.get(power, ("NormP", "pool_power"))
    return ("FloatMean" if dtype.is_float else "Mean"), "pool"


def places_text(call: NodeCall, shape: ConvShape) -> str:
    """Return an initializer of ``pool::Places``."""
    over = call.attrs.get("indices_over", "plane")
    d, h, w = shape.size
    steps = (1, d, d * h) if over == "tensor_column_major" else (h * w, w, 1)
    strides = strides_of(call.outputs[1], shape.rank)
    whole = str(over != "plane").lower()
    return f"{{{braces(strides)}, {d * h * w}, {', '.join(str(s) for s in steps)}, {whole}}}"
