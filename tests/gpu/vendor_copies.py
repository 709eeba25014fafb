"""Vendor engines on device tensors: copies to and from the host that CUPTI records, mixed plans, and float16 of TensorRT.

    python tests/gpu/vendor_copies.py onnxruntime mixed session --out cuda_vendor_copies.json
    python tests/gpu/vendor_copies.py tensorrt float16 [--tactic-sources EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS] --out cuda_tensorrt_copies.json

Needs onnx, onnxruntime (of the CPU for ``tensorrt``), CUPTI, and the vendor of each part, but no torch. ``--device cpu`` runs ``onnxruntime``, ``mixed`` and
``session`` on the host, which tries the script without a GPU and counts no copies.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from device_copies import CopyCounter
from gpu_report import Report, arguments, called_us, run_parts
from vendor_models import reference, relative_error
from vendor_networks import NETWORKS, wide_convolutions

import xpuruntime as xrt
from xpuruntime.frontends.model_file import open_model
from xpuruntime.frontends.onnx.importer import import_onnx
from xpuruntime.inference.partitioned.dag_executor import DAGExecutor
from xpuruntime.runtime.device import Device
from xpuruntime.runtime.memory.buffer import DeviceBuffer

RUNS = 20
TOLERANCE = 1e-4
HALF_TOLERANCE = 1e-2
MIXED = ("Erf", "Clip", "MaxPool")
"""The op whose first node in the middle of a network is given to the native engine, in order of preference."""

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Side:
    """The device of a part: how tensors get there, how to wait for it, and whether its copies are counted."""

    def __init__(self, name: str) -> None:
        self.name, self.counts, self.kind = name, name != "cpu", name.partition(":")[0]
        self._backend = Device(name).backend

    def tensors(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return inputs on the device."""
        return {n: DeviceBuffer.from_numpy(a, self._backend) if self.counts else a for n, a in feeds.items()}

    def wait(self) -> None:
        """Wait for queued work."""
        self._backend.synchronize()

    def array(self, value: Any) -> np.ndarray:
        """Return a result on the host."""
        return np.asarray(value.to_numpy() if isinstance(value, DeviceBuffer) else value)

    def host_copies(self, run: Run, tensors: Mapping[str, Any]) -> list[tuple[str, int]] | None:
        """Return the copies of ``RUNS`` runs that touch the host; None where they are not counted."""
        if not self.counts:
            return None
        self.wait()
        with CopyCounter() as copies:
            for _ in range(RUNS):
                run(tensors)
            self.wait()
        if copies.dropped:
            raise RuntimeError(f"CUPTI lost {copies.dropped} records")
        return copies.host


def checked(
    report: Report,
    side: Side,
    name: str,
    run: Run,
    model: bytes,
    feeds: Mapping[str, np.ndarray],
    limit: float,
) -> dict[str, Any]:
    """Check outputs beside ONNX Runtime's CPU provider and the copies of runs. Return figures and the time of a run."""
    want, tensors = reference(model, dict(feeds))[0], side.tensors(feeds)
    for _ in range(3):
        error = relative_error(side.array(next(iter(run(tensors).values()))), want)
    report.bound(f"{name}: largest error", error, at_most=limit)
    copies = side.host_copies(run, tensors)
    if copies is not None:
        report.bound(f"{name}: copies between host and device in {RUNS} runs", len(copies), at_most=0)

    def once() -> None:
        run(tensors)
        side.wait()

    return {"error": error, "copies": copies and sorted(set(copies)), "us": called_us(once, 50)}


def opened(model: bytes, side: Side, engine: str, **fields: Any) -> xrt.InferenceSession:
    """Return a session that may use nothing but the engine's own device."""
    options = dict(fields.pop("options", {}))
    chosen = {engine: options} if options else None
    policy = xrt.ExecutionPolicy(
        engine_options=chosen, strict=engine == "onnxruntime", caching=False, **fields
    )
    return xrt.InferenceSession(model, device=side.name, engine=engine, exec_policy=policy)


def onnxruntime(report: Report, args: argparse.Namespace) -> Any:
    """ONNX Runtime: ResNet-50, MiniLM and a text recognizer on device tensors. No copy touches the host."""
    side = Side(args.device)
    found = {}
    for name, make in NETWORKS.items():
        model, feeds = make()
        with opened(model, side, "onnxruntime") as sess:
            found[name] = checked(report, side, name, sess.run, model, feeds, TOLERANCE)
    return found


def tensorrt(report: Report, args: argparse.Namespace) -> Any:
    """TensorRT: the same models. No copy touches the host."""
    side = Side(args.device)
    found = {}
    options = _sources(args) | {"builder_optimization_level": "1"}  # which kernels are chosen changes no copy
    for name, make in NETWORKS.items():
        model, feeds = make()
        with opened(model, side, "tensorrt", options=options) as sess:
            found[name] = checked(report, side, name, sess.run, model, feeds, TOLERANCE)
    return found


def _sources(args: argparse.Namespace) -> dict[str, str]:
    return {"tactic_sources": args.tactic_sources} if args.tactic_sources else {}


def mixed(report: Report, args: argparse.Namespace) -> Any:
    """A native region between two of ONNX Runtime on one device: right, no copy to the host, and its time beside each engine alone."""
    side, found = Side(args.device), {}
    for name, make in NETWORKS.items():
        model, feeds = make()
        graph, weights = import_onnx(model)
        native, vendor = (f"{e} on {side.name}" if side.counts else e for e in ("native", "onnxruntime"))
        plan = xrt.partition(
            graph, engine=vendor, others=(native,), place={_middle(model): native}, absorb=False
        )
        engines = [r.engine for r in plan.regions]
        report.check(engines == ["onnxruntime", "native", "onnxruntime"], f"{name}: regions {engines}")
        with DAGExecutor(plan, side.name, original=open_model(model)) as dag:
            dag.load_weights(weights)
            row = checked(report, side, f"{name}, mixed", dag.execute, model, feeds, TOLERANCE)
            row["region_s"] = dag.region_times(feeds, time.perf_counter_ns)
        alone = {e: _alone_us(model, side, e, feeds) for e in ("onnxruntime", "native")}
        best = min(alone.values())
        report.bound(
            f"{name}: time of the best single engine over the mix's",
            best / row["us"],
            at_least=1.0,
            unit="x",
            required=False,
        )
        found[name] = row | {"alone_us": alone, "engines": engines}
    return found


def session(report: Report, args: argparse.Namespace) -> Any:
    """Sessions: a native region that a policy places between two of ONNX Runtime, and engines chosen by measured times."""
    side, found = Side(args.device), {}
    for name, make in NETWORKS.items():
        model, feeds = make()
        rows: dict[str, Any] = {}
        with _placed(model, side, {_middle(model): "native"}) as sess:
            engines = [r.engine for r in sess.plan.regions]
            report.check(set(engines) == {"onnxruntime", "native"}, f"{name}, placed: regions {engines}")
            rows["placed"] = {"engines": engines} | checked(
                report, side, f"{name}, placed", sess.run, model, feeds, TOLERANCE
            )
        with _placed(model, side, {"*": "auto"}, engine_order={side.kind: ("onnxruntime", "native")}) as sess:
            decision = sess.plan.decision("engine")
            row = checked(report, side, f"{name}, chosen", sess.run, model, feeds, TOLERANCE)
            rows["chosen"] = row | {"name": decision.chosen.name, "why": decision.chosen.reason}
            rows["against"] = {c.name: c.reason for c in decision.rejected}
        print(f"  {name}: {rows['chosen']['name']} ({rows['chosen']['why']})", rows["against"], flush=True)
        rows["alone_us"] = {e: _alone_us(model, side, e, feeds) for e in ("onnxruntime", "native")}
        fastest = min(rows["alone_us"], key=rows["alone_us"].__getitem__)
        if rows["chosen"]["name"] != f"{fastest} on {side.name}":
            ratio = rows["chosen"]["us"] / rows["alone_us"][fastest]
            report.bound(f"{name}: time of the choice over {fastest}'s", ratio, at_most=1.0, unit="x")
        found[name] = rows
    return found


def _placed(model: bytes, side: Side, place: Mapping[str, str], **fields: Any) -> xrt.InferenceSession:
    engine = None if "*" in place else "onnxruntime"
    policy = xrt.ExecutionPolicy(place=place, caching=False, **fields)
    return xrt.InferenceSession(model, device=side.name, engine=engine, exec_policy=policy)


def _alone_us(model: bytes, side: Side, engine: str, feeds: Mapping[str, np.ndarray]) -> float:
    """Return microseconds of a run on one engine."""
    with opened(model, side, engine) as sess:
        tensors = side.tensors(feeds)

        def once() -> None:
            sess.run(tensors)
            side.wait()

        return called_us(once, 50)


def _middle(model: bytes) -> str:
    """Return the node that the native engine gets."""
    nodes = open_model(model).nodes
    for op in MIXED:
        same = [n.name for n in nodes if n.op == op]
        if same:
            return str(same[len(same) // 2])
    raise ValueError(f"the model has none of {', '.join(MIXED)}")


def float16(report: Report, args: argparse.Namespace) -> Any:
    """TensorRT in float16: networks whose fastest kernels are of that type and whose values fit it."""
    side, found = Side(args.device), {}
    for name, make in {"wide_convolutions": wide_convolutions, "minilm": NETWORKS["minilm"]}.items():
        model, feeds = make()
        times = {}
        for precision, limit in (("float32", TOLERANCE), ("float16", HALF_TOLERANCE)):
            with opened(model, side, "tensorrt", options=_sources(args), precision=precision) as sess:
                row = checked(report, side, f"{name}, {precision}", sess.run, model, feeds, limit)
                sess.run(feeds)
                rows = sess.receipt().evidence["r0"].rows
            row["layers in float16"] = sum(r.precision == "float16" for r in rows)
            row["layers"] = len(rows)
            times[precision] = row
        report.bound(f"{name}: layers in float16", times["float16"]["layers in float16"], at_least=1)
        speed = times["float32"]["us"] / times["float16"]["us"]
        report.bound(f"{name}: float16 over float32", speed, at_least=1.0, unit="x", required=False)
        found[name] = times
    return found


PARTS = {
    "onnxruntime": onnxruntime,
    "tensorrt": tensorrt,
    "mixed": mixed,
    "session": session,
    "float16": float16,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a check fails."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0", help="cpu tries the script without a GPU")
    parser.add_argument("--tactic-sources", default="", help="of TensorRT 8.6 without cuBLAS and cuDNN")
    device = parser.parse_args(argv).device
    packages = ("onnxruntime", "onnxruntime-gpu", "tensorrt", "onnx")
    return run_parts(__doc__, PARTS, gpu=lambda: _name(device), packages=packages, argv=argv, parser=parser)


def _name(device: str) -> str:
    return str(getattr(Device(device).backend, "name", device))


if __name__ == "__main__":
    sys.exit(main())
