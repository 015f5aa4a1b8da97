/* What the parts of the ghost share. */
#ifndef GHOST_H
#define GHOST_H

#define DEVICES 8 /* at most; $GHOST_GPUS says how many there are */

/* What is counted; ghost_names in runtime.c has the same order. */
enum Count {
    STREAM_SYNCS,    /* the host waited for all of a stream */
    EVENT_SYNCS,     /* ... for an event */
    SPINS,           /* of these: busily, since the event was not made with BlockingSync */
    DEVICE_SYNCS,    /* ... for all of a device */
    BLOCKING_COPIES, /* ... within a copy: to pageable memory, or of much from it */
    PINNED_COPIES,   /* between a device and pinned memory; nothing waits */
    OVERWRITTEN,     /* of these: the host changed what was still being copied */
    MALLOCS,         /* device memory was asked for: CUDA would wait for the device */
    COLLECTIVES,     /* calls of NCCL that move data */
    COUNTS
};

void ghost_count(enum Count what);
int ghost_device(void);          /* the calling thread's */
int ghost_number_of_devices(void);
void ghost_die(const char *why); /* prints it and ends the process */

#endif
