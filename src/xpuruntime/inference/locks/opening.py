"""Opening a session under a lock: the request that the lock makes, its validators, and the comparison of what was loaded."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...decisions import Candidate, Decision, Reason
from ...engines import engine_names
from ...errors import FormatError, LockChange, LockError, PolicyError
from ...ir import bind
from ...policies import Policy, PolicyLayer, Resolved, builtin_policy, load_policy, resolve
from ...program.lock import Lock, plan_digest
from ...program.plan import Plan
from ...protocols import Executable, ModelSource
from ...runtime.execution.executor import Executor
from ...targets import DeviceId
from ...types import DType
from ..lock_checks.programs import bucket_text, mismatch, program_changes
from ..native.executable import NativeExecutable
from ..partitioned.mixed import MixedExecutable
from ..selection.request import SessionRequest

__all__ = ["OpenLock", "open_lock"]


@dataclass(frozen=True, slots=True)
class OpenLock:
    """A lock that a session is opened under. name: the file's name, for texts."""

    lock: Lock
    name: str

    def request(self, strict: bool | None) -> SessionRequest:
        """Return the session's request: every choice is the lock's. Environment and ``with_policy`` do not apply. Raises FormatError."""
        lock = self.lock
        policy = self._policy(lock.policy)
        layers = [PolicyLayer(f"lock {self.name}", policy), PolicyLayer("built-in", builtin_policy())]
        if strict is not None:
            strictly = Policy(execution=replace(policy.execution, strict=strict))
            layers.insert(0, PolicyLayer("argument", strictly))
        return self._session_request(resolve(layers), lock.threads, lock)

    def fallback(self, strict: bool | None) -> SessionRequest:
        """Return the request that the lock was made from, without the lock."""
        policy = self._policy(self.lock.original)
        execution = policy.execution if strict is None else replace(policy.execution, strict=strict)
        layer = PolicyLayer(f"lock {self.name}", Policy(kernel=policy.kernel, execution=execution))
        resolved = resolve([layer, PolicyLayer("built-in", builtin_policy())])
        from ..selection.request import thread_count

        return self._session_request(resolved, thread_count(self.lock.original_threads), None)

    def _policy(self, document: Mapping[str, Any]) -> Policy:
        try:
            return load_policy(document, engines=engine_names())
        except PolicyError as error:
            what = "has a policy that this release does not read"
            raise FormatError(
                f"lock {self.name}", what, got=str(error), do="Write the lock again."
            ) from error

    def _session_request(self, resolved: Resolved, threads: int, lock: Lock | None) -> SessionRequest:
        target = resolved.policy.execution.target
        named = resolved.origin_of("execution.target") != "built-in"
        return SessionRequest(
            policy=resolved.policy,
            device=DeviceId.parse(target) if target is not None and named else None,
            permit=DType(self.lock.permit) if self.lock.permit else None,
            threads=threads,
            demanded={"lock": f"{self.name} (argument)"},
            lock=lock,
        )

    def validate(self, model: ModelSource, request: SessionRequest) -> tuple[LockChange, ...]:
        """Compare the lock's validators (digest of the model, versions, device and others) with this machine.

        Return those that differ, which the session then opens without the lock. Raises LockError for them if the lock has no fallback.
        """
        from ..lock_checks.validators import changed_validators, facts_request

        if self.lock.of_dag:
            do = "Open it with DAGExecutor(graph, lock=...), or write one with InferenceSession.lock() or xpu lock."
            raise LockError(f"lock {self.name}", "is of a DAGExecutor, and not of a session", do=do)
        changes = changed_validators(self.lock, model, facts_request(request))
        if changes and self.lock.on_mismatch == "error":
            raise self.error(model, "does not fit: something changed since it was written", changes)
        return changes

    def error(self, model: ModelSource, what: str, changes: tuple[LockChange, ...]) -> LockError:
        """Return the error that names what changed, with old and new values."""
        return mismatch(self.lock, self.name, model.name, what, changes)

    def confirm(self, model: ModelSource, plan: Plan, executable: Executable) -> Decision:
        """Compare plan and programs with the lock's. Programs of open shapes are compared before their first run. Raises LockError."""
        if isinstance(executable, NativeExecutable):
            if executable.only is not None:
                self._confirm_program(model, executable.only, bucket_of(executable, executable.only))
            else:
                executable.examine_with(
                    lambda executor, *_: self._confirm_program(
                        model, executor, bucket_of(executable, executor)
                    )
                )
        if isinstance(executable, MixedExecutable):
            executable.examine_with(functools.partial(self._confirm_region, model))
        here = plan_digest(lockable(plan, executable))
        if here != self.lock.plan:
            changes = (*self._node_changes(plan), ("digest of the plan", self.lock.plan, here))
            raise self.error(model, "names another plan than the one that was made", changes)
        return self._confirmed(model.name)

    def _confirmed(self, subject: str) -> Decision:
        text = "plan, kernels and their code are those of the lock"
        if times := self.lock.kernel_times:
            text += f", which were chosen by {times.get('file', '')} (sha256:{times.get('digest', '')[:12]})"
        return Decision("lock", subject, Candidate(self.name, Reason.LOCKED, text))

    def _node_changes(self, plan: Plan) -> tuple[LockChange, ...]:
        locked = {n["name"]: n.get("kernel", "") for n in self.lock.nodes}
        if not any(n.kernel for n in plan.nodes):
            return ()
        return tuple(
            (f"kernel of {n.name}", locked.get(n.name, "absent") or "none", n.kernel or "none")
            for n in plan.nodes
            if locked.get(n.name) != n.kernel
        )

    def _confirm_region(
        self, model: ModelSource, region: str, executor: Executor, shapes: Mapping[str, int]
    ) -> None:
        self._confirm_program(model, executor, shapes, region)

    def _confirm_program(
        self, model: ModelSource, executor: Executor, shapes: Mapping[str, int], region: str = ""
    ) -> Decision:
        what, changes = program_changes(self.lock, executor, shapes, region)
        if changes:
            raise self.error(model, what, changes)
        return self._confirmed(bucket_text(shapes))


def lockable(plan: Plan, executable: Executable) -> Plan:
    """Return the part of a plan that a lock has a digest of. With open shapes it has no kernels: each program, one per shape, has its own."""
    if isinstance(executable, NativeExecutable) and executable.only is None:
        return replace(plan, nodes=tuple(replace(n, kernel="") for n in plan.nodes))
    return plan


def bucket_of(executable: NativeExecutable, executor: Executor) -> dict[str, int]:
    """Return the sizes of the session's symbolic dims in one of its programs."""
    shapes = {s.name: tuple(int(d) for d in s.shape if isinstance(d, int)) for s in executor.entry.inputs}
    return {name: int(size) for name, size in bind(executable.inputs, shapes).items()}


def open_lock(
    lock: Lock | Mapping[str, Any] | str | os.PathLike[str], arguments: Mapping[str, Any]
) -> OpenLock:
    """Read a lock. Raises FormatError, and PolicyError for an argument that a lock decides.

    arguments: those of the session that choose something, by name; unset ones are None or False.
    """
    named = [name for name, value in arguments.items() if value not in (None, False)]
    if named:
        raise PolicyError(
            "session",
            "a lock decides everything that these arguments choose",
            got=", ".join(named),
            do="Drop them, or run without the lock.",
        )
    return OpenLock(*Lock.read(lock))
