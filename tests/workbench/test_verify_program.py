"""Verification before the first request: golden samples repeat, and a damaged, foreign or wrong program is named."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime import children
from xpuruntime.errors import FormatError, UnavailableError, WrongResult, XpuError
from xpuruntime.ir import GraphBuilder, interp
from xpuruntime.program.program import CompiledProgram
from xpuruntime.workbench.programs.compile_model import compile_model
from xpuruntime.workbench.programs.verify import verify_program

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.program_mutants import mutate_program

sys.path.pop(0)


@pytest.fixture(autouse=True)
def no_hook(monkeypatch):
    for name in ("XPU_TEST_WRONG_KERNEL", "XPU_TEST_SWAP_KERNEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def graph_file(tmp_path_factory):
    """A graph with its weights in a file: a layer, a norm and a softmax."""
    folder = tmp_path_factory.mktemp("graph")
    b = GraphBuilder("layers")
    x = b.input("x", "float32[4, 24]")
    y = b.gelu(b.linear(x, b.weight("w", "float32[16, 24]"), b.weight("bias", "float32[16]")))
    b.output("y", b.softmax(y, dim=-1))
    b.output("z", y)
    draw = np.random.default_rng(0)
    weights = {"w": draw.standard_normal((16, 24)).astype(np.float32), "bias": np.ones(16, np.float32)}
    stored = xrt.ir.save_weights(weights, folder / "weights.safetensors")
    graph = b.build()
    graph = graph.replace(weights=tuple(stored[w.name] for w in graph.weights))
    graph.save(folder / "layers.json")
    return folder / "layers.json"


@pytest.fixture(scope="module")
def golden(graph_file, tmp_path_factory):
    """A program with two samples."""
    path = tmp_path_factory.mktemp("golden") / "layers.npubin"
    compile_model(graph_file, path, golden=2)
    return path


def check(report, name):
    return next(c for c in report.checks if c.name.startswith(name))


# ── what is right ──


def test_a_program_with_samples_is_verified_bit_by_bit(golden):
    report = verify_program(golden, threads=2)
    assert report.ok, report.sentence
    assert report.sentence == f"{golden} is verified"
    assert check(report, "golden samples").text == "2 samples bit by bit"
    assert [c.ok for c in report.checks] == [True] * 5
    program = CompiledProgram.load(golden)
    assert [(s.entry, s.exact, s.target) for s in program.golden] == [
        ("main", True, program.entries[0].plans[0].target)
    ] * 2
    assert (
        program.to_bytes() == CompiledProgram.from_bytes(program.to_bytes()).to_bytes() == golden.read_bytes()
    )


def test_samples_are_the_models_own_results(golden, graph_file):
    graph = xrt.ir.Graph.load(graph_file)
    weights = xrt.ir.open_weights(graph, graph_file.parent)
    for sample in CompiledProgram.load(golden).golden:
        want = interp.run(graph, {a.name: a.array() for a in sample.inputs}, weights=weights)
        for array in sample.outputs:
            np.testing.assert_allclose(array.array(), want[array.name], atol=1e-5)


def test_a_program_without_samples_says_so(graph_file, tmp_path):
    path = tmp_path / "plain.npubin"
    compile_model(graph_file, path)
    report = verify_program(path)
    assert report.ok
    assert check(report, "golden samples").ok is None
    assert "compile it with --golden N" in check(report, "golden samples").text
    assert report.sentence == f"{path} is verified, without golden samples of main"


def test_a_program_that_refers_to_its_weights_is_verified_with_them(graph_file, tmp_path):
    path = graph_file.parent / "outside.npubin"
    compile_model(graph_file, path, golden=1, embed=False)
    assert check(verify_program(path), "weights").text == "2 arrays, 0 of them in the program"
    moved = tmp_path / "outside.npubin"
    moved.write_bytes(path.read_bytes())
    with pytest.raises(XpuError, match="weight"):
        verify_program(moved)
    arrays = CompiledProgram.load(path)
    nameless = replace(arrays, weights=tuple(replace(w, file="", format="", key="") for w in arrays.weights))
    nameless.save(moved)
    report = verify_program(moved)
    assert check(report, "weights").ok is None
    assert check(report, "golden samples").ok is None
    assert (
        verify_program(moved, weights=graph_file.parent / "weights.safetensors").sentence
        == f"{moved} is verified"
    )


def test_a_program_for_another_machine_gets_its_samples_from_the_interpreter(graph_file, tmp_path):
    path = tmp_path / "gpu.npubin"
    try:
        compile_model(graph_file, path, target="cuda:sm_90", golden=1)
    except XpuError as error:
        pytest.skip(f"no program for another device can be compiled here: {error.what}")
    (sample,) = CompiledProgram.load(path).golden
    assert (sample.target, sample.exact) == ("interpreter", False)
    with pytest.raises(UnavailableError):
        verify_program(path)


# ── what is wrong ──


def with_outputs(path, target, change):
    """A copy of the program whose stored outputs are changed; every digest is right."""
    program = CompiledProgram.load(path)
    weights = {w.name: w.array() for w in program.weights}
    from xpuruntime.program.file import embed

    def changed(sample):
        outputs = tuple(
            embed(CompiledProgram("x", (), weights=(ref,)), {ref.name: change(ref.array().copy())}).weights[0]
            for ref in sample.outputs
        )
        return replace(sample, outputs=outputs)

    replace(program, golden=tuple(map(changed, program.golden))).save(target, weights)
    return target


def test_outputs_that_differ_in_one_bit_are_a_difference(golden, tmp_path):
    def last_bit(array):
        array.reshape(-1).view(np.uint32)[3] ^= 1
        return array

    report = verify_program(with_outputs(golden, tmp_path / "bit.npubin", last_bit))
    assert not report.ok
    assert "sample 0: output 'y' has other bits than on the compiling machine" in report.sentence


def test_other_plans_are_compared_within_the_tolerance(golden, tmp_path):
    program = CompiledProgram.load(golden)
    weights = {w.name: w.array() for w in program.weights}
    other = tuple(replace(s, target="cpu:another") for s in program.golden)
    path = tmp_path / "other.npubin"
    replace(program, golden=other).save(path, weights)
    assert "2 samples within the tolerance 5e-05" in check(verify_program(path), "golden").text
    report = verify_program(with_outputs(path, tmp_path / "far.npubin", lambda a: a * np.float32(1.01)))
    assert not report.ok
    assert "max|d|/max|ref| 0.00" in report.sentence


def test_a_wrong_kernel_fails_verification_and_gets_no_samples(golden, graph_file, tmp_path, monkeypatch):
    kernel = CompiledProgram.load(golden).entries[0].plans[0].calls[-1].kernel
    monkeypatch.setenv("XPU_TEST_WRONG_KERNEL", f"{kernel}:element")
    report = verify_program(golden)
    assert not report.ok
    assert "golden samples of main: sample 0: output" in report.sentence
    with pytest.raises(WrongResult, match=r"computes a wrong output .* so it gets no golden samples"):
        compile_model(graph_file, tmp_path / "wrong.npubin", golden=1)
    assert not (tmp_path / "wrong.npubin").exists()


def test_a_swapped_function_fails_verification(golden, monkeypatch):
    calls = CompiledProgram.load(golden).entries[0].plans[0].calls
    other = next(i for i, c in enumerate(calls) if c.symbol != calls[0].symbol)
    monkeypatch.setenv("XPU_TEST_SWAP_KERNEL", f"0={calls[other].symbol}")
    from xpuruntime.workbench.programs import verify

    monkeypatch.setattr(
        verify, "_golden", lambda *_: verify.ProgramCheck("golden", None, "not run with a foreign function")
    )
    report = verify.verify_program(golden)
    assert f"code of main: {calls[other].symbol} is loaded for {calls[0].symbol}" in report.sentence


@pytest.mark.parametrize("size", [0, 1, 7, 40, 63, 64, 1000, -1, -64])
def test_truncated_files_are_named(size, golden, tmp_path):
    path = tmp_path / "cut.npubin"
    path.write_bytes(golden.read_bytes()[:size])
    with pytest.raises(FormatError, match=r"is truncated|is not a program|cannot be read|damaged|checksum"):
        verify_program(path)


def test_foreign_files_are_named(tmp_path, golden):
    for name, data in (("a.npubin", b"PK\x03\x04" + bytes(100)), ("b.npubin", b"\x08\x07" * 100)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError, match="is not a program"):
            verify_program(tmp_path / name)
    with pytest.raises(FormatError, match="is not a file"):
        verify_program(tmp_path)
    with pytest.raises(FormatError, match="cannot be read"):
        verify_program(tmp_path / "none.npubin")
    newer = bytearray(golden.read_bytes())
    newer[8] = 9
    (tmp_path / "c.npubin").write_bytes(newer)
    with pytest.raises(FormatError, match=r"has the newer format version 9\.2"):
        verify_program(tmp_path / "c.npubin")


def test_samples_of_other_shapes_or_entries_are_refused(golden, tmp_path):
    program = CompiledProgram.load(golden)
    (first, *_) = program.golden
    for wrong, text in (
        (replace(first, entry="other"), "is of the entry point 'other', which does not exist"),
        (replace(first, outputs=first.outputs[:1]), "does not have the outputs of 'main'"),
        (replace(first, inputs=first.outputs), "does not have the inputs of 'main'"),
        (replace(first, inputs=(replace(first.inputs[0], data=None),)), "is not embedded"),
        (
            replace(first, inputs=(replace(first.inputs[0], spec=first.outputs[0].spec),)),
            "but the entry point has",
        ),
    ):
        with pytest.raises(FormatError, match=text):
            replace(program, golden=(wrong,)).to_bytes()


def outcome(path, original):
    """The answer of a verification, or the name of the error. Changed code, calls and memory are not run: programs are trusted."""
    try:
        program = CompiledProgram.load(path)
        parts = ("entries", "binaries", "recipes", "weights", "states")
        if all(getattr(program, n) == getattr(original, n) for n in parts):
            return verify_program(path).ok
    except XpuError as error:
        return type(error).__name__ if error.who and error.what else "an error without words"
    return None


@pytest.mark.parametrize("seed", range(4))
def test_damaged_programs_raise_named_errors(seed, golden, tmp_path):
    """Random bytes changed, and fields changed with every digest made right again."""
    data, original, draw = golden.read_bytes(), CompiledProgram.load(golden), random.Random(seed)
    path, outcomes = tmp_path / "broken.npubin", []
    for k in range(30):
        broken = bytearray(data) if k % 2 else bytearray(mutate_program(data, 1000 * seed + k))
        for _ in range(draw.randint(1, 3) if k % 2 else 0):
            broken[draw.randrange(len(broken))] ^= 1 << draw.randrange(8)
        path.write_bytes(broken)
        outcomes.append(outcome(path, original))
    assert set(outcomes[1::2]) == {"FormatError"}
    assert set(outcomes) <= {"FormatError", "InputError", "RunError", None, True, False}


@pytest.mark.sampled(one_in=2)
def test_the_commands(golden, graph_file, tmp_path):
    made = tmp_path / "made.npubin"
    command = ["compile", str(graph_file), "-o", str(made), "--golden", "1"]
    done = children.run(children.python("-m", "xpuruntime", *command), 120)
    assert done.returncode == 0, done.stderr
    assert "golden: 1 sample; check them on the target with xpu verify" in done.stdout
    done = children.run(children.python("-m", "xpuruntime", "verify", str(made), "--json"), 120)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] is True
    assert [c["check"] for c in document["checks"]] == [
        "file",
        "target of main",
        "code of main",
        "weights",
        "golden samples of main",
    ]
    made.write_bytes(made.read_bytes()[:-5])
    done = children.run(children.python("-m", "xpuruntime", "verify", str(made), "--json"), 120)
    assert done.returncode == 9
    assert "is truncated" in done.stdout
