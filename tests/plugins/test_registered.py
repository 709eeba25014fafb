"""What users registered: where it comes from, when it is imported, and that a digest is the same in every process."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xpuruntime.errors import PolicyError
from xpuruntime.plugins import loader as plugins
from xpuruntime.plugins import registered
from xpuruntime.policies import load_policy

KERNEL = """
import xpuruntime as xrt

@xrt.kernel("softmax/filed", op="softmax")
def softmax(x, **attrs):
    return x
"""


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registered, "_TABLE", registered._Table())
    plugins.entry_points.cache_clear()
    yield
    plugins.entry_points.cache_clear()


def asks(name: str) -> Any:
    return load_policy({"version": 1, "kernel": {"softmax": name}})


def test_modules_are_imported_when_a_policy_names_a_kernel_that_is_not_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my_kernels.py"
    file.write_text(KERNEL)
    monkeypatch.setenv("XPU_KERNELS", f"{file}, string")
    asks("generated")
    assert registered.kernel_words() == ()
    with pytest.raises(PolicyError, match=r"no such kernel of softmax; got 'fled'. Did you mean 'filed'\?"):
        asks("fled")
    assert asks("filed").kernel.softmax == ("filed",)
    assert [(k.name, k.kind) for k in registered.registered_kernels("cpu")] == [("softmax/filed", "cpu")]
    assert registered.registered_kernels("cuda") == ()


def test_a_module_that_fails_is_named_and_read_again_when_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my_kernels.py"
    file.write_text("import nothing_of_this_name")
    monkeypatch.setenv("XPU_KERNELS", str(file))
    with pytest.raises(
        PolicyError,
        match=r"XPU_KERNELS: .*my_kernels.py\] cannot be imported, so its kernels are not registered.*ModuleNotFoundError: No module named 'nothing",
    ):
        asks("filed")
    file.write_text(KERNEL)
    assert asks("filed").kernel.softmax == ("filed",)


def test_an_entry_point_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_kernels.py").write_text(KERNEL)
    found = tmp_path / "their_kernels-1.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: their_kernels\nVersion: 1\n")
    (found / "entry_points.txt").write_text(f"[{registered.GROUP}]\ntheirs = their_kernels\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "theirs" in {e.name for e in importlib.metadata.entry_points(group=registered.GROUP)}
    assert asks("filed").kernel.softmax == ("filed",)


DIGEST = """
from xpuruntime.plugins.registered import code_digest
factor = 3
def outer(scale):
    def launch(call):
        return {"a", "b"} if call in {"x", "y", "z"} else (scale, None)
    return launch
print(code_digest("text", outer(%s), lambda c: c, frozenset({"p", "q", "r"}), object, 1.5))
"""


def test_a_digest_is_the_same_in_every_process_and_moves_with_the_code() -> None:
    def digest(scale: int, seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        code = [sys.executable, "-c", DIGEST % scale]
        return subprocess.run(code, capture_output=True, text=True, check=True, env=environment).stdout

    first = digest(1, "1")
    assert digest(1, "2") == first
    assert digest(2, "1") != first


def test_a_digest_sees_texts_defaults_and_what_is_closed_over() -> None:
    def made(factor: int, default: int) -> Any:
        def function(x: int, y: int = default) -> int:
            return x * factor + y

        return function

    digests = {registered.code_digest(made(f, d)) for f in (1, 2) for d in (1, 2)}
    assert len(digests) == 4
    assert registered.code_digest(made(1, 1)) in digests
    assert registered.code_digest(lambda x: x + 1) != registered.code_digest(lambda x: x + 2)
