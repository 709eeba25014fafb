"""The engines that take part in a comparison or a benchmark: one session each, and the reason for each that cannot."""

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
from .setup import Setup

if TYPE_CHECKING:
    from ..inference.session import InferenceSession

__all__ = ["Contender", "Field", "field_of", "rejection"]


@dataclass(frozen=True, slots=True)
class Contender:
    """One engine with its open session; ``precision`` is what the plan says it computes in."""

    name: str
    session: InferenceSession

    @property
    def precision(self) -> DType:
        """The precision of the session's region."""
        return DType(self.session.plan.regions[0].precision)

    def outputs(self, feeds: dict[str, Array]) -> list[Array]:
        """Outputs in the model's order. Raises RunError, InputError."""
        return list(self.session.run(feeds).values())

    def to_json(self) -> dict[str, Any]:
        """Plain data: what the plan says of its region."""
        region = self.session.plan.regions[0]
        return {
            "engine": self.name,
            "version": region.engine_version,
            "device": region.device,
            "precision": region.precision,
            "threads": region.threads,
        }


@dataclass(slots=True)
class Field:
    """Who takes part and who cannot, in the order in which they were named."""

    contenders: list[Contender]
    rejected: list[Candidate]

    def drop(self, contender: Contender, error: RunError, named: bool) -> None:
        """Take out a contender that failed while running; one that was named must run, so its error is raised again."""
        if named:
            raise error
        self.contenders.remove(contender)
        text = f"{error.what}: {error.got}" if error.got is not None else error.what
        self.rejected.append(Candidate(contender.name, Reason.RUN_FAILED, text, error.do))
        contender.session.close()


@contextlib.contextmanager
def field_of(
    model: ModelSource,
    engines: Sequence[str],
    setup: Setup,
    *,
    named: bool,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Field]:
    """Open a session per engine and close them all at the end.

    named: the engines were named one by one, so each must be had: the error is raised. Else its reason is kept.
    Raises EngineUnavailable when none can be had.
    """
    with contextlib.ExitStack() as stack:
        field = Field([], [])
        for name in dict.fromkeys(_canonical(e, named) for e in engines):
            progress(f"{name}: building {model.name}")
            try:
                session = stack.enter_context(setup.on(name).open(model))
            except (UnavailableError, BuildError, StrictError) as error:
                if named:
                    raise
                field.rejected.append(rejection(name, error))
            else:
                field.contenders.append(Contender(name, session))
        if not field.contenders:
            decision = Decision("engine", model.name, None, tuple(field.rejected))
            do = first_advice(field.rejected) or "Install an engine: pip install 'xpuruntime[onnxruntime]'"
            raise EngineUnavailable(
                f"model {model.name!r}", "no engine can run it here", do=do, decision=decision
            )
        yield field


def _canonical(name: str, named: bool) -> str:
    """An alias as the engine's own name. A third party's broken plugin keeps its name and fails when it is opened."""
    try:
        return lookup(name).name
    except UnavailableError:
        if named:
            raise
        return name


def rejection(name: str, error: UnavailableError | BuildError | StrictError) -> Candidate:
    """The reason that an engine cannot take part, from the error that it gave."""
    decision: Decision | None = getattr(error, "decision", None)
    if decision is not None:
        telling = next((c for c in decision.rejected if c.code is not Reason.NOT_REQUESTED), None)
        if telling is not None:
            return Candidate(name, telling.code, telling.reason, telling.do)
    code = Reason.BUILD_FAILED if isinstance(error, BuildError) else Reason.NOT_INSTALLED
    code = Reason.NOT_REQUESTED if isinstance(error, StrictError) else code
    text = error.what if error.got is None else f"{error.what}: {error.got}"
    return Candidate(name, code, text, error.do)
