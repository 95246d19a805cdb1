/* Dimension lists, and numbers of elements. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TL_MAX_RANK = 8 };

/* A dimension list as kernels get it (outermost first). Passed by value to CUDA kernels. */
typedef struct tl_dims {
    int32_t rank;
    int64_t d[TL_MAX_RANK];
} tl_dims;

/* As many ones or zeros as there may be axes. */
static const tl_dims tl_dims_ones = {TL_MAX_RANK, {1, 1, 1, 1, 1, 1, 1, 1}}, tl_dims_zeros = {TL_MAX_RANK, {0}};

/* The product of `count` dimensions; any zero gives 0; 2^32 or more gives UINT64_MAX, which tl_input and tl_output refuse
 * with OVERFLOW. */
uint64_t tl_product(const uint64_t *factors, int32_t count);
#define TL_PRODUCT(...) \
    tl_product((const uint64_t[]){__VA_ARGS__}, (int32_t)(sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)))
uint64_t tl_dims_product(const tl_dims *dims);

#ifdef __cplusplus
}
#endif
