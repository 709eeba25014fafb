"""Single ops: every op computes what PyTorch computes, in every type and in every tensor layout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xpuruntime import ops
from xpuruntime.inference.ops.tensor_layout import facts_of

sys.path.insert(0, str(Path(__file__).parent))
from op_tensors import close, kept, some  # noqa: F401  (kept is a fixture)

sys.path.pop(0)

torch = pytest.importorskip("torch")
F = torch.nn.functional

# op, operands, what PyTorch computes
CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}


def case(
    name: str, ours: Callable[..., Any], theirs: Callable[..., Any], *operands: Any, **attributes: Any
) -> None:
    CASES[name] = (lambda: ours(*operands, **attributes), lambda: theirs(*operands))


case("matmul", ops.matmul, torch.matmul, some(5, 7), some(7, 3))
case("matmul of a transpose", ops.matmul, torch.matmul, some(5, 7), some(3, 7).T)
case("matmul of two transposes", ops.matmul, torch.matmul, some(7, 5).T, some(3, 7).T)
case("matmul of vectors", ops.matmul, torch.matmul, some(7), some(7))
case("matmul, vector on the left", ops.matmul, torch.matmul, some(7), some(2, 7, 3))
case("matmul, broadcast batches", ops.matmul, torch.matmul, some(2, 1, 5, 7), some(3, 7, 4))
case("matmul, batches by expand", ops.matmul, torch.matmul, some(1, 5, 7).expand(3, 5, 7), some(3, 7, 4))
case("matmul of a slice with gaps", ops.matmul, torch.matmul, some(5, 9)[:, 1:8], some(7, 3))
case("matmul of nothing", ops.matmul, torch.matmul, some(0, 7), some(7, 3))
case("matmul over nothing", ops.matmul, torch.matmul, some(5, 0), some(0, 3))
case("softmax", ops.softmax, lambda x: F.softmax(x, -1), some(4, 9))
case("softmax along rows", lambda x: ops.softmax(x, 0), lambda x: F.softmax(x, 0), some(4, 9))
case("softmax with NaN and infinities", ops.softmax, lambda x: F.softmax(x, -1),
     torch.tensor([[1.0, float("nan"), 2.0], [float("-inf"), 0.0, 1.0], [float("-inf")] * 3]))  # fmt: skip
case(
    "layer norm", ops.layer_norm, lambda x, w, b: F.layer_norm(x, (6,), w, b), some(3, 4, 6), some(6), some(6)
)
case("layer norm of two dims", lambda x: ops.layer_norm(x, normalized_shape=[4, 6]),
     lambda x: F.layer_norm(x, (4, 6)), some(3, 4, 6))  # fmt: skip
case(
    "layer norm, other eps",
    lambda x: ops.layer_norm(x, eps=0.5),
    lambda x: F.layer_norm(x, (6,), eps=0.5),
    some(3, 6),
)
case("rms norm", ops.rms_norm, lambda x, w: F.rms_norm(x, (6,), w, 1e-6), some(3, 4, 6), some(6))
case("rms norm without weight", ops.rms_norm, lambda x: F.rms_norm(x, (6,), eps=1e-6), some(3, 4, 6))
case("silu_mul", ops.silu_mul, lambda g, u: F.silu(g) * u, some(3, 8), some(3, 8))
case("silu_mul of halves", ops.silu_mul, lambda g, u: F.silu(g) * u, *some(3, 16).chunk(2, -1))
case("silu_mul, broadcast", ops.silu_mul, lambda g, u: F.silu(g) * u, some(3, 1), some(8))
case("conv2d", ops.conv2d, F.conv2d, some(2, 6, 9, 8), some(4, 6, 3, 3), some(4))
case("conv2d, strided and padded", lambda x, w: ops.conv2d(x, w, stride=2, padding=(1, 0), dilation=[1, 2]),
     lambda x, w: F.conv2d(x, w, stride=2, padding=(1, 0), dilation=(1, 2)), some(1, 4, 9, 9), some(8, 4, 3, 3))  # fmt: skip
case("conv2d in groups", lambda x, w: ops.conv2d(x, w, groups=2), lambda x, w: F.conv2d(x, w, groups=2),
     some(1, 4, 6, 6), some(6, 2, 3, 3))  # fmt: skip
case("conv2d, channels last", ops.conv2d, F.conv2d,
     some(2, 6, 9, 8).to(memory_format=torch.channels_last), some(4, 6, 3, 3))  # fmt: skip
case(
    "attention",
    ops.attention,
    F.scaled_dot_product_attention,
    some(2, 4, 5, 8),
    some(2, 4, 7, 8),
    some(2, 4, 7, 8),
)
case("attention, causal", lambda q, k, v: ops.attention(q, k, v, causal=True),
     lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *[some(1, 2, 6, 8) for _ in range(3)])  # fmt: skip
case("attention, grouped queries", ops.attention,
     lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
     some(1, 6, 5, 8), some(1, 2, 7, 8), some(1, 2, 7, 8))  # fmt: skip
case("attention, bool mask", ops.attention, lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
     some(2, 2, 5, 8), some(2, 2, 5, 8), some(2, 2, 5, 8), torch.ones(5, 5, dtype=torch.bool).tril())  # fmt: skip
case("attention, float mask and scale", lambda q, k, v, m: ops.attention(q, k, v, m, scale=0.3),
     lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3),
     some(2, 2, 5, 8), some(2, 2, 7, 8), some(2, 2, 7, 4), some(2, 1, 1, 7))  # fmt: skip
case("attention, heads between", ops.attention, F.scaled_dot_product_attention,
     *[some(2, 5, 4, 8).transpose(1, 2) for _ in range(3)])  # fmt: skip


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", CASES)
def test_every_op_computes_what_pytorch_computes(name: str) -> None:
    ours, theirs = CASES[name]
    want = theirs()
    close(ours(), want)
    before = ops.counters()
    close(ours(), want)  # by now it is known
    after = ops.counters()
    assert (after["misses"], after["entries"]) == (before["misses"], before["entries"])
    assert after["hits"] > before["hits"]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(
    "op", ["matmul", "softmax", "layer_norm", "rms_norm", "silu_mul", "attention", "conv2d"]
)
def test_dtypes(op: str, dtype: Any) -> None:
    made: dict[str, tuple[Any, ...]] = {
        "matmul": (some(5, 16), some(16, 6)), "softmax": (some(4, 9),), "layer_norm": (some(3, 8), some(8), some(8)),
        "rms_norm": (some(3, 8), some(8)), "silu_mul": (some(3, 8), some(3, 8)),
        "attention": tuple(some(1, 2, 4, 8) for _ in range(3)), "conv2d": (some(1, 4, 5, 5), some(2, 4, 3, 3)),
    }  # fmt: skip
    theirs: dict[str, Callable[..., Any]] = {
        "matmul": torch.matmul, "softmax": lambda x: F.softmax(x, -1), "layer_norm": lambda x, w, b: F.layer_norm(x, (8,), w, b),
        "rms_norm": lambda x, w: F.rms_norm(x, (8,), w, 1e-6), "silu_mul": lambda g, u: F.silu(g) * u,
        "attention": F.scaled_dot_product_attention, "conv2d": F.conv2d,
    }  # fmt: skip
    operands = [t.to(dtype) for t in made[op]]
    got = getattr(ops, op)(*operands)
    want = theirs[op](*[t.double() for t in operands])
    assert got.dtype == dtype
    limit = {torch.bfloat16: 2**-8, torch.float16: 2**-10, torch.float64: 1e-12}[dtype]
    assert (got.double() - want).abs().max() <= limit * want.abs().max()


def test_the_core_and_dlpack_agree_on_every_dtype() -> None:
    integers = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    floats = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    for dtype in (*integers, *floats):
        facts = facts_of(torch.zeros(2, dtype=dtype))
        assert facts is not None, dtype
        assert f"torch.{facts.dtype.value}" == str(dtype)


def views(shape: tuple[int, ...], seed: int) -> Iterator[Any]:
    """Tensors of one shape of different layouts: dense, turned, broadcast, with gaps, from the middle of a larger one."""
    fresh = torch.Generator().manual_seed(seed)
    yield torch.randn(shape, generator=fresh)
    yield torch.randn(shape[::-1], generator=fresh).permute(*range(len(shape))[::-1])
    yield torch.randn((1, *shape[1:]), generator=fresh).expand(shape)
    yield torch.randn((*shape[:-1], shape[-1] + 3), generator=fresh)[..., 2:-1]
    yield torch.randn((shape[0] + 2, *shape[1:]), generator=fresh)[1:-1]


@pytest.mark.sampled(one_in=2)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(0, 4), st.integers(0, 9))
def test_however_a_tensor_lies(shape: list[int], which: int, seed: int) -> None:
    x = list(views(tuple(shape), seed))[which]
    assert tuple(x.shape) == tuple(shape)
    close(ops.softmax(x, 0), F.softmax(x, 0))
    close(ops.rms_norm(x), F.rms_norm(x, x.shape[-1:], eps=1e-6))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 5), st.integers(0, 6), st.integers(1, 5), st.sampled_from([(), (2,), (1, 2), (3, 1)]),
       st.sampled_from([(), (2,), (1,), (3, 1)]), st.integers(0, 9))  # fmt: skip
def test_products_of_any_batches(
    m: int, k: int, n: int, left: tuple[int, ...], right: tuple[int, ...], seed: int
) -> None:
    fresh = torch.Generator().manual_seed(seed)
    a, b = torch.randn((*left, m, k), generator=fresh), torch.randn((*right, k, n), generator=fresh)
    close(ops.matmul(a, b), torch.matmul(a, b))
