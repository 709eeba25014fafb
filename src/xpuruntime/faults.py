"""Faults of our own code: an error that says so, and a reproduction on disk.

    with contained("compile", Subject(graph, policy)):     # at an entrance: whatever is no XpuError becomes an InternalError
        with part("pass fuse_conv"):                       # around code that has a name
            ...
            with foreign():                                # around a function of the user's: its errors are left as they are
                ...

XpuErrors and KeyboardInterrupt pass. A MemoryError becomes an OutOfMemory, and an OSError a BuildError: neither is a fault of the code.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from .errors import BuildError, InternalError, OutOfMemory, PluginError, XpuError
from .fault_reports import write_report
from .plugins import owners
from .printable import logger

__all__ = [
    "Fault",
    "Subject",
    "as_error",
    "as_known",
    "contained",
    "foreign",
    "is_fault",
    "of_plugin",
    "part",
    "recorded",
]

_PARTS, _OURS, _FOREIGN = "_xpuruntime_parts", "_xpuruntime_ours", "_xpuruntime_foreign"
_PACKAGE = str(Path(__file__).parent)
_log = logger("xpuruntime.faults")


@dataclass(slots=True)
class Subject:
    """What is being compiled: the reproduction is made of it. Whoever compiles fills it in as it becomes known.

    graph:   its ``str`` is text that reads back. policy: has ``to_dict``. targets: by name.
    words:   further words of the command that replays it.
    excuse:  the error to raise instead of blaming ourselves: a graph that breaks a law of the IR.
    """

    graph: Any = None
    policy: Any = None
    targets: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    excuse: Callable[[], XpuError | None] | None = None
    _written: dict[tuple[object, ...], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure of our own code.

    parts:  what failed, from the outside in. node: the node that it was about, with its source; ``""`` where none is known.
    place:  file and line of the package. text: the exception in a line.
    folder: of the reproduction; ``""`` where none could be written.
    """

    parts: tuple[str, ...]
    node: str
    place: str
    text: str
    folder: str = ""
    command: str = ""

    @property
    def sentence(self) -> str:
        """``pass fuse_conv failed at node %c (conv, "Conv_0") with KeyError: 'x' (passes/fuse_conv.py:57)``."""
        who = " in ".join(reversed(self.parts)) or "it"
        at = f" at node {self.node}" if self.node else ""
        return f"{who} failed{at} with {self.text} ({self.place})"


_SUBJECT: ContextVar[Subject | None] = ContextVar("subject", default=None)


def is_fault(error: BaseException) -> bool:
    """Whether an exception is a failure of our own code: no error that we raise on purpose, none of a user's function."""
    if not isinstance(error, Exception) or hasattr(error, _FOREIGN):
        return False
    return not isinstance(error, XpuError) or hasattr(error, _OURS)


class part:  # noqa: N801  - used as a function
    """Names what runs inside, for the report of whatever goes wrong there.

    ours: errors that are raised on purpose elsewhere, and inside can only be our own fault.
    """

    __slots__ = ("name", "ours")

    def __init__(self, name: str, ours: tuple[type[XpuError], ...] = ()) -> None:
        self.name, self.ours = name, ours

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, Exception) or hasattr(error, _FOREIGN):
            return
        if isinstance(error, XpuError):
            if not (hasattr(error, _OURS) or type(error) in self.ours):
                return
            setattr(error, _OURS, True)
        with contextlib.suppress(AttributeError, TypeError):
            setattr(error, _PARTS, (self.name, *getattr(error, _PARTS, ())))


@contextlib.contextmanager
def foreign() -> Iterator[None]:
    """Around a call of a user's function: what it raises is the user's, and passes."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(AttributeError, TypeError):
            setattr(error, _FOREIGN, True)
        raise


@contextlib.contextmanager
def contained(
    who: str, subject: Subject | None = None, kind: type[XpuError] = InternalError
) -> Iterator[None]:
    """Raise what goes wrong inside as an error of ours, with a reproduction of the subject.

    kind: the class of the error; InternalError unless an entrance promises another one.
    """
    token = _SUBJECT.set(subject or _SUBJECT.get())
    try:
        yield
    except Exception as error:
        if not is_fault(error) or _of_the_call(error):
            raise
        raise as_error(error, who, kind) from error
    finally:
        _SUBJECT.reset(token)


def _of_the_call(error: Exception) -> bool:
    """Whether a function that is decorated with ``contained`` could not be called at all: a keyword that it does not have is the caller's."""
    frames = _frames(error) if isinstance(error, TypeError) else []
    return bool(frames) and frames[-1][0].f_code.co_filename == contextlib.__file__


def as_error(error: Exception, who: str, kind: type[XpuError] = InternalError) -> XpuError:
    """What a user sees of an exception that is a fault. Writes the reproduction."""
    subject = _SUBJECT.get()
    if isinstance(error, MemoryError) and not isinstance(error, XpuError):
        do = "Free memory, or take a smaller model or batch."
        return OutOfMemory(who, "this machine has no memory left for it", got=str(error) or None, do=do)
    if (plugin := of_plugin(error, who)) is not None:
        return plugin
    if isinstance(error, OSError) and error.errno is not None:
        refused = BuildError if kind is InternalError else kind
        return refused(who, "the system refuses a file or a process", got=str(error), do="See what it says.")
    if subject is not None and subject.excuse is not None:
        with contextlib.suppress(Exception):
            if (excuse := subject.excuse()) is not None:
                return excuse
    fault = recorded(error)
    what = f"this is a fault of xpuruntime, not of the model: {fault.sentence}"
    if kind is InternalError:
        return InternalError(who, what, do=_advice(fault), parts=fault.parts, folder=fault.folder)
    return kind(who, what, do=_advice(fault))


def of_plugin(error: Exception, who: str) -> PluginError | None:
    """The error to raise where the innermost code, of ours and of plug-ins, is a plug-in's. None for any other, and for errors of ours."""
    if isinstance(error, XpuError):
        return None
    for frame, line in reversed(_frames(error)):
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if top == __package__:
            return None
        if top in owners():
            got = f"{_text_of(error)} ({frame.f_code.co_filename}:{line})"
            do = 'Report it to its authors. Go on with another engine (engine=, or allow_fallback="cpu").'
            return PluginError(who, f"{owners()[top]} failed", got=got, do=do)
    return None


def as_known(error: Exception, who: str) -> XpuError:
    """An XpuError as it is, and a fault as ``as_error`` has it. Raises what a user's function raised."""
    if is_fault(error):
        return as_error(error, who)
    if isinstance(error, XpuError):
        return error
    raise error


def recorded(error: Exception) -> Fault:
    """The fault behind an exception. Its reproduction is written once for each place of a subject, and never raises."""
    subject = _SUBJECT.get() or Subject()
    frames = _frames(error)
    parts: tuple[str, ...] = getattr(error, _PARTS, ())
    fault = Fault(parts, _node_of(frames), _place_of(frames), _text_of(error))
    key = (type(error), parts, fault.place)
    _log.debug("%s", fault.sentence, exc_info=error)
    if key not in subject._written:
        subject._written[key] = write_report(subject, fault.sentence, error)
    folder, _, command = subject._written[key].partition("\n")
    return Fault(parts, fault.node, fault.place, fault.text, folder, command)


def _advice(fault: Fault) -> str:
    words = [_detour(fault)]
    if fault.folder:
        words.append(f"Please report it with {fault.folder}, which has the graph and no weights.")
    if fault.command:
        words.append(f"`{fault.command}` replays it.")
    return " ".join(w for w in words if w)


def _detour(fault: Fault) -> str:
    """How to go on meanwhile."""
    inner = fault.parts[-1] if fault.parts else ""
    kind, _, name = inner.partition(" ")
    if kind == "pass":
        return f'Go on with passes="-{name}" in compile, or with another engine (allow_fallback="cpu").'
    if kind == "kernel":
        return f"Go on with a rule that forbids {name.partition(' ')[0].partition('/')[2]!r}, or with another engine."
    return 'Go on with another engine (engine=, or allow_fallback="cpu").'


def _frames(error: BaseException) -> list[tuple[Any, int]]:
    return list(traceback.walk_tb(error.__traceback__))


def _place_of(frames: list[tuple[Any, int]]) -> str:
    """The innermost line of this package."""
    for frame, line in reversed(frames):
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            return f"{file[len(_PACKAGE) + 1 :]}:{line}"
    return "in no line of ours" if not frames else f"{frames[-1][0].f_code.co_filename}:{frames[-1][1]}"


def _text_of(error: BaseException) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= 300 else text[:300] + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _node_of(frames: list[tuple[Any, int]]) -> str:
    """The node that the innermost frames were about: a local ``node``, that of a local ``call``, else any local that is a node."""
    for frame, _ in reversed(frames):
        values = frame.f_locals
        named = [values.get("node"), getattr(values.get("call"), "node", None), *values.values()]
        for value in named:
            with contextlib.suppress(Exception):
                if (text := _node_text(value)) != "":
                    return text
    return ""


def _node_text(value: object) -> str:
    """``%c (conv, "Conv_0", model.py:12)`` for a node of the IR, ``'Conv_0' (Conv)`` for one of an ONNX model, else nothing."""
    kind = type(value).__module__
    if kind.startswith("onnx") and hasattr(value, "op_type"):
        return f"{value.name!r} ({value.op_type})"  # type: ignore[attr-defined]
    if kind != f"{__package__}.ir.parts" or not hasattr(value, "sources"):
        return ""
    facts = [value.op]  # type: ignore[attr-defined]
    for source in value.sources[:3]:
        line = f"{source.file}:{source.line}" if source.file and source.line else source.file
        facts += [f for f in (source.name and repr(source.name), source.module, line) if f]
    return f"%{value.name} ({', '.join(facts)})"  # type: ignore[attr-defined]
