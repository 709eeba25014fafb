"""``xpu``: the table of verbs. Verbs import the workbench when they run, so that ``xpu --help`` answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from .bench import bench
from .cache import cache
from .compare import compare
from .compile import compile as compile_
from .conformance import conformance
from .devices import devices
from .doctor import doctor
from .exit_codes import MEANINGS
from .explain import explain
from .generate import generate
from .inspect import inspect
from .run import run

__all__ = ["app"]

_CODES = "\n\n".join(f"{int(code):>3}  {meaning}" for code, meaning in MEANINGS.items())

app = typer.Typer(
    name="xpu",
    help="Run a model on whichever engine you choose, and know exactly what ran.",
    epilog=f"Exit codes\n\n{_CODES}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _verb in (devices, doctor, run, generate, compile_, inspect, explain, compare, bench, conformance):
    app.command()(_verb)
app.add_typer(cache, name="cache")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"xpu {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Run a model on whichever engine you choose, and know exactly what ran."""
