from __future__ import annotations

import contextlib
import json
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graphs import graphs

from xpuruntime import ir
from xpuruntime.errors import FormatError, IrError

everything = graphs(opaque=True, states=True, sources=True)
slow_ok = settings(suppress_health_check=list(HealthCheck), deadline=None)


@slow_ok
@given(everything)
def test_text_parses_back_equal(graph: ir.Graph) -> None:
    text = str(graph)
    back = ir.parse(text)
    assert back == graph
    assert str(back) == text
    assert back.digest == graph.digest


@slow_ok
@given(everything)
def test_json_gives_an_equal_graph(graph: ir.Graph) -> None:
    data = json.loads(json.dumps(graph.to_json(), allow_nan=False))
    assert ir.Graph.from_json(data) == graph


@slow_ok
@given(everything)
def test_file_gives_an_equal_graph(tmp_path_factory: pytest.TempPathFactory, graph: ir.Graph) -> None:
    path = tmp_path_factory.mktemp("ir") / "g.json"
    graph.save(path)
    assert ir.Graph.load(path) == graph


@slow_ok
@given(everything)
def test_random_graphs_verify_and_pickle(graph: ir.Graph) -> None:
    assert ir.problems(graph) == []
    assert pickle.loads(pickle.dumps(graph)) == graph


@slow_ok
@given(graphs(max_nodes=6), st.data())
def test_every_changed_spec_is_seen(graph: ir.Graph, data: st.DataObject) -> None:
    """A wrong dtype on any node's output is caught by verify."""
    places = [(i, j) for i, n in enumerate(graph.nodes) for j, _ in enumerate(n.outputs)]
    if not places:
        return
    i, j = data.draw(st.sampled_from(places))
    node = graph.nodes[i]
    spec = node.outputs[j].spec
    wrong = ir.Value(node.outputs[j].name, type(spec)((*spec.shape, 7), spec.dtype))
    outputs = (*node.outputs[:j], wrong, *node.outputs[j + 1 :])
    broken = graph.replace(
        nodes=(*graph.nodes[:i], ir.Node(node.op, node.inputs, node.attrs, outputs), *graph.nodes[i + 1 :])
    )
    assert ir.problems(broken)
    with pytest.raises(IrError):
        ir.parse(str(broken))


@slow_ok
@given(st.text(max_size=300))
def test_text_fuzz_from_nothing(text: str) -> None:
    with pytest.raises((FormatError, IrError)):
        ir.parse(text)


@slow_ok
@given(graphs(max_nodes=5, opaque=True, sources=True), st.data())
def test_text_fuzz_by_mutation(graph: ir.Graph, data: st.DataObject) -> None:
    text = str(graph)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 12))
        piece = data.draw(
            st.sampled_from(
                [
                    "",
                    "%",
                    "[",
                    "]",
                    "{",
                    "(",
                    "<n*n>",
                    '"',
                    "0",
                    "-1",
                    "nan",
                    "\n",
                    ",",
                    "=",
                    "\x00",
                    "é",
                    "9" * 30,
                    "?",
                ]
            )
        )
        text = text[:at] + piece + text[at + cut :]
    with contextlib.suppress(FormatError, IrError):
        ir.parse(text)


@slow_ok
@given(graphs(max_nodes=5, opaque=True, states=True, sources=True), st.data())
def test_json_fuzz_by_mutation(graph: ir.Graph, data: st.DataObject) -> None:
    tree = json.loads(json.dumps(graph.to_json()))
    for _ in range(data.draw(st.integers(1, 3))):
        spot, key = tree, None
        parent = None
        while isinstance(spot, dict | list) and spot and (parent is None or data.draw(st.booleans())):
            key = data.draw(
                st.sampled_from(sorted(spot) if isinstance(spot, dict) else list(range(len(spot))))
            )
            parent, spot = spot, spot[key]
        parent[key] = data.draw(
            st.sampled_from(
                [
                    None,
                    True,
                    -1,
                    2.5,
                    1 << 70,
                    "",
                    "x",
                    "float32[n]",
                    [],
                    {},
                    [1],
                    {"dim": "n"},
                    {"const": 3},
                    {"map": 1},
                ]
            )
        )
    with contextlib.suppress(FormatError, IrError):
        ir.Graph.from_json(tree)


@slow_ok
@given(st.binary(max_size=200))
def test_file_fuzz(tmp_path_factory: pytest.TempPathFactory, blob: bytes) -> None:
    path = tmp_path_factory.mktemp("ir") / "g.json"
    path.write_bytes(blob)
    with pytest.raises(FormatError):
        ir.Graph.load(path)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        'graph "g" {' + " metadata a=" + "[" * 50_000,
        'graph "g" {' + "{" * 50_000,
        'graph "g" { input %x: float32[' + "(" * 5_000 + "]",
        'graph "g" { input %x: float32[' + "*".join(["(a+b+c+d+e+f+g+h)"] * 200) + "] }",
        'graph "g" { input %x: float32[' + "*".join(["n"] * 4000) + "] }",
        'graph "g" { input %x: float32[' + "9" * 5000 + "] }",
        'graph "g" { input %x: float32[' + ",".join(["1"] * 5000) + "] }",
        'graph "g" { %y: float32[] = full(size=[], value=' + "9" * 5000 + ", dtype=float32) }",
        'graph "g" { %y: float32[] = full(size=[], value=1' + "0" * 390 + ".0, dtype=float32) }",
        'graph "g" { input %x: float32[\'' + "a" * 9000 + "] }",
        'graph "' + "\\u0041" * 50_000,
        'graph "g" { %y: float32[99999999999] = constant(value=float32[99999999999]{}) }',
    ],
    ids=range(13),
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises((FormatError, IrError)):
        ir.parse(text)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b"9" * 100_000,
        b'{"format":"xpuruntime.ir","version":' + b"1" * 9000 + b"}",
    ],
    ids=range(4),
)
def test_hostile_json_is_refused(tmp_path, data: bytes) -> None:
    path = tmp_path / "g.json"
    path.write_bytes(data)
    with pytest.raises(FormatError):
        ir.Graph.load(path)


def test_every_truncation_is_refused(tmp_path) -> None:
    b = ir.GraphBuilder("g")
    b.output("y", b.relu(b.input("x", "float32[n, 3]")))
    graph = b.build()
    text = str(graph)
    for end in range(len(text.rstrip())):
        with pytest.raises((FormatError, IrError)):
            ir.parse(text[:end])
    path = tmp_path / "g.json"
    graph.save(path)
    blob = path.read_bytes().rstrip()
    for end in range(len(blob)):
        path.write_bytes(blob[:end])
        with pytest.raises(FormatError):
            ir.Graph.load(path)


def test_errors_of_the_formats_say_where_and_what(tmp_path) -> None:
    with pytest.raises(FormatError) as error:
        ir.parse('graph "g" {\n  input %x: float32[2]\n  %y: float32[2] = rellu(%x)\n}')
    assert str(error.value) == (
        "[graph text 3:20] op 'rellu' is not in the op table. Did you mean relu, prelu, elu?; got 'rellu(%x)'. Print str(graph) of any graph to see the form."
    )
    path = tmp_path / "g.json"
    path.write_text('{"format": "xpuruntime.ir", "version": 2}')
    with pytest.raises(
        FormatError, match=r"has format version '2'; this release reads 1\. Write it with Graph\.save"
    ):
        ir.load(path)
    b = ir.GraphBuilder("g")
    b.output("y", b.relu(b.input("x", "float32[2]")))
    data = b.build().to_json() | {"extra": 1}
    with pytest.raises(FormatError, match="the graph has an unknown field 'extra'"):
        ir.from_json(data)
    with pytest.raises(FormatError, match="cannot be read; got No such file"):
        ir.load(tmp_path / "absent.json")


def test_constants_of_every_dtype_keep_their_bits() -> None:
    from xpuruntime.types import DType

    for dtype in DType:
        b = ir.GraphBuilder("g")
        if dtype is DType.STRING:
            array = np.array(["a", 'q"uote', "new\nline", "ü"], dtype=object)
        else:
            array = np.array([0, 1, 1, 0]).astype(dtype.numpy)
            if dtype.is_float and dtype not in (DType.FLOAT4_E2M1FN, DType.FLOAT8_E8M0FNU):
                array[1] = np.nan
        b.output("y", b.constant(ir.Const(array, dtype)))
        graph = b.build()
        assert ir.parse(str(graph)) == graph
        assert ir.Graph.from_json(graph.to_json()) == graph
        back = ir.parse(str(graph)).node("constant").attrs["value"].numpy()
        assert back.dtype == array.dtype
        assert (back == array).all() if dtype is DType.STRING else back.tobytes() == array.tobytes()
