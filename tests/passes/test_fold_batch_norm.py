"""Batch norms go into weights."""

from __future__ import annotations

import numpy as np
from support.native import check, compile_native, run_native

from xpuruntime import ir


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
        %cast: float64[4] = cast(%g, dtype=float64)
        %cast_1: float64[4] = cast(%h, dtype=float64)
        %cast_2: float64[4] = cast(%m, dtype=float64)
        %cast_3: float64[4] = cast(%v2, dtype=float64)
        %bn_var: float64[4] = add(%cast_3, 0.001)
        %bn_rstd: float64[4] = rsqrt(%bn_var)
        %bn_scale: float64[4] = mul(%cast, %bn_rstd)
        %cast_4: float64[4, 3, 3, 3] = cast(%w, dtype=float64)
        %view: float64[4, 1, 1, 1] = view(%bn_scale, size=[4, 1, 1, 1])
        %bn_weight: float64[4, 3, 3, 3] = mul(%cast_4, %view)
        %neg: float64[4] = neg(%cast_2)
        %bn_bias: float64[4] = mul(%neg, %bn_scale)
        %bn_bias_1: float64[4] = add(%bn_bias, %cast_1)
        %cast_5: float32[4, 3, 3, 3] = cast(%bn_weight, dtype=float32)
        %cast_6: float32[4] = cast(%bn_bias_1, dtype=float32)
        %y: float32[1, 4, 6, 6] = convolution(%x, %cast_5, %cast_6, stride=[1, 1], padding=[0, 0], dilation=[1, 1])
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
        %cast: float64[6] = cast(%m, dtype=float64)
        %cast_1: float64[6] = cast(%v2, dtype=float64)
        %bn_var: float64[6] = add(%cast_1, 1e-05)
        %bn_rstd: float64[6] = rsqrt(%bn_var)
        %cast_2: float64[4, 3, 2, 2] = cast(%w, dtype=float64)
        %view: float64[2, 2, 3, 2, 2] = view(%cast_2, size=[2, 2, 3, 2, 2])
        %view_1: float64[2, 1, 3, 1, 1] = view(%bn_rstd, size=[2, 1, 3, 1, 1])
        %bn_weight: float64[2, 2, 3, 2, 2] = mul(%view, %view_1)
        %view_2: float64[4, 3, 2, 2] = view(%bn_weight, size=[4, 3, 2, 2])
        %cast_3: float64[6] = cast(%b, dtype=float64)
        %sub: float64[6] = sub(%cast_3, %cast)
        %bn_bias: float64[6] = mul(%sub, %bn_rstd)
        %cast_4: float32[4, 3, 2, 2] = cast(%view_2, dtype=float32)
        %cast_5: float32[6] = cast(%bn_bias, dtype=float32)
        %y: float32[1, 6, 6, 6] = convolution(%x, %cast_4, %cast_5, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=2, transposed=true)
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
        %cast: float64[4] = cast(%g, dtype=float64)
        %cast_1: float64[4] = cast(%h, dtype=float64)
        %cast_2: float64[4] = cast(%m, dtype=float64)
        %cast_3: float64[4] = cast(%v2, dtype=float64)
        %bn_var: float64[4] = add(%cast_3, 1e-05)
        %bn_rstd: float64[4] = rsqrt(%bn_var)
        %bn_scale: float64[4] = mul(%cast, %bn_rstd)
        %cast_4: float64[4, 3] = cast(%w, dtype=float64)
        %view: float64[4, 1] = view(%bn_scale, size=[4, 1])
        %bn_weight: float64[4, 3] = mul(%cast_4, %view)
        %cast_5: float64[4] = cast(%b, dtype=float64)
        %sub: float64[4] = sub(%cast_5, %cast_2)
        %bn_bias: float64[4] = mul(%sub, %bn_scale)
        %bn_bias_1: float64[4] = add(%bn_bias, %cast_1)
        %cast_6: float32[4, 3] = cast(%bn_weight, dtype=float32)
        %cast_7: float32[4] = cast(%bn_bias_1, dtype=float32)
        %y: float32[2, 4] = linear(%x, %cast_6, %cast_7)
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


def test_before_an_unpadded_convolution_in_groups(golden) -> None:
    golden(
        "fold_batch_norm",
        """
        input %x: float32[2, 4, 8, 8]
        weight %w: float32[6, 2, 3, 3]
        weight %b: float32[6]
        weight %g: float32[4]
        weight %h: float32[4]
        weight %m: float32[4]
        weight %v: float32[4]
        %v2: float32[4] = mul(%v, %v)
        %n: float32[2, 4, 8, 8] = batch_norm(%x, %g, %h, %m, %v2, eps=0.001)
        %y: float32[2, 6, 6, 6] = convolution(%n, %w, %b, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=2)
        output "y" = %y
        """,
        """
        %v2: float32[4] = mul(%v, %v)
        %cast: float64[4] = cast(%g, dtype=float64)
        %cast_1: float64[4] = cast(%h, dtype=float64)
        %cast_2: float64[4] = cast(%m, dtype=float64)
        %cast_3: float64[4] = cast(%v2, dtype=float64)
        %bn_var: float64[4] = add(%cast_3, 0.001)
        %bn_rstd: float64[4] = rsqrt(%bn_var)
        %bn_scale: float64[4] = mul(%cast, %bn_rstd)
        %bn_shift: float64[4] = mul(%cast_2, %bn_scale)
        %bn_shift_1: float64[4] = sub(%cast_1, %bn_shift)
        %cast_4: float64[6, 2, 3, 3] = cast(%w, dtype=float64)
        %view: float64[2, 3, 2, 3, 3] = view(%cast_4, size=[2, 3, 2, 3, 3])
        %view_1: float64[2, 1, 2, 1, 1] = view(%bn_scale, size=[2, 1, 2, 1, 1])
        %view_2: float64[2, 1, 2, 1, 1] = view(%bn_shift_1, size=[2, 1, 2, 1, 1])
        %bn_weight: float64[2, 3, 2, 3, 3] = mul(%view, %view_1)
        %view_3: float64[6, 2, 3, 3] = view(%bn_weight, size=[6, 2, 3, 3])
        %mul: float64[2, 3, 2, 3, 3] = mul(%view, %view_2)
        %view_4: float64[6, 18] = view(%mul, size=[6, 18])
        %bn_bias: float64[6] = sum(%view_4, dim=[1])
        %cast_5: float64[6] = cast(%b, dtype=float64)
        %bn_bias_1: float64[6] = add(%cast_5, %bn_bias)
        %cast_6: float32[6, 2, 3, 3] = cast(%view_3, dtype=float32)
        %cast_7: float32[6] = cast(%bn_bias_1, dtype=float32)
        %y: float32[2, 6, 6, 6] = convolution(%x, %cast_6, %cast_7, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=2)
        """,
    )


def test_before_a_padded_convolution_it_stays(golden) -> None:
    text = """
        %v2: float32[4] = mul(%v, %v)
        %n: float32[2, 4, 8, 8] = batch_norm(%x, none, none, %m, %v2)
        %y: float32[2, 6, 8, 8] = convolution(%n, %w, stride=[1, 1], padding=[1, 1], dilation=[1, 1])
        """
    head = """
        input %x: float32[2, 4, 8, 8]
        weight %w: float32[6, 4, 3, 3]
        weight %m: float32[4]
        weight %v: float32[4]
        """
    golden("fold_batch_norm", head + text + 'output "y" = %y', text)


def test_between_two_layers_it_goes_into_the_first(golden) -> None:
    result = golden(
        "fold_batch_norm",
        """
        input %x: float32[2, 4]
        weight %w: float32[6, 4]
        weight %u: float32[3, 6]
        weight %m: float32[6]
        weight %v: float32[6]
        %v2: float32[6] = mul(%v, %v)
        %a: float32[2, 6] = linear(%x, %w)
        %n: float32[2, 6] = batch_norm(%a, none, none, %m, %v2)
        %y: float32[2, 3] = linear(%n, %u)
        output "y" = %y
        """,
        """
        %v2: float32[6] = mul(%v, %v)
        %cast: float64[6] = cast(%m, dtype=float64)
        %cast_1: float64[6] = cast(%v2, dtype=float64)
        %bn_var: float64[6] = add(%cast_1, 1e-05)
        %bn_rstd: float64[6] = rsqrt(%bn_var)
        %cast_2: float64[6, 4] = cast(%w, dtype=float64)
        %view: float64[6, 1] = view(%bn_rstd, size=[6, 1])
        %bn_weight: float64[6, 4] = mul(%cast_2, %view)
        %neg: float64[6] = neg(%cast)
        %bn_bias: float64[6] = mul(%neg, %bn_rstd)
        %cast_3: float32[6, 4] = cast(%bn_weight, dtype=float32)
        %cast_4: float32[6] = cast(%bn_bias, dtype=float32)
        %n: float32[2, 6] = linear(%x, %cast_3, %cast_4)
        %y: float32[2, 3] = linear(%n, %u)
        """,
    )
    assert [n.op for n in result.nodes].count("linear") == 2


def test_in_front_of_a_layer_it_costs_no_call() -> None:
    graph = ir.parse(
        """graph "test" {
        input %x: float32[2, 4, 8, 8]
        weight %w: float32[6, 2, 3, 3]
        weight %b: float32[6]
        weight %g: float32[4]
        weight %h: float32[4]
        weight %m: float32[4]
        weight %v: float32[4]
        %n: float32[2, 4, 8, 8] = batch_norm(%x, %g, %h, %m, %v)
        %y: float32[2, 6, 6, 6] = convolution(%n, %w, %b, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=2)
        output "y" = %y
        }"""
    )
    random = np.random.default_rng(0)
    weights = {
        w.name: random.uniform(0.5, 1.5, [int(d) for d in w.spec.shape]).astype(np.float32)
        for w in graph.weights
    }
    feeds = {"x": random.standard_normal((2, 4, 8, 8), np.float32)}
    check(graph, feeds, weights=weights)
    calls = [c.kernel for c in compile_native(graph, feeds).entries[0].plans[0].calls]
    assert set(calls) <= {"conv/generated", "movement/strided"}, "weights are not made at load"
    assert calls.count("conv/generated") == 1


def test_a_folded_weight_is_rounded_once() -> None:
    graph = ir.parse(
        """graph "test" {
        input %x: float32[1, 1, 1, 1]
        weight %w: float32[256, 1, 1, 1]
        weight %g: float32[256]
        weight %m: float32[256]
        weight %v: float32[256]
        %c: float32[1, 256, 1, 1] = convolution(%x, %w, stride=[1, 1], padding=[0, 0], dilation=[1, 1])
        %y: float32[1, 256, 1, 1] = batch_norm(%c, %g, none, %m, %v, eps=0.001)
        output "y" = %y
        }"""
    )
    random = np.random.default_rng(0)
    w, g, v = (random.uniform(0.5, 1.5, 256).astype(np.float32) for _ in range(3))
    weights = {"w": w.reshape(256, 1, 1, 1), "g": g, "m": np.zeros(256, np.float32), "v": v}
    y = run_native(graph, {"x": np.ones((1, 1, 1, 1), np.float32)}, weights=weights)["y"].ravel()
    exact = w.astype(np.float64) * g / np.sqrt(v.astype(np.float64) + 0.001)
    assert np.array_equal(y, exact.astype(np.float32))
