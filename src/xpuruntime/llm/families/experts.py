"""ExpertLayers: the mixture of experts of a family, as a part of its row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["BLOCK_SPARSE", "EXPERTS", "GATED_SHARED", "SHARED", "ExpertLayers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayers:
    """Feed-forward layers of which a router chooses a few for each token.

    layouts:   names of weights in a layer, one mapping for each way in which checkpoints store them; the last one is that of modules.
               ``router``; ``gate``, ``up``, ``down`` of one expert, with its number for ``{}``, or of all experts, [experts, outputs, inputs];
               ``gate_up`` for both. ``shared_gate``, ``shared_up``, ``shared_down``: an expert that computes every token; ``shared_scale``: the
               layer whose sigmoid scales it.
    count:     fields of the number of experts; releases of transformers differ in them.
    inner, shared: fields of the size of an expert, and of the shared one.
    shared_times: the shared expert's size is this field times ``inner``.
    normalize: chosen scores are divided by their sum: True, or the field that says it.
    scale:     field of the factor of the chosen scores; empty without.
    groups:    fields of the number of groups of experts and of those from which experts are chosen, and of the method; empty without.
    dense:     layers with a plain feed-forward layer: ``none``, ``steps`` (``mlp_only_layers`` and all but every ``decoder_sparse_step``-th),
               ``first`` (the first ``first_k_dense_replace``).
    """

    layouts: tuple[Mapping[str, str], ...]
    count: tuple[str, ...] = ("num_experts",)
    inner: str = "moe_intermediate_size"
    shared: str = ""
    shared_times: str = ""
    normalize: bool | str = True
    scale: str = ""
    groups: tuple[str, ...] = field(default=())
    dense: str = "none"

    @property
    def reads(self) -> frozenset[str]:
        """Return the fields that change results."""
        normalize = (self.normalize,) if isinstance(self.normalize, str) else ()
        rule = {"steps": ("mlp_only_layers", "decoder_sparse_step"), "first": ("first_k_dense_replace",)}
        names = (*self.count, self.inner, self.shared, self.shared_times, self.scale, "num_experts_per_tok")
        return frozenset((*names, *normalize, *self.groups, *rule.get(self.dense, ()))) - {""}


EXPERTS: tuple[Mapping[str, str], ...] = (
    {
        "router": "mlp.gate.weight",
        "gate": "mlp.experts.{}.gate_proj.weight",
        "up": "mlp.experts.{}.up_proj.weight",
        "down": "mlp.experts.{}.down_proj.weight",
    },
    {
        "router": "mlp.gate.weight",
        "gate_up": "mlp.experts.gate_up_proj",
        "down": "mlp.experts.down_proj",
    },
)
"""Names of most families: in checkpoints, and in modules."""

BLOCK_SPARSE: tuple[Mapping[str, str], ...] = (
    {
        "router": "block_sparse_moe.gate.weight",
        "gate": "block_sparse_moe.experts.{}.w1.weight",
        "up": "block_sparse_moe.experts.{}.w3.weight",
        "down": "block_sparse_moe.experts.{}.w2.weight",
    },
    EXPERTS[1],
)
"""Names of Mixtral."""


def _with_shared(name: str, scale: str = "") -> tuple[Mapping[str, str], ...]:
    shared = {f"shared_{part}": f"{name}.{part}_proj.weight" for part in ("gate", "up", "down")}
    shared |= {"shared_scale": scale} if scale else {}
    return tuple({**layout, **shared} for layout in EXPERTS)


SHARED = _with_shared("mlp.shared_experts")
"""Names with a shared expert."""
GATED_SHARED = _with_shared("mlp.shared_expert", "mlp.shared_expert_gate.weight")
"""Names with a shared expert that a gate scales."""
