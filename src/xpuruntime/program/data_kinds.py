"""Field kinds for numbers that JSON lacks, plain data, tensor specs, and bytes in segments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..types import DType, Layout, TensorSpec
from .kinds import MAX_SIZE, TEXT, Bad, Kind, Reading, SegmentWriter, short
from .segment import Segment

__all__ = ["BINARY", "BLOB", "NUMBER", "PLAIN", "SPEC"]

MAX_DEPTH = 32
_BEYOND = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_BEYOND_SCHEMA = {
    "type": "object",
    "required": ["float"],
    "properties": {"float": {"enum": list(_BEYOND)}},
    "additionalProperties": False,
}


def _float_out(value: float) -> Any:
    if math.isfinite(value):
        return value
    return {"float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}


def _float_in(value: Any) -> float | None:
    """Return inf, -inf or nan for its JSON form, else None."""
    if type(value) is dict and list(value) == ["float"] and type(value["float"]) is str:
        return _BEYOND.get(value["float"])
    return None


def _read_number(value: Any, _: Reading) -> int | float:
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    number = value if type(value) is float else _float_in(value)
    if number is None:
        raise Bad(f"must be a number, got {short(value)}")
    return number


def _write_number(value: Any, _: SegmentWriter) -> Any:
    if type(value) not in (int, float):
        raise Bad(f"must be a number, got {short(value)}")
    return _float_out(value) if type(value) is float else _read_number(value, _NOTHING)


_NOTHING = Reading(())
NUMBER = Kind(_read_number, _write_number, {"anyOf": [{"type": "number"}, _BEYOND_SCHEMA]})


# Plain data: JSON values, and floats that JSON lacks as {"float": ...}. An object whose only key is "float" or "map" is wrapped.


def _plain_out(value: Any, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise Bad(f"is nested more than {MAX_DEPTH} levels deep")
    if type(value) is str:
        return TEXT.read(value, _NOTHING)
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is float:
        return _float_out(value)
    if isinstance(value, list | tuple):
        return [_plain_out(v, depth + 1) for v in value]
    if isinstance(value, Mapping):
        if not all(type(k) is str for k in value):
            raise Bad("keys must be text")
        data = {TEXT.read(k, _NOTHING): _plain_out(v, depth + 1) for k, v in value.items()}
        return {"map": data} if list(data) in (["float"], ["map"]) else data
    raise Bad(f"must be plain data, got {short(value)}")


def _plain_in(value: Any, context: Reading, depth: int = 0) -> Any:
    if depth > MAX_DEPTH + 2:
        raise Bad(f"is nested more than {MAX_DEPTH} levels deep")
    if type(value) is list:
        return [_plain_in(v, context, depth + 1) for v in value]
    if type(value) is str:
        return TEXT.read(value, context)
    if type(value) is not dict:
        return value
    if list(value) == ["float"]:
        number = _float_in(value)
        if number is None:
            raise Bad(f"no such float: {short(value)}")
        return number
    if list(value) == ["map"]:
        value = value["map"]
        if type(value) is not dict:
            raise Bad(f"must be an object, got {short(value)}")
    return {TEXT.read(k, context): _plain_in(v, context, depth + 1) for k, v in value.items()}


PLAIN = Kind(_plain_in, lambda value, _: _plain_out(value), {})
"""Any plain data; tuples are read back as lists."""
_DIMS: Mapping[str, Any] = {
    "type": "array",
    "maxItems": 64,
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_SIZE},
}
_DTYPES = [d.value for d in DType if d is not DType.STRING]


def _dims(value: Any, name: str) -> tuple[int, ...]:
    if (
        type(value) is not list
        or len(value) > 64
        or any(type(d) is not int or not 0 <= d <= MAX_SIZE for d in value)
    ):
        raise Bad(f"must be a list of at most 64 non-negative integers, got {short(value)}", name)
    return tuple(value)


def _read_spec(value: Any, context: Reading) -> TensorSpec:
    if type(value) is not dict or not {"dtype", "shape"} <= set(value):
        raise Bad(f"must be a spec with dtype and shape, got {short(value)}")
    unknown = sorted(set(value) - {"dtype", "shape", "name", "order", "alloc"})
    if unknown and not context.lenient:
        raise Bad(f"has an unknown field {unknown[0]!r}")
    if value["dtype"] not in _DTYPES:
        raise Bad(f"no such dtype: {short(value['dtype'])}", "dtype")
    shape, layout = _dims(value["shape"], "shape"), None
    if ("order" in value) != ("alloc" in value):
        raise Bad("must have both order and alloc, or neither")
    if "order" in value:
        order, alloc = _dims(value["order"], "order"), _dims(value["alloc"], "alloc")
        if len(alloc) != len(shape) or any(a < s for a, s in zip(alloc, shape, strict=True)):
            raise Bad(f"alloc {list(alloc)} is smaller than the shape {list(shape)}", "alloc")
        if sorted(order) != list(range(len(alloc))):
            raise Bad(f"order must name each dim of {list(shape)} once", "order")
        layout = Layout(order, alloc)
    spec = TensorSpec(shape, DType(value["dtype"]), TEXT.read(value.get("name", ""), context), layout)
    extents = shape if layout is None else layout.alloc
    if math.prod(extents) > MAX_SIZE:
        raise Bad(f"is too large: {spec}")
    return spec


def _write_spec(spec: TensorSpec, _: SegmentWriter) -> dict[str, Any]:
    if spec.size_bytes is None:
        raise Bad(f"has no size: {spec}")
    data: dict[str, Any] = {
        "dtype": spec.dtype.value,
        "shape": [int(d) for d in spec.shape if isinstance(d, int)],
    }
    if spec.name:
        data["name"] = spec.name
    if spec.layout is not None:
        data |= {"order": list(spec.layout.order), "alloc": list(spec.layout.alloc)}
    _read_spec(data, _NOTHING)  # never write what the reader refuses
    return data


SPEC = Kind(
    _read_spec,
    _write_spec,
    {
        "type": "object",
        "required": ["dtype", "shape"],
        "properties": {
            "dtype": {"enum": _DTYPES},
            "shape": _DIMS,
            "name": TEXT.schema,
            "order": _DIMS,
            "alloc": _DIMS,
        },
        "dependentRequired": {"order": ["alloc"], "alloc": ["order"]},
        "additionalProperties": False,
    },
)


def _segment(value: Any, context: Reading) -> Segment:
    if type(value) is not int or not 0 <= value < len(context.segments):
        raise Bad(f"no such segment: {short(value)} of {len(context.segments)}")
    context.used.add(value)
    return context.segments[value]


_INDEX = {"type": "integer", "minimum": 0, "description": "index of a segment"}
BLOB = Kind(_segment, lambda value, writing: writing.add(value), _INDEX)
"""Bytes that stay in the file until they are used."""
BINARY = Kind(
    lambda value, context: bytes(_segment(value, context)), lambda value, writing: writing.add(value), _INDEX
)
"""Bytes that are checked and copied when the file is read."""
