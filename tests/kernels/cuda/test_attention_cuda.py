"""Attention on CUDA: the kernels' own text, run on a CPU by the emulator, against the interpreter."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of, judge, one_node
from support.native import check

import xpuruntime as xrt
from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.ir import GraphBuilder
from xpuruntime.kernels.cuda.attention import flash_simt
from xpuruntime.kernels.cuda.attention.decode import FlashDecode, decode_tile_config
from xpuruntime.kernels.cuda.attention.flash import FlashV2, Naive
from xpuruntime.kernels.cuda.attention.flash_simt import FlashSimt, SimtTileConfig
from xpuruntime.kernels.spec.attention import AttentionShape
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.testing.emulation.launches import emulate

rng = np.random.default_rng(13)


def array(shape: tuple[int, ...], dtype: str = "bfloat16") -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype))


def run(
    kernel: Any, q: Any, k: Any, dv: int, dtype: str = "bfloat16", mask: Any = None, **options: Any
) -> Any:
    given = [array(q, dtype), array(k, dtype), array((*k[:3], dv), dtype), *([] if mask is None else [mask])]
    return judge(kernel, "attention", *given, **options)


def test_flash_plain_causal_grouped_and_padded() -> None:
    run(FlashV2(), (1, 2, 130, 64), (1, 2, 150, 64), 64)
    run(FlashV2(), (1, 4, 70, 64), (1, 2, 70, 64), 64, causal=True)
    run(FlashV2(), (2, 2, 33, 40), (2, 1, 90, 40), 24, "float16", causal=True, causal_offset=57)
    run(FlashV2(), (1, 1, 70, 20), (1, 1, 90, 20), 20, shift=1)


def test_flash_masks_and_caps() -> None:
    run(FlashV2(), (1, 2, 33, 20), (1, 1, 90, 20), 20, mask=rng.random((1, 1, 33, 90)) < 0.5)
    run(FlashV2(), (1, 2, 33, 128), (1, 1, 90, 128), 128, mask=array((33, 90), "float32"), softcap=20.0)
    run(FlashV2(), (1, 1, 5, 32), (1, 1, 9, 32), 32, scale=-0.3)


@pytest.mark.parametrize("kernel", [FlashV2(), FlashDecode()], ids=lambda k: k.name)
def test_a_query_that_sees_nothing_gives_zeros(kernel: Any) -> None:
    mask = np.ones((1, 1, 3, 90), bool)
    mask[:, :, 1] = False
    assert not np.any(run(kernel, (1, 2, 3, 32), (1, 2, 90, 32), 32, mask=mask)[:, :, 1].astype(np.float32))


def test_decode_grouped_split_causal_masked() -> None:
    run(FlashDecode(), (2, 12, 1, 128), (2, 2, 150, 128), 128)
    run(FlashDecode(), (1, 4, 3, 40), (1, 2, 300, 40), 24, "float16", causal=True, causal_offset=297)
    run(FlashDecode(), (1, 4, 1, 64), (1, 2, 300, 64), 64, mask=np.arange(300).reshape(1, 1, 1, 300) < 40)
    run(
        FlashDecode(), (1, 4, 1, 64), (1, 2, 300, 64), 64, mask=array((1, 4, 1, 300), "float32"), softcap=20.0
    )
    run(FlashDecode(), (1, 10, 1, 100), (1, 1, 300, 100), 100, mask=array((1, 1, 1, 300)), shift=1)


def test_decode_takes_a_short_chunk_over_many_keys() -> None:
    """Sixteen tokens of six heads are 96 rows; each sees the keys up to its own."""
    mask = np.arange(530)[None] <= 300 + np.arange(16)[:, None]
    run(FlashDecode(), (1, 12, 16, 64), (1, 2, 530, 64), 64, mask=mask)
    run(FlashDecode(), (2, 8, 16, 32), (2, 1, 512, 32), 24, "float16", causal=True, causal_offset=496)


@pytest.mark.parametrize(("keys", "dv", "heads"), [(1600, 32, 6), (1700, 23, 6), (1900, 32, 17)])
def test_many_parts_of_a_task_are_joined_group_by_group(keys: int, dv: int, heads: int) -> None:
    run(
        FlashDecode(),
        (1, heads, 1, 32),
        (1, 1, keys, 32),
        dv,
        mask=np.arange(keys).reshape(1, 1, 1, keys) < keys - 130,
    )
    graph, _, known = one_node("attention", [array((1, heads, 1, 32)), *[array((1, 1, keys, 32))] * 2])
    cut = decode_tile_config(AttentionShape.of(call_of(graph, known)), cuda_target("cuda:sm_90"))
    assert cut.splits == math.ceil(keys / 64)
    assert cut.merge_group < cut.splits


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("q", "k", "dv", "attrs"), [
    ((1, 2, 66, 64), (1, 2, 130, 64), 64, {}),
    ((1, 4, 70, 64), (1, 2, 70, 64), 64, {"causal": True}),
    ((2, 2, 33, 40), (2, 1, 90, 40), 24, {"causal": True, "causal_offset": 57}),
    ((1, 1, 70, 20), (1, 1, 90, 20), 20, {"shift": 1}),
    ((1, 1, 20, 256), (1, 1, 40, 256), 192, {}),
    ((1, 1, 5, 31), (1, 1, 9, 31), 17, {"scale": -0.3}),
    ((1, 2, 33, 128), (1, 1, 90, 128), 128, {"softcap": 20.0}),
    ((0, 2, 33, 32), (0, 2, 9, 32), 32, {}),
    ((1, 2, 9, 32), (1, 2, 0, 32), 32, {}),
    ((1, 2, 9, 200), (1, 1, 40, 200), 200, {"dtype": "bfloat16"}),
])  # fmt: skip
def test_simt_takes_float32_and_wide_heads(q: Any, k: Any, dv: int, attrs: Any) -> None:
    run(FlashSimt(), q, k, dv, **{"dtype": "float32"} | attrs)


@pytest.mark.parametrize("mask", ["float", "bool"])
def test_simt_masks(mask: str) -> None:
    shape = (1, 2, 49, 49)
    given = array(shape, "float32") if mask == "float" else rng.random(shape) < 0.5
    if mask == "bool":
        given[:, :, 3] = False
    y = run(FlashSimt(), (2, 2, 49, 32), (2, 2, 49, 32), 32, "float32", given)
    assert np.any(y[:, :, 3]) == (mask == "float")


@pytest.mark.parametrize(
    "config", [*flash_simt._NARROW, *flash_simt._WIDE, SimtTileConfig(8, 64, 2, 16)], ids=str
)
def test_simt_tiles(config: SimtTileConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_simt, "simt_tile_config", lambda s, target: config)
    run(FlashSimt(), (1, 1, 70, 48), (1, 1, 75, 48), 36, "float32")


def test_simt_spreads_nan_and_infinity_like_the_reference() -> None:
    q, k, v = (array((1, 1, n, 32), "float32") for n in (20, 33, 33))
    q[0, 0, 3], k[0, 0, 7, 2], v[0, 0, 5, 1] = np.nan, np.inf, np.inf
    judge(FlashSimt(), "attention", q, k, v)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_naive_takes_every_float(dtype: str) -> None:
    run(Naive(), (1, 2, 9, 20), (1, 1, 33, 20), 24, dtype, mask=rng.random((1, 1, 9, 33)) < 0.5)
    run(Naive(), (1, 2, 9, 20), (1, 1, 33, 20), 20, dtype, causal=True, softcap=5.0)


def test_what_is_refused_has_a_reason() -> None:
    target = cuda_target("cuda:sm_80")

    def said(kernel: Any, q: Any, k: Any, dtype: str = "bfloat16") -> str:
        graph, _, known = one_node("attention", [array(q, dtype), array(k, dtype), array(k, dtype)])
        return str(kernel.supports(call_of(graph, known), target).reason)

    assert (
        said(FlashV2(), (1, 1, 4, 32), (1, 1, 4, 32), "float32")
        == "tensor cores multiply float16 and bfloat16, not float32"
    )
    assert (
        said(FlashV2(), (1, 1, 4, 160), (1, 1, 4, 160))
        == "heads of at most 128 elements are supported, got 160"
    )
    graph, _, known = one_node("attention", [array((1, 2, 4, 32), "bfloat16")] * 3)
    strided = FlashV2().supports(call_of(graph, known, innermost=True), target)
    assert strided.reason == "the elements of a head must be contiguous"
    assert (
        said(FlashDecode(), (1, 8, 9, 32), (1, 1, 9, 32))
        == "at most 64 queries per key head are supported for 9 queries of a head and 9 keys, got 72"
    )
    assert said(FlashDecode(), (1, 8, 16, 32), (1, 1, 512, 32)) == ""
    assert (
        said(FlashDecode(), (1, 8, 17, 32), (1, 1, 512, 32))
        == "at most 128 queries per key head are supported for 17 queries of a head and 512 keys, got 136"
    )
    assert (
        said(FlashSimt(), (1, 1, 4, 260), (1, 1, 4, 260))
        == "heads of at most 256 elements are supported, got 260"
    )
    assert (
        said(FlashSimt(), (1, 1, 4, 32), (1, 1, 4, 32), "float64")
        == "sums are in float32, which float64 exceeds"
    )
    assert (
        said(Naive(), (1, 1, 4, 32), (1, 1, 90000, 32), "float32")
        == "the scores of 90000 keys do not fit in shared memory"
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("q", "k", "dv", "dtype", "attrs"), [
    ((1, 2, 130, 64), (1, 1, 260, 64), 64, "bfloat16", {}),
    ((1, 1, 150, 128), (1, 1, 150, 128), 128, "float16", {"causal": True}),
    ((1, 1, 70, 80), (1, 1, 140, 80), 72, "bfloat16", {"causal": True, "causal_offset": 70, "softcap": 9.0}),
    ((1, 1, 70, 36), (1, 1, 33, 36), 36, "bfloat16", {}),
])  # fmt: skip
def test_flash_by_products_of_a_warpgroup(
    q: Any, k: Any, dv: int, dtype: str, attrs: Any, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole programs on the emulated Hopper device. Of two blocks that share the keys, the second may have none."""
    monkeypatch.setattr("xpuruntime.kernels.cuda.attention.flash.wants_hopper", lambda s, target: True)
    monkeypatch.setattr("xpuruntime.kernels.cuda.attention.flash.splits_keys", lambda s, target: split)
    own = getattr(ml_dtypes, dtype, dtype)
    b = GraphBuilder("attention")
    feeds = {n: rng.standard_normal(s).astype(own) for n, s in (("q", q), ("k", k), ("v", (*k[:3], dv)))}
    b.output("y", b.attention(*(b.input(n, f"{dtype}{list(a.shape)}") for n, a in feeds.items()), **attrs))
    check(b.build(), feeds, passes="none", target=cuda_host(), kernels={"attention": "flash_v2"})


def _kinds(queries: int, keys: int) -> dict[str, np.ndarray]:
    row, key = np.arange(queries)[:, None], np.arange(keys)[None]
    window = (key <= row + 200) & (key > row + 40)
    return {
        "causal": key <= row + 100,
        "window": window,
        "open": np.ones((queries, keys), bool),
        "blind rows": (key <= row) & (row % 3 > 0),
        "nothing": np.zeros((queries, keys), bool),
        "one key of a block": key == 300 + row % 2,
        "noise": rng.random((queries, keys)) < 0.5,
        "far blocks": (key < 128) | (key >= 384) | (row < 0),
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", list(_kinds(1, 1)))
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("keys", "attrs"), [(528, {}), (520, {}), (512, {"softcap": 9.0})])
def test_keys_that_no_query_of_a_block_sees_are_left_out(
    kind: str, keys: int, attrs: Any, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 520 keys a query's flags do not begin at 16 bytes: the mask is asked key by key there."""
    monkeypatch.setattr("xpuruntime.kernels.cuda.attention.flash.wants_hopper", lambda s, target: True)
    monkeypatch.setattr("xpuruntime.kernels.cuda.attention.flash.splits_keys", lambda s, target: split)
    own, queries = ml_dtypes.bfloat16, 150
    mask = np.stack([_kinds(queries, keys)[kind], _kinds(queries, keys)["noise"]])[:, None]
    b = GraphBuilder("attention")
    feeds = {
        n: rng.standard_normal((2, 2 if n == "q" else 1, queries if n == "q" else keys, 64)).astype(own)
        for n in "qkv"
    } | {"mask": mask}
    names = [b.input(n, f"{'bool' if n == 'mask' else 'bfloat16'}{list(a.shape)}") for n, a in feeds.items()]
    b.output("y", b.attention(*names, **attrs))
    check(b.build(), feeds, passes="none", target=cuda_host(), kernels={"attention": "flash_v2"})


def test_a_row_of_shared_keys_has_the_same_bits_whatever_other_rows_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Row 0 of the second mask sees a block of keys that no row of the first sees; each block stays with its half of the cluster."""
    monkeypatch.setattr("xpuruntime.kernels.cuda.attention.flash.wants_hopper", lambda s, target: True)
    monkeypatch.setattr("xpuruntime.kernels.cuda.attention.flash.splits_keys", lambda s, target: True)
    mask = np.ones((128, 512), bool)
    mask[:, 256:384] = False
    other = mask.copy()
    other[0] = True
    own = ml_dtypes.bfloat16
    q, k, v = (rng.standard_normal((1, 1, n, 64)).astype(own) for n in (128, 512, 512))
    rows = []
    for seen in (mask, other):
        graph, feeds, known = one_node("attention", [q, k, v, seen])
        call, target = call_of(graph, known), cuda_target("cuda:sm_90")
        rows.append(emulate(FlashV2().lower(call, target), call, target, feeds)[0])
    assert rows[0][:, :, 1:].tobytes() == rows[1][:, :, 1:].tobytes()
    assert rows[0].tobytes() != rows[1].tobytes()


def test_where_a_mask_is_looked_through_first() -> None:
    def looks(mask: np.ndarray, **attrs: Any) -> bool:
        q = np.zeros((1, 16, 1024, 64), ml_dtypes.bfloat16)
        graph, _, known = one_node("attention", [q, q, q, mask], **attrs)
        (stage,) = FlashV2().lower(call_of(graph, known), cuda_target("cuda:sm_90")).stages
        return "SCANS_MASK = true" in stage.source

    flags = np.ones((1024, 1024), bool)
    assert looks(flags)
    assert not looks(flags, causal=True)
    assert not looks(flags[:1])  # the same for all queries: there is nothing to spare by blocks
    assert not looks(np.zeros((1024, 1024), np.float32))


def test_hopper_targets_take_its_products_where_there_are_queries_enough() -> None:
    def part(target: str, heads: int) -> frozenset[str]:
        shape = (1, heads, 1024, 128)
        graph, _, known = one_node("attention", [np.zeros(shape, ml_dtypes.bfloat16)] * 3)
        return FlashV2().lower(call_of(graph, known), cuda_target(target)).stages[0].parts

    assert part("cuda:sm_90", 16) == part("cuda:sm_90", 2) == {"flash_hopper"}
    assert part("cuda:sm_90", 1) == part("cuda:sm_80", 16) == part("cuda:sm_100", 16) == {"flash_v2"}


def test_decode_leaves_chunks_that_fill_a_device_to_flash() -> None:
    def kernel(batch: int, heads: int, kv: int, queries: int, keys: int, masked: bool = True) -> str:
        b = GraphBuilder("attention")
        q = b.input("q", f"bfloat16[{batch}, {heads}, {queries}, 128]")
        k, v = (b.input(n, f"bfloat16[{batch}, {kv}, {keys}, 128]") for n in "kv")
        mask = [b.input("mask", f"bool[{batch}, 1, {queries}, {keys}]")] if masked else []
        b.output("y", b.call("attention", q, k, v, *mask))
        program = xrt.compile(b.build(), target="cuda:h200")
        names = [c.kernel for c in program.entries[0].plans[0].calls if c.kernel.startswith("attention/")]
        return names[0].partition("/")[2]

    assert kernel(1, 12, 2, 16, 1088) == kernel(8, 12, 2, 16, 1088) == "flash_decode"
    assert (
        kernel(1, 32, 32, 128, 1088)
        == kernel(8, 32, 32, 128, 4096)
        == kernel(1, 32, 8, 32, 1088)
        == "flash_v2"
    )
    assert kernel(1, 12, 2, 16, 511) == kernel(12, 12, 2, 16, 1088) == "flash_v2"
    assert kernel(1, 12, 2, 10, 100) == "flash_decode"  # 60 rows


def test_few_queries_with_a_mask_take_hopper_products_which_skip_masked_keys() -> None:
    def part(queries: int, masked: bool) -> frozenset[str]:
        q, k = (np.zeros((1, 12, n, 128), ml_dtypes.bfloat16) for n in (queries, 1088))
        inputs = [q, k, k, *([np.ones((queries, 1088), bool)] if masked else [])]
        graph, _, known = one_node("attention", inputs)
        return FlashV2().lower(call_of(graph, known), cuda_target("cuda:h200")).stages[0].parts

    assert part(128, True) == part(17, True) == {"flash_hopper"}
    assert part(128, False) == part(16, True) == {"flash_v2"}


def test_two_blocks_share_keys_where_multiprocessors_would_be_idle() -> None:
    def cluster(heads: int, queries: int, keys: int, causal: bool = False) -> Any:
        q, k = (np.zeros((1, heads, n, 128), ml_dtypes.bfloat16) for n in (queries, keys))
        graph, _, known = one_node("attention", [q, k, k], causal=causal)
        (stage,) = FlashV2().lower(call_of(graph, known), cuda_target("cuda:h100-sxm")).stages
        return stage.options.get("cluster", [1])[0]

    assert [cluster(h, 1024, 1024) for h in (1, 2, 8, 9)] == [1, 2, 2, 1]
    assert [cluster(h, 1024, 1024, causal=True) for h in (9, 16, 17)] == [2, 2, 1]
    assert [cluster(8, 512, keys) for keys in (511, 512)] == [1, 2]
    assert [cluster(12, 896, 896, causal) for causal in (False, True)] == [1, 1]
