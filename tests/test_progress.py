"""Progress of long work: to a function, or on a terminal after a while; nothing anywhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import InputError
from xpuruntime.ir import GraphBuilder
from xpuruntime.progress import shown, step
from xpuruntime.types import TensorSpec

WORK = """
import sys
from xpuruntime.progress import shown, step
with shown("opening a", "a", after_s={after}):
    sys.stdin.readline()
    with shown("compiling b"):
        step("two\\x1b[31m\\nlines")
        sys.stdin.readline()
print("done")
"""


def on_a_terminal(code: str, *awaited: bytes, **variables: str) -> tuple[str, bytes]:
    """Return what a program prints on stdout, and on a terminal as its stderr.

    awaited: texts on the terminal, after each of which the program gets a line on stdin. It gets the end of stdin after the last one.
    """
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm"} | variables
    seen, waiting = b"", list(awaited)
    pipe = subprocess.PIPE
    line = [sys.executable, "-c", code]
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=child, text=True, env=environment) as process:
        os.close(child)
        assert process.stdin is not None
        assert process.stdout is not None
        if not waiting:
            process.stdin.close()
        while chunk := _read(parent):
            seen += chunk
            while waiting and waiting[0] in seen:
                waiting.pop(0)
                process.stdin.write("\n")
                process.stdin.flush() if waiting else process.stdin.close()
        printed = process.stdout.read()
    os.close(parent)
    return printed, seen


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # how Linux says that the other end of a terminal is closed
        return b""


def test_a_terminal_shows_the_step_once_the_work_takes_long() -> None:
    lines = b"opening a", rb"a: two\x1b[31m\nlines"  # the text cannot control the terminal
    printed, seen = on_a_terminal(WORK.format(after=0.1), *lines)
    assert printed == "done\n"
    assert all(line in seen for line in lines)
    assert seen.endswith(b"\x1b[2K")  # and the line is removed
    assert on_a_terminal(WORK.format(after=30)) == ("done\n", b"")


def test_nothing_is_written_elsewhere() -> None:
    assert on_a_terminal(WORK.format(after=0), XPU_PROGRESS="off") == ("done\n", b"")
    done = subprocess.run(
        [sys.executable, "-c", WORK.format(after=0)], input="", capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_work_inside_other_work_reports_to_the_outermost() -> None:
    seen: list[str] = []
    with shown("all", on_progress=seen.append):
        step("first")
        with shown("compiling b", "b"):
            step("second")
        with shown("compiling c", on_progress=(inner := list[str]()).append):
            step("third")
        step("last")
    step("nobody listens")
    assert seen == ["first", "compiling b", "b: second", "last"]
    assert inner == ["third"]


def test_threads_report_by_the_function_that_they_got() -> None:
    seen: list[str] = []
    with shown("all", on_progress=seen.append) as say:
        for work in (lambda: say("told"), lambda: step("another thread's own work")):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert seen == ["told"]


def test_an_exception_of_the_function_passes_unchanged(tmp_path: Path) -> None:
    def fail(text: str) -> None:
        raise ValueError("mine")

    torch = pytest.importorskip("torch")
    x = torch.ones(1, 3)
    with pytest.raises(ValueError, match=r"^mine$"):
        xrt.compile(graph(), target="cpu", on_progress=fail)
    with pytest.raises(ValueError, match=r"^mine$"):
        xrt.InferenceSession(
            torch.nn.Linear(3, 2).eval(),
            device="cpu",
            engine="native",
            example_inputs=(x,),
            cache_dir=tmp_path,
            on_progress=fail,
        )


def graph() -> xrt.Graph:
    """Return a small graph."""
    b = GraphBuilder("small")
    x = b.input("x", TensorSpec((4,), xrt.DType.FLOAT32))
    b.output("y", b.add(b.relu(x), x))
    return b.build()


def test_compile_names_its_steps() -> None:
    seen: list[str] = []
    xrt.compile(graph(), target="cpu:x86-64-v3", on_progress=seen.append)
    assert seen[0].startswith("choosing kernels for cpu")
    assert any("compiling the generated code" in text for text in seen)
    with pytest.raises(InputError, match="on_progress"):
        xrt.compile(graph(), target="cpu", on_progress="loud")  # type: ignore[arg-type]


def test_a_session_names_its_steps(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model, x = torch.nn.Linear(3, 2).eval(), torch.ones(1, 3)
    for kept in (False, True):
        seen: list[str] = []
        with xrt.InferenceSession(
            model,
            device="cpu",
            engine="native",
            example_inputs=(x,),
            cache_dir=tmp_path,
            on_progress=seen.append,
        ) as session:
            outputs = session.run({session.input_info[0].name: x.numpy()})
        np.testing.assert_allclose(next(iter(outputs.values())), model(x).detach().numpy(), rtol=1e-5)
        assert kept is (seen[0] != "exporting with PyTorch")  # the second start knows the module by its ops
        assert "preparing kernels" in seen
        assert any(text.startswith("loading weights") for text in seen)
        assert kept is not any("compiling the generated code" in text for text in seen)
        assert kept is not ("importing PyTorch's export" in seen)
    with pytest.raises(InputError, match="on_progress"):
        xrt.InferenceSession(model, device="cpu", example_inputs=(x,), on_progress=3)  # type: ignore[arg-type]


def test_a_stderr_that_is_no_terminal_stops_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed = (tmp_path / "closed").open("w")
    closed.close()
    for stderr in (None, object(), closed):
        monkeypatch.setattr(sys, "stderr", stderr)
        with shown("opening a"):
            step("two")
