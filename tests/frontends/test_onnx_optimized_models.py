"""Exports of transformers through ONNX Runtime's optimizer and quantizers, and decoders in the form of its generation package, on the native engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")
pytest.importorskip("transformers")

import onnxruntime as ort
import torch
import transformers
from support.contrib.case import differences

from xpuruntime import InferenceSession

HEADS, HIDDEN, WORDS = 4, 48, 97


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A BERT of two layers as PyTorch exports it, fused by ONNX Runtime's optimizer, and inputs with padding."""
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            sizes = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": 2 * HIDDEN}
            config = transformers.BertConfig(
                num_hidden_layers=2, vocab_size=WORDS, max_position_embeddings=64, **sizes
            )
            config._attn_implementation = "eager"
            self.net = transformers.BertModel(config).eval()

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.net(input_ids=input_ids, attention_mask=attention_mask)[0]

    torch.manual_seed(0)
    ids, mask = torch.randint(0, WORDS, (2, 11)), torch.ones(2, 11, dtype=torch.int64)
    mask[1, 8:] = 0
    folder = tmp_path_factory.mktemp("encoder")
    axes = {n: {0: "batch", 1: "length"} for n in ("input_ids", "attention_mask")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Net(), (ids, mask), folder / "plain.onnx", input_names=list(axes), output_names=["y"],
            opset_version=17, dynamo=False, dynamic_axes=axes,
        )  # fmt: skip
    fused = optimize_model(
        str(folder / "plain.onnx"), model_type="bert", num_heads=HEADS, hidden_size=HIDDEN, opt_level=0,
        optimization_options=FusionOptions("bert"),
    )  # fmt: skip
    fused.save_model_to_file(str(folder / "fused.onnx"))
    return folder / "fused.onnx", {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}


def quantized_weights(path: Path) -> Path:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    out = path.with_name("int8.onnx")
    quantize_dynamic(
        path, out, weight_type=QuantType.QInt8, per_channel=True,
        extra_options={"DefaultTensorType": TensorProto.FLOAT},
    )  # fmt: skip
    return out


def saved_by_the_runtime(path: Path) -> Path:
    """Return what ONNX Runtime saves after its own optimizations of the quantized model."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path.with_name("saved.onnx"))
    ort.InferenceSession(quantized_weights(path), options, providers=["CPUExecutionProvider"])
    return path.with_name("saved.onnx")


def four_bit_weights(path: Path) -> Path:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(path), 4, 16, False, accuracy_level=4)
    quantizer.process()
    quantizer.model.save_model_to_file(str(path.with_name("int4.onnx")))
    return path.with_name("int4.onnx")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rewrite", "ops", "limit"),
    [
        (lambda path: path, {"Attention", "EmbedLayerNormalization", "SkipLayerNormalization", "BiasGelu"}, 2e-5),
        (quantized_weights, {"QAttention", "QEmbedLayerNormalization"}, 2e-2),
        (saved_by_the_runtime, {"QAttention", "DynamicQuantizeMatMul"}, 2e-2),
        (four_bit_weights, {"MatMulNBits"}, 2e-2),
    ],
    ids=["fused", "int8", "saved", "int4"],
)  # fmt: skip
def test_an_optimized_encoder_runs_natively(
    encoder: tuple[Path, dict[str, np.ndarray]],
    rewrite: Callable[[Path], Path],
    ops: set[str],
    limit: float,
) -> None:
    path, feeds = rewrite(encoder[0]), encoder[1]
    written = {n.op_type for n in onnx.load(path).graph.node if n.domain == "com.microsoft"}
    assert ops <= written, written
    want = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)
    with InferenceSession(path, engine="native", device="cpu") as sess:
        got = list(sess.run(feeds).values())
    for ours, theirs in zip(got, want, strict=True):
        assert differences(ours, theirs) <= limit


def decoder() -> bytes:
    """Return one layer of a decoder as ONNX Runtime's generation package writes it: 4-bit weights, grouped attention, lengths from the mask."""
    heads, kv_heads, size, random = 4, 2, 16, np.random.default_rng(3)
    width, packed = heads * size, (heads + 2 * kv_heads) * size

    def floats(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    def nbits(name: str, x: str, rows: int, columns: int) -> Any:
        weights[f"{name}.q"] = random.integers(0, 256, (rows, columns // 32, 16)).astype(np.uint8)
        weights[f"{name}.s"] = np.abs(floats(rows, columns // 32)) / 20
        words = {"K": columns, "N": rows, "bits": 4, "block_size": 32}
        return node("MatMulNBits", [x, f"{name}.q", f"{name}.s"], [name], domain="com.microsoft", **words)

    node = helper.make_node
    weights: dict[str, np.ndarray] = {
        "table": floats(WORDS, width), "scale": floats(width), "cos": floats(40, size // 2),
        "sin": floats(40, size // 2), "one": np.array([1], np.int64), "at": np.array(1, np.int64),
    }  # fmt: skip
    caches = ["past.key", "past.value", "present.key", "present.value"]
    query = ["qkv", "", "", *caches[:2], "ends", "total", "cos", "sin"]
    nodes = [
        node("ReduceSum", ["mask", "one"], ["counts"], keepdims=0),
        node("Sub", ["counts", "one"], ["last"]),
        node("Cast", ["last"], ["ends"], to=TensorProto.INT32),
        node("Shape", ["mask"], ["shape"]),
        node("Gather", ["shape", "at"], ["columns"], axis=0),
        node("Cast", ["columns"], ["total"], to=TensorProto.INT32),
        node("Gather", ["table", "ids"], ["words"]),
        node("SimplifiedLayerNormalization", ["words", "scale"], ["normed"], axis=-1, epsilon=1e-6),
        nbits("qkv", "normed", packed, width),
        node("GroupQueryAttention", query, ["attended", *caches[2:]], domain="com.microsoft",
             num_heads=heads, kv_num_heads=kv_heads, do_rotary=1, local_window_size=-1),
        nbits("projected", "attended", width, width),
        node("SkipSimplifiedLayerNormalization", ["words", "projected", "scale"], ["y", "", "", "sum"],
             domain="com.microsoft", epsilon=1e-6),
    ]  # fmt: skip
    ints, reals = TensorProto.INT64, TensorProto.FLOAT
    cache = ["batch", kv_heads, "past_length", size]
    grown = ["batch", kv_heads, "total_length", size]
    info = helper.make_tensor_value_info
    given = [
        info("ids", ints, ["batch", "length"]),
        info("mask", ints, ["batch", "total_length"]),
        *(info(c, reals, cache) for c in caches[:2]),
    ]
    results = [info("y", reals, ["batch", "length", width]), *(info(c, reals, grown) for c in caches[2:])]
    stored = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "decoder", given, results, stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def test_a_decoder_continues_its_cache() -> None:
    """A prompt, then one token: the session imports the model again for each set of sizes."""
    model, random = decoder(), np.random.default_rng(5)
    theirs = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    past = {n: np.zeros((2, 2, 0, 16), np.float32) for n in ("past.key", "past.value")}
    total = 0
    with InferenceSession(model, engine="native", device="cpu") as sess:
        for length in (5, 1):
            total += length
            feeds = {
                "ids": random.integers(0, WORDS, (2, length)),
                "mask": np.ones((2, total), np.int64),
                **past,
            }
            want = theirs.run(None, feeds)
            for got, right in zip(sess.run(feeds).values(), want, strict=True):
                assert differences(got, right) <= 5e-5
            past = dict(zip(past, want[1:], strict=True))
