"""Toolchains: compile a C++ text to a shared library with a compiler of this machine.

The search order is ``$CXX``, ``g++``, ``clang++``, and ``zig c++`` of the ``ziglang`` package. For another architecture it is ``$CXX``,
``aarch64-linux-gnu-g++``, ``clang++ --target=...`` and ``zig c++ -target ...``; each of them must compile a test for it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ...children import environment, python, run, scratch
from ...errors import BuildError
from ...storage.store import Store
from ..binary_cache import cached_binary

__all__ = ["FLAGS", "TextRefused", "Toolchain", "cxx_toolchain"]

# Freestanding code without any library. NaN, infinities and signed zeros follow IEEE 754, and integers wrap around.
# A product and a sum may become one FMA. Floating-point flags and errno are not set.
FLAGS: tuple[str, ...] = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-shared",
    "-ffreestanding",
    "-nostdlib",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-threadsafe-statics",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-w",
)
# Every symbol must be defined in the text.
_LINK = ("-Wl,-z,defs", "-Wl,--build-id=none", "-s")
_SECONDS = 600
"""Time limit of a compilation."""
# Variables that change what GCC and Clang run or read.
_READ_BY_COMPILERS = ("COMPILER_PATH", "GCC_EXEC_PREFIX", "LIBRARY_PATH", "CCC_OVERRIDE_OPTIONS", "CPATH")


_TRIVIAL = "int nothing;"


class TextRefused(BuildError):
    """A working compiler rejects a text."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C++ compiler: its command and its version."""

    command: tuple[str, ...]
    version: str

    def build(
        self,
        source: str,
        flags: tuple[str, ...] = (),
        *,
        who: str = "codegen",
        store: Store | None = None,
        keep: bool = True,
        objects: tuple[bytes, ...] = (),
    ) -> bytes:
        """Return the shared library of a C++ text, from the store if it is there. With the flag ``-c`` it is an object file.

        keep:    whether to use the store; False for a text that reads other files.
        objects: object files that the library is linked with.
        Raises BuildError with the compiler's message, or the system's if files cannot be written.
        """
        try:
            identity = self._identity() if keep else ()
            if not identity:
                return self._build(source, flags, who, objects)
            facts: dict[str, object] = {"flags": [*FLAGS, *flags, *_LINK], "compiler": identity}
            if objects:
                facts["objects"] = [hashlib.sha256(data).hexdigest() for data in objects]
            return cached_binary(
                "object", source, facts, lambda: self._build(source, flags, who, objects), store
            )
        except OSError as error:
            raise BuildError(
                who,
                "cannot write the generated code",
                got=f"{tempfile.gettempdir()}: {error.strerror or error}",
                do="Free disk space there, or set TMPDIR to another folder.",
            ) from error

    def _build(self, source: str, flags: tuple[str, ...], who: str, objects: tuple[bytes, ...] = ()) -> bytes:
        with scratch("xpu-codegen-") as folder:
            text, library = folder / "kernels.cpp", folder / "kernels.so"
            text.write_text(source, encoding="utf-8")
            linked = [folder / f"{i}.o" for i in range(len(objects))]
            for path, data in zip(linked, objects, strict=True):
                path.write_bytes(data)
            command = [
                *self.command,
                *FLAGS,
                *flags,
                *_LINK,
                "-o",
                str(library),
                *map(str, linked),
                str(text),
            ]
            try:
                result = run(command, _SECONDS, environment(TMPDIR=str(folder)))
            except (OSError, subprocess.TimeoutExpired) as error:
                raise BuildError(
                    who,
                    "the C++ compiler could not be run",
                    got=f"{error}",
                    do="Set CXX to a working compiler.",
                ) from error
            if result.returncode == 0:
                return library.read_bytes()
            works = result.returncode > 0 and source != _TRIVIAL and self._works(flags, who, objects)
            raise (TextRefused if works else BuildError)(
                who,
                f"{self.version} rejects the generated code"
                if result.returncode > 0
                else f"{self.version} was ended by signal {-result.returncode}",
                got=_head(result.stderr),
                do="Set CXX to another compiler."
                if result.returncode > 0
                else "Free memory, or set CXX to another compiler.",
            )

    def _identity(self) -> list[object]:
        """Return what identifies this compiler: command, version, and its file's size and time.

        It is empty if the compiler cannot be identified: zig is started by Python's executable, and zig has its own cache.
        """
        path = shutil.which(self.command[0])
        if path is None or not self.version or "ziglang" in self.command:
            return []
        facts = Path(path).resolve().stat()
        read = [os.environ.get(name, "") for name in _READ_BY_COMPILERS]
        return [list(self.command), self.version, facts.st_size, facts.st_mtime_ns, read]

    def _works(self, flags: tuple[str, ...], who: str, objects: tuple[bytes, ...]) -> bool:
        """Return True if the compiler compiles an empty text with the same flags."""
        try:
            self._build(_TRIVIAL, flags, who, objects)
        except BuildError:
            return False
        return True


def cxx_toolchain(architecture: str = "") -> Toolchain:
    """Return the first compiler that generates code for an architecture (``x86_64``, ``aarch64``); by default this machine's.

    Raises BuildError with all candidates if there is none.
    """
    this_machine = platform.machine()
    architecture = architecture or this_machine
    tried = []
    for command in _candidates(architecture):
        version = _version(command)
        makes = (
            "" if not version else this_machine if architecture == this_machine else _makes_code_for(command)
        )
        if makes == architecture:
            return Toolchain(command, version)
        tried.append(shlex.join(command) + (f" (makes code for {makes})" if makes else ""))
        if command == _from_environment():
            break  # CXX is a demand: no other compiler is tried
    foreign = architecture != this_machine
    raise BuildError(
        "codegen",
        f"no C++ compiler for {architecture} on this machine"
        if foreign
        else "no C++ compiler on this machine",
        got=f"tried {', '.join(tried) or 'g++, clang++, zig c++'}",
        do=f"Install {_cross(architecture)} or `pip install ziglang`, or set CXX to a compiler that makes code for {architecture}."
        if foreign
        else "Install g++ or clang++, `pip install ziglang`, or set CXX.",
    )


def _from_environment() -> tuple[str, ...]:
    named = os.environ.get("CXX", "")
    try:
        return tuple(shlex.split(named))
    except ValueError as error:  # an unmatched quotation mark
        raise BuildError(
            "environment CXX",
            f"is not a command: {error}",
            got=repr(named),
            do="Unset it or set it to a C++ compiler.",
        ) from error


def _cross(architecture: str) -> str:
    """Return the name of GCC's cross compiler."""
    return f"{architecture}-linux-gnu-g++"


def _candidates(architecture: str) -> list[tuple[str, ...]]:
    named = _from_environment()
    candidates = [named] if named else []
    zig: tuple[str, ...] = (*python("-m", "ziglang"), "c++")
    if architecture == platform.machine():
        known: list[tuple[str, ...]] = [("g++",), ("clang++",)]
    else:
        system = f"{architecture}-linux-gnu"
        known = [(_cross(architecture),), ("clang++", f"--target={system}", "-fuse-ld=lld")]
        zig = (*zig, "-target", system)
    candidates += [command for command in known if shutil.which(command[0])]
    if importlib.util.find_spec("ziglang") is not None:
        candidates.append(zig)
    return candidates


_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of an ELF file, from the System V ABI's list


@functools.cache
def _makes_code_for(command: tuple[str, ...]) -> str:
    """Return the architecture of a compiler's output; ``""`` if it cannot build, for example without a linker."""
    try:
        library = Toolchain(command, "").build(_TRIVIAL)
    except BuildError:
        return ""
    machine = int.from_bytes(library[18:20], "little")
    return _MACHINES.get(machine, f"ELF machine {machine}") if library[:4] == b"\x7fELF" else "another format"


def _version(command: tuple[str, ...]) -> str:
    """Return the first line of ``--version``; empty if the command does not work."""
    try:
        done = run([*command, "--version"], 60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else ""


def _head(text: str, lines: int = 20) -> str:
    """Return the first lines of a compiler's output; later lines mostly repeat them."""
    head = text.strip().splitlines()
    return "\n".join(head[:lines] + (["..."] if len(head) > lines else []))
