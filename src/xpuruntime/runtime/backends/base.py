"""What every backend has in common: the porting guide's methods, over a few verbs of memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...program.program import CompiledProgram, ExecutionPlan
from ...types import DType, Layout, TensorSpec
from ..buffer import DeviceBuffer

if TYPE_CHECKING:
    from ..executor import Executor
    from ..weights import Weights

__all__ = ["RuntimeBackend"]


class RuntimeBackend(ABC):
    """A device driver. ``kind`` is the part of a plan's target before the colon: ``cpu``, ``npu-sim``.

    Handles of memory are whatever the device has: addresses on the host, objects elsewhere.
    """

    kind: str
    core_is_host = False
    """Whether device memory is the host's, so that arrays are read and written in place."""

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
