"""Reproductions of faults: one folder each, below the store's root, or in the temporary folder if the store is not writable.

    reports/<digest>/report.txt     what failed, versions, how to replay it, the traceback
                     graph.txt      the graph without weights, for ``ir.parse`` and ``xpu compile``
                     policy.json    the policy

A repeated failure reuses its folder. Folders have mode 0700, at most ``MAX_REPORTS`` are kept, and no file exceeds ``MAX_BYTES``.
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
from .storage.store import Store

__all__ = ["MAX_BYTES", "MAX_REPORTS", "report_folders", "reports_into", "write_report"]

MAX_REPORTS = 20
MAX_BYTES = 16 * 2**20
_NAME = re.compile(r"[0-9a-f]{16}")
_PACKAGES = ("xpuruntime", "numpy", "ml_dtypes", "torch", "onnx", "onnxruntime", "openvino")
_FOLDERS: ContextVar[tuple[Path, ...]] = ContextVar("reports_folders", default=())
_log = logger("xpuruntime.faults")


@contextlib.contextmanager
def reports_into(*folders: Path) -> Iterator[None]:
    """Set the folders for reproductions; the first writable one is used."""
    token = _FOLDERS.set(folders)
    try:
        yield
    finally:
        _FOLDERS.reset(token)


def report_folders(store: Store | None = None) -> tuple[Path, ...]:
    """Return the folders to try in order: below the root of a store (default: the user's), then the temporary folder."""
    if store is None and _FOLDERS.get():
        return _FOLDERS.get()
    temporary = Path(tempfile.gettempdir()) / f"xpuruntime-reports-{os.getuid()}"
    with contextlib.suppress(Exception):  # writing a report must never raise
        store = store or Store()
        if store.mode == "rw":
            return store.root / "reports", temporary
    return (temporary,)


def write_report(subject: Any, sentence: str, error: BaseException) -> str:
    """Write a reproduction. Return its folder and, on a second line, the replay command; ``""`` if nothing could be written."""
    try:
        return _write(subject, sentence, error)
    except Exception as again:  # the original error matters more than this one
        _log.debug("no reproduction could be written: %s: %s", type(again).__name__, again)
        return ""


def _reports() -> Path:
    """Return the first folder that only this user can write. Raises OSError if there is none."""
    for path in report_folders():
        with contextlib.suppress(OSError):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_private(path):
                tempfile.TemporaryFile(dir=path).close()  # raises OSError if the folder is not writable
                return path
    return Path(tempfile.mkdtemp(prefix="xpuruntime-reports-"))


def _is_private(path: Path) -> bool:
    """Return True for a real folder (no link) that belongs to this user and that others cannot write."""
    facts = path.lstat()
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022


def _write(subject: Any, sentence: str, error: BaseException) -> str:
    files, command = _files(subject, error)
    content = "".join(files.values()) + sentence
    name = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]
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
        if not folder.is_dir():  # otherwise another process wrote the same report meanwhile
            raise
    _trim(reports, folder)
    return f"{folder}\n{line}"


def _files(subject: Any, error: BaseException) -> tuple[dict[str, str], str]:
    """Return the files by name, and the replay command with the placeholder FOLDER for their folder."""
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
        args = [w for t in subject.targets for w in ("--target", t)] + list(subject.replay_args)
        command = " ".join([command, *(shlex.quote(w) for w in args)])
    return files, command


def _report(subject: Any, sentence: str, command: str, error: BaseException) -> str:
    text = "".join(traceback.format_exception(error, limit=200))
    lines = [
        sentence,
        "",
        f"replay: {command or 'not possible: the graph is not known'}",
        f"targets: {', '.join(subject.targets) or 'not known'}",
        f"further arguments: {shlex.join(subject.replay_args)}",
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
    """Remove the oldest reports until ``MAX_REPORTS`` are left. Other files in the folder are not touched."""
    folders = []
    for path in reports.iterdir():
        if _NAME.fullmatch(path.name) and path != keep:
            with contextlib.suppress(OSError):
                facts = path.lstat()
                if stat.S_ISDIR(facts.st_mode):
                    folders.append((facts.st_mtime, path))
    for _, path in sorted(folders, reverse=True)[MAX_REPORTS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
