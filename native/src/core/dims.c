/* Numbers of elements, checked against the limit of 2^32. */
#include "dims.h"

uint64_t tl_product(const uint64_t *factors, int32_t count)
{
    uint64_t product = 1;
    int too_large = 0;
    for (int32_t i = 0; i < count; i++) {
        if (factors[i] == 0) return 0;
        /* once too large it stays so, unless a zero follows */
        if (!too_large && (__builtin_mul_overflow(product, factors[i], &product) || product > UINT32_MAX))
            too_large = 1;
    }
    return too_large ? UINT64_MAX : product;
}

uint64_t tl_dims_product(const tl_dims *dims)
{
    uint64_t factors[TL_MAX_RANK];
    for (int32_t i = 0; i < dims->rank; i++)
        factors[i] = (uint64_t)dims->d[i];
    return tl_product(factors, dims->rank);
}
