"""Step 4: the driver of the edge accelerator. Its memory is a bytearray that the host cannot address by accident."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xpuruntime.program.program import Binary, KernelCall
from xpuruntime.runtime import LinearDispatch, PythonBackend
from xpuruntime.runtime.backends.python import PreparedCall
from xpuruntime.types import TensorSpec

from .edge_target import EDGE

Ready = Callable[[list[NDArray[Any]]], None]


class EdgeMemory:
    """A block of device memory."""

    def __init__(self, size_bytes: int) -> None:
        self.data = np.zeros(size_bytes, np.uint8)


class EdgeBackend(PythonBackend):
    """Runs programs compiled for ``npu-sim:...``. ``launches`` counts what the device was given: (runs, kernels)."""

    kind = "npu-sim"
    strategy = LinearDispatch(EDGE)

    def __init__(self) -> None:
        self.launches = [0, 0]

    # memory

    def allocate(self, size_bytes: int) -> EdgeMemory:
        return EdgeMemory(size_bytes)

    def upload(self, handle: EdgeMemory, data: NDArray[np.uint8]) -> None:
        handle.data[: data.size] = data

    def download(self, handle: EdgeMemory, size_bytes: int) -> NDArray[np.uint8]:
        return handle.data[:size_bytes].copy()

    # kernels

    def source(self, text: str) -> str:
        """What the target's ``shader_source`` gave, as the device's compiler takes it."""
        return text

    def prepare(self, call: KernelCall, specs: tuple[TensorSpec, ...], binary: Binary | None) -> Any:
        assert binary is not None
        space: dict[str, Any] = {}
        exec(self.source(json.loads(binary.data)[call.symbol]), space)
        function = space[str(call.options["entry"])]
        operands, attrs = call.options["operands"], dict(call.options["attrs"])

        def ready(arrays: list[NDArray[Any]]) -> None:
            args = [arrays[o["buffer"]] if isinstance(o, dict) else o for o in operands]
            while args and args[-1] is None:  # an operand that is absent
                args.pop()
            function(*args, out=arrays[-1], **attrs)

        return ready, specs

    def submit(self, calls: Sequence[PreparedCall], memory: Sequence[EdgeMemory | None]) -> None:
        self.launches[0] += 1
        for prepared in calls:
            if prepared.dispatch is None:
                continue
            ready, specs = prepared.kernel
            arrays = []
            for place, spec in zip(prepared.args, specs, strict=True):
                block = memory[place.slot]
                assert block is not None
                raw = block.data[place.offset : place.offset + spec.size_bytes]
                arrays.append(raw.view(spec.dtype.numpy).reshape(spec.shape))
            ready(arrays)
            self.launches[1] += 1
