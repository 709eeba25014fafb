"""Networks of full size as ONNX files, for benchmarks that open files: seeded weights that hide nothing, made once into build/seeded.

``fcn32_mobilenet_v2`` is a segmentation network: MobileNetV2, a score per class for each of its cells, and one bilinear resize of the scores to the
image's size (FCN-32s of Long et al. 2015, "Fully convolutional networks for semantic segmentation"). ``minilm_search`` is semantic search: the zoo's trained
sentence encoder, the product with 20,000 unit vectors, and the ten best (the vectors are seeded, the encoder is not).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["SEEDED", "seeded_onnx"]

_BUILD = Path(__file__).resolve().parents[1] / "build"
_FOLDER = _BUILD / "seeded"
_CLASSES, _CORPUS, _BEST = 21, 20_000, 10


def seeded_onnx(name: str) -> Path:
    """The file of one of ``SEEDED``, relative to the working folder. Raises KeyError; FileNotFoundError where the zoo's model is not there."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    return Path(os.path.relpath(SEEDED[name](name)))


def _exported(name: str) -> Path:
    """A network of ``xpuruntime.testing.conformance.seeded.networks``."""
    from xpuruntime.testing.conformance.seeded.export import export_onnx

    return export_onnx(name, _FOLDER / f"{name}.onnx", size="full")


def _fcn32(name: str) -> Path:
    import onnx
    from onnx import helper

    model = onnx.load(_exported("mobilenet_v2"))
    graph = model.graph
    end = next(
        i for i, n in enumerate(graph.node) if n.op_type in ("GlobalAveragePool", "ReduceMean", "AveragePool")
    )
    features = graph.node[end].input[0]
    del graph.node[end:]
    random = np.random.default_rng(0)
    weight = random.standard_normal((_CLASSES, 1280, 1, 1)).astype(np.float32) / 36
    nodes = [
        helper.make_node("Conv", [features, "head_w", "head_b"], ["cells"], name="head"),
        helper.make_node("Resize", ["cells", "", "", "size"], ["scores"], name="upsample", mode="linear"),
    ]
    image = graph.input[0].type.tensor_type.shape.dim
    size = [1, _CLASSES, image[2].dim_value, image[3].dim_value]
    return _with_head(
        name,
        model,
        nodes,
        {
            "head_w": weight,
            "head_b": random.standard_normal(_CLASSES).astype(np.float32),
            "size": np.array(size, np.int64),
        },
        [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, size)],
    )


def _search(name: str) -> Path:
    import onnx
    from onnx import helper

    model = onnx.load(_BUILD / "zoo" / "minilm-l6.onnx")
    sentence = model.graph.output[0].name
    corpus = np.random.default_rng(0).standard_normal((384, _CORPUS)).astype(np.float32)
    corpus /= np.linalg.norm(corpus, axis=0)
    nodes = [
        helper.make_node("MatMul", [sentence, "corpus"], ["alike"], name="alike"),
        helper.make_node("TopK", ["alike", "best"], ["scores", "places"], name="best_of_all"),
    ]
    values = [
        helper.make_tensor_value_info(n, t, ["batch", _BEST])
        for n, t in (("scores", onnx.TensorProto.FLOAT), ("places", onnx.TensorProto.INT64))
    ]
    return _with_head(name, model, nodes, {"corpus": corpus, "best": np.array([_BEST])}, values)


def _with_head(
    name: str, model: Any, nodes: list[Any], weights: Mapping[str, Any], outputs: list[Any]
) -> Path:
    """The model with further nodes and other outputs; a file that is right already stays."""
    import onnx

    model.graph.node.extend(nodes)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    read = {v for n in model.graph.node for v in n.input}
    kept = [w for w in model.graph.initializer if w.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    onnx.checker.check_model(model)
    path, data = _FOLDER / f"{name}.onnx", model.SerializeToString()
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)
    return path


SEEDED: Mapping[str, Callable[[str], Path]] = {
    "resnet50": _exported,
    "mobilenet_v2": _exported,
    "bert": _exported,
    "fcn32_mobilenet_v2": _fcn32,
    "minilm_search": _search,
}
"""How each is made."""
