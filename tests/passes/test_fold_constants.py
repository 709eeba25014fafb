"""Constants fold, weights stay."""

from __future__ import annotations


def test_shape_arithmetic(golden) -> None:
    golden(
        "fold_constants",
        """
        input %x: float32[2, 3]
        %a: int64[2] = constant(value=int64[2]{2, 3})
        %b: int64[2] = mul(%a, 2)
        %c: int64[1] = slice(%b, dim=0, end=1)
        %d: float32[1] = cast(%c, dtype=float32)
        %y: float32[2, 3] = add(%x, %d)
        output "y" = %y
        """,
        """
        %d: float32[1] = constant(value=float32[1]{4.0})
        %y: float32[2, 3] = add(%x, %d)
        """,
    )


def test_weights_stay(golden) -> None:
    golden(
        "fold_constants",
        """
        input %x: float32[2, 3]
        weight %w: float32[3]
        %a: float32[3] = neg(%w)
        %y: float32[2, 3] = add(%x, %a)
        output "y" = %y
        """,
        """
        %a: float32[3] = neg(%w)
        %y: float32[2, 3] = add(%x, %a)
        """,
    )


def test_a_broadcast_number_does_not_grow(golden) -> None:
    golden(
        "fold_constants",
        """
        input %x: float32[9, 16]
        %a: float32[] = constant(value=float32[]{2.0})
        %b: float32[9, 16] = expand(%a, size=[9, 16])
        %y: float32[9, 16] = add(%x, %b)
        output "y" = %y
        """,
        """
        %a: float32[] = constant(value=float32[]{2.0})
        %b: float32[9, 16] = expand(%a, size=[9, 16])
        %y: float32[9, 16] = add(%x, %b)
        """,
    )


def test_several_outputs(golden) -> None:
    golden(
        "fold_constants",
        """
        input %x: float32[2]
        %a: float32[4] = constant(value=float32[4]{2.0, 1.0, 4.0, 3.0})
        %v: float32[2], %i: int64[2] = topk(%a, k=2)
        %y: float32[2] = add(%x, %v)
        output "y" = %y
        output "i" = %i
        """,
        """
        %v_1: float32[2] = constant(value=float32[2]{4.0, 3.0})
        %i_1: int64[2] = constant(value=int64[2]{2, 3})
        %y: float32[2] = add(%x, %v_1)
        """,
    )
