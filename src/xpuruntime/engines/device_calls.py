"""Runs of a vendor engine on tensors whose forms were seen before: checked and prepared once for each set of forms.

A later run reads the addresses, creates the outputs and calls the vendor. Tensors that cannot be read in place take the path of
``device_tensors``, which converts them or raises.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import OutOfMemory, XpuError
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

    __slots__ = ("_makers", "inputs", "kind", "outputs")

    def __init__(
        self,
        kind: TensorKind,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        makers: Sequence[Callable[[int], Any]],
    ) -> None:
        self.kind, self.inputs, self.outputs, self._makers = (
            kind,
            tuple(inputs),
            tuple(outputs),
            tuple(makers),
        )

    def create_outputs(self, stream: int, who: str) -> list[Any]:
        """Return new tensors for the outputs of a run on the stream. Raises OutOfMemory."""
        try:
            return [make(stream) for make in self._makers]
        except XpuError:
            raise
        except (RuntimeError, MemoryError) as error:  # of the tensors' library
            sizes = ", ".join(map(str, self.outputs))
            do = "Free tensors, or run smaller inputs."
            raise OutOfMemory(
                who, f"cannot allocate the outputs {sizes}", got=str(error)[:300], do=do
            ) from error


Call = TypeVar("Call", bound=DeviceCall)


class DeviceCalls(Generic[Call]):
    """The prepared calls of one executable, by the forms of their inputs.

    prepare: returns the call for inputs of these specs; None if they need another path.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        backend: RuntimeBackend,
        prepare: Callable[[TensorKind, Sequence[TensorSpec]], Call | None],
    ) -> None:
        self._specs, self._backend, self._prepare = tuple(inputs), backend, prepare
        self._names = tuple(s.name for s in inputs)
        self._kinds: dict[type, TensorKind | None] = {}
        self._calls: dict[tuple[Any, ...], Call | None] = {}
        self._lock = threading.Lock()

    def find(self, tensors: Mapping[str, Any]) -> tuple[Call, list[int], int] | None:
        """Return the call, the inputs' addresses and the caller's stream; None for inputs that need another path."""
        if len(tensors) != len(self._names):
            return None
        kind: TensorKind | None = None
        stream = 0
        forms: list[Any] = []
        addresses: list[int] = []
        for name in self._names:
            tensor = tensors.get(name)
            its = self._kinds.get(type(tensor), _NEW)
            if its is not kind or kind is None:
                if its is _NEW:
                    its = self._kind(type(tensor))
                if its is None or (kind is not None and its is not kind):
                    return None
                kind, stream = its, self._backend.current_stream()
            form = kind.form(tensor, stream)
            if form is None:
                return None
            forms.append(form)
            addresses.append(kind.address(tensor))
        if kind is None:
            return None
        key = (kind, *forms)
        call = self._calls.get(key, _NEW)
        if call is _NEW:
            call = self._new(kind, key)
        return None if call is None else (call, addresses, stream)

    def clear(self) -> None:
        """Forget every call."""
        with self._lock:
            self._calls.clear()

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
