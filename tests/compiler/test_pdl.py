"""Which launches begin alone, so that what others read before their turn is there."""

from __future__ import annotations

from xpuruntime.compiler.calls import StageCall
from xpuruntime.compiler.memory import Memory
from xpuruntime.compiler.pdl import order_early_reads
from xpuruntime.kernels.kernel import Stage
from xpuruntime.program.program import BufferKind
from xpuruntime.types import TensorSpec

KINDS = {
    "input": BufferKind.INPUT,
    "state": BufferKind.STATE,
    "a": BufferKind.SCRATCH,
    "b": BufferKind.SCRATCH,
}


def call(reads: str, writes: str, early: str | None = None, pdl: bool = True) -> StageCall:
    """A call of one word per buffer; ``early``: those of ``reads`` and ``writes`` that it reads before its turn."""
    inputs, outputs = tuple(reads.split()), tuple(writes.split())
    args = (*(f"in{i}" for i in range(len(inputs))), *(f"out{i}" for i in range(len(outputs))))
    options: dict[str, object] = {"pdl": pdl} if early is None else {"pdl": False}
    if early is not None:
        options["prologue_reads"] = [
            a for a, name in zip(args, (*inputs, *outputs), strict=True) if name in early.split()
        ]
    return StageCall("k", Stage("k", "", args, 1, options=options), inputs, outputs, (), ())


def begins(*calls: StageCall) -> str:
    """For each call whether it may begin before its turn."""
    memory = Memory()
    spec = TensorSpec.parse("float32[4]")
    for name, kind in KINDS.items():
        memory.declare(name, kind, spec)
    memory.alias("view", spec, "a")
    made = order_early_reads(calls, memory)
    assert not any("prologue_reads" in c.stage.options for c in made)
    return "".join("+" if c.stage.options.get("pdl") else "-" for c in made)


def test_the_first_reader_of_a_state_begins_alone_and_others_after_it_do_not() -> None:
    assert (
        begins(call("input", "a"), call("a", "state", "state"), call("a", "b"), call("b", "state", "b"))
        == "+-+-"
    )
    assert (
        begins(call("input", "a"), call("a", "state", "state a"), call("a", "b"), call("b", "state", "a"))
        == "+-++"
    )
    assert begins(call("input", "a", "input"), call("a", "b", "input")) == "-+"


def test_what_this_run_wrote_since_then_is_waited_for() -> None:
    assert (
        begins(call("a", "state", "state"), call("a", "state", "state"), call("state", "b", "state")) == "---"
    )
    assert begins(call("state", "b", "state"), call("input", "a"), call("view", "b", "view")) == "-+-"
    assert begins(call("state", "b", "state"), call("input", "view"), call("a", "b", "a")) == "-+-"


def test_launches_that_are_alone_anyway_serve_too() -> None:
    assert begins(call("input", "a"), call("a", "b", pdl=False), call("b", "state", "state a")) == "+-+"
    assert begins(call("input", "a"), call("a", "b", pdl=False), call("b", "state", "state b")) == "+--"


def test_calls_without_such_reads_stay_as_they_are() -> None:
    assert begins(call("input", "a"), call("a", "b", pdl=False), call("b", "state")) == "+-+"
