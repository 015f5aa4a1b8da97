"""Processor time of an image, a step and a --help: of this checkout, and of another commit's.

    git worktree add BEFORE COMMIT
    python benchmarks/processor_time.py BEFORE DIR              # ten pairs of each: 20 minutes
    python benchmarks/processor_time.py BEFORE DIR --only step  # of one

For who changes a part that all scripts use, and must not make them slower. Each value is the time,
of user and system, of a process of its own and its children, with one thread:

- image: an image of DIR, by the loader of imagenet_nd.py without loader processes; the fastest of
  ten passes, because other programs on the machine only add
- loaded: an image of DIR, with two loader processes, over all passes
- step: a step of its loop, on synthetic images; the fastest of ten epochs
- help: its --help

Before and after take turns, and change places from pair to pair. Printed are all pairs and the
median of their ratios, after / before; nothing is written.
"""

import argparse
import contextlib
import io
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
UNITS = {
    "image": "ms an image",
    "loaded": "ms an image, of two loader processes",
    "step": "ms a step",
    "help": "ms a --help",
}
BATCH, PASSES = 32, 10


def used(processes=()):
    """Returns the seconds that this process, its children that have ended, and some that live have
    computed."""
    who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    times = [sum(resource.getrusage(each)[:2]) for each in who]
    return sum(times) + sum(sum(process.cpu_times()[:2]) for process in processes)


def import_of(checkout, name):
    """Returns a module of a checkout, and not of this one."""
    module = __import__(name)
    assert Path(module.__file__).is_relative_to(checkout), module.__file__
    return module


def passes_over(checkout, folder, workers):
    """Returns a function of a pass's number, which loads all of DIR; it returns how many images."""
    words = ["-j", workers, "-b", BATCH, "--epochs", 1000, folder]
    passes = import_of(checkout, "common").loader_of(words)
    return lambda serial: sum(len(pixels) for pixels, *_ in passes(serial))


def image(checkout, folder, steps):
    """Returns the seconds that an image takes, after a pass that warms up."""
    load, seconds = passes_over(checkout, folder, workers=0), []
    for serial in range(1 + PASSES):
        before = used()
        images = load(serial)
        seconds.append((used() - before) / images)
    return min(seconds[1:])


def loaded(checkout, folder, steps):
    """Returns the seconds that an image takes with loader processes, after a pass that warms up."""
    load = passes_over(checkout, folder, workers=2)
    load(0)
    workers = psutil.Process().children()
    before = used(workers)
    images = sum(load(serial) for serial in range(1, 1 + PASSES))
    return (used(workers) - before) / images


def step(checkout, folder, steps):
    """Returns the seconds that a step takes, after an epoch that warms up."""
    nd = import_of(checkout, "imagenet_nd")
    words = "-a squeezenet1_1 --image-size 32 --num-classes 10 -b 4 --no-accel --dummy --lr 0.001"
    words += f" --checkpoint-minutes 0 --epochs {1 + PASSES} --steps-per-epoch {steps}"
    words += " --output-dir run"
    seconds = []
    with contextlib.redirect_stdout(io.StringIO()):
        run = nd.build_run(nd.parse_args(words.split()))
        for run.epoch in range(1 + PASSES):
            run.step, before = 0, used()
            nd.train_one_epoch(run)
            seconds.append((used() - before) / steps)
    return min(seconds[1:])


def start(checkout, folder, steps):
    """Returns the seconds that --help takes."""
    before = used()
    words = [sys.executable, checkout / "imagenet_nd.py", "--help"]
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    return used() - before


def measure_here(kind, checkout, folder, steps):
    """Prints the milliseconds of one value, and ends this process with its loader processes."""
    mine = {str(Path(__file__).resolve().parent), str(ROOT)}
    sys.path[:] = [each for each in sys.path if each not in mine]
    sys.path[:0] = map(str, (checkout, checkout / "benchmarks", checkout / "tools"))
    seconds = {"image": image, "loaded": loaded, "step": step, "help": start}[kind](
        checkout, folder, steps
    )
    print(1000 * seconds, flush=True)
    for child in psutil.Process().children():  # loader processes
        child.kill()
    os._exit(0)


def measure(kind, checkout, folder, steps):
    """Returns the milliseconds of one value, from a process of its own."""
    words = [sys.executable, __file__, checkout, folder, "--here", kind, "--steps", str(steps)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": ""}
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(words, cwd=scratch, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{Path(__file__).name}: error: {checkout}: {done.stderr.strip()[-2000:]}")
    return float(done.stdout.split()[-1])


def count(text):
    """Returns a whole number from 1 on: a type of options."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


def main():
    """Measures pairs, and prints them."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("before", metavar="BEFORE", type=Path, help="the other checkout")
    parser.add_argument("dir", metavar="DIR", type=Path, help="has train/<class>/*.JPEG")
    parser.add_argument("--only", choices=UNITS, nargs="+", default=[*UNITS], help="(all)")
    parser.add_argument("--pairs", type=count, default=10, help="of each (%(default)s)")
    parser.add_argument("--steps", type=count, default=100, help="of an epoch (%(default)s)")
    parser.add_argument("--here", choices=UNITS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    needed = (args.before, "imagenet_nd.py"), (args.before, "benchmarks/common.py")
    for folder, name in (*needed, (args.dir, "train")):
        if not (folder / name).exists():
            parser.exit(2, f"{parser.prog}: error: {folder} has no {name}\n")
    before, folder = args.before.resolve(), args.dir.resolve()
    if args.here:
        measure_here(args.here, before, folder, args.steps)
    for kind in args.only:
        pairs = []
        for serial in range(args.pairs):
            ways = {"before": before, "after": ROOT}
            order = [*ways] if serial % 2 else [*reversed(ways)]
            values = {name: measure(kind, ways[name], folder, args.steps) for name in order}
            pairs.append((values["before"], values["after"]))
            print(f"{kind}: {pairs[-1][0]:.3f} {pairs[-1][1]:.3f}", file=sys.stderr, flush=True)
        ratio = statistics.median(after / earlier for earlier, after in pairs)
        shown = "; ".join(f"{earlier:.3f} {after:.3f}" for earlier, after in pairs)
        print(f"{UNITS[kind]}: median ratio {ratio:.3f} of {len(pairs)} pairs: {shown}", flush=True)


if __name__ == "__main__":
    main()
