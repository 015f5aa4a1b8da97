"""How a global batch is split among devices and steps, and how batches reach a device in time.

Use it to train the same curve on any number of devices, and to copy a batch while the one before it
is trained on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from trainparts import errors


class Batches(NamedTuple):
    """The sizes of a step's batches, in items."""

    device_batch: int  # on a device at a time
    accumulation_steps: int  # such batches in a step
    global_batch: int  # in a step, of all devices


def split_batch(
    batch: int,
    devices: int,
    accumulation: int = 1,
    global_batch: int | None = None,
    multiple: int = 1,
) -> Batches:
    """Returns the Batches of a step in which each of the devices, all with different items, takes
    `batch` items `accumulation` times. If the global batch is given, a device takes the largest
    batch up to `batch` that divides the device's items in a step and is a multiple of `multiple`.
    Raises BadInput if the devices cannot share the global batch evenly."""
    # The global batch decides what is trained, and its split decides nothing. So it is kept, and
    # the batch of a device, which is limited by its memory, adapts.
    in_step = batch * accumulation  # items of a device
    if global_batch:
        in_step, remainder = divmod(global_batch, devices)
        if remainder:
            fits = ", ".join(str(n) for n in range(1, 4097) if global_batch % n == 0)
            cannot = f"{devices} devices cannot share a global batch of {global_batch}"
            raise errors.BadInput(f"{cannot}; these numbers of devices can: {fits}")
        sizes = range(min(batch, in_step), 0, -1)
        batch = next((n for n in sizes if in_step % n == 0 and n % multiple == 0), 1)
    return Batches(batch, in_step // batch, in_step * devices)


def smaller_batch(device_batch: int, multiple: int = 1) -> int:
    """Returns half of a device's batch, rounded down to what `multiple` divides; 0 if there is no
    smaller one."""
    return device_batch // 2 // multiple * multiple


# What a rank loads: the split, "train" or "val"; the epoch, None in validation; the position in it
# of the first key; the keys of the items.
Job = tuple[str, int | None, int, Sequence[int]]
# What it loads for a job: inputs, target, split, epoch, position.
Loaded = tuple[torch.Tensor, torch.Tensor, str, int | None, int]
# What is trained or validated on: split, epoch, inputs, target.
OnDevice = tuple[str, int | None, torch.Tensor, torch.Tensor]


def to_device(
    batches: Iterable[Loaded],
    finish_batch: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    device: torch.device,
    data_waits: list[float],
) -> Iterator[OnDevice]:
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
        if side and copied:
            main = torch.cuda.current_stream(device)
            main.wait_stream(side)
            inputs.record_stream(main)  # or the next batch would get their memory too soon
            target.record_stream(main)
            copied.synchronize()  # sync point, or the loader would write into what is being copied
        ready = split, epoch, inputs, target
        asked = time.perf_counter()
    if ready:
        yield ready
