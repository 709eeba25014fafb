"""Every error that xpuruntime raises on purpose.

    XpuError                      base: says who, what, got, do
    ├── ModelError                the model file is not usable
    ├── IrError                   a graph breaks a law of the IR: types, names, attributes
    ├── InputError                an array handed to run() does not fit the model
    ├── PolicyError               a policy (file, keyword or environment) is not usable
    ├── UnavailableError          what was asked for cannot be had; carries the Decision
    │   ├── EngineUnavailable
    │   ├── DeviceUnavailable
    │   ├── PrecisionUnavailable
    │   └── KernelUnavailable
    ├── StrictError               strict=True and the evidence does not confirm the plan
    ├── BuildError                an engine could not turn the model into an artifact
    │   ├── InternalError         our own code failed; names the folder of a reproduction
    │   ├── WrongResult           its outputs disagree with an independent reference (``self_check``)
    │   ├── PluginError           the code of a plug-in failed, and the text names its package; a RunError too
    │   ├── KernelRefused         libraries decline calls of a program that is loaded; carries which, and why
    │   └── BuildTimeout          it took longer than compile_timeout_s and was stopped; a TimeoutError too
    ├── RunError                  an engine failed while running
    │   ├── OutOfMemory           a device has no memory of the size that a run asks for; a MemoryError too
    │   ├── RunTimeout            it took longer than run_timeout_s and was stopped; a TimeoutError too
    │   └── RunCancelled          somebody cancelled it
    ├── StoreError                the store on disk cannot be read or written
    └── FormatError               a file of ours (plan, program, store entry) is damaged or newer

Each class names the exit code that the command line gives for it (docs/reference/command-line.md lists them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .printable import text

if TYPE_CHECKING:
    from .decisions import Decision

RefusedCall: TypeAlias = tuple[str, tuple[str, ...], str]
"""A kernel's name, the nodes of the model that it should compute, and why not."""

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
    "ModelError",
    "OutOfMemory",
    "PluginError",
    "PolicyError",
    "PrecisionUnavailable",
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
    """An error that tells its reader what to do.

    Parameters
    ----------
    who:  the part that speaks and its subject: ``session("model.onnx")``, ``policy p.yaml:12``.
    what: what went wrong, as one clause.
    got:  the offending value, as it was met.
    do:   the next step for the reader, as an imperative.
    decision: the choice that failed, with every rejected candidate, where there was one.
    """

    exit_code = 70

    def __init__(
        self, who: str, what: str, *, got: object = None, do: str = "", decision: Decision | None = None
    ) -> None:
        self.who, self.what, self.got, self.do, self.decision = who, what, got, do, decision
        super().__init__(who, what)

    def __str__(self) -> str:
        said = f"[{self.who}] {self.what}"
        if self.got is not None:
            said += f"; got {self.got}"
        said += "." if not said.endswith((".", "!", "?")) else ""
        return text(f"{said} {self.do}" if self.do else said, "    ")

    def to_json(self) -> dict[str, object]:
        """The error as plain data, for ``--json``."""
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
    """Not a model, truncated, corrupted, or its external data is missing or unsafe."""

    exit_code = 3


class IrError(XpuError):
    """An op is used against its row in the op table, or a graph is not well formed."""

    exit_code = 3


class InputError(XpuError):
    """Wrong name, dtype, rank, shape or byte order of an input."""

    exit_code = 4


class PolicyError(XpuError):
    """Unknown key, kernel or engine, or a value of the wrong kind, in a policy."""

    exit_code = 5


class UnavailableError(XpuError):
    """Something named explicitly cannot be had. ``decision`` holds every candidate and its reason."""

    exit_code = 6


class EngineUnavailable(UnavailableError):
    """The engine is not installed, not supported in this version, or refuses this model."""


class DeviceUnavailable(UnavailableError):
    """No engine reaches the device on this machine."""


class PrecisionUnavailable(UnavailableError):
    """The engine cannot compute in the precision on this device."""


class KernelUnavailable(UnavailableError):
    """A policy forces a kernel that cannot be used here."""


class StrictError(XpuError):
    """Under ``strict=True``: something ran differently from what the plan says."""

    exit_code = 7


class BuildError(XpuError):
    """A vendor refused to compile the model; its own text is in ``got``."""

    exit_code = 8


class InternalError(BuildError):
    """Our own code failed. The model and the request may be right.

    parts:  what failed, from the outside in: ``pass fuse_conv``, ``kernel matmul/tiled`` ...
    folder: where a reproduction is stored; ``""`` where none could be written.
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
        return {**super().to_json(), "parts": list(self.parts), "reproduction": self.folder or None}


class KernelRefused(BuildError):
    """A library does not compute calls of a program on this machine: it has no algorithm, or not the one that is pinned.

    calls: of each, the kernel, the nodes of the model and the library's reason.
    """

    def __init__(
        self, who: str, what: str, *, got: object = None, do: str = "", calls: tuple[RefusedCall, ...] = ()
    ) -> None:
        super().__init__(who, what, got=got, do=do)
        self.calls = calls


class BuildTimeout(BuildError, TimeoutError):
    """Building took longer than ``compile_timeout_s``; whatever was at it has been ended."""


class WrongResult(BuildError):
    """A program was compiled and its outputs disagree with an independent reference, so it is not used (``self_check``)."""


class RunError(XpuError):
    """A vendor failed while running; its own text is in ``got``."""

    exit_code = 8


class OutOfMemory(RunError, MemoryError):
    """A device has no memory of the size asked for; what is loaded goes on working."""


class PluginError(BuildError, RunError):
    """The code of a plug-in failed: an engine or a backend of another package, which the text names."""


class RunTimeout(RunError, TimeoutError):
    """A run took longer than ``run_timeout_s`` and was ended; the session goes on."""


class RunCancelled(RunError):
    """A run was ended by ``cancel`` or ``close``."""


class StoreError(XpuError):
    """The store's folder cannot be read, written or locked, or the disk is full."""

    exit_code = 9


class FormatError(XpuError):
    """A file that xpuruntime wrote is truncated, corrupted, or from a newer version."""

    exit_code = 9
