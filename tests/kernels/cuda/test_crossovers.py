"""The crossovers of compute capabilities: every field decides a choice, and a capability without a row takes that of sm_90."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of, one_node

from xpuruntime import ir
from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.codegen.target import CodegenTarget
from xpuruntime.kernels.cuda import crossovers
from xpuruntime.kernels.cuda.conv.generated import ImplicitGemm
from xpuruntime.kernels.cuda.crossovers import CROSSOVERS, crossovers_of
from xpuruntime.kernels.cuda.matmul.generated import TILES, Generated, product_tile
from xpuruntime.kernels.kernel import NodeCall
from xpuruntime.kernels.spec.matmul import product_of
from xpuruntime.types import DType

ROW, SM_90 = CROSSOVERS["sm_90"], cuda_target("cuda:sm_90")


def product(dtype: str, k: int, filters: int = 512) -> NodeCall:
    b = ir.GraphBuilder("product")
    operands = [
        b.input("x", f"{dtype}[4096, {k}]"),
        b.weight("w", f"{dtype}[{filters}, {k}]"),
        b.weight("bias", f"{dtype}[{filters}]"),
    ]
    b.output("y", b.call("fused_linear", *operands, act="gelu"))
    return call_of(b.build(), {"w": 0, "bias": 0})


def convolution(dtype: str, channels: int, filters: int) -> NodeCall:
    operands = [
        np.zeros(s, getattr(ml_dtypes, dtype, dtype))
        for s in ((1, 2 * channels, 14, 14), (2 * filters, channels, 1, 1))
    ]
    pairs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
    graph, _, known = one_node("convolution", operands, "1", **pairs, groups=2)
    return call_of(graph, known, innermost=True)


def test_a_capability_without_a_row_has_that_of_sm_90() -> None:
    assert crossovers_of(cuda_target("cuda:sm_80")) is ROW
    assert crossovers_of(SM_90) is ROW


def measured(monkeypatch: pytest.MonkeyPatch, **sizes: Any) -> CodegenTarget:
    """Give sm_80 a row with other sizes and return its target."""
    monkeypatch.setattr(crossovers, "CROSSOVERS", {**CROSSOVERS, "sm_80": replace(ROW, **sizes)})
    return cuda_target("cuda:sm_80")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_row_decides_which_product_leads(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    k, results = ROW.product_max_k[DType(dtype)], ROW.product_min_results[DType(dtype)]
    call, usual = product(dtype, k + 8), cuda_target("cuda:sm_80")
    assert Generated().leads(product(dtype, k), usual)
    assert not Generated().leads(call, usual)
    target = measured(monkeypatch, product_max_k={DType(dtype): k + 8})
    assert Generated().leads(call, target)
    target = measured(monkeypatch, product_min_results={DType(dtype): 8 * results})
    assert not Generated().leads(product(dtype, k), target)


def test_a_row_decides_which_product_leads_on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    call = product("bfloat16", ROW.product_max_k[DType.BFLOAT16] + 8)
    assert Generated().leads(call, SM_90)
    for changed in ({"hopper_act_min_sizes": (4097, 384, 96)}, {"hopper_act_min_work": 1 << 40}):
        monkeypatch.setattr(crossovers, "CROSSOVERS", {"sm_90": replace(ROW, **changed)})
        assert not Generated().leads(call, SM_90)


def test_a_row_decides_the_tile_of_a_short_product(monkeypatch: pytest.MonkeyPatch) -> None:
    p = product_of(product("float16", 128, 4096)).flat()
    assert product_tile(p, SM_90) in TILES[-2:]
    assert product_tile(p, measured(monkeypatch, product_short_k=64)) not in TILES[-2:]


def test_a_row_decides_which_convolution_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    grouped, few = convolution("float16", 240, 40), convolution("float32", 16, 4)
    assert ImplicitGemm().leads(grouped, SM_90)
    assert ImplicitGemm().leads(few, SM_90)
    target = measured(monkeypatch, grouped_product_max_k=128, conv_min_filters=8)
    assert not ImplicitGemm().leads(grouped, target)
    assert not ImplicitGemm().leads(few, target)


def test_sizes_of_every_row_are_positive() -> None:
    for row in CROSSOVERS.values():
        assert row.device
        for field in fields(row):
            value = getattr(row, field.name)
            sizes = (
                value.values() if hasattr(value, "values") else value if isinstance(value, tuple) else [value]
            )
            assert field.name == "device" or all(type(size) is int and size > 0 for size in sizes), field.name
        assert set(row.product_max_k) == set(row.product_min_results)
