"""Generated kernels that memory bounds: elementwise, rows, movement, pools, as programs on tensors of the device, compared with the copy rate of the
same run and with PyTorch.

    python benchmarks/cuda/bandwidth.py --out benchmarks/results/cuda_bandwidth.json
    python benchmarks/cuda/bandwidth.py --only gelu --only pool

Values are checked against PyTorch, of 16 bits against its float32. Needs torch with CUDA.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, queued_us, run_parts
from support.speed_graphs import speed_graphs

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import Graph
from xpuruntime.runtime import CudaBackend, Executor
from xpuruntime.types import DType

F = torch.nn.functional
Torch = Callable[..., torch.Tensor]
ELEMENTWISE, ROWS = 0.88, 0.80
"""Shares of the copy rate that are asked."""
AS_FAST = 0.97
"""PyTorch's time over ours that is asked; below 1 by what two equal kernels differ by."""

NOT_YET = ("embedding", "max pool 3x3 bf16")
"""Beginnings of names whose limits need not be reached yet: they are told."""


def _last(pool: Torch) -> Torch:
    """A pool of channels-last images."""
    return lambda x: pool(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def _max3(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(x, 3, 2, 1)


def _embedding(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return F.embedding(index, table)


TORCH: Mapping[str, tuple[Torch, float | None]] = {
    "add": (torch.add, ELEMENTWISE),
    "gelu": (F.gelu, ELEMENTWISE),
    "bias gelu": (lambda x, y: F.gelu(x + y), ELEMENTWISE),
    "tanh gelu": (lambda x: F.gelu(x, approximate="tanh"), ELEMENTWISE),
    "sigmoid": (torch.sigmoid, ELEMENTWISE),
    "silu mul": (lambda x, y: F.silu(x) * y, ELEMENTWISE),
    "cast": (lambda x: x.bfloat16(), ELEMENTWISE),
    "softmax": (lambda x: x.softmax(1), ROWS),
    "layer norm": (lambda x, w, c: F.layer_norm(x, w.shape, w, c), ROWS),
    "rms norm": (lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), ROWS),
    "transpose": (lambda x: x.T.contiguous(), None),
    "heads": (lambda x: x.permute(0, 2, 1, 3).contiguous(), None),
    "cat": (lambda x, y: torch.cat([x, y], 1), None),
    "sum rows": (lambda x: x.sum(1), ROWS),
    "sum columns": (lambda x: x.sum(0), ROWS),
    "sum middle": (lambda x: x.sum(1), ROWS),
    "sum batch and space": (lambda x: x.sum((0, 2, 3)), ROWS),
    "sum all": (lambda x: x.sum(), ROWS),
    "embedding": (_embedding, None),
    "max pool 3x3": (_max3, ROWS),
    "max pool 2x2": (lambda x: F.max_pool2d(x, 2, 2), ROWS),
    "avg pool 3x3": (lambda x: F.avg_pool2d(x, 3, 1, 1), ROWS),
    "max pool 3x3 channels last": (_last(_max3), ROWS),
    "avg pool 2x2 channels last": (_last(lambda x: F.avg_pool2d(x, 2, 2)), ROWS),
}
"""By the beginning of a graph's name (the longest that fits): the same in PyTorch, and the share that is asked."""


def same_in_torch(name: str) -> tuple[Torch, float | None]:
    """PyTorch's function for a graph, and the share of the copy rate that is asked of ours."""
    return TORCH[max((prefix for prefix in TORCH if f"{name} ".startswith(f"{prefix} ")), key=len)]


def drawn(graph: Graph) -> list[torch.Tensor]:
    """Inputs on the device."""
    tensors = []
    for spec in graph.input_specs:
        shape, kind = [int(d) for d in spec.shape], getattr(torch, spec.dtype.value)
        if spec.dtype is DType.INT64:  # an index into the first operand
            tensors.append(torch.randint(0, int(graph.input_specs[0].shape[0]), shape, device="cuda"))
        else:
            tensors.append(torch.randn(shape, device="cuda", dtype=kind))
    return tensors


def _far(output: torch.Tensor, function: Torch, inputs: Sequence[torch.Tensor]) -> float:
    """The largest difference from PyTorch's float32, over its largest value."""
    wide = [x.float() if x.is_floating_point() else x for x in inputs]
    want = function(*wide)
    return float((output.float().reshape(want.shape) - want).abs().max() / want.abs().max())


def one(report: Report, name: str, graph: Graph, backend: CudaBackend, copy_rate: float) -> dict[str, Any]:
    """Right, then fast."""
    function, min_share = same_in_torch(name)
    program = compile_graph(graph, target=backend.target)
    calls = program.entries[0].plans[0].calls
    with Executor(program, backend) as executor:
        fixed = executor.bind({})
        inputs = drawn(graph)
        feeds = dict(zip([s.name for s in executor.entry.inputs], inputs, strict=True))
        stream = torch.cuda.current_stream().cuda_stream
        out = executor.run(feeds, stream=stream)
        output = torch.from_dlpack(next(iter(out.values())))
        error = _far(output, function, inputs)
        tolerance = {torch.bfloat16: 2**-8, torch.float16: 2**-10}.get(output.dtype, 1e-4)
        report.check(error <= tolerance, f"{name}: {error:.1e} from PyTorch's float32")
        addresses = [x.data_ptr() for x in inputs], [b.address for b in out.values()]
        core = executor._core
        native_us = queued_us(lambda: core.run_memory(fixed, *addresses, None, None, None, stream))
        torch_us = queued_us(lambda: function(*inputs))
    rate = sum(c.bytes for c in calls) / native_us / 1e3
    share, required = rate / copy_rate, not name.startswith(NOT_YET)
    if min_share is not None:
        report.bound(
            f"{name}: share of the copy rate", round(share, 3), at_least=min_share, required=required
        )
    report.bound(
        f"{name}: PyTorch's time over ours",
        round(torch_us / native_us, 3),
        at_least=AS_FAST,
        required=required,
    )
    row = {
        "us": round(native_us, 1),
        "GB/s": round(rate),
        "share": round(share, 3),
        "torch_us": round(torch_us, 1),
        "kernels": len(calls),
        "far": error,
    }
    print(f"   {name}: {row}", flush=True)
    return row


def _copy_rate() -> float:
    source = torch.zeros(1 << 30, dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / queued_us(lambda: target.copy_(source), each=3) / 1e3


def _chosen(patterns: Sequence[str]) -> Iterator[tuple[str, Graph]]:
    for name, graph in speed_graphs():
        if not patterns or any(w in name for w in patterns):
            yield name, graph


def rates(report: Report, args: argparse.Namespace) -> Any:
    """Every kernel's rate over that of a copy of 4 GiB."""
    copy_rate = _copy_rate()
    results: dict[str, Any] = {"copy_GB/s": round(copy_rate)}
    backend = CudaBackend()
    for name, graph in _chosen(args.only):
        try:
            results[name] = one(report, name, graph, backend, copy_rate)
        except Exception as error:
            report.check(False, f"{name}: {type(error).__name__}: {str(error)[:400]}")
    return results


PARTS = {"rates": rates}


def main(argv: Sequence[str] | None = None) -> int:
    """1 when a value is wrong or a rate below its share."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD", help="only graphs with this in their name"
    )
    return run_parts(
        __doc__,
        PARTS,
        gpu=lambda: torch.cuda.get_device_name(0),
        packages=("torch",),
        argv=argv,
        parser=parser,
    )


if __name__ == "__main__":
    sys.exit(main())
