"""Sources of a native session's programs: compiled at the first run of their shapes, read from the store, or given in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from ...child_calls import call_within
from ...errors import InputError, KernelRefused, XpuError
from ...ir import bind
from ...printable import logger
from ...program.program import CompiledProgram
from ...protocols import EngineRequest, ModelSource, ShapeStore
from ...types import TensorSpec
from .library_refusals import kernel_policy, without
from .model import is_settled, native_model, sized_model

__all__ = ["Compiled", "Given", "Programs"]

_log = logger("xpuruntime.session")
_COMPILE = "xpuruntime.inference.native.engine:compiled_bytes"
CompileFor = Callable[[EngineRequest, Mapping[str, int]], CompiledProgram]
Found = tuple[CompiledProgram, str]
"""A program and the name of an entry point."""


class Programs(Protocol):
    """A source of programs. only: the program of a session with fixed shapes."""

    only: Found | None

    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> Any:
        """Return the model's arrays by name for inputs of these shapes, or None if the program holds or names them."""
        ...

    def import_of(self, shapes: Mapping[str, tuple[int, ...]]) -> str:
        """Return what distinguishes the import for these shapes from others of the model, whose weights may have other names."""
        ...

    def find(self, shapes: Mapping[str, tuple[int, ...]]) -> Found:
        """Return the program for inputs of these shapes. Raises BuildError, InputError."""
        ...

    def find_without(
        self, shapes: Mapping[str, tuple[int, ...]], refused: KernelRefused, program: CompiledProgram
    ) -> Found:
        """Return ``program`` without the calls that libraries declined. Raises ``refused`` if they are forced or have no alternative."""
        ...

    def note(self) -> str:
        """Return the origin of the programs as part of a receipt's sentence."""
        ...


class Compiled:
    """Compiled programs of a model. ``program``: the one of a model with static shapes."""

    def __init__(
        self,
        model: ModelSource,
        request: EngineRequest,
        program: CompiledProgram | None,
        compile_for: CompileFor,
    ) -> None:
        self.only: Found | None = None if program is None else (program, "")
        self.compiled = self.stored = 0
        self._model, self._request, self._compile_for = model, request, compile_for
        self._who = f"native, model {model.name}"
        self._limit_s: float | None = None
        self._kept: ShapeStore | None = None

    @property
    def request(self) -> EngineRequest:
        """Return the request of the programs; it leaves out the kernels that libraries declined."""
        return self._request

    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> Any:
        """Return the model's weights."""
        symbols = bind(native_model(self._model).graph.input_specs, shapes) if shapes else {}
        return sized_model(self._model, symbols).weights

    def import_of(self, shapes: Mapping[str, tuple[int, ...]]) -> str:
        """Return the shapes if the model is imported for each set of them."""
        graph = native_model(self._model).graph
        return f" {sorted(shapes.items())}" if shapes and not is_settled(graph) else ""

    def limit(self, seconds: float) -> None:
        """Compile from now on in a process with a time limit of ``seconds``; raise BuildTimeout after it."""
        model = self._model

        def within(request: EngineRequest, shapes: Mapping[str, int]) -> CompiledProgram:
            program = call_within(_COMPILE, (model, request, dict(shapes)), seconds, f"{self._who}, {shapes}")
            return CompiledProgram.from_bytes(program)

        self._compile_for, self._limit_s = within, seconds

    def keep_in(self, store: ShapeStore) -> None:
        """Read programs from the store if they are there, and store those that are compiled."""
        self._kept = store

    def find(self, shapes: Mapping[str, tuple[int, ...]]) -> Found:
        """Return the stored program, otherwise compile and store it."""
        symbols = bind(native_model(self._model).graph.input_specs, shapes)
        if self._kept is None:
            self.compiled += 1
            return self._compile_for(self._request, symbols), ""
        with self._kept.building(symbols, f"{self._who}, {symbols}", self._limit_s):
            blob = self._kept.get(symbols)
            if blob is not None:
                try:
                    program = CompiledProgram.from_bytes(blob)
                except Exception as error:  # its checksum is right, but another release wrote it
                    _log.warning("%s It is compiled again.", error)
                else:
                    self.stored += 1
                    return program, ""
            request = self._request
            if request.tune is not None:
                request = replace(
                    request, tune=replace(request.tune, remeasure_reason=self._kept.remeasure_reason(symbols))
                )
            program = self._compile_for(request, symbols)
            self.compiled += 1
            self._kept.put(symbols, program.to_bytes())
            return program, ""

    def find_without(
        self, shapes: Mapping[str, tuple[int, ...]], refused: KernelRefused, program: CompiledProgram
    ) -> Found:
        """Recompile these shapes (none: a model with static shapes) and all later ones without the declined calls. The result is not stored, because it
        depends on the libraries of this machine. Kernels that were measured for ``program`` are not measured again.
        """
        policy = without(kernel_policy(self._request), refused.calls)
        request = replace(self._request, kernels=policy)
        if request == self._request:
            raise refused  # a forced kernel would be declined again
        symbols = bind(native_model(self._model).graph.input_specs, shapes) if shapes else {}
        from ..tuning.on_build import record_of  # imports the compiler, as the next program does

        try:
            measured = None if request.tune is None else replace(request.tune, record=record_of(program))
            program = self._compile_for(replace(request, tune=measured), symbols)
        except XpuError as error:
            raise refused from error
        self.compiled += 1
        self._request, self._kept = request, None
        return program, ""

    def note(self) -> str:
        """Return how many were compiled and how many came from the store."""
        met = self.compiled + self.stored
        sets = "set" if met == 1 else "sets"
        return f"{met} {sets} of shapes met: {self.compiled} compiled, {self.stored} taken from the store"


class Given:
    """Entry points of a program that was compiled before. ``entries`` take the same inputs in different shapes."""

    def __init__(self, program: CompiledProgram, entries: tuple[str, ...]) -> None:
        self._program, self._entries = program, entries
        self.only: Found | None = (program, entries[0]) if len(entries) == 1 else None

    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> Any:
        """Return None: the program holds or names its weights."""
        return None

    def import_of(self, shapes: Mapping[str, tuple[int, ...]]) -> str:
        """Return an empty string: all entry points have the same weights."""
        return ""

    def find(self, shapes: Mapping[str, tuple[int, ...]]) -> Found:
        """Return the entry point for these shapes. Raises InputError that lists the available shapes."""
        for name in self._entries:
            if all(tuple(shapes[s.name]) == s.shape for s in self._program.entry(name).inputs):
                return self._program, name
        raise InputError(
            f"program {self._program.name!r}",
            "has no entry point for these shapes",
            got=", ".join(f"{n} {list(s)}" for n, s in shapes.items()),
            do=f"It has {'; '.join(f'{n}: {_shapes(self._program.entry(n).inputs)}' for n in self._entries)}.",
        )

    def find_without(
        self, shapes: Mapping[str, tuple[int, ...]], refused: KernelRefused, program: CompiledProgram
    ) -> Found:
        """Raise ``refused``: the program cannot be recompiled."""
        raise refused

    def note(self) -> str:
        """Return the number of entry points."""
        return f"{len(self._entries)} entry points of a program"


def _shapes(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{s.name} {list(s.shape)}" for s in specs)
