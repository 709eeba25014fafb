"""``xpu bisect``: find the node, or the policy change, that makes two sides differ. Exit 1 if they differ."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import print_line, print_note, print_table, print_warning, progress
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..workbench.bisect.report import Bisection

__all__ = ["bisect"]

_SIDES = "Sides"


@command
def bisect(
    model: Annotated[
        str, typer.Argument(metavar="A", help="A model (.onnx) or a compiled program (.npubin).")
    ],
    inputs: options.InputFlags,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="[B]", help="Model or program to compare with. Default: A itself.", show_default=False
        ),
    ] = None,
    engine_a: Annotated[
        str | None,
        typer.Option(
            "--engine-a",
            metavar="ENGINE",
            help="Engine of A, or reference: the interpreter.",
            rich_help_panel=_SIDES,
        ),
    ] = None,
    engine_b: Annotated[
        str | None,
        typer.Option(
            "--engine-b",
            metavar="ENGINE",
            help="Engine of B, or reference. Default: A's; reference if nothing else differs.",
            rich_help_panel=_SIDES,
        ),
    ] = None,
    policy_a: Annotated[
        Path | None, typer.Option("--policy-a", metavar="FILE", help="Policy of A.", rich_help_panel=_SIDES)
    ] = None,
    policy_b: Annotated[
        Path | None, typer.Option("--policy-b", metavar="FILE", help="Policy of B.", rich_help_panel=_SIDES)
    ] = None,
    precision_a: Annotated[
        str | None,
        typer.Option(
            "--precision-a", metavar="PRECISION", help="Required precision of A.", rich_help_panel=_SIDES
        ),
    ] = None,
    precision_b: Annotated[
        str | None,
        typer.Option(
            "--precision-b", metavar="PRECISION", help="Required precision of B.", rich_help_panel=_SIDES
        ),
    ] = None,
    device: options.Device = None,
    threads: options.Threads = None,
    cache_dir: options.CacheDir = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="node|policy",
            help="Search for the first value that differs, or first for the smallest policy change."
            " Default: policy for one model under two policies.",
        ),
    ] = None,
    tolerance: options.Tolerance = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FOLDER",
            help="New folder for the reproduction. Default: the model's name with -bisect.",
        ),
    ] = None,
    no_save: Annotated[bool, typer.Option("--no-save", help="Write no reproduction.")] = False,
    html: options.Html = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Find the first node whose values differ between two sides, and save a model, policy and inputs that repeat it alone."""
    if by not in (None, "node", "policy"):
        raise typer.BadParameter(f"must be node or policy; got {by!r}", param_hint="--by")
    if tolerance is not None and not tolerance < float("inf"):
        raise typer.BadParameter(f"must be a finite number; got {tolerance}", param_hint="--tolerance")
    if save is not None and no_save:
        raise typer.BadParameter("--save and --no-save exclude each other")
    source = inputs.to_inputs()
    from ..workbench.bisect.bisection import bisect as bisect_sides
    from ..workbench.values.reference_values import REFERENCE
    from ..workbench.values.side import Side, open_source

    if device is None and policy_a is None and policy_b is None:
        device = "cpu"
    if other is None and engine_b is None and policy_a == policy_b and precision_a == precision_b:
        engine_b = REFERENCE
    first = open_source(model)
    second = first if other is None else open_source(other)
    common = {"device": device, "threads": threads, "cache_dir": cache_dir}
    a = Side(first, engine=engine_a, policy=policy_a, precision=precision_a, **common)  # type: ignore[arg-type]
    b = Side(second, engine=engine_b or engine_a, policy=policy_b, precision=precision_b, **common)  # type: ignore[arg-type]
    folder = None if no_save else save or _new_folder(first.name)
    with progress(f"bisecting {model}") as update:
        feeds = source.samples(first.inputs)[0]
        result = bisect_sides(a, b, feeds, by=by, tolerance=tolerance, save=folder, progress=update)
    if html is not None:
        from ..workbench.pages.bisect_page import bisect_page
        from ..workbench.pages.page import write_page

        write_page(html, bisect_page(result, first))
        print_note(f"wrote {html}")
    document = result.to_json() | {"inputs": source.describe(first.inputs)}
    return CommandResult(document, lambda: _show(result), ExitCode.OK if result.ok else ExitCode.NO)


def _new_folder(name: str) -> Path:
    """Return a folder in the current one that does not exist yet, named after the model."""
    stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".") or "model"
    return next(
        p
        for k in itertools.count(1)
        if not (p := Path(f"{stem}-bisect" + (f"-{k}" if k > 1 else ""))).exists()
    )


def _show(result: Bisection) -> None:
    print_line(f"A: {result.actual}")
    print_line(f"B: {result.reference}")
    trials = f", {result.trials} sessions for the policies" if result.trials else ""
    print_line(
        f"{result.values} values that both sides show, {result.runs} runs of at most {result.bound}{trials}"
    )
    print_line()
    node = result.node
    if node is not None:
        s = node.statistics
        cosine = "" if s.cosine is None else f"{s.cosine:.9f}"
        rows = [
            ("value", node.value),
            ("nodes", ", ".join(node.nodes)),
            ("ops", "+".join(node.ops)),
            ("kernels", " against ".join(k or "not reported" for k in node.kernels)),
            ("source", node.source or "not kept by the model"),
            ("max|d|", f"{s.max_abs:.3g}"),
            ("max|d|/max|ref|", f"{s.max_rel:.3g}, tolerance {node.tolerance:.3g}"),
            ("cosine", cosine),
            (
                "elements",
                f"{s.mismatched} of {s.elements} differ, NaN {s.nans[0]} and {s.nans[1]}, infinite {s.infs[0]} and {s.infs[1]}",
            ),
        ]
        print_table("First value that differs", ("", ""), rows)
    if result.reproduction is not None:
        saved = result.reproduction
        print_line(f"saved {saved.folder} ({saved.scope}); run there: {saved.command}")
    for text in result.notes:
        print_warning(text)
    print_line(result.sentence)
