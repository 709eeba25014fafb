"""The values before the first node: checked inputs, loaded weights, contents of states; and symbols bound to array shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from ...errors import InputError, IrError
from ...types import Dim, DimLike, DType, TensorSpec
from ..graph import Graph, Weight
from .numbers import Array

__all__ = ["Weights", "bind_symbols", "start_values"]

Weights: TypeAlias = "Mapping[str, Array] | Callable[[Weight], Array]"
"""The source of weights: arrays by name, or a function that loads one."""


def start_values(
    graph: Graph,
    feeds: Mapping[str, Any],
    weights: Weights | None,
    states: Mapping[str, Array] | None,
    symbols: dict[str, int],
) -> Iterator[tuple[str, Array]]:
    """Check inputs, weights and states against their specs, and bind symbols."""
    names = [v.name for v in graph.inputs]
    for wrong in [n for n in feeds if n not in names] + [n for n in names if n not in feeds]:
        raise InputError(
            f"graph {graph.name!r}",
            "has no such input" if wrong in feeds else "needs an input that was not passed",
            got=repr(wrong),
            do=f"Its inputs are {', '.join(names) or 'none'}.",
        )
    arrays = [_checked(feeds[s.name], s, f"input {s.name!r}", InputError) for s in graph.input_specs]
    # Plain symbols first, so that an expression such as 2*n can be checked or solved.
    for plain in (True, False):
        for spec, array in zip(graph.input_specs, arrays, strict=True):
            bind_symbols(spec, array.shape, symbols, f"input {spec.name!r}", InputError, only_plain=plain)
    yield from zip(names, arrays, strict=True)
    loaded: dict[str, Array] = {}
    for weight in graph.weights:
        array = _load(weight, weights)
        loaded[weight.name] = _checked(array, weight.spec, f"weight {weight.name!r}", IrError)
        bind_symbols(weight.spec, loaded[weight.name].shape, symbols, f"weight {weight.name!r}", IrError)
    yield from loaded.items()
    for state in graph.states:
        spec = state.spec.substitute(symbols)
        if states is not None and state.name in states:
            content = _checked(states[state.name], spec, f"state {state.name!r}", InputError)
        elif state.init is not None:
            content = loaded[state.init]
        else:
            content = np.zeros([_known(d, f"state {state.name!r}") for d in spec.shape], spec.dtype.numpy)
        bind_symbols(spec, content.shape, symbols, f"state {state.name!r}", InputError)
        yield state.name, content


def _load(weight: Weight, weights: Weights | None) -> Array:
    if weight.data and (callable(weights) or weights is None or weight.name not in weights):
        return weight.array()
    if callable(weights):
        return weights(weight)
    if weights is None or weight.name not in weights:
        raise IrError(
            f"weight {weight.name!r}",
            "was not passed",
            do="Pass weights={name: array} or a function that loads one.",
        )
    return weights[weight.name]


def _known(d: DimLike, who: str) -> int:
    if isinstance(d, Dim):
        raise IrError(
            who, "has a dim that no input determines", got=str(d), do="Pass its content in states=."
        )
    return d


def _checked(value: Any, spec: TensorSpec, who: str, error: type[InputError | IrError]) -> Array:
    """Return the array after checking its dtype and rank."""
    array = np.asarray(value)
    try:
        dtype = DType.of(array.dtype)
    except ValueError as cause:
        raise error(who, "is not a tensor", got=array.dtype, do=f"Pass {spec}.") from cause
    if dtype is not spec.dtype or array.ndim != spec.rank:
        raise error(who, "has another type", got=f"{dtype.value}{list(array.shape)}", do=f"Pass {spec}.")
    return array.astype(object) if dtype is DType.STRING else array


def bind_symbols(
    spec: TensorSpec,
    shape: tuple[int, ...],
    symbols: dict[str, int],
    who: str,
    error: type[InputError | IrError],
    *,
    only_plain: bool = False,
) -> None:
    """Bind symbols to an array's shape and check known ones. Raises ``error`` for a mismatch."""
    for d, size in zip(spec.shape, shape, strict=True):
        if isinstance(d, Dim):
            unknown = d.symbols - symbols.keys()
            if len(unknown) == 1:
                (symbol,) = unknown
                if d == _as_dim(symbol):
                    symbols[symbol] = size
                elif not only_plain and not _solve(d, symbol, size, symbols):
                    raise error(who, "has another shape", got=list(shape), do=f"Pass {spec}.")
        if only_plain:
            continue
        have = d.substitute(symbols) if isinstance(d, Dim) else d
        if isinstance(have, int) and have != size:
            value_text = f" ({d} = {have})" if isinstance(d, Dim) else ""
            raise error(who, "has another shape", got=list(shape), do=f"Pass {spec}{value_text}.")


def _as_dim(symbol: str) -> Dim:
    return Dim({(symbol,): 1})


def _solve(d: Dim, symbol: str, size: int, symbols: dict[str, int]) -> bool:
    """Solve a*s + b = size for the only unknown symbol. Return False if there is no integer solution; other forms stay unsolved."""
    at_zero, at_one = (d.substitute({**symbols, symbol: v}) for v in (0, 1))
    if isinstance(at_zero, int) and isinstance(at_one, int) and at_one != at_zero:
        value, rest = divmod(size - at_zero, at_one - at_zero)
        if d.substitute({**symbols, symbol: 2}) != 2 * at_one - at_zero:
            return True  # not linear
        if rest or value < 0:
            return False
        symbols[symbol] = value
    return True
