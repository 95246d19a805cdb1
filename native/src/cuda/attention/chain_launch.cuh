/* What the host does for both passes of attention by chains of float64 (attention/chain_tiles.cuh): segments, blocks and their rows. */
#pragma once

#include "cuda/attention/chain_tiles.cuh"

#include <algorithm>

namespace attention {
namespace chain {

/* The terms that a block sums at least, and so where sums of `others` terms are cut, for each of `rows` rows of a
 * member, in the mode `fast`, which prescribes nothing: as many as give a member alone a block for each of about 128
 * multiprocessors, at least `least`, and whole tiles. It does not depend on the number of members, so that a member has
 * the same bits in every batch. */
inline int64_t terms_of_block(int64_t rows, int64_t others, int64_t least)
{
    const int64_t blocks = tl_ceil_div(rows, 64), wanted = blocks > 0 && blocks < 128 ? 128 / blocks : 1;
    const int64_t terms = tl_ceil_div(tl_ceil_div(others, wanted), 128) * 128;
    return terms > least ? terms : least;
}

/* Chunks of C::DP elements of a result of `width`, of which a block makes one. */
template <class C> int64_t chunks_of(int64_t width) { return C::MANY && width > 0 ? tl_ceil_div(width, C::DP) : 1; }

/* launched(grid) for as many chunks at a time as a grid has, blockIdx.y those of a launch and `chunk` its first one; `grid` is that of
 * one chunk. A width that ordinary memory holds is one launch, whose blocks add a zero. */
template <class Launch> int32_t launch_chunks(uint32_t &chunk, int64_t chunks, dim3 grid, Launch launched)
{
    static_assert(TL_CHUNKS_MOST > 1, "a launch of one chunk is of a result of one");
    for (int64_t first = 0; first < chunks; first += TL_CHUNKS_MOST) {
        chunk = (uint32_t)first;
        grid.y = (unsigned)(chunks - first < TL_CHUNKS_MOST ? chunks - first : TL_CHUNKS_MOST);
        TL_TRY(launched(grid));
    }
    return TORCHLEAN_OK;
}

/* The length of a segment of the sums of `rows` rows. Where members are left out all is one segment: others need memory. */
inline int64_t segment_of(tl_context *ctx, const Args &a, int64_t rows, int64_t others, int64_t least)
{
    if (a.only) return tl_ceil_div(others, TILE) * TILE;
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
    a.of_q = make_walk<C>(a.d, a.wide_d, a.at_q.row);
    a.of_k = make_walk<C>(a.d, a.wide_d, a.at_k.row);
    a.of_v = make_walk<C>(a.v, a.wide_v, a.at_v.row);
    a.of_g = make_walk<C>(a.v, a.wide_v, a.at_g.row);
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
