"""LatentSizes: multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), whose cache has one compressed row per position for all heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ModelError

__all__ = ["LatentSizes"]

_MAX_WIDTH = 1 << 24


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Numbers of elements.

    query_rank: of a compressed query, for all heads; 0 if queries are not compressed.
    rank:       of the compressed key and value of a position, for all heads.
    plain, rotated: of the part of a head's query without a rotary position, and of the part with one.
    value:      of a head's value.
    """

    query_rank: int
    rank: int
    plain: int
    rotated: int
    value: int

    @classmethod
    def of(cls, facts: Mapping[str, Any], size: Callable[[str, int, int | None], int]) -> LatentSizes:
        """Read a config. Raises ModelError."""
        names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        rank, plain, rotated, value = (size(name, _MAX_WIDTH, None) for name in names)
        query_rank = 0 if facts.get("q_lora_rank") is None else size("q_lora_rank", _MAX_WIDTH, None)
        # In configs of this attention, head_dim is the size of the rotated part alone.
        for name, required in (("qk_head_dim", plain + rotated), ("head_dim", rotated)):
            if facts.get(name) not in (None, required):
                raise ModelError(
                    "language model",
                    f"has an unsupported {name}",
                    got=facts[name],
                    do=f"Supported: {required}.",
                )
        if rotated % 2:
            raise ModelError(
                "language model",
                "has a qk_rope_head_dim that is not even",
                got=rotated,
                do="Correct qk_rope_head_dim in config.json.",
            )
        return cls(query_rank, rank, plain, rotated, value)

    @property
    def head(self) -> int:
        """Return the elements of a head's query."""
        return self.plain + self.rotated

    @property
    def row(self) -> int:
        """Return the elements of the cache for one position."""
        return self.rank + self.rotated

    def linears(self, hidden: int, heads: int, bias: bool) -> dict[str, tuple[int, int, bool]]:
        """Return (outputs, inputs, bias) of each linear layer by its part."""
        return {
            "q": (heads * self.head, hidden, False),
            "q_a": (self.query_rank, hidden, bias),
            "q_b": (heads * self.head, self.query_rank, False),
            "kv_a": (self.row, hidden, bias),
            "kv_b": (heads * (self.plain + self.value), self.rank, False),
            "o": (hidden, heads * self.value, bias),
        }

    @property
    def norms(self) -> dict[str, int]:
        """Return the size of each norm by its part."""
        return {"q_a_norm": self.query_rank, "kv_a_norm": self.rank}
