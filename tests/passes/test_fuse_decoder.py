"""Gates, norms, and rotations with the cache: one node each where decoding has few rows; nothing else changes."""

from __future__ import annotations

import pytest

from xpuruntime import ir
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.decisions import Reason, Support
from xpuruntime.passes import PassContext, find_passes

GATE = """
input %x: float32[1, ROWS, 6]
weight %w: float32[8, 6]
weight %b: float32[8]
%c: float32[1, ROWS, 8] = linear(%x, %w, %b)
%g: float32[1, ROWS, 4], %u: float32[1, ROWS, 4] = split(%c, sizes=[4, 4], dim=2)
%y: float32[1, ROWS, 4] = silu_mul(%g, %u)
output "y" = %y
"""


def test_a_gate_and_what_it_lets_through(golden) -> None:
    after = """
    %y: float32[1, 2, 4] = norm_linear(%x, %w, %b, act="silu", gated=true)
    """
    golden("fuse_gate", GATE.replace("ROWS", "2"), after)


EXPERTS = """
input %x: float32[ROWS, 6]
weight %w: float32[3, 8, 6]
input %n: int64[ROWS, 2]
%i: int64[ROWS, 2] = clamp(%n, 0, 2)
%c: float32[ROWS, 2, 8] = expert_linear(%x, %w, %i)
%g: float32[ROWS, 2, 4], %u: float32[ROWS, 2, 4] = split(%c, sizes=[4, 4], dim=2)
%y: float32[ROWS, 2, 4] = silu_mul(%g, %u)
output "y" = %y
"""


def test_a_gate_of_experts(golden) -> None:
    after = """
    %i: int64[2, 2] = clamp(%n, 0, 2)
    %y: float32[2, 2, 4] = expert_linear(%x, %w, %i, act="silu", gated=true)
    """
    golden("fuse_gate", EXPERTS.replace("ROWS", "2"), after)


def test_a_gate_of_experts_of_many_rows_stays() -> None:
    graph = ir.parse('graph "test" {' + EXPERTS.replace("ROWS", "9") + "}")
    (fuse_gate,) = find_passes(["fuse_gate"])
    assert fuse_gate.run(graph, PassContext()) is graph


NORM = """
input %x: float32[1, 2, 6]
input %r: float32[1, 2, 4]
weight %s: float32[6]
weight %w: float32[4, 6]
weight %b: float32[4]
%n: float32[1, 2, 6] = rms_norm(%x, %s, normalized_shape=[6], eps=0.5)
%y: float32[1, 2, 4] = fused_linear(%n, %w, %b, %r, act="silu")
output "y" = %y
"""


def test_a_norm_before_a_layer(golden) -> None:
    after = """
    %y: float32[1, 2, 4] = norm_linear(%x, %w, %b, %r, %s, act="silu", eps=0.5)
    """
    golden("fuse_norm_linear", NORM, after)


def test_a_norm_before_a_gated_layer_over_a_view(golden) -> None:
    golden(
        "fuse_norm_linear",
        """
        input %x: float32[1, 2, 6]
        weight %s: float32[6]
        weight %w: float32[8, 6]
        %n: float32[1, 2, 6] = rms_norm(%x, %s, normalized_shape=[6], eps=0.5)
        %v: float32[2, 6] = view(%n, size=[2, 6])
        %y: float32[2, 4] = norm_linear(%v, %w, act="silu", gated=true)
        output "y" = %y
        """,
        """
        %view: float32[2, 6] = view(%x, size=[2, 6])
        %y: float32[2, 4] = norm_linear(%view, %w, none, none, %s, act="silu", eps=0.5, gated=true)
        """,
    )


CACHE = """
input %q: float32[1, 4, 1, 6]
input %k: float32[1, 2, 1, 6]
input %v: float32[1, 2, 1, 6]
input %p: int64[1, 1]
input %m: bool[1, 8]
weight %c: float32[8, 3]
weight %s: float32[8, 3]
state %keys: float32[1, 2, 8, 6] next=%newk
state %values: float32[1, 2, 8, 6] next=%newv
%at: int64[1] = view(%p, size=[1])
%qr: float32[1, 4, 1, 6] = rope(%q, %c, %s, %p)
%kr: float32[1, 2, 1, 6] = rope(%k, %c, %s, %p)
%newk: float32[1, 2, 8, 6] = index_copy(%keys, %at, %kr, dim=2)
%newv: float32[1, 2, 8, 6] = index_copy(%values, %at, %v, dim=2)
%y: float32[1, 4, 1, 6] = attention(%qr, %newk, %newv, %m)
output "y" = %y
"""


def graph(text: str) -> ir.Graph:
    return ir.parse(f'graph "test" {{\n{text}\n}}')


def made(name: str, text: str, context: PassContext | None = None) -> tuple[ir.Graph, ir.Graph]:
    """A graph before and after a pass."""
    before = graph(text)
    (step,) = find_passes([name])
    after = step.run(before, context)
    ir.verify(after)
    return before, after


def test_rotations_and_caches() -> None:
    before, after = made("fuse_rope_append", CACHE)
    assert [n.op for n in after.nodes] == ["view", "rope_append", "attention"]
    node = after.nodes[1]
    assert node.inputs == ("q", "k", "v", "c", "s", "keys", "values", "at", "p")
    assert [s.next for s in after.states] == [v.name for v in node.outputs[1:]]
    same(before, after)


def same(before: ir.Graph, after: ir.Graph) -> None:
    """Both compute the same outputs and states."""
    import numpy as np

    rng = np.random.default_rng(0)
    feeds = {
        n: rng.integers(0, 4, shape(s)) if "int" in s.dtype.value
        else rng.random(shape(s)) < 0.5 if s.dtype.value == "bool"
        else rng.standard_normal(shape(s)).astype(np.float32)
        for n, s in ((i.name, before.spec(i.name)) for i in before.inputs)
    }  # fmt: skip
    weights = {w.name: rng.standard_normal(shape(w.spec)).astype(np.float32) for w in before.weights}
    found = []
    for g in (before, after):
        states = {s.name: np.ones(shape(s.spec), np.float32) for s in before.states}
        out = ir.interp.run(g, feeds, weights=weights, states=states)
        found.append([*out.values(), *(states[s.name] for s in before.states)])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def shape(spec: ir.Graph) -> tuple[int, ...]:
    return tuple(int(d) for d in spec.shape)


BATCHED = (
    CACHE.replace("1, 4, 1, 6", "3, 4, 2, 6").replace("1, 2, 1, 6", "3, 2, 2, 6").replace("1, 2, 8, 6", "3, 2, 8, 6")
    .replace("int64[1, 1]", "int64[3, 2]").replace("bool[1, 8]", "bool[3, 1, 2, 8]")
    .replace("%at: int64[1] = view(%p, size=[1])", "%u: int64[3, 1, 2, 1] = view(%p, size=[3, 1, 2, 1])\n"
             "%at: int64[3, 2, 2, 6] = expand(%u, size=[3, 2, 2, 6])")
    .replace("index_copy", "scatter")
)  # fmt: skip


def test_a_batch_with_places_of_its_own() -> None:
    before, after = made("fuse_rope_append", BATCHED)
    assert [n.op for n in after.nodes] == ["rope_append", "attention"]
    assert after.nodes[0].inputs[7:] == ("p", "p")
    same(before, after)


@pytest.mark.parametrize("text", [CACHE, BATCHED])
def test_rotations_caches_and_attention(text: str) -> None:
    before, between = made("fuse_rope_append", text)
    (step,) = find_passes(["fuse_rope_attention"])
    after = step.run(between)
    ir.verify(after)
    node = after.nodes[-1]
    assert [n.op for n in after.nodes if n.op != "view"] == ["rope_attention"]
    assert node.inputs[:7] == ("q", "k", "v", "c", "s", "keys", "values")
    assert node.inputs[9] == "m"
    assert [s.next for s in after.states] == [v.name for v in node.outputs[1:]]
    assert after.outputs[0].value == node.name
    same(before, after)
    assert ir.parse(str(after)) == after


@pytest.mark.parametrize("context", [
    PassContext(has_kernel=lambda op: op != "rope_attention"),
    PassContext(computes=lambda graph, node: Support.no(Reason.SHAPE_UNSUPPORTED, "too many")),
    PassContext(may_fuse=lambda graph, nodes: Support.no(Reason.FORCED, "stay")),
    PassContext(may_become=lambda op, graph, nodes: Support.no(Reason.FORCED, "stay")),
])  # fmt: skip
def test_attention_stays_apart_where_the_context_says_so(context: PassContext) -> None:
    _, between = made("fuse_rope_append", CACHE)
    (step,) = find_passes(["fuse_rope_attention"])
    assert step.run(between, context) is between


@pytest.mark.parametrize("text", [
    CACHE.replace('output "y" = %y', '%z: float32[1, 4, 1, 6] = add(%y, %qr)\noutput "y" = %z'),  # the queries are read twice
    CACHE.replace("attention(%qr, %newk, %newv", "attention(%qr, %newv, %newk"),
])  # fmt: skip
def test_attention_over_something_else_stays_apart(text: str) -> None:
    _, between = made("fuse_rope_append", text)
    (step,) = find_passes(["fuse_rope_attention"])
    assert step.run(between) is between


LEFT = {
    "many rows": ("fuse_gate", GATE.replace("ROWS", "9")),
    "the halves change places": ("fuse_gate", GATE.replace("ROWS", "2").replace("silu_mul(%g, %u)", "silu_mul(%u, %g)")),
    "a half is read elsewhere": ("fuse_gate", GATE.replace("ROWS", "2") + 'output "g" = %g\n'),
    "the layer is read elsewhere": (
        "fuse_gate",
        GATE.replace("ROWS", "2") + '%z: float32[1, 2, 8] = relu(%c)\noutput "z" = %z\n',
    ),
    "the norm has two readers": (
        "fuse_norm_linear",
        NORM + '%z: float32[1, 2, 6] = relu(%n)\noutput "z" = %z\n',
    ),
    "the norm leaves the graph": ("fuse_norm_linear", NORM + 'output "n" = %n\n'),
    "a norm without scale": ("fuse_norm_linear", NORM.replace("%x, %s, norm", "%x, norm")),
    "a norm over two dims": (
        "fuse_norm_linear",
        NORM.replace("weight %s: float32[6]", "weight %s: float32[2, 6]").replace("shape=[6]", "shape=[2, 6]"),
    ),
    "turned keys are read elsewhere": (
        "fuse_rope_append",
        CACHE + '%z: float32[1, 2, 1, 6] = relu(%kr)\noutput "z" = %z\n',
    ),
    "other places for values": (
        "fuse_rope_append",
        CACHE.replace("index_copy(%values, %at", "index_copy(%values, %o").replace(
            "input %m", "input %o: int64[1]\ninput %m"
        ),
    ),
    "tables in other order": ("fuse_rope_append", CACHE.replace("rope(%k, %c, %s", "rope(%k, %s, %c")),
    "queries are not turned": (
        "fuse_rope_append",
        CACHE.replace("rope(%q, %c, %s, %p)", "relu(%q)"),
    ),
    "a batch with places per head": (
        "fuse_rope_append",
        BATCHED.replace("int64[3, 2]", "int64[3, 2, 2]").replace("%u: int64[3, 1, 2, 1] = view(%p, size=[3, 1, 2, 1])",
        "%t: int64[3, 2] = select(%p, dim=1, index=0)\n%u: int64[3, 2, 2, 1] = view(%p, size=[3, 2, 2, 1])")
        .replace("%s, %p)", "%s, %t)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_as_it_is(case: str) -> None:
    before, after = made(*LEFT[case])
    fused = {"norm_linear", "rope_append"}
    assert not fused & {n.op for n in after.nodes}
    assert lines_of(after) == lines_of(before)


def lines_of(g: ir.Graph) -> list[str]:
    return [str(n) for n in g.nodes]


@pytest.mark.parametrize(
    ("name", "text"),
    [("fuse_gate", GATE.replace("ROWS", "2")), ("fuse_norm_linear", NORM), ("fuse_rope_append", CACHE)],
)
def test_targets_without_the_kernels_and_policies_that_forbid(name: str, text: str) -> None:
    bare = PassContext(has_kernel=lambda op: op not in ("norm_linear", "rope_append"))
    forbids = PassContext(may_fuse=lambda graph, nodes: Support.no(Reason.FORCED, "a rule"))
    for context in (bare, forbids):
        before, after = made(name, text, context)
        assert lines_of(after) == lines_of(before)


@pytest.mark.parametrize(("target", "most"), [("cpu", 8), ("cuda:sm_90", 4)])
def test_a_target_says_up_to_how_many_rows_it_pays(target: str, most: int) -> None:
    for rows in (most, most + 1):
        (entry,) = compile_graph(
            graph(GATE.replace("ROWS", str(rows))), target=target, passes=["fuse_gate"]
        ).entries
        (plan,) = entry.plans
        assert (len(plan.calls) == 1) == (rows == most)
