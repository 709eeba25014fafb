"""Launches of single CUDA kernels on the emulator, with arrays instead of a program's buffers.

    EmulatedKernels({"scale": text}).launch("scale", {"x": x, "y": y})      a text and its arguments, in order
    emulate(kernel.lower(call, target), call, target, {"x": x})             a lowered node, its stages one after the other

Sizes of arrays are known here, so that accesses outside of them are found in addition to all that a program's run checks.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...codegen.cuda.target import CudaTarget
from ...errors import RunError
from ...kernels.kernel import VECTOR_BYTES, LoweredCall, NodeCall, Operand, Packed, Stage
from ...program.program import WeightTransformRecipe
from ...protocols import Array
from ...runtime.memory.layouts import from_memory, memory_shape, to_memory
from ...runtime.weights.recipes import run_recipe
from .cuda_host import CudaHost, cuda_host

__all__ = ["EmulatedKernels", "emulate", "packed_weight", "unset_array"]


class _Range(ctypes.Structure):
    """An array of a watched launch, as ``Range`` of cuda/threads.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("begin", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("early", ctypes.c_int64),
    )


class EmulatedKernels:
    """Kernels that are compiled for the emulator.

    functions: symbol to text, with a launch comment. parts: parts of the prelude that they use.
    Raises BuildError for a text that does not compile.
    """

    def __init__(
        self, functions: Mapping[str, str], parts: Iterable[str] = (), target: CudaHost | None = None
    ) -> None:
        self.target = target or cuda_host()
        binary = self.target.assemble(functions, frozenset(parts))
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            Path(file.name).write_bytes(binary.data)
            self._library = ctypes.CDLL(file.name)
        self._library.xpurt_fault.restype = ctypes.c_char_p

    def launch(
        self,
        symbol: str,
        args: Mapping[str, Array],
        *,
        blocks: int,
        late: Collection[str] = (),
        seed: int = 7,
    ) -> None:
        """Run all blocks of a kernel; it writes to its arguments.

        blocks: the number of blocks of its grid.
        late:   arguments that earlier launches may still use before ``griddep_wait``.
        seed:   draws the order of threads.
        Raises RunError for a fault, with the thread, the memory and the reason.
        """
        ranges = (_Range * len(args))(
            *(_Range(name.encode(), x.ctypes.data, x.nbytes, name not in late) for name, x in args.items())
        )
        pointers = (ctypes.c_void_p * len(args))(*(x.ctypes.data for x in args.values()))
        self._library.xpurt_watch(ranges, len(args), seed)
        function = getattr(self._library, symbol)
        function(pointers, None, ctypes.c_int64(0), ctypes.c_int64(blocks), None)
        message = self._library.xpurt_fault().decode()
        if message:
            raise RunError("emulation of CUDA", message)


def unset_array(shape: Sequence[int], dtype: Any, shift: int = 0) -> Array:
    """Return an array of NaNs that begins ``shift`` elements after a multiple of 256 bytes."""
    own = np.dtype(dtype)
    size = int(np.prod(shape)) * own.itemsize
    raw = np.full(size + 512 + shift * own.itemsize, 0xFF, np.uint8)
    start = -raw.ctypes.data % 256 + shift * own.itemsize
    array: Array = raw[start : start + size].view(own).reshape(shape)
    return array


def packed_weight(packed: Packed, value: Any) -> Array:
    """Return a weight as its kernel reads it."""
    recipe = WeightTransformRecipe("packed", packed.spec, "x", packed.steps)
    return np.ascontiguousarray(run_recipe(recipe, {"x": value}))


def emulate(
    lowered: LoweredCall, call: NodeCall, target: CudaTarget, arrays: Mapping[str, Any], shift: int = 0
) -> list[Array]:
    """Return the results of a lowered node.

    arrays: operands by name. shift: elements that operands and results are away from aligned addresses.
    What the call computes from inputs may not be used before ``griddep_wait``, but for arguments that the stage declares.
    Raises RunError for a fault, for more shared memory than the target has, and for counters that are not zero at the end.
    """
    buffers: dict[str, Array] = {}

    def add(name: str, value: Array, shift: int = 0) -> None:
        buffers[name] = unset_array(value.shape, value.dtype, shift)
        buffers[name][...] = value

    for i, operand in enumerate(call.inputs):
        if isinstance(operand, Operand):
            value, packed = arrays[operand.name], lowered.weights.get(i)
            if packed is None:
                add(f"in{i}", to_memory(value, operand.spec), shift)
            else:  # tiles of bytes begin at aligned addresses, as a program's weights do
                add(f"in{i}", packed_weight(packed, value), 0 if packed.spec.dtype.bits == 8 else shift)
    for name, (i, packed) in lowered.extra_weights.items():
        add(name, packed_weight(packed, arrays[call.tensor(i).name]))
    for i, size in enumerate(lowered.temps):
        buffers[f"temp{i}"] = unset_array((size,), np.uint8)
    add("counters", np.zeros(lowered.counters, np.uint8))
    outputs = [unset_array(memory_shape(s), s.dtype.numpy, shift) for s in call.outputs]
    buffers |= {f"out{i}": x for i, x in enumerate(outputs)}
    inputs = {f"in{i}" for i, o in enumerate(call.inputs) if isinstance(o, Operand) and not o.is_weight}

    functions = {f"kernel{i}": _source(stage, buffers) for i, stage in enumerate(lowered.stages)}
    parts = {part for stage in lowered.stages for part in stage.parts}
    kernels = EmulatedKernels(functions, parts, CudaHost(target.sm, target.config)) if functions else None
    for i, stage in enumerate(lowered.stages):
        assert kernels is not None
        shared, limit = stage.options["shared"], target.config.smem_per_block
        if shared > limit:
            raise RunError(
                "emulation of CUDA", f"{stage.stem} wants {shared} bytes of shared memory, of {limit}"
            )
        late = {a for a in stage.args if a in inputs or a.startswith("temp")}
        kernels.launch(
            f"kernel{i}",
            {a: buffers[a] for a in stage.args},
            blocks=int(np.prod(stage.options["grid"])),
            late=late - set(stage.options.get("prologue_reads", ())),
            seed=7 + i,
        )
    if buffers["counters"].any():
        raise RunError("emulation of CUDA", "a counter is not zero at the end")
    return [from_memory(x, s) for x, s in zip(outputs, call.outputs, strict=True)]


def _source(stage: Stage, buffers: Mapping[str, Array]) -> str:
    """Return the text that a program has for memory of this alignment."""
    aligned = all(buffers[stage.args[at]].ctypes.data % VECTOR_BYTES == 0 for at in stage.aligned_args)
    return stage.aligned_source if stage.aligned_source and aligned else stage.source
