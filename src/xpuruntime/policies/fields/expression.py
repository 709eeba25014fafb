"""Shape conditions: a tiny expression language over named dims, such as ``M <= 16 and K % 8 == 0``.

Grammar: comparisons (chains too) of integer arithmetic (``+ - * // %``) over integers and dim names, joined by ``and``, ``or``,
``not``. Nothing else parses, so a condition cannot call functions or loop. Its length and its depth are bounded.

Conditions have three truth values (Kleene's logic). A comparison is *unknown* if it reads a dim that is symbolic or that the op
does not have, or divides by zero. A rule with an unknown condition does not match.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MAX_CHARS", "Condition"]

MAX_CHARS = 300
_MAX_NODES = 120
_MAX_INT = 2**63
_ALPHABET = re.compile(r"[A-Za-z0-9_ ()<>=!+\-*/%]*")
_RUN_TOGETHER = re.compile(
    r"(?<![A-Za-z0-9_])[0-9]+[A-Za-z_]"
)  # `16and`, `0x10`, `1_000`: Python accepts these, some with a warning

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One parsed condition. ``text`` is canonical: conditions that differ only in spaces and redundant brackets have equal text."""

    text: str
    tree: ast.expr = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse a condition such as ``"M<=16"``. Raises ValueError that names the part outside the language."""
        if len(text) > MAX_CHARS:
            raise ValueError(f"a condition has at most {MAX_CHARS} characters")
        if not _ALPHABET.fullmatch(text) or _RUN_TOGETHER.search(text):
            raise ValueError("not a condition (decimal integers, dim names, spaces, brackets, operators)")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
            if sum(1 for _ in ast.walk(tree)) > _MAX_NODES:
                raise ValueError("the condition has too many parts; split it over several rules")
            _check_truth(tree)
            canonical = ast.unparse(tree)
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"not a condition ({getattr(error, 'msg', None) or 'too deep'})") from error
        if len(canonical) > MAX_CHARS:
            raise ValueError(f"a condition has at most {MAX_CHARS} characters")
        return cls(canonical, tree)

    @property
    def names(self) -> frozenset[str]:
        """Every dim that the condition reads."""
        return frozenset(n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name))

    def holds(self, dims: Mapping[str, Any]) -> bool | None:
        """Evaluate the condition. Return None if it depends on a dim that is not an integer in ``dims``."""
        return _truth(self.tree, dims)

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Return bounds (lowest, highest) of the dims for which the condition holds; dims without bounds are left out."""
        bounds: dict[str, tuple[float, float]] = {}
        for name, op, value in _conjuncts(self.tree):
            low, high = bounds.get(name, (-math.inf, math.inf))
            below, above = _BOUNDS[op]
            bounds[name] = (max(low, value + below), min(high, value + above))
        return bounds

    def atoms(self) -> Iterator[tuple[str, int] | None]:
        """Return each comparison as (name, constant), or None for a more complex one. Lint uses them."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Compare):
                for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
                    match left, right:
                        case (ast.Name(id=name), ast.Constant(value=int() as value)):
                            yield name, value
                        case (ast.Constant(value=int() as value), ast.Name(id=name)):
                            yield name, value
                        case _:
                            yield None


# Bounds that `name op constant` sets on the name, relative to the constant.
_BOUNDS: dict[type[ast.cmpop], tuple[float, float]] = {
    ast.Lt: (-math.inf, -1),
    ast.LtE: (-math.inf, 0),
    ast.Gt: (1, math.inf),
    ast.GtE: (0, math.inf),
    ast.Eq: (0, 0),
}


def _conjuncts(node: ast.expr) -> Iterator[tuple[str, type[ast.cmpop], int]]:
    """Yield the ``name op constant`` parts that hold whenever the whole condition holds."""
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            for value in values:
                yield from _conjuncts(value)
        case ast.Compare(left=ast.Name(id=name), ops=[op], comparators=[ast.Constant(value=int() as value)]):
            if type(op) in _BOUNDS:
                yield name, type(op), value
        case _:
            pass


def _refuse(node: ast.AST, want: str) -> ValueError:
    return ValueError(f"{ast.unparse(node)[:60]!r} is not {want}")


def _check_truth(node: ast.expr) -> None:
    match node:
        case ast.BoolOp(values=values):
            for value in values:
                _check_truth(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            _check_truth(operand)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            if any(type(op) not in _COMPARISONS for op in ops):
                raise _refuse(node, "one of the comparisons < <= > >= == !=")
            for value in (left, *comparators):
                _check_number(value)
        case _:
            raise _refuse(node, "a comparison, or comparisons joined by and, or, not")


def _check_number(node: ast.expr) -> None:
    match node:
        case ast.Name():
            pass
        case ast.Constant(value=int() as value) if not isinstance(value, bool) and abs(value) < _MAX_INT:
            pass
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            _check_number(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            _check_number(left)
            _check_number(right)
        case _:
            raise _refuse(node, "an integer, a dim name, or + - * // % of them")


def _truth(node: ast.expr, dims: Mapping[str, Any]) -> bool | None:
    match node:
        case ast.BoolOp(op=op, values=values):
            decisive = isinstance(op, ast.Or)  # one True decides an `or`, one False an `and`
            results = [_truth(v, dims) for v in values]
            return decisive if decisive in results else None if None in results else not decisive
        case ast.UnaryOp(operand=operand):
            inner = _truth(operand, dims)
            return None if inner is None else not inner
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            numbers = [_number(v, dims) for v in (left, *comparators)]
            pairs = list(zip(numbers, ops, numbers[1:], strict=False))
            links = [None if a is None or b is None else _COMPARISONS[type(op)](a, b) for a, op, b in pairs]
            return False if False in links else None if None in links else True
    raise AssertionError(f"unchecked node {node!r}")


def _number(node: ast.expr, dims: Mapping[str, Any]) -> int | None:
    match node:
        case ast.Name(id=name):
            value = dims.get(name)
            return int(value) if isinstance(value, int) and not isinstance(value, bool) else None
        case ast.Constant(value=int() as value):
            return value
        case ast.UnaryOp(operand=operand):
            inner = _number(operand, dims)
            return None if inner is None else -inner
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _number(left, dims), _number(right, dims)
            if a is None or b is None or (b == 0 and isinstance(op, ast.FloorDiv | ast.Mod)):
                return None
            return _ARITHMETIC[type(op)](a, b)
    raise AssertionError(f"unchecked node {node!r}")
