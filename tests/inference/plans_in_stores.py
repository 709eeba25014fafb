"""Run by test_plan_stores.py in a process of its own, with XPU_LIBCUDA and XPU_LIBCUDNN naming simulated ones: `python plans_in_stores.py CASE FOLDER`."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import onnx

import xpuruntime as xrt
from xpuruntime.program.program import CompiledProgram
from xpuruntime.runtime.execution import plan_stores
from xpuruntime.storage.store import Store

OWN = Path(sys.argv[2])
"""The folder of sessions with ``cache_dir=``; XPU_CACHE_DIR names another one."""


READ: list[tuple[Path, bool]] = []
"""The store of each plan that was looked up, and whether it was there."""


class Watched(Store):
    """A store that records the look-ups of plans."""

    def get(self, kind: str, key: str) -> bytes | None:
        payload = super().get(kind, key)
        if kind == plan_stores.PLANS:
            READ.append((self.root, payload is not None))
        return payload


plan_stores.Store = Watched


def model(size: int) -> onnx.ModelProto:
    """Attention over ``size`` rows: one call of cuDNN's."""
    values = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.BFLOAT16, [1, 2, size, 16]) for n in "qkvy"
    ]
    node = onnx.helper.make_node("Attention", ["q", "k", "v"], ["y"])
    graph = onnx.helper.make_graph([node], "encoder", values[:3], values[3:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=11)


def opened(size: int, caching: bool | None = None, folder: Path | None = None) -> CompiledProgram:
    """Open the model on the simulated device, which captures graphs but runs none, and return its program."""
    policy = xrt.ExecutionPolicy(caching=caching, self_check="off")
    with xrt.InferenceSession(
        model(size),
        device="cuda:0",
        engine="native",
        cache_dir=folder,
        exec_policy=policy,
        kernel_policy=xrt.KernelPolicy(attention="cudnn"),
    ) as session:
        assert "attention/cudnn" in str(session.receipt())
        program: CompiledProgram = session._executable.only.program
    return program


def stored(folder: Path | None = None) -> int:
    """Return the number of plans in a store; that of XPU_CACHE_DIR without a folder."""
    return sum(e.kind == "vendor-plan" for e in Store(folder).entries())


def built() -> int:
    """Return the number of plans that the library built in this process."""
    return int(ctypes.CDLL(os.environ["XPU_LIBCUDNN"]).simulated_plans())


def files(folder: str | Path) -> list[Path]:
    return [p for p in Path(folder).rglob("*") if p.is_file()]


def own_folder() -> None:
    """A session with ``cache_dir=`` keeps its plans there."""
    opened(16, folder=OWN)
    assert READ == [(OWN, False)]
    assert (stored(OWN), stored(), built()) == (1, 0, 1)


def read_again() -> None:
    """Another process reads them there. The stand-in knows no plans of other processes, so it builds this one again."""
    opened(16, folder=OWN)
    assert READ == [(OWN, True)]
    assert (stored(OWN), stored(), built()) == (1, 0, 1)


def without_caching() -> None:
    """A session with ``caching: false`` writes nothing, and reads nothing; a later one that shares its plan stores it."""
    opened(16, caching=False, folder=OWN)
    opened(24, caching=False)
    assert (built(), READ) == (2, [])
    assert files(OWN) == files(os.environ["XPU_CACHE_DIR"]) == []
    opened(16, folder=OWN)
    opened(24)
    assert (stored(OWN), stored(), built()) == (1, 1, 2)


def executors() -> None:
    """An executor keeps them in the store of XPU_CACHE_DIR, in the one that it is given, or nowhere under ``caching: false``."""
    program = opened(16, folder=OWN)
    for path in files(OWN):
        path.unlink()
    device = xrt.Device("cuda:0")
    with xrt.Executor(program, device, policy=xrt.ExecutionPolicy(caching=False)):
        assert (stored(OWN), stored()) == (0, 0)
    with xrt.Executor(program, device) as executor:
        assert (stored(OWN), stored()) == (0, 1)
        executor.twin().close()
    (entry,) = Store().entries()
    entry.path.unlink()
    other = OWN.parent / "other"
    with xrt.Executor(program, device, store=Store(other)) as executor:
        executor.twin().close()
    assert (stored(other), stored(), built()) == (1, 0, 1)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
