"""What a run pays beside forward, backward and update: logs/benchmarks/overhead_KIND.json.

    python benchmarks/overhead.py loop --examples MAIN.PY  # a step of the loop
    python benchmarks/overhead.py saving                   # checkpoints, beside the disk
    python benchmarks/overhead.py files                    # a list of files, in a loader process

loop: processor time per step of one linear layer at batch 1, on the CPU, that is not spent in
train_step(), or in pytorch/examples' train() not in forward, loss, backward and optimizer; in
processes of their own, in turn. MAIN.PY is imagenet/main.py of a clone of
https://github.com/pytorch/examples, whose train() is called as it is; the log has the file's blob.
saving: wall time, in turn with write() and fsync() of as many bytes to the same disk.
files: the memory that a forked process no longer shares once it has read a list from end to end.
"""

import contextlib
import faulthandler
import functools
import hashlib
import importlib.util
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import types
from pathlib import Path

import common
import numpy as np
import psutil
import torch
from common import count, option
from torch import nn
from torchvision import datasets

import imagenet_nd as nd
from trainparts import errors, progress_meter
from trainparts.images import image_files

EXAMPLES, OURS = "pytorch/examples", "imagenet_nd.py"
SIZE, CLASSES = 8, 1000  # pixels and outputs of the linear layer


# -------------------------------------------------------------------------------------------- loop


class Clock:
    """Sums the processor time of what it has wrapped, s."""

    def __init__(self):
        self.inside = 0.0

    def wrap(self, function):
        """Returns a function whose calls are counted."""

        @functools.wraps(function)
        def timed(*args, **options):
            started = time.process_time()
            try:
                return function(*args, **options)
            finally:
                self.inside += time.process_time() - started

        return timed

    def measure(self, work, steps):
        """Returns the processor time of work(steps), µs a step: (outside what is wrapped, all)."""
        self.inside, started = 0.0, time.process_time()
        work(steps)
        total = time.process_time() - started
        return 1e6 * (total - self.inside) / steps, 1e6 * total / steps


def linear():
    """Returns the model."""
    torch.set_num_threads(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, CLASSES))


def theirs(path, steps):
    """Returns a function that measures a round of pytorch/examples' train()."""
    spec = importlib.util.spec_from_file_location("main_of_pytorch_examples", path)
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    model, clock, device = linear(), Clock(), torch.device("cpu")
    options = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-4}
    optimizer = torch.optim.SGD(model.parameters(), **options)
    batch = torch.randn(1, 3, SIZE, SIZE), torch.zeros(1, dtype=torch.int64)
    args = types.SimpleNamespace(print_freq=10, no_accel=True)  # print_freq: its default
    model.forward = clock.wrap(model.forward)
    optimizer.step, optimizer.zero_grad = (
        clock.wrap(optimizer.step),
        clock.wrap(optimizer.zero_grad),
    )
    criterion = clock.wrap(nn.CrossEntropyLoss())
    torch.Tensor.backward = clock.wrap(torch.Tensor.backward)  # in this process alone

    def work(steps):
        main.train([batch] * steps, model, criterion, optimizer, 0, device, args)

    work(steps)
    return lambda: clock.measure(work, steps)


def ours(scratch, steps):
    """Returns a function that measures a round of the scripts' loop."""
    clock, pixels = Clock(), ["--image-size", SIZE, "--val-size", SIZE, "--val-resize", SIZE]
    words = [*pixels, "--dummy", "-b", 1, "-p", 10, "--no-accel", "--output-dir", scratch / "loop"]
    nd.build_model = lambda args, data, load=True: linear()  # in this process alone
    nd.train_step = clock.wrap(nd.train_step)
    run = common.find_bottleneck.start(nd, [*words, "--epochs", 1000])
    run.args.timeout = nd.parse_args([]).timeout  # as users have it
    work = functools.partial(common.train_steps, nd, run)
    work(steps)

    def measure():
        found = clock.measure(work, steps)
        faulthandler.cancel_dump_traceback_later()  # or the run would end while the other trains
        return found

    return measure


def loop(args, scratch):
    """Returns (rows, facts)."""
    if not args.examples:
        raise errors.BadInput("loop takes --examples MAIN.PY, imagenet/main.py of pytorch/examples")
    content = args.examples.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # as git counts it
    makes = {EXAMPLES: (theirs, args.examples, args.steps), OURS: (ours, scratch, args.steps)}
    rows = common.measure_apart(makes, args.rounds)
    for row in rows:
        row["all of a step, µs"] = float(np.median([each[1] for each in row["values"]] or [0]))
        row["values"] = [each[0] for each in row["values"]]
    return rows, {"steps": args.steps, "batch": 1, "examples": blob}


# ------------------------------------------------------------------------------------------ saving


def saving(args, scratch):
    """Returns (rows, facts)."""
    rows = []
    for arch in args.archs:
        folder = tempfile.mkdtemp(dir=args.disk or scratch)
        words = ["-a", arch, "--dummy", "-b", "1", "--no-accel", "--timeout", "0"]
        run = nd.build_run(nd.parse_args([*words, "--output-dir", f"{folder}/{arch}"]))
        nd.make_optimizer_state(run.optimizer)
        run.meter = progress_meter.Meter("", 1, nd.ITEMS, 0, run.place.device)
        nd.save_checkpoint(run)
        content = (run.folder / "checkpoint.pt").read_bytes()
        ways = {
            "write() and fsync()": lambda content=content, run=run: put(content, run.folder / "as"),
            "save_checkpoint()": functools.partial(nd.save_checkpoint, run),
            "save_best()": functools.partial(nd.save_best, run),
        }
        taken = {name: functools.partial(wall_and_processor, way) for name, way in ways.items()}
        for name, values in common.interleave(taken, args.rounds).items():
            row = {"name": f"{arch}, {name}", "values": [each[0] for each in values]}
            row["processor time, ms"] = float(np.median([each[1] for each in values]))
            rows.append(row | {"MB": len(content) / 1e6})
        run.log.close()
        shutil.rmtree(folder)
    return rows, {}


def put(content, path):
    """Writes bytes to the disk, to a new file."""
    path.unlink(missing_ok=True)
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def wall_and_processor(work):
    """Returns the ms that work() takes, by the clock and of the processor."""
    os.sync()  # nothing of the one before is left to be written
    before = time.perf_counter(), time.process_time()
    work()
    after = time.perf_counter(), time.process_time()
    return tuple(1e3 * (end - start) for start, end in zip(before, after, strict=True))


# ------------------------------------------------------------------------------------------- files


def files(args, scratch):
    """Returns (rows, facts)."""
    for serial in range(args.files):
        folder = scratch / "train" / f"{serial % args.classes:04}"
        if serial < args.classes:
            folder.mkdir(parents=True)
        (folder / f"{serial:09}.JPEG").touch()  # an ImageFolder goes by names
    source = image_files.open_source(scratch / "train")
    theirs = datasets.ImageFolder(scratch / "train")
    lists = {
        "torchvision's ImageFolder": lambda index: theirs.samples[index],
        "this project": lambda index: (source.path(index), int(source.target[index])),
    }
    ways = {
        name: functools.partial(no_longer_shared, get, args.files) for name, get in lists.items()
    }
    found = common.interleave(ways, args.rounds)
    rows = [{"name": name, "values": values} for name, values in found.items()]
    return rows, {"files": args.files, "classes": args.classes}


def no_longer_shared(get, number):
    """Returns the MB that a forked process has for itself after get() of all, not before."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def work():
        before = psutil.Process().memory_full_info().uss
        for index in range(number):
            get(index)
        there.send((psutil.Process().memory_full_info().uss - before) / 1e6)

    process = context.Process(target=work)
    process.start()
    process.join()
    return here.recv()


# What measures each kind, its title and unit.
KINDS = {
    "loop": (loop, "A step outside forward, backward and update", "µs"),
    "saving": (saving, "Saving a checkpoint", "ms"),
    "files": (files, "What a loader process copies of a list of files", "MB"),
}


def measure(args, scratch):
    """Measures one kind, writes the table."""
    work, title, unit = KINDS[args.kind]
    with contextlib.redirect_stdout(sys.stderr):  # the scripts' own lines
        rows, facts = work(args, scratch)
    out = args.out.with_name(args.out.name.replace("KIND", args.kind))
    common.write(out, title, unit, rows, rows[0]["name"], facts)


OPTIONS = [
    option("kind", choices=KINDS),
    option("--rounds", type=count, default=5),
    option("--examples", type=Path, metavar="MAIN.PY", help="loop: pytorch/examples' program"),
    option("--steps", type=count, default=1000, help="loop: in a round"),
    option("--archs", nargs="+", default=["resnet50", "vit_b_16"], help="saving: models"),
    option("--disk", type=Path, metavar="FOLDER", help="saving: where (default: temporary files)"),
    option("--files", type=count, default=300_000, help="files: in all"),
    option("--classes", type=count, default=1000, help="files: folders"),
]
main = functools.partial(common.main, __doc__, measure, "overhead_KIND", OPTIONS)

if __name__ == "__main__":
    main()
