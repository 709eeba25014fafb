"""What NVIDIA's libraries are asked for: sizes, lines and epilogues as options; what they cannot do is a second stage of ours."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulated import call_of, one_node

from xpuruntime.codegen.cuda import cuda_target
from xpuruntime.kernels.cuda import libraries
from xpuruntime.kernels.cuda.libraries import Cublas, CublasLt
from xpuruntime.kernels.kernel import Lowered

TARGET = cuda_target("cuda:sm_90")


@pytest.fixture(autouse=True)
def libraries_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "installed", lambda library: True)


def lowered(kernel: Any, op: str, *shapes: Any, dtype: str = "bfloat16", **attrs: Any) -> Lowered:
    operands = [None if s is None else np.zeros(s, getattr(ml_dtypes, dtype, dtype)) for s in shapes]
    graph, _, known = one_node(op, operands, **attrs)
    call = call_of(graph, known)
    said = kernel.supports(call, TARGET)
    assert said, said.reason
    found: Lowered = kernel.lower(call, TARGET)
    return found


def test_a_linear_layer_is_one_call_with_its_epilogue() -> None:
    made = lowered(
        CublasLt(algorithm=66, choice=1), "fused_linear", (2, 5, 24), (40, 24), (40,), (2, 5, 40), act="relu"
    )
    (stage,) = made.stages
    assert (stage.library, stage.stem, stage.args) == (
        "cublasLt",
        "matmul",
        ("in0", "in1", "in2", "in3", "out0"),
    )
    assert dict(stage.options) == {
        "m": 10, "n": 40, "k": 24, "batch": 1, "a_line": 24, "b_line": 24, "y_line": 40, "a_step": 0, "b_step": 0, "y_step": 400,
        "a_transposed": False, "b_transposed": True, "in": "bfloat16", "out": "bfloat16", "algorithm": 66, "choice": 1, "alpha": 1.0,
        "act": "relu", "bias": True, "residual": True, "r_line": 40, "r_step": 0,
    }  # fmt: skip
    assert made.temps == ()


def test_batches_and_factors() -> None:
    (stage,) = lowered(CublasLt(), "bmm", (3, 5, 24), (3, 24, 40), dtype="float64").stages
    assert {k: stage.options[k] for k in ("batch", "a_step", "b_step", "y_step", "b_line", "b_transposed")} == {
        "batch": 3, "a_step": 120, "b_step": 960, "y_step": 200, "b_line": 40, "b_transposed": False,
    }  # fmt: skip
    (stage,) = lowered(CublasLt(), "addmm", (40,), (5, 24), (24, 40), alpha=0.5).stages
    assert (stage.options["alpha"], stage.options["bias"], stage.args) == (
        0.5,
        True,
        ("in1", "in2", "in0", "out0"),
    )


@pytest.mark.parametrize(("kernel", "attrs"), [
    (CublasLt(), {"act": "gelu"}), (CublasLt(), {"act": "silu"}), (Cublas(), {"act": "relu"}), (Cublas(), {"act": "none"}),
])  # fmt: skip
def test_what_a_library_has_no_epilogue_for_is_a_second_stage_over_wide_sums(kernel: Any, attrs: Any) -> None:
    made = lowered(kernel, "fused_linear", (5, 24), (40, 24), (40,), None, **attrs)
    first, second = made.stages
    assert first.args == ("in0", "in1", "temp0")
    assert (first.options["in"], first.options["out"]) == ("bfloat16", "float32")
    assert "bias" not in first.options
    assert (second.library, second.args) == ("", ("temp0", "in2", "out0"))
    assert made.temps == (5 * 40 * 4,)


def test_plain_products_need_no_second_stage() -> None:
    (stage,) = lowered(Cublas(), "mm", (5, 24), (24, 40), dtype="float32").stages
    assert (stage.library, stage.stem, stage.args) == ("cublas", "gemm", ("in0", "in1", "out0"))
    assert stage.options["out"] == "float32"


def by_options(stage: Any, memory: dict[str, np.ndarray[Any, Any]]) -> None:
    """What cublasLtMatmul makes of a stage's options, in float64: y = act(alpha a b + residual + bias), on flat memory."""
    o, names = dict(stage.options), iter(stage.args)

    def matrix(name: str, start: int, rows: int, columns: int, line: int, step: int, turned: bool) -> Any:
        strides = (step, 1, line) if turned else (step, line, 1)
        given = memory[name].reshape(-1)[start:]
        return np.lib.stride_tricks.as_strided(
            given, (o["batch"], rows, columns), [s * given.itemsize for s in strides]
        )

    m, n, k = o["m"], o["n"], o["k"]
    a = matrix(next(names), o.get("a_from", 0), m, k, o["a_line"], o["a_step"], o["a_transposed"])
    b = matrix(next(names), o.get("b_from", 0), k, n, o["b_line"], o["b_step"], o["b_transposed"])
    y = o.get("alpha", 1.0) * (a.astype(np.float64) @ b)
    if o.get("bias"):
        y += memory[next(names)]
    if o.get("residual"):
        y += matrix(next(names), 0, m, n, o["r_line"], o["r_step"], False)
    out = matrix(next(names), 0, m, n, o["y_line"], o["y_step"], False)
    out[...] = np.maximum(y, 0) if o.get("act") == "relu" else y


@pytest.mark.parametrize(("op", "shapes", "attrs", "want"), [
    ("fused_linear", ((2, 5, 200), (40, 200), (40,), (2, 5, 40)), {"act": "relu"}, lambda x, w, b, r: np.maximum(x @ w.T + b + r, 0)),
    ("fused_linear", ((2, 5, 200), (40, 200), (40,), None), {"act": "silu"}, lambda x, w, b: x @ w.T),
    ("mm", ((5, 200), (200, 40)), {}, lambda a, b: a @ b),
    ("bmm", ((3, 5, 200), (3, 200, 40)), {}, lambda a, b: a @ b),
    ("addmm", ((40,), (5, 200), (200, 40)), {"alpha": 0.5}, lambda c, a, b: c + 0.5 * a @ b),
])  # fmt: skip
def test_a_long_float32_product_is_summed_in_parts(
    op: str, shapes: Any, attrs: Any, want: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "K_AT_ONCE", 64)
    made = lowered(CublasLt(), op, *shapes, dtype="float32", **attrs)
    products = [s for s in made.stages if s.library]
    assert [s.options["k"] for s in products] == [64, 64, 64, 8]
    assert sum(s.flops for s in products) == pytest.approx(
        lowered(CublasLt(choice=1, on_request=True), op, *shapes, dtype="float32", **attrs).stages[0].flops
    )
    random = np.random.default_rng(0)
    given = [random.standard_normal(s) for s in shapes if s is not None]
    expected = want(*given)
    memory = {f"in{i}": v for i, v in enumerate(given)}
    memory["out0"] = memory["temp0"] = np.full(expected.shape, np.nan)
    for stage in products:
        by_options(stage, memory)
    np.testing.assert_allclose(memory["out0"], expected, rtol=1e-12, atol=1e-12)


def test_a_pinned_algorithm_and_16_bits_sum_in_one_call() -> None:
    (pinned,) = lowered(CublasLt(on_request=True), "mm", (5, 3000), (3000, 40), dtype="float32").stages
    (narrow,) = lowered(CublasLt(), "mm", (5, 3000), (3000, 40)).stages
    assert (pinned.options["k"], narrow.options["k"]) == (3000, 3000)
    parts = lowered(CublasLt(), "mm", (5, 3000), (3000, 40), dtype="float32").stages
    assert [(s.options.get("a_from", 0), s.options["k"]) for s in parts] == [
        (0, 1024),
        (1024, 1024),
        (2048, 952),
    ]


def test_what_is_refused_has_a_reason() -> None:
    def said(op: str, *operands: Any) -> str:
        graph, _, known = one_node(op, operands)
        return str(CublasLt().supports(call_of(graph, known), TARGET).reason)

    assert said("mm", np.zeros((5, 8), np.int8), np.zeros((8, 8), np.int8)) == "multiplies floats, not int8"
    assert said("mm", np.zeros((0, 8), np.float32), np.zeros((8, 8), np.float32)) == "has empty operands"
