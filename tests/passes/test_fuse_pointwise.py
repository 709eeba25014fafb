"""Elementwise groups."""

from __future__ import annotations


def test_a_chain(golden) -> None:
    golden(
        "fuse_pointwise",
        """
        input %x: float32[2, 3]
        weight %w: float32[3]
        %a: float32[2, 3] = mul(%x, %w)
        %b: float32[2, 3] = add(%a, 1.0)
        %y: float32[2, 3] = relu(%b)
        output "y" = %y
        """,
        """
        %y: float32[2, 3] = fused(%x, %w, body=graph "mul_add_relu" {
            input %x: float32[2, 3]
            input %w: float32[3]
            %a: float32[2, 3] = mul(%x, %w)
            %b: float32[2, 3] = add(%a, 1.0)
            %y: float32[2, 3] = relu(%b)
            output "y" = %y
          })
        """,
    )


def test_a_value_that_others_read(golden) -> None:
    golden(
        "fuse_pointwise",
        """
        input %x: float32[2, 3]
        %a: float32[2, 3] = exp(%x)
        %b: float32[2, 3] = neg(%a)
        %c: float32[2, 1] = sum(%a, dim=[1], keepdim=true)
        %y: float32[2, 3] = div(%b, %c)
        output "y" = %y
        """,
        """
        %y: float32[2, 3] = fused(%x, body=graph "exp_neg_sum_div" {
            input %x: float32[2, 3]
            %a: float32[2, 3] = exp(%x)
            %b: float32[2, 3] = neg(%a)
            %c: float32[2, 1] = sum(%a, dim=[1], keepdim=true)
            %y: float32[2, 3] = div(%b, %c)
            output "y" = %y
          })
        """,
    )


def test_small_work_is_not_repeated(golden) -> None:
    golden(
        "fuse_pointwise",
        """
        input %x: float32[2, 3]
        input %s: float32[2, 1]
        %g: float32[2, 1] = sigmoid(%s)
        %h: float32[2, 1] = exp(%g)
        %y: float32[2, 3] = mul(%x, %h)
        output "y" = %y
        """,
        """
        %h: float32[2, 1] = fused(%s, body=graph "sigmoid_exp" {
            input %s: float32[2, 1]
            %g: float32[2, 1] = sigmoid(%s)
            %h: float32[2, 1] = exp(%g)
            output "h" = %h
          })
        %y: float32[2, 3] = mul(%x, %h)
        """,
    )


def test_no_path_leaves_and_comes_back(golden) -> None:
    golden(
        "fuse_pointwise",
        """
        input %x: float32[4, 4]
        %a: float32[4, 4] = exp(%x)
        %m: float32[4, 4] = matmul(%a, %a)
        %b: float32[4, 4] = neg(%a)
        %y: float32[4, 4] = add(%b, %m)
        output "y" = %y
        """,
        """
        %a: float32[4, 4], %b: float32[4, 4] = fused(%x, body=graph "exp_neg" {
            input %x: float32[4, 4]
            %a: float32[4, 4] = exp(%x)
            %b: float32[4, 4] = neg(%a)
            output "a" = %a
            output "b" = %b
          })
        %m: float32[4, 4] = matmul(%a, %a)
        %y: float32[4, 4] = add(%b, %m)
        """,
    )


def test_rows(golden) -> None:
    golden(
        "fuse_pointwise",
        """
        input %x: float32[2, 5, 4]
        input %z: float32[2, 5, 4]
        weight %w: float32[4]
        %a: float32[2, 5, 4] = add(%x, %z)
        %n: float32[2, 5, 4] = rms_norm(%a, %w, normalized_shape=[4])
        %y: float32[2, 5, 4] = silu(%n)
        output "a" = %a
        output "y" = %y
        """,
        """
        %a: float32[2, 5, 4], %y: float32[2, 5, 4] = fused(%x, %z, %w, body=graph "add_rms_norm_silu" {
            input %x: float32[2, 5, 4]
            input %z: float32[2, 5, 4]
            input %w: float32[4]
            %a: float32[2, 5, 4] = add(%x, %z)
            %n: float32[2, 5, 4] = rms_norm(%a, %w, normalized_shape=[4])
            %y: float32[2, 5, 4] = silu(%n)
            output "a" = %a
            output "y" = %y
          })
        """,
    )


def test_rows_with_a_value_each(golden) -> None:
    golden(
        "fuse_pointwise",
        """
        input %x: float32[5, 4]
        %a: float32[5, 4] = mul(%x, %x)
        %m: float32[5, 1] = mean(%a, dim=[1], keepdim=true)
        %e: float32[5, 1] = add(%m, 1.0)
        %r: float32[5, 1] = rsqrt(%e)
        %y: float32[5, 4] = mul(%x, %r)
        output "y" = %y
        """,
        """
        %y: float32[5, 4] = fused(%x, body=graph "mul_mean_add_rsqrt_mul" {
            input %x: float32[5, 4]
            %a: float32[5, 4] = mul(%x, %x)
            %m: float32[5, 1] = mean(%a, dim=[1], keepdim=true)
            %e: float32[5, 1] = add(%m, 1.0)
            %r: float32[5, 1] = rsqrt(%e)
            %y: float32[5, 4] = mul(%x, %r)
            output "y" = %y
          })
        """,
    )


def test_rows_of_two_kinds_stay_apart(golden) -> None:
    golden(
        "fuse_pointwise",
        """
        input %x: float32[2, 5, 4]
        %m: float32[2, 5, 1] = mean(%x, dim=[2], keepdim=true)
        %a: float32[2, 5, 4] = sub(%x, %m)
        %n: float32[2, 1, 1] = amax(%a, dim=[1, 2], keepdim=true)
        %y: float32[2, 5, 4] = div(%a, %n)
        output "y" = %y
        """,
        """
        %a: float32[2, 5, 4] = fused(%x, body=graph "mean_sub" {
            input %x: float32[2, 5, 4]
            %m: float32[2, 5, 1] = mean(%x, dim=[2], keepdim=true)
            %a: float32[2, 5, 4] = sub(%x, %m)
            output "a" = %a
          })
        %y: float32[2, 5, 4] = fused(%a, body=graph "amax_div" {
            input %a: float32[2, 5, 4]
            %n: float32[2, 1, 1] = amax(%a, dim=[1, 2], keepdim=true)
            %y: float32[2, 5, 4] = div(%a, %n)
            output "y" = %y
          })
        """,
    )


def test_images_stay_apart_from_rows(golden) -> None:
    golden(
        "fuse_pointwise",
        """
        input %x: float32[2, 3, 4, 4]
        %a: float32[2, 3, 4, 4] = exp(%x)
        %m: float32[2, 3, 1, 1] = mean(%a, dim=[2, 3], keepdim=true)
        %y: float32[2, 3, 4, 4] = sub(%a, %m)
        output "y" = %y
        """,
        """
        %a: float32[2, 3, 4, 4] = exp(%x)
        %m: float32[2, 3, 1, 1] = mean(%a, dim=[2, 3], keepdim=true)
        %y: float32[2, 3, 4, 4] = sub(%a, %m)
        """,
    )


def test_weights_are_the_recipes(golden) -> None:
    golden(
        "fuse_pointwise",
        """
        input %x: float32[2, 3]
        weight %w: float32[2, 3]
        %a: float32[2, 3] = neg(%w)
        %b: float32[2, 3] = exp(%a)
        %y: float32[2, 3] = mul(%x, %b)
        output "y" = %y
        """,
        """
        %a: float32[2, 3] = neg(%w)
        %b: float32[2, 3] = exp(%a)
        %y: float32[2, 3] = mul(%x, %b)
        """,
    )
