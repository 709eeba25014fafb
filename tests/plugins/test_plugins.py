"""Plugins are strings until chosen; whether one is installed is learned without importing it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.decisions import Reason
from xpuruntime.plugins.loader import EnginePlugin, entry_points, load_dotted, package_version, version_key

# NumPy acts as the vendor here: it is installed for certain, and its version is a fact.
NUMPY = EnginePlugin(
    name="np",
    title="NumPy",
    aliases=(),
    package=("no-such-distribution", "numpy"),
    module="numpy",
    install="pip install numpy",
    versions=("1.0", "99"),
    formats=("onnx",),
    entry="numpy.linalg:norm",
)


def test_an_installed_package_in_range() -> None:
    assert NUMPY.installed()
    assert NUMPY.version() == np.__version__ == package_version("numpy")
    assert NUMPY.load() is np.linalg.norm


@pytest.mark.parametrize("module", ["no_such_vendor", "no_such_vendor.python", "numpy.no_such_part"])
def test_a_missing_package_says_how_to_install_it(module: str) -> None:
    support = replace(NUMPY, module=module).installed()
    assert (support.ok, support.code) == (False, Reason.NOT_INSTALLED)
    assert support.reason == f"the Python package {module!r} is not installed"
    assert support.do == "Run: pip install numpy"


def test_a_version_outside_the_range_says_which_is_there() -> None:
    for versions in (("99", "100"), ("0.1", "1.0"), ("0.1", np.__version__)):
        support = replace(NUMPY, versions=versions).installed()
        assert support.code is Reason.VERSION_UNSUPPORTED
        assert (
            f"numpy {np.__version__} is installed; supported versions are >= {versions[0]}" in support.reason
        )
    assert replace(NUMPY, versions=(np.__version__, "99")).installed()


def test_a_distribution_that_records_no_version_is_taken() -> None:
    assert replace(NUMPY, package=("no-such-distribution",)).version() is None
    assert replace(NUMPY, package=("no-such-distribution",)).installed()


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=4),
    st.lists(st.integers(0, 3000), min_size=1, max_size=4),
)
def test_versions_compare_as_numbers_and_trailing_zeros_say_nothing(a: list[int], b: list[int]) -> None:
    pad = [(*a, *[0] * (4 - len(a))), (*b, *[0] * (4 - len(b)))]
    left, right = (version_key(".".join(map(str, v))) for v in (a, b))
    assert (left < right) == (pad[0] < pad[1])
    assert (left == right) == (pad[0] == pad[1])


@pytest.mark.parametrize(
    ("text", "key"),
    [("2026.4.1-rc2", (2026, 4, 1)), ("1.18.0rc1", (1, 18)), ("1.31.1+cpu", (1, 31, 1)), ("none", ())],
)
def test_version_key(text: str, key: tuple[int, ...]) -> None:
    assert version_key(text) == key


def test_dotted_names() -> None:
    assert load_dotted("numpy") is np
    assert load_dotted("numpy:linalg.norm") is np.linalg.norm
    with pytest.raises(ImportError):
        load_dotted("no_such_module:thing")
    with pytest.raises(AttributeError):
        load_dotted("numpy:no_such_thing")


def test_a_third_party_comes_in_by_an_entry_point_and_is_not_imported_until_loaded(tmp_path: Path) -> None:
    info = tmp_path / "other_vendor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-vendor\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[xpuruntime.engines]\nother = other_vendor:PLUGIN\n")
    (tmp_path / "other_vendor.py").write_text("PLUGIN = 'loaded'\n")
    program = """
        import sys
        from xpuruntime.plugins.loader import entry_points
        found = entry_points("xpuruntime.engines")
        assert "other" in found, found
        assert "other_vendor" not in sys.modules
        print(found["other"]())
    """
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + textwrap.dedent(program),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "loaded"), done.stderr


def test_entry_points_of_an_unknown_group_are_none() -> None:
    assert entry_points("xpuruntime.no_such_group") == {}
    assert importlib.metadata.entry_points(group="xpuruntime.no_such_group") == ()
