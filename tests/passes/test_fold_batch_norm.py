"""Batch norms go into weights."""

from __future__ import annotations

import numpy as np
from support.native import check, compile_native

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
        %bn_var: float32[4] = add(%v2, 0.001)
        %bn_rstd: float32[4] = rsqrt(%bn_var)
        %bn_scale: float32[4] = mul(%g, %bn_rstd)
        %bn_shift: float32[4] = mul(%m, %bn_scale)
        %bn_shift_1: float32[4] = sub(%h, %bn_shift)
        %view: float32[2, 3, 2, 3, 3] = view(%w, size=[2, 3, 2, 3, 3])
        %view_1: float32[2, 1, 2, 1, 1] = view(%bn_scale, size=[2, 1, 2, 1, 1])
        %view_2: float32[2, 1, 2, 1, 1] = view(%bn_shift_1, size=[2, 1, 2, 1, 1])
        %bn_weight: float32[2, 3, 2, 3, 3] = mul(%view, %view_1)
        %view_3: float32[6, 2, 3, 3] = view(%bn_weight, size=[6, 2, 3, 3])
        %mul: float32[2, 3, 2, 3, 3] = mul(%view, %view_2)
        %view_4: float32[6, 18] = view(%mul, size=[6, 18])
        %bn_bias: float32[6] = sum(%view_4, dim=[1])
        %bn_bias_1: float32[6] = add(%b, %bn_bias)
        %y: float32[2, 6, 6, 6] = convolution(%x, %view_3, %bn_bias_1, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=2)
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
        %bn_var: float32[6] = add(%v2, 1e-05)
        %bn_rstd: float32[6] = rsqrt(%bn_var)
        %view: float32[6, 1] = view(%bn_rstd, size=[6, 1])
        %bn_weight: float32[6, 4] = mul(%w, %view)
        %neg: float32[6] = neg(%m)
        %bn_bias: float32[6] = mul(%neg, %bn_rstd)
        %n: float32[2, 6] = linear(%x, %bn_weight, %bn_bias)
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
