"""The tiles of codes in which a linear layer's weight of fewer bits is stored on CUDA, and the text that describes them to ``templates/cuda/quantized.cuh``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ....codegen.c_types import C_TYPES
from ....program.program import RecipeStep
from ....storage.blocks import GroupForm
from ....types import DType, TensorSpec
from ...kernel import Packed
from ...spec.channel_codes import FP8, INT8, ChannelCodes, shifted
from ...spec.linear import LinearLayer
from ..heavy import TAGS, c_bool, constants
from ..launch import Argument

__all__ = ["STEP", "QuantizedConfig", "QuantizedTiles", "struct_text", "weight_arguments"]

_OUTPUTS = 16
"""Outputs of a tile."""
STEP = {4: 128, 8: 64}
"""Inputs of a tile, by the bits of a code."""
_CODES_BYTES = 1024
"""Bytes of a tile's codes."""
_NUMBERS = {"": 0, "bfloat16": 1, "float16": 2, "product": 3, "float32": 4}
"""Numbers of a group -> their index in the template."""


@dataclass(frozen=True, slots=True)
class QuantizedConfig:
    """Sizes of a launch.

    rows:            rows of x that a block multiplies.
    split:           warps of a block, which split the inputs between them.
    stages:          tiles in flight per warp.
    tiles_per_block: tiles of outputs that a block computes in turn.
    min_blocks_per_sm: occupancy that bounds the registers of a thread.
    """

    rows: int
    split: int
    stages: int
    tiles_per_block: int = 1
    min_blocks_per_sm: int = 2


@dataclass(frozen=True, slots=True)
class QuantizedTiles:
    """The weight of a layer in tiles of 16 outputs, or the matrices of ``experts`` experts.

    codes: the codes of a weight without groups.
    steps: tiles along the inputs. tiles: tiles along the outputs of a half.
    """

    layer: LinearLayer
    form: GroupForm | None
    experts: int = 0
    codes: ChannelCodes = INT8

    @property
    def word(self) -> str:
        """The codes as a part of names of functions."""
        return f"int{self.form.bits}" if self.form else self.codes.word

    @property
    def bits(self) -> int:
        return self.form.bits if self.form else 8

    @property
    def groups(self) -> int:
        """Groups of an output in a tile."""
        return STEP[self.bits] // self.form.group if self.form else 0

    @property
    def bytes(self) -> int:
        return _CODES_BYTES + (self.form.number_bytes * _OUTPUTS * self.groups if self.form else 0)

    @property
    def steps(self) -> int:
        return max(1, math.ceil(self.layer.k / STEP[self.bits]))

    @property
    def tiles(self) -> int:
        return self.layer.panels(_OUTPUTS)

    @property
    def spec(self) -> TensorSpec:
        dtype = DType.INT8 if self.form else self.codes.dtype
        return TensorSpec((self.matrices * self.tiles, self.steps, self.bytes), dtype)

    @property
    def matrices(self) -> int:
        """Matrices of ``tiles`` tiles: each half of a layer, or of an expert."""
        return max(1, self.experts) * self.layer.halves

    def shared(self, c: QuantizedConfig, mma: bool) -> int:
        """Return the shared memory of a block, as ``Sizes::BYTES`` of the template."""
        halves, k = self.layer.halves, self.steps * STEP[self.bits]
        ring = c.split * c.stages * halves * self.bytes
        x = c.rows * (k * (2 if mma else 4) + (16 if self.form is None else 64 if self.bits == 4 else 32))
        sums = self.steps * self.groups * c.rows * 8 if mma else 0
        norms = 4 * c.rows * (1 + math.ceil(k / 256)) if self.layer.scale is not None else 0
        return ring + x + math.ceil(sums / 16) * 16 + max(norms, 2 * c.split * _OUTPUTS * halves * c.rows * 4)

    def packed(self, *, stored: bool) -> Packed:
        """Return the packing [outputs, inputs] -> tiles; ``stored``: of the outputs' groups. Outputs and inputs beyond the weight are zeros."""
        layer, form, rows, steps = self.layer, self.form, self.matrices * self.tiles, self.steps
        k = steps * STEP[self.bits]
        tail = [layer.k // form.group, form.bytes] if form is not None and stored else [layer.k]
        done = self._experts_padded(tail) if self.experts else layer.padded(_OUTPUTS, tail)
        if form is None:  # scales are those of the weight before it is padded
            done = [self.codes.quantize, *(shifted(s) for s in done)]

        def add(op: str, source: str | tuple[str, ...] = "", **attrs: Any) -> str:
            last = f"%{len(done) - 1}" if done else "%in"
            done.append(RecipeStep(op, source if isinstance(source, tuple) else (source or last,), attrs))
            return f"%{len(done) - 1}"

        if form is None or not stored:
            add("pad", begin=[0, 0], end=[0, k - layer.k])
        else:
            add("pad", begin=[0, 0, 0], end=[0, k // form.group - tail[0], 0])
        if form is None:
            add("reshape", shape=[rows, 2, 8, steps, 4, 16])
            add("permute", order=[0, 3, 1, 2, 4, 5])
            add("reshape", shape=[rows, steps, _CODES_BYTES])
            return Packed(tuple(done), self.spec)
        groups = f"%{len(done) - 1}" if stored else add("groups_int4", group=form.group)
        add("slice", groups, dim=2, begin=0, end=form.code_bytes)
        add("reshape", shape=[rows, 2, 8, steps, 4, 4, 4])
        add("permute", order=[0, 3, 1, 2, 5, 4, 6])
        codes = add("reshape", shape=[rows, steps, _CODES_BYTES])
        add("slice", groups, dim=2, begin=form.code_bytes, end=form.bytes)
        add("reshape", shape=[rows, _OUTPUTS, steps, form.number_bytes * self.groups])
        add("permute", order=[0, 2, 1, 3])
        numbers = add("reshape", shape=[rows, steps, form.number_bytes * _OUTPUTS * self.groups])
        add("concat", (codes, numbers), dim=2)
        return Packed(tuple(done), self.spec, form if stored else None)

    def _experts_padded(self, tail: list[int]) -> list[RecipeStep]:
        """Return steps that pad each half of each expert's outputs to whole tiles, and put all outputs in one dim."""
        n, padded, zeros = self.layer.n, self.tiles * _OUTPUTS, [0] * len(tail)
        return [
            RecipeStep("reshape", ("%in",), {"shape": [self.matrices, n, *tail]}),
            RecipeStep("pad", ("%0",), {"begin": [0, 0, *zeros], "end": [0, padded - n, *zeros]}),
            RecipeStep("reshape", ("%1",), {"shape": [self.matrices * padded, *tail]}),
        ]


def struct_text(t: QuantizedTiles, c: QuantizedConfig, *, norm: bool, aligned: bool) -> list[str]:
    """Return the struct ``KERNEL_quantized`` of the template's parameters."""
    layer, mma = t.layer, t.layer.dtype in TAGS
    numbers = {
        "m": layer.m, "n": layer.n, "k": layer.k, "ROWS": c.rows, "COLUMN_TILES": math.ceil(c.rows / 8), "BITS": t.bits,
        "GROUP": t.form.group if t.form else 0, "NUMBERS": _NUMBERS[t.form.numbers if t.form else ""],
        "MATRICES": t.matrices, "STEPS": t.steps, "TILES": t.tiles, "SPLIT": c.split, "STAGES": c.stages, "TILES_PER_BLOCK": c.tiles_per_block,
    }  # fmt: skip
    flags = {
        "E4M3": t.form is None and t.codes is FP8,
        "GATED": layer.halves == 2,
        "NORM": norm,
        "CONSTANT_SCALE": norm and layer.scale is not None and layer.scale.is_weight,
        "ALIGNED": aligned,
    }
    return [
        "struct KERNEL_quantized {",
        f"    typedef {C_TYPES[layer.dtype]} S;",
        f"    typedef {TAGS[layer.dtype] if mma else 'void'} T;",
        constants("int", numbers),
        constants("bool", {name: c_bool(v) for name, v in flags.items()}),
        f"    static __device__ __forceinline__ float eps() {{ return {layer.eps!r}f; }}",
        "};",
    ]


def weight_arguments(form: GroupForm | None) -> list[Argument]:
    """Return the arguments that are the codes and, without groups, the scales."""
    codes = Argument("in1", "b", "int8_t")
    return [codes] if form else [codes, Argument("extra0", "scales", "float")]
