"""What only a process of its own can show: start-up, streams, signals, pipes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.onnx_models import small_classifier

ort = pytest.mark.skipif(not importlib.util.find_spec("onnxruntime"), reason="needs onnxruntime")


def test_help_imports_no_vendor_and_no_numpy() -> None:
    program = (
        "import sys\n"
        "import xpuruntime.cli.app\n"
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'openvino', 'torch', 'matplotlib', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_devices_imports_only_what_lists_devices() -> None:
    """Each of these takes 20 ms to 100 ms: a converter of models, a writer of models, a validator of options."""
    program = (
        "import sys\n"
        "sys.argv = ['xpu', 'devices', '--json']\n"
        "from xpuruntime.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "heavy = {'onnx', 'openvino.tools.ovc', 'pandas', 'pydantic', 'torch'} & set(sys.modules)\n"
        "from xpuruntime.cli.app import app, typer\n"
        "names = set(typer.main.get_command(app).commands) - {'devices'}\n"
        "heavy |= {f'xpuruntime.cli.{name}' for name in names} & set(sys.modules)\n"
        "assert names and not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"engines": [' in done.stdout


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "xpuruntime", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("xpu ")


@ort
def test_json_is_alone_on_stdout_even_when_c_code_prints_there(tmp_path: Path, model: Path) -> None:
    """A library that is preloaded into the verb's process writes to stdout behind Python's back, as vendors do."""
    program = (
        "import ctypes, sys\n"
        "import xpuruntime.workbench.inspection as inspection\n"
        "real = inspection.inspect_model\n"
        "def noisy(*a):\n"
        "    print('python chatter')\n"
        "    libc = ctypes.CDLL(None)\n"
        "    libc.puts(b'buffered chatter')\n"
        "    import os; os.write(1, b'raw chatter\\n')\n"
        "    return real(*a)\n"
        "inspection.inspect_model = noisy\n"
        f"sys.argv = ['xpu', 'inspect', {str(model)!r}, '--json']\n"
        "from xpuruntime.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("{")
    assert done.stdout.endswith("}\n")
    assert "chatter" not in done.stdout
    for kind in ("python", "buffered", "raw"):
        assert f"{kind} chatter" in done.stderr


@ort
def test_errors_and_codes_of_the_process(xpu_process, tmp_path: Path, model: Path) -> None:
    missing = xpu_process("run", tmp_path / "absent.onnx")
    assert (missing.code, missing.stdout) == (3, "")
    assert xpu_process("run", model, "-e", "onnxruntime", "--json").json["engine"] == "onnxruntime"
    assert xpu_process("explain", model, "-e", "onnxruntime", "-d", "npu", "--json").code == 6
    assert xpu_process("run").code == 2


@ort
def test_a_reader_that_leaves_early_is_no_fault(model: Path) -> None:
    command = f"{sys.executable} -m xpuruntime.cli inspect {model} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("line: onnx")
    assert "Traceback" not in done.stderr
    assert "fault" not in done.stderr


def _process(*arguments: object, stdout: object, close: bool = False, stderr: object = subprocess.PIPE):
    """Run ``xpu`` with that stdout; ``close`` starts it without any."""
    start = [sys.executable, "-m", "xpuruntime.cli", *map(str, arguments)]
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *start] if close else start
    return subprocess.run(command, stdout=stdout, stderr=stderr, text=True, timeout=120, check=False)


@pytest.mark.sampled(1)
@ort
@pytest.mark.parametrize(
    "arguments", [["inspect"], ["inspect", "--nodes"], ["inspect", "--json"], ["run"]], ids=" ".join
)
def test_a_pipe_without_a_reader_is_141_and_quiet(model: Path, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = _process(*arguments, model, stdout=writer)
        both = _process(*arguments, model, stdout=writer, stderr=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
    assert both.returncode == 141


@pytest.mark.sampled(1)
@ort
@pytest.mark.parametrize("json", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("verb", ["inspect", "run", "devices"])
def test_stdout_that_cannot_be_written_is_9_and_told_on_stderr(
    model: Path, verb: str, json: list[str]
) -> None:
    arguments = [verb, *json, *([] if verb == "devices" else [model])]
    with Path("/dev/full").open("w") as full:
        on_full = _process(*arguments, stdout=full)
        nowhere = _process(*arguments, stdout=full, stderr=full)
    closed = _process(*arguments, stdout=None, close=True)
    for done, got in ((on_full, "No space left on device"), (closed, "it is closed")):
        assert done.returncode == 9
        assert done.stderr.startswith(f"error: [stdout] cannot be written\n  got: {got}\n  do:  ")
        assert done.stderr.count("\n") == 3
    assert nowhere.returncode == 9


@ort
def test_an_error_that_stdout_does_not_take_is_told_on_stderr_with_its_own_code(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = _process("run", tmp_path / "absent.onnx", "--json", stdout=full)
    assert done.returncode == 3
    assert "no such file" in done.stderr
    assert "Traceback" not in done.stderr


@ort
def test_interrupt_is_130(tmp_path: Path) -> None:
    # A batch that takes milliseconds: a tiny model would be through its largest number of rounds before the interrupt.
    model = tmp_path / "classifier.onnx"
    model.write_bytes(small_classifier().SerializeToString())
    command = [
        sys.executable,
        "-m",
        "xpuruntime.cli",
        "bench",
        str(model),
        "--seconds",
        "60",
        "--shape",
        "batch=2000",
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"XPU_DEBUG": "0"},
        # A test run in the background of a shell ignores interrupts, and would hand that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    time.sleep(4)
    while process.poll() is None:  # repeated: Python drops an interrupt that arrives inside a destructor
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in stderr


@ort
def test_the_cache_mode_is_honored_by_a_process(xpu_process, model: Path, own_store: Path) -> None:
    assert xpu_process("run", model, "--json", XPU_CACHE_MODE="off").code == 0
    assert not list(own_store.glob("v1/artifact/*"))


@pytest.mark.sampled(one_in=3)
def test_a_broken_plugin_of_a_third_party_is_a_problem_that_stops_nothing_else(
    xpu_process, tmp_path: Path, model: Path
) -> None:
    """A real entry point in a real distribution on the path, whose module cannot be imported."""
    info = tmp_path / "site" / "broken_engine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[xpuruntime.engines]\nbroken = broken_engine.plugin:PLUGIN\n")
    path = os.pathsep.join(filter(None, (str(tmp_path / "site"), os.environ.get("PYTHONPATH"))))
    done = xpu_process("doctor", "--json", PYTHONPATH=path)
    assert done.code == 1
    (check,) = [c for c in done.json["checks"] if c["name"] == "broken"]
    assert check["status"] == "fail"
    assert "its plugin cannot be imported: ModuleNotFoundError" in check["text"]
    assert xpu_process("devices", PYTHONPATH=path).code == 0
    inspected = xpu_process("inspect", model, "--json", PYTHONPATH=path)
    assert inspected.code == 0
    assert "broken" in {e["engine"] for e in inspected.json["engines"]}
    if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("openvino"):
        compared = xpu_process("compare", model, "--json", "--samples", 1, PYTHONPATH=path)
        assert compared.code == 0
        rejected = {c["name"] for c in compared.json["rejected"]}
        assert "broken" in rejected
        assert rejected <= {"broken", "tensorrt", "qnn"}


@pytest.mark.sampled(one_in=2)
@ort
def test_progress_shows_on_a_terminal_only(xpu_process, model: Path) -> None:
    pty = pytest.importorskip("pty")
    assert "benchmarking" not in xpu_process("bench", model, "--seconds", 0.1, "-e", "onnxruntime").stderr
    command = [
        sys.executable,
        "-m",
        "xpuruntime.cli",
        "bench",
        str(model),
        "--seconds",
        "0.5",
        "-e",
        "onnxruntime",
        "--json",
    ]
    parent, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm"}  # a dumb terminal shows no progress
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=child, text=True, env=environment
    ) as process:
        os.close(child)
        seen = b""
        while chunk := _read(parent):
            seen += chunk
        stdout = process.stdout.read()
    os.close(parent)
    assert b"measuring for 0.5 s" in seen
    assert stdout.startswith("{")
    assert stdout.endswith("}\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # how Linux says that the other end of a terminal is closed
        return b""
