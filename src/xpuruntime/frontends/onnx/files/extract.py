"""Extraction of subgraphs of an ONNX model from its original nodes, so that an engine loses nothing by way of the IR."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ....decisions import Reason, Support
from ....errors import ModelError
from ....ir import Graph
from ....protocols import ModelSource
from ..opaque import captured
from ..proto import dtype_table, sub_graphs
from ..types import OnnxTypes
from .check import check_onnx

__all__ = ["OnnxExtractor"]


class OnnxExtractor:
    """An ONNX model whose graph is ``graph``, parsed once for any number of extractions. Raises ModelError."""

    def __init__(self, model: ModelSource, graph: Graph) -> None:
        import onnx

        from ...model_file import open_with

        self.model, self.graph = model, graph
        checked = open_with(model.path or model.data, model.name, check_onnx)
        if not hasattr(checked, "proto"):
            raise ModelError(
                f"model {model.name!r}", "is not ONNX", got=model.format, do="Give an ONNX model."
            )
        self._proto = checked.proto
        if model.path is not None:
            try:
                onnx.external_data_helper.load_external_data_for_model(self._proto, str(model.path.parent))
            except (OSError, ValueError, onnx.checker.ValidationError) as error:
                raise ModelError(
                    f"model {model.name!r}",
                    "external data cannot be read",
                    got=error,
                    do="Save the model again with its data in one plain file.",
                ) from error
        self._names: list[str] = list(checked.names)
        nodes = self._proto.graph.node
        self._maker = {o: i for i, n in enumerate(nodes) for o in n.output if o}
        self._tensors = {t.name: t for t in self._proto.graph.initializer}
        self._sparse = {t.values.name: t for t in self._proto.graph.sparse_initializer}

    def extract(self, inputs: Sequence[str], outputs: Sequence[str], allowed: Collection[str]) -> Any:
        """Return an ``onnx.ModelProto`` that computes ``outputs`` from ``inputs``, or a Support with the reason why the original has no such part.

        allowed: names of the model's nodes that may be extracted. Nodes that the IR folded away (shape arithmetic, constants) are taken too, as are
        weights. The walk runs backward from the outputs.
        """
        import onnx

        unknown = next((v for v in (*inputs, *outputs) if not self._has(v)), None)
        if unknown is not None:
            return _no(f"the original model has no value {unknown!r}")
        alive = {s.name for n in self.graph.nodes if n.op != "constant" for s in n.sources}
        selected: set[int] = set()
        tensors: dict[str, Any] = {}
        todo, border = list(outputs), set(inputs)
        while todo:
            value = todo.pop()
            if value in border or value in tensors:
                continue
            if value in self._tensors or value in self._sparse:
                tensors[value] = value
                continue
            index = self._maker.get(value)
            if index is None:
                return _no(f"it reads {value!r}, which is not an input of the region in the IR")
            if index in selected:
                continue
            if self._names[index] not in allowed and self._names[index] in alive:
                return _no(f"it needs node {self._names[index]!r}, which is in another region")
            selected.add(index)
            node = self._proto.graph.node[index]
            todo += [i for i in (*node.input, *(captured(node) if sub_graphs(node) else ())) if i]
        model = onnx.ModelProto()
        model.CopyFrom(self._shell())
        model.graph.name = self._proto.graph.name
        for index in sorted(selected):
            model.graph.node.add().CopyFrom(self._proto.graph.node[index])
            model.graph.node[-1].name = self._names[index]
        model.graph.initializer.extend(self._tensors[t] for t in tensors if t in self._tensors)
        model.graph.sparse_initializer.extend(self._sparse[t] for t in tensors if t in self._sparse)
        model.graph.input.extend(self._info(v) for v in inputs)
        model.graph.output.extend(self._info(v) for v in outputs)
        return model

    def _has(self, value: str) -> bool:
        return value in self._maker or any(i.name == value for i in self._proto.graph.input)

    def _shell(self) -> Any:
        """Return the model without its graph: versions, functions, metadata."""
        import onnx

        shell = onnx.ModelProto(ir_version=self._proto.ir_version, producer_name=self._proto.producer_name)
        shell.opset_import.extend(self._proto.opset_import)
        shell.functions.extend(self._proto.functions)
        return shell

    def _info(self, value: str) -> Any:
        """Return the ValueInfoProto of a value as the model declares it, else as the IR knows it."""
        import onnx

        graph = self._proto.graph
        declared = next(
            (v for v in (*graph.input, *graph.output, *graph.value_info) if v.name == value), None
        )
        spec = self.graph.values[value].spec
        if declared is not None or spec is None:
            return declared or onnx.ValueInfoProto(name=value)
        info = onnx.ValueInfoProto(name=value)
        info.type.CopyFrom(OnnxTypes(dtype_table(onnx), set(self.graph.symbols)).proto(spec))
        return info


def _no(reason: str) -> Support:
    return Support.no(Reason.NOT_APPLICABLE, reason)
