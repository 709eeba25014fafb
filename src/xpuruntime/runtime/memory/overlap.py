"""Check for overlapping arrays: an engine reads inputs while it writes outputs, so outputs must not share memory with other arrays."""

from __future__ import annotations

from collections.abc import Mapping

from ...protocols import Array

__all__ = ["first_overlap"]


def first_overlap(inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> tuple[str, str] | None:
    """Return the names of an output and of an array that it overlaps; None if every output has memory of its own.

    By the first and the last byte of each: two arrays that take turns in one block overlap.
    """
    ranges = [(*_bounds(a), False, f"input {n!r}") for n, a in inputs.items() if a.size]
    ranges += [(*_bounds(a), True, f"output {n!r}") for n, a in outputs.items() if a.size]
    ranges.sort(key=lambda r: r[0])
    reach = {False: (0, ""), True: (0, "")}  # of inputs and of outputs so far: the end, and whose it is
    for begin, end, is_output, name in ranges:
        for others in (True, False):
            if (others or is_output) and reach[others][0] > begin:
                return (name, reach[others][1]) if is_output else (reach[others][1], name)
        reach[is_output] = max(reach[is_output], (end, name))
    return None


def _bounds(array: Array) -> tuple[int, int]:
    low = high = int(array.__array_interface__["data"][0])
    for size, stride in zip(array.shape, array.strides, strict=True):
        low, high = low + min(0, (size - 1) * stride), high + max(0, (size - 1) * stride)
    return low, high + array.itemsize
