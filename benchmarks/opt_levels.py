"""Images/s of every script and precision on this machine's device, on synthetic images.

    python benchmarks/opt_levels.py                                              # on a GPU
    python benchmarks/opt_levels.py -a resnet18 -b 16 --image-size 64 --steps 5  # on the CPU

Runs each script as a user would, for two short epochs with --dummy and --channels-last, and prints
Throughput/train of the second one from its log, beside the rate of imagenet_nd.py in float32.
Horovod is left out. The logs stay in --log-dir.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).parents[1]
LEVELS = [["--opt-level", level] for level in ("O0", "O1", "O2", "O3")]
AMP = [[], ["--amp", "float16"], ["--amp", "bfloat16"]]
RUNS = [
    *(("imagenet_nd.py", options) for options in AMP),
    *(("imagenet_dp.py", options) for options in AMP[2:]),
    *(("imagenet_ddp.py", options) for options in AMP[2:]),
    *(("imagenet_ddp_apex.py", options) for options in LEVELS),
    *(("imagenet_ddp_apex.py", [*options, "--half-dtype", "bfloat16"]) for options in LEVELS[1:]),
]


def measure(script, options, args):
    """Returns images/s of one run, in its second epoch."""
    name = "_".join([script, *options]).replace("--", "")
    log_dir = args.log_dir / name
    words = [sys.executable, ROOT / script, "--dummy", "--channels-last", "-a", args.arch]
    if script == "imagenet_ddp_apex.py":  # with a real process group: nccl on a GPU
        words[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1"]
    words += ["-b", str(args.batch_size), "--steps-per-epoch", str(args.steps), "--epochs", "2"]
    words += ["--log-dir", log_dir, "--warmup-epochs", "1", *options]
    if args.image_size:
        words += ["--image-size", str(args.image_size)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    newest = max(log_dir.iterdir(), key=lambda folder: folder.stat().st_mtime)
    return EventAccumulator(str(newest)).Reload().Scalars("Throughput/train")[1].value


def main():
    """Runs all, prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("-a", "--arch", default="resnet50")
    parser.add_argument("-b", "--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--log-dir", type=Path, default=Path("runs/opt_levels"))
    args = parser.parse_args()
    print(f"| {args.arch}, -b {args.batch_size} | options | images/s | ratio |\n|---|---|---|---|")
    base = None
    for script, options in RUNS:
        rate = measure(script, options, args)
        base = base or rate
        print(f"| {script} | {' '.join(options)} | {rate:.1f} | {rate / base:.2f} |", flush=True)


if __name__ == "__main__":
    main()
