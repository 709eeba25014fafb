"""The journal of a tuning: finished measurements, one record a line, appended and synced, so that a kill loses at most the last one.

The first line describes what is measured. A tuning of something else does not continue it. A last line without an end, which a kill left, is
removed.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ...errors import FormatError, StoreError
from ...storage.files import file_error

__all__ = ["STAGES", "Journal", "Round", "read_records"]

FORMAT, VERSION = "xpuruntime tuning journal", 1
_MAX_BYTES = 1 << 30
_DO = "Delete it to measure anew, or name another output."
Times = Mapping[str, Mapping[str, float]]
STAGES: Mapping[str, str] = {
    "calls": "kernels",
    "runs": "whole runs",
    "engines": "engines",
    "nodes": "nodes by engine",
    "regions 1": "regions of mixes",
    "regions 2": "regions of mixes, second search",
    "regions 3": "regions of mixes, third search",
    "mixes": "mixes of engines",
}
"""Stages of a tuning in their order, and what each measures."""
_FLAGS: Mapping[str, Callable[[Any], str]] = {
    "engines": lambda value: "no --engine" if value is None else str(value),
    "place": lambda value: (
        "no --regions" if value is None else f"--regions with place {value}" if value else "--regions"
    ),
}
"""Fields of the subject that are absent without a flag: how an error shows them."""


@dataclass(frozen=True, slots=True)
class Round:
    """One finished round of a shape bucket.

    stage: one of ``STAGES``. times_us: by call and kernel, by engine and node, by mix and region, or by ``whole run`` and side.
    """

    bucket: int
    stage: str
    index: int
    seconds: float
    times_us: Times

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "bucket": self.bucket,
            "stage": self.stage,
            "round": self.index,
            "seconds": self.seconds,
            "times_us": {k: dict(v) for k, v in self.times_us.items()},
        }


@dataclass(slots=True)
class Journal:
    """An open journal. One process at a time holds it.

    rounds: the finished rounds, in order. Use it as a context manager.
    """

    path: Path
    subject: Mapping[str, Any]
    rounds: list[Round] = field(default_factory=list)
    _file: Any = None

    def __enter__(self) -> Self:
        """Open or create the file and its folder, and read its rounds. Raises FormatError for a journal of something else, StoreError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK, 0o666
            )
            self._file = os.fdopen(handle, "r+b", buffering=0)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._close()
            do = "Wait for it, or name another output."
            raise StoreError(f"journal {self.path}", "is in use by another tuning", do=do) from error
        except OSError as error:
            self._close()
            raise file_error(self.path, "cannot open the journal", error) from error
        try:
            self._resume()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file. One without a round has nothing to continue and is deleted."""
        if not self.rounds:
            self.remove()
        self._close()

    @property
    def seconds(self) -> float:
        """Return the time that the finished rounds took."""
        return sum(r.seconds for r in self.rounds)

    def done(self, bucket: int, stage: str) -> list[Round]:
        """Return the finished rounds of a stage of a bucket."""
        return [r for r in self.rounds if (r.bucket, r.stage) == (bucket, stage)]

    def add(self, measured: Round) -> None:
        """Append a finished round and sync it. Raises StoreError."""
        self._write(measured.to_json())
        self.rounds.append(measured)

    def remove(self) -> None:
        """Delete the file: its content is in the file of times."""
        self.path.unlink(missing_ok=True)

    def _resume(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size > _MAX_BYTES:
            raise FormatError(f"journal {self.path}", "is too large", got=f"{size} bytes", do=_DO)
        data = self._file.read(size) or b""
        whole = data[: data.rfind(b"\n") + 1]
        subject, self.rounds = read_records(whole, str(self.path))
        if subject is None:
            self._file.truncate(0)
            self._file.seek(0)
            self._write({"format": FORMAT, "version": VERSION, "subject": self.subject})
            return
        changed = [k for k in sorted({**subject, **self.subject}) if subject.get(k) != self.subject.get(k)]
        if changed:
            raise FormatError(
                f"journal {self.path}",
                "is of another tuning",
                got="; ".join(_difference(k, subject.get(k), self.subject.get(k)) for k in changed)[:400],
                do=_DO,
            )
        self._file.truncate(len(whole))
        self._file.seek(len(whole))

    def _write(self, record: Mapping[str, Any]) -> None:
        line = memoryview(json.dumps(record, sort_keys=True).encode() + b"\n")
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise file_error(self.path, "cannot write the journal", error) from error

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _difference(name: str, old: Any, new: Any) -> str:
    """Return how a field of the subject differs: ``rounds: 15 in the journal, 20 now``."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(k for k in {**old, **new} if old.get(k) != new.get(k))
        return "; ".join(_difference(f"{name}.{k}", old.get(k), new.get(k)) for k in keys)
    words = _FLAGS.get(name, lambda value: "absent" if value is None else str(value))
    return f"{name}: {words(old)} in the journal, {words(new)} now"


def read_records(data: bytes, name: str = "") -> tuple[dict[str, Any] | None, list[Round]]:
    """Return the subject and the finished rounds of a journal's whole lines; None for an empty one. Raises FormatError."""
    lines = data.split(b"\n")[:-1]
    if not lines:
        return None, []
    at = 1
    try:
        head = json.loads(lines[0].decode("utf-8"))
        if head["format"] != FORMAT or head["version"] != VERSION or not isinstance(head["subject"], dict):
            raise ValueError(f"format {str(head['format'])[:40]!r}, version {str(head['version'])[:20]}")
        rounds = []
        for line in lines[1:]:
            at += 1
            rounds.append(_round(json.loads(line.decode("utf-8"))))
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        who = f"journal {name}" if name else "journal"
        raise FormatError(
            who, f"line {at} is not a record that this release reads", got=error, do=_DO
        ) from error
    return head["subject"], rounds


def _round(data: Any) -> Round:
    bucket, index, stage, times = data["bucket"], data["round"], data["stage"], data["times_us"]
    if type(bucket) is not int or type(index) is not int or stage not in STAGES:
        raise ValueError("a round needs a bucket, a stage and an index")
    if not isinstance(times, dict) or not all(isinstance(v, dict) for v in times.values()):
        raise ValueError("times_us must be times by call and kernel")
    plain = {key: {kernel: _time(us) for kernel, us in row.items()} for key, row in times.items()}
    seconds = data["seconds"]
    return Round(bucket, stage, index, 0.0 if seconds == 0 else _time(seconds), plain)


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"must be a positive number, not {str(value)[:40]}")
    return float(value)
