"""The table of exit codes. docs/reference/command-line.md repeats it, and a test compares both."""

from __future__ import annotations

import enum

__all__ = ["MEANINGS", "ExitCode"]


class ExitCode(enum.IntEnum):
    """The exit codes of ``xpu``. ``XpuError.exit_code`` is the code of an error."""

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
    ExitCode.OK: "success, or the answer is yes",
    ExitCode.NO: "the answer is no: lint found an error, check a rule that is not satisfied, compare, bisect or certify a difference, bench or conformance a wrong output, convert an item that is not carried, quantize an error over the budget, verify a failed check, doctor a problem, cache a damaged entry",
    ExitCode.USAGE: "invalid command line: unknown command or option, or a value that cannot be parsed",
    ExitCode.MODEL: "invalid model: missing, not a model, truncated, unsafe external data",
    ExitCode.INPUT: "invalid input: wrong name, dtype, rank or shape, or a file that holds no array",
    ExitCode.POLICY: "invalid policy: file, option or environment",
    ExitCode.UNAVAILABLE: "a named engine, device, precision or kernel is not available, or a lock does not hold here; the error says why",
    ExitCode.STRICT: "--strict: the run does not confirm the plan",
    ExitCode.FAILED: "an engine failed to build or to run the model",
    ExitCode.FILE: "a file or folder cannot be read or written: the store, --output, stdout, or a damaged file of xpuruntime",
    ExitCode.INTERNAL: "a bug in xpuruntime; XPU_DEBUG=1 shows the traceback",
    ExitCode.INTERRUPTED: "interrupted from the keyboard",
    ExitCode.PIPE: "the reader of stdout closed it early, as head does; nothing is printed about it",
}
