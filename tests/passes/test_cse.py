"""Equal nodes are computed once."""

from __future__ import annotations


def test_commuted(golden) -> None:
    golden(
        "cse",
        """
        input %x: float32[3]
        input %z: float32[3]
        %a: float32[3] = add(%x, %z)
        %b: float32[3] = add(%z, %x)
        %c: float32[3] = sub(%x, %z)
        %d: float32[3] = sub(%z, %x)
        %e: float32[3] = mul(%a, %c)
        %f: float32[3] = mul(%b, %d)
        output "e" = %e
        output "f" = %f
        """,
        """
        %a: float32[3] = add(%x, %z)
        %c: float32[3] = sub(%x, %z)
        %d: float32[3] = sub(%z, %x)
        %e: float32[3] = mul(%a, %c)
        %f: float32[3] = mul(%a, %d)
        """,
    )


def test_random_draws_stay(golden) -> None:
    golden(
        "cse",
        """
        input %x: float32[3]
        %a: float32[3] = rand(size=[3])
        %b: float32[3] = rand(size=[3])
        %c: float32[3] = mul(%a, 0.0)
        %d: float32[3] = mul(%b, 0.0)
        %y: float32[3] = add(%c, %d)
        output "y" = %y
        """,
        """
        %a: float32[3] = rand(size=[3])
        %b: float32[3] = rand(size=[3])
        %c: float32[3] = mul(%a, 0.0)
        %d: float32[3] = mul(%b, 0.0)
        %y: float32[3] = add(%c, %d)
        """,
    )
