"""Products of 8-bit codes against the interpreter, bit by bit, at every instruction-set level; codes are extreme, so that instructions that
saturate their sums would show.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.emulated_amx import EmulatedTiles
from support.native import check

from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.codegen.cpp.toolchain import cxx_toolchain
from xpuruntime.codegen.target import CodegenTarget
from xpuruntime.errors import BuildError
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.kernels.cpu.int8.conv import Int8Conv
from xpuruntime.kernels.cpu.int8.matmul import Int8Matmul
from xpuruntime.kernels.cpu.int8.tiling import has_byte_products, int8_tiling
from xpuruntime.kernels.kernel import NodeCall, Operand
from xpuruntime.types import DType, TensorSpec

LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:x86-64-v4+vnni")
F = np.float32


def codes(rng: np.random.Generator, dtype: Any, *shape: int) -> Any:
    """Codes of which most are the smallest and the largest."""
    limits = np.iinfo(dtype)
    drawn = rng.integers(limits.min, limits.max + 1, shape)
    extreme = rng.choice([limits.min, limits.max], shape)
    return np.where(rng.random(shape) < 0.7, extreme, drawn).astype(dtype)


class Cases:
    """Independent nodes of one graph, which one compiler run builds."""

    def __init__(self, seed: int) -> None:
        self.b, self.rng = GraphBuilder("cases"), np.random.default_rng(seed)
        self.feeds: dict[str, Any] = {}
        self.weights: dict[str, Any] = {}

    def input(self, array: Any) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return str(self.b.input(name, TensorSpec(array.shape, DType.of(array.dtype))))

    def weight(self, array: Any) -> str:
        array = np.asarray(array)
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return str(self.b.weight(name, TensorSpec(array.shape, DType.of(array.dtype))))

    def scales(self, n: int, x_zero: Any, kind: str) -> tuple[list[Any], dict[str, Any]]:
        """Operands after x and the weight, and attributes, for one of the forms of a result."""
        rng, zero = self.rng, self.weight(x_zero)
        scaled = [self.weight(F(0.02)), zero, self.weight((rng.random(n) * 0.01).astype(F)), None]
        sums = self.weight(rng.integers(-9999, 9999, n).astype(np.int32))
        y = [self.weight(F(3.7)), self.weight(np.uint8(13))]
        return {
            "sums": ([None, zero, None, None, sums], {"dtype": DType.INT32}),
            "float": (
                [*scaled, self.weight(rng.random(n).astype(F))],
                {"dtype": DType.FLOAT32, "act": "silu"},
            ),
            "relu": ([*scaled, sums, *y], {"dtype": DType.UINT8, "act": "relu"}),
            "relu6": (
                [*scaled, sums, self.weight(F(0.05)), self.weight(np.int8(-3))],
                {"dtype": DType.INT8, "act": "relu6"},
            ),
            "codes": ([*scaled[:2], self.weight(F(0.004)), None, None, *y], {"dtype": DType.UINT8}),
        }[kind]

    def add(self, op: str, x: Any, weight: Any, zero: Any, kind: str, n: int, **attrs: Any) -> None:
        operands, more = self.scales(n, zero, kind)
        self.b.output(
            f"y{len(self.b.nodes)}",
            self.b.call(op, self.input(x), self.weight(weight), *operands, **more, **attrs),
        )

    def check(self, target: str | CodegenTarget) -> None:
        graph: Graph = self.b.build()
        check(graph, self.feeds, weights=self.weights, target=target, passes=["layout"], split=1)


def matmuls(seed: int) -> Cases:
    c = Cases(seed)
    shapes = ((1, 4, 3), (5, 64, 70), (13, 30, 130), (70, 132, 33), (2, 0, 5), (9, 1, 1))
    kinds = ("sums", "float", "relu", "relu6", "codes")
    for at, (m, k, n) in enumerate(shapes):
        for x in (np.uint8, np.int8):
            for weight in (np.int8, np.int16):
                w = codes(c.rng, np.int8, k, n).astype(weight)
                w = w - (weight is np.int16) * w.dtype.type(127)  # as codes less their zero point
                kind = kinds[(at + c.rng.integers(5)) % 5]
                c.add("quantized_matmul", codes(c.rng, x, m, k), w, x(7), kind, n)
    c.add(
        "quantized_matmul",
        codes(c.rng, np.uint8, 2, 3, 8, 16),
        codes(c.rng, np.int8, 3, 16, 24),
        np.uint8(200),
        "codes",
        24,
    )
    for a, b in ((np.uint8, np.uint8), (np.int8, np.uint8), (np.uint8, np.int8)):  # both computed
        x, y = c.input(codes(c.rng, a, 2, 3, 9, 21)), c.input(codes(c.rng, b, 2, 3, 33, 21))
        y = c.b.permute(y, dims=[0, 1, 3, 2])
        rest = [c.weight(F(0.02)), c.weight(a(7)), c.weight(F(0.01)), c.weight(b(9))]
        c.b.output(f"z{len(c.feeds)}", c.b.quantized_matmul(x, y, *rest, dtype=DType.FLOAT32))
    return c


GEOMETRY = (
    # channels, filters, groups, kernel, stride, padding, dilation, size
    (8, 70, 1, 3, 1, 1, 1, 9), (3, 16, 1, 7, 2, 3, 1, 21), (12, 8, 4, 3, 1, 0, 2, 9), (64, 64, 1, 1, 1, 0, 1, 8),
    (64, 30, 1, 1, 2, 0, 1, 8), (37, 37, 37, 3, 1, 1, 1, 11), (40, 40, 40, 5, 2, 2, 1, 12), (16, 16, 16, 3, 2, 0, 1, 9),
    (6, 18, 6, 3, 1, 1, 1, 7), (4, 4, 4, 3, 1, 4, 1, 1),
)  # fmt: skip


def convolutions(seed: int) -> Cases:
    c = Cases(seed)
    kinds = ("relu", "codes", "relu6", "float", "sums")
    for at, (channels, filters, groups, k, stride, padding, dilation, size) in enumerate(GEOMETRY):
        for x, weight, zero in ((np.uint8, np.int8, 250), (np.int8, np.int16, -7)):
            w = codes(c.rng, np.int8, filters, channels // groups, k, k).astype(weight)
            c.add(
                "quantized_convolution", codes(c.rng, x, 2, channels, size, size + 1), w, x(zero), kinds[at % 5], filters,
                stride=[stride] * 2, padding=[padding] * 2, dilation=[dilation] * 2, groups=groups,
            )  # fmt: skip
    c.add(
        "quantized_convolution", codes(c.rng, np.uint8, 1, 5, 17), codes(c.rng, np.int8, 6, 5, 3), np.uint8(3), "codes", 6,
        stride=[1], padding=[2, 1], dilation=[1], groups=1,
    )  # fmt: skip
    return c


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", LEVELS)
def test_matrix_products_are_exact(target: str) -> None:
    matmuls(1).check(target)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", LEVELS)
def test_convolutions_are_exact(target: str) -> None:
    convolutions(2).check(target)


@pytest.mark.sampled(1)
@pytest.mark.level("x86-64-v4+bf16")
@pytest.mark.parametrize("cases", [matmuls, convolutions])
def test_tiles_are_exact(cases: Any) -> None:
    cases(3).check(EmulatedTiles())


@pytest.mark.level("x86-64-v4+amx")
def test_real_tiles_are_exact() -> None:
    convolutions(4).check("cpu:x86-64-v4+amx")


def test_each_level_has_its_instructions() -> None:
    bytes_of = {
        name: has_byte_products(cpu_target(f"cpu:{name}").isa)
        for name in (
            "x86-64-v2",
            "x86-64-v3",
            "x86-64-v4",
            "x86-64-v4+vnni",
            "x86-64-v4+amx",
            "aarch64",
            "aarch64+dotprod",
        )
    }
    assert [name for name, yes in bytes_of.items() if yes] == [
        "x86-64-v4+vnni",
        "x86-64-v4+amx",
        "aarch64+dotprod",
    ]
    amx = int8_tiling(cpu_target("cpu:x86-64-v4+amx").isa, 64, 64, 64, 1, by_bytes=True)
    assert (amx.tiles, amx.columns, amx.word) == (True, 32, 4)
    assert int8_tiling(cpu_target("cpu:x86-64-v3").isa, 64, 64, 64, 1, by_bytes=True).arithmetic == "Pairs"


@pytest.mark.parametrize("level", ["aarch64", "aarch64+dotprod"])
def test_arm_code_compiles(level: str) -> None:
    try:
        cxx_toolchain("aarch64")
    except BuildError as error:
        pytest.skip(f"no compiler for it here: {error.what}")
    x = TensorSpec((5, 64), DType.UINT8)
    b = GraphBuilder("one")
    names = [b.input("x", x), b.input("w", "int8[64, 70]"), b.input("s", "float32[]")]
    b.call("quantized_matmul", *names[:2], names[2], None, names[2], dtype=DType.FLOAT32)
    target = cpu_target(f"cpu:{level}")
    inputs = tuple(Operand(n, b.spec(n), n == "w") if isinstance(n, str) else n for n in b.nodes[0].inputs)
    lowered = Int8Matmul().lower(NodeCall(b.nodes[0], inputs, (b.spec(b.nodes[0].name),)), target)
    stage = lowered.stages[0]
    assert target.assemble({"k": stage.source}, stage.parts).data[18:20] == b"\xb7\x00"  # EM_AARCH64


def test_what_is_refused_says_why() -> None:
    def refused(kernel: Any, op: str, x: str, w: str, *, constant: bool = True, **attrs: Any) -> str:
        b = GraphBuilder("one")
        names = [b.input("x", x), b.input("w", w), b.input("s", "float32[]")]
        b.call(op, *names[:2], names[2], None, names[2], dtype=DType.FLOAT32, **attrs)
        inputs = tuple(
            Operand(n, b.spec(n), constant and n == "w") if isinstance(n, str) else n
            for n in b.nodes[0].inputs
        )
        answer = kernel.supports(
            NodeCall(b.nodes[0], inputs, (b.spec(b.nodes[0].name),)), cpu_target("cpu:x86-64-v3")
        )
        assert not answer.ok
        return str(answer.reason)

    assert "products of int16 and int8 codes" in refused(
        Int8Matmul(), "quantized_matmul", "int16[2, 4]", "int8[4, 3]"
    )
    assert "uint8 and uint8 codes" in refused(Int8Matmul(), "quantized_matmul", "uint8[2, 4]", "uint8[4, 3]")
    assert "not constant" in refused(
        Int8Matmul(), "quantized_matmul", "uint8[2, 4]", "int16[4, 3]", constant=False
    )
    geometry = {"stride": [1], "padding": [0], "dilation": [1]}
    assert "filters must be constant" in refused(
        Int8Conv(), "quantized_convolution", "uint8[1, 4, 5]", "int8[3, 4, 1]", constant=False, **geometry
    )
