"""Writes TensorBoard's event files as compact CSV, one file a run, which make_results.py reads.

    python tools/convert_runs.py RUNS OUT                        # RUNS/<run>/events.out.tfevents.*
    python tools/convert_runs.py RUNS OUT --io BANDWIDTH IOPS    # and a file system's counters

OUT/<run>.csv has a row for each epoch: its number, the seconds since the run began, the learning
rate, and loss, accuracies and speed of train and val, to six digits; other scalars are left out.
OUT/io.csv has minutes, MB read per second (10^6 bytes) and reads per second, of two exports of a
monitoring system: "Time";"Read" in bytes/s and in reads/s.
"""

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import read


def convert(folder, path):
    """Writes the run in a folder to a CSV file; returns the number of its epochs."""
    points = defaultdict(list)
    for file in sorted(folder.glob("*tfevents*")):
        if complaint := read.read_event_file(file, points, {}):
            raise read.BadInput(f"{file}: {complaint}")
    wanted = points.keys() & {*read.PER_EPOCH, "Lr"}
    epochs = {tag: read.stitch(points[tag]) for tag in wanted}
    if not epochs:
        raise read.BadInput(f"{folder}: has no scalars of epochs")
    rows, names = defaultdict(dict), sorted(epochs)
    for tag, series in epochs.items():
        for epoch, seconds, value in zip(series.steps, series.seconds, series.values, strict=True):
            row = rows[int(epoch)]
            row[tag] = f"{value:.6g}"
            row["seconds"] = max(row.get("seconds", 0), round(seconds))
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["epoch", "seconds", *names])
        for epoch, row in sorted(rows.items()):
            writer.writerow([epoch, row["seconds"], *(row.get(name, "") for name in names)])
    return len(rows)


def convert_io(bandwidth, iops, path):
    """Writes two exports to one CSV file, a row for each time that both have."""
    (minutes, rates), (others, reads) = read.read_io_csv(bandwidth, iops)
    reads = dict(zip(others.tolist(), reads.tolist(), strict=True))
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["minutes", "read MB/s", "reads/s"])
        for minute, rate in zip(minutes.tolist(), rates.tolist(), strict=True):
            if minute in reads:
                writer.writerow([f"{minute:g}", f"{rate / 1e6:.6g}", f"{reads[minute]:.6g}"])


def main():
    """Reads the words of the command line, and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: error: {message}\n")
    parser.add_argument("runs", type=Path, metavar="RUNS", help="has a folder for each run")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the CSV files")
    exports = {"nargs": 2, "type": Path, "metavar": ("BANDWIDTH", "IOPS")}
    parser.add_argument("--io", **exports, help="two exports of a monitoring system")
    args = parser.parse_args()
    try:
        folders = sorted({file.parent for file in args.runs.rglob("*tfevents*")})
        if not folders:
            raise read.BadInput(f"{args.runs} holds no event files")
        names = [folder.name for folder in folders]
        if twice := [name for name in names if names.count(name) > 1]:
            raise read.BadInput(f"{args.runs}: two folders are called {twice[0]}")
        args.out.mkdir(parents=True, exist_ok=True)
        for folder in folders:
            epochs = convert(folder, args.out / f"{folder.name}.csv")
            print(f"{folder.name}: {epochs} epochs")
        if args.io:
            convert_io(*args.io, args.out / "io.csv")
    except (read.BadInput, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
