"""``fused``: several nodes that one kernel computes. What they are stands in its body, a graph."""

from __future__ import annotations

from ...errors import IrError
from ...types import TensorSpec
from ..graph import Graph
from ..schema import Mismatch, OpCall, OpEntry, op

__all__ = ["IN_BODY", "ROWS", "in_body"]

_VIEWS = "expand view unsqueeze squeeze clone constant full"  # they rename places, or are constants
_ROWS = "sum mean amax amin any all prod var logsumexp vector_norm softmax log_softmax layer_norm rms_norm"
IN_BODY = frozenset(f"{_VIEWS} {_ROWS}".split())
"""Ops besides the pointwise ones that a body may hold."""


def in_body(row: OpEntry) -> bool:
    """Return whether a body may hold the op."""
    return (row.pointwise or row.name in IN_BODY) and not row.random and not row.data_dependent


def _fused(c: OpCall) -> list[TensorSpec]:
    body = c["body"]
    if not isinstance(body, Graph):
        raise Mismatch("the body is a graph", type(body).__name__)
    operands = c.tensors()
    if body.weights or body.states:
        raise Mismatch("the body takes every value as an input", "weights or states in it")
    if not body.outputs:
        raise Mismatch("the body gives nothing", do="Give it outputs.")
    if len(body.inputs) != len(operands):
        raise Mismatch("the body has another number of inputs", f"{len(body.inputs)} for {len(operands)}")
    _check_ops(body)
    _check_body(body)
    known: frozenset[str] = frozenset().union(*(spec.symbols for spec in operands))
    if not body.symbols <= known:
        raise Mismatch("the body names a dim that no operand has", ", ".join(sorted(body.symbols - known)))
    from ..verify import agrees

    for value, spec in zip(body.inputs, operands, strict=True):
        if not agrees(value, spec):
            raise Mismatch(f"input %{value.name} of the body has another type", f"{value.spec} for {spec}")
    return [TensorSpec(s.shape, s.dtype) for s in body.output_specs]


def _check_ops(body: Graph) -> None:
    from . import OPS

    for node in body.nodes:
        row = OPS.get(node.op)
        if row is None or not in_body(row):
            raise Mismatch(
                f"the body holds {node.op}, which no kernel fuses", f"%{node.name}", do="Leave it outside."
            )


def _check_body(body: Graph) -> None:
    from ..verify import verify

    try:
        verify(body)
    except IrError as error:
        raise Mismatch("the body breaks a law", str(error)) from error


ROWS: tuple[OpEntry, ...] = (
    op(
        "fused(operands*; body: graph) -> outputs*",
        "elementwise",
        _fused,
        meaning="what the body computes; its inputs are the operands in order, its outputs the results",
    ),
)
