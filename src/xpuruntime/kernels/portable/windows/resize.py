"""``resize``, ``grid_sample`` and ``affine_grid``.

Interpolation is separable. For every resized dim, the code has tables of the first input position and of the weights, computed at compile
time. Grids give positions at run time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ....codegen.loops.boxes import Box
from ....codegen.loops.combine import bits_of
from ....codegen.loops.points import address, number, storage, table, unravel
from ....decisions import Reason, Support
from ....ir.interp import resize as meaning
from ....types import DType
from ...kernel import NodeCall
from ...spec.support import FLOATS, NUMBERS, computes, first, refuse
from ..tasks import OpTemplate, TaskText, TemplateKernel, result, whole

__all__ = ["KERNELS"]


@dataclass(frozen=True, slots=True)
class _Axis:
    """One resized dim.

    size:    of the input.
    start:   per output position, the first input position; those outside the input read its border.
    counts:  per output position, the taps that are read.
    weights: per output position, the weights of the taps, and zeros up to the largest count.
    outside: per output position, whether it is outside the input, and gets the extrapolation value.
    """

    dim: int
    size: int
    start: tuple[int, ...]
    counts: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    outside: tuple[bool, ...]

    @property
    def taps(self) -> int:
        return max(self.counts, default=1)

    @property
    def ragged(self) -> bool:
        return any(count != self.taps for count in self.counts)

    @property
    def inside(self) -> tuple[int, int]:
        """The first output position whose taps are all inside the input, and the one after the last."""
        at = [
            i
            for i, (start, count) in enumerate(zip(self.start, self.counts, strict=True))
            if start >= 0 and start + count <= self.size
        ]
        return (at[0], at[-1] + 1) if at else (0, 0)

    @property
    def crosses(self) -> bool:
        """True if a tap is outside the input."""
        return self.inside != (0, len(self.start))

    def tables(self, sum_type: str) -> list[str]:
        """Return the declarations of an interpolation's tables."""
        places = [min(max(s + k, 0), self.size - 1) for k in range(self.taps) for s in self.start]
        return [
            table(sum_type, f"share{self.dim}", [w for row in self.weights for w in row]),
            *([table("int32_t", f"count{self.dim}", self.counts)] if self.ragged else []),
            table("int32_t", f"start{self.dim}", self.start),
            *([table("int32_t", f"place{self.dim}", places)] if self.crosses else []),
        ]

    def loop(self, k: str, *, border: bool) -> list[str]:
        """Return the head of a loop over the taps of a position, with the tap's input position ``t``."""
        d = self.dim
        count = f"count{d}[i{d}]" if self.ragged else str(self.taps)
        place = (
            f"place{d}[{k} * {len(self.start)} + i{d}]"
            if border and self.crosses
            else f"start{d}[i{d}] + {k}"
        )
        return [f"for (int64_t {k} = 0; {k} < {count}; ++{k}) {{", f"const int64_t t{d} = {place};"]


def _axes(call: NodeCall) -> list[_Axis]:
    a, x = call.attrs, call.tensor(0).spec
    shape = [int(d) for d in x.shape if isinstance(d, int)]
    crop = a["coordinates"] == "tf_crop_and_resize"
    axes = []
    for dim, (old, out) in enumerate(zip(shape, (int(d) for d in a["size"]), strict=True)):
        scale = a["scales"][dim] if a["scales"] else out / max(old, 1)
        if old == out and scale == 1 and not crop:
            continue
        at = np.arange(out, dtype=np.float64)
        outside = np.zeros(out, bool)
        if crop:
            positions = meaning._cropped(at, scale, old, a["roi"][dim], a["roi"][dim + len(shape)])
            outside = (positions < 0) | (positions > old - 1)
        else:
            positions = meaning._COORDINATES[a["coordinates"]](at, scale, old, out)
        if a["mode"] == "nearest":
            nearest = np.clip(meaning._NEAREST[a["nearest"]](positions), 0, max(old - 1, 0)).astype(np.int64)
            once = (1,) * out
            axes.append(
                _Axis(dim, old, tuple(nearest.tolist()), once, ((1.0,),) * out, tuple(outside.tolist()))
            )
            continue
        shrink = min(scale, 1.0) if a["antialias"] else 1.0
        kernel, reach = meaning._KERNELS[a["mode"]](a["cubic_a"])
        taps = meaning.taps_of(positions, old, kernel, reach, shrink, a["exclude_outside"])
        axes.append(_Axis(dim, old, *_runs(taps, old), tuple(outside.tolist())))
    return axes


def _runs(
    taps: meaning.Taps, size: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[float, ...], ...]]:
    """Return the first positions of the taps that are read, their numbers, and their weights in rows of equal length."""
    first, counts = taps.read.argmax(axis=1), taps.read.sum(axis=1)
    width = int(counts.max(initial=1))
    rows = np.arange(len(counts))
    start = np.clip(taps.steps[rows, first], -width, size).astype(np.int64)  # all of them read the border
    share = np.pad(taps.share, ((0, 0), (0, width)))[rows[:, None], first[:, None] + np.arange(width)]
    return tuple(start.tolist()), tuple(counts.tolist()), tuple(tuple(row) for row in share.tolist())


def _resize(call: NodeCall) -> TaskText:
    """Return the text of one line per task, along the innermost dim in memory. Positions of the other dims are computed once per line."""
    x, y, axes = whole(call, 0), result(call), _axes(call)
    dtype, rank = call.outputs[0].dtype, call.outputs[0].rank
    inner = call.outputs[0].physical.order[-1]
    nearest = call.attrs["mode"] == "nearest"
    sum_type = "float" if dtype in FLOATS - {DType.FLOAT64} else "double"
    names = [f"i{d}" for d in range(rank)]
    others = [d for d in range(rank) if d != inner]
    head, body = [], []
    for axis in axes:
        head += [table("int32_t", f"start{axis.dim}", axis.start)] if nearest else axis.tables(sum_type)
        if any(axis.outside):
            # volatile: as constants, they crash NVVM of CUDA 13.0 and 13.3 if the same text has a byte copy.
            head.append(table("volatile bool", f"outside{axis.dim}", axis.outside))
    split = unravel([y.shape[d] for d in others], prefix="r")
    body += [*split, *(f"const int64_t i{d} = r{i};" for i, d in enumerate(others))]
    if nearest and (run := _nearest_run(x, y, axes, inner)):
        return TaskText([*body, run], math.prod(y.shape[d] for d in others), head, per=y.shape[inner])
    skip = []
    out = " || ".join(f"outside{a.dim}[i{a.dim}]" for a in axes if any(a.outside))
    if out:
        fill, kind = bits_of(call.attrs["extrapolation_value"], dtype), f"uint{dtype.bits}_t"
        skip = [f"if ({out}) {{ *({kind} *)({address(y, names)}) = ({kind}){fill}; continue; }}"]
    line = f"for (int64_t i{inner} = 0; i{inner} < {y.shape[inner]}; ++i{inner}) {{"
    if nearest:
        at = list(names)
        for axis in axes:
            at[axis.dim] = f"start{axis.dim}[i{axis.dim}]"
        body += [line, *skip, f"*({address(y, names)}) = *({address(x, at)});", "}"]
        return TaskText(body, math.prod(y.shape[d] for d in others), head, per=y.shape[inner])
    store = _store(address(y, names), "total0", dtype)
    inside = [*skip, *_blend(x, axes, sum_type, border=False), store]
    if any(a.crosses for a in axes):
        beyond = [f"i{a.dim} < {a.inside[0]} || i{a.dim} >= {a.inside[1]}" for a in axes if a.dim != inner]
        low, high = next((a.inside for a in axes if a.dim == inner), (0, y.shape[inner]))
        body += [
            f"const bool border = {' || '.join(beyond) or 'false'};",
            f"const int64_t low = border ? {y.shape[inner]} : {low}, high = border ? {y.shape[inner]} : {high};",
            line,
            f"if (i{inner} == low) {{  // in vectors",
            f"for (; i{inner} < high; ++i{inner}) {{",
            *inside,
            "}",
            f"if (i{inner} == {y.shape[inner]}) break;",
            "}",
            *skip,
            *_blend(x, axes, sum_type, border=True),
            store,
            "}",
        ]
    else:
        body += [line, *inside, "}"]
    per = y.shape[inner] * math.prod(a.taps for a in axes)
    return TaskText(body, math.prod(y.shape[d] for d in others), head, per=per, parts=frozenset({"arith"}))


def _blend(x: Box, axes: Sequence[_Axis], sum_type: str, *, border: bool) -> list[str]:
    """Return lines that compute the sum of the taps of a position, ``total0``. Taps outside the input are read where there is a border."""
    at = [f"i{d}" for d in range(len(x.shape))]
    blended = axes[::-1]  # The first dim is summed first, as in the reference, so that ties round alike.
    lines = [f"{sum_type} total0 = 0;"]
    for depth, axis in enumerate(blended):
        lines += axis.loop(f"k{depth}", border=border)
        if depth + 1 < len(blended):
            lines.append(f"{sum_type} total{depth + 1} = 0;")
        at[axis.dim] = f"t{axis.dim}"
    for depth, axis in reversed(list(enumerate(blended))):
        value = f"({sum_type})load<1>({address(x, at)})" if depth == len(blended) - 1 else f"total{depth + 1}"
        lines += [f"total{depth} += share{axis.dim}[i{axis.dim} * {axis.taps} + k{depth}] * {value};", "}"]
    if not blended:
        lines.append(f"total0 = ({sum_type})load<1>({address(x, at)});")
    return lines


_MAX_REPEATS = 8
"""Maximum copies of an element that vectors are shuffled for."""


def _nearest_run(x: Box, y: Box, axes: Sequence[_Axis], inner: int) -> str:
    """Return a line as a run that is copied, or whose elements are repeated; empty if it is neither."""
    if any(any(a.outside) for a in axes):
        return ""
    names = [f"start{d}[i{d}]" if any(a.dim == d for a in axes) else f"i{d}" for d in range(len(x.shape))]
    names[inner] = "0"
    to = address(y, [*(f"i{d}" if d != inner else "0" for d in range(len(y.shape)))])
    resized = next((a for a in axes if a.dim == inner), None)
    if resized is None:
        return f"copy_steps<{y.strides[inner]}, {x.strides[inner]}>({to}, {address(x, names)}, {y.shape[inner]});"
    times = y.shape[inner] // max(x.shape[inner], 1)
    repeated = resized.start == tuple(i // times for i in range(x.shape[inner] * times)) if times else False
    if not repeated or times > _MAX_REPEATS or (x.strides[inner], y.strides[inner]) != (1, 1):
        return ""
    return f"repeat_run<{times}>({to}, {address(x, names)}, {x.shape[inner]});"


def _resize_pack(call: NodeCall) -> TaskText:
    """Return the text of one pack of contiguous elements per GPU thread, in memory order, with the sums of ``_resize``."""
    x, y, axes = whole(call, 0), result(call), _axes(call)
    order, total = call.outputs[0].physical.order, math.prod(y.shape)
    if not total:
        return TaskText([], 0)
    dtype, nearest = call.outputs[0].dtype, call.attrs["mode"] == "nearest"
    sum_type = "float" if dtype in FLOATS - {DType.FLOAT64} else "double"
    width = _pack_width(x, y, axes, order[-1], dtype)
    names = [f"i{d}" for d in range(len(order))]
    head = []
    for a in axes:
        head += [table("int32_t", f"start{a.dim}", a.start)] if nearest else a.tables(sum_type)
    # volatile: see _resize
    head += [table("volatile bool", f"outside{a.dim}", a.outside) for a in axes if any(a.outside)]
    packs = [*(y.shape[d] for d in order[:-1]), y.shape[order[-1]] // width]
    index = "uint32_t" if total < 2**31 else "int64_t"  # division of 32 bits is faster
    body = [f"const {index} e = ({index})task;", *unravel(packs, "e", "r")]
    for at, d in enumerate(order):
        body.append(f"const int64_t i{d} = r{at}{f' * {width}' if width > 1 and d == order[-1] else ''};")
    to = address(y, names)
    out = " || ".join(f"outside{a.dim}[i{a.dim}]" for a in axes if any(a.outside))
    if out:
        kind, fill = f"uint{dtype.bits}_t", bits_of(call.attrs["extrapolation_value"], dtype)
        body.append(f"if ({out}) {{ fill_pack<{width}>(({kind} *)({to}), ({kind}){fill}); continue; }}")
    source = list(names)
    for axis in axes:
        source[axis.dim] = f"start{axis.dim}[i{axis.dim}]"
    if nearest:
        body.append(f"copy_pack<{width}>({to}, {address(x, source)});")
        return TaskText(body, total // width, head)
    aligned = f"fits<{width}>({x.arg}) && fits<{width}>({y.arg})" if width > 1 else "true"
    body += [f"const bool whole = {aligned};", f"{sum_type} total0[{width}] = {{}};"]
    blended = axes[::-1]
    for depth, axis in enumerate(blended):
        body += [*axis.loop(f"k{depth}", border=True), f"{sum_type} total{depth + 1}[{width}] = {{}};"]
        source[axis.dim] = f"t{axis.dim}"
    lanes = f"#pragma unroll\nfor (int u = 0; u < {width}; ++u)"
    deepest = len(blended)
    body += [
        f"const auto taken = decoded(fetch<{width}>({address(x, source)}, whole));",
        f"{lanes} total{deepest}[u] = ({sum_type})taken.at[u];",
    ]
    for depth, axis in reversed(list(enumerate(blended))):
        share = f"share{axis.dim}[i{axis.dim} * {axis.taps} + k{depth}]"
        body += [f"{lanes} total{depth}[u] += {share} * total{depth + 1}[u];", "}"]
    kind = storage(dtype)
    body += [
        f"pack<{kind}, {width}> rounded;",
        f"{lanes} {_store(f'({kind} *)&rounded.at[u]', 'total0[u]', dtype)}",
        f"put<{width}>({to}, rounded, whole);",
    ]
    return TaskText(body, total // width, head, parts=frozenset({"arith"}))


_PACK_BYTES = 16
"""Bytes of the widest access of a GPU thread."""
_MIN_THREADS = 1 << 16
"""GPU threads below which packs are split."""


def _pack_width(x: Box, y: Box, axes: Sequence[_Axis], inner: int, dtype: DType) -> int:
    """Return the contiguous elements of a GPU thread: more than 1 if the innermost dim, of channels say, is not resized."""
    if x.strides[inner] != 1 or y.strides[inner] != 1 or any(a.dim == inner for a in axes):
        return 1
    steps = [y.shape[inner], *(s for b in (x, y) for d, s in enumerate(b.strides) if d != inner)]
    width, total = max(1, _PACK_BYTES * 8 // dtype.bits), math.prod(y.shape)
    while width > 1 and (any(s % width for s in steps) or total // width < _MIN_THREADS):
        width //= 2
    return width


def _store(where: str, value: str, dtype: DType) -> str:
    """Return the line that stores a value: floats are rounded once, integers half to even and clamped."""
    if dtype.is_float:
        return f"store<1>({where}, convert<{storage(dtype)}>({value}));"
    info = np.iinfo(dtype.numpy)
    kind = storage(dtype)
    return (
        f"{{ const double near = rint((double){value}); *({where}) = near < {number(float(info.min))} ? ({kind}){number(int(info.min))}"
        f" : near > {number(float(info.max))} ? ({kind}){number(int(info.max))} : ({kind})near; }}"
    )


_MAX_TABLE = 65536
"""Maximum interpolation weights of a node."""


def _resizable(call: NodeCall) -> Support | None:
    x = call.tensor(0).spec
    if 0 in x.shape and 0 not in call.outputs[0].shape:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "cannot resize an empty tensor to a non-empty one")
    if call.attrs["mode"] != "nearest" and x.dtype not in NUMBERS - {DType.INT64, DType.UINT64}:
        return refuse(x.dtype, "interpolation")
    if sum(a.taps * len(a.start) for a in _axes(call)) > _MAX_TABLE:
        return Support.no(
            Reason.SHAPE_UNSUPPORTED, f"the interpolation weights are more than {_MAX_TABLE} numbers"
        )
    return None


# ── grids ──


_STRIP = 512
"""Taps of a strip of grid positions, computed once and used for all channels."""
_MAX_LANES = 16
"""Maximum positions of a vector. Strips are whole vectors."""


def _grid_sample(call: NodeCall) -> TaskText:
    """Return the text of a strip of an image's grid positions per task: taps and weights in vectors of positions, then all channels."""
    x, grid, y = whole(call, 0), whole(call, 1), result(call)
    n, space, taps = len(x.shape) - 2, y.shape[2:], _taps(call)
    total = math.prod(space)
    if not y.shape[0] * total:
        return TaskText([], 0)
    most = -(-total // _MAX_LANES) * _MAX_LANES
    strip = min(max(_STRIP // taps // _MAX_LANES, 1) * _MAX_LANES, most)
    strips = -(-total // strip)
    index = "int32_t" if sum(x.strides[2 + d] * (x.shape[2 + d] - 1) for d in range(n)) < 2**31 else "int64_t"
    sum_type = "double" if call.outputs[0].dtype is DType.FLOAT64 else "float"
    split, names = _positions(space, grid.strides[1:-1], y.strides[2:])
    grids = [
        f"g[{d}][u] = (double)load<1>({address(grid, ['image', *names, str(n - 1 - d)])});" for d in range(n)
    ]
    sums = _channel_sums if x.strides[1] == y.strides[1] == 1 else _position_sums
    body = [
        f"const int64_t image = task / {strips}, first = task % {strips} * {strip};",
        f"const int64_t count = {total} - first < {strip} ? {total} - first : {strip};",
        f"double g[{n}][{strip}]; {sum_type} share[{taps}][{strip}]; {index} at[{taps}][{strip}];",
        f"for (int64_t u = 0; u < {strip}; ++u) {{  // behind the last position the same again",
        "  const int64_t p = first + (u < count ? u : count - 1);",
        *(f"  {line}" for line in (*split, *grids)),
        "}",
        f"for (int64_t u = 0; u < {strip}; u += D_LANES) {{",
        *(f"  {line}" for line in _vector_taps(call, index, sum_type)),
        "}",
        f"const auto *const from = {address(x, ['image', *['0'] * (n + 1)])};",
        *sums(call, split, names),
    ]
    head = [
        "constexpr int D_LANES = VECTOR_BYTES > 8 ? VECTOR_BYTES / 8 : 1;",
        f"constexpr int L = VECTOR_BYTES > 8 ? VECTOR_BYTES / sizeof({sum_type}) : 1;",
        f"typedef vec<{sum_type}, L> V;",
    ]
    per = strip * x.shape[1] * 16
    return TaskText(body, y.shape[0] * strips, head, per=per, parts=frozenset({"sampling"}))


def _position_sums(call: NodeCall, split: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return lines that compute the results of a strip, in vectors of positions."""
    x, y, taps = whole(call, 0), result(call), _taps(call)
    kind = storage(call.outputs[0].dtype)
    to = address(y, ["image", "c", *names])
    contiguous = "p" in names and y.strides[2 + names.index("p")] == 1
    store = [f"store<L>({to}, convert<{kind}>(sum), count - u < L ? count - u : L);"]
    scatter = [
        "row<elem<V>, L> sums = bitcast<row<elem<V>, L>>(sum);",
        "for (int64_t i = 0; i < L && u + i < count; ++i) {",
        "  const int64_t p = first + u + i;",
        *(f"  {line}" for line in split),
        f"  store<1>({to}, convert<{kind}>(sums.at[i]));",
        "}",
    ]
    return [
        f"for (int64_t c = 0; c < {x.shape[1]}; ++c)",
        "  for (int64_t u = 0; u < count; u += L) {",
        "    V sum = {};",
        f"    for (int k = 0; k < {taps}; ++k) {{",
        "      const auto where = load<L>(at[k] + u);",
        f"      const V value = raw<elem<V>>(gather_at<L>(from + c * {x.strides[1]}, select(where < 0, where - where, where)));",
        "      sum += select(where < 0, splat<V>(0), value) * load<L>(share[k] + u);",
        "    }",
        *(["    const int64_t p = first + u;"] if contiguous else []),
        *(f"    {line}" for line in (store if contiguous else scatter)),
        "  }",
    ]


def _channel_sums(call: NodeCall, split: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return lines that compute the results of a strip, in vectors of contiguous channels."""
    x, taps = whole(call, 0), _taps(call)
    to = f"{address(result(call), ['image', 'c', *names])}, convert<{storage(call.outputs[0].dtype)}>(sum)"
    step = [
        "{lanes} sum = {{}};",
        f"for (int k = 0; k < {taps}; ++k)",
        "  if (at[k][u] >= 0) sum += raw<elem<V>>(load<{n}>(from + at[k][u] + c)) * share[k][u];",
        f"store<{{n}}>({to});",
    ]
    return [
        "for (int64_t u = 0; u < count; ++u) {",
        "  const int64_t p = first + u;",
        *(f"  {line}" for line in split),
        "  int64_t c = 0;",
        f"  for (; c + L <= {x.shape[1]}; c += L) {{",
        *(f"    {line.format(lanes='V', n='L')}" for line in step),
        "  }",
        f"  for (; c < {x.shape[1]}; ++c) {{",
        *(f"    {line.format(lanes='elem<V>', n='1')}" for line in step),
        "  }",
        "}",
    ]


def _positions(space: Sequence[int], *strides: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return lines that split a position ``p`` into indices, and their names. Compact dims are one."""
    dims = [d for d, size in enumerate(space) if size > 1]
    if all(s[a] == s[b] * space[b] for s in strides for a, b in pairwise(dims)):
        return [], ["p" if [d] == dims[-1:] else "0" for d in range(len(space))]
    return unravel(space, "p", "r"), [f"r{d}" for d in range(len(space))]


def _tap_loops(call: NodeCall, kind: str, numbers: Sequence[str], before: str = "") -> list[str]:
    """Return lines that open a loop over the taps of each dim: their positions ``t``, and for all dims up to it ``w``, the product of the
    weights, and ``inside``. NaN and infinite positions have no tap inside; their weights are NaN.

    kind: double, or a vector of it; numbers: the grid's numbers of each dim; before: a line before each loop.
    """
    x, a = whole(call, 0), call.attrs
    mode, (low, high) = a["mode"], _reach(a["mode"])
    pad, aligned = _PADS[a["padding_mode"]], "true" if a["align_corners"] else "false"
    lines = []
    for d, value in enumerate(numbers):
        size = x.shape[2 + d]
        unnormalized = f"unnormalized<{aligned}>({value}, {size})"
        placed = unnormalized if mode == "cubic" else f"padded<{pad}, {aligned}>({unnormalized}, {size})"
        nearest = "rint" if mode == "nearest" else "floor"
        lines.append(f"const {kind} a{d} = {placed}, low{d} = {nearest}(a{d});")
    for d in range(len(numbers)):
        size = x.shape[2 + d]
        at = f"low{d} + (double)k{d}"
        tap = f"padded<{pad}, {aligned}>(({kind})({at}), {size})" if mode == "cubic" else at
        # From the fraction: beyond 2^53 all taps of a position are one number.
        kernel = "keys" if mode == "cubic" else "triangle"
        weight = (
            f"splat<{kind}>(1)"
            if mode == "nearest"
            else f"{kernel}(({kind})((double)k{d} - (a{d} - low{d})))"
        )
        lines += [
            *([before] if before else []),
            f"for (int k{d} = {low}; k{d} < {high}; ++k{d}) {{",
            f"  const {kind} t{d} = {tap}, w{d} = {f'w{d - 1} * ' if d else ''}{weight};",
            f"  const auto inside{d} = {f'inside{d - 1} & ' if d else ''}(t{d} >= 0) & (t{d} <= {size - 1}.0);",
        ]
    return lines


def _vector_taps(call: NodeCall, index: str, sum_type: str) -> list[str]:
    """Return lines that compute the taps of positions from ``u`` on: offsets, -1 outside of the image, and weights."""
    x, n = whole(call, 0), call.tensor(0).spec.rank - 2
    low, high = _reach(call.attrs["mode"])
    numbers = [f"load<D_LANES>(g[{d}] + u)" for d in range(n)]
    offset = " + ".join(f"t{d} * {x.strides[2 + d]}.0" for d in range(n))
    k = " + ".join(f"(k{d} - {low}) * {(high - low) ** (n - 1 - d)}" for d in range(n))
    weight, inside = f"w{n - 1}", f"inside{n - 1}"
    return [
        "typedef vec<double, D_LANES> D;",
        *_tap_loops(call, "D", numbers, f"#pragma GCC unroll {high - low}"),
        f"  const auto read = {inside} | ({weight} != {weight});",
        f"  const D offset = select({inside}, (D)({offset}), select(read, splat<D>(0), splat<D>(-1)));",
        f"  store<D_LANES>(at[{k}] + u, raw<{index}>(offset));",
        f"  store<D_LANES>(share[{k}] + u, raw<{sum_type}>({weight}));",
        "}" * n,
    ]


def _grid_sample_channels(call: NodeCall) -> TaskText:
    """Return the text of one grid position and some of its channels per GPU thread."""
    x, y = whole(call, 0), result(call)
    outer, max_taps, channels = (y.shape[0], *y.shape[2:]), _taps(call), x.shape[1]
    positions = math.prod(outer)
    last = y.strides[1] == 1 and channels > 1
    # Threads of one position repeat the computation of its taps. Neighboring threads access what is contiguous.
    groups = max(-(-_MIN_THREADS // max(positions, 1)), _CHANNELS_LAST_GROUPS if last else 1)
    groups = max(1, min(groups, channels))
    split = (
        (f"task / {groups}", f"task % {groups}") if last else (f"task % {positions}", f"task / {positions}")
    )
    names = [f"i{d}" for d in range(len(outer))]
    body = [
        f"const int64_t position = {split[0]}, group = {split[1]};",
        f"int64_t at[{max_taps}], taps; double share[{max_taps}];",
        *_places(call, "position"),
        f"for (int64_t c = group; c < {channels}; c += {groups}) {{",
        "  double total = 0;",
        f"  for (int64_t k = 0; k < taps; ++k) total += (double)load<1>({x.arg} + at[k] + c * {x.strides[1]}) * share[k];",
        f"  store<1>({address(y, [names[0], 'c', *names[1:]])}, convert<{storage(call.outputs[0].dtype)}>(total));",
        "}",
    ]
    return TaskText(body if positions else [], positions * groups, parts=frozenset({"sampling"}))


_CHANNELS_LAST_GROUPS = 8
"""Minimum GPU threads of a grid position with contiguous channels."""


_PADS = {"zeros": 0, "border": 1, "reflection": 2}


def _reach(mode: str) -> tuple[int, int]:
    """Return the offsets of the first and past the last tap."""
    return {"nearest": (0, 1), "cubic": (-1, 3)}.get(mode, (0, 2))


def _taps(call: NodeCall) -> int:
    low, high = _reach(call.attrs["mode"])
    return int((high - low) ** (call.tensor(0).spec.rank - 2))


def _places(call: NodeCall, position: str) -> list[str]:
    """Return lines that compute the ``taps`` of a grid position that are read: the offsets ``at`` and weights ``share``."""
    x, grid, y = whole(call, 0), whole(call, 1), result(call)
    n = len(x.shape) - 2
    names = [f"i{d}" for d in range(n + 1)]
    numbers = [f"(double)load<1>({address(grid, [*names, str(n - 1 - d)])})" for d in range(n)]
    image = address(x, [names[0], *["0"] * (n + 1)])
    offset = " + ".join(f"(int64_t)t{d} * {x.strides[2 + d]}" for d in range(n))
    weight, inside = f"w{n - 1}", f"inside{n - 1}"
    return [
        *unravel((y.shape[0], *y.shape[2:]), position),
        "taps = 0;",
        *_tap_loops(call, "double", numbers),
        f"  if ({inside} || {weight} != {weight}) {{",
        f"    at[taps] = {image} - {x.arg} + ({inside} ? {offset} : 0);",
        f"    share[taps++] = {weight};",
        "  }",
        "}" * n,
    ]


def _affine_grid(call: NodeCall) -> TaskText:
    theta, y = whole(call, 0), result(call)
    n = y.shape[-1]
    names = [f"i{d}" for d in range(n + 2)]
    body = unravel(y.shape)
    terms = []
    for d in range(n):
        size = y.shape[1 + d]
        tick = f"-1.0 + i{1 + d} * {number(2.0 / (size - 1))}" if size > 1 else "0.0"
        edge = "" if call.attrs["align_corners"] else f" * {number(float(size - 1))} / {number(float(size))}"
        body.append(f"const double p{d} = ({tick}){edge};")
        terms.append(f"(double)load<1>({address(theta, ['i0', names[-1], str(n - 1 - d)])}) * p{d}")
    terms.append(f"(double)load<1>({address(theta, ['i0', names[-1], str(n)])})")
    kind = storage(call.outputs[0].dtype)
    body.append(f"store<1>({address(y, names)}, convert<{kind}>({' + '.join(terms)}));")
    return TaskText(body, math.prod(y.shape))


def _grids(call: NodeCall) -> Support | None:
    if 0 in call.tensor(0).spec.shape[2:]:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "cannot sample from an empty tensor")
    return first(computes()(call))


KERNELS = (
    TemplateKernel(
        "resize/generated",
        {
            "resize": OpTemplate(_resize, _resizable, _resize_pack),
            "grid_sample": OpTemplate(_grid_sample, _grids, _grid_sample_channels),
            "affine_grid": OpTemplate(_affine_grid, computes()),
        },
    ),
)
