"""The digest of an ExportedProgram: equal digests give equal graphs, so that a graph which was read before need not be decomposed again.

It covers everything that decomposition and import read: nodes, their arguments and the tensors that they are traced with, the signature, names, lines
of code, the bytes of constants, and PyTorch's release and settings. It covers no parameter's content, which is not read.
"""

from __future__ import annotations

import hashlib
import math
import operator
import struct
from collections.abc import Callable, Mapping
from typing import Any

from .decompose_once import decomposes_as_released
from .export import TRACING, find_torch
from .names import output_names, source_of
from .tracing_shortcuts import composite_ops_listed_once
from .weights import tensor_key, to_array

__all__ = ["exported_digest", "settings", "traces_differently"]

_NAMESPACES = ("aten", "prims")
"""Ops whose decomposition belongs to PyTorch's release, unless it was replaced. Others may change with the user's code."""
_FUNCTIONS = frozenset({operator.getitem})
_TENSORS = ("Tensor", "Parameter", "Buffer", "FakeTensor")
"""Classes of tensors. Other ones may have ops of their own."""


class _Unknown(Exception):
    """The program holds something whose content has no text."""


def exported_digest(program: Any, saved: Mapping[str, str]) -> str | None:
    """Return the digest; None for a program that it does not cover: dynamic shapes, nested graphs, ops of others, tensors without content.

    saved: the names of tensors in checkpoints, as ``saved_names`` returns them.
    """
    digest = hashlib.sha256()

    def add(*words: object) -> None:
        for word in words:
            text = str(word).encode("utf-8", "surrogatepass")
            digest.update(struct.pack("<q", len(text)) + text)

    if program.range_constraints or traces_differently():
        return None
    with TRACING, composite_ops_listed_once():
        if not decomposes_as_released(find_torch().export.default_decompositions()):
            return None
    try:
        add(*settings())
        for node in program.graph.nodes:
            _add_node(node, add)
        _add_signature(program, add)
        add(len(saved), *(word for name in sorted(saved) for word in (name, saved[name])))
        groups: dict[object, int] = {}
        for name, tensor in program.state_dict.items():
            add(name, _described(tensor), groups.setdefault(tensor_key(tensor), len(groups)))
        for name, tensor in program.constants.items():
            add(name, _described(tensor), groups.setdefault(tensor_key(tensor), len(groups)))
            digest.update(_content(tensor))
    except _Unknown:
        return None
    return digest.hexdigest()


_Add = Callable[..., None]


def traces_differently() -> bool:
    """Return whether the caller's context changes what PyTorch records: autocast, or a mode that intercepts ops."""
    torch = find_torch()
    depths = [getattr(torch._C, f"_len_torch_{name}_stack", None) for name in ("function", "dispatch")]
    return any(map(torch.is_autocast_enabled, ("cpu", "cuda"))) or any(d is None or d() for d in depths)


def settings() -> tuple[object, ...]:
    """Return PyTorch's release, and the settings that a decomposition depends on."""
    torch = find_torch()
    return torch.__version__, torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()


def _add_node(node: Any, add: _Add) -> None:
    source = source_of(node, "")
    add(node.op, node.name, _target(node), _text(node.args), _text(node.kwargs), _text(node.meta.get("val")))
    add(source.module, source.file, source.line)


def _target(node: Any) -> str:
    torch = find_torch()
    if node.op in ("placeholder", "output"):
        return str(node.target)
    if node.op == "call_function":
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in _NAMESPACES:
            return str(node.target.name())
        if node.target in _FUNCTIONS:
            return str(node.target.__name__)
    raise _Unknown


def _add_signature(program: Any, add: _Add) -> None:
    signature = program.graph_signature
    for spec in (*signature.input_specs, *signature.output_specs):
        arg = spec.arg
        named = getattr(arg, "name", ""), _text(getattr(arg, "value", None)), type(arg).__name__
        add(spec.kind.name, *named, spec.target, getattr(spec, "persistent", None))
    add(*output_names(program.call_spec.out_spec))


def _text(value: Any) -> str:
    """Return a value of a node as text, from which it follows. Raise _Unknown."""
    torch = find_torch()
    if value is None or isinstance(value, bool | int | str):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, float):
        return f"float {value.hex() if math.isfinite(value) else value}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    if isinstance(value, Mapping):
        return f"dict({', '.join(f'{k!r}: {_text(v)}' for k, v in value.items())})"
    if isinstance(value, slice):
        return f"slice({', '.join(map(_text, (value.start, value.stop, value.step)))})"
    if isinstance(value, torch.fx.Node):
        return f"%{value.name}"
    if isinstance(value, torch.Tensor):
        return _described(value)
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return str(value)
    raise _Unknown


def _described(tensor: Any) -> str:
    """Return a tensor without its content as text. Raise _Unknown."""
    torch = find_torch()
    kind = type(tensor).__name__
    if kind not in _TENSORS or tensor.layout is not torch.strided:
        raise _Unknown
    sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    if not all(type(size) is int for size in sizes):
        raise _Unknown
    flags = tensor.is_conj(), tensor.is_neg(), tensor.requires_grad, tensor.is_meta
    return f"{tensor.dtype} {sizes} {tensor.device} {flags} {kind}"


def _content(tensor: Any) -> bytes:
    if tensor.is_meta or type(tensor).__name__ == "FakeTensor" or tensor.is_complex():
        raise _Unknown
    return to_array(tensor).tobytes()
