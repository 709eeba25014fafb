"""Compiled programs as models of sessions: plan, run, receipt, and what cannot be asked of them any more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.ir import GraphBuilder

SIZES = (2, 5)


def rows() -> tuple[xrt.Graph, dict[str, np.ndarray]]:
    b = GraphBuilder("rows")
    x, w = b.input("x", "float32[n, 16]"), b.weight("w", "float32[8, 16]")
    b.output("y", b.relu(b.linear(x, w)))
    return b.build(), {"w": np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)}


def right(x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ rows()[1]["w"].T, 0)


def values(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program for two rows, its weights inside."""
    graph, weights = rows()
    path = tmp_path_factory.mktemp("programs") / "one.npubin"
    xrt.compile(graph, shapes={"n": 2}).save(path, weights)
    return path


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program for two and for five rows."""
    graph, weights = rows()
    path = tmp_path_factory.mktemp("programs") / "Two.NPUBIN"
    xrt.compile(graph, shapes=[{"n": n} for n in SIZES]).save(path, weights)
    return path


@pytest.mark.parametrize("ask", [{}, {"engine": "native"}, {"device": "cpu"}])
def test_a_program_runs_with_a_receipt(one: Path, ask: dict[str, str]) -> None:
    with xrt.InferenceSession(one, **ask) as sess:
        assert [str(s) for s in sess.input_info] == ["float32[2, 16]"]
        np.testing.assert_allclose(sess.run(x=values(2))["y"], right(values(2)), rtol=1e-5, atol=1e-5)
        receipt = sess.receipt()
        assert receipt.confirmed
        (row,) = receipt.evidence["r0"].rows
        assert row.kernel.startswith("matmul/")
        assert row.time_us is not None
        assert {n.family for n in sess.plan.nodes} == {"matmul"}
        assert any(d.question == "kernel matmul" for d in sess.plan.decisions)
        with pytest.raises(xrt.InputError, match="axis 0 must be 2"):
            sess.run(x=values(3))


def test_entry_points_for_other_shapes_are_found_by_the_inputs(two: Path) -> None:
    with xrt.InferenceSession(two) as sess:
        assert [str(s) for s in sess.input_info] == ["float32[x_0, 16]"]
        for n in (2, 5, 2):
            np.testing.assert_allclose(sess.run(x=values(n))["y"], right(values(n)), rtol=1e-5, atol=1e-5)
        assert sess._executable._last.entry.name == "main_n2"
        assert sess.receipt(times=False).evidence["r0"].notes == (
            "2 entry points of a program; 2 of at most 16 kept, 0 evicted",
        )
        first, second = (e.weights for e in sess._executable._buckets.executors)
        shared = [first[name] is second[name] for name in set(first) & set(second)]
        assert shared
        assert all(shared)
        with pytest.raises(xrt.InputError) as error:
            sess.run(x=values(3))
        assert "has no entry point for these shapes; got x [3, 16]" in str(error.value)
        assert "It has main_n2: x [2, 16]; main_n5: x [5, 16]." in str(error.value)


def test_a_program_in_memory_runs_too() -> None:
    graph, weights = rows()
    program = xrt.CompiledProgram.from_bytes(xrt.compile(graph, shapes={"n": 2}).to_bytes())
    from xpuruntime.program.file import embed

    with xrt.InferenceSession(embed(program, weights), engine="native") as sess:
        np.testing.assert_allclose(sess.run(x=values(2))["y"], right(values(2)), rtol=1e-5, atol=1e-5)


def test_programs_of_one_build_with_other_weights_share_none(tmp_path: Path) -> None:
    graph, weights = rows()
    program = xrt.compile(graph, shapes={"n": 2})
    program.save(tmp_path / "a.npubin", weights)
    program.save(tmp_path / "b.npubin", {"w": -weights["w"]})
    with xrt.InferenceSession(tmp_path / "a.npubin") as a, xrt.InferenceSession(tmp_path / "b.npubin") as b:
        x = values(2)
        np.testing.assert_allclose(a.run(x=x)["y"], right(x), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(
            b.run(x=x)["y"], np.maximum(-(x @ weights["w"].T), 0), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        ({"engine": "onnxruntime"}, "is a compiled program and cannot be converted to ONNX"),
        ({"exec_policy": xrt.ExecutionPolicy(precision="bfloat16")}, "the program was compiled for float32"),
        (
            {"kernel_policy": xrt.KernelPolicy(rules=[xrt.Rule(op="matmul", use="naive")])},
            "(op=matmul), but the program was compiled with another one",
        ),
    ],
)
def test_what_was_settled_when_it_was_compiled(one: Path, ask: dict, what: str) -> None:
    if ask.get("engine") == "onnxruntime":
        pytest.importorskip("onnxruntime")
    with pytest.raises(xrt.XpuError) as error:
        xrt.InferenceSession(one, **{"engine": "native", **ask})
    assert what in str(error.value)


def test_a_preference_changes_nothing(one: Path) -> None:
    with xrt.InferenceSession(one, kernel_policy=xrt.KernelPolicy(matmul="naive")) as sess:
        np.testing.assert_allclose(sess.run(x=values(2))["y"], right(values(2)), rtol=1e-5, atol=1e-5)


def test_a_damaged_program_is_refused(one: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.npubin"
    bad.write_bytes(one.read_bytes()[:-1])
    with pytest.raises(xrt.FormatError, match="is truncated"):
        xrt.InferenceSession(bad)
    with pytest.raises(xrt.FormatError, match="cannot be read"):
        xrt.InferenceSession(tmp_path / "none.npubin")


@pytest.mark.parametrize("name", ["model.onnx", "model", "model.xml", "model.npubin.onnx", "model.bin"])
def test_only_a_file_that_is_called_a_program_is_run_as_one(one: Path, tmp_path: Path, name: str) -> None:
    """Its native code would run: a model that somebody handed over must not be able to."""
    pytest.importorskip("onnx")
    path = tmp_path / name
    path.write_bytes(one.read_bytes())
    for ask in ({}, {"engine": "native"}, {"engine": "auto"}):
        with pytest.raises(xrt.ModelError, match="is a compiled program, which runs native code") as error:
            xrt.InferenceSession(path, **ask)
        assert "rename it to .npubin" in str(error.value)
    link = tmp_path / "link.onnx"
    link.symlink_to(one)
    for model in (link, one.read_bytes()):
        with pytest.raises(xrt.ModelError, match="is a compiled program"):
            xrt.InferenceSession(model)


def test_a_program_needs_neither_torch_nor_onnx_nor_a_compiler(one: Path) -> None:
    code = (
        "import sys, numpy as np, xpuruntime as xrt\n"
        "sess = xrt.InferenceSession(sys.argv[1])\n"
        "print(sess.run(x=np.ones((2, 16), np.float32))['y'].shape, sess.receipt().confirmed)\n"
        "print({'torch', 'onnx'} & set(sys.modules))\n"
    )
    bare = {"PATH": "/nowhere", "CXX": "/bin/false", "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(one)],
        env=bare,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("(2, 8) True\nset()\n", 0), done.stderr
