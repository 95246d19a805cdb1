/* The passes of attention by chains of float64, each compiled by itself. */
#pragma once

#include "cuda/attention/chain_tiles.cuh"

namespace attention {
namespace chain {

/* Rows of one length are the longer of Q's and V's. A pair: where the shorter of the two has at most SHORT elements and the longer one
 * more, up to 128; a pass over keys then makes both gradients. */
constexpr int SHORT = 32;

/* Up to so many queries to a member, as when a model writes one token after the other, the pass over keys takes tiles of 8: of 32 most
 * would be empty. Keys are then read once, and the sums of a few queries leave room for more blocks. */
constexpr int64_t FEW_QUERIES = 16;

/* The passes over queries (attention/chain_queries.cu): the result, or gQ and what the pass over keys needs. */
int32_t query_pass(tl_context *ctx, const Args &a);
int32_t query_pass_bwd(tl_context *ctx, const Args &a);
int32_t query_pass_bwd_of_pairs(tl_context *ctx, const Args &a);

/* The passes over keys (attention/chain_keys.cu): gK and gV, of pairs both. */
int32_t key_pass(tl_context *ctx, const Args &a);
int32_t key_pass_of_pairs(tl_context *ctx, const Args &a);

} /* namespace chain */
} /* namespace attention */
