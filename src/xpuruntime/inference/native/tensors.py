"""Runs on tensors that lie on the device: other libraries' memory in and out, in the order of the caller's stream."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ...runtime.executor import Executor
from ..execution.inputs import on_a_device

__all__ = ["run_on_tensors"]


def run_on_tensors(executor: Executor, given: Mapping[str, Any]) -> Sequence[Any]:
    """Outputs in the program's order, as tensors of the library that the inputs on the device are of; nothing is copied there.

    The run is queued on the stream that the caller works on (PyTorch's current one; else the default stream), and nobody waits.
    """
    stream = executor.backend.current_stream()
    made = executor.run(given, stream=stream)
    library = next(_library(v) for v in given.values() if on_a_device({"": v}))
    return [library(buffer) for buffer in made.values()]


def _library(tensor: Any) -> Any:
    """``from_dlpack`` of the library that a tensor is of; buffers stay what they are where it has none."""
    module = sys.modules.get(type(tensor).__module__.partition(".")[0])
    return getattr(module, "from_dlpack", lambda buffer: buffer)
