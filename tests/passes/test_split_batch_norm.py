"""Batch norms that no layer takes."""

from __future__ import annotations


def test_after_something_else(golden) -> None:
    golden(
        "split_batch_norm",
        """
        input %x: float32[1, 4, 6, 6]
        weight %g: float32[4]
        weight %h: float32[4]
        weight %m: float32[4]
        weight %v: float32[4]
        %v2: float32[4] = mul(%v, %v)
        %y: float32[1, 4, 6, 6] = batch_norm(%x, %g, %h, %m, %v2)
        output "y" = %y
        """,
        """
        %v2: float32[4] = mul(%v, %v)
        %bn_var: float32[4] = add(%v2, 1e-05)
        %bn_rstd: float32[4] = rsqrt(%bn_var)
        %bn_scale: float32[4] = mul(%g, %bn_rstd)
        %bn_shift: float32[4] = mul(%m, %bn_scale)
        %bn_shift_1: float32[4] = sub(%h, %bn_shift)
        %view: float32[1, 4, 1, 1] = view(%bn_scale, size=[1, 4, 1, 1])
        %view_1: float32[1, 4, 1, 1] = view(%bn_shift_1, size=[1, 4, 1, 1])
        %mul: float32[1, 4, 6, 6] = mul(%x, %view)
        %y: float32[1, 4, 6, 6] = add(%mul, %view_1)
        """,
    )


def test_convolution_with_two_readers(golden) -> None:
    golden(
        "split_batch_norm",
        """
        input %x: float32[1, 3, 4]
        weight %w: float32[2, 3, 1]
        weight %m: float32[2]
        weight %v: float32[2]
        %v2: float32[2] = mul(%v, %v)
        %c: float32[1, 2, 4] = convolution(%x, %w, stride=[1], padding=[0], dilation=[1])
        %y: float32[1, 2, 4] = batch_norm(%c, none, none, %m, %v2)
        %z: float32[1, 2, 4] = neg(%c)
        output "y" = %y
        output "z" = %z
        """,
        """
        %v2: float32[2] = mul(%v, %v)
        %c: float32[1, 2, 4] = convolution(%x, %w, stride=[1], padding=[0], dilation=[1])
        %bn_var: float32[2] = add(%v2, 1e-05)
        %bn_rstd: float32[2] = rsqrt(%bn_var)
        %bn_shift: float32[2] = mul(%m, %bn_rstd)
        %neg: float32[2] = neg(%bn_shift)
        %view: float32[1, 2, 1] = view(%bn_rstd, size=[1, 2, 1])
        %view_1: float32[1, 2, 1] = view(%neg, size=[1, 2, 1])
        %mul: float32[1, 2, 4] = mul(%c, %view)
        %y: float32[1, 2, 4] = add(%mul, %view_1)
        %z: float32[1, 2, 4] = neg(%c)
        """,
    )
