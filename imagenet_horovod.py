"""Train an ImageNet classifier with Horovod, one process per GPU.

Choose this script where horovodrun, or MPI through it, is how jobs are run. Horovod 0.28.1 does not
install against today's PyTorch by pip alone: tools/install_horovod.sh builds it. `diff
imagenet_nd.py imagenet_horovod.py` shows what Horovod adds, and nothing else.

    horovodrun -np 4 python imagenet_horovod.py -a resnet50 DIR
    horovodrun -np 8 -H host1:4,host2:4 python imagenet_horovod.py -a resnet50 DIR
    horovodrun -np 2 python imagenet_horovod.py --no-accel -b 32 --fp16-allreduce   # the demo set
"""

import argparse
import contextlib
import copy
import dataclasses
import datetime
import difflib
import functools
import json
import math
import multiprocessing
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL.Image
import PIL.ImageDraw
import psutil
import torch
import torch.nn as nn
import torchvision
from torch.utils.tensorboard import SummaryWriter
from torchvision import models
from torchvision.transforms import v2
from tqdm import tqdm

try:
    import horovod.torch as hvd
except ImportError:  # told in launch(): --help works without it
    hvd = None

# ------------------------------------------------------------------------------- parallel section


def add_parallel_options(parser):
    """How gradients are exchanged, and the precision."""
    add = parser.add_argument_group("distribution").add_argument
    add("--fp16-allreduce", action="store_true", help="send gradients as float16")
    add("--use-adasum", action="store_true", help="combine updates by Adasum instead of averaging")
    add(
        "--gradient-predivide-factor",
        type=float,
        default=1.0,
        help="divide by this before, by ranks / this after the sum (%(default)s)",
    )
    add = parser.add_argument_group("precision").add_argument
    types, say = ["float16", "bfloat16"], "type of the forward pass; float16 scales the loss"
    add("--amp", dest="precision", choices=types, default="float32", help=say)


def launch(worker, args):
    """horovodrun has started this process, one of many; or nobody has, then it is alone."""
    if hvd is None:
        raise BadInput(
            "Horovod is not installed: `bash tools/install_horovod.sh` builds it for "
            "the PyTorch of this environment"
        )
    if not 0 < args.gradient_predivide_factor < math.inf:
        raise BadInput("--gradient-predivide-factor must be a number above 0")
    if args.use_adasum and args.precision == "float16":
        raise BadInput(
            "--use-adasum exchanges updates, not gradients, so the loss cannot be "
            "scaled: take --amp bfloat16"
        )
    if args.use_adasum and args.gradient_predivide_factor != 1:
        raise BadInput("--gradient-predivide-factor divides averages: leave out --use-adasum")
    worker(args)


def join(args):
    """Joins the processes that horovodrun started."""
    hvd.init()
    os.environ["RANK"] = str(hvd.rank())  # as other launchers do: complain() lets rank 0 speak
    device = pick_device(args, hvd.local_rank(), hvd.local_size())
    if device.type != "cpu" and not (hvd.cuda_built() or hvd.rocm_built()):
        build = "HOROVOD_GPU_OPERATIONS=NCCL bash tools/install_horovod.sh"
        raise BadInput(f"this Horovod was built without GPUs: {build}, or give --no-accel")
    if args.use_adasum and hvd.size() > 1 and not hvd.mpi_built():
        build = "HOROVOD_WITH_MPI=1 bash tools/install_horovod.sh"
        raise BadInput(f"--use-adasum needs a Horovod with MPI: {build}, and horovodrun --mpi")
    return Place(device, hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())


def prepare(model, build_optimizer, args, place):
    """Returns (model, optimizer, scaler); this optimizer averages the gradients over ranks."""
    if args.sync_bn:
        _sync_batchnorm(model)
    # Horovod sends contiguous tensors alone; under --channels-last the images keep that layout.
    model = model.to(memory_format=torch.contiguous_format)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        build_optimizer(model.parameters()),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=args.accumulation,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )
    scaler = torch.amp.GradScaler(place.device.type, enabled=args.precision == "float16")
    return model, optimizer, scaler


def _sync_batchnorm(module):
    for name, child in module.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            new = hvd.SyncBatchNorm(child.num_features, child.eps, child.momentum, child.affine)
            new.load_state_dict(child.state_dict())
            setattr(module, name, new.to(next(child.buffers()).device))
        else:
            _sync_batchnorm(child)


def precision(args, device):
    """The context of the forward pass and the loss."""
    if args.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, args.precision))


def train_step(model, criterion, optimizer, scaler, images, target, args):
    """One update from this rank's images of one step, in `--accumulation` equal parts."""
    sums = 0
    parts = args.accumulation
    for x, y in zip(images.chunk(parts), target.chunk(parts), strict=True):
        with precision(args, x.device):
            loss, measured = criterion(model(x), y)
        scaler.scale(loss / parts).backward()  # the last one starts the exchange, layer by layer
        sums += measured
    if args.use_adasum:  # step() itself exchanges the updates
        optimizer.step()
    else:
        optimizer.synchronize()  # before unscaling, which all ranks must do to the same gradients
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
    return sums


def sum_over_ranks(tensor):
    """Returns the sum of all ranks' tensors, the same on every rank."""
    return hvd.allreduce(tensor.cpu(), op=hvd.Sum).to(tensor.device)


def full_state(model, optimizer):
    """The user's own module as a state dict."""
    return model.state_dict()


def leave():
    """Closes Horovod."""
    hvd.shutdown()


# ---- shared: below this line every imagenet_*.py is the same, to the byte (tools/sync_copies.py)


class Place(NamedTuple):
    """Where this process stands among those that train together."""

    device: torch.device
    rank: int = 0  # of this process, among all
    ranks: int = 1  # processes in all
    local_rank: int = 0  # of this process, among those on this node
    local_ranks: int = 1  # processes on this node
    devices: int = 1  # that this process drives


class BadInput(Exception):
    """The user's mistake, told in one line: what, where, what to do. Ends in exit status 2."""


def first_line(error):
    """Returns the first line of an exception's text, or its type where there is no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# ---------------------------------------------------------------------------------------- options


class OneLineParser(argparse.ArgumentParser):
    """An ArgumentParser that tells an error in one line, without the usage."""

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message}\n")


def number(kind, wanted, valid):
    """Returns an argparse type: a finite `kind` (int, float) for which `valid` holds."""

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and valid(value)):
            raise argparse.ArgumentTypeError(f"{text} is not {wanted}")
        return value

    return parse


def parse_args(argv=None):
    """Returns the options as typed; what is derived from them gets names of its own."""
    count = number(int, "a whole number above 0", lambda value: value > 0)
    whole = number(int, "a whole number from 0 on", lambda value: value >= 0)
    positive = number(float, "a number above 0", lambda value: value > 0)
    zero_on = number(float, "a number from 0 on", lambda value: value >= 0)
    fraction = number(float, "a fraction in (0, 1], as 0.75 for 75 %", lambda value: 0 < value <= 1)
    flag = {"action": "store_true"}

    parser = OneLineParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    add = parser.add_argument_group("data").add_argument
    add("dir", metavar="DIR", nargs="?", help="has train/ and val/ ($IMAGENET_DIR, else a demo)")
    add(
        "-j", "--workers", type=whole, help="loader processes per rank (else: cores / ranks, to 16)"
    )
    add("--image-size", type=count, help="crop, pixels (else: the architecture's own)")
    add("--val-resize", type=count, help="shorter side before validation's central crop, pixels")
    add("--num-classes", type=count, help="of the last layer (else: as many as train/ has)")
    add("--dummy", **flag, help="synthetic images, made on the device, as many as ImageNet has")

    add = parser.add_argument_group("model").add_argument
    add("-a", "--arch", default="resnet18", help="any torchvision classifier (%(default)s)")
    add("--pretrained", **flag, help="start from torchvision's weights; the last layer may be new")
    add("--sync-bn", "--sync_bn", **flag, help="BatchNorm statistics over all ranks' batches")
    add("--channels-last", **flag, help="lay tensors out as NHWC")

    add = parser.add_argument_group("optimization").add_argument
    add("--epochs", type=count, default=90, help="in all (%(default)s)")
    add("--start-epoch", type=whole, help="counted from 0 (else: where --resume ended)")
    add("-b", "--batch-size", "--b", type=count, default=256, help="per device (%(default)s)")
    parts = "batches per device whose gradients make up one step (%(default)s)"
    add("--accumulation", "--batches-per-allreduce", type=count, default=1, help=parts)
    per_256 = "peak learning rate for a global batch of 256 (%(default)s)"
    add("--lr", "--learning-rate", type=positive, default=0.1, help=per_256)
    rules = "of --lr with global batch / 256: linear (Goyal et al. 2017), sqrt (Krizhevsky 2014)"
    add("--lr-scaling", choices=["linear", "sqrt", "none"], default="linear", help=rules)
    add("--base-lr", type=positive, help="in place of --lr: per device's batch, always linear")
    shapes = "step: a tenth after 30, 60, 80 of 90 epochs (Goyal et al. 2017); cosine: to 0"
    add("--lr-schedule", choices=["step", "cosine"], default="step", help=shapes)
    add("--warmup-epochs", type=zero_on, help="linear from 0, 0 = off (else: 5 of 90 epochs)")
    add("--momentum", type=zero_on, default=0.9, help="of SGD (%(default)s)")
    add("--wd", "--weight-decay", type=zero_on, default=1e-4, help="of all weights (%(default)s)")

    add = parser.add_argument_group("stopping").add_argument
    add("--desired-acc", type=fraction, help="end at this validation top-1, a fraction as 0.75")
    add("--steps-per-epoch", type=count, help="cut each epoch short, for trials")

    add = parser.add_argument_group("checkpoints and logs").add_argument
    add("--resume", metavar="PATH", help="go on from this checkpoint, of any imagenet_*.py")
    add("-e", "--evaluate", **flag, help="validate once and end")
    add("--log-dir", default="runs", help="each run makes its folder in this one (%(default)s)")
    add("-p", "--print-freq", type=count, default=10, help="in steps (%(default)s)")
    add("--prof", type=whole, help="profile ten steps from this one on, and end")

    add = parser.add_argument_group("device and reproducibility").add_argument
    add("--gpu", type=whole, help="use this GPU alone, counted from 0")
    add("--no-accel", **flag, help="use the CPU even where there is a GPU")
    add("--seed", type=whole, default=0, help="of weights, order and crops (%(default)s)")
    add("--deterministic", **flag, help="repeat to the bit on a GPU too, slower")
    add_parallel_options(parser)

    args = parser.parse_args(argv)
    known = models.list_models(module=models)
    if args.arch not in known:
        near = ", ".join(difflib.get_close_matches(args.arch, known, cutoff=0.4) or known)
        parser.error(f"-a {args.arch}: torchvision has no such classifier; near: {near}")
    if args.start_epoch is not None and args.start_epoch >= args.epochs:
        parser.error(f"--start-epoch {args.start_epoch} is beyond --epochs {args.epochs}")
    if args.gpu is not None and args.no_accel:
        parser.error("--gpu and --no-accel exclude each other")
    return args


def pick_device(args, local_rank=0, local_ranks=1):
    """Returns the accelerator (CUDA, ROCm, XPU, MPS) of a node's rank, or --gpu; else the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if args.no_accel or accelerator is None:
        if args.gpu is not None:
            raise BadInput(f"--gpu {args.gpu}: PyTorch finds no GPU here; leave it out for the CPU")
        return torch.device("cpu")
    found, index = torch.accelerator.device_count(), local_rank if args.gpu is None else args.gpu
    if args.gpu is not None and (index >= found or local_ranks > 1):
        raise BadInput(
            f"--gpu {index}: {local_ranks} processes on this node, which has {found} GPUs"
        )
    if local_ranks > found:
        wanted = f"{local_ranks} processes on a node of {found} GPUs"
        raise BadInput(f"{wanted}: start {found} there, or give --no-accel for the CPU")
    torch.accelerator.set_device_index(index)
    return torch.device(accelerator.type, index)


def cores_per_rank(place):
    """Returns this rank's share of the cores that the process may use, 1 or more."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, cores // place.local_ranks)


# ------------------------------------------------------------------------------------------- data


def exact_dtype(device):
    """Returns the type for sums: float64, except on accelerators that may have none."""
    return torch.float64 if device.type in ("cpu", "cuda") else torch.float32


def mix(*numbers):
    """Returns a 64-bit seed from whole numbers; near numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def draw_demo_set(folder):
    """Draws ten classes of 128 + 32 JPEGs of 64 x 64 pixels: shapes of one colour on noise."""
    if folder.exists():
        return
    rng = np.random.default_rng(0)
    # Several ranks may draw, of several nodes: one of them renames, and all have it.
    unfinished = Path(f"{folder}.{platform.node()}.{os.getpid()}")
    for part, images in ("train", 128), ("val", 32):
        for label in range(10):
            (unfinished / part / f"class{label}").mkdir(parents=True)
            for serial in range(images):
                image = PIL.Image.fromarray(rng.integers(64, 192, (64, 64, 3), dtype=np.uint8))
                canvas = PIL.ImageDraw.Draw(image)
                for x, y, radius, turn in rng.integers((0, 0, 6, 0), (64, 64, 14, 360), (8, 4)):
                    hue = (36 * label + rng.integers(-8, 9)) % 360
                    circle = (int(x), int(y), int(radius))
                    colour = f"hsv({hue}, 80%, {rng.integers(60, 100)}%)"
                    canvas.regular_polygon(circle, 3 + label % 4, int(turn), fill=colour)
                image.save(unfinished / part / f"class{label}" / f"{serial:03}.jpg", quality=90)
    try:
        unfinished.rename(folder)
    except OSError:
        shutil.rmtree(unfinished)


def find_data(args, place):
    """Returns (folder with train/ and val/, whether it is the demo set)."""
    chosen = args.dir or os.environ.get("IMAGENET_DIR")
    folder = Path(chosen or "demo_data")
    if not chosen:
        say(place, f"No DIR, no $IMAGENET_DIR: training on the demo set in {folder.absolute()}")
        draw_demo_set(folder)
    for part in folder, folder / "train", folder / "val":
        if not part.is_dir():
            raise BadInput(f"{part} is no folder: DIR must hold train/<class>/ and val/<class>/")
    return folder, not chosen


def decode(path):
    """Reads an image file → uint8 (3, H, W); with Pillow what torchvision does not read so."""
    with contextlib.suppress(RuntimeError, OSError):
        encoded = torch.from_numpy(np.fromfile(path, np.uint8))  # not memory-mapped: `Traffic`
        image = torchvision.io.decode_image(encoded, torchvision.io.ImageReadMode.RGB)
        if image.dtype == torch.uint8 and image.ndim == 3:  # not 16 bits, not animated
            return image
    try:
        with PIL.Image.open(path) as image:
            return v2.functional.pil_to_tensor(image.convert("RGB"))
    except Exception as error:  # Pillow's decoders raise what they like
        why = first_line(error)
        raise BadInput(f"{path} cannot be read as an image ({why}): mend or remove it") from None


class Images(torchvision.datasets.ImageFolder):
    """ImageFolder whose keys are (epoch, index): what is drawn for an image, such as its crop,
    comes from (seed, epoch, index) alone, whichever worker of whichever rank loads it.

    Items are (uint8 (3, H, W), class number).
    """

    def __init__(self, folder, transform, seed):
        try:
            super().__init__(folder, transform)
        except FileNotFoundError as error:  # no class, or a class without images
            raise BadInput(f"{folder}: {error}") from None
        self.seed = seed

    def __getitem__(self, key):
        epoch, index = key
        path, target = self.samples[index]
        image = decode(path)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(mix(self.seed, epoch, index))
            return self.transform(image), target


class TrainOrder(torch.utils.data.Sampler):
    """The keys of this rank's images, step by step, for one epoch.

    The order of an epoch is one permutation from (seed, epoch), and step k of all ranks together
    takes its positions [k * global_batch, (k + 1) * global_batch): the ranks, their workers and
    devices only share out a step. The ragged last batch is dropped.
    """

    def __init__(self, size, steps, global_batch, place, seed):
        self.size, self.steps, self.global_batch = size, steps, global_batch
        self.place, self.seed = place, seed
        self.epoch, self.first, self.end = 0, 0, steps

    def __len__(self):
        return self.end - self.first

    def __iter__(self):
        generator = torch.Generator().manual_seed(mix(self.seed, self.epoch))
        order = torch.randperm(self.size, generator=generator)
        share = self.global_batch // self.place.ranks
        for step in range(self.first, self.end):
            start = step * self.global_batch + self.place.rank * share
            yield [(self.epoch, index) for index in order[start : start + share].tolist()]


class DummyLoader:
    """A loader that gives one random batch, made on the device, again and again."""

    def __init__(self, batch_sampler, batch, data_shape, num_classes, device):
        self.batch_sampler = batch_sampler
        self.images = torch.randint(256, (batch, *data_shape), dtype=torch.uint8, device=device)
        self.target = torch.randint(num_classes, (batch,), device=device)

    def __len__(self):
        return len(self.batch_sampler)

    def __iter__(self):
        return ((self.images[: len(keys)], self.target[: len(keys)]) for keys in self.batch_sampler)


class Data(NamedTuple):
    """What a run reads. The loaders yield (images (N, 3, H, W) uint8, target (N,) int64)."""

    train: Iterable  # this rank's share of one step an item
    order: TrainOrder
    val: Iterable
    val_size: int  # images, of all ranks
    num_classes: int
    image_size: int
    workers: int
    global_batch: int
    source: str  # the folder, or what stands for it


def preset_of(arch):
    """Returns torchvision's preprocessing for `arch`: crop, resize, interpolation, mean, std."""
    return next(iter(models.get_model_weights(arch))).transforms()


def load_data(args, place):
    """Returns Data. Every image of val/ is read once, by one rank, however many there are."""
    preset = preset_of(args.arch)
    own_size, own_resize = preset.crop_size[0], preset.resize_size[0]
    device_batch = args.batch_size * place.devices
    share = device_batch * args.accumulation
    folder, demo = (None, False) if args.dummy else find_data(args, place)
    # The demo's images have 64 pixels; nearly every network of 224 takes them as they are.
    small = demo and own_size == 224 and args.arch != "maxvit_t"
    image_size = args.image_size or (64 if small else own_size)
    val_resize = args.val_resize or round(image_size * own_resize / own_size)
    if val_resize < image_size:
        raise BadInput(f"--val-resize {val_resize} is less than the crop, {image_size}")
    if args.dummy:
        num_classes = args.num_classes or 1000
        train_size = 1_281_167
        val_size = args.steps_per_epoch * share * place.ranks if args.steps_per_epoch else 50_000
    else:
        filters = {"interpolation": preset.interpolation, "antialias": True}
        crop = [v2.RandomResizedCrop(image_size, **filters), v2.RandomHorizontalFlip()]
        centre = [v2.Resize(val_resize, **filters), v2.CenterCrop(image_size)]
        train_set = Images(folder / "train", v2.Compose(crop), args.seed)
        val_set = Images(folder / "val", v2.Compose(centre), args.seed)
        odd = sorted(set(train_set.classes) ^ set(val_set.classes))
        if odd:
            raise BadInput(f"{folder}: train/ and val/ differ in {len(odd)} classes, as {odd[0]}")
        train_size, val_size = len(train_set), len(val_set)
        num_classes = args.num_classes or len(train_set.classes)
        if num_classes < len(train_set.classes):
            raise BadInput(f"--num-classes {num_classes}: {folder} has {len(train_set.classes)}")

    global_batch = share * place.ranks
    steps = min(train_size // global_batch, args.steps_per_epoch or math.inf)
    if steps == 0 and not args.evaluate:
        sizes = f"{train_size} training images are fewer than a global batch, {global_batch}"
        raise BadInput(f"{sizes}: lower -b or --accumulation, or use fewer devices")
    if args.prof is not None and steps < args.prof + 10:
        raise BadInput(f"--prof {args.prof} needs ten more steps, and the epoch has {steps}")
    order = TrainOrder(train_size, steps, global_batch, place, args.seed)
    val_keys = [(0, index) for index in range(place.rank, val_size, place.ranks)]
    val_order = torch.utils.data.BatchSampler(val_keys, device_batch, drop_last=False)
    workers = min(16, cores_per_rank(place)) if args.workers is None else args.workers
    if args.dummy:
        made = ((3, image_size, image_size), num_classes, place.device)
        train, val = DummyLoader(order, share, *made), DummyLoader(val_order, device_batch, *made)
    else:
        options = {
            "num_workers": workers,
            "pin_memory": place.device.type == "cuda",
            "generator": torch.Generator(),  # else each epoch would draw from the global one
        }
        kept = {"persistent_workers": workers > 0}  # validation's end with it, to free memory
        train = torch.utils.data.DataLoader(train_set, batch_sampler=order, **options, **kept)
        val = torch.utils.data.DataLoader(val_set, batch_sampler=val_order, **options)
    source = "synthetic images" if args.dummy else "the demo set" if demo else str(folder)
    sizes = (val_size, num_classes, image_size, workers, global_batch)
    return Data(train, order, val, *sizes, source)


def on_device(loader, args, place):
    """Yields the loader's batches on the device: images (N, 3, H, W) normalised float32, target.

    On CUDA they are copied and normalised one batch ahead, on a stream of their own, while the
    step before computes.
    """
    preset = preset_of(args.arch)
    mean, std = (
        torch.tensor(each, device=place.device).view(1, 3, 1, 1) * 255
        for each in (preset.mean, preset.std)
    )
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    side = torch.cuda.Stream(place.device) if place.device.type == "cuda" else None
    if side:
        side.wait_stream(torch.cuda.current_stream(place.device))
    ready = None
    for images, target in loader:
        with torch.cuda.stream(side) if side else contextlib.nullcontext():
            images = images.to(place.device, non_blocking=True, memory_format=layout)
            images = images.float().sub_(mean).div_(std)
            target = target.to(place.device, non_blocking=True)
        if ready:
            yield ready
        if side:
            main = torch.cuda.current_stream(place.device)
            main.wait_stream(side)
            images.record_stream(main)  # or the allocator would reuse it under the step's feet
            target.record_stream(main)
        ready = images, target
    if ready:
        yield ready


# ------------------------------------------------------------------------------------------ model

# Weight of each auxiliary loss: Szegedy et al. 2014, section 5; 0.4 for v3 as in TF-slim.
AUXILIARY_WEIGHT = {"googlenet": 0.3, "inception_v3": 0.4}


def build_model(args, data):
    """Returns the torchvision model `-a` in float32 on the CPU, of data.num_classes classes."""
    options = {}
    if args.arch in AUXILIARY_WEIGHT:  # their pretrained weights expect another normalisation
        options = {"aux_logits": True, "transform_input": args.pretrained}
    elif args.arch.startswith("vit_"):
        options = {"image_size": data.image_size}
    elif args.arch == "maxvit_t":
        options = {"input_size": (data.image_size, data.image_size)}
    initialise = {"init_weights": True} if args.arch in AUXILIARY_WEIGHT else {}
    try:
        model = models.get_model(args.arch, num_classes=data.num_classes, **options, **initialise)
        shapes = torch.empty(2, 3, data.image_size, data.image_size, device="meta")
        copy.deepcopy(model).to("meta")(shapes)  # fails where images are too small
        if args.pretrained:
            weights = next(iter(models.get_model_weights(args.arch)))
            donor = models.get_model(args.arch, weights=weights, **options).state_dict()
            own = model.state_dict()  # whose last layers differ where the number of classes does
            fitting = {name: donor[name] for name in own if donor[name].shape == own[name].shape}
            own.update(fitting)
            model.load_state_dict(own)
    except OSError as error:  # no network, no such file
        where = f"{torch.hub.get_dir()}/checkpoints"
        raise BadInput(f"--pretrained: cannot fetch {weights.url} into {where}: {error}") from None
    except (ValueError, AssertionError, RuntimeError) as error:
        size = f"--image-size {data.image_size}"
        raise BadInput(f"{args.arch} does not go with {size}: {first_line(error)}") from None
    return model


def build_criterion(args):
    """Returns criterion(output, target) → (loss to differentiate, float64 sums to log).

    The sums are (loss x N, correct in top 1, correct in top 5, N): exact to add up over batches
    and ranks. Networks with auxiliary outputs return (logits, *auxiliary) in training.
    """

    def criterion(output, target):
        logits, *auxiliary = output if isinstance(output, tuple) else (output,)
        loss = nn.functional.cross_entropy(logits, target)
        for extra in auxiliary:
            if extra is not None:
                loss = loss + weight * nn.functional.cross_entropy(extra, target)
        with torch.no_grad():
            top5 = logits.topk(min(5, logits.shape[1])).indices == target[:, None]
            exact = exact_dtype(target.device)
            count = torch.full((), len(target), dtype=exact, device=target.device)
            sums = torch.stack([loss.to(exact) * count, top5[:, 0].sum(), top5.sum(), count])
        return loss, sums

    weight = AUXILIARY_WEIGHT.get(args.arch, 0)
    return criterion


# --------------------------------------------------------------------------------------- schedule


def peak_learning_rate(args, data):
    """Returns the learning rate after warm-up, from --lr and the global batch, or --base-lr."""
    if args.base_lr:
        return args.base_lr * data.global_batch / args.batch_size
    scale = data.global_batch / 256
    return args.lr * {"linear": scale, "sqrt": scale**0.5, "none": 1}[args.lr_scaling]


def learning_rate(args, peak, progress):
    """Returns the learning rate after `progress` epochs (a fraction, such as 29.5)."""
    warmup = args.epochs * 5 / 90 if args.warmup_epochs is None else args.warmup_epochs
    if progress < warmup:
        return peak * progress / warmup
    if args.lr_schedule == "cosine":
        return peak * (1 + math.cos(math.pi * (progress - warmup) / (args.epochs - warmup))) / 2
    return peak * 0.1 ** sum(progress > args.epochs * cut / 90 for cut in (30, 60, 80))


# ----------------------------------------------------------------------------------------- meters


class Meter:
    """Times, and criterion's sums, of one epoch; iterating it gives the batches on the device.

    Every --print-freq steps rank 0 shows what pytorch/examples does, each value of the step and in
    brackets its mean over the epoch so far: as a line, or behind a live bar on a terminal.
    """

    def __init__(self, title, loader, run, reduce):
        self.title, self.run, self.reduce = title, run, reduce
        self.totals = torch.zeros(4, dtype=exact_dtype(run.place.device), device=run.place.device)
        self.steps, self.waited = 0, 0.0
        live = run.place.rank == 0 and sys.stdout.isatty() and sys.stderr.isatty()
        batches = on_device(loader, run.args, run.place)
        self.bar = tqdm(batches, title, len(loader), False, disable=not live, dynamic_ncols=True)
        self.started = self.before = time.perf_counter()

    def __iter__(self):
        for batch in self.bar:
            self.wait = time.perf_counter() - self.before
            self.waited += self.wait
            yield batch

    def update(self, sums):
        """Adds a step's sums; returns its means over all that `reduce` adds up, when shown."""
        self.totals += sums
        seconds, self.before = time.perf_counter() - self.before, time.perf_counter()
        self.steps += 1
        if (self.steps - 1) % self.run.args.print_freq == 0:
            both = self.reduce(torch.stack([sums, self.totals])).tolist()  # sync point
            return self.show(seconds, averages(both[0]), averages(both[1]))

    def show(self, seconds, now, mean):
        width, step = len(str(self.bar.total)), self.steps - 1
        every = (self.before - self.started) / self.steps, self.waited / self.steps
        line = f"{self.title}[{step:{width}}/{self.bar.total}]"
        line += f"\tTime {seconds:6.3f} ({every[0]:6.3f})\tData {self.wait:6.3f} ({every[1]:6.3f})"
        quality = f"Loss {now[0]:.4e} ({mean[0]:.4e})"
        quality += f"\tAcc@1 {now[1]:6.2f} ({mean[1]:6.2f})\tAcc@5 {now[2]:6.2f} ({mean[2]:6.2f})"
        if self.bar.disable:
            say(self.run.place, f"{line}\t{quality}")
        else:
            self.bar.set_postfix_str(quality.replace("\t", "  "))
        return now

    def close(self, part):
        """Returns the log entries of the epoch, over all ranks; `part` is train or val."""
        loss, top1, top5 = averages(sums := sum_over_ranks(self.totals).tolist())  # sync point
        self.images, self.seconds = sums[3], time.perf_counter() - self.started
        entries = {"Loss": loss, "Top1": top1, "Top5": top5}
        entries |= {"Throughput": sums[3] / self.seconds, "Time": self.seconds / max(1, self.steps)}
        return {f"{tag}/{part}": value for tag, value in entries.items()}


def averages(sums):
    """Returns (loss, top-1 in %, top-5 in %) from criterion's sums."""
    loss, top1, top5, count = sums
    return loss / count, 100 * (top1 / count), 100 * (top5 / count)


# ---------------------------------------------------------------------------- train and validate


@dataclasses.dataclass
class Run:
    """What one training run holds from epoch to epoch."""

    args: argparse.Namespace
    place: Place
    data: Data
    model: nn.Module
    criterion: Callable
    optimizer: torch.optim.Optimizer
    scaler: object  # torch.amp.GradScaler, or what has its methods
    folder: Path | None  # for checkpoints and logs; None on all ranks but 0
    log: SummaryWriter | None  # the same
    traffic: "Traffic"
    epochs_done: int = 0
    best_top1: float = 0.0  # validation, %
    best_top5: float = 0.0
    seconds: float = 0.0  # of training and validation, those before --resume included


def train_one_epoch(run, epoch):
    """Trains the steps of run.data.order; returns the epoch's log entries."""
    args, order = run.args, run.data.order
    order.epoch = epoch
    peak = peak_learning_rate(args, run.data)
    run.model.train()
    meter = Meter(f"Epoch: [{epoch}]", run.data.train, run, sum_over_ranks)
    for step, (images, target) in enumerate(meter, order.first):
        lr = learning_rate(args, peak, epoch + (step + 0.5) / order.steps)
        for group in run.optimizer.param_groups:
            group["lr"] = lr
        # Dropout draws from the step alone: a resumed run draws what an uninterrupted one does.
        torch.manual_seed(mix(args.seed, epoch, step, run.place.rank))
        sums = train_step(run.model, run.criterion, run.optimizer, run.scaler, images, target, args)
        at = epoch * order.steps + step
        if at == 0 and run.log and not args.dummy:
            log_images(run, images)
        if shown := meter.update(sums):
            run.traffic.sample(run.log, at + 1, after_seconds=5)  # or days would log millions
            if run.log:
                run.log.add_scalar("Loss/step", shown[0], at)
    average_buffers(run.model, run.place)
    entries = meter.close("train")
    return entries | {"Data/wait": meter.waited / meter.seconds, "Lr": lr}


@torch.no_grad()
def average_buffers(model, place):
    """Gives every rank the mean of all ranks' buffers: BatchNorm's running statistics are each
    device's own by design, and what is validated and saved must not depend on the rank."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if buffers:
        exact = exact_dtype(place.device)
        flat = torch.cat([buffer.flatten().to(exact) for buffer in buffers])
        means = (sum_over_ranks(flat) / place.ranks).split([each.numel() for each in buffers])
        for buffer, mean in zip(buffers, means, strict=True):
            buffer.copy_(mean.view_as(buffer))


@torch.no_grad()
def validate(run):
    """Measures the model on every image of val/, once each; returns the epoch's log entries."""
    run.model.eval()
    # Shown are rank 0's own means: the other ranks may have a batch less, and do not wait.
    meter = Meter("Test: ", run.data.val, run, lambda sums: sums)
    for images, target in meter:
        with precision(run.args, run.place.device):
            _, sums = run.criterion(run.model(images), target)
        meter.update(sums)
    entries = meter.close("val")
    if meter.images != run.data.val_size:
        raise RuntimeError(f"validated {meter.images} images of {run.data.val_size}")
    say(run.place, f" * Acc@1 {entries['Top1/val']:.3f} Acc@5 {entries['Top5/val']:.3f}")
    return entries


# ------------------------------------------------------------------------------------ checkpoints


def in_float32(tree):
    """Returns nested dicts with every floating tensor in float32, whatever trained it."""
    if isinstance(tree, dict):
        copied = copy.copy(tree)  # with a state dict's _metadata, without which MNASNet won't load
        copied.update((key, in_float32(value)) for key, value in tree.items())
        return copied
    if isinstance(tree, torch.Tensor) and tree.is_floating_point():
        return tree.float()
    return tree


def save_checkpoint(run, is_best):
    """Writes checkpoint.pt, and model_best.pt too where `is_best`, with pytorch/examples' names.

    Every rank calls it, since gathering the state may take all; rank 0 writes. A file is
    replaced whole or not at all.
    """
    state = {
        "arch": run.args.arch,
        "num_classes": run.data.num_classes,
        "epoch": run.epochs_done,
        "state_dict": in_float32(full_state(run.model, run.optimizer)),
        "optimizer": in_float32(run.optimizer.state_dict()),
        "scaler": run.scaler.state_dict(),
        "best_acc1": run.best_top1,
        "best_acc5": run.best_top5,
        "seconds": run.seconds,
        "args": vars(run.args),
    }
    if run.place.rank == 0:
        for name in ("checkpoint.pt", "model_best.pt") if is_best else ("checkpoint.pt",):
            with open(run.folder / f"{name}.tmp", "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(run.folder / f"{name}.tmp", run.folder / name)


def load_checkpoint(args, data, model):
    """Loads the model's weights; returns what save_checkpoint wrote. Nothing in it is executed."""
    path, wanted = f"--resume {args.resume}", (args.arch, data.num_classes)
    try:
        saved = torch.load(args.resume, map_location="cpu", weights_only=True)
        held = (saved["arch"], saved["num_classes"])
        for name in ("epoch", "optimizer", "scaler", "best_acc1", "best_acc5", "seconds"):
            saved[name]  # or KeyError
        if held == wanted:
            model.load_state_dict(saved["state_dict"])
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file") from None
    except Exception as error:  # a damaged file may set off anything
        why = first_line(error)
        raise BadInput(f"{path}: damaged, or no checkpoint of these scripts ({why})") from None
    if held != wanted:
        both = f"{held[0]} of {held[1]} classes, this run {wanted[0]} of {wanted[1]}"
        raise BadInput(f"{path} holds {both}: choose -a, --num-classes or the data to match")
    return saved


# -------------------------------------------------------------------------------------------- log


class Traffic:
    """Logs what each node reads and sends over time, from the kernel's counters.

    `IO/read_MBps`, 10^6 bytes/s, is what a node's ranks and their loader workers read, and
    `IO/disk_MBps` the part that the page cache did not hold; `IO/read_iops` is read calls/s.
    `Network/{sent,received}_MB_per_step` is all that the node's interfaces carried, loopback too,
    and `expected` what its ranks send in a ring all-reduce of the gradients, 2 (N - 1) / N of their
    bytes each (Patarasuk and Yuan 2009). Tags of further nodes end in /node1, /node2, ...
    """

    def __init__(self, place, gradient_bytes):
        self.place, self.last = place, None
        self.expected = place.local_ranks * gradient_bytes * 2 * (place.ranks - 1) / place.ranks

    def sample(self, log, step, after_seconds=0):
        """Logs the means since the last sample, unless it is newer than that; `step` steps are
        done. All ranks call it."""
        place, now = self.place, time.perf_counter()
        exact = {"dtype": exact_dtype(place.device), "device": place.device}
        counts = torch.zeros(place.ranks, 5, **exact)
        counts[place.rank - place.local_rank] = torch.tensor(count_traffic(place), **exact)
        counts = sum_over_ranks(counts)  # sync point; a row for the first rank of each node
        counts = counts[counts.any(1)].cpu()
        if not self.last:
            self.last = now, step, counts
        before, first_step, counted = self.last
        seconds, steps = now - before, step - first_step
        if not log or not steps or seconds < after_seconds:
            return
        self.last = now, step, counts
        for node, (read, disk, calls, sent, received) in enumerate((counts - counted).tolist()):
            values = {
                "IO/read_MBps": read / seconds / 1e6,
                "IO/disk_MBps": disk / seconds / 1e6,
                "IO/read_iops": calls / seconds,
                "Network/sent_MB_per_step": sent / steps / 1e6,
                "Network/received_MB_per_step": received / steps / 1e6,
                "Network/expected_MB_per_step": self.expected / 1e6,
            }
            for tag, value in values.items():
                if math.isfinite(value):
                    log.add_scalar(f"{tag}/node{node}" if node else tag, value, step)


def count_traffic(place):
    """Returns [bytes read, bytes read from a disk, read calls] so far by this rank and its loader
    workers, and for the first rank of a node [bytes sent, bytes received] by the node.

    NaN stands for what this system does not count.
    """
    names = ("read_chars", "read_bytes", "read_count")
    counts = np.zeros(5)
    # Those of workers that have ended, the kernel has added to this process's.
    for process in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        try:
            read = psutil.Process(process).io_counters()
            counts[:3] += [getattr(read, name, math.nan) for name in names]
        except psutil.NoSuchProcess:
            pass
        except (AttributeError, OSError, NotImplementedError, psutil.Error):
            counts[:3] = math.nan
    if place.local_rank == 0:
        network = psutil.net_io_counters() or (math.nan, math.nan)
        counts[3:] = network[:2]
    return counts.tolist()


def log_images(run, images):
    """Logs a grid of the first images that the model sees, with their normalisation undone."""
    preset = preset_of(run.args.arch)
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (preset.mean, preset.std))
    seen = (images[:16].cpu() * std + mean).clamp(0, 1)
    run.log.add_image("first_batch", torchvision.utils.make_grid(seen, nrow=8))


def say(place, line):
    """Prints a line, once for all ranks."""
    if place.rank == 0:
        print(line, flush=True)


def make_folder(folder):
    """Makes a folder; returns False where there is one already."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise BadInput(f"--log-dir {folder.parent}: {error}") from None
    return True


# What launchers leave in the environment that a repetition needs to know.
LAUNCH = ("OMP_NUM_THREADS", "IMAGENET_DIR", "TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS")
# Charts of several tags in one, under TensorBoard's "custom scalars".
CHARTS = {
    "train and val": {
        tag: ["Multiline", [f"{tag}/train", f"{tag}/val"]]
        for tag in ("Loss", "Top1", "Top5", "Throughput", "Time")
    },
    "traffic": {
        "reads, MB/s": ["Multiline", ["IO/read_MBps", "IO/disk_MBps"]],
        "network, MB per step": ["Multiline", ["Network/.*_MB_per_step"]],
    },
}


def open_log(args, place, data, gradient_bytes, saved):
    """Returns (folder of this run, its SummaryWriter), made by rank 0; (None, None) elsewhere,
    and under --evaluate.

    A run that goes on from checkpoint.pt of a run in --log-dir goes on in that run's folder, if
    the folder's name still says the truth.
    """
    if place.rank != 0 or args.evaluate:
        return None, None
    runs, before = Path(args.log_dir), Path(args.resume or "").resolve()
    what = f"{args.arch}_gpux{place.ranks * place.devices}_b{args.batch_size}_cpu{data.workers}"
    what += f"_opt{args.precision}"
    name = f"{time.strftime('%b%d_%H-%M-%S')}_{platform.node()}_{what}"
    folder, serial = runs / name, 1
    known = before.name == "checkpoint.pt" and before.parent.parent == runs.resolve()
    if known and f"_{what}" in before.parent.name:
        folder = before.parent
    else:
        while not make_folder(folder):  # another run started in the same second
            folder, serial = runs / f"{name}_{serial + 1}", serial + 1
    log = SummaryWriter(folder)
    here, commit = Path(__file__).resolve(), ""
    git = ["git", "-C", here.parent, "describe", "--always", "--dirty", "--abbrev=40"]
    with contextlib.suppress(OSError):  # no git
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    about = {
        "command": [Path(sys.executable).name, *sys.argv],
        "resumed": {name: saved[name] for name in ("epoch", "seconds")} if saved else None,
        "options": vars(args),
        "data": data.source,
        "global_batch": data.global_batch,
        "steps_per_epoch": len(data.train),
        "num_classes": data.num_classes,
        "image_size": data.image_size,
        "gradient_bytes": gradient_bytes,
        "place": {**place._asdict(), "device": str(place.device)},
        "device": device_name(place.device),
        "node": platform.node(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "environment": {name: os.environ[name] for name in LAUNCH if name in os.environ},
        "system": platform.platform(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        **{each.__name__: each.__version__ for each in (torch, torchvision, np, PIL)},
        "commit": commit,
    }
    log.add_text("about", f"```json\n{json.dumps(about, indent=1)}\n```")
    log.add_text("script", f"```python\n{here.read_text()}\n```")
    log.add_custom_scalars(CHARTS)
    return folder, log


def device_name(device):
    """Returns the model of the GPU, or of the processor."""
    if device.type != "cpu":
        return getattr(torch.get_device_module(device), "get_device_name", str)(device)
    cpuinfo = Path("/proc/cpuinfo")
    found = cpuinfo.exists() and re.search(r"model name\s*: (.*)", cpuinfo.read_text())
    return found[1] if found else platform.processor() or platform.machine()


# ------------------------------------------------------------------------------------------- main


def set_up(args, place):
    """Returns the Run, ready to train: every rank with the same weights and state."""
    if place.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cores_per_rank(place))  # or the ranks of a node fight for the cores
    torch.backends.cudnn.benchmark = not args.deterministic
    if args.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if args.sync_bn and place.device.type == "cpu":
        raise BadInput("--sync-bn: BatchNorm can be synchronised on GPUs only")
    data = load_data(args, place)
    torch.manual_seed(args.seed)
    model = build_model(args, data)
    saved = load_checkpoint(args, data, model) if args.resume else None
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = model.to(place.device, memory_format=layout)
    options = {"lr": args.lr, "momentum": args.momentum, "weight_decay": args.wd, "fused": True}
    build_optimizer = functools.partial(torch.optim.SGD, **options)
    model, optimizer, scaler = prepare(model, build_optimizer, args, place)
    gradient_bytes = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    folder, log = open_log(args, place, data, gradient_bytes, saved)
    traffic, criterion = Traffic(place, gradient_bytes), build_criterion(args)
    run = Run(args, place, data, model, criterion, optimizer, scaler, folder, log, traffic)
    if saved:
        # The moments come from the file, the learning rate and its kin from the command line.
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict(saved["optimizer"] | {"param_groups": groups})
        if "scale" in saved["scaler"]:  # a dynamic loss scale
            scaler.load_state_dict(saved["scaler"])
        run.epochs_done, run.seconds = saved["epoch"], saved["seconds"]
        run.best_top1, run.best_top5 = saved["best_acc1"], saved["best_acc5"]
    if args.momentum:
        fill_momentum(optimizer)
    if args.start_epoch is not None:
        run.epochs_done = args.start_epoch
    devices = place.ranks * place.devices
    rate = f"--base-lr {args.base_lr}" if args.base_lr else f"--lr {args.lr} {args.lr_scaling}"
    say(
        place,
        f"{args.arch} ({args.precision}) on {devices} x {device_name(place.device)}: -b "
        f"{args.batch_size} x {devices} devices x {args.accumulation} parts = global batch "
        f"{data.global_batch}; {rate} -> peak learning rate {peak_learning_rate(args, data):g}"
        + (f"\nLogs and checkpoints: {folder}" if folder else ""),
    )
    return run


def fill_momentum(optimizer):
    """Gives every weight a momentum in its own layout, zero where none was loaded.

    PyTorch's fused SGD walks weight and momentum as flat memory, whatever their layouts; and where
    float16 overflows in the very first step, it leaves new momentum uninitialised.
    """
    for weight in (each for group in optimizer.param_groups for each in group["params"]):
        state = optimizer.state[weight]
        momentum = torch.zeros_like(weight)
        if state.get("momentum_buffer") is not None:
            momentum.copy_(state["momentum_buffer"])
        state["momentum_buffer"] = momentum


def fit(run):
    """Trains until --epochs or --desired-acc, saving and logging after every epoch."""
    args, place = run.args, run.place
    reason = f"all {args.epochs} epochs are done"
    run.traffic.sample(run.log, run.epochs_done * run.data.order.steps)
    for epoch in range(run.epochs_done, args.epochs):
        started = time.perf_counter()
        entries = train_one_epoch(run, epoch) | validate(run)
        run.epochs_done = epoch + 1
        run.seconds += time.perf_counter() - started
        is_best = entries["Top1/val"] >= run.best_top1
        run.best_top1 = max(run.best_top1, entries["Top1/val"])
        run.best_top5 = max(run.best_top5, entries["Top5/val"])
        save_checkpoint(run, is_best)
        run.traffic.sample(run.log, run.epochs_done * run.data.order.steps)
        if place.rank == 0:
            for tag, value in entries.items():
                run.log.add_scalar(tag, value, run.epochs_done)
            run.log.flush()
        # Exact sums are the same on all ranks, so all of them stop together.
        if args.desired_acc and entries["Top1/val"] >= 100 * args.desired_acc:
            reason = f"desired accuracy reached: top-1 {entries['Top1/val']:.3f} %"
            break
    took = datetime.timedelta(seconds=round(run.seconds))
    say(
        place,
        f"{reason}; {run.epochs_done} epochs in {took} (h:m:s); best top-1 {run.best_top1:.3f} %, "
        f"top-5 {run.best_top5:.3f} %\nLogs and checkpoints: {run.folder}",
    )
    if place.rank == 0:
        end = {"reason": reason, "epochs": run.epochs_done, "seconds": run.seconds}
        end |= {"best_top1": run.best_top1, "best_top5": run.best_top5}
        run.log.add_text("end", f"```json\n{json.dumps(end, indent=1)}\n```")
        run.log.close()


def profile(run):
    """Trains up to step --prof, then ten steps under PyTorch's profiler: a trace in the folder."""
    order = run.data.order
    first, end = run.args.prof, run.args.prof + 10
    if first:
        order.end = first
        train_one_epoch(run, 0)
    order.first, order.end = first, end
    with torch.profiler.profile() as profiler:
        train_one_epoch(run, 0)
    if run.place.rank == 0:
        profiler.export_chrome_trace(str(run.folder / "trace.json"))
        print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))
        print(f"Trace of steps {first} to {end - 1}: {run.folder / 'trace.json'}")


def worker(args):
    """One rank of the run, from joining the others to leaving them."""
    try:
        place = join(args)
        run = set_up(args, place)
        if args.evaluate:
            validate(run)
        elif args.prof is not None:
            profile(run)
        else:
            fit(run)
        leave()
    except BadInput as error:
        complain(error)


def complain(error):
    """Ends with status 2 and one line: the last of an error that quotes a worker's traceback."""
    if int(os.environ.get("RANK", 0)):
        time.sleep(5)  # rank 0 speaks for all, if it is slow too; its launcher ends the others
    message = str(error).split("BadInput: ")[-1].strip()
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr, flush=True)
    sys.exit(2)


def main():
    """Reads the options and launches the workers."""
    args = parse_args()
    try:
        launch(worker, args)
    except BadInput as error:
        complain(error)


if __name__ == "__main__":
    main()
