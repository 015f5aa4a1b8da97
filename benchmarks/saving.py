"""How long a checkpoint stalls training, against a copy of its tensors to host memory.

    python benchmarks/saving.py                                # ResNet-50
    python benchmarks/saving.py -a vit_b_16 --rounds 20

The script's own save_checkpoint(), which returns when the file is on the disk, and save_best(),
which rank 0 calls after validation where the model is the best.
"""

import tempfile
import time
from pathlib import Path

from common import ROOT, about, count, interleave, option_parser, start, train_steps, write

from imagenet_nd import BadInput

BASELINE = "copy to host memory"


def measure(args, folder):
    """Returns (ms of each way in turn, bytes of a checkpoint)."""
    words = ["-a", args.arch, "--dummy", "-b", 2, "-j", 0, "--log-dir", folder]
    script, run = start("imagenet_nd", words)
    train_steps(script, run, 1)  # momentum begins with the first step

    def timed(work):
        def milliseconds():
            before = time.perf_counter()
            work()
            return 1e3 * (time.perf_counter() - before)

        return milliseconds

    ways = {
        BASELINE: timed(lambda: script.full_state(run)),
        "save_checkpoint()": timed(lambda: script.save_checkpoint(run)),
        "save_best(), after it": timed(lambda: script.save_best(run)),
    }
    interleave(ways, 1)  # to warm up
    values = interleave(ways, args.rounds)
    return values, (run.folder / "checkpoint.pt").stat().st_size


def main():
    """Measures, writes the table."""
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("-a", "--arch", default="resnet50", help="of torchvision (%(default)s)")
    add("--rounds", type=count, default=10, help="(%(default)s)")
    add("--log-dir", type=Path, help="on the disk to measure (default: the temporary folder's)")
    add("--out", type=Path, default=ROOT / "logs" / "benchmarks" / "saving.json")
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(dir=args.log_dir) as folder:
            values, size = measure(args, folder)
    except (BadInput, OSError) as error:
        parser.error(str(error))
    facts = {"arch": args.arch, "megabytes": round(size / 1e6)}
    rows = [{"name": name, "values": values[name]} for name in values]
    write(args.out, "Stall of training by a checkpoint", "ms", rows, BASELINE, about(), facts)


if __name__ == "__main__":
    main()
