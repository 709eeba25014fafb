"""``tune(regions=True)``: placements in the same journal, which continues after kills, and sessions that take the fastest one from the file."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.compiler.times import KernelTimes
from xpuruntime.decisions import Candidate, Reason
from xpuruntime.engines import lookup
from xpuruntime.errors import FormatError, InputError, WrongResult
from xpuruntime.frontends.onnx_writer import to_onnx
from xpuruntime.inference.partitioned import placement_times
from xpuruntime.ir import GraphBuilder
from xpuruntime.workbench.session_options import SessionOptions
from xpuruntime.workbench.tune import tune, tuner
from xpuruntime.workbench.tune.journal import read_records

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

OPTIONS, ROUNDS = SessionOptions(device="cpu", threads=1), 2
X = np.random.default_rng(5).standard_normal((1, 8, 12, 12)).astype(np.float32)


def net(path: Path) -> Path:
    """Convolutions, a pool, and a product with a softmax."""
    draw = np.random.default_rng(3)
    b, weights = GraphBuilder("net"), dict[str, Any]()

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        weights[name] = (draw.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        return str(b.weight(name, f"float32{list(shape)}"))

    h = b.input("x", "float32[1, 8, 12, 12]")
    for _ in range(3):
        h = b.relu(b.convolution(h, weight(8, 8, 3, 3), stride=[1, 1], padding=[1, 1], dilation=[1, 1]))
    h = b.max_pool(h, kernel_size=[2, 2], stride=[2, 2], padding=[0, 0], dilation=[1, 1])
    b.output("y", b.softmax(b.linear(b.mean(h, dim=[2, 3]), weight(10, 8)), dim=-1))
    onnx.save(to_onnx(b.build(), weights), path)
    return path


def tuned(folder: Path, **options: Any) -> tuple[Path, Path, Any]:
    model, file = net(folder / "net.onnx"), folder / "times.json"
    arguments = {"rounds": ROUNDS, "engines": ["onnxruntime"], "regions": True, "budget_s": 300.0, **options}
    return model, file, tune(model, file, OPTIONS, **arguments)


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and the file of its times, in which a mix has a time: onnxruntime has the pool."""
    folder = tmp_path_factory.mktemp("placed")
    model, file, result = tuned(folder)
    assert result.finished
    data = json.loads(file.read_text())
    (row,) = data["placements"]
    assert {"native", "onnxruntime"} <= set(row["times_us"])
    assert set(row["nodes"]) == set(row["times_us"]) - {"native", "onnxruntime"}
    assert set(row["versions"]) == {"native", "onnxruntime"}
    names = [n.name for n in xrt.load_onnx(str(model)).nodes if n.op != "constant"]
    pool = [n for n in names if "pool" in n]
    assert pool
    rest = [n for n in names if n not in pool]
    row["nodes"] = {"the mix": {"onnxruntime": pool, "native": rest}}
    row["times_us"] = {"native": 20.0, "onnxruntime": 30.0, "the mix": 10.0}
    row["intervals_us"] = {}
    file.write_text(json.dumps(data))
    return model, file


def session(
    model: Path, file: Path, folder: Path, place: Any = None, order: Any = ("native", "onnxruntime")
) -> xrt.InferenceSession:
    execution = {
        "place": place or {"*": "auto"},
        "engine_order": {"cpu": list(order)},
        "engine_options": {"native": {"kernel_times": str(file)}},
    }
    policy = {"version": 1, "execution": execution}
    return xrt.InferenceSession(model, device="cpu", policy=policy, threads=1, cache_dir=folder)


def changed(file: Path, folder: Path, **fields: Any) -> Path:
    """Write a copy of the file with other fields of its placement."""
    data = json.loads(file.read_text())
    data["placements"][0] |= fields
    other = folder / "changed.json"
    other.write_text(json.dumps(data))
    return other


def test_the_fastest_placement_runs_and_nothing_is_measured(
    placed: tuple[Path, Path], tmp_path: Path
) -> None:
    model, file = placed
    want = xrt.InferenceSession(model, engine="onnxruntime", device="cpu", threads=1).run({"x": X})["y"]
    with xrt.profile() as trace, session(model, file, tmp_path) as mixed:
        np.testing.assert_allclose(mixed.run({"x": X})["y"], want, rtol=1e-4, atol=1e-5)
        decision, plan = mixed.plan.decision("engine"), mixed.plan
        lock = mixed.lock()
    assert [r.engine for r in plan.regions] == ["native", "onnxruntime", "native"]
    assert decision is not None
    assert decision.chosen is not None
    assert decision.chosen.code.value == "recorded"
    assert "median 10.0 us" in decision.chosen.reason
    assert [(c.name, c.code.value) for c in decision.rejected] == [
        ("native", "slower"),
        ("onnxruntime", "slower"),
    ]
    assert not any(s.name.startswith("measure: ") for s in trace.spans)
    assert lock.kernel_times["file"] == str(file)
    assert len(lock.regions) == 3


def test_a_mix_that_is_not_clearly_faster_is_not_taken(placed: tuple[Path, Path], tmp_path: Path) -> None:
    model, file = placed
    times = {"native": 10.1, "onnxruntime": 30.0, "the mix": 10.0}
    with session(model, changed(file, tmp_path, times_us=times), tmp_path) as single:
        assert [r.engine for r in single.plan.regions] == ["native"]


def test_each_placement_that_is_not_chosen_has_its_own_reason(
    placed: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, file = placed
    row = json.loads(file.read_text())["placements"][0]
    first, *rest = (n for nodes in row["nodes"]["the mix"].values() for n in nodes)
    times = {
        "theirs": 5.0,  # an engine of a package that is not installed
        "with openvino": 6.0,  # which the session does not use
        "unbuilt": 7.0,
        "close": 9.9,
        "native": 10.0,
        "onnxruntime": 30.0,
        "the mix": 40.0,
    }
    nodes = {
        **row["nodes"],
        "with openvino": {"openvino": [first], "native": rest},
        "unbuilt": {"onnxruntime": [first], "native": rest},
        "close": {"onnxruntime": [rest[-1]], "native": [first, *rest[:-1]]},
    }
    mixed_of = placement_times.mixed_of
    homes = {n: e for e, names in nodes["unbuilt"].items() for n in names}

    def building(model: Any, plan: Any, *rest: Any) -> Any:
        if {n: r.engine for r in plan.regions for n in plan.members[r.id]} == homes:
            return Candidate("some regions", Reason.BUILD_FAILED, "its compiler ended")
        return mixed_of(model, plan, *rest)

    monkeypatch.setattr(placement_times, "mixed_of", building)
    with session(
        model,
        changed(
            file,
            tmp_path,
            times_us=times,
            nodes=nodes,
            versions=row["versions"] | {"theirs": "1", "openvino": "1"},
        ),
        tmp_path,
    ) as opened:
        decision = opened.plan.decision("engine")
    assert decision is not None
    assert decision.chosen is not None
    assert decision.chosen.name == "native on cpu"
    absent = Reason.NOT_REQUESTED if lookup("openvino").installed() else Reason.NOT_INSTALLED
    assert [(c.name, c.code) for c in decision.rejected] == [
        ("theirs", Reason.NOT_INSTALLED),
        ("with openvino", absent),
        ("unbuilt", Reason.BUILD_FAILED),
        ("close", Reason.LOWER_PREFERENCE),
        ("onnxruntime", Reason.SLOWER),
        ("the mix", Reason.SLOWER),
    ]
    assert "0.990x the time of native: not clearly less" in decision.rejected[3].reason


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"model": "other"}, "its engines were measured on another model"),
        ({"place": {"relu": "native"}}, "its engines were measured on another model"),
        (
            {"versions": {"native": "0.0.1", "onnxruntime": "1"}},
            f"native is {xrt.__version__} here, 0.0.1 in the file",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_said_and_measured_anew(
    placed: tuple[Path, Path], tmp_path: Path, fields: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XPU_AUTO_SECONDS", "0.1")
    model, file = placed
    with xrt.profile() as trace, session(model, changed(file, tmp_path, **fields), tmp_path) as opened:
        assert any("does not place the model" in w and text in w for w in opened.plan.warnings)
    assert any(s.name.startswith("measure: ") for s in trace.spans)


@pytest.mark.parametrize(
    "fields",
    [
        {"times_us": {}},
        {"nodes": {"the mix": {"openvino": []}}},
        {"times_us": {"native": -1.0}},
        {"nodes": []},
        {"rounds": "many"},
    ],
)
def test_damaged_files_are_errors(placed: tuple[Path, Path], tmp_path: Path, fields: Any) -> None:
    with pytest.raises(FormatError, match="does not read"):
        KernelTimes.load(changed(placed[1], tmp_path, **fields))


def test_a_file_is_read_back_equal(placed: tuple[Path, Path]) -> None:
    times = KernelTimes.load(placed[1])
    assert KernelTimes.load(times.to_json()) == times
    assert times.placements[0].homes("the mix")


KILLED = """
    import os, random, signal, sys, threading
    from pathlib import Path
    from xpuruntime.workbench.tune import tune
    from xpuruntime.workbench.tune.journal import Journal
    from xpuruntime.workbench.session_options import SessionOptions
    model, output, draw = sys.argv[1], Path(sys.argv[2]), random.Random(int(sys.argv[3]))
    journal, seen = output.with_name(output.name + ".journal"), []
    def measure():
        return tune(model, output, SessionOptions(device="cpu", threads=1), rounds=3, engines=["onnxruntime"], regions=True, budget_s=300)
    def lines():
        return journal.read_bytes().split(b"\\n")[:-1] if journal.exists() else []
    def killed_after(rounds, delay):
        add, added = Journal.add, []
        def counted(self, done):
            add(self, done)
            added.append(done)
            if len(added) == rounds:
                threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        Journal.add = counted
        measure()
        os.kill(os.getpid(), signal.SIGKILL)  # all was measured before the delay
    for kill in range(4):
        child = os.fork()
        if child == 0:
            killed_after(draw.randint(1, 3), draw.random() / 100)
        draw.random(), draw.random()  # the child drew from a copy
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        if not journal.exists():
            break
        assert lines()[: len(seen)] == seen, "a finished measurement was repeated or lost"
        seen = lines()
        Path(sys.argv[4]).write_bytes(journal.read_bytes())
    resumed = max(len(lines()) - 1, 0)
    result = measure()
    print(kill, resumed, result.resumed, result.measured, result.finished, journal.exists())
"""


@pytest.mark.sampled(one_in=3)
def test_kills_repeat_no_measurement_and_propose_the_same_mixes(tmp_path: Path) -> None:
    model, seed = net(tmp_path / "net.onnx"), random.randrange(1 << 30)
    arguments = [str(model), str(tmp_path / "times.json"), str(seed), str(tmp_path / "last.journal")]
    line = [sys.executable, "-c", textwrap.dedent(KILLED), *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-2000:]}"
    kills, before, resumed, measured, finished, journal = done.stdout.split()[-6:]
    assert int(kills) >= 1
    assert (resumed, finished, journal) == (before, "True", "False")
    assert int(resumed) + int(measured) > 0
    _, rounds = read_records((tmp_path / "last.journal").read_bytes())
    sides: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for r in rounds:
        sides[r.stage].add(tuple(sorted(r.times_us)))
    assert len({(r.stage, r.index) for r in rounds}) == len(rounds)
    assert all(len(s) == 1 for s in sides.values()), f"seed {seed}: another process proposed other mixes"
    assert KernelTimes.load(tmp_path / "times.json").placements[0].rounds == 3


def test_a_spent_budget_writes_what_it_has_and_continues(tmp_path: Path) -> None:
    _, file, result = tuned(tmp_path, budget_s=1e-9)
    assert (result.finished, result.measured, KernelTimes.load(file).placements) == (False, 1, ())
    _, file, result = tuned(tmp_path)
    assert (result.finished, result.resumed) == (True, 1)
    assert len(KernelTimes.load(file).placements) == 1


def test_a_mix_with_other_outputs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    check = tuner._check_outputs

    def wrong(tunable: Any, side: str, outputs: Any) -> None:
        seen.append(side)
        check(tunable, side, [o + 1 for o in outputs] if "regions" in side or len(seen) == 3 else outputs)

    monkeypatch.setattr(tuner, "_check_outputs", wrong)
    with pytest.raises(WrongResult, match="give different outputs"):
        tuned(tmp_path)


def test_what_cannot_be_placed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs engines"):
        tuned(tmp_path, engines=[])
    with pytest.raises(InputError, match="one set of sizes"):
        tuned(tmp_path, buckets=[{"n": 1}, {"n": 2}])
