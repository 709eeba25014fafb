"""Policies by number: a custom op takes the number of its policy as an argument.

Backward runs in threads of autograd, where the policy of the forward thread is not set. An op therefore carries the number of its policy, and
backward uses the policy that was set when forward ran.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from ..policies import Policy, current_policy
from ..storage.store import digest

__all__ = [
    "DEFAULT",
    "NumberedPolicy",
    "PolicyCell",
    "numbered_policy",
    "policy_number",
    "policy_of",
    "publish",
]


@dataclass(frozen=True, slots=True)
class NumberedPolicy:
    """A policy, and its number in this process."""

    number: int
    policy: Policy

    def forces(self, family: str) -> bool:
        """Return True if a rule forces a kernel for an op family, or the policy is strict: then PyTorch's own operator is no substitute."""
        rules = (rule for layer in self.policy.kernel.layers for rule in layer.rules)
        return bool(self.policy.execution.strict) or any(
            rule.use is not None and (not rule.op or family in rule.op) for rule in rules
        )

    @property
    def is_exact(self) -> bool:
        """Return True if a rule demands deterministic kernels."""
        return any(rule.deterministic for layer in self.policy.kernel.layers for rule in layer.rules)

    def names(self, family: str) -> bool:
        """Return True if the policy demands something of an op family."""
        layers = self.policy.kernel.layers
        return any(f == family for layer in layers for f, _ in layer.preferences()) or any(
            not rule.op or family in rule.op for layer in layers for rule in layer.rules
        )


_LOCK = threading.Lock()
_policies: list[NumberedPolicy] = []
_cells: list[PolicyCell] = []
_numbers: dict[str, int] = {}
_last: tuple[Policy, NumberedPolicy] | None = None
_latest = 0


def policy_number() -> int:
    """Return the number of the current policy.

    While ``torch.compile`` traces, it is that of the policy that any thread set last: PyTorch guards it, so a change compiles again.
    """
    return _latest if torch.compiler.is_dynamo_compiling() else numbered_policy().number


def numbered_policy() -> NumberedPolicy:
    """Return the policy that is set in this thread or async task."""
    global _last
    policy, last = current_policy(), _last
    if last is not None and last[0] is policy:
        return last[1]
    numbered = _interned(policy)
    _last = policy, numbered  # one store: threads with other policies only look theirs up again
    return numbered


def publish(policy: Policy) -> None:
    """Make a policy the one that ``torch.compile`` traces with."""
    global _latest
    _latest = _interned(policy).number


def policy_of(number: int, *, backward: bool = False) -> NumberedPolicy:
    """Return the policy of a number. A negative one is that of a ``PolicyCell``."""
    return _policies[number] if number >= 0 else _cells[~number].of(backward=backward)


class PolicyCell:
    """The policies of a compiled function: forward reads that of its thread, and backward uses forward's.

    number: what an op of the function's graph carries instead of a policy's number; negative.
    """

    def __init__(self) -> None:
        self._forward = numbered_policy()
        with _LOCK:
            _cells.append(self)
            self.number = ~(len(_cells) - 1)

    def of(self, *, backward: bool) -> NumberedPolicy:
        """Return the policy of a direction now."""
        if not backward:
            self._forward = numbered_policy()
        return self._forward


def _interned(policy: Policy) -> NumberedPolicy:
    key = digest({"policy": policy.to_dict()})
    with _LOCK:
        number = _numbers.setdefault(key, len(_policies))
        if number == len(_policies):
            _policies.append(NumberedPolicy(number, policy))
        return _policies[number]


DEFAULT = _interned(Policy())
"""The empty policy. Its number is 0."""
