"""Every verb gives an ``Answer`` back: one document, a way to show it, an exit code. ``verb`` does the rest in one place.

With ``--json`` the document goes to stdout and nothing else does: while the verb works, the process's stdout is stderr, so
that not even a vendor's C code can write into the document. Errors become a short text, or a JSON object, and the exit code;
where stdout cannot be written, that is an error too, told on stderr.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TextIO

import typer

from .. import env, printable
from ..errors import StoreError, XpuError
from ..faults import as_known
from .exit_codes import ExitCode

__all__ = ["Answer", "plain", "verb"]

_P = ParamSpec("_P")
_LOG_LEVELS = {1: logging.INFO, 2: logging.DEBUG, 3: logging.DEBUG}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb found out. ``show`` prints it for people; it is called only without ``--json``."""

    document: Mapping[str, Any]
    show: Callable[[], None]
    code: ExitCode = ExitCode.OK


def verb(function: Callable[_P, Answer]) -> Callable[_P, None]:
    """Make a command of a function that gives an Answer: prints it, turns errors into text and exit codes."""

    @functools.wraps(function)
    def command(*args: _P.args, **kwargs: _P.kwargs) -> None:
        as_json = bool(kwargs.get("as_json", False))
        with _one_document(as_json) as stdout, _guard(as_json, stdout):
            if stdout is None:  # closed by whoever started the process: say so before the work, not after it
                raise _stdout_error("it is closed")
            answer = function(*args, **kwargs)
            with _writing(stdout):
                if as_json:
                    _print_json(answer.document, stdout)
                else:
                    answer.show()
            if answer.code:
                raise typer.Exit(int(answer.code))

    return command


def plain(value: Any) -> Any:
    """The value as JSON can hold it: infinities and NaN become text, enums their value, paths and dtypes their text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # a NumPy scalar or array
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or type(value) in (bool, int, str):
        return value
    return plain(value.value) if hasattr(value, "value") else str(value)


def _print_json(document: Mapping[str, Any], stdout: TextIO) -> None:
    text = json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)
    stdout.write(printable.as_json(text) + "\n")
    stdout.flush()


class _StdoutError(StoreError):
    """Stdout cannot be written, so that neither the answer nor the error can go there."""


def _stdout_error(got: object) -> _StdoutError:
    return _StdoutError(
        "stdout", "cannot be written", got=got, do="Send it where there is room and a right to write."
    )


@contextlib.contextmanager
def _writing(stdout: TextIO) -> Iterator[None]:
    """Write the answer to its last byte, so that what fails fails here and not when the process ends."""
    try:
        yield
        stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _let_go(stdout)
        raise _stdout_error(error.strerror or error) from error


def _let_go(stream: TextIO) -> None:
    """Point a process's own stream that failed at nothing: else Python fails on its unwritten rest when the process ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if (descriptor := stream.fileno()) in (1, 2):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, descriptor)
            os.close(nothing)


def _say(text: str) -> None:
    """Text on stderr, or nowhere: the exit code tells the rest."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _let_go(sys.stderr)


@contextlib.contextmanager
def _one_document(as_json: bool) -> Iterator[TextIO | None]:
    """Hand out the real stdout for the document and point everybody else's stdout at stderr, for the rest of the process:
    what a vendor's C code has buffered comes out when the process ends. None: the process has no stdout.
    """
    stdout: TextIO | None = sys.stdout
    if not as_json or stdout is None or not _is_process_stdout(stdout):
        yield stdout
        return
    with contextlib.suppress(OSError):
        stdout.flush()
    document = os.fdopen(os.dup(1), "w", encoding="utf-8")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            os.dup2(2, 1)
            yield document
    finally:
        with contextlib.suppress(OSError):  # what could not be written has been told already
            document.close()


def _is_process_stdout(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except (OSError, ValueError, AttributeError):
        return False


@contextlib.contextmanager
def _guard(as_json: bool, stdout: TextIO | None) -> Iterator[None]:
    """Errors of the verb as text or JSON, and the exit code that belongs to them."""
    with _logging():
        try:
            yield
        except XpuError as error:
            _report(error.to_json(), error, as_json, stdout)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            _say("interrupted\n")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except BrokenPipeError:
            for stream in (stdout, sys.stderr):
                if stream is not None:
                    _let_go(stream)
            raise typer.Exit(ExitCode.PIPE) from None
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except Exception as error:
            known = as_known(error, "xpu")
            known.__cause__ = error
            _report(known.to_json(), known, as_json, stdout)
            raise typer.Exit(known.exit_code) from error


def _debug_level() -> int:
    text = env.get("XPU_DEBUG")
    return int(text) if text.isdecimal() else 0


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Our log lines on stderr, one line each: warnings always, more with XPU_DEBUG."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lower("%(levelname)s: %(message)s"))
    logger = logging.getLogger("xpuruntime")
    before = logger.level, logger.propagate
    logger.setLevel(_LOG_LEVELS.get(min(_debug_level(), 3), logging.WARNING))
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


class _Lower(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        head, colon, rest = super().format(record).partition(":")
        return printable.text(head.lower() + colon + rest, "    ")


def _report(document: Mapping[str, Any], error: Exception, as_json: bool, stdout: TextIO | None) -> None:
    if _debug_level() >= 1:
        _say("".join(traceback.format_exception(error)))
    if as_json and stdout is not None and not isinstance(error, _StdoutError):
        with contextlib.suppress(OSError):  # else the error is told on stderr after all
            _print_json(document, stdout)
            return
    lines = [f"error: [{document['who']}] {document['what']}"]
    if document["got"] is not None:
        lines.append(f"  got: {document['got']}")
    if document["do"]:
        lines.append(f"  do:  {document['do']}")
    lines = [printable.text(said, "       ") for said in lines]
    decision = getattr(error, "decision", None)
    if decision is not None:
        lines += ["  " + line for line in decision.explain().splitlines()]
    _say("\n".join(lines) + "\n")
