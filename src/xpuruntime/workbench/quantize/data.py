"""Calibration data: a folder of samples, or one .npz file whose arrays hold samples along the first axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...protocols import Array
from ...types import TensorSpec
from ..inputs import ImageRecipe, Inputs

__all__ = ["calibration_samples"]

_SAMPLE_FILES = (".npy", ".npz", ".png", ".jpg", ".jpeg", ".bmp", ".webp")


def calibration_samples(
    data: str | Path, specs: Sequence[TensorSpec], image: ImageRecipe | None = None, limit: int | None = None
) -> list[dict[str, Array]]:
    """Return the samples as inputs by name.

    data:  a folder, where each .npz file is a sample with all inputs, and each .npy file or image one of a model with a single input; or a .npz
           file with an array per input, whose first axis is cut into samples of the model's batch.
    limit: maximum number of samples; they are taken evenly.
    Raises InputError: no such path, no samples, or an array with a wrong name, dtype or shape.
    """
    path = Path(data).expanduser()
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.suffix.lower() in _SAMPLE_FILES)
        if not files:
            do = f"Put one file per sample there: {', '.join(_SAMPLE_FILES)}."
            raise InputError("calibration data", "the folder has no samples", got=str(path), do=do)
        files = [files[i] for i in _even(len(files), limit)]
        recipe = image or ImageRecipe()
        return [Inputs(files=(str(f),), image=recipe).samples(specs)[0] for f in files]
    if path.suffix.lower() != ".npz" or not path.is_file():
        raise InputError(
            "calibration data",
            "is neither a folder nor a .npz file" if path.exists() else "no such file or folder",
            got=str(path),
            do="Give a folder of samples, or a .npz file with an array per input.",
        )
    return _cut(path, specs, limit)


def _even(count: int, limit: int | None) -> list[int]:
    if limit is None or limit >= count:
        return list(range(count))
    return [round(i * (count - 1) / max(1, limit - 1)) for i in range(limit)]


def _cut(path: Path, specs: Sequence[TensorSpec], limit: int | None) -> list[dict[str, Array]]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            "calibration data", f"{path} is not a readable .npz file", got=error, do="Check the file."
        ) from error
    names = [s.name for s in specs]
    if sorted(arrays) != sorted(names):
        raise InputError(
            "calibration data",
            "the arrays are not the model's inputs",
            got=f"{sorted(arrays)} for inputs {names}",
            do="Name each array after an input.",
        )
    counts: dict[str, int] = {}
    for spec in specs:
        array = arrays[spec.name]
        batch = spec.shape[0] if spec.rank and isinstance(spec.shape[0], int) else 1
        rest = spec.shape[1:]
        fits = array.ndim == spec.rank and spec.rank > 0 and len(array) and len(array) % batch == 0
        fits = bool(fits) and all(
            not isinstance(d, int) or d == n for d, n in zip(rest, array.shape[1:], strict=True)
        )
        kinds = (array.dtype.kind, np.dtype(spec.dtype.numpy).kind)
        if not fits or not (kinds[0] == kinds[1] or (kinds[1] == "f" and kinds[0] in "fiu")):
            raise InputError(
                f"calibration data for input {spec.name!r}",
                "the array does not have samples of the input along its first axis",
                got=f"{array.dtype}{list(array.shape)} for {spec}",
                do=f"Stack samples along the first axis{f', a multiple of {batch}' if batch > 1 else ''}.",
            )
        counts[spec.name] = len(array) // batch
    if len(set(counts.values())) != 1:
        raise InputError(
            "calibration data",
            "the arrays hold different numbers of samples",
            got=counts,
            do="Store one sample of each input per run.",
        )
    count = next(iter(counts.values()))
    samples = []
    for i in _even(count, limit):
        sample = {}
        for spec in specs:
            size = len(arrays[spec.name]) // count
            part = arrays[spec.name][i * size : (i + 1) * size]
            sample[spec.name] = np.ascontiguousarray(part.astype(spec.dtype.numpy))
        samples.append(sample)
    return samples
