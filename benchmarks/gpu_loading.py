"""Images/s of training from JPEGs, by number of loader processes, beside synthetic images.

    python benchmarks/gpu_loading.py DIR      # has train/<class>/*.JPEG, such as 240 of ImageNet
    python benchmarks/gpu_loading.py DIR -a resnet18 -b 4 --image-size 32 -j 1 --images 128   # CPU

Trains on --images of DIR, the same ones again where it has fewer: imagenet_nd.py in bfloat16 and
channels_last, with each number of loader processes, from a folder of JPEGs and from what
tools/make_shards.py makes of it with --raw 256. A row says how long training waited for data, the
processor time of the loader processes, and which decoder decoded: of all images that they decoded,
so many by nvImageCodec. How many of them tools/find_bottleneck.py advises stands beside, as it
computes it from the loader's own images/s, where DIR has images enough to measure these.
"""

import functools
import multiprocessing
import subprocess
import sys
import tempfile
import time

import common
import find_bottleneck
import psutil
import torch
from common import DIR, ROOT, count, option
from training import CLASSES, synchronize

from trainparts import devices, errors
from trainparts.images import decoding

SYNTHETIC = "synthetic images"
FORMS = {"folder": None, "raw 256": ["--raw", "256"]}  # and the options of make_shards.py
LEAST_STEPS = 8  # that are measured
WAIT, USED = "waiting for data, %", "processor time of the loader, ms per image"
BY_CODEC, ADVICE = "decoded by nvImageCodec, %", "-j by find_bottleneck.py"


def steps_of(workers):
    """Returns (how many steps come before those that are measured, how many these are)."""
    return find_bottleneck.WARM_UP + 2 * workers, max(LEAST_STEPS, 2 * workers)


# -------------------------------------------------------------------------------- a row


def count_decoders():
    """Has this process, and all that are forked from it, count the images of each decoder; returns
    {decoder: counter}. Those of --raw are pixels, which none decodes."""
    counters = {name: multiprocessing.Value("q") for name in ("nvImageCodec", "Pillow")}
    decode_regions, decode_by_pillow = decoding.decode_regions, decoding.decode_by_pillow

    def add(name, images):
        with counters[name].get_lock():
            counters[name].value += images

    def regions(wanted):
        images = decode_regions(wanted)
        add("nvImageCodec", sum(image is not None for image in images))
        return images

    def pillow(encoded, choose):
        add("Pillow", bytes(encoded[:2]) != b"P6")
        return decode_by_pillow(encoded, choose)

    decoding.decode_regions, decoding.decode_by_pillow = regions, pillow
    return counters


def loader_seconds():
    """Returns the processor time of this process's children, s."""
    return sum(sum(each.cpu_times()[:2]) for each in psutil.Process().children())


def serve(args, scratch):
    """Returns the function that measures a row: (folder, None for synthetic images; loader
    processes; whether Pillow is to decode; whether the loader alone is measured, too)."""
    return functools.partial(measure_row, args, scratch, count_decoders())


def measure_row(args, scratch, counters, folder, workers, by_pillow, alone):
    """Returns a row's columns; "loader", images/s without training, only if `alone`."""
    decoding.region_decoder.cache_clear()
    if by_pillow:
        sys.modules["nvidia.nvimgcodec"] = None  # its import fails, in loader processes too
    else:
        sys.modules.pop("nvidia.nvimgcodec", None)
    words = ["-a", args.arch, "-b", args.batch_size, "-j", workers, "--channels-last"]
    # The rate is low, since the labels of synthetic images are random: no step is skipped.
    words += ["--amp", args.amp, "--lr", 0.001, "--lr-scaling", "none", "--epochs", 1]
    words += ["--num-classes", CLASSES, "-p", 10**9, "--output-dir", tempfile.mkdtemp(dir=scratch)]
    words += ["--image-size", args.image_size] if args.image_size else []
    script, run = common.start("imagenet_nd", [*words, *([folder] if folder else ["--dummy"])])
    before, steps = steps_of(workers)
    common.train_steps(script, run, before)
    synchronize()
    used, decoded = loader_seconds(), {name: each.value for name, each in counters.items()}
    started = time.perf_counter()
    values = common.train_steps(script, run, steps)
    synchronize()
    images = steps * args.batch_size
    row = {"images/s": images / (time.perf_counter() - started)}
    if folder:
        decoded = {name: each.value - decoded[name] for name, each in counters.items()}
        row |= {WAIT: 100 * values["Data/wait"], USED: 1e3 * (loader_seconds() - used) / images}
        row |= {BY_CODEC: share_of("nvImageCodec", decoded)}
    if alone:
        row["loader"] = find_bottleneck.images_per_second(find_bottleneck.load, run, steps)
    common.kill_workers()
    script.cleanup()
    return row


def share_of(name, decoded):
    """Returns the share in % of a decoder in {decoder: images}, None where there are none."""
    return 100 * decoded[name] / sum(decoded.values()) if any(decoded.values()) else None


# ------------------------------------------------------------------------------------ all of them


def make_forms(args, scratch):
    """Returns {form: its folder}, made of images of DIR."""
    folders = {"folder": scratch / "images"}
    common.link_images(args.dir, args.images, folders["folder"])
    for form, options in FORMS.items():
        if options:
            folders[form] = scratch / form.replace(" ", "_")
            make = [sys.executable, ROOT / "tools" / "make_shards.py"]
            make += [folders["folder"], folders[form], *options]
            made = subprocess.run(make, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
            if made.returncode:
                raise errors.BadInput(made.stderr.splitlines()[-1])
    return folders


def jobs_of(args, folders):
    """Yields (form, folder, loader processes, whether Pillow is to decode, whether the loader alone
    is measured), what tells most first."""
    yield SYNTHETIC, None, 0, False, False
    there = args.images // args.batch_size
    for workers in sorted(args.workers, reverse=True):
        needed = 2 * sum(steps_of(workers))
        for form, folder in folders.items():
            yield form, folder, workers, False, needed <= there
    if decoding.region_decoder():
        yield "folder", folders["folder"], max(args.workers), True, False


def measure(args, scratch):
    """Measures all rows until the time is up, writes what there is."""
    if not (torch.cuda.is_available() or args.image_size):
        small = "to try it on the CPU, add -a resnet18 -b 4 --image-size 32 -j 1 2 --images 128"
        raise errors.BadInput(f"PyTorch finds no CUDA GPU here; {small}")
    needed = args.batch_size * sum(steps_of(max(args.workers)))
    if args.images < needed:
        raise errors.BadInput(f"--images {args.images}: -j {max(args.workers)} needs {needed}")
    deadline = time.monotonic() + args.seconds
    folders = make_forms(args, scratch)
    rows, server, model, cores = [], None, None, devices.cores_per_rank()
    try:
        for form, folder, workers, by_pillow, alone in jobs_of(args, folders):
            name = f"{form}, -j {workers}" if folder else form
            if by_pillow and f"{form}, Pillow, -j {workers}" in [row["name"] for row in rows]:
                continue  # it has decoded them before
            seconds, found, why = deadline - time.monotonic(), None, common.OUT_OF_TIME
            print(f"{seconds:4.0f} s left: {name}", file=sys.stderr, flush=True)
            if seconds > 0:
                server = server or common.Server(serve, args, scratch)
                found, why = server.ask(folder, workers, by_pillow, alone, seconds=seconds)
            found = found or {common.UNMEASURED: why}
            share = found.get(BY_CODEC)
            if by_pillow or (share is not None and share < 50):
                name = f"{form}, Pillow, -j {workers}"
            value, loader = found.pop("images/s", None), found.pop("loader", None)
            model = model or value  # that of synthetic images, which come first
            if loader and model:
                found[ADVICE] = str(find_bottleneck.enough_workers(loader, model, workers, cores))
            rows.append({"name": name, "values": [value] if value else []} | found)
            if server and why:  # its process is over
                server = server.stop()
    finally:
        if server:
            server.stop()
    title = f"Training {args.arch} from JPEGs, {args.batch_size} images per step, one device"
    facts = {"images": args.images, "batch": args.batch_size, "precision": args.amp}
    common.write(args.out, title, "images/s", rows, SYNTHETIC, facts, "nvidia-nvimgcodec")


OPTIONS = [
    DIR,
    option("-a", "--arch", default="resnet50", help="any torchvision classifier"),
    option("-b", "--batch-size", type=count, default=256, help="images per step"),
    option("-j", "--workers", type=count, nargs="+", default=[1, 4, 16], help="loader processes"),
    option("--image-size", type=count, help="pixels (default: the architecture's own)"),
    option("--images", type=count, default=17408, help="of an epoch, in the folder and in shards"),
    option("--amp", choices=["bfloat16", "float16"], default="bfloat16"),
    option("--seconds", type=float, default=100, help="when to end"),
]
main = functools.partial(common.main, __doc__, measure, "gpu_loading", OPTIONS)

if __name__ == "__main__":
    main()
