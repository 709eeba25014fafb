"""Products over flattened batch dims."""

from __future__ import annotations


def test_addmm_between_views(golden) -> None:
    golden(
        "unflatten",
        """
        input %x: float32[2, 5, 3]
        weight %w: float32[3, 4]
        weight %b: float32[4]
        %a: float32[10, 3] = view(%x, size=[10, 3])
        %c: float32[10, 4] = addmm(%b, %a, %w)
        %d: float32[2, 5, 4] = view(%c, size=[2, 5, 4])
        %y: float32[2, 5, 4] = relu(%d)
        output "y" = %y
        """,
        """
        %matmul: float32[2, 5, 4] = matmul(%x, %w)
        %d: float32[2, 5, 4] = add(%matmul, %b)
        %y: float32[2, 5, 4] = relu(%d)
        """,
    )


def test_linear_and_mm(golden) -> None:
    golden(
        "unflatten",
        """
        input %x: float32[2, 5, 3]
        weight %w: float32[4, 3]
        weight %u: float32[4, 3]
        %a: float32[10, 3] = view(%x, size=[10, 3])
        %c: float32[10, 4] = linear(%a, %w)
        %d: float32[2, 5, 4] = view(%c, size=[2, 5, 4])
        %e: float32[10, 4] = view(%d, size=[10, 4])
        %f: float32[10, 3] = mm(%e, %u)
        %y: float32[2, 5, 3] = view(%f, size=[2, 5, 3])
        output "y" = %y
        """,
        """
        %d: float32[2, 5, 4] = linear(%x, %w)
        %y: float32[2, 5, 3] = matmul(%d, %u)
        """,
    )


def test_bmm_of_heads(golden) -> None:
    golden(
        "unflatten",
        """
        input %q: float32[2, 3, 5, 4]
        input %k: float32[2, 3, 4, 6]
        %a: float32[6, 5, 4] = view(%q, size=[6, 5, 4])
        %b: float32[6, 4, 6] = view(%k, size=[6, 4, 6])
        %c: float32[6, 5, 6] = bmm(%a, %b)
        %y: float32[2, 3, 5, 6] = view(%c, size=[2, 3, 5, 6])
        output "y" = %y
        """,
        """
        %y: float32[2, 3, 5, 6] = matmul(%q, %k)
        """,
    )


def test_a_view_that_mixes_stays(golden) -> None:
    golden(
        "unflatten",
        """
        input %x: float32[2, 6, 2]
        weight %w: float32[3, 4]
        %a: float32[8, 3] = view(%x, size=[8, 3])
        %c: float32[8, 4] = mm(%a, %w)
        %y: float32[2, 4, 4] = view(%c, size=[2, 4, 4])
        output "y" = %y
        """,
        """
        %a: float32[8, 3] = view(%x, size=[8, 3])
        %c: float32[8, 4] = mm(%a, %w)
        %y: float32[2, 4, 4] = view(%c, size=[2, 4, 4])
        """,
    )
