"""OpeningRequest: what a language model is opened with, from the arguments, the policy and the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..arguments import MAX_THREADS, check_argument, check_count
from ..compiler.resolve import resolve_target
from ..inference.native.targets import own_target
from ..kernels.catalogue import kernel_words
from ..policies import Resolved
from ..policies.entrances import demanded
from ..printable import logger
from ..storage.store import Store
from ..targets import DeviceId
from ..types import DType
from .build import with_source
from .checkpoint.config import DecoderConfig
from .checkpoint.data import Checkpoint
from .checkpoint.reader import open_checkpoint
from .resolve import computed_in, device_for

__all__ = ["OpeningRequest", "check_opening", "opened_checkpoint", "opening_request"]

_log = logger("xpuruntime.session")


@dataclass(frozen=True, slots=True)
class OpeningRequest:
    """The choices that every way of opening a language model makes alike.

    request:   the policy as it is given. demands: what remains of it for the compiler.
    arguments: arguments that take precedence over the policy.
    dtype:     type to compute in. target: what is compiled for.
    notes:     what differs from the demands. They are logged, too.
    """

    request: Resolved
    demands: Resolved
    arguments: dict[str, str]
    device: Any
    dtype: DType
    target: Any
    notes: tuple[str, ...]

    def store(self, folder: Any) -> Store:
        """Return the store of programs; one that keeps nothing if the policy forbids it."""
        return Store.unless_off(self.request.policy.execution.caching, folder)


def opened_checkpoint(model: Any, source_capacity: int | None) -> Checkpoint:
    """Return the checkpoint for sources of up to this length. Raises BuildError, ModelError."""
    checkpoint = open_checkpoint(model)
    config = with_source(checkpoint.config, source_capacity, f"language model {checkpoint.name}")
    return replace(checkpoint, config=config)


def check_opening(who: str, threads: int | None, on_progress: Callable[[str], object] | None) -> int | None:
    """Return the checked number of threads. Raises InputError."""
    if on_progress is not None:
        check_argument(who, "on_progress", on_progress, Callable, "a function", "Give a function of text.")
    return threads if threads is None else check_count(who, "threads", threads, 1, MAX_THREADS)


def opening_request(
    who: str, checkpoint: Checkpoint, *, dtype: DType | str | None, policy: Any, device: Any, target: Any
) -> OpeningRequest:
    """Return the choices. Raises PolicyError, PrecisionUnavailable, UnavailableError."""
    config: DecoderConfig = checkpoint.config
    request = demands = demanded("Generator", {}, policy)
    arguments = {k: str(v) for k, v in (("target", device), ("precision", dtype)) if v is not None}
    notes: list[str] = []
    device = device_for(device, target, demands, notes)
    computed, demands = computed_in(dtype, config.dtype, demands, notes)
    target = own_target(DeviceId.parse(device)) if target is None else target
    if config.experts is not None and (words := demands.policy.kernel.stored_words()):
        kind = resolve_target(target).kind
        known = kernel_words("expert_linear", kind)
        if words.kernels[-1] not in known:
            notes.append(
                f"{words} does not apply to the matrices of experts on {kind}, which keep their type"
            )
        elif words.kernels[0] not in known:
            text = "does not apply to the matrices of experts"
            notes.append(f"activations: int8 {text} on {kind}, which are multiplied by floats")
    if notes:
        _log.warning("%s: %s", who, "; ".join(notes))
    return OpeningRequest(request, demands, arguments, device, computed, target, tuple(notes))
