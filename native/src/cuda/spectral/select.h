/* Which algorithm computes a transform on CUDA: functions of the shape, the mode and the device. All thresholds of the family are here. */
#pragma once

#include <stdint.h>

typedef struct tl_spectral_device {
    int multiprocessors;
    int64_t block_bytes; /* the most shared memory of a block */
} tl_spectral_device;

/* An algorithm's name is its file's. */
typedef enum tl_real_algorithm { TL_REAL_OWN, TL_REAL_PACKED, TL_REAL_LIBRARY } tl_real_algorithm;

static inline const char *tl_real_reason(int algorithm)
{
    static const char *const reasons[] = {
        "own: the transform that the CPU has too, the mode reproducible; in fast short odd lengths",
        "packed: rows of a power of two in shared memory",
        "library: cuFFT, with copies where its layout is another",
    };
    return reasons[algorithm];
}

/* The shortest row has a pass of radix 16 and one more, the longest one fits shared memory. A block of more than 32 KiB takes several
 * times as long as one of cuFFT's, so that it is chosen only where every multiprocessor has one. */
enum { TL_PACKED_MIN = 64, TL_PACKED_MAX = 32768, TL_PACKED_FEW_ROWS_MAX = 8192 };
/* cuFFT transforms odd lengths as complex rows between two copies. Up to here a complex row, or its convolution, is a direct transform
 * in shared memory (TL_FFT_DIRECT), and one kernel takes less time than three. */
enum { TL_OWN_ODD_MAX = 2048, TL_OWN_CHIRP_MAX = 1024 };

/* Whether n is a product of primes up to 13. */
static inline int tl_is_smooth(int64_t n)
{
    static const int primes[] = {2, 3, 5, 7, 11, 13};
    for (int i = 0; i < 6; i++)
        while (n % primes[i] == 0)
            n /= primes[i];
    return n == 1;
}

/* Shared memory of n numbers of packed_kernel, with its padding. */
static inline int64_t tl_packed_bytes(int64_t n) { return 8 * (n + n / 16 + n / 256 + n / 4096); }

/* `plain`: a forward transform whose bins all have the factor 1, which cuFFT computes without a pass over memory for them. */
static inline tl_real_algorithm tl_select_real(tl_spectral_device device, int64_t batch, int64_t n, int plain,
                                               int reproducible)
{
    if (reproducible) return TL_REAL_OWN;
    if (n % 2 != 0) return n <= (tl_is_smooth(n) ? TL_OWN_ODD_MAX : TL_OWN_CHIRP_MAX) ? TL_REAL_OWN : TL_REAL_LIBRARY;
    const int64_t longest = batch < device.multiprocessors ? TL_PACKED_FEW_ROWS_MAX : TL_PACKED_MAX;
    const int is_power = (n & (n - 1)) == 0;
    return !plain && is_power && n >= TL_PACKED_MIN && n <= longest && tl_packed_bytes(n / 2) < device.block_bytes
               ? TL_REAL_PACKED
               : TL_REAL_LIBRARY;
}

/* The spectral convolution in the mode `fast`: sums over tiles of the grid for the modes that are kept, or whole transforms by cuFFT.
 * Up to TL_TRUNCATED_MODES, 30e12 multiply-adds a second beat four passes over memory by cuFFT; with less than TL_TRUNCATED_WORK of
 * them, its launches take longer. Both count channels as tiles do, TL_TILE_CHANNELS at a time. */
enum { TL_TILE_CHANNELS = 64, TL_TRUNCATED_MODES = 512, TL_TRUNCATED_WORK = 1 << 27 };

typedef enum tl_spectral_conv_algorithm {
    TL_SPECTRAL_CHAIN,
    TL_SPECTRAL_TRUNCATED,
    TL_SPECTRAL_LIBRARY
} tl_spectral_conv_algorithm;

static inline const char *tl_spectral_conv_reason(int algorithm)
{
    static const char *const reasons[] = {
        "chain: float64 sums over the grid, the mode reproducible",
        "truncated: sums over tiles of the grid for the few modes that are kept",
        "library: whole transforms by cuFFT, as many modes are kept",
    };
    return reasons[algorithm];
}

static inline tl_spectral_conv_algorithm tl_select_spectral_conv(int64_t grid, int64_t width, int64_t modes,
                                                                 int reproducible)
{
    const int64_t channels = (width + TL_TILE_CHANNELS - 1) / TL_TILE_CHANNELS * TL_TILE_CHANNELS;
    const double products = (double)modes * (double)channels;
    if (reproducible) return TL_SPECTRAL_CHAIN;
    return grid < 2 || (modes <= TL_TRUNCATED_MODES && (products <= (double)TL_TRUNCATED_MODES * (double)width ||
                                                        (double)grid * products <= (double)TL_TRUNCATED_WORK))
               ? TL_SPECTRAL_TRUNCATED
               : TL_SPECTRAL_LIBRARY;
}
