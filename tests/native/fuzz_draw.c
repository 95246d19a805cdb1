/* What the hostile-call driver draws: numbers, handles, buffers with known content; and the checks every status undergoes. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz_abi.h"

/* Dimension products as the contract says, not by the library's code. */
uint64_t tl_product(const uint64_t *factors, int32_t count)
{
    unsigned __int128 product = 1;
    int large = 0;
    for (int32_t i = 0; i < count; i++) {
        if (factors[i] == 0) return 0;
        product = large ? 1 : product * factors[i];
        large |= product >> 32 != 0;
    }
    return large ? UINT64_MAX : (uint64_t)product;
}

uint64_t tl_dims_product(const tl_dims *dims)
{
    uint64_t factors[TL_MAX_RANK];
    for (int32_t i = 0; i < dims->rank; i++)
        factors[i] = (uint64_t)dims->d[i];
    return tl_product(factors, dims->rank);
}

tl_dims fuzz_dims(const fuzz_value *v)
{
    tl_dims out = {0};
    if (v->rank > TL_MAX_RANK || !v->array) return out;
    out.rank = (int32_t)v->rank;
    for (uint32_t i = 0; i < v->rank; i++)
        out.d[i] = v->list[i];
    return out;
}

/* ---- drawing --------------------------------------------------------------------------------------------------- */

uint64_t fuzz_next(fuzz_run *f) { return tl_mix(f->state += UINT64_C(0x9e3779b97f4a7c15)); }

uint32_t fuzz_size(fuzz_run *f)
{
    static const uint32_t edges[] = {0, 1, 2, 1u << 16, 1u << 31, UINT32_MAX, 8, 9, 255, 1u << 24};
    switch (fuzz_below(f, 4)) {
    case 0: return (uint32_t)fuzz_next(f);
    case 1: return (uint32_t)fuzz_below(f, 40);
    default: return edges[fuzz_below(f, 10)] + (uint32_t)fuzz_below(f, 3) - 1;
    }
}

double fuzz_real(fuzz_run *f)
{
    static const double edges[] = {0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e38, 3.5e38, -3.5e38, 1e300, -1e-300, 1e-6, 2.0};
    uint64_t bits;
    double real;
    switch (fuzz_below(f, 6)) {
    case 0: return __builtin_nan("");
    case 1: return __builtin_inf();
    case 2: return -__builtin_inf();
    case 3:
        bits = fuzz_next(f);
        memcpy(&real, &bits, sizeof real);
        return real;
    default: return edges[fuzz_below(f, sizeof edges / sizeof *edges)];
    }
}

uint64_t fuzz_bad_handle(fuzz_run *f, fuzz_truth *truth)
{
    uint32_t n;
    *truth = FUZZ_BAD;
    for (;;) {
        uint64_t bad = fuzz_next(f);
        switch (fuzz_below(f, 9)) {
        case 0: return (uint64_t)(uintptr_t)f->released[fuzz_below(f, 16)];
        case 1: *truth = FUZZ_FOREIGN; return (uint64_t)(uintptr_t)f->abroad[fuzz_below(f, 4)];
        case 2: return (uint64_t)(uintptr_t)f->orphan;
        case 3: return (uint64_t)(uintptr_t)(fuzz_one_in(f, 2) ? f->context : f->destroyed);
        case 4: bad %= 4096; break;                                                          /* a small integer */
        case 5: bad = (uint64_t)(uintptr_t)&bad; break;                                      /* an address */
        case 6: bad = (uint64_t)(uintptr_t)f->released[fuzz_below(f, 16)] ^ bad >> 8; break; /* a buffer's tag */
        case 7: bad = UINT64_MAX - fuzz_below(f, 2); break;
        default: break;
        }
        /* NULL is drawn elsewhere; a made-up value may happen to be a live handle */
        if (bad && torchlean_cuda_buffer_length((torchlean_buffer *)(uintptr_t)bad, &n)) return bad;
    }
}

/* ---- buffers --------------------------------------------------------------------------------------------------- */

int fuzz_input_place(fuzz_run *f, int index) { return FUZZ_FLOATS * index + (int)fuzz_below(f, 4); }

/* Indices that lie within most dimensions, some far out, all the same, any. */
static uint32_t index_pattern(uint64_t bits, int place)
{
    static const uint32_t below[] = {7, 7, 1};
    if (place - FUZZ_FLOATS == 1 && bits % 5 == 0) return UINT32_MAX - (bits >> 60);
    return place - FUZZ_FLOATS < 3 ? (uint32_t)(bits >> 32) % below[place - FUZZ_FLOATS] : (uint32_t)bits;
}

/* The bits of a row's element. */
static uint32_t pattern(uint32_t n, int place, uint32_t i)
{
    static const float special[] = {0.0f, -0.0f, 1e-42f, -1e38f, 1e38f, 1.0f};
    uint64_t bits = tl_mix((uint64_t)n << 36 ^ (uint64_t)place << 32 ^ i);
    if (place >= FUZZ_FLOATS) return index_pattern(bits, place);
    if (place % 4 == 3 && bits % 5 == 0)
        return tl_bits(bits % 3 ? special[bits / 5 % 6] : bits & 64 ? __builtin_nanf("") : __builtin_inff());
    return tl_bits((float)(int32_t)(bits >> 40 & 0xffff) / 8192.0f - 4.0f);
}

void fuzz_drop_rows(fuzz_run *f)
{
    for (uint32_t k = 0; k < f->kept_count; k++) {
        fuzz_row *row = &f->rows[f->kept[k]];
        for (int i = 0; i < FUZZ_PLACES; i++) {
            if (row->buffer[i]) f->live -= torchlean_cuda_buffer_release(row->buffer[i]) == TORCHLEAN_OK;
        }
        memset(row, 0, sizeof *row);
    }
    f->kept_count = 0;
    f->kept_elements = 0;
}

torchlean_buffer *fuzz_take(fuzz_run *f, uint32_t n, int place)
{
    fuzz_row *row = &f->rows[n];
    if (row->buffer[place] && !row->dirty[place]) return row->buffer[place];
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t bits = pattern(n, place, i);
        memcpy(&f->host[i], &bits, sizeof bits);
    }
    int first = 1, made = !row->buffer[place];
    for (int i = 0; i < FUZZ_PLACES; i++)
        first &= !row->buffer[i];
    int32_t status = place < FUZZ_FLOATS
                         ? torchlean_cuda_buffer_upload(f->context, f->host, n, &row->buffer[place])
                         : torchlean_cuda_index_upload(f->context, (uint32_t *)f->host, n, &row->buffer[place]);
    if (status) {
        fuzz_fail(f, "torchlean_cuda_buffer_upload", "a buffer of %u elements: status %d (%s)", n, status,
                  torchlean_cuda_last_error());
        fflush(NULL);
        _exit(1); /* other threads may be in the library, which exit would take down under them */
    }
    row->dirty[place] = 0;
    if (made) {
        f->live++;
        f->kept_elements += n;
    }
    if (first) f->kept[f->kept_count++] = n;
    return row->buffer[place];
}

int fuzz_intact(fuzz_run *f, uint32_t n, int place)
{
    torchlean_buffer *buffer = f->rows[n].buffer[place];
    if (place < FUZZ_FLOATS ? torchlean_cuda_buffer_download(buffer, f->host, n)
                            : torchlean_cuda_index_download(buffer, (uint32_t *)f->host, n))
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t want = pattern(n, place, i);
        if (memcmp(&f->host[i], &want, sizeof want)) return 0;
    }
    return 1;
}

/* ---- verdicts ------------------------------------------------------------------------------------------------------ */

void fuzz_fail(fuzz_run *f, const char *symbol, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    flockfile(stderr);
    fprintf(stderr, "FAIL seed %llu call %llu: %s: ", (unsigned long long)f->seed, (unsigned long long)f->number,
            symbol);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    funlockfile(stderr);
    va_end(arguments);
    f->failed++;
}

void fuzz_status(fuzz_run *f, const char *symbol, int32_t status, int refuse, int accept, uint64_t made)
{
    if (status % 10 || status < 0 || status >= TORCHLEAN_INTERNAL || status == TORCHLEAN_CUDA ||
        status == TORCHLEAN_CUBLAS || status == TORCHLEAN_CUFFT)
        fuzz_fail(f, symbol, "status %d (%s)", status, torchlean_cuda_last_error());
    else
        f->statuses[status / 10]++;
    if (refuse && !status) fuzz_fail(f, symbol, "accepted, expected a refusal");
    if (accept && status)
        fuzz_fail(f, symbol, "refused with %d (%s), expected success", status, torchlean_cuda_last_error());
    size_t length = strlen(symbol);
    if (status && (strncmp(torchlean_cuda_last_error(), symbol, length) || torchlean_cuda_last_error()[length] != ':' ||
                   strlen(torchlean_cuda_last_error()) < length + 4))
        fuzz_fail(f, symbol, "status %d with the message \"%s\"", status, torchlean_cuda_last_error());
    torchlean_memory m;
    if (f->shared) return;
    if (torchlean_cuda_memory_stats(f->context, &m) || m.live_buffers != f->live + made)
        fuzz_fail(f, symbol, "status %d, then %llu live buffers, expected %llu", status,
                  (unsigned long long)m.live_buffers, (unsigned long long)(f->live + made));
}
