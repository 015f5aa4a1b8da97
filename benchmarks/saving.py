"""How long a checkpoint stalls training, against a copy of its tensors to host memory, and waiting
until the file is on the disk.

    python benchmarks/saving.py                                # ResNet-50
    python benchmarks/saving.py -a vit_b_16 --rounds 20

The script's own save_checkpoint(), of weights and momentum, the file before having been written.
"""

import os
import tempfile
import time
from pathlib import Path

from common import ROOT, about, interleave, write

import imagenet_nd as nd

BASELINE = "copy to host memory"
NOTE = (
    "{architecture}'s weights and momentum, a file of {megabytes:.0f} MB. Training is stalled for "
    "the time that save_checkpoint() takes: here of one process, at the end of an epoch. The cores "
    "that the thread takes, which then writes the file, are not counted."
)


def main():
    """Measures, writes the table."""
    count = nd.number(int, "a whole number above 0", lambda value: value > 0)
    parser = nd.OneLineParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("-a", "--arch", default="resnet50", help="of torchvision (%(default)s)")
    parser.add_argument("--rounds", type=count, default=10, help="(%(default)s)")
    out = ROOT / "logs" / "benchmarks" / "saving.json"
    parser.add_argument("--out", type=Path, default=out)
    args = parser.parse_args()
    try:
        measure(args)
    except nd.BadInput as error:
        nd.complain(error, 2)


def measure(args):
    """Times each way in turn."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-a", args.arch, "--dummy", "-b", "2", "-j", "0", "--log-dir", folder]
        options = nd.parse_args(words)
        place = nd.join(options)
        run = nd.set_up(options, place)
        run.started = time.perf_counter()

        def copy():
            weights = nd.full_state(run.model, run.optimizer).values()
            momenta = (each["momentum_buffer"] for each in run.optimizer.state.values())
            return [each.to("cpu", copy=True) for each in (*weights, *momenta)]

        def timed(work):
            def time_it():
                run.saver.wait()  # for what was written in the round before
                copy()  # so that all find the memory as warm
                before = time.perf_counter()
                held = work()
                seconds = time.perf_counter() - before
                del held
                return 1e3 * seconds

            return time_it

        def write_and_wait():
            nd.save_checkpoint(run)
            run.saver.wait()

        ways = {
            BASELINE: timed(copy),
            "save_checkpoint()": timed(lambda: nd.save_checkpoint(run)),
            "save_checkpoint(), and until it is on the disk": timed(write_and_wait),
        }
        values = interleave(ways, args.rounds)
        size = os.path.getsize(run.folder / "checkpoint.pt")
    write(
        args.out,
        "Stall of training by a checkpoint",
        "ms",
        [{"name": name, "values": values[name]} for name in ways],
        BASELINE,
        about(),
        NOTE.format(architecture=args.arch, megabytes=size / 1e6),
    )


if __name__ == "__main__":
    main()
