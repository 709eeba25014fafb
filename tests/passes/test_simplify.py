"""Rules of simplify, one by one."""

from __future__ import annotations


def test_neutral(golden) -> None:
    golden(
        "simplify",
        """
        input %x: float32[2, 3]
        %one: float32[] = constant(value=float32[]{1.0})
        %a: float32[2, 3] = mul(%x, %one)
        %b: float32[2, 3] = add(%a, 0.0)
        %c: float32[2, 3] = div(%b, 1.0)
        %d: float32[2, 3] = sub(%c, 0.0)
        %e: float32[2, 3] = pow(%d, 1.0)
        %y: float32[2, 3] = neg(%e)
        output "y" = %y
        """,
        """
        %y: float32[2, 3] = neg(%x)
        """,
    )


def test_rounded_quotients_stay(golden) -> None:
    """``x // 1`` is floor(x), and ``1 // sqrt(x)`` is no rsqrt."""
    golden(
        "simplify",
        """
        input %x: float32[2, 3]
        input %i: int64[2]
        %a: float32[2, 3] = div(%x, 1, rounding_mode="floor")
        %b: float32[2, 3] = div(%x, 1.0, rounding_mode="trunc")
        %s: float32[2, 3] = sqrt(%x)
        %c: float32[2, 3] = div(1, %s, rounding_mode="floor")
        %d: int64[2] = div(%i, 1, rounding_mode="floor")
        %e: int64[2] = neg(%d)
        output "a" = %a
        output "b" = %b
        output "c" = %c
        output "e" = %e
        """,
        """
        %a: float32[2, 3] = div(%x, 1, rounding_mode="floor")
        %b: float32[2, 3] = div(%x, 1.0, rounding_mode="trunc")
        %s: float32[2, 3] = sqrt(%x)
        %c: float32[2, 3] = div(1, %s, rounding_mode="floor")
        %e: int64[2] = neg(%i)
        """,
    )


def test_one_that_promotes_stays(golden) -> None:
    golden(
        "simplify",
        """
        input %x: int64[2]
        %a: float32[2] = mul(%x, 1.0)
        %b: int64[2] = mul(%x, 1)
        output "a" = %a
        output "b" = %b
        """,
        """
        %a: float32[2] = mul(%x, 1.0)
        %b: int64[2] = mul(%x, 1)
        """,
    )


def test_numbers_for_constants(golden) -> None:
    golden(
        "simplify",
        """
        input %x: float32[2, 3]
        %k: float32[1] = constant(value=float32[1]{0.5})
        %v: float32[3] = constant(value=float32[3]{1.0, 2.0, 3.0})
        %a: float32[2, 3] = mul(%x, %k)
        %y: float32[2, 3] = add(%a, %v)
        output "y" = %y
        """,
        """
        %v: float32[3] = constant(value=float32[3]{1.0, 2.0, 3.0})
        %a: float32[2, 3] = mul(%x, 0.5)
        %y: float32[2, 3] = add(%a, %v)
        """,
    )


def test_views(golden) -> None:
    golden(
        "simplify",
        """
        input %x: float32[2, 3, 4]
        %a: float32[6, 4] = view(%x, size=[6, 4])
        %b: float32[1, 6, 4] = unsqueeze(%a, dims=[0])
        %c: float32[2, 3, 4] = view(%b, size=[2, 3, 4])
        %y: float32[2, 3, 4] = neg(%c)
        %d: float32[24] = view(%b, size=[24])
        %z: float32[24] = neg(%d)
        output "y" = %y
        output "z" = %z
        """,
        """
        %y: float32[2, 3, 4] = neg(%x)
        %d: float32[24] = view(%x, size=[24])
        %z: float32[24] = neg(%d)
        """,
    )


def test_permutes(golden) -> None:
    golden(
        "simplify",
        """
        input %x: float32[2, 3, 4, 5]
        %a: float32[2, 4, 3, 5] = permute(%x, dims=[0, 2, 1, 3])
        %b: float32[2, 4, 5, 3] = permute(%a, dims=[0, 1, 3, 2])
        %c: float32[2, 3, 4, 5] = permute(%b, dims=[0, 3, 1, 2])
        %y: float32[2, 3, 4, 5] = neg(%c)
        %z: float32[2, 4, 5, 3] = exp(%b)
        output "y" = %y
        output "z" = %z
        """,
        """
        %b: float32[2, 4, 5, 3] = permute(%x, dims=[0, 2, 3, 1])
        %y: float32[2, 3, 4, 5] = neg(%x)
        %z: float32[2, 4, 5, 3] = exp(%b)
        """,
    )


def test_permute_before_merging_view(golden) -> None:
    golden(
        "simplify",
        """
        input %x: float32[1, 5, 2, 4]
        %a: float32[1, 2, 5, 4] = permute(%x, dims=[0, 2, 1, 3])
        %b: float32[2, 5, 4] = view(%a, size=[2, 5, 4])
        %c: float32[2, 4, 5] = permute(%b, dims=[0, 2, 1])
        %d: float32[1, 2, 4, 5] = view(%c, size=[1, 2, 4, 5])
        %y: float32[1, 2, 4, 5] = exp(%d)
        output "y" = %y
        """,
        """
        %permute: float32[1, 2, 4, 5] = permute(%x, dims=[0, 2, 3, 1])
        %y: float32[1, 2, 4, 5] = exp(%permute)
        """,
    )


def test_permute_of_ones_is_a_view(golden) -> None:
    golden(
        "simplify",
        """
        input %x: float32[1, 5, 1, 4]
        %y: float32[5, 1, 1, 4] = permute(%x, dims=[1, 0, 2, 3])
        output "y" = %y
        """,
        """
        %y: float32[5, 1, 1, 4] = view(%x, size=[5, 1, 1, 4])
        """,
    )


def test_casts(golden) -> None:
    golden(
        "simplify",
        """
        input %x: float16[3]
        input %z: float32[3]
        %a: float32[3] = cast(%x, dtype=float32)
        %b: float16[3] = cast(%a, dtype=float16)
        %c: float64[3] = cast(%a, dtype=float64)
        %d: float16[3] = cast(%z, dtype=float16)
        %e: float32[3] = cast(%d, dtype=float32)
        %y: float16[3] = neg(%b)
        output "y" = %y
        output "c" = %c
        output "e" = %e
        """,
        """
        %c: float64[3] = cast(%x, dtype=float64)
        %d: float16[3] = cast(%z, dtype=float16)
        %e: float32[3] = cast(%d, dtype=float32)
        %y: float16[3] = neg(%x)
        """,
    )


def test_broadcasts(golden) -> None:
    golden(
        "simplify",
        """
        input %x: float32[2, 3, 4]
        input %m: bool[1, 1, 4]
        weight %w: float32[4]
        %a: float32[2, 3, 4] = expand(%w, size=[2, 3, 4])
        %y: float32[2, 3, 4] = mul(%x, %a)
        %b: bool[2, 3, 4] = expand(%m, size=[2, 3, 4])
        %c: float32[2, 3, 4] = where(%b, 1.5, -1.0)
        %z: float32[2, 3, 4] = add(%y, %c)
        output "z" = %z
        """,
        """
        %y: float32[2, 3, 4] = mul(%x, %w)
        %where: float32[1, 1, 4] = where(%m, 1.5, -1.0)
        %z: float32[2, 3, 4] = add(%y, %where)
        """,
    )


def test_plainer(golden) -> None:
    golden(
        "simplify",
        """
        input %x: float32[3]
        %a: float32[3] = pow(%x, 2.0)
        %b: float32[3] = sqrt(%a)
        %c: float32[3] = reciprocal(%b)
        %d: float32[3] = maximum(%c, 0.0)
        %e: float32[3] = clamp(%d, 0.0)
        %f: float32[3] = div(%e, 4.0)
        %g: float32[3] = div(%f, 3.0)
        %h: float32[3] = neg(%g)
        %y: float32[3] = neg(%h)
        output "y" = %y
        """,
        """
        %a: float32[3] = mul(%x, %x)
        %c: float32[3] = rsqrt(%a)
        %d: float32[3] = relu(%c)
        %f: float32[3] = mul(%d, 0.25)
        %g: float32[3] = div(%f, 3.0)
        """,
    )


def test_index_of_one_is_select(golden) -> None:
    golden(
        "simplify",
        """
        input %x: float32[1, 5, 4]
        weight %t: float32[7, 4]
        %i: int64[] = constant(value=int64[]{-1})
        %j: int64[3] = constant(value=int64[3]{1, 2, 3})
        %k: int64[1, 5] = constant(value=int64[1, 5]{6, 6, 6, 6, 6})
        %a: float32[1, 4] = index_select(%x, %i, dim=1)
        %b: float32[1, 3, 4] = index_select(%x, %j, dim=1)
        %c: float32[1, 5, 4] = index_select(%t, %k, dim=0)
        %y: float32[1, 5, 4] = add(%x, %c)
        output "a" = %a
        output "b" = %b
        output "y" = %y
        """,
        """
        %a: float32[1, 4] = select(%x, dim=1, index=4)
        %b: float32[1, 3, 4] = slice(%x, dim=1, start=1, end=4)
        %slice: float32[1, 4] = slice(%t, dim=0, start=6, end=7)
        %view: float32[1, 1, 4] = view(%slice, size=[1, 1, 4])
        %y: float32[1, 5, 4] = add(%x, %view)
        """,
    )


def test_places_in_order_are_a_view(golden) -> None:
    golden(
        "simplify",
        """
        input %x: bool[1, 3]
        %i: int64[1, 1, 3, 2] = constant(value=int64[1, 1, 3, 2]{0, 0, 0, 1, 0, 2})
        %t: bool[1, 4, 1] = constant(value=bool[1, 4, 1]{true, true, true, true})
        %g: bool[1, 1, 3] = gather_nd(%x, %i)
        %y: bool[1, 4, 3] = logical_and(%t, %g)
        output "y" = %y
        """,
        """
        %g: bool[1, 1, 3] = view(%x, size=[1, 1, 3])
        %y: bool[1, 4, 3] = expand(%g, size=[1, 4, 3])
        """,
    )


def test_embedding_and_index(golden) -> None:
    golden(
        "simplify",
        """
        input %x: bool[1, 3]
        weight %t: float32[7, 4]
        %k: int64[1, 5] = constant(value=int64[1, 5]{6, 6, 6, 6, 6})
        %r: int64[3] = constant(value=int64[3]{0, 1, 2})
        %i: int64[1, 1, 1] = constant(value=int64[1, 1, 1]{0})
        %j: int64[1, 1, 3] = constant(value=int64[1, 1, 3]{0, 1, -1})
        %c: float32[1, 5, 4] = embedding(%t, %k)
        %d: float32[3, 4] = embedding(%t, %r)
        %y: float32[1, 5, 4] = exp(%c)
        %g: bool[1, 1, 3] = index(%x, %i, %j)
        output "y" = %y
        output "d" = %d
        output "g" = %g
        """,
        """
        %slice: float32[1, 4] = slice(%t, dim=0, start=6, end=7)
        %view: float32[1, 1, 4] = view(%slice, size=[1, 1, 4])
        %d: float32[3, 4] = slice(%t, dim=0, end=3)
        %exp: float32[1, 1, 4] = exp(%view)
        %y: float32[1, 5, 4] = expand(%exp, size=[1, 5, 4])
        %g: bool[1, 1, 3] = view(%x, size=[1, 1, 3])
        """,
    )


def test_nothing_moves(golden) -> None:
    golden(
        "simplify",
        """
        input %x: float32[2, 3]
        %a: float32[2, 3] = slice(%x, dim=0)
        %b: float32[2, 3] = pad(%a, pads=[0, 0, 0, 0])
        %c: float32[2, 3] = cat(%b, dim=1)
        %d: float32[2, 3] = dropout(%c, train=false)
        %e: float32[2, 3] = expand(%d, size=[2, 3])
        %f: float32[2, 3] = clone(%e)
        %y: float32[2, 3] = exp(%f)
        output "y" = %y
        """,
        """
        %y: float32[2, 3] = exp(%x)
        """,
    )


def test_outputs_stay_results(golden) -> None:
    golden(
        "simplify",
        """
        input %x: float32[2, 3]
        %y: float32[2, 3] = clone(%x)
        output "y" = %y
        """,
        """
        %y: float32[2, 3] = clone(%x)
        """,
    )


def test_scatter_of_rows(golden) -> None:
    """An index that is the same along all dims but the first writes whole rows; other scatters stay."""
    golden(
        "simplify",
        """
        input %x: float32[4, 3]
        input %v: float32[6, 3]
        input %w: float32[6, 2]
        %j: int64[6, 1] = constant(value=int64[6, 1]{0, 3, 1, 3, 0, 3})
        %i: int64[6, 3] = expand(%j, size=[6, 3])
        %k: int64[6, 2] = expand(%j, size=[6, 2])
        %a: float32[4, 3] = scatter(%x, %i, %v, dim=0, reduce="add", include_self=true)
        %b: float32[4, 3] = scatter(%x, %i, %v, dim=0, reduce="amax", include_self=false)
        %c: float32[4, 3] = scatter(%x, %i, %v, dim=0, reduce="none", include_self=true)
        %d: float32[4, 3] = scatter(%x, %k, %w, dim=0, reduce="add", include_self=true)
        output "a" = %a
        output "b" = %b
        output "c" = %c
        output "d" = %d
        """,
        """
        %j: int64[6, 1] = constant(value=int64[6, 1]{0, 3, 1, 3, 0, 3})
        %k: int64[6, 2] = expand(%j, size=[6, 2])
        %a: float32[4, 3] = scatter_nd(%x, %j, %v, reduce="add")
        %full: float32[6, 3] = full(size=[6, 3], value=-inf, dtype=float32)
        %scatter_nd: float32[4, 3] = scatter_nd(%x, %j, %full)
        %b: float32[4, 3] = scatter_nd(%scatter_nd, %j, %v, reduce="amax")
        %c: float32[4, 3] = scatter_nd(%x, %j, %v)
        %d: float32[4, 3] = scatter(%x, %k, %w, dim=0, reduce="add")
        """,
    )
