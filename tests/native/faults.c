/* The switch behind faults.h: which allocations fail, how many there were, and where the last failure was. */
#include <stdatomic.h>
#include <string.h>

#include "core/api.h"

static _Atomic uint64_t seen, first, last;
static _Atomic(const char *) failed_file;
static _Atomic int failed_line;
static _Atomic uint64_t failures;

int tl_fault(const char *file, int line)
{
    uint64_t number = atomic_fetch_add(&seen, 1) + 1;
    if (number < atomic_load(&first) || number > atomic_load(&last)) return 0;
    const char *slash = strrchr(file, '/');
    atomic_store(&failed_file, slash ? slash + 1 : file);
    atomic_store(&failed_line, line);
    atomic_fetch_add(&failures, 1);
    return 1;
}

/* What faults.h puts in the place of the system's functions, which parentheses keep from being replaced here too. */
void *tl_fault_malloc(const char *file, int line, size_t bytes)
{
    return tl_fault(file, line) ? NULL : (malloc)(bytes);
}

void *tl_fault_calloc(const char *file, int line, size_t count, size_t size)
{
    return tl_fault(file, line) ? NULL : (calloc)(count, size);
}

void *tl_fault_aligned_alloc(const char *file, int line, size_t alignment, size_t bytes)
{
    return tl_fault(file, line) ? NULL : (aligned_alloc)(alignment, bytes);
}

int tl_fault_posix_memalign(const char *file, int line, void **p, size_t alignment, size_t bytes)
{
    return tl_fault(file, line) ? ENOMEM : (posix_memalign)(p, alignment, bytes);
}

void *tl_fault_mmap(const char *file, int line, void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return tl_fault(file, line) ? MAP_FAILED : (mmap)(at, bytes, protection, flags, fd, offset);
}

int tl_fault_pthread_create(const char *file, int line, pthread_t *thread, const pthread_attr_t *attributes,
                            void *(*run)(void *), void *arg)
{
    return tl_fault(file, line) ? EAGAIN : (pthread_create)(thread, attributes, run, arg);
}

/* Starts counting at 0; allocations `from` to `to` fail, none if from = 0. */
TL_API void torchlean_cuda_faults(uint64_t from, uint64_t to)
{
    atomic_store(&first, UINT64_MAX); /* none while the numbers change */
    atomic_store(&seen, 0);
    atomic_store(&failures, 0);
    atomic_store(&last, to);
    atomic_store(&first, from ? from : UINT64_MAX);
}

/* Allocations since; of these, how many failed. */
TL_API uint64_t torchlean_cuda_faults_seen(void) { return atomic_load(&seen); }
TL_API uint64_t torchlean_cuda_faults_failed(void) { return atomic_load(&failures); }

/* Where the last one failed: the file, and its line through *line. */
TL_API const char *torchlean_cuda_faults_where(int32_t *line)
{
    const char *file = atomic_load(&failed_file);
    *line = atomic_load(&failed_line);
    return file ? file : "";
}
