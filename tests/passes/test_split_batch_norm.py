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
        %cast: float64[4] = cast(%g, dtype=float64)
        %cast_1: float64[4] = cast(%h, dtype=float64)
        %cast_2: float64[4] = cast(%m, dtype=float64)
        %cast_3: float64[4] = cast(%v2, dtype=float64)
        %bn_var: float64[4] = add(%cast_3, 1e-05)
        %bn_rstd: float64[4] = rsqrt(%bn_var)
        %bn_scale: float64[4] = mul(%cast, %bn_rstd)
        %bn_shift: float64[4] = mul(%cast_2, %bn_scale)
        %bn_shift_1: float64[4] = sub(%cast_1, %bn_shift)
        %cast_4: float32[4] = cast(%bn_scale, dtype=float32)
        %view: float32[1, 4, 1, 1] = view(%cast_4, size=[1, 4, 1, 1])
        %cast_5: float32[4] = cast(%bn_shift_1, dtype=float32)
        %view_1: float32[1, 4, 1, 1] = view(%cast_5, size=[1, 4, 1, 1])
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
        %cast: float64[2] = cast(%m, dtype=float64)
        %cast_1: float64[2] = cast(%v2, dtype=float64)
        %bn_var: float64[2] = add(%cast_1, 1e-05)
        %bn_rstd: float64[2] = rsqrt(%bn_var)
        %bn_shift: float64[2] = mul(%cast, %bn_rstd)
        %neg: float64[2] = neg(%bn_shift)
        %cast_2: float32[2] = cast(%bn_rstd, dtype=float32)
        %view: float32[1, 2, 1] = view(%cast_2, size=[1, 2, 1])
        %cast_3: float32[2] = cast(%neg, dtype=float32)
        %view_1: float32[1, 2, 1] = view(%cast_3, size=[1, 2, 1])
        %mul: float32[1, 2, 4] = mul(%c, %view)
        %y: float32[1, 2, 4] = add(%mul, %view_1)
        %z: float32[1, 2, 4] = neg(%c)
        """,
    )
