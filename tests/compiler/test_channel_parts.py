"""Parts of channels-last values on CUDA: kernels read and write them in place where their vectors fit, and results are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native import compile_native, run_native

from xpuruntime.ir import Graph, GraphBuilder, interp
from xpuruntime.program.program import ExecutionPlan
from xpuruntime.testing.emulation.cuda_host import cuda_host

rng = np.random.default_rng(31)


class Network:
    """A graph of convolutions, its input and its weights."""

    def __init__(self, channels: int, images: int = 2, dtype: str = "float16") -> None:
        self.b, self.dtype = GraphBuilder("parts"), dtype
        self.weights: dict[str, Any] = {}
        self.feeds = {"x": rng.standard_normal((images, channels, 5, 6)).astype(dtype)}
        self.x = self.b.input("x", f"{dtype}[{images}, {channels}, 5, 6]")

    def conv(
        self, x: Any, channels: int, filters: int, kernel: int = 1, depthwise: bool = False, act: str = ""
    ) -> Any:
        shape = (filters, 1 if depthwise else channels, kernel, kernel)
        name = f"w{len(self.weights)}"
        self.weights[name] = (rng.standard_normal(shape) / channels**0.5).astype(self.dtype)
        w = self.b.weight(name, f"{self.dtype}{list(shape)}")
        how = {"stride": [1, 1], "padding": [kernel // 2] * 2, "dilation": [1, 1]}
        y = self.b.convolution(x, w, None, **how, groups=channels if depthwise else 1)
        return getattr(self.b, act)(y) if act else y

    def split(self, x: Any, *sizes: int) -> Any:
        return self.b.split(x, outputs=len(sizes), sizes=list(sizes), dim=1)

    def checked(self, *outputs: Any) -> ExecutionPlan:
        """Return the plan of the graph, after a run that is compared with the interpreter."""
        for i, value in enumerate(outputs):
            self.b.output(f"y{i}", value)
        graph: Graph = self.b.build()
        program = compile_native(graph, self.feeds, target=cuda_host())
        got = run_native(graph, self.feeds, weights=self.weights, target=cuda_host())
        for name, want in interp.run(graph, self.feeds, weights=self.weights).items():
            scale = abs(want.astype(np.float64)).max()
            np.testing.assert_allclose(
                got[name].astype(np.float64), want.astype(np.float64), atol=4e-3 * scale
            )
        return program.entries[0].plans[0]


def moves(plan: ExecutionPlan) -> list[str]:
    """Return the ops that move data inside the network: conversions of its input and output are no parts."""
    return [c.ops[0] for c in plan.calls if c.ops and c.ops[0] in ("split", "slice", "cat")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sizes", [(8, 8), (12, 12), (60, 60), (30, 30, 30), (16, 8, 24), (3, 5), (1, 2)])
def test_depthwise_convolutions_read_and_write_parts(sizes: tuple[int, ...]) -> None:
    n = Network(8)
    total = sum(sizes)
    parts = n.split(n.conv(n.x, 8, total, act="relu"), *sizes)
    values = [
        n.conv(p, s, s, 3 + 2 * (i % 2), True, "relu")
        for i, (p, s) in enumerate(zip(parts, sizes, strict=True))
    ]
    plan = n.checked(n.conv(n.b.cat(*values, dim=1), total, 8))
    assert bool(moves(plan)) == (sizes == (1, 2))  # one channel is no depthwise convolution


@pytest.mark.parametrize(("sizes", "copies"), [((8, 16), 0), ((12, 12), 1), ((16, 4), 1)])
def test_other_readers_need_whole_vectors(sizes: tuple[int, int], copies: int) -> None:
    n = Network(8)
    first, second = n.split(n.conv(n.x, 8, sum(sizes), act="relu"), *sizes)
    y = n.b.add(n.conv(first, sizes[0], 8, 3), n.conv(second, sizes[1], 8, 1))
    assert len(moves(n.checked(y))) == copies


def test_a_slice_is_read_in_place_next_to_the_whole_value() -> None:
    n = Network(8)
    whole = n.conv(n.x, 8, 32, act="relu")
    part = n.b.slice(whole, dim=1, start=8, end=24, step=1)
    y = n.b.add(n.conv(part, 16, 8, 1), n.conv(whole, 32, 8, 3))
    assert not moves(n.checked(y))


def test_a_part_that_is_changed_in_place_leaves_the_others_as_they_are() -> None:
    n = Network(8)
    first, second = n.split(n.conv(n.x, 8, 32, act="relu"), 16, 16)
    y = n.b.sigmoid(n.b.mul(first, second))
    z = n.b.tanh(first)
    n.checked(n.conv(y, 16, 8), n.conv(z, 16, 8), n.conv(second, 16, 8))


def test_parts_that_leave_the_graph_are_copied() -> None:
    n = Network(8)
    first, second = n.split(n.conv(n.x, 8, 32, act="relu"), 16, 16)
    n.checked(first, n.conv(second, 16, 8))


def test_parts_of_parts_and_parts_that_are_joined_again() -> None:
    n = Network(8)
    first, second = n.split(n.conv(n.x, 8, 32, act="relu"), 16, 16)
    third, fourth = n.split(first, 8, 8)
    n.checked(
        n.conv(third, 8, 8), n.conv(n.b.cat(second, fourth, dim=1), 24, 8), n.conv(fourth, 8, 8, 3, True)
    )


def test_parts_along_other_dims() -> None:
    n = Network(8)
    first, second = n.b.split(n.conv(n.x, 8, 16, act="relu"), outputs=2, sizes=[2, 3], dim=2)
    n.checked(n.conv(first, 16, 16, 3, True), n.conv(second, 16, 16, 3, True))
    m = Network(8, images=3)
    head = m.b.slice(m.conv(m.x, 8, 16, act="relu"), dim=0, start=1, end=3, step=1)
    m.checked(m.conv(head, 16, 16, 3, True))
