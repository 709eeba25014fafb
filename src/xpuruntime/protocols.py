"""The plug-in protocols: the interface between xpuruntime and an engine, and between the runtime and a device.

An engine is a module with the functions of ``Engine``. ``build`` compiles a model to an ``Artifact`` (bytes that the store may
keep), and ``load`` turns an artifact into an ``Executable``. ``load`` needs only the artifact, so a second process can skip
``build``. All values are plain data: no vendor type crosses the interface.
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
    """One node of the user's model, by a name that is unique within the model.

    inputs, outputs: names of the values that it reads (including those that its subgraphs capture) and produces.
    """

    name: str
    op: str
    domain: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Products:
    """Counts of a model's convolutions and matrix products, by arithmetic.

    integer: ops on integers (QLinearConv, MatMulInteger). qdq: float ops between DequantizeLinear and QuantizeLinear, which an engine
             may compute in integers. floats: all others, including those with only their weights quantized.
    """

    integer: int = 0
    qdq: int = 0
    floats: int = 0


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A checked model, ready for an engine to read.

    format:    ``onnx``, ``openvino-ir``, ``graph`` (a PyTorch module in the IR: ``graph`` holds it and its weights by name), or ``program`` (``graph`` is the
               CompiledProgram).
    path:      the model's file, if it has one (external data is next to it); otherwise ``data`` holds its bytes.
    digest:    sha256 over everything that affects the result: the file, its external data, its weights file.
    precision: the model's own floating-point precision: the float type of most weight elements; without float
               weights, the widest float type among its inputs, then its outputs, else float32.
    quantized: ``int8`` (``int4``, ``int16``) if some products have both operands quantized (QDQ, QLinear ops), else None.
    products:  counts of its convolutions and matrix products.
    functions: (domain, name) of ops that the model defines itself (ONNX model-local functions).
    files:     every file that the digest covers, ``path`` first.
    plan_only: True if a compiled program is only explained, so that none of its native code is loaded.
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
    """A request to an engine for one region. Every field enters the cache key.

    precision: the precision to compute in; None means the model's own (vendor defaults that would change it are
               turned off).
    threads:   CPU threads; None lets the engine use every core this process may use.
    options:   vendor options from a policy, by the vendor's names; an unknown one is an error.
    optimization: 0 none, 1 basic, 2 extended, 3 all that preserve the results.
    kernels:   a KernelPolicy as JSON text, for engines whose kernels can be chosen; empty without one.
    """

    device: DeviceId
    precision: DType | None = None
    threads: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    optimization: int = 3
    kernels: str = ""


@dataclass(frozen=True, slots=True)
class DeviceFact:
    """One device that an engine reports; ``support`` says if it is usable, with the vendor's reason."""

    device: DeviceId
    name: str
    support: Support
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Artifact:
    """The result of ``build``. ``cacheable`` is False, and ``blob`` empty, if the vendor has nothing worth storing.

    blob: an artifact from the store is a view of the memory-mapped file; the loaded executable may keep using it.
    """

    engine: str
    blob: bytes | memoryview = field(repr=False)
    cacheable: bool
    meta: Mapping[str, Any] = field(default_factory=dict)


class Executable(Protocol):
    """An artifact loaded on a device. Thread-safe.

    inputs, outputs: named specs in the model's order.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def run(self, feeds: dict[str, Array]) -> Sequence[Array]:
        """Return the outputs in the order of ``outputs``, as arrays that are never overwritten.
        The caller has checked ``feeds``. Raises RunError with the vendor's text.
        """
        ...

    def evidence(self, feeds: dict[str, Array] | None = None) -> Evidence:
        """Report what ran. With ``feeds``, also measure times on them, on a profiled copy if profiling would slow the session."""
        ...

    def close(self) -> None:
        """Free the vendor's resources; further runs raise RunError."""
        ...


class RunContext(Protocol):
    """The state of one run at a time of an ``Executable``, from ``Stoppable.context()``.

    A bound context (``Bindable.bind_context``) reads and writes the memory that it was created with; its ``run`` returns nothing.
    """

    def run(self, feeds: dict[str, Array], watched: bool = False) -> Sequence[Array]:
        """Run as ``Executable.run``. ``watched``: the run must be stoppable; without it, an engine may use a faster path that is not."""
        ...

    def stop(self) -> None:
        """End the run in progress with a RunError as soon as the engine can. Another thread calls this. The context is not reused."""
        ...


@runtime_checkable
class Stoppable(Protocol):
    """An Executable whose runs can be stopped one by one, as ``run_timeout_s`` and ``cancel`` require."""

    def context(self) -> RunContext:
        """Return a new context. Raises RunError when the executable is closed."""
        ...


@runtime_checkable
class Bindable(Protocol):
    """An Executable that can run repeatedly on the caller's memory, without allocating any."""

    def bind_context(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> RunContext:
        """Return a context that reads ``inputs`` and writes ``outputs``. The caller passes all of them as C-contiguous arrays and has checked them."""
        ...


class Engine(Protocol):
    """The functions of the module that an ``EnginePlugin.entry`` names."""

    def version(self) -> str:
        """Return the vendor's version, from the loaded library."""
        ...

    def devices(self) -> tuple[DeviceFact, ...]:
        """Return every device that the vendor reports on this machine, usable or not. Never raises."""
        ...

    def supports(self, model: ModelSource, request: EngineRequest) -> Support:
        """Check device, precision, format, dtypes, shapes and options, without building anything."""
        ...

    def fingerprint(self, request: EngineRequest) -> dict[str, str]:
        """Return everything else that affects the artifact: versions, the device's instruction sets or driver, fixed options."""
        ...

    def build(self, model: ModelSource, request: EngineRequest) -> Artifact:
        """Compile the model. Raises BuildError with the vendor's text."""
        ...

    def load(self, artifact: Artifact, model: ModelSource, request: EngineRequest) -> Executable:
        """Load the artifact on its device. Raises BuildError with the vendor's text."""
        ...


class DeviceBuffer(Protocol):
    """A tensor in device memory, with the porting guide's names.

    alloc_shape: extents in memory, in logical order, padding included; ``size_bytes`` counts them.
    native_handle: the device's handle of the memory.
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
        """Return a copy of the logical array, without layout and padding."""
        ...


@runtime_checkable
class Backend(Protocol):
    """A device driver, with the porting guide's method names. Base class for drivers that implement all five methods.

    ``runtime.PythonBackend`` implements them for any device that can allocate, upload, download, prepare and submit.
    """

    @abstractmethod
    def allocate_buffer(
        self, data: Any, alloc_shape: tuple[int, ...] | None = None, spec: TensorSpec | None = None
    ) -> DeviceBuffer:
        """Copy an array to the device, in the layout of ``spec``, padded to ``alloc_shape``, or dense."""
        ...

    @abstractmethod
    def allocate_zeros(
        self, shape: tuple[int, ...], dtype: Any, alloc_shape: tuple[int, ...] | None = None
    ) -> DeviceBuffer:
        """Allocate zeros on the device."""
        ...

    @abstractmethod
    def execute(self, program: Any, inputs: Mapping[str, Any], weights: Any) -> Mapping[str, DeviceBuffer]:
        """Run a CompiledProgram once and return the outputs by name."""
        ...

    @abstractmethod
    def create_executor(self, program: Any) -> Any:
        """Load a CompiledProgram and return an object with ``run(inputs, weights)``."""
        ...

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all submitted work is done."""
        ...


@runtime_checkable
class DispatchStrategy(Protocol):
    """The mapping from a kernel's tasks to a device's grid."""

    @abstractmethod
    def compute_dispatch(
        self, call: Any, pipeline: Any
    ) -> tuple[tuple[int, int, int], tuple[int, int, int]] | None:
        """Return (groups, threads per group) for a KernelCall and the pipeline that the driver prepared for it; None to skip the dispatch."""
        ...
