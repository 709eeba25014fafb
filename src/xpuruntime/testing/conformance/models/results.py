"""A file of findings from which a later run continues, as JSON lines: first the versions of libraries, then one finding per line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ....errors import InputError
from ....storage.files import file_error, read_regular
from ..finding import CaseFinding

__all__ = ["Results", "versions"]


def versions() -> dict[str, str]:
    """Return versions of the libraries that affect results."""
    versions_by_name = {}
    for name in ("xpuruntime", "torch", "timm", "torchvision", "transformers"):
        try:
            versions_by_name[name] = version(name)
        except PackageNotFoundError:
            versions_by_name[name] = ""
    return versions_by_name


class Results:
    """Findings of earlier runs, and the file for new ones. Without a path nothing is stored."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.findings: list[dict[str, Any]] = []
        if path is None:
            return
        lines = _read(path).splitlines()
        if not lines:
            self._write("w", versions())
            return
        if (written := _parsed(lines[0])) is None:
            do = "Name another file, or remove this one."
            raise InputError(
                f"suite models, results {path}", "is not a results file", got=lines[0][:80], do=do
            )
        if written != versions():
            raise InputError(
                f"suite models, results {path}",
                "were written with other versions of the libraries",
                got=lines[0],
                do="Name another file, or remove this one.",
            )
        fields = {f.name for f in dataclasses.fields(CaseFinding)}
        for finding in map(_parsed, lines[1:]):
            if finding is not None and set(finding) == fields:  # else the last line of a run that was stopped
                self.findings.append({**finding, "kernels": tuple(finding["kernels"])})

    @property
    def cases(self) -> frozenset[str]:
        """Return the cases that have a finding."""
        return frozenset(f["case"] for f in self.findings)

    def add(self, finding: CaseFinding) -> None:
        """Write a finding immediately."""
        if self.path is not None:
            self._write("a", dataclasses.asdict(finding))

    def _write(self, mode: str, line: Mapping[str, Any]) -> None:
        """Write a line of JSON. Raises StoreError."""
        assert self.path is not None
        try:
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise file_error(self.path, "cannot write", error) from error


def _read(path: Path) -> str:
    """Return the text of a file, which is empty if there is none. Raises StoreError for one that cannot be read, InputError for one without text."""
    try:
        return read_regular(path).decode("utf-8")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise file_error(path, "cannot read", error) from error
    except UnicodeDecodeError as error:
        do = "Name another file, or remove this one."
        raise InputError(
            f"suite models, results {path}", "is not a results file", got=error, do=do
        ) from error


def _parsed(line: str) -> dict[str, Any] | None:
    """Return the object of a line of JSON, None for another line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
