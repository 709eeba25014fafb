"""Written-out rotary embeddings."""

from __future__ import annotations


def test_slices(golden) -> None:
    golden(
        "recognize_rope",
        """
        input %x: float32[2, 3, 5, 4]
        weight %f: float32[5, 2]
        %g: float32[5, 4] = cat(%f, %f, dim=1)
        %cos: float32[5, 4] = cos(%g)
        %sin: float32[5, 4] = sin(%g)
        %a: float32[2, 3, 5, 4] = mul(%x, %cos)
        %l: float32[2, 3, 5, 2] = slice(%x, dim=3, end=2)
        %h: float32[2, 3, 5, 2] = slice(%x, dim=3, start=2)
        %n: float32[2, 3, 5, 2] = neg(%h)
        %t: float32[2, 3, 5, 4] = cat(%n, %l, dim=3)
        %b: float32[2, 3, 5, 4] = mul(%t, %sin)
        %y: float32[2, 3, 5, 4] = add(%a, %b)
        output "y" = %y
        """,
        """
        %g: float32[5, 4] = cat(%f, %f, dim=1)
        %cos: float32[5, 4] = cos(%g)
        %sin: float32[5, 4] = sin(%g)
        %slice: float32[5, 2] = slice(%cos, dim=1, end=2)
        %slice_1: float32[5, 2] = slice(%sin, dim=1, end=2)
        %y: float32[2, 3, 5, 4] = rope(%x, %slice, %slice_1)
        """,
    )


def test_split_and_a_table_per_example(golden) -> None:
    golden(
        "recognize_rope",
        """
        input %x: float32[2, 3, 5, 4]
        input %f: float32[2, 5, 2]
        %g: float32[2, 5, 4] = cat(%f, %f, dim=2)
        %cos: float32[2, 5, 4] = cos(%g)
        %sin: float32[2, 5, 4] = sin(%g)
        %c: float32[2, 1, 5, 4] = unsqueeze(%cos, dims=[1])
        %s: float32[2, 1, 5, 4] = unsqueeze(%sin, dims=[1])
        %a: float32[2, 3, 5, 4] = mul(%x, %c)
        %l: float32[2, 3, 5, 2], %h: float32[2, 3, 5, 2] = split(%x, sizes=[2, 2], dim=3)
        %n: float32[2, 3, 5, 2] = neg(%h)
        %t: float32[2, 3, 5, 4] = cat(%n, %l, dim=3)
        %b: float32[2, 3, 5, 4] = mul(%t, %s)
        %y: float32[2, 3, 5, 4] = add(%a, %b)
        output "y" = %y
        """,
        """
        %g: float32[2, 5, 4] = cat(%f, %f, dim=2)
        %cos: float32[2, 5, 4] = cos(%g)
        %sin: float32[2, 5, 4] = sin(%g)
        %c: float32[2, 1, 5, 4] = unsqueeze(%cos, dims=[1])
        %s: float32[2, 1, 5, 4] = unsqueeze(%sin, dims=[1])
        %view: float32[2, 5, 4] = view(%c, size=[2, 5, 4])
        %slice: float32[2, 5, 2] = slice(%view, dim=2, end=2)
        %view_1: float32[2, 5, 4] = view(%s, size=[2, 5, 4])
        %slice_1: float32[2, 5, 2] = slice(%view_1, dim=2, end=2)
        %y: float32[2, 3, 5, 4] = rope(%x, %slice, %slice_1)
        """,
    )


def test_rows_of_tables_that_positions_name(golden) -> None:
    golden(
        "recognize_rope",
        """
        input %x: float32[2, 3, 5, 4]
        input %p: int64[2, 5]
        weight %wc: float32[9, 2]
        weight %ws: float32[9, 2]
        %ec: float32[2, 5, 2] = embedding(%wc, %p)
        %es: float32[2, 5, 2] = embedding(%ws, %p)
        %uc: float32[2, 1, 5, 2] = unsqueeze(%ec, dims=[1])
        %us: float32[2, 1, 5, 2] = unsqueeze(%es, dims=[1])
        %c: float32[2, 1, 5, 4] = cat(%uc, %uc, dim=3)
        %s: float32[2, 1, 5, 4] = cat(%us, %us, dim=3)
        %a: float32[2, 3, 5, 4] = mul(%x, %c)
        %l: float32[2, 3, 5, 2], %h: float32[2, 3, 5, 2] = split(%x, sizes=[2, 2], dim=3)
        %n: float32[2, 3, 5, 2] = neg(%h)
        %t: float32[2, 3, 5, 4] = cat(%n, %l, dim=3)
        %b: float32[2, 3, 5, 4] = mul(%t, %s)
        %y: float32[2, 3, 5, 4] = add(%a, %b)
        output "y" = %y
        """,
        """
        %y: float32[2, 3, 5, 4] = rope(%x, %wc, %ws, %p)
        """,
    )


def test_halves_that_nobody_knows_to_be_equal_stay(golden) -> None:
    golden(
        "recognize_rope",
        """
        input %x: float32[2, 3, 5, 4]
        weight %cos: float32[5, 4]
        weight %sin: float32[5, 4]
        %a: float32[2, 3, 5, 4] = mul(%x, %cos)
        %l: float32[2, 3, 5, 2] = slice(%x, dim=3, end=2)
        %h: float32[2, 3, 5, 2] = slice(%x, dim=3, start=2)
        %n: float32[2, 3, 5, 2] = neg(%h)
        %t: float32[2, 3, 5, 4] = cat(%n, %l, dim=3)
        %b: float32[2, 3, 5, 4] = mul(%t, %sin)
        %y: float32[2, 3, 5, 4] = add(%a, %b)
        output "y" = %y
        """,
        """
        %a: float32[2, 3, 5, 4] = mul(%x, %cos)
        %l: float32[2, 3, 5, 2] = slice(%x, dim=3, end=2)
        %h: float32[2, 3, 5, 2] = slice(%x, dim=3, start=2)
        %n: float32[2, 3, 5, 2] = neg(%h)
        %t: float32[2, 3, 5, 4] = cat(%n, %l, dim=3)
        %b: float32[2, 3, 5, 4] = mul(%t, %sin)
        %y: float32[2, 3, 5, 4] = add(%a, %b)
        """,
    )
