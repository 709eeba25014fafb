"""The specification's compiler and runtime examples run as they are written; only the names of the deviation table are mapped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from examples.porting.edge_backend import EdgeBackend
from examples.porting.edge_target import KERNELS
from xpuruntime import protocols
from xpuruntime.codegen.target import CodegenTarget
from xpuruntime.compiler import compile as compile_program
from xpuruntime.ir import Graph, GraphBuilder, interp, save
from xpuruntime.runtime import DeviceBuffer, LinearDispatch
from xpuruntime.tensor_files import write_safetensors

SPEC = Path(__file__).parent / "spec"
GUIDE, README = SPEC / "backend_porting_guide.md", SPEC / "npu_simulation_readme.md"

MAPPED = {
    "import npu_compiler\n": "",
    "npu_compiler.compile(": "compile_program(",
    "from npu_compiler.compiled_program import": "from xpuruntime import",
    "from npu_compiler import": "from xpuruntime import",
    "from npu_runtime import": "from xpuruntime import",
    "MetalBackend": "CpuBackend",  # the same code on a device that is here
    "executor.run(inputs, weights)": "executor.run(inputs, weights=weights)",
}


def blocks(path: Path) -> dict[str, str]:
    """The first word or two of a heading -> its Python, mapped."""
    found = {}
    text = path.read_text(encoding="utf-8")
    for heading, body in re.findall(
        r"^### (Step \d|\w+)[.:]?.*?\n(.*?)(?=^### |\Z)", text, re.MULTILINE | re.DOTALL
    ):
        code = "\n".join(re.findall(r"```python\n(.*?)```", body, re.DOTALL))
        for theirs, ours in MAPPED.items():
            code = code.replace(theirs, ours)
        found[heading] = code
    return found


def arrays(graph: Graph) -> tuple[dict[str, Any], dict[str, Any]]:
    """Feeds and weights."""
    rng = np.random.default_rng(2)

    def array(spec: Any) -> Any:
        return rng.standard_normal([int(d) for d in spec.shape], np.float32)

    return {s.name: array(s) for s in graph.input_specs}, {w.name: array(w.spec) for w in graph.weights}


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A small model, saved as the examples expect it."""
    b = GraphBuilder("guide")
    x = b.input("input", "float32[4, 16]")
    b.output("output", b.relu(b.linear(x, b.weight("w", "float32[8, 16]"))))
    made = b.build()
    save(made, tmp_path / "model_ir.json")
    monkeypatch.chdir(tmp_path)
    return made


def test_the_readmes_compile_and_run(graph: Graph) -> None:
    examples = blocks(README)
    feeds, weights = arrays(graph)
    write_safetensors(weights, "model.safetensors")
    exec(examples["2"], {"compile_program": compile_program})
    names: dict[str, Any] = {"input_data": feeds["input"]}
    exec(examples["3a"], names)
    want = interp.run(graph, feeds, weights=weights)["output"]
    np.testing.assert_allclose(names["result"], want, rtol=1e-5, atol=1e-6)


def test_the_readmes_mixed_run(graph: Graph) -> None:
    """Example 3b; the last op of the model is one that the device is said not to have."""
    feeds, weights = arrays(graph)
    want = interp.run(graph, feeds, weights=weights)["output"]
    for known in (None, "linear"):
        names: dict[str, Any] = {"ir_dict": graph.to_json(), "weights_dict": weights}
        example = blocks(README)["3b"].replace('"x": input_array', '"input": input_array')
        names["input_array"] = feeds["input"]
        if known is not None:
            example = example.replace("plan =", "is_op_supported = lambda op: op.op == known\nplan =", 1)
            names["known"] = known
        exec(example, names)
        np.testing.assert_allclose(names["result"]["output"], want, rtol=1e-5, atol=1e-6)
        names["dag"].close()


@pytest.mark.parametrize("backend", ["CudaBackend", "CpuBackend"])
def test_the_readmes_import_every_backend_by_name(backend: str) -> None:
    """scripts/gpu/snippets.py runs the same examples with the first on a device; the import needs none."""
    for code in blocks(README).values():
        found: dict[str, Any] = {}
        for line in re.findall(r"^from xpuruntime import .*$", code, re.MULTILINE):
            exec(line.replace("CpuBackend", backend), found)
        if "Backend" in code:
            assert found[backend] is getattr(xrt, backend)


class CudaBackend(EdgeBackend):
    """Stands in for the guide's device: the same kernels under its file names."""

    kind = "custom"  # what a target without a name is called

    def source(self, text: str) -> str:
        return (KERNELS / Path(text).with_suffix(".py").name).read_text(encoding="utf-8")


def test_the_guides_steps(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = blocks(GUIDE)
    # The guide's matmul files know no transposed right side; its names say which entry the device runs.
    monkeypatch.setattr(CudaBackend, "source", _with_plain_products)
    feeds, weights = arrays(graph)
    names: dict[str, Any] = {
        "TargetConfig": xrt.TargetConfig,
        "CodegenTarget": CodegenTarget,
        "CudaBackend": CudaBackend,
        "compile_program": compile_program,
        "inputs": feeds,
        "weights": weights,
    }
    for step in ("Step 1", "Step 2", "Step 5"):
        exec(steps[step], names)
    assert names["CUDA_GPU"] == xrt.targets.CUDA_GPU
    want = interp.run(graph, feeds, weights=weights)["output"]
    np.testing.assert_allclose(names["outputs"]["output"].to_numpy(), want, rtol=1e-5, atol=1e-6)


def _with_plain_products(self: EdgeBackend, text: str) -> str:
    source = (KERNELS / Path(text).with_suffix(".py").name).read_text(encoding="utf-8")
    return source.replace(
        "matmul_vec, matmul_vec_t = matmul_tiled, matmul_tiled_t", "matmul_tiled = matmul_tiled_t"
    )


@pytest.mark.parametrize(
    ("protocol", "made"),
    [
        (protocols.Backend, EdgeBackend),
        (protocols.DeviceBuffer, DeviceBuffer),
        (protocols.DispatchStrategy, LinearDispatch),
    ],
)
def test_the_guides_interfaces_are_there(protocol: Any, made: Any) -> None:
    listed = [n for n in vars(protocol) if not n.startswith("_")]
    assert listed
    for name in listed:
        assert hasattr(made, name), name
    text = GUIDE.read_text(encoding="utf-8")
    for name in listed:
        if name not in ("spec", "kind"):
            assert name in text
