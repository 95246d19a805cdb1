"""Operators whose results no device, thread count or batch changes: they stay PyTorch's, without passing by the library."""

#: in place and with an argument `out` too
_MOVE = """
_reshape_alias _reshape_copy _to_copy _unsafe_view alias as_strided as_strided_copy as_strided_scatter block_diag cat
channel_shuffle clone complex _conj_physical conj_physical constant_pad_nd contiguous copy detach
detach_copy diag_embed diagonal_copy diagonal_scatter embedding
empty empty_like empty_strided expand_copy fill flip full full_like gather im2col index index_fill index_select lu_unpack
lift lift_fresh masked_fill masked_scatter masked_select narrow_copy native_channel_shuffle new_empty new_empty_strided new_full
new_ones new_zeros ones ones_like permute_copy pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d
repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape resize resize_as roll rot90
scalar_tensor select_backward select_copy select_scatter set slice_backward slice_copy slice_scatter split_copy
split_with_sizes_copy squeeze squeeze_copy stack swapaxes swapdims t t_copy take transpose transpose_copy tril triu trunc
unbind_copy unfold unfold_copy unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_copy _upsample_nearest_exact1d
_upsample_nearest_exact2d _upsample_nearest_exact3d
value_selecting_reduction_backward view_as_complex view_as_real view_copy where zero zeros zeros_like _local_scalar_dense
_jagged_to_padded_dense_forward _padded_dense_to_jagged_forward
_to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc _to_sparse_csr
_assert_async _assert_scalar _functional_assert_async is_same_size equal resolve_conj resolve_neg record_stream
_cudnn_rnn_flatten_weight sym_size sym_stride sym_numel sym_storage_offset _nested_tensor_size
"""
_CHOOSE = """
abs adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d all amax amin aminmax angle any argmax argmin bitwise_and
bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bucketize ceil clamp clamp_max clamp_min copysign
count_nonzero _cummax_helper _cummin_helper cummax cummin eq eye fix floor fmax fmin ge gt hardshrink hardshrink_backward hardtanh
hardtanh_backward isfinite isin isinf isnan isneginf isposinf isreal le leaky_relu leaky_relu_backward logical_and logical_not
logical_or logical_xor lt max max_pool1d max_pool2d_with_indices max_pool3d_with_indices maximum median min minimum nan_to_num
nanmedian ne neg nonzero nonzero_static prelu _prelu_kernel _prelu_kernel_backward relu relu6 searchsorted sgn sign signbit
softshrink softshrink_backward threshold threshold_backward tril_indices triu_indices unique_consecutive unique_dim _unique
heaviside nextafter
"""
#: one rounding for each element, of +, -, *, / or what is exact; steps between fractions round on a GPU in its own way, so ranges
#: of them have a route
_ROUND = """
add sub mul div true_divide reciprocal fmod remainder floor_divide round square frac frexp ldexp
"""
DETERMINED = frozenset(f"{_MOVE} {_CHOOSE} {_ROUND}".split())
#: what adds no numbers of a sparse or nested tensor either
_MAKE = """
_coalesced _nested_from_padded _nested_from_padded_and_nested_example _nested_tensor_from_mask _nested_tensor_from_tensor_list
_nested_view_from_buffer _sparse_compressed_tensor_with_dims _sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors
copy_sparse_to_sparse _sparse_mask_projection sparse_mask _sparse_sum_backward sparse_resize sparse_resize_and_clear
resize_as_sparse to_padded_tensor
"""
MADE = frozenset(_MAKE.split())
