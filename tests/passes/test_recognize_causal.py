"""Causal masks that come as tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.graph_equivalence import difference

from xpuruntime import ir
from xpuruntime.decisions import Reason, Support
from xpuruntime.ir import Const, Graph, GraphBuilder, Node
from xpuruntime.passes import PassContext, recognize_causal, run_passes
from xpuruntime.types import DType

LOWEST = float(np.finfo(np.float32).min)
Mask = Callable[[GraphBuilder], Any]


def _attention(
    mask: Mask,
    queries: Any = 5,
    keys: Any = 5,
    *,
    dtype: str = "float32",
    heads: int = 4,
    groups: int = 2,
    **attrs: Any,
) -> Graph:
    b = GraphBuilder("attention")
    q = b.input("q", f"{dtype}[2, {heads}, {queries}, 8]")
    k, v = (b.input(n, f"{dtype}[2, {groups}, {keys}, 8]") for n in "kv")
    b.output("y", b.attention(q, k, v, mask(b), **attrs))
    return b.build()


def _constant(values: Any, dtype: DType | None = None) -> Mask:
    return lambda b: b.constant(
        np.asarray(values) if dtype is None else Const(np.asarray(values), dtype).numpy()
    )


def _causal(queries: int = 5, keys: int = 5, offset: int = 0) -> NDArray[np.bool_]:
    return np.tri(queries, keys, offset, dtype=np.bool_)


def _positions(length: int, compare: str = "le", shift: int = 0) -> Mask:
    """Keys next to queries, as exporters write it."""

    def made(b: GraphBuilder) -> Any:
        places = b.arange(end=length, dtype=DType.INT64)
        keys, queries = b.view(places, size=[1, 1, 1, length]), b.view(places, size=[1, 1, length, 1])
        return b.call(compare, keys, b.add(queries, shift))

    return made


def _after(graph: Graph, context: PassContext | None = None) -> Node:
    """The attention after the pass, which computes the same and changes nothing a second time."""
    after = recognize_causal.run(graph, context)
    ir.verify(after)
    assert recognize_causal.run(after, context) is after
    assert difference(graph, after) == ""
    (node,) = (n for n in after.nodes if n.op == "attention")
    return node


def _is_causal(graph: Graph, offset: int = 0) -> bool:
    node = _after(graph)
    assert len(node.inputs) == 4 - node.attrs["causal"]
    return bool(node.attrs["causal"]) and node.attrs["causal_offset"] == offset


def test_a_mask_of_positions(golden) -> None:
    golden(
        "recognize_causal",
        """
        input %q: float32[2, 3, 4, 8]
        input %k: float32[2, 3, 4, 8]
        %p: int64[4] = constant(value=int64[4]{0, 1, 2, 3})
        %c: int64[4, 1] = view(%p, size=[4, 1])
        %m: bool[4, 4] = le(%p, %c)
        %y: float32[2, 3, 4, 8] = attention(%q, %k, %k, %m, scale=0.5, softcap=3.0)
        output "y" = %y
        """,
        """
        %y: float32[2, 3, 4, 8] = attention(%q, %k, %k, causal=true, scale=0.5, softcap=3.0)
        """,
    )


@pytest.mark.parametrize("low", [-math.inf, LOWEST, -65504.0, -1e9])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64])
def test_numbers_that_are_added(low: float, dtype: DType) -> None:
    with np.errstate(over="ignore"):
        assert _is_causal(_attention(_constant(np.where(_causal(), 0.0, low), dtype), dtype=dtype.value))


@pytest.mark.parametrize(
    ("queries", "keys", "offset"), [(1, 6, 2), (3, 6, 3), (3, 6, 0), (6, 4, 0), (6, 4, 2), (4, 2, 0)]
)
@pytest.mark.parametrize("attrs", [{}, {"scale": 0.3}, {"softcap": 2.0, "scale": 2.0}])
def test_other_numbers_of_queries_than_of_keys(
    queries: int, keys: int, offset: int, attrs: dict[str, float]
) -> None:
    mask = _causal(queries, keys, offset)
    for values in (mask, np.where(mask, 0, -np.inf).astype(np.float32)):
        assert _is_causal(_attention(_constant(values), queries, keys, **attrs), offset)


@pytest.mark.parametrize("shape", [(1, 1, 5, 5), (2, 1, 5, 5), (1, 4, 5, 5), (2, 4, 5, 5), (4, 5, 5)])
def test_masks_alike_for_samples_and_heads(shape: tuple[int, ...]) -> None:
    whole = np.broadcast_to(_causal(), shape)
    assert _is_causal(_attention(_constant(whole)))
    assert _is_causal(_attention(lambda b: b.expand(b.constant(_causal()), size=list(shape))))
    if len(shape) == 4 and shape[:2] != (1, 1):
        other = whole.copy()
        other[-1, -1, 3, 4] = True
        assert not _is_causal(_attention(_constant(other)))


def test_a_mask_that_hides_nothing_goes() -> None:
    for values in (np.ones((2, 1, 1, 5), np.bool_), np.zeros((5, 5), np.float32), np.True_):
        node = _after(_attention(_constant(values)))
        assert (len(node.inputs), node.attrs["causal"]) == (3, False)
    symbolic = _attention(_constant(np.ones((1, 1), np.bool_)), "queries", "keys")
    assert len(recognize_causal.run(symbolic).nodes[-1].inputs) == 3


@pytest.mark.parametrize(("own", "offset", "after"), [(0, 0, 0), (2, 0, 0), (1, 3, 1), (-1, 0, -1)])
def test_attention_that_is_causal_already_sees_what_both_let_it(own: int, offset: int, after: int) -> None:
    for values in (_causal(offset=offset), np.where(_causal(offset=offset), 0, LOWEST).astype(np.float32)):
        node = _after(_attention(_constant(values), causal=True, causal_offset=own))
        assert (len(node.inputs), node.attrs["causal_offset"]) == (3, after)


def test_an_offset_that_is_a_symbol_stays() -> None:
    b = GraphBuilder("attention")
    q, past = b.input("q", "float32[1, 2, 4, 8]"), b.input("past", "float32[n, 1]")
    b.output("p", past)
    offset = b.values[past].spec.shape[0]
    b.output("y", b.attention(q, q, q, b.constant(_causal(4, 4)), causal=True, causal_offset=offset))
    graph = b.build()
    assert recognize_causal.run(graph) is graph


def _changed(place: tuple[int, int], values: NDArray[Any], to: Any) -> NDArray[Any]:
    other = values.copy()
    other[place] = to
    return other


ADDED = np.where(_causal(), 0, -np.inf).astype(np.float32)
OTHERS: dict[str, Any] = {
    "a window": _causal() & ~_causal(offset=-3),
    "padding": _causal() & (np.arange(5) > 0),
    "keys alone": np.arange(5)[None] < 3,
    "the other half": ~_causal(offset=-1),
    "a row that sees nothing": _causal(offset=-1),
    "nothing seen": np.zeros((5, 5), np.bool_),
    "a bias": _changed((3, 1), ADDED, 0.5),
    "not a number": _changed((3, 1), ADDED, np.nan),
    "not low enough": np.where(_causal(), 0, -1e4).astype(np.float32),
    "one hidden place too high": _changed((0, 4), ADDED, -65000.0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_stay(name: str) -> None:
    graph = _attention(_constant(OTHERS[name]))
    assert recognize_causal.run(graph) is graph


def test_masks_that_are_not_known_stay() -> None:
    for mask in (
        lambda b: b.input("m", "bool[5, 5]"),
        lambda b: b.weight("m", "bool[5, 5]"),
        lambda b: b.call("logical_and", b.constant(_causal()), b.input("m", "bool[2, 1, 1, 5]")),
        lambda b: b.gt(b.rand(size=[5, 5]), -1.0),
    ):
        graph = _attention(mask)
        assert recognize_causal.run(graph) is graph
    symbolic = _attention(_constant(np.zeros((1, 1), np.bool_)), "queries", "keys")
    assert recognize_causal.run(symbolic) is symbolic


def test_an_index_outside_its_dim_is_the_runs_to_say() -> None:
    graph = _attention(
        lambda b: b.index_select(b.constant(_causal()), b.constant(np.array([0, 1, 2, 3, 9])), dim=0)
    )
    assert recognize_causal.run(graph) is graph


def test_a_weight_that_somebody_can_tell() -> None:
    graph = _attention(lambda b: b.slice(b.weight("m", "bool[1, 1, 8, 8]"), dim=2, end=5), keys=8)
    for values, causal in ((_causal(8, 8), True), (_causal(8, 8, 1), True), (_causal(8, 8).T, False)):
        after = recognize_causal.run(graph, PassContext(peek=lambda weight, m=values: m[None, None]))
        assert after.nodes[-1].attrs["causal"] == causal
        assert ("m" in after.weight_names) != causal
        assert difference(graph, after, weights={"m": values[None, None]}) == ""


def test_long_sequences() -> None:
    for length, causal in ((2048, True), (4096, True), (4097, False)):
        after = recognize_causal.run(_attention(_positions(length), length, length, heads=1, groups=1))
        assert after.nodes[-1].attrs["causal"] == causal
    window = _attention(_positions(2048, "gt", -1024), 2048, 2048)
    assert recognize_causal.run(window) is window


def test_a_chain_that_is_too_long_stays() -> None:
    for count in (62, 64):
        graph = _attention(
            lambda b, n=count: reduce(lambda m, _: b.logical_not(m), range(n), b.constant(_causal()))
        )
        assert (recognize_causal.run(graph) is graph) == (count == 64)


def test_layers_share_a_mask_and_keep_their_sources() -> None:
    graph = ir.parse("""
    graph "layers" {
      input %q: float32[1, 2, 3, 4]
      %p: int64[3] = constant(value=int64[3]{0, 1, 2})
      %c: int64[3, 1] = view(%p, size=[3, 1])
      %m: bool[3, 3] = le(%p, %c)  # name="mask"
      %x: float32[1, 2, 3, 4] = attention(%q, %q, %q, %m)  # name="first"
      %y: float32[1, 2, 3, 4] = attention(%x, %x, %x, %m)  # name="second"
      output "y" = %y
    }
    """)
    after = recognize_causal.run(graph)
    assert [n.attrs["causal"] for n in after.nodes] == [True, True]
    assert difference(graph, after) == ""
    for before, node in zip(graph.nodes[-2:], after.nodes, strict=True):
        assert node.sources == ir.sources_of([before, *graph.nodes[:-2]])


def test_a_mask_that_leaves_the_graph_is_computed() -> None:
    b = GraphBuilder("kept")
    q, mask = b.input("q", "float32[1, 2, 5, 4]"), _positions(5)(b := b)
    b.output("m", mask)
    b.output("y", b.attention(q, q, q, mask))
    after = recognize_causal.run(graph := b.build())
    assert after.nodes[-1].attrs["causal"]
    assert difference(graph, after) == ""


def test_a_policy_that_forbids_keeps_the_mask() -> None:
    asked = []

    def refused(graph: Graph, nodes: Any) -> Support:
        asked.append([n.op for n in nodes])
        return Support.no(Reason.FORCED, "a rule names the comparison")

    graph = _attention(_positions(5))
    assert recognize_causal.run(graph, PassContext(may_fuse=refused)) is graph
    assert asked == [["arange", "view", "view", "add", "le", "attention"]]


def test_where_nothing_computes_attention_it_is_written_out_with_its_mask() -> None:
    graph = _attention(_constant(_causal()))
    context = PassContext(has_kernel=lambda op: op != "attention")
    assert recognize_causal.run(graph, context) is graph
    after = run_passes(graph, context=context)
    assert "attention" not in {n.op for n in after}
    assert difference(graph, after) == ""


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_recognized_if_and_only_if_causal(data: st.DataObject) -> None:
    queries, keys = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    mask = _causal(queries, keys, data.draw(st.integers(-1, keys)))
    flips = st.lists(st.tuples(st.integers(0, queries - 1), st.integers(0, keys - 1)), max_size=2)
    for place in data.draw(flips):
        mask[place] ^= True
    offset = int(mask[0].sum()) - 1
    causal = offset >= 0 and all(mask[i, j] == (j <= i + offset) for i in range(queries) for j in range(keys))
    values = mask if data.draw(st.booleans()) else np.where(mask, 0, -np.inf).astype(np.float32)
    node = _after(_attention(_constant(values), queries, keys))
    assert (len(node.inputs) == 3) == causal
    assert node.attrs["causal"] == (causal and not mask.all())


@pytest.mark.parametrize(("queries", "keys", "offset"), [(4, 4, 0), (3, 5, 2)])
def test_one_changed_element_is_seen(queries: int, keys: int, offset: int) -> None:
    mask = _causal(queries, keys, offset)
    for values, low in ((mask, None), (np.where(mask, 0, LOWEST).astype(np.float32), LOWEST)):
        for place in itertools.product(range(queries), range(keys)):
            to = not mask[place] if low is None else low if mask[place] else 0
            graph = _attention(_constant(_changed(place, values, to)), queries, keys)
            assert recognize_causal.run(graph) is graph, place
