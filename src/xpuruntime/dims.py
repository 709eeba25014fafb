"""Dim: the extent of a tensor along one axis, an integer or an expression over symbols.

A ``Dim`` is canonical: a polynomial with integer coefficients whose atoms are symbols and floor divisions. Two dims that are
equal as polynomials are equal as values, print the same and hash the same, so a graph that is printed and parsed stays equal.
"""

from __future__ import annotations

import ast
import keyword
import operator
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple, TypeAlias

__all__ = ["Dim", "DimLike", "dim", "parse_dim", "substitute", "symbols_of"]


class _FloorDiv(NamedTuple):
    """The atom ``num // den`` after simplification."""

    num: Dim
    den: Dim


_Atom: TypeAlias = "str | _FloorDiv"
# A product of n sums of two symbols has 2**n terms. A malicious file must not hang its reader.
_MAX_TERMS = 4096
# Nested powers and divisions double the text with each step: 40 nodes of shape arithmetic would print terabytes.
_MAX_LENGTH = 1 << 16
_Monomial: TypeAlias = (
    "tuple[_Atom, ...]"  # sorted by text; a power repeats its atom; () is the constant term
)


def _atom_text(atom: _Atom) -> str:
    if isinstance(atom, str):
        # Quote keywords, which do not parse as names, and non-ASCII names, which ast would normalize (NFKC).
        plain = atom.isascii() and atom.isidentifier() and not keyword.iskeyword(atom)
        return atom if plain else repr(atom)
    return f"({_operand(atom.num)}//{_operand(atom.den)})"


def _operand(value: Dim) -> str:
    """Return the text of a division's operand, in brackets unless it is one symbol or a number."""
    text = str(value)
    ((monomial, coefficient),) = value._terms if len(value._terms) == 1 else ((("", ""), 0),)
    bare = (len(monomial) == 1 and coefficient == 1) or (monomial == () and coefficient > 0)
    return text if bare else f"({text})"


class Dim:
    """A symbolic extent, from ``dim("n")``, ``parse_dim("2*n + 1")`` or arithmetic. Arithmetic with a constant result returns an
    ``int``. Symbols are assumed to be non-negative and divisors to be non-zero.
    """

    __slots__ = ("__dict__", "_terms")

    def __init__(self, terms: Mapping[_Monomial, int]) -> None:
        self._terms = tuple(sorted(((m, c) for m, c in terms.items() if c), key=_term_key))

    @cached_property
    def _length(self) -> int:
        """Approximate number of characters of the text, which is not built."""
        return sum(_coefficient_length(c) + sum(map(_atom_length, m)) for m, c in self._terms)

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
        names: set[str] = set()
        for monomial, _ in self._terms:
            for atom in monomial:
                names |= {atom} if isinstance(atom, str) else symbols_of(atom.num) | symbols_of(atom.den)
        return frozenset(names)

    def substitute(self, values: Mapping[str, DimLike]) -> DimLike:
        """Return the expression with symbols replaced; an int if all are known. Raises ZeroDivisionError."""
        total: DimLike = 0
        for monomial, coefficient in self._terms:
            product: DimLike = coefficient
            for atom in monomial:
                if isinstance(atom, str):
                    product = product * values.get(atom, _symbol(atom))
                else:
                    product = product * (substitute(atom.num, values) // substitute(atom.den, values))
            total = total + product
        return total

    def __add__(self, other: DimLike) -> DimLike:
        terms = dict(self._terms)
        for monomial, coefficient in _terms(other):
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return _collapse(terms)

    def __mul__(self, other: DimLike) -> DimLike:
        own_terms, other_terms = len(self._terms), len(list(_terms(other)))
        if own_terms * other_terms > _MAX_TERMS:
            raise ValueError(f"a product of dims would have more than {_MAX_TERMS} terms")
        if (
            own_terms * _length(other) + other_terms * self._length > 16 * _MAX_LENGTH
        ):  # terms may cancel: test before refusing
            raise ValueError(f"a product of dims would have more than {_MAX_LENGTH} characters")
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


def _coefficient_length(coefficient: int) -> int:
    return 3 + coefficient.bit_length() * 3 // 10


def _atom_length(atom: _Atom) -> int:
    return len(atom) + 1 if isinstance(atom, str) else atom.num._length + atom.den._length + 8


def _length(value: DimLike) -> int:
    return value._length if isinstance(value, Dim) else _coefficient_length(int(value))


def _bounded(value: Dim) -> Dim:
    """Return the dim if its text is not too long, else raise ValueError. A single symbol may have any name."""
    if value._length > _MAX_LENGTH and not (
        len(value._terms) == 1 and len(value._terms[0][0]) == 1 and isinstance(value._terms[0][0][0], str)
    ):
        raise ValueError(f"a dim would have more than {_MAX_LENGTH} characters")
    return value


def _term_key(term: tuple[_Monomial, int]) -> tuple[int, tuple[str, ...]]:
    monomial, _ = term
    return (-len(monomial), tuple(_atom_text(a) for a in monomial))


def symbols_of(value: DimLike) -> frozenset[str]:
    """Return every symbol in a dim; none in an integer."""
    return value.symbols if isinstance(value, Dim) else frozenset()


def substitute(value: DimLike, values: Mapping[str, DimLike]) -> DimLike:
    """Return a dim with symbols replaced; an integer stays. Raises ZeroDivisionError."""
    return value.substitute(values) if isinstance(value, Dim) else value


def _symbol(name: str) -> Dim:
    return Dim({(name,): 1})


def _terms(value: DimLike) -> Iterable[tuple[_Monomial, int]]:
    return value._terms if isinstance(value, Dim) else (((), int(value)),)


def _collapse(terms: Mapping[_Monomial, int]) -> DimLike:
    live = {m: c for m, c in terms.items() if c}
    return live.get((), 0) if all(m == () for m in live) else _bounded(Dim(live))


def _without(monomial: _Monomial, divisor: _Monomial) -> _Monomial | None:
    """Return ``monomial / divisor`` as a monomial, or None if it does not divide."""
    atoms = list(monomial)
    for atom in divisor:
        if atom not in atoms:
            return None
        atoms.remove(atom)
    return tuple(atoms)


def _floordiv(num: DimLike, den: DimLike) -> DimLike:
    if isinstance(num, int) and isinstance(den, int):
        return num // den
    if num == 0:
        return 0
    if den == 0:
        raise ZeroDivisionError(f"{num} // 0")
    den_terms = list(_terms(den))
    if len(den_terms) == 1:
        # (d*q + r) // d == q + r // d for all integers, so exact quotients move out of the division.
        ((den_monomial, den_coefficient),) = den_terms
        quotients: dict[_Monomial, int] = {}
        remainder_terms: dict[_Monomial, int] = {}
        for monomial, coefficient in _terms(num):
            quotient = _without(monomial, den_monomial)
            if quotient is None or coefficient % den_coefficient:
                remainder_terms[monomial] = coefficient
            else:
                quotients[quotient] = coefficient // den_coefficient
        remainder = _collapse(remainder_terms)
        if remainder == 0:
            return _collapse(quotients)
        if isinstance(remainder, int) and isinstance(den, int):
            return _collapse(quotients) + remainder // den
        if quotients:
            return _collapse(quotients) + _floordiv(remainder, den)
    if num == den:
        return 1
    if isinstance(den, int) and den > 0 and isinstance(num, Dim) and len(num._terms) == 1:
        # (a // b) // c == a // (b * c) for positive b and c.
        ((monomial, coefficient),) = num._terms
        inner = monomial[0] if len(monomial) == 1 and coefficient == 1 else ""
        if isinstance(inner, _FloorDiv) and _positive(inner.den):
            return _floordiv(_plain_int(inner.num), _plain_int(inner.den) * den)
    return _bounded(Dim({(_FloorDiv(_as_dim(num), _as_dim(den)),): 1}))


def _plain_int(value: Dim) -> DimLike:
    return _collapse(dict(value._terms))


def _positive(value: Dim) -> bool:
    plain = _plain_int(value)
    return isinstance(plain, int) and plain > 0


def _as_dim(value: DimLike) -> Dim:
    return value if isinstance(value, Dim) else Dim({(): value})


def dim(value: int | str | Dim) -> DimLike:
    """Return an int or a Dim unchanged, and the symbol of that name for a string (any text but the empty one)."""
    if isinstance(value, Dim):
        return value
    if not isinstance(value, str):
        return int(operator.index(value))  # also NumPy's integers; TypeError for anything else
    if not value:
        raise ValueError("a symbol's name must not be empty")
    return _symbol(value)


def parse_dim(text: str) -> DimLike:
    """Parse an expression such as ``"2*n + (h//2)"``: names or quoted strings (symbols), integers, + - * //. Raises ValueError."""
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
    raise ValueError(f"not allowed in a dim expression: {ast.unparse(node)!r}; use integers, names, + - * //")


def _bounded_product(a: DimLike, b: DimLike) -> DimLike:
    """Return ``a * b``. Raises ValueError for a product that is too large, since parsed text is untrusted and powers of sums expand."""
    sizes = [(len(t), max((len(m) for m, _ in t), default=0)) for t in (tuple(_terms(a)), tuple(_terms(b)))]
    if sizes[0][0] * sizes[1][0] > 1000 or sizes[0][1] + sizes[1][1] > 64:
        raise ValueError("a dim expression has at most 1000 terms of degree 64")
    return a * b
