"""``quantize``: calibration data from files, errors per node, the error budget, smoothing, and what is written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import EngineUnavailable, InputError, ModelError, PolicyError
from xpuruntime.workbench.quantize import float_values, quantize, quantizer

onnx = pytest.importorskip("onnx", reason="the tests build models with onnx")
pytest.importorskip("onnxruntime", reason="the quantizer")
F = np.float32


def saved(path: Path, nodes: list[Any], weights: dict[str, Any], shape: list[Any], y: list[Any]) -> Path:
    make = onnx.helper
    graph = make.make_graph(
        [make.make_node(op, i, [o], name=o, **attrs) for op, i, o, attrs in nodes],
        "net",
        [make.make_tensor_value_info("x", 1, shape)],
        [make.make_tensor_value_info(nodes[-1][2], 1, y)],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def cnn(path: Path) -> Path:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 3, 3, 3)).astype(F) * F(0.3),
        "b": rng.standard_normal(8).astype(F),
        "d": rng.standard_normal((8, 1, 3, 3)).astype(F),
        "m": rng.standard_normal((8, 5)).astype(F),
    }
    nodes = [
        ("Conv", ["x", "w", "b"], "c", {"pads": [1, 1, 1, 1]}),
        ("Relu", ["c"], "r", {}),
        ("Conv", ["r", "d"], "depthwise", {"group": 8}),
        ("GlobalAveragePool", ["depthwise"], "p", {}),
        ("Flatten", ["p"], "f", {}),
        ("MatMul", ["f", "m"], "y", {}),
    ]
    return saved(path, nodes, weights, [1, 3, 10, 10], [1, 5])


def block(path: Path) -> Path:
    """A norm with a few large channels, and two products that read it: what smoothing is for."""
    rng = np.random.default_rng(1)
    gamma = np.ones(32, F)
    gamma[:2] = 64
    weights = {
        "g": gamma,
        "be": np.zeros(32, F),
        "q": rng.standard_normal((32, 16)).astype(F),
        "k": rng.standard_normal((32, 16)).astype(F),
    }
    weights["q"][:2] /= 64
    weights["k"][:2] /= 64
    nodes = [
        ("LayerNormalization", ["x", "g", "be"], "n", {"axis": -1}),
        ("MatMul", ["n", "q"], "a", {}),
        ("MatMul", ["n", "k"], "b", {}),
        ("Add", ["a", "b"], "y", {}),
    ]
    return saved(path, nodes, weights, [1, 6, 32], [1, 6, 16])


def samples(path: Path, *shape: int) -> Path:
    np.savez(path, x=np.random.default_rng(2).standard_normal((4, *shape)).astype(F))
    return path


@pytest.fixture
def net(tmp_path: Path) -> tuple[Path, Path, Path]:
    return (
        cnn(tmp_path / "net.onnx"),
        samples(tmp_path / "samples.npz", 3, 10, 10),
        tmp_path / "net.int8.onnx",
    )


def test_the_written_model_runs_in_integers_by_the_written_policy(net: tuple[Path, Path, Path]) -> None:
    model, data, out = net
    report = quantize(model, data, out)
    assert (report.samples, report.kept, report.ok) == (4, (), True)
    assert {n.node for n in report.nodes} >= {"c", "depthwise"}
    assert report.worst is report.nodes[0]
    assert 0 < report.error < 0.1
    assert all(n.error > 0 for n in report.nodes)
    x = np.load(data)["x"][:1]
    with xrt.InferenceSession(out, device="cpu", engine="native", policy=report.policy, strict=True) as sess:
        (got,) = sess.run(x=x).values()
        assert "3 products of uint8 activations and int8 weights" in sess.receipt().text()
    with xrt.InferenceSession(model, device="cpu", engine="onnxruntime") as sess:
        (want,) = sess.run(x=x).values()
    assert np.abs(got - want).max() / np.abs(want).max() < 0.1


def test_an_error_budget_keeps_the_worst_products_in_floats(net: tuple[Path, Path, Path]) -> None:
    model, data, out = net
    whole = quantize(model, data, out)
    mixed = quantize(model, data, out, max_error=whole.error / 2)
    assert mixed.ok
    assert mixed.error < whole.error
    assert mixed.kept
    assert whole.worst is not None
    assert whole.worst.node in mixed.kept
    impossible = quantize(model, data, out, max_error=0.0)
    assert len(impossible.kept) == 3
    assert not impossible.ok


def test_the_float_model_runs_once_for_each_sample(
    net: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all rounds of a budget, but for samples whose values have no more room on disk."""
    session = quantizer._session(onnx.load(str(net[0])))
    samples = [{"x": x[None]} for x in np.load(net[1])["x"][:4]]
    runs: list[int] = []

    def run(sample: Mapping[str, Any]) -> dict[str, Any]:
        runs.append(1)
        return quantizer._shown(session, sample)

    want = [quantizer._shown(session, s) for s in samples]
    for folder, room, expected in (
        (tmp_path, 1 << 30, 4),
        (tmp_path, 2 * want[0]["y"].nbytes, 8),
        (None, 1 << 30, 12),
    ):
        monkeypatch.setattr(float_values, "_KEPT_BYTES", room)
        runs.clear()
        floats = float_values.FloatValues(run, samples, folder)
        for _ in range(3):
            for (sample, values), mine, theirs in zip(floats, samples, want, strict=True):
                assert sample is mine
                assert values.keys() == theirs.keys()
                assert all(np.array_equal(values[n], theirs[n]) for n in theirs)
        assert len(runs) == expected


def test_excluded_nodes_stay_in_floats_and_int8_activations_are_symmetric(
    net: tuple[Path, Path, Path],
) -> None:
    model, data, out = net
    report = quantize(model, data, out, activations="int8", exclude=["c"], method="percentile")
    assert report.kept == ("c",)
    zeros = [
        onnx.numpy_helper.to_array(t) for t in onnx.load(str(out)).graph.initializer if "zero_point" in t.name
    ]
    assert zeros
    assert not any(z.any() for z in zeros if z.dtype == np.int8)


def test_smoothing_moves_the_range_of_large_channels_into_the_weights(tmp_path: Path) -> None:
    model, data = block(tmp_path / "block.onnx"), samples(tmp_path / "s.npz", 6, 32)
    plain = quantize(model, data, tmp_path / "plain.onnx", smoothing=0.0)
    smooth = quantize(model, data, tmp_path / "smooth.onnx")
    assert (plain.smoothed, smooth.smoothed) == (0, 1)
    assert smooth.error < plain.error / 2


PRODUCTS = {
    "conv without bias": ([("Conv", ["x", "w"], "y", {})], {"w": (5, 8, 3, 3)}, [1, 8, 9, 9], [1, 5, 7, 7]),
    "grouped conv": (
        [("Conv", ["x", "w", "b"], "y", {"group": 4})],
        {"w": (12, 2, 2, 2), "b": (12,)},
        [1, 8, 6, 6],
        [1, 12, 5, 5],
    ),
    "gemm": ([("Gemm", ["x", "w", "b"], "y", {})], {"w": (64, 5), "b": (5,)}, [3, 64], [3, 5]),
    "gemm, transposed": (
        [("Gemm", ["x", "w", "b"], "y", {"transB": 1, "alpha": 0.5, "beta": 2.0})],
        {"w": (5, 64), "b": (5,)},
        [3, 64],
        [3, 5],
    ),
    "gemm without bias": ([("Gemm", ["x", "w"], "y", {})], {"w": (64, 5)}, [3, 64], [3, 5]),
    "matmul and add": (
        [("MatMul", ["x", "w"], "p", {}), ("Add", ["b", "p"], "y", {})],
        {"w": (64, 5), "b": (5,)},
        [1, 3, 64],
        [1, 3, 5],
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_biases_take_the_mean_error_of_rounded_weights(name: str, tmp_path: Path) -> None:
    nodes, shapes, size, result = PRODUCTS[name]
    rng = np.random.default_rng(5)
    model = saved(
        tmp_path / "m.onnx",
        nodes,
        {k: rng.standard_normal(s).astype(F) for k, s in shapes.items()},
        size,
        result,
    )
    x = (rng.standard_normal((64, *size)) + 3).astype(F)
    np.savez(tmp_path / "s.npz", x=x.reshape(-1, *size[1:]))

    def bias_of(out: Path, keep: bool) -> float:
        report = quantize(model, tmp_path / "s.npz", out, correct_biases=not keep, samples=200, gptq=False)
        assert report.corrected == (0 if keep else 1)
        with (
            xrt.InferenceSession(model, device="cpu", engine="onnxruntime") as whole,
            xrt.InferenceSession(out, device="cpu", engine="onnxruntime") as rounded,
        ):
            lost = [whole.run(x=v)["y"] - rounded.run(x=v)["y"] for v in x]
        axes = (0, 1, 3, 4) if len(size) == 4 else tuple(range(len(size)))
        return float(np.abs(np.mean(lost, axes)).max())

    assert bias_of(tmp_path / "corrected.onnx", keep=False) < 0.5 * bias_of(
        tmp_path / "plain.onnx", keep=True
    )


@pytest.mark.parametrize("constant", [True, False])
def test_the_factor_of_a_gemm_s_bias_is_kept(constant: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    weights = {"w": rng.standard_normal((8, 5)).astype(F), "b": 10 * rng.standard_normal(5).astype(F)}
    gemm = ("Gemm", ["x", "w", "b" if constant else "r"], "y", {"beta": 3.0})
    add = [] if constant else [("ReduceSum", ["x"], "s", {"keepdims": 1}), ("Mul", ["s", "b"], "r", {})]
    model = saved(tmp_path / "m.onnx", [*add, gemm], weights, [1, 8], [1, 5])
    report = quantize(model, samples(tmp_path / "s.npz", 8), tmp_path / "q.onnx")
    assert report.error < 0.03


def test_products_in_floats_keep_their_biases(net: tuple[Path, Path, Path]) -> None:
    model, data, out = net
    report = quantize(model, data, out, exclude=["c"])
    assert report.corrected == 1  # the last product has no bias
    written = onnx.load(str(out))
    (node,) = (n for n in written.graph.node if n.name == "c")
    contents = {t.name: onnx.numpy_helper.to_array(t) for t in written.graph.initializer}
    plain = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(str(model)).graph.initializer}
    assert any(np.array_equal(contents[node.input[2]], w) for w in plain.values())


def test_a_folder_holds_a_file_per_sample(net: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, data, out = net
    folder = tmp_path / "folder"
    folder.mkdir()
    for i, x in enumerate(np.load(data)["x"]):
        np.save(folder / f"{i}.npy", x[None])
    assert quantize(model, folder, out).error == quantize(model, data, out).error
    assert quantize(model, folder, out, samples=2).samples == 2


def test_bad_data_says_what_and_where(net: tuple[Path, Path, Path], tmp_path: Path) -> None:
    model, data, out = net
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "names.npz", image=np.zeros((2, 3, 10, 10), F))
    np.savez(tmp_path / "shape.npz", x=np.zeros((2, 3, 10, 9), F))
    np.savez(tmp_path / "text.npz", x=np.array(["a"]))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    for name, what in (
        ("absent", "no such file or folder"),
        ("empty", "has no samples"),
        ("names.npz", "are not the model's inputs"),
        ("shape.npz", r"got float32\[2, 3, 10, 9\] for"),
        ("text.npz", "does not have samples of the input"),
        ("broken.npz", "is not a readable .npz file"),
    ):
        with pytest.raises(InputError, match=what):
            quantize(model, tmp_path / name, out)
    with pytest.raises(InputError, match="no such node; got nothing"):
        quantize(model, data, out, exclude=["nothing"])
    with pytest.raises(PolicyError, match="no such value of method"):
        quantize(model, data, out, method="best")
    quantize(model, data, out)
    with pytest.raises(ModelError, match="is quantized already"):
        quantize(out, data, tmp_path / "twice.onnx")


def test_without_the_quantizer_the_error_names_the_extra(
    net: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    with pytest.raises(EngineUnavailable, match=r"pip install 'xpuruntime\[quantize\]'"):
        quantize(*net)
