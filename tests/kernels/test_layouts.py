"""Elementwise, reduction, softmax and norm kernels on operands and results of any layout, padding included."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import interp
from xpuruntime.kernels.catalogue import offers
from xpuruntime.kernels.kernel import NodeCall, Operand, Stage
from xpuruntime.runtime.memory.layouts import from_memory, to_memory
from xpuruntime.types import DType, Layout, TensorSpec

SHAPE = (2, 19, 3, 5)


def graphs() -> dict[str, ir.Graph]:
    """One node each, over an image [2, 19, 3, 5]."""
    made = {}

    def one(
        name: str, op: str, operands: tuple[str, ...] = ("x",), dtype: str = "float32", **attrs: Any
    ) -> None:
        b = ir.GraphBuilder(name)
        shapes = {"x": list(SHAPE), "z": list(SHAPE), "c": [19], "b": [19, 1, 1], "w": [5]}
        known = {
            n: b.input(n, TensorSpec(tuple(shapes[n]), DType.of(dtype))) for n in dict.fromkeys(operands)
        }
        values = [known[n] for n in operands]
        result = b.call(op, *values, **attrs)
        for i, value in enumerate(result if isinstance(result, tuple) else (result,)):
            b.output(f"y{i}", value)
        made[name] = b.build()

    one("add", "add", ("x", "z"))
    one("bias", "add", ("x", "b"))
    one("gelu", "gelu", dtype="bfloat16")
    one("greater", "gt", ("x", "b"))
    one("mean", "mean", dim=[2, 3], keepdim=True)
    one("sum", "sum", dim=[1])
    one("amax", "amax", dim=[0, 2])
    one("argmax", "argmax", dim=None)
    one("argmin", "argmin", dim=1)
    one("softmax1", "softmax", dim=1)
    one("softmax3", "log_softmax", dim=3)
    one("layer_norm", "layer_norm", ("x", "w", "w"), normalized_shape=[5])
    one("layer_norm2", "layer_norm", normalized_shape=[3, 5])
    one("group_norm", "group_norm", ("x", "c", "c"), groups=1)
    one("instance_norm", "instance_norm", ("x", "c"))
    one("batch_norm", "batch_norm", ("x", "c", "c", "c", "c"))
    one("response", "local_response_norm", size=3)
    return made


def layouts(shape: tuple[int, ...], seed: int) -> Layout:
    """A random order of dims, some of them padded."""
    rng = np.random.default_rng(seed)
    order = tuple(int(d) for d in rng.permutation(len(shape)))
    if len(shape) == 4 and seed % 3 == 0:
        order = (0, 2, 3, 1)
    padded = tuple(
        e + int(p) for e, p in zip(shape, rng.integers(0, 3, len(shape)) * (seed % 2), strict=True)
    )
    return Layout(order, padded)


def lying(spec: TensorSpec, seed: int) -> TensorSpec:
    shape = tuple(int(d) for d in spec.shape)  # type: ignore[arg-type]
    return TensorSpec(shape, spec.dtype, layout=layouts(shape, seed))


def test_a_batch_norm_alone_converts_no_layout() -> None:
    (call,) = compile_graph(graphs()["batch_norm"]).entries[0].plans[0].calls
    assert call.ops == ("batch_norm",)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", ["cpu:x86-64-v2", "cpu"])
def test_any_layout(level: str, tmp_path: Path) -> None:
    target = cpu_target(level)
    functions: dict[str, str] = {}
    parts: set[str] = set()
    runs: list[tuple[str, ir.Graph, NodeCall, list[tuple[str, Stage]]]] = []
    for (name, graph), seed in itertools.product(graphs().items(), range(4)):
        node = graph.nodes[0]
        inputs = tuple(
            Operand(str(i), lying(graph.spec(str(i)), seed + len(str(i)) + ord(str(i)[0]) % 5))
            for i in node.inputs
        )
        outputs = tuple(
            lying(graph.spec(v.name), seed + 7 * at + 1 - (seed % 2)) for at, v in enumerate(node.outputs)
        )
        call = NodeCall(node, inputs, outputs)
        kernel = next(k for k, answer in offers(call, target) if answer)
        stages = []
        for at, stage in enumerate(kernel.lower(call, target).stages):
            symbol = f"{name}_{seed}_{at}"
            functions[symbol] = stage.source.replace("KERNEL", symbol)
            parts |= stage.parts
            stages.append((symbol, stage))
        runs.append(
            (f"{name} {[str(i.spec) for i in inputs]} -> {[str(o) for o in outputs]}", graph, call, stages)
        )
    file = tmp_path / "kernels.so"
    file.write_bytes(target.assemble(functions, frozenset(parts)).data)
    library = ctypes.CDLL(str(file))
    for what, graph, call, stages in runs:
        run_one(library, what, graph, call, stages)


def run_one(
    library: ctypes.CDLL, what: str, graph: ir.Graph, call: NodeCall, stages: list[tuple[str, Stage]]
) -> None:
    rng = np.random.default_rng(3)
    feeds = {}
    for spec in graph.input_specs:
        values = rng.uniform(0.1, 2, [int(d) for d in spec.shape])  # type: ignore[arg-type]
        feeds[spec.name] = values.astype(spec.dtype.numpy)
    buffers = {
        f"in{i}": np.ascontiguousarray(to_memory(feeds[o.name], o.spec)) for i, o in enumerate(call.tensors)
    }
    buffers |= {
        f"out{i}": np.full(int(o.size_bytes or 0), 0xCD, np.uint8) for i, o in enumerate(call.outputs)
    }
    for symbol, stage in stages:
        pointers = (ctypes.c_void_p * len(stage.args))(*[buffers[a].ctypes.data for a in stage.args])
        scratch = np.zeros(stage.scratch_bytes + 256, np.uint8)
        start = scratch.ctypes.data + 64 + -scratch.ctypes.data % 64
        for begin in range(stage.tasks):  # one task at a time
            getattr(library, symbol)(
                pointers, None, ctypes.c_int64(begin), ctypes.c_int64(begin + 1), ctypes.c_void_p(start)
            )
    want = interp.run(graph, feeds)
    for i, spec in enumerate(call.outputs):
        found, wanted = from_memory(buffers[f"out{i}"], spec), want[f"y{i}"]
        if spec.dtype.is_float:
            unit = 2e-2 if spec.dtype is DType.BFLOAT16 else 1e-5
            assert np.allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=unit, atol=unit), (
                what
            )
        else:
            assert np.array_equal(found, wanted), what
        inside = np.ascontiguousarray(
            to_memory(np.ones(wanted.shape, bool), TensorSpec(spec.shape, DType.BOOL, layout=spec.layout))
        )
        beyond = ~np.repeat(inside.reshape(-1), spec.dtype.bits // 8)
        assert (buffers[f"out{i}"][beyond] == 0xCD).all(), f"{what}: wrote beyond the value"
