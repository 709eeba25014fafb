"""Reproductions of faults: a folder each, below the store's root, or the temporary folder where that cannot be written.

    reports/<digest>/report.txt     what failed, versions, how to replay it, the traceback
                     graph.txt      the graph, without weights; ``ir.parse`` and ``xpu compile`` read it
                     policy.json    the policy

The same failure is the same folder. Folders are mode 0700, at most ``MOST`` are kept, and no file is larger than ``MAX_BYTES``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import stat
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from typing import Any

from .printable import logger
from .store import Store

__all__ = ["MAX_BYTES", "MOST", "report_folders", "reports_into", "write_report"]

MOST = 20
MAX_BYTES = 16 * 2**20
_NAME = re.compile(r"[0-9a-f]{16}")
_PACKAGES = ("xpuruntime", "numpy", "ml_dtypes", "torch", "onnx", "onnxruntime", "openvino")
_FOLDERS: ContextVar[tuple[Path, ...]] = ContextVar("reports_folders", default=())
_log = logger("xpuruntime.faults")


@contextlib.contextmanager
def reports_into(*folders: Path) -> Iterator[None]:
    """Write reproductions to the first of these folders that can be written."""
    token = _FOLDERS.set(folders)
    try:
        yield
    finally:
        _FOLDERS.reset(token)


def report_folders(store: Store | None = None) -> tuple[Path, ...]:
    """Folders to try, in order: below the root of a store (the default one without), then the temporary folder."""
    if store is None and _FOLDERS.get():
        return _FOLDERS.get()
    temporary = Path(tempfile.gettempdir()) / f"xpuruntime-reports-{os.getuid()}"
    with contextlib.suppress(Exception):  # a report is no reason to fail
        store = store or Store()
        if store.mode == "rw":
            return store.root / "reports", temporary
    return (temporary,)


def write_report(subject: Any, sentence: str, error: BaseException) -> str:
    """Write a reproduction: its folder and, on a second line, the command that replays it; ``""`` where nothing could be written."""
    try:
        return _write(subject, sentence, error)
    except Exception as again:  # the first error is the one to tell
        _log.debug("no reproduction could be written: %s: %s", type(again).__name__, again)
        return ""


def _reports() -> Path:
    """The first folder that this user, and nobody else, can write. Raises OSError where there is none."""
    for path in report_folders():
        with contextlib.suppress(OSError):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_mine(path):
                tempfile.TemporaryFile(dir=path).close()  # whether it can be written
                return path
    return Path(tempfile.mkdtemp(prefix="xpuruntime-reports-"))


def _is_mine(path: Path) -> bool:
    """Whether nobody else can write there: a folder, no link, of this user, closed to others."""
    facts = path.lstat()
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022


def _write(subject: Any, sentence: str, error: BaseException) -> str:
    files, command = _files(subject, error)
    words = "".join(files.values()) + sentence
    name = hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:16]
    reports = _reports()
    folder = reports / name
    line = command.replace("FOLDER", shlex.quote(str(folder))) if command else ""
    files["report.txt"] = _report(subject, sentence, line, error)
    if folder.is_dir() and not folder.is_symlink():
        os.utime(folder)
        return f"{folder}\n{line}"
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=reports))  # mode 0700
    try:
        for file, text in files.items():
            (new / file).write_text(text, encoding="utf-8", errors="backslashreplace")
        new.rename(folder)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not folder.is_dir():  # else another process wrote the same meanwhile
            raise
    _trim(reports, folder)
    return f"{folder}\n{line}"


def _files(subject: Any, error: BaseException) -> tuple[dict[str, str], str]:
    """Files by name, and the command that replays them, in which FOLDER stands for their folder."""
    files: dict[str, str] = {}
    command = ""
    if subject.graph is not None:
        text = str(subject.graph)
        if len(text) <= MAX_BYTES:
            files["graph.txt"] = text
            command = "xpu compile FOLDER/graph.txt --dry-run"
    if subject.policy is not None:
        text = json.dumps(subject.policy.to_dict(), indent=2, default=str) + "\n"
        if len(text) <= MAX_BYTES:
            files["policy.json"] = text
            command += " --policy FOLDER/policy.json" if command else ""
    if command:
        words = [w for t in subject.targets for w in ("--target", t)] + list(subject.words)
        command = " ".join([command, *(shlex.quote(w) for w in words)])
    return files, command


def _report(subject: Any, sentence: str, command: str, error: BaseException) -> str:
    text = "".join(traceback.format_exception(error, limit=200))
    lines = [
        sentence,
        "",
        f"replay: {command or 'not possible: the graph is not known'}",
        f"targets: {', '.join(subject.targets) or 'not known'}",
        f"further words: {shlex.join(subject.words)}",
        f"Python {sys.version.split()[0]}, {platform.platform()}, {platform.machine()}",
        *(f"{name} {_version(name)}" for name in _PACKAGES),
        "",
        text[-MAX_BYTES:],
    ]
    return "\n".join(lines)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _trim(reports: Path, keep: Path) -> None:
    """Remove the oldest folders until ``MOST`` are left. Nothing else that lies there is touched."""
    found = []
    for path in reports.iterdir():
        if _NAME.fullmatch(path.name) and path != keep:
            with contextlib.suppress(OSError):
                facts = path.lstat()
                if stat.S_ISDIR(facts.st_mode):
                    found.append((facts.st_mtime, path))
    for _, path in sorted(found, reverse=True)[MOST - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
