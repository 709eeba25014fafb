"""Losses of language models in a graph of PyTorch's compiler: the cross entropy of a linear layer's results, as one op.

``linear_cross_entropy`` computes logits for a chunk of rows at a time and never stores all of them. A loss is rewritten if only views of
rows, copies and conversions to a wider type are between the layer and the loss, and nothing else reads them. The views are then views of
the layer's operand.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation
from torch.fx import GraphModule, Node

from ..numbered_policies import PolicyCell
from ..ops import linear_cross_entropy

__all__ = ["FUSED", "route_head_losses"]

FUSED = "fused with the layer that computes its logits"
"""The outcome in a report of a loss whose logits are not stored."""

_COPIES = ("contiguous", "clone")
_CASTS = ("float", "double", "to", "type")
_VIEWS = ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze")
_SWAPS = ("transpose", "swapaxes", "permute", "movedim")
_WRITERS = (
    "setitem", "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift", "isub", "itruediv", "ixor",
)  # fmt: skip
"""Functions that write to their first operand: those of ``operator``. Others have a name that ends with an underscore."""
_GRAD_MODES = (torch._C._set_grad_enabled, torch.autograd.grad_mode._enter_inference_mode)
_PRODUCTS = (torch.matmul, operator.matmul, torch.mm)
_LOSS_DEFAULTS: Mapping[str, Any] = {
    "weight": None, "size_average": None, "ignore_index": -100, "reduce": None, "reduction": "mean", "label_smoothing": 0.0,
}  # fmt: skip


class _StaysError(Exception):
    """A loss that is not rewritten. Its text is the reason."""


@dataclass(slots=True)
class _LogitsLayer:
    """The layer of a loss: its operand, weight and bias, and the nodes after it from the layer to the loss."""

    x: Node
    weight: Node
    bias: Node | None
    transposed: bool
    after: list[Node] = field(default_factory=list)


def route_head_losses(module: GraphModule, cell: PolicyCell) -> dict[str, str]:
    """Rewrite the graph's losses of language models, in place. Return what became of each cross entropy: ``FUSED``, or why its logits are stored.

    It runs before PyTorch's autograd sees the graph, which then differentiates the op.
    """
    outcomes: dict[str, str] = {}
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in (F.cross_entropy, F.nll_loss):
            continue
        try:
            _rewrite(module, node, cell)
        except _StaysError as why:
            outcomes[node.name] = f"its logits are stored: {why}"
        else:
            outcomes[node.name] = FUSED
    if FUSED in outcomes.values():
        module.recompile()
    return outcomes


def _rewrite(module: GraphModule, loss: Node, cell: PolicyCell) -> None:
    logits, target, options = _arguments(loss)
    operand = loss.args[0] if loss.args else loss.kwargs["input"]
    head = _head_of(logits, loss if logits is operand else operand)
    words, size = _shape(head.after[0])[-1], _shape(head.x)[-1]
    if words <= size:
        raise _StaysError(f"{words} logits are not larger than the {size} values that they are computed from")
    _reads_the_same(head, loss)
    with module.graph.inserting_before(loss):
        rows = head.x
        for node in head.after[1:]:
            rows = _same_view(module, node, rows, size)
        weight = module.graph.call_method("t", (head.weight,)) if head.transposed else head.weight
        dtypes = _value(head.after[0]).dtype, _value(loss).dtype
        run = functools.partial(_head_loss, cell.number, dtypes, options)
        functools.update_wrapper(run, _head_loss)
        fused = module.graph.call_function(run, (rows, weight, head.bias, target))
    fused.meta = dict(loss.meta)
    loss.replace_all_uses_with(fused)
    # Dead code elimination would also remove methods that work in place.
    for node in (loss, *([operand] if operand is not logits else []), *reversed(head.after)):
        module.graph.erase_node(node)


def _arguments(loss: Node) -> tuple[Node, Node, Mapping[str, Any]]:
    """Return the node of the logits, that of the targets, and the options that the op takes."""
    names = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction")
    args = dict(zip((*names, "label_smoothing"), loss.args, strict=False)) | dict(loss.kwargs)
    logits, target = args.pop("input"), args.pop("target")
    options = {**_LOSS_DEFAULTS, **args}
    if options["weight"] is not None:
        raise _StaysError("its classes have weights")
    if options["label_smoothing"]:
        raise _StaysError("it smooths labels")
    if options["size_average"] is not None or options["reduce"] is not None:
        raise _StaysError("it has size_average or reduce, which are deprecated")
    if options["reduction"] not in ("mean", "sum"):
        raise _StaysError(f"its reduction is {options['reduction']!r}")
    if not isinstance(target, Node) or _value(target).dtype is not torch.int64:
        raise _StaysError("its targets are not indices of int64")
    if loss.target is F.nll_loss:
        logits = _of_log_softmax(logits, loss)
    return logits, target, {k: options[k] for k in ("ignore_index", "reduction")}


def _of_log_softmax(node: Any, reader: Node) -> Node:
    if not isinstance(node, Node) or (node.target not in (F.log_softmax, torch.log_softmax, "log_softmax")):
        raise _StaysError("its operand is not a log_softmax")
    _only_reader(node, reader)
    args = dict(
        zip(
            ("input", "dim", *(("_stacklevel",) if node.target is F.log_softmax else ())),
            node.args,
            strict=False,
        )
    )
    args |= node.kwargs
    dtype = args.get("dtype")
    if args.get("dim") not in (-1, _value(node).dim() - 1) or dtype not in (
        None,
        torch.float32,
        torch.float64,
    ):
        raise _StaysError("its log_softmax is not over the last dim")
    source: Node = args["input"]
    return source


def _head_of(logits: Any, reader: Node) -> _LogitsLayer:
    """Return the layer that computes the logits, and the nodes between it and the reader of the logits."""
    node, between = logits, list[Node]()
    while isinstance(node, Node):
        _only_reader(node, reader)
        if (head := _layer(node)) is not None:
            head.after = [node, *reversed(between)]
            if _value(head.after[-1]).dim() not in (1, 2) and not _swaps(head.after[-1]):
                raise _StaysError("their last dim is not the vocabulary")
            return head
        if node.op not in ("call_function", "call_method") or not node.args or not _keeps_rows(node):
            raise _StaysError(f"they go through {_name(node)}")
        between.append(node)
        node, reader = node.args[0], node
    raise _StaysError("no linear layer computes them")


def _only_reader(node: Node, reader: Node) -> None:
    others = [u for u in node.users if u is not reader]
    if any(u.op == "output" for u in others):
        raise _StaysError("the compiled function returns them; compile one that returns the loss only")
    if others:
        raise _StaysError(f"{_name(others[0])} reads them, too")


def _layer(node: Node) -> _LogitsLayer | None:
    if node.op == "call_function" and node.target in (F.linear, torch._C._nn.linear):
        args = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | dict(node.kwargs)
        if all(isinstance(args.get(k), Node) for k in ("input", "weight")):
            return _LogitsLayer(args["input"], args["weight"], args.get("bias"), False)
    product = node.target == "matmul" if node.op == "call_method" else node.target in _PRODUCTS
    if product and not node.kwargs and len(node.args) == 2 and all(isinstance(a, Node) for a in node.args):
        x, weight = node.args
        if _value(weight).dim() == 2:
            return _LogitsLayer(x, weight, None, True)
    return None


def _name(node: Node) -> str:
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _value(node: Node) -> torch.Tensor:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        raise _StaysError(f"the result of {_name(node)} is not a tensor")
    return value


def _shape(node: Node) -> tuple[int, ...]:
    shape = tuple(_value(node).shape)
    if not all(isinstance(n, int) for n in shape):
        raise _StaysError("its sizes are dynamic")
    return shape


# ── nodes between the layer and the loss ──


def _reads_the_same(head: _LogitsLayer, loss: Node) -> None:
    """Raise if the layer would compute something else right before the loss: an operand was written, or gradients were off."""
    layer = head.after[0]
    operands = [n for n in (head.x, head.weight, head.bias) if n is not None]
    memory = {_memory(_value(n)) for n in operands}
    node = layer.next
    while node is not loss:
        if node.target in _GRAD_MODES:
            if any(_value(n).requires_grad for n in operands) and not _value(layer).requires_grad:
                raise _StaysError("they have no gradient")
        elif _writes(node) and any(_shares(n, memory) for n in node.all_input_nodes):
            raise _StaysError(f"{_name(node)} changes what they are computed from")
        node = node.next


def _writes(node: Node) -> bool:
    """Return True for a node that may write to its operands."""
    if node.op not in ("call_function", "call_method"):
        return bool(node.op == "call_module")
    name, target = _name(node), node.target
    if isinstance(target, torch._ops.OpOverloadPacket):
        return any(getattr(target, word)._schema.is_mutable for word in target.overloads())
    return bool(
        name.strip("_") in _WRITERS
        or (name.endswith("_") and not name.endswith("__"))
        or "out" in node.kwargs
        or isinstance(target, torch._ops.HigherOrderOperator)
        or (isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable)
        or _in_place(node)
    )


def _in_place(node: Node) -> bool:
    """Return True if a flag says so: ``F.relu(x, True)``."""
    flags = [*node.args, *node.kwargs.values()]
    if node.op == "call_function":
        with contextlib.suppress(TypeError, ValueError):  # a function without a signature
            flags.append(
                bool(inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments.get("inplace"))
            )
    return any(v is True for v in flags)


def _shares(node: Node, memory: set[int]) -> bool:
    value = node.meta.get("example_value")
    values = value if isinstance(value, tuple | list) else (value,)
    return any(isinstance(v, torch.Tensor) and _memory(v) in memory for v in values)


def _memory(value: torch.Tensor) -> int:
    """Return the identity of a traced tensor's memory, which its views share."""
    return int(value.untyped_storage()._cdata)


def _keeps_rows(node: Node) -> bool:
    """Return True for a node that only moves, copies or widens whole rows of logits."""
    source = node.args[0]
    if not isinstance(source, Node):
        return False
    if _swaps(node):
        return True
    before, after, word = _shape(source), _shape(node), _name(node)
    if not before or not after or before[-1] != after[-1]:
        return False
    if word == "getitem":
        return _index_of_rows(node.args[1], len(before))
    same = _value(node).dtype is _value(source).dtype
    if word in _CASTS:
        wide = torch.promote_types(_value(node).dtype, _value(source).dtype) is _value(node).dtype
        return wide and before == after and _value(node).device == _value(source).device
    return same and (word in _COPIES or (word in _VIEWS and math.prod(before) == math.prod(after)))


def _swaps(node: Node) -> bool:
    """Return True for the node that gives a cross entropy its words in dim 1: [rows, length, words] -> [rows, words, length]."""
    if (
        _name(node) not in _SWAPS
        or _value(node).dim() != 3
        or not all(u.target is F.cross_entropy for u in node.users)
    ):
        return False
    marked = torch.empty(2, 3, 5)
    try:
        return tuple(getattr(marked, _name(node))(*node.args[1:], **node.kwargs).shape) == (2, 5, 3)
    except (RuntimeError, TypeError, IndexError):
        return False


def _index_of_rows(index: Any, rank: int) -> bool:
    """Return True for a basic index that leaves the last dim whole."""
    entries = index if isinstance(index, tuple) else (index,)
    if (
        not all(e is Ellipsis or isinstance(e, slice | int) for e in entries)
        or True in entries
        or False in entries
    ):
        return False
    if any(
        isinstance(part, Node) for e in entries if isinstance(e, slice) for part in (e.start, e.stop, e.step)
    ):
        return False
    if Ellipsis in entries:
        tail = entries[entries.index(Ellipsis) + 1 :]
        return not tail or tail[-1] == slice(None)
    return len(entries) < rank or entries[-1] == slice(None)


def _same_view(module: GraphModule, node: Node, rows: Node, size: int) -> Node:
    """Return the node's view of the layer's operand instead of the logits."""
    word = _name(node)
    if word == "getitem":
        return module.graph.call_function(operator.getitem, (rows, node.args[1]))
    if word in _VIEWS:
        return module.graph.call_method("reshape", (rows, [*_shape(node)[:-1], size]))
    return rows


def _head_loss(
    number: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    options: Mapping[str, Any],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
) -> torch.Tensor:
    """Return the loss in the dtype that it was traced with. The layer computes in its own, which autocast may have chosen.

    Wider parameters are rounded by the op, so that their gradients are as exact as the op's sums.
    """
    layer, result = dtypes
    weight, bias = (None if t is None else t.to(torch.promote_types(t.dtype, layer)) for t in (weight, bias))
    return linear_cross_entropy(x.to(layer), weight, target, bias=bias, number=number, **options).to(result)
