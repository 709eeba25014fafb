"""``fused``: several nodes that one kernel computes. The body of the op is their graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from ...errors import IrError
from ...types import TensorSpec
from ..attributes import Body
from ..schema import Mismatch, OpCall, OpEntry
from ._types import agrees

if TYPE_CHECKING:
    from ..graph import Graph

__all__ = ["IN_BODY", "in_body", "infer_fused"]

_VIEWS = "expand view unsqueeze squeeze clone constant full"  # views and constants
_ROWS = "sum mean amax amin any all prod var logsumexp vector_norm softmax log_softmax layer_norm rms_norm"
IN_BODY = frozenset(f"{_VIEWS} {_ROWS}".split())
"""Ops that a body may contain in addition to pointwise ones."""


def in_body(row: OpEntry) -> bool:
    """Return True if a body may contain the op."""
    return (row.pointwise or row.name in IN_BODY) and not row.random and not row.data_dependent


def infer_fused(c: OpCall, table: Mapping[str, OpEntry]) -> list[TensorSpec]:
    """Infer the results of ``fused``, whose body is checked against the op table. Raises Mismatch."""
    if not isinstance(c["body"], Body):
        raise Mismatch("the body must be a graph", type(c["body"]).__name__)
    body = cast("Graph", c["body"])
    operands = c.tensors()
    if body.weights or body.states:
        raise Mismatch("the body cannot have weights or states", "weights or states in it")
    if not body.outputs:
        raise Mismatch("the body has no outputs", do="Add outputs.")
    if len(body.inputs) != len(operands):
        raise Mismatch(
            "the number of the body's inputs is not that of the operands",
            f"{len(body.inputs)} for {len(operands)}",
        )
    _check_ops(body, table)
    try:
        body.check()
    except IrError as error:
        raise Mismatch("the body is not a valid graph", str(error)) from error
    symbols: frozenset[str] = frozenset().union(*(spec.symbols for spec in operands))
    if not body.symbols <= symbols:
        raise Mismatch(
            "the body uses a symbol that no operand has", ", ".join(sorted(body.symbols - symbols))
        )
    for value, spec in zip(body.inputs, operands, strict=True):
        if not agrees(value.spec, spec):
            raise Mismatch(f"input %{value.name} of the body has another type", f"{value.spec} for {spec}")
    return [TensorSpec(s.shape, s.dtype) for s in body.output_specs]


def _check_ops(body: Graph, table: Mapping[str, OpEntry]) -> None:
    for node in body.nodes:
        row = table.get(node.op)
        if row is None or not in_body(row):
            raise Mismatch(
                f"the body contains {node.op}, which no kernel fuses",
                f"%{node.name}",
                do="Keep the node outside of the body.",
            )
