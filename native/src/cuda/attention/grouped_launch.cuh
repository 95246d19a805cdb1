/* What the host does for the passes of attention/grouped.cu, whichever kernels make them: parts of sums and their ends. */
#pragma once

#include "cuda/attention/partial.cuh"
#include "cuda/attention/stored_weights.cuh"

namespace attention {
namespace grouped {

constexpr const char *GROUPED = "grouped_attention";

/* Blocks of C::ROWS of the `rows` of each member, times the chunks of results of `width` elements. */
template <class C, class K>
static int32_t launch(tl_context *ctx, K kernel, Args &a, size_t shared, int64_t rows, int64_t width, int64_t parts)
{
    a.blocks = (uint32_t)tl_ceil_div(rows, C::ROWS);
    if (a.members * a.blocks == 0) return TORCHLEAN_OK;
    const dim3 blocks((unsigned)(a.members * a.blocks), 1, (unsigned)parts);
    return launch_chunks(a.chunk, chunks_of<C>(width), blocks, [&](dim3 grid) {
        return tl_launch_shared(ctx, GROUPED, kernel, grid, C::THREADS, shared, a);
    });
}

/* Whether a block shall have the fewer rows of SMALL: where all such blocks, of `chunks` for the same rows, run at once. COLS and TX
 * decide the order of sums, ROWS does not. */
template <class LARGE, class SMALL> static bool few_blocks(tl_context *ctx, const Args &a, int64_t chunks)
{
    static_assert(LARGE::COLS == SMALL::COLS && LARGE::TX == SMALL::TX, "the order of sums");
    return a.members * tl_ceil_div(a.rows, SMALL::ROWS) * chunks <= SMALL::BLOCKS * tl_cuda_sms(ctx);
}

/* Joins the parts of the queries. Defined in attention/grouped.cu. */
int32_t join_parts(tl_context *ctx, const Args &a, int64_t parts);

/* launched(width, parts): the pass, of `parts` parts of the keys. */
template <class Launch> static int32_t query_parts(tl_context *ctx, Args &a, Launch launched)
{
    a.part = terms_of_block(a.rows, a.keys, 512);
    const int64_t width = a.gQ ? a.d : 0, parts = a.keys > a.part ? tl_ceil_div(a.keys, a.part) : 1;
    tl_scratch<float> scratch(ctx);
    if (parts > 1) TL_TRY(scratch.allocate(parts * a.members * a.rows * (width + 2)));
    a.parts = parts > 1 ? (float *)scratch : nullptr;
    TL_TRY(launched(width, parts));
    return parts > 1 ? join_parts(ctx, a, parts) : (int32_t)TORCHLEAN_OK;
}

/* The pass over keys by kernels of tiles C: launched(parts), of `parts` parts of the rows. A block of theirs is `faster` times as fast as
 * one of attention/grouped.cu's tiles. */
template <class C, class Launch> static int32_t key_parts(tl_context *ctx, Args &a, int faster, Launch launched)
{
    a.part = terms_of_block(a.keys, a.rows, 256);
    const int64_t parts = a.rows > a.part ? tl_ceil_div(a.rows, a.part) : 1;
    PartialGradient part_k(ctx, a.gK, a.members, parts, a.keys * a.d),
        part_v(ctx, a.gV, a.members, parts, a.keys * a.v);
    TL_TRY(part_k.open(&a.gK));
    TL_TRY(part_v.open(&a.gV));
    a.open = window_of(a);
    const int64_t blocks = a.members * tl_ceil_div(a.open.end - a.open.first, C::ROWS) * parts;
    if (C::COLS == STORED_TILE && stored_weights_serve(ctx, a, faster * blocks)) {
        const int32_t status = stored_weights_backward(ctx, a);
        if (status != TORCHLEAN_OK && status != TORCHLEAN_NO_MEMORY) return status;
    }
    TL_TRY(launched(parts));
    TL_TRY(part_k.close());
    return part_v.close();
}

/* Blocks of C::ROWS of the keys that are left. */
template <class C, class K>
static int32_t launch_keys(tl_context *ctx, K kernel, Args &a, size_t shared, int64_t width, int64_t parts)
{
    const int64_t stored = (a.stored.end < a.keys ? a.stored.end : a.keys) - a.stored.first;
    const int64_t blocks = tl_ceil_div(a.keys, C::ROWS) - tl_ceil_div(stored, C::ROWS);
    return launch<C>(ctx, kernel, a, shared, blocks * C::ROWS, width, parts);
}

} /* namespace grouped */
} /* namespace attention */
