"""``embedding_bag``: rows of a table, reduced over bags. The run reports an index outside the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...codegen.c_types import C_TYPES, accumulator
from ...decisions import Reason, Support
from ..kernel import NodeCall
from ..spec.product import sizes
from ..spec.support import FLOATS, INTEGERS, computes, first
from .tasks import OpTemplate, TaskText, TemplateKernel

__all__ = ["KERNELS"]


@dataclass(frozen=True, slots=True)
class _Bags:
    """The sizes, strides and types of a node, and the lines that each form of its text has.

    step: lines that begin the loop over the rows of a bag; done: lines behind the bag's sums; divisor: what those are divided by, or "".
    """

    call: NodeCall
    sums: str
    width: int
    bags: int
    many: int
    head: tuple[str, ...]
    bounds: tuple[str, ...]
    step: tuple[str, ...]
    done: tuple[str, ...]
    divisor: str

    @classmethod
    def of(cls, call: NodeCall) -> _Bags:
        """Return those of a node."""
        index, offsets = call.tensor(1).spec, call.tensor(2).spec
        (rows, width), (many,) = sizes(call.tensor(0).spec), sizes(index)
        bags, outputs = sizes(call.outputs[0])[0], len(call.outputs)
        padding_index = call.attrs["padding_idx"] + (rows if call.attrs["padding_idx"] < -1 else 0)
        sums = accumulator(call.outputs[0].dtype)
        (i,), (o,) = index.physical.strides, offsets.physical.strides
        end = f"in2[(task + 1) * {o}]"
        if not call.attrs["include_last_offset"]:
            end = f"task + 1 < {bags} ? (int64_t){end} : {many}"
        bounds = (
            f"int64_t first = in2[task * {o}], last = {end};",
            f"first = first < 0 ? 0 : first; last = last > {many} ? {many} : last;",
            "int64_t kept = 0;",
        )
        step = (
            "for (int64_t j = first; j < last; ++j) {",
            f"  const int64_t row = index_in(in1[j * {i}], {rows}, scratch);",
            *(["  out1[j] = task;"] if outputs > 1 else []),
            f"  if (row == {padding_index}) continue;",
            "  ++kept;",
        )
        done = (
            *(["out2[task] = kept;"] if outputs > 2 else []),
            *(["out3[task] = 0;"] if outputs > 3 else []),
        )
        # Indices before the first bag belong to no bag.
        outside = f"if (begin == 0 && end > 0) for (int64_t j = 0; j < {many} && j < (int64_t)in2[0]; ++j) out1[j] = 0;"
        head = (outside,) if outputs > 1 else ()
        divisor = f"({sums})(kept ? kept : 1)" if call.attrs["mode"] == "mean" else ""
        return cls(call, sums, width, bags, many, head, bounds, step, done, divisor)

    def scaled(self, value: str) -> str:
        """Return a value of row ``row``, times the scale of index ``j`` if rows have one."""
        scale = self.call.optional(3)
        if scale is None or self.call.attrs["mode"] == "max":
            return value
        return f"{value} * raw<{self.sums}>(load<1>(in3 + j * {scale.spec.physical.strides[0]}))"

    def text(self, body: Sequence[str], head: Sequence[str] = (), scratch_bytes: int = 64) -> TaskText:
        """Return the text of one bag per task."""
        per = max(1, self.many * self.width // max(self.bags, 1))
        return TaskText(
            [*body, *self.done], self.bags, [*head, *self.head], per=per, scratch_bytes=scratch_bytes
        )


def _bag(call: NodeCall) -> TaskText:
    """Return the text of one bag per task. Rows are reduced in the order of the indices."""
    p = _Bags.of(call)
    w, y = (s.physical.strides for s in (call.tensor(0).spec, call.outputs[0]))
    value = p.scaled(f"raw<{p.sums}>(load<1>(in0 + row * {w[0]} + e * {w[1]}))")
    join = "sums[e] += value;"
    if call.attrs["mode"] == "max":
        join = "if (kept == 1 || (sums[e] == sums[e] && !(value <= sums[e]))) sums[e] = value;"
    body = [
        *p.bounds,
        f"for (int64_t e = 0; e < {p.width}; ++e) sums[e] = 0;",
        *p.step,
        f"  for (int64_t e = 0; e < {p.width}; ++e) {{",
        f"    const {p.sums} value = {value};",
        f"    {join}",
        "  }",
        "}",
        f"for (int64_t e = 0; e < {p.width}; ++e)",
        f"  store<1>(out0 + task * {y[0]} + e * {y[1]}, sums[e]{p.divisor and ' / ' + p.divisor});",
    ]
    return p.text(body, [f"{p.sums} *sums = ({p.sums} *)scratch;"], 8 * p.width + 64)


def _bag_in_vectors(call: NodeCall) -> TaskText:
    """Return ``_bag`` with vectors along rows, if these are added and contiguous."""
    p = _Bags.of(call)
    w, y = (s.physical.strides for s in (call.tensor(0).spec, call.outputs[0]))
    if call.attrs["mode"] == "max" or w[1] != 1 or y[1] != 1 or not p.width:
        return _bag(call)
    stored = C_TYPES[call.outputs[0].dtype]
    value = p.scaled(f"raw<{p.sums}>(load<L>(in0 + row * {w[0]} + e + v * L, n...))")
    body = [
        *p.bounds,
        f"constexpr int L = VECTOR_BYTES / sizeof({p.sums});",
        "const auto add = [&](int64_t e, auto vectors, auto... n) __attribute__((always_inline)) {",
        f"  vec<{p.sums}, L> total[sizeof vectors] = {{}};",
        "  kept = 0;",
        *(f"  {line}" for line in p.step),
        f"    for (int v = 0; v < (int)sizeof vectors; ++v) total[v] += {value};",
        "  }",
        "  for (int v = 0; v < (int)sizeof vectors; ++v)",
        f"    store<L>(out0 + task * {y[0]} + e + v * L, raw<typename storage_<{stored}>::compute>(total[v]{p.divisor and ' / ' + p.divisor}), n...);",
        "};",
        "struct Several { char each[4]; };",
        "int64_t e = 0;",
        f"for (; e + 4 * L <= {p.width}; e += 4 * L) add(e, Several{{}});",
        f"for (; e + L <= {p.width}; e += L) add(e, char{{}});",
        f"if (e < {p.width}) add(e, char{{}}, {p.width} - e);",
    ]
    return p.text(body)


def _bag_why_not(call: NodeCall) -> Support | None:
    return first(
        computes(0, 3, dtypes=FLOATS)(call),
        computes(1, 2, dtypes=INTEGERS)(call),
        Support.no(Reason.SHAPE_UNSUPPORTED, "indices and offsets of embedding_bag must have one dim")
        if call.tensor(1).spec.rank != 1 or call.tensor(2).spec.rank != 1
        else None,
        Support.no(Reason.NOT_IMPLEMENTED, "indices of maxima are not implemented")
        if call.attrs["mode"] == "max" and len(call.outputs) > 3
        else None,
    )


KERNELS = (
    TemplateKernel("embedding/generated", {"embedding_bag": OpTemplate(_bag_in_vectors, _bag_why_not, _bag)}),
)
