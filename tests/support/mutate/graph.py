"""IR graphs as the edits see them: a graph and its weights by name. A weight may be behind permute and cast, or a constant."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from xpuruntime.errors import IrError
from xpuruntime.ir import Const, Graph, Node, Value, interp, verify
from xpuruntime.ir.nodes import make_node
from xpuruntime.protocols import Array

from .site import EPSILON, NotApplicableError, Site, Use

__all__ = ["GraphForm"]

Pair: TypeAlias = "tuple[Graph, Mapping[str, Array]]"

# op -> roles of its weights by position
ROLES: dict[str, dict[int, str]] = {
    "convolution": {1: "kernel", 2: "bias"},
    "fused_convolution": {1: "kernel", 2: "bias"},
    "linear": {1: "kernel", 2: "bias"},
    "fused_linear": {1: "kernel", 2: "bias"},
    "matmul": {1: "kernel"},
    "mm": {1: "kernel"},
    "addmm": {0: "bias", 2: "kernel"},
    "index_select": {0: "table"},
    "embedding": {0: "table"},
    "add": {0: "bias", 1: "bias"},
    "mul": {0: "scale", 1: "scale"},
    "batch_norm": {1: "scale", 2: "bias", 3: "mean", 4: "variance"},
    "layer_norm": {1: "scale", 2: "bias"},
    "rms_norm": {1: "scale"},
    "group_norm": {1: "scale", 2: "bias"},
    "instance_norm": {1: "scale", 2: "bias"},
}
# activation -> a similar one, with its attributes
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("leaky_relu", {"negative_slope": 0.01}),
    "leaky_relu": ("relu", {}),
    "sigmoid": ("hardsigmoid", {}),
    "hardsigmoid": ("sigmoid", {}),
    "tanh": ("softsign", {}),
    "erf": ("tanh", {}),
    "silu": ("hardswish", {}),
    "hardswish": ("silu", {}),
    "mish": ("silu", {}),
    "softplus": ("relu", {}),
    "clamp": ("relu", {}),
}
WINDOWS = ("convolution", "fused_convolution", "max_pool", "avg_pool")
PLAIN = ("permute", "cast")  # a weight behind them is still that weight
ROOTS = ("sqrt", "rsqrt", "pow")


class GraphForm:
    """An ``ir.Graph`` and its weights."""

    def __init__(self, graph: Graph, weights: Mapping[str, Array]) -> None:
        self.graph, self.weights = graph, weights

    # ── weights ──

    def uses(self) -> list[Use]:
        return list(self._uses)

    @cached_property
    def _uses(self) -> list[Use]:
        uses = []
        for node in self.graph:
            for position, role in ROLES.get(node.op, {}).items():
                operand = node.inputs[position] if position < len(node.inputs) else None
                root, perm = self._root(operand)
                if not root or not self.graph.spec(root).dtype.is_float:
                    continue
                if node.op in ("add", "mul"):
                    role = self._pointwise_role(node, position, root)
                    if not role:
                        continue
                if role == "kernel":
                    axis = self._channel_axis(node, self.graph.spec(root).rank)
                    axis = perm[axis] if perm is not None else axis
                    uses.append(
                        Use(root, node.name, role, axis, self._heads(node, self.array(root).shape[axis]))
                    )
                else:
                    uses.append(Use(root, node.name, role))
        return uses

    def _root(self, operand: Any) -> tuple[str, Sequence[int] | None]:
        """Return the weight or constant that an operand is, and the permutation of its axes; "" if the operand is computed."""
        if not isinstance(operand, str):
            return "", None
        if operand in self.graph.weight_names:
            return operand, None
        node = self.graph.producer(operand)
        if node is None or node.op not in (*PLAIN, "constant"):
            return "", None
        if node.op == "constant":
            return operand, None
        root, permutation = self._root(node.inputs[0])
        return root, node.attrs["dims"] if node.op == "permute" and permutation is None else permutation

    def _pointwise_role(self, node: Node, position: int, root: str) -> str:
        partner = node.inputs[1 - position]
        if not isinstance(partner, str) or self._root(partner)[0]:
            return ""
        shape = self.array(root).shape
        if np.prod(shape) > 1:
            vector = [d for d in shape if d > 1]
            return "bias" if node.op == "add" else "scale" if len(vector) == 1 and shape[-1] > 1 else ""
        small = 0 < float(self.array(root).item()) < EPSILON
        return "epsilon" if node.op == "add" and small and self._is_rooted(node) else ""

    def _is_rooted(self, node: Node) -> bool:
        return any(n.op in ROOTS for n in self.graph.users(node.name))

    def _channel_axis(self, node: Node, rank: int) -> int:
        if node.op.endswith("convolution"):
            return 1 if node.attrs["transposed"] else 0
        return 0 if node.op.endswith("linear") else rank - 1

    def _heads(self, node: Node, channels: int) -> int:
        """Return the number of heads of a product: its result, after a bias, is viewed as [..., heads, size]. 0 if it has none."""
        for _ in range(2):
            reader = self.graph.only_user(node.name)
            if reader is None:
                return 0
            if reader.op == "view":
                shape = reader.spec.shape
                fits = len(shape) == 4 and all(isinstance(d, int) for d in shape[2:])
                return shape[2] if fits and shape[2] * shape[3] == channels else 0  # type: ignore[return-value]
            if reader.op != "add":
                return 0
            node = reader
        return 0

    def array(self, weight: str) -> Array:
        if weight in self.graph.weight_names:
            return np.asarray(self.weights[weight])
        literal = self.graph.literal(weight)
        assert literal is not None
        return np.asarray(literal.numpy())

    def with_array(self, weight: str, array: Array) -> Pair:
        if weight in self.graph.weight_names:
            return self.graph, ChainMap({weight: array}, self.weights)  # type: ignore[arg-type]
        node = self.graph.producer(weight)
        assert node is not None
        return self._with(node, node.op, node.inputs, {"value": Const(array)})

    # ── structure ──

    def structure(self) -> Iterator[Site]:
        for node in self.graph:
            yield from self._adds(node)
            yield from self._masks(node)
            yield from self._activations(node)
            yield from self._windows(node)
            if "eps" in node.attrs:
                yield self._attribute("change_epsilon", node, "eps", EPSILON)

    def _adds(self, node: Node) -> Iterator[Site]:
        if node.op != "add" or not node.spec.dtype.is_float:
            return
        numbers = [p for p in (0, 1) if isinstance(node.inputs[p], float)]
        if numbers and 0 < float(node.inputs[numbers[0]] or 0) < EPSILON and self._is_rooted(node):
            (p,), inputs = numbers, list(node.inputs)
            inputs[p] = EPSILON
            yield Site(
                "change_epsilon", node.name, f"{node.inputs[p]:g} is {EPSILON:g}",
                partial(self._with, node, node.op, inputs, node.attrs),
            )  # fmt: skip
        first, second = node.inputs
        if not isinstance(first, str) or not isinstance(second, str) or first == second:
            return
        if self._root(first)[0] or self._root(second)[0] or self.graph.spec(first) != self.graph.spec(second):
            return
        for remaining, dropped in ((first, second), (second, first)):
            text = f"gives its operand {remaining} without {dropped}"
            yield Site("drop_residual", node.name, text, partial(self._forward, node, remaining))

    def _masks(self, node: Node) -> Iterator[Site]:
        if node.op == "attention":
            if len(node.inputs) > 3 and node.inputs[3] is not None:
                make = partial(self._with, node, node.op, node.inputs[:3], node.attrs)
                yield Site("drop_mask", node.name, "reads no mask", make)
            if node.attrs["causal"]:
                yield self._attribute("drop_mask", node, "causal", False)
        mask = self.graph.producer(str(node.inputs[0])) if node.op == "softmax" else None
        if mask is None or mask.op not in ("add", "where"):
            return
        candidates = [i for i in mask.inputs[-2:] if isinstance(i, str) and self._is_product(i)]
        other_operands = [i for i in mask.inputs if i not in candidates]
        if (
            len(candidates) == 1
            and self.graph.spec(candidates[0]) == mask.spec
            and self._masks_something(other_operands)
        ):
            text = f"gives the scores {candidates[0]} unmasked"
            yield Site("drop_mask", mask.name, text, partial(self._forward, mask, candidates[0]))

    def _masks_something(self, operands: Sequence[Any]) -> bool:
        """Return True unless the mask is constant and all zeros, which exporters write for attention without a mask."""
        ancestors = {o for o in operands if isinstance(o, str)}
        if not ancestors:
            return any(operands)
        needed: list[Node] = []
        for node in reversed(self.graph.nodes):
            if ancestors & {v.name for v in node.outputs}:
                needed.append(node)
                ancestors.update(node.values)
        if ancestors & {v.name for v in self.graph.inputs} or any(n.op == "opaque" for n in needed):
            return True
        values = {n: np.asarray(self.weights[n]) for n in ancestors & self.graph.weight_names}
        for node in reversed(needed):
            values.update(zip((v.name for v in node.outputs), interp.evaluate(node, values), strict=True))
        return any(np.any(values[o]) for o in operands if isinstance(o, str))

    def _is_product(self, name: str) -> bool:
        """Return True if the value is a matrix product, optionally scaled."""
        while (node := self.graph.producer(name)) is not None:
            if node.op in ("matmul", "bmm", "mm", "einsum"):
                return True
            if node.op not in ("mul", "div", "cast", "view", "permute"):
                return False
            name = next((i for i in node.inputs if isinstance(i, str) and not self._root(i)[0]), "")
        return False

    def _activations(self, node: Node) -> Iterator[Site]:
        if node.op in ACTIVATIONS and node.spec.dtype.is_float:
            replacement, attrs = ACTIVATIONS[node.op]
            make = partial(self._with, node, replacement, node.inputs[:1], attrs)
            yield Site("change_activation", node.name, f"{node.op} is {replacement}", make)
        elif node.op == "gelu":
            replacement = "tanh" if node.attrs["approximate"] == "none" else "none"
            yield self._attribute("change_activation", node, "approximate", replacement)

    def _windows(self, node: Node) -> Iterator[Site]:
        if node.op not in WINDOWS:
            return
        pads = list(node.attrs["padding"])
        rank = self.graph.spec(str(node.inputs[0])).rank - 2
        pads = pads * 2 if len(pads) == rank else pads
        if any(pads):
            axis = next(a for a, p in enumerate(pads) if p) % rank
            step = 1 if pads[axis] else -1
            pads[axis], pads[axis + rank] = pads[axis] - step, pads[axis + rank] + step
            yield self._attribute("change_padding", node, "padding", pads)
        strides = [1 if s > 1 else 2 for s in node.attrs["stride"]]
        yield self._attribute("change_stride", node, "stride", strides, moves=True)

    def _attribute(self, kind: str, node: Node, name: str, value: Any, *, moves: bool = False) -> Site:
        text = f"{name} {_text(node.attrs[name])} is {_text(value)}"
        make = partial(self._with, node, node.op, node.inputs, {**node.attrs, name: value}, moves=moves)
        return Site(kind, node.name, text, make)

    # ── changes ──

    def _forward(self, node: Node, value: str) -> Pair:
        def rule(editor: Any, current: Node) -> None:
            if current.name == node.name:
                editor.forward(node.name, value)

        return self.graph.rewrite(rule), self.weights

    def _with(
        self, target: Node, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any], *, moves: bool = False
    ) -> Pair:
        """Return the graph with ``target`` replaced. The types after it are inferred again.

        moves: the replacement must change the shape of its result, else NotApplicableError.
        """
        graph, values = self.graph, {**{v.name: v for v in self.graph.inputs}}
        values.update({w.name: w.value for w in graph.weights} | {s.name: s.value for s in graph.states})
        nodes = []
        try:
            for node in graph.nodes:
                new_node = node if node.op == "opaque" else _rebuilt(node, values)
                if node.name == target.name:
                    new_node = _rebuilt(node, values, op, inputs, attrs)
                    if moves and new_node.spec == node.spec:
                        raise NotApplicableError("its result is as large as before, so no step is taken")
                values.update((v.name, v) for v in new_node.outputs)
                nodes.append(new_node)
            changed = graph.replace(nodes=tuple(nodes))
            verify(changed)
        except IrError as error:
            raise NotApplicableError(f"the shapes do not fit any more: {error}") from error
        if changed.output_specs != graph.output_specs:
            raise NotApplicableError("the outputs would have another shape")
        return changed, self.weights


def _rebuilt(
    node: Node, values: Mapping[str, Value], op: str = "", inputs: Sequence[Any] | None = None, attrs: Mapping[str, Any] | None = None
) -> Node:  # fmt: skip
    names: Callable[[int], list[str]] = lambda count: [v.name for v in node.outputs[:count]]  # noqa: E731
    return make_node(
        op or node.op,
        tuple(node.inputs if inputs is None else inputs),
        dict(node.attrs if attrs is None else attrs),
        names,
        values,
        outputs=len(node.outputs),
        sources=node.sources,
    )


def _text(value: Any) -> str:
    return (
        str(list(value))
        if isinstance(value, tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
