"""Generated kernels that memory bounds: elementwise, rows, movement, as programs on tensors of the device, beside the copy rate of the same run.

    python scripts/gpu/rates.py --out benchmarks/results/cuda_rates.json

Values are checked against PyTorch where it has the op. Needs torch with CUDA.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from gpu_machine import Report, queued_us, run_parts

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import Graph
from xpuruntime.runtime import CudaBackend, Executor
from xpuruntime.testing.cuda_cases import speed_graphs
from xpuruntime.types import DType

ELEMENTWISE, ROWS = 0.88, 0.80
"""Shares of the copy rate that are asked."""
LIMITS: Mapping[str, float] = {
    "add bf16": ELEMENTWISE, "add f32": ELEMENTWISE, "bias gelu bf16": ELEMENTWISE, "cast f32 to bf16": ELEMENTWISE, "softmax bf16": ROWS,
    "softmax f32 1024": ROWS, "layer norm bf16": ROWS, "rms norm bf16 1536": ROWS, "sum rows f32": ROWS,
}  # fmt: skip
F = torch.nn.functional
TORCH: Mapping[str, Callable[..., torch.Tensor]] = {
    "add bf16": torch.add,
    "add f32": torch.add,
    "bias gelu bf16": lambda x, y: F.gelu(x + y),
    "cast f32 to bf16": lambda x: x.bfloat16(),
    "softmax bf16": lambda x: x.softmax(1),
    "softmax f32 1024": lambda x: x.softmax(1),
    "layer norm bf16": lambda x, w, c: F.layer_norm(x, (4096,), w, c),
    "rms norm bf16 1536": lambda x, w: F.rms_norm(x, (1536,), w, 1e-6),
    "transpose bf16": lambda x: x.T.contiguous(),
    "heads bf16": lambda x: x.permute(0, 2, 1, 3).contiguous(),
    "cat bf16": lambda x, y: torch.cat([x, y], 1),
    "sum rows f32": lambda x: x.sum(1),
    "sum columns f32": lambda x: x.sum(0),
    "sum all f32": lambda x: x.sum(),
    "embedding bf16": lambda t, i: F.embedding(i, t),
    "max pool nhwc f32": lambda x: F.max_pool2d(x, 3, 2, 1),
}


def drawn(graph: Graph) -> list[torch.Tensor]:
    """Inputs on the device."""
    made = []
    for spec in graph.input_specs:
        shape, kind = [int(d) for d in spec.shape], getattr(torch, spec.dtype.value)
        if spec.dtype is DType.INT64:  # an index into the first operand
            made.append(torch.randint(0, int(graph.input_specs[0].shape[0]), shape, device="cuda"))
        else:
            made.append(torch.randn(shape, device="cuda").to(kind))
    return made


def one(report: Report, name: str, graph: Graph, backend: CudaBackend, copy_rate: float) -> dict[str, Any]:
    """Right, then fast."""
    program = compile_graph(graph, target=backend.target)
    with Executor(program, backend) as executor:
        fixed = executor.bind({})
        inputs = drawn(graph)
        given = dict(zip([s.name for s in executor.entry.inputs], inputs, strict=True))
        stream = torch.cuda.current_stream().cuda_stream
        out = executor.run(given, stream=stream)
        got = torch.from_dlpack(next(iter(out.values())))
        want = TORCH[name](*inputs).double()
        torch.cuda.synchronize()
        far = float((got.double().reshape(want.shape) - want).abs().max() / want.abs().max())
        report.check(far <= (2e-2 if got.dtype is torch.bfloat16 else 1e-4), f"{name}: {far:.1e} from torch")
        places = [x.data_ptr() for x in inputs], [b.address for b in out.values()]
        core = executor._core
        took = queued_us(lambda: core.run_memory(fixed, *places, None, None, None, stream))
        theirs = queued_us(lambda: TORCH[name](*inputs))
    rate = sum(c.bytes for c in program.entries[0].plans[0].calls) / took / 1e3
    share = rate / copy_rate
    if name in LIMITS:
        report.show(f"{name}: share of the copy rate", round(share, 3), at_least=LIMITS[name])
    found = {
        "us": round(took, 1),
        "GB/s": round(rate),
        "share": round(share, 3),
        "torch_us": round(theirs, 1),
    }
    print(f"   {name}: {found}", flush=True)
    return found


def _copy_rate() -> float:
    source = torch.zeros(1 << 30, dtype=torch.int32, device="cuda")
    other = torch.empty_like(source)
    return 2 * source.nbytes / queued_us(lambda: other.copy_(source), each=3) / 1e3


def rates(report: Report, asked: argparse.Namespace) -> Any:
    """Every kernel's rate over that of a copy of 4 GiB."""
    copy_rate = _copy_rate()
    found: dict[str, Any] = {"copy_GB/s": round(copy_rate)}
    backend = CudaBackend()
    for name, graph in speed_graphs():
        try:
            found[name] = one(report, name, graph, backend, copy_rate)
        except Exception as error:
            report.check(False, f"{name}: {type(error).__name__}: {str(error)[:400]}")
    return found


PARTS = {"rates": rates}


def main(given: Sequence[str] | None = None) -> int:
    """1 when a value is wrong or a rate below its share."""
    return run_parts(
        __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch",), given=given
    )


if __name__ == "__main__":
    sys.exit(main())
