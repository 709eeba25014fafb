"""Names that the user knows: outputs, dims, modules, lines of code."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from ...ir import Source

__all__ = ["declared_dims", "output_names", "source_of", "user_frame"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_PYTORCH = ("/torch/", "\\torch\\")


def source_of(node: Any, op: str) -> Source:
    """Return the FX node name, ATen op, module path, and the innermost line of code outside PyTorch."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, *_ in stack.values() if not path.startswith("_empty_nn_module")]
    module = paths[-1] if paths else ""
    file, line = user_frame(node.meta.get("stack_trace") or "")
    return Source(name=node.name, op=op, module=_plain_path(module), file=file, line=line)


def user_frame(trace: str) -> tuple[str, int]:
    """Return file and line of the innermost frame of a stack trace outside PyTorch; ``("", 0)`` without one."""
    frames = _FRAME.findall(trace)
    outside = [f for f in frames if not f[0].startswith("torch/") and not any(p in f[0] for p in _PYTORCH)]
    file, line = outside[-1] if outside else ("", "0")
    return file, int(line[:18])


def _plain_path(path: str) -> str:
    """Return ``L['self'].layers.0`` (as strict exports write it) as ``layers.0``."""
    return re.sub(r"^L\['self'\]\.?", "", path)


def output_names(spec: Any) -> list[str]:
    """Return a name per flat output: ``output`` for a single one, ``output_0`` ... for several; keys and fields by their names."""
    from torch.utils import _pytree as pytree

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation warnings of pytree itself
        tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
        paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
    names = [".".join(_key(k) for k in path) for path in paths]
    return ["output" if not n else f"output_{n}" if n[0].isdigit() else n for n in names]


def _key(key: Any) -> str:
    for field in ("key", "name", "idx"):
        if hasattr(key, field):
            return str(getattr(key, field))
    return re.sub(r"\W+", "", str(key))


def declared_dims(shapes: Mapping[str, Any], names: list[str]) -> Iterator[tuple[str, int, str]]:
    """Yield (input, axis, name) for each dim that the user requested as dynamic; the name is empty if it has none.

    shapes: the user's ``dynamic_shapes`` by argument. names: the graph's inputs. Nested inputs have flat names, as PyTorch's
    placeholders do (``extra_k`` for ``{"extra": {"k": ...}}``).
    """
    for key, entry in shapes.items():
        yield from _walk(str(key), entry, set(names))


def _walk(name: str, entry: Any, inputs: set[str]) -> Iterator[tuple[str, int, str]]:
    if name in inputs and (isinstance(entry, Mapping | list | tuple)):
        dims = entry.items() if isinstance(entry, Mapping) else enumerate(entry)
        for axis, requested in dims:
            if requested is not None and not isinstance(requested, int) and "STATIC" not in str(requested):
                yield (
                    name,
                    axis,
                    requested if isinstance(requested, str) else getattr(requested, "__name__", ""),
                )
    elif isinstance(entry, Mapping):
        for key, inner in entry.items():
            yield from _walk(f"{name}_{key}", inner, inputs)
    elif isinstance(entry, list | tuple):
        for i, inner in enumerate(entry):
            yield from _walk(f"{name}_{i}", inner, inputs)
