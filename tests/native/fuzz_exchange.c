/* Hostile calls of the functions that lend memory and borrow it, and that name and order streams. Tensors are made here: a
 * pointer to something that is none can be refused by nobody. */
#include <stdlib.h>
#include <string.h>

#include "core/dlpack.h"
#include "fuzz_abi.h"

enum { REFUSE = 1, LENT = 80 };

/* The lengths of a tensor of n elements, or of other ones; what they multiply to. */
static uint64_t draw_lengths(fuzz_run *f, uint32_t n, uint32_t *shape, uint32_t *rank)
{
    uint64_t product = 1;
    *rank = (uint32_t)fuzz_below(f, 4);
    for (uint32_t i = 0; i < *rank; i++)
        shape[i] = i + 1 == *rank && product && n % product == 0 ? n / (uint32_t)product
                                                                 : 1 + (uint32_t)fuzz_below(f, 2);
    if (*rank && fuzz_one_in(f, 8)) shape[fuzz_below(f, *rank)] = fuzz_size(f);
    for (uint32_t i = 0; i < *rank; i++)
        if (shape[i] == 0) return 0;
    for (uint32_t i = 0; i < *rank && product <= UINT32_MAX; i++)
        product *= shape[i];
    return product;
}

int32_t fuzz_lend(fuzz_run *f, const char *symbol)
{
    int want = 0, place = 0;
    uint32_t n = 0, shape[TL_MAX_RANK + 2], rank;
    torchlean_buffer *buffer = fuzz_draw_buffer(f, &want, &n, &place);
    const int bad = want == REFUSE, nowhere = fuzz_one_in(f, 8), no_shape = fuzz_one_in(f, 8);
    const uint64_t product = draw_lengths(f, n, shape, &rank);
    const int32_t versioned = fuzz_one_in(f, 8) ? (int32_t)fuzz_size(f) : (int32_t)fuzz_below(f, 2);
    const uint32_t asked = fuzz_one_in(f, 16) ? TL_MAX_RANK + 1 + fuzz_size(f) / 2 : rank;
    void *tensor = f;
    const int32_t status =
        torchlean_cuda_buffer_lend(buffer, no_shape ? NULL : shape, asked, versioned, nowhere ? NULL : &tensor);
    const int refuse = bad || nowhere || (no_shape && asked) || asked != rank || product != n || versioned < 0 ||
                       versioned > 1;
    fuzz_status(f, symbol, status, refuse, !refuse && !bad, !status); /* a loan is one more handle */
    if (status && tensor != f) fuzz_fail(f, symbol, "refused, but the place for the tensor has changed");
    if (status) return status;
    dl_versioned *const new_kind = tensor;
    dl_managed *const old_kind = tensor;
    const dl_tensor *const t = versioned ? &new_kind->tensor : &old_kind->tensor;
    int64_t elements = 1;
    for (int32_t i = 0; i < t->ndim; i++)
        elements *= t->shape[i];
    if (elements != n || t->bits != 32 || t->lanes != 1 || t->code != (place >= FUZZ_FLOATS ? DL_UINT : DL_FLOAT) ||
        t->device_type != (f->device == TORCHLEAN_CPU ? DL_CPU : DL_CUDA) || (n && !t->data))
        fuzz_fail(f, symbol, "the tensor of %u elements has %lld of type %d at %p", n, (long long)elements, t->code,
                  t->data);
    versioned ? new_kind->deleter(new_kind) : old_kind->deleter(old_kind);
    if (!fuzz_intact(f, n, place)) fuzz_fail(f, symbol, "the buffer has changed");
    return status;
}

static void count_plain(dl_managed *t) { ++*(int *)t->manager; }
static void count_versioned(dl_versioned *t) { ++*(int *)t->manager; }

/* Memory of the call's own, borrowed by a context of the CPU, with at most one thing wrong. */
int32_t fuzz_borrow(fuzz_run *f, const char *symbol)
{
    _Alignas(64) static _Thread_local float memory[LENT];
    int64_t shape[2] = {1 + (int64_t)fuzz_below(f, 7), (int64_t)fuzz_below(f, 9)}, strides[2] = {shape[1], 1};
    const int64_t n = shape[0] * shape[1];
    int deleted = 0, refuse = fuzz_one_in(f, 2), bad_context = 0, nowhere = 0;
    int32_t versioned = (int32_t)fuzz_below(f, 2);
    dl_tensor t = {memory, DL_CPU, 0, 2, fuzz_one_in(f, 3) ? DL_UINT : DL_FLOAT, 32, 1, shape, strides, 0};
    dl_versioned new_kind = {1, (uint32_t)fuzz_size(f), &deleted, count_versioned, 0, t};
    torchlean_context *own = NULL, *context;
    torchlean_buffer *out = NULL, *taken = NULL;
    if (torchlean_cuda_context_create(TORCHLEAN_CPU, &own)) return TORCHLEAN_OK;
    context = own;
    if (refuse) {
        switch (fuzz_below(f, 11)) {
        case 0: bad_context = 1, context = fuzz_one_in(f, 2) ? NULL : f->destroyed; break;
        case 1: nowhere = 1; break;
        case 2: out = taken = (torchlean_buffer *)(uintptr_t)(fuzz_next(f) | 1); break;
        case 3: t.device_type = DL_CUDA + (int32_t)fuzz_below(f, 2) * 5; break;
        case 4: t.code = (uint8_t)(fuzz_below(f, 250) + DL_FLOAT + 1); break;
        case 5: t.bits = (uint8_t)(fuzz_below(f, 4) * 16), t.bits += t.bits == 32; break;
        case 6: t.lanes = (uint16_t)(2 + fuzz_below(f, 9)); break;
        case 7: shape[fuzz_below(f, 2)] = -1 - (int64_t)(fuzz_next(f) >> 2); break;
        case 8:
            if (shape[0] > 1 && n)
                strides[0] += 1 + (int64_t)fuzz_size(f);
            else
                t.shape = NULL;
            break;
        case 9: shape[0] = INT64_C(1) << 31, shape[1] = 2 + (int64_t)fuzz_size(f), t.strides = NULL; break;
        default:
            if (n)
                t.byte_offset = 4 * (1 + fuzz_below(f, 3));
            else
                t.ndim = -1;
        }
    }
    if (fuzz_one_in(f, 16)) versioned = 2 + (int32_t)fuzz_below(f, 9), refuse = 1;
    dl_managed old_kind = {t, &deleted, count_plain};
    new_kind.tensor = t;
    if (versioned == 1 && fuzz_one_in(f, 8)) new_kind.flags = DL_READ_ONLY, refuse = 1;
    if (versioned == 1 && fuzz_one_in(f, 8)) new_kind.major = 2, refuse = 1;
    const int32_t status = torchlean_cuda_buffer_borrow(context, versioned ? (void *)&new_kind : (void *)&old_kind,
                                                        versioned, nowhere ? NULL : &out);
    fuzz_status(f, symbol, status, refuse || bad_context, !refuse, 0);
    if (status && (out != taken || deleted)) fuzz_fail(f, symbol, "refused, but the tensor or the slot has changed");
    if (!status && t.code == DL_FLOAT && n) {
        memory[0] = memory[n - 1] = 1.0f;
        if (torchlean_cuda_buffer_fill(out, 3.0f) || memory[0] != 3.0f || memory[n - 1] != 3.0f)
            fuzz_fail(f, symbol, "the buffer is not the tensor's memory");
    }
    if (torchlean_cuda_context_destroy(own)) fuzz_fail(f, symbol, "the context cannot be destroyed");
    if (!status && deleted != 1) fuzz_fail(f, symbol, "the tensor was given back %d times, expected once", deleted);
    return status;
}

/* A context of the CPU, or with one thing wrong a handle that is none. */
static torchlean_context *draw_own(fuzz_run *f, const char *symbol, int wrong, torchlean_context **own)
{
    if (torchlean_cuda_context_create(TORCHLEAN_CPU, own)) fuzz_fail(f, symbol, "no context");
    return !wrong ? *own : fuzz_one_in(f, 2) ? NULL : f->destroyed;
}

/* Memory of the call's own as one or two buffers of a context of the CPU, with at most one thing wrong. */
int32_t fuzz_wrap(fuzz_run *f, const char *symbol)
{
    _Alignas(64) static _Thread_local float memory[LENT];
    const int wrong = fuzz_one_in(f, 2) ? 1 + (int)fuzz_below(f, 6) : 0;
    uint32_t n = (uint32_t)fuzz_below(f, LENT + 1);
    int32_t is_index = fuzz_one_in(f, 3);
    void *p = n || fuzz_one_in(f, 2) ? memory : NULL;
    torchlean_context *own = NULL, *context = draw_own(f, symbol, wrong == 1, &own);
    torchlean_buffer *out = NULL, *before = NULL, *again = NULL;
    switch (wrong) {
    case 3: before = out = (torchlean_buffer *)(uintptr_t)(fuzz_next(f) | 1); break;
    case 4: p = (char *)memory + 1 + fuzz_below(f, 15); break;
    case 5: p = NULL, n += !n; break;
    case 6: is_index = (int32_t)(2 + fuzz_size(f) / 4) * (fuzz_one_in(f, 2) ? 1 : -1); break;
    default: break;
    }
    const int32_t status = torchlean_cuda_buffer_wrap(context, p, n, is_index, wrong == 2 ? NULL : &out);
    fuzz_status(f, symbol, status, wrong, !wrong, 0);
    if (status && out != before) fuzz_fail(f, symbol, "refused, but the slot has changed");
    if (!status && n && !is_index) {
        memory[0] = memory[n - 1] = 1.0f;
        if (torchlean_cuda_buffer_wrap(context, p, n, 0, &again) || torchlean_cuda_buffer_fill(again, 3.0f) ||
            memory[0] != 3.0f || memory[n - 1] != 3.0f)
            fuzz_fail(f, symbol, "the buffer is not the memory");
    }
    if (torchlean_cuda_context_destroy(own)) fuzz_fail(f, symbol, "the context cannot be destroyed");
    return status;
}

static void *count_up(void *user, uint64_t bytes)
{
    void *p = malloc(bytes);
    *(int *)user += p != NULL;
    return p;
}
static void count_down(void *user, void *memory)
{
    free(memory);
    --*(int *)user;
}

/* A context of the CPU with an allocator of the call's own, whose memory is back when the context is gone. */
int32_t fuzz_adopt(fuzz_run *f, const char *symbol)
{
    const int wrong = fuzz_one_in(f, 2) ? 1 + (int)fuzz_below(f, 4) : 0, none = fuzz_one_in(f, 4);
    int out = 0;
    torchlean_context *own = NULL, *context = draw_own(f, symbol, wrong == 1, &own);
    torchlean_buffer *made = NULL;
    const int32_t status = torchlean_cuda_context_adopt(context, wrong == 2 ? 1 + fuzz_below(f, 99) : 0,
                                                        none || wrong == 3 ? NULL : count_up,
                                                        (none && wrong != 3) || wrong == 4 ? NULL : count_down, &out);
    const int refuse = wrong && !(wrong == 4 && none);
    fuzz_status(f, symbol, status, refuse, !refuse, 0);
    if (!status && (torchlean_cuda_buffer_zeros(context, 5, &made) || out != !none))
        fuzz_fail(f, symbol, "%d blocks of the allocator are used, expected %d", out, !none);
    if (torchlean_cuda_context_destroy(own) || out) fuzz_fail(f, symbol, "%d blocks are not back", out);
    return status;
}

int32_t fuzz_stream(fuzz_run *f, const char *symbol)
{
    int want = 0;
    torchlean_context *context = fuzz_draw_context(f, &want);
    uint64_t stream = 77;
    const int nowhere = fuzz_one_in(f, 5), refuse = want == REFUSE || nowhere;
    const int32_t status = torchlean_cuda_context_stream(context, nowhere ? NULL : &stream);
    fuzz_status(f, symbol, status, refuse, !refuse, 0);
    if (status ? stream != 77 : (stream != 0) != (f->device != TORCHLEAN_CPU))
        fuzz_fail(f, symbol, "status %d, but the stream is %llu", status, (unsigned long long)stream);
    return status;
}

/* The default streams, 0 to 2: a number that is no stream's can be refused by nobody. */
int32_t fuzz_order(fuzz_run *f, const char *symbol)
{
    int want = 0;
    torchlean_context *context = fuzz_draw_context(f, &want);
    const int32_t after = fuzz_one_in(f, 4) ? (int32_t)fuzz_size(f) : (int32_t)fuzz_below(f, 2);
    const int refuse = want == REFUSE || after < 0 || after > 1 || f->device == TORCHLEAN_CPU;
    const int32_t status = torchlean_cuda_context_order(context, fuzz_below(f, 3), after);
    fuzz_status(f, symbol, status, refuse, !refuse, 0);
    return status;
}
