"""Written-out norms."""

from __future__ import annotations

import numpy as np
import pytest
from support.native import check


def test_rms_norm(golden) -> None:
    golden(
        "recognize_norm",
        """
        input %x: float32[2, 5, 4]
        weight %w: float32[4]
        %a: float32[2, 5, 4] = mul(%x, %x)
        %b: float32[2, 5, 1] = mean(%a, dim=[2], keepdim=true)
        %c: float32[2, 5, 1] = add(%b, 1e-05)
        %d: float32[2, 5, 1] = rsqrt(%c)
        %e: float32[2, 5, 4] = mul(%x, %d)
        %y: float32[2, 5, 4] = mul(%w, %e)
        output "y" = %y
        """,
        """
        %y: float32[2, 5, 4] = rms_norm(%x, %w, normalized_shape=[4], eps=1e-05)
        """,
    )


def test_layer_norm(golden) -> None:
    golden(
        "recognize_norm",
        """
        input %x: float32[2, 5, 4]
        weight %w: float32[4]
        weight %b: float32[4]
        %m: float32[2, 5, 1] = mean(%x, dim=[2], keepdim=true)
        %d: float32[2, 5, 4] = sub(%x, %m)
        %s: float32[2, 5, 4] = pow(%d, 2.0)
        %v: float32[2, 5, 1] = mean(%s, dim=[2], keepdim=true)
        %e: float32[2, 5, 1] = add(%v, 1e-12)
        %r: float32[2, 5, 1] = sqrt(%e)
        %n: float32[2, 5, 4] = div(%d, %r)
        %o: float32[2, 5, 4] = mul(%n, %w)
        %y: float32[2, 5, 4] = add(%o, %b)
        output "y" = %y
        """,
        """
        %y: float32[2, 5, 4] = layer_norm(%x, %w, %b, normalized_shape=[4], eps=1e-12)
        """,
    )


def test_softmax(golden) -> None:
    golden(
        "recognize_norm",
        """
        input %x: float32[2, 4]
        %m: float32[2, 1] = amax(%x, dim=[1], keepdim=true)
        %d: float32[2, 4] = sub(%x, %m)
        %e: float32[2, 4] = exp(%d)
        %s: float32[2, 1] = sum(%e, dim=[1], keepdim=true)
        %y: float32[2, 4] = div(%e, %s)
        output "y" = %y
        """,
        """
        %y: float32[2, 4] = softmax(%x, dim=1)
        """,
    )


def test_another_dim_stays(golden) -> None:
    golden(
        "recognize_norm",
        """
        input %x: float32[2, 5, 4]
        %a: float32[2, 5, 4] = mul(%x, %x)
        %b: float32[2, 1, 4] = mean(%a, dim=[1], keepdim=true)
        %c: float32[2, 1, 4] = add(%b, 1e-05)
        %d: float32[2, 1, 4] = rsqrt(%c)
        %y: float32[2, 5, 4] = mul(%x, %d)
        output "y" = %y
        """,
        """
        %a: float32[2, 5, 4] = mul(%x, %x)
        %b: float32[2, 1, 4] = mean(%a, dim=[1], keepdim=true)
        %c: float32[2, 1, 4] = add(%b, 1e-05)
        %d: float32[2, 1, 4] = rsqrt(%c)
        %y: float32[2, 5, 4] = mul(%x, %d)
        """,
    )


@pytest.mark.parametrize(("over", "scale"), [("[4]", "[1]"), ("[4]", "[]"), ("[3, 4]", "[4]")])
def test_a_scale_of_fewer_elements_stays_outside(golden, over: str, scale: str) -> None:
    text = f"""
        input %x: float32[2, 3, 4]
        input %w: float32{scale}
        %a: float32[2, 3, 4] = layer_norm(%x, normalized_shape={over})
        %y: float32[2, 3, 4] = mul(%a, %w)
        output "y" = %y
        """
    graph = golden("recognize_norm", text, "\n".join(text.splitlines()[3:5]))
    rng = np.random.default_rng(0)
    check(graph, {v.name: rng.standard_normal(v.spec.shape).astype(np.float32) for v in graph.inputs})


def test_a_scale_of_another_shape_stays_outside(golden) -> None:
    golden(
        "recognize_norm",
        """
        input %x: float32[2, 4]
        input %w: float32[2, 4]
        %a: float32[2, 4] = rms_norm(%x, normalized_shape=[4])
        %y: float32[2, 4] = mul(%a, %w)
        output "y" = %y
        """,
        """
        %a: float32[2, 4] = rms_norm(%x, normalized_shape=[4])
        %y: float32[2, 4] = mul(%a, %w)
        """,
    )
