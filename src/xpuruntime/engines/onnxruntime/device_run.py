"""Runs of ONNX Runtime on tensors in a device's memory: I/O binding on a stream that is ordered with the caller's, without the host.

ONNX Runtime's stream is fixed when a session is created, so the session gets one of its own. A run waits for the caller's stream, and the
caller's later work waits for the run; nobody waits on the host. With CUDA graphs the addresses are fixed, so runs copy into fixed memory.
The same functions run on the host's memory with the CPU provider.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import BuildError, RunError
from ...protocols import Array, EngineRequest, ModelSource, RunContext, RunsTensors
from ...types import TensorSpec
from ..device_tensors import TensorIO
from . import options
from .providers import ort
from .run import OrtExecutable, element_type

if TYPE_CHECKING:
    from ...runtime.backends.base import RuntimeBackend
    from ...runtime.memory.buffer import DeviceBuffer

__all__ = ["GRAPH", "FixedMemory", "OrtDeviceExecutable"]

CUDA = "CUDAExecutionProvider"
_NO_WAIT = ("disable_synchronize_execution_providers", "1")
GRAPH = "enable_cuda_graph"


class OrtDeviceExecutable(OrtExecutable, RunsTensors):
    """One session whose inputs and outputs may be in the memory of a backend."""

    def __init__(
        self,
        model: ModelSource,
        request: EngineRequest,
        settings: options.Settings,
        backend: RuntimeBackend,
        session_options: Any = None,
    ) -> None:
        provider, values = settings.providers[0]
        self._backend, self._queue = backend, None
        if provider == CUDA:
            self._queue = backend.new_stream()
            values = {**values, "user_compute_stream": str(self._queue.handle)}
            settings = replace(settings, providers=((provider, values), *settings.providers[1:]))
        super().__init__(model, request, settings, session_options)
        self._place = ("cuda" if provider == CUDA else "cpu", request.device.index)
        self._io = TensorIO(self._who, model.inputs, backend)
        self._fixed = FixedMemory(self) if values.get(GRAPH) == "1" else None

    @property
    def on_device(self) -> bool:
        """Return True if the device has its own memory."""
        return not self._backend.core_is_host

    def run_with(self, feeds: dict[str, Array], run_options: Any) -> Sequence[Array]:
        """Run with the vendor's RunOptions; with CUDA graphs, on fixed memory."""
        return super().run_with(feeds, run_options) if self._fixed is None else self._fixed.run(feeds)

    def bind_context(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> RunContext:
        """Return a context over the vendor's IOBinding. Raises RunError with CUDA graphs, whose memory is fixed."""
        if self._fixed is not None:
            raise self._graph_error("bindings")
        return super().bind_context(inputs, outputs)

    def _open(self, session_options: Any) -> Any:
        """Create a session. The profiled twin of evidence runs without CUDA graphs, since its inputs are not in fixed memory."""
        settings = self._settings
        provider, values = settings.providers[0]
        if not (session_options.enable_profiling and GRAPH in values):
            return super()._open(session_options)
        plain = {k: v for k, v in values.items() if k != GRAPH}
        self._settings = replace(settings, providers=((provider, plain), *settings.providers[1:]))
        try:
            return super()._open(session_options)
        finally:
            self._settings = settings

    def _graph_error(self, what: str) -> RunError:
        return RunError(
            self._who,
            f"a session with CUDA graphs replays its runs on fixed memory, so it takes no {what}",
            got=f"{GRAPH}=1",
            do=f"Pass arrays of the host, or drop the engine option {GRAPH}.",
        )

    def run_tensors(self, tensors: Mapping[str, Any]) -> Sequence[Any]:
        """Run on the device's tensors, queued on the caller's stream. Raises InputError, RunError."""
        self.alive()
        if self._fixed is not None:
            raise self._graph_error("tensors of the device")
        stream = self._io.stream()
        buffers = self._io.imported(tensors, stream)
        binding = self._session.io_binding()
        for name, buffer in buffers.items():
            self.bind(binding.bind_input, name, buffer)
        sizes = {
            str(d): int(n)
            for s in self.inputs
            for d, n in zip(s.shape, buffers[s.name].shape, strict=True)
            if not isinstance(d, int)
        }
        outputs = [self._allocated(binding, s, sizes, stream) for s in self.outputs]
        own = stream if self._queue is None else self._queue.handle
        self._backend.order(own, stream)
        self.execute(binding)
        self._backend.order(stream, own)
        values = binding.get_outputs() if None in outputs else []
        results = [
            self._wrapped(values[i], s) if b is None else b
            for i, (b, s) in enumerate(zip(outputs, self.outputs, strict=True))
        ]
        return self._io.exported(results, tensors, stream)

    def try_run_tensors(self, tensors: dict[str, Any]) -> dict[str, Any] | None:
        """Return None: every input needs the checks of ``run_tensors``."""
        return None

    def bind(self, bind: Any, name: str, buffer: DeviceBuffer) -> None:
        """Bind a buffer as an input or an output."""
        kind, index = self._place
        bind(name, kind, index, element_type(buffer.spec.dtype), buffer.shape, buffer.address)

    def execute(self, binding: Any) -> None:
        """Run on bound memory without waiting for the device. Raises RunError with the vendor's text."""
        run_options = ort().RunOptions()
        run_options.add_run_config_entry(*_NO_WAIT)
        try:
            self._session.run_with_iobinding(binding, run_options)
        except Exception as error:  # the vendor's exceptions have no common base class
            raise self.failed(error) from error

    def _allocated(
        self, binding: Any, spec: TensorSpec, sizes: Mapping[str, int], stream: int
    ) -> DeviceBuffer | None:
        """Bind memory of an output whose size the inputs decide. Otherwise ONNX Runtime allocates it, and the result is None."""
        shape = [d if isinstance(d, int) else sizes.get(str(d)) for d in spec.shape]
        if None in shape:
            binding.bind_output(spec.name, *self._place)
            return None
        buffer = self._io.empty(spec.name, spec.dtype, [int(d) for d in shape if d is not None], stream)
        self.bind(binding.bind_output, spec.name, buffer)
        return buffer

    def _wrapped(self, value: Any, spec: TensorSpec) -> DeviceBuffer:
        """Return an output that ONNX Runtime allocated as a buffer over the same memory; on the host, a copy."""
        from ...runtime.memory.buffer import DeviceBuffer

        actual = TensorSpec(tuple(int(d) for d in value.shape()), spec.dtype, spec.name)
        if self._backend.core_is_host:
            return DeviceBuffer.from_numpy(value.numpy(), self._backend, spec=actual)
        from ...runtime.backends.cuda import ForeignBlock

        return DeviceBuffer(
            ForeignBlock(value.data_ptr(), actual.size_bytes or 0, value), actual, self._backend
        )


class FixedMemory:
    """Runs on memory that is bound once, one at a time. Inputs are copied into it, and outputs out of it."""

    def __init__(self, executable: OrtDeviceExecutable) -> None:
        from ...runtime.memory.buffer import DeviceBuffer

        specs = (*executable.inputs, *executable.outputs)
        if any(not isinstance(d, int) for s in specs for d in s.shape):
            raise BuildError(
                executable._who,
                "CUDA graphs need static shapes",
                got=", ".join(str(s) for s in specs),
                do=f"Fix the shapes with fixed_shapes, or drop the engine option {GRAPH}.",
            )
        self._executable, self._lock = executable, threading.Lock()
        backend = executable._backend
        self._inputs = {s.name: DeviceBuffer.empty(s, backend) for s in executable.inputs}
        self._outputs = [DeviceBuffer.empty(s, backend) for s in executable.outputs]
        self._binding = executable._session.io_binding()
        for name, buffer in self._inputs.items():
            executable.bind(self._binding.bind_input, name, buffer)
        for buffer, spec in zip(self._outputs, executable.outputs, strict=True):
            executable.bind(self._binding.bind_output, spec.name, buffer)

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Copy in, replay, copy out."""
        executable = self._executable
        executable.alive()
        with self._lock:
            for name, buffer in self._inputs.items():
                buffer.write(feeds[name])
            executable.execute(self._binding)
            if executable._queue is not None:
                executable._queue.synchronize()
            return [b.to_numpy() for b in self._outputs]
