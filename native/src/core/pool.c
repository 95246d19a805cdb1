/* The caching pool: size classes, free lists, counters, the cap, and the one place where memory comes from the
 * driver or the operating system. pool.h says how it works. */
#include "pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend.h"
#include "errors.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, bytes) ((void)(p), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(p, bytes) ((void)(p), (void)(bytes))
#endif

/* From here on the CPU path maps its own pages, so that they can be huge ones and go back to the system when freed. */
static const uint64_t map_from = UINT64_C(4) << 20;
static const uint64_t huge_page = UINT64_C(2) << 20;
enum { TL_BLOCK_ALIGNMENT = 256, TL_FIRST_BUCKETS = 64, TL_FINE_MOST = 2048 };

/* ---- the driver ------------------------------------------------------------------------------------------------ */

static void *map_pages(uint64_t bytes)
{
    /* Reserve one huge page more than needed, then cut both ends so that the block starts on a huge page. */
    char *p = mmap(NULL, bytes + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    uint64_t head = (huge_page - (uintptr_t)p % huge_page) % huge_page;
    if (head) munmap(p, head);
    if (huge_page > head) munmap(p + head + bytes, huge_page - head);
#ifdef MADV_HUGEPAGE
    madvise(p + head, bytes, MADV_HUGEPAGE);
#endif
    return p + head;
}

/* The only function that asks the driver or the system for block memory. `bytes` is a class size. */
static int32_t driver_alloc(struct tl_pool *pool, uint64_t bytes, void **p)
{
    *p = NULL;
    if (pool->cuda) return tl_cuda_malloc(pool->cuda, bytes, p);
    if (bytes >= map_from)
        *p = map_pages(bytes);
    else if (posix_memalign(p, TL_BLOCK_ALIGNMENT, bytes))
        *p = NULL;
    return *p ? TORCHLEAN_OK : TORCHLEAN_NO_MEMORY;
}

static void driver_free(struct tl_pool *pool, tl_block *block)
{
    if (pool->cuda) {
        tl_cuda_free(pool->cuda, block->p);
        return;
    }
    ASAN_UNPOISON_MEMORY_REGION(block->p, block->bytes);
    if (block->bytes >= map_from)
        munmap(block->p, block->bytes);
    else
        free(block->p);
}

/* ---- size classes and the pointer map -------------------------------------------------------------------------- */

/* Class of a request and, through *size, the bytes of the class; -1 if it is beyond anything a machine has. */
static int32_t class_of(uint64_t bytes, uint64_t *size)
{
    if (bytes <= TL_FINE_MOST) {
        uint64_t steps = bytes ? (bytes + 255) / 256 : 1;
        *size = steps * 256;
        return (int32_t)steps - 1;
    }
    uint32_t octave = 63u - (uint32_t)__builtin_clzll(bytes - 1); /* 2^octave < bytes <= 2^(octave+1) */
    if (octave >= TL_POOL_LOG2_MAX) return -1;
    uint64_t step = UINT64_C(1) << (octave - 3);
    uint64_t steps = (bytes - (UINT64_C(1) << octave) + step - 1) / step;
    *size = (UINT64_C(1) << octave) + steps * step;
    return 8 + (int32_t)(octave - 11) * 8 + (int32_t)steps - 1;
}

static uint64_t bucket_of(const struct tl_pool *pool, const void *p)
{
    return ((uint64_t)(uintptr_t)p >> 8) * UINT64_C(0x9e3779b97f4a7c15) >> 20 & (pool->bucket_count - 1);
}

static void map_insert(struct tl_pool *pool, tl_block *block)
{
    if (pool->blocks >= pool->bucket_count) {
        tl_block **wider = calloc(pool->bucket_count * 2, sizeof *wider);
        if (wider) { /* if not, the chains get longer and everything still works */
            tl_block **old = pool->buckets;
            uint64_t old_count = pool->bucket_count;
            pool->buckets = wider;
            pool->bucket_count *= 2;
            for (uint64_t i = 0; i < old_count; i++) {
                for (tl_block *b = old[i], *next; b; b = next) {
                    next = b->chain;
                    tl_block **bucket = &wider[bucket_of(pool, b->p)];
                    b->chain = *bucket;
                    *bucket = b;
                }
            }
            free(old);
        }
    }
    tl_block **bucket = &pool->buckets[bucket_of(pool, block->p)];
    block->chain = *bucket;
    *bucket = block;
    pool->blocks++;
}

static void map_remove(struct tl_pool *pool, tl_block *block)
{
    tl_block **link = &pool->buckets[bucket_of(pool, block->p)];
    while (*link != block)
        link = &(*link)->chain;
    *link = block->chain;
    pool->blocks--;
}

/* A block without memory, all of it zero. NULL: out of host memory. */
static tl_block *new_block(struct tl_pool *pool)
{
    tl_block *block = pool->spare;
    if (!block) return calloc(1, sizeof *block);
    pool->spare = block->chain;
    memset(block, 0, sizeof *block);
    return block;
}

static void spare_block(struct tl_pool *pool, tl_block *block)
{
    block->chain = pool->spare;
    pool->spare = block;
}

static void release_to_host(struct tl_pool *pool, tl_block *block)
{
    if (!pool->cuda) ASAN_UNPOISON_MEMORY_REGION(block->p, block->bytes);
    block->host.release(block->host.user, block->memory);
}

/* Without an event the list waits for all of the device's work. */
static void lend_back(struct tl_pool *pool, tl_block *block)
{
    if (pool->cuda) tl_cuda_event(pool->cuda, &block->lender->event);
    block->cached = pool->lent;
    pool->lent = block;
}

/* ---- the pool -------------------------------------------------------------------------------------------------- */

int32_t tl_pool_open(struct tl_pool *pool, struct tl_cuda_state *cuda)
{
    memset(pool, 0, sizeof *pool);
    pool->cuda = cuda;
    pool->buckets = calloc(TL_FIRST_BUCKETS, sizeof *pool->buckets);
    if (!pool->buckets) return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for the pool's bookkeeping");
    pool->bucket_count = TL_FIRST_BUCKETS;
    return TORCHLEAN_OK;
}

void tl_pool_close(struct tl_pool *pool)
{
    for (uint64_t i = 0; i < pool->bucket_count; i++) {
        for (tl_block *b = pool->buckets[i], *next; b; b = next) {
            next = b->chain;
            if (b->lender) {
                lend_back(pool, b);
                continue;
            }
            if (b->owner == TL_OF_POOL) driver_free(pool, b);
            if (b->owner == TL_OF_HOST) release_to_host(pool, b);
            spare_block(pool, b);
        }
    }
    for (tl_block *b = pool->spare, *next; b; b = next) {
        next = b->chain;
        free(b);
    }
    free(pool->buckets);
    struct tl_cuda_state *const cuda = pool->cuda;
    tl_block *const lent = pool->lent;
    memset(pool, 0, sizeof *pool);
    pool->cuda = cuda;
    pool->lent = lent;
}

static void put_into_cache(struct tl_pool *pool, tl_block *block)
{
    block->cached = pool->cached[block->size_class];
    pool->cached[block->size_class] = block;
}

int32_t tl_pool_trim(struct tl_pool *pool)
{
    if (!pool->counters.cached_bytes || pool->capture || (pool->cuda && tl_cuda_host_captures(pool->cuda)))
        return TORCHLEAN_OK; /* a capture cannot wait */
    int32_t status = pool->cuda ? tl_cuda_synchronize(pool->cuda) : TORCHLEAN_OK;
    if (pool->kept) put_into_cache(pool, pool->kept);
    pool->kept = NULL;
    for (int32_t i = 0; i < TL_POOL_CLASSES; i++) {
        for (tl_block *b = pool->cached[i], *next; b; b = next) {
            next = b->cached;
            map_remove(pool, b);
            driver_free(pool, b);
            free(b);
        }
        pool->cached[i] = NULL;
    }
    pool->counters.cached_bytes = 0;
    return status;
}

static int beyond_cap(const torchlean_memory *c, uint64_t size)
{
    return c->cap_bytes && (size > c->cap_bytes || c->live_bytes + c->cached_bytes > c->cap_bytes - size);
}

static int32_t no_memory(const struct tl_pool *pool, size_t bytes, const char *why)
{
    const torchlean_memory *c = &pool->counters;
    return tl_fail(TORCHLEAN_NO_MEMORY, "%s: asked for %zu bytes; live %llu bytes, cached %llu bytes, cap %llu bytes",
                   why, bytes, (unsigned long long)c->live_bytes, (unsigned long long)c->cached_bytes,
                   (unsigned long long)c->cap_bytes);
}

/* Collects if the cap leaves no room for `size` bytes more. */
static int32_t make_room(struct tl_pool *pool, size_t bytes, uint64_t size)
{
    if (!beyond_cap(&pool->counters, size)) return TORCHLEAN_OK;
    const int32_t status = tl_pool_trim(pool);
    if (status) return status;
    return beyond_cap(&pool->counters, size) ? no_memory(pool, bytes, "the context's memory cap is reached")
                                             : TORCHLEAN_OK;
}

/* A new block of the class: within the cap, collecting once and trying again if there is no room. */
static int32_t grow(struct tl_pool *pool, size_t bytes, uint64_t size, int32_t size_class, tl_block **out)
{
    int32_t status = make_room(pool, bytes, size);
    if (status) return status;
    tl_block *block = new_block(pool);
    if (!block) return no_memory(pool, bytes, "out of host memory for bookkeeping");
    status = driver_alloc(pool, size, &block->p);
    if (status == TORCHLEAN_NO_MEMORY && pool->counters.cached_bytes) {
        if (!(status = tl_pool_trim(pool))) status = driver_alloc(pool, size, &block->p);
    }
    if (status) {
        spare_block(pool, block);
        return status == TORCHLEAN_NO_MEMORY
                   ? no_memory(pool, bytes, pool->cuda ? "out of device memory" : "out of memory")
                   : status;
    }
    block->bytes = size;
    block->size_class = (uint32_t)size_class;
    block->is_untouched = !pool->cuda && size >= map_from;
    map_insert(pool, block);
    pool->counters.driver_allocations++;
    *out = block;
    return TORCHLEAN_OK;
}

/* ---- taking and giving back -------------------------------------------------------------------------------------- */

int32_t tl_capture_hold(struct tl_capture *capture, tl_block *block)
{
    if (block->held_by == capture->serial) return TORCHLEAN_OK;
    if (capture->count == capture->room) {
        const uint64_t room = capture->room ? 2 * capture->room : 64;
        tl_block **held = realloc(capture->held, room * sizeof *held);
        if (!held)
            return tl_fail(TORCHLEAN_NO_MEMORY, "out of host memory for a capture of %llu blocks",
                           (unsigned long long)room);
        capture->held = held;
        capture->room = room;
    }
    capture->held[capture->count++] = block;
    block->references++;
    block->held_by = capture->serial;
    return TORCHLEAN_OK;
}

/* A block that the calls of a capture have done with, or NULL. */
static tl_block *take_idle(struct tl_capture *capture, int32_t size_class)
{
    tl_block *block = capture->idle[size_class];
    if (block) {
        capture->idle[size_class] = block->cached;
        block->cached = NULL;
        block->references++;
    }
    return block;
}

/* A block that nobody has becomes one with one reference, of which the caller asked for `bytes` bytes. */
static void hand_out(struct tl_pool *pool, tl_block *block, size_t bytes)
{
    torchlean_memory *c = &pool->counters;
    block->references = 1;
    block->taken_by = 0;
    c->allocations++;
    c->live_bytes += block->bytes;
    if (c->live_bytes > c->peak_bytes) c->peak_bytes = c->live_bytes;
    if (!pool->cuda) { /* under AddressSanitizer a kernel that leaves its block, or uses a freed one, is caught */
        ASAN_UNPOISON_MEMORY_REGION(block->p, block->bytes);
        ASAN_POISON_MEMORY_REGION((char *)block->p + bytes, block->bytes - bytes);
    }
}

/* A block that nobody has any more becomes a cached one, in whatever place. */
static void take_back(struct tl_pool *pool, tl_block *block)
{
    pool->counters.live_bytes -= block->bytes;
    pool->counters.cached_bytes += block->bytes;
    if (!pool->cuda) ASAN_POISON_MEMORY_REGION(block->p, block->bytes);
}

/* Memory of the host from a multiple of 256 bytes on. Allocators of hosts mostly give such; from the first one that does not, more is
 * asked for. */
static void *allocate_aligned(struct tl_pool *pool, uint64_t size, tl_block *block)
{
    for (int turn = 0; turn < 2; turn++) {
        const uint64_t padding = pool->pads ? TL_BLOCK_ALIGNMENT : 0;
        char *memory = block->host.allocate(block->host.user, size + padding);
        if (!memory) return NULL;
        const uint64_t head = -(uintptr_t)memory % TL_BLOCK_ALIGNMENT;
        block->memory = memory;
        if (head <= padding) return memory + head;
        block->host.release(block->host.user, memory);
        pool->pads = 1;
    }
    return NULL;
}

static int32_t take_from_host(struct tl_pool *pool, size_t bytes, tl_block **out)
{
    const uint64_t size = ((bytes ? bytes : 1) + TL_BLOCK_ALIGNMENT - 1) / TL_BLOCK_ALIGNMENT * TL_BLOCK_ALIGNMENT;
    const int32_t status = make_room(pool, bytes, size);
    if (status) return status;
    tl_block *block = new_block(pool);
    if (!block) return no_memory(pool, bytes, "out of host memory for bookkeeping");
    block->owner = TL_OF_HOST;
    block->host = pool->host;
    block->bytes = size;
    if (!(block->p = allocate_aligned(pool, size, block))) {
        spare_block(pool, block);
        return no_memory(pool, bytes, "the host's allocator has none");
    }
    map_insert(pool, block);
    pool->counters.driver_allocations++;
    hand_out(pool, block, bytes);
    *out = block;
    return TORCHLEAN_OK;
}

int32_t tl_pool_take(struct tl_pool *pool, size_t bytes, int constant, tl_block **out)
{
    torchlean_memory *c = &pool->counters;
    uint64_t size = 0;
    int32_t size_class = class_of(bytes, &size), status;
    *out = NULL;
    if (size_class < 0) return no_memory(pool, bytes, "no device has this much memory");
    if (pool->host.allocate) return take_from_host(pool, bytes, out);
    if (pool->capture && !constant && (*out = take_idle(pool->capture, size_class))) {
        (*out)->is_untouched = 0;
        c->allocations++;
        return TORCHLEAN_OK;
    }
    tl_block *block = pool->cached[size_class];
    if (block) {
        pool->cached[size_class] = block->cached;
        block->cached = NULL;
        block->is_untouched = 0;
        c->cached_bytes -= size;
    } else {
        if ((status = grow(pool, bytes, size, size_class, &block))) return status;
    }
    hand_out(pool, block, bytes);
    if (pool->capture) {
        if ((status = tl_capture_hold(pool->capture, block))) {
            tl_pool_drop(pool, block);
            return status;
        }
        block->taken_by = constant ? 0 : pool->capture->serial;
    }
    *out = block;
    return TORCHLEAN_OK;
}

int32_t tl_pool_wrap(struct tl_pool *pool, void *p, uint64_t bytes, tl_block **out)
{
    tl_block *block = tl_pool_find(pool, p);
    if (block) {
        if (!block->references || (block->owner != TL_OF_OTHERS && block->bytes < bytes))
            return tl_fail(TORCHLEAN_ALIAS,
                           "memory: got %llu bytes from where %llu of the context's own begin%s, expected others",
                           (unsigned long long)bytes, (unsigned long long)block->bytes,
                           block->references ? "" : ", which are free");
    } else {
        if (!(block = new_block(pool))) return no_memory(pool, bytes, "out of host memory for bookkeeping");
        block->p = p;
        block->owner = TL_OF_OTHERS;
        map_insert(pool, block);
    }
    block->references++;
    *out = block;
    return TORCHLEAN_OK;
}

int32_t tl_pool_borrow(struct tl_pool *pool, void *p, uint64_t bytes, struct tl_lender *lender, tl_block **out)
{
    int32_t status = tl_pool_wrap(pool, p, bytes, out);
    if (!status && pool->capture && (status = tl_capture_hold(pool->capture, *out))) tl_pool_drop(pool, *out);
    if (status) return status;
    (*out)->bytes = bytes;
    (*out)->lender = lender;
    return TORCHLEAN_OK;
}

void tl_pool_drop(struct tl_pool *pool, tl_block *block)
{
    if (--block->references) {
        struct tl_capture *capture = pool->capture;
        if (capture && block->references == 1 && block->taken_by == capture->serial) {
            block->cached = capture->idle[block->size_class];
            capture->idle[block->size_class] = block;
        }
        return;
    }
    if (block->owner == TL_OF_POOL) {
        put_into_cache(pool, block);
        take_back(pool, block);
        return;
    }
    map_remove(pool, block);
    if (block->lender) {
        lend_back(pool, block);
        return;
    }
    if (block->owner == TL_OF_HOST) {
        pool->counters.live_bytes -= block->bytes;
        release_to_host(pool, block);
    }
    spare_block(pool, block);
}

void tl_pool_end_call(struct tl_pool *pool)
{
    tl_block *const block = pool->of_call;
    pool->of_call = NULL;
    tl_pool_drop(pool, block);
}

void tl_pool_put_kept(struct tl_pool *pool, tl_block *block, tl_content content)
{
    if (pool->capture || pool->host.allocate || block->owner != TL_OF_POOL) {
        tl_pool_drop(pool, block);
        return;
    }
    if (pool->kept) put_into_cache(pool, pool->kept);
    block->references = 0;
    take_back(pool, block);
    pool->kept = block;
    pool->content = content;
}

tl_block *tl_pool_take_kept(struct tl_pool *pool, size_t bytes, tl_content content)
{
    tl_block *const block = pool->kept;
    if (!block || pool->capture || pool->host.allocate || memcmp(&content, &pool->content, sizeof content) != 0)
        return NULL;
    pool->kept = NULL;
    pool->counters.cached_bytes -= block->bytes;
    hand_out(pool, block, bytes);
    return block;
}

tl_block *tl_lent_done(struct tl_pool *pool, int finished)
{
    tl_block *done = NULL;
    if (!finished && (pool->capture || (pool->cuda && tl_cuda_host_captures(pool->cuda))))
        return NULL; /* a question to the device would end the capture */
    if (finished && pool->lent && pool->cuda) tl_cuda_synchronize(pool->cuda);
    for (tl_block **link = &pool->lent, *block; (block = *link);) {
        if (pool->cuda && !tl_cuda_event_passed(pool->cuda, block->lender->event) && !finished) {
            link = &block->cached;
            continue;
        }
        *link = block->cached;
        block->cached = done;
        done = block;
    }
    return done;
}

void tl_lent_return(tl_block *blocks)
{
    for (tl_block *next; blocks; blocks = next) {
        next = blocks->cached;
        blocks->lender->give_back(blocks->lender->object);
        free(blocks->lender);
        free(blocks);
    }
}

tl_block *tl_pool_find(const struct tl_pool *pool, const void *p)
{
    tl_block *block = pool->buckets[bucket_of(pool, p)];
    while (block && block->p != p)
        block = block->chain;
    return block;
}
