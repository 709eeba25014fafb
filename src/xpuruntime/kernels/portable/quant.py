"""Quantization and dequantization with a scale (ONNX semantics): in double, with the one inner rounding that the op defines."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...codegen.loops.boxes import Box
from ...codegen.loops.points import STORAGE, address, number, storage, unravel
from ...decisions import Support
from ...ir.interp.quant import _limits
from ...types import DType
from ..kernel import NodeCall
from ..spec.support import FLOATS, INTEGERS, NUMBERS, computes, first, refuse
from .narrow import NARROW, PACKED, codes_table, decoded, element_tasks, encoder, not_packable
from .tasks import OpTemplate, TaskText, TemplateKernel, result, whole

__all__ = ["KERNELS"]


def _spread(
    call: NodeCall, position: int, shape: tuple[int, ...], axis: int, block: int = 0
) -> tuple[Box, list[str]]:
    """Return the box of a scale or zero point and its indices: one value, one per position along the axis, or one per block of it."""
    scale = whole(call, position)
    names = [f"i{d}" for d in range(len(shape))]
    if block:
        names[axis] = f"(i{axis} / {block})"
        return scale, names
    if math.prod(scale.shape) == 1:
        return Box(scale.arg, (), ()), []
    if len(scale.shape) == 1 and shape:
        return scale, [names[axis]]
    return scale.expanded(shape), names


def _zero(call: NodeCall, axis: int, block: int, shape: tuple[int, ...]) -> str:
    """Return the zero point as a double; empty if there is none."""
    zero = call.optional(2)
    return "" if zero is None else decoded(zero.spec.dtype, *_spread(call, 2, shape, axis, block))


def _loaded(box: Box, names: Sequence[str], kind: str = "double") -> str:
    return f"({kind})load<1>({address(box, names)})"


def _quantize(call: NodeCall) -> TaskText:
    x, y, a = whole(call, 0), result(call), call.attrs
    names = [f"i{d}" for d in range(len(y.shape))]
    dtype = call.outputs[0].dtype
    quotient_type = storage(a["precision"] or call.tensor(1).spec.dtype)
    scale = _spread(call, 1, y.shape, a["axis"], a["block_size"])
    zero = _zero(call, a["axis"], a["block_size"], y.shape) or "0.0"
    quotient = f"(double)convert<{quotient_type}>({_loaded(x, names)} / {_loaded(*scale)})"
    head = codes_table(dtype)
    if not dtype.is_integer:
        return element_tasks(
            y, dtype, [], f"encode({quotient} + {zero})", [*head, *encoder(dtype, a["saturate"])]
        )
    low, high = _limits(dtype)
    kind = storage(dtype) if dtype in STORAGE else "uint8_t"
    line = f"const double code = rint({quotient}) + {zero};"
    code = f"({kind})({'(int64_t)' if dtype in PACKED else ''}(code < {low} ? {low} : code > {high} ? {high} : code))"
    return element_tasks(y, dtype, [line], code, head, frozenset({"arith"}))


def _dequantize(call: NodeCall) -> TaskText:
    x, y, a = whole(call, 0), result(call), call.attrs
    names = [f"i{d}" for d in range(len(y.shape))]
    dtype = call.tensor(0).spec.dtype
    scale = _spread(call, 1, y.shape, a["axis"], a["block_size"])
    zero = _zero(call, a["axis"], a["block_size"], y.shape)
    value = decoded(dtype, x, names) + (f" - {zero}" if zero else "")
    body = [
        *unravel(y.shape),
        f"const double value = ({value}) * {_loaded(*scale)};",
        f"store<1>({address(y, names)}, convert<{storage(call.outputs[0].dtype)}>(value));",
    ]
    return TaskText(body, math.prod(y.shape), codes_table(dtype))


def _dynamic(call: NodeCall) -> TaskText:
    """Return the text of dynamic uint8 quantization over the range of x, extended to contain 0.

    It computes in float32, like the ONNX function. The range needs all of x, so there is a single task.
    """
    x, y = whole(call, 0), result(call)
    names, total = [f"i{d}" for d in range(len(y.shape))], math.prod(y.shape)
    loop = [f"for (int64_t e = 0; e < {total}; ++e) {{", *(f"  {line}" for line in unravel(y.shape, "e"))]
    body = [
        "float low = 0, high = 0;",
        *loop,
        f"  const float v = *({address(x, names)});",
        "  low = minimum(low, v);",
        "  high = maximum(high, v);",
        "}",
        "const float scale = (high - low) / 255.0f;",
        "const float from = scale != 0 ? rint(-low / scale) : 0.0f;",
        "const float zero = from < 0 ? 0.0f : from > 255 ? 255.0f : from;",
        "*out1 = scale;",
        "*out2 = (uint8_t)zero;",
        *loop,
        f"  const float v = *({address(x, names)}), code = rint(scale != 0 ? v / scale : v) + zero;",
        f"  *({address(y, names)}) = (uint8_t)(code < 0 ? 0.0f : code > 255 ? 255.0f : code);",
        "}",
    ]
    return TaskText(body, 1, per=2 * total, parts=frozenset({"arith"}))


def _fake(call: NodeCall) -> TaskText:
    """Return the text of ``(clip(code) - zero_point) * scale``, in float32 like PyTorch's kernel.

    The code is ``rint(x / scale) + zero_point`` for zero points that are integers, and ``rint(x / scale + zero_point)`` for floats.
    """
    x, y, a = whole(call, 0), result(call), call.attrs
    names, axis = [f"i{d}" for d in range(len(y.shape))], a["axis"] or 0
    compute = "double" if call.tensor(0).spec.dtype is DType.FLOAT64 else "float"
    code = f"rint(({compute})(moved + ({compute})zero))"
    if call.tensor(2).spec.dtype.is_integer:
        code = f"({compute})(rint(moved) + ({compute})zero)"
    body = [
        *unravel(y.shape),
        f"const float scale = {_loaded(*_spread(call, 1, y.shape, axis), 'float')};",
        f"const float zero = {_loaded(*_spread(call, 2, y.shape, axis), 'float')};",
        f"const {compute} moved = ({compute})load<1>({address(x, names)}) * ({compute})(1.0f / scale);",
        f"{compute} code = {code};",
        f"if (code != code) code = ({compute}){number(float(a['quant_min']))};  // as PyTorch does for NaN",
        f"code = minimum(maximum(code, ({compute}){number(float(a['quant_min']))}), ({compute}){number(float(a['quant_max']))});",
        f"store<1>({address(y, names)}, convert<{storage(call.outputs[0].dtype)}>((code - ({compute})zero) * ({compute})scale));",
    ]
    return TaskText(body, math.prod(y.shape), parts=frozenset({"arith"}))


_QUANTIZED = INTEGERS - {DType.INT64, DType.UINT64} | NARROW - {DType.FLOAT8_E8M0FNU}


def _to_quantized(call: NodeCall) -> Support | None:
    dtype, precision = call.outputs[0].dtype, call.attrs["precision"]
    return first(
        None if dtype in _QUANTIZED else refuse(dtype, "quantized values"),
        None if precision is None or precision in FLOATS else refuse(precision, "a quotient"),
        not_packable(call),
        computes(0, dtypes=NUMBERS)(call),
        computes(1)(call),
    )


def _from_quantized(call: NodeCall) -> Support | None:
    dtype = call.outputs[0].dtype
    return first(
        computes(0, dtypes=NUMBERS | _QUANTIZED)(call),
        computes(1)(call),
        None if dtype in FLOATS else refuse(dtype, "dequantized values"),
    )


def _fakes(call: NodeCall) -> Support | None:
    return first(computes(0, 1)(call), computes(2, dtypes=NUMBERS)(call))


KERNELS = (
    TemplateKernel(
        "quantize/generated",
        {
            "quantize_linear": OpTemplate(_quantize, _to_quantized, packed=True),
            "dequantize_linear": OpTemplate(_dequantize, _from_quantized, packed=True),
            "dynamic_quantize_linear": OpTemplate(_dynamic, computes(dtypes=frozenset({DType.FLOAT32}))),
            "fake_quantize": OpTemplate(_fake, _fakes),
        },
    ),
)
