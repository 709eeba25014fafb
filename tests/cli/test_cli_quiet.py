"""No name lookup, and no file outside the store, the model and the temporary folder, whichever vendors are installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

# Events of CPython's own code; what a vendor's C code does, the empty home and strace show. A ``sitecustomize``: child processes run it, too.
WATCHED = """
import os, sys
log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(log, b"starts\\n")
def hook(event, arguments):
    if event.startswith(("socket.getaddrinfo", "socket.gethost", "socket.connect", "socket.sendto", "urllib.")):
        os.write(log, f"{{event}} {{arguments[:2]}}\\n".encode())
    elif event == "open" and isinstance(arguments[0], str) and arguments[2] & 3:
        os.write(log, f"writes {{arguments[0]}}\\n".encode())
sys.addaudithook(hook)
"""

VERBS = {
    "devices": ("devices",),
    "run": ("run", "MODEL", "--device", "cpu", "--receipt"),
    "compare": ("compare", "MODEL", "--device", "cpu"),
    "run in a limit": ("run", "MODEL", "--device", "cpu", "--engine", "native", "--compile-timeout", "60"),
    "compare with the reference": ("compare", "MODEL", "--device", "cpu", "--against", "reference"),
}
CHILDREN = ("run in a limit", "compare with the reference")
"""Verbs that start an interpreter of their own."""


@pytest.fixture
def quiet(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Start a verb with an empty home; give what was said on stderr. The home must stay empty."""
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()
    temporary.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    environment |= {
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "XPU_CACHE_DIR": str(tmp_path / "store"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment.pop("ORT_DISABLE_TELEMETRY", None)

    def start(*command: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
        places = [str(path)] if path else []
        places += [p for p in (environment.get("PYTHONPATH"),) if p]
        more = {"PYTHONPATH": os.pathsep.join(places)} if places else {}
        done = subprocess.run(
            command,
            env={**environment, **more},
            cwd=home,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert list(home.rglob("*")) == []
        return done

    return start


def arguments(verb: str, model: Path) -> list[str]:
    return [str(model) if word == "MODEL" else word for word in VERBS[verb]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_looked_up_or_left_at_home(
    quiet, verb: str, model: Path, tmp_path: Path, shared_store: Path
) -> None:  # type: ignore[no-untyped-def]
    site, log = tmp_path / "site", tmp_path / "hook.log"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WATCHED.format(log=str(log)))
    quiet(sys.executable, "-P", "-m", "xpuruntime.cli", *arguments(verb, model), path=site)
    seen = log.read_text().splitlines()
    assert seen.count("starts") >= (2 if verb in CHILDREN else 1)
    allowed = ("starts", f"writes {tmp_path}", f"writes {shared_store}", "writes /dev/null")
    assert [line for line in seen if not line.startswith(allowed)] == []


@pytest.mark.sampled(1)
@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize("verb", VERBS)
def test_system_calls_show_the_same(quiet, verb: str, model: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    log = tmp_path / "trace"
    calls = "trace=openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,connect,sendto,sendmsg,sendmmsg"
    quiet(
        "strace",
        "-f",
        "-qq",
        "-e",
        calls,
        "-o",
        str(log),
        sys.executable,
        "-P",
        "-m",
        "xpuruntime.cli",
        *arguments(verb, model),
    )
    lines = log.read_text(errors="replace").splitlines()
    assert lines
    assert [line for line in lines if "AF_INET" in line or "resolv.conf" in line] == []
    writing = [
        m[1]
        for line in lines
        if re.search(r"O_WRONLY|O_RDWR|O_CREAT|mkdir", line)
        and " = -1 " not in line
        and (m := re.search(r'"([^"]+)"', line))
    ]
    allowed = (str(tmp_path), "/dev/", "/proc/self/")
    assert [path for path in writing if path.startswith("/") and not path.startswith(allowed)] == []


def test_a_user_s_own_import_still_finds_the_package() -> None:
    """Only our import works without it."""
    pytest.importorskip("openvino_telemetry")
    program = (
        "import sys; from xpuruntime.plugins.vendor_imports import vendor; vendor('openvino'); "
        "assert 'openvino_telemetry' not in sys.modules; import openvino_telemetry; vendor('openvino').Core"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_openvino_s_converter_is_imported_on_first_use() -> None:
    pytest.importorskip("openvino.tools.ovc")
    program = (
        "import sys; from xpuruntime.plugins.vendor_imports import vendor; package = vendor('openvino'); "
        "assert 'openvino.tools.ovc' not in sys.modules; assert not hasattr(package, 'convert_modell'); "
        "from openvino import convert_model; assert convert_model is sys.modules['openvino.tools.ovc'].convert_model; "
        "assert package.convert_model is convert_model; assert 'openvino_telemetry' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_without_openvino_s_converter_its_name_is_missing() -> None:
    pytest.importorskip("openvino")
    program = (
        "import sys; from xpuruntime.plugins.vendor_imports import vendor; package = vendor('openvino'); "
        "sys.modules['openvino.tools.ovc'] = None; assert not hasattr(package, 'convert_model')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
