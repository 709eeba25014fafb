"""Repositories of Hugging Face kernels: variants, functions without running them, and a kernel that runs on demand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import KernelUnavailable, PolicyError
from xpuruntime.workbench.interchange import load_kernel, read_foreign
from xpuruntime.workbench.interchange.build_variants import Host, parse_variant
from xpuruntime.workbench.interchange.hf_kernels import read_repository

HOST = Host("2.13", "cxx11", "cpu", "x86_64", "linux")
CODE = """__all__ = ["softmax", "layers"]
from pathlib import Path
(Path(__file__).parent / "ran").touch()
def softmax(x, dim):
    return x.softmax(dim)
def _hidden(): ...
"""


def repository(root: Path, *variants: str, code: str = CODE) -> Path:
    for name in variants:
        folder = root / "build" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(code)
        (folder / "metadata.json").write_text('{"id": "k", "version": 1, "python-depends": []}')
    return root


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("torch213-cxx11-cpu-x86_64-linux", ""),
        ("torch-cpu", ""),
        ("torch-universal", ""),
        ("torch212-cxx11-cpu-x86_64-linux", "it needs PyTorch 2.12, here it is 2.13"),
        ("torch213-cxx98-cpu-x86_64-linux", "it needs the C++ ABI cxx98, here it is cxx11"),
        ("torch213-cxx11-cu126-x86_64-linux", "it needs the backend cu126, here it is cpu"),
        ("torch213-cxx11-rocm6.3-x86_64-linux", "it needs the backend rocm6.3, here it is cpu"),
        ("torch213-cxx11-cpu-aarch64-linux", "it needs the processor aarch64, here it is x86_64"),
        ("torch213-cpu-x86_64-windows", "it needs the system windows, here it is linux"),
        ("torch-cuda", "it needs the backend cuda, here it is cpu"),
        ("tvm-ffi01-cpu-x86_64-linux", "it needs the framework tvm-ffi"),
    ],
)
def test_variants(name: str, reason: str) -> None:
    variant = parse_variant(name)
    assert variant is not None
    assert variant.obstacle(HOST) == reason
    assert variant.obstacle(Host("", "", "cpu", "x86_64", "linux"))


def test_a_cuda_host_takes_variants_without_native_code() -> None:
    host = Host("2.13", "cxx11", "cu126", "x86_64", "linux")
    for name in ("torch-cuda", "torch213-cxx11-cu126-x86_64-linux", "torch-universal"):
        variant = parse_variant(name)
        assert variant is not None
        assert variant.obstacle(host) == ""


@pytest.mark.parametrize(
    "name", ["", "torch", "torch2-cpu", "torch213-cxx11-q9-x86_64-linux", "torch-universal\n", "../x"]
)
def test_other_names_are_no_variants(name: str) -> None:
    assert parse_variant(name) is None


def test_the_report_runs_nothing(tmp_path: Path) -> None:
    native = "torch213-cxx11-cpu-x86_64-linux"
    root = repository(tmp_path, "torch-universal", native, "torch-cuda", "other")
    result = read_repository(root, HOST)
    found = {i.text: (i.outcome.value, i.becomes or i.reason) for i in result.items[:4]}
    assert found == {
        "build/other": ("not carried", "its name is no build variant"),
        "build/torch-cuda": ("not carried", "it needs the backend cuda, here it is cpu"),
        "build/torch-universal": ("not carried", f"{native} applies, too, and comes first"),
        f"build/{native}": ("carried", "applies here, id k, version 1"),
    }
    functions = [(i.line, i.text.rpartition(" ")[2]) for i in result.items[4:]]
    assert functions == [(1, "softmax"), (1, "layers")]
    assert not list(root.rglob("ran"))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("metadata.json", '{"id":\n]', r"metadata.json:2:1\] is not JSON"),
        ("metadata.json", "[1]", "must be a mapping; got list"),
        ("metadata.json", "[" * 100_000, "cannot be read; got RecursionError"),
        ("__init__.py", "\ndef (:", r"__init__.py:2:5\] is not Python"),
        ("__init__.py", "x\0", r"__init__.py.*(is not Python|cannot be read)"),
    ],
)
def test_damaged_repositories(tmp_path: Path, file: str, text: str, message: str) -> None:
    root = repository(tmp_path, "torch-universal")
    (root / "build" / "torch-universal" / file).write_text(text)
    with pytest.raises(PolicyError, match=message):
        read_repository(root, HOST)


def test_no_repository(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="has no folder build"):
        read_repository(tmp_path, HOST)
    root = repository(tmp_path, "torch-cuda")
    with pytest.raises(KernelUnavailable, match="torch-cuda: it needs the backend cuda, here it is cpu"):
        load_kernel(root, HOST)
    (root / "build" / "torch-universal").mkdir()
    with pytest.raises(PolicyError, match="holds no package"):
        read_repository(root, HOST)


def test_a_function_of_a_repository_as_a_kernel(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    root = repository(tmp_path, "torch-universal")
    assert read_foreign("hf-kernels", root).items[0].outcome.value == "carried"
    module = load_kernel(root)
    assert list(root.rglob("ran"))

    @xrt.kernel("softmax/hub", op="softmax", arrays="torch")
    def softmax(x, *, dim, dtype):
        return module.softmax(x, dim)

    try:
        (compared,) = xrt.verify_kernel("softmax/hub", "float32[3, 5]", attrs={"dim": 1})
        assert compared.max_rel < 1e-6
    finally:
        from xpuruntime.plugins.registered import unregister

        unregister("softmax/hub")
    assert np.isfinite(compared.max_rel)
