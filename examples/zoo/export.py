"""Export of a PyTorch module to ONNX, and the check that the file computes the same."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .base import Arrays, Check, ZooError

if TYPE_CHECKING:
    import torch

MAX_ERROR = 1e-5
"""Maximum difference from PyTorch, relative to the largest value. Another order of float32 additions stays below it, a wrong weight does not."""


def export(
    module: torch.nn.Module,
    example: Arrays,
    output: str,
    dynamic: dict[str, dict[int, str]],
    path: Path,
) -> None:
    """Write a module as ONNX, with its weights in the same file and the default opset of PyTorch.

    example: inputs by name, in the order of the module's ``forward``.
    dynamic: by input, the axes whose size is free, and their names.
    """
    import torch

    axes = {axis: torch.export.Dim(axis) for free in dynamic.values() for axis in free.values()}
    shapes = tuple({i: axes[axis] for i, axis in dynamic.get(name, {}).items()} for name in example)
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)  # else: one warning per torchvision operator that is not installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module.eval(),
                tuple(torch.from_numpy(array) for array in example.values()),
                path,
                input_names=list(example),
                output_names=[output],
                dynamic_shapes=shapes,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    finally:
        exporter.setLevel(level)
    _drop_stack_traces(path)


def _drop_stack_traces(path: Path) -> None:
    """Drop the stack traces of the exporter. Their paths would make the bytes of the file differ between machines."""
    import onnx

    model = onnx.load(path)
    for node in model.graph.node:
        entries = [entry for entry in node.metadata_props if entry.key != "pkg.torch.onnx.stack_trace"]
        del node.metadata_props[:]
        node.metadata_props.extend(entries)
    path.write_bytes(model.SerializeToString(deterministic=True))


def check_export(reference: Callable[[Arrays], np.ndarray], cases: Iterable[Arrays], path: Path) -> Check:
    """Compare the file, by ONNX Runtime, with a reference on every case. Raises ZooError if they differ."""
    largest, count = 0.0, 0
    for case in cases:
        expected = reference(case)
        actual = next(iter(run_onnxruntime(path, case).values()))
        if actual.shape != expected.shape or not np.isfinite(actual).all():
            raise ZooError(
                f"zoo {path.name}",
                f"should give finite {expected.shape}",
                got=actual.shape,
                do="Report this.",
            )
        largest = max(largest, float(np.abs(actual - expected).max() / np.abs(expected).max()))
        count += 1
    if not count or largest > MAX_ERROR:
        raise ZooError(
            f"zoo {path.name}",
            f"the exported file must be within {MAX_ERROR:g} of PyTorch on its samples",
            got=f"{largest:.2e} on {count}",
            do="Use the versions in examples/zoo/requirements.txt.",
        )
    return Check(f"max|d|/max|ref| to PyTorch {largest:.1e} on {count} inputs", largest)


def run_onnxruntime(path: Path, inputs: Arrays, threads: int = 2) -> dict[str, np.ndarray]:
    """Run the file by the CPU provider of ONNX Runtime, without xpuruntime."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))
