"""The keywords of ``InferenceSession`` as one value, which opens sessions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..inference.session import InferenceSession
    from ..policies import Policy

__all__ = ["SessionOptions"]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The keywords of ``InferenceSession``. ``precision`` is required; ``fp16`` is used where the engine supports it. ``tune_s``: ``tune: {on_build: ...}``."""

    engine: str | None = None
    device: str | None = None
    policy: str | os.PathLike[str] | Policy | None = None
    fp16: bool = False
    precision: str | None = None
    strict: bool | None = None
    threads: int | None = None
    cache_dir: Path | None = None
    allow_fallback: tuple[str, ...] = ()
    compile_timeout_s: float | None = None
    run_timeout_s: float | None = None
    tune_s: float | None = None
    lock: str | os.PathLike[str] | None = None

    def on(self, engine: str, **changes: Any) -> SessionOptions:
        """Return the same options for one of several engines. One that chooses its kernels itself has no ``tune_s``."""
        tune_s = self.tune_s if engine in ("", "native") else None
        return replace(self, engine=engine, tune_s=tune_s, **changes)

    def with_device(self) -> SessionOptions:
        """Return the same options, with device cpu if neither the options nor a policy nor the environment names one. Raise PolicyError."""
        from ..policies import effective_policy

        named = self.device or effective_policy({}, self.policy).origin_of("execution.target") != "built-in"
        return self if named else replace(self, device="cpu")

    def open(self, model: Any) -> InferenceSession:
        """Open a session on ``model`` (path, bytes, ModelProto or ModelSource). Raise the errors of ``InferenceSession``."""
        from ..inference.session import InferenceSession
        from ..policies import ExecutionPolicy

        execution: dict[str, Any] = {}
        for field in ("precision", "compile_timeout_s", "run_timeout_s"):
            if getattr(self, field) is not None:
                execution[field] = getattr(self, field)
        if self.tune_s is not None:
            execution["tune"] = {"on_build": self.tune_s}
        if self.allow_fallback:
            execution["allow_fallback"] = list(self.allow_fallback)
        return InferenceSession(
            model,
            engine=self.engine,
            device=self.device,
            policy=self.policy,
            exec_policy=ExecutionPolicy(**execution) if execution else None,
            fp16=self.fp16,
            strict=self.strict,
            threads=self.threads,
            cache_dir=self.cache_dir,
            lock=self.lock,
        )

    def to_json(self) -> Mapping[str, Any]:
        """Return the options that are set as plain data."""
        values = {k: getattr(self, k) for k in self.__slots__}
        return {
            k: str(v) if isinstance(v, os.PathLike) else v
            for k, v in values.items()
            if v not in (None, False, ())
        }
