"""Many rows of a linear layer with weights of fewer bits on CUDA: codes become 16-bit floats in shared memory, and wgmma multiplies them.

``templates/cuda/quantized_rows.cuh`` needs sm_90a. Memory holds no copy of the weight as floats. The crossovers are those of
``benchmarks/cuda/quantized_rows.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ....codegen.cuda.target import CudaTarget
from ....codegen.target import CodegenTarget
from ...kernel import LoweredCall, NodeCall
from ...spec.linear import LinearLayer
from ..crossovers import crossovers_of
from ..heavy import TAGS, about, constants, multiprocessors, shared_limit
from ..launch import Argument, ByAlignment, LaunchConfig, cuda_stage
from .gemv_problem import gemv_finish, problem_of_layer
from .quantized_tiles import QuantizedConfig, QuantizedTiles, struct_text, weight_arguments
from .text import parts_of

__all__ = ["RowsConfig", "by_wgmma", "rows_config", "rows_lowered", "whole_split"]

_GROUP_OUTPUTS, _STEP, _W_STAGES = 64, 64, 3
"""Outputs of a warpgroup, inputs of a step, and buffers of the weight as floats."""
_MIN_STEPS, _MAX_SPLIT = {64: 8, 128: 16}, 8
"""Minimum steps of a block by its rows, and maximum blocks that share the inputs of a tile."""
_BLOCKS_PER_SM = 2


@dataclass(frozen=True, slots=True)
class RowsConfig:
    """Sizes of a launch of many rows.

    rows:       rows of x that a block multiplies.
    warpgroups: warpgroups of a block, with 64 outputs each.
    split:      blocks that share the inputs of a tile; each has at least one step.
    stages:     buffers of x.
    """

    rows: int
    warpgroups: int
    split: int = 1
    stages: int = 4

    @property
    def outputs(self) -> int:
        """Outputs of a block."""
        return self.warpgroups * _GROUP_OUTPUTS

    def tasks(self, layer: LinearLayer) -> tuple[int, int]:
        """Return the tiles along the outputs and along the rows."""
        return layer.panels(self.outputs), math.ceil(layer.m / self.rows)

    @property
    def shared(self) -> int:
        """Bytes of shared memory: buffers of x and of the weight as floats, or the sums."""
        floats = _STEP * 2 * (self.stages * self.rows + _W_STAGES * self.outputs)
        return max(floats, 4 * self.rows * (self.outputs + 4))


def by_wgmma(t: QuantizedTiles, target: CodegenTarget, *, library: bool) -> bool:
    """Return whether a layer of many rows is computed here. ``library``: whether cuBLASLt would multiply the weight as floats."""
    layer, wgmma = t.layer, isinstance(target, CudaTarget) and target.sm.wgmma
    of_library, of_ours = crossovers_of(target).quantized_max_rows
    fits = rows_config(t, target).shared <= shared_limit(target)
    return (
        wgmma
        and fits
        and layer.dtype in TAGS
        and layer.m <= (of_library if library else of_ours)
        and layer.k > 0
        and layer.halves == 1
    )


def rows_config(t: QuantizedTiles, target: CodegenTarget) -> RowsConfig:
    """Return the config of a layer: blocks of 64 rows x 64 outputs for up to 64 rows, else 128 x 128. Inputs are split while there are fewer than two blocks per SM."""
    layer = t.layer
    config = RowsConfig(64, 1) if layer.m <= 64 else RowsConfig(128, 2)
    blocks = _BLOCKS_PER_SM * multiprocessors(target) // math.prod(config.tasks(layer))
    steps = math.ceil(layer.k / _STEP)
    return replace(
        config, split=whole_split(steps, min(blocks, steps // _MIN_STEPS[config.rows], _MAX_SPLIT))
    )


def whole_split(steps: int, split: int) -> int:
    """Return a number of blocks, at most ``split`` and at least one, of which each has at least one step."""
    return max(1, math.ceil(steps / max(1, math.ceil(steps / max(1, split)))))


def rows_lowered(call: NodeCall, t: QuantizedTiles, config: RowsConfig) -> LoweredCall:
    """Return the stage of a config, and the memory through which blocks share their sums."""
    layer, form, s = t.layer, t.form, problem_of_layer(call)
    columns, rows = config.tasks(layer)
    operands = [*dict.fromkeys(x.name for x, *_ in s.terms), "y"]
    split = config.split > 1
    a, _, *rest = s.arguments
    shares = [
        Argument("temp0", "partials", "float", written=True),
        Argument("counters", "counters", "uint32_t", written=True),
    ]
    arguments = [a, *weight_arguments(form), *rest[:-1], *(shares if split else []), rest[-1]]
    given = f"b, {'nullptr' if form else 'scales'}, {'partials, counters' if split else 'nullptr, nullptr'}, finish);"
    *before, end = struct_text(
        t, QuantizedConfig(config.rows, config.split, config.stages), norm=False, aligned=s.aligned
    )
    before += [constants("int", {"WARPGROUPS": config.warpgroups, "OUTPUT_TILES": columns}), end]
    body, branch = [f"const KERNEL_finish finish = {{{', '.join(operands)}}};"], None
    if s.aligned:
        before.append(
            "struct KERNEL_unaligned : KERNEL_quantized { static constexpr bool ALIGNED = false; };"
        )
        branch = ByAlignment(
            (a.name,),
            f"quantized_rows::run<KERNEL_quantized>(a, {given}",
            f"quantized_rows::run<KERNEL_unaligned>(a, {given}",
        )
    else:
        body.append(f"quantized_rows::run<KERNEL_quantized>(a, {given}")
    launch = LaunchConfig(
        (columns * config.split, rows, 1),
        (config.warpgroups * 128, 1, 1),
        config.shared,
        min_blocks_per_sm=_BLOCKS_PER_SM,
    )
    stage = cuda_stage(
        f"{t.word}_{layer.m}x{layer.n}x{layer.k}",
        about(call, f"codes of {t.word}{f' in groups of {form.group}' if form else ''}, {config.rows} rows and {config.outputs} outputs at a time"),
        arguments, body, launch, end=branch, before=[*before, *gemv_finish(s)], parts=parts_of(s.act, "quantized_rows"), waits_itself=True,
        flops=2 * layer.m * layer.n * layer.k, bytes=t.spec.size_bytes or 0,
    )  # fmt: skip
    tasks = columns * rows if split else 0
    temps = (4 * tasks * config.split * config.rows * config.outputs,) if split else ()
    return LoweredCall((stage,), temps, counters=4 * tasks)
