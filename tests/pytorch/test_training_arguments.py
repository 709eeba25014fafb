"""Arguments of training that are wrong are named errors, and unusual tensors give what PyTorch gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import xpuruntime.pytorch as xrt_torch
from xpuruntime.errors import InputError, PolicyError, RunError, XpuError
from xpuruntime.pytorch import ops
from xpuruntime.pytorch.compiled import xpuruntime_backend

X, W = torch.ones(2, 4), torch.ones(3, 4)
IMAGE, FILTER = torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3)
TARGET = torch.tensor([0, 1])

OPS: dict[str, Callable[[Any], Any]] = {
    "layer_norm": lambda x: ops.layer_norm(x, 4),
    "rms_norm": lambda x: ops.rms_norm(x, 4),
    "softmax": ops.softmax,
    "swiglu": lambda x: ops.swiglu(X, x),
    "geglu": lambda x: ops.geglu(x, X),
    "linear": lambda x: ops.linear(x, W),
    "weight of linear": lambda x: ops.linear(X, x),
    "matmul": lambda x: ops.matmul(X, x),
    "rope": lambda x: ops.rope(x, torch.ones(2, 2), torch.ones(2, 2)),
    "embedding": lambda x: ops.embedding(TARGET, x),
    "indices of embedding": lambda x: ops.embedding(x, W),
    "linear_cross_entropy": lambda x: ops.linear_cross_entropy(x, W, TARGET),
    "target of linear_cross_entropy": lambda x: ops.linear_cross_entropy(X, W, x),
    "convolution": lambda x: ops.convolution(x, FILTER),
    "weight of convolution": lambda x: ops.convolution(IMAGE, x),
    "max_pool": lambda x: ops.max_pool(x, [1]),
    "avg_pool": lambda x: ops.avg_pool(x, [1]),
    "batch_norm": lambda x: ops.batch_norm(x, None, None, training=True),
    "weight of batch_norm": lambda x: ops.batch_norm(
        X, None, None, x.view(-1) if x is W else x, training=True
    ),
}
UNUSUAL: dict[str, Any] = {
    "text": "x",
    "number": 3,
    "list": [[1.0, 2.0]],
    "bool": X.bool(),
    "complex": X.to(torch.complex64),
    "float8": X.to(torch.float8_e4m3fn),
    "sparse": X.to_sparse(),
}


@pytest.mark.parametrize("op", OPS)
def test_operands_of_another_kind_are_named_errors(op: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantized tensors are deprecated
        quantized = torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)
    for kind, value in (UNUSUAL | {"quantized": quantized}).items():
        with pytest.raises(InputError) as error:
            OPS[op](value)
        assert "pytorch.ops." in str(error.value), kind
    if op != "weight of batch_norm":
        with pytest.raises(InputError):
            OPS[op](None)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ops.layer_norm(X, "abc"), r"layer_norm\] normalized_shape must be ints; got 'abc'"),
        (lambda: ops.layer_norm(X, 4.0), r"normalized_shape must be ints; got 4.0"),
        (lambda: ops.layer_norm(X, 4, eps="x"), r"eps must be a number; got 'x'"),
        (lambda: ops.layer_norm(X, 4, torch.ones(3)), r"weight and bias must have normalized_shape; got \[3\] and \[4\]"),
        (lambda: ops.rms_norm(X, 4, eps=[1]), r"rms_norm\] eps must be a number; got \[1\]"),
        (lambda: ops.rope(X, torch.ones(2, 2), torch.ones(2, 2), interleaved="x"), r"interleaved must be a bool"),
        (lambda: ops.embedding(TARGET, W, "x"), r"padding_idx must be an int; got 'x'"),
        (lambda: ops.embedding(TARGET, W.to("meta")), r"needs its operands on one device; got cpu and meta"),
        (lambda: ops.linear_cross_entropy(X, W, TARGET, ignore_index="x"), r"ignore_index must be an int"),
        (lambda: ops.linear(X.to("meta"), W), r"needs its operands on one device; got meta and cpu"),
        (lambda: ops.convolution(IMAGE, FILTER, stride="x"), r"convolution\] stride must be ints; got 'x'"),
        (lambda: ops.convolution(IMAGE, FILTER, stride=0), r"bad stride; got 0. Give one number, or 2, of at least 1."),
        (lambda: ops.convolution(IMAGE, FILTER, padding="full"), r"padding must be ints; got 'full'"),
        (lambda: ops.convolution(IMAGE, FILTER, padding="same", stride=2), r"padding 'same' needs stride 1"),
        (lambda: ops.convolution(IMAGE, FILTER, groups=2), r"the channels of x and weight do not fit 2 groups; got \[1, 2, 5, 5\]"),
        (lambda: ops.convolution(IMAGE, FILTER, groups=1.0), r"groups must be an int; got 1.0"),
        (lambda: ops.convolution(IMAGE, torch.ones(3, 2, 9, 9)), r"the window is larger than the padded input"),
        (lambda: ops.convolution(IMAGE, FILTER, torch.ones(4)), r"needs a bias \[outputs\]; got \[4\] and 3 outputs"),
        (lambda: ops.convolution(IMAGE, FILTER, output_padding=1), r"output_padding needs transposed=True"),
        (lambda: ops.convolution(IMAGE, torch.ones(2, 3, 3, 3), transposed=True, output_padding=2), r"output_padding is too large"),
        (lambda: ops.convolution(X, W), r"needs x \[batch, channels, ...\] and a weight of 3 to 5 dims"),
        (lambda: ops.max_pool(IMAGE, 2), r"max_pool\] needs x \[batch, channels, ...\]; got \[1, 2, 5, 5\] and kernel_size \[2\]"),
        (lambda: ops.max_pool(IMAGE, [0, 2]), r"bad kernel_size; got \[0, 2\]"),
        (lambda: ops.max_pool(IMAGE, [2, 2], padding=2), r"padding is at most half of the window"),
        (lambda: ops.max_pool(IMAGE, [9, 9]), r"the window is larger than the padded input"),
        (lambda: ops.avg_pool(IMAGE, [2, 2], divisor_override=0), r"divisor_override must not be 0"),
        (lambda: ops.avg_pool(IMAGE, [2, 2], ceil_mode=1), r"ceil_mode must be a bool; got 1"),
        (lambda: ops.batch_norm(X[:1], None, None, training=True), r"needs more than one value per channel in training; got \[1, 4\]"),
        (lambda: ops.batch_norm(X, None, None), r"needs running_mean and running_var, or neither of them in training"),
        (lambda: ops.batch_norm(X, torch.ones(3), torch.ones(3)), r"needs a value per channel; got \[3\] for x \[2, 4\]"),
        (lambda: xrt_torch.certify(3, X), r"certify\] needs a torch.nn.Module; got int"),
        (lambda: xrt_torch.certify(torch.nn.Linear(4, 2).eval(), 3), r"needs tensors as example inputs; got int"),
        (lambda: xrt_torch.certify(torch.nn.Linear(4, 2).eval(), ()), r"needs tensors as example inputs; got none"),
        (lambda: xrt_torch.certify(torch.nn.Linear(4, 2).eval(), X, samples="x"), r"samples must be an int; got 'x'"),
        (lambda: xrt_torch.certify(torch.nn.Linear(4, 2).eval(), X.to("meta")), r"needs dense tensors with data"),
        (lambda: xrt_torch.capture_graph(3), r"capture_graph\] needs a function; got int"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named_errors(call: Callable[[], object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        call()


@pytest.mark.parametrize(
    "policy", [3, "no_such_file.yaml", {"version": 1, "execution": {"autocast": {"norm": "half"}}}]
)
def test_bad_policies_are_named_errors(policy: object) -> None:
    with pytest.raises(XpuError):
        xrt_torch.set_kernel_policy(policy)
    with pytest.raises(PolicyError, match="rules"):
        xrt_torch.set_kernel_policy(rules=[3])


@pytest.mark.parametrize("index", [-1, -3, 3, 9])
def test_an_index_or_target_that_does_not_exist_is_an_error(index: int) -> None:
    """PyTorch's functions do not count from the end."""
    with pytest.raises(RunError, match="is outside a dim of 3"):
        ops.embedding(torch.tensor([index]), W)
    with pytest.raises(InputError, match="linear_cross_entropy"):
        ops.linear_cross_entropy(X, W, torch.tensor([0, index]))


@pytest.mark.parametrize("arguments", [{"options": {"epilogue_fusion": True}}, {"mode": "max-autotune"}])
def test_options_and_modes_of_torch_compile_are_not_ignored(arguments: dict[str, Any]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(torch.nn.Linear(4, 2), backend=xpuruntime_backend, **arguments)
    with pytest.raises(BackendCompilerFailed, match=f"takes no {next(iter(arguments))}; got"):
        compiled(X)


def test_a_pending_negation_is_applied() -> None:
    x = torch.view_as_complex(torch.randn(2, 4, 2)).conj().imag
    assert x.is_neg()
    assert torch.allclose(ops.softmax(x), torch.softmax(x, -1))


class Marked(torch.Tensor):
    """A subclass without behavior of its own."""


def test_meta_tensors_and_subclasses_keep_their_kind() -> None:
    assert ops.softmax(X.to("meta")).is_meta
    assert ops.convolution(IMAGE.to("meta"), FILTER.to("meta")).shape == (1, 3, 3, 3)
    y = ops.softmax(X.as_subclass(Marked))
    assert type(y) is Marked
    assert torch.allclose(y.as_subclass(torch.Tensor), X.softmax(-1))


RUNS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softmax": (ops.softmax, lambda x: x.softmax(-1)),
    "layer_norm": (lambda x: ops.layer_norm(x, 4), lambda x: torch.nn.functional.layer_norm(x, (4,))),
    "linear": (lambda x: ops.linear(x, W, None, "gelu"), lambda x: torch.nn.functional.gelu(x @ W.t())),
    "linear_cross_entropy": (
        lambda x: ops.linear_cross_entropy(x, W, TARGET),
        lambda x: torch.nn.functional.cross_entropy(x @ W.t(), TARGET),
    ),
}
TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda f, x: torch.func.grad(lambda v: f(v).square().sum())(x),
    "vmap": lambda f, x: torch.vmap(f)(torch.stack((x, 2 * x))),
    "gradients of samples": lambda f, x: torch.vmap(torch.func.grad(lambda v: f(v).sum()))(
        torch.stack((x, -x))
    ),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "hessian": lambda f, x: torch.func.hessian(lambda v: f(v).sum())(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_torch_func_compute_what_they_compute_of_pytorch(transform: str) -> None:
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    for name, (mine, theirs) in RUNS.items():
        assert torch.allclose(TRANSFORMS[transform](mine, x), TRANSFORMS[transform](theirs, x), atol=1e-5), (
            name
        )
    layer = torch.nn.Linear(4, 3)
    plain = TRANSFORMS[transform](layer, x)
    with xrt_torch.set_kernel_policy(matmul="generated"), xrt_torch.record() as record:
        routed = TRANSFORMS[transform](layer, x)
    assert torch.equal(routed, plain)
    assert record.fallbacks == {"linear (matmul)": "a transform of torch.func is active"}


def test_forward_mode_differentiation_stays_with_pytorch() -> None:
    import torch.autograd.forward_ad as forward

    layer = torch.nn.Linear(4, 3)
    with xrt_torch.set_kernel_policy(matmul="generated"), xrt_torch.record() as record, forward.dual_level():
        tangent = forward.unpack_dual(layer(forward.make_dual(X, X))).tangent
    assert torch.allclose(tangent, X @ layer.weight.t())
    assert record.fallbacks == {"linear (matmul)": "forward-mode differentiation is active"}
