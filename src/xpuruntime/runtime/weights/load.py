"""load_weights: converts a model's arrays once to the buffers that kernels read. Executors share the result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from ...arguments import check_argument, check_several
from ...errors import InputError
from ...program.program import CompiledProgram, WeightRef, WeightTransformRecipe
from ...program.recipe_check import weights_of
from ...storage.checkpoints import WeightSource
from ...storage.tensor_files import TensorFiles, element_digest
from ...types import DType, TensorSpec
from ..memory.buffer import DeviceBuffer, backend_of, host_array
from ..memory.layouts import flat_bytes
from .recipes import recipe_bytes, run_recipe

__all__ = ["Weights", "load_weights"]


class Weights(Mapping[str, DeviceBuffer]):
    """Weight buffers of a program by name, on one device. ``size_bytes``: their total size. They are read-only."""

    def __init__(self, program: CompiledProgram, buffers: Mapping[str, DeviceBuffer]) -> None:
        self.program = program
        self._buffers = dict(buffers)
        self.size_bytes = sum(recipe_bytes(r) for r in program.recipes)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> DeviceBuffer:
        return self._buffers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)

    def __repr__(self) -> str:
        return f"Weights({self.program.name!r}, {len(self)} buffers, {self.size_bytes} bytes)"


def load_weights(
    source: str | os.PathLike[str] | Mapping[str, Any] | None,
    program: CompiledProgram,
    device: Any = "cpu",
    *,
    shared: Iterable[Weights] = (),
    check: bool = True,
    on_progress: Callable[[int, int], object] | None = None,
) -> Weights:
    """Read a model's weights, run the program's recipes, and store the results on a device.

    source: one of
            - a checkpoint, which is memory-mapped: a safetensors file, the index of its shards, or a folder with either, as
              ``save_pretrained`` writes it;
            - a folder that contains the weight files which the program names;
            - arrays or tensors by name;
            - None, if the program embeds its weights.
            Embedded arrays need no source. Names may differ by one prefix (``model.``), and a tied weight may have any of its names.
    shared: weights that other programs of this model loaded from the same source (for other shapes). A buffer of theirs with the same
            recipe and arrays is reused.
    check:  compare each array that a recipe reads with the digest of its elements, if the program has one (``extract_ir`` and
            ``ir.save_weights`` add digests). Mapped files are not copied for it. It takes about as long as reading and packing.
            False accepts other weights of the same types, which is correct if no pass read their elements.
    on_progress: called before each buffer with the bytes that are loaded and the bytes in all.
    Raises InputError for a weight that is missing or has another shape, dtype or elements than the model's, FormatError for a damaged
    file, ModelError for a file that differs from the program's description.
    """
    who = "load_weights"
    do = "Give compile(graph), or CompiledProgram.load(path)."
    check_argument(who, "program", program, CompiledProgram, "a CompiledProgram", do)
    shared = check_several(who, "shared", shared, "several Weights", "Give [load_weights(...)].")
    for weights in shared:
        check_argument(who, "shared", weights, Weights, "several Weights", "Give [load_weights(...)].")
    if on_progress is not None:
        check_argument(
            who, "on_progress", on_progress, Callable, "a function", "Give a function of two numbers."
        )
    backend = backend_of(device)
    arrays = _Arrays(source, program, check)
    loaded = {name: (array, w[name]) for w in shared for name, array in _origins(w.program).items()}
    buffers: dict[str, DeviceBuffer] = {}
    origins = _origins(program) if loaded else {}
    total, done = sum(recipe_bytes(r) for r in program.recipes), 0
    for recipe in program.recipes:
        if on_progress is not None:
            on_progress(done, total)
        done += recipe_bytes(recipe)
        origin, reusable = loaded.get(recipe.name, (None, None))
        if (
            reusable is not None
            and origin == origins[recipe.name]
            and backend.shares_memory(reusable.backend)
        ):
            buffers[recipe.name] = reusable
            continue
        array = run_recipe(recipe, arrays)
        handle = backend.allocate(recipe_bytes(recipe))
        buffer = DeviceBuffer(handle, recipe.spec, backend)
        backend.upload(handle, flat_bytes(array))
        buffers[recipe.name] = buffer
    return Weights(program, buffers)


_Origin = tuple[WeightTransformRecipe, tuple[WeightRef, ...]]


def _origins(program: CompiledProgram) -> dict[str, _Origin]:
    """Return the recipe and the weights of each buffer. Buffers with equal origins have the same content."""
    refs = {w.name: w for w in program.weights}
    return {r.name: (r, tuple(refs[n] for n in sorted(weights_of(r)))) for r in program.recipes}


class _Arrays(Mapping[str, NDArray[Any]]):
    """The model's arrays by name. Each is checked when a recipe first reads it."""

    def __init__(self, source: Any, program: CompiledProgram, check: bool) -> None:
        self._unverified = (
            {w.name for w in program.weights if w.digest and w.data is None} if check else set()
        )
        self._refs = {w.name: w for w in program.weights}
        self._who = f"weights of program {program.name!r}"
        read = {name for recipe in program.recipes for name in weights_of(recipe)}
        needed = [w for w in program.weights if w.name in read]
        self._source = WeightSource(self._who, source, needed, program.facts.get("aliases"))
        self._from_files = source is None or self._source.folder is not None
        self._files = TensorFiles(self._source.folder or program.folder or ".")

    def __contains__(self, name: object) -> bool:
        return name in self._refs

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def __getitem__(self, name: str) -> NDArray[Any]:
        ref = self._refs[name]
        supplied = self._source.find(ref)
        if supplied is not None:
            return self._verified(ref, self._checked(ref, host_array(supplied)))
        if ref.data is not None:
            return ref.array()
        if self._from_files and ref.file:
            array = self._files.read(
                name, ref.spec, file=ref.file, form=ref.format, key=ref.key, offset=ref.offset
            )
            return self._verified(ref, array)
        raise InputError(
            self._who,
            f"weight {name!r} is missing",
            got=f"{len(self._source.arrays)} arrays, none called {name!r}"
            + (f" or {ref.key!r}" if ref.key else ""),
            do=f"Pass {ref.spec} by that name.",
        )

    def _verified(self, ref: WeightRef, array: NDArray[Any]) -> NDArray[Any]:
        """Compare an array with its digest at the first read. Row-major memory is not copied."""
        if ref.name in self._unverified:
            digest = element_digest(array, ref.spec.dtype)
            if digest != ref.digest:
                raise InputError(
                    self._who,
                    f"weight {ref.name!r} has other elements than in the compiled model",
                    got=f"sha256 {digest[:12]}..., expected {ref.digest[:12]}...",
                    do="Give that model's weights, or check=False to accept others of the same types.",
                )
            self._unverified.discard(ref.name)
        return array

    def _checked(self, ref: WeightRef, array: NDArray[Any]) -> NDArray[Any]:
        spec = TensorSpec(tuple(array.shape), DType.of(array.dtype))
        if spec.shape != ref.spec.shape or spec.dtype is not ref.spec.dtype:
            raise InputError(
                self._who,
                f"weight {ref.name!r} must be {ref.spec}",
                got=spec,
                do="Give the weights of the compiled model.",
            )
        return array
