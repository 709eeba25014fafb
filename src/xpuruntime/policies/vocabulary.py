"""The closed words of a policy: kernels by op family, engines, phases, precisions, and the dims of a shape condition.

A name with a dot (``mylib.gemm``) belongs to a third party. It passes here and is looked up where it is used.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ..families import FAMILIES
from ..types import DType

__all__ = [
    "DIMS",
    "ENGINES",
    "ENGINE_ALIASES",
    "KERNELS",
    "PHASES",
    "PRECISIONS",
    "REGION_RUNNERS",
    "dims_of_family",
    "nearest",
]

# "ported": the kernel that another target's author brings for an op, see docs/porting.md.
_EVERYWHERE = ("generated", "naive", "ported")

# Families without a row here have no kernels to choose among: control flow, losses.
KERNELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "matmul": (
            "cublas",
            "cublasLt",
            "gemv",
            "int4_weights",
            "int4_weights_64",
            "int4_weights_128",
            "int8_weights",
            "onednn",
            *_EVERYWHERE,
        ),
        "conv": ("cudnn", "deformed", "depthwise", "implicit_gemm", "onednn", *_EVERYWHERE),
        "attention": ("flash", "flash_v2", "flash_decode", "cudnn", *_EVERYWHERE),
        "norm": ("cudnn", "onednn", *_EVERYWHERE),
        "softmax": ("cudnn", "onednn", *_EVERYWHERE),
        "activation": _EVERYWHERE,
        "elementwise": ("narrow", "strided", *_EVERYWHERE),
        "reduce": _EVERYWHERE,
        "pool": ("cudnn", "onednn", "places", "regions", *_EVERYWHERE),
        "embedding": _EVERYWHERE,
        "create": ("fill", *_EVERYWHERE),
        "data_movement": ("strided", *_EVERYWHERE),
        "search": _EVERYWHERE,
        "rope": _EVERYWHERE,
        "quantize": _EVERYWHERE,
        "resize": _EVERYWHERE,
        "rnn": ("cudnn", *_EVERYWHERE),
        "random": _EVERYWHERE,
        "signal": _EVERYWHERE,
        "other": _EVERYWHERE,
    }
)
assert KERNELS.keys() <= FAMILIES.keys()

ENGINES: tuple[str, ...] = ("native", "onnxruntime", "tensorrt", "openvino", "qnn")
REGION_RUNNERS: tuple[str, ...] = ("torch", "interpreter")
"""What may run a region and is no engine for a whole model: PyTorch's own operators, and the reference interpreter."""
ENGINE_ALIASES: Mapping[str, str] = MappingProxyType({"onnxrt": "onnxruntime"})

PHASES: Mapping[str, str] = MappingProxyType(
    {
        "inference": "any run that trains nothing; prefill and decode are part of it",
        "prefill": "a language model reads its prompt",
        "decode": "a language model writes one token",
        "train_forward": "the forward half of a training step",
        "train_backward": "the backward half of a training step",
    }
)

PRECISIONS: Mapping[str, str] = MappingProxyType(
    {
        "model": "the model's own precision",
        **{
            d.value: f"compute in {d.value}"
            for d in (
                DType.FLOAT64,
                DType.FLOAT32,
                DType.FLOAT16,
                DType.BFLOAT16,
                DType.FLOAT8_E4M3FN,
                DType.FLOAT8_E5M2,
                DType.INT8,
                DType.INT4,
            )
        },
    }
)

_COMMON_DIMS = {
    "rank": "number of dims of the first input",
    "elements": "number of elements of the first input",
    "batch": "first dim of the first input; for matmul the product of all dims before the last two",
}

DIMS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "matmul": {
            "M": "rows of the output",
            "N": "columns of the output",
            "K": "length of each dot product",
        },
        "conv": {
            "C": "input channels",
            "H": "input height",
            "W": "input width",
            "K": "output channels",
            "R": "filter height",
            "S": "filter width",
        },
        "attention": {
            "heads": "query heads",
            "kv_heads": "key and value heads",
            "Q": "query length",
            "S": "key length",
            "D": "size of one head",
        },
        "norm": {"rows": "how many rows are normalised", "cols": "elements of one row"},
        "softmax": {"rows": "how many rows", "cols": "elements of one row"},
    }
)
"""Dim names of shape conditions by family; ``rank``, ``elements`` and ``batch`` are there for every family."""


def dims_of_family(families: Iterable[str] = ()) -> dict[str, str]:
    """Name -> meaning of the dims that every one of the families has; without families, the common ones."""
    shared: dict[str, str] | None = None
    for family in families:
        mine = DIMS.get(family, {})
        shared = dict(mine) if shared is None else {k: v for k, v in shared.items() if k in mine}
    return (shared or {}) | _COMMON_DIMS


def nearest(word: object, known: Iterable[str]) -> str:
    """``"Did you mean 'cublasLt'? "``, or an empty text when nothing known is near."""
    by_lower = {k.lower(): k for k in known}
    near = difflib.get_close_matches(str(word)[:100].lower(), by_lower, n=1)
    return f"Did you mean {by_lower[near[0]]!r}? " if near else ""
