"""Ops that move, select and search elements, in ONNX."""

from __future__ import annotations

from collections.abc import Sequence

from ....types import Dim, DimLike, DType
from .graph_builder import Form, Writing, done, far

__all__ = ["FORMS"]


def _view(w: Writing) -> None:
    size = list(w["size"])
    zero = any(d == 0 for d in size)
    if zero and w.opset < 14:
        raise w.no("opsets below 14 cannot reshape to a dim of 0")
    if not zero:
        size = _shorthand(size, w.spec().shape)
    w.add("Reshape", [w.operand(0), w.pen.dims(size)], out=True, allowzero=1 if zero else None)


def _shorthand(size: list[DimLike], have: Sequence[DimLike]) -> list[DimLike]:
    """Symbolic dims without computing them: 0 keeps the operand's, and one -1 is what is left."""
    short = [0 if isinstance(d, Dim) and i < len(have) and have[i] == d else d for i, d in enumerate(size)]
    left = [i for i, d in enumerate(short) if isinstance(d, Dim)]
    if len(left) == 1:
        short[left[0]] = -1
    return short


def _axes(op: str) -> Form:
    """Squeeze and Unsqueeze: axes are an input from opset 13 on."""

    def form(w: Writing) -> None:
        axes = list(w["dims"])
        if not axes:
            w.add("Identity", [w.operand(0)], out=True)
        elif w.opset >= 13:
            w.add(op, [w.operand(0), w.ints(axes)], out=True)
        else:
            w.add(op, [w.operand(0)], out=True, axes=axes)

    return form


def _split(w: Writing) -> None:
    sizes = list(w["sizes"])
    if w.opset >= 13:
        w.add("Split", [w.operand(0), w.pen.dims(sizes)], out=True, axis=w["dim"])
    else:
        w.add("Split", [w.operand(0)], out=True, axis=w["dim"], split=sizes)


def _slice(w: Writing) -> None:
    start, end = w["start"], far(w["end"])
    operands = [w.operand(0), w.pen.dims([start]), w.pen.dims([end]), w.ints([w["dim"]]), w.ints([w["step"]])]
    w.add("Slice", operands, out=True)


def _select(w: Writing) -> None:
    index = w["index"]
    at = w.add("Squeeze", [w.pen.dims([index])]) if isinstance(index, Dim) else w.constant(index, DType.INT64)
    w.add("Gather", [w.operand(0), at], out=True, axis=w["dim"])


def _flip(w: Writing) -> None:
    axes = list(w["dims"])
    n = len(axes)
    operands = [w.operand(0), w.ints([-1] * n), w.ints([-(2**63)] * n), w.ints(axes), w.ints([-1] * n)]
    w.add("Slice", operands, out=True)


def _roll(w: Writing) -> None:
    """The end of each axis comes before its begin."""
    value = w.operand(0)
    for axis, shift in zip(w["dims"], w["shifts"], strict=True):
        size = w.spec().shape[axis]
        if not isinstance(size, int):
            raise w.no("rolling a symbolic dim")
        at = w.ints([size - shift % max(size, 1)])
        tail = w.add("Slice", [value, at, w.ints([2**63 - 1]), w.ints([axis])])
        head = w.add("Slice", [value, w.ints([0]), at, w.ints([axis])])
        value = w.add("Concat", [tail, head], axis=axis)
    w.add("Identity", [value], out=True)


def _repeat(w: Writing) -> None:
    value, repeats = w.operand(0), list(w["repeats"])
    more = len(repeats) - w.spec().rank
    if more:
        value = w.add("Reshape", [value, w.pen.dims([*[1] * more, *w.spec().shape])])
    w.add("Tile", [value, w.pen.dims(repeats)], out=True)


_PAD = {"constant": "constant", "replicate": "edge", "reflect": "reflect", "wrap": "wrap"}


def _pad(w: Writing) -> None:
    mode = _PAD[w["mode"]]
    value = w.constant(w["value"], w.spec().dtype) if mode == "constant" else None
    w.add("Pad", [w.operand(0), w.pen.dims(list(w["pads"])), value], out=True, mode=mode)


def _triangle(upper: int) -> Form:
    def form(w: Writing) -> None:
        w.add("Trilu", [w.operand(0), w.constant(w["diagonal"], DType.INT64)], out=True, upper=upper)

    return form


def _space_to_depth(w: Writing) -> None:
    if w["mode"] != "DCR" and w.opset < 28:
        raise w.no("SpaceToDepth has the order DCR only")
    w.add("SpaceToDepth", [w.operand(0)], out=True, blocksize=w["block_size"])


_REDUCE = {"none": None, "add": "add", "mul": "mul", "amax": "max", "amin": "min"}


def _reduction(w: Writing) -> str | None:
    if w["reduce"] not in _REDUCE:
        raise w.no(f"scattering with {w['reduce']}")
    return _REDUCE[w["reduce"]]


def _scatter(w: Writing) -> None:
    reduction = _reduction(w)
    if not w["include_self"] and reduction:
        raise w.no("a reduction that leaves the old element out")
    src = w.operand(2, w.spec().dtype)
    if not isinstance(w.node.inputs[2], str):
        src = w.add("Expand", [src, w.pen.dims(list(w.spec(1).shape))])
    w.add("ScatterElements", [w.operand(0), w.operand(1), src], out=True, axis=w["dim"], reduction=reduction)


def _scatter_nd(w: Writing) -> None:
    w.add(
        "ScatterND",
        [w.operand(0), w.operand(1, DType.INT64), w.operand(2)],
        out=True,
        reduction=_reduction(w),
    )


def _topk(w: Writing) -> None:
    flags = {"axis": w["dim"], "largest": int(w["largest"]), "sorted": int(w["sorted"])}
    w.add("TopK", [w.operand(0), w.pen.dims([w["k"]])], out=True, **flags)


def _sort(w: Writing) -> None:
    size = w.pen.dims([w.spec().shape[w["dim"]]])
    w.add("TopK", [w.operand(0), size], out=True, axis=w["dim"], largest=int(w["descending"]))


def _one_hot(w: Writing) -> None:
    operands = [w.operand(0), w.pen.dims([w["depth"]]), w.operand(1)]
    w.add("OneHot", operands, out=True, axis=w["dim"])


def _nonzero(w: Writing) -> None:
    w.add("Transpose", [w.add("NonZero", [w.operand(0)])], out=True, perm=[1, 0])


def _unique(w: Writing) -> None:
    w.add("Unique", [w.operand(0)], out=True, axis=w["dim"], sorted=int(w["sorted"]))


def _nms(w: Writing) -> None:
    box = int(w["center_point_box"]) or None
    w.add("NonMaxSuppression", w.operands(), out=True, center_point_box=box)


def _gather(w: Writing) -> None:
    w.add("GatherElements", [w.operand(0), w.operand(1)], out=True, axis=w["dim"])


FORMS: dict[str, Form] = {
    "cat": lambda w: done(w.add("Concat", w.operands(), out=True, axis=w["dim"])),
    "compress": lambda w: done(w.add("Compress", w.operands(), out=True, axis=w["dim"])),
    "depth_to_space": lambda w: done(
        w.add("DepthToSpace", [w.operand(0)], out=True, blocksize=w["block_size"], mode=w["mode"])
    ),
    "embedding": lambda w: done(w.add("Gather", [w.operand(0), w.operand(1)], out=True, axis=0)),
    "expand": lambda w: done(w.add("Expand", [w.operand(0), w.pen.dims(list(w["size"]))], out=True)),
    "flip": _flip,
    "gather": _gather,
    "gather_nd": lambda w: done(
        w.add(
            "GatherND",
            [w.operand(0), w.operand(1, DType.INT64)],
            out=True,
            batch_dims=w["batch_dims"] or None,
        )
    ),
    "index_select": lambda w: done(w.add("Gather", [w.operand(0), w.operand(1)], out=True, axis=w["dim"])),
    "non_max_suppression": _nms,
    "nonzero": _nonzero,
    "one_hot": _one_hot,
    "pad": _pad,
    "permute": lambda w: done(w.add("Transpose", [w.operand(0)], out=True, perm=list(w["dims"]))),
    "repeat": _repeat,
    "reverse_sequence": lambda w: done(
        w.add("ReverseSequence", w.operands(), out=True, time_axis=w["time_dim"], batch_axis=w["batch_dim"])
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
    "tensor_scatter": lambda w: done(
        w.add("TensorScatter", w.operands(), out=True, axis=w["dim"], mode=w["mode"])
    ),
    "topk": _topk,
    "tril": _triangle(0),
    "triu": _triangle(1),
    "unique": _unique,
    "unsqueeze": _axes("Unsqueeze"),
    "view": _view,
}
