"""``tune: {on_build: SECONDS}``: kernels that are measured when a session builds a program, recorded in it, and measured once."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.compiler.times import KernelTimes
from xpuruntime.errors import LockError, PolicyError, XpuError
from xpuruntime.inference.native import engine as native
from xpuruntime.inference.native.model import sized_model
from xpuruntime.inference.tuning import on_build
from xpuruntime.inference.tuning.on_build import record_of
from xpuruntime.inference.tuning.tunable import TunableProgram, call_of
from xpuruntime.policies import ExecutionPolicy
from xpuruntime.program.program import CompiledProgram

onnx = pytest.importorskip("onnx")

CONTESTED = {"conv": ["generated", "naive"], "fc": ["gemv", "generated"]}
LONG_S = 600.0  # more than the measurement needs anywhere


def net(path: Path, batch: Any = 1, convs: Any = ((3, 4),), size: int = 8) -> Path:
    """Convolutions and a linear layer."""
    from onnx import helper, numpy_helper

    draw = np.random.default_rng(0)
    names = ["x", *(f"a{i}" for i in range(len(convs)))]
    nodes = [
        helper.make_node("Conv", [a, f"c{i}"], [b], name=f"conv{i or ''}", pads=[1] * 4)
        for i, (a, b) in enumerate(itertools.pairwise(names))
    ]
    nodes += [
        helper.make_node("Flatten", [names[-1]], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "w"], ["y"], name="fc"),
    ]
    shapes = {f"c{i}": (d, c, 3, 3) for i, (c, d) in enumerate(convs)} | {"w": (convs[-1][1] * size**2, 10)}
    weights = [
        numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32) / 8, name)
        for name, shape in shapes.items()
    ]
    sizes = (("x", [convs[0][0], size, size]), ("y", [10]))
    ports = [helper.make_tensor_value_info(n, 1, [batch, *s]) for n, s in sizes]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return net(tmp_path_factory.mktemp("tuned") / "net.onnx")


def opened(model: Path, cache: Path, tune: Any = LONG_S, **options: Any) -> xrt.InferenceSession:
    """A native session on the CPU under ``tune``, and nothing else around it."""
    tune = {"on_build": tune} if isinstance(tune, float) else tune
    policy = {"version": 1, "execution": {"tune": tune, **options.pop("execution", {})}}
    policy |= {"kernel": options.pop("kernel")} if "kernel" in options else {}
    return xrt.InferenceSession(
        str(model), **({"engine": "native", "device": "cpu", "threads": 1} | options), policy=policy, cache_dir=cache
    )  # fmt: skip


def measures(trace: Any) -> list[str]:
    return [s.name for s in trace.spans if s.name.startswith("measure")]


def told(session: xrt.InferenceSession) -> Any:
    decision = session.plan.decision("tune")
    assert decision is not None
    return decision


def x_of(batch: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)


def test_a_built_program_has_the_times_and_a_second_session_measures_nothing(
    model: Path, tmp_path: Path
) -> None:
    with xrt.profile() as first, opened(model, tmp_path) as session:
        said, y = told(session), session.run({"x": x_of()})["y"]
        program = session.executable.only.program
        receipt, kernels = str(session.receipt()), {n.name: n.kernel for n in session.plan.nodes}
        assert session.plan.decision("self_check").chosen.code == "checked"
    assert measures(first) == ["measure: kernels of net"]
    record = record_of(program)
    assert record is not None
    times = KernelTimes.load(record["times"])
    by_node = {"+".join(d.nodes): sorted(times.calls[key]) for key, d in times.details.items()}
    assert by_node == CONTESTED
    for key, detail in times.details.items():  # a kernel that was hopeless in its first run has no interval
        close = [k for k, us in times.calls[key].items() if us < min(times.calls[key].values()) * 1.5]
        assert set(detail.intervals_us) >= (set(close) if len(close) > 1 else set())
    assert times.facts["device"]
    assert (sorted(record["measured"]), record["unmeasured"]) == (sorted(CONTESTED), {})
    fastest = {
        n: min(t, key=t.__getitem__) for key, t in times.calls.items() for n in times.details[key].nodes
    }
    assert {n: kernels[n].partition("/")[2] for n in fastest} == fastest
    assert "2 of 2 calls with several kernels measured on" in said.chosen.reason
    assert "tune for net: on_build 600 s" in receipt
    with xrt.profile() as second, opened(model, tmp_path) as session:
        assert told(session) == said
        assert session.executable.only.program.to_bytes() == program.to_bytes()
        assert np.array_equal(session.run({"x": x_of()})["y"], y)
        assert session.receipt().plan.decision("times").chosen.name == f"sha256:{times.digest[:12]}"
    assert measures(second) == []
    assert CompiledProgram.from_bytes(program.to_bytes()).facts["tune"] == record


def test_tuned_and_untuned_programs_never_mix(model: Path, tmp_path: Path) -> None:
    tunes: list[Any] = [{"on_build": 0}, LONG_S, 500.0, {"on_build": 0}, LONG_S, 500.0]
    measured = []
    for tune in tunes:
        with xrt.profile() as trace, opened(model, tmp_path, tune) as session:
            assert (session.plan.decision("tune") is None) == (tune == {"on_build": 0})
        measured.append(len(measures(trace)))
    assert measured == [0, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("fastest", ["gemv", "generated"])
def test_the_choice_follows_the_times(
    fastest: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real measurement runs; only its figures are replaced, so that both outcomes are seen."""

    def drawn(sides: Any, index: int, measure: Any) -> Any:
        times = real(sides, index, measure)
        return {
            k: {n: 1.0 if n in (fastest, "naive") else 2.0 for n in row} if len(row) > 1 else row
            for k, row in times.items()
        }

    real = on_build.measured_round
    monkeypatch.setattr(on_build, "measured_round", drawn)
    monkeypatch.setattr(on_build, "MAX_SLOWDOWN", 1e9)
    with opened(model, tmp_path) as session:
        kernels = {n.name: n.kernel for n in session.plan.nodes}
        assert kernels["fc"] == f"matmul/{fastest}"
        y = session.run({"x": x_of()})["y"]
        lock = session.lock()
    monkeypatch.undo()
    with opened(model, tmp_path / "untuned", {"on_build": 0}) as session:
        np.testing.assert_allclose(session.run({"x": x_of()})["y"], y, rtol=1e-4, atol=1e-5)
    # The lock names the measured kernels, and nothing is measured under it.
    assert lock.kernel_times["file"] == "tune: on_build 600 s"
    with (
        xrt.profile() as trace,
        xrt.InferenceSession(str(model), lock=lock, cache_dir=tmp_path / "l") as session,
    ):
        assert {n.kernel.partition("/")[2] for n in session.plan.nodes if n.name == "fc"} == {fastest}
        assert np.array_equal(session.run({"x": x_of()})["y"], y)
        assert "tune: on_build 600 s" in str(session.plan.decision("lock"))
    assert measures(trace) == []
    with pytest.raises((LockError, PolicyError)):
        xrt.InferenceSession(str(model), lock=lock, exec_policy=ExecutionPolicy(tune="on_build"))


def test_a_spent_bound_says_what_was_not_measured(model: Path, tmp_path: Path) -> None:
    with opened(model, tmp_path, 1e-6) as session, opened(model, tmp_path, {"on_build": 0}) as untuned:
        said = told(session)
        assert said.chosen.reason == "none of 2 calls with several kernels was measured"
        (left,) = said.rejected
        assert sorted(left.name.split(", ")) == sorted(CONTESTED)
        assert (left.code, left.reason) == ("timed_out", "the bound of 1e-06 s leaves no time for it")
        chosen = [{n.name: n.kernel for n in s.plan.nodes} for s in (session, untuned)]
        assert chosen[0] == chosen[1]
        assert np.array_equal(session.run({"x": x_of()})["y"], untuned.run({"x": x_of()})["y"])


def test_the_most_expensive_calls_come_first(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock says that there is time for one group of one call."""
    groups: list[Any] = []
    measure_group = on_build._Measurement._measure_group

    def counted(self: Any, tunable: Any, group: Any, base: Any) -> None:
        measure_group(self, tunable, group, base)
        groups.append(group)

    monkeypatch.setattr(on_build._Measurement, "_measure_group", counted)
    monkeypatch.setattr(on_build._Measurement, "_left", property(lambda _: 0.0 if groups else 100.0))
    monkeypatch.setattr(on_build._Measurement, "_needed", lambda self, tunable, group: 90.0 * len(group))

    def costs(self: Any, tunable: Any, base: Any) -> dict[str, float]:
        cost = real(self, tunable, base)
        assert all(us > 0 for us in cost.values())
        return {c: 3.0 if "fc" in tunable.nodes()[c][1] else 1.0 for c in cost}

    real = on_build._Measurement._costs
    monkeypatch.setattr(on_build._Measurement, "_costs", costs)
    with opened(model, tmp_path) as session:
        record = record_of(session.executable.only.program)
    assert record is not None
    assert record["measured"] == ["fc"]
    assert list(record["unmeasured"]) == ["conv"]


def test_a_hopeless_kernel_has_the_time_of_its_first_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_build._Measurement, "_contenders", lambda self, call, words, probe: words[:1])
    with opened(model, tmp_path) as session:
        record = record_of(session.executable.only.program)
        assert "up to 1 alternating rounds" in told(session).chosen.reason
    assert record is not None
    assert {len(row["times_us"]) for row in record["times"]["calls"].values()} == {2}
    assert {row["rounds"] for row in record["times"]["calls"].values()} == {1}


def test_the_others_are_measured_if_the_default_kernel_is_too_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A depthwise convolution has three kernels. Two are left after the first runs, and neither is the default."""
    from onnx import helper, numpy_helper

    weight = np.random.default_rng(0).standard_normal((8, 1, 3, 3)).astype(np.float32)
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", group=8)
    ports = [helper.make_tensor_value_info(n, 1, [1, 8, k, k]) for n, k in (("x", 12), ("y", 10))]
    graph = helper.make_graph([conv], "net", ports[:1], ports[1:], [numpy_helper.from_array(weight, "w")])
    path = tmp_path / "depthwise.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    rounds: list[set[str]] = []

    def drawn(sides: Any, index: int, measure: Any) -> Any:
        times = real(sides, index, measure)
        rounds.extend(set(row) for row in times.values())
        return {k: {n: 1e-3 if n == last else 2e-3 for n in row} for k, row in times.items()}

    def left(self: Any, call: str, words: Any, probe: Any) -> list[str]:
        return list(words[1:])

    real = on_build.measured_round
    with opened(path, tmp_path / "a", 1e-6) as session:
        (first, *rest) = (n.kernel.partition("/")[2] for n in session.plan.nodes if n.name == "conv")
        assert not rest
    monkeypatch.setattr(on_build, "measured_round", drawn)
    monkeypatch.setattr(on_build._Measurement, "_contenders", left)
    last = "naive"
    with opened(path, tmp_path / "b") as session:
        (kernel,) = (n.kernel for n in session.plan.nodes if n.name == "conv")
    assert first != last
    assert kernel == f"conv/{last}"
    assert {frozenset(r) for r in rounds if len(r) > 1} == {frozenset(["generated", last])}


def test_a_first_run_is_stopped_and_what_it_did_not_finish_has_no_time(tmp_path: Path) -> None:
    model = net(tmp_path / "slow.onnx", convs=((3, 64), (64, 64), (64, 64)), size=24)
    kernel = {"rules": [{"op": "conv", "use": "naive"}]}
    with opened(model, tmp_path, {"on_build": 0}, kernel=kernel) as session:
        ((_, request),) = session.executable.executors()
        tunable = TunableProgram(
            lambda words: native.recorded_lock(session.model, request, {}, words),
            sized_model(session.model, {}).weights,
            request.device,
            1,
        )
        variant = tunable.open("default", tunable.lock.kernels)
    whole, stopped = variant.probe_times(LONG_S), variant.probe_times(1e-3)
    variant.close()
    assert set(whole) == {call_of(k) for k in tunable.keys if k}
    last = call_of(tunable.keys[-1])
    assert last not in stopped
    assert set(stopped) < set(whole)


def test_a_changed_machine_measures_anew_and_says_so(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened(model, tmp_path).close()
    real = native.machine_facts
    monkeypatch.setattr(native, "machine_facts", lambda device: {**real(device), "driver": "555.1"})
    with xrt.profile() as trace, opened(model, tmp_path) as session:
        assert "measured anew: driver is 555.1 here, None before" in told(session).chosen.reason
    assert len(measures(trace)) == 1
    assert "kernels are measured anew: driver is 555.1 here" in caplog.text
    with xrt.profile() as trace, opened(model, tmp_path) as session:
        assert "measured anew" in told(session).chosen.reason
    assert measures(trace) == []
    for entry in (tmp_path / "v1" / "artifact").rglob("*"):
        if entry.is_file():
            entry.unlink()
    with opened(model, tmp_path) as session:
        assert "the store no longer has the program" in told(session).chosen.reason


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        ({"rules": [{"deterministic": True}]}, "demands equal bits in every build"),
        ({"batch_invariant": True}, "batch_invariant demands one kernel for every batch"),
    ],
)
def test_demands_on_bits_are_not_left_to_times(
    kernel: dict[str, Any], why: str, model: Path, tmp_path: Path
) -> None:
    with opened(model, tmp_path, kernel=kernel) as session, opened(model, tmp_path, {"on_build": 0}, kernel=kernel) as untuned:  # fmt: skip
        assert all(why in c.reason for c in told(session).rejected)
        assert np.array_equal(session.run({"x": x_of()})["y"], untuned.run({"x": x_of()})["y"])


def test_excluded_kernels_are_not_measured(model: Path, tmp_path: Path) -> None:
    rules = [{"op": "conv", "forbid": ["naive"]}, {"op": "matmul", "use": "generated"}]
    with opened(model, tmp_path, kernel={"rules": rules}) as session:
        record = record_of(session.executable.only.program)
        assert told(session).chosen.reason == "no call has several kernels that a measurement may choose"
    assert record is not None
    assert record["times"]["calls"] == {}


def test_batch_invariance_is_above_a_file_of_times(model: Path, tmp_path: Path) -> None:
    with opened(model, tmp_path) as session:
        times = record_of(session.executable.only.program)["times"]  # type: ignore[index]
    for row in times["calls"].values():
        row["times_us"] = {k: 1.0 if k in ("generated", "naive") else 2.0 for k in row["times_us"]}
    policy = {"version": 1, "kernel": {"batch_invariant": True}}
    graph = xrt.load_onnx(model)
    programs = [xrt.compile(graph, target="cpu", policy=policy, times=t) for t in (None, times)]
    kernels = [[c.kernel for c in p.entries[0].plans[0].calls] for p in programs]
    assert kernels[0] == kernels[1]
    said = next(d for d in programs[1].decisions if d.question == "times")
    assert said.chosen is None
    assert said.rejected[0].reason.startswith("batch_invariant demands one kernel")


def test_open_shapes_are_measured_for_each_set_of_sizes(tmp_path: Path) -> None:
    model, outputs = net(tmp_path / "open.onnx", "batch"), []
    for measured in (2, 0):
        with xrt.profile() as trace, opened(model, tmp_path) as session:
            outputs += [session.run({"x": x_of(n)})["y"] for n in (1, 3, 1)]
            said = session.receipt().plan.decision("tune")
            assert "2 of 2 calls" in said.chosen.reason
            lock = session.lock()
        assert len(measures(trace)) == measured
    assert all(np.array_equal(a, b) for a, b in zip(outputs[:3], outputs[3:], strict=True))
    assert len(lock.kernel_times["digest"].split("+")) == 2
    with xrt.profile() as trace, xrt.InferenceSession(str(model), lock=lock) as session:
        assert np.array_equal(session.run({"x": x_of(3)})["y"], outputs[1])
    assert measures(trace) == []


def test_auto_measures_kernels_and_then_engines(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("XPU_AUTO_SECONDS", "0.2")
    for expected in (["measure: kernels of net", "measure: 2 candidates for net"], []):
        with (
            xrt.profile() as trace,
            opened(model, tmp_path, engine="auto", execution={"engine_order": {"cpu": ["native", "onnxruntime"]}}) as session,
        ):  # fmt: skip
            said = told(session)
            engine = session.plan.regions[0].engine
            assert ("measured on" in str(said)) == (engine == "native")
            assert ("chooses its kernels itself" in str(said)) == (engine != "native")
        assert sorted(measures(trace)) == sorted(expected)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"engine": "onnxruntime"}, "tune measures the kernels of the native engine.*Drop tune, or name"),
        ({"engine": None, "execution": {"place": {"fc": "native", "*": "interpreter"}}}, "tune measures.*several regions.*xpu tune --regions"),
        ({"execution": {"engine_options": {"native": {"kernel_times": "t.json"}}}}, "kernel_times and tune exclude each other.*Drop one"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_an_error(
    change: dict[str, Any], match: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(XpuError, match=f"(?s){match}"):
        opened(model, tmp_path, **change)


def test_programs_targets_and_language_models_refuse(model: Path, tmp_path: Path) -> None:
    policy = {"version": 1, "execution": {"tune": "on_build"}}
    with pytest.raises(PolicyError, match=r"compile.*cannot honor tune.*on_build.*xpu tune"):
        xrt.compile(xrt.load_onnx(model), target="cpu:x86-64-v3", policy=policy)
    program = tmp_path / "net.npubin"
    graph = xrt.load_onnx(model)
    xrt.compile(graph, target="cpu").save(program, dict(xrt.ir.open_weights(graph, model.parent)))
    with pytest.raises(PolicyError, match=r"tune has no effect on a program.*Open the model"):
        opened(program, tmp_path)


def test_the_word_alone_has_a_bound() -> None:
    assert ExecutionPolicy(tune="on_build").tune == {"on_build": 10.0}
    for wrong in (
        "on_run",
        {"on_run": 1},
        {"on_build": -1},
        {"on_build": True},
        {"on_build": "20"},
        20,
        True,
    ):
        with pytest.raises(PolicyError, match="tune"):
            ExecutionPolicy(tune=wrong)  # type: ignore[arg-type]


KILLED = """
    import sys
    import xpuruntime as xrt
    policy = {"version": 1, "execution": {"tune": {"on_build": 600}}}
    print("opening", flush=True)
    xrt.InferenceSession(sys.argv[1], engine="native", device="cpu", threads=1, policy=policy, cache_dir=sys.argv[2])
    print("open", flush=True)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("after_s", [0.2, 0.6, 1.2, 2.0])
def test_a_kill_leaves_nothing_half_written(after_s: float, model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(model), str(cache)]
    environment = {**os.environ, "XPU_CACHE_DIR": str(tmp_path / "binaries")}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"opening\n"
    time.sleep(after_s)
    child.send_signal(signal.SIGKILL)
    printed, _ = child.communicate()
    stored = [p for p in (cache / "v1" / "artifact").rglob("*") if p.is_file() and not p.name.startswith(".")]
    assert b"open\n" in printed or len(stored) <= 1
    with xrt.profile() as trace, opened(model, cache) as session:
        assert "2 of 2 calls" in told(session).chosen.reason
        assert session.run({"x": x_of()})["y"].shape == (1, 10)
    assert len(measures(trace)) == (0 if stored else 1)
