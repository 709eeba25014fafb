"""The cheapest way through a model by measured times, against every way there is."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.compiler.partition.cost import Costs
from xpuruntime.compiler.partition.measured import cheapest_path, crossing_bytes
from xpuruntime.ir import GraphBuilder

ENGINES = ("native", "onnxruntime", "openvino")
COSTS = Costs(region_s={"native": 2.0, "onnxruntime": 3.0, "openvino": 5.0}, bytes_per_s=4.0)


def price(way: list[str], seconds: list[dict[str, float]], crossing: list[int]) -> float:
    """What a way costs, said another time and simply."""
    total = COSTS.enter_s(way[0])
    for i, engine in enumerate(way):
        total += seconds[i][engine]
        if i and way[i - 1] != engine:
            total += COSTS.enter_s(engine) + crossing[i]
    return total


@given(
    st.lists(
        st.dictionaries(st.sampled_from(ENGINES), st.integers(0, 12).map(float), min_size=1),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(0, 6), min_size=6, max_size=6),
)
def test_no_way_is_cheaper(seconds, crossing) -> None:
    found = cheapest_path(seconds, crossing, COSTS)
    least = min(price(list(way), seconds, crossing) for way in itertools.product(*seconds))
    assert price(found, seconds, crossing) == least


def test_without_atoms_there_is_no_way() -> None:
    assert cheapest_path([], [], COSTS) == []


def test_what_crosses_a_place_is_what_is_made_before_it_and_read_behind_it() -> None:
    b = GraphBuilder("branches")
    x = b.input("x", "float32[8]")  # an input crosses nothing: every engine is handed it
    wide = b.call("relu", x)
    narrow = b.sum(wide, dim=[0])
    side = b.call("exp", narrow)
    b.output("y", b.call("add", wide, side))
    graph = b.build()
    names = [n.name for n in graph.nodes]
    assert crossing_bytes(graph, [[n] for n in names], COSTS) == [0, 32, 36, 36]
    assert crossing_bytes(graph, [names[:2], names[2:]], COSTS) == [0, 36]
    assert crossing_bytes(graph, [names], COSTS) == [0]
