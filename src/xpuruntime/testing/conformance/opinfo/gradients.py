"""Bridges of gradients: the forward op's samples with PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .bridge import Adapt, Answered, Bridge, NotComparable, only
from .norms import group_norm, layer_norm
from .windows import AVG, MAX, adaptive, convolution, pool

__all__ = ["BRIDGES"]

_F = "nn.functional."


def _gradient(forward: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return a random gradient of the result, and the resulting gradients of the inputs."""
    import torch

    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    y = forward(*leaves)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)
    return grad, list(torch.autograd.grad(y, leaves, grad))


def _floats(s: Any) -> None:
    if not s.input.is_floating_point():
        raise NotComparable("no gradient of integers")


def convolution_backward(transposed: bool) -> Callable[[Any], Answered]:
    forward = convolution(transposed)

    def adapt(s: Any) -> Answered:
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


def pool_backward(forward: Adapt, names: tuple[str, ...]) -> Callable[[Any], Answered]:
    def adapt(s: Any) -> Answered:
        import torch

        _floats(s)
        (x,), attrs = forward(s)
        if x.dim() != 4:
            raise NotComparable("no batch")
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
        options = (attrs["ceil_mode"], attrs["count_include_pad"], attrs["divisor"])
        grad, answer = _gradient(lambda a: torch.nn.functional.avg_pool2d(a, *common, *options), (x,))
        return [grad, x], attrs, answer

    return adapt


def adaptive_backward(s: Any) -> Answered:
    import torch

    _floats(s)
    (x,), attrs = adaptive(2)(s)
    if x.dim() != 4 or x.numel() == 0:
        raise NotComparable("no batch, or empty")
    grad, answer = _gradient(lambda a: torch.nn.functional.adaptive_avg_pool2d(a, attrs["output_size"]), (x,))
    return [grad, x], {}, answer


def layer_norm_backward(s: Any) -> Answered:
    import torch

    (x, weight, bias), attrs = layer_norm(s)
    if weight is None or bias is None or x.numel() == 0:
        raise NotComparable("no scale, or empty")
    shape = attrs["normalized_shape"]
    _, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, attrs["eps"])
    grad, answer = _gradient(
        lambda a, b, c: torch.nn.functional.layer_norm(a, shape, b, c, attrs["eps"]), (x, weight, bias)
    )
    return [grad, x, mean, rstd, weight, bias], {"normalized_shape": shape}, answer


def group_norm_backward(s: Any) -> Answered:
    import torch

    (x, weight, bias), attrs = group_norm(s)
    if weight is None or bias is None or x.numel() == 0:
        raise NotComparable("no scale, or empty")
    n, c = x.shape[:2]
    _, mean, rstd = torch.native_group_norm(
        x, weight, bias, n, c, x.numel() // (n * c), attrs["groups"], attrs["eps"]
    )
    grad, answer = _gradient(
        lambda a, b, d: torch.nn.functional.group_norm(a, attrs["groups"], b, d, attrs["eps"]),
        (x, weight, bias),
    )
    return [grad, x, mean, rstd, weight], {"groups": attrs["groups"]}, answer


def embedding_backward(s: Any) -> Answered:
    import torch

    kwargs = dict(s.kwargs)
    only({k: v for k, v in kwargs.items() if k not in ("padding_idx", "scale_grad_by_freq")})
    weight, indices = s.input, s.args[0]
    padding = kwargs.get("padding_idx")
    attrs = {
        "num_weights": weight.shape[0],
        "padding_idx": -1 if padding is None else padding % weight.shape[0],
        "scale_by_freq": bool(kwargs.get("scale_grad_by_freq")),
    }
    grad, answer = _gradient(
        lambda w: torch.nn.functional.embedding(
            indices, w, padding, scale_grad_by_freq=attrs["scale_by_freq"]
        ),
        (weight,),
    )
    return [grad, indices], attrs, answer


BRIDGES: dict[str, Bridge] = {
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
