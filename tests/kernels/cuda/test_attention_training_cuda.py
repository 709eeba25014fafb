"""Attention in training on CUDA: the kernels' own text on the emulator, against autograd of PyTorch in float64."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of
from support.native import check, compile_native

from xpuruntime.codegen.cuda.cubin import kernels_in
from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
from xpuruntime.codegen.cuda.target import CudaTarget, cuda_target
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import BuildError, KernelUnavailable
from xpuruntime.ir import GraphBuilder
from xpuruntime.kernels.cuda.attention.flash import FlashV2, Naive
from xpuruntime.kernels.cuda.attention.flash_backward import FlashV2Backward
from xpuruntime.kernels.cuda.attention.flash_simt import FlashSimt
from xpuruntime.kernels.kernel import NodeCall
from xpuruntime.policies import KernelPolicy, Rule
from xpuruntime.program.program import Binary
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.testing.emulation.launches import emulate

torch = pytest.importorskip("torch")
Arrays = dict[str, Any]
NAMES = ("grad", "q", "k", "v", "y", "lse", "mask")


def drawn(q: tuple[int, ...], k: tuple[int, ...], dv: int, dtype: str, seed: int = 3) -> Arrays:
    rng, own = np.random.default_rng(seed), getattr(ml_dtypes, dtype, dtype)
    shapes = {"grad": (*q[:3], dv), "q": q, "k": k, "v": (*k[:3], dv)}
    return {n: rng.standard_normal(s).astype(own) for n, s in shapes.items()}


def node(op: str, arrays: Arrays, **attrs: Any) -> NodeCall:
    """The node of an op over the arrays that it takes."""
    b = GraphBuilder("one")
    names = [n for n in NAMES if n in arrays and (op == "attention_backward" or n in ("q", "k", "v", "mask"))]
    b.call(op, *(b.input(n, f"{arrays[n].dtype.name}{list(arrays[n].shape)}") for n in names), **attrs)
    (made,) = b.nodes
    for value in made.outputs:
        b.output(value.name)
    return call_of(b.build(), {})


def emulated(kernel: Any, op: str, arrays: Arrays, target: str, shift: int = 0, **attrs: Any) -> list[Any]:
    call, to = node(op, arrays, **attrs), cuda_target(target)
    said = kernel.supports(call, to)
    assert said, said.reason
    return emulate(kernel.lower(call, to), call, to, arrays, shift)


def exact(arrays: Arrays, dtype: Any, causal: bool = False, scale: float | None = None) -> list[Any]:
    """The result and the gradients by autograd of PyTorch, computed in a dtype."""
    tensors = {n: torch.from_numpy(a.astype(np.float32) if a.dtype != bool else a) for n, a in arrays.items()}
    q, k, v = (tensors[n].to(dtype).requires_grad_() for n in "qkv")
    mask = tensors.get("mask")
    if mask is not None and mask.dtype is not torch.bool:
        mask = mask.to(dtype)
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return [
        t.detach().double().numpy()
        for t in (y, *torch.autograd.grad(y, (q, k, v), tensors["grad"].to(dtype)))
    ]


def rms(x: Any) -> float:
    return float(np.sqrt(np.mean(np.square(np.asarray(x, np.float64))))) if np.size(x) else 0.0


def judge(
    q: tuple[int, ...], k: tuple[int, ...], dv: int, dtype: str = "bfloat16", *, mask: Any = None, shift: int = 0,
    target: str = "cuda:sm_80", **attrs: Any,
) -> list[Any]:  # fmt: skip
    """Return the result and the gradients, after comparing their errors with twice those of PyTorch in the same dtype."""
    arrays = drawn(q, k, dv, dtype) | ({} if mask is None else {"mask": mask})
    y, lse = emulated(FlashV2(), "attention_train", arrays, target, shift, **attrs)
    results = [
        y,
        *emulated(
            FlashV2Backward(), "attention_backward", arrays | {"y": y, "lse": lse}, target, shift, **attrs
        ),
    ]
    true, theirs = exact(arrays, torch.float64, **attrs), exact(arrays, getattr(torch, dtype), **attrs)
    unit = float(ml_dtypes.finfo(arrays["q"].dtype).eps)
    for name, ours, other, right in zip(("y", "q", "k", "v"), results, theirs, true, strict=True):
        bound = max(2 * rms(other - right), unit / 2 * rms(right))
        assert rms(ours.astype(np.float64) - right) <= bound, name
    return [lse, *results]


CASES: dict[str, tuple[Any, Any, int, str, dict[str, Any]]] = {
    "plain": ((1, 2, 70, 64), (1, 2, 150, 64), 64, "bfloat16", {}),
    "causal and grouped": ((1, 4, 70, 64), (1, 2, 70, 64), 64, "float16", {"causal": True}),
    "wide": ((1, 2, 67, 128), (1, 1, 67, 128), 128, "bfloat16", {"causal": True, "scale": 0.3}),
    "narrow": ((2, 3, 33, 32), (2, 1, 40, 32), 32, "float16", {}),
    "other values": ((1, 2, 33, 40), (1, 1, 90, 40), 24, "bfloat16", {"causal": True}),
    "last queries see every key": ((1, 2, 90, 36), (1, 2, 33, 36), 36, "bfloat16", {"causal": True}),
    "rows are no multiples of 16 bytes": ((1, 1, 70, 20), (1, 1, 60, 20), 20, "bfloat16", {"shift": 1}),
    "addresses are no multiples of 16 bytes": ((1, 2, 40, 64), (1, 1, 33, 64), 64, "float16", {"shift": 1}),
    "a negative scale": ((1, 2, 33, 96), (1, 2, 70, 96), 80, "bfloat16", {"scale": -0.2}),
    "one": ((1, 1, 1, 64), (1, 1, 1, 64), 64, "bfloat16", {}),
    "a mask of keys": ((1, 2, 33, 32), (1, 2, 40, 32), 32, "float16", {"mask": np.linspace(-2, 1, 40, dtype=np.float32).reshape(1, 1, 1, 40)}),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_near_those_in_float64(name: str) -> None:
    q, k, dv, dtype, options = CASES[name]
    judge(q, k, dv, dtype, **options)


@pytest.mark.parametrize(("hopper", "split"), [(False, False), (True, False), (True, True)])
def test_training_has_the_bits_of_inference(
    hopper: bool, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpuruntime.kernels.cuda.attention.flash.wants_hopper", lambda s, target: hopper)
    monkeypatch.setattr("xpuruntime.kernels.cuda.attention.flash.splits_keys", lambda s, target: split)
    arrays = drawn((1, 2, 70, 64), (1, 1, 150, 64), 64, "bfloat16")
    y, lse = emulated(FlashV2(), "attention_train", arrays, "cuda:sm_90", causal=True, causal_offset=40)
    (plain,) = emulated(FlashV2(), "attention", arrays, "cuda:sm_90", causal=True, causal_offset=40)
    assert y.tobytes() == plain.tobytes()
    q, k = (arrays[n].astype(np.float64) for n in "qk")
    seen = np.arange(150) <= np.arange(70)[:, None] + 40
    scores = np.where(seen, q @ k.swapaxes(2, 3) / 8, -np.inf)
    assert np.allclose(lse, np.log(np.exp(scores).sum(3)), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", [Naive(), FlashSimt()], ids=lambda k: k.name)
def test_kernels_on_cuda_cores_write_the_log_sum_exp(kernel: Any, dtype: str) -> None:
    arrays = drawn((1, 2, 9, 20), (1, 1, 33, 20), 24, dtype)
    arrays["mask"] = np.ones((9, 33), bool)
    arrays["mask"][3] = False
    y, lse = emulated(kernel, "attention_train", arrays, "cuda:sm_80")
    q, k = (arrays[n].astype(np.float64) for n in "qk")
    scores = np.where(arrays["mask"], q @ k.swapaxes(2, 3) / math.sqrt(20), -np.inf)
    with np.errstate(divide="ignore"):
        assert np.allclose(lse, np.log(np.exp(scores).sum(3)), rtol=1e-5)
    (plain,) = emulated(kernel, "attention", arrays, "cuda:sm_80")
    assert y.tobytes() == plain.tobytes()


def test_empty_sizes_give_zeros() -> None:
    """Without queries the gradients of keys are zeros; without keys those of queries."""
    for queries, keys in ((0, 40), (40, 0)):
        arrays = drawn((1, 2, queries, 32), (1, 1, keys, 32), 32, "bfloat16")
        arrays |= {"y": arrays["grad"] * 0, "lse": np.full((1, 2, queries), -np.inf, np.float32)}
        for result in emulated(FlashV2Backward(), "attention_backward", arrays, "cuda:sm_80"):
            assert not result.astype(np.float32).any()
    y, lse = emulated(FlashV2(), "attention_train", arrays, "cuda:sm_80")
    assert not y.astype(np.float32).any()
    assert np.all(lse == -np.inf)


def test_what_is_refused_has_a_reason() -> None:
    def said(q: tuple[int, ...], dtype: str = "bfloat16", **changes: Any) -> str:
        arrays = {n: np.broadcast_to(a, a.shape) for n, a in drawn(q, q, q[3], dtype).items()}
        arrays |= {"y": arrays["grad"], "lse": np.zeros(q[:3], np.float32)} | changes
        return str(
            FlashV2Backward().supports(node("attention_backward", arrays), cuda_target("cuda:sm_80")).reason
        )

    assert said((1, 1, 4, 32), "float32") == "tensor cores multiply float16 and bfloat16, not float32"
    assert said((1, 1, 4, 160)) == "heads of at most 128 elements are supported, got 160"
    assert said((1, 1, 4, 0)) == "training needs heads with elements, got 1 heads of 0 and 0 elements"


@pytest.mark.sampled(1, one_in=2)
@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("level", ["sm_80", "sm_90"])
def test_texts_compile(level: str, size: int) -> None:
    try:
        toolchain = nvrtc_toolchain()
    except BuildError as error:
        pytest.skip(str(error))
    target = cuda_target(f"cuda:{level}")
    shape = (1, 2, 256, size)
    arrays = drawn(shape, shape, size, "bfloat16")
    arrays |= {"y": arrays["grad"], "lse": np.zeros(shape[:3], np.float32)}
    functions, parts = {}, set()
    for kernel, op in ((FlashV2(), "attention_train"), (FlashV2Backward(), "attention_backward")):
        for stage in kernel.lower(node(op, arrays, causal=True), target).stages:
            functions[f"kernel_{len(functions)}"] = stage.source
            parts |= stage.parts
            assert stage.options["shared"] <= target.config.smem_per_block
    registers = kernels_in(toolchain.build(target.source(functions, parts), target.sm.architecture))
    assert set(registers) == set(functions)
    assert max(k.registers for k in registers.values()) <= 255


@pytest.mark.parametrize(("dtype", "words", "forward", "backward"), [
    ("bfloat16", "flash_v2", "attention/flash_v2", {"attention/flash_v2"}),
    ("bfloat16", "naive", "attention/naive", {"matmul"}),
    ("float16", None, "attention/flash_v2", {"attention/flash_v2"}),
    ("float32", "flash_v2", "attention/flash_simt", {"matmul"}),
])  # fmt: skip
def test_a_policy_chooses_the_kernels_of_a_program(
    dtype: str, words: str | None, forward: str, backward: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs for a GPU that is not here. Their code is not compiled: the choice does not depend on it."""

    def assemble(self: CudaTarget, functions: Any, parts: Any) -> Binary:
        return Binary(self.name, "cubin", (self.name,), tuple(functions), b"none", source="")

    monkeypatch.setattr(CudaTarget, "assemble", assemble)

    def kernels(op: str, phase: str, policy: Any) -> set[str]:
        arrays = drawn((1, 2, 40, 64), (1, 2, 40, 64), 64, dtype)
        arrays |= {"y": arrays["grad"], "lse": np.zeros((1, 2, 40), np.float32)}
        b = GraphBuilder("one")
        names = [n for n in NAMES if n in arrays and (op == "attention_backward" or n in "qkv")]
        for value in b.call(
            op, *(b.input(n, f"{arrays[n].dtype.name}{list(arrays[n].shape)}") for n in names)
        ):
            b.output(value)
        program = compile_graph(
            b.build(), target="cuda:sm_90", passes=["decompose"], policy=policy, phase=phase
        )
        return {c.kernel for c in program.entries[0].plans[0].calls}

    policy = None if words is None else KernelPolicy(attention=words)
    assert kernels("attention_train", "train_forward", policy) == {forward}
    chosen = kernels("attention_backward", "train_backward", policy)
    assert backward <= chosen | {name.partition("/")[0] for name in chosen}
    assert ("attention/flash_v2" in chosen) is ("attention/flash_v2" in backward)
    forced = KernelPolicy(rules=[Rule(op="attention", use="flash_v2", phase="train_backward")])
    if dtype == "float32":
        with pytest.raises(
            KernelUnavailable, match="tensor cores multiply float16 and bfloat16, not float32"
        ):
            kernels("attention_backward", "train_backward", forced)
    else:
        assert kernels("attention_backward", "train_backward", forced) == {"attention/flash_v2"}
    assert kernels("attention_train", "train_forward", forced) == {
        "attention/flash_simt" if dtype == "float32" else "attention/flash_v2"
    }


def test_a_whole_program_of_forward_and_backward() -> None:
    """Compiler, plan, workspace and executor on the emulated device."""
    b = GraphBuilder("training")
    arrays = drawn((1, 4, 40, 64), (1, 2, 40, 64), 64, "float16")
    q, k, v, grad = (b.input(n, f"float16{list(arrays[n].shape)}") for n in ("q", "k", "v", "grad"))
    y, lse = b.attention_train(q, k, v, causal=True)
    for i, value in enumerate((y, lse, *b.attention_backward(grad, q, k, v, y, lse, causal=True))):
        b.output(f"result{i}", value)
    options: Any = {"passes": ["decompose"], "target": cuda_host(), "kernels": {"attention": "flash_v2"}}
    calls = compile_native(b.build(), arrays, **options).entries[0].plans[0].calls
    assert [c.kernel for c in calls] == ["attention/flash_v2"] * 4
    check(b.build(), arrays, **options, tolerance=2e-3)


def test_a_query_that_sees_no_key_has_no_gradient() -> None:
    mask = np.random.default_rng(1).random((1, 2, 33, 70)) < 0.5
    mask[:, :, 4] = False
    lse, y, grad_q, _, _ = judge((1, 2, 33, 64), (1, 1, 70, 64), 64, mask=mask)
    assert np.all(lse[:, :, 4] == -np.inf)
    assert not np.any(y[:, :, 4].astype(np.float32))
    assert not np.any(grad_q[:, :, 4].astype(np.float32))
