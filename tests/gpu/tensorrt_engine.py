"""TensorRT on a CUDA device: the specification's snippet, right beside ONNX Runtime, profiles, half precision, second start from the store, device
tensors, plan files.

    python tests/gpu/tensorrt_engine.py --out cuda_tensorrt.json [--tactic-sources EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS] [PART ...]

Needs tensorrt (8.6 to 11), onnx and onnxruntime, but no torch. Where TensorRT 8.6 has no real cuBLAS and cuDNN, name the tactic sources above. The
snippet's policy asks for cuBLASLt, so ``snippet`` needs cuBLAS of CUDA 12 with TensorRT 8.6 and 10.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gpu_report import Report, called_together_us, called_us, machine, name_of_device, write
from vendor_models import light_resnet50, opened_batch, reference, relative_error, small_net
from vendor_networks import NETWORKS

import xpuruntime as xrt
from xpuruntime.runtime.memory.buffer import DeviceBuffer

DEVICE = "cuda:0"
TOLERANCE = {"float32": 1e-5, "float16": 5e-3}
"""Largest relative errors: TF32 is off, and half precision rounds each layer."""


def opened(model: Any, args: argparse.Namespace, cache: str, **fields: Any) -> xrt.InferenceSession:
    """Return a session on TensorRT, with the tactic sources of the command line."""
    options = dict(fields.pop("options", {}))
    if args.tactic_sources:
        options["tactic_sources"] = args.tactic_sources
    policy = xrt.ExecutionPolicy(engine_options={"tensorrt": options}, **fields)
    return xrt.InferenceSession(model, device=DEVICE, engine="tensorrt", exec_policy=policy, cache_dir=cache)


def snippet(report: Report, args: argparse.Namespace, cache: str) -> Any:
    """The specification's first snippet on inference, as written, with the package's name mapped; its policy's word is a tactic source."""
    root = Path(__file__).resolve().parents[2]
    sys.path += [str(root), str(root / "tests" / "layout")]
    from spec_blocks import BLOCKS

    from examples.small_model import small_model

    model = small_model()
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    with contextlib.chdir(cache):
        Path("model.onnx").write_bytes(model.SerializeToString())
        names: dict[str, Any] = {"x": x}
        exec(compile(BLOCKS["design 7.3"], "design 7.3", "exec"), names)
    sess, (value,) = names["sess"], names["out"].values()
    (want,) = reference(model.SerializeToString(), {"input": x})
    error = relative_error(value, want)
    report.bound("largest error with fp16=True", error, at_most=TOLERANCE["float16"])
    (region,) = sess.plan.regions
    report.check(
        (region.engine, region.precision) == ("tensorrt", "float16"), f"{region.engine} in {region.precision}"
    )
    rows = [(r.kernel, list(r.nodes)) for r in sess.receipt().evidence["r0"].rows]
    decisions = [d.to_json() for d in sess.plan.decisions]
    sess.close()
    return {"error": error, "kernels": rows, "decisions": decisions}


def outputs(report: Report, args: argparse.Namespace, cache: str) -> Any:
    """A small network in both precisions, with the evidence of the inspector and the profiler."""
    model, feeds, found = small_net().SerializeToString(), opened_batch(1), {}
    (want,) = reference(model, feeds)
    for precision, limit in TOLERANCE.items():
        if precision == "float16" and version() >= 11:
            continue  # 11 computes in the types of the model
        with opened(model, args, cache, precision=precision) as sess:
            errors = [relative_error(sess.run(feeds)["y"], want) for _ in range(5)]
            receipt = sess.receipt()
        evidence = receipt.evidence["r0"]
        report.bound(f"{precision}: largest error", max(errors), at_most=limit)
        report.check(any("conv1" in r.nodes for r in evidence.rows), "the inspector names the model's nodes")
        report.check(any(r.time_us for r in evidence.rows), f"times: {evidence.time_source}")
        found[precision] = {"errors": errors, "kernels": [r.kernel for r in evidence.rows]}
    return found


def profiles(report: Report, args: argparse.Namespace, cache: str) -> Any:
    """Open batch sizes with two profiles; a size that no profile has is an error."""
    model = small_net("batch").SerializeToString()
    with opened(model, args, cache, options={"profiles": "batch=1:4:8; batch=32:32:32"}) as sess:
        for count in (1, 3, 8, 32, 2):
            feeds = opened_batch(count, seed=count)
            report.bound(
                f"batch {count}",
                relative_error(sess.run(feeds)["y"], reference(model, feeds)[0]),
                at_most=1e-5,
            )
        try:
            sess.run(opened_batch(16))
            report.check(False, "a batch of 16 must be refused")
        except xrt.InputError as error:
            report.check("no optimization profile" in str(error), str(error))


def store(report: Report, args: argparse.Namespace, cache: str) -> Any:
    """ResNet-50: the first build, the second start from the store, and what misses the store. Its random weights overflow float16."""
    model, feeds = light_resnet50()
    want, seconds = reference(model, feeds)[0], []
    for _ in range(2):
        started = time.perf_counter()
        with opened(model, args, cache) as sess:
            seconds.append(time.perf_counter() - started)
            facts = sess.plan.decision("engine").chosen.facts
            error = relative_error(next(iter(sess.run(feeds).values())), want)
            run_us = called_us(lambda: sess.run(feeds), 100)
    report.check(facts["from_store"], "the second start is from the store")
    report.bound("first build over second start", seconds[0] / seconds[1], at_least=50.0, unit="x")
    report.bound("largest error", error, at_most=1e-4)
    with opened(model, args, cache, options={"builder_optimization_level": "2"}) as sess:
        report.check(
            not sess.plan.decision("engine").chosen.facts["from_store"], "another option misses the store"
        )
    return {"seconds": seconds, "run_us": run_us, "error": error}


def device_tensors(report: Report, args: argparse.Namespace, cache: str) -> Any:
    """Tensors of the device in and out: right, still on the device, and what a run adds to the vendor's own call."""
    model, feeds = small_net().SerializeToString(), opened_batch(1)
    (want,) = reference(model, feeds)
    with opened(model, args, cache) as sess:
        x = DeviceBuffer.from_numpy(feeds["x"], DEVICE)
        (y,) = sess.run({"x": x}).values()
        report.bound("largest error", relative_error(np.asarray(y.to_numpy()), want), at_most=1e-5)
        report.check(
            isinstance(y, DeviceBuffer) and not y.backend.core_is_host, "the output stays on the device"
        )
        late = []
        for seed in range(24):  # nobody waits in between, and each run has a new address
            feeds = opened_batch(1, seed=seed)
            late.append((feeds, *sess.run({"x": DeviceBuffer.from_numpy(feeds["x"], DEVICE)}).values()))
        errors = [relative_error(np.asarray(y.to_numpy()), reference(model, f)[0]) for f, y in late]
        report.bound("24 queued runs: largest error", max(errors), at_most=1e-5)
        found = {"small": _overhead(report, "small", sess, {"x": x}, want)}
    for name in args.networks:  # what a run adds does not depend on how well the builder chose
        model, feeds = NETWORKS[name]()
        (want,) = reference(model, feeds)
        with opened(model, args, cache, options={"builder_optimization_level": "1"}) as sess:
            tensors = {n: DeviceBuffer.from_numpy(a, DEVICE) for n, a in feeds.items()}
            found[name] = _overhead(report, name, sess, tensors, want)
    return found


def _overhead(
    report: Report, name: str, sess: xrt.InferenceSession, tensors: Mapping[str, DeviceBuffer], want: Any
) -> dict[str, float]:
    """Return microseconds of a run and of the vendor's own call on the same memory, in turns."""
    backend, executable = next(iter(tensors.values())).backend, sess._executable
    stream = backend.current_stream()
    (kept,) = sess.run(dict(tensors)).values()  # the vendor's own calls write to its memory below
    context = executable._pool.take(stream)  # type: ignore[attr-defined]  # shapes and addresses are set
    backend.clear(kept.native_handle, kept.size_bytes)
    works = {
        "own_us": lambda: context.vendor.execute_async_v3(stream),
        "ours_us": lambda: sess.run(dict(tensors)),
    }
    found = called_together_us(works, 500, settle=backend.synchronize)
    error = relative_error(np.asarray(kept.to_numpy()), want)
    report.bound(f"{name}: largest error of the vendor's own calls", error, at_most=1e-4)
    over = found["ours_us"] - found["own_us"]
    report.bound(f"{name}: a run over the vendor's own call", over, at_most=10.0, unit="us", required=False)
    return found


def plan_files(report: Report, args: argparse.Namespace, cache: str) -> Any:
    """An engine file is a model; a cut one is an error with the vendor's text."""
    from xpuruntime.engines import lookup
    from xpuruntime.frontends.model_file import open_model
    from xpuruntime.protocols import EngineRequest
    from xpuruntime.targets import DeviceId

    model, feeds = small_net().SerializeToString(), opened_batch(1)
    options = {"tactic_sources": args.tactic_sources} if args.tactic_sources else {}
    request = EngineRequest(DeviceId("cuda"), options=options)
    path = Path(cache) / "small.engine"
    path.write_bytes(lookup("tensorrt").load().build(open_model(model), request).blob)
    with xrt.InferenceSession(path, device=DEVICE, engine="tensorrt") as sess:
        report.bound(
            "largest error", relative_error(sess.run(feeds)["y"], reference(model, feeds)[0]), at_most=1e-5
        )
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    try:
        xrt.InferenceSession(path, device=DEVICE, engine="tensorrt")
        report.check(False, "a cut file must be refused")
    except xrt.ModelError as error:
        report.check("cannot load it" in str(error), str(error))


def version() -> int:
    """Return the vendor's major version."""
    from xpuruntime.engines import lookup

    return int(lookup("tensorrt").load().version().partition(".")[0])


PARTS = {
    "snippet": snippet,
    "outputs": outputs,
    "profiles": profiles,
    "store": store,
    "device_tensors": device_tensors,
    "plan_files": plan_files,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a check fails or TensorRT cannot be used."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parser.add_argument("--tactic-sources", default="")
    parser.add_argument(
        "--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS), help="of device_tensors"
    )
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args(argv)
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        raise SystemExit(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    if args.dry_run:
        print(", ".join(PARTS))
        return 0
    report, found = Report(), dict[str, Any]()
    with tempfile.TemporaryDirectory() as cache:
        for name in args.parts or PARTS:
            print(f"\n{name}: {PARTS[name].__doc__}", flush=True)
            try:
                found[name] = PARTS[name](report, args, cache)
            except Exception as error:
                report.check(False, f"{name}: {type(error).__name__}: {str(error)[:1500]}")
            facts = {
                "machine": machine(name_of_device(), "tensorrt", "onnxruntime"),
                "tactic_sources": args.tactic_sources,
            }
            write(args.out, {**facts, **found, "checks": report.checks, "failures": report.failures})
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
