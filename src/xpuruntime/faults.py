"""Failures of xpuruntime's own code: raised as InternalError, with a reproduction on disk.

    with contained("compile", FaultSubject(graph, policy)):    # at an entry point: any other exception becomes an InternalError
        with part("pass fuse_conv"):                           # names the code that runs inside
            ...
            with foreign():                                    # around a user's function: its exceptions pass unchanged
                ...

XpuErrors and KeyboardInterrupt pass unchanged. A MemoryError becomes an OutOfMemory, an OSError a BuildError, and the import of a package that is
not installed an UnavailableError: none of them is a bug.
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
from .plugins.loader import owners
from .plugins.packages import missing_package
from .printable import logger

__all__ = [
    "Fault",
    "FaultSubject",
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
class FaultSubject:
    """The compilation that a reproduction records. The compiler fills in the fields as they become known.

    graph:   its ``str`` is text that ``ir.parse`` reads. policy: has ``to_dict``. targets: names.
    replay_args:   further arguments of the replay command.
    excuse:  the error to raise instead of an InternalError, when the graph itself is invalid.
    """

    graph: Any = None
    policy: Any = None
    targets: tuple[str, ...] = ()
    replay_args: tuple[str, ...] = ()
    excuse: Callable[[], XpuError | None] | None = None
    _written: dict[tuple[object, ...], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure of xpuruntime's own code.

    parts:  the code that failed, from the outside in. node: the node being handled, with its source; ``""`` if unknown.
    source: file and line in this package. text: the exception in one line.
    folder: folder of the reproduction; ``""`` if none could be written.
    """

    parts: tuple[str, ...]
    node: str
    source: str
    text: str
    folder: str = ""
    command: str = ""

    @property
    def sentence(self) -> str:
        """``pass fuse_conv failed at node %c (conv, "Conv_0") with KeyError: 'x' (passes/fuse_conv.py:57)``."""
        who = " in ".join(reversed(self.parts)) or "it"
        at = f" at node {self.node}" if self.node else ""
        return f"{who} failed{at} with {self.text} ({self.source})"


_SUBJECT: ContextVar[FaultSubject | None] = ContextVar("subject", default=None)


def is_fault(error: BaseException) -> bool:
    """Return True for an exception that neither xpuruntime raises on purpose nor a user's function raised."""
    if not isinstance(error, Exception) or hasattr(error, _FOREIGN):
        return False
    return not isinstance(error, XpuError) or hasattr(error, _OURS)


class part:  # noqa: N801  - used as a function
    """A context manager that names the code inside it for fault reports.

    bug_types: error classes that are raised on purpose elsewhere, but inside this block can only come from a bug.
    """

    __slots__ = ("bug_types", "name")

    def __init__(self, name: str, bug_types: tuple[type[XpuError], ...] = ()) -> None:
        self.name, self.bug_types = name, bug_types

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, Exception) or hasattr(error, _FOREIGN):
            return
        if isinstance(error, XpuError):
            if not (hasattr(error, _OURS) or type(error) in self.bug_types):
                return
            setattr(error, _OURS, True)
        with contextlib.suppress(AttributeError, TypeError):
            setattr(error, _PARTS, (self.name, *getattr(error, _PARTS, ())))


@contextlib.contextmanager
def foreign() -> Iterator[None]:
    """Mark a call of a user's function, so that its exceptions pass unchanged."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(AttributeError, TypeError):
            setattr(error, _FOREIGN, True)
        raise


@contextlib.contextmanager
def contained(
    who: str, subject: FaultSubject | None = None, kind: type[XpuError] = InternalError
) -> Iterator[None]:
    """Convert unexpected exceptions into an XpuError, with a reproduction of the subject.

    kind: class of the error; InternalError unless the entry point documents another one.
    """
    token = _SUBJECT.set(subject or _SUBJECT.get())
    try:
        yield
    except Exception as error:
        if not is_fault(error) or _is_call_error(error):
            raise
        raise as_error(error, who, kind) from error
    finally:
        _SUBJECT.reset(token)


def _is_call_error(error: Exception) -> bool:
    """Return True if the decorated function was never entered: a wrong keyword is the caller's mistake."""
    frames = _frames(error) if isinstance(error, TypeError) else []
    return bool(frames) and frames[-1][0].f_code.co_filename == contextlib.__file__


def as_error(error: Exception, who: str, kind: type[XpuError] = InternalError) -> XpuError:
    """Return the error to raise for a fault, after writing its reproduction."""
    subject = _SUBJECT.get()
    if isinstance(error, MemoryError) and not isinstance(error, XpuError):
        do = "Free memory, or use a smaller model or batch."
        return OutOfMemory(who, "this machine has no memory left", got=str(error) or None, do=do)
    if (plugin := of_plugin(error, who)) is not None:
        return plugin
    if (missing := missing_package(error, who)) is not None:
        return missing
    if isinstance(error, OSError) and error.errno is not None:
        refused = BuildError if kind is InternalError else kind
        return refused(
            who,
            "the operating system refused a file or a process",
            got=str(error),
            do="Fix the cause that the system's message names.",
        )
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
    """Return the error to raise if the innermost frame of xpuruntime or a plug-in is the plug-in's, else None. XpuErrors give None, too."""
    if isinstance(error, XpuError):
        return None
    for frame, line in reversed(_frames(error)):
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if top == __package__:
            return None
        if top in owners():
            got = f"{_text_of(error)} ({frame.f_code.co_filename}:{line})"
            do = 'Report it to its authors. Use another engine (engine=, or allow_fallback="cpu").'
            return PluginError(who, f"{owners()[top]} failed", got=got, do=do)
    return None


def as_known(error: Exception, who: str) -> XpuError:
    """Return an XpuError unchanged, and ``as_error`` of a fault. Re-raise an exception of a user's function."""
    if is_fault(error):
        return as_error(error, who)
    if isinstance(error, XpuError):
        return error
    raise error


def recorded(error: Exception) -> Fault:
    """Return the fault of an exception. Write its reproduction once per source line and subject; never raise."""
    subject = _SUBJECT.get() or FaultSubject()
    frames = _frames(error)
    parts: tuple[str, ...] = getattr(error, _PARTS, ())
    fault = Fault(parts, _node_of(frames), _source_of(frames), _text_of(error))
    key = (type(error), parts, fault.source)
    _log.debug("%s", fault.sentence, exc_info=error)
    if key not in subject._written:
        subject._written[key] = write_report(subject, fault.sentence, error)
    folder, _, command = subject._written[key].partition("\n")
    return Fault(parts, fault.node, fault.source, fault.text, folder, command)


def _advice(fault: Fault) -> str:
    sentences = [_workaround(fault)]
    if fault.folder:
        sentences.append(f"Please report it with {fault.folder}, which has the graph and no weights.")
    if fault.command:
        sentences.append(f"`{fault.command}` replays it.")
    return " ".join(w for w in sentences if w)


def _workaround(fault: Fault) -> str:
    """Return a workaround for the user."""
    inner = fault.parts[-1] if fault.parts else ""
    kind, _, name = inner.partition(" ")
    if kind == "pass":
        return f'Meanwhile, compile with passes="-{name}", or use another engine (allow_fallback="cpu").'
    if kind == "kernel":
        return f"Meanwhile, add a policy rule that forbids {name.partition(' ')[0].partition('/')[2]!r}, or use another engine."
    return 'Meanwhile, use another engine (engine=, or allow_fallback="cpu").'


def _frames(error: BaseException) -> list[tuple[Any, int]]:
    return list(traceback.walk_tb(error.__traceback__))


def _source_of(frames: list[tuple[Any, int]]) -> str:
    """Return file and line of the innermost frame in this package."""
    for frame, line in reversed(frames):
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            return f"{file[len(_PACKAGE) + 1 :]}:{line}"
    return "outside this package" if not frames else f"{frames[-1][0].f_code.co_filename}:{frames[-1][1]}"


def _text_of(error: BaseException) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= 300 else text[:300] + " ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _node_of(frames: list[tuple[Any, int]]) -> str:
    """Return the node that the innermost frames handle: a local ``node``, the node of a local ``call``, else any local that is a node."""
    for frame, _ in reversed(frames):
        values = frame.f_locals
        candidates = [values.get("node"), getattr(values.get("call"), "node", None), *values.values()]
        for value in candidates:
            with contextlib.suppress(Exception):
                if (text := _node_text(value)) != "":
                    return text
    return ""


def _node_text(value: object) -> str:
    """Describe a node: ``%c (conv, "Conv_0", model.py:12)`` in the IR, ``'Conv_0' (Conv)`` in an ONNX model; ``""`` for anything else."""
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
