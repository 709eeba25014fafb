"""Child processes: what the current folder holds is not imported, and nothing is left behind by one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.onnx_models import small_classifier

from xpuruntime import children

HOSTILE = ("numpy.py", "onnx.py", "ziglang.py", "pickle.py", "xpuruntime.py", "ml_dtypes.py", "openvino.py")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with modules called like ours and our vendors'; each says that it ran."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in HOSTILE:
        (folder / name).write_text(
            f"open({str(folder / 'ran')!r}, 'a').write({name!r})\nraise SystemExit(7)\n"
        )
    return folder


def xpu(folder: Path, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """``xpu`` as its console script starts it: without the current folder on the import path."""
    command = [sys.executable, "-P", "-m", "xpuruntime.cli", *map(str, arguments)]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    return subprocess.run(
        command, cwd=folder, env=environment | more, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "m.onnx"
    onnx.save(small_classifier(), path)
    return path


def test_a_build_with_a_time_limit_imports_nothing_from_the_current_folder(
    hostile: Path, model: Path
) -> None:
    pytest.importorskip("openvino")
    done = xpu(hostile, "run", model, "--engine", "openvino", "--device", "cpu", "--compile-timeout", 200)
    assert not (hostile / "ran").exists(), (hostile / "ran").read_text()
    assert done.returncode == 0, done.stderr


def test_the_reference_process_imports_nothing_from_the_current_folder(hostile: Path, model: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = xpu(hostile, "compare", model, "--engines", "onnxruntime", "--against", "reference")
    assert not (hostile / "ran").exists(), (hostile / "ran").read_text()
    assert done.returncode == 0, done.stderr + done.stdout


def test_every_child_python_is_started_safely(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m ziglang`` too: its command begins like this one, and the compilers' environment is this one."""
    monkeypatch.chdir(hostile)
    monkeypatch.setattr(sys, "path", ["", ".", *sys.path])
    done = children.run(
        children.python("-c", "import numpy, sys; print(numpy.__file__); print(sys.path)"), 60
    )
    assert done.returncode == 0, done.stderr
    assert str(hostile) not in done.stdout
    done = children.run(children.python("-m", "ziglang"), 60)
    assert done.returncode != 7
    plain = children.run([sys.executable, "-c", "import numpy"], 60)  # as a compiler's own script would do it
    assert plain.returncode == 0, plain.stderr
    assert not (hostile / "ran").exists()


def test_the_package_starts_children_in_one_place() -> None:
    """Whoever calls subprocess itself hands over ``children.environment``, and Python's command comes from ``children.python``.

    A chat template's process is isolated (``-I``), which ignores the environment and the current folder.
    """
    import xpuruntime

    root = Path(xpuruntime.__file__).parent
    starts = (
        "subprocess.run(",
        "subprocess.Popen(",
        "check_output(",
        "os.system(",
        "[sys.executable",
        "multiprocessing",
    )
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "testing" not in path.parts and any(word in path.read_text() for word in starts)
    }
    assert found == {"children.py", "child_calls.py", "llm/checkpoint/template.py"}


SLOW_COMPILER = """#!/bin/sh
case "$*" in *--version*) echo slow 1.0; exit 0;; esac
echo > "$TMPDIR/of-the-compiler"
echo $$ > {pid}
sleep 300
"""

BUILDS = "from xpuruntime.codegen.cpp.toolchain import cxx_toolchain; cxx_toolchain().build('int x;')"


@pytest.fixture
def slow_build(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A process in the midst of compiling, its compiler's process id, and the temporary folder."""
    compiler, pid, folder = tmp_path / "slow", tmp_path / "pid", tmp_path / "tmp"
    compiler.write_text(SLOW_COMPILER.format(pid=pid))
    compiler.chmod(0o755)
    folder.mkdir()
    env = os.environ | {"CXX": str(compiler), "TMPDIR": str(folder)}
    with subprocess.Popen([sys.executable, "-c", BUILDS], env=env) as process:
        while not (pid.exists() and pid.read_text().strip()):
            assert process.poll() is None
            time.sleep(0.02)
        yield process, int(pid.read_text()), folder
        process.kill()


def gone(pid: int) -> bool:
    """Ended, or ended and not yet waited for."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_sigterm_while_compiling_leaves_no_folder_and_no_compiler(slow_build) -> None:  # type: ignore[no-untyped-def]
    process, compiler, folder = slow_build
    assert [p.name[:12] for p in folder.iterdir()] == ["xpu-codegen-"]
    process.terminate()
    assert process.wait(60) == -signal.SIGTERM
    assert list(folder.iterdir()) == []
    assert gone(compiler)


def test_what_a_killed_process_left_is_removed_by_the_next(
    slow_build,
    monkeypatch: pytest.MonkeyPatch,  # type: ignore[no-untyped-def]
) -> None:
    process, compiler, folder = slow_build
    (left,) = folder.iterdir()
    old = time.time() - 4000
    os.utime(left, (old, old))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with children.scratch("xpu-codegen-"):
        assert left.exists(), "its process lives"
    process.kill()
    process.wait(60)
    os.kill(compiler, signal.SIGKILL)
    with children.scratch("xpu-codegen-") as fresh:
        assert [p.name for p in folder.iterdir()] == [fresh.name]
    assert list(folder.iterdir()) == []


def test_a_compiler_that_is_no_command_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from xpuruntime.codegen.cpp.toolchain import cxx_toolchain
    from xpuruntime.errors import BuildError

    for text in ('"x', "g++ 'no end", "g++ \\"):
        monkeypatch.setenv("CXX", text)
        with pytest.raises(BuildError, match=r"\[environment CXX\] is not a command"):
            cxx_toolchain()
