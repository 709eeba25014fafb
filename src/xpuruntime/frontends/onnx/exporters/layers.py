"""Layers in ONNX: resizing, quantisation, recurrent layers, Fourier transforms, attention, columns to images."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....types import DType
from .graph_builder import Form, Writing, both_ends, done

__all__ = ["FORMS"]


# ── resizing ──


def _resize(w: Writing) -> None:
    """Scales where the node has them (they enter the coordinates), else sizes."""
    scales, roi = list(w["scales"]), list(w["roi"])
    by_scale = bool(scales)
    if by_scale and all(isinstance(d, int) for d in (*w.spec().shape, *w["size"])):
        exact = [int(np.floor(d * s)) for d, s in zip(w.spec().shape, scales, strict=True)]
        if exact != list(w["size"]):
            raise w.no("sizes that are not the dims times the scales")
    operands = [
        w.operand(0),
        w.constant(np.array(roi), w.spec().dtype) if roi else None,
        w.constant(np.array(scales, np.float32)) if by_scale else None,
        None if by_scale else w.pen.dims(list(w["size"])),
    ]
    if w.opset < 13 and not roi:
        operands[1] = w.constant(np.zeros(0, np.float32))
        operands[2] = operands[2] or w.constant(np.zeros(0, np.float32))
    w.add(
        "Resize",
        operands,
        out=True,
        mode=w["mode"],
        coordinate_transformation_mode=w["coordinates"],
        nearest_mode=w["nearest"] if w["mode"] == "nearest" else None,
        cubic_coeff_a=w["cubic_a"] if w["mode"] == "cubic" else None,
        exclude_outside=int(w["exclude_outside"]) or None,
        extrapolation_value=w["extrapolation_value"] or None,
        antialias=int(w["antialias"]) or None,
    )


_GRID = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}


def _grid_sample(w: Writing) -> None:
    mode = w["mode"] if w.opset >= 20 else _GRID[w["mode"]]
    flags = {"padding_mode": w["padding_mode"], "align_corners": int(w["align_corners"])}
    w.add("GridSample", w.operands(), out=True, mode=mode, **flags)


def _affine_grid(w: Writing) -> None:
    size = w.pen.dims(list(w["size"]))
    w.add("AffineGrid", [w.operand(0), size], out=True, align_corners=int(w["align_corners"]))


# ── quantisation ──


def _quantize(w: Writing) -> None:
    zero = w.opt(2)
    dtype = w["dtype"]
    if zero is None and dtype is not DType.UINT8 and w.opset < 21:
        zero = w.add("Expand", [w.constant(0, dtype), w.pen.dims(list(w.spec(1).shape))])
    w.add(
        "QuantizeLinear",
        [w.operand(0), w.operand(1), zero],
        out=True,
        axis=w["axis"] if w.spec(1).rank else None,
        block_size=w["block_size"] or None,
        saturate=None if w["saturate"] else 0,
        output_dtype=w.pen.numbers[dtype] if zero is None and w.opset >= 21 else None,
        precision=None if w["precision"] is None else w.pen.numbers[w["precision"]],
    )


def _dequantize(w: Writing) -> None:
    dtype = w["dtype"]
    w.add(
        "DequantizeLinear",
        w.operands(),
        out=True,
        axis=w["axis"] if w.spec(1).rank else None,
        block_size=w["block_size"] or None,
        output_dtype=None if dtype in (None, w.spec(1).dtype) else w.pen.numbers[dtype],
    )


# ── recurrent layers, transforms, attention, columns ──


def _recurrent(op: str, flag: str = "") -> Form:
    def form(w: Writing) -> None:
        attrs: dict[str, Any] = {
            "hidden_size": w["hidden_size"],
            "direction": w["direction"],
            "activations": list(w["activations"]) or None,
            "activation_alpha": list(w["alpha"]) or None,
            "activation_beta": list(w["beta"]) or None,
            "clip": w["clip"],
            "layout": 1 if w["batch_first"] else None,
        }
        if flag:
            attrs[flag] = int(w[flag])
        w.add(op, w.operands(), out=True, **attrs)

    return form


def _dft(w: Writing) -> None:
    length = None if w["length"] is None else w.add("Squeeze", [w.pen.dims([w["length"]])])
    flags = {"inverse": int(w["inverse"]), "onesided": int(w["onesided"])}
    if w.opset >= 20:
        w.add("DFT", [w.operand(0), length, w.constant(w["dim"], DType.INT64)], out=True, **flags)
    else:
        w.add("DFT", [w.operand(0), length], out=True, axis=w["dim"], **flags)


def _stft(w: Writing) -> None:
    step, length = (w.constant(w[k], DType.INT64) for k in ("frame_step", "frame_length"))
    w.add("STFT", [w.operand(0), step, w.opt(1), length], out=True, onesided=int(w["onesided"]))


def _attention(w: Writing) -> None:
    """From opset 23 one op; before, its definition for heads that are not shared."""
    offset = w["causal_offset"]
    if w["causal"] and offset != 0:
        _attention_after(w)
        return
    if w.opset < 23:
        raise w.no("attention below opset 23")
    w.add(
        "Attention",
        [w.operand(0), w.operand(1), w.operand(2), w.opt(3)],
        out=True,
        is_causal=int(w["causal"]) or None,
        scale=w["scale"],
        softcap=w["softcap"] or None,
    )


def _attention_after(w: Writing) -> None:
    """Keys that were there before: split off as the past that ONNX's op puts before new ones."""
    if w.opset < 23:
        raise w.no("attention below opset 23")
    at, end = w.pen.dims([w["causal_offset"]]), w.ints([2**63 - 1])
    past, new = [], []
    for i in (1, 2):
        past.append(w.add("Slice", [w.operand(i), w.ints([0]), at, w.ints([2])]))
        new.append(w.add("Slice", [w.operand(i), at, end, w.ints([2])]))
    made = [*w.outs, w.pen.fresh(f"{w.out}.key"), w.pen.fresh(f"{w.out}.value")]
    attrs = {"is_causal": 1, "scale": w["scale"], "softcap": w["softcap"] or None}
    w.pen.add("Attention", [w.operand(0), *new, w.opt(3), *past], made, **attrs)


def _rope(w: Writing) -> None:
    if w.opset < 23:
        raise w.no("rotary embedding below opset 23")
    x, cos, sin, positions = w.operand(0), w.operand(1), w.operand(2), w.opt(3)
    if positions is None and w.spec(1).rank == 2:  # one table for all of the batch
        batch, length = w.spec().shape[0], w.spec().shape[-2]
        rows = [batch, length, w.spec(1).shape[1]]
        cos, sin = (w.add("Expand", [v, w.pen.dims(rows)]) for v in (cos, sin))
    flags = {"interleaved": int(w["interleaved"]), "rotary_embedding_dim": w["size"] or None}
    w.add("RotaryEmbedding", [x, cos, sin, positions], out=True, **flags)


def _col2im(w: Writing) -> None:
    w.add(
        "Col2Im",
        [w.operand(0), w.pen.dims(list(w["output_size"])), w.ints(list(w["kernel_size"]))],
        out=True,
        strides=list(w["stride"]),
        dilations=list(w["dilation"]),
        pads=both_ends(w["padding"], len(w["kernel_size"])),
    )


FORMS: dict[str, Form] = {
    "affine_grid": _affine_grid,
    "attention": _attention,
    "col2im": _col2im,
    "dequantize_linear": _dequantize,
    "dft": _dft,
    "dynamic_quantize_linear": lambda w: done(w.add("DynamicQuantizeLinear", [w.operand(0)], out=True)),
    "grid_sample": _grid_sample,
    "gru": _recurrent("GRU", "linear_before_reset"),
    "lstm": _recurrent("LSTM", "input_forget"),
    "quantize_linear": _quantize,
    "resize": _resize,
    "rnn": _recurrent("RNN"),
    "rope": _rope,
    "stft": _stft,
}
