/* The micro-kernels of both products of convolutions for one precision: included with REAL, FN and VL set. */

#include "cpu/linalg/kernels.h"

#define WIDE (MR / 2)

KERNELS(side)
EACH_SMALL_HEIGHT(KERNEL_4, side)

/* Of R <= WIDE rows and V <= 4 vectors, too. */
static FN(kernel) FN(side_kernel)(int64_t R, int64_t V)
{
    static const FN(kernel) wide[WIDE + 1][2] = {{0, 0}, EACH_SMALL_HEIGHT(ROW_4, side)};
    return V <= 2 ? FN(side_kernels)[R][V - 1] : wide[R][V - 3];
}
