"""A file of findings from which a later run continues, as JSON lines: first the versions of libraries, then one finding per line."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ....errors import InputError
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
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines[1:]:
            try:
                finding = json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line of a run that was stopped
            self.findings.append({**finding, "kernels": tuple(finding["kernels"])})
        if not lines:
            path.write_text(json.dumps(versions()) + "\n")
        elif json.loads(lines[0]) != versions():
            raise InputError(
                f"suite models, results {path}",
                "were written with other versions of the libraries",
                got=lines[0],
                do="Name another file, or remove this one.",
            )

    @property
    def cases(self) -> frozenset[str]:
        """Return the cases that have a finding."""
        return frozenset(f["case"] for f in self.findings)

    def add(self, finding: CaseFinding) -> None:
        """Write a finding immediately."""
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(finding)) + "\n")
