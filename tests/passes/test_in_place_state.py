"""States are updated in place."""

from __future__ import annotations


def test_readers_first(golden) -> None:
    golden(
        "in_place_state",
        """
        input %x: float32[1, 4]
        input %i: int64[1]
        state %cache: float32[8, 4] next=%new
        %j: int64[1] = mul(%i, 0)
        %new: float32[8, 4] = index_copy(%cache, %j, %x, dim=0)
        %old: float32[8, 4] = neg(%cache)
        %y: float32[8, 4] = add(%old, %new)
        output "y" = %y
        """,
        """
        %j: int64[1] = mul(%i, 0)
        %old: float32[8, 4] = neg(%cache)
        %new: float32[8, 4] = index_copy(%cache, %j, %x, dim=0)
        %y: float32[8, 4] = add(%old, %new)
        """,
    )


def test_a_reader_that_needs_the_update(golden) -> None:
    golden(
        "in_place_state",
        """
        input %x: float32[1, 4]
        state %cache: float32[8, 4] next=%new
        %new: float32[8, 4] = slice_scatter(%cache, %x, dim=0, end=1)
        %s: float32[8, 4] = mul(%cache, %new)
        output "y" = %s
        """,
        """
        %new: float32[8, 4] = slice_scatter(%cache, %x, dim=0, end=1)
        %s: float32[8, 4] = mul(%cache, %new)
        """,
    )
