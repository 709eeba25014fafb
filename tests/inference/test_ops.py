"""Single ops: every op like PyTorch's on whatever lies in memory, one program per signature, errors that say what does not fit."""

from __future__ import annotations

import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xpuruntime as xrt
from xpuruntime import KernelPolicy, ops
from xpuruntime.errors import InputError, PolicyError

torch = pytest.importorskip("torch")
F = torch.nn.functional

# Few processes compile these: a fixed folder for the run of the tests, so that equal programs are compiled once.
RANDOM = torch.Generator().manual_seed(5)


@pytest.fixture(autouse=True, scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("XPU_CACHE_DIR", str(tmp_path_factory.mktemp("store")))
    yield
    patch.undo()


def some(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, generator=RANDOM).to(dtype)


def close(got: Any, want: Any, limit: float = 1e-5) -> None:
    assert type(got) is type(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    a, b = got.double(), want.double()
    assert torch.equal(a.isnan(), b.isnan())
    a, b = a.nan_to_num(), b.nan_to_num()
    assert (a - b).abs().max() <= limit * max(float(b.abs().max()), 1.0) if b.numel() else True


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


def views(shape: tuple[int, ...], seed: int) -> Iterator[Any]:
    """Tensors of one shape that lie differently: dense, turned, broadcast, with gaps, from the middle of a larger one."""
    fresh = torch.Generator().manual_seed(seed)
    yield torch.randn(shape, generator=fresh)
    yield torch.randn(shape[::-1], generator=fresh).permute(*range(len(shape))[::-1])
    yield torch.randn((1, *shape[1:]), generator=fresh).expand(shape)
    yield torch.randn((*shape[:-1], shape[-1] + 3), generator=fresh)[..., 2:-1]
    yield torch.randn((shape[0] + 2, *shape[1:]), generator=fresh)[1:-1]


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


# ── other libraries ──


def test_arrays_give_arrays() -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32)
    got = ops.matmul(a, b)
    assert type(got) is np.ndarray
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ops.matmul(a.T, b[::-1]), a.T @ b[::-1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ops.matmul(a.astype(">f4"), b), a @ b, rtol=1e-5, atol=1e-5)
    a.flags.writeable = False
    np.testing.assert_allclose(ops.matmul(a, b), a @ b, rtol=1e-5, atol=1e-5)


def test_arrays_of_bfloat16() -> None:
    import ml_dtypes

    x = np.arange(8, dtype=np.float32).reshape(2, 4).astype(ml_dtypes.bfloat16)
    got = ops.softmax(x)
    assert got.dtype == x.dtype
    want = torch.softmax(torch.from_numpy(x.astype(np.float32)), -1).numpy()
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=2**-8)


def test_the_first_operand_says_what_comes_out() -> None:
    a, b = some(3, 4), some(4, 5)
    assert type(ops.matmul(a, b.numpy())) is torch.Tensor
    assert type(ops.matmul(a.numpy(), b)) is np.ndarray


class Foreign:
    """A library that shows its tensors by ``__dlpack__`` alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_a_library_without_the_table_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("foreign_library")
    library.from_dlpack = Foreign  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "foreign_library", library)
    monkeypatch.setattr(Foreign, "__module__", "foreign_library")
    a, b = np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32)
    got = ops.matmul(Foreign(a), Foreign(b))
    assert type(got) is Foreign
    np.testing.assert_allclose(got.array, a @ b, rtol=1e-5, atol=1e-5)
    into = Foreign(np.zeros((4, 4), np.float32))
    assert ops.matmul(Foreign(a), b, out=into) is into
    np.testing.assert_allclose(into.array, a @ b, rtol=1e-5, atol=1e-5)


def test_buffers_of_ours() -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32)
    got = ops.matmul(xrt.DeviceBuffer.from_numpy(a), b)
    assert type(got) is xrt.DeviceBuffer
    np.testing.assert_allclose(got.to_numpy(), a @ b, rtol=1e-5, atol=1e-5)


# ── out ──


def test_out_takes_the_result() -> None:
    a, b, into = some(3, 4), some(4, 5), torch.empty(3, 5)
    assert ops.matmul(a, b, out=into) is into
    close(into, a @ b)


@pytest.mark.parametrize(
    "into",
    [
        torch.empty(3, 4),
        torch.empty(3, 5, dtype=torch.float64),
        torch.empty(5, 3).T,
        torch.empty(3, 6)[:, :5],
    ],
    ids=["shape", "dtype", "turned", "gaps"],
)
def test_out_must_fit(into: Any) -> None:
    told = f"out must be dense, .* dtype and device; got Tensor of {into.dtype}{list(into.shape)}".replace(
        "[", r"\["
    )
    with pytest.raises(InputError, match=told):
        ops.matmul(some(3, 4), some(4, 5), out=into)


def test_out_is_no_operand() -> None:
    x = some(4, 4)
    for into in (x, x[1:]):
        with pytest.raises(InputError, match="out overlaps an operand"):
            ops.matmul(x[: into.shape[0]], x, out=into)
    frozen = np.zeros((4, 4), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="writeable"):
        ops.softmax(np.ones((4, 4), np.float32), out=frozen)


# ── policies ──


def test_the_policy_decides_once_per_signature() -> None:
    a, b = some(6, 8), some(8, 10)
    default = ops.explain("matmul", a, b)
    assert default.kernels[0].startswith("matmul/generated: ")
    assert "gemv" in str(default)
    others = {c.name for d in default.decisions for c in d.rejected if c.code.value == "lower_preference"}
    if not others:
        pytest.skip("one kernel alone computes this product here")
    other = min(others)
    with ops.use({"version": 1, "kernel": {"rules": [{"op": "matmul", "use": other}]}}):
        inside = ops.explain("matmul", a, b)
        assert inside.kernels[0].startswith(f"matmul/{other}: ")
        close(ops.matmul(a, b), a @ b)
    assert ops.explain("matmul", a, b).kernels == default.kernels


def test_a_policy_of_the_call() -> None:
    a, b = some(6, 8), some(8, 10)
    policy = KernelPolicy(matmul="generated")
    close(ops.matmul(a, b, policy=policy), a @ b)
    before = ops.counters()
    close(ops.matmul(a, b, policy=policy), a @ b)
    assert ops.counters()["misses"] == before["misses"]
    close(ops.matmul(a, b, policy={"kernel": {"matmul": "generated"}, "version": 1}), a @ b)
    with pytest.raises(PolicyError):
        ops.matmul(a, b, policy={"kernel": {"matmull": "generated"}, "version": 1})


# ── errors ──


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ops.matmul(some(3, 4), some(5, 6)), "ops.matmul"),
        (lambda: ops.matmul(some(3, 4), some(4, 5).double()), "one dtype"),
        (lambda: ops.matmul([[1.0]], some(1, 1)), "cannot read a"),
        (lambda: ops.softmax(some(3, 4), 5), "ops.softmax"),
        (lambda: ops.softmax(torch.empty(3, device="meta")), "cannot read x"),
        (lambda: ops.softmax(torch.zeros(3, 3).to_sparse()), "cannot read x"),
        (lambda: ops.softmax(np.array(["a"])), "cannot read x"),
        (lambda: ops.softmax(np.ma.masked_array([1.0, 2.0], [True, False])), "cannot read x"),
        (lambda: ops.layer_norm(some(3, 4), normalized_shape=(5,)), "ops.layer_norm"),
        (lambda: ops.attention(some(2, 3), some(2, 3), some(2, 3)), "batch, heads, length, size"),
        (lambda: ops.conv2d(some(1, 4, 6, 6), some(6, 3, 3, 3)), "ops.conv2d"),
        (lambda: ops.softmax(None), "needs its operands"),
        (lambda: ops.matmul(some(3, 4), None), "ops.matmul"),
        (lambda: ops.explain("matmull", some(1)), "Did you mean 'matmul'?"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert text in str(error.value)


def test_gradients_are_not_lost_silently() -> None:
    weight = torch.nn.Parameter(some(4, 5))
    with pytest.raises(InputError, match=r"Call it under torch\.no_grad\(\)"):
        ops.matmul(some(3, 4), weight)
    with torch.no_grad():
        close(ops.matmul(some(3, 4), weight) * 0, torch.zeros(3, 5))
    close(ops.matmul(some(3, 4), weight.detach()) * 0, torch.zeros(3, 5))


def test_a_negated_view_is_read_as_it_means() -> None:
    x = torch.conj(torch.randn(4, dtype=torch.complex64, generator=RANDOM)).imag
    assert x.is_neg()
    close(ops.softmax(x), F.softmax(x, -1))
    close(ops.silu_mul(x[:1], x[:1]), F.silu(x[:1]) * x[:1])


# ── keeping ──


def test_programs_come_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPU_CACHE_DIR", str(tmp_path))
    x = some(3, 11)
    assert ops.explain("softmax", x).origin == "compiled"
    ops.clear()
    assert ops.explain("softmax", x).origin == "store"
    close(ops.softmax(x), F.softmax(x, -1))


def test_explaining_a_copy() -> None:
    assert "copied before each call: x" in str(ops.explain("softmax", some(4, 9)[:, :5]))


def test_results_belong_to_nobody_else() -> None:
    x = some(64, 64)
    first = ops.softmax(x)
    keep = first.clone()
    others = [ops.softmax(some(64, 64)) for _ in range(20)]
    assert torch.equal(first, keep)
    del others, first
    gc.collect()


def test_threads() -> None:
    """Eight threads meet the same new signatures at once and go on with them; each signature is compiled once."""
    ops.clear()
    inputs = [some(n, 12) for n in (2, 3, 4)]
    wants = [F.softmax(x, -1) for x in inputs]
    before, wrong = ops.counters(), []

    def work() -> None:
        for _ in range(200):
            for x, want in zip(inputs, wants, strict=True):
                if not torch.allclose(ops.softmax(x), want, atol=1e-6):
                    wrong.append(x.shape)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = ops.counters()
    assert not wrong
    assert after["entries"] == 3
    assert after["evictions"] == before["evictions"]


def test_memory_is_flat_over_ten_thousand_calls() -> None:
    x, into = some(8, 16), torch.empty(8, 16)
    ops.softmax(x, out=into)
    from xpuruntime.runtime import CpuBackend

    before = CpuBackend().memory()["live_bytes"]
    for _ in range(10_000):
        ops.softmax(x, out=into)
    assert CpuBackend().memory()["live_bytes"] == before
