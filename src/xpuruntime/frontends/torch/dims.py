"""Conversion of PyTorch's symbolic sizes to dims: sums, products and floor divisions, with the user's names."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from ...types import Dim, DimLike, DType, TensorSpec, dim
from ..not_lowered import NotLowered

__all__ = ["SymbolNames", "dtype_of", "same_spec", "spec_of"]

_PROBES = (2, 3, 5, 7, 16, 31)
_MAX_DENOMINATOR = 4096
"""Of factors such as 1.5 and 0.75, whose product with a size is exact in float64. 0.1 has a denominator of 2**55, and its product is rounded."""


class SymbolNames:
    """Names and ranges of symbols.

    names: PyTorch's symbol (``s77``) -> ours.
    known: our symbols that a value's shape binds at run time; others represent the content of tensors.
    fixed: PyTorch's symbols whose values the program determines.
    """

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.known: set[str] = set()
        self.fixed: dict[str, int] = {}

    def fix(self, size: Any, value: int) -> None:
        """Fix the size, if it is a single symbol, to the value from now on."""
        expr = getattr(getattr(size, "node", None), "expr", None)
        if expr is not None and expr.is_Symbol:
            self.fixed[str(expr)] = value

    def name(self, symbol: Any, preferred: str) -> None:
        """Name a PyTorch symbol, unless it has a name. A taken name gets a number."""
        used = set(self.names.values())
        names = itertools.chain([preferred], (f"{preferred}_{i}" for i in itertools.count(2)))
        self.names.setdefault(str(symbol), next(n for n in names if n not in used))

    def dim(self, size: Any) -> DimLike:
        """Return an int or a SymInt as a dim. Raise NotLowered for one that a dim cannot express."""
        if isinstance(size, int) and not isinstance(size, bool):
            return size
        return self.expression(size.node.expr)

    def expression(self, expr: Any) -> DimLike:
        """Return a sympy expression as a dim. Raise NotLowered."""
        if fixed := {s: self.fixed[str(s)] for s in expr.free_symbols if str(s) in self.fixed}:
            expr = expr.subs(fixed)
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            return dim(self.names.setdefault(str(expr), str(expr)))
        kind, args = type(expr).__name__, expr.args
        if kind in ("TruncToInt", "FloorToInt", "CeilToInt") and (scaled := _scaled(args[0])) is not None:
            size, factor = scaled
            rounding = factor.denominator - 1 if kind == "CeilToInt" else 0
            return (self.expression(size) * factor.numerator + rounding) // factor.denominator
        if kind == "Pow" and args[1].is_Integer and args[1] > 0:
            kind, args = "Mul", (args[0],) * int(args[1])
        if kind not in ("Add", "Mul", "FloorDiv", "CleanDiv", "Mod", "PythonMod"):
            raise NotLowered(f"the size {expr} is not a sum, product or floor division")
        result, *rest = (self.expression(a) for a in args)
        for operand in rest:
            if kind == "Add":
                result = result + operand
            elif kind == "Mul":
                result = result * operand
            elif kind in ("FloorDiv", "CleanDiv"):
                result = result // operand
            else:
                result = result - operand * (result // operand)
        return result

    def ranges(self, constraints: Mapping[Any, Any]) -> dict[str, list[int | None]]:
        """Return [min, max] by symbol, where PyTorch knows a range; None is unbounded."""
        ranges: dict[str, list[int | None]] = {}
        for symbol, span in constraints.items():
            name = self.names.get(str(symbol))
            if name is not None:
                ranges[name] = [_bound(span.lower), _bound(span.upper)]
        return dict(sorted(ranges.items()))


def _scaled(expr: Any) -> tuple[Any, Fraction] | None:
    """Return the size and the factor of ``size * factor`` in floats, if the product is exact and not negative; else None."""
    factor, rest = Fraction(1), []
    for term in expr.args if type(expr).__name__ == "Mul" else (expr,):
        if term.is_Number:
            factor *= Fraction(float(term))
        else:
            rest.append(term)
    if len(rest) != 1 or type(rest[0]).__name__ != "ToFloat":
        return None
    (size,) = rest[0].args
    exact = 0 < factor <= _MAX_DENOMINATOR and factor.denominator <= _MAX_DENOMINATOR
    return (size, factor) if exact and size.is_nonnegative else None


def _bound(value: Any) -> int | None:
    """Return an integer bound, or None for each of PyTorch's ways to write infinity."""
    if not getattr(value, "is_Integer", isinstance(value, int)):
        return None
    return int(value) if abs(int(value)) < 2**62 else None


def dtype_of(dtype: Any) -> DType:
    """Return a torch dtype as a DType. Raise NotLowered for one that the IR lacks."""
    try:
        return DType(str(dtype).removeprefix("torch."))
    except ValueError as error:
        raise NotLowered(f"the IR has no dtype {dtype}") from error


def spec_of(tensor: Any, symbols: SymbolNames) -> TensorSpec:
    """Return shape and dtype of a (fake) tensor. Raise NotLowered for a sparse one, and for sizes that a dim cannot express."""
    if str(tensor.layout) != "torch.strided":
        raise NotLowered(f"its layout is {tensor.layout}")
    return TensorSpec(tuple(symbols.dim(d) for d in tensor.shape), dtype_of(tensor.dtype))


def same_spec(a: TensorSpec, b: TensorSpec) -> bool:
    """Return whether dtype and shape are equal. Symbolic sizes that are written differently are compared at sample values."""
    if a.dtype is not b.dtype or a.rank != b.rank:
        return False
    return a.shape == b.shape or all(map(_equal, a.shape, b.shape))


def _equal(a: DimLike, b: DimLike) -> bool:
    if a == b or (isinstance(a, int) and isinstance(b, int)):
        return a == b
    symbols = sorted(_symbols(a) | _symbols(b))
    return all(_at(a, values) == _at(b, values) for values in _grids(symbols))


def _symbols(value: DimLike) -> frozenset[str]:
    return value.symbols if isinstance(value, Dim) else frozenset()


def _at(value: DimLike, values: Mapping[str, int]) -> DimLike:
    return value.substitute(values) if isinstance(value, Dim) else value


def _grids(symbols: Sequence[str]) -> list[dict[str, int]]:
    """Return sample sizes: each symbol takes each probe, the others different ones."""
    count = len(_PROBES)
    return [
        {s: 840 * _PROBES[(start + step * i) % count] for i, s in enumerate(symbols)}
        for start in range(count)
        for step in (1, 5)
    ] + [{s: _PROBES[(start + i) % count] * 12 + 60 for i, s in enumerate(symbols)} for start in range(count)]
