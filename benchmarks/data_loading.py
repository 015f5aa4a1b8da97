"""Images/s of data loading, from JPEG files to batches in memory: this project and others.

    python benchmarks/data_loading.py DIR                      # has train/<class>/*.JPEG
    python benchmarks/data_loading.py DIR --only DALI timm     # these, and the baseline
    ATEN_CPU_CAPABILITY=avx2 python benchmarks/data_loading.py DIR --out OUT  # without AVX-512
    python benchmarks/data_loading.py DIR --checkout BEFORE --only folder --out OUT

All ways read the same --images random training images of DIR (the same ones again where it has
fewer), from page cache, with as many loader processes or threads, and give crops of 224 pixels,
randomly placed, sized and mirrored. Each way lives in a process of its own; after a pass to warm up
they load in turn, one pass of all images each, --rounds times. What is not installed has a row that
says so. Close other programs first: on two cores each of them counts; the processor time per image,
of all processes and threads of a way, suffers less from them. --checkout adds a row, the loader of
another commit: `git worktree add BEFORE COMMIT` makes that folder.
"""

import functools
import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common
import psutil
import torch
from common import DIR, ONLY, ROOT, UNMEASURED, count, option, whole
from torchvision import datasets, transforms
from torchvision.transforms import v2

from trainparts import errors

SIZE = 224  # pixels
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as in pytorch/examples
BASELINE = "pytorch/examples"
USED = "processor time, ms per image"
AHEAD = 2  # batches that DALI makes before they are asked for: its default
SETTLING = 0.5  # s
FFCV_QUALITY = 90  # of the JPEGs that FFCV writes


# ------------------------------------------------------------------------------------ torchvision's


def image_folder(folder, args, transform):
    """Returns passes over an ImageFolder by PyTorch's DataLoader."""
    dataset = datasets.ImageFolder(folder / "train", transform)
    options = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loader = torch.utils.data.DataLoader(
        dataset, args.batch_size, shuffle=True, drop_last=True, **options
    )
    return lambda epoch: loader


def pytorch_examples(folder, args):
    """The chain of pytorch/examples/imagenet."""
    chain = [
        transforms.RandomResizedCrop(SIZE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
    return image_folder(folder, args, transforms.Compose(chain))


def preset_pil(folder, args):
    """What torchvision's reference preset does with `--backend pil`."""
    chain = [
        transforms.RandomResizedCrop(SIZE, antialias=True),
        transforms.RandomHorizontalFlip(),
        transforms.PILToTensor(),
        transforms.ConvertImageDtype(torch.float),
        transforms.Normalize(MEAN, STD),
    ]
    return image_folder(folder, args, transforms.Compose(chain))


def preset_tensor_v2(folder, args):
    """What torchvision's reference preset does with `--backend tensor --use-v2`."""
    chain = [
        v2.PILToTensor(),
        v2.RandomResizedCrop(SIZE, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float, scale=True),
        v2.Normalize(MEAN, STD),
        v2.ToPureTensor(),
    ]
    return image_folder(folder, args, v2.Compose(chain))


# ------------------------------------------------------------------------------------- this project


def this_project(folder, args, shards=None, decoder="", by=common):
    """The scripts' own loader, of files, or of what tools/make_shards.py makes with options."""
    if decoder == "Pillow":
        sys.modules["nvidia.nvimgcodec"] = None  # its import fails, here and in loader workers
    elif importlib.util.find_spec("nvidia.nvimgcodec") is None:
        raise errors.BadInput("nvImageCodec is not installed: the scripts take Pillow")
    if shards is not None:
        out = Path(tempfile.mkdtemp(dir=args.scratch)) / "shards"
        make = [sys.executable, ROOT / "tools" / "make_shards.py", folder, out, *shards]
        made = subprocess.run(make, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
        if made.returncode:
            raise errors.BadInput(made.stderr.splitlines()[-1])
        folder = out
    words = ["-b", args.batch_size, "-j", args.workers, "--image-size", SIZE, "--epochs", 10_000]
    return by.loader_of([*words, folder])


def another_commit(folder, args):
    """What this_project() does, by another checkout, whose modules take the place of this one's in
    this process; each way has its own."""
    mine = "common commandline find_bottleneck imagenet_nd reporting trainparts".split()
    for name in [*sys.modules]:
        if name.partition(".")[0] in mine:
            del sys.modules[name]
    checkout = args.checkout.resolve()
    sys.path[:0] = map(str, (checkout / "benchmarks", checkout / "tools", checkout))
    return this_project(folder, args, by=importlib.import_module("common"))


# ------------------------------------------------------------------------------------------ others


def dali(folder, args):
    """NVIDIA DALI on the CPU: decodes the crop alone, hands over uint8, as is fastest."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy

    sizes = {"batch_size": args.batch_size, "num_threads": max(1, args.workers)}

    @pipeline_def(**sizes, device_id=None, prefetch_queue_depth=AHEAD)
    def pipeline():
        files, labels = fn.readers.file(
            file_root=str(folder / "train"), random_shuffle=True, name="files"
        )
        area, aspect = {"random_area": [0.08, 1]}, {"random_aspect_ratio": [3 / 4, 4 / 3]}
        images = fn.decoders.image_random_crop(files, device="cpu", **area, **aspect)
        images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_TRIANGULAR)
        return fn.flip(images, horizontal=fn.random.coin_flip()), labels

    options = {"auto_reset": True, "last_batch_policy": LastBatchPolicy.DROP}
    loader = DALIClassificationIterator(pipeline(), reader_name="files", **options)

    def epoch(serial):
        iter(loader)  # resets it
        for _ in range(AHEAD):  # made since the pass before: not to be counted in this one
            next(loader)
        return ((batch["data"], batch["label"]) for (batch,) in iter(loader.__next__, None))

    return epoch


def timm(folder, args):
    """timm's pipeline, without its jitter of colours, which the others do not have either."""
    from timm.data import create_dataset, create_loader

    loader = create_loader(
        create_dataset("", root=folder, split="train", is_training=True),
        input_size=(3, SIZE, SIZE),
        batch_size=args.batch_size,
        is_training=True,
        color_jitter=0.0,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        device=torch.device("cpu"),
    )
    return lambda epoch: loader


def ffcv(folder, args, **stored):
    """FFCV's own file of images, and its decoder that crops."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter

    path = str(Path(tempfile.mkdtemp(dir=args.scratch)) / "images.beton")
    image = RGBImageField(jpeg_quality=FFCV_QUALITY, **stored)
    fields = {"image": image, "label": IntField()}
    DatasetWriter(path, fields).from_indexed_dataset(datasets.ImageFolder(folder / "train"))
    crop = RandomResizedCropRGBImageDecoder((SIZE, SIZE))
    pipelines = {
        "image": [crop, RandomHorizontalFlip(), ToTensor(), ToTorchImage()],
        "label": [IntDecoder(), ToTensor()],
    }
    options = {"num_workers": max(1, args.workers), "order": OrderOption.RANDOM, "drop_last": True}
    loader = Loader(path, args.batch_size, pipelines=pipelines, **options)
    return lambda epoch: loader


# What this project reads: the files, or shards made with these options.
STORED = {
    "folder": None,
    "shards": [],
    "shards --resize 500 pixels": ["--resize", "500", "--quality", "90"],
    "raw 256": ["--raw", "256"],
}
# A way takes (folder with train/ and val/, options) and returns a function of the number of a pass
# that gives its batches: images first, then targets.
WAYS = {
    BASELINE: pytorch_examples,
    "torchvision reference preset, PIL": preset_pil,
    "torchvision reference preset, tensor, v2": preset_tensor_v2,
    "timm": timm,
    "NVIDIA DALI, CPU": dali,
    "FFCV, full-size JPEGs": functools.partial(ffcv, write_mode="jpg"),
    "FFCV, 500 pixels, quality 90": functools.partial(ffcv, write_mode="jpg", max_resolution=500),
    "FFCV, raw 256": functools.partial(ffcv, write_mode="raw", max_resolution=256),
    "this project, folder, Pillow": functools.partial(this_project, decoder="Pillow"),
    **{
        f"this project, {name}": functools.partial(this_project, shards=shards)
        for name, shards in STORED.items()
    },
}


# --------------------------------------------------------------------------------------- measuring


def processor_seconds():
    """Returns the processor time of this process and its loader processes, s."""
    own = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (own, *own.children()))


def make(way, folder, args):
    """Returns a function that measures a pass, and returns (images/s, ms of processor time per
    image, dtypes of the images). The clock starts when what was loaded ahead is used up."""
    load, epochs = way(folder, args), itertools.count()

    def measure_pass():
        used, images, ahead, dtypes = processor_seconds(), 0, 0, {}
        for number, batch in enumerate(load(next(epochs))):
            images += len(batch[1])
            dtypes[str(batch[0].dtype).removeprefix("torch.")] = None
            if number < 2 * args.workers + 1:
                started, ahead = time.perf_counter(), images
        images_per_second = (images - ahead) / (time.perf_counter() - started)
        time.sleep(SETTLING)  # what is fetched ahead for the next pass would slow the next way
        milliseconds = 1e3 * (processor_seconds() - used) / images
        return images_per_second, milliseconds, " ".join(dtypes)

    return measure_pass


def measure_ways(ways, args, scratch):
    """Returns the rows of {name: way}, which take turns over the same images of DIR."""
    least = (2 * args.workers + 4) * args.batch_size
    if args.images < least:
        raise errors.BadInput(f"--images {args.images}: {least} or more tell something")
    args.scratch, folder, rows = scratch, scratch / "images", []
    common.link_images(args.dir, args.images, folder)
    makes = {name: (make, way, folder, args) for name, way in ways.items()}
    for row in common.measure_apart(makes, args.rounds):
        passes, why = row["values"], row.get(UNMEASURED, "")
        row |= {"values": [each[0] for each in passes], USED: "", "batches": ""}
        if passes:
            row |= {USED: statistics.median(each[1] for each in passes), "batches": passes[0][2]}
        rows.append(row | {UNMEASURED: why})
    return rows


def measure(args, scratch):
    """Measures all ways, writes the table."""
    ways = WAYS
    if args.checkout:
        if not (args.checkout / "imagenet_nd.py").exists():
            raise errors.BadInput(f"--checkout {args.checkout} has no imagenet_nd.py")
        ways = ways | {"this project, folder, another commit": another_commit}
    rows = measure_ways(common.select(ways, args.only, BASELINE), args, scratch)
    title, held = f"Data loading, {args.workers} workers", os.environ.get("ATEN_CPU_CAPABILITY")
    title += f", held to {held.upper()}" if held else ""  # torch's; DALI and Pillow have no switch
    facts = {"workers": args.workers, "images": args.images, "batch": args.batch_size}
    facts["ffcv_quality"] = FFCV_QUALITY
    packages = "timm nvidia-dali nvidia-nvimgcodec ffcv".split()
    common.write(args.out, title, "images/s", rows, BASELINE, facts, *packages)


OPTIONS = [
    DIR,
    option("-j", "--workers", type=whole, default=2, help="loader processes of a way"),
    option("-b", "--batch-size", type=count, default=64),
    option("--images", type=count, default=1920, help="in a pass"),
    option("--rounds", type=count, default=5),
    option("--checkout", type=Path, metavar="FOLDER", help="of another commit, to be compared"),
    ONLY,
]
main = functools.partial(common.main, __doc__, measure, "data_loading", OPTIONS)

if __name__ == "__main__":
    main()
