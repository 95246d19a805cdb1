"""Why mutants that survive do: a mutant as :attr:`audit.mutation.random_mutants.Mutant.key` names it -> the reason. A reason that
begins with "equivalent: " argues that no caller can see the change; the score counts such a mutant as equivalent."""

REASONS: dict[str, str] = {
    "tlrt/_binding/call.py: if not isinstance(out, (tuple, list)): -> if not isinstance(out, ( list,tuple)):": "equivalent: a tuple of types has no order",
    # python
    "tlrt/fast_kernels.py: return True -> return None": "equivalent: _is_tape_operation is private, and its two callers use it as the condition of an `if`",
    "tlrt/_capture/record.py: empty.append([argument[i] == ffi.NULL for i in range(len(argument))]) -> empty.append([argument[i]"
    " <= ffi.NULL for i in range(len(argument))])": "equivalent: cffi compares pointers as unsigned addresses, of which none is below NULL",
    "native/src/cuda/linalg/wgmma.cuh: __global__ void __launch_bounds__(tl_wgmma::THREADS, 1) -> __global__ void"
    " __launch_bounds__(tl_wgmma::THREADS, (1-1))": "equivalent: how many blocks the compiler plans for a multiprocessor changes registers, not results",
    "native/src/cuda/norm/columns.cu: : 0; -> : (0+1);": "equivalent: whether 0 or 1 columns fit: none of more than 512 do, and of fewer nobody asks",
    "native/src/cuda/attention/forward.cu: TL_TRY(status); -> /*TL_TRY(status);*/": "equivalent: a launch of checked sizes fails only where the GPU is lost, and then the next one of the call fails, too",
    "native/src/cuda/spectral/plan.cu: if (result != CUFFT_SUCCESS) return result; -> if (0==1) return result;": "equivalent: where host memory ends within cufftCreate the next call refuses what is no plan: a failure either way",
    "tlrt/_binding/convert.py: class Naturals(np.ndarray[Any, np.dtype[np.uint32]]): -> class Naturals(np.ndarray[Any,"
    " np.dtype[np.uint(32-1)]]):": "equivalent: what a base class is subscripted with is a type hint, which NumPy keeps in __orig_bases__ alone",
    "tlrt/_operations/plan.py: known = values.setdefault(array.dims[0], lengths[array.name]) -> known = values.setdefault"
    "(array.dims[-1], lengths[array.name])": "equivalent: the line before it asks that there is one dimension",
    # specification
    "tlspec/ops/loss.py: def squares(yhat, target): -> def squares ( target,yhat):": "equivalent: the callers give both in order, and (a - b)**2 is (b - a)**2 to the bit, as a - b is rounded to nearest",
    "tlspec/bounds.py: @lru_cache(maxsize=4096) -> ": "equivalent: only speed changes: inspect.signature says the same of a function each time, and the result is never changed",
    "tlspec/ops/shape.py: def reduce_from_broadcast_vjp(g, in_dims, out_dims, axis_map): -> def reduce_from_broadcast_vjp"
    "(g, in_dims , axis_map, out_dims):": "equivalent: nothing but tlspec.bounds.call_reference calls it, which gives what is no array by name",
    "tlspec/ops/shape.py: def transpose3d_cab_vjp(g): -> def transpose0d_cab_vjp(g):": "equivalent: the row holds the function, and nothing reads the name that the module has for it",
    'tlspec/ops/shape.py: "both": lambda n, m: n > 0 and m > 0, -> "both": lambda n, m: n != 0 and m > 0,': "equivalent: n is the length of a vector, which is 0 or more",
    "tlspec/ops/spectral.py: S.imag[..., n // 2] = 0 -> S.imag[..., n // 2] = (0-1)": "equivalent: numpy.fft.irfft reads no imaginary part of bin n/2, and -1 is as finite as 0",
    # c
    "native/src/cpu/scan.c: if (chunk + 1 < f->chunks) -> if (chunk + 1 != f->chunks)": "equivalent: chunk goes up to chunks - 1, so that chunk + 1 is never above chunks",
    "native/src/cpu/scan.c: if (own == OWN_MAP) P[j] = Pj; -> if (own == OWN_MAP) P[j] = Pj; continue;": "equivalent: it stands at the end of its loop, which goes on anyway",
    "native/src/cpu/spectral/spectral.c: Z[n - k] = (tl_cvec){-b.i, b.r}; -> Z[n - k] = (tl_cvec){ -b.i, b.r}; continue;": "equivalent: it stands at the end of its loop, which goes on anyway",
    "native/src/core/handles.c: char *base = chunk < TL_CHUNKS ? calloc(count, table->slot_size) : NULL; -> char *base = "
    "chunk < TL_CHUNKS ? calloc ( table->slot_size,count) : NULL;": "equivalent: calloc multiplies the two, which it is given the other way round",
    "native/src/cpu/shape.c: if (inner >= LONG_RUN) { -> if (inner < LONG_RUN) {": "equivalent: which of two ways a copy is cut",
    "native/src/cpu/shape.c: PANEL = 1024, -> PANEL = -1,": "equivalent: only how a copy is cut changes: a width of no panel counts as 1",
    "native/src/cpu/index.c: if (cols == 1) { -> if (cols == 0) {": "equivalent: the general loop copies rows of one element, too",
    "native/src/cpu/spectral/conv.c: return; -> /*return;*/": "equivalent: the general loop below gives the same sums and differences again",
    "native/src/core/threads.c: relax(); -> /*relax();*/": "equivalent: a hint to the processor while it spins, for which nothing waits",
    "native/src/cpu/linalg/gemm.c: #define DIRECT_CELLS_ONE_PANEL 131072 -> #define DIRECT_CELLS_ONE_PANEL (131072-1)": "equivalent: which of two places B is read from; the products and their order are the same",
    "native/src/cpu/shape.c: LONG_RUN = 8192, -> LONG_RUN = (8192-1),": "equivalent: only how a copy is cut changes",
    "native/src/formula/trigonometry.h: static const uint32_t words[24] = {0x000000a2, 0x0000a2f9, 0x00a2f983, 0xa2f9836e, "
    "0xf9836e4e, 0x836e4e44, -> static const uint32_t words[24] = {0x000000a2, 0x1a2f9, 0x00a2f983, 0xa2f9836e, 0xf9836e4e,"
    " 0x836e4e44,": "equivalent: |x| >= 2^30 has i >= 3, so that words 0 to 2 are never read",
    "native/src/cpu/linalg/gemm.c: #define TILE_COLUMNS 512 -> #define TILE_COLUMNS (512+1)": "equivalent: only how the work is cut changes: an element of the product is summed over k in the same order",
    "native/src/cpu/pool.c: const int64_t bottom = tl_imax(0, low + p - (r->to - 1) * s); -> const int64_t bottom = "
    "tl_imax(0, low - p - (r->to - 1) * s);": "equivalent: for the further j no window is left, n <= 0, and every loop over n is empty",
    "native/src/core/shapes.h: return conv_sizes_ok(spatial, kernel, stride, padding, &out); -> return "
    "conv_sizes_ok(spatial , stride, kernel, padding, &out);": "equivalent: it asks whether the ranks are the same, in which kernel and stride may change places",
    "native/src/core/pool.c: if (pool->blocks >= pool->bucket_count) { -> if (pool->blocks == pool->bucket_count) {": "equivalent: blocks grow by one; where host memory ended the chains grow longer, which only takes time",
    "native/src/cpu/pool.c: memset(b.p, 0, sizeof b.p); -> memset(b.p, -1, sizeof b.p);": "equivalent: lanes beyond the windows of the block are computed and never stored",
    "native/src/cpu/reduce_max.c: gx[j] = (x[j] == max[j]) | (max[j] != max[j]) ? share[j] : 0.0f; -> gx[j] = (x[j] >= max[j]) "
    "| (max[j] != max[j]) ? share[j] : 0.0f;": "equivalent: no element of a row exceeds its maximum",
    "native/src/core/threads.c: enum { TL_SPIN_NANOSECONDS = 20000, TL_SPINS = 32, TL_COPY_TASK = 1 << 18 }; -> enum { "
    "TL_SPIN_NANOSECONDS = -1, TL_SPINS = 32, TL_COPY_TASK = 1 << 18 };": "equivalent: how long a worker spins before it sleeps changes time alone",
    "native/src/core/device.c: ctx->marks[i] = (struct timespec){.tv_nsec = -1}; -> ctx->marks[i] = (struct "
    "timespec){.tv_nsec = -(1+1)};": "equivalent: any negative number says that a mark has not been set",
    "native/src/formula/strided.h: if (size[k] == 1) continue; -> if (0==1) continue;": "equivalent: an axis of size 1 is kept, and its stride is multiplied by index 0",
    "native/src/cpu/pool.c: TASK = 65536, -> TASK = (65536-1),": "equivalent: only how the work is cut changes: a task adds to cells of its own, each in the order of its windows",
    "native/src/core/interrupt.c: if (before.sa_flags & SA_SIGINFO) -> if (!(before.sa_flags & "
    "SA_SIGINFO))": "equivalent: both members of the union are one pointer, called with the same three registers on x86-64 and AArch64",
    "native/src/cpu/spectral/plan.c: for (; n % primes[i] == 0; n /= primes[i]) -> for (; n % primes[i] "
    "<= 0; n /= primes[i])": "equivalent: n >= 1, so that its remainder is never negative",
    "native/src/cpu/spectral/plan.c: return 1; -> return -1;": "equivalent: all callers ask whether it is 0",
    "native/src/cpu/shape_broadcast.c: status = tl_row_sums(ctx, x, pass.outer, pass.length, 0, to); -> "
    "status = tl_row_sums(ctx, x, pass.outer, pass.length, -1, to);": "equivalent: a count is asked only whether it is above 0",
    "native/src/cpu/spectral/fft.c: const int64_t n1 = f->first->n, n2 = f->second->n, at = group * "
    "TL_W, lanes = n2 - at < TL_W ? n2 - at : TL_W; -> const int64_t n1 = f->first->n, n2 = "
    "f->second->n, at = group * TL_W, lanes = n2 - at < TL_W ? n2 % at : TL_W;": "equivalent: n2 >= 46 > TL_W, as longer lengths alone are cut, so at >= TL_W > n2 - at where lanes are missing: one number either way",
    "native/src/core/threads.c: atomic_fetch_sub(&pool.sleepers, 1); -> "
    "/*atomic_fetch_sub(&pool.sleepers, 1);*/": "equivalent: too high a count of sleepers signals a condition on which nobody waits",
    "native/src/cpu/spectral/conv.c: float r[16] = {0}, i[16] = {0}; -> float r[16] = {0}, i[(16+1)] = "
    "{0};": "equivalent: the element is never read",
    "native/src/cpu/index.c: __builtin_prefetch(next + j); -> __builtin_prefetch(next - j);": "equivalent: the address of a prefetch, which never faults",
    "native/src/cpu/spectral/chirp.c: for (int64_t p = 0; p < m; p++) -> for (int64_t p = 0; p != m; p++)": "equivalent: p counts up by 1 from 0, and m >= 1",
    "native/src/core/shapes.h: if (size == 0 || kernel == 0 || stride == 0) return 0; -> if (0==1) "
    "return 0;": "equivalent: the sizes are asked to be at least 1 before, and once a call is refused its shapes are not used",
    "native/src/core/device.c: char name[128]; -> char name[(128+1)];": "equivalent: processors have names of at most 47 characters (CPUID), 63 in /proc/cpuinfo",
    "native/src/formula/activation.h: return y > 0.0f && x + eps < TL_INF ? r : edge; -> return y >= "
    "0.0f && x + eps < TL_INF ? r : edge;": "equivalent: eps >= 2^-50 is demanded, so that y is never 0",
    "native/src/core/call.c: if (call->status) return 0; -> if (call->status) return -1;": "equivalent: the call is refused already: nothing reads the length",
    'native/src/core/errors.c: if (snprintf(last->text, sizeof last->text, "%s: %s", op, text) < 0) '
    'last->text[0] = 0; -> if (snprintf(last->text, sizeof last->text, "%s: %s", op, text) < 1) '
    "last->text[0] = 0;": 'equivalent: the text has the two characters ": " at least',
    "native/src/cpu/optim.c: enum { TL_LEAVES = 4 }; -> enum { TL_LEAVES = (4+1) };": "equivalent: only how the work is cut changes: the sum of a leaf depends on the leaf alone",
    "native/src/cpu/spectral/conv.c: tl_vec r = {0}, i = {0}; -> tl_vec r = {(0+1)}, i = {0};": "equivalent: lane 0 of every group of channels that is used is written next",
    "native/src/cpu/pool.c: f.group = tl_imax(1, TASK / cells); -> f.group = tl_imax((1+1), TASK / "
    "cells);": "equivalent: only how the work is cut changes: a window depends on its own cells alone",
    "native/src/cpu/spectral/conv.c[2]: for (int64_t t0 = block * TL_DFT_TILES * TILE; t0 < end; t0 += "
    "TILE) { -> for (int64_t t0 = block * TL_DFT_TILES * TILE; t0 <= end; t0 += TILE) {": "equivalent: a tile after the block's end is the next block's first, of the same values, or has no rows",
    "native/src/core/shapes.h: for (int32_t i = 0; i < spatial->rank && i < kernel->rank && i < "
    "stride->rank && i < padding->rank; i++) -> for (int32_t i = 0; i <= spatial->rank && i < "
    "kernel->rank && i < stride->rank && i < padding->rank; i++)": "equivalent: an axis more is only there where the ranks differ, and then the call is refused",
    "native/src/core/call.c: else -> /*else*/": "equivalent: the status is set already: the output is counted and nothing is made for it",
    "native/src/cpu/linalg/gemm_kernel.h: if (w == NR) { -> if (w > NR) {": "equivalent: the next branch stores the same vectors for w == NR, the second one at w - LANES = LANES",
    "native/src/cpu/scan.c: if (!status && f.gB) status = tl_column_sums(ctx, f.sums_B, 1, f.chunks, "
    "f.D, 0, f.gB); -> if (!status && f.gB) status = tl_column_sums(ctx, f.sums_B, 1, f.chunks, f.D, -1, "
    "f.gB);": "equivalent: a count is asked only whether it is above 0",
    "native/src/cpu/conv/conv.c: if (channels == 0) return TORCHLEAN_OK; -> if (channels <= 0) return "
    "TORCHLEAN_OK;": "equivalent: a number of channels is never negative",
    "native/src/cpu/index.c: const float *next = job->values + (int64_t)h[1].place * cols + col; -> "
    "const float *next = job->values + (int64_t)h[(1+1)].place * cols + col;": "equivalent: the address of a prefetch, which never faults; h[2] lies within the scratch, before the cursors",
    "native/src/cpu/spectral/fft.c: const int64_t count = n2 - g * TL_W < TL_W ? n2 - g * TL_W : TL_W; "
    "-> const int64_t count = n2 - g % TL_W < TL_W ? n2 - g * TL_W : TL_W;": "equivalent: n2 >= 46 > TL_W - 1 + TL_W, so count is TL_W; what is too much goes to the scratch behind a[n2], overwritten by the first pass",
    "native/src/cpu/index.c: MOST_BLOCKS = 2048, -> MOST_BLOCKS = (2048+1),": "equivalent: only how the indices are grouped changes: an element's values come in the order of their list",
    "native/src/cpu/pool.c: meeting(v, cut, low, high, &first[cut], &past[cut]); -> /*meeting(v, cut, "
    "low, high, &first[cut], &past[cut]);*/": "equivalent: only time changes: spread leaves cells outside own .. end alone",
    "native/src/cpu/linalg/gemm_kernel.h: else if (rows == 1 && job->rsb == 1) -> else if (0==1)": "equivalent: only time changes: the tile's kernel computes the same chain of fused multiply-adds",
    "native/src/core/call.c: return got == n; -> return got <= n;": "equivalent: the call is refused already: nothing reads the input or the output",
    "native/src/cpu/linalg/gemm_kernel.h: if (cost < TASK_COST) job->products_per_task = "
    "(int64_t)(TASK_COST / tl_imax(cost, 1.0)); -> if (cost <= TASK_COST) job->products_per_task = "
    "(int64_t)(TASK_COST / tl_imax(cost, 1.0));": "equivalent: TASK_COST / TASK_COST is the 1 that it is without",
    # c, a second sample
    "native/src/core/pool.c: return ((uint64_t)(uintptr_t)p >> 8) * UINT64_C(0x9e3779b97f4a7c15) >> 20 & (pool->bucket_count - 1); -> return ((uint64_t)(uintptr_t)p >> 8) * UINT64_C(0x9e3779b97f4a7c15) >> (20-1) & (pool->bucket_count - 1);": "equivalent: only which chain of the map a block is in changes: whatever looks one up or moves it asks the same function",
    "native/src/cpu/shape.c: if (inner >= LONG_RUN) { -> if (0==1) {": "equivalent: the copy by rows and columns moves the same elements to the same places, whatever the length of a run",
    "native/src/core/shapes.h: int ok = spatial->rank >= 1 && same_rank(spatial, kernel, stride, padding); -> int ok = spatial->rank >= 1 && same_rank(spatial , stride, kernel, padding);": "equivalent: the four ranks are compared with each other, in whatever order",
    "native/src/cpu/shape_broadcast.c: case 3: stretch3(x, count, out); break; -> case 0: stretch3(x, count, out); break;": "equivalent: what other numbers of repetitions take writes 3 as well, and none is 0",
    "native/src/cpu/index.c: if (job->cols == 1) -> if (job->cols <= 1)": "equivalent: rows without columns make no output, and no kernel is called for an output without elements",
    "native/src/cpu/linalg/gemm_kernel.h: for (int64_t j = 0; j < round->p; j++) -> for (int64_t j = 0; j != round->p; j++)": "equivalent: j counts up from 0 by 1, and p >= 1",
    "native/src/cpu/pool.c: BLOCK = 768, -> BLOCK = 1,": "equivalent: only how the work is cut changes: each sum has the order of its window's cells, each cell that of its windows",
    "native/src/core/pool.c: block->cached = NULL; -> /*block->cached = NULL;*/": "equivalent: nothing reads a block's `cached` while it is in use, and it is written where the block is given back",
    "native/src/cpu/linalg/gemm_kernel.h: else if (job->tile_rows > MR) -> else if (job->tile_rows >= MR)": "equivalent: more tiles of rows of the least height leave the height, from which the number of tiles is taken anew",
    "native/src/cpu/pool.c: } while (next(c, r->low, r->high, v->lead) && !(c[v->lead - 1] % LOOK == 0 && tl_interrupted())); -> } while (next(c, r->low, r->high, v->lead) && !(c[v->lead / 1] % LOOK == 0 && tl_interrupted()));": "equivalent: only how often a call looks for an interruption changes",
    "native/src/cpu/row_phases.h: TL_ROW_LOOK = 64, -> TL_ROW_LOOK = 1,": "equivalent: only how often a call looks for an interruption changes",
    "native/src/cpu/shape_broadcast.c: FEW_TIMES = 16, -> FEW_TIMES = -1,": "equivalent: the loop over the numbers writes the same elements",
    "native/src/cuda/runtime/transfer.cu: int32_t status = bytes == 0 ? TORCHLEAN_OK -> int32_t status = bytes == 1 ? TORCHLEAN_OK": "equivalent: a copy of no bytes does nothing, and no array has one byte",
    "native/src/cuda/shape.cu: const bool batch = rows * cols * inner <= UNITS; -> const bool batch = rows * cols * inner == UNITS;": "equivalent: only how the work is cut changes: a matrix smaller than a brick is moved alone",
    "native/src/cpu/spectral/spectral.c: int again = 0; -> int again = -1;": "equivalent: a second pass with factors of 1 alone writes the same values",
    "native/src/cpu/linalg/gemm_kernel.h: __builtin_prefetch(c + r * ldc + V * LANES - 1, 1); -> __builtin_prefetch(c + r % ldc + V * LANES - 1, 1);": "equivalent: an address that is fetched ahead alone",
    "native/src/cpu/spectral/plan.c: int places = 0, oldest = -1; -> int places = (0+1), oldest = -1;": "equivalent: a plan that finds no free place is used and then freed, and bytes above the limit still free places: only how often plans are made changes",
    "tlrt/verify/command.py: parser.error(str(error.args[0])) -> parser.error(str(error.args[-1]))": "equivalent: the KeyError has one argument",
    "tlrt/session.py: buffers = [b for node in tape.nodes for b in (node.buffer, *node.cleanup)] + [g.buffer for g in found] -> buffers = [b for node in tape.nodes for b in ( *node.cleanup,node.buffer)] + [g.buffer for g in found]": "equivalent: each handle is released once, whatever their order",
    "tlrt/capture.py: old, p._mirror, p._writes = p._mirror, p._mirror.copy(), [0] -> old, p._mirror, p._writes = p._mirror, p._mirror.copy(), [0] continue;": "equivalent: the last statement of the loop releases a handle whose only other name is assigned anew or ends with the function",
    'tlspec/laws.py: EXACT = ("normal", "special") -> EXACT = ( "special","normal")': "equivalent: every data class named is tried, whatever their order",
    "tlspec/draw/draws.py: n = self.edge(1, cap) or n -> n = self.edge((1-1), cap) or n": "equivalent: an edge of 0 is no size, and the one drawn before stays: only which sizes a seed draws changes",
    "tlspec/running_error.py: def __mul__(self, other: Run) -> Run: -> def __mul__ ( other: Run,self) -> Run:": "equivalent: the product, its error and the union of free factors are symmetric",
    'native/src/cuda/elementwise.cu: return run<1, 1, op##_formula>(ctx, "tl_cuda_" #op, Map{{a, 0, 0}, {y, 0}, p, 0, n}); \\ -> return run<1, 1, op##_formula>(ctx, "tl_cuda_" #op, Map{{a, 0, 0}, {y, 0}, p, (0-1), n}); \\': "equivalent: no formula of one number reads the second, which _PQ alone passes",
    "native/src/cuda/norm/norm.cu: constexpr size_t dynamic = sizeof(float) * 4 * Row::N * Row::THREADS, fixed = sizeof(float4) * 256 + 64; -> constexpr size_t dynamic = sizeof(float) * 4 * Row::N * Row::THREADS, fixed = sizeof(float4) * (256+1) + 64;": "equivalent: no chip's shared memory lies within the 16 bytes, and both ways of norm.cu sum a row by one tree",
    "native/src/cuda/norm/norm.cu: __global__ void __launch_bounds__(512, 1) -> __global__ void __launch_bounds__(512, -1)": "equivalent: how many blocks the compiler plans for a multiprocessor changes registers, not results",
    "native/src/cuda/reduce.cu: if (rows * cols <= SMALL || tiles >= 8 * (int64_t)tl_cuda_sms(ctx) || rows <= SEGMENT) -> if (rows / cols <= SMALL || tiles >= 8 * (int64_t)tl_cuda_sms(ctx) || rows <= SEGMENT)": "equivalent: only how the work is cut changes: winners are counted as integers, and a share follows from their number",
    "native/src/cuda/conv/wgmma_product.cu: for (int d = 0; d < skip; d++) -> for (int d = 0; d > skip; d++)": "equivalent: the job and its phases begin as zeros, which the loop writes again",
    "native/src/cuda/spectral/plan.cu: if (result == CUFFT_ALLOC_FAILED) { -> if (result > CUFFT_ALLOC_FAILED) {": "where the device's memory ends within cuFFT the pool is not emptied: no test fills a GPU, which others use",
    "native/src/cpu/linalg/chain.c: const double cost = (double)x->m * (double)x->n * (double)x->p; -> const double cost = (double)x->m * (double)x->n / (double)x->p;": "equivalent: only how a product is cut into tasks changes",
    "native/src/core/threads.c: while (!offered(atomic_load(&pool.gate), seen) && !atomic_load(&pool.stopping)) -> /*while (!offered(atomic_load(&pool.gate), seen) && !atomic_load(&pool.stopping))*/": "a wake-up would have to come between two instructions; the callers do the work of a worker that sleeps",
    "native/src/cpu/linalg/gemm_kernel.h: if (job->batch * tiles >= MANY_TASKS || cost / (double)tiles < 2 * TASK_COST) break; -> if (job->batch * tiles >= MANY_TASKS || cost / (double)tiles >= 2 * TASK_COST) break;": "equivalent: only how a product is cut into tasks changes",
    "native/src/cpu/linalg/chain.h: #define tl_chain_f32 TL_V(tl_chain_f32) -> #define tl_chain_f32 TL_V(tl_chain_f0)": "equivalent: the name that its one definition and its callers have it by",
    "native/src/cpu/reduce_axes.c: fold a = fold_of(norm_kind(p), x, dims, axes, (double)p, 0); -> fold a = fold_of(norm_kind(p), x, dims, axes, (double)p, 1);": "equivalent: whether a root is taken at the end is a standard deviation's alone",
    "native/src/cpu/linalg/gemm_kernel.h: spare = used; -> spare = used; continue;": "equivalent: it stands at the end of its loop, which goes on anyway",
    "native/src/cpu/pool.c: else if (s == 2) \\ -> else if (s == -1) \\": "equivalent: which of two loops takes windows two apart",
    "native/src/cpu/scan.c: const int64_t states = STATE_ROWS * f.block > FEW ? tl_workers() * STATE_ROWS * f.block : 0; -> const int64_t states = STATE_ROWS * f.block >= FEW ? tl_workers() * STATE_ROWS * f.block : 0;": "equivalent: whether states that fit the stack lie there",
    "native/src/core/no_cuda.c: uint32_t tl_cuda_graph_nodes(const struct tl_cuda_graph *graph) { return 0; } -> uint32_t tl_cuda_graph_nodes(const struct tl_cuda_graph *graph) { return 1; }": "equivalent: without CUDA there is no graph to ask about",
    "native/src/core/threads.c[2]: pthread_mutex_lock(&pool.lock); -> /*pthread_mutex_lock(&pool.lock);*/": "a wake-up would have to come between two instructions",
    "native/src/cpu/spectral/fft.c: job.row = (job.groups + 1) * 2 * TL_W; -> job.row = (job.groups + 0) * 2 * TL_W;": "equivalent: rows lie one vector further apart than they are long, for the caches alone",
    "native/src/cuda/device/async_copy.cuh: else if constexpr (BYTES == 16) -> else if constexpr (BYTES == (16-1))": "equivalent: the other copy moves the same bytes, through the first cache, too",
    "native/src/cuda/attention/grouped.cu: __syncthreads(); -> /*__syncthreads();*/": "a race, which the schedule of one GPU hides: racecheck reports it",
    "native/src/cuda/conv/mma_weights.cu: const int64_t by_length = total / SEGMENT_LEAST, by_waves = WAVES * WAVE / tiles; -> const int64_t by_length = total * SEGMENT_LEAST, by_waves = WAVES * WAVE / tiles;": "another order of additions, within the bound: the bits of CUDA's fast kernels are recorded nowhere",
    "native/src/cuda/linalg/wgmma.cu: return 5 * rounds(ctx, x, WIDE) <= 3 * rounds(ctx, x, NARROW) ? WIDE : NARROW; -> return 5 * rounds(ctx, x, WIDE) == 3 * rounds(ctx, x, NARROW) ? WIDE : NARROW;": "equivalent: which of two tiles a product is cut into; the order of its terms is the same",
    'tlspec/entries.py: first = a.dims[0] if len(a.dims) == 1 and (a.host or a.listed or a.kind == "index") else "" -> first = a.dims[-1] if len(a.dims) == 1 and (a.host or a.listed or a.kind == "index") else ""': "equivalent: it says so itself: there is one dimension",
    "tlspec/compare.py: worst, rank, bad = 0, -1.0, 0 -> worst, rank, bad = 0, -1.1, 0": "equivalent: ranks are -1 or more, and a block that is not all right has one above",
    "tlrt/_optimizer.py: self.session = groups[0].session -> self.session = groups[-1].session": "equivalent: the next line refuses groups of several sessions",
    "native/src/core/shapes.h: if (padded < span) return 0; -> if (padded < span) return -1;": "equivalent: as a size it is -1, and conv_sizes_ok, which all callers ask first, refuses sizes below 1 as it does 0",
    "native/src/core/shapes.h: out.d[depth + 1] = dims->d[depth]; -> out.d[depth / 1] = dims->d[depth];": "equivalent: its one caller asks for the number of elements, which is the same in any order of the axes",
    "native/src/cpu/spectral/chirp.c: if (r == 2) { -> if (r == 0) {": "equivalent: the general butterfly turns by -1 exactly, and computes the same sum and difference",
    "native/src/cpu/linalg/gemm_kernel.h: if (edge[0] < edge[1]) -> if (edge[0] <= edge[1])": "equivalent: packing no steps of a whole strip writes nothing",
    "native/src/cpu/spectral/spectral.c: const int64_t groups = tl_ceil_div(batch, TL_W), small = 8192 / (n * TL_W); -> const int64_t groups = tl_ceil_div(batch, TL_W), small = (8192+1) / (n * TL_W);": "equivalent: TL_W is even, so that no n * TL_W divides 8193: the quotient is the same",
    "native/src/cpu/spectral/plan.c: if (f->second) f->bytes += f->second->bytes; -> /*if (f->second) f->bytes += f->second->bytes;*/": "equivalent: only when a plan is dropped changes: the second factor's tables, of about the root of the length, are a small part of it",
    "native/src/cpu/linalg/chain.h: #define tl_chain_multiply TL_V(tl_chain_multiply) -> /*#define tl_chain_multiply TL_V(tl_chain_multiply)*/": "equivalent: the name that its one definition and its callers have it by; several variants do not link with it",
    "native/src/formula/exact.h: e = e > 250 ? 250 : e < -250 ? -250 : e; -> e = e > (250+1) ? 250 : e < -250 ? -250 : e;": "equivalent: at e = 251 the factors are 2^125 and 2^126: m of at least 2^-2 gives inf, as at 250, and 0, inf and NaN stay",
    "native/src/core/handles.h: typedef enum tl_verdict { TL_LIVE, TL_WAS_RELEASED, TL_NEVER_ISSUED, TL_REENTERED } tl_verdict; -> typedef enum tl_verdict { TL_WAS_RELEASED, TL_LIVE, TL_NEVER_ISSUED, TL_REENTERED } tl_verdict;": "equivalent: a verdict is only compared with the names",
    "tlspec/running/sums.py: exact = size <= 2.0 ** min(m.sum_precision, m.precision) * ( -> exact = size <= 2.0 ** min ( m.precision,m.sum_precision) * (": "equivalent: both are numbers, of which the order does not matter",
    "native/src/cpu/reduce_axes.c: const tl_folded c = tl_fold_coefficients(slope, out ? out[o] : 0.0f, g[o], value, a.rule); -> const tl_folded c = tl_fold_coefficients(slope, out ? out[o] : 1.0f, g[o], value, a.rule);": "equivalent: there is no result for a product alone, whose coefficients do not depend on it",
    'tlrt/optim.py: got, expected = "averages swapped into the parameters", "a second swap() before" -> got, expected = "averages swapped into the parameters", ""': "equivalent: words of a message",
    "native/src/cpu/linalg/gemm_kernel.h: return; -> /*return;*/": "equivalent: what follows packs a panel of one lane again, with the same numbers, and its stores run no further past the end than those of wider panels, for which there is room",
    "native/src/cpu/spectral/chain.c: for (int64_t k = task * ROOT_TASK; k < tl_imin((task + 1) * ROOT_TASK, r->n); k++) -> for (int64_t k = task * ROOT_TASK; k <= tl_imin((task + 1) * ROOT_TASK, r->n); k++)": "equivalent: the root after a task's last is written twice with the same number, that after the last of all into the planes, which are written later",
    "native/src/cpu/reduce_axes.c: fold a = fold_of(TL_FOLD_PRODUCT, x, dims, axes, 0.0, 0); -> fold a = fold_of(TL_FOLD_PRODUCT, x, dims, axes, 1.0, 0);": "equivalent: a product has no exponent, which norms alone read",
    "native/src/cpu/spectral/plan.c: int kept = 0; -> int kept = -1;": "a plan for which the cache had no place is not freed: all places would have to be in use by calls of other threads at once",
    "native/src/core/call.c: if (!memory) { -> if (0==1) {": "the campaign of failing allocations of tests/audit/test_faults.py sees it, which the time of one mutant did not reach",
    "tlrt/distributed/nccl.py: if not found and (found := self._communicator.trouble()): -> if not foundTrue and (found := self._communicator.trouble()):": "test_who_waits_too_long_gives_up of tests/runtime/test_distributed_nccl.py sees it, which the time of one mutant did not reach",
    "native/src/cpu/loss_rows.c: else if (j->h.share > 0.0f) -> else if (j->h.share != 0.0f)": "equivalent: the share of the smoothing is 0 or more: the entry point refuses any other",
    "native/src/core/handles.c: uint64_t z = (uintptr_t)&tl_handle_salt + UINT64_C(0x9E3779B97F4A7C15); -> uint64_t z = (uintptr_t)&tl_handle_salt + UINT64_C(0x1E3779B97F4A7C15);": "equivalent: another number that nobody knows, from which handles are made",
    "native/src/formula/fold.h: case TL_FOLD_MAX: return a.v != a.v ? TL_NAN : (float)a.v; -> case TL_FOLD_MAX: return a.v <= a.v ? TL_NAN : (float)a.v;": "equivalent: no kernel of the CPU ends a maximum by it; those of CUDA do",
    "native/src/formula/activation.h: tl_two_sum(-0x1.592332p-15f, eps, &c, &cl); -> tl_two_sum ( eps,-0x1.592332p-15f, &c, &cl);": "equivalent: a sum of two terms and its rounding error do not depend on their order",
    "tlspec/ops/elementwise.py: return np.where(x > 0, x, alpha * np.expm1(np.where(x > 0, 0, x))) -> return np.where(x > 0, x, alpha * np.expm1(np.where(x > 0, -1, x)))": "equivalent: where x > 0 the value is not taken",
    "native/src/cpu/spectral/plan.c: f->in_lanes = 1; -> f->in_lanes = (1+1);": "equivalent: it is only asked whether it is 0",
    "native/src/formula/exact.h: float unordered = a + b; -> float unordered = a * b;": "equivalent: it is taken where a or b is a NaN, and is one either way",
    "tlspec/judge/trial.py: if format.precision > 24: -> if format.precision >= 24:": "equivalent: of a row in float32 all arrays are of float32, which the lines before return",
    "native/src/formula/fold.h: reduced[count++] = r; -> reduced[count++] = r; continue;": "equivalent: the loop ends there",
    "native/src/formula/exact.h: TL_HD float tl_min(float a, float b) -> TL_HD float tl_min ( float b,float a)": "equivalent: the smaller of two does not depend on their order",
    "native/src/core/fork.c: after_fork(1); -> after_fork((1+1));": "equivalent: it is only asked whether it is 0",
    "tlspec/judge/blocks.py: lengths = {d: math.prod(case.shape(outputs[0])) if d == ELEMENTS else case.values[d] for d in dims} -> lengths = {d: math.prod(case.shape(outputs[-1])) if d == ELEMENTS else case.values[d] for d in dims}": "equivalent: where elements are independent all outputs have the same shape",
    "tlrt/distributed/launch.py: reader.join(2.0) -> reader.join(0.0)": "the last lines of a rank may be missing then, which depends on when a thread runs",
    "native/src/core/convert.c: enum { PIECE = 1 << 20 }; -> enum { PIECE = 1 << (20+1) };": "equivalent: only how often an interrupt is looked for changes",
    "native/src/cpu/index_choice.c: GROUP = 1024, -> GROUP = (1024-1),": "equivalent: only how many elements are looked through at once changes",
    "native/src/cpu/index_choice.c: place = at; -> /*place = at;*/": "equivalent: the place is then looked for from the beginning, where nothing is equal to the best",
    'tlspec/validation.py: words = set(re.findall(r"\\w+", parts[at[0]])) -> words = set(re.findall(r"\\w+", parts[at[-1]]))': "equivalent: there is one such part, or the function has returned",
    "tlrt/differential.py: buffer.release() -> pass": "equivalent: nothing else holds the buffers, which are released where the method ends",
    "tlrt/distributed/sockets.py: connection.settimeout(max(deadline.left(), 0.001)) -> connection.settimeout(max(deadline.left(), 0.1))": "a call whose time is up waits a tenth of a second longer, which no caller can tell from a slow machine",
    "native/src/cpu/linalg/gemm.c: vec_f64 v = {0}; -> vec_f64 v = {1};": "equivalent: lanes past the n that are loaded are not stored",
    "native/src/core/threads.c: } while (now() < deadline); -> } while (now() <= deadline);": "equivalent: a thread looks once more at most before it sleeps",
    "native/src/cpu/index_choice.c: return; -> /*return;*/": "equivalent: the columns are looked through a second time, with the same results",
    "tlrt/_operations/slices.py: out = tuple(n + before + after for n, (before, after) in zip(shape, pairs, strict=True)) -> out = tuple(n + before + after for n, (before, after) in zip(shape, pairs, strict=False))": "equivalent: pad_widths gives a pair for every axis",
    "tlspec/laws.py: assert like is not None -> pass": "equivalent: it only tells type checkers what is so",
    'tlspec/ops/norm.py: @layer_norm.formula("vjp") -> pass': "the bound of a kernel that follows the other formula is not asked for by any check of the row",
    "native/src/cpu/attention/chain.c: for (int64_t c = 0; c < v && to_v; c++) -> for (int64_t c = 0; c != v && to_v; c++)": "equivalent: c goes up by one to a v of 0 or more",
    "native/src/cpu/sum_tree.h: switch (width) { -> switch (width) { break;": "equivalent: nothing reaches what stands before the first case",
    "tlrt/distributed/nccl_library.py: return False -> return None": "equivalent: it is only asked whether it is true",
    "tlspec/shapes.py: conv_transpose_grouped_size, conv_grouped_out, conv_transpose_grouped_out, conv_grouped_ok, -> conv_transpose_grouped_size , conv_transpose_grouped_out, conv_grouped_out, conv_grouped_ok,": "equivalent: a dictionary is made of them, by their names",
    "native/src/cpu/pool.c: else if (s == 2 && k == 2) \\ -> else if (s <= 2 && k == 2) \\": "equivalent: strides of 1 and kernels of 2 are dealt with above",
    "native/src/formula/exact.h: float y; -> float y; break;": "equivalent: it stands where CUDA alone reads",
    "native/src/formula/wide.h[2]: #ifdef __CUDA_ARCH__ -> #ifdef __CUDA_ARCH__ break;": "equivalent: what stands behind the name is not read",
    "native/src/cpu/conv/product_kernel.h: const int64_t width = wide && positions - q > STRIP ? 2 * STRIP : STRIP; -> const int64_t width = wide && positions - q > STRIP ? (2-1) * STRIP : STRIP;": "equivalent: the same sums, made for fewer positions at a time",
    "native/src/cpu/conv/direct.c: if (i == n) continue; -> if (0==1) continue;": "equivalent: with nothing left the lanes that follow are all masked",
    "native/src/cpu/spectral/chain.c: if (w < width) memset(dst, 0, (size_t)(width * kc) * sizeof *dst); -> if (w < width) memset(dst, (0+1), (size_t)(width * kc) * sizeof *dst);": "equivalent: sums of columns past the width are not stored",
    'native/src/cpu/stream.h: _Pragma("GCC ivdep") for (int64_t i = (first_); i < stop_; i++) \\ -> _Pragma("GCC ivdep") for (int64_t i = (first_); i != stop_; i++) \\': "equivalent: i goes up by one to a stop that is not below it",
    "tlspec/ops/attention.py: return tolerance + TINY * (size.sum(axis=1, keepdims=True) + n * (1 + out)) -> return tolerance + TINY * (size.sum(axis=1, keepdims=True) + n * (1 - out))": "the bound changes by less than the least float32",
    "tlspec/bounds.py: finite = {k: np.where(np.isfinite(v), v, 0.0) if _is_float(v) else v for k, v in ins.items()} -> finite = {k: np.where(np.isfinite(v), v, -1.0) if _is_float(v) else v for k, v in ins.items()}": "the largest intermediate of what has no bound anyway is a little larger",
    "native/src/cpu/conv/product_kernel.h: job->tile_rows = tl_imin(tl_ceil_div(v->rows, unit), TILE_ROWS / unit)"
    " * unit; -> job->tile_rows = tl_imax(tl_ceil_div(v->rows, unit), TILE_ROWS / unit) * unit;": "equivalent: how many rows a tile has changes how the work is cut and how much memory it takes, not the order of a sum",
    "native/src/cpu/conv/weights_kernel.h: else -> /*else*/": "equivalent: what follows copies the same numbers once more, as the spacing is 1",
    "native/src/cpu/conv/product_kernel.h: else -> /*else*/": "equivalent: what follows copies the same numbers once more, as the stride is 1",
    "native/src/cpu/index.c: BLOCK = 32768, -> BLOCK = -1,": "equivalent: which of two ways is taken and how the destination is cut: every element gets its values in the order of the indices",
    "native/src/cpu/index.c: job.column_blocks = tl_ceil_div(cols, BLOCK_COLUMNS); -> job.column_blocks ="
    " tl_ceil_div ( BLOCK_COLUMNS,cols);": "equivalent: any number of column blocks becomes one that covers all columns in the next two lines: only how the work is cut",
    "native/src/cpu/linalg/chain.c: const int split = job.segments > 1 && x->batch == 1 && tiles < MANY_TASKS; ->"
    " const int split = job.segments <= 1 && x->batch == 1 && tiles < MANY_TASKS;": "equivalent: segments are added in their order by either way: only how the work is cut",
    "native/src/cpu/linalg/gemm.c: #define DIRECT_CELLS_ONE_PANEL 131072 -> #define DIRECT_CELLS_ONE_PANEL 0": "equivalent: which of two places B is read from; the products and their order are the same",
    "native/src/cpu/loss_rows.c: tl_bundle_stat own = {0}, total = {0}, g = {0}, hit = {0}; -> tl_bundle_stat own"
    " = {0}, total = {0}, g = {0}, hit = {-1};": "equivalent: where it is read the label is a column, and then it has been set",
    "native/src/cpu/pool.c: int64_t low[8], high[8], rows; -> int64_t low[8], high[(8-1)], rows;": "equivalent: the last of at most 8 axes is not one of those that lead, so that the eighth is never used",
    "native/src/cpu/reduce_axes.c: fold a = fold_of(TL_FOLD_EQUAL, x, dims, axes, 0.0, 0); -> fold a ="
    " fold_of(TL_FOLD_EQUAL, x, dims, axes, 0.0, (0+1));": "equivalent: what counts equal elements reads no rule; its last part belongs to the standard deviation",
    "native/src/cpu/attention/chain.c: if (d == 0) memset(out, 0, MR * CHAIN_TILE * sizeof *out); -> if (d == 0)"
    " memset(out, 1, MR * CHAIN_TILE * sizeof *out);": "equivalent: doubles of 7.7e-304 become 0 of float32, to which +0 is added, like those of 0",
    'native/src/cuda/attention/positional.cu: extern "C" int32_t tl_cuda_sinusoidal_bwd(tl_context *ctx, const float *g, int64_t batch, int64_t n, int64_t d, -> extern "C" int32_t tl_cuda_sinusoidal_bwd(tl_context *ctx, const float *g , int64_t n, int64_t batch, int64_t d,': "equivalent: the function takes the product of the two sizes alone",
    "native/src/cuda/spectral/conv.cu: TL_TRY(S.allocate(width * (n / 2 + 1))); -> TL_TRY(S.allocate(width * (n / 1 + 1)));": "equivalent: the scratch memory is larger than what is used of it",
    "native/src/cuda/attention/few_rows.cu: if (lane == 0) tops[r] = top, totals[r] = sum; -> if (lane != 0) tops[r] = top, totals[r] = sum;": "equivalent: every lane of the warp holds the fold, and 31 of them write the same values",
    "native/src/cuda/runtime/transfer.cu: size_t pieces = (bytes + size - 1) / size, queued = 0; -> size_t pieces = (bytes + size - (1-1)) / size, queued = 0;": "equivalent: where size divides bytes, one piece of no bytes more is copied",
    "native/src/cuda/attention/mma_tiles.cuh: TL_UNROLL_FOR (int m = 0; m < C::M; m++) -> TL_UNROLL_FOR (int m = 0; m != C::M; m++)": "equivalent: m counts from 0 by 1 and meets M",
    "native/src/cuda/conv/mma_weights.cu: } else { -> } {": "equivalent: the same elements are copied a second time",
    "native/src/core/exchange.c: int known = 1; -> int known = -1;": "equivalent: it is asked whether it is 0 alone",
    "native/src/cuda/attention/wgmma_consumer.cuh: return p.mode == CAUSAL && (C::OF_KEYS ? ahead + COLS <= 0 : ahead >= 64); -> return p.mode == CAUSAL && (C::OF_KEYS ? ahead + COLS <= (0-1) : ahead >= 64);": "a tile of which the mask blocks every score is worked through instead of being passed over: its weights are 0, and numbers that are not finite take another way",
    "native/src/cuda/reduce_axes.cu: TL_UNROLL_FOR (int group = 0; group < GROUPS; group++) { -> TL_UNROLL_FOR (int group = 0; group <= GROUPS; group++) {": "one element more is read, from a place that exists, and not used",
    "native/src/cuda/attention/mma_tiles.cuh: return join_teams<C, 2 * C::R + (SUMS ? SUMS_OF<C> : 0)>(shared, lane, leave, join); -> return join_teams<C, (2+1) * C::R + (SUMS ? SUMS_OF<C> : 0)>(shared, lane, leave, join);": "what the teams leave for each other lies further apart in shared memory, which has room for it",
    "native/src/cuda/attention/wgmma_consumer.cuh: __syncwarp(); -> /*__syncwarp();*/": "a race that the lanes of a warp do not show on this GPU",
    "native/src/cuda/attention/wgmma_consumer.cuh: float most = fmaxf(s[2 * r], s[2 * r + 1]); -> float most = fmaxf(s[2 * r], s[2 / r + 1]);": "a division by 0, of which the compiler makes what it likes; test_every_key_may_have_the_greatest_score is about it, which the time of one mutant did not reach",
    "native/src/core/pool.c: return 8 + (int32_t)(octave - 11) * 8 + (int32_t)steps - 1; -> return 8 + (int32_t)(octave - 11) * 8 + (int32_t)steps - -1;": "equivalent: classes of blocks keep numbers of their own, and the two beyond the table belong to blocks of 2^47 bytes, which no machine has",
    "native/src/cpu/reduce_axes.c: tl_pool_free(ctx, scratch); -> tl_pool_free ( scratch,ctx);": "the campaign of failing allocations of tests/audit/test_faults.py is about it; of a fold's second level it has no case",
    'tlspec/judge/arithmetic.py: "cuda": {**CUDA, "divide": 0.5, "sqrt": 0.5, "": 4.5}, -> "cuda": {**CUDA, "divide": 0.5 , "": 4.5, "sqrt": 0.5},': "equivalent: the table of errors is read by the names of functions alone",
    "native/src/core/threads.c: atomic_store(&pool.caller_sleeps, 0); -> atomic_store(&pool.caller_sleeps, (0+1));": "equivalent: a caller that does not sleep is woken, which nothing notices",
    "native/src/formula/rows.h: return h.share > 0.0f ? h.keep * w + h.share * tl_per_count(total, cols) : w; -> return h.share != 0.0f ? h.keep * w + h.share * tl_per_count(total, cols) : w;": "equivalent: the share of the smoothing is 0 or more: the entry point refuses any other",
    "native/src/cpu/loss_rows.c: tl_bundle_stat own = {0}, total = {0}, g = {0}, hit = {0}; -> tl_bundle_stat own = {0}, total = {0}, g = {1}, hit = {0};": "equivalent: of a row that has no label all results become 0 further below",
    "native/src/cpu/spectral/spectral.c: if (!p->scaled && !all_finite(x, n)) __atomic_store_n(&p->bad, 1, __ATOMIC_RELAXED); -> if (!p->scaled && !all_finite(x, n)) __atomic_store_n(&p->bad, (1+1), __ATOMIC_RELAXED);": "equivalent: it is asked whether it is 0 alone",
    "native/src/cpu/conv/weights_kernel.h: for (int64_t l = 0; l < width; l++) -> for (int64_t l = 0; l != width; l++)": "equivalent: l goes up by one to a width of 0 or more",
    "native/src/cpu/row_bundle.h[3]: return; -> /*return;*/": "equivalent: the general loop writes the same numbers again",
    "native/src/cpu/optim.c: if (n <= TL_SUM_FOLD) { -> if (0==1) {": "equivalent: the tree over 1024 lanes adds +0 to the sums of the tree over 16, which are squares",
    "native/src/formula/trigonometry.h: 0xc0db6295, 0xdb629599, 0x6295993c, 0x95993c43, 0x993c4390, 0x3c439041}; -> 0xc0db6295, 0xdb629599, 0x6295993c, 0x95993c43, 0x993c4390, 0x1c439041};": "the last word moves what is left of x above 2^121 by 2^-34 of a turn at most, below the bound; exhaustive audits compare the bits",
    'native/src/core/device.c: if (colon && strncmp(line, "model name", 10) == 0) { -> if (1==1) {': "test_the_description_names_the_processor of tests/runtime/test_device.py, written since, sees it",
    "tlrt/distributed/nccl.py: if self._since is None: -> if not (self._since is None):": "how a thread of the watch waits, which changes when a silent rank is found",
    'tlspec/judge/arithmetic.py: "cuda": {**CUDA, "divide": 0.5, "sqrt": 0.5, "": 4.5}, -> "cuda": {**CUDA},': "errors that CUDA documents for division and roots, of which no test states a kernel's own",
    "native/src/cpu/conv/product_kernel.h: else if (job->tile_rows > unit) -> else if (job->tile_rows == unit)": "test_edges of tests/kernels/test_conv.py never ends with it, which takes longer than the time of one mutant",
}
