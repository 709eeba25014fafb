"""Setup: what the user said about where a model runs, as one value that opens sessions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..inference.session import InferenceSession

__all__ = ["Setup"]


@dataclass(frozen=True, slots=True)
class Setup:
    """The keywords of ``InferenceSession`` as data. ``precision`` is demanded; ``fp16`` is taken where it can be had."""

    engine: str | None = None
    device: str | None = None
    policy: str | os.PathLike[str] | None = None
    fp16: bool = False
    precision: str | None = None
    strict: bool | None = None
    threads: int | None = None
    cache_dir: Path | None = None
    allow_fallback: tuple[str, ...] = ()
    compile_timeout_s: float | None = None
    run_timeout_s: float | None = None

    def on(self, engine: str, **changes: Any) -> Setup:
        """The same for one named engine."""
        return replace(self, engine=engine, **changes)

    def with_device(self) -> Setup:
        """The same on the cpu, where neither the user nor a policy nor the environment names a device. Raises PolicyError."""
        from ..policies import effective_policy

        named = self.device or effective_policy({}, self.policy).origin_of("execution.target") != "built-in"
        return self if named else replace(self, device="cpu")

    def open(self, model: Any) -> InferenceSession:
        """A session on ``model`` (path, bytes, ModelProto or ModelSource). Raises what ``InferenceSession`` raises."""
        from ..inference.session import InferenceSession
        from ..policies import ExecutionPolicy

        said: dict[str, Any] = {}
        for field in ("precision", "compile_timeout_s", "run_timeout_s"):
            if getattr(self, field) is not None:
                said[field] = getattr(self, field)
        if self.allow_fallback:
            said["allow_fallback"] = list(self.allow_fallback)
        return InferenceSession(
            model,
            engine=self.engine,
            device=self.device,
            policy=self.policy,
            exec_policy=ExecutionPolicy(**said) if said else None,
            fp16=self.fp16,
            strict=self.strict,
            threads=self.threads,
            cache_dir=self.cache_dir,
        )

    def to_json(self) -> Mapping[str, Any]:
        """What was said; what was left open is left out."""
        said = {k: getattr(self, k) for k in self.__slots__}
        return {
            k: str(v) if isinstance(v, os.PathLike) else v
            for k, v in said.items()
            if v not in (None, False, ())
        }
