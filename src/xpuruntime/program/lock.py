"""Lock: every choice of a session (or a DAGExecutor) as data, so that another process repeats them without measuring or choosing.

A lock is a JSON file. It names the engine, the device, the precision, the threads and, for the native engine, the kernel of every call
with its code and configuration. Kernels depend on shapes, so the lock has one program for each shape bucket, that is, for each set of
sizes of the model's symbolic dims. Validators are the facts under which the choices hold, such as versions and the device.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import FormatError, LockChange
from ..storage.files import read_regular, write_atomic
from ..types import DType
from .plan import Plan
from .program import CompiledProgram, ExecutionPlan

__all__ = [
    "ON_MISMATCH",
    "Lock",
    "LockedCall",
    "LockedProgram",
    "LockedRegion",
    "changes_between",
    "locked_program",
    "plan_digest",
]

FORMAT, VERSION = "xpuruntime-lock", 2
ON_MISMATCH = ("error", "policy")
"""Actions if a validator fails: raise LockError, or open the session without the lock, under the policy that the lock was made from."""
_MAX_BYTES = 1 << 28
_DO = "Write the lock again (xpu lock, or lock() of the session or DAGExecutor)."


@dataclass(frozen=True, slots=True)
class LockedCall:
    """One kernel call: the model's nodes and IR ops, the kernel, its code and its configuration.

    code:    name of the generated function, which ends in a digest of its source; name of the library's function for a library call.
    library: the library that computes the call, such as ``cublasLt``; empty for generated code.
    config:  launch sizes and parameters: ``tasks``, ``grain``, ``scratch_bytes``, ``param.*``, ``option.*``.
    implementation: the algorithm that the library reports (cuBLASLt's algorithm, cuDNN's engine); empty for generated code.
    """

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    kernel: str
    code: str
    library: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    implementation: str = ""


@dataclass(frozen=True, slots=True)
class LockedProgram:
    """The program of one shape bucket, of the whole model or of one region.

    region:    the region that it computes; empty for the whole model.
    shapes:    sizes of the symbolic dims: the shape bucket.
    target:    device and instruction set, such as ``cpu:x86-64-v4``.
    digest:    digest of everything that the program is built from.
    compilers: the compilers of its binaries, with version and flags.
    calls:     the kernel calls as they were compiled, to compare with.
    kernels:   the choices to compile with: key of a call -> kernel (``compiler.locked``).
    """

    shapes: Mapping[str, int]
    target: str
    digest: str
    compilers: tuple[str, ...]
    calls: tuple[LockedCall, ...]
    arena_bytes: int = 0
    weight_bytes: int = 0
    kernels: Mapping[str, str] = field(default_factory=dict)
    region: str = ""


@dataclass(frozen=True, slots=True)
class LockedRegion:
    """A region of a model on several engines: its engine, its nodes, its inputs and its outputs.

    engine, version, device, precision, options: as they ran.
    nodes: names of its IR nodes, in execution order.
    inputs, outputs: names of the values that enter and leave the region.
    """

    id: str
    engine: str
    version: str
    device: str
    precision: str
    options: Mapping[str, str]
    nodes: tuple[str, ...] = field(repr=False)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lock:
    """The choices of one session, or of one DAGExecutor.

    model:       name, digest and format. The format ``ir`` marks the lock of a DAGExecutor.
    plan:        digest of the plan (``plan_digest``).
    policy:      the policy document that names every choice.
    original:    the policy document that the lock was made from.
    threads, original_threads: CPU threads of the locked session, and as requested (None: not requested).
    permit:      a lower precision that the request permitted (``float16``), or empty.
    programs:    programs of the native engine, one for each shape bucket and region; empty if it computes nothing.
    validators:  name and value of each fact that must be the same.
    on_mismatch: one of ``ON_MISMATCH``.
    nodes:       name, op, family, engine, device, precision and kernel of each node, for ``xpu diff`` and ``xpu check``.
    version:     version of xpuruntime that wrote the lock.
    kernel_times: the file of measured times that chose kernels, with its digest and facts; empty without one. It is not read again.
    regions:     regions of a model on several engines, in an execution order; empty for one engine.
    """

    model: Mapping[str, str]
    plan: str
    policy: Mapping[str, Any]
    original: Mapping[str, Any]
    threads: int
    validators: Mapping[str, str]
    programs: tuple[LockedProgram, ...] = ()
    nodes: tuple[Mapping[str, str], ...] = field(default=(), repr=False)
    original_threads: int | None = None
    permit: str = ""
    on_mismatch: str = "error"
    version: str = ""
    kernel_times: Mapping[str, str] = field(default_factory=dict)
    regions: tuple[LockedRegion, ...] = ()

    @property
    def kernels(self) -> dict[str, str]:
        """Return the kernels of all programs, by the key of the call."""
        return {key: kernel for program in self.programs for key, kernel in program.kernels.items()}

    def kernels_of(self, region: str) -> dict[str, str]:
        """Return the kernels of a region's programs, by the key of the call."""
        return {key: kernel for p in self.programs if p.region == region for key, kernel in p.kernels.items()}

    def program(self, shapes: Mapping[str, int], region: str = "") -> LockedProgram | None:
        """Return the program of a shape bucket of a region, or None."""
        of_region = (p for p in self.programs if p.region == region)
        return next((p for p in of_region if dict(p.shapes) == dict(shapes)), None)

    @property
    def of_dag(self) -> bool:
        """Return True for the lock of a DAGExecutor, False for that of a session."""
        return self.model["format"] == "ir"

    @property
    def writer(self) -> str:
        """Return the call or command that writes such a lock, for messages."""
        return "DAGExecutor.lock()" if self.of_dag else "xpu lock"

    @property
    def engines(self) -> tuple[str, ...]:
        """Return the engines that the lock names, each once."""
        return tuple(dict.fromkeys(r.engine for r in self.regions)) or self._in_policy("engine")

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the devices that the lock names, each once."""
        return tuple(dict.fromkeys(r.device for r in self.regions)) or self._in_policy("target")

    def _in_policy(self, field: str) -> tuple[str, ...]:
        """Return a field of the policy's execution section; nothing if a DAGExecutor's policy does not have it."""
        value = self.policy.get("execution", {}).get(field)
        return () if value is None else (str(value),)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, which ``from_json`` reads, with a digest of its content."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))  # tuples become lists
        return {"format": FORMAT, "format_version": VERSION, "digest": _digest(plain), **plain}

    @classmethod
    def from_json(cls, data: object) -> Lock:
        """Build a lock from ``to_json``'s data. Raises FormatError for other data, and for content that does not match its digest."""
        try:
            return _lock(data)
        except KeyError as error:
            what = f"is not a lock that this release reads: the field {error} is missing"
            raise FormatError("lock", what, do=_DO) from error
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FormatError("lock", "is not a lock that this release reads", got=error, do=_DO) from error

    @classmethod
    def read(cls, lock: object) -> tuple[Lock, str]:
        """Return a lock and its name for messages. ``lock``: a Lock, the path of its file, or its data as a mapping. Raises FormatError."""
        if isinstance(lock, Lock):
            return lock, lock.model["name"]
        if isinstance(lock, str | os.PathLike):
            return cls.load(lock), Path(lock).name
        if isinstance(lock, Mapping):
            return cls.from_json(lock), "mapping"
        do = "Give a Lock, the path of its file, or its data as a mapping."
        raise FormatError("lock", "cannot be read from this value", got=repr(lock)[:80], do=do)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the lock atomically. Raises StoreError."""
        write_atomic(Path(path), json.dumps(self.to_json(), indent=1, sort_keys=True).encode() + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Lock:
        """Read a lock file. Raises FormatError if it is truncated, damaged, of another release's format, or not a lock."""
        who = f"lock {os.fspath(path)}"
        try:
            data = json.loads(read_regular(Path(path), _MAX_BYTES).decode("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise FormatError(who, "cannot be read", got=error, do=f"Check the path. {_DO}") from error
        try:
            return cls.from_json(data)
        except FormatError as error:
            raise FormatError(who, error.what, got=error.got, do=error.do) from error


def _digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


# ── from a session ──


def plan_digest(plan: Plan) -> str:
    """Return the sha256 of the parts of a plan that say what runs where: regions, nodes with their kernels, and transfers.

    Reasons and measured times are not part of it.
    """
    regions = [[r.id, r.engine, r.engine_version, r.device, r.precision, r.threads] for r in plan.regions]
    nodes = [[n.name, n.op, n.domain, n.region, n.kernel] for n in plan.nodes]
    transfers = [[t.value, t.source, t.destination, t.shared] for t in plan.transfers]
    parts = [plan.model["digest"], regions, nodes, transfers]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def locked_program(
    program: CompiledProgram,
    plan: ExecutionPlan,
    shapes: Mapping[str, int],
    implementations: tuple[str, ...],
    kernels: Mapping[str, str],
    region: str = "",
) -> LockedProgram:
    """Return the record of a program for one shape bucket.

    plan:            the program's plan that runs.
    implementations: the algorithm that the library of each call reports; calls beyond its end have none.
    """
    calls = tuple(
        LockedCall(
            c.nodes,
            c.ops,
            c.kernel,
            c.symbol,
            c.library,
            {
                "tasks": str(c.tasks),
                "grain": str(c.grain),
                "scratch_bytes": str(c.scratch_bytes),
                **{f"param.{p.name}": str(p.value) for p in c.params},
                **{f"option.{k}": json.dumps(v, default=str) for k, v in sorted(c.options.items())},
            },
            implementations[i] if i < len(implementations) else "",
        )
        for i, c in enumerate(plan.calls)
    )
    compilers = tuple(program.binaries[i].compiler for i in plan.binaries)
    weights = sum(r.spec.size_bytes or 0 for r in program.recipes)
    return LockedProgram(
        dict(shapes),
        plan.target,
        program.digest,
        compilers,
        calls,
        plan.arena_bytes,
        weights,
        dict(kernels),
        region,
    )


def changes_between(locked: LockedProgram, here: LockedProgram) -> tuple[LockChange, ...]:
    """Return the differences between a program of a lock and the program that this machine compiles for the same shapes (``here``)."""
    changes: list[LockChange] = [
        (name, old, new)
        for name, old, new in (
            ("target", locked.target, here.target),
            ("compiler", "; ".join(locked.compilers), "; ".join(here.compilers)),
            ("number of kernel calls", str(len(locked.calls)), str(len(here.calls))),
        )
        if old != new
    ]
    for old, new in zip(locked.calls, here.calls, strict=False):
        changes += _call_changes(old, new)
    if not changes and locked.digest != here.digest:  # the digest says that something differs, but not what
        changes.append(("digest of the program", locked.digest, here.digest))
    return tuple(changes)


def _call_changes(old: LockedCall, new: LockedCall) -> Iterator[LockChange]:
    name = new.nodes[0] if new.nodes else new.kernel
    fields = (
        ("kernel", old.kernel, new.kernel),
        ("code", old.code, new.code),
        ("nodes", ", ".join(old.nodes), ", ".join(new.nodes)),
        ("library's implementation", old.implementation, new.implementation),
        (
            "configuration",
            json.dumps(dict(old.config), sort_keys=True),
            json.dumps(dict(new.config), sort_keys=True),
        ),
    )
    yield from ((f"{field} of {name}", was, now) for field, was, now in fields if was != now)


# ── from a file ──


def _lock(data: Any) -> Lock:
    data = _object(data)
    if data["format"] != FORMAT:
        raise ValueError(f"format {str(data['format'])[:40]!r}")
    if data["format_version"] != VERSION:
        raise ValueError(f"version {str(data['format_version'])[:20]} where this release reads {VERSION}")
    plain = {k: v for k, v in data.items() if k not in ("format", "format_version", "digest")}
    fields = {f.name for f in dataclasses.fields(Lock)}
    if set(plain) != fields:
        raise ValueError(f"missing or unknown fields {sorted(set(plain) ^ fields)}")
    if data["digest"] != _digest(plain):
        raise ValueError("the content does not match its digest; a lock must not be edited")
    if plain["on_mismatch"] not in ON_MISMATCH:
        raise ValueError(f"on_mismatch {str(plain['on_mismatch'])[:20]!r}")
    if plain["permit"] not in ("", *(d.value for d in DType)):
        raise ValueError(f"permit {str(plain['permit'])[:20]!r}")
    requested = plain["original_threads"]
    lock = Lock(
        _text_dict(plain["model"], ("name", "digest", "format")),
        _text(plain["plan"]),
        _object(plain["policy"]),
        _object(plain["original"]),
        _count(plain["threads"]),
        _text_dict(plain["validators"]),
        tuple(map(_program, plain["programs"])),
        tuple(_text_dict(n, ("name",)) for n in plain["nodes"]),
        None if requested is None else _count(requested),
        _text(plain["permit"]),
        plain["on_mismatch"],
        _text(plain["version"]),
        _text_dict(plain["kernel_times"]),
        tuple(map(_region, plain["regions"])),
    )
    execution = _object(lock.policy.get("execution", {}))
    if not (lock.regions or lock.of_dag):  # the policy alone names the engine and the device
        _text(execution["engine"])
        _text(execution["target"])
    return lock


def _region(data: Mapping[str, Any]) -> LockedRegion:
    return LockedRegion(
        _text(data["id"]),
        _text(data["engine"]),
        _text(data["version"]),
        _text(data["device"]),
        _text(data["precision"]),
        _text_dict(data["options"]),
        _text_list(data["nodes"]),
        _text_list(data["inputs"]),
        _text_list(data["outputs"]),
    )


def _program(data: Mapping[str, Any]) -> LockedProgram:
    return LockedProgram(
        {str(k): _count(v) for k, v in data["shapes"].items()},
        _text(data["target"]),
        _text(data["digest"]),
        _text_list(data["compilers"]),
        tuple(map(_call, data["calls"])),
        _count(data["arena_bytes"]),
        _count(data["weight_bytes"]),
        _text_dict(data["kernels"]),
        _text(data["region"]),
    )


def _call(data: Mapping[str, Any]) -> LockedCall:
    return LockedCall(
        _text_list(data["nodes"]),
        _text_list(data["ops"]),
        _text(data["kernel"]),
        _text(data["code"]),
        _text(data["library"]),
        _text_dict(data["config"]),
        _text(data["implementation"]),
    )


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError(f"must be text, not {type(value).__name__}")
    return value


def _text_list(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise ValueError(f"must be a list, not {type(values).__name__}")
    return tuple(map(_text, values))


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"must be a whole number from 0, not {str(value)[:40]}")
    return value


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, not {type(value).__name__}")
    return value


def _text_dict(value: object, required: tuple[str, ...] = ()) -> dict[str, str]:
    texts = {_text(k): _text(v) for k, v in _object(value).items()}
    if missing := [k for k in required if k not in texts]:
        raise ValueError(f"{missing[0]} is missing")
    return texts
