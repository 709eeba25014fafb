"""Reading of any file that ``xpu diff`` and ``xpu check`` take, by its content."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...errors import FormatError
from ...inference.models.programs import holds_program
from ...profiler.receipt import Receipt
from ...program.lock import Lock
from ...program.plan import Plan
from ...program.program import CompiledProgram
from ...storage.files import read_regular
from .receipt_file import output_states
from .snapshot import Snapshot, of_lock, of_plan, of_program, of_receipt

__all__ = ["read_document", "read_snapshot"]

_MAX_BYTES = 1 << 30


def read_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Read a plan, a receipt, a program or a lock. Raises FormatError for any other file, and for a damaged one.

    The documents of ``xpu explain --json`` and ``xpu run --receipt --json`` are read, too.
    """
    if holds_program(path):
        return of_program(CompiledProgram.load(path), str(path))
    data = read_document(path)
    try:
        return _READERS[data["format"]](data, str(path))
    except FormatError as error:
        raise FormatError(f"{error.who} {path}", error.what, got=error.got, do=error.do) from error


def read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the JSON data of a plan, a receipt or a lock, whose ``format`` says which. Raises FormatError for any other file.

    Of what ``xpu explain --json`` or ``xpu run --receipt --json`` printed, return the plan or the receipt in it.
    """
    who = f"file {os.fspath(path)}"
    try:
        content = read_regular(Path(path), _MAX_BYTES)
    except (OSError, ValueError) as error:
        raise FormatError(who, "cannot be read", got=error, do="Check the path.") from error
    try:
        data = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        got = "binary data" if isinstance(error, UnicodeDecodeError) else f"text that is not JSON ({error})"
        raise FormatError(who, _OTHER, got=got, do=_WRITE) from error
    if isinstance(data, dict) and "format" not in data:
        data = next((data[k] for k in ("receipt", "plan") if isinstance(data.get(k), dict)), data)
    kind = data.get("format") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(kind, str) or kind not in _READERS:
        got = repr(kind)[:80] if isinstance(data, dict) else type(data).__name__
        raise FormatError(who, _OTHER, got=f"format {got}", do=_WRITE)
    return data


_OTHER = "is not a plan, receipt, program or lock"
_WRITE = "Write one of a model with xpu explain --save PLAN.json, xpu run --save-receipt RECEIPT.json, xpu compile or xpu lock."


def _plan(data: Mapping[str, Any], name: str) -> Snapshot:
    return of_plan(Plan.from_json(data), name)


def _receipt(data: Mapping[str, Any], name: str) -> Snapshot:
    receipt = Receipt.from_json(data)
    try:
        inputs = {str(k): str(v) for k, v in data.get("inputs", {}).items()}
        outputs = output_states(data.get("outputs", ()))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        do = "Write the receipt again with this release."
        raise FormatError("receipt", "has invalid inputs or outputs", got=error, do=do) from error
    return of_receipt(receipt, name, inputs, outputs)


def _lock(data: Mapping[str, Any], name: str) -> Snapshot:
    return of_lock(Lock.from_json(data), name)


_READERS: dict[str, Callable[[Mapping[str, Any], str], Snapshot]] = {
    "xpuruntime-plan": _plan,
    "xpuruntime-receipt": _receipt,
    "xpuruntime-lock": _lock,
}
