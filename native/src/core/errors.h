/* The calling thread's last failures, and whether it is within a call. */
#pragma once

#include "api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stores the calling thread's message (printf-like, cut to 511 characters) and returns `status`. */
int32_t tl_fail(int32_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* 1 while the thread is within a call that takes a lock: one more, a signal handler's, would wait for it for ever. It is set
 * before the first lock and cleared after the last. */
#ifndef __cplusplus
extern _Thread_local int32_t tl_inside;
#endif
/* Sets tl_inside, or fails with UNAVAILABLE where it is set. */
int32_t tl_enter_thread(const char *op);
int32_t tl_fail_reentry(const char *op);

/* The number of failures of the calling thread so far. */
uint64_t tl_error_serial(void);
/* Puts "op: " before the calling thread's message unless it already starts with it; a failure without a message of its
 * own (none since `serial`) gets a general one. */
void tl_error_name(const char *op, int32_t status, uint64_t serial);

#ifdef __cplusplus
}
#endif
