"""``embedding_bag``: rows of a table, reduced over bags. The run reports an index outside the table."""

from __future__ import annotations

from ...codegen.c_types import accumulator
from ...decisions import Reason, Support
from ..kernel import NodeCall
from ..spec.product import sizes
from ..spec.support import FLOATS, INTEGERS, computes, first
from .tasks import OpTemplate, TaskText, TemplateKernel

__all__ = ["KERNELS"]


def _bag(call: NodeCall) -> TaskText:
    """Return the text of one bag per task. Rows are reduced in the order of the indices."""
    weight, index, offsets = (call.tensor(i).spec for i in range(3))
    mode, last = call.attrs["mode"], call.attrs["include_last_offset"]
    (rows, width), (many,), (bags, _) = sizes(weight), sizes(index), sizes(call.outputs[0])
    padding_index = call.attrs["padding_idx"] + (rows if call.attrs["padding_idx"] < -1 else 0)
    sums = accumulator(call.outputs[0].dtype)
    w, i, o, y = (s.physical.strides for s in (weight, index, offsets, call.outputs[0]))
    scale = call.optional(3)
    end = f"in2[(task + 1) * {o[0]}]"
    if not last:
        end = f"task + 1 < {bags} ? (int64_t){end} : {many}"
    value = f"raw<{sums}>(load<1>(in0 + row * {w[0]} + e * {w[1]}))"
    if scale is not None and mode != "max":
        value += f" * raw<{sums}>(load<1>(in3 + j * {scale.spec.physical.strides[0]}))"
    outputs = len(call.outputs)
    bag_of = outputs > 1
    body = [
        f"int64_t first = in2[task * {o[0]}], last = {end};",
        f"first = first < 0 ? 0 : first; last = last > {many} ? {many} : last;",
        "int64_t kept = 0;",
        f"for (int64_t e = 0; e < {width}; ++e) sums[e] = 0;",
    ]
    body += [
        "for (int64_t j = first; j < last; ++j) {",
        f"  const int64_t row = index_in(in1[j * {i[0]}], {rows}, scratch);",
    ]
    if bag_of:
        body.append("  out1[j] = task;")
    body.append(f"  if (row == {padding_index}) continue;")
    if mode == "max":
        body += [
            f"  for (int64_t e = 0; e < {width}; ++e) {{",
            f"    const {sums} value = {value};",
            "    if (!kept || (sums[e] == sums[e] && !(value <= sums[e]))) {",
            "      sums[e] = value;",
            "    }",
            "  }",
        ]
    else:
        body.append(f"  for (int64_t e = 0; e < {width}; ++e) sums[e] += {value};")
    body += ["  ++kept;", "}"]
    if outputs > 2:
        body.append("out2[task] = kept;")
    if outputs > 3:
        body.append("out3[task] = 0;")
    divided = f"sums[e] / ({sums})(kept ? kept : 1)" if mode == "mean" else "sums[e]"
    body.append(
        f"for (int64_t e = 0; e < {width}; ++e) store<1>(out0 + task * {y[0]} + e * {y[1]}, {divided});"
    )
    head = [f"{sums} *sums = ({sums} *)scratch;"]
    if bag_of:  # indices before the first bag belong to no bag
        head.append(
            f"if (begin == 0 && end > 0) for (int64_t j = 0; j < {many} && j < (int64_t)in2[0]; ++j) out1[j] = 0;"
        )
    return TaskText(body, bags, head, per=max(1, many * width // max(bags, 1)), scratch_bytes=8 * width + 64)


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


KERNELS = (TemplateKernel("embedding/generated", {"embedding_bag": OpTemplate(_bag, _bag_why_not)}),)
