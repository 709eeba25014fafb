"""autocast: agreement with torch.autocast, the table by op family, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import xpuruntime as xrt
import xpuruntime.pytorch as xrt_torch
from xpuruntime.errors import PolicyError
from xpuruntime.policies.precedence import autocast_policy
from xpuruntime.pytorch.mixed_precision import precision_of

LOW = {"fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.fixture
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8))


@pytest.mark.parametrize("word", LOW)
def test_dtypes_are_those_of_torch_autocast(word: str, net: torch.nn.Module, device: str) -> None:
    net, x = net.to(device), torch.randn(4, 16, device=device)

    def dtypes() -> list[torch.dtype]:
        y = x
        seen = []
        for layer in net:
            y = layer(y)
            seen.append(y.dtype)
        return [*seen, y.softmax(-1).dtype]

    with torch.autocast(device, dtype=LOW[word]):
        theirs = dtypes()
    with xrt_torch.autocast(**{word: True}):
        plain = dtypes()
        with xrt_torch.set_kernel_policy(matmul="generated", norm="generated", softmax="generated"):
            routed = dtypes()
    assert plain == theirs
    if device == "cuda":  # on the host, PyTorch leaves layer_norm and softmax in the operand's precision
        assert routed == theirs
    assert routed == [LOW[word], torch.float32, LOW[word], torch.float32]


def test_the_table_changes_a_family(net: torch.nn.Module) -> None:
    with xrt_torch.autocast(bf16=True, table={"norm": "low"}), xrt_torch.set_kernel_policy(norm="generated"):
        assert net[:2](torch.randn(4, 16)).dtype is torch.bfloat16
    with xrt_torch.autocast(bf16=True), xrt_torch.set_kernel_policy(norm="generated"):
        assert net[:2](torch.randn(4, 16)).dtype is torch.float32


FAMILIES: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "linear": ("matmul", lambda x: F.linear(x, x.new_ones(3, 8))),
    "matmul": ("matmul", lambda x: x @ x.new_ones(8, 3)),
    "bmm": ("matmul", lambda x: torch.bmm(x, x.new_ones(2, 8, 3))),
    "conv1d": ("conv", lambda x: F.conv1d(x, x.new_ones(3, 4, 3))),
    "conv_transpose1d": ("conv", lambda x: F.conv_transpose1d(x, x.new_ones(4, 3, 3))),
    "attention": ("attention", lambda x: F.scaled_dot_product_attention(*[x.unsqueeze(1)] * 3)),
    "layer_norm": ("norm", lambda x: F.layer_norm(x, (8,))),
    "rms_norm": ("norm", lambda x: F.rms_norm(x, (8,), x.new_ones(8))),
    "softmax": ("softmax", lambda x: x.softmax(-1)),
    "batch_norm": ("batch_norm", lambda x: F.batch_norm(x, x.new_ones(4).float(), x.new_ones(4).float(), training=True)),
    "max_pool1d": ("pool", lambda x: F.max_pool1d(x, 2)),
    "avg_pool1d": ("pool", lambda x: F.avg_pool1d(x, 2)),
    "embedding": ("embedding", lambda x: F.embedding(x.new_zeros(2, dtype=torch.int64), x.view(8, 8))),
}  # fmt: skip
"""A function of PyTorch by name, its op family, and a call for an operand [2, 4, 8]."""


@contextmanager
def cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """Enable PyTorch's autocast for CUDA tensors; ``torch.autocast`` refuses that where there is no device."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


@pytest.mark.sampled(13)
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_table_of_a_family_is_that_of_torch_autocast_on_cuda(name: str, own: torch.dtype) -> None:
    """PyTorch's dtypes come from tensors without data, which need no device."""
    family, call = FAMILIES[name]
    if name == "rms_norm" and own is torch.bfloat16 and torch.__version__ < "2.12":
        pytest.skip("PyTorch 2.11 leaves rms_norm of 16-bit operands in their type")
    if (
        name == "batch_norm"
    ):  # it asks for cuDNN, which needs a device; the host's autocast leaves it as it is, too
        with torch.autocast("cpu", torch.bfloat16):
            theirs = call(torch.ones(2, 4, 8, dtype=own)).dtype
    else:
        with FakeTensorMode(), cuda_autocast(torch.bfloat16):
            theirs = call(torch.empty(2, 4, 8, device="cuda", dtype=own)).dtype
    words = {"low": torch.bfloat16, "float32": torch.float32, "own": own}
    assert words[precision_of(family)] is theirs
    kernels = {
        "norm" if family == "batch_norm" else family: "naive" if family == "attention" else "generated"
    }
    policy = xrt_torch.set_kernel_policy(**kernels)
    with policy, xrt_torch.autocast(bf16=True), xrt_torch.record() as record:
        routed = call(torch.ones(2, 4, 8, dtype=own)).dtype
    assert record.ops()
    assert routed is theirs


def test_a_policy_file_sets_the_table_and_an_argument_goes_over_it(
    net: torch.nn.Module, tmp_path: Path
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "version: 1\nkernel: {norm: generated, matmul: generated}\nexecution: {autocast: {norm: low}}\n"
    )
    x = torch.randn(4, 16)
    with xrt_torch.set_kernel_policy(path):
        with xrt_torch.autocast(bf16=True):
            assert precision_of("norm") == "low"
            assert net[:2](x).dtype is torch.bfloat16
            with xrt_torch.set_kernel_policy(
                {"version": 1, "execution": {"autocast": {"matmul": "float32"}}}
            ):
                assert (precision_of("norm"), precision_of("matmul")) == ("low", "float32")
                assert net[0](x).dtype is torch.float32
        with xrt_torch.autocast(bf16=True, table={"norm": "float32"}):
            assert net[:2](x).dtype is torch.float32
    assert precision_of("norm") == "float32"


def test_a_session_opens_with_the_file_of_training_unchanged(net: torch.nn.Module, tmp_path: Path) -> None:
    """The table is of training: the session computes in the model's own precision, with and without it."""
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\nexecution: {engine: native, autocast: {norm: low}}\n")
    x = torch.randn(4, 16)
    with xrt.InferenceSession(net.eval(), example_inputs=(x,), policy=path) as session:
        (y,) = session.run({session.get_inputs()[0].name: x.numpy()}).values()
    with xrt.InferenceSession(net.eval(), example_inputs=(x,), engine="native") as session:
        (plain,) = session.run({session.get_inputs()[0].name: x.numpy()}).values()
    assert (y == plain).all()


def test_the_built_in_table_is_a_policy_file() -> None:
    execution = autocast_policy().execution
    assert execution.set_fields().keys() == {"autocast"}
    assert execution.autocast is not None
    assert execution.autocast["matmul"] == "low"


def test_parameters_get_gradients_in_their_own_dtype(net: torch.nn.Module, device: str) -> None:
    net, x = net.to(device), torch.randn(4, 16, device=device)
    exact = torch.autograd.grad(net(x).square().mean(), net.parameters())
    with xrt_torch.autocast(bf16=True), xrt_torch.set_kernel_policy(matmul="generated", norm="generated"):
        loss = net(x).square().mean()
    for mine, true in zip(torch.autograd.grad(loss, net.parameters()), exact, strict=True):
        assert mine.dtype is torch.float32
        assert (mine - true).norm() <= 0.03 * true.norm()


def test_a_decorated_function_and_a_disabled_block() -> None:
    x = torch.randn(4, 4)
    assert xrt_torch.autocast(bf16=True)(lambda: x @ x)().dtype is torch.bfloat16
    with xrt_torch.autocast(enabled=False):
        assert (x @ x).dtype is torch.float32


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "needs one precision; got fp16=False, bf16=False"),
        ({"fp16": True, "bf16": True}, "needs one precision"),
        ({"fp16": True, "table": {"norms": "low"}}, "autocast.norms: no such op family of autocast; got 'norms'. Did you mean 'norm'"),
        ({"fp16": True, "table": {"norm": "half"}}, "autocast.norm: no such precision of autocast; got 'half'. Known: low, float32, own"),
        ({"fp16": True, "table": 3}, "autocast: must be a mapping of op families to precisions, at most 64 entries; got 3"),
        ({"fp16": True, "table": {3: "low"}}, "no such op family of autocast; got 3"),
        ({"fp16": "yes"}, "fp16 must be a bool; got 'yes'. Give True or False."),
        ({"bf16": True, "enabled": None}, "enabled must be a bool; got None"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named_errors(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(PolicyError, match=text):
        xrt_torch.autocast(**arguments)  # type: ignore[arg-type]
