"""The ``command`` decorator. It turns a function that returns a ``CommandResult`` into a command of ``xpu``.

With ``--json``, stdout holds one JSON document. While the command runs, file descriptor 1 of the process points at stderr, so that the
prints of vendors' C code do not mix with the document. Errors are printed as text or as a JSON object and set the exit code. If stdout
cannot be written, the error is written to stderr.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import logging
import math
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import typer

from .. import env, printable
from ..errors import StoreError, XpuError
from .exit_codes import ExitCode

__all__ = ["CommandResult", "command", "to_plain"]

_WRITTEN: Mapping[str, str] = {
    **{n: f"--{n}" for n in ("output", "save", "html", "export", "plot", "report", "trace")},
    **{n: f"--{n}" for n in ("markdown", "junit", "annotated", "results")},
    "receipt_file": "--save-receipt",
}
"""Parameters of commands that name a file to write, and their flags."""
_LOG_LEVELS = {1: logging.INFO, 2: logging.DEBUG, 3: logging.DEBUG}


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command: a JSON document, a function that prints it as text (not called with ``--json``), an exit code."""

    document: Mapping[str, Any]
    show: Callable[[], None]
    code: ExitCode = ExitCode.OK


def command(function: Callable[..., CommandResult]) -> Callable[..., None]:
    """Return the command for a function. A parameter annotated with a dataclass becomes one option for each of its fields."""
    signature, groups = _flat_signature(function)

    @functools.wraps(function)
    def run(**values: Any) -> None:
        as_json = bool(values.get("as_json", False))
        with _reserve_stdout(as_json) as stdout, _report_errors(as_json, stdout):
            if stdout is None:  # Report a closed stdout before the work starts.
                raise _stdout_error("it is closed")
            _keep_read_files(values)
            result = function(**_group_values(values, groups))
            with _flush_or_raise(stdout):
                if as_json:
                    _print_json(result.document, stdout)
                else:
                    result.show()
            if result.code:
                raise typer.Exit(int(result.code))

    # Typer reads these two. Without __wrapped__ it does not look at the original function.
    run.__dict__["__signature__"] = signature
    run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    del run.__dict__["__wrapped__"]
    return run


def _flat_signature(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, type]]:
    """Return the signature with option groups replaced by their fields, and the group class of each such parameter."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            groups[parameter.name] = hint
            field_hints = typing.get_type_hints(hint, include_extras=True)
            parameters += [_keyword(f.name, field_hints[f.name], f.default) for f in dataclasses.fields(hint)]
        else:
            parameters.append(_keyword(parameter.name, hint, parameter.default))
    return inspect.Signature(parameters), groups


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _group_values(values: Mapping[str, Any], groups: Mapping[str, type]) -> dict[str, Any]:
    """Return keyword arguments for the function: the values of each group's fields as one instance of the group."""
    arguments = dict(values)
    for name, group in groups.items():
        fields = {f.name: arguments.pop(f.name) for f in dataclasses.fields(group)}
        arguments[name] = group(**fields)
    return arguments


def _keep_read_files(values: Mapping[str, Any]) -> None:
    """Raise BadParameter for a file to write that is also read, or that another option writes."""
    read = [text for name, value in values.items() if name not in _WRITTEN for text in _paths(value)]
    written: list[tuple[str, Path]] = []
    for name, flag in _WRITTEN.items():
        for path in map(Path, _paths(values.get(name))):
            if any(_same_file(path, text) for text in read):
                text = f"it would overwrite a file that the command reads; got {str(path)!r}"
                raise typer.BadParameter(text, param_hint=flag)
            for other, taken in written:
                if other != flag and (_same_file(path, taken) or _same_new_file(path, taken)):
                    text = f"{other} writes the same file; got {str(path)!r}"
                    raise typer.BadParameter(text, param_hint=flag)
            written.append((flag, path))


def _paths(value: Any) -> Iterator[str]:
    """Yield the texts of an argument that may be paths: ``FILE``, ``NAME=FILE`` and ``FORMAT:FILE``."""
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, str | Path):
            text = str(item)
            yield from dict.fromkeys((text, text.rpartition("=")[2], text.partition(":")[2] or text))


def _same_file(path: Path, other: str | Path) -> bool:
    """Return True if both are one regular file."""
    with contextlib.suppress(OSError, ValueError):
        return path.is_file() and Path(other).is_file() and path.samefile(other)
    return False


def _same_new_file(path: Path, other: Path) -> bool:
    """Return True if both would be one file, which does not exist."""
    with contextlib.suppress(OSError, ValueError):
        return not path.exists() and path.resolve() == other.resolve()
    return False


def to_plain(value: Any) -> Any:
    """Convert a value to JSON types. Infinities, NaN, paths and dtypes become text; enums become their value."""
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(v) for v in value]
    if hasattr(value, "tolist"):  # A NumPy scalar or array.
        return to_plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or type(value) in (bool, int, str):
        return value
    return to_plain(value.value) if hasattr(value, "value") else str(value)


def _print_json(document: Mapping[str, Any], stdout: TextIO) -> None:
    text = json.dumps(to_plain(document), indent=2, ensure_ascii=False, allow_nan=False)
    stdout.write(printable.as_json(text) + "\n")
    stdout.flush()


class _StdoutError(StoreError):
    """An error of writing stdout. It is printed on stderr, also with ``--json``."""


def _stdout_error(got: object) -> _StdoutError:
    return _StdoutError(
        "stdout", "cannot be written", got=got, do="Redirect it to a writable file on a disk with free space."
    )


@contextlib.contextmanager
def _flush_or_raise(stdout: TextIO) -> Iterator[None]:
    """Flush stdout after the block, so that write errors are raised here and not at exit. Raise _StdoutError."""
    try:
        yield
        stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _redirect_to_null(stdout)
        raise _stdout_error(error.strerror or error) from error


def _redirect_to_null(stream: TextIO) -> None:
    """Point stdout or stderr at the null device after a failed write. Otherwise Python fails on the buffered rest at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if (descriptor := stream.fileno()) in (1, 2):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)
            os.close(null)


def _write_stderr(text: str) -> None:
    """Write text to stderr. If that fails, only the exit code remains."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _redirect_to_null(sys.stderr)


@contextlib.contextmanager
def _reserve_stdout(as_json: bool) -> Iterator[TextIO | None]:
    """Yield the stream for the result, or None if the process has no stdout.

    With ``as_json``, file descriptor 1 points at stderr for the rest of the process: C code may flush its buffers as late as at exit.
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
        with contextlib.suppress(OSError):  # A write error was already reported.
            document.close()


def _is_process_stdout(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except (OSError, ValueError, AttributeError):
        return False


@contextlib.contextmanager
def _report_errors(as_json: bool, stdout: TextIO | None) -> Iterator[None]:
    """Print errors of the block as text or JSON, and exit with their code."""
    with _logging():
        try:
            yield
        except XpuError as error:
            _report(error.to_json(), error, as_json, stdout)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            _write_stderr("interrupted\n")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except BrokenPipeError:
            for stream in (stdout, sys.stderr):
                if stream is not None:
                    _redirect_to_null(stream)
            raise typer.Exit(ExitCode.PIPE) from None
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except Exception as error:
            from ..faults import as_known  # Imports 30 modules, which commands without an error do not need.

            xpu_error = as_known(error, "xpu")
            xpu_error.__cause__ = error
            _report(xpu_error.to_json(), xpu_error, as_json, stdout)
            raise typer.Exit(xpu_error.exit_code) from error


def _debug_level() -> int:
    text = env.get("XPU_DEBUG")
    return int(text) if text.isdecimal() else 0


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Write the package's log records to stderr, one line each: warnings always, lower levels as XPU_DEBUG says."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LowercaseLevelFormatter("%(levelname)s: %(message)s"))
    logger = logging.getLogger("xpuruntime")
    saved = logger.level, logger.propagate
    logger.setLevel(_LOG_LEVELS.get(min(_debug_level(), 3), logging.WARNING))
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = saved


class _LowercaseLevelFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level, colon, rest = super().format(record).partition(":")
        return printable.text(level.lower() + colon + rest, "    ")


def _report(document: Mapping[str, Any], error: Exception, as_json: bool, stdout: TextIO | None) -> None:
    if _debug_level() >= 1:
        import traceback

        _write_stderr("".join(traceback.format_exception(error)))
    if as_json and stdout is not None and not isinstance(error, _StdoutError):
        with contextlib.suppress(OSError):  # If stdout fails, print the error on stderr below.
            _print_json(document, stdout)
            return
    lines = [f"error: [{document['who']}] {document['what']}"]
    if document["got"] is not None:
        lines.append(f"  got: {document['got']}")
    if document["do"]:
        lines.append(f"  do:  {document['do']}")
    lines = [printable.text(line, "       ") for line in lines]
    decision = getattr(error, "decision", None)
    if decision is not None:
        lines += ["  " + line for line in decision.explain().splitlines()]
    _write_stderr("\n".join(lines) + "\n")
