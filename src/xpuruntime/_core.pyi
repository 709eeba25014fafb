"""
The C++ core of xpuruntime. Private: use xpuruntime.runtime and xpuruntime.profiler.
"""

from collections.abc import Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


class Status:
    """Whether something worked, and if not: why, and what to do."""

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def advice(self) -> str: ...

    @property
    def refusals(self) -> list[tuple[int, str, str]]:
        """Calls of a plan that libraries declined: position, why, what to do."""

    @property
    def ok(self) -> bool: ...

class LibraryInfo:
    """What is known about a shared library of a vendor."""

    @property
    def status(self) -> Status: ...

    @property
    def path(self) -> str: ...

    @property
    def file_version(self) -> str: ...

    @property
    def absent(self) -> list[str]: ...

class Search:
    """Where to look for a library."""

    def __init__(self, override_path: str = '', folders: Sequence[str] = []) -> None: ...

    @property
    def override_path(self) -> str: ...

    @property
    def folders(self) -> list[str]: ...

def library_names() -> list[str]:
    """Names of the libraries that the core knows."""

def library_title(name: str) -> str:
    """A reader's name of a library."""

def library_variable(name: str) -> str:
    """The environment variable that overrides the search for a library."""

def library_info(name: str) -> LibraryInfo:
    """What is known so far. Loads nothing."""

def open_library(name: str, search: Search) -> Status:
    """Load a library, once. An absent one is a Status, not an exception."""

class Cache:
    """One cache as core 0 sees it; sizes in bytes."""

    @property
    def level(self) -> int: ...

    @property
    def type(self) -> str: ...

    @property
    def bytes(self) -> int: ...

    @property
    def line_bytes(self) -> int: ...

    @property
    def shared_by(self) -> int: ...

class CpuFacts:
    """The host processor."""

    @property
    def architecture(self) -> str: ...

    @property
    def vendor(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def level(self) -> str: ...

    @property
    def flags(self) -> list[str]: ...

    @property
    def caches(self) -> list[Cache]: ...

    @property
    def logical_cores(self) -> int: ...

    @property
    def physical_cores(self) -> int: ...

    @property
    def affinity_cores(self) -> int: ...

    @property
    def quota_cores(self) -> float: ...

    @property
    def usable_cores(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def memory_limit_bytes(self) -> int: ...

class CudaDevice:
    """One CUDA device."""

    @property
    def index(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def uuid(self) -> str: ...

    @property
    def pci_bus_id(self) -> str: ...

    @property
    def compute_capability(self) -> tuple[int, int]: ...

    @property
    def multiprocessors(self) -> int: ...

    @property
    def shared_memory_per_block(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def clock_khz(self) -> int: ...

    @property
    def memory_clock_khz(self) -> int: ...

class CudaFacts:
    """The CUDA driver and its devices."""

    @property
    def driver_api(self) -> int: ...

    @property
    def driver_version(self) -> str: ...

    @property
    def devices(self) -> list[CudaDevice]: ...

def cpu_facts() -> CpuFacts:
    """Facts about the host processor."""

def cuda_facts(search: Search) -> tuple[Status, CudaFacts]:
    """Load the CUDA driver and describe its devices: (status, facts)."""

EVENT_BYTES: int = 48

def now_ns() -> int:
    """Monotonic clock in nanoseconds, the one that events are stamped with."""

class EventRing:
    """Fixed-size ring of events from many threads."""

    def __init__(self, capacity: int) -> None: ...

    def record(self, kind: int, name: int, step: int, payload: int) -> bool:
        """Record an event now; False when the ring is full."""

    def complete(self, name: int, start_ns: int, duration_ns: int, step: int, payload: int) -> bool:
        """Record a finished span; False when the ring is full."""

    def drain(self, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """Move events into a byte view of a record array; returns how many."""

    def intern(self, name: str) -> int:
        """The id of a name."""

    def names(self) -> list[str]:
        """All names; the index is the id."""

    @property
    def capacity(self) -> int: ...

    @property
    def pending(self) -> int: ...

    @property
    def dropped(self) -> int: ...

class Seen:
    """One piece of work by the driver's own record."""

    @property
    def kind(self) -> str: ...

    @property
    def call(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def grid(self) -> tuple[int, int, int]: ...

    @property
    def block(self) -> tuple[int, int, int]: ...

    @property
    def registers(self) -> int: ...

    @property
    def shared_bytes(self) -> int: ...

    @property
    def local_bytes(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def start_ns(self) -> int: ...

    @property
    def duration_ns(self) -> int: ...

class Observation:
    """Filled by the run that it is handed to."""

    def __init__(self) -> None: ...

    @property
    def seen(self) -> list[Seen]: ...

    @property
    def graph(self) -> bool: ...

    @property
    def joined(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def absent(self) -> str: ...

    @property
    def advice(self) -> str: ...

    @property
    def dropped(self) -> int: ...

    @property
    def unmatched(self) -> int: ...

def nvtx_open(search: Search) -> Status:
    """Load NVTX, if it is there, and switch ranges on."""

def nvtx_active() -> bool: ...

def nvtx_each_call(on: bool) -> None:
    """
    Whether each kernel call has a range of its own; then it is launched by itself, in no graph.
    """

def nvtx_push(name: str) -> int: ...

def nvtx_pop() -> int: ...

def nvtx_mark(name: str) -> None: ...

class MemoryStatistics:
    """What a pool holds, in bytes, and what it has done."""

    @property
    def live_bytes(self) -> int: ...

    @property
    def peak_bytes(self) -> int: ...

    @property
    def cached_bytes(self) -> int: ...

    @property
    def allocations(self) -> int: ...

    @property
    def reuses(self) -> int: ...

def host_block(bytes: int) -> NDArray[numpy.uint8]:
    """A block of the host's pool as a byte array, 64-byte aligned."""

def address(bytes: NDArray[numpy.uint8]) -> int:
    """Where a byte array lies."""

def dlpack_capsule(address: int, shape: Sequence[int], strides: Sequence[int], code: int, bits: int, owner: object) -> object:
    """Memory as a DLPack capsule; owner keeps it alive."""

def bfloat_words(tensor: object) -> NDArray[numpy.uint16]:
    """The words of a bfloat16 tensor of any library, in place."""

def host_memory() -> MemoryStatistics:
    """Statistics of the host's pool."""

def trim_host_memory() -> int:
    """Give cached blocks back to the system; returns how many bytes."""

class MapBy(enum.Enum):
    """How object code gets a file to be mapped from."""

    ANY = 0

    MEMFD = 1

    FILE = 2

class Module:
    """Object code, mapped into this process."""

    @property
    def mapped_by(self) -> str: ...

    def has(self, symbol: str) -> bool: ...

def load_module(code: bytes, how: MapBy = ...) -> Module | Status:
    """
    Map an ELF shared object. Its digest must have been checked: code cannot be judged.
    """

def missing_requirements(required: Sequence[str]) -> list[str]:
    """Those of the instruction sets and libraries that this machine lacks."""

class Backend:
    """A device driver."""

    @property
    def name(self) -> str: ...

    @property
    def threads(self) -> int: ...

class Dispatch:
    """A kernel call that the null backend was given."""

    @property
    def kernel(self) -> str: ...

    @property
    def symbol(self) -> str: ...

    @property
    def tasks(self) -> int: ...

    @property
    def args(self) -> int: ...

    @property
    def params(self) -> list[int]: ...

class NullBackend(Backend):
    """Computes nothing and remembers every dispatch."""

    def dispatches(self) -> list[Dispatch]: ...

    def forget(self) -> None: ...

def cpu_backend(threads: int) -> Backend:
    """The host, on that many threads."""

def null_backend() -> NullBackend: ...

def python_backend(driver: object) -> Backend:
    """A backend whose driver is a Python object."""

class Plan:
    """
    Calls over slots of memory: arena, inputs, outputs, weights and states.
    """

    def __init__(self, name: str, arena_bytes: int, inputs: int, outputs: int, fixed: int, batch: int, module: Module | None, border_bytes: Sequence[int] = []) -> None: ...

    def add_call(self, kernel: str, symbol: str, args: Sequence[tuple[int, int]], inputs: int, params: list[int | float], tasks: int, grain: int, scratch_bytes: int, library: str = '', options: dict[str, object] = {}, specs: Sequence[tuple[str, Sequence[int], Sequence[int]]] = [], nodes: str = '') -> None: ...

    def compiled_apart(self, module: Module | None) -> None:
        """The last call's function lies in this module, not in the plan's."""

    def add_handover(self, from_: tuple[int, int], output: int, bytes: int) -> None: ...

class Fixed:
    """Weights and states, bound for executors."""

    def __init__(self, memory: Sequence[int], exclusive: bool, owner: object) -> None: ...

    def share_turn(self, other: Fixed) -> None: ...

class Counters:
    """What an executor has done since it was made."""

    @property
    def runs(self) -> int: ...

    @property
    def dispatches(self) -> int: ...

    @property
    def prepared(self) -> int: ...

    @property
    def allocations(self) -> int: ...

    @property
    def copies(self) -> int: ...

    @property
    def contexts(self) -> int: ...

    @property
    def sent(self) -> int: ...

    @property
    def fetched(self) -> int: ...

class Stop:
    """Ends the runs that it is handed to, after the kernel that they are in."""

    def __init__(self) -> None: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

class Executor:
    """A plan that is ready to run."""

    def run_arrays(self, fixed: Fixed, inputs: tuple[object, ...], outputs: tuple[object, ...], times: NDArray[numpy.int64] | None = None, ring: EventRing | None = None, stop: Stop | None = None, observation: Observation | None = None) -> int | Status | None: ...

    def run_memory(self, fixed: Fixed, inputs: Sequence[int], outputs: Sequence[int], times: NDArray[numpy.int64] | None = None, ring: EventRing | None = None, stop: Stop | None = None, stream: int | None = None) -> Status | None: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...

    @property
    def implementations(self) -> list[str]: ...

    @property
    def counters(self) -> Counters: ...

def make_executor(backend: Backend, plan: Plan, borders: Sequence[tuple[object, Sequence[int]]], contexts: int) -> Executor | Status: ...

def trust_arrays(type: object, probe: object, address: int, dtype: object, first_dim: int) -> bool:
    """Whether arrays can be read in place, tried on one of them."""

class CudaBlock:
    """Memory of a CUDA device; freed after the work queued with it."""

    @property
    def address(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    def used_on(self, stream: int) -> None:
        """Work that uses it was queued on a stream that nobody waits for."""

class CudaStream:
    """A queue of work on a CUDA device."""

    @property
    def handle(self) -> int: ...

    def synchronize(self) -> Status: ...

    def done(self) -> bool | Status: ...

class CudaEvent:
    """A mark in a stream."""

    def record(self, stream: CudaStream) -> Status: ...

    def wait(self, stream: CudaStream) -> Status:
        """The stream goes on when the mark is reached."""

    def synchronize(self) -> Status: ...

    def done(self) -> bool | Status: ...

    def since(self, start: CudaEvent) -> float | Status:
        """Milliseconds from another mark to this one."""

class CudaCounters:
    """How runs reached the device."""

    @property
    def captures(self) -> int: ...

    @property
    def updates(self) -> int: ...

    @property
    def replays(self) -> int: ...

    @property
    def plain(self) -> int: ...

class CudaBackend(Backend):
    """An NVIDIA GPU."""

    @property
    def index(self) -> int: ...

    @property
    def capability(self) -> int: ...

    @property
    def device_name(self) -> str: ...

    def load(self, cubin: bytes) -> Module | Status:
        """A CUBIN for this device."""

    def block(self, bytes: int, stream: int | None = None) -> CudaBlock | Status:
        """Memory, at once or in the order of a stream."""

    def upload(self, to: int, from_: NDArray[numpy.uint8]) -> Status: ...

    def download(self, to: NDArray[numpy.uint8], from_: int) -> Status: ...

    def clear(self, memory: int, bytes: int) -> Status: ...

    def synchronize(self) -> Status: ...

    def reported(self) -> Status:
        """
        What kernels of queued runs that are done could not compute, told once.
        """

    def stream(self) -> CudaStream | Status: ...

    def wrap(self, handle: int) -> CudaStream:
        """Somebody else's stream."""

    def event(self, timing: bool = True) -> CudaEvent | Status: ...

    def memory(self) -> MemoryStatistics:
        """Statistics of the device's pool."""

    def pinned(self) -> MemoryStatistics:
        """Statistics of the page-locked pool."""

    def trim(self) -> int:
        """Give cached memory back; returns how many bytes."""

    def counters(self) -> CudaCounters: ...

    def declined(self) -> list[str]:
        """Why plans run kernel by kernel that could have been a graph."""

def cuda_backend(index: int, search: Search) -> CudaBackend | Status:
    """Opens the device at an index."""

def cuda_capsule(address: int, shape: Sequence[int], strides: Sequence[int], code: int, bits: int, device: int, owner: object) -> object:
    """Memory of a CUDA device as a DLPack capsule; owner keeps it alive."""

def read_capsule(tensor: object) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, int], int, int, object]:
    """
    What a DLPack tensor or capsule shows: address, shape, strides, device, code, bits, owner.
    """

def nvrtc_version() -> tuple[Status, int, int]:
    """Of the NVRTC that is loaded: (status, major, minor)."""

def nvrtc_compile(source: str, name: str, arch: str, options: Sequence[str] = []) -> tuple[Status, bytes, str]:
    """
    The CUBIN of a CUDA C++ text for an architecture (sm_90a): (status, cubin, log). Needs no device.
    """

def trust_dtype(dtype: object, code: int, bits: int) -> None:
    """NumPy's one object for a type, and DLPack's words for it."""

def knows_tensors(type: object) -> bool:
    """
    Whether tensors of a type are read and made without a call into Python.
    """

def show_tensor(tensor: object) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int], tuple[int, int]] | None:
    """
    Shape, strides in elements, DLPack's type and device of a tensor that can be read in place; None for any other.
    """

class DispatchCounters:
    """What a table of ops has done since it was made."""

    @property
    def hits(self) -> int: ...

    @property
    def misses(self) -> int: ...

    @property
    def evictions(self) -> int: ...

    @property
    def entries(self) -> int: ...

class Ops:
    """Single ops by what a call looks like: a look-up and a launch."""

    def __init__(self, capacity: int) -> None: ...

    def run(self, op: int, policy: object, attributes: tuple[object, ...], operands: tuple[object, ...], out: object) -> object:
        """
        The result; None where it is not known; a number where the caller must act; a Status.
        """

    def put(self, op: int, policy: object, attributes: tuple[object, ...], operands: tuple[object, ...], executor: Executor | None, fixed: Fixed | None, inputs: Sequence[int], shape: Sequence[int], dtype: tuple[int, int], array_dtype: object, copies: int, payload: object) -> None:
        """What the signature of this call means from now on."""

    def payload(self, op: int, policy: object, attributes: tuple[object, ...], operands: tuple[object, ...]) -> object:
        """What was put beside a signature, or None."""

    @staticmethod
    def unread(operands: tuple[object, ...]) -> int:
        """
        Operands, by bit, that must be brought to another form; -1: one asks for a gradient.
        """

    def know_policy(self, policy: object, number: int) -> None: ...

    def clear(self) -> None: ...

    @property
    def counters(self) -> DispatchCounters: ...

class TensorRun:
    """Runs of a program on tensors that lie on its device."""

    def __init__(self, executor: Executor, inputs: Sequence[tuple[str, Sequence[int], tuple[int, int], object]], outputs: Sequence[tuple[str, Sequence[int], tuple[int, int], object]], device_type: int, device_index: int) -> None: ...

    def fits(self, given: dict[str, object]) -> bool:
        """Whether run() would take them."""

    def run(self, fixed: Fixed, given: dict[str, object], stop: Stop | None = None) -> dict[str, object] | Status | None: ...

def set_host_kernels(find: object) -> None:
    """Who finds the Python functions that plans call."""
