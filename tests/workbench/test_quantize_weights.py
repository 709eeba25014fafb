"""GPTQ and room around ranges: operands of products, codes against data that varies together, and what saturates."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.engines import lookup
from xpuruntime.errors import EngineUnavailable, ModelError, PolicyError, PrecisionUnavailable
from xpuruntime.frontends.model_file import open_model
from xpuruntime.inference.selection.integers import in_integers
from xpuruntime.workbench.quantize import gptq, headroom, quantize
from xpuruntime.workbench.quantize.quantizer import _tools, _with_axes

onnx = pytest.importorskip("onnx", reason="the tests build models with onnx")
ort = pytest.importorskip("onnxruntime", reason="the quantizer")
F = np.float32


def net(path: Path, nodes: list[Any], weights: dict[str, Any], x: list[Any], opset: int = 17) -> Path:
    """Write a model of (op, inputs, output, attributes) with the input x and the output y."""
    make = onnx.helper
    graph = make.make_graph(
        [make.make_node(op, i, [o], name=o, **attrs) for op, i, o, attrs in nodes],
        "net",
        [make.make_tensor_value_info("x", 1, x)],
        [make.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", opset)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), str(path))
    return path


def run(path: Path, x: Any) -> Any:
    sess = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.concatenate([sess.run(None, {"x": v})[0] for v in x])


def alike(rng: np.random.Generator, count: int, *shape: int) -> Any:
    """Return samples whose elements vary together, as the pixels of an image do."""
    common = rng.standard_normal((count, *(1 for _ in shape)))
    return (common + 0.05 * rng.standard_normal((count, *shape))).astype(F)


OPERANDS = {
    "plain": ((6, 4, 3, 3), (2, 4, 7, 9), {}),
    "strides, pads and dilations": (
        (6, 4, 3, 2),
        (1, 4, 11, 9),
        {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 3]},
    ),
    "groups": ((6, 2, 3, 3), (1, 4, 6, 6), {"group": 2, "pads": [1, 1, 1, 1]}),
    "depthwise": ((4, 1, 5, 5), (1, 4, 7, 6), {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "lower": ((6, 4, 2, 2), (1, 4, 7, 6), {"auto_pad": "SAME_LOWER"}),
    "valid": ((6, 4, 2, 2), (1, 4, 7, 6), {"auto_pad": "VALID"}),
    "1-d": ((6, 4, 3), (1, 4, 8), {"pads": [1, 2]}),
    "3-d": ((6, 4, 2, 3, 1), (1, 4, 4, 5, 3), {"strides": [1, 2, 2]}),
}


@pytest.mark.parametrize("bytes_at_once", [0, 1])
@pytest.mark.parametrize("name", OPERANDS)
def test_the_rows_of_a_convolution_times_its_patches_are_its_result(
    name: str, bytes_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in slices, one row of positions at a time."""
    shape, size, attrs = OPERANDS[name]
    rng = np.random.default_rng(3)
    w, x = rng.standard_normal(shape).astype(F), rng.standard_normal(size).astype(F)
    path = net(tmp_path / "m.onnx", [("Conv", ["x", "w"], "y", attrs)], {"w": w}, list(size))
    model = onnx.load(str(path))
    (layer,) = gptq._layers(model, list(model.graph.node))
    want = run(path, [x])
    assert np.array_equal(layer.in_layout(layer.rows).astype(F), w)
    if bytes_at_once:
        monkeypatch.setattr(gptq, "_UNFOLDED_BYTES", bytes_at_once)
    items = [list(slices) for slices in layer.items(x)]
    assert all(len(slices) == (want.shape[2] if bytes_at_once else 1) for slices in items)
    got = np.concatenate([layer.rows @ s for slices in items for s in slices], 2).reshape(shape[0], -1)
    np.testing.assert_allclose(got, np.moveaxis(want, 1, 0).reshape(shape[0], -1), rtol=1e-4, atol=1e-4)


PRODUCTS = {
    "conv": ([("Conv", ["x", "w"], "y", {})], (8, 4, 3, 3), (4, 6, 6)),
    "depthwise": ([("Conv", ["x", "w"], "y", {"group": 4})], (4, 1, 3, 3), (4, 6, 6)),
    "matmul": ([("MatMul", ["x", "w"], "y", {})], (150, 7), (3, 150)),
    "gemm": ([("Gemm", ["x", "w"], "y", {"transB": 1})], (7, 150), (150,)),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("per_channel", [True, False])
def test_gptq_lowers_the_error_on_other_data_of_the_same_kind(
    name: str, per_channel: bool, tmp_path: Path
) -> None:
    nodes, shape, size = PRODUCTS[name]
    rng = np.random.default_rng(4)
    model = net(tmp_path / "m.onnx", nodes, {"w": rng.standard_normal(shape).astype(F)}, [1, *size])
    np.savez(tmp_path / "s.npz", x=alike(rng, 64, *size))
    held_out = alike(rng, 32, *size)[:, None]
    want = run(model, held_out)

    def error(out: Path, **options: Any) -> float:
        report = quantize(
            model, tmp_path / "s.npz", out, activations="uint16", correct_biases=False,
            per_channel=per_channel, **options,
        )  # fmt: skip
        assert report.gptq == options.get("gptq", 1)
        codes = [
            onnx.numpy_helper.to_array(t) for t in onnx.load(str(out)).graph.initializer if t.data_type == 3
        ]
        assert max(np.abs(c.astype(int)).max() for c in codes) == 127
        return float(np.linalg.norm(run(out, held_out) - want))

    assert error(tmp_path / "a.onnx") < 0.6 * error(tmp_path / "b.onnx", gptq=False)


@pytest.mark.parametrize("count", [4, 16, 64, 320])
def test_gptq_does_not_fit_chance(count: int, tmp_path: Path) -> None:
    """With few samples of independent inputs the error on other samples is that of the nearest codes."""
    rng = np.random.default_rng(11)
    nodes = [("MatMul", ["x", "w"], "y", {})]
    model = net(tmp_path / "m.onnx", nodes, {"w": rng.standard_normal((320, 60)).astype(F)}, [1, 320])
    np.savez(tmp_path / "s.npz", x=rng.standard_normal((count, 320)).astype(F))
    held_out = rng.standard_normal((300, 1, 320)).astype(F)
    want = run(model, held_out)

    def error(**options: Any) -> float:
        quantize(
            model, tmp_path / "s.npz", tmp_path / "q.onnx", activations="uint16", correct_biases=False, **options
        )  # fmt: skip
        return float(np.linalg.norm(run(tmp_path / "q.onnx", held_out) - want))

    assert error() <= 1.02 * error(gptq=False)


def test_covariances_shrink_by_their_variance_over_items() -> None:
    """Positions of one item vary together, so they do not count as several."""
    rng = np.random.default_rng(12)
    one, other = gptq._Moments(np.zeros((1, 20, 1), F)), gptq._Moments(np.zeros((1, 20, 1), F))
    items = rng.standard_normal((40, 1, 20, 1)).astype(F)
    for x in items:
        one.add([np.repeat(x, 30, 2)])
    other.add_each(items[:, 0, :, 0].T[None])
    np.testing.assert_allclose(one._shrinkage(), other._shrinkage(), rtol=1e-4)
    assert other._shrinkage() > 0.9
    np.testing.assert_allclose(one.shrunk(), 30 * other.shrunk(), rtol=1e-4, atol=1e-3)
    exact = np.einsum("ngkp,ngjp->gkj", items, items)
    diagonal = np.arange(20)
    np.testing.assert_allclose(other.shrunk()[:, diagonal, diagonal], exact[:, diagonal, diagonal], rtol=1e-4)


def test_sums_do_not_depend_on_the_offset() -> None:
    rng = np.random.default_rng(13)
    x = (rng.standard_normal((1, 6, 1)) + 0.3 * rng.standard_normal((1, 6, 900)) + 2).astype(F)
    sums = []
    for offset in (x.mean(2, keepdims=True), x.mean(2, keepdims=True) + F(0.05)):
        moments = gptq._Moments(offset)
        moments._shrinkage = lambda: np.zeros(1)  # type: ignore[method-assign]
        moments.add_each(x)
        sums.append(moments.shrunk())
    np.testing.assert_allclose(sums, np.stack([x @ x.transpose(0, 2, 1)] * 2), rtol=1e-4)


def test_a_single_sample_says_nothing_about_covariances() -> None:
    moments = gptq._Moments(np.zeros((1, 5, 1), F))
    x = alike(np.random.default_rng(14), 9, 5).T[None]
    moments.add([x])
    assert moments._shrinkage().tolist() == [1.0]


def test_products_of_a_constant_first_operand_have_the_nearest_codes(tmp_path: Path) -> None:
    rng = np.random.default_rng(15)
    weights = {"a": rng.standard_normal((2, 8)).astype(F), "w": rng.standard_normal((8, 3)).astype(F)}
    model = net(tmp_path / "m.onnx", [("Gemm", ["a", "w", "x"], "y", {})], weights, [2, 3])
    x = rng.standard_normal((8, 2, 3)).astype(F)
    np.savez(tmp_path / "s.npz", x=x.reshape(16, 3))
    report = quantize(model, tmp_path / "s.npz", tmp_path / "q.onnx")
    assert report.gptq == 0
    assert np.linalg.norm(run(tmp_path / "q.onnx", x) - run(model, x)) < 0.05 * np.linalg.norm(run(model, x))


def test_channels_without_data_are_rounded_to_the_nearest_code() -> None:
    rows = np.array([[[0.9, -0.26, 0.5]]])
    codes = gptq._rounded(rows, np.full((1, 1, 1), 0.1), np.zeros((1, 3, 3)))
    assert codes is not None
    assert codes.tolist() == [[[9, -3, 5]]]


def test_codes_are_kept_only_for_the_scale_that_they_were_chosen_for(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    model = net(
        tmp_path / "m.onnx", [("MatMul", ["x", "w"], "y", {})], {"w": rng.standard_normal((8, 3)).astype(F)}, [1, 8]
    )  # fmt: skip
    np.savez(tmp_path / "s.npz", x=rng.standard_normal((8, 8)).astype(F))
    quantize(model, tmp_path / "s.npz", tmp_path / "q.onnx", gptq=False)
    pairs = onnx.load(str(tmp_path / "q.onnx"))
    ((name, pair),) = gptq._weight_pairs(pairs)
    contents = {t.name: t for t in pairs.graph.initializer}
    scale = onnx.numpy_helper.to_array(contents[pair.input[1]]).copy()
    before = onnx.numpy_helper.to_array(contents[pair.input[0]]).copy()
    scale[1] *= 2
    assert gptq.store_codes(pairs, {name: gptq.WeightCodes(np.full((8, 3), 7, np.int8), scale, 1)}) == 1
    now = onnx.numpy_helper.to_array(contents[pair.input[0]])
    assert (now[:, [0, 2]] == 7).all()
    assert np.array_equal(now[:, 1], before[:, 1])
    assert gptq.store_codes(pairs, {name: gptq.WeightCodes(np.zeros((3, 8), np.int8), scale, 1)}) == 0


@pytest.mark.parametrize(("activations", "room", "beyond"), [("uint8", 1.2, 1.4), ("uint16", 1.9, 2.2)])
def test_values_beyond_the_calibrated_range_have_room(
    activations: str, room: float, beyond: float, tmp_path: Path
) -> None:
    """In 8 bits at the outputs, through views; in 16 bits everywhere."""
    nodes = [("MatMul", ["x", "w"], "p", {}), ("Reshape", ["p", "size"], "y", {})]
    model = net(tmp_path / "m.onnx", nodes, {"w": np.eye(4, dtype=F), "size": np.array([2, 2])}, [1, 4])
    np.savez(tmp_path / "s.npz", x=np.array([[-1, 0, 0.5, 1]], F))
    out = tmp_path / "q.onnx"
    quantize(model, tmp_path / "s.npz", out, activations=activations, gptq=False)
    if activations == "uint8":  # the input has no room: widen it, to see the output's
        proto = onnx.load(str(out))
        scale = next(t for t in proto.graph.initializer if t.name == "x_scale")
        scale.CopyFrom(onnx.numpy_helper.from_array(np.array(0.05, F), "x_scale"))
        onnx.save(proto, str(out))
    (low, *_, high) = run(out, np.array([[[-room, 0, 0, room]]], F)).reshape(-1)
    np.testing.assert_allclose((low, high), (-room, room), atol=0.04)
    (low, *_, high) = run(out, np.array([[[-beyond, 0, 0, beyond]]], F)).reshape(-1)
    assert high < beyond - 0.1
    assert low > -beyond + 0.1


TAILS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "none": ([("Identity", ["c"], "y", {})], {}),
    "softmax": ([("Softmax", ["c"], "y", {"axis": 1})], {}),
    "log softmax": ([("LogSoftmax", ["c"], "y", {"axis": 1})], {}),
    "sigmoid": ([("Sigmoid", ["c"], "y", {})], {}),
    "relu": ([("Relu", ["c"], "y", {})], {}),
    "slice": (
        [("Slice", ["c", "begin", "end", "axis"], "y", {})],
        {"begin": np.array([0]), "end": np.array([2]), "axis": np.array([1])},
    ),
    "resize": (
        [("Resize", ["c", "", "scales"], "y", {"mode": "linear"})],
        {"scales": np.array([1, 1, 2, 2], F)},
    ),
    "max pool": ([("MaxPool", ["c"], "y", {"kernel_shape": [2, 2]})], {}),
    "average pool": ([("AveragePool", ["c"], "y", {"kernel_shape": [2, 2]})], {}),
    "pad": ([("Pad", ["c", "pads"], "y", {})], {"pads": np.array([0, 0, 1, 0, 0, 0, 0, 0])}),
    "gather": ([("Gather", ["c", "which"], "y", {"axis": 1})], {"which": np.array([0, 1])}),
    "transpose": ([("Transpose", ["c"], "y", {"perm": [0, 1, 3, 2]})], {}),
    "bias": ([("Add", ["c", "bias"], "y", {})], {"bias": np.ones((1, 2, 1, 1), F)}),
    "bias, slice and softmax": (
        [
            ("Add", ["bias", "c"], "b", {}),
            ("Slice", ["b", "begin", "end", "axis"], "s", {}),
            ("Softmax", ["s"], "y", {"axis": 1}),
        ],
        {
            "bias": np.ones((1, 2, 1, 1), F),
            "begin": np.array([0]),
            "end": np.array([2]),
            "axis": np.array([1]),
        },
    ),
}


@pytest.mark.parametrize("tail", TAILS)
def test_classes_do_not_tie_behind_ops_that_keep_the_order(tail: str, tmp_path: Path) -> None:
    """Both logits are beyond the calibrated range: their inputs are in it, but not both at once."""
    nodes, more = TAILS[tail]
    weights = {"w": np.array([[1, 1], [0.9, 1]], F).reshape(2, 2, 1, 1), **more}
    model = net(tmp_path / "m.onnx", [("Conv", ["x", "w"], "c", {}), *nodes], weights, [1, 2, 4, 4])
    samples = np.array([[1, 0], [0, 1], [-1, 0], [0, -1], [0.1, 0.1]], F)
    np.savez(tmp_path / "s.npz", x=np.broadcast_to(samples[:, :, None, None], (5, 2, 4, 4)))
    quantize(model, tmp_path / "s.npz", tmp_path / "q.onnx", gptq=False, correct_biases=False)
    x = np.broadcast_to(np.array([0.62, 0.5], F)[:, None, None], (1, 1, 2, 4, 4)).copy()
    first, second = run(tmp_path / "q.onnx", x)[0, :, 1, 1]
    assert first > second


@pytest.mark.parametrize("op", ["ArgMax", "Add"])
def test_room_is_where_outputs_saturate(op: str, tmp_path: Path) -> None:
    """Not at values that outputs are computed from in another way."""
    nodes = {"ArgMax": [("ArgMax", ["c"], "y", {})], "Add": [("Add", ["c", "d"], "y", {})]}[op]
    weights = {"w": np.eye(2, dtype=F)}
    path = net(
        tmp_path / "m.onnx", [("MatMul", ["x", "w"], "c", {}), ("Relu", ["x"], "d", {}), *nodes], weights, [1, 2]
    )  # fmt: skip
    model = onnx.load(str(path))
    names = list(headroom._outputs(model, {v: n for n in model.graph.node for v in n.output}))
    assert names == (["y", "c"] if op == "ArgMax" else ["y"])


@pytest.mark.parametrize("opset", [10, 17])
def test_the_bounds_of_a_clip_that_the_quantizer_removes_are_kept(opset: int, tmp_path: Path) -> None:
    make = onnx.helper
    bounds = ["low", "high"] if opset > 10 else []
    attrs = {} if opset > 10 else {"min": 0.0, "max": 6.0}
    weights = {"w": np.eye(4, dtype=F).reshape(4, 4, 1, 1), "low": F(0), "high": F(6)}
    graph = make.make_graph(
        [make.make_node("Conv", ["x", "w"], ["c"], name="c"), make.make_node("Clip", ["c", *bounds], ["y"], **attrs)],
        "net",
        [make.make_tensor_value_info("x", 1, [1, 4, 1, 1])],
        [make.make_tensor_value_info("y", 1, [1, 4, 1, 1])],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items() if bounds or n == "w"],
    )  # fmt: skip
    model = tmp_path / "m.onnx"
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", opset)], ir_version=8), str(model))
    np.savez(tmp_path / "s.npz", x=np.array([-9, 1, 2, 5], F).reshape(1, 4, 1, 1))
    out = tmp_path / "q.onnx"
    quantize(model, tmp_path / "s.npz", out, activations="uint16")
    x = np.array([-9, 5.5, 8, 3], F).reshape(1, 1, 4, 1, 1)
    np.testing.assert_allclose(run(out, x).reshape(-1), [0, 5.5, 6, 3], atol=0.02)


@pytest.fixture
def wide(tmp_path: Path) -> tuple[Path, str, Any, Any]:
    """A model with uint16 activations, its policy, an input and the float result."""
    rng = np.random.default_rng(6)
    weights = {
        "w": rng.standard_normal((8, 3, 3, 3)).astype(F),
        "m": rng.standard_normal((8, 5)).astype(F),
    }
    nodes = [
        ("Conv", ["x", "w"], "c", {}),
        ("Relu", ["c"], "r", {}),
        ("GlobalAveragePool", ["r"], "p", {}),
        ("Flatten", ["p"], "f", {}),
        ("MatMul", ["f", "m"], "y", {}),
    ]
    model = net(tmp_path / "m.onnx", nodes, weights, [1, 3, 8, 8])
    x = rng.standard_normal((8, 3, 8, 8)).astype(F)
    np.savez(tmp_path / "s.npz", x=x)
    out = tmp_path / "q.onnx"
    report = quantize(model, tmp_path / "s.npz", out, activations="uint16")
    assert report.to_json()["activations"] == "uint16"
    return out, report.policy, x[:1], run(model, [x[:1]])


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_engines_on_cpus_say_that_16_bit_activations_are_computed_in_floats(
    engine: str, wide: tuple[Path, str, Any, Any]
) -> None:
    model, policy, x, want = wide
    with xrt.InferenceSession(model, device="cpu", engine=engine, strict=True) as sess:
        (got,) = sess.run(x=x).values()
        assert np.linalg.norm(got - want) / np.linalg.norm(want) < 0.01
        assert sess.plan.regions[0].precision == "float32"
        assert sess.receipt().confirmed
    text = f"q has 2 products with an operand of more than 8 bits, and {engine} computes them in float32"
    with pytest.raises(PrecisionUnavailable, match=text):
        xrt.InferenceSession(model, device="cpu", engine=engine, policy=policy)


def test_an_engine_that_declares_nothing_has_no_integer_arithmetic_for_16_bits(
    wide: tuple[Path, str, Any, Any],
) -> None:
    model = open_model(wide[0])
    text = "2 products with an operand of more than 8 bits, and the plug-in of tensorrt does not declare integer arithmetic for them"
    assert text in str(in_integers(model, lookup("tensorrt"), "cuda"))
    assert in_integers(model, lookup("qnn"), "npu")


def test_openvino_refuses_16_bit_activations(wide: tuple[Path, str, Any, Any]) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(EngineUnavailable, match="removes QuantizeLinear to 16 bits"):
        xrt.InferenceSession(wide[0], device="cpu", engine="openvino")


def test_symmetric_activations_of_16_bits_do_not_exist(wide: tuple[Path, str, Any, Any]) -> None:
    with pytest.raises(PolicyError, match=r"no such value of activations; got 'int16'.*uint16"):
        quantize(wide[0], wide[0], wide[0], activations="int16")


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("opset", [9, 11])
def test_models_of_old_opsets_are_quantized(opset: int, per_channel: bool, tmp_path: Path) -> None:
    """Scales per output channel need opset 13."""
    rng = np.random.default_rng(16)
    weights = {"w": rng.standard_normal((4, 3, 3, 3)).astype(F)}
    model = net(
        tmp_path / "m.onnx",
        [("Conv", ["x", "w"], "c", {}), ("Relu", ["c"], "r", {}), ("ReduceMean", ["r"], "y", {"axes": [2, 3]})],
        weights, [1, 3, 8, 8], opset,
    )  # fmt: skip
    x = rng.standard_normal((8, 1, 3, 8, 8)).astype(F)
    np.savez(tmp_path / "s.npz", x=x[:, 0])
    report = quantize(model, tmp_path / "s.npz", tmp_path / "q.onnx", per_channel=per_channel)
    assert report.error < 0.03
    assert (onnx.load(str(tmp_path / "q.onnx")).opset_import[0].version >= 13) == per_channel
    want = run(model, x)
    assert np.linalg.norm(run(tmp_path / "q.onnx", x) - want) < 0.03 * np.linalg.norm(want)


def test_a_model_that_cannot_be_converted_needs_another_opset(tmp_path: Path) -> None:
    """A batch norm per element, which ONNX has no more."""
    norm = ("BatchNormalization", ["x", "s", "s", "s", "s"], "n", {"spatial": 0})
    weights = {"w": np.ones((4, 3, 3, 3), F), "s": np.ones((3, 3, 3), F)}
    path = net(tmp_path / "m.onnx", [norm, ("Conv", ["n", "w"], "y", {})], weights, [1, 3, 3, 3], 8)
    with pytest.raises(ModelError, match=r"opset 8: .*spatial.*Export the model with opset 13"):
        _with_axes(_tools(), path, {"": 8}, tmp_path)


def test_sums_that_overflow_keep_the_nearest_codes(tmp_path: Path) -> None:
    rng = np.random.default_rng(17)
    weights = {"w": rng.standard_normal((8, 3)).astype(F)}
    model = net(tmp_path / "m.onnx", [("MatMul", ["x", "w"], "y", {})], weights, [1, 8])
    np.savez(tmp_path / "s.npz", x=rng.standard_normal((8, 8)).astype(F) * F(1e25))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        report = quantize(model, tmp_path / "s.npz", tmp_path / "q.onnx")
    assert report.gptq == 0
