"""The text of generated kernels, as a reader of ``xpu inspect --source`` sees it.

A change of the writers shows here as a diff. Write the files anew with ``python tests/codegen/test_generated_text.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xpuruntime import ir
from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.codegen.target import CodegenTarget
from xpuruntime.ir.graph import Node
from xpuruntime.kernels.catalogue import offers
from xpuruntime.kernels.kernel import NodeCall, Operand
from xpuruntime.types import Layout, TensorSpec

FOLDER = Path(__file__).parent / "golden"
NHWC = Layout((0, 2, 3, 1), (2, 24, 7, 7))


def masked_softmax(b: Any) -> None:
    x, mask = b.input("x", "float32[2, 12, 197, 197]"), b.input("mask", "bool[2, 1, 1, 197]")
    inner = ir.GraphBuilder("body")
    y, m = inner.input("x", "float32[2, 12, 197, 197]"), inner.input("mask", "bool[2, 1, 1, 197]")
    inner.output("y", inner.softmax(inner.where(m, inner.mul(y, 0.125), -1e9), dim=3))
    b.output("y", b.call("fused", x, mask, body=inner.build()))


def pre_norm(b: Any) -> None:
    specs = {"x": "bfloat16[4, 768]", "residual": "bfloat16[4, 768]", "w": "bfloat16[768]"}
    inner = ir.GraphBuilder("body")
    x, residual, w = (inner.input(n, s) for n, s in specs.items())
    total = inner.add(x, residual)
    inner.output("sum", total)
    inner.output("y", inner.rms_norm(total, w, normalized_shape=[768]))
    b.output("y", b.call("fused", *(b.input(n, s) for n, s in specs.items()), body=inner.build())[1])


def channel_bias(b: Any) -> None:
    b.output("y", b.relu(b.add(b.input("x", "float32[2, 24, 7, 7]"), b.input("bias", "float32[24, 1, 1]"))))


def channel_mean(b: Any) -> None:
    b.output("y", b.mean(b.input("x", "float32[2, 24, 7, 7]"), dim=[2, 3]))


CASES: dict[str, Callable[[Any], None]] = {
    "fused_masked_softmax": masked_softmax,
    "fused_pre_norm": pre_norm,
    "add_channels_last": channel_bias,
    "mean_channels_last": channel_mean,
}


def turned(b: Any) -> None:
    b.output("y", b.permute(b.input("x", "bfloat16[2, 196, 768]"), dims=[0, 2, 1]))


def appended(b: Any) -> None:
    cache, at = b.input("cache", "bfloat16[1, 2, 512, 64]"), b.input("at", "int64[4]")
    b.output("y", b.index_copy(cache, at, b.input("x", "bfloat16[1, 2, 4, 64]"), dim=2))


CUDA_CASES = {**CASES, "permute": turned, "index_copy": appended}


def text_of(build: Callable[[Any], None], target: CodegenTarget | None = None) -> str:
    """The first node's kernel; four-dim images are channels-last."""
    b = ir.GraphBuilder("g")
    build(b)
    graph = b.build()
    node: Node = graph.nodes[0]

    def lying(spec: TensorSpec) -> TensorSpec:
        return TensorSpec(spec.shape, spec.dtype, layout=NHWC) if spec.shape == (2, 24, 7, 7) else spec

    inputs = tuple(Operand(str(i), lying(graph.spec(str(i)))) for i in node.inputs)
    call = NodeCall(node, inputs, tuple(lying(graph.spec(v.name)) for v in node.outputs))
    target = target or cpu_target("cpu:x86-64-v4")
    kernel = next(k for k, answer in offers(call, target) if answer)
    return "\n".join(stage.source for stage in kernel.lower(call, target).stages)


@pytest.mark.parametrize("name", CASES)
def test_text(name: str) -> None:
    assert text_of(CASES[name]) == (FOLDER / f"{name}.cpp").read_text()


@pytest.mark.parametrize("name", CUDA_CASES)
def test_cuda_text(name: str) -> None:
    assert text_of(CUDA_CASES[name], cuda_target("cuda:sm_90")) == (FOLDER / f"{name}.cu").read_text()


@pytest.mark.parametrize("name", CASES)
def test_text_compiles_at_every_level(name: str) -> None:
    """One text of v4's lanes is no text of v2: each level writes its own, and all of them compile."""
    from xpuruntime.codegen.cpp.isa import LEVELS

    for level in LEVELS.values():
        if level.architecture == "x86_64":
            target = cpu_target(f"cpu:{level.name}")
            assert f"#define VECTOR_BYTES {level.vector_bytes}\n" in target.source({}, ())
    binary = cpu_target("cpu:x86-64-v4").assemble(
        {"golden": text_of(CASES[name])}, frozenset({"exp", "reduce"})
    )
    assert binary.symbols == ("golden",)
    assert b"golden" in binary.data


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for case, write in CASES.items():
        (FOLDER / f"{case}.cpp").write_text(text_of(write))
    for case, write in CUDA_CASES.items():
        (FOLDER / f"{case}.cu").write_text(text_of(write, cuda_target("cuda:sm_90")))
