"""Executor: a compiled program on a device. One for every device; the work is done in the core.

    executor = Executor(program)                                  # Device() is the host
    weights = load_weights("model.safetensors", program)
    outputs = executor.run(inputs={"input": x}, weights=weights)   # outputs["output"].to_numpy()
    y, = executor.run_arrays([x])                                 # arrays in the program's order, nothing in between

Safe from several threads. Each run in flight has an arena of its own; programs with states run one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core, env
from ..errors import InputError, RunError
from ..program.program import CompiledProgram, EntryPoint
from ..types import DType, TensorSpec
from .binding import bind_plan
from .buffer import DeviceBuffer, backend_of
from .choice import choose_plan
from .device import cpu
from .weights import Weights, load_weights

__all__ = ["Executor", "States"]


class States(Mapping[str, DeviceBuffer]):
    """Buffers that live from run to run. Hand them to a second executor of the same program to share them (prefill and decode)."""

    def __init__(self, program: CompiledProgram, backend: Any) -> None:
        self._refs = program.states
        self._buffers = {s.name: DeviceBuffer.zeros(s.spec, backend) for s in program.states}
        self.started = False
        self._turn: _core.Fixed | None = None

    def __getitem__(self, name: str) -> DeviceBuffer:
        return self._buffers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)

    def reset(self, weights: Mapping[str, DeviceBuffer]) -> None:
        """Back to what the program starts from: each state's ``init`` among the weight buffers, or zeros."""
        for ref in self._refs:
            buffer = self._buffers[ref.name]
            data = np.zeros(buffer.size_bytes, np.uint8)
            if ref.init:
                start = weights[ref.init]
                data = start.backend.download(start.native_handle, buffer.size_bytes)
            buffer.backend.upload(buffer.native_handle, data)
        self.started = True

    def write(self, name: str, array: NDArray[Any]) -> None:
        """Set one state. Not while a run is in flight. Raises KeyError, InputError."""
        buffer = self._buffers[name]
        made = DeviceBuffer.from_numpy(array, buffer.backend, spec=buffer.spec)
        buffer.backend.upload(
            buffer.native_handle, made.backend.download(made.native_handle, made.size_bytes)
        )


class Executor:
    """A program, ready to run.

    device:   a Device, its name, or a backend; the host by default.
    threads:  threads of the host under the kernels; ``XPU_NUM_THREADS``, or every core this process may use.
    entry:    which entry point; the first by default.
    contexts: how many runs may be in flight; each that is takes ``arena_bytes``. By default the cores this process may use.
    states:   those of another executor of this program, to share them.

    ``decision`` says which alternative was taken and why the others were not; ``plan`` is it. Raises UnavailableError when this
    machine runs none, BuildError when the code cannot be loaded.
    """

    def __init__(
        self,
        program: CompiledProgram,
        device: Any = "cpu",
        *,
        threads: int | None = None,
        entry: str = "",
        contexts: int | None = None,
        states: States | None = None,
    ) -> None:
        self.program: CompiledProgram = program
        self.entry: EntryPoint = program.entry(entry)
        self.backend = backend_of(device)
        self.plan, self.decision = choose_plan(program, self.entry, self.backend)
        cores = cpu().usable_cores
        self.threads = threads or env.get_int("XPU_NUM_THREADS") or cores
        self._who = f"executor of {program.name!r}"
        bound = bind_plan(program, self.entry, self.plan, self.backend, self.threads, contexts or cores)
        self._core = bound.executor
        self._weight_names, self._state_names = bound.weights, bound.states
        self.states = States(program, self.backend) if states is None else states
        self._weights: Weights | None = None
        self._fixed: _core.Fixed | None = None
        self._inputs, self._outputs = self.entry.inputs, self.entry.outputs
        self._in_names = tuple(s.name for s in self._inputs)
        self._out_names = tuple(s.name for s in self._outputs)
        shapes = (tuple(int(d) for d in s.shape if isinstance(d, int)) for s in self._outputs)
        self._made = tuple((shape, s.dtype.numpy) for shape, s in zip(shapes, self._outputs, strict=True))
        self._on_host = self.backend.core_is_host

    # ── weights ──

    def bind(self, weights: Weights | Mapping[str, Any] | None) -> None:
        """Use these weights from now on: loaded ones, or arrays by name (then recipes run now). Raises InputError."""
        if weights is None or not isinstance(weights, Weights):
            weights = load_weights(weights, self.program, self.backend)
        elif weights.program is not self.program and weights.program.digest != self.program.digest:
            raise InputError(
                self._who,
                "takes weights loaded for its own program",
                got=repr(weights),
                do="Call load_weights.",
            )
        if not self.states.started:
            self.states.reset(weights)
        buffers = [weights[n] for n in self._weight_names] + [self.states[n] for n in self._state_names]
        fixed = _core.Fixed([b.address for b in buffers], bool(self._state_names), (weights, buffers))
        if self._state_names:
            if self.states._turn is None:
                self.states._turn = fixed
            fixed.share_turn(self.states._turn)
        self._weights, self._fixed = weights, fixed

    # ── running ──

    def run_arrays(
        self,
        inputs: Sequence[Any],
        out: Sequence[NDArray[Any]] | None = None,
        *,
        times: NDArray[np.int64] | None = None,
        ring: _core.EventRing | None = None,
    ) -> list[NDArray[Any]]:
        """Run on arrays in the program's order; outputs likewise, fresh ones or those of ``out`` (C-contiguous, right dtype and shape).

        Inputs are read in place where they are C-contiguous and aligned to their elements, else copied. times: an int64 array with a
        place for each call of the plan, filled with nanoseconds. Raises InputError; RunError when the run was cancelled or failed.
        """
        if self._fixed is None:
            self.bind(None)
        made = tuple(np.empty(*m) for m in self._made) if out is None else tuple(out)
        if self._on_host and len(inputs) == len(self._inputs) and len(made) == len(self._outputs):
            at = 0 if times is None else self._times(times)
            result = self._core.run_arrays(self._fixed, tuple(inputs), made, at, ring)  # type: ignore[arg-type]
            if result is None:
                return list(made)
            if not isinstance(result, int):
                raise self._failed(result)
        return self._run_checked(inputs, made, times, ring)

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        weights: Weights | Mapping[str, Any] | None = None,
        out: Mapping[str, DeviceBuffer] | None = None,
    ) -> dict[str, DeviceBuffer]:
        """Run on buffers or arrays by name; output buffers by name, fresh ones or those of ``out``. Raises as ``run_arrays``."""
        if self._fixed is None or (weights is not None and weights is not self._weights):
            self.bind(weights)
        for name in [n for n in inputs if n not in self._in_names] + [
            n for n in self._in_names if n not in inputs
        ]:
            have = ", ".join(self._in_names) or "none"
            what = "takes no input of that name" if name in inputs else "lacks an input"
            raise InputError(self._who, what, got=repr(name), do=f"Its inputs are: {have}.")
        given = [self._buffer(inputs[s.name], s) for s in self._inputs]
        made = {
            s.name: out[s.name] if out is not None and s.name in out else DeviceBuffer.empty(s, self.backend)
            for s in self._outputs
        }
        for spec in self._outputs:
            self._fits(made[spec.name].spec, spec, f"output {spec.name!r}")
        self._run_memory([b.address for b in given], [b.address for b in made.values()], 0, None)
        return made

    def cancel(self) -> None:
        """End the runs in flight after the kernel that they are in; each raises RunError."""
        self._core.cancel()

    def close(self) -> None:
        """Cancel, wait for the runs in flight, give arenas back; later runs raise RunError. May be repeated."""
        self._core.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── facts ──

    @property
    def counters(self) -> dict[str, int]:
        """runs, dispatches (kernel calls of those), prepared (kernels looked up or compiled), allocations (blocks of device memory),
        copies (of buffers), contexts (arenas that exist), since the executor was made.
        """
        found = self._core.counters
        names = ("runs", "dispatches", "prepared", "allocations", "copies", "contexts")
        return {n: getattr(found, n) for n in names}

    # ── inside ──

    def _run_checked(
        self,
        inputs: Sequence[Any],
        made: Sequence[NDArray[Any]],
        times: NDArray[np.int64] | None,
        ring: _core.EventRing | None,
    ) -> list[NDArray[Any]]:
        """The general way: arrays that must be converted or refused, and devices whose memory is not the host's."""
        if len(inputs) != len(self._inputs) or len(made) != len(self._outputs):
            want = f"{len(self._inputs)} inputs and {len(self._outputs)} outputs"
            raise InputError(self._who, f"takes {want}", got=f"{len(inputs)} and {len(made)}")
        for array, spec in zip(made, self._outputs, strict=True):
            self._fits(TensorSpec(array.shape, DType.of(array.dtype)), spec, f"out array {spec.name!r}")
            if not array.flags.c_contiguous or not array.flags.writeable or not array.flags.aligned:
                raise InputError(
                    self._who, f"out array {spec.name!r} must be C-contiguous, aligned and writeable"
                )
        given = [self._buffer(a, s) for a, s in zip(inputs, self._inputs, strict=True)]
        at = 0 if times is None else self._times(times)
        if self._on_host:
            addresses = [a.ctypes.data for a in made]
            self._run_memory([b.address for b in given], addresses, at, ring)
            return list(made)
        results = [DeviceBuffer.empty(s, self.backend) for s in self._outputs]
        self._run_memory([b.address for b in given], [b.address for b in results], at, ring)
        for array, buffer in zip(made, results, strict=True):
            np.copyto(array, buffer.to_numpy())
        return list(made)

    def _run_memory(
        self, inputs: list[int], outputs: list[int], times: int, ring: _core.EventRing | None
    ) -> None:
        assert self._fixed is not None
        status = self._core.run_memory(self._fixed, inputs, outputs, times, ring)
        if status is not None:
            raise self._failed(status)

    def _buffer(self, value: Any, spec: TensorSpec) -> DeviceBuffer:
        """An input as a buffer of this device, checked."""
        if isinstance(value, DeviceBuffer):
            self._fits(value.spec, spec, f"input {spec.name!r}")
            if value.backend.kind != self.backend.kind and not (self._on_host and value.backend.core_is_host):
                raise InputError(
                    self._who,
                    f"input {spec.name!r} lies on another device",
                    got=repr(value),
                    do="Copy it with to_numpy.",
                )
            return value
        array = np.asarray(value)
        self._fits(TensorSpec(tuple(array.shape), DType.of(array.dtype)), spec, f"input {spec.name!r}")
        return DeviceBuffer.from_numpy(array, self.backend, spec=spec)

    def _fits(self, got: TensorSpec, want: TensorSpec, what: str) -> None:
        if got.shape != want.shape or got.dtype is not want.dtype or not got.is_dense:
            raise InputError(self._who, f"{what} must be {want}, dense", got=got)

    def _times(self, times: NDArray[np.int64]) -> int:
        if times.dtype != np.int64 or not times.flags.c_contiguous or times.size < len(self.plan.calls):
            raise InputError(
                self._who, f"times must be {len(self.plan.calls)} int64 in a row", got=repr(times.shape)
            )
        return int(times.ctypes.data)

    def _failed(self, status: _core.Status) -> RunError:
        return RunError(self._who, "failed while running", got=status.message, do=status.advice)
