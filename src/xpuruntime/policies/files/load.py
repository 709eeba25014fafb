"""load_policy: a checked Policy from a file, a mapping, a policy or ``"auto"``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ...errors import PolicyError
from ...storage.files import open_regular
from ..execution_policy import ExecutionPolicy
from ..fields.record import FieldPath, Problem, shown
from ..kernel_policy import KernelPolicy
from ..lint import LintFinding, lint
from ..names import check_names
from ..policy import Policy, from_document
from . import document

__all__ = ["LoadedPolicy", "PolicyLike", "load_policy", "read_policy", "save_document"]

PolicyLike: TypeAlias = (
    "Policy | KernelPolicy | ExecutionPolicy | Mapping[str, Any] | str | os.PathLike[str] | None"
)
Part: TypeAlias = Literal["kernel", "execution"]

_READERS = {".json": document.parse_json, ".yaml": document.parse_yaml, ".yml": document.parse_yaml}
_WRITERS = {".json": document.to_json_text, ".yaml": document.to_yaml_text, ".yml": document.to_yaml_text}


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy and lint's warnings about it; a conflict is an error instead."""

    policy: Policy
    findings: tuple[LintFinding, ...]


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
    source: PolicyLike, *, part: Part | None = None, kernels: Iterable[str] = (), engines: Iterable[str] = ()
) -> LoadedPolicy:
    """Load a policy as ``load_policy``, together with the findings of ``lint``."""
    who, lines, content = _source(source, part)
    try:
        policy = content() if callable(content) else content
        check_names(policy, kernels=kernels, engines=engines)
        findings = lint(policy)
        for finding in findings:
            if finding.is_error:
                raise Problem(finding.path, finding.text, do=finding.do)
    except Problem as problem:
        raise _located(problem, who, lines) from None
    return LoadedPolicy(policy, findings)


def _source(source: PolicyLike, part: Part | None) -> tuple[str, document.Lines, Any]:
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


def read_document(path: Path) -> tuple[Any, document.Lines]:
    """Read a policy file. Return plain data and the line of every key. Raises PolicyError."""
    who = f"policy {path}"
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise PolicyError(
            who, "has an unknown suffix", got=repr(path.suffix), do="Name it .yaml, .yml or .json."
        )
    try:
        with open_regular(path) as file:
            raw = file.read(document.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PolicyError(
            who, "cannot be read", got=reason, do="Check the path and its permissions."
        ) from error
    if len(raw) > document.MAX_BYTES:
        raise PolicyError(
            who, "is too large", got=f"more than {document.MAX_BYTES} bytes", do="Split the policy."
        )
    try:
        return reader(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise PolicyError(
            f"{who}:{line}", "is not UTF-8 text", got=error.reason, do="Save it as UTF-8."
        ) from None
    except Problem as problem:
        raise _located(problem, who, {}) from None


def _located(problem: Problem, who: str, lines: document.Lines) -> PolicyError:
    """Return the error with the line of the key, or of its nearest ancestor."""
    line = getattr(problem, "line", None) or _line_of(problem.path, lines)
    return problem.error(who if line is None else f"{who}:{line}")


def _line_of(path: FieldPath, lines: document.Lines) -> int | None:
    for end in range(len(path), -1, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None


def save_document(path: str | os.PathLike[str], data: Mapping[str, Any]) -> None:
    """Write a document atomically. Raises PolicyError for an unknown suffix, StoreError if writing fails."""
    from ...errors import StoreError
    from ...storage.store import write_atomic

    target = Path(path)
    writer = _WRITERS.get(target.suffix.lower())
    if writer is None:
        raise PolicyError(
            f"policy {target}",
            "has an unknown suffix",
            got=repr(target.suffix),
            do="Name it .yaml, .yml or .json.",
        )
    try:
        write_atomic(target, writer(data).encode())
    except StoreError as error:
        raise StoreError(
            f"policy {target}", "cannot be written", got=error.got, do="Save it to a writable folder."
        ) from error
