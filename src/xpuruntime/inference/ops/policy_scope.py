"""Which policy a call is under, as one object that the core knows by its number."""

from __future__ import annotations

import json
from typing import Any

from ... import _core
from ...policies import Policy, Resolved
from ...policies.context import current_policy
from ...policies.entrances import demanded
from ...store import digest
from .explained import Wanted

__all__ = ["asked_policy", "effective_demands", "known_policy"]

_MOST = 64
_merged: dict[tuple[int, int], tuple[Any, Policy, Any]] = {}
_numbers: dict[str, int] = {}
_known: dict[int, tuple[Any, int]] = {}


def asked_policy(policy: Any) -> Any:
    """What a call's own policy and the enclosing blocks say together, the same object each time where both are frozen objects.

    Others (mappings, paths) are read again by each call: they may have changed. Raises PolicyError.
    """
    if isinstance(policy, Wanted):
        return policy
    around = current_policy()
    key = id(policy), id(around)
    found = _merged.get(key)
    if found is not None:
        return found[1]
    from ...policies import load_policy

    merged = around.merge(load_policy(policy))
    if getattr(type(policy), "__dataclass_params__", None) is not None:
        if len(_merged) >= _MOST:
            _merged.clear()
        _merged[key] = (policy, merged, around)  # held, so that nobody else gets their ids
    return merged


def known_policy(table: _core.Ops, asked: Any) -> int:
    """The policy's number: equal policies have equal ones. The core knows it from now on."""
    found = _known.get(id(asked))
    if found is not None and found[0] is asked:
        table.know_policy(asked, found[1])
        return found[1]
    whole = digest({"policy": json.loads(json.dumps(effective_demands(asked).policy.to_dict(), default=str))})
    number = _numbers.setdefault(whole, len(_numbers))
    if len(_known) >= _MOST:
        _known.clear()
    _known[id(asked)] = (asked, number)
    table.know_policy(asked, number)
    return number


def effective_demands(asked: Any) -> Resolved:
    """With what the environment adds, but what an op cannot honor is an error. Raises PolicyError, UnavailableError."""
    return demanded("ops", {}, asked)
