"""Products with weights and their epilogues."""

from __future__ import annotations


def test_matmul_bias_residual_gelu(golden) -> None:
    golden(
        "fuse_linear",
        """
        input %x: float32[2, 5, 3]
        input %r: float32[2, 5, 4]
        weight %w: float32[4, 3]
        weight %b: float32[4]
        %t: float32[3, 4] = permute(%w, dims=[1, 0])
        %c: float32[2, 5, 4] = matmul(%x, %t)
        %d: float32[2, 5, 4] = add(%b, %c)
        %e: float32[2, 5, 4] = add(%d, %r)
        %y: float32[2, 5, 4] = gelu(%e)
        output "y" = %y
        """,
        """
        %y: float32[2, 5, 4] = fused_linear(%x, %w, %b, %r, act="gelu")
        """,
    )


def test_addmm(golden) -> None:
    golden(
        "fuse_linear",
        """
        input %x: float32[2, 3]
        weight %w: float32[3, 4]
        weight %b: float32[1, 4]
        %c: float32[2, 4] = addmm(%b, %x, %w)
        %y: float32[2, 4] = tanh(%c)
        output "y" = %y
        """,
        """
        %view: float32[4] = view(%b, size=[4])
        %permute: float32[4, 3] = permute(%w, dims=[1, 0])
        %y: float32[2, 4] = fused_linear(%x, %permute, %view, act="tanh")
        """,
    )


def test_mm(golden) -> None:
    golden(
        "fuse_linear",
        """
        input %x: float32[2, 3]
        weight %w: float32[3, 4]
        %y: float32[2, 4] = mm(%x, %w)
        output "y" = %y
        """,
        """
        %permute: float32[4, 3] = permute(%w, dims=[1, 0])
        %y: float32[2, 4] = linear(%x, %permute)
        """,
    )


def test_products_of_values_stay(golden) -> None:
    golden(
        "fuse_linear",
        """
        input %x: float32[2, 3]
        input %w: float32[3, 4]
        weight %u: float32[5, 2]
        %c: float32[2, 4] = mm(%x, %w)
        %y: float32[5, 4] = matmul(%u, %c)
        output "y" = %y
        """,
        """
        %c: float32[2, 4] = mm(%x, %w)
        %y: float32[5, 4] = matmul(%u, %c)
        """,
    )


def test_scaled_addmm_stays(golden) -> None:
    golden(
        "fuse_linear",
        """
        input %x: float32[2, 3]
        weight %w: float32[3, 4]
        weight %b: float32[4]
        %y: float32[2, 4] = addmm(%b, %x, %w, beta=0.5)
        output "y" = %y
        """,
        """
        %y: float32[2, 4] = addmm(%b, %x, %w, beta=0.5)
        """,
    )
