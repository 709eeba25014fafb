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
    "KERNELS_NOT_IMPLEMENTED",
    "PHASES",
    "PHASES_NOT_IMPLEMENTED",
    "PRECISIONS",
    "PRECISIONS_NOT_IMPLEMENTED",
    "REGION_RUNNERS",
    "SELF_CHECKS",
    "dims_of_family",
    "nearest",
]

# "generated" is ours; "ported" is the kernel that another target's author brings for an op, see docs/how-to/porting-to-a-new-device.md.
_USUAL = ("generated", "ported")
_WITH_NAIVE = ("generated", "naive", "ported")

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
            *_WITH_NAIVE,
        ),
        "conv": ("cudnn", "deformed", "depthwise", "implicit_gemm", "onednn", *_WITH_NAIVE),
        "attention": ("flash", "flash_v2", "flash_decode", "cudnn", "naive", "ported"),
        "norm": _WITH_NAIVE,
        "softmax": _USUAL,
        "activation": _USUAL,
        "elementwise": ("narrow", "strided", *_USUAL),
        "reduce": _USUAL,
        "pool": ("places", "regions", *_USUAL),
        "embedding": _USUAL,
        "create": ("fill", *_USUAL),
        "data_movement": ("strided", *_USUAL),
        "search": _USUAL,
        "rope": _USUAL,
        "quantize": _USUAL,
        "resize": _USUAL,
        "rnn": _USUAL,
        "random": _USUAL,
        "signal": _USUAL,
        "other": _USUAL,
    }
)
"""Words by family, each of a kernel that the catalogue has or that a vendor engine has an option for (a test holds the two together)."""
assert KERNELS.keys() <= FAMILIES.keys()

LIBRARY_KERNELS = frozenset({"cublas", "cublasLt", "cudnn", "flash", "flash_decode", "flash_v2", "onednn"})
"""Kernels that a vendor engine may have inside, too. The others are the native engine's alone, so a vendor never takes them."""

_LIBRARIES = {
    "attention": ("generated",),
    "norm": ("cudnn", "onednn"),
    "softmax": ("cudnn", "onednn"),
    "pool": ("cudnn", "onednn"),
    "rnn": ("cudnn",),
}
KERNELS_NOT_IMPLEMENTED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        family: (*_LIBRARIES.get(family, ()), *(() if "naive" in words else ("naive",)))
        for family, words in KERNELS.items()
        if family in _LIBRARIES or "naive" not in words
    }
)
"""Words of the field by family that this release has no kernel for. A policy that has nothing but them is refused when it is read."""

ENGINES: tuple[str, ...] = ("native", "onnxruntime", "tensorrt", "openvino", "qnn")
REGION_RUNNERS: tuple[str, ...] = ("torch", "interpreter")
"""What may run a region and is no engine for a whole model: PyTorch's own operators, and the reference interpreter."""
SELF_CHECKS: tuple[str, ...] = ("first_open", "always", "off")
"""When a session is compared with an independent reference."""
ENGINE_ALIASES: Mapping[str, str] = MappingProxyType({"onnxrt": "onnxruntime"})

PHASES: Mapping[str, str] = MappingProxyType(
    {
        "inference": "any run that trains nothing; prefill and decode are part of it",
        "prefill": "a language model reads its prompt",
        "decode": "a language model writes one token",
    }
)
PHASES_NOT_IMPLEMENTED: Mapping[str, str] = MappingProxyType(
    {
        "train_forward": "the forward half of a training step",
        "train_backward": "the backward half of a training step",
    }
)
"""Phases that nothing of this release runs in."""

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
                DType.INT8,
                DType.INT4,
            )
        },
    }
)
PRECISIONS_NOT_IMPLEMENTED: tuple[str, ...] = (DType.FLOAT8_E4M3FN.value, DType.FLOAT8_E5M2.value)
"""Precisions that nothing of this release computes in."""

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
    near = difflib.get_close_matches(word[:100].lower(), by_lower, n=1) if isinstance(word, str) else ()
    return f"Did you mean {by_lower[near[0]]!r}? " if near else ""
