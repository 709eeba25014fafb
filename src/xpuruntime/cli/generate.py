"""``xpu generate``: generate text with a language model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import printable
from . import options
from .command import CommandResult, command
from .console import print_line, print_note, progress
from .generation_flags import GenerationFlags

if TYPE_CHECKING:
    from ..llm.generate import Completion

__all__ = ["generate"]

_PRECISIONS = ("float32", "bfloat16", "float16")
_MAX_BATCH = 8
"""Most answers that are decoded together."""


@command
def generate(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A folder with config.json and safetensors, or a .gguf file."),
    ],
    words: GenerationFlags,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Prompt.")] = "",
    dispatches: Annotated[
        bool,
        typer.Option(
            "--dispatches",
            help="Only count kernel calls per token after each fusion. MODEL may be a config.json, --device a target such as cuda:sm_90.",
        ),
    ] = False,
    chat: Annotated[
        bool, typer.Option(help="Apply the model's chat template to the prompt, if it has one.")
    ] = True,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text as it is generated.")] = False,
    capacity: Annotated[
        int | None,
        typer.Option(min=1, help="Size of the KV cache in tokens, prompt included. Default: 2048."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help=f"Precision: {', '.join(_PRECISIONS)}. Default: the checkpoint's.",
            rich_help_panel="Engine and session",
        ),
    ] = None,
    device: options.Device = None,
    policy: options.Policy = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Generate text from a prompt."""
    from ..errors import InputError, PrecisionUnavailable

    if precision is not None and precision not in _PRECISIONS:
        do = f"Use one of {', '.join(_PRECISIONS)}."
        raise PrecisionUnavailable(f"generate {model}", "unsupported precision", got=precision, do=do)
    if dispatches:
        return _dispatches(model, capacity, device, precision, policy)
    from ..llm.checkpoint.reader import open_checkpoint
    from ..llm.decoding.texts import options_of
    from ..llm.generate import Generator
    from ..types import DType

    if not prompt:
        raise InputError(f"generate {model}", "no prompt is given", do="Give --prompt TEXT, or --dispatches.")
    streamed, given = stream and not as_json, words.words()
    with progress(f"opening {model}") as update:
        checkpoint = open_checkpoint(model)
        decided = options_of(checkpoint, given)  # also by a generation config
        count = max(decided.samples, decided.num_beams)
        if streamed and count > 1:
            do = "Omit --stream."
            raise InputError(
                f"generate {model}", "--stream shows one answer without beam search", got=count, do=do
            )
        generator = Generator(
            checkpoint,
            capacity=capacity,
            batch=count if decided.num_beams > 1 else min(count, _MAX_BATCH),
            dtype=precision and DType(precision),
            policy=policy,
            device=device,
            threads=threads,
        )
        text = generator.checkpoint.text
        request: Any = [{"role": "user", "content": prompt}] if chat and text and text.template else prompt
        update("generating")
        answers = [] if streamed else generator.generate([request], **given)
    with generator:
        if streamed:  # After the progress line has gone.
            answers = [generator.generate(request, on_piece=_write, **given)]
            sys.stdout.write("\n")
    document = {
        "model": generator.checkpoint.name,
        "precision": generator.dtype.value,
        **_facts(answers[0]),
        "dispatches_per_token": len(generator.decode.plan.calls),
    }
    if len(answers) > 1:
        document["answers"] = [_facts(a) for a in answers]

    def show() -> None:
        for answer in answers:
            if not streamed:
                _write(answer.text + "\n")
            print_note(
                f"prefill: {answer.prompt_tokens} tokens in {answer.prefill_s:.2f} s; "
                f"decode: {len(answer.tokens)} tokens at {answer.tokens_per_second:.1f}/s ({answer.finish})"
            )

    return CommandResult(document, show)


def _facts(answer: Completion) -> dict[str, Any]:
    """Return an answer as a document, with what its options ask for."""
    facts: dict[str, Any] = {
        "text": answer.text,
        "tokens": list(answer.tokens),
        "prompt_tokens": answer.prompt_tokens,
        "finish": answer.finish,
        "prefill_s": answer.prefill_s,
        "decode_s": answer.decode_s,
        "tokens_per_second": answer.tokens_per_second,
    }
    if answer.logprobs:
        facts["logprobs"] = [
            {"token": p.token, "logprob": p.logprob, "top": [list(pair) for pair in p.top]}
            for p in answer.logprobs
        ]
    return facts if answer.score is None else {**facts, "score": answer.score}


def _dispatches(
    model: str, capacity: int | None, target: str | None, precision: str | None, policy: Any
) -> CommandResult:
    """Return the table of kernel calls per token after each fusion. No weights are read."""
    from dataclasses import asdict
    from pathlib import Path

    from ..llm.checkpoint.reader import read_config
    from ..llm.dispatches import dispatch_table
    from ..types import DType

    path = Path(model)
    config = read_config(path / "config.json" if path.is_dir() else path)
    with progress(f"compiling {path.name} once per fusion"):
        rows = dispatch_table(
            config,
            capacity=capacity or min(config.max_positions, 2048),
            target=target,
            dtype=None if precision is None else DType.of(precision),
            policy=policy,
        )

    def show() -> None:
        print_line(f"{'after':24}{'dispatches':>11}  what it does")
        for row in rows:
            print_line(f"{row.after:24}{row.dispatches:11}  {row.meaning}")

    return CommandResult({"model": model, "rows": [asdict(r) for r in rows]}, show)


def _write(text: str) -> None:
    """Write generated text as it is; on a terminal, escape control characters."""
    sys.stdout.write(printable.text(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
