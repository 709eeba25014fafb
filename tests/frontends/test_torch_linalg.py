"""Systems of equations, inverses, Cholesky factors and determinants of PyTorch modules, natively and on ONNX Runtime."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import OfFunction, opaque, same  # noqa: E402

import xpuruntime as xrt  # noqa: E402
from xpuruntime.pytorch.compiled import compiled_graphs  # noqa: E402
from xpuruntime.pytorch.compiled.report import forget_graphs  # noqa: E402

L = torch.linalg
nan = float("nan")
UNCHECKED = {"version": 1, "execution": {"self_check": "off"}}


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
    fault = "a matrix is not positive definite" if function is L.cholesky else "a matrix is singular"
    fault = "out of data bounds" if engine == "onnxruntime" else f"node .*{fault}.*torch.linalg"
    options = {} if engine is None else {"engine": engine}
    with xrt.InferenceSession(OfFunction(function).eval(), example_inputs=(good,), **options) as session:
        for _ in range(2):
            with pytest.raises(xrt.XpuError, match=fault):
                session.run([wrong])
            torch.testing.assert_close(next(iter(session.run([good]).values())), function(good))


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_forms_without_a_check(engine: str) -> None:
    inf, nan = float("inf"), float("nan")
    singular, indefinite = torch.tensor([[1.0, 2.0], [2.0, 4.0]]), torch.tensor([[4.0, 2.0], [2.0, -1.0]])
    good = torch.tensor([[4.0, 2.0], [2.0, 5.0]])
    wanted: list[tuple[Any, Any, Any, int]] = [
        (L.cholesky_ex, indefinite, [[2.0, 0.0], [1.0, nan]], 2),
        (L.cholesky_ex, -good, [[nan, 0.0], [nan, nan]], 1),
    ]
    # Gauss-Jordan elimination divides 0 by the pivot, too: NaN where back substitution gives infinities.
    inverse = [[-inf, inf], [inf, -inf]] if engine == "native" else None
    wanted.append((L.inv_ex, singular, inverse, 2))
    for function, x, values, info in wanted:
        ran = OfFunction(lambda a, function=function: tuple(function(a))).eval()
        with xrt.InferenceSession(ran, example_inputs=(good,), engine=engine, policy=UNCHECKED) as session:
            got, number = session.run([x]).values()
        assert number == info
        if values is None:
            assert not got.isfinite().any()
        else:
            torch.testing.assert_close(got, torch.tensor(values), equal_nan=True)


NAN = [[[nan, 1.0], [2, 3]], [[1, 2], [nan, 3]], [[1, nan], [2, 3]], [[1, 2], [3, nan]]]


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
@pytest.mark.parametrize("rows", [2, 5])
def test_nan_reaches_the_results(engine: str, rows: int) -> None:
    functions = [
        L.inv,
        lambda a: L.solve(a, torch.ones(rows, 1)),
        lambda a: tuple(L.slogdet(a)),
        L.det,
        lambda a: L.det(a.double()),
        torch.logdet,
    ]
    for function in functions:
        ran = OfFunction(function).eval()
        with xrt.InferenceSession(ran, example_inputs=(torch.eye(rows),), engine=engine) as session:
            for corner in NAN:
                for at in (0, rows - 2):
                    a = definite(n=rows)
                    a[at : at + 2, at : at + 2] = torch.tensor(corner)
                    want = function(a)
                    want = [want] if torch.is_tensor(want) else want
                    for mine, theirs in zip(session.run([a]).values(), want, strict=True):
                        torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_nan_below_a_pivot_of_zero() -> None:
    a = torch.tensor([[0.0, 1.0], [nan, 3.0]])
    for function in (L.det, lambda a: L.slogdet(a)[1]):
        with xrt.InferenceSession(
            OfFunction(function).eval(), example_inputs=(torch.eye(2),), engine="native"
        ) as session:
            assert next(iter(session.run([a]).values())).isnan()


@pytest.mark.parametrize(
    "function", [L.inv, L.cholesky, lambda a: tuple(L.slogdet(a)), lambda a: L.solve(a, a)]
)
def test_without_a_named_engine_large_matrices_stay_with_pytorch(function: Any) -> None:
    module = OfFunction(function).eval()
    for rows, engines in ((12, {"native"}), (13, {"torch"}), (60, {"torch"})):
        a = definite(n=rows)
        with xrt.InferenceSession(module, example_inputs=(a,)) as session:
            assert {r.engine for r in session.plan.regions} == engines
            want = function(a)
            for mine, theirs in zip(
                session.run([a]).values(), [want] if torch.is_tensor(want) else want, strict=True
            ):
                torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_determinants_without_a_named_engine() -> None:
    """ONNX Runtime has Det of float32; a loop is not chosen."""
    for dtype, engine in ((torch.float32, "onnxruntime"), (torch.float64, "native")):
        a = definite(n=20, dtype=dtype)
        with xrt.InferenceSession(OfFunction(L.det).eval(), example_inputs=(a,)) as session:
            assert [r.engine for r in session.plan.regions] == [engine]
    refused = next(c for c in session.plan.decisions[0].rejected if c.name == "onnxruntime on cpu")
    assert "ONNX has no det; a loop" in refused.reason
    assert refused.do == "Name engine='onnxruntime' to run the loop."


def test_a_symbolic_number_of_rows() -> None:
    rows = torch.export.Dim("rows", min=2)
    shapes = {"x": {0: rows, 1: rows}}
    options = {"example_inputs": (definite(n=5),), "dynamic_shapes": shapes}
    with xrt.InferenceSession(OfFunction(L.inv).eval(), **options, policy=UNCHECKED) as session:
        assert [r.engine for r in session.plan.regions] == ["torch"]
    with xrt.InferenceSession(
        OfFunction(L.inv).eval(), **options, engine="native", policy=UNCHECKED
    ) as session:
        a = definite(n=7)
        torch.testing.assert_close(next(iter(session.run([a]).values())), L.inv(a), rtol=1e-3, atol=1e-4)
        with pytest.raises(xrt.XpuError, match="solve of a matrix of 129 rows; at most 128 are supported"):
            session.run([definite(n=129)])


def test_compiled_modules_leave_large_matrices_to_pytorch() -> None:
    for rows, left in ((5, False), (60, True)):
        torch.compiler.reset()
        forget_graphs()
        a = definite(n=rows)
        got = torch.compile(lambda a: L.inv_ex(a)[0] + 1, backend="xpuruntime")(a)
        torch.testing.assert_close(got, L.inv(a) + 1, rtol=1e-3, atol=1e-3)
        (graph,) = compiled_graphs()
        assert any("is left to PyTorch" in reason for reason in graph.left.values()) == left


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
@pytest.mark.parametrize(
    "function",
    [
        L.inv,
        L.cholesky,
        lambda a: tuple(L.inv_ex(a)),
        lambda a: tuple(L.slogdet(a)),
        L.det,
        lambda a: L.det(a.double()),
        lambda a: L.solve(a, torch.ones(2, 0, 3)),
    ],
)
def test_matrices_of_no_rows(function: Any, engine: str) -> None:
    a = torch.zeros(2, 0, 0)
    with xrt.InferenceSession(OfFunction(function).eval(), example_inputs=(a,), engine=engine) as session:
        want = function(a)
        for mine, theirs in zip(
            session.run([a]).values(), [want] if torch.is_tensor(want) else want, strict=True
        ):
            assert mine.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_info_of_a_matrix_with_several_right_sides(engine: str) -> None:
    function = lambda a, b: tuple(L.solve_ex(a, b))  # noqa: E731
    for shape, sides in (((3, 3), (5, 3, 2)), ((4, 3, 3), (2, 4, 3, 2)), ((1, 3, 3), (6, 3, 1))):
        a, b = definite(*shape[:-2], n=3), torch.randn(sides)
        with xrt.InferenceSession(
            OfFunction(function).eval(), example_inputs=(a, b), engine=engine
        ) as session:
            for mine, theirs in zip(session.run([a, b]).values(), function(a, b), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_exponentials_of_odd_matrices() -> None:
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


def test_an_addend_times_zero_is_not_read() -> None:
    def function(x: Any, y: Any, z: Any) -> Any:
        return torch.addbmm(z, x, y, beta=0, alpha=2), torch.addmv(z[:, 0], x[0], y[0, :, 0], beta=0)

    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 3, 4, generator=draw), torch.randn(2, 4, 5, generator=draw)
    same(function, x, y, torch.full((3, 5), torch.nan))
