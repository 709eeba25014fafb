"""CapturedStep: a training step that warms up, is captured once per signature, and is replayed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from ...errors import InputError, RunError
from ...printable import logger
from ..numbered_policies import numbered_policy
from ..step_record import record
from .obstacles import Obstacle, optimizer_obstacles, watched
from .signature import call_signature, flatten, leaves_with_gradients, optimizer_settings, unflatten

__all__ = ["CaptureReport", "CapturedStep"]

_log = logger("xpuruntime.pytorch")


@dataclass(slots=True)
class CaptureReport:
    """Statistics of the calls of one signature.

    eager, replays: numbers of calls. obstacles: why the step is not captured; empty if it is, or if it still warms up. kernels:
    those of this package's ops in the graph.
    """

    signature: str
    eager: int = 0
    replays: int = 0
    captured: bool = False
    obstacles: tuple[Obstacle, ...] = ()
    kernels: tuple[str, ...] = ()


@dataclass(slots=True)
class _Gradient:
    """A parameter's gradient in a graph. accumulates: True if the graph adds to it, False if the graph overwrites it."""

    parameter: torch.Tensor
    gradient: torch.Tensor
    accumulates: bool


@dataclass(slots=True)
class _Entry:
    """The state of one signature.

    held:     objects that must live as long as the graph, since it uses their memory.
    replaced: ids of the parameters whose earlier gradients the last warm-up dropped, so that nothing has to keep them during the capture.
    """

    report: CaptureReport
    graph: torch.cuda.CUDAGraph | None = None
    inputs: list[Any] = field(default_factory=list)
    outputs: Any = None
    gradients: list[_Gradient] = field(default_factory=list)
    held: Any = None
    replaced: frozenset[int] = frozenset()


class CapturedStep:
    """The function that ``capture_graph(step)`` returns. Not to be called from several threads at a time."""

    def __init__(self, step: Callable[..., Any], *, warmup: int = 3, max_graphs: int = 8) -> None:
        if not callable(step):
            raise InputError(
                "capture_graph", "needs a function", got=type(step).__name__, do="Give the step."
            )
        for name, value, least in (("warmup", warmup, 1), ("max_graphs", max_graphs, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(
                    "capture_graph",
                    f"{name} must be at least {least}",
                    got=repr(value),
                    do="Give a larger number.",
                )
        self._step, self._warmup, self._max_graphs = step, warmup, max_graphs
        self._entries: OrderedDict[Any, _Entry] = OrderedDict()
        self._optimizers: list[torch.optim.Optimizer] = []
        self._parameters: list[torch.Tensor] = []
        self._discovered = False
        self._stream: torch.cuda.Stream | None = None
        self._calling = threading.Lock()

    @property
    def report(self) -> tuple[CaptureReport, ...]:
        """Return how the calls of each signature ran, the latest last."""
        return tuple(e.report for e in self._entries.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one training step."""
        if not self._calling.acquire(blocking=False):
            raise RunError(
                "capture_graph", "a call of this step is running", do="Call it from one thread at a time."
            )
        try:
            return self._call(args, kwargs)
        finally:
            self._calling.release()

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, structure = flatten((args, kwargs))
        if not self._discovered:
            return self._discover(leaves, args, kwargs)
        key = self._key(leaves, structure)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._new_entry(key, leaves)
        self._entries.move_to_end(key)
        if entry.graph is not None:
            return self._replay(entry, leaves)
        report = entry.report
        if report.obstacles:
            report.eager += 1
            return self._step(*args, **kwargs)
        if report.eager < self._warmup:
            return self._warm_up(entry, args, kwargs)
        if self._capture(entry, leaves, structure):
            return self._replay(entry, leaves)
        report.eager += 1
        return self._step(*args, **kwargs)

    def _key(self, leaves: list[Any], structure: Any) -> Any:
        signature = call_signature(leaves, structure)
        if signature is None:
            return None
        gradients = tuple(p.grad is None for p in self._parameters)
        return signature, numbered_policy().number, gradients, optimizer_settings(self._optimizers)

    def _new_entry(self, key: Any, leaves: list[Any]) -> _Entry:
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        shapes = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors)
        entry = _Entry(CaptureReport(shapes))
        if key is None:
            do = "Pass tensors, numbers and strings."
            entry.report.obstacles = (
                Obstacle("the call", "has an argument that cannot be compared", "", do),
            )
        elif not any(t.is_cuda for t in tensors):
            do = "Pass its tensors on a CUDA device."
            entry.report.obstacles = (Obstacle("the call", "has no tensor on a CUDA device", "", do),)
        elif any(not t.is_cuda for t in tensors):
            do = "Move it to the device before the step."
            entry.report.obstacles = (Obstacle("the call", "has a tensor on the host", "", do),)
        return entry

    # ── warm-up ──

    def _discover(self, leaves: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the first call of all, and note which parameters and optimizers the step has: they are part of every signature."""
        self._discovered = True
        devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_cuda}
        if not devices:
            return self._step(*args, **kwargs)
        with self._on_capture_stream(), self._noting_optimizers():
            result = self._step(*args, **kwargs)
        for device in devices:
            self._parameters += leaves_with_gradients(device)
        return result

    @contextmanager
    def _on_capture_stream(self) -> Iterator[None]:
        """Run the block on the stream that capturing uses: autograd keeps the stream of a parameter's first gradient."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    def _warm_up(self, entry: _Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run eagerly on another stream, as capturing does. The last call also looks for obstacles."""
        report = entry.report
        report.eager += 1
        with self._on_capture_stream(), self._noting_optimizers():
            if report.eager < self._warmup:
                result = self._step(*args, **kwargs)
            else:
                earlier = {id(p): (p, TensorWeakRef(p.grad)) for p in self._parameters if p.grad is not None}
                with watched() as obstacles:
                    result = self._step(*args, **kwargs)
                entry.replaced = frozenset(key for key, (p, ref) in earlier.items() if ref() is not p.grad)
                report.obstacles = (*obstacles, *optimizer_obstacles(self._optimizers))
        for obstacle in report.obstacles:
            _log.warning("capture_graph: the step runs eagerly: %s", obstacle)
        return result

    @contextmanager
    def _noting_optimizers(self) -> Iterator[None]:
        """Note the optimizers that step inside the block."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            if all(o is not optimizer for o in self._optimizers):
                self._optimizers.append(optimizer)

        hook = register_optimizer_step_post_hook(note)
        try:
            yield
        finally:
            hook.remove()

    # ── capture and replay ──

    def _capture(self, entry: _Entry, leaves: list[Any], structure: Any) -> bool:
        """Capture the step. If that fails, note the obstacle, restore the gradients and return False; no work of the step has run."""
        device = next(leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor))
        known = {id(p): p for p in (*self._parameters, *leaves_with_gradients(device))}
        earlier = {key: TensorWeakRef(p.grad) for key, p in known.items() if p.grad is not None}
        # A gradient that the step drops is not kept: its memory would add to the peak of the capture.
        before = {key: p.grad for key, p in known.items() if key not in entry.replaced}

        def is_earlier(key: int, p: torch.Tensor) -> bool:
            return key in earlier and earlier[key]() is p.grad

        entry.inputs = [_static(leaf) for leaf in leaves]
        args, kwargs = unflatten(entry.inputs, structure)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        try:
            with (
                record() as steps,
                torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"),
            ):
                outputs = self._step(*args, **kwargs)
        except (RuntimeError, RunError) as error:
            for key, p in known.items():
                if not is_earlier(key, p):
                    p.grad = before.get(key)
            torch.cuda.synchronize(device)
            entry.inputs = []
            obstacle = Obstacle(
                "the step",
                f"cannot be captured: {str(error).splitlines()[0]}",
                _line(error),
                "Move this call out of the step.",
            )
            entry.report.obstacles = (obstacle,)
            _log.warning("capture_graph: the step runs eagerly: %s", obstacle)
            return False
        known |= {id(p): p for p in leaves_with_gradients(device)}
        entry.gradients = [
            _Gradient(p, p.grad, is_earlier(key, p)) for key, p in known.items() if p.grad is not None
        ]
        self._parameters = list(known.values())
        # Capturing computes nothing; the replay that follows reads and writes the gradients.
        for key, p in known.items():
            if not is_earlier(key, p):
                p.grad = before.get(key)
        entry.graph, entry.outputs, entry.held = graph, outputs, steps.prepared
        entry.report.captured = True
        entry.report.kernels = tuple(steps.kernels())
        graphs = [k for k, e in self._entries.items() if e.graph is not None]
        for key in graphs[: max(0, len(graphs) - self._max_graphs)]:
            del self._entries[key]
        return True

    def _replay(self, entry: _Entry, leaves: list[Any]) -> Any:
        assert entry.graph is not None
        for static, leaf in zip(entry.inputs, leaves, strict=True):
            if isinstance(leaf, torch.Tensor) and static is not leaf:
                static.copy_(leaf)
        for each in entry.gradients:
            parameter = each.parameter
            if each.accumulates and parameter.grad is not each.gradient:
                assert parameter.grad is not None, "the signature has the gradients that exist"
                each.gradient.copy_(parameter.grad)
        entry.graph.replay()
        for each in entry.gradients:
            each.parameter.grad = each.gradient
        entry.report.replays += 1
        return entry.outputs


def _static(leaf: Any) -> Any:
    """Return a copy of an argument, which the graph reads. Each replay first copies the current argument to it."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    static = leaf.detach().clone()
    return static.requires_grad_(leaf.requires_grad)


def _line(error: BaseException) -> str:
    import traceback

    from .obstacles import user_line

    return user_line(traceback.extract_tb(error.__traceback__))
