"""Reductions, products and convolutions in ONNX."""

from __future__ import annotations

import math
from typing import Any

from ....errors import IrError
from ....types import DType
from .activation import activated
from .graph_builder import Form, Writing, both_ends, done

__all__ = ["FORMS"]


def _reduced(w: Writing, op: str, value: str, *, out: bool = False) -> str:
    """A Reduce op; its axes are an input from opset 18 on (ReduceSum: 13)."""
    axes, keep = list(w["dim"]), int(w["keepdim"])
    if not axes and w.spec().rank:  # nothing is reduced
        if w.opset < 18:
            raise IrError(f"{w.node.op} %{w.node.name}", "opsets below 18 cannot reduce no axis")
        return w.add(op, [value], out=out, keepdims=keep, noop_with_empty_axes=1)
    if not axes:
        return w.add(op, [value], out=out, keepdims=keep)
    if w.opset >= (13 if op == "ReduceSum" else 18):
        return w.add(op, [value, w.ints(axes)], out=out, keepdims=keep)
    return w.add(op, [value], out=out, keepdims=keep, axes=axes)


def _reduce(op: str) -> Form:
    """In the result's type."""

    def form(w: Writing) -> None:
        _reduced(w, op, w.operand(0, w.node.spec.dtype), out=True)

    return form


def _spatial(op: str, whole: str) -> Form:
    """A global pool where the model had one: engines add up the two in different orders."""
    reduced = _reduce(op)

    def form(w: Writing) -> None:
        if any(source.op == whole for source in w.node.sources):
            w.add(whole, [w.operand(0)], out=True)
        else:
            reduced(w)

    return form


def _truth(op: str) -> Form:
    def form(w: Writing) -> None:
        whole = _reduced(w, op, w.cast(w.operand(0, DType.BOOL), DType.INT32))
        w.add("Cast", [whole], out=True, to=w.pen.numbers[DType.BOOL])

    return form


def _var(w: Writing) -> None:
    """Mean of squared differences, times n / (n - correction)."""
    if not w.spec().is_static and w["correction"]:
        raise IrError(f"var %{w.node.name}", "over symbolic dims has a form with correction 0 only")
    dtype = w.node.spec.dtype
    x = w.operand(0, dtype)
    axes = list(w["dim"])
    mean = (
        w.add("ReduceMean", [x, w.ints(axes)], keepdims=1)
        if w.opset >= 18
        else w.add("ReduceMean", [x], keepdims=1, axes=axes)
    )
    away = w.add("Sub", [x, mean])
    squares = _reduced(w, "ReduceMean", w.add("Mul", [away, away]))
    if w["correction"]:
        n = math.prod(int(d) for i, d in enumerate(w.spec().shape) if i in axes and isinstance(d, int))
        squares = w.add("Mul", [squares, w.constant(n / (n - w["correction"]), dtype)])
    w.add("Identity", [squares], out=True)


def _norm(w: Writing) -> None:
    p, dtype = w["ord"], w.node.spec.dtype
    x = w.operand(0, dtype)
    if p in (1.0, 2.0):
        _reduced(w, f"ReduceL{int(p)}", x, out=True)
    elif math.isinf(p):
        _reduced(w, "ReduceMax" if p > 0 else "ReduceMin", w.add("Abs", [x]), out=True)
    else:
        total = _reduced(w, "ReduceSum", w.add("Pow", [w.add("Abs", [x]), w.constant(p, dtype)]))
        w.add("Pow", [total, w.constant(1 / p, dtype)], out=True)


def _arg(op: str) -> Form:
    def form(w: Writing) -> None:
        x, axis = w.operand(0), w["dim"]
        flags: dict[str, Any] = {}
        if w["last"]:
            flags["select_last_index"] = 1
        if axis is None:
            x = w.add("Reshape", [x, w.ints([-1])])
            found = w.add(op, [x], axis=0, keepdims=0, **flags)
            w.add("Reshape", [found, w.ints([1] * w.node.spec.rank)], out=True)
        else:
            w.add(op, [x], out=True, axis=axis, keepdims=int(w["keepdim"]), **flags)

    return form


def _extreme(reduce: str, arg: str) -> Form:
    def form(w: Writing) -> None:
        axis, keep = w["dim"], int(w["keepdim"])
        values, indices = w.outs
        if w.opset >= 18:
            w.pen.add(reduce, [w.operand(0), w.ints([axis])], [values], keepdims=keep)
        else:
            w.pen.add(reduce, [w.operand(0)], [values], keepdims=keep, axes=[axis])
        w.pen.add(arg, [w.operand(0)], [indices], axis=axis, keepdims=keep)

    return form


def _running(op: str) -> Form:
    def form(w: Writing) -> None:
        x = w.operand(0, w.node.spec.dtype)
        flags = {k: 1 for k in ("exclusive", "reverse") if w[k]}
        w.add(op, [x, w.constant(w["dim"], DType.INT64)], out=True, **flags)

    return form


# ── products ──


def _product(w: Writing, bias: str | None, dtype: DType) -> str:
    """X @ weight.T + bias, as Gemm for matrices."""
    if w.spec().rank == 2:
        return w.add("Gemm", [w.operand(0), w.operand(1), bias], transB=1)
    product = w.add("MatMul", [w.operand(0), w.add("Transpose", [w.operand(1)], perm=[1, 0])])
    return product if bias is None else w.add("Add", [product, bias])


def _linear(w: Writing) -> None:
    if w.spec().rank == 2:
        w.add("Gemm", [w.operand(0), w.operand(1), w.opt(2)], out=True, transB=1)
    else:
        w.add("Identity", [_product(w, w.opt(2), w.spec().dtype)], out=True)


def _fused_linear(w: Writing) -> None:
    value = _product(w, w.opt(2), w.spec().dtype)
    if w.has(3):
        value = w.add("Add", [value, w.operand(3)])
    activated(w, value, w["act"], w.spec().dtype)


def _addmm(w: Writing) -> None:
    w.add("Gemm", [w.operand(1), w.operand(2), w.operand(0)], out=True, alpha=w["alpha"], beta=w["beta"])


def _plain(op: str) -> Form:
    """The same operands in the same order."""
    return lambda w: done(w.add(op, w.operands(), out=True))


# ── convolutions ──


def _geometry(w: Writing) -> dict[str, Any]:
    return {
        "strides": list(w["stride"]),
        "pads": both_ends(w["padding"], len(w["stride"])),
        "dilations": list(w["dilation"]),
        "group": w["groups"],
    }


def _conv(w: Writing) -> None:
    if w["transposed"]:
        extra = list(w["output_padding"]) if any(w["output_padding"]) else None
        w.add("ConvTranspose", w.operands(), out=True, **_geometry(w), output_padding=extra)
    else:
        w.add("Conv", w.operands(), out=True, **_geometry(w))


def _fused_conv(w: Writing) -> None:
    op, extra = ("ConvTranspose", list(w["output_padding"]) or None) if w["transposed"] else ("Conv", None)
    value = w.add(op, [w.operand(0), w.operand(1), w.opt(2)], **_geometry(w), output_padding=extra)
    if w.has(3):
        value = w.add("Add", [value, w.operand(3)])
    activated(w, value, w["act"], w.spec().dtype)


def _deform(w: Writing) -> None:
    w.add("DeformConv", w.operands(), out=True, **_geometry(w), offset_group=w["offset_groups"])


def _quantized_conv(op: str) -> Form:
    return lambda w: done(w.add(op, w.operands(), out=True, **_geometry(w)))


FORMS: dict[str, Form] = {
    "addmm": _addmm,
    "all": _truth("ReduceMin"),
    "amax": _spatial("ReduceMax", "GlobalMaxPool"),
    "amin": _reduce("ReduceMin"),
    "any": _truth("ReduceMax"),
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "bmm": _plain("MatMul"),
    "convolution": _conv,
    "convolution_integer": _quantized_conv("ConvInteger"),
    "cumprod": _running("CumProd"),
    "cumsum": _running("CumSum"),
    "deform_convolution": _deform,
    "det": _plain("Det"),
    "einsum": lambda w: done(w.add("Einsum", w.operands(), out=True, equation=w["equation"])),
    "fused_convolution": _fused_conv,
    "fused_linear": _fused_linear,
    "linear": _linear,
    "logsumexp": _reduce("ReduceLogSumExp"),
    "matmul": _plain("MatMul"),
    "matmul_integer": _plain("MatMulInteger"),
    "max": _extreme("ReduceMax", "ArgMax"),
    "mean": _spatial("ReduceMean", "GlobalAveragePool"),
    "min": _extreme("ReduceMin", "ArgMin"),
    "mm": _plain("MatMul"),
    "prod": _reduce("ReduceProd"),
    "qlinear_convolution": _quantized_conv("QLinearConv"),
    "qlinear_matmul": _plain("QLinearMatMul"),
    "sum": _reduce("ReduceSum"),
    "var": _var,
    "vector_norm": _norm,
}
