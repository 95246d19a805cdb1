/* The functions of NCCL that tlrt.distributed uses, over sockets between processes or threads of one machine, for tests without a
 * GPU: addresses are the host's, and streams are not looked at. A group of calls is done when ncclGroupEnd returns. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, SYSTEM_ERROR = 2, INVALID_USAGE = 5, REMOTE_ERROR = 6, MOST_RANKS = 64, MOST_CALLS = 4096 };

typedef struct {
    char internal[128];
} unique_id;

typedef struct comm {
    int rank, ranks;
    int links[MOST_RANKS]; /* to each other rank */
    atomic_int ended;
} comm;

typedef struct {
    comm *of;
    char *data;
    size_t left;
    int peer, is_send;
} transfer;

/* Says that addresses are the host's. */
int torchlean_nccl_takes_host_memory = 1;

static _Thread_local transfer calls[MOST_CALLS];
static _Thread_local int call_count, depth;

int ncclGetVersion(int *version)
{
    *version = 22799;
    return OK;
}

int ncclGetUniqueId(unique_id *id)
{
    static atomic_int number;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "tlrt-fake-nccl-%d-%d-%ld", (int)getpid(), atomic_fetch_add(&number, 1),
             (long)time(NULL));
    return OK;
}

/* An address in Linux's abstract name space, which needs no file. */
static socklen_t name_of(struct sockaddr_un *address, const unique_id *id, int rank)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    const int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "%.90s.%d", id->internal, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int connect_to(const unique_id *id, int rank)
{
    struct sockaddr_un address;
    const socklen_t size = name_of(&address, id, rank);
    for (int i = 0; i < 3000; i++) {
        const int link = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(link, (struct sockaddr *)&address, size) == 0) return link;
        close(link);
        usleep(10000);
    }
    return -1;
}

/* The higher rank of a pair connects and says who it is. */
int ncclCommInitRank(comm **out, int ranks, unique_id id, int rank)
{
    struct sockaddr_un address;
    comm *made = calloc(1, sizeof *made);
    const int door = socket(AF_UNIX, SOCK_STREAM, 0);
    if (!made || ranks > MOST_RANKS) return INVALID_USAGE;
    made->rank = rank, made->ranks = ranks;
    const socklen_t size = name_of(&address, &id, rank);
    if (bind(door, (struct sockaddr *)&address, size) || listen(door, ranks)) return SYSTEM_ERROR;
    for (int other = 0; other < rank; other++) {
        if ((made->links[other] = connect_to(&id, other)) < 0) return SYSTEM_ERROR;
        if (write(made->links[other], &rank, sizeof rank) != (ssize_t)sizeof rank) return SYSTEM_ERROR;
    }
    for (int waiting = ranks - 1 - rank; waiting > 0; waiting--) {
        int other, link = accept(door, NULL, NULL);
        if (link < 0 || read(link, &other, sizeof other) != (ssize_t)sizeof other) return SYSTEM_ERROR;
        made->links[other] = link;
    }
    close(door);
    for (int other = 0; other < ranks; other++)
        if (other != rank) fcntl(made->links[other], F_SETFL, O_NONBLOCK);
    *out = made;
    return OK;
}

int ncclCommAbort(comm *c)
{
    atomic_store(&c->ended, 1); /* not freed: another thread may be in a call */
    for (int other = 0; other < c->ranks; other++)
        if (other != c->rank) shutdown(c->links[other], SHUT_RDWR);
    return OK;
}

int ncclCommDestroy(comm *c)
{
    for (int other = 0; other < c->ranks; other++)
        if (other != c->rank) close(c->links[other]);
    free(c);
    return OK;
}

int ncclCommGetAsyncError(comm *c, int *error)
{
    *error = atomic_load(&c->ended) ? REMOTE_ERROR : OK;
    return OK;
}

const char *ncclGetErrorString(int result) { return result == REMOTE_ERROR ? "remote error" : "error"; }
const char *ncclGetLastError(comm *c)
{
    (void)c;
    return "";
}

/* Moves what it can of one transfer: 1 if something moved, 0 if it would wait, -1 at the end of the link. */
static int move_some(transfer *t)
{
    const int link = t->of->links[t->peer];
    const ssize_t n = t->is_send ? send(link, t->data, t->left, MSG_NOSIGNAL) : recv(link, t->data, t->left, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n <= 0) return -1;
    t->data += n, t->left -= (size_t)n;
    return 1;
}

/* The first open transfer of each rank in each direction goes on, so that they end in the order in which they were asked for. */
static int run(void)
{
    for (;;) {
        struct pollfd waits[2 * MOST_RANKS];
        int busy[2][MOST_RANKS] = {{0}}, count = 0, moved = 0;
        for (int i = 0; i < call_count; i++) {
            transfer *t = &calls[i];
            if (!t->left || busy[t->is_send][t->peer]) continue;
            if (atomic_load(&t->of->ended)) return REMOTE_ERROR;
            const int result = move_some(t);
            if (result < 0) return REMOTE_ERROR;
            moved |= result;
            if (!t->left) continue;
            busy[t->is_send][t->peer] = 1;
            waits[count++] = (struct pollfd){.fd = t->of->links[t->peer], .events = t->is_send ? POLLOUT : POLLIN};
        }
        if (!count) return OK;
        if (!moved) poll(waits, (nfds_t)count, 100);
    }
}

int ncclGroupStart(void)
{
    depth++;
    return OK;
}

int ncclGroupEnd(void)
{
    if (!depth) return INVALID_USAGE;
    if (--depth) return OK;
    const int result = run();
    call_count = 0;
    return result;
}

static int add_transfer(transfer t)
{
    if (call_count == MOST_CALLS || t.peer < 0 || t.peer >= t.of->ranks || t.peer == t.of->rank) return INVALID_USAGE;
    ncclGroupStart();
    calls[call_count++] = t;
    return ncclGroupEnd();
}

int ncclSend(const void *data, size_t count, int type, int peer, comm *c, void *stream)
{
    (void)stream;
    if (type != 7) return INVALID_USAGE; /* float32 */
    return add_transfer((transfer){c, (char *)(size_t)data, count * sizeof(float), peer, 1});
}

int ncclRecv(void *data, size_t count, int type, int peer, comm *c, void *stream)
{
    (void)stream;
    if (type != 7) return INVALID_USAGE;
    return add_transfer((transfer){c, data, count * sizeof(float), peer, 0});
}

/* The sum in the order of the ranks, which each rank computes; at once, also in a group, as all ranks ask in the same order. */
int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, comm *c, void *stream)
{
    (void)stream;
    if (type != 7 || operation != 0 || call_count) return INVALID_USAGE;
    const int before = depth;
    depth = 0;
    float *all = malloc(sizeof *all * (count ? count : 1) * (size_t)c->ranks);
    if (!all) return SYSTEM_ERROR;
    memcpy(all + count * (size_t)c->rank, from, count * sizeof(float));
    ncclGroupStart();
    for (int other = 0; other < c->ranks; other++)
        if (other != c->rank) {
            ncclSend(from, count, type, other, c, NULL);
            ncclRecv(all + count * (size_t)other, count, type, other, c, NULL);
        }
    const int result = ncclGroupEnd();
    for (size_t i = 0; !result && i < count; i++) {
        float sum = all[i];
        for (int other = 1; other < c->ranks; other++)
            sum += all[count * (size_t)other + i];
        ((float *)to)[i] = sum;
    }
    free(all);
    depth = before;
    return result;
}
