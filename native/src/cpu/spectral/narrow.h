/* Truncated and whole transforms of the spectral convolution, and those of few channels (spectral/narrow.c). */
#pragma once

#include "cpu/spectral/fft.h"
#include "cpu/spectral/single.h"
#include "formula/dft_tile.h"

/* Up to so many channels lanes are tiles, or transforms are made one by one. */
enum { TILE = TL_DFT_TILE, HALF = TL_DFT_HALF, TL_NARROW = TL_W / 2 };

/* One truncated transform or its adjoint. `table` holds for mode k and pair j cos(pi·k·(2j+1)/n), and after all of them
 * the sines, [k][j] for synthesis, [j][k] for analysis with the modes padded to a multiple of 4. */
typedef struct tl_tiles {
    const tl_fft *roots;             /* packed: of 2n */
    int64_t n, width, modes, padded; /* padded: modes to a multiple of 4 */
    const float *table;
    const float *x; /* analysis: (n, width) */
    float *sums;    /* analysis: [block][mode][re, im][CHANNELS-padded width] */
    int64_t columns;
    const float *re, *im; /* synthesis: (modes, width) */
    float *y;
    char *scratch;
    int64_t per_worker;
} tl_tiles;

static inline void fill_table(const tl_tiles *t, float *table, int by_pair)
{
    const uint64_t m = 2 * (uint64_t)t->n;
    for (int64_t k = 0; k < t->padded; k++)
        for (int64_t j = 0; j < HALF; j++) {
            double c = 0, s = 0;
            if (k < t->modes) tl_root((uint64_t)k * (uint64_t)(2 * j + 1) % m, m, &c, &s);
            const int64_t at = by_pair ? j * t->padded + k : k * HALF + j;
            table[at] = (float)c;
            table[HALF * t->padded + at] = (float)s;
        }
}

/* e^(-i·pi·k·(2·t0 + TILE - 1)/n) for the modes of the tile at t0. */
static inline void tile_roots(const tl_tiles *t, int64_t t0, float *roots)
{
    const uint64_t m = 2 * (uint64_t)t->n, step = (uint64_t)(2 * t0 + TILE - 1) % m;
    uint64_t at = 0;
    for (int64_t k = 0; k < t->modes; k++) {
        double c, s;
        tl_root_at(&t->roots->packed, at, &c, &s);
        roots[2 * k] = (float)c;
        roots[2 * k + 1] = (float)s;
        at += step;
        at = at >= m ? at - m : at;
    }
}

/* A transform of every column, or its adjoint. */
typedef struct tl_columns {
    tl_real real;
    int64_t width, modes;
    const float *x;
    float *re, *im;
    float *y;
    char *scratch;
    int64_t per_worker;
} tl_columns;

#define tl_narrow_analysis TL_V(tl_narrow_analysis)
#define tl_narrow_synthesis TL_V(tl_narrow_synthesis)
#define tl_narrow_column TL_V(tl_narrow_column)
#define tl_narrow_scratch TL_V(tl_narrow_scratch)

/* Tasks: a block of tiles with all channels, of tl_tiles; a channel, of tl_columns. */
void tl_narrow_analysis(void *arg, int64_t block, int32_t worker);
void tl_narrow_synthesis(void *arg, int64_t block, int32_t worker);
void tl_narrow_column(void *arg, int64_t channel, int32_t worker);
/* Bytes of a worker for the former two. */
int64_t tl_narrow_scratch(const tl_tiles *t);
