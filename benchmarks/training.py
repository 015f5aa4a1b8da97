"""Images/s of training: the scripts, timm's loop, and the plain loop of pytorch/examples.

    python benchmarks/training.py DIR                  # synthetic images, and the JPEGs of DIR
    python benchmarks/training.py -a resnet18 --only timm imagenet_nd.py

Every way trains on this machine's device, in a process of its own, in turn with the others of the
same architecture and images: rounds of --steps steps each, which begin with a few that are not
counted, since images that were loaded before would cost nothing. Without DIR the images are
synthetic alone. DIR holds train/<class>/*.JPEG; all ways read the same images of it, picked at
random. Close other programs first: on two cores each of them counts.
"""

import contextlib
import functools
import importlib
import io
import itertools
import os
import tempfile
import time
from pathlib import Path

import common
import torch
import torchvision
from common import ONLY, count, option, whole
from torch import nn

from trainparts import devices

try:
    import timm.data
    import timm.optim
    import timm.utils
except ImportError:  # then its rows are left out
    timm = None

PLAIN = "pytorch/examples' loop"
TIMM = "timm's loop, bfloat16, channels_last"
HALF = ["--amp", "bfloat16", "--channels-last"]
SCRIPTS = {
    "imagenet_nd": ([], HALF),
    "imagenet_dp": ([], HALF),
    "imagenet_ddp": ([], HALF),
    "imagenet_ddp_apex": (
        ["--opt-level", "O0"],
        ["--opt-level", "O1", "--half-dtype", "bfloat16", "--channels-last"],
    ),
    "imagenet_horovod": ([], HALF),
}
CLASSES = 1000
SOURCES = "synthetic images", "JPEGs"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as in pytorch/examples


# ----------------------------------------------------------------------------------- the plain loop


class Average:
    """The last value and the mean so far, as pytorch/examples' meters keep them."""

    def __init__(self):
        self.value, self.total, self.count = 0.0, 0.0, 0

    def update(self, value, count=1):
        self.value = value
        self.total += value * count
        self.count += count

    def __str__(self):
        return f"{self.value:6.3f} ({self.total / self.count:6.3f})"


def accuracy(output, target):
    """Returns top-1 and top-5 in %, each a tensor of one element."""
    hits = output.topk(5).indices == target[:, None]
    return [hits[:, :k].sum() * (100 / len(target)) for k in (1, 5)]


def plain(arch, folder, args, device):
    """Returns train(steps): float32, contiguous, Pillow's pipeline, `loss.item()` every step."""
    model = torchvision.models.get_model(arch, num_classes=CLASSES).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    options = {"lr": 0.1 * args.batch_size / 256, "momentum": 0.9, "weight_decay": 1e-4}
    optimizer = torch.optim.SGD(model.parameters(), **options)
    loader = batches(args, device)
    if folder:
        chain = [
            torchvision.transforms.RandomResizedCrop(args.image_size),
            torchvision.transforms.RandomHorizontalFlip(),
            torchvision.transforms.ToTensor(),
            torchvision.transforms.Normalize(MEAN, STD),
        ]
        data = torchvision.datasets.ImageFolder(
            folder / "train", torchvision.transforms.Compose(chain)
        )
        loader = torch.utils.data.DataLoader(
            data, args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=True
        )

    endless = iter(loader)

    def train(steps):
        seconds, waited, losses, top1, top5 = (Average() for _ in range(5))
        model.train()
        before = time.time()
        for step, (images, target) in enumerate(itertools.islice(endless, steps)):
            waited.update(time.time() - before)
            images = images.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            output = model(images)
            loss = criterion(output, target)
            first, fifth = accuracy(output, target)
            losses.update(loss.item(), len(images))  # sync point, in every step
            top1.update(first, len(images))
            top5.update(fifth, len(images))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seconds.update(time.time() - before)
            before = time.time()
            if step % 10 == 0:
                print(f"[{step}] {seconds} {waited} {losses} {top1.value:.2f} {top5.value:.2f}")

    return train


def batches(args, device, dtype=torch.float32):
    """Returns one and the same synthetic batch, again and again: images of this type, target."""
    shape = (args.batch_size, 3, args.image_size, args.image_size)
    images = torch.randint(256, shape, device=device).to(dtype)
    target = torch.randint(CLASSES, (args.batch_size,), device=device)
    batch = (images / 128 - 1 if dtype.is_floating_point else images, target)
    return [batch] * needed(args)


# -------------------------------------------------------------------------------------- timm's loop


def timm_loop(arch, folder, args, device):
    """Returns train(steps): what timm's train.py does under `--amp --amp-dtype bfloat16
    --channels-last --color-jitter 0 --smoothing 0 --train-interpolation bilinear`.

    Its own jitter and smoothing are off, since the other loops have none either.
    """
    model = timm.create_model(arch, num_classes=CLASSES)
    model = model.to(device, memory_format=torch.channels_last)
    options = {"lr": 0.1 * args.batch_size / 256, "momentum": 0.9, "weight_decay": 1e-4}
    optimizer = timm.optim.create_optimizer_v2(model, opt="sgd", **options)
    criterion = nn.CrossEntropyLoss().to(device)
    loader = timm.data.loader.PrefetchLoader(batches(args, device, torch.uint8), device=device)
    if folder:
        loader = timm.data.create_loader(
            timm.data.create_dataset("", root=folder, split="train", is_training=True),
            input_size=(3, args.image_size, args.image_size),
            batch_size=args.batch_size,
            is_training=True,
            color_jitter=0.0,
            num_workers=args.workers,
            device=device,
            use_prefetcher=True,
        )

    torch.backends.cudnn.benchmark = True  # as timm's train.py does
    endless = iter(loader)

    def train(steps):
        losses, seconds, waited = (timm.utils.AverageMeter() for _ in range(3))
        model.train()
        optimizer.zero_grad()
        before = time.time()
        for step, (images, target) in enumerate(itertools.islice(endless, steps)):
            waited.update(time.time() - before)
            images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16):
                loss = criterion(model(images), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.update(loss.item(), len(images))  # sync point, on one device in every step
            seconds.update(time.time() - before)
            before = time.time()
            if step % 50 == 0:
                print(
                    f"[{step}] Loss {losses.avg:.3g} Time {seconds.avg:.3f} Data {waited.avg:.3f}"
                )

    return train


# --------------------------------------------------------------------------------------------- ours


def ours(name, options, arch, folder, args, scratch):
    """Returns train(steps) of a script."""
    words = ["-a", arch, "-b", args.batch_size, "-j", args.workers]
    words += ["--output-dir", tempfile.mkdtemp(dir=scratch)]
    words += ["--image-size", args.image_size, "--num-classes", CLASSES, "--warmup-epochs", 0]
    script, run = common.start(name, [*words, *options, *([folder] if folder else ["--dummy"])])
    return functools.partial(common.train_steps, script, run)


# ---------------------------------------------------------------------------------------- measuring


def warm_up(args):
    """Returns the steps of a round that are not counted: on a GPU, all that may be loaded ahead."""
    return 2 * args.workers + 1 if torch.accelerator.is_available() else 1


def needed(args):
    """Returns the steps of all rounds, and of one to warm up."""
    return (args.rounds + 1) * (warm_up(args) + args.steps)


def rate(train, args, threads):
    """Returns a function that trains for a round and returns its images/s."""

    def way():
        torch.set_num_threads(threads)  # the same for all, whatever a set-up has chosen
        with contextlib.redirect_stdout(io.StringIO()):
            train(warm_up(args))
            synchronize()
            started = time.perf_counter()
            train(args.steps)
            synchronize()
        return args.steps * args.batch_size / (time.perf_counter() - started)

    return way


def synchronize():
    """Waits for the accelerator, if there is one."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def rows_of(args):
    """Returns the names of the rows, the plain loop first."""
    rows = [" ".join([f"{name}.py", *each]) for name in SCRIPTS for each in SCRIPTS[name]]
    if importlib.import_module("imagenet_horovod").hvd is None:
        rows = [row for row in rows if "horovod" not in row]
    rows += [TIMM] if timm else []
    return [PLAIN, *(row for row in rows if any(each in row for each in args.only or [""]))]


def make(row, arch, folder, args, scratch, threads):
    """Returns a function that measures a round of a row."""
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if row in (PLAIN, TIMM):
        train = (plain if row == PLAIN else timm_loop)(arch, folder, args, device)
    else:
        script, *options = row.split()
        train = ours(script.removesuffix(".py"), options, arch, folder, args, scratch)
    return rate(train, args, threads)


def measure(args, scratch):
    """Measures every architecture on every kind of images; writes the tables."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "IMAGENET_DIR"):
        os.environ.pop(name, None)  # nobody has launched this process
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # or DataParallel would use all GPUs
    threads = torch.get_num_threads()
    args.workers = min(16, devices.cores_per_rank()) if args.workers is None else args.workers
    args.steps = args.steps or (50 if torch.accelerator.is_available() else 4)
    same = f"{args.batch_size} images of {args.image_size} pixels per step"
    facts = {"rounds": args.rounds, "steps": args.steps, "threads": threads}
    images = scratch / "images"
    if args.dir:
        common.link_images(args.dir, needed(args) * args.batch_size, images)
    sources = SOURCES[: 2 if args.dir else 1]
    for arch, source in itertools.product(args.arch, sources):
        title = f"Training {arch} on {source}, {same}"
        given = arch, images if source == "JPEGs" else None, args, scratch, threads
        makes = {row: (make, row, *given) for row in rows_of(args)}
        rows = common.measure_apart(makes, args.rounds)
        out = args.out.with_name(f"{args.out.stem}_{arch}_{source.split()[0].lower()}.json")
        packages = "nvidia-nvimgcodec", "timm", "horovod"
        common.write(out, title, "images/s", rows, PLAIN, facts, *packages)


OPTIONS = [
    option(
        "dir", metavar="DIR", nargs="?", type=Path, help="has train/<class>/*.JPEG (else: none)"
    ),
    option("-a", "--arch", nargs="+", default=["resnet18", "resnet50"]),
    option("-b", "--batch-size", type=count, default=32, help="images per step"),
    option("-j", "--workers", type=whole, help="loader processes of each way (else: cores, to 16)"),
    option("--image-size", type=count, default=224, help="pixels"),
    option("--steps", type=count, help="per round (50 on a GPU, 4 on the CPU)"),
    option("--rounds", type=count, default=5),
    ONLY,
]
main = functools.partial(
    common.main, __doc__, measure, "training", OPTIONS, "the architecture and images"
)

if __name__ == "__main__":
    main()
