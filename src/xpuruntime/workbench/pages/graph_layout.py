"""Positions of a graph's nodes: layers from top to bottom, wrapped into strips so that a deep graph fits a screen."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["layers_of", "positions"]

CELL_WIDTH, CELL_HEIGHT = 190, 46  # as drawn by graph.js
_ASPECT = 2.0  # width / height of the whole graph
_GAP = 0.6  # between strips, in cells
_WIDEST = 40  # nodes per row; a wider layer takes several rows


def layers_of(reads: Sequence[Sequence[int]]) -> list[int]:
    """Return the length of the longest path to each node. An edge that closes a cycle counts for nothing."""
    readers: list[list[int]] = [[] for _ in reads]
    open_inputs = [len(r) for r in reads]
    for node, inputs in enumerate(reads):
        for i in inputs:
            readers[i].append(node)
    layers = [0] * len(reads)
    done = [False] * len(reads)
    ready = [n for n, count in enumerate(open_inputs) if not count][::-1]
    pending = iter(range(len(reads)))
    while True:
        while ready:
            node = ready.pop()
            if done[node]:
                continue
            done[node] = True
            for reader in readers[node]:
                layers[reader] = max(layers[reader], layers[node] + 1) if not done[reader] else layers[reader]
                open_inputs[reader] -= 1
                if open_inputs[reader] == 0:
                    ready.append(reader)
        rest = next((n for n in pending if not done[n]), None)
        if rest is None:
            return layers
        ready.append(rest)


def positions(reads: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """Return the center of each node in cells (``CELL_WIDTH``, ``CELL_HEIGHT``), given the nodes that it reads.

    A graph without edges is a grid in the order of its nodes.
    """
    if not any(reads):
        return _grid(len(reads))
    layers = layers_of(reads)
    members: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for node, layer in enumerate(layers):
        members[layer].append(node)
    column = [0.0] * len(reads)
    rows: list[list[int]] = []
    for layer_nodes in members:
        center = {n: sum(column[i] for i in reads[n]) / max(len(reads[n]), 1) for n in layer_nodes}
        layer_nodes.sort(key=center.__getitem__)
        count = -(-len(layer_nodes) // _WIDEST)
        for first in range(count):
            row = layer_nodes[first::count]  # every row spans the whole layer
            rows.append(row)
            for k, n in enumerate(row):
                column[n] = k - (len(row) - 1) / 2
    widths = [len(row) for row in rows]
    height = _strip_height(widths)
    points = [(0.0, 0.0)] * len(reads)
    left = 0.0
    for first in range(0, len(rows), height):
        width = max(widths[first : first + height])
        for k, row in enumerate(rows[first : first + height]):
            for n in row:
                points[n] = (left + width / 2 + column[n], k + 0.5)
        left += width + _GAP
    return points


def _strip_height(widths: Sequence[int]) -> int:
    """Return the number of layers per strip with which the graph is closest to the shape of a screen."""

    def distance(height: int) -> float:
        width = sum(max(widths[i : i + height]) + _GAP for i in range(0, len(widths), height))
        aspect = width * CELL_WIDTH / (height * CELL_HEIGHT)
        return max(aspect / _ASPECT, _ASPECT / aspect)

    depth = len(widths)
    heights = dict.fromkeys(-(-depth // strips) for strips in range(1, min(depth, 200) + 1))
    return min(heights, key=distance)


def _grid(count: int) -> list[tuple[float, float]]:
    columns = max(1, round((count * _ASPECT * CELL_HEIGHT / CELL_WIDTH) ** 0.5))
    return [(i % columns + 0.5, i // columns + 0.5) for i in range(count)]
