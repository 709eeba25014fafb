"""Where the programs of a native session come from: compiled when their shapes are met (or taken from the store), or given in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from ...errors import InputError, KernelRefused, XpuError
from ...ir import bind
from ...printable import logger
from ...program.program import CompiledProgram
from ...protocols import EngineRequest, ModelSource
from ...types import TensorSpec
from ..execution.timeouts import call_within
from ..models.shape_cache import KeptShapes
from .library_refusals import kernel_policy, without
from .model import native_model

__all__ = ["Compiled", "Given", "Programs"]

_log = logger("xpuruntime.session")
_COMPILE = "xpuruntime.inference.native.engine:compiled_bytes"
CompileFor = Callable[[EngineRequest, Mapping[str, int]], CompiledProgram]
Found = tuple[CompiledProgram, str]
"""A program and which of its entry points."""


class Programs(Protocol):
    """only: the program of a session whose shapes are fixed. ``weights``: what ``load_weights`` takes as the source."""

    only: Found | None

    @property
    def weights(self) -> Any:
        """The model's arrays by name; None where the program holds or names them."""
        ...

    def find(self, shapes: Mapping[str, tuple[int, ...]]) -> Found:
        """The program for inputs of these shapes. Raises BuildError, InputError."""
        ...

    def find_without(self, shapes: Mapping[str, tuple[int, ...]], refused: KernelRefused) -> Found:
        """The same without the calls that libraries decline. Raises ``refused`` where they are demanded or nothing else computes them."""
        ...

    def note(self) -> str:
        """Where programs came from, as part of a receipt's sentence."""
        ...


class Compiled:
    """Programs of a model. ``program``: the one of a model with static shapes."""

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
        self._kept: KeptShapes | None = None

    @property
    def weights(self) -> Any:
        """Of the model."""
        return native_model(self._model).weights

    def limit(self, seconds: float) -> None:
        """Compile from now on in a process that is ended after ``seconds``: BuildTimeout."""
        model = self._model

        def within(request: EngineRequest, shapes: Mapping[str, int]) -> CompiledProgram:
            program = call_within(_COMPILE, (model, request, dict(shapes)), seconds, f"{self._who}, {shapes}")
            return CompiledProgram.from_bytes(program)

        self._compile_for, self._limit_s = within, seconds

    def keep_in(self, kept: KeptShapes) -> None:
        """Take programs from the store where they lie there, and keep those that are compiled."""
        self._kept = kept

    def find(self, shapes: Mapping[str, tuple[int, ...]]) -> Found:
        """From the store, else compiled and kept there."""
        symbols = bind(native_model(self._model).graph.input_specs, shapes)
        if self._kept is None:
            self.compiled += 1
            return self._compile_for(self._request, symbols), ""
        with self._kept.building(symbols, f"{self._who}, {symbols}", self._limit_s):
            blob = self._kept.get(symbols)
            if blob is not None:
                try:
                    program = CompiledProgram.from_bytes(blob)
                except Exception as error:  # whole by its checksum, yet of another release
                    _log.warning("%s It is compiled again.", error)
                else:
                    self.stored += 1
                    return program, ""
            program = self._compile_for(self._request, symbols)
            self.compiled += 1
            self._kept.put(symbols, program.to_bytes())
            return program, ""

    def find_without(self, shapes: Mapping[str, tuple[int, ...]], refused: KernelRefused) -> Found:
        """Compiled again, for these (none: a model with static shapes) and all later ones, and not kept in the store: it is what this machine's libraries say today."""
        policy = without(kernel_policy(self._request), refused.calls)
        request = replace(self._request, kernels=json.dumps(policy.to_dict(), sort_keys=True))
        if request == self._request:
            raise refused  # what is forced is declined again
        symbols = bind(native_model(self._model).graph.input_specs, shapes) if shapes else {}
        try:
            program = self._compile_for(request, symbols)
        except XpuError as error:
            raise refused from error
        self.compiled += 1
        self._request, self._kept = request, None
        return program, ""

    def note(self) -> str:
        """How many were compiled, and how many taken from the store."""
        met = self.compiled + self.stored
        sets = "set" if met == 1 else "sets"
        return f"{met} {sets} of shapes met: {self.compiled} compiled, {self.stored} taken from the store"


class Given:
    """Entry points of a program that was compiled before; those of ``entries`` take the same inputs in other shapes."""

    weights = None

    def __init__(self, program: CompiledProgram, entries: tuple[str, ...]) -> None:
        self._program, self._entries = program, entries
        self.only: Found | None = (program, entries[0]) if len(entries) == 1 else None

    def find(self, shapes: Mapping[str, tuple[int, ...]]) -> Found:
        """The entry point whose inputs have these shapes. Raises InputError with the shapes that there are."""
        for name in self._entries:
            if all(tuple(shapes[s.name]) == s.shape for s in self._program.entry(name).inputs):
                return self._program, name
        raise InputError(
            f"program {self._program.name!r}",
            "has no entry point for these shapes",
            got=", ".join(f"{n} {list(s)}" for n, s in shapes.items()),
            do=f"It has {'; '.join(f'{n}: {_shapes(self._program.entry(n).inputs)}' for n in self._entries)}.",
        )

    def find_without(self, shapes: Mapping[str, tuple[int, ...]], refused: KernelRefused) -> Found:
        """It is compiled already."""
        raise refused

    def note(self) -> str:
        """How many there are."""
        return f"{len(self._entries)} entry points of a program"


def _shapes(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{s.name} {list(s.shape)}" for s in specs)
