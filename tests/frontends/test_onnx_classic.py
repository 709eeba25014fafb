"""Trees, n-grams, optimizer steps and other small ops of ONNX: the interpreter and the native engine against ONNX Runtime or onnx's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.native import check
from support.onnx_models import build_model

from xpuruntime.frontends.onnx import import_onnx
from xpuruntime.ir import interp

F, I32, I64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
Array = np.ndarray[Any, Any]
node = helper.make_node
TRAINING, CLASSIC = "ai.onnx.preview.training", "ai.onnx.ml"


def one(
    made: onnx.NodeProto, inputs: list[tuple[str, int, list[Any]]], outputs: list[tuple[str, int, int]]
) -> onnx.ModelProto:
    """Return a model of one node. outputs: name, element type and rank."""
    types = [helper.make_tensor_value_info(*i) for i in inputs]
    results = [
        helper.make_tensor_value_info(name, kind, [f"{name}_{i}" for i in range(rank)])
        for name, kind, rank in outputs
    ]
    opsets = [helper.make_opsetid(*o) for o in (("", 18), (TRAINING, 1), (CLASSIC, 5))]
    model = helper.make_model(
        helper.make_graph([made], "g", types, results), opset_imports=opsets, ir_version=10
    )
    onnx.checker.check_model(model)
    return model


def lowered(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    graph, weights = import_onnx(model)
    assert [n.attrs["reason"] for n in graph.nodes if n.op == "opaque"] == []
    return list(interp.run(graph, feeds, weights=weights).values())


def on_ort(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


class Forest:
    """Random trees: each has a chain of branches with leaves at random sides, and nodes of every mode."""

    def __init__(self, seed: int, trees: int, members: bool) -> None:
        draw = np.random.default_rng(seed)
        self.roots: list[int] = []
        self.members: list[float] = []
        columns: dict[str, list[Any]] = {
            k: [] for k in ("feature", "mode", "split", "true", "false", "true_leaf", "false_leaf", "tracks")
        }
        self.columns, self.leaves = columns, 0

        def grow(depth: int) -> tuple[int, int]:
            if depth == 0 or (depth < 3 and draw.random() < 0.3):
                self.leaves += 1
                return self.leaves - 1, 1
            at = len(columns["mode"])
            mode = int(draw.integers(0, 7 if members else 6))
            split = float(draw.integers(-2, 3)) / 2
            for key, value in (
                ("feature", draw.integers(0, 3)),
                ("mode", mode),
                ("split", split),
                ("tracks", draw.integers(0, 2)),
            ):
                columns[key].append(value)
            for key in ("true", "false", "true_leaf", "false_leaf"):
                columns[key].append(0)
            if mode == 6:
                self.members += [0.5, -1.0, float(draw.integers(1, 4)), np.nan]
            for side in ("true", "false"):
                columns[side][at], columns[f"{side}_leaf"][at] = grow(depth - 1)
            return at, 0

        for _ in range(trees):
            self.roots.append(grow(4)[0])
        self.weights = draw.standard_normal(self.leaves).astype(np.float32)
        self.targets = draw.integers(0, 3, self.leaves).tolist()

    def model(self, aggregate: int) -> onnx.ModelProto:
        c = {k: [int(v) for v in values] for k, values in self.columns.items() if k != "split"}
        more = {} if not self.members else {"membership_values": tensor(np.array(self.members, np.float32))}
        made = node(
            "TreeEnsemble", ["x"], ["y"], domain=CLASSIC, n_targets=3, aggregate_function=aggregate, post_transform=0,
            nodes_featureids=c["feature"], nodes_modes=tensor(np.array(c["mode"], np.uint8)),
            nodes_splits=tensor(np.array(self.columns["split"], np.float32)), nodes_truenodeids=c["true"],
            nodes_falsenodeids=c["false"], nodes_trueleafs=c["true_leaf"], nodes_falseleafs=c["false_leaf"],
            nodes_missing_value_tracks_true=c["tracks"], tree_roots=self.roots,
            leaf_targetids=self.targets, leaf_weights=tensor(self.weights), **more,
        )  # fmt: skip
        return one(made, [("x", F, ["rows", 3])], [("y", F, 2)])


def tensor(array: Array) -> onnx.TensorProto:
    return numpy_helper.from_array(array)


@pytest.mark.parametrize(
    ("seed", "members", "aggregate"), [(0, False, 1), (1, True, 1), (2, True, 0), (3, False, 0)]
)
def test_trees(seed: int, members: bool, aggregate: int) -> None:
    model = Forest(seed, 5, members).model(aggregate)
    draw = np.random.default_rng(seed)
    x = (draw.integers(-4, 5, (40, 3)) / 2).astype(np.float32)
    x[:6, :2] = [[np.nan, 0], [0, np.nan], [np.inf, 1], [-np.inf, np.nan], [-0.0, 0.0], [np.nan, np.nan]]
    for rows in (x, x[:1], x[:0]):
        (expected,) = (
            ReferenceEvaluator(model).run(None, {"x": rows}) if len(rows) else [np.zeros((0, 3), np.float32)]
        )
        np.testing.assert_allclose(lowered(model, {"x": rows})[0], expected, rtol=1e-5, atol=1e-5)
    if seed == 1:
        graph, weights = import_onnx(model)
        check(graph, {"x": x}, weights=weights)


def test_a_forest_that_cannot_be_lowered_says_why() -> None:
    model = Forest(0, 2, False).model(2)
    graph, _ = import_onnx(model)
    assert [n.attrs["reason"] for n in graph.nodes] == [
        "only sums and means of trees without a transform are supported"
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_n_grams(mode: str) -> None:
    draw = np.random.default_rng(len(mode))
    pool, starts = [], []
    for size in (1, 2, 3):
        starts.append(len(pool))
        grams = {tuple(g) for g in draw.integers(0, 4, (6, size)).tolist()}
        pool += [v for g in sorted(grams) for v in g]
    count = sum(
        (b - a) // s for s, (a, b) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1)
    )
    columns = draw.permutation(count).tolist()
    for low, high, skips in ((1, 3, 2), (2, 3, 0), (1, 1, 3), (2, 2, 1)):
        made = node(
            "TfIdfVectorizer", ["x"], ["y"], mode=mode, min_gram_length=low, max_gram_length=high, max_skip_count=skips,
            ngram_counts=starts, ngram_indexes=columns, pool_int64s=pool,
            weights=draw.random(count).astype(np.float32).tolist(),
        )  # fmt: skip
        for shape in ((3, 9), (7,), (2, 1)):
            kind = I32 if shape == (3, 9) else I64
            model = one(made, [("x", kind, list(shape))], [("y", F, len(shape))])
            x = draw.integers(0, 4, shape).astype(np.int32 if kind == I32 else np.int64)
            for actual, expected in zip(lowered(model, {"x": x}), on_ort(model, {"x": x}), strict=True):
                np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize(
    ("op", "states", "attributes"),
    [
        ("Adagrad", 1, {"decay_factor": 0.1, "epsilon": 1e-5, "norm_coefficient": 0.01}),
        ("Adam", 2, {"norm_coefficient": 0.01, "norm_coefficient_post": 0.1, "alpha": 0.95, "beta": 0.9}),
        ("Momentum", 1, {"mode": "standard", "alpha": 0.9, "beta": 0.3, "norm_coefficient": 0.01}),
        ("Momentum", 1, {"mode": "nesterov", "alpha": 0.9, "beta": 0.3, "norm_coefficient": 0.01}),
    ],
)
def test_optimizers(op: str, states: int, attributes: dict[str, Any], step: int) -> None:
    draw = np.random.default_rng(7)
    shapes, groups = [(3, 5), (), (0, 2)], 2 + states
    names = [f"{g}{i}" for g in range(groups) for i in range(len(shapes))]
    feeds: dict[str, Array] = {"r": np.array(0.1, np.float32), "t": np.array(step, np.int64)}
    for g in range(groups):
        for i, shape in enumerate(shapes):
            values = np.asarray(draw.standard_normal(shape), np.float32)
            feeds[f"{g}{i}"] = np.abs(values) if g > 1 else values
    results = [(f"y{g}_{i}", F, len(shape)) for g in range(1 + states) for i, shape in enumerate(shapes)]
    made = node(op, ["r", "t", *names], [r[0] for r in results], domain=TRAINING, **attributes)
    kinds = [(n, I64 if n == "t" else F, list(v.shape)) for n, v in feeds.items()]
    model = one(made, kinds, results)
    for actual, expected in zip(
        lowered(model, feeds), ReferenceEvaluator(model).run(None, feeds), strict=True
    ):
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_columns_thresholds_and_optional_tensors() -> None:
    x = np.array([[1.0, np.nan, -np.inf], [0.5, 0.4999, np.inf]], np.float32)
    index = np.array([[2, 0]], np.int64)
    extract = node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain=CLASSIC)
    for array in (x, x[0]):
        model = one(extract, [("x", F, list(array.shape)), ("i", I64, [1, 2])], [("y", F, 2)])
        np.testing.assert_array_equal(
            lowered(model, {"x": array, "i": index})[0], np.atleast_2d(array)[:, [2, 0]]
        )
    model = one(
        node("Binarizer", ["x"], ["y"], domain=CLASSIC, threshold=0.5), [("x", F, [2, 3])], [("y", F, 2)]
    )
    np.testing.assert_array_equal(
        lowered(model, {"x": x})[0], (x > 0.5).astype(np.float32)
    )  # ORT refuses NaN
    model = one(node("OptionalGetElement", ["x"], ["y"]), [("x", F, [2, 3])], [("y", F, 2)])
    np.testing.assert_array_equal(lowered(model, {"x": x})[0], x)
    for inputs, expected in ((["x"], True), ([""], False)):
        model = one(
            node("OptionalHasElement", inputs, ["y"]), [("x", F, [2, 3])], [("y", TensorProto.BOOL, 0)]
        )
        assert lowered(model, {"x": x})[0].item() is expected


def test_loops_are_written_out_if_their_bodies_need_the_number() -> None:
    """A slice whose start is the number of the iteration, in a loop within a loop; not if the number of iterations is too large."""

    def model(trips: int) -> onnx.ModelProto:
        info = helper.make_tensor_value_info
        body = helper.make_graph(
            [
                node("Constant", [], ["one"], value_ints=[1]),
                node("Constant", [], ["shape"], value_ints=[1]),
                node("Reshape", ["i", "shape"], ["start"]),
                node("Add", ["start", "one"], ["end"]),
                node("Slice", ["x", "start", "end"], ["row"]),
                node("Add", ["s", "row"], ["t"]),
                node("Identity", ["going"], ["on"]),
                node("Mul", ["row", "row"], ["square"]),
            ],
            "body",
            [info("i", I64, []), info("going", TensorProto.BOOL, []), info("s", F, [1, 3])],
            [info("on", TensorProto.BOOL, []), info("t", F, [1, 3]), info("square", F, [1, 3])],
        )
        made = [
            node("Constant", [], ["trips"], value_int=trips),
            node("Loop", ["trips", "", "z"], ["y", "squares"], body=body),
        ]
        inputs = [("x", F, [5, 3]), ("z", F, [1, 3])]
        return build_model(made, inputs, [("y", F, [1, 3]), ("squares", F, [trips, 1, 3])])

    draw = np.random.default_rng(2)
    feeds = {"x": draw.standard_normal((5, 3)).astype(np.float32), "z": np.ones((1, 3), np.float32)}
    for actual, expected in zip(lowered(model(5), feeds), on_ort(model(5), feeds), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
    graph, _ = import_onnx(model(65))
    assert [n.op for n in graph.nodes].count("opaque") == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("channels", [False, True])
def test_integer_convolutions_with_filters_at_run_time(channels: bool) -> None:
    """The expansions of both ops are exact: the native engine against the interpreter."""
    draw = np.random.default_rng(4)
    x, w = (
        draw.integers(0, 256, (2, 4, 7, 6)).astype(np.uint8),
        draw.integers(-128, 128, (6, 2, 3, 3)).astype(np.int8),
    )
    zero = draw.integers(-9, 9, 6 if channels else ()).astype(np.int8)
    feeds: dict[str, Array] = {"x": x, "w": w, "xz": np.array(117, np.uint8), "wz": zero}
    where: dict[str, Any] = {"pads": [1, 0, 2, 1], "strides": [2, 1], "group": 2}
    kinds = [(n, helper.np_dtype_to_tensor_dtype(v.dtype), list(v.shape)) for n, v in feeds.items()]
    graph, _ = import_onnx(
        one(node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], **where), kinds, [("y", I32, 4)])
    )
    check(graph, feeds)
    more: dict[str, Array] = {
        "xs": np.array(0.02, np.float32), "ws": draw.random(6).astype(np.float32) if channels else np.array(0.01, np.float32),
        "ys": np.array(0.5, np.float32), "yz": np.array(100, np.uint8), "b": draw.integers(-9999, 9999, 6).astype(np.int32),
    }  # fmt: skip
    feeds |= more
    kinds += [(n, helper.np_dtype_to_tensor_dtype(v.dtype), list(v.shape)) for n, v in more.items()]
    made = node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["y"], **where)
    graph, _ = import_onnx(one(made, kinds, [("y", TensorProto.UINT8, 4)]))
    check(graph, feeds)
