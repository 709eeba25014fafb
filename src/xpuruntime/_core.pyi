"""
The C++ core of xpuruntime. Private: use xpuruntime.runtime and xpuruntime.profiler.
"""

from collections.abc import Callable, Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


class Status:
    """The outcome of an operation: a code, a message and advice."""

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def advice(self) -> str: ...

    @property
    def refusals(self) -> list[tuple[int, str, str]]:
        """Calls that libraries refused: (position, reason, advice)."""

    @property
    def ok(self) -> bool: ...

class LibraryInfo:
    """Facts about a vendor's shared library."""

    @property
    def status(self) -> Status: ...

    @property
    def path(self) -> str: ...

    @property
    def file_version(self) -> str: ...

    @property
    def absent(self) -> list[str]: ...

class Search:
    """Where to look for a shared library."""

    def __init__(self, override_path: str = '', folders: Sequence[str] = []) -> None: ...

    @property
    def override_path(self) -> str: ...

    @property
    def folders(self) -> list[str]: ...

def library_names() -> list[str]:
    """Return the names of the libraries that the core knows."""

def library_title(name: str) -> str:
    """Return the display name of a library."""

def library_variable(name: str) -> str:
    """
    Return the environment variable that overrides the search for a library.
    """

def library_info(name: str) -> LibraryInfo:
    """Return the facts about a library. Loads nothing."""

def open_library(name: str, search: Search) -> Status:
    """Load a library, once. An absent one is a Status, not an exception."""

class Cache:
    """A cache of core 0; sizes in bytes."""

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
    """Return facts about the host processor."""

def cuda_facts(search: Search) -> tuple[Status, CudaFacts]:
    """Load the CUDA driver and describe its devices: (status, facts)."""

EVENT_BYTES: int = 48

def now_ns() -> int:
    """Return the monotonic clock that stamps the events, in nanoseconds."""

class EventRing:
    """Fixed-size ring of events from many threads."""

    def __init__(self, capacity: int) -> None: ...

    def record(self, kind: int, name: int, step: int, payload: int) -> bool:
        """Record an event now; False when the ring is full."""

    def complete(self, name: int, start_ns: int, duration_ns: int, step: int, payload: int) -> bool:
        """Record a finished span; False when the ring is full."""

    def drain(self, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """Move events into a byte view of a record array; return their number."""

    def intern(self, name: str) -> int:
        """Return the id of a name."""

    def names(self) -> list[str]:
        """Return all names; the index is the id."""

    @property
    def capacity(self) -> int: ...

    @property
    def pending(self) -> int: ...

    @property
    def dropped(self) -> int: ...

class DeviceActivity:
    """A kernel, copy or fill that the driver recorded."""

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
    """The driver's record of one run."""

    def __init__(self) -> None: ...

    @property
    def activities(self) -> list[DeviceActivity]: ...

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
    """Load NVTX if it is installed, and enable ranges."""

def nvtx_active() -> bool: ...

def nvtx_each_call(on: bool) -> None:
    """
    Give each kernel call a range of its own; plans then run as single launches.
    """

def nvtx_push(name: str) -> int: ...

def nvtx_pop() -> int: ...

def nvtx_mark(name: str) -> None: ...

class MemoryStatistics:
    """Statistics of a memory pool, in bytes."""

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
    """Allocate a block of the host's pool as a byte array, 64-byte aligned."""

def address(bytes: NDArray[numpy.uint8]) -> int:
    """Return the address of a byte array."""

def dlpack_capsule(address: int, shape: Sequence[int], strides: Sequence[int], code: int, bits: int, owner: object) -> object:
    """Return memory as a DLPack capsule; owner keeps it alive."""

def bfloat_words(tensor: object) -> NDArray[numpy.uint16]:
    """Return a uint16 view of a bfloat16 tensor of any library."""

def host_memory() -> MemoryStatistics:
    """Return statistics of the host's pool."""

def trim_host_memory() -> int:
    """Free cached blocks; return the number of bytes."""

class MapBy(enum.Enum):
    """The kind of file that object code is mapped from."""

    ANY = 0

    MEMFD = 1

    FILE = 2

class Module:
    """Object code, mapped into this process."""

    @property
    def mapped_by(self) -> str: ...

    def has(self, symbol: str) -> bool: ...

    def text(self) -> bytes:
        """Return the executable segments as they are in memory now."""

def load_module(code: bytes, how: MapBy = ...) -> Module | Status:
    """Map an ELF shared object. The caller must have checked its digest."""

def missing_requirements(required: Sequence[str]) -> list[str]:
    """
    Return those of the instruction sets and libraries that this machine lacks.
    """

class Backend:
    """A device driver."""

    @property
    def name(self) -> str: ...

    @property
    def threads(self) -> int: ...

class Dispatch:
    """A kernel call that the null backend recorded."""

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
    """A backend that computes nothing and records every dispatch."""

    def dispatches(self) -> list[Dispatch]: ...

    def forget(self) -> None: ...

def cpu_backend(threads: int) -> Backend:
    """Return the CPU backend on that many threads."""

def null_backend() -> NullBackend: ...

def python_backend(driver: object) -> Backend:
    """Return a backend whose driver is a Python object."""

class PlanStore:
    """Where compiled plans of vendors' libraries are kept."""

    @property
    def name(self) -> str: ...

def plan_store(name: str, get: Callable[[str], bytes], put: Callable[[str, bytes], None]) -> PlanStore:
    """
    Keep plans by functions. ``get`` returns no bytes for an absent plan. Stores of one name have the same entries.
    """

class Plan:
    """
    Calls over slots of memory: arena, inputs, outputs, weights and states.
    """

    def __init__(self, name: str, arena_bytes: int, inputs: int, outputs: int, weights: int, batch: int, module: Module | None, io_bytes: Sequence[int] = []) -> None: ...

    def add_call(self, kernel: str, symbol: str, args: Sequence[tuple[int, int]], inputs: int, params: list[int | float], tasks: int, grain: int, scratch_bytes: int, library: str = '', options: dict[str, object] = {}, specs: Sequence[tuple[str, Sequence[int], Sequence[int]]] = [], nodes: str = '') -> None: ...

    def set_own_module(self, module: Module | None) -> None:
        """Set the module of the last call, if it is not the plan's."""

    def keep_plans_in(self, store: PlanStore) -> None:
        """
        Set where libraries keep the plans that they compile for the calls so far.
        """

    def add_arena_part(self, offset: int, bytes: int, first: int, last: int) -> None:
        """Add a part of the arena that calls from the first to the last use."""

    def add_output_copy(self, from_: tuple[int, int], output: int, bytes: int) -> None: ...

class WeightBindings:
    """The addresses of a plan's weights and states."""

    def __init__(self, memory: Sequence[int], exclusive: bool, owner: object) -> None: ...

    def share_state_lock(self, other: WeightBindings) -> None: ...

class Counters:
    """Counts of an executor."""

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
    """A flag that stops the runs it is passed to after their current kernel."""

    def __init__(self) -> None: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

class Executor:
    """A plan that is ready to run."""

    def run_arrays(self, weights: WeightBindings, inputs: tuple[object, ...], outputs: tuple[object, ...], times: NDArray[numpy.int64] | None = None, ring: EventRing | None = None, stop: Stop | None = None, observation: Observation | None = None) -> int | Status | None: ...

    def run_memory(self, weights: WeightBindings, inputs: Sequence[int], outputs: Sequence[int], times: NDArray[numpy.int64] | None = None, ring: EventRing | None = None, stop: Stop | None = None, stream: int | None = None) -> Status | None: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...

    @property
    def implementations(self) -> list[str]: ...

    @property
    def called_code(self) -> list[tuple[str, bytes]]:
        """
        For each call, the name and the machine code of the function that a run calls.
        """

    def run_bytes(self, host: bool) -> int:
        """
        Return the bytes that a run takes from a pool; host: with copies of host arrays.
        """

    @property
    def counters(self) -> Counters: ...

class ArenaPool:
    """Memory of runs that several executors of one device share."""

    def __init__(self, backend: Backend) -> None: ...

    def set_limit(self, bytes: int) -> None:
        """Limit the bytes of all arenas; 0 = no limit."""

    def trim(self) -> int:
        """Free idle arenas; return the number of bytes."""

    @property
    def held_bytes(self) -> int: ...

    @property
    def peak_bytes(self) -> int: ...

    @property
    def arenas(self) -> int: ...

def make_executor(backend: Backend, plan: Plan, io_specs: Sequence[tuple[object, Sequence[int]]], contexts: int, arenas: ArenaPool | None = None) -> Executor | Status: ...

def trust_arrays(type: object, probe: object, address: int, dtype: object, first_dim: int) -> bool:
    """
    Check the layout of NumPy arrays on one of them; return True if they can be read in place.
    """

class Communicator:
    """One rank of a group that exchanges tensors."""

    @property
    def id(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def device(self) -> int: ...

    def run(self, collective: str, in_: int, out: int, count: int, dtype: str, stream: int = 0) -> Status:
        """Exchange count elements at an address."""

    def exchange(self, collective: str, x: object, out: object) -> Status | None:
        """
        Exchange tensors of one library that are read in place; None for others.
        """

    def check(self) -> Status:
        """Return the first error of the group."""

    def abort(self, reason: str) -> None:
        """End the group."""

def host_communicators(size: int, timeout_s: float) -> list[Communicator]:
    """Return the communicators of a group of threads."""

def nccl_version() -> str | Status:
    """Return NCCL's version."""

def nccl_group_id() -> bytes | Status:
    """Return a new id of a group."""

def nccl_communicator(device: int, rank: int, size: int, group_id: bytes, timeout_s: float) -> Communicator | Status:
    """Join a group of GPUs."""

class CudaBlock:
    """A block of CUDA device memory, freed after the work that uses it."""

    @property
    def address(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    def used_on(self, stream: int) -> None:
        """Record that work queued on a stream uses the block."""

class CudaStream:
    """A CUDA stream."""

    @property
    def handle(self) -> int: ...

    def synchronize(self) -> Status: ...

    def done(self) -> bool | Status: ...

class CudaEvent:
    """A CUDA event."""

    def record(self, stream: CudaStream) -> Status: ...

    def wait(self, stream: CudaStream) -> Status:
        """Make a stream wait for the event."""

    def synchronize(self) -> Status: ...

    def done(self) -> bool | Status: ...

    def since(self, start: CudaEvent) -> float | Status:
        """Return the milliseconds from another event to this one."""

class CudaCounters:
    """Counts of graph launches and single launches."""

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
        """Load a CUBIN for this device."""

    def block(self, bytes: int, stream: int | None = None) -> CudaBlock | Status:
        """Allocate memory, for any stream or for one stream."""

    def upload(self, to: int, from_: NDArray[numpy.uint8]) -> Status: ...

    def download(self, to: NDArray[numpy.uint8], from_: int) -> Status: ...

    def clear(self, memory: int, bytes: int) -> Status: ...

    def reaches_peer(self, peer: CudaBackend) -> bool | Status:
        """Return True if copies from the other device need no host memory."""

    def copy_from_peer(self, to: int, stream: int, peer: CudaBackend, from_: int, peer_stream: int, bytes: int) -> Status:
        """
        Queue a copy from another device's memory, after the work of its stream.
        """

    def synchronize(self) -> Status: ...

    def reported(self) -> Status:
        """
        Return the first error that kernels of completed queued runs reported, once.
        """

    def stream(self) -> CudaStream | Status: ...

    def wrap(self, handle: int) -> CudaStream:
        """Wrap a stream that another library owns."""

    def event(self, timing: bool = True) -> CudaEvent | Status: ...

    def memory(self) -> MemoryStatistics:
        """Return statistics of the device's pool."""

    def pinned(self) -> MemoryStatistics:
        """Return statistics of the page-locked pool."""

    def pinned_block(self, bytes: int) -> NDArray[numpy.uint8] | None:
        """
        Allocate a block of page-locked memory as a byte array; it returns to the pool with the last array.
        """

    def trim(self) -> int:
        """Free cached memory; return the number of bytes."""

    def counters(self) -> CudaCounters: ...

    def declined(self) -> list[str]:
        """Return why plans run as single launches although graphs are enabled."""

def cuda_backend(index: int, search: Search) -> CudaBackend | Status:
    """Open the device at an index."""

def cuda_capsule(address: int, shape: Sequence[int], strides: Sequence[int], code: int, bits: int, device: int, owner: object) -> object:
    """Return CUDA memory as a DLPack capsule; owner keeps it alive."""

def read_capsule(tensor: object) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, int], int, int, object]:
    """
    Return the fields of a DLPack tensor or capsule: address, shape, strides, device, code, bits, owner.
    """

def nvrtc_version() -> tuple[Status, int, int]:
    """Return the version of NVRTC: (status, major, minor)."""

def nvrtc_compile(source: str, name: str, arch: str, options: Sequence[str] = []) -> tuple[Status, bytes, str]:
    """
    Compile CUDA C++ to a CUBIN for an architecture (sm_90a): (status, cubin, log). Needs no device.
    """

def trust_dtype(dtype: object, code: int, bits: int) -> None:
    """Register a dtype object of NumPy with DLPack's type codes."""

def knows_tensors(type: object) -> bool:
    """
    Return True if tensors of a type are read and created without a call into Python.
    """

def show_tensor(tensor: object) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int], tuple[int, int]] | None:
    """
    Shape, strides in elements, DLPack's type and device of a tensor that can be read in place; None for any other.
    """

class DispatchCounters:
    """Counts of a table of ops."""

    @property
    def hits(self) -> int: ...

    @property
    def misses(self) -> int: ...

    @property
    def evictions(self) -> int: ...

    @property
    def entries(self) -> int: ...

class Ops:
    """A cache of compiled ops: a call is a lookup and a launch."""

    def __init__(self, capacity: int) -> None: ...

    def run(self, op: int, policy: object, attributes: tuple[object, ...], operands: tuple[object, ...], out: object) -> object:
        """
        Return the output, None if no entry exists, a number if the caller must act, or a Status.
        """

    def put(self, op: int, policy: object, attributes: tuple[object, ...], operands: tuple[object, ...], executor: Executor | None, weights: WeightBindings | None, inputs: Sequence[int], shape: Sequence[int], dtype: tuple[int, int], array_dtype: object, copies: int, payload: object) -> None:
        """Insert an entry for the signature of a call."""

    def payload(self, op: int, policy: object, attributes: tuple[object, ...], operands: tuple[object, ...]) -> object:
        """Return the payload of a signature, or None."""

    @staticmethod
    def unread(operands: tuple[object, ...]) -> int:
        """
        Return a bit mask of operands to convert first; -1: one requires a gradient.
        """

    def know_policy(self, policy: object, number: int) -> None: ...

    def clear(self) -> None: ...

    @property
    def counters(self) -> DispatchCounters: ...

class TensorRun:
    """A runner of a program on tensors that are on its device."""

    def __init__(self, executor: Executor, inputs: Sequence[tuple[str, Sequence[int], tuple[int, int], object]], outputs: Sequence[tuple[str, Sequence[int], tuple[int, int], object]], device_type: int, device_index: int, borrows_arena: bool = False) -> None: ...

    def fits(self, tensors: dict[str, object]) -> bool:
        """Return True if run() would accept the tensors."""

    def run(self, weights: WeightBindings, tensors: dict[str, object], stop: Stop | None = None) -> dict[str, object] | Status | None: ...

class TensorCall:
    """
    Checks the inputs and creates the outputs of a call on tensors of one set of forms, on one device.
    """

    def __init__(self, inputs: Sequence[tuple[str, Sequence[int], tuple[int, int], object]], outputs: Sequence[tuple[str, Sequence[int], tuple[int, int], object]], device_type: int, device_index: int, backend: object) -> None: ...

    def take_buffers(self, type: object, core: CudaBackend, inputs: list[object], outputs: list[object]) -> None:
        """Accept buffers of the runtime, too. inputs, outputs: their specs."""

    def prepare(self, tensors: dict[str, object]) -> tuple[dict[str, object], list[int], int, dict[str, object]] | Status | None:
        """
        Return new outputs by name, the addresses of inputs and outputs, the caller's stream, and the inputs, which must live until the run is queued; None for inputs of other forms; the Status of outputs that cannot be created.
        """

def set_host_kernels(find: object) -> None:
    """Set the lookup of Python functions that plans call."""
