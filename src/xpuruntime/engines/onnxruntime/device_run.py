"""Runs of ONNX Runtime on tensors in a device's memory: I/O binding on a stream that is ordered with the caller's, without the host.

ONNX Runtime's stream is fixed when a session is created: the default stream, on which most callers work, or with ``stream=own`` one of its own.
A run on tensors of another stream waits for that stream, whose later work waits for the run; nobody waits on the host. With CUDA graphs the
addresses are fixed, so runs copy into fixed memory. Bindings are kept by the addresses that they name, since allocators reuse memory. The same
functions run on the host's memory with the CPU provider.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import BuildError, RunError
from ...protocols import Array, EngineRequest, ModelSource, RunContext, RunsTensors
from ...types import TensorSpec
from ..device_calls import DeviceCall, DeviceCalls
from ..device_tensors import ANY_RANK, TensorIO
from . import options
from .options import CUDA, GRAPH
from .providers import ort
from .run import OrtExecutable, element_type, inner_binding, run_bound, vendor_device

if TYPE_CHECKING:
    from ...runtime.backends.base import RuntimeBackend
    from ...runtime.memory.buffer import DeviceBuffer
    from ...runtime.memory.tensor_kinds import TensorKind

__all__ = ["GRAPH", "FixedMemory", "OrtDeviceExecutable"]

_NO_WAIT = ("disable_synchronize_execution_providers", "1")
_DEFAULT, _DEFAULT_HANDLE = 0, 1
"""CUDA's default stream: as callers name it, and as the vendor takes it, which reads 0 as no stream."""
_MAX_BINDINGS = 8  # free ones of one set of forms


class _OrtCall(DeviceCall):
    """A run on inputs of one set of forms, with its free bindings by the addresses of inputs and outputs."""

    __slots__ = ("bindings",)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.bindings: dict[tuple[int, ...], Any] = {}


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
        self._own: int | None = None  # the session's stream, as callers name it
        if settings.own_stream:
            self._queue = backend.new_stream()
            self._own = self._queue.handle
        elif provider == CUDA:
            self._own = _DEFAULT
        if self._own is not None:
            values = {**values, "user_compute_stream": str(self._own or _DEFAULT_HANDLE)}
            settings = replace(settings, providers=((provider, values), *settings.providers[1:]))
        super().__init__(model, request, settings, session_options)
        self._place = ("cuda" if provider == CUDA else "cpu", request.device.index)
        self._vendor_device = vendor_device(*self._place)
        self._io = TensorIO(self._who, model.inputs, backend)
        self._queued = ort().RunOptions()  # read by every run, written by none
        self._queued.add_run_config_entry(*_NO_WAIT)
        self._run_bound: Any = run_bound(self._session)
        self._calls = DeviceCalls(self._who, model.inputs, backend, self._prepared)
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
        if (outputs := self.try_run_tensors(dict(tensors))) is not None:
            return list(outputs.values())
        stream = self._io.stream()
        buffers = self._io.imported(tensors, stream)
        binding = self._session.io_binding()
        for name, buffer in buffers.items():
            self.bind(binding.bind_input, buffer.spec, name, buffer.address)
        shapes = self._output_shapes([buffers[s.name].shape for s in self.inputs])
        created: list[DeviceBuffer | None] = []
        for spec, shape in zip(self.outputs, shapes, strict=True):
            if shape is None:  # ONNX Runtime allocates it
                binding.bind_output(spec.name, *self._place)
                created.append(None)
                continue
            buffer = self._io.empty(spec.name, spec.dtype, shape, stream)
            self.bind(binding.bind_output, buffer.spec, spec.name, buffer.address)
            created.append(buffer)
        self._execute_on(stream, inner_binding(binding))
        values = binding.get_outputs() if None in created else []
        results = [
            self._wrapped(values[i], s) if b is None else b
            for i, (b, s) in enumerate(zip(created, self.outputs, strict=True))
        ]
        return self._io.exported(results, tensors, stream)

    def try_run_tensors(self, tensors: dict[str, Any]) -> dict[str, Any] | None:
        """Run on tensors whose forms were checked before; None for others, and for a session that takes no tensors."""
        if self._session is None or self._fixed is not None:
            return None
        found = self._calls.ready(tensors)
        if found is None:
            return None
        call, outputs, addresses, stream, _held = found
        key = tuple(addresses)
        binding = call.bindings.pop(key, None)  # no other run uses it meanwhile
        if binding is None:
            binding = self._bound(call, key)
        own = self._own
        if own is None or own == stream:
            self.execute(binding)
        else:
            self._execute_between(own, stream, binding)
        call.bindings[key] = binding
        return outputs

    def close(self) -> None:
        """Free the session and its bindings. Further calls raise RunError."""
        super().close()
        self._run_bound = self._closed
        self._calls.clear()

    def _prepared(self, kind: TensorKind, inputs: Sequence[TensorSpec]) -> _OrtCall | None:
        """Return the call for inputs of these specs; None if the inputs' sizes do not decide the outputs'."""
        shapes = self._output_shapes([s.shape for s in inputs])
        outputs = [
            TensorSpec(shape, s.dtype, s.name)
            for s, shape in zip(self.outputs, shapes, strict=True)
            if shape is not None
        ]
        # Outputs without elements have no address.
        if len(outputs) < len(self.outputs) or not all(s.size_bytes and kind.has(s.dtype) for s in outputs):
            return None
        return _OrtCall(inputs, outputs, self._backend)

    def _bound(self, call: _OrtCall, addresses: tuple[int, ...]) -> Any:
        """Return a binding of memory at the addresses of a call's inputs and outputs: a new one, or the oldest with its other addresses replaced."""
        binding, before = None, (0,) * len(addresses)
        if len(call.bindings) >= _MAX_BINDINGS:
            with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another run took it
                before = next(iter(call.bindings))
                binding = call.bindings.pop(before)
        if binding is None:
            before = (0,) * len(addresses)
            binding = inner_binding(self._session.io_binding())
        count = len(call.inputs)
        for i, spec in enumerate((*call.inputs, *call.outputs)):
            if addresses[i] != before[i]:
                bind = binding.bind_input if i < count else binding.bind_output
                bind(spec.name, self._vendor_device, element_type(spec.dtype), spec.shape, addresses[i])
        return binding

    def _execute_on(self, stream: int, binding: Any) -> None:
        """Run on bound memory, after the work on the caller's stream and before its later work."""
        own = self._own
        if own is None or own == stream:
            self.execute(binding)
        else:
            self._execute_between(own, stream, binding)

    def _execute_between(self, own: int, stream: int, binding: Any) -> None:
        self._backend.order(own, stream)
        self.execute(binding)
        self._backend.order(stream, own)

    def bind(self, bind: Any, spec: TensorSpec, name: str, address: int) -> None:
        """Bind memory as an input or an output."""
        kind, index = self._place
        bind(name, kind, index, element_type(spec.dtype), spec.shape, address)

    def execute(self, binding: Any) -> None:
        """Run on the vendor's own binding without waiting for the device. Raises RunError with the vendor's text."""
        try:
            self._run_bound(binding, self._queued)
        except RunError:
            raise
        except Exception as error:  # the vendor's exceptions have no common base class
            raise self.failed(error) from error

    def _output_shapes(self, inputs: Sequence[Sequence[Any]]) -> list[tuple[int, ...] | None]:
        """Return the outputs' shapes; None for an output whose size the inputs' shapes do not decide."""
        sizes = {
            str(d): int(n)
            for spec, shape in zip(self.inputs, inputs, strict=True)
            if spec.shape != ANY_RANK
            for d, n in zip(spec.shape, shape, strict=True)
            if not isinstance(d, int)
        }
        shapes = [[d if isinstance(d, int) else sizes.get(str(d)) for d in s.shape] for s in self.outputs]
        return [None if None in shape else tuple(int(d) for d in shape if d is not None) for shape in shapes]

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
            executable.bind(self._binding.bind_input, buffer.spec, name, buffer.address)
        for buffer, spec in zip(self._outputs, executable.outputs, strict=True):
            executable.bind(self._binding.bind_output, buffer.spec, spec.name, buffer.address)
        self._bound = inner_binding(self._binding)

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Copy in, replay, copy out."""
        executable = self._executable
        executable.alive()
        with self._lock:
            for name, buffer in self._inputs.items():
                buffer.write(feeds[name])
            executable.execute(self._bound)
            if executable._queue is not None:
                executable._queue.synchronize()
            return [b.to_numpy() for b in self._outputs]
