"""ONNX Runtime on a CUDA device: right beside its CPU provider, device tensors on the caller's stream, CUDA graphs, NHWC, no inner CPU fallback.

    python tests/gpu/onnxruntime_cuda.py --out cuda_onnxruntime.json [PART ...]

Needs onnxruntime-gpu and PyTorch with CUDA.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gpu_report import Report, called_together_us, called_us, run_parts
from vendor_models import light_resnet50, opened_batch, reference, relative_error, small_net
from vendor_networks import NETWORKS

import xpuruntime as xrt

DEVICE = "cuda:0"


def opened(model: Any, **options: str) -> xrt.InferenceSession:
    """Return a strict session on the CUDA provider: a node on the CPU is an error."""
    policy = xrt.ExecutionPolicy(engine_options={"onnxruntime": options}, strict=True, caching=False)
    return xrt.InferenceSession(model, device=DEVICE, engine="onnxruntime", exec_policy=policy)


def outputs(report: Report, args: argparse.Namespace) -> Any:
    """A small network and ResNet-50 from the host, in several configurations of cuDNN."""
    found = {}
    for name, options in {
        "default": {},
        "nhwc": {"prefer_nhwc": "1"},
        "heuristic": {"cudnn_conv_algo_search": "HEURISTIC"},
        "graph": {"enable_cuda_graph": "1"},
    }.items():
        for kind, (model, feeds) in {
            "small": (small_net().SerializeToString(), opened_batch(1)),
            "resnet50": light_resnet50(),
        }.items():
            want = reference(model, feeds)[0]
            with opened(model, **options) as sess:
                errors = [relative_error(next(iter(sess.run(feeds).values())), want) for _ in range(4)]
                found[f"{kind} {name}"] = called_us(lambda: sess.run(feeds), 50)  # noqa: B023
            report.bound(f"{kind}, {name}: largest error", max(errors), at_most=1e-4)
    return found


def graphs_read_their_inputs(report: Report, args: argparse.Namespace) -> Any:
    """A replayed graph computes each run's own inputs, not those of its capture."""
    model = small_net(4).SerializeToString()
    with opened(model, enable_cuda_graph="1") as sess:
        for seed in range(8):
            feeds = opened_batch(4, seed=seed)
            error = relative_error(sess.run(feeds)["y"], reference(model, feeds)[0])
            report.bound(f"run {seed}", error, at_most=1e-4)


def device_tensors(report: Report, args: argparse.Namespace) -> Any:
    """PyTorch's tensors in and out, on two of its streams, with open batch sizes; what a run adds to the vendor's own call."""
    import torch

    model = small_net("batch").SerializeToString()
    with opened(model) as sess:
        side = torch.cuda.Stream()
        for count in (1, 5, 2):
            feeds = opened_batch(count, seed=count)
            want = reference(model, feeds)[0]
            for stream in (torch.cuda.default_stream(), side):
                with torch.cuda.stream(stream):
                    x = torch.from_numpy(feeds["x"]).cuda(non_blocking=True) * 2 / 2
                    y = sess.run({"x": x})["y"]
                    error = relative_error((y * 1).cpu().numpy(), want)
                report.check(y.is_cuda, "the output stays on the device")
                report.bound(f"batch {count}: largest error", error, at_most=1e-4)
        late = []
        for seed in range(
            24
        ):  # nobody waits in between, and every other run has a new address or another size
            with torch.cuda.stream(side if seed % 3 == 0 else torch.cuda.default_stream()):
                feeds = opened_batch(1 + seed % 2, seed=seed)
                late.append((feeds, sess.run({"x": torch.from_numpy(feeds["x"]).cuda() * 1})["y"]))
        torch.cuda.synchronize()
        errors = [relative_error(y.cpu().numpy(), reference(model, f)[0]) for f, y in late]
        report.bound("24 queued runs: largest error", max(errors), at_most=1e-4)
        found = {"small": _overhead(report, "small", sess, opened_batch(1))}
    for name, make in NETWORKS.items():
        model, feeds = make()
        with opened(model) as sess:
            found[name] = _overhead(report, name, sess, feeds)
    return found


def _overhead(
    report: Report, name: str, sess: xrt.InferenceSession, feeds: Mapping[str, np.ndarray[Any, Any]]
) -> dict[str, float]:
    """Return microseconds of a run and of the vendor's own calls on bound device buffers: its documented one, and the one inside its package."""
    import onnxruntime
    import torch

    tensors = {n: torch.from_numpy(a).cuda() for n, a in feeds.items()}
    ((output, kept),) = sess.run(dict(tensors)).items()
    session: Any = sess._executable._session  # type: ignore[attr-defined]
    binding, settings = session.io_binding(), onnxruntime.RunOptions()
    settings.add_run_config_entry("disable_synchronize_execution_providers", "1")
    for n, tensor in tensors.items():
        binding.bind_input(n, "cuda", 0, feeds[n].dtype.type, tuple(tensor.shape), tensor.data_ptr())
    own = torch.empty_like(kept)
    binding.bind_output(output, "cuda", 0, np.float32, tuple(own.shape), own.data_ptr())
    inner, bound = session._sess.run_with_iobinding, binding._iobinding
    calls = {
        "own_us": lambda: session.run_with_iobinding(binding, settings),
        "inner_us": lambda: inner(bound, settings),
        "ours_us": lambda: sess.run(dict(tensors)),
    }
    found = called_together_us(calls, 500, settle=torch.cuda.synchronize)
    error = relative_error(own.cpu().numpy(), kept.cpu().numpy())
    report.bound(f"{name}: the vendor's own calls differ from a run by", error, at_most=1e-4)
    for what, call in (("vendor's own call", "own_us"), ("call inside the vendor's package", "inner_us")):
        over = found["ours_us"] - found[call]
        report.bound(f"{name}: a run over the {what}", over, at_most=10.0, unit="us", required=False)
    return found


PARTS = {
    "outputs": outputs,
    "graphs_read_their_inputs": graphs_read_their_inputs,
    "device_tensors": device_tensors,
}


def gpu() -> str:
    """Return the name of the device."""
    import torch

    return str(torch.cuda.get_device_name(0))


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a check fails."""
    return run_parts(__doc__, PARTS, gpu=gpu, packages=("onnxruntime-gpu", "torch"), argv=argv)


if __name__ == "__main__":
    sys.exit(main())
