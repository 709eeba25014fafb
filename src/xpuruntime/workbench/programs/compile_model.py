"""The functions behind ``xpu compile`` and ``xpu inspect --passes``: compile a model's file, and trace the passes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...compiler import compile as compile_graph
from ...compiler.demands import Demands
from ...compiler.entrance import settled_precision, targets_of
from ...errors import ModelError
from ...frontends.onnx.importer import import_onnx
from ...ir import Graph, open_weights, specialize
from ...passes.trace import PassTrace, trace_passes
from ...policies.entrances import demanded
from ...protocols import Array
from .golden import with_golden
from .measured import measured_kernels
from .report import ProgramReport, read_program

__all__ = ["compile_model", "open_graph", "trace_model"]


def compile_model(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    target: str | Sequence[str] | None = None,
    policy: Any = None,
    shapes: Mapping[str, int] | Sequence[Mapping[str, int]] = (),
    passes: Sequence[str] | str | int | None = None,
    embed: bool = True,
    dry_run: bool = False,
    golden: int = 0,
    tune_s: float = 0.0,
) -> ProgramReport:
    """Compile an ONNX model, or a graph saved as JSON or text, write the program, and return its report.

    output:  file of the program; default: the model's name with ``.npubin``, in the current folder.
    embed:   store the weights in the program. Otherwise it refers to their files, and must be in the model's folder.
    dry_run: write no file. Weights are not read then.
    tune_s:  seconds for measuring the kernels on this machine's device, for each set of sizes; 0 measures nothing.
    golden:  number of generated inputs to store with their outputs in each entry point, for ``verify_program``.
    The other parameters and errors are those of ``compile``. Raise ModelError, too, if the model cannot be read, or if ``embed`` is
    False and the folders differ.
    """
    source = Path(model)
    path = Path(output) if output is not None else Path(f"{source.stem}.npubin")
    graph, weights = open_graph(source)
    measured = measured_kernels(source, target, policy, shapes, tune_s) if tune_s else None
    program = compile_graph(
        graph,
        target=target,
        policy=policy,
        shapes=shapes,
        passes=passes,
        weights=weights,
        times=None if measured is None else measured.times,
    )
    if measured is not None:
        program = replace(program, decisions=(*measured.decisions, *program.decisions))
    if dry_run:
        return ProgramReport(path, 0, program)
    if (
        not embed
        and path.absolute().parent.resolve() != source.absolute().parent.resolve()
        and any(w.file for w in program.weights)
    ):
        raise ModelError(
            f"model {source.name!r}",
            "is in another folder than the program, which refers to the files of the weights",
            got=str(path),
            do="Write the program to the model's folder, or embed the weights.",
        )
    embedded = [w.name for w in program.weights if w.data is None and (embed or not w.file)]
    if golden:
        program = with_golden(program, graph, weights, golden)
    program.save(path, {name: weights[name] for name in embedded})
    return read_program(path)


def trace_model(
    model: str | os.PathLike[str],
    *,
    target: str | None = None,
    policy: Any = None,
    shapes: Mapping[str, int] | None = None,
    passes: Sequence[str] | str | int = 3,
) -> list[PassTrace]:
    """Return what each pass changes in a model, for the target and policy of ``compile``. Dims may stay symbolic.

    Raise ModelError, FormatError, PolicyError, DeviceUnavailable for an unknown target, IrError for an unknown pass.
    """
    graph, _ = open_graph(Path(model))
    graph = specialize(graph, shapes or {})
    resolved = demanded("compile", {}, policy)
    targets = targets_of(target, resolved, [])
    pairs = all(t.kind == "cpu" for t in targets)
    precision, _ = settled_precision("compile", [graph], resolved.policy, [], pairs=pairs)
    demands = Demands(precision, targets, "inference")
    return trace_passes(graph, passes, context=demands.context())


def open_graph(path: Path) -> tuple[Graph, Mapping[str, Array]]:
    """Read an ONNX model, or a graph saved as JSON or text, and its weights. Raise ModelError, FormatError."""
    if path.suffix.lower() in (".json", ".txt"):
        graph = Graph.load(path)
        return graph, open_weights(graph, path.parent)
    return import_onnx(path)
