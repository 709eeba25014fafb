"""Registration of the four kernels. `XPU_KERNELS=examples/user_kernels/kernels.py` registers them in every command."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

import xpuruntime as xrt

HERE = Path(__file__).resolve().parent
FLOATS = ("float32", "bfloat16", "float16")
THREADS = 128


def rows(call: Any) -> int:
    return math.prod(call.outputs[0].shape[:-1])


def last_dim_only(call: Any) -> str | None:
    if call.inputs[1] is None:
        return "it multiplies by a weight, and this node has none"
    normalized = call.attrs["normalized_shape"]
    return None if len(normalized) == 1 else f"it norms one dim, not {len(normalized)}"


xrt.register_kernel(
    "norm/mine",
    op="rms_norm",
    source=HERE / "rms_norm.cpp",
    parts=("arith",),
    dtypes=FLOATS,
    supports=last_dim_only,
    launch=lambda call: xrt.Tasks(rows(call)),
    deterministic=True,
)
xrt.register_kernel(
    "norm/mine",
    op="rms_norm",
    target="cuda",
    source=HERE / "rms_norm.cu",
    dtypes=FLOATS,
    supports=last_dim_only,
    launch=lambda call: xrt.Launch(rows(call), THREADS),
    constants=lambda call: {"THREADS": THREADS},
    deterministic=True,
)


@xrt.kernel("norm/plain", op="rms_norm", supports=last_dim_only)
def rms_norm(x: Any, weight: Any, *, normalized_shape: tuple[int, ...], eps: float) -> Any:
    wide = x.astype(np.float32)
    return (wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + eps) * weight.astype(np.float32)).astype(
        x.dtype
    )


if importlib.util.find_spec("triton") is not None:
    sys.path.insert(0, str(HERE))
    import rms_norm_triton  # a separate file, since Triton reads the source of the function's module

    xrt.register_kernel(
        "norm/triton",
        op="rms_norm",
        target="cuda",
        function=rms_norm_triton.rms_norm,
        dtypes=FLOATS,
        supports=last_dim_only,
        launch=rows,
        constants=lambda call: {
            "cols": call.outputs[0].shape[-1],
            "block": 1 << (call.outputs[0].shape[-1] - 1).bit_length(),
        },
        options={"num_warps": 4},
    )
