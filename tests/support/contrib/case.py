"""Cases of ONNX Runtime's own ops: one node, its operands, and models of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from xpuruntime.frontends.onnx.importer import import_onnx
from xpuruntime.ir import interp

RANDOM = np.random.default_rng(7)
U8, S8 = np.asarray(121, np.uint8), np.asarray(3, np.int8)
GPU_ONLY = {
    "BiasAdd", "BiasDropout", "BiasSoftmax", "BiasSplitGelu", "GemmFastGelu", "GroupNorm", "NhwcConv", "NhwcFusedConv",
    "QLinearReduceMean", "ReduceSumInteger", "SkipGroupNorm",
}  # fmt: skip
"""Ops without a kernel for CPUs (``test_onnx_contrib_defined``)."""


def seeded(seed: int) -> None:
    """Start the random numbers of a table anew, so that its cases do not depend on what was imported before."""
    RANDOM.bit_generator.state = np.random.default_rng(seed).bit_generator.state


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def codes(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max + 1, shape).astype(dtype)


def scale(value: float) -> np.ndarray:
    return np.asarray(value, np.float32)


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


class Case(NamedTuple):
    """Operands: ``inputs`` are fed, by position; the others are weights. ``None`` is an absent operand."""

    op: str
    operands: tuple[Any, ...]
    attributes: Mapping[str, Any] = {}
    inputs: tuple[int, ...] = (0,)
    outputs: tuple[int, ...] = (0,)
    domain: str = "com.microsoft"
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.op}-{self.note}" if self.note else self.op


def proto_of(case: Case, results: list[onnx.ValueInfoProto] | None = None) -> onnx.ModelProto:
    """Return a model of the node; without ``results`` its outputs have no types."""
    names = ["" if a is None else f"i{i}" for i, a in enumerate(case.operands)]
    while names and not names[-1]:
        names.pop()
    outputs = [f"o{i}" if i in case.outputs else "" for i in range(max(case.outputs) + 1)]
    arrays = {f"i{i}": np.asarray(a) for i, a in enumerate(case.operands) if a is not None}
    fed = {f"i{i}" for i in case.inputs}
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in arrays.items()
        if n in fed
    ]
    weights = [numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in fed]
    node = helper.make_node(
        case.op, names, outputs, name="the_node", domain=case.domain, **dict(case.attributes)
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    untyped = [onnx.ValueInfoProto(name=o) for o in outputs if o]
    graph = helper.make_graph([node], "contrib", given, results or untyped, weights)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def feeds_of(case: Case) -> dict[str, np.ndarray]:
    return {f"i{i}": np.asarray(case.operands[i]) for i in case.inputs}


def typed(case: Case, results: list[np.ndarray]) -> bytes:
    """Return the model with the types of these results."""
    infos = [
        helper.make_tensor_value_info(f"o{i}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for i, a in zip(sorted(case.outputs), results, strict=True)
    ]
    return bytes(proto_of(case, infos).SerializeToString())


def model_of(case: Case) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return the model, with the types of ONNX Runtime's own results, and its inputs."""
    feeds = feeds_of(case)
    untyped = proto_of(case).SerializeToString()
    results = ort.InferenceSession(untyped, providers=["CPUExecutionProvider"]).run(None, feeds)
    return typed(case, results), feeds


def theirs(model: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds))


def ours(model: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what the interpreter computes from the imported graph, in which each node has a form."""
    graph, weights = import_onnx(onnx.ModelProto.FromString(model))
    assert not [n for n in graph.nodes if n.op == "opaque"], graph
    results = interp.run(graph, feeds, weights=weights)
    return [np.asarray(results[o.value]) for o in graph.outputs]


def differences(got: np.ndarray, want: np.ndarray) -> float:
    """Return the largest difference: in codes for quantized outputs, else relative to the largest value."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    distance = np.abs(got.astype(np.float64) - want).max()
    return float(distance if want.dtype.kind in "iu" else distance / max(np.abs(want).max(), 1e-9))
