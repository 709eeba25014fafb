"""``xpu generate``: generate text with a language model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import printable
from . import options
from .command import CommandResult, command
from .console import print_line, print_note, progress

if TYPE_CHECKING:
    from ..llm.generate import Completion

__all__ = ["generate"]

_SAMPLING = "Sampling"
_PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """Options of sampling, and the number of tokens to generate."""

    max_new_tokens: Annotated[
        int,
        typer.Option(
            "--max-new-tokens", "-n", min=1, help="Most tokens to generate.", rich_help_panel=_SAMPLING
        ),
    ] = 128
    temperature: Annotated[
        float,
        typer.Option(min=0, help="Sampling temperature; 0: greedy decoding.", rich_help_panel=_SAMPLING),
    ] = 0.0
    top_k: Annotated[
        int,
        typer.Option(
            "--top-k",
            min=0,
            help="Sample from the K most likely tokens; 0: from all.",
            rich_help_panel=_SAMPLING,
        ),
    ] = 0
    top_p: Annotated[
        float,
        typer.Option(
            "--top-p",
            help="Sample from the fewest tokens with this total probability.",
            rich_help_panel=_SAMPLING,
        ),
    ] = 1.0
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the random choices.", rich_help_panel=_SAMPLING)
    ] = None


@command
def generate(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A folder with config.json and safetensors, or a .gguf file."),
    ],
    sampling: SamplingFlags,
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
    from ..llm.generate import Completion, Generator
    from ..types import DType

    if not prompt:
        raise InputError(f"generate {model}", "no prompt is given", do="Give --prompt TEXT, or --dispatches.")
    streamed = stream and not as_json
    with progress(f"opening {model}") as update:
        generator = Generator(
            model,
            capacity=capacity,
            dtype=precision and DType(precision),
            policy=policy,
            device=device,
            threads=threads,
        )
        text = generator.checkpoint.text
        request: Any = [{"role": "user", "content": prompt}] if chat and text and text.template else prompt
        update("generating")
        sampling_args: dict[str, Any] = {
            "max_new_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
        }
        result: Completion | None = None
        if not streamed:
            result = generator.generate(request, **sampling_args)
    with generator:
        if streamed:  # After the progress line has gone.
            result = generator.generate(request, on_piece=_write, **sampling_args)
            sys.stdout.write("\n")
    assert isinstance(result, Completion)
    completion = result
    document = {
        "model": generator.checkpoint.name,
        "precision": generator.dtype.value,
        "text": completion.text,
        "tokens": list(completion.tokens),
        "prompt_tokens": completion.prompt_tokens,
        "finish": completion.finish,
        "prefill_s": completion.prefill_s,
        "decode_s": completion.decode_s,
        "tokens_per_second": completion.tokens_per_second,
        "dispatches_per_token": len(generator.decode.plan.calls),
    }

    def show() -> None:
        if not streamed:
            _write(completion.text + "\n")
        print_note(
            f"prefill: {completion.prompt_tokens} tokens in {completion.prefill_s:.2f} s; "
            f"decode: {len(completion.tokens)} tokens at {completion.tokens_per_second:.1f}/s ({completion.finish})"
        )

    return CommandResult(document, show)


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
