"""Registration of a training op with torch.library: schema, kernels, fake tensors, autograd and vmap, from one ``TrainingOp``.

``xpuruntime::layer_norm(Tensor? x, ..., int dims, float eps, int policy) -> Tensor[]`` runs the formula of forward, and
``xpuruntime::layer_norm_backward(Tensor? grad, ..., bool[] wanted, int policy) -> Tensor[]`` runs the formula of backward and returns only
the gradients for which ``wanted`` is True. ``policy`` is the number of the policy under which the op runs (``numbered_policies``). Where no program
runs a formula, PyTorch's operators compute the op (``eager``, ``eager_backward``). Gradients of gradients are those of ``eager_backward``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from ..deterministic import library_obeys
from ..formulas.formula import Formula
from ..numbered_policies import policy_of
from ..programs import BACKWARD, FORWARD, FormulaCall, run
from ..step_record import note_skipped
from ..transforms import active_transform, is_vmap_alone

__all__ = ["LIBRARY", "TrainingOp", "call", "define", "register"]

LIBRARY = "xpuruntime"
Tensors: TypeAlias = "Sequence[torch.Tensor]"


@dataclass(frozen=True, slots=True)
class TrainingOp:
    """One op with its backward. The functions take operands and then attributes, in the order of the formula.

    family:         its op family in policies.
    attributes:     name -> type of forward's attributes, in the formula's order.
    eager:          computes the results with PyTorch's operators.
    eager_backward: computes the gradients with differentiable operators of PyTorch, from backward's operands and attributes.
    shapes:         returns the shape of each result.
    dtypes:         returns the dtype of each result. By default each has the first operand's.
    gradients:      names of the operands that have gradients, in the order of ``wanted``.
    gradient_shapes: returns the shape of each gradient, from backward's operands and attributes.
    gradient_dtypes: returns the dtype of each gradient, from the same. By default each has that of ``grad``.
    saved:          operands of backward after ``grad``: names of forward's operands, or ``result0``, ``result1`` ...
    backward_attributes: name -> type of backward's attributes without ``wanted``. By default they are forward's.
    backward_values: computes the values of ``backward_attributes`` from forward's operands and attributes.
    one_gradient:   True if only the first result has a gradient.
    second_gradient: attributes of backward that differ for the gradient of the second result, with their values.
    rows:           True if the op accepts leading dims before those of every operand, so that vmap needs only one call.
    """

    name: str
    family: str
    forward: Formula
    backward: Formula
    attributes: Mapping[str, str]
    eager: Callable[..., Tensors]
    eager_backward: Callable[..., Tensors]
    shapes: Callable[..., Sequence[Sequence[int]]]
    gradients: tuple[str, ...]
    gradient_shapes: Callable[..., Sequence[Sequence[int]]]
    saved: tuple[str, ...]
    backward_attributes: Mapping[str, str] | None = None
    backward_values: Callable[..., tuple[Any, ...]] | None = None
    dtypes: Callable[..., Sequence[torch.dtype]] | None = None
    gradient_dtypes: Callable[..., Sequence[torch.dtype]] | None = None
    one_gradient: bool = False
    second_gradient: Mapping[str, Any] = field(default_factory=dict)
    rows: bool = False

    @property
    def of_backward(self) -> Mapping[str, str]:
        """Return name -> type of backward's attributes without ``wanted``."""
        return self.attributes if self.backward_attributes is None else self.backward_attributes


_library = torch.library.Library(LIBRARY, "FRAGMENT")
_ops: dict[str, TrainingOp] = {}


def call(name: str, *args: Any) -> list[torch.Tensor]:
    """Call a registered op. args: operands, attributes, and the number of the policy.

    Inside a transform of ``torch.func`` PyTorch's own operators compute the op. Under ``torch.vmap`` alone, an op with ``rows`` runs as it is.
    """
    if not torch.compiler.is_compiling():
        reason, op = active_transform(), _ops[name]
        if reason and not (op.rows and is_vmap_alone()):
            note_skipped(name, op.family, reason)
            return list(op.eager(*args[:-1]))
    return _dispatch(name, *args)


def _dispatch(name: str, *args: Any) -> list[torch.Tensor]:
    results: list[torch.Tensor] = getattr(torch.ops.xpuruntime, name).default(*args)
    return results


def register(op: TrainingOp) -> TrainingOp:
    """Define an op and its backward in PyTorch's library ``xpuruntime``."""
    _ops[op.name] = op
    schema = _schema(op.name, op.forward.operands, op.attributes)
    define(schema, _forward(op), _fake(op), _first_order(op), _save(op))
    schema = _schema(f"{op.name}_backward", op.backward.operands, {**op.of_backward, "wanted": "bool[]"})
    define(schema, _backward(op), _fake_backward(op), _second_order(op), _save_all)
    if op.rows:
        torch.library.register_vmap(f"{LIBRARY}::{op.name}", _vmap(op), lib=_library)
    return op


def define(
    schema: str,
    compute: Callable[..., list[torch.Tensor]],
    fake: Callable[..., list[torch.Tensor]],
    backward: Callable[..., tuple[Any, ...]],
    save: Callable[..., None],
) -> None:
    """Define one op of the library on CPU and CUDA.

    compute:  computes the results.
    fake:     returns empty results, for tracing.
    backward: computes the gradients of all arguments from those of the results (``setup_context`` of torch.library is ``save``).
    """
    name = schema.partition("(")[0]
    full = f"{LIBRARY}::{name}"
    _library.define(schema)
    _library.impl(name, compute, "CPU")
    _library.impl(name, compute, "CUDA")
    torch.library.register_fake(full, fake, lib=_library)
    torch.library.register_autograd(full, backward, setup_context=save, lib=_library)


def _schema(name: str, operands: Sequence[str], attributes: Mapping[str, str]) -> str:
    arguments = [f"Tensor? {n}" for n in operands] + [f"{kind} {n}" for n, kind in attributes.items()]
    return f"{name}({', '.join(arguments)}, int policy) -> Tensor[]"


# ── computing ──


def _forward(op: TrainingOp) -> Callable[..., list[torch.Tensor]]:
    count = len(op.forward.operands)

    def forward(*args: Any) -> list[torch.Tensor]:
        attributes = tuple(map(_hashable, args[count:-1]))
        numbered = policy_of(args[-1])
        results = run(FormulaCall(op.forward, op.family, FORWARD, args[:count], attributes, numbered))
        if results is None:
            with library_obeys(numbered):
                results = [*op.eager(*args[:-1])]
        return results

    return forward


def _backward(op: TrainingOp) -> Callable[..., list[torch.Tensor]]:
    count = len(op.backward.operands)

    def backward(*args: Any) -> list[torch.Tensor]:
        attributes = tuple(map(_hashable, args[count:-1]))
        numbered = policy_of(args[-1], backward=True)
        results = run(FormulaCall(op.backward, op.family, BACKWARD, args[:count], attributes, numbered))
        if results is None:
            with library_obeys(numbered):
                gradients = op.eager_backward(*args[:-2])
            results = [g for g, wanted in zip(gradients, args[-2], strict=True) if wanted]
        return results

    return backward


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _fake(op: TrainingOp) -> Callable[..., list[torch.Tensor]]:
    """Return the function of forward's empty results, which PyTorch traces with."""

    def fake(*args: Any) -> list[torch.Tensor]:
        first = next(a for a in args if isinstance(a, torch.Tensor))
        shapes = op.shapes(*args[:-1])
        dtypes = [first.dtype] * len(shapes) if op.dtypes is None else op.dtypes(*args[:-1])
        return [first.new_empty(s, dtype=dtype) for s, dtype in zip(shapes, dtypes, strict=False)]

    return fake


def _fake_backward(op: TrainingOp) -> Callable[..., list[torch.Tensor]]:
    def fake(*args: Any) -> list[torch.Tensor]:
        shapes = op.gradient_shapes(*args[:-2])
        dtypes = (
            [args[0].dtype] * len(shapes) if op.gradient_dtypes is None else op.gradient_dtypes(*args[:-2])
        )
        gradients = zip(shapes, dtypes, args[-2], strict=True)
        return [args[0].new_empty(shape, dtype=dtype) for shape, dtype, wanted in gradients if wanted]

    return fake


# ── gradients ──


def _save(op: TrainingOp) -> Callable[..., None]:
    count = len(op.forward.operands)

    def save(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
        named = dict(zip(op.forward.operands, inputs, strict=False))
        named |= {f"result{i}": result for i, result in enumerate(output)}
        ctx.save_for_backward(*(named.get(n) for n in op.saved))
        values = inputs[count:-1] if op.backward_values is None else op.backward_values(*inputs[:-1])
        ctx.attributes, ctx.policy = values, inputs[-1]

    return save


def _first_order(op: TrainingOp) -> Callable[..., tuple[Any, ...]]:
    """Return forward's function of gradients: one call of backward for each result that has a gradient, added up."""
    positions = [op.forward.operands.index(n) for n in op.gradients]
    arguments = len(op.forward.operands) + len(op.attributes) + 1

    def gradients(ctx: Any, grads: list[torch.Tensor | None]) -> tuple[Any, ...]:
        results: list[Any] = [None] * arguments
        wanted = [bool(ctx.needs_input_grad[p]) for p in positions]
        for i, grad in enumerate(grads[:1] if op.one_gradient else grads):
            if grad is None or not any(wanted):
                continue
            changed = op.second_gradient if i else {}
            named = zip(op.of_backward, ctx.attributes, strict=True)
            attributes = (changed.get(name, value) for name, value in named)
            operands = (grad, *ctx.saved_tensors)
            values = _dispatch(f"{op.name}_backward", *operands, *attributes, wanted, ctx.policy)
            wanted_positions = [p for p, w in zip(positions, wanted, strict=True) if w]
            for position, value in zip(wanted_positions, values, strict=True):
                results[position] = value if results[position] is None else results[position] + value
        return tuple(results)

    return gradients


def _save_all(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    ctx.tensors = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
    ctx.save_for_backward(*(inputs[i] for i in ctx.tensors))
    ctx.others = [None if isinstance(value, torch.Tensor) else value for value in inputs]


def _second_order(op: TrainingOp) -> Callable[..., tuple[Any, ...]]:
    """Return backward's function of gradients, which runs ``eager_backward`` and differentiates it with PyTorch's autograd."""

    def gradients(ctx: Any, grads: list[torch.Tensor | None]) -> tuple[Any, ...]:
        args = list(ctx.others)
        with torch.enable_grad():
            for position, tensor in zip(ctx.tensors, ctx.saved_tensors, strict=True):
                has_gradient = tensor.is_floating_point() and ctx.needs_input_grad[position]
                # Differentiate with respect to views: a saved result was computed from the saved operands, and their gradients must not
                # contain the path through it.
                args[position] = (
                    tensor.view_as(tensor) if tensor.requires_grad and has_gradient else tensor.detach()
                )
            all_outputs = op.eager_backward(*args[:-2])
            outputs = [v for v, wanted in zip(all_outputs, args[-2], strict=True) if wanted]
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None and o.requires_grad]
        positions = [p for p in ctx.tensors if ctx.needs_input_grad[p]]
        results: list[Any] = [None] * len(args)
        if pairs and positions:
            values = torch.autograd.grad(
                [o for o, _ in pairs],
                [args[p] for p in positions],
                [g for _, g in pairs],
                create_graph=torch.is_grad_enabled(),
                allow_unused=True,
            )
            for position, value in zip(positions, values, strict=True):
                results[position] = value
        return tuple(results)

    return gradients


# ── vmap ──


def _vmap(op: TrainingOp) -> Callable[..., tuple[Any, Any]]:
    """Return the function that runs a mapped call as one call, with the mapped dim as the first dim of every operand."""

    def batched(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        moved = [
            a if not isinstance(a, torch.Tensor) else _leading(a, d, info.batch_size)
            for a, d in zip(args, in_dims, strict=True)
        ]
        results = _dispatch(op.name, *moved)
        return results, [0] * len(results)

    return batched


def _leading(tensor: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    """Move the mapped dim to the front; repeat a tensor that is not mapped."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
