"""Clustering of labeled items into connected, convex groups of one label, so that the groups have an execution order.

A group grows only while it stays convex: no path leaves it and returns. So groups never depend on each other in a cycle.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

__all__ = ["cluster", "hulls"]


def cluster(before: Sequence[Collection[int]], labels: Sequence[object]) -> list[list[int]]:
    """Return groups of items in an execution order. Items in a group keep their order.

    before: per item the items that it reads, all of which precede it.
    labels: only adjacent items of equal label are joined.
    The algorithm is greedy, in the order of the items: an item joins every group that it reads from and may join.
    """
    groups = _RegionGroups()
    for item, reads in enumerate(before):
        group = groups.add(item, {groups.of[r] for r in reads}, labels[item])
        for other in sorted(groups.before[group]):
            if groups.label[other] == labels[item] and not groups.joins_form_cycle(other, group):
                groups.join(group, other)
    return groups.ordered()


class _RegionGroups:
    """Groups with their predecessors and successors."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.items: dict[int, list[int]] = {}
        self.label: dict[int, object] = {}
        self.before: dict[int, set[int]] = {}
        self.after: dict[int, set[int]] = {}

    def add(self, item: int, before: set[int], label: object) -> int:
        """Add a group of one item without readers."""
        self.of[item] = item
        self.items[item], self.label[item] = [item], label
        self.before[item], self.after[item] = set(before), set()
        for group in before:
            self.after[group].add(item)
        return item

    def joins_form_cycle(self, first: int, second: int) -> bool:
        """Return True if a third group is between the two. Joined, they would form a cycle with it."""
        return self._between(first, second) or self._between(second, first)

    def _between(self, source: int, sink: int) -> bool:
        todo = [g for g in self.before[sink] if g != source]
        seen = set(todo)
        while todo:
            group = todo.pop()
            if source in self.before[group]:
                return True
            new = self.before[group] - seen
            seen |= new
            todo += new
        return False

    def join(self, target: int, absorbed: int) -> None:
        """Move the second group's items into the first."""
        self.of.update(dict.fromkeys(self.items[absorbed], target))
        self.items[target] += self.items.pop(absorbed)
        for edges, reverse_edges in ((self.before, self.after), (self.after, self.before)):
            for group in edges.pop(absorbed):
                reverse_edges[group].discard(absorbed)
                if group != target:
                    reverse_edges[group].add(target)
                    edges[target].add(group)
        del self.label[absorbed]

    def ordered(self) -> list[list[int]]:
        """Return the groups in topological order; among ready groups the one with the smallest item comes first."""
        open_predecessors = {g: len(b) for g, b in self.before.items()}
        ready = [(min(self.items[g]), g) for g, n in open_predecessors.items() if not n]
        heapq.heapify(ready)
        result = []
        while ready:
            _, group = heapq.heappop(ready)
            result.append(sorted(self.items[group]))
            for later in self.after[group]:
                open_predecessors[later] -= 1
                if not open_predecessors[later]:
                    heapq.heappush(ready, (min(self.items[later]), later))
        return result


def hulls(before: Sequence[Collection[int]], together: Iterable[Collection[int]]) -> list[list[int]]:
    """Return the smallest disjoint convex sets that contain each of ``together``."""
    behind = [0] * len(before)  # bit masks of the items that an item depends on, with itself
    for item, reads in enumerate(before):
        behind[item] = 1 << item
        for read in reads:
            behind[item] |= behind[read]
    ahead = [1 << i for i in range(len(before))]
    for item in reversed(range(len(before))):
        for read in before[item]:
            ahead[read] |= ahead[item]
    masks: list[int] = []
    for group in together:
        hull = _hull(sum(1 << i for i in set(group)), behind, ahead)
        while touching := [f for f in masks if f & hull]:
            masks = [f for f in masks if not f & hull]
            for other in touching:
                hull |= other
            hull = _hull(hull, behind, ahead)
        masks.append(hull)
    return [_bits(f) for f in masks]


def _hull(group: int, behind: Sequence[int], ahead: Sequence[int]) -> int:
    up = down = 0
    for item in _bits(group):
        up |= behind[item]
        down |= ahead[item]
    return group | (up & down)


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]
