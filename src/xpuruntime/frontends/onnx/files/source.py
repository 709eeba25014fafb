"""``ModelSource`` of a checked ONNX file: inputs, outputs, precision, nodes and digest."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ....errors import ModelError
from ....protocols import ModelSource, NodeRef, Products
from ....types import DimLike, DType, TensorSpec, dim
from ..definitions import undeclared
from ..proto import all_nodes, reads
from .check import check_onnx
from .external_data import tensors
from .products import count_products, count_wide_pairs

__all__ = ["read_onnx", "sha256_files"]


def read_onnx(data: bytes, who: str, name: str, path: Path | None = None) -> ModelSource:
    """Return the checked source of a serialized ModelProto. Raise ModelError (see ``open_model``)."""
    checked = check_onnx(data, who, name, path)
    proto, dtypes, external = checked.proto, checked.dtypes, checked.external
    weights = {i.name: i.data_type for i in proto.graph.initializer} | {
        i.values.name: i.values.data_type for i in proto.graph.sparse_initializer
    }
    symbols = {
        d.dim_param for v in (*proto.graph.input, *proto.graph.output) for d in v.type.tensor_type.shape.dim
    }
    inputs = tuple(_spec(v, who, dtypes, symbols) for v in proto.graph.input if v.name not in weights)
    outputs = tuple(_spec(v, who, dtypes, symbols) for v in _with_types(proto))
    nodes = tuple(all_nodes(proto.graph))
    products = count_products(nodes, weights)
    return ModelSource(
        name=checked.name,
        format="onnx",
        path=path,
        data=None if path else data,
        digest=sha256_files("onnx", data, external, path.parent if path else None),
        inputs=inputs,
        outputs=outputs,
        nodes=tuple(
            NodeRef(
                n,
                node.op_type,
                "" if node.domain == "ai.onnx" else node.domain,
                tuple(reads(node)),
                tuple(filter(None, node.output)),
                *(difference or ()),
            )
            for n, node, difference in zip(
                checked.names, proto.graph.node, undeclared(proto, checked.opsets), strict=True
            )
        ),
        precision=_precision(proto, dtypes, inputs, outputs),
        quantized=_quantized(proto, dtypes, products),
        products=products,
        wide_pairs=count_wide_pairs(nodes, weights),
        opsets=checked.opsets,
        functions=frozenset((f.domain, f.name) for f in proto.functions),
        files=(path, *external) if path else (),
        defaults=frozenset(v.name for v in proto.graph.input if v.name in weights),
    )


_TYPED_AS_INPUT = ("GroupNormalization", "MeanVarianceNormalization")
"""Ops that ONNX infers no type for, which is that of the first operand."""


def _inferable(proto: Any) -> Any:
    """Return a copy of the model with Identity for ops that ONNX infers no type for."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    for node in all_nodes(copy.graph):
        if node.op_type in _TYPED_AS_INPUT and node.domain in ("", "ai.onnx"):
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]
    return copy


def _with_types(proto: Any) -> list[Any]:
    """Return the graph's outputs, each name once. Types that the file omits, as some tools do, are inferred by ONNX."""
    outputs = _named_once(proto.graph.output)
    if all(v.type.WhichOneof("value") for v in outputs):
        return outputs
    from onnx import shape_inference

    try:
        inferred = _named_once(shape_inference.infer_shapes(_inferable(proto)).graph.output)
    except Exception:  # onnx's InferenceError is a class of its C++ module; a model of 2 GiB is a ValueError
        return outputs
    return [v if v.type.WhichOneof("value") else i for v, i in zip(outputs, inferred, strict=True)]


def _named_once(outputs: Iterable[Any]) -> list[Any]:
    """Return the outputs without repeated ones. PyTorch's exporter lists a value that is returned twice, or with its clone, twice."""
    return list({v.name: v for v in outputs}.values())


def _spec(value: Any, who: str, dtypes: Mapping[int, DType], symbols: set[str]) -> TensorSpec:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type" or value.type.tensor_type.elem_type not in dtypes:
        got = (kind or "no type").removesuffix("_type")
        if kind == "tensor_type":
            got = f"tensor of element type {value.type.tensor_type.elem_type}"
        raise ModelError(
            who,
            f"value {value.name!r} must be a tensor of a known element type",
            got=got,
            do="Declare its type: onnx.helper.make_tensor_value_info(name, element type, shape)."
            if kind is None
            else "Sequences, maps and optional values are not supported: export the model with tensors only.",
        )
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return TensorSpec((dim("..."),), dtypes[tensor.elem_type], value.name)
    shape = tuple(_dim(d, f"{value.name}_{axis}", symbols) for axis, d in enumerate(tensor.shape.dim))
    return TensorSpec(shape, dtypes[tensor.elem_type], value.name)


def _dim(d: Any, fresh: str, symbols: set[str]) -> DimLike:
    if d.HasField("dim_value") and d.dim_value >= 0:
        return int(d.dim_value)
    if d.dim_param:
        return dim(d.dim_param)
    while fresh in symbols:
        fresh += "_"
    symbols.add(fresh)
    return dim(fresh)


def _weights(proto: Any) -> Iterator[tuple[str, int, int]]:
    """Yield (name, element type, number of elements) of every tensor that is stored in the model."""
    for tensor in tensors(proto):
        count = 1
        for extent in tensor.dims:
            count *= extent
        yield tensor.name, tensor.data_type, count


def _precision(
    proto: Any, dtypes: Mapping[int, DType], inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]
) -> DType:
    """Return the float type of most weight elements; without float weights the widest float input, else output, else float32."""
    elements: Counter[DType] = Counter()
    for _, kind, count in _weights(proto):
        if kind in dtypes and dtypes[kind].is_float and dtypes[kind].bits >= 16:
            elements[dtypes[kind]] += count
    if elements.total():
        return max(elements, key=lambda d: (elements[d], d.bits))
    for specs in (inputs, outputs):
        floats = [s.dtype for s in specs if s.dtype.is_float]
        if floats:
            return max(floats, key=lambda d: d.bits)
    return DType.FLOAT32


def _quantized(proto: Any, dtypes: Mapping[int, DType], products: Products) -> DType | None:
    """Return ``int8`` (``int4``, ``int16``) if products have both operands quantized, by the width of most quantized weight elements,
    signed or not; int8 where only activations are quantized.
    """
    if not products.integer and not products.qdq:
        return None
    reads = {value for node in all_nodes(proto.graph) for value in node.input}
    widths: Counter[int] = Counter()
    for name, kind, count in _weights(proto):
        if name in reads and kind in dtypes and dtypes[kind].is_integer and dtypes[kind].bits <= 16:
            widths[dtypes[kind].bits] += count
    return DType(f"int{widths.most_common(1)[0][0]}") if widths else DType.INT8


def sha256_files(kind: str, head: bytes, files: Iterable[Path], folder: Path | None) -> str:
    """Return the sha256 of the format, the file, and every further file with its name relative to ``folder``. Files are streamed."""
    total = hashlib.sha256(f"{kind}\0{len(head)}\0".encode())
    total.update(head)
    for path in files:
        with path.open("rb") as file:
            inner = hashlib.file_digest(file, "sha256").hexdigest()
        name = path.relative_to(folder).as_posix() if folder else path.name
        total.update(f"\0{name}\0{inner}".encode())
    return total.hexdigest()
