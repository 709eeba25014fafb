"""Models on a vendor's own Python API, without our code: they show if a wrong answer is the vendor's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ....plugins.vendor_imports import vendor
from ....types import DType

__all__ = ["VENDORS", "ort_session", "vendor_outputs"]

_NOT_NUMPY = {
    16: DType.BFLOAT16,
    17: DType.FLOAT8_E4M3FN,
    18: DType.FLOAT8_E4M3FNUZ,
    19: DType.FLOAT8_E5M2,
    20: DType.FLOAT8_E5M2FNUZ,
}


def vendor_outputs(engine: str, model: Any, feeds: Mapping[str, Any]) -> list[Any]:
    """Return outputs of an ``onnx.ModelProto`` on the CPU in the model's order. Raises KeyError for an engine that is not in ``VENDORS``, and the
    vendor's errors.
    """
    return VENDORS[engine](model, dict(feeds))


def ort_session(model: Any) -> Any:
    """Return a quiet ONNX Runtime session on the CPU."""
    onnxruntime = vendor("onnxruntime")

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = max(1, (os.cpu_count() or 2) // 2)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _onnxruntime(model: Any, feeds: dict[str, Any]) -> list[Any]:
    """Run with arrays, or with OrtValues if NumPy lacks the type (bfloat16, float8)."""
    onnxruntime = vendor("onnxruntime")

    sess = ort_session(model)
    kinds = [v.type for v in (*model.graph.input, *model.graph.output)]
    if not any(t.tensor_type.elem_type in _NOT_NUMPY for t in kinds):
        made: list[Any] = sess.run(None, feeds)
        return made
    elements = {v.name: v.type.tensor_type.elem_type for v in model.graph.input}
    values = {}
    for name, array in feeds.items():
        if elements[name] in _NOT_NUMPY:
            bits = np.ascontiguousarray(array).view(f"uint{array.dtype.itemsize * 8}")
            values[name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, elements[name])
        else:
            values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
    outputs = [v.name for v in model.graph.output]
    results = []
    for value, info in zip(sess.run_with_ort_values(outputs, values), model.graph.output, strict=True):
        kind = _NOT_NUMPY.get(info.type.tensor_type.elem_type)
        if kind is None:
            results.append(value.numpy())
        else:
            import torch

            carrier = torch.from_dlpack(value._ortvalue.to_dlpack()) if kind is DType.BFLOAT16 else None
            if carrier is None:
                raise NotImplementedError(f"no way to read {kind} results")
            results.append(carrier.view(torch.int16).numpy().view(kind.numpy))
    return results


def _openvino(model: Any, feeds: dict[str, Any]) -> list[Any]:
    """Run in the model's own precision, which is not OpenVINO's default."""
    openvino = vendor("openvino")

    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
    )  # fmt: skip
    outputs = compiled(
        {port: np.asarray(feeds[name]) for port in compiled.inputs for name in port.names if name in feeds}
    )
    return [outputs[i] for i in range(len(compiled.outputs))]


VENDORS: Mapping[str, Callable[[Any, dict[str, Any]], list[Any]]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
"""The function of each engine."""
