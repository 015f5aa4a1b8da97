"""What each component of a recipe costs: images/s of loading and of training, on and off.

    python benchmarks/components.py DIR                 # DIR holds train/<class>/*.JPEG
    python benchmarks/components.py DIR --only trivial mixup

The loader is imagenet_nd.py's, of one worker; training is its train_one_epoch() on synthetic
images. Every row runs in a process of its own, in turn with the others.
"""

import contextlib
import io
import itertools
import multiprocessing
import tempfile
import time
from pathlib import Path

import common
from common import ROOT, BadInput, count, interleave, option_parser, select, write

PLAIN = "all off"
LOADER = (
    *(PLAIN, "--flip alternate", "--auto-augment trivial", "--auto-augment rand"),
    *("--random-erase 1", "--repeated-aug 4", "--image-size 176"),
)
TRAINING = (
    *(PLAIN, "--mixup 0.2", "--cutmix 1", "--label-smoothing 0.1", "--loss bce", "--norm-wd 0"),
    *("--clip-grad 1", "--ema 0.999", "--optimizer adamw"),
)
SIZE = 64  # pixels in training, which is soon done: at 224 components cost a smaller part


def serve(connection, kind, words, folder, args):
    """A process that measures one row whenever it is asked: it sends images/s."""
    import imagenet_nd as nd

    with contextlib.redirect_stdout(io.StringIO()):
        if kind == "loader":
            begin = common.loader_of(nd, [*words, "-b", args.batch_size, "-j", 1, folder])
            batches = itertools.chain.from_iterable(begin(serial) for serial in itertools.count())
        else:
            options = ["--dummy", "-a", args.arch, "-b", args.batch_size, "--image-size", SIZE]
            run = common.start("imagenet_nd", [*words, *options, "--log-dir", folder])[1]

        def work(steps):
            if kind == "loader":
                for _ in itertools.islice(batches, steps):
                    pass
            else:
                common.train_steps(nd, run, steps)

        work(3)  # what is loaded ahead would cost nothing
        connection.send(None)
        while connection.recv():
            steps = args.loader_steps if kind == "loader" else args.steps
            started = time.perf_counter()
            work(steps)
            connection.send(steps * args.batch_size / (time.perf_counter() - started))
    common.kill_workers()


def measure(kind, rows, folder, args):
    """Returns the rows: images/s of every round."""
    ways, context = {}, multiprocessing.get_context("spawn")
    for name in rows:
        words = [] if name == PLAIN else name.split()
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(there, kind, words, folder, args))
        process.start()
        here.recv()

        def once(connection=here):
            connection.send(True)
            return connection.recv()

        ways[name] = once
    values = interleave(ways, args.rounds)
    for process in multiprocessing.active_children():
        process.kill()
    return [{"name": name, "values": values[name]} for name in values]


def main():
    """Measures the loader, then training; writes a table of each."""
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("dir", metavar="DIR", type=Path, help="has train/<class>/*.JPEG")
    add("-a", "--arch", default="resnet18", help="of torchvision (%(default)s)")
    add("-b", "--batch-size", type=count, default=32, help="(%(default)s)")
    add("--steps", type=count, default=32, help="of training in a round (%(default)s)")
    add("--loader-steps", type=count, default=12, help="of loading in a round (%(default)s)")
    add("--rounds", type=count, default=5, help="(%(default)s)")
    add("--only", nargs="+", metavar="NAME", help="rows with these words")
    file = "(logs/benchmarks/components.json, loader or training added to the name)"
    default = ROOT / "logs" / "benchmarks" / "components.json"
    add("--out", type=Path, default=default, help=file)
    args = parser.parse_args()
    kinds = {"loader": (LOADER, args.loader_steps), "training": (TRAINING, args.steps)}
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            images = Path(scratch) / "images"
            common.link_images(args.dir, 40 * args.batch_size, images)
            for kind, (rows, steps) in kinds.items():
                chosen = select(dict.fromkeys(LOADER + TRAINING), args.only, PLAIN)
                folder = images if kind == "loader" else Path(scratch) / "runs"
                found = measure(kind, [name for name in rows if name in chosen], folder, args)
                facts = {"rounds": args.rounds, "images": steps * args.batch_size}
                facts |= {"batch": args.batch_size}
                facts |= {"image_size": SIZE} if kind == "training" else {}
                title = f"Components of a recipe: {kind}"
                about = common.about("nvidia-nvimgcodec")
                out = args.out.with_name(f"{args.out.stem}_{kind}.json")
                write(out, title, "images/s", found, PLAIN, about, facts)
    except BadInput as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
