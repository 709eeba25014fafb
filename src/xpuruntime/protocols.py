"""The plug-in protocols: the interface between xpuruntime and an engine, and between the runtime and a device.

An engine is a module with the functions of ``Engine``. ``build`` compiles a model to an ``Artifact`` (bytes that the store may
keep), and ``load`` turns an artifact into an ``Executable``. ``load`` needs only the artifact, so a second process can skip
``build``. All values are plain data: no vendor type crosses the interface.

Abilities that not every engine or device has are the ``runtime_checkable`` protocols at the end of this file. A session checks for
them with ``isinstance`` when it opens; a class or module that has the methods needs to declare nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .decisions import Decision, Support
from .evidence import Evidence, EvidenceRow, SeenKernel
from .targets import DeviceId
from .types import DType, TensorSpec

if TYPE_CHECKING:  # a name for type checkers: at run time this file knows no policies
    from .policies import KernelPolicy
    from .storage.store import Store

__all__ = [
    "Array",
    "Artifact",
    "Backend",
    "Bindable",
    "Cancellable",
    "Closeable",
    "CompilesShapes",
    "DeviceBuffer",
    "DeviceFact",
    "DispatchStrategy",
    "Engine",
    "EngineRequest",
    "Evidence",
    "EvidenceRow",
    "Executable",
    "HasKernelOptions",
    "HasRegions",
    "HasTarget",
    "HoldsMemory",
    "KernelOptions",
    "ModelSource",
    "NodeRef",
    "Products",
    "ReportsDecisions",
    "ReportsFallbacks",
    "ReportsKernels",
    "RunContext",
    "RunsTensors",
    "SeenKernel",
    "ShapeStore",
    "Stoppable",
    "StoppableLoad",
    "TakesTensors",
    "TuneRequest",
]

Array: TypeAlias = NDArray[Any]
KernelOptions: TypeAlias = Mapping[tuple[str, str], Mapping[str, str]]
"""Vendor options by (op family, kernel)."""


@dataclass(frozen=True, slots=True)
class NodeRef:
    """One node of the user's model, by a name that is unique within the model.

    inputs, outputs: names of the values that it reads (including those that its subgraphs capture) and produces.
    undeclared:      how its attributes, or those of a node in its subgraphs, differ from the op's definition.
    ignorable:       whether that is an attribute that the op does not have, which some engines ignore.
    """

    name: str
    op: str
    domain: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    undeclared: str = ""
    ignorable: bool = False


@dataclass(frozen=True, slots=True)
class Products:
    """Counts of a model's convolutions and matrix products, by arithmetic.

    integer: ops on integers (QLinearConv, MatMulInteger). qdq: float ops between DequantizeLinear and QuantizeLinear, which an engine
             may compute in integers. floats: all others, including those with only their weights quantized.
    wide:    those of ``qdq`` with an operand of more than 8 bits (16-bit activations or weights), which few engines compute in integers.
    rounded: those of ``floats`` whose activations an engine may round to int8 (MatMulNBits of accuracy_level 4, DynamicQuantizeLSTM).
    """

    integer: int = 0
    qdq: int = 0
    floats: int = 0
    rounded: int = 0
    wide: int = 0


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A checked model, ready for an engine to read.

    format:    ``onnx``, ``openvino-ir``, ``tensorrt-plan``, ``graph`` (a PyTorch module in the IR: ``graph`` holds it and its weights by name), or ``program`` (``graph`` is the
               CompiledProgram). A module that was written as ONNX keeps its ``graph``.
    path:      the model's file, if it has one (external data is next to it); otherwise ``data`` holds its bytes.
    digest:    sha256 over everything that affects the result: the file, its external data, its weights file.
    precision: the model's own floating-point precision: the float type of most weight elements; without float
               weights, the widest float type among its inputs, then its outputs, else float32.
    quantized: ``int8`` (``int4``, ``int16``) if some products have both operands quantized (QDQ, QLinear ops), else None.
    products:  counts of its convolutions and matrix products.
    wide_pairs: number of QuantizeLinear nodes whose codes have more than 8 bits.
    functions: (domain, name) of ops that the model defines itself (ONNX model-local functions).
    files:     every file that the digest covers, ``path`` first.
    defaults:  names of graph inputs that an initializer gives a value. They are constants of the model, not in ``inputs``.
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
    wide_pairs: int = 0
    functions: frozenset[tuple[str, str]] = frozenset()
    graph: Any = field(default=None, repr=False, compare=False)
    files: tuple[Path, ...] = field(default=(), repr=False, compare=False)
    defaults: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    plan_only: bool = field(default=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """The measurement of kernels when a program is built (``tune: {on_build: SECONDS}``). Only ``seconds`` enters the cache key.

    seconds: the bound. record: what an earlier program of the request recorded, which is used instead of measuring.
    remeasure_reason: why a request that was measured before is measured again; empty for a first time.
    """

    seconds: float
    record: Mapping[str, Any] | None = field(default=None, repr=False)
    remeasure_reason: str = ""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request to an engine for one region. Every field but ``store`` enters the cache key.

    precision: the precision to compute in; None means the model's own (vendor defaults that would change it are
               turned off).
    threads:   CPU threads; None lets the engine use every core this process may use.
    options:   vendor options from a policy, by the vendor's names; an unknown one is an error.
    optimization: 0 none, 1 basic, 2 extended, 3 all that preserve the results.
    kernels:   demands on kernels, for engines whose kernels can be chosen; None without any. Origins of its layers are left out, since
               they do not affect the artifact.
    locked:    the kernel of each call under a lock (``compiler.locked``), for those engines; None without a lock.
    tune:      measurement of the kernels of a program that is built, for those engines; None without one.
    store:     where an engine keeps what a vendor's library computes besides the artifact; None: the store of ``XPU_CACHE_DIR``.
    """

    device: DeviceId
    precision: DType | None = None
    threads: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    optimization: int = 3
    kernels: KernelPolicy | None = None
    locked: Mapping[str, str] | None = None
    tune: TuneRequest | None = None
    store: Store | None = field(default=None, repr=False, compare=False)


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


# ── optional abilities of an engine ──


@runtime_checkable
class HasKernelOptions(Protocol):
    """An Engine with vendor options that select kernels, so that a KernelPolicy can be satisfied by options."""

    def kernel_options(self, device: DeviceId) -> KernelOptions:
        """Return the options for regions on that device. Pairs of op family and kernel that are missing have none."""
        ...


@runtime_checkable
class StoppableLoad(Protocol):
    """An Engine whose ``load`` compiles and can be stopped, as ``compile_timeout_s`` requires."""

    def stoppable_load(
        self, artifact: Artifact, model: ModelSource, request: EngineRequest
    ) -> tuple[Callable[[], Executable], Callable[[], None]]:
        """Return a function that loads, and one that another thread calls to end the load. Raises BuildError if this load cannot be stopped."""
        ...


# ── optional abilities of an executable ──


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


@runtime_checkable
class TakesTensors(Protocol):
    """An Executable whose contexts run on tensors of other libraries (DLPack) as they are, without conversion to arrays."""

    def takes(self, tensors: dict[str, Any]) -> bool:
        """Return True if a context's run takes exactly these inputs unchanged. It then returns outputs by name. Called before each run."""
        ...


@runtime_checkable
class RunsTensors(Protocol):
    """An Executable that runs on tensors in its device's memory, without a copy to the host.

    Such runs are queued on the caller's stream and cannot be stopped.
    """

    @property
    def on_device(self) -> bool:
        """Return False if the device is the host. A session then calls neither of the two functions."""
        ...

    def run_tensors(self, tensors: Mapping[str, Any]) -> Sequence[Any]:
        """Return the outputs in the order of ``outputs``, on the device. Raises InputError, RunError."""
        ...

    def try_run_tensors(self, tensors: dict[str, Any]) -> dict[str, Any] | None:
        """Run on the fast path and return outputs by name; None, without a run, for inputs that need another path."""
        ...


@runtime_checkable
class CompilesShapes(Protocol):
    """An Executable that compiles programs for new shapes when a run first has them."""

    def limit_compiles(self, seconds: float) -> None:
        """End each such compilation after ``seconds``; its run raises BuildTimeout."""
        ...

    def keep_in(self, store: ShapeStore) -> None:
        """Read programs for new shapes from the store if they are there, and store those that are compiled."""
        ...


class ShapeStore(Protocol):
    """The part of the store that an executable may use: artifacts of its model and request, by the sizes of symbolic dims."""

    def building(
        self, shapes: Mapping[str, int], who: str, seconds: float | None = None
    ) -> AbstractContextManager[None]:
        """Hold the lock of these shapes, so that only one process builds them. Raises BuildTimeout after ``seconds`` of waiting."""
        ...

    def get(self, shapes: Mapping[str, int]) -> bytes | None:
        """Return the stored bytes, or None."""
        ...

    def put(self, shapes: Mapping[str, int], blob: bytes) -> None:
        """Store an artifact."""
        ...

    def remeasure_reason(self, shapes: Mapping[str, int]) -> str:
        """Return why the kernels of an absent artifact are measured although they were before; empty for a first measurement."""
        ...


@runtime_checkable
class HoldsMemory(Protocol):
    """An Executable that allocates the memory of its device itself, so that it can report and limit it."""

    @property
    def memory(self) -> Mapping[str, int]:
        """Return ``Evidence.memory``."""
        ...

    def limit_memory(self, size: int) -> None:
        """Limit the bytes of weights, states and runs together. A run waits while others have the memory. Raises OutOfMemory if weights and a
        run do not fit, EngineUnavailable if the memory of a model's runs cannot be limited.
        """
        ...


@runtime_checkable
class ReportsDecisions(Protocol):
    """An Executable that selects its kernels itself and says why. Plans and receipts then show its decisions."""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Return the decisions of the program that ran last; empty before the first run of open shapes."""
        ...


@runtime_checkable
class ReportsKernels(Protocol):
    """An Executable that knows the kernels of each node. Plans, differences and rules then name them."""

    @property
    def kernels(self) -> Mapping[str, str]:
        """Return the kernels of each node of the model that has one; empty before the first run of open shapes."""
        ...


@runtime_checkable
class ReportsFallbacks(Protocol):
    """An Executable that knows its fallbacks without collecting all of its evidence."""

    def fallbacks(self) -> tuple[str, ...]:
        """Return ``Evidence.fallbacks``: where something other than requested is used."""
        ...


@runtime_checkable
class HasRegions(Protocol):
    """An Executable over several engines."""

    def region_evidence(self, feeds: Mapping[str, Array] | None = None) -> dict[str, Evidence]:
        """Return each region's evidence by the region's id."""
        ...


@runtime_checkable
class Closeable(Protocol):
    """An object with resources to free."""

    def close(self) -> None:
        """Free them. May be called twice."""
        ...


class Cancellable(Protocol):
    """The token of a run that its caller may give up, such as a ``concurrent.futures.Future``."""

    def cancelled(self) -> bool:
        """Return True if the run is no longer wanted."""
        ...


# ── optional abilities of a backend ──


@runtime_checkable
class HasTarget(Protocol):
    """A Backend whose device names the target that code for it is generated for. Without it, code is generated for the host's processor."""

    @property
    def target(self) -> str:
        """Return the target: ``cuda:sm_90``."""
        ...
