"""Kernels of users in sessions: policies name them, receipts show them, kept programs follow their code."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx_models import small_classifier

import xpuruntime as xrt
from xpuruntime.errors import BuildError, PolicyError
from xpuruntime.plugins import registered

pytest.importorskip("onnx", reason="models are made with it")

NATIVE = {"device": "cpu", "engine": "native"}
KERNELS = """
import math
import xpuruntime as xrt

TEXT = '''
constexpr int64_t COLS = in0_shape[in0_rank - 1];
void rows(const in0_t *x, out0_t *y, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
        float sum = 0;
        for (int64_t c = 0; c < COLS; ++c) sum += y[r * COLS + c] = exp(x[r * COLS + c]);
        for (int64_t c = 0; c < COLS; ++c) y[r * COLS + c] = y[r * COLS + c] / sum * FACTOR;
    }
}
'''
xrt.register_kernel(
    "softmax/mine", op="softmax", source=TEXT.replace("FACTOR", "1.0f"), parts=("exp",), dtypes=("float32",),
    launch=lambda call: xrt.Tasks(math.prod(call.outputs[0].shape[:-1])),
)
"""


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registered, "_TABLE", registered._Table())
    return


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of kernels that XPU_KERNELS names."""
    file = tmp_path / "my_kernels.py"
    file.write_text(KERNELS)
    monkeypatch.setenv("XPU_KERNELS", str(file))
    return file


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text("version: 1\nkernel:\n  softmax: mine\n")
    return file


def feeds(sess: xrt.InferenceSession) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        i.name: random.standard_normal([int(d) for d in i.shape]).astype(np.float32)
        for i in sess.get_inputs()
    }


def test_a_policy_file_names_it_and_the_receipt_shows_it(kernels: Path, policy: Path) -> None:
    model = small_classifier(batch=2)
    with (
        xrt.InferenceSession(model, **NATIVE) as plain,
        xrt.InferenceSession(model, kernel_policy=policy, **NATIVE) as sess,
    ):
        given = feeds(sess)
        for name, value in sess.run(given).items():
            np.testing.assert_allclose(value, plain.run(given)[name], rtol=1e-5, atol=1e-7)
        receipt, decision = str(sess.receipt()), sess.plan.decision("kernel softmax")
    assert "softmax/mine: softmax_mine_tasks float32  softmax" in receipt
    assert decision is not None
    assert decision.chosen.name == "mine"
    assert "softmax= of" in decision.chosen.reason


def test_another_code_is_another_kept_program(kernels: Path, policy: Path) -> None:
    model = small_classifier(batch=2)

    def outputs() -> np.ndarray:
        with xrt.InferenceSession(model, kernel_policy=policy, **NATIVE) as sess:
            return next(iter(sess.run(feeds(sess)).values()))

    first = outputs()
    np.testing.assert_array_equal(outputs(), first)
    kernels.write_text(KERNELS.replace('"1.0f"', '"2.0f"'))
    registered._TABLE = registered._Table()  # as a new process would begin
    np.testing.assert_allclose(outputs(), 2 * first, rtol=1e-6)


def test_builds_with_a_time_limit_know_kernels_of_modules_and_say_what_they_do_not(
    kernels: Path, policy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    limits = xrt.ExecutionPolicy(compile_timeout_s=300, caching=False)
    model = small_classifier(batch=2)
    with xrt.InferenceSession(model, kernel_policy=policy, exec_policy=limits, **NATIVE) as sess:
        sess.run(feeds(sess))
        assert "softmax/mine" in str(sess.receipt())
    monkeypatch.delenv("XPU_KERNELS")
    with pytest.raises((BuildError, PolicyError), match=r"mine.*XPU_KERNELS|XPU_KERNELS.*mine"):
        xrt.InferenceSession(model, kernel_policy=policy, exec_policy=limits, **NATIVE)


def test_single_ops_take_it_and_another_code_is_another_kept_program(kernels: Path, policy: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 33)).astype(np.float32)
    forced = xrt.KernelPolicy(softmax="mine")
    np.testing.assert_allclose(xrt.ops.softmax(x, dim=1, policy=forced).sum(1), 1, rtol=1e-5)
    code = (
        "import numpy as np, xpuruntime as xrt\n"
        "y = xrt.ops.softmax(np.ones((4, 33), np.float32), dim=1, policy=xrt.KernelPolicy(softmax='mine'))\n"
        "print(float(y.sum(1)[0]))"
    )
    sums = []
    for factor in ("1.0f", "3.0f"):  # each in a process of its own, over one store
        kernels.write_text(KERNELS.replace('"1.0f"', f'"{factor}"'))
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
        )
        sums.append(float(done.stdout))
    np.testing.assert_allclose(sums, [1, 3], rtol=1e-5)
