"""Casts from and to 8-bit floats and types below a byte: decoding by a table of all codes, encoding by rounding or wrapping.

The positive codes of every narrow float increase with their values. Values beyond the largest would have the next code, so rounding is a
choice between two adjacent codes (ml_dtypes and the ONNX specification agree on that).

Types below a byte are packed in memory, the first element in the lowest bits. A task that writes them computes a whole byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...codegen.loops.boxes import Box
from ...codegen.loops.points import STORAGE, address, number, offset, storage, unravel
from ...decisions import Support
from ...types import DType
from ..kernel import NodeCall
from ..spec.support import refuse
from .tasks import OpTemplate, TaskText, TemplateKernel, result, whole

__all__ = [
    "EIGHT_BITS",
    "KERNELS",
    "NARROW",
    "PACKED",
    "codes_table",
    "decoded",
    "element_tasks",
    "encoder",
    "not_packable",
    "wrapped",
]

EIGHT_BITS = frozenset(d for d in DType if d.value.startswith("float8"))
PACKED = frozenset(d for d in DType if d is not DType.STRING and d.bits < 8)
"""Types below a byte."""
NARROW = EIGHT_BITS | PACKED


_WIDE = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})
_E4M3_DECODER = (
    "const auto decode = [](uint8_t code) -> float {",
    "  const uint32_t size = code & 127u;",
    "  const float subnormal = (float)(int32_t)size * 0x1p-9f, normal = bitcast<float>((size << 20) + 0x3c000000u);",
    "  const uint32_t bits = size == 127u ? 0x7fc00000u : bitcast<uint32_t>(size < 8u ? subnormal : normal);",
    "  return bitcast<float>(bits | (uint32_t)(code & 128u) << 24);",
    "};",
)
"""The value of a code of float8_e4m3fn by bit operations, which compilers turn into vectors: caches of keys and values are read so."""


def _values(dtype: DType) -> list[float]:
    """Return the value of every code."""
    codes = np.arange(1 << dtype.bits, dtype=np.uint8)
    if dtype.is_integer:
        return [
            float(v - (v >> (dtype.bits - 1) << dtype.bits if dtype.is_signed else 0)) for v in codes.tolist()
        ]
    return [float(v) for v in codes.view(dtype.numpy).astype(np.float64)]


def codes_table(*dtypes: DType) -> list[str]:
    """Return C tables with the value of every code, one for each narrow dtype."""
    names = {d: f"values_{d.value}" for d in dtypes if d in NARROW}
    return [
        f"static const double {name}[] = {{{', '.join(number(v) for v in _values(d))}}};"
        for d, name in names.items()
    ]


def decoded(dtype: DType, box: Box, names: Sequence[str]) -> str:
    """Return an element as a double: of a narrow type by its table, otherwise by the prelude."""
    if dtype in EIGHT_BITS:
        return f"values_{dtype.value}[*({address(box, names)})]"
    if dtype in PACKED:
        per_byte, at = 8 // dtype.bits, offset(box, names)
        code = f"({box.arg}[({at}) / {per_byte}] >> ({at}) % {per_byte} * {dtype.bits}) & {(1 << dtype.bits) - 1}"
        return f"values_{dtype.value}[{code}]"
    return f"(double)load<1>({address(box, names)})"


def encoder(dtype: DType, saturate: bool, round_mode: str | None = None) -> list[str]:
    """Return lines that define ``encode``, from a double to the code of a narrow float."""
    if dtype is DType.FLOAT8_E8M0FNU:
        return _exponent(round_mode or "up", saturate)
    negative = 1 << (dtype.bits - 1)  # the sign bit of a code
    positive = [v for v in _values(dtype)[:negative] if math.isfinite(v)]
    last = len(positive) - 1
    beyond = 2 * positive[-1] - positive[-2]
    nan = str(int(np.float32("nan").astype(dtype.numpy).view(np.uint8)) & (negative - 1) or negative)
    if dtype is DType.FLOAT4_E2M1FN:  # it has no NaN; ml_dtypes returns a zero of the other sign
        nan = f"__builtin_signbit(x) ? 0 : {negative}"
    unsigned = dtype.value.endswith("uz")  # one zero, one NaN, no infinity
    over = int(np.float32("inf").astype(dtype.numpy).view(np.uint8))
    grid = ", ".join(number(v) for v in (*positive, beyond))
    lines = [
        f"static const double grid[] = {{{grid}}};",
        "const auto encode = [](double x) -> uint8_t {",
        f"  if (x != x) return {nan};",
        f"  const uint8_t sign = __builtin_signbit(x) ? {negative} : 0;",
        "  double size = sign ? -x : x;",
    ]
    if saturate:
        lines.append(f"  if (size > grid[{last}]) size = grid[{last}];")
    else:
        lines.append(f"  if (size > grid[{last + 1}]) size = grid[{last + 1}];")
    lines += [
        f"  int low = 0, high = {last + 1};",
        "  while (high - low > 1) {",
        "    const int middle = (low + high) / 2;",
        "    (grid[middle] <= size ? low : high) = middle;",
        "  }",
        "  const double below = size - grid[low], above = grid[high] - size;",
        "  const int code = below < above || (below == above && low % 2 == 0) ? low : high;",
        f"  if (code > {last}) return {'0x80' if unsigned else f'(uint8_t)({over & (negative - 1)} | sign)'};",
        f"  return (uint8_t)(code | {'(code ? sign : 0)' if unsigned else 'sign'});",
        "};",
    ]
    return lines


def _exponent(mode: str, saturate: bool) -> list[str]:
    """Return the text that encodes powers of two by the exponent bits of float32. The sign is dropped; infinity becomes NaN."""
    above = {
        "up": "fraction > 0",
        "down": "false",
        "nearest": "fraction > half || (fraction == half && exponent > 0)",
    }
    saturation = " raised = raised < 0xfe ? raised : 0xfe;" if saturate else ""
    return [
        "const auto encode = [](double x) -> uint8_t {",
        "  const uint32_t bits = bitcast<uint32_t>((float)x);",
        "  [[maybe_unused]] const uint32_t exponent = bits >> 23 & 0xff, fraction = bits & 0x7fffff, half = 1u << 22;",
        f"  uint32_t raised = exponent + ({above[mode]} ? 1 : 0);{saturation}",
        "  return (uint8_t)(exponent == 0xff ? 0xff : raised);",
        "};",
    ]


def wrapped() -> list[str]:
    """Return lines that define ``encode``, from a number to the low bits of its integer part. Those of NaN and of values beyond int64 are 0."""
    return [
        "const auto encode = [](auto x) -> uint8_t {",
        "  if ((decltype(x))0.5 == 0) return (uint8_t)(uint64_t)x;",
        "  return x >= -0x1p63 && x < 0x1p63 ? (uint8_t)(int64_t)x : 0;",
        "};",
    ]


def element_tasks(
    y: Box,
    dtype: DType,
    lines: Sequence[str],
    code: str,
    head: Sequence[str] = (),
    parts: frozenset[str] = frozenset(),
) -> TaskText:
    """Return the text that writes a code for each element: one task per element, or per byte of a packed result, which is dense.

    lines: compute the element at ``i0``, ``i1`` ...  code: the expression of its code, of at most 8 bits.
    """
    names, total = [f"i{d}" for d in range(len(y.shape))], math.prod(y.shape)
    if dtype not in PACKED:
        return TaskText(
            [*unravel(y.shape), *lines, f"*({address(y, names)}) = {code};"], total, head, parts=parts
        )
    per_byte = 8 // dtype.bits
    body = [
        "uint8_t packed = 0;",
        f"for (int64_t part = 0; part < {per_byte}; ++part) {{",
        f"  const int64_t element = task * {per_byte} + part;",
        f"  if (element >= {total}) break;",
        *(f"  {line}" for line in (*unravel(y.shape, "element"), *lines)),
        f"  packed |= (uint8_t)(({code} & {(1 << dtype.bits) - 1}) << part * {dtype.bits});",
        "}",
        f"{y.arg}[task] = packed;",
    ]
    return TaskText(body, -(-total // per_byte), head, per=per_byte, parts=parts)


def not_packable(call: NodeCall) -> Support | None:
    """Return the refusal of a packed result with padding or in another order than row-major."""
    spec = call.outputs[0]
    if spec.dtype in PACKED and not spec.is_dense:
        return refuse(spec.dtype, "a result that is not row-major, in packed elements")
    return None


def _cast(call: NodeCall) -> TaskText:
    x, y, a = whole(call, 0), result(call), call.attrs
    source, target = call.tensor(0).spec.dtype, call.outputs[0].dtype
    names: Sequence[str] = [f"i{d}" for d in range(len(y.shape))]
    head, value = codes_table(source), decoded(source, x, names)
    dense = call.tensor(0).spec.is_dense and call.outputs[0].is_dense
    if source is DType.FLOAT8_E4M3FN and target in _WIDE and dense:
        body = [f"store<1>({y.arg} + task, convert<{storage(target)}>(decode({x.arg}[task])));"]
        return TaskText(body, math.prod(y.shape), _E4M3_DECODER)
    if target not in NARROW:
        body = [*unravel(y.shape), f"store<1>({address(y, names)}, convert<{storage(target)}>({value}));"]
        return TaskText(body, math.prod(y.shape), head)
    if target.is_integer:
        head += wrapped()
        if source in STORAGE and not source.is_float:
            value = f"*({address(x, names)})"  # a double cannot hold every int64
    else:
        head += encoder(target, a["saturate"], a["round_mode"])
    return element_tasks(y, target, [], f"encode({value})", head)


def _why_not(call: NodeCall) -> Support | None:
    both = call.tensor(0).spec.dtype, call.outputs[0].dtype
    if not any(d in NARROW for d in both):
        return refuse(both[0], "a cast without a type of at most 8 bits")
    wrong = next((d for d in both if d not in NARROW and d not in STORAGE), None)
    return not_packable(call) if wrong is None else refuse(wrong, "a cast")


def _copy(call: NodeCall) -> TaskText:
    x, y, dtype = whole(call, 0), result(call), call.outputs[0].dtype
    total = -(-math.prod(y.shape) * dtype.bits // 8)
    return TaskText([f"{y.arg}[task] = {x.arg}[task];"], total, per=8 // dtype.bits)


def _not_copied(call: NodeCall) -> Support | None:
    spec = call.tensor(0).spec
    if spec.dtype not in PACKED:
        return refuse(spec.dtype, "a copy of packed elements")
    return (
        None if spec.is_dense and call.outputs[0].is_dense else refuse(spec.dtype, "a copy between layouts")
    )


_COPY = OpTemplate(_copy, _not_copied, packed=True)

KERNELS = (
    TemplateKernel("cast/narrow", {"cast": OpTemplate(_cast, _why_not, packed=True)}),
    TemplateKernel("copy/generated", dict.fromkeys(("clone", "view", "squeeze", "unsqueeze"), _COPY)),
)
