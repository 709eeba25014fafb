"""Help texts: every engine and kind of model file is named, and each group of options becomes options of the command."""

from __future__ import annotations

import dataclasses

import pytest
import typer

from xpuruntime.cli import options
from xpuruntime.cli.app import app
from xpuruntime.engines import ENGINES, lookup
from xpuruntime.inference.models.programs import SUFFIX

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def flags(command: str) -> set[str]:
    return {flag for p in COMMANDS[command].params for flag in (*p.opts, *p.secondary_opts)}


@pytest.mark.parametrize("command", ["run", "explain", "compare", "bench"])
def test_help_names_every_engine_and_kind_of_model_file(xpu, command: str) -> None:
    text = xpu(command, "--help").stdout
    for word in (*ENGINES, ".onnx", ".xml", SUFFIX):
        assert word in text


def test_every_format_of_an_engine_that_is_a_file_has_words() -> None:
    formats = {f for name in ENGINES for f in lookup(name).formats}
    assert formats - {"graph"} == set(options.FILES_OF_FORMATS)  # A graph is a value in memory.


@pytest.mark.parametrize(
    ("command", "groups"),
    [
        ("run", (options.EngineFlags, options.SessionFlags, options.InputFlags)),
        ("explain", (options.EngineFlags, options.SessionFlags)),
        ("compare", (options.EngineListFlags, options.SessionFlags, options.InputFlags)),
        ("bench", (options.EngineListFlags, options.SessionFlags, options.InputFlags)),
    ],
)
def test_a_command_has_the_options_of_its_groups(command: str, groups: tuple[type, ...]) -> None:
    names = {p.name for p in COMMANDS[command].params}
    for group in groups:
        assert {f.name for f in dataclasses.fields(group)} <= names


def test_flags_of_run() -> None:
    assert flags("run") == {
        "model", "--engine", "-e", "--device", "-d", "--allow-fallback", "--fp16", "--strict", "--no-strict", "--policy",
        "--precision", "--threads", "--cache-dir", "--compile-timeout", "--tune", "--run-timeout", "--input", "-i", "--seed", "--shape",
        "--image-size", "--image-mean", "--image-std", "--image-layout", "--image-range", "--output", "-o", "--top-k", "--receipt",
        "--save-receipt", "--html", "--lock", "--trace", "--json",
    }  # fmt: skip


@pytest.mark.parametrize("command", ["devices", "doctor"])
def test_paths_are_shown_with_verbose_only(xpu, command: str) -> None:
    brief, full = xpu(command), xpu(command, "-v")
    assert (brief.code, full.code) == (0, 0)
    assert ".so" not in brief.stdout
    assert ".so" in full.stdout
    assert len(full.stdout.splitlines()) > len(brief.stdout.splitlines())


def test_devices_has_one_line_per_library(xpu) -> None:
    document = xpu("devices", "--json").json
    lines = xpu("devices").stdout.splitlines()
    for library in document["libraries"]:
        (line,) = [text for text in lines if text.startswith(f"{library['title']} ")]
        assert ("loaded" in line) == (library["status"]["code"] == "ok")
