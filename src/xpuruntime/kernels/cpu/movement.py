"""Data movement on CPUs: lists of moves (``codegen/loops/moves``), as ``moves.py`` writes them."""

from __future__ import annotations

from ..spec.movement.embedding import Embedding
from ..spec.movement.fill import Fill
from ..spec.movement.indexing import Indexing
from ..spec.movement.strided import Movement
from .moves import moves_stage

__all__ = ["KERNELS"]

KERNELS = (Movement(moves_stage), Indexing(moves_stage), Embedding(moves_stage), Fill(moves_stage))
