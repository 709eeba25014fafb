"""Names of parts and of fields that several families share."""

from __future__ import annotations

__all__ = ["ALL_BIASES", "ATTENTION", "ENDS", "GATED_MLP", "LAYER_EPS", "NORMS", "QK_NORM", "RMS_EPS"]

ENDS = {"embed": "embed_tokens", "final_norm": "norm", "head": "lm_head"}
ATTENTION = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
}
QK_NORM = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
GATED_MLP = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
NORMS = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
RMS_EPS = {"norm_eps": "rms_norm_eps"}
LAYER_EPS = {"norm_eps": "layer_norm_eps"}
ALL_BIASES = {"qkv": True, "o": True, "mlp": True}
