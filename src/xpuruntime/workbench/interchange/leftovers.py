"""The demands of a policy that a foreign format has no word for."""

from __future__ import annotations

import json
from collections.abc import Collection

from ...policies.policy import Policy
from .report import ConvertedItem, ItemOutcome

__all__ = ["leftovers"]


def leftovers(
    policy: Policy, why: str, *, kernel: Collection[str] = (), execution: Collection[str] = ()
) -> list[ConvertedItem]:
    """Return an item, not carried, for each field that is set and that the collections do not name."""
    items = []
    for part, done in (("kernel", kernel), ("execution", execution)):
        for name, value in policy.to_dict().get(part, {}).items():
            if name not in done:
                text = f"{part}.{name}: {json.dumps(value, ensure_ascii=False)}"
                remedy = "Keep the policy file next to the result."
                items.append(ConvertedItem(text[:200], ItemOutcome.NOT_CARRIED, reason=why, remedy=remedy))
    return items
