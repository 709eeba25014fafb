"""The core's runners for tensors on a device, with inputs and outputs described as DLPack types: of programs, and of vendors' calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _core
from ...types import TensorSpec
from ..memory.arrays import dlpack_words

if TYPE_CHECKING:
    from ..backends.base import RuntimeBackend

__all__ = ["tensor_call", "tensor_run"]

_NEVER = (255, 0)  # a DLPack type that no tensor has


def tensor_run(
    core: _core.Executor,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    backend: RuntimeBackend,
    borrows_arena: bool,
) -> _core.TensorRun:
    """Return the core's runner for tensors. It accepts no tensors if an output's dtype has no DLPack code or the driver uses opaque
    handles. borrows_arena: each run takes its arena from the tensors' library, and gives it back in the order of the stream.
    """
    by_address = backend.core_is_host or backend.stages
    if not by_address or any(dlpack_words(s.dtype) is None for s in outputs):
        inputs = ()  # a runner without inputs accepts no tensors
    options = {"borrows_arena": True} if borrows_arena else {}
    return _core.TensorRun(core, _forms(inputs), _forms(outputs), *backend.dlpack_device(), **options)


def tensor_call(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], backend: RuntimeBackend
) -> _core.TensorCall:
    """Return what checks the inputs and creates the outputs of a vendor's call on tensors of these forms, which DLPack has."""
    call = _core.TensorCall(_forms(inputs), _forms(outputs), *backend.dlpack_device(), backend)
    backend.accept_buffers(call, inputs, outputs)
    return call


def _forms(specs: Sequence[TensorSpec]) -> list[tuple[str, list[int], tuple[int, int], np.dtype[Any]]]:
    return [
        (
            s.name,
            [int(d) for d in s.shape if isinstance(d, int)],
            dlpack_words(s.dtype) or _NEVER,
            s.dtype.numpy,
        )
        for s in specs
    ]
