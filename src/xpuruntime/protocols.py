"""What plugs in, as protocols: the seam between xpuruntime and an engine, and between the runtime and a device.

An engine is a module with the functions of ``Engine``. ``build`` turns a model into an ``Artifact`` (bytes, which
the store may keep), ``load`` turns an artifact into an ``Executable``. Between the two stands nothing but the artifact, so a
second process can skip ``build``. Values here are plain data: no vendor type crosses the seam.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .decisions import Support
from .evidence import Evidence, EvidenceRow, SeenKernel
from .targets import DeviceId
from .types import DType, TensorSpec

__all__ = [
    "Array",
    "Artifact",
    "Backend",
    "Bindable",
    "DeviceBuffer",
    "DeviceFact",
    "DispatchStrategy",
    "Engine",
    "EngineRequest",
    "Evidence",
    "EvidenceRow",
    "Executable",
    "ModelSource",
    "NodeRef",
    "Products",
    "RunContext",
    "SeenKernel",
    "Stoppable",
]

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class NodeRef:
    """One node of the user's model, as the model file names it; unique within the model.

    inputs, outputs: names of the values it reads (those that its subgraphs capture included) and makes.
    """

    name: str
    op: str
    domain: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Products:
    """Counts of a model's convolutions and matrix products, by the arithmetic that the model describes.

    integer: ops on integers (QLinearConv, MatMulInteger). qdq: float ops between DequantizeLinear and QuantizeLinear, which an engine
             may compute in integers. floats: all others, also those that only have quantized weights.
    """

    integer: int = 0
    qdq: int = 0
    floats: int = 0


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as an engine may read it, already checked.

    format:    ``onnx``, ``openvino-ir``, ``graph`` (a PyTorch module in the IR: ``graph`` holds it and its weights by name), or ``program`` (``graph`` is the
               CompiledProgram).
    path:      the file, when it is one (external data lies beside it); else ``data`` holds its bytes.
    digest:    sha256 over everything that decides the result: the file, its external data, its weights file.
    precision: the model's own floating-point precision: the float type of most of its weight elements; without float
               weights the widest float among its inputs, then outputs, else float32.
    quantized: ``int8`` (``int4``, ``int16``) when some of the model's products have both operands quantized (QDQ, QLinear ops), else None.
    products:  counts of its convolutions and matrix products.
    functions: (domain, name) of ops that the model defines itself.
    files:     every file that the digest covers, ``path`` first.
    plan_only: a compiled program that is explained, not run: none of its native code is loaded.
    """

    name: str
    format: str
    path: Path | None
    data: bytes | None = field(repr=False)
    digest: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: tuple[NodeRef, ...] = field(repr=False)
    precision: DType
    opsets: Mapping[str, int] = field(default_factory=dict)
    quantized: DType | None = None
    products: Products = Products()
    functions: frozenset[tuple[str, str]] = frozenset()
    graph: Any = field(default=None, repr=False, compare=False)
    files: tuple[Path, ...] = field(default=(), repr=False, compare=False)
    plan_only: bool = field(default=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What is asked of an engine for one region. Every field enters the cache key.

    precision: the precision to compute in; None means the model's own (a vendor default that would change it
               is pinned off).
    threads:   CPU threads; None lets the engine use every core this process may use.
    options:   vendor options by the vendor's own names, from a policy; an unknown one is an error.
    optimization: 0 none, 1 basic, 2 extended, 3 all that keeps results right.
    kernels:   a KernelPolicy as JSON text, for engines whose kernels can be chosen; empty: no demands.
    """

    device: DeviceId
    precision: DType | None = None
    threads: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    optimization: int = 3
    kernels: str = ""


@dataclass(frozen=True, slots=True)
class DeviceFact:
    """One device as an engine reports it; ``support`` says whether it can be used, with the vendor's reason."""

    device: DeviceId
    name: str
    support: Support
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Artifact:
    """What ``build`` made. ``cacheable`` is False where the vendor has nothing worth keeping (then ``blob`` is empty).

    blob: from the store it comes as a view of the kept file's pages, which whoever loads it may go on using.
    """

    engine: str
    blob: bytes | memoryview = field(repr=False)
    cacheable: bool
    meta: Mapping[str, Any] = field(default_factory=dict)


class Executable(Protocol):
    """An artifact loaded on a device. Safe to call from several threads.

    inputs, outputs: the specs in the model's order, names included.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def run(self, feeds: dict[str, Array]) -> Sequence[Array]:
        """Outputs in the order of ``outputs``, as arrays that nothing else will write to.
        ``feeds`` were checked by the caller. Raises RunError with the vendor's own text.
        """
        ...

    def evidence(self, feeds: dict[str, Array] | None = None) -> Evidence:
        """What ran. With ``feeds``, times are measured on them too (on a profiled twin where timing would slow the session)."""
        ...

    def close(self) -> None:
        """Free what the vendor holds; further runs raise RunError."""
        ...


class RunContext(Protocol):
    """A place for one run at a time of an ``Executable``: what ``context()`` of one that can be stopped gives.

    A bound context (``bind_context``) runs on memory that was given when it was made, and ``run`` gives nothing.
    """

    def run(self, feeds: dict[str, Array], watched: bool = False) -> Sequence[Array]:
        """As ``Executable.run``. ``watched``: somebody waits to end it; an engine may have a quicker way that cannot be ended for others."""
        ...

    def stop(self) -> None:
        """Called by another thread: the run in progress ends with a RunError as soon as the engine can. The context is not used again."""
        ...


@runtime_checkable
class Stoppable(Protocol):
    """An Executable whose runs can be ended one by one, which ``run_timeout_s`` and ``cancel`` need."""

    def context(self) -> RunContext:
        """A new context. Raises RunError when the executable is closed."""
        ...


@runtime_checkable
class Bindable(Protocol):
    """An Executable that runs on the caller's memory, again and again, without making any."""

    def bind_context(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> RunContext:
        """A context that reads ``inputs`` and writes ``outputs``: C-contiguous arrays, all of them, checked by the caller."""
        ...


class Engine(Protocol):
    """The functions of the module that an ``EnginePlugin.entry`` names."""

    def version(self) -> str:
        """The vendor's version, from the loaded library."""
        ...

    def devices(self) -> tuple[DeviceFact, ...]:
        """Every device the vendor knows of here, usable or not. Never raises."""
        ...

    def supports(self, model: ModelSource, request: EngineRequest) -> Support:
        """Whether ``build`` is worth trying: device, precision, format, dtypes, shapes, options. Builds nothing."""
        ...

    def fingerprint(self, request: EngineRequest) -> dict[str, str]:
        """Whatever else decides the artifact: versions, the device's instruction sets or driver, pinned options."""
        ...

    def build(self, model: ModelSource, request: EngineRequest) -> Artifact:
        """Compile. Raises BuildError with the vendor's own text."""
        ...

    def load(self, artifact: Artifact, model: ModelSource, request: EngineRequest) -> Executable:
        """Make it runnable. Raises BuildError with the vendor's own text."""
        ...


class DeviceBuffer(Protocol):
    """A value in a device's memory, as the porting guide names its parts.

    alloc_shape: extents in memory, in logical order, padding included; ``size_bytes`` counts them.
    native_handle: the device's own word for the memory.
    """

    spec: TensorSpec
    native_handle: Any

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def alloc_shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def size_bytes(self) -> int: ...

    def to_numpy(self, spec: TensorSpec | None = None) -> Array:
        """The logical array, a copy, with layout and padding undone."""
        ...


@runtime_checkable
class Backend(Protocol):
    """A device driver, as the porting guide names its methods; a base class for a driver that has all five of its own.

    ``runtime.PythonBackend`` has them for any device that can allocate, upload, download, prepare and submit.
    """

    @abstractmethod
    def allocate_buffer(
        self, data: Any, alloc_shape: tuple[int, ...] | None = None, spec: TensorSpec | None = None
    ) -> DeviceBuffer:
        """An array on the device: laid out as ``spec`` says, or padded to ``alloc_shape``, or dense."""
        ...

    @abstractmethod
    def allocate_zeros(
        self, shape: tuple[int, ...], dtype: Any, alloc_shape: tuple[int, ...] | None = None
    ) -> DeviceBuffer:
        """Zeros on the device."""
        ...

    @abstractmethod
    def execute(self, program: Any, inputs: Mapping[str, Any], weights: Any) -> Mapping[str, DeviceBuffer]:
        """Run a CompiledProgram once: outputs by name."""
        ...

    @abstractmethod
    def create_executor(self, program: Any) -> Any:
        """A CompiledProgram ready to run: an object with ``run(inputs, weights)``."""
        ...

    @abstractmethod
    def synchronize(self) -> None:
        """Return when everything submitted is done."""
        ...


@runtime_checkable
class DispatchStrategy(Protocol):
    """How a device's grid covers a kernel's tasks."""

    @abstractmethod
    def compute_dispatch(
        self, call: Any, pipeline: Any
    ) -> tuple[tuple[int, int, int], tuple[int, int, int]] | None:
        """(groups, threads of a group) for a KernelCall and what the driver prepared of it; None: nothing to dispatch."""
        ...
