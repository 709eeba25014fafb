"""Activation smoothing for transformers: part of the range of a norm's channels moves into the weights of the products that read it.

SmoothQuant (Xiao et al. 2023, arXiv:2211.10438): with s = max|x|^alpha / max|w|^(1 - alpha) per channel, x / s and w * s give the same product.
The norm's scale and bias take 1 / s, so nothing is added to the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...protocols import Array

__all__ = ["smooth", "smoothable"]


def smoothable(model: Any) -> dict[str, list[Any]]:
    """Return the products that read each LayerNormalization's result, by the result; only those that alone read it and have constant weights."""
    from onnx import numpy_helper

    constants = {t.name for t in model.graph.initializer}
    readers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for value in node.input:
            readers.setdefault(value, []).append(node)
    outputs = {o.name for o in model.graph.output}
    groups = {}
    weights = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "LayerNormalization" or len(node.input) < 2 or node.output[0] in outputs:
            continue
        users = readers.get(node.output[0], [])
        parameters = [v for v in node.input[1:3] if v]
        if not users or any(len(readers[p]) > 1 or p not in constants for p in parameters):
            continue
        products = [
            u
            for u in users
            if u.op_type in ("MatMul", "Gemm")
            and u.input[0] == node.output[0]
            and u.input[1] in constants
            and len(readers[u.input[1]]) == 1
            and not any(a.name in ("transA", "alpha") and (a.i or a.f not in (0.0, 1.0)) for a in u.attribute)
        ]
        width = len(numpy_helper.to_array(weights[node.input[1]]).reshape(-1))
        if len(products) == len(users) and all(_depth(weights[p.input[1]], p) == width for p in products):
            groups[node.output[0]] = products
    return groups


def _transposed(product: Any) -> bool:
    return any(a.name == "transB" and a.i for a in product.attribute)


def _depth(weight: Any, product: Any) -> int:
    return int(weight.dims[-1 if _transposed(product) else 0]) if len(weight.dims) == 2 else -1


def smooth(model: Any, largest: Mapping[str, Array], alpha: float) -> int:
    """Smooth the model in place and return the number of norms that changed. ``largest``: max|x| per channel of each norm's result."""
    from onnx import numpy_helper

    weights = {t.name: t for t in model.graph.initializer}
    norms = {n.output[0]: n for n in model.graph.node if n.op_type == "LayerNormalization"}
    changed = 0
    for value, products in smoothable(model).items():
        x = np.maximum(largest[value].astype(np.float64), 1e-5)
        matrices = [numpy_helper.to_array(weights[p.input[1]]) for p in products]
        rows = [
            np.abs(w.T if _transposed(p) else w).max(axis=1) for w, p in zip(matrices, products, strict=True)
        ]
        w = np.maximum(np.max(rows, axis=0).astype(np.float64), 1e-5)
        factor = np.clip(x**alpha / w ** (1 - alpha), 1e-4, 1e4)
        factor = np.exp2(
            np.rint(np.log2(factor))
        )  # powers of two, so that floats are scaled without rounding
        for name in norms[value].input[1:3]:
            if name:
                _store(weights[name], numpy_helper.to_array(weights[name]) / factor)
        for matrix, product in zip(matrices, products, strict=True):
            spread = factor if _transposed(product) else factor[:, None]
            _store(weights[product.input[1]], matrix * spread)
        changed += 1
    return changed


def _store(tensor: Any, array: Any) -> None:
    from onnx import numpy_helper

    dtype = numpy_helper.to_array(tensor).dtype
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array.astype(dtype)), tensor.name))
