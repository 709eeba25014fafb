"""The ``onnx`` package's reference evaluator as a reference, in a process that a time limit can stop.

The evaluator favors clarity over speed. A large convolution can take minutes, so it never runs in the
session's process. ``python -m xpuruntime.inference.self_check.onnx_reference MODEL IN.npz OUT.npz`` is that process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...children import python, run, scratch
from ...decisions import Reason, Support
from ...protocols import Array, ModelSource

__all__ = ["reference_outputs"]


def reference_outputs(
    model: ModelSource, feeds: Mapping[str, Array], seconds: float
) -> tuple[list[Array] | None, Support]:
    """Return outputs in the model's order within the time limit, or None and the reason (format, dtype, time, a missing op)."""
    if model.format != "onnx":
        return None, Support.no(
            Reason.FORMAT_UNSUPPORTED, f"the ONNX reference evaluator does not read {model.format}"
        )
    unstorable = [s for s in (*model.inputs, *model.outputs) if s.dtype.numpy.kind not in "biufc"]
    if unstorable:
        return None, Support.no(
            Reason.DTYPE_UNSUPPORTED, f"{unstorable[0].dtype.value} cannot be sent to the reference process"
        )
    try:
        return _in_a_process(model, feeds, seconds)
    except subprocess.TimeoutExpired:
        return None, Support.no(Reason.TIMED_OUT, f"the ONNX reference evaluator took over {seconds:.0f} s")
    except OSError as error:
        return None, Support.no(
            Reason.RUN_FAILED, f"inputs cannot be sent to the ONNX reference evaluator: {error}"
        )


def _in_a_process(
    model: ModelSource, feeds: Mapping[str, Array], seconds: float
) -> tuple[list[Array] | None, Support]:
    """Run the evaluator in a process. Raises subprocess.TimeoutExpired, OSError."""
    with scratch("xpu-reference-") as folder:
        path = model.path or Path(folder, "model.onnx")
        if model.path is None:
            path.write_bytes(model.data or b"")
        source, result = Path(folder, "in.npz"), Path(folder, "out.npz")
        _save(source, [feeds[s.name] for s in model.inputs])
        done = run(python("-m", __name__, str(path.absolute()), str(source), str(result)), seconds)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            return None, Support.no(
                Reason.RUN_FAILED, f"the ONNX reference evaluator failed: {last[0][:300]}"
            )
        with np.load(result) as outputs:
            return [outputs[f"a{k}"] for k in range(len(model.outputs))], Support.yes()


def _save(path: str | Path, arrays: Sequence[Array]) -> None:
    named: dict[str, Any] = {f"a{k}": array for k, array in enumerate(arrays)}
    np.savez(path, **named)


def _main(model: str, source: str, result: str) -> None:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)
    # Models of IR version 3 list their weights among the inputs; the caller does not supply those.
    weights = {t.name for t in evaluator.proto_.graph.initializer}
    names = [name for name in evaluator.input_names if name not in weights]
    with np.load(source) as stored:
        feeds = {name: stored[f"a{k}"] for k, name in enumerate(names)}
    outputs = evaluator.run(None, feeds)
    _save(result, [np.asarray(value) for value in outputs])


if __name__ == "__main__":
    _main(*sys.argv[1:])
