"""Reductions along axes, and cumulative ops."""

from __future__ import annotations

from ...types import DType, TensorSpec
from ..schema import OpCall, OpEntry, op
from ._shapes import axes_without, broadcast, like
from ._types import category, float_of

__all__ = ["ROWS"]

_AXES = "dim: axes? = none, keepdim: bool = false"


def _same(c: OpCall) -> TensorSpec:
    return like(c.tensor(), axes_without(c.tensor(), c["dim"], c["keepdim"]))


def _total(c: OpCall) -> TensorSpec:
    """Infer a sum or product: integers and bool use int64 unless dtype is set, as in PyTorch."""
    x = c.tensor()
    dtype = c["dtype"] or (DType.INT64 if category(x.dtype) < 2 else x.dtype)
    return TensorSpec(axes_without(x, c["dim"], c["keepdim"]), dtype)


def _mean(c: OpCall) -> TensorSpec:
    x = c.tensor()
    return TensorSpec(axes_without(x, c["dim"], c["keepdim"]), c["dtype"] or float_of(x.dtype))


def _var(c: OpCall) -> TensorSpec:
    x = c.tensor()
    real = {DType.COMPLEX64: DType.FLOAT32, DType.COMPLEX128: DType.FLOAT64}.get(x.dtype, float_of(x.dtype))
    return TensorSpec(axes_without(x, c["dim"], c["keepdim"]), real)


def _float(c: OpCall) -> TensorSpec:
    x = c.tensor()
    return TensorSpec(axes_without(x, c["dim"], c["keepdim"]), float_of(x.dtype))


def _bool(c: OpCall) -> TensorSpec:
    return TensorSpec(axes_without(c.tensor(), c["dim"], c["keepdim"]), DType.BOOL)


def _arg(c: OpCall) -> TensorSpec:
    """Infer argmax or argmin; without ``dim``, over the flattened operand."""
    x, dim = c.tensor(), c["dim"]
    axes = range(x.rank) if dim is None else (dim,)
    return TensorSpec(axes_without(x, tuple(axes), c["keepdim"]), DType.INT64)


def _pair(c: OpCall) -> list[TensorSpec]:
    x = c.tensor()
    shape = axes_without(x, (c["dim"],), c["keepdim"])
    return [like(x, shape), TensorSpec(shape, DType.INT64)]


def _running(c: OpCall) -> TensorSpec:
    x = c.tensor()
    return TensorSpec(x.shape, c["dtype"] or (DType.INT64 if category(x.dtype) < 2 else x.dtype))


def _cdist(c: OpCall) -> TensorSpec:
    a, b = c.tensor(0), c.tensor(1)
    return like(a, (*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-2]))


def _pdist(c: OpCall) -> TensorSpec:
    n = c.tensor().shape[0]
    return like(c.tensor(), (n * (n - 1) // 2,))


ROWS: tuple[OpEntry, ...] = (
    op(
        f"sum(x; {_AXES}, dtype: dtype? = none) -> y",
        "reduce",
        _total,
        aten="sum sum.dim_IntList",
        onnx="ReduceSum",
    ),
    op(
        f"prod(x; {_AXES}, dtype: dtype? = none) -> y",
        "reduce",
        _total,
        aten="prod prod.dim_int",
        onnx="ReduceProd",
    ),
    op(
        f"mean(x; {_AXES}, dtype: dtype? = none) -> y",
        "reduce",
        _mean,
        aten="mean mean.dim",
        onnx="ReduceMean",
    ),
    op(f"amax(x; {_AXES}) -> y", "reduce", _same, aten="amax", onnx="ReduceMax GlobalMaxPool"),
    op(f"amin(x; {_AXES}) -> y", "reduce", _same, aten="amin", onnx="ReduceMin"),
    op(f"any(x; {_AXES}) -> y", "reduce", _bool, aten="any any.dim any.dims"),
    op(f"all(x; {_AXES}) -> y", "reduce", _bool, aten="all all.dim all.dims"),
    op(
        f"var(x; {_AXES}, correction: float = 1.0) -> y",
        "reduce",
        _var,
        aten="var.correction var.dim",
        meaning="sum of squared differences from the mean over (count - correction)",
    ),
    op(f"logsumexp(x; {_AXES}) -> y", "reduce", _float, aten="logsumexp", onnx="ReduceLogSumExp"),
    op(
        f"vector_norm(x; ord: float = 2.0, {_AXES}) -> y",
        "reduce",
        _var,
        aten="linalg_vector_norm",
        onnx="ReduceL1 ReduceL2 GlobalLpPool",
        meaning="sum(|x|**ord)**(1/ord); ord may be inf, -inf or 0",
    ),
    op(
        "argmax(x; dim: axis? = none, keepdim: bool = false, last: bool = false) -> y",
        "reduce",
        _arg,
        aten="argmax",
        onnx="ArgMax",
        meaning="dim none: over the flattened operand; last: the last of equal elements",
    ),
    op(
        "argmin(x; dim: axis? = none, keepdim: bool = false, last: bool = false) -> y",
        "reduce",
        _arg,
        aten="argmin",
        onnx="ArgMin",
    ),
    op("max(x; dim: axis, keepdim: bool = false) -> values, indices", "reduce", _pair, aten="max.dim"),
    op("min(x; dim: axis, keepdim: bool = false) -> values, indices", "reduce", _pair, aten="min.dim"),
    op(
        "cumsum(x; dim: axis, dtype: dtype? = none, exclusive: bool = false, reverse: bool = false) -> y",
        "reduce",
        _running,
        aten="cumsum",
        onnx="CumSum",
    ),
    op(
        "cumprod(x; dim: axis, dtype: dtype? = none, exclusive: bool = false, reverse: bool = false) -> y",
        "reduce",
        _running,
        aten="cumprod",
        onnx="CumProd",
    ),
    op("cdist(x, other; p: float = 2.0) -> y", "reduce", _cdist, aten="_cdist_forward"),
    op("pdist(x; p: float = 2.0) -> y", "reduce", _pdist, aten="_pdist_forward"),
)
