"""Lowering: a graph becomes calls. Constant values become recipes, views become addresses, and every other node gets a kernel by policy.

``calls`` are in the graph's order. Memory is declared during lowering and planned by ``memory``.
"""

from __future__ import annotations

from dataclasses import replace

from ..codegen.target import CodegenTarget
from ..faults import part
from ..ir import Graph, Node
from ..ir.attributes import Attrs
from ..ir.family import source_names
from ..ir.graph import Source, State, Value
from ..kernels.kernel import LoweredCall, NodeCall, Operand, Scalar
from ..passes.layout import Layouts
from ..policies import KernelPolicy
from ..program.program import BufferKind, StateRef
from ..types import DType, TensorSpec
from .calls import COUNTERS, LoweredGraph, StageCall, calls_of
from .chooser import Chooser, OffersOf
from .concat import Placement, place_concats
from .locked import KernelLock
from .memory import Memory
from .pdl import order_early_reads
from .times import KernelTimes
from .views import free_views, view_of
from .weights import KnownValues

__all__ = ["lower", "lower_with"]


def lower(
    graph: Graph,
    layouts: Layouts,
    target: CodegenTarget,
    policy: KernelPolicy,
    offers: OffersOf,
    *,
    phase: str = "inference",
    times: KernelTimes | None = None,
    lock: KernelLock | None = None,
) -> LoweredGraph:
    """Lower every node of a static graph to kernels. ``times``: measured kernel times. ``lock``: kernels that are fixed, or a record of them.

    Raises KernelUnavailable (with the decision) if no kernel supports a node, or if the kernel that a policy forces is not available.
    """
    return lower_with(graph, layouts, Chooser(graph, target, policy, offers, phase, times, lock))


def lower_with(graph: Graph, layouts: Layouts, chooser: Chooser) -> LoweredGraph:
    """Lower every node of a static graph to the kernels that a chooser selects. Raises its errors."""
    with part(f"lowering to {chooser.target.name}"):
        return _Lowerer(graph, layouts, chooser).run()


class _Lowerer:
    def __init__(self, graph: Graph, layouts: Layouts, chooser: Chooser) -> None:
        self.graph, self.chooser = graph, chooser
        self.layouts = dict(layouts)
        self.known, self.memory = (
            KnownValues(graph, chooser.is_forced).taken(),
            Memory(chooser.target.library_workspaces),
        )
        self.calls: list[StageCall] = []
        self.fresh = self.counters = 0
        self.placements: dict[str, Placement] = {}
        self.copies: dict[str, TensorSpec] = {}  # copies that lowering adds to the graph
        self.taken = {*graph.values, *graph.former_names}  # a model's values may have any names
        self.counters_name = self._own_name(COUNTERS)
        # An output of the graph is written directly to the caller's memory if a kernel produces it.
        self.graph_outputs = {o.value for o in graph.outputs}

    def run(self) -> LoweredGraph:
        for value in self.graph.inputs:
            self.memory.declare(value.name, BufferKind.INPUT, self.graph.spec(value.name))
        for state in self.graph.states:
            self.memory.declare(state.name, BufferKind.STATE, state.spec)
            if state.next is not None and state.next != state.name:
                self.memory.update(state.name, state.next)
        with part("memory planning"):
            self._place()
        for node in self.graph.nodes:
            if node.outputs[0].name in self.known or self._view(node) or self._placed(node):
                continue
            self._kernel(node)
        self._count()
        # Before states are updated: an output may be a state's old content.
        outputs, renamed = self._outputs()
        with part("memory planning"):
            self.memory.reuse([c.use for c in self.calls])
        self.calls = [c for c in self.calls if not (c.stage.copies and self._in_place(c))]
        self._states()
        self.calls = order_early_reads(self.calls, self.memory)
        inputs = tuple(v.name for v in self.graph.inputs)
        return LoweredGraph(
            self.graph,
            self.calls,
            self.memory,
            self.known,
            self.chooser.decided(),
            inputs,
            outputs,
            renamed,
            tuple(self._state_ref(s) for s in self.graph.states),
            tuple(self.chooser.declined),
        )

    def _state_ref(self, state: State) -> StateRef:
        """Return the program's record of a state. A recipe makes its initial value."""
        return StateRef(state.name, state.spec, "" if state.init is None else self.known.recipe(state.init))

    # ── nodes ──

    def spec(self, value: str) -> TensorSpec:
        """Return a value's spec with its layout."""
        spec = self.copies[value] if value in self.copies else self.graph.spec(value)
        layout = self.layouts.get(value)
        return spec if layout is None else replace(spec, layout=layout)

    def _view(self, node: Node) -> bool:
        """Alias the node's results to its operand if it is a view. Return False if it is not."""
        views = view_of(node, self.spec)
        if views is None or node.inputs[0] not in self.memory:
            return False
        for value, view in zip(node.outputs, views, strict=True):
            self.memory.alias(value.name, self.spec(value.name), str(node.inputs[0]), view.offset)
        return True

    def _place(self) -> None:
        """Alias views to their operands, and operands of concatenations to the results."""

        def works(node: Node, layouts: Layouts) -> str:
            if node.outputs[0].name in self.known:
                return ""  # a recipe makes it
            return self.chooser.usable(self._call(node, layouts))

        def alignment(node: Node, layouts: Layouts) -> int | None:
            return self.chooser.view_alignment(self._call(node, layouts))

        usual = self.chooser.target.place_alignment
        # On CPUs, kernels read dense channels faster.
        free_views(self.graph, self.layouts, works, alignment if usual > 1 else None)
        self.placements = place_concats(
            self.graph, self.layouts, works, self.known, lambda n, at: alignment(n, at) or usual
        )
        for name in dict.fromkeys(p.within for p in self.placements.values()):
            self.memory.declare(name, self._kind(name), self.spec(name))
        for name, placement in self.placements.items():
            self.memory.alias(name, self.spec(name), placement.within, placement.offset)

    def _placed(self, node: Node) -> bool:
        """Copy the operands of a concatenation that are not stored in it already. Return False if one kernel writes all of it."""
        if node.op != "cat":
            return False
        result, start = node.outputs[0].name, 0
        layout = self.spec(result).physical
        step = layout.strides[node.attrs["dim"]] * node.spec.dtype.bits // 8
        parts: list[tuple[str, int]] = []
        for operand in node.values:
            parts.append((operand, start * step))
            start += int(self.graph.spec(operand).shape[node.attrs["dim"]])
        base = self.placements.get(result, Placement(result, 0))
        stored = [self.placements.get(v) == Placement(base.within, base.offset + at) for v, at in parts]
        if not any(stored) and self.chooser.usable(self._call(node)):
            return False
        if result not in self.memory:
            self.memory.declare(result, self._kind(result), self.spec(result))
        for index, (operand, at) in enumerate(parts):
            if not stored[index]:
                part = self._own_name(f"{result}.{index}")
                spec = replace(self.graph.spec(operand), layout=layout)
                self.memory.alias(part, spec, result, at)
                self._copy(operand, part, None, spec, source_names(node))
        return True

    def _call(self, node: Node, layouts: Layouts | None = None) -> NodeCall:
        """Return the node as kernels see it, with values in the given layouts."""
        saved = self.layouts
        self.layouts = saved if layouts is None else dict(layouts)
        try:
            return NodeCall(
                node,
                tuple(self._operand(i) for i in node.inputs),
                tuple(self.spec(v.name) for v in node.outputs),
            )
        finally:
            self.layouts = saved

    def _kernel(self, node: Node) -> None:
        call = self._call(node)
        kernel, lowered, because = self.chooser.choose(node, call)
        for at, value in enumerate(node.outputs):
            if value.name not in self.memory:
                self.memory.declare(value.name, self._kind(value.name), call.outputs[at])
        self._emit(node, kernel.name, lowered, because)

    def _operand(self, item: object) -> Operand | Scalar | None:
        if isinstance(item, str):
            if item in self.known:
                spec, const = self.known.spec(item), self.known.const(item)
                return Operand(item, spec, True, const, self.known.groups(item))
            return Operand(item, self.spec(item))
        assert item is None or isinstance(item, bool | int | float)
        return item

    def _kind(self, value: str) -> BufferKind:
        """Return the buffer kind of a value. Only a dense output can be the caller's memory."""
        if value in self.graph_outputs and self.spec(value).is_dense:
            return BufferKind.OUTPUT
        return BufferKind.SCRATCH

    def _emit(self, node: Node, kernel: str, lowered: LoweredCall, because: str) -> None:
        if all(v.spec is not None and v.spec.size_bytes == 0 for v in node.outputs):
            return  # no kernel runs for empty results
        temps = [self._temp(size) for size in lowered.temps]
        self.counters = max(self.counters, lowered.counters)
        names: dict[str, str] = {f"out{i}": v.name for i, v in enumerate(node.outputs)} | {
            "counters": self.counters_name
        }
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
        for name, (at, packed) in lowered.extra_weights.items():
            names[name] = self.known.recipe(str(node.inputs[at]), packed)
            self._weight(names[name])
        self.calls += calls_of(kernel, node, lowered, names, because)

    def _count(self) -> None:
        """Prepend the call that zeroes the counters."""
        if not self.counters:
            return
        spec = TensorSpec((-(-self.counters // 4),), DType.INT32)
        attrs = Attrs({"size": spec.shape, "value": 0, "dtype": spec.dtype})
        node = Node("full", (), attrs, (Value(self.counters_name, spec),), ())
        kernel, lowered, because = self.chooser.choose(node, NodeCall(node, (), (spec,)))
        self.memory.declare(self.counters_name, BufferKind.SCRATCH, spec)
        first = len(self.calls)
        self._emit(node, kernel.name, lowered, because)
        self.calls = [*self.calls[first:], *self.calls[:first]]

    def _in_place(self, call: StageCall) -> bool:
        return self.memory.place(call.inputs[0]) == self.memory.place(call.outputs[0])

    def _temp(self, size: int) -> str:
        self.fresh += 1
        name = self._own_name(f"temp.{self.fresh}")
        self.memory.declare(name, BufferKind.SCRATCH, TensorSpec((size,), DType.UINT8))
        return name

    def _own_name(self, name: str) -> str:
        """Return the name of a buffer that lowering adds, with underscores where a value of the model or another buffer has it."""
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def _weight(self, recipe: str) -> None:
        if recipe not in self.memory:
            spec = next(r.spec for r in self.known.recipes if r.name == recipe)
            self.memory.declare(recipe, BufferKind.WEIGHT, spec)

    # ── states and outputs ──

    def _copy(
        self, value: str, to: str, kind: BufferKind | None, spec: TensorSpec, sources: tuple[str, ...] = ()
    ) -> None:
        """Copy a value to another buffer, with any kernel that computes ``clone``. ``sources``: the nodes that need the copy."""
        node = Node("clone", (value,), Attrs(), (Value(to, spec),), tuple(Source(name=n) for n in sources))
        kernel, lowered, because = self.chooser.choose(node, NodeCall(node, (self._operand(value),), (spec,)))
        self.copies[to] = spec
        if kind is not None:
            self.memory.declare(to, kind, spec)
        self._emit(node, kernel.name, lowered, because)

    def _states(self) -> None:
        """Write the next contents of states that were not updated in place, after all reads of their old contents."""
        copied: list[State] = []
        for state in self.graph.states:
            if state.next is None or state.next == state.name:
                continue
            if state.next in self.memory and self.memory.root(state.next) == state.name:
                continue
            copied.append(state)
        sources: dict[str, str] = {}
        saved: dict[str, str] = {}  # other states' old contents, which may be overwritten below
        for state in copied:
            assert state.next is not None
            sources[state.name] = state.next
            if state.next in self.memory and self.memory.kind(state.next) is BufferKind.STATE:
                if state.next not in saved:
                    saved[state.next] = self._own_name(f"{state.next}.old")
                    self._copy(state.next, saved[state.next], BufferKind.SCRATCH, self.graph.spec(state.next))
                sources[state.name] = saved[state.next]
        for state in copied:
            self._copy_into_state(sources[state.name], state)

    def _copy_into_state(self, value: str, state: State) -> None:
        name = self._own_name(f"{state.name}.next")
        self.memory.alias(name, state.spec, state.name)
        self._copy(value, name, None, state.spec)

    def _is_output(self, value: str) -> bool:
        """Return True if the value has a buffer of its own that can be the caller's; a view of a whole temporary buffer takes that one."""
        if self.memory.root(value) == value:
            return self.memory.kind(value) is BufferKind.OUTPUT
        return self.spec(value).is_dense and self.memory.own(value, BufferKind.OUTPUT)

    def _outputs(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the buffer of each output: the value's own if a kernel can write to it, otherwise a copy."""
        renamed: dict[str, str] = {}
        names: dict[str, None] = {}
        for output in self.graph.outputs:
            value, name = output.value, f"{output.name}.out"
            while name in self.memory or name in self.taken or name in names:
                name += "_"
            names[name] = None
            if value in self.memory and value not in renamed and self._is_output(value):
                renamed[value] = name
            else:
                self._copy(value, name, BufferKind.OUTPUT, self.graph.spec(value))
        return tuple(names), renamed
