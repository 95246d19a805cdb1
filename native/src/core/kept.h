/* Blocks of the pool whose content serves the next call, too: tables that a kernel makes of a few numbers. The context is locked, as
 * it is for every kernel. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tl_context tl_context;

/* What the content of a block follows from: the kernel, and the numbers of its call. */
typedef struct tl_content {
    uint64_t word[4];
} tl_content;

/* Returns a block, as tl_pool_free does, whose content is to stay. It counts as cached, and goes with what is cached when memory is
 * collected. A context keeps one block: the last. */
void tl_pool_keep(tl_context *ctx, void *p, tl_content content);
/* The block of `bytes` bytes that was kept with this content, as tl_pool_alloc gives one, or NULL. */
void *tl_pool_kept(tl_context *ctx, size_t bytes, tl_content content);

#ifdef __cplusplus
}
#endif
