"""Bridges of data movement."""

from __future__ import annotations

from typing import Any

from .bridge import Adapt, Adapted, Bridge, NotComparable, listed, named
from .pointwise import with_attrs

__all__ = ["BRIDGES"]

_F = "nn.functional."


def dims(name: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        value = s.args if s.args and isinstance(s.args[0], int) else (s.args or tuple(s.kwargs.values()))[0]
        return [s.input], {name: list(value)}

    return adapt


def transpose(s: Any) -> Adapted:
    order = list(range(s.input.dim()))
    a, b = s.args
    if order:
        order[a], order[b] = order[b], order[a]
    return [s.input], {"dims": order}


def turned(s: Any) -> Adapted:
    return [s.input], {"dims": list(range(s.input.dim()))[::-1]}


def squeeze(s: Any) -> Adapted:
    dim = (s.args or (s.kwargs.get("dim"),))[0]
    dims = range(s.input.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    return [s.input], {"dims": [d for d in dims if s.input.dim() and s.input.shape[d] == 1]}


def cat(s: Any) -> Adapted:
    if len({t.dtype for t in s.input}) != 1 or any(t.shape == (0,) for t in s.input):
        raise NotComparable("mixed types, or an empty vector that PyTorch passes over")
    return list(s.input), {"dim": s.kwargs.get("dim", s.args[0] if s.args else 0)}


def split_sizes(s: Any) -> Adapted:
    kwargs = named(s, "sizes", "dim")
    return [s.input], {"sizes": list(kwargs["sizes"]), "dim": kwargs.get("dim", 0)}


def narrow(s: Any) -> Adapted:
    dim, start, length = s.args
    if not isinstance(start, int):
        raise NotComparable("the start is a tensor")
    start = start + s.input.shape[dim] if start < 0 else start
    return [s.input], {"dim": dim, "start": start, "end": start + length}


def slice_scatter(s: Any) -> Adapted:
    kwargs = named(s, "src", "dim", "start", "end", "step")
    attrs = {k: kwargs[k] for k in ("start", "end", "step") if kwargs.get(k) is not None}
    return [s.input, kwargs["src"]], {"dim": kwargs.get("dim", 0), **attrs}


def slicing(s: Any) -> Adapted:
    kwargs = named(s, "dim", "start", "end", "step")
    return [s.input], {"dim": 0} | {k: v for k, v in kwargs.items() if v is not None}


def select_scatter(s: Any) -> Adapted:
    src, dim, index = s.args
    return [s.input, src], {"dim": dim, "index": index}


def flip(s: Any) -> Adapted:
    dims_arg = s.args[0] if s.args and not isinstance(s.args[0], int) else s.args
    return [s.input], {"dims": list(dims_arg or s.kwargs["dims"])}


def flip_axis(axis: int) -> Adapt:
    return lambda s: ([s.input], {"dims": [axis]})


def roll(s: Any) -> Adapted:
    kwargs = named(s, "shifts", "dims")
    axes = kwargs.get("dims", ())
    axes = [axes] if isinstance(axes, int) else list(axes)
    return [s.input], {"shifts": listed(kwargs["shifts"], 1), "dims": axes}


def pad(mode: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        kwargs = named(s, "pad", "mode", "value")
        n = s.input.dim()
        begins, ends = [0] * n, [0] * n
        amounts = kwargs["pad"]
        for i in range(len(amounts) // 2):
            begins[n - 1 - i], ends[n - 1 - i] = amounts[2 * i], amounts[2 * i + 1]
        value = kwargs.get("value")
        return [s.input], {"pads": begins + ends, "mode": mode, "value": 0 if value is None else value}

    return adapt


def as_strided(s: Any) -> Adapted:
    kwargs = named(s, "size", "stride", "storage_offset")
    attrs = {"size": list(kwargs["size"]), "stride": list(kwargs["stride"])}
    offset = kwargs.get("storage_offset") or 0
    if offset + sum((d - 1) * t for d, t in zip(*attrs.values(), strict=True)) >= s.input.numel():
        raise NotComparable("reads beyond the view, into what it is a view of")
    return [s.input.clone()], attrs | {"offset": offset}


def strided_answer(s: Any, operands: list[Any], attrs: dict[str, Any]) -> Any:
    """Return the answer on the dense operand, since the sample may be a view."""
    import torch

    return torch.as_strided(operands[0], attrs["size"], attrs["stride"], attrs["offset"])


def diagonal(s: Any) -> Adapted:
    return [s.input], named(s, "offset", "dim1", "dim2")


def triangle(s: Any) -> Adapted:
    return [s.input], named(s, "diagonal")


def shuffle(mode: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        if s.input.dim() < 3:
            raise NotComparable("rank")
        return [s.input], {"block_size": (s.args or tuple(s.kwargs.values()))[0], "mode": mode}

    return adapt


BRIDGES: dict[str, Bridge] = {
    "view": Bridge("view", dims("size")),
    "reshape": Bridge("view", dims("size")),
    "permute": Bridge("permute", dims("dims")),
    "transpose": Bridge("permute", transpose),
    "t": Bridge("permute", turned),
    "expand": Bridge("expand", dims("size")),
    "squeeze": Bridge("squeeze", squeeze, variants=("", "multiple")),
    "unsqueeze": Bridge("unsqueeze", lambda s: ([s.input], {"dims": s.args[0]})),
    "cat": Bridge("cat", cat),
    "split_with_sizes": Bridge("split", split_sizes),
    "slice": Bridge("slice", slicing),
    "narrow": Bridge("slice", narrow),
    "slice_scatter": Bridge("slice_scatter", slice_scatter),
    "select": Bridge("select", with_attrs("dim", "index")),
    "select_scatter": Bridge("select_scatter", select_scatter),
    "flip": Bridge("flip", flip),
    "fliplr": Bridge("flip", flip_axis(1)),
    "roll": Bridge("roll", roll),
    "repeat": Bridge("repeat", dims("repeats")),
    f"{_F}pad": Bridge("pad", pad("constant"), variants=("constant",)),
    "pad.reflect": Bridge("pad", pad("reflect"), variants=("reflect",), info=f"{_F}pad"),
    "pad.replicate": Bridge(
        "pad", pad("replicate"), variants=("replicate", "replicate_negative"), info=f"{_F}pad"
    ),
    "pad.circular": Bridge("pad", pad("wrap"), variants=("circular",), info=f"{_F}pad"),
    "as_strided": Bridge("as_strided", as_strided, strided_answer, variants=("", "partial_views")),
    "diagonal": Bridge("diagonal", diagonal),
    "tril": Bridge("tril", triangle),
    "triu": Bridge("triu", triangle),
    f"{_F}pixel_shuffle": Bridge("depth_to_space", shuffle("CRD")),
    f"{_F}pixel_unshuffle": Bridge("space_to_depth", shuffle("CRD")),
}
