"""Child processes and their temporary folders. A child never imports from the current folder, and its files are always removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["environment", "python", "run", "scratch"]

_SETTLED_S = 60.0  # seconds: a younger folder may not be locked yet by the process that created it


def python(*arguments: str) -> list[str]:
    """Return the command line of a new interpreter. ``-P`` keeps a file numpy.py in the current folder from shadowing NumPy."""
    return [sys.executable, "-P", *arguments]


def environment(**extra: str) -> dict[str, str]:
    """Return the environment of a child: this process's, without the current folder in the import path, plus ``more``."""
    paths = [p for p in sys.path if Path(p).is_absolute()]
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(paths), **extra}


def run(
    command: Sequence[str],
    seconds: float,
    env: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command and return its output and exit code. Raise OSError, subprocess.TimeoutExpired.

    folder: the command's current folder; by default this process's.

    The command leads a process group. An exception here kills the whole group, so a compiler's own children end, too.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment() if env is None else env,
        cwd=folder,
        start_new_session=True,
    ) as child:
        try:
            out, err = child.communicate(timeout=seconds)
        except BaseException:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, child.returncode, out, err)


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """Yield a temporary folder that is removed at the end, on SIGTERM too. Folders of killed processes are removed first."""
    _sweep(prefix)
    with _sigterm_unwinds():
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(
                    handle, fcntl.LOCK_EX
                )  # the kernel releases it when this process ends, even by SIGKILL
                yield folder
            finally:
                os.close(handle)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class _Terminated(BaseException):
    """A SIGTERM that arrived inside the block."""


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Turn SIGTERM into an exception inside the block, then end the process by it. A handler that the user installed stays."""
    on_main_thread = threading.current_thread() is threading.main_thread()
    if not on_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Terminated

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _sweep(prefix: str) -> None:
    """Remove this user's folders with the prefix whose process has ended."""
    settled_before = time.time() - _SETTLED_S
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                facts = os.fstat(handle)
                if facts.st_uid == os.geteuid() and facts.st_mtime < settled_before:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
