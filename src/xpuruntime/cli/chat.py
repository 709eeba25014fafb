"""``xpu chat``: a conversation with a language model, on a terminal or through a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .command import CommandResult, command
from .console import print_note, progress, save_json, write_generated
from .generation_flags import GenerationFlags
from .generator_flags import GeneratorFlags, ReceiptFile

if TYPE_CHECKING:
    from ..llm.conversation import Conversation

__all__ = ["chat"]

_PROMPT = "> "
_MOST_TOKENS = 1024
"""Most tokens of an answer, if neither an option nor a generation config says it."""
_HELP = {
    "/reset": "begin a new conversation",
    "/exit": "leave (also Ctrl-D)",
    "/help": "show this list",
}


@command
def chat(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A folder with config.json and safetensors, or a .gguf file."),
    ],
    words: GenerationFlags,
    opening: GeneratorFlags,
    system: Annotated[
        str, typer.Option("--system", metavar="TEXT", help="First message, which says how to answer.")
    ] = "",
    receipt_file: ReceiptFile = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Talk to a language model. Each line is a message; answers are shown as they are generated.

    /reset begins a new conversation, /exit leaves. Ctrl-C stops an answer. Lines may also come from a pipe.
    """
    from ..errors import InputError
    from ..llm.checkpoint.reader import open_checkpoint
    from ..llm.conversation import Conversation, check_chats
    from ..llm.decoding.texts import options_of

    who = f"chat {model}"
    opening.check(who)
    given = words.words()
    if not {"max_new_tokens", "max_length", "generation_config"} & given.keys():
        given["max_new_tokens"] = _MOST_TOKENS
    interactive = sys.stdin is not None and sys.stdin.isatty() and not as_json
    with progress(f"opening {model}"):
        checkpoint = open_checkpoint(model)
        check_chats(checkpoint)
        decided = options_of(checkpoint, given)
        if decided.samples > 1 or decided.num_beams > 1:
            do = "Omit --num-return-sequences and --num-beams."
            raise InputError(who, "shows one answer without beam search", do=do)
        generator = opening.open(checkpoint)
    with generator:
        conversation = Conversation(generator, system)
        if interactive:
            print_note(f"{checkpoint.name}: {', '.join(f'{k}: {v}' for k, v in _HELP.items())}")
        turns = list(_turns(conversation, given, interactive, streams=not as_json))
        if receipt_file is not None:
            save_json(receipt_file, generator.receipt().to_json())
            print_note(f"wrote {receipt_file}")
    document = {"model": checkpoint.name, "messages": conversation.messages, "turns": turns}
    return CommandResult(document, lambda: None)


def _turns(
    conversation: Conversation, words: dict[str, Any], interactive: bool, *, streams: bool
) -> Iterator[dict[str, Any]]:
    """Answer each line, and yield facts of each answer."""
    from ..errors import InputError

    for line in _lines(interactive):
        message = line.strip()
        if message == "/exit":
            return
        if message == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            print_note("; ".join(f"{k}: {v}" for k, v in _HELP.items()))
        elif message:
            try:
                yield _turn(conversation, message, words, streams)
            except InputError as error:
                if not interactive:
                    raise
                print_note(f"{error} Type /reset for a new conversation.")


def _turn(conversation: Conversation, message: str, words: dict[str, Any], streams: bool) -> dict[str, Any]:
    """Answer one message. Ctrl-C ends the answer."""
    start = time.perf_counter()
    text, finish, count, first = "", "interrupted", 0, 0.0
    pieces: Any = None
    try:
        pieces = conversation.ask(message, **words)
        for piece in pieces:
            count, finish = count + 1, piece.finish or finish
            first = first or time.perf_counter() - start
            text += piece.text
            if streams:
                write_generated(piece.text)
    except KeyboardInterrupt:
        finish = "interrupted"
    finally:
        if pieces is not None:
            pieces.close()
        if streams:
            write_generated("\n")
    notes = {
        "interrupted": "the answer was stopped",
        "length": f"the answer ended after {count} tokens (--max-new-tokens)",
        "capacity": "the cache is full (--capacity); /reset begins a new conversation",
    }
    if finish in notes:
        print_note(notes[finish])
    seconds = time.perf_counter() - start
    return {"text": text, "tokens": count, "finish": finish, "first_token_s": first, "seconds": seconds}


def _lines(interactive: bool) -> Iterator[str]:
    """Yield the lines of stdin without their ends. On a terminal, show a prompt; Ctrl-C there drops the line."""
    if not interactive:
        if sys.stdin is not None:
            yield from (line.rstrip("\r\n") for line in sys.stdin)
        return
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (editing and history of lines)
    while True:
        try:
            line = input(_PROMPT)
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            continue
        yield line
