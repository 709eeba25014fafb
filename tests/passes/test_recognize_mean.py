"""Pools of the whole input."""

from __future__ import annotations

from collections.abc import Sequence

from xpuruntime.decisions import Reason, Support
from xpuruntime.ir import Graph, GraphBuilder, Node
from xpuruntime.passes import PassContext, recognize_mean


def test_adaptive_pools_of_one_place(golden) -> None:
    golden(
        "recognize_mean",
        """
        input %x: float32[2, 8, 5, 6]
        %a: float32[2, 8, 1, 1] = adaptive_avg_pool(%x, output_size=[1, 1])
        %b: float32[2, 8, 1, 1] = adaptive_max_pool(%x, output_size=[1, 1])
        %c: float32[2, 8, 1, 2] = adaptive_avg_pool(%x, output_size=[1, 2])
        output "a" = %a
        output "b" = %b
        output "c" = %c
        """,
        """
        %a: float32[2, 8, 1, 1] = mean(%x, dim=[2, 3], keepdim=true)
        %b: float32[2, 8, 1, 1] = amax(%x, dim=[2, 3], keepdim=true)
        %c: float32[2, 8, 1, 2] = adaptive_avg_pool(%x, output_size=[1, 2])
        """,
    )


def test_windows_as_large_as_the_input(golden) -> None:
    window, plain = "stride=[1, 1]", "dilation=[1, 1]"
    golden(
        "recognize_mean",
        f"""
        input %x: float32[2, 8, 5, 6]
        %a: float32[2, 8, 1, 1] = avg_pool(%x, kernel_size=[5, 6], {window}, padding=[0, 0], {plain})
        %b: float32[2, 8, 1, 2] = avg_pool(%x, kernel_size=[5, 5], {window}, padding=[0, 0], {plain})
        %c: float32[2, 8, 3, 3] = avg_pool(%x, kernel_size=[5, 6], {window}, padding=[1, 1], {plain})
        output "a" = %a
        output "b" = %b
        output "c" = %c
        """,
        f"""
        %a: float32[2, 8, 1, 1] = mean(%x, dim=[2, 3], keepdim=true)
        %b: float32[2, 8, 1, 2] = avg_pool(%x, kernel_size=[5, 5], {window}, padding=[0, 0], {plain})
        %c: float32[2, 8, 3, 3] = avg_pool(%x, kernel_size=[5, 6], {window}, padding=[1, 1], {plain})
        """,
    )


def test_a_policy_that_names_a_kernel_of_pools_keeps_one() -> None:
    b = GraphBuilder("pool")
    b.output("y", b.call("adaptive_avg_pool", b.input("x", "float32[1, 4, 8, 8]"), output_size=[1, 1]))
    graph = b.build()
    asked = []

    def refused(op: str, graph: Graph, nodes: Sequence[Node]) -> Support:
        asked.append(op)
        return Support.no(Reason.FORCED, "a pool of somebody's own")

    assert recognize_mean.run(graph, PassContext(may_become=refused)) is graph
    assert asked == ["mean"]
    assert [n.op for n in recognize_mean.run(graph).nodes] == ["mean"]
