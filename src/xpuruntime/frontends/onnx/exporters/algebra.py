"""Exporters of reductions, products and convolutions."""

from __future__ import annotations

import math
from typing import Any

from ....errors import IrError
from ....types import DType
from .activation import activated
from .graph_builder import SHORT_INTEGERS, Exporter, NodeExport, done, full_padding

__all__ = ["EXPORTERS"]


def _axes(e: NodeExport) -> list[int]:
    """Return the reduced axes. A scalar has none, but the IR, as PyTorch, takes 0 and -1 for it."""
    return list(e["dim"]) if e.spec().rank else []


def _reduced(e: NodeExport, op: str, value: str, *, out: bool = False, keep: bool | None = None) -> str:
    """Add a Reduce op; its axes are an input from opset 18 on (ReduceSum: 13)."""
    axes, keep = _axes(e), e["keepdim"] if keep is None else keep
    if not axes and e.spec().rank:  # a reduction over no axis
        if e.opset < 18:
            raise IrError(
                f"{e.node.op} %{e.node.name}", "opsets below 18 cannot reduce over an empty list of axes"
            )
        return e.add(op, [value], out=out, keepdims=int(keep), noop_with_empty_axes=1)
    if not axes:
        return e.add(op, [value], out=out, keepdims=int(keep))
    if e.opset >= (13 if op == "ReduceSum" else 18):
        return e.add(op, [value, e.ints(axes)], out=out, keepdims=int(keep))
    return e.add(op, [value], out=out, keepdims=int(keep), axes=axes)


_LACKS = dict.fromkeys(("ReduceMax", "ReduceMin"), frozenset({DType.BOOL, DType.INT16, DType.UINT16}))
"""Types that an ONNX reduction does not take; the others take no short integers."""


def _taken(op: str, dtype: DType) -> DType:
    """Return a type that an ONNX reduction takes: the own, or a wider one."""
    return DType.INT32 if dtype in _LACKS.get(op, SHORT_INTEGERS | {DType.BOOL}) else dtype


def _reduce(op: str) -> Exporter:
    """Return the exporter of a reduction in the result's type."""

    def export(e: NodeExport) -> None:
        dtype = e.node.spec.dtype
        wide = _taken(op, dtype)
        if wide is dtype:
            _reduced(e, op, e.operand(0, dtype), out=True)
        else:
            e.to(_reduced(e, op, e.operand(0, wide)), dtype, wide)

    return export


def _spatial(op: str, global_pool: str) -> Exporter:
    """Return the exporter of a reduction, as a global pool if the model had one: engines add up the two in different orders."""
    reduced = _reduce(op)

    def export(e: NodeExport) -> None:
        if any(source.op == global_pool for source in e.node.sources):
            e.add(global_pool, [e.operand(0)], out=True)
        else:
            reduced(e)

    return export


def _truth(op: str) -> Exporter:
    def export(e: NodeExport) -> None:
        reduced = _reduced(e, op, e.cast(e.operand(0, DType.BOOL), DType.INT32))
        # Of no element, the maximum is the lowest integer, which is not true.
        e.add("Greater", [reduced, e.constant(0, DType.INT32)], out=True)

    return export


def _count(e: NodeExport) -> int | str:
    """Return how many elements are reduced to one, as a scalar value of ``_counted`` if a dim is symbolic."""
    shape = e.spec().shape
    sizes = [shape[d] for d in _axes(e)]
    if 0 in sizes:
        return 0
    if all(isinstance(d, int) for d in sizes):
        return math.prod(int(d) for d in sizes if isinstance(d, int))
    factors = [e.builder.dim(d) for d in sizes]
    product = factors[0]
    for factor in factors[1:]:
        product = e.add("Mul", [product, factor])
    return e.cast(e.add("Reshape", [product, e.ints([])]), _counted(e))


def _counted(e: NodeExport) -> DType:
    """Return the type in which elements are counted: 16 bits hold no large number."""
    return DType.FLOAT64 if e.node.spec.dtype is DType.FLOAT64 else DType.FLOAT32


def _scaled(e: NodeExport, value: str, count: str, rest: str) -> str:
    """Return ``value * (count / rest)``."""
    factor, dtype = e.add("Div", [count, rest]), e.node.spec.dtype
    return e.add("Mul", [value, factor if dtype is _counted(e) else e.cast(factor, dtype)])


def _averaged(e: NodeExport, value: str, *, keep: bool | None = None) -> str:
    """Add ReduceMean, with NaN for the mean of no element. ONNX leaves it open, and ONNX Runtime 1.31 gives 0."""
    mean, count = _reduced(e, "ReduceMean", value, keep=keep), _count(e)
    if isinstance(count, int):
        return e.add("Mul", [mean, e.constant(math.nan, e.node.spec.dtype)]) if not count else mean
    return _scaled(e, mean, count, count)  # 1, or 0 / 0


def _mean(e: NodeExport) -> None:
    dtype = e.node.spec.dtype
    if any(source.op == "GlobalAveragePool" for source in e.node.sources):
        e.add("GlobalAveragePool", [e.operand(0)], out=True)
    elif _always_some(e):
        _reduced(e, "ReduceMean", e.operand(0, dtype), out=True)
    else:
        e.add("Identity", [_averaged(e, e.operand(0, dtype))], out=True)


def _always_some(e: NodeExport) -> bool:
    """Return whether at least one element is reduced, whatever the symbolic sizes are."""
    return all(isinstance(d, int) and d > 0 for d in (e.spec().shape[k] for k in _axes(e)))


def _var(e: NodeExport) -> None:
    """Write var as the mean of squared differences, times n / (n - correction). PyTorch divides by 0 if the correction is larger than n."""
    dtype, correction = e.node.spec.dtype, e["correction"]
    x = e.operand(0, dtype)
    away = e.add("Sub", [x, _averaged(e, x, keep=True)])
    squares = _averaged(e, e.add("Mul", [away, away]))
    count = _count(e) if correction else 1
    if isinstance(count, str):
        kind = _counted(e)
        less = e.add("Sub", [count, e.constant(correction, kind)])
        squares = _scaled(e, squares, count, e.add("Max", [less, e.constant(0, kind)]))
    elif correction:
        rest = max(count - correction, 0)
        factor = count / rest if rest > 0 else math.inf
        squares = e.add("Mul", [squares, e.constant(factor, dtype)])
    e.add("Identity", [squares], out=True)


def _logsumexp(e: NodeExport) -> None:
    """Write logsumexp as its definition. ReduceLogSumExp of ONNX Runtime 1.31 gives -inf if the first of several elements is -inf."""
    dtype = e.node.spec.dtype
    x = e.operand(0, dtype)
    largest = _reduced(e, "ReduceMax", x, keep=True)
    finite = e.add("Less", [e.add("Abs", [largest]), e.constant(math.inf, dtype)])
    shift = e.add("Where", [finite, largest, e.constant(0, dtype)])
    total = _reduced(e, "ReduceSum", e.add("Exp", [e.add("Sub", [x, shift])]))
    if not e["keepdim"]:
        shift = _reduced(e, "ReduceMax", shift)
    e.add("Add", [e.add("Log", [total]), shift], out=True)


def _norm(e: NodeExport) -> None:
    p, dtype = e["ord"], e.node.spec.dtype
    x = e.operand(0, dtype)
    if p == 0:
        nonzero = e.add("Not", [e.add("Equal", [x, e.constant(0, dtype)])])
        _reduced(e, "ReduceSum", e.cast(nonzero, dtype), out=True)
        return
    if p in (1.0, 2.0):
        _reduced(e, f"ReduceL{int(p)}", x, out=True)
    elif math.isinf(p):
        _reduced(e, "ReduceMax" if p > 0 else "ReduceMin", e.add("Abs", [x]), out=True)
    else:
        total = _reduced(e, "ReduceSum", e.add("Pow", [e.add("Abs", [x]), e.constant(p, dtype)]))
        e.add("Pow", [total, e.constant(1 / p, dtype)], out=True)


def _arg(op: str) -> Exporter:
    def export(e: NodeExport) -> None:
        x, axis = e.operand(0), e["dim"] if e.spec().rank else None
        flags: dict[str, Any] = {}
        if e["last"]:
            flags["select_last_index"] = 1
        if axis is None:
            x = e.add("Reshape", [x, e.ints([-1])])
            index = e.add(op, [x], axis=0, keepdims=0, **flags)
            e.add("Reshape", [index, e.ints([1] * e.node.spec.rank)], out=True)
        else:
            e.add(op, [x], out=True, axis=axis, keepdims=int(e["keepdim"]), **flags)

    return export


def _extreme(reduce: str, arg: str) -> Exporter:
    def export(e: NodeExport) -> None:
        axis, keep = e["dim"], int(e["keepdim"])
        values, indices = e.outs
        if not e.spec().rank:
            e.builder.add("Identity", [e.operand(0)], [values])
            e.builder.add("Identity", [e.constant(0, DType.INT64)], [indices])
            return
        dtype = e.spec().dtype
        wide = _taken(reduce, dtype)
        x, extreme = e.operand(0, wide), values if wide is dtype else e.builder.fresh(values)
        if e.opset >= 18:
            e.builder.add(reduce, [x, e.ints([axis])], [extreme], keepdims=keep)
        else:
            e.builder.add(reduce, [x], [extreme], keepdims=keep, axes=[axis])
        if wide is not dtype:
            e.builder.add("Cast", [extreme], [values], to=e.builder.numbers[dtype])
        e.builder.add(arg, [x], [indices], axis=axis, keepdims=keep)

    return export


def _running(op: str) -> Exporter:
    def export(e: NodeExport) -> None:
        x = e.operand(0, e.node.spec.dtype)
        flags: dict[str, Any] = {k: 1 for k in ("exclusive", "reverse") if e[k]}
        if not e.spec().rank:  # ONNX takes no scalar
            line = e.add("Reshape", [x, e.ints([1])])
            e.add("Reshape", [e.add(op, [line, e.constant(0, DType.INT64)], **flags), e.ints([])], out=True)
            return
        e.add(op, [x, e.constant(e["dim"], DType.INT64)], out=True, **flags)

    return export


# ── products ──


def _matmul(e: NodeExport) -> None:
    if e.node.spec.dtype in SHORT_INTEGERS:
        e.through("MatMul", DType.INT32, (0, 1))
    else:
        e.add("MatMul", e.operands(), out=True)


def _product(e: NodeExport, bias: str | None, dtype: DType) -> str:
    """Add ``x @ weight.T + bias``, as Gemm for matrices."""
    if e.spec().rank == 2:
        return e.add("Gemm", [e.operand(0), e.operand(1), bias], transB=1)
    product = e.add("MatMul", [e.operand(0), e.add("Transpose", [e.operand(1)], perm=[1, 0])])
    return product if bias is None else e.add("Add", [product, bias])


def _linear(e: NodeExport) -> None:
    if e.spec().rank == 2:
        e.add("Gemm", [e.operand(0), e.operand(1), e.opt(2)], out=True, transB=1)
    else:
        e.add("Identity", [_product(e, e.opt(2), e.spec().dtype)], out=True)


def _fused_linear(e: NodeExport) -> None:
    value = _product(e, e.opt(2), e.spec().dtype)
    if e.has(3):
        value = e.add("Add", [value, e.operand(3)])
    activated(e, value, e["act"], e.spec().dtype)


def _expert_linear(e: NodeExport) -> None:
    """Write products with chosen experts: their matrices are gathered for few rows; for many, every row is multiplied by every matrix."""
    if e["gated"]:
        raise e.no("a gate")
    (experts, n, k), ids, spec = e.spec(1).shape, e.operand(2, DType.INT64), e.spec(2)
    x, shared = e.operand(0), e.spec().rank == 2
    sizes = [d for d in spec.shape if isinstance(d, int)]
    if isinstance(experts, int) and len(sizes) == spec.rank and math.prod(sizes) <= experts:
        slots = 1 if shared else spec.shape[1]
        columns = e.add("Reshape", [x, e.builder.dims([spec.shape[0], slots, k, 1])])
        y = e.add("MatMul", [e.add("Gather", [e.operand(1), ids], axis=0), columns])
    else:
        rows = x if shared else e.add("Reshape", [x, e.builder.dims([-1, k])])
        products = e.add("MatMul", [rows, e.add("Transpose", [e.operand(1)], perm=[0, 2, 1])])
        at = e.builder.dims([*spec.shape, 1] if shared else [-1, 1, 1])
        of_rows = e.add("Transpose", [products], perm=[1, 0, 2])
        y = e.add("GatherND", [of_rows, e.add("Reshape", [ids, at])], batch_dims=1)
    y = e.add("Reshape", [y, e.builder.dims([*spec.shape, n])])
    activated(e, y, e["act"], e.spec().dtype)


def _addmm(e: NodeExport) -> None:
    e.add("Gemm", [e.operand(1), e.operand(2), e.operand(0)], out=True, alpha=e["alpha"], beta=e["beta"])


def _plain(op: str) -> Exporter:
    """Return the exporter of an op with the same operands in the same order."""
    return lambda e: done(e.add(op, e.operands(), out=True))


# ── convolutions ──


def _geometry(e: NodeExport) -> dict[str, Any]:
    return {
        "strides": list(e["stride"]),
        "pads": full_padding(e["padding"], len(e["stride"])),
        "dilations": list(e["dilation"]),
        "group": e["groups"],
    }


def _conv(e: NodeExport) -> None:
    if e["transposed"]:
        extra = list(e["output_padding"]) if any(e["output_padding"]) else None
        e.add("ConvTranspose", e.operands(), out=True, **_geometry(e), output_padding=extra)
    else:
        e.add("Conv", e.operands(), out=True, **_geometry(e))


def _fused_conv(e: NodeExport) -> None:
    op, extra = ("ConvTranspose", list(e["output_padding"]) or None) if e["transposed"] else ("Conv", None)
    value = e.add(op, [e.operand(0), e.operand(1), e.opt(2)], **_geometry(e), output_padding=extra)
    if e.has(3):
        value = e.add("Add", [value, e.operand(3)])
    activated(e, value, e["act"], e.spec().dtype)


def _deform(e: NodeExport) -> None:
    e.add("DeformConv", e.operands(), out=True, **_geometry(e), offset_group=e["offset_groups"])


def _quantized_conv(op: str) -> Exporter:
    return lambda e: done(e.add(op, e.operands(), out=True, **_geometry(e)))


EXPORTERS: dict[str, Exporter] = {
    "addmm": _addmm,
    "all": _truth("ReduceMin"),
    "amax": _spatial("ReduceMax", "GlobalMaxPool"),
    "amin": _reduce("ReduceMin"),
    "any": _truth("ReduceMax"),
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "bmm": _matmul,
    "convolution": _conv,
    "convolution_integer": _quantized_conv("ConvInteger"),
    "cumprod": _running("CumProd"),
    "cumsum": _running("CumSum"),
    "deform_convolution": _deform,
    "det": _plain("Det"),
    "einsum": lambda e: done(e.add("Einsum", e.operands(), out=True, equation=e["equation"])),
    "expert_linear": _expert_linear,
    "fused_convolution": _fused_conv,
    "fused_linear": _fused_linear,
    "linear": _linear,
    "logsumexp": _logsumexp,
    "matmul": _matmul,
    "matmul_integer": _plain("MatMulInteger"),
    "max": _extreme("ReduceMax", "ArgMax"),
    "mean": _mean,
    "min": _extreme("ReduceMin", "ArgMin"),
    "mm": _matmul,
    "prod": _reduce("ReduceProd"),
    "qlinear_convolution": _quantized_conv("QLinearConv"),
    "qlinear_matmul": _plain("QLinearMatMul"),
    "sum": _reduce("ReduceSum"),
    "var": _var,
    "vector_norm": _norm,
}
