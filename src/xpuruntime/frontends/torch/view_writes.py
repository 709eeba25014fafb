"""Writes to tensors of a program, also through views of them, as ops without side effects.

``x[:, i] = y`` is exported as ``copy_(select(x, 1, i), y)``. It becomes ``select_scatter(x, y, 1, i)``, and whoever reads the memory of ``x``
later reads the result. A loop that fills a tensor part by part becomes a chain, which native programs compute in one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .export import find_torch
from .functional_calls import (
    MemoryUses,
    MustDecomposeWhole,
    functional_target,
    is_static,
    returns_operand,
    storage_of,
    without_write,
    written_tensor,
)
from .nodes import as_list

__all__ = ["functional_writes"]

_MAX_VIEWS = 50
"""Maximum views of views. They are made again after a write."""
_FILLS = {"copy_": "copy", "fill_": "fill", "zero_": "zero"}
"""Ops that replace what they write to, and the ops that return the new content."""


def functional_writes(nodes: Sequence[Any]) -> Sequence[Any]:
    """Return nodes without the writes that ``functional_targets`` refuses, as far as that is possible. They may be of another graph."""
    writes = [n for n in nodes if _is_write(n)]
    if not writes or any(written_tensor(w) is None for w in writes):
        return nodes
    memory = MemoryUses({n: i for i, n in enumerate(nodes)})
    if not memory.is_known:
        return nodes
    by_storage: dict[int, list[Any]] = {}
    for write in writes:
        by_storage.setdefault(storage_of(written_tensor(write)), []).append(write)
    buffers = {
        member: buffer
        for storage, own in by_storage.items()
        if not all(_is_plain(memory, w) for w in own)
        and (buffer := _buffer(memory.sharing[storage])) is not None
        for member in buffer.members
    }
    return _Rewriter(buffers).rewritten(nodes) if buffers else nodes


def _is_write(node: Any) -> bool:
    torch = find_torch()
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and bool(node.target._schema.is_mutable)
        and not returns_operand(node)
    )


def _is_plain(memory: MemoryUses, write: Any) -> bool:
    """Return whether nobody else sees a write, so that ``functional_targets`` takes it."""
    try:
        memory.check_write(write)
        without_write(write)
    except MustDecomposeWhole:
        return False
    return True


# ── the memory of one tensor ──


class _Buffer:
    """A tensor that is written: the node that makes it, and all nodes that share its memory.

    views_of: the views between a node and the root, innermost first. A write returns what it writes to.
    value, version: the node with its content up to here, and the number of writes before.
    """

    def __init__(self, root: Any, views_of: Mapping[Any, tuple[Any, ...]]) -> None:
        self.root, self.views_of, self.members = root, views_of, frozenset(views_of)
        self.value: Any = None
        self.version = 0
        self.views: dict[Any, tuple[int, Any]] = {}


def _buffer(members: Sequence[Any]) -> _Buffer | None:
    """Return the buffer whose memory nodes share; None if a node shares it in another way than by views of one operand and by writes."""
    members = list(dict.fromkeys(members))
    root, *others = members
    if not _makes_whole_tensor(root):
        return None
    views_of: dict[Any, tuple[Any, ...]] = {root: ()}
    for node in others:
        if node.op != "call_function" or not node.args or node.args[0] not in views_of:
            return None
        if isinstance(node.meta["val"], tuple | list) or not hasattr(node.target, "_schema"):
            return None
        views = views_of[node.args[0]]
        if not _is_write(node):
            if any(n in views_of for n in node.all_input_nodes[1:]) or len(views) == _MAX_VIEWS:
                return None
            views = (node, *views)
        elif _new_content(node) is None or not all(_packet(v) in _INVERSES for v in views):
            return None
        views_of[node] = views
    return _Buffer(root, views_of)


def _makes_whole_tensor(node: Any) -> bool:
    """Return whether a node makes a dense tensor, in any order of its dims, that is all of its memory."""
    torch = find_torch()
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or _is_write(node):
        return False
    if not isinstance(value, torch.Tensor) or not is_static(value) or value.storage_offset():
        return False
    count = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1 and stride != count:
            return False
        count *= size
    return bool(value.untyped_storage().nbytes() == value.numel() * value.element_size())


def _new_content(write: Any) -> Any | None:
    """Return the op that returns what a node writes to its first argument; None without one."""
    torch = find_torch()
    packet, overload = write.target._schema.name.removeprefix("aten::"), write.target._overloadname
    if packet in _FILLS:
        return getattr(getattr(torch.ops.aten, _FILLS[packet]), overload, None)
    try:
        return functional_target(write)
    except MustDecomposeWhole:
        return None


# ── views ──


def _slice(parent: Any, part: Any, view: Any, call: Callable[..., Any]) -> Any:
    return call(find_torch().ops.aten.slice_scatter.default, parent, part, *view.args[1:], **view.kwargs)


def _select(parent: Any, part: Any, view: Any, call: Callable[..., Any]) -> Any:
    return call(find_torch().ops.aten.select_scatter.default, parent, part, *view.args[1:], **view.kwargs)


def _transpose(parent: Any, part: Any, view: Any, call: Callable[..., Any]) -> Any:
    return call(view.target, part, *view.args[1:], **view.kwargs)


def _permute(parent: Any, part: Any, view: Any, call: Callable[..., Any]) -> Any:
    dims = [d % len(view.args[1]) for d in view.args[1]]
    return call(view.target, part, [dims.index(d) for d in range(len(dims))])


def _reshape(parent: Any, part: Any, view: Any, call: Callable[..., Any]) -> Any:
    return call(find_torch().ops.aten.reshape.default, part, list(view.args[0].meta["val"].shape))


def _same(parent: Any, part: Any, view: Any, call: Callable[..., Any]) -> Any:
    return part


_INVERSES: dict[str, Callable[..., Any]] = {
    "alias": _same,
    "contiguous": _same,
    "detach": _same,
    "flatten": _reshape,
    "permute": _permute,
    "reshape": _reshape,
    "reshape_as": _reshape,
    "select": _select,
    "slice": _slice,
    "squeeze": _reshape,
    "t": _transpose,
    "to": _same,
    "transpose": _transpose,
    "type_as": _same,
    "unflatten": _reshape,
    "unsqueeze": _reshape,
    "view": _reshape,
    "view_as": _reshape,
}
"""The content of a view's operand after a write to the view, by the name of the view's op. Ops that may copy share memory here, so they did not."""


def _packet(node: Any) -> str:
    return str(node.target._schema.name.removeprefix("aten::"))


# ── the program ──


class _Rewriter:
    """The program without writes to ``buffers`` (buffer by node), in a new graph."""

    def __init__(self, buffers: dict[Any, _Buffer]) -> None:
        self.buffers, self.graph = buffers, find_torch().fx.Graph()
        self.values: dict[Any, Any] = {}

    def rewritten(self, nodes: Iterable[Any]) -> list[Any]:
        """Return the new nodes."""
        for node in nodes:
            buffer = self.buffers.get(node)
            if node.op == "placeholder":
                self.values[node] = self.graph.placeholder(node.name)
                self.values[node].name, self.values[node].meta = node.name, node.meta
            elif buffer is None or node is buffer.root:
                args, kwargs = find_torch().fx.map_arg((node.args, node.kwargs), self._read)
                copied = self.graph.create_node(node.op, node.target, args, kwargs, name=node.name)
                copied.meta = node.meta
                self.values[node] = copied
                if buffer is not None:
                    buffer.value = copied
            elif _is_write(node):
                self._write(buffer, node)
        return list(self.graph.nodes)

    def _read(self, node: Any) -> Any:
        """Return the node with the content that a tensor has now."""
        buffer = self.buffers.get(node)
        if buffer is None:
            return self.values[node]
        views = buffer.views_of[node]
        if not views:
            return buffer.value
        view = views[0]
        version, value = buffer.views.get(view, (-1, None))
        if version != buffer.version:
            args, kwargs = find_torch().fx.map_arg((view.args, view.kwargs), self._read)
            value = self._call(view.meta, view.name, view.target, *args, **kwargs)
            buffer.views[view] = buffer.version, value
        return value

    def _write(self, buffer: _Buffer, write: Any) -> None:
        content = self._content(write)
        for view in buffer.views_of[write]:
            parent = view.args[0]

            def call(target: Any, *args: Any, meta: Any = parent.meta, **kwargs: Any) -> Any:
                return self._call(meta, _name(target), target, *args, **kwargs)

            content = _INVERSES[_packet(view)](self._read(parent), content, view, call)
        buffer.value, buffer.version = content, buffer.version + 1

    def _content(self, write: Any) -> Any:
        """Return the new content of what a node writes to."""
        args, kwargs = find_torch().fx.map_arg((write.args, write.kwargs), self._read)
        written = write.args[0].meta["val"]
        if _packet(write) == "copy_":
            source = write.args[1].meta["val"]
            # Strides count, too: views of the content, such as as_strided, read it in the order of its memory.
            if _layout(source) == _layout(written):
                return args[1]
        target = _new_content(write)
        return self._call({**write.meta, "val": written}, _name(target), target, *args, **kwargs)

    def _call(self, meta: Any, name: str, target: Any, *args: Any, **kwargs: Any) -> Any:
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        node.meta = meta
        assert all(hasattr(v, "shape") for v in as_list(meta["val"]))
        return node


def _layout(tensor: Any) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()


def _name(target: Any) -> str:
    return str(target._schema.name.rpartition("::")[2])
