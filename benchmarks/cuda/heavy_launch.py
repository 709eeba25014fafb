"""Launches of single CUDA kernels on PyTorch tensors: lowered for this device, launched by CuPy, timed as CUDA graphs."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

from xpuruntime.codegen.cuda.target import CudaTarget, cuda_target
from xpuruntime.ir import GraphBuilder
from xpuruntime.kernels.kernel import LoweredCall, NodeCall, Operand, Stage

__all__ = ["Loaded", "node", "random", "target", "timed"]


@cache
def target() -> CudaTarget:
    """Return the target of this device without clusters, which CuPy cannot launch."""
    found = cuda_target("cuda:sm_{}{}".format(*torch.cuda.get_device_capability()))
    return CudaTarget(found.sm, replace(found.config, max_cluster_size=1))


def node(op: str, operands: Sequence[Any], weights: Sequence[int] = (), **attrs: Any) -> NodeCall:
    """Return the call of a node on torch tensors (or None). Operands at positions ``weights`` are weights."""
    b = GraphBuilder("one")
    names = [
        None if x is None else b.input(f"x{i}", f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}")
        for i, x in enumerate(operands)
    ]
    b.output("y", b.call(op, *names, **attrs))
    graph = b.build()
    (call_node,) = graph.nodes
    known = {names[i] for i in weights}
    inputs = tuple(
        Operand(i, graph.spec(i), i in known) if isinstance(i, str) else i for i in call_node.inputs
    )
    return NodeCall(call_node, inputs, tuple(graph.spec(v.name) for v in call_node.outputs))


@dataclass
class Loaded:
    """A lowered call whose stages can be launched."""

    stages: tuple[Stage, ...]
    data: bytes
    temps: tuple[int, ...]
    counters: int
    zeros: Any = None
    module: Any = None
    functions: list[Any] = field(default_factory=list)

    @classmethod
    def build(cls, lowered: LoweredCall) -> Loaded:
        """Compile the stages. Thread-safe."""
        texts = {f"kernel{i}": s.source for i, s in enumerate(lowered.stages)}
        parts = frozenset(p for s in lowered.stages for p in s.parts)
        return cls(lowered.stages, target().assemble(texts, parts).data, lowered.temps, lowered.counters)

    def load(self) -> None:
        """Load the functions. Call it on the main thread."""
        import cupy

        with tempfile.NamedTemporaryFile(suffix=".cubin", delete=False) as file:
            file.write(self.data)
        self.module = cupy.RawModule(path=file.name)
        self.zeros = torch.zeros(max(self.counters, 4), dtype=torch.uint8, device="cuda")
        self.functions = [self.module.get_function(f"kernel{i}") for i in range(len(self.stages))]
        for function, stage in zip(self.functions, self.stages, strict=True):
            if stage.options["shared"]:
                function.max_dynamic_shared_size_bytes = stage.options["shared"]

    def run(self, operands: Sequence[Any], y: Any, packed: Mapping[str, Any] | None = None) -> None:
        """Launch every stage on PyTorch's current stream. ``packed``: buffers by name that replace operands or are added to them."""
        import cupy

        if self.module is None:
            self.load()
        places = {f"in{i}": x for i, x in enumerate(operands) if x is not None} | {"out0": y}
        places |= packed or {}
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
    """Return random values on the device."""
    kind = getattr(torch, dtype)
    if not kind.is_floating_point:
        return torch.randint(-100, 100, tuple(shape), dtype=kind, device="cuda")
    return torch.randn(tuple(shape), device="cuda", dtype=torch.float32 if dtype != "float64" else kind).to(
        kind
    )


def timed(work: Callable[[int], Any], sets: int, repeats: int = 20) -> float:
    """Return the median milliseconds of one call, from replays of a graph that calls every set of operands several times."""
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
