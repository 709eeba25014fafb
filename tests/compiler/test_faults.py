"""Whatever fails in our own code is an InternalError that names it, with a reproduction that reads back and can be replayed."""

from __future__ import annotations

import json
import re
import shlex
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import xpuruntime as xrt
from xpuruntime import ir, passes
from xpuruntime.cli.app import app
from xpuruntime.codegen.cpp import toolchain as toolchains
from xpuruntime.codegen.cpp.target import CppTarget
from xpuruntime.compiler import emit, memory, pipeline
from xpuruntime.decisions import Reason, Support
from xpuruntime.errors import BuildError, InternalError, IrError, OutOfMemory
from xpuruntime.kernels import catalogue
from xpuruntime.kernels.kernel import Kernel
from xpuruntime.passes import PASSES, GraphPass, layout
from xpuruntime.policies import KernelPolicy, Rule


@pytest.fixture(autouse=True)
def store(fresh_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XPU_CACHE_DIR", str(fresh_store))
    return fresh_store


def net() -> ir.Graph:
    """A convolution and a softmax whose nodes know where they come from."""
    b = ir.GraphBuilder("net")
    x = b.input("x", "float32[1, 8, 6, 6]")
    w = b.weight("w", "float32[8, 8, 3, 3]")
    with b.source(ir.Source(name="Conv_0", op="Conv", module="layer1.conv", file="model.py", line=12)):
        y = b.convolution(x, w, stride=[1, 1], padding=[1, 1], dilation=[1, 1])
    with b.source(ir.Source(name="Softmax_1", op="Softmax", file="model.py", line=13)):
        b.output("y", b.softmax(y, dim=-1))
    return b.build()


def boom(graph: Any, *_: Any, **__: Any) -> Any:
    """Fail as a rewrite does: with a node at hand."""
    node = graph.nodes[0]
    raise KeyError(f"no such value in {node.op}")


def same_graph(folder: str, graph: ir.Graph) -> bool:
    return bool(ir.parse((Path(folder) / "graph.txt").read_text()) == graph)


def check_report(error: InternalError, graph: ir.Graph, part: str) -> None:
    """The error names the part and the folder, and the folder holds what reproduces it and nothing secret."""
    assert part in error.parts, error.parts
    assert "a fault of xpuruntime" in str(error)
    assert part in str(error)
    assert error.folder
    assert error.folder in str(error)
    assert error.exit_code == 70
    folder = Path(error.folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(p.name for p in folder.iterdir()) == ["graph.txt", "policy.json", "report.txt"]
    assert same_graph(error.folder, graph)
    json.loads((folder / "policy.json").read_text())
    report = (folder / "report.txt").read_text()
    assert "Traceback" in report
    assert f"xpuruntime {xrt.__version__}" in report
    assert error.to_json()["reproduction"] == error.folder


def broken_pass(monkeypatch: pytest.MonkeyPatch, step: GraphPass, error: Any = boom) -> None:
    if step.physical:
        monkeypatch.setattr(layout, "assign_layouts", error)
        return
    table = tuple(replace(p, run=error) if p.name == step.name else p for p in PASSES)
    monkeypatch.setattr(passes, "PASSES", table)


@pytest.mark.parametrize("step", PASSES, ids=lambda p: p.name)
def test_a_pass_that_fails_is_named_with_node_and_source(
    step: GraphPass, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_pass(monkeypatch, step)
    graph = net()
    with pytest.raises(InternalError, match=r"'Conv_0', layer1\.conv, model\.py:12") as caught:
        xrt.compile(graph, passes=["all", step.name])
    check_report(caught.value, graph, f"pass {step.name}")
    assert isinstance(caught.value.__cause__, KeyError)
    assert f'passes="-{step.name}"' in str(caught.value)


@pytest.mark.parametrize("step", PASSES, ids=lambda p: p.name)
def test_a_pass_that_breaks_a_law_of_the_ir_is_our_fault(
    step: GraphPass, monkeypatch: pytest.MonkeyPatch
) -> None:
    def illegal(*_: Any, **__: Any) -> Any:
        raise IrError("add %x", "takes two operands")

    broken_pass(monkeypatch, step, illegal)
    graph = net()
    with pytest.raises(InternalError, match="takes two operands") as caught:
        xrt.compile(graph, passes=["all", step.name])
    check_report(caught.value, graph, f"pass {step.name}")


ROWS = [(kind, at) for kind in ("cpu", "cuda") for at in range(len(catalogue.kernels(kind)))]
TARGETS = {"cpu": "cpu", "cuda": "cuda:sm_90"}


def relu() -> ir.Graph:
    b = ir.GraphBuilder("one")
    with b.source(ir.Source(name="Relu_0", op="Relu", file="model.py", line=7)):
        b.output("y", b.relu(b.input("x", "float32[4]")))
    return b.build()


def alone(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, *others: Kernel) -> None:
    """The kernel is the first of every op, computes it by its own word, and fails over its code."""

    def lower(self: Kernel, call: Any, target: Any) -> Any:
        raise AssertionError(f"no way to write {call.op}")

    kind = type(kernel)
    monkeypatch.setattr(kind, "supports", lambda *_: Support.yes())
    monkeypatch.setattr(kind, "leads", lambda *_: False)
    monkeypatch.setattr(kind, "on_request", False)
    monkeypatch.setattr(kind, "lower", lower)
    monkeypatch.setattr(catalogue, "kernels_of", lambda op, kind="cpu": (kernel, *others))


@pytest.mark.parametrize(("kind", "at"), ROWS, ids=lambda v: str(v))
def test_a_kernel_that_fails_is_named(kind: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = catalogue.kernels(kind)[at]
    alone(monkeypatch, kernel)
    graph = relu()
    with pytest.raises(InternalError, match=r"'Relu_0', model\.py:7") as caught:
        xrt.compile(graph, target=TARGETS[kind], passes=0)
    check_report(caught.value, graph, f"kernel {kernel.name}")
    assert isinstance(caught.value.__cause__, AssertionError)


class Plain(Kernel):
    """A kernel that computes relu by the generated code, under another word."""

    name, ops = "elementwise/plain", ("relu",)

    def __init__(self, real: Kernel) -> None:
        self.real, self._supports, self._lower = real, type(real).supports, type(real).lower

    def supports(self, call: Any, target: Any) -> Support:
        return self._supports(self.real, call, target)

    def lower(self, call: Any, target: Any) -> Any:
        return self._lower(self.real, call, target)


@pytest.mark.parametrize(("kind", "at"), [r for r in ROWS if r[0] == "cpu"], ids=lambda v: str(v))
def test_the_next_kernel_is_taken_and_the_decision_says_why(
    kind: str, at: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Plain(catalogue.kernels_of("relu")[0])
    kernel = catalogue.kernels(kind)[at]
    alone(monkeypatch, kernel, plain)
    program = xrt.compile(relu(), passes=0)
    (decision,) = program.decisions
    assert decision.chosen is not None
    assert decision.chosen.name == "plain"
    (rejected,) = decision.rejected
    assert rejected.code is Reason.INTERNAL_ERROR
    assert kernel.name in rejected.reason
    folder = re.search(r"reproduction: (\S+)", rejected.reason)
    assert folder is not None
    assert same_graph(folder[1], relu())
    assert "Relu_0" in caplog.text
    assert "plain" in caplog.text


def test_a_kernel_that_is_forced_and_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Plain(catalogue.kernels_of("relu")[0])
    real = catalogue.kernels_of("relu")[0]
    alone(monkeypatch, real, plain)
    policy = KernelPolicy(rules=[Rule(use="generated")])
    with pytest.raises(InternalError, match="no way to write relu"):
        xrt.compile(relu(), passes=0, policy=policy)


@pytest.mark.parametrize(("kind", "at"), ROWS, ids=lambda v: str(v))
def test_a_kernel_that_fails_over_the_question_is_passed_over(
    kind: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = catalogue.kernels(kind)[at]

    def supports(*_: Any) -> Support:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(type(kernel), "supports", supports)
    monkeypatch.setattr(type(kernel), "leads", lambda *_: False, raising=False)
    monkeypatch.setattr(catalogue, "kernels_of", lambda op, kind="cpu": (kernel,))
    with pytest.raises(xrt.KernelUnavailable, match="tuple index out of range") as caught:
        xrt.compile(relu(), target=TARGETS[kind], passes=0)
    assert caught.value.decision is not None
    assert caught.value.decision.rejected[0].code is Reason.INTERNAL_ERROR


STAGES = {
    "memory planning": (memory.Memory, "reuse"),
    "memory planning, the arena": (memory.Memory, "done"),
    "lowering": (pipeline, "lower"),
    "emit": (emit.Code, "add"),
    "code generation": (CppTarget, "assemble"),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("error", [KeyError, IndexError, RecursionError, AssertionError])
def test_a_stage_that_fails_is_our_fault(
    stage: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error("broken")

    monkeypatch.setattr(*STAGES[stage], fail)
    graph = net()
    with pytest.raises(InternalError, match=error.__name__) as caught:
        xrt.compile(graph)
    assert same_graph(caught.value.folder, graph)
    word = stage.partition(",")[0]
    if stage not in ("lowering", "emit"):
        assert any(p.startswith(word) for p in caught.value.parts)
    if stage == "emit":
        assert any(re.match(r"kernel \S+/\S+ for ", p) for p in caught.value.parts)


def test_a_compiler_that_refuses_our_text_is_our_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CppTarget.source

    def spoiled(self: CppTarget, functions: Any, parts: Any = ()) -> str:
        return real(self, {k: v.replace("{", "{ undeclared();", 1) for k, v in functions.items()}, parts)

    monkeypatch.setattr(CppTarget, "source", spoiled)
    with pytest.raises(InternalError, match="undeclared") as caught:
        xrt.compile(net())
    assert any(p.startswith("code generation") for p in caught.value.parts)
    assert any(p.startswith("kernel ") for p in caught.value.parts)


def test_a_compiler_that_works_on_nothing_is_not_our_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "c++"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo broken 1.0 && exit 0\necho no disk >&2\nexit 1\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setattr(toolchains, "_makes_code_for", lambda _: "x86_64")
    with pytest.raises(BuildError, match="no disk") as caught:
        xrt.compile(relu())
    assert not isinstance(caught.value, InternalError)


def test_a_machine_without_memory_is_no_fault(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(memory.Memory, "done", full)
    with pytest.raises(OutOfMemory):
        xrt.compile(relu())
    assert not (store / "reports").exists()


def test_an_interrupt_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(memory.Memory, "done", stop)
    with pytest.raises(KeyboardInterrupt):
        xrt.compile(relu())


def test_errors_of_a_users_function_are_the_users() -> None:
    def watch(name: str, graph: ir.Graph) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        xrt.compile(relu(), watch=watch)

    def supports(*_: Any) -> Any:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        xrt.partition(relu(), supports)


def test_a_graph_that_breaks_a_law_is_not_our_fault() -> None:
    graph = relu()
    (node,) = graph.nodes
    torn = graph.replace(nodes=(ir.Node("relu", ("absent",), node.attrs, node.outputs),))
    with pytest.raises(IrError, match="absent"):
        xrt.compile(torn)


def test_the_command_of_the_error_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    step = next(p for p in PASSES if p.name == "decompose")
    broken_pass(monkeypatch, step)
    b = ir.GraphBuilder('open "sizes"')
    b.output("y", b.relu(b.input("x y", "float32[n, 4]")))
    policy = KernelPolicy(rules=[Rule(op=("elementwise",), prefer="generated")])
    with pytest.raises(InternalError) as caught:
        xrt.compile(b.build(), target="cuda:sm_90", shapes={"n": 3}, policy=policy, passes="extended")
    command = re.search(r"`(xpu [^`]*)`", str(caught.value))
    assert command is not None
    words = shlex.split(command[1])
    assert words[0] == "xpu"
    again = CliRunner().invoke(app, words[1:])
    assert again.exit_code == 70
    assert "pass decompose" in again.output
    monkeypatch.undo()
    assert CliRunner().invoke(app, words[1:]).exit_code == 0


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    broken_pass(monkeypatch, next(p for p in PASSES if p.name == "cse"))
    return monkeypatch


def named(name: str) -> ir.Graph:
    return relu().replace(name=name)


def test_reports_are_bounded_and_the_same_fault_is_one(failing: pytest.MonkeyPatch, store: Path) -> None:
    stranger = store / "reports" / "mine"
    stranger.mkdir(parents=True)
    for at in range(25):
        with pytest.raises(InternalError):
            xrt.compile(named(f"net {at}"))
    for _ in range(3):
        with pytest.raises(InternalError):
            xrt.compile(named("net 24"))
    there = [p for p in (store / "reports").iterdir() if p != stranger]
    assert len(there) == 20
    assert stranger.is_dir()
    assert any(same_graph(str(p), named("net 24")) for p in there)


def test_reports_go_to_the_temporary_folder_where_the_store_cannot_be_written(
    failing: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing.setenv("XPU_CACHE_DIR", "/proc/no such folder")
    failing.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InternalError) as caught:
        xrt.compile(relu())
    assert Path(caught.value.folder).is_relative_to(tmp_path)
    assert same_graph(caught.value.folder, relu())


def test_a_folder_that_others_may_write_is_not_taken(
    failing: pytest.MonkeyPatch, store: Path, tmp_path: Path
) -> None:
    (store / "reports").mkdir(parents=True)
    (store / "reports").chmod(0o777)
    failing.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InternalError) as caught:
        xrt.compile(relu())
    assert not Path(caught.value.folder).is_relative_to(store)


def test_what_goes_wrong_while_reporting_hides_nothing(failing: pytest.MonkeyPatch) -> None:
    def unprintable(_: ir.Graph) -> str:
        raise ZeroDivisionError

    failing.setattr(ir.Graph, "__str__", unprintable)
    with pytest.raises(InternalError, match="pass cse failed") as caught:
        xrt.compile(relu())
    assert caught.value.folder == ""
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_keyword_that_there_is_not_is_the_callers() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'enginee'"):
        xrt.InferenceSession(b"", enginee="native")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'model'"):
        xrt.InferenceSession()  # type: ignore[call-arg]
