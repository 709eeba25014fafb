"""One side of a comparison: a model or program with an engine and a policy, opened as an observer of its values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import InputError
from ...frontends.model_file import open_model
from ...inference.models.programs import is_program, open_program
from ...inference.native.executable import NativeExecutable
from ...inference.native.model import native_model
from ...inference.session import InferenceSession
from ...policies import ExecutionPolicy, Policy
from ...protocols import Array, ModelSource
from ...types import DType
from .engine_values import EngineValues
from .observer import Observer
from .onnx_cut import OnnxCuts
from .program_values import ProgramValues
from .reference_values import REFERENCE, ReferenceValues

__all__ = ["Side", "open_source"]


def open_source(model: Any) -> ModelSource:
    """Open a model file or a compiled program. Raises ModelError, FormatError."""
    return open_program(model) if is_program(model) else open_model(model)


@dataclass(frozen=True, slots=True)
class Side:
    """A model and how it runs. The engine ``reference`` is the interpreter of the IR, which computes each op in float64.

    A side is opened without a self-check: what it computes is to be seen, whether it is right or not.
    """

    model: ModelSource
    engine: str | None = None
    device: str | None = None
    policy: Policy | Mapping[str, Any] | str | os.PathLike[str] | None = None
    precision: str | None = None
    threads: int | None = None
    cache_dir: str | os.PathLike[str] | None = None

    def with_policy(self, policy: Policy) -> Side:
        """Return the same side under another policy."""
        return replace(self, policy=policy)

    @property
    def is_reference(self) -> bool:
        """Return True for the interpreter."""
        return self.engine == REFERENCE

    def open(self, model: ModelSource | None = None) -> InferenceSession:
        """Open a session on the side's model, or on a part of it, which is not kept in the store. Raises the session's errors."""
        execution: dict[str, Any] = {"self_check": "off"}
        if model is not None:
            execution["caching"] = False
        if self.precision is not None:
            execution["precision"] = self.precision
        return InferenceSession(
            self.model if model is None else model,
            engine=self.engine,
            device=self.device,
            policy=self.policy,
            exec_policy=ExecutionPolicy(**execution),
            threads=self.threads,
            cache_dir=self.cache_dir,
        )

    def observe(self, feeds: Mapping[str, Array]) -> Observer:
        """Open the side for fixed inputs. Raises the session's errors, ModelError, and InputError for a program as the reference."""
        if self.is_reference:
            if self.model.format == "program":
                raise InputError(
                    f"program {self.model.name!r}",
                    "cannot run on the reference interpreter, since it holds no graph",
                    do="Give the model file, or another engine.",
                )
            return ReferenceValues(self.model, feeds)
        session = self.open()
        try:
            return self._observer(session, feeds)
        except BaseException:
            session.close()
            raise

    def _observer(self, session: InferenceSession, feeds: Mapping[str, Array]) -> Observer:
        region = session.plan.regions[0]
        label, precision = (
            f"{' + '.join(session.plan.engines)} on {region.device}, model {self.model.name}",
            DType(region.precision),
        )
        executable = session.executable
        if isinstance(executable, NativeExecutable):
            graph = None if self.model.format == "program" else native_model(self.model).graph
            named = frozenset(v for n in self.model.nodes for v in n.outputs) or None
            executor = executable.executor_for(feeds)
            return ProgramValues(label, precision, executor, feeds, session.close, graph, named)
        return EngineValues(label, precision, OnnxCuts(self.model), feeds, session, self.open)
