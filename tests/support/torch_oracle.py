"""PyTorch as the oracle of graphs that are made of its models: extract, run with the interpreter, compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.frontends.torch import import_torch
from xpuruntime.ir import interp
from xpuruntime.testing.conformance.opinfo import to_numpy

nn = torch.nn

TOLERANCE = 5e-5


def gap(got: Any, want: Any) -> float:
    """The largest difference, over the largest value where one is not 0."""
    want = to_numpy(want).astype(np.float64)
    if not want.size:
        return 0.0
    return float(np.abs(got.astype(np.float64) - want).max() / (np.abs(want).max() or 1.0))


def opaque(graph: ir.Graph) -> list[str]:
    return [f"{n.attrs['op_type']}: {n.attrs['reason']}" for n in graph if n.op == "opaque"]


def feeds_of(graph: ir.Graph, tensors: Any) -> dict[str, Any]:
    return {v.name: to_numpy(t) for v, t in zip(graph.inputs, tensors, strict=True)}


class OfFunction(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, *others: Any) -> Any:
        return self.function(x, *others)


class OfFunctions(nn.Module):
    """Functions of the same tensors as a module. Its results are all of theirs."""

    def __init__(self, functions: Any) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *tensors: Any) -> Any:
        results = [function(*tensors) for function in self.functions]
        return tuple(y for r in results for y in ([r] if isinstance(r, torch.Tensor) else r))


def run_natively(functions: Any, *tensors: Any) -> list[Any]:
    """The results of functions by the native engine on the CPU, without the self-check."""
    policy = xrt.ExecutionPolicy(caching=False, self_check="off")
    module = OfFunctions(functions).eval()
    with xrt.InferenceSession(
        module, example_inputs=tensors, device="cpu", engine="native", exec_policy=policy
    ) as session:
        return list(session.run(list(tensors)).values())


def same(function: Any, *tensors: Any, dynamic_shapes: Any = None, others: Any = ()) -> ir.Graph:
    """Extract, run, compare with PyTorch; also on other inputs than the example's. Gives the graph."""
    module = function if isinstance(function, nn.Module) else OfFunction(function).eval()
    graph, weights = import_torch(module, tensors, dynamic_shapes=dynamic_shapes)
    assert not opaque(graph)
    for given in (tensors, *others):
        with torch.no_grad():
            want = module(*given)
        got = interp.run(graph, feeds_of(graph, given), weights=weights)
        flat = [want] if isinstance(want, torch.Tensor) else list(want)
        for mine, theirs in zip(got.values(), flat, strict=True):
            assert mine.dtype == to_numpy(theirs).dtype
            assert mine.shape == tuple(theirs.shape)
            assert gap(mine, theirs) <= TOLERANCE
    return graph
