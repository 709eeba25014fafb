"""``peer_all_reduce`` on the emulator: two ranks with a box each, one after the other, and the interpreter's sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cuda_kernels import call_of

from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.ir import GraphBuilder
from xpuruntime.ir.ops.collective import PEER_BYTES
from xpuruntime.kernels.cuda.peer_reduce import PeerReduce
from xpuruntime.testing.emulation.launches import EmulatedKernels
from xpuruntime.types import DType

WORDS, HEADER, BLOCKS = PEER_BYTES // 4, 256, 32


class Box:
    """The memory of a rank, as kernels see it."""

    def __init__(self, ranks: int) -> None:
        self.bytes = np.zeros(HEADER + 2 * ranks * WORDS * 8, np.uint8)
        self.header = self.bytes[:HEADER].view(np.uint32)
        self.words = self.bytes[HEADER:].view(np.uint64).reshape(2, ranks, WORDS)

    def put(self, exchange: int, rank: int, x: Any) -> None:
        """Write what a rank sends."""
        raw = x.tobytes() + bytes(-x.nbytes % 4)
        words = np.frombuffer(raw, np.uint32).astype(np.uint64)
        self.words[exchange % 2, rank, : len(words)] = words | np.uint64(exchange << 32)


def kernel(count: int, dtype: str, ranks: int, residual: bool) -> tuple[EmulatedKernels, Any]:
    b = GraphBuilder("g")
    x, table = b.input("x", f"{dtype}[{count}]"), b.input("table", f"int64[{1 + ranks}]")
    rest = [b.input("residual", f"{dtype}[{count}]")] if residual else []
    b.output("y", b.peer_all_reduce(x, table, *rest, ranks=ranks))
    target = cuda_target("cuda:sm_90")
    call = call_of(b.build(), {})
    assert PeerReduce().supports(call, target)
    (stage,) = PeerReduce().lower(call, target).stages
    return EmulatedKernels({"reduce": stage.source.replace("KERNEL(", "reduce(")}, stage.parts), stage


@pytest.mark.parametrize(
    ("count", "dtype", "ranks", "residual"),
    [(4096, "bfloat16", 2, True), (777, "float16", 3, False), (1000, "float32", 2, True), (1, "bfloat16", 2, False)],
)  # fmt: skip
def test_every_rank_gets_the_sum_in_exchange_after_exchange(
    count: int, dtype: str, ranks: int, residual: bool
) -> None:
    kernels, stage = kernel(count, dtype, ranks, residual)
    boxes = [Box(ranks) for _ in range(ranks)]
    kind = DType(dtype).numpy
    random = np.random.default_rng(count)
    for exchange in (1, 2, 3):
        xs = [random.standard_normal(count).astype(kind) for _ in range(ranks)]
        own = random.standard_normal(count).astype(kind)
        total = sum(x.astype(np.float32) for x in xs) + (own.astype(np.float32) if residual else 0)
        # The emulator runs one kernel at a time: the first rank finds what the others send to it later.
        for sender in range(1, ranks):
            for receiver in range(sender):
                boxes[receiver].put(exchange, sender, xs[sender])
        for rank in range(ranks):
            table = np.array([rank, *(b.bytes.ctypes.data for b in boxes)], np.int64)
            y = np.zeros(count, kind)
            args = {"x": xs[rank], "table": table, **({"residual": own} if residual else {}), "y": y}
            memory = {f"box{r}": b.bytes for r, b in enumerate(boxes)}
            kernels.launch("reduce", args | memory, blocks=stage.tasks)
            assert np.array_equal(y, total.astype(kind)), (exchange, rank)
            assert list(boxes[rank].header[: 1 + BLOCKS]) == [0, *[exchange] * BLOCKS]
            for receiver in range(ranks):  # what it sent
                want = Box(ranks)
                want.put(exchange, rank, xs[rank])
                half = exchange % 2
                if receiver != rank:
                    used = want.words[half, rank] != 0
                    assert np.array_equal(
                        boxes[receiver].words[half, rank][used], want.words[half, rank][used]
                    )


def test_a_rank_does_not_wait_for_a_group_that_has_ended() -> None:
    kernels, stage = kernel(64, "float32", 2, False)
    boxes = [Box(2), Box(2)]
    boxes[0].header[0] = 1
    table = np.array([0, *(b.bytes.ctypes.data for b in boxes)], np.int64)
    args = {"x": np.ones(64, np.float32), "table": table, "y": np.zeros(64, np.float32)}
    kernels.launch("reduce", args | {f"box{r}": b.bytes for r, b in enumerate(boxes)}, blocks=stage.tasks)


def test_what_does_not_fit_a_box_is_left_to_other_kernels() -> None:
    b = GraphBuilder("g")
    x, table = b.input("x", f"float32[{WORDS + 1}]"), b.input("table", "int64[3]")
    b.output("y", b.peer_all_reduce(x, table, ranks=2))
    answer = PeerReduce().supports(call_of(b.build(), {}), cuda_target("cuda:sm_90"))
    assert not answer
    assert "65536 bytes" in answer.reason
