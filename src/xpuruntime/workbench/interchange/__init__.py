"""Interchange: policies of other tools to and from policies of xpuruntime, with a report of what could not be carried.

One file per format. ``FORMATS`` lists them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ...errors import PolicyError
from ...policies.policy import Policy
from ...policies.vocabulary import nearest
from .hf_kernels import load_kernel, read_repository
from .llama_cpp import read_overrides, write_overrides
from .onnxruntime_layers import read_layers, write_layers
from .report import Conversion, ConvertedItem, ItemOutcome
from .source_text import SourceText, read_text
from .tunable_op import read_results, write_results
from .vllm_ir import read_priorities, write_priorities

__all__ = [
    "FORMATS",
    "Conversion",
    "ConvertedItem",
    "ForeignFormat",
    "ItemOutcome",
    "load_kernel",
    "parse_foreign",
    "read_foreign",
    "write_foreign",
]


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """A format of another tool.

    meaning: the tool and what the format says.
    read:    from a text; None if the source is a folder. write: from a policy and its name; None if the format is only read.
    needs_model: the functions also take a model.
    """

    meaning: str
    read: Callable[[SourceText], Conversion] | None
    write: Callable[[Policy, str], Conversion] | None
    needs_model: bool = False


FORMATS: Mapping[str, ForeignFormat] = MappingProxyType(
    {
        "onnxruntime-layers": ForeignFormat(
            "ONNX Runtime: devices by layer annotation or node name",
            read_layers,
            write_layers,
            needs_model=True,
        ),
        "llama-ot": ForeignFormat("llama.cpp: --override-tensor", read_overrides, write_overrides),
        "vllm-ir": ForeignFormat("vLLM: --ir-op-priority", read_priorities, write_priorities),
        "tunableop": ForeignFormat("PyTorch: results of TunableOp", read_results, write_results),
        "hf-kernels": ForeignFormat("Hugging Face kernels: a repository on disk", None, None),
    }
)


def parse_foreign(name: str) -> ForeignFormat:
    """Return the format of a name. Raises PolicyError."""
    if name not in FORMATS:
        do = f"{nearest(name, FORMATS)}Known: {', '.join(FORMATS)}."
        raise PolicyError("convert", "no such format", got=repr(name), do=do)
    return FORMATS[name]


def read_foreign(
    name: str, path: str | os.PathLike[str], *, model: str | os.PathLike[str] | None = None
) -> Conversion:
    """Convert a foreign file to a policy. ``model``: for formats that name nodes. Raises PolicyError with line and column, ModelError."""
    form = parse_foreign(name)
    if form.read is None:
        return read_repository(path)
    source = read_text(Path(path))
    return read_layers(source, model) if form.needs_model else form.read(source)


def write_foreign(
    name: str,
    policy: Policy,
    source: str = "policy",
    *,
    model: str | os.PathLike[str] | None = None,
    annotated: str | os.PathLike[str] | None = None,
) -> Conversion:
    """Convert a policy to the text of a foreign file. ``annotated``: new file for the annotated model. Raises PolicyError, ModelError."""
    form = parse_foreign(name)
    if form.write is None:
        raise PolicyError("convert", f"{name} is only read", do="Publish kernels with kernel-builder.")
    if form.needs_model:
        return write_layers(policy, source, model, annotated)
    return form.write(policy, source)
