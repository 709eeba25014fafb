"""Read an ONNX file's graph into a ``ModelSource``, checking everything that can be checked without running it."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ModelError
from ..protocols import ModelSource, NodeRef
from ..types import DimLike, DType, TensorSpec, dim
from .external_data import check_tensors, tensors

__all__ = ["Checked", "check_onnx", "dtype_table", "node_names", "read_onnx", "sha256_files"]

_AGAIN = "The file is truncated, corrupted, or no ONNX model: fetch or export it again."
_NOT_BY_NAME = {"FLOAT": DType.FLOAT32, "DOUBLE": DType.FLOAT64, "FLOAT8E4M3FN": DType.FLOAT8_E4M3FN}
_NOT_BY_NAME |= {"FLOAT8E4M3FNUZ": DType.FLOAT8_E4M3FNUZ, "FLOAT8E5M2": DType.FLOAT8_E5M2}
_NOT_BY_NAME |= {"FLOAT8E5M2FNUZ": DType.FLOAT8_E5M2FNUZ, "FLOAT8E8M0": DType.FLOAT8_E8M0FNU}
_NOT_BY_NAME |= {"FLOAT4E2M1": DType.FLOAT4_E2M1FN}

# Domains whose ops the onnx package itself defines; others are for engines to accept or refuse.
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")

_QUANTIZED_OPS = frozenset(
    {"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "DequantizeLinear", "QuantizeLinear"}
)


def dtype_table(onnx: Any) -> dict[int, DType]:
    """TensorProto.DataType -> DType, for the types that the installed onnx package knows."""
    return {
        number: _NOT_BY_NAME.get(name) or DType(name.lower())
        for name, number in onnx.TensorProto.DataType.items()
        if name in _NOT_BY_NAME or name.lower() in DType._value2member_map_
    }


class Checked(NamedTuple):
    """A model that is whole: its ModelProto, versions by domain, element types, node names, files of external data."""

    proto: Any
    name: str
    path: Path | None
    data: bytes
    opsets: dict[str, int]
    dtypes: dict[int, DType]
    names: list[str]
    external: tuple[Path, ...]


def check_onnx(data: bytes, who: str, name: str, path: Path | None = None) -> Checked:
    """Parse a serialised ModelProto and check everything but the types of its inputs and outputs. Raises ModelError."""
    proto, onnx = _parse(data, who)
    opsets = _opsets(proto, onnx, who)
    dtypes = dtype_table(onnx)
    external = check_tensors(proto, who, path.parent if path else None, dtypes)
    _check_ops(proto, onnx, who, opsets)
    names = node_names(proto.graph.node)
    _check_values(proto.graph, names, who)
    return Checked(proto, name or proto.graph.name or "model", path, data, opsets, dtypes, names, external)


def read_onnx(data: bytes, who: str, name: str, path: Path | None = None) -> ModelSource:
    """The checked source of a serialised ModelProto. Raises ModelError (see ``open_model``)."""
    checked = check_onnx(data, who, name, path)
    proto, opsets, dtypes, names, external = (
        checked.proto,
        checked.opsets,
        checked.dtypes,
        checked.names,
        checked.external,
    )
    weights = {i.name for i in proto.graph.initializer} | {
        i.values.name for i in proto.graph.sparse_initializer
    }
    taken = {
        d.dim_param for v in (*proto.graph.input, *proto.graph.output) for d in v.type.tensor_type.shape.dim
    }
    inputs = tuple(_spec(v, who, dtypes, taken) for v in proto.graph.input if v.name not in weights)
    outputs = tuple(_spec(v, who, dtypes, taken) for v in proto.graph.output)
    quantized = _quantized(proto, dtypes)
    return ModelSource(
        name=name or proto.graph.name or "model",
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
                tuple(_reads(node)),
                tuple(filter(None, node.output)),
            )
            for n, node in zip(names, proto.graph.node, strict=True)
        ),
        precision=_precision(proto, dtypes, inputs, outputs),
        quantized=quantized,
        opsets=opsets,
        functions=frozenset((f.domain, f.name) for f in proto.functions),
        files=(path, *external) if path else (),
    )


def _parse(data: bytes, who: str) -> tuple[Any, Any]:
    try:
        import onnx
    except ImportError as error:
        raise ModelError(
            who,
            "reading ONNX needs the Python package 'onnx'",
            got=str(error),
            do="Run: pip install 'xpuruntime[onnx]'",
        ) from error
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception as error:  # DecodeError of whichever protobuf implementation is installed
        raise ModelError(who, "is not an ONNX model", got=f"{len(data)} bytes; {error}", do=_AGAIN) from error
    # Protobuf reads much garbage as an empty message with unknown fields; these four are in every model.
    lacks = [
        word
        for word, there in (
            ("a graph", proto.HasField("graph")),
            ("an ir_version", proto.ir_version > 0),
            ("an opset_import", bool(proto.opset_import) or proto.ir_version < 3),
            ("outputs", bool(proto.graph.output)),
        )
        if not there
    ]
    if lacks:
        raise ModelError(
            who, "is not a whole ONNX model", got=f"{len(data)} bytes without {', '.join(lacks)}", do=_AGAIN
        )
    if not all(isinstance(name, str) for name in _texts(proto)):
        raise ModelError(who, "has a name that is no text (not UTF-8)", do=_AGAIN)
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            who,
            f"has ONNX IR version {proto.ir_version}; the installed onnx {onnx.__version__} reads up to {onnx.IR_VERSION}",
            do="Run: pip install --upgrade onnx, or export the model with an older IR version.",
        )
    return proto, onnx


def _texts(proto: Any) -> Iterator[Any]:
    """Every name in a model; protobuf hands over bytes where one is not UTF-8."""
    yield from (proto.producer_name, proto.producer_version)
    yield from (o.domain for o in proto.opset_import)
    todo = [proto.graph, *proto.functions]
    while todo:
        holder = todo.pop()
        yield holder.name
        if type(holder).__name__ == "FunctionProto":
            yield from (holder.domain, *holder.input, *holder.output, *holder.attribute)
        else:
            for value in (*holder.input, *holder.output, *holder.value_info):
                yield value.name
                yield from (d.dim_param for d in value.type.tensor_type.shape.dim)
            yield from (t.name for t in holder.initializer)
            yield from (t.values.name for t in holder.sparse_initializer)
        for node in holder.node:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (text for a in node.attribute for text in (a.name, a.ref_attr_name))
            todo += _subgraphs(node)


def _opsets(proto: Any, onnx: Any, who: str) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                who,
                f"imports opset domain {domain or 'ai.onnx'!r} twice",
                got=f"{opsets[domain]} and {entry.version}",
                do=_AGAIN,
            )
    opsets = opsets or {"": 1}
    newest = onnx.defs.onnx_opset_version()
    if opsets.get("", 0) > newest:
        raise ModelError(
            who,
            f"uses opset {opsets['']}; the installed onnx {onnx.__version__} knows opsets up to {newest}",
            do="Run: pip install --upgrade onnx, or export the model with an older opset.",
        )
    return opsets


def _check_ops(proto: Any, onnx: Any, who: str, opsets: Mapping[str, int]) -> None:
    """Every op of a standard domain exists in its opset; every other domain is imported or local."""
    functions = {(f.domain, f.name) for f in proto.functions}
    known: set[tuple[str, str]] = set()
    for node in _all_nodes(proto.graph):
        domain = "" if node.domain == "ai.onnx" else node.domain
        key = (domain, node.op_type)
        if key in known or (node.domain, node.op_type) in functions:
            continue
        where = f"node {node.name!r}" if node.name else "a node without a name"
        if domain not in opsets:
            raise ModelError(
                who,
                f"{where} has op {node.op_type!r} of domain {domain or 'ai.onnx'!r}, which the model does not import",
                got=f"imports {', '.join(d or 'ai.onnx' for d in opsets)}",
                do="Add the domain to the model's opset_import, or define the op as a local function.",
            )
        if domain in _STANDARD and not _has_schema(onnx, node.op_type, opsets[domain], domain):
            ops = {s.name for s in onnx.defs.get_all_schemas() if s.domain == domain}
            near = difflib.get_close_matches(node.op_type, ops, n=1)
            raise ModelError(
                who,
                f"{where} has op {node.op_type!r}, which domain {domain or 'ai.onnx'!r} does not have in opset {opsets[domain]}",
                do=(f"Did you mean {near[0]!r}? " if near else "")
                + "Export the model again with an opset that has it.",
            )
        known.add(key)


def _has_schema(onnx: Any, op: str, version: int, domain: str) -> bool:
    try:
        onnx.defs.get_schema(op, version, domain)
    except Exception:  # onnx's SchemaError is a class of its C++ module
        return False
    return True


def _all_nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for sub in _subgraphs(node):
            yield from _all_nodes(sub)


def _subgraphs(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _reads(node: Any) -> Iterator[str]:
    """Names of the values that a node reads, those that its subgraphs capture included, each once."""
    seen = dict.fromkeys(filter(None, node.input))
    for graph in _subgraphs(node):
        own = {v.name for v in graph.input} | {i.name for i in graph.initializer}
        own |= {o for n in graph.node for o in n.output}
        seen |= dict.fromkeys(r for n in graph.node for r in _reads(n) if r not in own)
        seen |= dict.fromkeys(o.name for o in graph.output if o.name not in own)
    yield from seen


def node_names(nodes: Iterable[Any]) -> list[str]:
    """A unique name per node: the model's own; ``op_index`` without one; ``name#index`` where it stands twice."""
    listed = list(nodes)
    own = Counter(n.name for n in listed if n.name)
    used = set(own)
    seen: set[str] = set()
    names = []
    for index, node in enumerate(listed):
        if node.name and node.name not in seen:
            seen.add(node.name)
            names.append(str(node.name))
            continue
        name = f"{node.name}#{index}" if node.name else f"{node.op_type}_{index}"
        while name in used:
            name += "_"
        used.add(name)
        names.append(name)
    return names


def _check_values(graph: Any, names: list[str], who: str) -> None:
    """Every value is made once and before it is used; every output is made."""
    made = {v.name for v in graph.input} | {i.name for i in graph.initializer}
    made |= {i.values.name for i in graph.sparse_initializer}
    for name, node in zip(names, graph.node, strict=True):
        for value in _reads(node):
            if value not in made:
                raise ModelError(
                    who, f"node {name!r} reads value {value!r}, which nothing before it makes", do=_AGAIN
                )
        for value in filter(None, node.output):
            if value in made:
                raise ModelError(who, f"node {name!r} makes value {value!r}, which exists already", do=_AGAIN)
            made.add(value)
    for output in graph.output:
        if output.name not in made:
            raise ModelError(who, f"output {output.name!r} is made by no node", do=_AGAIN)


def _spec(value: Any, who: str, dtypes: Mapping[int, DType], taken: set[str]) -> TensorSpec:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type" or value.type.tensor_type.elem_type not in dtypes:
        got = (kind or "no type").removesuffix("_type")
        if kind == "tensor_type":
            got = f"tensor of element type {value.type.tensor_type.elem_type}"
        raise ModelError(
            who,
            f"value {value.name!r} must be a tensor of a known element type",
            got=got,
            do="Sequences, maps and optional values are not supported: export the model with tensors only.",
        )
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return TensorSpec((dim("..."),), dtypes[tensor.elem_type], value.name)
    shape = tuple(_dim(d, f"{value.name}_{axis}", taken) for axis, d in enumerate(tensor.shape.dim))
    return TensorSpec(shape, dtypes[tensor.elem_type], value.name)


def _dim(d: Any, fresh: str, taken: set[str]) -> DimLike:
    if d.HasField("dim_value") and d.dim_value >= 0:
        return int(d.dim_value)
    if d.dim_param:
        return dim(d.dim_param)
    while fresh in taken:
        fresh += "_"
    taken.add(fresh)
    return dim(fresh)


def _weights(proto: Any) -> Iterator[tuple[str, int, int]]:
    """(name, element type, number of elements) of every tensor that is stored in the model."""
    for tensor in tensors(proto):
        count = 1
        for extent in tensor.dims:
            count *= extent
        yield tensor.name, tensor.data_type, count


def _precision(
    proto: Any, dtypes: Mapping[int, DType], inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]
) -> DType:
    """The float type of most weight elements; without float weights the widest float input, else output, else float32."""
    held: Counter[DType] = Counter()
    for _, kind, count in _weights(proto):
        if kind in dtypes and dtypes[kind].is_float and dtypes[kind].bits >= 16:
            held[dtypes[kind]] += count
    if held.total():
        return max(held, key=lambda d: (held[d], d.bits))
    for specs in (inputs, outputs):
        floats = [s.dtype for s in specs if s.dtype.is_float]
        if floats:
            return max(floats, key=lambda d: d.bits)
    return DType.FLOAT32


def _quantized(proto: Any, dtypes: Mapping[int, DType]) -> DType | None:
    """``int8`` (``int4``, ``int16``) when the model computes on quantised values: by the width of most quantised weight
    elements, signed or not; int8 where only activations are quantised.
    """
    reads: set[str] = set()
    found = False
    for node in _all_nodes(proto.graph):
        if node.op_type in _QUANTIZED_OPS or node.op_type.startswith(
            ("QLinear", "QGemm", "QAttention", "MatMulNBits")
        ):
            found = True
            reads |= set(node.input)
            if node.op_type == "MatMulNBits":
                bits = next((a.i for a in node.attribute if a.name == "bits"), 4)
                return DType.INT4 if bits == 4 else DType.INT8
    if not found:
        return None
    widths: Counter[int] = Counter()
    for name, kind, count in _weights(proto):
        if name in reads and kind in dtypes and dtypes[kind].is_integer and dtypes[kind].bits <= 16:
            widths[dtypes[kind].bits] += count
    return DType(f"int{widths.most_common(1)[0][0]}") if widths else DType.INT8


def sha256_files(kind: str, head: bytes, files: Iterable[Path], folder: Path | None) -> str:
    """sha256 over the format, the file and every further file with its name relative to ``folder``; files are streamed."""
    total = hashlib.sha256(f"{kind}\0{len(head)}\0".encode())
    total.update(head)
    for path in files:
        with path.open("rb") as file:
            inner = hashlib.file_digest(file, "sha256").hexdigest()
        name = path.relative_to(folder).as_posix() if folder else path.name
        total.update(f"\0{name}\0{inner}".encode())
    return total.hexdigest()
