"""Memory of runs over the simulated driver, run by test_simulated_cuda.py: `python simulated_memory.py CASE KERNELS`."""

from __future__ import annotations

import sys

import pytest
from simulated_program import N, W, executor, program, right, x_of

from xpuruntime.errors import DeviceUnavailable, InputError, OutOfMemory
from xpuruntime.runtime import (
    CudaBackend,
    DeviceBuffer,
    Executor,
    MemoryPool,
    empty_pinned,
)
from xpuruntime.types import DType


def memory() -> None:
    made = executor()
    made.run_arrays([x_of(1)])
    for _ in range(2):
        large = executor(arena=1 << 40)
        with pytest.raises(
            OutOfMemory, match=r"cannot allocate 1099511627776 bytes \(1048576 MiB\) on cuda:0"
        ):
            large.run_arrays([x_of(1)])
    assert right(x_of(3), made.run_arrays([x_of(3)])[0])
    held = made.backend.memory()
    assert held["live_bytes"] >= 3 * 4 * N
    made.close()
    assert made.backend.trim() >= 0  # what was given back is free when the device comes to it
    assert made.backend.memory()["live_bytes"] < held["live_bytes"]


def pooled() -> None:
    """Executors of two sizes share the memory of their runs, also of those that are queued on different streams."""
    backend = CudaBackend()
    pool = backend.arena_pool()
    small, large = (Executor(program(arena=size), backend, arenas=pool) for size in (4 * N, 1 << 20))
    for each in (small, large):
        each.bind({"w": W})
    empty = backend.memory()["live_bytes"]
    assert right(x_of(1), small.run_arrays([x_of(1)])[0])
    assert (pool.arenas, pool.held_bytes) == (1, small.run_bytes)
    for seed in range(3):
        for each in (large, small):
            assert right(x_of(seed), each.run_arrays([x_of(seed)])[0])
    assert (pool.arenas, pool.held_bytes, pool.peak_bytes) == (1, large.run_bytes, large.run_bytes)
    assert backend.memory()["live_bytes"] >= empty + large.run_bytes
    streams = [0, backend.new_stream().handle, backend.new_stream().handle]
    inputs = [DeviceBuffer.from_numpy(x_of(i), backend) for i in range(3)]
    queued = [
        (i % 3, (small, large)[i % 2].run({"input": inputs[i % 3]}, stream=streams[i % 3])) for i in range(12)
    ]
    for which, outputs in queued:
        assert right(x_of(which), outputs["output"].to_numpy())
    assert pool.arenas == 1  # a queued run follows the one before
    pool.trim()
    pool.set_limit(small.run_bytes)
    with pytest.raises(
        OutOfMemory, match=rf"needs \d+ bytes for intermediate values.* {small.run_bytes} bytes"
    ):
        large.run_arrays([x_of(1)])
    assert right(x_of(2), small.run_arrays([x_of(2)])[0])
    small.close()
    large.close()
    pool.trim()
    assert pool.held_bytes == 0


def pinned() -> None:
    """Arrays of page-locked memory are copied without a copy in between, and give their memory back."""
    made, backend = executor(), CudaBackend()
    before = MemoryPool("cuda:0").pinned_statistics()
    assert right(x_of(1), made.run_arrays([x_of(1)])[0])
    staged = MemoryPool("cuda:0").pinned_statistics().live_bytes
    assert staged > before.live_bytes
    other = executor()
    x, y = (empty_pinned(N, "float32", backend) for _ in range(2))
    x[:] = x_of(2)
    other.run_arrays([x], [y])
    x[:] = x_of(9)  # the run has read it
    backend.synchronize()
    assert right(x_of(2), y)
    assert MemoryPool("cuda:0").pinned_statistics().live_bytes < staged + 3 * 4 * N + 4096
    part = empty_pinned((4, N), DType.FLOAT32)[2]
    part[:] = x_of(3)
    assert right(x_of(3), other.run_arrays([part])[0])
    assert empty_pinned((2, 3), "bfloat16").dtype == DType.BFLOAT16.numpy
    assert empty_pinned(0).shape == (0,)
    del x, y, part
    assert MemoryPool("cuda:0").pinned_statistics().live_bytes <= staged + 2 * (1 << 20)
    with pytest.raises(DeviceUnavailable, match="has no page-locked memory"):
        empty_pinned(8, device="cpu")
    with pytest.raises(InputError, match="a shape of whole numbers"):
        empty_pinned((2, -1))
    with pytest.raises(InputError, match=r"below a byte; got int4\. Use int8 or a wider type"):
        empty_pinned(8, "int4")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
