"""ONNX's Fourier transforms in double, with a table of sines and cosines.

A CPU thread computes whole lines by factors of their length (Stockham's order): n * (sum of factors) products per line. Lines of even length that
are real before or behind the transform are complex ones of half the length. A GPU thread computes one element by its definition. That is enough for the lengths that models use as layers. Longer signals are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.loops.points import address, number, outer_dims, storage, unravel
from ....decisions import Reason, Support
from ...kernel import NodeCall
from ...spec.support import computes, first, refuse
from ..tasks import OpTemplate, TaskText, TemplateKernel, result, whole

__all__ = ["KERNELS"]

_MAX_LENGTH = 8192
"""Maximum elements of a line."""


def _trig_tables(n: int) -> list[str]:
    """Return the tables cosine[k] and sine[k] of 2 pi k / n, computed once per call of the kernel."""
    return [
        f"double *const cosine = (double *)scratch, *const sine = cosine + {n};",
        f"for (int64_t k = 0; k < {n}; ++k) {{",
        f"  const double angle = {number(2 * math.pi)} * k / {n};",
        "  cosine[k] = cos(angle), sine[k] = sin(angle);",
        "}",
    ]


def _tables_in_vectors(n: int) -> list[str]:
    """Return ``_trig_tables`` by vectors."""
    first, _, *loop = _trig_tables(n)
    return [
        first,
        "constexpr int LANES = VECTOR_BYTES / 8;",
        "int64_t known = 0;",
        f"for (; known + LANES <= {n}; known += LANES) {{",
        "  vec<double, LANES> angle;",
        f"  for (int l = 0; l < LANES; ++l) angle[l] = {number(2 * math.pi)} * (known + l) / {n};",
        "  store<LANES>(cosine + known, cos(angle)), store<LANES>(sine + known, sin(angle));",
        "}",
        f"for (int64_t k = known; k < {n}; ++k) {{",
        *loop,
    ]


def _length(call: NodeCall) -> int:
    a, x = call.attrs, whole(call, 0)
    if call.op == "stft":
        return int(a["frame_length"])
    if a["length"] is not None:
        return int(a["length"])
    size = x.shape[a["dim"]]
    length: int = 2 * (size - 1) if a["inverse"] and a["onesided"] else size
    return length


def _factors(n: int) -> list[int]:
    """Return factors of a length: fours, then primes in ascending order."""
    factors, factor = [], 4
    while n > 1:
        while n % factor == 0:
            factors.append(factor)
            n //= factor
        factor = 2 if factor == 4 else 3 if factor == 2 else factor + 2
        if factor > 3 and factor * factor > n > 1:
            factor = n
    return factors


_LINE = (
    "double *re = sine + {n}, *im = re + {n}, *next_re = im + {n}, *next_im = next_re + {n};",
    "for (int64_t k = 0; k < {n}; ++k) re[k] = im[k] = 0;",
)
"""The line of a task and the next step of it, behind the tables."""


def _transform(n: int, sign: str, each: int = 1) -> list[str]:
    """Return the steps that replace a line by its transform: one per factor, which multiplies parts of the line by a small matrix.

    length: of the transforms that are left; stride: how many there are, element by element. each: entries of the tables from an angle to the next.
    """
    body, length, stride = [], n, 1
    for factor in _factors(n):
        rest = length // factor
        step = _STEPS.get(factor, _step)
        body += [*step(n, factor, rest, stride, sign, each), _SWAP]
        length, stride = rest, stride * factor
    return body


def _real_transform(n: int, count: int) -> list[str]:
    """Return the steps that replace n real numbers by ``count`` elements of their transform, at least half of them: pairs of them are complex numbers, whose transform has those of both."""
    half = n // 2
    return [
        f"for (int64_t k = 0; k < {half}; ++k) next_re[k] = re[2 * k], next_im[k] = re[2 * k + 1];",
        _SWAP,
        *_transform(half, "-", 2),
        f"for (int64_t k = 0; k <= {half}; ++k) {{",
        f"  const int64_t i = k == {half} ? 0 : k, j = k ? {half} - k : 0;",
        "  const double a = (re[i] + re[j]) * 0.5, b = (im[i] - im[j]) * 0.5, c = (im[i] + im[j]) * 0.5, d = (re[j] - re[i]) * 0.5;",
        "  next_re[k] = a + (cosine[k] * c + sine[k] * d), next_im[k] = b + (cosine[k] * d - sine[k] * c);",
        "}",
        f"for (int64_t k = {half + 1}; k < {count}; ++k) next_re[k] = next_re[{n} - k], next_im[k] = -next_im[{n} - k];",
        _SWAP,
    ]


def _inverse_to_real(n: int) -> list[str]:
    """Return the steps that replace half a line and its middle by the n real numbers whose transform they are, times n."""
    half = n // 2
    return [
        f"for (int64_t k = 0; k < {half}; ++k) {{",
        f"  const double a = re[k] - re[{half} - k], b = im[k] + im[{half} - k];",
        f"  next_re[k] = re[k] + re[{half} - k] - (a * sine[k] + b * cosine[k]);",
        f"  next_im[k] = im[k] - im[{half} - k] + (a * cosine[k] - b * sine[k]);",
        "}",
        _SWAP,
        *_transform(half, "", 2),
        f"for (int64_t k = 0; k < {half}; ++k) next_re[2 * k] = re[k], next_re[2 * k + 1] = im[k];",
        f"for (int64_t k = 0; k < {n}; ++k) next_im[k] = 0;",
        _SWAP,
    ]


_SWAP = "{ double *const r = re, *const i = im; re = next_re, im = next_im, next_re = r, next_im = i; }"


def _step(n: int, factor: int, rest: int, stride: int, sign: str, each: int) -> list[str]:
    return [
        f"for (int64_t p = 0; p < {rest}; ++p)",
        f"  for (int64_t v = 0; v < {factor}; ++v) {{",
        f"    double c[{factor}], s[{factor}];",
        f"    for (int64_t u = 0; u < {factor}; ++u) {{",
        f"      const int64_t phase = (u * v % {factor} * {n // factor} + p * v * {stride}) % {n};",
        f"      c[u] = cosine[{each} * phase], s[u] = {sign}sine[{each} * phase];",
        "    }",
        "    #pragma GCC ivdep",
        f"    for (int64_t q = 0; q < {stride}; ++q) {{",
        "      double a = 0, b = 0;",
        f"      for (int64_t u = 0; u < {factor}; ++u) {{",
        f"        const int64_t at = q + {stride} * (p + {rest} * u);",
        "        a += re[at] * c[u] - im[at] * s[u];",
        "        b += re[at] * s[u] + im[at] * c[u];",
        "      }",
        f"      next_re[q + {stride} * ({factor} * p + v)] = a;",
        f"      next_im[q + {stride} * ({factor} * p + v)] = b;",
        "    }",
        "  }",
    ]


def _step_by_4(n: int, factor: int, rest: int, stride: int, sign: str, each: int) -> list[str]:
    """Return the step of a factor of 4, whose matrix has only 1, -1, i and -i."""
    plus, minus = ("+", "-") if sign else ("-", "+")
    parts = [
        f"const double {part}{u} = {array}[at + {rest * stride * u}];"
        for u in range(4)
        for part, array in (("a", "re"), ("b", "im"))
    ]
    sums = (
        ("a0 + a2 + (a1 + a3)", "b0 + b2 + (b1 + b3)"),
        (f"a0 - a2 {plus} (b1 - b3)", f"b0 - b2 {minus} (a1 - a3)"),
        ("a0 + a2 - (a1 + a3)", "b0 + b2 - (b1 + b3)"),
        (f"a0 - a2 {minus} (b1 - b3)", f"b0 - b2 {plus} (a1 - a3)"),
    )
    loops = ("", "#pragma GCC ivdep") if stride > 1 else ("#pragma GCC ivdep", "")
    body = [
        loops[0],
        f"for (int64_t p = 0; p < {rest}; ++p) {{",
        *(
            f"  const double c{v} = cosine[p * {v * stride * each}], s{v} = {sign}sine[p * {v * stride * each}];"
            for v in (1, 2, 3)
        ),
        f"  {loops[1]}",
        f"  for (int64_t q = 0; q < {stride}; ++q) {{",
        f"    const int64_t at = q + {stride} * p, to = q + {4 * stride} * p;",
        *(f"    {part}" for part in parts),
        f"    next_re[to] = {sums[0][0]}, next_im[to] = {sums[0][1]};",
    ]
    for v, (real, imag) in enumerate(sums[1:], 1):
        to = f"to + {v * stride}"
        body += [
            f"    {{ const double a = {real}, b = {imag};",
            f"      next_re[{to}] = a * c{v} - b * s{v}, next_im[{to}] = a * s{v} + b * c{v}; }}",
        ]
    return [*body, "  }", "}"]


def _step_by_2(n: int, factor: int, rest: int, stride: int, sign: str, each: int) -> list[str]:
    """Return the step of a factor of 2: a sum and a difference."""
    return [
        f"for (int64_t p = 0; p < {rest}; ++p) {{",
        f"  const double c = cosine[p * {stride * each}], s = {sign}sine[p * {stride * each}];",
        "  #pragma GCC ivdep",
        f"  for (int64_t q = 0; q < {stride}; ++q) {{",
        f"    const int64_t at = q + {stride} * p, to = q + {2 * stride} * p;",
        f"    const double a = re[at] - re[at + {rest * stride}], b = im[at] - im[at + {rest * stride}];",
        f"    next_re[to] = re[at] + re[at + {rest * stride}], next_im[to] = im[at] + im[at + {rest * stride}];",
        f"    next_re[to + {stride}] = a * c - b * s, next_im[to + {stride}] = a * s + b * c;",
        "  }",
        "}",
    ]


_STEPS = {2: _step_by_2, 4: _step_by_4}
"""Steps of factors whose matrix has only 1, -1, i and -i."""


def _lines(n: int, body: Sequence[str], tasks: int) -> TaskText:
    return TaskText(
        body,
        tasks,
        _tables_in_vectors(n),
        per=4 * n * max(1, sum(_factors(n))),
        scratch_bytes=48 * n,
        parts=frozenset({"trig"}),
    )


def _dft_lines(call: NodeCall) -> TaskText:
    """Return the text of one line per task. The inverse divides by the length; onesided, it reads half and mirrors it."""
    x, y, a, n = whole(call, 0), result(call), call.attrs, _length(call)
    dim, last = a["dim"], len(x.shape) - 1
    half = a["inverse"] and a["onesided"]
    kind = storage(call.outputs[0].dtype)
    outer = [1 if d == dim else size for d, size in enumerate(outer_dims(y.shape, last))]
    names = [f"i{d}" for d in range(last)]
    at = [*names[:dim], "k", *names[dim + 1 :]]
    count = min(x.shape[dim], n // 2 + 1 if half else n)
    imag = f"(double)load<1>({address(x, [*at, '1'])})" if x.shape[last] == 2 else "0.0"
    body = [
        *unravel(outer),
        *(line.format(n=n) for line in _LINE),
        f"for (int64_t k = 0; k < {count}; ++k) {{",
        f"  re[k] = (double)load<1>({address(x, [*at, '0'])}), im[k] = {imag};",
    ]
    if half:
        body += [f"  if (k == 0 || 2 * k == {n}) im[k] = 0;", f"  else re[{n} - k] = re[k], im[{n} - k] = -im[k];"]  # fmt: skip
    if half and n % 2 == 0 and y.shape[last] == 1:
        steps = _inverse_to_real(n)
    elif not a["inverse"] and n % 2 == 0 and x.shape[last] == 1:
        steps = _real_transform(n, y.shape[dim])
    else:
        steps = _transform(n, "" if a["inverse"] else "-")
    body += ["}", *steps, f"for (int64_t k = 0; k < {y.shape[dim]}; ++k) {{"]
    scale = f" / {n}" if a["inverse"] else ""
    for part, value in enumerate(("re[k]", "im[k]")[: y.shape[last]]):
        body.append(f"  store<1>({address(y, [*at, str(part)])}, convert<{kind}>({value}{scale}));")
    return _lines(n, [*body, "}"], math.prod(outer))


@dataclass(frozen=True, slots=True)
class _Frame:
    """Texts of frame i1 of signal i0: the loop over its samples k that have a weight, a sample's weight, and its real and imaginary part.

    A window shorter than the frame is centered in it.
    """

    width: int
    loop: str
    weight: str
    real: str
    imag: str

    @classmethod
    def of(cls, call: NodeCall) -> _Frame:
        """Return the texts of an stft's frames."""
        x, n = whole(call, 0), _length(call)
        window = whole(call, 1) if call.optional(1) else None
        begin, width = ((n - window.shape[0]) // 2, window.shape[0]) if window else (0, n)
        sample = f"(i1 * {call.attrs['frame_step']} + k)"
        return cls(
            width,
            f"for (int64_t k = {begin}; k < {begin + width}; ++k) {{",
            f"(double)load<1>({address(window, [f'(k - {begin})'])})" if window else "1.0",
            f"(double)load<1>({address(x, ['i0', sample, '0'])})",
            f"(double)load<1>({address(x, ['i0', sample, '1'])})" if x.shape[2] == 2 else "0.0",
        )


def _stft_lines(call: NodeCall) -> TaskText:
    """Return the text of one frame per task."""
    y, n, frame = result(call), _length(call), _Frame.of(call)
    kind = storage(call.outputs[0].dtype)
    body = [
        *unravel(y.shape[:2]),
        *(line.format(n=n) for line in _LINE),
        frame.loop,
        f"  const double w = {frame.weight};",
        f"  re[k] = w * {frame.real}, im[k] = w * {frame.imag};",
        "}",
        *(
            _real_transform(n, y.shape[2])
            if n % 2 == 0 and whole(call, 0).shape[2] == 1
            else _transform(n, "-")
        ),
        f"for (int64_t k = 0; k < {y.shape[2]}; ++k) {{",
        f"  store<1>({address(y, ['i0', 'i1', 'k', '0'])}, convert<{kind}>(re[k]));",
        f"  store<1>({address(y, ['i0', 'i1', 'k', '1'])}, convert<{kind}>(im[k]));",
        "}",
    ]
    return _lines(n, body, math.prod(y.shape[:2]))


def _dft(call: NodeCall) -> TaskText:
    """Return the text of one result element per task. The inverse divides by the length; onesided, it reads half and mirrors it."""
    x, y, a, n = whole(call, 0), result(call), call.attrs, _length(call)
    dim, last = a["dim"], len(x.shape) - 1
    half = a["inverse"] and a["onesided"]
    kind = storage(call.outputs[0].dtype)
    outer = outer_dims(y.shape, last)
    names = [f"i{d}" for d in range(last)]
    at = [*names[:dim], "k", *names[dim + 1 :]]
    count = min(x.shape[dim], n // 2 + 1 if half else n)
    real = f"(double)load<1>({address(x, [*at, '0'])})"
    imag = f"(double)load<1>({address(x, [*at, '1'])})" if x.shape[last] == 2 else "0.0"
    sign = "" if a["inverse"] else "-"
    body = [
        *unravel(outer),
        "double re = 0, im = 0;",
        f"for (int64_t k = 0; k < {count}; ++k) {{",
        f"  const int64_t phase = k * i{dim} % {n};",
        f"  const double c = cosine[phase], s = {sign}sine[phase], a = {real}, b = {imag};",
    ]
    if half:
        once = f"k == 0 || 2 * k == {n}"
        body.append(f"  re += {once} ? a * c : 2 * (a * c - b * s);")
    else:
        body += ["  re += a * c - b * s;", "  im += a * s + b * c;"]
    body.append("}")
    scale = f" / {n}" if a["inverse"] else ""
    for part, value in enumerate(("re", "im")[: y.shape[last]]):
        body.append(f"store<1>({address(y, [*names, str(part)])}, convert<{kind}>({value}{scale}));")
    return TaskText(
        body,
        math.prod(outer),
        _trig_tables(n),
        per=count * 4,
        scratch_bytes=16 * n,
        parts=frozenset({"trig"}),
    )


def _stft(call: NodeCall) -> TaskText:
    """Return the text of one frequency of one frame per task."""
    y, n, frame = result(call), _length(call), _Frame.of(call)
    kind = storage(call.outputs[0].dtype)
    body = [
        *unravel(y.shape[:-1]),
        "double re = 0, im = 0;",
        frame.loop,
        f"  const int64_t phase = k * i2 % {n};",
        f"  const double w = {frame.weight}, c = w * cosine[phase], s = -w * sine[phase];",
        f"  const double a = {frame.real}, b = {frame.imag};",
        "  re += a * c - b * s;",
        "  im += a * s + b * c;",
        "}",
        f"store<1>({address(y, ['i0', 'i1', 'i2', '0'])}, convert<{kind}>(re));",
        f"store<1>({address(y, ['i0', 'i1', 'i2', '1'])}, convert<{kind}>(im));",
    ]
    return TaskText(
        body,
        math.prod(y.shape[:-1]),
        _trig_tables(n),
        per=frame.width * 4,
        scratch_bytes=16 * n,
        parts=frozenset({"trig"}),
    )


def _why_not(call: NodeCall) -> Support | None:
    if _length(call) > _MAX_LENGTH:
        return Support.no(
            Reason.SHAPE_UNSUPPORTED,
            f"Fourier transforms of more than {_MAX_LENGTH} elements are not supported",
        )
    window = call.optional(1)
    if call.op == "stft" and window is not None and window.spec.shape[0] > _length(call):  # type: ignore[operator]
        return refuse(window.spec.dtype, "a window longer than its frame,")
    return first(computes()(call))


KERNELS = (
    TemplateKernel(
        "signal/generated",
        {"dft": OpTemplate(_dft_lines, _why_not, _dft), "stft": OpTemplate(_stft_lines, _why_not, _stft)},
    ),
)
