"""RuntimeBackend: the methods of the porting guide on top of a few memory operations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...errors import DeviceUnavailable
from ...program.program import Binary, CompiledProgram, ExecutionPlan
from ...protocols import Backend
from ...targets import DeviceId
from ...types import DType, Layout, TensorSpec
from ..memory.buffer import BackendBase, DeviceBuffer

if TYPE_CHECKING:
    from ..execution.executor import Executor
    from ..weights.load import Weights

__all__ = ["RuntimeBackend"]


class RuntimeBackend(BackendBase, Backend):
    """A device driver. ``kind`` is the part of a plan's target before the colon: ``cpu``, ``npu-sim``.

    The driver chooses the type of its memory handles: byte arrays on the host, any object elsewhere.
    """

    kind: str
    core_is_host = False
    """True if device memory is host memory, so that arrays are read and written in place."""
    stages = False
    """True if the core copies host arrays to the device and back itself."""

    @classmethod
    def at(cls, index: int) -> RuntimeBackend:
        """Return the driver of the device with this index. Raises DeviceUnavailable."""
        if index:
            raise DeviceUnavailable(
                f"device {cls.kind}:{index}",
                f"there is one {cls.kind} device",
                do=f"Use device={cls.kind!r}.",
            )
        return cls()

    @abstractmethod
    def allocate(self, size_bytes: int) -> Any:
        """Allocate memory with undefined content. Raises MemoryError."""

    @abstractmethod
    def upload(self, handle: Any, data: NDArray[np.uint8]) -> None:
        """Copy host bytes to the start of device memory."""

    @abstractmethod
    def download(self, handle: Any, size_bytes: int) -> NDArray[np.uint8]:
        """Return the first bytes of device memory on the host; a view if the memory is shared."""

    @abstractmethod
    def address(self, handle: Any) -> int:
        """Return the number that identifies the memory in the core: its address, or ``id`` of the handle for a driver in Python."""

    @abstractmethod
    def core(self, program: CompiledProgram, plan: ExecutionPlan, threads: int) -> _core.Backend:
        """Return the core's driver for one plan."""

    def clear(self, handle: Any, size_bytes: int) -> None:
        """Set the start of device memory to zero."""
        self.upload(handle, np.zeros(size_bytes, np.uint8))

    def shares_memory(self, other: RuntimeBackend) -> bool:
        """Return True if memory of the other backend's device can be used here directly."""
        return self is other or (self.core_is_host and other.core_is_host)

    def take(self, buffer: DeviceBuffer) -> tuple[DeviceBuffer, bool]:
        """Return a copy of another device's buffer, and whether it went there without host memory. The copy may be queued."""
        return DeviceBuffer.from_numpy(buffer.to_numpy(), self, spec=buffer.spec), False

    def load_code(self, binary: Binary) -> _core.Module | _core.Status | None:
        """Return object code in the core's form; None if the driver loads it itself."""
        return None

    def missing(self, requires: tuple[str, ...]) -> list[str]:
        """Return the requirements of a binary that this machine and device lack."""
        return _core.missing_requirements(list(requires))

    def foreign(self, format: str) -> str:  # noqa: A002
        """Return the reason why this machine cannot run a binary's format; empty if it can."""
        return ""

    @property
    def device(self) -> DeviceId:
        """Return the device that this backend drives."""
        return DeviceId(self.kind or "null")

    def notes(self) -> tuple[str, ...]:
        """Return lines for a receipt on how runs reached the device."""
        return ()

    def import_tensor(self, tensor: Any, stream: int) -> DeviceBuffer | None:
        """Return another library's tensor on this device as a buffer over the same memory; None for any other tensor."""
        return None

    def export_tensor(self, buffer: DeviceBuffer, stream: int | None) -> Any:
        """Return the buffer as a DLPack capsule over the same memory; None if it must be copied to the host first."""
        return None

    def accept_buffers(
        self, call: _core.TensorCall, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> None:
        """Let a call accept buffers of this device, if the core can read and create them."""
        return

    def current_stream(self) -> int:
        """Return the stream that the calling program uses; 0 if the device has no streams."""
        return 0

    def allocate_on(self, size_bytes: int, stream: int) -> Any:
        """Allocate memory for work that is queued on a stream (stream-ordered allocation)."""
        return self.allocate(size_bytes)

    def order(self, later: int, earlier: int) -> None:
        """Make later work on stream ``later`` wait for all work queued on ``earlier``."""
        return

    def wait(self, stream: int) -> None:
        """Wait for all work queued on a stream."""
        return

    def new_stream(self) -> Any:
        """Return a new queue, which ``Stream`` wraps. Raises DeviceUnavailable if the device has no streams."""
        raise self._without("streams")

    def new_event(self) -> Any:
        """Return a new event for the queues of this device."""
        raise self._without("events")

    def memory(self) -> dict[str, int]:
        """Return statistics of the device's pool: live_bytes, peak_bytes, cached_bytes, allocations, reuses. Raises DeviceUnavailable if
        there is no pool.
        """
        raise self._without("memory pool")

    def pinned_memory(self) -> dict[str, int]:
        """Return the same statistics of page-locked host memory. Raises DeviceUnavailable if the device uses none."""
        raise self._without("page-locked memory")

    def allocate_pinned(self, size_bytes: int) -> NDArray[np.uint8]:
        """Allocate page-locked host memory, from and to which runs copy without a copy in between. Raises OutOfMemory, DeviceUnavailable."""
        raise self._without("page-locked memory")

    def arena_pool(self) -> _core.ArenaPool | None:
        """Return a pool of memory for runs that executors share; None if each executor has memory of its own."""
        return None

    def trim(self) -> int:
        """Release cached memory. Return the number of bytes."""
        raise self._without("memory pool")

    def _without(self, feature: str) -> DeviceUnavailable:
        name = type(self).__name__
        others = [word for word in ("cpu", "cuda") if word != self.device.kind]
        do = f"Use {' or '.join(others)}."
        return DeviceUnavailable(
            f"device {self.device}", f"has no {feature} in this release", got=name, do=do
        )

    def dlpack_device(self) -> tuple[int, int]:
        """Return the DLPack device of memory that ``export_tensor`` exports."""
        return (1, 0)

    def synchronize(self) -> None:
        """Wait for all submitted work."""
        return

    def allocate_buffer(
        self, data: Any, alloc_shape: tuple[int, ...] | None = None, spec: TensorSpec | None = None
    ) -> DeviceBuffer:
        """Copy an array to the device: in the layout of ``spec``, padded to ``alloc_shape``, or dense. Raises InputError."""
        return DeviceBuffer.from_numpy(data, self, spec=spec, alloc_shape=alloc_shape)

    def allocate_zeros(
        self, shape: tuple[int, ...], dtype: Any, alloc_shape: tuple[int, ...] | None = None
    ) -> DeviceBuffer:
        """Allocate zeros on the device."""
        layout = None if alloc_shape is None else Layout(tuple(range(len(shape))), tuple(alloc_shape))
        return DeviceBuffer.zeros(TensorSpec(tuple(shape), DType.of(dtype), layout=layout), self)

    def create_executor(self, program: CompiledProgram, **options: Any) -> Executor:
        """Return an executor of the program on this device; options as for ``Executor``."""
        from ..execution.executor import Executor

        return Executor(program, self, **options)

    def execute(
        self, program: CompiledProgram, inputs: Mapping[str, Any], weights: Weights | Mapping[str, Any] | None
    ) -> dict[str, DeviceBuffer]:
        """Run a program once and return its outputs by name. To run it again, keep an executor instead."""
        return self.create_executor(program).run(inputs, weights=weights)
