"""einsum_products: equations of two operands become one product of matrices that computes the same; others stay."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from support.built_graphs import graph_of
from support.native import check

from xpuruntime import ir
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.decisions import Reason, Support
from xpuruntime.ir import interp
from xpuruntime.passes import PassContext, einsum_products, run_passes

ON = PassContext(library_ops=True)


def rewritten(
    equation: str, a: tuple[int, ...], b: tuple[int, ...], context: PassContext = ON
) -> Counter[str]:
    """Run the pass, compare results, and return how often each op is in the graph."""
    rng = np.random.default_rng(3)
    feeds = {"a": rng.integers(-3, 4, a).astype(np.float32), "b": rng.integers(-3, 4, b).astype(np.float32)}
    graph = graph_of(lambda g, a, b: [g.einsum(a, b, equation=equation)], feeds)
    after = run_passes(graph, ["einsum_products"], context=context, check=True)
    for name, value in interp.run(graph, feeds).items():
        result = interp.run(after, feeds)[name]
        assert value.shape == result.shape
        assert np.array_equal(value, result), equation
    assert {s for n in after.nodes for s in n.sources} <= {s for n in graph.nodes for s in n.sources}
    return Counter(n.op for n in after.nodes)


@pytest.mark.parametrize(
    ("equation", "a", "b", "ops"),
    [
        ("ij,jk->ik", (2, 3), (3, 4), {"matmul": 1}),
        ("bghid,bghjd->bghij", (2, 3, 2, 5, 4), (2, 3, 2, 6, 4), {"permute": 1, "matmul": 1}),
        ("bghij,bghjd->bghid", (2, 3, 2, 5, 6), (2, 3, 2, 6, 4), {"matmul": 1}),
        ("bchw,co->bohw", (2, 3, 4, 5), (3, 6), {"permute": 2, "view": 2, "matmul": 1}),
        ("bqhd,bkhd->bhqk", (2, 5, 3, 4), (2, 6, 3, 4), {"permute": 2, "matmul": 1}),
        ("kd,qd->qk", (5, 4), (3, 4), {"permute": 1, "matmul": 1}),
        ("bhwc,hkc->bhwk", (2, 3, 5, 4), (3, 6, 4), None),
        ("i,i->", (7,), (7,), None),
        ("bi,bi->b", (3, 7), (3, 7), None),
        ("ijk,kjl->il", (2, 3, 4), (4, 3, 5), None),
        ("abc,cd", (2, 3, 4), (4, 5), None),
        ("...ij,...jk->...ik", (2, 3, 4, 5), (2, 3, 5, 6), {"matmul": 1}),
        ("nj,ij->ni", (2, 4), (3, 4), {"permute": 1, "matmul": 1}),
    ],
)
def test_equations_that_are_products(
    equation: str, a: tuple[int, ...], b: tuple[int, ...], ops: dict[str, int] | None
) -> None:
    found = rewritten(equation, a, b)
    assert found["matmul"] == 1
    assert not found["einsum"]
    assert ops is None or found == ops


@pytest.mark.parametrize(
    ("equation", "a", "b"),
    [
        ("i,j->ij", (3,), (4,)),  # nothing is summed
        ("ij,j->j", (3, 4), (4,)),  # an axis of one operand is summed
        ("iij,jk->ik", (3, 3, 4), (4, 5)),  # a diagonal
        ("ij,jk->ik", (3, 1), (4, 5)),  # an extent of 1 broadcasts
        ("...ij,...jk->...ik", (1, 4, 5), (2, 5, 6)),
    ],
)
def test_others_stay(equation: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert rewritten(equation, a, b) == {"einsum": 1}


def test_a_policy_that_needs_the_einsum_keeps_it() -> None:
    refuse = PassContext(
        library_ops=True, may_become=lambda op, graph, nodes: Support.no(Reason.NOT_IMPLEMENTED, op)
    )
    assert rewritten("ij,jk->ik", (2, 3), (3, 4), refuse) == {"einsum": 1}
    assert rewritten("ij,jk->ik", (2, 3), (3, 4), PassContext()) == {"einsum": 1}


def test_written_out_attention_is_recognized_on_cuda() -> None:
    text = """graph "g" {
        input %q: float32[1, 2, 3, 64, 32]
        input %k: float32[1, 2, 3, 64, 32]
        input %v: float32[1, 2, 3, 64, 32]
        %s: float32[1, 2, 3, 64, 64] = einsum(%q, %k, equation="bghid,bghjd->bghij")
        %p: float32[1, 2, 3, 64, 64] = softmax(%s, dim=4)
        %y: float32[1, 2, 3, 64, 32] = einsum(%p, %v, equation="bghij,bghjd->bghid")
        output "y" = %y
    }"""
    program = compile_graph(ir.parse(text), target="cuda:h100-sxm")
    kernels = [c.kernel for c in program.entries[0].plans[0].calls]
    assert not [k for k in kernels if k == "matmul/naive"], kernels
    on_cpu = compile_graph(ir.parse(text), target="cpu:x86-64-v3")
    assert "einsum" in {op for c in on_cpu.entries[0].plans[0].calls for op in c.ops}


def test_symbolic_extents_and_other_types_stay() -> None:
    text = 'graph "g" {\n input %a: float32[n, 3]\n input %b: float32[3, 4]\n %y: float32[n, 4] = einsum(%a, %b, equation="ij,jk->ik")\n output "y" = %y\n}'
    graph = ir.parse(text)
    assert einsum_products.run(graph, ON) == graph
    whole = ir.parse(text.replace("float32", "int32").replace("[n", "[2"))
    assert einsum_products.run(whole, ON) == whole


STRIDED = PassContext(strided_einsum=True)


@pytest.mark.parametrize(
    ("equation", "a", "b", "stays"),
    [
        ("bqhd,bkhd->bhqk", (2, 5, 3, 4), (2, 6, 3, 4), True),
        ("bhqk,bkhd->bqhd", (2, 3, 5, 6), (2, 6, 3, 4), True),
        ("ik,jk->ij", (1, 4), (5, 4), True),
        ("ibh,hnd->ibnd", (5, 2, 6), (6, 3, 4), False),
        ("ibnd,hnd->ibh", (5, 2, 3, 4), (6, 3, 4), False),
        ("ik,jk->ji", (3, 4), (5, 4), False),
        ("ik,jk->ij", (3, 4), (1, 4), False),
    ],
)
def test_on_cpus_equations_of_strided_matrices_stay(
    equation: str, a: tuple[int, ...], b: tuple[int, ...], stays: bool
) -> None:
    assert rewritten(equation, a, b, STRIDED)["einsum"] == stays


@pytest.mark.parametrize("equation", ["ibh,hnd->ibnd", "bqh,hk->bqk"])
def test_einsum_with_a_weight_runs_the_kernel_of_products_on_a_cpu(equation: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((5, 3, 64)).astype(np.float32)
    w = rng.standard_normal((64, 4, 8) if equation.endswith("nd") else (64, 32)).astype(np.float32)
    b = ir.GraphBuilder("heads")
    weight = b.weight("w", f"float32[{', '.join(map(str, w.shape))}]")
    b.output("y", b.einsum(b.input("x", "float32[5, 3, 64]"), weight, equation=equation))
    graph = b.build()
    kernels = [c.kernel for c in compile_graph(graph, target="cpu").entries[0].plans[0].calls]
    assert kernels
    assert "matmul/naive" not in kernels, kernels
    check(graph, {"x": x}, weights={"w": w})
