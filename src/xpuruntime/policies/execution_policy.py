"""ExecutionPolicy: where and in which precision a model runs, and what may happen when that cannot be had."""

# ruff: noqa: RUF009  - of_kind makes a dataclass field, as dataclasses.field does
from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from . import kinds
from .file_form import FileForm
from .record import Names, fields_of, of_kind, record

__all__ = ["ExecutionPolicy"]


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPolicy(FileForm):
    """Demands on engines and devices, as data. Every field that is not given is unset: a lower layer decides it.

    What is named here (``target``, ``engine``, ``precision``) is honoured or is an error; ``allow_fallback`` is the only way to let
    something else happen. Values are frozen and picklable. Raises PolicyError.

    >>> ExecutionPolicy(target="npu", precision="int8", static_shape=True, allow_fallback="cpu")
    """

    _part: ClassVar[Literal["execution"]] = "execution"

    target: str | None = of_kind(kinds.DEVICE, "device: cpu, cuda:0, gpu, npu, metal, webgpu or auto")
    engine: str | None = of_kind(
        kinds.ENGINE, "engine, or auto: measure the candidates and take the fastest right one"
    )
    precision: str | None = of_kind(kinds.PRECISION, "precision to compute in; model is the model's own")
    static_shape: bool | None = of_kind(kinds.BOOLEAN, "compile for fixed shapes only")
    fixed_shapes: Mapping[str, int | Sequence[int]] | None = of_kind(
        kinds.SHAPES, "sizes of dims that the model leaves open: {batch: 1} by symbol, {x: [1, 3]} by input"
    )
    allow_fallback: Names | None = of_kind(
        kinds.DEVICES, "devices to go to, in this order, when the target cannot be had; [] is none"
    )
    optimization_level: int | None = of_kind(
        kinds.LEVEL, "0 none, 1 basic, 2 extended, 3 all that keeps results right"
    )
    caching: bool | None = of_kind(kinds.BOOLEAN, "keep compiled artifacts in the store")
    compile_timeout_s: float | None = of_kind(kinds.SECONDS, "longest time to compile, in seconds")
    run_timeout_s: float | None = of_kind(kinds.SECONDS, "longest time of one run, in seconds")
    engine_options: Mapping[str, Mapping[str, str | int | float]] | None = of_kind(
        kinds.OPTIONS, "options by the vendor's own names, by engine"
    )
    engine_order: Mapping[str, Names] | None = of_kind(
        kinds.ENGINE_ORDER, "engines to try, in this order, where none is named, by device kind"
    )
    place: Mapping[str, str] | None = of_kind(
        kinds.PLACES,
        "engines for parts of the model: {conv: native, /head/*: onnxruntime}, by node, op or op family; also torch and interpreter",
    )
    self_check: str | None = of_kind(
        kinds.SELF_CHECK,
        "compare a session with an independent reference: first_open (once per model, device and versions), always or off",
    )
    strict: bool | None = of_kind(
        kinds.BOOLEAN, "an error where an engine falls back inside itself or evidence differs"
    )

    def options_for(self, engine: str) -> Mapping[str, str]:
        """Return the vendor options of one engine; empty without any."""
        return {k: str(v) for k, v in (self.engine_options or {}).get(engine, {}).items()}

    def order_for(self, device_kind: str) -> tuple[str, ...]:
        """Engines to try on a kind of device; empty where the policy says nothing."""
        return tuple((self.engine_order or {}).get(device_kind, ()))

    def merge(self, other: ExecutionPolicy) -> ExecutionPolicy:
        """``other`` laid over this policy, field by field; mappings merge entry by entry, options option by option.
        Associative; the empty policy is the identity.
        """
        merged = {name: _over(getattr(self, name), getattr(other, name)) for name in fields_of(type(self))}
        return ExecutionPolicy(**merged)

    def set_fields(self) -> dict[str, Any]:
        """Only the fields that are set, by name."""
        return {n: v for n in fields_of(type(self)) if (v := getattr(self, n)) is not None}

    def __hash__(self) -> int:
        return hash(self.digest())


def _over(low: Any, high: Any) -> Any:
    """Return the value of one field after a merge; None is unset."""
    if high is None or low is None:
        return low if high is None else high
    if isinstance(low, Mapping) and isinstance(high, Mapping):
        return MappingProxyType({k: _over(low.get(k), high.get(k)) for k in sorted({*low, *high})})
    return high


assert all(f.default is None for f in dataclasses.fields(ExecutionPolicy))
