"""FloatValues: what the float model computes for each calibration sample, kept on disk for the rounds of an error budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ...protocols import Array
from ...storage.files import file_error

__all__ = ["FloatValues"]

_KEPT_BYTES = 1 << 30
"""The most bytes on disk. The values of further samples are computed again in each round."""


class FloatValues:
    """The values of each sample, in the order of the samples. One sample is in memory at a time.

    run:    returns the values of a sample by name.
    folder: for a file per sample; None: keep nothing, because the values are read once.
    """

    def __init__(
        self,
        run: Callable[[Mapping[str, Array]], dict[str, Array]],
        samples: Sequence[Mapping[str, Array]],
        folder: Path | None,
    ) -> None:
        self._run, self._samples, self._folder = run, samples, folder
        self._names: dict[int, list[str]] = {}  # of the samples that are kept
        self._bytes = 0

    def __iter__(self) -> Iterator[tuple[Mapping[str, Array], dict[str, Array]]]:
        """Yield each sample with its values. Raises StoreError if a file cannot be read."""
        for number, sample in enumerate(self._samples):
            if number in self._names:
                yield sample, {**sample, **self._read(number)}
                continue
            values = self._run(sample)
            computed = {n: v for n, v in values.items() if n not in sample}
            size = sum(v.nbytes for v in computed.values())
            fits = self._bytes + size <= _KEPT_BYTES and not any(v.dtype.hasobject for v in computed.values())
            if self._folder is not None and fits:
                self._bytes += size if self._write(number, computed) else _KEPT_BYTES
            yield sample, values

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"float-values-{number}.npy"

    def _write(self, number: int, values: Mapping[str, Array]) -> bool:
        """Return whether the values were written: a full disk keeps no more."""
        try:
            with self._path(number).open("wb") as file:
                for value in values.values():
                    np.save(file, value, allow_pickle=False)
        except OSError:
            self._path(number).unlink(missing_ok=True)
            return False
        self._names[number] = list(values)
        return True

    def _read(self, number: int) -> dict[str, Array]:
        try:
            with self._path(number).open("rb") as file:
                return {name: np.load(file, allow_pickle=False) for name in self._names[number]}
        except OSError as error:
            raise file_error(self._path(number), "cannot read", error) from error
