"""Large models: the lines that an import executes grow with the model, not with its square; and functions that expand without end are refused."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import xpuruntime
from xpuruntime.errors import ModelError
from xpuruntime.frontends.onnx import load_onnx
from xpuruntime.frontends.onnx.files.size import MAX_NODES

sys.path.insert(0, str(Path(__file__).parent))
from small_protos import model, value

sys.path.pop(0)
SOURCES = str(Path(xpuruntime.__file__).parent)


def lines_of(work: Callable[[], Any]) -> int:
    """How many lines of this package run; a turn of a comprehension counts as one."""
    count = 0

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return local

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        return local(frame, "line", None) if frame.f_code.co_filename.startswith(SOURCES) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def split(n: int) -> onnx.ModelProto:
    names = [f"a{i}" for i in range(n)]
    outputs = [value(a, [1]) for a in names]
    return model([helper.make_node("Split", ["x"], names)], inputs=[value("x", [n])], outputs=outputs)


def wide(n: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], [f"a{i}"], name=f"n{i}") for i in range(n)]
    return model([*nodes, helper.make_node("Sum", [f"a{i}" for i in range(n)], ["y"])])


def chain(n: int) -> onnx.ModelProto:
    names = ["x", *(f"a{i}" for i in range(1, n)), "y"]
    return model([helper.make_node("Relu", [a], [b]) for a, b in itertools.pairwise(names)])


def weights(n: int) -> onnx.ModelProto:
    names = ["x", *(f"a{i}" for i in range(1, n)), "y"]
    nodes = [helper.make_node("Add", [names[i], f"w{i}"], [names[i + 1]]) for i in range(n)]
    held = [onnx.numpy_helper.from_array(np.ones(4, np.float32), f"w{i}") for i in range(n)]
    return model(nodes, weights=held)


def inputs(n: int) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(n)]
    return model([helper.make_node("Sum", names, ["y"])], inputs=[value(x) for x in names])


@pytest.mark.parametrize("build", [split, wide, chain, weights, inputs])
def test_an_import_takes_lines_in_proportion_to_the_model(build: Callable[[int], onnx.ModelProto]) -> None:
    load_onnx(build(8).SerializeToString())  # what only the first import does
    small, large = (build(n).SerializeToString() for n in (60, 240))
    first, second = lines_of(lambda: load_onnx(small)), lines_of(lambda: load_onnx(large))
    assert second < 5 * first  # four times the model; squares would be sixteen


def test_evidence_of_onnx_runtime_takes_lines_in_proportion_to_the_model() -> None:
    pytest.importorskip("onnxruntime")
    counts = []
    for n in (60, 240):
        with xpuruntime.InferenceSession(wide(n).SerializeToString(), engine="onnxruntime") as session:
            session.run(None, {"x": np.ones(4, np.float32)})
            counts.append(lines_of(session.receipt))
    assert counts[1] < 6 * counts[0]


# ── functions ──


def function(name: str, *calls: str) -> onnx.FunctionProto:
    names = ["x", *(f"v{i}" for i in range(1, len(calls))), "y"]
    nodes = [
        helper.make_node(c, [names[i]], [names[i + 1]], domain="" if c == "Relu" else "own")
        for i, c in enumerate(calls)
    ]
    return helper.make_function(
        "own", name, ["x"], ["y"], nodes, [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    )


def calling(*functions: onnx.FunctionProto) -> bytes:
    node = helper.make_node(functions[0].name, ["x"], ["y"], domain="own")
    made = model([node], opsets=[("", 17), ("own", 1)], functions=list(functions))
    return bytes(made.SerializeToString())


def test_functions_that_expand_without_end_are_refused_before_anything_expands_them() -> None:
    doubling = [function(f"f{i}", f"f{i + 1}", f"f{i + 1}") for i in range(30)]
    data = calling(*doubling, function("f30", "Relu", "Relu"))
    assert len(data) < 8192
    with pytest.raises(ModelError, match=rf"expands to more than {MAX_NODES:,} nodes.*31 local functions"):
        load_onnx(data)


@pytest.mark.parametrize("functions", [
    [("f", "f")], [("f", "f", "f")], [("f", "g", "g"), ("g", "h", "Relu"), ("h", "f", "f")],
])  # fmt: skip
def test_functions_that_call_themselves_are_refused(functions: list[tuple[str, ...]]) -> None:
    with pytest.raises(ModelError, match=r"has a function that calls itself: 'f'.*'f'.*-> 'f'"):
        load_onnx(calling(*(function(*f) for f in functions)))


def test_functions_in_long_chains_and_shared_ones_are_counted_once_each() -> None:
    shared = [function("f0", "f1", "f1"), function("f1", "f2", "f2"), function("f2", "Relu")]
    assert sum(n.op == "relu" for n in load_onnx(calling(*shared)).nodes) == 4


@pytest.mark.parametrize("dims", [[10**6, 10**6], [2**62, 4], [-1, 4]])
def test_sparse_tensors_of_any_size_are_refused(dims: list[int]) -> None:
    values = onnx.numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = onnx.numpy_helper.from_array(np.zeros(1, np.int64), "i")
    sparse = onnx.SparseTensorProto(values=values, indices=indices, dims=dims)
    node = helper.make_node("Constant", [], ["c"])
    node.attribute.append(helper.make_attribute("sparse_value", sparse))
    with pytest.raises(ModelError, match="sparse tensor 's'"):
        load_onnx(model([node, helper.make_node("Add", ["x", "c"], ["y"])]).SerializeToString())
