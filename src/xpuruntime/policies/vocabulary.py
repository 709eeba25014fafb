"""The vocabulary of policies: kernels by op family, engines, phases, precisions, and the dims of a shape condition.

A name with a dot (``mylib.gemm``) belongs to a third party. It is accepted here and resolved when it is used.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ..families import FAMILIES
from ..types import DType

__all__ = [
    "ACTIVATIONS",
    "AUTOCAST_FAMILIES",
    "AUTOCAST_PRECISIONS",
    "DIMS",
    "ENGINES",
    "ENGINE_ALIASES",
    "INTEGER_KERNELS",
    "KERNELS",
    "KERNELS_NOT_IMPLEMENTED",
    "KV_CACHES",
    "PARALLEL",
    "PHASES",
    "PHASES_WITHIN",
    "PRECISIONS",
    "PRECISIONS_NOT_IMPLEMENTED",
    "REGION_RUNNERS",
    "SELF_CHECKS",
    "TRANSFERS",
    "TUNE",
    "TUNE_SECONDS",
    "WEIGHTS",
    "WEIGHT_KERNELS",
    "WORDS_OF_KERNELS",
    "WeightWords",
    "dims_of_family",
    "nearest",
]

# "generated" is xpuruntime's own kernel; "ported" is the kernel of a third-party target, see docs/how-to/porting-to-a-new-device.md.
_USUAL = ("generated", "ported")
_WITH_NAIVE = ("generated", "naive", "ported")

# Families without an entry have no kernels to choose from: losses.
KERNELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "matmul": (
            "cublas",
            "cublasLt",
            "gemv",
            "int8",
            "int4_weights",
            "int4_weights_64",
            "int4_weights_128",
            "int4_by_int8",
            "int4_64_by_int8",
            "int4_128_by_int8",
            "stored_by_int8",
            "int8_by_int8",
            "int8_weights",
            "fp8_weights",
            "onednn",
            "stored_weights",
            *_WITH_NAIVE,
        ),
        "conv": ("cudnn", "deformed", "depthwise", "gemv", "implicit_gemm", "int8", "onednn", *_WITH_NAIVE),
        "attention": ("flash", "flash_v2", "flash_simt", "flash_decode", "cudnn", "paged", "naive", "ported"),
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
        "control": ("host",),
        "other": ("nccl", "peers", "threads", *_USUAL),
    }
)
"""Words by family. Each names a kernel of the catalogue or an option of a vendor engine (a test checks this)."""
assert KERNELS.keys() <= FAMILIES.keys()

WEIGHTS: Mapping[str, str] = MappingProxyType(
    {
        "model": "the model's own type",
        "int8": "8 bits, one scale per output channel",
        "fp8": "8 bits as float8_e4m3fn, one scale per output channel",
        "int4": "4 bits, a scale and a minimum per group of 32 inputs",
        "int4_64": "4 bits, groups of 64 inputs",
        "int4_128": "4 bits, groups of 128 inputs",
        "stored": "the blocks of a GGUF file, the codes of GPTQ and AWQ layers, exact; floats where a file has floats",
    }
)
"""Type that the weights of linear layers are stored in -> its meaning. Without ``activations: int8``, the arithmetic stays in floats."""

WEIGHT_KERNELS: Mapping[str, str] = MappingProxyType(
    {
        "int8": "int8_weights",
        "fp8": "fp8_weights",
        "int4": "int4_weights",
        "int4_64": "int4_weights_64",
        "int4_128": "int4_weights_128",
        "stored": "stored_weights",
    }
)
"""Word of ``weights`` -> the kernel of ``matmul`` that multiplies such weights by floats."""
assert set(WEIGHT_KERNELS) == set(WEIGHTS) - {"model"}
assert set(WEIGHT_KERNELS.values()) <= set(KERNELS["matmul"])

ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {
        "model": "the model's own type",
        "int8": "8 bits, one scale per row and group of inputs: the largest magnitude over 127",
    }
)
"""Type that the inputs of linear layers with the ``weights`` of the same rule or policy are rounded to -> its meaning."""

INTEGER_KERNELS: Mapping[str, str] = MappingProxyType(
    {
        "int8": "int8_by_int8",
        "int4": "int4_by_int8",
        "int4_64": "int4_64_by_int8",
        "int4_128": "int4_128_by_int8",
        "stored": "stored_by_int8",
    }
)
"""Word of ``weights`` -> the kernel of ``matmul`` that multiplies such weights by activations of 8 bits."""
assert set(INTEGER_KERNELS) <= set(WEIGHT_KERNELS)
assert set(INTEGER_KERNELS.values()) <= set(KERNELS["matmul"])


class WeightWords(NamedTuple):
    """The words ``weights`` and ``activations`` of one rule or policy: one demand. Without ``activations`` the products stay in floats."""

    weights: str
    activations: str | None = None

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the kernels of ``matmul`` that implement the words, best first; none for the model's own type.

        The kernel of floats with the same weights comes after that of integers.
        """
        floats = WEIGHT_KERNELS.get(self.weights)
        if floats is None:
            return ()
        return (floats,) if self.activations is None else (INTEGER_KERNELS[self.weights], floats)

    def __str__(self) -> str:
        activations = "" if self.activations is None else f", activations: {self.activations}"
        return f"weights: {self.weights}{activations}"


WORDS_OF_KERNELS: Mapping[str, WeightWords] = MappingProxyType(
    {kernel: WeightWords(word) for word, kernel in WEIGHT_KERNELS.items()}
    | {kernel: WeightWords(word, "int8") for word, kernel in INTEGER_KERNELS.items()}
)
"""Kernel of ``matmul`` that only such words select -> the words. As words of policies these kernels are deprecated."""

KV_CACHES: Mapping[str, str] = MappingProxyType(
    {"model": "the type that the model computes in", "fp8": "float8_e4m3fn, values beyond 448 become 448"}
)
"""Type that a language model's keys and values are stored in -> its meaning."""

LIBRARY_KERNELS = frozenset({"cublas", "cublasLt", "cudnn", "flash", "flash_decode", "flash_v2", "onednn"})
"""Kernels that vendor engines may also use internally. Only the native engine has the others."""

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
        if family != "control" and (family in _LIBRARIES or "naive" not in words)
    }
)
"""Words by family that this release does not implement. A policy with only such words for a demand is refused."""

ENGINES: tuple[str, ...] = ("native", "onnxruntime", "tensorrt", "openvino", "qnn")
REGION_RUNNERS: tuple[str, ...] = ("torch", "interpreter")
"""Runners of regions that are not engines for a whole model: PyTorch's own operators, and the reference interpreter."""
AUTOCAST_FAMILIES: tuple[str, ...] = (*FAMILIES, "batch_norm")
"""Op families of an autocast table. ``batch_norm`` is apart from ``norm``, as in PyTorch."""

AUTOCAST_PRECISIONS: Mapping[str, str] = MappingProxyType(
    {
        "low": "the 16-bit type of the autocast block",
        "float32": "float32",
        "own": "the widest type of its operands",
    }
)
"""Precision of an op family under autocast -> its meaning."""

SELF_CHECKS: tuple[str, ...] = ("first_open", "always", "off")
"""The times at which a session is compared with an independent reference."""
TUNE: Mapping[str, str] = MappingProxyType(
    {"on_build": "seconds for measuring the kernels of a program when it is built; 0 measures nothing"}
)
"""Moments at which kernels are measured -> the value's meaning."""
TUNE_SECONDS = 10.0
"""The bound of ``tune: on_build`` without a number."""
PARALLEL: Mapping[str, str] = MappingProxyType({"tensor": "the linear layers, by rows and by columns"})
"""Ways to divide a model over devices -> what each divides."""

TRANSFERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"h2d": ("any", "io_only"), "d2h": ("any", "io_only"), "sync": ("any", "none")}
)
"""Kinds of transfers inside a run, and the words that limit each one."""
ENGINE_ALIASES: Mapping[str, str] = MappingProxyType({"onnxrt": "onnxruntime"})

PHASES: Mapping[str, str] = MappingProxyType(
    {
        "inference": "any run that is not training; includes prefill, decode and sample",
        "prefill": "a language model processes its prompt",
        "decode": "a language model generates one token; includes sample",
        "sample": "a language model generates one token and samples it",
        "train_forward": "the forward pass of a training step",
        "train_backward": "the backward pass of a training step",
    }
)

PHASES_WITHIN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"inference": ("prefill", "decode", "sample"), "decode": ("sample",)}
)
"""Phase -> the phases that it includes."""

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
"""Precisions that this release does not compute in."""

_COMMON_DIMS = {
    "rank": "number of dims of the first input",
    "elements": "number of elements of the first input",
    "batch": "first dim of the first input; for matmul, the product of all dims before the last two",
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
        "norm": {"rows": "number of normalized rows", "cols": "elements per row"},
        "softmax": {"rows": "number of rows", "cols": "elements per row"},
    }
)
"""Dim names of shape conditions by family; ``rank``, ``elements`` and ``batch`` are there for every family."""


def dims_of_family(families: Iterable[str] = ()) -> dict[str, str]:
    """Return name and meaning of the dims that all of the families have; without families, the common ones."""
    shared: dict[str, str] | None = None
    for family in families:
        family_dims = DIMS.get(family, {})
        shared = (
            dict(family_dims) if shared is None else {k: v for k, v in shared.items() if k in family_dims}
        )
    return (shared or {}) | _COMMON_DIMS


def nearest(text: object, names: Iterable[str]) -> str:
    """Return ``"Did you mean 'cublasLt'? "``, or an empty text if no known word is similar."""
    by_lower = {k.lower(): k for k in names}
    near = difflib.get_close_matches(text[:100].lower(), by_lower, n=1) if isinstance(text, str) else ()
    return f"Did you mean {by_lower[near[0]]!r}? " if near else ""
