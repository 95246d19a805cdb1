/* What the host does for both passes of attention by chains of float64 (attention/chain_tiles.cuh): segments, blocks and their rows. */
#pragma once

#include "cuda/attention/chain_tiles.cuh"

#include <algorithm>

namespace attention {
namespace chain {

/* The length of a segment of the sums of `rows` rows. */
inline int64_t segment_of(tl_context *ctx, int64_t rows, int64_t others, int64_t least)
{
    return tl_is_reproducible(ctx) ? tl_chain_segment(others) : terms_of_block(rows, others, least);
}

/* What a pass is about: blocks of C::ROWS of the `rows` of each member, which go through `others`, times the chunks of
 * results of `width` elements, of `arrays` arrays; `pitch` numbers of a row are left where segments are several blocks'
 * work. */
struct Pass {
    int64_t rows, others, width, arrays, pitch;
};

/* Whether the segments of a pass are several blocks' work: where blocks would not fill the device twice. The segments
 * of the mode `reproducible` may be many to a row, and their sums many times as large as the arrays: there where blocks
 * are very few. */
template <class C> bool splits(tl_context *ctx, const Args &a, const Pass &pass)
{
    const int64_t blocks = a.members * tl_ceil_div(pass.rows, C::ROWS), sms = tl_cuda_sms(ctx);
    return pass.others > a.segment && blocks < (tl_is_reproducible(ctx) ? sms : 2 * C::BLOCKS * sms);
}

/* Whether so many rows to a block leave enough blocks, and few of its rows empty. */
template <class C> bool fills(tl_context *ctx, const Args &a, const Pass &pass)
{
    const int64_t segments = splits<C>(ctx, a, pass) ? tl_ceil_div(pass.others, a.segment) : 1;
    return pass.rows > C::ROWS / 2 &&
           a.members * tl_ceil_div(pass.rows, C::ROWS) * segments >= (int64_t)tl_cuda_sms(ctx);
}

/* Then `join` gets the arguments and the number of segments. */
template <class C, class K, class Join>
int32_t launch(tl_context *ctx, const char *name, K kernel, Args a, size_t shared, const Pass &pass, Join join)
{
    a.blocks = (uint32_t)tl_ceil_div(pass.rows, C::ROWS);
    a.of_q = make_walk<typename C::Keys>(a.d, a.wide_d, a.at_q.row);
    a.of_k = make_walk<typename C::Keys>(a.d, a.wide_d, a.at_k.row);
    a.of_v = make_walk<typename C::Values>(a.v, a.wide_v, a.at_v.row);
    a.of_g = make_walk<typename C::Values>(a.v, a.wide_v, a.at_g.row);
    const int64_t chunks = chunks_of<C>(pass.width);
    const int64_t blocks = a.members * a.blocks;
    if (blocks == 0) return TORCHLEAN_OK;
    const bool split = splits<C>(ctx, a, pass);
    const int64_t segments = split ? tl_ceil_div(pass.others, a.segment) : 1;
    tl_scratch<double> scratch(ctx);
    if (split) {
        TL_TRY(scratch.allocate(segments * a.members * pass.rows * pass.pitch));
        a.parts = scratch, a.pitch = pass.pitch;
    } else if (pass.others > a.segment) {
        TL_TRY(scratch.allocate(pass.arrays * blocks * std::min(chunks, TL_CHUNKS_MOST) * C::THREADS * C::SUMS));
        a.totals = scratch;
    }
    TL_TRY(launch_chunks(a.chunk, chunks, dim3((unsigned)blocks, 1, (unsigned)segments),
                         [&](dim3 grid) { return tl_launch_shared(ctx, name, kernel, grid, C::THREADS, shared, a); }));
    return split ? join(a, (int)segments) : (int32_t)TORCHLEAN_OK;
}

} /* namespace chain */
} /* namespace attention */
