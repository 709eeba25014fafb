"""Seeded ONNX models with nested If, Loop and Scan: values of one shape, weights in bodies, names of enclosing graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

from xpuruntime.protocols import Array

__all__ = ["nested_model"]

SHAPE = (3, 4)


def nested_model(seed: int, depth: int = 3) -> tuple[Any, dict[str, Array]]:
    """Return a checked model of float32[3, 4] values, and inputs for it."""
    import onnx
    from onnx import TensorProto, helper

    draw = _Draw(seed)
    nodes, values, initializers = draw.block(["x", "y"], depth, 5)
    outputs = values[-2:]
    typed = [helper.make_tensor_value_info(v, TensorProto.FLOAT, SHAPE) for v in ("x", "y")]
    results = [
        helper.make_tensor_value_info(f"out{i}", TensorProto.FLOAT, SHAPE) for i in range(len(outputs))
    ]
    nodes += [helper.make_node("Identity", [v], [f"out{i}"]) for i, v in enumerate(outputs)]
    nodes += [helper.make_node("Identity", [v], [f"rows{i}"]) for i, v in enumerate(draw.stacked)]
    results += [
        helper.make_tensor_value_info(f"rows{i}", TensorProto.FLOAT, [n, *SHAPE])
        for i, n in enumerate(draw.stacked.values())
    ]
    graph = helper.make_graph(nodes, "nested", typed, results, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    r = np.random.default_rng(seed + 1)
    return model, {n: r.standard_normal(SHAPE).astype(np.float32) for n in ("x", "y")}


class _Draw:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.count = 0
        self.stacked: dict[str, int] = {}  # stacked results of the outermost graph, and their lengths
        self.level = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def block(self, visible: list[str], depth: int, length: int) -> tuple[list[Any], list[str], list[Any]]:
        """Return nodes, values and initializers of a graph that sees ``visible``."""
        nodes: list[Any] = []
        initializers: list[Any] = []
        values = list(visible)
        for _ in range(length):
            kinds = ["binary", "unary", "weight"] + ["if", "loop", "scan"] * (depth > 0)
            kind = kinds[int(self.random.integers(len(kinds)))]
            values.append(getattr(self, f"_{kind}")(nodes, initializers, values, depth))
        return nodes, values, initializers

    def pick(self, values: list[str]) -> str:
        return values[int(self.random.integers(max(len(values) - 4, 0), len(values)))]

    def _add(self, nodes: list[Any], op: str, inputs: list[str], **attrs: Any) -> str:
        from onnx import helper

        out = self.name(op.lower())
        nodes.append(helper.make_node(op, inputs, [out], name=out, **attrs))
        return out

    def _constant(self, initializers: list[Any], array: Any) -> str:
        from onnx import numpy_helper

        name = self.name("w")
        initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _binary(self, nodes: list[Any], initializers: list[Any], values: list[str], depth: int) -> str:
        op = ("Add", "Sub", "Mul", "Max")[int(self.random.integers(4))]
        return self._tamed(nodes, self._add(nodes, op, [self.pick(values), self.pick(values)]))

    def _unary(self, nodes: list[Any], initializers: list[Any], values: list[str], depth: int) -> str:
        op = ("Tanh", "Sigmoid", "Relu", "Abs", "Neg")[int(self.random.integers(5))]
        return self._add(nodes, op, [self.pick(values)])

    def _weight(self, nodes: list[Any], initializers: list[Any], values: list[str], depth: int) -> str:
        w = self._constant(initializers, (self.random.standard_normal((4, 4)) * 0.5).astype(np.float32))
        return self._add(nodes, "MatMul", [self.pick(values), w])

    def _tamed(self, nodes: list[Any], value: str) -> str:
        return self._add(nodes, "Tanh", [value])

    def _graph(self, nodes: list[Any], inputs: list[Any], outputs: list[Any], initializers: list[Any]) -> Any:
        from onnx import helper

        return helper.make_graph(nodes, self.name("body"), inputs, outputs, initializers)

    def _info(self, name: str, dtype: int = 1, shape: Any = SHAPE) -> Any:
        from onnx import helper

        return helper.make_tensor_value_info(name, dtype, shape)

    def _condition(self, nodes: list[Any], initializers: list[Any], value: str) -> str:
        total = self._add(nodes, "ReduceSum", [value], keepdims=0)
        limit = self._constant(initializers, np.float32(self.random.standard_normal()))
        return self._add(nodes, "Less", [total, limit])

    def _if(self, nodes: list[Any], initializers: list[Any], values: list[str], depth: int) -> str:
        from onnx import helper

        condition = self._condition(nodes, initializers, self.pick(values))
        branches = {}
        for branch in ("then_branch", "else_branch"):
            self.level += 1
            inner, made, weights = self.block(values, depth - 1, int(self.random.integers(1, 4)))
            self.level -= 1
            branches[branch] = self._graph(inner, [], [self._info(made[-1])], weights)
        out = self.name("if")
        nodes.append(helper.make_node("If", [condition], [out], name=out, **branches))
        return out

    def _loop(self, nodes: list[Any], initializers: list[Any], values: list[str], depth: int) -> str:
        """Draw a loop that counts, or one that a condition ends; the first kind stacks a result."""
        from onnx import helper

        trips, checked = int(self.random.integers(0, 5)), bool(self.random.integers(2))
        number, going, state = self.name("i"), self.name("going"), self.name("state")
        self.level += 1
        inner, made, weights = self.block([*values, state], depth - 1, int(self.random.integers(1, 4)))
        self.level -= 1
        result = self._tamed(inner, self._add(inner, "Add", [made[-1], state]))
        step = self._add(inner, "Cast", [number], to=1)
        result = self._add(
            inner, "Add", [result, self._add(inner, "Mul", [step, self._constant(weights, np.float32(0.1))])]
        )
        on = self._condition(inner, weights, result) if checked else self._add(inner, "Identity", [going])
        outputs = [self._info(on, 9, []), self._info(result)]
        if not checked:
            outputs.append(self._info(self._add(inner, "Neg", [result])))
        body = self._graph(
            inner, [self._info(number, 7, []), self._info(going, 9, []), self._info(state)], outputs, weights
        )
        out = self.name("loop")
        results = [out] if checked else [out, self.name("rows")]
        limit = self._constant(initializers, np.array(trips, np.int64))
        start = self._constant(initializers, np.array(True))
        nodes.append(
            helper.make_node("Loop", [limit, start, self.pick(values)], results, name=out, body=body)
        )
        if not checked and not self.level:
            self.stacked[results[1]] = trips
        return out

    def _scan(self, nodes: list[Any], initializers: list[Any], values: list[str], depth: int) -> str:
        """Draw a scan over the rows or columns of a value; it carries a sum and stacks its rows."""
        from onnx import helper

        axis = int(self.random.integers(2))
        size = SHAPE[1 - axis]
        state, row = self.name("state"), self.name("row")
        inner: list[Any] = []
        weights: list[Any] = []
        total = self._add(inner, "Add", [state, row])
        squashed = self._add(inner, "Tanh", [total])
        nested = self._condition(inner, weights, self.pick(values))
        then, other = (
            self._graph([helper.make_node(op, [squashed], [n])], [], [self._info(n, 1, [size])], [])
            for op, n in (("Neg", self.name("neg")), ("Identity", self.name("same")))
        )
        out_row = self.name("row")
        inner.append(
            helper.make_node("If", [nested], [out_row], name=out_row, then_branch=then, else_branch=other)
        )
        body = self._graph(
            inner,
            [self._info(state, 1, [size]), self._info(row, 1, [size])],
            [self._info(total, 1, [size]), self._info(out_row, 1, [size])],
            weights,
        )
        zero = self._constant(initializers, np.zeros(size, np.float32))
        last, rows = self.name("last"), self.name("rows")
        backward = int(self.random.integers(2))
        nodes.append(
            helper.make_node(
                "Scan", [zero, self.pick(values)], [last, rows], name=last, body=body, num_scan_inputs=1,
                scan_input_axes=[axis], scan_output_axes=[axis], scan_input_directions=[backward],
                scan_output_directions=[int(self.random.integers(2))],
            )
        )  # fmt: skip
        shape = self._constant(initializers, np.array((*SHAPE[:1], 1) if axis else (1, SHAPE[1]), np.int64))
        return self._add(nodes, "Add", [rows, self._add(nodes, "Reshape", [last, shape])])
