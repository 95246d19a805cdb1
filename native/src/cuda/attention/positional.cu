/* Position encodings on CUDA: the CPU path's formulas, element by element, so the bits are the same.
 *
 * A thread owns PAIRS pairs of one position and makes their cosines and sines once, then goes through a run of the
 * batch, reading and writing 16 bytes at a time where the width allows. The loads of UNROLL members are issued
 * together. What is added needs no pairs: there a thread owns neighbouring elements of a member, wherever rows start.
 *
 * The frequencies of the pairs stay on the device for the calls that follow: a copy would take as long as a small kernel. */
#include "cuda/device/division.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/rotary.h"
#include "generated/attention.h"

#include <stdlib.h>
#include <string.h>

namespace {

constexpr int THREADS = 256, UNROLL = 4;
enum Kind { INTERLEAVED, HALVES };

struct Positions {
    const float *x;
    float *out;
    const uint64_t *rates; /* of the pairs */
    int64_t batch, n, d, start;
    bool back;
    int64_t members;   /* of the batch, per thread */
    tl_fastdiv groups; /* of a position, or its elements */
    uint32_t total;    /* threads along x: of all positions of a member */
};

/* The elements of a group: 4 consecutive ones, once (two pairs side by side) or twice (four pairs across the halves);
 * otherwise one pair. */
template <Kind KIND, bool WIDE> struct Group {
    static constexpr int PAIRS = WIDE ? (KIND == HALVES ? 4 : 2) : 1;
    static constexpr int COUNT = 2 * PAIRS;

    __device__ static void load(const float *row, int64_t d, int64_t first, float *v)
    {
        if constexpr (WIDE) {
            tl_load4(row + first, v);
            if constexpr (KIND == HALVES) tl_load4(row + d / 2 + first, v + 4);
        } else {
            v[0] = row[first];
            v[1] = row[KIND == HALVES ? d / 2 + first : first + 1];
        }
    }

    __device__ static void store(float *row, int64_t d, int64_t first, const float *v)
    {
        if constexpr (WIDE) {
            tl_store4(row + first, v);
            if constexpr (KIND == HALVES) tl_store4(row + d / 2 + first, v + 4);
        } else {
            row[first] = v[0];
            row[KIND == HALVES ? d / 2 + first : first + 1] = v[1];
        }
    }

    /* Index of the first and of the second element of pair i among the group's. */
    __device__ static constexpr int first(int i) { return KIND == HALVES ? i : 2 * i; }
    __device__ static constexpr int second(int i) { return KIND == HALVES ? PAIRS + i : 2 * i + 1; }
};

template <Kind KIND, bool WIDE> __global__ void __launch_bounds__(THREADS) position_kernel(Positions a)
{
    using G = Group<KIND, WIDE>;
    tl_wait_for_earlier();
    const uint32_t t = blockIdx.x * THREADS + threadIdx.x;
    if (t >= a.total) return;
    uint32_t group;
    const int64_t p = a.groups.divmod(t, &group);
    const int64_t pair = (int64_t)group * G::PAIRS;
    const int64_t column = KIND == HALVES ? pair : 2 * pair;
    int64_t b = (int64_t)blockIdx.y * a.members;
    const int64_t end = b + a.members < a.batch ? b + a.members : a.batch;
    float v[UNROLL][G::COUNT];
    const auto load = [&] {
        TL_UNROLL_FOR (int u = 0; u < UNROLL; u++)
            if (b + u < end) G::load(a.x + ((b + u) * a.n + p) * a.d, a.d, column, v[u]);
    };
    load(); /* on their way while the waves are computed */
    float c[G::PAIRS], s[G::PAIRS];
    TL_UNROLL_FOR (int i = 0; i < G::PAIRS; i++) {
        tl_turn((uint64_t)(a.start + p) * a.rates[pair + i], &c[i], &s[i]);
        if (a.back) s[i] = -s[i];
    }
    for (;;) {
        TL_UNROLL_FOR (int u = 0; u < UNROLL; u++) {
            if (b + u >= end) break;
            TL_UNROLL_FOR (int i = 0; i < G::PAIRS; i++) {
                float &x = v[u][G::first(i)], &y = v[u][G::second(i)], turned_x, turned_y;
                tl_rotate(x, y, c[i], s[i], &turned_x, &turned_y);
                x = turned_x, y = turned_y;
            }
            G::store(a.out + ((b + u) * a.n + p) * a.d, a.d, column, v[u]);
        }
        b += UNROLL;
        if (b >= end) return;
        load();
    }
}

/* A thread owns OWN neighbouring elements of a member. Where positions have an even width they begin with a sine. */
template <int OWN> __global__ void __launch_bounds__(THREADS) add_kernel(Positions a)
{
    constexpr int AT_ONCE = OWN == 1 ? 2 * UNROLL : UNROLL;
    tl_wait_for_earlier();
    const uint32_t t = blockIdx.x * THREADS + threadIdx.x;
    if (t >= a.total) return;
    int64_t b = (int64_t)blockIdx.y * a.members;
    const int64_t end = b + a.members < a.batch ? b + a.members : a.batch, size = a.n * a.d;
    const float *x = a.x + b * size + (int64_t)t * OWN;
    float *out = a.out + b * size + (int64_t)t * OWN;
    float v[AT_ONCE][OWN], wave[OWN];
    const auto load = [&] {
        TL_UNROLL_FOR (int u = 0; u < AT_ONCE; u++)
            if (b + u < end) tl_load(x + u * size, v[u]);
    };
    load(); /* on their way while the waves are computed */
    float c = 0.0f, s = 0.0f;
    TL_UNROLL_FOR (int i = 0; i < OWN; i++) {
        uint32_t column;
        const int64_t p = a.groups.divmod(t * OWN + i, &column);
        if (i == 0 || column % 2 == 0) tl_turn((uint64_t)(a.start + p) * a.rates[column / 2], &c, &s);
        wave[i] = column % 2 == 0 ? s : c;
    }
    for (;;) {
        TL_UNROLL_FOR (int u = 0; u < AT_ONCE; u++) {
            if (b + u >= end) break;
            TL_UNROLL_FOR (int i = 0; i < OWN; i++)
                v[u][i] += wave[i];
            if constexpr (OWN == 4)
                tl_store4(out + u * size, v[u]);
            else
                out[u * size] = v[u][0];
        }
        b += AT_ONCE, x += AT_ONCE * size, out += AT_ONCE * size;
        if (b >= end) return;
        load();
    }
}

/* ---- frequencies on the device -------------------------------------------------------------------------------------- */

/* The frequencies of a context's earlier calls, one list behind the other. Graphs read them too, so none is given up: lists beyond
 * the room are copied for each call. */
constexpr int LISTS = 32;
constexpr int64_t RATES = 8192;
struct Rates {
    uint64_t *rates;
    int lists;
    int64_t first[LISTS + 1], d[LISTS];
    float base[LISTS];
};

void close_rates(void *object)
{
    cudaFree(static_cast<Rates *>(object)->rates);
    free(object);
}

/* The context's lists, which are made with the first one; NULL where there is no memory for them. */
Rates *find_lists(tl_context *ctx)
{
    Rates *lists = static_cast<Rates *>(tl_cuda_attached(ctx, TL_ATTACH_RATES));
    if (lists) return lists;
    lists = static_cast<Rates *>(calloc(1, sizeof *lists));
    if (!lists) return nullptr;
    if (cudaMalloc(&lists->rates, RATES * sizeof *lists->rates) != cudaSuccess) {
        cudaGetLastError();
        free(lists);
        return nullptr;
    }
    tl_cuda_attach(ctx, TL_ATTACH_RATES, lists, close_rates);
    return lists;
}

/* The frequencies of `pairs` pairs: those of an earlier call, or a copy, which is kept if there is room. A graph keeps its own copy,
 * which is made once. */
int32_t find_rates(tl_context *ctx, float base, int64_t d, int64_t pairs, tl_scratch<uint64_t> &staged,
                   const uint64_t **rates)
{
    Rates *const lists = tl_cuda_capturing(ctx) ? static_cast<Rates *>(tl_cuda_attached(ctx, TL_ATTACH_RATES))
                                                : find_lists(ctx);
    for (int i = 0; lists && i < lists->lists; i++)
        if (lists->d[i] == d && memcmp(&lists->base[i], &base, sizeof base) == 0) {
            *rates = lists->rates + lists->first[i];
            return TORCHLEAN_OK;
        }
    uint64_t few[512], *rate = few;
    void *more = nullptr;
    if (pairs > 512) {
        more = malloc((size_t)pairs * sizeof *rate);
        if (!more) return tl_fail(TORCHLEAN_NO_MEMORY, "no host memory for %lld frequencies", (long long)pairs);
        rate = (uint64_t *)more;
    }
    for (int64_t i = 0; i < pairs; i++)
        rate[i] = tl_turn_rate(base, i, d);
    const int list = lists ? lists->lists : 0;
    const bool kept = lists && !tl_cuda_capturing(ctx) && list < LISTS && lists->first[list] + pairs <= RATES;
    uint64_t *const table = kept ? lists->rates + lists->first[list] : nullptr;
    const int32_t status = kept ? tl_cuda_send_table(ctx, table, rate, (size_t)pairs * sizeof *rate)
                                : staged.stage(rate, pairs);
    free(more);
    TL_TRY(status);
    *rates = kept ? table : staged;
    if (kept) {
        lists->d[list] = d, lists->base[list] = base, lists->first[list + 1] = lists->first[list] + pairs;
        lists->lists++;
    }
    return TORCHLEAN_OK;
}

/* Threads along the batch, and along x `total`, whose elements count how many are there of a position. */
int32_t launch(tl_context *ctx, const char *name, void (*kernel)(Positions), Positions a, float base, int64_t groups,
               int64_t total)
{
    /* about a million threads where there is so much to do, and at most 65535 blocks along the batch */
    int64_t members = a.batch * total / (1 << 20) + 1;
    members = tl_ceil_div(members < UNROLL ? UNROLL : members, UNROLL) * UNROLL;
    if (members < tl_ceil_div(a.batch, 65535)) members = tl_ceil_div(a.batch, 65535);
    a.members = members, a.groups = tl_fastdiv((uint64_t)groups), a.total = (uint32_t)total;
    tl_scratch<uint64_t> staged(ctx);
    TL_TRY(find_rates(ctx, base, a.d, (a.d + 1) / 2, staged, &a.rates));
    const dim3 grid(tl_grid(total, THREADS), (unsigned)tl_ceil_div(a.batch, members));
    return tl_launch_ahead(ctx, name, kernel, grid, THREADS, 0, a);
}

template <Kind KIND> int32_t turn(tl_context *ctx, const Positions &a, float base)
{
    const bool wide = a.d % (KIND == HALVES ? 8 : 4) == 0 && tl_aligned4(a.x) && tl_aligned4(a.out);
    const int64_t groups = wide ? a.d / (KIND == HALVES ? 8 : 4) : a.d / 2;
    return launch(ctx, "rotary", wide ? position_kernel<KIND, true> : position_kernel<KIND, false>, a, base, groups,
                  a.n * groups);
}

int32_t rotate(tl_context *ctx, const float *x, int64_t batch, int64_t n, int64_t d, float base, int64_t start,
               int64_t halves, bool back, float *out)
{
    const Positions a{x, out, nullptr, batch, n, d, start, back};
    return halves ? turn<HALVES>(ctx, a, base) : turn<INTERLEAVED>(ctx, a, base);
}

} /* namespace */

extern "C" int32_t tl_cuda_rotary(tl_context *ctx, const float *x, int64_t batch, int64_t n, int64_t d, float base,
                                  int64_t start, int64_t halves, float *out)
{
    return rotate(ctx, x, batch, n, d, base, start, halves, false, out);
}

extern "C" int32_t tl_cuda_rotary_bwd(tl_context *ctx, const float *g, int64_t batch, int64_t n, int64_t d, float base,
                                      int64_t start, int64_t halves, float *gx)
{
    return rotate(ctx, g, batch, n, d, base, start, halves, true, gx);
}

extern "C" int32_t tl_cuda_sinusoidal(tl_context *ctx, const float *x, int64_t batch, int64_t n, int64_t d, float base,
                                      int64_t start, float *out)
{
    const bool wide = n * d % 4 == 0 && tl_aligned4(x) && tl_aligned4(out);
    return launch(ctx, "sinusoidal", wide ? add_kernel<4> : add_kernel<1>, {x, out, nullptr, batch, n, d, start}, base,
                  d, n * d / (wide ? 4 : 1));
}

extern "C" int32_t tl_cuda_sinusoidal_bwd(tl_context *ctx, const float *g, int64_t batch, int64_t n, int64_t d,
                                          float base, int64_t start, float *gx)
{
    (void)base, (void)start;
    return tl_cuda_copy(tl_context_cuda(ctx), gx, g, (size_t)(batch * n * d) * sizeof *g);
}
