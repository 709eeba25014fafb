"""Conversation: messages of a user and a model, turn by turn, through the model's chat template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..arguments import check_argument
from ..errors import InputError
from .answers import Piece
from .checkpoint.data import Checkpoint
from .generate import Generator

__all__ = ["Conversation", "check_chats"]


def check_chats(checkpoint: Checkpoint) -> None:
    """Raise InputError for a model without a tokenizer or without a chat template."""
    who = f"language model {checkpoint.name}"
    if checkpoint.text is None:
        raise InputError(who, "has no tokenizer", do="Give a folder with tokenizer.json.")
    if not checkpoint.text.template:
        do = "Use a model that was trained for conversations, or generate text from a plain prompt."
        raise InputError(who, "has no chat template", do=do)


class Conversation:
    """A conversation with a model.

    system:   the first message, by which the model is told how to answer; none if empty.
    messages: all messages so far, as ``{"role": ..., "content": ...}``.

    Raises InputError as ``check_chats``.
    """

    def __init__(self, model: Generator, system: str = "") -> None:
        do = "Open it: Generator(path)."
        check_argument("Conversation", "model", model, Generator, "a Generator", do)
        check_argument("Conversation", "system", system, str, "a text", "Give a text, or '' for none.")
        check_chats(model.checkpoint)
        self._model, self._system = model, system
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Forget all messages but the system's."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def ask(self, text: str, **words: Any) -> Iterator[Piece]:
        """Yield the pieces of the answer to a message. ``words``: as for ``Generator.stream``.

        When the answer ends, is closed or is interrupted, its text so far is part of the conversation; a message without any answer is not.
        Raises InputError for a conversation that is longer than the cache.
        """
        check_argument("Conversation.ask", "text", text, str, "a text", "Give the message as a text.")
        asked = [*self.messages, {"role": "user", "content": text}]
        pieces = self._model.stream(asked, **words)
        return self._answer(asked, pieces)

    def _answer(self, asked: list[dict[str, str]], pieces: Iterator[Piece]) -> Iterator[Piece]:
        said: list[str] = []
        ended = False
        try:
            for piece in pieces:
                said.append(piece.text)
                ended = bool(piece.finish)
                yield piece
        finally:
            answer = "".join(said)
            if answer or ended:
                self.messages = [*asked, {"role": "assistant", "content": answer}]
