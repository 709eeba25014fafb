"""Control flow on the native engine: branches and bodies are entry points of the program, and the runtime needs no compiler for them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.control_models import nested_model

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.errors import BuildError, FormatError, KernelUnavailable, RunError, RunTimeout
from xpuruntime.frontends.onnx_writer import to_onnx
from xpuruntime.program.program import CompiledProgram, KernelCall
from xpuruntime.program.validate import problems

TEXT = """
graph "net" {
  input %c: bool[]
  input %n: int64[]
  input %x: float32[8, 16]
  weight %w: float32[16, 16]
  %y: float32[8, 16] = loop(%n, none, %x, %c, %w, body=graph "body" {
    input %i: int64[]
    input %s: float32[8, 16]
    input %c: bool[]
    input %w: float32[16, 16]
    %t: float32[8, 16] = cond(%c, %s, %w, then_branch=graph "then" {
      input %s: float32[8, 16]
      input %w: float32[16, 16]
      %m: float32[8, 16] = matmul(%s, %w)
      %r: float32[8, 16] = tanh(%m)
      output "0" = %r
    }, else_branch=graph "else" {
      input %s: float32[8, 16]
      input %w: float32[16, 16]
      %r: float32[8, 16] = neg(%s)
      output "0" = %r
    })
    %f: float32[] = cast(%i, dtype=float32)
    %u: float32[8, 16] = add(%t, %f)
    output "0" = %u
  }, carried=1)
  output "y" = %y
}
"""


def feeds(trips: int, going: bool) -> dict[str, Any]:
    x = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
    return {"c": np.array(going), "n": np.array(trips), "x": x}


def weights(seed: int = 0) -> dict[str, Any]:
    return {"w": (np.random.default_rng(seed).standard_normal((16, 16)) / 4).astype(np.float32)}


@pytest.fixture(scope="module")
def program() -> CompiledProgram:
    return xrt.compile(ir.parse(TEXT))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(20))
def test_nested_graphs_equal_onnxruntime(seed: int) -> None:
    ort = pytest.importorskip("onnxruntime", reason="the reference")
    model, inputs = nested_model(seed)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    want = session.run(None, inputs)
    with xrt.InferenceSession(model, engine="native") as native:
        for _ in range(2):
            results = list(native.run(inputs).values())
            for got, expected in zip(results, want, strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("trips", [0, 1, 2, 5])
@pytest.mark.parametrize("going", [True, False])
def test_a_loaded_program_equals_the_interpreter(
    program: CompiledProgram, tmp_path: Path, trips: int, going: bool
) -> None:
    program.save(tmp_path / "net.npubin")
    loaded = CompiledProgram.load(tmp_path / "net.npubin")
    assert sum(e.is_body for e in loaded.entries) == 3
    want = ir.interp.run(ir.parse(TEXT), feeds(trips, going), weights=weights())["y"]
    with xrt.Executor(loaded) as executor:
        executor.bind(weights())
        for _ in range(2):
            (got,) = executor.run_arrays(list(feeds(trips, going).values()))
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_weights_of_a_run_reach_its_bodies(program: CompiledProgram) -> None:
    with xrt.Executor(program) as executor:
        for seed in (0, 1, 0):
            want = ir.interp.run(ir.parse(TEXT), feeds(3, True), weights=weights(seed))["y"]
            got = executor.run(feeds(3, True), weights(seed))["y"].to_numpy()
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_threads_share_an_executor(program: CompiledProgram) -> None:
    failed: list[object] = []
    with xrt.Executor(program, contexts=2) as executor:
        executor.bind(weights())
        wants = [
            ir.interp.run(ir.parse(TEXT), feeds(n, n % 2 == 0), weights=weights())["y"] for n in range(4)
        ]

        def work(n: int) -> None:
            for _ in range(20):
                (got,) = executor.run_arrays(list(feeds(n, n % 2 == 0).values()))
                if not np.allclose(got, wants[n], rtol=1e-4, atol=1e-5):
                    failed.append(n)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


def test_a_closed_executor_and_its_memory() -> None:
    import gc
    import weakref

    executor = xrt.Executor(xrt.compile(ir.parse(TEXT)))
    executor.bind(weights())
    executor.run_arrays(list(feeds(1, True).values()))
    body = weakref.ref(next(iter(executor._bodies.values())))
    executor.close()
    with pytest.raises(RunError):
        executor.run_arrays(list(feeds(1, True).values()))
    del executor
    gc.collect()
    assert body() is None


ENDLESS = """
graph "net" {
  input %x: float32[4]
  %y: float32[4] = loop(none, none, %x, body=graph "body" {
    input %i: int64[]
    input %s: float32[4]
    %t: float32[4] = relu(%s)
    output "0" = %t
  }, carried=1, trips=4611686018427387904)
  output "y" = %y
}
"""


def test_an_endless_loop_is_stopped() -> None:
    policy = xrt.ExecutionPolicy(run_timeout_s=0.2)
    with (
        xrt.InferenceSession(to_onnx(ir.parse(ENDLESS)), engine="native", policy=policy) as session,
        pytest.raises(RunTimeout),
    ):
        session.run({"x": np.ones(4, np.float32)})


def test_what_static_programs_cannot_do() -> None:
    grows = ir.parse(
        """
        graph "net" {
          input %n: int64[]
          input %x: float32[2]
          %y: float32[u0] = loop(%n, none, %x, body=graph "body" {
            input %i: int64[]
            input %s: float32[k]
            %t: float32[2*k] = cat(%s, %s, dim=0)
            output "0" = %t
          }, carried=1, sizes=[<u0>])
          output "y" = %y
        }
        """
    )
    with pytest.raises((KernelUnavailable, ir.IrError), match=r"that the values of node 'y' decide"):
        xrt.compile(grows)


def change(program: CompiledProgram, edit: Callable[[KernelCall], KernelCall]) -> CompiledProgram:
    """The program with every control-flow call edited."""
    entries = []
    for entry in program.entries:
        plans = tuple(
            replace(p, calls=tuple(edit(c) if c.library == "control" else c for c in p.calls))
            for p in entry.plans
        )
        entries.append(replace(entry, plans=plans))
    return replace(program, entries=tuple(entries))


def with_options(**options: Any) -> Callable[[KernelCall], KernelCall]:
    return lambda c: replace(c, options={**c.options, **options})


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (with_options(entries=["main"]), "not 2 of the program's entry points|does not have the inputs"),
        (with_options(entries=["nothing", "nothing"]), "not 1 of the program's|not 2 of the program's"),
        (with_options(op="while"), "unknown kind"),
        (with_options(carried=2), "carries 2|second buffer|does not have"),
        (with_options(limited=False, trips=-1), "never ends|does not have"),
        (with_options(checked=True), "does not have the outputs"),
        (lambda c: replace(c, inputs=c.inputs[1:]), "no condition|no number|does not have"),
        (lambda c: replace(c, outputs=c.outputs[:1]), "carries|does not have|second buffer"),
    ],
)  # fmt: skip
def test_programs_from_elsewhere_are_checked(
    program: CompiledProgram, edit: Callable[[KernelCall], KernelCall], problem: str
) -> None:
    broken = change(program, edit)
    found = list(problems(broken))
    assert any(re.search(problem, p) for p in found), found
    with pytest.raises(FormatError):
        broken.to_bytes()


def test_an_entry_point_that_runs_itself_is_refused(program: CompiledProgram) -> None:
    main = program.entries[0]
    loop = next(
        e for e in program.entries if e.is_body and any(c.library == "control" for c in e.plans[0].calls)
    )
    itself = change(replace(program, entries=(main, loop)), with_options(entries=[loop.name, loop.name]))
    assert any("runs itself" in p for p in problems(itself))


def squeezing(batch: str = "n") -> Any:
    """PyTorch's ``squeeze`` of a dim that may be 1, and a Range whose bound is a size: both are known once the sizes are."""
    from onnx import TensorProto, helper

    info, node = helper.make_tensor_value_info, helper.make_node
    branches = {
        name: helper.make_graph([op], name, [], [info(op.output[0], TensorProto.FLOAT, None)])
        for name, op in (
            ("then_branch", node("Squeeze", ["x", "one"], ["s"])),
            ("else_branch", node("Relu", ["x"], ["r"])),
        )
    }
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["size"]),
        node("Equal", ["size", "one"], ["single"]),
        node("If", ["single"], ["y"], name="squeeze", **branches),
        node("Cast", ["size"], ["limit1"], to=TensorProto.FLOAT),
        node("Squeeze", ["limit1"], ["limit"]),
        node("Range", ["start", "limit", "step"], ["r0"], name="range"),
        node("Exp", ["r0"], ["places"]),
    ]
    constants = [
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        helper.make_tensor("start", TensorProto.FLOAT, [], [0.0]),
        helper.make_tensor("step", TensorProto.FLOAT, [], [1.0]),
    ]
    outputs = [info("y", TensorProto.FLOAT, None), info("places", TensorProto.FLOAT, ["m"])]
    graph = helper.make_graph(
        nodes, "squeezing", [info("x", TensorProto.FLOAT, [2, batch, 3])], outputs, constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_branches_and_ranges_that_depend_on_sizes() -> None:
    """The model is imported again for each set of sizes; the rank of a result may differ between them."""
    pytest.importorskip("onnx")
    with xrt.InferenceSession(squeezing(), engine="native") as session:
        for size in (1, 3, 1):
            x = np.arange(-3, 6 * size - 3, dtype=np.float32).reshape(2, size, 3)
            results = list(session.run({"x": x}).values())
            want = x[:, 0] if size == 1 else np.maximum(x, 0)
            np.testing.assert_array_equal(results[0], want)
            np.testing.assert_allclose(results[1], np.exp(np.arange(size)), rtol=1e-5)


def searching(extra: str = "Exp", domain: str = "") -> Any:
    """The positive elements of ``x``, and a loop that runs once for each of them."""
    from onnx import TensorProto, helper

    info, node = helper.make_tensor_value_info, helper.make_node
    body = helper.make_graph(
        [
            node("Identity", ["going"], ["on"]),
            node("Gather", ["y", "i"], ["one"]),
            node("Neg", ["one"], ["minus"]),
        ],
        "body",
        [info("i", TensorProto.INT64, []), info("going", TensorProto.BOOL, [])],
        [info("on", TensorProto.BOOL, []), info("minus", TensorProto.FLOAT, [])],
    )
    nodes = [
        node("Relu", ["x"], ["h"], name="first"),
        node("NonZero", ["h"], ["at"], name="find"),
        node("Transpose", ["at"], ["rows"], perm=[1, 0], name="turn"),
        node("GatherND", ["h", "rows"], ["values"], name="take"),
        node(extra, ["values"], ["y"], name="last", domain=domain),
        node("Size", ["y"], ["count"], name="count"),
        node("Loop", ["count", ""], ["z"], body=body, name="each"),
    ]
    outputs = [info(n, TensorProto.FLOAT, ["k"]) for n in ("y", "z")]
    graph = helper.make_graph(nodes, "searching", [info("x", TensorProto.FLOAT, [4, 3])], outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_sizes_that_only_a_run_knows_are_computed_between_programs() -> None:
    pytest.importorskip("onnx")
    with xrt.InferenceSession(searching(), engine="native", device="cpu") as session:
        engines = [r.engine for r in session.plan.regions]
        assert engines[:3] == ["native", "interpreter", "native"]
        assert all(not r.alternatives for r in session.plan.regions)
        (chosen,) = (
            d.chosen for d in session.plan.decisions if d.question == "engine" and d.subject == "searching"
        )
        assert chosen is not None
        assert "nonzero (find)" in chosen.reason
        for seed in (0, 1, 0):
            x = np.random.default_rng(seed).standard_normal((4, 3)).astype(np.float32)
            y, z = session.run({"x": x}).values()
            want = np.exp(x[x > 0])
            np.testing.assert_allclose(y, want, rtol=1e-5)
            np.testing.assert_allclose(z, -want, rtol=1e-5)
        nothing = session.run({"x": -np.ones((4, 3), np.float32)})
        assert [v.shape for v in nothing.values()] == [(0,), (0,)]


def test_numpy_computes_nothing_but_sizes() -> None:
    """A node without a kernel is refused as before."""
    pytest.importorskip("onnx")
    with pytest.raises(xrt.EngineUnavailable) as caught:
        xrt.InferenceSession(searching("Strange", "mine"), engine="native", device="cpu")
    assert "known only at run time" in str(caught.value)


def either_width(domain: str = "") -> Any:
    """x of n elements: with the condition the sum of x + 5 weights, without it that of x + 7 weights. domain: of the last op."""
    from onnx import TensorProto, helper, numpy_helper

    info, node = helper.make_tensor_value_info, helper.make_node
    rng = np.random.default_rng(3)
    branches = {
        f"{name}_branch": helper.make_graph(
            [
                node("Add", ["x", f"w{size}"], [f"z{size}"], name=f"add{size}", domain=domain),
                node("ReduceSum", [f"z{size}"], [f"y{size}"], name=f"sum{size}"),
            ],
            name,
            [],
            [info(f"y{size}", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(rng.standard_normal(size).astype(np.float32), f"w{size}")],
        )
        for name, size, domain in (("then", 5, ""), ("else", 7, domain))
    }
    graph = helper.make_graph(
        [node("If", ["c"], ["y"], name="if", **branches)],
        "widths",
        [info("c", TensorProto.BOOL, []), info("x", TensorProto.FLOAT, ["n"])],
        [info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(d, 17) for d in {"", domain}], ir_version=9
    )


def test_a_branch_that_the_sizes_rule_out_fails_when_it_is_taken() -> None:
    ort = pytest.importorskip("onnxruntime", reason="the reference")
    model = either_width()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    reference = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with xrt.InferenceSession(model, device="cpu", engine="native") as session:
        for size, exists in ((5, True), (7, False), (1, True), (1, False)):
            fed = {"c": np.array(exists), "x": np.arange(size, dtype=np.float32)}
            (got,) = session.run(fed).values()
            np.testing.assert_allclose(got, reference.run(None, fed)[0], rtol=1e-6)
        for size, absent in ((5, False), (7, True)):
            fed = {"c": np.array(absent), "x": np.arange(size, dtype=np.float32)}
            with pytest.raises(Exception, match="broadcast"):
                reference.run(None, fed)
            with pytest.raises(
                RunError,
                match=r"cannot run for inputs of these sizes: its body has Add.*of other sizes or values",
            ):
                session.run(fed)
            fed["c"] = np.array(not absent)
            session.run(fed)  # the session goes on
        with pytest.raises(BuildError, match=r"no form in the IR.*shapes do not broadcast.*got sizes n = 6"):
            session.run({"c": np.array(True), "x": np.ones(6, np.float32)})


def test_a_branch_with_an_op_that_is_not_known_is_not_ruled_out() -> None:
    from xpuruntime.frontends.onnx import import_onnx

    (ruled_out,) = (n for n in import_onnx(either_width(), sizes={"n": 5})[0].nodes if n.op == "cond")
    assert [n.op for n in ruled_out.attrs["else_branch"].nodes] == ["fail"]
    (kept,) = import_onnx(either_width("elsewhere"), sizes={"n": 5})[0].nodes
    assert kept.op == "opaque"
    assert "elsewhere" in kept.attrs["reason"]


def test_the_end_of_a_run_is_no_value_that_a_pass_may_compute() -> None:
    text = 'graph "g" {\n  input %x: float32[2]\n  %f: float32[2] = fail(size=[2], dtype=float32, reason="ruled out")\n'
    text += '  %y: float32[2] = add(%x, %f)\n  output "y" = %y\n}\n'
    graph = ir.parse(text)
    x = np.ones(2, np.float32)
    with pytest.raises(xrt.XpuError, match="ruled out"):
        ir.interp.run(graph, {"x": x})
    program = xrt.compile(graph)
    with pytest.raises(RunError, match=r"ruled out\. Give inputs of other sizes or values"):
        xrt.Executor(program, "cpu").run({"x": x})
    assert any("has no reason" in p for p in problems(change(program, with_options(reason=3))))
