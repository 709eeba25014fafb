"""Groups of ranks that exchange tensors: communicators, the stores by which processes find each other, and threads that act as ranks."""

from __future__ import annotations

from .communicator import Communicator
from .rank_stores import FileRankStore, TorchRankStore
from .rank_threads import RankThreads

__all__ = ["Communicator", "FileRankStore", "RankThreads", "TorchRankStore"]
