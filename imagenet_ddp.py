"""Train an ImageNet classifier with DistributedDataParallel, one process per GPU.

Choose this script for several GPUs, on one node or many. It starts its own processes, or runs
under torchrun, torch.distributed.launch or Slurm's srun. `diff imagenet_nd.py imagenet_ddp.py`
shows what distribution adds, and nothing else. DIR holds train/<class>/*.JPEG and val/<class>/*.

    python imagenet_ddp.py -a resnet50 DIR                      # all GPUs of this machine
    python imagenet_ddp.py --nproc-per-node 2 --no-accel -b 32  # two CPU processes, the demo set
    python imagenet_ddp.py -a resnet50 --dist-url 'tcp://MASTER_IP:MASTER_PORT' \\
        --dist-backend nccl --world-size 4 --rank 0 --desired-acc 0.75 DIR  # node 0 of 4 nodes
    torchrun --nproc_per_node=4 imagenet_ddp.py -a resnet50 --amp bfloat16 DIR
    srun --nodes 2 --ntasks-per-node 4 python imagenet_ddp.py -a resnet50 DIR
"""

import argparse
import concurrent.futures
import contextlib
import copy
import ctypes
import dataclasses
import datetime
import difflib
import functools
import hashlib
import io
import itertools
import json
import logging
import math
import multiprocessing.util
import os
import platform
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL.Image
import PIL.ImageDraw
import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torchvision
from filelock import FileLock
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter
from torchvision import models
from tqdm import tqdm

# ------------------------------------------------------------------------------- parallel section


def add_parallel_options(parser):
    """How the processes find each other, and the precision."""
    add = parser.add_argument_group("distribution").add_argument
    add("--dist-url", help="tcp://HOST:PORT of node 0, the same on all nodes (else: this machine)")
    backends = ["nccl", "gloo", "xccl", "ucc", "mpi"]
    add("--dist-backend", choices=backends, help="else: the device's own")
    add("--world-size", type=int, help="number of nodes (else: 1)")
    add("--rank", type=int, help="number of this node, counted from 0")
    add("--nproc-per-node", type=int, help="processes on this node (else: its GPUs; 1 on the CPU)")
    add("--multiprocessing-distributed", action="store_true", help="as it is in any case")
    add("--local-rank", "--local_rank", type=int, help="of old launchers; $LOCAL_RANK goes first")
    add = parser.add_argument_group("precision").add_argument
    types, say = ["float16", "bfloat16"], "type of the forward pass; float16 scales the loss"
    add("--amp", dest="precision", choices=types, default="float32", help=say)


def launch(worker, args):
    """However the processes are started, five environment variables tell each its place."""
    env, by_hand = os.environ, args.world_size or args.rank or args.nproc_per_node
    tasks = env.get("SLURM_STEP_NUM_TASKS")  # srun's; a batch script knows the job's number alone
    if not tasks and env.get("ENVIRONMENT") != "BATCH":
        tasks = env.get("SLURM_NTASKS")
    if {"RANK", "WORLD_SIZE"} <= env.keys():
        if by_hand or args.dist_url not in (None, "env://"):
            raise BadInput("a launcher has set WORLD_SIZE: leave out --dist-url, --world-size, ...")
        if args.local_rank is not None:
            env.setdefault("LOCAL_RANK", str(args.local_rank))
        if "TORCHELASTIC_RUN_ID" in env:
            end_with_parent(signal.SIGTERM)  # torchrun, killed, would leave its processes behind
        worker(args)
    elif int(tasks or 1) > 1 and "SLURM_PROCID" in env and not by_hand:
        _follow_slurm(env, tasks)
        worker(args)
    else:
        _start_this_node(worker, args)


def _follow_slurm(env, tasks):
    """srun started one task per rank: its variables, under torchrun's names."""
    nodes = env.get("SLURM_STEP_NODELIST", env.get("SLURM_JOB_NODELIST", "127.0.0.1"))
    first = re.sub(r"\[(\d+).*", r"\1", nodes.split(",")[0])  # gpu[07-09,12] -> gpu07
    local = env.get("SLURM_STEP_TASKS_PER_NODE", env.get("SLURM_TASKS_PER_NODE", "1"))
    env.setdefault("MASTER_ADDR", first)
    env.setdefault("MASTER_PORT", str(20000 + int(env.get("SLURM_JOB_ID", 0)) % 10000))
    env["RANK"], env["WORLD_SIZE"] = env["SLURM_PROCID"], tasks
    env["LOCAL_RANK"] = env.get("SLURM_LOCALID", "0")
    env["LOCAL_WORLD_SIZE"] = re.match(r"\d+", local).group()  # 4(x2) -> 4
    if "SLURM_GPUS_PER_TASK" in env and torch.accelerator.device_count() == 1:
        env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"] = "0", "1"  # this task sees its own GPU alone


def _start_this_node(worker, args):
    """Starts the processes of this node; ends with the status of the first that fails."""
    nodes, node = 1 if args.world_size is None else args.world_size, args.rank or 0
    devices = 0 if args.no_accel else torch.accelerator.device_count()
    processes = args.nproc_per_node
    if processes is None:
        processes = 1 if args.gpu is not None else devices or 1
    if not 0 <= node < nodes:
        raise BadInput(f"--rank {node} is not below the {nodes} nodes of --world-size")
    if processes < 1 or processes > (devices or processes):
        wanted = f"1 to {devices}, its GPUs, or any with --no-accel" if devices else "1 or more"
        raise BadInput(f"--nproc-per-node {processes}: this node takes {wanted}")
    if args.dist_url is None and nodes > 1:
        raise BadInput("--world-size counts nodes: give all of them node 0's --dist-url")
    url = args.dist_url or "tcp://127.0.0.1:0"
    found = re.fullmatch(r"tcp://(?:\[(.+)\]|([^:/]+)):(\d+)/?", url)
    if not found:
        raise BadInput(f"--dist-url {url} is not of the form tcp://HOST:PORT")
    host, port = found[1] or found[2], found[3]
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:  # else every rank would ask again for five minutes
        raise BadInput(f"--dist-url {url}: {error}") from None
    with socket.socket() as free:  # port 0: one that is free
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1] if port == "0" else port
    env = {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    env |= {"WORLD_SIZE": str(nodes * processes), "LOCAL_WORLD_SIZE": str(processes)}
    # When a rank fails, it says why and the others are ended: nothing more to warn of.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    try:
        for each in SIGNALS:
            signal.signal(each, _end_ranks)
        rank_args = (node * processes, env, mp.get_start_method(), worker, args)
        mp.spawn(_rank, rank_args, processes)
    except mp.ProcessExitedException as error:  # the process has said why
        sys.exit(error.exit_code if error.exit_code > 0 else 128 - error.exit_code)


def _end_ranks(signum, frame):
    """Has the ranks save and end, or end at once after a second Ctrl-C."""
    for process in mp.active_children():
        os.kill(process.pid, signum)


def _rank(local_rank, first_rank, env, start_method, worker, args):
    end_with_parent(signal.SIGTERM)
    # Or loader workers would be spawned as this process was, and import everything once more.
    mp.set_start_method(start_method, force=True)
    os.environ.update(env, LOCAL_RANK=str(local_rank), RANK=str(first_rank + local_rank))
    worker(args)


def join(args):
    """Meets the other ranks and forms the group that exchanges gradients and sums."""
    env = os.environ
    rank, ranks = int(env["RANK"]), int(env["WORLD_SIZE"])
    local_rank, local_ranks = int(env.get("LOCAL_RANK", 0)), int(env.get("LOCAL_WORLD_SIZE", 1))
    device = pick_device(args, local_rank, local_ranks)
    backend = args.dist_backend or dist.get_default_backend_for_device(device)
    if backend == "nccl" and device.type != "cuda":
        raise BadInput("--dist-backend nccl needs NVIDIA or AMD GPUs; gloo runs on the CPU")
    # Watch ends a run that hangs, and says why; the group's own time-out comes after it.
    wait = datetime.timedelta(seconds=args.timeout + 60 if args.timeout else 10**8)
    try:
        store, board = _meet(rank, ranks, args.timeout)
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=wait)
    except (ValueError, RuntimeError) as error:  # a port in use, a host not found, a time-out
        at = f"{env.get('MASTER_ADDR')} port {env.get('MASTER_PORT')}"
        why = f"cannot meet the others at {at}: {first_line(error)}"
        raise BadInput(f"rank {rank} of {ranks} {why}") from None
    return Place(device, rank, ranks, local_rank, local_ranks, board=board)


def _meet(rank, ranks, timeout):
    """Returns (store, its twin for notices) of the ranks of this start, once they agree on how many
    they are; else all would wait.

    torchrun's store outlives a restart, with the addresses that dead ranks left in it. So every
    start has a number, which rank 0 gives out; it holds once rank 0 repeats the word that each
    other rank has drawn for this start.
    """
    env, wait = os.environ, datetime.timedelta(seconds=max(300, timeout))
    where = env["MASTER_ADDR"], int(env["MASTER_PORT"])
    serve = rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = dist.TCPStore(*where, None, serve, wait, wait_for_workers=False)
    mine, until = f"{ranks} {os.urandom(8).hex()}", time.monotonic() + wait.total_seconds()
    start = f"start {store.add('starts', 1)}" if rank == 0 else ""
    begun = time.monotonic()
    if rank == 0:
        store.set("start", start)
        words = [mine]
        while len(words) < ranks and words[-1].split()[0] == str(ranks):
            words.append(store.get(f"{start}: word of {len(words)}").decode())
        store.set(f"{start}: words", json.dumps(words))
    while True:
        start = start or store.get("start").decode()
        if rank:
            store.set(f"{start}: word of {rank}", mine)
        if store.check([f"{start}: words"]):
            words = json.loads(store.get(f"{start}: words"))
            theirs = {int(word.split()[0]) for word in words} - {ranks}
            # A start that is over may have had other ranks; the right one comes in no time.
            if theirs and (rank == 0 or mine in words or time.monotonic() > begun + 20):
                counts = f"rank {rank} is one of {ranks}, another one of {theirs.pop()}"
                same = "give all nodes the same --world-size and --nproc-per-node"
                raise BadInput(f"{counts}: {same}")
            if mine in words:
                twin = dist.TCPStore(*where, None, False, wait, wait_for_workers=False)
                return dist.PrefixStore(start, store), dist.PrefixStore(f"{start}: board", twin)
        if time.monotonic() > until:
            raise RuntimeError("rank 0 has not started")
        start = time.sleep(0.05)  # another start may be the one


def prepare(model, build_optimizer, args, place):
    """Returns (model, optimizer, scaler); this model's backward() averages over the ranks."""
    if args.sync_bn:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DistributedDataParallel(model)
    model.broadcast_buffers = False  # average_buffers() shares them, once an epoch is enough
    scaler = torch.amp.GradScaler(place.device.type, enabled=args.precision == "float16")
    return model, build_optimizer(model.parameters()), scaler


def precision(args, device):
    """The context of the forward pass and the loss."""
    if args.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, getattr(torch, args.precision))


def train_step(model, criterion, optimizer, scaler, images, target, args):
    """One update from this rank's images of one step, in `--accumulation` equal parts."""
    sums = 0
    parts = args.accumulation
    for part, (x, y) in enumerate(zip(images.chunk(parts), target.chunk(parts), strict=True), 1):
        # The gradients of all parts are exchanged together, during the last backward().
        with contextlib.nullcontext() if part == parts else model.no_sync():
            with precision(args, x.device):
                loss, measured = criterion(model(x), y)
            scaler.scale(loss / parts).backward()
        sums += measured
    scaler.step(optimizer)  # skips on overflow, on all ranks alike: all hold the same gradients
    scaler.update()
    optimizer.zero_grad()
    return sums


def sum_over_ranks(tensor):
    """Returns the sum of all ranks' tensors, the same on every rank."""
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def full_state(model, optimizer):
    """The user's own module as a state dict: without the wrapper, and its `module.` in names."""
    return model.module.state_dict()


def leave():
    """Closes the group."""
    dist.destroy_process_group()


# ---- shared: below this line every imagenet_*.py is the same, to the byte (tools/sync_copies.py)


class Place(NamedTuple):
    """Where this process stands among those that train together."""

    device: torch.device
    rank: int = 0  # of this process, among all
    ranks: int = 1  # processes in all
    local_rank: int = 0  # of this process, among those on this node
    local_ranks: int = 1  # processes on this node
    devices: int = 1  # that this process drives
    board: object = None  # where ranks post notices by set(), get() and check(); None when alone


class BadInput(Exception):
    """The user's mistake, told in one line: what, where, what to do. Ends in exit status 2."""


class BadImage(BadInput):
    """An image (name, why) that cannot be read; some are borne with, see --max-bad-images."""

    def __str__(self):
        return "{} cannot be read as an image ({}): mend or remove it".format(*self.args)


class Fault(Exception):
    """Why training cannot go on, told in one line. Ends in exit status 1."""


class Preempted(Exception):
    """A signal or --max-hours ends the run, and its checkpoint is taken. Ends in status 143."""


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
    share = number(float, "a fraction in [0, 1], as 0.01 for 1 %", lambda value: 0 <= value <= 1)
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
    decoders = "of training JPEGs: by the loader's workers, or by nvJPEG on the GPU (%(default)s)"
    add("--decode", choices=["cpu", "cuda"], default="cpu", help=decoders)
    bad = "fraction of unreadable images that is skipped (%(default)s); 0 = none"
    add("--max-bad-images", type=share, default=0.001, help=bad)
    add("--allow-pipe", **flag, help="DIR may be pipe:COMMAND, which a shell runs")

    add = parser.add_argument_group("model").add_argument
    add("-a", "--arch", default="resnet18", help="any torchvision classifier (%(default)s)")
    add("--pretrained", **flag, help="start from torchvision's weights; the last layer may be new")
    add("--sync-bn", "--sync_bn", **flag, help="BatchNorm statistics over all ranks' batches")
    add("--channels-last", **flag, help="lay tensors out as NHWC")
    add("--compile", **flag, help="by torch.compile, in the first steps")
    modes = ["default", "reduce-overhead", "max-autotune"]
    add("--compile-mode", choices=modes, default="default", help="reduce-overhead: CUDA graphs")

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
    resume = "go on from this checkpoint, or a folder's newest good one; auto: this run's, if any"
    add("--resume", metavar="PATH", help=resume)
    minutes = "checkpoints between those after every epoch (%(default)s); 0 = off"
    add("--checkpoint-minutes", type=zero_on, default=15, help=minutes)
    add("-e", "--evaluate", **flag, help="validate once and end")
    add("--log-dir", default="runs", help="each run makes its folder in this one (%(default)s)")
    add("-p", "--print-freq", type=count, default=10, help="in steps (%(default)s)")
    add("--prof", type=whole, help="profile ten steps from this one on, and end")
    add("--bench", **flag, help="measure loader, model and both, 5 s each or 5 steps, and end")

    add = parser.add_argument_group("interruptions").add_argument
    add("--max-hours", type=positive, help="save and end before this time is over")
    add("--requeue", **flag, help="Slurm starts the job again after SIGUSR1 or --max-hours")
    timeout = "seconds without progress after which the run ends (%(default)s); 0 = off"
    add("--timeout", type=zero_on, default=600, help=timeout)

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
    if args.compile_mode != "default" and not args.compile:
        parser.error(f"--compile-mode {args.compile_mode} needs --compile")
    if args.evaluate + args.bench + (args.prof is not None) > 1:
        parser.error("--evaluate, --prof and --bench exclude one another")
    if args.start_epoch is not None and args.resume == "auto":
        parser.error("--start-epoch and --resume auto exclude each other")
    if args.requeue and "SLURM_JOB_ID" not in os.environ:
        parser.error("--requeue needs a job of Slurm, which sets SLURM_JOB_ID")
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


@functools.cache
def region_decoder():
    """Returns nvImageCodec's (module, decoder on the CPU, parameters), or None without it.

    Of a JPEG it decodes the rows and columns of a crop alone, to the same pixels as libjpeg-turbo
    the whole. Called where images are decoded, so that every loader worker makes its own.
    """
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # what it cannot read, Pillow will tell
    stderr = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # it complains of absent libraries of GPUs
    try:
        import nvidia.nvimgcodec as codec

        on_cpu = {"device_id": codec.NVIMGCODEC_DEVICE_CPU_ONLY, "max_num_cpu_threads": 1}
        backends = [codec.Backend(codec.BackendKind.CPU_ONLY)]
        decoder = codec.Decoder(**on_cpu, backends=backends)
        # EXIF's orientation is left out, as ImageFolder does.
        rgb = codec.ColorSpec.SRGB
        return codec, decoder, codec.DecodeParams(apply_exif_orientation=False, color_spec=rgb)
    except (ImportError, AttributeError, TypeError, RuntimeError):  # absent, or another release
        return None
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def is_whole_jpeg(encoded):
    """Returns whether a file has JPEG's first marker, and its last at its end: who decodes a part
    does not notice that a file is cut off."""
    return encoded[:2] == b"\xff\xd8" and b"\xff\xd9" in encoded[-1024:]


def decode(encoded, name, choose):
    """Returns a part of an image, uint8 (height, width, 3), as Pillow converts it to RGB.

    `encoded` is a file's bytes, or an array of pixels, uint8 (H, W, 3), and choose(H, W) returns
    (top, left, height, width). JPEGs are decoded by nvImageCodec where it is installed, else by
    torchvision; what that does not read as 8-bit RGB, by Pillow.
    """
    image = torch.from_numpy(encoded) if isinstance(encoded, np.ndarray) else None
    if image is None and is_whole_jpeg(encoded) and region_decoder():
        codec, decoder, plain = region_decoder()
        with contextlib.suppress(RuntimeError):
            stream = codec.CodeStream(encoded)
            top, left, height, width = choose(stream.height, stream.width)
            region = codec.Region(top, left, top + height, left + width)
            part = decoder.decode(stream.get_sub_code_stream(region=region), params=plain)
            if part is not None:
                return torch.from_numpy(np.asarray(part))
    if image is None:
        with contextlib.suppress(RuntimeError):
            rgb = torchvision.io.ImageReadMode.RGB
            file = torch.frombuffer(bytearray(encoded or b" "), dtype=torch.uint8)
            planes = torchvision.io.decode_image(file, rgb)
            if planes.dtype == torch.uint8 and planes.ndim == 3:  # not 16 bits, not animated
                image = planes.permute(1, 2, 0)
    if image is None:
        try:
            with PIL.Image.open(io.BytesIO(encoded)) as opened:
                image = torch.from_numpy(np.array(opened.convert("RGB")))
        except Exception as error:  # Pillow's decoders raise what they like
            why = first_line(error).split(" <_io")[0]  # without the address of its bytes
            raise BadImage(name, why) from None
    top, left, height, width = choose(*image.shape[:2])
    return image[top : top + height, left : left + width]


def resize(image, size, mode):
    """Returns uint8 (H, W, 3) in another size (height, width), antialiased as Pillow does."""
    planes = image.permute(2, 0, 1)[None]  # a view, channels last: PyTorch's fast path
    planes = nn.functional.interpolate(planes, size, mode=mode, antialias=True)
    return planes[0].permute(1, 2, 0)


class Crop(NamedTuple):
    """Makes what the model trains on from an image: a random part in one size, often mirrored."""

    size: int  # pixels
    mode: str  # of interpolation

    def box(self, height, width, seed):
        """Returns (top, left, height, width) as torchvision's RandomResizedCrop draws them: 8 to
        100 % of the area, of a shape from 3:4 to 4:3 (Szegedy et al. 2014, section 6).

        Python's own arithmetic takes a tenth of the time of PyTorch's, which is half a resize's.
        """
        rng = random.Random(seed)
        for _ in range(10):
            area = height * width * rng.uniform(0.08, 1)
            ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return rng.randint(0, height - h), rng.randint(0, width - w), h, w
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        return (height - h) // 2, (width - w) // 2, h, w

    def mirrored(self, seed):
        """Returns whether the image is mirrored, as half of them are."""
        return random.Random(f"{seed} mirrored").random() < 0.5

    def __call__(self, encoded, name, seed):
        """Returns uint8 (size, size, 3)."""
        image = decode(encoded, name, functools.partial(self.box, seed=seed))
        image = resize(image, (self.size, self.size), self.mode)
        return image.flip(1) if self.mirrored(seed) else image


class Centre(NamedTuple):
    """Makes what validation sees: the centre of the image, whose shorter side is resized."""

    size: int  # pixels
    mode: str
    shorter: int  # pixels

    def __call__(self, encoded, name, seed):
        """Returns uint8 (size, size, 3)."""
        image = decode(encoded, name, lambda height, width: (0, 0, height, width))
        height, width = (self.shorter * side // min(image.shape[:2]) for side in image.shape[:2])
        image = resize(image, (height, width), self.mode)
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        return image[top : top + self.size, left : left + self.size]


class EncodedCrop(Crop):
    """Draws the crop of a JPEG, and leaves decoding to the GPU: see decode_on_device()."""

    def __call__(self, encoded, name, seed):
        """Returns (file or finished image, uint8 (N,), name, box or None, whether to mirror)."""
        if isinstance(encoded, np.ndarray):  # pixels: there is nothing to decode
            return super().__call__(encoded, name, seed).flatten(), name, None, False
        with contextlib.suppress(Exception):  # whatever it is, decode() will tell
            with PIL.Image.open(io.BytesIO(encoded)) as opened:  # reads the header alone
                if is_whole_jpeg(encoded) and opened.mode in ("RGB", "L"):
                    file = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
                    return file, name, self.box(*opened.size[::-1], seed), self.mirrored(seed)
        return super().__call__(encoded, name, seed).flatten(), name, None, False


def pack(items):
    """Collates Images' items of EncodedCrops: files of any length in one tensor."""
    views, target, seconds, bad = zip(*items, strict=True)
    files, names, boxes, mirrored = zip(*views, strict=True)
    lengths = [len(file) for file in files]
    batch = torch.cat(files), lengths, names, boxes, mirrored
    return batch, torch.tensor(target), torch.tensor(seconds), bad


def decode_on_device(batch, crop, device):
    """Decodes a batch of EncodedCrops by nvJPEG, crops and resizes them there → uint8 (N, size,
    size, 3) on the device. An image that nvJPEG refuses is decoded on the CPU."""
    blob, lengths, names, boxes, mirrored = batch
    files = blob.split(lengths)
    rgb = torchvision.io.ImageReadMode.RGB

    def on_gpu(indices):
        return torchvision.io.decode_jpeg([files[each] for each in indices], rgb, device=device)

    jpegs = [index for index, box in enumerate(boxes) if box]
    try:
        decoded = dict(zip(jpegs, on_gpu(jpegs), strict=True)) if jpegs else {}
    except RuntimeError:  # all fail with one
        decoded = {}
        for index in jpegs:
            with contextlib.suppress(RuntimeError):
                decoded[index] = on_gpu([index])[0]
    images = []
    for index, (file, box, mirror) in enumerate(zip(files, boxes, mirrored, strict=True)):
        if box is None:
            image = file.view(crop.size, crop.size, 3).to(device)
        elif index in decoded:
            top, left, height, width = box
            part = decoded[index][:, top : top + height, left : left + width].permute(1, 2, 0)
            # CUDA resizes no uint8, so rounding is ours.
            image = resize(part.float(), (crop.size, crop.size), crop.mode)
            image = image.round_().clamp_(0, 255).to(torch.uint8)
        else:
            part = decode(file.numpy().tobytes(), names[index], lambda *_, box=box: box)
            image = resize(part, (crop.size, crop.size), crop.mode).to(device)
        images.append(image.flip(1) if mirror else image)
    return torch.stack(images)


# What an index holds: the arrays of list_images().
INDEX = ("classes", "folders", "times", "names", "starts", "places", "targets")
# torchvision's IMG_EXTENSIONS, after ImageNet's own.
SUFFIXES = (b".JPEG", b".jpg", b".jpeg", b".png", b".ppm", b".bmp", b".pgm", b".tif", b".tiff")
SUFFIXES += (b".webp",)


def list_images(folder):
    """Lists the images of train/ or val/ as ImageFolder does: by class, folder within it, name.

    Returns a dict of arrays: classes (C,); all folders (F,) below this one, it included, with the
    times (F,) of their last changes in ns; names, one after another with a zero byte behind each,
    where each starts (N + 1,), the numbers of their folders (N,) and of their classes (N,).
    """
    top = os.fsencode(folder)

    def read(inside):
        path = os.path.join(top, inside)
        changed = os.stat(path).st_mtime_ns  # before reading: a later change will show
        names, folders = [], []
        with os.scandir(path) as entries:
            for entry in entries:
                (folders if entry.is_dir() else names).append(entry.name)
        suffixed = [
            each for each in names if each.endswith(SUFFIXES) or each.lower().endswith(SUFFIXES)
        ]
        return inside, changed, sorted(suffixed), sorted(folders)

    def read_class(name):
        found, inside = [], [name]
        for each in inside:  # grows
            found.append(read(each))
            inside += [os.path.join(each, folder) for folder in found[-1][-1]]
        return sorted(found)

    try:
        root = read(b"")
        classes = root[-1]
        by_class = [read_class(name) for name in classes]
    except OSError as error:
        raise BadInput(f"{folder} cannot be listed: {error.strerror}") from None
    for name, found in zip(classes, by_class, strict=True):
        if not any(names for _, _, names, _ in found):
            raise BadInput(f"{folder}: class {os.fsdecode(name)} has no images")
    if not classes:
        raise BadInput(f"{folder} holds no class: it must hold <class>/<image>.JPEG")
    found = [root, *itertools.chain(*by_class)]
    counts = [0, *(len(names) for _, _, names, _ in found[1:])]  # images beside classes are of none
    of_class = np.repeat(np.arange(len(classes)), [len(each) for each in by_class])
    names = b"".join(b"\0".join([*names, b""]) for _, _, names, _ in found[1:])
    names = np.frombuffer(names, np.uint8)
    return {
        "classes": np.array(classes),
        "folders": np.array([inside for inside, *_ in found]),
        "times": np.array([changed for _, changed, *_ in found]),
        "names": names,
        "starts": np.append(0, np.flatnonzero(names == 0) + 1),
        "places": np.repeat(np.arange(len(found), dtype=np.int32), counts),
        "targets": np.repeat(of_class.astype(np.int32), counts[1:]),
    }


def load_index(index, folder):
    """Returns what list_images() found before, or None where the folder or the index changed."""
    with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        with np.load(index) as file:
            listed = {name: file[name] for name in INDEX}
        top = os.fsencode(folder)
        times = [os.stat(os.path.join(top, each)).st_mtime_ns for each in listed["folders"]]
        if np.array_equal(times, listed["times"]):
            return listed
    return None


def find_images(folder, keep, place):
    """Returns list_images(folder), made once on each node: the first rank to come lists, and leaves
    an index in the folder `keep`, for the others and for the next run."""
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    index, listed = keep / f"{name}.npz", None
    try:
        keep.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{index}.lock"):
            if listed := load_index(index, folder):
                return listed
            if index.exists():
                say(place, f"{folder} has changed since {index} was made: listing it anew")
            now, listed = time.time_ns(), list_images(folder)
            # A change within one tick of the clock after the listing would not show.
            if listed["times"].max() < now - 2e9:
                unfinished = index.with_suffix(f".{platform.node()}.npz")
                np.savez(unfinished, **listed)
                os.replace(unfinished, index)
    except (OSError, NotImplementedError):  # nowhere to keep it, or no locks there
        listed = listed or list_images(folder)
    return listed


class Folder:
    """train/ or val/ with a folder of images for each class.

    What list_images() found is kept in arrays: loader workers share them, where a list's reference
    counts would have every worker copy it in the end.
    """

    def __init__(self, folder, listed):
        self.top, self.targets = os.fsencode(folder), listed["targets"]
        self.names, self.starts = listed["names"], listed["starts"]
        self.folders, self.places = listed["folders"], listed["places"]
        self.classes = [os.fsdecode(name) for name in listed["classes"]]

    def __len__(self):
        return len(self.targets)

    def path(self, index):
        """Returns where an image is."""
        name = self.names[self.starts[index] : self.starts[index + 1] - 1].tobytes()
        return os.fsdecode(os.path.join(self.top, self.folders[self.places[index]], name))

    def read(self, epoch, index):
        """Returns (encoded image, its path, class number, the image's number)."""
        path = self.path(index)
        try:
            with open(path, "rb", buffering=0) as file:  # not memory-mapped: `Traffic` counts it
                return file.read(), path, int(self.targets[index]), index
        except OSError as error:
            raise BadImage(path, first_line(error)) from None

    def next(self, index):
        """Returns the key of the image that stands in for an unreadable one."""
        return (index + 1) % len(self)


class Raw:
    """train.raw or val.raw of tools/make_shards.py --raw: decoded images, in one mapped file."""

    def __init__(self, folder, part, classes):
        with np.load(folder / f"{part}.npz") as index:
            self.offsets, self.shapes, self.targets = (
                index[name] for name in ("offsets", "shapes", "targets")
            )
        self.path, self.classes, self.pixels = folder / f"{part}.raw", classes, None
        if self.path.stat().st_size != self.offsets[-1]:
            raise BadInput(f"{self.path} is not as long as its index says: make it anew")

    def __len__(self):
        return len(self.targets)

    def read(self, epoch, index):
        """Returns (pixels (H, W, 3), where they are, class number, the image's number)."""
        if self.pixels is None:  # mapped where it is read: a map would be sent to workers by value
            self.pixels = np.memmap(self.path, np.uint8, "c")  # c: PyTorch wants it writable
        pixels = self.pixels[self.offsets[index] : self.offsets[index + 1]]
        name = f"{self.path}, image {index},"
        return pixels.reshape(*self.shapes[index], 3), name, int(self.targets[index]), index

    def next(self, index):
        """Returns the key of the image that stands in for an unreadable one."""
        return (index + 1) % len(self)


class Shards:
    """WebDataset shards (tar files), each read from its start to its end.

    The shards of an epoch are in an order from (seed, epoch), and follow one another in a virtual
    sequence of which each loader worker reads a run of its own: see ShardOrder. Training images are
    shuffled in blocks of that run.
    """

    def __init__(self, url, shards, classes, seed, shuffle):
        self.url, self.classes, self.seed = url, classes, seed
        self.names = [shard["name"] for shard in shards]
        self.counts = [shard["images"] for shard in shards]
        self.firsts = np.cumsum([0, *self.counts]).tolist()  # number of each one's first image
        self.shuffle, self.block_size = shuffle, 1000 if shuffle else 1  # as WebDataset's examples
        self.here, self.after, self.stream, self.block = None, None, None, []

    def __len__(self):
        return self.firsts[-1]

    def read(self, epoch, key):
        """Returns (encoded image, its name, class number, the image's number) at an offset of the
        run key = (start, end, offset), which is read in sequence, each shard once."""
        start, end, offset = key
        serial, inside = divmod(offset, self.block_size)
        first = start + serial * self.block_size
        if self.here != (epoch, first):
            if self.after != (epoch, first):  # a new epoch, or a resumed one
                self.stream = self._samples(epoch, first)
            size = min(self.block_size, end - first)
            self.block = list(itertools.islice(self.stream, size))
            if self.shuffle:
                rng = np.random.default_rng((self.seed, epoch, first))
                self.block = [self.block[each] for each in rng.permutation(size)]
            self.here, self.after = (epoch, first), (epoch, first + size)
        return self.block[inside]

    def next(self, key):
        """Returns the key of the image that stands in for an unreadable one, of the same block."""
        start, end, offset = key
        serial, inside = divmod(offset, self.block_size)
        size = min(self.block_size, end - start - serial * self.block_size)
        return start, end, serial * self.block_size + (inside + 1) % size

    def _samples(self, epoch, position):
        """Yields an epoch's images from this position of its sequence on."""
        webdataset, order = open_webdataset(), range(len(self.names))
        if self.shuffle:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self.names))
        for shard in order:
            name, count, first = self.names[shard], self.counts[shard], self.firsts[shard]
            if position >= count:
                position -= count
                continue
            url, serial = self.url(name), -1
            why = f"has not the {count} images that shards.json says"
            stages = webdataset.SimpleShardList([url]), webdataset.tarfile_to_samples()
            try:
                for serial, sample in enumerate(webdataset.DataPipeline(*stages)):
                    (image,) = {key for key in sample if f".{key}".encode() in SUFFIXES}
                    if position <= serial < count:
                        where = f"{url}: {sample['__key__']}.{image}"
                        yield sample[image], where, int(sample["cls"]), first + serial
            except (OSError, ValueError, KeyError, tarfile.TarError) as error:
                # webdataset appends to the arguments what it was reading.
                why = (
                    getattr(error, "strerror", None) or str((*error.args, error)[0]).split(" @ ")[0]
                )
                why = f"cannot be read: {why}"
            if serial + 1 != count:
                raise BadInput(f"{url} {why}")
            position = 0


class Url(NamedTuple):
    """Where the files are that tools/make_shards.py wrote."""

    before: str
    after: str = ""

    def __call__(self, name):
        """Returns the URL or path of a file, such as train/000000.tar."""
        return f"{self.before}{name}{self.after}"


def shard_source(chosen):
    """Returns (Url, pattern of training shards or None) for DIR such as data/shards, s3://bucket/x,
    or 'pipe:curl -sf https://host/train/{000000..001281}.tar'; (None, None) for folders."""
    if pattern := re.fullmatch(r"(.*?)(train/[^/\s]*\.tar)(.*)", chosen):
        return Url(pattern[1], pattern[3]), pattern[2]
    if "://" in chosen or (Path(chosen) / "shards.json").exists():
        return Url(f"{chosen.rstrip('/')}/"), None
    return None, None


def open_webdataset():
    """Returns the webdataset module, having added s3:// by the command `aws`."""
    import webdataset
    from webdataset.gopen import Pipe, gopen_schemes

    def s3(url, mode="rb", bufsize=8192):
        return Pipe(["aws", "s3", "cp", url, "-"], mode=mode, bufsize=bufsize, ignore_status=[141])

    gopen_schemes.setdefault("s3", s3)
    return webdataset


# What JSON and NumPy raise on files that are not what they should be.
DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError)
DAMAGED += (zipfile.BadZipFile,)


def open_shards(url, wanted, seed):
    """Returns the sources of train/ and val/."""
    try:
        webdataset = open_webdataset()
        with webdataset.gopen(url("shards.json")) as file:
            listed = json.load(file)
        if listed.get("raw") and wanted:
            raise BadInput(f"{url('shards.json')} lists no {wanted}: it is of --raw")
        if listed.get("raw"):
            return [Raw(Path(url("")), part, listed["classes"]) for part in ("train", "val")]
        for name in (each["name"] for each in listed["train"] + listed["val"]):
            if not re.fullmatch(r"(train|val)/[\w.-]+", name):  # it may become part of a command
                raise BadInput(f"{url('shards.json')} lists {name!r}, which is no shard's name")
        train = {each["name"]: each for each in listed["train"]}
        if wanted:
            names = webdataset.SimpleShardList(wanted).urls  # the pattern's
            if absent := [name for name in names if name not in train]:
                raise BadInput(f"{url('shards.json')} lists no {absent[0]}")
            train = {name: train[name] for name in names}
        return [
            Shards(url, shards, listed["classes"], seed, shuffle)
            for shards, shuffle in ((list(train.values()), True), (listed["val"], False))
        ]
    except ImportError:
        raise BadInput("shards need the webdataset package: pip install webdataset") from None
    except DAMAGED as error:
        why = f"({first_line(error)}): tools/make_shards.py makes them"
        raise BadInput(f"{url('shards.json')} and what it lists cannot be read {why}") from None


def open_data(args, place):
    """Returns the sources of train/ and val/, what to call them, whether it is the demo set."""
    chosen = args.dir or os.environ.get("IMAGENET_DIR")
    url, wanted = shard_source(chosen or "")
    if url and url("").strip().lower().startswith("pipe:") and not args.allow_pipe:
        raise BadInput(f"{chosen} would run a command by the shell: give --allow-pipe to have it")
    if url:
        return *open_shards(url, wanted, args.seed), chosen, False
    folder = Path(chosen or "demo_data")
    if not chosen:
        say(place, f"No DIR, no $IMAGENET_DIR: training on the demo set in {folder.absolute()}")
        draw_demo_set(folder)
    for part in folder, folder / "train", folder / "val":
        if not part.is_dir():
            raise BadInput(f"{part} is no folder: DIR must hold train/<class>/ and val/<class>/")
    if any((folder / "train").glob("*.tar")):
        why = "holds shards, and no shards.json: tools/make_shards.py makes both"
        raise BadInput(f"{folder} {why}")
    keep = Path(args.log_dir) / ".index"
    train, val = (
        Folder(part, find_images(part, keep, place)) for part in (folder / "train", folder / "val")
    )
    return train, val, str(folder) if chosen else "the demo set", not chosen


class Images(torch.utils.data.Dataset):
    """What the loader's workers do for a key (epoch, place in the source): what is drawn for an
    image, such as its crop, comes from (seed, epoch, its number) alone, whoever loads it.

    Items are (uint8 (H, W, 3), class number, seconds that it took, and "" or, of an image that
    cannot be read, name and why with a tab between). For such an image stands the next that can be
    read; in validation, nothing, of class -1.
    """

    def __init__(self, source, view, seed, validates=False):
        self.source, self.view, self.seed, self.validates = source, view, seed, validates

    def __getitem__(self, key):
        started = time.perf_counter()
        epoch, index = key
        bad = ""
        for _ in range(100):
            try:
                encoded, name, target, number = self.source.read(epoch, index)
                image = self.view(encoded, name, f"{self.seed} {epoch} {number}")
                return image, target, time.perf_counter() - started, bad
            except BadImage as error:
                bad, index = bad or "\t".join(error.args), self.source.next(index)
                if self.validates:
                    nothing = torch.zeros(self.view.size, self.view.size, 3, dtype=torch.uint8)
                    return nothing, -1, time.perf_counter() - started, bad
        raise BadInput(f"{bad}; nor can the 99 images that follow it")


def start_loader_worker(_):
    """Leaves signals to the process that trains, which must still be given images to be able to
    save, and ends when that ends, however it does."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)


def end_loader_workers():
    """Before this process ends: else Python asks them by SIGTERM and waits, maybe in vain."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or PyTorch would report them dead
    for child in multiprocessing.active_children():
        child.kill()


def end_with_parent(signum):
    """Has Linux send this process a signal when the one that started it is gone."""
    with contextlib.suppress(OSError, AttributeError):  # another system
        ctypes.CDLL(None).prctl(1, signum)  # PR_SET_PDEATHSIG
        # Gone before? Then the system's first process has taken over; but in a container the first
        # may be the very one that started this, a Python program.
        if os.getppid() == 1 and "python" not in Path("/proc/1/cmdline").read_text():
            os.kill(os.getpid(), signum)


class Order(torch.utils.data.Sampler):
    """The keys of this rank's images, batch by batch, from `first` to `end` of an epoch's."""

    def __init__(self, batches):
        self.steps = batches
        self.epoch, self.first, self.end = 0, 0, batches

    def __len__(self):
        return self.end - self.first

    def __iter__(self):
        keys = self.keys()
        return (keys(step) for step in range(self.first, self.end))


class TrainOrder(Order):
    """The order of an epoch is one permutation from (seed, epoch), and step k of all ranks together
    takes its positions [k * global_batch, (k + 1) * global_batch): the ranks, their workers and
    devices only share out a step. The ragged last batch is dropped.
    """

    def __init__(self, size, steps, global_batch, place, seed):
        super().__init__(steps)
        self.size, self.global_batch, self.place, self.seed = size, global_batch, place, seed

    def keys(self):
        """Returns the function of a step that gives its keys."""
        generator = torch.Generator().manual_seed(mix(self.seed, self.epoch))
        order = torch.randperm(self.size, generator=generator)
        share = self.global_batch // self.place.ranks

        def of_step(step):
            start = step * self.global_batch + self.place.rank * share
            return [(self.epoch, index) for index in order[start : start + share].tolist()]

        return of_step


class ValOrder(Order):
    """Every place.ranks-th image is this rank's."""

    def __init__(self, size, batch, place):
        self.mine, self.batch = range(place.rank, size, place.ranks), batch
        super().__init__(math.ceil(len(self.mine) / batch))

    def keys(self):
        """Returns the function of a batch's number that gives its keys."""
        return lambda step: [
            (0, index) for index in self.mine[step * self.batch : (step + 1) * self.batch]
        ]


class ShardOrder(Order):
    """Every rank, and in it every loader worker, has a run of the shards' sequence of its own.

    PyTorch gives batch k to worker k modulo workers, so of the rank's images, [begin, end) of the
    sequence, each worker's are the next ones after those of the worker before.
    """

    def __init__(self, begin, end, batch, workers):
        super().__init__(math.ceil((end - begin) / batch))
        self.batch, self.workers = batch, max(1, workers)
        steps = [len(range(worker, self.steps, self.workers)) for worker in range(self.workers)]
        ragged = self.steps * batch - (end - begin)  # missing in the last batch of all
        sizes = [each * batch for each in steps]
        if self.steps:
            sizes[(self.steps - 1) % self.workers] -= ragged
        self.bounds = (begin + np.cumsum([0, *sizes])).tolist()

    def keys(self):
        """Returns the function of a step that gives its keys (epoch, (start, end, offset))."""

        def of_step(step):
            start, end = self.bounds[step % self.workers :][:2]
            offset = step // self.workers * self.batch
            last = min(offset + self.batch, end - start)
            return [(self.epoch, (start, end, each)) for each in range(offset, last)]

        return of_step


class DummyLoader:
    """A loader that gives one random batch, made on the device, again and again."""

    def __init__(self, batch_sampler, batch, size, num_classes, device):
        self.batch_sampler = batch_sampler
        shape = batch, size, size, 3
        self.images = torch.randint(256, shape, dtype=torch.uint8, device=device)
        self.target = torch.randint(num_classes, (batch,), device=device)

    def __len__(self):
        return len(self.batch_sampler)

    def __iter__(self):
        for keys in self.batch_sampler:
            yield self.images[: len(keys)], self.target[: len(keys)], torch.zeros(len(keys)), ()


class Data(NamedTuple):
    """What a run reads. The loaders yield (images (N, H, W, 3) uint8, target (N,) int64, seconds
    that a worker took for each (N,), why they cannot be read or ""); of --decode cuda's images see
    decode_on_device()."""

    train: Iterable  # this rank's share of one step an item
    order: Order
    val: Iterable
    val_size: int  # images, of all ranks
    num_classes: int
    image_size: int
    workers: int
    global_batch: int
    source: str  # the folder, or what stands for it
    view: Crop | None  # of the training images
    train_size: int = 0  # images, of all ranks
    val_batches: int = 0  # that every rank has; some have one more


def preset_of(arch):
    """Returns torchvision's preprocessing for `arch`: crop, resize, interpolation, mean, std."""
    return next(iter(models.get_model_weights(arch))).transforms()


def load_data(args, place):
    """Returns Data. Every image of val/ is read once, by one rank, however many there are."""
    preset = preset_of(args.arch)
    own_size, own_resize = preset.crop_size[0], preset.resize_size[0]
    device_batch = args.batch_size * place.devices
    share = device_batch * args.accumulation
    global_batch = share * place.ranks
    source, demo = "synthetic images", False
    if not args.dummy:
        train_set, val_set, source, demo = open_data(args, place)
    # The demo's images have 64 pixels; nearly every network of 224 takes them as they are.
    small = demo and own_size == 224 and args.arch != "maxvit_t"
    image_size = args.image_size or (64 if small else own_size)
    val_resize = args.val_resize or round(image_size * own_resize / own_size)
    if val_resize < image_size:
        raise BadInput(f"--val-resize {val_resize} is less than the crop, {image_size}")
    if args.dummy:
        num_classes = args.num_classes or 1000
        train_size = 1_281_167
        val_size = args.steps_per_epoch * global_batch if args.steps_per_epoch else 50_000
    else:
        odd = sorted(set(train_set.classes) ^ set(val_set.classes))
        if odd:
            raise BadInput(f"{source}: train/ and val/ differ in {len(odd)} classes, as {odd[0]}")
        train_size, val_size = len(train_set), len(val_set)
        num_classes = args.num_classes or len(train_set.classes)
        if num_classes < len(train_set.classes):
            raise BadInput(f"--num-classes {num_classes}: {source} has {len(train_set.classes)}")

    steps = min(train_size // global_batch, args.steps_per_epoch or math.inf)
    if steps == 0 and not args.evaluate:
        sizes = f"{train_size} training images are fewer than a global batch, {global_batch}"
        raise BadInput(f"{sizes}: lower -b or --accumulation, or use fewer devices")
    if args.prof is not None and steps < args.prof + 10:
        raise BadInput(f"--prof {args.prof} needs ten more steps, and the epoch has {steps}")
    workers = min(16, cores_per_rank(place)) if args.workers is None else args.workers
    order = TrainOrder(train_size, steps, global_batch, place, args.seed)
    val_order = ValOrder(val_size, device_batch, place)
    view = None
    if args.dummy:
        made = image_size, num_classes, place.device
        train, val = DummyLoader(order, share, *made), DummyLoader(val_order, device_batch, *made)
    else:
        if isinstance(train_set, Shards):
            first, rank = steps * share * place.rank, place.rank
            order = ShardOrder(first, first + steps * share, share, workers)
            bounds = [val_size * each // place.ranks for each in (rank, rank + 1)]
            val_order = ShardOrder(*bounds, device_batch, workers)
        mode = preset.interpolation.value
        view = (EncodedCrop if args.decode == "cuda" else Crop)(image_size, mode)
        centre = Centre(image_size, mode, val_resize)
        options = {
            "num_workers": workers,
            "persistent_workers": workers > 0,
            "pin_memory": place.device.type == "cuda",
            "generator": torch.Generator(),  # else each epoch would draw from the global one
            "worker_init_fn": start_loader_worker,
        }
        loader = functools.partial(torch.utils.data.DataLoader, **options)
        train = loader(
            Images(train_set, view, args.seed),
            batch_sampler=order,
            collate_fn=pack if args.decode == "cuda" else None,
        )
        val = loader(Images(val_set, centre, args.seed, True), batch_sampler=val_order)
        for each, its_order in ((train, order), (val, val_order))[args.evaluate :]:
            start_workers(each, its_order)
    val_batches = math.ceil(val_size // place.ranks / device_batch)
    sizes = (val_size, num_classes, image_size, workers, global_batch)
    return Data(train, order, val, *sizes, source, view, train_size, val_batches)


def start_workers(loader, order):
    """Starts the loader's worker processes, and has them load nothing yet.

    They are forked here, before the first collective: up to Python 3.11, a child hangs when it is
    forked while a thread that is not Python's own, as a collective's, asks for the interpreter.
    iter() of a loader that keeps its workers starts them; later ones take these.
    """
    if loader.num_workers:
        multiprocessing.util.Finalize(None, end_loader_workers, exitpriority=0)
        order.end = 0
        iter(loader)
        order.end = order.steps


def on_device(loader, run):
    """Yields (images (N, 3, H, W) normalised float32, target (N,)) on the device.

    On CUDA they are copied, with --decode cuda decoded, and normalised one batch ahead, on a stream
    of their own, while the step before computes.
    """
    args, device, preset = run.args, run.place.device, preset_of(run.args.arch)
    mean, std = (
        torch.tensor(each, device=device).view(1, 3, 1, 1) for each in (preset.mean, preset.std)
    )
    scale, shift = 1 / (255 * std), -mean / std  # a CPU divides at half the speed
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    side = torch.cuda.Stream(device) if device.type == "cuda" else None
    if side:
        side.wait_stream(torch.cuda.current_stream(device))
    ready = None
    for images, target in loader:
        with torch.cuda.stream(side) if side else contextlib.nullcontext():
            if isinstance(images, tuple | list):
                images = decode_on_device(images, run.data.view, device)
            images = images.to(device, non_blocking=True).permute(0, 3, 1, 2)  # a view
            images = images.to(memory_format=layout).float().mul_(scale).add_(shift)
            target = target.to(device, non_blocking=True)
        if ready:
            yield ready
        if side:
            main = torch.cuda.current_stream(device)
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
        batch_size = getattr(args, "typed", vars(args))["batch_size"]
        return args.base_lr * data.global_batch / batch_size
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

    def __init__(self, title, loader, run, reduce, first=0):
        self.title, self.run, self.reduce = title, run, reduce
        self.totals = torch.zeros(4, dtype=exact_dtype(run.place.device), device=run.place.device)
        self.steps, self.waited, self.loading, self.skipped = first, 0.0, 0.0, 0
        self.bad, self.bad_before = [], 0  # of this rank, by name; of all ranks, before --resume
        live = run.place.rank == 0 and sys.stdout.isatty() and sys.stderr.isatty()
        batches, total = on_device(self._loaded(loader), run), first + len(loader)
        self.bar = tqdm(
            batches, title, total, False, disable=not live, dynamic_ncols=True, initial=first
        )
        self.started = self.before = time.perf_counter()
        self.seconds = None  # once it is closed

    def __iter__(self):
        batches = iter(self.bar)
        while True:
            self.run.watch.doing = "waiting for its loader", time.monotonic()
            batch = next(batches, None)
            if batch is None:
                return
            self.run.watch.doing = f"{self.title}[{self.steps}]", time.monotonic()
            self.wait = time.perf_counter() - self.before
            self.waited += self.wait
            yield batch

    def _loaded(self, loader):
        for images, target, seconds, bad in loader:
            self.loading += float(seconds.sum())
            if any(bad):
                self.bad += filter(None, bad)
                if (target < 0).any():
                    images, target = images[target >= 0], target[target >= 0]
            yield images, target

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
        self.seconds = time.perf_counter() - self.started
        self.run.watch.post(self.bad)
        *sums, waited, loading, bad = self.sums().tolist()  # sync point
        note_bad_images(self.run, self.bad)
        loss, top1, top5 = averages(sums)
        self.images, self.all_loading, self.all_bad = sums[3], loading, bad
        self.waits = waited / self.run.place.ranks / self.seconds  # mean share of the time
        entries = {"Loss": loss, "Top1": top1, "Top5": top5}
        entries |= {"Throughput": sums[3] / self.seconds, "Time": self.seconds / max(1, self.steps)}
        return {f"{tag}/{part}": value for tag, value in entries.items()}

    def sums(self):
        """Returns all ranks' sums, seconds waited and seconds loaded, and unreadable images."""
        mine = self.totals.new_tensor([self.waited, self.loading, len(self.bad)])
        return sum_over_ranks(torch.cat([self.totals, mine]))

    def state(self):
        """Returns what a checkpoint in mid-epoch needs to go on with."""
        seconds = time.perf_counter() - self.started if self.seconds is None else self.seconds
        sums = self.sums().tolist()
        sums[-1] += self.bad_before
        return {"sums": sums, "seconds": seconds, "skipped": self.skipped}

    def go_on(self, state):
        """Takes up state() of an interrupted epoch: every rank has an equal part of its sums."""
        *sums, waited, loading, bad = state["sums"]
        ranks = self.run.place.ranks
        self.totals += self.totals.new_tensor(sums) / ranks
        self.waited, self.loading, self.bad_before = waited / ranks, loading / ranks, bad
        self.started, self.skipped = self.started - state["seconds"], state["skipped"]


def averages(sums):
    """Returns (loss, top-1 in %, top-5 in %) from criterion's sums."""
    loss, top1, top5, count = sums
    count = max(1, count)
    return loss / count, 100 * (top1 / count), 100 * (top5 / count)


def verdict(waits, loader, model, worker, place):
    """Returns the line that says what the bottleneck is: from the share of the time that waited for
    data and what the loader, the model and one worker process do, images/s of all ranks."""
    bound = "input-bound" if loader < model else "compute-bound"
    enough = math.ceil(model / worker / place.ranks)
    waited = f"{100 * waits:.0f} % of the time waited for data"
    rates = f"the loader gives {loader:,.0f} images/s, the model takes {model:,.0f}"
    return f"{bound}: {waited}; {rates}: about -j {enough} would do"


# ------------------------------------------------------------------------------------------ watch

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # of launchers, Ctrl-C, Slurm and clouds


class Told(NamedTuple):
    """What the ranks have to say of a step: sums over all of them."""

    what: str  # the step
    stop: float  # ranks that were told to end
    save: float  # 1 when a checkpoint is due, by rank 0's clock
    bad: float  # unreadable images of the epoch so far
    broken: float  # ranks whose loss is not finite
    skipped: float  # ranks that skipped the step


class Watch:
    """Keeps the ranks together: what a signal, the clock or a loss says to one of them, all heed at
    the same step; and when one stops working, the others say which, and end.

    Every rank posts a heartbeat on the board, from a thread. When training has not moved for half
    of --timeout, a rank begins to read the others': whose does not change is frozen or cut off.
    """

    def __init__(self, args, place):
        self.args, self.place = args, place
        self.signal, self.signalled = None, 0.0  # its name, and when it came
        self.saved, self.deadline = time.monotonic(), math.inf
        self.listening, self.told, self.posted = False, None, {}
        self.doing = "starting", time.monotonic()  # what, since when
        self.heard = {}  # rank → (last heartbeat, when it changed or 0)
        self.posted_at = math.inf  # when the board last took a heartbeat
        self.pause = min(10, args.timeout / 20)  # seconds between heartbeats

    # -- what all ranks heed

    def listen(self):
        """From now on signals and --max-hours end the run with a checkpoint, and all is watched."""
        self.listening, self.doing = True, ("starting", time.monotonic())
        if self.args.max_hours:
            seconds = self.args.max_hours * 3600
            began = time.monotonic() - (time.time() - psutil.Process().create_time())
            self.deadline = began + seconds - min(60, 0.1 * seconds)  # the time to save
        noted, note = os.pipe()
        os.set_blocking(note, False)
        signal.set_wakeup_fd(note)  # for a thread: this one may be stuck in an exchange
        for each in SIGNALS:
            signal.signal(each, lambda signum, frame: None)
        threading.Thread(target=self._note, args=[noted], daemon=True).start()
        if self.args.timeout:
            for work in (self._beat, self._sound) if self.place.board else (self._sound,):
                threading.Thread(target=work, daemon=True).start()

    def _note(self, noted):
        while True:
            for signum in filter(SIGNALS.__contains__, os.read(noted, 64)):
                # Launchers pass on a terminal's Ctrl-C, so one may come twice within a moment.
                again = self.signal and time.monotonic() > self.signalled + 1
                if again and signum == signal.SIGINT:
                    end_now(130)
                if not self.signal:
                    self.signal, self.signalled = signal.Signals(signum).name, time.monotonic()

    def why(self):
        """Returns why this rank wants the run to end, or None."""
        if self.place.rank == 0 and time.monotonic() > self.deadline:
            return self.signal or "--max-hours"
        return self.signal

    def tell(self, meter, sums, skipped):
        """Tells all ranks how this one's step went; returns Told of the step before, or None.

        Sums are read one step late (sync point), when they have long been copied to the host.
        """
        self.post(meter.bad)
        minutes = self.args.checkpoint_minutes
        due = self.listening and minutes and time.monotonic() > self.saved + 60 * minutes
        due = due and self.place.rank == 0  # one clock decides
        said = torch.tensor([bool(self.why()), bool(due), len(meter.bad)], dtype=sums.dtype)
        said = said.to(sums.device, non_blocking=True)  # else it waits for the GPU
        loss = torch.stack([~sums[0].isfinite(), skipped.bool()]).to(sums)
        before, what = self.last(), f"{meter.title}[{meter.steps - 1}]"
        cuda = sums.device.type == "cuda"
        total = sum_over_ranks(torch.cat([said, loss])).to("cpu", non_blocking=cuda)
        # Read later without this, it would queue behind the step that the GPU is computing then.
        copied = torch.cuda.current_stream().record_event() if cuda else None
        self.told = what, total, copied
        return before

    def last(self):
        """Returns Told of the step that was told last, or None where that has been heeded."""
        if self.told is None:
            return None
        (what, total, copied), self.told = self.told, None
        if copied:
            copied.synchronize()
        return Told(what, *total.tolist())

    def post(self, bad):
        """Posts this rank's unreadable images on the board, for rank 0 to name them."""
        if self.place.board and not self.posted.keys() >= set(bad):
            with contextlib.suppress(RuntimeError):  # as in note_bad_images()
                names = self.posted | dict.fromkeys(bad)
                self.place.board.set(f"bad {self.place.rank}", json.dumps([*names]))
                self.posted = names

    # -- who is alive

    def _beat(self):
        board, rank, timeout = self.place.board.clone(), self.place.rank, self.args.timeout
        for beat in itertools.count():
            doing, since = self.doing
            stuck = time.monotonic() - since
            with contextlib.suppress(RuntimeError):  # the board is gone with rank 0, or cut off
                board.set(f"beat {rank}", json.dumps([beat, doing, stuck]))
                self.posted_at = time.monotonic()
                for other in range(self.place.ranks) if stuck > timeout / 2 else ():
                    if other != rank and board.check([f"beat {other}"]):
                        said = board.get(f"beat {other}")
                        if said != self.heard.get(other, [None])[0]:
                            changed = time.monotonic() if other in self.heard else 0
                            self.heard[other] = said, changed
            time.sleep(self.pause)

    def _sound(self):
        """Ends this rank when nothing has moved for --timeout; one rank says who is to blame."""
        timeout, mine, late = self.args.timeout, self.place.rank, max(3, 5 * self.pause)
        now = time.monotonic()
        while True:
            before = now
            time.sleep(self.pause)
            (doing, since), now = self.doing, time.monotonic()
            if now - before > late:  # this process itself was stopped, as Slurm may suspend a job
                self.doing = doing, now
            if now - self.doing[1] < timeout:
                continue
            heard = [*self.heard.items()]
            alive = {rank: json.loads(said) for rank, (said, at) in heard if at > now - late}
            alive[mine] = None, doing, now - since
            silent = [rank for rank in range(self.place.ranks) if rank not in alive]
            blame = [f"rank {rank} gives no sign of life" for rank in silent]
            for rank, (_, what, seconds) in sorted(alive.items()):
                if not what.startswith(("Epoch", "Test")):  # it does not wait for the others
                    blame.append(f"rank {rank} has been {what} for {seconds:.0f} s")
            if self.posted_at < now - late:
                blame = ["rank 0 or its node, where notices are posted, does not answer"]
            if mine != min(alive):
                time.sleep(5)  # another one speaks; its launcher ends this one
            blame = "; ".join(blame[:8]) or f"all ranks are alive, rank {mine} in {doing}"
            print_error(f"no progress for {timeout:g} s (--timeout): {blame}")
            end_now(1)


def end_now(status):
    """Ends this process and its loader workers at once, whatever they are doing."""
    for child in multiprocessing.active_children():
        child.kill()
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(OSError, RuntimeError):
            stream.flush()
    os._exit(status)


def note_bad_images(run, bad):
    """Names unreadable images in bad_images.txt, each once; returns those of all ranks that can be
    asked. Rank 0 does so, after an exchange for which the others have posted theirs; on others it
    is their own."""
    place, bad = run.place, dict.fromkeys(bad)
    with contextlib.suppress(RuntimeError):  # the board went with its launcher: go on
        for other in range(1, place.ranks) if place.rank == 0 else ():
            if place.board.check([f"bad {other}"]):
                bad |= dict.fromkeys(json.loads(place.board.get(f"bad {other}")))
    if place.rank == 0 and run.folder:
        path = run.folder / "bad_images.txt"
        with contextlib.suppress(OSError):  # a full disk: the next time has them all
            known = path.read_bytes().decode(errors="surrogateescape") if path.exists() else ""
            known = {line.split("\t")[0] for line in known.splitlines()}
            if new := [each for each in bad if each.split("\t")[0] not in known]:
                with open(path, "a", errors="surrogateescape") as file:  # names of any bytes
                    file.writelines(f"{each}\n" for each in new)
                say(place, f"{len(new)} images more cannot be read: see {path}")
    return [*bad]


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
    log: "Log | None"  # the same
    traffic: "Traffic"
    saver: "Saver | None" = None  # the same
    epochs_done: int = 0
    step: int = 0  # of the epoch under way, done
    meter: Meter | None = None  # of the epoch under way, in training
    partial: dict | None = None  # its state() in the checkpoint that the run goes on from
    best_top1: float = 0.0  # validation, %
    best_top5: float = 0.0
    seconds: float = 0.0  # of training and validation, those before --resume included

    def __post_init__(self):
        self.watch = Watch(self.args, self.place)


def train_one_epoch(run, epoch):
    """Trains the steps of run.data.order from run.step on; returns the epoch's log entries."""
    args, order = run.args, run.data.order
    order.epoch, order.first = epoch, run.step
    rate = functools.partial(learning_rate, args, peak_learning_rate(args, run.data))
    run.model.train()
    meter = Meter(f"Epoch: [{epoch}]", run.data.train, run, sum_over_ranks, run.step)
    if run.partial:
        meter.go_on(run.partial)
    run.meter, run.partial, one = meter, None, torch.ones((), device=run.place.device)
    for step, (images, target) in enumerate(meter, order.first):
        for group in run.optimizer.param_groups:
            group["lr"] = rate(epoch + (step + 0.5) / order.steps)
        # Dropout draws from the step alone: a resumed run draws what an uninterrupted one does.
        torch.manual_seed(mix(args.seed, epoch, step, run.place.rank))
        scale = run.scaler.scale(one)
        sums = train_step(run.model, run.criterion, run.optimizer, run.scaler, images, target, args)
        skipped = run.scaler.scale(one) < scale  # a dynamic scale falls when gradients overflow
        run.step, at = step + 1, epoch * order.steps + step
        if at == 0 and run.log and not args.dummy:
            log_images(run, images)
        if shown := meter.update(sums):
            run.traffic.sample(run.log, at + 1, after_seconds=5)  # or days would log millions
            if run.log:
                run.log.add_scalar("Loss/step", shown[0], at)
        heed(run, meter, run.watch.tell(meter, sums, skipped))
    heed(run, meter, run.watch.last())
    average_buffers(run.model, run.place)
    entries = meter.close("train")
    if meter.skipped:
        say(run.place, f" * {meter.skipped:.0f} steps skipped, whose gradients overflowed")
    if meter.all_loading and args.decode == "cpu":  # else this process decodes: the line would lie
        worker = meter.images / meter.all_loading
        loader = worker * max(1, run.data.workers) * run.place.ranks
        model = meter.images / (meter.seconds * (1 - meter.waits))
        say(run.place, " * " + verdict(meter.waits, loader, model, worker, run.place))
    last = rate(epoch + (order.end - 0.5) / order.steps)
    return entries | {"Data/wait": meter.waits, "Lr": last, "Steps/skipped": meter.skipped}


def heed(run, meter, told):
    """Does what the ranks' words (Told, or None) ask for, on all of them alike."""
    if run.saver:
        run.saver.look()
    if told is None:
        return
    meter.skipped += told.skipped / run.place.ranks
    if told.broken:
        kept = run.folder and f"; checkpoints before it are in {run.folder}"
        raise Fault(f"the loss of {told.what} is not finite: lower --lr{kept or ''}")
    of, size = "validation", run.data.val_size
    if meter is run.meter:
        of, size = "training", run.data.train_size
    if (bad := meter.bad_before + told.bad) > run.args.max_bad_images * size:
        names = note_bad_images(run, meter.bad)
        limit = f"more than --max-bad-images {run.args.max_bad_images} of {size}"
        raise BadInput(f"{bad:.0f} {of} images cannot be read, {limit}: {', '.join(names[:3])}")
    if told.stop:
        say(run.place, f"ending after {told.what}, as asked for: saving a checkpoint")
    if told.stop or told.save:
        save_checkpoint(run)
    if told.stop:
        raise Preempted


def flat_buffers(model, dtype):
    """Returns the model's floating buffers, and their values one after another in one tensor."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    return buffers, buffers and torch.cat([buffer.flatten().to(dtype) for buffer in buffers])


@torch.no_grad()
def fill(buffers, flat):
    """Copies the values of one tensor into the buffers, one after another."""
    values = flat.split([buffer.numel() for buffer in buffers])
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value.view_as(buffer))


def average_buffers(model, place):
    """Gives every rank the mean of all ranks' buffers: BatchNorm's running statistics are each
    device's own by design, and what is validated and saved must not depend on the rank."""
    buffers, flat = flat_buffers(model, exact_dtype(place.device))
    if buffers:
        fill(buffers, sum_over_ranks(flat) / place.ranks)


def gather_buffers(model, place):
    """Returns every rank's buffers, float32 (ranks, numbers) on the CPU; None without any."""
    buffers, flat = flat_buffers(model, torch.float32)
    if buffers:
        rows = flat.new_zeros(place.ranks, len(flat))
        rows[place.rank] = flat
        return sum_over_ranks(rows).cpu()


@torch.no_grad()
def validate(run):
    """Measures the model on every image of val/, once each; returns the epoch's log entries."""
    run.model.eval()
    # Shown are rank 0's own means: the other ranks may have a batch less, and do not wait.
    meter = Meter("Test: ", run.data.val, run, lambda sums: sums)
    sums = no_skip = meter.totals.new_zeros(4)
    for step, (images, target) in enumerate(meter):
        if len(target):  # or none of them can be read
            with precision(run.args, run.place.device):
                _, sums = run.criterion(run.model(images), target)
            meter.update(sums)
        if step < run.data.val_batches:
            heed(run, meter, run.watch.tell(meter, sums, no_skip[0]))
    heed(run, meter, run.watch.last())
    entries = meter.close("val")
    if meter.images + meter.all_bad != run.data.val_size:
        raise RuntimeError(f"validated {meter.images} images of {run.data.val_size}")
    say(run.place, f" * Acc@1 {entries['Top1/val']:.3f} Acc@5 {entries['Top5/val']:.3f}")
    return entries


# ------------------------------------------------------------------------------------ checkpoints


# The last three checkpoints, the newest first, and the best.
CHECKPOINTS = ("checkpoint.pt", "checkpoint-1.pt", "checkpoint-2.pt", "model_best.pt")
# Options that may change while --resume auto takes a run for the same: not what is trained, but how
# long, where, on what and how it is told. DIR is one, since jobs copy data to disks of their own.
MAY_CHANGE = {"dir", "workers", "epochs", "start_epoch", "desired_acc", "resume", "evaluate"}
MAY_CHANGE |= {"log_dir", "print_freq", "prof", "bench", "gpu", "no_accel", "deterministic"}
MAY_CHANGE |= {"decode", "compile", "compile_mode", "channels_last", "checkpoint_minutes"}
MAY_CHANGE |= {"max_hours", "requeue", "timeout", "max_bad_images", "allow_pipe", "dist_url"}
MAY_CHANGE |= {"dist_backend", "world_size", "rank", "nproc_per_node", "local_rank"}
MAY_CHANGE |= {"multiprocessing_distributed"}


def in_float32(tree):
    """Copies nested dicts to host memory, floating tensors as float32, whatever trained them."""
    if isinstance(tree, dict):
        copied = copy.copy(tree)  # with a state dict's _metadata, without which MNASNet won't load
        copied.update((key, in_float32(value)) for key, value in tree.items())
        return copied
    if isinstance(tree, torch.Tensor):
        dtype = torch.float32 if tree.is_floating_point() else tree.dtype
        return tree.detach().to("cpu", dtype, copy=True)
    return tree


def is_finite(tree):
    """Returns whether all numbers in nested dicts of tensors are finite."""
    if isinstance(tree, dict):
        return all(map(is_finite, tree.values()))
    return not isinstance(tree, torch.Tensor) or bool(tree.isfinite().all())


class Saver:
    """Writes checkpoints in the background, one at a time; keeps the last three and the best.

    A file is replaced whole or not at all, and is on the disk before its name is. What a full disk
    does not take is tried again after a minute.
    """

    def __init__(self, folder):
        self.folder, self.unwritten, self.failed = folder, {}, None
        self.pool, self.pending = concurrent.futures.ThreadPoolExecutor(1), None

    def save(self, state, is_best):
        """Writes checkpoint.pt, and model_best.pt too where `is_best`, and returns at once."""
        self.wait()
        names = ["checkpoint.pt", "model_best.pt"] if is_best else ["checkpoint.pt"]
        self.unwritten |= dict.fromkeys(names, state)
        self.try_again()

    def wait(self):
        """Waits for the file under way, and returns whether everything is written."""
        if self.pending:
            self.pending.result()  # raises what it raised, if it was not the disk
        return not self.unwritten

    def look(self):
        """Tries again, a minute after the disk was full."""
        if self.pending and self.pending.done() and not self.wait():
            if time.monotonic() > self.failed + 60:
                self.try_again()

    def try_again(self):
        """Begins to write what is not written yet."""
        self.pending = self.pool.submit(self._write)
        return self

    def _write(self):
        for name, state in [*self.unwritten.items()]:
            path, temporary = self.folder / name, self.folder / f"{name}.tmp"
            if not is_finite(state):  # the loss will be the next to tell
                print_line(f"{path}: not written, since not all weights are finite")
            else:
                try:
                    with open(temporary, "wb") as file:
                        torch.save(state, file)
                        file.flush()
                        os.fsync(file.fileno())
                    self._keep(path, temporary)
                except (OSError, RuntimeError) as error:  # PyTorch raises the latter on full disks
                    self.failed = time.monotonic()
                    temporary.unlink(missing_ok=True)
                    kept = "the one before is kept, and it is tried again in a minute"
                    print_line(f"{path} cannot be written ({first_line(error)}): {kept}")
                    return
            del self.unwritten[name]

    def _keep(self, path, temporary):
        newest, second, third, _ = (self.folder / name for name in CHECKPOINTS)
        for older, newer in ((third, second), (second, newest)) if path == newest else ():
            if newer.exists():
                os.replace(newer, older)
        os.replace(temporary, path)
        with contextlib.suppress(OSError):  # where folders cannot be opened, or have no fsync()
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def save_checkpoint(run, is_best=False):
    """Takes a checkpoint, with pytorch/examples' names; a thread of rank 0 writes it.

    Every rank calls it, since gathering the state takes all. It waits for a copy to host memory,
    and for the checkpoint before if that is still being written.
    """
    run.watch.doing = "saving a checkpoint", time.monotonic()
    run.watch.saved = time.monotonic()
    run.seconds = time.perf_counter() - run.started
    state = full_state(run.model, run.optimizer)
    partial = buffers = None
    if run.step:  # else the epoch has ended, and all ranks have the same buffers
        partial, buffers = run.meter.state(), gather_buffers(run.model, run.place)
        note_bad_images(run, run.meter.bad)
    if run.place.rank == 0:
        typed = {name: vars(run.args)[name] for name in vars(run.args) if name != "typed"}
        state = {
            "arch": run.args.arch,
            "num_classes": run.data.num_classes,
            "epoch": run.epochs_done,
            "step": run.step,
            "global_batch": run.data.global_batch,
            "state_dict": in_float32(state),
            "optimizer": in_float32(run.optimizer.state_dict()),
            "scaler": run.scaler.state_dict(),
            "buffers": buffers,
            "meter": partial,
            "best_acc1": run.best_top1,
            "best_acc5": run.best_top5,
            "seconds": run.seconds,
            "args": typed | run.args.typed,
        }
        run.saver.save(state, is_best)


class Found(NamedTuple):
    """A checkpoint to go on from."""

    path: Path
    global_batch: int
    typed: list  # -b and --accumulation, as given to the run that wrote it
    size: int  # bytes
    encoded: bytes | None  # the file, on rank 0


def read_checkpoint(path):
    """Returns a file's (bytes, contents), if it is a whole checkpoint of these scripts. Nothing in
    it is executed, and all of it is compared with its checksums, which torch.load() does not do."""
    try:
        encoded = path.read_bytes()
        if damaged := zipfile.ZipFile(io.BytesIO(encoded)).testzip():
            raise ValueError(f"{damaged} has another checksum")
        saved = torch.load(io.BytesIO(encoded), map_location="cpu", weights_only=True)
        for name in (
            "arch",
            "num_classes",
            "epoch",
            "state_dict",
            "optimizer",
            "scaler",
            "seconds",
        ):
            saved[name]  # or KeyError
        saved["best_acc1"], saved["best_acc5"], saved["args"]["batch_size"]
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file") from None
    except Exception as error:  # a damaged file may set off anything
        why = first_line(error)
        raise BadInput(f"{path}: damaged, or no checkpoint of these scripts ({why})") from None
    return encoded, saved


def find_checkpoint(args):
    """Returns what --resume names, as Found, or None where `auto` finds nothing to go on from."""
    given, folders, same = Path(args.resume), [], functools.partial(is_same_run, args)
    if args.resume == "auto":
        name = f"*_{args.arch}_gpux*_opt{args.precision}*"
        folders = [(newest(path), path) for path in Path(args.log_dir).glob(name)]
        folders = [path for _, path in sorted(folders, reverse=True)]
    elif given.is_dir():
        folders, same = [given], lambda saved: True
    else:
        return as_found(given, *read_checkpoint(given))
    others = set()  # folders of other runs
    for folder, name in itertools.product(folders, CHECKPOINTS):
        path = folder / name
        try:
            if folder not in others and path.exists():
                encoded, saved = read_checkpoint(path)
                if same(saved):
                    return as_found(path, encoded, saved)
                others.add(folder)
        except BadInput as error:
            print_line(f"--resume {args.resume} passes over {error}")
    if args.resume != "auto":
        raise BadInput(f"--resume {given}: holds no good checkpoint")


def newest(folder):
    """Returns when the newest checkpoint in a folder was written, 0 without any."""
    times = [0]
    for name in CHECKPOINTS:
        with contextlib.suppress(OSError):
            times.append((folder / name).stat().st_mtime_ns)
    return max(times)


def is_same_run(args, saved):
    """Returns whether a checkpoint's run trained what this one is to train."""
    before, now = saved["args"], vars(args)  # of another script, maybe, with other options
    return all(before[name] == now[name] for name in before.keys() & now.keys() - MAY_CHANGE)


def as_found(path, encoded, saved):
    """Returns a checkpoint as Found."""
    typed = [saved["args"]["batch_size"], saved["args"]["accumulation"]]
    return Found(path, saved.get("global_batch"), typed, len(encoded), encoded)


def agree_on_checkpoint(args, place):
    """Returns rank 0's find_checkpoint() on all ranks, where it fails, its BadInput."""
    if not args.resume:
        return None
    result, told = None, {}
    if place.rank == 0:
        try:
            if result := find_checkpoint(args):
                told = result._replace(path=str(result.path), encoded=None)._asdict()
            else:
                say(place, f"--resume auto: no checkpoint of this run in {args.log_dir}: a new run")
        except (BadInput, OSError) as error:
            told = {"error": str(error)}
    if place.board:
        if place.rank == 0:
            place.board.set("checkpoint", json.dumps(told))
        told = json.loads(place.board.get("checkpoint"))
    if "error" in told:
        raise BadInput(told["error"])
    return result or (Found(**{**told, "encoded": None}) if told else None)


def keep_global_batch(args, found, place):
    """Returns the options, with -b and --accumulation for the global batch of the run that goes on,
    where --resume auto finds another number of devices. As typed they are in args.typed."""
    typed = [args.batch_size, args.accumulation]
    args = argparse.Namespace(**vars(args))
    args.typed = {"batch_size": args.batch_size, "accumulation": args.accumulation}
    devices = place.ranks * place.devices
    wanted = found and args.resume == "auto" and found.typed == typed and found.global_batch
    if wanted and wanted != devices * math.prod(typed):
        share, ragged = divmod(wanted, devices)
        if ragged:
            say(place, f"{devices} devices cannot share the global batch of {wanted} evenly")
            return args
        fitting = (n for n in range(1, share + 1) if share % n == 0 and share / n <= typed[0])
        args.accumulation = next(fitting)
        args.batch_size = share // args.accumulation
        parts = f"-b {args.batch_size} x {args.accumulation} parts on {devices} devices"
        say(place, f"{parts} keep the global batch of {wanted}")
    return args


def load_checkpoint(found, args, data, model, place):
    """Loads the model's weights; returns what save_checkpoint wrote. Rank 0 alone has read it, and
    sends it to the others, since other nodes may have other disks."""
    encoded = found.encoded or b""
    for start in range(0, found.size, 2**26) if place.ranks > 1 else ():
        count = min(2**26, found.size - start)
        part = torch.zeros(math.ceil(count / 4), dtype=torch.int32)  # not all add up uint8
        if place.rank == 0:
            part.view(torch.uint8)[:count] = torch.frombuffer(
                bytearray(encoded[start : start + count]), dtype=torch.uint8
            )
        part = sum_over_ranks(part.to(place.device)).cpu()
        if place.rank:
            encoded += part.view(torch.uint8)[:count].numpy().tobytes()
    saved = torch.load(io.BytesIO(encoded), map_location="cpu", weights_only=True)
    path, wanted = f"--resume {found.path}", (args.arch, data.num_classes)
    held = (saved["arch"], saved["num_classes"])
    if held != wanted:
        both = f"{held[0]} of {held[1]} classes, this run {wanted[0]} of {wanted[1]}"
        raise BadInput(f"{path} holds {both}: choose -a, --num-classes or the data to match")
    try:
        model.load_state_dict(saved["state_dict"])
    except RuntimeError as error:
        why = first_line(error)
        raise BadInput(f"{path}: damaged, or of another shape than {args.arch} ({why})") from None
    return saved


def go_on(run, saved):
    """Takes up the state of a checkpoint, in a Run whose model has its weights already."""
    place, optimizer = run.place, run.optimizer
    scaler = run.scaler.state_dict() | saved["scaler"]  # maybe another script's, which lacks some
    run.scaler.load_state_dict(scaler)  # or the rehearsal might overflow
    rehearse(run)
    # Moments come from the file, the learning rate and its kin from the command line.
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict(saved["optimizer"] | {"param_groups": groups})
    run.scaler.load_state_dict(scaler)
    state = full_state(run.model, optimizer)
    with torch.no_grad():
        for name, tensor in saved["state_dict"].items():
            state[name].copy_(tensor)
        rows = saved.get("buffers")
        if rows is not None:
            row = rows[place.rank] if len(rows) == place.ranks else rows.double().mean(0)
            fill(flat_buffers(run.model, torch.float32)[0], row)
    run.epochs_done, run.seconds = saved["epoch"], saved["seconds"]
    run.best_top1, run.best_top5 = saved["best_acc1"], saved["best_acc5"]
    before = saved.get("global_batch") or run.data.global_batch
    step = math.ceil(saved.get("step", 0) * before / run.data.global_batch)
    run.step = min(step, run.data.order.steps)
    run.partial = saved.get("meter")
    if before != run.data.global_batch:
        change = f"the global batch changes from {before} to {run.data.global_batch}"
        say(place, f"{change}: the epoch under way goes on at step {run.step}")


def rehearse(run):
    """Trains two steps on noise with learning rate 0: some ways of exchanging gradients settle on
    an order in their first steps, and to the bit sums depend on it."""
    for group in run.optimizer.param_groups:
        group["lr"] = 0.0
    share, size = run.data.global_batch // run.place.ranks, run.data.image_size
    layout = torch.channels_last if run.args.channels_last else torch.contiguous_format
    images = torch.randn(share, 3, size, size, device=run.place.device).to(memory_format=layout)
    target = torch.zeros(share, dtype=torch.int64, device=run.place.device)
    run.model.train()
    for _ in range(2):
        train_step(run.model, run.criterion, run.optimizer, run.scaler, images, target, run.args)


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
    """Prints a line, once for all ranks; where it goes to a full disk, training goes on."""
    if place.rank == 0:
        print_line(line)


def print_line(line, file=None):
    """Prints a line; where it cannot be printed, what prints it goes on."""
    with contextlib.suppress(OSError):
        print(line, file=file, flush=True)


class Log:
    """A SummaryWriter that a full disk does not stop: when it fails, a new one repeats, once there
    is room, what has not been flushed."""

    def __init__(self, folder, purge_step):
        self.folder, self.purge_step, self.unflushed = folder, purge_step, []
        self.writer = SummaryWriter(folder, purge_step=purge_step)
        threading.excepthook = self._thread_fails

    def _thread_fails(self, failure):
        if not isinstance(failure.exc_value, OSError):  # the writer's thread is told of below
            threading.__excepthook__(failure)

    def __getattr__(self, name):
        def call(*args):
            self.unflushed.append((name, args))
            try:
                if self.writer is None:
                    self.writer = SummaryWriter(self.folder, purge_step=self.purge_step)
                    for again, its_args in self.unflushed[:-1]:
                        getattr(self.writer, again)(*its_args)
                getattr(self.writer, name)(*args)
                if name == "flush":
                    self.unflushed.clear()
            except OSError as error:
                if self.writer:
                    print_line(f"{self.folder}: logs wait for room ({first_line(error)})")
                self.writer = None

        return call


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


def open_log(args, place, data, gradient_bytes, saved, path):
    """Returns (folder of this run, its Log), made by rank 0; (None, None) elsewhere, and under
    --evaluate and --bench.

    A run that goes on from a checkpoint (`path`, or None) of a run in --log-dir goes on in that
    run's folder, if the folder's name still says the truth; not so from model_best.pt.
    """
    if place.rank != 0 or args.evaluate or args.bench:
        return None, None
    runs, before = Path(args.log_dir), Path(path or "").resolve()
    what = f"{args.arch}_gpux{place.ranks * place.devices}_b{args.batch_size}_cpu{data.workers}"
    what += f"_opt{args.precision}"
    name = f"{time.strftime('%b%d_%H-%M-%S')}_{platform.node()}_{what}"
    folder, serial = runs / name, 1
    known = before.name in CHECKPOINTS[: 4 if args.resume == "auto" else 3]
    if known and before.parent.parent == runs.resolve() and f"_{what}" in before.parent.name:
        folder = runs / before.parent.name
        for left in (*folder.glob("*.tmp"), folder / "PREEMPTED"):
            left.unlink(missing_ok=True)
    else:
        while not make_folder(folder):  # another run started in the same second
            folder, serial = runs / f"{name}_{serial + 1}", serial + 1
    # Steps that were logged after the checkpoint are taken back; epochs are logged anew.
    epoch, step = (saved["epoch"], saved.get("step", 0)) if saved else (0, 0)
    log = Log(folder, max(epoch + 1, epoch * data.order.steps + step) if saved else None)
    here, commit = Path(__file__).resolve(), ""
    git = ["git", "-C", here.parent, "describe", "--always", "--dirty", "--abbrev=40"]
    with contextlib.suppress(OSError):  # no git
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    about = {
        "command": [Path(sys.executable).name, *sys.argv],
        "resumed": {name: saved[name] for name in ("epoch", "seconds")} if saved else None,
        "options": {name: value for name, value in vars(args).items() if name != "typed"},
        "data": data.source,
        "global_batch": data.global_batch,
        "steps_per_epoch": data.order.steps,
        "num_classes": data.num_classes,
        "image_size": data.image_size,
        "gradient_bytes": gradient_bytes,
        "decoder": None if args.dummy else decoder_name(args),
        "place": {**place._asdict(), "device": str(place.device), "board": None},
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


def decoder_name(args):
    """Returns what decodes training JPEGs, where there are such, with its version."""
    if args.decode == "cuda":
        return f"nvJPEG, torchvision {torchvision.__version__}"
    if found := region_decoder():
        return f"nvImageCodec {found[0].__version__}"
    return f"torchvision {torchvision.__version__}"


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
    if place.device.type == "cpu":
        keep_freed_memory()
    if place.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cores_per_rank(place))  # or the ranks of a node fight for the cores
    torch.backends.cudnn.benchmark = not args.deterministic
    if args.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if args.sync_bn and place.device.type == "cpu":
        raise BadInput("--sync-bn: BatchNorm can be synchronised on GPUs only")
    if args.decode == "cuda" and place.device.type != "cuda":
        raise BadInput("--decode cuda needs an NVIDIA GPU: leave it out to decode on the CPU")
    found = agree_on_checkpoint(args, place)
    args = keep_global_batch(args, found, place)
    data = load_data(args, place)
    torch.manual_seed(args.seed)
    model = build_model(args, data)
    saved = load_checkpoint(found, args, data, model, place) if found else None
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = model.to(place.device, memory_format=layout)
    if args.compile:
        if place.devices > 1:
            raise BadInput("--compile: one process drives several devices here, which it cannot")
        model.compile(mode=args.compile_mode)
    options = {"lr": args.lr, "momentum": args.momentum, "weight_decay": args.wd, "fused": True}
    build_optimizer = functools.partial(torch.optim.SGD, **options)
    model, optimizer, scaler = prepare(model, build_optimizer, args, place)
    gradient_bytes = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    folder, log = open_log(args, place, data, gradient_bytes, saved, found and found.path)
    traffic, criterion = Traffic(place, gradient_bytes), build_criterion(args)
    run = Run(args, place, data, model, criterion, optimizer, scaler, folder, log, traffic)
    run.saver = folder and Saver(folder)
    if saved and not args.evaluate:
        go_on(run, saved)
    if args.momentum:
        fill_momentum(optimizer)
    if args.start_epoch is not None:
        run.epochs_done, run.step, run.partial = args.start_epoch, 0, None
    devices = place.ranks * place.devices
    rate = f"--base-lr {args.base_lr}" if args.base_lr else f"--lr {args.lr} {args.lr_scaling}"
    say(
        place,
        f"{args.arch} ({args.precision}) on {devices} x {device_name(place.device)}: -b "
        f"{args.batch_size} x {devices} devices x {args.accumulation} parts = global batch "
        f"{data.global_batch}; {rate} -> peak learning rate {peak_learning_rate(args, data):g}"
        + (f"\nGoing on at epoch {run.epochs_done} step {run.step}: {found.path}" if found else "")
        + (f"\nLogs and checkpoints: {folder}" if folder else ""),
    )
    return run


def keep_freed_memory():
    """Has glibc keep what is freed: large activations would else go back to the kernel at every
    step, which clears their pages anew, for a fifth of the step's time.
    """
    with contextlib.suppress(OSError, TypeError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


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
    args, place, order = run.args, run.place, run.data.order
    run.watch.listen()
    run.started = time.perf_counter() - run.seconds
    run.traffic.sample(run.log, run.epochs_done * order.steps + run.step)
    # Exact sums are the same on all ranks, so all of them stop together.
    while run.epochs_done < args.epochs and not is_good_enough(run):
        entries = train_one_epoch(run, run.epochs_done) | validate(run)
        run.epochs_done, run.step, run.meter = run.epochs_done + 1, 0, None
        is_best = entries["Top1/val"] >= run.best_top1
        run.best_top1 = max(run.best_top1, entries["Top1/val"])
        run.best_top5 = max(run.best_top5, entries["Top5/val"])
        save_checkpoint(run, is_best)
        run.traffic.sample(run.log, run.epochs_done * order.steps)
        if place.rank == 0:
            for tag, value in entries.items():
                run.log.add_scalar(tag, value, run.epochs_done)
            run.log.flush()
    reason = f"all {args.epochs} epochs are done"
    if is_good_enough(run):
        reason = f"desired accuracy reached: top-1 {run.best_top1:.3f} %"
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
    finish_saving(run)


def is_good_enough(run):
    """Returns whether --desired-acc is reached."""
    return bool(run.args.desired_acc) and run.best_top1 >= 100 * run.args.desired_acc


def finish_saving(run):
    """Waits, on all ranks, for the last checkpoint to be on the disk; else ends in a Fault."""
    run.watch.doing = "saving a checkpoint", time.monotonic()
    unsaved = torch.zeros(1, device=run.place.device)
    if run.place.rank == 0:
        unsaved += not (run.saver.wait() or run.saver.try_again().wait())
    if sum_over_ranks(unsaved).item():
        raise Fault(f"the last checkpoint is not in {run.folder}, which could not be written")


def end_preempted(run):
    """Ends a run whose checkpoint was taken because of a signal or --max-hours."""
    finish_saving(run)
    why = run.watch.why() or "a signal to another rank"
    if run.place.rank == 0:
        marker = {"why": why, "epoch": run.epochs_done, "step": run.step}
        with contextlib.suppress(OSError):
            (run.folder / "PREEMPTED").write_text(json.dumps(marker) + "\n")
        run.log.close()
        say(run.place, f"ended by {why} with a checkpoint: --resume auto goes on from it")
        if run.args.requeue and why in ("SIGUSR1", "--max-hours"):  # SIGTERM is scancel's
            words = ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]
            try:
                subprocess.run(words, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                print_error(f"{' '.join(words)}: {first_line(error)}: the job does not come back")
    sum_over_ranks(torch.zeros(1, device=run.place.device))  # who leaves may take rank 0 along
    leave()
    end_now(143)


def profile(run):
    """Trains up to step --prof, then ten steps under PyTorch's profiler: a trace in the folder."""
    order, run.step, run.partial = run.data.order, 0, None
    first, end = run.args.prof, run.args.prof + 10
    if first:
        order.end = first
        train_one_epoch(run, 0)
    order.end = end  # from run.step on
    with torch.profiler.profile() as profiler:
        train_one_epoch(run, 0)
    if run.place.rank == 0:
        profiler.export_chrome_trace(str(run.folder / "trace.json"))
        print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))
        print(f"Trace of steps {first} to {end - 1}: {run.folder / 'trace.json'}")


def bench(run, seconds=5):
    """Measures images/s of the model alone, the loader alone and both: two steps or more of each,
    about so many seconds."""
    args, place, order = run.args, run.place, run.data.order
    for group in run.optimizer.param_groups:
        group["lr"] = 0.0
    spent = []  # seconds of a loader worker for an image

    def loaded():
        for order.epoch in itertools.count():
            for images, target, taken, _ in run.data.train:
                spent.append(float(taken.mean()))
                yield images, target

    def train(batches):
        run.model.train()
        for images, target in batches:
            train_step(run.model, run.criterion, run.optimizer, run.scaler, images, target, args)
            yield

    share = run.data.global_batch // place.ranks
    size, classes = run.data.image_size, run.data.num_classes
    made = DummyLoader(itertools.repeat(range(share)), share, size, classes, place.device)
    synthetic = ((images, target) for images, target, *_ in made)
    model = rate(train(on_device(synthetic, run)), run, seconds)
    say(place, f"model {model:,.1f} images/s, on synthetic images")
    if args.dummy:
        return
    loader = rate(loaded(), run, seconds)
    both = rate(train(on_device(loaded(), run)), run, seconds)
    say(place, f"loader {loader:,.1f}, model {model:,.1f}, both {both:,.1f} images/s")
    if args.decode == "cuda":
        return
    worker = 1 / np.mean(spent)
    say(place, verdict(max(0, 1 - both / model), loader, model, worker, place))


def rate(steps, run, seconds):
    """Returns images/s of all ranks over about so many seconds of steps."""
    device, ranks = run.place.device, run.place.ranks

    def clock():
        sum_over_ranks(torch.zeros(1, device=device)).item()  # sync point, of GPU and ranks
        return time.perf_counter()

    def go(count):
        started = clock()
        for _ in range(count):
            next(steps)
        return clock() - started

    go(2)  # workers start, kernels are chosen
    pace = torch.tensor([go(1)], dtype=exact_dtype(device), device=device)
    count = max(2, round(seconds * ranks / sum_over_ranks(pace).item()))  # the same on all ranks
    return run.data.global_batch * count / go(count)


def worker(args):
    """One rank of the run, from joining the others to leaving them."""
    place = run = None
    try:
        place = join(args)
        run = set_up(args, place)
        if args.evaluate:
            validate(run)
        elif args.prof is not None:
            profile(run)
        elif args.bench:
            bench(run)
        else:
            try:
                fit(run)
            except Preempted:
                end_preempted(run)
        leave()
    except BadInput as error:
        complain(error, 2, run)
    except Fault as error:
        complain(error, 1, run)
    except Exception as error:
        why = None
        if run and re.search(r"DataLoader worker \(pid", str(error)):  # died, and PyTorch says how
            why = f"rank {place.rank}: {first_line(error)}: out of memory? lower -j"
        elif run and re.search("Connection (closed|reset)|reset by peer", str(error)):
            why = f"rank {place.rank} has lost another rank, which may have said why"
        if not why:
            raise
        if run.saver:
            run.saver.wait()
        print_error(why)
        end_now(1)


def complain(error, status, run=None):
    """Ends with one line: the last of an error that quotes a worker's traceback."""
    if int(os.environ.get("RANK", 0)):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(5)  # rank 0 speaks for all, if it is slow too; its launcher ends the others
    if run and run.saver:
        run.saver.wait()
    print_error(str(error).split("BadInput: ")[-1].strip())
    sys.exit(status)


def print_error(line):
    """Prints why the script ends, after its name."""
    print_line(f"{Path(sys.argv[0]).name}: error: {line}", sys.stderr)


def main():
    """Reads the options and launches the workers."""
    args = parse_args()
    try:
        launch(worker, args)
    except BadInput as error:
        complain(error, 2)
    except KeyboardInterrupt:  # before or after training
        sys.exit(130)


if __name__ == "__main__":
    main()
