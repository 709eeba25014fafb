"""layer_windows: the attention window of each layer of a decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ModelError
from ..families.family import DecoderFamily

__all__ = ["layer_windows"]

_SLIDING, _FULL = "sliding_attention", "full_attention"
_PERIOD = ("sliding_window_pattern", "_sliding_window_pattern")

_HAS_WINDOW: Mapping[str, Callable[[int, int], bool]] = {
    "all": lambda i, n: True,
    "alternate": lambda i, n: i % 2 == 0,
    "alternate first": lambda i, n: i % 2 == 0 and i < n,
    "periodic": lambda i, n: (i + 1) % n != 0,
    "last": lambda i, n: i >= n,
}
"""Pattern of a family -> whether layer i has the window. n: the period, or ``max_window_layers``."""


def layer_windows(row: DecoderFamily, facts: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Return the keys that a query of each layer may see, 0 for all. Raises ModelError."""
    if row.windows == "none":
        return (0,) * layers
    types = facts.get("layer_types")
    window = facts.get("sliding_window") if facts.get("use_sliding_window", True) else None
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise _wrong("sliding_window", window, "a whole number from 1")
    if types is not None:
        if not isinstance(types, list | tuple) or len(types) != layers or not {*types} <= {_SLIDING, _FULL}:
            raise _wrong("layer_types", types, f"{layers} times {_SLIDING} or {_FULL}")
        sliding = [t == _SLIDING for t in types]
        if any(sliding) and window is None:
            raise _wrong("sliding_window", window, f"a whole number, which a layer of {_SLIDING} needs")
    elif window is None:
        sliding = [False] * layers
    else:
        sliding = [_HAS_WINDOW[row.windows](i, _count(row, facts)) for i in range(layers)]
    return tuple(int(window) if s and window is not None else 0 for s in sliding)


def _count(row: DecoderFamily, facts: Mapping[str, Any]) -> int:
    names = {"periodic": _PERIOD, **dict.fromkeys(("last", "alternate first"), ("max_window_layers",))}.get(
        row.windows, ()
    )
    name = next((n for n in names if facts.get(n) is not None), None)
    value = facts[name] if name else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < (row.windows == "periodic"):
        raise _wrong(str(name), value, "a count of layers")
    return value


def _wrong(name: str, value: Any, requirement: str) -> ModelError:
    return ModelError(
        "language model",
        f"has a {name} that is not {requirement}",
        got=repr(value)[:80],
        do="Fetch the checkpoint's config.json again.",
    )
