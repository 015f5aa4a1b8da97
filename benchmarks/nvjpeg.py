"""Images/s of loading with JPEGs decoded by the GPU's nvJPEG, against the scripts' loader.

    python benchmarks/nvjpeg.py DIR                  # has train/<class>/*.JPEG; needs a CUDA GPU

To batches of random crops of 224 pixels, uint8, on the GPU. nvJPEG, by torchvision.io in one
process, decodes whole images from memory, which are then cut and resized on the GPU; the scripts'
loader begins with files. No GPU has run this yet: its tests are on the CPU.
"""

import itertools
import tempfile
from pathlib import Path

import common
import torch
from common import count, whole
from decoders import read_jpegs
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2
from training import rate

import imagenet_nd as nd

SIZE = 224  # pixels
NVJPEG = "nvJPEG, one process"


def nvjpeg(jpegs, args, device):
    """Returns a function that loads so many batches from the bytes of JPEGs."""
    chain = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
    endless = itertools.cycle(torch.from_numpy(encoded) for encoded, _ in jpegs)

    def load(steps):
        for _ in range(steps):
            if device.type == "cuda":  # nvJPEG would overwrite what kernels still read: vision#9606
                torch.cuda.current_stream().synchronize()
            encoded = list(itertools.islice(endless, args.batch_size))
            images = decode_jpeg(encoded, ImageReadMode.RGB, device)
            torch.stack([chain(image) for image in images])

    return load


def ours(folder, args, device):
    """Returns a function that loads so many batches by the scripts' loader."""
    words = ["-b", args.batch_size, "-j", args.workers, "--image-size", SIZE, "--epochs", 10_000]
    begin = common.loader_of(nd, [*words, folder])
    endless = itertools.chain.from_iterable(begin(serial) for serial in itertools.count())

    def load(steps):
        for images, *_ in itertools.islice(endless, steps):
            images.to(device)

    return load


def main(device=None):
    """Measures both in turn, writes the table."""
    parser = common.option_parser(__doc__)
    add = parser.add_argument
    add("dir", metavar="DIR", type=Path, help="has train/<class>/*.JPEG")
    add("-b", "--batch-size", type=count, default=256, help="(%(default)s)")
    add(
        "-j", "--workers", type=whole, default=nd.cores_per_rank(common.Place(None)), help="(cores)"
    )
    add("--steps", type=count, default=50, help="in a round (%(default)s)")
    add("--rounds", type=count, default=5, help="(%(default)s)")
    add("--out", type=Path, default=common.ROOT / "logs" / "benchmarks" / "nvjpeg.json")
    args = parser.parse_args()
    if device is None and not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA GPU here")
    device, name = device or torch.device("cuda"), f"imagenet_nd.py, -j {args.workers}"
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            images = max(1024, 4 * args.batch_size)
            common.link_images(args.dir, images, Path(folder))
            loads = {name: ours(folder, args, device)}  # whose workers are forked first
            jpegs, _ = read_jpegs(common.pick_images(args.dir, images))
            loads[NVJPEG] = nvjpeg(jpegs, args, device)
            ways = {each: rate(load, args, torch.get_num_threads()) for each, load in loads.items()}
            common.interleave(ways, 1)  # to warm up
            values = common.interleave(ways, args.rounds)
    except nd.BadInput as error:
        parser.error(str(error))
    finally:
        common.kill_workers()
    note = f"{images} JPEGs of {args.dir.name} in batches of {args.batch_size}."
    rows = [{"name": each, "values": values[each]} for each in ways]
    about = common.about("nvidia-nvimgcodec")
    common.write(args.out, "Decoding JPEGs on the GPU", "images/s", rows, name, about, note)


if __name__ == "__main__":
    main()
