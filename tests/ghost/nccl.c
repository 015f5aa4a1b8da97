/* NCCL, in memory that the ranks of a communicator share. A call returns when its data have moved,
 * in the order of calls: whether the device would have waited for them is not seen. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ghost.h"
#include "nccl.h"

#define RANKS 4
#define SLOT (1L << 20)  /* bytes that a rank shows at a time */
#define RING (16L << 20) /* bytes that may be under way between two ranks */
#define PATIENCE 120     /* seconds to wait for another rank */

struct Ring {
    atomic_long written;
    atomic_long read;
    char bytes[RING];
};

/* What the ranks share: its name is the communicator's id. */
struct Room {
    atomic_int joined;
    atomic_long turn[RANKS]; /* how often each rank has met the others */
    char slot[RANKS][SLOT];
    struct Ring ring[RANKS][RANKS]; /* from rank, to rank */
};

struct ncclComm {
    struct Room *room;
    int rank;
    int ranks;
    int device;
    long turn;
    long splits; /* made of it */
    char name[64];
    struct ncclComm **clique; /* of one process, one for each of its devices; else NULL */
};

int ghost_communicators[64]; /* the device of each, in the order in which they were made */
int ghost_communicators_made;

/* ---- communicators */

static void pause_until(struct timespec *began, const char *what)
{
    struct timespec now, moment = {0, 50000};
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!began->tv_sec)
        *began = now;
    if (now.tv_sec > began->tv_sec + PATIENCE)
        ghost_die(what);
    nanosleep(&moment, NULL);
}

static struct ncclComm *make(const char *name, int ranks, int rank, int device)
{
    struct ncclComm *made = calloc(1, sizeof *made);
    made->rank = rank;
    made->ranks = ranks;
    made->device = device;
    snprintf(made->name, sizeof made->name, "%s", name);
    ghost_communicators[ghost_communicators_made++ % 64] = device;
    return made;
}

static ncclResult_t join(ncclComm_t *comm, const char *name, int ranks, int rank)
{
    struct timespec began = {0};
    if (ranks > RANKS)
        return ncclInvalidArgument;
    struct ncclComm *made = make(name, ranks, rank, ghost_device());
    int file = shm_open(name, O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct Room)))
        return ncclSystemError;
    int access = PROT_READ | PROT_WRITE;
    made->room = mmap(NULL, sizeof(struct Room), access, MAP_SHARED, file, 0);
    close(file);
    if (made->room == MAP_FAILED)
        return ncclSystemError;
    atomic_fetch_add(&made->room->joined, 1);
    while (atomic_load(&made->room->joined) < ranks)
        pause_until(&began, "not all ranks join a communicator");
    if (rank == 0)
        shm_unlink(name); /* all have it: nothing is left behind */
    *comm = made;
    return ncclSuccess;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int made;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, 48, "/ghost-%d-%ld-%d", getpid(), now.tv_nsec, made++);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    return join(comm, id.internal, ranks, rank);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    return join(comm, id.internal, ranks, rank);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int ranks, int rank, int ids,
                                      ncclUniqueId *id, ncclConfig_t *config)
{
    return join(comm, id->internal, ranks, rank);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int devices, const int *device)
{
    struct ncclComm **clique = calloc(devices, sizeof *clique);
    for (int i = 0; i < devices; i++) {
        comms[i] = clique[i] = make("", devices, i, device ? device[i] : i);
        clique[i]->clique = clique;
    }
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->room)
        munmap(comm->room, sizeof(struct Room));
    free(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    *count = comm->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    *error = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *start, size_t size, void **handle)
{
    *handle = start;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **start, size_t size)
{
    return ncclInvalidUsage; /* PyTorch then takes memory of its own */
}

const char *ncclGetErrorString(ncclResult_t error)
{
    return "the ghost's NCCL cannot do this";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return "";
}

/* ---- collectives: each rank shows a part of its data in its slot, and all ranks read */

static size_t size_of(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    default:
        ghost_die("NCCL: a type of numbers that it has not got");
        return 0;
    }
}

/* Returns when all ranks have come here as often as this one. */
static void meet(ncclComm_t comm)
{
    struct timespec began = {0};
    long turn = ++comm->turn;
    atomic_store(&comm->room->turn[comm->rank], turn);
    for (int rank = 0; rank < comm->ranks; rank++)
        while (atomic_load(&comm->room->turn[rank]) < turn)
            pause_until(&began, "NCCL: another rank does not come");
}

static void show(ncclComm_t comm, const void *data, size_t size)
{
    if (data)
        memcpy(comm->room->slot[comm->rank], data, size);
    meet(comm);
}

static float from_bfloat16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static uint16_t to_bfloat16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (value != value)
        return 0x7FC0;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16; /* to nearest, ties to even */
}

static double combine(double a, double b, ncclRedOp_t op)
{
    if (op == ncclProd)
        return a * b;
    if (op == ncclMax)
        return a > b || a != a ? a : b;
    if (op == ncclMin)
        return a < b || a != a ? a : b;
    return a + b;
}

/* Whole numbers are exact up to 2**53; floats are rounded once, and alike on all ranks. */
#define REDUCE(TYPE, READ, WRITE)                                            \
    for (size_t i = 0; i < count; i++) {                                     \
        double all = READ(((const TYPE *)from[0])[i]);                       \
        for (int r = 1; r < ranks; r++)                                      \
            all = combine(all, READ(((const TYPE *)from[r])[i]), op);        \
        ((TYPE *)to)[i] = WRITE(op == ncclAvg ? all / ranks : all);          \
    }                                                                        \
    break

static void reduce(void *to, const void **from, int ranks, size_t count, ncclDataType_t type,
                   ncclRedOp_t op)
{
    if (op > ncclAvg)
        ghost_die("NCCL: an operation that it has not got");
    switch (type) {
    case ncclInt8:
        REDUCE(int8_t, , );
    case ncclUint8:
        REDUCE(uint8_t, , );
    case ncclInt32:
        REDUCE(int32_t, , );
    case ncclUint32:
        REDUCE(uint32_t, , );
    case ncclInt64:
        REDUCE(int64_t, , );
    case ncclUint64:
        REDUCE(uint64_t, , );
    case ncclFloat16:
        REDUCE(_Float16, , );
    case ncclFloat32:
        REDUCE(float, , );
    case ncclFloat64:
        REDUCE(double, , );
    case ncclBfloat16:
        REDUCE(uint16_t, from_bfloat16, to_bfloat16);
    default:
        size_of(type);
    }
}

/* Reduces `count` numbers of all ranks; ranks that give no `to` only take part. */
static void reduce_over_ranks(ncclComm_t comm, const void *from, void *to, size_t count,
                              ncclDataType_t type, ncclRedOp_t op)
{
    size_t size = size_of(type), most = SLOT / size;
    const void *slots[RANKS];
    for (int rank = 0; rank < comm->ranks; rank++)
        slots[rank] = comm->room->slot[rank];
    for (size_t start = 0; start < count; start += most) {
        size_t part = count - start < most ? count - start : most;
        show(comm, (const char *)from + start * size, part * size);
        if (to)
            reduce((char *)to + start * size, slots, comm->ranks, part, type, op);
        meet(comm);
    }
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    ghost_count(COLLECTIVES);
    reduce_over_ranks(comm, from, to, count, type, op);
    return ncclSuccess;
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    ghost_count(COLLECTIVES);
    for (int rank = 0; rank < comm->ranks; rank++) {
        const char *part = (const char *)from + rank * count * size_of(type);
        reduce_over_ranks(comm, part, rank == comm->rank ? to : NULL, count, type, op);
    }
    return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    size_t size = count * size_of(type);
    ghost_count(COLLECTIVES);
    for (size_t start = 0; start < size; start += SLOT) {
        size_t part = size - start < SLOT ? size - start : SLOT;
        show(comm, (const char *)from + start, part);
        for (int rank = 0; rank < comm->ranks; rank++)
            memcpy((char *)to + rank * size + start, comm->room->slot[rank], part);
        meet(comm);
    }
    return ncclSuccess;
}

static void broadcast(const void *from, void *to, size_t size, int root, ncclComm_t comm)
{
    for (size_t start = 0; start < size; start += SLOT) {
        size_t part = size - start < SLOT ? size - start : SLOT;
        show(comm, comm->rank == root ? (const char *)from + start : NULL, part);
        memcpy((char *)to + start, comm->room->slot[root], part);
        meet(comm);
    }
}

/* ---- groups: what a process does with several peers, or devices, at once */

struct Call {
    enum { SEND, RECEIVE, BROADCAST, REDUCE } what;
    ncclComm_t comm;
    const void *from;
    void *to;
    int peer; /* or root */
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    size_t done; /* bytes of it */
};

static __thread struct Call calls[1024];
static __thread int number_of_calls, depth;

/* Moves what can be moved of a message; returns how many bytes. */
static size_t move(struct Call *call)
{
    ncclComm_t comm = call->comm;
    bool sends = call->what == SEND;
    int from = sends ? comm->rank : call->peer, to = sends ? call->peer : comm->rank;
    struct Ring *ring = &comm->room->ring[from][to];
    size_t left = call->count * size_of(call->type) - call->done;
    long written = atomic_load(&ring->written), read = atomic_load(&ring->read);
    size_t room = sends ? RING - (written - read) : written - read;
    long at = (sends ? written : read) % RING;
    size_t part = left < room ? left : room;
    part = part < RING - at ? part : RING - at; /* the rest begins at the ring's start */
    if (sends) {
        memcpy(ring->bytes + at, (const char *)call->from + call->done, part);
        atomic_store(&ring->written, written + part);
    } else {
        memcpy((char *)call->to + call->done, ring->bytes + at, part);
        atomic_store(&ring->read, read + part);
    }
    call->done += part;
    return part;
}

/* A broadcast or a reduction between the devices of this process: one call for each of them. */
static void within_process(struct Call *first)
{
    ncclComm_t comm = first->comm;
    struct Call *root = &first[first->peer];
    const void *from[RANKS];
    for (int rank = 0; rank < comm->ranks; rank++) {
        if (first[rank].comm != comm->clique[rank] || first[rank].what != first->what)
            ghost_die("NCCL: the devices of a process do not call alike");
        from[rank] = first[rank].from;
    }
    if (first->what == REDUCE)
        reduce(root->to, from, comm->ranks, first->count, first->type, first->op);
    for (int rank = 0; first->what == BROADCAST && rank < comm->ranks; rank++)
        memmove(first[rank].to, root->from, first->count * size_of(first->type));
}

static void run_group(void)
{
    struct timespec began = {0};
    size_t left = 1;
    for (int i = 0; i < number_of_calls; i++) {
        if (calls[i].what != SEND && calls[i].what != RECEIVE) {
            within_process(&calls[i]);
            i += calls[i].comm->ranks - 1;
        }
    }
    while (left) { /* all of them step by step, or two ranks that send would wait for each other */
        left = 0;
        size_t moved = 0;
        for (int i = 0; i < number_of_calls; i++) {
            bool message = calls[i].what == SEND || calls[i].what == RECEIVE;
            bool behind = false; /* another message of the same pair, which goes first */
            for (int k = 0; message && k < i; k++)
                behind |= calls[k].what == calls[i].what && calls[k].comm == calls[i].comm &&
                          calls[k].peer == calls[i].peer &&
                          calls[k].done < calls[k].count * size_of(calls[k].type);
            if (message && !behind)
                moved += move(&calls[i]);
            if (message)
                left += calls[i].count * size_of(calls[i].type) - calls[i].done;
        }
        if (moved)
            began.tv_sec = 0;
        else if (left)
            pause_until(&began, "NCCL: another rank neither sends nor receives");
    }
    number_of_calls = 0;
}

static ncclResult_t add(struct Call call)
{
    ghost_count(COLLECTIVES);
    if (number_of_calls == 1024)
        return ncclInternalError;
    calls[number_of_calls++] = call;
    if (!depth)
        run_group();
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (!--depth)
        run_group();
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return add((struct Call){SEND, comm, from, NULL, peer, count, type});
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add((struct Call){RECEIVE, comm, NULL, to, peer, count, type});
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    if (comm->clique)
        return add((struct Call){BROADCAST, comm, from, to, root, count, type});
    ghost_count(COLLECTIVES);
    broadcast(from, to, count * size_of(type), root, comm);
    return ncclSuccess;
}

ncclResult_t ncclBcast(void *data, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream)
{
    return ncclBroadcast(data, data, count, type, root, comm, stream);
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    if (comm->clique)
        return add((struct Call){REDUCE, comm, from, to, root, count, type, op});
    ghost_count(COLLECTIVES);
    reduce_over_ranks(comm, from, comm->rank == root ? to : NULL, count, type, op);
    return ncclSuccess;
}

/* The ranks of one colour, in the order of their keys. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made,
                           ncclConfig_t *config)
{
    int mine[2] = {color, key}, all[RANKS][2];
    int ranks = 0, rank = 0;
    ncclAllGather(mine, all, 2, ncclInt32, comm, NULL);
    for (int other = 0; other < comm->ranks; other++) {
        bool before = all[other][1] < key || (all[other][1] == key && other < comm->rank);
        ranks += all[other][0] == color;
        rank += all[other][0] == color && before;
    }
    char name[sizeof comm->name];
    snprintf(name, sizeof name, "%.40s-%ld-%d", comm->name, comm->splits++, color);
    *made = NULL;
    return color == NCCL_SPLIT_NOCOLOR ? ncclSuccess : join(made, name, ranks, rank);
}
