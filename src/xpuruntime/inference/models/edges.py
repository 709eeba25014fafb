"""The edges of a model: for each node, the names of the nodes whose results it reads, and of the model's inputs that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...ir import Graph
from ...program.program import CompiledProgram, ExecutionPlan
from ...protocols import ModelSource

__all__ = ["call_reads", "node_inputs", "node_reads"]


def node_reads(model: ModelSource) -> Mapping[str, tuple[str, ...]]:
    """Return the names of the nodes that each node reads, in the order of its inputs."""
    match model.format:
        case "program":
            return _of_program(model.graph)
        case "graph":
            return _of_graph(model.graph[0])
    producers = {value: n.name for n in model.nodes for value in n.outputs}
    return {n.name: _distinct(producers[v] for v in n.inputs if v in producers) for n in model.nodes}


def node_inputs(model: ModelSource) -> Mapping[str, tuple[str, ...]]:
    """Return the names of the model's inputs that each node reads. Nodes that read none are left out."""
    match model.format:
        case "program":
            found = _inputs_of_program(model.graph)
        case "graph":
            found = _inputs_of_graph(model.graph[0])
        case _:
            names = {s.name for s in model.inputs}
            found = {n.name: _distinct(v for v in n.inputs if v in names) for n in model.nodes}
    return {name: inputs for name, inputs in found.items() if inputs}


def _inputs_of_graph(graph: Graph) -> dict[str, tuple[str, ...]]:
    names, found = {v.name for v in graph.inputs}, dict[str, tuple[str, ...]]()
    for node in graph.nodes:
        read = tuple(v for v in node.values if v in names)
        for source in node.sources:
            name = source.name or node.name
            found[name] = _distinct((*found.get(name, ()), *read))
    return found


def _inputs_of_program(program: CompiledProgram) -> dict[str, tuple[str, ...]]:
    """Return the inputs that calls read, of their first node."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in program.entries:
        names, plan = {s.name for s in entry.inputs}, entry.plans[0]
        roots = {b.name: b.root for b in plan.buffers}
        for call in plan.calls:
            read = tuple(v for v in (roots.get(i, i) for i in call.inputs) if v in names)
            if call.nodes:
                found[call.nodes[0]] = _distinct((*found.get(call.nodes[0], ()), *read))
    return found


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _of_graph(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return the edges between the source nodes that the IR's nodes were lowered from."""
    reads: dict[str, dict[str, None]] = {}
    writers: dict[str, str] = {}
    for node in graph.nodes:
        for source in node.sources:
            name = source.name or node.name
            inputs = reads.setdefault(name, {})
            inputs |= {writers[v]: None for v in node.values if writers.get(v, name) != name}
            writers |= {v.name: name for v in node.outputs}
    return {name: tuple(inputs) for name, inputs in reads.items()}


def _of_program(program: CompiledProgram) -> dict[str, tuple[str, ...]]:
    reads: dict[str, tuple[str, ...]] = {}
    for entry in program.entries:
        for name, inputs in call_reads(entry.plans[0]).items():
            reads.setdefault(name, inputs)
    return reads


def call_reads(plan: ExecutionPlan) -> dict[str, tuple[str, ...]]:
    """Return the edges between calls. The first node of a call reads its inputs, and each other one reads the node before it: a
    program does not keep the edges inside a call.
    """
    roots = {b.name: b.root for b in plan.buffers}
    writers: dict[str, str] = {}
    reads: dict[str, tuple[str, ...]] = {}
    for call in plan.calls:
        inputs = _distinct(writers[r] for v in call.inputs if (r := roots.get(v, v)) in writers)
        for name in call.nodes:
            reads.setdefault(name, tuple(n for n in inputs if n != name))
            inputs = (name,)
        if call.nodes:
            writers |= {roots.get(v, v): call.nodes[-1] for v in call.outputs}
    return reads
