"""``xpu generate``: a language model goes on with a prompt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import printable
from . import options
from .answer import Answer, verb
from .console import note, progress, say

if TYPE_CHECKING:
    from ..llm.generate import Completion

__all__ = ["generate"]


@verb
def generate(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A folder with config.json and safetensors, or a .gguf file."),
    ],
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The text to go on with.")] = "",
    dispatches: Annotated[
        bool,
        typer.Option(
            "--dispatches",
            help="Only count calls per token after each fusion; MODEL may be a config.json, --device a target such as cuda:sm_90.",
        ),
    ] = False,
    chat: Annotated[
        bool,
        typer.Option(
            help="The prompt is a question to the model's chat template; by default where it has one."
        ),
    ] = True,
    stream: Annotated[bool, typer.Option("--stream", help="Show the text as it comes.")] = False,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", min=1)] = 128,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the most likely token.")] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="Draw from that many; 0: from all.")] = 0,
    top_p: Annotated[
        float, typer.Option("--top-p", help="Draw from the fewest that make up this much.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Makes what is drawn the same every time.")] = None,
    capacity: Annotated[
        int | None, typer.Option(min=1, help="Room for prompt and answer, in tokens. By default 2048.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; by default the checkpoint's.")
    ] = None,
    device: options.Device = None,
    policy: options.Policy = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> Answer:
    """Go on with a text, token by token, on the native engine."""
    from ..errors import InputError, PrecisionUnavailable

    if precision is not None and precision not in ("float32", "bfloat16", "float16"):
        do = "float32, bfloat16 and float16 are."
        raise PrecisionUnavailable(f"generate {model}", "computes in no such type", got=precision, do=do)
    if dispatches:
        return _dispatches(model, capacity, device, precision, policy)
    from ..llm.generate import Completion, Generator
    from ..types import DType

    if not prompt:
        raise InputError(f"generate {model}", "needs a prompt", do="Give --prompt TEXT, or --dispatches.")
    shown = stream and not as_json
    with progress(f"opening {model}") as now:
        opened = Generator(
            model,
            capacity=capacity,
            dtype=precision and DType(precision),
            policy=policy,
            device=device,
            threads=threads,
        )
        text = opened.checkpoint.text
        asked: Any = [{"role": "user", "content": prompt}] if chat and text and text.template else prompt
        now("generating")
        sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        made: Completion | None = None
        if not shown:
            made = opened.generate(asked, max_new_tokens=max_new_tokens, **sampling)
    with opened:
        if shown:
            made = opened.generate(asked, max_new_tokens=max_new_tokens, on_piece=_write, **sampling)
            sys.stdout.write("\n")
    assert isinstance(made, Completion)
    answer = made
    document = {
        "model": opened.checkpoint.name,
        "precision": opened.dtype.value,
        "text": answer.text,
        "tokens": list(answer.tokens),
        "prompt_tokens": answer.prompt_tokens,
        "finish": answer.finish,
        "prefill_s": answer.prefill_s,
        "decode_s": answer.decode_s,
        "tokens_per_second": answer.tokens_per_second,
        "dispatches_per_token": len(opened.decode.plan.calls),
    }

    def show() -> None:
        if not shown:
            _write(answer.text + "\n")
        note(
            f"{answer.prompt_tokens} tokens read in {answer.prefill_s:.2f} s, {len(answer.tokens)} written at"
            f" {answer.tokens_per_second:.1f}/s ({answer.finish})"
        )

    return Answer(document, show)


def _dispatches(
    model: str, capacity: int | None, target: str | None, precision: str | None, policy: Any
) -> Answer:
    """The table of calls per token; weights are not read."""
    from dataclasses import asdict
    from pathlib import Path

    from ..llm.checkpoint import read_config
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
        say(f"{'after':24}{'dispatches':>11}  what it does")
        for row in rows:
            say(f"{row.after:24}{row.dispatches:11}  {row.meaning}")

    return Answer({"model": model, "rows": [asdict(r) for r in rows]}, show)


def _write(text: str) -> None:
    """Write generated text as it is; a terminal gets no control characters."""
    sys.stdout.write(printable.text(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
