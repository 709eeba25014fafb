"""
The C++ core of xpuruntime. Private: use xpuruntime.runtime and xpuruntime.profiler.
"""

from collections.abc import Sequence
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

def nvtx_open(search: Search) -> Status:
    """Load NVTX, if it is there, and switch ranges on."""

def nvtx_active() -> bool: ...

def nvtx_push(name: str) -> int: ...

def nvtx_pop() -> int: ...

def nvtx_mark(name: str) -> None: ...
