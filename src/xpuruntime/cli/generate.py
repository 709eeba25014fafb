"""``xpu generate``: generate text with a language model."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .command import CommandResult, command
from .console import print_line, print_note, print_text, progress, save_json, write_generated
from .generation_flags import GenerationFlags
from .generator_flags import Explain, GeneratorFlags, Receipt, ReceiptFile

if TYPE_CHECKING:
    from ..llm.answers import Completion, SpokenSegment
    from ..llm.decoding.words import GenerationOptions
    from ..llm.generate import Generator

__all__ = ["generate"]

_MAX_BATCH = 8
"""Most answers that are decoded together."""


@command
def generate(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A folder with config.json and safetensors, or a .gguf file."),
    ],
    words: GenerationFlags,
    opening: GeneratorFlags,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Prompt.")] = "",
    audio: Annotated[
        Path | None,
        typer.Option(
            "--audio",
            metavar="FILE",
            help="A WAV file at 16 kHz instead of a prompt, for a model that reads audio.",
        ),
    ] = None,
    return_timestamps: Annotated[
        bool | None,
        typer.Option(help="Print when each segment of the speech is spoken, for a model that reads audio."),
    ] = None,
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
    explain: Explain = False,
    receipt: Receipt = False,
    receipt_file: ReceiptFile = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Generate text from a prompt."""
    from ..errors import InputError

    who = f"generate {model}"
    opening.check(who)
    if dispatches:
        return _dispatches(model, opening)
    from ..llm.audio import read_wav
    from ..llm.checkpoint.reader import open_checkpoint
    from ..llm.decoding.texts import options_of

    if not prompt and not explain and audio is None:
        do = "Give --prompt TEXT, --audio FILE, --explain or --dispatches."
        raise InputError(who, "no prompt is given", do=do)
    if prompt and audio is not None:
        raise InputError(who, "takes a prompt or audio, not both", do="Omit --prompt or --audio.")
    streamed, given = stream and not as_json, words.words()
    if return_timestamps is not None:
        given["return_timestamps"] = return_timestamps
    with progress(f"opening {model}") as update:
        checkpoint = open_checkpoint(model)
        decided = options_of(checkpoint, given)  # also by a generation config
        count = max(decided.samples, decided.num_beams)
        if streamed and count > 1:
            do = "Omit --stream."
            raise InputError(who, "--stream shows one answer without beam search", got=count, do=do)
        batch = count if decided.num_beams > 1 else min(count, _MAX_BATCH)
        generator = opening.open(checkpoint, batch=batch)
        if explain:
            with generator:
                return _explained(generator, decided)
        text = generator.checkpoint.text
        request: Any = [{"role": "user", "content": prompt}] if chat and text and text.template else prompt
        if audio is not None:
            request = read_wav(audio)
        update("generating")
        answers = [] if streamed else generator.generate([request], **given)
    with generator:
        if streamed:  # After the progress line has gone.
            answers = [generator.generate(request, on_piece=write_generated, **given)]
            sys.stdout.write("\n")
        ran = generator.receipt() if receipt or receipt_file is not None else None
    if ran is not None and receipt_file is not None:
        save_json(receipt_file, ran.to_json())
        print_note(f"wrote {receipt_file}")
    document = {
        "model": generator.checkpoint.name,
        "precision": generator.dtype.value,
        **_facts(answers[0]),
        "dispatches_per_token": len(generator.decode.plan.calls),
    }
    if len(answers) > 1:
        document["answers"] = [_facts(a) for a in answers]
    if receipt and ran is not None:
        document["receipt"] = ran.to_json()

    def show() -> None:
        for answer in answers:
            if answer.segments:
                write_generated("".join(f"{_segment(s)}\n" for s in answer.segments))
            elif not streamed:
                write_generated(answer.text + "\n")
            print_note(
                f"prefill: {answer.prompt_tokens} tokens in {answer.prefill_s:.2f} s; "
                f"decode: {len(answer.tokens)} tokens at {answer.tokens_per_second:.1f}/s ({answer.finish})"
            )
        if receipt and ran is not None:
            print_text(ran.text())

    return CommandResult(document, show)


def _segment(segment: SpokenSegment) -> str:
    """Return the line of a segment: ``start - end  text``, without an end if the answer has none."""
    end = "" if segment.end is None else f"{segment.end:.2f}"
    return f"{segment.start:6.2f} - {end:>6}  {segment.text.strip()}"


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
    if answer.segments:
        facts["segments"] = [asdict(s) for s in answer.segments]
    return facts if answer.score is None else {**facts, "score": answer.score}


def _explained(generator: Generator, decided: GenerationOptions) -> CommandResult:
    """Return the plan of the entry points that a generation with these options runs."""
    from ..llm.build import SAMPLE

    if decided.on_device and not decided.most_likely:
        generator.steps.executor(SAMPLE)
    plan = generator.plan
    document = {"decisions": [d.to_json() for d in plan.decisions], "plan": plan.to_json()}
    return CommandResult(document, lambda: print_text(plan.explain()))


def _dispatches(model: str, opening: GeneratorFlags) -> CommandResult:
    """Return the table of kernel calls per token after each fusion. No weights are read."""
    from pathlib import Path

    from ..llm.checkpoint.reader import read_config
    from ..llm.dispatches import dispatch_table
    from ..types import DType

    path = Path(model)
    config = read_config(path / "config.json" if path.is_dir() else path)
    with progress(f"compiling {path.name} once per fusion"):
        rows = dispatch_table(
            config,
            capacity=opening.capacity or min(config.max_positions, 2048),
            target=opening.device,
            dtype=None if opening.precision is None else DType.of(opening.precision),
            policy=opening.policy,
        )

    def show() -> None:
        print_line(f"{'after':24}{'dispatches':>11}  what it does")
        for row in rows:
            print_line(f"{row.after:24}{row.dispatches:11}  {row.meaning}")

    return CommandResult({"model": model, "rows": [asdict(r) for r in rows]}, show)
