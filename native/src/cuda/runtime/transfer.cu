/* Transfers between host and device.
 *
 * Host memory is pageable, so everything goes through pinned memory of the context: small pieces through a ring, so
 * that an upload returns without waiting for the stream, and from where a kernel fetches the smallest; large ones through a few
 * staging blocks that the CPU's threads fill or empty while the others are on the bus (an upload that fits all blocks piece by piece
 * in one go). All copies are queued on the context's stream. */
#include "core/threads.h"
#include "cuda/runtime/state.cuh"

#include <string.h>

namespace {

constexpr size_t SMALL = 64 << 10;         /* transfers up to here go in one piece */
constexpr size_t RING_SEGMENT = 256 << 10; /* the ring is waited for segment by segment */
constexpr int RING_SEGMENTS = 4;
constexpr size_t STAGING_BLOCK = 8 << 20; /* about 150 us on a PCIe 5 bus, well above the cost of a wake-up */
constexpr int STAGING_BLOCKS = 4;
constexpr size_t SEND_TASK = 256 << 10; /* what a CPU thread copies between two looks at the counter of tasks */
constexpr int SEND_PIECES = 8;          /* copies that an upload which fits the blocks is queued as, at most */
/* CPU threads that copy to and from pinned memory in a transfer of up to FEW_COPIERS bytes, where waking another takes about as long as
 * its share. In larger transfers all threads copy. */
constexpr int COPIERS = 4;
constexpr size_t FEW_COPIERS = 4 << 20;

int32_t copiers_of(size_t bytes)
{
    const int32_t all = tl_workers();
    return bytes <= FEW_COPIERS && all > COPIERS ? COPIERS : all;
}

/* Uploads up to here are fetched by a kernel, a thread 16 bytes over the bus, or the last words one by one. The kernels around that one do
 * not wait for another engine, as they would for a copy of the driver. Beyond, what the bus takes counts for more, and the driver's copy is
 * faster. */
constexpr size_t FETCHED = 16 << 10;
constexpr int FETCH_THREADS = 256;

__global__ void __launch_bounds__(FETCH_THREADS) fetch_kernel(const uint4 *from, uint4 *to, uint32_t words)
{
    tl_wait_for_earlier();
    const uint32_t i = blockIdx.x * FETCH_THREADS + threadIdx.x, first = 4 * i;
    if (first + 4 <= words) {
        to[i] = __ldcv(from + i);
    } else {
        for (uint32_t w = first; w < words; w++)
            reinterpret_cast<uint32_t *>(to)[w] = __ldcv(reinterpret_cast<const uint32_t *>(from) + w);
    }
}

static_assert(SMALL <= RING_SEGMENT, "a small upload must fit a segment of the ring");
static_assert(RING_SEGMENTS <= TL_PIECES && STAGING_BLOCKS <= TL_PIECES, "a pinned has room for TL_PIECES");

} /* namespace */

void tl_close_pinned(tl_pinned *p)
{
    for (int i = 0; i < TL_PIECES; i++) {
        if (p->used[i]) cudaEventSynchronize(p->done[i]); /* a host's streams are not waited for otherwise */
        if (p->done[i]) cudaEventDestroy(p->done[i]);
    }
    if (p->memory) cudaFreeHost(p->memory);
}

static int32_t open_pinned(tl_cuda_state *state, tl_pinned *p, size_t bytes, int pieces)
{
    for (int i = 0; i < pieces; i++)
        if (!p->done[i]) TRY(cudaEventCreateWithFlags(&p->done[i], cudaEventDisableTiming));
    if (!p->memory) TRY(cudaHostAlloc((void **)&p->memory, bytes, cudaHostAllocDefault));
    return TORCHLEAN_OK;
}

static int32_t open_ring(tl_cuda_state *state)
{
    if (state->small) return TORCHLEAN_OK;
    TL_TRY(open_pinned(state, &state->ring, RING_SEGMENT * RING_SEGMENTS + SMALL, RING_SEGMENTS));
    state->small = state->ring.memory + RING_SEGMENT * RING_SEGMENTS;
    return TORCHLEAN_OK;
}

/* Marks that the copies from the ring's current segment are queued. */
static int32_t mark_segment(tl_cuda_state *state)
{
    tl_pinned *ring = &state->ring;
    TRY(cudaEventRecord(ring->done[ring->current], state->stream));
    ring->used[ring->current] = 1;
    return TORCHLEAN_OK;
}

/* Copies up to RING_SEGMENT bytes of host memory to the device through the ring, and marks it where it was the last copy from
 * its segment. */
static int32_t send_from_ring(tl_cuda_state *state, void *device, const void *host, size_t bytes)
{
    tl_pinned *ring = &state->ring;
    const bool moved = ring->stream != state->stream;
    if (moved || ring->offset + bytes > RING_SEGMENT) {
        if (!moved) TL_TRY(mark_segment(state));
        ring->stream = state->stream;
        int following = (ring->current + 1) % RING_SEGMENTS;
        if (ring->used[following]) TRY(cudaEventSynchronize(ring->done[following]));
        ring->current = following;
        ring->offset = 0;
    }
    char *piece = ring->memory + ring->current * RING_SEGMENT + ring->offset;
    memcpy(piece, host, bytes);
    ring->offset += (bytes + 255) & ~(size_t)255;
    if (bytes <= FETCHED && bytes % sizeof(uint32_t) == 0 && (uintptr_t)device % sizeof(uint4) == 0) {
        TRY(tl_start_ahead(state->stream, state->launches_ahead, fetch_kernel,
                           tl_grid((int64_t)bytes, sizeof(uint4) * FETCH_THREADS), FETCH_THREADS, 0,
                           (const uint4 *)piece, (uint4 *)device, (uint32_t)(bytes / sizeof(uint32_t))));
        return TORCHLEAN_OK;
    }
    TRY(cudaMemcpyAsync(device, piece, bytes, cudaMemcpyHostToDevice, state->stream));
    return TORCHLEAN_OK;
}

/* A host's stream may be another, or gone, by the next copy: there each is marked at once. */
static int32_t send_small(tl_cuda_state *state, void *device, const void *host, size_t bytes)
{
    TL_TRY(open_ring(state));
    TL_TRY(send_from_ring(state, device, host, bytes));
    return state->adopted ? mark_segment(state) : TORCHLEAN_OK;
}

/* Bytes per staging block of one transfer: a medium one is cut into eighths, so that filling and sending overlap;
 * the first filling and the last sending, which do not, are then an eighth each. */
static size_t block_size(size_t bytes)
{
    size_t eighth = (bytes / (2 * STAGING_BLOCKS) + 0xffff) & ~(size_t)0xffff;
    return eighth > STAGING_BLOCK ? STAGING_BLOCK : eighth < (512 << 10) ? (512 << 10) : eighth;
}

static int32_t open_staging(tl_cuda_state *state)
{
    if (state->staging.memory) return TORCHLEAN_OK;
    return open_pinned(state, &state->staging, STAGING_BLOCK * STAGING_BLOCKS, STAGING_BLOCKS);
}

/* A transfer that fits the staging blocks: the CPU's threads fill them in one job, so that they are woken once, and the
 * calling thread, the only one that talks to the device, queues a piece when all its tasks are done. */
struct send_job {
    tl_cuda_state *state;
    char *device, *staged;
    const char *host;
    size_t bytes, piece;                       /* pieces are whole tasks, but for the last */
    int32_t pieces, sent, filled[SEND_PIECES]; /* filled: tasks done of a piece */
    cudaError_t error;
};

static void send_filled(send_job *job)
{
    for (; job->sent < job->pieces && job->error == cudaSuccess; job->sent++) {
        const size_t at = job->sent * job->piece, length = job->bytes - at < job->piece ? job->bytes - at : job->piece;
        const int32_t tasks = (int32_t)((length + SEND_TASK - 1) / SEND_TASK);
        if (__atomic_load_n(&job->filled[job->sent], __ATOMIC_ACQUIRE) < tasks) return;
        job->error =
            cudaMemcpyAsync(job->device + at, job->staged + at, length, cudaMemcpyHostToDevice, job->state->stream);
    }
}

static void send_task(void *arg, int64_t task, int32_t worker)
{
    send_job *job = (send_job *)arg;
    const size_t at = (size_t)task * SEND_TASK, left = job->bytes - at;
    memcpy(job->staged + at, job->host + at, left < SEND_TASK ? left : SEND_TASK);
    __atomic_fetch_add(&job->filled[at / job->piece], 1, __ATOMIC_RELEASE);
    if (worker == 0) /* the caller of tl_parallel_in_order */
        send_filled(job);
}

static int32_t send_at_once(tl_cuda_state *state, char *device, const char *host, size_t bytes)
{
    tl_pinned *staging = &state->staging;
    const int blocks = (int)((bytes + STAGING_BLOCK - 1) / STAGING_BLOCK);
    const int first = staging->current + blocks > STAGING_BLOCKS ? 0 : staging->current;
    for (int i = first; i < first + blocks; i++)
        if (staging->used[i]) TRY(cudaEventSynchronize(staging->done[i]));
    send_job job = {state, device, staging->memory + first * STAGING_BLOCK, host, bytes, 0, 0, 0, {}, cudaSuccess};
    const size_t tasks = (bytes + SEND_TASK - 1) / SEND_TASK, tasks_a_piece = (tasks + SEND_PIECES - 1) / SEND_PIECES;
    job.piece = (tasks_a_piece < 2 ? 2 : tasks_a_piece) * SEND_TASK;
    job.pieces = (int32_t)((bytes + job.piece - 1) / job.piece);
    tl_parallel_in_order((int64_t)tasks, copiers_of(bytes), send_task, &job);
    send_filled(&job);
    TRY(job.error);
    for (int i = first; i < first + blocks; i++) {
        TRY(cudaEventRecord(staging->done[i], state->stream));
        staging->used[i] = 1;
    }
    staging->current = (first + blocks) % STAGING_BLOCKS;
    return TORCHLEAN_OK;
}

/* An upload that does not fit the staging blocks takes half of them in turn. */
static int32_t send_large(tl_cuda_state *state, char *device, const char *host, size_t bytes)
{
    TL_TRY(open_staging(state));
    constexpr size_t ALL = STAGING_BLOCK * STAGING_BLOCKS;
    const size_t part = bytes <= ALL ? bytes : ALL / 2;
    for (size_t at = 0; at < bytes; at += part)
        TL_TRY(send_at_once(state, device + at, host + at, bytes - at < part ? bytes - at : part));
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_upload(tl_cuda_state *state, void *device, const void *host, size_t bytes)
{
    TL_TRY(tl_state_enter(state));
    if (bytes == 0) return TORCHLEAN_OK;
    return bytes <= SMALL ? send_small(state, device, host, bytes)
                          : send_large(state, (char *)device, (const char *)host, bytes);
}

/* Queues the copy of the download's piece number `piece` into its staging block. */
static int32_t fetch(tl_cuda_state *state, const char *device, size_t bytes, size_t size, size_t piece)
{
    int i = (int)(piece % STAGING_BLOCKS);
    size_t at = piece * size, length = bytes - at < size ? bytes - at : size;
    if (state->adopted && state->staging.used[i]) TRY(cudaEventSynchronize(state->staging.done[i]));
    TRY(cudaMemcpyAsync(state->staging.memory + i * STAGING_BLOCK, device + at, length, cudaMemcpyDeviceToHost,
                        state->stream));
    TRY(cudaEventRecord(state->staging.done[i], state->stream));
    state->staging.used[i] = 1;
    return TORCHLEAN_OK;
}

static int32_t fetch_small(tl_cuda_state *state, void *host, const void *device, size_t bytes)
{
    TL_TRY(open_ring(state));
    TRY(cudaMemcpyAsync(state->small, device, bytes, cudaMemcpyDeviceToHost, state->stream));
    cudaError_t error = cudaStreamSynchronize(state->stream);
    if (error != cudaSuccess) return tl_state_failed(state, error, "earlier work on the device");
    memcpy(host, state->small, bytes);
    return TORCHLEAN_OK;
}

/* The context's own stream orders a piece behind any upload that still reads its block, so no wait is needed before fetching. */
extern "C" int32_t tl_cuda_download(tl_cuda_state *state, void *host, const void *device, size_t bytes)
{
    TL_TRY(tl_state_enter(state));
    if (bytes <= SMALL) return fetch_small(state, host, device, bytes);
    TL_TRY(open_staging(state));
    const char *from = (const char *)device;
    size_t size = block_size(bytes);
    size_t pieces = (bytes + size - 1) / size, queued = 0;
    for (; queued < pieces && queued < STAGING_BLOCKS; queued++)
        TL_TRY(fetch(state, from, bytes, size, queued));
    for (size_t piece = 0; piece < pieces; piece++) {
        int i = (int)(piece % STAGING_BLOCKS);
        size_t at = piece * size, length = bytes - at < size ? bytes - at : size;
        cudaError_t error = cudaEventSynchronize(state->staging.done[i]);
        if (error != cudaSuccess) return tl_state_failed(state, error, "earlier work on the device");
        tl_copy((char *)host + at, state->staging.memory + i * STAGING_BLOCK, length, copiers_of(bytes));
        if (queued < pieces) TL_TRY(fetch(state, from, bytes, size, queued++));
    }
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_copy(tl_cuda_state *state, void *to, const void *from, size_t bytes)
{
    TL_TRY(tl_state_enter(state));
    if (bytes) TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, state->stream));
    return TORCHLEAN_OK;
}

int32_t tl_state_send_beside(tl_cuda_state *state, void *device, const void *host, size_t bytes)
{
    if (!state->beside) TRY(cudaStreamCreateWithFlags(&state->beside, cudaStreamNonBlocking));
    TRY(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, state->beside));
    TRY(cudaStreamSynchronize(state->beside));
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_send_table(tl_context *ctx, void *device, const void *host, size_t bytes)
{
    return tl_state_send_beside(tl_context_cuda(ctx), device, host, bytes);
}

extern "C" int32_t tl_cuda_stage(tl_context *ctx, const void *host, size_t bytes, void **device)
{
    tl_cuda_state *state = tl_context_cuda(ctx);
    if (state->adopted && state->capturing)
        return tl_fail(TORCHLEAN_UNAVAILABLE, "got a host array during a host's capture, expected an index buffer");
    TL_TRY(state->capturing ? tl_pool_alloc_constant(ctx, bytes, device) : tl_pool_alloc(ctx, bytes, device));
    int32_t status = bytes == 0              ? TORCHLEAN_OK
                     : state->capturing      ? tl_state_send_beside(state, *device, host, bytes)
                     : bytes <= RING_SEGMENT ? send_small(state, *device, host, bytes)
                                             : send_large(state, (char *)*device, (const char *)host, bytes);
    if (status) {
        tl_pool_free(ctx, *device);
        *device = nullptr;
    }
    return status;
}
