"""Heavy CUDA kernels on a GPU, each against torch: right to the tolerance of its dtype, and timed beside torch's own in the same run.

    python scripts/gpu/kernels.py [--out FILE] [--only WORD] [--tune]

Needs torch with CUDA and CuPy (which loads the CUBINs); the package itself is read from src and need not be built. NVRTC comes from
torch's wheels. Times are medians of replays of a captured CUDA graph; inputs that fit the second-level cache are rotated.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

import cupy  # noqa: E402
import torch  # noqa: E402
from gpu_machine import machine  # noqa: E402

from xpuruntime.codegen.cuda import OPTIONS, cuda_target  # noqa: E402
from xpuruntime.ir import GraphBuilder  # noqa: E402
from xpuruntime.kernels.attention import AttentionShape  # noqa: E402
from xpuruntime.kernels.cuda import attention, decode, gemv, matmul, product_text  # noqa: E402
from xpuruntime.kernels.kernel import Lowered, NodeCall, Operand, Stage  # noqa: E402
from xpuruntime.kernels.matmul import product_of  # noqa: E402

TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 8e-3, "float16": 1e-3, "int8": 0, "int32": 0}
"""Largest max|d| / max|ref|: one rounding of the result in 16 bits."""
CACHE = 60 << 20


def nvrtc() -> ctypes.CDLL:
    """NVRTC of torch's wheels; its builtins first."""
    import nvidia

    folders = [Path(p) / "cu13" / "lib" for p in nvidia.__path__] + [
        Path(p) / "cuda_nvrtc" / "lib" for p in nvidia.__path__
    ]
    for word in ("libnvrtc-builtins.so*", "libnvrtc.so*"):
        found = sorted(f for folder in folders for f in folder.glob(word) if "alt" not in f.name)
        library = ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)
    return library


NVRTC = nvrtc()
TARGET = cuda_target("cuda:sm_{}{}".format(*torch.cuda.get_device_capability()))


def cubin(source: str) -> bytes:
    """A CUBIN of a text; raises RuntimeError with NVRTC's log."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    NVRTC.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    options = [f"--gpu-architecture={TARGET.sm.architecture}".encode(), *(o.encode() for o in OPTIONS)]
    failed = NVRTC.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if failed:
        NVRTC.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        NVRTC.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.value.decode())
    NVRTC.nvrtcGetCUBINSize(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    NVRTC.nvrtcGetCUBIN(program, data)
    return data.raw


def node(op: str, operands: Sequence[Any], weights: Sequence[int] = (), **attrs: Any) -> NodeCall:
    """The call of a node over torch tensors (or None), of which those at ``weights`` are known before the run."""
    b = GraphBuilder("one")
    names = [
        None if x is None else b.input(f"x{i}", f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}")
        for i, x in enumerate(operands)
    ]
    b.output("y", b.call(op, *names, **attrs))
    graph = b.build()
    (found,) = graph.nodes
    known = {names[i] for i in weights}
    inputs = tuple(Operand(i, graph.spec(i), i in known) if isinstance(i, str) else i for i in found.inputs)
    return NodeCall(found, inputs, tuple(graph.spec(v.name) for v in found.outputs))


@dataclass
class Loaded:
    """Stages as launches over given tensors."""

    stages: tuple[Stage, ...]
    data: bytes
    temps: tuple[int, ...]
    counters: int
    zeros: Any = None
    made: Any = None
    functions: list[Any] = field(default_factory=list)

    @classmethod
    def build(cls, lowered: Lowered) -> Loaded:
        """Compile; any thread may."""
        texts = {f"kernel{i}": s.source for i, s in enumerate(lowered.stages)}
        parts = frozenset(p for s in lowered.stages for p in s.parts)
        return cls(lowered.stages, cubin(TARGET.source(texts, parts)), lowered.temps, lowered.counters)

    def load(self) -> None:
        """Load the functions, on the main thread."""
        path = Path(f"/tmp/kernel-{id(self)}.cubin")
        path.write_bytes(self.data)
        self.made = cupy.RawModule(path=str(path))
        self.zeros = torch.zeros(max(self.counters, 4), dtype=torch.uint8, device="cuda")
        self.functions = [self.made.get_function(f"kernel{i}") for i in range(len(self.stages))]
        for function, stage in zip(self.functions, self.stages, strict=True):
            if stage.options["shared"]:
                function.max_dynamic_shared_size_bytes = stage.options["shared"]

    def run(self, operands: Sequence[Any], y: Any) -> None:
        """Launch every stage on torch's stream."""
        if self.made is None:
            self.load()
        places = {f"in{i}": x for i, x in enumerate(operands) if x is not None} | {"out0": y}
        places["counters"] = self.zeros
        places |= {
            f"temp{i}": torch.empty(n, dtype=torch.uint8, device="cuda") for i, n in enumerate(self.temps)
        }
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            for function, stage in zip(self.functions, self.stages, strict=True):
                o = stage.options
                function(
                    tuple(o["grid"]),
                    tuple(o["block"]),
                    tuple(places[a].data_ptr() for a in stage.args),
                    shared_mem=o["shared"],
                )


def random(shape: Sequence[int], dtype: str) -> Any:
    """Random values on the device."""
    kind = getattr(torch, dtype)
    if not kind.is_floating_point:
        return torch.randint(-100, 100, tuple(shape), dtype=kind, device="cuda")
    return torch.randn(tuple(shape), device="cuda", dtype=torch.float32 if dtype != "float64" else kind).to(
        kind
    )


def timed(work: Callable[[int], Any], sets: int, repeats: int = 20) -> float:
    """Median milliseconds of one call, from replays of a graph that has `sets` x some of them."""
    for i in range(sets):
        work(i)
    torch.cuda.synchronize()
    each = max(1, 8 // sets)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(each):
            for i in range(sets):
                work(i)
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / (each * sets))
    return statistics.median(times[2:])


@dataclass
class Case:
    """A kernel's stages over operands; ``reference`` of float64 tensors; ``peer`` torch's way, timed beside."""

    name: str
    lowered: Lowered
    operands: list[Any]
    out: tuple[int, ...]
    dtype: str
    reference: Callable[..., Any]
    peers: dict[str, Callable[..., Any]] = field(default_factory=dict)
    flops: int = 0
    bytes: int = 0
    time: bool = False
    tolerance: float | None = None


def product(
    row: Any, op: str, shapes: Sequence[Any], dtype: str, lower: Any = None, time: bool = False, **attrs: Any
) -> Case:
    """A matrix product."""
    xs = [None if s is None else random(s, dtype) for s in shapes]
    if dtype in ("bfloat16", "float16", "float32"):
        xs[1] = xs[1] * (shapes[1][-1] ** -0.5)
    call = node(op, xs, (1,) if "linear" in op else (), **attrs)
    said = row.supports(call, TARGET)
    assert said, said.reason
    lowered = row.lower(call, TARGET) if lower is None else Lowered((lower(call),))

    def reference(a: Any, b: Any, bias: Any = None, residual: Any = None) -> Any:
        y = a @ (b.T if "linear" in op else b)
        y = y if bias is None else y + bias
        y = y if residual is None else y + residual
        act = attrs.get("act", "none")
        if act == "gelu_tanh":
            return torch.nn.functional.gelu(y, approximate="tanh")
        return y if act == "none" else getattr(torch.nn.functional, act)(y)

    def peer(a: Any, b: Any, bias: Any = None, residual: Any = None) -> Any:
        if "linear" in op:
            return torch.nn.functional.linear(a, b, bias)
        return torch.matmul(a, b)

    p = product_of(call)
    peers = {"torch": peer} if time else {}
    return Case(f"{row.name} {op} {[list(s) for s in shapes if s]} {dtype}", lowered, xs, tuple(call.outputs[0].shape), dtype, reference, peers,
                2 * p.batches * p.m * p.n * p.k, sum(x.nbytes for x in xs if x is not None), time)  # fmt: skip


def attend(
    row: Any,
    q: Sequence[int],
    k: Sequence[int],
    dv: int,
    dtype: str,
    mask: Any = None,
    lower: Any = None,
    time: bool = False,
    **attrs: Any,
) -> Case:
    """Attention; torch's SDPA on float64 judges."""
    xs = [random(q, dtype), random(k, dtype), random((*k[:3], dv), dtype), *([] if mask is None else [mask])]
    call = node("attention", xs, **attrs)
    said = row.supports(call, TARGET)
    assert said, said.reason
    s = AttentionShape.of(call)
    lowered = row.lower(call, TARGET) if lower is None else Lowered((lower(call, s),))
    group = q[1] // k[1]

    def reference(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * s.scale
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
        if s.causal:
            i = torch.arange(s.queries, device="cuda")[:, None]
            scores = scores.masked_fill(torch.arange(s.keys, device="cuda")[None] > i + s.offset, -torch.inf)
        return torch.softmax(scores, -1).nan_to_num(0) @ v.repeat_interleave(group, 1)

    def sdpa(backend: Any) -> Callable[..., Any]:
        def work(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
            with torch.nn.attention.sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, mask, is_causal=s.causal and s.queries > 1, enable_gqa=group > 1
                )

        return work

    kinds = torch.nn.attention.SDPBackend
    peers = {}
    if time:
        names = (
            ("CUDNN_ATTENTION", "FLASH_ATTENTION")
            if mask is None
            else ("EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
        )
        peers = {n: sdpa(getattr(kinds, n)) for n in names}
    flops = s.flops // 2 if s.causal and s.queries == s.keys else s.flops
    return Case(f"{row.name} {list(q)} {list(k)} dv {dv} {dtype}{' causal' if s.causal else ''}{'' if mask is None else ' mask'}", lowered, xs,
                tuple(call.outputs[0].shape), dtype, reference, peers, flops, sum(x.nbytes for x in xs[:3]), time)  # fmt: skip


def odd_cases() -> Iterator[Callable[[], Case]]:
    """Right answers: odd shapes, every dtype, masks, epilogues."""
    made, few = matmul.Generated(), gemv.Gemv()
    for dtype in ("bfloat16", "float16", "float32"):
        yield lambda d=dtype: product(made, "mm", [(65, 80), (80, 72)], d)
        yield lambda d=dtype: product(made, "mm", [(33, 37), (37, 41)], d)
        yield lambda d=dtype: product(made, "bmm", [(3, 130, 200), (3, 200, 136)], d)
        yield lambda d=dtype: product(
            made, "fused_linear", [(2, 133, 264), (520, 264), (520,), (2, 133, 520)], d, act="gelu"
        )
        yield lambda d=dtype: product(made, "fused_linear", [(1000, 512), (776, 512), (776,)], d, act="silu")
        yield lambda d=dtype: product(
            few, "fused_linear", [(1, 1000), (333, 1000), (333,), (1, 333)], d, act="relu"
        )
        yield lambda d=dtype: product(few, "linear", [(3, 264), (130, 264)], d)
        yield lambda d=dtype: product(few, "linear", [(2, 77), (50, 77)], d)
    yield lambda: product(made, "mm", [(65, 80), (80, 72)], "float64")
    flash, dec = attention.FlashV2(), decode.FlashDecode()
    mask = torch.rand((1, 1, 33, 90), device="cuda") < 0.5
    for dtype in ("bfloat16", "float16"):
        yield lambda d=dtype: attend(flash, (2, 4, 130, 64), (2, 2, 150, 64), 64, d)
        yield lambda d=dtype: attend(flash, (2, 4, 1000, 128), (2, 4, 1000, 128), 128, d, causal=True)
        yield lambda d=dtype: attend(flash, (8, 32, 515, 128), (8, 8, 515, 128), 128, d, causal=True)
        yield lambda d=dtype: attend(
            flash, (2, 2, 33, 40), (2, 1, 90, 40), 24, d, causal=True, causal_offset=57
        )
        yield lambda d=dtype: attend(flash, (1, 2, 33, 20), (1, 1, 90, 20), 20, d, mask=mask)
        yield lambda d=dtype: attend(dec, (2, 12, 1, 128), (2, 2, 1100, 128), 128, d)
        yield lambda d=dtype: attend(
            dec, (1, 4, 3, 40), (1, 2, 300, 40), 24, d, causal=True, causal_offset=297
        )
        yield lambda d=dtype: attend(
            dec,
            (1, 4, 1, 64),
            (1, 2, 3000, 64),
            64,
            d,
            mask=torch.arange(3000, device="cuda").reshape(1, 1, 1, -1) < 999,
        )
    if TARGET.sm.wgmma:

        def hopper(call: NodeCall, s: AttentionShape) -> Stage:
            return attention.flash_stage(call, s, TARGET, hopper=True)

        for dtype in ("bfloat16", "float16"):
            for q, k, dv, attrs in (
                ((1, 1, 128, 64), (1, 1, 128, 64), 64, {}),
                ((1, 2, 128, 128), (1, 2, 384, 128), 128, {}),
                ((2, 4, 300, 128), (2, 2, 515, 128), 128, {}),
                ((2, 4, 700, 64), (2, 2, 700, 64), 64, {"causal": True}),
                ((2, 4, 1000, 128), (2, 2, 1000, 128), 128, {"causal": True}),
                ((1, 2, 133, 80), (1, 1, 300, 80), 72, {"causal": True, "causal_offset": 167}),
                ((1, 2, 133, 100), (1, 1, 300, 100), 100, {"causal": True, "causal_offset": -40}),
                ((1, 2, 150, 36), (1, 1, 90, 36), 36, {"mask": torch.rand((1, 1, 150, 90), device="cuda") < 0.5}),
            ):  # fmt: skip
                yield lambda d=dtype, q=q, k=k, dv=dv, attrs=attrs: renamed(
                    "hopper", attend(flash, q, k, dv, d, lower=hopper, **attrs)
                )
    yield lambda: attend(attention.Naive(), (1, 2, 33, 20), (1, 1, 90, 20), 20, "float32", mask=mask)
    yield lambda: attend(attention.Naive(), (1, 2, 33, 20), (1, 1, 90, 20), 20, "float64", causal=True)


def timed_cases() -> Iterator[Callable[[], Case]]:
    """The shapes whose speed we state."""
    made, few = matmul.Generated(), gemv.Gemv()
    flash, dec = attention.FlashV2(), decode.FlashDecode()
    yield lambda: attend(
        flash, (4, 16, 4096, 128), (4, 16, 4096, 128), 128, "bfloat16", causal=True, time=True
    )
    yield lambda: attend(flash, (4, 16, 4096, 128), (4, 16, 4096, 128), 128, "bfloat16", time=True)
    yield lambda: attend(flash, (4, 16, 4096, 64), (4, 16, 4096, 64), 64, "bfloat16", causal=True, time=True)
    yield lambda: attend(
        flash, (1, 12, 1024, 128), (1, 2, 1024, 128), 128, "bfloat16", causal=True, time=True
    )
    for size in (64, 128):
        yield lambda size=size: named("mma.sync", attend(
            flash, (4, 16, 4096, size), (4, 16, 4096, size), size, "bfloat16", causal=True, time=True,
            lower=lambda call, s: attention.flash_stage(call, s, TARGET, hopper=False)))  # fmt: skip
    yield lambda: attend(dec, (1, 12, 1, 128), (1, 2, 1024, 128), 128, "bfloat16", time=True)
    yield lambda: attend(dec, (1, 12, 1, 128), (1, 2, 4096, 128), 128, "bfloat16", time=True,
                         mask=torch.arange(4096, device="cuda").reshape(1, 1, 1, -1) < 1100)  # fmt: skip
    yield lambda: attend(dec, (1, 12, 1, 128), (1, 2, 32768, 128), 128, "bfloat16", time=True)
    yield lambda: attend(dec, (32, 12, 1, 128), (32, 2, 4096, 128), 128, "bfloat16", time=True)
    for n, k in ((17920, 1536), (1536, 8960), (2048, 1536), (1536, 1536), (151936, 1536), (8192, 8192)):
        yield lambda n=n, k=k: product(few, "linear", [(1, k), (n, k)], "bfloat16", time=True)
    yield lambda: product(few, "linear", [(4, 1536), (17920, 1536)], "bfloat16", time=True)
    yield lambda: product(few, "linear", [(1, 4096), (4096, 4096)], "float32", time=True)
    for m, n, k in (
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (1024, 8960, 1536),
        (1024, 1536, 8960),
        (64, 4096, 4096),
    ):
        yield lambda m=m, n=n, k=k: product(made, "linear", [(m, k), (n, k)], "bfloat16", time=True)
    yield lambda: product(made, "mm", [(4096, 4096), (4096, 4096)], "bfloat16", time=True)
    yield lambda: product(made, "mm", [(4096, 4096), (4096, 4096)], "float32", time=True)


def tuned_cases() -> Iterator[Callable[[], Case]]:
    """Other cuts of the same shapes, to choose from."""
    flash, few, made = attention.FlashV2(), gemv.Gemv(), matmul.Generated()
    for block in (
        attention.Block(128, 64, 4),
        attention.Block(128, 32, 4),
        attention.Block(128, 64, 8),
        attention.Block(64, 64, 4),
    ):
        yield lambda b=block: named(
            f"{b}", attend(flash, (4, 16, 4096, 128), (4, 16, 4096, 128), 128, "bfloat16", causal=True, time=True,
                           lower=lambda call, s: attention.flash_stage(call, s, TARGET, b)))  # fmt: skip
    for n, k in ((17920, 1536), (1536, 8960), (1536, 1536), (151936, 1536)):
        for c, split, ahead, per, far in itertools.product(
            (1, 2, 4), (1, 4, 7), (2, 3, 5, 6), (1, 2, 4, 6), (0, 1)
        ):
            turns = -(-k // (256 * split))
            blocks = -(-n // (c * per * (8 if split == 1 else 1)))
            if c * ahead > 12 or turns % ahead or not 132 <= blocks <= 800 or (far and per == 1):
                continue
            cut = gemv.Cut(c, split, 8 if split == 1 else 1, ahead, per, far)
            yield lambda n=n, k=k, cut=cut: named(
                f"{cut}", product(few, "linear", [(1, k), (n, k)], "bfloat16", time=True,
                                  lower=lambda call: gemv.gemv_stage(call, cut)))  # fmt: skip
    for tile in (
        *matmul.TILES[:2],
        matmul.Tile(128, 256, 2, 4, 4),
        matmul.Tile(128, 128, 2, 2, 4),
        matmul.Tile(128, 128, 2, 4, 3),
    ):

        def lower(call: NodeCall, t: Any = tile) -> Stage:
            p = product_of(call).flat()
            sides = product_text.matrices_of(p, call.outputs[0].dtype)
            return matmul.tensor_stage(call, p, sides, TARGET, t)

        yield lambda t=tile, lower=lower: named(
            f"{t}", product(made, "linear", [(4096, 4096), (4096, 4096)], "bfloat16", time=True, lower=lower)
        )


def renamed(what: str, case: Case) -> Case:
    """The same under a longer name."""
    case.name += " " + what
    return case


def named(what: str, case: Case) -> Case:
    """The same under a longer name, without the peers."""
    case.name += " " + what
    case.peers = {}
    return case


def judge(case: Case, loaded: Loaded) -> dict[str, Any]:
    """Compare, then time."""
    y = torch.full(
        case.out,
        float("nan") if getattr(torch, case.dtype).is_floating_point else 77,
        dtype=getattr(torch, case.dtype),
        device="cuda",
    )
    loaded.run(case.operands, y)
    torch.cuda.synchronize()
    found: dict[str, Any] = {"case": case.name}
    wide = [x if x is None or x.dtype is torch.bool else x.double() for x in case.operands]
    if case.flops < 3e11:
        want = case.reference(*wide)
        error = (y.double() - want).abs().max() / want.abs().max()
        found["error"] = float(error)
        limit = TOLERANCE[case.dtype] if case.tolerance is None else case.tolerance
        found["ok"] = bool(error <= limit) and not bool(y.isnan().any())
        again = torch.empty_like(y)
        loaded.run(case.operands, again)
        found["same bits again"] = bool(torch.equal(y, again))
        del want
    del wide
    if case.time:
        sets = max(1, min(16, -(-3 * CACHE // max(case.bytes, 1)))) if case.bytes < 3 * CACHE else 1
        inputs = [case.operands, *([x.clone() for x in case.operands] for _ in range(sets - 1))]
        times = {"ours": timed(lambda i: loaded.run(inputs[i], y), sets)}
        for name, peer in case.peers.items():
            try:
                times[name] = timed(lambda i, p=peer: p(*inputs[i]), sets)
            except RuntimeError as error:
                found[name] = str(error).splitlines()[0][:120]
        found["ms"] = {n: round(t, 5) for n, t in times.items()}
        found["tflops"] = {n: round(case.flops / t / 1e9, 1) for n, t in times.items()}
        found["gb_per_s"] = {n: round(case.bytes / t / 1e6, 1) for n, t in times.items()}
    return found


def main() -> int:
    """Run what was asked for; 1 when a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--limit", type=float, default=400, help="seconds after which no further case begins")
    given = parser.parse_args()
    begin = time.time()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(3)
    makers = [*odd_cases(), *timed_cases(), *(tuned_cases() if given.tune else ())]
    rows: list[dict[str, Any]] = []
    wrong = 0
    cases = [c for c in (m() for m in makers) if given.only in c.name]
    print(f"{len(cases)} cases in {time.time() - begin:.1f} s", flush=True)
    with ThreadPoolExecutor(16) as pool:
        built = [pool.submit(Loaded.build, c.lowered) for c in cases]
        for case, future in zip(cases, built, strict=True):
            if time.time() - begin > given.limit:
                rows.append({"case": case.name, "skipped": "out of time"})
                continue
            try:
                row = judge(case, future.result())
            except Exception as error:
                row = {
                    "case": case.name,
                    "ok": False,
                    "failed": f"{type(error).__name__}: {str(error)[:300]}",
                }
            wrong += not row.get("ok", True)
            rows.append(row)
            print(json.dumps(row), flush=True)
            case.operands.clear()
    device = torch.cuda.get_device_properties(0)
    big = torch.zeros(1 << 30, dtype=torch.int32, device="cuda")
    bandwidth = {"read_gb_per_s": round(big.nbytes / timed(lambda i: big.max(), 1) / 1e6), "copy_gb_per_s": 0}
    other = torch.empty_like(big)
    bandwidth["copy_gb_per_s"] = round(2 * big.nbytes / timed(lambda i: other.copy_(big), 1) / 1e6)
    found = {
        "machine": machine(device.name, "torch", "cupy-cuda13x"),
        "target": TARGET.name,
        **bandwidth,
        "seconds": round(time.time() - begin, 1),
        "rows": rows,
    }
    if given.out:
        Path(given.out).write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(rows)} cases, {wrong} wrong, {found['seconds']} s on {device.name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
