"""TensorRT's own files (``.engine``, ``.plan``) as a ``ModelSource``: the engine itself tells its inputs and outputs."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ...errors import ModelError
from ...protocols import ModelSource
from ...types import DType, TensorSpec, dim
from .api import api, short
from .devices import usable_vendor

__all__ = ["read_plan"]


def read_plan(path: Path, who: str, name: str) -> ModelSource:
    """Return the source of an engine file. Raise ModelError: TensorRT is missing, or cannot load the file with the vendor's text.

    Sizes that the engine leaves open become symbols ``<tensor>_<axis>``. The file's precision is not known before it runs.
    """
    support = usable_vendor()
    if not support:
        raise ModelError(who, "reading a TensorRT engine needs TensorRT", got=support.reason, do=support.do)
    data = path.read_bytes()
    vendor = api()
    try:
        tensors = vendor.tensors(vendor.load(data))
    except Exception as error:  # RuntimeError of ``api``, or an error of the vendor's package
        raise ModelError(
            who,
            f"TensorRT {vendor.version} cannot load it",
            got=short(str(error)),
            do="An engine is valid for one version and one kind of GPU: build it again from the ONNX model.",
        ) from error
    inputs = tuple(_spec(n, d, s, who) for n, is_input, d, s, _ in tensors if is_input)
    outputs = tuple(_spec(n, d, s, who) for n, is_input, d, s, _ in tensors if not is_input)
    floats = [s.dtype for s in (*inputs, *outputs) if s.dtype.is_float]
    return ModelSource(
        name=name,
        format="tensorrt-plan",
        path=path,
        data=None,
        digest=hashlib.sha256(b"tensorrt-plan\0" + data).hexdigest(),
        inputs=inputs,
        outputs=outputs,
        nodes=(),
        precision=floats[0] if floats else DType.FLOAT32,
        files=(path,),
    )


def _spec(name: str, dtype: DType | None, shape: tuple[int, ...], who: str) -> TensorSpec:
    if dtype is None:
        raise ModelError(
            who,
            f"tensor {name!r} has an element type that xpuruntime lacks",
            do="Build the engine with another one.",
        )
    return TensorSpec(tuple(dim(f"{name}_{i}") if d < 0 else d for i, d in enumerate(shape)), dtype, name)
