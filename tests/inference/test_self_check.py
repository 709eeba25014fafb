"""Sessions checked before they are trusted: wrong kernels are caught and named, right ones cost one reference run, and nothing is changed."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.small_scores import scores

import xpuruntime as xrt
from xpuruntime import ExecutionPolicy
from xpuruntime.decisions import Reason
from xpuruntime.errors import WrongResult
from xpuruntime.frontends.model_file import open_model
from xpuruntime.inference.execution.seeded_inputs import sample_feeds
from xpuruntime.inference.native.model import native_model
from xpuruntime.inference.self_check import check as checks
from xpuruntime.inference.self_check.bounded import bounded_outputs, differ_in_last_places_of_one
from xpuruntime.inference.self_check.locate import first_wrong
from xpuruntime.inference.self_check.record import KIND
from xpuruntime.ir import GraphBuilder
from xpuruntime.numerics import compare
from xpuruntime.profiler.trace import profile
from xpuruntime.storage.store import Store
from xpuruntime.types import DType

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))
from checked_networks import NETWORKS, module_of, write  # noqa: E402

sys.path.pop(0)

HOOK = "XPU_TEST_WRONG_KERNEL"
FAULTS = ("element", "tile", "stride")
OFF, FIRST, ALWAYS = (ExecutionPolicy(self_check=w) for w in ("off", "first_open", "always"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Each network as a file, made when first asked for; and a store that holds their programs and no verdict."""
    folder = tmp_path_factory.mktemp("networks")
    made: dict[str, Path] = {}

    def file(name: str) -> Path:
        if name not in made:
            made[name] = write(name, folder)
            with opened(made[name], OFF, cache_dir=folder / "store"):
                pass
        return made[name]

    return file, folder / "store"


@pytest.fixture
def store(files):
    """The programs' store, without what an earlier test left there."""
    _, folder = files
    for entry in Store(folder).entries():
        if entry.kind == KIND:
            entry.path.unlink()
    return folder


@pytest.fixture(autouse=True)
def enough_time(monkeypatch):
    """The bounds are for users; a test must not depend on how busy the machine is."""
    monkeypatch.setattr(checks, "LEAST_S", 60.0)
    monkeypatch.setattr(checks, "MOST_S", 60.0)
    monkeypatch.delenv(HOOK, raising=False)


@pytest.fixture(autouse=True)
def no_engine_loaded(request, monkeypatch):
    """Which vendors other tests have imported must not decide who the reference is."""
    if "loads_engines" not in request.fixturenames:
        monkeypatch.setattr(checks.EngineReference, "loaded", staticmethod(lambda name: False))


@pytest.fixture
def loads_engines():
    """For a test of references that are engines."""


def opened(model, policy=None, **more):
    return xrt.InferenceSession(
        model, **({"engine": "native", "device": "cpu", "threads": 1, "exec_policy": policy} | more)
    )


def verdict_of(session):
    decision = session.plan.decision("self_check")
    assert decision is not None
    assert decision.chosen is not None
    return decision.chosen


def spans_of(recorded):
    return [s.name for s in recorded.spans if s.name.startswith("self_check")]


# ── wrong kernels ──


@pytest.mark.sampled(5)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_wrong_kernel_is_caught_and_its_node_is_named(name, fault, files, store, monkeypatch):
    file, _ = files
    with opened(file(name), OFF, cache_dir=store) as session:
        calls = session._executable.only.plan.calls
    computing = [i for i, c in enumerate(calls) if c.kernel != "movement/strided"]
    at = computing[len(computing) // 2]
    monkeypatch.setenv(HOOK, f"{calls[at].kernel}@{at}:{fault}")
    with pytest.raises(WrongResult) as caught:
        opened(file(name), FIRST, cache_dir=store)
    text = str(caught.value)
    assert f"node {calls[at].nodes[-1]!r}" in text
    assert f"computed by kernel {calls[at].kernel} ({calls[at].symbol})" in text
    assert caught.value.decision.rejected[0].code is Reason.WRONG_RESULT
    with profile() as recorded, pytest.raises(WrongResult, match="the first that differs"):
        opened(file(name), FIRST, cache_dir=store)
    assert spans_of(recorded) == []  # the verdict is kept, so nothing runs


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_right_one_is_compared_once(name, files, store):
    file, _ = files
    file(name)
    with profile() as first, opened(file(name), cache_dir=store) as session:
        assert verdict_of(session).code is Reason.CHECKED
        assert "the reference interpreter" in str(session.receipt())
    assert spans_of(first) == ["self_check: session", "self_check: the reference interpreter"]
    with profile() as second, opened(file(name), cache_dir=store) as session:
        assert verdict_of(session).code is Reason.RECORDED
    assert spans_of(second) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_no_value_of_a_right_program_differs(name, files, store):
    """Bisection rests on this: a buffer of a plan and a value of the model that have one name hold the same."""
    file, _ = files
    with opened(file(name), OFF, cache_dir=store) as session:
        source, executor = native_model(session.model), session._executable.only
        told = first_wrong(source, executor, sample_feeds(session.model.inputs))
    assert told.text == "no node is named: every comparable value of the plan is correct on its own"


def test_a_value_whose_parts_have_no_name_is_told_with_what_it_uses(files, store, monkeypatch):
    """One product computes both halves of a gated layer; the model knows no such value."""
    file, _ = files
    file("gated")
    monkeypatch.setenv(HOOK, "matmul/gemv@0:tile")
    with pytest.raises(
        WrongResult, match=r"or one of its inputs, whose values cannot be compared \(matmul/gemv for "
    ):
        opened(file("gated"), FIRST, cache_dir=store)


def test_the_source_line_is_named_where_the_model_is_a_module(monkeypatch, tmp_path):
    module, inputs = module_of("perceptron")
    monkeypatch.setenv(HOOK, "matmul/gemv@1:element")
    with pytest.raises(WrongResult) as caught:
        opened(module, example_inputs=inputs, cache_dir=tmp_path)
    assert "disagrees with the PyTorch module on the given inputs" in str(caught.value)
    assert "node 'tanh'" in str(caught.value)


# ── what follows from a wrong one ──


def test_a_fallback_takes_over_with_a_warning(files, store, monkeypatch):
    pytest.importorskip("onnxruntime")
    file, _ = files
    file("perceptron")
    monkeypatch.setenv(HOOK, "matmul/gemv:element")
    policy = ExecutionPolicy(allow_fallback="cpu", engine_order={"cpu": ["onnxruntime"]})
    with opened(file("perceptron"), policy, cache_dir=store) as session:
        assert session.plan.regions[0].engine == "onnxruntime"
        assert session.plan.decision("engine").rejected[0].code is Reason.WRONG_RESULT
        assert any("disagrees" in w for w in session.plan.warnings)


@pytest.mark.parametrize("engine", [None, "auto"])
def test_the_next_candidate_takes_over_where_nobody_named_one(engine, files, store, monkeypatch):
    pytest.importorskip("onnxruntime")
    file, _ = files
    file("perceptron")
    monkeypatch.setenv(HOOK, "matmul/gemv:element")
    policy = ExecutionPolicy(engine_order={"cpu": ["native", "onnxruntime"]})
    with opened(file("perceptron"), policy, engine=engine, cache_dir=store) as session:
        decision = session.plan.decision("engine")
        assert decision.chosen.name == "onnxruntime on cpu"
        assert ("native on cpu", Reason.WRONG_RESULT) in [(c.name, c.code) for c in decision.rejected]
        if engine == "auto":  # a vendor's session that auto chose is checked, too
            assert verdict_of(session).code is Reason.CHECKED


def test_off_runs_it_as_it_is_and_always_looks_again(files, store, monkeypatch):
    file, _ = files
    with opened(file("perceptron"), FIRST, cache_dir=store) as session:
        assert verdict_of(session).code is Reason.CHECKED
    monkeypatch.setenv(HOOK, "matmul/gemv:element")
    with opened(file("perceptron"), OFF, cache_dir=store) as session:
        assert verdict_of(session).code is Reason.NOT_CHECKED
        assert "self_check is off" in session.plan.explain()
    with opened(file("perceptron"), FIRST, cache_dir=store) as session:
        assert verdict_of(session).code is Reason.RECORDED
    with pytest.raises(WrongResult):
        opened(file("perceptron"), ALWAYS, cache_dir=store)


# ── what is kept ──


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        json.dumps({"code": "fine", "by": "x", "text": "y"}).encode(),
        json.dumps({"code": "requested", "by": "x", "text": "y"}).encode(),
        json.dumps({"code": "checked", "by": 1, "text": "y"}).encode(),
        json.dumps({"code": ["checked"], "by": "x", "text": "y"}).encode(),
        b"[" * 100_000,
    ],
)
def test_a_record_that_cannot_be_read_counts_as_absent(payload, files, store):
    file, _ = files
    with opened(file("perceptron"), cache_dir=store):
        pass
    (entry,) = [e for e in Store(store).entries() if e.kind == KIND]
    Store(store).put(KIND, entry.ingredients, payload)
    with opened(file("perceptron"), cache_dir=store) as session:
        assert verdict_of(session).code is Reason.CHECKED
    with opened(file("perceptron"), cache_dir=store) as session:
        assert verdict_of(session).code is Reason.RECORDED


def test_a_damaged_entry_counts_as_absent(files, store):
    file, _ = files
    with opened(file("perceptron"), cache_dir=store):
        pass
    (entry,) = [e for e in Store(store).entries() if e.kind == KIND]
    entry.path.write_bytes(entry.path.read_bytes()[:-3])
    with opened(file("perceptron"), cache_dir=store) as session:
        assert verdict_of(session).code is Reason.CHECKED


def test_programs_are_the_same_bytes_checked_or_not():
    module, inputs = module_of("perceptron")
    graph = xrt.extract_ir(module, inputs)
    made = {xrt.compile(graph, policy=p).to_bytes() for p in (OFF, FIRST, None)}
    assert len(made) == 1


# ── references ──


class Counting(torch.nn.Module):
    """Remembers every call in every way that a module can."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(4))
        self.python, self.listed = 0, []

    def forward(self, x):
        self.calls.add_(1.0)
        self.python += 1
        self.listed.append(1)
        torch.rand(1)
        np.random.rand()
        random.random()
        return self.layer(x) + self.calls


def test_neither_module_nor_states_are_changed(tmp_path):
    torch.manual_seed(0)
    module, x = Counting().eval(), torch.ones(2, 4)
    with opened(module, OFF, example_inputs=x, cache_dir=tmp_path) as session:
        want = session.run([x])  # what the states are after one run
    module.python, module.listed = 0, []
    module.calls.zero_()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    draws = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    check = checks.SelfCheck("always", module, x, {"x": x.numpy()})
    reference = checks.Module(session.model, module, x)
    for outputs in (reference.outputs({}, np.inf), reference.exact({}, np.inf)):
        np.testing.assert_allclose(outputs[0], want["output"].numpy(), rtol=1e-5)
    assert check.seconds == checks.MOST_S
    assert (module.python, module.listed, module.training) == (0, [], False)
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in module.parameters())
    assert torch.equal(torch.get_rng_state(), draws[0])
    assert (np.random.get_state()[1] == draws[1]).all()
    assert random.getstate() == draws[2]
    with opened(module, ALWAYS, example_inputs=x, cache_dir=tmp_path) as session:
        assert verdict_of(session).name == "the PyTorch module"
        torch.testing.assert_close(
            session.run([x]), want
        )  # the states begin where they would without a check
        assert session._executable.counters["runs"] == 1


def test_a_module_with_hooks_is_left_alone(tmp_path):
    module, x = module_of("perceptron")
    seen = []
    module.register_forward_hook(lambda *_: seen.append(1))
    with opened(module, example_inputs=x, cache_dir=tmp_path) as session:
        traced = len(seen)
        assert verdict_of(session).name == "the reference interpreter"
    assert len(seen) == traced


def test_an_engine_that_is_loaded_is_asked_first(files, store, loads_engines):
    pytest.importorskip("onnxruntime")
    file, _ = files
    with opened(file("perceptron"), cache_dir=store) as session:
        assert verdict_of(session).name == "onnxruntime"


@pytest.mark.parametrize("bias", [-8.0, -12.0])
def test_a_vendor_s_error_in_small_scores_is_not_ours(bias, tmp_path, loads_engines, monkeypatch):
    """The next reference decides: the interpreter, which computes in float64, unless another vendor is loaded."""
    pytest.importorskip("onnxruntime")
    only = staticmethod(lambda name: name == "onnxruntime")
    monkeypatch.setattr(checks.EngineReference, "loaded", only)
    with opened(scores(tmp_path / "scores.onnx", bias), ALWAYS, cache_dir=tmp_path / "store") as session:
        assert verdict_of(session).name == "the reference interpreter"
        assert session.plan.decision("self_check").chosen.code is Reason.CHECKED


@pytest.mark.parametrize("bias", [-8.0, -12.0])
def test_a_vendor_is_not_believed_where_every_value_is_that_of_the_interpreter(
    bias, tmp_path, loads_engines, monkeypatch
):
    """The same scores times 1000: the vendor's error is far above the last places of 1."""
    pytest.importorskip("onnxruntime")
    only = staticmethod(lambda name: name == "onnxruntime")
    monkeypatch.setattr(checks.EngineReference, "loaded", only)
    model = scores(tmp_path / "scores.onnx", bias, "Mul")
    with opened(model, ALWAYS, cache_dir=tmp_path / "store") as session:
        assert verdict_of(session).name == "the reference interpreter"
        last = session._executable.only.plan.calls[-1].kernel
    monkeypatch.setenv(HOOK, f"{last}:element")
    with pytest.raises(WrongResult, match="disagrees with"):
        opened(model, ALWAYS, cache_dir=tmp_path / "other").close()


def levels(path: Path) -> dict[str, np.ndarray]:
    """Write a model of the levels (logarithms of power) of 24 filters of 1,024 taps, and return a tone that most of them suppress.

    Terms of such a sum nearly cancel, so that float32 leaves a few digits of it.
    """
    rng = np.random.default_rng(0)
    t = np.arange(1024)
    window = np.hanning(1024) ** 2
    filters = [window * np.cos(2 * np.pi * f * t) for f in np.linspace(0.05, 0.45, 24)]
    b = GraphBuilder("levels")
    x = b.input("x", "float32[n, 1, 6000]")
    w = b.weight("w", "float32[24, 1, 1024]")
    y = b.convolution(x, w, None, stride=[64], padding=[0], dilation=[1])
    b.output("levels", b.log(b.add(b.mul(y, y), 1e-9)))
    weights = {"w": np.stack(filters)[:, None].astype(np.float32)}
    path.write_bytes(xrt.export_onnx(b.build(), weights=weights).SerializeToString())
    tone = np.sin(2 * np.pi * 0.013 * np.arange(6000)) + 1e-7 * rng.standard_normal(6000)
    return {"x": tone[None, None].astype(np.float32)}


@pytest.mark.parametrize("vendor", [False, True])
def test_a_model_that_amplifies_rounding_is_not_called_wrong(vendor, tmp_path, request):
    onnxruntime = pytest.importorskip("onnxruntime") if vendor else None
    if vendor:
        request.getfixturevalue("loads_engines")
    feeds = levels(tmp_path / "levels.onnx")
    with opened(tmp_path / "levels.onnx", ALWAYS, cache_dir=tmp_path / "store") as session:
        ours = session.run(feeds)["levels"]
    if onnxruntime is not None:
        (theirs,) = onnxruntime.InferenceSession(tmp_path / "levels.onnx").run(None, feeds)
        assert not compare("levels", ours, theirs, 5e-5).ok


def test_a_vendor_that_is_farther_from_float64_is_not_believed(tmp_path):
    feeds = levels(tmp_path / "levels.onnx")
    model = open_model(tmp_path / "levels.onnx")
    subject = checks.CheckedModel(
        model, "native", DType.FLOAT32, lambda feeds: [], None, feeds, "inputs", False
    )
    graph = native_model(model).graph
    work = checks.work_of(graph, {"n": 1})
    (exact,) = checks.Interpreter(model).exact(feeds, math.inf)

    def is_as_exact(ours: float, theirs: float) -> bool:
        """Return the answer for outputs that differ by so much of the largest value."""
        shifted = [(exact + by * np.abs(exact).max()).astype(np.float32) for by in (ours, theirs)]
        return checks._is_as_exact(subject, [shifted[0]], [shifted[1]], graph, work)

    assert is_as_exact(4e-4, 4e-4)
    assert is_as_exact(4e-4, 2e-4)
    assert not is_as_exact(4e-4, 5e-5)
    assert not is_as_exact(0.3, 0.3), "a vendor that is wrong excuses nothing"


def test_small_scores_are_still_judged(tmp_path, monkeypatch, loads_engines):
    pytest.importorskip("onnxruntime")
    with opened(scores(tmp_path / "scores.onnx", -8.0), OFF, cache_dir=tmp_path / "off") as session:
        last = session._executable.only.plan.calls[-1].kernel
    monkeypatch.setenv(HOOK, f"{last}:element")
    with pytest.raises(WrongResult, match="disagrees with"):
        opened(scores(tmp_path / "scores.onnx", -8.0), ALWAYS, cache_dir=tmp_path / "store").close()


def test_only_bounded_outputs_are_compared_in_units_of_one(tmp_path):
    """A division may make a small error of a score large."""
    from xpuruntime.frontends.onnx import import_onnx

    for after, bounded in (("", {"y"}), ("Mul", {"y"}), ("Div", set())):
        graph = import_onnx(scores(tmp_path / "scores.onnx", -8.0, after))[0]
        assert bounded_outputs(graph) == bounded
    numbers = (np.array([3e-4, 2e-4], np.float32), np.array([3.001e-4, 2e-4], np.float32))
    told = [compare("y", *numbers, 5e-5)]
    for names, precision, same in (
        ({"y"}, DType.FLOAT32, True),
        (set(), DType.FLOAT32, False),
        ({"y"}, DType.FLOAT64, False),
    ):
        assert (
            differ_in_last_places_of_one([numbers[0]], [numbers[1]], told, frozenset(names), precision)
            is same
        )


def test_no_vendor_is_imported_for_it(files, store):
    file, _ = files
    code = f"""
import sys, xpuruntime as xrt
from xpuruntime.inference.self_check import check
check.LEAST_S = 60.0
session = xrt.InferenceSession({str(file("perceptron"))!r}, engine="native", device="cpu", cache_dir={str(store)!r})
print(session.plan.decision("self_check").chosen.name)
print(sorted({{"torch", "onnxruntime", "openvino"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.splitlines() == ["the reference interpreter", "[]"], done.stderr


# ── not checked ──


def test_no_time_is_said(files, store, monkeypatch):
    file, _ = files
    file("mixer")
    monkeypatch.setattr(checks, "LEAST_S", 0.0)
    monkeypatch.setattr(checks, "SHARE", 1e-9)
    with opened(file("mixer"), cache_dir=store) as session:
        found = verdict_of(session)
        assert found.code is Reason.NOT_CHECKED
        assert "would take about" in found.reason
        assert found.reason in str(session.receipt())


def test_a_run_is_stopped_at_its_bound(files, store, monkeypatch):
    file, _ = files
    file("mixer")
    monkeypatch.setattr(checks, "MOST_S", 1e-9)
    monkeypatch.setattr(checks, "_unaffordable", lambda *_: "")
    with opened(file("mixer"), cache_dir=store) as session:
        assert "was stopped at the limit" in verdict_of(session).reason


def test_no_memory_is_said(files, store, monkeypatch):
    file, _ = files
    file("mixer")
    monkeypatch.setattr(checks, "free_bytes", lambda: 0)
    with opened(file("mixer"), cache_dir=store) as session:
        assert "MiB, and 0 MiB are free" in verdict_of(session).reason


def test_random_numbers_have_no_reference():
    build = GraphBuilder("noise")
    x = build.input("x", "float32[4]")
    build.output("y", build.call("add", x, build.call("rand", size=(4,), dtype=DType.FLOAT32)))
    assert checks._draws(build.build()) == "rand"


def test_weights_that_a_policy_rounds_are_not_called_wrong(tmp_path):
    module, x = torch.nn.Linear(64, 64).eval(), torch.randn(1, 64)
    policy = xrt.KernelPolicy(weights="int8")
    with opened(module, example_inputs=x, kernel_policy=policy, cache_dir=tmp_path) as session:
        assert "int8_weights" in {c.kernel.partition("/")[2] for c in session._executable.only.plan.calls}
        assert "rounds the weights" in verdict_of(session).reason


@pytest.mark.parametrize("word", ["int4", "int8"])
def test_activations_that_a_policy_rounds_are_not_called_wrong(tmp_path, word):
    module, x = torch.nn.Linear(64, 64).eval(), torch.randn(1, 64)
    policy = xrt.KernelPolicy(weights=word, activations="int8")
    with opened(module, example_inputs=x, kernel_policy=policy, cache_dir=tmp_path) as session:
        assert "rounds the activations" in verdict_of(session).reason
        session.run([x.numpy()])
        rows = [r for e in session.receipt().evidence.values() for r in e.rows if r.weights]
        assert [(r.activations, r.weights, r.precision) for r in rows] == [("int8", word, "float32")]


def test_a_program_has_no_reference(tmp_path):
    module, inputs = module_of("perceptron")
    path = tmp_path / "p.npubin"
    graph, weights = xrt.frontends.torch.import_torch(module, inputs)
    xrt.compile(graph).save(path, weights=weights)
    with opened(path, cache_dir=tmp_path) as session:
        assert verdict_of(session).reason == "a compiled program has no reference"


# ── open shapes ──


def _open_rows(tmp_path, policy=None):
    module, _ = module_of("perceptron")
    shapes = {"input": {0: torch.export.Dim("n", min=2, max=64)}}
    return opened(
        module, policy, example_inputs=torch.randn(4, 12), dynamic_shapes=shapes, cache_dir=tmp_path
    )


def test_programs_of_open_shapes_are_checked_when_they_are_compiled(tmp_path, monkeypatch):
    x = torch.randn(3, 12)
    with _open_rows(tmp_path) as session:
        assert "shapes are open" in verdict_of(session).reason
        session.run([x])
        (found,) = [d.chosen for d in session.receipt().plan.decisions if d.question == "self_check"]
        assert found.code is Reason.CHECKED
        assert "on the inputs of the run" in found.reason
    with _open_rows(tmp_path) as session, profile() as recorded:
        session.run([x])
        (found,) = [d.chosen for d in session.receipt().plan.decisions if d.question == "self_check"]
        assert found.code is Reason.RECORDED
    assert spans_of(recorded) == []
    monkeypatch.setenv(HOOK, "matmul/gemv@1:element")
    with _open_rows(tmp_path) as session:
        session.run([x])  # these were right when they were compiled
        with pytest.raises(WrongResult, match=r"inputs of input \[2, 12\]; got output .* node 'tanh'"):
            session.run([torch.randn(2, 12)])


def test_weights_below_a_byte_are_compared_with_the_model_as_it_is_written(tmp_path, loads_engines):
    """ONNX Runtime quantizes what it multiplies with such weights, which no engine need follow."""
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper

    draw, kind = np.random.default_rng(0), DType.INT4.numpy
    codes = draw.integers(-8, 8, (65, 33)).astype(np.int8)
    scales = draw.random(33).astype(np.float32)
    weights = [numpy_helper.from_array(codes.astype(kind), "w"), numpy_helper.from_array(scales, "s")]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wide"], axis=1),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
    ]
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [5, d]) for n, d in (("x", 65), ("y", 33))]
    graph = helper.make_graph(nodes, "g", types[:1], types[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = draw.standard_normal((5, 65)).astype(np.float32)
    with opened(model, ALWAYS, cache_dir=tmp_path) as session:
        assert verdict_of(session).name == "onnxruntime"
        y = session.run({"x": x})["y"]
    np.testing.assert_allclose(y, x.astype(np.float64) @ (codes * scales), rtol=1e-4, atol=1e-4)


def test_a_network_in_float32_within_a_float64_model_is_judged_as_float32(tmp_path):
    """Most weights are float64, as in a table of a diffusion sampler's noise levels, so that float64 is the model's precision."""

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.Linear(16, 1))
            self.register_buffer("levels", torch.linspace(0.1, 1, 600, dtype=torch.float64))

        def forward(self, x):
            y = x.sum() * self.levels[5].sqrt() + self.net(x)
            return y.float(), y

    torch.manual_seed(0)
    module = Step().eval()
    for seed in range(8):  # of one element, the reference's own distance from float64 is sometimes none
        x = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed))
        with opened(module, ALWAYS, example_inputs=(x,), cache_dir=tmp_path) as session:
            assert verdict_of(session).code is Reason.CHECKED
