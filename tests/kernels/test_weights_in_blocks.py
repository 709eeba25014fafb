"""Weights that stay in the blocks of a GGUF file: the values are the file's, on CPUs and on CUDA, in any mixture of formats."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.blocks import random_blocks
from support.native import compile_native, run_native

from xpuruntime.errors import FormatError
from xpuruntime.ir import GraphBuilder, interp
from xpuruntime.policies import KernelPolicy
from xpuruntime.program.program import RecipeStep, WeightTransformRecipe
from xpuruntime.runtime.weights.recipes import run_recipe
from xpuruntime.storage.blocks import BLOCK_FORMATS, GroupForm, block_groups, block_values, common_form
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.types import DType, TensorSpec

STORED = KernelPolicy(weights="stored")
LIMITS = {"float32": 1e-5, "bfloat16": 1 / 64, "float16": 1 / 512}


def on(target: str) -> Any:
    return target if target == "cpu" else cuda_host()


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def layer(
    formats: list[str], rows: int, n: int, k: int, dtype: str = "float32", *, gated: bool = False
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return a layer whose weight is the rows of all formats, n of each."""
    b, own, draw = GraphBuilder("layer"), dtype_of(dtype), np.random.default_rng(rows + n)
    x, parts, weights = b.input("x", f"{dtype}[{rows}, {k}]"), [], {}
    for i, name in enumerate(formats):
        weights[f"w{i}"] = random_blocks(name, n, k // BLOCK_FORMATS[name].values, seed=i)
        raw = b.weight(f"w{i}", f"uint8[{n}, {weights[f'w{i}'].shape[1]}]")
        parts.append(b.cast(b.dequantize_blocks(raw, blocks=name), dtype=DType(dtype)))
    w = b.cat(*parts, dim=0) if len(parts) > 1 else parts[0]
    weights["bias"] = draw.standard_normal(n * len(formats)).astype(own)
    bias = b.weight("bias", f"{dtype}[{n * len(formats)}]")
    if gated:
        weights["scale"] = draw.standard_normal(k).astype(own)
        y = b.norm_linear(
            x, w, bias, None, b.weight("scale", f"{dtype}[{k}]"), act="silu", eps=1e-6, gated=True
        )
    else:
        y = b.fused_linear(x, w, bias, None, act="silu")
    b.output("y", y)
    return b.build(), {"x": draw.standard_normal((rows, k)).astype(own)}, weights


def compared(
    target: str, formats: list[str], rows: int, n: int, k: int, dtype: str = "float32", **how: Any
) -> None:
    graph, feeds, weights = layer(formats, rows, n, k, dtype, **how)
    program = compile_native(graph, feeds, policy=STORED, target=on(target))
    assert {c.kernel for c in program.entries[0].plans[0].calls} == {"matmul/stored_weights"}
    got = run_native(graph, feeds, weights=weights, policy=STORED, target=on(target))["y"].astype(np.float64)
    wide, feeds, weights = layer(
        formats, rows, n, k, **how
    )  # the same numbers, before they are rounded to dtype
    exact = {
        name: a.astype(dtype_of(dtype)).astype(np.float32) if a.dtype != np.uint8 else a
        for name, a in weights.items()
    }
    x = {"x": feeds["x"].astype(dtype_of(dtype)).astype(np.float32)}
    want = interp.run(wide, x, weights=exact)["y"].astype(np.float64)
    assert abs(got - want).max() <= LIMITS[dtype] * abs(want).max()


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_values_are_those_of_the_formats_own_package(name: str) -> None:
    """Bit for bit, and groups of every form that holds them have the same values."""
    gguf = pytest.importorskip("gguf")
    raw = random_blocks(name, 5, 3)
    want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    assert np.array_equal(block_values(raw, name), want)
    own = BLOCK_FORMATS[name].form
    for form in dict.fromkeys((own, *(common_form((own, f.form)) for f in BLOCK_FORMATS.values()))):
        assert np.array_equal(values_of(block_groups(raw, name, form), form), want), form


def values_of(groups: Any, form: GroupForm) -> Any:
    """Return the values of groups, as the recipe's table says."""
    codes = groups[..., : form.code_bytes]
    if form.bits == 4:
        pairs = codes.view(np.uint8)
        codes = np.stack([pairs & 15, pairs >> 4], -1).reshape(*pairs.shape[:-1], -1)
    numbers = (
        np.ascontiguousarray(groups[..., form.code_bytes :])
        .view("<f4" if form.numbers == "float32" else "<f2")
        .astype(np.float32)
    )
    first, second = numbers[..., :1], numbers[..., 1:]
    scale, low = (first * second, np.float32(0)) if form.numbers == "product" else (first, second)
    return (codes.astype(np.float32) * scale + low).reshape(groups.shape[0], -1)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize(
    ("rows", "n", "dtype"),
    [(1, 70, "float32"), (5, 33, "bfloat16"), (3, 40, "float16"), (40, 24, "bfloat16")],
)
def test_a_layer_computes_what_its_blocks_say(target: str, name: str, rows: int, n: int, dtype: str) -> None:
    compared(target, [name], rows, n, 512 if BLOCK_FORMATS[name].values > 32 else 352, dtype)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "formats",
    [["Q4_K", "Q4_K", "Q6_K"], ["Q4_0", "Q8_0"], ["Q4_1", "Q4_0"], ["Q8_0", "Q6_K"], ["Q5_K", "Q4_1"]],
    ids=str,
)
@pytest.mark.parametrize("rows", [2, 20])
def test_layers_of_several_formats_share_a_form_that_holds_all(
    target: str, formats: list[str], rows: int
) -> None:
    compared(target, formats, rows, 21, 256, "bfloat16")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q5_1", "Q6_K", "Q8_0"])
def test_a_norm_before_and_a_gate_after(target: str, name: str) -> None:
    compared(target, [name, name], 4, 21, 256, gated=True)


def test_rows_that_are_moved_stay_in_their_blocks() -> None:
    """Slices, views and transposed leading dims of whole rows, as of fused projections."""
    b = GraphBuilder("moved")
    raw = random_blocks("Q4_1", 12, 2)
    w = b.dequantize_blocks(b.weight("w", f"uint8[12, {raw.shape[1]}]"), blocks="Q4_1")
    w = b.view(b.permute(b.view(w, size=[3, 4, 64]), dims=[1, 0, 2]), size=[12, 64])
    w = b.cat(b.slice(w, dim=0, start=4, end=12), b.slice(w, dim=0, start=0, end=4), dim=0)
    b.output("y", b.linear(b.input("x", "float32[2, 64]"), w, None))
    graph, feeds = b.build(), {"x": np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)}
    program = compile_native(graph, feeds, policy=STORED, passes="none")
    assert [c.kernel for c in program.entries[0].plans[0].calls] == ["matmul/stored_weights"]
    got = run_native(graph, feeds, weights={"w": raw}, policy=STORED, passes="none")["y"]
    want = interp.run(graph, feeds, weights={"w": raw})["y"]
    assert abs(got - want).max() <= 1e-5 * abs(want).max()


def test_other_weights_are_computed_as_floats_and_the_plan_says_why() -> None:
    """Transposed blocks, rows with an added number, and plain floats."""
    for form in ("transposed", "added", "floats"):
        b = GraphBuilder("net")
        x = b.input("x", "float32[2, 64]")
        if form == "floats":
            w = b.weight("w", "float32[64, 64]")
        else:
            w = b.dequantize_blocks(b.weight("w", "uint8[64, 36]"), blocks="Q4_0")
            w = b.permute(w, dims=[1, 0]) if form == "transposed" else b.add(w, 1.0)
        b.output("y", b.linear(x, w, None))
        program = compile_native(b.build(), {"x": np.zeros((2, 64), np.float32)}, policy=STORED)
        assert "stored_weights" not in program.entries[0].plans[0].calls[-1].kernel
        rejected = [c for d in program.decisions for c in d.rejected if c.name == "stored_weights"]
        assert "not in whole rows of blocks" in rejected[0].reason


def test_without_the_word_the_values_are_floats() -> None:
    graph, feeds, weights = layer(["Q4_K"], 2, 24, 256)
    program = compile_native(graph, feeds)
    assert "stored_weights" not in program.entries[0].plans[0].calls[0].kernel
    got = run_native(graph, feeds, weights=weights)["y"]
    want = interp.run(graph, feeds, weights=weights)["y"]
    assert abs(got - want).max() <= 1e-5 * abs(want).max()


def test_memory_is_that_of_codes_and_numbers() -> None:
    """A row of 256 values: 4 bits and 8 bytes per group of 32, or 8 bits and 4 bytes per group of 16."""
    for name, bits in (("Q4_0", 5), ("Q4_K", 6), ("Q8_0", 9), ("Q6_K", 10)):
        graph, feeds, _ = layer([name], 1, 256, 256)
        program = compile_native(graph, feeds, policy=STORED)
        assert sum(r.spec.size_bytes or 0 for r in program.recipes) == 256 * 256 * bits // 8 + 256 * 4


def test_damaged_numbers_and_wrong_recipes_are_refused() -> None:
    raw = random_blocks("Q4_0", 2, 2)
    raw[0, :2] = np.array([np.inf], "<f2").view(np.uint8)

    def recipe(**attrs: Any) -> WeightTransformRecipe:
        given = {"blocks": "Q4_0", "bits": 4, "group": 32, "numbers": "float16"} | attrs
        return WeightTransformRecipe(
            "r", TensorSpec((2, 2, 20), DType.INT8), "w", (RecipeStep("groups_of_blocks", ("%in",), given),)
        )

    with pytest.raises(FormatError, match="scale that is not finite"):
        run_recipe(recipe(), {"w": raw})
    raw[0, :2] = np.array([60000], "<f2").view(np.uint8)
    with pytest.raises(FormatError, match="minimum that exceeds float16"):
        run_recipe(recipe(), {"w": raw})
    for attrs, match in (
        ({"blocks": "Q3_K"}, "no such format of blocks"),
        ({"bits": 5}, "no such groups"),
        ({"blocks": "Q8_0"}, "must be rows of blocks of 34 bytes"),
        ({"numbers": "product"}, "do not hold Q4_0"),
    ):
        with pytest.raises(FormatError, match=match):
            run_recipe(recipe(**attrs), {"w": raw})
