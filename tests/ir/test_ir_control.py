"""``cond`` and ``loop``: text and JSON, laws, what the interpreter computes, and symbols of sizes that only a run knows."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.errors import FormatError, IrError
from xpuruntime.ir import interp
from xpuruntime.ir.ops.control import depth_of
from xpuruntime.ir.shapes.settle import settled

COND = """\
graph "net" {
  input %c: bool[]
  input %x: float32[n, 4]
  %y: float32[n, 4] = cond(%c, %x, then_branch=graph "a" {
    input %x: float32[n, 4]
    %t: float32[n, 4] = relu(%x)
    output "0" = %t
  }, else_branch=graph "b" {
    input %x: float32[n, 4]
    %t: float32[n, 4] = neg(%x)
    output "0" = %t
  })
  output "y" = %y
}
"""
GROWS = """\
graph "net" {
  input %n: int64[]
  input %x: float32[2, 3]
  %y: float32[u0, 3], %rows: float32[u1, 3] = loop(%n, none, %x, body=graph "body" {
    input %i: int64[]
    input %s: float32[k, 3]
    %t: float32[2*k, 3] = cat(%s, %s, dim=0)
    %f: float32[] = cast(%i, dtype=float32)
    %r: float32[3] = select(%s, dim=0, index=0)
    %q: float32[3] = add(%r, %f)
    output "0" = %t
    output "1" = %q
  }, carried=1, sizes=[<u0>, 0, <u1>, 0])
  output "y" = %y
  output "rows" = %rows
}
"""


def test_text_json_and_digest() -> None:
    for text in (COND, GROWS):
        graph = ir.parse(text)
        assert str(graph) == text
        assert ir.Graph.from_json(graph.to_json()) == graph
        assert depth_of(graph) == 1
    assert ir.parse(COND).digest != ir.parse(COND.replace("neg(", "abs(")).digest


def test_a_branch_is_chosen_at_run_time() -> None:
    graph, x = ir.parse(COND), np.array([[-1, 2, -3, 4]], np.float32)
    assert interp.run(graph, {"c": np.array(True), "x": x})["y"].tolist() == [[0, 2, 0, 4]]
    assert interp.run(graph, {"c": np.array(False), "x": x})["y"].tolist() == [[1, -2, 3, -4]]
    exact = interp.run(graph, {"c": np.array(False), "x": x}, exact=True)["y"]
    assert exact.dtype == np.float64


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_a_loop_grows_what_it_carries(trips: int) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    results = interp.run(ir.parse(GROWS), {"n": np.array(trips), "x": x})
    assert results["y"].shape == (2 * 2**trips, 3)
    assert results["rows"].tolist() == [[i, 1 + i, 2 + i] for i in range(trips)]


def test_the_condition_and_the_body_end_a_loop() -> None:
    text = """
    graph "count" {
      input %going: bool[]
      input %x: int64[]
      %y: int64[] = loop(none, %going, %x, body=graph "body" {
        input %i: int64[]
        input %s: int64[]
        %t: int64[] = add(%s, %i)
        %b: bool[] = lt(%t, 10)
        output "0" = %b
        output "1" = %t
      }, carried=1, checked=true)
      output "y" = %y
    }
    """
    graph = ir.parse(text)
    assert interp.run(graph, {"going": np.array(True), "x": np.array(1)})["y"] == 11
    assert interp.run(graph, {"going": np.array(False), "x": np.array(1)})["y"] == 1


def test_sizes_settle_when_dims_are_known() -> None:
    text = COND.replace("%y: float32[n, 4]", "%y: float32[u0, 4]", 1).replace(
        "%t: float32[n, 4] = neg(%x)", "%t: float32[2*n, 4] = cat(%x, %x, dim=0)"
    )
    text = text.replace("else_branch", "sizes=[<u0>, 0], else_branch")
    graph = ir.parse(text)
    assert str(graph.spec("y")) == "float32[u0, 4]"
    assert str(settled(ir.specialize(graph, {"n": 3})).spec("y")) == "float32[u0, 4]"
    assert str(settled(ir.specialize(graph, {"n": 0})).spec("y")) == "float32[0, 4]"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("%c: bool[]", "%c: bool[1]", "the condition must be one bool"),
        ("input %x: float32[n, 4]\n    %t: float32[n, 4] = neg", "input %x: float32[n, 5]\n    %t: float32[n, 5] = neg", "another shape"),
        ("cond(%c, %x,", "cond(%c,", "another number of inputs"),
        ('output "0" = %t\n  }, else', 'output "0" = %t\n    output "1" = %t\n  }, else', "same number of results"),
        ("= neg(%x)", "= neg(%w)", "not a valid graph"),
    ],
)  # fmt: skip
def test_what_a_branch_must_be(old: str, new: str, problem: str) -> None:
    with pytest.raises(IrError, match=problem):
        ir.parse(COND.replace(old, new, 1))


def test_what_a_loop_must_be() -> None:
    for old, new, problem in (
        ("loop(%n, none,", "loop(none, none,", "has no end"),
        ("carried=1", "carried=2", "carried must be a number of operands"),
        ("sizes=[<u0>, 0, <u1>, 0]", "sizes=[]", "known only at run time"),
        ("input %i: int64[]", "input %i: int32[]", "number of the iteration"),
        ('output "0" = %t', 'output "0" = %q', "changes its type"),
    ):
        with pytest.raises(IrError, match=problem):
            ir.parse(GROWS.replace(old, new, 1))


def test_stacked_results_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["xpuruntime.ir.interp.evaluate"], "_MAX_STACKED", 1000)
    text = GROWS.replace("%t: float32[2*k, 3] = cat(%s, %s, dim=0)", "%t: float32[k, 3] = relu(%s)")
    feeds = {"n": np.array(2**40), "x": np.zeros((2, 3), np.float32)}
    with pytest.raises(IrError, match="stacked results exceed 0 GiB after 84 iterations"):
        interp.run(ir.parse(text), feeds)


def test_nesting_is_bounded() -> None:
    text = COND
    for _ in range(13):
        inner = text[text.index("%y") : text.index('  output "y"')]
        text = COND.replace(
            "%t: float32[n, 4] = relu(%x)",
            inner.replace("cond(%c, %x", "cond(%k, %x").replace("%y", "%t", 1),
            1,
        ).replace(
            "input %x: float32[n, 4]\n    %t",
            "input %x: float32[n, 4]\n    %k: bool[] = constant(value=bool[]{true})\n    %t",
            1,
        )
    with pytest.raises((FormatError, IrError), match="nested more than 12 levels deep"):
        ir.parse(text)
