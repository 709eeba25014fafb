"""Facts about processors and vendor libraries, as plain values.

Every value has ``to_json()``: data of strings, numbers, booleans, lists and None only. A fact that the system does not
report is ``""``, 0 or None, never a guess. The C++ core reads the facts without the GIL.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .. import _core, env
from ..errors import DeviceUnavailable
from ..plugins import loader as plugins
from ..plugins.vendor_folders import vendor_folders
from ..targets import DeviceId

if TYPE_CHECKING:
    from .backends.base import RuntimeBackend

__all__ = [
    "Cache",
    "CpuFacts",
    "CudaDevice",
    "CudaReport",
    "Device",
    "LibraryStatus",
    "Status",
    "cpu",
    "cuda",
    "cuda_devices",
    "libraries",
    "open_library",
    "search",
]


def _plain(value: Any) -> Any:
    """Convert tuples to lists, so that a value equals its JSON form."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


class _JsonFields:
    """``to_json()`` for a dataclass: its fields, nested ones included."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the value as plain data."""
        plain: dict[str, Any] = _plain(asdict(self))  # type: ignore[call-overload]
        return plain


@dataclass(frozen=True, slots=True)
class Status(_JsonFields):
    """The result of an operation. If it failed, ``message`` is the reason and ``advice`` the remedy.

    ``code`` is one of ok, not_loaded, not_found, unreadable, symbol_missing, no_device, call_failed, unsupported, invalid, overlapping, no_memory,
    cancelled.
    """

    code: str
    message: str
    advice: str

    @property
    def ok(self) -> bool:
        """True when ``code`` is "ok"."""
        return self.code == "ok"


@dataclass(frozen=True, slots=True)
class Cache(_JsonFields):
    """One cache of core 0, with sizes in bytes. ``shared_by``: number of logical cores that share it; 0 if unknown."""

    level: int
    type: str
    bytes: int
    line_bytes: int
    shared_by: int


@dataclass(frozen=True, slots=True)
class CpuFacts(_JsonFields):
    """The host processor.

    ``flags`` holds the instruction sets that both the processor and the operating system support (a process that uses AMX
    must also request the tile state from the kernel). ``level`` is the x86-64 level of the System V psABI; "" on other architectures.
    ``usable_cores`` is the number of cores in the process's affinity mask, at most the cgroup's quota in whole cores.
    """

    architecture: str
    vendor: str
    model: str
    level: str
    flags: tuple[str, ...]
    caches: tuple[Cache, ...]
    logical_cores: int
    physical_cores: int
    affinity_cores: int
    quota_cores: float | None
    usable_cores: int
    memory_bytes: int
    memory_limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class CudaDevice(_JsonFields):
    """One CUDA device, as its driver describes it. Clocks are maxima in kHz; memory is in bytes; ``shared_memory_per_block`` is the opt-in maximum."""

    index: int
    name: str
    uuid: str
    pci_bus_id: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    shared_memory_per_block: int
    memory_bytes: int
    clock_khz: int
    memory_clock_khz: int
    driver_version: str

    @property
    def target(self) -> str:
        """Return the target that code for this device is generated for: ``cuda:sm_90``."""
        major, minor = self.compute_capability
        return f"cuda:sm_{major}{minor}"


@dataclass(frozen=True, slots=True)
class CudaReport(_JsonFields):
    """The CUDA driver and its devices. If there are none, ``status`` holds the reason.

    ``driver_api`` is the highest CUDA version that the driver supports ("13.0"), ``driver_version`` the version of its kernel
    module ("580.65.06").
    """

    status: Status
    driver_api: str
    driver_version: str
    devices: tuple[CudaDevice, ...]


@dataclass(frozen=True, slots=True)
class LibraryStatus(_JsonFields):
    """A vendor's shared library: the loaded file, or the reason why none is loaded.

    ``version`` is the part after ``.so.`` of the resolved file name. ``absent`` lists optional functions that this version
    lacks, each with the version that introduced it.
    """

    name: str
    title: str
    status: Status
    path: str
    version: str
    absent: tuple[str, ...]

    @property
    def loaded(self) -> bool:
        """True if the library is loaded and its function table is filled."""
        return self.status.ok


def _status(status: _core.Status) -> Status:
    return Status(status.code, status.message, status.advice)


def search(name: str) -> _core.Search:
    """Return the search path of a library: the environment's override, otherwise the loader's path and the folders of ``vendor_folders``.

    Raises KeyError for a name that the core does not know.
    """
    override = env.get_path(_core.library_variable(name))
    if override is not None:
        return _core.Search(str(override))
    return _core.Search(folders=vendor_folders())


def open_library(name: str) -> LibraryStatus:
    """Load a library, once per process, and return its status. A missing library is a status, not an exception."""
    _core.open_library(name, search(name))
    return _library_status(name)


def _library_status(name: str) -> LibraryStatus:
    info = _core.library_info(name)
    return LibraryStatus(
        name=name,
        title=_core.library_title(name),
        status=_status(info.status),
        path=info.path,
        version=info.file_version,
        absent=tuple(info.absent),
    )


def libraries(*, load: bool = True) -> tuple[LibraryStatus, ...]:
    """Return the status of every vendor library that the core knows. ``load=False`` loads nothing and reports the current state."""
    return tuple(open_library(name) if load else _library_status(name) for name in _core.library_names())


def cpu() -> CpuFacts:
    """Return the host processor. It is read on each call, since affinity and quota may change."""
    facts = _core.cpu_facts()
    return CpuFacts(
        architecture=facts.architecture,
        vendor=facts.vendor,
        model=facts.model,
        level=facts.level,
        flags=tuple(facts.flags),
        caches=tuple(Cache(c.level, c.type, c.bytes, c.line_bytes, c.shared_by) for c in facts.caches),
        logical_cores=facts.logical_cores,
        physical_cores=facts.physical_cores,
        affinity_cores=facts.affinity_cores,
        quota_cores=facts.quota_cores or None,
        usable_cores=facts.usable_cores,
        memory_bytes=facts.memory_bytes,
        memory_limit_bytes=facts.memory_limit_bytes or None,
    )


def cuda() -> CudaReport:
    """Return the CUDA driver and its devices. Loads the driver library, but creates no context and allocates no device memory."""
    status, facts = _core.cuda_facts(search("cuda"))
    api = facts.driver_api
    return CudaReport(
        status=_status(status),
        driver_api=f"{api // 1000}.{api % 1000 // 10}" if api else "",
        driver_version=facts.driver_version,
        devices=tuple(
            CudaDevice(
                index=device.index,
                name=device.name,
                uuid=device.uuid,
                pci_bus_id=device.pci_bus_id,
                compute_capability=device.compute_capability,
                multiprocessors=device.multiprocessors,
                shared_memory_per_block=device.shared_memory_per_block,
                memory_bytes=device.memory_bytes,
                clock_khz=device.clock_khz,
                memory_clock_khz=device.memory_clock_khz,
                driver_version=facts.driver_version,
            )
            for device in facts.devices
        ),
    )


def cuda_devices() -> tuple[CudaDevice, ...]:
    """Return the CUDA devices of this machine; empty if there are none (:func:`cuda` says why)."""
    return cuda().devices


# Kind of device -> dotted name of its backend class, so that importing this module imports no backend.
_BACKENDS = {
    "cpu": "xpuruntime.runtime.backends.cpu:CpuBackend",
    "cuda": "xpuruntime.runtime.backends.cuda:CudaBackend",
}


class Device:
    """A device that programs run on: ``Device()`` is the host, ``Device("cuda:0")`` the first CUDA device.

    ``id`` is its name as a DeviceId; ``backend`` drives it. Other packages add backends through the entry-point group
    ``xpuruntime.backends``, by kind of device. Raises DeviceUnavailable for a device without a backend.
    """

    def __init__(self, name: str | DeviceId = "cpu") -> None:
        self.id = DeviceId.parse("cpu" if name == "auto" else name)
        dotted = _BACKENDS.get(self.id.kind)
        load = plugins.entry_points("xpuruntime.backends").get(self.id.kind) if dotted is None else None
        if dotted is None and load is None:
            raise DeviceUnavailable(
                f"device {self.id}",
                "has no backend for native programs",
                do=f"Use {', '.join(_BACKENDS)}, or install a package with a backend for it.",
            )
        backend = plugins.load_dotted(dotted) if dotted is not None else load()  # type: ignore[misc]
        self.backend: RuntimeBackend = backend.at(self.id.index) if self.id.index else backend()

    def __repr__(self) -> str:
        return f"Device({str(self.id)!r})"
