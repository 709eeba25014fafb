"""torch.compile with the backend xpuruntime: losses of language models whose logits are not stored, and reasons where they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.training_cases import rms

from xpuruntime.errors import InputError
from xpuruntime.pytorch.compiled import compiled_graphs, xpuruntime_backend
from xpuruntime.pytorch.compiled.head_loss import FUSED
from xpuruntime.pytorch.compiled.report import forget_graphs
from xpuruntime.pytorch.ops import cross_entropy

Tensor = torch.Tensor
WORDS, SIZE, ROWS = 301, 24, 4 * 9
Loss = Callable[[torch.nn.Module, Tensor, Tensor], Tensor]


class Head(torch.nn.Module):
    """A small network with the head of a language model."""

    def __init__(self, loss: Loss, *, bias: bool = False) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, SIZE)
        self.norm = torch.nn.LayerNorm(SIZE)
        self.head = torch.nn.Linear(SIZE, WORDS, bias=bias)
        self.loss = loss

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self, self.norm(self.words(tokens)), labels)


def _flat(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m.head(x).flatten(0, 1), y.flatten())


def _wide(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m.head(x).float().view(-1, WORDS), y.view(-1), ignore_index=7, reduction="sum")


def _shifted(m: Any, x: Tensor, y: Tensor) -> Tensor:
    logits = m.head(x)[..., :-1, :].contiguous()
    return F.cross_entropy(logits.view(-1, logits.size(-1)), y[..., 1:].contiguous().view(-1))


def _padded(m: Any, x: Tensor, y: Tensor) -> Tensor:
    """Shift labels as transformers does."""
    labels = F.pad(y, (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(m.head(x).float().view(-1, WORDS), labels.view(-1), reduction="sum") / 3


def _words_second(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m.head(x).transpose(1, 2), y)


def _tied(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy((x[:, 1:] @ m.words.weight.T).reshape(-1, WORDS), y[:, 1:].flatten())


def _two_steps(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(m.head(x).flatten(0, 1), dim=-1), y.flatten(), ignore_index=3)


def _module(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.CrossEntropyLoss(ignore_index=2)(m.head(x).view(-1, WORDS), y.view(-1))


def _one_row(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m.head(x[0, 0]), y[0, 0])


FUSED_LOSSES: dict[str, Loss] = {
    f.__name__.strip("_"): f
    for f in (_flat, _wide, _shifted, _padded, _words_second, _tied, _two_steps, _module, _one_row)
}
STORED: dict[str, tuple[Callable[..., Any], str]] = {
    "returned": (lambda m, x, y: (z := m.head(x), F.cross_entropy(z.flatten(0, 1), y.flatten()))[::-1], "the compiled function returns them"),
    "read": (lambda m, x, y: F.cross_entropy((z := m.head(x)).flatten(0, 1), y.flatten()) + z.square().mean(), "square reads them, too"),
    "capped": (lambda m, x, y: F.cross_entropy((m.head(x) / 30).tanh().flatten(0, 1), y.flatten()), "they go through tanh"),
    "smoothed": (lambda m, x, y: F.cross_entropy(m.head(x).flatten(0, 1), y.flatten(), label_smoothing=0.1), "it smooths labels"),
    "weighted": (lambda m, x, y: F.cross_entropy(m.head(x).flatten(0, 1), y.flatten(), m.head.weight[:, 0].abs().detach()), "its classes have weights"),
    "each": (lambda m, x, y: F.cross_entropy(m.head(x).flatten(0, 1), y.flatten(), reduction="none").sum(), "its reduction is 'none'"),
    "probabilities": (lambda m, x, y: F.cross_entropy(m.head(x).flatten(0, 1), F.one_hot(y.flatten(), WORDS).float()), "not indices of int64"),
    "some words": (lambda m, x, y: F.cross_entropy(m.head(x)[..., 1:].flatten(0, 1), (y.flatten() - 1).clamp(0)), "they go through getitem"),
    "few": (lambda m, x, y: F.cross_entropy((x @ m.head.weight[:8].T).flatten(0, 1), y.flatten() % 8), "8 logits are not larger than the 24 values"),
    "no layer": (lambda m, x, y: F.cross_entropy(x.flatten(0, 1), y.flatten() % SIZE), "they go through flatten|they go through layer_norm"),
    "detached": (lambda m, x, y: F.cross_entropy(m.head(x).detach().flatten(0, 1), y.flatten()) + m.head(x).mean(), "they go through detach|reads them, too"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()
    forget_graphs()


def batch(device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    tokens, labels = (torch.randint(0, WORDS, (4, 9), generator=generator) for _ in range(2))
    labels[0, 3], labels[2, 8] = 7, 2
    labels[1, 1] = 3
    return tokens.to(device), labels.to(device)


def step(run: Any, net: torch.nn.Module, data: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], list[int]]:
    """Return the loss and the gradients of a step by name, and the elements of each tensor that is kept for backward."""
    sizes: list[int] = []
    net.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.numel()), t)[1], lambda t: t):
        outputs = run(*data)
    loss = outputs[0] if isinstance(outputs, tuple) else outputs
    loss.backward()
    return {"loss": loss.detach()} | {
        n: p.grad for n, p in net.named_parameters() if p.grad is not None
    }, sizes


def compared(net: torch.nn.Module, data: tuple[Tensor, Tensor], low: torch.dtype | None = None) -> list[int]:
    """Compare a compiled step with float64 autograd and with eager; return the elements of each tensor that is kept."""
    exact, _ = step(twin := copy.deepcopy(net).double(), twin, data)
    with torch.autocast(data[0].device.type, low or torch.bfloat16, enabled=low is not None):
        eager, _ = step(twin := copy.deepcopy(net), twin, data)
        mine, sizes = step(torch.compile(net, backend=xpuruntime_backend, fullgraph=True), net, data)
    assert mine.keys() == exact.keys()
    for name, true in exact.items():
        assert mine[name].dtype is eager[name].dtype
        bound = max(2 * rms(eager[name] - true), 2e-7 * rms(true), 1e-9)
        assert rms(mine[name] - true) <= bound, f"{name}: {rms(mine[name] - true)} is over {bound}"
    return sizes


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FUSED_LOSSES)
def test_a_loss_stores_no_logits(name: str, device: str) -> None:
    torch.manual_seed(0)
    net = Head(FUSED_LOSSES[name], bias=name in ("flat", "shifted")).to(device)
    sizes = compared(net, batch(device))
    outcomes = [o for g in compiled_graphs() for o in g.losses.values()]
    assert outcomes == [FUSED]
    assert sizes
    assert max(sizes) <= WORDS * SIZE  # a weight or its gradient; the logits would be ROWS * WORDS
    shown = str(compiled_graphs()[0])
    assert FUSED in shown
    assert "are kept for backward" in shown


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", STORED)
def test_a_loss_that_stores_logits_has_a_reason(name: str, device: str) -> None:
    import re

    loss, reason = STORED[name]
    torch.manual_seed(0)
    compared(Head(loss).to(device), batch(device))
    (outcome,) = [o for g in compiled_graphs() for o in g.losses.values()]
    assert outcome.startswith("its logits are stored: ")
    assert re.search(reason, outcome), outcome


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["flat", "wide", "padded"])
def test_autocast_computes_the_layer_in_16_bits(name: str, device: str) -> None:
    torch.manual_seed(0)
    compared(Head(FUSED_LOSSES[name], bias=True).to(device), batch(device), torch.bfloat16)
    assert [o for g in compiled_graphs() for o in g.losses.values()] == [FUSED]


def test_the_layer_keeps_the_precision_of_its_block(device: str) -> None:
    """The layer is in an autocast block that ends before the loss."""

    def loss(m: Any, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            logits = m.head(x)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    torch.manual_seed(0)
    net = Head(loss).to(device)
    data = batch(device)
    exact, _ = step(wide := copy.deepcopy(net).double(), wide, data)
    eager, _ = step(twin := copy.deepcopy(net), twin, data)
    mine, _ = step(torch.compile(net, backend=xpuruntime_backend, fullgraph=True), net, data)
    assert [o for g in compiled_graphs() for o in g.losses.values()] == [FUSED]
    for n, true in exact.items():
        assert rms(mine[n] - true) <= 2 * rms(eager[n] - true) + 1e-9


def test_chunks_of_rows(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(cross_entropy, "_LEAST_ROWS", 8)
    torch.manual_seed(0)
    compared(Head(_wide, bias=True).to(device), batch(device))
    assert cross_entropy._chunk_rows(ROWS, WORDS, 4) == 8


def test_a_loss_without_gradients(device: str) -> None:
    net, data = Head(_flat).to(device), batch(device)
    with torch.no_grad():
        mine = torch.compile(net, backend=xpuruntime_backend)(*data)
        assert torch.allclose(mine, net(*data), atol=1e-6)
    (graph,) = compiled_graphs()
    assert (graph.phase, list(graph.losses.values())) == ("inference", [FUSED])


@pytest.mark.parametrize("word", [WORDS, -1])
def test_a_target_that_is_no_word(word: int) -> None:
    net, (tokens, labels) = Head(_flat), batch("cpu")
    labels[2, 3] = word
    with pytest.raises(InputError, match=f"has a target that is no word; got {word} of {WORDS} words"):
        torch.compile(net, backend=xpuruntime_backend)(tokens, labels)


def test_methods_in_place_stay() -> None:
    """Nothing reads the result of ``add_``, but the module keeps it."""

    class Counted(Head):
        def __init__(self) -> None:
            super().__init__(_flat)
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
            self.steps.add_(1)
            return super().forward(tokens, labels)

    net = Counted()
    torch.compile(net, backend=xpuruntime_backend)(*batch("cpu")).backward()
    assert [o for g in compiled_graphs() for o in g.losses.values()] == [FUSED]
    assert net.steps == 1


def _operand_written(h: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    logits = h @ weight.t()
    h.mul_(0.1)
    return F.cross_entropy(logits, y) + h.sum()


def _view_written(h: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    tail = h.view(-1)[3:]
    logits = F.linear(h, weight)
    tail[0] = 5
    return F.cross_entropy(logits, y) + h.sum()


def _weight_written(h: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    weight = weight.clone()
    logits = F.linear(h, weight)
    weight += 1
    return F.cross_entropy(logits, y) + h.sum()


def _written_by_a_special_method(h: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    logits = F.linear(h, weight)
    h = h.__imul__(2.0)
    return F.cross_entropy(logits, y) + h.sum()


def _written_by_a_flag(h: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    logits = F.linear(h, weight)
    F.relu(h, 1)  # type: ignore[arg-type]
    return F.cross_entropy(logits, y) + h.sum()


@pytest.mark.parametrize(
    "loss",
    [_operand_written, _view_written, _weight_written, _written_by_a_special_method, _written_by_a_flag],
)
def test_a_loss_whose_operands_are_written_after_its_layer(loss: Any) -> None:
    torch.compiler.reset()
    forget_graphs()
    torch.manual_seed(0)
    h, weight, y = torch.randn(5, 4), torch.randn(20, 4), torch.randint(0, 20, (5,))
    with torch.no_grad():
        plain = loss(h.clone(), weight, y)
        mine = torch.compile(loss, backend=xpuruntime_backend)(h.clone(), weight, y)
    assert torch.allclose(mine, plain, rtol=1e-5)
    outcomes = [text for g in compiled_graphs() for text in g.losses.values()]
    assert any("changes what they are computed from" in text for text in outcomes)


def test_a_loss_of_logits_without_gradients_gives_its_layer_none() -> None:
    torch.compiler.reset()
    forget_graphs()
    teacher, student = torch.nn.Linear(4, 20), torch.nn.Linear(4, 20)

    def both(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = teacher(x)
        return F.cross_entropy(fixed, y) + F.cross_entropy(student(x), y)

    torch.compile(both, backend=xpuruntime_backend)(torch.randn(5, 4), torch.arange(5)).backward()
    assert teacher.weight.grad is None
    assert student.weight.grad is not None
    assert any("no gradient" in text for g in compiled_graphs() for text in g.losses.values())
