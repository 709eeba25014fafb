"""Kernels of users on the CPU: texts and Python functions, chosen by policy, checked by the interpreter, saved, and refused with reasons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.native import check, compile_native, run_native

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.decisions import Reason
from xpuruntime.errors import BuildError, KernelUnavailable, PolicyError, RunError
from xpuruntime.plugins import registered
from xpuruntime.workbench.programs.report import kernel_sources

ROWS = """
constexpr int64_t COLS = in0_shape[in0_rank - 1];

void rows(const in0_t *x, out0_t *y, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
        const in0_t *from = x + r * COLS;
        out0_t *to = y + r * COLS;
        float most = load<1>(from), sum = 0;
        for (int64_t c = 1; c < COLS; ++c) most = load<1>(from + c) > most ? load<1>(from + c) : most;
        for (int64_t c = 0; c < COLS; ++c) sum += exp(load<1>(from + c) - most);
        for (int64_t c = 0; c < COLS; ++c) store<1>(to + c, exp(load<1>(from + c) - most) / sum);
    }
}
"""


def last_dim(call: Any) -> str | None:
    rank = call.outputs[0].rank
    return (
        None if call.attrs["dim"] == rank - 1 else f"only rows of the last dim, not dim {call.attrs['dim']}"
    )


def each_row(call: Any) -> xrt.Tasks:
    return xrt.Tasks(int(np.prod(call.outputs[0].shape[:-1], dtype=int)))


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = registered._TABLE.kernels, registered._TABLE.functions
    yield
    registered._TABLE.kernels, registered._TABLE.functions = before


def softmax_mine(**changed: Any) -> Any:
    given = {"op": "softmax", "source": ROWS, "parts": ("exp",), "launch": each_row, "supports": last_dim}
    return xrt.register_kernel("softmax/mine", **(given | changed))


def graph(dtype: str = "float32", dim: int = 1) -> ir.Graph:
    b = ir.GraphBuilder("scores")
    b.output("y", b.relu(b.softmax(b.input("x", f"{dtype}[5, 37]"), dim=dim, name="probs"), name="kept"))
    return b.build()


X = np.random.default_rng(3).standard_normal((5, 37)).astype(np.float32)
MINE = xrt.KernelPolicy(softmax="mine")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cpu"])
def test_a_text_computes_its_node_in_every_dtype_and_split(dtype: str, target: str) -> None:
    softmax_mine()
    x = X.astype(xrt.DType.of(dtype).numpy)
    check(graph(dtype), {"x": x}, policy=MINE, target=target)
    assert np.array_equal(
        run_native(graph(dtype), {"x": x}, policy=MINE, target=target, split=3)["y"],
        run_native(graph(dtype), {"x": x}, policy=MINE, target=target)["y"],
    )


def test_the_policy_chooses_it_and_the_program_says_so() -> None:
    softmax_mine()
    program = compile_native(graph(), {"x": X}, policy=MINE)
    (plan,) = program.entries[0].plans
    assert [c.kernel for c in plan.calls] == ["softmax/mine", "elementwise/generated"]
    assert [plan.binary_of(c) for c in plan.calls] == [0, 1]
    assert program.binaries[0].symbols == ("softmax_mine_tasks",)
    assert "void rows(const in0_t *x" in program.binaries[0].source
    chosen = next(d for d in program.decisions if d.question == "kernel softmax")
    assert (chosen.chosen.name, chosen.chosen.code) == ("mine", Reason.PREFERRED)
    fusion = next(d for d in program.decisions if d.question == "fusion")
    assert (
        fusion.chosen.reason
        == "the policy selects the user's kernel mine, which computes softmax without fusion"
    )
    without = compile_native(graph(), {"x": X}, policy=xrt.KernelPolicy())
    assert [c.kernel for c in without.entries[0].plans[0].calls] == ["elementwise/generated"]  # one, fused


def test_its_text_is_shown_with_the_constants_of_its_call() -> None:
    softmax_mine()
    program = compile_native(graph(), {"x": X}, policy=MINE)
    for name in ("softmax/mine", "probs", "softmax_mine_tasks"):
        ((target, symbol, text),) = kernel_sources(program, name)
        assert (target, symbol) == (program.binaries[0].target, "softmax_mine_tasks")
        assert text.startswith("// softmax: in0 float32[5, 37], out0 float32[5, 37]\nusing in0_t = float;\n")
        assert ROWS.strip() in text


def test_nobody_gets_it_who_does_not_ask() -> None:
    softmax_mine()
    b = ir.GraphBuilder("alone")
    b.output("y", b.softmax(b.input("x", "float32[5, 37]"), dim=1))
    (decision,) = compile_native(b.build(), {"x": X}, policy=xrt.KernelPolicy()).decisions
    assert decision.chosen.name == "generated"
    assert [(c.name, c.reason) for c in decision.rejected] == [
        ("mine", "is a user's kernel, and no policy names it")
    ]


def test_what_it_refuses_goes_to_another_or_is_an_error() -> None:
    softmax_mine(dtypes=["float32"])
    program = compile_native(graph(dim=0), {"x": X}, policy=MINE)
    why = [c.reason for d in program.decisions for c in d.rejected if c.name == "mine"]
    assert why == ["only rows of the last dim, not dim 0"]
    assert check(graph(dim=0), {"x": X}, policy=MINE)["y"].shape == X.shape
    forced = xrt.KernelPolicy(rules=[xrt.Rule(op="softmax", use="mine")])
    with pytest.raises(KernelUnavailable, match=r"only rows of the last dim, not dim 0"):
        compile_native(graph(dim=0), {"x": X}, policy=forced)
    with pytest.raises(KernelUnavailable, match=r"softmax/mine supports float32, not float64"):
        compile_native(graph("float64"), {"x": X.astype(np.float64)}, policy=forced)
    softmax_mine(supports=lambda call: 1 / 0)
    with pytest.raises(KernelUnavailable, match=r"its supports\(\) failed with ZeroDivisionError"):
        compile_native(graph(), {"x": X}, policy=forced)


def test_weights_constants_and_parameters_reach_it() -> None:
    text = """
    static_assert(in1_rank == 1 && in1_shape[0] == 37 && in1_size == 37 && has_in1 && BIAS == 3, "constants of the call");
    void scaled(const in0_t *x, const in1_t *w, out0_t *y, double factor, int64_t steps, int64_t begin, int64_t end, void *scratch) {
        *(int64_t *)scratch = steps;
        for (int64_t i = begin; i < end; ++i) y[i] = (x[i] + w[i % 37] * 2) * (float)factor + *(int64_t *)scratch + BIAS;
    }
    """
    xrt.register_kernel(
        "elementwise/scaled",
        op="add",
        source=text,
        params=lambda call: {"factor": 0.5, "steps": 7},
        constants=lambda call: {"BIAS": 3},
        launch=lambda call: xrt.Tasks(185, 10, scratch=64),
    )
    b = ir.GraphBuilder("g")
    b.output("y", b.add(b.input("x", "float32[5, 37]"), b.weight("w", "float32[37]")))
    w = np.arange(37, dtype=np.float32)
    got = run_native(
        b.build(), {"x": X}, weights={"w": w}, policy=xrt.KernelPolicy(elementwise="scaled"), split=2
    )
    np.testing.assert_allclose(got["y"], (X + 2 * w) * 0.5 + 10, rtol=1e-6)


def test_operands_that_are_numbers_and_attributes_are_constants() -> None:
    text = """
    void shifted(const in0_t *x, out0_t *y, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) y[i] = x[i] + (float)in1_value;
    }
    """
    xrt.register_kernel("elementwise/shifted", op="add", source=text)
    b = ir.GraphBuilder("g")
    b.output("y", b.add(b.input("x", "float32[5, 37]"), 2.5))
    check(b.build(), {"x": X}, policy=xrt.KernelPolicy(elementwise="shifted"))
    softmax_mine(source=ROWS + 'static_assert(attr_dim == 1, "the attribute");')
    check(graph(), {"x": X}, policy=MINE)


def test_a_saved_program_needs_no_registration(tmp_path: Path) -> None:
    softmax_mine()
    path = tmp_path / "mine.npubin"
    compile_native(graph(), {"x": X}, policy=MINE).save(path)
    registered.unregister("softmax/mine")
    program = xrt.CompiledProgram.load(path)
    (y,) = xrt.Executor(program).run_arrays([X])
    e = np.exp(X - X.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)
    with pytest.raises(PolicyError, match="no such kernel of softmax; got 'mine'"):
        compile_native(graph(), {"x": X}, policy={"version": 1, "kernel": {"softmax": "mine"}})


# ── what is wrong, said ──


def refused(**changed: Any) -> str:
    softmax_mine(**changed)
    with pytest.raises(BuildError) as error:
        compile_native(graph(), {"x": X}, policy=MINE, target="cpu:x86-64-v3")
    return str(error.value)


def test_a_compile_error_shows_line_node_and_rule(tmp_path: Path) -> None:
    said = refused(source=ROWS.replace("sum += exp", "summ += exp"))
    assert said.startswith(
        "[kernel softmax/mine for node probs (softmax) on cpu:x86-64-v3] mine.cpp line 9 does not compile: "
        "`for (int64_t c = 0; c < COLS; ++c) summ += exp(load<1>(from + c) - most);` "
        "(chosen because softmax= of policy argument prefers it); got mine.cpp"
    )
    assert "summ" in said.partition("; got ")[2]
    assert said.endswith("Correct line 9 of mine.cpp.")
    file = tmp_path / "rows.cpp"
    file.write_text(ROWS.replace("float most", "flaot most"))
    rule = xrt.Rule(op="softmax", node="pr*", use="mine", reason="measured")
    softmax_mine(source=file)
    with pytest.raises(BuildError) as error:
        compile_native(graph(), {"x": X}, policy=xrt.KernelPolicy(rules=[rule]))
    assert "rows.cpp line 8 does not compile: `flaot most = load<1>(from), sum = 0;`" in str(error.value)
    assert "(chosen because rules[0] of policy argument (op=softmax, node=pr*: measured) forces it)" in str(
        error.value
    )


def test_another_signature_and_a_missing_function_are_said_with_the_right_one() -> None:
    right = 'extern "C" void rows(const float *in0, float *out0, int64_t begin, int64_t end)'
    said = refused(
        source=ROWS.replace("const in0_t *x", "const double *x").replace("in0_t *from", "double *from")
    )
    assert "mine.cpp line 3 has a wrong signature: `void rows(const double *x," in said
    assert said.endswith(f"Write: {right}")
    said = refused(entry="lines")
    assert "mine.cpp has no function 'lines'" in said
    assert "got functions rows" in said
    assert right.replace("rows", "lines") in said


def test_what_a_text_calls_and_has_not_is_said_and_may_be_linked() -> None:
    text = """
    extern "C" float tgammaf(float);
    void gammas(const in0_t *x, out0_t *y, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) y[i] = tgammaf(x[i] * 0 + 5);
    }
    """
    b = ir.GraphBuilder("g")
    b.output("y", b.relu(b.input("x", "float32[5, 37]")))
    asked = xrt.KernelPolicy(activation="gammas")
    xrt.register_kernel("activation/gammas", op="relu", source=text)
    with pytest.raises(
        BuildError, match=r"(?s)gammas.cpp does not compile .*tgammaf.*link a library \(flags=\)"
    ) as error:
        compile_native(b.build(), {"x": X}, policy=asked)
    assert "tgammaf" in str(error.value.got)
    xrt.register_kernel(
        "activation/gammas", op="relu", source=text, flags=("-Wl,--no-as-needed", "-lm", "-lc")
    )
    np.testing.assert_allclose(run_native(b.build(), {"x": X}, policy=asked)["y"], 24.0, rtol=1e-6)


def test_a_kernel_is_registered_whole_or_not_at_all() -> None:
    with pytest.raises(
        KernelUnavailable, match=r"names an op that the IR does not have; got 'softmx'. Did you mean softmax"
    ):
        softmax_mine(op="softmx")
    with pytest.raises(
        KernelUnavailable, match=r"computes ops of the families softmax. Name it softmax/mine"
    ):
        xrt.register_kernel("matmul/mine", op="softmax", source=ROWS)
    with pytest.raises(KernelUnavailable, match=r"has an empty source; got ''. Give its text"):
        softmax_mine(source="")
    with pytest.raises(KernelUnavailable, match=r"computes ops of the families softmax, elementwise"):
        softmax_mine(op=("softmax", "add"))
    with pytest.raises(KernelUnavailable, match=r"has an invalid name; got 'my-kernel'"):
        xrt.register_kernel("softmax/my-kernel", op="softmax", source=ROWS)
    with pytest.raises(
        KernelUnavailable, match=r"has an unknown kind of target; got 'gpu'. Name one of cpu, cuda"
    ):
        softmax_mine(target="gpu")
    with pytest.raises(KernelUnavailable, match=r"source that cannot be read; got no/such.cpp"):
        softmax_mine(source="no/such.cpp")
    with pytest.raises(KernelUnavailable, match=r"needs either a source or a function"):
        softmax_mine(function=print)
    with pytest.raises(
        KernelUnavailable, match=r"must name the function of its source to call; got functions a, b"
    ):
        softmax_mine(source="void a(int x) {}\nvoid b(int x) {}")
    assert registered.registered_kernels() == ()


def test_a_failing_launch_is_a_defect_of_the_kernel() -> None:
    assert (
        "failed during code generation; got TypeError: launch() must return Tasks on a CPU, got str"
        in refused(launch=lambda call: "many")
    )
    assert (
        "ValueError: count and grain must be positive and scratch not negative, got Tasks(count=0"
        in refused(launch=lambda call: 0)
    )
    assert "parameter 'a' must be a number, got str" in refused(params=lambda call: {"a": "b"})


# ── the interpreter as reference ──


def test_verify_compares_with_the_interpreter() -> None:
    kernel = softmax_mine(verify=[{"inputs": ["float32[3, 7]"], "attrs": {"dim": 1}}])
    (compared,) = xrt.verify_kernel(kernel, "float32[2, 3, 9]", attrs={"dim": 2}, target="cpu:x86-64-v2")
    assert compared.ok
    assert 0 < compared.max_rel < 1e-6
    assert xrt.verify_kernel("softmax/mine", X, attrs={"dim": 1})[0].elements == X.size
    with pytest.raises(KernelUnavailable, match=r"only rows of the last dim"):
        xrt.verify_kernel(kernel, "float32[3, 7]", attrs={"dim": 0})
    registered.unregister("softmax/mine")
    with pytest.raises(KernelUnavailable) as error:
        softmax_mine(
            source=ROWS.replace("/ sum", "* sum"), verify=[{"inputs": ["float32[3, 7]"], "attrs": {"dim": 1}}]
        )
    assert "differs from the reference interpreter for softmax(float32[3, 7])" in str(error.value)
    assert error.value.decision.rejected[0].code is Reason.WRONG_RESULT
    assert registered.registered_kernels() == ()
    with pytest.raises(KernelUnavailable, match=r"is not registered. Registered are: none"):
        xrt.verify_kernel("softmax/mine", X, attrs={"dim": 1})


# ── Python functions ──


def python_softmax(x: Any, *, dim: int, dtype: str | None) -> Any:
    assert dtype is None
    e = np.exp(x.astype(np.float32) - x.max(dim, keepdims=True).astype(np.float32))
    return (e / e.sum(dim, keepdims=True)).astype(x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_python_function_is_a_kernel(dtype: str) -> None:
    assert xrt.kernel("softmax/py", op="softmax")(python_softmax) is python_softmax
    x = X.astype(xrt.DType.of(dtype).numpy)
    check(graph(dtype), {"x": x}, policy=xrt.KernelPolicy(softmax="py"))
    program = compile_native(graph(dtype), {"x": x}, policy=xrt.KernelPolicy(softmax="py"))
    call = program.entries[0].plans[0].calls[0]
    assert (call.kernel, call.library, call.symbol) == ("softmax/py", "python", "softmax/py@cpu")
    assert xrt.Executor(program).implementations[0] == "Python function softmax/py@cpu"


def test_operands_that_are_numbers_and_several_results_pass_through_python() -> None:
    xrt.register_kernel("elementwise/shift", op="add", function=lambda x, y: x + y)
    b = ir.GraphBuilder("g")
    b.output("y", b.add(b.input("x", "float32[5, 37]"), 2.5))
    check(b.build(), {"x": X}, policy=xrt.KernelPolicy(elementwise="shift"))
    xrt.register_kernel(
        "search/top",
        op="topk",
        function=lambda x, k, dim, largest, **_: (
            -np.sort(-x, dim)[:, :k],
            np.argsort(-x, dim, kind="stable")[:, :k],
        ),
    )
    b = ir.GraphBuilder("g")
    values, places = b.topk(b.input("x", "float32[5, 37]"), k=3, dim=1)
    b.output("v", values)
    b.output("i", places)
    check(b.build(), {"x": X}, policy=xrt.KernelPolicy(search="top"))


def test_a_failing_python_function_fails_the_run_alone() -> None:
    bad = [True]

    def sometimes(x: Any, **attrs: Any) -> Any:
        if bad[0]:
            raise ValueError("not today")
        return python_softmax(x, **attrs)

    xrt.register_kernel("softmax/moody", op="softmax", function=sometimes)
    executor = xrt.Executor(compile_native(graph(), {"x": X}, policy=xrt.KernelPolicy(softmax="moody")))
    with pytest.raises(
        RunError, match=r"softmax/moody@cpu: ValueError: not today \(.*test_user_kernels.py:\d+\)"
    ):
        executor.run_arrays([X])
    bad[0] = False
    np.testing.assert_allclose(executor.run_arrays([X])[0].sum(1), 1, rtol=1e-5)
    xrt.register_kernel("softmax/flat", op="softmax", function=lambda x, **_: x.ravel())
    executor = xrt.Executor(compile_native(graph(), {"x": X}, policy=xrt.KernelPolicy(softmax="flat")))
    with pytest.raises(RunError, match=r"returns float32\[185\] as result 0; the node has float32\[5, 37\]"):
        executor.run_arrays([X])


def test_a_python_function_does_not_travel_and_is_known_by_its_code(tmp_path: Path) -> None:
    xrt.register_kernel("softmax/py", op="softmax", function=python_softmax)
    path = tmp_path / "py.npubin"
    compile_native(graph(), {"x": X}, policy=xrt.KernelPolicy(softmax="py")).save(path)
    program = xrt.CompiledProgram.load(path)
    assert xrt.Executor(program).run_arrays([X])[0].shape == X.shape
    xrt.register_kernel("softmax/py", op="softmax", function=lambda x, **_: x)
    with pytest.raises(
        BuildError, match=r"was compiled with a different version of 'softmax/py@cpu' than the registered one"
    ):
        xrt.Executor(program)
    registered.unregister("softmax/py")
    with pytest.raises(BuildError, match=r"is not registered in this process"):
        xrt.Executor(program)


def test_torch_tensors_where_they_are_asked_for() -> None:
    torch = pytest.importorskip("torch")
    xrt.register_kernel(
        "softmax/torch", op="softmax", arrays="torch", function=lambda x, dim, dtype: torch.softmax(x, dim)
    )
    for dtype in ("float32", "bfloat16"):
        x = X.astype(xrt.DType.of(dtype).numpy)
        check(graph(dtype), {"x": x}, policy=xrt.KernelPolicy(softmax="torch"))


def test_a_preferred_kernel_runs_on_weights() -> None:
    """Recipes have tanh, and compute it when weights are loaded, unless a policy names a kernel of the user's."""
    b = ir.GraphBuilder("net")
    b.output("y", b.add(b.tanh(b.weight("w", "float32[6]")), b.input("x", "float32[6]")))
    graph, feeds = b.build(), {"x": np.zeros(6, np.float32)}
    weights = {"w": np.linspace(-2, 2, 6, dtype=np.float32)}
    xrt.register_kernel("activation/halved", op="tanh", function=lambda x: np.tanh(x) / 2)
    policy = xrt.KernelPolicy(activation=["halved"])
    (mine,) = run_native(graph, feeds, weights=weights, policy=policy).values()
    np.testing.assert_allclose(mine, np.tanh(weights["w"]) / 2, rtol=1e-6)
    (plain,) = run_native(graph, feeds, weights=weights).values()
    np.testing.assert_allclose(plain, np.tanh(weights["w"]), rtol=1e-6)
