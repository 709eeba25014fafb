"""Language models on the native engine: checkpoints, prefill and decode as one program over a KV cache in place, generation."""

from __future__ import annotations

from .answers import SpokenSegment, TokenLogprob
from .batching.answer import BatchAnswer
from .batching.generate import BatchGenerator, BatchStatistics
from .build import build_program, decoder_graphs
from .calibrate import calibrated
from .checkpoint.config import DecoderConfig
from .checkpoint.reader import Checkpoint, open_checkpoint
from .conversation import Conversation
from .decoder import decoder_graph
from .generate import Completion, Generator, Piece, generate
from .sampling import Sampling

__all__ = [
    "BatchAnswer",
    "BatchGenerator",
    "BatchStatistics",
    "Checkpoint",
    "Completion",
    "Conversation",
    "DecoderConfig",
    "Generator",
    "Piece",
    "Sampling",
    "SpokenSegment",
    "TokenLogprob",
    "build_program",
    "calibrated",
    "decoder_graph",
    "decoder_graphs",
    "generate",
    "open_checkpoint",
]
