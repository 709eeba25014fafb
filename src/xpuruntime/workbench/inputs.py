"""The inputs of a model: arrays from files (.npy, .npz), images with explicit preprocessing, and generated arrays.

FILE.npz            all arrays of the file, by the inputs' names
NAME=FILE.npy       one input; the name is optional if the model has one input
NAME=FILE.png       one image; Pillow decodes it, ``ImageRecipe`` turns it into a tensor
no file             ``inference.execution.seeded_inputs.sample_feeds``, where equal seeds give equal arrays on every machine
"""

from __future__ import annotations

import difflib
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, StoreError
from ..inference.execution.seeded_inputs import sample_feeds
from ..protocols import Array
from ..types import DType, TensorSpec

__all__ = ["ImageRecipe", "Inputs", "save_arrays", "save_outputs"]

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """The preprocessing of an image file, in this order.

    1. decode, rotate by the EXIF orientation, convert to gray, RGB or RGBA by the model's number of channels;
    2. resize to ``size`` (height, width) with Pillow's bilinear filter, ignoring the aspect ratio. Default: the model's size, or the
       image's own if the model does not fix it;
    3. scale bytes 0..255 linearly to ``range``; subtract ``mean``; divide by ``std`` (one number, or one per channel);
    4. transpose to ``layout`` (default: by the axis of the shape that is 1 or 3, else 4), and add the batch axis.

    Integer inputs are rounded at the end.
    """

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str | None = None
    range: tuple[float, float] = (0.0, 1.0)

    def tensor(self, path: Path, spec: TensorSpec) -> Array:
        """Return the image as the input's array. Raise InputError: not an image, not an image input, or Pillow is missing."""
        who = f"input {spec.name!r}"
        layout, channels, size = self._axes(who, spec)
        pixels = _decode(who, path, _MODES[channels], self.size or size)
        low, high = self.range
        values: Array = pixels.astype(np.float32) * np.float32((high - low) / 255) + np.float32(low)
        for name, parameter in (("--image-mean", self.mean), ("--image-std", self.std)):
            if len(parameter) not in (1, channels):
                do = f"Give 1 or {channels} numbers."
                raise InputError(who, f"{name} does not fit {channels} channels", got=list(parameter), do=do)
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        values = np.divide(np.subtract(values, mean, dtype=np.float32), std, dtype=np.float32)
        if layout == "nchw":
            values = values.transpose(2, 0, 1)
        if spec.dtype.is_integer:
            values = np.rint(values)
        return np.ascontiguousarray(values[None] if spec.rank == 4 else values).astype(spec.dtype.numpy)

    def _axes(self, who: str, spec: TensorSpec) -> tuple[str, int, tuple[int, int] | None]:
        """Return the layout, the number of channels, and height and width if the model fixes them."""
        shape = spec.shape[1:] if spec.rank == 4 else spec.shape
        if len(shape) != 3:
            do = "Give a .npy or .npz file instead."
            raise InputError(
                who, "takes no image: an image input has 3 dimensions, or 4 with the batch", got=spec, do=do
            )
        likely = [
            [w for w, axis in (("nchw", 0), ("nhwc", 2)) if shape[axis] in counts]
            for counts in ((1, 3), (4,))
        ]
        fits = next((layouts for layouts in likely if layouts), [])
        layout = self.layout or (fits[0] if len(fits) == 1 else None)
        if layout is None:
            raise InputError(
                who,
                "its shape does not show which axis holds the channels",
                got=spec,
                do="Give --image-layout.",
            )
        channels, *spatial = (
            (shape[0], shape[1], shape[2]) if layout == "nchw" else (shape[2], shape[0], shape[1])
        )
        channels = channels if isinstance(channels, int) else 3
        if channels not in _MODES:
            raise InputError(
                who, f"has {channels} channels as {layout}", got=spec, do="An image has 1, 3 or 4 channels."
            )
        fixed = (spatial[0], spatial[1])
        return (
            layout,
            channels,
            (fixed[0], fixed[1]) if isinstance(fixed[0], int) and isinstance(fixed[1], int) else None,
        )


def _decode(who: str, path: Path, mode: str, size: tuple[int, int] | None) -> Array:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise InputError(who, "images need Pillow", got=path.name, do="Run: pip install pillow") from error
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image).convert(mode)
            if size is not None:
                upright = upright.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            pixels: Array = np.asarray(upright)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(who, f"{path} is not a readable image", got=error, do="Check the file.") from error
    return pixels[..., None] if pixels.ndim == 2 else pixels


@dataclass(frozen=True, slots=True)
class Inputs:
    """The source of a model's inputs: files (``[NAME=]FILE``), a seed of generated inputs, sizes of symbolic dims, the image recipe."""

    files: tuple[str, ...] = ()
    seed: int | None = None
    symbols: Mapping[str, int] = field(default_factory=dict)
    image: ImageRecipe = ImageRecipe()

    def samples(self, specs: Sequence[TensorSpec], count: int = 1) -> list[dict[str, Array]]:
        """Return the arrays of each sample: one sample if files are given, else ``count`` generated ones.

        Raise InputError: a file is missing or unreadable, a name is unknown, or an input has neither a file nor a seed.
        """
        arrays = self._read(specs)
        missing = [s.name for s in specs if s.name not in arrays]
        if arrays and missing and self.seed is None:
            do = "Give a file for it, too, or add --seed N to generate it."
            raise InputError(
                "inputs", f"no file gives input {missing[0]!r}", got=f"files for {sorted(arrays)}", do=do
            )
        seed = self.seed or 0
        samples = 1 if arrays and not missing else count
        return (
            [
                {**sample_feeds(specs, seed=seed + 1000 * k, symbols=self.symbols), **arrays}
                for k in range(samples)
            ]
            if missing or not arrays
            else [arrays]
        )

    def describe(self, specs: Sequence[TensorSpec]) -> str:
        """Return the source of the inputs as one clause."""
        recipe = f"generated with seed {self.seed or 0}"
        if not self.files:
            return recipe
        text = ", ".join(self.files)
        return text if self.seed is None else f"{text}; the rest {recipe}"

    def _read(self, specs: Sequence[TensorSpec]) -> dict[str, Array]:
        by_name = {s.name: s for s in specs}
        arrays: dict[str, Array] = {}
        for text in self.files:
            name, path = _split(text, by_name)
            for key, value in _load(name, path, by_name, self.image).items():
                if key in arrays:
                    raise InputError("inputs", f"input {key!r} is given twice", got=text, do="Give it once.")
                arrays[key] = value
        return arrays


def _split(text: str, specs: Mapping[str, TensorSpec]) -> tuple[str, Path]:
    """Split ``NAME=FILE`` or ``FILE``. The text before = is a name if the model has that input, or if no file has the whole text as its name."""
    name, equals, file = text.partition("=")
    if equals and (name in specs or not Path(text).exists()):
        if name not in specs:
            raise _unknown(name, specs)
        return name, Path(file).expanduser()
    return "", Path(text).expanduser()


def _unknown(name: str, specs: Mapping[str, TensorSpec]) -> InputError:
    near = difflib.get_close_matches(name, specs, n=1)
    do = (f"Did you mean {near[0]!r}? " if near else "") + f"Inputs are {', '.join(map(repr, specs))}."
    return InputError("inputs", "the model has no input of that name", got=repr(name), do=do)


def _load(name: str, path: Path, specs: Mapping[str, TensorSpec], image: ImageRecipe) -> dict[str, Array]:
    suffix = path.suffix.lower()
    if not path.is_file():
        what = "is a folder or a device, not a file" if path.exists() else "no such file"
        raise InputError("inputs", what, got=str(path), do="Check the path.")
    if suffix == ".npz" and not name:
        headers = _headers(path)
        for key, header in headers.items():
            if key not in specs:
                raise _unknown(key, specs)
            _check_header(header, specs[key])
        arrays = _arrays(path)
        return {key: _typed(value, specs[key]) for key, value in arrays.items()}
    if not name:
        if len(specs) != 1:
            do = f"Write NAME={path.name}; inputs are {', '.join(map(repr, specs))}."
            raise InputError(
                "inputs",
                "the model has several inputs, and the file is for none of them",
                got=str(path),
                do=do,
            )
        name = next(iter(specs))
    spec = specs[name]
    if suffix in _IMAGES:
        return {name: image.tensor(path, spec)}
    if suffix in (".npy", ".npz"):
        headers = _headers(path)
        if len(headers) == 1 or name in headers:
            _check_header(headers.get(name, next(iter(headers.values()))), spec)
            arrays = _arrays(path, name if name in headers else None)
        else:
            arrays = dict.fromkeys(headers, np.empty(0))  # rejected below
        if len(arrays) != 1 and name not in arrays:
            do = f"Name one of its arrays {name!r}, or give a .npy file."
            raise InputError(f"input {name!r}", "the file holds several arrays", got=sorted(arrays), do=do)
        return {name: _typed(arrays.get(name, next(iter(arrays.values()))), spec)}
    do = f"Give .npy, .npz or an image ({', '.join(_IMAGES)})."
    raise InputError(f"input {name!r}", "is not an array or image file", got=path.name, do=do)


@dataclass(frozen=True, slots=True)
class _Header:
    """The header of an array in a file. stored: bytes of the array's data in the file."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored: int


def _headers(path: Path) -> dict[str, _Header]:
    """Return the headers of a file's arrays by name (``""`` for a .npy file), without the data: a small file can hold gigabytes."""
    headers: dict[str, _Header] = {}
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                return {"": _header(path, file, path.stat().st_size)}
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    with archive.open(member) as array:
                        name = member.filename.removesuffix(".npy")
                        headers[name] = _header(path, array, member.file_size)
    except Exception as error:  # NumPy parses the header as Python and raises any of the tokenizer's errors.
        raise _unreadable(path, error) from error
    if not headers:
        raise InputError("inputs", f"{path} is empty", got="no array", do="Write it with numpy.savez.")
    return headers


def _header(path: Path, file: Any, size: int) -> _Header:
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read:
        raise ValueError(f"an array in version {version} of NumPy's format")
    shape, _, dtype = read[version](file)
    return _Header(path, tuple(shape), dtype, size - file.tell())


def _check_header(header: _Header, spec: TensorSpec) -> None:
    """Check before the data is read that the shape fits and that the file has all data. Raise InputError."""
    if header.dtype.hasobject:
        raise _unreadable(header.path, "Object arrays cannot be loaded")
    fits = len(header.shape) == spec.rank and all(
        got == want or not isinstance(want, int) for got, want in zip(header.shape, spec.shape, strict=True)
    )
    if not fits:
        do = f"It must be {spec}."
        raise InputError(f"input {spec.name!r}", "the array has another shape", got=list(header.shape), do=do)
    if math.prod(header.shape) * header.dtype.itemsize != header.stored:
        expected = f"{list(header.shape)} of {header.dtype} in {header.stored} bytes"
        raise _unreadable(header.path, expected)


def _unreadable(path: Path, error: object) -> InputError:
    do = "Write it with numpy.save or numpy.savez (no object arrays)."
    return InputError("inputs", f"{path} holds no readable array", got=error, do=do)


def _arrays(path: Path, only: str | None = None) -> dict[str, Array]:
    """Return the arrays of a file by name, or ``only`` one."""
    try:
        with path.open("rb") as file:  # NumPy does not close a file of another format.
            loaded = np.load(file, allow_pickle=False)
            arrays = (
                {"": loaded}
                if isinstance(loaded, np.ndarray)
                else {key: loaded[key] for key in loaded.files if only in (None, key)}
            )
    except Exception as error:
        raise _unreadable(path, error) from error
    if not arrays:
        raise InputError("inputs", f"{path} is empty", got="no array", do="Write it with numpy.savez.")
    return arrays


def _typed(array: Array, spec: TensorSpec) -> Array:
    """Return an array in the input's dtype: NumPy's files hold ml_dtypes as raw bytes, and strings with a fixed width."""
    if array.dtype.kind == "V" and array.dtype.itemsize == spec.dtype.numpy.itemsize:
        return array.view(spec.dtype.numpy)
    if spec.dtype is DType.STRING and array.dtype.kind in "US":
        return array.astype(object)
    return array


def save_outputs(path: Path, outputs: Mapping[str, Any]) -> None:
    """Write outputs to a ``.npz`` file under their names. Types that NumPy's files lack become float32, which is exact; strings get a
    fixed width. Raise StoreError: wrong suffix, no such folder, no permission, or a full disk.
    """
    who = f"--output {path}"
    if path.suffix != ".npz":
        if not path.name.strip("."):  # ".", ".." and "/" have no file name.
            got, do = f"the folder {str(path)!r}", f"Write {path / 'outputs.npz'}."
        else:
            got, do = path.name, f"Write {path.with_suffix('.npz').name}."
        raise StoreError(who, "must end in .npz", got=got, do=do)
    arrays = {name: _storable(np.asarray(value)) for name, value in outputs.items()}
    try:
        with path.open("wb") as file:
            # numpy.savez takes arrays as keywords, which clash with its own parameters' names.
            _savez(file, arrays)
    except OSError as error:
        do = "Name a file in an existing, writable folder."
        raise StoreError(who, "cannot be written", got=error.strerror or error, do=do) from error


def _savez(file: Any, arrays: Mapping[str, Array]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_array(member, np.asanyarray(array))


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays of any type to a ``.npz`` file that ``Inputs`` reads back bit by bit. Raise StoreError."""
    stored = {n: a.astype(str) if a.dtype.kind == "O" else _bytes_of(a) for n, a in arrays.items()}
    try:
        with path.open("wb") as file:
            _savez(file, stored)
    except OSError as error:
        do = "Name a file in an existing, writable folder."
        raise StoreError(f"file {path}", "cannot be written", got=error.strerror or error, do=do) from error


def _bytes_of(array: Array) -> Array:
    """Return an array that NumPy's files can hold: types of ml_dtypes as raw bytes."""
    dtype = DType.of(array.dtype).numpy
    raw = dtype.kind == "V" or dtype.char not in np.typecodes["All"]
    return np.ascontiguousarray(array).view(f"V{dtype.itemsize}") if raw else array


_PIECE = 1 << 20
"""Bytes that are written at a time: NumPy's own writer copies 16 MiB."""


def _write_array(member: Any, array: Array) -> None:
    if not array.flags.c_contiguous or array.dtype.hasobject or not array.size:
        np.lib.format.write_array(member, array, allow_pickle=False)
        return
    header = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(member, header)
    data = array.reshape(-1).view(np.uint8)
    for at in range(0, data.size, _PIECE):
        member.write(data[at : at + _PIECE])


def _storable(array: Array) -> Array:
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.kind == "V" or DType.of(array.dtype).numpy.kind == "V":
        return array.astype(np.float32)
    return array
