"""What NVIDIA's libraries are requested: sizes, lines and epilogues as options; what they cannot do is a second stage of ours."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of, one_node

from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.kernels.cuda.matmul import libraries
from xpuruntime.kernels.cuda.matmul.libraries import Cublas, CublasLt
from xpuruntime.kernels.kernel import LoweredCall
from xpuruntime.testing.emulation.launches import EmulatedKernels, unset_array

TARGET = cuda_target("cuda:sm_90")


@pytest.fixture(autouse=True)
def libraries_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "installed", lambda library: True)


def lowered(kernel: Any, op: str, *shapes: Any, dtype: str = "bfloat16", **attrs: Any) -> LoweredCall:
    operands = [None if s is None else np.zeros(s, getattr(ml_dtypes, dtype, dtype)) for s in shapes]
    graph, _, known = one_node(op, operands, **attrs)
    call = call_of(graph, known)
    said = kernel.supports(call, TARGET)
    assert said, said.reason
    found: LoweredCall = kernel.lower(call, TARGET)
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


@pytest.mark.parametrize(("columns", "dtype"), [(40, "bfloat16"), (40, "float32"), (37, "float16")])
@pytest.mark.parametrize("shift", [0, 1])
def test_the_second_stage_computes_the_epilogue(columns: int, dtype: str, shift: int) -> None:
    stage = lowered(
        CublasLt(), "fused_linear", (5, 24), (columns, 24), (columns,), None, dtype=dtype, act="gelu"
    ).stages[1]
    kind = getattr(ml_dtypes, dtype, dtype)
    sums = np.random.default_rng(3).standard_normal((5, columns)).astype(np.float32)
    sums[1, 2], sums[2, 3] = np.nan, np.inf
    bias, y = np.linspace(-1, 1, columns).astype(kind), unset_array((5, columns), kind, shift)
    EmulatedKernels({"finish": stage.source}, stage.parts).launch(
        "finish",
        {"temp0": sums, "in2": bias, "out0": y},
        blocks=int(np.prod(stage.options["grid"])),
        late=("temp0", "in2"),
    )
    x = sums + bias.astype(np.float32)
    erf = np.vectorize(math.erf)
    want = (x * 0.5 * (1 + erf(x / math.sqrt(2)))).astype(kind)
    np.testing.assert_allclose(
        y.astype(np.float32),
        want.astype(np.float32),
        rtol=1e-2 if dtype != "float32" else 1e-5,
        atol=1e-3 if dtype != "float32" else 1e-6,
    )


def test_plain_products_need_no_second_stage() -> None:
    (stage,) = lowered(Cublas(), "mm", (5, 24), (24, 40), dtype="float32").stages
    assert (stage.library, stage.stem, stage.args) == ("cublas", "gemm", ("in0", "in1", "out0"))
    assert stage.options["out"] == "float32"


def test_what_is_refused_has_a_reason() -> None:
    def said(op: str, *operands: Any) -> str:
        graph, _, known = one_node(op, operands)
        return str(CublasLt().supports(call_of(graph, known), TARGET).reason)

    assert (
        said("mm", np.zeros((5, 8), np.int8), np.zeros((8, 8), np.int8))
        == "only floats are supported, not int8"
    )
    assert said("mm", np.zeros((0, 8), np.float32), np.zeros((8, 8), np.float32)) == "an operand is empty"
