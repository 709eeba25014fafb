"""Execution contexts of a TensorRT engine, each with what it was last given, so that a run repeats nothing that holds."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from .api import Api

__all__ = ["ContextPool", "TensorRtContext"]

_MAX_FREE = 16  # each holds activation memory on the device

Shapes = Mapping[str, tuple[int, ...]]


class TensorRtContext:
    """An execution context with its profile, shapes and addresses. One run at a time. ``shapes``: those it was given last."""

    __slots__ = ("_addresses", "_api", "_bind", "_execute", "_names", "_outputs", "_profile", "shapes", "vendor")  # fmt: skip

    def __init__(self, api: Api, vendor: Any) -> None:
        self._api, self.vendor = api, vendor
        self._bind, self._execute = api.binder(vendor), api.launcher(vendor)
        self._profile = -1
        self.shapes: Shapes | None = None
        self._outputs: Shapes = {}
        self._names: tuple[str, ...] = ()
        self._addresses: list[int] = []

    def take_shapes(
        self,
        profile: int,
        shapes: Shapes,
        addresses: Mapping[str, int],
        outputs: Sequence[str],
        stream: int,
        *,
        by_values: bool = False,
    ) -> Shapes:
        """Give the context the inputs' shapes and return the outputs'. by_values: values of inputs decide them, too, so they are inferred again.

        Raises RuntimeError with the vendor's text.
        """
        if self.shapes is not None and profile == self._profile and not by_values:
            if shapes is self.shapes:
                return self._outputs
            if shapes == self.shapes:
                self.shapes = shapes  # equal by identity next time
                return self._outputs
        self.shapes = None
        self._names, self._addresses = (), []
        self._api.use_profile(self.vendor, profile, stream)
        self._outputs = self._api.infer(self.vendor, shapes, addresses, outputs)
        self._profile, self.shapes = profile, shapes
        self._names, self._addresses = tuple(addresses), list(addresses.values())
        return self._outputs

    def launch(self, names: tuple[str, ...], addresses: list[int], stream: int) -> None:
        """Queue a run on memory at these addresses of inputs and outputs. Raises RuntimeError with the vendor's text."""
        if names is not self._names:
            self._addresses = []
            self._api.bind(self.vendor, dict(zip(names, addresses, strict=True)))
            self._names, self._addresses = names, addresses
        elif addresses != self._addresses:
            before, self._addresses = self._addresses, []  # unknown if binding fails
            for name, address, old in zip(names, addresses, before, strict=True):
                if address != old and not self._bind(name, address):
                    raise RuntimeError(self._api.errors())
            self._addresses = addresses
        if not self._execute(stream):
            raise RuntimeError(self._api.errors())


class ContextPool:
    """Free contexts by the stream of their last run.

    A context's activations are in memory of its own, so a run on another stream would have to wait for its last one. ``free``: the contexts by
    stream, each in a deque that threads pop from and append to.
    """

    def __init__(self, api: Api, engine: Any) -> None:
        self._api, self._engine = api, engine
        self.free: dict[int, deque[TensorRtContext]] = {}
        self._lock = threading.Lock()

    def take(self, stream: int) -> TensorRtContext:
        """Return a free context of the stream, or a new one. Raises the vendor's error, or RuntimeError with its text."""
        try:
            return self.free[stream].pop()
        except (KeyError, IndexError):
            with self._lock:
                return TensorRtContext(self._api, self._api.context(self._engine))

    def give_back(self, context: TensorRtContext, stream: int) -> None:
        """Make a context free for runs on the stream. If there are too many, the ones that were free for the longest time are dropped."""
        free = self.free.get(stream)
        if free is None:
            with self._lock:
                free = self.free.setdefault(stream, deque())
        free.append(context)
        if len(free) > _MAX_FREE or len(self.free) > _MAX_FREE:
            self._drop()

    def _drop(self) -> None:
        with self._lock:
            while len(self.free) > _MAX_FREE:
                del self.free[next(iter(self.free))]
            for free in list(self.free.values()):
                while len(free) > _MAX_FREE:
                    free.popleft()

    def clear(self) -> None:
        """Drop every free context."""
        with self._lock:
            self.free.clear()
