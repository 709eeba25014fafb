"""Graphs with dynamic sizes: compiled for each size that occurs, up to a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

__all__ = ["MAX_SIZES", "GraphBySize", "has_dynamic_sizes"]

MAX_SIZES = 8
"""Maximum sizes that one graph is compiled for."""


def has_dynamic_sizes(module: GraphModule) -> bool:
    """Return True if an input of the graph is a symbolic number, or a tensor with symbolic sizes."""
    values = [n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"]
    return any(
        isinstance(v, torch.SymInt)
        or (isinstance(v, torch.Tensor) and not all(type(d) is int for d in v.shape))
        for v in values
    )


class GraphBySize:
    """A function of a graph with dynamic sizes.

    compiled: compiles a graph with static sizes. beyond: the function of this graph for sizes beyond ``MAX_SIZES``.
    """

    def __init__(
        self,
        module: GraphModule,
        compiled: Callable[[GraphModule], Callable[..., Any]],
        beyond: Callable[[], Callable[..., Any]],
    ) -> None:
        self._module, self._compiled, self._beyond = module, compiled, beyond
        self._by_size: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._rest: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        """Return the graph's results."""
        key = tuple((tuple(a.shape), a.stride()) if isinstance(a, torch.Tensor) else a for a in args)
        run = self._by_size.get(key)
        if run is None:
            run = self._prepared(key, args)
        if run is self._rest:
            return run(list(args))
        return run([a for a in args if isinstance(a, torch.Tensor)])

    def _prepared(self, key: tuple[Any, ...], args: Sequence[Any]) -> Callable[..., Any]:
        """Prepare a size once, whichever thread calls first."""
        with compile_lock:  # tracing changes state of the whole process
            run = self._by_size.get(key)
            if run is None and len(self._by_size) < MAX_SIZES:
                run = self._by_size[key] = self._compiled(_static(self._module, args))
            if run is None:
                run = self._rest = self._rest or self._beyond()
            return run


def _static(module: GraphModule, args: Sequence[Any]) -> GraphModule:
    """Return the graph for the sizes of these arguments. Its inputs are the tensors only."""
    with torch.no_grad(), _compiling():
        traced = make_fx(module, tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
    inputs = [n for n in traced.graph.nodes if n.op == "placeholder"]
    for node, value in zip(inputs, args, strict=True):
        if not isinstance(value, torch.Tensor):
            traced.graph.erase_node(node)
    traced.recompile()
    return traced


@contextmanager
def _compiling() -> Iterator[None]:
    """Mark the block as a part of ``torch.compile``. Other threads could not call compiled functions while it traces."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
