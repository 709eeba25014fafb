"""Recompilation of a program whose library calls were declined, under a policy that forbids them.

A layer of ``forbid`` rules, one for each declined kernel and its nodes, is placed below the user's policy. A kernel that the user prefers is
then skipped. A kernel that the user forces is declined again, which raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import RefusedCall
from ...protocols import EngineRequest

if TYPE_CHECKING:  # reading policies needs packages that listing devices does not
    from ...policies import KernelPolicy

__all__ = ["kernel_policy", "sentence", "without"]

_MOST_NODES = 64  # per rule
_MOST_TEXT = 500


def kernel_policy(request: EngineRequest) -> KernelPolicy:
    """Return the kernel policy of a request; an empty one without demands. Raises PolicyError for a kernel that this process does not know."""
    from ...policies import load_policy

    # A build with a time limit runs in a child process, where this call also loads the user's kernels.
    return load_policy(request.kernels).kernel


def without(policy: KernelPolicy, calls: Sequence[RefusedCall]) -> KernelPolicy:
    """Return the policy merged over rules that forbid the declined kernels at their nodes, with the reason."""
    from ...policies import KernelPolicy, Rule

    rules = []
    for kernel in dict.fromkeys(k for k, _, _ in calls):
        mine = [(nodes, why) for k, nodes, why in calls if k == kernel]
        names = list(dict.fromkeys(n for nodes, _ in mine for n in nodes))
        for at in range(0, len(names), _MOST_NODES):
            patterns = [_exactly(n) for n in names[at : at + _MOST_NODES]]
            rules.append(
                Rule(
                    node=patterns,
                    forbid=kernel.partition("/")[2],
                    reason=_line(f"the library declines: {mine[0][1]}"),
                )
            )
    return KernelPolicy(rules=rules).merge(policy)


def sentence(call: RefusedCall) -> str:
    """Return the sentence for receipts."""
    kernel, nodes, why = call
    node = nodes[0] + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "") if nodes else "a node"
    return f"{kernel} was chosen for {node} and its library declines it ({why}): another kernel computes it"


def _exactly(node: str) -> str:
    """Return a pattern that matches one name. A very long name is cut, and the pattern then matches its prefix."""
    pattern = f"re:{re.escape(node)}"
    return pattern if len(pattern) <= _MOST_TEXT else f"{pattern[: _MOST_TEXT - 3].rstrip(chr(92))}.*"


def _line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:_MOST_TEXT]
