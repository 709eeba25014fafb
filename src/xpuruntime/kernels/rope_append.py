"""Rotary positions and the KV cache in one call: queries and keys are turned, and new rows of both caches written where they lie.

A task is one head at one position: of the queries, of the keys, or of the values, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..codegen.boxes import Move, Place
from ..codegen.points import address, for_tasks
from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..types import TensorSpec
from .kernel import Lowered, NodeCall, Stage
from .kit import FLOATS
from .moves_stage import STATUS, function, moves_stage
from .product import C_TYPES, accumulator, sizes, strides_in

__all__ = ["KERNELS", "PLACES", "POSITIONS", "RopeAppend", "named_by", "row_of", "stays"]

_ROWS = ("q", "k", "v")
_KEYS, _VALUES, PLACES, POSITIONS = 5, 6, 7, 8


class RopeAppend:
    """Only what is new is written: contents of the caches stay where they are, or are copied first where those may not change."""

    name: str = "rope/generated"
    ops: tuple[str, ...] = ("rope_append",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Floats whose last dim lies in a row."""
        dtype = call.outputs[0].dtype
        if dtype not in FLOATS:
            return Support.no(Reason.DTYPE_UNSUPPORTED, f"no rope_append in {dtype.value}")
        specs = [*(call.tensor(i).spec for i in range(7)), *call.outputs]
        if any(s.physical.strides[-1] != 1 and sizes(s)[-1] != 1 for s in specs):
            return Support.no(Reason.SHAPE_UNSUPPORTED, "reads and writes rows that lie together")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """Three stages; the two that keep caches as they are fall away where these are updated in place."""
        stages = stays(call, target)
        if all(sizes(call.outputs[0])):
            stages.append(self.turns(call, target))
        return Lowered(tuple(stages), in_place={1: _KEYS, 2: _VALUES})

    def turns(self, call: NodeCall, target: CodegenTarget) -> Stage:
        """The stage that turns and writes."""
        q, k = call.tensor(0).spec, call.tensor(1).spec
        (batch, heads, length, d), kv = sizes(q), sizes(k)[1]
        inputs = [0, 1, 2, 3, 4, PLACES, *([POSITIONS] if call.optional(POSITIONS) else [])]
        args = (*(f"in{i}" for i in inputs), "out0", "out1", "out2")
        tasks = batch * (heads + 2 * kv) * length
        moved = 2 * d * tasks * q.dtype.bits // 8
        return Stage(
            stem=f"rope_append_{batch}x{heads}+{kv}x{length}x{d}",
            source=function(self._text(call, args)),
            args=args,
            tasks=tasks,
            grain=max(1, target.config.max_threadgroup_1d // max(d, 1)),
            scratch_bytes=STATUS,
            parts=frozenset({"movement", "arith"}),
            flops=3 * d * batch * (heads + kv) * length,
            bytes=moved,
        )

    def _text(self, call: NodeCall, args: Sequence[str]) -> str:
        q, k = call.tensor(0).spec, call.tensor(1).spec
        (_, heads, length, d), kv = sizes(q), sizes(k)[1]
        size = call.attrs["size"] or d
        kind, half = C_TYPES[q.dtype], size // 2
        specs: dict[str, TensorSpec] = {
            f"in{i}": call.tensor(i).spec for i in range(len(call.inputs)) if call.optional(i)
        }
        specs |= {f"out{i}": s for i, s in enumerate(call.outputs)}
        lines = [
            f"// queries of {heads} heads and keys of {kv} turned by their positions; keys and values into their caches",
            f"constexpr int L = VECTOR_BYTES / sizeof({accumulator(q.dtype)});",
        ]
        for at, name in enumerate(args):
            const = "" if name.startswith("out") else "const "
            lines.append(
                f"{const}{C_TYPES[specs[name].dtype]} *const {name} = ({const}{C_TYPES[specs[name].dtype]} *)args[{at}];"
            )
        capacity = sizes(call.outputs[1])[2]
        body = [
            f"const int64_t t = task % {length}, head = task / {length} % {heads + 2 * kv}, b = task / {length * (heads + 2 * kv)};",
            f"const int64_t to = index_in({named_by(call, PLACES)}, {capacity}, scratch);",
            *self.table_lines(call),
            f"const bool query = head < {heads}, key = !query && head < {heads + kv};",
            f"const int64_t h = query ? head : key ? head - {heads} : head - {heads + kv};",
            f"const {kind} *x = query ? {row_of(call, 'in0', specs['in0'])} : key ? {row_of(call, 'in1', specs['in1'])} : {row_of(call, 'in2', specs['in2'])};",
            f"{kind} *y = query ? {row_of(call, 'out0', specs['out0'])} : key ? {row_of(call, 'out1', specs['out1'], 'to')} : {row_of(call, 'out2', specs['out2'], 'to')};",
            "if (!query && !key) {",
            f"  copy_run(y, x, {d});",
            "  continue;",
            "}",
            f"for (int64_t j = 0; j < {half}; j += L) {{",
            f"  const int64_t n = {half} - j < L ? {half} - j : L;",
            f"  const auto low = {_load('x + j')}, high = {_load(f'x + {half} + j')}, c = {_load('cosines + j')}, s = {_load('sines + j')};",
            f"  {_store('y + j', 'low * c - high * s')}",
            f"  {_store(f'y + {half} + j', 'high * c + low * s')}",
            "}",
        ]
        if size < d:
            body.append(f"copy_run(y + {size}, x + {size}, {d - size});")
        lines.append(for_tasks(body))
        return "\n".join(f"  {line}" for part in lines for line in part.splitlines())

    def table_lines(self, call: NodeCall) -> list[str]:
        """Where the row of the tables lies that this task reads."""
        kind = C_TYPES[call.outputs[0].dtype]
        rows, steps = sizes(call.tensor(3).spec), [call.tensor(i).spec.physical.strides for i in (3, 4)]
        if call.optional(POSITIONS) is not None:
            first = f"const int64_t place = index_in({named_by(call, POSITIONS)}, {rows[0]}, scratch);"
            at = [f"place * {s[0]}" for s in steps]
            lines = [first]
        else:
            at = [f"t * {s[-2]}" + (f" + b * {s[0]}" if len(s) == 3 and rows[0] != 1 else "") for s in steps]
            lines = []
        return [*lines, f"const {kind} *cosines = in3 + {at[0]}, *sines = in4 + {at[1]};"]


def stays(call: NodeCall, target: CodegenTarget) -> list[Stage]:
    """The stages that carry both caches over; they fall away where these are updated in place."""
    made = []
    for operand, result in ((_KEYS, 1), (_VALUES, 2)):
        to = Place.of(f"out{result}", call.outputs[result])
        move = Move(to, Place.of(f"in{operand}", call.tensor(operand).spec))
        args = (f"in{operand}", f"out{result}")
        made.append(moves_stage("stays", [move], args, call.outputs[result].dtype, target, copies=True))
    return made


def named_by(call: NodeCall, position: int) -> str:
    """What a tensor of [length] or [batch, length] says of this task."""
    q = sizes(call.outputs[0])
    steps = strides_in(call.tensor(position).spec, (q[0], q[2]))
    return f"in{position}[b * {steps[0]} + t * {steps[1]}]"


def row_of(call: NodeCall, name: str, spec: TensorSpec, row: str = "t") -> str:
    """Where the row of this task's batch, head and position begins."""
    steps = spec.physical.strides
    place = Place(name, sizes(spec)[:3], tuple(steps[:3]))
    return address(place, ["b", "h", row])


def _load(at: str) -> str:
    return f"(n == L ? load<L>({at}) : load<L>({at}, n))"


def _store(at: str, value: str) -> str:
    return f"if (n == L) store<L>({at}, {value}); else store<L>({at}, {value}, n);"


KERNELS = (RopeAppend(),)
