"""All that decides the graph of a module except the ops of its ``forward``: names, forms, settings, and the content of tensors that no checkpoint has."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..checkpoints import saved_names
from ..export import arguments_of, error_source
from ..exported_digest import settings, traces_differently
from ..weights import tensor_key
from .running import TracedCall
from .words import MOST_BYTES, NotTraced, content_word, form_of, plain_word

__all__ = ["call_of", "outline_digest"]

_KINDS = ("Tensor", "Parameter", "Buffer")


def call_of(model: Any, example_inputs: Any) -> TracedCall:
    """Return the tensors of a module and the arguments of its call. Raise InputError."""
    args, kwargs = arguments_of(example_inputs, error_source(type(model).__name__))
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors.update(model.named_buffers(remove_duplicate=False))
    return TracedCall(tensors, args, kwargs)


def outline_digest(model: Any, call: TracedCall) -> str:
    """Return the digest. Raise NotTraced for compiled or scripted parts, or with tensors of other kinds."""
    if traces_differently():
        raise NotTraced("autocast, or a mode that intercepts ops")
    require_released_decompositions()
    digest = hashlib.sha256()

    def add(*words: object) -> None:
        digest.update(("\0".join(map(str, words)) + "\1").encode("utf-8", "surrogatepass"))

    add(*settings(), *_layout_settings())
    _add_parts(model, add)
    _add_tensors(model, call.tensors, add)
    _add_arguments(model, call, add)
    saved = saved_names(model)
    add(*(word for name in sorted(saved) for word in (name, saved[name])))
    return digest.hexdigest()


def _layout_settings() -> tuple[object, ...]:
    """Return settings on which strides of results may depend."""
    import torch

    return torch._C._get_mkldnn_enabled(), torch.backends.cudnn.enabled, torch.is_inference_mode_enabled()


def require_released_decompositions() -> None:
    """Require that decompositions of PyTorch's ops are its own. Raise NotTraced."""
    from torch._decomp import global_decomposition_table

    for op, function in global_decomposition_table["post_autograd"].items():
        module = str(getattr(getattr(function, "func", function), "__module__", None))
        if module.partition(".")[0] != "torch" and getattr(op, "namespace", "") in ("aten", "prims"):
            raise NotTraced(f"a decomposition of {op} that is not PyTorch's")


_Add = Callable[..., None]


def _add_parts(model: Any, add: _Add) -> None:
    import torch

    for path, part in model.named_modules(remove_duplicate=False):
        cls = type(part)
        if isinstance(part, torch.jit.ScriptModule) or getattr(part, "_compiled_call_impl", None) is not None:
            raise NotTraced("a compiled or scripted module")
        if hasattr(part, "_orig_mod"):
            raise NotTraced("a compiled module")
        add(path, cls.__module__, cls.__qualname__, part.training)


def _add_tensors(model: Any, tensors: Mapping[str, Any], add: _Add) -> None:
    """Add the form of each tensor, and which are tied. Buffers that are not persistent become part of a graph, with their content."""
    import torch

    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    groups: dict[object, int] = {}
    memories: dict[int, int] = {}
    inside = _not_persistent(model)
    left = MOST_BYTES
    for name, tensor in tensors.items():
        if type(tensor) not in plain or tensor.layout is not torch.strided or tensor.is_meta:
            raise NotTraced(f"a tensor of class {type(tensor).__name__} or without content")
        memory = memories.setdefault(tensor.untyped_storage()._cdata, len(memories))
        group = groups.setdefault(tensor_key(tensor), len(groups))
        flags = (
            tensor.is_conj(),
            tensor.is_neg(),
            tensor.requires_grad,
            isinstance(tensor, torch.nn.Parameter),
        )
        add(name, form_of(tensor), flags, group, memory)
        if name in inside:
            left -= tensor.numel() * tensor.element_size()
            if left < 0:
                raise NotTraced("large buffers that are not persistent")
            add(content_word(tensor))


def _not_persistent(model: Any) -> set[str]:
    return {
        f"{path}.{name}" if path else name
        for path, part in model.named_modules(remove_duplicate=False)
        for name in part._non_persistent_buffers_set
    }


def _add_arguments(model: Any, call: TracedCall, add: _Add) -> None:
    import torch

    leaves, structure = torch.utils._pytree.tree_flatten((call.args, dict(call.kwargs)))
    add(structure)
    for leaf in leaves:
        add(f"{form_of(leaf)} {leaf.requires_grad}" if isinstance(leaf, torch.Tensor) else plain_word(leaf))
    for name, parameter in inspect.signature(model.forward).parameters.items():
        add(name, parameter.kind.name)
