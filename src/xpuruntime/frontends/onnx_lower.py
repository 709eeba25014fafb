"""The walk over an ONNX graph: each node by its row of the table, else inlined, else opaque."""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import IrError
from ..ir import MAX_CONST_ELEMENTS, Graph, GraphBuilder, Node, Source, Value, Weight
from ..protocols import Array
from ..types import Dim, DType, TensorSpec
from .onnx_opaque import captured, encode
from .onnx_ops import TABLE, NotLowered, Site
from .onnx_ops.fold import LARGEST, fold
from .onnx_tensors import tensor_array, tensor_spec, whereabouts
from .onnx_types import Types, all_names, sub_graphs

__all__ = ["OLDEST", "Lowering", "Scope"]

OLDEST = 9
"""Ops whose definition is older than this opset are not lowered: theirs is another meaning."""
_DEEPEST = 40  # functions that call functions; a cycle is no valid model
_INDEX_TYPES = (DType.INT64, DType.INT32, DType.BOOL, DType.STRING)


@dataclass
class Scope:
    """Names of one ONNX graph, or of one function body while it is inlined.

    values:  ONNX name -> value of the IR.   tensors: initialisers by name.   types: declared types.
    parent:  the graph around a subgraph, whose names are seen too.
    actuals: attributes that a function was called with.
    prefix:  put before names, so that they stay unique when a body is inlined twice.
    """

    opsets: Mapping[str, int]
    values: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    types: dict[str, Any] = field(default_factory=dict)
    parent: Scope | None = None
    actuals: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    source: Source | None = None
    depth: int = 0

    @staticmethod
    def of_graph(
        graph: Any, opsets: Mapping[str, int], parent: Scope | None = None, prefix: str = ""
    ) -> Scope:
        """The scope of a GraphProto."""
        tensors = {t.name: t for t in graph.initializer}
        tensors |= {s.values.name: _dense(s) for s in graph.sparse_initializer}
        types = {v.name: v.type for v in (*graph.value_info, *graph.output, *graph.input)}
        scope = Scope(opsets, tensors=tensors, types=types, parent=parent, prefix=prefix)
        if parent is not None:
            scope.source, scope.depth, scope.actuals = parent.source, parent.depth + 1, parent.actuals
        return scope

    def holder(self, name: str) -> Scope | None:
        """The innermost scope that has the name."""
        scope: Scope | None = self
        while scope is not None and name not in scope.values and name not in scope.tensors:
            scope = scope.parent
        return scope


def _dense(sparse: Any) -> Any:
    """A TensorProto of a SparseTensorProto."""
    from onnx import numpy_helper

    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    dense[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, dense.shape)] = values
    return numpy_helper.from_array(dense, sparse.values.name)


class _Builder(GraphBuilder):
    """Names of inner values follow the node they come from, and never take a name that the model uses."""

    def __init__(self, name: str, reserved: set[str]) -> None:
        super().__init__(name)
        self.reserved, self.stem = reserved, ""

    def fresh(self, stem: str) -> str:
        """A name that neither the graph nor the model has."""
        base = f"{self.stem}.{stem}" if self.stem else stem
        while True:
            number = self._counters.get(base, 0)
            self._counters[base] = number + 1
            name = f"{base}_{number}" if number else base
            if name not in self.values and name not in self.reserved:
                return name


class Lowering:
    """State of one import: the builder, what is known of values, and where weights lie."""

    def __init__(
        self,
        proto: Any,
        name: str,
        types: Types,
        *,
        path: Path | None,
        folder: Path | None,
        offsets: Mapping[str, int],
    ) -> None:
        self.b = _Builder(name, all_names(proto.graph))
        self.types, self.path, self.folder, self.offsets = types, path, folder, offsets
        self.functions = {(f.domain, f.name): f for f in proto.functions}
        self.ir_version = int(proto.ir_version)
        self.known: dict[str, Array] = {}
        self.weight_tensors: dict[str, Any] = {}
        self.deciding: set[str] = set()  # inputs whose content would have to be known
        self._bound: dict[str, Array] = {}
        self._unknown: dict[str, Any] = {}  # TypeProto of values without a spec
        self._rooted: dict[str, frozenset[str]] = {}

    # ── values ──

    def input(self, value: Any, scope: Scope, content: Array | None) -> None:
        """A graph input; ``content`` where it is bound."""
        spec = self.types.spec(value.type, value.name)
        self.b.input(value.name, spec)
        scope.values[value.name] = value.name
        if spec is None:
            self._unknown[value.name] = value.type
        if content is not None and spec is not None and spec.dtype is not DType.STRING:
            self.known[value.name] = np.asarray(content)

    def done(self) -> Graph:
        """The graph, without initialisers that only attributes were read from (shapes, axes)."""
        read = {i for n in self.b.nodes for i in n.inputs} | {o.value for o in self.b.outputs}
        self.b.nodes = [n for n in self.b.nodes if n.op != "constant" or n.sources or n.name in read]
        self.b.weights = [w for w in self.b.weights if w.name in read]
        for name in set(self.weight_tensors) - read:
            del self.weight_tensors[name]
        return self.b.build(verify=False)

    def untyped(self, values: Iterable[Any]) -> dict[str, str]:
        """The TypeProtos of those that have no spec, as text."""
        named = [v for v in values if v.name not in self.b.values or self.b.values[v.name].spec is None]
        return {v.name: base64.b64encode(v.type.SerializeToString()).decode("ascii") for v in named}

    def value(self, name: str, scope: Scope) -> str:
        """The IR value of an ONNX name; an initialiser is declared when it is first read."""
        holder = scope.holder(name)
        if holder is None:
            raise NotLowered(f"value {name!r} is made by nothing")
        made = holder.values.get(name)
        if made is None or made not in self.b.values:
            made = self._declare(holder.tensors[name], holder.prefix + name)
            holder.values[name] = made
        return made

    def _declare(self, tensor: Any, wanted: str) -> str:
        """An initialiser: small ones of index types and single numbers become constants, all else weights."""
        name = wanted if wanted not in self.b.values else self.b.fresh("weight")
        spec = tensor_spec(tensor, self.types.dtypes)
        if spec is None:
            raise NotLowered(f"element type {tensor.data_type} has no tensor form")
        size = int(np.prod([int(d) for d in tensor.dims], dtype=np.int64))
        if size <= 1 or (spec.dtype in _INDEX_TYPES and size <= MAX_CONST_ELEMENTS):
            array = tensor_array(tensor, self.folder)
            if spec.dtype is not DType.STRING and size <= LARGEST:
                self.known[name] = array
            with self.b.source():  # it is no node of the model
                made: str = self.b.constant(array, name=name)
            return made
        where = whereabouts(tensor, spec, self.path, self.offsets if name == tensor.name else {})
        self.b.values[name] = Value(name, spec)
        self.b.weights.append(Weight(self.b.values[name], **where))
        self.weight_tensors[name] = tensor
        return name

    def content(self, value: str) -> Array | None:
        """What is known of a value's elements; weights are read when they are small."""
        found = self.known.get(value)
        tensor = self.weight_tensors.get(value)
        if found is None and tensor is not None and np.prod([1, *tensor.dims]) <= LARGEST:
            spec = self.b.spec(value)
            if spec.dtype is not DType.STRING:
                found = self.known[value] = tensor_array(tensor, self.folder)
        return found

    # ── nodes ──

    def nodes(self, named: Iterable[tuple[str, Any]], scope: Scope) -> None:
        """Lower nodes in order; names are unique in the model."""
        for name, node in named:
            domain = "" if node.domain == "ai.onnx" else node.domain
            shown = f"{domain}::{node.op_type}" if domain else node.op_type
            with self.b.source(scope.source or Source(name=name, op=shown)):
                self._node(node, domain, scope)

    def _node(self, node: Any, domain: str, scope: Scope) -> None:
        mark = (len(self.b.nodes), len(self.b.values), len(self.b.weights))
        before = self.b.stem
        self.b.stem = scope.prefix + next((o for o in node.output if o), node.op_type)
        node = _actual(node, scope.actuals)
        try:
            try:
                self._lower(node, domain, scope, mark)
                return
            except NotLowered as no:
                reason = no.reason
                if no.value:
                    self.deciding |= self._roots(no.value)
            except IrError as error:
                reason = f"{error.what}{'' if error.got is None else f' ({error.got})'}"
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                reason = f"its attributes or operands do not fit the op ({type(error).__name__}: {error})"
            self._undo(mark)
            if not self._inlined(node, domain, scope, mark):
                self._undo(mark)
                self._opaque(node, domain, scope, reason)
        finally:
            self.b.stem = before

    def _undo(self, mark: tuple[int, int, int]) -> None:
        nodes, values, weights = mark
        del self.b.nodes[nodes:]
        for weight in self.b.weights[weights:]:
            self.weight_tensors.pop(weight.name, None)
        del self.b.weights[weights:]
        while len(self.b.values) > values:
            name, _ = self.b.values.popitem()
            self.known.pop(name, None)
            self._unknown.pop(name, None)

    def _lower(self, node: Any, domain: str, scope: Scope, mark: tuple[int, int, int]) -> None:
        """By content, by its row, or as a constant. Raises NotLowered."""
        op = node.op_type
        if (domain, op) in self.functions:
            raise NotLowered("it is a function of the model")
        if domain:
            raise NotLowered(f"the op is of domain {domain!r}")
        opset = scope.opsets.get("", 1)
        if op == "Constant":
            self._constant(node, scope)
            return
        if op == "If":
            self._branch(node, scope, mark)
            return
        row = TABLE.get(op)
        if row is None:
            raise NotLowered(_WHY.get(op, "the op has no row in the table of ONNX ops"))
        if opset < OLDEST and _version(op, opset) != _version(op, OLDEST):
            raise NotLowered(f"opset {opset} defines the op otherwise than opset {OLDEST}")
        inputs = [self.value(i, scope) if i else None for i in node.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        attrs = _attributes(node)
        if self._folded(op, inputs, attrs, node, scope):
            return
        site = Site(self.b, op, opset, inputs, list(node.output), attrs, self.content, self.types.dtypes)
        results = row(site)
        made: list[str | None] = [results] if isinstance(results, str) else list(results)
        self._bind_outputs(node, scope, made, mark[0])

    def _bind_outputs(self, node: Any, scope: Scope, made: list[str | None], start: int) -> None:
        """Give results the names that the model has for them."""
        used: set[str] = set()
        for index, output in enumerate(node.output):
            if not output:
                continue
            value = made[index] if index < len(made) else None
            if value is None:
                raise NotLowered(f"its output {index} ({output!r}) is not made")
            own = value not in used and any(v.name == value for n in self.b.nodes[start:] for v in n.outputs)
            if not own:
                value = str(self.b.clone(value))
            wanted = scope.prefix + output
            if wanted not in self.b.values:
                self._rename(value, wanted, start)
                value = wanted
            used.add(value)
            scope.values[output] = value
        for made_node in self.b.nodes[start:]:
            self._learn(made_node)

    def _rename(self, old: str, new: str, start: int) -> None:
        """Rename a value that a node from ``start`` on makes."""
        self.b.values[new] = Value(new, self.b.values.pop(old).spec)
        for i in range(start, len(self.b.nodes)):
            n = self.b.nodes[i]
            if old in n.inputs or any(v.name == old for v in n.outputs):
                outputs = tuple(self.b.values[new] if v.name == old else v for v in n.outputs)
                inputs = tuple(new if v == old else v for v in n.inputs)
                self.b.nodes[i] = Node(n.op, inputs, n.attrs, outputs, n.sources)

    def _learn(self, node: Node) -> None:
        """Remember the content of what a node makes, where the node itself says it."""
        spec, name = node.outputs[0].spec, node.name
        if spec is None or name in self.known:
            return
        if node.op == "constant" and spec.dtype is not DType.STRING and node.attrs["value"].size <= LARGEST:
            self.known[name] = node.attrs["value"].numpy()
        elif node.op == "dims":
            self.known[name] = np.array(node.attrs["values"], dtype=object)
        elif node.op == "full" and spec.is_static and _count(spec) <= LARGEST:
            shape = [int(d) for d in spec.shape if isinstance(d, int)]
            self.known[name] = np.full(shape, node.attrs["value"], spec.dtype.numpy)

    def _folded(
        self, op: str, inputs: list[str | None], attrs: dict[str, Any], node: Any, scope: Scope
    ) -> bool:
        """Compute the node now where all it reads is known; true when that was possible."""
        if not inputs:
            return False
        facts = attrs
        if op in ("Cast", "CastLike"):  # of the second operand only the type counts
            like = self.b.values[inputs[1] or ""].spec if op == "CastLike" else None
            to = self.types.dtypes.get(attrs["to"]) if op == "Cast" else like and like.dtype
            if to is None:
                return False
            op, inputs, facts = "Cast", inputs[:1], {"to": to}
        operands = [None if i is None else self.content(i) for i in inputs]
        if any(i is not None and a is None for i, a in zip(inputs, operands, strict=True)):
            return False
        results = fold(op, operands, facts)
        if results is None or len(results) < len(node.output):
            return False
        first = self.b.values[next(i for i in inputs if i)].spec
        kind: DType | None = facts["to"] if op == "Cast" else None if first is None else first.dtype
        start = len(self.b.nodes)
        self._bind_outputs(node, scope, [self._known_value(r, kind) for r in results], start)
        for output, result in zip(node.output, results, strict=False):
            if output:
                self.known[scope.values[output]] = result
        return True

    def _known_value(self, array: Array, dtype: DType | None) -> str:
        """A node that makes an array of numbers and dims."""
        if array.dtype != object:
            if array.dtype == np.int64 and dtype is not None and dtype.is_integer:
                array = array.astype(dtype.numpy)  # object arithmetic forgets narrow integers
            return str(self.b.constant(array))
        value = str(self.b.dims(values=[v if isinstance(v, Dim) else int(v) for v in array.ravel()]))
        if array.ndim != 1:
            value = str(self.b.view(value, size=list(array.shape)))
        return value if dtype in (DType.INT64, None) else str(self.b.cast(value, dtype=dtype))

    def _constant(self, node: Any, scope: Scope) -> None:
        from onnx import numpy_helper

        (attribute,) = node.attribute
        if attribute.name == "value":
            tensor = attribute.t
        elif attribute.name == "sparse_value":
            tensor = _dense(attribute.sparse_tensor)
        else:
            kinds = {
                "value_float": np.float32,
                "value_floats": np.float32,
                "value_int": np.int64,
                "value_ints": np.int64,
            }
            kind = kinds.get(attribute.name, object)
            tensor = numpy_helper.from_array(np.array(_attributes(node)[attribute.name], dtype=kind))
        wanted = scope.prefix + node.output[0]
        spec = tensor_spec(tensor, self.types.dtypes)
        if spec is None:
            raise NotLowered(f"element type {tensor.data_type} has no tensor form")
        name = wanted if wanted not in self.b.values else self.b.fresh("constant")
        if np.prod([1, *tensor.dims], dtype=np.int64) <= MAX_CONST_ELEMENTS:
            array = tensor_array(tensor, self.folder)
            self.b.constant(array, name=name)
            if spec.dtype is not DType.STRING and array.size <= LARGEST:
                self.known[name] = array
        else:
            self.b.values[name] = Value(name, spec)
            self.b.weights.append(Weight(self.b.values[name]))
            self.weight_tensors[name] = tensor
        scope.values[node.output[0]] = name

    # ── functions and branches ──

    def _branch(self, node: Any, scope: Scope, mark: tuple[int, int, int]) -> None:
        """An If whose condition is known is its branch."""
        condition = self.content(self.value(node.input[0], scope))
        if condition is None:
            raise NotLowered("control flow", self.value(node.input[0], scope))
        taken = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
        graph = _attributes(node)[taken]
        inner = Scope.of_graph(graph, scope.opsets, scope, self._prefix(node, scope))
        self.nodes(((n.name or n.op_type, n) for n in graph.node), self._sourced(inner))
        self._hand_out(node, scope, [self.value(o.name, inner) for o in graph.output])

    def _inlined(self, node: Any, domain: str, scope: Scope, mark: tuple[int, int, int]) -> bool:
        """Put a function's body in the place of the node. False when there is none, or ONNX's own leads to opaque nodes."""
        local = self.functions.get((domain, node.op_type))
        if scope.depth > _DEEPEST:
            return False
        try:
            body = local or self._schema_body(node, domain, scope)
            if body is None or not body.node:  # ONNX gives an empty body where it has none for these types
                return False
            opsets = {
                "" if o.domain == "ai.onnx" else o.domain: o.version for o in body.opset_import
            } or scope.opsets
            inner = Scope(opsets, prefix=self._prefix(node, scope), depth=scope.depth + 1)
            for formal, actual in itertools.zip_longest(
                body.input, node.input[: len(body.input)], fillvalue=""
            ):
                if actual:
                    inner.values[formal] = self.value(actual, scope)
            given = {a.name: a for a in node.attribute}
            inner.actuals = (
                {a.name: a for a in body.attribute_proto}
                | _defaults(node, opset_of(scope, domain), local)
                | given
            )
            inner.source = self.b._sources[0] if self.b._sources else None
            self.nodes(((n.name or n.op_type, n) for n in _without_absent(body, node)), inner)
            if local is None and any(n.op == "opaque" for n in self.b.nodes[mark[0] :]):
                return False
            results = [self.value(o, inner) for o in body.output[: len(node.output)]]
            self._hand_out(node, scope, results)
        except (NotLowered, IrError):
            return False
        return True

    def _hand_out(self, node: Any, scope: Scope, results: list[str]) -> None:
        """Results of an inlined body under the outer names."""
        for output, value in zip(node.output, results, strict=False):
            if output:
                wanted = scope.prefix + output
                name = wanted if wanted not in self.b.values else ""
                made = str(self.b.clone(value, name=name)) if self.b.values[value].spec else value
                if value in self.known:
                    self.known[made] = self.known[value]
                scope.values[output] = made

    def _sourced(self, inner: Scope) -> Scope:
        inner.source = self.b._sources[0] if self.b._sources else None
        return inner

    def _prefix(self, node: Any, scope: Scope) -> str:
        return f"{scope.prefix}{next((o for o in node.output if o), node.op_type)}/"

    def _schema_body(self, node: Any, domain: str, scope: Scope) -> Any:
        """ONNX's own definition of the op by other ops, for these operands; None when it has none."""
        import onnx

        opset = scope.opsets.get(domain, 1)
        try:
            schema = onnx.defs.get_schema(node.op_type, opset, domain)
        except Exception:  # SchemaError is a class of onnx's C++ module
            return None
        if schema.has_function:
            fitting = [v for v in schema.function_opset_versions if v <= opset]
            if fitting:
                return onnx.FunctionProto.FromString(schema.get_function_with_opset_version(max(fitting)))
        if schema.has_context_dependent_function:
            fitting = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
            types = [self._type(i, scope) if i else onnx.TypeProto() for i in node.input]
            if fitting and all(t is not None for t in types):
                try:
                    text = schema.get_context_dependent_function_with_opset_version(
                        max(fitting), node.SerializeToString(), [t.SerializeToString() for t in types]
                    )
                    return onnx.FunctionProto.FromString(text)
                except Exception:  # the schema's C++ code refuses these types
                    return None
        return None

    # ── opaque nodes ──

    def _opaque(self, node: Any, domain: str, scope: Scope, reason: str) -> None:
        captures = captured(node) if sub_graphs(node) else []
        inputs: list[str | None] = [self.value(i, scope) if i else None for i in node.input]
        inputs += [self.value(c, scope) for c in captures]
        outputs: list[tuple[str, TensorSpec | None]] = []
        inferred = self._infer(node, domain, scope)
        for output in node.output:
            if not output:
                outputs.append(("", None))
                continue
            wanted = scope.prefix + output
            name = wanted if wanted not in self.b.values else self.b.fresh("opaque")
            declared, own = scope.types.get(output), inferred.get(output)
            spec = self.types.spec(declared, name) or self.types.spec(own, name, parse=True)
            outputs.append((name, spec))
            scope.values[output] = name
        made = self.b.opaque(
            node.op_type,
            inputs,
            outputs,
            reason=reason,
            domain=domain,
            attributes=encode(node, self.types.dtypes, captures),
        )
        for output, name, (_, spec) in zip(node.output, made, outputs, strict=True):
            if spec is None:
                found = scope.types.get(output) or inferred.get(output)
                self._unknown[name] = found

    def _infer(self, node: Any, domain: str, scope: Scope) -> dict[str, Any]:
        inputs = {i: self._type(i, scope) for i in node.input if i}
        opset = scope.opsets.get(domain, 1)
        return self.types.infer(
            node, opset, scope.opsets, inputs, lambda i: self._tensor(i, scope), self.ir_version
        )

    def _type(self, name: str, scope: Scope) -> Any:
        value = self.value(name, scope)
        spec = self.b.values[value].spec
        return self._unknown.get(value) if spec is None else self.types.proto(spec)

    def _tensor(self, name: str, scope: Scope) -> Any:
        from onnx import numpy_helper

        array = self.content(self.value(name, scope))
        return None if array is None or array.dtype == object else numpy_helper.from_array(array, name)

    def _roots(self, value: str) -> frozenset[str]:
        """The graph's inputs that a value is computed from."""
        if not self._rooted:
            self._rooted = {v.name: frozenset({v.name}) for v in self.b.inputs}
        made = {v.name: n for n in self.b.nodes for v in n.outputs}
        seen: set[str] = set()
        roots: set[str] = set()
        todo = [value]
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            roots |= self._rooted.get(name, frozenset())
            if name in made:
                todo += made[name].values
        return frozenset(roots)


_WHY = {
    **dict.fromkeys(("Loop", "Scan"), "control flow"),
    **dict.fromkeys(("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "TfIdfVectorizer"), "text"),
    **dict.fromkeys(("Optional", "OptionalGetElement", "OptionalHasElement"), "optional values"),
    **dict.fromkeys(
        ("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
         "SequenceLength", "SequenceMap", "SplitToSequence"),
        "sequences",
    ),
    "ImageDecoder": "it decodes files",
}  # fmt: skip


def _count(spec: TensorSpec) -> int:
    """Elements of a static spec."""
    return math.prod(d for d in spec.shape if isinstance(d, int))


def opset_of(scope: Scope, domain: str) -> int:
    """The version of a domain that a scope's nodes mean."""
    return scope.opsets.get(domain, 1)


def _defaults(node: Any, opset: int, local: Any) -> dict[str, Any]:
    """Attributes that ONNX gives an op of its own where the node does not."""
    if local is not None:
        return {}
    import onnx

    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    return {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}


def _attributes(node: Any) -> dict[str, Any]:
    """A node's attributes as Python values; tensors as arrays, graphs as they are."""
    from onnx import numpy_helper

    found: dict[str, Any] = {}
    for a in node.attribute:
        match a.type:
            case 1:
                found[a.name] = float(a.f)
            case 2:
                found[a.name] = int(a.i)
            case 3:
                found[a.name] = a.s.decode("utf-8", "surrogateescape")
            case 4:
                found[a.name] = numpy_helper.to_array(a.t)
            case 5:
                found[a.name] = a.g
            case 6:
                found[a.name] = list(a.floats)
            case 7:
                found[a.name] = list(a.ints)
            case 8:
                found[a.name] = [s.decode("utf-8", "surrogateescape") for s in a.strings]
            case _:
                raise NotLowered(f"attribute {a.name!r} is of a kind that has no form")
    return found


def _actual(node: Any, actuals: Mapping[str, Any]) -> Any:
    """The node with references to its function's attributes resolved; one that was not given is left off."""
    if not any(a.ref_attr_name for a in node.attribute) and not (actuals and sub_graphs(node)):
        return node
    import onnx

    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy = made.attribute.add()
            copy.CopyFrom(attribute)
            for graph in ([copy.g] if copy.HasField("g") else []) + list(copy.graphs):
                for inner in graph.node:
                    inner.CopyFrom(_actual(inner, actuals))
        elif attribute.ref_attr_name in actuals:
            copy = made.attribute.add()
            copy.CopyFrom(actuals[attribute.ref_attr_name])
            copy.name = attribute.name
    return made


def _without_absent(body: Any, call: Any) -> list[Any]:
    """A body's nodes; operands that the caller left off become absent operands of the nodes that read them."""
    absent = {
        f for f, a in itertools.zip_longest(body.input, call.input[: len(body.input)], fillvalue="") if not a
    }
    if not absent:
        return list(body.node)
    import onnx

    nodes = []
    for node in body.node:
        if absent & set(node.input):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for i, name in enumerate(copy.input):
                if name in absent:
                    copy.input[i] = ""
            node = copy
        nodes.append(node)
    return nodes


def _version(op: str, opset: int) -> int:
    import onnx

    try:
        return int(onnx.defs.get_schema(op, opset, "").since_version)
    except Exception:  # SchemaError is a class of onnx's C++ module: the op is younger
        return 0
