"""Op families: the groups of ops that policies name, and the table that maps ONNX and ATen names to them.

A family is a set of ops that compete for the same kernels (``matmul``, ``conv``, ``attention``, ...). Every op of ONNX's
schema registry and every core ATen op is in exactly one family. Names that the table does not list belong to ``other``.
Backward ops belong to the family of their forward op: a policy distinguishes them by phase.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["FAMILIES", "OTHER", "Family", "aten_base_name", "family_of_aten", "family_of_onnx"]

OTHER = "other"


@dataclass(frozen=True, slots=True)
class Family:
    """One family: its name, a description, and the names of its ops.

    onnx: op names. Ops outside the default domain are written ``domain::Op``, a whole domain ``domain::*``.
    aten: base names, without overload, trailing underscore and ``_backward`` (``aten_base_name`` removes them).
    """

    name: str
    meaning: str
    onnx: tuple[str, ...] = ()
    aten: tuple[str, ...] = ()


def _family(name: str, meaning: str, *, onnx: str = "", aten: str = "") -> Family:
    return Family(name, meaning, tuple(onnx.split()), tuple(aten.split()))


_TABLE = (
    _family(
        "matmul",
        "products of matrices and vectors, plain, batched, quantized or with a fused bias",
        onnx="""MatMul Gemm MatMulInteger QLinearMatMul Einsum com.microsoft::FusedMatMul com.microsoft::FusedGemm
            com.microsoft::MatMulNBits com.microsoft::MatMulBnb4 com.microsoft::MatMulFpQ4 com.microsoft::MatMulInteger16
            com.microsoft::MatMulIntegerToFloat com.microsoft::DynamicQuantizeMatMul com.microsoft::QGemm
            com.microsoft::FusedMatMulActivation com.microsoft::TransposeMatMul com.microsoft::GemmFastGelu
            com.microsoft::GemmFloat8 com.microsoft::QMoE com.microsoft::MoE""",
        aten="""mm bmm addmm addmv addbmm baddbmm addr mv dot vdot inner outer ger matmul linear bilinear einsum
            tensordot chain_matmul _int_mm _scaled_mm _scaled_mm_v2 _grouped_mm _scaled_grouped_mm
            _scaled_grouped_mm_v2 _addmm_activation _trilinear _weight_int4pack_mm _weight_int4pack_mm_for_cpu
            _weight_int8pack_mm _dyn_quant_matmul_4bit _mixed_dtypes_linear kron linalg_matmul linalg_multi_dot
            linalg_vecdot mkldnn_linear""",
    ),
    _family(
        "conv",
        "convolutions of any rank, transposed, deformable, causal, quantized",
        onnx="""Conv ConvTranspose ConvInteger QLinearConv DeformConv CausalConvWithState com.microsoft::FusedConv
            com.microsoft::NhwcConv com.microsoft::NhwcFusedConv com.microsoft::QLinearConv com.microsoft::QLinearConvTranspose
            com.ms.internal.nhwc::Conv com.ms.internal.nhwc::ConvTranspose com.ms.internal.nhwc::QLinearConv""",
        aten="""convolution _convolution _convolution_mode convolution_overrideable conv1d conv2d conv3d conv_tbc
            conv_transpose1d conv_transpose2d conv_transpose3d _conv_depthwise2d conv_depthwise3d
            cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu cudnn_convolution_transpose
            mkldnn_convolution slow_conv3d slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d
            slow_conv_transpose3d thnn_conv2d""",
    ),
    _family(
        "attention",
        "scaled dot-product attention and its linear, grouped and paged forms",
        onnx="""Attention LinearAttention ai.onnx.preview::FlexAttention com.microsoft::Attention
            com.microsoft::MultiHeadAttention com.microsoft::GroupQueryAttention com.microsoft::PackedAttention
            com.microsoft::PackedMultiHeadAttention com.microsoft::DecoderMaskedMultiHeadAttention
            com.microsoft::DecoderMaskedSelfAttention com.microsoft::DecoderAttention com.microsoft::LongformerAttention
            com.microsoft::QAttention com.microsoft::SparseAttention com.microsoft::PagedAttention""",
        aten="""scaled_dot_product_attention _scaled_dot_product_flash_attention
            _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
            _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math
            _scaled_dot_product_fused_attention_overrideable _flash_attention _flash_attention_forward
            _efficient_attention _efficient_attention_forward _cudnn_attention _cudnn_attention_forward
            _native_multi_head_attention _triton_scaled_dot_attention _triton_multi_head_attention""",
    ),
    _family(
        "norm",
        "normalizations by statistics of the data",
        onnx="""BatchNormalization InstanceNormalization LayerNormalization GroupNormalization RMSNormalization
            LpNormalization MeanVarianceNormalization LRN SimplifiedLayerNormalization
            com.microsoft::SkipLayerNormalization com.microsoft::SkipSimplifiedLayerNormalization
            com.microsoft::SimplifiedLayerNormalization com.microsoft::EmbedLayerNormalization com.microsoft::GroupNorm
            com.microsoft::SkipGroupNorm""",
        aten="""batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training
            _native_batch_norm_legit_functional _batch_norm_with_update _batch_norm_no_update cudnn_batch_norm
            instance_norm layer_norm native_layer_norm group_norm native_group_norm rms_norm _fused_rms_norm
            _weight_norm _weight_norm_interface renorm""",
    ),
    _family(
        "softmax",
        "softmax and its logarithm",
        onnx="Softmax LogSoftmax Hardmax com.microsoft::BiasSoftmax com.microsoft::QLinearSoftmax",
        aten="softmax _softmax log_softmax _log_softmax _safe_softmax _masked_softmax",
    ),
    _family(
        "activation",
        "the non-linear functions of neural networks, gated ones included",
        onnx="""Relu LeakyRelu PRelu ThresholdedRelu Elu Selu Celu Gelu Sigmoid HardSigmoid HardSwish Swish SwiGLU
            Mish Softplus Softsign Shrink Tanh com.microsoft::Gelu com.microsoft::FastGelu com.microsoft::BiasGelu
            com.microsoft::QuickGelu com.microsoft::BiasSplitGelu com.microsoft::QLinearSigmoid com.microsoft::QLinearLeakyRelu""",
        aten="""relu relu6 leaky_relu prelu _prelu_kernel rrelu rrelu_with_noise elu selu celu gelu silu mish glu
            sigmoid hardsigmoid log_sigmoid log_sigmoid_forward hardswish hardtanh hardshrink softshrink softplus
            tanh threshold swiglu silu_mul""",
    ),
    _family(
        "elementwise",
        "ops on elements at the same index: arithmetic, comparison, logic, casts",
        onnx="""Abs Acos Acosh Add And Asin Asinh Atan Atanh BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
            Cast CastLike Ceil Clip Cos Cosh Div Equal Erf Exp Floor Greater GreaterOrEqual IsInf IsNaN Less
            LessOrEqual Log Max Mean Min Mod Mul Neg Not Or Pow Reciprocal Round Sign Sin Sinh Sqrt Sub Sum Tan
            Where Xor com.microsoft::QLinearAdd com.microsoft::QLinearMul com.microsoft::BiasAdd""",
        aten="""abs absolute acos acosh add sub rsub mul div true_divide floor_divide addcdiv addcmul angle arccos
            arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh bitwise_and bitwise_left_shift
            bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min clip
            complex conj _conj _conj_physical conj_physical copysign cos cosh deg2rad digamma eq equal erf erfc
            erfinv exp exp2 expm1 float_power floor fmax fmin fmod frac frexp gcd ge greater greater_equal gt heaviside
            hypot i0 igamma igammac imag isclose isfinite isinf isnan isneginf isposinf isreal lcm ldexp le
            lerp less less_equal lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or
            logical_xor logit lt masked_fill maximum minimum multiply mvlgamma nan_to_num ne neg negative nextafter
            not_equal polar polygamma positive pow rad2deg real reciprocal remainder round rsqrt sgn sign signbit sin
            sinc sinh sqrt square subtract divide tan trunc fix where xlogy to _to_copy type_as _add_relu
            special_erf special_erfc special_erfcx special_expit special_entr special_exp2 special_expm1 special_log1p special_log_ndtr
            special_ndtr special_ndtri special_xlog1py special_xlogy special_zeta
            __and__ __iand__ __or__ __ior__ __xor__ __ixor__ __lshift__ __ilshift__ __rshift__ __irshift__ special_i0 special_i0e special_i1 special_i1e
            special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
            special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
            special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he
            special_laguerre_polynomial_l special_legendre_polynomial_p special_modified_bessel_i0
            special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
            special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
            special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
            special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0""",
    ),
    _family(
        "reduce",
        "reductions along axes, and their cumulative forms",
        onnx="""ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
            ReduceSumSquare ArgMax ArgMin CumSum CumProd com.microsoft::ReduceSumInteger com.microsoft::QLinearReduceMean""",
        aten="""sum mean prod amax amin aminmax max min any all argmax argmin var std var_mean std_mean norm
            linalg_norm linalg_vector_norm logsumexp special_logsumexp count_nonzero nansum nanmean median nanmedian
            cumsum cumprod cummax cummin logcumsumexp _logcumsumexp sum_to_size trace dist cdist _cdist _cdist_forward
            pdist _pdist _pdist_forward pairwise_distance cosine_similarity segment_reduce diff trapezoid""",
    ),
    _family(
        "pool",
        "reductions over a sliding window",
        onnx="""AveragePool MaxPool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool MaxRoiPool MaxUnpool RoiAlign
            com.microsoft::NhwcMaxPool com.microsoft::QLinearAveragePool com.microsoft::QLinearGlobalAveragePool
            com.ms.internal.nhwc::AveragePool com.ms.internal.nhwc::MaxPool com.ms.internal.nhwc::GlobalAveragePool
            com.ms.internal.nhwc::GlobalMaxPool""",
        aten="""avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool1d_with_indices
            max_pool2d_with_indices max_pool3d_with_indices adaptive_avg_pool1d adaptive_avg_pool2d
            adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
            adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d max_unpool2d max_unpool3d""",
    ),
    _family(
        "embedding",
        "lookup of table rows by index (ONNX has only Gather for it, which is in data_movement)",
        onnx="com.microsoft::GatherBlockQuantized",
        aten="embedding embedding_dense embedding_bag _embedding_bag _embedding_bag_forward_only embedding_renorm",
    ),
    _family(
        "data_movement",
        "ops that move elements without computing: copy, view, slice, gather, scatter, pad, concatenate",
        onnx="""CenterCropPad Col2Im Compress Concat DepthToSpace Dropout Expand Flatten Gather GatherElements GatherND
            Identity Pad Reshape ReverseSequence Scatter ScatterElements ScatterND Slice SpaceToDepth Split Squeeze
            TensorScatter Tile Transpose Trilu Unsqueeze com.microsoft::ConcatTraining com.microsoft::Trilu
            com.microsoft::Unsqueeze com.microsoft::Pad com.microsoft::ExpandDims com.microsoft::NhwcTranspose""",
        aten="""alias as_strided as_strided_scatter atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors
            broadcast_to cat chunk clone col2im column_stack concat concatenate constant_pad_nd contiguous copy
            detach diag diag_embed diagflat diagonal diagonal_scatter dstack expand expand_as flatten flip fliplr flipud
            gather hsplit hstack im2col index index_add index_copy index_fill index_put _index_put_impl
            index_reduce index_select _unsafe_index _unsafe_index_put _unsafe_masked_index
            _unsafe_masked_index_put_accumulate lift lift_fresh masked_scatter masked_select meshgrid moveaxis movedim
            narrow native_channel_shuffle channel_shuffle numpy_T mT mH adjoint pad _pad_circular _pad_enum permute
            pixel_shuffle pixel_unshuffle put ravel reflection_pad1d reflection_pad2d reflection_pad3d repeat
            repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape reshape_as _reshape_alias
            resize resolve_conj resolve_neg roll rot90 row_stack scatter scatter_add scatter_reduce select
            select_scatter slice slice_scatter split split_with_sizes unsafe_split unsafe_split_with_sizes unsafe_chunk
            squeeze stack _stack swapaxes swapdims t take take_along_dim tensor_split tile transpose tril triu unbind
            unflatten unfold _unsafe_view unsqueeze view view_as view_as_complex view_as_real vsplit vstack""",
    ),
    _family(
        "search",
        "selection of elements by value: sort, top-k, unique, non-zero, non-maximum suppression",
        onnx="TopK Unique NonZero NonMaxSuppression com.microsoft::UnfoldTensor com.microsoft::Unique",
        aten="""sort argsort msort topk kthvalue mode _unique _unique2 unique_dim unique_consecutive
            unique_dim_consecutive nonzero nonzero_static nonzero_numpy argwhere searchsorted bucketize isin bincount
            histc histogram quantile nanquantile""",
    ),
    _family(
        "create",
        "values that depend on no input element: constants, ranges, shapes",
        onnx="Constant ConstantOfShape EyeLike OneHot Range Shape Size",
        aten="""arange range linspace logspace full full_like new_full zeros zeros_like new_zeros ones ones_like new_ones
            empty empty_like empty_strided empty_permuted new_empty new_empty_strided eye fill zero scalar_tensor
            tensor tril_indices triu_indices one_hot size sym_size numel sym_numel stride sym_stride storage_offset
            sym_storage_offset is_contiguous sym_is_contiguous _shape_as_tensor dim""",
    ),
    _family(
        "rope",
        "rotary position embedding",
        onnx="RotaryEmbedding com.microsoft::RotaryEmbedding com.microsoft::GemmaRotaryEmbedding",
        aten="rotary_embedding",
    ),
    _family(
        "quantize",
        "conversions between floating point and scaled integers",
        onnx="""QuantizeLinear DequantizeLinear DynamicQuantizeLinear com.microsoft::QuantizeLinear
            com.microsoft::DequantizeLinear com.microsoft::DequantizeBFP com.microsoft::QuantizeBFP""",
        aten="""quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel dequantize
            fake_quantize_per_tensor_affine fake_quantize_per_channel_affine
            fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask
            fused_moving_avg_obs_fake_quant choose_qparams_optimized _choose_qparams_per_tensor int_repr""",
    ),
    _family(
        "resize",
        "resampling of images: interpolation, grids",
        onnx="Resize Upsample GridSample AffineGrid com.microsoft::GridSample com.microsoft::CropAndResize",
        aten="""upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
            _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
            upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
            grid_sampler grid_sampler_2d grid_sampler_3d affine_grid_generator""",
    ),
    _family(
        "rnn",
        "recurrent layers and their cells",
        onnx="RNN LSTM GRU com.microsoft::DynamicQuantizeLSTM com.microsoft::AttnLSTM",
        aten="""rnn_tanh rnn_relu lstm gru rnn_tanh_cell rnn_relu_cell lstm_cell gru_cell _cudnn_rnn mkldnn_rnn_layer
            _thnn_fused_lstm_cell _thnn_fused_gru_cell""",
    ),
    _family(
        "random",
        "random numbers",
        onnx="Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
        aten="""rand rand_like randn randn_like randint randint_like randperm random bernoulli multinomial normal
            normal_functional uniform exponential geometric cauchy log_normal poisson binomial native_dropout
            dropout _fused_dropout feature_dropout alpha_dropout feature_alpha_dropout""",
    ),
    _family(
        "signal",
        "Fourier transforms and windows",
        onnx="""DFT STFT BlackmanWindow HammingWindow HannWindow MelWeightMatrix com.microsoft::Rfft
            com.microsoft::Irfft""",
        aten="""_fft_c2r _fft_r2c _fft_c2c fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_fftn fft_ifftn
            fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn stft istft bartlett_window blackman_window hamming_window
            hann_window kaiser_window""",
    ),
    _family(
        "training",
        "losses, gradients and optimizer steps",
        onnx="NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss ai.onnx.preview.training::*",
        aten="""nll_loss nll_loss_forward nll_loss2d nll_loss2d_forward nll_loss_nd cross_entropy_loss mse_loss l1_loss
            smooth_l1_loss huber_loss kl_div binary_cross_entropy binary_cross_entropy_with_logits ctc_loss _ctc_loss
            soft_margin_loss multi_margin_loss multilabel_margin_loss hinge_embedding_loss margin_ranking_loss
            triplet_margin_loss cosine_embedding_loss poisson_nll_loss _fused_adam _fused_adamw _fused_sgd _fused_adagrad""",
    ),
    _family(
        "control",
        "control flow, sequences, optional values, and values passed to the host",
        onnx="""If Loop Scan SequenceMap SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert
            SequenceLength SplitToSequence ConcatFromSequence Optional OptionalGetElement OptionalHasElement""",
        aten="_local_scalar_dense item _assert_async _assert_scalar _assert_tensor_metadata sym_constrain_range",
    ),
    _family(
        OTHER,
        "everything else: text, classic machine learning, decoders, decompositions, unknown and custom ops",
        onnx="""Det ImageDecoder RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer
            ai.onnx.ml::*""",
        aten="""det logdet slogdet inverse pinverse cholesky cholesky_solve cholesky_inverse qr svd geqrf ormqr orgqr
            lu_solve lu_unpack triangular_solve matrix_exp matrix_power linalg_inv_ex linalg_solve_ex linalg_det
            linalg_solve_triangular linalg_eig linalg_eigh linalg_svd linalg_qr linalg_cholesky_ex linalg_lu
            linalg_matrix_exp cross linalg_cross""",
    ),
)

FAMILIES: MappingProxyType[str, Family] = MappingProxyType({f.name: f for f in _TABLE})
"""Every family by name, in the order that ``docs/reference/policies.md`` lists them."""


def _index(rows: Iterator[tuple[str, str]]) -> dict[str, str]:
    """Return the family name of each op name. Raises ValueError if an op is in two families of the table above."""
    index: dict[str, str] = {}
    for op, family in rows:
        if index.setdefault(op, family) != family:
            raise ValueError(f"op {op!r} is in two families: {index[op]!r} and {family!r}")
    return index


_BY_ONNX = _index((op, f.name) for f in _TABLE for op in f.onnx)
_BY_ATEN = _index((op, f.name) for f in _TABLE for op in f.aten)

_ATEN_PREFIX = re.compile(r"^(?:torch\.ops\.)?(?:aten(?:::|\.))?")
_ATEN_SUFFIX = re.compile(r"(?:_double_backward|_backward_data|_backward|_copy|_out)$")


def aten_base_name(name: str) -> str:
    """Return the name of an ATen op that ``Family.aten`` lists: ``"aten.add_.Tensor"`` -> ``"add"``, ``"gelu_backward"`` -> ``"gelu"``.

    Names that the table lists unchanged (``_to_copy``) keep their ending.
    """
    base = _ATEN_PREFIX.sub("", name, count=1).partition(".")[0]
    if base in _BY_ATEN:
        return base
    if base.endswith("_") and not base.endswith("__"):
        base = base[:-1]
    return base if base in _BY_ATEN else _ATEN_SUFFIX.sub("", base)


def family_of_onnx(op: str, domain: str = "") -> str:
    """Return the family name of an ONNX op. ``domain`` is the node's; ``""`` and ``"ai.onnx"`` are the same."""
    if domain in ("", "ai.onnx"):
        return _BY_ONNX.get(op, OTHER)
    return _BY_ONNX.get(f"{domain}::{op}") or _BY_ONNX.get(f"{domain}::*", OTHER)


def family_of_aten(name: str) -> str:
    """Return the family name of an ATen op such as ``"mm"``, ``"aten::mm"`` or ``"aten.mm.default"``, also in-place and backward forms."""
    return _BY_ATEN.get(aten_base_name(name), OTHER)
