"""load_weights: turns a model's arrays into the buffers that kernels read, once; executors share them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

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
) -> Weights:
    """Read a model's weights, run the program's recipes, and keep the results on a device.

    source: a checkpoint, memory-mapped: a safetensors file, the index of its shards, or a folder with either (what ``save_pretrained`` writes);
            a folder below which the program's own file names are looked up; arrays or tensors by name; or None where the program holds
            its weights. Arrays that the program holds itself need no source. Names may differ by one prefix (``model.``), and a tied
            weight may have any of its names.
    shared: what other programs of this model loaded from the same source (for other shapes): a buffer that one of them made by the
            same recipe of the same arrays is taken, not made again.
    check:  hold each array that a recipe reads to the digest of its elements, where the program states one (``extract_ir`` and ``ir.save_weights`` do). A
            mapped file is not copied for it. It costs about as much time as reading and packing. False takes other weights of the same types, which is right for passes that looked at no element.
    Raises InputError for a weight that is missing or has another shape, dtype or elements than the model's, FormatError for a damaged file,
    ModelError for a file that is not what the program says.
    """
    backend = backend_of(device)
    arrays = _Arrays(source, program, check)
    have = {name: (array, w[name]) for w in shared for name, array in _origins(w.program).items()}
    buffers: dict[str, DeviceBuffer] = {}
    origins = _origins(program) if have else {}
    for recipe in program.recipes:
        origin, held = have.get(recipe.name, (None, None))
        if held is not None and origin == origins[recipe.name] and backend.shares_memory(held.backend):
            buffers[recipe.name] = held
            continue
        array = run_recipe(recipe, arrays)
        handle = backend.allocate(recipe_bytes(recipe))
        buffer = DeviceBuffer(handle, recipe.spec, backend)
        backend.upload(handle, flat_bytes(array))
        buffers[recipe.name] = buffer
    return Weights(program, buffers)


_Origin = tuple[WeightTransformRecipe, tuple[WeightRef, ...]]


def _origins(program: CompiledProgram) -> dict[str, _Origin]:
    """Return the recipe and the weights behind each buffer. Two buffers with equal origins hold the same bytes."""
    refs = {w.name: w for w in program.weights}
    return {r.name: (r, tuple(refs[n] for n in sorted(weights_of(r)))) for r in program.recipes}


class _Arrays(Mapping[str, NDArray[Any]]):
    """The model's arrays by name. Each is checked when a recipe first reads it."""

    def __init__(self, source: Any, program: CompiledProgram, check: bool) -> None:
        self._unproved = {w.name for w in program.weights if w.digest and w.data is None} if check else set()
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
            return self._proved(ref, self._checked(ref, host_array(supplied)))
        if ref.data is not None:
            return ref.array()
        if self._from_files and ref.file:
            array = self._files.read(
                name, ref.spec, file=ref.file, form=ref.format, key=ref.key, offset=ref.offset
            )
            return self._proved(ref, array)
        raise InputError(
            self._who,
            f"lack {name!r}",
            got=f"{len(self._source.arrays)} arrays, none called {name!r}"
            + (f" or {ref.key!r}" if ref.key else ""),
            do=f"Hand in {ref.spec} by that name.",
        )

    def _proved(self, ref: WeightRef, array: NDArray[Any]) -> NDArray[Any]:
        """Check an array against its digest at the first read. Row-major memory is not copied."""
        if ref.name in self._unproved:
            got = element_digest(array, ref.spec.dtype)
            if got != ref.digest:
                raise InputError(
                    self._who,
                    f"hold other elements of {ref.name!r} than the model that was compiled",
                    got=f"sha256 {got[:12]}..., wanted {ref.digest[:12]}...",
                    do="Give that model's weights; check=False takes others of the same types.",
                )
            self._unproved.discard(ref.name)
        return array

    def _checked(self, ref: WeightRef, array: NDArray[Any]) -> NDArray[Any]:
        got = TensorSpec(tuple(array.shape), DType.of(array.dtype))
        if got.shape != ref.spec.shape or got.dtype is not ref.spec.dtype:
            raise InputError(
                self._who,
                f"hold another {ref.name!r} than the model's {ref.spec}",
                got=got,
                do="Give the weights of the model that was compiled.",
            )
        return array
