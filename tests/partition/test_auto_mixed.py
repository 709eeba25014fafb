"""``place: {"*": "auto"}``: costs from the engines' own times, plans from costs, and a mix only where it was measured to be faster."""

from __future__ import annotations

import numpy as np
import pytest
from support.onnx_models import small_classifier

import xpuruntime as xrt
from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.compiler import resolve
from xpuruntime.compiler.partition.cost import Costs
from xpuruntime.decisions import Candidate, Decision, Reason
from xpuruntime.frontends.model_file import open_model
from xpuruntime.inference.native.model import native_model
from xpuruntime.inference.partitioned import auto_mixed, mixed, mixed_search, placement_times
from xpuruntime.inference.partitioned.node_costs import measured_costs, node_seconds
from xpuruntime.inference.selection import auto
from xpuruntime.inference.selection.auto import Contender
from xpuruntime.inference.selection.candidate import EngineCandidate, attempt
from xpuruntime.inference.selection.request import SessionRequest
from xpuruntime.protocols import EvidenceRow
from xpuruntime.storage.store import Store, digest
from xpuruntime.targets import DeviceId
from xpuruntime.types import DType

pytest.importorskip("onnxruntime")
CPU = DeviceId("cpu")
X = np.random.default_rng(3).standard_normal((2, 3, 8, 8)).astype(np.float32)


@pytest.fixture
def model():
    return open_model(small_classifier(batch=2), name="classifier")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setenv("XPU_AUTO_SECONDS", "0.2")


def policy(**place):
    return {"version": 1, "execution": {"place": {**place, "*": "auto"}}}


def row(nodes, time_us):
    return EvidenceRow(tuple(nodes), "op", "cpu", "kernel", "", time_us)


def test_steps_are_shared_out_among_their_nodes_and_add_up_to_a_whole_run(model) -> None:
    graph = native_model(model).graph
    rows = [row(["conv", "relu"], 30.0), row([], 50.0), row(["fc1"], 10.0), row(["softmax"], None)]
    seconds = node_seconds(graph, rows, 1e-3)
    of = {n.sources[0].name: 0.0 for n in graph.nodes if n.op != "constant"}
    for node in graph.nodes:
        if node.op != "constant":
            of[node.sources[0].name] += seconds[node.name]
    assert sum(of.values()) == pytest.approx(1e-3)
    assert of["fc1"] == pytest.approx(0.25e-3)
    assert of["conv"] > of["relu"] > 0
    assert of["conv"] + of["relu"] == pytest.approx(0.75e-3)
    assert of["softmax"] == of["tanh"] == 0
    assert node_seconds(graph, [row([], 5.0)], 1e-3) == {}


def test_every_engine_says_what_its_nodes_cost(model) -> None:
    graph = native_model(model).graph
    store = Store(mode="off")
    engines = {
        e: attempt(model, EngineCandidate(e, CPU, SessionRequest(threads=1)), store).executable
        for e in ("native", "onnxruntime")
    }
    costs = measured_costs(graph, engines, {"input": X})
    for engine in engines:
        times = costs.measured[engine]
        assert set(times) == {n.name for n in graph.nodes if n.op != "constant"}
        assert 0 < sum(times.values()) < 0.1
        engines[engine].close()


def test_plans_come_from_costs_and_a_change_must_pay(model) -> None:
    graph = native_model(model).graph
    nodes = [n for n in graph.nodes if n.op != "constant"]
    half = len(nodes) // 2
    first = {n.name: 1e-3 if i < half else 9e-3 for i, n in enumerate(nodes)}
    second = {n.name: 9e-3 if i < half else 1e-3 for i, n in enumerate(nodes)}
    wanted = EngineCandidate("native", CPU)
    costs = Costs(measured={"native": first, "onnxruntime": second})
    (plan,) = mixed_search.mixes(graph, costs, wanted, {})
    assert [(r.engine, len(plan.members[r.id])) for r in plan.regions] == [
        ("native", half),
        ("onnxruntime", len(nodes) - half),
    ]
    second[nodes[0].name] = 0.9999e-3  # a saving of less than what a change costs
    (same,) = mixed_search.mixes(graph, costs, wanted, {})
    assert [r.engine for r in same.regions] == ["native", "onnxruntime"]
    one = {e: dict.fromkeys(first, 1e-3 if e == "native" else 2e-3) for e in costs.measured}
    assert list(mixed_search.mixes(graph, Costs(measured=one), wanted, {})) == []


@pytest.fixture
def h100(monkeypatch) -> DeviceId:
    """A device whose target is that of an H100, which need not be here: placing asks only which ops have kernels."""
    monkeypatch.setattr(resolve, "_with_libraries", lambda target, *_: target)
    monkeypatch.setattr(resolve, "cuda_target", lambda _: cuda_target("cuda:h100-sxm"))
    return DeviceId.parse("cuda:0")


def costs_of_halves(graph):
    """Return the nodes, the number of those that native computes faster, and costs by which ONNX Runtime computes the others faster."""
    names = [n.name for n in graph.nodes if n.op != "constant"]
    half = len(names) // 2
    native = {n: 1e-3 if i < half else 9e-3 for i, n in enumerate(names)}
    other = {n: 9e-3 if i < half else 1e-3 for i, n in enumerate(names)}
    costs = Costs(measured={"native": native, "onnxruntime": other})
    return names, half, costs


def test_costs_propose_a_mix_on_a_gpu_too(model, h100) -> None:
    graph = native_model(model).graph
    names, half, costs = costs_of_halves(graph)
    (plan,) = mixed_search.mixes(graph, costs, EngineCandidate("native", h100), {})
    assert [(r.engine, r.device, plan.members[r.id]) for r in plan.regions] == [
        ("native", "cuda:0", tuple(names[:half])),
        ("onnxruntime", "cuda:0", tuple(names[half:])),
    ]


def test_a_recorded_mix_keeps_the_engine_of_each_node_on_a_gpu(model, h100, monkeypatch) -> None:
    graph = native_model(model).graph
    names = [n.name for n in graph.nodes if n.op != "constant"]
    homes = {n: "native" if i < 2 else "onnxruntime" for i, n in enumerate(names)}
    plans = []
    monkeypatch.setattr(placement_times, "mixed_of", lambda _model, plan, *_: plans.append(plan))
    placement_times.placed_again(model, EngineCandidate("onnxruntime", h100), homes, {}, Store(mode="off"))
    (plan,) = plans
    assert {n: r.engine for r in plan.regions for n in plan.members[r.id]} == homes
    assert {r.device for r in plan.regions} == {"cuda:0"}


def test_a_verdict_on_a_mix_is_of_its_devices_and_their_products(model, h100, monkeypatch) -> None:
    graph, request = native_model(model).graph, SessionRequest(threads=1)
    homes = {"conv": "native", "*": "onnxruntime"}
    engines, costs = ("native", "onnxruntime"), Costs()

    def key(device: DeviceId, product: str) -> dict:
        monkeypatch.setattr(mixed, "product_of", lambda d: f"{d}: {product}")
        first = EngineCandidate("native", device, request)
        plan = mixed.partition_on(graph, first, engines, homes, costs)
        return mixed._artifact_key(model, plan, plan.regions, request)

    assert key(h100, "H100") == key(h100, "H100")
    assert digest(key(h100, "H100")) != digest(key(h100, "H200"))
    assert digest(key(h100, "")) != digest(key(DeviceId.parse("cuda:1"), ""))
    assert digest(key(h100, "")) != digest(key(CPU, ""))


def test_a_native_region_on_the_host_of_a_gpus_model_is_refused_by_its_node(model, h100) -> None:
    graph = native_model(model).graph
    first = EngineCandidate("onnxruntime", h100, SessionRequest(threads=1))
    place = {"fc1": "native on cpu"}
    plan = mixed.partition_on(graph, first, ("onnxruntime",), place, Costs())
    refused = mixed.mixed_of(model, plan, first, Store(mode="off"))
    assert refused.code is Reason.DEVICE_MISMATCH
    assert "uses cuda:0 run on GPUs, and node " in refused.reason
    assert "'native on cuda:0'" in refused.do


def test_a_forced_kernel_is_on_the_gpu_of_the_session(model, h100) -> None:
    graph = native_model(model).graph
    kernels = xrt.KernelPolicy(rules=[xrt.Rule(op="softmax", use="generated")])
    first = EngineCandidate("onnxruntime", h100, SessionRequest(xrt.policies.Policy(kernel=kernels)))
    plan = mixed.partition_on(graph, first, ("onnxruntime",), {}, Costs())
    assert [(r.engine, r.device) for r in plan.regions] == [("onnxruntime", "cuda:0"), ("native", "cuda:0")]


@pytest.mark.parametrize(("mix_us", "chosen"), [(90.0, "mix"), (98.0, "openvino"), (99.9, "openvino")])
def test_a_mix_that_is_not_clearly_faster_loses_to_the_best_single_engine(mix_us, chosen) -> None:
    times = {"native": 120.0, "openvino": 100.0, "mix": mix_us}
    contenders = [Contender(n, None, DType.FLOAT32, times_us=[t]) for n, t in times.items()]
    best = min(times, key=lambda n: times[n])
    rejected = tuple(
        Candidate(n, Reason.SLOWER, "slower", facts={"median_us": t}) for n, t in times.items() if n != best
    )
    head = Candidate(best, Reason.FASTEST, "fastest", facts={"median_us": times[best]})
    found = auto_mixed._by_margin(contenders, ["mix"], Decision("engine", "m", head, rejected))
    assert found.chosen.name == chosen
    assert {c.name for c in found.rejected} == set(times) - {chosen}
    if chosen != "mix":
        left = next(c for c in found.rejected if c.name == "mix")
        assert left.code is Reason.LOWER_PREFERENCE
        assert "not clearly less" in left.reason


def test_a_session_takes_what_measuring_says_and_remembers_it(quick, tmp_path) -> None:
    said = []
    for _ in range(2):
        with xrt.InferenceSession(
            small_classifier(batch=2), device="cpu", threads=1, policy=policy(), cache_dir=tmp_path
        ) as sess:
            decision = sess.plan.decision("engine")
            said.append((decision.chosen.code, decision.chosen.name, sess.run(input=X)["output"]))
            assert sess.receipt().confirmed
    assert [s[0] for s in said] == [Reason.FASTEST, Reason.RECORDED]
    assert said[0][1] == said[1][1]
    assert np.abs(said[0][2] - said[1][2]).max() <= 1e-6


def test_what_is_placed_by_name_stays_there_and_the_rest_is_measured(quick, tmp_path) -> None:
    for turn in (Reason.FASTEST, Reason.ONLY_ONE), (Reason.RECORDED, Reason.ONLY_ONE):
        with xrt.InferenceSession(
            small_classifier(batch=2),
            device="cpu",
            threads=1,
            policy=policy(fc1="native", conv="onnxruntime"),
            cache_dir=tmp_path,
        ) as sess:
            engines = {r.id: r.engine for r in sess.plan.regions}
            home = {n.name: engines[n.region] for n in sess.plan.nodes}
            assert (home["conv"], home["fc1"]) == ("onnxruntime", "native")
            assert sess.plan.decision("engine").chosen.code in turn
            want = xrt.InferenceSession(small_classifier(batch=2), device="cpu", engine="onnxruntime").run(
                input=X
            )
            assert np.abs(sess.run(input=X)["output"] - want["output"]).max() <= 1e-5
            assert sess.receipt().confirmed


def test_auto_is_for_everything_and_nothing_less() -> None:
    partly = {"version": 1, "execution": {"place": {"conv": "auto"}}}
    with pytest.raises(xrt.PolicyError, match="no such engine"):
        xrt.InferenceSession(small_classifier(), policy=partly)


def test_a_lower_precision_is_measured_on_single_engines_only(quick, tmp_path) -> None:
    asked = {"version": 1, "execution": {"place": {"*": "auto"}, "precision": "bfloat16"}}
    with xrt.InferenceSession(
        small_classifier(batch=2), device="cpu", threads=1, policy=asked, cache_dir=tmp_path
    ) as sess:
        decision = sess.plan.decision("engine")
        assert len(sess.plan.regions) == 1
        reasons = {c.name: c for c in decision.rejected}
        several = reasons["several engines"]
        assert several.code in (Reason.PRECISION_UNSUPPORTED, Reason.ONLY_ONE)


def test_what_regions_took_corrects_what_their_nodes_cost(model) -> None:
    graph = native_model(model).graph
    names, half, costs = costs_of_halves(graph)
    (plan,) = mixed_search.mixes(graph, costs, EngineCandidate("native", CPU), {})
    first, second = plan.regions
    once = mixed_search.TimedPlan(plan, {first.id: 4 * half * 1e-3, second.id: (len(names) - half) * 1e-3})
    twice = mixed_search.TimedPlan(plan, {first.id: half * 1e-3, second.id: (len(names) - half) * 1e-3})
    native, other = (costs.measured[engine] for engine in ("native", "onnxruntime"))
    found = mixed_search.corrected(costs, [once]).measured
    assert found["native"] == pytest.approx(
        {n: t * (4 if i < half else 1) for i, (n, t) in enumerate(native.items())}
    )
    assert found["onnxruntime"] == pytest.approx(other)
    both = mixed_search.corrected(costs, [once, twice]).measured["native"]
    assert both[names[0]] == pytest.approx(2e-3)  # the geometric mean of 4 and 1
    assert both[names[-1]] == pytest.approx(9e-3)  # no region on native held it
    assert mixed_search.corrected(costs, []).measured == costs.measured


def test_a_mix_is_built_timed_and_kept_only_where_it_may_win(model, monkeypatch) -> None:
    """With costs that promise much: what the regions really take decides."""
    graph = native_model(model).graph
    names = [n.name for n in graph.nodes if n.op != "constant"]
    feeds, store = {"input": X}, Store(mode="off")

    half = len(names) // 2
    native = {n: 1.0 if i < half else 9.0 for i, n in enumerate(names)}
    other = {n: 9.0 if i < half else 1.0 for i, n in enumerate(names)}
    costs = Costs(measured={"native": native, "onnxruntime": other})

    def looked() -> tuple[list, list]:
        first = EngineCandidate("native", CPU, SessionRequest(threads=1))
        return mixed_search.searched(model, graph, costs, first, {}, feeds, store)

    kept, refused = looked()
    assert [o.facts["mix"] for o in kept] == ["native + onnxruntime on cpu, 2 regions"]
    assert refused == []
    times = kept[0].executable.region_times(feeds, auto.CLOCK)
    assert list(times) == ["r0", "r1"]
    assert all(0 < t < 1 for t in times.values())
    kept[0].executable.close()
    monkeypatch.setattr(mixed_search, "MAX_TIME_RATIO", 1e-9)  # no mix can be as fast as that
    kept, refused = looked()
    assert kept == []
    assert all(c.code is Reason.SLOWER and "region by region" in c.reason for c in refused)
    assert refused
