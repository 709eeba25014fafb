"""ONNX models as the edits see them. A weight is an initializer, directly or behind Transpose, Identity and Cast."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np

from xpuruntime.protocols import Array

from .onnx_edits import as_op, attribute, copy_of, forward, reshaped, shape_of, with_attribute, without_input
from .site import EPSILON, Site, Use

__all__ = ["OnnxForm"]

# op -> roles of its weights by position
ROLES: dict[str, dict[int, str]] = {
    "Conv": {1: "kernel", 2: "bias"},
    "ConvTranspose": {1: "kernel", 2: "bias"},
    "Gemm": {1: "kernel", 2: "bias"},
    "MatMul": {1: "kernel"},
    "Gather": {0: "table"},
    "Add": {0: "bias", 1: "bias"},
    "Mul": {0: "scale", 1: "scale"},
    "BatchNormalization": {1: "scale", 2: "bias", 3: "mean", 4: "variance"},
    "LayerNormalization": {1: "scale", 2: "bias"},
    "RMSNormalization": {1: "scale"},
    "GroupNormalization": {1: "scale", 2: "bias"},
    "InstanceNormalization": {1: "scale", 2: "bias"},
}
# activation -> a similar one, with its attributes
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "Relu": ("LeakyRelu", {"alpha": 0.01}),
    "LeakyRelu": ("Relu", {}),
    "Sigmoid": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "HardSigmoid": ("Sigmoid", {}),
    "Tanh": ("Softsign", {}),
    "Erf": ("Tanh", {}),
    "Elu": ("Selu", {}),
    "HardSwish": ("Mish", {}),
    "Softplus": ("Relu", {}),
}
WINDOWS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")


class OnnxForm:
    """An ``onnx.ModelProto``."""

    def __init__(self, model: Any) -> None:
        self.model, self.nodes = model, list(model.graph.node)

    # ── queries ──

    @cached_property
    def _tensors(self) -> dict[str, Any]:
        return {t.name: t for t in self.model.graph.initializer}

    @cached_property
    def _makers(self) -> dict[str, int]:
        return {name: k for k, node in enumerate(self.nodes) for name in node.output if name}

    @cached_property
    def _readers(self) -> dict[str, list[int]]:
        readers: dict[str, list[int]] = {}
        for k, node in enumerate(self.nodes):
            for name in node.input:
                readers.setdefault(name, []).append(k)
        return readers

    @cached_property
    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        from onnx import shape_inference

        graph = shape_inference.infer_shapes(self.model, data_prop=True).graph
        values = [*graph.value_info, *graph.input, *graph.output]
        return {v.name: shape_of(v) for v in values if v.type.tensor_type.HasField("shape")}

    @cached_property
    def _floats(self) -> set[str]:
        """Return the computed values that are known to be floating-point."""
        from onnx import TensorProto, shape_inference

        graph = shape_inference.infer_shapes(self.model).graph
        wide = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
        values = [*graph.value_info, *graph.input, *graph.output]
        return {v.name for v in values if v.type.tensor_type.elem_type in wide} & (
            set(self._makers) | {v.name for v in graph.input}
        )

    def _root(self, name: str) -> tuple[str, list[int] | None]:
        """Return the initializer that a value is, and the permutation of its axes (None: not permuted); "" if it is computed."""
        if name in self._tensors:
            return name, None
        node = self.nodes[self._makers[name]] if name in self._makers else None
        if node is not None and node.op_type in ("Identity", "Cast", "Transpose"):
            root, permutation = self._root(node.input[0])
            if root and node.op_type == "Transpose" and permutation is None:
                rank = len(self._tensors[root].dims)
                return root, list(attribute(node, "perm", list(range(rank))[::-1]))
            return root, permutation
        return "", None

    def _is_constant(self, name: str) -> bool:
        return bool(self._root(name)[0]) or (
            name in self._makers and self.nodes[self._makers[name]].op_type == "Constant"
        )

    # ── weights ──

    def uses(self) -> list[Use]:
        return list(self._uses)

    @cached_property
    def _uses(self) -> list[Use]:
        uses = []
        for k, node in enumerate(self.nodes):
            for position, role in ROLES.get(node.op_type, {}).items():
                root, perm = self._root(node.input[position]) if position < len(node.input) else ("", None)
                if not root or self._tensors[root].data_type not in (1, 10, 11, 16):  # floats
                    continue
                dims = list(self._tensors[root].dims)
                if node.op_type in ("Add", "Mul"):
                    role = self._pointwise_role(node, position, root)
                    if not role:
                        continue
                if role == "kernel":
                    axis = self._channel_axis(node, len(dims))
                    axis = perm[axis] if perm is not None else axis
                    uses.append(Use(root, node.name, role, axis, self._heads(k, dims[axis])))
                else:
                    uses.append(Use(root, node.name, role))
        return uses

    def _pointwise_role(self, node: Any, position: int, root: str) -> str:
        """Return the role of an operand of Add or Mul: a bias or scale has several elements and a computed partner; a single number may be an epsilon."""
        dims = self._tensors[root].dims
        if self._is_constant(node.input[1 - position]):
            return ""
        if np.prod(dims) > 1:
            vector = [d for d in dims if d > 1]
            return "bias" if node.op_type == "Add" else "scale" if len(vector) == 1 and dims[-1] > 1 else ""
        value = self.array(root).item()
        rooted = any(
            self.nodes[k].op_type in ("Sqrt", "Rsqrt", "Pow")
            for k in self._readers.get(node.output[0], ())
        )  # fmt: skip
        return "epsilon" if node.op_type == "Add" and 0 < value < EPSILON and rooted else ""

    def _channel_axis(self, node: Any, rank: int) -> int:
        if node.op_type == "Gemm":
            return 0 if attribute(node, "transB", 0) else 1
        return {"Conv": 0, "ConvTranspose": 1}.get(node.op_type, rank - 1)

    def _heads(self, k: int, channels: int) -> int:
        """Return the number of heads of a product: its result, after a bias, is reshaped to [..., heads, size]. 0 if it has none."""
        name = self.nodes[k].output[0]
        for _ in range(2):
            readers = self._readers.get(name, [])
            if len(readers) != 1:
                return 0
            node = self.nodes[readers[0]]
            name = node.output[0]
            if node.op_type == "Reshape":
                shape = self._shapes.get(name, ())
                fits = len(shape) == 4 and all(isinstance(d, int) for d in shape[2:])
                return int(shape[2]) if fits and shape[2] * shape[3] == channels else 0
            if node.op_type != "Add":
                return 0
        return 0

    def array(self, weight: str) -> Array:
        from onnx import numpy_helper

        return np.asarray(numpy_helper.to_array(self._tensors[weight]))

    def with_array(self, weight: str, array: Array) -> Any:
        from onnx import numpy_helper

        copy = copy_of(self.model)
        tensor = next(t for t in copy.graph.initializer if t.name == weight)
        tensor.CopyFrom(numpy_helper.from_array(array, weight))
        return copy

    # ── structure ──

    def structure(self) -> Iterator[Site]:
        for k, node in enumerate(self.nodes):
            where = node.name or node.output[0]
            yield from self._adds(k, node, where)
            yield from self._masks(k, node, where)
            yield from self._activations(k, node, where)
            yield from self._windows(k, node, where)
            if node.op_type.endswith("Normalization") and node.op_type != "LpNormalization":
                old = attribute(node, "epsilon", 1e-5)
                text = f"epsilon {old:g} is {EPSILON:g}"
                yield Site(
                    "change_epsilon", where, text, partial(with_attribute, self.model, k, "epsilon", EPSILON)
                )

    def _adds(self, k: int, node: Any, where: str) -> Iterator[Site]:
        if node.op_type != "Add" or any(self._is_constant(n) or n not in self._floats for n in node.input):
            return
        shape_a, shape_b = (self._shapes.get(n) for n in node.input)
        if (
            shape_a is None
            or shape_a != shape_b
            or self._readers.get(node.output[0]) == []
            or node.input[0] == node.input[1]
        ):
            return
        for keep in (0, 1):
            text = f"gives its operand {node.input[keep]} without {node.input[1 - keep]}"
            yield Site("drop_residual", where, text, partial(forward, self.model, k, keep))

    def _masks(self, k: int, node: Any, where: str) -> Iterator[Site]:
        if node.op_type == "Attention":
            if len(node.input) > 3 and node.input[3]:
                yield Site("drop_mask", where, "reads no mask", partial(without_input, self.model, k, 3))
            if attribute(node, "is_causal", 0):
                yield Site(
                    "drop_mask",
                    where,
                    "is not causal",
                    partial(with_attribute, self.model, k, "is_causal", 0),
                )
        if node.op_type != "Softmax" or node.input[0] not in self._makers:
            return
        j = self._makers[node.input[0]]
        mask = self.nodes[j]
        if mask.op_type == "Add":
            shapes = [self._shapes.get(n) for n in mask.input]
            computed = [
                p
                for p in (0, 1)
                if shapes[p] == self._shapes.get(mask.output[0]) and self._from_product(mask.input[p])
            ]
            if len(computed) == 1 and self._masks_something(mask.input[1 - computed[0]]):
                text = f"gives the scores {mask.input[computed[0]]} without {mask.input[1 - computed[0]]}"
                yield Site(
                    "drop_mask", mask.name or where, text, partial(forward, self.model, j, computed[0])
                )
        if mask.op_type == "Where":
            scores = [p for p in (1, 2) if not self._is_constant(mask.input[p])]
            if len(scores) == 1:
                text = f"gives {mask.input[scores[0]]} everywhere"
                yield Site("drop_mask", mask.name or where, text, partial(forward, self.model, j, scores[0]))

    def _masks_something(self, name: str) -> bool:
        """Return True unless the mask is constant and all zeros, which exporters write for attention without a mask."""
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        ancestors, needed = {name}, []
        for node in reversed(self.nodes):
            if ancestors & set(node.output):
                needed.append(node)
                ancestors.update(node.input)
        if ancestors & {v.name for v in self.model.graph.input if v.name not in self._tensors}:
            return True
        tensors = [t for n, t in self._tensors.items() if n in ancestors]
        graph = helper.make_graph(
            needed[::-1], "mask", [], [helper.make_empty_tensor_value_info(name)], tensors
        )
        model = helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version
        )
        return bool(np.any(ReferenceEvaluator(model).run(None, {})[0]))

    def _from_product(self, name: str) -> bool:
        """Return True if the value is a matrix product, optionally scaled."""
        while name in self._makers:
            node = self.nodes[self._makers[name]]
            if node.op_type in ("MatMul", "Einsum", "Gemm"):
                return True
            if node.op_type not in ("Mul", "Div", "Cast", "Reshape", "Transpose"):
                return False
            name = next((n for n in node.input if not self._is_constant(n)), "")
        return False

    def _activations(self, k: int, node: Any, where: str) -> Iterator[Site]:
        if node.op_type in ACTIVATIONS:
            replacement, attributes = ACTIVATIONS[node.op_type]
            yield Site(
                "change_activation",
                where,
                f"{node.op_type} is {replacement}",
                partial(as_op, self.model, k, replacement, attributes),
            )
        elif node.op_type == "Clip":
            yield Site("change_activation", where, "Clip is Relu", partial(as_op, self.model, k, "Relu", {}))
        elif node.op_type == "Gelu":
            modes = [b"none", b"tanh"]
            old = attribute(node, "approximate", b"none")
            new = modes[1 - modes.index(old)]
            text = f"approximate {old.decode()} is {new.decode()}"
            yield Site(
                "change_activation", where, text, partial(with_attribute, self.model, k, "approximate", new)
            )

    def _windows(self, k: int, node: Any, where: str) -> Iterator[Site]:
        if node.op_type not in WINDOWS:
            return
        pads = list(attribute(node, "pads", []))
        half = len(pads) // 2
        if any(pads):
            axis = next(a for a, p in enumerate(pads) if p) % half
            shifted = pads.copy()
            step = (
                1 if pads[axis] else -1
            )  # move one element from the beginning to the end, or back if the beginning has none
            shifted[axis], shifted[axis + half] = pads[axis] - step, pads[axis + half] + step
            text = f"pads {pads} are {shifted}"
            yield Site("change_padding", where, text, partial(with_attribute, self.model, k, "pads", shifted))
        strides = list(attribute(node, "strides", []))
        if strides:
            new_strides = [1 if s > 1 else 2 for s in strides]
            text = f"strides {strides} are {new_strides}"
            yield Site(
                "change_stride",
                where,
                text,
                partial(reshaped, self.model, self._shapes, k, "strides", new_strides),
            )
