"""`import xpuruntime` opens no library and imports no vendor; a session imports the one engine that it was given."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from xpuruntime import __all__ as public

VENDORS = (
    "torch",
    "onnx",
    "onnxruntime",
    "onnxruntime_qnn",
    "openvino",
    "tensorrt",
    "transformers",
    "matplotlib",
    "jinja2",
    "typer",
    "rich",
)
LIBRARIES = (
    "libcuda",
    "libnvrtc",
    "libcublas",
    "libcudnn",
    "libnvToolsExt",
    "libnvtx",
    "_core.",
    "libonnxruntime",
    "libopenvino",
)

REPORT = """
import json, sys
loaded = sorted(sys.modules)
with open("/proc/self/maps") as maps:
    mapped = sorted({line.split()[-1] for line in maps if ".so" in line})
print(json.dumps([loaded, mapped]))
"""


def after(program: str) -> tuple[list[str], list[str]]:
    """Modules and shared libraries of a fresh interpreter that ran the program."""
    done = subprocess.run(
        [sys.executable, "-c", program + REPORT], capture_output=True, text=True, check=True, timeout=120
    )
    loaded, mapped = json.loads(done.stdout.splitlines()[-1])
    return loaded, mapped


def test_importing_the_package_loads_itself_and_nothing_else() -> None:
    loaded, mapped = after("import xpuruntime\n")
    assert [m for m in loaded if m.startswith("xpuruntime")] == ["xpuruntime"]
    assert [m for m in loaded if m.partition(".")[0] in VENDORS] == []
    assert [m for m in mapped if any(name in m for name in LIBRARIES)] == []


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", [n for n in public if n != "__version__"])
def test_a_public_name_brings_no_vendor(name: str) -> None:
    """One process for all of them would hide which name is guilty; 0.1 s each is fine."""
    loaded, mapped = after(f"import xpuruntime\nxpuruntime.{name}\n")
    assert [m for m in loaded if m.partition(".")[0] in VENDORS] == []
    assert [m for m in mapped if any(library in m for library in LIBRARIES if library != "_core.")] == []


def test_the_table_of_engines_is_read_without_any_engine() -> None:
    program = (
        "from xpuruntime.engines import ENGINES, lookup\nassert 'onnxruntime' in ENGINES\nlookup('onnxrt')\n"
    )
    loaded, mapped = after(program)
    assert [m for m in loaded if m.partition(".")[0] in VENDORS] == []
    assert [m for m in mapped if any(name in m for name in LIBRARIES)] == []


@pytest.mark.parametrize("package", ["inference", "codegen"])
def test_importing_a_package_of_lazy_names_loads_none_of_them(package: str) -> None:
    loaded, mapped = after(f"import xpuruntime.{package}\n")
    ours = [m for m in loaded if m.startswith("xpuruntime.")]
    assert sorted(ours) == sorted([f"xpuruntime.{package}", "xpuruntime.lazy"])
    assert [m for m in mapped if any(name in m for name in LIBRARIES)] == []
