"""Seconds and memory of make_results.py for a thousand runs of 90 epochs.

    python benchmarks/many_runs.py [--runs 1000] [--epochs 90]

Writes synthetic logs with the tags of the imagenet_*.py into a temporary folder, times the whole
command on them, and prints its wall time and its largest resident memory.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

ROOT = Path(__file__).parents[1]
TAGS = [f"{tag}/{part}" for part in ("train", "val") for tag in ("Loss", "Top1", "Top5")]
TAGS += [f"{tag}/{part}" for part in ("train", "val") for tag in ("Throughput", "Time")]
TAGS += ["Lr", "Data/wait"]


def write_run(folder, epochs):
    """Writes one event file."""
    folder.mkdir()
    with open(folder / "events.out.tfevents.1000000000.host.1.0", "wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=1e9, file_version="brain.Event:2").SerializeToString())
        for epoch in range(1, epochs + 1):
            for tag in TAGS:
                value = Summary.Value(tag=tag, simple_value=50 + random.random())
                event = Event(wall_time=1e9 + 60 * epoch, step=epoch)
                event.summary.CopyFrom(Summary(value=[value]))
                writer.write(event.SerializeToString())


def main():
    """Writes the logs, runs the command, prints what it took."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=90)
    args = parser.parse_args()
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / "logs"
        logs.mkdir()
        for serial in range(args.runs):
            name = f"Jan01_00-00-00_host_resnet50_gpux{2 ** (serial % 7)}_b208_cpu20_optO2_{serial}"
            write_run(logs / name, args.epochs)
        started = time.perf_counter()
        words = [sys.executable, ROOT / "make_results.py", logs, "--out", folder]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        size = sum(path.stat().st_size for path in (Path(folder) / "figures").rglob("*.*"))
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # KiB on Linux
    print(
        f"{args.runs} runs x {args.epochs} epochs: {seconds:.1f} s, {memory:.2f} GiB at most, "
        f"figures {size / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main()
