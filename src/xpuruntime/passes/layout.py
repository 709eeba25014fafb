"""layout: store values of convolutional networks channels-last (NHWC) throughout, with conversions at the boundaries only.

A layout is physical: it does not change the meaning of the graph, and the interpreter ignores it. The pass inserts ``clone`` nodes whose
result has another layout than their operand. There are four kinds of nodes:

    channels   convolutions, pools and the like: operands and results of the same rank are channels-last
    agnostic   elementwise ops, concatenation, padding, reductions ...: they take the layout of their operands
    moving     permutes and reshapes of spatial dims read any layout; often the data is already stored as the result needs it
    dense      everything else reads and writes row-major

The choice of channels-last over blocked layouts was measured (docs/concepts/architecture.md): a vector of channels is
contiguous for every kernel, and a 1x1 convolution is a plain matrix product. Convolutions with few filters are the exception on some
targets: they read row-major values in place.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.attributes import Attrs
from ..ir.graph import Graph, Input, Node, Output, State, Value
from ..ir.ops import OPS
from ..ir.rewrite import Editor
from ..types import Layout, TensorSpec

__all__ = ["Layouts", "assign_layouts", "channels_last"]

Layouts = Mapping[str, Layout]
"""Layouts by value name; all other values are dense."""

_CHANNELS = frozenset(
    [
        "convolution",
        "fused_convolution",
        "quantized_convolution",
        "avg_pool",
        "max_pool",
        "adaptive_avg_pool",
        "adaptive_max_pool",
        "batch_norm",
        "resize",
        "grid_sample",
        "local_response_norm",
    ]
)
# In addition to all pointwise ops. Their kernels support any strides.
_AGNOSTIC = frozenset(
    [
        "clone",
        "cat",
        "pad",
        "slice",
        "split",
        "flip",
        "sum",
        "mean",
        "amax",
        "amin",
        "prod",
        "var",
        "softmax",
        "log_softmax",
    ]
)


def channels_last(spec: TensorSpec, alignment: int = 0) -> Layout | None:
    """Return the layout N, spatial dims, C, with channels padded to ``alignment`` bytes; None for ranks below 3."""
    if spec.rank < 3 or not spec.is_static:
        return None
    shape = tuple(int(d) for d in spec.shape if isinstance(d, int))
    step = max(1, alignment * 8 // max(spec.dtype.bits, 8))
    alloc = (shape[0], -(-shape[1] // step) * step, *shape[2:])
    return Layout((0, *range(2, spec.rank), 1), alloc)


def assign_layouts(
    graph: Graph,
    alignment: int = 0,
    agnostic: frozenset[str] = frozenset(),
    row_major_taps: int = 0,
    row_major_filters: int = 0,
) -> tuple[Graph, Layouts]:
    """Return the graph with conversions, and the layout of every value that is not dense.

    alignment: bytes to which channels are padded. agnostic: ops of kind ``channels`` that count as ``agnostic`` on this target.
    row_major_taps: maximum taps of a strided filter with which convolutions of one channel store row-major results (``CodegenTarget``).
    row_major_filters: maximum filters with which convolutions read row-major operands (``CodegenTarget``).
    """
    if not any(n.op in _CHANNELS and n.outputs[0].spec is not None and n.spec.rank > 2 for n in graph.nodes):
        return graph, {}
    laid, layouts = _LayoutAssignment(graph, alignment, agnostic, row_major_filters).done()
    if not row_major_taps and not row_major_filters:
        return laid, layouts
    return _row_major(laid, layouts, row_major_taps, row_major_filters)


def _row_major(graph: Graph, layouts: Layouts, taps: int, filters: int) -> tuple[Graph, Layouts]:
    """Return the graph where convolutions that only a conversion to row-major reads store row-major results themselves."""
    editor, left = Editor(graph), dict(layouts)
    for reader in graph.nodes:
        if reader.op != "clone" or reader.outputs[0].name in layouts:
            continue
        conv = graph.producer(str(reader.inputs[0]))
        if conv is None or conv.op not in ("convolution", "fused_convolution"):
            continue
        result = conv.outputs[0].name
        if result not in layouts or graph.only_user(result) is not reader:
            continue
        reads_rows = conv.inputs[0] not in layouts and _reads_rows(graph, conv, filters)
        if _stores_rows(graph, conv, taps) or (reads_rows and not conv.attrs.get("transposed")):
            editor.forward(reader.outputs[0].name, result)
            editor.remove(reader)
            del left[result]
    return editor.done(keep_dead=True), left


def _stores_rows(graph: Graph, node: Node, max_taps: int) -> bool:
    """Return whether a convolution of one channel along one dim stores row-major results faster than a copy of channels-last ones.

    Windows that are a stride apart are packed element by element, which takes longer than the copy if the filter is long.
    """
    filters = graph.spec(str(node.values[1])).shape
    taps = [(n, s) for n, s in zip(filters[2:], node.attrs["stride"], strict=True) if n != 1]
    if filters[1] != 1 or node.attrs["groups"] != 1 or node.attrs.get("transposed") or len(taps) != 1:
        return False
    count, stride = taps[0]
    return stride == 1 or (isinstance(count, int) and count <= max_taps)


_MIN_POSITIONS = 32
"""Minimum output positions of a row, along which vectors run where an operand is row-major: two vectors of the widest registers."""


def _reads_rows(graph: Graph, node: Node, max_filters: int) -> bool:
    """Return whether a convolution reads a row-major operand faster than a channels-last copy: few filters, and windows that are adjacent.

    A transposed one with constant filters computes as many results of a row at once as the stride.
    """
    dtype = node.spec.dtype
    if node.op not in ("convolution", "fused_convolution") or not dtype.is_float or dtype.bits < 16:
        return False
    weight, attrs = str(node.values[1]), node.attrs
    channels = graph.spec(weight).shape[0 if attrs.get("transposed") else 1]
    filters, width, stride = node.spec.shape[1], node.spec.shape[-1], attrs["stride"][-1]
    if attrs["groups"] != 1 or channels == 1 or not isinstance(filters, int) or not isinstance(width, int):
        return False
    if attrs.get("transposed"):
        dense = all(s == 1 or w == 1 for s, w in zip(attrs["stride"], attrs["dilation"], strict=True))
        if weight not in graph.weight_names or not dense:
            return False
        filters, width = filters * stride, width // stride
    elif stride != 1:
        return False
    most = (
        max_filters if dtype.bits >= 32 else max_filters // 2
    )  # 16-bit floats are converted as they are read
    return 0 < filters <= most and width >= _MIN_POSITIONS


class _LayoutAssignment:
    def __init__(
        self, graph: Graph, alignment: int, agnostic: frozenset[str], row_major_filters: int
    ) -> None:
        self.graph, self.alignment, self.row_major_filters = graph, alignment, row_major_filters
        self.agnostic = _AGNOSTIC | agnostic
        self.layouts: dict[str, Layout] = {}
        self.nodes: list[Node] = []
        self.copies: dict[tuple[str, bool], str] = {}
        self.names = {*graph.values, *graph.former_names}

    def done(self) -> tuple[Graph, Layouts]:
        for node in self.graph.nodes:
            if node.op == "permute" or self.keeps_channels(node):
                self.nodes.append(node)
                self.settle(node, node.op != "permute" or self.moves_channels_last(node))
            elif self.follows(node):
                self.nodes.append(node)
                self.settle(node, any(i in self.layouts and self.rank(i) == _rank(node) for i in node.values))
            else:
                channels = node.op in _CHANNELS and _rank(node) > 2
                inputs = tuple(self.operand(node, at, i, channels) for at, i in enumerate(node.inputs))
                same = inputs == node.inputs
                self.nodes.append(
                    node if same else Node(node.op, inputs, node.attrs, node.outputs, node.sources)
                )
                self.settle(node, channels)
        outputs = tuple(Output(o.name, self.dense(o.value)) for o in self.graph.outputs)
        states = tuple(
            State(s.value, s.init, None if s.next is None else self.dense(s.next)) for s in self.graph.states
        )
        changed = self.graph.replace(nodes=tuple(self.nodes), outputs=outputs, states=states)
        return changed, self.layouts

    def follows(self, node: Node) -> bool:
        """Return whether the node supports operands in any layout."""
        return node.op in self.agnostic or OPS[node.op].pointwise or _pointwise_body(node)

    def keeps_channels(self, node: Node) -> bool:
        """Return whether the node reshapes only the spatial dims of a channels-last value."""
        if OPS[node.op].view != "reshape" or node.inputs[0] not in self.layouts or _rank(node) < 3:
            return False
        return node.spec.shape[:2] == self.graph.spec(str(node.inputs[0])).shape[:2] or node.op == "clone"

    def moves_channels_last(self, node: Node) -> bool:
        """Return whether the node moves the last dim of a row-major value to the channels: its data is channels-last already."""
        last = len(node.attrs["dims"]) - 1
        layout = None if node.outputs[0].spec is None else channels_last(node.spec, self.alignment)
        moves = tuple(node.attrs["dims"]) == (0, last, *range(1, last)) and node.inputs[0] not in self.layouts
        return moves and layout is not None and layout.alloc == node.spec.shape

    def rank(self, value: str) -> int:
        spec = self.graph.values[value].spec if value in self.graph.values else None
        return spec.rank if spec is not None and value not in self.graph.weight_names else -1

    def settle(self, node: Node, channels: bool) -> None:
        """Set the layout of the node's results of its rank."""
        for value in node.outputs if channels else ():
            if value.spec is not None and value.spec.rank == _rank(node):
                layout = channels_last(value.spec, self.alignment)
                if layout is not None:
                    self.layouts[value.name] = layout

    def operand(self, node: Node, at: int, operand: Input, channels: bool) -> Input:
        if not isinstance(operand, str) or self.graph.values[operand].spec is None:
            return operand
        if channels and at == 0 and operand not in self.layouts and self.is_read_by_rows(operand):
            return operand
        if channels and _is_data(node, at):
            return self.converted(operand, channels_last(self.graph.spec(operand), self.alignment))
        return self.dense(operand)

    def is_read_by_rows(self, value: str) -> bool:
        """Return whether every convolution, pool and the like that reads a row-major value is faster without a channels-last copy."""
        readers = [n for n in self.graph.users(value) if n.op in _CHANNELS]
        return all(_reads_rows(self.graph, n, self.row_major_filters) for n in readers)

    def dense(self, value: str) -> str:
        return self.converted(value, None)

    def converted(self, value: str, layout: Layout | None) -> str:
        """Return the value in a layout: itself if the bytes are the same, else a copy that later readers share."""
        spec = self.graph.spec(value)
        if _same_memory(spec, self.layouts.get(value), layout):
            if layout is not None:
                self.layouts.setdefault(value, layout)  # the bytes are the same in both layouts
            return value
        key = (value, layout is not None)
        if key not in self.copies:
            name = f"{value}_{'dense' if layout is None else 'nhwc'}"
            while name in self.names:
                name += "_"
            self.names.add(name)
            self.nodes.append(Node("clone", (value,), Attrs(), (Value(name, spec),)))
            self.copies[key] = name
            if layout is not None:
                self.layouts[name] = layout
        return self.copies[key]


def _rank(node: Node) -> int:
    spec = node.outputs[0].spec
    return -1 if spec is None else spec.rank


def _is_data(node: Node, at: int) -> bool:
    """Return whether an operand of a ``channels`` op is an activation of its rank, not a filter, bias or grid."""
    if node.op in ("convolution", "fused_convolution"):
        return at in (0, 3)
    return at == 0


def _pointwise_body(node: Node) -> bool:
    """Return whether the node is a fused node of pointwise ops alone, which supports any layout."""
    return node.op == "fused" and all(
        OPS[n.op].pointwise or n.op == "constant" for n in node.attrs["body"].nodes
    )


def _same_memory(spec: TensorSpec, a: Layout | None, b: Layout | None) -> bool:
    """Return whether two layouts store every element at the same place."""
    first, second = (TensorSpec(spec.shape, spec.dtype, "", x).physical for x in (a, b))
    if first.elements != second.elements:
        return False
    return all(d == 1 or s == t for d, s, t in zip(spec.shape, first.strides, second.strides, strict=True))
