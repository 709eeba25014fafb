"""A region with its current engine and its remaining alternatives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...decisions import Candidate, Decision, Reason
from ...errors import (
    EngineUnavailable,
    InputError,
    InternalError,
    KernelUnavailable,
    LockError,
    PolicyError,
    XpuError,
)
from ...faults import as_known
from ...printable import logger
from ...program.plan import Region
from ...protocols import Array, Evidence
from ...runtime.backends.base import RuntimeBackend
from ...runtime.memory.buffer import DeviceBuffer
from .region_runners import runner_of
from .regions import RegionWork, Runner

__all__ = ["Bring", "Placed"]

_log = logger("xpuruntime.session")

Bring = Callable[[Mapping[str, Any], "RuntimeBackend | None"], Mapping[str, Any]]
"""Moves values to the memory of a region: a device's, or the host's (None)."""


@dataclass(slots=True)
class Placed:
    """A region with its current runner and its remaining alternatives."""

    work: RegionWork
    decision: Decision
    runner: Runner | None = None
    rejected: list[Candidate] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    fallbacks: int = 0
    _weights: Mapping[str, Array] | None = None
    _lock: Any = field(default_factory=threading.RLock)

    @property
    def region(self) -> Region:
        """Return the region with its current engine version."""
        version = "" if self.runner is None else self.runner.version
        return replace(self.work.region, engine_version=version)

    def open(self) -> None:
        """Prepare the engine, or the first alternative that works. Raises EngineUnavailable."""
        while True:
            runner = runner_of(self.work)
            try:
                runner.prepare()
                if self._weights is not None:
                    runner.load(self._weights)
            except InputError:
                raise
            except Exception as error:
                self.fall(as_known(error, str(self.work.graph.name)), Reason.BUILD_FAILED)
                continue
            self.runner = runner
            return

    def load(self, weights: Mapping[str, Array]) -> None:
        """Load the weights."""
        with self._lock:
            self._weights = {w.name: weights[w.name] for w in self.work.graph.weights}
            assert self.runner is not None
            try:
                self.runner.load(self._weights)
            except InputError:
                raise
            except Exception as error:
                self.fall(as_known(error, str(self.work.graph.name)), Reason.BUILD_FAILED)
                self.open()

    def run(self, values: Mapping[str, Any], symbols: Mapping[str, int], bring: Bring) -> Sequence[Any]:
        """Run on the current engine, or on the next one if it fails."""
        while True:
            runner = self.runner
            if runner is None:  # another thread is switching to the next one
                with self._lock:
                    continue
            try:
                return runner.run(bring(values, self.work.backend if runner.on_device else None), symbols)
            except (InputError, PolicyError):  # another engine does not change these
                raise
            except Exception as error:
                with self._lock:
                    if self.runner is runner:  # otherwise another thread has switched already
                        self.fall(as_known(error, str(self.work.graph.name)), Reason.RUN_FAILED)
                        self.open()

    def fall(self, error: XpuError, code: Reason) -> None:
        """Record why the engine failed and switch to the next. Raises the error itself if there is no alternative and none was tried."""
        region = self.work.region
        name = f"{region.engine} on {region.device}"
        text = error.what if error.got is None else f"{error.what}: {error.got}"
        code = Reason.INTERNAL_ERROR if isinstance(error, InternalError) else code
        self.rejected.append(Candidate(name, code, text, error.do))
        told = {c.name for c in self.rejected}
        left = [c for c in self.decision.rejected if c.name not in told]
        if not region.alternatives:
            own = code is Reason.RUN_FAILED or isinstance(
                error, KernelUnavailable | InternalError | LockError
            )
            if own and len(self.rejected) == 1:
                raise error
            decision = Decision("engine", region.id, None, (*self.rejected, *left))
            raise EngineUnavailable(
                f"{self.work.graph.name}",
                f"no engine can run the region: {name}: {error.what}",
                got=error.got,
                do=error.do or "Name another engine in others= of partition.",
                decision=decision,
            ) from error
        following, *rest = region.alternatives
        engine, _, device = following.partition(" on ")
        moved = replace(region, engine=engine, device=device or "cpu", alternatives=tuple(rest))
        self.work = replace(self.work, region=moved)
        if self.runner is not None:
            self.runner.close()
            self.runner = None
        self.fallbacks += 1
        chosen = Candidate(following, Reason.FALLBACK, f"{name} cannot be had")
        self.decision = Decision(
            "engine", region.id, chosen, (*self.rejected, *(c for c in left if c.name != following))
        )
        self.warnings.append(f"{region.id}: {name} is unavailable ({text}); {following} runs it instead")
        _log.warning("%s: %s", self.work.graph.name, self.warnings[-1])

    def evidence(
        self, values: Mapping[str, Any] | None, symbols: Mapping[str, int] | None = None
    ) -> Evidence:
        """Return evidence of the current engine for a run's values and sizes, or without times for the last run."""
        assert self.runner is not None
        if values is not None and not self.runner.on_device:
            values = {k: v.to_numpy() if isinstance(v, DeviceBuffer) else v for k, v in values.items()}
        return self.runner.evidence(values, symbols)

    def close(self) -> None:
        """Free the runner."""
        if self.runner is not None:
            self.runner.close()
