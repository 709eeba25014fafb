"""Policy: a KernelPolicy and an ExecutionPolicy together, as in one file."""

# ruff: noqa: RUF009  - of_kind makes a dataclass field, as dataclasses.field does
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .execution_policy import ExecutionPolicy
from .fields.record import FieldKind, FieldPath, Problem, build, dump, of_kind, record, schema_of, shown
from .files.file_form import VERSION, FileForm
from .kernel_policy import KernelPolicy

__all__ = ["Policy", "from_document"]


def _part(cls: type[Any]) -> FieldKind:
    def check(value: object, path: FieldPath) -> Any:
        return value if isinstance(value, cls) else build(cls, value, path)

    return FieldKind(check, schema_of(cls), dump)


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(FileForm):
    """The user's demands: ``kernel`` and ``execution``, either of which may be empty. Raises PolicyError."""

    kernel: KernelPolicy = of_kind(_part(KernelPolicy), "which kernel computes an op", default=KernelPolicy())
    execution: ExecutionPolicy = of_kind(
        _part(ExecutionPolicy), "where and how a model runs", default=ExecutionPolicy()
    )

    def merge(self, other: Policy) -> Policy:
        """Merge both parts of ``other`` over this policy. Associative; the empty policy is the identity."""
        return Policy(kernel=self.kernel.merge(other.kernel), execution=self.execution.merge(other.execution))


def from_document(data: object) -> Policy:
    """Build a policy from a document's plain data. Raises Problem."""
    if not isinstance(data, Mapping):
        raise Problem(
            (), "must be a mapping", got=shown(data), do="Write version: 1, then kernel: and execution:."
        )
    version = data.get("version")
    if isinstance(version, bool) or version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        do = (
            "Update xpuruntime, or save the policy again with this release."
            if newer
            else f"Write version: {VERSION}."
        )
        raise Problem(
            ("version",),
            f"must be {VERSION}",
            got=shown(version) if "version" in data else "no version",
            do=do,
        )
    return build(Policy, {k: v for k, v in data.items() if k != "version"})
