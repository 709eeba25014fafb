"""load_policy: a checked Policy from a file, a mapping, a policy or ``"auto"``."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ...errors import PolicyError
from ..execution_policy import ExecutionPolicy
from ..fields.record import FieldPath, Problem, shown
from ..kernel_policy import KernelPolicy
from ..lint import LintFinding, lint
from ..names import check_names
from ..policy import Policy, from_document
from .document import Lines, line_of, located, read_document

__all__ = ["LoadedPolicy", "PolicyLike", "load_policy", "read_policy"]

PolicyLike: TypeAlias = (
    "Policy | KernelPolicy | ExecutionPolicy | Mapping[str, Any] | str | os.PathLike[str] | None"
)
Part: TypeAlias = Literal["kernel", "execution"]


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy, lint's findings about it, and the line of each key of its file."""

    policy: Policy
    findings: tuple[LintFinding, ...]
    lines: Lines = field(default_factory=dict, repr=False)

    def line(self, path: FieldPath) -> int | None:
        """Return the line of a key, or of its nearest ancestor; None for a policy that is no file."""
        return line_of(path, self.lines)


def load_policy(
    source: PolicyLike, *, part: Part | None = None, kernels: Iterable[str] = (), engines: Iterable[str] = ()
) -> Policy:
    """Load and check a policy.

    source:  a path (.json, .yaml, .yml), a document as a mapping, a policy of any of the three classes, or ``"auto"`` (also None):
             the empty policy, which leaves everything to the built-in default.
    part:    the only part to load; a document without it is an error.
    kernels: names of registered kernels, allowed in addition to the built-in ones.
    engines: names of registered engines, allowed in addition to the built-in ones.

    Raises PolicyError with file, line, key and the nearest known word.
    """
    return read_policy(source, part=part, kernels=kernels, engines=engines).policy


def read_policy(
    source: PolicyLike,
    *,
    part: Part | None = None,
    kernels: Iterable[str] = (),
    engines: Iterable[str] = (),
    raise_conflicts: bool = True,
) -> LoadedPolicy:
    """Load a policy as ``load_policy``, together with the findings of ``lint``.

    raise_conflicts: False returns the conflicts that ``lint`` finds with the other findings.
    """
    who, lines, content = _source(source, part)
    try:
        policy = content() if callable(content) else content
        check_names(policy, kernels=kernels, engines=engines)
        findings = lint(policy)
        for finding in findings:
            if finding.is_error and raise_conflicts:
                raise Problem(finding.path, finding.text, do=finding.do)
            if finding.code == "deprecated":
                _warn(who, line_of(finding.path, lines), finding)
    except Problem as problem:
        raise located(problem, who, lines) from None
    return LoadedPolicy(policy, findings, lines)


def _warn(who: str, line: int | None, finding: LintFinding) -> None:
    """Issue a DeprecationWarning at the caller outside of this package."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("xpuruntime."):
        level, frame = level + 1, frame.f_back
    where = who if line is None else f"{who}:{line}"
    warnings.warn(f"{where}: {finding}", DeprecationWarning, stacklevel=level)


def _source(source: PolicyLike, part: Part | None) -> tuple[str, Lines, Any]:
    """Return the subject of error messages, the line of each key, and the policy or a function that builds it."""
    if source is None or (isinstance(source, str) and source == "auto"):
        return "policy", {}, Policy()
    if isinstance(source, Policy):
        return "policy", {}, source
    if isinstance(source, KernelPolicy):
        return f"policy {source.origin}".strip(), {}, Policy(kernel=source)
    if isinstance(source, ExecutionPolicy):
        return "policy", {}, Policy(execution=source)
    if isinstance(source, Mapping):
        return "policy", {}, lambda: _from_document(source, part, "")
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        data, lines = read_document(path)
        return f"policy {path}", lines, lambda: _from_document(data, part, path.name)
    raise PolicyError(
        "policy",
        "cannot be loaded from this value",
        got=shown(source),
        do="Give a path, a mapping, a Policy, KernelPolicy or ExecutionPolicy, or 'auto'.",
    )


def _from_document(data: Any, part: Part | None, origin: str) -> Policy:
    policy = from_document(data)
    if part is not None and part not in data:
        raise Problem((), f"has no {part} policy", do=f"Add {part}: to the document.")
    kernel = replace(policy.kernel, origin=origin) if origin else policy.kernel
    return Policy(
        kernel=kernel if part != "execution" else KernelPolicy(),
        execution=policy.execution if part != "kernel" else ExecutionPolicy(),
    )
