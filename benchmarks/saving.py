"""How long a checkpoint stalls training, against a copy of its tensors to host memory.

    python benchmarks/saving.py                                # ResNet-50
    python benchmarks/saving.py -a vit_b_16 --rounds 20

The script's own save_checkpoint(), which returns when the file is on the disk, and save_best(),
which rank 0 calls after validation where the model is the best.
"""

import functools
import tempfile
import time
from pathlib import Path

import common
from common import count, option

BASELINE = "copy to host memory"


def milliseconds(work, run):
    """Returns how long work(run) takes."""
    before = time.perf_counter()
    work(run)
    return 1e3 * (time.perf_counter() - before)


def measure(args, scratch):
    """Measures, writes the table."""
    with tempfile.TemporaryDirectory(dir=args.log_dir or scratch) as folder:
        words = ["-a", args.arch, "--dummy", "-b", 2, "-j", 0, "--log-dir", folder]
        script, run = common.start("imagenet_nd", words)
        common.train_steps(script, run, 1)  # momentum begins with the first step
        works = {
            BASELINE: script.full_state,
            "save_checkpoint()": script.save_checkpoint,
            "save_best(), after it": script.save_best,
        }
        ways = {name: functools.partial(milliseconds, work, run) for name, work in works.items()}
        common.interleave(ways, 1)  # to warm up
        values = common.interleave(ways, args.rounds)
        size = (run.folder / "checkpoint.pt").stat().st_size
    facts = {"arch": args.arch, "megabytes": round(size / 1e6)}
    rows = [{"name": name, "values": values[name]} for name in values]
    common.write(args.out, "Stall of training by a checkpoint", "ms", rows, BASELINE, facts)


OPTIONS = [
    option("-a", "--arch", default="resnet50", help="of torchvision"),
    option("--rounds", type=count, default=10),
    option("--log-dir", type=Path, help="on the disk to measure (default: the temporary folder's)"),
]
main = functools.partial(common.main, __doc__, measure, "saving", OPTIONS)

if __name__ == "__main__":
    main()
