"""Small models that ask for much: each ends, in the program or in a named error, within 60 s and 1 GiB more than an empty model takes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from xpuruntime import children

sys.path.insert(0, str(Path(__file__).parent))
from small_protos import model, value

sys.path.pop(0)

# Reads one model, or opens a session on it, in a process that may take 1 GiB more than it has after the small one.
CHILD = """
import resource, sys
from pathlib import Path
import xpuruntime as xrt
from xpuruntime.errors import InternalError, OutOfMemory, XpuError
from xpuruntime.frontends.onnx import load_onnx

def work(path):
    if sys.argv[1] == "import":
        return load_onnx(Path(path).read_bytes())
    return xrt.InferenceSession(Path(path).read_bytes(), engine="native")

work(sys.argv[2])
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30),) * 2)
try:
    work(sys.argv[3])
except XpuError as error:
    print(type(error).__name__, error)
    sys.exit(3 if isinstance(error, InternalError | OutOfMemory) or "has no memory left" in str(error) else 0)
"""
Node = onnx.NodeProto


def bounded(folder: Path, how: str, proto: onnx.ModelProto) -> str:
    """What the process says of a hostile model."""
    onnx.save(model([helper.make_node("Relu", ["x"], ["y"])]), folder / "small.onnx")
    onnx.save(proto, folder / "hostile.onnx")
    command = children.python("-c", CHILD, how, str(folder / "small.onnx"), str(folder / "hostile.onnx"))
    environment = children.environment(XPU_CACHE_DIR=str(folder / "store"), OMP_NUM_THREADS="1")
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def held(**arrays: object) -> list[onnx.TensorProto]:
    return [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()]


def node(op: str, inputs: Sequence[str], *outputs: str, **attributes: object) -> Node:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def names(n: int) -> list[str]:
    return ["x", *(f"a{i}" for i in range(1, n)), "y"]


# ── what an import computes: shape arithmetic, folded operands, functions, control flow ──


def to_shape(nodes: list[Node], size: str, dims: Sequence[object], **weights: object) -> onnx.ModelProto:
    """A model whose shape arithmetic ends in ``size``."""
    end = [node("Expand", ["one", size], "e"), node("ReduceSum", ["e"], "y", keepdims=0)]
    weights = {"one": np.ones(1, np.float32), **weights}
    shape = node("Shape", ["x"], "p0")
    return model([shape, *nodes, *end], inputs=[value("x", list(dims))], outputs=[value("y", [])], weights=held(**weights))  # fmt: skip


def powers_of_a_symbol() -> onnx.ModelProto:
    nodes = [node("Mul", [f"p{i}", f"p{i}"], f"p{i + 1}") for i in range(40)]
    return to_shape(nodes, "p40", ["n"])


def divisions_of_divisors() -> onnx.ModelProto:
    pairs = [
        (node("Add", [f"p{i}", "k"], f"q{i}"), node("Div", [f"q{i}", f"p{i}"], f"p{i + 1}"))
        for i in range(60)
    ]
    return to_shape([n for p in pairs for n in p], "p60", ["n"], k=np.array([3]))


def numbers_beside_symbols() -> onnx.ModelProto:
    """[n, 3] squared and divided by [n, 1], again and again: a number of 2^40 digits."""
    first = [node("Concat", ["p0", "three"], "v0", axis=0), node("Concat", ["p0", "one64"], "d", axis=0)]
    pairs = [
        (node("Mul", [f"v{i}", f"v{i}"], f"w{i}"), node("Div", [f"w{i}", "d"], f"v{i + 1}"))
        for i in range(40)
    ]
    return to_shape([*first, *(n for p in pairs for n in p)], "v40", ["n"], three=np.array([3]), one64=np.array([1]))  # fmt: skip


def expanded() -> onnx.ModelProto:
    return to_shape(
        [node("Expand", ["two", "s"], "q")], "q", [4], two=np.array([2]), s=np.array([10**5, 10**5])
    )


def operands_that_broadcast() -> onnx.ModelProto:
    arrays = {f"a{i}": np.ones([1024 if j == i else 1 for j in range(4)], np.int64) for i in range(4)}
    return to_shape([node("Max", list(arrays), "q")], "q", [4], **arrays)


def gathered() -> onnx.ModelProto:
    table, index = np.ones((1, 1024), np.int64), np.zeros((1024, 1), np.int64)
    return to_shape([node("Gather", ["t", "i"], "q")], "q", [4], t=table, i=index)


def joined() -> onnx.ModelProto:
    """A million operands of a thousand elements."""
    return to_shape([node("Concat", ["t"] * 1_000_000, "q", axis=0)], "q", [4], t=np.ones(1024, np.int64))


def filters() -> onnx.ModelProto:
    sizes = {"bins": 10**6, "length": 10**9, "rate": 16000}
    arrays = {k: np.int64(v) for k, v in sizes.items()} | {"low": np.float32(0), "high": np.float32(8000)}
    nodes = [
        node("MelWeightMatrix", list(arrays), "m"),
        node("ReduceSum", ["m"], "s", keepdims=0),
        node("Add", ["x", "s"], "y"),
    ]
    return model(nodes, weights=held(**arrays))


def function(name: str, *calls: str) -> onnx.FunctionProto:
    steps = ["x", *(f"v{i}" for i in range(1, len(calls))), "y"]
    nodes = [
        helper.make_node(c, [steps[i]], [steps[i + 1]], domain="" if c[0].isupper() else "own")
        for i, c in enumerate(calls)
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["x"], ["y"], nodes, opsets)


def functions(levels: int, op: str = "Relu") -> onnx.ModelProto:
    """2^levels nodes of one op."""
    chain = [function(f"f{i}", f"f{i + 1}", f"f{i + 1}") for i in range(levels)]
    first = helper.make_node("f0", ["x"], ["y"], domain="own")
    return model([first], opsets=[("", 17), ("own", 1)], functions=[*chain, function(f"f{levels}", op)])


def nested_ifs() -> onnx.ModelProto:
    """As deep as protobuf reads."""

    def branch(depth: int) -> onnx.GraphProto:
        inner = (
            helper.make_node("Relu", ["x"], [f"o{depth}"])
            if depth == 0
            else node("If", ["c"], f"o{depth}", then_branch=branch(depth - 1), else_branch=branch(0))
        )
        return helper.make_graph([inner], "b", [], [value(f"o{depth}")])

    outer = node("If", ["c"], "y", then_branch=branch(28), else_branch=branch(0))
    return model([outer], inputs=[value("x"), value("c", [], onnx.TensorProto.BOOL)])


def nested_loops() -> onnx.ModelProto:
    """100 turns, 10 deep."""

    def body(depth: int) -> onnx.GraphProto:
        work = (
            node("Add", ["s1", "s1"], "r0")
            if depth == 0
            else node("Loop", ["t", "c", f"s{depth + 1}"], f"r{depth}", body=body(depth - 1))
        )
        more = node("Identity", [f"c{depth}"], f"d{depth}")
        boolean = onnx.TensorProto.BOOL
        inputs = [
            value(f"i{depth}", [], onnx.TensorProto.INT64),
            value(f"c{depth}", [], boolean),
            value(f"s{depth + 1}"),
        ]
        return helper.make_graph(
            [work, more], "b", inputs, [value(f"d{depth}", [], boolean), value(f"r{depth}")]
        )

    outer = node("Loop", ["t", "c", "x"], "y", body=body(9))
    return model([outer], weights=held(t=np.int64(100), c=np.bool_(True)))


IMPORTS = [powers_of_a_symbol, divisions_of_divisors, numbers_beside_symbols, expanded, operands_that_broadcast, gathered, joined,
           filters, nested_ifs, nested_loops]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("build", IMPORTS)
def test_an_import_is_bounded(build: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    bounded(tmp_path, "import", build())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("levels", [17, 19, 30])
def test_functions_that_expand_to_many_nodes(levels: int, tmp_path: Path) -> None:
    assert "local functions that call each other" in bounded(tmp_path, "import", functions(levels))


# ── what compiling makes of a model ──


def chain(*ops: str, n: int = 40, source: str = "x", shape: tuple[int, ...] = (4,), **attributes: object) -> list[Node]:  # fmt: skip
    """``p = op2(op1(p), p)``: 2^n paths through 2n nodes."""
    nodes, p = [], source
    for i in range(n):
        nodes += [node(ops[0], [p], f"s{i}"), node(ops[1], [f"s{i}", p], f"p{i}", **attributes)]
        p = f"p{i}"
    return nodes


def shared_values() -> onnx.ModelProto:
    return model([*chain("Sin", "Mul"), node("Identity", ["p39"], "y")])


def shared_weights() -> onnx.ModelProto:
    weights = held(w=np.ones(4, np.float32))
    return model([*chain("Sin", "Mul", source="w"), node("Add", ["x", "p39"], "y")], weights=weights)


def doubled_weights() -> onnx.ModelProto:
    """A weight of 16 bytes joined with itself until it has 2^36."""
    steps = ["w", *(f"a{i}" for i in range(32))]
    nodes = [node("Concat", [a, a], b, axis=0) for a, b in itertools.pairwise(steps)]
    last = [node("ReduceSum", [steps[-1]], "s", keepdims=0), node("Add", ["x", "s"], "y")]
    return model([*nodes, *last], weights=held(w=np.ones(4, np.float32)))


def long_ranges() -> onnx.ModelProto:
    nodes = [node("Range", ["a", "b", "c"], "r"), node("Cast", ["r"], "f", to=1), node("Sin", ["f"], "s"),
             node("ReduceSum", ["s"], "q", keepdims=0), node("Add", ["x", "q"], "y")]  # fmt: skip
    return model(nodes, weights=held(a=np.int64(0), b=np.int64(10**9), c=np.int64(1)))


def softmaxes() -> onnx.ModelProto:
    """Every other one depends on all before it."""
    return functions(12, "Softmax")


def many_outputs() -> onnx.ModelProto:
    parts = [f"y{i}" for i in range(2000)]
    return model([node("Split", ["x"], *parts)], inputs=[value("x", [2000])], outputs=[value(p, [1]) for p in parts])  # fmt: skip


COMPILED = [shared_values, shared_weights, doubled_weights, long_ranges, softmaxes, many_outputs]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("build", COMPILED)
def test_compiling_is_bounded(build: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    bounded(tmp_path, "session", build())
