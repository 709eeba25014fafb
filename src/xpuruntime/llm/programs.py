"""DecoderPrograms: the compiled programs of one opened language model, from the store or from the compiler.

The first program has decode, every prefill length, and the first chunks of long ones. Entry points that not every text needs (``sample``, ``verify_N``) are programs of their
own, made when they are first needed. All of them share weights and states by name. A program in the store needs neither graphs nor the
compiler.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .. import __version__
from ..codegen.target import CodegenTarget
from ..compiler.resolve import resolve_target
from ..errors import BuildError, FormatError, KernelRefused, StoreError, UnavailableError
from ..inference.native.engine import compiler_facts
from ..ir import Graph
from ..kernels.user.kernel import named_digests
from ..policies import Resolved
from ..printable import logger
from ..program.program import CompiledProgram
from ..protocols import Array
from ..runtime import Weights, load_weights
from ..runtime.weights.kept import KeptWeights
from ..storage.files import SETTLED_S, file_identity
from ..storage.store import Store, digest
from .build import FUSIONS, build_program, entry_graph
from .checkpoint.data import Checkpoint, blocks_name

__all__ = ["DecoderPrograms", "LoadedWeights", "OpenedProgram"]

_log = logger("xpuruntime.session")
_KIND = "artifact"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class OpenedProgram:
    """A program, where it came from, and the seconds that this took."""

    program: CompiledProgram
    from_store: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Where the weights came from, their bytes, and the seconds that this took."""

    from_store: bool
    size_bytes: int
    seconds: float


class DecoderPrograms:
    """The programs of a checkpoint.

    sizes:   words of ``graph`` besides the checkpoint's, such as ``capacity``.
    target:  what is compiled for; also what the key of the store names.
    demands: the policy. store: where programs are kept.
    graph:   returns the graph of an entry point. Default: ``entry_graph``.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        sizes: Mapping[str, Any],
        target: Any,
        demands: Resolved,
        store: Store,
        graph: Callable[..., Graph] | None = None,
    ) -> None:
        self._checkpoint, self._demands, self._store = checkpoint, demands, store
        self._sizes, self._graph = dict(sizes), graph or entry_graph
        self._target: CodegenTarget = resolve_target(target)
        self.opened: dict[tuple[str, ...], OpenedProgram] = {}
        self.loaded: LoadedWeights | None = None

    def get(self, entries: Sequence[str], *, fresh: bool = False) -> CompiledProgram:
        """Return the program with these entry points. ``fresh`` replaces a program of the store that this machine cannot run.

        Raises the errors of ``compile``.
        """
        began = time.perf_counter()
        ingredients = self._ingredients(entries)
        key = digest(ingredients)
        with self._store.lock(key):
            program = None if fresh else self._stored(key)
            found = program is not None
            if program is None:
                program = self._compiled(entries)
                self._keep(ingredients, program)
        self.opened[tuple(entries)] = OpenedProgram(program, found, time.perf_counter() - began)
        return program

    def load(
        self, entries: Sequence[str], load: Callable[[CompiledProgram], _T]
    ) -> tuple[CompiledProgram, _T]:
        """Return the program with these entry points, and the result of ``load``. A program of the store that cannot be loaded is replaced:
        a library that it calls may be gone.
        """
        program = self.get(entries)
        try:
            return program, load(program)
        except (KernelRefused, UnavailableError, BuildError):
            if not self.opened[tuple(entries)].from_store:
                raise
            program = self.get(entries, fresh=True)
            return program, load(program)

    def weights(
        self,
        program: CompiledProgram,
        device: Any,
        on_progress: Callable[[int, int], object] | None = None,
        *,
        rank: int = 0,
        arrays: Mapping[str, Array] | None = None,
    ) -> tuple[Weights, KeptWeights]:
        """Return the weights of a program, mapped from the store if they are there, and what keeps them there.

        rank, arrays: of a decoder that is divided over several devices: which part these are.
        """
        began = time.perf_counter()
        kept = self._kept(program, rank)
        weights = kept.open(program, device)
        found = weights is not None
        if weights is None:
            source = self._checkpoint.arrays if arrays is None else arrays
            weights = load_weights(source, program, device, on_progress=on_progress)
            kept.keep(weights)
        if rank == 0:
            self.loaded = LoadedWeights(found, weights.size_bytes, time.perf_counter() - began)
        return weights, kept

    def _kept(self, program: CompiledProgram, rank: int) -> KeptWeights:
        """Return the place of a program's weights in the store. Those without files, or of files that just changed, are not kept."""
        sources, now = self._checkpoint.sources, time.time()
        identities = [file_identity(s) for s in sources]
        known = bool(sources) and all(
            i is not None and now - max(i[3], i[4]) / 1e9 > SETTLED_S for i in identities
        )
        ingredients = {
            "xpuruntime": __version__,
            "packing": {**compiler_facts(), "llm": _files_digest("llm", "runtime", "storage")},
            "program": program.digest,
            "rank": rank,
            "recipes": digest({"recipes": plain(program.recipes)}),
            "files": [[str(s.absolute()), i] for s, i in zip(sources, identities, strict=True)],
        }
        return KeptWeights(self._store if known else Store(mode="off"), ingredients)

    def _stored(self, key: str) -> CompiledProgram | None:
        blob = self._store.view(_KIND, key)
        if blob is None:
            return None
        try:
            return CompiledProgram.from_bytes(blob)
        except Exception as error:  # its checksum is right, but another release wrote it
            self._store.forget(_KIND, key, f"is refused; got {type(error).__name__}: {error}")
            return None

    def _compiled(self, entries: Sequence[str]) -> CompiledProgram:
        c = self._checkpoint
        graphs = {
            e: self._graph(
                e, c.config, **self._sizes, stored=c.specs, files=c.files, name=c.name, **self._blocks()
            )
            for e in entries
        }
        level = self._demands.policy.execution.optimization_level
        return build_program(
            graphs, target=self._target, policy=self._demands, passes=FUSIONS if level is None else None
        )

    def _blocks(self) -> dict[str, Any]:
        """Return the word of graphs that read weights in blocks, if the policy keeps some as they are stored."""
        blocks = self._checkpoint.blocks
        return {"blocks": blocks} if blocks and self._demands.policy.kernel.names_weights("stored") else {}

    def in_blocks(self) -> tuple[set[str], set[str]]:
        """Return the weights of the checkpoint that programs read in their blocks, and those whose blocks they read as floats."""
        names = {blocks_name(n): n for n in self._checkpoint.blocks}
        kept, widened = set[str](), set[str]()
        for opened in self.opened.values():
            for recipe in opened.program.recipes:
                for step in recipe.steps:
                    read = kept if step.op == "groups_of_blocks" else widened
                    read |= {names[i] for i in step.inputs if i in names}
        return kept, widened

    def _keep(self, ingredients: Mapping[str, Any], program: CompiledProgram) -> None:
        try:
            self._store.put(_KIND, ingredients, program.to_bytes())
        except (StoreError, FormatError) as error:  # a full disk must not stop a model that is compiled
            _log.warning("%s The model runs; the next start compiles it again.", error)

    def _ingredients(self, entries: Sequence[str]) -> dict[str, Any]:
        """Return everything that decides a program."""
        c, policy = self._checkpoint, self._demands.policy
        specs = {n: [str(s), c.files.get(n, "")] for n, s in sorted(c.specs.items())}
        execution = dataclasses.replace(policy.execution, caching=None, self_check=None)
        return {
            "xpuruntime": __version__,
            "engine": "native",
            "entries": list(entries),
            "compiler": {**compiler_facts(), "llm": _files_digest("llm")},
            "model": [
                c.name,
                digest({"config": plain(c.config), "weights": specs, "blocks": dict(c.blocks)}),
            ],
            "sizes": plain(self._sizes),
            "target": [self._target.name, repr(self._target.config), bool(self._target.here)],
            "kernels": plain(policy.kernel.to_dict()),
            "execution": plain(execution.set_fields()),
            "user_kernels": plain(named_digests(policy.kernel)),
        }


def plain(value: Any) -> Any:
    """Return settings as plain data that is equal for equal settings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((plain(v) for v in value), key=json.dumps)
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value if isinstance(value, str | int | bool | None) else repr(value)


@functools.cache
def _files_digest(*rooms: str) -> str:
    """Return the sha256 of the files of some parts of the package: of those that make graphs of checkpoints, and that pack weights."""
    result = hashlib.sha256()
    for room in rooms:
        for file in sorted((Path(__file__).parents[1] / room).rglob("*.py")):
            result.update(file.name.encode() + file.read_bytes())
    return result.hexdigest()
