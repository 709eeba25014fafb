"""Exporters of data movement, selection and search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....types import Dim, DimLike, DType
from .graph_builder import Exporter, NodeExport, done, slice_end

__all__ = ["EXPORTERS"]


def _view(e: NodeExport) -> None:
    size = list(e["size"])
    zero = any(d == 0 for d in size)
    if zero and e.opset < 14:
        raise e.no("opsets below 14 cannot reshape to a dim of size 0")
    if not zero:
        size = _shorthand(size, e.spec().shape)
    e.add("Reshape", [e.operand(0), e.builder.dims(size)], out=True, allowzero=1 if zero else None)


def _shorthand(size: list[DimLike], have: Sequence[DimLike]) -> list[DimLike]:
    """Return the size with symbolic dims that need not be computed: 0 keeps the operand's, one -1 is inferred."""
    short = [0 if isinstance(d, Dim) and i < len(have) and have[i] == d else d for i, d in enumerate(size)]
    left = [i for i, d in enumerate(short) if isinstance(d, Dim)]
    if len(left) == 1:
        short[left[0]] = -1
    return short


def _axes(op: str) -> Exporter:
    """Return the exporter of Squeeze or Unsqueeze; axes are an input from opset 13 on."""

    def export(e: NodeExport) -> None:
        axes = list(e["dims"])
        if not axes:
            e.add("Identity", [e.operand(0)], out=True)
        elif e.opset >= 13:
            e.add(op, [e.operand(0), e.ints(axes)], out=True)
        else:
            e.add(op, [e.operand(0)], out=True, axes=axes)

    return export


def _split(e: NodeExport) -> None:
    sizes = list(e["sizes"])
    if e.opset >= 13:
        e.add("Split", [e.operand(0), e.builder.dims(sizes)], out=True, axis=e["dim"])
    else:
        e.add("Split", [e.operand(0)], out=True, axis=e["dim"], split=sizes)


def _slice(e: NodeExport) -> None:
    start, end = e["start"], slice_end(e["end"])
    operands = [
        e.operand(0),
        e.builder.dims([start]),
        e.builder.dims([end]),
        e.ints([e["dim"]]),
        e.ints([e["step"]]),
    ]
    e.add("Slice", operands, out=True)


def _select(e: NodeExport) -> None:
    index = e["index"]
    at = (
        e.add("Squeeze", [e.builder.dims([index])])
        if isinstance(index, Dim)
        else e.constant(index, DType.INT64)
    )
    e.add("Gather", [e.operand(0), at], out=True, axis=e["dim"])


def _flip(e: NodeExport) -> None:
    axes = list(e["dims"])
    n = len(axes)
    operands = [e.operand(0), e.ints([-1] * n), e.ints([-(2**63)] * n), e.ints(axes), e.ints([-1] * n)]
    e.add("Slice", operands, out=True)


def _roll(e: NodeExport) -> None:
    """Write roll as a Concat of the tail and the head of each axis."""
    value = e.operand(0)
    for axis, shift in zip(e["dims"], e["shifts"], strict=True):
        size = e.spec().shape[axis]
        if not isinstance(size, int):
            raise e.no("rolling a symbolic dim")
        at = e.ints([size - shift % max(size, 1)])
        tail = e.add("Slice", [value, at, e.ints([2**63 - 1]), e.ints([axis])])
        head = e.add("Slice", [value, e.ints([0]), at, e.ints([axis])])
        value = e.add("Concat", [tail, head], axis=axis)
    e.add("Identity", [value], out=True)


def _repeat(e: NodeExport) -> None:
    value, repeats = e.operand(0), list(e["repeats"])
    new_dims = len(repeats) - e.spec().rank
    if new_dims:
        value = e.add("Reshape", [value, e.builder.dims([*[1] * new_dims, *e.spec().shape])])
    e.add("Tile", [value, e.builder.dims(repeats)], out=True)


_PAD = {"constant": "constant", "replicate": "edge", "reflect": "reflect", "wrap": "wrap"}


def _pad(e: NodeExport) -> None:
    mode = _PAD[e["mode"]]
    value = e.constant(e["value"], e.spec().dtype) if mode == "constant" else None
    e.add("Pad", [e.operand(0), e.builder.dims(list(e["pads"])), value], out=True, mode=mode)


def _triangle(upper: int) -> Exporter:
    def export(e: NodeExport) -> None:
        e.add("Trilu", [e.operand(0), e.constant(e["diagonal"], DType.INT64)], out=True, upper=upper)

    return export


def _space_to_depth(e: NodeExport) -> None:
    """Write SpaceToDepth for mode DCR; for PyTorch's order (CRD) a transposition of the blocks."""
    if e["mode"] == "DCR":
        e.add("SpaceToDepth", [e.operand(0)], out=True, blocksize=e["block_size"])
        return
    shape, out, block = e.spec().shape, e.node.spec.shape, e["block_size"]
    if len(shape) != 4:
        raise e.no("pixel_unshuffle without a batch dim")
    split = [shape[0], shape[1], out[2], block, out[3], block]
    blocks = e.add("Reshape", [e.operand(0), e.builder.dims(split)])
    blocks = e.add("Transpose", [blocks], perm=[0, 1, 3, 5, 2, 4])
    e.add("Reshape", [blocks, e.builder.dims(list(out))], out=True)


_REDUCE = {"none": None, "add": "add", "mul": "mul", "amax": "max", "amin": "min"}


def _reduction(e: NodeExport, word: str) -> str | None:
    if word not in _REDUCE:
        raise e.no(f"scattering with {word}")
    reduction = _REDUCE[word]
    first = 18 if reduction in ("max", "min") else 16
    if reduction and e.opset < first:
        raise e.no(f"opsets below {first} cannot accumulate by {reduction}")
    return reduction


def _scatter(e: NodeExport) -> None:
    mean = e["reduce"] == "mean"
    reduction = _reduction(e, "add" if mean else e["reduce"])
    src = e.operand(2, e.spec().dtype)
    shape = list(e.spec(1).shape)
    if not shape or not e.spec(0).rank:
        raise e.no("scattering to or by a scalar")
    if not isinstance(e.node.inputs[2], str):
        src = e.add("Expand", [src, e.builder.dims(shape)])
    elif list(e.spec(2).shape) != shape:  # PyTorch reads the part that the indices cover
        src = e.add("Slice", [src, e.ints([0] * len(shape)), e.builder.dims(shape)])
    x, index = e.operand(0), e.operand(1)
    if reduction and not e["include_self"]:
        x = _without_targets(e, x, index, shape)
    if mean:
        _scatter_mean(e, x, index, src)
    elif reduction in ("add", "mul") and e.spec().dtype.is_float and e.spec().dtype.bits <= 16:
        # As PyTorch does; ONNX Runtime has no kernel for 16 bits.
        operands = [e.cast(x, DType.FLOAT32), index, e.cast(src, DType.FLOAT32)]
        written = e.add("ScatterElements", operands, axis=e["dim"], reduction=reduction)
        e.to(written, e.spec().dtype, DType.FLOAT32)
    else:
        e.add("ScatterElements", [x, index, src], out=True, axis=e["dim"], reduction=reduction)


def _without_targets(e: NodeExport, x: str, index: str, shape: list[DimLike]) -> str:
    """Add ``x`` with the neutral element of the reduction where it is written (include_self=False)."""
    dtype, word = e.spec().dtype, e["reduce"]
    if dtype is DType.BOOL:
        raise e.no("scattering booleans with include_self=False")
    limits = (-math.inf, math.inf) if dtype.is_float else _limits(dtype)
    neutral = {"mul": 1, "amax": limits[0], "amin": limits[1]}.get(word, 0)
    fill = e.add("Expand", [e.constant(np.array(neutral, dtype.numpy)), e.builder.dims(shape)])
    return e.add("ScatterElements", [x, index, fill], axis=e["dim"])


def _limits(dtype: DType) -> tuple[int, int]:
    limits = np.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)


def _scatter_mean(e: NodeExport, x: str, index: str, src: str) -> None:
    """Write the sum of each target's elements by their number, in float32 for 16-bit floats as in PyTorch."""
    dtype = e.spec().dtype
    if not dtype.is_float:
        raise e.no("scattering integers with mean")
    wide = dtype if dtype.bits > 16 else DType.FLOAT32
    x, src = (v if wide is dtype else e.cast(v, wide) for v in (x, src))
    add = {"axis": e["dim"], "reduction": "add"}
    ones = e.add("Expand", [e.constant(1, wide), e.add("Shape", [index])])
    first = e.constant(int(e["include_self"]), wide)
    count = e.add("Expand", [first, e.add("Shape", [x])])
    count = e.add("Max", [e.add("ScatterElements", [count, index, ones], **add), e.constant(1, wide)])
    total = e.add("ScatterElements", [x, index, src], **add)
    e.to(e.add("Div", [total, count]), dtype, wide)


def _scatter_nd(e: NodeExport) -> None:
    e.add(
        "ScatterND",
        [e.operand(0), e.operand(1, DType.INT64), e.operand(2)],
        out=True,
        reduction=_reduction(e, e["reduce"]),
    )


def _ranked(e: NodeExport, size: str, **flags: Any) -> None:
    """Write TopK. Booleans, which it does not take, are ranked as integers; a scalar is its own order."""
    if not e.spec().rank:
        for value, out in zip((e.operand(0), e.constant(0, DType.INT64)), e.outs, strict=True):
            e.builder.add("Identity", [value], [out])
        return
    if e.spec().dtype is not DType.BOOL:
        e.add("TopK", [e.operand(0), size], out=True, **flags)
        return
    values, indices = e.outs
    ranked = e.builder.fresh(values)
    e.builder.add("TopK", [e.operand(0, DType.INT32), size], [ranked, indices], **flags)
    # OpenVINO 2026.4 cannot read a Cast to bool of one of several outputs.
    e.builder.add("Greater", [ranked, e.constant(0, DType.INT32)], [values])


def _topk(e: NodeExport) -> None:
    flags = {"axis": e["dim"], "largest": int(e["largest"]), "sorted": int(e["sorted"])}
    _ranked(e, e.builder.dims([e["k"]]), **flags)


def _sort(e: NodeExport) -> None:
    size = e.builder.dims([e.spec().shape[e["dim"]]] if e.spec().rank else [1])
    _ranked(e, size, axis=e["dim"], largest=int(e["descending"]))


def _one_hot(e: NodeExport) -> None:
    operands = [e.operand(0), e.builder.dims([e["depth"]]), e.operand(1)]
    e.add("OneHot", operands, out=True, axis=e["dim"])


def _nonzero(e: NodeExport) -> None:
    e.add("Transpose", [e.add("NonZero", [e.operand(0)])], out=True, perm=[1, 0])


def _unique(e: NodeExport) -> None:
    e.add("Unique", [e.operand(0)], out=True, axis=e["dim"], sorted=int(e["sorted"]))


def _bincount(e: NodeExport) -> None:
    """Write bincount. A negative element becomes the size, which is out of range and reported."""
    if e.opset < 16:
        raise e.no("opsets below 16 cannot accumulate by add")
    dtype = e.node.spec.dtype
    x = e.operand(0, DType.INT64)
    least = e.add("Concat", [x, e.ints([e["minlength"] - 1])], axis=0)
    size = e.add("Add", [e.add("ReduceMax", [least], keepdims=1), e.ints([1])])
    zeros = e.add("Expand", [e.constant([0], dtype), size])
    index = e.add("Where", [e.add("Less", [x, e.ints([0])]), size, x])
    weights = e.add("Expand", [e.constant([1], dtype), e.builder.dims(list(e.spec().shape))])
    if e.opt(1) is not None:
        weights = e.operand(1, dtype)
    e.add("ScatterElements", [zeros, index, weights], out=True, axis=0, reduction="add")


def _repeat_interleave(e: NodeExport) -> None:
    """Write repeat_interleave as the number of elements that end at or before each place. A negative repeat becomes an index that is reported."""
    if e.opset < 16:
        raise e.no("opsets below 16 cannot accumulate by add")
    repeats, none = e.operand(0, DType.INT64), e.ints([0])
    padded = e.add("Concat", [repeats, none], axis=0)  # a vector may be empty
    ends = e.add("CumSum", [repeats, e.constant(0, DType.INT64)])
    total = e.add("ReduceSum", [e.add("Max", [padded, none]), none], keepdims=1)
    size = e.add("Add", [total, e.ints([1])])
    index = e.add("Where", [e.add("Less", [repeats, none]), size, ends])
    ones = e.add("Expand", [e.ints([1]), e.builder.dims(list(e.spec().shape))])
    zeros = e.add("Expand", [none, size])
    ended = e.add("ScatterElements", [zeros, index, ones], axis=0, reduction="add")
    counts = e.add("CumSum", [e.add("Slice", [ended, none, total, none]), e.constant(0, DType.INT64)])
    e.to(counts, e.node.spec.dtype, DType.INT64)


def _nms(e: NodeExport) -> None:
    box = int(e["center_point_box"]) or None
    e.add("NonMaxSuppression", e.operands(), out=True, center_point_box=box)


def _gather(e: NodeExport) -> None:
    if not e.spec(0).rank or not e.spec(1).rank:  # ONNX takes no scalar
        line = e.ints([-1])
        x, index = (e.add("Reshape", [e.operand(i), line]) for i in (0, 1))
        taken = e.add("GatherElements", [x, index], axis=0)
        e.add("Reshape", [taken, e.builder.dims(e.spec(1).shape)], out=True)
        return
    e.add("GatherElements", [e.operand(0), e.operand(1)], out=True, axis=e["dim"])


def _permute(e: NodeExport) -> None:
    if not e["dims"]:  # a list without elements has no type
        e.add("Identity", [e.operand(0)], out=True)
    else:
        e.add("Transpose", [e.operand(0)], out=True, perm=list(e["dims"]))


_FAR = 1 << 30
"""More than the size of a dim that is only known at run time."""


def _index_select(e: NodeExport) -> None:
    x, index, scalar = e.operand(0), e.operand(1), not e.spec(0).rank
    if scalar:  # ONNX takes none
        x = e.add("Reshape", [x, e.ints([1])])
    if not e["wrap"]:  # Gather wraps, so a negative index becomes one that it reports.
        size, dtype = 1 if scalar else e.spec(0).shape[e["dim"]], e.spec(1).dtype
        below = e.constant(size if isinstance(size, int) else _FAR, dtype)
        index = e.add(
            "Where", [e.add("Less", [index, e.constant(0, dtype)]), e.add("Sub", [index, below]), index]
        )
    if scalar:
        e.add("Reshape", [e.add("Gather", [x, index], axis=0), e.ints([])], out=True)
    else:
        e.add("Gather", [x, index], out=True, axis=e["dim"])


EXPORTERS: dict[str, Exporter] = {
    "bincount": _bincount,
    "cat": lambda e: done(e.add("Concat", e.operands(), out=True, axis=e["dim"])),
    "compress": lambda e: done(e.add("Compress", e.operands(), out=True, axis=e["dim"])),
    "depth_to_space": lambda e: done(
        e.add("DepthToSpace", [e.operand(0)], out=True, blocksize=e["block_size"], mode=e["mode"])
    ),
    "embedding": lambda e: done(e.add("Gather", [e.operand(0), e.operand(1)], out=True, axis=0)),
    "expand": lambda e: done(e.add("Expand", [e.operand(0), e.builder.dims(list(e["size"]))], out=True)),
    "flip": _flip,
    "gather": _gather,
    "gather_nd": lambda e: done(
        e.add(
            "GatherND",
            [e.operand(0), e.operand(1, DType.INT64)],
            out=True,
            batch_dims=e["batch_dims"] or None,
        )
    ),
    "index_select": _index_select,
    "non_max_suppression": _nms,
    "nonzero": _nonzero,
    "one_hot": _one_hot,
    "pad": _pad,
    "permute": _permute,
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    "reverse_sequence": lambda e: done(
        e.add("ReverseSequence", e.operands(), out=True, time_axis=e["time_dim"], batch_axis=e["batch_dim"])
    ),
    "roll": _roll,
    "scatter": _scatter,
    "scatter_nd": _scatter_nd,
    "select": _select,
    "slice": _slice,
    "sort": _sort,
    "space_to_depth": _space_to_depth,
    "split": _split,
    "squeeze": _axes("Squeeze"),
    "tensor_scatter": lambda e: done(
        e.add("TensorScatter", e.operands(), out=True, axis=e["dim"], mode=e["mode"])
    ),
    "topk": _topk,
    "tril": _triangle(0),
    "triu": _triangle(1),
    "unique": _unique,
    "unsqueeze": _axes("Unsqueeze"),
    "view": _view,
}
