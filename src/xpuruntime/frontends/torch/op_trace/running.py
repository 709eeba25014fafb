"""Runs under the recorder: of a module's ``forward``, and of the graph that ``torch.export`` made of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..export import as_exported
from .module_state import unchanged_attributes, unmoved
from .recorder import recorder
from .results import KnownResults
from .trace import OpTrace
from .words import NotTraced

__all__ = ["TracedCall", "trace_of_export", "trace_of_module"]


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A module's tensors by name, and the arguments of a call.

    tensors: parameters and buffers; tied ones under each of their names. args, kwargs: with tensors of examples.
    """

    tensors: Mapping[str, Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def trace_of_module(model: Any, call: TracedCall, results: KnownResults) -> tuple[OpTrace, Any]:
    """Return the trace of ``forward``, and the structure of its outputs. The module is left as it was. Raise anything.

    results: those of earlier traces, which grow.
    """
    import torch

    pytree = torch.utils._pytree

    def run(inputs: list[Any], structure: Any) -> Any:
        args, kwargs = pytree.tree_unflatten(inputs, structure)
        with unchanged_attributes(model):
            return model(*args, **kwargs)

    with _ordinary_mode(torch), as_exported(torch, model), unmoved(call.tensors.values()):
        return _recorded(call, run, results, places=True)


def trace_of_export(program: Any, call: TracedCall, results: KnownResults) -> tuple[OpTrace, Any]:
    """Return the trace of the nodes of an ExportedProgram, and the structure of its outputs. Raise anything."""
    import torch
    from torch.export._tree_utils import reorder_kwargs

    signature = program.graph_signature
    if any(s.kind.name != "USER_OUTPUT" for s in signature.output_specs):
        raise NotTraced("changes of tensors of the module")
    kwargs = reorder_kwargs(dict(call.kwargs), program.call_spec.in_spec)
    specs = {s.arg.name: s for s in signature.input_specs}

    def run(inputs: list[Any], structure: Any) -> Any:
        values: dict[Any, Any] = {}
        own = iter(inputs)
        (output,) = (n for n in program.graph.nodes if n.op == "output")
        for node in program.graph.nodes:
            if node.op == "placeholder":
                spec = specs[node.name]
                if spec.kind.name == "USER_INPUT":
                    values[node] = next(own)
                else:
                    known = program.state_dict.get(spec.target)
                    values[node] = program.constants[spec.target] if known is None else known
            elif node.op == "call_function":
                args, named = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **named)
        leaves = torch.fx.map_arg(output.args[0], values.__getitem__)
        return torch.utils._pytree.tree_unflatten(list(leaves), program.call_spec.out_spec)

    ordered = TracedCall(call.tensors, call.args, kwargs)
    with _ordinary_mode(torch), as_exported(torch, torch.nn.Module()):
        return _recorded(ordered, run, results, places=False)


def _recorded(
    call: TracedCall, run: Callable[[list[Any], Any], Any], results: KnownResults, places: bool
) -> tuple[OpTrace, Any]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    pytree = torch.utils._pytree
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    recording = recorder(mode, call.tensors, results, places)
    leaves, structure = pytree.tree_flatten_with_path((call.args, dict(call.kwargs)))
    inputs = [
        recording.input(pytree.keystr(path), leaf) if isinstance(leaf, torch.Tensor) else leaf
        for path, leaf in leaves
    ]
    # What is compiled in a trace could not be compiled again outside of it; torch.cond compiles itself.
    with torch.compiler.set_stance("force_eager"), _compiling(torch), mode, recording:
        outputs, spec = pytree.tree_flatten(run(inputs, structure))
        if recording.refused:
            raise NotTraced(recording.refused)
        recording.output(outputs)
    return recording.trace, spec


def _ordinary_mode(torch: Any) -> Any:
    """Leave inference mode, in which composite ops would be recorded whole, with settings of PyTorch that an export changes."""
    return torch.inference_mode(False)


@contextlib.contextmanager
def _compiling(torch: Any) -> Iterator[None]:
    """Have PyTorch answer that an export is going on. The caller holds the lock of exports."""
    flags = [n for n in ("_is_compiling_flag", "_is_exporting_flag") if hasattr(torch.compiler, n)]
    before = {name: getattr(torch.compiler, name) for name in flags}
    try:
        for name in flags:
            setattr(torch.compiler, name, True)
        yield
    finally:
        for name, value in before.items():
            setattr(torch.compiler, name, value)
