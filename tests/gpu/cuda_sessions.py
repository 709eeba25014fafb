"""Sessions and saved programs on a CUDA device: networks against float64, tensors of the device without a copy, programs with several targets.

    python tests/gpu/cuda_sessions.py --out benchmarks/results/cuda_sessions.json [PART ...]

Needs torch with CUDA and transformers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_report import Report, called_us, run_parts

import xpuruntime as xrt
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.program.program import CompiledProgram
from xpuruntime.runtime import CudaBackend, Executor
from xpuruntime.testing.conformance.seeded import networks as models


def one_model(report: Report, name: str) -> dict[str, Any]:
    """A small network in a session: near float64, the same bits again, every kernel on the device."""
    module, _ = models.build(name, "small")
    feeds = models.inputs(name, 1)
    tensors = tuple(torch.from_numpy(v) for v in feeds.values())
    with torch.no_grad():
        want = module.double()(*(t.double() if t.is_floating_point() else t for t in tensors))
        module.float()
    want = np.asarray(want.detach() if torch.is_tensor(want) else want[0].detach())
    started = time.perf_counter()
    with xrt.InferenceSession(module, device="cuda:0", engine="native", example_inputs=tensors) as sess:
        opened = time.perf_counter() - started
        given = dict(zip([s.name for s in sess.input_info], feeds.values(), strict=True))
        results = [next(iter(sess.run(given).values())) for _ in range(4)]
        receipt = sess.receipt()
        evidence = receipt.evidence["r0"]
        run_us = round(called_us(lambda: sess.run(given), 200), 2)
    scale = np.abs(want).max()
    errors = [float(np.abs(np.asarray(r, np.float64) - want).max() / scale) for r in results]
    report.check(
        max(errors) <= 1e-5,
        f"{name}: max|d|/max|ref| {max(errors):.2e} against float64, opened in {opened:.1f} s, {run_us} us",
    )
    report.check(all(np.array_equal(results[0], r) for r in results), f"{name}: the same bits in every run")
    report.check(
        all(r.device == "cuda:0" for r in evidence.rows),
        f"{name}: {len(evidence.rows)} kernels on cuda:0, {evidence.notes}",
    )
    kernels = sorted({r.kernel.partition(":")[0] for r in evidence.rows})
    print("   ", kernels)
    return {
        "max_rel": max(errors),
        "open_s": round(opened, 2),
        "run_us": run_us,
        "kernels": kernels,
        "notes": evidence.notes,
    }


def sessions(report: Report, args: argparse.Namespace) -> Any:
    """Every small network in a session on the device against float64."""
    found = {}
    for name in models.MODELS:
        try:
            found[name] = one_model(report, name)
        except Exception as error:
            report.check(False, f"{name}: {type(error).__name__}: {str(error)[:1500]}")
    return found


def session_tensors(report: Report, args: argparse.Namespace) -> Any:
    """Sessions on tensors of the device: no copy, on PyTorch's current stream, nobody waits."""
    module, _ = models.build("resnet18", "small")
    image = torch.from_numpy(models.inputs("resnet18", 1)["image"])
    with torch.no_grad():
        want = module.double()(image.double())
        module.float()
    found: dict[str, Any] = {}
    with xrt.InferenceSession(module, device="cuda:0", engine="native", example_inputs=(image,)) as sess:
        name = sess.input_info[0].name
        host = sess.run({name: image})
        report.check(
            all(t.device.type == "cpu" for t in host.values()), "tensors of the host come back on the host"
        )
        sent = sess._executable.counters["sent"]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(6):
                x = image.cuda(non_blocking=True) * 2 / 2
                y = next(iter(sess.run({name: x}).values()))
                z = (y.double().cpu() - want).abs().max() / want.abs().max()
                report.check(y.device.type == "cuda" and z < 1e-5, f"on the device: {float(z):.2e}")
        report.check(sess._executable.counters["sent"] == sent, "nothing crossed")
        x = image.cuda()
        found["queue_us"] = round(called_us(lambda: sess.run({name: x}), 300), 2)
        torch.cuda.synchronize()

        def waited() -> None:
            sess.run({name: x})
            torch.cuda.synchronize()

        found["run_and_wait_us"] = round(called_us(waited, 300), 2)
        try:
            sess.run({name: x.double()})
            report.check(False, "another dtype must be refused")
        except xrt.InputError as error:
            report.check("must be float32" in str(error), str(error))
        print("   ", found, sess.receipt().evidence["r0"].notes)
    return found


def programs(report: Report, args: argparse.Namespace) -> Any:
    """Compiled ahead, saved, loaded, run; a binary for another device is refused before it runs."""
    module, _ = models.build("resnet18", "small")
    image = models.inputs("resnet18", 2)["image"]
    graph = xrt.extract_ir(module, (torch.from_numpy(image),))
    graph = getattr(graph, "graph", graph)
    path = Path(tempfile.mkdtemp()) / "model.npubin"
    weights = {k: v.detach().numpy() for k, v in module.state_dict().items()}
    compile_graph(graph, target=["cuda:sm_100", CudaBackend().target, "cpu"]).save(path)
    loaded = CompiledProgram.load(path)
    executor = Executor(loaded, "cuda:0")
    report.check("sm_100" in str(executor.decision.rejected[0]), f"{executor.decision.rejected[0].reason}")
    del weights
    return executor.plan.target


PARTS = {"sessions": sessions, "session_tensors": session_tensors, "programs": programs}


def main(argv: Sequence[str] | None = None) -> int:
    """1 when a check fails."""
    return run_parts(
        __doc__,
        PARTS,
        gpu=lambda: torch.cuda.get_device_name(0),
        packages=("torch", "transformers"),
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
