"""Lowerings of data movement. A view is a value of its own: the IR has no aliases."""

from __future__ import annotations

import math
from typing import Any

from ....types import DimLike, DType
from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results, TensorRef
from .elementwise import call

__all__ = ["LOWERINGS"]


def _itself(n: AtenLoweringContext) -> Results:
    return n.x


def _restrided(n: AtenLoweringContext) -> Results:
    """Lower a copy with other strides, which PyTorch's decompositions of lerp and index_fill make: a graph's values have none."""
    n.ignore("stride")
    return n.x


def _view(n: AtenLoweringContext) -> Results:
    size = n.out().shape
    n.ignore("size", "shape")
    return n.x if n.spec().shape == size else str(n.b.view(n.x, size=size))


def _transpose(n: AtenLoweringContext) -> Results:
    rank = n.spec().rank
    order = list(range(rank))
    if rank:
        a, b = n["dim0"] % rank, n["dim1"] % rank
        order[a], order[b] = order[b], order[a]
    n.ignore("dim0", "dim1")
    return str(n.b.permute(n.x, dims=order))


def _t(n: AtenLoweringContext) -> Results:
    return n.x if n.spec().rank < 2 else str(n.b.permute(n.x, dims=[1, 0]))


def _expand(n: AtenLoweringContext) -> Results:
    n.ignore("size")
    size = n.out().shape
    return n.x if n.spec().shape == size else str(n.b.expand(n.x, size=size))


def _squeeze(n: AtenLoweringContext) -> Results:
    """Lower squeeze: of the named dims (or all), those of size 1."""
    spec = n.spec()
    requested = range(spec.rank) if "dim" not in n.args else n["dim"]
    dims = [requested] if isinstance(requested, int) else list(requested)
    ones = sorted({d % spec.rank for d in dims if spec.rank and spec.shape[d] == 1})
    return str(n.b.squeeze(n.x, dims=ones)) if ones else n.x


def _cat(n: AtenLoweringContext) -> Results:
    """Lower cat in the result's dtype. PyTorch allows an empty vector next to any shape, which adds nothing."""
    values = [v for v in n.ts("tensors") if v is not None]
    nonempty = [v for v in values if n.spec(v).shape != (0,)] or values[:1]
    typed = [n.cast(v, n.out().dtype) for v in nonempty]
    dim = n["dim"]
    return typed[0] if len(typed) == 1 else str(n.b.cat(*typed, dim=dim))


def _stack(n: AtenLoweringContext) -> Results:
    values, rank = [v for v in n.ts("tensors") if v is not None], n.out().rank
    dim = n["dim"] % rank
    return str(n.b.cat(*(n.b.unsqueeze(n.cast(v, n.out().dtype), dims=[dim]) for v in values), dim=dim))


def _split(n: AtenLoweringContext) -> Results:
    dim = n["dim"]
    n.ignore("split_sizes", "split_size")
    sizes = [n.out(i).shape[dim] for i in range(len(n.results))]
    parts = n.b.split(n.x, sizes=sizes, dim=dim)
    return [parts] if isinstance(parts, str) else list(parts)


def _unbind(n: AtenLoweringContext) -> Results:
    dim = n["dim"]
    return [
        str(n.b.select(n.x, dim=dim, index=i)) if n.has_readers(i) else None for i in range(len(n.results))
    ]


def _place(n: AtenLoweringContext) -> dict[str, Any]:
    """Return dim, start, end and step of a slice; an end beyond any tensor becomes None."""
    end, step = n["end"], n["step"]
    if not isinstance(step, int):
        raise NotLowered("its step is symbolic")
    if isinstance(end, int) and end >= 2**62:
        end = None
    start = n["start"]
    return {"dim": n["dim"], "start": 0 if start is None else start, "end": end, "step": step}


def _slice(n: AtenLoweringContext) -> Results:
    bounds = _place(n)
    if (bounds["start"], bounds["end"], bounds["step"]) == (0, None, 1):
        return n.x
    return str(n.b.slice(n.x, **bounds))


def _slice_scatter(n: AtenLoweringContext) -> Results:
    return str(n.b.slice_scatter(n.x, n.cast(n.t("src"), n.spec().dtype), **_place(n)))


def _diagonal_scatter(n: AtenLoweringContext) -> Results:
    """Lower diagonal_scatter: the source has a dim for rows, and is repeated along columns; a mask selects the diagonal."""
    b, spec, offset = n.b, n.spec(), n["offset"]
    row, column = (n[name] % spec.rank for name in ("dim1", "dim2"))
    rows, columns = spec.shape[row], spec.shape[column]
    source = n.cast(n.t("src"), spec.dtype)
    *batch, length = range(spec.rank - 1)
    batch.insert(row - (column < row), length)
    first = max(0, -offset)
    pads = [0] * (2 * spec.rank - 2)
    at = batch.index(length)
    pads[at], pads[at + spec.rank - 1] = first, rows - first - n.spec(source).shape[-1]
    padded = b.unsqueeze(
        b.pad(b.permute(source, dims=batch), pads=pads, mode="constant", value=0), dims=[column]
    )

    def places(count: DimLike, dim: int) -> Any:
        size = [count if i == dim else 1 for i in range(spec.rank)]
        return b.view(b.arange(start=0, end=count, dtype=DType.INT64), size=size)

    on_diagonal = b.eq(b.sub(places(columns, column), places(rows, row)), offset)
    return str(b.where(on_diagonal, padded, n.x))


def _select(n: AtenLoweringContext) -> Results:
    """Lower a selection. A position that the program computes (``x[i]`` with a scalar tensor) is an index of one element."""
    if not isinstance(n.args["index"], TensorRef):
        return str(n.b.select(n.x, dim=n["dim"], index=n["index"]))
    row = n.b.index_select(n.x, n.b.view(n.t("index"), size=[1]), dim=n["dim"])
    return str(n.b.squeeze(row, dims=[n["dim"] % n.spec().rank]))


def _select_scatter(n: AtenLoweringContext) -> Results:
    source = n.cast(n.t("src"), n.spec().dtype)
    return str(n.b.select_scatter(n.x, source, dim=n["dim"], index=n["index"]))


def _strided(n: AtenLoweringContext) -> tuple[list[int], list[int], int]:
    """Return size, stride and offset of a strided view. PyTorch's strides refer to the storage, so the tensor must be its whole storage."""
    size, stride, offset = n["size"], n["stride"], n["storage_offset"] or 0
    if not n.dense("self"):
        raise NotLowered("it reads the storage of another view")
    reach = [*size, *stride, offset, *n.spec().shape]
    if not all(isinstance(d, int) for d in reach):
        raise NotLowered("its sizes are symbolic")
    last = offset + sum((d - 1) * s for d, s in zip(size, stride, strict=True))
    if math.prod(size) and last >= math.prod(n.spec().shape):
        raise NotLowered("it reads out of bounds of the tensor")
    return size, stride, offset


def _as_strided(n: AtenLoweringContext) -> Results:
    size, stride, offset = _strided(n)
    return str(n.b.as_strided(n.x, size=size, stride=stride, offset=offset))


def _as_strided_scatter(n: AtenLoweringContext) -> Results:
    """Lower as_strided_scatter, as of ``fill_diagonal_``: the elements of a strided view are replaced."""
    size, stride, offset = _strided(n)
    b, shape = n.b, n.spec().shape
    positions = b.arange(start=0, end=math.prod(shape), step=1, dtype=DType.INT64)
    index = b.view(b.as_strided(positions, size=size, stride=stride, offset=offset), size=[math.prod(size)])
    source = b.view(n.t("src"), size=[math.prod(size)])
    flat = b.view(n.x, size=[math.prod(shape)])
    return str(b.view(b.scatter(flat, index, source, dim=0), size=shape))


def _unfold(n: AtenLoweringContext) -> Results:
    """Lower unfold: windows along a dim become a new last dim."""
    shape = n.spec().shape
    if not shape:
        raise NotLowered("a scalar is not supported")
    strides: list[DimLike] = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    dim, step = n["dimension"] % len(shape), n["step"]
    n.ignore("size")
    stride = [*strides[:dim], strides[dim] * step, *strides[dim + 1 :], strides[dim]]
    return str(n.b.as_strided(n.x, size=n.out().shape, stride=stride))


def _roll(n: AtenLoweringContext) -> Results:
    """Lower roll; without dims over the flattened elements."""
    shifts, dims, spec = n["shifts"], n["dims"], n.spec()
    shifts = shifts if isinstance(shifts, list) else [shifts]
    if dims:
        return str(n.b.roll(n.x, shifts=shifts, dims=dims))
    flat = n.b.view(n.x, size=[-1])
    return str(n.b.view(n.b.roll(flat, shifts=shifts, dims=[0]), size=spec.shape))


def _pad(mode: str) -> OpLowering:
    """Return the lowering of a pad; ATen orders pads from the last dim on, begin and end of each."""

    def lower(n: AtenLoweringContext) -> Results:
        name = "pad" if "pad" in n.args else "padding"
        pads, rank = n[name], n.spec().rank
        begins: list[DimLike] = [0] * rank
        ends: list[DimLike] = [0] * rank
        for i in range(len(pads) // 2):
            begins[rank - 1 - i], ends[rank - 1 - i] = pads[2 * i], pads[2 * i + 1]
        attrs = {"value": n["value"]} if mode == "constant" else {}
        return str(n.b.pad(n.x, pads=[*begins, *ends], mode=mode, **attrs))

    return lower


def _pixels(op: str, factor: str) -> OpLowering:
    return lambda n: str(n.b.call(op, n.x, block_size=n[factor], mode="CRD"))


LOWERINGS: dict[str, OpLowering] = {
    "_unsafe_view": _view,
    "alias": _itself,
    "as_strided": _as_strided,
    "as_strided_scatter": _as_strided_scatter,
    "cat": _cat,
    "clone": _itself,
    "constant_pad_nd": _pad("constant"),
    "contiguous": _itself,
    "detach": _itself,
    "diagonal": call("diagonal", "self", offset="offset", dim1="dim1", dim2="dim2"),
    "diagonal_scatter": _diagonal_scatter,
    "expand": _expand,
    "flip": call("flip", "self", dims="dims"),
    "lift_fresh_copy": _itself,
    "permute": call("permute", "self", dims="dims"),
    "permute_copy": call("permute", "self", dims="dims"),
    "pixel_shuffle": _pixels("depth_to_space", "upscale_factor"),
    "pixel_unshuffle": _pixels("space_to_depth", "downscale_factor"),
    "prims::copy_strided": _restrided,
    "reflection_pad1d": _pad("reflect"),
    "reflection_pad2d": _pad("reflect"),
    "reflection_pad3d": _pad("reflect"),
    "repeat": call("repeat", "self", repeats="repeats"),
    "replication_pad1d": _pad("replicate"),
    "replication_pad2d": _pad("replicate"),
    "replication_pad3d": _pad("replicate"),
    "reshape": _view,
    "roll": _roll,
    "select.int": _select,
    "select_scatter": _select_scatter,
    "slice.Tensor": _slice,
    "slice_scatter": _slice_scatter,
    "split.Tensor": _split,
    "split_with_sizes": _split,
    "squeeze": _squeeze,
    "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze,
    "stack": _stack,
    "t": _t,
    "transpose.int": _transpose,
    "tril": call("tril", "self", diagonal="diagonal"),
    "triu": call("triu", "self", diagonal="diagonal"),
    "unbind.int": _unbind,
    "unfold": _unfold,
    "unsqueeze": call("unsqueeze", "self", dims="dim"),
    "view": _view,
    "view_copy": _view,
}
