"""Constant subgraphs as recipes: values that are known before the run are computed once, when weights are loaded.

A node is a recipe step if all of its tensors are known (weights, constants, results of such nodes) and its op is in the table below. Every
other node stays a kernel and reads known values as buffers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..ir import Graph, Node
from ..ir.attributes import Const
from ..kernels.kernel import Packed
from ..program.program import RecipeStep, WeightRef, WeightTransformRecipe
from ..program.recipe_check import largest_step, resolve, weight_input
from ..program.recipe_results import Typed
from ..program.recipe_table import RECIPE_OPS
from ..storage.blocks import BLOCK_FORMATS, GroupForm, common_form
from ..storage.tensor_files import pack_bits
from ..types import DType, TensorSpec

__all__ = ["KnownValues"]

_Steps: TypeAlias = tuple[RecipeStep, ...]
_Rule: TypeAlias = "Callable[[Node, TensorSpec], tuple[str, Mapping[str, Any]]]"


def _plain(op: str) -> _Rule:
    return lambda node, spec: (op, {})


def _shape(node: Node, spec: TensorSpec) -> tuple[str, Mapping[str, Any]]:
    return "reshape", {"shape": list(spec.shape)}


def _slice(node: Node, x: TensorSpec) -> Mapping[str, Any]:
    """Return attributes of a slice of ``x``; a start may count from the end or exceed the extent."""
    dim = node.attrs["dim"]
    start = slice(node.attrs["start"], None).indices(int(x.shape[dim]))[0]
    return {"dim": dim, "begin": start, "end": start + int(node.spec.shape[dim])}


def _take_index(node: Node, spec: TensorSpec) -> tuple[str, Mapping[str, Any]]:
    return "take", {"dim": next(at for at, i in enumerate(node.inputs[1:]) if i is not None)}


def _reduction(op: str) -> _Rule:
    return lambda node, spec: (op, {"dim": node.attrs["dim"][0], "keepdim": node.attrs["keepdim"]})


def _full(node: Node, spec: TensorSpec) -> tuple[str, Mapping[str, Any]]:
    return "constant", {"value": node.attrs["value"], "dtype": spec.dtype.value, "shape": list(spec.shape)}


def _arange(node: Node, spec: TensorSpec) -> tuple[str, Mapping[str, Any]]:
    attrs = {name: node.attrs[name] for name in ("start", "step")}
    return "arange", {**attrs, "count": int(spec.shape[0]), "dtype": spec.dtype.value}  # type: ignore[arg-type]


# Only ops without type promotion; the operands of a node have one dtype (checked below).
_RULES: Mapping[str, _Rule] = {
    **{
        op: _plain(op)
        for op in (
            "add",
            "sub",
            "mul",
            "div",
            "maximum",
            "neg",
            "sqrt",
            "rsqrt",
            "reciprocal",
            "exp",
            "cos",
            "sin",
            "log",
            "tanh",
            "matmul",
        )
    },
    **dict.fromkeys(("view", "squeeze", "unsqueeze", "clone"), _shape),
    "permute": lambda node, spec: ("permute", {"order": list(node.attrs["dims"])}),
    "expand": lambda node, spec: ("expand", {"shape": list(spec.shape)}),
    "cast": lambda node, spec: ("cast", {"dtype": spec.dtype.value}),
    "cat": lambda node, spec: ("concat", {"dim": node.attrs["dim"]}),
    "flip": lambda node, spec: ("flip", {"dims": list(node.attrs["dims"])}),
    "slice": _plain("slice"),
    "sum": _reduction("sum"),
    "amax": _reduction("amax"),
    "arange": _arange,
    "full": _full,
    "index": _take_index,
    "embedding": lambda node, spec: ("take", {"dim": 0}),
    "index_select": lambda node, spec: ("take", {"dim": node.attrs["dim"]}),
    "gather": lambda node, spec: ("gather", {"dim": node.attrs["dim"]}),
    "where": _plain("where"),
    "relu": _plain("maximum"),
    "dequantize_blocks": lambda node, spec: ("dequantize_blocks", {"blocks": node.attrs["blocks"]}),
}
_ON_ROWS: Mapping[str, Callable[[TensorSpec, Mapping[str, Any]], bool]] = {
    "cast": lambda x, a: True,
    **dict.fromkeys(("concat", "slice", "take"), lambda x, a: a["dim"] < x.rank - 1),
    "reshape": lambda x, a: x.rank > 1 and len(a["shape"]) > 1 and a["shape"][-1] == x.shape[-1],
    "permute": lambda x, a: a["order"][-1] == x.rank - 1,
}
"""Step -> whether it keeps the last dim of its operand whole. Such steps move groups as they move values."""
_SECOND: Mapping[str, float] = {"relu": 0.0}
"""Op -> the number that its step reads as second operand."""
_OF_KERNELS = frozenset(["log", "tanh", "matmul", "amax", "relu", "index", "full"])
"""Ops that stay kernels where a policy names one."""
_LAYERS = frozenset(["convolution", "fused_convolution", "linear", "fused_linear", "batch_norm"])
_MAX_PRODUCTS = 1 << 33
"""Multiplications of a matrix product while weights are loaded: a few seconds."""
_WRAPS = ("add", "sub", "mul", "maximum", "neg")
_LOOKUPS = ("embedding", "index_select", "gather", "index")
_FREE_BYTES = 1 << 20  # bytes of input that every recipe is granted; results may be 64 times as large
# Bytes of what lookups and choices may make: a larger result is cheaper to compute again than to keep.
_MAX_LOOKUP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _RecipeNode:
    """One step over values by name and over numbers. Steps are linearized when a recipe is requested, so that shared values are computed once."""

    op: str
    operands: tuple[str | RecipeStep, ...]
    attrs: Mapping[str, Any]


def _typed(spec: TensorSpec) -> Typed:
    return tuple(int(d) for d in spec.shape if isinstance(d, int)), spec.dtype


class KnownValues:
    """Values that are known before the run, as steps over the model's weights. There is one recipe per distinct buffer."""

    def __init__(self, graph: Graph, is_forced: Callable[[Graph, Node], bool] | None = None) -> None:
        self.graph, self._is_forced = graph, is_forced
        self.refs: dict[str, WeightRef] = {
            w.name: WeightRef(
                w.name, w.spec, w.file, w.format, w.key, w.offset, w.digest, w.content() if w.data else None
            )
            for w in graph.weights
        }
        self._weights = dict(self.refs)
        self._origins: dict[str, _RecipeNode | str] = {}  # value -> the step that makes it, or its weight
        self._specs: dict[str, TensorSpec] = {w.name: w.spec for w in graph.weights}
        self._consts: dict[str, Const] = {}
        self._recipes: dict[str, WeightTransformRecipe] = {}
        self._largest: dict[str, int] = {}  # value -> bytes of its largest intermediate result
        self._reads: dict[str, frozenset[str]] = {}  # value -> weights that it depends on
        for weight in graph.weights:
            self._origins[weight.name] = weight.name
            self._largest[weight.name], self._reads[weight.name] = 0, frozenset([weight.name])

    def __contains__(self, value: object) -> bool:
        return value in self._origins

    def spec(self, value: str) -> TensorSpec:
        """Return the dense spec of a known value."""
        return self._specs[value]

    def const(self, value: str) -> Const | None:
        """Return the value's content if the graph contains it."""
        return self._consts.get(value)

    def taken(self) -> KnownValues:
        """Take every node that can be."""
        for node in self.graph.nodes:
            self.take(node)
        return self

    def take(self, node: Node) -> bool:
        """Record the node's results as known, if possible. Return False if a kernel must compute them."""
        if node.op == "constant":
            const: Const = node.attrs["value"]
            if const.dtype is DType.STRING:
                return False
            self._consts[node.outputs[0].name] = const
            array = const.numpy()
            packed = pack_bits(array, const.dtype) if const.dtype.bits < 8 else array
            data = packed.tobytes()
            # Entry points share weights by name, but not constants, so the name has a digest of the content.
            digest = hashlib.sha256(f"{const.spec}".encode() + data).hexdigest()[:8]
            name = f"{node.outputs[0].name}.{digest}"
            self._weights[name] = WeightRef(name, const.spec, data=data)
            self._known(node, name)
            return True
        rule = _RULES.get(node.op)
        if rule is None or any(v not in self for v in node.values):
            return False
        if not self._one_type(node) or (node.op == "slice" and node.attrs["step"] != 1):
            return False
        if node.op in ("sum", "amax") and len(node.attrs["dim"] or ()) != 1:
            return False
        if node.op in _OF_KERNELS and self._is_forced is not None and self._is_forced(self.graph, node):
            return False
        if not self._in_proportion(node):
            return False
        op, attrs = rule(node, node.spec)
        if op == "slice":
            attrs = _slice(node, self.spec(str(node.inputs[0])))
        operands: list[str | RecipeStep] = []
        for operand in (*node.inputs, _SECOND.get(node.op)):
            if isinstance(operand, str):
                operands.append(operand)
            elif operand is not None:
                number: dict[str, Any] = {"value": operand, "dtype": node.spec.dtype.value, "shape": []}
                operands.append(RecipeStep("constant", (), number))
        if not self._valid(node, op, operands, attrs):
            return False
        self._known(node, _RecipeNode(op, tuple(operands), attrs))
        return True

    def _valid(
        self, node: Node, op: str, operands: Sequence[str | RecipeStep], attrs: Mapping[str, Any]
    ) -> bool:
        """Return whether the table of steps allows the step and infers the node's result, in a bounded time."""
        scalar = ((), node.spec.dtype)
        typed = [_typed(self._specs[o]) if isinstance(o, str) else scalar for o in operands]
        try:
            result = RECIPE_OPS[op].infer(typed, attrs)
        except ValueError:
            return False
        if op == "matmul" and math.prod((*result[0], typed[0][0][-1])) > _MAX_PRODUCTS:
            return False
        return result == _typed(node.spec)

    def recipe(self, value: str, packed: Packed | None = None) -> str:
        """Return the name of the buffer of a known value, or of its packed form."""
        steps, source = (
            self._linear(value)
            if packed is None or packed.groups is None
            else (self._grouped(value, packed.groups), "")
        )
        spec = self._specs[value]
        if packed is not None and packed.steps:
            all_steps: list[RecipeStep] = list(steps)
            start = f"%{len(steps) - 1}" if steps else source
            base = len(steps)
            for step in packed.steps:
                names = tuple(
                    start if n == "%in" else f"%{int(n[1:]) + base}" if n.startswith("%") else n
                    for n in step.inputs
                )
                all_steps.append(replace(step, inputs=names))
            steps, source = tuple(all_steps), ""
        if packed is not None:
            spec = replace(packed.spec, name="")
        key = json.dumps([[s.op, s.inputs, dict(s.attrs)] for s in steps] + [source, str(spec)], default=str)
        stem = source if not steps else f"{value}.{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        if stem not in self._recipes:
            self._recipes[stem] = WeightTransformRecipe(stem, spec, "" if steps else source, steps)
        return stem

    def groups(self, value: str) -> GroupForm | None:
        """Return the smallest groups that hold a weight without loss, if it is stored in blocks along its last dim; else None."""
        formats = self._formats(value)
        return None if formats is None else common_form(BLOCK_FORMATS[f].form for f in formats)

    def _formats(self, value: str) -> frozenset[str] | None:
        """Return the formats of the blocks that a value consists of; None if it is not made of whole rows of blocks."""
        origin = self._origins[value]
        if isinstance(origin, str):
            return None
        if origin.op == "dequantize_blocks":
            return frozenset([origin.attrs["blocks"]])
        if origin.op not in _ON_ROWS or not _ON_ROWS[origin.op](
            self._specs[str(origin.operands[0])], origin.attrs
        ):
            return None
        read = origin.operands[:1] if origin.op == "take" else origin.operands
        parts = [self._formats(operand) if isinstance(operand, str) else None for operand in read]
        return None if None in parts else frozenset[str]().union(*(p for p in parts if p is not None))

    def _grouped(self, value: str, form: GroupForm) -> _Steps:
        """Return the steps that make a value of ``groups`` as groups of a form: movements of rows, without casts."""
        steps: list[RecipeStep] = []

        def visit(name: str) -> str:
            origin = self._origins[name]
            assert not isinstance(origin, str)
            if origin.op == "dequantize_blocks":
                fields = {"bits": form.bits, "group": form.group, "numbers": form.numbers}
                (raw,) = (str(o) for o in origin.operands)
                return _add(
                    steps,
                    RecipeStep("groups_of_blocks", (self._read(raw, steps),), {**origin.attrs, **fields}),
                )
            first = visit(str(origin.operands[0]))
            attrs = dict(origin.attrs)
            if origin.op == "cast":
                return first
            if origin.op == "take":
                return _add(
                    steps, RecipeStep("take", (first, self._read(str(origin.operands[1]), steps)), attrs)
                )
            if origin.op == "reshape":
                *leading, last = attrs["shape"]
                attrs["shape"] = [*leading, int(last) // form.group, form.bytes]
            if origin.op == "permute":
                attrs["order"] = [*attrs["order"], len(attrs["order"])]
            others = [visit(str(o)) for o in origin.operands[1:]]
            return _add(steps, RecipeStep(origin.op, (first, *others), attrs))

        visit(value)
        return tuple(steps)

    def _read(self, value: str, steps: list[RecipeStep]) -> str:
        """Return the reference of a value in later steps, after adding the steps that make it."""
        own, source = self._linear(value)
        if not own:
            return weight_input(source)
        base = len(steps)
        for step in own:
            inputs = tuple(
                f"%{int(i[1:]) + base}" if i[:1] == "%" and i[:2] != "%%" else i for i in step.inputs
            )
            steps.append(replace(step, inputs=inputs))
        return f"%{len(steps) - 1}"

    @property
    def recipes(self) -> tuple[WeightTransformRecipe, ...]:
        """Return every recipe that was requested."""
        return tuple(self._recipes.values())

    @property
    def weights(self) -> tuple[WeightRef, ...]:
        """Return the weights that recipes read."""
        read = {r.source for r in self.recipes}
        read |= {str(resolve(n, "")) for r in self.recipes for s in r.steps for n in s.inputs}
        return tuple(w for w in self._weights.values() if w.name in read)

    def _in_proportion(self, node: Node) -> bool:
        """Return False if an intermediate result is much larger than the inputs and the result. A kernel then computes the node."""
        result_bytes = node.spec.size_bytes or 0
        reads = frozenset[str]().union(*(self._reads[v] for v in node.values))
        largest = max(result_bytes, *(self._largest[v] for v in node.values)) if node.values else result_bytes
        read = sum(self._weights[w].spec.size_bytes or 0 for w in reads)
        # Recipes run at load without a memory limit, so a few bytes must not become gigabytes. A filled weight needs its memory in any case.
        if node.op != "full" and largest > min(
            largest_step(read, result_bytes), largest_step(read, _FREE_BYTES)
        ):
            return False
        self._largest[node.outputs[0].name], self._reads[node.outputs[0].name] = largest, reads
        return True

    def _known(self, node: Node, origin: _RecipeNode | str) -> None:
        name = node.outputs[0].name
        if isinstance(origin, str):
            self._largest[name], self._reads[name] = 0, frozenset([origin])
        self._origins[name] = origin
        self._specs[name] = node.spec

    def _linear(self, value: str) -> tuple[_Steps, str]:
        """Return the steps that make a value, each once and operands first; or no step, and the weight that the value is."""
        origin = self._origins[value]
        if isinstance(origin, str):
            return (), origin
        steps: list[RecipeStep] = []
        reference: dict[str, str] = {}  # value -> its reference in later steps
        stack: list[tuple[str, _RecipeNode, list[str]]] = [(value, origin, [])]
        while stack:
            name, origin, inputs = stack[-1]
            if len(inputs) == len(origin.operands):
                reference[name] = _add(steps, RecipeStep(origin.op, tuple(inputs), origin.attrs))
                stack.pop()
                continue
            operand = origin.operands[len(inputs)]
            if isinstance(operand, RecipeStep):
                inputs.append(_add(steps, operand))
            elif operand in reference:
                inputs.append(reference[operand])
            elif isinstance(known := self._origins[operand], str):
                inputs.append(weight_input(known))
            else:
                stack.append((operand, known, []))
        return tuple(steps), ""

    def _one_type(self, node: Node) -> bool:
        """Return True if NumPy computes the node as the IR defines it.

        That needs one float type of 2 to 8 bytes, or one integer type for ops that wrap around.
        """
        specs = [self._specs[v] for v in node.values]
        if node.op == "dequantize_blocks":
            return True
        if node.op == "full":
            return (
                node.spec.is_static
                and type(node.attrs["value"]) in (bool, int, float)
                and self._is_weight(node)
            )
        if node.op == "arange":
            return node.spec.dtype in (DType.INT64, DType.INT32, DType.FLOAT32, DType.FLOAT64)
        if node.op in ("view", "squeeze", "unsqueeze", "clone", "permute", "expand", "flip", "slice", "cat"):
            return len({s.dtype for s in specs}) == 1
        if not node.attrs.get("wrap", True):  # the step ``take`` wraps
            return False
        if node.op in (*_LOOKUPS, "where"):
            return self._looks_up(node, specs)
        if node.op == "cast" and (specs[0].dtype is DType.BOOL or specs[0].dtype.is_integer):
            to = node.spec.dtype
            return specs[0].dtype.bits >= 8 and not to.is_complex and to.bits >= (16 if to.is_float else 8)
        if node.op in _WRAPS and node.spec.dtype.is_integer and node.spec.dtype.bits >= 8:
            return {s.dtype for s in specs} == {node.spec.dtype}
        return all(s.dtype.is_float and s.dtype.bits >= 16 for s in (*specs, node.spec)) and (
            node.op == "cast" or {s.dtype for s in specs} == {node.spec.dtype}
        )

    def _is_weight(self, node: Node) -> bool:
        """Return whether layers read the value as a weight, and nothing else does. Filled memory for other uses comes from the arena."""
        readers = self.graph.users(node.name)
        outputs = {o.value for o in self.graph.outputs}
        return node.name not in outputs and all(n.op in _LAYERS and n.inputs[0] != node.name for n in readers)

    def _looks_up(self, node: Node, specs: Sequence[TensorSpec]) -> bool:
        """Return True if a lookup or a ``where`` has a small result, computed from values of the result's dtype."""
        if (node.spec.size_bytes or 0) > _MAX_LOOKUP_BYTES:
            return False
        if node.op == "where":
            return isinstance(node.inputs[0], str) and {s.dtype for s in specs[1:]} <= {node.spec.dtype}
        return (
            len(specs) == 2
            and specs[0].dtype is node.spec.dtype
            and specs[0].rank > node.attrs.get("dim", 0)
            and specs[1].dtype.is_integer
        )


def _add(steps: list[RecipeStep], step: RecipeStep) -> str:
    steps.append(step)
    return f"%{len(steps) - 1}"
