"""Expansion of data movement of elements below a byte, which are packed: as elements of a byte or more, between two casts."""

from __future__ import annotations

from ...ir import Editor, Node, family_of
from ...types import DType, TensorSpec

__all__ = ["expand_packed"]

_COPIES = frozenset(["clone", "view", "squeeze", "unsqueeze"])
"""Ops whose results have the bytes of their operand."""
_WIDER = {DType.FLOAT4_E2M1FN: DType.FLOAT16, DType.UINT4: DType.UINT8, DType.UINT2: DType.UINT8}


def expand_packed(editor: Editor, node: Node) -> bool:
    """Expand the node if it moves packed elements and is no copy. Return whether it was expanded."""
    if family_of(node) != "data_movement" or node.op in _COPIES:
        return False
    if not any(_is_packed(editor.values[v].spec) for v in node.values):
        return False
    operands = [_widened(editor, node, i) if isinstance(i, str) else i for i in node.inputs]
    results = editor.insert(node, node.op, *operands, outputs=len(node.outputs), **node.attrs)
    for old, new in zip(node.outputs, [results] if isinstance(results, str) else results, strict=True):
        narrow = _is_packed(old.spec)
        assert old.spec is not None
        editor.forward(old.name, editor.insert(node, "cast", new, dtype=old.spec.dtype) if narrow else new)
    return True


def _is_packed(spec: TensorSpec | None) -> bool:
    return spec is not None and 0 < spec.dtype.bits < 8


def _widened(editor: Editor, node: Node, value: str) -> str:
    spec = editor.values[value].spec
    if spec is None or not _is_packed(spec):
        return value
    return str(editor.insert(node, "cast", value, dtype=_WIDER.get(spec.dtype, DType.INT8)))
