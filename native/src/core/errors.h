/* The calling thread's last failure. */
#pragma once

#include "api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stores the calling thread's message (printf-like, cut to 511 characters) and returns `status`. */
int32_t tl_fail(int32_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The number of failures of the calling thread so far. */
uint32_t tl_error_serial(void);
/* Puts "op: " before the calling thread's message unless it already starts with it; a failure without a message of its
 * own (none since `serial`) gets a general one. */
void tl_error_name(const char *op, int32_t status, uint32_t serial);

#ifdef __cplusplus
}
#endif
