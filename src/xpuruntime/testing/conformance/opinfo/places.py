"""Bridges of indexing, embedding, search and creation."""

from __future__ import annotations

from typing import Any

from ....types import dim
from .bridge import Adapt, Adapted, Bridge, NotComparable, named, only
from .pointwise import with_tensors

__all__ = ["BRIDGES"]

_F = "nn.functional."


def gather(s: Any) -> Adapted:
    kwargs = named(s, "dim", "index")
    return [s.input, kwargs["index"]], {"dim": kwargs["dim"]}


def scatter(reduce: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        kwargs = named(s, "dim", "index", "src")
        src = kwargs.get("src", kwargs.get("value"))
        how = {"multiply": "mul", "sum": "add", "prod": "mul"}.get(
            kwargs.get("reduce", ""), kwargs.get("reduce")
        )
        return [s.input, kwargs["index"], src], {"dim": kwargs["dim"], "reduce": how or reduce}

    return adapt


def scatter_reduce(s: Any) -> Adapted:
    dim, indices, src, how = s.args
    how = {"sum": "add", "prod": "mul"}.get(how, how)
    attrs = {"dim": dim, "reduce": how, "include_self": s.kwargs.get("include_self", True)}
    return [s.input, indices, src], attrs


def index_copy(s: Any) -> Adapted:
    return [s.input, s.args[1], s.args[2]], {"dim": s.args[0]}


def index_put(s: Any) -> Adapted:
    indices, values = s.args[:2]
    if any(i is not None and "bool" in str(i.dtype) for i in indices):
        raise NotComparable("a mask as an index")
    return [s.input, values, *indices], {
        "accumulate": named(s, "i", "v", "accumulate").get("accumulate", False)
    }


def getitem(s: Any) -> Adapted:
    import torch

    items = s.args[0] if isinstance(s.args[0], tuple | list) else (s.args[0],)
    indices: list[Any] = []
    for item in items:
        if isinstance(item, slice) and item == slice(None):
            indices.append(None)
        elif isinstance(item, torch.Tensor) and item.dtype != torch.bool:
            indices.append(item)
        elif isinstance(item, list) and all(type(v) is int for v in item):
            indices.append(torch.tensor(item))
        else:
            raise NotComparable("an index that is no tensor of integers")
    if all(i is None for i in indices):
        raise NotComparable("no index")
    return [s.input, *indices], {}


def embedding(s: Any) -> Adapted:
    kwargs = dict(s.kwargs)
    kwargs.pop("padding_idx", None)
    only(kwargs)
    return [s.input, s.args[0]], {}


def embedding_bag(s: Any) -> Adapted:
    kwargs = named(s, "indices", "offsets")
    if kwargs.get("max_norm") is not None or kwargs.get("offsets") is None:
        raise NotComparable("renormalization, or bags of equal size")
    attrs = {
        "mode": kwargs.get("mode", "mean"),
        "include_last_offset": kwargs.get("include_last_offset", False),
    }
    if kwargs.get("padding_idx") is not None:
        attrs["padding_idx"] = kwargs["padding_idx"] % s.input.shape[0]
    return [s.input, kwargs["indices"], kwargs["offsets"], kwargs.get("per_sample_weights")], attrs


def one_hot(s: Any) -> Adapted:
    import torch

    classes = named(s, "num_classes").get("num_classes", -1)
    depth = int(s.input.max()) + 1 if classes == -1 else classes
    return [s.input, torch.tensor([0, 1])], {"depth": depth, "dim": s.input.dim()}


def topk(s: Any) -> Adapted:
    return [s.input], named(s, "k", "dim", "largest", "sorted")


def sort(s: Any) -> Adapted:
    kwargs = named(s, "dim", "descending")
    kwargs["stable"] = True
    return [s.input], kwargs


def stable_sort(s: Any, operands: list[Any], attrs: dict[str, Any]) -> Any:
    import torch

    return torch.sort(
        operands[0], dim=attrs.get("dim", -1), descending=attrs.get("descending", False), stable=True
    )


def stable_topk(s: Any, operands: list[Any], attrs: dict[str, Any]) -> Any:
    """Return values by topk, and their indices by a stable sort, since topk does not define the order of ties."""
    import torch

    (x,), dim, largest = operands, attrs.get("dim", -1), attrs.get("largest", True)
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    return (
        (values, indices)
        if not x.dim()
        else (values.narrow(dim, 0, attrs["k"]), indices.narrow(dim, 0, attrs["k"]))
    )


def counted(*names: str) -> Adapt:
    """Return a bridge with operands by name. The number of results depends on data, so the op takes it as a symbol."""

    def adapt(s: Any) -> Adapted:
        kwargs = named(s, *names)
        if kwargs.get("as_tuple"):
            raise NotComparable("as a tuple")
        return [s.input, *(kwargs[n] for n in names)], {"count": dim("u0")}

    return adapt


def bincount(s: Any) -> Adapted:
    kwargs = named(s, "weights", "minlength")
    weights = kwargs.get("weights")
    if weights is not None and str(weights.dtype) != "torch.float32":
        weights = weights.double()  # as PyTorch does
    return [s.input, weights], {"count": dim("u0"), "minlength": kwargs.get("minlength", 0)}


def unique(s: Any) -> Adapted:
    if s.kwargs.get("dim") is not None and s.input.dim() == 0:
        raise NotComparable("dim of a scalar")
    return [s.input], {"count": dim("u0"), "dim": s.kwargs.get("dim")}


def unique_values(s: Any, operands: list[Any], attrs: dict[str, Any]) -> Any:
    import torch

    return torch.unique(operands[0], sorted=True, dim=attrs["dim"])


def arange(s: Any) -> Adapted:
    import torch

    numbers = [s.input, *s.args, *([s.kwargs["end"]] if "end" in s.kwargs else [])]
    start, end, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    dtype = s.kwargs.get("dtype")
    dtype = torch.arange(start, end, step).dtype if dtype is None else dtype
    if not dtype.is_floating_point and any(isinstance(v, float) for v in numbers):
        raise NotComparable(
            "fractions in a range of integers, which PyTorch cuts off before, or after, counting them"
        )
    kind = float if any(isinstance(v, float) for v in numbers) else int
    return [], {"start": kind(start), "end": kind(end), "step": kind(step), "dtype": dtype}


def eye(s: Any) -> Adapted:
    rows = s.input
    return [], {"rows": rows, "columns": s.args[0] if s.args else rows, "dtype": s.kwargs.get("dtype")}


def full(s: Any) -> Adapted:
    return [], {"size": list(s.input), "value": s.args[0], "dtype": s.kwargs["dtype"]}


BRIDGES: dict[str, Bridge] = {
    "gather": Bridge("gather", gather),
    "index_select": Bridge("index_select", gather),
    "scatter": Bridge("scatter", scatter("none")),
    "scatter_add": Bridge("scatter", scatter("add")),
    "scatter_reduce": Bridge("scatter", scatter_reduce, variants=("sum", "prod", "amax", "amin", "mean")),
    "index_copy": Bridge("index_copy", index_copy),
    "index_put": Bridge("index_put", index_put),
    "__getitem__": Bridge("index", getitem),
    "masked_scatter": Bridge("masked_scatter", with_tensors("mask", "source")),
    f"{_F}embedding": Bridge("embedding", embedding),
    f"{_F}embedding_bag": Bridge("embedding_bag", embedding_bag),
    f"{_F}one_hot": Bridge("one_hot", one_hot),
    "topk": Bridge("topk", topk, stable_topk),
    "sort": Bridge("sort", sort, stable_sort),
    "nonzero": Bridge("nonzero", counted()),
    "masked_select": Bridge("masked_select", counted("mask")),
    "unique": Bridge("unique", unique, unique_values),
    "bincount": Bridge("bincount", bincount),
    "arange": Bridge("arange", arange),
    "eye": Bridge("eye", eye),
    "full": Bridge("full", full),
}
