"""Casts from and to 8-bit floats: decoding by a table of all codes, encoding by a binary search with ties to even.

The positive codes of every 8-bit float increase with their values. Values beyond the largest would have the next code, so rounding is a
choice between two adjacent codes (ml_dtypes and the ONNX specification agree on that).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...codegen.loops.points import STORAGE, address, number, storage, unravel
from ...decisions import Support
from ...types import DType
from ..kernel import NodeCall
from ..spec.support import refuse
from .tasks import OpTemplate, TaskText, TemplateKernel, result, whole

__all__ = ["EIGHT_BITS", "KERNELS", "decoded", "encoder", "values_table"]

EIGHT_BITS = frozenset(d for d in DType if d.value.startswith("float8"))


def values_table(dtype: DType, name: str) -> str:
    """Return a C table with the value of every code."""
    values = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float64).tolist()
    return f"static const double {name}[] = {{{', '.join(number(v) for v in values)}}};"


def decoded(dtype: DType, where: str, name: str) -> str:
    """Return the value at an address as a double: of a float8 by its table, otherwise by the prelude."""
    return f"{name}[*({where})]" if dtype in EIGHT_BITS else f"(double)load<1>({where})"


def encoder(dtype: DType, saturate: bool, round_mode: str | None = None) -> list[str]:
    """Return lines that define ``encode``, from a double to the code of a float8."""
    if dtype is DType.FLOAT8_E8M0FNU:
        return _exponent(round_mode or "up", saturate)
    values = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float64)
    positive = [float(v) for v in values[:128] if math.isfinite(v)]
    last = len(positive) - 1
    beyond = 2 * positive[-1] - positive[-2]
    nan = int(np.float32("nan").astype(dtype.numpy).view(np.uint8)) & 0x7F or 0x80
    unsigned = dtype.value.endswith("uz")  # one zero, one NaN, no infinity
    over = int(np.float32("inf").astype(dtype.numpy).view(np.uint8))
    grid = ", ".join(number(v) for v in (*positive, beyond))
    lines = [
        f"static const double grid[] = {{{grid}}};",
        "const auto encode = [](double x) -> uint8_t {",
        f"  if (x != x) return {nan};",
        "  const uint8_t sign = __builtin_signbit(x) ? 0x80 : 0;",
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
        f"  if (code > {last}) return {'0x80' if unsigned else f'(uint8_t)({over & 0x7F} | sign)'};",
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


def _cast(call: NodeCall) -> TaskText:
    x, y, a = whole(call, 0), result(call), call.attrs
    source, target = call.tensor(0).spec.dtype, call.outputs[0].dtype
    names: Sequence[str] = [f"i{d}" for d in range(len(y.shape))]
    head = [values_table(source, "values")] if source in EIGHT_BITS else []
    value = decoded(source, address(x, names), "values")
    if target in EIGHT_BITS:
        head += encoder(target, a["saturate"], a["round_mode"])
        body = [*unravel(y.shape), f"*({address(y, names)}) = encode({value});"]
    else:
        body = [*unravel(y.shape), f"store<1>({address(y, names)}, convert<{storage(target)}>({value}));"]
    return TaskText(body, math.prod(y.shape), head)


def _why_not(call: NodeCall) -> Support | None:
    both = call.tensor(0).spec.dtype, call.outputs[0].dtype
    if not any(d in EIGHT_BITS for d in both):
        return refuse(both[0], "a cast without a float of 8 bits")
    wrong = next((d for d in both if d not in EIGHT_BITS and d not in STORAGE), None)
    return None if wrong is None else refuse(wrong, "a cast")


KERNELS = (TemplateKernel("cast/narrow", {"cast": OpTemplate(_cast, _why_not)}),)
