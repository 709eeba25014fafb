"""PyTorch models to the IR, over ``torch.export``: an nn.Module or an ExportedProgram.

    graph = extract_ir(model, x)                        # or (x, y), or {"tokens": t, "mask": m}
    graph, weights = import_torch(model, x)             # weights: array by name, over the module's own memory
    save_ir(graph, weights, "model_ir.json")            # and model_ir.safetensors beside it

Ops are lowered by the table in ``torch_ops``; composite ops that have a row there stay whole, all others are taken apart by PyTorch's
own decompositions to core ATen. What has no exact form is an ``opaque`` node with its reason. Buffers that the model changes become
states. No weight is read: a model on the meta device becomes the same graph. Every node keeps its FX name, ATen op, module path, and
line of code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ModelError
from ..ir import MAX_CONST_ELEMENTS, Graph, save_weights
from ..protocols import Array
from ..types import Dim
from .torch_dims import Symbols, spec_of
from .torch_export import decomposed, exported, find_torch, speaker
from .torch_lower import Builder, Lowering, Unknown
from .torch_names import declared_dims, output_names
from .torch_ops import TABLE, NotLowered, Ref
from .torch_weights import TorchWeights, identity, to_array

__all__ = ["TorchImport", "extract_ir", "import_torch", "save_ir", "weights_of"]


_CHANGES = ("BUFFER_MUTATION", "PARAMETER_MUTATION")


class TorchImport(NamedTuple):
    """A graph, and its weights by name for whoever runs or writes it."""

    graph: Graph
    weights: TorchWeights


def extract_ir(
    model: Any, example_inputs: Any = None, *, model_name: str = "", dynamic_shapes: Any = None
) -> Graph:
    """The graph of a PyTorch model. Parameters and errors as ``import_torch``."""
    return import_torch(model, example_inputs, model_name=model_name, dynamic_shapes=dynamic_shapes).graph


def import_torch(
    model: Any, example_inputs: Any = None, *, model_name: str = "", dynamic_shapes: Any = None
) -> TorchImport:
    """The graph of a PyTorch model, and its weights.

    model:          an ``nn.Module`` in eval mode, on any device (``meta`` too), or a ``torch.export.ExportedProgram``.
    example_inputs: what the module is called with: one tensor, a tuple of positional arguments, or a dict of keyword arguments. Only
                    shapes and dtypes count. An ExportedProgram needs none.
    model_name:     of the graph; by default the class's.
    dynamic_shapes: which dims may change from run to run: as ``torch.export.export`` takes it (``{"x": {0: Dim("batch")}}``); a dim may
                    also be a text, its name. Every other dim is fixed to the example's.

    Inputs are named as forward's parameters; outputs ``output``, or ``output_0`` ... for several, or by their keys or fields. Weights have
    the module's own names; two names of one tensor are one weight. A state ``<buffer>.state`` starts from the weight ``<buffer>``.
    ``graph.metadata``: ``torch`` (version), ``ranges`` ([smallest, largest] by symbol), ``specialized`` (dims asked to be dynamic that the model
    fixes).
    Raises EngineUnavailable without PyTorch 2.6 or later; InputError for example inputs of another kind; ModelError for a model that PyTorch
    cannot export, that is in training mode and behaves differently in it, or that changes its inputs in place.
    """
    torch = find_torch()
    name = model_name or _name_of(model)
    who = speaker(name)
    if isinstance(model, torch.export.ExportedProgram):
        program = model
    elif isinstance(model, torch.nn.Module):
        program = exported(model, example_inputs, dynamic_shapes, who)
        if model.training:
            _refuse_training(program, who)
    else:
        raise ModelError(
            who,
            "is not a PyTorch model",
            got=type(model).__name__,
            do="Give an nn.Module or a torch.export.ExportedProgram.",
        )
    whole = set(TABLE)
    while True:
        attempt = _Import(decomposed(program, whole, who), name, dynamic_shapes)
        graph = attempt.graph(who)
        refused = attempt.lowering.refused & whole
        if not refused:
            return TorchImport(graph, TorchWeights(attempt.tensors))
        whole -= refused  # what a row could not take whole, PyTorch may take apart


def weights_of(model: Any) -> Mapping[str, Array]:
    """Weights of a module or an ExportedProgram as arrays by name, made when asked for, over the tensors' own memory where they are dense
    and on the CPU. Tensors that ``forward`` makes from Python numbers are in an ExportedProgram only (``import_torch`` has them too).

    Raises ModelError for another kind of model, and on reading a tensor of the meta device.
    """
    torch = find_torch()
    if isinstance(model, torch.export.ExportedProgram):
        return TorchWeights({**model.constants, **model.state_dict})
    if isinstance(model, torch.nn.Module):
        named = [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
        return TorchWeights(dict(named))
    raise ModelError(
        "weights_of",
        "is not a PyTorch model",
        got=type(model).__name__,
        do="Give an nn.Module or a torch.export.ExportedProgram.",
    )


def save_ir(graph: Graph, weights: Mapping[str, Array], path: str | os.PathLike[str]) -> Graph:
    """Write the graph as JSON and its weights beside it, as safetensors of the same name; gives the graph that was written, whose
    weights point there.

    Raises StoreError, FormatError for a dtype that safetensors lacks, ModelError for a weight without content.
    """
    path = Path(path)
    file = path.with_suffix(".safetensors")
    missing = [w.name for w in graph.weights if w.name not in weights]
    if missing:
        raise ModelError(
            f"graph {graph.name!r}",
            "misses weights",
            got=", ".join(missing[:5]),
            do="Give their arrays by name.",
        )
    written = save_weights({w.name: weights[w.name] for w in graph.weights}, file)
    refs = tuple(
        replace(w, file=file.name, format="safetensors", key=w.name, digest=written[w.name].digest)
        for w in graph.weights
    )
    saved = graph.replace(weights=refs)
    saved.save(path)
    return saved


def _name_of(model: Any) -> str:
    if type(model).__name__ == "ExportedProgram":
        return "model"
    return type(model).__name__


def _refuse_training(program: Any, who: str) -> None:
    """A model that a training mode makes behave differently is not what a user wants to run."""
    for node in program.graph.nodes:
        op = str(node.target)
        named = (
            dict(zip((a.name for a in node.target._schema.arguments), node.args, strict=False))
            if hasattr(node.target, "_schema")
            else {}
        )
        named |= dict(node.kwargs)
        drops = "dropout" in op and named.get("train") and named.get("p")
        moves = "batch_norm" in op and named.get("training") and named.get("running_mean") is not None
        if drops or moves:
            stack = node.meta.get("nn_module_stack") or {}
            place = [path for path, *_ in stack.values()][-1:] or [""]
            raise ModelError(
                who,
                "is in training mode",
                got=f"{op} at {place[0] or 'the top'} {'drops out' if drops else 'uses the statistics of the batch'}",
                do="Call model.eval() first.",
            )


class _Import:
    """One attempt: a decomposed program, and the graph that it becomes."""

    def __init__(self, program: Any, name: str, dynamic_shapes: Any) -> None:
        self.program, self.shapes = program, dynamic_shapes
        self.nodes = list(program.graph.nodes)
        self.b = Builder(name, {n.name for n in self.nodes})
        self.symbols = Symbols()
        self.lowering = Lowering(self.b, self.symbols)
        self.tensors: dict[str, Any] = {}
        self.states: dict[str, str] = {}  # buffer -> state
        self.names: dict[str, str] = {}  # PyTorch's name of a tensor -> the weight
        self.first: dict[
            object, str
        ] = {}  # tensor -> the first of its names, where tied weights have several

    def graph(self, who: str) -> Graph:
        """Lower the program. Raises ModelError."""
        signature, torch = self.program.graph_signature, find_torch()
        placeholders = {n.name: n for n in self.nodes if n.op == "placeholder"}
        self._changes(signature, who)
        for target, tensor in self.program.state_dict.items():
            if target not in self.states:
                self.first.setdefault(identity(tensor), target)
        inputs = [s for s in signature.input_specs if s.kind.name == "USER_INPUT"]
        self._name_symbols(
            [(s.arg.name, placeholders[s.arg.name]) for s in inputs if s.arg.name in placeholders]
        )
        for spec in inputs:
            self._input(spec, placeholders, who)
        for spec in signature.input_specs:
            if spec.kind.name != "USER_INPUT":
                self._weight(spec, placeholders, who)
        self.lowering.nodes(self.nodes)
        self._outputs(signature, who)
        self.b.metadata.update(
            {
                "torch": str(torch.__version__),
                "ranges": self.symbols.ranges(self.program.range_constraints),
                "specialized": self._specialized(placeholders),
            }
        )
        return self.b.build().rewrite(lambda editor, node: None)  # what only assertions read goes

    # ── what comes in ──

    def _name_symbols(self, inputs: list[tuple[str, Any]]) -> None:
        """The user's names first; a dim that has none is called by its first place: ``x_0``."""
        vals = {name: node.meta["val"] for name, node in inputs}
        for name, axis, wanted in declared_dims(self.shapes, list(vals)):
            symbol = _symbol(vals[name], axis)
            if wanted and symbol is not None:
                self.symbols.name(symbol, wanted)
        for name, val in vals.items():
            for axis in range(len(getattr(val, "shape", ()))):
                symbol = _symbol(val, axis)
                if symbol is not None:
                    self.symbols.name(symbol, f"{name}_{axis}")

    def _input(self, spec: Any, placeholders: Mapping[str, Any], who: str) -> None:
        import torch

        node = placeholders.get(spec.arg.name)
        if node is None:
            return
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            try:
                made = spec_of(val, self.symbols)
            except NotLowered as no:
                raise ModelError(
                    who, f"has an input {node.name!r} that no graph takes", got=no.reason
                ) from no
            self.symbols.known |= made.symbols
            self.lowering.values[node] = Ref(self.b.input(node.name, made))
        elif type(val).__name__ == "SymInt":
            raise ModelError(
                who,
                f"has a number as its input {node.name!r}",
                got="a dynamic int",
                do="Give it as a tensor.",
            )
        else:
            self.lowering.values[node] = spec.arg.value if hasattr(spec.arg, "value") else val

    def _weight(self, spec: Any, placeholders: Mapping[str, Any], who: str) -> None:
        node = placeholders[spec.arg.name]
        kind = spec.kind.name
        if kind not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            if node.users:
                raise ModelError(
                    who, "holds an object that is no tensor", got=f"{spec.target} ({kind.lower()})"
                )
            return
        if not node.users and spec.target not in self.states:
            return
        tensor = self._tensor(spec)
        if spec.target in self.states:
            weight = self._declare(spec.target, node, tensor)
            state = self._free(f"{spec.target}.state")
            self.b.state(state, self.b.spec(weight), init=weight)
            self.states[spec.target] = state
            self.lowering.values[node] = Ref(state)
        elif kind == "CONSTANT_TENSOR" and _small(tensor):
            with self.b.source():
                value = self.b.constant(to_array(tensor, spec.target), name=self._free(node.name))
            self.lowering.values[node] = Ref(value)
        else:
            first = self.first.setdefault(identity(tensor), spec.target)
            name = self.names.get(first) or self._declare(first, node, tensor)
            self.lowering.values[node] = Ref(name)

    def _tensor(self, spec: Any) -> Any:
        found = self.program.state_dict.get(spec.target)
        return self.program.constants[spec.target] if found is None else found

    def _declare(self, target: str, node: Any, tensor: Any) -> str:
        name = self._free(target, node.name)
        self.b.weight(name, spec_of(node.meta["val"], self.symbols), key=target)
        self.tensors[name] = tensor
        self.names[target] = name
        return name

    def _free(self, *wanted: str) -> str:
        """The first of the names that no value has."""
        return next((n for n in wanted if n not in self.b.values), "") or self.b.fresh(wanted[0])

    # ── what goes out ──

    def _changes(self, signature: Any, who: str) -> None:
        """Buffers that are changed become states; inputs must not be."""
        for spec in signature.output_specs:
            if spec.kind.name in _CHANGES:
                self.states[spec.target] = ""
            elif spec.kind.name == "USER_INPUT_MUTATION":
                raise ModelError(
                    who,
                    "changes an input in place",
                    got=repr(spec.target),
                    do="Clone it first and return the changed one, or keep it as a buffer of the module: that becomes a state.",
                )

    def _outputs(self, signature: Any, who: str) -> None:
        import torch

        (out,) = (n for n in self.nodes if n.op == "output")
        users = [s for s in signature.output_specs if s.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT")]
        names = iter(output_names(self.program.call_spec.out_spec))
        assert len(users) <= self.program.call_spec.out_spec.num_leaves
        for spec, node in zip(signature.output_specs, out.args[0], strict=True):
            value = self.lowering.values[node] if hasattr(node, "op") else node
            if spec.kind.name in _CHANGES:
                self.b.set_state(self.states[spec.target], value.value)
            elif spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT"):
                name = next(names)
                made = self._result(value, torch, who)
                if made is not None:
                    self.b.output(name, made)

    def _result(self, value: Any, torch: Any, who: str) -> str | None:
        """A value that leaves: tensors as they are, numbers and sizes as scalars; None is nothing."""
        if isinstance(value, Unknown) or (isinstance(value, Dim) and not value.symbols <= self.symbols.known):
            raise ModelError(
                who, "returns a number that only its tensors' content tells", do="Return it as a tensor."
            )
        if isinstance(value, Ref):
            return value.value
        if isinstance(value, Dim):
            return str(self.b.select(self.b.dims(values=[value]), dim=0, index=0))
        if isinstance(value, bool | int | float):
            return str(self.b.constant(to_array(torch.tensor(value))))
        return None

    def _specialized(self, placeholders: Mapping[str, Any]) -> list[str]:
        """Dims that were asked to be dynamic and that the model fixes."""
        found = []
        for name, axis, _ in declared_dims(self.shapes, [v.name for v in self.b.inputs]):
            val = placeholders[name].meta["val"] if name in placeholders else None
            size = None if val is None else self.symbols.dim(val.shape[axis])
            if isinstance(size, int):
                found.append(f"{name}[{axis}] = {size}")
        return found


def _symbol(val: Any, axis: int) -> Any:
    """PyTorch's symbol of an input's dim, where that is one symbol alone."""
    shape = getattr(val, "shape", ())
    size = shape[axis] if axis < len(shape) else None
    expr = getattr(getattr(size, "node", None), "expr", None)
    return expr if expr is not None and expr.is_Symbol else None


def _small(tensor: Any) -> bool:
    return (
        not tensor.is_meta and type(tensor).__name__ != "FakeTensor" and tensor.numel() <= MAX_CONST_ELEMENTS
    )
