"""Batch norms go into weights."""

from __future__ import annotations


def test_after_convolution(golden) -> None:
    golden(
        "fold_batch_norm",
        """
        input %x: float32[1, 3, 8, 8]
        weight %w: float32[4, 3, 3, 3]
        weight %g: float32[4]
        weight %h: float32[4]
        weight %m: float32[4]
        weight %v: float32[4]
        %v2: float32[4] = mul(%v, %v)
        %c: float32[1, 4, 6, 6] = convolution(%x, %w, stride=[1, 1], padding=[0, 0], dilation=[1, 1])
        %y: float32[1, 4, 6, 6] = batch_norm(%c, %g, %h, %m, %v2, eps=0.001)
        output "y" = %y
        """,
        """
        %v2: float32[4] = mul(%v, %v)
        %bn_var: float32[4] = add(%v2, 0.001)
        %bn_rstd: float32[4] = rsqrt(%bn_var)
        %bn_scale: float32[4] = mul(%g, %bn_rstd)
        %view: float32[4, 1, 1, 1] = view(%bn_scale, size=[4, 1, 1, 1])
        %bn_weight: float32[4, 3, 3, 3] = mul(%w, %view)
        %neg: float32[4] = neg(%m)
        %bn_bias: float32[4] = mul(%neg, %bn_scale)
        %bn_bias_1: float32[4] = add(%bn_bias, %h)
        %y: float32[1, 4, 6, 6] = convolution(%x, %bn_weight, %bn_bias_1, stride=[1, 1], padding=[0, 0], dilation=[1, 1])
        """,
    )


def test_after_transposed_groups_with_bias(golden) -> None:
    golden(
        "fold_batch_norm",
        """
        input %x: float32[1, 4, 5, 5]
        weight %w: float32[4, 3, 2, 2]
        weight %b: float32[6]
        weight %m: float32[6]
        weight %v: float32[6]
        %v2: float32[6] = mul(%v, %v)
        %c: float32[1, 6, 6, 6] = convolution(%x, %w, %b, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=2, transposed=true)
        %y: float32[1, 6, 6, 6] = batch_norm(%c, none, none, %m, %v2)
        output "y" = %y
        """,
        """
        %v2: float32[6] = mul(%v, %v)
        %bn_var: float32[6] = add(%v2, 1e-05)
        %bn_rstd: float32[6] = rsqrt(%bn_var)
        %view: float32[2, 2, 3, 2, 2] = view(%w, size=[2, 2, 3, 2, 2])
        %view_1: float32[2, 1, 3, 1, 1] = view(%bn_rstd, size=[2, 1, 3, 1, 1])
        %bn_weight: float32[2, 2, 3, 2, 2] = mul(%view, %view_1)
        %view_2: float32[4, 3, 2, 2] = view(%bn_weight, size=[4, 3, 2, 2])
        %sub: float32[6] = sub(%b, %m)
        %bn_bias: float32[6] = mul(%sub, %bn_rstd)
        %y: float32[1, 6, 6, 6] = convolution(%x, %view_2, %bn_bias, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=2, transposed=true)
        """,
    )


def test_after_linear(golden) -> None:
    golden(
        "fold_batch_norm",
        """
        input %x: float32[2, 3]
        weight %w: float32[4, 3]
        weight %b: float32[4]
        weight %g: float32[4]
        weight %h: float32[4]
        weight %m: float32[4]
        weight %v: float32[4]
        %v2: float32[4] = mul(%v, %v)
        %c: float32[2, 4] = linear(%x, %w, %b)
        %y: float32[2, 4] = batch_norm(%c, %g, %h, %m, %v2)
        output "y" = %y
        """,
        """
        %v2: float32[4] = mul(%v, %v)
        %bn_var: float32[4] = add(%v2, 1e-05)
        %bn_rstd: float32[4] = rsqrt(%bn_var)
        %bn_scale: float32[4] = mul(%g, %bn_rstd)
        %view: float32[4, 1] = view(%bn_scale, size=[4, 1])
        %bn_weight: float32[4, 3] = mul(%w, %view)
        %sub: float32[4] = sub(%b, %m)
        %bn_bias: float32[4] = mul(%sub, %bn_scale)
        %bn_bias_1: float32[4] = add(%bn_bias, %h)
        %y: float32[2, 4] = linear(%x, %bn_weight, %bn_bias_1)
        """,
    )


def test_statistics_from_outside_stay(golden) -> None:
    golden(
        "fold_batch_norm",
        """
        input %x: float32[1, 2, 4]
        input %m: float32[2]
        weight %v: float32[2]
        %v2: float32[2] = mul(%v, %v)
        %y: float32[1, 2, 4] = batch_norm(%x, none, none, %m, %v2)
        output "y" = %y
        """,
        """
        %v2: float32[2] = mul(%v, %v)
        %y: float32[1, 2, 4] = batch_norm(%x, none, none, %m, %v2)
        """,
    )
