"""What parallel strategies send, need and waste: logs/benchmarks/KIND.json, for RESULTS.md.

    python benchmarks/parallel.py exchange  # also: make study-exchange_cpu; needs root and iproute2
    python benchmarks/parallel.py dtype     # 16-bit gradients: images/s
    python benchmarks/parallel.py memory    # DDP and FSDP2: bytes of a rank
    python benchmarks/parallel.py bubble    # two pipeline stages: idle time
    python benchmarks/parallel.py dtype --accel --image-size 224 --batch 128 256 512 1024

exchange: each rank has a network namespace of its own, so that the kernel's counters are its alone.
"""

import functools
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

import common
import torch
import torch.distributed as dist
import ways
from common import ROOT, count, option
from torchvision import models
from ways import EXCHANGES, STANDALONE, Kind, expected, losses_and_times

from trainparts import errors
from trainparts.images import image_files

DTYPE_BY = "bucket"  # sends its gradients in 16 bits


def options(args, batch):
    """Returns the scripts' options of a cell: a step prints and logs, nothing is decoded ahead."""
    size = ["--image-size", args.image_size, "--val-resize", args.image_size, "-b", batch]
    there = [] if args.accel else ["--no-accel"]
    return [*size, *there, "-j", 0, "-p", 1, "--epochs", 1, "--lr", 0.01, "--seed", 0]


def enough_images(count, folder):
    """Returns a folder with so many training images, of the demo set, again and again."""
    image_files.make_demo_set(folder / "demo")
    common.link_images(folder / "demo", count, folder / "images")
    return folder / "images"


def megabytes_of(arch, **options):
    """Returns the size of a model's weights, and so of its gradients."""
    with torch.device("meta"):
        return sum(each.nbytes for each in models.get_model(arch, **options).parameters()) / 1e6


# -------------------------------------------------------------------------------------- exchange


def exchange(args, scratch):
    """Yields the rows: each way on each number of ranks, for each global batch."""
    args.images = enough_images((args.steps + 2) * max(args.batch), scratch)
    size = megabytes_of(args.arch, num_classes=10)

    def words(kind, batch, ranks, steps):
        """Returns those of a run."""
        script = [ROOT / "imagenet_exchange.py", "-a", args.arch, "--exchange", kind]
        script += [*options(args, batch // ranks), "--steps-per-epoch", steps]
        return [*script, args.images]

    for ranks in args.ranks:
        with ways.hosts(ranks) as names:
            for kind in args.only or (EXCHANGES if ranks > 1 else EXCHANGES[:1]):
                _, few = ways.launch(names, words(kind, args.batch[-1], ranks, 1), scratch)
                for batch in args.batch:
                    script = words(kind, batch, ranks, args.steps + 2)
                    folder, many = ways.launch(names, script, scratch)
                    losses, times = losses_and_times(folder)
                    each = (many - few) / (args.steps + 1)  # without what start and validation send
                    row = {"name": f"{kind}, {ranks} ranks, batch {batch}", "values": times}
                    row |= {"way": kind, "ranks": str(ranks), "batch": str(batch)}
                    row |= {"busiest link, MB/step": float(each.max())}
                    row |= {"by formula, MB/step": expected(kind, ranks, size)}
                    row |= {"all ranks sent, MB/step": float(each[:, 0].sum())}
                    row["first losses"] = " ".join(f"{loss:.6f}" for loss in losses[:5])
                    yield row


# ----------------------------------------------------------------------------------------- dtype


def dtype(args, scratch):
    """Yields the rows: images/s of the steps after the first, which starts kernels."""
    images = enough_images((args.steps + 2) * max(args.batch) * max(args.ranks), scratch)
    cells = itertools.product(args.archs, args.batch, args.ranks, ("float32", "bfloat16"))
    for arch, batch, ranks, sent in cells:
        name = f"{arch}, batch {batch}, {ranks} ranks, {sent}"
        folder = Path(tempfile.mkdtemp(dir=scratch))
        words = [ROOT / "imagenet_exchange.py", "-a", arch, *options(args, batch)]
        words += ["--exchange", DTYPE_BY, "--exchange-dtype", sent]
        words += ["--steps-per-epoch", args.steps + 2, "--output-dir", folder, images]
        try:
            ways.run(name, scratch, *STANDALONE, f"--nproc_per_node={ranks}", *words)
        except errors.BadInput as error:  # such as for want of memory
            print(error, file=sys.stderr)
            continue
        losses, times = losses_and_times(folder)
        values = [1000 * batch * ranks / each for each in times]
        yield {"name": name, "values": values, "loss of the last step": losses[-1]}


# ---------------------------------------------------------------------------------------- memory


def held(module, run):
    """Returns the MB of weights, gradients and optimizer state that this rank holds after two
    steps, of FSDP2's those of its shards."""
    found = []

    def record(*_, **__):
        weights = [each for group in run.optimizer.param_groups for each in group["params"]]
        states = (run.optimizer.state[each].values() for each in weights)
        tensors = [*weights, *(each.grad for each in weights), *itertools.chain(*states)]
        local = [getattr(each, "_local_tensor", each) for each in tensors if each is not None]
        found.append(sum(each.nbytes for each in local) / 1e6)
        for weight in weights:
            weight.grad = None

    run.optimizer.zero_grad = record
    module.train_one_epoch(run)
    return found[-1]


def memory(args, scratch):
    """Yields the rows: the largest of the ranks."""
    for arch, ranks, way in itertools.product(args.archs, args.ranks, ("ddp", "fsdp")):
        words = ["-a", arch, "--dummy", "--num-classes", 1000, *options(args, 2)]
        words += ["--steps-per-epoch", 2]
        found = ways.within(held, f"imagenet_{way}", ranks, words, scratch)
        row = {"name": f"{arch}, {way}, {ranks} ranks", "values": [max(found)]}
        row |= {"way": way, "ranks": str(ranks)}
        shards = ranks if way == "fsdp" else 1
        yield row | {"by formula, MB": 3 * megabytes_of(arch) / shards}


# ---------------------------------------------------------------------------------------- bubble


def idle(module, run):
    """Returns the percentages of each step in which this rank's stage computed nothing."""
    torch.set_num_threads(os.cpu_count())  # as in logs/: a stage may compute on all cores
    busy, found = [0.0], []

    def timed(function):
        def measured(*words, **more):
            started = time.perf_counter()
            result = function(*words, **more)
            busy[0] += time.perf_counter() - started
            return result

        return measured

    schedule = run.model.pipeline.train
    for name in "forward_one_chunk", "backward_one_chunk":
        setattr(schedule._stage, name, timed(getattr(schedule._stage, name)))
    step = schedule.step

    def one(*words, **more):
        dist.barrier()
        busy[0], started = 0.0, time.perf_counter()
        result = step(*words, **more)
        dist.barrier()
        found.append(100 * (1 - busy[0] / (time.perf_counter() - started)))
        return result

    schedule.step = one
    module.train_one_epoch(run)
    return found[2:]


def bubble(args, scratch):
    """Yields the rows: idle time over a step's time, the mean of both stages, step by step."""
    for kind, parts in itertools.product(("gpipe", "1f1b"), (1, 2, 4, 8)):
        if kind == "gpipe" or parts > 1:
            words = ["-a", args.arch, "--dummy", *options(args, args.batch[0])]
            words += ["--schedule", kind, "--microbatches", parts]
            words += ["--steps-per-epoch", args.steps + 2]
            found = ways.within(idle, "imagenet_pipeline", 2, words, scratch)
            values = [sum(pair) / 2 for pair in zip(*found, strict=True)]
            row = {"name": f"{kind}, {parts} micro-batches", "values": values, "way": kind}
            yield row | {"micro-batches": str(parts), "(p - 1)/(m + p - 1), %": 100 / (parts + 1)}


# ------------------------------------------------------------------------------------------ main

KINDS = {
    "exchange": Kind(
        *(exchange, "Exchange of gradients", "ms a step"),
        {"batch": [64, 32, 16], "ranks": [1, 2, 4], "steps": 40},
        lambda a: {"arch": a.arch, "image_size": a.image_size, "data": "demo", "steps": a.steps},
        several=True,
    ),
    "dtype": Kind(
        *(dtype, "Gradients sent in 16 bits", "images/s"),
        {"batch": [16, 32, 64, 128], "ranks": [1, 2], "steps": 9},
        lambda a: (
            {"image_size": a.image_size, "data": "demo", "exchange": DTYPE_BY} | {"steps": a.steps}
        ),
        accel=True,
        several=True,
    ),
    "memory": Kind(
        *(memory, "Training state of a rank", "MB"),
        {"batch": [2], "ranks": [1, 2, 4], "steps": 2},
        accel=True,
        several=True,
    ),
    "bubble": Kind(
        *(bubble, "Idle time of two pipeline stages", "% idle"),
        {"batch": [64], "ranks": [2], "steps": 10},
        lambda a: {"arch": a.arch, "image_size": a.image_size, "batch": a.batch[0]},
    ),
}
OPTIONS = [
    option("-a", "--arch", default="resnet18", help="of exchange and bubble"),
    option("--archs", nargs="+", default=["resnet18", "resnet50"], help="of dtype and memory"),
    option("--image-size", type=count, default=32, help="pixels"),
    option("--only", nargs="+", choices=EXCHANGES, help="ways of exchange"),
]
main = functools.partial(ways.main, __doc__, KINDS, "KIND", OPTIONS)

if __name__ == "__main__":
    main()
