"""ONNX's Fourier transforms by their definition, with a table of sines and cosines: n * n products per line, in double.

That is enough for the lengths that models use as layers. Longer signals are refused.
"""

from __future__ import annotations

import math

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


def _length(call: NodeCall) -> int:
    a, x = call.attrs, whole(call, 0)
    if call.op == "stft":
        return int(a["frame_length"])
    if a["length"] is not None:
        return int(a["length"])
    size = x.shape[a["dim"]]
    length: int = 2 * (size - 1) if a["inverse"] and a["onesided"] else size
    return length


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
    """Return the text of one frequency of one frame per task. A window shorter than the frame is centered in it."""
    x, y, n = whole(call, 0), result(call), _length(call)
    window = whole(call, 1) if call.optional(1) else None
    begin, width = ((n - window.shape[0]) // 2, window.shape[0]) if window else (0, n)
    kind = storage(call.outputs[0].dtype)
    sample = f"(i1 * {call.attrs['frame_step']} + k)"
    weight = f"(double)load<1>({address(window, [f'(k - {begin})'])})" if window else "1.0"
    imag = f"(double)load<1>({address(x, ['i0', sample, '1'])})" if x.shape[2] == 2 else "0.0"
    body = [
        *unravel(y.shape[:-1]),
        "double re = 0, im = 0;",
        f"for (int64_t k = {begin}; k < {begin + width}; ++k) {{",
        f"  const int64_t phase = k * i2 % {n};",
        f"  const double w = {weight}, c = w * cosine[phase], s = -w * sine[phase];",
        f"  const double a = (double)load<1>({address(x, ['i0', sample, '0'])}), b = {imag};",
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
        per=width * 4,
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
        "signal/generated", {"dft": OpTemplate(_dft, _why_not), "stft": OpTemplate(_stft, _why_not)}
    ),
)
