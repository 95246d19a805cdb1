/* Tests of the library's core in C: handles, the pool, the checks of entry points, threads and fork.
 *
 * `make -C native check` runs it; with SANITIZE=address,undefined or SANITIZE=thread under the sanitizers. It is linked
 * with the library's objects, so it also reaches what is not exported. Operations are stood in for by the fake entry
 * points below, written as the generated ones are. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/call.h"
#include "core/errors.h"
#include "core/kernel.h"
#include "core/threads.h"
#include "core_test.h"
#include "formula/random.h"

_Atomic int core_checks, core_failures;

void core_check(int good, const char *text, const char *file, int line)
{
    core_checks++;
    if (!good) {
        core_failures++;
        fprintf(stderr, "%s:%d: failed: %s (%s)\n", file, line, text, torchlean_cuda_last_error());
    }
}

void core_check_status(int32_t got, int32_t wanted, const char *text, const char *file, int line)
{
    core_checks++;
    if (got != wanted) {
        core_failures++;
        fprintf(stderr, "%s:%d: %s gave %s (%s), expected %s\n", file, line, text, torchlean_cuda_status_name(got),
                torchlean_cuda_last_error(), torchlean_cuda_status_name(wanted));
    }
}

static int says(const char *part) { return strstr(torchlean_cuda_last_error(), part) != NULL; }

/* A status, and a part of its message, or all of it. */
#define CHECK_SAYS(expr, wanted, part) (CHECK_STATUS(expr, wanted), CHECK(says(part)))
#define CHECK_MESSAGE(expr, wanted, text) \
    (CHECK_STATUS(expr, wanted), CHECK(strcmp(torchlean_cuda_last_error(), text) == 0))

static torchlean_context *new_context(void)
{
    torchlean_context *context = NULL;
    OK(torchlean_cuda_context_create(TORCHLEAN_CPU, &context));
    return context;
}

static torchlean_buffer *new_buffer(torchlean_context *context, uint32_t n, float first)
{
    torchlean_buffer *buffer = NULL;
    float *host = malloc((n + 1) * sizeof *host);
    for (uint32_t i = 0; i < n; i++)
        host[i] = first + (float)i;
    OK(torchlean_cuda_buffer_upload(context, host, n, &buffer));
    free(host);
    return buffer;
}

static float element(torchlean_buffer *buffer, uint32_t n, uint32_t i)
{
    float *host = malloc((n + 1) * sizeof *host);
    OK(torchlean_cuda_buffer_download(buffer, host, n));
    float value = host[i];
    free(host);
    return value;
}

static torchlean_memory memory(torchlean_context *context)
{
    torchlean_memory m = {0};
    OK(torchlean_cuda_memory_stats(context, &m));
    return m;
}

/* ---- fake operations ------------------------------------------------------------------------------------------- */

static int fail_kernel; /* a status the next kernel returns, without a message if negative */

static int32_t fake_outcome(void)
{
    int status = fail_kernel;
    fail_kernel = 0;
    return status > 0 ? tl_fail(status, "the kernel says no") : -status;
}

/* out = a + b, elementwise */
static int32_t fake_add(torchlean_buffer *a, torchlean_buffer *b, torchlean_buffer **out)
{
    tl_call call;
    tl_enter(&call, "fake_add", "a", a);
    call.elementwise = 1;
    uint64_t n = tl_length(&call, "a", a);
    const float *x = tl_input(&call, "a", a, "n", n), *y = tl_input(&call, "b", b, "n", n);
    tl_output(&call, "out", out, "n", n);
    if (tl_begin(&call)) {
        float *z = tl_out(&call, 0);
        for (uint64_t i = 0; i < n; i++)
            z[i] = x[i] + y[i];
        call.status = fake_outcome();
    }
    return tl_end(&call);
}

/* out = -a, the smallest call there is */
static int32_t fake_neg(torchlean_buffer *a, torchlean_buffer **out)
{
    tl_call call;
    tl_enter(&call, "fake_neg", "a", a);
    call.elementwise = 1;
    uint64_t n = tl_length(&call, "a", a);
    const float *x = tl_input(&call, "a", a, "n", n);
    tl_output(&call, "out", out, "n", n);
    if (tl_begin(&call)) {
        float *z = tl_out(&call, 0);
        for (uint64_t i = 0; i < n; i++)
            z[i] = -x[i];
    }
    return tl_end(&call);
}

/* rows and cols of A (rows, cols), with an optional bias (cols): first = a row, second (optional) = a column */
static int32_t fake_split(torchlean_buffer *A, torchlean_buffer *bias, uint32_t rows, uint32_t cols,
                          torchlean_buffer **first, torchlean_buffer **second)
{
    tl_call call;
    tl_enter(&call, "fake_split", "A", A);
    const float *a = tl_input(&call, "A", A, "rows*cols", TL_PRODUCT(rows, cols));
    const float *b = tl_input_optional(&call, "bias", bias, "cols", cols);
    tl_output(&call, "first", first, "cols", cols);
    tl_output_optional(&call, "second", second, "rows", rows);
    if (tl_begin(&call)) {
        float *p = tl_out(&call, 0), *q = tl_out(&call, 1);
        CHECK((q == NULL) == (second == NULL));
        for (uint32_t i = 0; i < cols; i++)
            p[i] = (rows ? a[i] : 0) + (b ? b[i] : 0);
        for (uint32_t i = 0; q && i < rows; i++)
            q[i] = cols ? a[(size_t)i * cols] : 0;
        call.status = fake_outcome();
    }
    return tl_end(&call);
}

/* ---- tests ----------------------------------------------------------------------------------------------------- */

static void test_library(void)
{
    CHECK(strcmp(torchlean_cuda_last_error(), "") == 0);
    CHECK(torchlean_cuda_version() > 0);
    CHECK(strstr(torchlean_cuda_build_info(), "backend=") != NULL);
    CHECK(torchlean_cuda_abi_hash() != NULL);
    CHECK(strcmp(torchlean_cuda_status_name(20), "SHAPE") == 0);
    CHECK(strcmp(torchlean_cuda_status_name(21), "UNKNOWN") == 0);
    CHECK(strcmp(torchlean_cuda_status_name(-10), "UNKNOWN") == 0);
    CHECK(strcmp(torchlean_cuda_status_name(TORCHLEAN_INTERRUPTED + 10), "UNKNOWN") == 0);
    char text[200], tiny[4];
    OK(torchlean_cuda_device_describe(TORCHLEAN_CPU, text, sizeof text));
    CHECK(strncmp(text, "CPU, ", 5) == 0);
    OK(torchlean_cuda_device_describe(TORCHLEAN_CPU, tiny, sizeof tiny));
    CHECK(strcmp(tiny, "CPU") == 0);
    CHECK_SAYS(torchlean_cuda_device_describe(TORCHLEAN_CPU, NULL, 4), TORCHLEAN_NULL, "got NULL, expected room");
    CHECK_SAYS(torchlean_cuda_device_describe(TORCHLEAN_CPU, text, 0), TORCHLEAN_NULL, "got capacity 0, expected room");
    CHECK_STATUS(torchlean_cuda_device_describe(-2, text, sizeof text), TORCHLEAN_UNAVAILABLE);
    CHECK_STATUS(torchlean_cuda_device_describe(1000, text, sizeof text), TORCHLEAN_UNAVAILABLE);
    torchlean_context *context = NULL;
    CHECK_STATUS(torchlean_cuda_context_create(1000, &context), TORCHLEAN_UNAVAILABLE);
    CHECK_STATUS(torchlean_cuda_context_create(-7, &context), TORCHLEAN_UNAVAILABLE);
    CHECK(context == NULL);
    CHECK_STATUS(torchlean_cuda_context_create(TORCHLEAN_CPU, NULL), TORCHLEAN_NULL);

    const char *best = torchlean_cuda_cpu_variant();
    OK(torchlean_cuda_set_cpu_variant("base"));
    CHECK(strcmp(torchlean_cuda_cpu_variant(), "base") == 0);
    CHECK_STATUS(torchlean_cuda_set_cpu_variant("mmx"), TORCHLEAN_UNAVAILABLE);
    OK(torchlean_cuda_set_cpu_variant(NULL));
    CHECK(getenv("TORCHLEAN_CPU_VARIANT") || strcmp(torchlean_cuda_cpu_variant(), best) == 0);
}

static uint64_t token(const torchlean_buffer *handle) { return (uint64_t)(uintptr_t)handle ^ tl_handle_salt; }

static void test_handles(void)
{
    torchlean_context *context = new_context(), *asked = NULL;
    torchlean_buffer *a = new_buffer(context, 5, 1), *out = NULL;
    uint32_t n = 0;
    OK(torchlean_cuda_buffer_length(a, &n));
    CHECK(n == 5);
    OK(torchlean_cuda_buffer_context(a, &asked));
    CHECK(asked == context);

    CHECK_STATUS(torchlean_cuda_buffer_release(NULL), TORCHLEAN_NULL);
    CHECK_STATUS(torchlean_cuda_context_destroy(NULL), TORCHLEAN_NULL);
    CHECK_SAYS(fake_neg(NULL, &out), TORCHLEAN_NULL, "fake_neg: a: got NULL");
    /* handles of the other kind */
    CHECK_STATUS(torchlean_cuda_buffer_length((torchlean_buffer *)context, &n), TORCHLEAN_RELEASED);
    CHECK_STATUS(torchlean_cuda_context_synchronize((torchlean_context *)a), TORCHLEAN_RELEASED);
    /* addresses, and values close to real handles */
    uint64_t bits = token(a);
    const uint64_t one = UINT64_C(1) << 28; /* of the handle's generation */
    const uint64_t odd[] = {1,
                            8,
                            UINT64_MAX,
                            (uintptr_t)&n,
                            (uintptr_t)context + 1,
                            bits + one,
                            bits + (one << 27),
                            bits | TL_INDEX_MAX,
                            bits + 1000,
                            bits & ~(0xfffffff * one),
                            bits ^ (one << 32)};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        const uint64_t value = odd[i] ^ (i < 5 ? 0 : tl_handle_salt);
        CHECK_SAYS(torchlean_cuda_buffer_release((torchlean_buffer *)(uintptr_t)value), TORCHLEAN_RELEASED,
                   "never issued");
        CHECK_STATUS(torchlean_cuda_context_destroy((torchlean_context *)(uintptr_t)(value + 3)), TORCHLEAN_RELEASED);
    }
    for (uint64_t i = 0; i < 100000; i++) {
        uint64_t value = tl_mix(i + 12345);
        if (i % 2) value = (value & 0xffffffffffffff) | (uint64_t)(i % 4 == 1 ? TL_TAG_BUFFER : TL_TAG_CONTEXT) << 56;
        value ^= tl_handle_salt;
        if (torchlean_cuda_buffer_length((torchlean_buffer *)(uintptr_t)value, &n) != TORCHLEAN_RELEASED)
            CHECK(value == (uint64_t)(uintptr_t)a);
        CHECK(fake_neg((torchlean_buffer *)(uintptr_t)value, &out) == TORCHLEAN_RELEASED ||
              value == (uint64_t)(uintptr_t)a);
        CHECK(torchlean_cuda_context_synchronize((torchlean_context *)(uintptr_t)value) == TORCHLEAN_RELEASED);
    }

    /* released: a clear message, and releasing again is fine, also after the slot was used again */
    OK(torchlean_cuda_buffer_release(a));
    OK(torchlean_cuda_buffer_release(a));
    CHECK_STATUS(fake_neg(a, &out), TORCHLEAN_RELEASED);
    CHECK(says("a released buffer") && out == NULL);
    torchlean_buffer *b = new_buffer(context, 3, 1);
    CHECK(a != b && (token(a) & TL_INDEX_MAX) == (token(b) & TL_INDEX_MAX));
    OK(torchlean_cuda_buffer_release(a));
    CHECK_STATUS(torchlean_cuda_buffer_length(a, &n), TORCHLEAN_RELEASED);
    OK(torchlean_cuda_buffer_length(b, &n));

    /* the last generation of a slot: used once more, then the slot is retired */
    OK(torchlean_cuda_buffer_release(b));
    tl_slot *slot = tl_table_slot(&tl_buffers, (uint32_t)(token(b) & TL_INDEX_MAX));
    atomic_store(&slot->state, (uint64_t)(TL_GENERATION_MAX - 1) * 2);
    torchlean_buffer *last = new_buffer(context, 3, 1);
    CHECK((token(last) >> 28 & TL_GENERATION_MAX) == TL_GENERATION_MAX);
    OK(torchlean_cuda_buffer_release(last));
    torchlean_buffer *after = new_buffer(context, 3, 1);
    CHECK((token(after) & TL_INDEX_MAX) != (token(last) & TL_INDEX_MAX));
    CHECK_STATUS(torchlean_cuda_buffer_length(last, &n), TORCHLEAN_RELEASED);

    /* a destroyed context takes its buffers along */
    OK(torchlean_cuda_context_destroy(context));
    OK(torchlean_cuda_context_destroy(context));
    CHECK_STATUS(torchlean_cuda_buffer_length(after, &n), TORCHLEAN_RELEASED);
    OK(torchlean_cuda_buffer_release(after));
    CHECK_STATUS(torchlean_cuda_context_synchronize(context), TORCHLEAN_RELEASED);
    torchlean_context *again = new_context();
    CHECK(again != context);
    OK(torchlean_cuda_context_destroy(context));
    OK(torchlean_cuda_context_synchronize(again));

    /* more buffers than two chunks of the table hold */
    enum { MANY = 5000 };
    static torchlean_buffer *many[MANY];
    for (int i = 0; i < MANY; i++)
        OK(torchlean_cuda_buffer_empty(again, 1, &many[i]));
    CHECK(memory(again).live_buffers == MANY);
    for (int i = 0; i < MANY; i += 2)
        OK(torchlean_cuda_buffer_release(many[i]));
    OK(torchlean_cuda_buffer_length(many[MANY - 1], &n));
    OK(torchlean_cuda_context_destroy(again));
    memset(many, 0, sizeof many);
}

static void test_pool(void)
{
    torchlean_context *context = new_context();
    torchlean_buffer *a = NULL, *b = NULL;
    static const uint64_t classes[][2] = {
        {0, 256},           {1, 256},     {64, 256},    {65, 512},          {512, 2048},
        {513, 2304},        {1024, 4096}, {1025, 4608}, {1 << 20, 4 << 20}, {(1 << 20) + 1, 4718592},
        {3000000, 12582912}};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        OK(torchlean_cuda_buffer_empty(context, (uint32_t)classes[i][0], &a));
        CHECK(memory(context).live_bytes == classes[i][1]);
        OK(torchlean_cuda_buffer_release(a));
        a = NULL;
    }
    OK(torchlean_cuda_memory_collect(context));
    OK(torchlean_cuda_memory_reset_peak(context));
    torchlean_memory m = memory(context);
    CHECK(m.live_bytes == 0 && m.cached_bytes == 0 && m.peak_bytes == 0 && m.live_buffers == 0);
    CHECK(m.allocations == 11 && m.driver_allocations == 9); /* 0, 1 and 64 elements share a class */

    OK(torchlean_cuda_buffer_zeros(context, 1000, &a));
    OK(torchlean_cuda_buffer_zeros(context, 1000, &b));
    CHECK(element(a, 1000, 999) == 0.0f);
    OK(torchlean_cuda_buffer_release(b));
    m = memory(context);
    CHECK(m.live_bytes == 4096 && m.peak_bytes == 8192 && m.cached_bytes == 4096 && m.live_buffers == 1);
    /* a steady state asks the system for nothing */
    uint64_t driver = m.driver_allocations;
    for (int i = 0; i < 1000; i++) {
        b = NULL;
        OK(fake_neg(a, &b));
        OK(torchlean_cuda_buffer_release(b));
    }
    m = memory(context);
    CHECK(m.driver_allocations == driver && m.peak_bytes == 8192);

    /* the cap: collected once, then refused; what lived stays */
    OK(torchlean_cuda_memory_cap(context, 12 << 10));
    b = NULL;
    OK(torchlean_cuda_buffer_empty(context, 2000, &b)); /* 8 KiB only fits once the cached block is gone */
    CHECK(memory(context).cached_bytes == 0 && memory(context).live_bytes == 12 << 10);
    torchlean_buffer *c = NULL;
    CHECK_STATUS(torchlean_cuda_buffer_zeros(context, 100, &c), TORCHLEAN_NO_MEMORY);
    CHECK(c == NULL && says("torchlean_cuda_buffer_zeros: ") && says("cap") && says("400 bytes"));
    OK(torchlean_cuda_memory_cap(context, 0));
    OK(torchlean_cuda_buffer_zeros(context, 100, &c));

    /* scratch */
    tl_context *ctx;
    void *p, *q;
    CHECK(tl_lock_context(context, &ctx) == TL_LIVE);
    OK(tl_pool_alloc(ctx, 0, &p));
    OK(tl_pool_alloc(ctx, 0, &q));
    CHECK(p != q && (uintptr_t)p % 256 == 0);
    tl_pool_free(ctx, p);
    tl_pool_free(ctx, p);
    tl_pool_free(ctx, NULL);
    tl_pool_free(ctx, &m); /* not of this pool */
    CHECK(!tl_pool_owns(ctx, &m) && tl_pool_owns(ctx, q));
    tl_pool_free(ctx, q);
    CHECK_STATUS(tl_pool_alloc(ctx, (size_t)1 << 62, &p), TORCHLEAN_NO_MEMORY);
    CHECK(p == NULL);
    OK(tl_pool_alloc(ctx, 5 << 20, &p));
    memset(p, 1, 5 << 20);
    tl_unlock(ctx);
    m = memory(context);
    CHECK(m.live_buffers == 3);
    OK(torchlean_cuda_context_destroy(context));
}

static void test_share(void)
{
    for (int order = 0; order < 2; order++) {
        torchlean_context *context = new_context();
        torchlean_buffer *a = new_buffer(context, 7, 1), *s = NULL;
        uint32_t references = 0;
        OK(torchlean_cuda_buffer_share(a, &s));
        CHECK(s != a);
        CHECK_STATUS(torchlean_cuda_buffer_share(a, &s), TORCHLEAN_ARGUMENT);
        OK(torchlean_cuda_buffer_references(a, &references));
        CHECK(references == 2 && memory(context).live_buffers == 2 && memory(context).live_bytes == 256);
        OK(torchlean_cuda_buffer_fill(a, 9));
        CHECK(element(s, 7, 6) == 9);
        OK(torchlean_cuda_buffer_release(order ? a : s));
        torchlean_buffer *left = order ? s : a;
        CHECK(element(left, 7, 0) == 9 && memory(context).live_bytes == 256);
        OK(torchlean_cuda_buffer_references(left, &references));
        CHECK(references == 1);
        OK(torchlean_cuda_buffer_release(left));
        CHECK(memory(context).live_bytes == 0 && memory(context).cached_bytes == 256);
        OK(torchlean_cuda_context_destroy(context));
    }
}

static void test_moving(void)
{
    torchlean_context *context = new_context();
    torchlean_buffer *a = NULL, *b = NULL, *none = NULL;
    uint32_t bits[3] = {0x7fa12345u, 0x80000000u, 0x00000001u}, back[3] = {0}; /* signalling NaN, -0, subnormal */
    float host[3], got[3];
    memcpy(host, bits, sizeof host);
    OK(torchlean_cuda_buffer_upload(context, host, 3, &a));
    OK(torchlean_cuda_buffer_copy(a, &b));
    OK(torchlean_cuda_buffer_download(b, got, 3));
    memcpy(back, got, sizeof back);
    CHECK(memcmp(bits, back, sizeof bits) == 0);
    CHECK_SAYS(torchlean_cuda_buffer_download(b, got, 2), TORCHLEAN_SHAPE, "got 3 elements, expected n = 2");
    CHECK_STATUS(torchlean_cuda_buffer_download(b, NULL, 3), TORCHLEAN_NULL);
    CHECK_STATUS(torchlean_cuda_buffer_upload(context, NULL, 3, &none), TORCHLEAN_NULL);
    CHECK_STATUS(torchlean_cuda_buffer_upload(context, host, 3, NULL), TORCHLEAN_NULL);
    CHECK_STATUS(torchlean_cuda_buffer_copy(a, &a), TORCHLEAN_ALIAS);
    OK(torchlean_cuda_buffer_upload(context, NULL, 0, &none));
    OK(torchlean_cuda_buffer_download(none, NULL, 0));
    torchlean_buffer *large = new_buffer(context, 3000001, 0);
    CHECK(element(large, 3000001, 3000000) == 3000000.0f && element(large, 3000001, 262144) == 262144.0f);
    OK(torchlean_cuda_buffer_fill(large, 0.1));
    CHECK(element(large, 3000001, 3000000) == 0.1f && element(large, 3000001, 0) == 0.1f);
    double milliseconds = -1;
    CHECK_STATUS(torchlean_cuda_context_mark(context, 8), TORCHLEAN_ARGUMENT);
    OK(torchlean_cuda_context_mark(context, 0));
    CHECK_STATUS(torchlean_cuda_context_elapsed(context, 0, 7, &milliseconds), TORCHLEAN_ARGUMENT);
    OK(torchlean_cuda_context_mark(context, 7));
    OK(torchlean_cuda_context_elapsed(context, 0, 7, &milliseconds));
    CHECK(milliseconds >= 0);
    OK(torchlean_cuda_context_destroy(context));
}

static void test_calls(void)
{
    torchlean_context *context = new_context(), *other = new_context();
    torchlean_buffer *a = new_buffer(context, 6, 1), *b = new_buffer(context, 6, 10), *out = NULL, *second = NULL;
    torchlean_buffer *foreign = new_buffer(other, 6, 0), *bias = new_buffer(context, 3, 100), *twin = NULL;

    OK(fake_add(a, b, &out));
    CHECK(element(out, 6, 5) == 21);
    OK(fake_add(a, out, &out)); /* overwritten in place */
    CHECK(element(out, 6, 5) == 27);
    torchlean_buffer *same = a;
    OK(fake_add(a, b, &same));
    CHECK(same == a && element(a, 6, 0) == 11);

    CHECK_MESSAGE(fake_add(a, bias, &out), TORCHLEAN_SHAPE, "fake_add: b: got 3 elements, expected n = 6");
    CHECK_STATUS(fake_add(a, foreign, &out), TORCHLEAN_DEVICE);
    CHECK_STATUS(fake_add(a, b, &foreign), TORCHLEAN_DEVICE);
    CHECK_STATUS(fake_add(a, b, &bias), TORCHLEAN_SHAPE);
    CHECK_SAYS(fake_add(a, b, NULL), TORCHLEAN_NULL, "fake_add: out:");
    CHECK(element(out, 6, 5) == 27);

    /* several outputs, optional ones, aliases */
    torchlean_buffer *first = NULL;
    OK(fake_split(a, NULL, 2, 3, &first, NULL));
    OK(fake_split(a, bias, 2, 3, &first, &second));
    CHECK(element(first, 3, 0) == 111 && element(second, 2, 0) == 11);
    CHECK_SAYS(fake_split(a, bias, 2, 3, &bias, &second), TORCHLEAN_ALIAS,
               "got storage of input bias, expected its own");
    OK(torchlean_cuda_buffer_share(bias, &twin));
    CHECK_STATUS(fake_split(a, bias, 2, 3, &twin, &second), TORCHLEAN_ALIAS); /* the same storage, another handle */
    CHECK_STATUS(fake_split(a, NULL, 3, 2, &second, &second), TORCHLEAN_ALIAS);
    torchlean_buffer *fresh = NULL, *square = new_buffer(context, 4, 0), *two = NULL, *two_twin = NULL;
    CHECK_STATUS(fake_split(square, NULL, 2, 2, &fresh, &fresh), TORCHLEAN_ALIAS);
    OK(torchlean_cuda_buffer_empty(context, 2, &two));
    OK(torchlean_cuda_buffer_share(two, &two_twin));
    CHECK_SAYS(fake_split(square, NULL, 2, 2, &two, &two_twin), TORCHLEAN_ALIAS, "got storage of output ");
    CHECK(fresh == NULL);
    CHECK_MESSAGE(fake_split(a, bias, 3, 3, &fresh, NULL), TORCHLEAN_SHAPE,
                  "fake_split: A: got 6 elements, expected rows*cols = 9");

    /* products beyond 32 and 64 bits */
    CHECK_STATUS(fake_split(a, NULL, 65536, 65536, &fresh, NULL), TORCHLEAN_OVERFLOW);
    CHECK(strcmp(torchlean_cuda_last_error(),
                 "fake_split: A: got rows*cols >= 2^32, expected fewer than 2^32 elements") == 0);
    CHECK(TL_PRODUCT(65535, 65537) == UINT32_MAX && TL_PRODUCT(65536, 65536) == UINT64_MAX);
    CHECK(TL_PRODUCT(1u << 31, 1u << 31, 4) == UINT64_MAX); /* 2^64, which wraps to 0 */
    CHECK(TL_PRODUCT(UINT32_MAX, UINT32_MAX, UINT32_MAX, 0) == 0 && TL_PRODUCT(0) == 0 && TL_PRODUCT(7) == 7);
    CHECK(TL_PRODUCT(UINT64_MAX, 1) == UINT64_MAX && tl_product(NULL, 0) == 1);

    /* nothing to do: fresh outputs are made all the same */
    torchlean_buffer *empty = new_buffer(context, 0, 0), *empty_out = NULL, *zeros = NULL;
    OK(fake_neg(empty, &empty_out));
    CHECK(empty_out != NULL);
    OK(fake_split(empty, NULL, 0, 3, &zeros, &empty_out));
    CHECK(element(zeros, 3, 2) == 0);

    /* a failing kernel: fresh outputs are gone, *out stays NULL, and the message names the operation */
    torchlean_memory before = memory(context);
    fail_kernel = TORCHLEAN_INDEX;
    CHECK_STATUS(fake_split(a, NULL, 2, 3, &fresh, &second), TORCHLEAN_INDEX);
    CHECK(fresh == NULL && strcmp(torchlean_cuda_last_error(), "fake_split: the kernel says no") == 0);
    fail_kernel = -TORCHLEAN_CUBLAS;
    CHECK_STATUS(fake_add(a, b, &fresh), TORCHLEAN_CUBLAS);
    CHECK(fresh == NULL && says("fake_add: failed with status CUBLAS"));
    torchlean_memory later = memory(context);
    CHECK(before.live_bytes == later.live_bytes && before.live_buffers == later.live_buffers);
    /* out of memory for the second of two outputs */
    OK(torchlean_cuda_memory_collect(context));
    later = memory(context);
    OK(torchlean_cuda_memory_cap(context, later.live_bytes + 256));
    torchlean_buffer *other_fresh = NULL;
    CHECK_STATUS(fake_split(a, NULL, 2, 3, &fresh, &other_fresh), TORCHLEAN_NO_MEMORY);
    CHECK(says("fake_split: ") && fresh == NULL && other_fresh == NULL);
    CHECK(memory(context).live_bytes == later.live_bytes && memory(context).live_buffers == later.live_buffers);

    /* dimension lists */
    uint32_t dims[9] = {2, 3, 4, 5, 1, 1, 1, 1, 1};
    tl_call call;
    tl_enter_context(&call, "fake_dims", context);
    tl_dims d = tl_read_dims(&call, "dims", dims, 4, 1);
    CHECK(d.rank == 4 && d.d[3] == 5 && tl_dims_product(&d) == 120 && call.status == TORCHLEAN_OK);
    tl_dims scalar = tl_read_dims(&call, "dims", NULL, 0, 0);
    CHECK(scalar.rank == 0 && tl_dims_product(&scalar) == 1);
    tl_require(&call, 1, TORCHLEAN_ARGUMENT, "x", "fine");
    OK(call.status);
    tl_read_dims(&call, "dims", dims, 9, 1);
    CHECK_MESSAGE(tl_end(&call), TORCHLEAN_SHAPE, "fake_dims: dims: got rank 9, expected 1 to 8");
    tl_enter_context(&call, "fake_dims", context);
    tl_read_dims(&call, "dims", NULL, 2, 1);
    CHECK_STATUS(tl_end(&call), TORCHLEAN_NULL);
    tl_enter_context(&call, "fake_host", context);
    tl_host(&call, "A", dims, 9);
    tl_host(&call, "B", NULL, 0);
    CHECK(tl_begin_host(&call));
    OK(tl_end(&call));
    tl_enter_context(&call, "fake_host", context);
    tl_host(&call, "A", dims, TL_PRODUCT(65536, 65536));
    CHECK(!tl_begin_host(&call));
    CHECK_STATUS(tl_end(&call), TORCHLEAN_OVERFLOW);
    tl_enter_context(&call, "fake_op", context);
    tl_require(&call, 0, TORCHLEAN_ARGUMENT, "stride", "got %d, expected 1 or more", 0);
    tl_require(&call, 0, TORCHLEAN_INDEX, "axis", "second failure"); /* the first one sticks */
    CHECK_MESSAGE(tl_end(&call), TORCHLEAN_ARGUMENT, "fake_op: stride: got 0, expected 1 or more");
    CHECK(tl_scalar(0.1) == 0.1f && isnan(tl_scalar((double)NAN)) && tl_scalar(1e300) == INFINITY);

    OK(torchlean_cuda_context_destroy(context));
    OK(torchlean_cuda_context_destroy(other));
}

/* Of every pair of types, and of lengths around the pieces in which long arrays are converted. */
static void test_convert(void)
{
    enum { PIECE = 1 << 20, MOST = 2 * PIECE + 3 };
    static const uint64_t lengths[] = {0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, MOST};
    char *from = malloc(8 * (size_t)MOST), *to = malloc(8 * (size_t)MOST + 1);
    CHECK(from && to);
    for (int32_t type = TORCHLEAN_FLOAT32; from && to && type <= TORCHLEAN_UINT64; type++) {
        for (uint64_t i = 0; i < MOST; i++) { /* whole numbers that every type holds, other ones in every piece */
            const uint64_t number = i * 7 % 16000057;
            if (type == TORCHLEAN_FLOAT32)
                ((float *)from)[i] = (float)number;
            else if (type == TORCHLEAN_FLOAT64)
                ((double *)from)[i] = (double)number;
            else
                ((uint64_t *)from)[i] = number;
        }
        for (int32_t narrow = 0; narrow < 2; narrow++)
            for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
                memset(to, 0xff, 8 * (size_t)MOST + 1);
                OK(torchlean_cuda_convert(from, type, lengths[k], to, narrow ? TORCHLEAN_FLOAT32 : TORCHLEAN_FLOAT64));
                uint64_t wrong = 0;
                for (uint64_t i = 0; i < lengths[k]; i++)
                    wrong += (narrow ? ((float *)to)[i] : ((double *)to)[i]) != (double)(i * 7 % 16000057);
                CHECK(wrong == 0);
                CHECK((unsigned char)to[lengths[k] * (narrow ? 4 : 8)] == 0xff); /* nothing behind the last one */
            }
    }
    free(from);
    free(to);
}

#if defined(__x86_64__)
static void test_float_mode(void)
{
    torchlean_context *context = new_context();
    torchlean_buffer *a = NULL, *out = NULL;
    float subnormal = 0x1p-149f, got = 0;
    uint32_t flush = __builtin_ia32_stmxcsr() | 0x8040;
    OK(torchlean_cuda_buffer_upload(context, &subnormal, 1, &a));
    /* scalars and host numbers are rounded in the call's mode: flushed, rounded up, with all exceptions unmasked */
    static const uint32_t modes[] = {0x9fc0, 0x5f80, 0x3f80, 0x7f80, 0x0000};
    const double numbers[2] = {0x1p-149, 1 + 0x1p-30};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        float rounded[2] = {0, 0};
        __builtin_ia32_ldmxcsr(modes[i]);
        OK(torchlean_cuda_convert(numbers, TORCHLEAN_FLOAT64, 2, rounded, TORCHLEAN_FLOAT32));
        OK(torchlean_cuda_buffer_fill(a, 1 + 0x1p-30));
        OK(torchlean_cuda_buffer_download(a, &got, 1));
        OK(torchlean_cuda_buffer_fill(a, 0x1p-149));
        uint32_t left = __builtin_ia32_stmxcsr();
        __builtin_ia32_ldmxcsr(0x1f80);
        CHECK(left == modes[i] && got == 1 && element(a, 1, 0) == subnormal);
        CHECK(rounded[0] == subnormal && rounded[1] == 1);
    }
    __builtin_ia32_ldmxcsr(flush); /* flush to zero, as a library built with -ffast-math leaves it */
    OK(fake_add(a, a, &out));
    CHECK((__builtin_ia32_stmxcsr() & 0x8040) == 0x8040);
    __builtin_ia32_ldmxcsr(0x1f80);
    OK(torchlean_cuda_buffer_download(out, &got, 1));
    CHECK(got == 0x1p-148f);
    OK(torchlean_cuda_context_destroy(context));
}
#else
static void test_float_mode(void) {}
#endif

int main(void)
{
    test_library();
    core_test_arguments();
    test_handles();
    test_pool();
    test_share();
    test_moving();
    test_calls();
    test_convert();
    test_float_mode();
    core_test_captures();
    core_test_exchange(), core_test_hosts();
    core_test_concurrency(), core_test_interrupts();
    printf("core_test: %d checks, %d failed\n", core_checks, core_failures);
    return core_failures != 0;
}
