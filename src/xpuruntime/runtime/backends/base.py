"""What every backend has in common: the porting guide's methods, over a few verbs of memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...errors import DeviceUnavailable
from ...program.program import Binary, CompiledProgram, ExecutionPlan
from ...protocols import Backend
from ...targets import DeviceId
from ...types import DType, Layout, TensorSpec
from ..buffer import DeviceBuffer

if TYPE_CHECKING:
    from ..executor import Executor
    from ..weights import Weights

__all__ = ["RuntimeBackend"]


class RuntimeBackend(Backend):
    """A device driver. ``kind`` is the part of a plan's target before the colon: ``cpu``, ``npu-sim``.

    Handles of memory are whatever the device has: addresses on the host, objects elsewhere.
    """

    kind: str
    core_is_host = False
    """Whether device memory is the host's, so that arrays are read and written in place."""
    stages = False
    """Whether the core brings arrays of the host to the device and back by itself."""

    @classmethod
    def at(cls, index: int) -> RuntimeBackend:
        """The driver of the device at an index. Raises DeviceUnavailable."""
        if index:
            raise DeviceUnavailable(
                f"device {cls.kind}:{index}",
                f"there is one {cls.kind} device",
                do=f"Use device={cls.kind!r}.",
            )
        return cls()

    @abstractmethod
    def allocate(self, size_bytes: int) -> Any:
        """Memory of that many bytes, content arbitrary. Raises MemoryError."""

    @abstractmethod
    def upload(self, handle: Any, data: NDArray[np.uint8]) -> None:
        """Copy bytes of the host to the start of device memory."""

    @abstractmethod
    def download(self, handle: Any, size_bytes: int) -> NDArray[np.uint8]:
        """The first bytes of device memory on the host; a view where the two are one."""

    @abstractmethod
    def address(self, handle: Any) -> int:
        """What the core knows the memory by: its address, or ``id`` of the handle for a driver in Python."""

    @abstractmethod
    def core(self, program: CompiledProgram, plan: ExecutionPlan, threads: int) -> _core.Backend:
        """The driver in the core, for one plan."""

    def clear(self, handle: Any, size_bytes: int) -> None:
        """Zeros at the start of device memory."""
        self.upload(handle, np.zeros(size_bytes, np.uint8))

    def shares_memory(self, other: RuntimeBackend) -> bool:
        """Whether memory of the other's device can be used here as it is."""
        return self is other or (self.core_is_host and other.core_is_host)

    def load_code(self, binary: Binary) -> _core.Module | _core.Status | None:
        """Object code as the core wants it; None where the driver loads it by itself."""
        return None

    def missing(self, requires: tuple[str, ...]) -> list[str]:
        """Those of a binary's needs that this machine and device lack."""
        return _core.missing_requirements(list(requires))

    def foreign(self, format: str) -> str:  # noqa: A002
        """Why a binary's format is none of this machine's; empty where it is not."""
        return ""

    @property
    def device(self) -> DeviceId:
        """Which device it drives."""
        return DeviceId(self.kind or "null")

    def notes(self) -> tuple[str, ...]:
        """What a receipt should say of how runs reached the device."""
        return ()

    def import_tensor(self, tensor: Any, stream: int) -> DeviceBuffer | None:
        """Another library's tensor that lies on this device, as a buffer over the same memory; None for any other."""
        return None

    def export_tensor(self, buffer: DeviceBuffer, stream: int | None) -> Any:
        """The buffer as a DLPack capsule over the same memory; None where it must come to the host for that."""
        return None

    def current_stream(self) -> int:
        """The stream that the calling program works on, where the device has any."""
        return 0

    def allocate_on(self, size_bytes: int, stream: int) -> Any:
        """``allocate`` in the order of a stream: for work that is queued there."""
        return self.allocate(size_bytes)

    def order(self, later: int, earlier: int) -> None:
        """What is queued on ``later`` from now on comes after all that ``earlier`` has."""
        return

    def wait(self, stream: int) -> None:
        """Return when everything queued on a stream is done."""
        return

    def new_stream(self) -> Any:
        """A queue of work, as ``Stream`` drives it. Raises DeviceUnavailable where the device has none."""
        raise self._without("streams")

    def new_event(self) -> Any:
        """A mark in such a queue."""
        raise self._without("events")

    def memory(self) -> dict[str, int]:
        """The device's pool: live_bytes, peak_bytes, cached_bytes, allocations, reuses. Raises DeviceUnavailable where there is none."""
        raise self._without("memory pool")

    def trim(self) -> int:
        """Give cached memory back; returns how many bytes."""
        raise self._without("memory pool")

    def _without(self, what: str) -> DeviceUnavailable:
        name = type(self).__name__
        return DeviceUnavailable(
            f"device {self.device}", f"has no {what} in this release", got=name, do="Use cpu or cuda."
        )

    def dlpack_device(self) -> tuple[int, int]:
        """DLPack's word for where ``export_tensor`` leaves the memory."""
        return (1, 0)

    def synchronize(self) -> None:
        """Return when everything submitted is done."""
        return

    def allocate_buffer(
        self, data: Any, alloc_shape: tuple[int, ...] | None = None, spec: TensorSpec | None = None
    ) -> DeviceBuffer:
        """An array on the device: laid out as ``spec`` says, or padded to ``alloc_shape``, or dense. Raises InputError."""
        return DeviceBuffer.from_numpy(data, self, spec=spec, alloc_shape=alloc_shape)

    def allocate_zeros(
        self, shape: tuple[int, ...], dtype: Any, alloc_shape: tuple[int, ...] | None = None
    ) -> DeviceBuffer:
        """Zeros on the device."""
        layout = None if alloc_shape is None else Layout(tuple(range(len(shape))), tuple(alloc_shape))
        return DeviceBuffer.zeros(TensorSpec(tuple(shape), DType.of(dtype), layout=layout), self)

    def create_executor(self, program: CompiledProgram, **options: Any) -> Executor:
        """An executor of the program on this device; options as ``Executor`` takes them."""
        from ..executor import Executor

        return Executor(program, self, **options)

    def execute(
        self, program: CompiledProgram, inputs: Mapping[str, Any], weights: Weights | Mapping[str, Any] | None
    ) -> dict[str, DeviceBuffer]:
        """Run a program once: outputs by name. Whoever runs it twice keeps the executor."""
        return self.create_executor(program).run(inputs, weights=weights)
