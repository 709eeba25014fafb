"""Views and permutations move behind elementwise ops of one operand, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from support.native import check, compile_native

from xpuruntime import ir
from xpuruntime.passes import find_passes

STAYS = {
    "the movement has another reader": (
        "%n: float32[2, 3] = neg(%x)\n%v: float32[6] = view(%n, size=[6])\n%y: float32[6] = exp(%v)\n%z: float32[6] = abs(%v)",
        ("y", "z"),
    ),
    "the value before has another reader": (
        "%n: float32[2, 3] = neg(%x)\n%v: float32[6] = view(%n, size=[6])\n%y: float32[6] = exp(%v)\n%z: float32[2, 3] = abs(%n)",
        ("y", "z"),
    ),
    "the movement is an output": (
        "%n: float32[2, 3] = neg(%x)\n%v: float32[6] = view(%n, size=[6])\n%y: float32[6] = exp(%v)",
        ("v", "y"),
    ),
    "the other operand is as large": (
        "%n: float32[2, 3] = neg(%x)\n%v: float32[6] = view(%n, size=[6])\n%y: float32[6] = add(%v, %w)",
        ("y",),
    ),
    "the op broadcasts": (
        "%n: float32[1] = neg(%one)\n%v: float32[1, 1] = view(%n, size=[1, 1])\n%y: float32[6, 6] = add(%v, %square)",
        ("y",),
    ),
    "the other operand has more dims": (
        "%n: float32[2, 3] = neg(%x)\n%v: float32[2, 3, 1] = view(%n, size=[2, 3, 1])\n%y: float32[2, 3, 1] = add(%v, %ones)",
        ("y",),
    ),
    "nothing elementwise is before": (
        "%m: float32[2, 2] = matmul(%x, %t)\n%v: float32[4] = view(%m, size=[4])\n%y: float32[4] = exp(%v)",
        ("y",),
    ),
}
HEAD = """
input %x: float32[2, 3]
input %one: float32[1]
weight %w: float32[6]
weight %square: float32[6, 6]
weight %ones: float32[1, 1, 1]
weight %t: float32[3, 2]
"""


def test_a_chain_moves_as_a_whole(golden) -> None:
    golden(
        "sink_movement",
        """
        input %x: float32[4, 6]
        weight %bias: float32[6]
        weight %scale: float32[]
        %a: float32[4, 6] = add(%x, %bias)
        %v: float32[4, 2, 3] = view(%a, size=[4, 2, 3])
        %p: float32[2, 4, 3] = permute(%v, dims=[1, 0, 2])
        %m: float32[2, 4, 3] = mul(%p, 0.5)
        %d: float32[2, 4, 3] = div(%m, %scale)
        %y: float32[2, 4, 3] = tanh(%d)
        output "y" = %y
        """,
        """
        %a: float32[4, 6] = add(%x, %bias)
        %mul: float32[4, 6] = mul(%a, 0.5)
        %div: float32[4, 6] = div(%mul, %scale)
        %tanh: float32[4, 6] = tanh(%div)
        %view: float32[4, 2, 3] = view(%tanh, size=[4, 2, 3])
        %y: float32[2, 4, 3] = permute(%view, dims=[1, 0, 2])
        """,
    )


def test_a_chain_ends_where_a_second_operand_is_wide(golden) -> None:
    golden(
        "sink_movement",
        """
        input %x: float32[2, 3]
        weight %w: float32[6]
        %n: float32[2, 3] = neg(%x)
        %v: float32[6] = view(%n, size=[6])
        %e: float32[6] = exp(%v)
        %y: float32[6] = add(%e, %w)
        output "y" = %y
        """,
        """
        %n: float32[2, 3] = neg(%x)
        %exp: float32[2, 3] = exp(%n)
        %e: float32[6] = view(%exp, size=[6])
        %y: float32[6] = add(%e, %w)
        """,
    )


def test_elements_of_half_a_byte_are_not_moved(golden) -> None:
    golden(
        "sink_movement",
        """
        input %x: float32[2, 4]
        %n: float32[2, 4] = neg(%x)
        %v: float32[4, 2] = permute(%n, dims=[1, 0])
        %r: float32[4, 2] = round(%v)
        %y: int4[4, 2] = cast(%r, dtype=int4)
        output "y" = %y
        """,
        """
        %n: float32[2, 4] = neg(%x)
        %round: float32[2, 4] = round(%n)
        %r: float32[4, 2] = permute(%round, dims=[1, 0])
        %y: int4[4, 2] = cast(%r, dtype=int4)
        """,
    )


def test_an_operand_read_twice_moves_as_one(golden) -> None:
    golden(
        "sink_movement",
        """
        input %x: float32[2, 3]
        %n: float32[2, 3] = neg(%x)
        %v: float32[6] = view(%n, size=[6])
        %y: float32[6] = mul(%v, %v)
        output "y" = %y
        """,
        """
        %n: float32[2, 3] = neg(%x)
        %mul: float32[2, 3] = mul(%n, %n)
        %y: float32[6] = view(%mul, size=[6])
        """,
    )


@pytest.mark.parametrize("why", STAYS)
def test_others_stay(why: str) -> None:
    body, outputs = STAYS[why]
    ends = "\n".join(f'output "{name}" = %{name}' for name in outputs)
    graph = ir.parse(f'graph "test" {{{HEAD}{body}\n{ends}\n}}')
    (step,) = find_passes(["sink_movement"])
    assert step.run(graph, None).nodes == graph.nodes


def test_sizes_that_are_not_known_stay() -> None:
    graph = ir.parse(
        'graph "test" { input %x: float32[N, 3]\n%n: float32[N, 3] = neg(%x)\n'
        '%p: float32[3, N] = permute(%n, dims=[1, 0])\n%y: float32[3, N] = exp(%p)\noutput "y" = %y\n}'
    )
    (step,) = find_passes(["sink_movement"])
    assert step.run(graph, None).nodes == graph.nodes


@pytest.mark.parametrize("seed", range(6))
def test_random_chains_are_one_kernel_and_right(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows, heads, size = (int(n) for n in draw.integers(1, 9, 3))
    b = ir.GraphBuilder("chain")
    x = b.input("x", f"uint8[{rows}, {heads * size}]")
    y = b.add(
        b.mul(b.sub(b.cast(x, dtype="float32"), 100.0), 0.03), b.weight("bias", f"float32[{heads * size}]")
    )
    y = b.permute(b.view(y, size=[rows, heads, size]), dims=[int(d) for d in draw.permutation(3)])
    for op in draw.choice(["gelu", "tanh", "exp", "neg"], int(draw.integers(1, 4))):
        y = getattr(b, str(op))(y)
    b.output("y", b.cast(b.clamp(b.add(b.round(b.div(y, 0.02)), 9.0), 0.0, 255.0), dtype="uint8"))
    graph = b.build()
    feeds = {"x": draw.integers(0, 256, (rows, heads * size)).astype(np.uint8)}
    weights = {"bias": draw.standard_normal(heads * size).astype(np.float32)}
    kernels = [c.kernel for c in compile_native(graph, feeds).entries[0].plans[0].calls]
    assert [k for k in kernels if k.startswith("elementwise")] == ["elementwise/generated"]
    plain = check(graph, feeds, weights=weights, passes="none", tolerance=1 / 255)["y"].astype(int)
    fused = check(graph, feeds, weights=weights, tolerance=1 / 255)["y"].astype(int)
    assert abs(plain - fused).max() <= 1
