"""The ledger of measurements in the store: which machine a request was last measured on, so that measuring anew is never silent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...errors import StoreError
from ...printable import logger
from ...storage.store import Store, digest

__all__ = ["note_measured", "remeasure_reason"]

_KIND = "tuned"
_log = logger("xpuruntime.session")


def remeasure_reason(store: Store, ingredients: Mapping[str, Any]) -> str:
    """Return why the kernels of a program are measured although they were before; empty for a first measurement.

    ingredients: the key of the program, which is not in the store.
    """
    here = _facts(ingredients)
    if not here:
        return ""
    past = store.recall(_KIND, digest(_request(ingredients)), _parsed)
    if past is None:
        return ""
    differ = [f"{n} is {here.get(n)} here, {past.get(n)} before" for n in here if past.get(n) != here[n]]
    return "; ".join(differ) or "the store no longer has the program that was measured before"


def note_measured(store: Store, ingredients: Mapping[str, Any]) -> None:
    """Record that the kernels of a program were measured on this machine."""
    if here := _facts(ingredients):
        try:
            store.put(_KIND, _request(ingredients), json.dumps(here).encode())
        except StoreError as error:  # a full disk must not stop a model that is already built
            _log.warning("%s A later measurement cannot say what changed.", error)


def _facts(ingredients: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts that the measurement depends on; empty for a request without one."""
    fingerprint = ingredients.get("fingerprint", {})
    return _parsed(fingerprint["tune"].encode()) if "tune" in fingerprint else {}


def _parsed(payload: bytes) -> dict[str, str]:
    return {str(k): str(v) for k, v in json.loads(payload).items()}


def _request(ingredients: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key without what may change while the request stays: releases, compiler, device and driver."""
    return {k: v for k, v in ingredients.items() if k not in ("xpuruntime", "fingerprint")}
