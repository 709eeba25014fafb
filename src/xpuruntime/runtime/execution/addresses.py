"""The memory addresses of weights and states, looked up once per ``Weights``."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from ... import _core
from ...errors import InputError
from ...program.program import CompiledProgram
from ..weights.load import Weights
from .binding import Bound
from .states import States

if TYPE_CHECKING:
    from ..backends.base import RuntimeBackend

__all__ = ["Addresses"]


class Addresses:
    """A thread-safe cache of the addresses of weights and states of one bound plan. It holds weak references to the weights."""

    def __init__(
        self, who: str, program: CompiledProgram, states: States, bound: Bound, backend: RuntimeBackend
    ) -> None:
        self._who, self._program, self._states, self._backend = who, program, states, backend
        self._weight_names, self._state_names = bound.weights, bound.states
        self._lock = threading.Lock()
        self._cached: weakref.WeakKeyDictionary[Weights, _core.WeightBindings] = weakref.WeakKeyDictionary()

    def of(self, weights: Weights) -> _core.WeightBindings:
        """Return the addresses of the weights and of the states that start from them. Raises InputError for weights of another program."""
        with self._lock:
            bindings = self._cached.get(weights)
            if bindings is not None:
                return bindings
            if weights.program is not self._program and (
                not self._program.digest or weights.program.digest != self._program.digest
            ):
                raise InputError(
                    self._who,
                    "needs weights of its own program",
                    got=repr(weights),
                    do="Call load_weights for this program.",
                )
            foreign = next((b for b in weights.values() if not self._backend.shares_memory(b.backend)), None)
            if foreign is not None:
                here, place = self._backend.device, foreign.backend.device
                do = f"Call load_weights with {str(here)!r}."
                raise InputError(self._who, f"needs weights on {here}", got=f"weights on {place}", do=do)
            self._states.start(weights)
            buffers = [weights[n] for n in self._weight_names] + [self._states[n] for n in self._state_names]
            bindings = _core.WeightBindings([b.address for b in buffers], bool(self._state_names), buffers)
            if self._state_names:
                self._states.take_turns(bindings)
            self._cached[weights] = bindings
            return bindings
