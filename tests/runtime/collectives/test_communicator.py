"""Groups of threads: every collective against NumPy, errors that name the reason, and programs with collectives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import InputError, RankLost, RunError
from xpuruntime.ir import Graph, GraphBuilder, interp
from xpuruntime.ir.interp.collective import Group
from xpuruntime.runtime import Communicator, DeviceBuffer, Executor
from xpuruntime.runtime.collectives import RankThreads
from xpuruntime.types import DType

DTYPES = ("int32", "int64", "float16", "bfloat16", "float32", "float64")


@pytest.fixture(params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[RankThreads]:
    """A group of threads."""
    threads = RankThreads(Communicator.local(["cpu"] * request.param, timeout_s=20))
    yield threads
    threads.close()


def drawn(rank: int, dtype: str, shape: tuple[int, ...]) -> Any:
    values = np.random.default_rng(rank).standard_normal(shape) * 50
    return values.astype(DType(dtype).numpy)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_collective_is_that_of_numpy(ranks: RankThreads, dtype: str) -> None:
    size = len(ranks.communicators)
    shape = (2 * size, 37)
    xs = [drawn(r, dtype, shape) for r in range(size)]
    wide = xs[0].astype(np.float32) if DType(dtype).bits == 16 else xs[0]
    for x in xs[1:]:
        wide = wide + (x.astype(np.float32) if DType(dtype).bits == 16 else x)
    total = wide.astype(xs[0].dtype)
    comms = ranks.communicators
    for y in ranks.run(lambda r: comms[r].all_reduce(xs[r])):
        assert np.array_equal(np.asarray(y), total)
    for y in ranks.run(lambda r: comms[r].all_gather(xs[r])):
        assert np.array_equal(np.asarray(y), np.concatenate(xs))
    for r, y in enumerate(ranks.run(lambda r: comms[r].reduce_scatter(xs[r]))):
        assert np.array_equal(np.asarray(y), total[2 * r : 2 * r + 2])
    in_place = [x.copy() for x in xs]
    ranks.run(lambda r: comms[r].all_reduce(in_place[r], out=in_place[r]))
    assert all(np.array_equal(y, total) for y in in_place)


def test_16_bit_sums_are_rounded_once_to_the_nearest() -> None:
    """Every float16, subnormal and infinite ones too, plus a value that rounds it."""
    threads = RankThreads(Communicator.local(["cpu"] * 2, timeout_s=20))
    comms = threads.communicators
    for dtype in ("float16", "bfloat16"):
        kind = DType(dtype).numpy
        every = np.arange(1 << 16, dtype=np.uint16).view(kind)
        other = np.roll(every, 12345)
        with np.errstate(all="ignore"):
            want = (every.astype(np.float32) + other.astype(np.float32)).astype(kind)
        pair = (every, other)
        for y in threads.run(lambda r, pair=pair: comms[r].all_reduce(pair[r])):  # type: ignore[misc]
            got = np.asarray(y)
            nan = np.isnan(want.astype(np.float32))
            assert np.array_equal(got.view(np.uint16)[~nan], want.view(np.uint16)[~nan])
            assert np.isnan(got.astype(np.float32)[nan]).all()
    threads.close()


def test_a_closed_group_refuses_work() -> None:
    threads = RankThreads(Communicator.local(["cpu"] * 2, timeout_s=20))
    threads.close()
    with pytest.raises(RunError, match=r"\[group of ranks\] is closed"):
        threads.run(lambda rank: rank)


def test_ranks_that_disagree_are_told_who_calls_what(ranks: RankThreads) -> None:
    comms = ranks.communicators
    with pytest.raises(
        RankLost, match=r"rank \d calls all_reduce of \d+ elements .* rank \d calls all_reduce of"
    ):
        ranks.run(lambda r: comms[r].all_reduce(np.zeros(4 + r, np.float32)))
    with pytest.raises(RankLost, match="Make a new group"):
        comms[0].all_reduce(np.zeros(4, np.float32))


def test_a_rank_that_fails_ends_the_others_and_its_error_is_raised(ranks: RankThreads) -> None:
    comms = ranks.communicators

    def work(rank: int) -> Any:
        if rank == 1:
            raise OSError("no such disk")
        return comms[rank].all_reduce(np.zeros(4, np.float32))

    with pytest.raises(OSError, match="no such disk"):
        ranks.run(work)
    assert all("no such disk" in c.failure for c in comms)


def test_a_rank_that_does_not_come_is_waited_for_as_long_as_said() -> None:
    first, _ = Communicator.local(["cpu", "cpu"], timeout_s=0.2)
    with pytest.raises(RankLost, match="rank 0 waited 0 s for 1 of 2 ranks"):
        first.all_reduce(np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros((3, 2), np.float32), "first dim must be a multiple of the ranks"),
        (np.zeros((2, 2), np.uint8), "do not exchange uint8"),
        (np.zeros((4, 4), np.float32).T, "must be a dense tensor on cpu"),
        (np.float32(1), "must have a dim"),
    ],
)
def test_operands_that_cannot_be_exchanged_are_refused(x: Any, words: str) -> None:
    first, second = Communicator.local(["cpu", "cpu"])
    with pytest.raises(InputError, match=words):
        first.reduce_scatter(x)
    second.close()


def test_out_must_fit() -> None:
    first, _ = Communicator.local(["cpu", "cpu"])
    x = np.zeros(4, np.float32)
    with pytest.raises(InputError, match="out of all_gather must be"):
        first.all_gather(x, out=x)
    y = np.zeros((2, 2), np.float32)
    with pytest.raises(InputError, match="needs memory of its own"):
        Communicator.local(["cpu"])[0].all_gather(y, out=y)


def test_groups_need_devices_of_one_kind() -> None:
    with pytest.raises(InputError, match="needs devices that are all GPUs or all the CPU"):
        Communicator.local([])
    with pytest.raises(InputError, match="joins processes with GPUs only; got cpu"):
        Communicator.join("nowhere", rank=0, size=2, device="cpu")
    with pytest.raises(InputError, match="rank must be below size; got rank=2, size=2"):
        Communicator.join("nowhere", rank=2, size=2, device="cpu")


# ── programs ──


def exchanging(ranks: int) -> Graph:
    b = GraphBuilder("exchanging")
    x = b.input("x", f"float32[{2 * ranks}, 6]")
    total = b.all_reduce(b.mul(x, 2.0), ranks=ranks)
    b.output("total", b.relu(total))
    b.output("all", b.all_gather(x, ranks=ranks))
    b.output("part", b.reduce_scatter(b.add(x, total), ranks=ranks))
    return b.build()


def test_a_program_with_collectives_is_the_interpreter_s(ranks: RankThreads) -> None:
    size = len(ranks.communicators)
    graph = exchanging(size)
    program = xrt.compile(graph, target="cpu")
    executors = [Executor(program, "cpu", threads=1, communicator=c) for c in ranks.communicators]
    feeds = [drawn(r, "float32", (2 * size, 6)) for r in range(size)]
    group = Group(size)

    def oracle(rank: int) -> Any:
        with group.rank(rank):
            return list(interp.run(graph, {"x": feeds[rank]}).values())

    want = ranks.run(oracle)
    for _ in range(3):
        for got, expected in zip(ranks.run(lambda r: executors[r].run_arrays([feeds[r]])), want, strict=True):
            assert all(np.allclose(g, e, rtol=1e-6) for g, e in zip(got, expected, strict=True))
    buffers = ranks.run(lambda r: executors[r].run({"x": DeviceBuffer.from_numpy(feeds[r])}))
    assert all(np.allclose(buffers[r]["all"].to_numpy(), np.concatenate(feeds)) for r in range(size))
    assert executors[0].implementations.count(f"all_reduce of {size} threads") == 1


def test_an_executor_says_what_communicator_it_needs() -> None:
    program = xrt.compile(exchanging(2), target="cpu")
    with pytest.raises(
        InputError, match=r"exchanges tensors with 2 ranks; got no communicator\. Pass communicator="
    ):
        Executor(program, "cpu")
    for three in Communicator.local(["cpu"] * 3)[:1]:
        with pytest.raises(xrt.XpuError, match="is compiled for 2 ranks, and the communicator has 3"):
            Executor(program, "cpu", communicator=three)
    alone = xrt.compile(exchanging(1), target="cpu")
    x = drawn(0, "float32", (2, 6))
    total, everyone, part = Executor(alone, "cpu").run_arrays([x])
    assert np.array_equal(total, np.maximum(2 * x, 0))
    assert np.array_equal(everyone, x)
    assert np.allclose(part, 3 * x)


def test_an_executor_of_an_ended_group_does_not_run() -> None:
    program = xrt.compile(exchanging(2), target="cpu")
    first, _ = Communicator.local(["cpu", "cpu"])
    executor = Executor(program, "cpu", communicator=first)
    first.abort("the other rank is gone")
    with pytest.raises(RankLost, match="the other rank is gone"):
        executor.run_arrays([drawn(0, "float32", (4, 6))])


def test_the_interpreter_needs_a_group_of_the_right_size() -> None:
    graph, x = exchanging(2), drawn(0, "float32", (4, 6))
    with pytest.raises(xrt.RunError, match="a collective has 2 ranks; got no group"):
        interp.run(graph, {"x": x})
    with Group(3).rank(0), pytest.raises(xrt.RunError, match="got a group of 3"):
        interp.run(graph, {"x": x})


@pytest.mark.parametrize(
    ("op", "spec", "ranks", "words"),
    [
        ("all_reduce", "int8[4]", 2, "collectives exchange int32"),
        ("all_gather", "float32[]", 2, "x must have a dim"),
        ("reduce_scatter", "float32[3]", 2, "must be a multiple of ranks"),
        ("all_reduce", "float32[4]", 0, "at least one rank"),
    ],
)
def test_graphs_with_impossible_collectives_are_refused(op: str, spec: str, ranks: int, words: str) -> None:
    b = GraphBuilder("g")
    with pytest.raises(xrt.IrError, match=words):
        b.call(op, b.input("x", spec), ranks=ranks)
