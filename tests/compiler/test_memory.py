"""Placement in the arena: buffers that live at the same time do not overlap, and the end is free where libraries need workspaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.compiler.memory import place, place_low

Lives = Mapping[str, tuple[int, int, int]]
BUFFER = st.tuples(st.integers(0, 5000), st.integers(0, 12), st.integers(0, 12)).map(
    lambda b: (b[0], min(b[1:]), max(b[1:]))
)


def top(lives: Lives, offsets: Mapping[str, int], call: int) -> int:
    """Return the end of what lives during a call."""
    return max(
        (offsets[n] + size for n, (size, first, last) in lives.items() if first <= call <= last), default=0
    )


@pytest.mark.parametrize(("placed", "alignment"), [(place, 64), (place_low, 256)])
@given(buffers=st.lists(BUFFER, max_size=14))
def test_buffers_that_live_at_the_same_time_do_not_overlap(
    placed: Callable[[Lives], tuple[dict[str, int], int]], alignment: int, buffers: list[tuple[int, int, int]]
) -> None:
    lives = {f"b{i}": buffer for i, buffer in enumerate(buffers)}
    offsets, peak = placed(lives)
    assert set(offsets) == set(lives)
    for name, (size, first, last) in lives.items():
        assert offsets[name] % alignment == 0
        assert 0 <= offsets[name] <= peak - size
        for other, (length, begin, end) in lives.items():
            apart = offsets[name] + size <= offsets[other] or offsets[other] + length <= offsets[name]
            assert name == other or last < begin or end < first or apart or not size * length


@given(buffers=st.lists(BUFFER, max_size=14))
def test_a_free_end_costs_no_memory(buffers: list[tuple[int, int, int]]) -> None:
    lives = {f"b{i}": buffer for i, buffer in enumerate(buffers)}
    assert place_low(lives)[1] <= place(lives, 256)[1]


def test_what_a_large_buffer_leaves_is_at_the_end() -> None:
    """The feed-forward part of a transformer: the product after the large buffers needs a workspace of two thirds of the arena."""
    lives = {"x": (1536, 0, 3), "wide": (12288, 1, 2), "gelu": (6144, 2, 3), "y": (1536, 3, 4)}
    offsets, peak = place_low(lives)
    assert peak == 1536 + 12288 + 6144
    assert top(lives, offsets, 3) == 1536 + 6144 + 1536
    assert top(lives, place(lives)[0], 3) > 2 * top(lives, offsets, 3) - 256
