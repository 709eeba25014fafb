"""The attributes of ONNX Runtime's own ops, for which the onnx package has no definitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

__all__ = ["ATTRIBUTES", "AttributeRule", "AttributeType"]


class AttributeType(IntEnum):
    """AttributeProto.AttributeType of the attributes here."""

    FLOAT = 1
    INT = 2
    STRING = 3
    FLOATS = 6
    INTS = 7
    STRINGS = 8


class AttributeRule(NamedTuple):
    """An attribute of an op. ``values``: those that are supported; nothing if any may be."""

    type: int
    required: bool = False
    values: tuple[Any, ...] = ()


_F, _I, _S = (AttributeRule(t) for t in (AttributeType.FLOAT, AttributeType.INT, AttributeType.STRING))
_FLOATS, _INTS, _STRINGS = (
    AttributeRule(t) for t in (AttributeType.FLOATS, AttributeType.INTS, AttributeType.STRINGS)
)
_INT_NEEDED = AttributeRule(AttributeType.INT, required=True)
_FLAG = AttributeRule(AttributeType.INT, values=(0, 1))
_FLAG_NEEDED = _FLAG._replace(required=True)
_INTS_NEEDED = AttributeRule(AttributeType.INTS, required=True)


def _off(value: Any = 0) -> AttributeRule:
    """Return an attribute that may only have this value."""
    return AttributeRule(
        AttributeType.STRING if isinstance(value, str) else AttributeType.INT, values=(value,)
    )


_WINDOW = {"auto_pad": _S, "kernel_shape": _INTS, "pads": _INTS, "strides": _INTS}
_CONV = {**_WINDOW, "dilations": _INTS, "group": _I}
_POOL = {**_WINDOW, "ceil_mode": _FLAG, "kernel_shape": _INTS_NEEDED}
_ACTIVATED = {"activation": _S, "activation_params": _FLOATS}
_GEMM = {"alpha": _F, "transA": _FLAG, "transB": _FLAG}
_SCORES = {"mask_filter_value": _F, "num_heads": _INT_NEEDED, "scale": _F, "unidirectional": _FLAG}
_PROJECTED = {**_SCORES, "do_rotary": _off(), "past_present_share_buffer": _off()}
_GROUPS = {"activation": _INT_NEEDED, "channels_last": _FLAG, "epsilon": _F, "groups": _INT_NEEDED}
_REDUCED = {"axes": _INTS_NEEDED, "keepdims": _FLAG_NEEDED}
_BLOCKS = {"K": _INT_NEEDED, "N": _INT_NEEDED, "block_size": _INT_NEEDED}

ATTRIBUTES: Mapping[str, Mapping[str, AttributeRule]] = {
    "Attention": {**_PROJECTED, "qkv_hidden_sizes": _INTS, "rotary_embedding_dim": _I},
    "BiasAdd": {},
    "BiasDropout": {"seed": _I},
    "BiasGelu": {},
    "BiasSoftmax": {"axis": _I, "is_inner_broadcast": _FLAG_NEEDED},
    "BiasSplitGelu": {},
    "CDist": {"metric": _S},
    "DequantizeLinear": {"axis": _I},
    "DynamicQuantizeLSTM": {
        "activation_alpha": _FLOATS,
        "activation_beta": _FLOATS,
        "activations": _STRINGS,
        "clip": _F,
        "direction": _S,
        "hidden_size": _I,
        "input_forget": _FLAG,
    },
    "DynamicQuantizeMatMul": {},
    "EmbedLayerNormalization": {"epsilon": _F, "mask_index_type": _I},
    "ExpandDims": {},
    "FastGelu": {},
    "FusedConv": {**_CONV, **_ACTIVATED},
    "FusedGemm": {
        **_GEMM,
        "activation": _S,
        "activation_alpha": _F,
        "activation_beta": _F,
        "activation_gamma": _F,
        "beta": _F,
    },
    "FusedMatMul": {**_GEMM, "transBatchA": _FLAG, "transBatchB": _FLAG},
    "GatherBlockQuantized": {"bits": _I, "block_size": _I, "gather_axis": _I, "quantize_axis": _I},
    "GatherND": {},
    "Gelu": {},
    "GemmFastGelu": {},
    "GroupNorm": _GROUPS,
    "GridSample": {"align_corners": _I, "mode": _S, "padding_mode": _S},
    "GroupQueryAttention": {
        "causal": _FLAG,
        "do_rotary": _FLAG,
        "k_quant_type": _off("NONE"),
        "kv_cache_bit_width": _off(),
        "kv_num_heads": _INT_NEEDED,
        "local_window_size": _I,
        "num_heads": _INT_NEEDED,
        "qk_norm_epsilon": _F,
        "qk_output": _I,
        "rotary_interleaved": _FLAG,
        "scale": _F,
        "sliding_window_cache": _off(),
        "smooth_softmax": _FLAG,
        "softcap": _F,
        "v_quant_type": _off("NONE"),
    },
    "LayerNormalization": {"axis": _I, "epsilon": _F, "stash_type": _I},
    "MatMulBnb4": {**_BLOCKS, "quant_type": _INT_NEEDED, "training_mode": _I, "transB": _FLAG},
    "MatMulInteger16": {},
    "MatMulIntegerToFloat": {},
    "MatMulNBits": {**_BLOCKS, "accuracy_level": _I, "bits": _I, "weight_prepacked": _off()},
    "MultiHeadAttention": _SCORES,
    "NhwcConv": _CONV,
    "NhwcFusedConv": {**_CONV, **_ACTIVATED},
    "NhwcMaxPool": {**_POOL, "dilations": _INTS},
    "Pad": {"mode": _S},
    "QAttention": _PROJECTED,
    "QEmbedLayerNormalization": {"epsilon": _F},
    "QGemm": _GEMM,
    "QLinearAdd": {},
    "QLinearAveragePool": {**_POOL, "channels_last": _FLAG, "count_include_pad": _FLAG},
    "QLinearConcat": {"axis": _INT_NEEDED},
    "QLinearConv": {**_CONV, "channels_last": _FLAG},
    "QLinearGlobalAveragePool": {"channels_last": _FLAG},
    "QLinearLeakyRelu": {"alpha": _F},
    "QLinearMul": {},
    "QLinearReduceMean": _REDUCED,
    "QLinearSigmoid": {},
    "QLinearSoftmax": {"axis": _I, "opset": _INT_NEEDED},
    "QLinearWhere": {},
    "QuantizeLinear": {"axis": _I},
    "QuickGelu": {"alpha": _F},
    "Range": {},
    "ReduceSumInteger": _REDUCED,
    "RotaryEmbedding": {
        "interleaved": _FLAG,
        "is_packed_batching": _off(),
        "num_heads": _I,
        "rotary_embedding_dim": _I,
        "scale": _F,
    },
    "SimplifiedLayerNormalization": {"axis": _I, "epsilon": _F, "stash_type": _I},
    "SkipGroupNorm": _GROUPS,
    "SkipLayerNormalization": {"epsilon": _F},
    "SkipSimplifiedLayerNormalization": {"epsilon": _F},
    "TransposeMatMul": _GEMM,
    "Trilu": {"upper": _I},
}
"""Op -> attribute -> its rule. Tests compare it with the definitions of the installed ONNX Runtime."""
