"""The specification's compiler and runtime examples on devices that are here: mixed runs, and a porter's driver under the one executor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from examples.porting.edge_backend import EdgeBackend
from examples.porting.edge_target import KERNELS
from xpuruntime.ir import interp, save

sys.path.insert(0, str(Path(__file__).parent))
from spec_blocks import BLOCKS, arrays, linear_graph


@pytest.mark.parametrize("known", [None, "linear"])
def test_the_readmes_mixed_run(known: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Example 3b with the host for Metal; then with a device that has one of the model's two ops."""
    graph = linear_graph("x")
    feeds, weights = arrays(graph)
    monkeypatch.setattr(xrt, "MetalBackend", xrt.CpuBackend, raising=False)
    if known is not None:
        monkeypatch.setattr(xrt, "is_op_supported", lambda op: op.op == known)
    names: dict[str, Any] = {
        "ir_dict": graph.to_json(),
        "weights_dict": weights,
        "input_array": feeds["x"],
    }
    exec(BLOCKS["readme 3b"], names)
    want = interp.run(graph, feeds, weights=weights)["output"]
    np.testing.assert_allclose(names["result"]["output"], want, rtol=1e-5, atol=1e-6)
    names["dag"].close()


class CudaBackend(EdgeBackend):
    """The guide's device as a driver under the runtime's executor: the same kernels under its file names."""

    kind = "custom"  # what a target without a name is called

    def source(self, text: str) -> str:
        """The guide's names of products say nothing of the right side; a layer's is transposed."""
        source = (KERNELS / Path(text).with_suffix(".py").name).read_text(encoding="utf-8")
        return source.replace(
            "matmul_vec, matmul_vec_t = matmul_tiled, matmul_tiled_t", "matmul_tiled = matmul_tiled_t"
        )


def test_the_guides_steps_over_the_one_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graph = linear_graph()
    save(graph, "model_ir.json")
    feeds, weights = arrays(graph)
    names: dict[str, Any] = {
        "TargetConfig": xrt.TargetConfig,
        "CodegenTarget": xrt.CodegenTarget,
        "CudaBackend": CudaBackend,
        "xpuruntime": xrt,
        "inputs": feeds,
        "weights": weights,
    }
    for step in ("guide Step 1", "guide Step 2", "guide Step 5"):
        exec(BLOCKS[step], names)
    assert isinstance(names["executor"], xrt.Executor)
    want = interp.run(graph, feeds, weights=weights)["output"]
    np.testing.assert_allclose(names["outputs"]["output"].to_numpy(), want, rtol=1e-5, atol=1e-6)
