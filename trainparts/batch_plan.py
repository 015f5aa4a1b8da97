"""How a global batch is split among devices and steps, and how batches reach a device in time.

Use it to train the same curve on any number of devices, and to copy a batch while the one before it
is trained on.
"""

from __future__ import annotations

import contextlib
import time

import torch

from trainparts import errors


def split_batch(args, place, global_batch=None, multiple=1):
    """Returns (batch per device at a time, such batches per step, global batch). Where the global
    batch is given, devices take the largest batch up to -b that divides what each has in a step,
    and that `multiple` divides."""
    # The global batch decides what is trained, and its split decides nothing. So it is kept, and
    # the batch of a device, which is limited by its memory, adapts.
    sharing = place.data_ranks * place.devices
    batch = args.batch_size
    in_step = batch * args.accumulation  # samples of a device
    if global_batch:
        in_step, remainder = divmod(global_batch, sharing)
        if remainder:
            fits = ", ".join(str(n) for n in range(1, 4097) if global_batch % n == 0)
            cannot = f"{sharing} devices cannot share a global batch of {global_batch}"
            raise errors.BadInput(f"{cannot}; these numbers of devices can: {fits}")
        sizes = range(min(batch, in_step), 0, -1)
        batch = next((n for n in sizes if in_step % n == 0 and n % multiple == 0), 1)
    return batch, in_step // batch, in_step * sharing


def to_device(batches, finish_batch, device, data_waits):
    """Yields (split, epoch, inputs, target) on the device, one batch ahead: inputs and target as
    finish_batch(inputs, target, split=..., epoch=..., position=...) returns them. Adds the seconds
    spent waiting for data to `data_waits`."""
    # CUDA copies in a stream of its own: in the main stream, a copy would wait for the step that
    # computes there (PyTorch, CUDA semantics: operations of one stream run in order). So for each
    # batch: its copy is queued; the batch before is handed out, whose step is queued meanwhile; the
    # main stream waits for the copy, and so does the host, before the loader reuses the buffer.
    side = torch.cuda.Stream(device) if device.type == "cuda" else None
    if side:
        side.wait_stream(torch.cuda.current_stream(device))
    ready = None
    asked = time.perf_counter()
    for *batch, split, epoch, position in batches:
        data_waits.append(time.perf_counter() - asked)
        with torch.cuda.stream(side) if side else contextlib.nullcontext():
            inputs, target = (tensor.to(device, non_blocking=bool(side)) for tensor in batch)
            copied = side and side.record_event(torch.cuda.Event(blocking=True))
            inputs, target = finish_batch(
                inputs, target, split=split, epoch=epoch, position=position
            )
        if ready:
            yield ready
        if side:
            main = torch.cuda.current_stream(device)
            main.wait_stream(side)
            inputs.record_stream(main)  # or the next batch would get their memory too soon
            target.record_stream(main)
            copied.synchronize()  # sync point, or the loader would write into what is being copied
        ready = split, epoch, inputs, target
        asked = time.perf_counter()
    if ready:
        yield ready
