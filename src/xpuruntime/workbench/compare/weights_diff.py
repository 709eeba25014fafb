"""The initializers that differ between two ONNX models. Outputs on a few inputs may not show such a difference."""

from __future__ import annotations

import hashlib
from typing import Any

from ...protocols import ModelSource

__all__ = ["changed_weights"]


def changed_weights(model: ModelSource, other: ModelSource) -> tuple[str, ...]:
    """Return the names of initializers that both models have and whose type, shape or bytes differ, in the first model's order.

    The result is empty for other formats, for equal models, and for two exports that share no names.
    """
    if model.format != "onnx" or other.format != "onnx" or model.digest == other.digest:
        return ()
    digests, other_digests = _initializer_digests(model), _initializer_digests(other)
    return tuple(name for name, digest in digests.items() if other_digests.get(name, digest) != digest)


def _initializer_digests(model: ModelSource) -> dict[str, str]:
    import onnx
    from onnx import numpy_helper

    proto = onnx.load(model.path) if model.path else onnx.load_from_string(model.data)

    def digest(tensor: Any) -> str:
        array = numpy_helper.to_array(tensor)
        raw = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
        return hashlib.sha256(f"{tensor.data_type} {list(tensor.dims)} ".encode() + raw).hexdigest()

    return {t.name: digest(t) for t in proto.graph.initializer}
