"""Data movement. Every result is dense; passes decide which results are views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...types import DimLike, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, Operand, op
from ._shapes import broadcast, ceil_div, like, numel, permuted, product, same, text
from .matmul import one_dtype

__all__ = ["ROWS", "slice_length"]


def _same(c: OpCall) -> TensorSpec:
    return like(c.tensor())


def _place_view(attrs: dict[str, Any], operands: Sequence[Operand]) -> None:
    """Resolve the -1 of a view from the number of elements."""
    size, x = attrs["size"], operands[0]
    if not isinstance(x, TensorSpec) or -1 not in size:
        return
    if size.count(-1) > 1:
        raise Mismatch("at most one dim may be -1", text(size))
    total, known_product = numel(x), product(d for d in size if d != -1)
    if known_product == 0 or (
        isinstance(total, int) and isinstance(known_product, int) and total % known_product
    ):
        raise Mismatch("the -1 cannot be resolved", f"{text(size)} for {x}")
    attrs["size"] = tuple(total // known_product if d == -1 else d for d in size)


def _place_expand(attrs: dict[str, Any], operands: Sequence[Operand]) -> None:
    """Replace each -1 by the operand's dim."""
    size, x = attrs["size"], operands[0]
    if isinstance(x, TensorSpec):
        lead = len(size) - x.rank
        attrs["size"] = tuple(
            x.shape[i - lead] if d == -1 and i >= lead >= 0 else d for i, d in enumerate(size)
        )


def _view(c: OpCall) -> TensorSpec:
    x, size = c.tensor(), c["size"]
    if any(isinstance(d, int) and d < 0 for d in size):
        raise Mismatch("all sizes must be known (GraphBuilder resolves one -1)", text(size))
    have, want = numel(x), product(size)
    if isinstance(have, int) and isinstance(want, int) and have != want:
        raise Mismatch("the number of elements must not change", f"{have} in {x} and {want} in {text(size)}")
    return like(x, size)


def _permute(c: OpCall) -> TensorSpec:
    return like(c.tensor(), permuted(c.tensor(), c["dims"]))


def _expand(c: OpCall) -> TensorSpec:
    x, size = c.tensor(), tuple(c["size"])
    if len(size) < x.rank or any(isinstance(d, int) and d < 0 for d in size):
        raise Mismatch("all sizes must be known, at least as many as x's rank", f"{text(size)} for {x}")
    for d, want in zip(x.shape, size[len(size) - x.rank :], strict=True):
        if d != 1:
            same(d, want, "a dim that is not 1 and its size")
    return like(x, size)


def _squeeze(c: OpCall) -> TensorSpec:
    x, dims = c.tensor(), c["dims"]
    for i in dims:
        if x.rank and isinstance(x.shape[i], int) and x.shape[i] != 1:
            raise Mismatch("only dims of 1 can be squeezed", f"dim {i} of {x}")
    return like(x, tuple(d for i, d in enumerate(x.shape) if i not in dims))


def _unsqueeze(c: OpCall) -> TensorSpec:
    x, dims = c.tensor(), c["dims"]
    old = iter(x.shape)
    return like(x, tuple(1 if i in dims else next(old) for i in range(x.rank + len(dims))))


def _cat(c: OpCall) -> TensorSpec:
    specs, dim = c.tensors(), c["dim"]
    if not specs:
        raise Mismatch("needs at least one operand")
    first = specs[0]
    total: DimLike = 0
    shape = list(first.shape)
    for spec in specs:
        if spec.rank != first.rank or not spec.rank:
            raise Mismatch("operands must have the same rank, at least 1", f"{first} and {spec}")
        total = total + spec.shape[dim]
        for i, d in enumerate(spec.shape):
            if i != dim:
                shape[i] = same(shape[i], d, f"dim {i} of all operands")
    shape[dim] = total
    return TensorSpec(tuple(shape), one_dtype(*specs))


def _split(c: OpCall) -> list[TensorSpec]:
    x, dim, sizes = c.tensor(), c["dim"], c["sizes"]
    if not sizes or any(isinstance(s, int) and s < 0 for s in sizes):
        raise Mismatch("needs at least one size, none negative", text(sizes))
    total: DimLike = 0
    for size in sizes:
        total = total + size
    same(total, x.shape[dim], "the sum of sizes and the dim")
    return [like(x, (*x.shape[:dim], size, *x.shape[dim + 1 :])) for size in sizes]


def slice_length(
    d: DimLike, start: DimLike, end: DimLike | None, step: int
) -> tuple[DimLike, DimLike, DimLike]:
    """Return start, end and length of a slice with step > 0, wrapped and clamped as in Python. ``end`` None: to the end.

    Symbolic bounds that cannot be compared are used unchanged (they must be within the dim at run time).
    """
    if step < 1:
        raise Mismatch("step must be positive", step, "Flip the dim first.")

    def wrapped(value: DimLike) -> DimLike:
        if isinstance(value, int):
            if value < 0:
                value = value + d
                return max(value, 0) if isinstance(value, int) else value
            return min(value, d) if isinstance(d, int) else value
        return value

    end = d if end is None or (isinstance(end, int) and end >= 2**31 - 1) else end
    start, end = wrapped(start), wrapped(end)
    length = ceil_div(end - start, step)
    return start, end, max(length, 0) if isinstance(length, int) else length


def _slice(c: OpCall) -> TensorSpec:
    x, dim = c.tensor(), c["dim"]
    _, _, length = slice_length(x.shape[dim], c["start"], c["end"], c["step"])
    return like(x, (*x.shape[:dim], length, *x.shape[dim + 1 :]))


def _slice_scatter(c: OpCall) -> TensorSpec:
    x, src, dim = c.tensor(0), c.tensor(1), c["dim"]
    _, _, length = slice_length(x.shape[dim], c["start"], c["end"], c["step"])
    part = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    if broadcast(src.shape, part) != part:
        raise Mismatch("src must have the shape of the slice", f"{src} for {text(part)}")
    one_dtype(x, src)
    return like(x)


def _select(c: OpCall) -> TensorSpec:
    x, dim, index = c.tensor(), c["dim"], c["index"]
    if not x.rank:
        raise Mismatch("a scalar has no dim to select from", str(x))
    size = x.shape[dim]
    if isinstance(size, int) and isinstance(index, int) and not -size <= index < size:
        raise Mismatch("the index is outside the dim", f"{index} of {size}")
    return like(x, (*x.shape[:dim], *x.shape[dim + 1 :]))


def _select_scatter(c: OpCall) -> TensorSpec:
    x, src = c.tensor(0), c.tensor(1)
    part = _select(c)
    if broadcast(src.shape, part.shape) != part.shape:
        raise Mismatch("src must have the shape of the selection", f"{src} for {part}")
    one_dtype(x, src)
    return like(x)


def _repeat(c: OpCall) -> TensorSpec:
    x, repeats = c.tensor(), c["repeats"]
    if len(repeats) < x.rank:
        raise Mismatch("repeats must have at least x's rank", f"{text(repeats)} for {x}")
    shape = (*(1,) * (len(repeats) - x.rank), *x.shape)
    return like(x, tuple(d * r for d, r in zip(shape, repeats, strict=True)))


def _pad(c: OpCall) -> TensorSpec:
    x, n = c.tensor(), c.tensor().rank
    pads, mode = c["pads"], c["mode"]
    if len(pads) != 2 * n:
        raise Mismatch(f"pads takes {2 * n} numbers: all begins, then all ends", text(pads))
    shape = []
    for d, begin, end in zip(x.shape, pads[:n], pads[n:], strict=True):
        for amount in (begin, end):
            if mode == "reflect" and isinstance(d, int) and isinstance(amount, int) and amount >= max(d, 1):
                raise Mismatch("reflection must be smaller than the dim", f"{amount} of {d}")
        out = d + begin + end
        if isinstance(out, int) and out < 0:
            raise Mismatch("pads crop more than the dim has", f"{begin} and {end} of {d}")
        shape.append(out)
    return like(x, shape)


def _as_strided(c: OpCall) -> TensorSpec:
    if len(c["size"]) != len(c["stride"]):
        raise Mismatch("size and stride must have the same length", f"{text(c['size'])}, {text(c['stride'])}")
    return like(c.tensor(), c["size"])


def _diagonal(c: OpCall) -> TensorSpec:
    x, a, b, offset = c.tensor(), c["dim1"], c["dim2"], c["offset"]
    if x.rank < 2 or a == b:
        raise Mismatch("needs two different dims", f"{a} and {b} of {x}")
    rows, columns = x.shape[a], x.shape[b]
    if not (isinstance(rows, int) and isinstance(columns, int)):
        if rows != columns or offset:
            raise Mismatch("the diagonal's length must be known", str(x))
        length = rows
    else:
        length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    return like(x, (*(d for i, d in enumerate(x.shape) if i not in (a, b)), length))


def _matrix(c: OpCall) -> TensorSpec:
    if c.tensor().rank < 2:
        raise Mismatch("needs matrices", str(c.tensor()))
    return like(c.tensor())


def _blocks(c: OpCall) -> TensorSpec:
    """Infer depth_to_space (which multiplies space by the block) or space_to_depth (which divides it)."""
    x, b = c.tensor(), c["block_size"]
    if x.rank < 3 or b < 1:
        raise Mismatch("x must be [..., C, H, W] and block_size positive", f"{x}, {b}")
    *lead, channels, height, width = x.shape
    if c.op.name == "depth_to_space":
        if isinstance(channels, int) and channels % (b * b):
            raise Mismatch("block_size squared must divide the channels", f"{b} for {x}")
        return like(x, (*lead, channels // (b * b), height * b, width * b))
    if any(isinstance(d, int) and d % b for d in (height, width)):
        raise Mismatch("block_size must divide height and width", f"{b} for {x}")
    return like(x, (*lead, channels * b * b, height // b, width // b))


def _reverse_sequence(c: OpCall) -> TensorSpec:
    x, lengths = c.tensor(0), c.tensor(1)
    if c["time_dim"] == c["batch_dim"] or lengths.rank != 1:
        raise Mismatch("time_dim and batch_dim must differ and lengths have rank 1", str(lengths))
    same(lengths.shape[0], x.shape[c["batch_dim"]], "lengths and the batch dim")
    return like(x)


_SLICE = "dim: axis, start: dim = 0, end: dim? = none, step: int = 1"
_D = "data_movement"

ROWS: tuple[OpEntry, ...] = (
    op(
        "clone(x) -> y",
        _D,
        _same,
        aten="clone alias copy",
        onnx="Identity",
        meaning="the same values",
        view="reshape",
    ),
    op(
        "view(x; size: dims) -> y",
        _D,
        _view,
        place=_place_view,
        aten="view _unsafe_view reshape",
        onnx="Reshape Flatten",
        meaning="the same elements in row-major order, in another shape",
        view="reshape",
    ),
    op(
        "permute(x; dims: axes) -> y",
        _D,
        _permute,
        aten="permute transpose.int t",
        onnx="Transpose",
        view="strided",
    ),
    op(
        "expand(x; size: dims) -> y",
        _D,
        _expand,
        place=_place_expand,
        aten="expand",
        onnx="Expand",
        view="strided",
    ),
    op(
        "squeeze(x; dims: axes) -> y",
        _D,
        _squeeze,
        aten="squeeze.dim squeeze.dims",
        onnx="Squeeze",
        view="reshape",
    ),
    op(
        "unsqueeze(x; dims: newaxes) -> y", _D, _unsqueeze, aten="unsqueeze", onnx="Unsqueeze", view="reshape"
    ),
    op("cat(tensors*; dim: axis) -> y", _D, _cat, aten="cat", onnx="Concat"),
    op(
        "split(x; sizes: dims, dim: axis) -> parts*",
        _D,
        _split,
        aten="split_with_sizes",
        onnx="Split",
        view="strided",
    ),
    op(
        f"slice(x; {_SLICE}) -> y",
        _D,
        _slice,
        aten="slice.Tensor",
        onnx="Slice",
        meaning="end none: to the end",
        view="strided",
    ),
    op(f"slice_scatter(x, src; {_SLICE}) -> y", _D, _slice_scatter, aten="slice_scatter"),
    op("select(x; dim: axis, index: dim) -> y", _D, _select, aten="select.int", view="strided"),
    op("select_scatter(x, src; dim: axis, index: dim) -> y", _D, _select_scatter, aten="select_scatter"),
    op("flip(x; dims: axes) -> y", _D, _same, aten="flip"),
    op("roll(x; shifts: ints, dims: axes) -> y", _D, _same, aten="roll"),
    op("repeat(x; repeats: dims) -> y", _D, _repeat, aten="repeat", onnx="Tile"),
    op(
        "pad(x; pads: dims, mode: constant|reflect|replicate|wrap = constant, value: scalar = 0) -> y",
        _D,
        _pad,
        aten="constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d",
        onnx="Pad CenterCropPad",
        meaning="pads: begins of all dims, then ends; negative ones crop",
    ),
    op(
        "as_strided(x; size: dims, stride: dims, offset: dim = 0) -> y",
        _D,
        _as_strided,
        aten="as_strided",
        meaning="reads the dense operand at offset + index * stride",
        view="strided",
    ),
    op(
        "diagonal(x; offset: int = 0, dim1: axis = 0, dim2: axis = 1) -> y",
        _D,
        _diagonal,
        aten="diagonal",
        view="strided",
    ),
    op("tril(x; diagonal: int = 0) -> y", _D, _matrix, aten="tril", onnx="Trilu"),
    op("triu(x; diagonal: int = 0) -> y", _D, _matrix, aten="triu", onnx="Trilu"),
    op(
        "depth_to_space(x; block_size: int, mode: DCR|CRD = CRD) -> y",
        _D,
        _blocks,
        aten="pixel_shuffle",
        onnx="DepthToSpace",
        meaning="CRD is PyTorch's pixel_shuffle",
    ),
    op(
        "space_to_depth(x; block_size: int, mode: DCR|CRD = CRD) -> y",
        _D,
        _blocks,
        aten="pixel_unshuffle",
        onnx="SpaceToDepth",
        meaning="CRD is PyTorch's pixel_unshuffle, DCR is ONNX's SpaceToDepth",
    ),
    op(
        "reverse_sequence(x, lengths; time_dim: axis, batch_dim: axis) -> y",
        _D,
        _reverse_sequence,
        onnx="ReverseSequence",
    ),
)
