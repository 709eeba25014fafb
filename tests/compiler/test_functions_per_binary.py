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


def test_functions_that_report_errors_share_a_binary_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run reads the reports of one module: an index out of range in another one would go unnoticed."""

    def assemble(self: CudaTarget, functions: Any, parts: Any) -> Binary:
        return Binary(
            self.name, "cubin", (self.name,), tuple(functions), b"no compiler", self.source(functions, parts)
        )

    monkeypatch.setattr(CudaTarget, "assemble", assemble)
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
