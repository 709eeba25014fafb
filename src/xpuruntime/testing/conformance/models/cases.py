"""The cases: a task is one network in one process; a case is one device, precision and batch of it."""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from ....arguments import check_count, check_several
from ....errors import InputError
from ....targets import DeviceId
from .sources import names_of

__all__ = ["ModelCase", "Options", "Task", "chosen", "tasks_of"]


@dataclass(frozen=True)
class Options:
    """The networks to check, and the time limits.

    devices:    devices in addition to the subject's own, checked in the same processes.
    precisions, batches: ``1``, ``2``, ``open`` (exported with an open batch of 2, run with 3).
    only:       names of networks; empty for every family. sources: ``timm``, ``torchvision``, ``transformers``, or modules with ``names`` and ``build``.
    seconds:    no network starts after that. each: seconds per case. torch_seconds: seconds for PyTorch to build, run and export.
    workers:    processes at once; by default one per core. results: a file of JSON lines from which a later run continues. seed: of a sample.
    """

    devices: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("float32", "float16")
    batches: tuple[str, ...] = ("2", "1", "open")
    only: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    seconds: float = 0
    each: float = 150
    torch_seconds: float = 60
    workers: int = 0
    results: str | None = None
    seed: str = ""

    def __post_init__(self) -> None:
        """Raise InputError for a value that no network can be checked with."""
        who = "suite models"
        for name in ("devices", "precisions", "batches", "only", "sources"):
            check_several(who, name, getattr(self, name), "a list of texts", "Give a list of texts.")
        for name in ("precisions", "batches"):
            if not getattr(self, name):
                raise InputError(who, f"{name} is empty", got="no item", do=f"Name one of {_FIRST[name]}.")
        for device in self.devices:
            DeviceId.parse(device)
        if wrong := [p for p in self.precisions if p not in _PRECISIONS]:
            do = f"Use {', '.join(_PRECISIONS)}."
            raise InputError(who, "has no such precision", got=str(wrong[0])[:80], do=do)
        if wrong := [b for b in self.batches if b != "open" and not _is_size(b)]:
            do = f"Give a number from 1 to {_MAX_BATCH}, or open for a symbolic batch."
            raise InputError(who, "has no such batch", got=str(wrong[0])[:80], do=do)
        check_count(who, "workers", self.workers, 0, MAX_PROCESSES)


_PRECISIONS = ("float32", "float16", "bfloat16")
_MAX_BATCH = 4096
_FIRST = {"precisions": ", ".join(_PRECISIONS), "batches": "1, 2, open"}
MAX_PROCESSES = 1024
"""The largest number of compilers or networks at once."""


def _is_size(text: object) -> bool:
    """Return True for a batch as text, ``"1"`` to ``"4096"``."""
    return isinstance(text, str) and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= _MAX_BATCH


@dataclass(frozen=True, slots=True)
class ModelCase:
    """One comparison."""

    device: str
    precision: str
    batch: str


@dataclass(frozen=True, slots=True)
class Task:
    """One network and its remaining cases."""

    source: str
    network: str
    engine: str
    cases: tuple[ModelCase, ...]

    @property
    def title(self) -> str:
        """Return the name used in findings about PyTorch's own failures."""
        return f"{self.source}/{self.network}"

    def name(self, case: ModelCase) -> str:
        """Return the name of a case in findings."""
        return f"{self.title} {case.device} {case.precision} batch {case.batch}"

    def batch(self, batch: str) -> str:
        """Return the name used in findings about PyTorch's failure with a batch."""
        return f"{self.title} batch {batch}"

    def without(self, finished: Container[str]) -> Task:
        """Return the task without cases that have a finding of their own, of the network or of the batch."""

        def has(case: ModelCase) -> bool:
            return any(n in finished for n in (self.title, self.batch(case.batch), self.name(case)))

        return replace(self, cases=tuple(c for c in self.cases if not has(c)))


def chosen(source: str, options: Options, sample: int) -> list[str]:
    """Return the names of a library's networks: the requested ones, a sample by the seed, or all."""
    names = names_of(source)
    if options.only:
        return [n for n in names if n in options.only]
    if not sample:
        return names
    return sorted(random.Random(f"{options.seed} {source}").sample(names, min(sample, len(names))))


def tasks_of(
    source: str,
    names: Sequence[str],
    engine: str,
    devices: Sequence[str],
    precisions: Sequence[str],
    batches: Sequence[str],
) -> list[Task]:
    """Return a task for each network. Batches other than the first are checked in the first precision only."""
    cases = tuple(
        ModelCase(d, p, b)
        for b in batches
        for d in devices
        for p in precisions
        if b == batches[0] or p == precisions[0]
    )
    return [Task(source, name, engine, cases) for name in names]
