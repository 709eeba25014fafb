"""Library kernels and convolutions on a GPU, as calls of whole programs: compiled, loaded, run, compared with torch in float64, timed.

    python scripts/gpu/libraries.py [--out FILE] [--only WORD]

Needs the package installed (its C++ core), torch with CUDA. A row says what the library chose. Times are of runs one after the other
on one stream, each a replay of the program's CUDA graph, so small ones show the launch too; torch's are eager, in the same loop.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from gpu_machine import Report, arguments, queued_us, run_parts

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import GraphBuilder
from xpuruntime.policies import KernelPolicy
from xpuruntime.runtime import Executor
from xpuruntime.runtime.backends.cuda import CudaBackend

TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 8e-3, "float16": 1e-3}
"""Largest max|d| / max|ref|: one rounding of the result in 16 bits."""
F = torch.nn.functional


def array(shape: Sequence[int], dtype: str, scale: float = 1.0) -> np.ndarray[Any, Any]:
    """Random values in a dtype."""
    found = rng.standard_normal(shape) * scale
    return found.astype(getattr(ml_dtypes, dtype, dtype))


def tensor(x: np.ndarray[Any, Any]) -> torch.Tensor:
    """The same on the device."""
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(x).cuda()


@dataclass
class Case:
    """One node: its operands (``weights``: digits of those that are known), a kernel's family and word, torch's way."""

    op: str
    operands: list[Any]
    weights: str
    family: str
    word: str
    reference: Callable[..., torch.Tensor]
    attrs: dict[str, Any] = field(default_factory=dict)
    change: dict[str, Any] = field(default_factory=dict)
    flops: int = 0
    time: bool = False
    peer: Callable[..., torch.Tensor] | None = None

    @property
    def name(self) -> str:
        shapes = " ".join(str(list(x.shape)) for x in self.operands if x is not None)
        attrs = " ".join(f"{k}={v}" for k, v in (self.attrs | self.change).items() if v not in (1, False))
        return f"{self.family}/{self.word} {self.op} {shapes} {self.operands[0].dtype.name} {attrs}"


def run(case: Case, backend: CudaBackend) -> dict[str, Any]:
    """Compile, run, compare, time."""
    b = GraphBuilder("one")
    feeds: dict[str, Any] = {}
    known: dict[str, Any] = {}
    names: list[Any] = []
    for i, x in enumerate(case.operands):
        if x is None:
            names.append(None)
            continue
        declare, held = (b.weight, known) if str(i) in case.weights else (b.input, feeds)
        names.append(declare(f"x{i}", f"{x.dtype.name}{list(x.shape)}"))
        held[f"x{i}"] = x
    b.output("y", b.call(case.op, *names, **case.attrs))
    program = compile_graph(
        b.build(), target=backend.target, policy=KernelPolicy(**{case.family: case.word}), passes=3
    )
    calls = [c for e in program.entries for p in e.plans for c in p.calls]
    if case.change:
        program = replace(program, entries=tuple(
            replace(e, plans=tuple(replace(p, calls=tuple(
                replace(c, options=dict(c.options) | case.change) if c.library else c for c in p.calls)) for p in e.plans))
            for e in program.entries))  # fmt: skip
    executor = Executor(program, backend)
    try:
        executor.bind(known)
        inputs = {n: tensor(x) for n, x in feeds.items()}
        stream = torch.cuda.current_stream().cuda_stream
        y = torch.from_dlpack(executor.run(inputs, stream=stream)["y"])
        torch.cuda.synchronize()
        wide = [None if x is None else tensor(x).double() for x in case.operands]
        want = case.reference(*wide)
        error = float((y.double() - want).abs().max() / want.abs().max())
        dtype = case.operands[0].dtype.name
        found: dict[str, Any] = {
            "case": case.name, "kernels": [c.kernel for c in calls], "chose": [x for x in executor.implementations if x], "error": error,
            "ok": bool(error <= TOLERANCE[dtype]) and any(c.kernel == f"{case.family}/{case.word}" for c in calls),
        }  # fmt: skip
        again = torch.from_dlpack(executor.run(inputs, stream=stream)["y"])
        found["same bits again"] = bool(torch.equal(y, again))
        if case.time:
            out = executor.run(
                inputs, stream=stream
            )  # the same memory each time, so that the graph needs no other addresses
            times = {"ours": queued_us(lambda: executor.run(inputs, out=out, stream=stream)) / 1e3}
            given = [None if x is None else tensor(x) for x in case.operands]
            if case.peer is not None:
                times["torch"] = queued_us(lambda: case.peer(*given)) / 1e3
            found["ms"] = {n: round(t, 5) for n, t in times.items()}
            found["tflops"] = {n: round(case.flops / t / 1e9, 1) for n, t in times.items()}
        return found
    finally:
        executor.close()


def act(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """An activation as torch has it."""
    table = {"none": lambda y: y, "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"), "relu6": F.relu6}
    return table.get(name) or getattr(F, name)


def linear(
    shape: Sequence[int], n: int, dtype: str, word: str, more: str = "", name: str = "none", **options: Any
) -> Case:
    """A fused linear layer with ``bias`` and ``residual`` where the text names them."""
    k = shape[-1]
    operands = [array(shape, dtype), array((n, k), dtype, k**-0.5), array((n,), dtype) if "bias" in more else None,
                array((*shape[:-1], n), dtype) if "residual" in more else None]  # fmt: skip

    def reference(x: Any, w: Any, bias: Any = None, residual: Any = None) -> Any:
        y = F.linear(x, w, bias)
        return act(name)(y if residual is None else y + residual)

    return Case("fused_linear", operands, "12", "matmul", word, reference, {"act": name}, flops=2 * int(np.prod(shape)) * n,
                peer=lambda x, w, bias=None, residual=None: F.linear(x, w, bias), **options)  # fmt: skip


def conv(
    x: Sequence[int], w: Sequence[int], dtype: str, word: str, more: str = "bias", name: str = "relu", stride: int = 1, groups: int = 1,
    **options: Any,
) -> Case:  # fmt: skip
    """A fused convolution, padded to keep its size."""
    pad = w[2] // 2
    place = (x[2] + 2 * pad - w[2]) // stride + 1
    k = int(np.prod(w[1:]))
    operands = [array(x, dtype), array(w, dtype, k**-0.5), array((w[0],), dtype) if "bias" in more else None,
                array((x[0], w[0], place, place), dtype) if "residual" in more else None]  # fmt: skip

    def reference(x: Any, w: Any, bias: Any = None, residual: Any = None) -> Any:
        y = F.conv2d(x, w, bias, stride, pad, 1, groups)
        return act(name)(y if residual is None else y + residual)

    def peer(x: Any, w: Any, bias: Any = None, residual: Any = None) -> Any:
        return F.conv2d(laid(x), laid(w), bias, stride, pad, 1, groups)

    cache: dict[int, Any] = {}

    def laid(x: Any) -> Any:
        return cache.setdefault(id(x), x.to(memory_format=torch.channels_last))

    attrs = {"stride": [stride] * 2, "padding": [pad] * 2, "dilation": [1, 1], "groups": groups, "act": name}
    return Case("fused_convolution", operands, "12", "conv", word, reference, attrs,
                flops=2 * x[0] * w[0] * place * place * k, peer=peer, **options)  # fmt: skip


def cases() -> Iterator[Case]:
    """What is judged."""
    for word in ("cublasLt", "cublas"):
        for dtype in ("float32", "bfloat16", "float16", "float64"):
            yield Case(
                "mm", [array((65, 80), dtype), array((80, 72), dtype)], "", "matmul", word, torch.matmul
            )
            yield Case(
                "bmm",
                [array((3, 40, 64), dtype), array((3, 64, 24), dtype)],
                "",
                "matmul",
                word,
                torch.matmul,
            )
            yield linear((2, 33, 64), 72, dtype, word, "bias residual", "relu")
        for name in ("none", "gelu", "gelu_tanh", "silu"):
            yield linear((100, 256), 512, "bfloat16", word, "bias", name)
        yield Case(
            "mm", [array((33, 37), "bfloat16"), array((37, 41), "bfloat16")], "", "matmul", word, torch.matmul
        )
        yield linear((4096, 4096), 4096, "bfloat16", word, time=True)
    yield linear((1024, 1536), 8960, "bfloat16", "cublasLt", "bias", "gelu_tanh", time=True)
    yield linear((4096, 4096), 4096, "float32", "cublasLt", time=True)
    for m, n, k in ((4096, 4096, 4096), (1024, 8960, 1536), (1024, 1536, 8960)):
        for choice in range(4):
            yield linear((m, k), n, "bfloat16", "cublasLt", change={"choice": choice}, time=True)
    yield linear((512, 1024), 1024, "bfloat16", "cublasLt", "bias", change={"algorithm": 66, "choice": 1})
    for word in ("cudnn", "implicit_gemm"):
        for dtype in ("bfloat16", "float16", "float32"):
            yield conv((2, 64, 28, 28), (64, 64, 3, 3), dtype, word)
            yield conv((2, 64, 28, 28), (256, 64, 1, 1), dtype, word, "bias residual")
            yield conv((2, 3, 56, 56), (64, 3, 7, 7), dtype, word, stride=2)
            yield conv((2, 64, 28, 28), (128, 64, 1, 1), dtype, word, "", "none", stride=2)
            yield conv((2, 32, 14, 14), (32, 1, 3, 3), dtype, word, "bias", "relu6", groups=32)
            yield conv((2, 64, 14, 14), (64, 16, 3, 3), dtype, word, "bias", "silu", groups=4)
        for batch in (1, 32):
            yield conv((batch, 64, 56, 56), (64, 64, 3, 3), "float16", word, time=True)
            yield conv((batch, 256, 14, 14), (256, 256, 3, 3), "float16", word, time=True)
            yield conv((batch, 1024, 14, 14), (256, 1024, 1, 1), "float16", word, time=True)
            yield conv((batch, 512, 7, 7), (2048, 512, 1, 1), "float16", word, "bias residual", time=True)
            yield conv((batch, 3, 224, 224), (64, 3, 7, 7), "float16", word, stride=2, time=True)
        yield conv((32, 256, 14, 14), (256, 256, 3, 3), "float32", word, time=True)


def rows(report: Report, asked: argparse.Namespace) -> Any:
    """Every library's row and our convolutions in whole programs, right and timed beside torch."""
    begin, backend, found = time.time(), CudaBackend(), list[dict[str, Any]]()
    for case in cases():
        if asked.only not in case.name:
            continue
        if time.time() - begin > asked.limit:
            found.append({"case": case.name, "skipped": "out of time"})
            continue
        try:
            row = run(case, backend)
        except Exception as error:
            row = {"case": case.name, "ok": False, "failed": f"{type(error).__name__}: {str(error)[:400]}"}
        found.append(row)
        print(json.dumps(row), flush=True)
        if not row["ok"]:
            report.check(False, f"{case.name}: {row.get('failed', row.get('error'))}")
    return found


PARTS = {"rows": rows}
rng = np.random.default_rng(5)


def prepare(asked: argparse.Namespace) -> None:
    """Full float32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def main(given: Sequence[str] | None = None) -> int:
    """1 when a result is wrong or a library refuses what its row promised."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which no further case begins")
    return run_parts(
        __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch",), given=given, parser=parser,
        before=prepare,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
