"""A compiled OpenVINO model with a pool of infer requests. Each run takes one, so concurrent runs do not interfere."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ...errors import BuildError, RunError
from ...plugins.vendor_imports import vendor
from ...protocols import (
    Array,
    Artifact,
    Bindable,
    EngineRequest,
    Evidence,
    ModelSource,
    ReportsFallbacks,
    RunContext,
    Stoppable,
)
from ...types import DType, TensorSpec
from .build import CARRIERS, compile_model, computes_in, properties
from .context import OpenVinoContext, OpenVinoIoBinding
from .devices import core, members, requested_name, short, version
from .evidence import collect, inner_fallbacks, profile, steps

__all__ = ["OpenVinoExecutable", "load"]

# Integer types that OpenVINO's CPU and GPU plugins compute in 32 bits -> the values that do not wrap.
_NARROWED: dict[DType, tuple[int, int]] = {
    DType.INT64: (-(2**31), 2**31 - 1),
    DType.UINT64: (0, 2**31 - 1),
    DType.UINT32: (0, 2**31 - 1),
}


class OpenVinoExecutable(Stoppable, Bindable, ReportsFallbacks):
    """One compiled model."""

    def __init__(self, model: ModelSource, request: EngineRequest, compiled: Any, artifact: Artifact) -> None:
        self.inputs = model.inputs
        self.outputs = model.outputs
        self._model, self._request, self._compiled = model, request, compiled
        self._memory = artifact.blob  # an imported model may read its weights in place
        self._names = artifact.meta.get("original_names", {})
        self._who = f"openvino, model {model.name}"
        self._free: deque[OpenVinoContext] = deque()
        self._renewing = threading.Lock()
        self._is_closed = False
        self.generation = 0
        self._open_shapes = any(not isinstance(d, int) for s in model.inputs for d in s.shape)
        self._feed = _read(compiled.inputs, model.inputs)
        self._take = [(_port(compiled.outputs, s, i), s.dtype) for i, s in enumerate(model.outputs)]
        self._narrowed = [s for s in model.inputs if s.dtype in _NARROWED]
        self._alone = request.threads == 1
        self._plain = not any(s.dtype in CARRIERS for s in (*model.inputs, *model.outputs))
        # Ports and names of the inputs if OpenVINO can read all their arrays in place, else None.
        self._direct = [(i, s.name) for i, s in self._feed] if self._plain and self._same_types() else None
        self._output_ports = [i for i, _ in self._take]
        self._in_order = self._output_ports == list(range(len(compiled.outputs)))
        self._tensor = vendor("openvino").Tensor

    def run(self, feeds: dict[str, Array]) -> Sequence[Array]:
        """Return outputs in the model's order, copied out of the request. Raises RunError with the vendor's text."""
        try:
            context = self._free.pop()
        except IndexError:
            context = OpenVinoContext(self)
        outputs = context.run(feeds)
        self._free.append(context)  # not reached after an error: that context is dropped
        return outputs

    def context(self) -> RunContext:
        """Return a context with its own infer request; its run can be cancelled between two layers."""
        return OpenVinoContext(self)

    def bind_context(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> RunContext:
        """Return a context whose request reads and writes the given memory."""
        return OpenVinoIoBinding(self, dict(inputs), dict(outputs))

    # ── methods for contexts ──

    def request(self) -> tuple[Any, int]:
        """Return a new infer request, and the generation of its compiled model."""
        with self._renewing:
            if self._compiled is None:
                if self._is_closed:
                    self._closed()
                self._compiled = compile_model(self._model, self._request)
            return self._compiled.create_infer_request(), self.generation

    def ending(self) -> None:
        """Prepare for the cancellation of a run.

        With dynamic shapes, a cancellation makes other and later runs of the compiled model return wrong outputs (OpenVINO 2026.4). So the
        compiled model is dropped, and concurrent runs are repeated on a new one.
        """
        if self._open_shapes:
            with self._renewing:
                self.generation += 1
                self._compiled = None
                self._free.clear()

    def infer_watched(self, request: Any, feeds: dict[str, Array]) -> Sequence[Array]:
        """Run once on a request so that the run can be cancelled. With one thread ``infer`` computes on the caller's thread and cannot be
        cancelled, so the run is asynchronous on OpenVINO's thread.
        """
        if not (self._alone and self._plain):
            return self.infer(request, feeds)
        request.start_async({i: feeds[s.name] for i, s in self._feed}, share_inputs=True)
        request.wait()
        return [np.array(request.get_output_tensor(i).data) for i, _ in self._take]

    def bound_request(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> tuple[Any, int]:
        """Return an infer request that reads and writes the caller's memory."""
        request, generation = self.request()
        for port, spec in self._feed:
            request.set_input_tensor(port, _shared(inputs[spec.name], spec))
        for (port, _), spec in zip(self._take, self.outputs, strict=True):
            request.set_output_tensor(port, _shared(outputs[spec.name], spec))
        return request, generation

    def ready(self, feeds: dict[str, Array]) -> None:
        """Raise RunError if the session is closed, or if a value exceeds OpenVINO's integer type."""
        if self._is_closed:
            self._closed()
        if self._narrowed:
            self._check_narrowed(feeds)

    def failed(self, error: Exception) -> RunError:
        """Convert the vendor's error to a RunError."""
        return RunError(
            self._who,
            "OpenVINO failed while running",
            got=short(str(error)),
            do="Check the inputs' shapes and values against what the model expects.",
        )

    def _same_types(self) -> bool:
        """Return True if each input has the same element type in OpenVINO as in the model."""
        ports = self._compiled.inputs
        return all(
            s.dtype is not DType.STRING and ports[i].get_element_type().to_dtype() == s.dtype.numpy
            for i, s in self._feed
        )

    def infer(self, request: Any, feeds: dict[str, Array]) -> Sequence[Array]:
        """Run once on a request."""
        if self._direct is not None:
            # Faster than OpenVINO's own conversion of inputs (docs/development/runtime-notes.md).
            for i, name in self._direct:
                array = feeds[name]
                if not (array.flags.carray and array.ndim and array.size):
                    break  # OpenVINO copies or converts such an array below
                request.set_input_tensor(i, self._tensor(array, shared_memory=True))
            else:
                outputs: tuple[Array, ...] = request.infer(share_outputs=False).to_tuple()
                return outputs if self._in_order else [outputs[i] for i in self._output_ports]
        if self._plain:
            tensors = {i: feeds[s.name] for i, s in self._feed}
            outputs = request.infer(tensors, share_inputs=True, share_outputs=False).to_tuple()
            return [outputs[i] for i in self._output_ports]
        return _infer_carried(request, self._feed, self._take, feeds)

    def _check_narrowed(self, feeds: dict[str, Array]) -> None:
        for spec in self._narrowed:
            low, high = _NARROWED[spec.dtype]
            array = feeds[spec.name]
            if array.size and not (low <= array.min() and array.max() <= high):
                raise RunError(
                    self._who,
                    f"OpenVINO computes {spec.dtype.value} in 32 bits, so input {spec.name!r} must stay within {low} and {high}",
                    got=f"values from {array.min()} to {array.max()}",
                    do="Use engine='onnxruntime' for such values.",
                )

    def evidence(self, feeds: dict[str, Array] | None = None) -> Evidence:
        """Return the runtime model of this compiled model. With ``feeds``, add times from a twin with PERF_COUNT."""
        if self._is_closed:
            self._closed()
        if self._compiled is None:
            self.request()
        notes = []
        model_precision = self._request.precision or self._model.precision
        pinned = computes_in(self._model, self._request)
        if pinned is not model_precision:
            notes.append(
                f"computed in {pinned.value}: the device does not compute in the model's {model_precision.value}"
            )
        timed = None
        if feeds is not None:
            timed, note = self._times(feeds)
            notes += note
        return collect(self._model, self._compiled, version(), self._requested(), self._names, timed, notes)

    def fallbacks(self) -> tuple[str, ...]:
        """Return ``evidence().fallbacks``, at a lower cost."""
        if self._compiled is None:
            self.request()
        return inner_fallbacks(self._compiled, self._requested())

    def _requested(self) -> dict[str, Any]:
        """Return all options, with the devices of a meta device as ``DEVICE_PRIORITIES``."""
        name = requested_name(self._request)
        own = {"DEVICE_PRIORITIES": ",".join(members(name))} if ":" in name else {}
        return properties(self._model, self._request) | own

    def _times(self, feeds: dict[str, Array]) -> tuple[tuple[list[float | None], int] | None, list[str]]:
        twin = compile_model(self._model, self._request, PERF_COUNT="YES")
        times, runs = profile(twin, lambda request: void(self.infer(request, feeds)))
        session_steps, twin_steps = steps(self._compiled), steps(twin)
        if [s.layer for s in session_steps] != [s.layer for s in twin_steps]:
            return None, ["no times: the profiled twin was compiled differently from the session"]
        return ([times.get(s.name) for s in twin_steps], runs), []

    def close(self) -> None:
        """Free the requests and the compiled model. Later calls raise RunError."""
        with self._renewing:
            self._is_closed = True
            self._free.clear()
            self._compiled = None

    def _closed(self) -> NoReturn:
        raise RunError(self._who, "the session is closed", do="Make a new one.")


def _shared(array: Array, spec: TensorSpec) -> Any:
    """Return a tensor over the array's own memory."""
    openvino = vendor("openvino")

    if spec.dtype in CARRIERS:
        return openvino.Tensor(
            array.view(CARRIERS[spec.dtype]), openvino.Shape(list(array.shape)), openvino.Type.bf16
        )
    return openvino.Tensor(array, shared_memory=True)


def void(_: object) -> None:
    """Drop a value."""


def load(artifact: Artifact, model: ModelSource, request: EngineRequest) -> OpenVinoExecutable:
    """Import the blob, or compile if it is empty. Raises BuildError with the vendor's text."""
    if not artifact.blob:
        return OpenVinoExecutable(model, request, compile_model(model, request), artifact)
    try:
        compiled = _imported(artifact.blob, requested_name(request), properties(model, request))
    except Exception as error:
        raise BuildError(
            f"openvino, model {model.name}",
            f"OpenVINO {version()} cannot load the compiled blob",
            got=short(str(error)),
            do="Clear the cache entry ('xpu cache clear') and build again.",
        ) from error
    return OpenVinoExecutable(model, request, compiled, artifact)


def _imported(blob: bytes | memoryview, device: str, config: Mapping[str, Any]) -> Any:
    """Import a blob. OpenVINO reads a memory-mapped file in place; releases that accept only a stream get a copy."""
    openvino = vendor("openvino")

    if isinstance(blob, memoryview) and not blob.readonly:
        tensor = openvino.Tensor(np.frombuffer(blob, np.uint8), shared_memory=True)
        with contextlib.suppress(TypeError):
            return core().import_model(tensor, device, config)
    return core().import_model(bytes(blob), device, config)


def _read(ports: Any, inputs: Sequence[TensorSpec]) -> list[tuple[int, TensorSpec]]:
    """Return the port of each input that OpenVINO reads. It has no port for an input that nothing uses."""
    names = {name: i for i, port in enumerate(ports) for name in port.get_names()}
    if len(ports) == len(inputs):
        return [(names.get(spec.name, i), spec) for i, spec in enumerate(inputs)]
    return [(names[spec.name], spec) for spec in inputs if spec.name in names]


def _port(ports: Any, spec: TensorSpec, index: int) -> int:
    """Return the port with the value's name, else the one at its index."""
    return next((i for i, p in enumerate(ports) if spec.name in p.get_names()), index)


def _infer_carried(
    request: Any,
    feed: Sequence[tuple[int, TensorSpec]],
    take: Sequence[tuple[int, DType]],
    feeds: dict[str, Array],
) -> list[Array]:
    """Run with element types that NumPy lacks. Their bits are passed as integers of the same width (``CARRIERS``)."""
    openvino = vendor("openvino")

    alive = []
    for i, spec in feed:
        array = np.ascontiguousarray(feeds[spec.name]).reshape(feeds[spec.name].shape)
        if spec.dtype in CARRIERS:
            bits = array.view(CARRIERS[spec.dtype])
            tensor = openvino.Tensor(bits, openvino.Shape(list(array.shape)), openvino.Type.bf16)
        else:
            tensor = openvino.Tensor(array, shared_memory=False)
        alive.append((array, tensor))
        request.set_input_tensor(i, tensor)
    request.start_async()  # can be cancelled with any number of threads
    request.wait()
    outputs = []
    for i, dtype in take:
        data = np.array(request.get_output_tensor(i).data)
        outputs.append(data.view(CARRIERS[dtype]).view(dtype.numpy) if dtype in CARRIERS else data)
    return outputs
