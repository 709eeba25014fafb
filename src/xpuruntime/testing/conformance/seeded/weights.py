"""Seeded weights that expose errors: every number of a module is random, scaled so that activations stay alive.

A freshly made network exposes few errors. Its biases are zeros, its norms are ones and zeros, deep branches vanish next to the
stream that they are added to, and every input ends in the same class: a compiler may drop any of these without changing an output.
Here every parameter and statistic is random. Statistics are measured on data in the order in which layers run (as in
"All you need is a good init", Mishkin and Matas 2016, for variances), so that activations stay of order one at any depth.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....protocols import Array

__all__ = ["draw", "seed_weights"]

GAIN = 1.3  # of linear layers: attention scores get a spread of about 1.7, so that a softmax prefers without saturating
SPREAD = 0.4  # of the logarithm of a norm's scale: mostly two thirds to one and a half
SHIFT = 0.3  # standard deviation of biases and of statistics, relative to the values they shift
LIFT = 0.8  # mean bias of batch norms: a ReLU then zeroes a fifth of the values, which limits the growth of rounding errors


def draw(seed: int, name: str, shape: Sequence[int]) -> Array:
    """Return standard normal float32 numbers that depend only on the seed and the name, not on the order of drawing."""
    key = np.array([seed, zlib.crc32(name.encode())], np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).standard_normal(tuple(shape)).astype(np.float32)


def seed_weights(module: Any, inputs: Sequence[Any], *, seed: int = 0, head: str = "") -> Any:
    """Fill a ``torch.nn.Module`` in place and return it in eval mode, without gradients.

    A batch norm whose activation has a second bend has an attribute ``reach``: the mean and spread of outputs that reach it.
    inputs: a batch for the forward pass that sets statistics; it needs more than one example.
    head:   name of the last linear layer. Its outputs get mean zero and spread one over the batch before its bias is drawn,
            so that no class wins for every input.
    """
    import torch

    module.eval().requires_grad_(False)
    for name, layer in module.named_modules():
        for key, tensor in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
            if tensor.is_floating_point() and not _derived(layer, key):
                values = torch.from_numpy(draw(seed, f"{name}.{key}", tensor.shape))
                tensor.copy_(_scaled(layer, key, values))
    hooks = [
        layer.register_forward_pre_hook(_Statistics(seed, name))
        for name, layer in module.named_modules()
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
    ]
    if head:
        hooks.append(module.get_submodule(head).register_forward_hook(_Head(seed, head)))
    try:
        with torch.no_grad():
            module(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return module


def _derived(layer: Any, key: str) -> bool:
    """Return True for values set from data, and for buffers that are not weights (the frequencies of a rotary embedding)."""
    return key.startswith("running_") or (key not in ("weight", "bias") and not _is_parameter(layer, key))


def _is_parameter(layer: Any, key: str) -> bool:
    return key in dict(layer.named_parameters(recurse=False))


def _scaled(layer: Any, key: str, values: Any) -> Any:
    """Return numbers of spread one, scaled by the kind of parameter."""
    from torch import nn

    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        center, spread = getattr(layer, "reach", (LIFT, 1.0))
        return values * SHIFT + center if key == "bias" else (values * SPREAD).exp() * spread
    if key == "bias":
        return values * SHIFT
    if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
        return values * (GAIN / float(np.prod(values.shape[1:])) ** 0.5)
    if isinstance(layer, nn.Embedding):
        return values
    if values.ndim == 1:  # the scale of a norm of any class
        return (values * SPREAD).exp()
    return values * SHIFT  # class tokens and position embeddings


class _Statistics:
    """A hook before a batch norm: statistics near those of its input, but not equal to them."""

    def __init__(self, seed: int, name: str) -> None:
        self.seed, self.name = seed, name

    def __call__(self, layer: Any, inputs: tuple[Any, ...]) -> None:
        import torch

        (x,) = inputs
        axes = [a for a in range(x.ndim) if a != 1]
        mean, variance = x.mean(axes), x.var(axes) + 1e-3

        def noise(key: str) -> Any:
            return torch.from_numpy(draw(self.seed, f"{self.name}.{key}", mean.shape)) * SHIFT

        layer.running_mean.copy_(_coarse(mean + variance.sqrt() * noise("running_mean")))
        layer.running_var.copy_(_coarse(variance * noise("running_var").exp()))


class _Head:
    """A hook after the head: center and scale it over the batch, then shift it by its bias."""

    def __init__(self, seed: int, name: str) -> None:
        self.seed, self.name = seed, name

    def __call__(self, layer: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        import torch

        axes = list(range(output.ndim - 1))
        mean, spread = output.mean(axes), output.std(axes).mean()
        layer.weight.copy_(layer.weight / _coarse(spread))
        if layer.bias is not None:
            noise = torch.from_numpy(draw(self.seed, f"{self.name}.bias", mean.shape)) * SHIFT
            layer.bias.copy_(_coarse((layer.bias - mean) / spread + noise))


def _coarse(values: Any) -> Any:
    """Round to 8 bits of mantissa, so that a different order of additions on another machine gives the same weights."""
    return values.bfloat16().float()
