"""Images/s of training on a CUDA GPU, with memory and share of the card's peak, in eight minutes.

    make bench-gpu                            # or: python benchmarks/gpu.py [DIR]
    python benchmarks/gpu.py --arch resnet18 -b 4 --image-size 32 --minutes 1      # on the CPU

Trains on synthetic images with the scripts' own code: imagenet_nd.py in bfloat16, and
imagenet_ddp_apex.py at every opt level, with and without --channels-last and --compile. Then loads
JPEGs, decoded by the CPU and by the GPU, without a model: those of DIR, else of noise. What matters
most comes first; what is not done after --minutes is recorded as not measured, and so is what
fails. Writes --out, and the loading beside it into <name>_decode.json.
"""

import contextlib
import importlib
import io
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import common
import numpy as np
import PIL.Image
import torch
from torch.utils.flop_counter import FlopCounterMode
from torchvision import models
from training import CLASSES, choose, place_of, shuffle_less, synchronize, train_epoch

from imagenet_nd import BadInput, OneLineParser, first_line

PRECISIONS = {
    "bfloat16": ("imagenet_nd", ["--amp", "bfloat16"]),
    **{level: ("imagenet_ddp_apex", ["--opt-level", level]) for level in ("O2", "O1", "O3", "O0")},
}
DECODERS = ("cpu", "cuda")
MODES = ("off", "default", "reduce-overhead")
UNMEASURED, OUT_OF_TIME = "not measured", "out of time"
WARM_UP_STEPS = 5  # cuDNN tries its algorithms in the first, CUDA graphs are recorded by the third
BLOCKS = 3  # measured, one after the other
IMAGES_PER_BLOCK = 2560  # a second of an H200
LOADED_BATCHES = 16  # per block
DRAWN = 256  # JPEGs; there are more names than files, since drawing takes longer than decoding
NOISE = "noise of 500 x 375 pixels, 110 kB, ImageNet's typical size"
NOTE = (
    f"The values are {BLOCKS} blocks of an epoch each, after {WARM_UP_STEPS} steps to warm up. The "
    "memory is PyTorch's, without CUDA's context and libraries. The peak is that of the card in "
    "dense bfloat16, whatever the precision (on a V100 float16), - where the card is unknown; the "
    "FLOPs are those of convolutions and matrix products, forward and backward."
)
LOAD_NOTE = "each read before, so from page cache; from file to normalised batch on the device."
# Dense TFLOPS of the tensor cores in bfloat16, which the data sheets give with sparsity, twice as
# much, by the whole name of the device: a part of a card (MIG) or another model has another peak.
PEAKS = {
    # NVIDIA H200 data sheet, H200 SXM: 1,979 with sparsity.
    r"NVIDIA H200": 989,
    # NVIDIA H100 data sheet, H100 SXM: 1,979 with sparsity; H100 PCIe: 1,513 with sparsity.
    r"NVIDIA H100 80GB HBM3": 989,
    r"NVIDIA H100 PCIe": 756,
    # NVIDIA A100 data sheet, all four models: 312, and 624 with sparsity.
    r"NVIDIA A100-(SXM4|PCIE)-[48]0GB|NVIDIA A100 80GB PCIe": 312,
    # NVIDIA L40S data sheet: 362.05, and 733 with sparsity.
    r"NVIDIA L40S": 362,
    # NVIDIA L4 data sheet: 242 with sparsity.
    r"NVIDIA L4": 121,
    # NVIDIA V100 data sheet, SXM2: 125, of float16, since it has no bfloat16.
    r"Tesla V100-SXM2-(16|32)GB": 125,
}


def peak_tflops(device):
    """Returns the peak of the card with this name, dense bfloat16, or None."""
    return next((peak for name, peak in PEAKS.items() if re.fullmatch(name, device)), None)


def count_flops(model, image_size):
    """Returns the FLOPs of a forward and backward pass for one image, a multiply-add being two."""
    batch = 2  # BatchNorm refuses a single value per channel
    images = torch.empty(batch, 3, image_size, image_size, device="meta")
    with FlopCounterMode(display=False) as counter:
        output = model.to("meta")(images)
        output = output[0] if isinstance(output, tuple) else output  # auxiliary heads are dropped
        output.sum().backward()
    return counter.get_total_flops() / batch


def share_of_peak(images_per_second, flops, device):
    """Returns the share in %, "-" for an unknown card."""
    peak = peak_tflops(device)
    return f"{100 * images_per_second * flops / (peak * 1e12):.1f}" if peak else "-"


# ---------------------------------------------------------------------------------- what to measure


def jobs_of(args):
    """Returns what to measure, as dicts, the most important first: trainings and loadings."""
    jobs = [{"decode": decoder, "batch": min(256, args.batch_size[0])} for decoder in DECODERS]
    jobs += [
        {"precision": precision, "channels_last": layout, "mode": mode, "batch": batch}
        for batch in args.batch_size
        for mode in MODES
        for precision in PRECISIONS
        for layout in (True, False)
    ]

    def importance(job):
        if "decode" in job:
            return 2
        precision, fast = job["precision"], job["channels_last"]
        eager, first = job["mode"] == "off", job["batch"] == args.batch_size[0]
        return [
            eager and first and precision == "O0" and not fast,  # what the others compare with
            eager and first and fast,
            precision == "bfloat16" and first and fast,
            eager and fast,
            precision == "O2" and first and fast,
            eager and first,
            precision == "bfloat16" and fast,
            eager,
            True,
        ].index(True)

    jobs.sort(key=importance)
    wanted = args.only or [""]
    return jobs[:1] + [job for job in jobs[1:] if any(each in name_of(job) for each in wanted)]


def options_of(job):
    """Returns a training's options, as one types them."""
    compiled = ["--compile", "--compile-mode", job["mode"]] if job["mode"] != "off" else []
    layout = ["--channels-last"] if job["channels_last"] else []
    return [*PRECISIONS[job["precision"]][1], *compiled, *layout, "-b", str(job["batch"])]


def name_of(job):
    """Returns the row's name."""
    if "decode" in job:
        return f"imagenet_nd.py --decode {job['decode']} -b {job['batch']}"
    return " ".join([f"{PRECISIONS[job['precision']][0]}.py", *options_of(job)])


# -------------------------------------------------------------------------- in a process of its own


def serve(connection, args, scratch):
    """Measures what the connection asks for, until there is nothing more."""
    while True:
        job = connection.recv()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                measure = load if "decode" in job else train
                measured = measure(job, args, scratch)
        except (Exception, SystemExit) as error:  # whatever it is, the others go on
            measured = {UNMEASURED: f"{type(error).__name__}: {first_line(error)}"}
        connection.send(measured)


def start(name, options, args, scratch):
    """Returns (a script's module, its Run)."""
    module = importlib.import_module(name)
    # The labels are random: a low rate keeps the loss finite, and so no step is skipped.
    words = ["--num-classes", CLASSES, "--lr", 0.001, "--lr-scaling", "none", "--log-dir", scratch]
    words += ["--image-size", args.image_size] if args.image_size else []
    parsed = module.parse_args([*map(str, words), *map(str, options)])
    return module, module.set_up(parsed, place_of(name))


def blocks(images, work):
    """Returns images/s of each block; `work` does one."""
    values = []
    for serial in range(1, BLOCKS + 1):
        synchronize()
        started = time.perf_counter()
        work(serial)
        synchronize()
        values.append(images / (time.perf_counter() - started))
    return values


def train(job, args, scratch):
    """Returns a training's row."""
    steps = args.steps or max(3, IMAGES_PER_BLOCK // job["batch"])
    words = ["-a", args.arch, "--dummy", "--steps-per-epoch", max(steps, WARM_UP_STEPS)]
    torch.compiler.reset()  # or the next batch size would be compiled as a variable one
    module, run = start(PRECISIONS[job["precision"]][0], words + options_of(job), args, scratch)
    cuda = run.place.device.type == "cuda"
    shuffle_less(run)
    run.data.order.end = WARM_UP_STEPS
    module.train_one_epoch(run, 0)
    run.data.order.end = steps
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()  # the algorithms that cuDNN tried do not count
    values = blocks(steps * job["batch"], lambda epoch: train_epoch(module, run, epoch))
    gib = f"{torch.cuda.max_memory_allocated() / 2**30:.1f}" if cuda else "-"
    flops = count_flops(models.get_model(args.arch), run.data.image_size)
    share = share_of_peak(statistics.median(values), flops, module.device_name(run.place.device))
    return {"values": values, "peak memory, GiB": gib, "of bf16 peak, %": share}


def load(job, args, scratch):
    """Returns a row of loading without a model: from files to normalised batches on the device."""
    words = ["-a", "resnet18", "-b", job["batch"], "--decode", job["decode"]]
    module, run = start("imagenet_nd", [*words, Path(scratch) / "chosen"], args, scratch)

    def epoch(serial):
        run.data.order.epoch = serial
        for _batch in module.Meter("", run.data.train, run, module.sum_over_ranks):
            pass

    epoch(0)
    return {"values": blocks(job["batch"] * len(run.data.train), epoch)}


class Worker:
    """The process that measures; the next job starts another one when a job has failed."""

    def __init__(self, *given):
        self.given, self.process = given, None

    def ask(self, job, seconds):
        """Returns what `serve` measures, if it takes no longer than that."""
        if self.process is None:
            # Not forked, as CUDA needs; and killed, if need be, since compiling cannot be stopped.
            spawn = multiprocessing.get_context("spawn")
            self.connection, theirs = spawn.Pipe()
            self.process = spawn.Process(target=serve, args=(theirs, *self.given))
            self.process.start()
            theirs.close()
        try:
            self.connection.send(job)
            answered = self.connection.poll(seconds)
            measured = self.connection.recv() if answered else {UNMEASURED: OUT_OF_TIME}
        except (EOFError, OSError):
            self.process.join(10)
            measured = {UNMEASURED: f"its process ended with status {self.process.exitcode}"}
        if UNMEASURED in measured:
            self.stop()
        return measured

    def stop(self):
        """Ends the process, whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


# --------------------------------------------------------------------------------------------- main


def draw_jpegs(folder, count):
    """Draws JPEGs of ImageNet's typical size in pixels and bytes."""
    (folder / "train" / "noise").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for serial in range(count):
        image = None
        for cells in (5, 20, 100, 400):
            noise = rng.integers(0, 256, (cells * 3 // 4, cells, 3), dtype=np.uint8)
            noise = PIL.Image.fromarray(noise).resize((500, 375), PIL.Image.BICUBIC)
            image = PIL.Image.blend(image, noise, 0.35) if image else noise
        image.save(folder / "train" / "noise" / f"{serial:04}.jpg", quality=90)
    return folder


def main():
    """Measures until the time is up, writes what there is."""
    parser = OneLineParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("dir", metavar="DIR", nargs="?", type=Path, help="has train/<class>/*.JPEG (else: drawn)")
    add("-a", "--arch", default="resnet50", help="any torchvision classifier (%(default)s)")
    add("-b", "--batch-size", type=int, nargs="+", help="images per step (256 1024)")
    add("--image-size", type=int, help="pixels (else: the architecture's own)")
    add("--steps", type=int, help=f"in each of {BLOCKS} blocks (else: {IMAGES_PER_BLOCK} images)")
    add("--only", nargs="+", metavar="NAME", help="rows with these words, beside the first")
    add("--minutes", type=float, default=7.5, help="when to end (%(default)s)")
    add("--out", type=Path, default=common.ROOT / "logs" / "benchmarks" / "gpu.json")
    args = parser.parse_args()
    if not torch.cuda.is_available() and not (args.batch_size and args.image_size):
        small = "to try it on the CPU, add --arch resnet18 -b 4 --image-size 32 --minutes 1"
        parser.error(f"PyTorch finds no CUDA GPU here; {small}")
    args.batch_size = args.batch_size or [256, 1024]
    # Worker.stop() leaves the loaders' semaphores to this tracker, which says so.
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    deadline = time.monotonic() + 60 * args.minutes
    trained, loaded = [], []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        worker = Worker(args, scratch)
        try:
            if args.minutes > 0:
                source = args.dir or draw_jpegs(Path(scratch) / "drawn", DRAWN)
                choose(source, LOADED_BATCHES * max(args.batch_size), Path(scratch) / "chosen")
            for job in jobs_of(args):
                seconds = deadline - time.monotonic()
                print(f"{seconds:4.0f} s left: {name_of(job)}", file=sys.stderr, flush=True)
                measured = worker.ask(job, seconds) if seconds > 0 else {UNMEASURED: OUT_OF_TIME}
                row = {"name": name_of(job), "values": [], **measured}
                (loaded if "decode" in job else trained).append(row)
        except BadInput as error:
            parser.error(str(error))
        finally:
            worker.stop()
    about = common.about("nvidia-nvimgcodec")
    unit, limit = "images/s", f"At most {args.minutes:g} minutes in all. "
    what = f"{args.image_size} pixels" if args.image_size else "its own size"
    title = f"Training {args.arch} on synthetic images of {what}, one device"
    common.write(args.out, title, unit, trained, trained[0]["name"], about, limit + NOTE)
    files = f"Files of {args.dir.name}" if args.dir else f"{DRAWN} JPEGs drawn for it: {NOISE}"
    out = args.out.with_name(f"{args.out.stem}_decode.json")
    title, note = "Loading JPEGs without a model, one device", f"{limit}{files}, {LOAD_NOTE}"
    if loaded:
        common.write(out, title, unit, loaded, loaded[0]["name"], about, note)


if __name__ == "__main__":
    main()
