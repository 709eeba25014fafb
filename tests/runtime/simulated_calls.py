"""What vendors' calls do before the vendor, over the simulated driver, run by test_simulated_cuda.py: `python simulated_calls.py CASE KERNELS`."""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np
from simulated_program import N, executor, right, x_of

from xpuruntime import _core
from xpuruntime.runtime import CudaBackend, DeviceBuffer
from xpuruntime.runtime.backends.cuda import ForeignBlock
from xpuruntime.runtime.execution.tensor_run import tensor_call
from xpuruntime.types import DType, Layout, TensorSpec

X, OTHER = TensorSpec((N,), DType.FLOAT32, "x"), TensorSpec((2, 3), DType.INT32, "other")
Y, Z = TensorSpec((N,), DType.FLOAT32, "y"), TensorSpec((3, 5), DType.FLOAT16, "z")


def call(backend: CudaBackend) -> _core.TensorCall:
    return tensor_call((X, OTHER), (Y, Z), backend)


def calls() -> None:
    """The inputs' addresses, and outputs with the specs of the call, in the device's memory, pending on the caller's stream."""
    backend = CudaBackend()
    ready = call(backend)
    for device in (backend, CudaBackend()):  # another object of the same device
        x = DeviceBuffer.from_numpy(x_of(1), device)
        other = DeviceBuffer.from_numpy(np.arange(6, dtype=np.int32).reshape(2, 3), device)
        made = ready.prepare({"other": other, "x": x})
        assert isinstance(made, tuple)
        outputs, addresses, stream, held = made
        assert held == {"x": x, "other": other}
        assert list(outputs) == ["y", "z"]
        y, z = outputs.values()
        assert isinstance(y, DeviceBuffer)
        assert isinstance(z, DeviceBuffer)
        assert addresses == [x.address, other.address, y.address, z.address]
        assert stream == 0
        assert (y.spec, z.spec) == (Y, Z)
        assert (y.pending, z.pending) == (0, 0)
        assert y.backend is z.backend is backend
        assert (y.native_handle.bytes, z.native_handle.bytes) == (4 * N, 30)
        y.write(x_of(2))
        assert np.array_equal(y.to_numpy(), x_of(2))
        foreign = DeviceBuffer(ForeignBlock(x.address, 4 * N, x), X, device)
        again = ready.prepare({"x": foreign, "other": other})
        assert isinstance(again, tuple)
        assert again[1][:2] == addresses[:2]
        assert not set(again[1][2:]) & set(addresses)


def other_forms() -> None:
    """None for anything but buffers of these forms in this memory."""
    backend = CudaBackend()
    ready = call(backend)
    x, other = DeviceBuffer.empty(X, backend), DeviceBuffer.empty(OTHER, backend)
    padded = TensorSpec(X.shape, X.dtype, layout=Layout((0,), (N + 8,)))
    for wrong in (
        DeviceBuffer.empty(TensorSpec((N + 1,), DType.FLOAT32), backend),
        DeviceBuffer.empty(TensorSpec((N, 1), DType.FLOAT32), backend),
        DeviceBuffer.empty(TensorSpec((N,), DType.INT32), backend),
        DeviceBuffer.empty(padded, backend),
        DeviceBuffer.empty(X, "cpu"),
        x_of(1),
        None,
    ):
        assert ready.prepare({"x": wrong, "other": other}) is None
        assert ready.prepare({"x": x, "other": wrong}) is None
    assert ready.prepare({"x": x}) is None
    assert ready.prepare({"x": x, "another": other}) is None
    assert ready.prepare({"x": x, "other": other, "more": x}) is None
    assert ready.prepare({}) is None
    assert ready.prepare({"x": x, "other": other}) is not None


def order() -> None:
    """The call's stream waits for the stream that still writes an input; nobody waits on the host."""
    made = executor()
    backend = made.backend
    assert isinstance(backend, CudaBackend)
    ready = tensor_call((X,), (Y,), backend)
    one = backend.new_stream()
    queued = made.run({"input": DeviceBuffer.from_numpy(x_of(1), backend)}, stream=one.handle)["output"]
    prepared = ready.prepare({"x": queued})
    assert isinstance(prepared, tuple)
    assert not one.done
    backend.wait(prepared[2])
    assert one.done
    assert right(x_of(1), queued.to_numpy())


def failures() -> None:
    """Without memory for an output, and after another failure of the driver, the status says which, and the outputs before it are freed."""
    backend = CudaBackend()
    ready = call(backend)
    tensors = {"x": DeviceBuffer.empty(X, backend), "other": DeviceBuffer.empty(OTHER, backend)}
    driver = ctypes.CDLL(os.environ["XPU_LIBCUDA"])
    driver.simulated_fail_after.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_long)
    backend.trim()
    live = backend.memory()["live_bytes"]
    for uses in (0, 1):
        for result, code, text in (
            (2, "no_memory", "cannot allocate"),
            (999, "call_failed", "cuMemAllocFromPoolAsync"),
        ):
            driver.simulated_fail_after(b"cuMemAllocFromPoolAsync", result, uses)
            made = ready.prepare(tensors)
            assert isinstance(made, _core.Status)
            assert made.code == code, (made.code, made.message)
            assert text in made.message, made.message
            driver.simulated_fail_after(b"cuMemAllocFromPoolAsync", 0, 0)
            backend.trim()
    backend.synchronize()
    backend.trim()
    assert backend.memory()["live_bytes"] == live
    assert isinstance(ready.prepare(tensors), tuple)


def exported() -> None:
    """Memory that another library read on its stream is not used again before that work is done, also after its capsule ended."""
    backend = CudaBackend()
    stream = backend.new_stream()
    driver = ctypes.CDLL(os.environ["XPU_LIBCUDA"])
    driver.simulated_calls.argtypes = (ctypes.c_char_p,)
    x = DeviceBuffer(backend.allocate_on(4 * N, 0), X, backend)
    x.write(x_of(1))
    capsule = x.__dlpack__(stream=stream.handle)
    waits = driver.simulated_calls(b"cuStreamWaitEvent")
    del capsule, x
    assert driver.simulated_calls(b"cuStreamWaitEvent") > waits  # it is freed after the work of both streams


if __name__ == "__main__":
    globals()[sys.argv[1]]()
