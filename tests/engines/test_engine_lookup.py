from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from xpuruntime.engines import ENGINES, engine_names, lookup
from xpuruntime.errors import EngineUnavailable


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("onnxruntime", "onnxruntime"),
        ("onnxrt", "onnxruntime"),
        (" ORT ", "onnxruntime"),
        ("openvino", "openvino"),
        ("OV", "openvino"),
    ],
)
def test_names_and_aliases(word: str, name: str) -> None:
    plugin = lookup(word)
    assert plugin.name == name
    assert plugin.installed()
    assert set(dir(plugin.load())) >= {"version", "devices", "supports", "fingerprint", "build", "load"}
    assert plugin.load().version() == plugin.version()


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(EngineUnavailable) as caught:
        lookup("openvin0")
    assert str(caught.value).startswith(
        "[engine] no engine of that name; got 'openvin0'. Did you mean 'openvino'? Engines are onnxruntime, openvino"
    )


def test_every_row_of_the_table_is_its_plugin() -> None:
    assert [lookup(name).name for name in ENGINES] == list(ENGINES)
    assert engine_names()[: len(ENGINES)] == tuple(ENGINES)


def test_looking_up_imports_no_vendor() -> None:
    code = (
        "import sys; from xpuruntime.engines import lookup, ENGINES; [lookup(n).installed() for n in ENGINES]"
    )
    code += "; print(sorted({'onnx', 'onnxruntime', 'openvino', 'torch'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_missing_package_is_a_no_with_the_install_line(bare_python: Callable[[str], str]) -> None:
    said = bare_python(
        "from xpuruntime.engines import ENGINES, lookup\n"
        "for n in ENGINES: s = lookup(n).installed(); print(s.ok, s.code, s.reason, s.do, sep='|')"
    )
    assert said.splitlines() == [
        "False|not_installed|the Python package 'onnxruntime' is not installed|Run: pip install 'xpuruntime[onnxruntime]'",
        "False|not_installed|the Python package 'openvino' is not installed|Run: pip install 'xpuruntime[openvino]'",
        "False|not_installed|the Python package 'tensorrt' is not installed|Run: pip install 'xpuruntime[tensorrt]'",
        "False|not_installed|the Python package 'onnxruntime_qnn' is not installed|Run: pip install 'xpuruntime[qnn]'",
        "True|None||",  # our own engine needs nobody's package
    ]


def test_devices_never_raises(bare_python: Callable[[str], str]) -> None:
    said = bare_python(
        "from xpuruntime.engines import ENGINES, lookup\n"
        "for n in ENGINES:\n  for f in lookup(n).load().devices(): print(f.support.ok, f.support.code, f.support.reason, sep='|')"
    )
    assert said.splitlines() == [
        "False|device_refused|ModuleNotFoundError: No module named 'onnxruntime'",
        "False|device_refused|ModuleNotFoundError: No module named 'openvino'",
        "False|device_refused|the package tensorrt cannot be imported: ModuleNotFoundError: No module named 'tensorrt'",
        "False|device_refused|ModuleNotFoundError: No module named 'onnxruntime_qnn'",
        "True|None|",  # our own engine drives the host with nobody's package
    ]


def distribution(folder: Path, name: str, version: str, *, entry: str = "", module: str = "") -> None:
    """Install a distribution by hand: its metadata, and a module when there is text for one."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if entry:
        (info / "entry_points.txt").write_text(f"[xpuruntime.engines]\n{entry}\n")
    (folder / f"{name}.py").write_text(module)


def run(folder: Path, code: str) -> str:
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.mark.parametrize(
    ("name", "low"),
    [("onnxruntime", "1.24.0"), ("onnxruntime", "2.0.0"), ("openvino", "2024.5.0"), ("openvino", "2027.0.0")],
)
def test_versions_outside_the_table_are_refused(tmp_path: Path, name: str, low: str) -> None:
    distribution(tmp_path, name, low)
    said = run(
        tmp_path,
        f"from xpuruntime.engines import lookup; s = lookup({name!r}).installed(); print(s.code, s.reason, sep='|')",
    )
    assert said.startswith(f"version_unsupported|{name} {low} is installed; supported versions are >= ")


PLUGIN = """
from xpuruntime.plugins import EnginePlugin
PLUGIN = EnginePlugin(name="theirs", title="Theirs", aliases=(), package=("theirs",), module="theirs", install="pip install theirs",
                      versions=("1", "2"), formats=("onnx",), entry="theirs")
"""


def test_third_parties_come_in_by_entry_points(tmp_path: Path) -> None:
    distribution(tmp_path, "theirs", "1.5", entry="theirs = theirs:PLUGIN", module=PLUGIN)
    code = "from xpuruntime.engines import lookup, engine_names; p = lookup('theirs'); print(p.title, p.installed().ok, engine_names())"
    assert run(tmp_path, code).startswith(
        "Theirs True ('onnxruntime', 'openvino', 'tensorrt', 'qnn', 'native', 'theirs'"
    )


def test_names_of_third_parties_have_upper_and_lower_case(tmp_path: Path) -> None:
    distribution(tmp_path, "theirs", "1.5", entry="Theirs = theirs:PLUGIN", module=PLUGIN)
    code = "from xpuruntime.engines import lookup; print(lookup('Theirs').title, lookup('theirs').title)"
    assert run(tmp_path, code).strip() == "Theirs Theirs"


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            "raise RuntimeError('broken on purpose')",
            "its plugin cannot be imported; got RuntimeError: broken on purpose. Repair",
        ),
        ("PLUGIN = 3", "its entry point must name an xpuruntime.plugins.EnginePlugin; got int. Repair"),
    ],
)
def test_a_broken_third_party_is_named(tmp_path: Path, module: str, text: str) -> None:
    distribution(tmp_path, "theirs", "1.5", entry="theirs = theirs:PLUGIN", module=module)
    code = "from xpuruntime.engines import lookup\ntry: lookup('theirs')\nexcept Exception as e: print(type(e).__name__, e)"
    assert f"EngineUnavailable [engine 'theirs'] {text}" in run(tmp_path, code)
