"""The environment is one table; a bad value is an error that names the variable."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime import env
from xpuruntime.errors import PolicyError


def test_every_variable_has_our_prefix_and_a_meaning() -> None:
    for name, variable in env.VARIABLES.items():
        assert name == variable.name
        assert name.startswith("XPU_")
        assert len(variable.meaning) > 10


def test_no_module_reads_the_environment_past_the_table() -> None:
    """XPU_TEST_* are hooks of tests, which users never set."""
    source = Path(env.__file__).parent
    for path in source.rglob("*.py"):
        for name in re.findall(r"\bXPU_(?!TEST_)[A-Z0-9_]+\b", path.read_text(encoding="utf-8")):
            assert name in env.VARIABLES, f"{path.relative_to(source)} names {name}"


def test_a_name_outside_the_table_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        env.get("XPU_NO_SUCH_THING")


@pytest.mark.parametrize(("text", "value"), [("", None), ("  ", None), ("1", 1), (" 8 ", 8), ("064", 64)])
def test_integers(monkeypatch: pytest.MonkeyPatch, text: str, value: int | None) -> None:
    monkeypatch.setenv("XPU_NUM_THREADS", text)
    assert env.get_int("XPU_NUM_THREADS") == value


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "two", "1e3", "0x10", "9" * 5000, "²"])
def test_bad_integers_name_the_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("XPU_NUM_THREADS", text)
    with pytest.raises(PolicyError) as caught:
        env.get_int("XPU_NUM_THREADS")
    assert caught.value.who == "environment XPU_NUM_THREADS"
    assert caught.value.what == "must be a positive integer"
    assert caught.value.got == repr(text)
    assert "threads per session" in caught.value.do


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1024", 1024),
        ("4GiB", 4 << 30),
        ("512 mib", 512 << 20),
        ("1.5 KiB", 1536),
        ("1GB", 10**9),
        ("0", 0),
        ("7B", 7),
    ],
)
def test_sizes(monkeypatch: pytest.MonkeyPatch, text: str, value: int) -> None:
    monkeypatch.setenv("XPU_CACHE_BYTES", text)
    assert env.get_bytes("XPU_CACHE_BYTES") == value


@pytest.mark.parametrize(
    "text", ["GiB", "-1GiB", "4 gibibytes", "nan", "inf", "1e99", "four", "4GiB!", "99999999TiB"]
)
def test_bad_sizes_name_the_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("XPU_CACHE_BYTES", text)
    with pytest.raises(
        PolicyError, match=r"\[environment XPU_CACHE_BYTES\] must be a size such as 4GiB; got "
    ):
        env.get_bytes("XPU_CACHE_BYTES")


@given(st.integers(0, 2**59), st.sampled_from(["", "B", "KiB", "MiB", "GiB"]))
def test_whole_sizes_are_exact(value: int, unit: str) -> None:
    scale = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    count = value // scale
    if count < 2**53:
        assert env.parse_bytes(f"{count}{unit}") == count * scale


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert env.parse_bytes(text) >= 0


def test_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XPU_POLICY", "~/p.yaml")
    assert env.get_path("XPU_POLICY") == Path("/home/me/p.yaml")
    monkeypatch.setenv("XPU_POLICY", "")
    assert env.get_path("XPU_POLICY") is None
    monkeypatch.setenv("XPU_POLICY", "~no-such-user-here/p.yaml")
    with pytest.raises(PolicyError, match=r"\[environment XPU_POLICY\] must be a path"):
        env.get_path("XPU_POLICY")


def test_defaults_hold_when_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in env.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert env.get_bytes("XPU_CACHE_BYTES") == 4 << 30
    assert env.get_int("XPU_NUM_THREADS") is None
    assert env.get_int("XPU_AUTO_SECONDS") == 20
    assert env.get("XPU_CACHE_MODE") == "rw"
