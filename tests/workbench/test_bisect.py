"""Bisection: a node that is broken on purpose is named, in few runs, and the saved folder repeats the difference alone."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from xpuruntime import children
from xpuruntime.errors import InputError, StoreError
from xpuruntime.workbench.bisect import bisect
from xpuruntime.workbench.bisect.changes import applied, changes_between, smallest
from xpuruntime.workbench.bisect.walk import most_runs, walk
from xpuruntime.workbench.inputs import Inputs
from xpuruntime.workbench.values.pairs import Frontiers
from xpuruntime.workbench.values.side import Side, open_source

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "inference"))
from checked_networks import NETWORKS, write  # noqa: E402

sys.path.pop(0)

HOOK = "XPU_TEST_WRONG_KERNEL"


@pytest.fixture(autouse=True)
def own_store(monkeypatch, fresh_store):
    monkeypatch.setenv("XPU_CACHE_DIR", str(fresh_store))
    monkeypatch.delenv(HOOK, raising=False)


def native(path, **more):
    return Side(open_source(path), engine="native", device="cpu", threads=1, **more)


def feeds_of(side):
    return Inputs().samples(side.model.inputs)[0]


def draw(names, word):
    """One of the names, drawn by a word."""
    return min(names, key=lambda n: hashlib.sha256(f"{word} {n}".encode()).digest())


def weighted_nodes(model):
    floats = {t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) > 1}
    return {
        n.name: next(i for i in n.input if i in floats) for n in model.graph.node if floats & set(n.input)
    }


def with_changed_weight(path, node):
    """A copy of the model in which one weight of one node is another."""
    model = onnx.load(path)
    name = weighted_nodes(model)[node]
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.25), name))
    changed = path.with_name(f"{path.stem}-changed.onnx")
    onnx.save(model, changed)
    return changed


def run_again(saved):
    """Run the command of a saved folder in a fresh process; return its exit code and its document."""
    command = saved.command.split()[1:]
    done = children.run(children.python("-m", "xpuruntime", *command, "--json"), 120, folder=saved.folder)
    return done.returncode, json.loads(done.stdout)


# ── nodes that are broken on purpose ──


@pytest.mark.sampled(1, group="broken")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_node_with_another_weight_is_named(name, tmp_path):
    path = write(name, tmp_path)
    model = onnx.load(path)
    node = draw(weighted_nodes(model), name)
    sides = native(with_changed_weight(path, node)), native(path)
    found = bisect(*sides, feeds_of(sides[0]), save=tmp_path / "saved")
    assert found.differs
    assert found.node.nodes == (node,) or node in found.node.nodes[-2:]
    assert found.runs <= found.bound == int(2 * math.log2(len(model.graph.node)) + 5)
    saved = found.reproduction
    assert (saved.scope, saved.fails) == ("node", True)
    small = onnx.load(saved.folder / "model.onnx")
    assert {n.name for n in small.graph.node} >= {node}
    code, document = run_again(saved)
    assert code == 1
    assert node in document["node"]["nodes"]


@pytest.mark.sampled(1, group="broken")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_node_with_a_wrong_kernel_is_named(name, tmp_path, monkeypatch):
    path = write(name, tmp_path)
    side = native(path)
    feeds = feeds_of(side)
    with side.open() as session:
        calls = session.executable.only.plan.calls
    call = draw([c for c in calls if c.nodes and c.kernel != "movement/strided"], name)
    monkeypatch.setenv(HOOK, f"node {call.nodes[0]}:element")
    other = Side(side.model, engine="reference" if len(name) % 2 else "onnxruntime", device="cpu")
    if other.engine == "onnxruntime":
        pytest.importorskip("onnxruntime")
    found = bisect(side, other, feeds, save=tmp_path / "saved")
    assert found.differs
    assert call.nodes[-1] in found.node.nodes
    assert call.kernel in found.node.kernels[0]
    assert found.runs <= found.bound
    saved = found.reproduction
    assert saved.fails is True
    assert saved.scope == "node"
    monkeypatch.delenv(HOOK)
    code, document = run_again(saved)  # the folder is right, the kernel was wrong
    assert (code, document["node"]) == (0, None)


def test_equal_sides_agree_in_one_run_each(tmp_path):
    path = write("attention", tmp_path)
    found = bisect(native(path), native(path), feeds_of(native(path)), save=tmp_path / "saved")
    assert (found.differs, found.node, found.runs) == (False, None, 2)
    assert found.sentence == "native on cpu, model attention and native on cpu, model attention agree"
    assert not (tmp_path / "saved").exists()


# ── the search ──


class Listed:
    """An observer of a made-up model: ``wrong`` values differ from the right ones."""

    def __init__(self, reads, outputs, wrong=()):
        self.label, self.reads, self.outputs, self.order, self.runs = "listed", reads, outputs, list(reads), 0
        self.wrong, self.asked = set(wrong), []

    def values(self, names):
        self.runs += 1
        self.asked.append(list(names))
        return {n: np.array([float(n in self.wrong)]) for n in names}

    def shape_of(self, name):
        return (1,)

    def dtype_of(self, name):
        return None


def searched(reads, outputs, wrong):
    left, right = Listed(reads, outputs, wrong), Listed(reads, outputs)
    kept = []
    return walk(left, right, lambda *_: 0.0, kept.append), kept


@pytest.mark.parametrize("seed", range(20))
def test_the_named_value_differs_and_all_that_it_reads_agrees(seed):
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 200))
    names = [f"v{i}" for i in range(count)]
    reads = {n: [names[j] for j in random.integers(0, i, 2)] if i else ["x"] for i, n in enumerate(names)}
    broken = names[int(random.integers(count))]
    wrong = {broken}
    for n in names:  # a difference passes to a reader, unless the reader hides it
        if wrong & set(reads[n]) and random.random() < 0.8:
            wrong.add(n)
    unread = [n for n in names if all(n not in r for r in reads.values())]
    state, kept = searched(reads, unread, wrong)
    if not wrong & set(unread):
        assert not state.differs  # no output differs
        return
    assert state.value in wrong
    assert not wrong & set(reads[state.value])
    assert set(state.before) == set(reads[state.value]) - {"x"}
    assert state.runs <= most_runs(count)
    assert kept == [] or set(kept[-1]) >= set(state.before) or not state.before


def test_a_difference_that_a_later_node_hides_is_not_lost():
    """b is wrong; c, which alone reads it on one path, hides it, and d passes it on."""
    reads = {"a": ["x"], "b": ["a"], "c": ["b"], "d": ["b"], "e": ["c"], "f": ["d", "e"]}
    state, _ = searched(reads, ["f"], {"b", "d", "f"})
    assert state.value == "b"


def test_a_cut_holds_what_is_read_later():
    reads = {"a": ["x"], "b": ["a"], "c": ["a"], "d": ["hidden"], "hidden": ["b", "c"], "e": ["d", "a"]}
    frontiers = Frontiers(["a", "b", "c", "d", "e"], reads, ["e", "b"])
    assert [frontiers.at(k) for k in range(6)] == [
        [],
        ["a"],
        ["a", "b"],
        ["a", "b", "c"],
        ["a", "b", "d"],
        ["b", "e"],
    ]
    assert frontiers.before["d"] == ["c", "b"]


# ── policies ──


def two_policies(tmp_path):
    good = {"version": 1, "kernel": {"matmul": "generated"}}
    bad = {
        "version": 1,
        "kernel": {"matmul": "generated", "conv": "naive", "norm": "generated", "rules": [{"op": "elementwise", "prefer": "generated"}]},
        "execution": {"caching": False},
    }  # fmt: skip
    path = write("residual", tmp_path)
    return native(path, policy=bad), native(path, policy=good)


def test_the_smallest_policy_change_is_named_with_its_node(tmp_path, monkeypatch):
    bad, good = two_policies(tmp_path)
    monkeypatch.setenv(HOOK, "node convolution_1:element")
    # Only the naive kernel is wrong: the hook is by node, so the reference side must not see it.
    monkeypatch.setenv(HOOK, "conv/naive:element")
    found = bisect(bad, good, feeds_of(bad), save=tmp_path / "saved")
    assert found.differs
    assert len(found.changes) == 1
    assert found.changes[0].startswith("kernel of 'convolution")
    assert found.changes[0].endswith("conv/generated -> conv/naive")
    assert found.node.kernels == ("conv/naive", "conv/generated")
    assert found.reproduction.fails is True
    assert "use: naive" in (found.reproduction.folder / "policy.yaml").read_text()
    assert "by kernel of 'convolution" in found.sentence


def test_policies_that_agree_are_equal(tmp_path):
    bad, good = two_policies(tmp_path)
    found = bisect(bad, good, feeds_of(bad))
    assert (found.differs, found.changes, found.trials) == (False, (), 2)


def test_changes_are_single_and_can_be_applied_one_by_one():
    from xpuruntime import Policy

    before = Policy.from_dict(
        {"version": 1, "kernel": {"conv": "naive", "rules": [{"op": "norm", "forbid": "naive"}]}}
    )
    after = Policy.from_dict(
        {
            "version": 1,
            "kernel": {"conv": ["onednn", "naive"], "rules": [{"op": "pool", "prefer": "places"}]},
            "execution": {"place": {"conv": "native", "/head/*": "onnxruntime"}, "optimization_level": 1},
        }
    )
    changes = changes_between(before, after)
    assert applied(before, changes) == after
    assert applied(before, []) == before
    assert [".".join(c.path) for c in changes] == [
        "kernel.conv", "kernel.rules", "kernel.rules", "execution.optimization_level", "execution.place./head/*", "execution.place.conv",
    ]  # fmt: skip
    assert applied(before, changes[3:4]).execution.optimization_level == 1
    left_out = Policy.from_dict(
        {"version": 1, "execution": {"engine_options": {"native": {"without_passes": "cse, fuse_conv"}}}}
    )
    single = changes_between(before, left_out)[-2:]
    assert [str(c).rpartition(".")[2] for c in single] == [
        "without_passes + cse",
        "without_passes + fuse_conv",
    ]
    options = applied(Policy(), single[1:]).execution.options_for("native")
    assert options == {"without_passes": "fuse_conv"}
    assert changes_between(applied(left_out, changes_between(left_out, Policy())), Policy()) == []


def test_the_pass_that_changes_the_bits_is_named(tmp_path):
    """Folding a batch norm into the weights rounds once more; the other two passes have no effect on this model."""
    from xpuruntime import InferenceSession, Policy, PolicyError

    random = np.random.default_rng(5)
    arrays = {
        "w": random.standard_normal((8, 3, 3, 3)),
        **{n: random.random(8) + 0.5 for n in ("s", "b", "m", "v")},
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
            helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y"], name="norm"),
        ],
        "net", [helper.make_tensor_value_info("x", 1, [1, 3, 9, 9])], [helper.make_tensor_value_info("y", 1, [1, 8, 7, 7])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()],
    )  # fmt: skip
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)

    def without(passes):
        return Policy.from_dict(
            {"version": 1, "execution": {"engine_options": {"native": {"without_passes": passes}}}}
        )

    feeds = {"x": random.standard_normal((1, 3, 9, 9)).astype(np.float32)}
    outputs = []
    for policy in (Policy(), without("fold_batch_norm")):
        with InferenceSession(str(path), engine="native", device="cpu", policy=policy) as session:
            outputs.append(session.run(feeds)["y"])
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)
    sides = [native(path, policy=p) for p in (without("cse,fold_batch_norm,recognize_rope"), Policy())]
    result = bisect(*sides, feeds, tolerance=0)
    assert result.changes == ("execution.engine_options.native.without_passes + fold_batch_norm",)
    with pytest.raises(PolicyError, match="must name passes, separated by commas, got fold_bn"):
        InferenceSession(str(path), engine="native", device="cpu", policy=without("cse, fold_bn"))


@pytest.mark.parametrize("seed", range(10))
def test_the_smallest_set_cannot_lose_an_item(seed):
    random = np.random.default_rng(seed)
    needed = {int(i) for i in random.choice(40, int(random.integers(1, 5)), replace=False)}
    calls = []

    def has_effect(items):
        calls.append(tuple(items))
        return needed <= set(items)

    assert set(smallest(range(40), has_effect)) == needed
    assert len(calls) == len(set(calls))


# ── programs, and what is refused ──


def test_programs_are_sides(tmp_path):
    from xpuruntime.workbench.programs.compile_model import compile_model

    path = write("residual", tmp_path)
    changed = with_changed_weight(path, "convolution_1")
    for file in (path, changed):
        compile_model(file, file.with_suffix(".npubin"))
    a, b = (Side(open_source(f.with_suffix(".npubin")), device="cpu") for f in (changed, path))
    found = bisect(a, b, feeds_of(a), save=tmp_path / "saved")
    assert "convolution_1" in found.node.nodes
    assert (found.reproduction.scope, found.reproduction.fails) == ("model", True)
    mixed = bisect(a, native(path), feeds_of(a))
    assert "convolution_1" in mixed.node.nodes


def test_what_cannot_be_compared_is_refused(tmp_path):
    path, other = write("residual", tmp_path), write("mixer", tmp_path)
    with pytest.raises(InputError, match="the two have different inputs"):
        bisect(native(path), native(other), {})
    with pytest.raises(StoreError, match="exists already"):
        bisect(native(path), native(path), {}, save=tmp_path)
    model = onnx.load(path)
    model.graph.node[-1].output[0] = model.graph.output[0].name = "renamed"
    onnx.save(model, tmp_path / "renamed.onnx")
    renamed = native(tmp_path / "renamed.onnx")
    with pytest.raises(InputError, match="no output has the same name on both sides"):
        bisect(native(path), renamed, feeds_of(renamed))


def test_the_line_that_the_exporter_kept_is_named(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"], name="act")
    for key, value in (
        (
            "pkg.torch.onnx.stack_trace",
            'File "/model/net.py", line 12, in forward\n    return self.act(x)\n'
            'File "/site-packages/torch/nn/modules/activation.py", line 144, in forward\n    return F.relu(input)',
        ),
        ("pkg.torch.onnx.name_scopes", "['', 'block', 'block.act', 'relu']"),
    ):
        node.metadata_props.add(key=key, value=value)
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", info[:1], info[1:]), opset_imports=[helper.make_opsetid("", 17)]
    )
    onnx.save(model, tmp_path / "a.onnx")
    model.graph.node[0].op_type = "Neg"
    onnx.save(model, tmp_path / "b.onnx")
    a, b = native(tmp_path / "a.onnx"), native(tmp_path / "b.onnx")
    found = bisect(a, b, feeds_of(a))
    assert (found.node.file, found.node.line) == ("/model/net.py", 12)
    assert "from /model/net.py:12 in block.act" in found.sentence
