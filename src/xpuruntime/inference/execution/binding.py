"""IOBinding: runs on memory that was handed over once, under the names that ONNX Runtime gives these verbs.

binding = sess.io_binding()
binding.bind_input("x", x)                  # NumPy, torch or DLPack on the host; read in place, so write the next values into it
binding.bind_output("y", y)                 # without an array: memory of ours
sess.run_with_iobinding(binding)            # no conversion, no check, no allocation
binding.copy_outputs_to_cpu()
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InputError
from ...protocols import Array, Bindable, Executable, RunContext
from ...runtime.memory.overlap import first_overlap
from ...types import DType, TensorSpec
from .contexts import Contexts
from .inputs import Feeds

__all__ = ["BoundValue", "IOBinding"]


@dataclass(frozen=True, slots=True)
class BoundValue:
    """A bound output, with those verbs of ONNX Runtime's OrtValue that apply to host memory."""

    array: Array

    def numpy(self) -> Array:
        """Return the array itself. The next run overwrites it."""
        return self.array

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self.array.shape)

    def data_ptr(self) -> int:
        """Return the address of its memory."""
        return int(self.array.ctypes.data)

    def device_name(self) -> str:
        """Return ``cpu``."""
        return "cpu"


class _Watched:
    """A bound context that remembers that it was stopped."""

    def __init__(self, context: RunContext) -> None:
        self.run, self._stop, self.stopped = context.run, context.stop, False

    def stop(self) -> None:
        """Stop the context."""
        self.stopped = True
        self._stop()


class IOBinding:
    """The inputs and outputs bound for one session.

    Use one binding from one thread at a time. Several bindings of a session may run at once.
    """

    def __init__(
        self,
        who: str,
        executable: Executable,
        feeds: Feeds,
        contexts: Contexts,
        specs: tuple[Sequence[TensorSpec], Sequence[TensorSpec]],
    ) -> None:
        self._who, self._executable, self._feeds, self._contexts = who, executable, feeds, contexts
        self._in_specs = {s.name: s for s in specs[0]}
        self._out_specs = {s.name: s for s in specs[1]}
        self._inputs: dict[str, Array] = {}
        self._outputs: dict[str, Array | None] = {}
        self._made: dict[str, Array] = {}
        self._bound: _Watched | None = None
        self._running = threading.Lock()

    # ── binding ──

    def bind_input(
        self,
        name: str,
        value: Any,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Read this input from ``value``, or, in ONNX Runtime's form, from ``buffer_ptr`` on the device ``value`` (``cpu``).

        Raises InputError for an unknown input, a dtype or shape that differs from the model's, or memory that is not C-contiguous.
        """
        spec = self._spec(self._in_specs, name, "input")
        array = self._array(name, value, device_id, element_type, shape, buffer_ptr)
        self._inputs[name] = self._in_place(self._feeds.one(spec, array), array, f"input {name!r}")
        self._bound = None

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an array; the same as ``bind_input(name, array)``."""
        self.bind_input(name, arr_on_cpu)

    def bind_output(
        self,
        name: str,
        value: Any = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Write this output to ``value`` or to ``buffer_ptr``; with neither, to memory of the binding. Raises as ``bind_input``."""
        spec = self._spec(self._out_specs, name, "output")
        self._bound = None
        if isinstance(value, str) and buffer_ptr is None:
            self._on_host(value, device_id)
            self._outputs[name] = None
            return
        array = self._array(name, value, device_id, element_type, shape, buffer_ptr)
        array = self._in_place(self._feeds.one(spec, array), array, f"output {name!r}")
        if not array.flags.writeable:
            raise InputError(self._who, f"output {name!r} must be writeable", do="Bind an array of your own.")
        self._outputs[name] = array

    def clear_binding_inputs(self) -> None:
        """Unbind every input."""
        self._inputs, self._bound = {}, None

    def clear_binding_outputs(self) -> None:
        """Unbind every output."""
        self._outputs, self._made, self._bound = {}, {}, None

    def synchronize_inputs(self) -> None:
        """Do nothing: host memory needs no synchronization."""

    def synchronize_outputs(self) -> None:
        """Do nothing: a run returns after its outputs are written."""

    # ── results ──

    def get_outputs(self) -> list[BoundValue]:
        """Return the bound outputs in the order of binding, or all outputs of the model if none was bound."""
        return [BoundValue(self._result(name)) for name in self._outputs or self._out_specs]

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return copies of the outputs. The next run does not change them."""
        return [value.array.copy() for value in self.get_outputs()]

    # ── running ──

    def run(self) -> dict[str, Array]:
        """Run on the bound memory and return the inputs. Raises InputError, RunError."""
        with self._running:
            missing = [n for n in self._in_specs if n not in self._inputs]
            if missing:
                raise InputError(
                    self._who, f"input {missing[0]!r} is not bound", do=f"Call bind_input({missing[0]!r}, x)."
                )
            if self._bound is None:
                self._feeds.check_bounds(self._inputs)
                self._check_apart()
                self._bound = self._bind()
            if self._bound is None:
                self._run_unbound()
                return self._inputs
            try:
                self._contexts.run(self._inputs, bound=self._bound)
            finally:
                if self._bound.stopped:  # the next run makes another
                    self._bound = None
            return self._inputs

    def _check_apart(self) -> None:
        outputs = {n: a for n, a in self._outputs.items() if a is not None}
        inputs = {n: a for n, a in self._inputs.items() if a.dtype != object}
        shared = first_overlap(inputs, outputs) if outputs else None
        if shared is not None:
            raise InputError(
                self._who, f"{shared[0]} shares memory with {shared[1]}", do="Bind it to memory of its own."
            )

    def _bind(self) -> _Watched | None:
        """Return a context over all bound memory, or None if the engine has none or an output's size is unknown."""
        specs = (*self._in_specs.values(), *self._out_specs.values())
        if not isinstance(self._executable, Bindable) or any(s.dtype is DType.STRING for s in specs):
            return None
        outputs: dict[str, Array] = {}
        for name, spec in self._out_specs.items():
            array = self._outputs.get(name)
            if array is None:
                if any(not isinstance(d, int) for d in spec.shape):
                    return None
                array = self._made.get(name)
                if array is None:
                    shape = tuple(int(d) for d in spec.shape if isinstance(d, int))
                    self._made[name] = array = np.empty(shape, spec.dtype.numpy)
            outputs[name] = array
        return _Watched(self._executable.bind_context(self._inputs, outputs))

    def _run_unbound(self) -> None:
        """Run with outputs whose sizes only the run knows, and copy them where an array is bound."""
        outputs = dict(zip(self._out_specs, self._contexts.run(self._inputs), strict=True))
        for name, array in outputs.items():
            target = self._outputs.get(name)
            if target is None:
                self._made[name] = array
            elif target.shape != array.shape:
                raise InputError(
                    self._who,
                    f"the array bound to output {name!r} has another shape than the output",
                    got=f"{list(target.shape)} for {list(array.shape)}",
                    do="Bind an array of the output's shape.",
                )
            else:
                np.copyto(target, array)

    # ── inside ──

    def _result(self, name: str) -> Array:
        array = self._outputs.get(name)
        value = array if array is not None else self._made.get(name)
        if value is None:
            do = "Call sess.run_with_iobinding(binding) first."
            raise InputError(self._who, f"output {name!r} has no values yet", do=do)
        return value

    def _spec(self, specs: Mapping[str, TensorSpec], name: str, what: str) -> TensorSpec:
        if name not in specs:
            known = ", ".join(specs) or "none"
            raise InputError(self._who, f"no {what} of that name", got=repr(name), do=f"It has {known}.")
        return specs[name]

    def _on_host(self, device: str, device_id: int) -> None:
        if device.lower() != "cpu" or device_id:
            do = "Bind memory of the host: device 'cpu', device_id 0."
            raise InputError(self._who, "binds memory of the host only", got=f"{device}:{device_id}", do=do)

    def _array(
        self,
        name: str,
        value: Any,
        device_id: int,
        element_type: Any,
        shape: Sequence[int] | None,
        buffer_ptr: int | None,
    ) -> Array:
        if not isinstance(value, str):
            return self._feeds.imported(name, value)
        self._on_host(value, device_id)
        if buffer_ptr is None or element_type is None or shape is None:
            do = "Give an array, or element_type, shape and buffer_ptr."
            raise InputError(self._who, f"nothing to bind {name!r} to", do=do)
        dtype = np.dtype(element_type)
        size = math.prod(shape) * dtype.itemsize
        memory = (ctypes.c_char * size).from_address(buffer_ptr)
        return np.frombuffer(memory, dtype).reshape(tuple(shape))

    def _in_place(self, checked: Array, array: Array, what: str) -> Array:
        if checked is not array or not array.flags.c_contiguous or not array.flags.aligned:
            raise InputError(
                self._who,
                f"{what} is bound in place, so it must be C-contiguous and aligned",
                got=f"strides {array.strides}",
                do="Use numpy.ascontiguousarray(value).",
            )
        return array
