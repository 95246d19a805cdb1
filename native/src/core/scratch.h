/* Device memory of a context for the duration of a kernel. The context is locked, as it is for every kernel. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tl_context tl_context;

/* A block (256-byte aligned), from the pool's cache when one of the size class is there. bytes = 0 gives a valid,
 * distinct pointer. Fails with NO_MEMORY and a message; *p is then NULL. */
int32_t tl_pool_alloc(tl_context *ctx, size_t bytes, void **p);
/* Memory for a copy of host data that a captured call will read at every launch of the graph, which keeps it. */
int32_t tl_pool_alloc_constant(tl_context *ctx, size_t bytes, void **p);
/* A block for the rest of the call, which gives it back; asked again with the same number of bytes, a call has the same. */
int32_t tl_pool_alloc_for_call(tl_context *ctx, size_t bytes, void **p);
/* Whether p is the beginning of a block of the context: of an index buffer, where a kernel gets indices. */
int tl_pool_owns(tl_context *ctx, const void *p);
/* Returns a block; work already queued on the context's stream may still use it. NULL does nothing. */
void tl_pool_free(tl_context *ctx, void *p);
/* Returns the cached blocks to the driver, after waiting for the stream: for when a library's own allocation failed. Does
 * nothing while calls are captured. */
int32_t tl_pool_collect(tl_context *ctx);

#ifdef __cplusplus
}
#endif
