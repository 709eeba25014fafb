"""Layers in ONNX: pools, normalisations, resizing, quantisation, recurrent layers, Fourier transforms, attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import IrError
from ...types import DType
from .pen import Form, Writing

__all__ = ["FORMS"]


def _no(w: Writing, why: str) -> IrError:
    return IrError(f"{w.node.op} %{w.node.name}", f"has no ONNX form: {why}")


def _done(_: object) -> None:
    return None


# ── pools ──


def _window(w: Writing) -> dict[str, Any]:
    pads, rank = list(w["padding"]), len(w["kernel_size"])
    dilations = list(w["dilation"])
    return {
        "kernel_shape": list(w["kernel_size"]),
        "strides": list(w["stride"]),
        "pads": pads if len(pads) == 2 * rank else pads * 2,
        "dilations": dilations if any(d != 1 for d in dilations) else None,
        "ceil_mode": int(w["ceil_mode"]) or None,
    }


def _batched(w: Writing, rank: int) -> None:
    if w.spec().rank != rank + 2:
        raise _no(w, "a pool without a batch dim")


def _average(w: Writing) -> None:
    _batched(w, len(w["kernel_size"]))
    if w["divisor"] is not None:
        raise _no(w, "a divisor other than the window's size")
    w.add(
        "AveragePool", [w.operand(0)], out=True, **_window(w), count_include_pad=int(w["count_include_pad"])
    )


def _max(w: Writing) -> None:
    _batched(w, len(w["kernel_size"]))
    if len(w.outs) > 1 and w["indices_over"] == "plane":
        raise _no(w, "indices within a plane")
    order = 1 if w["indices_over"] == "tensor_column_major" else None
    w.add("MaxPool", [w.operand(0)], out=True, **_window(w), storage_order=order)


def _lp(w: Writing) -> None:
    if not float(w["p"]).is_integer():
        raise _no(w, "a fractional p")
    w.add("LpPool", [w.operand(0)], out=True, **_window(w), p=int(w["p"]))


def _adaptive(op: str, whole: str) -> Form:
    """As a pool where the output divides the input evenly."""

    def form(w: Writing) -> None:
        size = list(w["output_size"])
        space = w.spec().shape[-len(size) :]
        _batched(w, len(size))
        if all(d == 1 for d in size) and len(w.outs) == 1:
            w.add(whole, [w.operand(0)], out=True)
            return
        if len(w.outs) > 1 or not all(
            isinstance(d, int) and isinstance(o, int) and o and d % o == 0
            for d, o in zip(space, size, strict=True)
        ):
            raise _no(w, "windows of unequal size")
        kernel = [int(d) // int(o) for d, o in zip(space, size, strict=True)]  # type: ignore[arg-type]
        w.add(op, [w.operand(0)], out=True, kernel_shape=kernel, strides=kernel)

    return form


def _unpool(w: Writing) -> None:
    if w["indices_over"] != "tensor":
        raise _no(w, "indices within a plane")
    size = w.pen.dims([*w.spec().shape[: -len(w["output_size"])], *w["output_size"]])
    rank = len(w["output_size"])
    w.add("MaxUnpool", [w.operand(0), w.operand(1), size], out=True, kernel_shape=[1] * rank)


def _roi_align(w: Writing) -> None:
    height, width = w["output_size"]
    mode = "half_pixel" if w["aligned"] else "output_half_pixel"
    if w.opset < 16 and w["aligned"]:
        raise _no(w, "opsets below 16 do not shift regions")
    w.add(
        "RoiAlign",
        [w.operand(0), w.operand(1), w.operand(2, DType.INT64)],
        out=True,
        output_height=height,
        output_width=width,
        mode=w["mode"],
        sampling_ratio=w["sampling_ratio"],
        spatial_scale=w["spatial_scale"],
        coordinate_transformation_mode=mode if w.opset >= 16 else None,
    )


def _max_roi(w: Writing) -> None:
    w.add(
        "MaxRoiPool",
        w.operands(),
        out=True,
        pooled_shape=list(w["output_size"]),
        spatial_scale=w["spatial_scale"],
    )


# ── normalisations ──


def _per_channel(w: Writing, position: int, value: float) -> str:
    """The scale or bias, or the one that changes nothing."""
    if w.has(position):
        return w.operand(position)
    channels = w.spec().shape[1]
    if not isinstance(channels, int):
        raise _no(w, "symbolic channels without a scale")
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
        raise _no(w, "statistics of a group norm")
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
        raise _no(w, "symbolic dims without a scale")
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
        raise _no(w, "statistics below opset 17")
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


# ── resizing ──


def _resize(w: Writing) -> None:
    """Scales where the node has them (they enter the coordinates), else sizes."""
    scales, roi = list(w["scales"]), list(w["roi"])
    by_scale = bool(scales)
    if by_scale and all(isinstance(d, int) for d in (*w.spec().shape, *w["size"])):
        exact = [int(np.floor(d * s)) for d, s in zip(w.spec().shape, scales, strict=True)]
        if exact != list(w["size"]):
            raise _no(w, "sizes that are not the dims times the scales")
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


# ── recurrent layers, transforms, attention ──


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
        raise _no(w, "attention below opset 23")
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
        raise _no(w, "attention below opset 23")
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
        raise _no(w, "rotary embedding below opset 23")
    x, cos, sin, positions = w.operand(0), w.operand(1), w.operand(2), w.opt(3)
    if positions is None and w.spec(1).rank == 2:  # one table for all of the batch
        batch, length = w.spec().shape[0], w.spec().shape[-2]
        rows = [batch, length, w.spec(1).shape[1]]
        cos, sin = (w.add("Expand", [v, w.pen.dims(rows)]) for v in (cos, sin))
    flags = {"interleaved": int(w["interleaved"]), "rotary_embedding_dim": w["size"] or None}
    w.add("RotaryEmbedding", [x, cos, sin, positions], out=True, **flags)


def _col2im(w: Writing) -> None:
    pads, rank = list(w["padding"]), len(w["kernel_size"])
    w.add(
        "Col2Im",
        [w.operand(0), w.pen.dims(list(w["output_size"])), w.ints(list(w["kernel_size"]))],
        out=True,
        strides=list(w["stride"]),
        dilations=list(w["dilation"]),
        pads=pads if len(pads) == 2 * rank else pads * 2,
    )


FORMS: dict[str, Form] = {
    "adaptive_avg_pool": _adaptive("AveragePool", "GlobalAveragePool"),
    "adaptive_max_pool": _adaptive("MaxPool", "GlobalMaxPool"),
    "affine_grid": _affine_grid,
    "attention": _attention,
    "avg_pool": _average,
    "batch_norm": _batch,
    "col2im": _col2im,
    "dequantize_linear": _dequantize,
    "dft": _dft,
    "dynamic_quantize_linear": lambda w: _done(w.add("DynamicQuantizeLinear", [w.operand(0)], out=True)),
    "grid_sample": _grid_sample,
    "group_norm": _group,
    "gru": _recurrent("GRU", "linear_before_reset"),
    "instance_norm": _instance,
    "layer_norm": _layer,
    "local_response_norm": _lrn,
    "lp_pool": _lp,
    "lstm": _recurrent("LSTM", "input_forget"),
    "max_pool": _max,
    "max_roi_pool": _max_roi,
    "max_unpool": _unpool,
    "quantize_linear": _quantize,
    "resize": _resize,
    "rms_norm": _rms,
    "rnn": _recurrent("RNN"),
    "roi_align": _roi_align,
    "rope": _rope,
    "stft": _stft,
}
