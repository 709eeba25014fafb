"""Modules that no session computes: each error names a remedy that works, ``torch.compile`` among them."""

from __future__ import annotations

import pytest

import xpuruntime as xrt
from xpuruntime.errors import EngineUnavailable, ModelError

torch = pytest.importorskip("torch")
nn = torch.nn


@torch.library.custom_op("xpu_advice::sinc", mutates_args=())
def sinc(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) / x


@sinc.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("xpu_advice::shapeless", mutates_args=())
def shapeless(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("xpu_advice::add_to", mutates_args=("x",))
def add_to(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


class Stateless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sinc(x) * 2


class Shapeless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shapeless(x)


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(3, 3))


class Sums(Keeping):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum(0)
        return sinc(x) + self.total


class InPlace(Keeping):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        add_to(y, x)
        self.total.copy_(y)
        return y + self.total[0]


class Inverse(Keeping):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.copy_(torch.linalg.pinv(self.total + torch.eye(3)))
        return x @ self.total


def x() -> torch.Tensor:
    return torch.rand(3, 3) + 0.1


def refusal(kind, engine, folder) -> str:
    with pytest.raises(EngineUnavailable) as caught:
        xrt.InferenceSession(kind().eval(), example_inputs=x(), device="cpu", engine=engine, cache_dir=folder)
    return str(caught.value)


@pytest.mark.parametrize("engine", ["native", "auto", None])
def test_an_operator_of_an_extension(engine, tmp_path):
    text = refusal(Stateless, engine, tmp_path)
    assert "sinc" in text
    assert "Use torch.compile(module, backend='xpuruntime')" in text
    assert "or write it with PyTorch's own ops" in text
    assert "Leave engine out" not in text
    assert "'interpreter' runs every op" not in text


@pytest.mark.sampled(5)
@pytest.mark.parametrize("engine", ["native", "onnxruntime", "auto", None])
@pytest.mark.parametrize("kind", [Sums, InPlace, Inverse])
def test_a_module_that_keeps_state_and_cannot_be_divided(kind, engine, tmp_path):
    if engine == "onnxruntime":
        pytest.importorskip(engine)
    text = refusal(kind, engine, tmp_path)
    assert "Use torch.compile(module, backend='xpuruntime')" in text
    assert "Leave engine out" not in text
    assert "Use engine='native'" not in text
    if kind is Inverse and engine == "native":
        assert "Or pass what the module keeps (total) as inputs, and return it" in text


def test_the_state_as_an_input_leaves_the_op_to_pytorch(tmp_path):
    class Passed(nn.Module):
        def forward(self, x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            total = torch.linalg.pinv(total + torch.eye(3))
            return x @ total, total

    given = x(), torch.ones(3, 3)
    with xrt.InferenceSession(Passed(), example_inputs=given, device="cpu", cache_dir=tmp_path) as session:
        for mine, theirs in zip(session.run(list(given)).values(), Passed()(*given), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_an_operator_without_shapes(tmp_path):
    with pytest.raises(ModelError, match=r"no implementation for shapes.*torch\.library\.register_fake"):
        xrt.InferenceSession(Shapeless(), example_inputs=x(), device="cpu", cache_dir=tmp_path)


@pytest.mark.parametrize("kind", [Stateless, Sums, Inverse])
def test_the_remedy_works(kind):
    import xpuruntime.pytorch  # noqa: F401

    torch._dynamo.reset()
    with torch.no_grad():
        compiled, plain = torch.compile(kind().eval(), backend="xpuruntime"), kind().eval()
        for _ in range(2):
            given = x()
            torch.testing.assert_close(compiled(given), plain(given))
