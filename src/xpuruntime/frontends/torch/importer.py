"""Import of PyTorch models through ``torch.export``: an nn.Module or an ExportedProgram.

    graph = extract_ir(model, x)                        # or (x, y), or {"tokens": t, "mask": m}
    graph, weights = import_torch(model, x)             # weights: arrays by name, sharing the module's memory
    save_ir(graph, weights, "model_ir.json")            # and model_ir.safetensors next to it

Ops are lowered by the table in ``ops``. Composite ops with an entry stay whole; PyTorch decomposes all others to core ATen.
An op without an exact form becomes an ``opaque`` node with its reason. Buffers that the model changes become
states. No parameter is read: a model on the meta device gives the same graph, without the data of tensors that no checkpoint
has. Every node carries its FX name, ATen op, module path, and line of code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import ModelError
from ...faults import contained
from ...ir import Graph, save_weights
from ...ir.draws import EXPORTED_DRAWS, PYTORCH_DRAWS, draws_numbers
from ...ir.extensions import ATEN
from ...progress import step
from ...protocols import Array
from ..lowered_parts import EVERYTHING, LoweredParts
from .checkpoints import saved_names
from .decompose import decomposed, refuse_extra_dims
from .export import error_source, exported, find_torch, shapes_by_argument
from .ops import TABLE
from .program import ProgramImport
from .weights import TorchImport, TorchWeights

__all__ = [
    "ExportedModel",
    "TorchImport",
    "export_torch",
    "extract_ir",
    "import_torch",
    "save_ir",
    "weights_of",
]


class ExportedModel(NamedTuple):
    """An ExportedProgram with the name of its graph, the names of its tensors in checkpoints, and the requested dynamic shapes."""

    program: Any
    name: str
    saved: Mapping[str, str]
    dynamic_shapes: Mapping[str, Any]

    @contained("extract_ir", kind=ModelError)
    def imported(self, parts: LoweredParts = EVERYTHING) -> TorchImport:
        """Decompose and lower it; what is not among ``parts`` becomes opaque nodes. Raises ModelError."""
        who = error_source(self.name)
        step("importing PyTorch's export")
        keep, left = set(TABLE), frozenset() if parts.draws else PYTORCH_DRAWS
        while True:
            program = decomposed(self.program, keep, who)
            attempt = ProgramImport(program, self.name, self.dynamic_shapes, self.saved, parts.max_rows, left)
            graph = attempt.graph(who)
            refused = attempt.lowering.refused & keep
            if not refused and left is PYTORCH_DRAWS and _draws_beside_pytorch(graph):
                left = PYTORCH_DRAWS | EXPORTED_DRAWS
                continue
            if not refused:
                return TorchImport(graph, TorchWeights(attempt.tensors))
            if "lstm.input" in refused:
                refuse_extra_dims(attempt.program, who)
            keep -= refused  # PyTorch may decompose what the table could not lower


def extract_ir(
    model: Any, example_inputs: Any = None, *, model_name: str = "", dynamic_shapes: Any = None
) -> Graph:
    """Return the graph of a PyTorch model. Parameters and errors are those of ``import_torch``."""
    return import_torch(model, example_inputs, model_name=model_name, dynamic_shapes=dynamic_shapes).graph


@contained("extract_ir", kind=ModelError)
def import_torch(
    model: Any, example_inputs: Any = None, *, model_name: str = "", dynamic_shapes: Any = None
) -> TorchImport:
    """Return the graph of a PyTorch model and its weights.

    model:          an ``nn.Module`` in eval mode, on any device (``meta`` too), or a ``torch.export.ExportedProgram``.
    example_inputs: arguments of the call: one tensor, a tuple of positional arguments, or a dict of keyword arguments. Only
                    shapes and dtypes matter. An ExportedProgram needs none.
    model_name:     name of the graph; by default the class's.
    dynamic_shapes: dims that may change from run to run, as in ``torch.export.export`` (``{"x": {0: Dim("batch")}}``); a dim may
                    also be a string, its name. All other dims are fixed to the example's.

    Inputs have the names of forward's parameters. Outputs are ``output``, or ``output_0`` ... for several, or their keys or fields. Weights
    have the module's names; tied weights are one weight. Tensors that no checkpoint of the module has (buffers that are not persistent,
    tensors created in ``forward``) are stored in the graph, up to 16 MiB each. A state ``<buffer>.state`` starts from the weight ``<buffer>``.
    ``graph.metadata``: ``aliases`` (other names of a weight's tensor, in the module and in its checkpoints, by the
    weight's name, if there are any), ``torch`` (version), ``ranges`` ([min, max] by symbol), ``specialized`` (dynamic dims that the model
    fixes).
    Raises EngineUnavailable without PyTorch 2.6 or later; InputError for example inputs of another kind; ModelError for a model that PyTorch
    cannot export, that is in training mode with an effect on the outputs, or that changes its inputs in place.
    """
    return export_torch(
        model, example_inputs, model_name=model_name, dynamic_shapes=dynamic_shapes
    ).imported()


@contained("extract_ir", kind=ModelError)
def export_torch(
    model: Any, example_inputs: Any = None, *, model_name: str = "", dynamic_shapes: Any = None
) -> ExportedModel:
    """Return a PyTorch model as PyTorch exports it: the first half of ``import_torch``, with its parameters and errors."""
    torch = find_torch()
    name = model_name or _name_of(model)
    who = error_source(name)
    saved: dict[str, str] = {}
    if isinstance(model, torch.export.ExportedProgram):
        program = model
    elif isinstance(model, torch.nn.Module):
        step("exporting with PyTorch")
        program, saved = exported(model, example_inputs, dynamic_shapes, who), saved_names(model)
        if model.training:
            _refuse_training(program, who)
        dynamic_shapes = shapes_by_argument(model, example_inputs, dynamic_shapes, who)
    else:
        raise ModelError(
            who,
            "is not a PyTorch model",
            got=type(model).__name__,
            do="Pass an nn.Module or a torch.export.ExportedProgram.",
        )
    by_name = dynamic_shapes if isinstance(dynamic_shapes, Mapping) else {}
    return ExportedModel(program, name, saved, by_name)


def weights_of(model: Any) -> Mapping[str, Array]:
    """Return the weights of a module or an ExportedProgram as arrays by name, created on access, sharing memory with contiguous CPU
    tensors. Tensors that ``forward`` creates from Python numbers are in an ExportedProgram only (and in ``import_torch``).

    Raise ModelError for another kind of model, and on access to a tensor on the meta device.
    """
    torch = find_torch()
    if isinstance(model, torch.export.ExportedProgram):
        return TorchWeights({**model.constants, **model.state_dict})
    if isinstance(model, torch.nn.Module):
        tensors = [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
        return TorchWeights(dict(tensors))
    raise ModelError(
        "weights_of",
        "is not a PyTorch model",
        got=type(model).__name__,
        do="Pass an nn.Module or a torch.export.ExportedProgram.",
    )


def save_ir(graph: Graph, weights: Mapping[str, Array], path: str | os.PathLike[str]) -> Graph:
    """Write the graph as JSON and its weights next to it, as safetensors of the same name. Return the graph that was written, whose
    weights refer to that file.

    Raise StoreError, FormatError for a dtype that safetensors lacks, ModelError for a weight without content.
    """
    path = Path(path)
    file = path.with_suffix(".safetensors")
    arrays = {
        w.name: weights[w.name] if w.name in weights else w.array()
        for w in graph.weights
        if w.name in weights or w.data
    }
    missing = [w.name for w in graph.weights if w.name not in arrays]
    if missing:
        raise ModelError(
            f"graph {graph.name!r}",
            "lacks weights",
            got=", ".join(missing[:5]),
            do="Pass their arrays by name.",
        )
    references = save_weights(arrays, file)
    refs = tuple(
        replace(
            w, file=file.name, format="safetensors", key=w.name, digest=references[w.name].digest, data=""
        )
        for w in graph.weights
    )
    saved = graph.replace(weights=refs)
    saved.save(path)
    return saved


def _draws_beside_pytorch(graph: Graph) -> bool:
    """Return True if the graph has random ops and also nodes that PyTorch computes."""
    opaque = any(n.op == "opaque" and n.attrs["domain"] in ATEN for n in graph.nodes)
    return opaque and any(map(draws_numbers, graph.nodes))


def _name_of(model: Any) -> str:
    if type(model).__name__ == "ExportedProgram":
        return "model"
    return type(model).__name__


def _refuse_training(program: Any, who: str) -> None:
    """Raise ModelError if training mode changes what the model computes."""
    for node in program.graph.nodes:
        op = str(node.target)
        arguments = (
            dict(zip((a.name for a in node.target._schema.arguments), node.args, strict=False))
            if hasattr(node.target, "_schema")
            else {}
        )
        arguments |= dict(node.kwargs)
        uses_dropout = "dropout" in op and arguments.get("train") and arguments.get("p")
        updates_statistics = (
            "batch_norm" in op and arguments.get("training") and arguments.get("running_mean") is not None
        )
        if uses_dropout or updates_statistics:
            stack = node.meta.get("nn_module_stack") or {}
            paths = [path for path, *_ in stack.values()][-1:] or [""]
            raise ModelError(
                who,
                "is in training mode",
                got=f"{op} at {paths[0] or 'the top'} {'drops out' if uses_dropout else 'uses the statistics of the batch'}",
                do="Call model.eval() first.",
            )
