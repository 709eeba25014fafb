"""The suite of foreign models: what becomes of a network that fails, going on from a file, and a sample of real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xpuruntime.errors import InputError
from xpuruntime.testing.conformance import conformance, models
from xpuruntime.testing.conformance.finding import FAILURES, CaseFinding
from xpuruntime.testing.conformance.models import judge, pool
from xpuruntime.testing.conformance.models.cases import ModelCase, Options, Task
from xpuruntime.testing.conformance.subject import subject

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def odd_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """``odd_networks`` can be imported, in other processes too."""
    monkeypatch.syspath_prepend(Path(__file__).parent)


def judged(sample: int = 0, **options: Any) -> dict[str, CaseFinding]:
    return {f.case: f for f in models.findings(subject("cpu"), sample, 0, Options(**options))}


def test_a_network_that_fails_is_a_finding_and_not_the_end(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    asked: dict[str, Any] = {
        "sources": ("odd_networks",),
        "torch_seconds": 60,
        "workers": 2,
        "results": str(file),
    }
    found = judged(**{**asked, "only": ("plain", "unbuilt", "crash", "changes")})
    right = [c for c, f in found.items() if f.outcome == "right"]
    assert right == [
        f"odd_networks/plain cpu {rest}" for rest in ("float32 batch 2", "float16 batch 2", "float32 batch 1", "float32 batch open")
    ], found  # fmt: skip
    other = {c: f for c, f in found.items() if c not in right}
    assert {f.outcome for f in other.values()} == {"not run"}
    assert other["odd_networks/unbuilt"].why == "build: ValueError: no such size"
    assert other["odd_networks/crash"].why == "build: the process ended with -6"
    assert other["odd_networks/changes"].why == "export: RuntimeError: torch.export changes the result"

    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]) + lines[-1][:20])  # ended while it wrote
    again = judged(**{**asked, "only": ("plain", "unbuilt", "crash", "changes")})
    assert again == found
    file.write_text(json.dumps({"torch": "1.0"}) + "\n")
    with pytest.raises(InputError, match="were written with other versions"):
        judged(**asked)


def test_options_are_accepted_under_their_former_name() -> None:
    options = Options(sources=("odd_networks",), only=("no_such_network",))
    with (
        pytest.warns(DeprecationWarning, match="networks_of=\\) is now model_options="),
        pytest.raises(InputError, match="no such network; got no_such_network"),
    ):
        conformance("cpu", suites=("models",), networks_of=options)


def test_what_takes_too_long_is_ended() -> None:
    found = judged(sources=("odd_networks",), only=("endless",), torch_seconds=5, workers=1)
    assert found["odd_networks/endless"].why == "build: PyTorch takes over 5 s"


def test_ends_of_processes_count_against_whoever_worked() -> None:
    task = Task("timm", "net", "native", (ModelCase("cpu", "float32", "2"),))

    class Process:
        exitcode = -11

    worker = pool._Worker(task, Process(), None)  # type: ignore[arg-type]
    worker.stage = "export"
    assert pool._died(worker) == CaseFinding("timm/net", "not run", "export: the process ended with -11")
    worker.stage = task.name(task.cases[0])
    assert pool._died(worker) == CaseFinding(
        "timm/net cpu float32 batch 2", "killed", "the process ended with -11"
    )
    late = pool._late(worker, Options(each=7))
    assert (late.case, late.outcome, late.why) == ("timm/net cpu float32 batch 2", "slow", "took over 7 s")


@pytest.mark.parametrize(
    ("first", "others", "outcome", "runs"),
    [
        (1.9, (9.0,) * 7, "right", 1),
        (2.5, (1.5,) * 7, "right", 8),
        (2.5, (2.5,) * 7, "wrong", 8),
        (2.5, (0.5,) * 6 + (30.0,), "right", 8),
        (2.5, (0.5,) * 6 + (50.0,), "wrong", 8),
        (2.5, (1.0,) * 6 + (float("nan"),), "wrong", 8),
        (4.5, (1.0,) * 7, "wrong", 1),
    ],
)
def test_a_case_just_over_its_limit_is_judged_on_more_inputs(
    first: float, others: tuple[float, ...], outcome: str, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's own error is 0.01 everywhere; ours a multiple of it, and another on other inputs."""
    task = Task("odd_networks", "plain", "native", (ModelCase("cpu", "float32", "2"),))
    network = judge._Network(task, "2", lambda kind, value: None)
    seen: list[Any] = []

    def ours(one: Any, case: ModelCase) -> float:
        seen.append(one.inputs[0])
        assert torch.equal(one.exact[0], network.module.double()(one.inputs[0].double()).detach())
        network.module.float()
        return 0.01 * (first, *others)[len(seen) - 1]

    monkeypatch.setattr(judge, "_session_error", ours)
    monkeypatch.setattr(judge._Network, "torch_error", lambda self, precision, device: 0.01)
    assert judge._finding(network, task.cases[0]).outcome == outcome
    assert len(seen) == runs == len({t.numpy().tobytes() for t in seen})


@pytest.mark.timeout(2400)
def test_a_sample_by_the_commit_is_not_wrong(seed: str) -> None:
    """Other types with every commit; those that PyTorch here does not build or export did not run."""
    pytest.importorskip("transformers")
    found = judged(
        1,
        sources=("transformers",),
        precisions=("float32",),
        batches=("2",),
        seed=seed,
        each=600,
        torch_seconds=120,
    )
    assert found
    assert not [f for f in found.values() if f.outcome in FAILURES]


def test_a_network_that_no_library_has_is_an_error() -> None:
    with pytest.raises(InputError, match=r"no such network; got no_such_network"):
        judged(sources=("odd_networks",), only=("plain", "no_such_network"))
