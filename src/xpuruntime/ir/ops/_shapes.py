"""Shape arithmetic over dim expressions, shared by the inference functions of all families."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ...types import Dim, DimLike, TensorSpec
from ..schema import Mismatch, OpCall

__all__ = [
    "Shape",
    "axes_without",
    "broadcast",
    "ceil_div",
    "like",
    "numel",
    "pads",
    "permuted",
    "product",
    "same",
    "window",
]

Shape: TypeAlias = tuple[DimLike, ...]


def text(shape: Sequence[DimLike]) -> str:
    """Return a shape as text for messages: ``[n, 3]``."""
    return f"[{', '.join(map(str, shape))}]"


def same(a: DimLike, b: DimLike, description: str) -> DimLike:
    """Unify two dims. Two integers must be equal; of a symbol and an integer, the integer is returned and checked at run time."""
    if a == b:
        return a
    if isinstance(a, int) and isinstance(b, int):
        raise Mismatch(f"{description} must be equal", f"{a} and {b}")
    return a if isinstance(a, int) or not isinstance(b, int) else b


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that all broadcast to. A symbol with an integer above 1 gives the integer. Two different symbols are an error,
    because either may be 1.
    """
    if len(shapes) == 1:
        return shapes[0]
    rank = max((len(s) for s in shapes), default=0)
    result: list[DimLike] = [1] * rank
    for shape in shapes:
        for i, d in enumerate(shape, rank - len(shape)):
            result[i] = _broadcast_dim(result[i], d, shapes)
    return tuple(result)


def _broadcast_dim(a: DimLike, b: DimLike, shapes: Sequence[Shape]) -> DimLike:
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise Mismatch("shapes do not broadcast", " and ".join(map(text, shapes)))
    if isinstance(a, Dim) and isinstance(b, Dim):
        raise Mismatch(
            "cannot decide how two symbols broadcast",
            f"{a} and {b} in {' and '.join(map(text, shapes))}",
            "Use one symbol if they are equal, or expand one operand first.",
        )
    return a if isinstance(a, int) else b


def product(dims: Iterable[DimLike]) -> DimLike:
    """Return the product of dims."""
    total: DimLike = 1
    for d in dims:
        total = total * d
    return total


def numel(spec: TensorSpec) -> DimLike:
    """Return the number of elements."""
    return product(spec.shape)


def ceil_div(a: DimLike, b: DimLike) -> DimLike:
    """Return a / b rounded up, for positive b."""
    return (a + b - 1) // b


def like(spec: TensorSpec, shape: Sequence[DimLike] | None = None) -> TensorSpec:
    """Return a nameless spec of the same dtype, with another shape if given."""
    return TensorSpec(spec.shape if shape is None else tuple(shape), spec.dtype)


def axes_without(spec: TensorSpec, axes: Sequence[int], keepdim: bool) -> Shape:
    """Return the shape after reducing axes."""
    if keepdim:
        return tuple(1 if i in axes else d for i, d in enumerate(spec.shape))
    return tuple(d for i, d in enumerate(spec.shape) if i not in axes)


def permuted(spec: TensorSpec, order: Sequence[int]) -> Shape:
    """Return the shape with axes in another order."""
    if sorted(order) != list(range(spec.rank)):
        raise Mismatch("dims must be a permutation of the axes", f"{list(order)} for rank {spec.rank}")
    return tuple(spec.shape[i] for i in order)


def pads(padding: Sequence[int], n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return begins and ends of ``padding`` (n numbers for both sides, or n begins and n ends)."""
    if len(padding) == n:
        return tuple(padding), tuple(padding)
    if len(padding) == 2 * n:
        return tuple(padding[:n]), tuple(padding[n:])
    raise Mismatch(f"padding takes {n} or {2 * n} numbers", list(padding))


def spatial(call: OpCall, names: Sequence[str], n: int) -> None:
    """Check that every attribute in names has n positive numbers."""
    for name in names:
        values = call[name]
        if len(values) != n or min(values, default=1) < 1:
            raise Mismatch(f"{name} takes {n} positive numbers", list(values))


def window(
    size: DimLike, kernel: int, stride: int, before: int, after: int, dilation: int, ceil_mode: bool = False
) -> DimLike:
    """Return the number of windows along a dim. With ceil_mode, a window must start inside the input, without what negative padding crops, or
    the padding before it.
    """
    span = dilation * (kernel - 1) + 1
    free = size + (before + after - span)
    if isinstance(free, int) and free < 0 and not (ceil_mode and free + stride > 0):
        raise Mismatch(
            "the window is larger than the padded input", f"window {span}, input {size} + {before} + {after}"
        )
    if not ceil_mode:
        return free // stride + 1
    if isinstance(free, Dim) and max(after, 0) + stride > span:
        raise Mismatch(
            "ceil_mode needs a known size here", str(size), "Use ceil_mode false, or fix the size."
        )
    count = ceil_div(free, stride) + 1
    if (
        isinstance(count, int)
        and isinstance(size, int)
        and (count - 1) * stride >= size + before + min(after, 0)
    ):
        count -= 1
    return count
