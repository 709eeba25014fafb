"""Data movement on CUDA devices: the same lists of moves as on CPUs (``codegen/loops/moves``), as ``moves.py`` writes them."""

from __future__ import annotations

from ...spec.movement.embedding import Embedding
from ...spec.movement.fill import Fill
from ...spec.movement.indexing import Indexing
from ...spec.movement.strided import Movement
from .moves import cuda_moves_stage

__all__ = ["KERNELS"]

KERNELS = (
    Movement(cuda_moves_stage),
    Indexing(cuda_moves_stage),
    Embedding(cuda_moves_stage),
    Fill(cuda_moves_stage),
)
