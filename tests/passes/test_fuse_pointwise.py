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
        %a: float32[2, 3], %b: float32[2, 3] = fused(%x, body=graph "exp_neg" {
            input %x: float32[2, 3]
            %a: float32[2, 3] = exp(%x)
            %b: float32[2, 3] = neg(%a)
            output "a" = %a
            output "b" = %b
          })
        %c: float32[2, 1] = sum(%a, dim=[1], keepdim=true)
        %y: float32[2, 3] = div(%b, %c)
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
