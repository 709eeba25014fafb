"""Exporters of resizing, quantization, recurrent layers, Fourier transforms, attention and col2im."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....types import DType
from .graph_builder import Exporter, NodeExport, done, full_padding

__all__ = ["EXPORTERS"]


# ── resizing ──


def _resize(e: NodeExport) -> None:
    """Write scales if the node has them (they enter the coordinates), else sizes."""
    scales, roi = list(e["scales"]), list(e["roi"])
    by_scale = bool(scales)
    if by_scale and all(isinstance(d, int) for d in (*e.spec().shape, *e["size"])):
        exact = [int(np.floor(d * s)) for d, s in zip(e.spec().shape, scales, strict=True)]
        if exact != list(e["size"]):
            raise e.no("sizes that differ from the dims times the scales")
    operands = [
        e.operand(0),
        e.constant(np.array(roi), e.spec().dtype) if roi else None,
        e.constant(np.array(scales, np.float32)) if by_scale else None,
        None if by_scale else e.builder.dims(list(e["size"])),
    ]
    if e.opset < 13 and not roi:
        operands[1] = e.constant(np.zeros(0, np.float32))
        operands[2] = operands[2] or e.constant(np.zeros(0, np.float32))
    e.add(
        "Resize",
        operands,
        out=True,
        mode=e["mode"],
        coordinate_transformation_mode=e["coordinates"],
        nearest_mode=e["nearest"] if e["mode"] == "nearest" else None,
        cubic_coeff_a=e["cubic_a"] if e["mode"] == "cubic" else None,
        exclude_outside=int(e["exclude_outside"]) or None,
        extrapolation_value=e["extrapolation_value"] or None,
        antialias=int(e["antialias"]) or None,
    )


_GRID = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}


def _grid_sample(e: NodeExport) -> None:
    mode = e["mode"] if e.opset >= 20 else _GRID[e["mode"]]
    flags = {"padding_mode": e["padding_mode"], "align_corners": int(e["align_corners"])}
    e.add("GridSample", e.operands(), out=True, mode=mode, **flags)


def _affine_grid(e: NodeExport) -> None:
    size = e.builder.dims(list(e["size"]))
    e.add("AffineGrid", [e.operand(0), size], out=True, align_corners=int(e["align_corners"]))


# ── quantization ──


def _quantize(e: NodeExport) -> None:
    zero = e.opt(2)
    dtype = e["dtype"]
    if zero is None and dtype is not DType.UINT8 and e.opset < 21:
        zero = e.add("Expand", [e.constant(0, dtype), e.builder.dims(list(e.spec(1).shape))])
    e.add(
        "QuantizeLinear",
        [e.operand(0), e.operand(1), zero],
        out=True,
        axis=e["axis"] if e.spec(1).rank else None,
        block_size=e["block_size"] or None,
        saturate=None if e["saturate"] else 0,
        output_dtype=e.builder.numbers[dtype] if zero is None and e.opset >= 21 else None,
        precision=None if e["precision"] is None else e.builder.numbers[e["precision"]],
    )


def _dequantize(e: NodeExport) -> None:
    dtype = e["dtype"]
    e.add(
        "DequantizeLinear",
        e.operands(),
        out=True,
        axis=e["axis"] if e.spec(1).rank else None,
        block_size=e["block_size"] or None,
        output_dtype=None if dtype in (None, e.spec(1).dtype) else e.builder.numbers[dtype],
    )


# ── recurrent layers, transforms, attention, columns ──


def _recurrent(op: str, flag: str = "") -> Exporter:
    def export(e: NodeExport) -> None:
        attrs: dict[str, Any] = {
            "hidden_size": e["hidden_size"],
            "direction": e["direction"],
            "activations": list(e["activations"]) or None,
            "activation_alpha": list(e["alpha"]) or None,
            "activation_beta": list(e["beta"]) or None,
            "clip": e["clip"],
            "layout": 1 if e["batch_first"] else None,
        }
        if flag:
            attrs[flag] = int(e[flag])
        e.add(op, e.operands(), out=True, **attrs)

    return export


def _dft(e: NodeExport) -> None:
    length = None if e["length"] is None else e.add("Squeeze", [e.builder.dims([e["length"]])])
    flags = {"inverse": int(e["inverse"]), "onesided": int(e["onesided"])}
    # OpenVINO 2026.4 keeps the last dim of real signals in front of the two parts of a one-sided result.
    reshaped = e["onesided"] and not e["inverse"] and e.spec(0).shape[-1] == 1
    if e.opset >= 20:
        operands = [e.operand(0), length, e.constant(e["dim"], DType.INT64)]
        y = e.add("DFT", operands, out=not reshaped, **flags)
    else:
        y = e.add("DFT", [e.operand(0), length], out=not reshaped, axis=e["dim"], **flags)
    if reshaped:
        e.add("Reshape", [y, e.builder.dims(list(e.node.spec.shape))], out=True)


def _stft(e: NodeExport) -> None:
    step, length = (e.constant(e[k], DType.INT64) for k in ("frame_step", "frame_length"))
    e.add("STFT", [e.operand(0), step, e.opt(1), length], out=True, onesided=int(e["onesided"]))


def _attention(e: NodeExport) -> None:
    """Write Attention, which opset 23 introduced."""
    offset = e["causal_offset"]
    if e["causal"] and offset != 0:
        _attention_after(e)
        return
    if e.opset < 23:
        raise e.no("attention below opset 23")
    e.add(
        "Attention",
        [e.operand(0), e.operand(1), e.operand(2), _mask_of_every_row(e)],
        out=True,
        is_causal=int(e["causal"]) or None,
        scale=e["scale"],
        softcap=e["softcap"] or None,
    )


def _mask_of_every_row(e: NodeExport) -> str | None:
    """Return the mask; one row for all queries and one number for all keys are expanded, which ONNX Runtime requires."""
    mask = e.opt(3)
    if mask is None:
        return None
    shape, each = e.spec(3).shape, (e.spec(0).shape[-2], e.spec(1).shape[-2])
    return mask if shape[-2:] == each else e.add("Expand", [mask, e.builder.dims([*shape[:-2], *each])])


def _attention_after(e: NodeExport) -> None:
    """Write a causal offset: the cached keys are split off as the past, which ONNX's op puts before the new ones."""
    if e.opset < 23:
        raise e.no("attention below opset 23")
    at, end = e.builder.dims([e["causal_offset"]]), e.ints([2**63 - 1])
    past, new = [], []
    for i in (1, 2):
        past.append(e.add("Slice", [e.operand(i), e.ints([0]), at, e.ints([2])]))
        new.append(e.add("Slice", [e.operand(i), at, end, e.ints([2])]))
    outputs = [*e.outs, e.builder.fresh(f"{e.out}.key"), e.builder.fresh(f"{e.out}.value")]
    attrs = {"is_causal": 1, "scale": e["scale"], "softcap": e["softcap"] or None}
    e.builder.add("Attention", [e.operand(0), *new, e.opt(3), *past], outputs, **attrs)


def _rope(e: NodeExport) -> None:
    if e.opset < 23:
        raise e.no("rotary embedding below opset 23")
    x, cos, sin, positions = e.operand(0), e.operand(1), e.operand(2), e.opt(3)
    if positions is None and e.spec(1).rank == 2:  # one table for the whole batch
        batch, length = e.spec().shape[0], e.spec().shape[-2]
        rows = [batch, length, e.spec(1).shape[1]]
        cos, sin = (e.add("Expand", [v, e.builder.dims(rows)]) for v in (cos, sin))
    flags = {"interleaved": int(e["interleaved"]), "rotary_embedding_dim": e["size"] or None}
    e.add("RotaryEmbedding", [x, cos, sin, positions], out=True, **flags)


def _col2im(e: NodeExport) -> None:
    e.add(
        "Col2Im",
        [e.operand(0), e.builder.dims(list(e["output_size"])), e.ints(list(e["kernel_size"]))],
        out=True,
        strides=list(e["stride"]),
        dilations=list(e["dilation"]),
        pads=full_padding(e["padding"], len(e["kernel_size"])),
    )


EXPORTERS: dict[str, Exporter] = {
    "affine_grid": _affine_grid,
    "attention": _attention,
    "col2im": _col2im,
    "dequantize_linear": _dequantize,
    "dft": _dft,
    "dynamic_quantize_linear": lambda e: done(e.add("DynamicQuantizeLinear", [e.operand(0)], out=True)),
    "grid_sample": _grid_sample,
    "gru": _recurrent("GRU", "linear_before_reset"),
    "lstm": _recurrent("LSTM", "input_forget"),
    "quantize_linear": _quantize,
    "resize": _resize,
    "rnn": _recurrent("RNN"),
    "rope": _rope,
    "stft": _stft,
}
