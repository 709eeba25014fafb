"""What the plainer kernels are made of: a row says which dtypes it computes with and gives the text of one task.

A task is one element or one line of the result. The text reads and writes by the prelude's scalar ``load<1>`` and ``store<1>``, so
every storage type and every layout works; these are kernels of ops that models spend little time in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..codegen.boxes import Place, element_bytes
from ..codegen.points import STORAGE, for_tasks, storage
from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..types import DType, TensorSpec
from .kernel import Lowered, NodeCall, Operand, Stage, operand_ref
from .moves_stage import STATUS, function

__all__ = [
    "FLOATS",
    "INTEGERS",
    "NUMBERS",
    "Row",
    "Rows",
    "Text",
    "arguments",
    "computes",
    "first",
    "refuse",
    "stage",
]

FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})
INTEGERS = frozenset(d for d in STORAGE if d.is_integer)
NUMBERS = FLOATS | INTEGERS


@dataclass(frozen=True, slots=True)
class Text:
    """One stage as text.

    head: lines before the loop over tasks (tables); body: the lines of one task; ``per``: elements that a task computes.
    """

    body: Sequence[str]
    tasks: int
    head: Sequence[str] = ()
    per: int = 1
    scratch_bytes: int = 0
    parts: frozenset[str] = frozenset()
    stem: str = ""
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """An op: its text, and why not (empty or None: it can). ``alone``: the text where a task is a thread of many, if that is another."""

    text: Callable[[NodeCall], Text]
    why_not: Callable[[NodeCall], Support | None] = field(default=lambda call: None)
    alone: Callable[[NodeCall], Text] | None = None


def refuse(dtype: DType, what: str) -> Support:
    """No, for a dtype."""
    return Support.no(Reason.DTYPE_UNSUPPORTED, f"{what} of {dtype.value}")


def computes(*positions: int, dtypes: frozenset[DType] = FLOATS) -> Callable[[NodeCall], Support | None]:
    """A ``why_not``: operands at positions (none: every tensor) must have one of the dtypes."""

    def why_not(call: NodeCall) -> Support | None:
        tensors = [call.optional(p) for p in positions] if positions else list(call.tensors)
        wrong = next((t for t in tensors if t is not None and t.spec.dtype not in dtypes), None)
        return None if wrong is None else refuse(wrong.spec.dtype, call.op)

    return why_not


def first(*answers: Support | None) -> Support | None:
    """The first no."""
    return next((a for a in answers if a is not None), None)


def _names(call: NodeCall) -> tuple[str, ...]:
    given = (operand_ref("in", i) for i, v in enumerate(call.inputs) if isinstance(v, Operand))
    return (*given, *(operand_ref("out", i) for i in range(len(call.outputs))))


def arguments(call: NodeCall) -> list[str]:
    """Lines that give every argument its type. Types that are only moved keep no name."""
    specs: dict[str, TensorSpec] = {
        operand_ref("in", i): v.spec for i, v in enumerate(call.inputs) if isinstance(v, Operand)
    }
    specs |= {operand_ref("out", i): s for i, s in enumerate(call.outputs)}
    lines = []
    for at, name in enumerate(_names(call)):
        dtype = specs[name].dtype
        const = "" if name.startswith("out") else "const "
        kind = storage(dtype) if dtype in STORAGE else f"uint{8 * element_bytes(dtype)}_t"
        lines.append(f"[[maybe_unused]] {const}{kind} *const {name} = ({const}{kind} *)args[{at}];")
    return lines


def stage(call: NodeCall, text: Text, target: CodegenTarget) -> Stage:
    """A text as a stage over all of the node's operands and results."""
    lines = [*arguments(call), *text.head, for_tasks(text.body)]
    body = "\n".join(f"  {line}" for part in lines for line in part.splitlines())
    least = target.config.max_threadgroup_1d
    moved = sum(s.size_bytes or 0 for s in (*call.outputs, *(t.spec for t in call.tensors)))
    return Stage(
        stem=text.stem or call.op,
        source=function(body),
        args=_names(call),
        tasks=text.tasks,
        grain=max(1, math.ceil(least / max(text.per, 1))),
        scratch_bytes=max(text.scratch_bytes, STATUS if "scratch" in body else 0),
        parts=frozenset({"movement"}) | text.parts,
        flops=text.flops,
        bytes=moved,
    )


class Rows:
    """A kernel of several ops, each a row."""

    def __init__(self, name: str, rows: Mapping[str, Row]) -> None:
        self.name = name
        self.ops = tuple(rows)
        self._rows = rows

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """By the row; what is only moved must have bytes."""
        for spec in (*call.outputs, *(t.spec for t in call.tensors)):
            if not element_bytes(spec.dtype) or spec.dtype.is_complex:
                return refuse(spec.dtype, f"{call.op} on values")
        refused = self._rows[call.op].why_not(call)
        return Support.yes() if refused is None else refused

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """The text's stage."""
        row = self._rows[call.op]
        text = row.text if row.alone is None or target.kind == "cpu" else row.alone
        return Lowered((stage(call, text(call), target),))


def whole(call: NodeCall, position: int) -> Place:
    """An operand's box."""
    return Place.of(operand_ref("in", position), call.tensor(position).spec)


def result(call: NodeCall, position: int = 0) -> Place:
    """A result's box."""
    return Place.of(operand_ref("out", position), call.outputs[position])
