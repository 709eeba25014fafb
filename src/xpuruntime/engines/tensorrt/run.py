"""A loaded TensorRT engine: a pool of execution contexts, on the memory of a CUDA backend and the caller's stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ...errors import BuildError, InputError, RunError
from ...plugins.loader import load_dotted
from ...protocols import Array, Artifact, EngineRequest, Evidence, ModelSource, RunsTensors
from ...types import DType, TensorSpec
from ..attribution import typical
from ..device_tensors import TensorIO
from . import options
from .api import Api, api, short
from .evidence import collect
from .options import TensorRtSettings

if TYPE_CHECKING:
    from ...runtime.backends.base import RuntimeBackend
    from ...runtime.memory.buffer import DeviceBuffer

__all__ = ["TensorRtExecutable", "load"]

_PROFILED_RUNS = 10
_MAX_CONTEXTS = 16  # in the pool; each holds activation memory on the device


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
        self._free: deque[Any] = deque(maxlen=_MAX_CONTEXTS)
        self._lock = threading.Lock()
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
        stream = self._io.stream()
        outputs = self._run(tensors, stream)
        for buffer, spec in zip(outputs, self.outputs, strict=True):
            if buffer.spec.dtype is not spec.dtype:
                self._other_type(spec, buffer.spec.dtype)
        return self._io.exported(outputs, tensors, stream)

    def try_run_tensors(self, tensors: dict[str, Any]) -> dict[str, Any] | None:
        """Return None: every input needs the checks of ``run_tensors``."""
        return None

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
        outputs: list[DeviceBuffer] = []

        def allocate(shape_of: Any) -> dict[str, int]:
            for spec in self.outputs:
                shape = shape_of(spec.name)
                if any(d < 0 for d in shape):
                    raise RuntimeError(
                        f"the size of output {spec.name!r} depends on values, which this engine does not support"
                    )
                dtype = self._engine_types[spec.name] or spec.dtype
                outputs.append(self._io.empty(spec.name, dtype, shape, stream))
            return {s.name: b.address for s, b in zip(self.outputs, outputs, strict=True)}

        context = self._take(shapes, stream)
        try:
            self._api.execute(context, shapes, addresses, allocate, stream)
        except Exception as error:  # RuntimeError of ``api``, or an error of the vendor's package
            raise self._failed(error) from error
        self._free.append(context)
        return outputs

    def _take(self, shapes: Mapping[str, tuple[int, ...]], stream: int) -> Any:
        """Return a context with the first profile that admits the shapes."""
        index = next((i for i, b in enumerate(self._bounds) if _admits(b, shapes)), None)
        if index is None:
            got = ", ".join(f"{n}: {list(s)}" for n, s in shapes.items())
            limits = "; ".join(
                ", ".join(f"{n}: {list(a)} to {list(b)}" for n, (a, b) in p.items()) for p in self._bounds
            )
            raise InputError(
                self._who,
                f"no optimization profile has these shapes; the profiles have {limits}",
                got=got,
                do="Widen the engine option 'profiles'.",
            )
        try:
            context = self._free.pop()
        except IndexError:
            context = self._context()
        try:
            self._api.use_profile(context, index, stream)
        except Exception as error:
            raise self._failed(error) from error
        return context

    def _context(self) -> Any:
        try:
            with self._lock:
                return self._api.context(self._engine)
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
        context, pool = self._context(), self._free
        collected: dict[str, list[float]] = {}

        def once() -> None:
            for buffer in self._run(feeds, self._io.stream()):
                buffer.pending = self._io.stream()
                buffer.settle()

        try:
            self._free = deque([context], maxlen=1)
            once()
            for _ in range(_PROFILED_RUNS):
                for name, ms in self._api.profiled(context, once):
                    collected.setdefault(name, []).append(ms * 1e3)
        finally:
            self._free = pool
        return {name: typical(t) for name, t in collected.items()}

    def close(self) -> None:
        """Free the contexts and the engine. Later calls raise RunError."""
        self._free.clear()
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
