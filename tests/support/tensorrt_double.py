"""A strict double of TensorRT's Python package: exactly the classes, members and enum values of one version, computing with ONNX Runtime on the host.

TensorRT needs a GPU even to be imported. This module shows that the engine calls only what a version has, in an order that makes sense; it
shows nothing about TensorRT's kernels. The lists of members come from the real binding modules (``scripts/tensorrt_api.py``).
"""

from __future__ import annotations

import ctypes
import enum
import json
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime

FOLDER = Path(__file__).resolve().parents[1] / "engines" / "tensorrt_api"
VERSIONS = sorted(p.stem for p in FOLDER.glob("*.json"))
_OWN = ("state",)  # attributes of the double itself


def double(version: str) -> ModuleType:
    """Return the package of a version."""
    listed: dict[str, Any] = json.loads((FOLDER / f"{version}.json").read_text())
    module = ModuleType("tensorrt")
    module.__version__ = version  # type: ignore[attr-defined]
    module.builds = []  # type: ignore[attr-defined]
    for name, members in listed.items():
        if isinstance(members, dict):
            setattr(module, name, enum.IntEnum(name, members))
    severity = enum.IntEnum(
        "Severity", {"INTERNAL_ERROR": 0, "ERROR": 1, "WARNING": 2, "INFO": 3, "VERBOSE": 4}
    )
    for name, behavior in _BEHAVIORS.items():
        if name in listed:
            setattr(module, name, _strict(name, behavior, set(listed[name]), module))
    module.ILogger.Severity = severity  # type: ignore[attr-defined]
    for name in listed["functions"]:
        setattr(module, name, _FUNCTIONS[name](module))
    return module


def _strict(name: str, behavior: type, members: set[str], module: ModuleType) -> type:
    """Return the behavior with the members of the version only. Reading or setting another one raises AttributeError."""

    def getattribute(self: Any, key: str) -> Any:
        if not key.startswith("_") and key not in members and key not in _OWN:
            raise AttributeError(f"TensorRT's {name} has no {key!r}")
        return object.__getattribute__(self, key)

    def setattribute(self: Any, key: str, value: Any) -> None:
        if not key.startswith("_") and key not in members and key not in _OWN:
            raise AttributeError(f"TensorRT's {name} has no {key!r}")
        object.__setattr__(self, key, value)

    if name in ("ILogger", "IProfiler"):  # the engine derives from these
        return type(name, (behavior,), {"_trt": module})
    strict = {"__getattribute__": getattribute, "__setattr__": setattribute, "_trt": module}
    return type(name, (behavior,), strict)


class _Logger:
    def __init__(self) -> None:
        pass


class _Network:
    def __init__(self, flags: int) -> None:
        self._flags, self._model = flags, b""


class _Builder:
    def __init__(self, logger: Any) -> None:
        assert isinstance(logger, self._trt.ILogger)
        self._logger = logger

    def create_network(self, flags: int = 0) -> Any:
        return self._trt.INetworkDefinition(flags)

    def create_builder_config(self) -> Any:
        return self._trt.IBuilderConfig()

    def create_optimization_profile(self) -> Any:
        return self._trt.IOptimizationProfile()

    def build_serialized_network(self, network: Any, config: Any) -> Any:
        model = onnx.ModelProto.FromString(network._model)
        flags = self._trt.BuilderFlag
        own = {
            "flags": [f.name for f in flags if f in config._flags],
            "network": network._flags,
            **config._facts(),
        }
        self._trt.builds.append(own)
        dynamic = any(
            not d.HasField("dim_value") for i in model.graph.input for d in i.type.tensor_type.shape.dim
        )
        if dynamic and not config._profiles:
            self._logger.log(
                self._trt.ILogger.Severity.ERROR, "Network has dynamic inputs, but no optimization profile"
            )
            return None
        config._cache._times[model.graph.name] = 1
        return bytearray(pickle.dumps(("engine", self._trt.__version__, network._model, config._profiles)))


class _Config:
    def __init__(self) -> None:
        self._flags = {self._trt.BuilderFlag.TF32}
        self._profiles: list[Any] = []
        self._settings: dict[str, Any] = {}
        self._cache: Any = None
        self.profiling_verbosity = self._trt.ProfilingVerbosity.LAYER_NAMES_ONLY
        self.builder_optimization_level = 3

    def _facts(self) -> dict[str, Any]:
        return {
            **self._settings,
            "level": self.builder_optimization_level,
            "cache": dict(self._cache._before) if self._cache else None,
            "profiles": len(self._profiles),
        }

    def set_flag(self, flag: Any) -> None:
        self._flags.add(self._trt.BuilderFlag(flag))

    def clear_flag(self, flag: Any) -> None:
        self._flags.discard(self._trt.BuilderFlag(flag))

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        self._settings[self._trt.MemoryPoolType(pool).name] = pool_size

    def set_tactic_sources(self, tactic_sources: int) -> bool:
        known = sum(1 << int(s) for s in self._trt.TacticSource)
        self._settings["sources"] = tactic_sources
        return not tactic_sources & ~known

    def set_preview_feature(self, feature: Any, enable: bool) -> None:
        self._settings[self._trt.PreviewFeature(feature).name] = enable

    def add_optimization_profile(self, profile: Any) -> int:
        self._profiles.append(dict(profile._shapes))
        return len(self._profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> Any:
        return self._trt.ITimingCache(serialized_timing_cache)

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        self._cache = cache
        return True

    def get_timing_cache(self) -> Any:
        return self._cache


class _TimingCache:
    def __init__(self, data: bytes) -> None:
        self._times: dict[str, int] = pickle.loads(data) if data else {}
        self._before = dict(self._times)

    def serialize(self) -> bytearray:
        return bytearray(pickle.dumps(self._times))


class _Profile:
    def __init__(self) -> None:
        self._shapes: dict[str, Any] = {}

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:  # noqa: A002 - the vendor's names
        self._shapes[input] = (tuple(min), tuple(opt), tuple(max))


class _ParserError:
    def __init__(self, text: str) -> None:
        self._text = text

    def desc(self) -> str:
        return self._text


class _Parser:
    def __init__(self, network: Any, logger: Any) -> None:
        self._network, self._errors = network, []  # type: ignore[var-annotated]
        self.num_errors = 0

    def parse(self, model: bytes, path: str | None = None) -> bool:
        proto = onnx.load(path) if path else onnx.ModelProto.FromString(model)
        flags = self._trt.NetworkDefinitionCreationFlag
        explicit = flags.__members__.get("EXPLICIT_BATCH")
        if (
            explicit is not None
            and self._trt.__version__.startswith("8")
            and not self._network._flags >> explicit & 1
        ):
            self._errors.append(
                "This version of the ONNX parser only supports networks with an explicit batch"
            )
        unknown = [n.op_type for n in proto.graph.node if n.domain == "own"]
        self._errors += [f"No importer registered for op: {op}" for op in unknown]
        self.num_errors = len(self._errors)
        self._network._model = proto.SerializeToString()
        return not self._errors

    def get_error(self, index: int) -> Any:
        return self._trt.ParserError(self._errors[index])


class _Runtime:
    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def deserialize_cuda_engine(self, serialized_engine: Any) -> Any:
        try:
            kind, version, model, profiles = pickle.loads(bytes(serialized_engine))
            assert kind == "engine"
        except Exception:
            self._logger.log(
                self._trt.ILogger.Severity.ERROR, "Serialization assertion magicTagRead == kMAGIC_TAG failed"
            )
            return None
        if version != self._trt.__version__:
            self._logger.log(
                self._trt.ILogger.Severity.ERROR, f"The engine plan file is of version {version}"
            )
            return None
        return self._trt.ICudaEngine(model, profiles)


class _Engine:
    def __init__(self, model: bytes, profiles: list[Any]) -> None:
        self._proto = onnx.ModelProto.FromString(model)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        graph = self._proto.graph
        weights = {t.name for t in graph.initializer}
        self._inputs = {v.name: v for v in graph.input if v.name not in weights}
        self._io = {**self._inputs, **{v.name: v for v in graph.output}}
        self.num_io_tensors = len(self._io)
        fixed = {n: (self._shape(n),) * 3 for n in self._inputs}
        self._profiles = profiles or [fixed]
        self.num_optimization_profiles = len(self._profiles)

    def _shape(self, name: str) -> tuple[int, ...]:
        dims = self._io[name].type.tensor_type.shape.dim
        return tuple(d.dim_value if d.HasField("dim_value") else -1 for d in dims)

    def _dtype(self, name: str) -> np.dtype[Any]:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(self._io[name].type.tensor_type.elem_type)
        old = "INT64" not in self._trt.DataType.__members__
        return np.dtype(np.int32) if old and dtype == np.int64 else np.dtype(dtype)

    def get_tensor_name(self, index: int) -> str:
        return list(self._io)[index]

    def get_tensor_mode(self, name: str) -> Any:
        modes = self._trt.TensorIOMode
        return modes.INPUT if name in self._inputs else modes.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        words = {
            "float32": "FLOAT",
            "float16": "HALF",
            "int32": "INT32",
            "int64": "INT64",
            "bool": "BOOL",
            "int8": "INT8",
            "uint8": "UINT8",
        }
        return _Named(f"DataType.{words[str(self._dtype(name))]}")

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._shape(name)

    def get_tensor_location(self, name: str) -> Any:
        return self._trt.TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        return list(self._profiles[profile_index][name])

    def create_execution_context(self) -> Any:
        return self._trt.IExecutionContext(self)

    def create_engine_inspector(self) -> Any:
        return self._trt.EngineInspector(self)


class _Named:
    """A value of an enum as the vendor prints it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class _Inspector:
    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def get_engine_information(self, format: Any) -> str:  # noqa: A002 - the vendor's name
        assert format == self._trt.LayerInformationFormat.JSON
        layers = []
        for node in self._engine._proto.graph.node:
            kind = "convolution" if node.op_type == "Conv" else node.op_type.lower()
            layer: dict[str, Any] = {"Name": node.name, "LayerType": kind, "TacticName": f"sm90_{kind}_fp32"}
            layer["Inputs"] = [{"Name": i, "Format/Datatype": "Row major linear FP32"} for i in node.input]
            layer["Outputs"] = [{"Name": o, "Format/Datatype": "Row major linear FP32"} for o in node.output]
            if node.op_type == "Conv":
                layer["Weights"] = {"Type": "Float", "Count": 1}
            layer["Metadata"] = f"\x1e[ONNX Layer: {node.name}]"
            layers.append(layer)
        # TensorRT 8.6 writes the separator of records as it is, which is no valid JSON.
        return json.dumps({"Layers": layers, "Bindings": list(self._engine._io)}).replace("\\u001e", "\x1e")


class _Context:
    def __init__(self, engine: Any) -> None:
        self._engine, self._shapes, self._addresses = engine, {}, {}  # type: ignore[var-annotated]
        self._out: dict[str, Any] = {}
        self.active_optimization_profile = 0
        self.profiler = None

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self.active_optimization_profile = profile_index
        return profile_index < self._engine.num_optimization_profiles

    def set_input_shape(self, name: str, shape: Any) -> bool:
        least, _, most = self._engine._profiles[self.active_optimization_profile][name]
        self._shapes[name] = tuple(shape)
        return all(a <= d <= b for a, d, b in zip(least, shape, most, strict=True))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return True

    def infer_shapes(self) -> list[str]:
        missing = [n for n in self._engine._inputs if n not in self._shapes]
        if not missing:
            feeds = {n: np.zeros(s, self._dtype_of(n)) for n, s in self._shapes.items()}
            names = [o.name for o in self._engine._session.get_outputs()]
            self._out = dict(zip(names, self._engine._session.run(names, feeds), strict=True))
        return missing

    def _dtype_of(self, name: str) -> Any:
        return onnx.helper.tensor_dtype_to_np_dtype(self._engine._io[name].type.tensor_type.elem_type)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._out[name].shape if name in self._out else self._shapes[name]  # type: ignore[no-any-return]

    def execute_async_v3(self, stream_handle: int) -> bool:
        feeds = {}
        for name, shape in self._shapes.items():
            dtype = self._engine._dtype(name)
            size = int(np.prod(shape)) * dtype.itemsize
            raw = ctypes.string_at(self._addresses[name], size) if size else b""
            feeds[name] = np.frombuffer(raw, dtype).reshape(shape).astype(self._dtype_of(name))
        names = list(self._out)
        for name, value in zip(names, self._engine._session.run(names, feeds), strict=True):
            data = np.ascontiguousarray(value.astype(self._engine._dtype(name)))
            ctypes.memmove(self._addresses[name], data.ctypes.data, data.nbytes)
        if self.profiler is not None:
            for node in self._engine._proto.graph.node:
                self.profiler.report_layer_time(node.name, 0.002)
        return True


class _Registry:
    def __init__(self, trt: ModuleType) -> None:
        self._module = trt

    def load_library(self, plugin_path: str) -> object | None:
        return object() if Path(plugin_path).read_bytes().startswith(b"\x7fELF") else None


_BEHAVIORS: dict[str, type] = {
    "ILogger": _Logger,
    "IProfiler": _Logger,
    "Builder": _Builder,
    "INetworkDefinition": _Network,
    "IBuilderConfig": _Config,
    "ITimingCache": _TimingCache,
    "IOptimizationProfile": _Profile,
    "ParserError": _ParserError,
    "OnnxParser": _Parser,
    "Runtime": _Runtime,
    "ICudaEngine": _Engine,
    "EngineInspector": _Inspector,
    "IExecutionContext": _Context,
    "IPluginRegistry": _Registry,
}
_FUNCTIONS = {
    "init_libnvinfer_plugins": lambda module: (
        lambda logger, namespace: isinstance(logger, module.ILogger) or _wrong(logger)
    ),
    "get_plugin_registry": lambda module: lambda: module.IPluginRegistry(module),
}


def _wrong(value: object) -> bool:
    raise TypeError(f"incompatible function arguments: {type(value).__name__}")
