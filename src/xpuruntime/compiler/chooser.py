"""The chooser: selects the kernel of each node by policy, workspace and measured time.

Every usable kernel of a node is lowered before one is chosen, because its workspace is known only from its code. That costs little
(docs/development/runtime-notes.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from ..codegen.target import CodegenTarget
from ..decisions import Candidate, Decision, Reason, Support
from ..errors import BuildError, KernelUnavailable, LockError
from ..faults import as_error, is_fault, part
from ..ir import Graph, Node
from ..ir.family import source_names
from ..kernels.catalogue import answer, failed, kernel_words
from ..kernels.kernel import Kernel, LoweredCall, NodeCall
from ..kernels.user.kernel import UserKernel
from ..policies import KernelPolicy, NodeFacts, Offer, choose
from ..policies.choose import node_demands, weights_of
from ..policies.fields.pins import parted, pinned
from ..printable import logger
from .calls import COUNTERS
from .demands import facts_of, is_forced
from .library_support import declined
from .locked import KernelLock
from .times import KernelTimes

__all__ = ["Chooser", "Chosen", "OffersOf"]

OffersOf: TypeAlias = Callable[[NodeCall, CodegenTarget], Sequence[tuple[Kernel, Support]]]
"""The catalogue: every kernel of a node's op with its answer, in order of preference."""

_log = logger("xpuruntime.compiler")

_LINEAR = ("linear", "fused_linear", "norm_linear")
Rows: TypeAlias = dict[str, tuple[Kernel, Support]]


class Chosen(NamedTuple):
    """A kernel, the code that it generated for a node, and the reason for the choice."""

    kernel: Kernel
    lowered: LoweredCall
    because: str


class Chooser:
    """Selects kernels for the nodes of one graph on one target, and records the decisions."""

    def __init__(
        self,
        graph: Graph,
        target: CodegenTarget,
        policy: KernelPolicy,
        offers: OffersOf,
        phase: str,
        times: KernelTimes | None = None,
        lock: KernelLock | None = None,
    ) -> None:
        self.graph, self.target, self.policy, self.offers, self.phase = graph, target, policy, offers, phase
        self.times = times or KernelTimes()
        self.lock = lock
        words = (name for layer in policy.layers for name in _kernels_named(layer))
        self._pinned = {name: parted(name) for name in words if parted(name)[1]}
        self._decisions: dict[tuple[str, ...], list[Decision]] = {}
        self._measured = self._timed = 0  # nodes in the file of times, and those whose kernel it chooses
        self.declined: list[str] = []

    def usable(self, call: NodeCall) -> str:
        """Return the name of the first kernel that supports a call; ``""`` if there is none."""
        kernel = self._first(call)
        return "" if kernel is None else kernel.name

    def view_alignment(self, call: NodeCall) -> int | None:
        """Return the alignment in bytes of a value inside a larger one that a call reads or writes; None if it needs a copy."""
        kernel = self._first(call)
        return None if kernel is None else kernel.view_alignment(call, self.target)

    def _first(self, call: NodeCall) -> Kernel | None:
        return next((k for k, s in self.offers(call, self.target) if s), None)

    def choose(self, node: Node, call: NodeCall) -> Chosen:
        """Return the kernel for a node. Raises as ``decide``."""
        return self.decide(node, call)[0]

    def facts(self, node: Node) -> NodeFacts:
        """Return the facts of a node that rules test."""
        in_graph = all(v in self.graph.values for v in node.values)  # a copy may read a value that is not
        kind = self.target.name.partition(":")[0]
        return facts_of(self.graph if in_graph else None, node, phase=self.phase, device=kind)

    def is_forced(self, graph: Graph, node: Node) -> bool:
        """Return whether a rule forces the kernel of a node, or the policy names a user's."""
        return is_forced(self.policy, node, self.facts(node), [self.target.kind])

    def decide(self, node: Node, call: NodeCall) -> tuple[Chosen, Decision]:
        """Return the kernel for a node, and the decision with every other candidate.

        Raises KernelUnavailable (with the decision); InternalError if a forced kernel, or the only one, fails to generate code; BuildError if that
        kernel is a user's. A kernel whose code raises is skipped, and so is one whose library declines the node (``CodegenTarget.libraries``). The
        decision records the reason.
        """
        lock = self.lock
        # Other kernels than the recorded ones may need counters, which no node of the model has.
        if (
            lock is not None
            and not lock.recording
            and (not node.name.startswith(COUNTERS) or lock.has(node, call))
        ):
            return self._locked(node, call, lock)
        facts = self.facts(node)
        offered = self._offered(call, facts)
        candidates = self._with_pins({k.name.partition("/")[2]: (k, s) for k, s in offered}, call)
        if not candidates:
            raise KernelUnavailable(
                f"{node.op} %{node.name}",
                f"no kernel computes this op on {self.target.name}",
                got=", ".join(source_names(node)),
                do="Use a vendor engine for this model.",
            )
        code = {
            name: _code(kernel, call, self.target)
            for name, (kernel, support) in candidates.items()
            if support
        }
        faults = {
            n: e for n, e in code.items() if isinstance(e, Exception) and not _is_users(candidates[n][0])
        }
        for name, error in faults.items():
            candidates[name] = candidates[name][0], failed(error)
        measured = {} if self._ignores_times else self.times.of(call, self.target.name)
        variants = {n: row for n, row in self._variants(measured, candidates, call).items() if row[1]}
        candidates |= variants
        code |= {n: _code(kernel, call, self.target) for n, (kernel, _) in variants.items()}
        self._check_weights(node, facts)
        while True:
            offers = [
                _offer(n, k, s, code.get(n), measured.get(n), competes=n in variants)
                for n, (k, s) in candidates.items()
            ]
            try:
                chosen, decision = choose(self.policy, facts, offers)
            except KernelUnavailable as no:
                for name, error in faults.items():
                    if candidates[name][1].reason in str(no.got):
                        raise as_error(error, f"compile for {self.target.name}") from error
                raise
            kernel, lowered = candidates[chosen][0], code[chosen]
            refusal = (
                declined(self.target, kernel.name, call, lowered) if isinstance(lowered, LoweredCall) else ""
            )
            if not refusal:
                break
            candidates[chosen] = kernel, Support.no(Reason.FORBIDDEN, f"the library declines: {refusal}")
            self.declined.append(f"{kernel.name} {node.name}")
        key = (decision.question, chosen, *(f"{c.name}: {c.reason}" for c in decision.rejected))
        self._decisions.setdefault(key, []).append(decision)
        for name in faults:
            _log.warning(
                "%s: %s; %s computes it instead",
                ", ".join(source_names(node)),
                candidates[name][1].reason,
                kernel.name,
            )
        if not isinstance(lowered, LoweredCall):
            raise BuildError(
                f"kernel {kernel.name} for {node.op} %{node.name}",
                "failed during code generation",
                got=f"{type(lowered).__name__}: {lowered}",
                do="Fix the kernel, or forbid it in a policy.",
            ) from lowered
        assert decision.chosen is not None  # choose() returned a name
        self._measured += bool(measured)
        self._timed += decision.chosen.code is Reason.FASTEST
        if lock is not None and lock.recording:
            exact = node_demands(self.policy, facts).exact
            others = _timeable(decision, candidates)
            lock.record(node, call, chosen, others, "" if exact is None else str(exact))
        return Chosen(kernel, lowered, decision.chosen.reason), decision

    def _check_weights(self, node: Node, facts: NodeFacts) -> None:
        """Raise KernelUnavailable for a linear layer if no kernel of the target has the weights and activations that the policy demands."""
        if node.op not in _LINEAR or (stored := weights_of(self.policy, facts)) is None:
            return
        words, by = stored
        known = kernel_words("linear", self.target.kind)
        if known.issuperset(words.kernels):
            return
        demanded, remove = f"weights in {words.weights}", "weights"
        if words.kernels[-1] in known:
            demanded, remove = f"{demanded} with activations in {words.activations}", "activations"
        raise KernelUnavailable(
            f"node {facts.node}",
            f"{by} demands {demanded}, for which {self.target.name} has no kernel",
            do=f"Remove {remove}, write {remove}: model, or run on the cpu.",
        )

    def _locked(self, node: Node, call: NodeCall, lock: KernelLock) -> tuple[Chosen, Decision]:
        """Return the kernel that the lock names. No other kernel is lowered. Raises LockError if it cannot be had."""
        facts = self.facts(node)
        word = lock.kernel(node, call)
        plain, values = parted(word)
        offers = {k.name.partition("/")[2]: (k, s) for k, s in self._offered(call, facts)}
        kernel, support = offers.get(
            plain, (None, Support.no(Reason.NOT_APPLICABLE, "no kernel of this name"))
        )
        if kernel is not None and values:
            kernel = kernel.pinned(word, values)
            support = support if kernel is None else answer(kernel, call, self.target)
        if kernel is None or not support:
            change = (f"kernel of {facts.sources[0]}", word, support.reason)
            raise LockError(
                f"node {facts.sources[0]}",
                f"the lock names kernel {word!r}, which is not available",
                got=support.reason,
                do="Write the lock again.",
                changes=(change,),
            )
        lowered = _code(kernel, call, self.target)
        if isinstance(lowered, Exception):
            raise as_error(lowered, f"compile for {self.target.name}") from lowered
        head = Candidate(word, Reason.LOCKED, "the lock names it")
        decision = Decision(f"kernel {facts.family}", facts.node, head)
        self._decisions.setdefault((decision.question, word), []).append(decision)
        return Chosen(kernel, lowered, head.reason), decision

    def _offered(self, call: NodeCall, facts: NodeFacts) -> Sequence[tuple[Kernel, Support]]:
        """Return the kernels of a call with their answers, in the form that a demand for batch invariance or equal bits needs."""
        offered = self.offers(call, self.target)
        if self.policy.demands_batch_invariance():
            offered = [(k.batch_invariant_form(), s) for k, s in offered]
        if node_demands(self.policy, facts).exact:
            offered = [(k.exact_form(), s) for k, s in offered]
        return offered

    def _with_pins(self, candidates: Rows, call: NodeCall) -> Rows:
        """Add the pinned variants that the policy names to the candidates of a call. No other policy selects them."""
        return candidates | self._pinned_rows(self._pinned, candidates, call)

    def _variants(self, measured: Mapping[str, float], candidates: Rows, call: NodeCall) -> Rows:
        """Return the variants of libraries that were measured for a call. They compete, although no policy names them."""
        pins = {word: parted(word) for word in measured if word not in candidates}
        return self._pinned_rows({word: pin for word, pin in pins.items() if pin[1]}, candidates, call)

    def _pinned_rows(
        self, pins: Mapping[str, tuple[str, Mapping[str, int]]], candidates: Rows, call: NodeCall
    ) -> Rows:
        """Return the kernels with these pins that the candidates have. ``pins``: word -> kernel and values."""
        kernels = {
            w: candidates[plain][0].pinned(w, values)
            for w, (plain, values) in pins.items()
            if plain in candidates
        }
        return {w: (k, answer(k, call, self.target)) for w, k in kernels.items() if k is not None}

    def decided(self) -> list[Decision]:
        """Return the decisions, with one decision for all nodes that have the same answer and reasons, and one about the file of times."""
        return [
            *(self._about_times() if self.times.calls else ()),
            *(_merged_decision(group) for group in self._decisions.values()),
        ]

    @property
    def _ignores_times(self) -> bool:
        """Return True if times may not decide: under batch invariance one kernel computes all batches, and each batch has times of its own."""
        return self.policy.demands_batch_invariance()

    def _about_times(self) -> Iterator[Decision]:
        """Yield the decision that tells which measured times were used, and for how many nodes they decide."""
        times = self.times
        name = f"sha256:{times.digest[:12]}"
        if times.target != self.target.name:
            why = f"{times.origin}; the target is {self.target.name}"
            yield Decision("times", self.graph.name, None, (Candidate(name, Reason.NOT_APPLICABLE, why),))
            return
        if self._ignores_times:
            why = "batch_invariant demands one kernel for every batch, and each batch has times of its own"
            yield Decision("times", self.graph.name, None, (Candidate(name, Reason.FORBIDDEN, why),))
            return
        text = f"{times.origin}; {self._measured} nodes have times, which choose the kernels of {self._timed}"
        text += f" ({times.caveat})" if times.caveat else ""
        yield Decision("times", self.graph.name, Candidate(name, Reason.RECORDED, text))


def _kernels_named(layer: KernelPolicy) -> Iterator[str]:
    for _, names in layer.preferences():
        yield from names
    for rule in layer.rules:
        yield from (*((rule.use,) if rule.use else ()), *rule.prefer)


def _code(kernel: Kernel, call: NodeCall, target: CodegenTarget) -> LoweredCall | Exception:
    """Return the kernel's code for the node, or its exception, which matters only if the kernel is forced or the last candidate."""
    try:
        with part(f"kernel {kernel.name}"):
            return kernel.lower(call, target)
    except Exception as error:
        if not is_fault(error) or isinstance(error, MemoryError):
            raise
        return error


def _timeable(decision: Decision, candidates: Rows) -> list[str]:
    """Return what measured times could have chosen instead: rejected kernels, and variants of libraries; none if a policy decided."""
    chosen = decision.chosen
    if chosen is None or chosen.code not in (Reason.DEFAULT, Reason.FASTEST, Reason.ONLY_ONE):
        return []
    others = [c.name for c in decision.rejected if c.code in (Reason.LOWER_PREFERENCE, Reason.SLOWER)]
    plain = dict.fromkeys(parted(name)[0] for name in (chosen.name, *others))
    variants = (pinned(name, values) for name in plain for values in candidates[name][0].variants)
    return [n for n in dict.fromkeys((*others, *variants)) if n != chosen.name]


def _is_users(kernel: Kernel) -> bool:
    return isinstance(kernel, UserKernel)


def _offer(
    name: str,
    kernel: Kernel,
    support: Support,
    code: LoweredCall | Exception | None,
    time_us: float | None,
    *,
    competes: bool = False,
) -> Offer:
    lowered = code if isinstance(code, LoweredCall) else None
    return Offer(
        name,
        support,
        time_us=time_us,
        workspace_bytes=0 if lowered is None else lowered.workspace_bytes,
        deterministic=None if lowered is None else lowered.deterministic,
        batch_invariant=None if lowered is None else lowered.batch_invariant,
        on_request=kernel.on_request and not competes,
        opt_in_reason=kernel.opt_in_reason,
    )


def _merged_decision(group: Sequence[Decision]) -> Decision:
    first = group[0]
    if len(group) == 1:
        return first
    subject = f"{len(group)} nodes: {', '.join(d.subject for d in group[:4])}"
    subject += " ..." if len(group) > 4 else ""
    chosen = first.chosen and _merged_candidate([d.chosen for d in group if d.chosen is not None])
    rejected = tuple(_merged_candidate([d.rejected[i] for d in group]) for i in range(len(first.rejected)))
    return Decision(first.question, subject, chosen, rejected)


def _merged_candidate(same: Sequence[Candidate]) -> Candidate:
    """Merge the candidates of several nodes: the largest workspace, and determinism if it is the same for all."""
    first, facts = same[0], [c.facts for c in same]
    largest = max((f.get("workspace_bytes", 0) for f in facts), default=0)
    determinism = {f.get("deterministic") for f in facts}
    merged: dict[str, object] = {"workspace_bytes": largest} if largest else {}
    return replace(
        first,
        facts=merged
        | ({"deterministic": determinism.pop()} if determinism <= {True} or determinism <= {False} else {}),
    )
