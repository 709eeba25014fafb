"""Linear layers of one input."""

from __future__ import annotations


def test_query_key_value(golden) -> None:
    golden(
        "concat_linear",
        """
        input %x: float32[2, 5, 3]
        weight %w: float32[4, 3]
        weight %u: float32[2, 3]
        weight %a: float32[4]
        weight %b: float32[2]
        weight %o: float32[7, 3]
        %q: float32[2, 5, 4] = linear(%x, %w, %a)
        %k: float32[2, 5, 2] = linear(%x, %u, %b)
        %v: float32[2, 5, 7] = linear(%x, %o)
        %y: float32[2, 5, 4] = relu(%q)
        output "y" = %y
        output "k" = %k
        output "v" = %v
        """,
        """
        %cat: float32[6, 3] = cat(%w, %u, dim=0)
        %cat_1: float32[6] = cat(%a, %b, dim=0)
        %linear: float32[2, 5, 6] = linear(%x, %cat, %cat_1)
        %split: float32[2, 5, 4], %split_1: float32[2, 5, 2] = split(%linear, sizes=[4, 2], dim=2)
        %k: float32[2, 5, 2] = clone(%split_1)
        %v: float32[2, 5, 7] = linear(%x, %o)
        %y: float32[2, 5, 4] = relu(%split)
        """,
    )
