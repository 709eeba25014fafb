"""Inputs and outputs below a byte: one byte per element in arrays, packed in buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import InputError
from xpuruntime.ir import Graph, GraphBuilder, interp
from xpuruntime.runtime import DeviceBuffer, Executor
from xpuruntime.types import DType, TensorSpec

KINDS = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")


def values(kind: str, *shape: int) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(3)
    low = -2 if kind.startswith("int") else 0
    return draw.integers(low, 2, shape).astype(np.int8).astype(DType(kind).numpy)


def graph(*shape: int) -> Graph:
    """Every kind is viewed, moved, cast, and computed."""
    b = GraphBuilder("packed")
    for kind in KINDS:
        x = b.input(kind, TensorSpec(shape, DType(kind)))
        wide = b.cast(x, dtype="float32")
        b.output(f"flat {kind}", b.view(x, size=[int(np.prod(shape))]))
        b.output(f"wide {kind}", wide)
        b.output(f"turned {kind}", b.permute(b.cat(x, x, dim=1), dims=[1, 0]))
        b.output(f"back {kind}", b.cast(b.mul(wide, -1.0), dtype=kind))
    return b.build()


@pytest.mark.parametrize("shape", [(3, 7), (0, 3), (2, 8)])
def test_arrays_are_packed_and_unpacked(shape: tuple[int, ...]) -> None:
    g, feeds = graph(*shape), {kind: values(kind, *shape) for kind in KINDS}
    expected = interp.run(g, feeds)
    with Executor(compile_graph(g, target="cpu"), "cpu", threads=1) as executor:
        outputs = executor.run_arrays(list(feeds.values()))
        given = [np.empty(o.shape, o.dtype) for o in outputs]
        assert all(
            a is b for a, b in zip(executor.run_arrays(list(feeds.values()), given), given, strict=True)
        )
        strided = executor.run_arrays([np.repeat(x, 2, axis=-1)[..., ::2] for x in feeds.values()])
        buffers = executor.run({kind: DeviceBuffer.from_numpy(x) for kind, x in feeds.items()})
        with pytest.raises(InputError, match=r"input 'int4' must be int4\["):
            executor.run_arrays([x.astype(np.uint8) for x in feeds.values()])
    for i, (name, want) in enumerate(expected.items()):
        for array in (outputs[i], given[i], strided[i], buffers[name].to_numpy()):
            assert array.dtype == want.dtype
            np.testing.assert_array_equal(array.astype(np.float32), want.astype(np.float32))
