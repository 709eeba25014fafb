"""``xpu quantize``: quantize a float model to int8 with calibration data. Exit 1 if the error is over the budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import print_line, print_table, progress
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..workbench.quantize.report import QuantizeReport

__all__ = ["quantize"]

_ROWS = 12
"""Rows of the table; ``--json`` has all nodes."""


@command
def quantize(
    model: options.Model,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="FOLDER|FILE.npz",
            help="Calibration samples: a folder with a file per sample, or a .npz file with samples along the first axis.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUT.onnx", help="Quantized model; its policy is stored next to it."
        ),
    ],
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="Use at most this number of samples. Default: all.")
    ] = None,
    activations: Annotated[
        str,
        typer.Option(
            "--activations",
            metavar="uint8|int8|uint16",
            help="Type of activations: uint8 and uint16 are asymmetric, int8 symmetric. uint16 is for NPUs.",
        ),
    ] = "uint8",
    method: Annotated[
        str,
        typer.Option(
            "--method", metavar="minmax|entropy|percentile", help="How ranges of activations are chosen."
        ),
    ] = "minmax",
    smoothing: Annotated[
        float | None,
        typer.Option(
            "--smoothing",
            metavar="0..1",
            help="Share of an activation's range that moves into the weights after layer norms. Default: 0.5.",
        ),
    ] = None,
    gptq: Annotated[
        bool,
        typer.Option(
            "--gptq/--no-gptq",
            help="Choose the codes of weights by the calibration data (GPTQ); otherwise the nearest codes.",
        ),
    ] = True,
    correct_biases: Annotated[
        bool,
        typer.Option(
            "--correct-biases/--keep-biases",
            help="Add the mean error that rounded weights make to the biases.",
        ),
    ] = True,
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            metavar="E",
            help="Budget for the relative error of the outputs. Products that add most error stay in floats until it is met.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="NODE", help="Node that stays in floats. Repeatable."),
    ] = None,
    per_tensor: Annotated[
        bool, typer.Option("--per-tensor", help="Use one scale per weight, not one per output channel.")
    ] = False,
    image_size: options.ImageSize = None,
    image_mean: options.ImageMean = "0",
    image_std: options.ImageStd = "1",
    image_layout: options.ImageLayout = None,
    image_range: options.ImageRange = "0,1",
    as_json: options.AsJson = False,
) -> CommandResult:
    """Write an ONNX model with QuantizeLinear and DequantizeLinear, and a policy that demands integer arithmetic."""
    flags = options.InputFlags(
        image_size=image_size,
        image_mean=image_mean,
        image_std=image_std,
        image_layout=image_layout,
        image_range=image_range,
    )
    recipe = flags.to_inputs().image
    from ..workbench.quantize import quantize as quantize_model

    with progress(f"quantizing {model}") as update:
        report = quantize_model(
            model,
            data,
            output,
            image=recipe,
            samples=samples,
            activations=activations,
            per_channel=not per_tensor,
            method=method,
            smoothing=smoothing,
            gptq=gptq,
            correct_biases=correct_biases,
            max_error=max_error,
            exclude=tuple(exclude or ()),
            progress=update,
        )
    return CommandResult(report.to_json(), lambda: _show(report), ExitCode.OK if report.ok else ExitCode.NO)


def _show(report: QuantizeReport) -> None:
    kind = "int8" if report.activations.endswith("8") else f"int8, {report.activations} activations"
    rows = [
        (n.node, n.op, f"{n.error:.3g}", f"{n.added:.3g}", "float" if n.kept else kind)
        for n in report.nodes[:_ROWS]
    ]
    print_table(
        "products by added error", ("node", "op", "error", "added", "in"), rows, right=("error", "added")
    )
    if len(report.nodes) > _ROWS:
        print_line(f"... and {len(report.nodes) - _ROWS} more")
    if report.worst is not None:
        print_line(
            f"worst quantized node: {report.worst.node} ({report.worst.op}), adds {report.worst.added:.3g}"
        )
    budget = "" if report.max_error is None else f", the budget is {report.max_error:.3g}"
    smoothed = f"; {report.smoothed} norms smoothed" if report.smoothed else ""
    chosen = f"; {report.gptq} weights by GPTQ" if report.gptq else ""
    corrected = f"; {report.corrected} biases corrected" if report.corrected else ""
    print_line(
        f"error of the outputs over {report.samples} calibration samples: {report.error:.3g}{budget}"
        f"; {len(report.kept)} of {len(report.nodes)} products in floats{smoothed}{chosen}{corrected}"
    )
    if report.worst is None:
        print_line("no product is quantized: raise --max-error, or quantize another way")
    print_line(f"wrote {report.model} and {report.policy}")
