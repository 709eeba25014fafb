"""``movement/strided``: strided copies; every op is a list of boxes (``codegen/loops/moves``), for any layouts.

Moves of a node are independent of each other, so their tasks run in any order. Values of 1, 2, 4, 8 and 16 bytes move as bits. Padding
between the values of a layout is not written.
"""

from __future__ import annotations

import itertools

from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, operand_ref
from ..writer import MovesWriter
from .elements import why_not_movable
from .ops import MOVEMENTS, strided_inside

__all__ = ["Movement"]
_MAX_MOVES = 1024
"""Maximum moves of one kernel. Nested reflection padding would need more, and its text would be too long."""


class Movement(Kernel):
    """Strided copies."""

    name = "movement/strided"
    ops = tuple(MOVEMENTS)

    def __init__(self, write_moves: MovesWriter) -> None:
        self._write_moves = write_moves

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for every dtype with whole bytes and every layout (views: one side dense)."""
        refused = why_not_movable(call.outputs[0], *(t.spec for t in call.tensors))
        if refused is not None:
            return refused
        x, y = call.tensor(0).spec, call.outputs[0]
        if call.op in ("view", "squeeze", "unsqueeze") and not (x.is_dense or y.is_dense):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "a view needs a dense operand or a dense result")
        if call.op in ("view", "squeeze", "unsqueeze") and y.layout is not None and x.is_dense and y.is_dense:
            return Support.yes()
        if call.op == "as_strided" and not (x.is_dense and strided_inside(call)):
            return Support.no(
                Reason.SHAPE_UNSUPPORTED, "as_strided needs a dense operand and indices within it"
            )
        if call.op == "pad" and y.dtype is DType.COMPLEX128 and call.attrs["value"]:
            return Support.no(Reason.DTYPE_UNSUPPORTED, "complex128 can only be padded with zeros")
        if call.op == "roll" and not call.attrs["dims"] and not (x.is_dense and y.is_dense):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "a roll without dims needs dense tensors")
        boxes = sum(1 for _ in itertools.islice(MOVEMENTS[call.op].moves(call), _MAX_MOVES + 1))
        if boxes > _MAX_MOVES:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"more than {_MAX_MOVES} separate copies are needed")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage. If the result may reuse the operand's memory, the copy of elements that keep their position is a stage of its own."""
        template = MOVEMENTS[call.op]
        outs = range(len(call.outputs))
        args = tuple(operand_ref("in", i) for i in range(len(call.inputs)) if call.inputs[i] is not None)
        args += tuple(operand_ref("out", i) for i in outs)
        moves = [m for m in template.moves(call) if not m.empty]
        dtype = call.outputs[0].dtype
        if not template.in_place:
            return LoweredCall((self._write_moves(call.op, moves, args, dtype, target),))
        unchanged = [m for m in moves if m.source is not None and m.source.arg == "in0"]
        written = [m for m in moves if m not in unchanged]
        stages = [
            self._write_moves(stem, moves_of_stage, args, dtype, target, copies)
            for stem, moves_of_stage, copies in (("stays", unchanged, True), (call.op, written, False))
            if moves_of_stage
        ]
        if not stages:
            stages = [self._write_moves(call.op, [], args, dtype, target)]
        return LoweredCall(tuple(stages), in_place={0: 0})
