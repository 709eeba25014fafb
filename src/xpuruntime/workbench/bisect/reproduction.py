"""A folder that repeats a difference alone: a small model, its inputs, policies, a README, and the command."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...children import environment, python, run
from ...errors import StoreError, XpuError
from ...policies.files.load import load_policy
from ...protocols import Array, ModelSource
from ..inputs import save_arrays
from ..values.onnx_cut import OnnxCuts
from ..values.side import Side
from .changes import PolicyChange, applied, rule_for
from .report import Bisection, Reproduction
from .walk import Walk

__all__ = ["KeptValues", "Subject", "check_new_folder", "save_reproduction"]

_SECONDS = 600.0
_MODEL, _REFERENCE, _INPUTS = "model.onnx", "reference.onnx", "inputs.npz"
_POLICIES = ("policy.yaml", "reference_policy.yaml")


class KeptValues:
    """The values of the last cut that agrees, in a file, so that memory holds one cut at a time."""

    def __init__(self, path: Path, feeds: Mapping[str, Array]) -> None:
        self._path, self._feeds = path, dict(feeds)
        self._kept = False

    def keep(self, values: Mapping[str, Array]) -> None:
        """Replace the stored values."""
        save_arrays(self._path, values)
        self._kept = True

    def load(self, names: Sequence[str]) -> dict[str, Array]:
        """Return values by name, the model's inputs among them."""
        values = {n: self._feeds[n] for n in names if n in self._feeds}
        left = [n for n in names if n not in values]
        if left and self._kept:
            with np.load(self._path, allow_pickle=False) as stored:
                values |= {n: stored[n] for n in left if n in stored.files}
        return values


@dataclass(frozen=True, slots=True)
class Subject:
    """The result of a bisection: both sides, the search, and each side's nodes and kernels by call."""

    actual: Side
    reference: Side
    state: Walk
    feeds: Mapping[str, Array] = field(repr=False)
    calls: Sequence[Sequence[tuple[tuple[str, ...], str]]] = field(repr=False, default=((), ()))

    @property
    def is_cut(self) -> bool:
        """True if both models can be cut."""
        return self.actual.model.format == self.reference.model.format == "onnx"


def check_new_folder(folder: Path) -> None:
    """Raise StoreError if the folder exists, before a long search starts."""
    if folder.exists():
        do = "Name a new folder with --save, or write nothing with --no-save."
        raise StoreError(f"folder {folder}", "exists already", got=str(folder.absolute()), do=do)


def save_reproduction(
    folder: Path, subject: Subject, result: Bisection, kept_values: KeptValues
) -> Reproduction:
    """Write the smallest model that shows the difference in a fresh process: the node alone, the model up to it, or the whole model.

    Raises StoreError if the folder exists or cannot be written.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        do = "Name a new folder with --save, or write nothing with --no-save."
        raise StoreError(
            f"folder {folder}", "cannot be created", got=error.strerror or error, do=do
        ) from error
    saved: Reproduction | None = None
    for scope, pinned in _attempts(subject):
        try:
            command = _write(folder, subject, result, kept_values, scope, pinned)
        except XpuError:  # a part that is no valid model alone, or a rule that cannot name the kernel
            continue
        saved = Reproduction(folder, scope, _fails(folder, command), shlex.join(["xpu", *command]))
        if saved.fails:
            break
    assert saved is not None, "the whole model can always be written"
    _describe(folder, saved, result)
    return saved


def _attempts(subject: Subject) -> list[tuple[str, bool]]:
    """Return scopes, smallest first, and whether the node's kernel is named in the policy."""
    if not subject.is_cut:
        return [("model", False)]
    pins = [False, True] if any(subject.calls) else [False]
    return [*(("node", p) for p in pins), *(("prefix", p) for p in pins), ("model", False)]


def _write(
    folder: Path, subject: Subject, result: Bisection, kept_values: KeptValues, scope: str, pinned: bool
) -> list[str]:
    """Write models, policies and inputs of a scope; return the arguments of ``xpu``."""
    for old in folder.iterdir():  # of a larger or smaller scope
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()
    sides = (subject.actual, subject.reference)
    if scope == "model":
        feeds = dict(subject.feeds)
        files = [
            _copy(folder, side.model, stem) for side, stem in zip(sides, ("model", "reference"), strict=True)
        ]
    else:
        before = subject.state.before if scope == "node" else ()
        files, feeds = [], {}
        for side, name in zip(sides, (_MODEL, _REFERENCE), strict=True):
            cuts = OnnxCuts(side.model)  # one at a time: it holds the weights of its model
            boundary = [v for v in before if v in cuts.maker]
            names = [*boundary, *subject.feeds]
            arrays = kept_values.load(names)
            proto = cuts.cut(boundary, [subject.state.value], arrays)
            del cuts
            read = [i.name for i in proto.graph.input]
            feeds |= {n: arrays[n] for n in read}
            (folder / name).write_bytes(proto.SerializeToString(deterministic=True))
            files.append(name)
    same = subject.actual.model.digest == subject.reference.model.digest
    if same and len(files) > 1:
        if files[1] != files[0]:
            (folder / files[1]).unlink(missing_ok=True)
        files = files[:1]
    save_arrays(folder / _INPUTS, feeds)
    command = ["bisect", *files, "--by", "node"]
    for letter, side, name, calls in zip("ab", sides, _POLICIES, subject.calls, strict=True):
        policy = load_policy(side.policy)
        if pinned and result.node is not None:
            own = [(n, k) for n, k in calls if set(n) & set(result.node.nodes)]
            rules = [rule_for(nodes, kernel, "it ran there") for nodes, kernel in own]
            policy = applied(policy, [PolicyChange(("kernel", "rules"), None, rule) for rule in rules])
        if policy != load_policy(None):
            policy.save(folder / name)
            command += [f"--policy-{letter}", name]
        if side.engine is not None:
            command += [f"--engine-{letter}", side.engine]
        if side.precision is not None:
            command += [f"--precision-{letter}", side.precision]
    if subject.actual.device is not None:
        command += ["--device", subject.actual.device]
    if subject.actual.threads is not None:
        command += ["--threads", str(subject.actual.threads)]
    if feeds:
        command += ["--input", _INPUTS]
    return [*command, "--tolerance", repr(subject.state.tolerance), "--no-save"]


def _copy(folder: Path, model: ModelSource, stem: str) -> str:
    """Copy a whole model with its external data, or a program. Return the file's name."""
    if model.path is None:
        if model.format == "program":
            name = f"{stem}.npubin"
            model.graph.save(folder / name)
            return name
        (folder / f"{stem}.onnx").write_bytes(model.data or b"")
        return f"{stem}.onnx"
    name = f"{stem}{model.path.suffix}"
    shutil.copyfile(model.path, folder / name)
    for file in model.files[1:]:
        target = folder / file.relative_to(model.path.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    return name


def _fails(folder: Path, command: Sequence[str]) -> bool | None:
    """Run the command in a fresh process in the folder; None if it ends neither with 0 nor with 1."""
    try:
        done = run(python("-m", "xpuruntime", *command, "--json"), _SECONDS, environment(), folder)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {0: False, 1: True}.get(done.returncode)


def _describe(folder: Path, saved: Reproduction, result: Bisection) -> None:
    """Write the README and the result as JSON."""
    node = result.node
    assert node is not None
    scope = {"node": "the node alone", "prefix": "the model up to the node", "model": "the whole model"}[
        saved.scope
    ]
    verdict = {True: "shows the difference", False: "does not show the difference", None: "could not be run"}[
        saved.fails
    ]
    lines = [
        f"# {result.actual} against {result.reference}",
        "",
        f"{result.sentence}.",
        "",
        f"- value: `{node.value}`, nodes: {', '.join(f'`{n}`' for n in node.nodes)} ({'+'.join(node.ops)})",
        f"- kernels: {node.kernels[0] or 'not reported'} against {node.kernels[1] or 'not reported'}",
        *([f"- source: {node.source}"] if node.source else []),
        *(f"- policy change: {c}" for c in result.changes),
        f"- this folder holds {scope}, and {verdict} in a fresh process",
        "",
        "Run this here; the exit code is 1 while the two sides differ:",
        "",
        f"    {saved.command}",
        "",
    ]
    try:
        (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")
        data: dict[str, Any] = result.to_json() | {"reproduction": saved.to_json() | {"folder": "."}}
        (folder / "difference.json").write_text(json.dumps(data, indent=2) + os.linesep, encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"folder {folder}", "cannot be written", got=error.strerror or error, do="Free some space."
        ) from error
