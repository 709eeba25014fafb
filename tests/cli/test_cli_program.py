"""``xpu inspect`` of a compiled program."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.native import compile_native

from xpuruntime import ir

onnx = pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    b = ir.GraphBuilder("turned")
    b.output(
        "y",
        b.neg(
            b.permute(
                b.cat(b.input("x", "float32[4, 3]"), b.weight("w", "float32[4, 5]"), dim=1), dims=(1, 0)
            )
        ),
    )
    path = tmp_path_factory.mktemp("program") / "m.npubin"
    compile_native(b.build(), {"x": np.zeros((4, 3), np.float32)}).save(
        path, {"w": np.ones((4, 5), np.float32)}
    )
    return path


def test_inspect_a_program(xpu, program: Path) -> None:
    done = xpu("inspect", program, "--nodes")
    assert done.code == 0
    for text in (
        "turned: program of 1 entry point",
        "input    x",
        "float32[4, 3]",
        "movement/",
        "arena 0 B",
        "1 weight of the model, 80 B (80 B in this file)",
        "elf-",
        "Buffers",
        "kernel data_movement",
    ):
        assert text in done.stdout, text
    document = xpu("inspect", program, "--json").json
    assert document["program"] == "turned"
    assert len(document["entries"][0]["plans"][0]["calls"]) == 2


def test_source_of_a_kernel(xpu, program: Path) -> None:
    calls = xpu("inspect", program, "--json").json["entries"][0]["plans"][0]["calls"]
    done = xpu("inspect", program, "--source", calls[1]["symbol"])
    assert done.code == 0
    assert done.stdout.startswith(f"// {calls[1]['symbol']} (cpu:")
    assert f"void {calls[1]['symbol']}(" in done.stdout
    assert calls[0]["symbol"] not in done.stdout
    listed = xpu("inspect", program, "--source", calls[1]["kernel"], "--json").json["source"]
    assert [s["symbol"] for s in listed] == [c["symbol"] for c in calls if c["kernel"] == calls[1]["kernel"]]
    wrong = xpu("inspect", program, "--source", "nothing")
    assert wrong.code == 4
    assert "has no generated code of that name" in wrong.stderr


def test_export_for_a_viewer(xpu, program: Path, tmp_path: Path) -> None:
    done = xpu("inspect", program, "--export", tmp_path / "m.onnx")
    assert done.code == 0
    assert "wrote" in done.stderr
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))


def test_wrong_use(xpu, program: Path, model: Path, tmp_path: Path) -> None:
    assert xpu("inspect", program, "--entry", "other").code == 4
    assert xpu("inspect", model, "--source", "conv").code == 2
    for name in ("m.txt", "m.JSON"):
        done = xpu("inspect", program, "--export", tmp_path / name)
        assert (done.code, (tmp_path / name).exists()) == (2, False)
        assert "must end in .onnx or .json" in done.stderr
    cut = tmp_path / "cut.npubin"
    cut.write_bytes(program.read_bytes()[:-1])
    done = xpu("inspect", cut)
    assert done.code == 9
    assert "is truncated" in done.stderr


def test_compile_then_inspect(xpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Concat", ["x", "w"], ["j"], axis=1),
        helper.make_node("Transpose", ["j"], ["y"], perm=[1, 0]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", TensorProto.FLOAT, ["n", 3])], [info("y", TensorProto.FLOAT, None)],
                              [numpy_helper.from_array(np.ones((4, 5), np.float32), "w")])  # fmt: skip
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "joined.onnx",
    )
    monkeypatch.chdir(tmp_path)
    assert xpu("compile", "joined.onnx").code == 3  # n has no size
    done = xpu("compile", "joined.onnx", "--shape", "n=4")
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("joined.npubin: joined, ")
    assert "main on cpu:" in done.stdout
    report = xpu("inspect", "joined.npubin", "--json").json
    assert report["weights"]["embedded_bytes"] == 80
    beside = xpu(
        "compile",
        "joined.onnx",
        "-o",
        "b.npubin",
        "--bucket",
        "n=4",
        "--no-embed",
        "-t",
        "cpu:x86-64-v2",
        "-t",
        "cpu",
        "--json",
    ).json
    assert beside["weights"]["embedded_bytes"] == 0
    assert beside["weights"]["files"] == ["joined.onnx"]
    assert beside["entries"][0]["plans"][0]["target"] == "cpu:x86-64-v2"
    (tmp_path / "other").mkdir()
    far = xpu("compile", "joined.onnx", "-o", "other/b.npubin", "--shape", "n=4", "--no-embed")
    assert far.code == 3
    assert "is in another folder than the program" in far.stderr
    assert xpu("compile", "joined.onnx", "--shape", "n=4", "--bucket", "n=4").code == 2
    assert xpu("compile", "joined.onnx", "--shape", "n=4", "-t", "tpu").code == 8


def test_what_the_passes_do(xpu, tmp_path: Path) -> None:
    from examples.small_model import small_model

    onnx.save(small_model(), tmp_path / "small.onnx")
    done = xpu("inspect", tmp_path / "small.onnx", "--passes", "--nodes")
    assert done.code == 0
    assert "fuse_conv" in done.stdout
    assert any(
        line.lstrip().startswith("+") and "fused_convolution" in line for line in done.stdout.splitlines()
    )
    traces = xpu("inspect", tmp_path / "small.onnx", "--passes", "--json").json["passes"]
    assert traces[0]["name"] == "model"
    assert traces[-1]["dispatches"] < traces[0]["dispatches"]
    assert traces[-1]["name"] == "layout"
    without = xpu("inspect", tmp_path / "small.onnx", "--passes", "--only", "-fuse_conv", "--json").json[
        "passes"
    ]
    assert {t["name"] for t in traces} - {t["name"] for t in without} == {"fuse_conv"}
    assert xpu("inspect", tmp_path / "small.onnx", "--shape", "n=1").code == 2
    assert xpu("inspect", tmp_path / "small.onnx", "--only", "cse").code == 2


def test_passes_by_level_and_name(xpu, tmp_path: Path) -> None:
    from examples.small_model import small_model

    onnx.save(small_model(), tmp_path / "small.onnx")

    def kernels(words: str) -> Counter[str]:
        done = xpu(
            "compile", tmp_path / "small.onnx", "-o", tmp_path / "p.npubin", "--passes", words, "--json"
        )
        assert done.code == 0, done.stderr
        return Counter(c["kernel"] for c in done.json["entries"][0]["plans"][0]["calls"])

    every, none, without = kernels("all"), kernels("none"), kernels("-fuse_conv")
    assert kernels("3") == every
    assert kernels("0") == none
    assert sum(every.values()) < sum(without.values()) <= sum(none.values())
    wrong = xpu("compile", tmp_path / "small.onnx", "--passes", "9")
    assert wrong.code != 0
    assert "a level is a number from 0 to 3" in wrong.stderr
    assert "Give 0 (none), 1 (basic)" in wrong.stderr


def test_a_program_of_another_name_is_known_by_its_first_bytes(xpu, program: Path, tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(program.read_bytes())
    assert "turned: program of 1 entry point" in xpu("inspect", tmp_path / "m.bin").stdout
    assert xpu("inspect", tmp_path / "m.bin", "--passes").code == 2


CONSTRUCTOR = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void at_load() { FILE* f = fopen(getenv("RAN"), "w"); if (f) fclose(f); }
extern "C" void nothing() {}
"""


def test_explaining_a_program_runs_none_of_its_code(
    xpu, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its object code has a constructor, which dlopen runs."""
    import dataclasses
    import shutil
    import subprocess

    import xpuruntime as xrt

    if not shutil.which("g++"):
        pytest.skip("needs g++")
    (tmp_path / "c.cpp").write_text(CONSTRUCTOR)
    command = ["g++", "-shared", "-fPIC", "-o", str(tmp_path / "c.so"), str(tmp_path / "c.cpp")]
    subprocess.run(command, check=True)
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    good = xrt.CompiledProgram.load(program)
    evil = dataclasses.replace(
        good,
        binaries=tuple(dataclasses.replace(b, data=(tmp_path / "c.so").read_bytes()) for b in good.binaries),
    )
    path = tmp_path / "evil.npubin"
    evil.save(path)
    for flags in ((), ("--nodes",), ("--strict",), ("--engine", "native"), ("--engine", "auto"), ("--json",)):
        done = xpu("explain", path, *flags)
        assert done.code == 0, done.stderr
        assert not (tmp_path / "ran").exists()
    assert done.json["plan"]["regions"][0]["engine"] == "native"
    assert xpu("inspect", path).code == 0
    assert not (tmp_path / "ran").exists()
    with pytest.raises(xrt.XpuError), xrt.InferenceSession(path):  # which lacks the kernels
        pass
    assert (tmp_path / "ran").exists(), "so the test would have seen it"


def test_a_program_that_this_machine_cannot_run_is_explained(xpu, program: Path, tmp_path: Path) -> None:
    import dataclasses

    import xpuruntime as xrt

    good = xrt.CompiledProgram.load(program)
    foreign = tuple(dataclasses.replace(b, requires=("another-instruction-set",)) for b in good.binaries)
    dataclasses.replace(good, binaries=foreign).save(tmp_path / "foreign.npubin")
    done = xpu("explain", tmp_path / "foreign.npubin")
    assert done.code == 6
    assert "this machine lacks another-instruction-set" in done.stdout + done.stderr
