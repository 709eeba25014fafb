"""The gradient of maxima on CUDA: the kernel's own text, run on a CPU by the emulator, against the interpreter, and both against PyTorch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of, judge, one_node

from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.compiler import compile as compile_program
from xpuruntime.ir import interp
from xpuruntime.kernels.cuda.pool_gradient import PoolGradient
from xpuruntime.runtime.execution.executor import Executor

OP = "max_pool_value_backward"
WINDOWS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "overlap": ((2, 8, 9, 11), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}),
    "apart": ((2, 16, 7, 8), {"kernel": (2, 2), "stride": (3, 4)}),
    "uneven": ((1, 6, 9, 8), {"kernel": (3, 2), "stride": (2, 1), "padding": (0, 1)}),
    "dilated": ((1, 5, 9, 12), {"kernel": (2, 3), "stride": (1, 2), "padding": (1, 1), "dilation": (3, 2)}),
    "ceil": ((1, 8, 8, 8), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "ceil": True}),
    "whole": ((2, 8, 5, 6), {"kernel": (5, 6)}),
    "one channel": ((3, 1, 7, 7), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}),
    "line": ((2, 4, 19), {"kernel": (4,), "stride": (3,), "padding": (2,)}),
    "volume": ((1, 4, 5, 6, 7), {"kernel": (2, 3, 3), "stride": (1, 2, 2), "padding": (1, 1, 1)}),
    "no batch": ((4, 6, 7), {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1)}),
    "empty": ((0, 8, 6, 6), {"kernel": (2, 2)}),
    "no channels": ((2, 0, 6, 6), {"kernel": (2, 2)}),
}


def attributes(
    kernel: Any, stride: Any = None, padding: Any = None, dilation: Any = None, ceil: bool = False
) -> Any:
    n = len(kernel)
    return {
        "kernel_size": [*kernel], "stride": [*(stride or kernel)], "padding": [*(padding or [0] * n)], "dilation": [*(dilation or [1] * n)],
        "ceil_mode": ceil,
    }  # fmt: skip


def drawn(shape: tuple[int, ...], dtype: Any, seed: int = 0, special: bool = False) -> Any:
    """Values of which many are equal, as a ReLU and 16 bits make them; with NaN and infinities, if they are asked for."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, shape).astype(np.float64)
    if special:
        x = np.where(rng.random(shape) < 0.2, rng.choice([np.nan, np.inf, -np.inf, -0.0], shape), x)
    return x.astype(dtype)


def operands(shape: tuple[int, ...], window: dict[str, Any], dtype: Any, special: bool = False) -> Any:
    x, attrs = drawn(shape, dtype, special=special), attributes(**window)
    graph, feeds, _ = one_node("max_pool", [x], **attrs)
    y = interp.run(graph, feeds)["y"]
    return (drawn(y.shape, dtype, 1), x, y), attrs


@pytest.mark.sampled(4)
@pytest.mark.parametrize("innermost", [True, False], ids=["channels last", "dense"])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str, innermost: bool) -> None:
    given, attrs = operands(*WINDOWS[name], np.float16)
    judge(PoolGradient(), OP, *given, innermost=innermost and len(WINDOWS[name][0]) > 3, **attrs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["overlap", "uneven", "dilated"])
def test_nan_and_infinity(name: str, dtype: Any) -> None:
    given, attrs = operands(*WINDOWS[name], dtype, special=True)
    judge(PoolGradient(), OP, *given, innermost=True, **attrs)


def test_unaligned_addresses() -> None:
    given, attrs = operands(*WINDOWS["overlap"], np.float16)
    judge(PoolGradient(), OP, *given, innermost=True, shift=1, **attrs)


def test_cropped_elements_have_none() -> None:
    given, attrs = operands((1, 8, 6, 7), {"kernel": (2, 2), "padding": (-1, 0, -2, -1)}, np.float32)
    judge(PoolGradient(), OP, *given, innermost=True, **attrs)


def test_a_window_of_many_elements() -> None:
    given, attrs = operands(
        (1, 8, 13, 13), {"kernel": (9, 9), "stride": (1, 1), "padding": (4, 4)}, np.float16
    )
    judge(PoolGradient(), OP, *given, innermost=True, **attrs)


def test_refusals() -> None:
    graph, _, known = one_node(OP, [np.zeros((1, 1, 2, 2), np.int64)] * 3, **attributes((1, 1)))
    said = PoolGradient().supports(call_of(graph, known), cuda_target("cuda:sm_90"))
    assert not said
    assert "int64" in said.reason


@pytest.mark.parametrize("special", [False, True], ids=["numbers", "nan"])
@pytest.mark.parametrize("name", [n for n, (shape, _) in WINDOWS.items() if len(shape) == 4 and shape[0]])
def test_the_interpreter_agrees_with_pytorch(name: str, special: bool) -> None:
    torch = pytest.importorskip("torch")
    if name == "no channels":
        pytest.skip("PyTorch refuses it")
    (grad, x, y), attrs = operands(*WINDOWS[name], np.float32, special)
    graph, feeds, _ = one_node(OP, [grad, x, y], **attrs)
    leaf = torch.from_numpy(x).requires_grad_()
    pooled = torch.nn.functional.max_pool2d(
        leaf, attrs["kernel_size"], attrs["stride"], attrs["padding"], attrs["dilation"], attrs["ceil_mode"]
    )
    pooled.backward(torch.from_numpy(grad))
    np.testing.assert_array_equal(pooled.detach().numpy(), y)
    np.testing.assert_array_equal(interp.run(graph, feeds)["y"], leaf.grad.numpy())


@pytest.mark.parametrize("special", [False, True], ids=["numbers", "nan"])
def test_targets_without_the_kernel_expand_it(special: bool) -> None:
    (grad, x, y), attrs = operands(*WINDOWS["overlap"], np.float32, special)
    graph, feeds, _ = one_node(OP, [grad, x, y], **attrs)
    program = compile_program(graph, target="cpu")
    assert "max_pool" in {op for call in program.entries[0].plans[0].calls for op in call.ops}
    with Executor(program) as executor:
        got = executor.run_arrays(list(feeds.values()))[0]
    np.testing.assert_array_equal(got, interp.run(graph, feeds)["y"])
