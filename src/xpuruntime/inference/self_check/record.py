"""Stored verdicts of self-checks: a model that was checked on this device with these versions is not checked again.

``ingredients`` are the facts that a verdict depends on: model, device, engine, versions. Their digest is the key.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from ...decisions import Reason
from ...errors import StoreError
from ...storage.store import Store, digest
from .verdict import Verdict

__all__ = ["KIND", "keep", "recall"]

KIND = "self_check"
_FORMAT = 4
_CODES = (Reason.CHECKED, Reason.NOT_CHECKED, Reason.WRONG_RESULT)
_log = logging.getLogger("xpuruntime.session")


def recall(store: Store, ingredients: Mapping[str, Any]) -> Verdict | None:
    """Return the stored verdict, or None if there is none that this release can read."""
    try:
        payload = store.get(KIND, digest(_key(ingredients)))
    except StoreError as error:  # the check can run again
        _log.debug("%s", error)
        return None
    if payload is None:
        return None
    try:
        known = json.loads(payload)
        code = Reason(known["code"])
        fine = code in _CODES and all(isinstance(known[k], str) for k in ("by", "text"))
        return Verdict(code, known["by"], known["text"], True) if fine else None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        _log.warning("The stored result of a self_check cannot be read and is ignored: %s", error)
        return None


def keep(store: Store, ingredients: Mapping[str, Any], verdict: Verdict) -> None:
    """Store a verdict. A full disk must not stop a session that is open."""
    record = {"code": verdict.code.value, "by": verdict.by, "text": verdict.text}
    try:
        store.put(KIND, _key(ingredients), json.dumps(record).encode())
    except StoreError as error:
        _log.warning("%s The model runs; the next start checks it again.", error)


def _key(ingredients: Mapping[str, Any]) -> dict[str, Any]:
    return {"self_check": _FORMAT, **ingredients}
