"""The kinds of values in a policy, each with a check, a JSON Schema and a conversion to plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...families import FAMILIES
from ...targets import DEVICE_KINDS
from ..vocabulary import (
    ACTIVATIONS,
    AUTOCAST_FAMILIES,
    AUTOCAST_PRECISIONS,
    ENGINE_ALIASES,
    ENGINES,
    KERNELS,
    KERNELS_NOT_IMPLEMENTED,
    KV_CACHES,
    PARALLEL,
    PHASES,
    PRECISIONS,
    PRECISIONS_NOT_IMPLEMENTED,
    SELF_CHECKS,
    TRANSFERS,
    TUNE,
    TUNE_SECONDS,
    WEIGHTS,
)
from . import checks, pins
from .expression import MAX_CHARS
from .record import FieldKind, FieldPath

__all__ = [
    "ACTIVATIONS_KIND",
    "AUTOCAST",
    "BOOLEAN",
    "CONDITION",
    "DEVICE",
    "DEVICES",
    "DTYPES",
    "ENGINE",
    "ENGINE_ORDER",
    "KERNEL",
    "KERNEL_LIST",
    "KV_CACHE_KIND",
    "LEVEL",
    "LIMIT",
    "OPS",
    "OPTIONS",
    "PARALLEL_KIND",
    "PATTERN",
    "PHASE_LIST",
    "PLACES",
    "PRECISION",
    "REASON",
    "SECONDS",
    "SELF_CHECK",
    "SHAPES",
    "SIZE",
    "TRANSFER_LIMITS",
    "TUNE_KIND",
    "WEIGHTS_KIND",
    "kernel_preference",
    "kernels_of",
    "without_kernel",
]


def _same(value: Any) -> Any:
    return value


def one_or_list(values: Sequence[Any]) -> Any:
    """Return the only item of a tuple, else the items as a list."""
    return values[0] if len(values) == 1 else list(values)


def _list_schema(item: Mapping[str, Any], *, min_items: int = 1) -> dict[str, Any]:
    list_schema = {
        "type": "array",
        "items": item,
        "minItems": min_items,
        "maxItems": checks.MAX_LIST,
        "uniqueItems": True,
    }
    return {"anyOf": [item, list_schema]}


def _plain_mapping(value: Mapping[str, Any]) -> dict[str, Any]:
    def plain(v: Any) -> Any:
        return dict(v) if isinstance(v, Mapping) else list(v) if isinstance(v, tuple) else v

    return {k: plain(v) for k, v in value.items()}


_TEXT_SCHEMA = {"type": "string", "pattern": r"\S", "maxLength": checks.MAX_TEXT}
_DOTTED_SCHEMA = {"type": "string", "pattern": checks.DOTTED}
_PLACE_SCHEMA = {
    "type": "string",
    "pattern": f"{checks.NAME.removesuffix('$')}( on [A-Za-z][A-Za-z0-9-]*(:[0-9]+)?)?$",
    "examples": [*ENGINES, *ENGINE_ALIASES, "openvino on npu"],
}
_ENGINE_SCHEMA = {"type": "string", "pattern": checks.NAME, "examples": [*ENGINES, *ENGINE_ALIASES]}
_DEVICE_SCHEMA = {"type": "string", "pattern": rf"^{checks.DEVICE_TEXT.pattern}$"}
_DTYPE_SCHEMA = {"enum": [*checks.DTYPE_NAMES, *checks.DTYPE_ALIASES]}


def kernels_of(families: Iterable[str]) -> tuple[str, ...]:
    """Return the kernel names of the families, each once."""
    return tuple(dict.fromkeys(k for f in families for k in KERNELS.get(f, ())))


def without_kernel(families: Iterable[str]) -> tuple[str, ...]:
    """Return the families' kernel names that this release does not implement, each once."""
    families = tuple(families)
    names = (k for f in families for k in KERNELS_NOT_IMPLEMENTED.get(f, ()))
    return tuple(dict.fromkeys(k for k in names if k not in kernels_of(families)))


def _kernel_schema(families: Iterable[str]) -> dict[str, Any]:
    families = tuple(families)
    names = kernels_of(families)
    return {
        "anyOf": [
            {"enum": [*names, *without_kernel(families)]},
            _DOTTED_SCHEMA,
            *(_pins_schema(k) for k in names if k in pins.PINS),
        ]
    }


def _pins_schema(kernel: str) -> dict[str, Any]:
    values = {
        name: {"type": "integer", "minimum": 0, "maximum": pins.MAX_PIN, "description": meaning}
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


def kernel_preference(family: str) -> FieldKind:
    """Return the kind of an ordered preference for one family; ``"auto"`` is the same as leaving the field out."""

    def check(value: object, path: FieldPath) -> tuple[str, ...]:
        return () if value == "auto" or value == () else checks.several(checks.kernel_name)(value, path)

    schema = _list_schema(_kernel_schema([family]))
    return FieldKind(check, {"anyOf": [{"const": "auto"}, *schema["anyOf"]]}, _plain_kernels)


BOOLEAN = FieldKind(checks.boolean, {"type": "boolean"}, _same)
LEVEL = FieldKind(checks.integer(0, 3), {"type": "integer", "minimum": 0, "maximum": 3}, _same)
SECONDS = FieldKind(checks.seconds, {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6}, _same)
SELF_CHECK = FieldKind(checks.word(SELF_CHECKS, "word of self_check"), {"enum": [*SELF_CHECKS]}, _same)
KV_CACHE_KIND = FieldKind(checks.word(KV_CACHES, "type of a KV cache"), {"enum": [*KV_CACHES]}, _same)
ACTIVATIONS_KIND = FieldKind(checks.word(ACTIVATIONS, "type of activations"), {"enum": [*ACTIVATIONS]}, _same)
WEIGHTS_KIND = FieldKind(checks.word(WEIGHTS, "type of weights"), {"enum": [*WEIGHTS]}, _same)
SIZE = FieldKind(
    checks.size,
    {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": checks.SIZE_MAX},
            {"type": "string", "pattern": rf"^{checks.SIZE_TEXT.pattern}$"},
        ]
    },
    _same,
)
LIMIT = FieldKind(
    checks.limit,
    {
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": checks.SIZE_MAX},
            {"type": "string", "pattern": rf"^(?=[0.]*[1-9]){checks.SIZE_TEXT.pattern}$"},
        ]
    },
    _same,
)
REASON = FieldKind(checks.text, _TEXT_SCHEMA, _same)
PATTERN = FieldKind(checks.several(checks.pattern), _list_schema(_TEXT_SCHEMA), one_or_list)
CONDITION = FieldKind(checks.condition, {"type": "string", "minLength": 1, "maxLength": MAX_CHARS}, _same)
DEVICE = FieldKind(checks.device, _DEVICE_SCHEMA, _same)
DEVICES = FieldKind(
    checks.several(checks.device, min_items=0), _list_schema(_DEVICE_SCHEMA, min_items=0), one_or_list
)
DTYPES = FieldKind(
    checks.several(checks.dtype_word(checks.DTYPE_NAMES, "dtype")), _list_schema(_DTYPE_SCHEMA), one_or_list
)
PRECISION = FieldKind(
    checks.dtype_word(PRECISIONS, "precision", PRECISIONS_NOT_IMPLEMENTED),
    {"enum": [*PRECISIONS, *(a for a, d in checks.DTYPE_ALIASES.items() if d in PRECISIONS)]},
    _same,
)
OPS = FieldKind(
    checks.several(checks.word(FAMILIES, "op family")), _list_schema({"enum": [*FAMILIES]}), one_or_list
)
PHASE_LIST = FieldKind(
    checks.several(checks.word(list(PHASES), "phase")),
    _list_schema({"enum": list(PHASES)}),
    one_or_list,
)
KERNEL = FieldKind(checks.kernel_name, _kernel_schema(KERNELS), pins.shown_kernel)
KERNEL_LIST = FieldKind(
    checks.several(checks.kernel_name), _list_schema(_kernel_schema(KERNELS)), _plain_kernels
)
ENGINE = FieldKind(checks.engine_name, _ENGINE_SCHEMA, _same)
ENGINE_ORDER = FieldKind(
    checks.mapping(
        checks.word(DEVICE_KINDS, "device kind"),
        checks.several(checks.engine_name),
        "device kinds to engines",
    ),
    {
        "type": "object",
        "propertyNames": {"enum": [*DEVICE_KINDS]},
        "additionalProperties": _list_schema(_ENGINE_SCHEMA),
    },
    lambda value: {k: one_or_list(v) for k, v in value.items()},
)
AUTOCAST = FieldKind(
    checks.mapping(
        checks.word(AUTOCAST_FAMILIES, "op family of autocast"),
        checks.word(list(AUTOCAST_PRECISIONS), "precision of autocast"),
        "op families to precisions",
    ),
    {
        "type": "object",
        "propertyNames": {"enum": [*AUTOCAST_FAMILIES]},
        "additionalProperties": {"enum": [*AUTOCAST_PRECISIONS]},
    },
    _plain_mapping,
)
TRANSFER_LIMITS = FieldKind(
    checks.words_by_key(TRANSFERS, "transfer", "kinds of transfers to limits"),
    {
        "type": "object",
        "properties": {name: {"enum": [*words]} for name, words in TRANSFERS.items()},
        "additionalProperties": False,
    },
    _plain_mapping,
)
PARALLEL_KIND = FieldKind(
    checks.mapping(
        checks.word(list(PARALLEL), "way to divide a model"),
        checks.integer(1, 64),
        "ways to divide a model to devices",
    ),
    {
        "type": "object",
        "properties": {name: {"type": "integer", "minimum": 1, "maximum": 64} for name in PARALLEL},
        "additionalProperties": False,
    },
    _plain_mapping,
)
TUNE_KIND = FieldKind(
    checks.word_or_mapping(
        checks.mapping(checks.word(TUNE, "moment of measuring"), checks.bound, "moments to seconds"),
        dict.fromkeys(TUNE, TUNE_SECONDS),
        "moment of measuring",
    ),
    {
        "anyOf": [
            {"enum": [*TUNE]},
            {
                "type": "object",
                "properties": {name: {"type": "number", "minimum": 0, "maximum": 1e6} for name in TUNE},
                "additionalProperties": False,
            },
        ]
    },
    _plain_mapping,
)
SHAPES = FieldKind(
    checks.mapping(checks.text, checks.extents, "symbolic dims to sizes, or input names to shapes"),
    {
        "type": "object",
        "maxProperties": checks.MAX_LIST,
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
PLACES = FieldKind(
    checks.mapping(
        checks.text, checks.engine_place, "names or patterns of nodes, ops or op families to engines"
    ),
    {
        "type": "object",
        "maxProperties": checks.MAX_LIST,
        "propertyNames": _TEXT_SCHEMA,
        "additionalProperties": _PLACE_SCHEMA,
    },
    _plain_mapping,
)
OPTIONS = FieldKind(
    checks.mapping(
        checks.engine_name,
        checks.mapping(checks.text, checks.option, "option names to values"),
        "engines to options",
    ),
    {
        "type": "object",
        "maxProperties": checks.MAX_LIST,
        "propertyNames": {"pattern": checks.NAME},
        "additionalProperties": {
            "type": "object",
            "maxProperties": checks.MAX_LIST,
            "propertyNames": _TEXT_SCHEMA,
            "additionalProperties": {
                "anyOf": [
                    {"type": "string", "maxLength": checks.MAX_TEXT},
                    {
                        "type": "number",
                        "exclusiveMinimum": -checks.OPTION_MAX,
                        "exclusiveMaximum": checks.OPTION_MAX,
                    },
                ]
            },
        },
    },
    _plain_mapping,
)
