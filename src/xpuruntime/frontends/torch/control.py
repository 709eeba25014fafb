"""Lowering of ``torch.cond``, ``while_loop`` and ``scan`` to the IR's ``cond`` and ``loop``, whose bodies are graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ...ir import Graph, GraphBuilder
from ...types import DType, TensorSpec
from ..builder import ImportBuilder
from ..not_lowered import NotLowered
from .ops import ComplexPair, TensorRef

if TYPE_CHECKING:
    from .lower import AtenLowering

__all__ = ["CONTROL"]


def _cond(lowering: AtenLowering, node: Any) -> list[str]:
    predicate, then, other, operands = (*node.args, ())[:4]
    values = _ControlOperands(lowering, operands)
    branches = []
    for branch in (then, other):
        body = _ControlBody(lowering, node.name)
        refs = body.inputs(values)
        branches.append(body.done(body.run(lowering.values[branch], refs)))
    condition = _scalar(lowering.b, _tensor(lowering, predicate, "its condition"))
    return _names(
        lowering.b.cond(condition, *values.tensors, then_branch=branches[0], else_branch=branches[1])
    )


def _while_loop(lowering: AtenLowering, node: Any) -> list[str]:
    """Lower a loop whose body ends with the condition of the next iteration; the first condition is computed before it."""
    check, step, carried, others = (lowering.values[a] if i < 2 else a for i, a in enumerate(node.args[:4]))
    for value in carried:
        _tensor(lowering, value, "a carried value")
    values = _ControlOperands(lowering, [*carried, *others])
    (first,) = _run(lowering, lowering.b, check, values.all)
    body = _ControlBody(lowering, node.name)
    body.b.input(body.b.fresh("i"), TensorSpec((), DType.INT64))
    refs = body.inputs(values)
    after = body.run(step, refs)
    (going,) = body.run(check, [*(TensorRef(v) for v in after), *refs[len(carried) :]])
    graph = body.done([_scalar(body.b, going), *after])
    condition = _scalar(lowering.b, first)
    attrs = {"body": graph, "carried": len(carried), "checked": True}
    return _names(lowering.b.loop(None, condition, *values.tensors, **attrs))


def _scan(lowering: AtenLowering, node: Any) -> list[str]:
    """Lower a scan as a loop that reads a slice of each scanned tensor; further results are stacked."""
    step, init, scanned, others = lowering.values[node.args[0]], *(*node.args[1:], ())[:3]
    values = _ControlOperands(lowering, [*init, *scanned, *others])
    for value in (*init, *scanned):
        _tensor(lowering, value, "a scanned value")
    length = lowering.b.spec(_tensor(lowering, scanned[0], "a scanned value")).shape[0]
    body = _ControlBody(lowering, node.name)
    i = body.b.input(body.b.fresh("i"), TensorSpec((), DType.INT64))
    refs = body.inputs(values)
    for k in range(len(init), len(init) + len(scanned)):
        row = body.b.index_select(refs[k].value, body.b.view(i, size=[1]), dim=0)
        refs[k] = TensorRef(str(body.b.squeeze(row, dims=[0])))
    graph = body.done(body.run(step, refs))
    attrs = {"body": graph, "carried": len(init), "trips": length}
    return _names(lowering.b.loop(None, None, *values.tensors, **attrs))


CONTROL: Mapping[str, Callable[[AtenLowering, Any], list[str]]] = MappingProxyType(
    {"cond": _cond, "scan": _scan, "while_loop": _while_loop}
)
"""Higher-order operator -> its lowering. Raises NotLowered."""


class _ControlOperands:
    """Operands of a node with bodies. all: every lowered operand. tensors: the values of those that are tensors."""

    def __init__(self, lowering: AtenLowering, operands: Sequence[Any]) -> None:
        self.all = [lowering.argument(o) for o in operands]
        if any(isinstance(o, ComplexPair) for o in self.all):
            raise NotLowered("control flow on complex tensors is not supported")
        self.tensors = [o.value for o in self.all if isinstance(o, TensorRef)]


class _ControlBody:
    """A graph under construction for one body."""

    def __init__(self, lowering: AtenLowering, name: str) -> None:
        self.outer = lowering
        self.b = ImportBuilder(f"{name}.body", lowering.b.reserved, lowering.b)

    def inputs(self, operands: _ControlOperands) -> list[Any]:
        """Declare an input for each tensor; return the operands as the body sees them."""
        return [
            TensorRef(self.b.input(self.b.fresh("operand"), self.outer.b.spec(o.value)))
            if isinstance(o, TensorRef)
            else o
            for o in operands.all
        ]

    def run(self, module: Any, arguments: Sequence[Any]) -> list[str]:
        return _run(self.outer, self.b, module, arguments)

    def done(self, results: Sequence[str]) -> Graph:
        for i, value in enumerate(results):
            self.b.output(f"{i}", value)
        return self.b.build()


def _run(outer: AtenLowering, b: ImportBuilder, module: Any, arguments: Sequence[Any]) -> list[str]:
    """Lower the nodes of a body into ``b``. Return its results. Raise NotLowered if a node has no form in the IR."""
    inner = type(outer)(b, outer.symbols, outer.max_rows, outer.draws)
    nodes = list(module.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    inner.values.update(zip(placeholders, arguments, strict=True))
    mark = len(b.nodes)
    if any(n.op == "get_attr" and not hasattr(getattr(module, n.target, None), "graph") for n in nodes):
        raise NotLowered("its body reads a tensor that is no operand")
    inner.nodes(nodes)
    for node in b.nodes[mark:]:
        if node.op == "opaque":
            raise NotLowered(f"its body has {node.attrs['op_type']}: {node.attrs['reason']}")
    (out,) = (n for n in nodes if n.op == "output")
    results = out.args[0] if isinstance(out.args[0], list | tuple) else [out.args[0]]
    return [_tensor(inner, value, "a result of its body") for value in results]


def _tensor(lowering: AtenLowering, value: Any, what: str) -> str:
    """Return the value of a tensor. Raise NotLowered for a number."""
    lowered = lowering.argument(value)
    if type(lowered) is not TensorRef:
        raise NotLowered(f"{what} is no tensor of real numbers")
    return lowered.value


def _scalar(b: GraphBuilder, value: str) -> str:
    return str(b.view(value, size=[])) if b.spec(value).rank else value


def _names(results: Any) -> list[str]:
    return [str(results)] if isinstance(results, str) else [str(r) for r in results]
