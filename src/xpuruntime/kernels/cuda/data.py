"""Data movement on CUDA devices: the same lists of moves as on CPUs (``codegen/moves``), carried as ``moves`` writes them."""

from __future__ import annotations

from ..creation import Fill
from ..embedding import Embedding
from ..indexing import Indexing
from ..movement import Movement

__all__ = ["KERNELS"]

KERNELS = (Movement(), Indexing(), Embedding(), Fill())
