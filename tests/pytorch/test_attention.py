"""Attention in training: routing, masks, empty sizes, NaN, autocast, torch.compile, and what is refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.training_cases import gradients, rms

import xpuruntime.pytorch as xrt_torch
from xpuruntime.decisions import Reason, Support
from xpuruntime.errors import InputError, KernelUnavailable
from xpuruntime.pytorch import library_kernels, ops, programs
from xpuruntime.pytorch.compiled import compiled_graphs, xpuruntime_backend
from xpuruntime.pytorch.compiled.report import forget_graphs
from xpuruntime.pytorch.library_kernels import LibraryKernel

Tensor = torch.Tensor


def operands(
    *shapes: tuple[int, ...], device: str = "cpu", dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(device, dtype).requires_grad_() for s in shapes]


def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, **options)


@pytest.mark.filterwarnings(
    "ignore:Attempting to run cuBLAS"
)  # PyTorch's first product in the thread of backward
def test_calls_of_pytorch_follow_the_policy(device: str) -> None:
    q, k, v = operands((2, 4, 9, 16), (2, 2, 9, 16), (2, 2, 9, 16), device=device)
    grad = torch.randn_like(q)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, is_causal=True, enable_gqa=True)

    plain = gradients(run, (q, k, v), grad)
    with xrt_torch.set_kernel_policy(attention=["flash_v2", "naive"]), xrt_torch.record() as record:
        mine = gradients(run, (q, k, v), grad)
    assert record.ops() == ["attention", "attention_backward"]
    assert record.fallbacks == {}
    for a, b in zip(mine, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    with xrt_torch.set_kernel_policy(norm="generated"), xrt_torch.record() as record:
        run(q, k, v)
    assert record.ops() == []


def test_dropout_and_masks_with_gradients_stay_with_pytorch_and_are_recorded(device: str) -> None:
    q, k, v = operands((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8), device=device)
    bias = torch.zeros(5, 5, device=device, requires_grad=True)
    with xrt_torch.set_kernel_policy(attention="naive"), xrt_torch.record() as record:
        attend(q, k, v, dropout_p=0.5)
        attend(q, k, v, attn_mask=bias).sum().backward()
    assert record.ops() == []
    assert record.skipped == {"scaled_dot_product_attention (attention)": 2}
    assert bias.grad is not None


def test_backward_alone_with_some_operands_frozen(device: str) -> None:
    q, k, v = operands((1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8), device=device)
    frozen = q.detach()
    y, z = ops.attention(frozen, k, v), attend(frozen, k, v)
    for a, b in zip(torch.autograd.grad(y.sum(), (k, v)), torch.autograd.grad(z.sum(), (k, v)), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    ("q", "k"),
    [
        ((0, 2, 5, 8), (0, 2, 5, 8)),
        ((2, 2, 0, 8), (2, 2, 5, 8)),
        ((2, 2, 5, 8), (2, 2, 0, 8)),
        ((2, 2, 1, 8), (2, 2, 1, 8)),
    ],
    ids=str,
)
def test_empty_and_single_sizes(q: tuple[int, ...], k: tuple[int, ...], device: str) -> None:
    a, b, c = operands(q, k, k, device=device)
    y = ops.attention(a, b, c)
    assert y.shape == (*q[:3], k[3])
    grads = torch.autograd.grad(y.sum(), (a, b, c))
    assert [g.shape for g in grads] == [q, k, k]
    if k[2] == 0:
        assert not y.any()
        assert not grads[0].any()
    if k[2] == 1:
        assert torch.allclose(y, c)
        assert not grads[0].any()
        # The weight of the only key is computed again from its log-sum-exp: 1 but for the rounding of both.
        assert (grads[2] - 1).abs().max() <= 4 * torch.finfo(c.dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("place", ["q", "k", "v"])
def test_nan_spreads_as_in_pytorch(place: str, dtype: torch.dtype, device: str) -> None:
    values = operands((1, 2, 70, 32), (1, 2, 70, 32), (1, 2, 70, 32), device=device, dtype=dtype)
    with torch.no_grad():
        values["qkv".index(place)][0, 1, 66, 3] = float("nan")
    grad = torch.ones(1, 2, 70, 32, device=device, dtype=dtype)
    mine = gradients(lambda *x: ops.attention(*x, causal=True), values, grad)
    theirs = gradients(lambda *x: attend(*x, is_causal=True), values, grad)
    if (
        place == "v" and device == "cuda"
    ):  # which queries before the key get 0 * NaN depends on the tiles of PyTorch's kernel
        assert mine[0][0, 1, 66:, 3].isnan().all()
    else:
        assert torch.equal(mine[0].isnan(), theirs[0].isnan())
    for a in mine:  # heads without a NaN stay clean
        assert not a[:, 0].isnan().any()
    assert mine[1][0, 1, 66].isnan().all()


def test_queries_that_see_nothing_are_zero_and_have_zero_gradients(device: str) -> None:
    q, k, v = operands((1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8), device=device)
    mask = torch.ones(5, 7, dtype=torch.bool, device=device)
    mask[2] = False
    y = ops.attention(q, k, v, attn_mask=mask)
    assert not y[:, :, 2].any()
    grad_q, grad_k, grad_v = torch.autograd.grad(y.sum(), (q, k, v))
    assert not grad_q[:, :, 2].any()
    assert all(g.isfinite().all() for g in (grad_q, grad_k, grad_v))


def test_more_dims_and_masks_per_head(device: str) -> None:
    q, k, v = operands((2, 3, 2, 5, 8), (2, 3, 2, 7, 8), (2, 3, 2, 7, 8), device=device)
    mask = torch.arange(2 * 3 * 5 * 7, device=device).reshape(2, 3, 1, 5, 7) % 3 > 0
    assert torch.allclose(ops.attention(q, k, v, attn_mask=mask), attend(q, k, v, attn_mask=mask), atol=1e-5)
    flat = [t[0] for t in (q, k, v)]
    for m in (mask[0, 0, 0], mask[0]):
        assert torch.allclose(ops.attention(*flat, attn_mask=m), attend(*flat, attn_mask=m), atol=1e-5)


def test_autocast_gives_attention_the_low_precision(device: str) -> None:
    q, k, v = operands((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8), device=device)
    with (
        xrt_torch.autocast(bf16=True),
        xrt_torch.set_kernel_policy(attention="naive"),
        xrt_torch.record() as record,
    ):
        y = attend(q, k, v)
    assert y.dtype is torch.bfloat16
    assert record.ops() == ["attention"]
    grads = torch.autograd.grad(y.sum(), (q, k, v))
    assert all(g.dtype is torch.float32 for g in grads)


@pytest.mark.parametrize("routed", [False, True])
def test_torch_compile_has_the_gradients_of_pytorch(routed: bool, device: str) -> None:
    """Also where attention stays with PyTorch: its own decomposition on the host has no log-sum-exp for backward."""
    torch.compiler.reset()
    forget_graphs()
    q, k, v = operands((2, 4, 9, 16), (2, 4, 9, 16), (2, 4, 9, 16), device=device)
    grad = torch.randn_like(q)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q * 2, k, v, is_causal=True).relu()

    exact = gradients(run, [t.detach().double().requires_grad_() for t in (q, k, v)], grad.double())
    families = {"attention": ["flash_v2", "naive"]} if routed else {"norm": ["generated"]}
    with xrt_torch.set_kernel_policy(**families), xrt_torch.record() as record:
        mine = gradients(torch.compile(run, backend=xpuruntime_backend, fullgraph=True), (q, k, v), grad)
    assert ("attention" in record.ops("train_forward")) is routed
    assert ("attention_backward" in record.ops("train_backward")) is routed
    for a, b in zip(mine, exact, strict=True):
        assert rms(a - b) <= 1e-5 * rms(b)
    left = [node for graph in compiled_graphs() for node in graph.left]
    assert any("scaled_dot_product" in node for node in left) is not routed
    assert not any("xpuruntime" in node for node in left)


def test_a_compiled_function_follows_a_policy_that_changes() -> None:
    torch.compiler.reset()
    q, k, v = operands((1, 1, 4, 8), (1, 1, 4, 8), (1, 1, 4, 8))
    compiled = torch.compile(attend, backend=xpuruntime_backend)
    with xrt_torch.set_kernel_policy(attention="naive"):
        compiled(q, k, v).sum().backward()
    rule = {"op": "attention", "use": "flash_v2", "phase": "train_backward"}
    with xrt_torch.set_kernel_policy({"version": 1, "kernel": {"rules": [rule]}}):
        y = compiled(q, k, v)
    with pytest.raises(KernelUnavailable, match="forces 'flash_v2'"):  # backward has the policy of forward
        y.sum().backward()


def run_under(words: Any, device: str, dtype: torch.dtype = torch.float32) -> xrt_torch.StepRecord:
    """Return the record of a step under a policy: kernels by op family, or a whole policy."""
    q, k, v = operands((1, 4, 9, 16), (1, 2, 9, 16), (1, 2, 9, 16), device=device, dtype=dtype)
    policy = words if isinstance(words, dict) else {"attention": words}
    scope = (
        xrt_torch.set_kernel_policy(policy) if "version" in policy else xrt_torch.set_kernel_policy(**policy)
    )
    with scope, xrt_torch.record() as record:
        ops.attention(q, k, v, causal=True, enable_gqa=True).sum().backward()
    return record


def kernel_names(record: xrt_torch.StepRecord, phase: str) -> set[str]:
    return {k.partition(":")[0] for k in record.kernels(phase)}


def test_a_policy_swaps_exactly_the_kernels_of_attention(device: str) -> None:
    """``naive`` forward is a kernel, backward products and a softmax. ``flash`` is the word of processors, ``flash_v2`` of GPUs."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    flash = {"attention/flash"} if device == "cpu" else {"attention/flash_v2"}
    for words in ("flash" if device == "cpu" else "flash_v2", ["flash_v2", "flash"]):
        record = run_under(words, device, dtype)
        assert kernel_names(record, "train_forward") == kernel_names(record, "train_backward") == flash
    record = run_under("naive", device, dtype)
    assert kernel_names(record, "train_forward") == {"attention/naive"}
    backward = kernel_names(record, "train_backward")
    assert not backward & {"attention/flash", "attention/flash_v2"}
    assert any(name.startswith("matmul/") for name in backward)
    rule = {"op": "attention", "phase": "train_backward", "use": "naive"}
    record = run_under({"version": 1, "kernel": {"rules": [rule]}}, device, dtype)
    assert kernel_names(record, "train_forward") == flash
    assert kernel_names(record, "train_backward") == backward


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_stay_near_float64_where_few_keys_dominate(dtype: torch.dtype) -> None:
    """With scores of several units the rounded result and log-sum-exp are not exact enough: the kernel corrects for both."""
    values = operands((1, 4, 37, 64), (1, 4, 37, 64), (1, 4, 37, 64), dtype=dtype)
    grad = torch.randn(1, 4, 37, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    wide = [t.detach().double().requires_grad_() for t in values]
    exact = gradients(lambda *x: attend(*x, is_causal=True, scale=1.0), wide, grad.double())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        theirs = gradients(lambda *x: attend(*x, is_causal=True, scale=1.0), values, grad)
    with xrt_torch.set_kernel_policy(attention="flash"):
        mine = gradients(lambda *x: ops.attention(*x, causal=True, scale=1.0), values, grad)
    for a, b, true in zip(mine, theirs, exact, strict=True):
        assert rms(a - true) <= 1.5 * rms(b - true)


def test_a_word_that_the_host_lacks_is_recorded_or_an_error() -> None:
    rule = {"op": "attention", "use": "flash_v2"}
    with pytest.raises(KernelUnavailable, match="forces 'flash_v2', which is unavailable"):
        run_under({"version": 1, "kernel": {"rules": [rule]}}, "cpu")
    for words, chosen, rejected in (
        ("naive", "naive", ["flash"]),
        (["flash_v2", "naive"], "naive", ["flash", "flash_v2"]),
        ("flash_v2", "flash", ["naive", "flash_v2"]),
    ):
        for prepared in run_under(words, "cpu").prepared:
            subject = {"attention": "attention_train"}.get(prepared.op, prepared.op)
            (decision,) = [d for d in prepared.decisions if d.subject == subject]
            assert decision.chosen is not None
            assert decision.chosen.name == chosen
            reasons = {c.name: c.reason for c in decision.rejected}
            if prepared.op == "attention":
                assert list(reasons) == rejected
            if "flash_v2" in rejected:
                assert reasons["flash_v2"].startswith("no kernel of this name computes attention here")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda q: ops.attention(q, q, q[..., 1:, :]), r"needs q and k of one size, k and v of one length; got \[1, 4, 5, 8\], \[1, 4, 5, 8\], \[1, 4, 4, 8\]"),
        (lambda q: ops.attention(q, q[:, :2], q[:, :2]), "needs q, k and v of one batch and one number of heads"),
        (lambda q: ops.attention(q, q[:, :3], q[:, :3], enable_gqa=True), "enable_gqa needs"),
        (lambda q: ops.attention(q, q, q, True, attn_mask=q[0, 0]), r"takes a mask or causal=True; got both"),
        (lambda q: ops.attention(q, q, q, attn_mask=torch.ones(5, 5, dtype=torch.int32)), "needs a mask of bool or float; got a tensor of torch.int32"),
        (lambda q: ops.attention(q, q, q, attn_mask=torch.ones(5, 5, requires_grad=True)), "has no gradient of the mask"),
        (lambda q: ops.attention(q, q, q, attn_mask=torch.ones(5, 4)), r"needs a mask that broadcasts to the scores; got \[5, 4\] to \[1, 4, 5, 5\]"),
        (lambda q: ops.attention(q, q.double(), q), "needs operands of one dtype"),
        (lambda q: ops.attention(q[0, 0, 0], q, q), "of one rank"),
    ],
)  # fmt: skip
def test_bad_operands_are_named_errors(call: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        call(torch.randn(1, 4, 5, 8))


def rejections(record: xrt_torch.StepRecord, phase: str, word: str) -> list[str]:
    """Return the reasons against a kernel in the decisions of one phase."""
    decisions = [d for p in record.prepared if p.phase == phase for d in p.decisions]
    return [c.reason for d in decisions for c in d.rejected if c.name == word]


def test_cudnn_is_rejected_with_a_reason_where_it_cannot_run() -> None:
    record = run_under(["cudnn", "naive"], "cpu")
    for phase in ("train_forward", "train_backward"):
        assert any("the operands are on cpu" in reason for reason in rejections(record, phase, "cudnn"))
    rule = {"op": "attention", "use": "cudnn"}
    with pytest.raises(KernelUnavailable, match="forces 'cudnn', which is unavailable"):
        run_under({"version": 1, "kernel": {"rules": [rule]}}, "cpu")


def host_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put PyTorch's attention for processors into the table of library kernels, under the word of cuDNN."""
    forward, backward = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )

    def run(t: Any, attributes: Any) -> list[Tensor]:
        return list(forward(*t[:3], 0.0, attributes[0], scale=attributes[1]))

    def run_backward(t: Any, attributes: Any) -> list[Tensor]:
        causal, scale, wanted = attributes
        found = forward(*t[1:4], 0.0, causal, scale=scale)
        grads = backward(t[0], *t[1:4], *found, 0.0, causal, scale=scale)
        return [g.contiguous() for g, w in zip(grads, wanted, strict=True) if w]

    def supports(t: Any, attributes: Any) -> Support:
        same = t[0].shape[1] == t[1].shape[1]
        return Support.yes() if same else Support.no(Reason.SHAPE_UNSUPPORTED, "grouped heads")

    table = {
        "attention": LibraryKernel("cudnn", "for_cpu", supports, run, True),
        "attention_backward": LibraryKernel("cudnn", "for_cpu_backward", lambda t, a: supports(t[1:], a), run_backward, False),
    }  # fmt: skip
    monkeypatch.setattr(library_kernels, "LIBRARY_KERNELS", table)
    programs.clear()


@pytest.mark.parametrize(
    ("policy", "forward", "backward"),
    [
        ({"attention": "cudnn"}, "cudnn", "cudnn"),
        ({"attention": ["cudnn", "naive"]}, "cudnn", "cudnn"),
        ({"attention": ["naive", "cudnn"]}, "naive", "cudnn"),
        ({"attention": ["flash_v2", "cudnn"]}, "cudnn", "cudnn"),
        ({"attention": "naive"}, "naive", ""),
        ({"rules": [{"op": "attention", "use": "cudnn"}]}, "cudnn", "cudnn"),
        ({"rules": [{"op": "attention", "use": "cudnn", "phase": "train_forward"}]}, "cudnn", "flash"),
        ({"attention": "cudnn", "rules": [{"deterministic": True}]}, "cudnn", "flash"),
        ({"attention": "cudnn", "rules": [{"op": "attention", "forbid": ["cudnn"]}]}, "flash", "flash"),
        ({"attention": "cudnn", "rules": [{"workspace_bytes": 1 << 30}]}, "flash", "flash"),
    ],
    ids=str,
)
def test_the_kernel_of_a_library_follows_the_order_of_the_policy(
    policy: dict[str, Any], forward: str, backward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_library(monkeypatch)
    q, k, v = operands((1, 3, 9, 16), (1, 3, 9, 16), (1, 3, 9, 16))
    grad = torch.randn_like(q)
    plain = gradients(lambda *x: attend(*x, is_causal=True), (q, k, v), grad)
    scope = xrt_torch.set_kernel_policy({"version": 1, "kernel": policy})
    with scope, xrt_torch.record() as record:
        mine = gradients(lambda *x: ops.attention(*x, causal=True), (q, k, v), grad)
    programs.clear()
    assert kernel_names(record, "train_forward") == {f"attention/{forward}"}
    if backward:
        assert f"attention/{backward}" in kernel_names(record, "train_backward")
    assert record.fallbacks == {}
    assert "PyTorch's own operator" not in str(record)
    for a, b in zip(mine, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_a_rule_that_forces_a_library_is_honored_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    host_library(monkeypatch)
    rule = {"op": "attention", "use": "cudnn"}
    with pytest.raises(KernelUnavailable, match="grouped heads"):
        run_under({"version": 1, "kernel": {"rules": [rule]}}, "cpu")
    limits = {"version": 1, "kernel": {"rules": [rule, {"deterministic": True}]}}
    q, k, v = operands((1, 1, 3, 8), (1, 1, 3, 8), (1, 1, 3, 8))
    with xrt_torch.set_kernel_policy(limits), pytest.raises(KernelUnavailable, match="deterministic"):
        ops.attention(q, k, v).sum().backward()
    programs.clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_cudnn_computes_attention_of_training(dtype: torch.dtype, causal: bool) -> None:
    values = operands((2, 3, 70, 64), (2, 3, 70, 64), (2, 3, 70, 64), device="cuda", dtype=dtype)
    grad = torch.randn(2, 3, 70, 64, generator=torch.Generator().manual_seed(1)).to("cuda", dtype)
    wide = [t.detach().double().requires_grad_() for t in values]
    exact = gradients(lambda *x: attend(*x, is_causal=causal), wide, grad.double())
    theirs = gradients(lambda *x: attend(*x, is_causal=causal), values, grad)
    for run in (ops.attention, torch.compile(ops.attention, backend=xpuruntime_backend)):
        with xrt_torch.set_kernel_policy(attention="cudnn"), xrt_torch.record() as record:
            mine = gradients(lambda *x, run=run: run(*x, causal=causal), values, grad)
        for phase in ("train_forward", "train_backward"):
            assert kernel_names(record, phase) == {"attention/cudnn"}
        for a, b, true in zip(mine, theirs, exact, strict=True):
            assert rms(a - true) <= 2 * rms(b - true)
