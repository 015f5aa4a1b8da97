"""Measures by programs of benchmarks/ on a ghost GPU: LD_PRELOAD=ghost.so bench.py REPORT DIR

A line of JSON goes to the file REPORT for each.
"""

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import run

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import gpu  # noqa: E402
import gpu_loading  # noqa: E402

gpu.WARM_UP_STEPS = gpu.PROFILED_STEPS = 1
gpu_loading.LEAST_STEPS = 2
LITTLE = {"arch": "squeezenet1_1", "image_size": 32}


def main():
    """Measures a row of each."""
    report, images = sys.argv[1:]
    run.avoid_libraries()
    with run.Compute(), tempfile.TemporaryDirectory() as scratch:
        args = SimpleNamespace(**LITTLE, steps=2, profile=True)
        for precision in "float16", "O1":
            job = {"precision": precision, "channels_last": True, "mode": "off", "batch": 2}
            row, operators = gpu.train(args, scratch, job)
            write(report, row | {"operators": operators})
        args = SimpleNamespace(**LITTLE, batch_size=2, amp="bfloat16")
        measure = gpu_loading.serve(args, scratch)
        write(report, measure(None, 0, False, False))
        write(report, measure(images, 1, False, False))


def write(report, row):
    """Adds a line."""
    with open(report, "a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
