"""Checks of an ONNX file without running it: message, opsets, ops and values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ....errors import ModelError
from ....types import DType
from ..proto import all_nodes, dtype_table, names_in, node_names, reads
from .external_data import check_tensors
from .size import check_functions

__all__ = ["CheckedOnnx", "check_onnx"]

_REFETCH = "The file is truncated, corrupted, or not an ONNX model: fetch or export it again."
# Domains whose ops the onnx package defines. Engines accept or refuse ops of other domains.
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
# Ops that ONNX Runtime defines in the default domain and its optimizer writes, whatever the opset.
_OF_ONNX_RUNTIME = ("LayerNormalization", "SimplifiedLayerNormalization")


class CheckedOnnx(NamedTuple):
    """A checked model: ModelProto, opset versions by domain, element types, node names, files of external data."""

    proto: Any
    name: str
    path: Path | None
    data: bytes
    opsets: dict[str, int]
    dtypes: dict[int, DType]
    names: list[str]
    external: tuple[Path, ...]


def check_onnx(data: bytes, who: str, name: str, path: Path | None = None) -> CheckedOnnx:
    """Parse a serialized ModelProto and check everything but the types of its inputs and outputs. Raise ModelError."""
    proto, onnx = _parse(data, who)
    opsets = _opsets(proto, onnx, who)
    dtypes = dtype_table(onnx)
    check_functions(proto, who)
    external = check_tensors(proto, who, path.parent if path else None, dtypes)
    _check_ops(proto, onnx, who, opsets)
    names = node_names(proto.graph.node)
    _check_values(proto.graph, names, who)
    return CheckedOnnx(
        proto, name or proto.graph.name or "model", path, data, opsets, dtypes, names, external
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
    except Exception as error:  # DecodeError differs between protobuf implementations
        raise ModelError(
            who, "is not an ONNX model", got=f"{len(data)} bytes; {error}", do=_REFETCH
        ) from error
    # Protobuf parses much garbage as an empty message with unknown fields, so check fields that every model has.
    lacks = [
        text
        for text, present in (
            ("a graph", proto.HasField("graph")),
            ("an ir_version", proto.ir_version > 0),
            ("an opset_import", bool(proto.opset_import) or proto.ir_version < 3),
            ("outputs", bool(proto.graph.output)),
        )
        if not present
    ]
    if lacks:
        raise ModelError(
            who,
            "is not a complete ONNX model",
            got=f"{len(data)} bytes without {', '.join(lacks)}",
            do=_REFETCH,
        )
    if not all(isinstance(name, str) for name in names_in(proto)):
        raise ModelError(who, "has a name that is not UTF-8 text", do=_REFETCH)
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            who,
            f"has ONNX IR version {proto.ir_version}; the installed onnx {onnx.__version__} reads up to {onnx.IR_VERSION}",
            do="Run: pip install --upgrade onnx, or export the model with an older IR version.",
        )
    return proto, onnx


def _opsets(proto: Any, onnx: Any, who: str) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                who,
                f"imports opset domain {domain or 'ai.onnx'!r} twice",
                got=f"{opsets[domain]} and {entry.version}",
                do=_REFETCH,
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
    """Check that every op of a standard domain exists in its opset, and every other domain is imported or local."""
    functions = {(f.domain, f.name) for f in proto.functions}
    checked: set[tuple[str, str]] = set()
    for node in all_nodes(proto.graph):
        domain = "" if node.domain == "ai.onnx" else node.domain
        key = (domain, node.op_type)
        if key in checked or (node.domain, node.op_type) in functions:
            continue
        where = f"node {node.name!r}" if node.name else "a node without a name"
        if domain not in opsets:
            raise ModelError(
                who,
                f"{where} has op {node.op_type!r} of domain {domain or 'ai.onnx'!r}, which the model does not import",
                got=f"imports {', '.join(d or 'ai.onnx' for d in opsets)}",
                do="Add the domain to the model's opset_import, or define the op as a local function.",
            )
        own = domain in _STANDARD and not (domain == "" and node.op_type in _OF_ONNX_RUNTIME)
        if own and not _has_schema(onnx, node.op_type, opsets[domain], domain):
            raise ModelError(
                who,
                f"{where} has op {node.op_type!r}, which domain {domain or 'ai.onnx'!r} does not have in opset {opsets[domain]}",
                do=_instead(onnx, node.op_type, domain),
            )
        checked.add(key)


def _instead(onnx: Any, op: str, domain: str) -> str:
    """Return what to do about an op that the opset of the model does not have."""
    since = [
        s.since_version
        for s in onnx.defs.get_all_schemas_with_history()
        if (s.domain, s.name) == (domain, op)
    ]
    if since:
        return f"Export the model again with opset {min(since)} or a newer one that has it."
    ops = {s.name for s in onnx.defs.get_all_schemas() if s.domain == domain}
    near = difflib.get_close_matches(op, ops, n=1)
    return (
        f"Did you mean {near[0]!r}? " if near else ""
    ) + "Export the model again with an opset that has it."


def _has_schema(onnx: Any, op: str, version: int, domain: str) -> bool:
    try:
        onnx.defs.get_schema(op, version, domain)
    except Exception:  # onnx's SchemaError is a class of its C++ module
        return False
    return True


def _check_values(graph: Any, names: list[str], who: str) -> None:
    """Check that every value is produced once and before its use, and that every output is produced."""
    defined = {v.name for v in graph.input} | {i.name for i in graph.initializer}
    defined |= {i.values.name for i in graph.sparse_initializer}
    for name, node in zip(names, graph.node, strict=True):
        for value in reads(node):
            if value not in defined:
                raise ModelError(
                    who, f"node {name!r} reads value {value!r}, which no earlier node produces", do=_REFETCH
                )
        for value in filter(None, node.output):
            if value in defined:
                raise ModelError(
                    who, f"node {name!r} produces value {value!r}, which already exists", do=_REFETCH
                )
            defined.add(value)
    for output in graph.output:
        if output.name not in defined:
            raise ModelError(who, f"output {output.name!r} is not produced by any node", do=_REFETCH)
