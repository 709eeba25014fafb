"""Exporters of normalizations: one op if the opset has it, else its definition."""

from __future__ import annotations

import numpy as np

from ....types import DType
from .graph_builder import Exporter, NodeExport

__all__ = ["EXPORTERS"]


def _per_channel(e: NodeExport, position: int, value: float) -> str:
    """Return the scale or bias, or a neutral constant if it is absent."""
    if e.has(position):
        return e.operand(position)
    channels = e.spec().shape[1]
    if not isinstance(channels, int):
        raise e.no("a symbolic number of channels without a scale")
    return e.constant(np.full(channels, value), e.spec().dtype)


def _batch(e: NodeExport) -> None:
    operands = [e.operand(0), _per_channel(e, 1, 1), _per_channel(e, 2, 0), e.operand(3), e.operand(4)]
    e.add("BatchNormalization", operands, out=True, epsilon=e["eps"])


def _instance(e: NodeExport) -> None:
    operands = [e.operand(0), _per_channel(e, 1, 1), _per_channel(e, 2, 0)]
    e.add("InstanceNormalization", operands, out=True, epsilon=e["eps"])


def _group(e: NodeExport) -> None:
    """Write GroupNormalization from opset 21 on; before, InstanceNormalization over groups and an affine map."""
    if len(e.outs) > 1:
        raise e.no("the statistics of a group norm as outputs")
    scale, bias = _per_channel(e, 1, 1), _per_channel(e, 2, 0)
    if e.opset >= 21:
        e.add(
            "GroupNormalization",
            [e.operand(0), scale, bias],
            out=True,
            num_groups=e["groups"],
            epsilon=e["eps"],
        )
        return
    groups, spec = e["groups"], e.spec()
    flat = e.add("Reshape", [e.operand(0), e.ints([0, groups, -1])])
    ones, zeros = (e.constant(np.full(groups, v), spec.dtype) for v in (1, 0))
    normal = e.add("InstanceNormalization", [flat, ones, zeros], epsilon=e["eps"])
    back = e.add("Reshape", [normal, e.add("Shape", [e.operand(0)])])
    channel_shape = e.ints([-1] + [1] * (spec.rank - 2))
    scaled = e.add("Mul", [back, e.add("Reshape", [scale, channel_shape])])
    e.add("Add", [scaled, e.add("Reshape", [bias, channel_shape])], out=True)


def _layer(e: NodeExport) -> None:
    rank, last = e.spec().rank, len(e["normalized_shape"])
    x, dtype = e.operand(0), e.spec().dtype
    shape = e["normalized_shape"]
    if e.has(1):
        scale = e.operand(1)
    elif all(isinstance(d, int) for d in shape):
        scale = e.constant(np.ones([int(d) for d in shape]), dtype)
    else:
        raise e.no("symbolic dims without a scale")
    if e.opset >= 17:
        outs = e.outs
        if len(outs) > 1 and dtype is not DType.FLOAT32:  # ONNX returns statistics in float32
            inner = [outs[0], *(e.builder.fresh(f"{o}.f32") for o in outs[1:])]
            e.builder.add("LayerNormalization", [x, scale, e.opt(2)], inner, axis=-last, epsilon=e["eps"])
            for value, out in zip(inner[1:], outs[1:], strict=True):
                e.builder.add("Cast", [value], [out], to=e.builder.numbers[dtype])
            return
        e.add("LayerNormalization", [x, scale, e.opt(2)], out=True, axis=-last, epsilon=e["eps"])
        return
    if len(e.outs) > 1:
        raise e.no("the statistics of a layer norm as outputs below opset 17")
    axes = list(range(rank - last, rank))
    away = e.add("Sub", [x, e.add("ReduceMean", [x], axes=axes, keepdims=1)])
    square = e.add("ReduceMean", [e.add("Mul", [away, away])], axes=axes, keepdims=1)
    length = e.add("Sqrt", [e.add("Add", [square, e.constant(e["eps"], dtype)])])
    scaled = e.add("Mul", [e.add("Div", [away, length]), scale])
    e.add("Add" if e.has(2) else "Identity", [scaled, *([e.operand(2)] if e.has(2) else [])], out=True)


def _rms(e: NodeExport) -> None:
    """Write RMSNormalization from opset 23 on; before, its definition."""
    last, dtype, shape = len(e["normalized_shape"]), e.spec().dtype, e["normalized_shape"]
    x = e.operand(0)
    if e.opset >= 23 and len(e.outs) == 1 and (e.has(1) or all(isinstance(d, int) for d in shape)):
        scale = e.operand(1) if e.has(1) else e.constant(np.ones([int(d) for d in shape]), dtype)
        e.add("RMSNormalization", [x, scale], out=True, axis=-last, epsilon=e["eps"])
        return
    axes = list(range(e.spec().rank - last, e.spec().rank))
    square = e.add("Mul", [x, x])
    mean = (
        e.add("ReduceMean", [square, e.ints(axes)])
        if e.opset >= 18
        else e.add("ReduceMean", [square], axes=axes)
    )
    rstd = e.add("Reciprocal", [e.add("Sqrt", [e.add("Add", [mean, e.constant(e["eps"], dtype)])])])
    scaled = e.add("Mul", [x, rstd])
    if e.has(1):
        scaled = e.add("Mul", [scaled, e.operand(1)])
    for value, out in zip((scaled, rstd), e.outs, strict=False):
        e.builder.add("Identity", [value], [out])


def _lrn(e: NodeExport) -> None:
    e.add("LRN", [e.operand(0)], out=True, size=e["size"], alpha=e["alpha"], beta=e["beta"], bias=e["k"])


EXPORTERS: dict[str, Exporter] = {
    "batch_norm": _batch,
    "group_norm": _group,
    "instance_norm": _instance,
    "layer_norm": _layer,
    "local_response_norm": _lrn,
    "rms_norm": _rms,
}
