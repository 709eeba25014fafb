"""A seeded model as an ONNX file with reproducible bytes, kept until its sources change."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ....storage.store import digest, write_atomic
from . import networks as models

__all__ = ["export_onnx"]

_STAMP = "xpuruntime.testing"  # metadata of the file: the digest of its sources


def export_onnx(
    name: str,
    path: str | os.PathLike[str],
    *,
    size: str = "small",
    seed: int = 0,
    optimize: bool = False,
    dynamic: bool = False,
) -> Path:
    """Write a model of ``models.MODELS`` through ``torch.onnx.export(dynamo=True)``, unless the file is already current.

    optimize: as the exporter does by default: batch norms are folded into convolutions, weights are transposed and renamed. Without
              it constants are folded, and every weight keeps its PyTorch name.
    dynamic:  the first axis is the symbol ``batch``, otherwise 1.
    The output is called ``scores``. Returns the path. Raises KeyError for an unknown name.
    """
    import torch

    path = Path(path)
    row = models.MODELS[name]
    made_by = {
        "name": name, "size": size, "seed": seed, "optimize": optimize, "dynamic": dynamic, "torch": torch.__version__,
        **{f"source {f}": (Path(__file__).parent / f).read_text() for f in ("networks.py", "convolutional.py", "weights.py", "export.py")},
        **{f"version {p}": _version(p) for p in ("onnxscript", "transformers", "numpy")},
    }  # fmt: skip
    stamp = digest(made_by)
    if path.is_file() and _stamp(path) == stamp:
        return path
    module, example = models.build(name, size, seed=seed)
    free = {0: torch.export.Dim("batch", max=512)}
    example = tuple(torch.cat([x, x]) for x in example) if dynamic else example
    shapes: Any = tuple(free for _ in example) if dynamic else None
    if shapes and module.forward.__code__.co_flags & inspect.CO_VARARGS:
        shapes = (shapes,)
    with _quiet():
        program = torch.onnx.export(
            module, example, input_names=list(row.input_names), output_names=["scores"],
            dynamic_shapes=shapes, dynamo=True, optimize=optimize, verbose=False,
        )  # fmt: skip
        if not optimize:
            _fold(program.model)
    proto = program.model_proto
    for node in proto.graph.node:  # stack traces contain paths of this machine
        del node.metadata_props[:]
    del proto.metadata_props[:]
    proto.metadata_props.add(key=_STAMP, value=stamp)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, proto.SerializeToString(deterministic=True))
    return path


def _stamp(path: Path) -> str:
    import onnx

    model = onnx.load(path, load_external_data=False)
    return next((p.value for p in model.metadata_props if p.key == _STAMP), "")


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _fold(model: Any) -> None:
    """Fold shape arithmetic and scalars to constants; nodes that read a weight stay."""
    from onnx_ir.passes import common
    from onnxscript import optimizer

    weights = set(model.graph.initializers)
    optimizer.fold_constants(
        model, should_fold=lambda n: False if any(v is not None and v.name in weights for v in n.inputs) else None
    )  # fmt: skip
    for step in (
        common.RemoveUnusedNodesPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
    ):
        step(model)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warning for each torchvision operator that is not installed."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
