"""Calls of single ops: whose tensors come in and out, ``out=``, one program per signature, errors that say what does not fit, threads."""

from __future__ import annotations

import gc
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime import KernelPolicy, ops
from xpuruntime.errors import InputError, PolicyError

sys.path.insert(0, str(Path(__file__).parent))
from op_tensors import RANDOM, close, kept, some  # noqa: F401  (kept is a fixture)

sys.path.pop(0)

torch = pytest.importorskip("torch")
F = torch.nn.functional


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


@pytest.mark.usefixtures("no_garbage")
def test_memory_is_flat_over_ten_thousand_calls() -> None:
    x, into = some(8, 16), torch.empty(8, 16)
    ops.softmax(x, out=into)
    from xpuruntime.runtime import CpuBackend

    before = CpuBackend().memory()["live_bytes"]
    for _ in range(10_000):
        ops.softmax(x, out=into)
    assert CpuBackend().memory()["live_bytes"] <= before
