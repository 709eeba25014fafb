"""Run by test_cuda_exhaustion.py in a process of its own, over the simulated driver: `python simulated_exhaustion.py DRIVER CALL KERNELS`.

A whole life (load, bind, runs on arrays, on buffers and on a stream, close) is lived again and again. In life k the call fails from its k-th
use on, until no use is left to fail. Each time the failure has a name, what was loaded before continues working, and nothing is leaked.
"""

from __future__ import annotations

import ctypes
import gc
import sys

# simulated_program takes the file of the kernels from the second argument.
DRIVER, CALL, KERNELS = sys.argv[1:4]
sys.argv = [sys.argv[0], "", KERNELS]

from simulated_program import executor, right, x_of  # noqa: E402

from xpuruntime.errors import OutOfMemory, XpuError  # noqa: E402
from xpuruntime.runtime import Device, DeviceBuffer  # noqa: E402

OUT_OF_MEMORY, UNKNOWN = 2, 999
ALLOCATIONS = ("cuMemAllocFromPoolAsync", "cuMemHostAlloc")

driver = ctypes.CDLL(DRIVER)
driver.simulated_left.restype = ctypes.c_bool
driver.simulated_fail_after.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_long)


def life(seed: int) -> None:
    """Everything that asks the driver for something. Raises what the driver's failure becomes."""
    made = executor()
    made.backend.trim()  # nothing is left to be used again
    try:
        for i in range(3):  # kernel by kernel, then captured, then replayed
            assert right(x_of(seed + i), made.run_arrays([x_of(seed + i)])[0])
        x = DeviceBuffer.from_numpy(x_of(seed), "cuda:0")
        assert right(x_of(seed), made.run({"input": x})["output"].to_numpy())
        queued = made.run({"input": x}, stream=0)["output"]
        assert right(x_of(seed), queued.to_numpy())
    finally:
        made.close()


def blocks() -> int:
    gc.collect()
    Device("cuda:0").backend.trim()  # freed blocks that are kept for the next allocation
    driver.cuCtxSynchronize()
    return int(driver.simulated_blocks())


def main() -> None:
    kept = executor()
    assert right(x_of(0), kept.run_arrays([x_of(0)])[0])
    life(1)  # what is made once and kept is made now
    before, failed, named = blocks(), 0, set()
    for k in range(200):
        driver.simulated_fail_after(CALL.encode(), OUT_OF_MEMORY if CALL in ALLOCATIONS else UNKNOWN, k)
        try:
            life(2)
        except XpuError as error:
            failed += 1
            named.add(type(error).__name__)
        else:
            if driver.simulated_left(CALL.encode()):
                break  # it was not used so often
        finally:
            driver.simulated_fail_after(CALL.encode(), 0, 0)
        assert right(x_of(k), kept.run_arrays([x_of(k)])[0]), k
        assert blocks() == before, (k, blocks(), before)
    else:
        raise AssertionError("there was no end")
    life(3)
    assert blocks() == before
    assert CALL not in ALLOCATIONS or named == {OutOfMemory.__name__}, named
    print(failed, *sorted(named))


main()
