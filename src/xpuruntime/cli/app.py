"""The application ``xpu`` and its table of commands.

A command's module is imported when the command runs or when its help is printed, and imports the workbench when it runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from .exit_codes import MEANINGS

__all__ = ["app"]

# In the order of the help text. The module cli/NAME.py defines NAME: a function, or a Typer application with commands of its own.
_COMMANDS = (
    "devices",
    "doctor",
    "run",
    "generate",
    "chat",
    "compile",
    "quantize",
    "inspect",
    "verify",
    "explain",
    "diff",
    "check",
    "lint",
    "lock",
    "convert",
    "tune",
    "compare",
    "bisect",
    "certify",
    "bench",
    "conformance",
    "cache",
)

_CODES = "\n\n".join(f"{int(code):>3}  {meaning}" for code, meaning in MEANINGS.items())


class _Commands(Mapping[str, Any]):
    """The commands by name. Each is imported at its first use."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in _COMMANDS:
            raise KeyError(name)
        if name not in self._loaded:
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


def _load(name: str) -> Any:
    """Import a command and return Typer's object for it."""
    entry = getattr(importlib.import_module(f".{name}", __package__), name)
    if not isinstance(entry, typer.Typer):
        function, entry = entry, typer.Typer(add_completion=False)
        entry.command(cls=_Command)(function)
    command = typer.main.get_command(entry)
    command.name = name
    return command


class _Group(TyperGroup):
    """The group of all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": _Commands()})

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands without importing them."""
        return list(self.commands)

    def get_help_option(self, ctx: Any) -> Any:
        """Return ``--help`` with a default."""
        return _without_conversion(super().get_help_option(ctx))


class _Command(TyperCommand):
    """One command."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return ``--help`` with a default."""
        return _without_conversion(super().get_help_option(ctx))


def _without_conversion(option: Any) -> Any:
    """Give a flag the default False. Typer imports pydantic (60 ms) to convert None."""
    if option is not None:
        option.default = False
    return option


app = typer.Typer(
    name="xpu",
    cls=_Group,
    help="Run a model on the engine of your choice and see exactly what ran.",
    epilog=f"Exit codes\n\n{_CODES}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"xpu {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Run a model on the engine of your choice and see exactly what ran."""
