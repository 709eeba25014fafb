"""Attribute values of nodes, in one canonical, immutable form.

An attribute is None, bool, int, float, str, DType, Dim, Const (a small tensor), Body (a graph), or a tuple or a map of those. Every value has
exactly one representation, so nodes compare by value: NaN equals NaN, and 1 differs from 1.0 and from True.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..types import Dim, DType, TensorSpec

__all__ = ["MAX_CONST_ELEMENTS", "NAN", "AttrValue", "Attrs", "Body", "Const", "canonical", "coerce"]

MAX_CONST_ELEMENTS = 4096
"""Maximum number of elements of a constant in the graph; larger ones are weights."""
MAX_DEPTH = 32
MAX_NESTED = 12
"""Maximum nesting of graphs in attributes: bodies of control flow in bodies."""
NAN = math.nan  # attributes hold this one NaN object, so that containers compare equal by identity

AttrValue: TypeAlias = (
    "bool | int | float | str | DType | Dim | Const | Body | tuple[AttrValue, ...] | Attrs | None"
)


class Body:
    """A graph as an attribute (the body of ``fused``). Base class of ``Graph``, so that this module does not import it."""

    __slots__ = ()

    @property
    def symbols(self) -> frozenset[str]:
        """Every symbol in the graph."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise IrError if the graph is not valid."""
        raise NotImplementedError


class Attrs(Mapping[str, Any]):
    """An immutable map from names to attribute values. Maps are equal if all values have the same type and value."""

    __slots__ = ("_key", "_values")

    def __init__(self, values: Mapping[str, AttrValue] | None = None) -> None:
        self._values: dict[str, Any] = dict(values or {})
        self._key: str | None = None

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def key(self) -> str:
        """Return a text that is equal if and only if the values are."""
        if self._key is None:
            self._key = repr(sorted(self._values.items()))
        return self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attrs) and (self._values is other._values or self.key() == other.key())

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        return f"Attrs({dict(sorted(self._values.items()))!r})"

    def replace(self, **values: Any) -> Attrs:
        """Return a copy with some values changed and canonicalized."""
        return Attrs({**self._values, **{k: canonical(v) for k, v in values.items()}})


class Const:
    """A small dense tensor: dtype, static shape, and its elements as bytes (strings as a tuple of str)."""

    __slots__ = ("_data", "dtype", "shape")

    def __init__(self, array: NDArray[Any] | Any, dtype: DType | None = None) -> None:
        """Create a constant from anything that ``np.asarray`` takes. Raises ValueError for over 4096 elements or no tensor dtype."""
        values = np.asarray(array) if dtype is None else np.asarray(array, dtype=dtype.numpy)
        self.dtype = DType.of(values.dtype) if dtype is None else dtype
        if values.size > MAX_CONST_ELEMENTS:
            raise ValueError(
                f"a constant in the graph has at most {MAX_CONST_ELEMENTS} elements, got {values.size}"
            )
        self.shape: tuple[int, ...] = values.shape
        if self.dtype is DType.STRING:
            texts = [
                v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else v
                for v in values.ravel().tolist()
            ]
            if not all(isinstance(t, str) for t in texts):
                raise ValueError("a constant of strings has elements that are not strings")
            self._data: bytes | tuple[str, ...] = tuple(texts)
        else:
            self._data = np.ascontiguousarray(values).tobytes()

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype."""
        return TensorSpec(self.shape, self.dtype)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def numpy(self) -> NDArray[Any]:
        """Return a fresh array of ``shape`` and ``dtype.numpy``."""
        if isinstance(self._data, tuple):
            return np.array(self._data, dtype=object).reshape(self.shape)
        return np.frombuffer(self._data, dtype=self.dtype.numpy).reshape(self.shape).copy()

    def item(self) -> Any:
        """Return the only element as a Python value. Raises ValueError if there are several or none."""
        if self.size != 1:
            raise ValueError(f"{self.spec} has {self.size} elements, not one")
        return (
            self.numpy().reshape(-1)[0].item()
            if self.dtype is not DType.STRING
            else self.numpy().reshape(-1)[0]
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[object, ...]:
        return (self.dtype, self.shape, self._data)

    def __repr__(self) -> str:
        return f"Const({self.dtype.value}, {self.shape}, {self._data!r})"


def canonical(value: Any, depth: int = 0) -> AttrValue:
    """Return the canonical form of a value. Raises ValueError for a value that an attribute cannot hold."""
    if depth > MAX_DEPTH:
        raise ValueError(f"attributes are nested at most {MAX_DEPTH} levels deep")
    match value:
        case None | bool() | DType() | Dim() | Const() | Body() | Attrs():
            return value
        case str():
            return str(value)
        case np.bool_():
            return bool(value)
        case int() | np.integer():
            return _int(int(value))
        case float() | np.floating():
            return NAN if math.isnan(value) else float(value)
        case list() | tuple():
            return tuple(canonical(v, depth + 1) for v in value)
        case np.ndarray():
            return Const(value)
        case Mapping():
            if not all(isinstance(k, str) for k in value):
                raise ValueError("a map's keys must be strings")
            return Attrs({k: canonical(v, depth + 1) for k, v in value.items()})
        case _:
            raise ValueError(f"an attribute cannot hold a {type(value).__name__}")


def _int(value: int) -> int:
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"an integer of {value.bit_length()} bits; attributes have 64")
    return value


def coerce(kind: str, value: Any) -> AttrValue:
    """Convert a value to the kind of an op's schema: ``int`` ``ints`` ``float`` ``dim`` ``dtype`` ``a|b`` ..., ``?`` allows None.

    Integers convert to floats and dims, and one axis to a list of axes; nothing else is converted. Raises ValueError.
    """
    if kind.endswith("?"):
        return None if value is None else coerce(kind[:-1], value)
    value = canonical(value)
    if "|" in kind:
        if isinstance(value, str) and value in kind.split("|"):
            return str(value)
        raise ValueError(f"must be one of {', '.join(kind.split('|'))}")
    if kind in _PLURALS:
        if kind.endswith("axes") and isinstance(value, int) and not isinstance(value, bool):
            return (value,)
        if not isinstance(value, tuple):
            raise ValueError("must be a list")
        return tuple(_single(_PLURALS[kind], v) for v in value)
    return _single(kind, value)


_PLURALS = {
    "ints": "int",
    "floats": "float",
    "strs": "str",
    "dims": "dim",
    "bools": "bool",
    "axes": "int",
    "newaxes": "int",
}


def _single(kind: str, value: AttrValue) -> AttrValue:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    match kind:
        case "any":
            return value
        case "bool" if isinstance(value, bool):
            return value
        case "int" | "axis" if is_int:
            return value
        case "float" if isinstance(value, float):
            return value
        case "float" if isinstance(value, int) and is_int:
            return float(value)
        case "str" if isinstance(value, str) and not isinstance(value, DType):
            return value
        case "dim" if is_int or isinstance(value, Dim):
            return value
        case "dtype" if isinstance(value, str):  # DType is a subclass of str, and its name is a str, too
            return DType.of(value)
        case "scalar" if isinstance(value, bool | int | float):
            return value
        case "number" if isinstance(value, Dim | float) or is_int:
            return value
        case "const" if isinstance(value, Const):
            return value
        case "const" if isinstance(value, bool | int | float | str | tuple) and not isinstance(value, DType):
            return Const(np.asarray(value))
        case "map" if isinstance(value, Attrs):
            return value
        case "graph" if isinstance(value, Body):
            return value
        case _:
            pass
    raise ValueError(f"must be {'an' if kind[0] in 'aeio' else 'a'} {kind}")
