"""InferenceSession: a model on an engine, with a plan before the first run and a receipt after it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..arguments import check_argument
from ..compiler.transfers import check_placement, check_plan
from ..decisions import Reason
from ..errors import EngineUnavailable, InputError, PolicyError, StrictError
from ..fault_reports import report_folders, reports_into
from ..faults import contained
from ..frontends.lowered_parts import AUTOMATIC_ROWS, MAX_ROWS, LoweredParts
from ..ir.shapes.bounds import Bounds, bounds_of
from ..policies import ExecutionPolicy, KernelPolicy, Policy
from ..printable import logger
from ..profiler import trace
from ..profiler.receipt import Receipt, confirm
from ..program.plan import Plan
from ..progress import shown
from ..protocols import (
    Array,
    Evidence,
    Executable,
    HasRegions,
    HoldsMemory,
    ModelSource,
    ReportsDecisions,
    ReportsFallbacks,
    ReportsKernels,
    RunsTensors,
    TakesTensors,
)
from ..storage.store import Store
from ..targets import DeviceId
from ..types import TensorSpec
from .execution.binding import IOBinding
from .execution.contexts import Contexts, contexts_limit
from .execution.examples import examples_of, measuring_feeds
from .execution.futures import AsyncRuns
from .execution.inputs import Feeds, on_a_device
from .like_onnxruntime import NodeArg, no_options, node_args, pick, policy_of
from .models.model_cache import fixed_known
from .models.modules import open_any
from .models.node_facts import NodeDetail, node_details
from .select import Selection, select
from .selection.policy_warnings import policy_warnings
from .selection.request import half, session_request
from .self_check import QUESTION, SelfCheck
from .session_plan import REGION, detailed, first_plan, with_kernels
from .transfers import check_model

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import nn
    from torch.export import ExportedProgram

    from ..program.lock import Lock

__all__ = ["InferenceSession"]

_log = logger("xpuruntime.session")
_Result = TypeVar("_Result")


class InferenceSession:
    """A model on an engine and a device that you name or that measuring selects.

    Parameters
    ----------
    model:         path to an ``.onnx`` or OpenVINO ``.xml`` file, the bytes of an ONNX file, an ``onnx.ModelProto``, an ``nn.Module`` in
                   eval mode (with ``example_inputs``), a ``torch.export.ExportedProgram``, or a compiled program (``.npubin``), which is not recompiled.
    device:        ``cpu``, ``cuda:0``, ``npu``, ... If given, it must be available; otherwise the session raises. Default: policy, XPU_DEVICE,
                   built-in order.
    engine:        ``onnxruntime`` (``onnxrt``), ``openvino``, ... or ``auto``. ``backend`` is an alias.
    policy:        a policy file, mapping or ``Policy`` with execution and kernel fields.
    kernel_policy, exec_policy: one half each; they take precedence over ``policy``.
    fp16:          use float16 if the engine supports it; otherwise warn and keep the model's own precision (an error if strict).
    strict:        raise if the engine silently falls back, or if evidence differs from the plan.
    cache_dir:     folder of the store; default XPU_CACHE_DIR.
    threads:       CPU threads; default XPU_NUM_THREADS, else every core available to this process.
    contexts:      how many runs may be in progress at a time (at most 1024); others wait. Default: every core available to this process.
    sess_options, providers, provider_options: as for ONNX Runtime's own session (``like_onnxruntime`` gives their meaning here).
    lock:          a lock (``xpu lock``, ``lock()``) or its file: nothing is measured and nothing is chosen. It excludes every argument that chooses.
    example_inputs, dynamic_shapes: arguments for tracing a PyTorch module, as for ``extract_ir``. Engines are also measured on
                   ``example_inputs``; for a file, give tensors by input name or in its order. Without them inputs are seeded.
    on_progress:   receives a line of text for each step of opening. Without it, a terminal shows one if opening takes longer than 2 s
                   (``XPU_PROGRESS=off``: never).

    Raises
    ------
    ModelError, InputError, PolicyError, UnavailableError (with its Decision; LockError with the changes), BuildError (BuildTimeout after the policy's ``compile_timeout_s``),
    StrictError, StoreError.

    A session may be used by several threads at once. A run that exceeds the policy's ``run_timeout_s`` is stopped. Close the session, or use it as a
    context manager, to free the engine early.
    """

    @contained("InferenceSession")
    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | ModelProto | nn.Module | ExportedProgram,
        sess_options: Any = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        device: str | DeviceId | None = None,
        engine: str | None = None,
        backend: str | None = None,
        policy: Policy | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        kernel_policy: KernelPolicy | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        exec_policy: ExecutionPolicy | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        fp16: bool = False,
        strict: bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        threads: int | None = None,
        contexts: int | None = None,
        example_inputs: Any = None,
        dynamic_shapes: Any = None,
        lock: Lock | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        on_progress: Callable[[str], object] | None = None,
    ) -> None:
        began = time.perf_counter()
        if on_progress is not None:
            check_argument(
                "session", "on_progress", on_progress, Callable, "a function", "Give a function of text."
            )
        opened = None
        if lock is None:
            theirs, their_threads = policy_of(
                sess_options, providers, provider_options, engine_named=bool(engine or backend)
            )
            request = session_request(
                device=device,
                engine=engine,
                backend=backend,
                policies=(theirs, half(kernel_policy, "kernel"), half(exec_policy, "execution"), policy),
                fp16=fp16,
                strict=strict,
                threads=their_threads if threads is None else threads,
            )
            self._threads_requested = threads
        else:
            from .locks.opening import open_lock

            choosing = {
                "sess_options": sess_options, "providers": providers, "provider_options": provider_options, "device": device,
                "engine": engine, "backend": backend, "policy": policy, "kernel_policy": kernel_policy, "exec_policy": exec_policy,
                "fp16": fp16, "threads": threads,
            }  # fmt: skip
            opened = open_lock(lock, choosing)
            request = opened.request(strict)
            self._threads_requested = opened.lock.original_threads
        lock_warnings: tuple[str, ...] = ()
        store = Store(cache_dir)
        execution = request.execution
        used = store if request.caching else Store(mode="off")
        subject = _subject(model)
        with (
            reports_into(*report_folders(store)),
            shown(f"opening {subject}", subject, on_progress),
        ):
            # A part that PyTorch computes faster stays PyTorch's operator.
            rows = AUTOMATIC_ROWS if request.divides_modules else MAX_ROWS
            parts = LoweredParts(rows, draws=request.names_native)
            self._model = open_any(model, example_inputs, dynamic_shapes, used, parts)
            if opened is not None and (changes := opened.validate(self._model, request)):
                from .lock_checks.programs import changes_text

                lock_warnings = (f"lock {opened.name} is not used: {changes_text(changes)}",)
                request, execution, opened = opened.fallback(strict), opened.fallback(strict).execution, None
            source = self._model
            if request.static_shape:
                source = fixed_known(self._model, execution.fixed_shapes or {}, used)
            check_model(f"session({self._model.name!r})", execution.transfers, source)
            _check_parallel(f"session({self._model.name!r})", execution.parallel)
            _check_cache(f"session({self._model.name!r})", execution.kv_cache, request.demanded)
            examples = examples_of(source, example_inputs)
            module = (
                model if self._model.format == "graph" and not hasattr(model, "graph_signature") else None
            )
            word = execution.self_check or "first_open"
            check = SelfCheck(word, module, example_inputs, examples, began)
            selection = select(source, replace(request, examples=examples, check=check), store)
        self._loaded = selection.loaded
        self._executable = selection.loaded.executable
        # Looked up once, so that a run pays one comparison for an ability that the engine lacks.
        runs = self._executable if isinstance(self._executable, RunsTensors) else None
        takes = self._executable if isinstance(self._executable, TakesTensors) else None
        on_device = runs is not None and runs.on_device
        self._run_tensors = runs.run_tensors if runs is not None and on_device else None
        self._try_tensors = runs.try_run_tensors if runs is not None and on_device else None
        self._takes = None if takes is None else takes.takes
        self._input_info = self._executable.inputs
        self._output_info = self._executable.outputs
        who = f"session({self._model.name!r})"
        self._feeds = Feeds(who, self._input_info, _bounds(source), source.defaults)
        limit = contexts_limit(contexts)
        self._contexts = Contexts(who, self._executable, limit, execution.run_timeout_s)
        self._async = AsyncRuns(self._contexts)
        self._names = tuple(s.name for s in self._output_info)
        self._count = itertools.count()  # next() is atomic, so runs of several threads are all counted
        self._count_reads = 0
        self._last: dict[str, Array] | None = None
        self._source = source
        self._details: dict[str, NodeDetail] | None = None
        self._chosen = selection.decisions
        self._request = request.released()
        plan = first_plan(self._model, request, selection, self._node_details)
        if opened is not None:
            try:
                decision = opened.confirm(self._model, plan, self._executable)
            except BaseException:
                self._executable.close()
                raise
            self._chosen = [*self._chosen, decision]
            plan = replace(plan, decisions=(*plan.decisions, decision))
        findings = (*lock_warnings, *policy_warnings(request.policy, self._model, plan))
        self._plan = replace(plan, warnings=(*plan.warnings, *findings))
        self._span = f"{selection.loaded.candidate.name}: {self._model.name}"
        warnings = (*selection.warnings, *findings, *self._inner_fallbacks())
        if execution.strict:
            self._be_strict(selection, self._evidence(self._strict_feeds(selection, examples)))
        if execution.transfers:
            try:
                check_plan(who, execution.transfers, self._plan)
                check_placement(who, execution.transfers, self._plan, self._evidence())
            except BaseException:
                self.close()
                raise
        if execution.run_timeout_s is not None and not self._contexts.stoppable:
            self.close()
            raise EngineUnavailable(
                who,
                f"run_timeout_s cannot be enforced: runs of {selection.loaded.candidate.name} cannot be stopped",
                do="Drop run_timeout_s, or name another engine.",
            )
        if execution.memory_bytes is not None:
            try:
                self._limit_memory(execution.memory_bytes)
            except BaseException:
                self.close()
                raise
        for warning in warnings:
            _log.warning("%s", warning)
        _log.info("%s", self._plan)
        if execution.autocast:
            _log.info("%s: the policy's autocast table is of training; precision decides here", who)

    def _limit_memory(self, size: int) -> None:
        """Apply the policy's ``memory_bytes``. Raises OutOfMemory, EngineUnavailable."""
        if not isinstance(self._executable, HoldsMemory):
            raise EngineUnavailable(
                self._feeds.who,
                f"memory_bytes cannot be enforced: {self._loaded.candidate.name} allocates memory itself",
                do="Drop memory_bytes, or name engine='native'.",
            )
        self._executable.limit_memory(size)

    def _be_strict(self, selection: Selection, placement: Mapping[str, Evidence]) -> None:
        who = f"session({self._model.name!r})"
        precision = next(d for d in selection.decisions if d.question == "precision")
        admitted = precision.chosen is not None and precision.chosen.code is Reason.FALLBACK
        broken = [] if admitted else [f"{c.name}: {c.reason}" for c in precision.rejected]
        integers = self._loaded.precision.is_integer
        broken += [
            f"{f.claim}: {f.seen}"
            for f in confirm(self._plan, placement)
            if not f.ok or (integers and not f.said and f.claim.startswith("computed in "))
        ]
        if broken:
            self.close()
            raise StrictError(
                who,
                "strict=True, and not everything runs as requested",
                got="; ".join(broken),
                do="Change the request, or drop strict to run with a warning.",
            )

    def _strict_feeds(
        self, selection: Selection, examples: Mapping[str, Array] | None
    ) -> dict[str, Array] | None:
        """Return inputs for a run whose evidence shows the arithmetic of a quantized model's products, or None if placement is enough."""
        if not selection.loaded.precision.is_integer:
            return None
        return measuring_feeds(selection.loaded.model, examples)[0]

    @property
    def input_info(self) -> tuple[TensorSpec, ...]:
        """Return name, shape and dtype of each input, in the model's order."""
        return self._input_info

    @property
    def output_info(self) -> tuple[TensorSpec, ...]:
        """Return name, shape and dtype of each output, in the model's order."""
        return self._output_info

    @property
    def model(self) -> ModelSource:
        """Return the model as it was opened."""
        return self._model

    @property
    def executable_model(self) -> ModelSource:
        """Return the model as the engine got it: fixed shapes make it differ from ``model``."""
        return self._source

    @property
    def executable(self) -> Executable:
        """Return the engine's form of the model, for tools that look inside a session."""
        return self._executable

    @property
    def memory(self) -> dict[str, int]:
        """Return bytes of the session's device, as the receipt does: ``weights``, ``states``, ``runs`` (the most that runs had at a time), ``peak``
        (the sum of these), ``bound`` (the least that weights, states and one run need) and ``limit`` (the policy's; 0 without one). Weights that
        other sessions share are counted in each. Empty for engines that do not report memory.
        """
        return dict(self._executable.memory) if isinstance(self._executable, HoldsMemory) else {}

    @property
    def plan(self) -> Plan:
        """Return the plan and its reasons: ``print(sess.plan)``, ``sess.plan.explain()``, ``sess.plan.to_json()``."""
        if (
            self._details is None
        ):  # lowering takes about as long as opening, so it waits until the plan is read
            self._plan = replace(self._plan, nodes=detailed(self._plan.nodes, self._node_details()))
        return self._plan

    def _node_details(self) -> dict[str, NodeDetail]:
        if self._details is None:
            self._details = node_details(self._source)
        return self._details

    @overload
    def run(
        self, inputs: Mapping[str, Any] | Sequence[Any] | None = None, /, **named: Any
    ) -> dict[str, Any]: ...
    @overload
    def run(
        self, names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: None = None, /
    ) -> list[Any]: ...
    def run(self, inputs: Any = None, feeds: Any = None, run_options: Any = None, /, **named: Any) -> Any:
        """Return outputs by name, as the same kind of tensor as the inputs (NumPy, or another DLPack library).

        inputs: a dictionary by name, or a list in the order of ``input_info``; keywords add to a dictionary.
        Tensors on the session's CUDA device are used in place, and outputs are made there. Such a run is queued on the caller's stream and returns at
        once. ONNX Runtime's form ``run(names, feeds)`` returns a list of the named outputs, or of all for None.
        Raises InputError for a wrong name, dtype, rank, shape or byte order, RunTimeout, RunCancelled, RunError with the vendor's text.
        """
        # Tensors of the device by name: without another call in between, see the engines' ``try_run_tensors``.
        tried = (
            self._try_tensors is not None
            and feeds is None
            and type(inputs) is dict
            and not named
            and trace.RING is None
        )
        if tried and (quick := self._try_tensors(inputs)) is not None:  # type: ignore[misc]
            next(self._count)
            return quick
        if feeds is not None:
            return pick(self._run(feeds, {}, None), inputs, run_options, self._feeds.who)
        return self._run(inputs, named, None, tried)

    def run_async(
        self, inputs: Mapping[str, Any] | Sequence[Any] | None = None, /, **named: Any
    ) -> Future[dict[str, Any]]:
        """Run in the background. ``cancel()`` of the Future also stops a run in progress; ``result()`` returns its outputs.

        The inputs are read when the run starts: do not write to them before it is done.
        """
        return self._async.start(lambda future: self._run(inputs, named, future))

    def _run(self, inputs: Any, named: dict[str, Any], token: Any, tried: bool = False) -> dict[str, Any]:
        """Run. tried: the device's own path was tried with these inputs, and does not take them."""
        if inputs is None:
            inputs = named
        elif type(inputs) is not dict:
            inputs = self._as_mapping(inputs, named)
        elif named:
            inputs = {**inputs, **named}
        if self._try_tensors is not None and not tried:
            quick = (
                self._try_tensors(inputs) if trace.RING is None else self._queued(self._try_tensors, inputs)
            )
            if quick is not None:
                next(self._count)
                return quick
        if self._run_tensors is not None and on_a_device(inputs):
            outputs_on_device = self._queued(self._run_tensors, inputs)
            next(self._count)
            return dict(zip(self._names, outputs_on_device, strict=True))
        if self._takes is not None and self._takes(inputs):
            feeds, to_caller = inputs, None
        else:
            feeds, to_caller = self._feeds.check(inputs)
        outputs: Any
        if trace.RING is None:
            outputs = self._contexts.run(feeds, token)
        else:
            outputs = trace.timed(self._span, self._contexts.run, feeds, token)
        self._last = feeds
        next(self._count)
        if type(outputs) is dict:  # by name already
            return outputs if to_caller is None else {n: to_caller(o) for n, o in outputs.items()}
        if to_caller is not None:
            outputs = [to_caller(o) for o in outputs]
        return dict(zip(self._names, outputs))  # noqa: B905  (strict= costs 0.1 us of a 5 us budget; engines promise the length)

    def _queued(self, run: Callable[[Any], _Result], inputs: Any) -> _Result:
        """Run on tensors of the device, as a span if there is a recording. The span ends when the work is queued."""
        if trace.RING is None:
            return run(inputs)
        return trace.timed(f"{self._span}, queued", run, inputs)

    def _as_mapping(
        self, inputs: Mapping[str, Any] | Sequence[Any], named: Mapping[str, Any]
    ) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return {**inputs, **named}
        # A bare tensor for a model with one input is unambiguous.
        bare = hasattr(inputs, "__dlpack__") and len(self._input_info) == 1
        if not bare and (not isinstance(inputs, Iterable) or isinstance(inputs, str | bytes)):
            raise InputError(
                self._feeds.who,
                "expects inputs by name, or a list in the model's order",
                got=type(inputs).__name__,
                do=f"Give {{{', '.join(f'{s.name!r}: ...' for s in self._input_info)}}}.",
            )
        return {**self._feeds.named([inputs] if bare else list(inputs)), **named}

    def receipt(self, *, times: bool = True) -> Receipt:
        """Return the receipt of past runs: the placement of this session and, with ``times``, times measured on the last inputs."""
        feeds = self._feeds.check(self._last)[0] if times and self._last is not None else None
        evidence = self._evidence(feeds)
        runs = next(self._count) - self._count_reads
        self._count_reads += 1
        return Receipt.write(self._as_run(), evidence, runs)

    def lock(self, *, on_mismatch: str = "error") -> Lock:
        """Return a lock of this session's choices, for ``InferenceSession(model, lock=...)``. With open shapes it covers those that were run.

        on_mismatch: if something that the lock pins has changed: ``error``, or ``policy`` to run under this session's policy without the lock.
        Raises LockError for a session that cannot be locked (no shapes run yet), PolicyError for another word.
        """
        from ..program.lock import ON_MISMATCH
        from .locks.making import lock_of

        if on_mismatch not in ON_MISMATCH:
            words = " or ".join(ON_MISMATCH)
            raise PolicyError(
                "lock", f"on_mismatch must be {words}", got=repr(on_mismatch), do=f"Give {words}."
            )
        return lock_of(
            self._model, self._request, self._loaded, self._plan, self._threads_requested, on_mismatch
        )

    def _as_run(self) -> Plan:
        """Return the plan with the kernel decisions of the last program: open shapes get their kernels at their first run."""
        plan = self.plan
        if isinstance(self._executable, ReportsKernels):
            plan = replace(plan, nodes=with_kernels(plan.nodes, self._executable.kernels))
        if not isinstance(self._executable, ReportsDecisions):
            return plan
        own = self._executable.decisions
        later = {d.question for d in own} & {QUESTION}  # a check that waited for shapes
        chosen = (d for d in self._chosen if d.question not in later)
        return replace(plan, decisions=(*chosen, *own))

    def _evidence(self, feeds: dict[str, Array] | None = None) -> dict[str, Evidence]:
        """Return each region's evidence."""
        if isinstance(self._executable, HasRegions):
            return self._executable.region_evidence(feeds)
        return {REGION: self._executable.evidence(feeds)}

    def _inner_fallbacks(self) -> list[str]:
        """Return where a vendor used something other than requested. An engine that reports its fallbacks is not queried for all of its evidence."""
        candidate = self._loaded.candidate
        if isinstance(self._executable, ReportsFallbacks):
            fallbacks = [(candidate.engine, f) for f in self._executable.fallbacks()]
        else:
            fallbacks = [(e.engine, f) for e in self._evidence().values() for f in e.fallbacks]
        return [f"{engine} on {candidate.device}: {f}" for engine, f in fallbacks]

    def get_inputs(self) -> list[NodeArg]:
        """Return ``input_info`` as ONNX Runtime's NodeArg."""
        return node_args(self._input_info)

    def get_outputs(self) -> list[NodeArg]:
        """Return ``output_info`` as ONNX Runtime's NodeArg."""
        return node_args(self._output_info)

    def io_binding(self) -> IOBinding:
        """Return a new IOBinding: memory that runs read and write in place."""
        borders = (self._input_info, self._output_info)
        return IOBinding(self._feeds.who, self._executable, self._feeds, self._contexts, borders)

    def run_with_iobinding(self, binding: IOBinding, run_options: None = None) -> None:
        """Run on the bound memory. Raises as ``run``."""
        no_options(run_options, self._feeds.who)
        do = "Give session.io_binding()."
        check_argument(self._feeds.who, "binding", binding, IOBinding, "an IOBinding", do)
        self._last = binding.run()
        next(self._count)

    def cancel(self) -> None:
        """Stop every run in progress and cancel those of ``run_async`` that wait: each raises RunCancelled. The session stays usable."""
        self._async.cancel()
        self._contexts.stop()

    def close(self) -> None:
        """Stop the runs in progress, wait for them, and free the engine's resources. Later runs raise RunError. May be called twice."""
        self._async.close()
        self._contexts.close()
        self._executable.close()
        self._last = None

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = ", ".join(
            dict.fromkeys(f"{r.engine} on {r.device}, {r.precision}" for r in self._plan.regions)
        )
        return f"<InferenceSession {self._model.name!r}: {where}>"


def _subject(model: object) -> str:
    """Return the name of a model that is not open yet: its file's or its class's."""
    return Path(os.fsdecode(model)).name if isinstance(model, str | os.PathLike) else type(model).__name__


def _bounds(model: ModelSource) -> Bounds:
    """Return the bounds of open dims of a model from PyTorch; a file has none."""
    return bounds_of(model.graph[0]) if model.format == "graph" else {}


def _check_parallel(who: str, parallel: Mapping[str, int] | None) -> None:
    """Raise PolicyError if a policy divides the model over several devices."""
    if any(count > 1 for count in (parallel or {}).values()):
        do = "Open a language model as a Generator, or leave parallel out."
        raise PolicyError(
            who, "cannot honor parallel: a session runs on one device", got=dict(parallel or {}), do=do
        )


def _check_cache(who: str, kv_cache: str | None, demanded: Mapping[str, Any]) -> None:
    """Raise PolicyError if a policy stores keys and values in another type. ``demanded``: fields with their origins."""
    if kv_cache not in (None, "model"):
        do = "Open a language model as a Generator, or leave kv_cache out."
        got = demanded.get("kv_cache", kv_cache)
        raise PolicyError(
            who, "cannot honor kv_cache: a session has no cache of keys and values", got=got, do=do
        )
