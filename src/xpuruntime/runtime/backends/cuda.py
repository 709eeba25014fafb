"""CudaBackend: NVIDIA GPUs. CUBINs and vendor libraries run on streams, whole plans as CUDA graphs.

    backend = CudaBackend()                                     # cuda:0; opens its primary context, which other libraries share
    executor = Executor(program, backend)
    y, = executor.run_arrays([x])                               # NumPy: copied through page-locked memory; waits for the run
    out = executor.run({"x": tensor}, stream=backend.current_stream())   # device tensors: no copy; queued without waiting

Memory comes from a stream-ordered pool. ``memory()`` returns its statistics, and ``trim()`` releases its cached blocks.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...errors import BuildError, DeviceUnavailable, OutOfMemory, RunError
from ...program.program import TENSOR_MAPS, Binary, CompiledProgram, ExecutionPlan
from ...targets import DeviceId
from ...types import DType, TensorSpec
from ..device import search
from ..memory.buffer import DeviceBuffer
from ..streams.cuda_queue import CudaQueue, CudaStreamEvent
from .base import RuntimeBackend

__all__ = ["CudaBackend", "ForeignBlock"]

_CUDA = 2  # kDLCUDA
_MAX_STREAMS = 256
_SM = re.compile(r"cuda:sm_(\d+)(a?)")
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
_NAMES = {"bfloat16": (4, 16), "bool": (6, 8)}


@dataclass(frozen=True, slots=True)
class ForeignBlock:
    """Memory of the device that another library owns; ``owner`` keeps it alive."""

    address: int
    bytes: int
    owner: Any

    def used_on(self, stream: int) -> None:
        """Do nothing: the owner's allocator tracks its own streams."""


class CudaBackend(RuntimeBackend):
    """Runs plans whose target is ``cuda:sm_...``.

    index: the driver's index of the device. Raises DeviceUnavailable with the driver's reason.
    """

    kind = "cuda"
    stages = True

    def __init__(self, index: int = 0) -> None:
        core = _core.cuda_backend(index, search("cuda"))
        if isinstance(core, _core.Status):
            raise DeviceUnavailable(
                f"device cuda:{index}",
                "cannot be used",
                got=core.message,
                do=core.advice or "Use device='cpu'.",
            )
        self._core = core
        self.index = index
        self._events: deque[_core.CudaEvent] = deque()  # free ones, without times
        self._streams: dict[int, _core.CudaStream] = {}

    @classmethod
    def at(cls, index: int) -> CudaBackend:
        return cls(index)

    def __repr__(self) -> str:
        return f"CudaBackend({self.index}: {self.name})"

    @property
    def name(self) -> str:
        """Return the device's name."""
        return self._core.device_name

    @property
    def target(self) -> str:
        """Return the target that code for this device is generated for: ``cuda:sm_90``."""
        return f"cuda:sm_{self._core.capability}"

    # ── memory ──

    def allocate(self, size_bytes: int) -> _core.CudaBlock:
        return self._made(self._core.block(size_bytes))

    def allocate_on(self, size_bytes: int, stream: int) -> _core.CudaBlock:
        return self._made(self._core.block(size_bytes, stream))

    def _made(self, block: _core.CudaBlock | _core.Status) -> _core.CudaBlock:
        """Return the block, with undefined content. Raises OutOfMemory."""
        if isinstance(block, _core.Status):
            raise self._failed(block, "cannot allocate memory")
        return block

    def upload(self, handle: Any, data: NDArray[np.uint8]) -> None:
        self._check(
            self._core.upload(handle.address, np.ascontiguousarray(data)), "cannot copy to the device"
        )

    def download(self, handle: Any, size_bytes: int) -> NDArray[np.uint8]:
        data = np.empty(size_bytes, np.uint8)
        self._check(self._core.download(data, handle.address), "cannot copy from the device")
        return data

    def clear(self, handle: Any, size_bytes: int) -> None:
        self._check(self._core.clear(handle.address, size_bytes), "cannot clear memory")

    def address(self, handle: Any) -> int:
        return int(handle.address)

    def shares_memory(self, other: RuntimeBackend) -> bool:
        return isinstance(other, CudaBackend) and other.index == self.index

    def reaches_peer(self, other: CudaBackend) -> bool:
        """Return True if copies from the other device need no host memory. Raises RunError."""
        direct = self._core.reaches_peer(other._core)
        if isinstance(direct, _core.Status):
            raise self._failed(direct, f"cannot reach cuda:{other.index}")
        return direct

    def take(self, buffer: DeviceBuffer) -> tuple[DeviceBuffer, bool]:
        """Return a copy of another device's buffer, and whether it went there without host memory. Between GPUs that reach each other it is
        queued: on the current stream of this device, after the work that writes the buffer.
        """
        other = buffer.backend
        if not isinstance(other, CudaBackend) or not self.reaches_peer(other):
            return super().take(buffer)
        stream = self.current_stream()
        source = other.current_stream() if buffer.pending is None else buffer.pending
        copy = DeviceBuffer(self.allocate_on(buffer.size_bytes, stream), buffer.spec, self)
        status = self._core.copy_from_peer(
            copy.address, stream, other._core, buffer.address, source, buffer.size_bytes
        )
        self._check(status, f"cannot copy from cuda:{other.index}")
        buffer.native_handle.used_on(source)
        copy.native_handle.used_on(stream)
        copy.pending = stream
        return copy, True

    def memory(self) -> dict[str, int]:
        """Return statistics of the device's pool in bytes (live_bytes, peak_bytes, cached_bytes) and counts (allocations, reuses)."""
        return _statistics(self._core.memory())

    def pinned_memory(self) -> dict[str, int]:
        """Return the same statistics for page-locked host memory."""
        return _statistics(self._core.pinned())

    def allocate_pinned(self, size_bytes: int) -> NDArray[np.uint8]:
        block = self._core.pinned_block(size_bytes)
        if block is None:
            got = f"{size_bytes} bytes, with {self.pinned_memory()['live_bytes']} in use"
            raise OutOfMemory(f"device cuda:{self.index}", "cannot allocate page-locked host memory", got=got, do="Free other pinned arrays.")  # fmt: skip
        return block

    def arena_pool(self) -> _core.ArenaPool:
        return _core.ArenaPool(self._core)

    def trim(self) -> int:
        """Release cached device and page-locked memory. Return the number of bytes."""
        return self._core.trim()

    # ── code and runs ──

    def core(self, program: CompiledProgram, plan: ExecutionPlan, threads: int) -> _core.Backend:
        return self._core

    def load_code(self, binary: Binary) -> _core.Module | _core.Status:
        return self._core.load(binary.data)

    def missing(self, requires: tuple[str, ...]) -> list[str]:
        """Return the unmet requirements. A binary runs on devices of its major compute capability with its minor number or higher; an
        ``a`` binary runs on exactly its own capability.
        """
        capability = self._core.capability
        lacking = []
        for need in requires:
            if need == TENSOR_MAPS:
                continue
            match = _SM.fullmatch(need)
            if match is None:
                lacking += _core.missing_requirements([need])
                continue
            required = int(match[1])
            fits = (
                capability == required
                if match[2]
                else (capability // 10 == required // 10 and capability >= required)
            )
            if not fits:
                lacking.append(f"{need} (it is {self.target})")
        return lacking

    def synchronize(self) -> None:
        self._check(self._core.synchronize(), "failed")

    def counters(self) -> dict[str, Any]:
        """Return counts of graph captures, updates and replays, and of plain submissions. ``declined`` holds the reasons why plans run
        kernel by kernel.
        """
        counters = self._core.counters()
        names = ("captures", "updates", "replays", "plain")
        return {n: getattr(counters, n) for n in names} | {"declined": self._core.declined()}

    @property
    def device(self) -> DeviceId:
        return DeviceId("cuda", self.index)

    def notes(self) -> tuple[str, ...]:
        counters = self._core.counters()
        runs = f"{counters.replays} submissions as a CUDA graph ({counters.captures} captured, {counters.updates} updated to other addresses), {counters.plain} kernel by kernel"
        return (f"on {self.name}: {runs}", *(f"no graph: {why}" for why in self._core.declined()))

    # ── streams ──

    def current_stream(self) -> int:
        """Return PyTorch's current stream if PyTorch uses the GPU, otherwise the default stream."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # without a stream object, if there
            if raw is not None:
                return int(raw(self.index))
            return int(torch.cuda.current_stream(self.index).cuda_stream)
        return 0

    def order(self, later: int, earlier: int) -> None:
        """Make later work on stream ``later`` wait for all work queued on ``earlier``."""
        if later == earlier:
            return
        try:
            event = self._events.pop()
        except IndexError:
            event = self._new_event()
        first = event.record(self._stream(earlier))
        second = event.wait(self._stream(later))  # for what is recorded now, so the event is free again
        self._events.append(event)
        if not (first.ok and second.ok):
            self._check(first, "cannot order streams")
            self._check(second, "cannot order streams")

    def _new_event(self) -> _core.CudaEvent:
        event = self._core.event(False)
        if isinstance(event, _core.Status):
            raise self._failed(event, "cannot order streams")
        return event

    def _stream(self, handle: int) -> _core.CudaStream:
        """Return the core's object of a stream's handle."""
        stream = self._streams.get(handle)
        if stream is None:
            if len(self._streams) >= _MAX_STREAMS:  # handles of destroyed streams
                self._streams.clear()
            stream = self._streams[handle] = self._core.wrap(handle)
        return stream

    def wait(self, stream: int) -> None:
        """Wait for all work queued on a stream. Raises RunError if a kernel of a run on it reported an error."""
        self._check(self._core.wrap(stream).synchronize(), "failed")
        self._check(self._core.reported(), "failed")

    def new_stream(self) -> CudaQueue:
        return CudaQueue(self._core)

    def new_event(self) -> CudaStreamEvent:
        return CudaStreamEvent(self._core)

    # ── other libraries' tensors ──

    def accept_buffers(
        self, call: _core.TensorCall, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> None:
        call.take_buffers(DeviceBuffer, self._core, list(inputs), list(outputs))

    def import_tensor(self, tensor: Any, stream: int) -> DeviceBuffer | None:
        """Return a dense tensor on this device as a buffer over the same memory, ordered on ``stream``; None for any other tensor."""
        if not hasattr(tensor, "__dlpack_device__"):
            return None
        kind, index = tensor.__dlpack_device__()
        if (int(kind), int(index)) != (_CUDA, self.index):
            return None
        with _current_in_torch(tensor, self.index):
            capsule = tensor.__dlpack__(stream=stream or 1)  # in DLPack, 1 is the default stream
        address, shape, strides, _, code, bits, owner = _core.read_capsule(capsule)
        spec = TensorSpec(tuple(shape), _dtype(code, bits))
        if any(d > 1 and s != t for d, s, t in zip(shape, strides, spec.physical.strides, strict=True)):
            return self.import_tensor(tensor.contiguous(), stream) if hasattr(tensor, "contiguous") else None
        return DeviceBuffer(ForeignBlock(address, spec.size_bytes or 0, owner), spec, self)

    def export_tensor(self, buffer: DeviceBuffer, stream: int | None) -> Any:
        """Return the buffer as a DLPack capsule, ordered on the consumer's stream (in DLPack, 1 and 2 are default streams)."""
        consumer = 0 if stream in (None, -1, 1) else int(stream or 0)
        if buffer.pending is not None:
            self.order(consumer, buffer.pending)
        buffer.native_handle.used_on(consumer)  # whose work may outlive the capsule
        code, bits = _code(buffer.spec.dtype)
        strides = [int(s) for s in buffer.spec.physical.strides]
        return _core.cuda_capsule(buffer.address, buffer.shape, strides, code, bits, self.index, buffer)

    def dlpack_device(self) -> tuple[int, int]:
        return (_CUDA, self.index)

    # ── internal ──

    def _check(self, status: _core.Status, problem: str) -> None:
        if not status.ok:
            raise self._failed(status, problem)

    def _failed(self, status: _core.Status, problem: str) -> RunError:
        kind = OutOfMemory if status.code == "no_memory" else RunError
        return kind(f"device cuda:{self.index}", problem, got=status.message, do=status.advice)


def _current_in_torch(tensor: Any, index: int) -> AbstractContextManager[Any]:
    """Return a context in which PyTorch exports a tensor of a device: it refuses those of devices that are not current."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor) or torch.cuda.current_device() == index:
        return nullcontext()
    context: AbstractContextManager[Any] = torch.cuda.device(index)
    return context


def _statistics(statistics: _core.MemoryStatistics) -> dict[str, int]:
    names = ("live_bytes", "peak_bytes", "cached_bytes", "allocations", "reuses")
    return {n: int(getattr(statistics, n)) for n in names}


def _dtype(code: int, bits: int) -> DType:
    name = "bool" if code == 6 else f"{_CODES.get(code, 'opaque')}{bits}"
    try:
        return DType(name)
    except ValueError as error:
        raise BuildError(
            "tensor", "has an element type that models do not support", got=f"DLPack code {code}, {bits} bits"
        ) from error


def _code(dtype: DType) -> tuple[int, int]:
    if dtype.value in _NAMES:
        return _NAMES[dtype.value]
    kind = next(c for c, prefix in _CODES.items() if dtype.value.startswith(prefix))
    return kind, dtype.bits
