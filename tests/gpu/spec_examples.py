"""The specification's examples that need a CUDA device, run on one with nothing but names mapped; the interpreter says whether they are right.

    python tests/gpu/spec_examples.py --out benchmarks/results/cuda_spec_examples.json [PART ...]

The other examples run anywhere, in tests/layout. Needs torch with CUDA, CuPy (the guide's own suggestion for a driver), onnx and pytest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gpu_report import Report, run_parts

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests" / "layout")]

from spec_blocks import BLOCKS, arrays, linear_graph  # noqa: E402

import xpuruntime as xrt  # noqa: E402
from xpuruntime.codegen.cuda.target import cuda_target  # noqa: E402
from xpuruntime.ir import Graph, interp, save  # noqa: E402
from xpuruntime.program.program import Binary, KernelCall  # noqa: E402
from xpuruntime.runtime import PythonBackend  # noqa: E402
from xpuruntime.storage.tensor_files import write_safetensors  # noqa: E402
from xpuruntime.types import TensorSpec  # noqa: E402

KERNELS = {
    "elementwise.cu": """
extern "C" __global__ void relu(float const *x, float *y, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
""",
    # The guide's names know no transposed right side: its matrix product is the layer's, whose right side is [n, k].
    "matmul.cu": """
extern "C" __global__ void matmul_tiled(float const *a, float const *b, float *y, long long m, long long n, long long k) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= m * n) return;
    float sum = 0.0f;
    for (long long p = 0; p < k; ++p) sum += a[i / n * k + p] * b[i % n * k + p];
    y[i] = sum;
}
""",
}
"""Step 3 of the guide: its files, as far as its example goes."""


class CupyBackend(PythonBackend):
    """Step 4 of the guide: a driver by CuPy. The executor is the runtime's."""

    kind = "custom"  # what a target without a name is called

    def allocate(self, size_bytes: int) -> Any:
        import cupy

        return cupy.zeros(max(size_bytes, 1), cupy.uint8)

    def upload(self, handle: Any, data: np.ndarray[Any, Any]) -> None:
        import cupy

        handle[: data.size] = cupy.asarray(data)

    def download(self, handle: Any, size_bytes: int) -> np.ndarray[Any, Any]:
        return np.asarray(handle[:size_bytes].get())

    def prepare(self, call: KernelCall, specs: tuple[TensorSpec, ...], binary: Binary | None) -> Any:
        import cupy

        assert binary is not None
        file = json.loads(binary.data)[call.symbol]
        function = cupy.RawModule(code=KERNELS[file]).get_function(str(call.options["entry"]))
        sizes = {p.name: np.int64(p.value) for p in call.params}
        ends = [sizes[x] for x in ("m", "n", "k")] if "m" in sizes else [sizes["elements"]]
        return function, ends, int(np.prod([int(d) for d in specs[-1].shape]))

    def submit(self, calls: Sequence[Any], memory: Sequence[Any]) -> None:
        for prepared in calls:
            function, ends, elements = prepared.kernel
            places = [np.uint64(memory[p.slot].data.ptr + p.offset) for p in prepared.args]
            function((-(-elements // 256),), (256,), (*places, *ends))

    def synchronize(self) -> None:
        import cupy

        cupy.cuda.Device().synchronize()


@contextmanager
def folder(input_name: str = "input") -> Iterator[Graph]:
    """A folder of its own with the model that the examples expect."""
    graph, before = linear_graph(input_name), Path.cwd()
    with tempfile.TemporaryDirectory() as path:
        save(graph, Path(path) / "model_ir.json")
        os.chdir(path)
        try:
            yield graph
        finally:
            os.chdir(before)


def near(report: Report, got: Any, want: np.ndarray[Any, Any], what: str) -> float:
    """max|d|/max|ref|, checked."""
    error = float(np.abs(np.asarray(got) - want).max() / np.abs(want).max())
    report.check(error <= 1e-5, f"{what}: max|d|/max|ref| {error:.1e}")
    return error


def guide(report: Report, args: argparse.Namespace) -> Any:
    """Steps 1, 2 and 5 of the porting guide, with its own target and a driver by CuPy (steps 3 and 4)."""
    with folder() as graph:
        feeds, weights = arrays(graph)
        names: dict[str, Any] = {
            "TargetConfig": xrt.TargetConfig, "CodegenTarget": xrt.CodegenTarget, "CudaBackend": CupyBackend,
            "xpuruntime": xrt, "inputs": feeds, "weights": weights,
        }  # fmt: skip
        for step in ("guide Step 1", "guide Step 2", "guide Step 5"):
            exec(BLOCKS[step], names)
        want = interp.run(graph, feeds, weights=weights)["output"]
        return near(report, names["outputs"]["output"].to_numpy(), want, "the guide's steps by CuPy")


def guide_own(report: Report, args: argparse.Namespace) -> Any:
    """Step 5 of the porting guide on our own CUDA target and backend."""
    from xpuruntime.runtime import CudaBackend

    with folder() as graph:
        feeds, weights = arrays(graph)
        names: dict[str, Any] = {
            "CudaCodegenTarget": cuda_target, "CudaBackend": CudaBackend, "xpuruntime": xrt,
            "inputs": feeds, "weights": weights,
        }  # fmt: skip
        exec(BLOCKS["guide Step 5"], names)
        want = interp.run(graph, feeds, weights=weights)["output"]
        return near(report, names["outputs"]["output"].to_numpy(), want, "step 5 on CudaBackend")


def readme(report: Report, args: argparse.Namespace) -> Any:
    """The NPU Simulation README's examples 2, 3a and 3b on the device: its backend's name is CudaBackend."""
    mapped = {
        "MetalBackend": "CudaBackend",
        'compile("model_ir.json"': 'compile("model_ir.json", target="cuda"',
        "Device()": 'Device("cuda:0")',
    }
    examples = {key: BLOCKS[f"readme {key}"] for key in ("2", "3a", "3b")}
    for key, code in examples.items():
        for theirs, ours in mapped.items():
            code = code.replace(theirs, ours)
        examples[key] = code
    with folder() as graph:
        feeds, weights = arrays(graph)
        write_safetensors(weights, "model.safetensors")
        want = interp.run(graph, feeds, weights=weights)["output"]
        exec(examples["2"], {})
        names: dict[str, Any] = {"input_data": feeds["input"]}
        exec(examples["3a"], names)
        found = {"3a": near(report, names["result"], want, "example 3a")}
    with folder("x") as graph:
        names = {"ir_dict": graph.to_json(), "weights_dict": weights, "input_array": feeds["input"]}
        exec(examples["3b"], names)
        found["3b"] = near(report, names["result"]["output"], want, "example 3b")
        names["dag"].close()
        return found


def inference(report: Report, args: argparse.Namespace) -> Any:
    """The design specification's section 7.3: as written TensorRT is refused by name; with engine="native" it runs on cuda:0 in float16."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    from examples.small_model import small_model

    example = BLOCKS["design 7.3"]
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    with folder():
        onnx.save(small_model(), "model.onnx")
        try:
            exec(example, {"x": x})
            report.check(False, "TensorRT is not part of this release")
        except xrt.EngineUnavailable as error:
            report.check(bool(error.do), f"as written: {error}")
        names: dict[str, Any] = {"x": x}
        exec(example.replace('"tensorrt"', '"native"'), names)
        (got,) = names["out"].values()
        want = ReferenceEvaluator("model.onnx").run(None, {"input": x})[0]
        error = float(np.abs(got - want).max() / np.abs(want).max())
        report.check(error <= 2e-2, f"engine native: max|d|/max|ref| {error:.1e} in float16")
        receipt = names["sess"].receipt()
        devices = sorted({row.device for e in receipt.evidence.values() for row in e.rows})
        report.check(devices == ["cuda:0"], f"kernels ran on {devices}")
        return {"error": error, "devices": devices}


PARTS = {"guide": guide, "guide_own": guide_own, "readme": readme, "inference": inference}


def _gpu() -> str:
    from xpuruntime import runtime

    return runtime.cuda().devices[0].name


def main(argv: Sequence[str] | None = None) -> int:
    """1 when a snippet does not run or is not right."""
    return run_parts(__doc__, PARTS, gpu=_gpu, packages=("cupy-cuda13x", "onnx"), argv=argv)


if __name__ == "__main__":
    sys.exit(main())
