"""PyTorch modules as the edits see them. Only layers can be changed; adds and masks are in code."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from xpuruntime.protocols import Array

from .site import EPSILON, Site, Use

__all__ = ["ModuleForm"]

NORM_ROLES = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "variance"}
# activation class -> a similar one, with its arguments
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "ReLU": ("LeakyReLU", {}),
    "ReLU6": ("ReLU", {}),
    "LeakyReLU": ("ReLU", {}),
    "Sigmoid": ("Hardsigmoid", {}),
    "Tanh": ("Softsign", {}),
    "SiLU": ("Hardswish", {}),
    "Hardswish": ("SiLU", {}),
    "GELU": ("SiLU", {}),
    "GELUActivation": ("SiLU", {}),
    "SiLUActivation": ("Hardswish", {}),
}


class ModuleForm:
    """A ``torch.nn.Module``."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def uses(self) -> list[Use]:
        from torch import nn

        weight_uses = []
        for path, layer in self.module.named_modules():
            tensors = {
                **dict(layer.named_parameters(recurse=False)),
                **dict(layer.named_buffers(recurse=False)),
            }
            for key, tensor in tensors.items():
                name = f"{path}.{key}"
                if not tensor.is_floating_point():
                    continue
                if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
                    axis = int(bool(getattr(layer, "transposed", False)))
                    weight_uses.append(
                        Use(name, path, "bias") if key == "bias" else Use(name, path, "kernel", axis)
                    )
                elif isinstance(layer, nn.Embedding):
                    weight_uses.append(Use(name, path, "table"))
                elif key in NORM_ROLES and tensor.ndim == 1:
                    weight_uses.append(Use(name, path, NORM_ROLES[key]))
        return weight_uses

    def array(self, weight: str) -> Array:
        return np.asarray(self._tensor(self.module, weight).detach().numpy())

    def with_array(self, weight: str, array: Array) -> Any:
        import torch

        changed = copy.deepcopy(self.module)
        with torch.no_grad():
            self._tensor(changed, weight).copy_(torch.from_numpy(array))
        return changed

    def structure(self) -> Iterator[Site]:
        from torch import nn

        for path, layer in self.module.named_modules():
            kind = type(layer).__name__
            if kind in ACTIVATIONS:
                replacement, arguments = ACTIVATIONS[kind]
                make = partial(self._with_layer, path, partial(getattr(nn, replacement), **arguments))
                yield Site("change_activation", path, f"{kind} is {replacement}", make)
            for name in ("eps", "variance_epsilon"):
                if isinstance(getattr(layer, name, None), float):
                    text = f"{name} {getattr(layer, name):g} is {EPSILON:g}"
                    yield Site(
                        "change_epsilon", path, text, partial(self._with_attribute, path, name, EPSILON)
                    )

    @staticmethod
    def _tensor(module: Any, name: str) -> Any:
        path, _, key = name.rpartition(".")
        return getattr(module.get_submodule(path), key)

    def _with_attribute(self, path: str, name: str, value: Any) -> Any:
        changed = copy.deepcopy(self.module)
        setattr(changed.get_submodule(path), name, value)
        return changed

    def _with_layer(self, path: str, make: Callable[[], Any]) -> Any:
        changed = copy.deepcopy(self.module)
        parent, _, name = path.rpartition(".")
        setattr(changed.get_submodule(parent), name, make())
        return changed.eval()
