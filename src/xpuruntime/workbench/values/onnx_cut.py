"""Parts of an ONNX model between two sets of values, made of the model's own nodes."""

from __future__ import annotations

import ast
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import ModelError, XpuError
from ...frontends.model_file import open_with
from ...frontends.onnx.files.check import check_onnx
from ...frontends.onnx.proto import dtype_table
from ...frontends.onnx.types import OnnxTypes
from ...frontends.torch.names import user_frame
from ...inference.native.model import native_model
from ...protocols import Array, ModelSource, NodeRef
from ...types import DType

__all__ = ["OnnxCuts", "SourceLine"]

_SMALL = 4096
"""Bytes up to which an initializer stays in the model whose shapes are inferred: shapes are small constants."""


class SourceLine(tuple[str, str, int]):
    """The origin of a node: module path, file and line. Empty texts and 0 if the model does not keep it."""

    __slots__ = ()

    def __str__(self) -> str:
        module, file, line = self
        position = f"{file}:{line}" if file else ""
        return f"{position} in {module}" if position and module else position or module


class OnnxCuts:
    """An ONNX model that can be cut. Raises ModelError for a model of another format."""

    def __init__(self, model: ModelSource) -> None:
        import onnx

        if model.format != "onnx":
            raise ModelError(
                f"model {model.name!r}",
                "cannot be cut: it is not ONNX",
                got=model.format,
                do="Give the ONNX file.",
            )
        checked: Any = open_with(model.path or model.data, model.name, check_onnx)
        self.model, self._onnx, self._proto = model, onnx, checked.proto
        self._names: list[str] = list(checked.names)
        graph = self._proto.graph
        self.nodes: Sequence[NodeRef] = model.nodes
        self.maker = {v: i for i, n in enumerate(model.nodes) for v in n.outputs}
        self._tensors = {t.name: t for t in graph.initializer}
        self._sparse = {t.values.name: t for t in graph.sparse_initializer}
        self._dtypes = dtype_table(onnx)
        self._numbers = {dtype: number for number, dtype in self._dtypes.items()}
        self._types = {
            v.name: v.type for v in (*self._inferred(), *graph.input, *graph.output) if _is_tensor(v.type)
        }
        self._types = self._from_ir() | self._types

    # ── values ──

    @property
    def values(self) -> list[str]:
        """Return the tensors that nodes compute and whose types are known, in the model's order."""
        return [v for n in self.nodes for v in n.outputs if v in self._types]

    def shape_of(self, value: str) -> tuple[int, ...] | None:
        """Return the shape of a value if inference knows every size."""
        shape = self._types[value].tensor_type.shape
        if not self._types[value].tensor_type.HasField("shape"):
            return None
        if not all(d.HasField("dim_value") for d in shape.dim):
            return None
        return tuple(d.dim_value for d in shape.dim)

    def dtype_of(self, value: str) -> DType | None:
        """Return the element type of a value, if this release knows it."""
        return self._dtypes.get(self._types[value].tensor_type.elem_type)

    def bytes_of(self, value: str) -> int | None:
        """Return the size of a value if inference knows its shape."""
        shape, dtype = self.shape_of(value), self.dtype_of(value)
        return None if shape is None or dtype is None else (math.prod(shape) * dtype.bits + 7) // 8

    def source_of(self, value: str) -> SourceLine:
        """Return where the exporter says that a value's node comes from (metadata of torch.onnx)."""
        index = self.maker.get(value)
        if index is None:
            return SourceLine(("", "", 0))
        properties = {p.key: p.value for p in self._proto.graph.node[index].metadata_props}
        scopes = properties.get("pkg.torch.onnx.name_scopes")
        module = properties.get("namespace", "") if scopes is None else _module_in(scopes)
        return SourceLine((module, *user_frame(properties.get("pkg.torch.onnx.stack_trace", ""))))

    def definition(self, index: int) -> str:
        """Return sha256 of everything that decides a node's function: op, attributes, names of its values, and its weights."""
        node = self._onnx.NodeProto()
        node.CopyFrom(self._proto.graph.node[index])
        node.name, node.doc_string = "", ""
        del node.metadata_props[:]
        digest = hashlib.sha256(node.SerializeToString(deterministic=True))
        for name in self.nodes[index].inputs:
            if name in self._sparse:
                digest.update(self._sparse[name].SerializeToString(deterministic=True))
            elif name in self._tensors:
                tensor = self._onnx.TensorProto()
                tensor.CopyFrom(self._tensors[name])
                self._load(tensor)
                array = self._onnx.numpy_helper.to_array(tensor)
                raw = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
                digest.update(f"{tensor.data_type} {list(tensor.dims)} ".encode() + raw)
        return digest.hexdigest()

    def definition_of(self, outputs: Sequence[str]) -> str:
        """Return the definition of the node with these outputs; empty if there is none."""
        index = self.maker.get(outputs[0]) if outputs else None
        return (
            self.definition(index)
            if index is not None and self.nodes[index].outputs == tuple(outputs)
            else ""
        )

    # ── cuts ──

    def between(self, inputs: Sequence[str], outputs: Sequence[str]) -> list[int]:
        """Return the indices of the nodes that compute ``outputs`` from ``inputs`` and the model's own inputs."""
        border, todo, selected = set(inputs), list(outputs), set[int]()
        while todo:
            value = todo.pop()
            index = self.maker.get(value)
            if value in border or index is None or index in selected:
                continue
            selected.add(index)
            todo += self.nodes[index].inputs
        return sorted(selected)

    def cut(
        self, inputs: Sequence[str], outputs: Sequence[str], arrays: Mapping[str, Array] | None = None
    ) -> Any:
        """Return an ``onnx.ModelProto`` that computes ``outputs`` from ``inputs`` and those of the model's inputs that it needs.

        arrays: values whose shapes the inputs of the cut get.
        """
        onnx, own = self._onnx, self._proto
        selected = self.between(inputs, outputs)
        read = dict.fromkeys(v for i in selected for v in self.nodes[i].inputs)
        produced = {v for i in selected for v in self.nodes[i].outputs}
        weights = [v for v in read if v in self._tensors or v in self._sparse]
        border = [v for v in read if v not in produced and v not in weights]
        # Before IR version 4, initializers had to be inputs, too.
        model = onnx.ModelProto(ir_version=max(own.ir_version, 4), producer_name=own.producer_name)
        model.opset_import.extend(own.opset_import)
        model.functions.extend(own.functions)
        model.graph.name = own.graph.name
        for index in selected:
            model.graph.node.add().CopyFrom(own.graph.node[index])
            model.graph.node[-1].name = self._names[index]
        for name in weights:
            if name in self._sparse:
                model.graph.sparse_initializer.add().CopyFrom(self._sparse[name])
            else:
                model.graph.initializer.add().CopyFrom(self._tensors[name])
                self._load(model.graph.initializer[-1])
        for value in border:
            model.graph.input.append(self._info(value, None if arrays is None else arrays.get(value)))
        for value in dict.fromkeys(outputs):
            model.graph.output.append(self._info(value, None))
        return model

    def _load(self, tensor: Any) -> None:
        """Read the external data of one tensor of a cut. Raises ModelError."""
        helper = self._onnx.external_data_helper
        if self.model.path is None or not helper.uses_external_data(tensor):
            return
        try:
            helper.load_external_data_for_tensor(tensor, str(Path(self.model.path).parent))
        except (OSError, ValueError, self._onnx.checker.ValidationError) as error:
            raise ModelError(
                f"model {self.model.name!r}",
                "external data cannot be read",
                got=error,
                do="Save the model again.",
            ) from error
        tensor.data_location = self._onnx.TensorProto.DEFAULT
        del tensor.external_data[:]

    def _info(self, value: str, array: Array | None) -> Any:
        info = self._onnx.ValueInfoProto(name=value)
        if value in self._types:
            info.type.CopyFrom(self._types[value])
        if array is not None and value in self._types:
            shape = info.type.tensor_type.shape
            del shape.dim[:]
            shape.SetInParent()
            for extent in array.shape:
                shape.dim.add().dim_value = extent
        return info

    # ── types ──

    def _inferred(self) -> Sequence[Any]:
        """Return the value infos that ONNX infers, from a copy of the model without its large weights."""
        onnx, light = self._onnx, self._onnx.ModelProto()
        own = self._proto
        light.ir_version = max(own.ir_version, 4)
        light.opset_import.extend(own.opset_import)
        light.functions.extend(own.functions)
        light.graph.name = own.graph.name
        light.graph.node.extend(own.graph.node)
        light.graph.input.extend(own.graph.input)
        light.graph.output.extend(own.graph.output)
        light.graph.value_info.extend(own.graph.value_info)
        known = {v.name for v in own.graph.input}
        for tensor in own.graph.initializer:
            if not onnx.external_data_helper.uses_external_data(tensor) and tensor.ByteSize() <= _SMALL:
                light.graph.initializer.add().CopyFrom(tensor)
            elif tensor.name not in known:
                light.graph.input.append(
                    onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
                )
        try:
            done = onnx.shape_inference.infer_shapes(light, data_prop=True)
        except Exception:  # an op that inference rejects: then the declared types alone are known
            return list(own.graph.value_info)
        return list(done.graph.value_info)

    def _from_ir(self) -> dict[str, Any]:
        """Return the types that the import into the IR knows; nothing if the model cannot be lowered."""
        try:
            graph = native_model(self.model).graph
        except XpuError:
            return {}
        types = OnnxTypes(self._dtypes, set(graph.symbols))
        return {
            name: types.proto(value.spec)
            for name, value in graph.values.items()
            if name in self.maker and value.spec is not None and value.spec.dtype in self._numbers
        }


def _is_tensor(type_proto: Any) -> bool:
    return bool(type_proto.WhichOneof("value") == "tensor_type" and type_proto.tensor_type.elem_type)


def _module_in(scopes: str) -> str:
    """Return the module of ``['', 'd1', 'd1.conv', 'conv2d']``: the scopes around a node and its name, as torch.onnx writes them."""
    try:
        names = ast.literal_eval(scopes)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return scopes
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        return scopes
    return names[-2] if len(names) > 1 else ""
