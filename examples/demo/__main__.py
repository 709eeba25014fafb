"""``python -m examples.demo``: real models on every engine of this machine. Exits with 1 when an answer is wrong
or the engine native exceeds its tolerance. Wrong results of other engines are listed."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from examples.zoo import CACHE, MODELS
from xpuruntime.errors import XpuError

app = typer.Typer(add_completion=False, rich_markup_mode=None)
BUILD = CACHE.parent


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Print progress on stderr: a changing line on a terminal, else one line per model."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("starting") as status:
            yield status.update
        return
    seen: set[str] = set()

    def once(text: str) -> None:
        head = text.partition(":")[0]
        if head not in seen:
            seen.add(head)
            sys.stderr.write(f"... {head}\n")

    yield once


def model_list(text: str) -> tuple[str, ...]:
    """Parse ``--models``. Raise typer.BadParameter for a name that the zoo does not have."""
    if text.strip().lower() == "all":
        return tuple(MODELS)
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name not in MODELS]
    if unknown or not names:
        unknown_name = unknown[0] if unknown else text
        raise typer.BadParameter(f"{unknown_name!r} is none of {', '.join(MODELS)}", param_hint="--models")
    return tuple(name for name in MODELS if name in names)


@app.command()
def main(
    engines: Annotated[
        str, typer.Option("--engines", metavar="all|NAME,NAME", help="Engines; a named one must be had.")
    ] = "all",
    models: Annotated[
        str, typer.Option("--models", metavar="all|NAME,NAME", help="Models of the zoo.")
    ] = "all",
    device: Annotated[str, typer.Option("--device", help="Device of every engine.")] = "cpu",
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the page goes.")] = BUILD
    / "demo",
    zoo: Annotated[
        Path, typer.Option("--zoo", metavar="FOLDER", help="Where the models' ONNX files are kept.")
    ] = CACHE,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0.1, help="Time to measure each model; default 3, quick 1.5."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure briefly and without the control.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Print every plan and receipt, not one of each.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as one JSON document instead.")
    ] = False,
) -> None:
    """Trained models on real inputs, on every engine: what each says, what ran, whether they agree, how fast."""
    from xpuruntime.cli.options import engine_list

    from . import page, terminal
    from .play import play

    names, named = engine_list(engines)
    model_names = model_list(models)
    try:
        with progress() as say:
            story = play(
                names,
                models=model_names,
                named=named,
                zoo=zoo,
                out=out,
                device=device,
                seconds=seconds or (1.5 if quick else 3.0),
                control=not quick,
                say=say,
            )
            say("writing the page")
            report = page.write(story, out / "report.html")
    except XpuError as error:
        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(error.exit_code) from None
    if as_json:
        sys.stdout.write(json.dumps(story.to_json(), indent=2) + "\n")
    else:
        terminal.show(story, report, full=full)
    if story.faults():
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
