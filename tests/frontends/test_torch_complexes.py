"""Complex numbers that are made of real ones, as rotary embeddings make them, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from support.torch_oracle import OfFunction, feeds_of, opaque, same  # noqa: E402

import xpuruntime as xrt  # noqa: E402
from xpuruntime.frontends.torch import import_torch  # noqa: E402
from xpuruntime.ir import interp  # noqa: E402

nan, inf = float("nan"), float("inf")


def draw(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def rotated(x: Any, angles: Any) -> Any:
    """As DeepSeek's and Llama 4's own code rotates."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(pairs * turns[:, None]).flatten(-2).type_as(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotary_embeddings_of_complex_numbers(dtype: Any) -> None:
    graph = same(lambda x, a: rotated(x.to(dtype), a), draw(2, 5, 3, 8), draw(5, 4, seed=1))
    assert not any(v.spec and v.spec.dtype.is_complex for node in graph for v in node.outputs)


def test_an_open_size() -> None:
    batch = torch.export.Dim("n")
    shapes = {"x": {0: batch}, "others": ({},)}
    same(
        rotated,
        draw(2, 5, 3, 8),
        draw(5, 4, seed=1),
        dynamic_shapes=shapes,
        others=[(draw(3, 5, 3, 8), draw(5, 4))],
    )


def written(z: Any, w: Any) -> Any:
    """As Fourier neural operators fill the spectrum of their result."""
    out = torch.zeros(4, 5, dtype=z.dtype)
    out[:, :3] = z * w
    out[1, -2:] = w[0, :2]
    out[2] = w[1].real.sum()
    out[torch.tensor([0, 3]), torch.tensor([4, 4])] = z[0, :2]
    out[3, 3:4] = w.real[0, :1]
    return out


FORMS: dict[str, Any] = {
    "sums": lambda z, w: torch.view_as_real(z + w - 2.0 * z),
    "a real operand": lambda z, w: torch.view_as_real((z * w.real + w.imag - z / w.abs()) * 0.5),
    "conjugates": lambda z, w: torch.view_as_real(z.conj() * w).sum(-1),
    "a real number beside a pair": lambda z, w: torch.view_as_real(1.5 + z - 0.25),
    "broadcasts": lambda z, w: torch.view_as_real(z[:1] + w[..., :1] * z[0]),
    "a real tensor that is wider": lambda z, w: torch.view_as_real(z[0] + w.real),
    "moved": lambda z, w: torch.view_as_real(torch.cat([z.transpose(0, 1), w.permute(1, 0)])[1:, None].flip(0).squeeze(1)),
    "parts": lambda z, w: tuple(torch.view_as_real(p) for p in z.split([1, 2], dim=1)),
    "unbound": lambda z, w: tuple(p.real for p in torch.stack([z, w]).unbind(0)),
    "sums over dims": lambda z, w: torch.view_as_real(z.sum(0) * w.mean(dim=1, keepdim=True)),
    "size and angle": lambda z, w: (z.abs(), (z * w).angle(), torch.exp(z * 0.1).real),
    "chosen": lambda z, w: torch.view_as_real(torch.where(z.real > 0, z, w)),
    "numbers": lambda z, w: torch.view_as_real(torch.exp(1j * w.real) * z * (0.5 - 2j) + (1 + 1j)),
    "quotients": lambda z, w: (torch.view_as_real(z / w), torch.view_as_real(z.real / w), torch.view_as_real(1 / (z + (2 - 1j)))),
    "a quotient by a number": lambda z, w: torch.view_as_real(z / (0.5 - 2j)),
    "wide quotients": lambda z, w: torch.view_as_real(z[:1, :1] / w),
    "products": lambda z, w: torch.view_as_real((z @ w.mT) @ w.real.to(z.dtype) - z.imag.to(z.dtype) @ (w.mT @ z)),
    "batches of products": lambda z, w: torch.view_as_real(torch.einsum("bi,io->bo", z, w.mT) + torch.einsum("bix,iox->box", z[None], w[:, None].repeat(1, 4, 1))[0, :, :1]),
    "filled": lambda z, w: torch.view_as_real(torch.full((4, 3), 1 - 2j) * z + torch.zeros_like(w) + torch.ones_like(z)),
    "squares and sums": lambda z, w: torch.view_as_real(z**2 + w.square() + z.cumsum(1)),
    "equal": lambda z, w: (z == z.conj(), z != z + 0 * w),
    "written": lambda z, w: torch.view_as_real(written(z, w)),
    "picked": lambda z, w: torch.view_as_real(z[:, torch.tensor([2, 0])]),
}  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_pairs(form: str) -> None:
    def function(a: Any, b: Any, c: Any, d: Any) -> Any:
        return FORMS[form](torch.complex(a, b), torch.complex(c, d))

    same(function, *(draw(4, 3, seed=i) for i in range(4)))


def test_sizes_neither_overflow_nor_lose_infinity() -> None:
    def function(x: Any, y: Any) -> Any:
        return torch.complex(x, y).abs()

    values = [0.0, -0.0, 3e38, -3e38, 1e-38, 1e-45, 1.0, inf, -inf, nan]
    x, y = (t.flatten() for t in torch.meshgrid(torch.tensor(values), torch.tensor(values), indexing="ij"))
    graph, weights = import_torch(OfFunction(function).eval(), (x, y))
    (got,) = interp.run(graph, feeds_of(graph, (x, y)), weights=weights).values()
    np.testing.assert_allclose(got, torch.complex(x, y).abs().numpy(), rtol=3e-7, atol=1e-44)


def test_nothing_and_one_element() -> None:
    same(lambda z, a: torch.view_as_real(torch.polar(z, a).flatten(1)), draw(0, 5, 3), draw(0, 5, 3))
    same(rotated, draw(1, 1, 1, 2), draw(1, 1))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda z, w: torch.view_as_real(torch.cat([z, w.real])), "it mixes real and complex tensors"),
        (lambda z, w: torch.view_as_real(torch.asin(z)), "the op is not supported for complex numbers"),
        (lambda z, w: z.cumprod(0).real, "the op is not supported for complex numbers"),
    ],
)
def test_what_has_no_form_is_told_and_computed_by_pytorch(function: Any, reason: str) -> None:
    """The pair becomes one complex tensor, so that the op gets both of its parts."""

    def whole(a: Any, b: Any) -> Any:
        return function(torch.complex(a, b), torch.complex(b, a))

    given = draw(4, 3), draw(4, 3, seed=1)
    graph, weights = import_torch(OfFunction(whole).eval(), given)
    assert any(reason in text for text in opaque(graph)), opaque(graph)
    executor = xrt.DAGExecutor(xrt.partition(graph, engine="interpreter", others=("torch",)))
    executor.load_weights(weights)
    (got,) = executor.execute(feeds_of(graph, given)).values()
    torch.testing.assert_close(torch.from_numpy(np.asarray(got)), whole(*given))


class Turned(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Angles worked out once, as the first Llama's code has them: an attribute, or a buffer that no checkpoint holds."""

    def __init__(self, length: int, buffer: bool) -> None:
        super().__init__()
        turns = torch.polar(torch.ones(length, 4), draw(length, 4, seed=5))
        if buffer:
            self.register_buffer("turns", turns, persistent=False)
        else:
            self.turns = turns

    def forward(self, x: Any) -> Any:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns[: x.shape[1]]).flatten(-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("length", [6, 3000])
def test_complex_tensors_that_a_module_holds(length: int, buffer: bool) -> None:
    graph = same(Turned(length, buffer).eval(), draw(2, 5, 8), others=[(draw(2, 5, 8, seed=1),)])
    held = [value.spec for value in (*graph.weights, *(v for node in graph for v in node.outputs))]
    assert not any(spec and spec.dtype.is_complex for spec in held)


class FourierLayer(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A layer of a Fourier neural operator (Li et al. 2021), whose weights are complex."""

    def __init__(self) -> None:
        super().__init__()
        self.low = torch.nn.Parameter(draw(4, 3, 4, 3, dtype=torch.complex64))
        self.high = torch.nn.Parameter(draw(4, 3, 4, 3, seed=1, dtype=torch.complex64))
        self.register_buffer("scale", draw(3, 1, 1, seed=2, dtype=torch.complex64))
        self.across = torch.nn.Conv2d(4, 3, 1)

    def forward(self, x: Any) -> Any:
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros(
            x.shape[0], 3, x.shape[-2], x.shape[-1] // 2 + 1, dtype=torch.cfloat, device=x.device
        )
        out[:, :, :4, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :4, :3], self.low)
        out[:, :, -4:, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -4:, :3], self.high)
        return torch.nn.functional.gelu(torch.fft.irfft2(out * self.scale, s=x.shape[-2:]) + self.across(x))


def test_complex_parameters_are_two_weights() -> None:
    layer, x = FourierLayer().eval(), draw(2, 4, 12, 11)
    graph = same(layer, x)
    assert {"low.real", "low.imag", "scale.real"} <= {w.name for w in graph.weights}
    with torch.no_grad():
        wanted = layer(x)
    session = xrt.InferenceSession(layer, engine="native", device="cpu", example_inputs=(x,))
    (got,) = session.run([x.numpy()]).values()
    np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_a_quotient_neither_overflows_nor_hides_a_zero() -> None:
    def function(a: Any, b: Any, c: Any, d: Any) -> Any:
        return torch.view_as_real(torch.complex(a, b) / torch.complex(c, d))

    values = torch.tensor([1.0, -2.0, 1e30, -1e30, 0.0, 1e-30])
    parts = [t.flatten() for t in torch.meshgrid(values, values, values, values, indexing="ij")]
    graph, weights = import_torch(OfFunction(function).eval(), tuple(parts))
    (got,) = interp.run(graph, feeds_of(graph, tuple(parts)), weights=weights).values()
    wide = torch.complex(parts[0].double(), parts[1].double()) / torch.complex(
        parts[2].double(), parts[3].double()
    )
    wanted = torch.view_as_real(wide).float().numpy()
    some = np.isfinite(wanted).all(-1) & (np.abs(wanted) < 1e36).all(-1)
    assert np.isfinite(got[some]).all()
    size = np.abs(wanted[some]).max(-1, keepdims=True)
    assert (np.abs(got[some] - wanted[some]) <= 1e-5 * size + 1e-44).all()
    by_zero = (parts[2] == 0) & (parts[3] == 0)
    assert not np.isfinite(got[by_zero.numpy()]).any()


def test_a_pair_that_leaves_is_one_complex_tensor() -> None:
    graph, _ = import_torch(OfFunction(torch.polar).eval(), (draw(3), draw(3, seed=1)))
    assert opaque(graph) == ["complex: tensor 'polar' is complex64[3] and is an output"]
    (node,) = (n for n in graph if n.op == "opaque")
    assert node.outputs[0].spec is not None
    assert node.outputs[0].spec.dtype.is_complex


@pytest.mark.parametrize("order", [2, 1, 3, 0, inf, -inf])
@pytest.mark.parametrize("dim", [None, 1, (0, 1)])
def test_norms_of_complex_tensors(order: float, dim: Any) -> None:
    def norm(x: Any, y: Any) -> Any:
        return torch.linalg.vector_norm(torch.complex(x, y), order, dim, keepdim=dim is not None)

    x, y = draw(3, 5), draw(3, 5, seed=1)
    large = torch.full((3, 5), 2e38)
    graph = same(norm, x, y, others=[(x * 0, y * 0)])
    odd = x.clone()
    odd[0, 0], odd[1, 2] = nan, inf
    if order == 2:
        (got,) = interp.run(graph, feeds_of(graph, (odd, y))).values()
        np.testing.assert_allclose(got, norm(odd, y), rtol=1e-6)
    if order in (inf, -inf):
        same(norm, large, large / 4)


def test_logarithms_signs_and_tests_of_complex_tensors() -> None:
    x, y = draw(3, 5), draw(3, 5, seed=1)
    x[0, 0] = y[0, 0] = 0
    odd, other = x.clone(), y.clone()
    odd[0, 1], odd[1, 1], other[2, 2], other[2, 3] = nan, inf, nan, -inf
    for function in (torch.isnan, torch.isinf, torch.isfinite):
        same(lambda x, y, f=function: f(torch.complex(x, y)), x, y, others=[(odd, other)])
    same(lambda x, y: torch.view_as_real(torch.complex(x, y).sgn()), x, y)
    same(lambda x, y: torch.view_as_real(torch.complex(x + 3, y).log()), x, y)


UNARY = "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh sigmoid reciprocal sgn"
POWERS: dict[str, Any] = {
    **{f"to the {p}": lambda z, w, p=p: z**p for p in (0, 1, 2, 3, 4, -1, -2, 0.5, -0.5, 1.5, 1 - 2j)},
    "to a tensor": lambda z, w: z**w,
    "to a real tensor": lambda z, w: z[:1] ** w.real,
    "of a real tensor": lambda z, w: z.real.abs() ** w[0],
    "of a number": lambda z, w: 2.5**z,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_complex_numbers(dtype: Any) -> None:
    def function(a: Any, b: Any, c: Any, d: Any) -> Any:
        z, w = torch.complex(a, b), torch.complex(c, d)
        results = [getattr(torch, name)(z) for name in UNARY.split()] + [f(z, w) for f in POWERS.values()]
        return (*(torch.view_as_real(y) for y in results), z.var(1), z.std())

    given = [draw(4, 3, seed=i, dtype=dtype) for i in range(4)]
    same(function, *given, others=[[t * 3 for t in given], [t * 0.01 for t in given]])


def test_roots_and_logarithms_at_the_branch_cut_and_of_what_is_not_finite() -> None:
    values = torch.tensor([0.0, -0.0, 4.0, -4.0, 1e-30, 1e30, inf, -inf])
    x, y = (t.flatten() for t in torch.meshgrid(values, values, indexing="ij"))
    for function in (torch.sqrt, torch.log):

        def of_pair(x: Any, y: Any, f: Any = function) -> Any:
            return torch.view_as_real(f(torch.complex(x, y)))

        graph, _ = import_torch(OfFunction(of_pair).eval(), (x, y))
        (got,) = interp.run(graph, feeds_of(graph, (x, y))).values()
        np.testing.assert_allclose(got, of_pair(x, y), rtol=3e-6)
        assert (np.signbit(got) == np.signbit(of_pair(x, y).numpy()))[..., 1].all()


def test_powers_of_zero_and_exponentials_of_infinity() -> None:
    zero = torch.zeros(2)
    for p in (2.5, 4, 0.3 + 0.2j):
        same(lambda x, y, p=p: torch.view_as_real(torch.complex(x, y) ** p), zero, zero)
    exp = OfFunction(lambda x, y: torch.view_as_real(torch.exp(torch.complex(x, y)))).eval()
    graph, _ = import_torch(exp, (zero, zero))
    (got,) = interp.run(graph, feeds_of(graph, (torch.tensor([inf, -inf]), zero))).values()
    np.testing.assert_array_equal(got, [[inf, 0], [0, 0]])


@pytest.mark.parametrize("engine", ["native", "onnx"])
def test_refusals_of_complex_tensors_name_them(engine: str) -> None:
    def opened(function: Any, x: Any) -> None:
        module = OfFunction(function).eval()
        if engine == "onnx":
            pytest.importorskip("onnx")
            xrt.export_onnx(module, (x,))
        else:
            xrt.InferenceSession(module, example_inputs=(x,), engine="native")

    z = torch.complex(draw(3, 4), draw(3, 4, seed=1))
    takes = "ONNX's operators take" if engine == "onnx" else "native programs have"
    with pytest.raises(xrt.XpuError, match=rf"{takes} real tensors only.*Pass torch.view_as_real") as error:
        opened(lambda x: x.abs(), z)
    assert "complex64[3, 4]" in str(error.value)
    assert "'x0'" in str(error.value) or "'x'" in str(error.value) or "args_0" in str(error.value)
    with pytest.raises(
        xrt.XpuError, match=rf"complex64\[3, 4\] and is an output, and {takes}.*torch.view_as_real"
    ):
        opened(torch.fft.fft, z.real.contiguous())
    with pytest.raises(xrt.XpuError, match="is an operand of asin, which is supported for real tensors only"):
        opened(lambda x: torch.fft.fft(x).asin().abs(), z.real.contiguous())
