"""Policy: a KernelPolicy and an ExecutionPolicy, as one file holds them."""

# ruff: noqa: RUF009  - of_kind makes a dataclass field, as dataclasses.field does
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .execution_policy import ExecutionPolicy
from .file_form import VERSION, FileForm
from .kernel_policy import KernelPolicy
from .record import FieldPath, Kind, Problem, build, dump, of_kind, record, schema_of, shown

__all__ = ["Policy", "from_document"]


def _part(cls: type[Any]) -> Kind:
    def check(value: object, path: FieldPath) -> Any:
        return value if isinstance(value, cls) else build(cls, value, path)

    return Kind(check, schema_of(cls), dump)


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(FileForm):
    """What the user demands: ``kernel`` and ``execution``, either of which may be empty. Raises PolicyError."""

    kernel: KernelPolicy = of_kind(_part(KernelPolicy), "which kernel computes an op", default=KernelPolicy())
    execution: ExecutionPolicy = of_kind(
        _part(ExecutionPolicy), "where and how a model runs", default=ExecutionPolicy()
    )

    def merge(self, other: Policy) -> Policy:
        """``other`` laid over this policy, both parts. Associative; the empty policy is the identity."""
        return Policy(kernel=self.kernel.merge(other.kernel), execution=self.execution.merge(other.execution))


def from_document(data: object) -> Policy:
    """Return a document as plain data -> Policy. Raises Problem."""
    if not isinstance(data, Mapping):
        raise Problem(
            (), "a policy is a mapping", got=shown(data), do="Write version: 1, then kernel: and execution:."
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
