"""Run an ONNX model, see what was decided, and see what ran: `python examples/inference_basic.py [model.onnx] [engine]`.

Without a model a small one is made first. The engine is any that is installed; `auto` measures them and takes the
fastest whose outputs agree.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import xpuruntime as xrt
from xpuruntime.inference.execution.seeded_inputs import sample_feeds


def main(model: str | None = None, engine: str = "auto") -> None:
    if model is None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        from examples.small_model import small_model

    with xrt.InferenceSession(model or small_model(), engine=engine) as session:
        print("inputs ", *session.input_info)
        print("outputs", *session.output_info)

        feeds = sample_feeds(session.input_info, seed=0)  # put your own arrays here
        outputs = session.run(feeds)
        for name, value in outputs.items():
            print(
                f"{name}: {value.dtype}{list(value.shape)}, largest at {np.unravel_index(value.argmax(), value.shape)}"
            )

        print()
        print(session.plan.explain())  # before the run: what will run, and why not something else
        print()
        print(session.receipt())  # after it: what did run


if __name__ == "__main__":
    main(*sys.argv[1:])
