"""Is it the loader or the model that limits training on one device? Images/s of each, and of both.

    python tools/find_bottleneck.py DIR                                # with the scripts' defaults
    python tools/find_bottleneck.py -a resnet50 -b 128 -j 8 --amp bfloat16 --channels-last DIR

All options but --steps are those of imagenet_nd.py, whose own loop is measured on DIR, then its
loader alone, then the model, on synthetic images. A run's --output-dir may be among them: nothing
there is read or written. Close other programs first.
"""

import contextlib
import io
import itertools
import math
import multiprocessing
import signal
import sys
import tempfile
import time

from commandline import make_parser, one_line

import imagenet_nd as nd
from trainparts import devices, errors

WARM_UP = 3  # steps in which kernels are chosen and compiled


def start(script, words):
    """Returns the Run of a script, a module, with these options and no time-out; signals do what
    they do in every program."""
    args = script.parse_args([*map(str, words), "--timeout", "0"])
    if args.evaluate:
        raise errors.BadInput("--evaluate trains no steps")
    with contextlib.redirect_stdout(io.StringIO()):
        run = script.build_run(args)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Shows whether there is a step to train.
    first = next(run.batches, None)
    if first is None:
        raise errors.BadInput("there is no step to train")
    run.batches = itertools.chain([first], run.batches)
    return run


def train_steps(script, run, steps):
    """Trains so many more steps, by the script's own loop, which takes them for the whole epoch;
    returns what it logs of one, {tag: value}."""
    data, run.data = run.data, run.data._replace(steps=run.step + steps)
    values = script.train_one_epoch(run)
    run.data = data
    return values


def train(run, steps):
    """Trains so many steps, and prints nothing."""
    with contextlib.redirect_stdout(io.StringIO()):
        train_steps(nd, run, steps)


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
    run = start(nd, [*words, "--output-dir", f"{folder}/data"])  # the last one typed counts
    workers = run.data.workers
    needed, there = 2 * (steps + WARM_UP + 2 * workers), run.data.steps
    if there < needed:
        fewer = workers if there // 2 > WARM_UP + 2 * workers else 0
        most = there // 2 - WARM_UP - 2 * fewer
        cure = f"give --steps {most} -j {fewer}" if most > 0 else "lower -b, or give more images"
        raise errors.BadInput(
            f"an epoch has {there} steps, fewer than are needed, {needed}: {cure}"
        )
    both, loader = (images_per_second(work, run, steps) for work in (train, load))
    kill_workers()
    run = start(nd, [*words, "--dummy", "--output-dir", f"{folder}/dummy"])
    return loader, images_per_second(train, run, steps), both, workers


def enough_workers(loader, model, workers, cores):
    """Returns how many loader processes, of which `workers` load `loader` images/s, feed a model of
    `model` images/s, if each has a core."""
    each = loader / min(max(1, workers), cores)  # images/s of a core
    return math.ceil(1.1 * model / each)  # a tenth to spare


def advice(loader, model, workers, cores):
    """Returns what limits training, and what would do."""
    enough = enough_workers(loader, model, workers, cores)
    if loader > 1.1 * model:
        return f"The model limits; -j {enough} would do."
    if enough <= cores:
        return f"The loader limits; -j {enough} would do."
    smaller = "tools/make_shards.py --resize 500 or --raw 256 make images that load faster"
    return f"The loader limits; -j {enough} would do on as many cores, here are {cores}: {smaller}."


def main():
    """Measures, prints the three rates and the advice."""
    parser = make_parser(__doc__)
    text = "measured of each, after a few to warm up (%(default)s)"
    parser.add_argument("--steps", type=int, default=30, help=text)
    args, words = parser.parse_known_args()
    if args.steps < 1:
        parser.error(f"--steps {args.steps}: 1 or more")
    try:
        with one_line(parser), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            loader, model, both, workers = measure(words, args.steps, folder)
    except Exception as error:  # as the script reports it: one line, but of a bug all
        sys.exit(errors.report_error(error))
    finally:
        kill_workers()
    cores = devices.cores_per_rank()
    print(f"images/s: loader {loader:,.0f} (-j {workers}), model {model:,.0f}, both {both:,.0f}")
    print(advice(loader, model, workers, cores))
    if not nd.torch.accelerator.is_available():
        print("Without a GPU, loader and model share the cores: both together are slower.")


if __name__ == "__main__":
    main()
