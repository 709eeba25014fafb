"""References for a model: each computes the outputs without using our passes or kernels."""

from __future__ import annotations

import copy
import math
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np

from ...ir import Graph, Node, interp
from ...ir.extensions import CONTROL_OPERATORS
from ...ir.ops.control import CONTROL
from ...plugins.loader import EnginePlugin
from ...protocols import Array, Engine, EngineRequest, ModelSource
from ...targets import DeviceId
from ..native.model import native_model, original_model
from .work import GraphCost

__all__ = [
    "EngineReference",
    "Interpreter",
    "Module",
    "OutOfTime",
    "Reference",
    "interpreter_bytes",
    "interpreter_seconds",
]


class OutOfTime(Exception):
    """A reference run exceeded its time limit."""


class Reference(Protocol):
    """A source of expected outputs.

    name:    its name in decisions, for example ``the PyTorch module``.
    rounds:  True if ``outputs`` rounds within ops like any engine of its precision, so that its distance from ``exact`` is typical.
    """

    name: str
    rounds: bool

    def seconds(self, work: GraphCost) -> float:
        """Return the approximate time of ``outputs``, to decide whether to start it."""
        ...

    def bytes(self, work: GraphCost) -> int:
        """Return the approximate peak memory."""
        ...

    def outputs(self, feeds: Mapping[str, Array], deadline: float) -> list[Array]:
        """Return outputs in the reference's own precision, in the model's order. Raises OutOfTime and any other error."""
        ...

    def exact(self, feeds: Mapping[str, Array], deadline: float) -> list[Array] | None:
        """Return outputs in float64, or None if it cannot compute them. Raises OutOfTime and any other error."""
        ...


class Interpreter:
    """The interpreter of the IR, on the graph as imported, before any pass."""

    name = "the reference interpreter"
    rounds = False  # it computes every op in float64

    def __init__(self, model: ModelSource) -> None:
        self._model = original_model(model)
        self._outputs = [s.name for s in model.outputs]

    def seconds(self, work: GraphCost) -> float:
        """Return the estimate for NumPy in float64 with conversions."""
        return interpreter_seconds(work)

    def bytes(self, work: GraphCost) -> int:
        """Return the estimate for values of twice the width."""
        return interpreter_bytes(work)

    def outputs(self, feeds: Mapping[str, Array], deadline: float) -> list[Array]:
        """Return outputs with each op computed in float64 and rounded to its type."""
        return self._run(feeds, deadline, exact=False)

    def exact(self, feeds: Mapping[str, Array], deadline: float) -> list[Array] | None:
        """Return outputs without rounding between ops."""
        return self._run(feeds, deadline, exact=True)

    def _run(self, feeds: Mapping[str, Array], deadline: float, *, exact: bool) -> list[Array]:
        def watch(node: Node, results: tuple[Array, ...]) -> None:
            if time.perf_counter() > deadline:
                raise OutOfTime

        graph: Graph = self._model.graph
        outputs = interp.run(graph, feeds, weights=self._model.weights, states={}, watch=watch, exact=exact)
        return list(outputs.values())


def interpreter_seconds(work: GraphCost) -> float:
    """Return the interpreter's time: NumPy in float64, with conversions."""
    return work.flops / 3e9 + work.traffic / 4e8 + work.nodes * 1e-3


def interpreter_bytes(work: GraphCost) -> int:
    """Return the interpreter's peak memory: values and weights in float64, and the temporaries of one op."""
    return 2 * work.weights + 6 * work.peak


class Module:
    """The session's PyTorch module, on the inputs that it was traced with."""

    name = "the PyTorch module"
    rounds = True

    def __init__(self, model: ModelSource, module: Any, arguments: Any) -> None:
        self._count = len(model.outputs)
        self._module, self._arguments = getattr(module, "_orig_mod", module), arguments
        # PyTorch compiles loops and branches when they run. Under a dispatch mode that fails, and later calls of the module fail, too.
        self._compiles = any(
            n.op in CONTROL or n.attrs.get("op_type") in CONTROL_OPERATORS
            for n in native_model(model).graph.nodes
        )

    @staticmethod
    def fits(module: Any) -> bool:
        """Return True if a copy of the module may run in its place: hooks are user code that would observe the run."""
        return not any(
            getattr(part, hooks, None)
            for part in module.modules()
            for hooks in ("_forward_hooks", "_forward_pre_hooks")
        )

    def seconds(self, work: GraphCost) -> float:
        """Return the estimate for PyTorch on one thread; the limit also ends the run between two ops."""
        return work.flops / 2e10 + work.traffic / 2e9 + work.nodes * 3e-4

    def bytes(self, work: GraphCost) -> int:
        """Return the estimate for values alone, since parameters are shared."""
        return 3 * work.peak

    def outputs(self, feeds: Mapping[str, Array], deadline: float) -> list[Array]:
        """Return outputs in the module's own precision."""
        return self._run({}, self._arguments, deadline)

    def exact(self, feeds: Mapping[str, Array], deadline: float) -> list[Array] | None:
        """Return outputs with parameters, buffers and inputs in float64."""
        torch: Any = sys.modules["torch"]  # a caller that has a module has imported it

        def wide(value: Any) -> Any:
            return value.double() if torch.is_tensor(value) and value.is_floating_point() else value

        tensors = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        return self._run(
            {name: wide(t.detach()) for name, t in tensors.items()},
            torch.utils._pytree.tree_map(wide, self._arguments),
            deadline,
        )

    def as_exported(self) -> list[Array]:
        """Return the outputs of PyTorch's export of the module, which may take another branch than the module. Raises any error."""
        from ...frontends.torch.importer import export_torch

        program = export_torch(self._copy(), self._arguments).program.module()
        return self._run({}, self._arguments, math.inf, program)

    def _copy(self) -> Any:
        """Return a copy whose attributes forward may change. Parameters are read-only and therefore shared."""
        return copy.deepcopy(self._module, {id(p): p for p in self._module.parameters()})

    def _run(
        self, tensors: Mapping[str, Any], arguments: Any, deadline: float, module: Any = None
    ) -> list[Array]:
        torch: Any = sys.modules["torch"]
        tree = torch.utils._pytree

        class Bounded(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if time.perf_counter() > deadline:
                    raise OutOfTime
                return func(*args, **(kwargs or {}))

        if module is None:
            module = self._copy()
        arguments = tree.tree_map(lambda v: v.clone() if torch.is_tensor(v) else v, arguments)
        named = dict(arguments) if isinstance(arguments, Mapping) else {}
        listed: tuple[Any, ...] = ()
        if not named:
            listed = tuple(arguments) if isinstance(arguments, Sequence) else (arguments,)
        with _random_kept(torch, module), torch.no_grad(), nullcontext() if self._compiles else Bounded():
            results = (
                torch.func.functional_call(module, dict(tensors), listed, named)
                if tensors
                else module(*listed, **named)
            )
        leaves = [t for t in tree.tree_leaves(results) if torch.is_tensor(t)]
        if len(leaves) != self._count:
            raise ValueError(f"it gives {len(leaves)} tensors, the model has {self._count} outputs")
        return [_array(t) for t in leaves]


def _array(tensor: Any) -> Array:
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) in ("torch.bfloat16",):
        tensor = tensor.float()
    return np.asarray(tensor.resolve_conj().resolve_neg())


@contextmanager
def _random_kept(torch: Any, module: Any) -> Iterator[None]:
    """Restore every random generator that a module may use."""
    devices = {t.device for t in (*module.parameters(), *module.buffers()) if t.device.type == "cuda"}
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=sorted(d.index for d in devices)):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _has_packed_weights(model: ModelSource) -> bool:
    """Return True if the model dequantizes values below a byte."""
    graph = native_model(model).graph
    return any(
        node.op == "dequantize_linear" and graph.spec(node.values[0]).dtype.bits < 8 for node in graph.nodes
    )


class EngineReference:
    """A vendor's engine on the CPU, if this process has already imported it."""

    rounds = True

    def __init__(self, plugin: EnginePlugin, model: ModelSource) -> None:
        self.name = plugin.name
        self._plugin, self._model = plugin, model

    @staticmethod
    def loaded(name: str) -> bool:
        """Return True if this process has imported the vendor's package."""
        return name in sys.modules

    def seconds(self, work: GraphCost) -> float:
        """Return the estimate, including loading the model."""
        return work.flops / 2e10 + (work.traffic + 4 * work.weights) / 2e9 + work.nodes * 1e-4 + 0.02

    def bytes(self, work: GraphCost) -> int:
        """Return the estimate with two copies of the weights: read and packed."""
        return 2 * work.weights + 3 * work.peak

    def outputs(self, feeds: Mapping[str, Array], deadline: float) -> list[Array]:
        """Return outputs in the model's own precision.

        ONNX Runtime does not optimize a model with weights below a byte: it would quantize what is multiplied with them.
        """
        level = 0 if self.name == "onnxruntime" and _has_packed_weights(self._model) else 3
        return self._run(feeds, deadline, EngineRequest(DeviceId("cpu"), threads=1, optimization=level))

    def _run(self, feeds: Mapping[str, Array], deadline: float, request: EngineRequest) -> list[Array]:
        engine: Engine = self._plugin.load()
        if not (answer := engine.supports(self._model, request)):
            raise ValueError(answer.reason)
        executable = engine.load(engine.build(self._model, request), self._model, request)
        try:
            if time.perf_counter() > deadline:
                raise OutOfTime
            return list(executable.run(dict(feeds)))
        finally:
            executable.close()

    def exact(self, feeds: Mapping[str, Array], deadline: float) -> list[Array] | None:
        """Return the outputs of a quantized model as it is written, with products in floats; None for others: vendors compute in their types."""
        if self._model.quantized is None or self.name != "onnxruntime":
            return None
        return self._run(feeds, deadline, EngineRequest(DeviceId("cpu"), threads=1, optimization=0))
