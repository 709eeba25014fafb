"""Written-out activations."""

from __future__ import annotations


def test_silu_and_gate(golden) -> None:
    golden(
        "recognize_activation",
        """
        input %x: float32[3]
        input %z: float32[3]
        %u: float32[3] = neg(%z)
        %a: float32[3] = sigmoid(%x)
        %b: float32[3] = mul(%a, %x)
        %y: float32[3] = mul(%b, %u)
        output "y" = %y
        """,
        """
        %u: float32[3] = neg(%z)
        %y: float32[3] = silu_mul(%x, %u)
        """,
    )


def test_gelu(golden) -> None:
    golden(
        "recognize_activation",
        """
        input %x: float32[3]
        %a: float32[3] = div(%x, 1.4142135)
        %b: float32[3] = erf(%a)
        %c: float32[3] = add(%b, 1.0)
        %d: float32[3] = mul(%x, %c)
        %y: float32[3] = mul(%d, 0.5)
        output "y" = %y
        """,
        """
        %y: float32[3] = gelu(%x)
        """,
    )


def test_gelu_half_first(golden) -> None:
    golden(
        "recognize_activation",
        """
        input %x: float32[3]
        %h: float32[3] = mul(%x, 0.5)
        %a: float32[3] = mul(%x, 0.70710677)
        %b: float32[3] = erf(%a)
        %c: float32[3] = add(%b, 1.0)
        %y: float32[3] = mul(%h, %c)
        output "y" = %y
        """,
        """
        %y: float32[3] = gelu(%x)
        """,
    )


def test_gelu_tanh(golden) -> None:
    golden(
        "recognize_activation",
        """
        input %x: float32[3]
        %p: float32[3] = pow(%x, 3.0)
        %q: float32[3] = mul(%p, 0.044715)
        %r: float32[3] = add(%x, %q)
        %s: float32[3] = mul(%r, 0.7978845608)
        %t: float32[3] = tanh(%s)
        %u: float32[3] = add(%t, 1.0)
        %h: float32[3] = mul(%x, 0.5)
        %y: float32[3] = mul(%h, %u)
        output "y" = %y
        """,
        """
        %y: float32[3] = gelu(%x, approximate="tanh")
        """,
    )


def test_hardswish(golden) -> None:
    golden(
        "recognize_activation",
        """
        input %x: float32[3]
        %a: float32[3] = add(%x, 3.0)
        %b: float32[3] = clamp(%a, 0.0, 6.0)
        %c: float32[3] = mul(%x, %b)
        %d: float32[3] = div(%c, 6.0)
        %e: float32[3] = hardsigmoid(%d)
        %y: float32[3] = mul(%d, %e)
        output "y" = %y
        """,
        """
        %d: float32[3] = hardswish(%x)
        %y: float32[3] = hardswish(%d)
        """,
    )


def test_mish(golden) -> None:
    golden(
        "recognize_activation",
        """
        input %x: float32[3]
        %a: float32[3] = softplus(%x)
        %b: float32[3] = tanh(%a)
        %y: float32[3] = mul(%x, %b)
        output "y" = %y
        """,
        """
        %y: float32[3] = mish(%x)
        """,
    )


def test_other_numbers_are_no_gelu(golden) -> None:
    golden(
        "recognize_activation",
        """
        input %x: float32[3]
        %a: float32[3] = div(%x, 1.5)
        %b: float32[3] = erf(%a)
        %c: float32[3] = add(%b, 1.0)
        %d: float32[3] = mul(%x, %c)
        %y: float32[3] = mul(%d, 0.5)
        output "y" = %y
        """,
        """
        %a: float32[3] = div(%x, 1.5)
        %b: float32[3] = erf(%a)
        %c: float32[3] = add(%b, 1.0)
        %d: float32[3] = mul(%x, %c)
        %y: float32[3] = mul(%d, 0.5)
        """,
    )


def test_a_gate_that_broadcasts_stays(golden) -> None:
    golden(
        "recognize_activation",
        """
        input %x: float32[2, 3]
        input %z: float32[2, 1]
        %u: float32[2, 1] = sigmoid(%z)
        %a: float32[2, 3] = silu(%x)
        %y: float32[2, 3] = mul(%a, %u)
        output "y" = %y
        """,
        """
        %u: float32[2, 1] = sigmoid(%z)
        %a: float32[2, 3] = silu(%x)
        %y: float32[2, 3] = mul(%a, %u)
        """,
    )
