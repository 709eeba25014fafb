"""Emulation of CUDA on a CPU: kernels' texts run unchanged on a machine without a GPU, under checks that a GPU does not make.

``cuda_host``  a target for whole programs: ``check(graph, feeds, target=cuda_host())``
``launches``   single kernels and lowered nodes with arrays; here the sizes of arrays are known, too, and a fault is a RunError
``cuda/``      the emulator itself, C++ headers that every translation unit begins with, and replacements of parts of the prelude. The headers
               are compiled once, to an object file; the units of kernels only call it

A fault names the kernel, the block, the thread and the byte. In a program's run it ends the process, with the message on standard error.

Emulated
    Blocks one after the other, the blocks of a cluster at once. Threads are fibers in an order that a seed draws. Barriers, votes, shuffles with
    masks and widths, atomics, functions of libm. By replacements: cp.async, ldmatrix, movmatrix, mma, wgmma with its fences and swizzled tiles,
    st.async between the blocks of a cluster with their mbarriers, griddepcontrol.

Checked
    - Shared memory: races between threads (only __syncthreads orders a block and __syncwarp a warp; shuffles order nothing), accesses beyond
      the launch's dynamic bytes, and values that nobody wrote, which are NaN.
    - Every access of 2 to 16 bytes: alignment. In ``launches`` every access: inside one of the arrays, and not before griddep_wait where an
      earlier launch may use the array; a thread that returns without the wait.
    - Barriers and warps: threads that wait for others that do not come, lanes at different instructions, lanes that a mask leaves out,
      shuffles from a lane that takes no part.
    - cp.async: memory that is touched before the wait and the barrier, and a thread that returns before its copies have arrived.
    - wgmma: tiles written without fence_proxy_async and a barrier after it, tiles or registers that change before the wait, a missing
      wgmma_fence, accumulators before the wait (NaN), a thread that returns before the wait.
    - Clusters: data that is sent before all blocks have started, to memory in use or to a block that has returned; a wait for another
      number of bytes; an mbarrier that is not initialized; data on its way at the end.
    - Counters that a launch does not leave at zero (``launches``).

Not checked
    - Races on global memory, between blocks too: blocks run one after the other, and fences do nothing.
    - An index beyond one static shared array that stays inside the static shared memory of the library.
    - A __syncwarp of some lanes orders the whole warp. The four warps of a warpgroup do not check each other.
    - TMA (cp.async.bulk), named barriers and mbarriers inside a block are not emulated; speed is not modelled.
"""
