"""``python -m examples.zoo``: list the models, build their ONNX files, run them with ONNX Runtime alone, read a page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import CACHE, MODELS, ZooError, ZooModel, read_page
from .export import run_onnxruntime

console = Console()
app = typer.Typer(add_completion=False, rich_markup_mode=None)


def picked(name: str) -> list[ZooModel]:
    """Return the model of a name, or all models for ``all``."""
    if name == "all":
        return list(MODELS.values())
    if name not in MODELS:
        raise ZooError(
            "zoo", "there is no such model", got=name, do=f"Choose one of: {', '.join(MODELS)}, all."
        )
    return [MODELS[name]]


def listing(cache: Path) -> Table:
    """Return a table of all models with license and, if built, file size and max|d| / max|ref| against the source."""
    table = Table(title="The zoo", title_justify="left")
    table.add_column("name", no_wrap=True)
    for heading in ("task", "licence", "weights from"):
        table.add_column(heading, overflow="fold")
    table.add_column("MB", justify="right")
    table.add_column("against its source")
    for model in MODELS.values():
        card = model.card(cache)
        size = f"{card['bytes'] / 1e6:.1f}" if card else ""
        worst = card.get("worst")
        check = "not built" if not card else "as shipped" if worst is None else f"{worst:.1e}"
        table.add_row(model.name, model.task, model.licence, model.source, size, check)
    return table


def build(models: list[ZooModel], cache: Path) -> None:
    """Build the missing files, and print a line per model."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for model in models:
            task = progress.add_task(f"building {model.name}")
            start = time.perf_counter()
            model.onnx_path(cache)
            progress.remove_task(task)
            seconds = time.perf_counter() - start
            console.print(f"{model.name}: {model.card(cache)['check']} ({seconds:.1f} s)", highlight=False)


def run(models: list[ZooModel], cache: Path) -> bool:
    """Print each model's answer to each of its samples. Return True if all are right."""
    table = Table(title="ONNX Runtime, CPU", title_justify="left")
    for heading in ("model", "sample", "answer", "details", "right"):
        table.add_column(heading, overflow="fold")
    all_right = True
    for model in models:
        path = model.onnx_path(cache)
        for sample in model.samples():
            answer = model.interpret(run_onnxruntime(path, model.inputs(sample)), sample)
            right = answer.right(sample)
            all_right &= right
            parts = [f"{score:.3f} {text}" for text, score in answer.details]
            shown = "\n".join(parts[:5]) + (f"\n... {len(parts) - 5} more" if len(parts) > 5 else "")
            verdict = "yes" if right else f"no, expected {sample.expected}"
            table.add_row(model.name, sample.name, answer.headline, shown, verdict)
    console.print(table)
    return all_right


def read(image: Path, cache: Path) -> str:
    """Return the text of a page, read by the two OCR models."""
    from .ppocr_rec import symbols

    detector, recognizer = (MODELS[name].onnx_path(cache) for name in ("ppocr-det", "ppocr-rec"))

    def detect(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return run_onnxruntime(detector, inputs)

    def recognize(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return run_onnxruntime(recognizer, inputs)

    return read_page(image, detect, recognize, symbols()).text


@app.command()
def main(
    show_list: Annotated[
        bool, typer.Option("--list", help="List the models (what happens without options).")
    ] = False,
    build_name: Annotated[
        str | None,
        typer.Option("--build", metavar="NAME|all", help="Build the ONNX file of one model, or of all."),
    ] = None,
    run_name: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME|all", help="Run one model, or all, with ONNX Runtime itself."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--read", metavar="IMAGE", help="Read the text of a page.")
    ] = None,
    cache: Annotated[Path, typer.Option("--cache", help="Folder of the built files.")] = CACHE,
) -> None:
    """Trained models from registry packages, as ONNX files. Exits with 1 when an answer is wrong."""
    right = True
    try:
        if build_name is not None:
            build(picked(build_name), cache)
        if run_name is not None:
            build(picked(run_name), cache)
            right = run(picked(run_name), cache)
        if page is not None:
            console.print(read(page, cache), markup=False, highlight=False)
        if show_list or (build_name is None and run_name is None and page is None):
            console.print(listing(cache))
    except ZooError as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(error.exit_code) from None
    if not right:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
