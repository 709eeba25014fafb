"""Products by equation, of quantized integers, and determinants, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native import check

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import GraphBuilder

rng = np.random.default_rng(5)


def graph(calls: Any) -> tuple[Any, dict[str, Any]]:
    b = GraphBuilder("products")
    feeds: dict[str, Any] = {}
    for op, operands, attrs in calls:
        names = []
        for x in operands:
            name = None if x is None else b.input(f"x{len(feeds)}", f"{x.dtype.name}{list(x.shape)}")
            if name is not None:
                feeds[name] = x
            names.append(name)
        b.output(f"y{len(b.outputs)}", b.call(op, *names, **attrs))
    return b.build(), feeds


def judge(*calls: tuple[str, tuple[Any, ...], dict[str, Any]], target: str = "cpu") -> None:
    made, feeds = graph(calls)
    check(made, feeds, passes="none", split=3, target=target)


EQUATIONS = [
    ("ij,jk->ik", (4, 5), (5, 6)),
    ("bij,bjk->bik", (2, 4, 5), (2, 5, 6)),
    ("bhid,bhjd->bhij", (2, 3, 4, 8), (2, 3, 5, 8)),
    ("bihd,bjhd->bhij", (2, 4, 3, 8), (2, 5, 3, 8)),
    ("bhij,bjhd->bihd", (2, 3, 4, 5), (2, 5, 3, 8)),
    ("...ij,...jk->...ik", (2, 1, 4, 5), (3, 5, 6)),
    ("ij,kj->ki", (4, 5), (6, 5)),
    ("i,j->ij", (4,), (5,)),
    ("ij,ij->", (4, 5), (4, 5)),
    ("bij,bkl->b", (2, 3, 4), (2, 5, 6)),
    ("ij,ij->ij", (4, 5), (4, 5)),
    ("ij,j", (4, 5), (5,)),
    ("ij,jk->ik", (4, 0), (0, 6)),
    ("ij,jk->ik", (1, 5), (5, 1)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_equations_of_two(dtype: str) -> None:
    def x(shape: tuple[int, ...]) -> Any:
        return (rng.standard_normal(shape) * 5).astype(dtype)

    judge(*[("einsum", (x(a), x(b)), {"equation": e}) for e, a, b in EQUATIONS])


def test_equations_of_one_and_of_three() -> None:
    def x(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    judge(
        ("einsum", (x(4, 4),), {"equation": "ii->i"}),
        ("einsum", (x(4, 4),), {"equation": "ii"}),
        ("einsum", (x(4, 5),), {"equation": "ij->ji"}),
        ("einsum", (x(4, 5), x(5, 6), x(6, 3)), {"equation": "ij,jk,kl->il"}),
    )


def test_attention_by_equation_is_a_matrix_product() -> None:
    made, _ = graph(
        [
            (
                "einsum",
                (np.ones((2, 4, 3, 8), np.float32), np.ones((2, 5, 3, 8), np.float32)),
                {"equation": "bihd,bjhd->bhij"},
            )
        ]
    )
    (call,) = compile_graph(made, passes=0).entries[0].plans[0].calls
    assert call.kernel == "matmul/generated"


def codes(shape: tuple[int, ...], dtype: str) -> Any:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize(
    ("a", "b"),
    [((4, 7), (7, 5)), ((2, 4, 7), (2, 7, 5)), ((2, 1, 4, 7), (3, 7, 5)), ((7,), (7, 5)), ((4, 7), (7,))],
)
def test_integers(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, w = codes(a, "uint8"), codes(b, "int8")
    zero = np.array(12, np.uint8)
    calls = [("matmul_integer", (x, w), {}), ("matmul_integer", (x, w, zero, np.array([-3], np.int8)), {})]
    if len(b) > 1:
        calls.append(("matmul_integer", (x, w, None, codes((b[-1],), "int8")), {}))
    if len(a) > 1:
        calls.append(("matmul_integer", (x, w, codes((a[-2],), "uint8")), {}))
    scales = [np.array(s, np.float32) for s in (0.02, 0.3, 1.7)]
    for dtype in ("uint8", "int8"):
        y_zero = np.array(3, dtype)
        calls.append(
            (
                "qlinear_matmul",
                (x, scales[0], zero, w, scales[1], np.array(1, np.int8), scales[2], y_zero),
                {},
            )
        )
    judge(*calls)


def test_determinants() -> None:
    x = rng.standard_normal((3, 2, 5, 5))
    x[1, 0, 2] = x[1, 0, 3]  # singular
    judge(("det", (x[0] * 2,), {}), ("det", (x[1:].astype(np.float32),), {}), ("det", (x[0, 0],), {}))
