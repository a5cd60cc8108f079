"""Operations that stay PyTorch's, and why."""

from __future__ import annotations

from tilec.torch.aten.table import refused

refused(
    "a factorization or a substitution, whose steps read the steps before",
    "_linalg_svd linalg_pinv linalg_lu_factor_ex _linalg_solve_ex linalg_inv_ex _linalg_eigh linalg_lu_solve linalg_qr "
    "_linalg_slogdet linalg_cholesky_ex linalg_ldl_factor_ex cholesky cholesky_inverse cholesky_solve geqrf lu_unpack _linalg_det "
    "linalg_householder_product linalg_ldl_solve linalg_lu linalg_solve_triangular ormqr triangular_solve linalg_matrix_exp",
)
refused(
    "a series or a recurrence of as many terms as the arguments say",
    "special_zeta igamma igammac special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
    "special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l "
    "special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u "
    "special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w",
)
refused(
    "a special function that the language's library does not have",
    "i0 special_i0e special_i1 special_i1e special_erfcx special_ndtri special_airy_ai special_bessel_j0 special_bessel_j1 "
    "special_bessel_y0 special_bessel_y1 special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
    "special_modified_bessel_k1 special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0",
)
refused("the bits of floats, of which the language sees numbers", "nextafter frexp hash_tensor")
refused(
    "segments that data give, which PyTorch checks when it runs",
    "segment_reduce _segment_reduce_backward _embedding_bag _embedding_bag_forward_only _embedding_bag_backward",
)
refused(
    "a range of numbers that data give, which PyTorch checks when it runs",
    "histogram _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors",
)
refused(
    "windows at places that data give",
    "fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d fractional_max_pool3d_backward",
)
refused("a result whose shape depends on data", "bincount unique_dim _unique2")
refused("writes to rows that data name, in place", "embedding_renorm _unsafe_masked_index_put_accumulate")
refused("memory that becomes of another size", "resize")
refused("distances of many points, which PyTorch computes from a product of matrices", "_cdist_forward")
refused("distances of pairs, whose numbers are no positions in rows", "_pdist_forward")
refused(
    "parts that PyTorch computes one after the other, so that less is stored",
    "torch_nn::_linear_cross_entropy_batch_chunked torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
)
