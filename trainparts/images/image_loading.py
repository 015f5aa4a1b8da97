"""Loader processes, which decode images into buffers in shared memory.

Use it to load batches of uint8 images in the order of a schedule. How an image is cropped and
augmented is a function that you pass: a crop is a generator function of (out, key, epoch). It
yields choose(H, W), which returns the region (top, left, height, width) to decode; is sent that
region, uint8 (height, width, 3); writes into `out`, uint8 (size, size, 3); and yields once more.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import multiprocessing.process
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, cast

import numpy as np
import torch

from trainparts import batch_plan, endings, errors
from trainparts.images import decoding, image_files

__all__ = ["Crop", "Readable", "load_images"]


class Readable(Protocol):
    """Images that load_images() reads: a Source of files, or anything with these names."""

    @property
    def target(self) -> np.ndarray: ...  # (N,) classes; or (N, C), 1 where an image has the class

    def path(self, index: int, /) -> str: ...  # what errors call an image

    def read(self, index: int, /) -> bytes: ...  # an image, encoded; an OSError is tried again


# A crop that has begun: it yields which region of an image it needs, and is sent its pixels.
Write = Generator[decoding.Choose | None, np.ndarray, None]
Crop = Callable[[torch.Tensor, int, int | None], Write]  # of (out, key, epoch)
SizeOf = Callable[[str, int | None], int]  # the side in pixels, of (split, epoch)
# A buffer's number, split, epoch, position, and the classes or why there are none.
Filled = tuple[int, str, int | None, int, Sequence[int] | torch.Tensor | Exception]


def load_images(
    schedule: Iterable[batch_plan.Job],
    *,
    sources: Mapping[str, Readable],
    crops: Mapping[str, Crop],
    size_of: SizeOf,
    batch_bytes: int,
    workers: int,
    device: torch.device,
) -> Iterator[batch_plan.Loaded]:
    """Iterates over (images (N, H, W, 3) uint8, target (N,) int64, split, epoch, position) for a
    schedule of (split, epoch, position, keys). The images' buffer is reused when the next batch is
    requested. Key k is image k % len(target) of `sources[split]`, to which `crops[split]` is
    applied; size_of(split, epoch) is the side of its crops in pixels. A batch has at most
    `batch_bytes`; `workers` is the number of loader processes, which are forked, and `device` is
    where batches go. Raises BadInput or Fault if an image cannot be used, and what a source or a
    crop raises itself."""
    # Buffers are allocated once, in shared memory: clearing new memory for each batch would take a
    # tenth of the time. DataLoader prefetches two batches per worker, and the caller has one: with
    # fewer buffers, a batch would be overwritten while it is trained on.
    buffers = torch.empty(2 * workers + 1, batch_bytes, dtype=torch.uint8).share_memory_()
    images = Images(sources, crops, size_of, buffers)
    loader = torch.utils.data.DataLoader(
        images,
        batch_size=None,  # an item is a batch
        sampler=((number % len(buffers), *job) for number, job in enumerate(schedule)),
        num_workers=workers,
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        worker_init_fn=start_loader_worker,
    )
    # Workers are forked here, and the caller's first collective comes later: up to Python 3.11, a
    # child hangs that is forked while a collective's thread waits for the interpreter's lock.
    before = {*multiprocessing.active_children()}
    loaded = iter(loader)
    # As Python exits, multiprocessing sends SIGTERM, which the workers ignore, and waits for them.
    atexit.register(end_workers, {*multiprocessing.active_children()} - before)
    if device.type == "cuda":  # pinned, so that copies need not be waited for
        cuda = torch.cuda.cudart()
        where = buffers.data_ptr(), buffers.nbytes, 0
        torch.cuda.check_error(cuda.cudaHostRegister(*where))  # pyrefly: ignore[missing-attribute]
    return images.batches(loaded)


def repeat_images(
    schedule: Iterable[batch_plan.Job], pixels: torch.Tensor, classes: torch.Tensor, size_of: SizeOf
) -> Iterator[batch_plan.Loaded]:
    """Iterates as load_images() does, again and again over parts of the same uint8 `pixels`, (bytes
    of the largest batch,), and `classes`, (N,)."""
    loaded = (
        (0, split, epoch, position, classes[: len(keys)])
        for split, epoch, position, keys in schedule
    )
    return Images({}, {}, size_of, pixels[None]).batches(loaded)


def start_loader_worker(_: int) -> None:
    """Ignores signals, because training needs data until it has saved; ends with that process."""
    for signum in endings.SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    endings.end_with_parent(signal.SIGKILL)


def end_workers(workers: Iterable[multiprocessing.process.BaseProcess]) -> None:
    """Kills loader processes as this process exits."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # PyTorch's handler would raise
    for worker in workers:
        worker.kill()


# Decoding images in one call takes a seventh less time than one by one, because more of Python's
# code is still in the processor's caches; longer lists gain little. Images of more pixels than
# LISTED_PIXELS would gain little, so they are decoded alone, as are files of more bytes than that
# many pixels have. So a list takes at most 100 MB, whatever is in the folder.
LISTED, LISTED_PIXELS = 32, 2**19


class Images(torch.utils.data.Dataset[Filled]):
    """Batches of uint8 images in buffers that loader workers write and the trainer reads."""

    def __init__(
        self,
        sources: Mapping[str, Readable],
        crops: Mapping[str, Crop],
        size_of: SizeOf,
        buffers: torch.Tensor,
    ):
        """`sources` and `crops` have "train" and "val". A crop is a generator function of (out,
        key, epoch), as this module says; size_of(split, epoch) is a crop's side in pixels."""
        self.sources, self.crops, self.size_of, self.buffers = sources, crops, size_of, buffers

    def pixels(self, buffer: int, split: str, epoch: int | None, images: int) -> torch.Tensor:
        """Returns a batch's part of a buffer, as (images, size, size, 3)."""
        size = self.size_of(split, epoch)
        return self.buffers[buffer, : images * size * size * 3].view(images, size, size, 3)

    def batches(self, loaded: Iterable[Filled]) -> Iterator[batch_plan.Loaded]:
        """Yields load_images()' batches from an iterator over __getitem__()'s results."""
        for buffer, split, epoch, position, target in loaded:
            if isinstance(target, Exception):
                raise target
            images = self.pixels(buffer, split, epoch, len(target))
            yield images, torch.as_tensor(target).long(), split, epoch, position

    def __getitem__(self, index: tuple[int, str, int | None, int, Sequence[int]]) -> Filled:
        """Loads (buffer, split, epoch, position, keys); returns (buffer, split, epoch, position,
        classes), or an exception that ends the run in place of the classes."""
        buffer, split, epoch, position, keys = index
        out, target = self.pixels(buffer, split, epoch, len(keys)), []
        try:
            for first in range(0, len(keys), LISTED):
                some = slice(first, first + LISTED)
                target += self.load(split, epoch, keys[some], out[some])
            return buffer, split, epoch, position, target
        except (errors.BadInput, errors.Fault) as error:
            # Raised here, it would reach the user as a traceback.
            return buffer, split, epoch, position, error
        except StopIteration:  # it would end the caller's loop in silence
            form = "a crop yields choose(height, width), writes the pixels that it is sent, and "
            form += "yields once more (or the source's read() raised StopIteration)"
            line = f"crops[{split!r}] ended too early: {form}"
            return buffer, split, epoch, position, errors.BadInput(line)

    def load(
        self, split: str, epoch: int | None, keys: Sequence[int], out: torch.Tensor
    ) -> list[int]:
        """Writes up to LISTED images into uint8 (N, size, size, 3); returns their classes."""
        source, crop = self.sources[split], self.crops[split]
        indices = [key % len(source.target) for key in keys]
        begins = [functools.partial(crop, *one, epoch) for one in zip(out, keys, strict=True)]
        listed = []
        for index, begin in zip(indices, begins, strict=True):
            write = begin()
            # One region, though two decoders may try.
            choose = functools.cache(cast(decoding.Choose, next(write)))
            encoded = None
            try:
                encoded = source.read(index)
                region = decoding.find_region(encoded, choose, LISTED_PIXELS)
                if region is None:  # no JPEG, or a large one
                    write.send(decoding.decode(encoded, choose=choose))
                else:
                    listed.append((index, begin, write, choose, encoded, region))
            except (OSError, errors.BadInput) as error:
                if isinstance(error, OSError) and encoded is not None:  # the crop's own
                    raise
                load_again(source, index, begin, error)
        decoded = decoding.decode_regions([region for *_, region in listed])
        for (index, begin, write, choose, encoded, _), image in zip(listed, decoded, strict=True):
            try:
                write.send(decoding.decode_by_pillow(encoded, choose) if image is None else image)
            except errors.BadInput as error:
                load_again(source, index, begin, error)
        return source.target[indices].tolist()


def load_again(source: Readable, index: int, begin: Callable[[], Write], error: Exception) -> None:
    """Loads an image that could not be used because of `error`; begin() is its crop, from the
    start, so that it draws the same."""
    # A network file system may fail for a while, so reading is tried four times; it may return
    # wrong bytes once, so decoding is tried twice. Then the run ends: training without some of the
    # images would be another training, and nobody would notice.
    for seconds in 1, 5, 20:  # before the second, third and fourth attempt
        image_files.open_shard.cache_clear()  # a shard may have been replaced, or too many are open
        time.sleep(seconds)
        encoded = None
        try:
            encoded = source.read(index)
            return load_alone(encoded, begin())
        except OSError as again:
            if encoded is not None:  # the crop's own
                raise
            error = again
        except errors.BadInput as again:
            error = again
            break
    what = f"{source.path(index)}: image {index} cannot be used"
    if isinstance(error, OSError) and error.errno is None:  # a network's, as urllib raises them
        raise errors.Fault(f"{what}: {errors.first_line(error)}") from None
    raise errors.storage_error(what, error) from None


def load_alone(encoded: bytes, write: Write) -> None:
    """Loads an image; `write` is what a crop returns, which has not begun."""
    write.send(decoding.decode(encoded, choose=cast(decoding.Choose, next(write))))
