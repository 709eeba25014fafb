"""Functions with a hard time limit: each runs in its own process, which is killed with all of its children.

A compiler cannot be interrupted from within, so work with a limit runs in a fresh interpreter. A fork would not do: vendors' threads do not
survive one. Starting it costs about a second, only where a limit is set. The limit counts from the start of the work itself.

The child leads a process group and writes its temporary files to its own folder. It ends with its group when the parent ends, however
that happens: it watches a pipe that the kernel then closes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .children import environment, python, scratch
from .errors import BuildError, BuildTimeout
from .fault_reports import report_folders, reports_into
from .plugins.loader import load_dotted
from .protocols import Artifact, EngineRequest, ModelSource

__all__ = ["build_within", "call_within"]

_START_S = 120.0  # longest time for the interpreter to start and to read its arguments
_MAIN = "from xpuruntime.child_calls import _child; _child()"


def build_within(entry: str, model: ModelSource, request: EngineRequest, seconds: float) -> Artifact:
    """Build with the engine whose module is ``entry``. Raises BuildTimeout and the errors of ``build``."""
    artifact: Artifact = call_within(f"{entry}:build", (model, request), seconds, f"build of {model.name!r}")
    return artifact


def call_within(
    function: str, arguments: tuple[Any, ...], seconds: float, who: str, limit: str = "compile_timeout_s"
) -> Any:
    """Call ``function`` (``module:name``) in a child process and return its result. The arguments must be picklable.

    limit: what ``seconds`` is, for the text of errors.

    Raises BuildTimeout after ``seconds``, BuildError if the child dies or the arguments cannot be sent, and the errors of the function.
    """
    try:
        work = pickle.dumps((function, arguments, report_folders()), protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        do = f"Drop {limit}, or give the model as a file."
        raise BuildError(who, "cannot be sent to a process that can be stopped", got=error, do=do) from error
    with scratch("xpu-build-") as folder, _started(folder) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        sending = threading.Thread(target=_send, args=(child.stdin, work), daemon=True)
        sending.start()
        if not _line_within(child, _START_S):
            raise BuildError(who, "its process did not start", got=_said(folder), do=f"Drop {limit}.")
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            do = "Allow more time, or name another engine or device; allow_fallback='cpu' continues with another one."
            raise BuildTimeout(
                who, f"took longer than {limit} and was ended", got=f"{seconds} s", do=do
            ) from None
        try:
            fine, value = pickle.loads((folder / "result").read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            got = f"exit code {child.returncode}: {_said(folder)}"
            raise BuildError(who, "its process died", got=got, do="Choose another engine.") from error
    if fine:
        return value
    raise value


@contextlib.contextmanager
def _started(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a child that waits for its work. On exit its whole process group is killed."""
    # The folder is removed with the temporary files of a killed compiler.
    env = environment(TMPDIR=str(folder), _BUILD_FOLDER_OF_XPURUNTIME=str(folder))
    with (folder / "stderr").open("wb") as log:
        child = subprocess.Popen(
            python("-c", _MAIN),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            start_new_session=True,
        )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


def _send(pipe: IO[bytes], work: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        pipe.write(len(work).to_bytes(8, "little") + work)
        pipe.flush()  # the pipe stays open: the child ends when it closes


def _line_within(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return True if the child reports in time that it begins."""
    import select

    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], seconds)
    return bool(ready) and bool(child.stdout.readline())


def _said(folder: Path) -> str:
    text = (folder / "stderr").read_text(errors="replace").split()
    return " ".join(text)[-500:] or "nothing said"


def _child() -> None:
    """Run the child process from start to end."""
    folder = Path(os.environ.pop("_BUILD_FOLDER_OF_XPURUNTIME"))
    begin = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a compiler may print to standard output
    size = int.from_bytes(sys.stdin.buffer.read(8), "little")
    work = sys.stdin.buffer.read(size)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    outcome: tuple[bool, Any]
    try:
        function, arguments, reports = pickle.loads(work)
        call = load_dotted(function)
        begin.write(b"begins\n")
        begin.flush()
        with reports_into(*reports):
            outcome = True, call(*arguments)
    except Exception as error:
        outcome = False, error
        begin.write(b"failed\n")
        begin.flush()
    (folder / "result").write_bytes(pickle.dumps(outcome, protocol=pickle.HIGHEST_PROTOCOL))
    sys.stderr.flush()
    os._exit(0)  # skip interpreter shutdown: vendors' threads may hang it


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the other end is closed
    os.killpg(0, signal.SIGKILL)
