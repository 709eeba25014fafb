"""The functions of ``protocols.Engine`` for our own compiler and runtime, on CPUs and CUDA devices."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...decisions import Reason, Support
from ...errors import BuildError, FormatError, LockError, XpuError
from ...ir import Graph, Node
from ...ir.extensions import LEFT_TO_PYTORCH, is_complex_tensor, of_an_extension
from ...plugins.registered import registered_kernels
from ...program.program import CompiledProgram
from ...protocols import Artifact, EngineRequest, ModelSource
from ...runtime.device import cpu, cuda, open_library
from ...runtime.execution.demands import broken_rule
from ...runtime.library_versions import reported_version
from ...storage.code_digest import code_digest
from ...targets import DeviceId
from ...types import DType
from ..models.programs import buckets_of
from .devices import devices, version
from .executable import NativeExecutable
from .explained_program import PlannedProgram
from .library_refusals import kernel_policy
from .model import is_settled, native_model, sized_model
from .program_source import Compiled, Given
from .targets import reaches, target_of

if TYPE_CHECKING:
    from ...compiler.locked import KernelLock
    from ...compiler.times import KernelTimes

__all__ = [
    "TIMES",
    "WITHOUT_PASSES",
    "build",
    "compiled_graph",
    "compiler_facts",
    "devices",
    "fingerprint",
    "load",
    "machine_facts",
    "recorded",
    "recorded_lock",
    "supports",
    "takes_options",
    "times_of",
    "version",
]

_MOST_BUCKETS = 4096
_VARYING = ("cublasLt", "cudnn")
"""Libraries whose variants a measurement may choose. Another version has other variants under the same words."""
WITHOUT_PASSES = "without_passes"
"""The engine option that names passes to leave out of the request's optimization level, separated by commas."""
SEED = "seed"
"""The engine option with the seed of random ops; 0 without it."""
_SEED_DIGITS = len(str((1 << 63) - 1))
TIMES = "kernel_times"
"""The engine option that names a file of measured times (``xpu tune``)."""
_TRIAL_SIZES = (640, 576, 64, 1)
"""Sizes for which a model is imported to see if it depends on sizes only: an image's, a voice detector's window, a sequence's, a batch's."""
PRECISIONS = (DType.FLOAT64, DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


def supports(model: ModelSource, request: EngineRequest) -> Support:
    """Return whether the request can be met and the model can be lowered to the IR. Kernels are chosen only at build."""
    if not (answer := reaches(request.device)):
        return answer
    if model.format not in ("onnx", "graph", "program"):
        return Support.no(
            Reason.FORMAT_UNSUPPORTED,
            f"the native engine reads ONNX, got {model.format}",
            do="Give the ONNX file.",
        )
    if not (answer := takes_options(request)):
        return answer
    if model.format == "program":
        return _settled(model, request)
    if request.precision is not None and request.precision not in PRECISIONS:
        names = ", ".join(p.value for p in PRECISIONS)
        return Support.no(
            Reason.PRECISION_UNSUPPORTED,
            f"the native engine computes in {names}, not {request.precision.value}",
        )
    return _ops(model)


def takes_options(request: EngineRequest) -> Support:
    """Return whether the options of a request are ours and have valid values."""
    known = ("shape_buckets", SEED, TIMES, WITHOUT_PASSES)
    unknown = [name for name in request.options if name not in known]
    if unknown:
        return Support.no(
            Reason.OPTION_UNKNOWN,
            f"the native engine's options are {', '.join(known)}; got {', '.join(unknown)}",
            do="Remove it; kernels are chosen by a KernelPolicy.",
        )
    count = request.options.get("shape_buckets", "1")
    if not (count.isascii() and count.isdigit() and 1 <= int(count[:8]) <= _MOST_BUCKETS):
        return Support.no(
            Reason.OPTION_UNKNOWN,
            f"shape_buckets must be a number from 1 to {_MOST_BUCKETS}, got {count!r}",
            do="It is how many programs a session with open shapes keeps.",
        )
    seed = request.options.get(SEED, "0")
    if not (seed.isascii() and seed.isdigit() and len(seed) <= _SEED_DIGITS and int(seed) < 1 << 63):
        return Support.no(
            Reason.OPTION_UNKNOWN,
            f"{SEED} must be a number from 0 to 2**63 - 1, got {seed!r}",
            do="It is the seed of the random numbers that the model draws.",
        )
    if WITHOUT_PASSES in request.options:
        from ...passes import PASSES

        names = [p.name for p in PASSES]
        wrong = [n for n in _left_out(request) if n not in names]
        if wrong or not _left_out(request):
            why = f"{WITHOUT_PASSES} must name passes, separated by commas, got {', '.join(wrong) or 'none'}"
            return Support.no(Reason.OPTION_UNKNOWN, why, do=f"The passes are {', '.join(names)}.")
    if TIMES in request.options and request.tune is not None:
        why = f"{TIMES} and tune exclude each other: the file has what was measured"
        return Support.no(Reason.OPTION_UNKNOWN, why, do="Drop one of the two.")
    try:
        times_of(request)
    except FormatError as error:
        why = f"{TIMES}: {error.who} {error.what}: {error.got}"
        return Support.no(Reason.OPTION_UNKNOWN, why, do=error.do)
    return Support.yes()


def _settled(model: ModelSource, request: EngineRequest) -> Support:
    """Return whether the request agrees with everything that was fixed when the program was compiled."""
    program: CompiledProgram = model.graph
    if request.precision not in (None, model.precision):
        return Support.no(
            Reason.PRECISION_UNSUPPORTED,
            f"the program was compiled for {model.precision.value}",
            do="Compile the model again with another precision.",
        )
    if SEED in request.options:
        why = f"{SEED} has no effect on a program that is compiled already"
        return Support.no(Reason.OPTION_UNKNOWN, why, do="Open the model that it was compiled from.")
    for option, argument in ((TIMES, "times"), (WITHOUT_PASSES, "passes")):
        if option in request.options:
            why = f"{option} has no effect on a program that is compiled already"
            return Support.no(Reason.OPTION_UNKNOWN, why, do=f"Give it to compile({argument}=) instead.")
    if request.tune is not None:
        why = "tune has no effect on a program that is compiled already: its kernels are fixed"
        return Support.no(Reason.OPTION_UNKNOWN, why, do="Open the model that it was compiled from.")
    plans = [p for e in program.entries for p in e.plans if p.target.partition(":")[0] == request.device.kind]
    if broken := broken_rule(program, plans, kernel_policy(request)):
        return Support.no(
            Reason.FORBIDDEN,
            broken,
            do="Compile the model again with this policy, or drop the demand.",
        )
    return Support.yes()


def _ops(model: ModelSource) -> Support:
    try:
        graph = native_model(model).graph
    except XpuError as error:
        return Support.no(Reason.OP_UNSUPPORTED, f"the model cannot be lowered: {error.what}", do=error.do)
    if not is_settled(graph) and _settles(model, graph):
        return Support.yes()
    for value in graph.inputs:
        if value.spec is not None and value.spec.dtype.is_complex:
            return Support.no(
                Reason.DTYPE_UNSUPPORTED,
                f"input {value.name!r} is {value.spec}, and native programs have real tensors only",
                do=_COMPLEX_INPUT if model.format == "graph" else "Leave engine out.",
            )
    known = frozenset[str]().union(*(s.symbols for s in graph.input_specs))
    for node in graph.nodes:
        name = node.sources[0].name if node.sources else node.name
        if node.op == "opaque":
            faulty = any(str(node.attrs["reason"]) in n.undeclared for n in model.nodes)
            return Support.no(
                Reason.OP_UNSUPPORTED,
                _no_form(node),
                do="Correct the attribute, or export the model again."
                if faulty
                else _elsewhere(model, graph, node),
            )
        for spec in (v.spec for v in node.outputs if v.spec is not None):
            if spec.symbols - known:
                return Support.no(
                    Reason.SHAPE_UNSUPPORTED,
                    f"the shape of {name}'s result is known only at run time: {spec}; native programs have static shapes",
                    do=_elsewhere(model, graph, node),
                )
    return Support.yes()


def _elsewhere(model: ModelSource, graph: Graph, node: Node) -> str:
    """Return what to do about a node that the native engine does not have."""
    if model.format == "graph":
        if is_complex_tensor(node):
            return _COMPLEX_RESULT
        if of_an_extension(graph, node):
            return f"{LEFT_TO_PYTORCH}, or write it with PyTorch's own ops."
        if graph.states:  # such a model is not divided over engines
            names = ", ".join(s.name.removesuffix(".state") for s in graph.states)
            return f"{LEFT_TO_PYTORCH}. Or pass what the module keeps ({names}) as inputs, and return it: then a session leaves this op to PyTorch."
        return "Leave engine out, or pass exec_policy=ExecutionPolicy(allow_fallback='cpu'): PyTorch then computes the nodes of its own operators."
    return "Use a vendor engine for this model."


_COMPLEX_INPUT = (
    "Pass torch.view_as_real(x) and call torch.view_as_complex(x) in the module, or leave engine out."
)
_COMPLEX_RESULT = (
    "Use torch.view_as_real of the tensor, or leave engine out: PyTorch then computes this part."
)


def _no_form(node: Node) -> str:
    if is_complex_tensor(node):
        return f"{node.attrs['reason']}, and native programs have real tensors only"
    name = node.sources[0].name if node.sources else node.name
    return f"{node.attrs['op_type']} ({name}) has no form in the IR: {node.attrs['reason']}"


def _settles(model: ModelSource, graph: Graph) -> bool:
    """Return True if some sizes of the inputs make the model one that can be compiled: it is imported again for each set of sizes."""
    symbols = frozenset[str]().union(*(s.symbols for s in graph.input_specs))
    for size in _TRIAL_SIZES if symbols else ():
        try:
            if is_settled(sized_model(model, dict.fromkeys(symbols, size)).graph):
                return True
        except XpuError:  # the model does not accept this size
            continue
    return False


def fingerprint(request: EngineRequest) -> dict[str, str]:
    """Return the instruction set of the generated code, and the compiler's own digest: a changed kernel makes another program."""
    facts = {"target": target_of(request.device), "version": __version__, **compiler_facts()}
    if request.kernels is not None and registered_kernels():
        from ...kernels.user.kernel import named_digests

        if users := named_digests(kernel_policy(request)):
            facts["user_kernels"] = json.dumps(users, sort_keys=True)
    if TIMES in request.options and request.locked is None:
        facts[TIMES] = times_of(request).digest
    if request.tune is not None and request.locked is None:
        facts["tune"] = json.dumps(machine_facts(request.device), sort_keys=True)
    return facts


def compiler_facts() -> Mapping[str, str]:
    """Return the facts of this machine and package that decide the generated code."""
    # Only a compiler named by the user counts; the default is not part of the request.
    return {"compiler": _compiler_digest(), "cxx": os.environ.get("CXX", "")}


def machine_facts(device: DeviceId) -> dict[str, str]:
    """Return the facts of this machine and package that measured times depend on: device, driver, releases, libraries whose variants are
    measured.
    """
    facts = {"xpuruntime": __version__, "compiler": _compiler_digest()[:16]}
    if device.kind != "cuda":
        return facts | {"device": cpu().model}
    report = cuda()
    gpu = next((d for d in report.devices if d.index == device.index), None)
    facts |= {"device": "" if gpu is None else gpu.name, "driver": report.driver_version}
    versions = {name: reported_version(open_library(name)) for name in _VARYING}
    return facts | {name: version for name, version in versions.items() if version}


def _left_out(request: EngineRequest) -> list[str]:
    """Return the passes that the option ``without_passes`` names, each once."""
    names = (n.strip() for n in request.options.get(WITHOUT_PASSES, "").split(","))
    return list(dict.fromkeys(n for n in names if n))


def times_of(request: EngineRequest) -> KernelTimes:
    """Return the measured times that the option ``kernel_times`` names, with what is different here. Raises FormatError."""
    from ...compiler.times import KernelTimes

    if TIMES not in request.options:
        return KernelTimes()
    times = KernelTimes.load(request.options[TIMES])
    return times.compared(machine_facts(request.device), request.threads)


def _compiler_digest() -> str:
    """Return the sha256 of every file that decides the generated code."""
    return code_digest("ir", "passes", "kernels", "codegen", "compiler", "frontends")


def build(model: ModelSource, request: EngineRequest) -> Artifact:
    """Return the program of a model with static shapes. With symbolic shapes the artifact is empty, and each set of shapes is compiled at its first run.

    Raises BuildError.
    """
    if model.format == "program":
        return Artifact("native", b"", False)
    source = native_model(model)
    if source.graph.symbols:
        return Artifact("native", b"", False)
    return Artifact("native", compiled_bytes(model, request, {}), True)


def load(artifact: Artifact, model: ModelSource, request: EngineRequest) -> NativeExecutable | PlannedProgram:
    """Load an artifact. Raises BuildError."""
    if model.format == "program":
        if model.plan_only:
            return PlannedProgram(model, request)
        return NativeExecutable(model, request, Given(model.graph, buckets_of(model.graph)))
    program = None
    if artifact.blob:
        try:
            program = CompiledProgram.from_bytes(artifact.blob)
        except FormatError as error:
            raise BuildError(
                f"native, model {model.name}",
                "cannot read the kept program",
                got=str(error),
                do="It is built again.",
            ) from error
    programs = Compiled(model, request, program, lambda asked, shapes: compiled(model, asked, shapes))
    return NativeExecutable(model, request, programs)


def compiled(model: ModelSource, request: EngineRequest, shapes: Mapping[str, int]) -> CompiledProgram:
    """Compile a model for one set of sizes. Raises BuildError with the text of the failing part, LockError."""
    from ...compiler.locked import KernelLock

    return _compiled(model, request, shapes, None if request.locked is None else KernelLock(request.locked))


def recorded(
    model: ModelSource, request: EngineRequest, shapes: Mapping[str, int], times: KernelTimes | None = None
) -> tuple[CompiledProgram, dict[str, str]]:
    """Compile as ``compiled``, with the times that a program was measured with. Return the program and the kernel of each call, for a lock.

    Raises BuildError.
    """
    program, lock = recorded_lock(model, request, shapes, times=times)
    return program, dict(lock.kernels)


def recorded_lock(
    model: ModelSource,
    request: EngineRequest,
    shapes: Mapping[str, int],
    kernels: Mapping[str, str] | None = None,
    times: KernelTimes | None = None,
) -> tuple[CompiledProgram, KernelLock]:
    """Compile as ``compiled`` with the given kernels, or record the choices. Return the program and its ``KernelLock``. Raises BuildError.

    times: decide instead of those of the option ``kernel_times``. Nothing is measured.
    """
    from ...compiler.locked import KernelLock

    lock = KernelLock(kernels)
    return _compiled(model, replace(request, locked=None), shapes, lock, times), lock


def _compiled(
    model: ModelSource,
    request: EngineRequest,
    shapes: Mapping[str, int],
    lock: KernelLock | None,
    times: KernelTimes | None = None,
) -> CompiledProgram:
    try:
        source = sized_model(model, shapes)
        if reason := next(map(_no_form, (n for n in source.graph.nodes if n.op == "opaque")), ""):
            sizes = ", ".join(f"{name} = {size}" for name, size in shapes.items()) or "static"
            do = "Give inputs of other sizes, or use a vendor engine for this model."
            raise BuildError(f"native, model {model.name}", reason, got=f"sizes {sizes}", do=do)
        if request.tune is None or lock is not None:
            return compiled_graph(source.graph, request, lock, shapes, source.weights, times)
        from ..tuning.on_build import (
            TunedSubject,
            tuned_program,
        )  # imports the compiler, which devices() does without

        subject = TunedSubject(
            model.name, source.weights, request.device, request.threads, machine_facts(request.device),
            invariant=kernel_policy(request).demands_batch_invariance(), store=request.store,
        )  # fmt: skip

        def compile_timed(record: KernelLock | None, times: KernelTimes | None) -> CompiledProgram:
            return compiled_graph(source.graph, request, record, shapes, source.weights, times)

        return tuned_program(compile_timed, subject, request.tune)
    except (BuildError, LockError):
        raise
    except XpuError as error:
        raise BuildError(
            f"native, model {model.name}", f"{error.who}: {error.what}", got=error.got, do=error.do
        ) from error


def compiled_graph(
    graph: Graph,
    request: EngineRequest,
    lock: KernelLock | None,
    shapes: Mapping[str, int] | Sequence[Mapping[str, int]] = (),
    weights: Mapping[str, Any] | None = None,
    times: KernelTimes | None = None,
) -> CompiledProgram:
    """Compile the graph of a model or of one region as the request demands. Raises the errors of ``compile``.

    times: measured times instead of those of the option ``kernel_times``.
    """
    from ...compiler import compile as compile_graph
    from ...compiler.resolve import resolve_target
    from ...passes import expand_random
    from ...policies import ExecutionPolicy, Policy, Resolved

    if seed := int(request.options.get(SEED, "0")):
        graph = expand_random.run(graph, seed=seed)
    target = resolve_target(target_of(request.device))
    target.here = True
    execution = ExecutionPolicy(
        precision=None if request.precision is None else request.precision.value,
        optimization_level=request.optimization,
    )
    return compile_graph(
        graph,
        target=target,
        policy=Resolved(Policy(kernel=kernel_policy(request), execution=execution), {}),
        shapes=shapes,
        passes=[f"-{name}" for name in _left_out(request)] or None,
        weights=weights,
        times=times or times_of(request) if lock is None or lock.recording else None,
        lock=lock,
    )


def compiled_bytes(model: ModelSource, request: EngineRequest, shapes: Mapping[str, int]) -> bytes:
    """Return ``compiled`` as the bytes of its file, so that a separate process can make them. Raise BuildError."""
    program = compiled(model, request, shapes)
    try:
        return program.to_bytes()
    except FormatError as error:
        raise BuildError(
            f"native, model {model.name}",
            f"makes a program that cannot be saved: {error.what}",
            do="Use a vendor engine for this model.",
        ) from error
