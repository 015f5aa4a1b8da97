"""What ways to be parallel send, need and waste: logs/benchmarks/KIND.json, for RESULTS.md.

    python benchmarks/parallel.py exchange  # also: make study-exchange_cpu; takes root and iproute2
    python benchmarks/parallel.py dtype     # 16-bit gradients: images/s
    python benchmarks/parallel.py memory    # DDP and FSDP2: bytes of a rank
    python benchmarks/parallel.py bubble    # two pipeline stages: idle time
    python benchmarks/parallel.py dtype --accel --image-size 224 --batch 128 256 512 1024

exchange: each rank has a network namespace of its own, so that the kernel's counters are its alone.
"""

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import ROOT, BadInput, count, option_parser, write
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torchvision import models

from imagenet_nd import make_demo_set

EXCHANGES = "gather", "all_reduce", "async", "bucket", "ring", "ddp"
DTYPE_BY = "bucket"  # sends its gradients in 16 bits
TORCHRUN = Path(sys.executable).parent / "torchrun"


def options(args, batch):
    """Returns the scripts' options of a cell: a step prints and logs, nothing is decoded ahead."""
    size = ["--image-size", args.image_size, "--val-resize", args.image_size, "-b", batch]
    there = [] if args.accel else ["--no-accel"]
    return [*size, *there, "-j", 0, "-p", 1, "--epochs", 1, "--lr", 0.01, "--seed", 0]


def enough_images(count, folder):
    """Returns a folder with so many training images, of the demo set, again and again."""
    make_demo_set(folder / "demo")
    common.link_images(folder / "demo", count, folder / "images")
    return folder / "images"


def megabytes_of(arch, **options):
    """Returns the size of a model's weights, and so of its gradients."""
    with torch.device("meta"):
        return sum(each.nbytes for each in models.get_model(arch, **options).parameters()) / 1e6


def losses_and_times(folder):
    """Returns the losses of a run's steps, and the ms of those between the first and the last: a
    step is logged when the next one is under way, the last of an epoch at once."""
    (run,) = folder.iterdir()
    reader = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    events = reader.Scalars("Loss/step")
    times = [event.wall_time for event in events]
    taken = [1000 * (b - a) for a, b in itertools.pairwise(times)]
    return [event.value for event in events], taken[:-1]


# -------------------------------------------------------------------------------------- exchange


@contextlib.contextmanager
def hosts(number):
    """Makes so many network namespaces on one switch; yields their names, address 10.77.0.1 on."""
    names = [f"exchange{each}" for each in range(number)]
    bridge = "exchange-switch"
    lines = [f"netns add {bridge}", f"-n {bridge} link add switch type bridge"]
    lines += [f"-n {bridge} link set switch up"]
    for each, name in enumerate(names, 1):
        lines += [f"netns add {name}", f"-n {name} link set lo up"]
        lines += [f"link add eth0 netns {name} type veth peer name port{each} netns {bridge}"]
        lines += [f"-n {bridge} link set port{each} master switch up"]
        lines += [f"-n {name} addr add 10.77.0.{each}/24 dev eth0", f"-n {name} link set eth0 up"]
    try:
        for line in lines:
            done = subprocess.run(["ip", *line.split()], capture_output=True, text=True)
            if done.returncode:
                raise BadInput(f"ip {line}: {done.stderr.strip()}; it takes root and iproute2")
        yield names
    finally:
        for name in (*names, bridge):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def counters(name):
    """Returns the bytes that a namespace's card has sent and received."""
    words = ["ip", "netns", "exec", name, "cat"]
    files = [f"/sys/class/net/eth0/statistics/{way}_bytes" for way in ("tx", "rx")]
    return [int(each) for each in subprocess.check_output([*words, *files]).split()]


def launch(names, script, scratch):
    """Trains by these words on a rank a host; returns (folder of the run's folder, MB sent and
    received by rank)."""
    runs = Path(tempfile.mkdtemp(dir=scratch))
    before, started = [counters(name) for name in names], []
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    for rank, name in enumerate(names):
        where = [f"--nnodes={len(names)}", f"--node_rank={rank}", "--nproc_per_node=1"]
        where += ["--master_addr=10.77.0.1", "--master_port=29577"]
        words = ["ip", "netns", "exec", name, TORCHRUN, *where, *script, "--log-dir", runs]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen([*map(str, words)], cwd=scratch, env=env, **pipes))
    printed = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        what = " ".join(map(str, script[1:]))
        raise BadInput(f"{what} on {len(names)} ranks: {printed[0][-2000:]}")
    after = [counters(name) for name in names]
    return runs, (np.array(after) - np.array(before)) / 1e6


def expected(kind, ranks, megabytes):
    """Returns the MB a step that the busiest card sends: rank 0 scatters to all others; a ring, as
    gloo's all-reduce is one, sends 2 (N - 1) / N of the gradients from every rank."""
    return megabytes * ((ranks - 1) if kind == "gather" else 2 * (ranks - 1) / ranks)


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
        with hosts(ranks) as names:
            for kind in args.only or (EXCHANGES if ranks > 1 else EXCHANGES[:1]):
                _, few = launch(names, words(kind, args.batch[-1], ranks, 1), scratch)
                for batch in args.batch:
                    script = words(kind, batch, ranks, args.steps + 2)
                    runs, many = launch(names, script, scratch)
                    losses, times = losses_and_times(runs)
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
    most = (args.steps + 2) * max(args.batch) * max(args.ranks)
    images, env = enough_images(most, scratch), {**os.environ, "OMP_NUM_THREADS": "1"}
    for arch, batch, ranks in itertools.product(args.archs, args.batch, args.ranks):
        for sent in "float32", "bfloat16":
            runs = Path(tempfile.mkdtemp(dir=scratch))
            words = [TORCHRUN, "--standalone", f"--nproc_per_node={ranks}"]
            words += [ROOT / "imagenet_exchange.py", "-a", arch]
            words += ["--exchange", DTYPE_BY, "--exchange-dtype", sent]
            words += [*options(args, batch), "--steps-per-epoch", args.steps + 2]
            words += ["--log-dir", runs, images]
            done = subprocess.run([*map(str, words)], cwd=scratch, env=env, capture_output=True)
            if done.returncode:  # such as for want of memory
                print(f"{arch}, {batch}, {ranks}, {sent}: {done.stderr[-500:]}", file=sys.stderr)
                continue
            losses, times = losses_and_times(runs)
            row = {"name": f"{arch}, batch {batch}, {ranks} ranks, {sent}"}
            row["values"] = [1000 * batch * ranks / each for each in times]
            yield row | {"loss of the last step": losses[-1]}


# ---------------------------------------------------------------------------------------- memory


def spawn(function, ranks, *more):
    """Runs function(*more) as each of so many ranks; returns what each has returned."""
    with mp.Manager() as manager:
        results, port = manager.dict(), common.free_port()
        mp.spawn(_begin, (ranks, port, function, results, more), nprocs=ranks)
        return [results[rank] for rank in range(ranks)]


def _begin(rank, ranks, port, function, results, more):
    sys.stdout = open(os.devnull, "w")  # it prints every step
    env = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in env.items()}, OMP_NUM_THREADS="1")
    results[rank] = function(*more)
    dist.destroy_process_group()
    os._exit(0)


def _held(script, arch, args, scratch):
    """Returns the MB of weights, gradients and optimizer state that this rank holds after two
    steps, of FSDP2's those of its shards."""
    words = ["-a", arch, "--dummy", "--num-classes", 1000, *options(args, 2), "--log-dir", scratch]
    module, run = common.start(script, [*words, "--steps-per-epoch", 2])
    held = []

    def record(*_, **__):
        weights = [each for group in run.optimizer.param_groups for each in group["params"]]
        states = (run.optimizer.state[each].values() for each in weights)
        tensors = [*weights, *(each.grad for each in weights), *itertools.chain(*states)]
        local = [getattr(each, "_local_tensor", each) for each in tensors if each is not None]
        held.append(sum(each.nbytes for each in local) / 1e6)
        for weight in weights:
            weight.grad = None

    run.optimizer.zero_grad = record
    module.train_one_epoch(run)
    return held[-1]


def memory(args, scratch):
    """Yields the rows: the largest of the ranks."""
    for arch, ranks, script in itertools.product(args.archs, args.ranks, ("ddp", "fsdp")):
        size = megabytes_of(arch)
        found = spawn(_held, ranks, f"imagenet_{script}", arch, args, scratch)
        row = {"name": f"{arch}, {script}, {ranks} ranks", "values": [max(found)]}
        row |= {"way": script, "ranks": str(ranks)}
        yield row | {"by formula, MB": 3 * size / (ranks if script == "fsdp" else 1)}


# ---------------------------------------------------------------------------------------- bubble


def _idle(kind, parts, args, scratch):
    """Returns the percentages of each step in which this rank's stage computed nothing."""
    words = ["-a", args.arch, "--dummy", *options(args, args.batch[0]), "--log-dir", scratch]
    words += ["--schedule", kind, "--microbatches", parts, "--steps-per-epoch", args.steps + 2]
    module, run = common.start("imagenet_pipeline", words)
    busy, idle = [0.0], []

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
        idle.append(100 * (1 - busy[0] / (time.perf_counter() - started)))
        return result

    schedule.step = one
    module.train_one_epoch(run)
    return idle[2:]


def bubble(args, scratch):
    """Yields the rows: idle time over a step's time, the mean of both stages, step by step."""
    for kind, parts in itertools.product(("gpipe", "1f1b"), (1, 2, 4, 8)):
        if kind == "gpipe" or parts > 1:
            found = spawn(_idle, 2, kind, parts, args, scratch)
            values = [sum(pair) / 2 for pair in zip(*found, strict=True)]
            row = {"name": f"{kind}, {parts} micro-batches", "values": values, "way": kind}
            yield row | {"micro-batches": str(parts), "(p - 1)/(m + p - 1), %": 100 / (parts + 1)}


# ------------------------------------------------------------------------------------------ main

KINDS = {  # title, unit, further options' defaults
    "exchange": (
        "Exchange of gradients",
        "ms a step",
        {"batch": [64, 32, 16], "ranks": [1, 2, 4], "steps": 40},
    ),
    "dtype": (
        "Gradients sent in 16 bits",
        "images/s",
        {"batch": [16, 32, 64, 128], "ranks": [1, 2], "steps": 9},
    ),
    "memory": (
        "Training state of a rank",
        "MB",
        {"batch": [2], "ranks": [1, 2, 4], "steps": 2},
    ),
    "bubble": (
        "Idle time of two pipeline stages",
        "% idle",
        {"batch": [64], "ranks": [2], "steps": 10},
    ),
}


def facts_of(args):
    """Returns those of a kind."""
    size, data = {"image_size": args.image_size}, {"data": "demo"}
    return {
        "exchange": {"arch": args.arch, **size, **data, "steps": args.steps},
        "dtype": {**size, **data, "exchange": DTYPE_BY, "steps": args.steps},
        "memory": {},
        "bubble": {"arch": args.arch, **size, "batch": args.batch[0]},
    }[args.kind]


def main():
    """Measures one kind."""
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("kind", choices=KINDS)
    add("-a", "--arch", default="resnet18", help="of exchange and bubble (%(default)s)")
    add("--archs", nargs="+", default=["resnet18", "resnet50"], help="of dtype and memory")
    add("--batch", nargs="+", type=count, help="default: the kind's")
    add("--ranks", nargs="+", type=count, help="default: the kind's")
    add("--steps", type=count, help="that are measured (default: the kind's)")
    add("--image-size", type=count, default=32, help="pixels (%(default)s)")
    add("--accel", action="store_true", help="on GPUs, a rank each")
    add("--only", nargs="+", choices=EXCHANGES, help="ways of exchange")
    add("--out", type=Path, help="(logs/benchmarks/KIND.json)")
    args = parser.parse_args()
    title, unit, defaults = KINDS[args.kind]
    for name, value in defaults.items():
        setattr(args, name, getattr(args, name) or value)
    if args.accel and args.kind in ("exchange", "bubble"):
        parser.error(f"--accel: {args.kind} is measured on the CPU")
    about = common.about()
    out = args.out or ROOT / "logs" / "benchmarks" / f"{args.kind}.json"
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            rows = []
            for row in globals()[args.kind](args, Path(scratch)):
                median = sorted(row["values"])[len(row["values"]) // 2]
                print(f"{row['name']}: {median:,.4g} {unit}", file=sys.stderr, flush=True)
                rows.append(row)
            write(out, title, unit, rows, rows[0]["name"], about, facts_of(args))
    except BadInput as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
