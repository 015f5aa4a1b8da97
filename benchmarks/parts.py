"""Images/s of the loop of examples/plain_loop.py, beside the same with others' loaders.

    python benchmarks/parts.py DIR                      # has train/<class>/*.JPEG

All read the same --images random training images of DIR, from page cache, with as many loader
processes, and give float32 batches, normalised, as a step is trained on; the step itself is left
out, which all have alike. The example's batches are uint8, which the trainer's process normalises.
Each way lives in a process of its own, and they take turns, as in data_loading.py.
"""

import functools
import importlib.util
import itertools
import sys

import common
import data_loading
import torch
from common import DIR, ONLY, ROOT, count, option, whole

from trainparts import errors
from trainparts.images import image_files, image_loading

BASELINE = "torchvision's loader"


def plain_loop(folder, args, decoder=""):
    """Returns passes over what the example trains on."""
    if decoder == "Pillow":
        sys.modules["nvidia.nvimgcodec"] = None  # its import fails
    elif importlib.util.find_spec("nvidia.nvimgcodec") is None:
        raise errors.BadInput("nvImageCodec is not installed: the package takes Pillow")
    path = ROOT / "examples" / "plain_loop.py"
    spec = importlib.util.spec_from_file_location("plain_loop", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    source = image_files.open_source(folder / "train")
    example.BATCH, example.STEPS = args.batch_size, 10**9
    batches = image_loading.load_images(
        example.schedule(len(source.target), 0),
        sources={"train": source},
        crops={"train": example.crop},
        size_of=lambda split, epoch: example.SIZE,
        batch_bytes=args.batch_size * example.SIZE**2 * 3,
        workers=args.workers,
        device=torch.device("cpu"),
    )
    finished = (
        (pixels.permute(0, 3, 1, 2).float().sub_(118).div_(58), target)
        for pixels, target, *_ in batches
    )
    steps = len(source.target) // args.batch_size
    return lambda serial: itertools.islice(finished, steps)


WAYS = {
    BASELINE: data_loading.pytorch_examples,
    "torchvision's loader, tensors, v2": data_loading.preset_tensor_v2,
    "timm's loader": data_loading.timm,
    "plain_loop.py without nvImageCodec": functools.partial(plain_loop, decoder="Pillow"),
    "plain_loop.py": plain_loop,
}


def measure(args, scratch):
    """Measures all ways, writes the table."""
    rows = data_loading.measure_ways(common.select(WAYS, args.only, BASELINE), args, scratch)
    facts = {"workers": args.workers, "images": args.images, "batch": args.batch_size}
    title = f"Parts in a loop of one's own, {args.workers} workers"
    common.write(args.out, title, "images/s", rows, BASELINE, facts, "timm", "nvidia-nvimgcodec")


OPTIONS = [
    DIR,
    option("-j", "--workers", type=whole, default=2, help="loader processes of a way"),
    option("-b", "--batch-size", type=count, default=64),
    option("--images", type=count, default=1920, help="in a pass"),
    option("--rounds", type=count, default=5),
    ONLY,
]
main = functools.partial(common.main, __doc__, measure, "parts", OPTIONS)

if __name__ == "__main__":
    main()
