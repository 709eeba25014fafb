"""The level with AMX: what it asks for, and that its text becomes the instructions that it is there for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from xpuruntime.codegen.cpp.isa import LEVELS, best_level
from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.codegen.cpp.toolchain import cxx_toolchain
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import GraphBuilder

NAME = "x86-64-v4+amx"


def binary() -> tuple[str, bytes, tuple[str, ...]]:
    b = GraphBuilder("both")
    x, w = b.input("x", "bfloat16[1, 64, 9, 9]"), b.weight("w", "bfloat16[64, 64, 3, 3]")
    y = b.convolution(x, w, None, stride=[1, 1], padding=[1, 1], dilation=[1, 1])
    b.output("y", y)
    b.output("z", b.linear(b.input("a", "bfloat16[40, 64]"), b.weight("m", "bfloat16[64, 64]"), None))
    (made,) = compile_graph(b.build(), target=f"cpu:{NAME}").binaries
    return made.source, made.data, made.requires


def test_it_is_above_every_other_level_and_needs_both_features() -> None:
    level = LEVELS[NAME]
    assert best_level("x86_64", level.features) is level
    for feature in ("amx-tile", "amx-bf16"):
        below = best_level("x86_64", level.features - {feature})
        assert below is LEVELS["x86-64-v4+bf16"]


def test_the_compiler_makes_tile_instructions_of_it(tmp_path: Path) -> None:
    source, data, requires = binary()
    assert {"amx-tile", "amx-bf16"} <= set(requires)
    assert "gemm_block_tiles<" in source
    assert "run_tiles<" in source
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("no objdump to read machine code with")
    (tmp_path / "kernels.so").write_bytes(data)
    text = subprocess.run(
        [objdump, "-d", str(tmp_path / "kernels.so")], capture_output=True, text=True, check=True
    ).stdout
    for word in ("ldtilecfg", "tileloadd", "tilezero", "tilestored", "tilerelease"):
        assert word in text, word
    # Two by two tiles, each product once a step, and once for what is left of k.
    for product in ("%tmm6,%tmm4,%tmm0", "%tmm7,%tmm4,%tmm1", "%tmm6,%tmm5,%tmm2", "%tmm7,%tmm5,%tmm3"):
        assert text.count(f"tdpbf16ps {product}") >= 2, product


def test_other_compilers_take_the_text_too(tmp_path: Path) -> None:
    """GCC here; clang where it is the machine's compiler: the flags and the inline assembler are both's."""
    level = LEVELS[NAME]
    target = cpu_target(f"cpu:{NAME}")
    built = cxx_toolchain().build(target.source({}, ("gemm_amx", "conv_amx")), level.march_flags)
    assert built[:4] == b"\x7fELF"
