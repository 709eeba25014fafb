"""Runs on device tensors of other libraries, in the order of the caller's stream."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ...runtime.execution.executor import Executor
from ..execution.inputs import on_a_device

__all__ = ["run_on_tensors"]


def run_on_tensors(executor: Executor, inputs: Mapping[str, Any]) -> Sequence[Any]:
    """Return outputs in the program's order as tensors of the inputs' library, without a copy.

    The run is queued on the caller's stream (PyTorch's current one, otherwise the default stream) and is not waited for.
    """
    stream = executor.backend.current_stream()
    outputs = executor.run(inputs, stream=stream)
    library = next(_library(v) for v in inputs.values() if on_a_device({"": v}))
    return [library(buffer) for buffer in outputs.values()]


def _library(tensor: Any) -> Any:
    """Return ``from_dlpack`` of a tensor's library; identity if it has none."""
    module = sys.modules.get(type(tensor).__module__.partition(".")[0])
    return getattr(module, "from_dlpack", lambda buffer: buffer)
