"""fold_pad: a pad of zeros before a convolution becomes its padding; the values stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from xpuruntime.decisions import Reason, Support
from xpuruntime.ir import Graph, GraphBuilder, Node, interp
from xpuruntime.passes import PassContext, run_passes

ON = PassContext(uneven_padding=True)


def padded(
    pads: Sequence[int],
    padding: Sequence[int],
    *,
    mode: str = "constant",
    value: float = 0,
    transposed: bool = False,
    rank: int = 4,
) -> Graph:
    """Return a graph of a pad and a convolution of its result."""
    b = GraphBuilder("padded")
    space = [9, 7, 5][: rank - 2]
    x = b.input("x", f"float32[2, 4, {', '.join(map(str, space))}]")
    sizes = [4, 4, *[3] * (rank - 2)]
    w = b.weight("w", f"float32[{', '.join(map(str, sizes))}]")
    inner = b.call("pad", x, pads=list(pads), mode=mode, value=value)
    n = rank - 2
    y = b.call(
        "convolution",
        inner,
        w,
        stride=[2] * n,
        padding=list(padding),
        dilation=[1] * n,
        transposed=transposed,
    )
    b.output("y", y)
    return b.build()


def outputs(graph: Graph) -> np.ndarray:
    """Return the graph's result for random numbers."""
    rng = np.random.default_rng(0)
    feeds = {
        v.name: rng.standard_normal([int(d) for d in v.spec.shape]).astype(np.float32) for v in graph.inputs
    }
    weights = {
        w.name: rng.standard_normal([int(d) for d in w.spec.shape]).astype(np.float32) for w in graph.weights
    }
    return np.asarray(interp.run(graph, feeds, weights=weights)["y"])


@pytest.mark.parametrize(
    ("rank", "pads", "padding"),
    [
        (4, [0, 0, 0, 0, 0, 0, 1, 1], [0, 0]),
        (4, [0, 0, 2, 0, 0, 0, 1, 3], [1, 0]),
        (4, [0, 0, 2, 0, 0, 0, 1, 3], [1, 0, 0, 2]),
        (4, [0, 0, 5, 4, 0, 0, 6, 0], [0, 0]),
        (3, [0, 0, 1, 0, 0, 2], [0]),
        (5, [0, 0, 0, 1, 0, 0, 0, 1, 0, 2], [0, 0, 1]),
    ],
)
def test_zeros_become_padding(rank: int, pads: list[int], padding: list[int]) -> None:
    graph = padded(pads, padding, rank=rank)
    after = run_passes(graph, ["fold_pad", "dead_code"], context=ON, check=True)
    assert [n.op for n in after.nodes] == ["convolution"]
    np.testing.assert_array_equal(outputs(after), outputs(graph))


@pytest.mark.parametrize(
    "graph",
    [
        padded([0, 0, 0, 0, 0, 0, 1, 1], [0, 0], value=1.0),
        padded([0, 0, 1, 1, 0, 0, 1, 1], [0, 0], mode="reflect"),
        padded([0, 0, 0, 0, 0, 0, 1, -1], [0, 0]),
        padded([0, 0, 0, 0, 0, 0, 1, 1], [0, 0], transposed=True),
        padded([1, 0, 0, 0, 0, 0, 1, 1], [0, 0]),
    ],
    ids=["ones", "reflection", "a crop", "transposed", "more images"],
)
def test_other_pads_stay(graph: Graph) -> None:
    assert run_passes(graph, ["fold_pad"], context=ON) == graph


def test_a_padded_tensor_that_others_read_stays_for_them() -> None:
    b = GraphBuilder("shared")
    inner = b.call("pad", b.input("x", "float32[1, 4, 6, 6]"), pads=[0, 0, 0, 0, 0, 0, 1, 1])
    y = b.call(
        "convolution",
        inner,
        b.weight("w", "float32[2, 4, 3, 3]"),
        stride=[1, 1],
        padding=[0, 0],
        dilation=[1, 1],
    )
    b.output("y", y)
    b.output("padded", inner)
    after = run_passes(b.build(), ["fold_pad", "dead_code"], context=ON, check=True)
    assert [n.op for n in after.nodes] == ["pad", "convolution"]
    assert after.nodes[1].attrs["padding"] == (0, 0, 1, 1)
    assert after.nodes[1].inputs[0] == "x"


def chained(*pads: tuple[Sequence[int], float], shared: int | None = None) -> Graph:
    """Return a graph of a chain of pads and a convolution of its end. ``shared`` is a pad whose result is an output, too."""
    b = GraphBuilder("chained")
    at = b.input("x", "float32[1, 4, 6, 6]")
    for i, (sizes, value) in enumerate(pads):
        at = b.call("pad", at, pads=list(sizes), value=value)
        if i == shared:
            b.output("padded", at)
    w = b.weight("w", "float32[2, 4, 3, 3]")
    b.output("y", b.call("convolution", at, w, stride=[1, 1], padding=[1, 0], dilation=[1, 1]))
    return b.build()


RIGHT, BELOW = ([0, 0, 0, 0, 0, 0, 0, 2], 0.0), ([0, 0, 1, 0, 0, 0, 3, 0], 0.0)
BOTH, ONES, CROP = (
    ([0, 0, 1, 1, 0, 0, 1, 1], 0.0),
    ([0, 0, 1, 1, 0, 0, 1, 1], 1.0),
    ([0, 0, 0, 0, 0, 0, 0, -1], 0.0),
)


@pytest.mark.parametrize(
    ("graph", "ops", "padding"),
    [
        (chained(RIGHT, BELOW), ["convolution"], (2, 0, 4, 2)),
        (chained(RIGHT, BELOW, BOTH), ["convolution"], (3, 1, 5, 3)),
        (chained(RIGHT, ONES, BELOW, BOTH), ["pad", "pad", "convolution"], (3, 1, 5, 1)),
        (chained(RIGHT, CROP, BELOW), ["pad", "pad", "convolution"], (2, 0, 4, 0)),
        (chained(RIGHT, BELOW, shared=0), ["pad", "convolution"], (2, 0, 4, 2)),
        (chained(RIGHT, BELOW, shared=1), ["pad", "pad", "convolution"], (2, 0, 4, 2)),
    ],
    ids=["two", "three", "behind ones", "behind a crop", "the first is read", "the second is read"],
)
def test_chains_fold_up_to_the_first_other_pad(
    graph: Graph, ops: list[str], padding: tuple[int, ...]
) -> None:
    after = run_passes(graph, ["fold_pad", "dead_code"], context=ON, check=True)
    assert [n.op for n in after.nodes] == ops
    assert after.nodes[-1].attrs["padding"] == padding
    np.testing.assert_array_equal(outputs(after), outputs(graph))


def test_a_policy_may_keep_a_part_of_a_chain() -> None:
    graph = chained(RIGHT, BELOW)

    def at_most_two(graph: Graph, nodes: Sequence[Node]) -> Support:
        return (
            Support.no(Reason.FORCED, "a rule names the kernel of the first pad")
            if len(nodes) > 2
            else Support.yes()
        )

    after = run_passes(graph, ["fold_pad"], context=PassContext(uneven_padding=True, may_fuse=at_most_two))
    assert [n.op for n in after.nodes] == ["pad", "convolution"]
    np.testing.assert_array_equal(outputs(after), outputs(graph))


def test_a_padded_tensor_that_is_also_the_filters_stays() -> None:
    b = GraphBuilder("twice")
    inner = b.call("pad", b.input("x", "float32[1, 1, 3, 3]"), pads=[0, 0, 1, 1, 0, 0, 1, 1])
    b.output("y", b.call("convolution", inner, inner, stride=[1, 1], padding=[0, 0], dilation=[1, 1]))
    graph = b.build()
    after = run_passes(graph, ["fold_pad", "dead_code"], context=ON, check=True)
    assert [n.op for n in after.nodes] == ["pad", "convolution"]
    np.testing.assert_array_equal(outputs(after), outputs(graph))


def test_targets_and_policies_may_keep_pads() -> None:
    graph = padded([0, 0, 0, 0, 0, 0, 1, 1], [0, 0])

    def refused(graph: Graph, nodes: Sequence[Node]) -> Support:
        return Support.no(Reason.FORCED, "a rule names the kernel of the pad")

    assert run_passes(graph, ["fold_pad"]) == graph
    assert (
        run_passes(graph, ["fold_pad"], context=PassContext(uneven_padding=True, may_fuse=refused)) == graph
    )
