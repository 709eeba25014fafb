"""DType, Dim and TensorSpec: the words that every stage uses for values.

A ``Dim`` is an integer or a canonical integer expression over symbols: a polynomial with integer
coefficients whose atoms are symbols and floor divisions. Two dims that are equal as polynomials are equal
as values, print the same and hash the same, so a graph that is printed and parsed stays equal.
"""

from __future__ import annotations

import ast
import enum
import keyword
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

__all__ = ["DType", "Dim", "DimLike", "TensorSpec", "dim", "parse_dim"]


class DType(enum.StrEnum):
    """Element types, spelled as NumPy and ml_dtypes spell them. ``STRING`` has no fixed size."""

    BOOL = "bool"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT8_E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8_E8M0FNU = "float8_e8m0fnu"
    FLOAT4_E2M1FN = "float4_e2m1fn"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"
    STRING = "string"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype that holds one element (object for strings; sub-byte types take a byte each)."""
        return _NUMPY[self]

    @property
    def bits(self) -> int:
        """Bits of one element when packed; 0 for strings."""
        return _BITS.get(self, 0 if self is DType.STRING else self.numpy.itemsize * 8)

    @property
    def is_float(self) -> bool:
        """True for every real floating-point type."""
        return "float" in self.value

    @property
    def is_complex(self) -> bool:
        """True for complex64 and complex128."""
        return self.value.startswith("complex")

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers; bool is none."""
        return "int" in self.value

    @property
    def is_signed(self) -> bool:
        """True where negative values exist."""
        return not (self.value.startswith("uint") or self in (DType.BOOL, DType.STRING, DType.FLOAT8_E8M0FNU))

    @classmethod
    def of(cls, dtype: object) -> DType:
        """The DType of a NumPy dtype, a NumPy scalar type, or a name. Raises ValueError when there is none."""
        if isinstance(dtype, DType):
            return dtype
        if dtype is None:
            raise ValueError("no such dtype: None")  # NumPy would take it for float64
        if isinstance(dtype, str) and dtype in _ALIASES:
            return _ALIASES[dtype]
        try:
            native = np.dtype(dtype)  # type: ignore[call-overload]
        except (TypeError, ValueError, SyntaxError) as error:
            raise ValueError(f"no such dtype: {dtype!r}") from error
        if native.kind in "OUST":
            return cls.STRING
        try:
            return cls(native.name)
        except ValueError as error:
            raise ValueError(f"no tensor dtype for {native!r}") from error


_SUB_BYTE = {DType.INT4: 4, DType.UINT4: 4, DType.INT2: 2, DType.UINT2: 2, DType.FLOAT4_E2M1FN: 4}
_BITS: dict[DType, int] = dict(_SUB_BYTE)
_NUMPY: dict[DType, np.dtype[Any]] = {
    d: np.dtype(object) if d is DType.STRING else np.dtype(getattr(ml_dtypes, d.value, None) or d.value)
    for d in DType
}
_ALIASES: dict[str, DType] = {d.value: d for d in DType} | {
    "f16": DType.FLOAT16,
    "fp16": DType.FLOAT16,
    "half": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "f32": DType.FLOAT32,
    "fp32": DType.FLOAT32,
    "float": DType.FLOAT32,
    "f64": DType.FLOAT64,
    "fp64": DType.FLOAT64,
    "double": DType.FLOAT64,
}


class _FloorDiv(NamedTuple):
    """The atom ``num // den`` that no rule could simplify."""

    num: Dim
    den: Dim


_Atom: TypeAlias = "str | _FloorDiv"
# A product of n sums of two symbols has 2**n terms: a hostile file must not hang its reader.
_MOST_TERMS = 4096
_Monomial: TypeAlias = "tuple[_Atom, ...]"  # sorted by text; a power is a repetition; () is the constant term


def _atom_text(atom: _Atom) -> str:
    if isinstance(atom, str):
        # Keywords do not parse as names, and names beyond ASCII would come back normalised (NFKC).
        plain = atom.isascii() and atom.isidentifier() and not keyword.iskeyword(atom)
        return atom if plain else repr(atom)
    return f"({_operand(atom.num)}//{_operand(atom.den)})"


def _operand(value: Dim) -> str:
    """A side of a division: bare where it is one symbol or a number, else in brackets."""
    text = str(value)
    ((monomial, coefficient),) = value._terms if len(value._terms) == 1 else ((("", ""), 0),)
    bare = (len(monomial) == 1 and coefficient == 1) or (monomial == () and coefficient > 0)
    return text if bare else f"({text})"


class Dim:
    """A symbolic extent; use ``dim("n")``, ``parse_dim("2*n + 1")`` and arithmetic. Never a plain constant:
    arithmetic that yields one hands back an ``int``. Assumes symbols are non-negative and divisors non-zero.
    """

    __slots__ = ("__dict__", "_terms")

    def __init__(self, terms: Mapping[_Monomial, int]) -> None:
        self._terms = tuple(sorted(((m, c) for m, c in terms.items() if c), key=_term_key))

    @cached_property
    def _text(self) -> str:
        parts: list[str] = []
        for monomial, coefficient in self._terms:
            factors = [_atom_text(a) for a in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            parts.append(f" {sign} " if parts else ("-" if coefficient < 0 else ""))
            parts.append("*".join(factors))
        return "".join(parts) or "0"

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Dim({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self._terms == other._terms

    def __hash__(self) -> int:
        return hash(self._text)

    @property
    def symbols(self) -> frozenset[str]:
        """Every symbol in the expression."""
        found: set[str] = set()
        for monomial, _ in self._terms:
            for atom in monomial:
                found |= {atom} if isinstance(atom, str) else _symbols(atom.num) | _symbols(atom.den)
        return frozenset(found)

    def substitute(self, values: Mapping[str, DimLike]) -> DimLike:
        """The expression with symbols replaced; an int when all are known. Raises ZeroDivisionError."""
        total: DimLike = 0
        for monomial, coefficient in self._terms:
            product: DimLike = coefficient
            for atom in monomial:
                if isinstance(atom, str):
                    product = product * values.get(atom, _symbol(atom))
                else:
                    product = product * (_substitute(atom.num, values) // _substitute(atom.den, values))
            total = total + product
        return total

    def __add__(self, other: DimLike) -> DimLike:
        terms = dict(self._terms)
        for monomial, coefficient in _terms(other):
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return _collapse(terms)

    def __mul__(self, other: DimLike) -> DimLike:
        if len(self._terms) * len(list(_terms(other))) > _MOST_TERMS:
            raise ValueError(f"a product of dims would have over {_MOST_TERMS} terms")
        terms: dict[_Monomial, int] = {}
        for left, a in self._terms:
            for right, b in _terms(other):
                monomial = tuple(sorted(left + right, key=_atom_text))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return _collapse(terms)

    def __neg__(self) -> DimLike:
        return self * -1

    def __sub__(self, other: DimLike) -> DimLike:
        return self + (other * -1)

    def __rsub__(self, other: DimLike) -> DimLike:
        return (self * -1) + other

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: DimLike) -> DimLike:
        return _floordiv(self, other)

    def __rfloordiv__(self, other: DimLike) -> DimLike:
        return _floordiv(other, self)


DimLike: TypeAlias = int | Dim


def _term_key(term: tuple[_Monomial, int]) -> tuple[int, tuple[str, ...]]:
    monomial, _ = term
    return (-len(monomial), tuple(_atom_text(a) for a in monomial))


def _symbols(value: DimLike) -> frozenset[str]:
    return value.symbols if isinstance(value, Dim) else frozenset()


def _substitute(value: DimLike, values: Mapping[str, DimLike]) -> DimLike:
    return value.substitute(values) if isinstance(value, Dim) else value


def _symbol(name: str) -> Dim:
    return Dim({(name,): 1})


def _terms(value: DimLike) -> Iterable[tuple[_Monomial, int]]:
    return value._terms if isinstance(value, Dim) else (((), int(value)),)


def _collapse(terms: Mapping[_Monomial, int]) -> DimLike:
    live = {m: c for m, c in terms.items() if c}
    return live.get((), 0) if all(m == () for m in live) else Dim(live)


def _without(monomial: _Monomial, divisor: _Monomial) -> _Monomial | None:
    """``monomial / divisor`` as a monomial, or None when it does not divide."""
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _floordiv(num: DimLike, den: DimLike) -> DimLike:
    if isinstance(num, int) and isinstance(den, int):
        return num // den
    if num == 0:
        return 0
    if den == 0:
        raise ZeroDivisionError(f"{num} // 0")
    den_terms = list(_terms(den))
    if len(den_terms) == 1:
        # (d*q + r) // d == q + r // d for every integer: what divides exactly leaves the fraction.
        ((den_monomial, den_coefficient),) = den_terms
        whole: dict[_Monomial, int] = {}
        rest: dict[_Monomial, int] = {}
        for monomial, coefficient in _terms(num):
            quotient = _without(monomial, den_monomial)
            if quotient is None or coefficient % den_coefficient:
                rest[monomial] = coefficient
            else:
                whole[quotient] = coefficient // den_coefficient
        left = _collapse(rest)
        if left == 0:
            return _collapse(whole)
        if isinstance(left, int) and isinstance(den, int):
            return _collapse(whole) + left // den
        if whole:
            return _collapse(whole) + _floordiv(left, den)
    if num == den:
        return 1
    if isinstance(den, int) and den > 0 and isinstance(num, Dim) and len(num._terms) == 1:
        # (a // b) // c == a // (b * c) for positive b and c.
        ((monomial, coefficient),) = num._terms
        inner = monomial[0] if len(monomial) == 1 and coefficient == 1 else ""
        if isinstance(inner, _FloorDiv) and _positive(inner.den):
            return _floordiv(_plain_int(inner.num), _plain_int(inner.den) * den)
    return Dim({(_FloorDiv(_as_dim(num), _as_dim(den)),): 1})


def _plain_int(value: Dim) -> DimLike:
    return _collapse(dict(value._terms))


def _positive(value: Dim) -> bool:
    plain = _plain_int(value)
    return isinstance(plain, int) and plain > 0


def _as_dim(value: DimLike) -> Dim:
    return value if isinstance(value, Dim) else Dim({(): value})


def dim(value: int | str | Dim) -> DimLike:
    """An int stays an int, a Dim stays itself, a string is a symbol of that name (any text but empty)."""
    if isinstance(value, Dim):
        return value
    if not isinstance(value, str):
        return int(operator.index(value))  # NumPy's integers too; TypeError for what is none
    if not value:
        raise ValueError("a symbol needs a name")
    return _symbol(value)


def parse_dim(text: str) -> DimLike:
    """``"2*n + (h//2)"`` -> Dim. Names or quoted strings are symbols; + - * // and integers. Raises ValueError."""
    if len(text) > 10_000:
        raise ValueError("a dim expression has at most 10,000 characters")
    try:
        return _from_ast(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, ZeroDivisionError) as error:
        raise ValueError(f"not a dim expression: {text[:80]!r} ({error})") from error


def _from_ast(node: ast.expr) -> DimLike:
    match node:
        case ast.Name(id=name):
            return _symbol(name)
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=str() | int() as value):
            return dim(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _from_ast(operand) * -1
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _from_ast(left) + _from_ast(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _from_ast(left) - _from_ast(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _bounded_product(_from_ast(left), _from_ast(right))
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return _floordiv(_from_ast(left), _from_ast(right))
        case _:
            pass
    raise ValueError(f"not part of a dim expression: {ast.unparse(node)!r}; use integers, names, + - * //")


def _bounded_product(a: DimLike, b: DimLike) -> DimLike:
    """``a * b`` of text from outside, which may not grow without bound: powers of sums multiply out."""
    sizes = [(len(t), max((len(m) for m, _ in t), default=0)) for t in (tuple(_terms(a)), tuple(_terms(b)))]
    if sizes[0][0] * sizes[1][0] > 1000 or sizes[0][1] + sizes[1][1] > 64:
        raise ValueError("a dim expression has at most 1000 terms of degree 64")
    return a * b


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of one value; ``name`` is the value's name where it has one."""

    shape: tuple[DimLike, ...]
    dtype: DType
    name: str = ""

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """True when every dim is an integer."""
        return all(isinstance(d, int) for d in self.shape)

    @property
    def symbols(self) -> frozenset[str]:
        """Every symbol in the shape."""
        return frozenset().union(*(_symbols(d) for d in self.shape))

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the dense value, packed; None when the shape is symbolic or the dtype is string."""
        if not self.is_static or self.dtype is DType.STRING:
            return None
        return (math.prod(int(d) for d in self.shape if isinstance(d, int)) * self.dtype.bits + 7) // 8

    def substitute(self, values: Mapping[str, DimLike]) -> TensorSpec:
        """The spec with symbols replaced."""
        return TensorSpec(tuple(_substitute(d, values) for d in self.shape), self.dtype, self.name)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(str(d) for d in self.shape)}]"

    @classmethod
    def parse(cls, text: str, name: str = "") -> TensorSpec:
        """``"float32[n, 3, 2*h]"`` -> TensorSpec. Raises ValueError."""
        head, bracket, tail = text.strip().partition("[")
        if not bracket or not tail.endswith("]"):
            raise ValueError(f"not a tensor spec: {text[:80]!r}; write dtype[dim, dim]")
        body = tail[:-1].strip()
        return cls(
            tuple(parse_dim(part) for part in _split(body)) if body else (), DType.of(head.strip()), name
        )


def _split(text: str) -> list[str]:
    """Split at top-level commas; brackets and quotes protect theirs (symbols may hold any text)."""
    parts, depth, quote, start = [], 0, "", 0
    escaped = False
    for i, char in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped, quote = char == "\\", "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return parts
