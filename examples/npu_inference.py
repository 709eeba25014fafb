"""Ask for an NPU: on a machine without one, see why it cannot be had, then let the policy fall back to the CPU.

python examples/npu_inference.py [model.onnx]
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np

import xpuruntime as xrt
from xpuruntime.inference.execution.seeded_inputs import sample_feeds


def main(model: str | None = None) -> None:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    if model is None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        from examples.small_model import small_model
    source = model or small_model()

    demand = xrt.ExecutionPolicy(precision="int8", static_shape=True)
    try:
        session = xrt.InferenceSession(source, device="npu", backend="openvino", exec_policy=demand)
    except xrt.UnavailableError as error:
        # What is named explicitly is honored, or it is an error that carries the whole decision.
        print(f"{type(error).__name__}: {error}\n")
        if error.decision is not None:
            print(error.decision, "\n")
        demand = xrt.ExecutionPolicy(precision="int8", static_shape=True, allow_fallback="cpu")
        session = xrt.InferenceSession(source, device="npu", backend="openvino", exec_policy=demand)

    with session:
        outputs = session.run(sample_feeds(session.input_info, seed=0))
        for name, value in outputs.items():
            print(f"{name}: {value.dtype}{list(value.shape)}, sum {np.sum(value, dtype=np.float64):.6f}")
        print()
        print(session.receipt())


if __name__ == "__main__":
    main(*sys.argv[1:])
