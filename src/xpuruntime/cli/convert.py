"""``xpu convert``: a policy of another tool to a policy file, or back. Exit 1 if an item is not carried."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import print_line, print_note, print_table, progress
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..workbench.interchange import Conversion

__all__ = ["convert"]

_FILES = "a policy file, or FORMAT:FILE with onnxruntime-layers, llama-ot, vllm-ir, tunableop or hf-kernels"


@command
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM", help=f"What is converted: {_FILES} (a folder). One of the two is foreign."
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="TO",
            help="Result: a policy file, or FORMAT:FILE. Default: report alone.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="MODEL.onnx", help="Model whose nodes onnxruntime-layers is about."),
    ] = None,
    annotated: Annotated[
        Path | None,
        typer.Option(
            "--annotated",
            metavar="OUT.onnx",
            help="With a policy and --model: copy of the model with an annotation at each placed node.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Convert a policy of another tool, or to one, and report what became of every item."""
    from ..policies.files.load import load_policy
    from ..storage.files import write_atomic
    from ..workbench.interchange import FORMATS, read_foreign, write_foreign

    form, path = _split(source)
    to_form, to_path = _split(output or "")
    if bool(form) == bool(to_form):
        hint = "exactly one of FROM and TO is FORMAT:FILE; the other is a policy file"
        raise typer.BadParameter(hint, param_hint="FROM")
    if annotated is not None and (model is None or not to_form):
        raise typer.BadParameter("needs --model and a TO of onnxruntime-layers", param_hint="--annotated")
    foreign = form or to_form
    if model is not None and foreign in FORMATS and not FORMATS[foreign].needs_model:
        raise typer.BadParameter(f"{foreign} needs no model", param_hint="--model")
    if output and form in FORMATS and FORMATS[form].read is None:
        raise typer.BadParameter(f"{form} has a report alone", param_hint="--output")
    with progress(f"converting {source}"):
        if form:
            result = read_foreign(form, path, model=model)
            if to_path:
                result.policy.save(to_path)
        else:
            policy = load_policy(path)
            result = write_foreign(to_form, policy, path, model=model, annotated=annotated)
            write_atomic(to_path, result.text.encode())
    if output:
        print_note(f"wrote {to_path}")
    if annotated is not None:
        print_note(f"wrote {annotated}")
    code = ExitCode.NO if result.lost else ExitCode.OK
    return CommandResult(result.to_json(), lambda: _show(result), code)


def _split(text: str) -> tuple[str, str]:
    """Return format and file of ``FORMAT:FILE``; a text without a format's colon is a file."""
    form, colon, path = text.partition(":")
    plain = not colon or "/" in form or "." in form or Path(text).exists()
    return ("", text) if plain else (form, path)


def _show(result: Conversion) -> None:
    rows = []
    for item in result.items:
        at = f"{item.line}:{item.column}" if item.line else ""
        why = f"{item.reason}. {item.remedy}" if item.remedy else item.reason
        rows.append((at, item.text, item.outcome.value, item.becomes, why))
    if rows:
        print_table("", ("line", "item", "outcome", "becomes", "reason"), rows)
    print_line(result.sentence)
