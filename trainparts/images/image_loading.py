"""Loader processes, which decode images into buffers in shared memory.

Use it to load batches of uint8 images in the order of a schedule. How an image is cropped and
augmented is a function that you pass: a crop is a generator function of (out, key, epoch). It
yields choose(H, W), which returns the region (top, left, height, width) to decode; is sent that
region, uint8 (height, width, 3); writes into `out`, uint8 (size, size, 3); and yields once more.
"""

from __future__ import annotations

import functools
import signal
import sys
import time

import torch

from trainparts import endings, errors
from trainparts.images import decoding, image_files


def load_images(schedule, sources, crops, size_of, batch_bytes, workers, device):
    """Iterates over (images (N, H, W, 3) uint8, target (N,) int64, split, epoch, position) for a
    schedule of (split, epoch, position, keys). The images' buffer is reused when the next batch is
    requested. `crops[split]` is applied to images of `sources[split]`; size_of(split, epoch) is its
    side in pixels. A batch has at most `batch_bytes`; `workers` is the number of loader processes,
    and `device` is where batches go. SIGCHLD is left at its default."""
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
    loaded = iter(loader)
    if device.type == "cuda":  # pinned, so that copies need not be waited for
        cuda = torch.cuda.cudart()
        torch.cuda.check_error(cuda.cudaHostRegister(buffers.data_ptr(), buffers.nbytes, 0))
    # PyTorch's handler would raise at any place when a worker dies; next() notices it as well.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return images.batches(loaded)


def repeat_images(schedule, pixels, classes, size_of):
    """Iterates as load_images() does, again and again over parts of the same uint8 `pixels`, (bytes
    of the largest batch,), and `classes`, (N,)."""
    loaded = ((0, *job, classes[: len(keys)]) for *job, keys in schedule)
    return Images(None, None, size_of, pixels[None]).batches(loaded)


def start_loader_worker(_):
    """Ignores signals, because training needs data until it has saved; ends with that process."""
    for signum in endings.SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    endings.end_with_parent(signal.SIGKILL)


# Images decoded in one call take a seventh less time than one by one, as less of Python's code has
# left the processor's caches; longer lists gain little. Those of more pixels, which would gain
# little, are decoded alone, as are files of more bytes than so many pixels have: a list is at most
# 100 MB, whatever is in the folder.
LISTED, LISTED_PIXELS = 32, 2**19


class Images(torch.utils.data.Dataset):
    """Batches of uint8 images in buffers that loader workers write and the trainer reads."""

    def __init__(self, sources, crops, size_of, buffers):
        """`sources` and `crops` have "train" and "val". A crop is a generator function of (out,
        key, epoch), as this module says; size_of(split, epoch) is a crop's side in pixels."""
        self.sources, self.crops, self.size_of, self.buffers = sources, crops, size_of, buffers

    def pixels(self, buffer, split, epoch, images):
        """Returns a batch's part of a buffer, as (images, size, size, 3)."""
        size = self.size_of(split, epoch)
        return self.buffers[buffer, : images * size * size * 3].view(images, size, size, 3)

    def batches(self, loaded):
        """Yields load_images()' batches from an iterator over __getitem__()'s results."""
        for buffer, *when, target in loaded:
            if isinstance(target, Exception):
                raise target
            yield self.pixels(buffer, *when[:2], len(target)), torch.as_tensor(target).long(), *when

    def __getitem__(self, job):
        """Loads (buffer, split, epoch, position, keys); returns (buffer, split, epoch, position,
        classes), or an exception that ends the run in place of the classes."""
        buffer, split, epoch, _, keys = job
        out, target = self.pixels(buffer, split, epoch, len(keys)), []
        try:
            for first in range(0, len(keys), LISTED):
                some = slice(first, first + LISTED)
                target += self.load(split, epoch, keys[some], out[some])
            return *job[:4], target
        except (errors.BadInput, errors.Fault) as error:
            # Raised here, it would reach the user as a traceback.
            return *job[:4], error

    def load(self, split, epoch, keys, out):
        """Writes up to LISTED images into uint8 (N, size, size, 3); returns their classes."""
        source, crop = self.sources[split], self.crops[split]
        indices = [key % len(source.target) for key in keys]
        begins = [functools.partial(crop, *one, epoch) for one in zip(out, keys, strict=True)]
        listed = []
        for index, begin in zip(indices, begins, strict=True):
            write = begin()
            choose = functools.cache(next(write))  # one region, though two decoders may try
            try:
                encoded = source.read(index)
                region = decoding.find_region(encoded, choose, LISTED_PIXELS)
                if region is None:  # no JPEG, or a large one
                    write.send(decoding.decode(encoded, choose))
                else:
                    listed.append((index, begin, write, choose, encoded, region))
            except (OSError, errors.BadInput) as error:
                load_again(source, index, begin, error)
        decoded = decoding.decode_regions([region for *_, region in listed])
        for (index, begin, write, choose, encoded, _), image in zip(listed, decoded, strict=True):
            try:
                write.send(decoding.decode_by_pillow(encoded, choose) if image is None else image)
            except errors.BadInput as error:
                load_again(source, index, begin, error)
        return source.target[indices].tolist()


def load_again(source, index, begin, error):
    """Loads an image that could not be used because of `error`; begin() is its crop, from the
    start, so that it draws the same."""
    # A network file system may fail for a while, so reading is tried four times; it may return
    # wrong bytes once, so decoding is tried twice. Then the run ends: training without some of the
    # images would be another training, and nobody would notice.
    for seconds in 1, 5, 20:  # before the second, third and fourth attempt
        image_files.open_shard.cache_clear()  # a shard may have been replaced, or too many are open
        time.sleep(seconds)
        try:
            return load_alone(source.read(index), begin())
        except OSError as again:
            error = again
        except errors.BadInput as again:
            error = again
            break
    what = f"{source.path(index)}: image {index} cannot be used"
    raise errors.storage_error(what, error) from None


def load_alone(encoded, write):
    """Loads an image; `write` is what a crop returns, which has not begun."""
    write.send(decoding.decode(encoded, next(write)))
