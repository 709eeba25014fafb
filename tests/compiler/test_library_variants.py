"""Variants of libraries are candidates of a measurement: recorded for each call, chosen by a file of times, and never without one."""

from __future__ import annotations

from typing import Any

import pytest
from support.cuda_doubles import leave_text_uncompiled

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.compiler.locked import KernelLock
from xpuruntime.compiler.times import KernelTimes

TARGET = "cuda:sm_90"
PRODUCT = ("cublasLt[choice=1]", "cublasLt[choice=2]", "cublasLt[choice=3]")
CONV = ("cudnn[choice=1]", "cudnn[choice=2]", "cudnn[choice=3]")


@pytest.fixture(autouse=True)
def libraries_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_text_uncompiled(monkeypatch)


def net() -> ir.Graph:
    b = ir.GraphBuilder("net")
    x, k = b.input("x", "float16[1, 16, 8, 8]"), b.weight("k", "float16[16, 16, 3, 3]")
    y = b.convolution(x, k, stride=[1, 1], padding=[1, 1], dilation=[1, 1])
    b.output("y", b.mm(b.view(y, size=[16, 64]), b.weight("w", "float16[64, 64]")))
    return b.build()


def recorded(policy: Any = None, times: Any = None) -> tuple[KernelLock, xrt.CompiledProgram]:
    lock = KernelLock()
    return lock, xrt.compile(net(), target=TARGET, policy=policy, times=times, lock=lock)


def of(lock: KernelLock, library: str) -> str:
    """Return the key of the call that a library may compute."""
    (key,) = (k for k, words in lock.alternatives.items() if library in words)
    return key


def test_a_measurement_has_the_variants_of_libraries() -> None:
    lock, program = recorded()
    assert set(PRODUCT) < set(lock.alternatives[of(lock, "cublasLt")])
    assert set(CONV) < set(lock.alternatives[of(lock, "cudnn")])
    assert not any("[" in c.kernel for c in program.entries[0].plans[0].calls), "none is chosen without times"
    for words in lock.alternatives.values():
        assert len(set(words)) == len(words)


def test_a_policy_that_names_a_kernel_leaves_no_variant() -> None:
    lock, _ = recorded({"version": 1, "kernel": {"matmul": "cublasLt"}})
    (product,) = (words for words in lock.alternatives.values() if "cublasLt" in words)
    assert product == ("cublasLt",)


def test_forbidden_libraries_have_no_variants() -> None:
    lock, _ = recorded(xrt.KernelPolicy(rules=[xrt.Rule(forbid=["cublasLt", "cudnn"])]))
    assert not [
        w for words in lock.alternatives.values() for w in words if w.startswith(("cublasLt", "cudnn"))
    ]


def timed(lock: KernelLock, fastest: dict[str, str], left_out: tuple[str, ...] = ()) -> KernelTimes:
    """Return times of all kernels of the calls in which one is the fastest."""
    calls = {}
    for library, word in fastest.items():
        key = of(lock, library)
        words = [w for w in lock.alternatives[key] if w not in left_out]
        calls[key.partition(" ")[0]] = {w: 1.0 if w == word else 2.0 for w in words}
    return KernelTimes(TARGET, 0, calls, {"device": "a GPU", "cudnn": "9.14.0"})


@pytest.mark.parametrize("as_file", [False, True])
def test_times_choose_a_variant(as_file: bool) -> None:
    """Also if a library does not offer some variant, which then has no time."""
    times = timed(recorded()[0], {"cublasLt": "cublasLt[choice=2]", "cudnn": "cudnn[choice=1]"}, CONV[2:])
    lock, program = recorded(times=times.to_json() if as_file else times)
    options = {c.kernel: c.options for c in program.entries[0].plans[0].calls if c.library}
    assert set(options) == {"matmul/cublasLt[choice=2]", "conv/cudnn[choice=1]"}
    assert options["matmul/cublasLt[choice=2]"]["choice"] == 2
    assert options["conv/cudnn[choice=1]"]["choice"] == 1
    reasons = [d.chosen.code for d in program.decisions if d.question.startswith("kernel") and d.chosen]
    assert reasons.count(xrt.Reason.FASTEST) == 2
    assert lock.kernels[of(lock, "cublasLt")] == "cublasLt[choice=2]"
    assert set(PRODUCT) < set(lock.alternatives[of(lock, "cublasLt")])
    again = xrt.compile(net(), target=TARGET, lock=KernelLock(lock.kernels))
    assert [c.kernel for c in again.entries[0].plans[0].calls] == [
        c.kernel for c in program.entries[0].plans[0].calls
    ]


def test_a_variant_alone_decides_nothing() -> None:
    """Without the times of all kernels none decides, whatever the variants take."""
    lock, plain = recorded()
    times = timed(lock, {"cublasLt": "cublasLt[choice=2]"}, ("cublasLt",))
    assert [c.kernel for c in recorded(times=times)[1].entries[0].plans[0].calls] == [
        c.kernel for c in plain.entries[0].plans[0].calls
    ]


def test_rules_hold_for_variants() -> None:
    times = timed(recorded()[0], {"cublasLt": "cublasLt[choice=2]", "cudnn": "cudnn[choice=1]"})
    policy = xrt.KernelPolicy(rules=[xrt.Rule(forbid=["cublasLt[choice=2]", "cudnn"])])
    _, program = recorded(policy, times)
    kernels = {c.kernel for c in program.entries[0].plans[0].calls}
    assert not kernels & {"matmul/cublasLt[choice=2]", "conv/cudnn[choice=1]", "conv/cudnn"}


def test_another_version_of_a_library_is_said() -> None:
    times = timed(recorded()[0], {"cudnn": "cudnn[choice=1]"}).compared({"cudnn": "9.15.0"})
    (said,) = (d for d in recorded(times=times)[1].decisions if d.question == "times")
    assert "cudnn is 9.15.0 here, 9.14.0 in the file" in str(said)


def test_a_kernel_that_needs_counters_is_measured() -> None:
    """The counters of a split product are no node of the model, and no default kernel of this one needs them."""
    b = ir.GraphBuilder("net")
    x = b.input("x", "float32[64, 4096]")
    b.output("y", b.mm(x, b.weight("w", "float32[4096, 64]")))
    lock = KernelLock()
    policy = {"version": 1, "kernel": {"matmul": "cublasLt"}}
    plain = xrt.compile(b.build(), target=TARGET, policy=policy, lock=lock)
    (key,) = lock.kernels
    assert len(plain.entries[0].plans[0].calls) == 1
    other = KernelLock({key: "generated"})
    split = xrt.compile(b.build(), target=TARGET, lock=other)
    kernels = [c.kernel for c in split.entries[0].plans[0].calls]
    assert kernels[1:] == ["matmul/generated"]
    assert other.stages["main"] == ("", key)
    whole = KernelLock()
    xrt.compile(
        b.build(), target=TARGET, policy={"version": 1, "kernel": {"matmul": "generated"}}, lock=whole
    )
    again = xrt.compile(b.build(), target=TARGET, lock=KernelLock(whole.kernels))
    assert [c.kernel for c in again.entries[0].plans[0].calls] == kernels
