"""Is it the loader or the model that limits training on one device? Images/s of each, and of both.

    python tools/bottleneck.py DIR                                # with the scripts' defaults
    python tools/bottleneck.py -a resnet50 -b 128 -j 8 --amp bfloat16 --channels-last DIR

All options but --steps are those of imagenet_nd.py, whose own loop is measured on DIR, then its
loader alone, then the model, on synthetic images. Close other programs first.
"""

import argparse
import contextlib
import io
import itertools
import math
import multiprocessing
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import imagenet_nd as nd

WARM_UP = 3  # steps in which kernels are chosen and compiled


def start(words):
    """Returns a Run of imagenet_nd.py with these options and no time-out; signals do what they do
    in every program."""
    with contextlib.redirect_stdout(io.StringIO()):
        run = nd.build_run(nd.parse_args([*words, "--timeout", "0"]))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Begins the schedule, which takes the steps of an epoch from the data that train() changes.
    run.batches = itertools.chain([next(run.batches)], run.batches)
    return run


def train(run, steps):
    """Trains so many steps of the epoch, by the script's own loop, which takes them for all."""
    data, run.data = run.data, run.data._replace(steps=run.step + steps)
    with contextlib.redirect_stdout(io.StringIO()):
        nd.train_one_epoch(run)
    run.data = data


def load(run, steps):
    """Loads the batches of so many steps, normalised, on the device."""
    for *_, images, _ in itertools.islice(run.batches, steps):
        images[0, 0, 0, 0].item()  # waits for the device
    run.step += steps


def kill_workers():
    """Ends the loader's processes, which ignore signals and may wait to hand over a batch."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # PyTorch's handler raises
    for child in multiprocessing.active_children():
        child.kill()


def images_per_second(work, run, steps):
    """Returns the images/s of work(run, steps)."""
    work(run, WARM_UP + 2 * run.data.workers)  # what is loaded ahead would cost nothing
    started = time.perf_counter()
    work(run, steps)
    return steps * run.data.global_batch / (time.perf_counter() - started)


def measure(words, steps, folder):
    """Returns images/s of (loader, model, both), and the number of loader processes."""
    words = [*words, "--log-dir", folder]
    run = start(words)
    workers = run.data.workers
    needed = 2 * (steps + WARM_UP + 2 * workers)
    if run.data.steps < needed:
        raise nd.BadInput(f"{needed} steps of {run.data.steps} in an epoch: lower --steps or -b")
    both, loader = (images_per_second(work, run, steps) for work in (train, load))
    kill_workers()
    run = start([*words, "--dummy"])
    return loader, images_per_second(train, run, steps), both, workers


def advice(loader, model, workers, cores):
    """Returns what limits training, and what would do."""
    each = loader / min(max(1, workers), cores)  # images/s of a core
    enough = math.ceil(1.1 * model / each)  # a tenth to spare
    if loader > 1.1 * model:
        return f"The model limits; -j {enough} would do."
    if enough <= cores:
        return f"The loader limits; -j {enough} would do."
    smaller = "tools/make_shards.py --resize 500 or --raw 256 make images that load faster"
    return f"The loader limits; -j {enough} would do on as many cores, here are {cores}: {smaller}."


def main():
    """Measures, prints the three rates and the advice."""
    about = __doc__.split("\n\n")[0]
    parser = argparse.ArgumentParser(description=about, usage=argparse.SUPPRESS, allow_abbrev=False)
    text = "measured of each, after a few to warm up (%(default)s)"
    parser.add_argument("--steps", type=int, default=30, help=text)
    args, words = parser.parse_known_args()
    if args.steps < 1:
        parser.error(f"--steps {args.steps}: 1 or more")
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            loader, model, both, workers = measure(words, args.steps, folder)
    except nd.BadInput as error:
        parser.error(str(error))
    finally:
        kill_workers()
    cores = nd.cores_per_rank(nd.Place(None))
    print(f"images/s: loader {loader:,.0f} (-j {workers}), model {model:,.0f}, both {both:,.0f}")
    print(advice(loader, model, workers, cores))
    if not nd.torch.accelerator.is_available():
        print("Without a GPU, loader and model share the cores: both together are slower.")


if __name__ == "__main__":
    main()
