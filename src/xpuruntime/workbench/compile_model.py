"""From a model's file to a program's file, and what the passes do on the way: ``xpu compile`` and ``xpu inspect --passes``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..compiler import compile as compile_graph
from ..compiler.demands import Demands
from ..compiler.entrance import settled_precision, targets_of
from ..errors import ModelError
from ..frontends.onnx.importer import import_onnx
from ..ir import Graph, open_weights, specialize
from ..passes.trace import PassTrace, trace_passes
from ..policies.entrances import demanded
from ..protocols import Array
from .program_report import ProgramReport, read_program

__all__ = ["compile_model", "trace_model"]


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
) -> ProgramReport:
    """Compile an ONNX model, or a graph saved as JSON or text, and write the program; gives it back as a reader sees it.

    output: the program's file; by default the model's name with ``.npubin`` in the current folder.
    embed:  whether weights go into the program; otherwise it names the files that they lie in, and must lie beside the model.
    dry_run: write nothing. Weights are then not needed.
    Other parameters and errors as ``compile``; ModelError, too, for a model that cannot be read, or cannot be named from there.
    """
    source = Path(model)
    path = Path(output) if output is not None else Path(f"{source.stem}.npubin")
    graph, weights = _opened(source)
    program = compile_graph(
        graph, target=target, policy=policy, shapes=shapes, passes=passes, weights=weights
    )
    if dry_run:
        return ProgramReport(path, 0, program)
    if (
        not embed
        and path.absolute().parent.resolve() != source.absolute().parent.resolve()
        and any(w.file for w in program.weights)
    ):
        raise ModelError(
            f"model {source.name!r}",
            "lies in another folder than the program, which names its weights' files",
            got=str(path),
            do="Write the program beside the model, or embed the weights.",
        )
    inside = [w.name for w in program.weights if w.data is None and (embed or not w.file)]
    program.save(path, {name: weights[name] for name in inside})
    return read_program(path)


def trace_model(
    model: str | os.PathLike[str],
    *,
    target: str | None = None,
    policy: Any = None,
    shapes: Mapping[str, int] | None = None,
    passes: Sequence[str] | str | int = 3,
) -> list[PassTrace]:
    """What each pass makes of a model, as ``compile`` would run them for this target and policy. Symbolic dims may stay.

    Raises ModelError, FormatError, PolicyError, DeviceUnavailable for an unknown target, IrError for an unknown pass.
    """
    graph, _ = _opened(Path(model))
    graph = specialize(graph, shapes or {})
    resolved = demanded("compile", {}, policy)
    asked, _ = settled_precision("compile", [graph], resolved.policy, [])
    demands = Demands(asked, targets_of(target, resolved, []), "inference")
    return trace_passes(graph, passes, context=demands.context())


def _opened(path: Path) -> tuple[Graph, Mapping[str, Array]]:
    if path.suffix.lower() in (".json", ".txt"):
        graph = Graph.load(path)
        return graph, open_weights(graph, path.parent)
    return import_onnx(path)
