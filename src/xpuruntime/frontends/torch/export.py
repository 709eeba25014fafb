"""Export of a module to an ExportedProgram: example inputs, dynamic shapes, and readable errors."""

from __future__ import annotations

import contextlib
import inspect
import re
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import EngineUnavailable, InputError, ModelError
from .derivatives import needs_plain_ops, of_plain_ops
from .distribution_checks import distributions_unchecked
from .encoder_padding import padding_as_in_eval
from .flex_attention import flex_attention_as_ops
from .tracing_shortcuts import tracing_shortcuts
from .triangular_solves import solves_as_in_eval

__all__ = [
    "TRACING",
    "arguments_of",
    "as_exported",
    "error_source",
    "exported",
    "find_torch",
    "first_lines",
    "no_warnings",
    "shapes_by_argument",
]

_WITH_LINE = ("branches", "fixed position", "casts or moves", "cannot be exported")
"""Problems that a line of the model's code has."""
TRACING = threading.RLock()
"""Held while PyTorch traces: its tracer has state of the process, and of two exports in two threads at least one fails."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_INTERNAL = re.compile(
    r"[/\\](torch[/\\](?!nn[/\\])|torch[/\\]nn[/\\]modules[/\\]module\.py|xpuruntime[/\\]frontends[/\\]|contextlib\.py)"
)
"""Frames that say nothing about the model: PyTorch's own, except its layers, and this package's."""
_CALLS = {
    "_detect_is_causal_mask": "Pass tgt_is_causal=True or False with tgt_mask= (is_causal= with mask= of an encoder): "
    "without it PyTorch compares the mask's content. Or export the part without it."
}
"""Functions of PyTorch's layers that read a tensor's content -> how to avoid it in the call."""
_CONTROL_FLOW = "Branch on something known at export (a shape, a flag), use torch.where or torch.cond, or export the part without it."
_REASONS = (
    (
        "not a known type",
        "takes or returns an object that PyTorch cannot flatten into tensors",
        "Return tensors, tuples or dicts (transformers: config.use_cache = False), or register the type with torch.export.register_dataclass.",
    ),
    (
        "Couldn't swap",
        "casts or moves a layer in forward, which torch.export does not support",
        "Cast or move the layer before, as model.to(dtype), and only tensors in forward.",
    ),
    (
        "no fake impl",
        "calls an operator that has no implementation for shapes",
        "Register one with torch.library.register_fake: it returns an empty tensor of the result's shape and dtype.",
    ),
    (
        "specialized integer from data-dependent",
        "takes a fixed position or number from the content of a tensor",
        "To write to x[i], or to use i next to other indices, give i a dim: x[i.view(1)]. A sum or product takes the tensor itself instead of int(i).",
    ),
    ("data-dependent", "branches on the content of a tensor", _CONTROL_FLOW),
    ("DataDependentOutput", "branches on the content of a tensor", _CONTROL_FLOW),
    (
        "but got FakeTensor",
        "takes a size from the content of a tensor, as packed sequences do",
        "Give recurrent layers padded rows instead of a PackedSequence, and mask or select their results by the lengths.",
    ),
    ("GuardOnDataDependent", "branches on the content of a tensor", _CONTROL_FLOW),
    (
        "aten.linalg_lstsq",
        "has a least-squares problem, which torch.export does not support",
        "Solve the normal equations: torch.linalg.solve(a.mT @ a, a.mT @ b).",
    ),
    (
        "Pending unbacked symbols",
        "has a size that depends on the content of a tensor and that no result has",
        "If an index has a mask and other indices or masks, write each mask as indices: x[mask.nonzero()[:, 0], i].",
    ),
    (
        "Constraints violated",
        "does not allow the requested dynamic shapes",
        "Use the torch.export.Dim that PyTorch suggests, or omit that dim.",
    ),
    (
        "dynamic_shapes",
        "cannot be exported with these dynamic shapes",
        "Give dynamic_shapes the structure of the inputs: {'x': {0: 'batch'}}.",
    ),
)


def find_torch() -> Any:
    """Return the torch package. Raise EngineUnavailable if it is missing, or too old for ``torch.export``."""
    try:
        import torch
    except ImportError as error:
        raise EngineUnavailable(
            "extract_ir",
            "reading a PyTorch model needs PyTorch, which is not installed",
            do="Run: pip install 'xpuruntime[torch]'",
        ) from error
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < (2, 6):
        raise EngineUnavailable(
            "extract_ir",
            "reading a PyTorch model needs PyTorch 2.6 or later",
            got=torch.__version__,
            do="Run: pip install --upgrade torch",
        )
    return torch


def error_source(name: str) -> str:
    """Return the subject of error messages."""
    return f"extract_ir({name!r})"


def exported(model: Any, example_inputs: Any, dynamic_shapes: Any, who: str) -> Any:
    """Return the ExportedProgram of a module for example inputs.

    example_inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
    dynamic_shapes: as in ``torch.export.export``; a dim may also be a string, which is its name.
    Raise InputError for inputs of another kind, ModelError if PyTorch cannot export the model.
    """
    torch = find_torch()
    args, kwargs = arguments_of(example_inputs, who)
    shapes = _named_dims(dynamic_shapes, {})
    args, kwargs = _each_its_own(_without_ones(args, kwargs, shapes, model))
    try:
        with as_exported(torch, model), tracing_shortcuts(torch):
            try:
                return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
            except Exception as error:
                if shapes or not needs_plain_ops(error):
                    raise
                plain = _plain_or_none(torch, model, args, kwargs)
                if plain is None:
                    raise
                return torch.export.export(plain, args, kwargs, strict=False)
    except Exception as error:  # PyTorch raises many classes, most of them its own RuntimeErrors
        text = str(error).strip() or type(error).__name__
        problem, do = next(
            ((problem, do) for key, problem, do in _REASONS if key in text or key in type(error).__name__),
            (
                "cannot be exported",
                "Make torch.export.export(model, inputs) work first; the traceback above has its reason.",
            ),
        )
        if any(word in problem for word in _WITH_LINE):
            text, do = _branch(error, text), next((_CALLS[f] for f in _functions(error)), do)
        raise ModelError(who, problem, got=first_lines(text), do=do) from error


@contextlib.contextmanager
def as_exported(torch: Any, model: Any) -> Iterator[None]:
    """Have PyTorch and the model take the branches that are exported, and hold the lock of exports."""
    with (
        TRACING,
        torch.no_grad(),
        no_warnings(),
        padding_as_in_eval(torch),
        solves_as_in_eval(model),
        flex_attention_as_ops(),
        distributions_unchecked(torch),
    ):
        yield


def _plain_or_none(torch: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """Return a module that takes derivatives as one of plain ops, or None if PyTorch cannot trace it either."""
    try:
        return of_plain_ops(torch, model, args, kwargs)
    except Exception:
        return None


def _each_its_own(arguments: Any) -> Any:
    """Return arguments whose tensors are different objects.

    ``torch.export`` takes a tensor that is passed twice, or that is a buffer of the module, for one input: the other is not read.
    """
    torch = find_torch()
    return torch.utils._pytree.tree_map(lambda v: v.detach() if torch.is_tensor(v) else v, arguments)


def first_lines(text: str, count: int = 6) -> str:
    """Return the first lines of a text, without object addresses."""
    lines = [_ADDRESS.sub("", line.strip()) for line in text.splitlines() if line.strip()]
    return " ".join(lines[:count])[:900]


def _branch(error: BaseException, text: str) -> str:
    """Return what PyTorch says, such as a condition that it could not decide, and the line of the model's code where it does."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _INTERNAL.search(f.filename)]
    if not frames:
        return text
    last = frames[-1]
    return f"{text.strip().splitlines()[0]} at {last.filename}:{last.lineno}: {last.line}"


def _functions(error: BaseException) -> list[str]:
    """Return the known functions of PyTorch's layers in the traceback."""
    return [f.name for f in traceback.extract_tb(error.__traceback__) if f.name in _CALLS]


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    """Suppress PyTorch's internal deprecation warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def arguments_of(example_inputs: Any, who: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments of a call. Raise InputError."""
    torch = find_torch()
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, tuple | list):
        return tuple(example_inputs), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    raise InputError(
        who,
        "needs example inputs",
        got=type(example_inputs).__name__,
        do="Pass one tensor, a tuple of positional arguments, or a dict of keyword arguments.",
    )


def _named_dims(shapes: Any, dims_by_name: dict[str, Any]) -> Any:
    """Return dynamic shapes with strings replaced by dims; one name is one dim."""
    torch = find_torch()
    if isinstance(shapes, str):
        return dims_by_name.setdefault(shapes, torch.export.Dim(shapes))
    if isinstance(shapes, Mapping):
        return {k: _named_dims(v, dims_by_name) for k, v in shapes.items()}
    if isinstance(shapes, list | tuple):
        return type(shapes)(_named_dims(v, dims_by_name) for v in shapes)
    return shapes


def _without_ones(args: Any, kwargs: Any, shapes: Any, model: Any) -> tuple[Any, Any]:
    """Return the examples with dynamic dims of 1 expanded to 2, because PyTorch specializes a 1.

    Shapes that do not fit the arguments change nothing: torch.export reports them.
    """
    bound = _bound(model, args, kwargs)
    if not shapes or bound is None:
        return args, kwargs
    by_name = _by_name(shapes, bound)
    for name, value in bound.arguments.items():
        bound.arguments[name] = _without_ones_in(value, by_name.get(name))
    return bound.args, bound.kwargs


def shapes_by_argument(model: Any, example_inputs: Any, shapes: Any, who: str) -> Mapping[str, Any]:
    """Return dynamic shapes by the name of the argument of ``forward``; those of ``*args`` are a tuple."""
    bound = _bound(model, *arguments_of(example_inputs, who)) if shapes else None
    return {} if bound is None else _by_name(shapes, bound)


def _bound(model: Any, args: Any, kwargs: Any) -> inspect.BoundArguments | None:
    """Return the arguments by name; None if it is not a valid call of this model, which torch.export reports."""
    try:
        return inspect.signature(getattr(model, "forward", model)).bind(*args, **kwargs)
    except TypeError:
        return None


def _by_name(shapes: Any, bound: inspect.BoundArguments) -> Mapping[str, Any]:
    """Return shapes by argument; none for another kind of value, such as a ``ShapesCollection``."""
    if isinstance(shapes, Mapping):
        return shapes
    return dict(zip(bound.arguments, shapes, strict=False)) if isinstance(shapes, list | tuple) else {}


def _without_ones_in(value: Any, shape: Any) -> Any:
    torch = find_torch()
    if isinstance(value, torch.Tensor) and shape:
        dims = shape if isinstance(shape, Mapping) else dict(enumerate(shape))
        size = list(value.shape)
        for axis, requested in dims.items():
            if (
                requested is not None
                and not isinstance(requested, int)
                and axis in range(len(size))
                and size[axis] == 1
                and _is_dynamic(requested)
            ):
                size[axis] = 2
        return value if size == list(value.shape) else value.expand(size).clone()
    if isinstance(value, tuple | list) and isinstance(shape, tuple | list):
        if len(value) != len(shape):
            return value
        return type(value)(_without_ones_in(v, s) for v, s in zip(value, shape, strict=True))
    if isinstance(value, dict) and isinstance(shape, Mapping):
        return {k: _without_ones_in(v, shape.get(k)) for k, v in value.items()}
    return value


def _is_dynamic(requested: Any) -> bool:
    """Return whether a dim is requested as dynamic (``Dim.STATIC`` requests the contrary)."""
    return "STATIC" not in str(requested)
