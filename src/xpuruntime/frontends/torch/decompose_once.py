"""Decomposition of an ExportedProgram op by op: each distinct call is decomposed once, and its nodes are copied wherever the call occurs.

``ExportedProgram.run_decompositions`` traces the whole program twice, although a network repeats its blocks. Here it traces a small program
with one call of each kind. Calls are equal if their op, shapes, strides, dtypes, devices and attributes are. Names are those that tracing
the whole program would give, except those of views of tensors that are written in place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .export import find_torch, no_warnings
from .functional_calls import PLAIN_TENSORS, MustDecomposeWhole, asserts, functional_targets, is_static
from .nodes import as_list
from .view_writes import functional_writes

__all__ = ["decomposed_once", "decomposes_as_released"]

_CONSTANTS = "aten::lift_fresh_copy"
"""The copy of a constant, which tracing the whole program replaces although it is an op to keep."""
_KEPT_META = ("stack_trace", "nn_module_stack")
_SIZE_FREE = {"conv1d": 3, "conv2d": 4, "conv3d": 5, "batch_norm": None}
"""Ops that PyTorch decomposes to one call, whatever the sizes after the first are, and the rank of their input; None is any."""


class DecomposedProgram(NamedTuple):
    """The parts of an ExportedProgram that the import reads. Signatures have the names of the program that was decomposed."""

    graph: Any
    graph_signature: Any
    state_dict: Mapping[str, Any]
    constants: Mapping[str, Any]
    range_constraints: Mapping[Any, Any]
    call_spec: Any


@dataclass
class _Call:
    """A call in the small program.

    operands: its placeholders. results: what it returns, one node or a list of them. nodes: what it is decomposed to.
    any_size: whether it also represents calls with tensors of other sizes.
    """

    operands: list[Any]
    results: Any
    nodes: list[Any]
    any_size: bool

    @property
    def depends_on_sizes(self) -> bool:
        """True if calls of other sizes may differ after all."""
        whole = [n for n in self.nodes if n.target is not operator.getitem]
        return self.any_size and (len(whole) != 1 or isinstance(self.results, list))

    def value_of(self, part: Any, node: Any) -> Any:
        """Return the tensors of one of its nodes in the place of ``node``."""
        value = part.meta["val"]
        if not self.any_size:
            return value
        if part is self.results:
            return node.meta["val"]
        return tuple(node.meta["val"] if i == self.results.args[1] else v for i, v in enumerate(value))


def decomposed_once(program: Any, table: Mapping[Any, Any], keep: Callable[[Any], bool]) -> Any | None:
    """Return the program in functional ATen; None if it must be decomposed as a whole: dynamic shapes, nested graphs, changed inputs or
    buffers, writes to views.

    table: decompositions by op, without the ops to keep. keep: whether an op was removed from the table.
    """
    if program.range_constraints or program.graph_signature.backward_signature is not None:
        return None
    if any(s.kind.name != "USER_OUTPUT" for s in program.graph_signature.output_specs):
        return None
    if not all(
        type(t).__name__ in PLAIN_TENSORS for t in (*program.state_dict.values(), *program.constants.values())
    ):
        return None
    try:
        nodes = functional_writes(list(program.graph.nodes))
        targets = functional_targets(nodes)
        splits = {n: t for n, t in targets.items() if not _stays(t, table, keep)}
        released = decomposes_as_released(table)
        keys = {n: _key(t, n, released and _ignores_sizes(t, n)) for n, t in splits.items()}
        calls = _decomposed_calls({keys[n]: (t, n) for n, t in splits.items()}, program, table)
        several = {n: _key(t, n, False) for n, t in splits.items() if calls[keys[n]].depends_on_sizes}
        if several:
            keys |= several
            calls |= _decomposed_calls({k: (splits[n], n) for n, k in several.items()}, program, table)
        graph = _assembled(nodes, targets, keys, calls)
    except MustDecomposeWhole:
        return None
    return DecomposedProgram(
        graph,
        program.graph_signature,
        program.state_dict,
        program.constants,
        program.range_constraints,
        program.call_spec,
    )


def decomposes_as_released(table: Mapping[Any, Any]) -> bool:
    """Return whether every decomposition is PyTorch's own; ``register_decomposition`` adds and replaces them for the whole process."""
    functions = [getattr(f, "func", f) for _, f in table.items()]
    return all(str(getattr(f, "__module__", None)).partition(".")[0] == "torch" for f in functions)


# ── what is decomposed, and what it depends on ──


def _stays(target: Any, table: Mapping[Any, Any], keep: Callable[[Any], bool]) -> bool:
    """Return whether an op stays whole: it was removed from the table, or nothing decomposes it."""
    if target.name() == _CONSTANTS:
        return False
    if keep(target):
        return True
    composite = find_torch()._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )
    return target.namespace in ("aten", "prims") and target not in table and not composite


def _ignores_sizes(target: Any, node: Any) -> bool:
    packet = target._schema.name.removeprefix("aten::")
    if packet not in _SIZE_FREE or target._overloadname != "default":
        return False
    rank = _SIZE_FREE[packet]
    return rank is None or rank == node.args[0].meta["val"].dim()


def _key(target: Any, node: Any, any_size: bool) -> tuple[Any, ...]:
    """Return what the decomposition of a call depends on. Raise MustDecomposeWhole for an argument that has no content here."""
    operands: dict[Any, int] = {}
    return (
        target,
        any_size,
        _frozen(node.args, operands, any_size),
        _frozen(node.kwargs, operands, any_size),
    )


def _frozen(value: Any, operands: dict[Any, int], any_size: bool) -> Any:
    """Return an argument as a hashable value. Equal tensors have equal metadata; equal numbers have equal types."""
    torch = find_torch()
    if isinstance(value, torch.fx.Node):
        tensor = value.meta["val"]
        if not is_static(tensor):
            raise MustDecomposeWhole
        number = operands.setdefault(value, len(operands))
        flags = tensor.is_conj(), tensor.is_neg(), type(tensor).__name__
        described = number, tensor.dtype, str(tensor.device), flags
        if any_size:
            return *described, tensor.dim(), tensor.numel() == 0, number or tensor.shape[:1]
        return *described, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    if isinstance(value, tuple | list):
        return tuple(_frozen(v, operands, any_size) for v in value)
    if isinstance(value, Mapping):
        return tuple((k, _frozen(v, operands, any_size)) for k, v in value.items())
    return type(value).__name__, repr(value)


# ── one call of each kind ──


def _decomposed_calls(
    requests: Mapping[Any, tuple[Any, Any]], program: Any, table: Mapping[Any, Any]
) -> dict[Any, _Call]:
    """Return each call as PyTorch decomposes it in a program of these calls. Raise MustDecomposeWhole."""
    if not requests:
        return {}
    torch = find_torch()
    graph, operands = torch.fx.Graph(), {}
    values: list[Any] = []
    for k, (_, node) in enumerate(requests.values()):
        for i, operand in enumerate(node.all_input_nodes):
            operands[k, operand] = graph.placeholder(f"operand_{k}_{i}")
            operands[k, operand].meta["val"] = operand.meta["val"].detach()
            values.append(operands[k, operand].meta["val"])
    results: list[Any] = []
    for k, (target, node) in enumerate(requests.values()):
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n, k=k: operands[k, n])
        call = graph.call_function(target, args, dict(kwargs))
        call.meta = dict(node.meta)
        value = node.meta["val"]
        results.append(_items(graph, call, value) if isinstance(value, tuple | list) else call)
    flat = [r for result in results for r in as_list(result)]
    graph.output(tuple(flat))
    try:
        with torch.no_grad(), no_warnings():
            small = _program_of(graph, values, flat, program).run_decompositions(table)
    except Exception as error:  # decomposing the whole program reports it
        raise MustDecomposeWhole from error
    if any(s.kind.name != "USER_OUTPUT" for s in small.graph_signature.output_specs):
        raise MustDecomposeWhole  # an op writes to its operands although its schema denies it, such as batch_norm in training
    inputs = [n for n in small.graph.nodes if n.op == "placeholder"]
    outputs = iter(next(n for n in small.graph.nodes if n.op == "output").args[0])
    inputs_of = dict(zip(operands, inputs, strict=True))
    calls = {}
    for k, (key, (_, node)) in enumerate(requests.items()):
        own = [inputs_of[k, operand] for operand in node.all_input_nodes]
        returned = [next(outputs) for _ in results[k]] if isinstance(results[k], list) else next(outputs)
        if not all(map(_same_type, as_list(returned), as_list(node.meta["val"]))):
            raise MustDecomposeWhole
        calls[key] = _Call(own, returned, _between(own, returned), key[1])
    return calls


def _same_type(result: Any, tensor: Any) -> bool:
    """Return whether a node has the shape and dtype of a tensor."""
    value: Any = getattr(result, "meta", {}).get("val")
    return is_static(value) and value.shape == tensor.shape and value.dtype is tensor.dtype


def _between(operands: list[Any], results: Any) -> list[Any]:
    """Return the nodes that compute results from operands, in order. Raise MustDecomposeWhole."""
    found: set[Any] = set()
    pending = as_list(results)
    while pending:
        node = pending.pop()
        if node in found or node in operands:
            continue
        if getattr(node, "op", "") != "call_function":
            raise MustDecomposeWhole
        found.add(node)
        pending.extend(node.all_input_nodes)
    return [n for n in next(iter(found)).graph.nodes if n in found] if found else []


def _items(graph: Any, call: Any, value: Any) -> list[Any]:
    """Add a node for each result of a call."""
    items = []
    for i, tensor in enumerate(value):
        item = graph.call_function(operator.getitem, (call, i))
        item.meta = {**call.meta, "val": tensor}
        items.append(item)
    return items


def _program_of(graph: Any, values: list[Any], results: list[Any], program: Any) -> Any:
    torch = find_torch()
    from torch.export import graph_signature as signatures
    from torch.utils import _pytree as pytree

    names = [n.name for n in graph.nodes if n.op == "placeholder"]
    signature = signatures.ExportGraphSignature(
        input_specs=[
            signatures.InputSpec(
                signatures.InputKind.USER_INPUT, signatures.TensorArgument(name=n), None, None
            )
            for n in names
        ],
        output_specs=[
            signatures.OutputSpec(
                signatures.OutputKind.USER_OUTPUT, signatures.TensorArgument(name=r.name), None
            )
            for r in results
        ],
    )
    in_spec = pytree.tree_flatten((tuple(values), {}))[1]
    out_spec = pytree.tree_flatten(tuple(results))[1]
    calls = [
        torch.export.ModuleCallEntry(
            "",
            torch.export.ModuleCallSignature(
                inputs=[], outputs=[], in_spec=in_spec, out_spec=out_spec, forward_arg_names=names
            ),
        )
    ]
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    return torch.export.ExportedProgram(
        root=module,
        graph=graph,
        graph_signature=signature,
        state_dict={},
        range_constraints={},
        module_call_graph=calls,
        example_inputs=None,
        constants={},
        verifiers=program.verifiers,
    )


# ── the whole program ──


def _assembled(
    nodes: Iterable[Any], targets: Mapping[Any, Any], keys: Mapping[Any, Any], calls: Mapping[Any, _Call]
) -> Any:
    """Return the graph: nodes that stay, and copies of calls as they are decomposed, without what nothing reads. Raise MustDecomposeWhole."""
    torch = find_torch()
    graph, values = torch.fx.Graph(), {}
    for node in nodes:
        if node.op == "placeholder":
            values[node] = graph.placeholder(node.name)
            values[node].name, values[node].meta = (
                node.name,
                node.meta,
            )  # the graph renames builtins: ``input``
        elif node.op == "output":
            graph.output(torch.fx.map_arg(node.args[0], values.__getitem__))
        elif node.target is operator.getitem:
            source, index = node.args
            values[node] = values[source][index]
        elif node in keys:
            call, kept = calls[keys[node]], {k: node.meta[k] for k in _KEPT_META if k in node.meta}
            inner = dict(zip(call.operands, (values[o] for o in node.all_input_nodes), strict=True))
            for part in call.nodes:
                _copy(graph, part, part.target, inner, {**kept, "val": call.value_of(part, node)})
            values[node] = (
                [inner[r] for r in call.results] if isinstance(call.results, list) else inner[call.results]
            )
        elif node in targets:
            _copy(graph, node, targets[node], values, node.meta)
        elif not asserts(node):
            values[node] = values[node.args[0]]
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not node.is_impure():
            graph.erase_node(node)
    return graph


def _copy(graph: Any, node: Any, target: Any, values: dict[Any, Any], meta: dict[str, Any]) -> None:
    """Copy a call, with a node for each of its results, and record what they replace in ``values``."""
    torch = find_torch()
    if target is operator.getitem:
        source, index = node.args
        values[node] = values[source][index]
        return
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    name = target._schema.name.rpartition("::")[2]
    copied = graph.create_node("call_function", target, args, dict(kwargs), name=_unmagic(name))
    copied.meta = meta
    value = meta.get("val")
    values[node] = _items(graph, copied, value) if isinstance(value, tuple | list) else copied


def _unmagic(name: str) -> str:
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name
