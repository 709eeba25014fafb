"""``xpu lock``: the lock of a model under a policy, and the cost of its demand for deterministic kernels."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import LockError
from ..inference.session import InferenceSession
from ..policies import KernelPolicy, Policy
from ..policies.rule import Rule
from ..profiler.statistics import paired_ratio
from ..program.lock import Lock
from .inputs import Inputs
from .session_options import SessionOptions

__all__ = ["DeterminismCost", "LockResult", "make_lock"]


@dataclass(frozen=True, slots=True)
class DeterminismCost:
    """The cost of deterministic kernels: the nodes with another kernel, and the measured ratio of run times.

    nodes: name, kernel without the demand, kernel with it. ratio, low, high: time with / time without, with its 95% interval; None if
    it was not measured, or if no kernel differs. rounds: alternating runs that it rests on.
    """

    nodes: tuple[tuple[str, str, str], ...]
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        nodes = [{"name": n, "without": old, "with": new} for n, old, new in self.nodes]
        return {
            "nodes": nodes,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "rounds": self.rounds,
        }

    def __str__(self) -> str:
        if not self.nodes:
            return "deterministic kernels: no kernel differs, so they cost nothing"
        head = f"deterministic kernels: {len(self.nodes)} nodes have another kernel"
        if self.ratio is None:
            return f"{head}; --measure-cost measures what that costs"
        return f"{head}; a run takes {self.ratio:.3f}x the time (95% interval {self.low:.3f} to {self.high:.3f}, {self.rounds} rounds)"


@dataclass(frozen=True, slots=True)
class LockResult:
    """A lock, and the cost of its demand for deterministic kernels (None if no rule demands them)."""

    lock: Lock
    cost: DeterminismCost | None = None


def make_lock(
    model: Any,
    options: SessionOptions,
    buckets: Sequence[Mapping[str, int]] = (),
    *,
    on_mismatch: str = "error",
    cost_seconds: float = 0.0,
) -> LockResult:
    """Open a session, run it once for each set of sizes of symbolic dims, and return its lock.

    cost_seconds: measure the cost of deterministic kernels for this long, in alternating runs.
    Raises the errors of ``InferenceSession``, InputError for an unknown dim, LockError for a session that cannot be locked.
    """
    with options.open(model) as session:
        if any(s.symbols for s in session.input_info):
            for sizes in buckets:
                session.run(_feeds(session, sizes))
        elif any(buckets):
            _feeds(session, buckets[0])  # raises: no symbolic dim of that name
        lock = session.lock(on_mismatch=on_mismatch)
        wanted = len({tuple(sorted(sizes.items())) for sizes in buckets})
        if lock.programs and not lock.regions and len(lock.programs) < wanted:
            raise LockError(
                f"lock of {lock.model['name']!r}",
                "the session keeps fewer shape buckets than the lock needs",
                got=f"{len(lock.programs)} of {wanted}",
                do=f"Write execution: {{engine_options: {{native: {{shape_buckets: {wanted}}}}}}} in the policy.",
            )
        policy = _without_determinism(Policy.from_dict(lock.original))
        cost = None
        if policy is not None and lock.programs:
            cost = _cost(session, model, lock, policy, options, buckets, cost_seconds)
    return LockResult(lock, cost)


def _feeds(session: InferenceSession, sizes: Mapping[str, int]) -> dict[str, Any]:
    return Inputs((), 0, sizes).samples(session.model.inputs)[0]


def _without_determinism(policy: Policy) -> Policy | None:
    """Return the policy without its demands for deterministic kernels; None if it has none."""
    layers = []
    demands = False
    for layer in policy.kernel.layers:
        rules: list[Rule] = []
        for rule in layer.rules:
            if not rule.deterministic:
                rules.append(rule)
                continue
            demands = True
            if rule.use or rule.prefer or rule.forbid or rule.workspace_bytes is not None or rule.weights:
                rules.append(dataclasses.replace(rule, deterministic=None))
        layers.append(dataclasses.replace(layer, rules=tuple(rules)))
    if not demands:
        return None
    kernel = KernelPolicy()
    for layer in reversed(layers):
        kernel = kernel.merge(layer)
    return Policy(kernel=kernel, execution=policy.execution)


def _cost(
    session: InferenceSession,
    model: Any,
    lock: Lock,
    policy: Policy,
    options: SessionOptions,
    buckets: Sequence[Mapping[str, int]],
    seconds: float,
) -> DeterminismCost:
    without = Policy(kernel=policy.kernel, execution=dataclasses.replace(policy.execution, self_check="off"))
    free = InferenceSession(model, policy=without, threads=lock.threads, cache_dir=options.cache_dir)
    with free:
        feeds = _feeds(session, buckets[0] if buckets else {})
        free.run(feeds)
        ours = {n.name: n.kernel for n in session.receipt(times=False).plan.nodes}
        theirs = {n.name: n.kernel for n in free.receipt(times=False).plan.nodes}
        nodes = tuple((n, theirs.get(n, ""), k) for n, k in ours.items() if theirs.get(n, "") != k)
        if not nodes or seconds <= 0:
            return DeterminismCost(nodes)
        times: tuple[list[float], list[float]] = ([], [])
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(times[0]) < 5:
            order = (0, 1) if len(times[0]) % 2 else (1, 0)
            for which in order:
                began = time.perf_counter_ns()
                (session, free)[which].run(feeds)
                times[which].append(float(time.perf_counter_ns() - began))
    ratio = paired_ratio(*times)
    return DeterminismCost(nodes, ratio.value, ratio.interval.low, ratio.interval.high, len(times[0]))
