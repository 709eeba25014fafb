"""Import of one exported program: inputs, weights and states, lowering of nodes (``lower``), outputs."""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Any

from ...errors import ModelError
from ...ir import MAX_CONST_ELEMENTS, Graph, Weight
from ...types import Dim
from ..builder import ImportBuilder
from ..lowered_parts import MAX_ROWS
from ..not_lowered import NotLowered
from .dims import SymbolNames, spec_of
from .export import find_torch
from .lower import AtenLowering, UnknownNumber
from .names import declared_dims, output_names
from .ops import ComplexPair, TensorRef, real_form
from .weights import tensor_key, to_array

__all__ = ["ProgramImport"]

_MAX_EMBEDDED = 16 << 20  # bytes of one tensor that is stored in the graph
_CHANGES = ("BUFFER_MUTATION", "PARAMETER_MUTATION")


class ProgramImport:
    """One attempt to import a decomposed program."""

    def __init__(
        self,
        program: Any,
        name: str,
        dynamic_shapes: Mapping[str, Any],
        saved: Mapping[str, str] = MappingProxyType({}),
        max_rows: int = MAX_ROWS,
        draws: Container[str] = (),
    ) -> None:
        self.program, self.shapes, self.saved = program, dynamic_shapes, saved
        self.nodes = list(program.graph.nodes)
        self.b = ImportBuilder(name, {n.name for n in self.nodes})
        self.symbols = SymbolNames()
        self.lowering = AtenLowering(self.b, self.symbols, max_rows, draws)
        self.tensors: dict[str, Any] = {}
        self.states: dict[str, str] = {}  # buffer -> state
        self.names: dict[str, str] = {}  # PyTorch's name of a tensor -> the weight
        self.first: dict[object, str] = {}  # tensor -> the first of its names, if tied weights have several

    def graph(self, who: str) -> Graph:
        """Lower the program. Raise ModelError."""
        signature, torch = self.program.graph_signature, find_torch()
        placeholders = {n.name: n for n in self.nodes if n.op == "placeholder"}
        self._register_states(signature, who)
        for target, tensor in self.program.state_dict.items():
            if target not in self.states:
                self.first.setdefault(tensor_key(tensor), target)
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
                **self._aliases(),
                "ranges": self.symbols.ranges(self.program.range_constraints),
                "specialized": self._specialized(placeholders),
            }
        )
        return self.b.build().rewrite(lambda editor, node: None)  # remove nodes that only assertions read

    # ── what comes in ──

    def _name_symbols(self, inputs: list[tuple[str, Any]]) -> None:
        """Name symbols by the user's names first; an unnamed dim after its first use: ``x_0``."""
        vals = {name: node.meta["val"] for name, node in inputs}
        for name, axis, user_name in declared_dims(self.shapes, list(vals)):
            symbol = _symbol(vals[name], axis)
            if user_name and symbol is not None:
                self.symbols.name(symbol, user_name)
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
                input_spec = spec_of(val, self.symbols)
            except NotLowered as no:
                raise ModelError(
                    who,
                    f"has an input {node.name!r} that the IR cannot represent",
                    got=no.reason,
                    do="Pass tensors of ordinary dtypes.",
                ) from no
            self.symbols.known |= input_spec.symbols
            self.lowering.values[node] = TensorRef(self.b.input(node.name, input_spec))
        elif type(val).__name__ == "SymInt":
            raise ModelError(
                who,
                f"has a dynamic number as its input {node.name!r}",
                got="a dynamic int",
                do="Pass it as a tensor.",
            )
        else:
            self.lowering.values[node] = spec.arg.value if hasattr(spec.arg, "value") else val

    def _weight(self, spec: Any, placeholders: Mapping[str, Any], who: str) -> None:
        node = placeholders[spec.arg.name]
        kind = spec.kind.name
        if kind not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            if kind == "TOKEN":
                ops = [str(u.args[1]) for u in node.users if len(u.args) > 1]
                raise ModelError(
                    who,
                    "has an op with side effects",
                    got=", ".join(ops) or "an effect token",
                    do="Use the form without a check (torch.linalg.inv_ex for inv), or export the part without it.",
                )
            if node.users:
                raise ModelError(
                    who,
                    "holds an object that is not a tensor",
                    got=f"{spec.target} ({kind.lower()})",
                    do="Make it a tensor, or an attribute that the forward does not read.",
                )
            return
        if not node.users and spec.target not in self.states:
            return
        tensor = self._tensor(spec)
        if tensor.is_complex() and spec.target not in self.states:
            self.lowering.values[node] = ComplexPair(
                *(self._complex_part(spec, node, part) for part in ("real", "imag"))
            )
        elif spec.target in self.states:
            weight = self._declare(spec.target, node, tensor)
            state = self._free(f"{spec.target}.state")
            self.b.state(state, self.b.spec(weight), init=weight)
            self.states[spec.target] = state
            self.lowering.values[node] = TensorRef(state)
        elif kind == "CONSTANT_TENSOR" and _small(tensor):
            with self.b.source():
                value = self.b.constant(to_array(tensor, spec.target), name=self._free(node.name))
            self.lowering.values[node] = TensorRef(value)
            self.lowering.evaluator.constants[node] = tensor.detach().cpu()
        else:
            first = self.first.setdefault(tensor_key(tensor), spec.target)
            name = self.names.get(first) or self._declare(first, node, tensor)
            self.lowering.values[node] = TensorRef(name)

    def _complex_part(self, spec: Any, node: Any, part: str) -> str:
        """Declare the real or imaginary part of a complex tensor."""
        tensor = getattr(self._tensor(spec).resolve_conj(), part).contiguous()
        name = self._free(f"{spec.target}.{part}")
        part_spec = real_form(spec_of(node.meta["val"], self.symbols))
        embed = spec.target not in self.program.state_dict and _embeddable(tensor)
        data = Weight.encoded(to_array(tensor, spec.target)) if embed else ""
        self.b.weight(name, part_spec, key=name, data=data)
        self.tensors[name] = tensor
        return name

    def _tensor(self, spec: Any) -> Any:
        tensor = self.program.state_dict.get(spec.target)
        return self.program.constants[spec.target] if tensor is None else tensor

    def _declare(self, target: str, node: Any, tensor: Any) -> str:
        name = self._free(target, node.name)
        embed = target not in self.program.state_dict and _embeddable(tensor)
        data = Weight.encoded(to_array(tensor, target)) if embed else ""
        self.b.weight(name, spec_of(node.meta["val"], self.symbols), key=target, data=data)
        self.tensors[name] = tensor
        self.names[target] = name
        return name

    def _aliases(self) -> dict[str, Any]:
        """Return other names of each weight's tensor: in the module, if weights are tied, and in its checkpoints."""
        names_by_tensor: dict[object, list[str]] = {}
        for target, tensor in self.program.state_dict.items():
            names_by_tensor.setdefault(tensor_key(tensor), []).append(target)
        aliases: dict[str, list[str]] = {}
        for first, *tied in names_by_tensor.values():
            names = [*tied, *(self.saved[n] for n in (first, *tied) if n in self.saved)]
            if names and first in self.names:
                aliases[self.names[first]] = names
        return {"aliases": aliases} if aliases else {}

    def _free(self, *preferred: str) -> str:
        """Return the first unused of the names, or a fresh one."""
        return next((n for n in preferred if n not in self.b.values), "") or self.b.fresh(preferred[0])

    # ── outputs ──

    def _register_states(self, signature: Any, who: str) -> None:
        """Register changed buffers as states. Raise ModelError for changed inputs."""
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
            value = (
                self.lowering.as_complex(self.lowering.values[node], "an output")
                if hasattr(node, "op")
                else node
            )
            if spec.kind.name in _CHANGES:
                self.b.set_state(self.states[spec.target], value.value)
            elif spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT"):
                name = next(names)
                result = self._result(value, torch, who)
                if result is not None:
                    self.b.output(name, result)

    def _result(self, value: Any, torch: Any, who: str) -> str | None:
        """Return an output value: tensors unchanged, numbers and sizes as scalars; None is no output."""
        if isinstance(value, UnknownNumber) or (
            isinstance(value, Dim) and not value.symbols <= self.symbols.known
        ):
            raise ModelError(
                who, "returns a number that depends on the content of tensors", do="Return it as a tensor."
            )
        if isinstance(value, TensorRef):
            return value.value
        if isinstance(value, Dim):
            return str(self.b.select(self.b.dims(values=[value]), dim=0, index=0))
        if isinstance(value, bool | int | float):
            return str(self.b.constant(to_array(torch.tensor(value))))
        return None

    def _specialized(self, placeholders: Mapping[str, Any]) -> list[str]:
        """Return the dims that were requested as dynamic and that the model fixes."""
        fixed = []
        for name, axis, _ in declared_dims(self.shapes, [v.name for v in self.b.inputs]):
            val = placeholders[name].meta["val"] if name in placeholders else None
            size = None if val is None else self.symbols.dim(val.shape[axis])
            if isinstance(size, int):
                fixed.append(f"{name}[{axis}] = {size}")
        return fixed


def _symbol(val: Any, axis: int) -> Any:
    """Return PyTorch's symbol of an input's dim if the dim is a single symbol."""
    shape = getattr(val, "shape", ())
    size = shape[axis] if axis < len(shape) else None
    expr = getattr(getattr(size, "node", None), "expr", None)
    return expr if expr is not None and expr.is_Symbol else None


def _has_elements(tensor: Any) -> bool:
    return not tensor.is_meta and type(tensor).__name__ != "FakeTensor"


def _small(tensor: Any) -> bool:
    return _has_elements(tensor) and tensor.numel() <= MAX_CONST_ELEMENTS


def _embeddable(tensor: Any) -> bool:
    return _has_elements(tensor) and 0 < tensor.numel() * tensor.element_size() <= _MAX_EMBEDDED
