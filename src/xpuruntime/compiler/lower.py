"""lower: a graph as calls. Known values become recipes, views become addresses, every other node gets a kernel by policy.

``Lowering.calls`` stand in the graph's order; memory is declared on the way and placed by ``memory``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ..codegen.target import CodegenTarget
from ..decisions import Candidate, Decision, Support
from ..errors import BuildError, KernelUnavailable
from ..ir import Graph, Node
from ..ir.attributes import Attrs
from ..ir.family import source_names
from ..ir.graph import Source, State, Value
from ..kernels.kernel import Kernel, Lowered, NodeCall, Operand, Scalar, Stage
from ..passes.layout import Layouts
from ..policies import KernelPolicy, Offer, choose
from ..program.program import BufferKind, StateRef
from ..types import DType, TensorSpec
from .concat import Placement, place_concats
from .demands import facts_of
from .memory import Memory, Use
from .views import free_views, view_of
from .weights import KnownValues

__all__ = ["Call", "Lowering", "OffersOf", "lower"]

OffersOf: TypeAlias = Callable[[NodeCall, CodegenTarget], Sequence[tuple[Kernel, Support]]]
"""The catalogue: every kernel of a node's op with its answer, in order of preference."""


@dataclass(frozen=True, slots=True)
class Call:
    """A stage of a kernel with the names of its buffers; ``inputs`` before ``outputs``, as the function takes them."""

    kernel: str
    stage: Stage
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    in_place: Mapping[str, str] = field(default_factory=dict)

    @property
    def use(self) -> Use:
        """What it does to memory."""
        return Use(self.inputs, self.outputs, self.in_place)


@dataclass(slots=True)
class Lowering:
    """What becomes of one graph on one target.

    inputs, outputs: names of the border's buffers, the same on every target. ``renamed``: values that are outputs under these names.
    """

    graph: Graph
    calls: list[Call]
    memory: Memory
    known: KnownValues
    decisions: list[Decision]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    states: tuple[StateRef, ...] = ()


def lower(
    graph: Graph,
    layouts: Layouts,
    target: CodegenTarget,
    policy: KernelPolicy,
    offers: OffersOf,
    *,
    phase: str = "inference",
) -> Lowering:
    """Kernels for every node of a static graph.

    Raises KernelUnavailable (with the decision) where no kernel computes a node or the one that a policy forces cannot be had.
    """
    return _Lowerer(graph, layouts, target, policy, offers, phase).run()


class _Lowerer:
    def __init__(
        self,
        graph: Graph,
        layouts: Layouts,
        target: CodegenTarget,
        policy: KernelPolicy,
        offers: OffersOf,
        phase: str,
    ) -> None:
        self.graph, self.target, self.policy, self.offers, self.phase = graph, target, policy, offers, phase
        self.layouts = dict(layouts)
        self.known, self.memory = KnownValues(graph), Memory()
        self.calls: list[Call] = []
        self.decisions: dict[tuple[str, ...], list[Decision]] = {}
        self.fresh = 0
        self.placements: dict[str, Placement] = {}
        self.made: dict[str, TensorSpec] = {}  # copies that the graph does not have
        # A value that leaves the graph is written where the caller wants it, if a kernel makes it.
        self.leaving = {o.value for o in graph.outputs}

    def run(self) -> Lowering:
        for value in self.graph.inputs:
            self.memory.declare(value.name, BufferKind.INPUT, self.graph.spec(value.name))
        for state in self.graph.states:
            self.memory.declare(state.name, BufferKind.STATE, state.spec)
            if state.next is not None and state.next != state.name:
                self.memory.update(state.name, state.next)
        for node in self.graph.nodes:
            self.known.take(node)
        self._place()
        for node in self.graph.nodes:
            if node.outputs[0].name in self.known or self._view(node) or self._placed(node):
                continue
            self._kernel(node)
        outputs, renamed = self._outputs()  # they may show what a state was before this run
        self.memory.reuse([c.use for c in self.calls])
        self.calls = [c for c in self.calls if not (c.stage.copies and self._in_place(c))]
        self._states()
        inputs = tuple(v.name for v in self.graph.inputs)
        return Lowering(
            self.graph,
            self.calls,
            self.memory,
            self.known,
            self._decided(),
            inputs,
            outputs,
            renamed,
            tuple(self._starts(s) for s in self.graph.states),
        )

    def _starts(self, state: State) -> StateRef:
        """The state as a program knows it: what it starts from is made by a recipe."""
        return StateRef(state.name, state.spec, "" if state.init is None else self.known.recipe(state.init))

    # ── nodes ──

    def spec(self, value: str) -> TensorSpec:
        """A value's spec with its layout."""
        spec = self.made[value] if value in self.made else self.graph.spec(value)
        layout = self.layouts.get(value)
        return spec if layout is None else replace(spec, layout=layout)

    def _view(self, node: Node) -> bool:
        """Whether the node only says where its values lie."""
        found = view_of(node, self.spec)
        if found is None or node.inputs[0] not in self.memory:
            return False
        for value, view in zip(node.outputs, found, strict=True):
            self.memory.alias(value.name, self.spec(value.name), str(node.inputs[0]), view.offset)
        return True

    def _place(self) -> None:
        """Let views lie in their operands, and operands of concatenations where the results lie."""

        def works(node: Node, layouts: Layouts) -> str:
            if node.outputs[0].name in self.known:
                return ""  # no kernel makes it
            found = self._call(node, layouts)
            return next((k.name for k, s in self.offers(found, self.target) if s), "")

        free_views(self.graph, self.layouts, works)
        self.placements = place_concats(self.graph, self.layouts, works)
        for name in dict.fromkeys(p.within for p in self.placements.values()):
            self.memory.declare(name, self._kind(name), self.spec(name))
        for name, placement in self.placements.items():
            self.memory.alias(name, self.spec(name), placement.within, placement.offset)

    def _placed(self, node: Node) -> bool:
        """A concatenation whose operands lie in it: those that do not are copied there one by one."""
        if node.op != "cat" or not any(i in self.placements for i in node.values):
            return False
        whole, start = node.outputs[0].name, 0
        layout = self.spec(whole).physical
        step = layout.strides[node.attrs["dim"]] * node.spec.dtype.bits // 8
        for at, operand in enumerate(node.values):
            spec = self.graph.spec(operand)
            here = self.placements.get(operand)
            if here is None or not self._lies_in(operand, whole, start * step):
                part = f"{whole}.{at}"
                lying = replace(spec, layout=layout)
                self.memory.alias(part, lying, whole, start * step)
                self._copy(operand, part, None, lying, source_names(node))
            start += int(spec.shape[node.attrs["dim"]])
        return True

    def _lies_in(self, operand: str, whole: str, offset: int) -> bool:
        base = self.placements.get(whole, Placement(whole, 0))
        return self.placements[operand] == Placement(base.within, base.offset + offset)

    def _call(self, node: Node, layouts: Layouts) -> NodeCall:
        """The node as kernels see it with values lying as ``layouts`` says."""
        kept, self.layouts = self.layouts, dict(layouts)
        try:
            return NodeCall(
                node,
                tuple(self._operand(i) for i in node.inputs),
                tuple(self.spec(v.name) for v in node.outputs),
            )
        finally:
            self.layouts = kept

    def _kernel(self, node: Node) -> None:
        call = NodeCall(
            node, tuple(self._operand(i) for i in node.inputs), tuple(self.spec(v.name) for v in node.outputs)
        )
        kernel = self._choose(node, call)
        try:
            lowered = kernel.lower(call, self.target)
        except (ArithmeticError, LookupError, TypeError, ValueError, AssertionError) as error:
            raise BuildError(
                f"kernel {kernel.name} for {node.op} %{node.name}",
                "failed while it wrote its code",
                got=f"{type(error).__name__}: {error}",
                do="This is a defect of the kernel; forbid it in a policy to go on, and report it.",
            ) from error
        for at, value in enumerate(node.outputs):
            if value.name not in self.memory:
                self.memory.declare(value.name, self._kind(value.name), call.outputs[at])
        self._emit(node, kernel, lowered)

    def _operand(self, item: object) -> Operand | Scalar | None:
        if isinstance(item, str):
            if item in self.known:
                return Operand(item, self.known.spec(item), True, self.known.const(item))
            return Operand(item, self.spec(item))
        assert item is None or isinstance(item, bool | int | float)
        return item

    def _kind(self, value: str) -> BufferKind:
        """A border is dense: a value that lies otherwise cannot be the caller's memory."""
        if value in self.leaving and self.spec(value).is_dense:
            return BufferKind.OUTPUT
        return BufferKind.SCRATCH

    def _choose(self, node: Node, call: NodeCall) -> Kernel:
        rows = {k.name.partition("/")[2]: (k, s) for k, s in self.offers(call, self.target)}
        if not rows:
            raise KernelUnavailable(
                f"{node.op} %{node.name}",
                f"no kernel computes this op on {self.target.name}",
                got=", ".join(source_names(node)),
                do="Use a vendor engine for this model.",
            )
        known = all(
            v in self.graph.values for v in node.values
        )  # a copy may read what the graph does not have
        facts = facts_of(
            self.graph if known else None, node, phase=self.phase, device=self.target.name.partition(":")[0]
        )
        chosen, decision = choose(self.policy, facts, [_offer(n, k, s) for n, (k, s) in rows.items()])
        key = (decision.question, chosen, *(f"{c.name}: {c.reason}" for c in decision.rejected))
        self.decisions.setdefault(key, []).append(decision)
        return rows[chosen][0]

    def _emit(self, node: Node, kernel: Kernel, lowered: Lowered) -> None:
        temps = [self._temp(size) for size in lowered.temps]
        names: dict[str, str] = {f"out{i}": v.name for i, v in enumerate(node.outputs)}
        names |= {f"temp{i}": t for i, t in enumerate(temps)}
        for at, operand in enumerate(node.inputs):
            if not isinstance(operand, str):
                continue
            if operand in self.known:
                if any(f"in{at}" in s.args for s in lowered.stages):
                    recipe = self.known.recipe(operand, lowered.weights.get(at))
                    self._weight(recipe)
                    names[f"in{at}"] = recipe
            else:
                names[f"in{at}"] = operand
        for name, (at, packed) in lowered.beside.items():
            names[name] = self.known.recipe(str(node.inputs[at]), packed)
            self._weight(names[name])
        in_place = {f"out{o}": f"in{i}" for o, i in lowered.in_place.items()}
        written: set[str] = set()
        for stage in lowered.stages:
            # A temp is a result of the stage that names it first and an operand of those that follow.
            results = [
                a for a in stage.args if a.startswith("out") or (a.startswith("temp") and a not in written)
            ]
            operands = [a for a in stage.args if a not in results]
            if [*operands, *results] != list(stage.args):
                raise BuildError(
                    f"kernel {kernel.name} for {node.op} %{node.name}",
                    "must take operands before results",
                    got=stage.args,
                )
            written.update(results)
            self.calls.append(
                Call(
                    kernel.name,
                    stage,
                    tuple(names[a] for a in operands),
                    tuple(names[a] for a in results),
                    source_names(node),
                    _ops(node),
                    {names[o]: names[i] for o, i in in_place.items() if o in results and i in operands},
                )
            )

    def _in_place(self, call: Call) -> bool:
        return self.memory.place(call.inputs[0]) == self.memory.place(call.outputs[0])

    def _temp(self, size: int) -> str:
        self.fresh += 1
        name = f"temp.{self.fresh}"
        self.memory.declare(name, BufferKind.SCRATCH, TensorSpec((size,), DType.UINT8))
        return name

    def _weight(self, recipe: str) -> None:
        if recipe not in self.memory:
            spec = next(r.spec for r in self.known.recipes if r.name == recipe)
            self.memory.declare(recipe, BufferKind.WEIGHT, spec)

    # ── borders ──

    def _copy(
        self, value: str, to: str, kind: BufferKind | None, spec: TensorSpec, sources: tuple[str, ...] = ()
    ) -> None:
        """A copy of a value into another buffer: by whichever kernel computes ``clone``. ``sources``: nodes that it is done for."""
        node = Node("clone", (value,), Attrs(), (Value(to, spec),), tuple(Source(name=n) for n in sources))
        call = NodeCall(node, (self._operand(value),), (spec,))
        kernel = self._choose(node, call)
        self.made[to] = spec
        if kind is not None:
            self.memory.declare(to, kind, spec)
        self._emit(node, kernel, kernel.lower(call, self.target))

    def _states(self) -> None:
        """Write the next contents of states that were not computed in place; all of them after everything was read."""
        late: list[State] = []
        for state in self.graph.states:
            if state.next is None or state.next == state.name:
                continue
            if state.next in self.memory and self.memory.root(state.next) == state.name:
                continue
            late.append(state)
        sources: dict[str, str] = {}
        for state in late:
            assert state.next is not None
            sources[state.name] = state.next
            if state.next in self.memory and self.memory.kind(state.next) is BufferKind.STATE:
                spare = f"{state.next}.old"  # another state's content, which may be written below
                if spare not in self.memory:
                    self._copy(state.next, spare, BufferKind.SCRATCH, self.graph.spec(state.next))
                sources[state.name] = spare
        for state in late:
            self._copy_into_state(sources[state.name], state)

    def _copy_into_state(self, value: str, state: State) -> None:
        name = f"{state.name}.next"
        self.memory.alias(name, state.spec, state.name)
        self._copy(value, name, None, state.spec)

    def _outputs(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """The buffer of each output: the value's own where a kernel wrote it there, else a copy."""
        renamed: dict[str, str] = {}
        names = []
        for output in self.graph.outputs:
            value, name = output.value, f"{output.name}.out"
            while name in self.memory or name in self.graph.values or name in names:
                name += "_"
            names.append(name)
            if (
                value in self.memory
                and self.memory.root(value) == value
                and value not in renamed
                and (self.memory.kind(value) is BufferKind.OUTPUT)
            ):
                renamed[value] = name
            else:
                self._copy(value, name, BufferKind.OUTPUT, self.graph.spec(value))
        return tuple(names), renamed

    def _decided(self) -> list[Decision]:
        """One decision for all nodes that got the same answer for the same reasons."""
        made = []
        for group in self.decisions.values():
            first = group[0]
            subject = (
                first.subject
                if len(group) == 1
                else f"{len(group)} nodes: {', '.join(d.subject for d in group[:4])}"
                + (" ..." if len(group) > 4 else "")
            )
            chosen = first.chosen and Candidate(
                first.chosen.name, first.chosen.code, first.chosen.reason, first.chosen.do
            )
            made.append(Decision(first.question, subject, chosen, first.rejected))
        return made


def _offer(name: str, kernel: Kernel, support: Support) -> Offer:
    return Offer(name, support, on_request=getattr(kernel, "on_request", False))


def _ops(node: Node) -> tuple[str, ...]:
    if node.op == "fused":
        return tuple(n.op for n in node.attrs["body"].nodes if n.op != "constant")
    return (node.op,)
