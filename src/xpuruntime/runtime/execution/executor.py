"""Executor: a compiled program on a device. The class is the same for every device and wraps the core's executor.

    executor = Executor(program)                                  # Device() is the host
    weights = load_weights("model.safetensors", program)
    outputs = executor.run(inputs={"input": x}, weights=weights)   # outputs["output"].to_numpy()
    y, = executor.run_arrays([x])                                 # arrays in the program's order, with the least overhead

Several threads may run one executor. Each concurrent run has its own arena. Runs of a program with states are serialized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ... import _core, env
from ...arguments import check_argument, check_count
from ...errors import InputError, OutOfMemory, RunError
from ...program.program import CompiledProgram, EntryPoint
from ...storage.store import Store
from ...targets import DeviceId
from ...types import TensorSpec
from ..device import cpu, open_library
from ..device_record import DeviceRecord, read
from ..memory.buffer import DeviceBuffer
from ..nvtx_ranges import by_environment
from ..weights.load import Weights, load_weights
from .addresses import Addresses
from .arguments import Arguments, dtype_of, lies_on_a_device
from .called_code import CalledFunction, called_functions, text_digests
from .check_messages import check_message
from .choice import first_bound
from .control import RUN, Bodies
from .demands import SETTLED, check_program, demands_around, device_for
from .states import States
from .tensor_run import tensor_run

if TYPE_CHECKING:
    from ..collectives.communicator import Communicator

__all__ = ["MAX_CONTEXTS", "Executor"]

MAX_CONTEXTS = 65_536
"""Maximum number of concurrent runs of one executor or session."""


class Executor:
    """A program, ready to run.

    device:   a Device, its name, or a backend. Default: the policy's device, else the host.
    threads:  number of host threads that compute kernels. Default: ``XPU_NUM_THREADS``, else the usable cores.
    entry:    name of an entry point. Default: the first.
    contexts: maximum number of concurrent runs, at most ``MAX_CONTEXTS``. Each of them needs ``arena_bytes``. Default: the usable cores.
    states:   states of another executor of this program, to share them.
    bodies:   set for a branch or a body of a loop: the executors of the run that it is part of.
    communicator: of a program with collectives: the rank that it runs as, on the same device.
    borrows_arena: runs on tensors take the memory of intermediate values from the tensors' library, and keep none between runs. The
              library must reuse memory in the order of the stream, as PyTorch does.
    arenas:   ``arena_pool()`` of the backend, to share the memory of runs with other executors. Branches and loops have their own.
    store:    keeps the plans that cuDNN compiles. Default: that of ``XPU_CACHE_DIR``, unless the policy has ``caching: false``.
    policy:   takes precedence over ``with_policy`` and the environment. A demand that the program was not compiled for is an error
              (``docs/reference/policy-support.md``).

    ``plan`` is the chosen alternative, and ``decision`` holds the reasons. Raises UnavailableError if this machine can run no
    alternative, BuildError if the code cannot be loaded, PolicyError for a demand that the program does not satisfy.
    """

    def __init__(
        self,
        program: CompiledProgram,
        device: Any = None,
        *,
        threads: int | None = None,
        entry: str = "",
        contexts: int | None = None,
        states: States | None = None,
        policy: Any = None,
        bodies: Bodies | None = None,
        borrows_arena: bool = False,
        communicator: Communicator | None = None,
        arenas: _core.ArenaPool | None = None,
        store: Store | None = None,
    ) -> None:
        who = "Executor"
        do = "Give compile(graph), or CompiledProgram.load(path)."
        check_argument(who, "program", program, CompiledProgram, "a CompiledProgram", do)
        threads = None if threads is None else check_count(who, "threads", threads)
        contexts = None if contexts is None else check_count(who, "contexts", contexts, 0, MAX_CONTEXTS)
        if states is not None:
            check_argument(
                who, "states", states, States, "States", "Give those of another Executor: executor.states."
            )
        self.program: CompiledProgram = program
        self.entry: EntryPoint = program.entry(entry)
        demands = demands_around(policy)
        self.backend = device_for(device, program, self.entry, demands)
        if store is None and demands is not None and demands.policy.execution.caching is False:
            store = Store(mode="off")
        self.store = store
        cores = cpu().usable_cores
        self.threads = threads or env.get_int("XPU_NUM_THREADS") or cores
        self._who = f"executor of {program.name!r}"
        own_states = States(program, self.backend) if states is None else states
        self._communicator = communicator

        def body(name: str, all_bodies: Bodies) -> Executor:
            return Executor(
                program,
                self.backend,
                threads=self.threads,
                entry=name,
                contexts=contexts,
                states=own_states,
                policy=SETTLED,
                bodies=all_bodies,
                communicator=communicator,
                store=store,
            )

        everything = Bodies(body) if bodies is None else bodies
        self.plan, self.decision, bound = first_bound(
            program,
            self.entry,
            self.backend,
            self.threads,
            contexts or cores,
            everything,
            0 if communicator is None else communicator.id,
            arenas,
            store,
        )
        # The executor of a body does not own the others: the core would keep all of them alive.
        self._bodies = everything.executors if bodies is None else {}
        self._all_bodies = everything if bodies is None else None
        check_program(program, self.entry, self.plan, self.decision, demands)
        by_environment()
        self._core = bound.executor
        self._modules = dict(bound.modules)
        self.states = own_states
        self._borrows_arena = borrows_arena
        self.states.fit(program, self._who, self.backend)
        self._addresses = Addresses(self._who, program, self.states, bound, self.backend)
        self._weights: Weights | None = None
        self._bindings: _core.WeightBindings | None = None
        self._ring: _core.EventRing | None = None
        self._on_tensors: _core.TensorRun | None = None  # created by the first run on tensors
        self._inputs, self._outputs = self.entry.inputs, self.entry.outputs
        self._in_names = tuple(s.name for s in self._inputs)
        self._out_names = tuple(s.name for s in self._outputs)
        shapes = (tuple(int(d) for d in s.shape if isinstance(d, int)) for s in self._outputs)
        self._output_forms = tuple(
            (shape, s.dtype.numpy) for shape, s in zip(shapes, self._outputs, strict=True)
        )
        self._arguments = Arguments(self._who, self.backend)
        self._on_host = self.backend.core_is_host
        # Types below a byte are packed in buffers, but not in arrays.
        self._packs = any(0 < s.dtype.bits < 8 for s in (*self._inputs, *self._outputs))
        # True if the core reads and writes NumPy arrays itself.
        self._takes_arrays = (self._on_host or self.backend.stages) and not self._packs

    # ── weights ──

    def bind(self, weights: Weights | Mapping[str, Any] | None) -> _core.WeightBindings:
        """Set the weights of later runs and return the core's handle for them. Raises InputError.

        weights: loaded weights, arrays by name (recipes run now), or None for the weights in the program.
        """
        if not isinstance(weights, Weights):
            weights = load_weights(weights, self.program, self.backend)
        bindings = self._addresses.of(weights)
        self._bindings, self._weights = (
            bindings,
            weights,
        )  # keep both: the addresses are valid while the weights live
        for body in self._bodies.values():
            body.bind(weights)
        return bindings

    # ── running ──

    def run_arrays(
        self,
        inputs: Sequence[Any],
        out: Sequence[NDArray[Any]] | None = None,
        *,
        times: NDArray[np.int64] | None = None,
        ring: _core.EventRing | None = None,
        stop: _core.Stop | None = None,
    ) -> list[NDArray[Any]]:
        """Run on arrays in the program's order. Return the outputs in that order.

        inputs: read in place if they are C-contiguous and aligned, otherwise copied.
        out:    arrays for the outputs, C-contiguous with matching dtype and shape. Default: new arrays.
        times:  an int64 array with an element for each call of the plan, which receives nanoseconds.
        stop:   a flag that cancels this run after its current kernel.
        Raises InputError, and RunError if the run fails or is cancelled.
        """
        if ring is not None:
            self._ring = ring  # the core knows a ring by its address, which no other may get
        bindings = self._bindings or self.bind(None)
        self._check_ranks()
        outputs = tuple(np.empty(*m) for m in self._output_forms) if out is None else tuple(out)
        if self._takes_arrays and len(inputs) == len(self._inputs) and len(outputs) == len(self._outputs):
            self._check_times(times)
            if self._bodies:
                with RUN.of(self._weights, stop):
                    result = self._core.run_arrays(bindings, tuple(inputs), outputs, times, ring, stop)
            else:
                result = self._core.run_arrays(bindings, tuple(inputs), outputs, times, ring, stop)
            if result is None:
                self._check_ranks()
                return list(outputs)
            if not isinstance(result, int):
                raise self._failed(result)
        return self._run_checked(bindings, inputs, outputs, times, ring, stop)

    def run(
        self,
        inputs: Mapping[str, Any],
        weights: Weights | Mapping[str, Any] | None = None,
        *,
        out: Mapping[str, DeviceBuffer] | None = None,
        stream: int | None = None,
    ) -> dict[str, DeviceBuffer]:
        """Run on buffers, arrays or device tensors by name. Return output buffers by name: new ones, or those of ``out``.

        weights: bound as by ``bind``. None uses the bound weights. A ``bind`` of another thread does not affect this run.
        stream:  number of a stream of the device, such as ``torch.cuda.Stream.cuda_stream``. The run is queued on it, and this call
                 returns at once. Without a stream the call waits for the run.
        Raises the same errors as ``run_arrays``.
        """
        bindings = self._bindings if weights is None and self._bindings is not None else self.bind(weights)
        for name in [n for n in inputs if n not in self._in_names] + [
            n for n in self._in_names if n not in inputs
        ]:
            names = ", ".join(self._in_names) or "none"
            problem = "has no input of that name" if name in inputs else "an input is missing"
            raise InputError(self._who, problem, got=repr(name), do=f"Its inputs are: {names}.")
        waits = stream is None
        if not self.backend.stages:
            stream = None
        elif waits and any(lies_on_a_device(v) for v in inputs.values()):
            stream = self.backend.current_stream()  # the stream on which the tensors' library queues its work
        arguments = [self._arguments.buffer(inputs[s.name], s, stream) for s in self._inputs]
        outputs = {
            s.name: out[s.name] if out is not None and s.name in out else self._arguments.empty(s, stream)
            for s in self._outputs
        }
        for spec in self._outputs:
            self._arguments.result(outputs[spec.name], spec)
        self._run_memory(bindings, arguments, list(outputs.values()), stream=stream)
        if stream is not None:
            for buffer in (*arguments, *outputs.values()):
                buffer.native_handle.used_on(stream)
            if waits:
                self.backend.wait(stream)
                self._check_ranks()
            else:
                for buffer in outputs.values():
                    buffer.pending = stream
        return outputs

    def observe(self, inputs: Sequence[Any]) -> DeviceRecord:
        """Run once on arrays and return the device driver's record of the run. States are updated. Raises the errors of ``run_arrays``.

        On a CUDA device the first run records single launches; later runs record the plan's CUDA graph.
        """
        bindings = self._bindings or self.bind(None)
        if not self.backend.stages:
            return DeviceRecord(absent=f"{self.device} does not record its work.")
        open_library("cupti")
        observation = _core.Observation()
        if self._packs:
            return DeviceRecord(absent="A program with inputs or outputs below a byte is not recorded.")
        outputs = tuple(np.empty(*m) for m in self._output_forms)
        arrays = self._arguments.arrays(inputs, self._inputs)
        result = self._core.run_arrays(bindings, arrays, outputs, None, None, None, observation)
        if result is not None:
            assert isinstance(result, _core.Status), "arrays were made to fit"
            raise self._failed(result)
        return read(observation)

    def takes(self, tensors: dict[str, Any]) -> bool:
        """Return True if ``run_tensors`` accepts these tensors."""
        return self._tensor_run().fits(tensors)

    def run_tensors(
        self, tensors: dict[str, Any], *, stop: _core.Stop | None = None
    ) -> dict[str, Any] | None:
        """Run on dense tensors of one library that are on this device. Return new tensors of that library by name.

        This is one call into the core. On a device with streams the run is queued on the library's current stream, without waiting.
        Return None for other tensors, and for a library without DLPack's table of C functions; ``run`` accepts those or raises the
        reason. Raises RunError.
        """
        bindings = self._bindings or self.bind(None)
        on_tensors = self._on_tensors or self._tensor_run()
        if self._bodies:
            with RUN.of(self._weights, stop):
                outputs = on_tensors.run(bindings, tensors, stop)
        else:
            outputs = on_tensors.run(bindings, tensors, stop)
        if isinstance(outputs, _core.Status):
            raise self._failed(outputs)
        return outputs

    def _tensor_run(self) -> _core.TensorRun:
        if self._on_tensors is None:
            self._on_tensors = tensor_run(
                self._core, self._inputs, self._outputs, self.backend, self._borrows_arena
            )
        return self._on_tensors

    def cancel(self) -> None:
        """Cancel all current runs after their current kernel. Each raises RunError."""
        self._core.cancel()

    def close(self) -> None:
        """Cancel all current runs, wait for them, and free the arenas. Later runs raise RunError. May be called again."""
        self._core.close()
        for body in self._bodies.values():
            body.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def twin(self) -> Executor:
        """Return an executor of the same plan and weights with its own states."""
        twin = Executor(
            self.program,
            self.backend,
            threads=self.threads,
            entry=self.entry.name,
            policy=SETTLED,
            communicator=self._communicator,
            store=self.store,
        )
        twin.bind(self._weights)
        return twin

    # ── facts ──

    @property
    def output_names(self) -> tuple[str, ...]:
        """Return the output names in the program's order."""
        return self._out_names

    @property
    def core(self) -> _core.Executor:
        """Return the core's executor, for callers that run it directly."""
        return self._core

    @property
    def weights(self) -> Weights | None:
        """Return the bound weights."""
        return self._weights

    @property
    def counters(self) -> dict[str, int]:
        """Counts since the executor was created: runs, dispatches (kernel calls), prepared (kernels looked up or compiled), allocations
        (blocks of device memory), copies (of buffers), contexts (arenas), sent and fetched (bytes copied to and from the device).
        """
        counters = self._core.counters
        names = ("runs", "dispatches", "prepared", "allocations", "copies", "contexts", "sent", "fetched")
        counts = {n: int(getattr(counters, n)) for n in names}
        counts["copies"] += self._arguments.converted
        return counts

    @property
    def run_bytes(self) -> int:
        """Return the bytes of device memory that a run needs besides weights and states: intermediate values, workspaces of libraries, and
        copies of host arrays. Branches and loops need more.
        """
        return self._core.run_bytes(self.backend.stages)

    @property
    def has_bodies(self) -> bool:
        """Return True if the program has branches or loops, whose executors have memory of their own."""
        return bool(self._bodies)

    @property
    def device(self) -> DeviceId:
        """Return the device that the executor runs on."""
        return self.backend.device

    @property
    def implementations(self) -> list[str]:
        """Return, for each call of the plan, the library's chosen implementation; empty for generated code."""
        return self._core.implementations

    def called_functions(self) -> list[CalledFunction | None]:
        """Return the function that each call of the plan runs, read from memory, and what the program holds; None for a library's call.

        It costs nothing in runs: the core reads the addresses that its recordings call.
        """
        return called_functions(self.program, self.plan, self._core)

    def text_digests(self) -> list[tuple[int, str, str]]:
        """Return, for each loaded binary, its index and the sha256 of its executable code in memory and in the program."""
        return text_digests(self.program, self._modules)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return lines for a receipt: bytes copied to and from the device, use of CUDA graphs, and reasons for running without one."""
        counters = self._core.counters
        if not self.backend.stages:
            return ()
        copied = f"{counters.sent} bytes were copied to {self.device} and {counters.fetched} back, in {counters.runs} runs"
        return (copied, *self.backend.notes())

    # ── internal ──

    def _run_checked(
        self,
        bindings: _core.WeightBindings,
        inputs: Sequence[Any],
        outputs: Sequence[NDArray[Any]],
        times: NDArray[np.int64] | None,
        ring: _core.EventRing | None,
        stop: _core.Stop | None,
    ) -> list[NDArray[Any]]:
        """Run after checking and converting the arrays. Called for arrays that the core did not accept, and for devices without host arrays."""
        if len(inputs) != len(self._inputs) or len(outputs) != len(self._outputs):
            counts = f"{len(self._inputs)} inputs and {len(self._outputs)} outputs"
            raise InputError(
                self._who,
                f"takes {counts}",
                got=f"{len(inputs)} and {len(outputs)}",
                do="Give one array for each.",
            )
        for array, spec in zip(outputs, self._outputs, strict=True):
            self._arguments.fit(TensorSpec(array.shape, dtype_of(array)), spec, f"out array {spec.name!r}")
            if not array.dtype.isnative:
                raise InputError(
                    self._who,
                    f"out array {spec.name!r} has the other byte order than this machine",
                    got=array.dtype.str,
                    do="Pass an array of native byte order.",
                )
            if not array.flags.c_contiguous or not array.flags.writeable or not array.flags.aligned:
                raise InputError(
                    self._who,
                    f"out array {spec.name!r} must be C-contiguous, aligned and writeable",
                    do="Give an array from np.empty.",
                )
        if self.backend.stages and not self._packs:
            outputs = tuple(outputs)
            result = self._core.run_arrays(
                bindings, self._arguments.arrays(inputs, self._inputs), outputs, times, ring, stop
            )
            if result is not None:
                assert isinstance(result, _core.Status), "arrays were made to fit"
                raise self._failed(result)
            self._check_ranks()
            return list(outputs)
        arguments = [self._arguments.buffer(a, s) for a, s in zip(inputs, self._inputs, strict=True)]
        in_place = self._on_host and not self._packs
        if in_place:
            results = [self._arguments.wrapped(a, s) for a, s in zip(outputs, self._outputs, strict=True)]
        else:
            results = [DeviceBuffer.empty(s, self.backend) for s in self._outputs]
        self._run_memory(bindings, arguments, results, times, ring, stop)
        if not in_place:
            for array, buffer in zip(outputs, results, strict=True):
                np.copyto(array, buffer.to_numpy())
        return list(outputs)

    def _run_memory(
        self,
        bindings: _core.WeightBindings,
        inputs: list[DeviceBuffer],
        outputs: list[DeviceBuffer],
        times: NDArray[np.int64] | None = None,
        ring: _core.EventRing | None = None,
        stop: _core.Stop | None = None,
        stream: int | None = None,
    ) -> None:
        self._check_times(times)
        self._check_ranks()
        addresses = [b.address for b in inputs], [b.address for b in outputs]
        with RUN.of(self._weights, stop):
            status = self._core.run_memory(bindings, *addresses, times, ring, stop, stream)
        if status is not None:
            raise self._failed(status)
        self._check_ranks()

    def run_addresses(
        self, inputs: list[int], outputs: list[int], weights: Weights | None, stop: _core.Stop | None
    ) -> _core.Status | None:
        """Run a body on memory of the run that it is part of. Return the core's status of a failure.

        weights: those of that run; None for the bound ones.
        """
        bindings = self._bindings if weights is None else self._addresses.of(weights)
        return self._core.run_memory(bindings or self.bind(None), inputs, outputs, None, None, stop, None)

    def _check_times(self, times: NDArray[np.int64] | None) -> None:
        if times is None:
            return
        calls = len(self.plan.calls)
        if times.dtype != np.int64 or times.ndim != 1 or not times.flags.c_contiguous or times.size < calls:
            raise InputError(
                self._who,
                f"times must be a contiguous array of {calls} int64",
                got=f"{times.dtype}{list(times.shape)}",
                do="Give np.zeros(calls, np.int64).",
            )

    def _check_ranks(self) -> None:
        """Raise RankLost if a rank ended during the run, whose results are then undefined."""
        if self._communicator is not None:
            self._communicator.check()

    def _failed(self, status: _core.Status) -> RunError | InputError:
        self._check_ranks()
        if status.code == "overlapping":
            return InputError(
                self._who, "has outputs that overlap other arrays", got=status.message, do=status.advice
            )
        kind = OutOfMemory if status.code == "no_memory" else RunError
        message, advice = check_message(self.plan.calls, status.message) or (status.message, status.advice)
        return kind(self._who, "failed while running", got=message, do=advice)
