"""The application ``xpu`` and its table of commands. Commands import the workbench when they run, which keeps ``xpu --help`` fast."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from .bench import bench
from .bisect import bisect
from .cache import cache
from .certify import certify
from .check import check
from .compare import compare
from .compile import compile as compile_
from .conformance import conformance
from .devices import devices
from .diff import diff
from .doctor import doctor
from .exit_codes import MEANINGS
from .explain import explain
from .generate import generate
from .inspect import inspect
from .lint import lint
from .lock import lock
from .quantize import quantize
from .run import run
from .tune import tune
from .verify import verify

__all__ = ["app"]

_CODES = "\n\n".join(f"{int(code):>3}  {meaning}" for code, meaning in MEANINGS.items())


class _Group(TyperGroup):
    """The group of all commands."""

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

for _command in (
    devices,
    doctor,
    run,
    generate,
    compile_,
    quantize,
    inspect,
    verify,
    explain,
    diff,
    check,
    lint,
    lock,
    tune,
    compare,
    bisect,
    certify,
    bench,
    conformance,
):
    app.command(cls=_Command)(_command)
app.add_typer(cache, name="cache")


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
