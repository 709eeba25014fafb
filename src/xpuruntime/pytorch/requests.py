"""The demand under which an op runs: a policy and a phase, by a number that a custom op can take as an argument.

Backward runs in threads of autograd, where the policy of the forward thread is not set. Ops therefore carry the number of their demand,
and backward uses the policy that was set when forward ran.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from ..policies import Policy, current_policy
from ..storage.store import digest

__all__ = ["DEFAULT", "Demand", "DemandCell", "current_demand", "demand_number", "demand_of", "publish"]


@dataclass(frozen=True, slots=True)
class Demand:
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
_demands: list[Demand] = []
_cells: list[DemandCell] = []
_numbers: dict[str, int] = {}
_last: tuple[Policy, Demand] | None = None
_latest = 0


def demand_number() -> int:
    """Return the number of the current demand.

    While ``torch.compile`` traces, it is the demand that any thread set last: PyTorch guards it, so a change compiles again.
    """
    return _latest if torch.compiler.is_dynamo_compiling() else current_demand().number


def current_demand() -> Demand:
    """Return the demand of the policy that is set in this thread or async task."""
    global _last
    policy, last = current_policy(), _last
    if last is not None and last[0] is policy:
        return last[1]
    demand = _interned(policy)
    _last = policy, demand  # one store: threads with other policies only look theirs up again
    return demand


def publish(policy: Policy) -> None:
    """Make a policy the one that ``torch.compile`` traces with."""
    global _latest
    _latest = _interned(policy).number


def demand_of(number: int, *, backward: bool = False) -> Demand:
    """Return the demand of a number. A negative one is that of a ``DemandCell``."""
    return _demands[number] if number >= 0 else _cells[~number].of(backward=backward)


class DemandCell:
    """The policies of a compiled function: forward reads that of its thread, and backward uses forward's.

    number: what an op of the function's graph carries instead of a demand's number; negative.
    """

    def __init__(self) -> None:
        self._forward = current_demand()
        with _LOCK:
            _cells.append(self)
            self.number = ~(len(_cells) - 1)

    def of(self, *, backward: bool) -> Demand:
        """Return the demand of a direction now."""
        if not backward:
            self._forward = current_demand()
        return self._forward


def _interned(policy: Policy) -> Demand:
    key = digest({"policy": policy.to_dict()})
    with _LOCK:
        number = _numbers.setdefault(key, len(_demands))
        if number == len(_demands):
            _demands.append(Demand(number, policy))
        return _demands[number]


DEFAULT = _interned(Policy())
"""The demand of the empty policy. Its number is 0."""
