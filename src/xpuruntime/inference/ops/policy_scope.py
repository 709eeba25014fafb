"""The policy of a call as one object with a number that the core knows."""

from __future__ import annotations

import json
from typing import Any

from ... import _core
from ...policies import Policy, Resolved
from ...policies.context import current_policy
from ...policies.entrances import demanded
from ...storage.store import digest
from .explained import OpRequest

__all__ = ["asked_policy", "effective_demands", "known_policy"]

_MOST = 64
_merged: dict[tuple[int, int], tuple[Any, Policy, Any]] = {}
_numbers: dict[str, int] = {}
_known: dict[int, tuple[Any, int]] = {}


def asked_policy(policy: Any) -> Any:
    """Return a call's own policy merged over the enclosing blocks. Frozen arguments give the same object each time.

    Mappings and paths are read again by each call, because they may have changed. Raises PolicyError.
    """
    if isinstance(policy, OpRequest):
        return policy
    around = current_policy()
    key = id(policy), id(around)
    cached = _merged.get(key)
    if cached is not None:
        return cached[1]
    from ...policies import load_policy

    merged = around.merge(load_policy(policy))
    if getattr(type(policy), "__dataclass_params__", None) is not None:
        if len(_merged) >= _MOST:
            _merged.clear()
        _merged[key] = (policy, merged, around)  # keeps the objects alive, so that their ids stay unique
    return merged


def known_policy(table: _core.Ops, request: Any) -> int:
    """Return the policy's number and register it in the core. Equal policies have equal numbers."""
    cached = _known.get(id(request))
    if cached is not None and cached[0] is request:
        table.know_policy(request, cached[1])
        return cached[1]
    whole = digest(
        {"policy": json.loads(json.dumps(effective_demands(request).policy.to_dict(), default=str))}
    )
    number = _numbers.setdefault(whole, len(_numbers))
    if len(_known) >= _MOST:
        _known.clear()
    _known[id(request)] = (request, number)
    table.know_policy(request, number)
    return number


def effective_demands(request: Any) -> Resolved:
    """Return the demands with those of the environment. Raises PolicyError for demands that an op cannot honor, and UnavailableError."""
    return demanded("ops", {}, request)
