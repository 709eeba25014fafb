"""Dead code elimination removes unused nodes."""

from __future__ import annotations


def test_nothing_reads_it(golden) -> None:
    golden(
        "dead_code",
        """
        input %x: float32[2, 3]
        weight %w: float32[3]
        weight %u: float32[3]
        %a: float32[2, 3] = mul(%x, %u)
        %y: float32[2, 3], %m: float32[2, 1], %r: float32[2, 1] = layer_norm(%x, %w, normalized_shape=[3])
        output "y" = %y
        """,
        """
        %y: float32[2, 3] = layer_norm(%x, %w, normalized_shape=[3])
        """,
    )


def test_a_middle_output_stays(golden) -> None:
    golden(
        "dead_code",
        """
        input %x: float32[2, 3]
        %y: float32[2, 3], %m: float32[2, 1], %r: float32[2, 1] = layer_norm(%x, normalized_shape=[3])
        output "r" = %r
        """,
        """
        %y: float32[2, 3], %m: float32[2, 1], %r: float32[2, 1] = layer_norm(%x, normalized_shape=[3])
        """,
    )
