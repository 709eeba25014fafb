"""Values during lowering: names, known content, and where weights are stored."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...ir import MAX_CONST_ELEMENTS, Graph, Node, Value, Weight
from ...protocols import Array
from ...types import Dim, DType, TensorSpec
from ..builder import ImportBuilder
from ..not_lowered import NotLowered
from .fold import MAX_FOLDED_ELEMENTS
from .nodes import attributes
from .scope import Scope, dense
from .tensors import tensor_array, tensor_spec, weight_reference
from .types import OnnxTypes, all_names

__all__ = ["Mark", "OnnxValues"]

Mark = tuple[int, int, int]
"""Counts of nodes, values and weights, for undo."""
_CONSTANT_KINDS: dict[str, Any] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": object,
    "value_strings": object,
}
_INDEX_TYPES = (DType.INT64, DType.INT32, DType.BOOL, DType.STRING)


class OnnxValues:
    """The state of one import: the builder and what is known of its values."""

    def __init__(
        self,
        proto: Any,
        name: str,
        types: OnnxTypes,
        *,
        path: Path | None,
        folder: Path | None,
        offsets: Mapping[str, int],
    ) -> None:
        self.b = ImportBuilder(name, all_names(proto.graph))
        self.types, self.path, self.folder, self.offsets = types, path, folder, offsets
        self.known: dict[str, Array] = {}
        self.weight_tensors: dict[str, Any] = {}
        self.deciding: set[str] = set()  # inputs whose content must be known to lower more nodes
        self.impossible: set[str] = (
            set()
        )  # opaque nodes whose operands have sizes that the op does not accept
        self.unknown: dict[str, Any] = {}  # TypeProto of values without a spec
        self.sequences: dict[str, tuple[str, ...]] = {}  # elements of sequences that are known

    def mark(self) -> Mark:
        """Return a point for ``undo``."""
        return len(self.b.nodes), len(self.b.values), len(self.b.weights)

    def input(self, value: Any, scope: Scope, content: Array | None) -> None:
        """Declare a graph input; ``content`` if it is bound."""
        spec = self.types.spec(value.type, value.name)
        self.b.input(value.name, spec)
        scope.values[value.name] = value.name
        if spec is None:
            self.unknown[value.name] = value.type
        if content is not None and spec is not None and spec.dtype is not DType.STRING:
            self.known[value.name] = np.asarray(content)

    def done(self) -> Graph:
        """Return the graph, without initializers that only serve as attributes (shapes, axes) and sequences that nothing reads."""
        for node in reversed(self.b.nodes.copy()):
            if node.name in self.sequences and node.name not in self._read():
                self.b.nodes.remove(node)
        read = self._read()
        self.b.nodes = [n for n in self.b.nodes if n.op != "constant" or n.sources or n.name in read]
        self.b.weights = [w for w in self.b.weights if w.name in read]
        for name in set(self.weight_tensors) - read:
            del self.weight_tensors[name]
        return self.b.build(verify=False)

    def _read(self) -> set[Any]:
        return {i for n in self.b.nodes for i in n.inputs} | {o.value for o in self.b.outputs}

    def untyped(self, values: Iterable[Any]) -> dict[str, str]:
        """Return the TypeProtos of values without a spec, in base64."""
        untyped_values = [
            v for v in values if v.name not in self.b.values or self.b.values[v.name].spec is None
        ]
        return {v.name: base64.b64encode(v.type.SerializeToString()).decode("ascii") for v in untyped_values}

    def value(self, name: str, scope: Scope) -> str:
        """Return the IR value of an ONNX name; an initializer is declared on first use."""
        holder = scope.holder(name)
        if holder is None:
            raise NotLowered(f"value {name!r} has no producer")
        value = holder.values.get(name)
        if value is None or value not in self.b.values:
            value = self._declare(holder.tensors[name], holder.prefix + name)
            holder.values[name] = value
        return value

    def _declare(self, tensor: Any, preferred: str) -> str:
        """Declare an initializer: small ones of index types and single numbers as constants, all others as weights."""
        name = preferred if preferred not in self.b.values else self.b.fresh("weight")
        spec = tensor_spec(tensor, self.types.dtypes)
        if spec is None:
            raise NotLowered(f"element type {tensor.data_type} is not supported in tensors")
        size = int(np.prod([int(d) for d in tensor.dims], dtype=np.int64))
        if size <= 1 or (spec.dtype in _INDEX_TYPES and size <= MAX_CONST_ELEMENTS):
            array = tensor_array(tensor, self.folder)
            if spec.dtype is not DType.STRING and size <= MAX_FOLDED_ELEMENTS:
                self.known[name] = array
            with self.b.source():  # a constant is not a node of the model
                constant: str = self.b.constant(array, name=name)
            return constant
        return self.weight(name, spec, tensor, stored=True)

    def weight(self, name: str, spec: TensorSpec, tensor: Any, *, stored: bool) -> str:
        """Declare a weight and return its value. ``stored``: whether its place in a file is recorded, as of an initializer."""
        where: dict[str, Any] = {}
        if stored:
            where = weight_reference(tensor, spec, self.path, self.offsets if name == tensor.name else {})
        self.b.values[name] = Value(name, spec)
        self.b.weights.append(Weight(self.b.values[name], **where))
        self.weight_tensors[name] = tensor
        return name

    def content(self, value: str) -> Array | None:
        """Return a value's elements if they are known; small weights are read."""
        array = self.known.get(value)
        tensor = self.weight_tensors.get(value)
        if array is None and tensor is not None and np.prod([1, *tensor.dims]) <= MAX_FOLDED_ELEMENTS:
            spec = self.b.spec(value)
            if spec.dtype is not DType.STRING:
                array = self.known[value] = tensor_array(tensor, self.folder)
        return array

    def undo(self, mark: Mark) -> None:
        nodes, values, weights = mark
        del self.b.nodes[nodes:]
        for weight in self.b.weights[weights:]:
            self.weight_tensors.pop(weight.name, None)
        del self.b.weights[weights:]
        while len(self.b.values) > values:
            name, _ = self.b.values.popitem()
            self.known.pop(name, None)
            self.unknown.pop(name, None)

    def rename(self, names: Mapping[str, str], start: int) -> None:
        """Rename values in the nodes from ``start`` on. ``values`` has the new names already."""
        if not names:
            return
        for i in range(start, len(self.b.nodes)):
            n = self.b.nodes[i]
            outputs = tuple(self.b.values[names[v.name]] if v.name in names else v for v in n.outputs)
            inputs = tuple(names.get(v, v) if isinstance(v, str) else v for v in n.inputs)
            if (inputs, outputs) != (n.inputs, n.outputs):
                self.b.nodes[i] = Node(n.op, inputs, n.attrs, outputs, n.sources)

    def learn(self, node: Node) -> None:
        """Remember the content of a node's result if its attributes determine it."""
        spec, name = node.outputs[0].spec, node.name
        if spec is None or name in self.known:
            return
        if (
            node.op == "constant"
            and spec.dtype is not DType.STRING
            and node.attrs["value"].size <= MAX_FOLDED_ELEMENTS
        ):
            self.known[name] = node.attrs["value"].numpy()
        elif node.op == "view" and spec.is_static and node.inputs[0] in self.known:
            shape = [int(d) for d in spec.shape if isinstance(d, int)]
            self.known[name] = self.known[str(node.inputs[0])].reshape(shape)
        elif node.op == "dims":
            self.known[name] = np.array(node.attrs["values"], dtype=object)
        elif node.op == "full" and spec.is_static and _count(spec) <= MAX_FOLDED_ELEMENTS:
            shape = [int(d) for d in spec.shape if isinstance(d, int)]
            self.known[name] = np.full(shape, node.attrs["value"], spec.dtype.numpy)

    def known_value(self, array: Array, dtype: DType | None) -> str:
        """Add nodes for an array of numbers and dims, and return the value."""
        if array.dtype != object:
            if array.dtype == np.int64 and dtype is not None and dtype.is_integer:
                array = array.astype(dtype.numpy)  # object arithmetic loses narrow integer types
            return str(self.b.constant(array))
        value = str(self.b.dims(values=[v if isinstance(v, Dim) else int(v) for v in array.ravel()]))
        if array.ndim != 1:
            value = str(self.b.view(value, size=list(array.shape)))
        return value if dtype in (DType.INT64, None) else str(self.b.cast(value, dtype=dtype))

    def constant(self, node: Any, scope: Scope) -> None:
        from onnx import numpy_helper

        if len(node.attribute) != 1:
            raise NotLowered(
                "the Constant takes its value from a function attribute that the call does not set"
            )
        (attribute,) = node.attribute
        if attribute.name == "value":
            tensor = attribute.t
        elif attribute.name == "sparse_value":
            tensor = dense(attribute.sparse_tensor)
        else:
            if attribute.name not in _CONSTANT_KINDS:
                raise NotLowered(f"Constant has no attribute {attribute.name!r}")
            kind = _CONSTANT_KINDS[attribute.name]
            tensor = numpy_helper.from_array(np.array(attributes(node)[attribute.name], dtype=kind))
        preferred = scope.prefix + node.output[0]
        spec = tensor_spec(tensor, self.types.dtypes)
        if spec is None:
            raise NotLowered(f"element type {tensor.data_type} is not supported in tensors")
        name = preferred if preferred not in self.b.values else self.b.fresh("constant")
        if np.prod([1, *tensor.dims], dtype=np.int64) <= MAX_CONST_ELEMENTS:
            array = tensor_array(tensor, self.folder)
            self.b.constant(array, name=name)
            if spec.dtype is not DType.STRING and array.size <= MAX_FOLDED_ELEMENTS:
                self.known[name] = array
        else:
            name = self.weight(name, spec, tensor, stored=False)
        scope.values[node.output[0]] = name

    def type_of(self, name: str, scope: Scope) -> Any:
        value = self.value(name, scope)
        spec = self.b.values[value].spec
        return self.unknown.get(value) if spec is None else self.types.proto(spec)

    def tensor_of(self, name: str, scope: Scope) -> Any:
        from onnx import numpy_helper

        array = self.content(self.value(name, scope))
        return None if array is None or array.dtype == object else numpy_helper.from_array(array, name)

    def roots(self, value: str) -> frozenset[str]:
        """Return the graph's inputs that a value depends on."""
        inputs = {v.name for v in self.b.inputs}
        producers = {v.name: n for n in self.b.nodes for v in n.outputs}
        visited: set[str] = set()
        roots: set[str] = set()
        todo = [value]
        while todo:
            name = todo.pop()
            if name in visited:
                continue
            visited.add(name)
            roots |= inputs & {name}
            if name in producers:
                todo += producers[name].values
        return frozenset(roots)


def _count(spec: TensorSpec) -> int:
    """Return the number of elements of a static spec."""
    return math.prod(d for d in spec.shape if isinstance(d, int))
