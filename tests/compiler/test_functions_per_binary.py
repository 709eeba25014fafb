"""A target may limit the functions of one binary: the program has several, which compile side by side, and computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.codegen.cpp.target import CppTarget, cpu_target
from xpuruntime.codegen.cuda.target import CudaTarget
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import InternalError
from xpuruntime.program.program import Binary, CompiledProgram
from xpuruntime.runtime import Executor
from xpuruntime.workbench.programs.report import kernel_sources

X = np.random.default_rng(0).standard_normal((6, 40), dtype=np.float32)


def _graph() -> ir.Graph:
    b = ir.GraphBuilder("several")
    x = b.input("x", "float32[6, 40]")
    for dim in (0, 1, 0):
        x = b.softmax(b.sub(x, b.amax(x, dim=[1 - dim], keepdim=True)), dim=dim)
    b.output("y", b.sum(x, dim=[1]))
    return b.build()


def _limited(limit: int) -> CppTarget:
    target = cpu_target("cpu")
    target.functions_per_binary = limit
    return target


def _run(program: CompiledProgram) -> Any:
    with Executor(program) as executor:
        return executor.run_arrays([X])[0]


@pytest.mark.parametrize("limit", [1, 2])
def test_binaries_hold_so_many_functions_and_the_program_computes_the_same(
    limit: int, tmp_path: Path
) -> None:
    one, several = (
        compile_graph(_graph(), target=_limited(0)),
        compile_graph(_graph(), target=_limited(limit)),
    )
    assert len(one.binaries) == 1
    symbols = [b.symbols for b in several.binaries]
    assert len(symbols) > 1
    scratch = {c.symbol for c in several.entries[0].plans[0].calls if c.scratch_bytes}
    assert all(len(group) <= limit or set(group) <= scratch for group in symbols)
    assert sum(len(group) <= limit for group in symbols) > 1
    assert sorted(s for group in symbols for s in group) == sorted(one.binaries[0].symbols)
    plan = several.entries[0].plans[0]
    assert all(c.symbol in several.binaries[plan.binary_of(c)].symbols for c in plan.calls)
    np.testing.assert_array_equal(_run(several), _run(one))

    several.save(tmp_path / "several.npubin")
    read = CompiledProgram.load(tmp_path / "several.npubin")
    np.testing.assert_array_equal(_run(read), _run(one))
    texts = {symbol: text for _, symbol, text in kernel_sources(read, "softmax")}
    assert texts == {symbol: text for _, symbol, text in kernel_sources(one, "softmax")}
    assert texts


def test_entry_points_share_the_binaries() -> None:
    b = ir.GraphBuilder("rows")
    b.output("y", b.softmax(b.cumsum(b.input("x", "float32[n, 40]"), dim=1), dim=1))
    program = compile_graph(b.build(), target=_limited(1), shapes=[{"n": 6}, {"n": 9}])
    symbols = [s for binary in program.binaries for s in binary.symbols]
    assert len(set(symbols)) == len(symbols)
    for n in (6, 9):
        with Executor(program, entry=f"main_n{n}") as executor:
            (y,) = executor.run_arrays([np.ones((n, 40), np.float32)])
        np.testing.assert_allclose(y.sum(1), 1, rtol=1e-5)


def test_a_text_that_the_compiler_refuses_names_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    source = CppTarget.source

    def broken(self: Any, functions: Any, parts: Any = ()) -> str:
        return source(
            self,
            {s: t.replace("{", "{ no_such_name;", 1) if "softmax" in s else t for s, t in functions.items()},
            parts,
        )

    monkeypatch.setattr(CppTarget, "source", broken)
    with pytest.raises(InternalError, match="kernel softmax") as caught:
        compile_graph(_graph(), target=_limited(1))
    assert "no_such_name" in str(caught.value)


@pytest.fixture
def no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA binaries with their text only."""

    def assemble(self: CudaTarget, functions: Any, parts: Any) -> Binary:
        return Binary(
            self.name, "cubin", (self.name,), tuple(functions), b"no compiler", self.source(functions, parts)
        )

    monkeypatch.setattr(CudaTarget, "assemble", assemble)


@pytest.mark.usefixtures("no_nvrtc")
def test_functions_that_report_errors_share_a_binary_on_cuda() -> None:
    """A run reads the reports of one module: an index out of range in another one would go unnoticed."""
    b = ir.GraphBuilder("indices")
    table, which = b.input("table", "float32[9, 40]"), b.input("which", "int64[6]")
    rows = b.embedding(table, which)
    rows = b.softmax(b.gather(rows, b.input("places", "int64[6, 40]"), dim=0), dim=1)
    for _ in range(5):
        rows = b.cumsum(b.softmax(rows, dim=0), dim=1)
    b.output("y", b.index_select(rows, which, dim=1))
    program = compile_graph(b.build(), target="cuda:sm_90")
    (plan,) = program.entries[0].plans
    reporting = [c for c in plan.calls if c.scratch_bytes]
    assert len({c.symbol for c in reporting}) > 1
    assert len({plan.binary_of(c) for c in reporting}) == 1
    assert len({plan.binary_of(c) for c in plan.calls}) > 1


@pytest.mark.usefixtures("no_nvrtc")
def test_slow_functions_have_a_binary_each_and_quick_ones_share_more_on_cuda() -> None:
    """The slowest binary decides how long NVRTC takes on many cores: four convolutions in one take as long as ten others side by side."""
    b = ir.GraphBuilder("mixed")
    x = b.input("x", "float32[1, 16, 20, 20]")
    once = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
    for i, (n, c, k) in enumerate(((24, 16, 1), (40, 24, 3), (32, 40, 1), (16, 32, 3), (8, 16, 1))):
        x = b.convolution(x, b.input(f"w{i}", f"float32[{n}, {c}, {k}, {k}]"), **once)
    for i in range(14):
        b.output(f"p{i}", b.exp(b.input(f"a{i}", f"float32[{i + 3}, {2 * i + 5}]")))
    b.output("y", x)
    for i in range(2):  # on CUDA cores
        left, right = b.input(f"l{i}", f"float32[6, {49 + i}, 49]"), b.input(f"r{i}", "float32[6, 49, 31]")
        b.output(f"m{i}", b.matmul(left, right))
    program = compile_graph(b.build(), target="cuda:h100-sxm")
    groups = [binary.symbols for binary in program.binaries]
    slow = [g for g in groups if any(s.startswith(("conv", "matmul")) for s in g)]
    quick = [g for g in groups if any(s.startswith("exp") for s in g)]
    assert len(slow) == 7
    assert all(len(g) == 1 for g in slow)
    assert sorted(map(len, quick)) == [2, 12]


def test_binaries_of_few_functions_begin_first(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def assemble(self: CppTarget, functions: Any, parts: Any) -> Binary:
        begun.extend(functions)
        return Binary(self.name, "text", (), tuple(functions), b"-")

    monkeypatch.setattr(CppTarget, "assemble", assemble)
    monkeypatch.setattr(
        CppTarget, "most_functions", lambda self, parts: {"conv": 1, "exp": 12}.get(*parts, 4)
    )
    monkeypatch.setattr("xpuruntime.codegen.target._usable_cores", lambda: 1)
    groups = [({name: ""}, frozenset({part})) for name, part in (("e", "exp"), ("s", "sum"), ("c", "conv"))]
    binaries = cpu_target("cpu").assemble_each(groups)
    assert begun == ["c", "s", "e"]
    assert [b.symbols for b in binaries] == [("e",), ("s",), ("c",)]
