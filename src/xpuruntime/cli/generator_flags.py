"""Options of the commands that open a language model (``generate``, ``chat``), and its opening with a progress line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options

if TYPE_CHECKING:
    from ..llm.checkpoint.data import Checkpoint
    from ..llm.generate import Generator

__all__ = ["Explain", "GeneratorFlags", "Receipt", "ReceiptFile"]

_PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorFlags:
    """How a language model is opened."""

    capacity: Annotated[
        int | None,
        typer.Option(min=1, help="Size of the KV cache in tokens, prompt included. Default: 2048."),
    ] = None
    source_capacity: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of the longest prompt that the encoder of an encoder-decoder reads. Default: 512.",
        ),
    ] = None
    precision: Annotated[
        str | None,
        typer.Option(
            help=f"Precision: {', '.join(_PRECISIONS)}. Default: the checkpoint's.",
            rich_help_panel="Engine and session",
        ),
    ] = None
    device: options.Device = None
    policy: options.Policy = None
    threads: options.Threads = None
    cache_dir: options.CacheDir = None

    def check(self, who: str) -> None:
        """Raise PrecisionUnavailable for a precision that no language model computes in."""
        from ..errors import PrecisionUnavailable

        if self.precision is not None and self.precision not in _PRECISIONS:
            do = f"Use one of {', '.join(_PRECISIONS)}."
            raise PrecisionUnavailable(who, "unsupported precision", got=self.precision, do=do)

    def open(self, checkpoint: Checkpoint, **further: Any) -> Generator:
        """Open the model. ``further``: more arguments of ``Generator``."""
        from ..llm.generate import Generator
        from ..types import DType

        return Generator(
            checkpoint,
            capacity=self.capacity,
            dtype=self.precision and DType(self.precision),
            policy=self.policy,
            device=self.device,
            threads=self.threads,
            cache_dir=self.cache_dir,
            source_capacity=self.source_capacity,
            **further,
        )


Explain = Annotated[
    bool, typer.Option("--explain", help="Show what would run and why, for each phase, and generate nothing.")
]
Receipt = Annotated[
    bool, typer.Option("--receipt", help="Show what ran in each phase, with the time of each step.")
]
ReceiptFile = Annotated[
    Path | None, typer.Option("--save-receipt", metavar="FILE", help="Write the receipt as JSON.")
]
