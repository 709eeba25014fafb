"""``tune``: alternating measurements in a journal that survives kills, and sessions, locks and predictions that use its file."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.compiler.times import KernelTimes
from xpuruntime.errors import FormatError, InputError, PolicyError, StoreError
from xpuruntime.frontends.onnx.importer import import_onnx
from xpuruntime.workbench.session_options import SessionOptions
from xpuruntime.workbench.tune import predict, tune
from xpuruntime.workbench.tune.journal import Journal, Round, read_records

onnx = pytest.importorskip("onnx")

ROUNDS = 2


def net(path: Path, batch: Any = 4) -> Path:
    from onnx import helper, numpy_helper

    draw = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="fc"),
        helper.make_node("Softmax", ["a"], ["b"], name="top"),
        helper.make_node("MatMul", ["b", "v"], ["y"], name="out"),
    ]
    weights = [
        numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (24, 40)), ("v", (40, 8)))
    ]
    ports = [helper.make_tensor_value_info(n, 1, [batch, d]) for n, d in (("x", 24), ("y", 8))]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


OPTIONS = SessionOptions(device="cpu", threads=1)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and the file of its times."""
    folder = tmp_path_factory.mktemp("tuned")
    model = net(folder / "net.onnx")
    result = tune(model, folder / "times.json", OPTIONS, rounds=ROUNDS)
    assert (result.finished, result.resumed, result.measured) == (True, 0, 2 * ROUNDS)
    return model, folder / "times.json"


def shape_of(file: Path) -> dict[str, Any]:
    """Return the content of a file of times without the times."""
    data = json.loads(file.read_text())
    for call in data["calls"].values():
        call["times_us"], call["intervals_us"] = sorted(call["times_us"]), sorted(call["intervals_us"])
    data["runs"] = [(r["shapes"], r["rounds"]) for r in data["runs"]]
    for row in data.get("engines", []):
        row["times_us"], row["intervals_us"] = sorted(row["times_us"]), sorted(row["intervals_us"])
    return data


def test_the_file_has_every_kernel_of_every_call(tuned: tuple[Path, Path]) -> None:
    _, file = tuned
    times = KernelTimes.load(file)
    assert KernelTimes.load(times.to_json()) == times
    by_node = {d.nodes: sorted(times.calls[key]) for key, d in times.details.items()}
    assert by_node == {
        ("fc",): ["gemv", "generated"],
        ("out",): ["gemv", "generated"],
        ("top",): ["generated"],
    }
    assert times.facts["device"]
    assert times.facts["xpuruntime"] == xrt.__version__
    (run,) = times.runs
    chosen = sum(min(t.values()) for t in times.calls.values())
    assert run.predicted_us == pytest.approx(chosen)
    assert f"calibration error {100 * (chosen / run.tuned_us - 1):+.1f}%" in times.calibration
    assert not file.with_name("times.json.journal").exists()


KILLED = """
    import os, random, signal, sys, time
    from pathlib import Path
    from xpuruntime.workbench.tune import tune
    from xpuruntime.workbench.session_options import SessionOptions
    model, output, rounds, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    options, draw, engines = SessionOptions(device="cpu", threads=1), random.Random(seed), sys.argv[5:]
    total = (3 if engines else 2) * rounds
    tune(model, output.with_name("undisturbed.json"), options, rounds=rounds, engines=engines)
    journal, seen, kills = output.with_name(output.name + ".journal"), [], 0
    def lines():
        return journal.read_bytes().split(b"\\n")[:-1] if journal.exists() else []
    for kill in range(10):
        child = os.fork()
        if child == 0:
            tune(model, output, options, rounds=rounds, engines=engines)
            os._exit(0)
        moment = total * (kill + draw.random()) / 11  # in rounds, and between two of them
        while len(lines()) < int(moment) and not output.exists():
            time.sleep(1e-4)
        time.sleep(draw.random() * 2e-3)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if output.exists():  # the child was done, and perhaps deleted its journal
            break
        assert lines()[: len(seen)] == seen, "a finished measurement was repeated or lost"
        seen, kills = lines(), kills + 1
    resumed = max(len(lines()) - 1, 0)
    result = tune(model, output, options, rounds=rounds, engines=engines)
    print(kills, resumed, result.resumed, result.measured, output.exists(), journal.exists())
"""


@pytest.mark.sampled(1, one_in=3)
@pytest.mark.parametrize("engine", ["", "onnxruntime"])
def test_ten_kills_repeat_no_measurement_and_change_no_file(engine: str, tmp_path: Path) -> None:
    if engine:
        pytest.importorskip(engine)
    model, rounds = net(tmp_path / "net.onnx"), 12
    output, seed = tmp_path / "times.json", random.randrange(1 << 30)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(model), str(output), str(rounds), str(seed), *filter(None, [engine])],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-2000:]}"
    kills, before, resumed, measured, exists, journal = done.stdout.split()[-6:]
    assert 5 <= int(kills) <= 10
    assert (exists, journal) == ("True", "False")
    assert resumed == before
    assert int(resumed) + int(measured) == (3 if engine else 2) * rounds
    assert shape_of(output) == shape_of(tmp_path / "undisturbed.json")


def test_a_half_written_record_is_ignored_and_another_tuning_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "j"
    done = Round(0, "calls", 0, 0.25, {"k": {"gemv": 1.5}})
    with Journal(path, {"model": "a"}) as journal:
        journal.add(done)
        with pytest.raises(StoreError, match="in use by another tuning"), Journal(path, {"model": "a"}):
            pass
    whole = path.read_bytes()
    for cut in (*range(1, len(whole), 17), len(whole) - 1):
        path.write_bytes(whole[:cut])
        with Journal(path, {"model": "a"}) as journal:
            assert journal.rounds == ([] if cut < len(whole) else [done])
            journal.add(done)
        assert path.read_bytes() == whole
    with pytest.raises(FormatError, match=r"another tuning; got model: a in the journal, b now\. Delete it"):
        Journal(path, {"model": "b"}).__enter__()
    path.write_bytes(whole.replace(b"1.5", b"-1"))
    with pytest.raises(FormatError, match="line 2 is not a record"):
        Journal(path, {"model": "a"}).__enter__()
    assert read_records(b"") == (None, [])


def test_a_journal_says_which_fact_differs(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "j"
    with Journal(path, {"facts": {"cpu": "a", "os": "x"}}) as journal:
        journal.add(Round(0, "calls", 0, 0.25, {"k": {"gemv": 1.5}}))
    facts = (
        r"got facts\.cpu: a in the journal, b now; place: no --regions in the journal, --regions now\. Delete"
    )
    with pytest.raises(FormatError, match=facts):
        Journal(path, {"place": {}, "facts": {"cpu": "b", "os": "x"}}).__enter__()


def test_a_journal_without_a_round_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, {"model": "a"}):
        assert path.exists()
    assert not path.exists()


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for output, text in ((tmp_path, "is a folder"), (tmp_path / "file" / "t.json", "")):
        with pytest.raises(StoreError, match=rf"{text}.*Give a path that you can write"):
            tune(net(tmp_path / "net.onnx"), output, OPTIONS, progress=pytest.fail)


def test_a_spent_budget_writes_what_it_has_and_continues(tmp_path: Path) -> None:
    model, output = net(tmp_path / "net.onnx", "batch"), tmp_path / "t.json"
    sizes = [{"batch": 3}, {"batch": 1}]
    first = tune(model, output, OPTIONS, sizes, rounds=ROUNDS, budget_s=1e-9)
    assert (first.finished, first.measured) == (False, 1)
    assert KernelTimes.load(output).runs == ()
    assert "the journal stays" in first.sentence
    lines: list[str] = []
    second = tune(model, output, OPTIONS, sizes, rounds=ROUNDS, budget_s=1e4, progress=lines.append)
    assert (second.finished, second.resumed, second.measured) == (True, 1, 4 * ROUNDS - 1)
    assert lines[0] == f"kernels for batch=3: round 2 of {ROUNDS}"
    assert [r.shapes for r in KernelTimes.load(output).runs] == sizes


def test_sessions_say_that_times_chose_their_kernels(tuned: tuple[Path, Path], tmp_path: Path) -> None:
    model, file = tuned
    data = json.loads(file.read_text())
    x = np.random.default_rng(1).standard_normal((4, 24)).astype(np.float32)
    outputs = []
    for fastest in ("gemv", "generated"):
        for call in data["calls"].values():
            call["times_us"] = {k: 1.0 if k == fastest else 2.0 for k in call["times_us"]}
        times = tmp_path / f"{fastest}.json"
        times.write_text(json.dumps(data))
        policy = {"version": 1, "execution": {"engine_options": {"native": {"kernel_times": str(times)}}}}
        with xrt.InferenceSession(
            str(model), engine="native", device="cpu", threads=1, policy=policy
        ) as session:
            outputs.append(session.run({"x": x})["y"])
            assert {n.kernel for n in session.plan.nodes if n.op == "MatMul"} == {f"matmul/{fastest}"}
            said = session.receipt().plan.decision("times")
            digest = KernelTimes.load(times).digest
            assert said is not None
            assert said.chosen is not None
            assert said.chosen.name == f"sha256:{digest[:12]}"
            assert said.chosen.reason.startswith(f"measured on {data['facts']['device']}")
            lock = session.lock()
        assert lock.kernel_times["digest"] == digest
        times.unlink()  # a lock names the kernels, so it needs the file no more
        with xrt.InferenceSession(str(model), lock=lock) as session:
            assert np.array_equal(session.run({"x": x})["y"], outputs[-1])
            decision = session.plan.decision("lock")
            assert digest[:12] in str(decision)
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5, atol=1e-5)


def test_times_of_another_device_or_release_are_said(tuned: tuple[Path, Path], tmp_path: Path) -> None:
    model, file = tuned
    data = json.loads(file.read_text())
    data["facts"]["device"] = "another processor"
    (tmp_path / "t.json").write_text(json.dumps(data))
    policy = {
        "version": 1,
        "execution": {"engine_options": {"native": {"kernel_times": str(tmp_path / "t.json")}}},
    }
    with xrt.InferenceSession(str(model), engine="native", device="cpu", threads=1, policy=policy) as session:
        said = str(session.plan.decision("times"))
    assert "another processor in the file" in said
    data["target"] = "cuda:sm_90"
    program = xrt.compile(xrt.load_onnx(model), target="cpu", times=data)
    said = next(d for d in program.decisions if d.question == "times")
    assert said.chosen is None
    assert "the target is cpu" in said.rejected[0].reason


def test_a_file_that_cannot_be_read_fails_the_session(tuned: tuple[Path, Path], tmp_path: Path) -> None:
    policy = {
        "version": 1,
        "execution": {"engine_options": {"native": {"kernel_times": str(tmp_path / "no.json")}}},
    }
    with pytest.raises(PolicyError, match=r"kernel times 'no\.json' cannot be read.*xpu tune"):
        xrt.InferenceSession(str(tuned[0]), engine="native", device="cpu", policy=policy)
    for choice in ({}, {"place": {"*": "auto"}}):
        chosen = {**policy, "execution": {**policy["execution"], **choice}}
        with pytest.raises((PolicyError, FormatError), match=r"no\.json.*cannot be read"):
            xrt.InferenceSession(str(tuned[0]), engine="auto", device="cpu", policy=chosen)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"calls": {"k": {"times_us": {"gemv": 10**400}}}}, "must be a positive number"),
        ({"calls": {"k": {"times_us": {"gemv": 1}, "intervals_us": {"gemv": [1]}}}}, "does not read"),
        ({"facts": {"device": 1}}, "must be text"),
        ({"runs": [{"shapes": {}}]}, "predicted_us"),
        ({"runs": [[]]}, "must be an object"),
    ],
)
def test_damaged_files_are_errors(tuned: tuple[Path, Path], change: dict[str, Any], text: str) -> None:
    with pytest.raises(FormatError, match=text):
        KernelTimes.load(json.loads(tuned[1].read_text()) | change)


def test_predictions_need_no_device(tuned: tuple[Path, Path], tmp_path: Path) -> None:
    """Times that are written for a GPU that is not here choose kernels and predict, with their calibration error."""
    model, _ = tuned
    graph = xrt.load_onnx(model)
    from xpuruntime.compiler.locked import KernelLock

    lock = KernelLock()
    xrt.compile(graph, target="cuda:h200", lock=lock)
    calls = {
        k.partition(" ")[0]: {"times_us": {w: 2.0 + i for i, w in enumerate(reversed(words))}}
        for k, words in lock.alternatives.items()
    }
    run = {"shapes": {}, "predicted_us": 6.0, "tuned_us": 8.0, "default_us": 9.0, "rounds": 7}
    data = {"format": "xpuruntime kernel times", "version": 1, "target": "cuda:sm_90", "threads": 1, "calls": calls,
            "facts": {"device": "NVIDIA H200"}, "runs": [run]}  # fmt: skip
    calls.popitem()
    result = predict(model, data, device="h200")
    *words, last = lock.alternatives.values()
    assert [c.kernel for c in result.calls] == [*(w[-1] for w in words), last[0]]
    assert (result.predicted_us, result.unknown) == (2.0 * len(words), 1)
    assert "measured on NVIDIA H200 (cuda:sm_90, 1 thread)" in result.sentence
    assert "calibration error -25.0%: predicted 6.0 us, measured 8.0 us" in result.sentence
    with pytest.raises(InputError, match="needs times of cpu:"):
        predict(model, data, device="cpu")


def test_what_cannot_be_tuned_is_an_error(tuned: tuple[Path, Path], tmp_path: Path) -> None:
    model, file = tuned
    with pytest.raises(InputError, match="Give --bucket batch="):
        tune(net(tmp_path / "open.onnx", "batch"), tmp_path / "t.json", OPTIONS)
    program = xrt.compile(xrt.load_onnx(model), target="cpu")
    program.save(tmp_path / "p.npubin", import_onnx(model)[1])
    with pytest.raises(InputError, match="is a compiled program"):
        tune(tmp_path / "p.npubin", tmp_path / "t.json", OPTIONS)
    with pytest.raises(InputError, match="is a compiled program"):
        predict(tmp_path / "p.npubin", file)
    with pytest.raises(InputError, match="at least one round"):
        tune(model, tmp_path / "t.json", OPTIONS, rounds=0)


# ── engines ──


def tuned_engines(folder: Path, **options: Any) -> tuple[Path, Path, Any]:
    model = net(folder / "net.onnx")
    result = tune(model, folder / "times.json", OPTIONS, rounds=ROUNDS, engines=["onnxruntime"], **options)
    return model, folder / "times.json", result


AUTO = {"engine_order": {"cpu": ["native", "onnxruntime"]}}


def auto(model: Path, file: Path, folder: Path, **execution: Any) -> xrt.InferenceSession:
    options = {"native": {"kernel_times": str(file)}}
    policy = {"version": 1, "execution": {**AUTO, "engine_options": options, **execution}}
    return xrt.InferenceSession(
        model, engine="auto", device="cpu", policy=policy, threads=1, cache_dir=folder
    )


def test_engines_are_measured_in_the_same_file_and_auto_uses_it(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model, file, result = tuned_engines(tmp_path)
    assert (result.finished, result.measured) == (True, 3 * ROUNDS)
    times = KernelTimes.load(file)
    (row,) = times.engines
    assert set(row.times_us) == set(row.versions) == {"native", "onnxruntime"}
    assert (row.rounds, row.shapes) == (ROUNDS, {})
    assert KernelTimes.load(times.to_json()) == times
    for fastest, slowest in (("native", "onnxruntime"), ("onnxruntime", "native")):
        data = json.loads(file.read_text())
        data["engines"][0]["times_us"] = {fastest: 10.0, slowest: 20.0}
        file.write_text(json.dumps(data))
        with xrt.profile() as trace, auto(model, file, tmp_path / fastest) as session:
            decision = session.plan.decision("engine")
        assert decision is not None
        assert decision.chosen is not None
        assert (decision.chosen.name, decision.chosen.code.value) == (f"{fastest} on cpu", "recorded")
        assert "median 10.0 us" in decision.chosen.reason
        assert str(file) in decision.chosen.reason
        assert [(c.name, c.code.value) for c in decision.rejected] == [(f"{slowest} on cpu", "slower")]
        assert not any(s.name.startswith("measure: ") for s in trace.spans)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": "other"}, "its engines were measured on another model"),
        ({"versions": {"native": "0.0.1", "onnxruntime": "1"}}, "native is 0.2.0 here, 0.0.1 in the file"),
        (
            {"times_us": {"native": 1.0}, "versions": {"native": xrt.__version__}},
            "it has no time of onnxruntime",
        ),
    ],
)
def test_times_of_engines_that_do_not_fit_are_said_and_measured_anew(
    tmp_path: Path, change: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("XPU_AUTO_SECONDS", "0.3")
    model, file, _ = tuned_engines(tmp_path)
    data = json.loads(file.read_text())
    data["engines"][0] |= change
    file.write_text(json.dumps(data))
    with xrt.profile() as trace, auto(model, file, tmp_path / "store") as session:
        warnings = session.plan.warnings
    assert any(
        "does not choose the engine" in w and text.replace("0.2.0", xrt.__version__) in w for w in warnings
    )
    assert any(s.name.startswith("measure: ") for s in trace.spans)


def test_a_tuning_of_engines_continues_and_keeps_its_budget(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    _, file, result = tuned_engines(tmp_path, budget_s=1e-9)
    assert (result.finished, result.measured, KernelTimes.load(file).engines) == (False, 1, ())
    lines = (tmp_path / "times.json.journal").read_bytes().splitlines(keepends=True)
    _, file, result = tuned_engines(tmp_path)
    assert (result.finished, result.resumed, result.measured) == (True, 1, 3 * ROUNDS - 1)
    assert len(lines) == 2
    (row,) = KernelTimes.load(file).engines
    assert row.rounds == ROUNDS


def test_an_engine_with_other_outputs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    from xpuruntime.errors import WrongResult
    from xpuruntime.workbench.tune import tuner

    monkeypatch.setattr(tuner, "tolerance_for", lambda *_: 0.0)
    from onnx import helper, numpy_helper

    draw = np.random.default_rng(0)
    weight = numpy_helper.from_array(draw.standard_normal((513, 64)).astype(np.float32), "w")
    ports = [helper.make_tensor_value_info(n, 1, [3, d]) for n, d in (("x", 513), ("y", 64))]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    graph = helper.make_graph([node], "long", ports[:1], ports[1:], [weight])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    with pytest.raises(WrongResult, match="onnxruntime and native give different outputs"):
        tune(tmp_path / "m.onnx", tmp_path / "t.json", OPTIONS, rounds=1, engines=["onnxruntime"])


def test_an_unknown_engine_is_an_error_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(xrt.XpuError, match="tensorr"):
        tune(net(tmp_path / "net.onnx"), tmp_path / "t.json", OPTIONS, engines=["tensorr"])
    with pytest.raises(xrt.XpuError, match="'tensorrt' is not installed"):
        tune(net(tmp_path / "net.onnx"), tmp_path / "t.json", OPTIONS, engines=["tensorrt"], rounds=1)
    assert not (tmp_path / "t.json.journal").exists()
