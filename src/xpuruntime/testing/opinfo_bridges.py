"""From OpInfo samples to operands and attributes of our ops: one small function per way that PyTorch writes its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["BRIDGES", "Bridge", "Unfit"]


class Unfit(Exception):
    """Why a sample is no call of the op."""


Adapted: TypeAlias = "tuple[list[Any], dict[str, Any]] | tuple[list[Any], dict[str, Any], Any]"
"""Operands, attributes, and the right answer where computing it was part of the way."""
Adapt: TypeAlias = Callable[[Any], Adapted]


@dataclass(frozen=True)
class Bridge:
    """``op``: ours. ``adapt``: sample to operands and attributes. ``answer``: what is right, where the OpInfo's own result is not
    of the op's form (arguments: sample, operands, attributes). ``info``: the OpInfo's name where the entry has its own.
    """

    op: str
    adapt: Adapt
    answer: Callable[[Any, list[Any], dict[str, Any]], Any] | None = None
    variants: tuple[str, ...] = ("",)
    info: str = ""


def _named(sample: Any, *names: str) -> dict[str, Any]:
    """Arguments after the input by name."""
    return dict(zip(names, sample.args, strict=False)) | dict(sample.kwargs)


def _only(given: dict[str, Any], *names: str) -> dict[str, Any]:
    """Raise Unfit for an argument that the op does not have and that says something."""
    for name in set(given) - set(names):
        if given[name] not in (None, False):
            raise Unfit(f"argument {name}")
    return {k: v for k, v in given.items() if k in names}


def _list(value: Any, n: int) -> list[int]:
    if isinstance(value, int):
        return [value] * n
    return list(value) * (n if len(value) == 1 else 1)


# ── elementwise ──


def unary(s: Any) -> Adapted:
    _only(_named(s))
    if s.args:
        raise Unfit("another argument")
    return [s.input], {}


def binary(s: Any) -> Adapted:
    if len(s.args) != 1:
        raise Unfit("another number of operands")
    if s.kwargs.get("alpha", 1) != 1:
        raise Unfit("alpha")
    return [s.input, s.args[0]], {}


def swapped(s: Any) -> Adapted:
    operands, attrs = binary(s)
    return operands[::-1], attrs


def with_attrs(*names: str) -> Adapt:
    """The input alone; the other arguments are attributes of the same names."""

    def adapt(s: Any) -> Adapted:
        given = _named(s, *names)
        return [s.input], {k: v for k, v in _only(given, *names).items() if v is not None}

    return adapt


def with_tensors(*names: str, **defaults: Any) -> Adapt:
    """Every argument that is named is an operand."""

    def adapt(s: Any) -> Adapted:
        given = _named(s, *names)
        return [s.input, *(given.get(n) for n in names)], dict(defaults)

    return adapt


def div(s: Any) -> Adapted:
    return [s.input, *s.args], _only(dict(s.kwargs), "rounding_mode")


def where(s: Any) -> Adapted:
    if len(s.args) != 2 or "bool" not in str(s.args[0].dtype):
        raise Unfit("a condition that is not bool")
    return [s.args[0], s.input, s.args[1]], {}


def masked_fill(s: Any) -> Adapted:
    mask, value = s.args
    kind = value.dtype if hasattr(value, "dtype") else type(value)
    if kind not in (s.input.dtype, float if s.input.is_floating_point() else int) or "bool" in str(
        s.input.dtype
    ):
        raise Unfit("a value of another type")
    return [mask, value, s.input], {}


def rounding(s: Any) -> Adapted:
    return [s.input], _only(dict(s.kwargs), "decimals")


def to_dtype(name: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        return [s.input], {"dtype": name}

    return adapt


def threshold_zero(s: Any) -> Adapted:
    given = _named(s, "negative_slope", "inplace")
    return [s.input], {k: v for k, v in given.items() if k == "negative_slope"}


def inplace(*names: str) -> Adapt:
    """Attributes by name; ``inplace`` says nothing here."""

    def adapt(s: Any) -> Adapted:
        given = _named(s, *names)
        given.pop("inplace", None)
        return [s.input], _only(given, *names)

    return adapt


def celu(s: Any) -> Adapted:
    alpha = _named(s, "alpha").get("alpha", 1.0)
    return [s.input], {"alpha": alpha, "input_scale": 1 / alpha}


def selu(s: Any) -> Adapted:
    return [s.input], {"alpha": 1.6732632423543772848170429916717, "scale": 1.0507009873554804934193349852946}


def relu6(s: Any) -> Adapted:
    return [s.input, 0, 6], {}


def hardtanh(s: Any) -> Adapted:
    if not s.input.is_floating_point():
        raise Unfit("integers between fractions, which PyTorch cuts off first")
    given = _named(s, "min_val", "max_val")
    return [s.input, given.get("min_val", -1.0), given.get("max_val", 1.0)], {}


def softplus(s: Any) -> Adapted:
    given = _named(s, "beta", "threshold")
    return [s.input], {"beta": given.get("beta", 1), "threshold": given.get("threshold", 20)}


def prelu(s: Any) -> Adapted:
    weight = s.kwargs["weight"] if "weight" in s.kwargs else s.args[0]
    if weight.dim() == 1 and s.input.dim() > 1:
        weight = weight.reshape(-1, *[1] * (s.input.dim() - 2))
    if weight.dim() > s.input.dim():
        weight = weight.reshape(())
    return [s.input, weight], {}


# ── reduce ──


def reduction(*names: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        given = _only(_named(s, "dim", "keepdim"), "dim", "keepdim", *names)
        dim = given.get("dim")
        if dim is not None and not isinstance(dim, int):
            given["dim"] = list(dim) or None  # PyTorch reduces over everything
        return [s.input], given

    return adapt


def truth(s: Any) -> Adapted:
    if "uint8" in str(s.input.dtype):
        raise Unfit("uint8, which PyTorch answers in uint8")
    return reduction()(s)


def variance(s: Any) -> Adapted:
    given = _named(s, *(("dim",) if len(s.args) < 2 else ("dim", "unbiased", "keepdim")))
    if isinstance(given.get("dim"), bool):
        given["unbiased"] = given.pop("dim")
    unbiased = given.pop("unbiased", None)
    if unbiased is not None:
        given["correction"] = int(unbiased)
    elif given.get("correction") is None:
        given["correction"] = 1
    dim = given.get("dim")
    given["dim"] = dim if isinstance(dim, int) or dim is None else list(dim) or None
    return [s.input], _only(given, "dim", "keepdim", "correction")


def along(s: Any) -> Adapted:
    given = _named(s, "dim", "keepdim")
    if not isinstance(given.get("dim"), int):
        raise Unfit("no dim, or another operand: another op")
    return [s.input], given


def running(s: Any) -> Adapted:
    return [s.input], _only(_named(s, "dim"), "dim", "dtype")


def vector_norm(s: Any) -> Adapted:
    given = _named(s, "ord", "dim", "keepdim")
    if given.get("dtype") is not None:
        raise Unfit("dtype")
    dim = given.get("dim")
    given["dim"] = dim if isinstance(dim, int) or dim is None else list(dim) or None
    given["ord"] = given.get("ord", 2)
    return [s.input], _only(given, "ord", "dim", "keepdim")


def softmax(s: Any) -> Adapted:
    return [s.input], _only(_named(s, "dim"), "dim", "dtype")


def cdist(s: Any) -> Adapted:
    given = _named(s, "x2", "p")
    return [s.input, given["x2"]], {"p": given.get("p", 2.0)}


# ── products ──


def addmm(s: Any) -> Adapted:
    return [s.input, *s.args], _only(dict(s.kwargs), "alpha", "beta")


def einsum(s: Any) -> Adapted:
    if str(s.input[0].dtype) in ("torch.int32", "torch.uint8", "torch.int8"):
        raise Unfit("small integers, which PyTorch widens where it takes a sum")
    return list(s.input), {"equation": s.args[0]}


def attention(s: Any) -> Adapted:
    q, k, v = s.input, *s.args[:2]
    given = dict(s.kwargs)
    if q.dim() != 4 or given.get("dropout_p"):
        raise Unfit("another rank, or dropout")
    given.pop("dropout_p", None)
    causal, mask = given.pop("is_causal", False), given.pop("attn_mask", None)
    given.pop("enable_gqa", None)
    return [q, k, v, mask], {"causal": causal, **_only(given, "scale")}


# ── convolution and pooling ──


def convolution(transposed: bool, unpadded: bool = False) -> Adapt:
    names = (
        ("stride", "padding", "output_padding", "groups", "dilation")
        if transposed
        else ("stride", "padding", "dilation", "groups")
    )

    def adapt(s: Any) -> Adapted:
        weight, *rest = s.args
        bias = rest.pop(0) if rest else s.kwargs.get("bias")
        given = {k: v for k, v in s.kwargs.items() if k != "bias"} | dict(zip(names, rest, strict=False))
        n = weight.dim() - 2
        if isinstance(given.get("padding"), str) or s.input.dim() != weight.dim():
            raise Unfit("padding by word, or no batch")
        attrs: dict[str, Any] = {"groups": given.get("groups", 1), "transposed": transposed}
        for key, default in (("stride", 1), ("padding", 0), ("dilation", 1)):
            attrs[key] = _list(given.get(key, default), n)
        if transposed:
            attrs["output_padding"] = _list(given.get("output_padding", 0), n)
        return [s.input, weight, bias], attrs

    return adapt


def unfold(s: Any) -> Adapted:
    given = _named(s, "kernel_size", "dilation", "padding", "stride")
    if s.input.dim() != 4:
        raise Unfit("no batch")
    defaults = {"dilation": 1, "padding": 0, "stride": 1}
    return [s.input], {k: _list(v, 2) for k, v in (defaults | given).items()}


def pool(n: int, *names: str) -> Adapt:
    """Kernel, stride and padding; dilation where the names have it."""

    def adapt(s: Any) -> Adapted:
        given = _named(s, *names)
        attrs: dict[str, Any] = {"kernel_size": _list(given["kernel_size"], n)}
        stride = given.get("stride")
        attrs["stride"] = attrs["kernel_size"] if stride in (None, [], ()) else _list(stride, n)
        attrs["padding"] = _list(given.get("padding", 0), n)
        attrs["dilation"] = _list(given.get("dilation", 1), n)
        attrs["ceil_mode"] = given.get("ceil_mode", False)
        if "count_include_pad" in names:
            attrs["count_include_pad"] = given.get("count_include_pad", True)
            attrs["divisor"] = given.get("divisor_override")
        return [s.input], attrs

    return adapt


AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


def adaptive(n: int) -> Adapt:
    def adapt(s: Any) -> Adapted:
        size = _list(_named(s, "output_size")["output_size"], n)
        space = s.input.shape[-n:]
        return [s.input], {"output_size": [d if o is None else o for o, d in zip(size, space, strict=True)]}

    return adapt


def unpool(n: int) -> Adapt:
    def adapt(s: Any) -> Adapted:
        given = _named(s, "indices", "kernel_size", "stride", "padding", "output_size")
        size = given.get("output_size")
        if size is None:
            kernel = _list(given["kernel_size"], n)
            stride = kernel if given.get("stride") is None else _list(given["stride"], n)
            padding = _list(given.get("padding", 0), n)
            size = [
                (d - 1) * t - 2 * p + k
                for d, t, p, k in zip(s.input.shape[-n:], stride, padding, kernel, strict=True)
            ]
        return [s.input, given["indices"]], {"output_size": list(size)[-n:]}

    return adapt


# ── normalisation ──


def layer_norm(s: Any) -> Adapted:
    given = _named(s, "normalized_shape", "weight", "bias", "eps")
    attrs = {"normalized_shape": list(given["normalized_shape"]), "eps": given.get("eps", 1e-5)}
    return [s.input, given.get("weight"), given.get("bias")], attrs


def rms_norm(s: Any) -> Adapted:
    import torch

    given = _named(s, "normalized_shape", "weight", "eps")
    wide = torch.float32 if s.input.dtype in (torch.bfloat16, torch.float16) else s.input.dtype
    eps = torch.finfo(wide).eps if given.get("eps") is None else given["eps"]
    return [s.input, given.get("weight")], {"normalized_shape": list(given["normalized_shape"]), "eps": eps}


def group_norm(s: Any) -> Adapted:
    given = _named(s, "num_groups", "weight", "bias", "eps")
    attrs = {"groups": given["num_groups"], "eps": given.get("eps", 1e-5)}
    return [s.input, given.get("weight"), given.get("bias")], attrs


def native_group_norm(s: Any) -> Adapted:
    weight, bias, _, _, _, groups, eps = s.args
    return [s.input, weight, bias], {"groups": groups, "eps": eps}


def instance_norm(s: Any) -> Adapted:
    given = _named(s, "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
    if not given.get("use_input_stats", True):
        raise Unfit("running statistics")
    return [s.input, given.get("weight"), given.get("bias")], {"eps": given.get("eps", 1e-5)}


def batch_norm(training: bool) -> Adapt:
    names = ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")

    def adapt(s: Any) -> Adapted:
        given = _named(s, *names)
        if bool(given.get("training", False)) is not training:
            raise Unfit("the other op")
        if s.input.dim() < 2:
            raise Unfit("no channels")
        affine = [given.get("weight"), given.get("bias")]
        statistics = [given["running_mean"], given["running_var"]]
        attrs: dict[str, Any] = {"eps": given.get("eps", 1e-5)}
        if training:
            attrs["momentum"] = given.get("momentum", 0.1)
        return [s.input, *affine, *statistics], attrs

    return adapt


def clone_first(s: Any, operands: list[Any], attrs: dict[str, Any]) -> Any:
    """Batch norm in training writes into its statistics: take the answer from copies."""
    import torch

    x, weight, bias, mean, var = operands
    copies = [t if t is None else t.clone() for t in (mean, var)]
    return torch.nn.functional.batch_norm(
        x, *copies, weight, bias, training=True, momentum=attrs["momentum"], eps=attrs["eps"]
    )


# ── data movement ──


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
    wanted = range(s.input.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    return [s.input], {"dims": [d for d in wanted if s.input.dim() and s.input.shape[d] == 1]}


def cat(s: Any) -> Adapted:
    if len({t.dtype for t in s.input}) != 1 or any(t.shape == (0,) for t in s.input):
        raise Unfit("mixed types, or an empty vector that PyTorch passes over")
    return list(s.input), {"dim": s.kwargs.get("dim", s.args[0] if s.args else 0)}


def split_sizes(s: Any) -> Adapted:
    given = _named(s, "sizes", "dim")
    return [s.input], {"sizes": list(given["sizes"]), "dim": given.get("dim", 0)}


def narrow(s: Any) -> Adapted:
    dim, start, length = s.args
    if not isinstance(start, int):
        raise Unfit("the start is a tensor")
    start = start + s.input.shape[dim] if start < 0 else start
    return [s.input], {"dim": dim, "start": start, "end": start + length}


def slice_scatter(s: Any) -> Adapted:
    given = _named(s, "src", "dim", "start", "end", "step")
    attrs = {k: given[k] for k in ("start", "end", "step") if given.get(k) is not None}
    return [s.input, given["src"]], {"dim": given.get("dim", 0), **attrs}


def slicing(s: Any) -> Adapted:
    given = _named(s, "dim", "start", "end", "step")
    return [s.input], {"dim": 0} | {k: v for k, v in given.items() if v is not None}


def select_scatter(s: Any) -> Adapted:
    src, dim, place = s.args
    return [s.input, src], {"dim": dim, "index": place}


def flip(s: Any) -> Adapted:
    given = s.args[0] if s.args and not isinstance(s.args[0], int) else s.args
    return [s.input], {"dims": list(given or s.kwargs["dims"])}


def flip_axis(axis: int) -> Adapt:
    return lambda s: ([s.input], {"dims": [axis]})


def roll(s: Any) -> Adapted:
    given = _named(s, "shifts", "dims")
    axes = given.get("dims", ())
    axes = [axes] if isinstance(axes, int) else list(axes)
    return [s.input], {"shifts": _list(given["shifts"], 1), "dims": axes}


def pad(mode: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        given = _named(s, "pad", "mode", "value")
        n = s.input.dim()
        begins, ends = [0] * n, [0] * n
        amounts = given["pad"]
        for i in range(len(amounts) // 2):
            begins[n - 1 - i], ends[n - 1 - i] = amounts[2 * i], amounts[2 * i + 1]
        value = given.get("value")
        return [s.input], {"pads": begins + ends, "mode": mode, "value": 0 if value is None else value}

    return adapt


def as_strided(s: Any) -> Adapted:
    given = _named(s, "size", "stride", "storage_offset")
    attrs = {"size": list(given["size"]), "stride": list(given["stride"])}
    offset = given.get("storage_offset") or 0
    if offset + sum((d - 1) * t for d, t in zip(*attrs.values(), strict=True)) >= s.input.numel():
        raise Unfit("reads beyond the view, into what it is a view of")
    return [s.input.clone()], attrs | {"offset": offset}


def strided_answer(s: Any, operands: list[Any], attrs: dict[str, Any]) -> Any:
    """Of the dense operand: the sample may be a view."""
    import torch

    return torch.as_strided(operands[0], attrs["size"], attrs["stride"], attrs["offset"])


def diagonal(s: Any) -> Adapted:
    return [s.input], _named(s, "offset", "dim1", "dim2")


def triangle(s: Any) -> Adapted:
    return [s.input], _named(s, "diagonal")


def shuffle(mode: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        if s.input.dim() < 3:
            raise Unfit("rank")
        return [s.input], {"block_size": (s.args or tuple(s.kwargs.values()))[0], "mode": mode}

    return adapt


# ── indexing ──


def gather(s: Any) -> Adapted:
    given = _named(s, "dim", "index")
    return [s.input, given["index"]], {"dim": given["dim"]}


def scatter(reduce: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        given = _named(s, "dim", "index", "src")
        src = given.get("src", given.get("value"))
        how = {"multiply": "mul", "sum": "add", "prod": "mul"}.get(
            given.get("reduce", ""), given.get("reduce")
        )
        return [s.input, given["index"], src], {"dim": given["dim"], "reduce": how or reduce}

    return adapt


def scatter_reduce(s: Any) -> Adapted:
    dim, places, src, how = s.args
    how = {"sum": "add", "prod": "mul"}.get(how, how)
    attrs = {"dim": dim, "reduce": how, "include_self": s.kwargs.get("include_self", True)}
    return [s.input, places, src], attrs


def index_copy(s: Any) -> Adapted:
    return [s.input, s.args[1], s.args[2]], {"dim": s.args[0]}


def index_put(s: Any) -> Adapted:
    indices, values = s.args[:2]
    if any(i is not None and "bool" in str(i.dtype) for i in indices):
        raise Unfit("a mask as an index")
    return [s.input, values, *indices], {
        "accumulate": _named(s, "i", "v", "accumulate").get("accumulate", False)
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
            raise Unfit("an index that is no tensor of integers")
    if all(i is None for i in indices):
        raise Unfit("no index")
    return [s.input, *indices], {}


def embedding(s: Any) -> Adapted:
    given = dict(s.kwargs)
    given.pop("padding_idx", None)
    _only(given)
    return [s.input, s.args[0]], {}


def embedding_bag(s: Any) -> Adapted:
    given = _named(s, "indices", "offsets")
    if given.get("max_norm") is not None or given.get("offsets") is None:
        raise Unfit("renormalisation, or bags of equal size")
    attrs = {
        "mode": given.get("mode", "mean"),
        "include_last_offset": given.get("include_last_offset", False),
    }
    if given.get("padding_idx") is not None:
        attrs["padding_idx"] = given["padding_idx"] % s.input.shape[0]
    return [s.input, given["indices"], given["offsets"], given.get("per_sample_weights")], attrs


def one_hot(s: Any) -> Adapted:
    import torch

    classes = _named(s, "num_classes").get("num_classes", -1)
    depth = int(s.input.max()) + 1 if classes == -1 else classes
    return [s.input, torch.tensor([0, 1])], {"depth": depth, "dim": s.input.dim()}


# ── search ──


def topk(s: Any) -> Adapted:
    return [s.input], _named(s, "k", "dim", "largest", "sorted")


def sort(s: Any) -> Adapted:
    given = _named(s, "dim", "descending")
    given["stable"] = True
    return [s.input], given


def stable_sort(s: Any, operands: list[Any], attrs: dict[str, Any]) -> Any:
    import torch

    return torch.sort(
        operands[0], dim=attrs.get("dim", -1), descending=attrs.get("descending", False), stable=True
    )


def stable_topk(s: Any, operands: list[Any], attrs: dict[str, Any]) -> Any:
    """Values by topk; their places by a stable sort, since topk leaves ties open."""
    import torch

    (x,), dim, largest = operands, attrs.get("dim", -1), attrs.get("largest", True)
    values, places = torch.sort(x, dim=dim, descending=largest, stable=True)
    return (
        (values, places)
        if not x.dim()
        else (values.narrow(dim, 0, attrs["k"]), places.narrow(dim, 0, attrs["k"]))
    )


def counted(*names: str) -> Adapt:
    """Operands by name; the count of results is data, which the op takes as a symbol."""
    from ..types import dim

    def adapt(s: Any) -> Adapted:
        given = _named(s, *names)
        if given.get("as_tuple"):
            raise Unfit("as a tuple")
        return [s.input, *(given[n] for n in names)], {"count": dim("u0")}

    return adapt


def unique(s: Any) -> Adapted:
    from ..types import dim

    if s.kwargs.get("dim") is not None and s.input.dim() == 0:
        raise Unfit("dim of a scalar")
    return [s.input], {"count": dim("u0"), "dim": s.kwargs.get("dim")}


def unique_values(s: Any, operands: list[Any], attrs: dict[str, Any]) -> Any:
    import torch

    return torch.unique(operands[0], sorted=True, dim=attrs["dim"])


# ── creation ──


def arange(s: Any) -> Adapted:
    import torch

    numbers = [s.input, *s.args, *([s.kwargs["end"]] if "end" in s.kwargs else [])]
    start, end, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    dtype = s.kwargs.get("dtype")
    dtype = torch.arange(start, end, step).dtype if dtype is None else dtype
    if not dtype.is_floating_point and any(isinstance(v, float) for v in numbers):
        raise Unfit(
            "fractions in a range of integers, which PyTorch cuts off before, or after, counting them"
        )
    kind = float if any(isinstance(v, float) for v in numbers) else int
    return [], {"start": kind(start), "end": kind(end), "step": kind(step), "dtype": dtype}


def eye(s: Any) -> Adapted:
    rows = s.input
    return [], {"rows": rows, "columns": s.args[0] if s.args else rows, "dtype": s.kwargs.get("dtype")}


def full(s: Any) -> Adapted:
    return [], {"size": list(s.input), "value": s.args[0], "dtype": s.kwargs["dtype"]}


# ── resampling ──


def grid_sample(s: Any) -> Adapted:
    grid, *rest = s.args
    if grid.element_size() < 4:
        raise Unfit("places in a half type, which PyTorch computes in it")
    given = dict(zip(("mode", "padding_mode", "align_corners"), rest, strict=False)) | dict(s.kwargs)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(given.get("mode", "bilinear"), given.get("mode"))
    return [s.input, grid], {
        "mode": mode,
        "padding_mode": given.get("padding_mode", "zeros"),
        "align_corners": bool(given.get("align_corners")),
    }


def interpolate(mode: str) -> Adapt:
    def adapt(s: Any) -> Adapted:
        given = _named(
            s, "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias"
        )
        if mode == "bicubic" and "uint8" in str(s.input.dtype):
            raise Unfit("uint8, which PyTorch clips after each axis")
        n = s.input.dim() - 2
        size, factor = given.get("size"), given.get("scale_factor")
        scales: list[float] = []
        if size is None:
            factors = [
                float(f)
                for f in (_list(factor, n) if isinstance(factor, int | tuple | list) else [factor] * n)
            ]
            size = [int(d * f) for d, f in zip(s.input.shape[2:], factors, strict=True)]
            if not given.get("recompute_scale_factor"):
                scales = [1.0, 1.0, *factors]
        size = [size] * n if isinstance(size, int) else list(size)
        attrs: dict[str, Any] = {
            "size": [*s.input.shape[:2], *size],
            "scales": scales,
            "antialias": bool(given.get("antialias")),
        }
        if mode == "nearest":
            return [s.input], attrs | {"mode": "nearest", "coordinates": "asymmetric", "nearest": "floor"}
        if mode == "nearest-exact":
            exact = {"mode": "nearest", "coordinates": "half_pixel", "nearest": "round_prefer_ceil"}
            return [s.input], attrs | exact
        if given.get("align_corners"):
            attrs["scales"] = []
        attrs["coordinates"] = "align_corners" if given.get("align_corners") else "half_pixel"
        attrs["exclude_outside"] = attrs["antialias"]
        if attrs["antialias"]:
            attrs["cubic_a"] = -0.5
        return [s.input], attrs | {"mode": "cubic" if mode == "bicubic" else "linear"}

    return adapt


# ── Fourier ──

_NORM = {
    "forward": {"forward": "by_n", "backward": "none"},
    "inverse": {"forward": "none", "backward": "by_n"},
}


def fourier(kind: str, several: bool) -> Adapt:
    """torch.fft's functions of one dim or several, without their cutting and filling."""

    def adapt(s: Any) -> Adapted:
        given = _named(s, "n", "dim", "norm")
        size = given.get("n", given.get("s"))
        if size is not None and kind != "c2r":
            raise Unfit("cut or filled to a size")
        default = tuple(range(s.input.dim())) if several else -1
        axes = given.get("dim", default)
        axes = [axes] if isinstance(axes, int) else list(default if axes is None else axes)
        if kind == "c2c" and not s.input.is_complex():
            raise Unfit("a real operand")
        if kind == "r2c" and (s.input.is_complex() or not s.input.is_floating_point()):
            raise Unfit("not a real operand")
        if kind == "c2r":
            if not s.input.is_complex() or not isinstance(size, int | None):
                raise Unfit("a real operand")
            last = 2 * (s.input.shape[axes[-1]] - 1) if size is None else size
            if last // 2 + 1 != s.input.shape[axes[-1]]:
                raise Unfit("cut or filled to a size")
            way = _NORM["inverse"]
            norm = way.get(given.get("norm") or "backward", "by_root")
            return [s.input], {"dims": axes, "normalization": norm, "last_size": last}
        inverse = kind == "c2c" and getattr(s, "inverse", False)
        norm = _NORM["inverse" if inverse else "forward"].get(given.get("norm") or "backward", "by_root")
        return [s.input], {"dims": axes, "normalization": norm}

    return adapt


# ── gradients: the forward op's samples, PyTorch's autograd ──


def _gradient(forward: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    """A random gradient of the result, and the gradients of the inputs that it gives."""
    import torch

    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    y = forward(*leaves)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)
    return grad, list(torch.autograd.grad(y, leaves, grad))


def _floats(s: Any) -> None:
    if not s.input.is_floating_point():
        raise Unfit("no gradient of integers")


def convolution_backward(transposed: bool) -> Adapt:
    forward = convolution(transposed)

    def adapt(s: Any) -> Adapted:
        import torch

        _floats(s)
        (x, weight, _), attrs = forward(s)
        arguments = {k: v for k, v in attrs.items() if k != "transposed"}
        functions = {
            (1, False): torch.nn.functional.conv1d,
            (2, False): torch.nn.functional.conv2d,
            (3, False): torch.nn.functional.conv3d,
            (1, True): torch.nn.functional.conv_transpose1d,
            (2, True): torch.nn.functional.conv_transpose2d,
            (3, True): torch.nn.functional.conv_transpose3d,
        }
        bias = torch.zeros(
            weight.shape[1] * attrs["groups"] if transposed else weight.shape[0], dtype=x.dtype
        )
        call = functions[weight.dim() - 2, transposed]
        grad, answer = _gradient(lambda a, b, c: call(a, b, c, **arguments), (x, weight, bias))
        return [grad, x, weight], attrs, answer

    return adapt


def pool_backward(forward: Adapt, names: tuple[str, ...]) -> Adapt:
    def adapt(s: Any) -> Adapted:
        import torch

        _floats(s)
        (x,), attrs = forward(s)
        if x.dim() != 4:
            raise Unfit("no batch")
        common = [attrs[k] for k in ("kernel_size", "stride", "padding")]
        if names is MAX:
            _, indices = torch.nn.functional.max_pool2d(
                x, *common, attrs["dilation"], attrs["ceil_mode"], return_indices=True
            )
            grad, answer = _gradient(
                lambda a: torch.nn.functional.max_pool2d(a, *common, attrs["dilation"], attrs["ceil_mode"]),
                (x,),
            )
            return [grad, x, indices], attrs, answer
        rest = (attrs["ceil_mode"], attrs["count_include_pad"], attrs["divisor"])
        grad, answer = _gradient(lambda a: torch.nn.functional.avg_pool2d(a, *common, *rest), (x,))
        return [grad, x], attrs, answer

    return adapt


def adaptive_backward(s: Any) -> Adapted:
    import torch

    _floats(s)
    (x,), attrs = adaptive(2)(s)
    if x.dim() != 4 or x.numel() == 0:
        raise Unfit("no batch, or empty")
    grad, answer = _gradient(lambda a: torch.nn.functional.adaptive_avg_pool2d(a, attrs["output_size"]), (x,))
    return [grad, x], {}, answer


def layer_norm_backward(s: Any) -> Adapted:
    import torch

    (x, weight, bias), attrs = layer_norm(s)
    if weight is None or bias is None or x.numel() == 0:
        raise Unfit("no scale, or empty")
    shape = attrs["normalized_shape"]
    _, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, attrs["eps"])
    grad, answer = _gradient(
        lambda a, b, c: torch.nn.functional.layer_norm(a, shape, b, c, attrs["eps"]), (x, weight, bias)
    )
    return [grad, x, mean, rstd, weight, bias], {"normalized_shape": shape}, answer


def group_norm_backward(s: Any) -> Adapted:
    import torch

    (x, weight, bias), attrs = group_norm(s)
    if weight is None or bias is None or x.numel() == 0:
        raise Unfit("no scale, or empty")
    n, c = x.shape[:2]
    _, mean, rstd = torch.native_group_norm(
        x, weight, bias, n, c, x.numel() // (n * c), attrs["groups"], attrs["eps"]
    )
    grad, answer = _gradient(
        lambda a, b, d: torch.nn.functional.group_norm(a, attrs["groups"], b, d, attrs["eps"]),
        (x, weight, bias),
    )
    return [grad, x, mean, rstd, weight], {"groups": attrs["groups"]}, answer


def embedding_backward(s: Any) -> Adapted:
    import torch

    given = dict(s.kwargs)
    _only({k: v for k, v in given.items() if k not in ("padding_idx", "scale_grad_by_freq")})
    weight, indices = s.input, s.args[0]
    padding = given.get("padding_idx")
    attrs = {
        "num_weights": weight.shape[0],
        "padding_idx": -1 if padding is None else padding % weight.shape[0],
        "scale_by_freq": bool(given.get("scale_grad_by_freq")),
    }
    grad, answer = _gradient(
        lambda w: torch.nn.functional.embedding(
            indices, w, padding, scale_grad_by_freq=attrs["scale_by_freq"]
        ),
        (weight,),
    )
    return [grad, indices], attrs, answer


_UNARY = ["abs", "neg", "sign", "ceil", "floor", "trunc", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sin", "sinh", "sqrt", "tan", "isnan", "isinf", "logical_not", "bitwise_not", "sigmoid", "tanh", "clone"]
_BINARY = ["mul", "pow", "maximum", "minimum", "fmod", "remainder", "atan2", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "add", "sub", "mm", "bmm", "matmul"]
_F = "nn.functional."
_CASTS = {
    "bfloat16": "bfloat16", "bool": "bool", "byte": "uint8", "char": "int8", "double": "float64", "float": "float32",
    "half": "float16", "int": "int32", "long": "int64", "short": "int16", "cfloat": "complex64",
}  # fmt: skip

BRIDGES: dict[str, Bridge] = (
    {name: Bridge(name, unary) for name in _UNARY}
    | {name: Bridge(name, binary) for name in _BINARY}
    | {f"{_F}{name}": Bridge(name, inplace()) for name in ("relu", "silu", "mish", "softsign", "hardswish")}
    | {name: Bridge("cast", to_dtype(dtype)) for name, dtype in _CASTS.items()}
    | {
        "rsub": Bridge("sub", swapped),
        "__rpow__": Bridge("pow", swapped),
        "true_divide": Bridge("div", binary),
        "floor_divide": Bridge("div", lambda s: (binary(s)[0], {"rounding_mode": "floor"})),
        "div": Bridge("div", div, variants=("no_rounding_mode", "trunc_rounding", "floor_rounding")),
        "round": Bridge("round", rounding, variants=("", "decimals_0", "decimals_3", "decimals_neg_3")),
        "where": Bridge("where", where),
        "masked_fill": Bridge("where", masked_fill),
        "clamp": Bridge("clamp", with_tensors("min", "max")),
        f"{_F}gelu": Bridge("gelu", with_attrs("approximate")),
        f"{_F}elu": Bridge("elu", inplace("alpha")),
        f"{_F}celu": Bridge("elu", celu),
        f"{_F}selu": Bridge("elu", selu),
        f"{_F}relu6": Bridge("clamp", relu6),
        f"{_F}hardtanh": Bridge("clamp", hardtanh),
        f"{_F}hardsigmoid": Bridge("hardsigmoid", inplace()),
        f"{_F}leaky_relu": Bridge("leaky_relu", inplace("negative_slope")),
        f"{_F}softplus": Bridge("softplus", softplus),
        f"{_F}prelu": Bridge("prelu", prelu),
        "softmax": Bridge("softmax", softmax, variants=("", "with_dtype")),
        "log_softmax": Bridge("log_softmax", softmax, variants=("", "with_dtype")),
        "sum": Bridge("sum", reduction("dtype")),
        "prod": Bridge("prod", reduction("dtype")),
        "mean": Bridge("mean", reduction("dtype")),
        "amax": Bridge("amax", reduction()),
        "amin": Bridge("amin", reduction()),
        "any": Bridge("any", truth),
        "all": Bridge("all", truth),
        "logsumexp": Bridge("logsumexp", reduction()),
        "var": Bridge("var", variance, variants=("", "unbiased")),
        "linalg.vector_norm": Bridge("vector_norm", vector_norm),
        "argmax": Bridge("argmax", with_attrs("dim", "keepdim")),
        "argmin": Bridge("argmin", with_attrs("dim", "keepdim")),
        "max": Bridge("max", along, variants=("reduction_with_dim",)),
        "min": Bridge("min", along, variants=("reduction_with_dim",)),
        "cumsum": Bridge("cumsum", running),
        "cumprod": Bridge("cumprod", running),
        "cdist": Bridge("cdist", cdist),
        f"{_F}pdist": Bridge("pdist", with_attrs("p")),
        f"{_F}linear": Bridge("linear", with_tensors("weight", "bias")),
        "addmm": Bridge("addmm", addmm, variants=("", "decomposed")),
        "einsum": Bridge("einsum", einsum),
        "linalg.det": Bridge("det", unary, variants=("", "singular")),
        f"{_F}scaled_dot_product_attention": Bridge("attention", attention),
        f"{_F}conv1d": Bridge("convolution", convolution(False)),
        f"{_F}conv2d": Bridge("convolution", convolution(False)),
        f"{_F}conv3d": Bridge("convolution", convolution(False)),
        f"{_F}conv_transpose1d": Bridge("convolution", convolution(True)),
        f"{_F}conv_transpose2d": Bridge("convolution", convolution(True)),
        f"{_F}conv_transpose3d": Bridge("convolution", convolution(True)),
        f"{_F}unfold": Bridge("im2col", unfold),
        f"{_F}avg_pool1d": Bridge("avg_pool", pool(1, *AVG)),
        f"{_F}avg_pool2d": Bridge("avg_pool", pool(2, *AVG)),
        f"{_F}avg_pool3d": Bridge("avg_pool", pool(3, *AVG)),
        f"{_F}max_pool1d": Bridge("max_pool", pool(1, *MAX)),
        f"{_F}max_pool2d": Bridge("max_pool", pool(2, *MAX)),
        f"{_F}max_pool3d": Bridge("max_pool", pool(3, *MAX)),
        f"{_F}adaptive_avg_pool1d": Bridge("adaptive_avg_pool", adaptive(1)),
        f"{_F}adaptive_avg_pool2d": Bridge("adaptive_avg_pool", adaptive(2)),
        f"{_F}adaptive_avg_pool3d": Bridge("adaptive_avg_pool", adaptive(3)),
        f"{_F}adaptive_max_pool1d": Bridge("adaptive_max_pool", adaptive(1)),
        f"{_F}adaptive_max_pool2d": Bridge("adaptive_max_pool", adaptive(2)),
        f"{_F}adaptive_max_pool3d": Bridge("adaptive_max_pool", adaptive(3)),
        f"{_F}max_unpool1d": Bridge("max_unpool", unpool(1)),
        f"{_F}max_unpool2d": Bridge("max_unpool", unpool(2)),
        f"{_F}max_unpool3d": Bridge("max_unpool", unpool(3)),
        f"{_F}layer_norm": Bridge("layer_norm", layer_norm),
        "native_layer_norm": Bridge("layer_norm", layer_norm),
        f"{_F}rms_norm": Bridge("rms_norm", rms_norm),
        f"{_F}group_norm": Bridge("group_norm", group_norm),
        "native_group_norm": Bridge("group_norm", native_group_norm),
        f"{_F}instance_norm": Bridge("instance_norm", instance_norm),
        f"{_F}batch_norm": Bridge("batch_norm", batch_norm(False)),
        "batch_norm.train": Bridge("batch_norm_train", batch_norm(True), clone_first, info=f"{_F}batch_norm"),
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
        "arange": Bridge("arange", arange),
        "eye": Bridge("eye", eye),
        "full": Bridge("full", full),
        "grid_sampler_2d": Bridge("grid_sample", grid_sample, info=f"{_F}grid_sample"),
        "interpolate.nearest": Bridge(
            "resize", interpolate("nearest"), variants=("nearest",), info=f"{_F}interpolate"
        ),
        "interpolate.nearest-exact": Bridge(
            "resize", interpolate("nearest-exact"), variants=("nearest-exact",), info=f"{_F}interpolate"
        ),
        "interpolate.linear": Bridge(
            "resize",
            interpolate("linear"),
            variants=("linear", "bilinear", "trilinear"),
            info=f"{_F}interpolate",
        ),
        "interpolate.bicubic": Bridge(
            "resize", interpolate("bicubic"), variants=("bicubic",), info=f"{_F}interpolate"
        ),
        "fft.fft": Bridge("fft_c2c", fourier("c2c", False)),
        "fft.fftn": Bridge("fft_c2c", fourier("c2c", True)),
        "fft.rfft": Bridge("fft_r2c", fourier("r2c", False)),
        "fft.rfftn": Bridge("fft_r2c", fourier("r2c", True)),
        "fft.irfft": Bridge("fft_c2r", fourier("c2r", False)),
        "fft.irfftn": Bridge("fft_c2r", fourier("c2r", True)),
        "conv1d.backward": Bridge("convolution_backward", convolution_backward(False), info=f"{_F}conv1d"),
        "conv2d.backward": Bridge("convolution_backward", convolution_backward(False), info=f"{_F}conv2d"),
        "conv_transpose2d.backward": Bridge(
            "convolution_backward", convolution_backward(True), info=f"{_F}conv_transpose2d"
        ),
        "avg_pool2d.backward": Bridge(
            "avg_pool_backward", pool_backward(pool(2, *AVG), AVG), info=f"{_F}avg_pool2d"
        ),
        "max_pool2d.backward": Bridge(
            "max_pool_backward", pool_backward(pool(2, *MAX), MAX), info=f"{_F}max_pool2d"
        ),
        "adaptive_avg_pool2d.backward": Bridge(
            "adaptive_avg_pool_backward", adaptive_backward, info=f"{_F}adaptive_avg_pool2d"
        ),
        "layer_norm.backward": Bridge("layer_norm_backward", layer_norm_backward, info=f"{_F}layer_norm"),
        "group_norm.backward": Bridge("group_norm_backward", group_norm_backward, info=f"{_F}group_norm"),
        "embedding.backward": Bridge("embedding_backward", embedding_backward, info=f"{_F}embedding"),
    }
)
