"""What only a process of its own can show: start-up, streams, signals, pipes."""

from __future__ import annotations

import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

ort = pytest.mark.skipif(not importlib.util.find_spec("onnxruntime"), reason="needs onnxruntime")


def test_help_is_quick(xpu_process) -> None:
    def seconds() -> float:
        start = time.perf_counter()
        assert xpu_process("--help").code == 0
        return time.perf_counter() - start

    assert statistics.median(seconds() for _ in range(5)) < 0.3


def test_help_imports_no_vendor_and_no_numpy() -> None:
    program = (
        "import sys\n"
        "import xpuruntime.cli.app\n"
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'openvino', 'torch', 'matplotlib', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
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


@ort
def test_interrupt_is_130(model: Path) -> None:
    command = [sys.executable, "-m", "xpuruntime.cli", "bench", str(model), "--seconds", "60"]
    environment = os.environ | {"XPU_DEBUG": "0"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in stderr


@ort
def test_the_cache_mode_is_honoured_by_a_process(xpu_process, model: Path, own_store: Path) -> None:
    assert xpu_process("run", model, "--json", XPU_CACHE_MODE="off").code == 0
    assert not list(own_store.glob("v1/artifact/*"))
