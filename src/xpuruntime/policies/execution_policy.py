"""ExecutionPolicy: where and in which precision a model runs, and the allowed fallbacks."""

# ruff: noqa: RUF009  - of_kind makes a dataclass field, as dataclasses.field does
from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from .fields import kinds
from .fields.record import Names, fields_of, of_kind, record
from .files.file_form import FileForm

__all__ = ["ExecutionPolicy"]


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPolicy(FileForm):
    """Demands on engines and devices, as data. A field that is not given is unset, and a lower layer decides it.

    A named ``target``, ``engine`` or ``precision`` is used, or an error is raised. Only ``allow_fallback`` permits anything else.
    Values are frozen and picklable. Raises PolicyError.

    >>> ExecutionPolicy(target="npu", precision="int8", static_shape=True, allow_fallback="cpu")
    """

    _part: ClassVar[Literal["execution"]] = "execution"

    target: str | None = of_kind(kinds.DEVICE, "device: cpu, cuda:0, gpu, npu, metal, webgpu or auto")
    engine: str | None = of_kind(
        kinds.ENGINE, "engine, or auto: measure the candidates and use the fastest one with right outputs"
    )
    precision: str | None = of_kind(kinds.PRECISION, "precision to compute in; model: the model's own")
    static_shape: bool | None = of_kind(kinds.BOOLEAN, "compile for fixed shapes only")
    fixed_shapes: Mapping[str, int | Sequence[int]] | None = of_kind(
        kinds.SHAPES, "sizes of symbolic dims: {batch: 1} by symbol, {x: [1, 3]} by input"
    )
    allow_fallback: Names | None = of_kind(
        kinds.DEVICES, "devices to fall back to, in this order, if the target is unavailable; []: none"
    )
    optimization_level: int | None = of_kind(
        kinds.LEVEL, "0 none, 1 basic, 2 extended, 3 all that preserve results"
    )
    caching: bool | None = of_kind(kinds.BOOLEAN, "keep compiled artifacts in the store")
    compile_timeout_s: float | None = of_kind(kinds.SECONDS, "time limit of compiling, in seconds")
    run_timeout_s: float | None = of_kind(kinds.SECONDS, "time limit of one run, in seconds")
    memory_bytes: int | None = of_kind(
        kinds.LIMIT,
        "limit of a session's device memory: weights, states and runs, in bytes or as text (512MiB)",
    )
    engine_options: Mapping[str, Mapping[str, str | int | float]] | None = of_kind(
        kinds.OPTIONS, "vendor options by engine, with the vendor's names"
    )
    engine_order: Mapping[str, Names] | None = of_kind(
        kinds.ENGINE_ORDER, "engines to try in this order if none is named, by device kind"
    )
    place: Mapping[str, str] | None = of_kind(
        kinds.PLACES,
        "engines for parts of the model, by node, op or op family: {conv: native, /head/*: openvino on npu}; also torch and interpreter",
    )
    self_check: str | None = of_kind(
        kinds.SELF_CHECK,
        "compare a session with an independent reference: first_open (once per model, device and versions), always or off",
    )
    autocast: Mapping[str, str] | None = of_kind(
        kinds.AUTOCAST,
        "precision by op family inside xpuruntime.pytorch.autocast: {norm: low}; low is the type of the block, own that of the operands",
    )
    transfers: Mapping[str, str] | None = of_kind(
        kinds.TRANSFER_LIMITS,
        "limits inside a run: {h2d: io_only, d2h: io_only, sync: none} allows copies of inputs and outputs only, and no wait of the host",
    )
    parallel: Mapping[str, int] | None = of_kind(
        kinds.PARALLEL_KIND,
        "devices that a language model is divided over: {tensor: 2} divides its linear layers over 2",
    )
    kv_cache: str | None = of_kind(
        kinds.KV_CACHE_KIND,
        "type that a language model's keys and values are stored in: model, or fp8, which halves the memory of 16 bits",
    )
    tune: Mapping[str, float] | str | None = of_kind(
        kinds.TUNE_KIND,
        "measure the kernels of each call when a program is built, within so many seconds: {on_build: 20}; on_build alone has a bound of 10",
    )
    strict: bool | None = of_kind(
        kinds.BOOLEAN,
        "raise an error if an engine falls back internally, or if the evidence differs from the plan",
    )

    def options_for(self, engine: str) -> Mapping[str, str]:
        """Return the vendor options of one engine, which may be empty."""
        return {k: str(v) for k, v in (self.engine_options or {}).get(engine, {}).items()}

    def order_for(self, device_kind: str) -> tuple[str, ...]:
        """Return the engines to try on a kind of device; empty if the policy names none."""
        return tuple((self.engine_order or {}).get(device_kind, ()))

    def merge(self, other: ExecutionPolicy) -> ExecutionPolicy:
        """Merge ``other`` over this policy, field by field; mappings merge entry by entry, options option by option.
        Associative; the empty policy is the identity.
        """
        merged = {name: _over(getattr(self, name), getattr(other, name)) for name in fields_of(type(self))}
        return ExecutionPolicy(**merged)

    def set_fields(self) -> dict[str, Any]:
        """Return the fields that are set, by name."""
        return {n: v for n in fields_of(type(self)) if (v := getattr(self, n)) is not None}

    def __hash__(self) -> int:
        return hash(self.digest())


def _over(low: Any, high: Any) -> Any:
    """Merge the two values of one field; None means unset."""
    if high is None or low is None:
        return low if high is None else high
    if isinstance(low, Mapping) and isinstance(high, Mapping):
        return MappingProxyType({k: _over(low.get(k), high.get(k)) for k in sorted({*low, *high})})
    return high


assert all(f.default is None for f in dataclasses.fields(ExecutionPolicy))
