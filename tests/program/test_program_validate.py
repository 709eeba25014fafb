"""Every rule of a program, broken once by hand; and a plan that obeys them all."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from xpuruntime.errors import FormatError
from xpuruntime.program.program import (
    Binary,
    BufferAllocation,
    BufferKind,
    CompiledProgram,
    EntryPoint,
    ExecutionPlan,
    GoldenSample,
    KernelCall,
    KernelParam,
    RecipeStep,
    StateRef,
    WeightRef,
    WeightTransformRecipe,
)
from xpuruntime.program.validate import problems, validate
from xpuruntime.types import DType, Layout, TensorSpec

F4 = TensorSpec((16,), DType.FLOAT32)  # 64 bytes
F8 = TensorSpec((32,), DType.FLOAT32)


def buffer(
    name: str,
    kind: str,
    spec: TensorSpec = F4,
    root: str = "",
    offset: int = 0,
    live: tuple[int, int] = (0, 4),
) -> BufferAllocation:
    return BufferAllocation(name, BufferKind(kind), spec, spec.size_bytes or 0, root or name, offset, *live)


BUFFERS = (
    buffer("x", "input"),
    buffer("r", "weight"),
    buffer("s", "state"),
    buffer("s.next", "state", root="s"),
    buffer("a", "scratch", F8, live=(0, 2)),
    buffer("a.half", "scratch", root="a", offset=64, live=(0, 2)),
    buffer("b", "scratch", offset=128, live=(1, 3)),
    buffer("c", "scratch", offset=0, live=(3, 4)),
    buffer("y", "output"),
)
CALLS = (
    KernelCall("k/a", "f", ("x", "r"), ("a",)),
    KernelCall("k/b", "f", ("a",), ("b",)),
    KernelCall(
        "k/c", "f", ("a.half", "s"), ("s.next",), (KernelParam("n", "i64", 3), KernelParam("e", "f64", 0.5))
    ),
    KernelCall("k/d", "gemm", ("b",), ("c",), library="onednn"),
    KernelCall("k/e", "f", ("c", "s.next"), ("y",)),
)
PLAN = ExecutionPlan("cpu:x86-64-v4", 0, CALLS, BUFFERS, 192, 8)
X, Y = replace(F4, name="x"), replace(F4, name="y")
ENTRY = EntryPoint("main", (X,), (Y,), ("x",), ("y",), (PLAN,))
WEIGHT = WeightRef("w", F4, "w.safetensors", "safetensors")
RECIPE = WeightTransformRecipe("r", F4, "w", (RecipeStep("neg", ("%in",)),))
BINARY = Binary("cpu:x86-64-v4", "elf-x86-64", ("avx2",), ("f",), b"\x7fELF")
GOOD = CompiledProgram("p", (ENTRY,), (WEIGHT,), (RECIPE,), (StateRef("s", F4, "r"),), (BINARY,))


def plan(**changes: Any) -> CompiledProgram:
    return replace(GOOD, entries=(replace(ENTRY, plans=(replace(PLAN, **changes),)),))


def call(at: int, **changes: Any) -> CompiledProgram:
    return plan(calls=tuple(replace(c, **changes) if i == at else c for i, c in enumerate(CALLS)))


def buf(name: str, **changes: Any) -> CompiledProgram:
    return plan(buffers=tuple(replace(b, **changes) if b.name == name else b for b in BUFFERS))


def entry(**changes: Any) -> CompiledProgram:
    return replace(GOOD, entries=(replace(ENTRY, **changes),))


def weight(**changes: Any) -> CompiledProgram:
    return replace(GOOD, weights=(replace(WEIGHT, **changes),))


def test_the_program_that_the_others_change_is_valid() -> None:
    assert list(problems(GOOD)) == []


SYMBOLIC = TensorSpec.parse("float32[n]")
PADDED = replace(F4, layout=Layout((0,), (17,)))
BROKEN = [
    (replace(GOOD, entries=()), "it has no entry point"),
    (replace(GOOD, entries=(ENTRY, ENTRY)), "duplicate entry point 'main'"),
    (replace(GOOD, weights=(WEIGHT, WEIGHT)), "duplicate weight 'w'"),
    (replace(GOOD, recipes=(RECIPE, RECIPE)), "duplicate buffer 'r'"),
    (replace(GOOD, states=(StateRef("r", F4),)), "duplicate buffer 'r'"),
    (weight(spec=SYMBOLIC), "weight 'w': has no dense, static spec"),
    (weight(spec=PADDED), "weight 'w': has no dense, static spec"),
    (weight(data=b"abc"), "weight 'w': has 3 bytes, but float32[16] needs 64"),
    (weight(file="../w"), "weight 'w': names a file outside the program's folder: '../w'"),
    (weight(file="a/../../w"), "names a file outside"),
    (weight(file="/etc/passwd"), "names a file outside"),
    (weight(file="C:\\w"), "names a file outside"),
    (weight(file="..\\w"), "names a file outside"),
    (weight(file="a\0b"), "names a file outside"),
    (weight(format=""), "has the format '' for the file 'w.safetensors'"),
    (weight(format="pickle"), "has the format 'pickle'"),
    (weight(digest="abc"), "has no sha256: 'abc'"),
    (weight(offset=-1), "has the invalid offset -1"),
    (replace(GOOD, recipes=(replace(RECIPE, source="v"),)), "recipe 'r': step 0 (neg): reads 'v', which is not a weight"),
    (replace(GOOD, recipes=(replace(RECIPE, steps=(RecipeStep("what", ()),)),)), "recipe 'r': step 0 (what): is not a step"),
    (replace(GOOD, recipes=(replace(RECIPE, spec=F8),)), "recipe 'r': the steps make float32[16], the buffer is float32[32]"),
    (replace(GOOD, states=(StateRef("s", F8, "r"),)), "state 's': is initialized from 'r', but no recipe creates it as float32[32]"),
    (replace(GOOD, states=(StateRef("s", F4, "q"),)), "state 's': is initialized from 'q'"),
    (replace(GOOD, states=(StateRef("s", SYMBOLIC),)), "state 's': has no size"),
    (replace(GOOD, binaries=(replace(BINARY, data=b""),)), "binary 0 (cpu:x86-64-v4): is empty"),
    (replace(GOOD, binaries=(replace(BINARY, data=b"MZ"),)), "is not an ELF object, but its format is elf-x86-64"),
    (replace(GOOD, binaries=(replace(BINARY, symbols=("f", "f")),)), "duplicate symbol 'f'"),
    (replace(GOOD, binaries=(replace(BINARY, symbols=("g",)),)), "call 0 (k/a): calls 'f', which its binary does not have"),
    (replace(GOOD, binaries=()), "names binary 0 of 0"),
    (entry(inputs=(X, X), input_buffers=("x", "x")), "duplicate input 'x'"),
    (entry(input_buffers=()), "has 1 inputs and 0 input buffers"),
    (entry(inputs=(F4,)), "input '' is not named, static and dense"),
    (entry(outputs=(replace(Y, layout=PADDED.layout),)), "output 'y' is not named, static and dense"),
    (entry(plans=()), "has no plan"),
    (entry(inputs=(replace(F8, name="x"),)), "input 'x' has no dense buffer 'x' of float32[32]"),
    (entry(input_buffers=("a",)), "input 'x' has no dense buffer 'a'"),
    (entry(output_buffers=("c",)), "output 'y' has no dense buffer 'c'"),
    (plan(binary=-2), "names binary -2 of 1"),
    (plan(binary=-1), "call 0 (k/a): calls 'f', which its binary does not have"),
    (plan(batch=0), "has a batch of 0 calls"),
    (plan(batch=2**31), "has a batch of 2147483648 calls"),
    (plan(calls=(replace(CALLS[0], outputs=("q", "q2")),), buffers=(*BUFFERS, *(replace(buffer(n, "scratch"), root="nowhere") for n in ("q", "q2")))), "buffer 'q' is in 'nowhere'"),
    (plan(arena_bytes=-1), "an arena of -1 bytes"),
    (plan(arena_bytes=128), "buffer 'b' at 128 with 64 bytes is outside the arena of 128 bytes"),
    (plan(buffers=(*BUFFERS, BUFFERS[0])), "duplicate buffer 'x'"),
    (buf("b", root="nowhere"), "buffer 'b' is in 'nowhere', which is not a buffer with its own memory"),
    (buf("b", root="a.half"), "buffer 'b' is in 'a.half', which is not a buffer with its own memory"),
    (buf("b", size_bytes=65), "buffer 'b' has 65 bytes, but float32[16] needs 64"),
    (buf("b", spec=F8), "buffer 'b' has 64 bytes, but float32[32] needs 128"),
    (buf("b", offset=130), "buffer 'b' at 130 with"),
    (buf("b", offset=-64), "buffer 'b' at -64 with"),
    (buf("a.half", offset=66), "buffer 'a.half' is at 66, which is not a multiple of its dtype's size"),
    (buf("a.half", offset=68), "buffer 'a.half' at 68 with an extent of 64 bytes is outside 'a' (0 + 128)"),
    (buf("a.half", kind=BufferKind.OUTPUT), "buffer 'a.half' is output, but it is in 'a', which is scratch"),
    (buf("s.next", offset=4), "buffer 's.next' at 4 with an extent of 64 bytes is outside 's' (0 + 64)"),
    (buf("x", offset=64), "buffer 'x' has its own memory, so its offset must be 0, not 64"),
    (buf("b", first=4, last=3), "buffer 'b' lives from call 4 to 3 of 5"),
    (buf("b", last=99), "buffer 'b' lives from call 1 to 99 of 5"),
    (buf("b", last=2), "buffer 'b' lives from call 1 to 2, but calls 1 to 3 touch it"),
    (buf("b", offset=64), "buffers 'a' and 'b' overlap in the arena while both live"),
    (buf("c", offset=128), "buffers 'b' and 'c' overlap in the arena while both live"),
    (buf("r", spec=PADDED, size_bytes=68), "buffer 'r' is float32[16]{0 in [17]} here and float32[16] in the program"),
    (plan(buffers=(*BUFFERS, buffer("q", "weight"))), "buffer 'q' is weight, but the program has none of that name"),
    (plan(buffers=(*BUFFERS, buffer("q", "state"))), "buffer 'q' is state, but the program has none"),
    (plan(buffers=(*BUFFERS, buffer("q", "input"))), "buffer 'q' is input, but the entry point has none"),
    (call(0, inputs=("x", "z")), "call 0 (k/a): uses 'z', which is not a buffer"),
    (call(0, tasks=0), "call 0 (k/a): has 0 tasks"),
    (call(0, grain=0), "in grains of 0"),
    (call(0, scratch_bytes=-1), "with -1 bytes of scratch"),
    (call(2, params=(KernelParam("n", "i64", 0.5),)), "has a parameter 'n' of type 'i64' and value 0.5"),
    (call(2, params=(KernelParam("n", "i32", 1),)), "has a parameter 'n' of type 'i32'"),
    (call(2, params=(KernelParam("n", "i64", 1 << 63),)), "has a parameter 'n' of type 'i64' and value 9223372036854775808"),
    (call(2, params=(KernelParam("n", "i64", True),)), "has a parameter 'n'"),
    (call(0, outputs=("x",)), "call 0 (k/a): writes 'x', which is input"),
    (call(0, outputs=("r",)), "call 0 (k/a): writes 'r', which is weight"),
    (call(0, outputs=("a", "a.half")), "call 0 (k/a): writes two overlapping results in 'a'"),
    (call(1, inputs=("c",)), "call 1 (k/b) reads 'c' before any call writes it"),
    (call(4, outputs=()), "no call writes the output buffer 'y'"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "says"), BROKEN, ids=[s[:60] for _, s in BROKEN])
def test_a_broken_rule_is_found(program: CompiledProgram, says: str) -> None:
    assert any(says in p for p in problems(program)), list(problems(program))
    with pytest.raises(FormatError, match=r"\[who\] is not a valid program: "):
        validate(program, "who", "do")


@pytest.mark.parametrize(
    ("at", "shape", "apart"),
    [
        (2, (4, 2), True),  # columns 0 and 1, columns 2 and 3: neither is behind the other
        (1, (4, 2), False),  # column 1 in both
        (16, (4, 2), True),  # rows 4 to 7, in larger memory
        (3, (4, 2), False),  # the second one continues in the next row: no box
        (8, (2, 2), True),  # rows 2 and 3
    ],
)
def test_results_between_one_another_share_nothing(at: int, shape: tuple[int, int], apart: bool) -> None:
    whole = TensorSpec((8, 4), DType.FLOAT32)
    first = TensorSpec((2 if shape[0] == 2 else 4, 2), DType.FLOAT32, layout=Layout((0, 1), (8, 4)))
    part = TensorSpec(shape, DType.FLOAT32, layout=Layout((0, 1), (8, 4)))
    more = (
        buffer("w", "scratch", whole, offset=192, live=(0, 4)),
        buffer("w.l", "scratch", first, "w", 192, (0, 4)),
        buffer("w.r", "scratch", part, "w", 192 + 4 * at, (0, 4)),
    )
    calls = (replace(CALLS[0], outputs=("a", "w.l", "w.r")), *CALLS[1:])
    found = list(problems(plan(calls=calls, buffers=(*BUFFERS, *more), arena_bytes=320)))
    assert [p for p in found if "overlapping results" in p] == (
        [] if apart else ["entry point 'main', plan 0 (cpu:x86-64-v4): call 0 (k/a): writes two overlapping results in 'w'"]
    )  # fmt: skip


def test_a_result_in_place_of_its_operand_and_a_state_handed_through() -> None:
    calls = (*CALLS[:3], KernelCall("k/d", "f", ("b",), ("c",)), CALLS[4])
    in_place = tuple(
        replace(b, root="b", offset=128, first=1, last=4) if b.name in "bc" else b for b in BUFFERS
    )
    assert list(problems(plan(calls=calls, buffers=in_place))) == []
    through = entry(output_buffers=("s",), plans=(replace(PLAN, calls=CALLS[:4], buffers=BUFFERS[:-1]),))
    assert list(problems(through)) == []


def test_a_sample_names_an_entry_point_and_its_values() -> None:
    x = replace(WEIGHT, name="x", file="", format="", data=bytes(64))
    sample = GoldenSample("main", (x,), (), "interpreter")
    for broken, says in (
        (replace(sample, entry="other"), "is of the entry point 'other', which does not exist"),
        (sample, "does not have the outputs of 'main'"),
    ):
        assert [says in p for p in problems(replace(GOOD, golden=(broken,)))] == [True]


def test_a_buffer_has_a_name() -> None:
    assert PLAN.buffer("b").name == "b"
    with pytest.raises(KeyError, match="nowhere"):
        PLAN.buffer("nowhere")


def test_empty_buffers_may_lie_anywhere() -> None:
    empty = TensorSpec((0,), DType.FLOAT32)
    extra = tuple(buffer(f"e{i}", "scratch", empty, live=(0, 5)) for i in range(3))
    assert list(problems(plan(buffers=(*BUFFERS, *extra)))) == []


def test_many_buffers_are_checked() -> None:
    live = [buffer(f"t{i}", "scratch", offset=64 * i, live=(-1, 5)) for i in range(50_000)]
    big = plan(
        buffers=(*BUFFERS[:4], *live, BUFFERS[-1]),
        calls=(KernelCall("k/e", "f", ("s",), ("y",)),) * 5,
        arena_bytes=64 * 50_000,
    )
    assert list(problems(big)) == []
    shifted = (replace(live[0], offset=64 * 49_999, name="t", root="t"), *live)
    assert [re.sub(r"\d+", "N", p) for p in problems(plan(buffers=(*BUFFERS[:4], *shifted, BUFFERS[-1]), calls=big.entries[0].plans[0].calls, arena_bytes=64 * 50_000))] == [
        "entry point 'main', plan N (cpu:xN-N-vN): buffers 't' and 'tN' overlap in the arena while both live"
    ]  # fmt: skip
