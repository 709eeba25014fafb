"""Networks of the installed model libraries, each in its own process: right, wrong, refused, raw error, slow or killed.

One small network for every architecture family of timm, torchvision and transformers is built with seeded weights, exported, and compared with
PyTorch in float64. Networks that PyTorch itself cannot build, run or export are listed separately (``not run``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ....errors import InputError
from ..finding import CaseFinding
from ..subject import DeviceUnderTest
from .cases import MAX_PROCESSES, Options, Task, chosen, tasks_of
from .pool import run
from .results import Results
from .sources import SOURCES, installed

__all__ = ["MAX_PROCESSES", "NEEDS", "Options", "findings"]

NEEDS = ("torch",)


def findings(
    subject: DeviceUnderTest, sample: int, jobs: int, options: Options | None = None
) -> Iterator[CaseFinding]:
    """Yield a finding per network, device, precision and batch. sample: networks of each library, drawn by ``Options.seed``; jobs: processes at once.

    Raises InputError for a device that is an object, an unknown network, and a results file written by other versions.
    """
    settings = options or Options()
    if not isinstance(subject.device, str):
        raise InputError(
            "suite models",
            "runs on devices by name",
            got=type(subject.device).__name__,
            do="Give 'cpu' or 'cuda:0'.",
        )
    devices = tuple(dict.fromkeys((subject.device, *settings.devices)))
    precisions = settings.precisions if subject.is_native else settings.precisions[:1]
    tasks: list[Task] = []
    missing, absent = list(settings.only), False
    for source in settings.sources or tuple(SOURCES):
        if why := installed(source):
            yield CaseFinding(source, "not run", why)
            absent = True
            continue
        names = chosen(source, settings, sample)
        missing = [name for name in missing if name not in names]
        tasks += tasks_of(source, names, subject.engine, devices, precisions, settings.batches)
    if missing and not absent:  # A library that is not installed may have the network.
        raise InputError(
            "suite models",
            "the installed libraries have no such network",
            got=", ".join(missing),
            do="Name networks as `xpu conformance DEVICE --suite models --json` does, without the library.",
        )
    for name in missing:
        yield CaseFinding(name, "not run", "no installed library has this network")
    results = Results(None if settings.results is None else Path(settings.results))
    yield from (CaseFinding(**finding) for finding in results.findings)
    remaining = [t.without(results.cases) for t in tasks]
    workers = settings.workers or jobs or len(os.sched_getaffinity(0))
    for finding in run([t for t in remaining if t.cases], workers, settings):
        results.add(finding)
        yield finding
