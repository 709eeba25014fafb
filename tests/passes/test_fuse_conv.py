"""Epilogues of convolutions."""

from __future__ import annotations


def test_bias_residual_relu(golden) -> None:
    golden(
        "fuse_conv",
        """
        input %x: float32[1, 3, 8, 8]
        input %r: float32[1, 4, 6, 6]
        weight %w: float32[4, 3, 3, 3]
        weight %b: float32[4, 1, 1]
        %c: float32[1, 4, 6, 6] = convolution(%x, %w, stride=[1, 1], padding=[0, 0], dilation=[1, 1])
        %d: float32[1, 4, 6, 6] = add(%c, %b)
        %e: float32[1, 4, 6, 6] = add(%r, %d)
        %y: float32[1, 4, 6, 6] = relu(%e)
        output "y" = %y
        """,
        """
        %view: float32[4] = view(%b, size=[4])
        %y: float32[1, 4, 6, 6] = fused_convolution(%x, %w, %view, %r, stride=[1, 1], padding=[0, 0], dilation=[1, 1], act="relu")
        """,
    )


def test_two_biases_and_relu6(golden) -> None:
    golden(
        "fuse_conv",
        """
        input %x: float32[1, 3, 8]
        weight %w: float32[4, 3, 3]
        weight %b: float32[4]
        weight %k: float32[1]
        weight %l: float32[1, 4, 1]
        %c: float32[1, 4, 6] = convolution(%x, %w, %b, stride=[1], padding=[0], dilation=[1])
        %d: float32[1, 4, 6] = add(%c, %k)
        %e: float32[1, 4, 6] = add(%d, %l)
        %y: float32[1, 4, 6] = clamp(%e, 0.0, 6.0)
        output "y" = %y
        """,
        """
        %view: float32[1] = view(%k, size=[1])
        %expand: float32[4] = expand(%view, size=[4])
        %bias: float32[4] = add(%b, %expand)
        %view_1: float32[4] = view(%l, size=[4])
        %bias_1: float32[4] = add(%bias, %view_1)
        %y: float32[1, 4, 6] = fused_convolution(%x, %w, %bias_1, stride=[1], padding=[0], dilation=[1], act="relu6")
        """,
    )


def test_the_later_of_two_takes_the_addition(golden) -> None:
    golden(
        "fuse_conv",
        """
        input %x: float32[1, 3, 8]
        weight %w: float32[4, 3, 3]
        weight %u: float32[4, 3, 3]
        %c: float32[1, 4, 6] = convolution(%x, %w, stride=[1], padding=[0], dilation=[1])
        %d: float32[1, 4, 6] = convolution(%x, %u, stride=[1], padding=[0], dilation=[1])
        %e: float32[1, 4, 6] = add(%c, %d)
        %y: float32[1, 4, 6] = relu(%e)
        output "y" = %y
        """,
        """
        %c: float32[1, 4, 6] = convolution(%x, %w, stride=[1], padding=[0], dilation=[1])
        %y: float32[1, 4, 6] = fused_convolution(%x, %u, none, %c, stride=[1], padding=[0], dilation=[1], act="relu")
        """,
    )


def test_nothing_after_the_activation(golden) -> None:
    golden(
        "fuse_conv",
        """
        input %x: float32[1, 3, 8]
        input %r: float32[1, 4, 6]
        weight %w: float32[4, 3, 3]
        %c: float32[1, 4, 6] = convolution(%x, %w, stride=[1], padding=[0], dilation=[1])
        %d: float32[1, 4, 6] = silu(%c)
        %y: float32[1, 4, 6] = add(%d, %r)
        output "y" = %y
        """,
        """
        %d: float32[1, 4, 6] = fused_convolution(%x, %w, stride=[1], padding=[0], dilation=[1], act="silu")
        %y: float32[1, 4, 6] = add(%d, %r)
        """,
    )


def test_a_result_with_two_readers_stays(golden) -> None:
    golden(
        "fuse_conv",
        """
        input %x: float32[1, 3, 8]
        weight %w: float32[4, 3, 3]
        %c: float32[1, 4, 6] = convolution(%x, %w, stride=[1], padding=[0], dilation=[1])
        %y: float32[1, 4, 6] = relu(%c)
        output "c" = %c
        output "y" = %y
        """,
        """
        %c: float32[1, 4, 6] = convolution(%x, %w, stride=[1], padding=[0], dilation=[1])
        %y: float32[1, 4, 6] = relu(%c)
        """,
    )


def test_a_broadcast_residual_and_another_slope_stay(golden) -> None:
    golden(
        "fuse_conv",
        """
        input %x: float32[1, 3, 8]
        input %r: float32[1, 4, 1]
        weight %w: float32[4, 3, 3]
        %c: float32[1, 4, 6] = convolution(%x, %w, stride=[1], padding=[0], dilation=[1])
        %d: float32[1, 4, 6] = add(%c, %r)
        %y: float32[1, 4, 6] = leaky_relu(%d, negative_slope=0.2)
        output "y" = %y
        """,
        """
        %c: float32[1, 4, 6] = convolution(%x, %w, stride=[1], padding=[0], dilation=[1])
        %d: float32[1, 4, 6] = add(%c, %r)
        %y: float32[1, 4, 6] = leaky_relu(%d, negative_slope=0.2)
        """,
    )
