"""Modules whose ``forward`` takes derivatives (``torch.func``, ``torch.autograd.grad``), as modules of plain ops.

``torch.export`` cannot trace such calls: forces as gradients of an energy, residuals of differential equations, Jacobians.
``make_fx`` can. It traces below derivatives and batching, for the sizes of the examples, and refuses branches on the content of a tensor.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["needs_plain_ops", "of_plain_ops"]

_ERRORS = (
    "has no attribute 'constant'",
    "fake tensor in the exported program constant's list",
    "functorch tensor",
    "Cannot access data pointer of Tensor that doesn't have storage",
)
"""Parts of what PyTorch raises for derivatives within an export."""


def needs_plain_ops(error: Exception) -> bool:
    """Return whether an export may have failed because ``forward`` takes derivatives."""
    return any(part in str(error) for part in _ERRORS)


def of_plain_ops(torch: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a module with the parameters, buffers and arguments of ``model`` that computes the same by plain ops.

    Raises an error of PyTorch if it cannot trace the module, and NotImplementedError if ``forward`` replaces a buffer.
    """
    for mode in ("fake", "real"):  # fake tensors do not support forward-mode derivatives within vmap
        try:
            return _traced(torch, model, args, kwargs, mode)
        except NotImplementedError:
            raise
        except Exception:
            if mode == "real" or any(t.is_meta for t in model.state_dict(keep_vars=True).values()):
                raise
    raise AssertionError("unreachable")


def _traced(torch: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mode: str) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    pytree = torch.utils._pytree
    values, structure = pytree.tree_flatten((args, kwargs))
    places = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor)]
    results: list[Any] = []

    def computed(state: dict[str, Any], tensors: list[Any]) -> list[Any]:
        flat = list(values)
        for i, tensor in zip(places, tensors, strict=True):
            flat[i] = tensor
        own_args, own_kwargs = pytree.tree_unflatten(flat, structure)
        after = dict(state)  # functional_call stores there what forward assigns
        output = torch.func.functional_call(model, after, own_args, own_kwargs)
        if any(after[name] is not tensor for name, tensor in state.items()):
            raise NotImplementedError("forward takes derivatives and replaces a buffer")
        flat, output_structure = pytree.tree_flatten(output)
        results[:] = [output_structure, [None if isinstance(v, torch.Tensor) else (v,) for v in flat]]
        return [v for v in flat if isinstance(v, torch.Tensor)]

    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if mode == "real":  # forward may write to buffers
        state = {n: t.detach().clone().requires_grad_(t.requires_grad) for n, t in state.items()}
    trace = make_fx(computed, tracing_mode=mode, _allow_non_fake_inputs=True)
    graph = _cleaned(torch, trace(state, [values[i] for i in places]))
    output_structure, plain = results

    def forward(*args: Any, **kwargs: Any) -> Any:
        flat = pytree.tree_leaves((args, kwargs))
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        tensors = iter(graph(own, [v for v in flat if isinstance(v, torch.Tensor)]))
        return pytree.tree_unflatten(
            [next(tensors) if known is None else known[0] for known in plain], output_structure
        )

    module = torch.nn.Module()
    for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        setattr(module, name, getattr(model, name))
    module.forward = functools.wraps(model.forward)(forward)
    return module.eval()


def _cleaned(torch: Any, traced: Any) -> Any:
    """Return a graph module without checks of sizes, and with ordinary zeros as tangents."""
    aten = torch.ops.aten
    for node in traced.graph.nodes:
        if node.op == "call_function" and node.target is aten._efficientzerotensor.default:
            node.target = aten.zeros.default
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced
