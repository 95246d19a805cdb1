/* Hostile calls: random calls of every function of the C ABI, valid ones and broken ones, and what must hold after each.
 *
 * A call is a drawn case of the registry (fuzz_table.h) with some of its arguments spoilt. The driver knows of every handle
 * whether it is good, and computes every length from the row's own expressions, so it knows of many calls that they must be
 * refused and of the unspoilt ones that they must be accepted. After each call: the status is a pinned code; a refusal has a
 * message that names the function, and has changed neither an output's slot nor an output's content; an accepted call made
 * buffers of the right lengths and left its inputs alone; the number of live buffers is what it should be. At the end nothing
 * is live. Everything about a call follows from the seed and its number.
 *
 *   fuzz_abi [--seed S] [--from N] [--calls M] [--device D] [--threads T] [--shared] [--json FILE] [--print] */
#include "fuzz_abi.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TRIES = 20, KEPT_ELEMENTS = 1 << 20 };
static const uint64_t cap_bytes = UINT64_C(32) << 20;

/* ---- a run ------------------------------------------------------------------------------------------------------- */

#define MUST(expr)                                                                                                      \
    do {                                                                                                                \
        int32_t status_ = (expr);                                                                                       \
        if (status_) {                                                                                                  \
            fprintf(stderr, "fuzz_abi: %s: status %d (%s)\n", #expr, status_, torchlean_cuda_last_error());             \
            exit(2);                                                                                                    \
        }                                                                                                               \
    } while (0)

static void open_run(fuzz_run *f, int32_t device, torchlean_context *shared)
{
    static const uint32_t zeros[16];
    f->device = device;
    f->rows = calloc(FUZZ_LENGTHS, sizeof *f->rows);
    f->kept = calloc(FUZZ_LENGTHS, sizeof *f->kept);
    f->host = calloc(FUZZ_LENGTHS, sizeof(double));
    f->calls = calloc(4 * (size_t)(fuzz_entry_count + 64), sizeof *f->calls);
    f->accepted = f->calls + fuzz_entry_count + 64;
    f->refused = f->accepted + fuzz_entry_count + 64;
    f->statuses = f->refused + fuzz_entry_count + 64;
    if (!f->rows || !f->kept || !f->host || !f->calls) exit(2);
    f->context = shared;
    f->shared = shared != NULL;
    if (!shared) {
        MUST(torchlean_cuda_context_create(device, &f->context));
        MUST(torchlean_cuda_memory_cap(f->context, cap_bytes));
    }
    MUST(torchlean_cuda_context_create(TORCHLEAN_CPU, &f->foreign));
    MUST(torchlean_cuda_context_create(TORCHLEAN_CPU, &f->destroyed));
    for (uint32_t i = 0; i < 4; i++)
        MUST(i & 1 ? torchlean_cuda_index_upload(f->foreign, zeros, i * 3, &f->abroad[i])
                   : torchlean_cuda_buffer_zeros(f->foreign, i * 3, &f->abroad[i]));
    MUST(torchlean_cuda_buffer_zeros(f->destroyed, 3, &f->orphan));
    MUST(torchlean_cuda_context_destroy(f->destroyed));
    for (uint32_t i = 0; i < 16; i++)
        MUST(i & 1 ? torchlean_cuda_index_upload(f->context, zeros, i, &f->released[i])
                   : torchlean_cuda_buffer_zeros(f->context, i, &f->released[i]));
    for (int i = 0; i < 16; i++)
        MUST(torchlean_cuda_buffer_release(f->released[i]));
}

/* Destroys a context, in which nothing may be live any more. */
static void close_context(fuzz_run *f, torchlean_context *context, const char *which)
{
    torchlean_memory m;
    MUST(torchlean_cuda_memory_stats(context, &m));
    if (m.live_buffers || m.live_bytes)
        fuzz_fail(f, "end", "%llu buffers and %llu bytes are live in the %s context",
                  (unsigned long long)m.live_buffers, (unsigned long long)m.live_bytes, which);
    MUST(torchlean_cuda_context_destroy(context));
}

static void close_run(fuzz_run *f)
{
    fuzz_drop_rows(f);
    for (int i = 0; i < 4; i++)
        MUST(torchlean_cuda_buffer_release(f->abroad[i]));
    close_context(f, f->foreign, "foreign");
    if (!f->shared) close_context(f, f->context, "run's");
}

static uint64_t first_call, call_count = 100000;

static void *work(void *argument)
{
    fuzz_run *f = argument;
    fuzz_current = f;
    for (uint64_t k = 0; k < call_count && f->failed < TRIES; k++) {
        f->number = first_call + k;
        f->state = tl_mix(f->seed * UINT64_C(0x2545f4914f6cdd1d) ^ tl_mix(f->number));
        if (f->kept_elements > KEPT_ELEMENTS) fuzz_drop_rows(f);
        int which = (int)fuzz_below(f, (uint64_t)(fuzz_entry_count + fuzz_entry_count / 12 + 1));
        if (which < fuzz_entry_count) {
            fuzz_call(f, which);
        } else {
            int core = (int)fuzz_below(f, (uint64_t)fuzz_core_count);
            int32_t status = fuzz_core(f, core);
            f->calls[fuzz_entry_count + core]++;
            f->accepted[fuzz_entry_count + core] += status == TORCHLEAN_OK;
            f->refused[fuzz_entry_count + core] += status != TORCHLEAN_OK;
        }
        if (isatty(2) && k % 65536 == 65535)
            fprintf(stderr, "\r%5.1f %% of %llu calls", 100.0 * (double)(k + 1) / (double)call_count,
                    (unsigned long long)call_count);
    }
    return NULL;
}

static void write_json(FILE *out, const fuzz_run *runs, int threads, double took)
{
    uint64_t calls = 0, accepted = 0, statuses[16] = {0};
    int failed = 0, slow = 0;
    for (int t = 0; t < threads; t++) {
        failed += runs[t].failed;
        slow = runs[t].slowest > runs[slow].slowest ? t : slow;
        for (int i = 0; i < 15; i++)
            statuses[i] += runs[t].statuses[i];
    }
    fprintf(
        out,
        "{\"seed\": %llu, \"from\": %llu, \"device\": %d, \"threads\": %d, \"failures\": %d, \"seconds\": %.1f, "
        "\"build\": \"%s\",\n \"slowest\": {\"seconds\": %.3f, \"call\": %llu, \"symbol\": \"%s\"},\n \"entries\": {",
        (unsigned long long)runs->seed, (unsigned long long)first_call, runs->device, threads, failed, took,
        torchlean_cuda_build_info(), runs[slow].slowest, (unsigned long long)runs[slow].slowest_number,
        runs[slow].slowest_symbol ? runs[slow].slowest_symbol : "");
    for (int i = 0; i < fuzz_entry_count + fuzz_core_count; i++) {
        uint64_t sums[3] = {0};
        for (int t = 0; t < threads; t++) {
            sums[0] += runs[t].calls[i];
            sums[1] += runs[t].accepted[i];
            sums[2] += runs[t].refused[i];
        }
        calls += sums[0];
        accepted += sums[1];
        fprintf(out, "%s\n  \"%s\": {\"calls\": %llu, \"accepted\": %llu, \"refused\": %llu}", i ? "," : "",
                i < fuzz_entry_count ? fuzz_symbol(i) : fuzz_core_symbols[i - fuzz_entry_count],
                (unsigned long long)sums[0], (unsigned long long)sums[1], (unsigned long long)sums[2]);
    }
    fprintf(out, "},\n \"statuses\": {");
    for (int i = 0; i <= TORCHLEAN_INTERRUPTED / 10; i++)
        fprintf(out, "%s\"%s\": %llu", i ? ", " : "", torchlean_cuda_status_name(i * 10),
                (unsigned long long)statuses[i]);
    fprintf(out, "},\n \"calls\": %llu, \"accepted\": %llu}\n", (unsigned long long)calls,
            (unsigned long long)accepted);
}

int main(int count, char **words)
{
    uint64_t seed = 0;
    int threads = 1, shared = 0;
    int32_t device = TORCHLEAN_CPU;
    const char *json = NULL;
    for (int i = 1; i < count; i++) {
        const char *word = words[i], *next = i + 1 < count ? words[i + 1] : "";
        if (!strcmp(word, "--print"))
            fuzz_print = 1;
        else if (!strcmp(word, "--shared"))
            shared = 1;
        else if (i++, !strcmp(word, "--seed"))
            seed = strtoull(next, NULL, 10);
        else if (!strcmp(word, "--from"))
            first_call = strtoull(next, NULL, 10);
        else if (!strcmp(word, "--calls"))
            call_count = strtoull(next, NULL, 10);
        else if (!strcmp(word, "--device"))
            device = (int32_t)strtol(next, NULL, 10);
        else if (!strcmp(word, "--threads"))
            threads = (int)strtol(next, NULL, 10);
        else if (!strcmp(word, "--json"))
            json = next;
        else {
            fprintf(stderr, "fuzz_abi: unknown word %s\n", word);
            return 2;
        }
    }
    if (threads < 1 || threads > 64) return 2;
    fuzz_make_host();
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGALRM};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        signal(signals[i], fuzz_crashed);
    fuzz_run *runs = calloc((size_t)threads, sizeof *runs);
    torchlean_context *common = NULL;
    if (shared) {
        MUST(torchlean_cuda_context_create(device, &common));
        MUST(torchlean_cuda_memory_cap(common, cap_bytes * (uint64_t)threads));
    }
    double start = fuzz_seconds();
    pthread_t workers[64];
    for (int t = 0; t < threads; t++) {
        runs[t].seed = seed + (uint64_t)t;
        runs[t].alone = threads == 1;
        open_run(&runs[t], device, common);
    }
    if (threads == 1) {
        work(runs);
    } else {
        for (int t = 0; t < threads; t++)
            pthread_create(&workers[t], NULL, work, &runs[t]);
        for (int t = 0; t < threads; t++)
            pthread_join(workers[t], NULL);
    }
    alarm(0);
    int failed = 0;
    for (int t = 0; t < threads; t++)
        close_run(&runs[t]);
    if (common) close_context(runs, common, "common");
    for (int t = 0; t < threads; t++)
        failed += runs[t].failed;
    FILE *out = json ? fopen(json, "w") : stdout;
    if (!out) return 2;
    write_json(out, runs, threads, fuzz_seconds() - start);
    if (json) fclose(out);
    for (int t = 0; t < threads; t++) {
        free(runs[t].rows);
        free(runs[t].kept);
        free(runs[t].host);
        free(runs[t].calls);
    }
    free(runs);
    return failed ? 1 : 0;
}
