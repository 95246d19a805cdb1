/* The summation trees, shared by both back ends: the order of additions is a function of the shape alone.
 *
 * Row tree, for n contiguous elements x[0..n-1]. Every accumulator starts at +0, so a sum is never -0 and adding an absent
 * element (+0) changes nothing.
 *   1. Cut x into leaves of TL_SUM_LEAF elements; the last leaf may be shorter.
 *   2. In a leaf, lane l adds its elements l, l + LANES, l + 2·LANES, ... in this order, l = 0..LANES-1.
 *   3. The lanes are folded in halves: for s = LANES/2, LANES/4, ..., 1: lane l += lane l+s for l < s. Lanes past the
 *      leaf's length hold +0, so a row of n <= LANES elements is a plain halving tree over the next power of two.
 *   4. The leaves' sums, in order, are a new row; repeat until one is left.
 *
 * Column tree, for `rows` rows summed down each column (any number of columns).
 *   1. Cut the rows into chunks of TL_COLUMN_CHUNK; the last may be shorter.
 *   2. In a chunk, chain c adds rows c, c + CHAINS, c + 2·CHAINS, ... starting from +0, c = 0..CHAINS-1; the chunk's sum is
 *      (chain0 + chain1) + (chain2 + chain3).
 *   3. The chunks' sums are new rows; repeat until one is left.
 *
 * Hits of a scatter-add, the values that an index list adds to one element: they are summed, in the order of the list, by the column
 * tree, as if they were the rows of a matrix that holds nothing else. The sum is added to the element once, at the end; an element
 * without a hit keeps its bits. So a hit has its place in the tree by its rank among those of its element, whatever other elements get.
 *
 * tlspec.bounds derives the heights of both; the numbers here and there must agree, and a test compares them. */
#pragma once

enum { TL_SUM_LANES = 1024, TL_SUM_LEAF = 16384, TL_SUM_FOLD = 16, TL_COLUMN_CHUNK = 128, TL_COLUMN_CHAINS = 4 };
