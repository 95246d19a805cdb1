/* Memory lent to others and borrowed from them: what tensors say, who gives what back and when, and what is refused. */
#include <stdlib.h>
#include <string.h>

#include "core/dlpack.h"
#include "core/errors.h"
#include "core_test.h"

enum { CPU = DL_CPU, CUDA = DL_CUDA, N = 24 };
#define SAYS(expr, wanted, text) \
    (CHECK_STATUS(expr, wanted), CHECK(strstr(torchlean_cuda_last_error(), text) != NULL))

static torchlean_context *context;
static _Alignas(64) float numbers[N];
static int64_t shape[2] = {4, 6}, strides[2] = {6, 1};
static int deleted;

static void delete_managed(dl_managed *m) { deleted += m->manager == &deleted; }
static void delete_versioned(dl_versioned *m) { deleted += m->manager == &deleted; }

static dl_managed plain(int32_t device)
{
    dl_managed m = {{numbers, device, 0, 2, 2, 32, 1, shape, strides, 0}, &deleted, delete_managed};
    return m;
}

static uint64_t live(void)
{
    torchlean_memory m = {0};
    OK(torchlean_cuda_memory_stats(context, &m));
    return m.live_bytes + m.live_buffers;
}

static torchlean_buffer *borrow(void *from, int32_t with_version)
{
    torchlean_buffer *out = NULL;
    OK(torchlean_cuda_buffer_borrow(context, from, with_version, &out));
    return out;
}

static void refuse(dl_managed m, int32_t status, const char *text)
{
    torchlean_buffer *out = NULL;
    const int before = deleted;
    const uint64_t held = live();
    SAYS(torchlean_cuda_buffer_borrow(context, &m, 0, &out), status, text);
    CHECK(!out && deleted == before && live() == held);
}

static void test_refusals(int32_t device)
{
    int64_t wrong[2] = {1, 4}, many[2] = {INT64_C(1) << 16, INT64_C(1) << 16}, below[2] = {4, -1};
    int64_t most[2] = {65535, 65537}; /* 2^32 - 1 elements, of which nobody reads one */
    torchlean_buffer *large = NULL;
    dl_managed m = plain(device == CPU ? CUDA : CPU);
    refuse(m, TORCHLEAN_DEVICE, "tensor: got one of DLPack's device");
    m = plain(device), m.tensor.code = 0;
    refuse(m, TORCHLEAN_ARGUMENT, "got int32, expected float32 or uint32");
    m = plain(device), m.tensor.bits = 64;
    refuse(m, TORCHLEAN_ARGUMENT, "got float64");
    m = plain(device), m.tensor.lanes = 4;
    refuse(m, TORCHLEAN_ARGUMENT, "got float32 vectors");
    m = plain(device), m.tensor.code = 200;
    refuse(m, TORCHLEAN_ARGUMENT, "got type of 32");
    m = plain(device), m.tensor.strides = wrong;
    refuse(m, TORCHLEAN_SHAPE, "got a step of 4 along axis 1, expected 1");
    m = plain(device), m.tensor.shape = many, m.tensor.strides = NULL;
    refuse(m, TORCHLEAN_OVERFLOW, "got 2^32 elements or more");
    m.tensor.shape = most;
    OK(torchlean_cuda_buffer_borrow(context, &m, 0, &large));
    OK(torchlean_cuda_buffer_release(large));
    m = plain(device), m.tensor.shape = below;
    refuse(m, TORCHLEAN_SHAPE, "got length -1");
    m = plain(device), m.tensor.ndim = -1;
    refuse(m, TORCHLEAN_SHAPE, "got -1 axes");
    m = plain(device), m.tensor.shape = NULL;
    refuse(m, TORCHLEAN_SHAPE, "got 2 axes without lengths");
    m = plain(device), m.tensor.data = NULL;
    refuse(m, TORCHLEAN_NULL, "got no memory");
    m = plain(device), m.tensor.byte_offset = 8;
    refuse(m, TORCHLEAN_ARGUMENT, "got memory at a multiple of 8 bytes, expected of 16");

    torchlean_buffer *out = NULL, *taken = (torchlean_buffer *)8;
    dl_versioned v = {2, 0, &deleted, delete_versioned, 0, m.tensor};
    SAYS(torchlean_cuda_buffer_borrow(context, &v, 1, &out), TORCHLEAN_UNAVAILABLE, "got DLPack version 2, expected 1");
    v.major = 1, v.flags = 1;
    SAYS(torchlean_cuda_buffer_borrow(context, &v, 1, &out), TORCHLEAN_ARGUMENT, "read-only");
    SAYS(torchlean_cuda_buffer_borrow(context, &v, 2, &out), TORCHLEAN_ARGUMENT, "versioned: got 2");
    SAYS(torchlean_cuda_buffer_borrow(context, NULL, 0, &out), TORCHLEAN_NULL, "tensor: got NULL");
    SAYS(torchlean_cuda_buffer_borrow(context, &m, 0, NULL), TORCHLEAN_NULL, "out: got NULL");
    SAYS(torchlean_cuda_buffer_borrow(context, &m, 0, &taken), TORCHLEAN_ARGUMENT, "out: got a handle");
    SAYS(torchlean_cuda_buffer_borrow(NULL, &m, 0, &out), TORCHLEAN_NULL, "context: got NULL");
}

/* One memory, two handles; it goes back with the last. */
static void test_borrowing(int32_t device)
{
    const uint64_t before = live();
    float host[N];
    deleted = 0;
    for (int i = 0; i < N; i++)
        numbers[i] = (float)i;
    int64_t longer[2] = {5, 6};
    dl_managed m = plain(device), again = plain(device);
    dl_versioned v = {1, 0, &deleted, delete_versioned, 0, m.tensor};
    torchlean_buffer *a = borrow(&m, 0), *b = borrow(&v, 1), *c = NULL, *sum = NULL;
    CHECK(deleted == 1); /* the second tensor, whose memory is there already */
    uint32_t references = 0;
    OK(torchlean_cuda_buffer_references(a, &references));
    CHECK(references == 2);
    OK(torchlean_cuda_buffer_download(b, host, N));
    CHECK(memcmp(host, numbers, sizeof host) == 0);
    OK(torchlean_cuda_buffer_fill(a, 2.0));
    CHECK(numbers[N - 1] == 2.0f);
    again.tensor.shape = longer, again.tensor.strides = NULL;
    refuse(again, TORCHLEAN_ALIAS, "a shorter buffer");
    OK(torchlean_cuda_buffer_share(a, &c));
    OK(torchlean_cuda_buffer_release(a));
    OK(torchlean_cuda_buffer_release(b));
    CHECK(deleted == 1);
    OK(torchlean_cuda_buffer_copy(c, &sum));
    OK(torchlean_cuda_buffer_release(c));
    CHECK(deleted == 2);
    OK(torchlean_cuda_buffer_release(sum));
    CHECK(live() == before);

    /* no elements: the tensor goes back at once; without strides, or with any step along an axis of length 1 */
    int64_t none[2] = {0, 5}, one[2] = {1, N}, steps[2] = {99, 1};
    m = plain(device), m.tensor.shape = none, m.tensor.data = NULL;
    a = borrow(&m, 0);
    CHECK(deleted == 3);
    OK(torchlean_cuda_buffer_release(a));
    m = plain(device), m.tensor.shape = one, m.tensor.strides = steps;
    a = borrow(&m, 0);
    m = plain(device), m.tensor.strides = NULL, m.tensor.code = 1;
    OK(torchlean_cuda_buffer_release(a));
    a = borrow(&m, 0);
    uint32_t indices[N];
    OK(torchlean_cuda_index_download(a, indices, N));
    OK(torchlean_cuda_buffer_release(a));
    CHECK(deleted == 5 && live() == before);
    m = plain(device), m.deleter = NULL;
    a = borrow(&m, 0);
    OK(torchlean_cuda_buffer_release(a));
}

static void test_lending(int32_t device)
{
    const uint64_t before = live();
    const uint32_t dims[3] = {2, 3, 4}, wrong[2] = {5, 5}, none[2] = {0, 7}, one[3] = {1, 24, 1};
    const uint32_t huge[4] = {1u << 30, 1u << 30, 1u << 30, 0};
    torchlean_buffer *x = NULL, *back, *empty = NULL;
    void *t = NULL, *v = NULL;
    OK(torchlean_cuda_buffer_upload(context, numbers, N, &x));
    OK(torchlean_cuda_buffer_lend(x, dims, 3, 0, &t));
    OK(torchlean_cuda_buffer_lend(x, dims, 3, 1, &v));
    dl_managed *m = t;
    dl_versioned *n = v;
    CHECK(m->tensor.ndim == 3 && m->tensor.shape[2] == 4 && m->tensor.strides[0] == 12 && m->tensor.strides[2] == 1);
    CHECK(m->tensor.device_type == device && m->tensor.code == 2 && m->tensor.bits == 32 && m->tensor.lanes == 1 &&
          !m->tensor.byte_offset);
    CHECK(n->major == 1 && n->flags == 0 && n->tensor.data == m->tensor.data);
    OK(torchlean_cuda_buffer_release(x));
    back = borrow(v, 1); /* which is our own memory: the tensor is let go */
    uint32_t references = 0;
    OK(torchlean_cuda_buffer_references(back, &references));
    CHECK(references == 2);
    m->deleter(m);
    OK(torchlean_cuda_buffer_lend(back, one, 3, 0, &t));
    ((dl_managed *)t)->deleter(t);
    SAYS(torchlean_cuda_buffer_lend(back, wrong, 2, 0, &t), TORCHLEAN_SHAPE, "got 25 elements, expected 24");
    SAYS(torchlean_cuda_buffer_lend(back, huge, 3, 0, &t), TORCHLEAN_SHAPE, "got more than");
    SAYS(torchlean_cuda_buffer_lend(back, dims, 99, 0, &t), TORCHLEAN_SHAPE, "got rank 99");
    SAYS(torchlean_cuda_buffer_lend(back, NULL, 1, 0, &t), TORCHLEAN_NULL, "shape: got NULL");
    SAYS(torchlean_cuda_buffer_lend(back, dims, 3, 0, NULL), TORCHLEAN_NULL, "tensor: got NULL");
    SAYS(torchlean_cuda_buffer_lend(back, dims, 3, 7, &t), TORCHLEAN_ARGUMENT, "versioned: got 7");
    OK(torchlean_cuda_buffer_release(back));
    SAYS(torchlean_cuda_buffer_lend(back, dims, 3, 0, &t), TORCHLEAN_RELEASED, "buffer: got");
    OK(torchlean_cuda_buffer_empty(context, 0, &empty));
    OK(torchlean_cuda_buffer_lend(empty, none, 2, 0, &t));
    CHECK(((dl_managed *)t)->tensor.shape[0] == 0);
    ((dl_managed *)t)->deleter(t);
    OK(torchlean_cuda_buffer_lend(empty, huge, 4, 0, &t)); /* of no elements, whatever the other lengths */
    OK(torchlean_cuda_buffer_release(empty));
    ((dl_managed *)t)->deleter(t);
    CHECK(live() == before);
}

static void test_streams(int32_t device)
{
    uint64_t stream = 77;
    OK(torchlean_cuda_context_stream(context, &stream));
    CHECK((stream != 0) == (device == CUDA));
    SAYS(torchlean_cuda_context_stream(context, NULL), TORCHLEAN_NULL, "stream: got NULL");
    if (device == CPU) {
        SAYS(torchlean_cuda_context_order(context, 1, 0), TORCHLEAN_UNAVAILABLE, "expected one of a CUDA device");
        return;
    }
    OK(torchlean_cuda_context_order(context, 1, 0));
    OK(torchlean_cuda_context_order(context, 5, 1));
    SAYS(torchlean_cuda_context_order(context, 5, 2), TORCHLEAN_ARGUMENT, "after: got 2");

    /* memory goes back when the device has done its work, at a later call; a context that is destroyed waits */
    dl_managed m = plain(device);
    deleted = 0;
    torchlean_buffer *a = borrow(&m, 0);
    fake_cuda_busy = 1;
    OK(torchlean_cuda_buffer_release(a));
    live();
    CHECK(deleted == 0);
    fake_cuda_busy = 0;
    live();
    CHECK(deleted == 1);

    /* a graph keeps what its calls used; nothing goes back during a capture */
    torchlean_graph *graph = NULL;
    torchlean_buffer *copy = NULL;
    a = borrow(&m, 0);
    OK(torchlean_cuda_capture_begin(context));
    OK(torchlean_cuda_buffer_copy(a, &copy));
    OK(torchlean_cuda_buffer_release(a));
    SAYS(torchlean_cuda_context_order(context, 1, 0), TORCHLEAN_UNAVAILABLE, "capture");
    dl_versioned other = {1, 0, &deleted, delete_versioned, 0, m.tensor};
    other.tensor.byte_offset = 64, other.tensor.ndim = 1, other.tensor.strides = NULL;
    int64_t few = 8;
    other.tensor.shape = &few;
    a = borrow(&other, 1); /* and so does the capture from here on */
    OK(torchlean_cuda_buffer_release(a));
    OK(torchlean_cuda_capture_end(context, &graph));
    CHECK(deleted == 1);
    OK(torchlean_cuda_graph_release(graph));
    CHECK(deleted == 3);
    OK(torchlean_cuda_buffer_release(copy));

    a = borrow(&m, 0);
    fake_cuda_busy = 1;
    OK(torchlean_cuda_buffer_release(a));
    a = borrow(&other, 1);
    fake_cuda_busy = 0;
    OK(torchlean_cuda_context_destroy(context));
    CHECK(deleted == 5);
    OK(torchlean_cuda_context_create(0, &context));
}

void core_test_exchange(void)
{
    for (int32_t device = CPU; device <= CUDA; device++) {
        OK(torchlean_cuda_context_create(device == CPU ? TORCHLEAN_CPU : 0, &context));
        test_refusals(device);
        test_borrowing(device);
        test_lending(device);
        test_streams(device);
        /* what is borrowed when a context ends goes back */
        dl_managed m = plain(device);
        deleted = 0;
        borrow(&m, 0);
        OK(torchlean_cuda_context_destroy(context));
        CHECK(deleted == 1);
    }
}
