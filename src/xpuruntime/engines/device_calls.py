"""Runs of a vendor engine on tensors whose forms were seen before: checked and prepared once for each set of forms.

A later run makes one call into the core, which reads the addresses and creates the outputs, and one of the vendor. Tensors that cannot be read in
place take the path of ``device_tensors``, which converts them or raises.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import OutOfMemory, RunError
from ..types import TensorSpec
from .device_tensors import admits

if TYPE_CHECKING:
    from ..runtime.backends.base import RuntimeBackend
    from ..runtime.memory.tensor_kinds import TensorKind

__all__ = ["DeviceCall", "DeviceCalls"]

_MAX_CALLS = 64  # sets of forms per executable
_NEW: Any = object()


class DeviceCall:
    """A run on inputs of one set of forms. ``inputs`` and ``outputs`` are their specs."""

    __slots__ = ("inputs", "outputs", "prepare")

    def __init__(
        self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], backend: RuntimeBackend
    ) -> None:
        from ..runtime.execution.tensor_run import tensor_call

        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.prepare = tensor_call(inputs, outputs, backend).prepare


Call = TypeVar("Call", bound=DeviceCall)


class DeviceCalls(Generic[Call]):
    """The prepared calls of one executable, by the forms of their inputs.

    prepare: returns the call for inputs of these specs; None if they need another path.
    latest:  the call of the last run, whose forms the next one probably has.
    """

    def __init__(
        self,
        who: str,
        inputs: Sequence[TensorSpec],
        backend: RuntimeBackend,
        prepare: Callable[[TensorKind, Sequence[TensorSpec]], Call | None],
    ) -> None:
        self._who, self._specs, self._backend, self._prepare = who, tuple(inputs), backend, prepare
        self._names = tuple(s.name for s in inputs)
        self._kinds: dict[type, TensorKind | None] = {}
        self._calls: dict[tuple[Any, ...], Call | None] = {}
        self._lock = threading.Lock()
        self.latest: Call | None = None

    def ready(
        self, tensors: dict[str, Any]
    ) -> tuple[Call, dict[str, Any], list[int], int, dict[str, Any]] | None:
        """Return the call, new outputs, the addresses of inputs and outputs, the caller's stream, and the inputs, to be held until the run is
        queued; None for inputs that need another path. Raises OutOfMemory, RunError.
        """
        call = self.latest
        made = None if call is None else call.prepare(tensors)
        if made is None:
            call = self._find(tensors)
            made = None if call is None else call.prepare(tensors)
            self.latest = call if made is not None else self.latest
        if call is None or made is None:
            return None
        if isinstance(made, tuple):
            return call, *made
        kind = OutOfMemory if made.code == "no_memory" else RunError
        sizes = ", ".join(map(str, call.outputs))
        raise kind(self._who, f"cannot allocate the outputs {sizes}", got=made.message[:300], do=made.advice)

    def _find(self, tensors: Mapping[str, Any]) -> Call | None:
        """Return the call for the forms of these tensors; None for tensors that need another path."""
        if len(tensors) != len(self._names):
            return None
        kind: TensorKind | None = None
        forms: list[Any] = []
        for name in self._names:
            tensor = tensors.get(name)
            its = self._kinds.get(type(tensor), _NEW)
            if its is _NEW:
                its = self._kind(type(tensor))
            if its is None or (kind is not None and its is not kind):
                return None
            kind = its
            form = kind.form(tensor)
            if form is None:
                return None
            forms.append(form)
        if kind is None:
            return None
        key = (kind, *forms)
        call = self._calls.get(key, _NEW)
        return self._new(kind, key) if call is _NEW else call

    def clear(self) -> None:
        """Forget every call."""
        with self._lock:
            self._calls.clear()
        self.latest = None

    def _kind(self, of: type) -> TensorKind | None:
        from ..runtime.memory.tensor_kinds import tensor_kind

        with self._lock:
            same = (k for t, k in self._kinds.items() if k is not None and issubclass(of, t))
            kind = next(same, None) or tensor_kind(of, self._backend)
            return self._kinds.setdefault(of, kind)

    def _new(self, kind: TensorKind, key: tuple[Any, ...]) -> Call | None:
        specs = [kind.spec(form, name) for form, name in zip(key[1:], self._names, strict=True)]
        fits = all(s is not None and _fits(s, want) for s, want in zip(specs, self._specs, strict=True))
        call = self._prepare(kind, [s for s in specs if s is not None]) if fits else None
        with self._lock:
            while len(self._calls) >= _MAX_CALLS:
                del self._calls[next(iter(self._calls))]
            return self._calls.setdefault(key, call)


def _fits(spec: TensorSpec, want: TensorSpec) -> bool:
    """Return True if a tensor may be used as an input in place. Tensors without elements have no address."""
    return (
        spec.dtype is want.dtype
        and admits(want, spec.shape)
        and math.prod(d for d in spec.shape if isinstance(d, int)) > 0
    )
