/* Transfers between host and device.
 *
 * Host memory is pageable, so everything goes through pinned memory of the context: small pieces through a ring, so
 * that an upload returns without waiting for the stream; large ones through a few staging blocks that the CPU's threads
 * fill or empty while the others are on the bus. All copies are queued on the context's stream. */
#include "state.cuh"

#include <string.h>

namespace {

constexpr size_t SMALL = 64 << 10;            /* transfers up to here go in one piece */
constexpr size_t RING_SEGMENT = 256 << 10;    /* the ring is waited for segment by segment */
constexpr int RING_SEGMENTS = 4;
constexpr size_t STAGING_BLOCK = 8 << 20;     /* about 150 us on a PCIe 5 bus, well above the cost of a wake-up */
constexpr int STAGING_BLOCKS = 4;

static_assert(SMALL <= RING_SEGMENT, "a small upload must fit a segment of the ring");
static_assert(RING_SEGMENTS <= TL_PIECES && STAGING_BLOCKS <= TL_PIECES, "a pinned has room for TL_PIECES");

} /* namespace */

void tl_close_pinned(tl_pinned *p)
{
    for (cudaEvent_t event : p->done)
        if (event)
            cudaEventDestroy(event);
    if (p->memory)
        cudaFreeHost(p->memory);
}

static int32_t open_pinned(tl_cuda_state *state, tl_pinned *p, size_t bytes, int pieces)
{
    for (int i = 0; i < pieces; i++)
        if (!p->done[i])
            TRY(cudaEventCreateWithFlags(&p->done[i], cudaEventDisableTiming));
    if (!p->memory)
        TRY(cudaHostAlloc((void **)&p->memory, bytes, cudaHostAllocDefault));
    return TORCHLEAN_OK;
}

static int32_t open_ring(tl_cuda_state *state)
{
    if (state->small)
        return TORCHLEAN_OK;
    TL_TRY(open_pinned(state, &state->ring, RING_SEGMENT * RING_SEGMENTS + SMALL, RING_SEGMENTS));
    state->small = state->ring.memory + RING_SEGMENT * RING_SEGMENTS;
    return TORCHLEAN_OK;
}

/* Copies up to RING_SEGMENT bytes of host memory to the device through the ring. One event per segment, not per
 * copy. */
static int32_t send_small(tl_cuda_state *state, void *device, const void *host, size_t bytes)
{
    tl_pinned *ring = &state->ring;
    TL_TRY(open_ring(state));
    if (ring->offset + bytes > RING_SEGMENT) {
        TRY(cudaEventRecord(ring->done[ring->current], state->stream));
        ring->used[ring->current] = 1;
        int following = (ring->current + 1) % RING_SEGMENTS;
        if (ring->used[following])
            TRY(cudaEventSynchronize(ring->done[following]));
        ring->current = following;
        ring->offset = 0;
    }
    char *piece = ring->memory + ring->current * RING_SEGMENT + ring->offset;
    memcpy(piece, host, bytes);
    ring->offset += (bytes + 255) & ~(size_t)255;
    TRY(cudaMemcpyAsync(device, piece, bytes, cudaMemcpyHostToDevice, state->stream));
    return TORCHLEAN_OK;
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
    if (state->staging.memory)
        return TORCHLEAN_OK;
    return open_pinned(state, &state->staging, STAGING_BLOCK * STAGING_BLOCKS, STAGING_BLOCKS);
}

static int32_t send_large(tl_cuda_state *state, char *device, const char *host, size_t bytes)
{
    tl_pinned *staging = &state->staging;
    TL_TRY(open_staging(state));
    size_t size = block_size(bytes);
    for (size_t at = 0; at < bytes; at += size) {
        size_t length = bytes - at < size ? bytes - at : size;
        int i = staging->current;
        if (staging->used[i])
            TRY(cudaEventSynchronize(staging->done[i]));
        char *block = staging->memory + i * STAGING_BLOCK;
        tl_copy(block, host + at, length);
        TRY(cudaMemcpyAsync(device + at, block, length, cudaMemcpyHostToDevice, state->stream));
        TRY(cudaEventRecord(staging->done[i], state->stream));
        staging->used[i] = 1;
        staging->current = (i + 1) % STAGING_BLOCKS;
    }
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_upload(tl_cuda_state *state, void *device, const void *host, size_t bytes)
{
    TL_TRY(tl_state_enter(state));
    if (bytes == 0)
        return TORCHLEAN_OK;
    return bytes <= SMALL ? send_small(state, device, host, bytes)
                          : send_large(state, (char *)device, (const char *)host, bytes);
}

/* Queues the copy of the download's piece number `piece` into its staging block. */
static int32_t fetch(tl_cuda_state *state, const char *device, size_t bytes, size_t size, size_t piece)
{
    int i = (int)(piece % STAGING_BLOCKS);
    size_t at = piece * size, length = bytes - at < size ? bytes - at : size;
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
    if (error != cudaSuccess)
        return tl_state_failed(state, error, "earlier work on the device");
    memcpy(host, state->small, bytes);
    return TORCHLEAN_OK;
}

/* The stream orders a piece behind any upload that still reads its block, so no wait is needed before fetching. */
extern "C" int32_t tl_cuda_download(tl_cuda_state *state, void *host, const void *device, size_t bytes)
{
    TL_TRY(tl_state_enter(state));
    if (bytes <= SMALL)
        return fetch_small(state, host, device, bytes);
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
        if (error != cudaSuccess)
            return tl_state_failed(state, error, "earlier work on the device");
        tl_copy((char *)host + at, state->staging.memory + i * STAGING_BLOCK, length);
        if (queued < pieces)
            TL_TRY(fetch(state, from, bytes, size, queued++));
    }
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_copy(tl_cuda_state *state, void *to, const void *from, size_t bytes)
{
    TL_TRY(tl_state_enter(state));
    if (bytes)
        TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, state->stream));
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_stage(tl_context *ctx, const void *host, size_t bytes, void **device)
{
    tl_cuda_state *state = tl_context_cuda(ctx);
    TL_TRY(tl_pool_alloc(ctx, bytes, device));
    int32_t status = bytes == 0             ? TORCHLEAN_OK
                     : bytes <= RING_SEGMENT ? send_small(state, *device, host, bytes)
                                             : send_large(state, (char *)*device, (const char *)host, bytes);
    if (status) {
        tl_pool_free(ctx, *device);
        *device = nullptr;
    }
    return status;
}
