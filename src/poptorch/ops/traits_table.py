"""The table of operations by name: kind, flags, and the names that they hold for.

Names that are missing are derived (see :mod:`poptorch.ops.traits`): ``add_`` and ``_foreach_add`` are of the kind of
``add``, ``celu_backward`` of that of ``celu``. Flags hold for exactly the names listed, in the namespace ``aten``:

- ``wide``: on a CPU float32 with two conversions is faster, more exact, or less picky about mixed operands than float16
- ``half``: the float16 kernel is known to exist, no safety net is needed
- ``moves``: moves, chooses or makes up values instead of computing new ones
- ``same``: a view of all elements, so a float32 copy of the whole serves it too
- ``maybe view``: may hand back the memory of its operand although its schema does not say so
- ``fresh``: the result lies in memory of its own
- ``order``: compares which is larger, for which NaN has no right answer
- ``divides``: by its second operand
- ``again``: an activation function that is computed again together with the normalisation before it
"""

from __future__ import annotations

ROWS: tuple[tuple[str, str, str], ...] = (
    ("product", "", """
        matmul bilinear _scaled_mm _grouped_mm static_grouped_mm serialized_matmul inner outer tensordot einsum"""),
    ("product", "wide", "addbmm mv addmv dot vdot addr linear _trilinear linalg_matrix_exp"),
    ("product", "wide, fresh", "mm addmm bmm baddbmm"),
    ("convolution", "", "conv1d conv2d conv3d"),
    ("convolution", "wide", "_convolution convolution_overrideable"),
    ("convolution", "wide, fresh", "convolution convolution_backward"),
    ("attention", "", "scaled_dot_product_attention"),
    ("attention", "wide", """
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_attention_math _scaled_dot_product_fused_attention_overrideable"""),
    ("recurrent", "", "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell _thnn_fused_lstm_cell _thnn_fused_gru_cell"),
    ("recurrent", "wide", "mkldnn_rnn_layer mkldnn_rnn_layer_backward"),
    ("linalg", "", "static_lstsq det slogdet logdet inverse triangular_solve lu_unpack geqrf orgqr ormqr"),
    ("elementwise", "", """
        atan2 fmax fmin sgn exp2 expm1 log2 log10 log1p square tan asin acos atan sinh cosh asinh acosh atanh erfc
        erfinv sinc ceil floor round trunc frac frexp addcmul addcdiv isposinf isneginf logical_xor bitwise_and
        bitwise_or bitwise_not bitwise_xor lerp logaddexp logaddexp2 xlogy hypot copysign ldexp digamma lgamma
        polygamma mvlgamma i0 igamma igammac heaviside gcd lcm nextafter signbit deg2rad rad2deg angle complex
        polar _conj_physical conj_physical __lshift__ __rshift__ __and__ __or__ __xor__ bitwise_left_shift
        bitwise_right_shift logit isin bucketize real imag"""),
    ("elementwise", "divides", "fmod remainder floor_divide"),
    ("elementwise", "half", """
        add sub rsub mul exp log sqrt sin cos erf eq ne native_dropout_backward _foreach_mul_ _foreach_addcdiv_
        _foreach_add _foreach_add_ _foreach_sqrt _foreach_addcmul_ _foreach_mul _foreach_div_"""),
    ("elementwise", "half, divides", "div rsqrt reciprocal"),
    ("elementwise", "half, moves", "maximum minimum clamp clamp_min clamp_max neg abs where masked_fill"),
    ("elementwise", "half, order", "lt le gt ge"),
    ("elementwise", "moves", "sign isnan isinf isfinite logical_not logical_and logical_or nan_to_num tril triu"),
    ("elementwise", "wide", "pow"),
    ("activation", "", """
        relu6 leaky_relu_backward celu selu hardsigmoid hardtanh hardshrink softshrink mish log_sigmoid glu prelu
        _prelu_kernel rrelu rrelu_with_noise_functional rrelu_with_noise"""),
    ("activation", "again", "leaky_relu elu hardswish softplus"),
    ("activation", "half", "gelu_backward silu_backward sigmoid_backward tanh_backward"),
    ("activation", "half, again", "gelu silu sigmoid"),
    ("activation", "half, moves", "threshold_backward"),
    ("activation", "half, moves, again", "relu"),
    ("activation", "moves", "threshold"),
    ("activation", "wide, again", "tanh"),
    ("reduction", "", """
        nansum aminmax all any logsumexp count_nonzero trace histc static_bincount bincount equal allclose
        dist cdist pdist"""),
    ("reduction", "half", "sum"),
    ("reduction", "half, moves", "amax amin"),
    ("reduction", "moves", "max min argmax argmin"),
    ("reduction", "wide", "mean prod norm linalg_vector_norm _foreach_norm var var_mean std std_mean"),
    ("scan", "", "cummax cummin"),
    ("scan", "wide", "cumsum cumprod logcumsumexp"),
    ("sort", "", "kthvalue median nanmedian mode searchsorted argsort msort _unique2"),
    ("sort", "moves", "sort topk"),
    ("normalisation", "", "_weight_norm_interface renorm"),
    ("normalisation", "half, fresh", "native_layer_norm native_layer_norm_backward"),
    ("normalisation", "wide", "batch_norm_backward _batch_norm_with_update _batch_norm_with_update_functional"),
    ("normalisation", "wide, fresh", """
        native_group_norm native_group_norm_backward native_batch_norm _native_batch_norm_legit
        _native_batch_norm_legit_functional native_batch_norm_backward _native_batch_norm_legit_no_training"""),
    ("softmax", "half", "_log_softmax _log_softmax_backward_data"),
    ("softmax", "half, fresh", "_softmax _softmax_backward_data"),
    ("gather", "", """
        take _embedding_bag _embedding_bag_forward_only nonzero_static masked_select nearest fps random_fps"""),
    ("gather", "half", "index"),
    ("gather", "half, moves", "gather"),
    ("gather", "half, moves, fresh", "embedding"),
    ("gather", "moves", "index_select"),
    ("scatter", "", """
        scatter_reduce index_copy index_fill index_reduce put as_strided_scatter embedding_renorm unfold_backward
        diagonal_backward _embedding_bag_backward _embedding_bag_per_sample_weights_backward"""),
    ("scatter", "half", "embedding_dense_backward index_put scatter scatter_add"),
    ("scatter", "half, moves", "slice_scatter select_scatter"),
    ("scatter", "half, moves, fresh", "select_backward slice_backward"),
    ("scatter", "moves", "diagonal_scatter masked_scatter"),
    ("scatter", "wide", "index_add"),
    ("pooling", "", "max_unpool2d max_unpool3d"),
    ("pooling", "half", "avg_pool2d"),
    ("pooling", "half, fresh", "max_pool2d_with_indices_backward avg_pool2d_backward"),
    ("pooling", "half, moves, fresh", "max_pool2d_with_indices"),
    ("pooling", "moves", "max_pool3d_with_indices"),
    ("pooling", "wide", "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d"),
    ("resampling", "", "affine_grid_generator"),
    ("resampling", "moves", "upsample_nearest2d upsample_nearest1d"),
    ("loss", "", """
        static_ctc_loss static_ctc_loss_backward ctc_beam_search_decoder binary_cross_entropy
        binary_cross_entropy_with_logits"""),
    ("loss", "half", "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss"),
    ("loss", "half, fresh", "mse_loss_backward"),
    ("loss", "wide", "_ctc_loss _ctc_loss_backward"),
    ("random", "", "exponential geometric cauchy log_normal random poisson multinomial randperm"),
    ("random", "half", "native_dropout"),
    ("random", "half, moves", "bernoulli"),
    ("random", "moves", "rand randn rand_like randn_like randint normal uniform"),
    ("copy", "", """
        rot90 im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle block_diag diag_embed
        masked_scatter_backward unsafe_split repeat_interleave resize _reshape_copy"""),
    ("copy", "half", "_to_copy"),
    ("copy", "half, moves", "copy_ stack constant_pad_nd repeat expand_copy _foreach_copy_"),
    ("copy", "half, moves, fresh", "clone cat"),
    ("copy", "maybe view", "contiguous"),
    ("copy", "moves", """
        copy lift_fresh_copy roll flip reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d"""),
    ("view", "", "_conj _neg_view lift_fresh lift set_"),
    ("view", "maybe view", "reshape"),
    ("view", "same", "t transpose permute view unsqueeze squeeze expand alias detach"),
    ("view", "same, maybe view", "_unsafe_view"),
    ("creation", "", "zero linspace logspace range tril_indices triu_indices"),
    ("creation", "half", "full full_like ones ones_like zeros zeros_like empty empty_like new_zeros new_full"),
    ("creation", "moves", "fill fill_ zero_ _foreach_zero_ arange eye scalar_tensor"),
    ("optimizer", "", "_fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_"),
    ("host", "", "host_call print_tensor _local_scalar_dense _assert_async promote_types result_type can_cast"),
    ("control", "", """for_loop random_for_loop for_loop_backward cond random_cond cond_backward
        while_loop random_while_loop"""),
    ("hint", "", "nop available_memory recomputation_checkpoint overlap_input overlap_output"),
    ("collective", "", """
        replicated_all_reduce replicated_all_gather replicated_own_part replicated_reduce_scatter"""),
    ("host", "", "abort"),
    ("custom", "", "custom_op custom_op_gradient"),
)  # fmt: skip

WEIGHTS = {"mm": 1, "addmm": 2, "convolution": 1, "convolution_backward": 2}
"""Where the weights stand among the operands."""

KNOWN_AS = {
    "addmm": "Gemm",
    "bmm": "MatMul",
    "convolution": "Conv",
    "mm": "MatMul",
    "_native_batch_norm_legit_functional": "BatchNormalization",
    "_native_batch_norm_legit_no_training": "BatchNormalization",
    "native_batch_norm": "BatchNormalization",
    "native_group_norm": "GroupNormalization",
    "native_layer_norm": "LayerNormalization",
}
"""Operations that people know by another name than torch's own."""
