"""One session per engine, for a comparison or a benchmark, and the reason of each engine that cannot take part."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..decisions import Candidate, Decision, Reason, first_advice
from ..engines import lookup
from ..errors import BuildError, EngineUnavailable, RunError, StrictError, UnavailableError
from ..protocols import Array, ModelSource
from ..types import DType
from .session_options import SessionOptions

if TYPE_CHECKING:
    from ..inference.session import InferenceSession

__all__ = ["EngineSession", "EngineSessions", "open_engines", "rejection"]


@dataclass(frozen=True, slots=True)
class EngineSession:
    """An engine with its open session. ``precision`` is the one in the plan."""

    name: str
    session: InferenceSession

    @property
    def precision(self) -> DType:
        """Precision of the session's region."""
        return DType(self.session.plan.regions[0].precision)

    def outputs(self, feeds: dict[str, Array]) -> list[Array]:
        """Run the model and return its outputs in the model's order. Raise RunError, InputError."""
        return list(self.session.run(feeds).values())

    def to_json(self) -> dict[str, Any]:
        """Return the plan's facts about the region as plain data."""
        region = self.session.plan.regions[0]
        return {
            "engine": self.name,
            "version": region.engine_version,
            "device": region.device,
            "precision": region.precision,
            "threads": region.threads,
        }


@dataclass(slots=True)
class EngineSessions:
    """The engines that take part and the rejected ones, in the order in which they were named."""

    opened: list[EngineSession]
    rejected: list[Candidate]

    def drop(self, engine: EngineSession, error: RunError, named: bool) -> None:
        """Remove an engine that failed to run, or raise its error if the user named the engine."""
        if named:
            raise error
        self.opened.remove(engine)
        text = f"{error.what}: {error.got}" if error.got is not None else error.what
        self.rejected.append(Candidate(engine.name, Reason.RUN_FAILED, text, error.do))
        engine.session.close()


@contextlib.contextmanager
def open_engines(
    model: ModelSource,
    engines: Sequence[str],
    options: SessionOptions,
    *,
    named: bool,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[EngineSessions]:
    """Open a session per engine and close all of them at the end.

    named: the user named the engines, so that the error of each is raised. Otherwise it becomes a rejected candidate.
    Raise EngineUnavailable if no engine can run the model.
    """
    with contextlib.ExitStack() as stack:
        sessions = EngineSessions([], [])
        for name in dict.fromkeys(_canonical(e, named) for e in engines):
            progress(f"{name}: building {model.name}")
            try:
                session = stack.enter_context(options.on(name).open(model))
            except (UnavailableError, BuildError, StrictError) as error:
                if named:
                    raise
                sessions.rejected.append(rejection(name, error))
            else:
                sessions.opened.append(EngineSession(name, session))
        if not sessions.opened:
            decision = Decision("engine", model.name, None, tuple(sessions.rejected))
            do = first_advice(sessions.rejected) or "Install an engine: pip install 'xpuruntime[onnxruntime]'"
            raise EngineUnavailable(
                f"model {model.name!r}", "no engine can run it here", do=do, decision=decision
            )
        yield sessions


def _canonical(name: str, named: bool) -> str:
    """Return the engine's own name for an alias. A plug-in that cannot be imported keeps its name, and fails when it is opened."""
    try:
        return lookup(name).name
    except UnavailableError:
        if named:
            raise
        return name


def rejection(name: str, error: UnavailableError | BuildError | StrictError) -> Candidate:
    """Return the rejected candidate for an engine's error."""
    decision: Decision | None = getattr(error, "decision", None)
    if decision is not None:
        cause = next((c for c in decision.rejected if c.code is not Reason.NOT_REQUESTED), None)
        if cause is not None:
            return Candidate(name, cause.code, cause.reason, cause.do)
    code = Reason.BUILD_FAILED if isinstance(error, BuildError) else Reason.NOT_INSTALLED
    code = Reason.NOT_REQUESTED if isinstance(error, StrictError) else code
    text = error.what if error.got is None else f"{error.what}: {error.got}"
    return Candidate(name, code, text, error.do)
