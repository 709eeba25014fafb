"""Single ops as programs for GPUs: every op's graph compiles for three generations, and generated texts compute it on the emulator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native import check

from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import BuildError
from xpuruntime.inference.ops.prepare import graph_of
from xpuruntime.inference.ops.tensor_layout import TensorFacts, dense_block
from xpuruntime.ir import Graph
from xpuruntime.types import DType

CUDA = (2, 0)
# op, attributes, shape and order of the dims in memory of each operand
CASES: dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]] = {
    "matmul": ("matmul", (), (((33, 48), (0, 1)), ((48, 20), (0, 1)))),
    "matmul, weight transposed": ("matmul", (), (((33, 48), (0, 1)), ((48, 20), (1, 0)))),
    "matmul, one row": ("matmul", (), (((1, 64), (0, 1)), ((64, 48), (1, 0)))),
    "softmax": ("softmax", (-1,), (((4, 40), (0, 1)),)),
    "softmax, turned": ("softmax", (-1,), (((4, 40), (1, 0)),)),
    "layer_norm": ("layer_norm", (None, 1e-5), (((4, 40), (0, 1)), ((40,), (0,)), ((40,), (0,)))),
    "rms_norm": ("rms_norm", (None, 1e-6), (((4, 40), (0, 1)), ((40,), (0,)))),
    "silu_mul": ("silu_mul", (), (((4, 40), (0, 1)), ((4, 40), (0, 1)))),
    "conv2d": ("conv2d", ((1, 1), (1, 1), (1, 1), 1), (((1, 8, 6, 6), (0, 1, 2, 3)), ((4, 8, 3, 3), (0, 1, 2, 3)), None)),
    "attention": ("attention", (True, 0, None, 0.0), (((1, 4, 9, 16), (0, 2, 1, 3)),) + (((1, 2, 9, 16), (0, 2, 1, 3)),) * 2 + (None,)),
}  # fmt: skip


def graph(name: str, dtype: DType) -> Graph:
    op, attributes, operands = CASES[name]
    facts = [None if o is None else TensorFacts(o[0], strides(*o), dtype, CUDA) for o in operands]
    return graph_of(op, attributes, facts, [None if f is None else dense_block(f) for f in facts])


def strides(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    made, step = [0] * len(shape), 1
    for d in reversed(order):
        made[d], step = step, step * shape[d]
    return tuple(made)


@pytest.fixture
def nvrtc() -> None:
    try:
        nvrtc_toolchain()
    except BuildError as error:
        pytest.skip(str(error))


@pytest.mark.sampled(12)
@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sm", ["sm_80", "sm_90", "sm_100"])
def test_every_op_compiles_for_every_generation(name: str, sm: str) -> None:
    program = compile_graph(graph(name, DType.BFLOAT16), target=f"cuda:{sm}")
    assert program.entries[0].plans[0].calls
    assert any(b.data for b in program.binaries)


@pytest.mark.usefixtures("nvrtc")
def test_a_weight_that_lies_transposed_is_streamed_as_it_lies() -> None:
    program = compile_graph(graph("matmul, one row", DType.BFLOAT16), target="cuda:sm_90")
    assert [c.kernel for c in program.entries[0].plans[0].calls] == ["matmul/gemv"]


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
@pytest.mark.parametrize(
    "name", [n for n in CASES if n.partition(",")[0] in ("softmax", "layer_norm", "rms_norm", "silu_mul")]
)
def test_generated_texts_on_the_stand_in(name: str, dtype: DType) -> None:
    from xpuruntime.testing.emulation.cuda_host import cuda_host

    made = graph(name, dtype)
    random = np.random.default_rng(3)
    kind = np.float32 if dtype is DType.FLOAT32 else ml_dtypes.bfloat16
    feeds = {s.name: random.standard_normal([int(d) for d in s.shape]).astype(kind) for s in made.input_specs}
    check(made, feeds, target=cuda_host())
