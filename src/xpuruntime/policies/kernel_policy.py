"""KernelPolicy: demands on the kernels that compute ops."""

# ruff: noqa: RUF009  - of_kind makes a dataclass field, as dataclasses.field does
from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..families import FAMILIES
from .fields import kinds
from .fields.record import (
    FieldKind,
    FieldPath,
    Names,
    Problem,
    build,
    dump,
    of_kind,
    record,
    schema_of,
    shown,
)
from .files.file_form import FileForm
from .rule import ACTIVATIONS_MEANING, Rule, settle_activations
from .vocabulary import INTEGER_KERNELS, KERNELS, WeightWords

__all__ = ["KernelPolicy"]

MAX_RULES = 1000
MAX_LAYERS = 64


def _rules(value: object, path: FieldPath) -> tuple[Rule, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_RULES:
        raise Problem(path, f"must be a list of at most {MAX_RULES} rules", got=shown(value))
    return tuple(v if isinstance(v, Rule) else build(Rule, v, (*path, i)) for i, v in enumerate(value))


def _layers(value: object, path: FieldPath) -> tuple[KernelPolicy, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_LAYERS:
        raise Problem(path, f"must be a list of at most {MAX_LAYERS} kernel policies", got=shown(value))
    layers = tuple(
        v if isinstance(v, KernelPolicy) else build(KernelPolicy, v, (*path, i)) for i, v in enumerate(value)
    )
    for i, layer in enumerate(layers):
        if layer.under:
            raise Problem(
                (*path, i, "under"),
                "a lower layer cannot have layers of its own",
                do="List all layers one after another.",
            )
    return layers


_NEEDS_WEIGHTS = {
    "dependentRequired": {"activations": ["weights"]},
    "if": {"required": ["activations"], "properties": {"activations": {"const": "int8"}}},
    "then": {"properties": {"weights": {"enum": [*INTEGER_KERNELS]}}},
}
"""The constraints between ``activations`` and ``weights``, as a part of a JSON Schema."""


def layer_schema() -> dict[str, Any]:
    """Return the JSON Schema of a KernelPolicy, including the constraints between its fields."""
    return {**schema_of(KernelPolicy), **_NEEDS_WEIGHTS}


def rule_schema() -> dict[str, Any]:
    """Return the JSON Schema of a rule, including the constraints between its demands."""
    return {
        **schema_of(Rule),
        "anyOf": [
            {"required": [key]}
            for key in ("use", "prefer", "forbid", "workspace_bytes", "deterministic", "weights")
        ],
        "not": {"anyOf": [{"required": ["use", "prefer"]}, {"required": ["use", "weights"]}]},
        **_NEEDS_WEIGHTS,
    }


_RULES = FieldKind(
    _rules,
    {"type": "array", "maxItems": MAX_RULES, "items": {"$ref": "#/$defs/rule"}},
    lambda rules: [dump(r) for r in rules],
)
_UNDER = FieldKind(
    _layers,
    {"type": "array", "maxItems": MAX_LAYERS, "items": {"$ref": "#/$defs/kernel_layer"}},
    lambda layers: [dump(p) for p in layers],
)


def _preference(family: str) -> Any:
    return of_kind(
        kinds.kernel_preference(family), f"{FAMILIES[family].meaning}: kernels to try first", default=()
    )


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPolicy(FileForm):
    """Demands on kernels, as data: preferences per op family, and rules.

    ``KernelPolicy(matmul="cublasLt")`` prefers a kernel; a list is an order of preference; ``"auto"`` is the same as leaving the field
    out. ``rules`` can also force and forbid, and match names, dtypes, shapes and phases. An empty policy leaves every choice to the
    layers below, down to the built-in default. Values are frozen and picklable. Raises PolicyError.

    ``weights="int8"`` stores the constant weights of linear layers in fewer bits. The highest layer that has it decides; in a layer,
    rules come before it. ``activations="int8"`` with weights in int8 or 4 bits, or stored ones, also rounds the inputs of these layers to 8 bits
    and multiplies integers. It belongs to the ``weights`` that it is written with: ``weights`` without it means ``activations="model"``.

    ``batch_invariant=True`` demands kernels whose result for a row (a sample, a token) has the same bits whatever the other rows are. The highest
    layer that has it decides.

    Layers: ``a.merge(b)`` puts ``b`` over ``a`` and keeps both as layers (``under``). A demand of ``b`` wins over the same demand of
    ``a``, while conflicting demands of one layer are an error. Merging is associative; the empty policy is its identity.
    """

    _part: ClassVar[Literal["kernel"]] = "kernel"

    matmul: Names = _preference("matmul")
    conv: Names = _preference("conv")
    attention: Names = _preference("attention")
    norm: Names = _preference("norm")
    softmax: Names = _preference("softmax")
    activation: Names = _preference("activation")
    elementwise: Names = _preference("elementwise")
    reduce: Names = _preference("reduce")
    pool: Names = _preference("pool")
    embedding: Names = _preference("embedding")
    create: Names = _preference("create")
    data_movement: Names = _preference("data_movement")
    search: Names = _preference("search")
    rope: Names = _preference("rope")
    quantize: Names = _preference("quantize")
    resize: Names = _preference("resize")
    rnn: Names = _preference("rnn")
    random: Names = _preference("random")
    signal: Names = _preference("signal")
    control: Names = _preference("control")
    other: Names = _preference("other")
    weights: str | None = of_kind(
        kinds.WEIGHTS_KIND,
        "type that constant weights of linear layers are stored in, with float arithmetic unless activations is int8; model: the model's own",
    )
    activations: str | None = of_kind(kinds.ACTIVATIONS_KIND, ACTIVATIONS_MEANING)
    batch_invariant: bool | None = of_kind(
        kinds.BOOLEAN,
        "true: only kernels whose result for a row has the same bits in every batch",
    )
    rules: Sequence[Rule] = of_kind(_RULES, "rules; earlier rules' preferences come first", default=())
    under: Sequence[KernelPolicy] = of_kind(
        _UNDER, "lower layers, highest first, as merging creates them", default=()
    )
    origin: str = dataclasses.field(default="", compare=False)

    def _check_together(self) -> None:
        settle_activations(self, "policy")

    @property
    def weight_words(self) -> WeightWords | None:
        """Return this layer's demand on weights, without its rules and lower layers; None if there is none."""
        return None if self.weights is None else WeightWords(self.weights, self.activations)

    @property
    def layers(self) -> tuple[KernelPolicy, ...]:
        """Return this layer alone, then each lower layer, without empty ones."""
        top = dataclasses.replace(self, under=())
        return tuple(layer for layer in (top, *self.under) if layer != _EMPTY)

    def without_origins(self) -> KernelPolicy:
        """Return the same demands without the origins of layers, so that what is made of equal demands is equal, texts included."""
        under = tuple(dataclasses.replace(layer, origin="") for layer in self.under)
        return dataclasses.replace(self, under=under, origin="")

    def preferences(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Return (family, kernels in order) for each plain keyword of this layer."""
        for family in KERNELS:
            if names := getattr(self, family):
                yield family, names

    def keyword_words(self) -> WeightWords | None:
        """Return the demand on weights of the highest layer that has one, without rules; None if there is none."""
        return next((layer.weight_words for layer in self.layers if layer.weight_words), None)

    def stored_words(self) -> WeightWords | None:
        """Return the first demand for weights in fewer bits, of the highest layer or of any rule; None if there is none."""
        return next((words for words in self._all_words() if words.kernels), None)

    def names_weights(self, word: str) -> bool:
        """Return True if ``weights`` of the highest layer, or of any rule, is this word."""
        return any(words.weights == word for words in self._all_words())

    def _all_words(self) -> Iterator[WeightWords]:
        rules = (rule.weight_words for layer in self.layers for rule in layer.rules)
        return (words for words in (self.keyword_words(), *rules) if words)

    def demands_batch_invariance(self) -> bool:
        """Return True if the highest layer that has ``batch_invariant`` demands it."""
        return bool(next((x.batch_invariant for x in self.layers if x.batch_invariant is not None), False))

    def merge(self, other: KernelPolicy) -> KernelPolicy:
        """Merge ``other`` over this policy: if both make the same demand, ``other`` wins."""
        layers = tuple(dict.fromkeys((*other.layers, *self.layers)))
        if not layers:
            return _EMPTY
        return dataclasses.replace(layers[0], under=layers[1:])


_EMPTY = KernelPolicy()
assert set(KERNELS) <= {f.name for f in dataclasses.fields(KernelPolicy)}
