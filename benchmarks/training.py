"""Images/s of training: the scripts, timm's loop, and the plain loop of pytorch/examples.

    python benchmarks/training.py DIR                  # synthetic images, and the JPEGs of DIR
    python benchmarks/training.py -a resnet18 --only timm imagenet_nd.py
    python benchmarks/training.py --overhead           # % that the loop adds to its three lines

Every way trains on this machine's device, on the CPU in a process of its own, in turn with the
others of the same architecture and images: one round of --steps steps each, after one to warm up.
Without DIR the images are synthetic alone. DIR holds train/<class>/*.JPEG; all ways read the same
images of it, drawn at random. Close other programs first: on two cores each of them counts.
"""

import contextlib
import functools
import gc
import importlib
import io
import itertools
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import common
import torch
import torchvision
from torch import nn

from imagenet_nd import BadInput, OneLineParser, Place, cores_per_rank, first_line

try:
    import timm.data
    import timm.optim
    import timm.utils
except ImportError:  # then its rows are left out
    timm = None

PLAIN = "pytorch/examples' loop"
TIMM = "timm's loop, bfloat16, channels_last"
BARE = "forward, backward, step"
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
NOTES = {
    "synthetic images": "Every way trains on one batch in memory, as its own loaders make it: "
    "ours and timm's of bytes, normalised on the device, pytorch/examples' of numbers.",
    "JPEGs": "All read the same files, in page cache, by as many loader processes each.",
}
TIMM_NOTE = "timm's augmentation is as the others have it: a random crop, bilinear, mirrored."
OVERHEAD_NOTE = (
    "What the meters, checks and logs of train_one_epoch(), bfloat16 and channels_last, add to "
    "forward(), cross_entropy(), backward(), step() and zero_grad() on a batch that is ready: the "
    "median of the rounds, and their range, which is the noise. The second row is that part of it "
    "that makes the batch from uint8."
)
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
    """Returns train(): float32, contiguous, Pillow's pipeline, `loss.item()` in every step."""
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

    def train():
        torch.backends.cudnn.benchmark = False  # PyTorch's default, which pytorch/examples leaves
        seconds, waited, losses, top1, top5 = (Average() for _ in range(5))
        model.train()
        before = time.time()
        for step, (images, target) in enumerate(loader):
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
    """Returns an epoch of one and the same synthetic batch: images of this type, target."""
    shape = (args.batch_size, 3, args.image_size, args.image_size)
    images = torch.randint(256, shape, device=device).to(dtype)
    target = torch.randint(CLASSES, (args.batch_size,), device=device)
    return [(images / 128 - 1 if dtype.is_floating_point else images, target)] * args.steps


# -------------------------------------------------------------------------------------- timm's loop


def timm_loop(arch, folder, args, device):
    """Returns train(): what timm's train.py does under `--amp --amp-dtype bfloat16
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

    def train():
        torch.backends.cudnn.benchmark = True  # as timm's train.py does
        losses, seconds, waited = (timm.utils.AverageMeter() for _ in range(3))
        model.train()
        optimizer.zero_grad()
        before = time.time()
        for step, (images, target) in enumerate(loader):
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


@functools.cache
def place_of(name):
    """Returns where a script finds itself; those of DistributedDataParallel share one group."""
    if name == "imagenet_ddp":  # its own join() expects launch() to have named a meeting place
        return place_of("imagenet_ddp_apex")
    module = importlib.import_module(name)
    return module.join(module.parse_args([]))


def set_up(name, options, arch, folder, args, scratch):
    """Returns (a script's module, its Run)."""
    module = importlib.import_module(name)
    words = ["-a", arch, "-b", args.batch_size, "-j", args.workers, "--log-dir", scratch]
    words += ["--steps-per-epoch", args.steps, "--image-size", args.image_size]
    words += ["--warmup-epochs", 0, "--num-classes", CLASSES]
    words += [folder] if folder else ["--dummy"]
    parsed = module.parse_args([*map(str, words), *options])
    return module, module.set_up(parsed, place_of(name))


def shuffle_less(run):
    """Makes the training set no larger than the steps of an epoch: to shuffle a million images'
    numbers takes 10 ms, nothing in an hour's epoch, but much in a round of a second."""
    run.data.order.size = run.data.order.steps * run.data.global_batch


def train_epoch(module, run, epoch):
    """Trains an epoch from its first step on."""
    run.step = 0
    module.train_one_epoch(run, epoch)


def ours(name, options, arch, folder, args, scratch):
    """Returns train(): an epoch of a script."""
    module, run = set_up(name, options, arch, folder, args, scratch)
    shuffle_less(run)
    epochs = itertools.count()

    def train():
        torch.backends.cudnn.benchmark = True  # as set_up() has it, and the plain loop has not
        train_epoch(module, run, next(epochs))

    return train


# ---------------------------------------------------------------------------------------- measuring


def rate(train, args, threads):
    """Returns a function that trains for a round and returns its images/s."""

    def way():
        torch.set_num_threads(threads)  # the same for all, whatever a set-up has chosen
        synchronize()
        started = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            train()
        synchronize()
        return args.steps * args.batch_size / (time.perf_counter() - started)

    return way


def synchronize():
    """Waits for the accelerator, if there is one."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def choose(source, count, folder):
    """Links `count` random training images of `source` into `folder`, as train/ and as val/.

    Where there are fewer, they come again under other names.
    """
    draw, suffixes, images = random.Random(0), torchvision.datasets.folder.IMG_EXTENSIONS, []
    folders = sorted(each for each in (source / "train").glob("*") if each.is_dir())
    draw.shuffle(folders)
    for each in folders:
        images += sorted(path for path in each.iterdir() if path.suffix.lower() in suffixes)
        if len(images) > 10 * count:  # enough to draw from: all of ImageNet takes a while
            break
    if not images:
        raise BadInput(f"{source} has no images in train/<class>/: give a DIR that has")
    draw.shuffle(images)
    for serial, path in enumerate(itertools.islice(itertools.cycle(images), count)):
        link = folder / "train" / path.parent.name / f"{serial}_{path.name}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())
    (folder / "val").symlink_to("train")  # the scripts want one, and nothing reads it


def candidates(arch, folder, args, scratch):
    """Returns {row name: function that returns train()} for an architecture, on JPEGs of folder
    or synthetic images; the plain loop first."""
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    same = (arch, folder, args)
    makers = {PLAIN: lambda: plain(*same, device)}
    for name, both in SCRIPTS.items():
        if name == "imagenet_horovod" and importlib.import_module(name).hvd is None:
            continue  # Horovod is not installed
        for options in both:
            row = " ".join([f"{name}.py", *options])
            makers[row] = lambda name=name, options=options: ours(name, options, *same, scratch)
    if timm:
        makers[TIMM] = lambda: timm_loop(*same, device)
    wanted = args.only or [""]
    return {
        row: make
        for row, make in makers.items()
        if row == PLAIN or any(each in row for each in wanted)
    }


def apart(make, args, threads, ends):
    """Returns rate() of what `make` returns, warm, in a process of its own until the ExitStack
    `ends`: on the CPU the scripts change how a process allocates memory, which would help all."""
    ours, theirs = multiprocessing.Pipe()

    def serve():
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                way = rate(make(), args, threads)
            way()
        except (BadInput, RuntimeError) as error:
            theirs.send(error)
            return
        theirs.send(None)
        while theirs.recv():
            theirs.send(way())

    def end():
        ours.send("")
        process.join()

    def way():
        ours.send("a round")
        return ours.recv()

    process = multiprocessing.get_context("fork").Process(target=serve)
    process.start()
    if error := ours.recv():
        raise error
    ends.callback(end)
    return way


def measure(makers, args, threads):
    """Returns rows: images/s of every round, after one to warm up; or why there are none."""
    ways, failed, ends = {}, {}, contextlib.ExitStack()
    for name, make in makers.items():
        print(f"warming up: {name}", file=sys.stderr, flush=True)
        try:
            if torch.accelerator.is_available():  # which would not survive a fork
                with contextlib.redirect_stdout(io.StringIO()):
                    way = rate(make(), args, threads)
                way()
            else:
                way = apart(make, args, threads, ends)
            ways[name] = way
        except (BadInput, RuntimeError) as error:  # no such build, or no memory
            failed[name] = first_line(error)
    with ends:
        measured = common.interleave(ways, args.rounds)
    rows = [{"name": name, "values": values} for name, values in measured.items()]
    return rows + [{"name": name, "values": [], "not measured": failed[name]} for name in failed]


def measure_overhead(arch, args, scratch, threads):
    """Returns rows: images/s of the bare three lines, of the same on batches as the loop makes
    them from uint8, and of the whole loop, with the % that each adds to the bare lines."""
    module, run = set_up("imagenet_nd", HALF, arch, None, args, scratch)
    shuffle_less(run)
    epochs = itertools.count()

    def made():
        return module.Meter("", run.data.train, run, module.sum_over_ranks)

    ready = next(iter(made()))

    def bare(source):
        run.model.train()
        for images, target in source:
            with module.precision(run.args, run.place.device):
                loss = nn.functional.cross_entropy(run.model(images), target)
            loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()

    trains = {
        BARE: lambda: bare([ready] * args.steps),
        "the same, normalising uint8 images": lambda: bare(made()),
        "imagenet_nd.py: train_one_epoch()": lambda: train_epoch(module, run, next(epochs)),
    }
    ways = {name: rate(train, args, threads) for name, train in trains.items()}
    for way in ways.values():
        way()
    measured = common.interleave(ways, args.rounds)
    rows = []
    for name, values in measured.items():
        # Round by round, since the machine's speed drifts; the range says how noisy it is.
        added = sorted(100 * (b / v - 1) for b, v in zip(measured[BARE], values, strict=True))
        text = f"{statistics.median(added):.2f} ({added[0]:.2f} to {added[-1]:.2f})"
        rows.append({"name": name, "values": values, "added, % (range)": text})
    return rows


# --------------------------------------------------------------------------------------------- main


def main():
    """Measures every architecture on every kind of images, or the overhead."""
    parser = OneLineParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("dir", metavar="DIR", nargs="?", type=Path, help="has train/<class>/*.JPEG (else: none)")
    add("-a", "--arch", nargs="+", default=["resnet18", "resnet50"], help="(resnet18 resnet50)")
    add("-b", "--batch-size", type=int, default=32, help="images per step (%(default)s)")
    add("-j", "--workers", type=int, help="loader processes of each way (else: cores, to 16)")
    add("--image-size", type=int, default=224, help="pixels (%(default)s)")
    add("--steps", type=int, help="per round (50 on a GPU, 4 on the CPU, 10 for --overhead)")
    add("--rounds", type=int, help="(5, and 15 for --overhead)")
    add("--only", nargs="+", metavar="NAME", help="rows with these words, beside the plain loop")
    add("--overhead", action="store_true", help="measure what the loop adds to its three lines")
    file = "(logs/benchmarks/training.json, the architecture and images added to the name)"
    default = common.ROOT / "logs" / "benchmarks" / "training.json"
    add("--out", type=Path, default=default, help=file)
    args = parser.parse_args()
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "IMAGENET_DIR"):
        os.environ.pop(name, None)  # nobody has launched this process
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # or DataParallel would use all GPUs
    threads = torch.get_num_threads()
    args.workers = min(16, cores_per_rank(Place(None))) if args.workers is None else args.workers
    steps = 10 if args.overhead else 50 if torch.accelerator.is_available() else 4
    args.steps = args.steps or steps
    args.rounds = args.rounds or (15 if args.overhead else 5)
    same = f"{args.batch_size} images of {args.image_size} pixels per step"
    rounds = f"{args.rounds} rounds of {args.steps} steps in turn, {threads} threads for each"
    about = common.about("nvidia-nvimgcodec", "timm", "horovod")
    sources = list(NOTES)[: 2 if args.dir and not args.overhead else 1]
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            images = Path(scratch) / "images"
            if args.dir:
                choose(args.dir, args.steps * args.batch_size, images)
            for arch, source in itertools.product(args.arch, sources):
                if args.overhead:
                    what, baseline, note = "overhead", BARE, f"{rounds}. {OVERHEAD_NOTE}"
                    title = f"The scripts' loop around {arch}, {same}"
                    rows = measure_overhead(arch, args, scratch, threads)
                else:
                    what, baseline = source.split()[0].lower(), PLAIN
                    note = f"{rounds}. {NOTES[source]} {TIMM_NOTE}"
                    title = f"Training {arch} on {source}, {same}"
                    makers = candidates(arch, images if source == "JPEGs" else None, args, scratch)
                    rows = measure(makers, args, threads)
                out = args.out.with_name(f"{args.out.stem}_{arch}_{what}.json")
                common.write(out, title, "images/s", rows, baseline, about, note)
                gc.collect()  # the models before those of the next
    except BadInput as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
