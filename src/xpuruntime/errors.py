"""The errors of xpuruntime.

    XpuError                      base class: who, what, got, do
    ├── ModelError                invalid model file
    ├── IrError                   invalid graph: types, names, attributes
    ├── InputError                an array given to run() does not fit the model
    ├── PolicyError               invalid policy: file, keyword or environment
    ├── UnavailableError          something requested is not available; carries the Decision
    │   ├── EngineUnavailable
    │   ├── DeviceUnavailable
    │   ├── PrecisionUnavailable
    │   ├── KernelUnavailable
    │   └── LockError             something that a lock pins has changed; carries the changes
    ├── StrictError               strict=True, and the run does not confirm the plan
    ├── BuildError                an engine failed to build an artifact from the model
    │   ├── InternalError         a bug in xpuruntime; names the folder of a reproduction
    │   ├── WrongResult           outputs differ from an independent reference (``self_check``)
    │   ├── PluginError           the code of a plug-in failed; the text names its package; also a RunError
    │   ├── KernelRefused         libraries refuse calls of a loaded program; carries the calls and the reasons
    │   └── BuildTimeout          longer than compile_timeout_s; also a TimeoutError
    ├── RunError                  an engine failed to run
    │   ├── OutOfMemory           a device has too little memory for a run; also a MemoryError
    │   ├── RankLost              a rank of a group has ended, so that the others cannot go on
    │   ├── RunTimeout            longer than run_timeout_s; also a TimeoutError
    │   └── RunCancelled          cancelled by ``cancel`` or ``close``
    ├── StoreError                the store on disk cannot be read or written
    └── FormatError               a file of xpuruntime (plan, program, store entry) is damaged or newer

Each class has the exit code of the command line (docs/reference/command-line.md lists them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .printable import text

if TYPE_CHECKING:
    from .decisions import Decision

RefusedCall: TypeAlias = tuple[str, tuple[str, ...], str]
"""A kernel's name, the nodes of the model that it computes, and the reason of the refusal."""

LockChange: TypeAlias = tuple[str, str, str]
"""The name of a changed item, its value in the lock, and its value here."""

__all__ = [
    "BuildError",
    "BuildTimeout",
    "DeviceUnavailable",
    "EngineUnavailable",
    "FormatError",
    "InputError",
    "InternalError",
    "IrError",
    "KernelRefused",
    "KernelUnavailable",
    "LockError",
    "ModelError",
    "OutOfMemory",
    "PluginError",
    "PolicyError",
    "PrecisionUnavailable",
    "RankLost",
    "RunCancelled",
    "RunError",
    "RunTimeout",
    "StoreError",
    "StrictError",
    "UnavailableError",
    "WrongResult",
    "XpuError",
]


class XpuError(Exception):
    """Base class of all errors. The text says what is wrong and what to do.

    Parameters
    ----------
    who:  the component and its subject: ``session("model.onnx")``, ``policy p.yaml:12``.
    what: what is wrong, as one clause.
    got:  the invalid value.
    do:   the next step for the user, as an imperative.
    decision: the choice that failed, with every rejected candidate; None if the error is not that of a choice.
    """

    exit_code = 70

    def __init__(
        self, who: str, what: str, *, got: object = None, do: str = "", decision: Decision | None = None
    ) -> None:
        self.who, self.what, self.got, self.do, self.decision = who, what, got, do, decision
        super().__init__(who, what)

    def __str__(self) -> str:
        sentence = f"[{self.who}] {self.what}"
        if self.got is not None:
            sentence += f"; got {self.got}"
        sentence += "." if not sentence.endswith((".", "!", "?")) else ""
        return text(f"{sentence} {self.do}" if self.do else sentence, "    ")

    def to_json(self) -> dict[str, object]:
        """Return the error as plain data, for ``--json``."""
        data: dict[str, object] = {
            "error": type(self).__name__,
            "who": self.who,
            "what": self.what,
            "got": None if self.got is None else str(self.got),
            "do": self.do,
            "exit_code": self.exit_code,
        }
        if self.decision is not None:
            data["decision"] = self.decision.to_json()
        return data


class ModelError(XpuError):
    """A file that is no model, truncated or corrupted, or whose external data is missing or unsafe."""

    exit_code = 3


class IrError(XpuError):
    """An op that contradicts its entry in the op table, or a malformed graph."""

    exit_code = 3


class InputError(XpuError):
    """An input with a wrong name, dtype, rank, shape or byte order."""

    exit_code = 4


class PolicyError(XpuError):
    """An unknown key, kernel or engine in a policy, or a value of a wrong type."""

    exit_code = 5


class UnavailableError(XpuError):
    """A requested engine, device, precision or kernel that is not available. ``decision`` holds every candidate and its reason."""

    exit_code = 6


class EngineUnavailable(UnavailableError):
    """An engine that is not installed, has an unsupported version, or does not support the model."""


class DeviceUnavailable(UnavailableError):
    """A device that no engine can use on this machine."""


class PrecisionUnavailable(UnavailableError):
    """A precision that the engine does not support on the device."""


class KernelUnavailable(UnavailableError):
    """A kernel that a policy requires and that cannot be used here."""


class LockError(UnavailableError):
    """Something that a lock pins and that has changed since it was written, or that the lock does not cover.

    changes: for each, its name, the value in the lock and the value here.
    """

    def __init__(
        self,
        who: str,
        what: str,
        *,
        got: object = None,
        do: str = "",
        decision: Decision | None = None,
        changes: tuple[LockChange, ...] = (),
    ) -> None:
        super().__init__(who, what, got=got, do=do, decision=decision)
        self.changes = changes

    def to_json(self) -> dict[str, object]:
        """Return the error as plain data, with its changes."""
        changes = [{"name": name, "locked": old, "here": new} for name, old, new in self.changes]
        return {**super().to_json(), "changes": changes}


class StrictError(XpuError):
    """A run under ``strict=True`` that differs from the plan."""

    exit_code = 7


class BuildError(XpuError):
    """An engine's failure to compile the model; ``got`` holds the vendor's text."""

    exit_code = 8


class InternalError(BuildError):
    """A bug in xpuruntime. The model and the request may be valid.

    parts:  what failed, outermost first: ``pass fuse_conv``, ``kernel matmul/tiled`` ...
    folder: folder of the reproduction; ``""`` if none could be written.
    """

    exit_code = 70

    def __init__(
        self,
        who: str,
        what: str,
        *,
        got: object = None,
        do: str = "",
        decision: Decision | None = None,
        parts: tuple[str, ...] = (),
        folder: str = "",
    ) -> None:
        super().__init__(who, what, got=got, do=do, decision=decision)
        self.parts, self.folder = parts, folder

    def to_json(self) -> dict[str, object]:
        """Return the error as plain data, with its parts and the folder of the reproduction."""
        return {**super().to_json(), "parts": list(self.parts), "reproduction": self.folder or None}


class KernelRefused(BuildError):
    """Calls of a program that a library refuses on this machine: it has no algorithm, or not the pinned one.

    calls: for each, the kernel, the nodes of the model and the library's reason.
    """

    def __init__(
        self, who: str, what: str, *, got: object = None, do: str = "", calls: tuple[RefusedCall, ...] = ()
    ) -> None:
        super().__init__(who, what, got=got, do=do)
        self.calls = calls


class BuildTimeout(BuildError, TimeoutError):
    """A build that took longer than ``compile_timeout_s`` and was stopped."""


class WrongResult(BuildError):
    """A compiled program whose outputs differ from an independent reference (``self_check``); it is not used."""


class RunError(XpuError):
    """An engine's failure to run; ``got`` holds the vendor's text."""

    exit_code = 8


class OutOfMemory(RunError, MemoryError):
    """An allocation that exceeds a device's memory. Loaded programs keep working."""


class PluginError(BuildError, RunError):
    """A failure in the code of a plug-in (an engine or a backend of another package), or of a vendor's package that cannot be imported; the text
    names the package.
    """


class RunTimeout(RunError, TimeoutError):
    """A run that took longer than ``run_timeout_s`` and was stopped. The session stays usable."""


class RankLost(RunError):
    """A rank of a group that has ended or does not come, so that the others cannot go on."""


class RunCancelled(RunError):
    """A run that was cancelled by ``cancel`` or ``close``."""


class StoreError(XpuError):
    """A store folder that cannot be read, written or locked, or a full disk."""

    exit_code = 9


class FormatError(XpuError):
    """A file of xpuruntime that is truncated, corrupted, or written by a newer version."""

    exit_code = 9
