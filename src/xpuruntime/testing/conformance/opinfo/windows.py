"""Bridges of convolution and pooling."""

from __future__ import annotations

from typing import Any

from .bridge import Adapt, Adapted, Bridge, NotComparable, listed, named

__all__ = ["BRIDGES"]

_F = "nn.functional."


def convolution(transposed: bool, unpadded: bool = False) -> Adapt:
    names = (
        ("stride", "padding", "output_padding", "groups", "dilation")
        if transposed
        else ("stride", "padding", "dilation", "groups")
    )

    def adapt(s: Any) -> Adapted:
        weight, *positional = s.args
        bias = positional.pop(0) if positional else s.kwargs.get("bias")
        kwargs = {k: v for k, v in s.kwargs.items() if k != "bias"} | dict(
            zip(names, positional, strict=False)
        )
        n = weight.dim() - 2
        if isinstance(kwargs.get("padding"), str) or s.input.dim() != weight.dim():
            raise NotComparable("padding by word, or no batch")
        attrs: dict[str, Any] = {"groups": kwargs.get("groups", 1), "transposed": transposed}
        for key, default in (("stride", 1), ("padding", 0), ("dilation", 1)):
            attrs[key] = listed(kwargs.get(key, default), n)
        if transposed:
            attrs["output_padding"] = listed(kwargs.get("output_padding", 0), n)
        return [s.input, weight, bias], attrs

    return adapt


def unfold(s: Any) -> Adapted:
    kwargs = named(s, "kernel_size", "dilation", "padding", "stride")
    if s.input.dim() != 4:
        raise NotComparable("no batch")
    defaults = {"dilation": 1, "padding": 0, "stride": 1}
    return [s.input], {k: listed(v, 2) for k, v in (defaults | kwargs).items()}


def pool(n: int, *names: str) -> Adapt:
    """Return a bridge with kernel, stride and padding, and dilation if named."""

    def adapt(s: Any) -> Adapted:
        kwargs = named(s, *names)
        attrs: dict[str, Any] = {"kernel_size": listed(kwargs["kernel_size"], n)}
        stride = kwargs.get("stride")
        attrs["stride"] = attrs["kernel_size"] if stride in (None, [], ()) else listed(stride, n)
        attrs["padding"] = listed(kwargs.get("padding", 0), n)
        attrs["dilation"] = listed(kwargs.get("dilation", 1), n)
        attrs["ceil_mode"] = kwargs.get("ceil_mode", False)
        if "count_include_pad" in names:
            attrs["count_include_pad"] = kwargs.get("count_include_pad", True)
            attrs["divisor"] = kwargs.get("divisor_override")
        return [s.input], attrs

    return adapt


AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


def adaptive(n: int) -> Adapt:
    def adapt(s: Any) -> Adapted:
        size = listed(named(s, "output_size")["output_size"], n)
        space = s.input.shape[-n:]
        return [s.input], {"output_size": [d if o is None else o for o, d in zip(size, space, strict=True)]}

    return adapt


def unpool(n: int) -> Adapt:
    def adapt(s: Any) -> Adapted:
        kwargs = named(s, "indices", "kernel_size", "stride", "padding", "output_size")
        size = kwargs.get("output_size")
        if size is None:
            kernel = listed(kwargs["kernel_size"], n)
            stride = kernel if kwargs.get("stride") is None else listed(kwargs["stride"], n)
            padding = listed(kwargs.get("padding", 0), n)
            size = [
                (d - 1) * t - 2 * p + k
                for d, t, p, k in zip(s.input.shape[-n:], stride, padding, kernel, strict=True)
            ]
        return [s.input, kwargs["indices"]], {"output_size": list(size)[-n:]}

    return adapt


BRIDGES: dict[str, Bridge] = {
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
}
