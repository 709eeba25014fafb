"""Self-checks when a session opens, and when the programs of open shapes are compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...decisions import Decision
from ...errors import InputError, WrongResult
from ...ir.shapes.symbols import bind
from ...plugins.registered import registered_kernels
from ...policies.vocabulary import INTEGER_KERNELS
from ...protocols import Array, Executable, HasRegions, ModelSource
from ...runtime.device import cpu
from ...runtime.execution.executor import Executor
from ...storage.store import Store
from ...types import DType
from ..execution.examples import measuring_feeds
from ..execution.seeded_inputs import sample_feeds
from ..native.executable import NativeExecutable
from ..native.model import native_model
from .check import CheckedModel, SelfCheck, verdict_of
from .eager_code import eager_digest
from .locate import Located, first_tie, first_wrong
from .verdict import Verdict

__all__ = ["ADVICE", "checked_on_opening", "differs_by_demand"]

ADVICE = (
    "Name another engine or allow a fallback, and report this bug in xpuruntime. "
    "self_check='always' compares again, 'off' skips the check."
)


def checked_on_opening(
    model: ModelSource,
    executable: Executable,
    engine: str,
    precision: DType,
    key: Mapping[str, Any],
    check: SelfCheck,
    store: Store,
) -> Verdict:
    """Return the verdict on a session that has just been loaded. With open shapes, programs are checked later, when they are compiled.

    key: everything that decides what the engine builds.
    """
    if model.format == "program":
        return Verdict.none("a compiled program has no reference")
    key = {"artifact": dict(key), "processor": cpu().model, "module": check.module is not None}
    if isinstance(executable, NativeExecutable):
        if executable.only is None:
            if check.word == "off":
                return Verdict.none("self_check is off")
            executable.examine_with(_examining(model, precision, key, check, store))
            return Verdict.none("shapes are open: each program is checked when its shapes are compiled")
        if why := _program_differs(executable.only):
            return Verdict.none(why)
        run, locate = _twin_run(executable.only), _locating(model, executable.only)
    else:
        if isinstance(executable, HasRegions) and (why := _regions_differ(executable)):
            return Verdict.none(why)
        run, locate = executable.run, lambda feeds: first_tie(native_model(model), feeds, precision)
    try:
        feeds, told = measuring_feeds(model, check.examples)
    except InputError as error:
        return Verdict.none(f"no inputs could be made: {error.what}")
    example = check.examples is not None
    stored: Mapping[str, Any] | None = key
    if check.word == "first_open" and check.module is not None:  # another module may have the same export
        code = eager_digest(check.module)
        stored = None if code is None else {**key, "module": code}
    subject = CheckedModel(model, engine, precision, run, stored, feeds, told, example, locate)
    return verdict_of(subject, check, store)


def _examining(
    model: ModelSource, precision: DType, key: Mapping[str, Any], check: SelfCheck, store: Store
) -> Callable[[Executor, Mapping[str, tuple[int, ...]], Mapping[str, Any], float], Decision]:
    """Return the check that a session with open shapes calls before the first run of new shapes.

    The module is not used as a reference: its example inputs have other shapes. Raises WrongResult.
    """
    check = replace(check, module=None, arguments=None, examples=None)

    def examine(
        executor: Executor, shapes: Mapping[str, tuple[int, ...]], inputs: Mapping[str, Any], began: float
    ) -> Decision:
        if why := _program_differs(executor):
            return Verdict.none(why).decision(model.name)
        sizes = bind(native_model(model).graph.input_specs, shapes)
        feeds, told = dict(inputs), "the inputs of the run"
        if not all(
            isinstance(v, np.ndarray) for v in feeds.values()
        ):  # on a device, where they may still be in flight
            feeds, told = sample_feeds(model.inputs, symbols=sizes), "seeded inputs"
        subject = CheckedModel(
            model,
            "native",
            precision,
            _twin_run(executor),
            {**key, "shapes": dict(sorted(sizes.items()))},
            feeds,
            told,
            False,
            _locating(model, executor),
        )
        verdict = verdict_of(subject, replace(check, began=began), store)
        if verdict.wrong:
            raise WrongResult(
                f"native, model {model.name}",
                f"computes wrong results for inputs of {', '.join(f'{n} {list(s)}' for n, s in shapes.items())}",
                got=verdict.text,
                do=ADVICE,
            )
        return verdict.decision(model.name)

    return examine


def _program_differs(executor: Executor) -> str:
    """Return why a program differs from the model on the policy's demand, or an empty text."""
    return differs_by_demand(call.kernel for call in executor.plan.calls)


def _regions_differ(executable: HasRegions) -> str:
    """Return why kernels of a model on several engines compute other values on the policy's demand, or an empty text."""
    evidence = executable.region_evidence().values()
    return differs_by_demand(row.kernel.partition(":")[0] for e in evidence for row in e.rows)


def differs_by_demand(kernels: Iterable[str]) -> str:
    """Return why kernels compute other values than the model on the policy's demand, or an empty text."""
    users = {k.name for k in registered_kernels()}
    for kernel in kernels:
        word = kernel.partition("/")[2]
        if word in INTEGER_KERNELS.values():
            return f"kernel {kernel} rounds the activations as the policy demands, which no reference does"
        if word.startswith(("int8_weights", "fp8_weights", "int4_weights")):
            return f"kernel {kernel} rounds the weights as the policy demands, which no reference does"
        if kernel in users:
            return f"kernel {kernel} is the user's own: verify_kernel compares it"
    return ""


def _twin_run(executor: Executor) -> Callable[[dict[str, Array]], Sequence[Array]]:
    """Return a run that leaves the executor's states, counters and memory unchanged."""

    def run(feeds: dict[str, Array]) -> Sequence[Array]:
        with executor.twin() as twin:
            return twin.run_arrays([feeds[s.name] for s in twin.entry.inputs])

    return run


def _locating(model: ModelSource, executor: Executor) -> Callable[[Mapping[str, Array]], Located]:
    return lambda feeds: first_wrong(native_model(model), executor, feeds)
