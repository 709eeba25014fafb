"""A CUDA stage: the text of one ``__global__`` function and its launch configuration.

Shapes and strides are constants of the text, so the launch is part of it (``// launch: ...``): one text, one launch. Every launch uses
programmatic dependent launch (compute capability 9.0 and later): it may begin while the previous kernel ends. The first statement of a
function, ``griddep_sync()``, lets the next launch start and waits until the previous kernel's writes are visible. A body that prefetches
weights before that wait calls ``griddep_wait()`` itself (``waits_itself``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...codegen.loops.nest import indented
from ...program.program import KernelParam
from ..kernel import VECTOR_BYTES, Stage

__all__ = ["WARP", "Argument", "ByAlignment", "LaunchConfig", "TiledMatrix", "blocks_for", "cuda_stage"]

WARP = 32
"""Threads of a warp."""
_MAX_BLOCKS = 2**31 - 1
"""Maximum blocks of a grid along x."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A pointer parameter: its buffer (``in0``), its name, its C type, and whether the kernel writes to it."""

    ref: str
    name: str
    ctype: str
    written: bool = False

    @property
    def text(self) -> str:
        """The declaration of the parameter."""
        return f"{'' if self.written else 'const '}{self.ctype} *{self.name}"


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Grid, block and dynamic shared memory of a launch.

    min_blocks_per_sm: blocks per SM that the compiler must leave registers for (occupancy); 0: the compiler decides.
    cluster:           adjacent blocks along x that run at once and access each other's shared memory, on sm_90 and later.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    min_blocks_per_sm: int = 0
    cluster: int = 1

    @classmethod
    def flat(cls, blocks: int, threads: int, shared: int = 0) -> LaunchConfig:
        """Return a one-dimensional launch. A launch without blocks gets one block that does nothing."""
        if blocks > _MAX_BLOCKS:
            raise ValueError(f"{blocks} blocks in one launch")
        return cls((max(blocks, 1), 1, 1), (threads, 1, 1), shared)

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return math.prod(self.block)

    @property
    def text(self) -> str:
        """The comment line above the function."""
        grid, block = (" ".join(map(str, sizes)) for sizes in (self.grid, self.block))
        cluster = f", cluster {self.cluster}" if self.cluster > 1 else ""
        return f"// launch: grid {grid}, block {block}, shared {self.shared}{cluster}"


@dataclass(frozen=True, slots=True)
class TiledMatrix:
    """A matrix of 16-bit values that a kernel copies in tiles of 64 columns with TMA; the kernel has a parameter ``<argument>_map``.

    argument:   the name of its pointer parameter.
    row_stride: elements from row to row.
    tile_rows:  the rows of a tile.
    """

    argument: str
    rows: int
    columns: int
    row_stride: int
    tile_rows: int

    def numbers(self, arguments: Sequence[Argument]) -> list[int]:
        """Return what the runtime encodes: the argument's position, and the sizes."""
        position = next(i for i, a in enumerate(arguments) if a.name == self.argument)
        return [position, self.rows, self.columns, self.row_stride, self.tile_rows]

    def text(self, arguments: Sequence[Argument]) -> str:
        """Return the comment above the function."""
        position, rows, columns, stride, tile_rows = self.numbers(arguments)
        return f"// tensor map: argument {position}, {rows} x {columns}, row {stride}, tile {tile_rows}"


@dataclass(frozen=True, slots=True)
class ByAlignment:
    """The end of a body that has a form with 16-byte accesses, and one for buffers that do not begin at multiples of 16 bytes.

    The second form is as long as the first, and most buffers of a program need no such form: their stage has a text without it.

    arguments: names of the parameters that the first form needs aligned.
    """

    arguments: tuple[str, ...]
    aligned: str
    unaligned: str

    @property
    def lines(self) -> list[str]:
        """The statement that chooses the form at run time."""
        addresses = " | ".join(f"(uint64_t){a}" for a in self.arguments)
        return [
            f"if (({addresses}) % {VECTOR_BYTES} == 0)",
            f"    {self.aligned}",
            "else",
            f"    {self.unaligned}",
        ]


def blocks_for(items: int, threads: int) -> int:
    """Return the number of blocks of ``threads`` threads that give every item a thread."""
    return max(1, math.ceil(items / threads))


def cuda_stage(
    stem: str,
    about: str,
    arguments: Sequence[Argument],
    body: Sequence[str],
    launch: LaunchConfig,
    *,
    end: ByAlignment | None = None,
    before: Sequence[str] = (),
    params: Sequence[KernelParam] = (),
    matrices: Sequence[TiledMatrix] = (),
    parts: frozenset[str] = frozenset(),
    copies: bool = False,
    waits_itself: bool = False,
    flops: int = 0,
    bytes: int = 0,  # noqa: A002  - Stage's word
) -> Stage:
    """Return the stage of a kernel body.

    about:        the comment above the function.
    end:          the last statement of the body, if it depends on how memory is aligned.
    before:       lines between the comment and the function (tables, helpers).
    matrices:     matrices that it copies with TMA.
    waits_itself: the body calls ``griddep_wait()``. Before that it reads only what no earlier launch writes.
    """
    kinds = {"i64": "int64_t", "f64": "double"}
    parameters = [a.text for a in arguments] + [f"{kinds[p.type]} {p.name}" for p in params]
    parameters += [f"const __grid_constant__ TensorMap {m.argument}_map" for m in matrices]
    min_blocks_per_sm = f", {launch.min_blocks_per_sm}" if launch.min_blocks_per_sm else ""
    head = [
        f"// {about}",
        launch.text,
        *(m.text(arguments) for m in matrices),
        *before,
        f'extern "C" __global__ void __launch_bounds__({launch.threads}{min_blocks_per_sm}) KERNEL({", ".join(parameters)}) {{',
        f"    {'griddep_launch_dependents' if waits_itself else 'griddep_sync'}();",
    ]

    def text(last: Sequence[str]) -> str:
        return "\n".join([*head, *indented([*body, *last] or ["// no elements"]), "}", ""])

    places = {a.name: at for at, a in enumerate(arguments)}
    options: dict[str, Any] = {
        "grid": list(launch.grid),
        "block": list(launch.block),
        "shared": launch.shared,
        "pdl": True,
    }
    if launch.cluster > 1:
        options["cluster"] = [launch.cluster, 1, 1]
    if matrices:
        options["tensor_maps"] = [number for m in matrices for number in m.numbers(arguments)]
    return Stage(
        stem=stem,
        source=text(end.lines if end else ()),
        args=tuple(a.ref for a in arguments),
        tasks=math.prod(launch.grid),
        params=tuple(params),
        parts=parts,
        copies=copies,
        options=options,
        flops=flops,
        bytes=bytes,
        aligned_source=text([end.aligned]) if end else "",
        aligned_args=tuple(places[name] for name in end.arguments) if end else (),
    )
