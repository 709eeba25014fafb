"""Padded rows of ``nn.TransformerEncoder``: what PyTorch computes in eval mode without gradients, which its export does not."""

from __future__ import annotations

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import nn, same  # noqa: E402

import xpuruntime as xrt  # noqa: E402
from xpuruntime.frontends.torch.encoder_padding import padding_as_in_eval  # noqa: E402

MASKS = {
    "end": [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]],
    "start": [[1, 1, 0, 0, 0], [0, 0, 0, 0, 0]],
    "middle": [[0, 1, 0, 0, 1], [0, 0, 0, 0, 1]],
    "none": [[0] * 5, [0] * 5],
    "a whole sample": [[1] * 5, [0, 0, 0, 0, 1]],
}


class Encoder(nn.Module):
    """An encoder whose result is averaged over all rows, so that padded ones count."""

    def __init__(self, norm: nn.Module | None = None, **more: object) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=norm, **more)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.encoder(x, src_key_padding_mask=mask)
        return y, y.mean(1)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(x, x[:, :3], src_key_padding_mask=mask, memory_key_padding_mask=mask)


def _masks(name: str = "") -> list[torch.Tensor]:
    return [torch.tensor(rows, dtype=torch.bool) for key, rows in MASKS.items() if name in ("", key)]


def _module(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "transformer":
        return Whole().eval()
    norm = nn.LayerNorm(16) if kind == "norm" else None
    if norm is not None:
        nn.init.normal_(norm.bias)
    return Encoder(norm, **{"enable_nested_tensor": False} if kind == "never packed" else {}).eval()


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("kind", ["plain", "norm", "transformer", "never packed"])
def test_padded_rows_are_those_of_eval_mode(kind: str) -> None:
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
    module = _module(kind)
    masks = (
        _masks()[:4] if kind == "never packed" else _masks()
    )  # PyTorch's layer gives NaN for a whole sample
    same(module, x, masks[3], others=[(x, mask) for mask in masks])
    assert not any("forward" in part.__dict__ for part in module.modules())


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_a_mask_of_floats_pads_where_it_is_not_0() -> None:
    x = torch.randn(2, 5, 16)
    finite = torch.tensor([[0, 0, 0, 0.5, -1], [0, 0, 0, 0, 0]])
    minus = torch.zeros(2, 5).masked_fill(_masks("end")[0], -torch.inf)
    same(_module("plain"), x, minus, others=[(x, finite)])


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_open_shapes_and_the_slow_path() -> None:
    x = torch.randn(3, 4, 16)
    mask = torch.arange(4) >= torch.tensor([[1], [4], [2]])
    shapes = {"x": {0: "b", 1: "t"}, "mask": {0: "b", 1: "t"}}
    longer = torch.randn(2, 7, 16), torch.arange(7) >= torch.tensor([[7], [3]])
    one = torch.randn(1, 1, 16), torch.zeros(1, 1, dtype=torch.bool)
    module = _module("plain")
    same(module, x, mask, dynamic_shapes=shapes, others=[longer, one])
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        same(module, x, mask)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("engine", ["native", "onnxruntime", "openvino"])
def test_engines_agree_with_the_module(engine: str, tmp_path) -> None:
    if engine != "native":
        pytest.importorskip(engine)
    module, x = _module("plain"), torch.randn(2, 5, 16)
    (mask,) = _masks("end")
    policy = xrt.ExecutionPolicy(self_check="always")
    options = {"device": "cpu", "engine": engine, "exec_policy": policy, "cache_dir": tmp_path}
    with xrt.InferenceSession(module, example_inputs=(x, mask), **options) as session, torch.no_grad():
        got = session.run([x, mask])
        for mine, theirs in zip(got.values(), module(x, mask), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


class Summed(nn.TransformerEncoder):
    """A subclass with a ``forward`` of its own, which calls that of ``nn.TransformerEncoder``."""

    def forward(self, src: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return super().forward(src + 1, src_key_padding_mask=padding)


class Aliased(nn.TransformerEncoder):
    forward = nn.TransformerEncoder.forward


class Unlisted(nn.Module):
    """A module whose encoder ``modules()`` does not list."""

    def __init__(self) -> None:
        super().__init__()
        self.encoders = [Encoder().encoder.eval().requires_grad_(False)]

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.encoders[0](x, src_key_padding_mask=mask).mean(1)


class Decorated(nn.Module):
    """A module that replaces the ``forward`` of one encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder().encoder
        self.encoder.forward = lambda x, mask: nn.TransformerEncoder.forward(self.encoder, x, None, mask) * 2

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, mask).mean(1)


def _encoder_of(cls: type) -> nn.Module:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = cls(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            more = (mask,) if cls is Summed else (None, mask)
            return self.encoder(x, *more).mean(1)

    return Holder()


ENCODERS = {
    "super().forward": lambda: _encoder_of(Summed),
    "an alias": lambda: _encoder_of(Aliased),
    "a plain list": Unlisted,
    "of the instance": Decorated,
}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("kind", ENCODERS)
def test_padded_rows_of_encoders_that_are_not_plain_parts(kind: str) -> None:
    torch.manual_seed(0)
    module, x = ENCODERS[kind]().eval(), torch.randn(2, 5, 16)
    attributes = {name: dict(part.__dict__) for name, part in module.named_modules()}
    method = nn.TransformerEncoder.forward
    same(module, x, _masks("none")[0], others=[(x, mask) for mask in _masks()[:4]])
    assert nn.TransformerEncoder.forward is method
    assert Aliased.forward is method
    assert {name: dict(part.__dict__) for name, part in module.named_modules()} == attributes


def test_threads_that_export_at_once() -> None:
    """An export in a second thread begins and ends within that of the first. Gradients are on, so that only exports have zeros.

    ``torch.export`` itself is not called: it fails in one of two threads that are within it at once.
    """
    module, x, end = _module("plain"), torch.randn(2, 5, 16), _masks("end")[0]
    method, ended, zeros = nn.TransformerEncoder.forward, threading.Event(), {}

    def has_zeros() -> bool:
        return not module.encoder(x, src_key_padding_mask=end)[end].any()

    def second() -> None:
        zeros["second, before"] = has_zeros()
        with padding_as_in_eval(torch):
            zeros["second"] = has_zeros()
            with padding_as_in_eval(torch):
                pass
            zeros["second, after an inner one"] = has_zeros()
        zeros["second, after"] = has_zeros()
        ended.set()

    thread = threading.Thread(target=second)
    with padding_as_in_eval(torch):
        zeros["first"] = has_zeros()
        thread.start()
        thread.join(60)
        assert ended.is_set()
        zeros["first, after the second"] = has_zeros()
        assert nn.TransformerEncoder.forward is not method
    assert zeros == {
        "first": True,
        "second, before": False,
        "second": True,
        "second, after an inner one": True,
        "second, after": False,
        "first, after the second": True,
    }
    assert nn.TransformerEncoder.forward is method
    assert not has_zeros()
    assert not any("forward" in part.__dict__ for part in module.modules())


def test_an_export_that_raises_leaves_the_method_of_the_class() -> None:
    class Raising(Encoder):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            y = self.encoder(x, src_key_padding_mask=mask)
            return y if y.sum() > 0 else -y

    module, method, x = Raising().eval(), nn.TransformerEncoder.forward, torch.randn(2, 5, 16)
    with pytest.raises(xrt.errors.ModelError, match="branches"):
        xrt.extract_ir(module, (x, _masks("end")[0]))
    assert nn.TransformerEncoder.forward is method
    assert not any("forward" in part.__dict__ for part in module.modules())
    with torch.enable_grad():
        assert module.encoder(x, src_key_padding_mask=_masks("end")[0])[_masks("end")[0]].any()


def test_a_method_that_is_replaced_during_an_export_stays() -> None:
    method = nn.TransformerEncoder.forward

    def other(self: nn.TransformerEncoder, *args: object, **kwargs: object) -> torch.Tensor:
        return method(self, *args, **kwargs)

    class Replacing(Encoder):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            nn.TransformerEncoder.forward = other
            return super().forward(x, mask)

    try:
        xrt.extract_ir(Replacing().eval(), (torch.randn(2, 5, 16), _masks("end")[0]))
        assert nn.TransformerEncoder.forward is other
    finally:
        nn.TransformerEncoder.forward = method


def test_one_tensor_for_two_arguments_is_two_inputs() -> None:
    """``torch.export`` reads the second only."""
    x, y, z = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(2)).unbind()

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", z.clone())

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a - 2 * b + self.held

    same(Held(), x, x, others=[(x, y)])
    module = Held()
    same(module, module.held, module.held, others=[(x, y)])
