"""The kinds of values in a policy: each a check, a JSON Schema and a way back to plain data."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..env import parse_bytes
from ..families import FAMILIES
from ..targets import DEVICE_KINDS, DeviceId
from ..types import DType
from . import pins
from .expression import MAX_CHARS, Condition
from .record import FieldPath, Kind, Problem, shown
from .vocabulary import ENGINE_ALIASES, ENGINES, KERNELS, PHASES, PRECISIONS, nearest

__all__ = [
    "BOOLEAN",
    "CONDITION",
    "DEVICE",
    "DEVICES",
    "DTYPES",
    "ENGINE",
    "ENGINE_ORDER",
    "KERNEL",
    "KERNEL_LIST",
    "LEVEL",
    "OPS",
    "OPTIONS",
    "PATTERN",
    "PHASE_LIST",
    "PLACES",
    "PRECISION",
    "REASON",
    "SECONDS",
    "SHAPES",
    "SIZE",
    "kernel_preference",
    "kernels_of",
]

MAX_LIST = 64
MAX_TEXT = 500
_NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
_DOTTED = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}(\.[A-Za-z_][A-Za-z0-9_-]{0,63}){1,7}$"


def _same(value: Any) -> Any:
    return value


def one_or_list(values: Sequence[Any]) -> Any:
    """``("a",)`` is written ``a``, anything else as a list."""
    return values[0] if len(values) == 1 else list(values)


# -- scalars


def _boolean(value: object, path: FieldPath) -> bool:
    if not isinstance(value, bool):
        raise Problem(path, "must be true or false", got=shown(value))
    return value


def _integer(low: int, high: int) -> Callable[[object, FieldPath], int]:
    def check(value: object, path: FieldPath) -> int:
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not low <= value <= high:  # type: ignore[operator]
            raise Problem(path, f"must be an integer from {low} to {high}", got=shown(value))
        return int(value)  # type: ignore[call-overload, no-any-return]

    return check


def _seconds(value: object, path: FieldPath) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (math.isfinite(value) and 0 < value <= 1e6):  # type: ignore[operator, arg-type]
        raise Problem(path, "must be a positive number of seconds, at most 1e6", got=shown(value))
    return float(value)  # type: ignore[arg-type]


_SIZE_TEXT = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?( ?([KkMmGg]i?|[Tt]i)?[Bb])?")
_SIZE_MAX = 2**53  # beyond it a JSON number is no longer exact


def _size(value: object, path: FieldPath) -> int:
    if not isinstance(value, str):
        return _integer(0, _SIZE_MAX)(value, path)
    with contextlib.suppress(ValueError):  # parse_bytes: an unknown unit, or far too much
        if _SIZE_TEXT.fullmatch(value) and (size := parse_bytes(value)) <= _SIZE_MAX:
            return size
    raise Problem(path, "must be bytes, such as 33554432 or '32 MiB'", got=shown(value))


def text(value: object, path: FieldPath) -> str:
    """A line of printable text, at most ``MAX_TEXT`` characters."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > MAX_TEXT:
        raise Problem(path, f"must be one line of text, at most {MAX_TEXT} characters", got=shown(value))
    return value


def word(
    known: Iterable[str], what: str, normal: Callable[[str], str] = _same
) -> Callable[[object, FieldPath], str]:
    """A check for one of the known words; ``normal`` maps spellings to the canonical one."""
    words = tuple(known)

    def check(value: object, path: FieldPath) -> str:
        name = normal(value) if isinstance(value, str) else value
        if name not in words:
            do = f"{nearest(value, words)}Known: {', '.join(words)}."
            raise Problem(path, f"no such {what}", got=shown(value), do=do)
        return str(name)

    return check


# NumPy alone knows further spellings ("f4", "i8", ">f2"); a policy is read by people, so only names and short names pass.
_DTYPE_ALIASES = {
    a: DType.of(a).value
    for a in ("f16", "fp16", "half", "bf16", "f32", "fp32", "float", "f64", "fp64", "double")
}
_DTYPE_NAMES = tuple(d.value for d in DType)


def _alias(table: Mapping[str, str]) -> Callable[[str], str]:
    return lambda value: table.get(value, value)


_DEVICE_TEXT = re.compile(rf"({'|'.join(DEVICE_KINDS)})(:[0-9]{{1,4}})?")


def _device(value: object, path: FieldPath) -> str:
    if isinstance(value, DeviceId):
        return str(value)
    if not isinstance(value, str) or not _DEVICE_TEXT.fullmatch(value):
        do = f"{nearest(value, DEVICE_KINDS)}Known: {', '.join(DEVICE_KINDS)}, with :INDEX for further ones."
        raise Problem(path, "no such device", got=shown(value), do=do)
    return str(DeviceId.parse(value))


def _condition(value: object, path: FieldPath) -> str:
    if not isinstance(value, str):
        raise Problem(path, "must be a condition in quotes, such as 'M <= 16'", got=shown(value))
    try:
        return Condition.parse(value).text
    except ValueError as error:
        raise Problem(
            path, str(error), got=shown(value), do="Write for example 'M <= 16 and K % 8 == 0'."
        ) from None


def _pattern(value: object, path: FieldPath) -> str:
    pattern = text(value, path)
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except (re.error, RecursionError, OverflowError) as error:
            raise Problem(path, f"not a regular expression ({error})", got=shown(value)) from None
    return pattern


def kernel_name(value: object, path: FieldPath) -> str:
    """A well-formed kernel name, or a kernel with pins (``pins``). Whether the kernel is known is asked of the whole policy (``check_names``)."""
    if isinstance(value, Mapping):
        return _pinned(value, path)
    if isinstance(value, str) and "[" in value:
        kernel, values = pins.parted(value)
        if not values:
            raise Problem(
                path, "must be a kernel with pins, such as cublasLt[algorithm=21]", got=shown(value)
            )
        return _pinned({"kernel": kernel} | dict[Any, Any](values), path)
    well = isinstance(value, str) and (re.fullmatch(_NAME, value) or re.fullmatch(_DOTTED, value))
    if not well or value == "auto" or str(value).endswith("\n"):
        raise Problem(path, "must be a kernel name, such as cublasLt", got=shown(value))
    return str(value)


def _pinned(value: Mapping[object, object], path: FieldPath) -> str:
    if "kernel" not in value:
        do = "Write for example {kernel: cublasLt, algorithm: 21}."
        raise Problem(path, "a mapping must name its kernel", got=shown(dict(value)), do=do)
    kernel = kernel_name(value["kernel"], (*path, "kernel"))
    values = {str(k): v for k, v in value.items() if k != "kernel"}
    for name, what, do in pins.problems(kernel, values):
        raise Problem((*path, name), what, got=shown(values[name]), do=do)
    return pins.pinned(kernel, values)  # type: ignore[arg-type]


def engine_name(value: object, path: FieldPath) -> str:
    """A well-formed engine name in its canonical spelling. Whether it is known is asked of the whole policy."""
    if not isinstance(value, str) or not re.fullmatch(_NAME, value) or value.endswith("\n"):
        raise Problem(path, "must be an engine's name, such as onnxruntime", got=shown(value))
    return ENGINE_ALIASES.get(value, value)


# -- lists


def several(
    item: Callable[[object, FieldPath], Any], *, least: int = 1
) -> Callable[[object, FieldPath], tuple[Any, ...]]:
    """A check for one item or a list of distinct ones."""

    def check(value: object, path: FieldPath) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            return (item(value, path),)
        if not least <= len(value) <= MAX_LIST:
            raise Problem(path, f"must be one value or a list of {least} to {MAX_LIST}", got=shown(value))
        items = [item(v, (*path, i)) for i, v in enumerate(value)]
        for i, v in enumerate(items):
            if v in items[:i]:
                raise Problem((*path, i), "stands twice in the list", got=shown(v))
        return tuple(items)

    return check


def _list_schema(item: Mapping[str, Any], *, least: int = 1) -> dict[str, Any]:
    many = {"type": "array", "items": item, "minItems": least, "maxItems": MAX_LIST, "uniqueItems": True}
    return {"anyOf": [item, many]}


# -- mappings


def _mapping(
    key: Callable[[object, FieldPath], str], value: Callable[[object, FieldPath], Any], what: str
) -> Callable[[object, FieldPath], MappingProxyType[str, Any]]:
    def check(given: object, path: FieldPath) -> MappingProxyType[str, Any]:
        if not isinstance(given, Mapping) or len(given) > MAX_LIST:
            raise Problem(path, f"must be a mapping of {what}, at most {MAX_LIST} entries", got=shown(given))
        made: dict[str, Any] = {}
        for k, v in given.items():
            name = key(k, (*path, k) if isinstance(k, str) else path)
            if name in made:
                raise Problem((*path, str(k)), f"stands for {name!r}, which is there already")
            made[name] = value(v, (*path, name))
        return MappingProxyType(dict(sorted(made.items())))

    return check


def _extents(value: object, path: FieldPath) -> int | tuple[int, ...]:
    """The size of a symbolic dim, or the whole shape of an input."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _integer(0, 2**40)(value, path)
    if not isinstance(value, list | tuple) or len(value) > 16:
        raise Problem(
            path, "must be a size, or a list of at most 16 sizes such as [1, 3, 224, 224]", got=shown(value)
        )
    return tuple(_integer(0, 2**40)(v, (*path, i)) for i, v in enumerate(value))


_OPTION_MAX = 2**63


def _option(value: object, path: FieldPath) -> str:
    if isinstance(value, bool):
        do = "Quote it as the vendor spells it, for example '1', 'YES' or 'true'."
        raise Problem(path, "must be a text or a number", got=shown(value), do=do)
    if isinstance(value, int | float) and abs(value) < _OPTION_MAX:
        return repr(value)
    if isinstance(value, str) and value.isprintable() and len(value) <= MAX_TEXT:
        return value
    raise Problem(path, "must be a number, or one line of text", got=shown(value))


def _plain_mapping(value: Mapping[str, Any]) -> dict[str, Any]:
    def plain(v: Any) -> Any:
        return dict(v) if isinstance(v, Mapping) else list(v) if isinstance(v, tuple) else v

    return {k: plain(v) for k, v in value.items()}


# -- the kinds

_TEXT_SCHEMA = {"type": "string", "pattern": r"\S", "maxLength": MAX_TEXT}
_DOTTED_SCHEMA = {"type": "string", "pattern": _DOTTED}
_ENGINE_SCHEMA = {"type": "string", "pattern": _NAME, "examples": [*ENGINES, *ENGINE_ALIASES]}
_DEVICE_SCHEMA = {"type": "string", "pattern": rf"^{_DEVICE_TEXT.pattern}$"}
_DTYPE_SCHEMA = {"enum": [*_DTYPE_NAMES, *_DTYPE_ALIASES]}


def kernels_of(families: Iterable[str]) -> tuple[str, ...]:
    """Known kernel names of any of the families, each once."""
    return tuple(dict.fromkeys(k for f in families for k in KERNELS.get(f, ())))


def _kernel_schema(families: Iterable[str]) -> dict[str, Any]:
    known = kernels_of(families)
    return {
        "anyOf": [{"enum": list(known)}, _DOTTED_SCHEMA, *(_pins_schema(k) for k in known if k in pins.PINS)]
    }


def _pins_schema(kernel: str) -> dict[str, Any]:
    values = {
        name: {"type": "integer", "minimum": 0, "maximum": pins.MOST, "description": meaning}
        for name, meaning in pins.PINS[kernel].items()
    }
    return {
        "type": "object",
        "required": ["kernel"],
        "properties": {"kernel": {"const": kernel}, **values},
        "additionalProperties": False,
    }


def _plain_kernels(names: Sequence[str]) -> Any:
    return one_or_list([pins.shown_kernel(n) for n in names])


def kernel_preference(family: str) -> Kind:
    """An ordered preference for one family; ``"auto"`` says nothing, as leaving the field out does."""

    def check(value: object, path: FieldPath) -> tuple[str, ...]:
        return () if value == "auto" or value == () else several(kernel_name)(value, path)

    schema = _list_schema(_kernel_schema([family]))
    return Kind(check, {"anyOf": [{"const": "auto"}, *schema["anyOf"]]}, _plain_kernels)


BOOLEAN = Kind(_boolean, {"type": "boolean"}, _same)
LEVEL = Kind(_integer(0, 3), {"type": "integer", "minimum": 0, "maximum": 3}, _same)
SECONDS = Kind(_seconds, {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6}, _same)
SIZE = Kind(
    _size,
    {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": _SIZE_MAX},
            {"type": "string", "pattern": rf"^{_SIZE_TEXT.pattern}$"},
        ]
    },
    _same,
)
REASON = Kind(text, _TEXT_SCHEMA, _same)
PATTERN = Kind(several(_pattern), _list_schema(_TEXT_SCHEMA), one_or_list)
CONDITION = Kind(_condition, {"type": "string", "minLength": 1, "maxLength": MAX_CHARS}, _same)
DEVICE = Kind(_device, _DEVICE_SCHEMA, _same)
DEVICES = Kind(several(_device, least=0), _list_schema(_DEVICE_SCHEMA, least=0), one_or_list)
DTYPES = Kind(
    several(word(_DTYPE_NAMES, "dtype", _alias(_DTYPE_ALIASES))), _list_schema(_DTYPE_SCHEMA), one_or_list
)
PRECISION = Kind(
    word(PRECISIONS, "precision", _alias(_DTYPE_ALIASES)),
    {"enum": [*PRECISIONS, *(a for a, d in _DTYPE_ALIASES.items() if d in PRECISIONS)]},
    _same,
)
OPS = Kind(several(word(FAMILIES, "op family")), _list_schema({"enum": [*FAMILIES]}), one_or_list)
PHASE_LIST = Kind(several(word(PHASES, "phase")), _list_schema({"enum": [*PHASES]}), one_or_list)
KERNEL = Kind(kernel_name, _kernel_schema(KERNELS), pins.shown_kernel)
KERNEL_LIST = Kind(several(kernel_name), _list_schema(_kernel_schema(KERNELS)), _plain_kernels)
ENGINE = Kind(engine_name, _ENGINE_SCHEMA, _same)
ENGINE_ORDER = Kind(
    _mapping(word(DEVICE_KINDS, "device kind"), several(engine_name), "device kinds to engines"),
    {
        "type": "object",
        "propertyNames": {"enum": [*DEVICE_KINDS]},
        "additionalProperties": _list_schema(_ENGINE_SCHEMA),
    },
    lambda value: {k: one_or_list(v) for k, v in value.items()},
)
SHAPES = Kind(
    _mapping(text, _extents, "symbolic dims to sizes, or input names to shapes"),
    {
        "type": "object",
        "maxProperties": MAX_LIST,
        "propertyNames": _TEXT_SCHEMA,
        "additionalProperties": {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": 2**40},
                {
                    "type": "array",
                    "maxItems": 16,
                    "items": {"type": "integer", "minimum": 0, "maximum": 2**40},
                },
            ]
        },
    },
    _plain_mapping,
)
PLACES = Kind(
    _mapping(text, engine_name, "names or patterns of nodes, ops or op families to engines"),
    {
        "type": "object",
        "maxProperties": MAX_LIST,
        "propertyNames": _TEXT_SCHEMA,
        "additionalProperties": _ENGINE_SCHEMA,
    },
    _plain_mapping,
)
OPTIONS = Kind(
    _mapping(engine_name, _mapping(text, _option, "option names to values"), "engines to options"),
    {
        "type": "object",
        "maxProperties": MAX_LIST,
        "propertyNames": {"pattern": _NAME},
        "additionalProperties": {
            "type": "object",
            "maxProperties": MAX_LIST,
            "propertyNames": _TEXT_SCHEMA,
            "additionalProperties": {
                "anyOf": [
                    {"type": "string", "maxLength": MAX_TEXT},
                    {"type": "number", "exclusiveMinimum": -_OPTION_MAX, "exclusiveMaximum": _OPTION_MAX},
                ]
            },
        },
    },
    _plain_mapping,
)
