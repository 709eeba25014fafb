"""Faults of CUDA kernels that the emulator promises to find: each is planted in a text whose correct form runs."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from xpuruntime.codegen.cpp.toolchain import cxx_toolchain
from xpuruntime.errors import RunError
from xpuruntime.testing.emulation.launches import EmulatedKernels

THREADS = 64


def run(
    body: str, *, parts: Sequence[str] = (), grid: int = 1, threads: int = THREADS, shared: int = 0, cluster: int = 1,
    late: Sequence[str] = (), outside: str = "",
) -> np.ndarray:  # fmt: skip
    """Launch ``void f(float *x, float *y)`` over x = 0, 1, ... and y = NaN, with 256 floats each; return y."""
    clusters = f", cluster {cluster}" if cluster > 1 else ""
    launch = f"// launch: grid {grid} 1 1, block {threads} 1 1, shared {shared}{clusters}"
    text = f'{outside}\n{launch}\nextern "C" __global__ void f(float *x, float *y) {{\n{body}\n}}'
    x, y = np.arange(256, dtype=np.float32), np.full(256, np.nan, np.float32)
    EmulatedKernels({"f": text}, parts).launch("f", {"x": x, "y": y}, blocks=grid, late=late)
    return y


def faults(message: str, body: str, **options: object) -> None:
    with pytest.raises(RunError, match=message):
        run(body, **options)  # type: ignore[arg-type]


def test_the_emulator_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shlex.join(cxx_toolchain().command)
    script = tmp_path / "counted"
    script.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/starts\nexec {compiler} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("XPU_CACHE_DIR", str(tmp_path / "store"))
    for number in (1.0, 2.0):
        assert run(f"y[threadIdx.x] = {number}f;")[0] == number
    builds = [line.split() for line in (tmp_path / "starts").read_text().splitlines() if " -o " in line]
    assert [("-c" in words) for words in builds] == [True, False, False]


def test_a_kernel_may_use_plain_words() -> None:
    """Names of the emulator's macros do not clash with those of a kernel."""
    y = run("const float HIDDEN = 1, STATE = 2, WORD = 4, REPORT = 8; y[0] = HIDDEN + STATE + WORD + REPORT;")
    assert y[0] == 15


# ── shared memory ──

REVERSED = """
    __shared__ float room[64];
    room[threadIdx.x] = x[threadIdx.x];
    BARRIER
    y[threadIdx.x] = room[63 - threadIdx.x];
"""
WITHIN_WARPS = """
    __shared__ float room[64];
    room[threadIdx.x] = x[threadIdx.x];
    BARRIER
    y[threadIdx.x] = room[threadIdx.x ^ 1];
"""


def test_a_barrier_orders_a_block() -> None:
    y = run(REVERSED.replace("BARRIER", "__syncthreads();"))
    assert np.array_equal(y[:64], np.arange(64)[::-1])
    faults(r"race on byte \d+ of static shared memory: thread \d+ reads what thread \d+ wrote|writes what thread \d+ read",
           REVERSED.replace("BARRIER", ""))  # fmt: skip


def test_a_warps_barrier_orders_a_warp_only() -> None:
    y = run(WITHIN_WARPS.replace("BARRIER", "__syncwarp();"))
    assert np.array_equal(y[:64], np.arange(64) ^ 1)
    faults("race on byte", WITHIN_WARPS.replace("BARRIER", ""))
    faults("race on byte", REVERSED.replace("BARRIER", "__syncwarp();"))


def test_a_shuffle_orders_no_memory() -> None:
    faults("race on byte", WITHIN_WARPS.replace("BARRIER", "y[64] = __shfl_xor_sync(0xffffffffu, x[0], 1);"))


def test_a_buffer_that_is_written_again_needs_a_second_barrier() -> None:
    loop = """
        __shared__ float room[64];
        for (int i = 0; i < 2; ++i) {
            room[threadIdx.x] = x[threadIdx.x + i];
            __syncthreads();
            y[threadIdx.x] = room[63 - threadIdx.x];
            AGAIN
        }
    """
    assert run(loop.replace("AGAIN", "__syncthreads();"))[0] == 64
    faults("race on byte", loop.replace("AGAIN", ""))


def test_dynamic_shared_memory_ends_where_the_launch_says() -> None:
    body = (
        "DYNAMIC_SMEM(room); ((float *)room)[threadIdx.x] = 1; y[threadIdx.x] = ((float *)room)[threadIdx.x];"
    )
    assert run(body, parts=["tensor"], shared=256)[63] == 1
    faults("4 bytes to shared memory at 252, of which the block has 252", body, parts=["tensor"], shared=252)


def test_shared_memory_begins_as_nan() -> None:
    body = "__shared__ float room[64]; y[blockIdx.x] = room[5]; __syncthreads(); if (threadIdx.x == 5) room[5] = 1;"
    assert np.isnan(run(body, grid=3)[:3]).all()


# ── global memory ──


def test_an_index_outside_of_an_array() -> None:
    faults(
        "writes 4 bytes outside all arrays; the nearest, y, has 1024 bytes, and they begin at its byte 1024",
        "y[threadIdx.x + 193] = 0;",
    )
    faults(
        "reads 4 bytes outside all arrays; the nearest, x, has 1024 bytes, and they begin at its byte -4",
        "y[threadIdx.x] = x[(int)threadIdx.x - 1];",
    )


def test_an_address_that_is_not_aligned() -> None:
    body = "struct alignas(16) Four { float x[4]; }; if (threadIdx.x == 0) *(Four *)y = *(const Four *)(x + START);"
    assert run(body.replace("START", "4"))[:4].tolist() == [4, 5, 6, 7]
    faults("16 bytes at an address that is no multiple of 16", body.replace("START", "1"))
    faults("8 bytes at an address that is no multiple of 8", "y[0] = *(double *)(x + 1);")


def test_what_earlier_launches_write_is_there_after_griddep_wait() -> None:
    body = "BEFORE y[threadIdx.x] = x[threadIdx.x]; AFTER"
    assert run(body.replace("BEFORE", "griddep_wait();").replace("AFTER", ""), late=["x"])[9] == 9
    faults(
        "reads x before griddep_wait",
        body.replace("BEFORE", "").replace("AFTER", "griddep_wait();"),
        late=["x"],
    )
    faults("a thread returns without griddep_wait", "if (threadIdx.x != 7) griddep_wait();", late=["x"])


# ── barriers, warps ──


def test_a_barrier_that_only_some_threads_reach() -> None:
    body = "if (threadIdx.x < 32 || threadIdx.x == 63) __syncthreads(); else __shfl_sync(0xffffffffu, 1, 0);"
    faults("threads wait for others that do not come: 33 at __syncthreads, 31 at a shuffle", body)
    assert (
        run("if (threadIdx.x >= 32) return; __syncthreads(); y[threadIdx.x] = 1;")[31] == 1
    )  # those that returned are not waited for


def test_lanes_at_different_instructions_of_a_warp() -> None:
    faults(
        "1 at a shuffle, 31 at a vote",
        "if (threadIdx.x == 3) __shfl_sync(0xffffffffu, 1, 0); else __any_sync(0xffffffffu, 1);",
        threads=32,
    )


def test_masks_of_shuffles() -> None:
    assert (
        run("if (threadIdx.x < 8) y[threadIdx.x] = __shfl_sync(0xffu, x[threadIdx.x], 7);", threads=32)[0]
        == 7
    )
    faults(
        "a shuffle reads lane 9, which does not take part",
        "if (threadIdx.x < 8) y[threadIdx.x] = __shfl_sync(0xffu, x[threadIdx.x], 9);",
        threads=32,
    )
    faults(
        "leaves out the calling lane",
        "if (threadIdx.x < 9) y[threadIdx.x] = __shfl_sync(0xffu, x[threadIdx.x], 7);",
        threads=32,
    )


def test_votes_and_shuffles_compute() -> None:
    body = """
        const unsigned lane = threadIdx.x % 32;
        y[threadIdx.x] = __shfl_down_sync(0xffffffffu, x[lane], 4, 8) + 100 * __shfl_up_sync(0xffffffffu, x[lane], 1);
        y[64 + threadIdx.x] = __ballot_sync(0xffffffffu, lane % 2) == 0xaaaaaaaau && __all_sync(0xffffffffu, 1) && !__any_sync(0xffffffffu, 0);
        y[128 + threadIdx.x] = __syncthreads_count(threadIdx.x < 5) + 10 * __syncthreads_or(threadIdx.x == 9) + 100 * __syncthreads_and(threadIdx.x != 9);
    """
    y, lane = run(body), np.arange(64) % 32
    down = np.where(lane % 8 + 4 < 8, lane + 4, lane)
    assert np.array_equal(y[:64], down + 100 * np.maximum(lane - 1, 0))
    assert (y[64:128] == 1).all()
    assert (y[128:192] == 15).all()


# ── asynchronous copies ──

COPY = """
    DYNAMIC_SMEM(room);
    tensor::cp_async_16(tensor::smem_addr(room) + threadIdx.x * 16, x + FROM, true);
    tensor::cp_async_commit();
    WAIT
    y[threadIdx.x] = ((float *)room)[READ];
    END
"""


def copy(wait: str, read: str, start: str = "threadIdx.x * 4", end: str = "") -> str:
    return COPY.replace("WAIT", wait).replace("READ", read).replace("FROM", start).replace("END", end)


def test_a_copy_is_there_when_it_was_waited_for() -> None:
    options = {"parts": ["tensor"], "shared": 1024}
    assert (
        run(
            copy("tensor::cp_async_wait<0>(); __syncthreads();", "255 - threadIdx.x"),
            parts=["tensor"],
            shared=1024,
        )[0]
        == 255
    )
    under_way = "is read while an asynchronous copy to it is under way"
    faults(under_way, copy("", "threadIdx.x * 4", end="tensor::cp_async_wait<0>();"), **options)
    faults(
        under_way,
        copy("tensor::cp_async_wait<1>();", "threadIdx.x * 4", end="tensor::cp_async_wait<0>();"),
        **options,
    )
    faults(f"{under_way}|race on byte", copy("tensor::cp_async_wait<0>();", "255 - threadIdx.x"), **options)
    faults(
        "a thread returns while its asynchronous copies are under way",
        copy("", "0").replace("y[threadIdx.x]", "// y"),
        **options,
    )
    faults(
        "16 bytes at an address that is no multiple of 16",
        copy("tensor::cp_async_wait<0>();", "0", "1"),
        **options,
    )
    faults(
        "reads 16 bytes outside all arrays",
        copy("tensor::cp_async_wait<0>();", "threadIdx.x * 4", "threadIdx.x * 4 + 4"),
        **options,
    )
    faults(
        "of which the block has 512",
        copy("tensor::cp_async_wait<0>();", "threadIdx.x * 4"),
        parts=["tensor"],
        shared=512,
    )


# ── products of a warpgroup ──

PRODUCT = """
    DYNAMIC_SMEM(room);
    for (int i = threadIdx.x; i < 8192; i += 128) ((unsigned short *)room)[i] = 0x3f80;
    PROXY
    SYNC
    float d[32];
    for (int i = 0; i < 32; ++i) d[i] = 0;
    const hopper::u64 a = hopper::matrix_desc(tensor::smem_addr(room), 0), b = hopper::matrix_desc(tensor::smem_addr(room) + 8192, 0);
    unsigned regs[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    FENCE
    hopper::Wgmma<tensor::Bf16, 32>::ISSUE;
    hopper::wgmma_commit();
    DURING
    WAIT
    y[threadIdx.x] = d[5];
    END
"""
GOOD = {
    "PROXY": "hopper::fence_proxy_async();", "SYNC": "__syncthreads();", "FENCE": "hopper::wgmma_fence();", "ISSUE": "ss(d, a, b, true)",
    "DURING": "", "WAIT": "hopper::wgmma_wait<0>();", "END": "",
}  # fmt: skip


def product(**changed: str) -> str:
    text = PRODUCT
    for word, code in (GOOD | changed).items():
        text = text.replace(word, code)
    return text


@pytest.mark.parametrize(("changed", "message"), [
    ({"PROXY": ""}, "without fence_proxy_async and a barrier after it"),
    ({"PROXY": "", "SYNC": "__syncthreads(); hopper::fence_proxy_async();"}, "without fence_proxy_async and a barrier after it"),
    ({"SYNC": ""}, "race on byte|without fence_proxy_async"),
    ({"FENCE": ""}, "wgmma without a wgmma_fence"),
    ({"DURING": "((unsigned short *)room)[threadIdx.x] = 0;"}, "is written while wgmma reads it|race on byte"),
    ({"ISSUE": "rs(d, regs, b)", "DURING": "regs[1] = threadIdx.x;"}, "registers that wgmma reads have changed"),
    ({"WAIT": ""}, "a thread returns while wgmma runs"),
])  # fmt: skip
def test_products_of_a_warpgroup(changed: dict[str, str], message: str) -> None:
    faults(message, product(**changed), parts=["wgmma"], shared=16384, threads=128)


def test_accumulators_are_there_after_the_wait() -> None:
    assert (run(product(), parts=["wgmma"], shared=16384, threads=128)[:128] == 16).all()
    assert (
        run(product(ISSUE="rs(d, regs, b)"), parts=["wgmma"], shared=16384, threads=128)[:128] == 16
    ).all()
    early = product(DURING="y[threadIdx.x] = d[5];").replace("    y[threadIdx.x] = d[5];\n    \n", "")
    assert np.isnan(run(early, parts=["wgmma"], shared=16384, threads=128)[:128]).all()


# ── clusters ──

SENDS = """
    struct Room { float four[4], two[4]; ClusterBarrier barrier; };
    DYNAMIC_SMEM(memory);
    Room &room = *(Room *)memory;
    if (threadIdx.x == 0) INIT
    cluster_arrive();
    STARTED
    const float four[4] = {(float)blockIdx.x, 2, 3, 4}, two[2] = {5, 6};
    if (threadIdx.x == 3) {
        cluster_st_async(room.four, four, &room.barrier, 1 - blockIdx.x);
        cluster_st_async(room.two, two, &room.barrier, 1 - blockIdx.x);
    }
    RECEIVED
    y[blockIdx.x] = room.four[0];
"""


def sends(init: str = "cluster_barrier_init(&room.barrier);", started: str = "cluster_wait();", received: str = "cluster_barrier_wait(&room.barrier, 24);") -> str:  # fmt: skip
    return SENDS.replace("INIT", init).replace("STARTED", started).replace("RECEIVED", received)


def test_data_that_blocks_of_a_cluster_send() -> None:
    options = {"parts": ["tensor", "cluster"], "shared": 64, "grid": 2, "cluster": 2}
    y = run(sends(), parts=["tensor", "cluster"], shared=64, grid=2, cluster=2)
    assert y[:2].tolist() == [1, 0]
    faults(
        "is read while an asynchronous copy to it is under way|which has returned|under way",
        sends(received=""),
        **options,
    )
    faults("data is sent before cluster_wait", sends(started=""), **options)
    faults("has not initialized its mbarrier|an mbarrier that is not initialized", sends(init=";"), **options)
    faults(
        "at an mbarrier that misses bytes",
        sends(received="cluster_barrier_wait(&room.barrier, 48);"),
        **options,
    )
    faults(
        "an mbarrier waits for 8 bytes, and 24 arrive",
        sends(received="cluster_barrier_wait(&room.barrier, 8);"),
        **options,
    )


TILE = """
    __shared__ tma::Barrier full;
    DYNAMIC_SMEM(room);
    if (threadIdx.x == 0) { INIT }
    cluster_arrive();
    cluster_wait();
    if (threadIdx.x == 0) {
        tma::arrive_expecting(full, BYTES);
        tma::copy(room + AT, x_map, 2, 64, full);
    }
    WAIT
    y[threadIdx.x] = tensor::Bf16::wide(((unsigned short *)room)[threadIdx.x]);
"""


def tile(
    init: str = "tma::init(full, 1);",
    expected: int = 512,
    at: int = 0,
    wait: str = "tma::wait(full, 0);",
    shift: int = 0,
) -> np.ndarray:
    """Copy rows 2 to 5 and columns 64 to 127 of bfloat16 numbers [5, 72]: the last row and the columns from 72 on are zeros."""
    body = (
        TILE.replace("INIT", init)
        .replace("BYTES", str(expected))
        .replace("AT", str(at))
        .replace("WAIT", wait)
    )
    launch = (
        "// launch: grid 1 1 1, block 256 1 1, shared 3072\n// tensor map: argument 0, 5 x 72, row 80, tile 4"
    )
    text = f'{launch}\nextern "C" __global__ void f(float *x, float *y, const __grid_constant__ TensorMap x_map) {{\n{body}\n}}'
    numbers = np.arange(400 + shift, dtype=np.float32).astype(ml_dtypes.bfloat16)
    y = np.full(256, np.nan, np.float32)
    EmulatedKernels({"f": text}, ["tma"]).launch("f", {"x": numbers[shift:], "y": y}, blocks=1)
    return y


def test_tiles_that_tma_copies() -> None:
    """Chunks of 16 bytes are swizzled by their row, and land when the barrier's phase is complete."""
    y = tile().reshape(4, 8, 8)
    rows = (
        np.arange(400, dtype=np.float32)
        .astype(ml_dtypes.bfloat16)
        .astype(np.float32)
        .reshape(5, 80)[2:5, 64:72]
    )
    assert np.array_equal(np.stack([y[r, 0 ^ r] for r in range(3)]), rows)
    assert np.count_nonzero(y) == rows.size
    for message, planted in (
        ("is read while an asynchronous copy to it is under way", {"wait": ""}),
        ("has not initialized its mbarrier", {"init": ";"}),
        ("at an mbarrier that misses bytes", {"expected": 1024}),
        ("copied to shared memory at 512, which is no multiple of 1024", {"at": 512}),
        ("a matrix that does not start at a multiple of 16 bytes", {"shift": 1}),
    ):
        with pytest.raises(RunError, match=message):
            tile(**planted)  # type: ignore[arg-type]


def test_blocks_of_a_cluster_have_static_shared_memory_of_their_own() -> None:
    body = "__shared__ float own; if (threadIdx.x == 0) own = blockIdx.x; __syncthreads(); cluster_arrive(); cluster_wait(); y[blockIdx.x] = own;"
    assert run(body, parts=["cluster"], grid=4, cluster=4)[:4].tolist() == [0, 1, 2, 3]


# ── programs ──


def test_a_fault_in_a_program_ends_the_process_with_its_message() -> None:
    """A program's run has no error for the emulator's faults: its backend knows only binaries."""
    code = """
import numpy as np, xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.runtime import Executor
from xpuruntime.testing.emulation.cuda_host import cuda_host
TEXT = '''extern "C" __global__ void mine(const float *x, float *y) {
    __shared__ float room[64];
    room[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = room[63 - threadIdx.x];
}'''
xrt.register_kernel("activation/mine", op="relu", target="cuda", source=TEXT, launch=lambda call: xrt.Launch(1, 64))
b = ir.GraphBuilder("g")
b.output("y", b.relu(b.input("x", "float32[64]")))
program = xrt.compile(b.build(), target=cuda_host(), policy=xrt.KernelPolicy(activation="mine"))
with Executor(program) as executor:
    executor.run_arrays([np.ones(64, np.float32)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "emulation of CUDA: " in done.stderr, done.stderr
    assert "race on byte" in done.stderr
