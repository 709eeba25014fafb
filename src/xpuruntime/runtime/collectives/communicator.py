"""Communicator: one rank of a group of devices that exchange tensors.

    comm = Communicator.join("/tmp/group", rank=0, size=2, device="cuda:0")     # one process for each rank
    total = comm.all_reduce(x)                                                  # queued on the caller's stream
    first, second = Communicator.local(["cuda:0", "cuda:1"])                    # one process, one thread for each rank

Every rank calls the same collectives in the same order. GPUs exchange through NCCL, ranks on the CPU are threads of one process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np

from ... import _core
from ...errors import DeviceUnavailable, InputError, RankLost
from ...targets import DeviceId
from ...types import DType, TensorSpec
from ..backends.base import RuntimeBackend
from ..device import open_library
from ..memory.buffer import DeviceBuffer, backend_of, host_array
from .rank_stores import RankStore, rank_store
from .watch import RankWatch

__all__ = ["Communicator"]

_NCCL_SETTINGS = {
    "NCCL_NVLS_ENABLE": "0",  # NVLink multicast: an error in it can stop the host's GPUs
    "NCCL_GRAPH_REGISTER": "0",  # graphs use memory of stream-ordered pools, which cannot be registered
}
_POLL_S = 0.02
_CUDA = 2  # kDLCUDA


@runtime_checkable
class ForeignPlaced(Protocol):
    """A tensor of another library, which says where it is."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's kind and index of the device."""
        ...


class Communicator:
    """One rank of a group. Make it with ``join`` or ``local``.

    rank, size: this rank, and the number of ranks. device: where its tensors are.

    After a rank has ended, every call raises RankLost, and so does a run that waits for that rank.
    """

    def __init__(self, core: _core.Communicator, backend: RuntimeBackend) -> None:
        self._core, self.backend = core, backend
        self.rank, self.size = core.rank, core.size
        self._who = f"rank {self.rank} of {self.size} on {backend.device}"
        self._watch: RankWatch | None = None
        self._closed = False

    @property
    def device(self) -> DeviceId:
        """Return the device of this rank."""
        return self.backend.device

    @property
    def id(self) -> int:
        """Return the number that identifies it in the core. Raises RankLost, RunError."""
        self.check()
        return self._core.id

    @classmethod
    def join(
        cls,
        store: Any,
        *,
        rank: int,
        size: int,
        device: Any,
        name: str = "group",
        timeout_s: float = 60.0,
        lost_after_s: float = 6.0,
    ) -> Communicator:
        """Join a group of processes as one rank. Return when all have joined.

        store:  a folder that all ranks see and that no other group has used, or a store of ``torch.distributed``.
        device: the GPU of this rank, such as ``"cuda:0"``. No other rank may use it.
        name:   distinguishes the groups of one store.
        timeout_s: how long to wait for the other ranks.
        lost_after_s: time without a sign of life after which a rank counts as ended. Use more if processes are suspended or debugged.
        Raises InputError for a rank that is out of range or taken, DeviceUnavailable without NCCL, RankLost if a rank does not come.
        """
        who = f"rank {rank} of {size}"
        if not (isinstance(size, int) and isinstance(rank, int) and size > 0 and 0 <= rank < size):
            raise InputError(
                "communicator",
                "rank must be below size",
                got=f"rank={rank}, size={size}",
                do="Give ranks from 0 to size - 1.",
            )
        backend = _cuda_backend(device, who)
        _open_nccl(who)
        kept = rank_store(store)
        if kept.look(f"{name}/process/{rank}") is not None:
            do = "Give each rank its own number, and each group a new folder or name."
            raise InputError(who, "has joined this group already", got=f"{kept!r}, name={name!r}", do=do)
        communicator: list[Communicator] = []
        watch = RankWatch(
            kept,
            name=name,
            rank=rank,
            size=size,
            lost_after_s=lost_after_s,
            on_lost=lambda reason: communicator[0]._core.abort(reason),
            failed=lambda: communicator[0].failure,
        )
        watch.announce()
        until = time.monotonic() + timeout_s
        if rank == 0:
            kept.put(f"{name}/id", _group_id(who))
        group_id = _waited(kept, f"{name}/id", until, who, "rank 0 did not come")
        for other in range(size):
            _waited(kept, f"{name}/process/{other}", until, who, f"rank {other} did not come")
        left = max(until - time.monotonic(), 1.0)
        core = _core.nccl_communicator(backend.device.index, rank, size, group_id, left)
        if isinstance(core, _core.Status):
            raise RankLost(who, "could not join its group", got=core.message, do=core.advice)
        communicator.append(cls(core, backend))
        communicator[0]._watch = watch
        watch.start()
        return communicator[0]

    @classmethod
    def local(cls, devices: Sequence[Any], *, timeout_s: float = 60.0) -> tuple[Communicator, ...]:
        """Return the communicators of a group in this process, one for each device. Use each in a thread of its own.

        devices: GPUs, all different, or ``"cpu"`` as often as there are ranks.
        timeout_s: how long ranks on the CPU wait for each other, and GPUs to join.
        Raises InputError, DeviceUnavailable.
        """
        backends = [backend_of(d) for d in devices]
        kinds = {b.kind for b in backends}
        if not backends or kinds - {"cpu", "cuda"} or len(kinds) > 1:
            got = ", ".join(str(b.device) for b in backends) or "no device"
            raise InputError(
                "group of ranks",
                "needs devices that are all GPUs or all the CPU",
                got=got,
                do="Give one kind of device.",
            )
        if kinds == {"cpu"}:
            cores = _core.host_communicators(len(backends), timeout_s)
            return tuple(cls(c, b) for c, b in zip(cores, backends, strict=True))
        indices = [b.device.index for b in backends]
        if len(set(indices)) < len(indices):
            raise InputError(
                "group of ranks",
                "needs a GPU for each rank",
                got=", ".join(map(str, devices)),
                do="Give as many different GPUs as ranks.",
            )
        return cls._local_gpus(backends, timeout_s)

    @classmethod
    def _local_gpus(cls, backends: Sequence[RuntimeBackend], timeout_s: float) -> tuple[Communicator, ...]:
        size, who = len(backends), "group of ranks"
        _open_nccl(who)
        group_id = _group_id(who)
        joined: list[_core.Communicator | _core.Status | None] = [None] * size

        def join(rank: int) -> None:
            index = backends[rank].device.index
            joined[rank] = _core.nccl_communicator(index, rank, size, group_id, timeout_s)

        threads = [threading.Thread(target=join, args=(r,), daemon=True) for r in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cores = []
        for core in joined:
            if not isinstance(core, _core.Communicator):
                message, advice = ("it gave no result", "") if core is None else (core.message, core.advice)
                raise DeviceUnavailable(who, "cannot connect its GPUs", got=message, do=advice)
            cores.append(core)
        return tuple(cls(c, b) for c, b in zip(cores, backends, strict=True))

    # ── collectives ──

    def all_reduce(self, x: Any, *, out: Any = None, stream: int | None = None) -> Any:
        """Return the sum of every rank's ``x``, the same on all ranks.

        x:   a tensor on this rank's device: a DeviceBuffer, or a tensor of a library with DLPack.
        out: a tensor for the result, which may be ``x``. Default: a new DeviceBuffer.
        stream: the stream that the work is queued on. Default: the one that PyTorch currently uses on the device, else the default stream.
        Raises InputError, RankLost, RunError.
        """
        return self._run("all_reduce", x, out, stream)

    def all_gather(self, x: Any, *, out: Any = None, stream: int | None = None) -> Any:
        """Return every rank's ``x``, concatenated by rank along the first dim. Parameters are those of ``all_reduce``."""
        return self._run("all_gather", x, out, stream)

    def reduce_scatter(self, x: Any, *, out: Any = None, stream: int | None = None) -> Any:
        """Return part number ``rank`` of ``size`` equal parts of the sum's first dim. Parameters are those of ``all_reduce``."""
        return self._run("reduce_scatter", x, out, stream)

    def _run(self, name: str, x: Any, out: Any, stream: int | None) -> Any:
        if stream is None and out is not None and (direct := self._core.exchange(name, x, out)) is not None:
            if not direct.ok:
                self._raise(direct)
            return out
        if stream is None:
            stream = self.backend.current_stream()
        buffer = self._buffer(x, "x", stream)
        spec = self._result(name, buffer.spec)
        if out is None:
            result = self._allocated(spec, stream)
        else:
            result = buffer if out is x else self._buffer(out, "out", stream)
        if (result.spec.shape, result.spec.dtype) != (spec.shape, spec.dtype):
            raise InputError(
                self._who,
                f"out of {name} must be {spec}",
                got=result.spec,
                do="Give an out of that type and shape, or leave it out.",
            )
        if name != "all_reduce" and result.address == buffer.address:
            raise InputError(
                self._who,
                f"{name} needs memory of its own for out",
                got="the memory of x",
                do="Give another tensor as out, or leave it out.",
            )
        count = (buffer.spec.size_bytes or 0) // (buffer.spec.dtype.bits // 8)
        status = self._core.run(name, buffer.address, result.address, count, spec.dtype.value, stream=stream)
        if not status.ok:
            self._raise(status)
        if self.backend.stages:
            for each in (buffer, result):
                each.native_handle.used_on(stream)
            result.pending = stream
        return result if out is None else out

    def _result(self, name: str, spec: TensorSpec) -> TensorSpec:
        shape = tuple(int(d) for d in spec.shape if isinstance(d, int))
        if name == "all_reduce":
            return TensorSpec(shape, spec.dtype)
        rows = shape[0] if shape else 0
        if not rows or (name == "reduce_scatter" and rows % self.size):
            problem = "first dim must be a multiple of the ranks" if rows else "operand must have a dim"
            raise InputError(
                self._who,
                f"{name}: the {problem}",
                got=spec,
                do="Give a tensor of a size and type that the collective accepts.",
            )
        rows = rows * self.size if name == "all_gather" else rows // self.size
        return TensorSpec((rows, *shape[1:]), spec.dtype)

    def _allocated(self, spec: TensorSpec, stream: int) -> DeviceBuffer:
        return DeviceBuffer(self.backend.allocate_on(spec.size_bytes or 0, stream), spec, self.backend)

    def _buffer(self, tensor: Any, what: str, stream: int) -> DeviceBuffer:
        """Return a tensor as a buffer over its memory. Raises InputError for one on another device."""
        if not isinstance(tensor, DeviceBuffer):
            try:
                imported = self.backend.import_tensor(tensor, stream)
            except (BufferError, RuntimeError, TypeError, ValueError) as error:  # of the tensor's library
                do = "Detach it from gradients, and copy it to this device."
                raise InputError(self._who, f"cannot read {what}", got=str(error)[:200], do=do) from error
            if imported is None and self.backend.core_is_host:
                array = host_array(tensor)
                if array.flags.c_contiguous and array.flags.aligned:
                    spec = TensorSpec(tuple(array.shape), DType.of(array.dtype))
                    imported = DeviceBuffer(array.reshape(-1).view("uint8"), spec, self.backend)
            if imported is None:
                raise InputError(
                    self._who,
                    f"{what} must be a dense tensor on {self.device}",
                    got=_shown(tensor),
                    do="Copy it to that device, contiguous.",
                )
            return imported
        if not self.backend.shares_memory(tensor.backend):
            raise InputError(
                self._who,
                f"{what} must be on {self.device}",
                got=tensor.backend.device,
                do="Copy it to that device first.",
            )
        if not tensor.spec.is_dense:
            raise InputError(
                self._who,
                f"{what} must be dense",
                got=tensor.spec,
                do="Copy it into a contiguous tensor first.",
            )
        tensor.settle(stream)
        return tensor

    # ── the group's life ──

    @property
    def failure(self) -> str:
        """Return why the group has ended; empty if it has not."""
        status = self._core.check()
        return "" if status.ok else status.message

    def check(self) -> None:
        """Raise RankLost if the group has ended."""
        status = self._core.check()
        if not status.ok:
            self._raise(status)

    def abort(self, reason: str) -> None:
        """End the group: calls of this rank that wait for others return, and later ones raise RankLost with the reason."""
        self._core.abort(reason)

    def close(self) -> None:
        """Leave the group after the queued work. May be called again."""
        if self._closed:
            return
        self._closed = True
        if not self.failure:
            self.backend.synchronize()
        if self._watch is not None:
            self._watch.stop()
        self._core.abort("the communicator is closed")

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Communicator {self._who}>"

    def _raise(self, status: _core.Status) -> NoReturn:
        if status.code == "unsupported":
            raise InputError(self._who, status.message, do=status.advice)
        raise RankLost(self._who, "its group has ended", got=status.message, do=status.advice)


def _shown(tensor: Any) -> str:
    """Return what a tensor is, for messages."""
    if isinstance(tensor, np.ndarray):
        return f"an array of strides {tensor.strides}"
    if isinstance(tensor, ForeignPlaced):
        kind, index = tensor.__dlpack_device__()
        return f"a tensor on cuda:{index}" if int(kind) == _CUDA else "a tensor of the host"
    return type(tensor).__name__


def _cuda_backend(device: Any, who: str) -> RuntimeBackend:
    backend = backend_of(device)
    if backend.kind != "cuda":
        do = "Give a GPU, such as 'cuda:0'. Ranks on the CPU are threads: use Communicator.local."
        raise InputError(who, "joins processes with GPUs only", got=backend.device, do=do)
    return backend


def _group_id(who: str) -> bytes:
    """Return a new id of a group of GPUs. Raises DeviceUnavailable."""
    made = _core.nccl_group_id()
    if isinstance(made, _core.Status):
        raise DeviceUnavailable(who, "cannot make a group of GPUs", got=made.message, do=made.advice)
    return made


def _open_nccl(who: str) -> None:
    """Load NCCL with the settings that this package needs. Raises DeviceUnavailable."""
    for name, value in _NCCL_SETTINGS.items():
        os.environ.setdefault(name, value)
    status = open_library("nccl").status
    if not status.ok:
        problem = "needs NCCL to exchange tensors between GPUs"
        raise DeviceUnavailable(who, problem, got=status.message, do=status.advice)


def _waited(store: RankStore, key: str, until: float, who: str, problem: str) -> bytes:
    """Return a value of the store when it is there. Raises RankLost after the time limit."""
    while True:
        value = store.look(key)
        if value is not None:
            return value
        if time.monotonic() > until:
            do = "Start all ranks at the same time, with the same store, name and size."
            raise RankLost(who, problem, got=f"{store!r}", do=do)
        time.sleep(_POLL_S)
