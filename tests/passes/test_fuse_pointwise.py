"""Elementwise groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from support.native import check

from xpuruntime import ir
from xpuruntime.ir import interp
from xpuruntime.passes import PassContext, run_passes
from xpuruntime.testing.emulation.cuda_host import cuda_host


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


def test_a_conversion_from_16_bits_is_repeated(golden) -> None:
    golden(
        "fuse_pointwise",
        """
        input %x: float32[2, 4, 3]
        input %s: float16[2, 1, 3]
        %c: float32[2, 1, 3] = cast(%s, dtype=float32)
        %m: float32[2, 4, 3] = mul(%x, %c)
        %y: float16[2, 4, 3] = cast(%m, dtype=float16)
        output "y" = %y
        """,
        """
        %y: float16[2, 4, 3] = fused(%s, %x, body=graph "cast_mul_cast" {
            input %s: float16[2, 1, 3]
            input %x: float32[2, 4, 3]
            %c: float32[2, 1, 3] = cast(%s, dtype=float32)
            %m: float32[2, 4, 3] = mul(%x, %c)
            %y: float16[2, 4, 3] = cast(%m, dtype=float16)
            output "y" = %y
          })
        """,
    )


def test_a_conversion_with_other_readers_stays(golden) -> None:
    text = """
        input %x: float32[2, 4, 3]
        input %s: float16[4, 3]
        %c: float32[4, 3] = cast(%s, dtype=float32)
        %y: float32[2, 4, 3] = mul(%x, %c)
        %z: float32[3] = sum(%c, dim=[0])
        output "y" = %y
        output "z" = %z
        """
    golden("fuse_pointwise", text, "\n".join(text.splitlines()[3:6]))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", [(2, 1, 8), (1, 1, 8), (2, 5, 1), (8,), (1,), (5, 1), (1, 5, 8)])
def test_repeated_conversions_in_rows_are_right(shape: tuple[int, ...], target: str) -> None:
    rng = np.random.default_rng(5)
    b = ir.GraphBuilder("rows")
    x, s = b.input("x", "float32[2, 5, 8]"), b.input("s", f"float16{list(shape)}")
    wide = b.cast(s, dtype="float32")
    norm = b.layer_norm(b.mul(x, wide), None, None, normalized_shape=[8], eps=1e-5)
    b.output("y", b.add(norm, x))
    other = b.cast(s, dtype="float32")
    b.output("z", b.mul(b.layer_norm(x, None, None, normalized_shape=[8], eps=1e-5), other))
    third = b.cast(s, dtype="float32")
    b.output("w", b.mul(b.softmax(b.add(x, third), dim=2), third))
    graph = b.build()
    feeds = {
        "x": rng.standard_normal((2, 5, 8)).astype(np.float32),
        "s": rng.uniform(0.5, 2, shape).astype(np.float16),
    }
    check(graph, feeds, target=cuda_host() if target == "cuda" else target)


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


def _graph(build: Callable[[ir.GraphBuilder], Mapping[str, str]]) -> ir.Graph:
    b = ir.GraphBuilder("g")
    for name, value in build(b).items():
        b.output(name, value)
    return b.build()


def _forward_again(b: ir.GraphBuilder) -> Mapping[str, str]:
    """An activation that is computed again, and its gradient, with a product before each reader of the other."""
    x, g, w = (b.input(n, f"float32[{s}]") for n, s in (("x", "2, 3"), ("g", "2, 3"), ("w", "3, 3")))
    forward = b.relu(x)
    return {"d": b.mul(b.matmul(g, w), b.sigmoid(x)), "u": b.matmul(forward, w)}


def test_nodes_that_read_the_same_value_are_one_in_backward() -> None:
    graph = _graph(_forward_again)
    rng = np.random.default_rng(0)
    feeds = {
        n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", (2, 3)), ("g", (2, 3)), ("w", (3, 3)))
    }
    want = interp.run(graph, feeds)
    for joins, ops in ((True, ["fused", "matmul", "matmul"]), (False, ["fused", "matmul", "matmul", "relu"])):
        after = run_passes(graph, ["fuse_pointwise"], context=PassContext(joins_readers=joins), check=True)
        assert sorted(n.op for n in after.nodes) == ops
        got = interp.run(after, feeds)
        assert all(np.array_equal(got[k], v) for k, v in want.items())


def test_a_reader_that_the_other_one_needs_stays_alone() -> None:
    """A path through a product leads from one reader to the other."""

    def build(b: ir.GraphBuilder) -> Mapping[str, str]:
        x = b.input("x", "float32[3, 3]")
        a = b.relu(x)
        return {"y": b.mul(b.matmul(a, a), x)}

    after = run_passes(_graph(build), ["fuse_pointwise"], context=PassContext(joins_readers=True), check=True)
    assert [n.op for n in after.nodes] == ["relu", "matmul", "mul"]


_RESIDUAL = """
        input %x: float32[1, 4, 4, 4]
        weight %w: float32[4, 4, 1, 1]
        %s: float32[1, 4, 4, 4] = mul(%x, 20.0)
        %q: int8[1, 4, 4, 4] = cast(%s, dtype=int8)
        %f: float32[1, 4, 4, 4] = cast(%q, dtype=float32)
        %d: float32[1, 4, 4, 4] = mul(%f, 0.05)
        %h: float32[1, 4, 4, 4] = {read}
        %c: float32[1, 4, 4, 4] = convolution(%h, %w, stride=[1, 1], padding=[0, 0, 0, 0], dilation=[1, 1])
        %y: float32[1, 4, 4, 4] = add(%c, %d)
        output "y" = %y
        """


def test_codes_are_read_again_where_a_sum_needs_their_values_later() -> None:
    """The codes are in memory for the convolution. Their values, of four times the size, are needed after it only."""
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 4, 4, 4)).astype(np.float32)}
    weights = {"w": np.random.default_rng(1).standard_normal((4, 4, 1, 1)).astype(np.float32)}
    for read, again in (("cast(%q, dtype=float32)", True), ("neg(%x)", False)):
        graph = ir.parse('graph "net" {' + _RESIDUAL.replace("{read}", read) + "}")
        fused = run_passes(graph, ["fuse_pointwise"], context=PassContext(), check=True)
        last = fused.producer(fused.outputs[0].value)
        assert last is not None
        steps = [n.op for n in last.attrs["body"].nodes] if last.op == "fused" else [last.op]
        assert (steps == ["cast", "mul", "add"]) is again, (read, steps)
        want = interp.run(graph, feeds, weights=weights)
        got = interp.run(fused, feeds, weights=weights)
        assert all(np.array_equal(want[n], got[n]) for n in want)
