"""Exit codes and what an error looks like; the table, the docs and the error classes say the same."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from xpuruntime import errors
from xpuruntime.cli.exit_codes import MEANINGS, ExitCode

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"


def test_every_error_class_has_a_code_of_the_table() -> None:
    classes = [getattr(errors, name) for name in errors.__all__]
    assert {c.exit_code for c in classes} <= set(MEANINGS)
    assert set(MEANINGS) == set(ExitCode)


def test_the_docs_have_the_same_table() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == {int(c): m for c, m in MEANINGS.items()}


BAD = [
    # arguments after the verb ({m} model, {t} folder), exit code, text on stderr
    (["run", "{t}/absent.onnx"], ExitCode.MODEL, "no such file"),
    (["run", "{t}/junk.onnx"], ExitCode.MODEL, "error: [model 'junk.onnx']"),
    (["inspect", "{t}/cut.onnx"], ExitCode.MODEL, "error: [model 'cut.onnx']"),
    (["inspect", "{t}/bad.json"], ExitCode.FILE, "bad.json] is not a plan, receipt, program or lock"),
    (["inspect", "{t}/absent.json"], ExitCode.FILE, "cannot be read"),
    (
        ["run", "{m}", "-e", "onnxruntime", "-i", "y={t}/x.npy"],
        ExitCode.INPUT,
        "the model has no input of that name",
    ),
    (["run", "{m}", "-e", "onnxruntime", "-i", "x={t}/absent.npy"], ExitCode.INPUT, "no such file"),
    (
        ["run", "{m}", "-e", "onnxruntime", "-i", "x={t}/flat.npy"],
        ExitCode.INPUT,
        "It must be float32[batch, 3]",
    ),
    (["run", "{m}", "-e", "onnxruntime", "-i", "x={t}/double.npy"], ExitCode.INPUT, "must be float32"),
    (["run", "{m}", "-e", "onnxruntime", "--shape", "seq=4"], ExitCode.INPUT, "no symbolic dim of that name"),
    (["run", "{m}", "-e", "onnxruntime", "-o", "{t}/no/out.npz"], ExitCode.FILE, "cannot be written"),
    (["run", "{m}", "-e", "onnxruntime", "-o", "{t}/out.txt"], ExitCode.FILE, "must end in .npz"),
    (["run", "{m}", "-e", "onxruntime"], ExitCode.UNAVAILABLE, "onnxruntime"),
    (["run", "{m}", "-e", "tensorrt"], ExitCode.UNAVAILABLE, "'tensorrt' is not installed"),
    (["run", "{m}", "-d", "toaster"], ExitCode.UNAVAILABLE, "toaster"),
    (["run", "{m}", "-e", "onnxruntime", "-d", "cuda:7"], ExitCode.UNAVAILABLE, "cuda:7"),
    (["run", "{m}", "-e", "onnxruntime", "--policy", "{t}/policy.yaml"], ExitCode.POLICY, "policy.yaml"),
    (["run", "{m}", "-e", "onnxruntime", "--precision", "float99"], ExitCode.POLICY, "float99"),
    (["run", "{m}", "-e", "onnxruntime", "--fp16", "--strict"], ExitCode.STRICT, "strict"),
    (["run", "{m}", "--shape", "batch"], ExitCode.USAGE, "write NAME=SIZE"),
    (["run", "{m}", "--shape", "batch=x"], ExitCode.USAGE, "write NAME=SIZE"),
    (["run", "{m}", "--image-mean", "a"], ExitCode.USAGE, "write 1 or 3 numbers"),
    (["run", "{m}", "--image-std", "0"], ExitCode.USAGE, "must not be zero"),
    (["run", "{m}", "--image-layout", "chwn"], ExitCode.USAGE, "must be nchw or nhwc"),
    (["run", "{m}", "--image-size", "0x4"], ExitCode.USAGE, "HEIGHTxWIDTH"),
    (["run", "{m}", "--threads", "0"], ExitCode.USAGE, "--threads"),
    (["run"], ExitCode.USAGE, "MODEL"),
    (["walk"], ExitCode.USAGE, "walk"),
    (["compare", "{m}", "--engines", ","], ExitCode.USAGE, "name engines"),
    (
        ["compare", "{m}", "--reference", "{m}", "--against", "openvino"],
        ExitCode.USAGE,
        "--reference and --against exclude each other",
    ),
    (
        ["compare", "{m}", "--engines", "onnxruntime,openwino"],
        ExitCode.UNAVAILABLE,
        "Did you mean 'openvino'",
    ),
    (["compare", "{m}", "--reference", "{t}/absent.onnx"], ExitCode.MODEL, "no such file"),
    (["bench", "{m}", "--plot", "{t}/b.txt", "--seconds", "0.1"], ExitCode.FILE, "must end in .svg"),
    (["bench", "{m}", "-d", "npu"], ExitCode.UNAVAILABLE, "no engine can run it here"),
    (
        ["tune", "{m}", "-o", "{m}", "--bucket", "batch=1"],
        ExitCode.USAGE,
        "would overwrite a file that the command",
    ),
    (
        ["run", "{m}", "-i", "x={t}/x.npy", "--trace", "{t}/x.npy"],
        ExitCode.USAGE,
        "--trace: it would overwrite",
    ),
    (
        ["run", "{m}", "--save-receipt", "{t}/r.json", "--trace", "{t}/r.json"],
        ExitCode.USAGE,
        "--trace writes the same file",
    ),
    (
        ["conformance", "--results", "{t}/new", "--report", "{t}/../{t.name}/new"],
        ExitCode.USAGE,
        "--report writes the same file",
    ),
    (["run", "{m}", "--shape", "batch=" + "9" * 5000], ExitCode.USAGE, "a size is at most"),
    (["compile", "{m}", "--shape", f"batch={2**40 + 1}", "--dry-run"], ExitCode.USAGE, "a size is at most"),
    (["run", "{m}", "--threads", "9" * 20], ExitCode.POLICY, "threads are too many"),
    (["run", "{m}", "-i", "{t}"], ExitCode.INPUT, "is a folder or a device, not a file"),
    (["run", "/dev/zero"], ExitCode.MODEL, "is not a file: a pipe, a device"),
    (["run", ""], ExitCode.MODEL, "the path of the model is empty"),
    (["lint", "{t}/deep.yaml"], ExitCode.POLICY, "is nested more than"),
    (["chat", "{t}"], ExitCode.MODEL, "Give a folder with config.json"),
    (["tune", "{m}", "-o", "{t}", "--bucket", "batch=1"], ExitCode.FILE, "cannot write"),
    (["cache", "trim", "--to", "lots"], ExitCode.USAGE, "write a size"),
    (["cache", "list", "--cache-dir", "{t}/junk.onnx/x"], ExitCode.OK, ""),
]


@pytest.fixture
def folder(tmp_path: Path, model: Path) -> Path:
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    np.save(tmp_path / "flat.npy", np.ones(3, np.float32))
    np.save(tmp_path / "double.npy", np.ones((1, 3)))
    (tmp_path / "junk.onnx").write_bytes(b"this is no model")
    (tmp_path / "cut.onnx").write_bytes(model.read_bytes()[:-20])
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "deep.yaml").write_text("[" * 2000)
    (tmp_path / "policy.yaml").write_text("version: 1\nexecution:\n  engin: openvino\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "text"), BAD, ids=lambda v: " ".join(v) if isinstance(v, list) else None
)
def test_bad_input(xpu, folder: Path, model: Path, arguments: list[str], code: int, text: str) -> None:
    filled = [a.format(m=model, t=folder) for a in arguments]
    done = xpu(*filled)
    assert done.code == code, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    if code in (ExitCode.USAGE, ExitCode.OK):
        return
    assert done.stdout == ""
    assert done.stderr.startswith("error: [")
    as_json = xpu(*filled, "--json")
    assert as_json.code == code
    document = as_json.json
    assert document["exit_code"] == code
    assert document["who"]
    assert document["what"]
    assert document["do"]


WRITERS = [
    (["bench", "{m}", "--policy", "{f}"], "--plot"),
    (["bisect", "{m}", "--policy-a", "{f}"], "--html"),
    (["chat", "{m}", "--policy", "{f}"], "--save-receipt"),
    (["check", "{f}", "--rules", "{m}"], "--junit"),
    (["check", "{m}", "--rules", "{f}"], "--markdown"),
    (["compile", "{f}"], "--output"),
    (["conformance", "cpu", "--report", "{f}"], "--results"),
    (["convert", "{f}"], "--output=vllm-ir:"),
    (["convert", "vllm-ir:{f}"], "--output"),
    (["convert", "{m}", "--output", "onnxruntime-layers:{t}/n.txt", "--model", "{f}"], "--annotated"),
    (["diff", "{m}", "{f}"], "--markdown"),
    (["explain", "{f}"], "--save"),
    (["generate", "{m}", "--json-schema", "{f}"], "--save-receipt"),
    (["inspect", "{f}"], "--export"),
    (["lock", "{f}"], "--output"),
    (["quantize", "{m}", "--data", "{f}"], "--output"),
    (["run", "{m}", "--lock", "{f}"], "--trace"),
    (["tune", "{f}", "--bucket", "batch=1"], "--output"),
]


@pytest.mark.parametrize(("arguments", "flag"), WRITERS, ids=lambda v: v if isinstance(v, str) else v[0])
def test_a_file_that_is_read_is_not_overwritten(
    xpu, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], flag: str
) -> None:
    """Neither by its own name, nor by a relative path, a symbolic link or a hard link."""
    file = tmp_path / "kept.txt"
    file.write_text("kept")
    (tmp_path / "link.txt").symlink_to(file)
    (tmp_path / "hard.txt").hardlink_to(file)
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    for name in (str(file), "../kept.txt", str(tmp_path / "link.txt"), str(tmp_path / "hard.txt")):
        value = [flag + name] if flag.endswith(":") else [flag, name]
        done = xpu(*[a.format(m=model, f=file, t=tmp_path) for a in arguments], *value)
        assert done.code == ExitCode.USAGE, done.stderr
        assert "would overwrite" in done.stderr or "writes the same file" in done.stderr
    assert file.read_text() == "kept"


def test_an_inner_fault_is_70_and_shows_its_traceback_only_when_asked(
    xpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real fault: the store's own module made unusable for the verb."""
    import xpuruntime.storage.store

    monkeypatch.setattr(xpuruntime.storage.store, "Store", lambda _: 1 / 0)
    done = xpu("cache", "path", "--json")
    assert done.code == 70
    assert "a fault of xpuruntime" in done.json["what"]
    assert "ZeroDivisionError: division by zero (cli/cache.py:" in done.json["what"]
    assert "Traceback" not in done.stderr
    monkeypatch.setenv("XPU_DEBUG", "1")
    assert "Traceback" in xpu("cache", "path").stderr


def test_an_engine_that_fails_while_running_is_8(xpu, tmp_path: Path) -> None:
    """An index beyond the table: only the run can know."""
    pytest.importorskip("onnxruntime")
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        "pick",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.ones(3, np.float32), "table")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "p.onnx",
    )
    np.save(tmp_path / "i.npy", np.array([77], np.int64))
    done = xpu("run", tmp_path / "p.onnx", "-e", "onnxruntime", "-i", tmp_path / "i.npy", "--json")
    assert done.code == 8
    assert done.json["error"] == "RunError"
    assert "77" in done.json["got"]
    both = xpu("compare", tmp_path / "p.onnx", "-e", "all", "-i", tmp_path / "i.npy")
    assert both.code == 6  # nobody is left to compare with
    assert "run_failed" in both.stderr


def test_a_model_that_an_engine_cannot_build_is_8_though_no_device_was_named(xpu, tmp_path: Path) -> None:
    """Kernel and input disagree on their channels; the GPU that is not here must not be the reason given."""
    pytest.importorskip("openvino")
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3])],
        "channels",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((2, 4, 3, 3), np.float32), "w")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "c.onnx",
    )
    done = xpu("run", tmp_path / "c.onnx", "-e", "openvino", "--json")
    assert done.code == 8
    assert done.json["error"] == "BuildError"
    assert "channel count" in done.json["what"]


def test_an_unknown_vendor_option_is_5_and_names_the_known_ones(xpu, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    policy = tmp_path / "options.yaml"
    policy.write_text("version: 1\nexecution:\n  engine_options:\n    onnxruntime: {nonsense: '1'}\n")
    done = xpu("run", model, "-e", "onnxruntime", "--policy", policy)
    assert done.code == 5
    assert "no option 'nonsense'" in done.stderr
    assert "graph_optimization_level" in done.stderr


@pytest.mark.parametrize("verb", ["run", "explain"])
def test_a_compilation_that_takes_too_long_is_ended_and_said(
    xpu, model: Path, tmp_path: Path, verb: str
) -> None:
    done = xpu(verb, model, "--engine", "openvino", "--compile-timeout", "0.001", "--cache-dir", tmp_path)
    assert done.code == ExitCode.FAILED
    assert "took longer than compile_timeout_s" in done.stdout + done.stderr


def test_a_run_within_its_limit_is_a_run_and_a_limit_must_be_a_time(xpu, model: Path) -> None:
    assert xpu("run", model, "--engine", "onnxruntime", "--run-timeout", "60").code == ExitCode.OK
    for verb in ("run", "bench", "compare"):
        wrong = xpu(verb, model, "--run-timeout", "-1")
        assert wrong.code != ExitCode.OK
        assert "run_timeout_s" in wrong.stderr
