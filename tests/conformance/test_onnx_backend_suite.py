"""The onnx package's backend suite against the interpreter, sessions, and ONNX -> IR -> ONNX.

Each runs in a process of its own: ONNX Runtime reads its switch for unreleased opsets from the environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

# Right answers per suite that must be reached (onnx 1.23.2, onnxruntime 1.31.1). ONNX Runtime's own count of node cases is 1,397.
FLOORS = {
    "interpreter": {"node": 1800, "simple": 7, "pytorch-converted": 52, "pytorch-operator": 18, "light": 9},
    "session": {"node": 1480, "simple": 17, "pytorch-converted": 59, "pytorch-operator": 24, "light": 9},
    "round-trip": {"node": 1470, "simple": 17, "pytorch-converted": 52, "pytorch-operator": 18, "light": 9},
}
NATIVE_FLOOR = 1800
"""Node cases, of 1,884, that must be compiled to kernels of ours and be right; 1,807 were without passes (onnx 1.23.2)."""
QUICK = "node,simple,pytorch-converted,pytorch-operator"

pytestmark = pytest.mark.timeout(1000)


def coverage(judged: str, *more: str) -> dict:
    command = [
        sys.executable,
        "-m",
        "xpuruntime.testing.conformance.onnx_backend.coverage",
        judged,
        "--json",
        *more,
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def right(found: dict) -> dict[str, int]:
    return {row["suite"]: row["cases"] for row in found["counts"] if row["outcome"] == "right"}


@pytest.mark.sampled(1, group="stratified", one_in=2)
@pytest.mark.parametrize("judged", FLOORS)
def test_a_stratified_tenth_holds(judged: str) -> None:
    found = coverage(judged, "--part", "10", "--kinds", QUICK)
    assert found["unexpected"] == []
    assert sum(right(found).values()) > 150


@pytest.mark.conformance
@pytest.mark.parametrize("judged", FLOORS)
def test_the_whole_suite_holds(judged: str) -> None:
    found = coverage(judged)
    assert found["unexpected"] == []
    reached = right(found)
    assert {
        kind: reached.get(kind, 0) for kind, floor in FLOORS[judged].items() if reached.get(kind, 0) < floor
    } == {}


@pytest.mark.parametrize("judged", ["native", "native-plain"])
def test_a_stratified_twentieth_holds_natively(judged: str) -> None:
    """Kernels of ours, with every pass and with none: nothing wrong, and every refusal with a reason."""
    found = coverage(judged, "--part", "20", "--kinds", "node")
    assert found["unexpected"] == []
    assert right(found)["node"] >= 0.6 * sum(row["cases"] for row in found["counts"])
    refused = sum(row["cases"] for row in found["counts"] if row["outcome"] in ("refused", "opaque"))
    assert sum(found["reasons"].values()) == refused


@pytest.mark.conformance
@pytest.mark.parametrize("judged", ["native", "native-plain"])
def test_the_node_suite_holds_natively(judged: str) -> None:
    found = coverage(judged, "--kinds", "node")
    assert found["unexpected"] == []
    assert right(found)["node"] >= NATIVE_FLOOR


@pytest.mark.sampled(one_in=3)
def test_a_known_case_that_became_right_fails_the_run(tmp_path: Path) -> None:
    """The list is strict: an entry that is no longer needed is unexpected."""
    from xpuruntime.testing.conformance.onnx_backend.coverage import examine, load_known
    from xpuruntime.testing.conformance.onnx_backend.suite import cases

    listed = tmp_path / "known.yaml"
    listed.write_text("interpreter: {noise: {atol: 1.0e-6, cases: [test_abs]}}\n", encoding="utf-8")
    case = next(c for c in cases("node") if c.name == "test_abs")
    _, said = examine(case, "interpreter", load_known(listed, "interpreter"))
    assert said == "is right: remove it from the list of known cases (noise)"


def test_an_unknown_reason_is_refused(tmp_path: Path) -> None:
    from xpuruntime.testing.conformance.onnx_backend.coverage import load_known

    listed = tmp_path / "known.yaml"
    listed.write_text("session: {flaky: {cases: [test_abs]}}\n", encoding="utf-8")
    with pytest.raises(
        ValueError, match="reason 'flaky' is not one of random, rounding, noise, vendor, no-tensor"
    ):
        load_known(listed, "session")
