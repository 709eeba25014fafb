"""Where the core keeps plans that vendors' libraries compile: in the store of the session that opens a program.

Compiling a plan of cuDNN takes up to half a second, and another process restores it in milliseconds. The core calls these functions from the
threads that prepare a program.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

from ... import _core
from ...errors import StoreError
from ...storage.store import Store, digest

__all__ = ["PLANS", "plan_store"]

PLANS = "vendor-plan"
"""Kind of the store's entries that hold a plan of cuDNN."""


def plan_store(store: Store | None) -> _core.PlanStore | None:
    """Return a store as the core reads and writes it; None for one that is off. Without a store, return that of ``XPU_CACHE_DIR``."""
    at = Store() if store is None else store
    return None if at.mode == "off" else _functions(at.root, at.limit, at.mode)


@functools.cache
def _functions(root: Path, limit: int, mode: str) -> _core.PlanStore:
    """Return the functions of a store: the core never frees them, so a store has one pair."""

    def get(key: str) -> bytes:
        """Return the plan; empty if it is not there."""
        return Store(root, limit=limit, mode=mode).get(PLANS, digest({"plan": key})) or b""

    def put(key: str, plan: bytes) -> None:
        """Store a plan. A store that cannot be written is ignored."""
        with contextlib.suppress(StoreError):
            Store(root, limit=limit, mode=mode).put(PLANS, {"plan": key}, plan)

    return _core.plan_store(f"{mode} {root}", get, put)
