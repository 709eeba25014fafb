"""Reports on programs: figures against the program itself, kernel text, and ONNX graphs that the checker takes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support.native import compile_native
from support.random_programs import random_program

from xpuruntime import ir
from xpuruntime.errors import InputError
from xpuruntime.program.live_bytes import peak_bytes
from xpuruntime.program.program import (
    BufferAllocation,
    BufferKind,
    CompiledProgram,
    ExecutionPlan,
    KernelCall,
)
from xpuruntime.types import DType, TensorSpec
from xpuruntime.workbench.programs.onnx_graph import DOMAIN, program_to_onnx
from xpuruntime.workbench.programs.report import function_text, kernel_sources, read_program

onnx = pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def program() -> CompiledProgram:
    """x, w: joined, halved, and one half turned; so there are a weight, views and several calls."""
    b = ir.GraphBuilder("joined")
    x, w = b.input("x", "float32[4, 3]"), b.weight("w", "float32[4, 5]")
    top, low = b.split(b.cat(x, w, dim=1), sizes=(2, 2), dim=0)
    b.output("y", b.cat(b.permute(low, dims=(1, 0)), b.permute(top, dims=(1, 0)), dim=1))
    return compile_native(b.build(), {"x": np.zeros((4, 3), np.float32)})


def test_figures_are_those_of_the_program(program: CompiledProgram, tmp_path) -> None:
    program.save(tmp_path / "m.npubin", {"w": np.ones((4, 5), np.float32)})
    document = json.loads(json.dumps(read_program(tmp_path / "m.npubin").to_json()))
    plan = program.entries[0].plans[0]
    shown = document["entries"][0]["plans"][0]
    assert document["bytes"] == (tmp_path / "m.npubin").stat().st_size
    assert [c["kernel"] for c in shown["calls"]] == [c.kernel for c in plan.calls]
    assert shown["bytes"] == sum(c.bytes for c in plan.calls) > 0
    assert 0 < shown["peak_bytes"] <= shown["arena_bytes"] == plan.arena_bytes
    assert document["weights"]["model_bytes"] == document["weights"]["embedded_bytes"] == 80
    assert document["binaries"][0]["functions"] == len(program.binaries[0].symbols)
    assert {"name": "x", "spec": "float32[4, 3]"} in document["entries"][0]["inputs"]
    assert document["decisions"][0]["question"].startswith("kernel ")


def test_the_peak_is_what_lives_at_one_time() -> None:
    def scratch(name: str, size: int, first: int, last: int) -> BufferAllocation:
        spec = TensorSpec((size,), DType.UINT8)
        return BufferAllocation(name, BufferKind.SCRATCH, spec, size, name, 0, first, last)

    lives = (scratch("a", 100, 0, 1), scratch("b", 30, 1, 2), scratch("c", 90, 2, 3))
    assert peak_bytes(ExecutionPlan("t", -1, (), lives, 0, 1)) == 130
    assert peak_bytes(ExecutionPlan("t", -1, (), (), 0, 1)) == 0


def test_the_text_of_a_kernel_by_symbol_kernel_and_node(program: CompiledProgram) -> None:
    symbol = program.binaries[0].symbols[0]
    ((target, found, text),) = kernel_sources(program, symbol)
    assert (target, found) == (program.binaries[0].target, symbol)
    assert text.count('extern "C"') == 1
    assert text.rstrip().endswith("}")
    assert text.count("{") == text.count("}")
    call = program.entries[0].plans[0].calls[0]
    assert {s for _, s, _ in kernel_sources(program, call.kernel)} >= {call.symbol}
    assert [s for _, s, _ in kernel_sources(program, call.nodes[0])] == [call.symbol]
    assert symbol in [s for _, s, _ in kernel_sources(program, symbol[:5])]
    with pytest.raises(
        InputError,
        match=rf"has no generated code of that name; got 'nothing'. Name a symbol, a node, or .*{call.kernel}",
    ):
        list(kernel_sources(program, "nothing"))


SOURCE = """static int f_(int);
// what it adds to
struct f_1_part { char open = '{'; };
// one
template <int N>
extern "C" void f_1(void *a) { // a brace: {
  const char *s = "}}{";  /* { */
  if (a) { g_2(a); }
}
extern "C" void g_2(void *a);
extern "C" void g_2(void *a) {
}
"""


def test_a_function_is_cut_out_with_its_helpers_and_braces_in_text_do_not_count() -> None:
    text = function_text(SOURCE, "f_1")
    assert text.startswith("// what it adds to\nstruct f_1_part")
    assert text.endswith("  if (a) { g_2(a); }\n}\n")
    assert function_text(SOURCE, "g_2").endswith('extern "C" void g_2(void *a) {\n}\n')
    assert function_text(SOURCE, "h") == SOURCE


def test_a_program_becomes_an_onnx_graph(program: CompiledProgram) -> None:
    model = program_to_onnx(program)
    onnx.checker.check_model(model, full_check=True)
    plan = program.entries[0].plans[0]
    nodes = [n for n in model.graph.node if n.op_type not in ("View", "Weight")]
    assert {n.domain for n in model.graph.node} == {DOMAIN}
    assert [
        {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute}["symbol"].decode() for n in nodes
    ] == [c.symbol for c in plan.calls]
    assert sum(n.op_type == "Weight" for n in model.graph.node) == 1
    assert sum(n.op_type == "View" for n in model.graph.node) >= 2  # the halves
    assert [i.name for i in model.graph.input] == list(program.entries[0].input_buffers)
    typed = {v.name: v.type.tensor_type for v in (*model.graph.value_info, *model.graph.output)}
    assert all(o in typed for n in model.graph.node for o in n.output)
    assert [d.dim_value for d in typed[model.graph.output[0].name].shape.dim] == [8, 4]


@pytest.mark.parametrize("seed", range(25))
def test_any_program_makes_a_graph_that_the_checker_takes(seed: int) -> None:
    program = random_program(seed)
    for entry in program.entries:
        model = program_to_onnx(program, entry.name)
        onnx.checker.check_model(model)
        calls = [n for n in model.graph.node if n.op_type not in ("View", "Weight")]
        assert len(calls) == len(entry.plans[0].calls)


def test_parts_and_states_written_in_place_are_values_of_their_own() -> None:
    f2, f4 = TensorSpec((2,), DType.FLOAT32), TensorSpec((4,), DType.FLOAT32)
    buffers = (
        BufferAllocation("s", BufferKind.STATE, f4, 16, "s"),
        BufferAllocation("s.low", BufferKind.STATE, f2, 8, "s"),
        BufferAllocation("s.high", BufferKind.STATE, f2, 8, "s", 8),
        BufferAllocation("y", BufferKind.OUTPUT, f4, 16, "y"),
    )
    calls = (
        KernelCall("k", "f", ("s.high",), ("s.low",), library="l"),
        KernelCall("k", "f", ("s",), ("y",), library="l"),
        KernelCall("k", "f", ("s",), ("s",), library="l"),
    )
    base = random_program(0)
    from xpuruntime.program.program import EntryPoint, StateRef

    entry = EntryPoint(
        "e", (), (replace(f4, name="y"),), (), ("y",), (ExecutionPlan("t", -1, calls, buffers, 0, 1),)
    )
    model = program_to_onnx(
        replace(base, entries=(entry,), states=(StateRef("s", f4),), weights=(), recipes=())
    )
    onnx.checker.check_model(model)
    assert [(n.op_type, list(n.input), list(n.output)) for n in model.graph.node] == [
        ("View", ["s"], ["s.high"]),
        ("k", ["s.high"], ["s.low"]),
        ("View", ["s", "s.low"], ["s#2"]),
        ("k", ["s#2"], ["y"]),
        ("k", ["s#2"], ["s#3"]),
    ]
    assert [o.name for o in model.graph.output] == ["y", "s#3"]
