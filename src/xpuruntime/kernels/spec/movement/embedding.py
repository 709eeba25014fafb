"""``embedding``: rows of a table by index (gather), moved as bits."""

from __future__ import annotations

from ....codegen.loops.boxes import Box, Lookup, Move
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ...kernel import Kernel, LoweredCall, NodeCall
from ..product import sizes
from ..support import INTEGERS, refuse
from ..writer import MovesWriter
from .elements import why_not_movable

__all__ = ["Embedding"]


class Embedding(Kernel):
    """Rows move as bits: any dtype, any layout."""

    name = "embedding/generated"
    ops = ("embedding",)

    def __init__(self, write_moves: MovesWriter) -> None:
        self._write_moves = write_moves

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for every dtype with whole bytes."""
        refused = why_not_movable(call.outputs[0])
        if refused is not None:
            return refused
        if call.tensor(1).spec.dtype not in INTEGERS:
            return refuse(call.tensor(1).spec.dtype, "indices")
        if not sizes(call.tensor(0).spec)[0] and 0 not in sizes(call.outputs[0]):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "the embedding table is empty")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage that copies a row at a time."""
        weight, index, y = call.tensor(0).spec, call.tensor(1).spec, call.outputs[0]
        table, indices, out = Box.of("in0", weight), Box.of("in1", index), Box.of("out0", y)
        inner = out.shape[len(indices.shape) :]  # the row; complex128 has two elements per value
        rows = len(indices.shape)
        source = Box("in0", out.shape, (*[0] * rows, *table.strides[1:]))
        lookup = Lookup(
            "in1",
            index.dtype,
            (*indices.strides, *[0] * len(inner)),
            0,
            table.strides[0],
            table.shape[0],
            False,
        )
        moves = [Move(out, source, (lookup,))]
        return LoweredCall((self._write_moves("embedding", moves, ("in0", "in1", "out0"), y.dtype, target),))
