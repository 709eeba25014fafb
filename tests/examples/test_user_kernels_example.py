"""The example's four kernels of one op: each is right where it can run, and compiles where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.native import check

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.plugins import registered
from xpuruntime.testing.emulation.cuda_host import cuda_host

SHAPE, COLS = (3, 5, 200), 200


@pytest.fixture(autouse=True)
def known(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registered, "_TABLE", registered._Table())
    monkeypatch.setenv("XPU_KERNELS", str(repository / "examples/user_kernels/kernels.py"))
    registered.load_plugins()
    return


def graph(dtype: str) -> ir.Graph:
    b = ir.GraphBuilder("layer")
    x, w = b.input("x", f"{dtype}[3, 5, 200]"), b.input("w", f"{dtype}[200]")
    b.output("y", b.rms_norm(x, w, normalized_shape=(COLS,), eps=1e-5))
    return b.build()


def feeds(dtype: str) -> dict[str, Any]:
    random, numpy = np.random.default_rng(0), xrt.DType.of(dtype).numpy
    return {
        "x": random.standard_normal(SHAPE).astype(numpy),
        "w": random.standard_normal(COLS).astype(numpy),
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("word", ["mine", "plain"])
def test_on_the_host(word: str, dtype: str) -> None:
    check(graph(dtype), feeds(dtype), policy=xrt.KernelPolicy(rules=[xrt.Rule(op="norm", use=word)]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_cuda_on_the_stand_in(dtype: str) -> None:
    forced = xrt.KernelPolicy(rules=[xrt.Rule(op="norm", use="mine")])
    check(graph(dtype), feeds(dtype), policy=forced, target=cuda_host())


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("word", ["mine", "triton"])
def test_for_devices_that_are_not_here(word: str, level: str) -> None:
    if word == "triton":
        pytest.importorskip("triton")
    forced = xrt.KernelPolicy(rules=[xrt.Rule(op="norm", use=word)])
    program = xrt.compile(graph("bfloat16"), target=f"cuda:{level}", policy=forced)
    (call,) = program.entries[0].plans[0].calls
    assert (call.kernel, call.symbol, call.options["grid"]) == (f"norm/{word}", "rms_norm", [15, 1, 1])


def test_what_it_does_not_norm_it_refuses() -> None:
    b = ir.GraphBuilder("layer")
    b.output(
        "y",
        b.rms_norm(b.input("x", "float32[3, 5, 8]"), b.input("w", "float32[5, 8]"), normalized_shape=(5, 8)),
    )
    (decision,) = xrt.compile(b.build(), policy=xrt.KernelPolicy(norm="mine")).decisions
    assert {c.name: c.reason for c in decision.rejected}["mine"] == "it norms one dim, not 2"
