"""The text of products of 8-bit codes: arguments, the config of ``templates/int8.h``, and packed right sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ....codegen.cpp.isa import IsaLevel
from ....decisions import Reason, Support
from ....program.program import RecipeStep
from ....types import DType, TensorSpec
from ...kernel import NodeCall, Packed
from ...portable.text import ACTIVATIONS
from ...spec.product import sizes
from .tiling import Int8Tiling

__all__ = ["Int8Arguments", "codes_only", "config", "loop", "panels", "scratch_bytes"]

_C = {
    DType.INT8: "int8_t",
    DType.UINT8: "uint8_t",
    DType.INT16: "int16_t",
    DType.INT32: "int32_t",
    DType.FLOAT32: "float",
}
_BOUNDS = {"none": 0, "relu": 1, "relu6": 6}
"""Activations that only bound the result, by their number in the template."""
_LIMITS = {DType.INT8: (-128, 127), DType.UINT8: (0, 255)}


def codes_only(call: NodeCall) -> Support:
    """Return yes for 8-bit codes on the left, int8 constants or int16 constants on the right (or 8-bit codes), and float32 scales."""
    x, weight, y = call.tensor(0), call.tensor(1), call.outputs[0]
    right = (DType.INT8, DType.INT16) if weight.is_weight else tuple(_LIMITS)
    if x.spec.dtype not in _LIMITS or weight.spec.dtype not in right:
        return Support.no(
            Reason.DTYPE_UNSUPPORTED,
            f"products of {x.spec.dtype.value} and {weight.spec.dtype.value} codes are not supported"
            + ("" if weight.is_weight else " for a right side that is not constant"),
        )
    if weight.is_weight and call.optional(5) is not None:
        return Support.no(
            Reason.DTYPE_UNSUPPORTED,
            "a constant right side must be less its zero points (pass fuse_quantized)",
        )
    if y.dtype not in _C or y.dtype is DType.INT16:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"results in {y.dtype.value} are not supported")
    for at in (2, 4, 7):
        operand = call.optional(at)
        if operand is not None and operand.spec.dtype is not DType.FLOAT32:
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, f"scales in {operand.spec.dtype.value} are not supported"
            )
    if not all(t.spec.is_dense for t in call.tensors[1:] if t is not weight or t.is_weight):
        return Support.no(Reason.SHAPE_UNSUPPORTED, "scales and constants must be dense")
    return Support.yes()


@dataclass(slots=True)
class Int8Arguments:
    """The arguments of the function, and lines that declare them.

    right: the stage's argument with the packed right side.
    """

    call: NodeCall
    isa: IsaLevel
    tiling: Int8Tiling
    right: str = "in1"
    args: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        x, y = _C[self.call.tensor(0).spec.dtype], _C[self.call.outputs[0].dtype]
        packed = _C[self.tiling.dtype]
        self.lines.append(f"const {x} *x = (const {x} *){self.add('in0')};")
        self.lines.append(f"const {packed} *b = (const {packed} *){self.add(self.right)};")
        self.lines.append("int8::Scales s = {1, 1, 0, 0, nullptr, nullptr, 0, nullptr, 0};")
        self._scales()
        self.lines.append(f"{y} *y = ({y} *){self.add('out0')};")

    @property
    def flip(self) -> bool:
        """True if rows change sign, because the instruction multiplies the other kind of bytes."""
        if self.tiling.arithmetic == "Pairs" or self.tiling.tiles:
            return False
        return (self.call.tensor(0).spec.dtype is DType.INT8) == (self.isa.architecture == "x86_64")

    def add(self, name: str) -> str:
        """Add an argument and return its text."""
        self.args.append(name)
        return f"args[{len(self.args) - 1}]"

    def _scales(self) -> None:
        call, lines = self.call, self.lines
        for at, name in ((2, "x"), (7, "y")):
            if call.optional(at) is not None:
                lines.append(f"s.{name} = *(const float *){self.add(f'in{at}')};")
        for at, name in ((3, "zero_x"), (8, "zero_y")):
            operand = call.optional(at)
            if operand is not None:
                lines.append(f"s.{name} = *(const {_C[operand.spec.dtype]} *){self.add(f'in{at}')};")
        lines.append("const int32_t zero = s.zero_x;  // what padding holds")
        if self.flip:
            moved = 128 if call.tensor(0).spec.dtype is DType.INT8 else -128
            lines.append(f"s.zero_x += {moved};")
        if self.tiling.arithmetic == "Bytes":
            lines.append(f"s.column_sums = (const int32_t *){self.add('extra0')};")
        weight_scale, bias = call.optional(4), call.optional(6)
        if weight_scale is not None:
            lines.append(f"s.weight = (const float *){self.add('in4')};")
            lines.append(f"s.weight_step = {int(math.prod(sizes(weight_scale.spec)) > 1)};")
        if bias is not None:
            lines.append(f"s.bias = {self.add('in6')};")
            lines.append(f"s.bias_step = {int(math.prod(sizes(bias.spec)) > 1)};")


def config(call: NodeCall, t: Int8Tiling) -> tuple[list[str], frozenset[str]]:
    """Return the struct ``KERNEL_product``, and the prelude parts of its activation."""
    y, bias, act = call.outputs[0].dtype, call.optional(6), call.attrs["act"]
    kind = 0 if bias is None else 2 if bias.spec.dtype is DType.FLOAT32 else 1
    one = y in _LIMITS and act in _BOUNDS and kind != 2
    low, high = _LIMITS.get(y, (0, 0))
    text, parts = ACTIVATIONS[act]
    lines = [
        "struct KERNEL_product {",
        f"    typedef {_C[y]} Y;",
        f"    static constexpr int NV = {t.vectors}, BIAS = {kind}, LOW = {low}, HIGH = {high}, RELU = {_BOUNDS.get(act, 0)};",
        f"    static constexpr bool ONE = {str(one).lower()};",
        f"    static INLINE_MEMBER int8::F act(int8::F x) {{ return {text}; }}",
        "};",
    ]
    return lines, frozenset(parts)


def loop(
    t: Int8Tiling,
    a: Int8Arguments,
    rows: str,
    pitch: str,
    y: str,
    y_step: str,
    first: str,
    columns: str,
    sums: str,
) -> list[str]:
    """Return the loop over a task's rows, which are at ``rows`` and ``pitch`` bytes apart.

    y, y_step: address of row ``r + i``, and elements between its columns. first: the tile's first column in the arrays of scales;
    columns: their number. sums: the tile's first column in the sums of the columns.
    """
    product = (
        f"int8::product_tiles<{str(a.call.tensor(0).spec.dtype is DType.INT8).lower()}>(tiles, "
        if t.tiles
        else f"int8::product<int8::{t.arithmetic}, {t.rows}, {t.vectors}, {str(a.flip).lower()}>("
    )
    return [
        f"values.set(s, {first}, {columns}, {sums});",
        f"for (int64_t r = 0; r < count; r += {t.rows}) {{",
        f"    const int64_t now = count - r < {t.rows} ? count - r : {t.rows};",
        f"    {product}{rows} + r * {pitch}, {pitch}, now, panel, {t.words}, sums);",
        f"    for (int64_t i = 0; i < now; i++) values.finish(s, sums + i * {t.columns}, {columns}, {y}, {y_step});",
        "}",
    ]


def scratch_bytes(t: Int8Tiling, copied: bool) -> int:
    """Return the bytes of scratch: sums of a register tile, and copied rows."""
    return 4 * t.rows * t.columns + (t.block * t.pitch if copied else 0) + 64


def panels(
    t: Int8Tiling, first: Sequence[RecipeStep], batch: int, columns: int, depth: int
) -> tuple[Packed, Packed]:
    """Return a constant right side as panels, and the sums of its columns.

    first: steps from the operand to [batch, columns, depth].
    """
    tiles = math.ceil(columns / t.columns)
    whole = t.words * t.word
    steps = list(first)

    def step(op: str, source: str = "", **attrs: object) -> None:
        steps.append(RecipeStep(op, (source or (f"%{len(steps) - 1}" if steps else "%in"),), attrs))

    step("cast", dtype=t.dtype.value)
    step("pad", begin=[0, 0, 0], end=[0, tiles * t.columns - columns, whole - depth])
    step("reshape", shape=[batch, tiles, t.columns, t.words, t.word])
    step("permute", order=[0, 1, 3, 2, 4])
    packed = Packed(tuple(steps), TensorSpec((batch, tiles, t.words, t.columns, t.word), t.dtype))
    steps = list(first)
    step("cast", dtype="int32")
    step("sum", dim=2, keepdim=False)
    step("reshape", shape=[batch * columns])
    return packed, Packed(tuple(steps), TensorSpec((batch * columns,), DType.INT32))
