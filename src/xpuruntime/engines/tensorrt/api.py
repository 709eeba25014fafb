"""TensorRT's Python API, as far as the engine uses it, with everything that differs between 8.6, 10 and 11 in one table.

No other file calls the vendor. ``tests/engines/test_tensorrt_api.py`` runs this file against the classes, members and enums that the binding
modules of these versions have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...plugins.vendor_imports import vendor
from ...types import DType

__all__ = ["Api", "BuildRequest", "Log", "api", "short"]

# Vendor name -> (first major version with it, first one without it).
DIFFERENCES: Mapping[str, tuple[int, int]] = {
    "NetworkDefinitionCreationFlag.EXPLICIT_BATCH": (8, 11),  # the only kind of network from 10 on
    "NetworkDefinitionCreationFlag.STRONGLY_TYPED": (10, 99),  # the default from 11 on
    "BuilderFlag.FP16": (8, 11),  # 11 computes in the types of the model
    "BuilderFlag.BF16": (10, 11),
    "BuilderFlag.INT8": (8, 11),
    "PreviewFeature.PROFILE_SHARING_0806": (8, 11),  # always on from 11
    "TacticSource.CUBLAS": (8, 11),
    "TacticSource.CUBLAS_LT": (8, 11),
    "TacticSource.CUDNN": (8, 11),
    "DataType.INT64": (10, 99),  # 8.6 reads int64 inputs as int32
    "DataType.BF16": (10, 99),
}

_DTYPES: Mapping[str, DType] = {
    "FLOAT": DType.FLOAT32,
    "HALF": DType.FLOAT16,
    "BF16": DType.BFLOAT16,
    "INT8": DType.INT8,
    "UINT8": DType.UINT8,
    "INT32": DType.INT32,
    "INT64": DType.INT64,
    "BOOL": DType.BOOL,
    "FP8": DType.FLOAT8_E4M3FN,
}
_PRECISION_FLAGS: Mapping[DType, str] = {DType.FLOAT16: "FP16", DType.BFLOAT16: "BF16", DType.INT8: "INT8"}
_TACTIC_SOURCES = ("CUBLAS", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")

Profile = Mapping[str, tuple[Sequence[int], Sequence[int], Sequence[int]]]
"""Minimum, optimum and maximum shape by input."""


def short(text: str, limit: int = 700) -> str:
    """Return one line of at most ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


class BuildRequest:
    """The settings of one build.

    flags:    precisions that the builder may use, besides that of the model (up to TensorRT 10).
    typed:    the types of the model decide (from TensorRT 10 on).
    settings: attributes of IBuilderConfig by name. sources: tactic sources; None for the vendor's default.
    """

    def __init__(
        self,
        *,
        flags: Sequence[DType] = (),
        typed: bool = False,
        tf32: bool = False,
        profiles: Sequence[Profile] = (),
        workspace: int | None = None,
        sources: Sequence[str] | None = None,
        settings: Mapping[str, int] | None = None,
        builder_flags: Sequence[str] = (),
        timing_cache: bytes | None = None,
    ) -> None:
        self.flags, self.typed, self.tf32, self.profiles = tuple(flags), typed, tf32, tuple(profiles)
        self.workspace, self.sources, self.settings = workspace, sources, dict(settings or {})
        self.builder_flags, self.timing_cache = tuple(builder_flags), timing_cache


class Log:
    """Warnings and errors of the vendor, since its calls return only None or False. ``logger`` is the object for the vendor."""

    def __init__(self, module: Any) -> None:
        self.lines: list[str] = []
        lines, severity = self.lines, module.ILogger.Severity
        told = (severity.INTERNAL_ERROR, severity.ERROR)

        class Collecting(module.ILogger):  # type: ignore[misc]
            """Collects errors."""

            def __init__(self) -> None:
                module.ILogger.__init__(self)

            def log(self, severity: Any, msg: str) -> None:
                """Keep an error."""
                if severity in told:
                    lines.append(msg)

        self.logger = Collecting()

    def text(self) -> str:
        """Return the collected errors in one line, and forget them."""
        said = short("; ".join(self.lines)) or "TensorRT gave no reason"
        self.lines.clear()
        return said


class Api:
    """The vendor's module and its version."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.version = str(module.__version__)
        self.major = int(self.version.partition(".")[0])
        self._log = Log(module)

    def has(self, name: str) -> bool:
        """Return True if this version has the name, by the table; names that are not listed are in all versions."""
        first, without = DIFFERENCES.get(name, (0, 99))
        return first <= self.major < without

    def _member(self, name: str) -> Any:
        """Return a member of an enum by its dotted name."""
        enum, _, member = name.partition(".")
        return getattr(getattr(self.module, enum), member)

    def errors(self) -> str:
        """Return the vendor's errors since the last call."""
        return self._log.text()

    def tactic_sources(self) -> tuple[str, ...]:
        """Return the names of the tactic sources of this version."""
        return tuple(n for n in _TACTIC_SOURCES if self.has(f"TacticSource.{n}"))

    def precisions(self) -> tuple[DType, ...]:
        """Return the precisions that a builder flag permits for a model of another precision."""
        return tuple(d for d, n in _PRECISION_FLAGS.items() if self.has(f"BuilderFlag.{n}"))

    def dtype(self, vendor_dtype: Any) -> DType | None:
        """Return the DType of a vendor's data type; None for one that has none."""
        return _DTYPES.get(str(vendor_dtype).rpartition(".")[2])

    # ── building ──

    def build(
        self, model: bytes, path: str, plugins: Sequence[str], request: BuildRequest
    ) -> tuple[bytes, bytes]:
        """Return a serialized engine and the timing cache. Raises RuntimeError with the vendor's text.

        path: the model's file, for external data; "" if it has none. plugins: libraries to load first.
        """
        trt = self.module
        self.load_plugins(plugins)
        builder = trt.Builder(self._log.logger)
        network = builder.create_network(self._network_flags(request))
        parser = trt.OnnxParser(network, self._log.logger)
        if not (parser.parse(model, path) if path else parser.parse(model)):
            errors = [parser.get_error(i) for i in range(parser.num_errors)]
            raise RuntimeError(short("; ".join(str(e.desc()) for e in errors)) or self.errors())
        config = builder.create_builder_config()
        self._configure(config, request)
        for profile in request.profiles:
            shapes = builder.create_optimization_profile()
            for name, (least, usual, most) in profile.items():
                shapes.set_shape(name, tuple(least), tuple(usual), tuple(most))
            if config.add_optimization_profile(shapes) < 0:
                raise RuntimeError(self.errors())
        cache = config.create_timing_cache(request.timing_cache or b"")
        config.set_timing_cache(cache, False)
        engine = builder.build_serialized_network(network, config)
        if engine is None:
            raise RuntimeError(self.errors())
        return bytes(engine), bytes(config.get_timing_cache().serialize())

    def _network_flags(self, request: BuildRequest) -> int:
        names = ["EXPLICIT_BATCH"] if self.has("NetworkDefinitionCreationFlag.EXPLICIT_BATCH") else []
        if request.typed and self.has("NetworkDefinitionCreationFlag.STRONGLY_TYPED"):
            names.append("STRONGLY_TYPED")
        return sum(1 << int(self._member(f"NetworkDefinitionCreationFlag.{n}")) for n in names)

    def _configure(self, config: Any, request: BuildRequest) -> None:
        trt = self.module
        for dtype in request.flags:
            config.set_flag(self._member(f"BuilderFlag.{_PRECISION_FLAGS[dtype]}"))
        for name in request.builder_flags:
            config.set_flag(self._member(f"BuilderFlag.{name}"))
        if not request.tf32:  # the vendor's default is on
            config.clear_flag(trt.BuilderFlag.TF32)
        if request.workspace is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request.workspace)
        if request.sources is not None:
            mask = sum(1 << int(self._member(f"TacticSource.{n}")) for n in request.sources)
            if not config.set_tactic_sources(mask):
                raise RuntimeError(self.errors())
        for name, value in request.settings.items():
            setattr(config, name, value)
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        if request.profiles and self.has("PreviewFeature.PROFILE_SHARING_0806"):
            config.set_preview_feature(self._member("PreviewFeature.PROFILE_SHARING_0806"), True)

    def load_plugins(self, libraries: Sequence[str]) -> None:
        """Load the vendor's plug-ins and the libraries. Raises RuntimeError with the vendor's text."""
        self.module.init_libnvinfer_plugins(self._log.logger, "")
        for library in libraries:
            if self.module.get_plugin_registry().load_library(library) is None:
                raise RuntimeError(self.errors())

    # ── running ──

    def load(self, engine: bytes | memoryview, plugins: Sequence[str] = ()) -> Any:
        """Return the vendor's engine. Raises RuntimeError with the vendor's text."""
        self.load_plugins(plugins)
        loaded = self.module.Runtime(self._log.logger).deserialize_cuda_engine(engine)
        if loaded is None:
            raise RuntimeError(self.errors())
        return loaded

    def tensors(self, engine: Any) -> list[tuple[str, bool, DType | None, tuple[int, ...], bool]]:
        """Return name, whether it is an input, dtype, shape (-1: open) and whether it is in host memory, of each input and output."""
        trt = self.module
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        return [
            (
                n,
                engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT,
                self.dtype(engine.get_tensor_dtype(n)),
                tuple(engine.get_tensor_shape(n)),
                engine.get_tensor_location(n) == trt.TensorLocation.HOST,
            )
            for n in names
        ]

    def profile_bounds(
        self, engine: Any, inputs: Sequence[str]
    ) -> list[dict[str, tuple[tuple[int, ...], tuple[int, ...]]]]:
        """Return the smallest and largest shape of each input, for each profile."""
        bounds = []
        for index in range(engine.num_optimization_profiles):
            shapes = {n: engine.get_tensor_profile_shape(n, index) for n in inputs}
            bounds.append({n: (tuple(s[0]), tuple(s[2])) for n, s in shapes.items()})
        return bounds

    def context(self, engine: Any) -> Any:
        """Return a new execution context. Raises RuntimeError with the vendor's text (out of memory)."""
        context = engine.create_execution_context()
        if context is None:
            raise RuntimeError(self.errors())
        return context

    def use_profile(self, context: Any, index: int, stream: int) -> None:
        """Select an optimization profile. Raises RuntimeError with the vendor's text."""
        if context.active_optimization_profile != index and not context.set_optimization_profile_async(
            index, stream
        ):
            raise RuntimeError(self.errors())

    def infer(
        self,
        context: Any,
        shapes: Mapping[str, Sequence[int]],
        addresses: Mapping[str, int],
        outputs: Sequence[str],
    ) -> dict[str, tuple[int, ...]]:
        """Give a context the inputs' shapes and addresses, and return the outputs' shapes. Raises RuntimeError with the vendor's text."""
        for name, shape in shapes.items():
            if not context.set_input_shape(name, tuple(shape)):
                raise RuntimeError(self.errors())
        self.bind(context, addresses)
        missing = context.infer_shapes()
        if missing:
            raise RuntimeError(f"the inputs {', '.join(missing)} do not decide the outputs' shapes")
        return {name: tuple(context.get_tensor_shape(name)) for name in outputs}

    def binder(self, context: Any) -> Callable[[str, int], bool]:
        """Return a function that gives a context the address of an input or output, and returns False for a failure. It holds until another
        is given.
        """
        bind: Callable[[str, int], bool] = context.set_tensor_address
        return bind

    def bind(self, context: Any, addresses: Mapping[str, int]) -> None:
        """Give a context the addresses of inputs and outputs. Raises RuntimeError with the vendor's text."""
        bind = self.binder(context)
        for name, address in addresses.items():
            if not bind(name, address):
                raise RuntimeError(self.errors())

    def launcher(self, context: Any) -> Callable[[int], bool]:
        """Return a function that queues one run of a context on a stream, and returns False for a failure."""
        launch: Callable[[int], bool] = context.execute_async_v3
        return launch

    def inspect(self, engine: Any) -> str:
        """Return the inspector's report on an engine as JSON."""
        text = engine.create_engine_inspector().get_engine_information(
            self.module.LayerInformationFormat.JSON
        )
        return str(text)

    def profiled(self, context: Any, run: Callable[[], None]) -> list[tuple[str, float]]:
        """Return each layer's name and milliseconds in one run of a context."""
        times: list[tuple[str, float]] = []
        module = self.module

        class Timing(module.IProfiler):  # type: ignore[misc, name-defined]
            """Collects the time of each layer."""

            def __init__(self) -> None:
                module.IProfiler.__init__(self)

            def report_layer_time(self, layer_name: str, ms: float) -> None:
                """Keep a layer's time."""
                times.append((layer_name, float(ms)))

        context.profiler = Timing()
        run()
        return times


@functools.cache
def api() -> Api:
    """Return the installed version's API; imported on first use. Raises the error of the import."""
    return Api(vendor("tensorrt"))
