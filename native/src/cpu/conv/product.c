/* Convolution as a matrix product whose right factor is never stored: target (rows, positions) = w (rows, K)·gathered
 * source (K, positions), K = channels·taps. The file has what depends on the instruction set; the algorithm is in
 * product_kernel.h, compiled here for float and, for reproducible contexts, for double.
 *
 *   before      the weights of every group are packed once
 *   item        a tile of rows by lines of positions, over all of K; tiles follow from the shape alone, and many small ones are a
 *               task
 *   for k0      blocks of KC = 256 terms: the channels that they read are copied, once for the tile (planes.h)
 *   for panel   the micro-kernel, which finds a term at a constant offset from the position
 *
 * The lanes of a vector are rows where a line of positions gives the panels' scalars, whatever its length; or they are positions,
 * through the ends of lines, where rows are few or few are left over from whole vectors.
 *
 * Summation order of an element: chains of fused multiply-adds over the terms of a segment, segments added in order, the bias
 * last. In float a segment is a block (gemm.h) or, for groups of few channels, all of K; in double it is that of
 * formula/chain.h. Neither batch nor tile nor lane has a part in it. */
#include "core/threads.h"
#include "cpu/conv/planes.h"
#include "formula/chain.h"

enum { MR = TL_GEMM_MR, KC = TL_GEMM_KC, TILE_ROWS = 128, MANY_TASKS = 8 };
/* A tile has that many positions or, where few channels are copied for each, as many as take TILE_ELEMENTS. */
enum { TILE_POSITIONS = 256, MOST_POSITIONS = 4096, TILE_ELEMENTS = 32768 };
/* Multiply-adds that a task has at least, where there are few. */
#define TASK_COST 1e6

/* Terms first .. first + count - 1, of channels channel .. channel + channels - 1. */
typedef struct {
    int64_t first, count, channel, channels;
} conv_block;

static conv_block block_of(int64_t index, int64_t terms, int64_t taps)
{
    conv_block b = {.first = index * KC, .count = tl_imin(KC, terms - index * KC)};
    b.channel = b.first / taps;
    b.channels = (b.first + b.count - 1) / taps - b.channel + 1;
    return b;
}

#define REAL float
#define FN(name) name##_f32
#define VL LANES_F32
#include "cpu/conv/product_kernel.h"
#undef REAL
#undef FN
#undef VL

#define REAL double
#define FN(name) name##_f64
#define VL LANES_F64
#include "cpu/conv/product_kernel.h"
