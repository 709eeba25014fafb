"""Rules of ``simplify`` for data movement: no-ops, chains, and broadcasts that readers do themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir import OPS, Const, Editor, Node, infer
from ...types import TensorSpec
from .known import elements
from .pattern_utils import forward, producer_of, spec_of

__all__ = ["ALL_OPS", "RULES"]

_RESHAPES = frozenset(["view", "squeeze", "unsqueeze"])


def _same_shape(editor: Editor, node: Node) -> bool:
    """Remove data movement that keeps the operand's type and order."""
    return forward(editor, node, node.inputs[0])


def _no_order(editor: Editor, node: Node) -> bool:
    dims = node.attrs["dims"]
    return dims == tuple(range(len(dims))) and forward(editor, node, node.inputs[0])


def _whole_slice(editor: Editor, node: Node) -> bool:
    return node.attrs["step"] == 1 and forward(editor, node, node.inputs[0])


def _no_pad(editor: Editor, node: Node) -> bool:
    return all(p == 0 for p in node.attrs["pads"]) and forward(editor, node, node.inputs[0])


def _no_shift(editor: Editor, node: Node) -> bool:
    return not any(node.attrs.get("shifts", node.attrs["dims"])) and len(node.attrs["dims"]) == 0 and forward(
        editor, node, node.inputs[0]
    )  # fmt: skip


def _one_part(editor: Editor, node: Node) -> bool:
    return len(node.inputs) == 1 and len(node.outputs) == 1 and forward(editor, node, node.inputs[0])


def _dropout(editor: Editor, node: Node) -> bool:
    unread = len(node.outputs) == 1 or not (
        editor.graph.users(node.outputs[1].name) or node.outputs[1].name in editor.graph.kept
    )
    return not node.attrs["train"] and unread and forward(editor, node, node.inputs[0])


def _view_of_view(editor: Editor, node: Node) -> bool:
    inner = producer_of(editor, node.inputs[0])
    if inner is None or inner.op not in _RESHAPES or not node.spec.is_static:
        return False
    editor.replace(node, "view", inner.inputs[0], size=node.spec.shape)
    return True


def _permute_of_permute(editor: Editor, node: Node) -> bool:
    inner = producer_of(editor, node.inputs[0])
    if inner is None or inner.op != "permute":
        return False
    editor.replace(
        node, "permute", inner.inputs[0], dims=tuple(inner.attrs["dims"][d] for d in node.attrs["dims"])
    )
    return True


def _permute_is_view(editor: Editor, node: Node) -> bool:
    """Replace a permute that only moves dims of size 1 by a view."""
    x = spec_of(editor, node.inputs[0])
    if x is None or not x.is_static:
        return False
    moved = [d for d in node.attrs["dims"] if x.shape[d] != 1]
    if moved != sorted(moved):
        return False
    editor.replace(node, "view", node.inputs[0], size=node.spec.shape)
    return True


def _permute_before_merge(editor: Editor, node: Node) -> bool:
    """Replace permute(view(x)), if the view only merges neighbors, by view(permute(x)), so that permutes become adjacent and cancel."""
    inner = producer_of(editor, node.inputs[0])
    if inner is None or inner.op not in _RESHAPES:
        return False
    x = spec_of(editor, inner.inputs[0])
    if x is None or not x.is_static or not inner.spec.is_static:
        return False
    groups = _merged(x, inner.spec)
    if groups is None:
        return False
    order = [i for d in node.attrs["dims"] for i in groups[d]]
    editor.replace(
        node, "view", editor.insert(node, "permute", inner.inputs[0], dims=order), size=node.spec.shape
    )
    return True


def _merged(x: TensorSpec, y: TensorSpec) -> list[list[int]] | None:
    """Return for each dim of y the adjacent dims of x that it merges; None if y splits a dim of x."""
    if 0 in x.shape:
        return None
    at, groups = 0, []
    for size in y.shape:
        group: list[int] = []
        product = 1
        while product != size:
            if at == x.rank:
                return None
            product *= int(x.shape[at])  # type: ignore[arg-type]
            group.append(at)
            at += 1
            if product > size:  # type: ignore[operator]
                return None
        groups.append(group)
    rest = list(range(at, x.rank))
    if any(x.shape[i] != 1 for i in rest) or (rest and not groups):
        return None
    if rest:
        groups[-1] += rest
    return groups


def _expand_of_expand(editor: Editor, node: Node) -> bool:
    inner = producer_of(editor, node.inputs[0])
    if inner is None or inner.op != "expand":
        return False
    editor.replace(node, "expand", inner.inputs[0], size=node.spec.shape)
    return True


def _broadcast_operands(editor: Editor, node: Node) -> bool:
    """Remove an expand before a pointwise op, which broadcasts by itself. If all operands were expanded, expand the result instead."""
    if not OPS[node.op].pointwise:
        return False
    bare = [_unexpanded(editor, i) for i in node.inputs]
    if bare == list(node.inputs):
        return False
    operands: list[Any] = [spec_of(editor, i) if isinstance(i, str) else i for i in bare]
    (spec,) = infer(node.op, operands, node.attrs)
    if spec.shape == node.spec.shape:
        editor.replace(node, node.op, *bare, **node.attrs)
        return True
    before, after = elements(spec), elements(node.spec)
    if not before or not after or before * 2 > after:
        return False
    editor.replace(node, "expand", editor.insert(node, node.op, *bare, **node.attrs), size=node.spec.shape)
    return True


def _unexpanded(editor: Editor, operand: Any) -> Any:
    inner = producer_of(editor, operand)
    return inner.inputs[0] if inner is not None and inner.op == "expand" else operand


def _constant_index(editor: Editor, operand: object) -> NDArray[Any] | None:
    node = producer_of(editor, operand)
    if node is None or node.op != "constant":
        return None
    value: Const = node.attrs["value"]
    return value.numpy() if value.dtype.is_integer and value.size else None


def _index_is_slice(editor: Editor, node: Node) -> bool:
    """Replace index_select or embedding with a known index by a select, with a known range by a slice."""
    index, x = _constant_index(editor, node.inputs[1]), spec_of(editor, node.inputs[0])
    dim = node.attrs.get("dim", 0)  # an embedding has no dim
    if index is None or x is None or not isinstance(x.shape[dim], int):
        return False
    extent = int(x.shape[dim])
    lowest = -extent if node.attrs.get("wrap", True) else 0
    if index.min() < lowest or index.max() >= extent:
        return False
    indices = index.reshape(-1) % extent
    if index.ndim == 0:
        editor.replace(node, "select", node.inputs[0], dim=dim, index=int(indices[0]))
        return True
    if index.size > 1 and (indices == indices[0]).all():  # equal indices: readers broadcast the one row
        row = editor.insert(
            node, "slice", node.inputs[0], dim=dim, start=int(indices[0]), end=int(indices[0]) + 1
        )
        shape = (*x.shape[:dim], *(1,) * index.ndim, *x.shape[dim + 1 :])
        editor.replace(node, "expand", editor.insert(node, "view", row, size=shape), size=node.spec.shape)
        return True
    if index.ndim != 1 or not np.array_equal(indices, np.arange(indices[0], indices[0] + indices.size)):
        return False
    editor.replace(node, "slice", node.inputs[0], dim=dim, start=int(indices[0]), end=int(indices[-1]) + 1)
    return True


def _gather_is_view(editor: Editor, node: Node) -> bool:
    """Replace gather_nd with indices of every element in order by a view."""
    index, x = _constant_index(editor, node.inputs[1]), spec_of(editor, node.inputs[0])
    if index is None or x is None or not x.is_static or node.attrs["batch_dims"] or index.shape[-1] != x.rank:
        return False
    shape = tuple(int(d) for d in x.shape if isinstance(d, int))
    if (
        index.size // max(x.rank, 1) != math.prod(shape)
        or (index < 0).any()
        or (index >= np.array(shape)).any()
    ):
        return False
    return _in_order(editor, node, tuple(index.reshape(-1, x.rank).T), shape)


def _index_is_view(editor: Editor, node: Node) -> bool:
    """Replace index with arrays, one per dim, of every element in order by a view."""
    x, arrays = spec_of(editor, node.inputs[0]), [_constant_index(editor, i) for i in node.inputs[1:]]
    if x is None or not x.is_static or len(arrays) != x.rank or not x.rank:
        return False
    shape = tuple(int(d) for d in x.shape if isinstance(d, int))
    indices: list[NDArray[Any]] = []
    for array, extent in zip(arrays, shape, strict=True):
        if array is None or array.min() < -extent or array.max() >= extent:
            return False
        indices.append(array % extent)
    return _in_order(editor, node, tuple(a.reshape(-1) for a in np.broadcast_arrays(*indices)), shape)


def _in_order(editor: Editor, node: Node, indices: tuple[NDArray[Any], ...], shape: tuple[int, ...]) -> bool:
    """Replace the node by a view if the indices are all of the shape's in row-major order."""
    flat = np.ravel_multi_index(indices, shape)
    if not np.array_equal(flat, np.arange(math.prod(shape))):
        return False
    editor.replace(node, "view", node.inputs[0], size=node.spec.shape)
    return True


def _repeat_of_one(editor: Editor, node: Node) -> bool:
    """Replace a repeat of dims of size 1 by an expand."""
    x, repeats = spec_of(editor, node.inputs[0]), node.attrs["repeats"]
    if (
        x is None
        or len(repeats) != x.rank
        or any(r != 1 and d != 1 for r, d in zip(repeats, x.shape, strict=True))
    ):
        return False
    editor.replace(node, "expand", node.inputs[0], size=node.spec.shape)
    return True


_SCATTER_STARTS = {"add": 0.0, "mul": 1.0, "amax": -math.inf, "amin": math.inf}
"""Values from which reductions of a scatter start if the operand's do not count."""


def _scatter_of_rows(editor: Editor, node: Node) -> bool:
    """Replace a scatter along the first dim, whose index is one number for each row, by scatter_nd, which writes whole rows."""
    x, values = spec_of(editor, node.inputs[0]), spec_of(editor, node.inputs[2])
    expand = producer_of(editor, node.inputs[1])
    if expand is None or expand.op != "expand" or x is None or values is None or not values.is_static:
        return False
    index, reduce = spec_of(editor, expand.inputs[0]), node.attrs["reduce"]
    shape = values.shape
    rows = (
        index is not None and index.shape == (*shape[:1], *(1,) * (x.rank - 1)) and expand.spec.shape == shape
    )
    if not rows or x.rank < 2 or node.attrs["dim"] != 0 or shape[1:] != x.shape[1:] or reduce == "mean":
        return False
    onto, replaces = node.inputs[0], reduce != "none" and not node.attrs["include_self"]
    if replaces and not values.dtype.is_float:
        return False
    at = editor.insert(node, "view", expand.inputs[0], size=(shape[0], 1))
    if replaces:
        start = editor.insert(node, "full", size=shape, value=_SCATTER_STARTS[reduce], dtype=values.dtype)
        onto = editor.insert(node, "scatter_nd", onto, at, start, reduce="none")
    editor.replace(node, "scatter_nd", onto, at, node.inputs[2], reduce=reduce)
    return True


RULES: Mapping[str, tuple[Callable[[Editor, Node], bool], ...]] = {
    "clone": (_same_shape,),
    "view": (_same_shape, _view_of_view),
    "squeeze": (_same_shape, _view_of_view),
    "unsqueeze": (_same_shape, _view_of_view),
    "permute": (_no_order, _permute_of_permute, _permute_is_view, _permute_before_merge),
    "expand": (_same_shape, _expand_of_expand),
    "repeat": (_same_shape, _repeat_of_one),
    "slice": (_whole_slice,),
    "pad": (_no_pad,),
    "flip": (_no_shift,),
    "roll": (_no_shift,),
    "cat": (_one_part,),
    "split": (_one_part,),
    "dropout": (_dropout,),
    "index_select": (_index_is_slice,),
    "embedding": (_index_is_slice,),
    "gather_nd": (_gather_is_view,),
    "index": (_index_is_view,),
    "scatter": (_scatter_of_rows,),
}
ALL_OPS: tuple[Callable[[Editor, Node], bool], ...] = (_broadcast_operands,)
"""Rules for all ops."""
