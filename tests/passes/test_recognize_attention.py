"""Written-out attention."""

from __future__ import annotations


def test_bert(golden) -> None:
    golden(
        "recognize_attention",
        """
        input %q: float32[2, 3, 5, 4]
        input %k: float32[2, 3, 6, 4]
        input %v: float32[2, 3, 6, 7]
        input %m: float32[2, 1, 1, 6]
        %t: float32[2, 3, 4, 6] = permute(%k, dims=[0, 1, 3, 2])
        %s: float32[2, 3, 5, 6] = matmul(%q, %t)
        %a: float32[2, 3, 5, 6] = div(%s, 2.0)
        %b: float32[2, 3, 5, 6] = add(%a, %m)
        %p: float32[2, 3, 5, 6] = softmax(%b, dim=3)
        %y: float32[2, 3, 5, 7] = matmul(%p, %v)
        output "y" = %y
        """,
        """
        %y: float32[2, 3, 5, 7] = attention(%q, %k, %v, %m, scale=0.5)
        """,
    )


def test_scale_on_both_and_a_guard(golden) -> None:
    golden(
        "recognize_attention",
        """
        input %q: float32[1, 3, 5, 4]
        input %k: float32[1, 3, 4, 5]
        input %v: float32[1, 3, 5, 4]
        weight %m: float32[5, 5]
        %a: float32[1, 3, 5, 4] = mul(%q, 0.7)
        %b: float32[1, 3, 4, 5] = mul(%k, 0.7)
        %s: float32[1, 3, 5, 5] = matmul(%a, %b)
        %c: float32[1, 3, 5, 5] = add(%s, %m)
        %p: float32[1, 3, 5, 5] = softmax(%c, dim=3)
        %n: bool[1, 3, 5, 5] = isnan(%p)
        %g: float32[1, 3, 5, 5] = where(%n, 0.0, %p)
        %y: float32[1, 3, 5, 4] = matmul(%g, %v)
        output "y" = %y
        """,
        """
        %permute: float32[1, 3, 5, 4] = permute(%k, dims=[0, 1, 3, 2])
        %y: float32[1, 3, 5, 4] = attention(%q, %permute, %v, %m, scale=0.48999999999999994)
        """,
    )


def test_bool_masks(golden) -> None:
    golden(
        "recognize_attention",
        """
        input %q: float32[2, 3, 5, 4]
        input %k: float32[2, 3, 4, 6]
        input %v: float32[2, 3, 6, 7]
        input %f: float32[5, 6]
        %m: bool[5, 6] = gt(%f, -1.0)
        %s: float32[2, 3, 5, 6] = matmul(%q, %k)
        %a: float32[2, 3, 5, 6] = where(%m, %s, -inf)
        %p: float32[2, 3, 5, 6] = softmax(%a, dim=3)
        %z: bool[2, 3, 5, 6] = isnan(%p)
        %g: float32[2, 3, 5, 6] = where(%z, 0.0, %p)
        %y: float32[2, 3, 5, 7] = matmul(%g, %v)
        output "y" = %y
        """,
        """
        %m: bool[5, 6] = gt(%f, -1.0)
        %permute: float32[2, 3, 6, 4] = permute(%k, dims=[0, 1, 3, 2])
        %y: float32[2, 3, 5, 7] = attention(%q, %permute, %v, %m, scale=1.0)
        """,
    )


def test_gpt_puts_a_low_number(golden) -> None:
    golden(
        "recognize_attention",
        """
        input %q: float32[2, 3, 5, 4]
        input %k: float32[2, 3, 4, 6]
        input %v: float32[2, 3, 6, 7]
        input %f: float32[5, 6]
        %m: bool[5, 6] = gt(%f, -1.0)
        %s: float32[2, 3, 5, 6] = matmul(%q, %k)
        %d: float32[2, 3, 5, 6] = div(%s, 2.0)
        %a: float32[2, 3, 5, 6] = where(%m, %d, -3.4028234663852886e+38)
        %p: float32[2, 3, 5, 6] = softmax(%a, dim=3)
        %y: float32[2, 3, 5, 7] = matmul(%p, %v)
        output "y" = %y
        """,
        """
        %m: bool[5, 6] = gt(%f, -1.0)
        %permute: float32[2, 3, 6, 4] = permute(%k, dims=[0, 1, 3, 2])
        %where: float32[5, 6] = where(%m, 0.0, -3.4028234663852886e+38)
        %y: float32[2, 3, 5, 7] = attention(%q, %permute, %v, %where, scale=0.5)
        """,
    )


def test_batches_of_heads(golden) -> None:
    golden(
        "recognize_attention",
        """
        input %q: float32[6, 5, 4]
        input %k: float32[6, 4, 5]
        input %v: float32[6, 5, 4]
        %s: float32[6, 5, 5] = bmm(%q, %k)
        %p: float32[6, 5, 5] = softmax(%s, dim=2)
        %y: float32[6, 5, 4] = bmm(%p, %v)
        output "y" = %y
        """,
        """
        %permute: float32[6, 5, 4] = permute(%k, dims=[0, 2, 1])
        %unsqueeze: float32[1, 6, 5, 4] = unsqueeze(%q, dims=[0])
        %unsqueeze_1: float32[1, 6, 5, 4] = unsqueeze(%permute, dims=[0])
        %unsqueeze_2: float32[1, 6, 5, 4] = unsqueeze(%v, dims=[0])
        %attention: float32[1, 6, 5, 4] = attention(%unsqueeze, %unsqueeze_1, %unsqueeze_2, scale=1.0)
        %y: float32[6, 5, 4] = squeeze(%attention, dims=[0])
        """,
    )


def test_grouped_keys(golden) -> None:
    golden(
        "recognize_attention",
        """
        input %q: float32[2, 6, 5, 4]
        input %k: float32[2, 3, 5, 4]
        input %v: float32[2, 3, 5, 4]
        %k1: float32[2, 3, 1, 5, 4] = unsqueeze(%k, dims=[2])
        %k2: float32[2, 3, 2, 5, 4] = expand(%k1, size=[2, 3, 2, 5, 4])
        %k3: float32[2, 6, 5, 4] = view(%k2, size=[2, 6, 5, 4])
        %v1: float32[2, 3, 1, 5, 4] = unsqueeze(%v, dims=[2])
        %v2: float32[2, 3, 2, 5, 4] = expand(%v1, size=[2, 3, 2, 5, 4])
        %v3: float32[2, 6, 5, 4] = view(%v2, size=[2, 6, 5, 4])
        %t: float32[2, 6, 4, 5] = permute(%k3, dims=[0, 1, 3, 2])
        %s: float32[2, 6, 5, 5] = matmul(%q, %t)
        %p: float32[2, 6, 5, 5] = softmax(%s, dim=3)
        %y: float32[2, 6, 5, 4] = matmul(%p, %v3)
        output "y" = %y
        """,
        """
        %y: float32[2, 6, 5, 4] = attention(%q, %k, %v, scale=1.0)
        """,
    )


def test_scores_that_others_read_stay(golden) -> None:
    golden(
        "recognize_attention",
        """
        input %q: float32[2, 3, 5, 4]
        input %k: float32[2, 3, 4, 6]
        input %v: float32[2, 3, 6, 7]
        %s: float32[2, 3, 5, 6] = matmul(%q, %k)
        %p: float32[2, 3, 5, 6] = softmax(%s, dim=3)
        %y: float32[2, 3, 5, 7] = matmul(%p, %v)
        output "y" = %y
        output "p" = %p
        """,
        """
        %s: float32[2, 3, 5, 6] = matmul(%q, %k)
        %p: float32[2, 3, 5, 6] = softmax(%s, dim=3)
        %y: float32[2, 3, 5, 7] = matmul(%p, %v)
        """,
    )


def test_a_scale_after_the_mask_stays(golden) -> None:
    golden(
        "recognize_attention",
        """
        input %q: float32[2, 3, 5, 4]
        input %k: float32[2, 3, 4, 6]
        input %v: float32[2, 3, 6, 7]
        input %m: float32[5, 6]
        %s: float32[2, 3, 5, 6] = matmul(%q, %k)
        %b: float32[2, 3, 5, 6] = add(%s, %m)
        %a: float32[2, 3, 5, 6] = mul(%b, 0.5)
        %p: float32[2, 3, 5, 6] = softmax(%a, dim=3)
        %y: float32[2, 3, 5, 7] = matmul(%p, %v)
        output "y" = %y
        """,
        """
        %s: float32[2, 3, 5, 6] = matmul(%q, %k)
        %b: float32[2, 3, 5, 6] = add(%s, %m)
        %a: float32[2, 3, 5, 6] = mul(%b, 0.5)
        %p: float32[2, 3, 5, 6] = softmax(%a, dim=3)
        %y: float32[2, 3, 5, 7] = matmul(%p, %v)
        """,
    )
