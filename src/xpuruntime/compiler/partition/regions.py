"""Clustering: labeled items become connected, convex groups of one label, so that the groups have an order of execution.

A group may grow only while no path leaves it and comes back (it is convex), so groups never wait for one another in a ring.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

__all__ = ["cluster", "hulls"]


def cluster(before: Sequence[Collection[int]], labels: Sequence[object]) -> list[list[int]]:
    """Return groups of items in an order in which they can run; items within a group keep their order.

    before: for each item the items that it reads, all of them smaller. labels: only neighbors of equal label are joined.
    Greedy, in the items' order: an item joins every group that it reads from and may join.
    """
    groups = _RegionGroups()
    for item, reads in enumerate(before):
        own = groups.add(item, {groups.of[r] for r in reads}, labels[item])
        for other in sorted(groups.before[own]):
            if groups.label[other] == labels[item] and not groups.apart(other, own):
                groups.join(own, other)
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

    def apart(self, first: int, second: int) -> bool:
        """Return True if a third group is between the two; joined, they would form a cycle with it."""
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

    def join(self, target: int, gone: int) -> None:
        """Move the second group's items into the first."""
        self.of.update(dict.fromkeys(self.items[gone], target))
        self.items[target] += self.items.pop(gone)
        for here, there in ((self.before, self.after), (self.after, self.before)):
            for group in here.pop(gone):
                there[group].discard(gone)
                if group != target:
                    there[group].add(target)
                    here[target].add(group)
        del self.label[gone]

    def ordered(self) -> list[list[int]]:
        """Return the groups in topological order; among ready groups the one with the smallest item comes first."""
        waits = {g: len(b) for g, b in self.before.items()}
        ready = [(min(self.items[g]), g) for g, n in waits.items() if not n]
        heapq.heapify(ready)
        result = []
        while ready:
            _, group = heapq.heappop(ready)
            result.append(sorted(self.items[group]))
            for later in self.after[group]:
                waits[later] -= 1
                if not waits[later]:
                    heapq.heappush(ready, (min(self.items[later]), later))
        return result


def hulls(before: Sequence[Collection[int]], together: Iterable[Collection[int]]) -> list[list[int]]:
    """Return the smallest disjoint convex sets that contain each of ``together``."""
    behind = [0] * len(before)  # items that an item waits for, itself included, as bits
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
        whole = _hull(sum(1 << i for i in set(group)), behind, ahead)
        while touching := [f for f in masks if f & whole]:
            masks = [f for f in masks if not f & whole]
            for other in touching:
                whole |= other
            whole = _hull(whole, behind, ahead)
        masks.append(whole)
    return [_bits(f) for f in masks]


def _hull(group: int, behind: Sequence[int], ahead: Sequence[int]) -> int:
    up = down = 0
    for item in _bits(group):
        up |= behind[item]
        down |= ahead[item]
    return group | (up & down)


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]
