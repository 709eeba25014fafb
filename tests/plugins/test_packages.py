"""Packages that are not installed, or installed and broken: errors that name them and the command that helps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xpuruntime.errors import PluginError
from xpuruntime.faults import as_error
from xpuruntime.plugins.packages import EXTRAS, missing_package
from xpuruntime.plugins.vendor_imports import vendor

ROOT = Path(__file__).parents[2]


def python(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | environment, check=False
    )


def test_every_module_of_training_without_pytorch_names_the_extra() -> None:
    folder = ROOT / "src" / "xpuruntime"
    files = (f.relative_to(folder.parent).with_suffix("") for f in (folder / "pytorch").rglob("*.py"))
    modules = sorted({".".join(f.parts).removesuffix(".__init__") for f in files})
    assert "xpuruntime.pytorch.policy" in modules
    code = (
        "import importlib, sys\nsys.modules['torch'] = None\nfor name in sys.argv[1:]:\n"
        "    try: importlib.import_module(name)\n    except Exception as error: print(name, type(error).__name__, error)"
    )
    said = python(code, *modules).stdout.splitlines()
    assert [line.partition(" ")[0] for line in said] == modules
    for line in said:
        assert "UnavailableError [xpuruntime.pytorch]" in line
        assert line.endswith("'torch', which is not installed. Run: pip install 'xpuruntime[torch]'")


@pytest.mark.parametrize(("arguments", "package", "install"), [
    (["certify", "f.py:f"], "torch", "'xpuruntime[torch]'"),
    (["lint", "auto.yaml"], "yaml", "pyyaml"),
])  # fmt: skip
def test_a_verb_without_a_package_names_it(arguments: list[str], package: str, install: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from xpuruntime.cli import main; main()"
    done = python(code, *arguments)
    assert done.returncode == 6, done.stderr
    assert f"needs the Python package {package!r}, which is not installed" in done.stderr
    assert f"do:  Run: pip install {install}" in done.stderr


def test_extras_are_those_of_the_project() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert any(d.startswith(package.replace("_", "-")) for d in extras[extra]), package


def test_only_an_absent_package_is_one() -> None:
    assert missing_package(ImportError("cannot import name"), "x") is None
    assert missing_package(ModuleNotFoundError("no", name="numpy.no_such_part"), "x") is None
    assert missing_package(ModuleNotFoundError("no", name="xpuruntime.no_such_part"), "x") is None
    error = as_error(ModuleNotFoundError("no", name="no_such_package.part"), "x")
    assert str(error).endswith(
        "'no_such_package', which is not installed. Install the package that provides it."
    )


def test_only_known_packages_have_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution may have another name than its import, and the guessed name may be another project's."""
    monkeypatch.setattr("xpuruntime.plugins.packages.importable", lambda _: False)
    commands = {
        "cv2": "Install",
        "sklearn": "Install",
        "yaml": "pip install pyyaml",
        "transformers": "pip install transf",
    }
    for name, command in commands.items():
        error = missing_package(ModuleNotFoundError("no", name=name), "x")
        assert error is not None
        assert command in error.do
        assert "pip" in command or "pip" not in error.do


@pytest.mark.parametrize(("distributions", "do"), [
    (["acme-gpu"], "Reinstall it: pip install --force-reinstall acme-gpu"),
    (["acme-gpu", "acme"], "Several packages provide it: acme, acme-gpu. Uninstall them all, and install one."),
    ([], "Reinstall it: pip install --force-reinstall acme"),
])  # fmt: skip
def test_the_installed_distribution_of_a_broken_package_is_named(
    distributions: list[str], do: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "__init__.py").write_text("raise OSError('no library')")
    for name in distributions:
        folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "top_level.txt").write_text("acme\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match="no library") as caught:
        vendor("acme")
    assert caught.value.do == do


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process whose onnxruntime fails when it is imported."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("broken")
    (folder / "onnxruntime").mkdir()
    (folder / "onnxruntime" / "__init__.py").write_text("raise ImportError('libonnxruntime.so: no symbol')")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("verb", "code"), [
    (["doctor"], 1), (["devices"], 0), (["inspect", "{m}"], 0), (["run", "{m}", "-e", "onnxruntime"], 8),
    (["tune", "{m}", "-o", "{t}/t.json", "--rounds", "1", "--engine", "onnxruntime"], 8), (["run", "{m}", "-d", "cpu"], 0),
])  # fmt: skip
def test_a_broken_engine_is_a_reason_and_no_fault(
    broken: dict[str, str], verb: list[str], code: int, tmp_path: Path
) -> None:
    from xpuruntime.frontends.onnx_writer import to_onnx
    from xpuruntime.ir import GraphBuilder

    b = GraphBuilder("g")
    b.output("y", b.relu(b.input("x", "float32[2, 3]")))
    (tmp_path / "m.onnx").write_bytes(to_onnx(b.build(), {}).SerializeToString())
    arguments = [a.format(m=tmp_path / "m.onnx", t=tmp_path) for a in verb]
    done = python("from xpuruntime.cli import main; main()", *arguments, **broken)
    assert done.returncode == code, done.stderr
    if verb[:1] != ["run"] or code:
        assert "cannot be imported: ImportError: libonnxruntime.so: no symbol" in done.stdout + done.stderr
        assert "pip install --force-reinstall onnxruntime" in done.stdout + done.stderr or verb == ["devices"]
