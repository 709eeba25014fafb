"""Import of OpenVINO IR (``.xml`` + ``.bin``) as a ``ModelSource``, with a check that the weights are complete."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

from ..errors import ModelError
from ..plugins.vendor_imports import vendor
from ..protocols import ModelSource, NodeRef, Products
from ..storage.files import open_regular
from ..types import DimLike, DType, TensorSpec, dim
from .onnx.files.source import sha256_files

__all__ = ["read_ir"]

_REFETCH = "The file is truncated, corrupted, or not an OpenVINO model: fetch or convert it again."

# openvino.Type names -> DType.
_TYPES: dict[str, DType] = {
    "boolean": DType.BOOL,
    "f16": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "f32": DType.FLOAT32,
    "f64": DType.FLOAT64,
    "string": DType.STRING,
    **{
        f"{k}{bits}": DType(f"{word}{bits}")
        for k, word in (("i", "int"), ("u", "uint"))
        for bits in (4, 8, 16, 32, 64)
    },
}
_NOT_NODES = frozenset({"Parameter", "Result", "Constant"})


def read_ir(path: Path, who: str, name: str) -> ModelSource:
    """Return the checked source of an IR. Raise ModelError (see ``open_model``)."""
    weights = path.with_suffix(".bin")
    head = _read_regular(path, who)
    if weights.exists():
        _read_regular(weights, who, 0)
    _check_weights(head, weights, who)
    try:
        openvino = vendor("openvino")
    except ImportError as error:
        raise ModelError(
            who,
            "reading OpenVINO IR needs the Python package 'openvino'",
            got=str(error),
            do="Run: pip install 'xpuruntime[openvino]'",
        ) from error
    try:
        model = openvino.Core().read_model(str(path))
    except RuntimeError as error:
        raise ModelError(
            who, "OpenVINO cannot read it", got=" ".join(str(error).split())[:500], do=_REFETCH
        ) from error
    operations = list(model.get_ordered_ops())
    products = _products(operations)
    symbols: set[str] = set()
    inputs = tuple(_spec(p, who, symbols) for p in model.inputs)
    return ModelSource(
        name=name,
        format="openvino-ir",
        path=path,
        data=None,
        digest=sha256_files("openvino-ir", head, [weights] if weights.is_file() else [], path.parent),
        inputs=inputs,
        outputs=tuple(_spec(p, who, symbols) for p in model.outputs),
        nodes=_nodes(operations),
        precision=_precision(operations, inputs),
        quantized=DType.INT8 if products.qdq else None,
        products=products,
        files=(path, weights) if weights.is_file() else (path,),
    )


def _read_regular(path: Path, who: str, max_bytes: int = -1) -> bytes:
    """Return at most ``most`` bytes of a regular file, by default all. Raise ModelError: a pipe would block OpenVINO forever."""
    try:
        with open_regular(path) as file:
            return file.read(max_bytes)
    except OSError as error:
        do = "Its .xml and .bin must be plain files."
        raise ModelError(
            who, "cannot be read", got=f"{path.name!r}: {error.strerror or error}", do=do
        ) from error


def _check_weights(head: bytes, weights: Path, who: str) -> None:
    try:
        root = ET.fromstring(head)
    except ET.ParseError as error:
        raise ModelError(who, "is not complete XML", got=str(error), do=_REFETCH) from error
    if root.tag != "net" or root.find("layers") is None:
        raise ModelError(
            who, "is XML, but not an OpenVINO model", got=f"root element <{root.tag}>", do=_REFETCH
        )
    end = 0
    for data in root.iter("data"):
        offset, size = data.get("offset", ""), data.get("size", "")
        if offset.isdecimal() and size.isdecimal():
            end = max(end, int(offset) + int(size))
    if end and not weights.is_file():
        raise ModelError(
            who,
            "its weights file is missing",
            got=f"no file {str(weights)!r}",
            do="Put the .bin file next to the .xml file.",
        )
    if end and weights.stat().st_size < end:
        raise ModelError(
            who,
            f"its weights end at byte {end}, beyond their file",
            got=f"{weights.stat().st_size} bytes in {weights.name!r}",
            do="The .bin file is truncated or belongs to another model: fetch it again.",
        )


def _spec(port: Any, who: str, symbols: set[str]) -> TensorSpec:
    # Names form an unordered set, so take the first in the alphabet.
    name = min(port.get_names(), default="") or port.get_node().get_friendly_name()
    dtype = _TYPES.get(port.get_element_type().get_type_name())
    if dtype is None:
        raise ModelError(
            who,
            f"value {name!r} has an element type without an array type",
            got=port.get_element_type(),
            do="Convert the model again.",
        )
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return TensorSpec((dim("..."),), dtype, name)
    return TensorSpec(tuple(_dim(d, f"{name}_{axis}", symbols) for axis, d in enumerate(shape)), dtype, name)


def _dim(extent: Any, fresh: str, symbols: set[str]) -> DimLike:
    if extent.is_static:
        return int(extent.get_length())
    while fresh in symbols:
        fresh += "_"
    symbols.add(fresh)
    return dim(fresh)


def _nodes(operations: list[Any]) -> tuple[NodeRef, ...]:
    """Return the operations that compute something. Values are named ``node:port``."""
    return tuple(
        NodeRef(
            op.get_friendly_name(),
            op.get_type_name(),
            "",
            tuple(_value(p) for p in op.input_values()),
            tuple(_value(op.output(i)) for i in range(op.get_output_size())),
        )
        for op in operations
        if op.get_type_name() not in _NOT_NODES
    )


def _value(port: Any) -> str:
    """Return the name of a value: graph inputs keep their own, every other value is ``node:port``."""
    node = port.get_node()
    if node.get_type_name() == "Parameter":
        return min(port.get_names(), default="") or str(node.get_friendly_name())
    return f"{node.get_friendly_name()}:{port.get_index()}"


def _precision(operations: list[Any], inputs: tuple[TensorSpec, ...]) -> DType:
    """Return the float type of most weight elements, as for ONNX (``onnx.file``)."""
    bits_by_dtype: Counter[DType] = Counter()
    for op in operations:
        if op.get_type_name() == "Constant":
            dtype = _TYPES.get(op.get_element_type().get_type_name())
            if dtype is not None and dtype.is_float:
                bits_by_dtype[dtype] += max(1, op.get_byte_size() * 8 // dtype.bits)
    if bits_by_dtype:
        return max(bits_by_dtype, key=lambda d: (bits_by_dtype[d], d.bits))
    floats = [s.dtype for s in inputs if s.dtype.is_float]
    return max(floats, key=lambda d: d.bits) if floats else DType.FLOAT32


_PRODUCTS = frozenset(
    {"Convolution", "ConvolutionBackpropData", "GroupConvolution", "GroupConvolutionBackpropData", "MatMul"}
)
_MOVERS = frozenset({"Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def _products(operations: list[Any]) -> Products:
    """Count products: between fake-quantize ops as quantized, with compressed weights alone as floats."""
    products = [op for op in operations if op.get_type_name() in _PRODUCTS]
    quantized = sum(_fake_quantized(op) for op in products)
    return Products(qdq=quantized, floats=len(products) - quantized)


def _fake_quantized(product: Any) -> bool:
    """Return whether a product's first operand is fake-quantized, looking through data movement."""
    op = product.input_value(0).get_node()
    while op.get_type_name() in _MOVERS:
        op = op.input_value(0).get_node()
    return bool(op.get_type_name() == "FakeQuantize")
