"""Fourier transforms as real arithmetic, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from support.torch_oracle import OfFunction, opaque, same  # noqa: E402

import xpuruntime as xrt  # noqa: E402
from xpuruntime.frontends.torch import import_torch  # noqa: E402
from xpuruntime.ir import interp  # noqa: E402

fft, as_complex = torch.fft, torch.view_as_complex
NORMS = ("backward", "ortho", "forward")
FORWARD = (fft.fft, fft.rfft, fft.ihfft, fft.ifft)
BACK = (fft.ifft, fft.irfft, fft.hfft, fft.fft)


def draw(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class OfOne(OfFunction):
    """A function of one tensor, whose dims can be named."""

    def forward(self, x: Any) -> Any:
        return self.function(x)


def real(z: Any) -> Any:
    return torch.view_as_real(z.resolve_conj()) if z.is_complex() else z


@pytest.mark.sampled(2)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("length", "dim"), [(None, -1), (4, 0), (9, -1)])
def test_along_one_dim(norm: str, length: int | None, dim: int) -> None:
    def forward(x: Any) -> Any:
        return tuple(real(f(x, n=length, dim=dim, norm=norm)) for f in FORWARD)

    def back(x: Any) -> Any:
        return tuple(real(f(as_complex(x), n=length, dim=dim, norm=norm)) for f in BACK)

    graph = same(forward, draw(3, 7))
    assert not any(v.spec and v.spec.dtype.is_complex for node in graph for v in node.outputs)
    same(back, draw(3, 7, 2))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("norm", NORMS)
def test_along_several_dims(norm: str) -> None:
    def forward(x: Any) -> Any:
        many: tuple[Callable[..., Any], ...] = (fft.fft2, fft.fftn, fft.rfft2, fft.rfftn)
        sized = fft.fftn(x, s=(4, 7), dim=(0, -1), norm=norm)
        return (*(real(f(x, norm=norm)) for f in many), real(sized))

    def back(x: Any) -> Any:
        z = as_complex(x)
        return (
            fft.irfft2(z, norm=norm),
            fft.irfftn(z, s=(3, 5, 9), norm=norm),
            real(fft.ifftn(z, norm=norm)),
        )

    same(forward, draw(2, 5, 6))
    same(back, draw(2, 5, 6, 2))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: real(fft.fft(x[:, :1])),
        lambda x: fft.irfft(as_complex(x[:, :2].reshape(-1, 1, 2)), n=1),
        lambda x: real(fft.fft(x.double())),
        lambda x: real(fft.fft((x * 5).to(torch.int32))),
        lambda x: real(fft.fftshift(fft.fft(x))),
        lambda x: fft.fft(fft.fft(x, dim=-1), dim=-2).real,
        lambda x: fft.irfft(fft.rfft(x, n=40) * fft.rfft(x * 2, n=40), n=40),
        lambda x: torch.stft(x, 8, hop_length=2, window=torch.hann_window(8), return_complex=True).abs(),
        lambda x: real(torch.stft(x, 8, hop_length=3, window=torch.ones(8), center=False, onesided=False, return_complex=True)),
        lambda x: torch.istft(torch.stft(x, 8, window=torch.hann_window(8), return_complex=True), 8, window=torch.hann_window(8)),
    ],
)  # fmt: skip
def test_in_models(function: Any) -> None:
    same(function, draw(4, 20))


def test_a_line_with_nan_is_nan_and_no_other() -> None:
    x = draw(3, 5)
    x[1, 2] = float("nan")
    graph, weights = import_torch(OfFunction(lambda x: real(fft.fft(x))).eval(), x)
    got = interp.run(graph, {v.name: x.numpy() for v in graph.inputs}, weights=weights)["output"]
    np.testing.assert_allclose(got, real(fft.fft(x)).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("length", [1, 2, 6, 97, 1024, 4096])
def test_in_float32_as_exact_as_pytorch(length: int) -> None:
    """The kernel computes in double and rounds once."""
    module = OfFunction(lambda x: (fft.fft(x).real, real(fft.rfft(x)))).eval()
    x = draw(2, length)
    session = xrt.InferenceSession(module, engine="native", example_inputs=x)
    got = session.run({"x": x.numpy()})
    for mine, exact, theirs in zip(got.values(), module(x.double()), module(x), strict=True):
        scale = float(exact.abs().max())
        error = float((torch.from_numpy(mine).double() - exact).abs().max()) / scale
        assert error <= max(2e-7, float((theirs.double() - exact).abs().max()) / scale)


def test_an_open_length_is_refused() -> None:
    module = OfOne(lambda x: fft.fft(x).real).eval()
    graph = xrt.extract_ir(module, draw(3, 8), dynamic_shapes={"x": {1: "length"}})
    assert any(
        "a transform over a dim of length elements is not supported" in reason for reason in opaque(graph)
    )


def test_an_open_batch_is_none() -> None:
    shapes = {"x": {0: torch.export.Dim("rows")}}
    same(OfOne(lambda x: fft.fft2(x).real), draw(2, 4, 6), dynamic_shapes=shapes, others=[(draw(5, 4, 6),)])


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
def test_one_sided_transforms_on_other_engines(engine: str) -> None:
    """OpenVINO adds a dim to one-sided transforms of real signals."""
    pytest.importorskip(engine)
    module = OfOne(lambda x: (fft.rfft(x).abs(), fft.rfft(x).imag)).eval()
    for x in (draw(2, 16), draw(3, 2, 15), draw(9)):
        with xrt.InferenceSession(module, engine=engine, device="cpu", example_inputs=x) as session:
            for got, want in zip(session.run([x]).values(), module(x), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


WINDOWS = (
    lambda: torch.bartlett_window(9),
    lambda: torch.blackman_window(9, periodic=False),
    lambda: torch.hann_window(9, dtype=torch.float64),
    lambda: torch.hamming_window(9, True, 0.5, 0.4),
    lambda: torch.kaiser_window(9, False, beta=8.0),
    lambda: torch.fft.fftfreq(9, d=0.5),
    lambda: torch.fft.rfftfreq(17),
)


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_and_frequencies_that_forward_creates(window):
    same(lambda x: x * window(), torch.randn(3, 9))


SPECTRA = (
    lambda x: fft.rfft(x),
    lambda x: fft.fft(x),
    lambda x: fft.fft2(x),
    lambda x: fft.rfftn(x),
    lambda x: fft.ifft2(x),
    lambda x: torch.stft(x.flatten(), 8, 4, window=torch.hann_window(8), center=False, return_complex=True),
)


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("shape", [(4, 6), (5, 8), (3, 7)])
def test_frequencies_that_are_real_have_the_angle_of_pytorch(spectrum, shape):
    """Their imaginary part is exactly 0: a rounding error's sign would decide between pi and -pi."""
    same(lambda x: spectrum(x).angle(), draw(*shape), others=[(-draw(*shape).abs() - 1,)])
