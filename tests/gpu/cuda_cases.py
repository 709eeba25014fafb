"""Run packed CUDA cases (support.cuda_cases) on this machine's GPU with CuPy alone: compile, launch, compare, time.

    python tests/gpu/cuda_cases.py FOLDER RESULT.json

Texts are compiled by NVRTC in parallel processes. Scratch memory starts as NaNs, so what a kernel should not read shows.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from gpu_report import machine

OPTIONS = ("--std=c++17", "--device-as-default-execution-space", "--disable-warnings")


def nvrtc() -> ctypes.CDLL:
    """NVRTC as PyTorch's wheels or the toolkit bring it."""
    import site

    places = [Path(p, "nvidia") for p in (*site.getsitepackages(), site.getusersitepackages())]
    folders = [f for p in places for f in p.glob("*/lib")] + [*Path("/usr/local").glob("cuda*/lib64")]
    for folder in folders:
        found = [f for f in sorted(folder.glob("libnvrtc.so*")) if "alt" not in f.name]
        builtins = sorted(folder.glob("libnvrtc-builtins.so*"))
        if found and builtins:
            ctypes.CDLL(str(builtins[0]), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(found[0]))
    raise SystemExit("no NVRTC here")


def compiled(job: tuple[str, str]) -> tuple[bytes, str, float]:
    """(CUBIN, log, seconds) of a text for an architecture."""
    source, arch = job
    start, lib = time.perf_counter(), nvrtc()
    program = ctypes.c_void_p()
    lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    flags = [f"--gpu-architecture={arch}".encode(), *(o.encode() for o in OPTIONS)]
    status = lib.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
    size = ctypes.c_size_t()
    if status:
        lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        lib.nvrtcGetProgramLog(program, text)
        return b"", text.value.decode()[:2000], time.perf_counter() - start
    lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetCUBIN(program, cubin)
    return cubin.raw, "", time.perf_counter() - start


class Device:
    """Buffers and launches of one case."""

    def __init__(self, case: dict[str, Any], module: Any) -> None:
        import cupy

        self.case, self.module, self.cupy = case, module, cupy
        self.arena = cupy.full(max(case["arena"], 1) + 256, 0xFF, cupy.uint8)
        self.own: dict[str, Any] = {}
        for name, (kind, root, _, size) in case["buffers"].items():
            if root == name and kind != "scratch":
                memory = cupy.full(max(size, 1) + 256, 0xFF, cupy.uint8)
                data = case.get("data", {}).get(name)
                if data:
                    memory[: len(data)] = cupy.asarray(np.frombuffer(data, np.uint8))
                self.own[name] = memory

    def address(self, name: str) -> int:
        kind, root, offset, _ = self.case["buffers"][name]
        if kind == "scratch":  # counted from the arena's start, for views too
            return self.arena.data.ptr + offset
        return self.own[root].data.ptr + offset

    def launches(self) -> list[Any]:
        """Functions without arguments, one per call."""
        made = []
        for symbol, names, params, options, library in self.case["calls"]:
            assert not library, f"{library} is no generated kernel"
            kernel = self.module.get_function(symbol)
            if options["shared"] > 48 * 1024:
                kernel.max_dynamic_shared_size_bytes = options["shared"]
            arguments = [np.uint64(self.address(n)) for n in names]
            arguments += [np.int64(v) if t == "i64" else np.float64(v) for t, v in params]
            grid, block = tuple(options["grid"]), tuple(options["block"])
            made.append(
                lambda k=kernel, g=grid, b=block, a=tuple(arguments), s=options["shared"]: k(
                    g, b, a, shared_mem=s
                )
            )
        return made


def status(module: Any) -> int:
    """What kernels of a module complained of, and clears it."""
    import cupy

    try:
        memory = module.get_global("xpurt_status")
    except Exception:
        return 0
    words = cupy.ndarray((4,), cupy.uint64, memory)
    kind = int(words[0])
    words[:] = 0
    return kind


def judged(case: dict[str, Any], module: Any) -> str:
    """Empty where every output is right."""
    import ml_dtypes

    device = Device(case, module)
    for launch in device.launches():
        launch()
    device.cupy.cuda.Device().synchronize()
    kind = status(module)
    if kind:
        return f"a kernel complained: {kind}"
    for name, dtype, want in case["outputs"]:
        own = np.dtype(getattr(ml_dtypes, dtype, dtype))
        raw = device.own[name].get() if name in device.own else None
        assert raw is not None
        got = raw[: want.size * own.itemsize].view(own).reshape(want.shape)
        why = far(got, want, case)
        if why:
            return f"{name}: {why}"
    return ""


def far(got: np.ndarray, want: np.ndarray, case: dict[str, Any]) -> str:
    """Why an output is not what it should be."""
    exact = want.dtype.kind in "biu"
    if exact:
        return (
            ""
            if np.array_equal(got, want)
            else f"{int((got != want).sum())} of {want.size} whole numbers differ"
        )
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), want.astype(wide)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return "NaNs elsewhere"
    a, b = np.where(np.isnan(a), 0, a), np.where(np.isnan(b), 0, b)
    if case["peak"]:
        with np.errstate(invalid="ignore"):
            error = np.abs(np.where(a == b, 0, a - b)).max(initial=0) / max(
                np.abs(b[np.isfinite(b)]).max(initial=0), 1e-30
            )
        return "" if error <= case["rtol"] else f"max|d|/max|ref| {error:.3g}"
    close = np.isclose(a, b, rtol=case["rtol"], atol=case["atol"])
    return (
        ""
        if close.all()
        else f"{int((~close).sum())} of {close.size} differ, at most {np.abs(a - b)[~close].max():.3g}"
    )


def timed(case: dict[str, Any], module: Any) -> dict[str, float]:
    """Microseconds of one run and the bandwidth that it reaches; the median of several rounds over memory larger than the cache."""
    import cupy

    device = Device(case, module)  # whose memory must outlive the launches
    launches = device.launches()
    for _ in range(3):
        for launch in launches:
            launch()
    start, end, rounds = cupy.cuda.Event(), cupy.cuda.Event(), []
    for _ in range(7):
        start.record()
        for _ in range(10):
            for launch in launches:
                launch()
        end.record()
        end.synchronize()
        rounds.append(cupy.cuda.get_elapsed_time(start, end) * 100)
    took = float(np.median(rounds))
    return {"us": took, "GB/s": case["bytes"] / took / 1e3}


def main() -> None:
    """Every case of a folder."""
    folder, result = Path(sys.argv[1]), Path(sys.argv[2])
    arch = sys.argv[3] if len(sys.argv) > 3 else "sm_90a"
    begun = time.perf_counter()
    cases = [
        c for f in sorted(folder.glob("*.pickle")) for c in pickle.loads(zlib.decompress(f.read_bytes()))
    ]
    texts = {c["source"]: None for c in cases}
    longest = sorted(texts, key=len, reverse=True)
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        made = dict(zip(longest, pool.map(compiled, [(t, arch) for t in longest], chunksize=1), strict=True))
    print(f"{len(texts)} texts compiled in {time.perf_counter() - begun:.1f} s")
    import cupy

    modules, right, wrong, speed = {}, 0, {}, {}
    folder_of_cubins = Path(
        tempfile.mkdtemp()
    )  # a path of its own for each: CuPy keeps modules by their paths
    for case in cases:
        source = case["source"]
        if source not in modules:
            cubin, log, _ = made[source]
            path = folder_of_cubins / f"{len(modules)}.cubin"
            path.write_bytes(cubin)
            modules[source] = cupy.RawModule(path=str(path)) if cubin else log
        module = modules[source]
        if isinstance(module, str):
            wrong[case["name"]] = f"does not compile: {module[:300]}"
            continue
        try:
            if "bytes" in case:
                speed[case["name"]] = timed(case, module)
                continue
            why = judged(case, module)
        except AssertionError as error:
            wrong[case["name"]] = f"not run: {error}"
            continue
        except Exception as error:
            wrong[case["name"]] = f"{type(error).__name__}: {error}"
            break  # the device's context is gone
        if why:
            wrong[case["name"]] = why
        else:
            right += 1
    seconds = time.perf_counter() - begun
    facts = cupy.cuda.runtime.getDeviceProperties(0)
    out = {
        "machine": machine(facts["name"].decode(), "cupy-cuda13x"),
        "right": right,
        "wrong": wrong,
        "speed": speed,
        "seconds": seconds,
    }
    result.write_text(json.dumps(out, indent=1))
    print(json.dumps(out, indent=1)[:9000])


if __name__ == "__main__":
    main()
