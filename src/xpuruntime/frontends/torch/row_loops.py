"""Loops of an exported program that invert a triangular matrix row by row, as one triangular system.

Chunked delta rules (Gated DeltaNet, Kimi Delta Attention) compute ``(I - A) ** -1 - I`` of a strictly lower triangular A in a Python loop:

    for i in range(1, n):
        row, above = A[..., i, :i].clone(), A[..., :i, :i].clone()
        A[..., i, :i] = row + (row.unsqueeze(-1) * above).sum(-2)

An export has about 10 nodes for each of the n - 1 rows. They become a call of ``linalg_solve_triangular`` whose result is copied to A.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .constants import ConstantEvaluator
from .export import find_torch

__all__ = ["with_triangular_systems"]

_MIN_ROWS = 4
_UNCHANGED = ("clone", "contiguous", "detach", "neg", "to", "_to_copy")
"""Ops whose result is zero where their operand is zero."""


class _RowStep(NamedTuple):
    """One row: the matrix, the row's index, and all nodes of the step."""

    matrix: Any
    row: int
    nodes: frozenset[Any]


class _RowLoop(NamedTuple):
    """All rows of a matrix [..., rows, rows], in order."""

    matrix: Any
    rows: int
    nodes: tuple[Any, ...]


def with_triangular_systems(program: Any) -> Any:
    """Return the program with loops over the rows of triangular matrices replaced; the program itself without such loops."""
    nodes = list(program.graph.nodes)
    loops = list(_loops(nodes))
    if not loops:
        return program
    torch = find_torch()
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    graph.output(graph.graph_copy(program.graph, copies))
    output = next(iter(reversed(graph.nodes)))
    output.meta = dict(next(iter(reversed(nodes))).meta)
    graph.set_codegen(program.graph._codegen)
    for loop in loops:
        with graph.inserting_before(copies[loop.nodes[0]]):
            _add_system(graph, copies[loop.matrix], loop.rows)
        for node in reversed(loop.nodes):
            graph.erase_node(copies[node])
    return torch.export.ExportedProgram(
        root=torch.fx.GraphModule(program.graph_module, graph),
        graph=graph,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _add_system(graph: Any, matrix: Any, rows: int) -> None:
    """Add nodes that write ``(I - matrix) ** -1 - I`` to the matrix, below its diagonal."""
    torch = find_torch()
    aten, value = torch.ops.aten, matrix.meta["val"]
    context = {k: v for k, v in matrix.meta.items() if k in ("stack_trace", "nn_module_stack")}

    def call(target: Any, *args: Any, **kwargs: Any) -> Any:
        node = graph.call_function(target, args, kwargs)
        operands = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        with torch.no_grad(), value.fake_mode:
            node.meta = {**context, "val": target(*operands[0], **operands[1])}
        return node

    square = {"device": value.device, "pin_memory": False}
    identity = call(aten.eye.default, rows, dtype=value.dtype, **square)
    below = call(aten.tril.default, call(aten.ones.default, [rows, rows], dtype=torch.bool, **square), -1)
    system = call(aten.neg.default, matrix)
    identity = call(aten.expand_as.default, identity, matrix)
    inverse = graph.call_function(
        aten.linalg_solve_triangular.default,
        (system, identity),
        {"upper": False, "unitriangular": True},
    )  # outside of a trace, PyTorch cannot infer its shape for symbolic sizes
    inverse.meta = {**context, "val": system.meta["val"]}
    call(aten.copy_.default, matrix, call(aten.where.self, below, inverse, matrix))


# ── recognition ──


def _loops(nodes: Sequence[Any]) -> Iterator[_RowLoop]:
    position = {n: i for i, n in enumerate(nodes)}
    steps: list[_RowStep] = []
    for node in nodes:
        if _name(node) != "copy_":
            continue
        step = _step(node)
        if step is None or (steps and step.matrix is not steps[0].matrix) or step.row != len(steps) + 1:
            steps = []
        if step is None or step.row != len(steps) + 1:
            continue
        steps.append(step)
        rows = step.matrix.meta["val"].shape[-1]
        if step.row == rows - 1:
            inside = frozenset().union(*(s.nodes for s in steps))
            first, last = min(map(position.__getitem__, inside)), position[node]
            loop = _RowLoop(step.matrix, rows, tuple(nodes[first : last + 1]))
            steps = []
            if rows >= _MIN_ROWS and inside.issuperset(loop.nodes) and _is_replaceable(loop, nodes[:first]):
                yield loop


def _is_replaceable(loop: _RowLoop, before: Sequence[Any]) -> bool:
    """Return whether nobody else reads a node of the loop, and the matrix is zero on its diagonal and above it."""
    inside = set(loop.nodes)
    if any(user not in inside for node in loop.nodes for user in node.users):
        return False
    torch = find_torch()
    value = loop.matrix.meta["val"]
    if not hasattr(value, "fake_mode") or value.dtype not in (torch.float32, torch.float64):
        return False
    written = {_memory(n.args[0]) for n in before if _is_mutable(n) and n.args}
    return _is_strictly_lower(loop.matrix, loop.rows, written)


def _is_strictly_lower(node: Any, rows: int, written: set[Any]) -> bool:
    while _memory(node) not in written:
        name = _name(node)
        if name == "tril":
            return bool(_argument(node, 1, "diagonal", 0) < 0)
        if name == "masked_fill" and _argument(node, 2, "value") == 0:
            return _covers(_argument(node, 1, "mask"), rows, written)
        if name not in _UNCHANGED:
            return False
        node = node.args[0]
    return False


def _covers(mask: Any, rows: int, written: set[Any]) -> bool:
    """Return whether a mask is a constant, and true on the diagonal of its matrices and above it."""
    torch = find_torch()
    pending, reached = [mask], set()
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending.extend(node.all_input_nodes)
    if any(_memory(n) in written for n in reached):
        return False
    value = ConstantEvaluator().of(mask)
    if not isinstance(value, torch.Tensor) or tuple(value.shape[-2:]) != (rows, rows):
        return False
    return bool((value.to(torch.bool) | torch.ones(rows, rows, dtype=torch.bool).tril(-1)).all())


def _step(copy: Any) -> _RowStep | None:
    """Return the step of one row that ends with this copy; None if it is none."""
    target, content = copy.args[:2]
    nodes = {copy}
    matrix, row = _row(target, nodes)
    if matrix is None or _name(content) != "add" or len(content.args) != 2 or content.kwargs:
        return None
    nodes.add(content)
    for old, total in (content.args, content.args[::-1]):
        if _name(total) != "sum" or _row(old, nodes) != (matrix, row):
            continue
        nodes.add(total)
        if list(_argument(total, 1, "dim", ())) not in ([-2], [total.args[0].meta["val"].dim() - 2]):
            return None
        if _argument(total, 2, "keepdim", False) or total.kwargs.get("dtype") is not None:
            return None
        product = total.args[0]
        if _name(product) != "mul" or not all(hasattr(a, "op") for a in product.args):
            return None
        nodes.add(product)
        for factor, above in (product.args, product.args[::-1]):
            if _name(factor) != "unsqueeze" or _row(factor.args[0], nodes) != (matrix, row):
                continue
            nodes.add(factor)
            if factor.args[1] not in (-1, factor.args[0].meta["val"].dim()):
                return None
            if _region(above, nodes) == (matrix, ((0, row), (0, row))):
                return _RowStep(matrix, row, frozenset(nodes))
    return None


def _row(node: Any, nodes: set[Any]) -> tuple[Any, int]:
    """Return the matrix and i of ``matrix[..., i, :i]``; (None, 0) for another node."""
    matrix, parts = _region(node, nodes)
    if len(parts) == 2 and isinstance(parts[0], int) and parts[0] > 0 and parts[1] == (0, parts[0]):
        return matrix, parts[0]
    return None, 0


def _region(node: Any, nodes: set[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return the tensor of which a node is a part, and that part: an index or (start, end) for each of its last two dims.

    Other dims are whole. Views and copies on the way are added to ``nodes``. (None, ()) for another node.
    """
    views = []
    while hasattr(node, "op") and _name(node) in ("select", "slice", "clone"):
        views.append(node)
        node = node.args[0]
    value = getattr(node, "meta", {}).get("val")
    if not views or value is None or value.dim() < 2 or value.shape[-1] != value.shape[-2]:
        return None, ()
    rank, rows = value.dim(), value.shape[-1]
    if not isinstance(rows, int):
        return None, ()
    parts: list[Any] = [None] * (rank - 2) + [(0, rows)] * 2
    dims = list(range(rank))
    for view in reversed(views):
        if _name(view) == "clone":
            continue
        dim = dims[_argument(view, 1, "dim", 0)]
        if _name(view) == "select":
            index = _argument(view, 2, "index")
            if dim < rank - 2 or parts[dim] != (0, rows) or not isinstance(index, int):
                return None, ()
            parts[dim] = index % rows
            dims.remove(dim)
            continue
        begin, end = _argument(view, 2, "start"), _argument(view, 3, "end")
        if _argument(view, 4, "step", 1) != 1 or begin not in (None, 0):
            return None, ()
        if dim < rank - 2 and (end is None or (isinstance(end, int) and end >= 2**62)):
            continue
        if dim < rank - 2 or not isinstance(end, int | None) or (end is not None and end < 0):
            return None, ()
        size = parts[dim][1]
        parts[dim] = (0, size if end is None else min(end, size))
    nodes.update(views)
    return node, tuple(parts[-2:])


def _name(node: Any) -> str:
    """Return the name of the ATen op that a node calls."""
    if getattr(node, "op", None) != "call_function" or getattr(node.target, "namespace", "") != "aten":
        return ""
    return str(node.target._schema.name.removeprefix("aten::"))


def _argument(node: Any, position: int, name: str, default: Any = None) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _is_mutable(node: Any) -> bool:
    return bool(_name(node)) and bool(node.target._schema.is_mutable)


def _memory(node: Any) -> Any:
    """Return the node whose memory a node may share, by the schemas of ops."""
    while _name(node) and node.args and hasattr(node.args[0], "op"):
        if not any(r.alias_info is not None for r in node.target._schema.returns):
            break
        node = node.args[0]
    return node
