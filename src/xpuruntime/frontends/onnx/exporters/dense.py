"""Systems of equations and factorizations as loops over the columns of a matrix: ONNX has no solver.

solve       Gauss-Jordan elimination with partial pivoting of [a, b]
slogdet     elimination with partial pivoting; the signs and logarithms of the pivots
cholesky    one column of the factor in each iteration
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....ir import Editor, Graph, GraphBuilder, Node
from ....types import DimLike, DType, TensorSpec
from .graph_builder import Exporter, NodeExport

__all__ = ["EXPORTERS", "in_loops", "with_loops"]


def in_loops(graph: Graph) -> tuple[str, ...]:
    """Return the ops of the graph that ``with_loops`` replaces, each once."""
    return tuple(dict.fromkeys(n.op for n in graph.nodes if _is_looped(n, graph.spec)))


def _is_looped(node: Node, spec_of: Callable[[str], TensorSpec | None]) -> bool:
    if node.op not in _LOOPS or not isinstance(node.inputs[0], str):
        return False
    x = spec_of(node.inputs[0])
    return node.op != "det" or (x is not None and x.dtype is DType.FLOAT64)  # ONNX Runtime has Det of float32


def with_loops(graph: Graph) -> Graph:
    """Return the graph with systems and factorizations as loops. A matrix of symbolic size stays, and its exporter refuses it."""

    def rule(editor: Editor, node: Node) -> None:
        if not _is_looped(node, lambda name: editor.values[name].spec):
            return
        x = editor.values[str(node.inputs[0])].spec
        if x is not None and isinstance(x.shape[-1], int):
            results = (_LOOPS[node.op] if x.shape[-1] else _of_no_rows)(editor, node, x)
            for value, result in zip(node.outputs, results, strict=False):
                editor.forward(value.name, result)
            editor.remove(node)

    return graph.rewrite(rule)


class _ColumnLoop:
    """The body of a loop whose carried values have these types, and what is read of them in iteration ``i``."""

    def __init__(self, name: str, n: int, specs: dict[str, TensorSpec]) -> None:
        self.b = GraphBuilder(name)
        self.i = self.b.input("i", TensorSpec((), DType.INT64))
        self.values = {k: self.b.input(k, spec) for k, spec in specs.items()}
        self.one = self.b.view(self.i, size=[1])
        self.rows = self.b.view(self.b.arange(start=0, end=n, dtype=DType.INT64), size=[n, 1])
        self.here = self.b.eq(self.rows, self.i)

    def column(self, matrix: Any) -> Any:
        """Return column i, [..., n, 1]."""
        return self.b.index_select(matrix, self.one, dim=-1)

    def row(self, matrix: Any) -> Any:
        """Return row i, [..., 1, columns]."""
        return self.b.index_select(matrix, self.one, dim=-2)

    def pivoted(self, matrix: Any, shape: tuple[DimLike, ...]) -> tuple[Any, Any]:
        """Return the matrix with the row of the largest element of column i, from row i on, as row i; and that row's number."""
        b = self.b
        size = b.abs(self.column(matrix))
        # ArgMax of ONNX Runtime skips NaN. As a pivot, NaN reaches every result.
        size = b.where(b.isnan(size), float("inf"), size)
        size = b.where(b.ge(self.rows, self.i), size, -1.0)
        best = b.argmax(size, dim=len(shape) - 2, keepdim=True)
        order = b.where(self.here, best, b.where(b.eq(self.rows, best), self.i, self.rows))
        return b.gather(matrix, b.expand(order, size=shape), dim=len(shape) - 2), best

    def scalar(self, value: Any, shape: tuple[DimLike, ...]) -> Any:
        """Return a value [..., 1, 1] without its last dims."""
        return self.b.squeeze(value, dims=[len(shape), len(shape) + 1])

    def info(self, failed: Any, lead: tuple[DimLike, ...]) -> None:
        """Output the number of the first iteration that failed, from 1 on."""
        b, before = self.b, self.values["info"]
        number = b.cast(b.add(self.i, 1), dtype=DType.INT32)
        first = b.logical_and(b.eq(before, 0), self.scalar(failed, lead))
        b.output("info_after", b.where(first, number, before))


def _zeros(editor: Editor, node: Node, shape: tuple[DimLike, ...], dtype: DType, value: float = 0) -> str:
    number = int(value) if dtype.is_integer else float(value)
    return str(editor.insert(node, "full", size=shape, value=number, dtype=dtype))


def _loop(
    editor: Editor, node: Node, n: int, body: _ColumnLoop, *operands: str, carried: int
) -> tuple[str, ...]:
    results = editor.insert(
        node, "loop", None, None, *operands, body=body.b.build(), carried=carried, trips=n
    )
    return (results,) if isinstance(results, str) else tuple(results)


def _solve(editor: Editor, node: Node, a: TensorSpec) -> tuple[str, ...]:
    y = node.spec
    lead, n, columns, dtype = y.shape[:-2], int(a.shape[-1]), y.shape[-1], y.dtype  # type: ignore[arg-type]
    sides = [
        editor.insert(node, "expand", value, size=(*lead, n, size))
        for value, size in zip(node.inputs, (n, columns), strict=True)
    ]
    shape = (*lead, n, n + columns)
    body = _ColumnLoop("solve", n, {"m": TensorSpec(shape, dtype), "info": TensorSpec(lead, DType.INT32)})
    b, (m, _) = body.b, body.pivoted(body.values["m"], shape)
    row = body.row(m)
    pivot = body.column(row)
    scaled = b.div(row, pivot)
    b.output("m_after", b.where(body.here, scaled, b.sub(m, b.mul(body.column(m), scaled))))
    body.info(b.eq(pivot, 0.0), lead)
    start = editor.insert(node, "cat", *sides, dim=len(shape) - 1)
    m, info = _loop(editor, node, n, body, start, _zeros(editor, node, lead, DType.INT32), carried=2)
    return editor.insert(node, "slice", m, dim=len(shape) - 1, start=n, end=None), info


def _slogdet(editor: Editor, node: Node, x: TensorSpec) -> tuple[str, ...]:
    lead, n, dtype = x.shape[:-2], int(x.shape[-1]), x.dtype  # type: ignore[arg-type]
    of_each = TensorSpec(lead, dtype)
    body = _ColumnLoop("slogdet", n, {"m": x, "sign": of_each, "total": of_each})
    b, (m, best) = body.b, body.pivoted(body.values["m"], x.shape)
    row = body.row(m)
    pivot = body.column(row)
    factor = b.where(b.eq(pivot, 0.0), 0.0, b.div(body.column(m), pivot))
    below = b.gt(body.rows, body.i)
    b.output("m_after", b.where(below, b.sub(m, b.mul(factor, row)), m))
    positive, negative = (b.cast(v, dtype=dtype) for v in (b.gt(pivot, 0.0), b.lt(pivot, 0.0)))
    swapped = b.sub(1.0, b.mul(b.cast(b.ne(best, body.i), dtype=dtype), 2.0))
    turn = body.scalar(b.mul(swapped, b.sub(positive, negative)), lead)
    b.output("sign_after", b.mul(body.values["sign"], turn))
    b.output("total_after", b.add(body.values["total"], body.scalar(b.log(b.abs(pivot)), lead)))
    first = [_zeros(editor, node, lead, dtype, value) for value in (1, 0)]
    return _loop(editor, node, n, body, str(node.inputs[0]), *first, carried=3)[1:]


def _cholesky(editor: Editor, node: Node, x: TensorSpec) -> tuple[str, ...]:
    lead, n, dtype = x.shape[:-2], int(x.shape[-1]), x.dtype  # type: ignore[arg-type]
    swapped = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
    half = node.inputs[0]
    if node.attrs["upper"]:
        half = editor.insert(node, "permute", half, dims=swapped)
    body = _ColumnLoop("cholesky", n, {"y": x, "info": TensorSpec(lead, DType.INT32), "half": x})
    b, y = body.b, body.values["y"]
    known = b.matmul(y, b.permute(body.row(y), dims=swapped))
    rest = b.sub(body.column(body.values["half"]), known)
    square = body.row(rest)
    positive = b.gt(square, 0.0)
    root = b.sqrt(b.where(positive, square, float("nan")))
    column = b.where(b.gt(body.rows, body.i), b.div(rest, root), 0.0)
    column = b.where(body.here, root, column)
    b.output("y_after", b.where(b.view(body.here, size=[1, n]), column, y))
    body.info(b.logical_not(positive), lead)
    first = _zeros(editor, node, x.shape, dtype), _zeros(editor, node, lead, DType.INT32)
    y, info = _loop(editor, node, n, body, *first, str(half), carried=2)
    if node.attrs["upper"]:
        y = editor.insert(node, "permute", y, dims=swapped)
    return y, info


def _det(editor: Editor, node: Node, x: TensorSpec) -> tuple[str, ...]:
    sign, logarithm = _slogdet(editor, node, x)
    return (editor.insert(node, "mul", sign, editor.insert(node, "exp", logarithm)),)


def _of_no_rows(editor: Editor, node: Node, x: TensorSpec) -> tuple[str, ...]:
    """Return empty matrices, info 0, and determinants of 1."""
    values = {"slogdet": (1, 0), "det": (1,)}.get(node.op, (0, 0))
    specs = [v.spec for v in node.outputs]
    return tuple(
        _zeros(editor, node, spec.shape, spec.dtype, value)
        for spec, value in zip(specs, values, strict=False)
        if spec is not None
    )


_LOOPS: dict[str, Callable[[Editor, Node, TensorSpec], tuple[str, ...]]] = {
    "cholesky": _cholesky,
    "det": _det,
    "slogdet": _slogdet,
    "solve": _solve,
}


def _refused(e: NodeExport) -> None:
    raise e.no("a matrix of a symbolic number of rows, or one inside a loop or a branch")


EXPORTERS: dict[str, Exporter] = dict.fromkeys(_LOOPS.keys() - {"det"}, _refused)
