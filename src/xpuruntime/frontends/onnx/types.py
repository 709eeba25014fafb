"""Conversion between TypeProto and TensorSpec, and ONNX's type inference for nodes that are not lowered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...types import Dim, DimLike, DType, TensorSpec, dim, parse_dim
from .proto import sub_graphs

__all__ = ["OnnxTypes"]


class OnnxTypes:
    """Dtypes and symbols of one model.

    dtypes: TensorProto.DataType -> DType. symbols: those in use. sizes: known sizes of symbols.
    """

    def __init__(
        self, dtypes: Mapping[int, DType], symbols: set[str], sizes: Mapping[str, int] | None = None
    ) -> None:
        self.sizes = dict(sizes or {})
        self.dtypes = dict(dtypes)
        self.numbers = {d: n for n, d in dtypes.items()}
        self._taken = symbols

    def fresh(self, stem: str) -> DimLike:
        """Return an unused symbol."""
        name = stem
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return self._sized(dim(name))

    def _sized(self, d: DimLike) -> DimLike:
        return d.substitute(self.sizes) if isinstance(d, Dim) and self.sizes else d

    def spec(self, type_proto: Any, stem: str, parse: bool = False) -> TensorSpec | None:
        """Return the spec of a TypeProto; None unless it is a tensor of known rank and dtype. ``parse``: dims may be expressions."""
        if type_proto is None or type_proto.WhichOneof("value") != "tensor_type":
            return None
        tensor = type_proto.tensor_type
        if tensor.elem_type not in self.dtypes or not tensor.HasField("shape"):
            return None
        read = self._parsed if parse else self._named
        shape = tuple(read(d, f"{stem}_{axis}") for axis, d in enumerate(tensor.shape.dim))
        return TensorSpec(shape, self.dtypes[tensor.elem_type])

    def _named(self, d: Any, stem: str) -> DimLike:
        if d.HasField("dim_value") and d.dim_value >= 0:
            return int(d.dim_value)
        return self._sized(dim(d.dim_param)) if d.dim_param else self.fresh(stem)

    def _parsed(self, d: Any, stem: str) -> DimLike:
        if d.dim_param:
            try:
                return self._sized(parse_dim(d.dim_param))
            except ValueError:
                return self.fresh(stem)
        return self._named(d, stem)

    def proto(self, spec: TensorSpec) -> Any:
        """Return the TypeProto of a spec, with symbolic dims as text."""
        from onnx import helper

        shape = [d if isinstance(d, int) else str(d) for d in spec.shape]
        return helper.make_tensor_type_proto(self.numbers[spec.dtype], shape)

    def infer(
        self,
        node: Any,
        opset: int,
        opsets: Mapping[str, int],
        inputs: Mapping[str, Any],
        content: Callable[[str], Any | None],
        ir_version: int,
    ) -> dict[str, Any]:
        """Return the types of a node's outputs by ONNX's type inference; empty if it has none or fails.

        inputs: TypeProtos by name. content: the TensorProto of a known value, else None.
        """
        import onnx
        from onnx import helper, shape_inference

        try:
            schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
            data = {name: tensor for name in node.input if name and (tensor := content(name)) is not None}
            return dict(
                shape_inference.infer_node_outputs(
                    schema,
                    node,
                    {n: t for n, t in inputs.items() if t is not None},
                    data,
                    opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()],
                    ir_version=ir_version,
                )
            )
        except Exception:  # onnx's SchemaError and InferenceError are classes of its C++ module
            return {}


def all_names(graph: Any) -> set[str]:
    """Return every value name of a graph, including its subgraphs."""
    names: set[str] = set()
    todo: list[Any] = [graph]
    while todo:
        g = todo.pop()
        names.update(v.name for group in (g.input, g.output, g.initializer) for v in group)
        for node in g.node:
            names.update(node.input, node.output)
            todo += sub_graphs(node)
    return names


def dim_params(values: Sequence[Any]) -> set[str]:
    """Return every symbol in declared types."""
    return {d.dim_param for v in values for d in v.type.tensor_type.shape.dim if d.dim_param}
