"""The text form of graphs: ``str(graph)`` prints it, and ``text_reader.parse`` reads it back to an equal graph.

    graph "mlp" {
      input %x: float32[n, 4]
      weight %w: float32[8, 4] file="m.safetensors" format="safetensors" key="w"
      state %cache: float32[8] init=%c0 next=%new
      %linear: float32[n, 8] = linear(%x, %w)  # name="MatMul_0" op="MatMul" file="model.py" line=12
      %values: float32[n, 2], %indices: int64[n, 2] = topk(%linear, k=2)
      %half: float32[n, 2] = fused(%values, body=graph "mul" {
        input %x: float32[n, 2]
        %y: float32[n, 2] = mul(%x, 0.5)
        output "y" = %y
      })
      output "y" = %values
      metadata opset=17
    }

Only attributes that differ from their default are printed. A dim expression in an attribute is written ``<2*n + 1>``, a small
tensor ``int64[2]{1, 2}`` (``int64[2]x"..."`` in hex where decimal digits would lose bits). Several sources are joined by `` | ``.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, cast

from ...types import Dim, DType
from ..attributes import Attrs, Body, Const
from ..ops import OPS

if TYPE_CHECKING:
    from ..graph import Graph, Input, Node, Source, State, Value, Weight

__all__ = ["graph_text", "node_text", "quoted"]

PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./\-]*")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNSAFE = re.compile(r'["\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')


def quoted(text: str) -> str:
    """Quote a text on one line with JSON's escapes."""
    return '"' + _UNSAFE.sub(lambda m: _ESCAPES.get(m[0]) or f"\\u{ord(m[0]):04x}", text) + '"'


def graph_text(graph: Graph) -> str:
    """Return the whole graph as text, one value or node per line."""
    lines = [f"graph {quoted(graph.name)} {{"]
    lines += [f"  input {value_text(v)}" for v in graph.inputs]
    lines += [f"  weight {_weight_text(w)}" for w in graph.weights]
    lines += [f"  state {_state_text(s)}" for s in graph.states]
    lines += [f"  {node_text(n)}" for n in graph.nodes]
    lines += [f"  output {quoted(o.name)} = {name_text(o.value)}" for o in graph.outputs]
    lines += [f"  metadata {_key(k)}={attr_text(v)}" for k, v in graph.metadata.items()]
    return "\n".join([*lines, "}"]) + "\n"


def node_text(node: Node) -> str:
    """Return one node as one line."""
    row = OPS.get(node.op)
    arguments = [_input_text(i) for i in node.inputs]
    for name, value in node.attrs.items():
        attr = row.attrs.get(name) if row else None
        if attr is None or attr.required or Attrs({"": value}) != Attrs({"": attr.default}):
            arguments.append(f"{_key(name)}={attr_text(value)}")
    results = ", ".join(value_text(v) for v in node.outputs)
    line = f"{results} = {node.op}({', '.join(arguments)})"
    return f"{line}  # {' | '.join(map(_source_text, node.sources))}" if node.sources else line


def name_text(name: str) -> str:
    """Return a value's name as ``%x``, or ``%"any text"``."""
    return f"%{name}" if PLAIN_NAME.fullmatch(name) else f"%{quoted(name)}"


def value_text(value: Value) -> str:
    """Return a value as ``%x: float32[n]``."""
    return f"{name_text(value.name)}: {'?' if value.spec is None else value.spec}"


def _key(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else quoted(name)


def _weight_text(weight: Weight) -> str:
    facts = [
        f"{k}={attr_text(getattr(weight, k))}"
        for k in ("file", "format", "key", "offset", "digest", "data")
        if getattr(weight, k)
    ]
    return " ".join([value_text(weight.value), *facts])


def _state_text(state: State) -> str:
    facts = [f"{k}={name_text(v)}" for k, v in (("init", state.init), ("next", state.next)) if v is not None]
    return " ".join([value_text(state.value), *facts])


def _source_text(source: Source) -> str:
    facts = [
        f"{k}={attr_text(getattr(source, k))}"
        for k in ("name", "op", "module", "file", "line")
        if getattr(source, k)
    ]
    return " ".join(facts) or "?"


def _input_text(item: Input) -> str:
    return name_text(item) if isinstance(item, str) else attr_text(item)


def attr_text(value: Any) -> str:
    """Return an attribute value as text."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case DType():
            return value.value
        case Dim():
            return f"<{value}>"
        case str():
            return quoted(value)
        case Const():
            return _const_text(value)
        case tuple():
            return f"[{', '.join(attr_text(v) for v in value)}]"
        case Body():
            return (
                graph_text(cast("Graph", value)).rstrip("\n").replace("\n", "\n  ")
            )  # strings are quoted, so these are the only line ends
        case Attrs():
            return f"{{{', '.join(f'{_key(k)}: {attr_text(v)}' for k, v in value.items())}}}"
        case float() if not math.isfinite(value):
            return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        case _:
            return repr(value)


def _const_text(const: Const) -> str:
    array = const.numpy()
    if const.dtype is DType.STRING:
        return f"{const.spec}{{{', '.join(quoted(t) for t in array.ravel().tolist())}}}"
    exact = const.dtype.is_integer or const.dtype is DType.BOOL or const.dtype in _DECIMAL
    if exact and not (const.dtype.is_float and not _finite(array)):
        items = [attr_text(v) for v in array.ravel().tolist()]
        return f"{const.spec}{{{', '.join(items)}}}"
    return f'{const.spec}x"{array.tobytes().hex()}"'


_DECIMAL = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})


def _finite(array: Any) -> bool:
    return all(math.isfinite(v) for v in array.ravel().tolist())
