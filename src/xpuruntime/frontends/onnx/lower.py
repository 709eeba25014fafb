"""Lowering of an ONNX graph: each node by the op table, else inlined, else opaque."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...errors import IrError
from ...faults import is_fault
from ...ir import Source, Value
from ...types import DType, TensorSpec
from ..not_lowered import NotLowered
from .control import MAX_NODES, BodyValues, lower_control, rank_of
from .definitions import why_not_supported
from .fold import fold
from .nodes import (
    NOT_LOWERED_REASONS,
    attributes,
    body_nodes,
    defaults,
    resolve_references,
    schema_body,
    version,
)
from .opaque import captured, encode
from .ops import AT_RUN_TIME, DOMAINS, TABLE, OnnxLoweringContext, OpLowering, Results
from .ops.earlier import CURRENT_OPSET, EARLIER
from .proto import sub_graphs
from .scope import Scope
from .sequences import READERS, elements_made, value_read
from .values import Mark, OnnxValues

__all__ = ["OnnxLowering"]

_MAX_DEPTH = 40  # nesting of function calls
_MAX_UNROLLED = 64  # iterations of a loop that is written out
_CONTROL = frozenset(["If", "Loop", "Scan"])


class OnnxLowering:
    """The lowering of one model's nodes into ``values``."""

    def __init__(self, proto: Any, values: OnnxValues) -> None:
        self.values = values
        self.functions = {(f.domain, f.name): f for f in proto.functions}
        self.ir_version = int(proto.ir_version)
        self._budget = [MAX_NODES]  # nodes of bodies that may still be lowered

    def within(self, body: BodyValues) -> OnnxLowering:
        """Return the lowering of a body's nodes."""
        inner = copy.copy(self)
        inner.values = body
        return inner

    def nodes(self, named_nodes: Iterable[tuple[str, Any]], scope: Scope) -> None:
        """Lower nodes in order; names are unique in the model."""
        for name, node in named_nodes:
            domain = "" if node.domain == "ai.onnx" else node.domain
            op_name = f"{domain}::{node.op_type}" if domain else node.op_type
            with self.values.b.source(scope.source or Source(name=name, op=op_name)):
                self._node(node, domain, scope)

    def _node(self, node: Any, domain: str, scope: Scope) -> None:
        mark = self.values.mark()
        outer_stem = self.values.b.stem
        self.values.b.stem = scope.prefix + next((o for o in node.output if o), node.op_type)
        node = resolve_references(node, scope.actuals)
        mismatch = False
        try:
            if (domain, node.op_type) not in self.functions and (
                reason := why_not_supported(node, domain, scope.opsets.get(domain, 1))
            ):
                self._opaque(node, domain, scope, reason)
                return
            try:
                self._lower(node, domain, scope, mark)
                return
            except NotLowered as no:
                reason = no.reason
                if no.value:
                    self.values.deciding |= self.values.roots(no.value)
            except IrError as error:
                reason = f"{error.what}{'' if error.got is None else f' ({error.got})'}"
                mismatch = node.op_type not in _CONTROL
            except Exception as error:
                if not is_fault(error) or isinstance(error, MemoryError):
                    raise
                reason = f"its attributes or operands do not match the op ({type(error).__name__}: {error})"
            self.values.undo(mark)
            if not self._inlined(node, domain, scope, mark):
                self.values.undo(mark)
                name = self._opaque(node, domain, scope, reason)
                elements = None if domain else elements_made(self.values, node, scope)
                if elements is not None:
                    self.values.sequences[name] = elements
                if mismatch and all(self._is_sized(i, scope) for i in node.input if i):
                    self.values.impossible.add(name)
        finally:
            self.values.b.stem = outer_stem

    def _lower(self, node: Any, domain: str, scope: Scope, mark: Mark) -> None:
        """Lower a node by folding, by its table entry, or as a constant. Raise NotLowered."""
        op = node.op_type
        if (domain, op) in self.functions:
            raise NotLowered("it is a local function of the model")
        table = DOMAINS.get(domain, {}) if domain else TABLE
        if domain and op not in table:
            raise NotLowered(f"the op is of domain {domain!r}")
        opset = scope.opsets.get(domain, 1)
        if op == "Constant":
            self.values.constant(node, scope)
            return
        if op in _CONTROL:
            if op != "If" or not self._branch(node, scope):
                self._control(node, scope, mark)
            return
        if not domain and op in READERS:
            self._bind_outputs(node, scope, [value_read(self.values, node, scope)], mark[0])
            return
        lower = table.get(op)
        if lower is None:
            raise NotLowered(NOT_LOWERED_REASONS.get(op, "the op is not in the table of ONNX ops"))
        is_earlier = not domain and opset < CURRENT_OPSET and version(op, opset) != version(op, CURRENT_OPSET)
        if is_earlier and op not in EARLIER:
            raise NotLowered(f"opset {opset} defines the op differently from opset {CURRENT_OPSET}")
        inputs = [self.values.value(i, scope) if i else None for i in node.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        context = OnnxLoweringContext(
            self.values.b,
            op,
            opset,
            inputs,
            list(node.output),
            attributes(node),
            self.values.content,
            self.values.types.dtypes,
        )
        if is_earlier:
            context = EARLIER[op](context)
        if not domain and self._folded(op, context.inputs, context.attrs, node, scope):
            return
        results = self._results(lower, None if domain else AT_RUN_TIME.get(op), context)
        values: list[str | None] = [results] if isinstance(results, str) else list(results)
        self._bind_outputs(node, scope, values, mark[0])

    def _results(
        self, lower: OpLowering, at_run_time: OpLowering | None, context: OnnxLoweringContext
    ) -> Results:
        """Return the results of a lowering, or of another one if an operand had to be known. Bodies have no sizes that only a run knows."""
        mark = self.values.mark()
        try:
            return lower(context)
        except NotLowered as no:
            if not no.value or at_run_time is None or self.values.b.outer is not None:
                raise
            self.values.deciding |= self.values.roots(no.value)
        self.values.undo(mark)
        return at_run_time(context)

    def _bind_outputs(self, node: Any, scope: Scope, results: list[str | None], start: int) -> None:
        """Rename results to the names that the model has for them."""
        bound: set[str] = set()
        new = {v.name for n in self.values.b.nodes[start:] for v in n.outputs}
        renamed: dict[str, str] = {}
        for index, output in enumerate(node.output):
            if not output:
                continue
            value = results[index] if index < len(results) else None
            if value is None:
                raise NotLowered(f"its output {index} ({output!r}) is not computed")
            value = renamed.get(value, value)
            if value in bound or value not in new:
                value = str(self.values.b.clone(value))
            outer_name = scope.prefix + output
            if outer_name not in self.values.b.values:
                self.values.b.values[outer_name] = Value(outer_name, self.values.b.values.pop(value).spec)
                renamed[value] = outer_name
                value = outer_name
            bound.add(value)
            scope.values[output] = value
        self.values.rename(renamed, start)
        for new_node in self.values.b.nodes[start:]:
            self.values.learn(new_node)

    def _folded(
        self, op: str, inputs: Sequence[str | None], attrs: dict[str, Any], node: Any, scope: Scope
    ) -> bool:
        """Compute the node now if all its operands are known. Return whether that was possible."""
        if not inputs:
            return False
        facts = attrs
        if op in ("Cast", "CastLike"):  # only the type of the second operand matters
            like = self.values.b.values[inputs[1] or ""].spec if op == "CastLike" else None
            to = self.values.types.dtypes.get(attrs["to"]) if op == "Cast" else like and like.dtype
            if to is None:
                return False
            op, inputs, facts = "Cast", inputs[:1], {"to": to}
        operands = [None if i is None else self.values.content(i) for i in inputs]
        if any(i is not None and a is None for i, a in zip(inputs, operands, strict=True)):
            return False
        results = fold(op, operands, facts)
        if results is None or len(results) < len(node.output):
            return False
        first = self.values.b.values[next(i for i in inputs if i)].spec
        kind: DType | None = facts["to"] if op == "Cast" else None if first is None else first.dtype
        start = len(self.values.b.nodes)
        self._bind_outputs(node, scope, [self.values.known_value(r, kind) for r in results], start)
        for output, result in zip(node.output, results, strict=False):
            if output:
                self.values.known[scope.values[output]] = result
        return True

    def _branch(self, node: Any, scope: Scope) -> bool:
        """Lower an If as the branch that is taken. Return False if the condition is known only at run time."""
        condition = self.values.content(self.values.value(node.input[0], scope))
        if condition is None:
            return False
        branch = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
        graph = attributes(node)[branch]
        inner = Scope.of_graph(graph, scope.opsets, scope, self._prefix(node, scope))
        self.nodes(((n.name or n.op_type, n) for n in graph.node), self._sourced(inner))
        self._hand_out(node, scope, [self.values.value(o.name, inner) for o in graph.output])
        return True

    def _control(self, node: Any, scope: Scope, mark: Mark) -> None:
        """Lower an If whose condition is not known, a Loop or a Scan. Raise NotLowered."""

        def lower(body: BodyValues, nodes: Sequence[Any], inner: Scope) -> None:
            self.within(body).nodes(((n.name or n.op_type, n) for n in nodes), inner)

        try:
            results = lower_control(node, self.values, scope, lower, self._budget)
        except NotLowered as no:  # a known condition or number of iterations may still make it possible
            if node.op_type == "Loop" and self._unrolled(node, scope, mark):
                return
            names = node.input[:2] if node.op_type != "Scan" else ()
            given = [self.values.value(n, scope) for n in names if n]
            deciding = next((v for v in given if self.values.content(v) is None), no.value)
            raise NotLowered(no.reason, deciding) from no
        self._bind_outputs(node, scope, list(results), mark[0])

    def _unrolled(self, node: Any, scope: Scope, mark: Mark) -> bool:
        """Lower a Loop as its iterations in a row. Return False unless their number is known and small, and the body never ends it."""
        self.values.undo(mark)
        names = [n if n == "" else self.values.value(n, scope) for n in node.input]
        known = [self.values.content(n) if n else None for n in names[:2]]
        if known[0] is None or known[0].size != 1 or known[0].dtype == object:
            return False
        if names[1:2] not in ([], [""]) and (known[1] is None or not known[1].all()):
            return False
        trips, graph = max(int(known[0].reshape(-1)[0]), 0), attributes(node)["body"]
        carried, count = names[2:], len(node.input) - 2
        self._budget[0] -= trips * (len(graph.node) + 1)
        if trips == 0 or trips > _MAX_UNROLLED or self._budget[0] < 0 or "" in carried:
            return False
        rows: list[list[str]] = [[] for _ in graph.output[1 + count :]]
        for i in range(trips):
            inner = Scope.of_graph(graph, scope.opsets, scope, f"{self._prefix(node, scope)}{i}/")
            fixed = [
                np.reshape(i, [1] * rank_of(graph.input[0])),
                np.ones([1] * rank_of(graph.input[1]), np.bool_),
            ]
            for formal, content in zip(graph.input[:2], fixed, strict=True):
                inner.values[formal.name] = self.values.known_value(content, None)
                self.values.known[inner.values[formal.name]] = content
            inner.values.update(zip((f.name for f in graph.input[2:]), carried, strict=True))
            self.nodes(((n.name or n.op_type, n) for n in graph.node), self._sourced(inner))
            results = [self.values.value(o.name, inner) for o in graph.output]
            going = self.values.content(results[0])
            if (
                going is None
                or not going.all()
                or any(n.op == "opaque" for n in self.values.b.nodes[mark[0] :])
            ):
                self.values.undo(mark)
                return False
            carried = results[1 : 1 + count]
            for row, value in zip(rows, results[1 + count :], strict=True):
                row.append(str(self.values.b.unsqueeze(value, dims=[0])))
        stacked = [str(self.values.b.call("cat", *row, dim=0)) for row in rows]
        self._hand_out(node, scope, [*carried, *stacked])
        return True

    def _inlined(self, node: Any, domain: str, scope: Scope, mark: Mark) -> bool:
        """Inline a function. Return False if there is no body, or if ONNX's own definition leads to opaque nodes."""
        local = self.functions.get((domain, node.op_type))
        if scope.depth > _MAX_DEPTH:
            return False
        try:
            body = local or schema_body(
                node, domain, scope.opsets.get(domain, 1), lambda i: self.values.type_of(i, scope)
            )
            if body is None:
                return False
            opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in body.opset_import}
            if local is None or not opsets:  # ONNX's own bodies do not name every domain that they use
                opsets = {**scope.opsets, **opsets}
            inner = Scope(opsets, prefix=self._prefix(node, scope), depth=scope.depth + 1)
            for formal, actual in itertools.zip_longest(
                body.input, node.input[: len(body.input)], fillvalue=""
            ):
                if actual:
                    inner.values[formal] = self.values.value(actual, scope)
            explicit = {a.name: a for a in node.attribute}
            inner.actuals = (
                {a.name: a for a in body.attribute_proto}
                | defaults(node, scope.opsets.get(domain, 1), local)
                | explicit
            )
            inner.source = self.values.b._sources[0] if self.values.b._sources else None
            self.nodes(((n.name or n.op_type, n) for n in body_nodes(body, node)), inner)
            if local is None and any(n.op == "opaque" for n in self.values.b.nodes[mark[0] :]):
                return False
            wanted = zip(
                body.output, node.output, strict=False
            )  # a body may lack outputs that the node does not have
            results = [self.values.value(formal, inner) if actual else "" for formal, actual in wanted]
            self._hand_out(node, scope, results)
        except (NotLowered, IrError):
            return False
        return True

    def _hand_out(self, node: Any, scope: Scope, results: list[str]) -> None:
        """Give results of an inlined body their outer names."""
        for output, value in zip(node.output, results, strict=False):
            if output:
                outer_name = scope.prefix + output
                name = outer_name if outer_name not in self.values.b.values else ""
                copy = (
                    str(self.values.b.clone(value, name=name)) if self.values.b.values[value].spec else value
                )
                if value in self.values.known:
                    self.values.known[copy] = self.values.known[value]
                scope.values[output] = copy

    def _sourced(self, inner: Scope) -> Scope:
        inner.source = self.values.b._sources[0] if self.values.b._sources else None
        return inner

    def _prefix(self, node: Any, scope: Scope) -> str:
        return f"{scope.prefix}{next((o for o in node.output if o), node.op_type)}/"

    def _is_sized(self, name: str, scope: Scope) -> bool:
        spec = self.values.b.values[self.values.value(name, scope)].spec
        return spec is not None and spec.is_static

    def _opaque(self, node: Any, domain: str, scope: Scope, reason: str) -> str:
        captures = captured(node) if sub_graphs(node) else []
        inputs: list[str | None] = [self.values.value(i, scope) if i else None for i in node.input]
        inputs += [self.values.value(c, scope) for c in captures]
        outputs: list[tuple[str, TensorSpec | None]] = []
        inferred = self._infer(node, domain, scope)
        for output in node.output:
            if not output:
                outputs.append(("", None))
                continue
            outer_name = scope.prefix + output
            name = outer_name if outer_name not in self.values.b.values else self.values.b.fresh("opaque")
            declared, inferred_type = scope.types.get(output), inferred.get(output)
            spec = self.values.types.spec(declared, name) or self.values.types.spec(
                inferred_type, name, parse=True
            )
            outputs.append((name, spec))
            scope.values[output] = name
        names = self.values.b.opaque(
            node.op_type,
            inputs,
            outputs,
            reason=reason,
            domain=domain,
            attributes=encode(node, self.values.types.dtypes, captures),
        )
        for output, name, (_, spec) in zip(node.output, names, outputs, strict=True):
            if spec is None:
                declared_type = scope.types.get(output) or inferred.get(output)
                self.values.unknown[name] = declared_type
        return str(names[0])

    def _infer(self, node: Any, domain: str, scope: Scope) -> dict[str, Any]:
        inputs = {i: self.values.type_of(i, scope) for i in node.input if i}
        opset = scope.opsets.get(domain, 1)
        return self.values.types.infer(
            node, opset, scope.opsets, inputs, lambda i: self.values.tensor_of(i, scope), self.ir_version
        )
