"""Written-out activations."""

from __future__ import annotations

import pytest

from xpuruntime import ir
from xpuruntime.passes import run_passes
from xpuruntime.passes._lib import pattern_rules


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


def test_patterns_are_searched_only_where_all_their_parts_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most networks have the last op of every pattern, a product, and nothing else of most of them."""
    searched = []
    find = pattern_rules.find

    def recorded(graph: ir.Graph, pattern: ir.match.Op, *rest: object) -> object:
        searched.append(pattern)
        return find(graph, pattern, *rest)

    monkeypatch.setattr(pattern_rules, "find", recorded)

    def ops_after(gated: bool) -> set[str]:
        b = ir.GraphBuilder("g")
        x, z = b.input("x", "float32[3]"), b.input("z", "float32[3]")
        b.output("y", b.mul(b.mul(x, b.sigmoid(x)) if gated else b.mul(x, x), b.neg(z)))
        return {n.op for n in run_passes(b.build(), ["recognize_activation"]).nodes}

    assert ops_after(gated=False) == {"mul", "neg"}
    assert not searched
    assert ops_after(gated=True) == {"silu_mul", "neg"}
    assert searched
