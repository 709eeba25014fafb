"""Code for Arm, run by QEMU: casts beyond the range of integers, where processors differ, and products of codes. Both are skipped without QEMU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from kernels.test_int4_by_int8 import far, in_codes
from support.blocks import random_blocks

from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.ir import GraphBuilder
from xpuruntime.ir.interp.numbers import to
from xpuruntime.kernels.cpu.matmul.grouped import KERNELS
from xpuruntime.kernels.kernel import NodeCall, Operand
from xpuruntime.program.program import WeightTransformRecipe
from xpuruntime.runtime.weights.int4 import int4_groups, int4_values
from xpuruntime.runtime.weights.recipes import run_recipe
from xpuruntime.storage.blocks import BLOCK_FORMATS, block_groups, block_values
from xpuruntime.types import DType

LEVELS = ["aarch64", "aarch64+dotprod"]
COMPILER, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64"
MAIN = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static void *file(const char *name) {
    FILE *f = fopen(name, "rb");
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    void *data = aligned_alloc(64, (n + 127) / 64 * 64);
    rewind(f);
    return fread(data, 1, n, f) == n ? data : NULL;
}
int main(int count, char **words) {  // library, bytes of the result, of scratch, tasks, the result's file, operands' files
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library) return puts(dlerror()), 1;
    void (*kernel)(void *const *, const void *, long, long, void *) = dlsym(library, "k");
    void *args[8];
    long bytes = atol(words[2]);
    for (int i = 6; i < count; i++) args[i - 6] = file(words[i]);
    args[count - 6] = aligned_alloc(64, (bytes + 127) / 64 * 64);
    kernel(args, NULL, 0, atol(words[4]), aligned_alloc(64, (atol(words[3]) + 127) / 64 * 64));
    FILE *f = fopen(words[5], "wb");
    return fwrite(args[count - 6], 1, bytes, f) == bytes ? fclose(f) : 1;
}
"""
Run: TypeAlias = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``run(level, source, parts, operands, result, tasks=1, scratch=0)``: the result of the function ``k``."""
    missing = [name for name in (COMPILER, QEMU) if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("arm")
    (folder / "main.c").write_text(MAIN)
    subprocess.run([COMPILER, "-O1", "-w", "-o", folder / "main", folder / "main.c", "-ldl"], check=True)

    def on_arm(
        level: str, source: str, parts: frozenset[str], operands: Sequence[Any], result: Any, tasks: int = 1, scratch: int = 64
    ) -> Any:  # fmt: skip
        (folder / "k.so").write_bytes(cpu_target(f"cpu:{level}").assemble({"k": source}, parts).data)
        files: list[Path] = []
        for at, operand in enumerate(operands):
            files.append(folder / f"operand{at}")
            files[-1].write_bytes(np.ascontiguousarray(operand).tobytes())
        words = [folder / "k.so", result.nbytes, scratch, tasks, folder / "result", *files]
        root = f"/usr/{COMPILER.removesuffix('-gcc')}"
        subprocess.run([QEMU, "-cpu", "max", "-L", root, folder / "main", *map(str, words)], check=True)
        return np.fromfile(folder / "result", result.dtype).reshape(result.shape)

    return on_arm


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "uint16"])
def test_casts_beyond_the_range(run: Run, name: str) -> None:
    """Arm's conversion to int32 saturates, and makes NaN zero; that of x86 has one value for all of these."""
    x = np.array(
        [3e9, 2.0**31, np.inf, 7, -np.inf, np.nan, -1, 256, 255.9, 1e10, -5e9, 5e9 + 512, 2.0**32, -300, 1e20, 0],
        np.float32,
    )  # fmt: skip
    source = (
        'extern "C" void KERNEL(void *const *args, const void *, int64_t, int64_t, void *) {\n'
        f"    for (int i = 0; i < 16; i += 4)\n        store<4>(({name}_t *)args[1] + i, convert<{name}_t>(load<4>((const float *)args[0] + i)));\n}}"
    )
    want = to(x, DType(name))
    assert np.array_equal(run("aarch64", source.replace("KERNEL", "k"), frozenset(), [x], want), want)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("form", ["Q4_0", "Q4_K", "Q8_0", "Q6_K", "int4", "int8"])
def test_rows_of_8_bits_times_weights_in_groups(run: Run, level: str, rows: int, form: str) -> None:
    n, k, draw = 70, 512, np.random.default_rng(rows)
    x = draw.standard_normal((rows, k)).astype(np.float32)
    if form in ("int4", "int8"):
        raw = draw.standard_normal((n, k)).astype(np.float32)
        scale = abs(raw).max(1, keepdims=True) / 127
        values = int4_values(int4_groups(raw, 32), 32) if form == "int4" else np.rint(raw / scale) * scale
        groups, size = None, 32
    else:
        blocks, groups = random_blocks(form, n, k // BLOCK_FORMATS[form].values), BLOCK_FORMATS[form].form
        raw, values, size = block_groups(blocks, form, groups), block_values(blocks, form), groups.group
    b = GraphBuilder("one")
    b.linear(b.input("x", f"float32[{rows}, {k}]"), b.weight("w", f"float32[{n}, {k}]"))
    inputs = Operand("x", b.spec("x"), False), Operand("w", b.spec("w"), True, groups=groups)
    name = f"matmul/{form if groups is None else 'stored'}_by_int8"
    kernel = next(kernel for kernel in KERNELS if kernel.name == name)
    call = NodeCall(b.nodes[0], inputs, (b.spec(b.nodes[0].name),))
    lowered = kernel.lower(call, cpu_target(f"cpu:{level}"))
    (stage,) = lowered.stages
    packings = (lowered.weights[1], *(packed for _, packed in lowered.extra_weights.values()))
    recipes = (WeightTransformRecipe("r", packed.spec, "w", packed.steps) for packed in packings)
    operands = [x, *(run_recipe(recipe, {"w": raw}) for recipe in recipes)]
    empty = np.empty((rows, n), np.float32)
    got = run(level, stage.source, stage.parts, operands, empty, stage.tasks, stage.scratch_bytes)
    assert far(got, in_codes(x, size).astype(np.float64) @ values.T.astype(np.float64)) <= 1e-5
