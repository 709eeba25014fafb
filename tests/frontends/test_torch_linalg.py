"""Systems of equations, inverses, Cholesky factors and determinants of PyTorch modules, natively and on ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import OfFunction, opaque  # noqa: E402

import xpuruntime as xrt  # noqa: E402

L = torch.linalg


def definite(*batch: int, n: int = 5, dtype: Any = torch.float32) -> Any:
    x = torch.randn(*batch, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    return (x @ x.mT + torch.eye(n)).to(dtype)


FUNCTIONS: dict[str, Any] = {
    "inv": L.inv,
    "inverse": torch.inverse,
    "inv_ex": lambda a: tuple(L.inv_ex(a)),
    "negative power": lambda a: L.matrix_power(a, -2),
    "cholesky": L.cholesky,
    "upper cholesky": lambda a: L.cholesky(a, upper=True),
    "old cholesky": torch.cholesky,
    "cholesky_ex": lambda a: tuple(L.cholesky_ex(a)),
    "cholesky_inverse": lambda a: torch.cholesky_inverse(L.cholesky(a)),
    "upper cholesky_inverse": lambda a: torch.cholesky_inverse(L.cholesky(a, upper=True), upper=True),
    "slogdet": lambda a: tuple(L.slogdet(a)),
    "logdet": torch.logdet,
    "solve": lambda a: L.solve(a, a[..., :2] + 1),
    "solve on the right": lambda a: L.solve(a, a[..., :2, :] + 1, left=False),
    "solve a vector": lambda a: L.solve(a, a[..., 0]),
    "solve_ex": lambda a: tuple(L.solve_ex(a, a[..., :2])),
    "cholesky_solve": lambda a: torch.cholesky_solve(a[..., :3], L.cholesky(a)),
    "upper cholesky_solve": lambda a: torch.cholesky_solve(a[..., :3], L.cholesky(a, upper=True), True),
    "triangular_solve": lambda a: torch.triangular_solve(a[..., :3], a)[0],
    "triangular_solve transposed": lambda a: torch.triangular_solve(
        a[..., :3], a, upper=False, transpose=True
    )[0],
    "det of derivatives": lambda a: torch.ops.aten._linalg_det(a)[0],
    "matrix_exp": lambda a: torch.matrix_exp(a / 20),
    "large matrix_exp": lambda a: torch.matrix_exp(-a * 3),
    "a Gaussian": lambda a: torch.distributions.MultivariateNormal(a[..., 0], a).log_prob(a[..., 1]),
}


@pytest.mark.filterwarnings("ignore:torch.*deprecated:UserWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions(name: str, dtype: str) -> None:
    function, tolerance = FUNCTIONS[name], 2e-4 if dtype == "float32" else 1e-9
    for shape in ((), (3,), (2, 1)):
        a = definite(*shape, dtype=getattr(torch, dtype))
        want = function(a)
        want = [want] if torch.is_tensor(want) else want
        for engine in ("native", "onnxruntime"):
            with xrt.InferenceSession(
                OfFunction(function).eval(), example_inputs=(a,), engine=engine
            ) as session:
                assert [r.engine for r in session.plan.regions] == [engine]
                got = session.run([a]).values()
            for mine, theirs in zip(got, want, strict=True):
                assert mine.dtype == theirs.dtype
                torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def test_matrices_of_many_rows_are_left_to_pytorch() -> None:
    graph = xrt.extract_ir(OfFunction(L.inv).eval(), definite(n=129))
    assert opaque(graph) == ["linalg_inv: a matrix of 129 rows is left to PyTorch; at most 128 are supported"]
    assert not opaque(xrt.extract_ir(OfFunction(L.inv).eval(), definite(n=128)))


@pytest.mark.parametrize("engine", ["native", "onnxruntime", None])
@pytest.mark.parametrize("function", [L.inv, torch.inverse, L.cholesky, lambda a: L.solve(a, a)])
def test_a_matrix_that_pytorch_refuses_fails_the_run(function: Any, engine: str | None) -> None:
    good = definite(3, n=2)
    wrong = good.clone()
    wrong[1] = torch.tensor([[1.0, 2.0], [2.0, 4.0]]) if function is not L.cholesky else -wrong[1]
    with pytest.raises(RuntimeError):
        function(wrong)
    options = {} if engine is None else {"engine": engine}
    with xrt.InferenceSession(OfFunction(function).eval(), example_inputs=(good,), **options) as session:
        for _ in range(2):
            with pytest.raises(xrt.XpuError, match=r"outside a dim of 1|out of data bounds"):
                session.run([wrong])
            torch.testing.assert_close(next(iter(session.run([good]).values())), function(good))


def test_forms_without_a_check_give_what_is_not_finite() -> None:
    singular = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    unchecked = {"version": 1, "execution": {"self_check": "off"}}
    for function in (lambda a: L.inv_ex(a)[0], lambda a: L.cholesky_ex(-a)[0]):
        with xrt.InferenceSession(
            OfFunction(function).eval(), example_inputs=(torch.eye(2),), engine="native", policy=unchecked
        ) as session:
            (got,) = session.run([singular]).values()
        assert not np.isfinite(got.numpy()).all()


def test_exponentials_of_odd_matrices() -> None:
    nan = float("nan")
    zero, turn = torch.zeros(2, 2), torch.tensor([[0.0, -9.0], [9.0, 0.0]])
    odd = torch.stack([zero, turn, torch.diag(torch.tensor([-300.0, 2.0])), torch.tensor([[nan, 0], [0, 1]])])
    with xrt.InferenceSession(
        OfFunction(torch.matrix_exp).eval(), example_inputs=(odd[:3].repeat(2, 1, 1)[:4],), engine="native"
    ) as session:
        (got,) = session.run([odd]).values()
    torch.testing.assert_close(got[:3], torch.matrix_exp(odd[:3]), rtol=1e-4, atol=1e-5)
    assert torch.isnan(got[3]).any()


def test_least_squares_are_refused_with_what_to_do() -> None:
    with pytest.raises(xrt.ModelError, match=r"least-squares problem.*torch.linalg.solve"):
        xrt.extract_ir(OfFunction(lambda a: L.lstsq(a, a).solution).eval(), torch.randn(3, 2))
