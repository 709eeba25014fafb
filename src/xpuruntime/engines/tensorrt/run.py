"""A loaded TensorRT engine: a pool of execution contexts, on the memory of a CUDA backend and the caller's stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ...errors import BuildError, InputError, RunError, XpuError
from ...plugins.loader import load_dotted
from ...protocols import Array, Artifact, EngineRequest, Evidence, ModelSource, RunsTensors
from ...types import DType, TensorSpec
from ..attribution import typical
from ..device_calls import DeviceCall, DeviceCalls
from ..device_tensors import TensorIO
from . import options
from .api import Api, api, short
from .contexts import ContextPool, TensorRtContext
from .evidence import collect
from .options import TensorRtSettings

if TYPE_CHECKING:
    from ...runtime.backends.base import RuntimeBackend
    from ...runtime.memory.buffer import DeviceBuffer
    from ...runtime.memory.tensor_kinds import TensorKind

__all__ = ["TensorRtExecutable", "load"]

_PROFILED_RUNS = 10


class _TensorRtCall(DeviceCall):
    """A run on inputs of one set of forms: the optimization profile, the inputs' shapes, and the names of inputs and outputs."""

    __slots__ = ("names", "profile", "shapes")

    def __init__(self, profile: int, *given: Any) -> None:
        super().__init__(*given)
        self.profile = profile
        self.shapes = _sizes(self.inputs)
        self.names = tuple(s.name for s in (*self.inputs, *self.outputs))


class TensorRtExecutable(RunsTensors):
    """One engine. Each run takes a context from the pool, so concurrent runs do not interfere."""

    def __init__(
        self, model: ModelSource, request: EngineRequest, vendor: Api, engine: Any, backend: RuntimeBackend
    ) -> None:
        self.inputs, self.outputs = model.inputs, model.outputs
        self._model, self._request, self._api, self._engine = model, request, vendor, engine
        self._who = f"tensorrt, model {model.name}"
        self._io = TensorIO(self._who, model.inputs, backend)
        self._backend = backend
        self._pool = ContextPool(vendor, engine)
        self._free = self._pool.free
        self._calls = DeviceCalls(self._who, model.inputs, backend, self._prepared)
        self._output_names = tuple(s.name for s in model.outputs)
        tensors = vendor.tensors(engine)
        self._engine_types = {n: dtype for n, _, dtype, _, _ in tensors}
        self._on_host = {n for n, is_input, _, _, host in tensors if is_input and host}
        names = {n for n, _, _, _, _ in tensors}
        absent = [s.name for s in (*model.inputs, *model.outputs) if s.name not in names]
        if absent:
            do = "Build the engine from this model again."
            raise BuildError(self._who, "the engine lacks inputs or outputs", got=", ".join(absent), do=do)
        self._bounds = vendor.profile_bounds(
            engine, [s.name for s in model.inputs if s.name not in self._on_host]
        )

    @property
    def on_device(self) -> bool:
        """Return True if the device has its own memory."""
        return not self._backend.core_is_host

    def run(self, feeds: dict[str, Array]) -> Sequence[Array]:
        """Return the outputs in the model's order, as new arrays. Raises RunError with the vendor's text."""
        stream = self._io.stream()
        outputs = self._run(feeds, stream)
        for buffer in outputs:
            buffer.pending = stream
        return [self._to_model(b.to_numpy(), s) for b, s in zip(outputs, self.outputs, strict=True)]

    def run_tensors(self, tensors: Mapping[str, Any]) -> Sequence[Any]:
        """Run on the device's tensors, queued on the caller's stream. Raises InputError, RunError."""
        self._alive()
        if (prepared := self.try_run_tensors(dict(tensors))) is not None:
            return list(prepared.values())
        stream = self._io.stream()
        outputs = self._run(tensors, stream)
        for buffer, spec in zip(outputs, self.outputs, strict=True):
            if buffer.spec.dtype is not spec.dtype:
                self._other_type(spec, buffer.spec.dtype)
        return self._io.exported(outputs, tensors, stream)

    def try_run_tensors(self, tensors: dict[str, Any]) -> dict[str, Any] | None:
        """Run on tensors whose forms were checked before; None for others."""
        found = None if self._engine is None else self._calls.ready(tensors)
        if found is None:
            return None
        call, outputs, addresses, stream, _held = found
        # Taken and given back here: after a vendor's run each call of a Python function takes a microsecond, since its code is no longer cached.
        free = self._free.get(stream)
        try:
            context = free.pop() if free else self._context(stream)
        except IndexError:  # another thread took it
            context = self._context(stream)
        try:
            if context.shapes is not call.shapes:
                context.take_shapes(call.profile, call.shapes, {}, self._output_names, stream)
            context.launch(call.names, addresses, stream)
        except Exception as error:  # RuntimeError of ``api``, or an error of the vendor's package
            raise self._failed(error) from error
        if free is None or free:
            self._pool.give_back(context, stream)
        else:
            free.append(context)
        return outputs

    def _prepared(self, kind: TensorKind, inputs: Sequence[TensorSpec]) -> _TensorRtCall | None:
        """Return the call for inputs of these specs; None if values or other types of the engine take part, or for an error to be raised."""
        specs = (*self.inputs, *self.outputs)
        if self._on_host or any(self._engine_types[s.name] not in (None, s.dtype) for s in specs):
            return None
        shapes = _sizes(inputs)
        profile = self._profile_of(shapes)
        if profile is None:
            return None
        stream = self._io.stream()
        context = self._context(stream)
        try:
            sizes = context.take_shapes(profile, shapes, {}, self._output_names, stream)
        except Exception:  # the path that reports it runs next
            return None
        self._pool.give_back(context, stream)
        outputs = [TensorSpec(sizes[s.name], s.dtype, s.name) for s in self.outputs]
        if any(d <= 0 for s in outputs for d in s.shape if isinstance(d, int)):
            return None
        if not all(kind.has(s.dtype) for s in outputs):
            return None
        return _TensorRtCall(profile, inputs, outputs, self._backend)

    def _run(self, tensors: Mapping[str, Any], stream: int) -> list[DeviceBuffer]:
        self._alive()
        host = {n: np.ascontiguousarray(tensors[n]) for n in self._on_host if n in tensors}
        values = {n: self._to_engine(n, t) for n, t in tensors.items()}
        buffers = (
            self._io.imported(values, stream) if not self._narrowed(values) else self._narrow(values, stream)
        )
        shapes = {n: b.shape for n, b in buffers.items() if n not in self._on_host}
        addresses = {n: b.address for n, b in buffers.items() if n not in self._on_host}
        addresses |= {n: a.ctypes.data for n, a in host.items()}
        profile = self._profile_of(shapes)
        if profile is None:
            raise self._no_profile(shapes)
        context = self._context(stream)
        try:
            sizes = context.take_shapes(
                profile, shapes, addresses, self._output_names, stream, by_values=bool(host)
            )
            outputs = [self._output(s, sizes[s.name], stream) for s in self.outputs]
            addresses |= {s.name: b.address for s, b in zip(self.outputs, outputs, strict=True)}
            context.launch(tuple(addresses), list(addresses.values()), stream)
        except XpuError:
            raise
        except Exception as error:  # RuntimeError of ``api``, or an error of the vendor's package
            raise self._failed(error) from error
        self._pool.give_back(context, stream)
        return outputs

    def _output(self, spec: TensorSpec, shape: tuple[int, ...], stream: int) -> DeviceBuffer:
        if any(d < 0 for d in shape):
            raise RuntimeError(
                f"the size of output {spec.name!r} depends on values, which this engine does not support"
            )
        return self._io.empty(spec.name, self._engine_types[spec.name] or spec.dtype, shape, stream)

    def _profile_of(self, shapes: Mapping[str, Sequence[Any]]) -> int | None:
        """Return the first profile that admits the shapes; None if there is none."""
        return next((i for i, b in enumerate(self._bounds) if _admits(b, shapes)), None)

    def _no_profile(self, shapes: Mapping[str, Sequence[Any]]) -> InputError:
        limits = "; ".join(
            ", ".join(f"{n}: {list(a)} to {list(b)}" for n, (a, b) in p.items()) for p in self._bounds
        )
        return InputError(
            self._who,
            f"no optimization profile has these shapes; the profiles have {limits}",
            got=", ".join(f"{n}: {list(s)}" for n, s in shapes.items()),
            do="Widen the engine option 'profiles'.",
        )

    def _context(self, stream: int) -> TensorRtContext:
        try:
            return self._pool.take(stream)
        except Exception as error:
            raise self._failed(error) from error

    # ── element types: TensorRT 8.6 reads int64 as int32 ──

    def _narrowed(self, values: Mapping[str, Any]) -> bool:
        """Return True if the engine reads one of these inputs in another element type than the model."""
        return any(
            self._engine_types.get(s.name) not in (None, s.dtype) for s in self.inputs if s.name in values
        )

    def _to_engine(self, name: str, value: Any) -> Any:
        """Return an array in the engine's element type; a tensor on the device must have that type."""
        spec = next((s for s in self.inputs if s.name == name), None)
        target = self._engine_types.get(name)
        if spec is None or target in (None, spec.dtype):
            return value
        if not isinstance(value, np.ndarray):
            self._other_type(spec, target)
        assert target is not None
        converted = value.astype(target.numpy)
        if not np.array_equal(converted, value):
            raise RunError(
                self._who,
                f"TensorRT {self._api.version} computes {spec.dtype.value} in {target.value}, so input {name!r} must fit",
                got=f"values from {value.min()} to {value.max()}",
                do="Use engine='onnxruntime' for such values.",
            )
        return converted

    def _narrow(self, values: Mapping[str, Any], stream: int) -> dict[str, DeviceBuffer]:
        types = self._engine_types
        specs = [TensorSpec(s.shape, types[s.name] or s.dtype, s.name) for s in self.inputs]
        return TensorIO(self._who, specs, self._backend).imported(values, stream)

    def _to_model(self, array: Array, spec: TensorSpec) -> Array:
        return array if array.dtype == spec.dtype.numpy else array.astype(spec.dtype.numpy)

    def _other_type(self, spec: TensorSpec, dtype: DType | None) -> NoReturn:
        raise RunError(
            self._who,
            f"TensorRT {self._api.version} has {spec.name!r} in {dtype.value if dtype else 'another type'}, not in {spec.dtype.value}",
            do="Give arrays of the host, which are converted, or use another engine.",
        )

    # ── evidence ──

    def evidence(self, feeds: dict[str, Array] | None = None) -> Evidence:
        """Return each layer of the engine from the vendor's inspector. With ``feeds``, add times from a profiled context."""
        self._alive()
        times: dict[str, float] | None = None
        if feeds is not None:
            times = self._times(feeds)
        report = self._api.inspect(self._engine)
        return collect(
            self._model, report, self._api.version, str(self._request.device), times, _PROFILED_RUNS
        )

    def _times(self, feeds: dict[str, Array]) -> dict[str, float]:
        """Return microseconds by layer, the median over runs of a context with the vendor's profiler."""
        collected: dict[str, list[float]] = {}
        stream = self._io.stream()
        context, pool = self._context(stream), self._pool
        profiled = ContextPool(self._api, self._engine)

        def once() -> None:
            for buffer in self._run(feeds, stream):
                buffer.pending = stream
                buffer.settle()

        try:
            self._pool = profiled
            profiled.give_back(context, stream)
            once()
            for _ in range(_PROFILED_RUNS):
                for name, ms in self._api.profiled(context.vendor, once):
                    collected.setdefault(name, []).append(ms * 1e3)
        finally:
            self._pool = pool
        return {name: typical(t) for name, t in collected.items()}

    def close(self) -> None:
        """Free the contexts and the engine. Later calls raise RunError."""
        self._pool.clear()
        self._calls.clear()
        self._engine = None

    def _alive(self) -> None:
        if self._engine is None:
            raise RunError(self._who, "the session is closed", do="Make a new one.")

    def _failed(self, error: Exception) -> RunError:
        return RunError(
            self._who,
            "TensorRT failed while running",
            got=short(str(error)),
            do="Check the inputs' shapes and values against what the model expects.",
        )


def _sizes(specs: Sequence[TensorSpec]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of specs without open dims."""
    return {s.name: tuple(int(d) for d in s.shape if isinstance(d, int)) for s in specs}


def _admits(
    bounds: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]], shapes: Mapping[str, Sequence[int]]
) -> bool:
    return all(
        len(shape) == len(bounds[n][0])
        and all(a <= d <= b for a, d, b in zip(bounds[n][0], shape, bounds[n][1], strict=True))
        for n, shape in shapes.items()
    )


def load(artifact: Artifact, model: ModelSource, request: EngineRequest) -> TensorRtExecutable:
    """Deserialize the engine, or the plan file. Raises BuildError with the vendor's text."""
    who, vendor = f"tensorrt, model {model.name}", api()
    settings = options.parse(request, vendor)
    if not isinstance(settings, TensorRtSettings):
        raise BuildError(who, "cannot load", got=settings.reason, do=settings.do)
    blob = artifact.blob
    if not blob:
        blob = model.path.read_bytes() if model.path is not None else model.data or b""
    try:
        engine = vendor.load(blob, settings.plugins)
    except Exception as error:  # RuntimeError of ``api``, or an error of the vendor's package
        raise BuildError(
            who,
            f"TensorRT {vendor.version} cannot load the engine",
            got=short(str(error)),
            do="An engine is valid for one version and one kind of GPU: build it again from the ONNX model.",
        ) from error
    device = load_dotted("xpuruntime.runtime.device:Device")
    return TensorRtExecutable(model, request, vendor, engine, device(request.device).backend)
