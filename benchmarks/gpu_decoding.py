"""Pixels and images/s of nvImageCodec on the GPU and on the CPU, beside Pillow's.

    python benchmarks/gpu_decoding.py DIR              # has train/<class>/*.JPEG

Decodes --images of DIR whole, in lists of --batch-size, by each way in turn, --rounds times, into
the memory of the host for Pillow and nvImageCodec's CPU decoders, of the device for those of the
GPU, and compares the pixels with Pillow's: how many of the numbers from 0 to 255 differ, by how
much at most and on average. The scripts decode on the CPU, in the loader's processes.
"""

import functools
import importlib
import io
import statistics
import sys
import time

import common
import numpy as np
import PIL.Image
import torch
from common import DIR, count, option

from trainparts import errors

PILLOW = "Pillow"
# What decodes, of nvImageCodec's kinds (nvimgcodec.BackendKind).
KINDS = {
    "nvImageCodec on the CPU": ["CPU_ONLY"],
    "nvImageCodec on the GPU": ["GPU_ONLY", "HYBRID_CPU_GPU"],
    "nvImageCodec on the GPU's JPEG decoder": ["HW_GPU_ONLY"],
}


def by_pillow(encoded):
    """Returns the pixels of images, uint8 (H, W, 3)."""
    return [np.asarray(PIL.Image.open(io.BytesIO(each)).convert("RGB")) for each in encoded]


def by_codec(kinds):
    """Returns a function that does what by_pillow() does, by nvImageCodec; its arrays are on the
    device unless on_host() takes them."""
    codec = importlib.import_module("nvidia.nvimgcodec")
    on_cpu = kinds == ["CPU_ONLY"]
    if not on_cpu and not torch.cuda.is_available():
        raise errors.BadInput("there is no GPU")
    backends = [codec.Backend(getattr(codec.BackendKind, kind)) for kind in kinds]
    where = codec.NVIMGCODEC_DEVICE_CPU_ONLY if on_cpu else torch.cuda.current_device()
    decoder = codec.Decoder(device_id=where, backends=backends)
    parameters = codec.DecodeParams(apply_exif_orientation=False)

    def decode(encoded):
        images = decoder.decode([codec.CodeStream(each) for each in encoded], params=parameters)
        if any(image is None for image in images):
            raise errors.BadInput("it cannot decode all of the images")
        if not on_cpu:
            torch.cuda.synchronize()
        return images

    return decode


def on_host(image):
    """Returns an image's pixels in the host's memory."""
    return image if isinstance(image, np.ndarray) else np.asarray(image.cpu())


def compare(images, reference):
    """Returns (the share in % of numbers that differ, the largest difference, its mean) of lists of
    uint8 arrays of the same shapes."""
    differing, largest, total, numbers = 0, 0, 0, 0
    for image, wanted in zip(images, reference, strict=True):
        if image.shape != wanted.shape:
            raise errors.BadInput(f"it decodes to {image.shape}, Pillow to {wanted.shape}")
        apart = np.abs(image.astype(np.int16) - wanted)
        differing += np.count_nonzero(apart)
        largest = max(largest, int(apart.max()))
        total += int(apart.sum())
        numbers += apart.size
    return 100 * differing / numbers, largest, total / numbers


def measure_way(decode, lists):
    """Returns (images/s, the pixels in the host's memory) of lists of encoded images."""
    started, decoded = time.perf_counter(), [decode(each) for each in lists]
    seconds = time.perf_counter() - started
    return sum(map(len, lists)) / seconds, [on_host(image) for each in decoded for image in each]


def measure(args, scratch):
    """Measures all ways, writes the table."""
    paths = common.pick_images(args.dir, args.images)
    encoded = [path.read_bytes() for path in paths]
    lists = [encoded[i : i + args.batch_size] for i in range(0, len(encoded), args.batch_size)]
    ways, rows = {PILLOW: lambda: by_pillow}, {}
    ways |= {name: functools.partial(by_codec, kinds) for name, kinds in KINDS.items()}
    reference = None
    for name, make in ways.items():
        print(f"decoding: {name}", file=sys.stderr, flush=True)
        row = {"name": name, "values": []}
        try:
            decode = make()
            decode(lists[0])  # warms up
            for _ in range(args.rounds):
                value, images = measure_way(decode, lists)
                row["values"].append(value)
            reference = reference or images
            share, largest, mean = compare(images, reference)
            row |= {"differing, %": share, "largest difference": float(largest)}
            row |= {"mean difference": mean}
        except Exception as error:  # whatever a library raises, the other ways go on
            row |= {"values": [], common.UNMEASURED: common.reason(error)}
        rows[name] = row
    title = "Decoding JPEGs as a whole"
    facts = {"images": args.images, "batch": args.batch_size}
    facts["pixels"] = statistics.mean(each.shape[0] * each.shape[1] for each in reference)
    common.write(args.out, title, "images/s", [*rows.values()], PILLOW, facts, "nvidia-nvimgcodec")


OPTIONS = [
    DIR,
    option("-b", "--batch-size", type=count, default=32, help="images of a call"),
    option("--images", type=count, default=256),
    option("--rounds", type=count, default=3),
]
main = functools.partial(common.main, __doc__, measure, "gpu_decoding", OPTIONS)

if __name__ == "__main__":
    main()
