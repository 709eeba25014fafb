"""KeptWeights: the buffers of a program, as they are after its recipes, in the store.

A later start maps them: nothing is packed, copied or read before it is used. The file has the buffers in the order of the program's recipes,
each at a multiple of 64 bytes. It is written in the background, to a temporary file that is renamed, so a killed process leaves nothing that
is half-written.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import StoreError
from ...printable import logger
from ...program.program import CompiledProgram
from ...program.recipe_check import recipe_bytes
from ...storage.entry_file import ALIGNMENT
from ...storage.store import Store, digest
from ..memory.buffer import DeviceBuffer, backend_of
from .load import Weights

__all__ = ["KeptWeights"]

_log = logger("xpuruntime.session")
_KIND = "weights"
_SHARE = 7 / 8  # of the store's limit that one model's weights may take


class KeptWeights:
    """The stored buffers of one program. ``ingredients``: everything that decides their content."""

    def __init__(self, store: Store, ingredients: Mapping[str, Any]) -> None:
        self._store, self._ingredients = store, dict(ingredients)
        self._writer: threading.Thread | None = None

    def open(self, program: CompiledProgram, device: Any) -> Weights | None:
        """Return the weights; None if the store does not have them. On the host, buffers are the pages of the file."""
        view = self._store.view(_KIND, digest(self._ingredients), check=False)
        offsets, size = _layout(program)
        if view is None or len(view) != size:
            return None
        backend, data = backend_of(device), np.frombuffer(view, np.uint8)
        buffers = {}
        for recipe, offset in zip(program.recipes, offsets, strict=True):
            part = data[offset : offset + recipe_bytes(recipe)]
            if not backend.core_is_host:
                handle = backend.allocate(part.size)
                backend.upload(handle, part)
                part = handle
            buffers[recipe.name] = DeviceBuffer(part, recipe.spec, backend)
        return Weights(program, buffers)

    def keep(self, weights: Weights) -> None:
        """Write the weights in the background. Those that would fill the store are not kept."""
        offsets, size = _layout(weights.program)
        if self._store.mode != "rw" or size > self._store.limit * _SHARE:
            return
        parts: list[bytes | memoryview] = []
        end = 0
        for recipe, offset in zip(weights.program.recipes, offsets, strict=True):
            buffer = weights[recipe.name]
            data = buffer.backend.download(buffer.native_handle, recipe_bytes(recipe))
            parts += [bytes(offset - end), data.data]
            end = offset + data.size
        parts.append(bytes(size - end))

        def write() -> None:
            try:
                self._store.put(_KIND, self._ingredients, *parts)
            except StoreError as error:  # a full disk must not stop a model that is loaded
                _log.warning("%s The model runs; the next start packs its weights again.", error)

        self._writer = threading.Thread(target=write, name="xpuruntime-weights")
        self._writer.start()

    def wait(self) -> None:
        """Wait until the weights are written."""
        if self._writer is not None:
            self._writer.join()


def _layout(program: CompiledProgram) -> tuple[list[int], int]:
    """Return the offset of each recipe's buffer, and the size of all."""
    offsets, end = [], 0
    for recipe in program.recipes:
        offsets.append(end)
        end = -(-(end + recipe_bytes(recipe)) // ALIGNMENT) * ALIGNMENT
    return offsets, end
