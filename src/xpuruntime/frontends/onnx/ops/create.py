"""Lowerings of ops that create values: shapes as data, ranges, random draws, dropout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ir import MAX_CONST_ELEMENTS
from ....types import Dim, DType
from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]

_FLOAT = 1  # TensorProto.FLOAT


def _constant_of_shape(n: OnnxLoweringContext) -> Results:
    value = n.attr("value")
    array = np.zeros(1, np.float32) if value is None else np.asarray(value)
    size = n.dims(0, "shape")
    return str(n.b.full(size=size, value=array.reshape(-1)[0].item(), dtype=DType.of(array.dtype)))


def _range(n: OnnxLoweringContext) -> Results:
    dtype = n.spec().dtype
    if dtype.is_integer:
        start, end, step = (n.dims(i, "bounds")[0] for i in range(3))
        return str(n.b.arange(start=start, end=end, step=step, dtype=dtype))
    low, high, by = (float(n.number(i, "bounds")) for i in range(3))
    return str(n.b.arange(start=low, end=high, step=by, dtype=dtype))


def _eye(n: OnnxLoweringContext) -> Results:
    rows, columns = n.spec().shape
    dtype = n.dtype(n.attrs["dtype"]) if "dtype" in n.attrs else n.spec().dtype
    return str(n.b.eye(rows=rows, columns=columns, diagonal=n.attr("k", 0), dtype=dtype))


def _seed(n: OnnxLoweringContext) -> dict[str, Any]:
    seed = n.attr("seed")
    return {"seed": None if seed is None else int(np.float32(seed).view(np.int32))}


def _random(op: str, names: dict[str, tuple[str, float]], like: bool) -> OpLowering:
    def lower(n: OnnxLoweringContext) -> Results:
        size = n.spec().shape if like else n.attr("shape")
        dtype = (
            n.dtype(n.attrs["dtype"]) if "dtype" in n.attrs else n.spec().dtype if like else n.dtype(_FLOAT)
        )
        numbers: dict[str, Any] = {
            ir_name: float(n.attr(onnx_name, default)) for ir_name, (onnx_name, default) in names.items()
        }
        return str(n.b.call(op, size=size, dtype=dtype, **numbers, **_seed(n)))

    return lower


_UNIFORM = {"low": ("low", 0.0), "high": ("high", 1.0)}
_NORMAL = {"mean": ("mean", 0.0), "std": ("scale", 1.0)}


def _bernoulli(n: OnnxLoweringContext) -> Results:
    dtype = n.dtype(n.attrs["dtype"]) if "dtype" in n.attrs else None
    return str(n.b.bernoulli(n.x, dtype=dtype, **_seed(n)))


def _multinomial(n: OnnxLoweringContext) -> Results:
    dtype = n.dtype(n.attr("dtype", 6))
    return str(n.b.multinomial(n.x, samples=n.attr("sample_size", 1), dtype=dtype, **_seed(n)))


def _dropout(n: OnnxLoweringContext) -> Results:
    """Lower Dropout; in inference to the operand itself, with a mask of ones."""
    training = n.opt(2) is not None and bool(n.number(2, "training mode"))
    ratio = n.number(1, "ratio") if training and n.opt(1) else 0.5
    if training and ratio:
        seed = n.attr("seed")
        values = n.b.call(
            "dropout", n.x, p=float(ratio), train=True, seed=seed, outputs=2 if n.has_readers(1) else 1
        )
        return values if isinstance(values, str) else tuple(values)
    y = str(n.b.clone(n.x))
    if not n.has_readers(1):
        return y
    dtype = DType.BOOL if n.opset >= 10 else n.spec().dtype  # below opset 10 the mask has the operand's type
    return y, str(n.b.full(size=n.spec().shape, value=dtype is DType.BOOL or 1, dtype=dtype))


def _mel(n: OnnxLoweringContext) -> Results:
    """Lower MelWeightMatrix: triangular filters between frequencies that are evenly spaced on the mel scale, as ONNX defines them."""
    bins, length, rate = (int(n.number(i, "sizes")) for i in range(3))
    low, high = (float(n.number(i, "frequencies")) for i in (3, 4))
    if bins < 0 or length < 0 or (length // 2 + 1) * (bins + 2) > MAX_CONST_ELEMENTS:
        raise NotLowered("its filters are too large for a constant")
    points = np.arange(0, bins + 2, dtype=np.float64)
    low_mel, high_mel = (2595 * np.log10(1 + hertz / 700) for hertz in (low, high))
    hertz = 700 * (10 ** ((points * ((high_mel - low_mel) / (bins + 2)) + low_mel) / 2595) - 1)
    edges = ((length + 1) * hertz // rate).astype(np.int64)
    y = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        left, middle, right = edges[i : i + 3]
        if middle == left:
            y[middle, i] = 1
        else:
            y[left : middle + 1, i] = (np.arange(left, middle + 1) - left) / (middle - left)
        if right > middle:
            y[middle:right, i] = (right - np.arange(middle, right)) / (right - middle)
    return str(n.b.constant(y.astype(n.dtype(n.attr("output_datatype", _FLOAT)).numpy)))


def _shape(n: OnnxLoweringContext) -> Results:
    shape = n.spec().shape
    part = shape[slice(n.attr("start", 0), n.attr("end"))]
    return shape_value(n, list(part))


def _size(n: OnnxLoweringContext) -> Results:
    total = math.prod(n.spec().shape, start=1)
    if isinstance(total, int):
        return str(n.b.constant(np.array(total, np.int64)))
    return str(n.b.view(shape_value(n, [total]), size=[]))


def _get_element(n: OnnxLoweringContext) -> Results:
    """Lower OptionalGetElement of a tensor, which is the tensor."""
    if n.b.values[n.x].spec is None:
        raise NotLowered("optional values are not supported")
    return str(n.b.clone(n.x))


def _has_element(n: OnnxLoweringContext) -> Results:
    """Lower OptionalHasElement of a tensor, which is true, or of no operand, which is false."""
    if n.inputs and n.b.values[n.x].spec is None:
        raise NotLowered("optional values are not supported")
    return str(n.b.constant(np.array(bool(n.inputs))))


def shape_value(n: OnnxLoweringContext, values: list[Any]) -> str:
    """Return an int64[len] value: a constant if all are integers, else ``dims``."""
    if any(isinstance(v, Dim) for v in values):
        return str(n.b.dims(values=values))
    return str(n.b.constant(np.array(values, np.int64)))


LOWERINGS: dict[str, OpLowering] = {
    "Bernoulli": _bernoulli,
    "ConstantOfShape": _constant_of_shape,
    "Dropout": _dropout,
    "EyeLike": _eye,
    "MelWeightMatrix": _mel,
    "Multinomial": _multinomial,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
    "RandomNormal": _random("randn", _NORMAL, like=False),
    "RandomNormalLike": _random("randn", _NORMAL, like=True),
    "RandomUniform": _random("rand", _UNIFORM, like=False),
    "RandomUniformLike": _random("rand", _UNIFORM, like=True),
    "Range": _range,
    "Shape": _shape,
    "Size": _size,
}
