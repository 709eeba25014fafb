"""Lowering of an exported program's nodes: each by the op table, else opaque with the reason."""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...errors import IrError
from ...faults import is_fault, recorded
from ...ir import Value, find_op
from ...ir.draws import draws_numbers
from ...ir.extensions import CONTROL_OPERATORS
from ...types import Dim, DimLike, DType, TensorSpec
from ..builder import ImportBuilder
from ..lowered_parts import MAX_ROWS
from ..not_lowered import NotLowered
from .constants import ConstantEvaluator
from .control import CONTROL
from .dims import SymbolNames, dtype_of, same_spec, spec_of
from .names import source_of
from .nodes import as_list, attribute, default, dense, has_extra_dim, has_readers, is_number, op_name
from .ops import (
    IGNORED_ARGUMENTS,
    PAIR_CREATORS,
    PAIR_LOWERINGS,
    TABLE,
    AtenLoweringContext,
    ComplexPair,
    TensorRef,
    real_form,
)

__all__ = ["AtenLowering", "UnknownNumber"]


class UnknownNumber:
    """A number that depends on a tensor's content. A node that reads it is not lowered."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class AtenLowering:
    """The lowering of a program's nodes into ``b``.

    values:    FX node -> TensorRef, a list of them, a dim or another plain value.
    evaluator: evaluates nodes that depend on constants alone.
    max_rows:  maximum rows of a system or factorization (``LoweredParts``).
    refused:   ATen names whose lowering rejected a call, so that PyTorch may decompose them instead.
    draws:     ATen names whose random numbers PyTorch draws: such nodes become opaque.
    """

    def __init__(
        self, b: ImportBuilder, symbols: SymbolNames, max_rows: int = MAX_ROWS, draws: Container[str] = ()
    ) -> None:
        self.b, self.symbols, self.max_rows, self.draws = b, symbols, max_rows, draws
        self.values: dict[Any, Any] = {}
        self.evaluator = ConstantEvaluator()
        self.refused: set[str] = set()

    def nodes(self, nodes: Iterable[Any]) -> None:
        """Lower nodes in order. The caller handles inputs and outputs of the program."""
        for node in nodes:
            if node.op == "get_attr":
                self.values[node] = attribute(node)
            elif node.op == "call_function":
                self._call(node)

    def argument(self, value: Any) -> Any:
        """Return an FX argument as an AtenLoweringContext represents it. Raise NotLowered."""
        import torch
        from torch import fx

        if isinstance(value, fx.Node):
            lowered = self.values[value]
            if isinstance(lowered, UnknownNumber):
                raise NotLowered(lowered.reason)
            return self._bound(lowered)
        if isinstance(value, list | tuple):
            return [self.argument(v) for v in value]
        if isinstance(value, torch.dtype):
            return dtype_of(value)
        if isinstance(value, torch.SymInt):
            return self._bound(self.symbols.dim(value))
        return value

    def _bound(self, value: Any) -> Any:
        if isinstance(value, Dim) and not value.symbols <= self.symbols.known:
            raise NotLowered("a size depends on the content of a tensor")
        return value

    # ── one node ──

    def _call(self, node: Any) -> None:
        target = node.target
        if target is operator.getitem:
            self.values[node] = self._item(node)
            return
        result = node.meta.get("val")
        if is_number(result) and str(target) == "aten._local_scalar_dense.default":
            self._read_scalar(node)
            return
        if is_number(result):
            self.values[node] = self._number(node, result)
            return
        op, domain = op_name(target)
        if result is None or _is_nested(result):
            self.values[node] = None  # an assertion, or results of which each reader takes a part
            return
        with self.b.source(source_of(node, f"{domain}.{op}" if domain else op)):
            mark, outer_stem = len(self.b.nodes), self.b.stem
            self.b.stem = node.name
            try:
                results = self._lower(node, domain, op)
            except NotLowered as no:
                reason = no.reason
            except IrError as error:
                reason = f"{error.what}{'' if error.got is None else f' ({error.got})'}"
            except Exception as error:
                if not is_fault(error) or isinstance(error, MemoryError):
                    raise
                reason = f"a fault of xpuruntime: its lowering failed with {recorded(error).text}"
            else:
                self._name(node, results, mark)
                return
            finally:
                self.b.stem = outer_stem
            self._undo(mark)
            self.refused.add(op)
            self._opaque(node, domain, op, reason)

    def _lower(self, node: Any, domain: str, op: str) -> list[str | ComplexPair | None]:
        if op in CONTROL and domain != "aten":
            return self._control(node, op)
        name = op if domain == "aten" else f"{domain}::{op}"
        lower: Any = PAIR_CREATORS.get(name) or TABLE.get(name)
        if lower is None and domain != "aten":
            raise NotLowered(
                "control flow"
                if op in CONTROL_OPERATORS
                else f"the op is of the library {domain or 'torch'!r}"
            )
        if lower is None and name not in PAIR_LOWERINGS:
            raise NotLowered("the op is not in the table of ATen ops")
        arguments = self._arguments(node)
        if any(map(_has_pair, arguments.values())):
            lower = PAIR_LOWERINGS.get(name)
        if lower is None:
            raise NotLowered("the op is not supported for complex numbers")
        context = AtenLoweringContext(
            self.b,
            op,
            arguments,
            self._specs(node),
            lambda i: has_readers(node, i),
            dense(node),
            self.max_rows,
        )
        mark = len(self.b.nodes)
        outputs = lower(context)
        if name in self.draws and any(map(draws_numbers, self.b.nodes[mark:])):
            raise NotLowered("it draws random numbers, which PyTorch's seed decides")
        self._learn_symbols(mark)
        for argument, value in context.args.items():
            if (
                argument not in context.read
                and argument not in IGNORED_ARGUMENTS
                and value != default(node, argument)
            ):
                raise NotLowered(f"its argument {argument} is {value}")
        results: list[str | ComplexPair | None] = (
            [outputs] if isinstance(outputs, str | ComplexPair) else list(outputs)
        )
        self._fix_sizes(node, results)
        torch_specs = self._specs(node)
        for i, value in enumerate(results):
            self._checked(node, i, value, torch_specs[i] if i < len(torch_specs) else None)
        return results

    def _control(self, node: Any, op: str) -> list[str | ComplexPair | None]:
        """Lower a branch or a loop, whose bodies are graphs of their own."""
        results: list[str | ComplexPair | None] = list(CONTROL[op](self, node))
        for i, (value, torch_spec) in enumerate(zip(results, self._specs(node), strict=True)):
            self._checked(node, i, value, torch_spec)
        return results

    def _fix_sizes(self, node: Any, results: Sequence[str | ComplexPair | None]) -> None:
        """Fix sizes that PyTorch treats as data-dependent but that the program determines."""
        fresh = {str(symbol) for symbol in node.meta.get("unbacked_bindings") or ()}
        if not fresh:
            return
        for value, tensor in zip(results, as_list(node.meta["val"]), strict=False):
            for name in _values(value)[:1]:
                for dim, size in zip(self.b.spec(name).shape, tensor.shape, strict=False):
                    if isinstance(dim, int) and str(size) in fresh:
                        self.symbols.fix(size, dim)

    def _checked(
        self, node: Any, position: int, value: str | ComplexPair | None, torch_spec: TensorSpec | None
    ) -> None:
        """Raise NotLowered unless a result has PyTorch's type: a wrong lowering is found here, not in a model's accuracy."""
        if value is None:
            if has_readers(node, position):
                raise NotLowered(f"its result {position} is not computed")
            return
        if isinstance(value, ComplexPair) and torch_spec is not None:
            torch_spec = real_form(torch_spec)
        for spec in (self.b.spec(v) for v in _values(value)):
            if has_extra_dim(node, position) and torch_spec is not None:
                torch_spec = replace(torch_spec, shape=(torch_spec.shape[0], *torch_spec.shape[2:]))
            if torch_spec is not None and not same_spec(spec, torch_spec):
                raise NotLowered(f"its result {position} is {spec}, but PyTorch's is {torch_spec}")

    def _arguments(self, node: Any) -> dict[str, Any]:
        schema = node.target._schema.arguments
        explicit = dict(zip((a.name for a in schema), node.args, strict=False)) | dict(node.kwargs)
        full = {
            a.name: explicit.get(a.name, a.default_value if a.has_default_value() else None) for a in schema
        }
        return {
            name: None if name in IGNORED_ARGUMENTS else self.argument(value) for name, value in full.items()
        }

    def _specs(self, node: Any) -> list[TensorSpec | None]:
        """Return the results' specs as PyTorch infers them."""
        return [None if v is None else spec_of(v, self.symbols) for v in as_list(node.meta["val"])]

    def _learn_symbols(self, mark: int) -> None:
        """Register the symbols of new nodes: counts of data-dependent ops become known; any other raises NotLowered."""
        for new_node in self.b.nodes[mark:]:
            fresh = (
                frozenset().union(*(v.spec.symbols for v in new_node.outputs if v.spec)) - self.symbols.known
            )
            if fresh and not find_op(new_node.op).data_dependent:
                raise NotLowered("a size depends on the content of a tensor")
            self.symbols.known |= fresh

    # ── results ──

    def _name(self, node: Any, results: Sequence[str | ComplexPair | None], mark: int) -> None:
        """Give results the FX node's name, except values that existed before (a no-op view keeps its name)."""
        import torch

        several = not isinstance(node.meta["val"], torch.Tensor)
        refs = []
        for i, value in enumerate(results):
            name = f"{node.name}.{i}" if several and i else node.name
            names = [
                self._rename_new(mark, v, f"{name}.imag" if k else name) for k, v in enumerate(_values(value))
            ]
            refs.append(
                None
                if value is None
                else ComplexPair(*names)
                if isinstance(value, ComplexPair)
                else TensorRef(*names)
            )
        self.values[node] = refs if several else refs[0]

    def _rename_new(self, mark: int, value: str, name: str) -> str:
        """Rename a value created since ``mark`` to ``wanted`` if that is free. Return its name."""
        is_new = any(v.name == value for n in self.b.nodes[mark:] for v in n.outputs)
        if not is_new or name in self.b.values:
            return value
        self._rename(mark, value, name)
        return name

    def _rename(self, mark: int, old: str, new: str) -> None:
        nodes, values = self.b.nodes, self.b.values
        for i in range(mark, len(nodes)):
            outputs = tuple(Value(new, v.spec) if v.name == old else v for v in nodes[i].outputs)
            inputs = tuple(new if v == old and isinstance(v, str) else v for v in nodes[i].inputs)
            nodes[i] = replace(nodes[i], inputs=inputs, outputs=outputs)
        values[new] = Value(new, values.pop(old).spec)

    def _undo(self, mark: int) -> None:
        for node in self.b.nodes[mark:]:
            for value in node.outputs:
                del self.b.values[value.name]
        del self.b.nodes[mark:]

    def _item(self, node: Any) -> Any:
        source, index = node.args
        values = self.values[source]
        if isinstance(values, UnknownNumber):
            return values
        if values is None:
            # The source is an operator around another one, such as one that saves the state of a random generator.
            result = node.meta.get("val")
            if result is not None:
                with self.b.source(source_of(node, str(source.target))):
                    self._opaque(node, "", str(source.target), "only PyTorch has the op")
            return self.values.get(node)
        return values[index]

    def _number(self, node: Any, result: Any) -> Any:
        """Return a size, or arithmetic on sizes, as an expression."""
        if type(result).__name__ == "SymInt":
            try:
                value: DimLike = self.symbols.dim(result)
            except NotLowered as no:
                return UnknownNumber(no.reason)
            return value
        if isinstance(result, bool | int | float):
            return result
        return UnknownNumber("it reads a number that is known only at run time")

    def _read_scalar(self, node: Any) -> None:
        """Set the number in a tensor of one element: a constant if the program determines it, else the tensor itself as an operand."""
        (x,) = node.args
        content = self.evaluator.of(x)
        if content is not None:
            self.values[node] = self.evaluator.constants[node] = content.item()
            self.symbols.fix(node.meta["val"], content.item())
            return
        with self.b.source(source_of(node, "aten._local_scalar_dense")):
            value = self.values[x]
            if type(value) is TensorRef and self.b.values[value.value].spec is not None:
                scalar = value.value
                if self.b.spec(scalar).rank:
                    scalar = str(self.b.view(scalar, size=[], name=node.name))
                self.values[node] = TensorRef(scalar)
            else:
                self.values[node] = UnknownNumber("it reads a number that is known only at run time")

    # ── opaque ──

    def _opaque(self, node: Any, domain: str, op: str, reason: str) -> None:
        import torch

        inputs: list[str | None] = []
        attributes: dict[str, Any] = {}
        for name, value in self._opaque_arguments(node).items():
            _add_argument(name, value, inputs, attributes)
        several = not isinstance(node.meta["val"], torch.Tensor)
        outputs: list[tuple[str, TensorSpec | None]] = []
        for i, value in enumerate(as_list(node.meta["val"])):
            name = f"{node.name}.{i}" if several and i else node.name
            outputs.append((name if name not in self.b.values else self.b.fresh(name), self._spec(value)))
        names = self.b.opaque(
            op, inputs, outputs, reason=reason, domain=domain or "torch", attributes=attributes
        )
        refs = [TensorRef(v) for v in names]
        self.values[node] = refs if several else refs[0]

    def _opaque_arguments(self, node: Any) -> dict[str, Any]:
        """Return arguments by name; without a schema, or with an unsupported argument, the tensors alone."""
        use = f"an operand of {op_name(node.target)[0]}, which is supported for real tensors only"
        try:
            if hasattr(node.target, "_schema"):
                return {name: self.as_complex(value, use) for name, value in self._arguments(node).items()}
        except NotLowered:
            pass
        flat = [self.values.get(a) for a in node.all_input_nodes]
        return {
            f"operand_{i}": self.as_complex(v, use) for i, v in enumerate(flat) if isinstance(v, TensorRef)
        }

    def as_complex(self, value: Any, use: str) -> Any:
        """Return the value with each complex pair as one complex tensor, which PyTorch creates. use: what reads it, for messages."""
        if isinstance(value, list):
            return [self.as_complex(v, use) for v in value]
        if not isinstance(value, ComplexPair):
            return value
        part = self.b.spec(value.value)
        spec = TensorSpec(part.shape, DType.COMPLEX64 if part.dtype is DType.FLOAT32 else DType.COMPLEX128)
        (tensor,) = self.b.opaque(
            "complex",
            [value.value, value.imaginary],
            [(self.b.fresh(f"{value.value}.complex"), spec)],
            reason=f"tensor {value.value!r} is {spec} and is {use}",
            domain="aten",
            attributes={"real": "%0", "imag": "%1"},
        )
        return TensorRef(tensor)

    def _spec(self, value: Any) -> TensorSpec | None:
        """Return the spec of an opaque result; None if the IR cannot express it."""
        try:
            spec = spec_of(value, self.symbols)
        except (NotLowered, AttributeError):
            return None
        self.symbols.known |= spec.symbols
        return spec


def _values(value: str | ComplexPair | None) -> list[str]:
    """Return the names of a result's tensors, both for a complex pair."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else [value.value, value.imaginary]


def _has_pair(value: Any) -> bool:
    return isinstance(value, ComplexPair | complex) or (
        isinstance(value, list) and any(map(_has_pair, value))
    )


def _is_nested(result: Any) -> bool:
    return isinstance(result, tuple | list) and any(isinstance(v, tuple | list) for v in result)


def _add_argument(name: str, value: Any, inputs: list[str | None], attributes: dict[str, Any]) -> None:
    """Append tensors to the inputs, with an attribute that refers to them (``%0``); everything else becomes an attribute."""
    if isinstance(value, TensorRef):
        attributes[name] = f"%{len(inputs)}"
        inputs.append(value.value)
    elif isinstance(value, list) and any(isinstance(v, TensorRef) for v in value):
        attributes[name] = [None if v is None else f"%{len(inputs) + i}" for i, v in enumerate(value)]
        inputs.extend(v.value if isinstance(v, TensorRef) else None for v in value)
    elif value is None or isinstance(value, bool | int | float | str | Dim | list):
        attributes[name] = value
    else:
        attributes[name] = str(value)
