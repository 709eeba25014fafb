"""The exit codes of ``xpu``: one table, documented in docs/reference/command-line.md and tested against it."""

from __future__ import annotations

import enum

__all__ = ["MEANINGS", "ExitCode"]


class ExitCode(enum.IntEnum):
    """What a script may branch on. Errors carry theirs in ``XpuError.exit_code``."""

    OK = 0
    NO = 1
    USAGE = 2
    MODEL = 3
    INPUT = 4
    POLICY = 5
    UNAVAILABLE = 6
    STRICT = 7
    FAILED = 8
    FILE = 9
    INTERNAL = 70
    INTERRUPTED = 130
    PIPE = 141


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "it worked, or the answer is yes",
    ExitCode.NO: "the answer is no: compare found a difference, bench or conformance a wrong output, doctor a problem, cache damage",
    ExitCode.USAGE: "the command line itself is wrong: unknown verb or option, a value that cannot be read",
    ExitCode.MODEL: "the model is not usable: missing, not a model, truncated, unsafe external data",
    ExitCode.INPUT: "an input is not usable: wrong name, dtype, rank, shape, or a file that holds no array",
    ExitCode.POLICY: "a policy is not usable: file, option or environment",
    ExitCode.UNAVAILABLE: "what was named cannot be had: engine, device, precision or kernel; the decision says why",
    ExitCode.STRICT: "--strict, and the evidence does not confirm the plan",
    ExitCode.FAILED: "an engine failed to build or to run the model",
    ExitCode.FILE: "a file or folder cannot be read or written: the store, --output, stdout, a damaged file of ours",
    ExitCode.INTERNAL: "a fault in xpuruntime itself; XPU_DEBUG=1 shows where",
    ExitCode.INTERRUPTED: "interrupted from the keyboard",
    ExitCode.PIPE: "whoever read the output left early, as head does; nothing is said about it",
}
