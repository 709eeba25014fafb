"""Functions over a GPU's special function unit, with all the error that its approximations may have: of 16 bits at every number, gelu of 32.

``ex2.approx.ftz.f32`` is within 2 units of the last place and ``rcp.approx.ftz.f32`` within 1 (PTX ISA 8.0 and later, chapter 9.7.3);
which way they err differs between devices. So the functions run with every combination of the largest errors up and down. What must hold in
16 bits: within 0.6 units of the last place of the exact value, or of the smallest normal number where the value is below it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native import compile_native

from xpuruntime import ir
from xpuruntime.codegen.cuda.target import cuda_part
from xpuruntime.runtime import Executor
from xpuruntime.testing.emulation.cuda_host import CudaHost, cuda_host
from xpuruntime.types import DType

Array = np.ndarray[Any, Any]
POWER, RECIPROCAL = 4, 2
"""Twice the documented errors, in units of the last place."""


class Erring(CudaHost):
    """The emulator, whose special functions err by so many units of the last place."""

    power = reciprocal = 0

    def part(self, name: str) -> tuple[str, str]:
        file, text = super().part(name)
        if name != "math":
            return file, text
        for function, by in (("quick_power_of_two", self.power), ("quick_reciprocal", self.reciprocal)):
            text, found = re.subn(rf"\b{function}\(float x\) \{{", f"exact_{function}(float x) {{", text)
            assert found == 1
            erring = (
                f"INLINE float {function}(float x) {{\n    const float y = exact_{function}(x);\n"
                f"    return y > 0 && y < __builtin_inff() ? bitcast<float>(bitcast<uint32_t>(y) + ({by})) : y;\n}}\n"
            )
            at = text.index("INLINE float quick_larger")  # what comes next
            text = text[:at] + erring + text[at:]
        return file, text


def _erring(power: int, reciprocal: int) -> Erring:
    target = Erring(cuda_host().sm)
    target.power, target.reciprocal = power, reciprocal
    return target


def _gelu(v: float) -> float:
    return v * 0.5 * math.erfc(-v / math.sqrt(2))


def _sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v)) if v > -700 else 0.0


def _gelu_tanh(v: float) -> float:
    inner = math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)
    return v * _sigmoid(2 * inner)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[float], float]]] = {
    "gelu": (lambda b, x: b.gelu(x), _gelu),
    "tanh gelu": (lambda b, x: b.gelu(x, approximate="tanh"), _gelu_tanh),
    "sigmoid": (lambda b, x: b.sigmoid(x), _sigmoid),
    "silu": (lambda b, x: b.silu(x), lambda v: v * _sigmoid(v)),
}


def _every_value(build: Callable[..., Any], dtype: str, target: CudaHost) -> tuple[Array, Array]:
    b = ir.GraphBuilder("g")
    b.output("y", build(b, b.input("x", f"{dtype}[65536]")))
    x = np.arange(65536, dtype=np.uint16).view(DType(dtype).numpy)
    program = compile_native(b.build(), {"x": x}, target=target)
    assert "_narrow<" in str(program.binaries[0].source)
    with Executor(program) as executor, np.errstate(all="ignore"):
        (got,) = executor.run_arrays([x])
        return x.astype(np.float64), np.asarray(got).astype(np.float64)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("errors", [(0, 0), (POWER, RECIPROCAL), (-POWER, RECIPROCAL), (POWER, -RECIPROCAL), (-POWER, -RECIPROCAL)])  # fmt: skip
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_value_of_sixteen_bits(name: str, dtype: str, errors: tuple[int, int]) -> None:
    build, exact = FUNCTIONS[name]
    x, got = _every_value(build, dtype, _erring(*errors))
    finite = np.isfinite(x)
    with np.errstate(all="ignore"):
        want = np.array([exact(v) if math.isfinite(v) else math.nan for v in x.tolist()])
    kind = ml_dtypes.finfo(DType(dtype).numpy)
    size = np.maximum(abs(want[finite]), float(kind.smallest_normal))
    unit = 2.0 ** np.floor(np.log2(size)) * float(kind.eps)
    off = abs(got[finite] - want[finite]) / unit
    assert off.max() <= 0.6, (float(off.max()), float(x[finite][off.argmax()]))
    assert np.isnan(got[np.isnan(x)]).all()
    low, high = got[x == -np.inf], got[x == np.inf]
    assert (low == 0).all() if name == "sigmoid" else np.isnan(low).all()  # -inf times 0, as PyTorch has it
    assert (high == (1 if name == "sigmoid" else np.inf)).all()
    if name != "sigmoid":
        zeros = got[x == 0]
        assert (zeros == 0).all()
        assert (np.signbit(zeros) == np.signbit(x[x == 0])).all()


def test_the_errors_that_are_tried_are_seen() -> None:
    """Errors a thousand times as large do not hold: the check above can fail."""
    x, got = _every_value(FUNCTIONS["gelu"][0], "bfloat16", _erring(1 << 16, 0))
    _, fine = _every_value(FUNCTIONS["gelu"][0], "bfloat16", _erring(0, 0))
    assert (got != fine)[np.isfinite(x)].any()


@pytest.mark.parametrize("errors", [(0, 0), (2, 1), (-2, 1), (2, -1), (-2, -1)])
def test_gelu_of_floats(errors: tuple[int, int]) -> None:
    """Within 10 units of the last place, tails included: 6 where the approximations are exact (erfc of what is rounded loses 90)."""
    rng = np.random.default_rng(3)
    size = np.exp(rng.uniform(-87, 3.0, 60000))
    x = np.concatenate(
        [rng.uniform(-14, 14, 100000), size, -size, [0.0, -0.0, np.nan, np.inf, -np.inf, 1e30, -1e30]]
    )
    x = x.astype(np.float32)
    b = ir.GraphBuilder("g")
    b.output("y", b.gelu(b.input("x", f"float32[{x.size}]")))
    program = compile_native(b.build(), {"x": x}, target=_erring(*errors))
    with Executor(program) as executor:
        got = np.asarray(executor.run_arrays([x])[0])
    assert np.array_equal(np.isnan(got), np.isnan(x) | (x == -np.inf))
    assert (got[x == np.inf] == np.inf).all()
    assert np.array_equal(np.signbit(got[x == 0]), np.signbit(x[x == 0]))
    finite = np.isfinite(x)
    want = np.array([_gelu(v) for v in x[finite].astype(np.float64).tolist()])
    normal = abs(want) > 1e-36
    unit = 2.0 ** (np.floor(np.log2(abs(want[normal]))) - 23)
    off = abs(got[finite][normal].astype(np.float64) - want[normal]) / unit
    assert off.max() <= (10 if any(errors) else 6), (float(off.max()), float(x[finite][normal][off.argmax()]))
    assert off.mean() < (5 if any(errors) else 1)
    assert (abs(got[finite][~normal].astype(np.float64) - want[~normal]) < 2e-38).all()


def test_double_keeps_the_exact_function() -> None:
    b = ir.GraphBuilder("g")
    b.output("y", b.gelu(b.input("x", "float64[64]")))
    x = np.linspace(-5, 8, 64)
    program = compile_native(b.build(), {"x": x}, target=cuda_host())
    assert "_narrow<" not in str(program.binaries[0].source)
    with Executor(program) as executor:
        got = np.asarray(executor.run_arrays([x])[0])
    assert np.allclose(got, [_gelu(v) for v in x.tolist()], rtol=1e-13, atol=0)


def test_the_instructions_are_those_whose_errors_are_tried() -> None:
    text = cuda_part("math")[1] + cuda_part("narrow")[1]
    assert set(re.findall(r"\b\w+\.approx[\w.]*", text)) == {"ex2.approx.ftz.f32", "rcp.approx.ftz.f32"}
