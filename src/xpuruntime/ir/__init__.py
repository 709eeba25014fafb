"""The IR: an immutable typed graph of ATen-level ops. It knows no torch, no onnx, no device.

    from xpuruntime import ir
    b = ir.GraphBuilder("mlp"); x = b.input("x", "float32[n, 4]") ...
    graph = b.build();  print(graph);  ir.parse(str(graph)) == graph;  graph.save("mlp.json")

``OPS`` is the op table, ``verify`` the verifier, ``find`` the pattern matcher; ``graph.rewrite`` applies edits.
"""

from __future__ import annotations

from ..errors import IrError
from .attributes import MAX_CONST_ELEMENTS, Attrs, Const
from .bodies import body_of, inline_fused
from .build import GraphBuilder
from .family import family_of, is_view, source_names
from .graph import Graph, Input, Node, Output, Source, State, Value, Weight
from .infer import find_op, infer
from .match import Found, Match, Miss, find, match
from .ops import OPS, aten_index, onnx_index
from .ops._types import promote, promote_types
from .rewrite import Editor, sources_of
from .schema import OpEntry
from .serialization.json_reader import from_json, load
from .serialization.json_writer import save
from .serialization.text_reader import parse
from .serialization.weights import open_weights, save_weights
from .shapes.padded import PaddedGraph, pad_counts
from .shapes.symbols import bind, specialize
from .verify import problems, verify

__all__ = [
    "MAX_CONST_ELEMENTS",
    "OPS",
    "Attrs",
    "Const",
    "Editor",
    "Found",
    "Graph",
    "GraphBuilder",
    "Input",
    "IrError",
    "Match",
    "Miss",
    "Node",
    "OpEntry",
    "Output",
    "PaddedGraph",
    "Source",
    "State",
    "Value",
    "Weight",
    "aten_index",
    "bind",
    "body_of",
    "family_of",
    "find",
    "find_op",
    "from_json",
    "infer",
    "inline_fused",
    "is_view",
    "load",
    "match",
    "onnx_index",
    "open_weights",
    "pad_counts",
    "parse",
    "problems",
    "promote",
    "promote_types",
    "save",
    "save_weights",
    "source_names",
    "sources_of",
    "specialize",
    "verify",
]
