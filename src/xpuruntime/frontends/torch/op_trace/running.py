"""Runs under the recorder: of a module's ``forward``, and of the graph that ``torch.export`` made of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..export import as_exported
from .module_state import unchanged_attributes, unmoved
from .recorder import recorder
from .trace import Trace
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


def trace_of_module(model: Any, call: TracedCall, places: bool = True) -> tuple[Trace, Any]:
    """Return the trace of ``forward``, and the structure of its outputs. The module is left as it was. Raise anything."""
    import torch

    pytree = torch.utils._pytree

    def run(inputs: list[Any], structure: Any) -> Any:
        args, kwargs = pytree.tree_unflatten(inputs, structure)
        with unchanged_attributes(model):
            return model(*args, **kwargs)

    with _ordinary_mode(torch), as_exported(torch, model), unmoved(call.tensors.values()):
        return _recorded(call, run, places)


def trace_of_export(program: Any, call: TracedCall) -> tuple[Trace, Any]:
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
        return _recorded(ordered, run, False)


def _recorded(call: TracedCall, run: Callable[[list[Any], Any], Any], places: bool) -> tuple[Trace, Any]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    pytree = torch.utils._pytree
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes: dict[int, Any] = {}
    labels: dict[int, str] = {}
    for name, tensor in call.tensors.items():
        if id(tensor) not in fakes:
            fakes[id(tensor)], labels[id(tensor)] = _empty(torch, mode, tensor), f"tensor {name}"
    leaves, structure = pytree.tree_flatten_with_path((call.args, dict(call.kwargs)))
    inputs = []
    for path, leaf in leaves:
        inputs.append(leaf)
        if isinstance(leaf, torch.Tensor):
            inputs[-1] = fake = _empty(torch, mode, leaf)
            fakes[id(fake)], labels[id(fake)] = fake, f"input {pytree.keystr(path)}"
    recording = recorder(mode, fakes, labels, places)
    with _compiling(torch), mode, recording:
        outputs, spec = pytree.tree_flatten(run(inputs, structure))
        if recording.refused:
            raise NotTraced(recording.refused)
        recording.output(outputs)
    return recording.trace, spec


def _empty(torch: Any, mode: Any, tensor: Any) -> Any:
    """Return a tensor without content for one of a module or a call. Raise NotTraced for another class than PyTorch's own."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise NotTraced(f"a tensor of class {type(tensor).__name__}")
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        raise NotTraced("a tensor that is sparse, or a view as its conjugate or negative")
    if tensor.is_meta or tensor.storage_offset():
        return mode.from_tensor(tensor, static_shapes=True)
    meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return _fake_class()(mode, meta, tensor.device)


def _fake_class() -> Any:
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


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
