"""Ops that rearrange elements by position: triangles, reversed sequences, masked scatter, cache updates, im2col and col2im."""

from __future__ import annotations

import math

from ...codegen.loops.boxes import Box
from ...codegen.loops.points import address, storage, unravel
from ...ir.interp.windows import Windows
from ...types import DType
from ..kernel import NodeCall
from ..spec.support import FLOATS, INTEGERS, NUMBERS, computes
from .tasks import OpTemplate, TaskText, TemplateKernel, result, whole

__all__ = ["KERNELS"]


def _names(n: int) -> list[str]:
    return [f"i{d}" for d in range(n)]


def _triangle(call: NodeCall) -> TaskText:
    """Return the text of one row per task: a run that is copied, and a run of zeros before or after it."""
    x, y, n = whole(call, 0), result(call), call.outputs[0].rank
    rows, columns = y.shape[-2:]
    diagonal = max(-rows, min(call.attrs["diagonal"], columns))
    lower = call.op == "tril"
    x_row, y_row = (address(box, [*_names(n - 1), "0"]) for box in (x, y))
    x_step, y_step = x.strides[-1], y.strides[-1]
    low, high = ("0", "edge") if lower else ("edge", str(columns))
    zero, last = ("edge", str(columns)) if lower else ("0", "edge")
    body = [
        *unravel(y.shape[:-1]),
        f"const int64_t wanted = i{n - 2} + {diagonal + lower};",
        f"const int64_t edge = wanted < 0 ? 0 : wanted < {columns} ? wanted : {columns};",
        f"copy_steps<{y_step}, {x_step}>({y_row} + {low} * {y_step}, {x_row} + {low} * {x_step}, {high} - {low});",
        f"zero_steps<{y_step}>({y_row} + {zero} * {y_step}, {last} - {zero});",
    ]
    return TaskText(body, math.prod(y.shape[:-1]), per=columns)


def _triangle_element(call: NodeCall) -> TaskText:
    """Return the text of one element per GPU thread, in memory order."""
    x, y, n = whole(call, 0), result(call), call.outputs[0].rank
    at, order = _names(n), call.outputs[0].physical.order
    keep = f"i{n - 1} - i{n - 2} {'<=' if call.op == 'tril' else '>='} {call.attrs['diagonal']}"
    body = [
        *unravel([y.shape[d] for d in order], prefix="r"),
        *(f"const int64_t i{d} = r{place};" for place, d in enumerate(order)),
        f"*({address(y, at)}) = {keep} ? *({address(x, at)}) : {_zero(call)};",
    ]
    total = math.prod(y.shape)
    return TaskText(body if total else [], total)


def _zero(call: NodeCall) -> str:
    from ...codegen.loops.boxes import bits_type
    from ...codegen.loops.points import STORAGE

    dtype = call.outputs[0].dtype
    return f"{STORAGE.get(dtype, bits_type(dtype))}{{}}"


def _reverse_sequence(call: NodeCall) -> TaskText:
    """Return the text that reverses the first lengths[b] steps of sample b."""
    x, lengths, y = whole(call, 0), whole(call, 1), result(call)
    time, batch = call.attrs["time_dim"], call.attrs["batch_dim"]
    at = _names(len(y.shape))
    source = [*at[:time], "step", *at[time + 1 :]]
    body = [
        *unravel(y.shape),
        f"const int64_t count = (int64_t)*({address(lengths, [f'i{batch}'])});",
        f"const int64_t step = index_in(i{time} < count ? count - 1 - i{time} : i{time}, {y.shape[time]}, scratch);",
        f"*({address(y, at)}) = *({address(x, source)});",
    ]
    return TaskText(body, math.prod(y.shape))


def _masked_scatter(call: NodeCall) -> TaskText:
    """Return the text of a single task, because the target of a source element depends on all of the mask before it."""
    x, mask, source, y = whole(call, 0), whole(call, 1), whole(call, 2), result(call)
    x, mask, at = x.expanded(y.shape), mask.expanded(y.shape), _names(len(y.shape))
    total = math.prod(source.shape)
    where = [f"s{d}" for d in range(len(source.shape))]
    taken = [*unravel(source.shape, "taken", "s"), f"give = *({address(source, where)});"]
    body = [
        "int64_t taken = 0;",
        f"for (int64_t e = 0; e < {math.prod(y.shape)}; ++e) {{",
        *(f"  {line}" for line in unravel(y.shape, "e")),
        f"  auto give = *({address(x, at)});",
        f"  if (*({address(mask, at)})) {{",
        f"    if (taken >= {total}) {{ fail(scratch, DOES_NOT_FIT, taken + 1, {total}); return; }}",
        *(f"    {line}" for line in (taken if total else ())),
        "    ++taken;",
        "  }",
        f"  *({address(y, at)}) = give;",
        "}",
    ]
    return TaskText(body, 1, per=math.prod(y.shape))


def _tensor_scatter(call: NodeCall) -> TaskText:
    """Return the text in which each cache position finds its step of the update. If several wrap around to it, the last one wins."""
    past, update, y, dim = whole(call, 0), whole(call, 1), result(call), call.attrs["dim"]
    at, size, length = _names(len(y.shape)), y.shape[dim], update.shape[dim]
    start = f"(int64_t)*({address(whole(call, 2), ['i0'])})" if call.optional(2) else "0"
    source = [*at[:dim], "step", *at[dim + 1 :]]
    body = [*unravel(y.shape), f"const int64_t start = {start};"]
    if call.attrs["mode"] == "circular":
        body += [
            f"int64_t step = (i{dim} - start) % {size};",
            f"if (step < 0) step += {size};",
            *([f"step += ({length - 1} - step) / {size} * {size};"] if length > size else []),
        ]
    else:
        body += [
            f"if (start < {-size} || start + {length} > {size})"
            f" fail(scratch, INDEX_OUTSIDE, start < 0 ? start : start + {length - 1}, {size});",
            f"int64_t step = i{dim} - start;",
            f"if (step >= {size}) step -= {size};",
        ]
    body.append(
        f"*({address(y, at)}) = step >= 0 && step < {length} ? *({address(update, source)}) : *({address(past, at)});"
    )
    return TaskText(body, math.prod(y.shape))


# ── im2col, col2im ──


def _windows(call: NodeCall) -> Windows:
    a = call.attrs
    image = call.tensor(0).spec if call.op == "im2col" else call.outputs[0]
    n = len(a["kernel_size"])
    space = [int(d) for d in image.shape[image.rank - n :] if isinstance(d, int)]
    return Windows(space, a["kernel_size"], a["stride"], a["padding"], a["dilation"])


def _im2col(call: NodeCall) -> TaskText:
    """Return the text of one row of windows per task: the run that is inside the image is copied, what is before and after it is zero."""
    w, x, y = *_without_columns(_windows(call), whole(call, 0)), result(call)
    outer, width, stride, space = w.size[:-1], w.size[-1], w.stride[-1], w.space[-1]
    shape = (*y.shape[:-2], x.shape[-w.n - 1], *w.kernel, *outer)
    first, lines = len(y.shape) - 1, math.prod(outer)
    x_row = address(x, [*_names(first), *(f"p{d}" for d in range(w.n - 1)), "at"])
    row = [*_names(first - 1), f"(task / {lines} % {y.shape[-2]})", f"(task % {lines} * {width})"]
    x_step, y_step = x.strides[-1] * stride, y.strides[-1]
    inside = " && ".join(f"p{d} >= 0 && p{d} < {w.space[d]}" for d in range(w.n - 1)) or "true"
    tap = f"i{first + w.n - 1} * {w.dilation[-1]}"
    body = [
        *unravel(shape),
        *(f"const int64_t p{d} = {_position(w, d, first)};" for d in range(w.n - 1)),
        f"const int64_t lead = {w.begins[-1]} - {tap}, rest = lead + {space};",
        f"int64_t low = lead > 0 ? (lead + {stride - 1}) / {stride} : 0;",
        f"int64_t high = rest > 0 ? (rest + {stride - 1}) / {stride} : 0;",
        f"if (high > {width}) high = {width};",
        f"if (low >= high || !({inside})) low = high = 0;",
        f"const int64_t at = low * {stride} - lead;",
        f"auto *const row = {address(y, row)};",
        f"zero_steps<{y_step}>(row, low);",
        f"if (low < high) copy_steps<{y_step}, {x_step}>(row + low * {y_step}, {x_row}, high - low);",
        f"zero_steps<{y_step}>(row + high * {y_step}, {width} - high);",
    ]
    return TaskText(body, math.prod(shape), per=width)


def _without_columns(w: Windows, x: Box) -> tuple[Windows, Box]:
    """Return windows and image without trailing dims of one window with one tap, so that rows are long."""
    n = w.n
    while n > 1 and w.size[n - 1] == w.kernel[n - 1] == 1 and not w.begins[n - 1]:
        n, x = n - 1, x.at(len(x.shape) - 1, 0)
    pads = (*w.begins[:n], *w.ends[:n])
    return Windows(w.space[:n], w.kernel[:n], w.stride[:n], pads, w.dilation[:n]), x


def _im2col_element(call: NodeCall) -> TaskText:
    """Return the text of one element per GPU thread."""
    w, x, y = _windows(call), whole(call, 0), result(call)
    count, first = math.prod(w.size), len(y.shape) - 1
    shape = (*y.shape[:-2], x.shape[-w.n - 1], *w.kernel, *w.size)
    source = address(x, [*_names(first), *(f"p{d}" for d in range(w.n))])
    inside = " && ".join(f"p{d} >= 0 && p{d} < {s}" for d, s in enumerate(w.space))
    at = [*_names(first - 1), f"(task / {count} % {y.shape[-2]})", f"(task % {count})"]
    body = [
        *unravel(shape),
        *(f"const int64_t p{d} = {_position(w, d, first)};" for d in range(w.n)),
        f"*({address(y, at)}) = {inside} ? *({source}) : {_zero(call)};",
    ]
    return TaskText(body, math.prod(shape))


def _position(w: Windows, d: int, first: int) -> str:
    """Return the position in dim ``d`` of the image that a tap of a window reads; kernel dims are from index ``first`` on."""
    return f"i{first + w.n + d} * {w.stride[d]} + i{first + d} * {w.dilation[d]} - {w.begins[d]}"


def _col2im(call: NodeCall) -> TaskText:
    """Return the text in which each element of the image sums the column elements that map to it, tap by tap."""
    w, x, y = _windows(call), whole(call, 0), result(call)
    n, first = w.n, len(y.shape) - w.n
    names = _names(len(y.shape))
    body = [*unravel(y.shape), "double total = 0;"]
    for d, k in enumerate(w.kernel):
        body.append(f"{'  ' * d}for (int64_t t{d} = 0; t{d} < {k}; ++t{d}) {{")
        body.append(
            f"{'  ' * (d + 1)}const int64_t r{d} = i{first + d} + {w.begins[d]} - t{d} * {w.dilation[d]};"
        )
        body.append(
            f"{'  ' * (d + 1)}if (r{d} < 0 || r{d} % {w.stride[d]} || r{d} / {w.stride[d]} >= {w.size[d]}) continue;"
        )
    row, column = f"i{first - 1}", "0"
    for d in range(n):
        row = f"({row}) * {w.kernel[d]} + t{d}"
        column = f"({column}) * {w.size[d]} + r{d} / {w.stride[d]}"
    at = [*names[: first - 1], f"({row})", f"({column})"]
    body.append(f"{'  ' * n}total += (double)load<1>({address(x, at)});")
    body += ["  " * d + "}" for d in reversed(range(n))]
    kind = storage(call.outputs[0].dtype)
    body.append(f"store<1>({address(y, names)}, convert<{kind}>(total));")
    return TaskText(body, math.prod(y.shape), per=math.prod(w.kernel))


KERNELS = (
    TemplateKernel(
        "places/generated",
        {
            "tril": OpTemplate(_triangle, thread_text=_triangle_element),
            "triu": OpTemplate(_triangle, thread_text=_triangle_element),
            "reverse_sequence": OpTemplate(_reverse_sequence, computes(1, dtypes=INTEGERS)),
            "masked_scatter": OpTemplate(_masked_scatter, computes(1, dtypes=frozenset({DType.BOOL}))),
            "tensor_scatter": OpTemplate(_tensor_scatter),
            "im2col": OpTemplate(_im2col, thread_text=_im2col_element),
            "col2im": OpTemplate(_col2im, computes(0, dtypes=NUMBERS - {DType.INT64, DType.UINT64} | FLOATS)),
        },
    ),
)
