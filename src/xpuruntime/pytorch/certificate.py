"""certify: a comparison of a model in training with the same model in an inference session, under one policy.

The training side is the forward pass of ``torch.compile(module, backend="xpuruntime")`` with gradients; the inference side is a native
session. Both run on the same inputs. The results are compared bit by bit, as a whole and after each leaf module.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from ..compiler import compile as compile_graph
from ..errors import InputError, ModelError
from ..frontends.torch.importer import import_torch
from ..inference.native.targets import own_target, target_of
from ..inference.session import InferenceSession
from ..ir import Graph
from ..ir.graph import Output
from ..policies import load_policy
from ..policies.context import with_policy
from ..runtime.device import Device
from ..runtime.execution.demands import SETTLED
from ..runtime.execution.executor import Executor
from ..targets import DeviceId
from .compiled import xpuruntime_backend

__all__ = ["Certificate", "ValueMatch", "certify"]

_TIMED_RUNS = 5
_TAPPED_SAMPLES = 2
"""Number of inputs for which the results of leaf modules are compared: these results may need much memory."""
_MARGIN = 4.0
"""Ratio of the stated bound to the largest measured difference. Rounding errors vary little from input to input."""


@dataclass(frozen=True, slots=True)
class ValueMatch:
    """Two arrays compared: an output of the model, or the result of a leaf module.

    elements, differing: the number of elements, and of those that differ in a bit. ulp: the largest difference in units in the last place of the
    larger one. relative: the largest difference over the largest finite absolute value; inf if a value is finite on one side only.
    """

    name: str
    elements: int
    differing: int
    ulp: int
    relative: float

    @property
    def equal(self) -> bool:
        """Return True if every bit is equal."""
        return self.differing == 0

    @property
    def bound(self) -> float:
        """Return a bound on ``relative`` for other inputs of the same kind: 0 if every bit is equal, else 4 times what was measured."""
        return _MARGIN * self.relative

    def __str__(self) -> str:
        if self.equal:
            return f"{self.name}: bitwise equal ({self.elements} elements)"
        return (
            f"{self.name}: {self.differing} of {self.elements} differ, at most {self.ulp} ULP, {self.relative:.1e} relative; "
            f"bound {self.bound:.1e}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data. JSON has no infinity, so a difference without a bound is None."""
        bounded = np.isfinite(self.relative)
        figures = {"relative": self.relative if bounded else None, "bound": self.bound if bounded else None}
        return {k: getattr(self, k) for k in self.__slots__} | {"equal": self.equal} | figures


@dataclass(frozen=True, slots=True)
class Certificate:
    """The comparison of training and session.

    outputs: the model's outputs. modules: results of leaf modules, in the order of the model. first: the first module whose result
    differs. session_us, training_us: median times of a session's run and of the training forward, and ``plain_us`` that of a session
    without the policy.
    """

    name: str
    device: str
    samples: int
    outputs: tuple[ValueMatch, ...]
    modules: tuple[ValueMatch, ...]
    session_us: float
    training_us: float
    plain_us: float

    @property
    def equal(self) -> bool:
        """Return True if every output is bitwise equal."""
        return all(o.equal for o in self.outputs)

    @property
    def first(self) -> str:
        """Return the first leaf module whose results differ; empty if none does."""
        return next((m.name for m in self.modules if not m.equal), "")

    def __str__(self) -> str:
        state = (
            "bitwise equal"
            if self.equal
            else f"not bitwise equal; the first module that differs is {self.first or 'none'}"
        )
        lines = [f"{self.name} on {self.device}, {self.samples} inputs: {state}"]
        lines += [f"  {o}" for o in self.outputs]
        lines += [f"  {m}" for m in self.modules if not m.equal]
        price = self.session_us / self.plain_us
        lines.append(
            f"  a session's run takes {self.session_us:.0f} us under the policy, {price:.2f}x the time without it; "
            f"the training forward takes {self.training_us:.0f} us"
        )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "device": self.device,
            "samples": self.samples,
            "equal": self.equal,
            "first": self.first,
            "outputs": [o.to_json() for o in self.outputs],
            "modules": [m.to_json() for m in self.modules],
            "session_us": self.session_us,
            "training_us": self.training_us,
            "plain_us": self.plain_us,
        }


def certify(
    module: torch.nn.Module,
    example_inputs: torch.Tensor | Sequence[torch.Tensor],
    policy: Any = None,
    *,
    device: str = "cpu",
    samples: int = 1,
    seed: int = 0,
    name: str = "",
) -> Certificate:
    """Compare training and inference of a module in eval mode under a policy.

    policy:  what ``load_policy`` takes. samples: number of inputs: the example, then random ones of its shapes (integers are permuted).
    Raises InputError for a module in training mode, ModelError for one that cannot be exported, and the errors of policies and kernels.
    """
    if not isinstance(module, torch.nn.Module):
        do = "Give the module that is trained."
        raise InputError("certify", "needs a torch.nn.Module", got=type(module).__name__, do=do)
    for word, value, least in (("samples", samples, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            do = f"Give an int of at least {least}."
            raise InputError("certify", f"{word} must be an int", got=repr(value), do=do)
    if module.training:
        raise InputError(
            "certify",
            "needs a module in eval mode",
            do="Call module.eval(): dropout and batch statistics differ in training.",
        )
    single = isinstance(example_inputs, torch.Tensor) or not isinstance(example_inputs, Sequence)
    inputs = (example_inputs,) if single else tuple(example_inputs)
    if not inputs or not all(isinstance(t, torch.Tensor) for t in inputs):
        got = ", ".join(type(t).__name__ for t in inputs) or "none"
        raise InputError("certify", "needs tensors as example inputs", got=got, do="Give tensors.")
    if any(t.is_meta or t.layout is not torch.strided for t in (*inputs, *module.parameters())):
        do = "Give dense tensors with data, and a module that has its weights."
        raise InputError(
            "certify", "needs dense tensors with data", got="a sparse tensor, or one on meta", do=do
        )
    target_of(DeviceId.parse(device))
    loaded = load_policy(policy)
    draws = _draws(inputs, samples, seed)
    module = copy.deepcopy(module).to(device)
    with with_policy(loaded):
        session_outputs, session_us = _in_sessions(module, draws, device)
        taps = _tapped(module, inputs, device)
        session_values = [taps(draw) for draw in draws[:_TAPPED_SAMPLES]]
    _, plain_us = _in_sessions(module, draws[:1], device)
    with with_policy(loaded):  # the backend applies the policy; PyTorch's functions need no routing
        training_outputs, training_us = _in_training(module, draws, device)
        training_values = _with_hooks(module, draws[:_TAPPED_SAMPLES], device, taps.names)
    names = [f"output {i}" for i in range(len(session_outputs[0]))]
    outputs = tuple(
        _match(n, [r[i] for r in session_outputs], [r[i] for r in training_outputs])
        for i, n in enumerate(names)
    )
    shared = [n for n in taps.names if all(n in v for v in training_values)]
    modules = tuple(
        _match(n, [v[n] for v in session_values], [v[n] for v in training_values]) for n in shared
    )
    return Certificate(
        name or type(module).__name__, device, len(draws), outputs, modules, session_us, training_us, plain_us
    )


def _draws(inputs: tuple[torch.Tensor, ...], samples: int, seed: int) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point():
            return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
        order = torch.randperm(tensor.numel(), generator=generator)
        return tensor.flatten()[order].reshape(tensor.shape)

    return [inputs, *(tuple(map(drawn, inputs)) for _ in range(max(samples, 1) - 1))]


# ── the inference side ──


def _in_sessions(
    module: torch.nn.Module, draws: Sequence[tuple[torch.Tensor, ...]], device: str
) -> tuple[list[list[NDArray[Any]]], float]:
    """Return the outputs of a native session for each draw, and the median time of a run in microseconds."""
    with InferenceSession(
        module, example_inputs=_placed(draws[0], device), engine="native", device=device
    ) as session:
        names = [i.name for i in session.get_inputs()]
        feeds = [dict(zip(names, map(_array, draw), strict=True)) for draw in draws]
        results = [[np.asarray(v) for v in session.run(f).values()] for f in feeds]
        times = []
        for _ in range(_TIMED_RUNS):
            start = time.perf_counter()
            session.run(feeds[0])
            times.append((time.perf_counter() - start) * 1e6)
    return results, float(np.median(times))


class _Taps:
    """The session's graph with the results of leaf modules as outputs."""

    def __init__(self, graph: Graph, weights: Any, values: Mapping[str, str], device: str) -> None:
        self.names = list(values)
        outputs = tuple(Output(f"tap{i}", v) for i, v in enumerate(values.values()))
        target = own_target(DeviceId.parse(device))
        program = compile_graph(graph.replace(outputs=outputs), target=target)
        self._executor = Executor(program, Device(device), policy=SETTLED)
        self._executor.bind(weights)

    def __call__(self, draw: Sequence[torch.Tensor]) -> dict[str, NDArray[Any]]:
        """Return the results by the module's name."""
        arrays = self._executor.run_arrays([_array(t) for t in draw])
        return dict(zip(self.names, arrays, strict=True))


def _tapped(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], device: str) -> _Taps:
    graph, weights = import_torch(module.cpu(), tuple(t.cpu() for t in inputs))
    module.to(device)
    leaves = {n for n, m in module.named_modules() if n and not list(m.children())}
    values: dict[str, str] = {}
    for node in graph.nodes:
        source = node.sources[0] if node.sources else None
        if source is not None and source.module in leaves and node.op != "opaque":
            values[source.module] = node.outputs[0].name  # the last node of a module has its result
    return _Taps(graph, weights, values, device)


# ── the training side ──


def _in_training(
    module: torch.nn.Module, draws: Sequence[tuple[torch.Tensor, ...]], device: str
) -> tuple[list[list[NDArray[Any]]], float]:
    """Return the outputs of the compiled forward with gradients for each draw, and the median time of a run in microseconds."""
    torch.compiler.reset()
    compiled = torch.compile(module, backend=xpuruntime_backend)
    results = [[_array(t) for t in _tensors(compiled(*_placed(draw, device)))] for draw in draws]
    times = []
    placed = _placed(draws[0], device)
    for _ in range(_TIMED_RUNS):
        start = time.perf_counter()
        compiled(*placed)
        if device != "cpu":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return results, float(np.median(times))


def _with_hooks(
    module: torch.nn.Module, draws: Sequence[tuple[torch.Tensor, ...]], device: str, names: Sequence[str]
) -> list[dict[str, NDArray[Any]]]:
    """Return the results of leaf modules in the compiled forward, for each draw."""
    torch.compiler.reset()
    recorded: dict[str, torch.Tensor] = {}
    hooks = []
    for name in names:

        def note(_: Any, args: Any, result: Any, name: str = name) -> None:
            if isinstance(result, torch.Tensor):
                recorded[name] = result.clone()  # a later op may overwrite it in place

        hooks.append(module.get_submodule(name).register_forward_hook(note))
    values = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = torch.compile(module, backend=xpuruntime_backend)
            for draw in draws:
                recorded.clear()
                compiled(*_placed(draw, device))
                values.append({name: _array(value) for name, value in recorded.items()})
    finally:
        for hook in hooks:
            hook.remove()
    return values


# ── comparing ──


def _match(name: str, ours: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]) -> ValueMatch:
    """Compare arrays of several inputs as one."""
    a = np.concatenate([np.ravel(x) for x in ours])
    b = np.concatenate([np.ravel(x) for x in theirs])
    if a.dtype != b.dtype or a.size != b.size:
        raise ModelError(
            "certify",
            f"{name} has another type or size in training",
            got=f"{a.dtype}[{a.size}] and {b.dtype}[{b.size}]",
            do="Certify the module in the precision of the policy.",
        )
    differs = (a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")) & ~(np.isnan(a) & np.isnan(b))
    if not differs.any():
        return ValueMatch(name, a.size, 0, 0, 0.0)
    x, y = a[differs].astype(np.float64), b[differs].astype(np.float64)
    finite = np.abs(a[np.isfinite(a)].astype(np.float64))
    with np.errstate(invalid="ignore", over="ignore"):  # a value that is not finite on one side only
        gap = np.nan_to_num(np.abs(x - y), nan=np.inf, posinf=np.inf).max()
        relative = float(gap / max(finite.max(initial=0.0), 1e-300))
    return ValueMatch(name, a.size, int(differs.sum()), _ulps(a[differs], b[differs]), relative)


def _ulps(a: NDArray[Any], b: NDArray[Any]) -> int:
    """Return the largest number of steps between neighboring floats from an element of one array to that of the other."""
    x, y = _ordered(a), _ordered(b)
    # Unsigned, because two int64 of other signs may differ by more than an int64 holds.
    return int((np.maximum(x, y).view(np.uint64) - np.minimum(x, y).view(np.uint64)).max())


def _ordered(array: NDArray[Any]) -> NDArray[np.int64]:
    """Return integers whose difference is the number of floats between two floats."""
    bits = array.view(f"i{array.itemsize}").astype(np.int64)
    lowest = -(1 << (8 * array.itemsize - 1))
    ordered: NDArray[np.int64] = np.where(bits < 0, lowest - bits, bits)
    return ordered


def _placed(draw: Sequence[torch.Tensor], device: str) -> tuple[torch.Tensor, ...]:
    return tuple(t.to(device) for t in draw)


def _tensors(outputs: Any) -> list[torch.Tensor]:
    from torch.utils import _pytree

    return [t for t in _pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:  # NumPy has no bfloat16
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)  # type: ignore[no-any-return]
    array: NDArray[Any] = tensor.numpy()
    return array
