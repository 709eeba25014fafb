"""Rotary position embedding on CPUs (Su et al., "RoFormer", 2021): a task is one row, a head at a position; pairs are turned in vectors."""

from __future__ import annotations

from collections.abc import Sequence

from ..codegen.boxes import Place
from ..codegen.points import address, storage, unravel
from ..decisions import Support
from ..types import DType
from .kernel import NodeCall, operand_ref
from .kit import FLOATS, INTEGERS, Row, Rows, Text, first, refuse
from .product import accumulator, sizes, strides_in

__all__ = ["KERNELS", "over_rows", "table_row", "why_not"]


def table_row(call: NodeCall, position: int, rows: Sequence[int]) -> str:
    """Where the row of a table of angles begins: by the sample and place of x's row, or by what ``positions`` holds there."""
    table = call.tensor(position).spec
    steps, positions = table.physical.strides, call.optional(3)
    names = [f"i{d}" for d in range(len(rows))]
    if positions is None:
        own = over_rows(sizes(table)[:-1], steps[:-1], len(rows))
        return address(Place(operand_ref("in", position), tuple(rows), own), names)
    return f"{operand_ref('in', position)} + place * {steps[0]}"


def over_rows(shape: Sequence[int], steps: Sequence[int], rank: int) -> tuple[int, ...]:
    """Strides of [length] or [batch, length] over x's dims before the last; heads stand between the two."""
    kept = [0 if d == 1 else s for d, s in zip(shape, steps, strict=True)]
    if len(kept) == 2 and rank == 3:
        kept.insert(1, 0)
    return (*[0] * (rank - len(kept)), *kept)


def _rope(call: NodeCall) -> Text:
    x, y = call.tensor(0).spec, call.outputs[0]
    shape = sizes(x)
    rows, d = shape[:-1], shape[-1]
    size, interleaved = call.attrs["size"] or d, call.attrs["interleaved"]
    half = size // 2
    names = [f"i{i}" for i in range(len(rows))]
    count = 1
    for extent in rows:
        count *= extent
    sums, kind = accumulator(x.dtype), storage(x.dtype)
    x_step, y_step = strides_in(x, (*rows, max(d, 2)))[-1] or 1, y.physical.strides[-1]
    body = unravel(rows)
    positions = call.optional(3)
    if positions is not None:
        at = over_rows(sizes(positions.spec), positions.spec.physical.strides, len(rows))
        where = address(Place("in3", tuple(rows), at), names)
        body.append(f"const int64_t place = index_in(*({where}), {sizes(call.tensor(1).spec)[0]}, scratch);")
    own = x.physical.strides
    body += [
        f"const {kind} *x = {address(Place('in0', rows, own[:-1]), names)};",
        f"{kind} *y = {address(Place('out0', rows, y.physical.strides[:-1]), names)};",
        f"const {kind} *cosines = {table_row(call, 1, rows)}, *sines = {table_row(call, 2, rows)};",
    ]
    # The second of a pair is its neighbour, or the element half of the size on.
    step, other = (2, 1) if interleaved else (1, half)

    def get(base: str, stride: int) -> str:
        if stride == 1:
            return f"(n == L ? load<L>({base}) : load<L>({base}, n))"
        return f"gather<L>({base}, {stride}, n)"

    tables = [call.tensor(i).spec.physical.strides[-1] if half > 1 else 1 for i in (1, 2)]
    body += [
        f"for (int64_t j = 0; j < {half}; j += L) {{",
        f"  const int64_t n = {half} - j < L ? {half} - j : L;",
        f"  const auto a = {get(f'x + j * {step * x_step}', step * x_step)};",
        f"  const auto b = {get(f'x + {other * x_step} + j * {step * x_step}', step * x_step)};",
        f"  const auto c = {get(f'cosines + j * {tables[0]}', tables[0])}, s = {get(f'sines + j * {tables[1]}', tables[1])};",
        f"  scatter<L>(y + j * {step * y_step}, {step * y_step}, a * c - b * s, n);"
        if step * y_step != 1
        else "  if (n == L) store<L>(y + j, a * c - b * s); else store<L>(y + j, a * c - b * s, n);",
        f"  scatter<L>(y + {other * y_step} + j * {step * y_step}, {step * y_step}, b * c + a * s, n);"
        if step * y_step != 1
        else f"  if (n == L) store<L>(y + {other} + j, b * c + a * s); else store<L>(y + {other} + j, b * c + a * s, n);",
        "}",
    ]
    if size < d:
        body.append(f"for (int64_t j = {size}; j < {d}; ++j) y[j * {y_step}] = x[j * {x_step}];")
    head = [f"constexpr int L = VECTOR_BYTES / sizeof({sums});"]
    return Text(body, count, head, per=d, stem=f"rope_{count}x{d}", flops=6 * count * half)


def why_not(call: NodeCall) -> Support | None:
    """No, for what is neither floats nor (positions) whole numbers."""

    def kinds(*positions: int, among: frozenset[DType]) -> Support | None:
        wrong = [call.tensor(p).spec.dtype for p in positions if call.optional(p) is not None]
        wrong = [d for d in wrong if d not in among]
        return refuse(wrong[0], "rope") if wrong else None

    return first(kinds(0, 1, 2, among=FLOATS), kinds(3, among=INTEGERS))


KERNELS = (Rows("rope/generated", {"rope": Row(_rope, why_not)}),)
