/* How a grid runs on this processor: its blocks one after the other, the threads of a block as coroutines, each with a stack of
 * its own. A thread runs until it comes to a barrier, a vote or a shuffle, and goes on when all whom it waits for have come to the
 * same. Where nobody can go on, threads wait for each other: a barrier that not all reach, which a device may hang at or pass.
 * A shuffle or a vote needs all lanes of its mask: what it reads of one that has ended, or never was, is undefined on a device.
 *
 * TORCHLEAN_EMULATOR_ORDER=backwards or =shuffled changes which block goes first, and which thread between two barriers: a result
 * may depend on neither. TORCHLEAN_EMULATOR_TRACE=1 prints every launch. Dynamic shared memory begins as NaN in every block. */
#include "language.h"

#include <stdio.h>
#include <stdlib.h>

#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#undef threadIdx

uint3 blockIdx;
dim3 blockDim, gridDim;

namespace emulator {

thread *self, *threads;
int votes, all_votes;
alignas(1024) char dynamic_memory[SHARED_BYTES];

namespace {

constexpr int MOST_THREADS = 1024;
constexpr size_t STACK = 128 << 10;

std::mutex device; /* one grid at a time */
void *scheduler;   /* its stack pointer while a thread runs */
const std::function<void()> *kernel_body;
const char *kernel_name;
thread all_threads[MOST_THREADS];

} // namespace

/* Keeps the registers that a callee must keep, leaves the stack for another, and goes on where that was left. */
extern "C" void emulator_switch(void **from, void *to);
asm(R"(
.text
.hidden emulator_switch
.globl emulator_switch
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

namespace {

void stop(waiting state)
{
    self->state = state;
    emulator_switch(&self->top, scheduler);
}

/* Where a thread's stack begins: it runs one kernel after the other. */
void live()
{
    for (;;) {
        (*kernel_body)();
        stop(THE_NEXT_KERNEL);
    }
}

void make(thread *t, int number)
{
    constexpr int REGISTERS = 6; /* that emulator_switch keeps */
    t->lane = number % WARP;
    t->warp = number / WARP;
    t->stack = aligned_alloc(64, STACK);
    if (!t->stack) abort();
    void **top = (void **)((char *)t->stack + STACK);
    *--top = nullptr; /* nobody calls: the stack is aligned as after a call */
    *--top = (void *)live;
    for (int i = 0; i < REGISTERS; i++)
        *--top = nullptr;
    t->top = top;
}

/* The lanes of a warp of `lanes` that cannot show what one of them waits for. */
uint32_t absent(const thread *t, int lanes, uint32_t mask)
{
    uint32_t found = lanes < WARP ? mask >> lanes << lanes : 0;
    for (int j = 0; j < lanes; j++)
        if (mask >> j & 1 && t[j].state == THE_NEXT_KERNEL) found |= 1u << j;
    return found;
}

/* Lets go those of a warp of `lanes` who wait for nobody but each other: what they offered is shown. */
bool release_warp(thread *t, int lanes)
{
    bool released = false;
    for (int i = 0; i < lanes; i++) {
        if (t[i].state != ITS_WARP) continue;
        const uint32_t mask = t[i].mask;
        if (const uint32_t away = t[i].shows ? absent(t, lanes, mask) : 0) {
            self = t + i;
            fail("a shuffle or a vote of lanes that have ended or are not in the block:", away);
        }
        bool all = true;
        for (int j = 0; j < lanes; j++)
            if (mask >> j & 1 && t[j].state != THE_NEXT_KERNEL)
                all = all && t[j].state == ITS_WARP && t[j].mask == mask && t[j].shows == t[i].shows;
        if (!all) continue;
        for (int j = 0; j < lanes; j++) {
            if (!(mask >> j & 1) || t[j].state != ITS_WARP) continue;
            memcpy(t[j].shown, t[j].offered, sizeof t[j].shown);
            t[j].state = NOTHING;
        }
        released = true;
    }
    return released;
}

/* Lets all go who wait at the block's barrier. */
void release_block(int count)
{
    votes = 0, all_votes = 1;
    for (int i = 0; i < count; i++) {
        if (threads[i].state != ITS_BLOCK) continue;
        votes += threads[i].vote != 0;
        all_votes &= threads[i].vote != 0;
        threads[i].state = NOTHING;
    }
}

void run_block(const std::vector<int64_t> &order)
{
    const int count = (int)order.size();
    for (int i = 0; i < count; i++)
        threads[i].state = NOTHING;
    for (;;) {
        for (const int64_t i : order) {
            if (threads[i].state != NOTHING) continue;
            self = threads + i;
            emulator_switch(&scheduler, self->top);
        }
        bool released = false;
        for (int first = 0; first < count; first += WARP)
            released |= release_warp(threads + first, std::min(WARP, count - first));
        for (int i = 0; i < count; i++) /* a thread that arrived behind them has let them go */
            released |= threads[i].state == NOTHING;
        if (released) continue;
        int done = 0, at_barrier = 0;
        for (int i = 0; i < count; i++)
            done += threads[i].state == THE_NEXT_KERNEL, at_barrier += threads[i].state == ITS_BLOCK;
        if (done == count) return;
        if (done + at_barrier < count) {
            fprintf(stderr,
                    "emulator: %s, block %u %u %u: of %d threads %d have ended, %d wait for the block, the others for "
                    "lanes of their warp that do not come\n",
                    kernel_name, blockIdx.x, blockIdx.y, blockIdx.z, count, done, at_barrier);
            abort();
        }
        release_block(count);
    }
}

/* The order in which the blocks of a grid run, and the threads of a block go on. */
std::vector<int64_t> order_of(int64_t count)
{
    static const char *const chosen = getenv("TORCHLEAN_EMULATOR_ORDER");
    static std::mt19937 random;
    std::vector<int64_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    if (!chosen || !*chosen || !strcmp(chosen, "forwards")) return order;
    if (!strcmp(chosen, "backwards")) {
        std::reverse(order.begin(), order.end());
    } else if (!strcmp(chosen, "shuffled")) {
        std::shuffle(order.begin(), order.end(), random);
    } else {
        fprintf(stderr, "emulator: TORCHLEAN_EMULATOR_ORDER: got %s, expected forwards, backwards or shuffled\n",
                chosen);
        abort();
    }
    return order;
}

} // namespace

void fail(const char *what, uint32_t lanes)
{
    fprintf(stderr, "emulator: %s, block %u %u %u, warp %d, lane %d: %s %08x\n", kernel_name, blockIdx.x, blockIdx.y,
            blockIdx.z, self->warp, self->lane, what, lanes);
    abort();
}

void wait_for_warp(uint32_t mask, bool shows)
{
    self->mask = mask, self->shows = shows;
    stop(ITS_WARP);
}

void wait_for_block(int vote)
{
    self->vote = vote;
    stop(ITS_BLOCK);
}

void run_grid(const char *kernel, dim3 grid, dim3 block, size_t bytes, const std::function<void()> &body)
{
    static const bool trace = getenv("TORCHLEAN_EMULATOR_TRACE") != nullptr;
    std::lock_guard<std::mutex> guard(device);
    const int64_t count = (int64_t)block.x * block.y * block.z, blocks = (int64_t)grid.x * grid.y * grid.z;
    if (trace) fprintf(stderr, "emulator: %s, %u %u %u blocks of %d\n", kernel, grid.x, grid.y, grid.z, (int)count);
    if (count < 1 || count > MOST_THREADS || bytes > SHARED_BYTES || blocks < 1 || grid.y > 65535 || grid.z > 65535) {
        fprintf(stderr, "emulator: %s: no device runs %u x %u x %u blocks of %d threads with %zu bytes\n", kernel,
                grid.x, grid.y, grid.z, (int)count, bytes);
        abort();
    }
    threads = all_threads;
    for (int i = 0; i < count; i++) {
        if (!threads[i].stack) make(threads + i, i);
        const unsigned n = (unsigned)i;
        threads[i].index = {n % block.x, n / block.x % block.y, n / block.x / block.y};
    }
    const std::vector<int64_t> order = order_of(count);
    blockDim = block, gridDim = grid, kernel_body = &body, kernel_name = kernel;
    for (const int64_t n : order_of(blocks)) {
        blockIdx = {(unsigned)(n % grid.x), (unsigned)(n / grid.x % grid.y), (unsigned)(n / grid.x / grid.y)};
        memset(dynamic_memory, 0xff, bytes);
        run_block(order);
    }
}

} // namespace emulator
