"""Decomposing each distinct call once gives the graph of decomposing the whole program, which is the oracle here."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import OfFunction, same  # noqa: E402

from xpuruntime.frontends.torch import decompose, import_torch  # noqa: E402

nn, F = torch.nn, torch.nn.functional


def whole(module: Any, inputs: Any) -> str:
    """The graph's text with the program decomposed as a whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decompose, "decomposed_once", lambda *args: None)
        return import_torch(module, inputs).graph.to_json()


class Inverted(nn.Module):
    """Blocks as in efficient networks: in-place activations, squeeze and excitation, shortcuts in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(channels, channels * 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels * 2)
        self.depthwise = nn.Conv2d(channels * 2, channels * 2, 3, padding=1, groups=channels * 2)
        self.gate = nn.Conv2d(channels * 2, channels * 2, 1)
        self.project = nn.Conv2d(channels * 2, channels, 1, padding="same")

    def forward(self, x: Any) -> Any:
        y = F.silu(self.norm(self.expand(x)), inplace=True)
        y = F.hardswish(self.depthwise(F.pad(y, (0, 0, 0, 0))), inplace=True)
        y = y * self.gate(y.mean((2, 3), keepdim=True)).sigmoid_()
        y = self.project(F.dropout(y, 0.1, self.training, inplace=True))
        y += x
        return y


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(Inverted(8) for _ in range(3)))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)

    def forward(self, input: Any) -> Any:  # noqa: A002
        return self.head(torch.flatten(self.pool(self.blocks(self.stem(input))), 1))


def attention(x: Any) -> Any:
    q, k, v = x.reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).chunk(3)
    positions = torch.arange(5)
    mask = positions[None, :] <= positions[:, None]
    y = F.scaled_dot_product_attention(q.squeeze(0), k.squeeze(0), v.squeeze(0), attn_mask=mask)
    return y.transpose(1, 2).flatten(2), torch.tensor([1.5, 2.0])[None] + y.mean()


def splits(x: Any) -> Any:
    a, b, c = torch.split(x, [2, 3, 5], dim=-1)
    top, index = torch.topk(c, 2)
    return torch.cat([a, b, c], -1), top, index, F.glu(x, -1), x.unbind(0)[1]


def copies_and_fills(x: Any) -> Any:
    rows = x.t().contiguous().mul_(2)
    rows = (rows + 1).masked_fill_((rows > 1).to(torch.int32).bool(), -1.0)
    best = torch.zeros_like(rows).scatter_(1, rows.argmax(1, keepdim=True), 1.0)
    return rows, best, x.t().reshape(-1) + 1, x.t().flatten().to(torch.float64).sub_(1.5)


SAME = {
    "network": (Network(), (torch.randn(2, 3, 17, 13),)),
    "one image": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(4)), (torch.randn(1, 3, 8, 8),)),
    "without a batch": (nn.Conv2d(3, 4, 3), (torch.randn(3, 8, 8),)),
    "channels last": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)), (torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),)),
    "rows": (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh()), (torch.randn(5, 6),)),
    "conv1d and conv3d": (OfFunction(lambda x, w, v: (F.conv1d(x, w, padding=1), F.conv3d(v, v[:, :, :1]))), (torch.randn(2, 3, 9), torch.randn(4, 3, 3), torch.randn(2, 2, 3, 4, 4))),
    "conv_transpose2d": (nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), (torch.randn(2, 3, 5, 5),)),
    "no image": (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)), (torch.randn(0, 3, 8, 8),)),
    "attention": (OfFunction(attention), (torch.randn(2, 5, 24),)),
    "splits": (OfFunction(splits), (torch.randn(3, 10),)),
    "an operand twice": (OfFunction(lambda x: (x.square().mul(x).add_(x), F.mse_loss(x, x))), (torch.randn(3, 4),)),
    "integers in place": (OfFunction(lambda i: (i + 1).mul_(3).sub_(i)), (torch.arange(6).view(2, 3),)),
    "copies and fills": (OfFunction(copies_and_fills), (torch.randn(3, 4),)),
    "the input": (OfFunction(lambda x: (x, x.float(), x.contiguous(), x.expand_as(x))), (torch.randn(2, 3),)),
    "a constant": (OfFunction(lambda x: x + torch.tensor([0.5, -0.5, float("nan")])), (torch.randn(2, 3),)),
    "numbers that are equal": (OfFunction(lambda x: (x.clamp(-1, 1), x.clamp(-1.0, 1.0), x.pow(1), x.pow(True), x.mul(0.0), x.mul(-0.0))), (torch.arange(-3, 3),)),
    "an opaque op": (OfFunction(lambda x: torch.linalg.qr(x)[1] + torch.linalg.qr(x.mT)[1]), (torch.randn(3, 3),)),
    "complex": (OfFunction(lambda x: torch.view_as_real(torch.fft.fft(x).conj() * 2)), (torch.randn(2, 8),)),
    "a name of Python": (OfFunction(lambda slice, *input: slice[:, 1:] + input[0]), (torch.randn(2, 3), torch.randn(2, 2))),  # noqa: A006
}  # fmt: skip


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", SAME)
def test_the_graph_is_that_of_the_whole_program(name: str, taken: list[bool]) -> None:
    module, inputs = SAME[name]
    module = copy.deepcopy(module).eval()
    graph = import_torch(module, inputs).graph
    assert taken
    assert all(taken)
    assert graph.to_json() == whole(module, inputs)


def into_a_wider_type(x: Any) -> Any:
    return (x * 2).half().add_(x)


WHOLE = {
    "a write of another type": into_a_wider_type,
    "truth values from a comparison": lambda x: (x * 1).gt_(0),
    "a write to a part of a split": lambda x: (y := x * 2, y.chunk(2)[0].add_(1), y + 1)[2],
}


@pytest.mark.parametrize("name", WHOLE)
def test_writes_that_others_see_decompose_the_whole_program(name: str, taken: list[bool]) -> None:
    same(WHOLE[name], torch.randn(3, 4), others=[(torch.randn(3, 4),)])
    assert not any(taken)


class Statistics(nn.Module):
    """Norms that update their buffers, which the schemas of their ops do not say."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))

    def forward(self, x: Any) -> Any:
        y = F.batch_norm(x, self.mean, self.var, training=True)
        return F.batch_norm(y.exp(), self.mean + 1, self.var, training=True)


def test_norms_that_update_buffers_decompose_the_whole_program(taken: list[bool]) -> None:
    inputs = (torch.randn(2, 3, 4, 5),)
    graph = import_torch(Statistics().eval(), inputs).graph
    assert not any(taken)
    assert [s.init for s in graph.states] == ["mean", "var"]
    assert graph.to_json() == whole(Statistics().eval(), inputs)


def test_a_written_tensor_is_read_by_its_new_name(taken: list[bool]) -> None:
    def chain(x: Any) -> Any:
        y = x + 1
        y.relu_()
        z = y.view(-1)
        return y.mul(2), z

    same(chain, torch.randn(3, 4), others=[(torch.randn(3, 4),)])
    assert all(taken)


def test_a_decomposition_of_the_user_is_used_for_every_size(taken: list[bool]) -> None:
    from torch._decomp import decomposition_table

    op = torch.ops.aten.batch_norm.default
    assert op not in decomposition_table
    module = nn.Sequential(
        nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3)
    ).eval()
    inputs = (torch.randn(2, 3, 8, 8),)
    convolution = torch.ops.aten.conv2d.default
    saved = convolution.py_kernels.copy()
    try:
        torch._decomp.register_decomposition(convolution)(
            lambda x, w, b=None, *args: F.linear(x.mean((2, 3)), w.mean((2, 3)), b)[:, :, None, None].expand(
                -1, -1, x.shape[2] - 2, x.shape[3] - 2
            )
        )
        assert import_torch(module, inputs).graph.to_json() == whole(module, inputs)
    finally:
        decomposition_table.pop(convolution, None)
        convolution.py_kernels.clear()
        convolution.py_kernels.update(saved)
    assert all(taken)


class WriteThroughView(nn.Module):
    def forward(self, x: Any) -> Any:
        y = x + 1
        y[0].mul_(10)
        y.view(-1).sub_(3)
        return y


class WriteToState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(2, 3))

    def forward(self, x: Any) -> Any:
        self.n.view(-1).add_(1)
        return x + self.n


@pytest.mark.parametrize("module", [WriteThroughView(), WriteToState()], ids=lambda m: type(m).__name__)
def test_writes_of_a_program_that_was_saved_and_loaded_are_kept(module: Any, taken: list[bool]) -> None:
    """Its nodes have storages of their own, from which nobody can tell what a write changes."""
    import io

    x = torch.arange(6.0).reshape(2, 3)
    file = io.BytesIO()
    torch.export.save(torch.export.export(module, (x,)), file)
    file.seek(0)
    imported = import_torch(torch.export.load(file))
    assert not any(taken)
    file.seek(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decompose, "decomposed_once", lambda *args: None)
        assert imported.graph.to_json() == import_torch(torch.export.load(file)).graph.to_json()
    assert bool(imported.graph.states) == bool([*module.buffers()])


def test_a_program_that_was_saved_and_loaded_is_decomposed_once_without_writes(taken: list[bool]) -> None:
    import io

    file = io.BytesIO()
    torch.export.save(torch.export.export(nn.Linear(3, 2), (torch.zeros(2, 3),)), file)
    file.seek(0)
    import_torch(torch.export.load(file))
    assert taken == [True]
