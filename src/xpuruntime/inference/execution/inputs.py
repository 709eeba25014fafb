"""Inputs of ``run`` as checked NumPy arrays, and outputs as the caller's kind of tensor.

The common case, NumPy arrays of the right dtype and a fixed shape, costs a dictionary look-up and three comparisons per
input. Everything else takes the slow path: it converts without changing a value, or raises an error that names the problem.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...arguments import check_names
from ...errors import InputError
from ...ir.shapes.bounds import Bounds, check_bounds
from ...protocols import Array
from ...types import DType, TensorSpec, dim

__all__ = ["Feeds", "on_a_device"]

_HOST_DEVICES = {1: "cpu", 3: "pinned host memory"}  # DLPack's kDLCPU and kDLCUDAHost
_DEVICE_NAMES = {
    2: "cuda",
    4: "opencl",
    7: "vulkan",
    8: "metal",
    10: "rocm",
    13: "cuda managed memory",
    15: "webgpu",
}

_ANY_RANK = (dim("..."),)  # how open_model writes a value of unknown rank

# How to change a dtype, in the API of the library that the value came from.
_NUMPY_CAST, _TORCH_CAST = "value.astype('{}')", "value.to(torch.{})"

_NO_BOUNDS: Bounds = {}
ToCaller = Callable[[Array], Any]


class Feeds:
    """The inputs of one session, used to check the arguments of ``run``.

    who:      the session's name in errors.
    bounds:   limits on the sizes of the model's symbols, where it declares them.
    defaults: names of graph inputs with an initializer, which are constants of the session.
    """

    def __init__(
        self,
        who: str,
        inputs: Sequence[TensorSpec],
        bounds: Bounds = _NO_BOUNDS,
        defaults: frozenset[str] = frozenset(),
    ) -> None:
        self.who, self._bounds, self._defaults = who, bounds, defaults
        self._inputs = tuple(inputs)
        self._specs = {s.name: s for s in inputs}
        self._names = tuple(self._specs)
        self._count = len(self._names)
        # No array's shape equals a shape with a symbol, so such inputs take the slow path.
        self._fast = tuple((s.name, s.dtype.numpy, tuple(s.shape)) for s in inputs)

    def check(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], ToCaller | None]:
        """Return checked arrays by name, and the function that converts outputs to the caller's kind (None: NumPy). Raises InputError."""
        if type(inputs) is dict and len(inputs) == self._count:
            for name, dtype, shape in self._fast:
                value = inputs.get(name)
                if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                    return self._slow(inputs)
            return inputs, None
        return self._slow(inputs)

    def named(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return a list in the model's order as a dictionary. Raises InputError for the wrong number of values."""
        if len(values) != self._count:
            raise InputError(
                self.who,
                f"takes {self._count} inputs",
                got=len(values),
                do=f"Give them in this order: {', '.join(self._names)}.",
            )
        return dict(zip(self._names, values, strict=True))

    def imported(self, name: str, value: Any) -> Array:
        """Return one value as a NumPy array over the same memory. Raises InputError."""
        return value if isinstance(value, np.ndarray) else self._import(name, value)[0]

    def one(self, spec: TensorSpec, value: Array) -> Array:
        """Return one input or output array after checking it against its spec. Raises InputError."""
        return self._fit(spec, value, _NUMPY_CAST)

    def _slow(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], ToCaller | None]:
        self._check_names(inputs)
        feeds: dict[str, Array] = {}
        to_caller: ToCaller | None = None
        for name, spec in self._specs.items():
            value = inputs[name]
            back = None
            if not isinstance(value, np.ndarray):
                value, back = self._import(name, value)
                to_caller = to_caller or back
            cast = _TORCH_CAST if back is _to_torch else _NUMPY_CAST
            feeds[name] = self._fit(spec, value, cast)
        self.check_bounds(feeds)
        return feeds, to_caller

    def check_bounds(self, feeds: Mapping[str, Array]) -> None:
        """Check sizes against the bounds of the model's symbols. Raises InputError."""
        if self._bounds:
            check_bounds(self.who, self._inputs, self._bounds, {n: a.shape for n, a in feeds.items()})

    def _check_names(self, inputs: Mapping[str, Any]) -> None:
        check_names(self.who, "inputs", inputs, "arrays")
        for name in inputs:
            if name in self._defaults:
                raise InputError(
                    self.who,
                    "an input with an initializer is a constant of the session and takes no value",
                    got=repr(name),
                    do=f"Leave {name!r} out, or remove the tensor {name!r} from graph.initializer of the ONNX file, which makes it a required input.",
                )
            if name not in self._specs:
                near = difflib.get_close_matches(str(name), self._names, n=1)
                raise InputError(
                    self.who,
                    "no input of that name",
                    got=repr(name),
                    do=(f"Did you mean {near[0]!r}? " if near else "")
                    + f"Inputs are {', '.join(self._names)}.",
                )
        missing = [n for n in self._names if n not in inputs]
        if missing:
            spec = self._specs[missing[0]]
            raise InputError(
                self.who,
                f"input {missing[0]!r} is missing",
                got=f"only {', '.join(map(repr, inputs))}" if inputs else "no inputs",
                do=f"Add {missing[0]!r}: {spec}.",
            )

    def _import(self, name: str, value: Any) -> tuple[Array, ToCaller | None]:
        """Return a foreign tensor as a NumPy array without a copy, and the conversion back."""
        if isinstance(value, np.generic):
            return np.asarray(value), None
        if not hasattr(value, "__dlpack__"):
            raise InputError(
                self.who,
                f"input {name!r} must be a NumPy array or a DLPack tensor",
                got=type(value).__name__,
                do=f"Use numpy.asarray(value, dtype={self._specs[name].dtype.value!r})."
                if name in self._specs
                else "Use numpy.asarray(value).",
            )
        module = sys.modules[type(value).__module__.partition(".")[0]]
        try:
            kind = int(value.__dlpack_device__()[0])
        except (
            TypeError,
            ValueError,
            BufferError,
            RuntimeError,
        ) as error:  # for example torch's meta tensors, which hold no values
            raise self._unreadable(name, error) from error
        if kind not in _HOST_DEVICES:
            raise InputError(
                self.who,
                f"input {name!r} must lie in host memory",
                got=f"a tensor on {_DEVICE_NAMES.get(kind, f'DLPack device type {kind}')}",
                do="Move it first, for example with value.cpu().",
            )
        try:
            if module.__name__ == "torch":
                return _from_torch(value), _to_torch
            array = np.from_dlpack(value)
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise self._unreadable(name, error) from error
        back = getattr(module, "from_dlpack", None) or getattr(
            getattr(module, "numpy", None), "from_dlpack", None
        )
        return array, back

    def _unreadable(self, name: str, error: Exception) -> InputError:
        what = f"input {name!r} cannot be read through DLPack"
        return InputError(
            self.who, what, got=error, do="Hand in a NumPy array, or a dense tensor with values."
        )

    def _fit(self, spec: TensorSpec, value: Array, cast: str) -> Array:
        """Return the array in the engine's form, or raise InputError. Values never change; text becomes an object array."""
        who = f"{self.who} input {spec.name!r}"
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise InputError(
                who,
                "must have a value everywhere; masked arrays are not supported",
                got=f"an array with {int(np.count_nonzero(value.mask))} masked elements",
                do="Use value.filled(...) with a value that the model understands.",
            )
        if spec.dtype is DType.STRING:
            if value.dtype.kind not in "OUST":
                raise InputError(who, "must hold text", got=value.dtype, do="Use an array of str.")
            value = value.astype(object)
        elif value.dtype != spec.dtype.numpy:
            swapped = value.dtype.newbyteorder("=") == spec.dtype.numpy
            advice = f"Use {cast.format(spec.dtype.value)}."
            raise InputError(
                who,
                f"must be {spec.dtype.value}" + (" in this machine's byte order" if swapped else ""),
                got=f"{value.dtype.newbyteorder('=')} in the other byte order" if swapped else value.dtype,
                do=advice,
            )
        if spec.shape == _ANY_RANK:
            return value
        if value.ndim != spec.rank:
            raise InputError(
                who,
                f"must have {spec.rank} dimensions, as {spec}",
                got=f"{value.ndim}, shape {list(value.shape)}",
                do="Add or remove axes, for example with value[None].",
            )
        for axis, (have, want) in enumerate(zip(value.shape, spec.shape, strict=True)):
            if isinstance(want, int) and have != want:
                raise InputError(
                    who,
                    f"axis {axis} must be {want}, as {spec}",
                    got=f"{have}, shape {list(value.shape)}",
                    do="Change the array, or export the model with that axis dynamic.",
                )
        return value


def on_a_device(values: Mapping[str, Any]) -> bool:
    """Return True if any value is another library's tensor outside host memory."""
    for value in values.values():
        if type(value) is np.ndarray or not hasattr(value, "__dlpack_device__"):
            continue
        try:
            if int(value.__dlpack_device__()[0]) not in _HOST_DEVICES:
                return True
        except (
            TypeError,
            ValueError,
            BufferError,
            RuntimeError,
        ):  # tensors without values are refused later
            continue
    return False


def _from_torch(tensor: Any) -> Array:
    """Return a torch tensor as an array. NumPy has no bfloat16, so the bits travel as int16 and are read as ml_dtypes' bfloat16."""
    tensor = tensor.detach()
    if str(tensor.dtype) in _TORCH_BY_BITS:
        carrier, dtype = _TORCH_BY_BITS[str(tensor.dtype)]
        bits: Array = tensor.view(getattr(sys.modules["torch"], carrier)).numpy()
        return bits.view(dtype.numpy)
    array: Array = tensor.resolve_conj().resolve_neg().numpy()
    return array


def _to_torch(array: Array) -> Any:
    torch = sys.modules["torch"]
    if array.dtype.kind == "O":
        return array  # torch has no text
    if not array.flags.writeable:
        array = array.copy()
    for name, (carrier, dtype) in _TORCH_BY_BITS.items():
        if array.dtype == dtype.numpy:
            return torch.from_numpy(array.view(carrier)).view(getattr(torch, name.removeprefix("torch.")))
    return torch.from_numpy(array)


_TORCH_BY_BITS: dict[str, tuple[str, DType]] = {
    "torch.bfloat16": ("int16", DType.BFLOAT16),
    "torch.float8_e4m3fn": ("uint8", DType.FLOAT8_E4M3FN),
    "torch.float8_e5m2": ("uint8", DType.FLOAT8_E5M2),
}
