"""Images/s of training on a CUDA GPU, with memory and share of the card's peak, in eight minutes.

    python benchmarks/gpu.py                  # all; one_gpu.py measures the rows of its stages
    python benchmarks/gpu.py --only '--amp float16 --channels-last' 'O1 --channels-last' --profile
    python benchmarks/gpu.py -a vit_l_16 -b 128 --float8  # float8 beside bfloat16, compiled
    python benchmarks/gpu.py --arch resnet18 -b 4 --image-size 32 --minutes 1      # on the CPU

Trains on synthetic images with the scripts' own code: imagenet_nd.py in bfloat16 and float16, also
with all of a recipe that the device computes, and imagenet_ddp_apex.py at every opt level, with and
without --channels-last and --compile. What matters most comes first; what is not done after
--minutes is recorded as not measured, and so is what fails. --profile also writes, beside --out, a
file of the time that the device spends in each of PyTorch's operators.
"""

import functools
import gc
import os
import statistics
import sys
import tempfile
import time

import common
import torch
from common import count, option
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity
from torchvision import models
from training import CLASSES, synchronize

from reporting.peaks import share_of_peak
from trainparts import devices, errors, float8_support, model_flops

RECIPE = "--mixup 0.2 --cutmix 1 --label-smoothing 0.1 --norm-wd 0 --clip-grad 1 --ema 0.9989"
PRECISIONS = {
    "bfloat16": ("imagenet_nd", ["--amp", "bfloat16"]),
    "float16": ("imagenet_nd", ["--amp", "float16"]),
    "bfloat16, recipe": ("imagenet_nd", ["--amp", "bfloat16", *RECIPE.split()]),
    **{level: ("imagenet_ddp_apex", ["--opt-level", level]) for level in ("O2", "O1", "O3", "O0")},
}
FLOAT8 = {
    "bfloat16": PRECISIONS["bfloat16"],
    "float8": ("imagenet_nd", ["--amp", "float8"]),
    "float8, rowwise": ("imagenet_nd", ["--amp", "float8", "--float8-scaling", "rowwise"]),
}
MODES = ("off", "default", "reduce-overhead")
WARM_UP_STEPS = 5  # cuDNN tries its algorithms in the first, CUDA graphs are recorded by the third
BLOCKS = 3  # measured, one after the other
IMAGES_PER_BLOCK = 2560  # a second of an H200
PROFILED_STEPS = 3
OPERATORS = 12  # of a profile that have rows of their own, those that take longest


# ---------------------------------------------------------------------------------- what to measure


def jobs_of(args):
    """Returns the trainings to measure, as dicts, the most important first."""
    if args.float8:
        common_to_all = {"channels_last": False, "mode": "default"}
        batches = args.batch_size
        return [{"precision": p, "batch": b} | common_to_all for b in batches for p in FLOAT8]
    jobs = [
        {"precision": precision, "channels_last": layout, "mode": mode, "batch": batch}
        for batch in args.batch_size
        for mode in MODES
        for precision in PRECISIONS
        for layout in ((True,) if "recipe" in precision else (True, False))
    ]

    def importance(job):
        precision, fast = job["precision"], job["channels_last"]
        eager, first = job["mode"] == "off", job["batch"] == args.batch_size[0]
        return [
            eager and first and precision == "O0" and not fast,  # what the others compare with
            eager and first and fast,
            precision.startswith("bfloat16") and first and fast,
            eager and fast,
            precision == "O2" and first and fast,
            eager and first,
            precision == "bfloat16" and fast,
            eager,
            True,
        ].index(True)

    jobs.sort(key=importance)
    for word in args.only or []:
        if not any(word in name_of(job) for job in jobs):
            raise errors.BadInput(f"--only {word}: no row has that in its name")
    return [job for job in jobs if any(word in name_of(job) for word in args.only or [""])]


def options_of(job):
    """Returns a training's options, as one types them."""
    compiled = ["--compile", "--compile-mode", job["mode"]] if job["mode"] != "off" else []
    layout = ["--channels-last"] if job["channels_last"] else []
    return [*script_and_options(job)[1], *compiled, *layout, "-b", str(job["batch"])]


def name_of(job):
    """Returns the row's name."""
    return " ".join([f"{script_and_options(job)[0]}.py", *options_of(job)])


def script_and_options(job):
    """Returns the script of a training, and its options of precision."""
    return (PRECISIONS | FLOAT8)[job["precision"]]


# --------------------------------------------------------------------------------------- measuring


def train(args, scratch, job):
    """Returns a training's row."""
    gc.collect()  # the model before
    torch.compiler.reset()  # or the next batch size would be compiled as a variable one
    steps = args.steps or max(3, IMAGES_PER_BLOCK // job["batch"])
    # The labels are random: a low rate keeps the loss finite, and so no step is skipped.
    words = ["-a", args.arch, "--dummy", "--lr", 0.001, "--lr-scaling", "none", "--epochs", 1]
    words += ["--num-classes", CLASSES, "-p", 10**9, *options_of(job)]
    words += ["--output-dir", tempfile.mkdtemp(dir=scratch)]
    words += ["--image-size", args.image_size] if args.image_size else []
    script, run = common.start(script_and_options(job)[0], words)
    device, values = run.place.device, []
    common.train_steps(script, run, WARM_UP_STEPS)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()  # the algorithms that cuDNN tried do not count
    for _ in range(BLOCKS):
        synchronize()
        started = time.perf_counter()
        common.train_steps(script, run, steps)
        synchronize()
        values.append(steps * job["batch"] / (time.perf_counter() - started))
    operators = profile(script, run) if args.profile else {}
    script.cleanup()
    counted = device.type == "cuda" and job["mode"] != "reduce-overhead"  # of CUDA graphs, nothing
    gib = f"{torch.cuda.max_memory_allocated() / 2**30:.1f}" if counted else "-"
    with torch.device("meta"):
        images = torch.empty(2, 3, run.data.image_size, run.data.image_size)  # 1: no BatchNorm
        flops = model_flops.count_training(models.get_model(args.arch), images) / 2
    share = share_of_peak(statistics.median(values), flops, devices.device_name(device))
    row = {"values": values, "peak memory, GiB": gib, "of bf16 peak, %": share}
    return row, operators


def profile(script, run):
    """Returns {operator: ms of a step} of a few more steps, as torch.profiler attributes the time
    of kernels to the operators of PyTorch that launched them; on the CPU, their own time there. {}
    where the profiler sees no kernels."""
    on_gpu, kinds = run.place.device.type == "cuda", [ProfilerActivity.CPU]
    kinds += [ProfilerActivity.CUDA] if on_gpu else []
    with torch.profiler.profile(activities=kinds) as profiler:
        common.train_steps(script, run, PROFILED_STEPS)
        synchronize()
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"  # microseconds
    found = {}
    for event in profiler.key_averages():
        # Kernels have rows too: their time is that of the operators.
        if event.device_type == DeviceType.CPU and getattr(event, own) > 0:
            found[event.key] = getattr(event, own) / 1e3 / PROFILED_STEPS
    return found


def operator_rows(profiles):
    """Returns the rows of {what: {operator: ms of a step}}: the operators that take longest in any,
    the others together, all."""
    longest = {
        name: max(each.get(name, 0) for each in profiles.values())
        for each in profiles.values()
        for name in each
    }
    shown = sorted(longest, key=longest.get, reverse=True)[:OPERATORS]
    rows = []
    for what, each in profiles.items():
        parts = {name: each.get(name, 0.0) for name in shown}
        parts |= {"all others": sum(each.values()) - sum(parts.values())}
        parts |= {"all": sum(each.values())}
        rows += [{"name": f"{name}, {what}", "values": [ms]} for name, ms in parts.items()]
    return rows


def start(args, scratch):
    """Returns a Server to be asked for jobs."""
    return common.Server(functools.partial, train, args, scratch)


def measure(args, scratch):
    """Measures until the time is up, writes what there is."""
    if not torch.cuda.is_available() and not (args.batch_size and args.image_size):
        small = "to try it on the CPU, add --arch resnet18 -b 4 --image-size 32 --minutes 1"
        raise errors.BadInput(f"PyTorch finds no CUDA GPU here; {small}")
    if args.float8:
        kind = "cuda:0" if torch.cuda.is_available() else "cpu"
        float8_support.load_torchao("rowwise", torch.device(kind))
    args.batch_size = args.batch_size or [256, 1024]
    # A process that is killed leaves semaphores to Python's tracker, which says so.
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    deadline, rows, server = time.monotonic() + 60 * args.minutes, [], None
    profiles = {}
    try:
        for job in jobs_of(args):
            seconds, answer, why = deadline - time.monotonic(), None, common.OUT_OF_TIME
            print(f"{seconds:4.0f} s left: {name_of(job)}", file=sys.stderr, flush=True)
            if seconds > 0:
                server = server or start(args, scratch)
                answer, why = server.ask(job, seconds=seconds)
            measured, operators = answer or ({common.UNMEASURED: why}, {})
            rows.append({"name": name_of(job), "values": []} | measured)
            if operators:
                profiles[" ".join(options_of(job))] = operators
            if server and why:  # its process is over
                server = server.stop()
    finally:
        if server:
            server.stop()
    what = f"{args.image_size} pixels" if args.image_size else "its own size"
    title = f"Training {args.arch} on synthetic images of {what}, one device"
    facts = {"minutes": args.minutes}
    common.write(args.out, title, "images/s", rows, rows[0]["name"], facts)
    if profiles:
        out = args.out.with_name(f"{args.out.stem}_operators.json")
        facts = {"steps": PROFILED_STEPS}
        title = f"Time of PyTorch's operators in a step of {args.arch}"
        common.write(out, title, "ms/step", operator_rows(profiles), "", facts)


OPTIONS = [
    option("-a", "--arch", default="resnet50", help="any torchvision classifier"),
    option("-b", "--batch-size", type=count, nargs="+", help="images per step (256 1024)"),
    option("--image-size", type=count, help="pixels (default: the architecture's own)"),
    option("--steps", type=count, help=f"of each of {BLOCKS} blocks ({IMAGES_PER_BLOCK} images)"),
    option("--only", nargs="+", metavar="NAME", help="rows with these words"),
    option("--float8", action="store_true", help="float8 beside bfloat16 alone; for a ViT"),
    option("--profile", action="store_true", help="also time each operator"),
    option("--minutes", type=float, default=7.5, help="when to end"),
]
main = functools.partial(common.main, __doc__, measure, "gpu", OPTIONS)

if __name__ == "__main__":
    main()
