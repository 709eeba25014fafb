"""The verifier of the IR: structural rules, and types as the op table's inference returns them.

verify(graph)            raises IrError for the first violation
problems(graph)          every violation, as a list of IrErrors
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import IrError
from .attributes import Attrs
from .infer import check_operands, find_op, infer_normal, normalize, speaker
from .nodes import operand_specs
from .ops._types import agrees

if TYPE_CHECKING:
    from .graph import Graph, Node

__all__ = ["LAWS", "problems", "verify"]


def verify(graph: Graph) -> Graph:
    """Return the graph if it is valid. Raises IrError for the first violation."""
    for problem in _all(graph):
        raise problem
    return graph


def problems(graph: Graph) -> list[IrError]:
    """Return every violation, those of nodes node by node."""
    return list(_all(graph))


def _all(graph: Graph) -> Iterator[IrError]:
    for law in LAWS:
        findings = list(law(graph))
        yield from findings
        if findings and law is _names:  # other checks are meaningless with duplicate names
            return


def _names(graph: Graph) -> Iterator[IrError]:
    """Check that values have unique names, and that every node has outputs."""
    names = [v.name for v in graph.inputs]
    names += [w.name for w in graph.weights]
    names += [s.name for s in graph.states]
    for node in graph.nodes:
        if not node.outputs:
            yield IrError(f"graph {graph.name!r}", "has a node without outputs", got=node.op)
        names += [v.name for v in node.outputs]
    for name, count in Counter(names).items():
        if count > 1 or not name:
            problem = "defines a value twice" if name else "has a value without a name"
            yield IrError(
                f"graph {graph.name!r}", problem, got=f"%{name}", do="Give each value a unique name."
            )


def _order(graph: Graph) -> Iterator[IrError]:
    """Check that values are defined before they are read."""
    ready = {v.name for v in graph.inputs} | graph.weight_names | {s.name for s in graph.states}
    for node in graph.nodes:
        for name in node.values:
            if name not in ready:
                problem = (
                    "reads a value that is defined later"
                    if name in graph.values
                    else "reads a value that is not defined"
                )
                yield IrError(
                    _node(node),
                    problem,
                    got=f"%{name}",
                    do="Sort the nodes topologically.",
                )
        ready.update(v.name for v in node.outputs)


def _outputs(graph: Graph) -> Iterator[IrError]:
    """Check that outputs exist and have unique names."""
    who = f"graph {graph.name!r}"
    for output in graph.outputs:
        if output.value not in graph.values:
            yield IrError(who, f"output {output.name!r} is not a defined value", got=f"%{output.value}")
    for name, count in Counter(o.name for o in graph.outputs).items():
        if count > 1 or not name:
            yield IrError(
                who,
                "has two outputs of the same name" if name else "has an output without a name",
                got=repr(name),
            )


def _states(graph: Graph) -> Iterator[IrError]:
    """Check that a state's initial weight and next value exist and have its type."""
    for state in graph.states:
        who = f"state %{state.name}"
        if state.value.spec is None:
            yield IrError(who, "has no type")
            continue
        for role, name in (("starts from", state.init), ("becomes", state.next)):
            if name is None:
                continue
            value = graph.values.get(name)
            if value is None or (role == "starts from" and name not in graph.weight_names):
                yield IrError(
                    who,
                    f"{role} a {'weight' if role == 'starts from' else 'value'} that is not there",
                    got=f"%{name}",
                )
            elif value.spec != state.value.spec:
                yield IrError(who, f"{role} a value of another type", got=f"{value} for {state.value.spec}")


def _specs(graph: Graph) -> Iterator[IrError]:
    """Check that no dim is negative, and that weights are static."""
    for value in graph.values.values():
        if value.spec is not None and any(isinstance(d, int) and d < 0 for d in value.spec.shape):
            yield IrError(f"value %{value.name}", "has a negative dim", got=value.spec)
    for weight in graph.weights:
        if weight.value.spec is None or not weight.value.spec.is_static:
            yield IrError(f"weight %{weight.name}", "must have a static shape", got=weight.value.spec)
        elif weight.data:
            try:
                weight.content()
            except IrError as error:
                yield error


def _ops(graph: Graph) -> Iterator[IrError]:
    """Check each node against its entry in the op table, and its outputs against inference."""
    for node in graph.nodes:
        try:
            _check_node(node, graph)
        except IrError as error:
            yield error


LAWS: tuple[Callable[[Graph], Iterator[IrError]], ...] = (_names, _order, _outputs, _states, _specs, _ops)
"""All rules, in the order of checking."""


def _node(node: Node) -> str:
    origin = f" from {node.sources[0]}" if node.sources else ""
    return f"{node.op} %{node.name}{origin}"


def _check_node(node: Node, graph: Graph) -> None:
    row = find_op(node.op)
    who = speaker(row, node.name, node.sources)
    if node.op == "opaque":
        full = normalize(row, (), node.attrs, name=node.name, sources=node.sources)
        if full != node.attrs or not str(full["reason"]).strip():
            raise IrError(who, "needs domain, op_type, attributes and a reason", got=dict(node.attrs))
        if any(i is not None and not isinstance(i, str) for i in node.inputs):
            raise IrError(who, "takes values only", got=node.inputs)
        return
    inputs_exist = all(i in graph.values for i in node.values)
    if not inputs_exist:
        return  # reported by _order
    operands = operand_specs(row, node.inputs, graph.values, who)
    check_operands(row, operands, who)
    full = normalize(row, operands, node.attrs, name=node.name, sources=node.sources)
    if full != node.attrs:
        differing = sorted(k for k in full if Attrs({k: full[k]}) != Attrs({k: node.attrs.get(k)}))
        name = differing[0] if differing else sorted(set(node.attrs) - set(full))[0]
        raise IrError(
            who,
            f"attribute {name!r} is not in canonical form",
            got=f"{node.attrs.get(name)!r}, wanted {full.get(name)!r}",
            do="Create nodes with GraphBuilder or Editor.",
        )
    specs = infer_normal(row, operands, full, who)
    if not row.min_outputs <= len(node.outputs) <= len(specs) or (
        row.outputs[-1].rest and len(node.outputs) != len(specs)
    ):
        raise IrError(who, f"has {len(specs)} outputs", got=len(node.outputs), do=f"See {row.signature}.")
    for value, spec in zip(node.outputs, specs, strict=False):
        if not agrees(value.spec, spec):
            raise IrError(
                who,
                f"output %{value.name} does not have the inferred type",
                got=f"{value.spec}, inferred {spec}",
                do="Create nodes with GraphBuilder or Editor.",
            )
