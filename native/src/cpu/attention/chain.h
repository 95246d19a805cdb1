/* Attention on the CPU in the mode `reproducible`: formula/attention_chain.h says what a weight is.
 *     score   s_ij = scale·round32(q_i·k_j), one chain of float64 over d; masked as everywhere
 *     out_i   = round32(Σ_j w_ij v_j / Σ_j w_ij)
 *     gQ_i    = round32(scale·Σ_j round24(w_ij (g_i·v_j - D_i)) k_j / Σ_j w_ij),  D_i = g_i·out_i, chains over the values' width
 *     p_ij    = round24(w_ij / Σ_j w_ij), the quotient by the reciprocal
 *     gK_j    = round32(scale·Σ_i round24(p_ij (g_i·v_j - D_i)) q_i)
 *     gV_j    = round32(Σ_i p_ij g_i)
 * The sums over j and over i are chains in segments (formula/chain.h) that are added in order. */
#pragma once

#include "cpu/attention/geometry.h"

#define tl_attention_chain TL_V(tl_attention_chain)
#define tl_attention_chain_bwd TL_V(tl_attention_chain_bwd)

/* Of Q, K, V, the result, its cotangent, and the gradients. */
typedef struct layouts {
    layout q, k, v, out, g, gq, gk, gv;
} layouts;

/* Arrays lie as `at` says; NULL: they are contiguous. */
int32_t tl_attention_chain(tl_context *ctx, const geometry *of, const layouts *at, const float *Q, const float *K,
                           const float *V, float *out);
/* A gradient that is NULL is left out. */
int32_t tl_attention_chain_bwd(tl_context *ctx, const geometry *of, const layouts *at, const float *Q, const float *K,
                               const float *V, const float *out, const float *g, float *gQ, float *gK, float *gV);
