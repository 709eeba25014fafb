"""A loaded ONNX Runtime session. ``run`` calls the vendor's binding directly, with prepared output names."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ...errors import BuildError, DeviceUnavailable, RunError
from ...plugins.loader import load_dotted
from ...protocols import (
    Array,
    Artifact,
    Bindable,
    EngineRequest,
    Evidence,
    ModelSource,
    RunContext,
    Stoppable,
)
from ...targets import DeviceId
from ...types import DType, TensorSpec
from . import options
from .build import CARRIERS, cpu_threads
from .evidence import Attribution, collect, twin
from .providers import ort, short

__all__ = [
    "OrtExecutable",
    "element_type",
    "inner_binding",
    "load",
    "run_bound",
    "stoppable_load",
    "vendor_device",
]


class OrtExecutable(Stoppable, Bindable):
    """One inference session. ONNX Runtime's ``run`` may be called from several threads."""

    def __init__(
        self,
        model: ModelSource,
        request: EngineRequest,
        settings: options.Settings,
        session_options: Any = None,
    ) -> None:
        self.inputs = model.inputs
        self.outputs = model.outputs
        self._model, self._request, self._settings = model, request, settings
        self._who = f"onnxruntime, model {model.name}"
        self._session = self._open(session_options or options.session_options(settings, cpu_threads(request)))
        self._names = [s.name for s in model.outputs]
        self._call: Callable[..., Sequence[Array]] = _inner(self._session)
        if any(s.dtype in CARRIERS for s in (*model.inputs, *model.outputs)):
            self._call = functools.partial(_run_carried, self._session, model.inputs, model.outputs)
        self._attribution: Attribution | None = None

    def run(self, feeds: dict[str, Array]) -> Sequence[Array]:
        """Return the outputs in the model's order, as new arrays. Raises RunError with the vendor's text."""
        return self.run_with(feeds, None)

    def run_with(self, feeds: dict[str, Array], run_options: Any) -> Sequence[Array]:
        """Run with the vendor's RunOptions."""
        try:
            return self._call(self._names, feeds, run_options)
        except RunError:
            raise
        except Exception as error:  # the vendor's exceptions have no common base class
            raise self.failed(error) from error

    def failed(self, error: Exception) -> RunError:
        """Convert the vendor's error to a RunError."""
        return RunError(
            self._who,
            "ONNX Runtime failed while running",
            got=short(str(error)),
            do="Check the inputs' shapes and values against what the model expects.",
        )

    def context(self) -> RunContext:
        """Return a context with its own RunOptions; its run can be cancelled between two nodes."""
        self.alive()
        return _OrtContext(self)

    def bind_context(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> RunContext:
        """Return a context over the vendor's IOBinding."""
        self.alive()
        return _OrtIoBinding(self, self._session, inputs, outputs)

    def evidence(self, feeds: dict[str, Array] | None = None) -> Evidence:
        """Return the placement from this session. With ``feeds``, add kernels, fusions and times from a profiled twin."""
        self.alive()
        if feeds is not None:
            self._attribution = twin(
                self._model, self._open, self._settings, cpu_threads(self._request), feeds, self._run_on
            )
        return collect(self._model, self._session, self._settings, self._attribution)

    def close(self) -> None:
        """Free the session. Further calls raise RunError."""
        self._session = None
        self._call = self._closed

    def _open(self, session_options: Any) -> Any:
        """Create a session of this model with these options. Raises BuildError with the vendor's text."""
        try:
            source, folder = named_bytes(self._model)
            if folder:
                session_options.add_session_config_entry(
                    "session.model_external_initializers_file_folder_path", folder
                )
            session = ort().InferenceSession(
                source, session_options, providers=list(self._settings.providers), enable_fallback=0
            )
        except Exception as error:
            raise BuildError(
                self._who,
                "ONNX Runtime cannot build this model",
                got=short(str(error)),
                do="Choose another engine, or change the part of the model that the vendor's text names.",
            ) from error
        if self._settings.requested_provider not in session.get_providers():
            raise BuildError(
                self._who,
                f"ONNX Runtime did not use {self._settings.requested_provider}",
                got=f"a session with {', '.join(session.get_providers())}",
                do="Run 'xpu doctor' for the vendor's reason.",
            )
        return session

    def _run_on(self, session: Any, feeds: dict[str, Array]) -> None:
        """Run once on a twin."""
        if any(s.dtype in CARRIERS for s in (*self.inputs, *self.outputs)):
            _run_carried(session, self.inputs, self.outputs, self._names, feeds, None)
        else:
            session.run(self._names, feeds)

    def alive(self) -> None:
        """Raise RunError if the session is closed."""
        if self._session is None:
            self._closed()

    def _closed(self, *_: object) -> NoReturn:
        raise RunError(self._who, "the session is closed", do="Make a new one.")


class _OrtContext:
    """Runs with RunOptions that another thread can set to terminate."""

    def __init__(self, executable: OrtExecutable) -> None:
        self._executable = executable
        self._options = ort().RunOptions()

    def run(self, feeds: dict[str, Array], watched: bool = False) -> Sequence[Array]:
        """Run the model once; parameters and errors are those of the executable's ``run``."""
        return self._executable.run_with(feeds, self._options)

    def stop(self) -> None:
        """Set the flag that ONNX Runtime checks before each node."""
        self._options.terminate = True


class _OrtIoBinding:
    """Runs on fixed memory. ONNX Runtime knows the addresses, so a run converts no arguments."""

    def __init__(
        self,
        executable: OrtExecutable,
        session: Any,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
    ) -> None:
        self._executable, self._arrays = executable, (dict(inputs), dict(outputs))
        self._options = ort().RunOptions()
        self._binding = session.io_binding()
        for arrays, bind in ((inputs, self._binding.bind_input), (outputs, self._binding.bind_output)):
            for name, array in arrays.items():
                bind(name, "cpu", 0, element_type(DType.of(array.dtype)), array.shape, array.ctypes.data)
        self._inner, self._iobinding = run_bound(session), inner_binding(self._binding)

    def run(self, feeds: dict[str, Array], watched: bool = False) -> Sequence[Array]:
        """Run once over the bound memory; returns an empty sequence."""
        self._executable.alive()
        try:
            self._inner(self._iobinding, self._options)
        except Exception as error:  # the vendor's exceptions have no common base class
            raise self._executable.failed(error) from error
        return ()

    def stop(self) -> None:
        """Set the flag that ONNX Runtime checks before each node."""
        self._options.terminate = True


def load(artifact: Artifact, model: ModelSource, request: EngineRequest) -> OrtExecutable:
    """Create the session. Raises BuildError with the vendor's text."""
    settings = options.parse(request)
    if not isinstance(settings, options.Settings):
        raise BuildError(
            f"onnxruntime, model {model.name}", "cannot load", got=settings.reason, do=settings.do
        )
    return _executable(model, request, settings)


def _executable(
    model: ModelSource, request: EngineRequest, settings: options.Settings, session_options: Any = None
) -> OrtExecutable:
    """Return the executable of the requested provider. On CUDA its runs take tensors of the device, if the core can drive the device."""
    if settings.requested_provider != options.CUDA:
        return OrtExecutable(model, request, settings, session_options)
    device = load_dotted("xpuruntime.runtime.device:Device")
    try:
        backend = device(DeviceId("cuda", request.device.index)).backend
    except DeviceUnavailable as error:
        if settings.own_stream:  # which is the core's, as is the memory of CUDA graphs
            who, what = f"onnxruntime, model {model.name}", "cannot use CUDA graphs or a stream of its own"
            raise BuildError(who, what, got=error.what, do=error.do) from error
        return OrtExecutable(model, request, settings, session_options)
    executable: OrtExecutable = load_dotted("xpuruntime.engines.onnxruntime.device_run:OrtDeviceExecutable")(
        model, request, settings, backend, session_options
    )
    return executable


def stoppable_load(
    artifact: Artifact, model: ModelSource, request: EngineRequest
) -> tuple[Callable[[], OrtExecutable], Callable[[], None]]:
    """Return a function that loads, and one that cancels the load from another thread. ONNX Runtime checks the flag between its steps.

    Raises BuildError if the installed version has no such flag.
    """
    settings = options.parse(request)
    if not isinstance(settings, options.Settings):
        return (lambda: load(artifact, model, request)), (lambda: None)
    session_options = options.session_options(settings, cpu_threads(request))
    if not hasattr(session_options, "set_load_cancellation_flag"):
        do = "Run: pip install --upgrade onnxruntime, or drop compile_timeout_s."
        raise BuildError(f"onnxruntime, model {model.name}", "cannot be stopped while it loads", do=do)
    return (
        lambda: _executable(model, request, settings, session_options),
        lambda: session_options.set_load_cancellation_flag(True),
    )


def _inner(session: Any) -> Callable[..., Sequence[Array]]:
    """Return the function that ``InferenceSession.run`` calls. It skips the check of names, which the caller has done."""
    call: Callable[..., Sequence[Array]] = getattr(session, "_sess", session).run
    return call


def run_bound(session: Any) -> Callable[..., None]:
    """Return the function that ``InferenceSession.run_with_iobinding`` calls, on ``inner_binding`` and RunOptions."""
    call: Callable[..., None] = getattr(session, "_sess", session).run_with_iobinding
    return call


def inner_binding(binding: Any) -> Any:
    """Return the vendor's object inside an IOBinding."""
    return getattr(binding, "_iobinding", binding)


def vendor_device(kind: str, index: int) -> Any:
    """Return the vendor's object of a device, which an inner binding takes."""
    return ort().OrtDevice.make(kind, index)._get_c_device()


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def named_bytes(model: ModelSource) -> tuple[str | bytes, str]:
    """Return the model for ONNX Runtime (a path or bytes) and the folder of its external data.

    It is the original file. If nodes lack unique names, it is a copy with generated names, which placement and times refer to.
    """
    as_is: str | bytes = str(model.path) if model.path is not None else model.data or b""
    folder = ""
    if model.path is not None and not _is_utf8(str(model.path)):  # ONNX Runtime's binding needs UTF-8 paths
        as_is, parent = model.path.read_bytes(), str(model.path.parent.resolve())
        folder = parent if _is_utf8(parent) else ""
    if not any(_filled_in(i, ref.name, ref.op) for i, ref in enumerate(model.nodes)):
        return as_is, folder
    import onnx

    if model.path is not None:
        proto = onnx.load(str(model.path), load_external_data=False)
    else:
        proto = onnx.ModelProto.FromString(model.data or b"")
    if all(node.name == ref.name for node, ref in zip(proto.graph.node, model.nodes, strict=True)):
        return as_is, folder
    for node, ref in zip(proto.graph.node, model.nodes, strict=True):
        node.name = ref.name
    return proto.SerializeToString(), str(model.path.parent.resolve()) if model.path is not None else ""


def _filled_in(index: int, name: str, op: str) -> bool:
    """Return True if a name may have been generated when the model was opened (``Relu_3``, ``name#3``). If none may, the model need not be parsed again."""
    return name.rstrip("_") == f"{op}_{index}" or name.rstrip("_").endswith(f"#{index}")


def _run_carried(
    session: Any,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    names: list[str],
    feeds: Mapping[str, Array],
    run_options: Any,
) -> Sequence[Array]:
    """Run with element types that NumPy lacks. Their bits are passed as integers of the same width (``CARRIERS``)."""
    vendor = ort()
    # ONNX Runtime reads this memory in place.
    arrays = {s.name: np.ascontiguousarray(feeds[s.name]) for s in inputs}
    values = {}
    for spec in inputs:
        array = arrays[spec.name]
        if spec.dtype in CARRIERS:
            bits = array.view(CARRIERS[spec.dtype])
            values[spec.name] = vendor.OrtValue.ortvalue_from_numpy_with_onnx_type(
                bits, _onnx_types()[spec.dtype]
            )
        else:
            values[spec.name] = vendor.OrtValue.ortvalue_from_numpy(array)
    results = session.run_with_ort_values(names, values, run_options)
    return [
        _copied(v, s.dtype) if s.dtype in CARRIERS else v.numpy()
        for v, s in zip(results, outputs, strict=True)
    ]


def _copied(value: Any, dtype: DType) -> Array:
    """Copy an OrtValue's memory to an array of ``dtype``."""
    shape = tuple(value.shape())
    size = math.prod(shape) * dtype.numpy.itemsize
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(bytearray(raw), dtype.numpy).reshape(shape)


def element_type(dtype: DType) -> Any:
    """Return an element type for I/O binding: NumPy's, or the number of ONNX's type that NumPy lacks."""
    return _onnx_types().get(dtype, dtype.numpy) if dtype.numpy.kind == "V" else dtype.numpy


@functools.cache
def _onnx_types() -> dict[DType, int]:
    import onnx

    kinds = onnx.TensorProto
    return {
        DType.BFLOAT16: kinds.BFLOAT16,
        DType.FLOAT8_E4M3FN: kinds.FLOAT8E4M3FN,
        DType.FLOAT8_E4M3FNUZ: kinds.FLOAT8E4M3FNUZ,
        DType.FLOAT8_E5M2: kinds.FLOAT8E5M2,
        DType.FLOAT8_E5M2FNUZ: kinds.FLOAT8E5M2FNUZ,
    }
