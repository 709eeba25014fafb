"""Normalisations in ONNX: one op where the opset has it, else its definition."""

from __future__ import annotations

import numpy as np

from ....types import DType
from .graph_builder import Form, Writing

__all__ = ["FORMS"]


def _per_channel(w: Writing, position: int, value: float) -> str:
    """The scale or bias, or the one that changes nothing."""
    if w.has(position):
        return w.operand(position)
    channels = w.spec().shape[1]
    if not isinstance(channels, int):
        raise w.no("symbolic channels without a scale")
    return w.constant(np.full(channels, value), w.spec().dtype)


def _batch(w: Writing) -> None:
    operands = [w.operand(0), _per_channel(w, 1, 1), _per_channel(w, 2, 0), w.operand(3), w.operand(4)]
    w.add("BatchNormalization", operands, out=True, epsilon=w["eps"])


def _instance(w: Writing) -> None:
    operands = [w.operand(0), _per_channel(w, 1, 1), _per_channel(w, 2, 0)]
    w.add("InstanceNormalization", operands, out=True, epsilon=w["eps"])


def _group(w: Writing) -> None:
    """From opset 21 one op; before, an InstanceNormalization over groups, and an affine map."""
    if len(w.outs) > 1:
        raise w.no("statistics of a group norm")
    scale, bias = _per_channel(w, 1, 1), _per_channel(w, 2, 0)
    if w.opset >= 21:
        w.add(
            "GroupNormalization",
            [w.operand(0), scale, bias],
            out=True,
            num_groups=w["groups"],
            epsilon=w["eps"],
        )
        return
    groups, spec = w["groups"], w.spec()
    flat = w.add("Reshape", [w.operand(0), w.ints([0, groups, -1])])
    ones, zeros = (w.constant(np.full(groups, v), spec.dtype) for v in (1, 0))
    normal = w.add("InstanceNormalization", [flat, ones, zeros], epsilon=w["eps"])
    back = w.add("Reshape", [normal, w.add("Shape", [w.operand(0)])])
    each = w.ints([-1] + [1] * (spec.rank - 2))
    scaled = w.add("Mul", [back, w.add("Reshape", [scale, each])])
    w.add("Add", [scaled, w.add("Reshape", [bias, each])], out=True)


def _layer(w: Writing) -> None:
    rank, last = w.spec().rank, len(w["normalized_shape"])
    x, dtype = w.operand(0), w.spec().dtype
    shape = w["normalized_shape"]
    if w.has(1):
        scale = w.operand(1)
    elif all(isinstance(d, int) for d in shape):
        scale = w.constant(np.ones([int(d) for d in shape]), dtype)
    else:
        raise w.no("symbolic dims without a scale")
    if w.opset >= 17:
        outs = w.outs
        if len(outs) > 1 and dtype is not DType.FLOAT32:  # ONNX gives statistics in float32
            inner = [outs[0], *(w.pen.fresh(f"{o}.f32") for o in outs[1:])]
            w.pen.add("LayerNormalization", [x, scale, w.opt(2)], inner, axis=-last, epsilon=w["eps"])
            for made, out in zip(inner[1:], outs[1:], strict=True):
                w.pen.add("Cast", [made], [out], to=w.pen.numbers[dtype])
            return
        w.add("LayerNormalization", [x, scale, w.opt(2)], out=True, axis=-last, epsilon=w["eps"])
        return
    if len(w.outs) > 1:
        raise w.no("statistics below opset 17")
    axes = list(range(rank - last, rank))
    away = w.add("Sub", [x, w.add("ReduceMean", [x], axes=axes, keepdims=1)])
    square = w.add("ReduceMean", [w.add("Mul", [away, away])], axes=axes, keepdims=1)
    length = w.add("Sqrt", [w.add("Add", [square, w.constant(w["eps"], dtype)])])
    scaled = w.add("Mul", [w.add("Div", [away, length]), scale])
    w.add("Add" if w.has(2) else "Identity", [scaled, *([w.operand(2)] if w.has(2) else [])], out=True)


def _rms(w: Writing) -> None:
    """From opset 23 one op; before, its definition."""
    last, dtype, shape = len(w["normalized_shape"]), w.spec().dtype, w["normalized_shape"]
    x = w.operand(0)
    if w.opset >= 23 and len(w.outs) == 1 and (w.has(1) or all(isinstance(d, int) for d in shape)):
        scale = w.operand(1) if w.has(1) else w.constant(np.ones([int(d) for d in shape]), dtype)
        w.add("RMSNormalization", [x, scale], out=True, axis=-last, epsilon=w["eps"])
        return
    axes = list(range(w.spec().rank - last, w.spec().rank))
    square = w.add("Mul", [x, x])
    mean = (
        w.add("ReduceMean", [square, w.ints(axes)])
        if w.opset >= 18
        else w.add("ReduceMean", [square], axes=axes)
    )
    rstd = w.add("Reciprocal", [w.add("Sqrt", [w.add("Add", [mean, w.constant(w["eps"], dtype)])])])
    scaled = w.add("Mul", [x, rstd])
    if w.has(1):
        scaled = w.add("Mul", [scaled, w.operand(1)])
    for value, out in zip((scaled, rstd), w.outs, strict=False):
        w.pen.add("Identity", [value], [out])


def _lrn(w: Writing) -> None:
    w.add("LRN", [w.operand(0)], out=True, size=w["size"], alpha=w["alpha"], beta=w["beta"], bias=w["k"])


FORMS: dict[str, Form] = {
    "batch_norm": _batch,
    "group_norm": _group,
    "instance_norm": _instance,
    "layer_norm": _layer,
    "local_response_norm": _lrn,
    "rms_norm": _rms,
}
