"""GPTQ: codes of weights are chosen one input after the other, and the inputs that follow make up for the error of those before.

Rounding each weight to the nearest code ignores that inputs vary together: in an image, the errors of neighboring taps add up. With H, the sum of
x x^T over the calibration data, the error of input k is spread over the inputs after it by the Cholesky factor of H's inverse (Frantar et al. 2022,
arXiv:2210.17323). Scales do not change, so the model has the same size and needs the same arithmetic.

With few samples, covariances of independent inputs are not zero, and codes fitted to them are worse on other data. So the covariances in H shrink
toward zero by the weight that minimizes their expected squared error (Ledoit and Wolf 2004; Schäfer and Strimmer 2005): the variance of their
estimate divided by their square. With a weight of 1 the codes are the nearest ones, except for the mean input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...protocols import Array

__all__ = ["WeightCodes", "store_codes", "weight_codes"]

_MAX_DEPTH = 4608
"""Maximum number of inputs of an output: 3 x 3 taps of 512 channels. The time grows with the third power; larger weights are rounded to the nearest code."""
_GROUP_BYTES = 1 << 30
"""Memory for the sums of products; the float model runs once more for each further GiB."""
_UNFOLDED_BYTES = 1 << 26
"""Memory for the unfolded input of a convolution; larger ones are summed in slices of positions."""
_DAMPING = 0.01  # of the mean of H's diagonal, as in the paper
_BLOCK = 128  # inputs after which the errors are spread over the rest of the weight
_LIMIT = 127  # codes are symmetric


@dataclass(frozen=True, slots=True)
class WeightCodes:
    """The codes of one weight in the model's layout, and the scales that they were chosen for, one per output channel."""

    codes: Array
    scale: Array
    axis: int


@dataclass(frozen=True, slots=True)
class _ConstantProduct:
    """A product with a constant weight. rows: the weight as (groups, outputs per group, inputs)."""

    node: Any
    attrs: Mapping[str, Any]
    weight: Array
    groups: int
    axis: int

    @property
    def rows(self) -> Array:
        weight = self.weight if self.axis == 0 else self.weight.T
        return weight.reshape(self.groups, weight.shape[0] // self.groups, -1).astype(np.float64)

    def in_layout(self, rows: Array) -> Array:
        """Return rows in the layout of the model's weight."""
        flat = rows.reshape(-1, rows.shape[-1])
        return flat.reshape(self.weight.shape) if self.axis == 0 else flat.T.reshape(self.weight.shape)

    @property
    def operand(self) -> str:
        """The name of what the weight is multiplied by."""
        return str(self.node.input[0])

    def offsets(self, mean: Array | None) -> Array:
        """Return the mean of each input as (groups, inputs, 1) by the mean of each channel."""
        rows = self.rows
        taps = math.prod(self.weight.shape[2:]) if self.node.op_type == "Conv" else 1
        if mean is None or mean.size * taps != self.groups * rows.shape[-1]:
            return np.zeros((self.groups, rows.shape[-1], 1), np.float32)
        return np.repeat(mean.reshape(self.groups, -1, 1), taps, axis=1).astype(np.float32)

    def items(self, x: Array) -> Iterator[Iterator[Array]]:
        """Yield the slices of each item of the batch, as (groups, inputs, positions)."""
        for item in x:
            if self.node.op_type == "Conv":
                yield _patches(item[None], self.weight.shape[2:], self.attrs, self.groups)
            else:
                yield iter([item.reshape(-1, x.shape[-1]).T[None]])


class _Moments:
    """Sums over the calibration data for a layer: of x, of (x - offset)(x - offset)^T, and what the variance of the latter needs.

    Positions of one image vary together, so the variance is over items: images, sequences, or rows of a matrix.
    """

    def __init__(self, offset: Array) -> None:
        groups, depth, _ = offset.shape
        self._offset = offset
        self._sum = np.zeros((groups, depth))
        self._products = np.zeros((groups, depth, depth))
        self._squares = np.zeros(groups)  # sum over items of their squared covariances
        self._items = self._positions = 0

    def add(self, slices: Iterable[Array]) -> None:
        """Take an item with several positions."""
        products: Any = 0.0
        for x in slices:
            centered = x - self._offset
            products = products + centered @ centered.transpose(0, 2, 1)
            self._sum += x.sum(2, dtype=np.float64)
            self._positions += x.shape[2]
        if np.ndim(products):
            self._products += products
            self._squares += _squared_covariances(products)
            self._items += 1

    def add_each(self, x: Array) -> None:
        """Take items of one position each: their products need not be formed one by one."""
        centered = x - self._offset
        self._products += centered @ centered.transpose(0, 2, 1)
        self._sum += x.sum(2, dtype=np.float64)
        square = np.square(centered, dtype=np.float64)
        self._squares += np.square(square.sum(1)).sum(1) - np.square(square).sum((1, 2))
        self._items += x.shape[2]
        self._positions += x.shape[2]

    def shrunk(self) -> Array:
        """Return the sum of x x^T as (groups, inputs, inputs), with shrunk covariances."""
        mean = self._sum / max(1, self._positions)
        apart = mean - self._offset[..., 0]
        covariances = self._products - self._positions * _outer(apart)
        weight = self._shrinkage()[:, None]
        diagonal = np.arange(covariances.shape[1])
        variances = covariances[:, diagonal, diagonal].copy()
        covariances *= 1.0 - weight[..., None]
        covariances[:, diagonal, diagonal] = variances
        return np.asarray(covariances + self._positions * _outer(mean))

    def _shrinkage(self) -> Array:
        """Return the weight of each group, from 0 (many items that agree) to 1 (too few items).

        With m items, the factor m / (m - 2) makes the weight of independent normal inputs 1 on average, though their mean is an estimate, too.
        """
        whole = _squared_covariances(self._products)
        if self._items <= 2:
            return np.ones_like(whole)
        variance = self._items / (self._items - 2) * (self._squares - whole / self._items)
        return np.clip(np.divide(variance, whole, out=np.ones_like(whole), where=whole > 0), 0.0, 1.0)


def _outer(x: Array) -> Array:
    return np.asarray(x[:, :, None] * x[:, None, :])


def _squared_covariances(products: Array) -> Array:
    """Return the sum of the squares off the diagonal for each group."""
    diagonal = np.arange(products.shape[1])
    whole = np.square(products, dtype=np.float64).sum((1, 2))
    return np.asarray(whole - np.square(products[:, diagonal, diagonal], dtype=np.float64).sum(1))


def weight_codes(
    session: Any,
    feeds: Sequence[Mapping[str, Array]],
    model: Any,
    quantized: Any,
    products: Sequence[Any],
    mean: Mapping[str, Array],
) -> dict[str, WeightCodes]:
    """Return the codes of each product's weight, by node name; without those that GPTQ does not take (several readers, too many inputs).

    session:   computes the float model and shows the products' first operands as outputs.
    quantized: the model with pairs, which holds the scales.
    mean:      mean of each product's first operand by channel, by the product's name (``bias.means``).
    """
    scales = _scales(quantized)
    layers = [layer for layer in _layers(model, products) if layer.node.name in scales]
    codes = {}
    for group in _within_memory(layers):
        for layer, moments in zip(group, _moments(session, feeds, group, mean), strict=True):
            scale = scales[layer.node.name]
            rows = layer.rows
            if scale.size not in (1, rows.shape[0] * rows.shape[1]) or not np.isfinite(moments).all():
                continue
            each = np.broadcast_to(scale, rows.shape[0] * rows.shape[1])
            chosen = _rounded(rows, each.reshape(*rows.shape[:2], 1), moments)
            if chosen is not None:
                codes[layer.node.name] = WeightCodes(
                    layer.in_layout(chosen).astype(np.int8), scale, layer.axis
                )
    return codes


def store_codes(quantized: Any, codes: Mapping[str, WeightCodes]) -> int:
    """Write the codes into a model with pairs, except for channels whose scale is another, and return the number of weights."""
    from onnx import numpy_helper

    contents = {t.name: t for t in quantized.graph.initializer}
    count = 0
    for name, pair in _weight_pairs(quantized):
        if name not in codes:
            continue
        chosen, tensor = codes[name], contents[pair.input[0]]
        before = numpy_helper.to_array(tensor)
        same = numpy_helper.to_array(contents[pair.input[1]]).reshape(-1) == chosen.scale
        if before.shape != chosen.codes.shape:
            continue
        shape = [1] * before.ndim
        shape[chosen.axis if same.size > 1 else 0] = -1
        now = np.where(same.reshape(shape), chosen.codes, before).astype(before.dtype)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(now), tensor.name))
        count += 1
    return count


def _weight_pairs(quantized: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name of each node whose second operand is a constant in 8 bits, and the DequantizeLinear of that."""
    contents = {t.name for t in quantized.graph.initializer}
    producers = {n.output[0]: n for n in quantized.graph.node if n.op_type == "DequantizeLinear"}
    for node in quantized.graph.node:
        pair = producers.get(node.input[1]) if len(node.input) > 1 else None
        if pair is not None and all(i in contents for i in pair.input):
            yield node.name, pair


def _scales(quantized: Any) -> dict[str, Array]:
    from onnx import TensorProto, numpy_helper

    contents = {t.name: t for t in quantized.graph.initializer}
    return {
        name: numpy_helper.to_array(contents[pair.input[1]]).reshape(-1)
        for name, pair in _weight_pairs(quantized)
        if contents[pair.input[0]].data_type == TensorProto.INT8
    }


def _layers(model: Any, products: Sequence[Any]) -> Iterator[_ConstantProduct]:
    """Yield the products of computed operands and constant weights that have no other reader and at most ``_MAX_DEPTH`` inputs."""
    from onnx import helper, numpy_helper

    contents = {t.name: t for t in model.graph.initializer}
    readers: dict[str, int] = {}
    for node in model.graph.node:
        for value in node.input:
            readers[value] = readers.get(value, 0) + 1
    for node in products:
        tensor = contents.get(node.input[1])
        if tensor is None or node.input[0] in contents or readers[node.input[1]] > 1:
            continue
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        rank = len(tensor.dims)
        conv = node.op_type == "Conv"
        if attrs.get("transA") or (rank < 3 if conv else rank != 2):
            continue
        axis = 0 if conv or attrs.get("transB") else 1
        depth = math.prod(tensor.dims) // max(1, tensor.dims[axis])
        if 0 < depth <= _MAX_DEPTH:
            groups = int(attrs.get("group", 1)) if conv else 1
            yield _ConstantProduct(node, attrs, numpy_helper.to_array(tensor), groups, axis)


def _within_memory(layers: Sequence[_ConstantProduct]) -> Iterator[list[_ConstantProduct]]:
    """Yield the layers in groups whose sums of products fit in memory together."""
    group: list[_ConstantProduct] = []
    used = 0
    for layer in layers:
        depth = layer.weight.size // layer.weight.shape[layer.axis]
        size = 8 * layer.groups * depth * depth
        if group and used + size > _GROUP_BYTES:
            yield group
            group, used = [], 0
        group.append(layer)
        used += size
    if group:
        yield group


def _moments(
    session: Any,
    feeds: Sequence[Mapping[str, Array]],
    layers: Sequence[_ConstantProduct],
    mean: Mapping[str, Array],
) -> Iterator[Array]:
    """Yield the sum of x x^T over all samples and positions for each layer, as (groups, inputs, inputs), with shrunk covariances."""
    shown = {o.name for o in session.get_outputs()}
    names = [n for n in dict.fromkeys(layer.operand for layer in layers) if n in shown]
    sums = [_Moments(layer.offsets(mean.get(layer.node.name))) for layer in layers]
    for sample in feeds:
        values = dict(sample)
        if names:
            values |= dict(zip(names, session.run(names, dict(sample)), strict=True))
        for moments, layer in zip(sums, layers, strict=True):
            x = values[layer.operand].astype(np.float32)
            if layer.node.op_type != "Conv" and math.prod(x.shape[1:-1]) == 1:
                moments.add_each(x.reshape(-1, x.shape[-1]).T[None])
            else:
                for item in layer.items(x):
                    moments.add(item)
    while sums:
        yield sums.pop(0).shrunk()


def _patches(x: Array, kernel: Sequence[int], attrs: Mapping[str, Any], groups: int) -> Iterator[Array]:
    """Yield slices of a convolution's input as (groups, channels per group * taps, positions)."""
    rank = len(kernel)
    strides, dilations = (list(attrs.get(n, [1] * rank)) for n in ("strides", "dilations"))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = list(attrs.get("pads", [0] * 2 * rank))
    padding = attrs.get("auto_pad", b"NOTSET")
    if padding in (b"SAME_UPPER", b"SAME_LOWER"):
        sizes = x.shape[2:]
        wanted = [
            max(0, (-(-n // s) - 1) * s + span - n) for n, s, span in zip(sizes, strides, spans, strict=True)
        ]
        half, rest = [w // 2 for w in wanted], [w - w // 2 for w in wanted]
        pads = half + rest if padding == b"SAME_UPPER" else rest + half
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    axes = tuple(range(2, 2 + rank))
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, axis=axes)
    steps = (slice(None, None, step) for step in (*strides, *dilations))
    windows = windows[:, :, *steps]
    rows = windows.shape[2]
    size = windows.itemsize * (windows.size // max(1, rows))
    step = max(1, _UNFOLDED_BYTES // max(1, size))
    for begin in range(0, rows, step):
        part = windows[:, :, begin : begin + step]
        batch, channels, *positions = part.shape[: 2 + rank]
        split = part.reshape(batch, groups, channels // groups, *positions, *kernel)
        taps = tuple(range(3 + rank, 3 + 2 * rank))
        moved = split.transpose(1, 2, *taps, 0, *range(3, 3 + rank))
        yield np.ascontiguousarray(moved).reshape(groups, channels // groups * math.prod(kernel), -1)


def _rounded(rows: Array, scale: Array, moments: Array) -> Array | None:
    """Return the codes of rows (groups, outputs, inputs) by scale (groups, outputs, 1); None if the moments have no inverse."""
    depth = rows.shape[-1]
    diagonal = np.arange(depth)
    mean = moments[:, diagonal, diagonal].mean(1, keepdims=True)
    damped = moments.copy()
    damped[:, diagonal, diagonal] += np.where(mean > 0, _DAMPING * mean, 1.0)
    try:
        factor = np.swapaxes(np.linalg.cholesky(np.linalg.inv(damped)), 1, 2)
    except np.linalg.LinAlgError:
        return None
    left, codes, errors = rows.copy(), np.empty_like(rows), np.empty_like(rows)
    for begin in range(0, depth, _BLOCK):
        end = min(begin + _BLOCK, depth)
        for k in range(begin, end):
            codes[..., k] = np.clip(np.rint(left[..., k] / scale[..., 0]), -_LIMIT, _LIMIT)
            errors[..., k] = (left[..., k] - codes[..., k] * scale[..., 0]) / factor[:, k, k, None]
            left[..., k + 1 : end] -= errors[..., k, None] * factor[:, k, None, k + 1 : end]
        left[..., end:] -= errors[..., begin:end] @ factor[:, begin:end, end:]
    return codes
