"""``make_lock``: buckets, the review of locks, and the cost of deterministic kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import InputError, LockError
from xpuruntime.plugins import registered
from xpuruntime.workbench.locks import DeterminismCost, _without_determinism, make_lock
from xpuruntime.workbench.review.check import check
from xpuruntime.workbench.review.diff import diff_files
from xpuruntime.workbench.review.files import read_snapshot
from xpuruntime.workbench.review.rules import parse_rules
from xpuruntime.workbench.session_options import SessionOptions

onnx = pytest.importorskip("onnx")

ROWS = """
void rows(const in0_t *x, out0_t *y, int64_t begin, int64_t end) {
    constexpr int64_t COLS = in0_shape[in0_rank - 1];
    for (int64_t r = begin; r < end; ++r) {
        float sum = 0;
        for (int64_t c = 0; c < COLS; ++c) sum += exp(load<1>(x + r * COLS + c));
        for (int64_t c = 0; c < COLS; ++c) store<1>(y + r * COLS + c, exp(load<1>(x + r * COLS + c)) / sum);
    }
}
"""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = registered._TABLE.kernels, registered._TABLE.functions
    yield
    registered._TABLE.kernels, registered._TABLE.functions = before


@pytest.fixture
def model(tmp_path: Path) -> Path:
    from onnx import helper, numpy_helper

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="fc"),
        helper.make_node("Softmax", ["a"], ["y"], name="top"),
    ]
    weight = numpy_helper.from_array((np.eye(8) / 3).astype(np.float32), "w")
    ports = [helper.make_tensor_value_info(n, 1, ["batch", 8]) for n in "xy"]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], [weight])
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def options(folder: Path, text: str) -> SessionOptions:
    path = folder / "p.yaml"
    path.write_text(f"version: 1\n{text}\n")
    return SessionOptions(engine="native", device="cpu", policy=path, threads=1)


def test_locks_of_two_policies_differ_in_one_node(model: Path, tmp_path: Path) -> None:
    paths = []
    for word in ("generated", "gemv"):
        result = make_lock(
            model, options(tmp_path, f"kernel: {{rules: [{{op: matmul, use: {word}}}]}}"), [{"batch": 2}]
        )
        assert result.cost is None
        paths.append(tmp_path / f"{word}.lock")
        result.lock.save(paths[-1])
    changes = diff_files(*paths)
    assert [(c.name, [f.field for f in c.fields]) for c in changes.changed] == [("fc", ["kernel"])]
    assert any(f.field == "code of fc for batch=2" for f in changes.facts)
    rules = parse_rules(
        {
            "version": 1,
            "rules": [
                {"rule": "kernels", "op": "matmul", "forbid": "gemv"},
                {"rule": "memory", "bytes": "1 MiB"},
            ],
        }
    )
    assert [r.status for r in check(read_snapshot(paths[0]), rules).results] == ["passed", "passed"]
    assert [r.status for r in check(read_snapshot(paths[1]), rules).results] == ["failed", "passed"]


def test_an_unknown_dim_is_an_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no symbolic dim of that name"):
        make_lock(model, options(tmp_path, "kernel: {matmul: generated}"), [{"seq": 2}])


def each_row(call: Any) -> xrt.Tasks:
    return xrt.Tasks(int(call.outputs[0].shape[0]))


def test_the_cost_of_determinism_is_measured(model: Path, tmp_path: Path) -> None:
    xrt.register_kernel(
        "softmax/unordered", op="softmax", source=ROWS, parts=("exp",), launch=each_row, deterministic=False
    )
    kernel = "kernel: {softmax: unordered, rules: [{deterministic: true}]}"
    result = make_lock(model, options(tmp_path, kernel), [{"batch": 2}], cost_seconds=0.05)
    cost = result.cost
    assert cost is not None
    assert cost.nodes == (("top", "softmax/unordered", "softmax/generated"),)
    assert cost.ratio is not None
    assert cost.low is not None
    assert cost.high is not None
    assert 0 < cost.low <= cost.ratio <= cost.high
    assert cost.rounds >= 5
    assert "1 nodes have another kernel; a run takes" in str(cost)
    unmeasured = make_lock(model, options(tmp_path, kernel), [{"batch": 2}]).cost
    assert unmeasured == DeterminismCost(cost.nodes)


def test_other_rules_stay_without_determinism() -> None:
    rules = [
        {"op": "matmul", "use": "generated"},
        {"deterministic": True},
        {"op": "softmax", "forbid": ["generated"], "deterministic": True},
        {"node": "scores", "weights": "int4", "activations": "int8", "deterministic": True},
    ]
    policy = _without_determinism(xrt.Policy.from_dict({"version": 1, "kernel": {"rules": rules}}))
    assert policy is not None
    left = [rule for layer in policy.kernel.layers for rule in layer.rules]
    assert [(r.op, r.use, r.forbid, r.weight_words, r.deterministic) for r in left] == [
        (("matmul",), "generated", (), None, None),
        (("softmax",), None, ("generated",), None, None),
        ((), None, (), ("int4", "int8"), None),
    ]


def test_determinism_that_changes_no_kernel_costs_nothing(model: Path, tmp_path: Path) -> None:
    demands = options(tmp_path, "kernel: {rules: [{deterministic: true}]}")
    result = make_lock(model, demands, [{"batch": 2}], cost_seconds=1.0)
    assert result.cost == DeterminismCost(())
    assert "cost nothing" in str(result.cost)


def test_more_buckets_than_the_session_keeps_are_an_error(model: Path, tmp_path: Path) -> None:
    few = options(tmp_path, "execution: {engine_options: {native: {shape_buckets: 1}}}")
    with pytest.raises(LockError, match="keeps fewer shape buckets than the lock needs; got 1 of 2"):
        make_lock(model, few, [{"batch": 1}, {"batch": 2}])
    assert len(make_lock(model, few, [{"batch": 2}, {"batch": 2}]).lock.programs) == 1
