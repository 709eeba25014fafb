"""Node by node: statistics block by block are those of whole arrays, memory stays within the budget, and what differs is found."""

from __future__ import annotations

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from xpuruntime import children
from xpuruntime.errors import InputError
from xpuruntime.numerics import compare
from xpuruntime.workbench.compare import compare_nodes
from xpuruntime.workbench.inputs import Inputs
from xpuruntime.workbench.values import statistics
from xpuruntime.workbench.values.side import Side, open_source
from xpuruntime.workbench.values.statistics import difference


@pytest.fixture(autouse=True)
def own_store(monkeypatch, fresh_store):
    monkeypatch.setenv("XPU_CACHE_DIR", str(fresh_store))


# ── statistics ──


def pairs():
    random = np.random.default_rng(0)
    for dtype in (
        np.float32,
        np.float64,
        np.float16,
        ml_dtypes.bfloat16,
        np.complex64,
        np.int32,
        np.uint8,
        bool,
    ):
        for shape in ((), (0,), (1,), (3, 5), (1000,), (7, 3, 11)):
            a = np.asarray(random.standard_normal(shape) * 50)
            b = a + np.asarray(random.standard_normal(shape)) * (random.random(shape) < 0.3)
            yield a.astype(dtype), b.astype(dtype)
    special = np.array([np.nan, np.inf, -np.inf, 1.0, 0.0, np.nan], np.float32)
    yield special, special
    yield special, np.array([np.nan, np.inf, np.inf, 1.0, 0.0, 2.0], np.float32)
    yield np.zeros(4, np.float32), np.ones(4, np.float32)
    yield np.full(4, 3e38, np.float32), np.full(4, -3e38, np.float32)
    yield np.full(4, 1e308), np.full(4, -1e308)


@pytest.mark.parametrize("block", [1, 2, 7, 1 << 16])
def test_statistics_by_blocks_are_those_of_whole_arrays(block, monkeypatch):
    monkeypatch.setattr(statistics, "_BLOCK", block)
    for a, b in pairs():
        got, want = difference(a, b), compare("x", a, b, 0.0)
        assert bool(got.reason(0.0)) == (not want.ok), (a, b, got, want)
        if not np.isinf(want.max_abs):
            assert got.max_abs == want.max_abs
            assert got.mismatched == want.mismatched
        if want.cosine is not None and got.cosine is not None and "c" not in (a.dtype.kind, b.dtype.kind):
            assert got.cosine == pytest.approx(want.cosine, abs=1e-12)
        wide = a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)
        assert got.nans[0] == np.isnan(wide).sum()
        assert got.infs[0] == (np.isinf(wide) & ~np.isnan(wide)).sum()
        if wide.size and wide.dtype.kind == "f" and not np.isnan(wide).all():
            assert got.argmax[0] == np.nanargmax(wide)
        json.dumps(got.to_json())


def test_shapes_texts_and_tolerances_of_differences():
    assert difference(np.zeros((2, 3)), np.zeros((3, 2))).reason(1.0) == "shape [2, 3] is not [3, 2]"
    texts = np.array(["a", "b"], object), np.array(["a", "c"], object)
    assert difference(*texts).reason(1.0) == "1 of 2 elements differ"
    codes = np.array([100, 7], np.uint8), np.array([101, 7], np.uint8)
    assert difference(*codes).reason(0.0) == "1 of 2 elements differ"
    assert difference(*codes).reason(0.1) == ""


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32])
def test_statistics_do_not_depend_on_the_layout(dtype, monkeypatch):
    monkeypatch.setattr(statistics, "_BLOCK", 7)
    random = np.random.default_rng(0)
    a, b = ((random.standard_normal((2, 3, 4, 5)) * 9).astype(dtype) for _ in range(2))
    turned = np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert not turned.flags.c_contiguous
    got, want = difference(turned, b), difference(a, b)
    assert got.cosine == pytest.approx(want.cosine, abs=1e-12)  # blocks of other sizes round differently
    assert replace(got, cosine=None) == replace(want, cosine=None)
    assert difference(a[:0], turned[:0]).elements == 0


def test_memory_of_statistics_does_not_grow_with_the_arrays():
    import tracemalloc

    a = np.ones(4_000_000, np.float32)
    b = a.copy()
    tracemalloc.start()
    difference(a, b)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < a.nbytes / 2  # a float64 copy of both would be four times the array


# ── models ──


def chain(path, count=9, wrong=None):
    """Convolutions and activations; ``wrong``: the one whose weights are others."""
    random = np.random.default_rng(1)
    nodes, tensors, last = [], [], "x"
    for i in range(count):
        w = (random.standard_normal((4, 4, 3, 3)) / 6).astype(np.float32)
        tensors.append(numpy_helper.from_array(w * np.float32(1.1) if i == wrong else w, f"w{i}"))
        nodes.append(helper.make_node("Conv", [last, f"w{i}"], [f"c{i}"], name=f"conv{i}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Tanh", [f"c{i}"], [f"t{i}"], name=f"tanh{i}"))
        last = f"t{i}"
    spec = [1, 4, 16, 16]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, spec)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, spec)],
        tensors,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def sides(tmp_path, *engines, wrong=None):
    a, b = chain(tmp_path / "a.onnx", wrong=wrong), chain(tmp_path / "b.onnx")
    made = [
        Side(open_source(p), engine=e, device="cpu", threads=1) for p, e in zip((a, b), engines, strict=True)
    ]
    return (*made, Inputs().samples(made[0].model.inputs)[0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ["native", "onnxruntime", "openvino"])
def test_each_value_agrees_with_the_interpreter_within_the_budget(engine, tmp_path):
    if engine != "native":
        pytest.importorskip(engine)
    side, other, feeds = sides(tmp_path, engine, "reference")
    whole = compare_nodes(side, other, feeds)
    assert whole.ok, whole.sentence
    assert whole.runs == 2
    assert len(whole.nodes) >= 9
    size = feeds["x"].nbytes
    budget = 5 * size  # two values of both sides
    parts = compare_nodes(side, other, feeds, budget=budget)
    assert parts.held_bytes <= budget < whole.held_bytes
    assert parts.runs == 2 * -(-len(parts.nodes) // 2)
    assert [n.value for n in parts.nodes] == [n.value for n in whole.nodes]
    assert all(a.statistics.max_rel < 5e-5 for a in parts.nodes)
    least = compare_nodes(side, other, feeds, budget=1)
    assert least.held_bytes == 2 * size


def test_the_first_value_that_differs_is_the_first_one(tmp_path):
    side, other, feeds = sides(tmp_path, "native", "native", wrong=4)
    report = compare_nodes(side, other, feeds, budget=1 << 16)
    assert not report.ok
    assert report.first_difference.value == "t4"
    assert [n.value for n in report.nodes if n.reason] == ["t4", "t5", "t6", "t7", "t8"]
    assert "first at node 'tanh4'" in report.sentence
    assert all(n.statistics.mismatched == 0 for n in report.nodes if not n.reason)


def test_a_budget_of_nothing_is_refused(tmp_path):
    side, other, feeds = sides(tmp_path, "native", "native")
    with pytest.raises(InputError, match="needs a budget of at least one byte"):
        compare_nodes(side, other, feeds, budget=0)


MEMORY = """
import json, sys
import numpy as np
from xpuruntime.workbench.bisect import Side, bisect
from xpuruntime.workbench.values.side import open_source

def peak():  # ru_maxrss begins with that of the parent
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1]) << 10

a, b = (Side(open_source(f), engine="native", device="cpu", threads=1) for f in sys.argv[1:3])
feeds = {"x": np.random.default_rng(0).standard_normal((1, 4, 512, 512)).astype(np.float32)}
start = peak()
for side in (a, b):
    with side.open() as session:
        session.run(feeds)
plain = peak() - start
found = bisect(a, b, feeds)
print(json.dumps({"plain": plain, "search": peak() - start, "value": found.node.value, "runs": found.runs, "bound": found.bound}))
"""


@pytest.mark.sampled(one_in=3)
def test_bisection_needs_at_most_twice_the_memory_of_a_plain_run(tmp_path):
    """Values of 4 MiB: what is held shows above the memory of the libraries."""
    files = []
    for name, wrong in (("a", 5), ("b", None)):
        path = chain(tmp_path / f"{name}.onnx", wrong=wrong)
        model = onnx.load(path)
        for info in (*model.graph.input, *model.graph.output):
            for axis in (2, 3):
                info.type.tensor_type.shape.dim[axis].dim_value = 512
        onnx.save(model, path)
        files.append(str(path))
    for _ in range(2):  # the first one compiles: its plain run holds the compiler's memory, too
        done = children.run(children.python("-c", MEMORY, *files), 300)
        assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["value"] == "t5"
    assert facts["runs"] <= facts["bound"]
    assert 0 < facts["search"] <= 2 * facts["plain"]


def test_the_command_shows_and_counts(tmp_path):
    path, other = chain(tmp_path / "a.onnx", count=3, wrong=1), chain(tmp_path / "b.onnx", count=3)
    command = [
        "compare",
        str(path),
        "--reference",
        str(other),
        "--engines",
        "native",
        "--nodes",
        "--budget",
        "1",
    ]
    done = children.run(children.python("-m", "xpuruntime", *command, "--json"), 120)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["reports"][0]["first_difference"] == "t1"
    assert document["reports"][0]["budget"] == 1 << 20
