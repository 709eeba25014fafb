"""Check for overlapping arrays: an engine reads inputs while it writes outputs, so outputs must not share memory with other arrays."""

from __future__ import annotations

from collections.abc import Mapping

from ...protocols import Array

__all__ = ["first_overlap"]


def first_overlap(inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> tuple[str, str] | None:
    """Return the names of an output and of an array that it overlaps; None if no output overlaps another array.

    The check compares the first and last byte of each array, so two interleaved views of one block overlap.
    """
    ranges = [(*_bounds(a), False, f"input {n!r}") for n, a in inputs.items() if a.size]
    ranges += [(*_bounds(a), True, f"output {n!r}") for n, a in outputs.items() if a.size]
    ranges.sort(key=lambda r: r[0])
    last = {
        False: (0, ""),
        True: (0, ""),
    }  # of inputs (False) and outputs (True) so far: the largest end, and its array
    for begin, end, is_output, name in ranges:
        for of_outputs in (True, False):
            if (of_outputs or is_output) and last[of_outputs][0] > begin:
                return (name, last[of_outputs][1]) if is_output else (last[of_outputs][1], name)
        last[is_output] = max(last[is_output], (end, name))
    return None


def _bounds(array: Array) -> tuple[int, int]:
    low = high = int(array.__array_interface__["data"][0])
    for size, stride in zip(array.shape, array.strides, strict=True):
        low, high = low + min(0, (size - 1) * stride), high + max(0, (size - 1) * stride)
    return low, high + array.itemsize
