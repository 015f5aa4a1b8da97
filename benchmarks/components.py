"""What each component of a recipe costs: images/s of loading and of training, on and off.

    python benchmarks/components.py DIR                 # DIR holds train/<class>/*.JPEG
    python benchmarks/components.py DIR --only trivial mixup

The loader is imagenet_nd.py's, of one worker; training is its train_one_epoch() on synthetic
images. Every row runs in a process of its own, in turn with the others.
"""

import collections
import functools
import itertools
import time

import common
from common import DIR, ONLY, count, option

PLAIN = "all off"
KINDS = {
    "loader": (
        *(PLAIN, "--flip alternate", "--auto-augment trivial", "--auto-augment rand"),
        *("--random-erase 1", "--repeated-aug 4", "--image-size 176"),
    ),
    "training": (
        *(PLAIN, "--mixup 0.2", "--cutmix 1", "--label-smoothing 0.1", "--loss bce"),
        *("--norm-wd 0", "--clip-grad 1", "--ema 0.999", "--optimizer adamw"),
    ),
}
SIZE = 64  # pixels in training, which is soon done: at 224 components cost a smaller part


def make(kind, words, scratch, args):
    """Returns a function that measures a round of one row, and returns images/s."""
    words = [*words, "-b", args.batch_size, "--log-dir", scratch / "runs"]
    if kind == "loader":
        steps = args.loader_steps
        begin = common.loader_of([*words, "-j", 1, scratch / "images"])
        batches = itertools.chain.from_iterable(map(begin, itertools.count()))

        def work(steps):
            collections.deque(itertools.islice(batches, steps), maxlen=0)
    else:
        steps = args.steps
        options = ["--dummy", "-a", args.arch, "--image-size", SIZE]
        work = functools.partial(common.train_steps, *common.start("imagenet_nd", words + options))

    work(3)  # what is loaded ahead would cost nothing

    def images_per_second():
        started = time.perf_counter()
        work(steps)
        return steps * args.batch_size / (time.perf_counter() - started)

    return images_per_second


def measure(args, scratch):
    """Measures the loader, then training; writes a table of each."""
    common.link_images(args.dir, 40 * args.batch_size, scratch / "images")
    chosen = common.select(dict.fromkeys(sum(KINDS.values(), ())), args.only, PLAIN)
    for kind, names in KINDS.items():
        words = {name: [] if name == PLAIN else name.split() for name in names if name in chosen}
        makes = {name: (make, kind, words[name], scratch, args) for name in words}
        rows = common.measure_apart(makes, args.rounds)
        steps = args.loader_steps if kind == "loader" else args.steps
        facts = {"rounds": args.rounds, "images": steps * args.batch_size, "batch": args.batch_size}
        facts |= {"image_size": SIZE} if kind == "training" else {}
        out, title = common.beside(args.out, kind), f"Components of a recipe: {kind}"
        common.write(out, title, "images/s", rows, PLAIN, facts, "nvidia-nvimgcodec")


OPTIONS = [
    DIR,
    option("-a", "--arch", default="resnet18", help="of torchvision"),
    option("-b", "--batch-size", type=count, default=32),
    option("--steps", type=count, default=32, help="of training in a round"),
    option("--loader-steps", type=count, default=12, help="of loading in a round"),
    option("--rounds", type=count, default=5),
    ONLY,
]
main = functools.partial(common.main, __doc__, measure, "components", OPTIONS, "loader or training")

if __name__ == "__main__":
    main()
