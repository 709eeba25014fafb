"""Text that CUDA convolutions share: arguments, sizes and strides of the window, and the epilogue."""

from __future__ import annotations

from ...kernel import NodeCall
from ...portable.text import ACTIVATIONS, offset_text
from ...spec.conv import act_of
from ...spec.conv_shape import ConvShape
from ..heavy import argument, constants
from ..launch import Argument

__all__ = ["arguments_of", "finish_text", "window_text"]

_SPACE = ("d", "h", "w")


def arguments_of(call: NodeCall) -> list[Argument]:
    """Return the arguments: x, the filters, bias and residual if present, the result."""
    names = ("x", "filters", "bias", "residual")
    arguments = [
        argument(call.tensor(i).spec, f"in{i}", n)
        for i, n in enumerate(names)
        if call.optional(i) is not None
    ]
    return [*arguments, argument(call.outputs[0], "out0", "y", written=True)]


def window_text(s: ConvShape) -> list[str]:
    """Return ``KERNEL_shape``: the constants by which a template addresses the window."""
    lists = {
        "size": s.size,
        "out": s.out,
        "kernel": s.kernel,
        "stride": s.stride,
        "dilation": s.dilation,
        "begin": s.begin,
    }
    numbers: dict[str, object] = {"channels": s.channels, "taps": s.taps, "pixels": s.pixels}
    for name, values in lists.items():
        numbers |= {f"{name}_{d}": v for d, v in zip(_SPACE, values, strict=True)}
    strides = dict(zip(("x_n", "x_c", "x_d", "x_h", "x_w"), s.x, strict=True))
    return ["struct KERNEL_shape {", constants("int", numbers), constants("long long", strides), "};"]


def finish_text(call: NodeCall, s: ConvShape, arguments: list[Argument], sums: str) -> list[str]:
    """Return the epilogue ``KERNEL_finish``: add bias and residual, apply the activation, store. A row is a pixel, a column a filter of a group."""
    rows = (s.images, *s.out)
    operands = [a for a in arguments if a.name in ("bias", "residual", "y")]
    head = "    __device__ __forceinline__"
    column = f"((int64_t)blockIdx.z * {s.filters} + column)" if s.groups > 1 else "(int64_t)column"
    group_offset = f"(int64_t)blockIdx.z * {s.filters * s.y[1]}" if s.groups > 1 else "0"

    def offset(strides: tuple[int, ...]) -> str:
        return offset_text("(int64_t)row", rows, (strides[0], *strides[2:]))

    lines = [
        "struct KERNEL_finish {", *(f"    {a.text};" for a in operands),
        f"{head} tensor::u16 *line(int row) const {{ return (tensor::u16 *)y + ({offset(s.y)} + {group_offset}); }}",
        f"{head} {sums} value(int row, int column, {sums} sum) const {{", f"        {sums} x = sum;",
    ]  # fmt: skip
    if any(a.name == "bias" for a in operands):
        lines.append(f"        x = x + ({sums})load<1>(bias + {column});")
    if any(a.name == "residual" for a in operands):
        lines.append(f"        x = x + ({sums})load<1>(residual + ({offset(s.r)} + {column} * {s.r[1]}));")
    ctype = operands[-1].ctype
    return [
        *lines,
        f"        return {ACTIVATIONS[act_of(call)][0]};",
        "    }",
        f"{head} void write(int row, int column, {sums} sum) const {{",
        f"        store<1>(y + ({offset(s.y)} + {column} * {s.y[1]}), (typename storage_<{ctype}>::compute)value(row, column, sum));",
        "    }",
        "};",
    ]
