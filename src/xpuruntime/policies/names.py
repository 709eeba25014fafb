"""Checks that every kernel and engine that a policy names exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..plugins import registered as of_users
from .execution_policy import ExecutionPolicy
from .fields.checks import not_implemented
from .fields.kinds import kernels_of, without_kernel
from .fields.pins import plain_kernel
from .fields.record import FieldPath, Problem
from .kernel_policy import KernelPolicy
from .policy import Policy
from .vocabulary import ACTIVATIONS, ENGINES, KERNELS, REGION_RUNNERS, nearest

__all__ = ["check_names"]


_OWN = "Your own kernel must be registered in the process that compiles. With compile_timeout_s that is a child process, which reads XPU_KERNELS."


def check_names(policy: Policy, *, kernels: Iterable[str] = (), engines: Iterable[str] = ()) -> None:
    """Raise Problem for the first kernel or engine that does not exist: it is not built in, not an argument, not registered, and not dotted (a
    third party's). Also raise it for a demand whose names are all unimplemented in this release.

    A kernel that is not built in causes the import of the modules that register kernels. Raise PolicyError if such a module fails.
    """
    extra = tuple(kernels)
    for path, names, families in _kernel_names(policy.kernel, ("kernel",)):
        _check_kernels(path, [plain_kernel(w) for w in names], families, extra)
    engine_names = tuple(dict.fromkeys((*ENGINES, *engines)))  # built-in engines also register themselves
    for path, name in _engine_names(policy.execution, ("execution",)):
        _check_engine(path, name, engine_names)
    for pattern, name in (policy.execution.place or {}).items():
        measured = ("auto",) if pattern == "*" else ()
        engine, on, _ = name.partition(" on ")
        placeable = engine_names if on else (*engine_names, *REGION_RUNNERS, *measured)
        _check_engine(("execution", "place", pattern), engine, placeable)


def _check_kernels(
    path: FieldPath, names: list[str], families: tuple[str, ...], extra: tuple[str, ...]
) -> None:
    """Check the words of one demand. A word without a kernel is accepted if another word of the demand has one."""
    built_in, absent = kernels_of(families), without_kernel(families)
    if all(name in built_in for name in names):
        return
    of_users.load_plugins()
    available = tuple(dict.fromkeys((*built_in, *extra, *of_users.kernel_words())))
    of = f" of {' or '.join(families)}" if len(families) < len(KERNELS) else ""
    usable = [name for name in names if name in available or "." in name]
    for name in names:
        if name not in usable and name not in absent:
            field = (
                families == ("activation",) and name in ACTIVATIONS
            )  # the family's name is one letter shorter
            meant = f"Did you mean the field activations: {name}? " if field else nearest(name, available)
            do = f"{meant}Known{of}: {', '.join(available) or 'none'}. {_OWN}"
            raise Problem(path, f"no such kernel{of}", got=repr(name), do=do)
    if not usable:
        problem = f"this release does not implement this kernel{of}"
        raise not_implemented(path, problem, names[0] if len(names) == 1 else names, available)


def _check_engine(path: FieldPath, name: str, available: tuple[str, ...]) -> None:
    if name not in available:
        do = f"{nearest(name, available)}Known: {', '.join(available)}."
        raise Problem(path, "no such engine", got=repr(name), do=do)


def _kernel_names(
    policy: KernelPolicy, at: FieldPath
) -> Iterator[tuple[FieldPath, Sequence[str], tuple[str, ...]]]:
    for family, names in policy.preferences():
        yield (*at, family), names, (family,)
    for i, rule in enumerate(policy.rules):
        families = tuple(rule.op) or tuple(KERNELS)
        demands = {"use": [rule.use] if rule.use else [], "prefer": rule.prefer, "forbid": rule.forbid}
        for key, named in demands.items():
            if named:
                yield (*at, "rules", i, key), named, families
    for i, layer in enumerate(policy.under):
        yield from _kernel_names(layer, (*at, "under", i))


def _engine_names(policy: ExecutionPolicy, at: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    if policy.engine not in (None, "auto"):
        yield (*at, "engine"), str(policy.engine)
    for name in policy.engine_options or {}:
        yield (*at, "engine_options", name), name
    for kind, order in (policy.engine_order or {}).items():
        for name in order:
            yield (*at, "engine_order", kind), name
