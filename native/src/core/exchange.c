/* The exported functions that lend memory to others and borrow it from them, by DLPack's tensors. */
#include <stdlib.h>

#include "call.h"
#include "dlpack.h"
#include "errors.h"
#include "objects.h"

/* ---- tensors of either kind ------------------------------------------------------------------------------------------ */

static void delete_plain(void *tensor)
{
    dl_managed *const t = tensor;
    if (t->deleter) t->deleter(t);
}
static void delete_versioned(void *tensor)
{
    dl_versioned *const t = tensor;
    if (t->deleter) t->deleter(t);
}

/* ---- lending ----------------------------------------------------------------------------------------------------- */

/* A tensor of either kind, its lengths behind it. */
typedef struct loan {
    union {
        dl_managed plain;
        dl_versioned versioned;
    } as;
    torchlean_buffer *buffer;
    int cuda;
    int64_t lengths[]; /* shape, then strides */
} loan;

/* Nobody knows on which stream the memory was used; most libraries work on the legacy default one, 1. */
static void end_loan(loan *made)
{
    torchlean_context *context = NULL;
    if (made->cuda && !torchlean_cuda_buffer_context(made->buffer, &context))
        torchlean_cuda_context_order(context, 1, 1);
    torchlean_cuda_buffer_release(made->buffer);
    free(made);
}
static void end_plain(dl_managed *tensor) { end_loan(tensor->manager); }
static void end_versioned(dl_versioned *tensor) { end_loan(tensor->manager); }

/* The lengths, and what a step along each axis is. */
static void fill_tensor(dl_tensor *t, loan *made, const tl_context *ctx, const tl_buffer *buffer, const uint32_t *shape,
                        uint32_t rank)
{
    const int32_t ordinal = tl_context_ordinal(ctx);
    t->data = buffer->block->p;
    t->device_type = ordinal == TORCHLEAN_CPU ? DL_CPU : DL_CUDA;
    t->device_id = ordinal == TORCHLEAN_CPU ? 0 : ordinal;
    t->ndim = (int32_t)rank;
    t->code = buffer->is_index ? DL_UINT : DL_FLOAT;
    t->bits = 8 * sizeof(float);
    t->lanes = 1;
    t->shape = made->lengths;
    t->strides = made->lengths + rank;
    uint64_t step = 1; /* may wrap where a length is 0, and nobody takes a step then */
    for (uint32_t i = rank; i-- > 0;) {
        t->shape[i] = shape[i];
        t->strides[i] = (int64_t)step;
        step *= shape[i] ? shape[i] : 1;
    }
}

TL_API int32_t torchlean_cuda_buffer_lend(torchlean_buffer *handle, const uint32_t *shape, uint32_t rank,
                                          int32_t versioned, void **tensor)
{
    tl_buffer *buffer, *twin;
    tl_context *ctx;
    uint64_t serial = tl_error_serial(), product = 1;
    if (!tensor) return tl_fail(TORCHLEAN_NULL, "%s: tensor: got NULL, expected a place for a tensor", __func__);
    if (rank && !shape) return tl_fail(TORCHLEAN_NULL, "%s: shape: got NULL, expected %u lengths", __func__, rank);
    if (rank > TL_MAX_RANK)
        return tl_fail(TORCHLEAN_SHAPE, "%s: shape: got rank %u, expected 0 to %d", __func__, rank, TL_MAX_RANK);
    if (versioned != 0 && versioned != 1)
        return tl_fail(TORCHLEAN_ARGUMENT, "%s: versioned: got %d, expected 0 or 1", __func__, versioned);
    int empty = 0;
    for (uint32_t i = 0; i < rank; i++)
        empty |= shape[i] == 0;
    for (uint32_t i = 0; i < rank && !empty && product <= UINT32_MAX; i++)
        product *= shape[i];
    if (empty) product = 0;
    int32_t status = tl_lock_live_buffer(__func__, "buffer", handle, &buffer, &ctx);
    if (status) return status;
    const uint32_t n = atomic_load_explicit(&buffer->n, memory_order_relaxed);
    loan *made = calloc(1, sizeof *made + 2 * (size_t)rank * sizeof(int64_t));
    if (product != n)
        status = tl_fail(TORCHLEAN_SHAPE, "%s: shape: got %s%llu elements, expected %u", __func__,
                         product > UINT32_MAX ? "more than " : "", (unsigned long long)product, n);
    else if (!made)
        status = tl_fail(TORCHLEAN_NO_MEMORY, "%s: out of host memory for a tensor", __func__);
    else if ((status = tl_buffer_make(ctx, n, buffer->is_index, buffer->block, &twin)))
        tl_error_name(__func__, status, serial);
    if (status) {
        free(made);
    } else {
        made->buffer = tl_buffer_handle(twin);
        made->cuda = ctx->cuda != NULL;
        fill_tensor(versioned ? &made->as.versioned.tensor : &made->as.plain.tensor, made, ctx, buffer, shape, rank);
        if (versioned) {
            made->as.versioned.major = 1;
            made->as.versioned.manager = made;
            made->as.versioned.deleter = end_versioned;
        } else {
            made->as.plain.manager = made;
            made->as.plain.deleter = end_plain;
        }
        *tensor = made;
    }
    tl_unlock(ctx);
    return status;
}

/* ---- borrowing --------------------------------------------------------------------------------------------------- */

/* Refuses what a buffer cannot be; the number of elements, into *n. */
static int32_t check_tensor(const char *op, const tl_context *ctx, const dl_tensor *t, uint32_t *n)
{
    const int32_t ordinal = tl_context_ordinal(ctx);
    const int here = ordinal == TORCHLEAN_CPU ? t->device_type == DL_CPU || t->device_type == DL_CUDA_HOST
                                              : t->device_type == DL_CUDA && t->device_id == ordinal;
    if (!here)
        return tl_fail(TORCHLEAN_DEVICE,
                       "%s: tensor: got one of DLPack's device (%d, %d), expected one of the context's", op,
                       t->device_type, t->device_id);
    if (t->bits != 8 * sizeof(float) || t->lanes != 1 || (t->code != DL_FLOAT && t->code != DL_UINT)) {
        static const char *const types[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
        return tl_fail(TORCHLEAN_ARGUMENT, "%s: tensor: got %s%d%s, expected float32 or uint32", op,
                       t->code < sizeof types / sizeof *types ? types[t->code] : "type of ", t->bits,
                       t->lanes == 1 ? "" : " vectors");
    }
    if (t->ndim < 0 || (t->ndim && !t->shape))
        return tl_fail(TORCHLEAN_SHAPE, "%s: tensor: got %d axes%s, expected their lengths", op, t->ndim,
                       t->ndim < 0 ? "" : " without lengths");
    int64_t product = 1;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0)
            return tl_fail(TORCHLEAN_SHAPE, "%s: tensor: got length %lld, expected 0 or more", op,
                           (long long)t->shape[i]);
        if (t->shape[i] == 0) product = 0;
    }
    for (int32_t i = t->ndim; product && i-- > 0;) {
        if (t->strides && t->shape[i] != 1 && t->strides[i] != product)
            return tl_fail(TORCHLEAN_SHAPE,
                           "%s: tensor: got a step of %lld along axis %d, expected %lld: row-major without gaps", op,
                           (long long)t->strides[i], i, (long long)product);
        if (t->shape[i] > UINT32_MAX / product)
            return tl_fail(TORCHLEAN_OVERFLOW, "%s: tensor: got 2^32 elements or more, expected fewer", op);
        product *= t->shape[i];
    }
    const uint64_t address = (uint64_t)(uintptr_t)t->data + t->byte_offset;
    if (product && !t->data) return tl_fail(TORCHLEAN_NULL, "%s: tensor: got no memory, expected some", op);
    if (product && address % TL_BORROWED_ALIGNMENT)
        return tl_fail(TORCHLEAN_ARGUMENT, "%s: tensor: got memory at a multiple of %d bytes, expected of %d", op,
                       (int)(address & -address), TL_BORROWED_ALIGNMENT);
    *n = (uint32_t)product;
    return TORCHLEAN_OK;
}

/* A block over the tensor's memory, or the one that is there already: *known, unless it is a caller's without a lender. */
static int32_t find_block(const char *op, tl_context *ctx, const dl_tensor *t, uint32_t n, void *managed,
                          int32_t versioned, tl_block **out, int *known)
{
    char *const p = (char *)t->data + t->byte_offset;
    tl_block *block = tl_pool_find(&ctx->pool, p);
    *known = block && (block->lender || block->owner != TL_OF_OTHERS);
    if (!*known) {
        tl_lender *lender = calloc(1, sizeof *lender);
        if (!lender) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for a tensor");
        lender->object = managed, lender->give_back = versioned ? delete_versioned : delete_plain;
        const int32_t status = tl_pool_borrow(&ctx->pool, p, (uint64_t)n * 4, lender, out);
        if (status) free(lender);
        return status;
    }
    if (block->references == 0 || (uint64_t)n * 4 > block->bytes)
        return tl_fail(TORCHLEAN_ALIAS,
                       "%s: tensor: got memory that begins where a shorter buffer of the context does, expected "
                       "memory of its own",
                       op);
    *out = block;
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_buffer_borrow(torchlean_context *context, void *tensor, int32_t versioned,
                                            torchlean_buffer **out)
{
    tl_context *ctx;
    tl_buffer *made;
    tl_block *block = NULL;
    uint32_t n = 0;
    int known = 1;
    uint64_t serial = tl_error_serial();
    if (!tensor) return tl_fail(TORCHLEAN_NULL, "%s: tensor: got NULL, expected one", __func__);
    if (!out) return tl_fail(TORCHLEAN_NULL, "%s: out: got NULL, expected a place for a buffer", __func__);
    if (*out) return tl_fail(TORCHLEAN_ARGUMENT, "%s: out: got a handle, expected NULL", __func__);
    if (versioned != 0 && versioned != 1)
        return tl_fail(TORCHLEAN_ARGUMENT, "%s: versioned: got %d, expected 0 or 1", __func__, versioned);
    const dl_versioned *const new_kind = tensor;
    if (versioned && new_kind->major != 1)
        return tl_fail(TORCHLEAN_UNAVAILABLE, "%s: tensor: got DLPack version %u, expected 1", __func__,
                       new_kind->major);
    if (versioned && new_kind->flags & DL_READ_ONLY)
        return tl_fail(TORCHLEAN_ARGUMENT, "%s: tensor: got memory that is read-only, expected a copy of it", __func__);
    const dl_tensor *const t = versioned ? &new_kind->tensor : &((const dl_managed *)tensor)->tensor;
    int32_t status = tl_lock_live_context(__func__, context, &ctx);
    if (status) return status;
    if (!(status = check_tensor(__func__, ctx, t, &n)) && n)
        status = find_block(__func__, ctx, t, n, tensor, versioned, &block, &known);
    if (!status) {
        /* no elements: storage of its own */
        status = tl_buffer_make(ctx, n, t->code == DL_UINT, block, &made);
        if (!status) *out = tl_buffer_handle(made);
        if (!known) {     /* the handle has a reference of its own */
            if (status) { /* the tensor is still the caller's */
                free(block->lender);
                block->lender = NULL;
            }
            tl_pool_drop(&ctx->pool, block);
        }
    }
    if (status) tl_error_name(__func__, status, serial);
    tl_unlock(ctx);
    if (!status && known) (versioned ? delete_versioned : delete_plain)(tensor);
    return status;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

TL_API int32_t torchlean_cuda_context_stream(torchlean_context *context, uint64_t *stream)
{
    tl_context *ctx;
    if (!stream) return tl_fail(TORCHLEAN_NULL, "%s: stream: got NULL, expected a place for the number", __func__);
    int32_t status = tl_lock_live_context(__func__, context, &ctx);
    if (status) return status;
    *stream = ctx->cuda ? tl_cuda_stream_number(ctx->cuda) : 0;
    tl_unlock(ctx);
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_context_order(torchlean_context *context, uint64_t stream, int32_t after)
{
    tl_call call;
    tl_enter_context(&call, __func__, context);
    tl_uncaptured(&call);
    tl_require(&call, call.status || call.ctx->cuda, TORCHLEAN_UNAVAILABLE, "context",
               "got one of the CPU, expected one of a CUDA device");
    tl_require(&call, after == 0 || after == 1, TORCHLEAN_ARGUMENT, "after", "got %d, expected 0 or 1", after);
    if (!call.status) call.status = tl_cuda_order(call.ctx->cuda, stream, after);
    return tl_end(&call);
}
