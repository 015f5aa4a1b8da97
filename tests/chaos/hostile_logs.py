"""Gives make_results.py logs that nobody's training wrote, and looks at what it makes of them.

Whatever one log holds, the program ends well, the others are shown with the numbers that they have
alone, and its text is only text. There is one kind for each way that reporting/ goes on such logs.
"""

import functools
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

from conftest import ROOT
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.record_writer import RecordWriter

STRING = 7  # of TensorFlow's types
IMAGE = "<img src=x onerror=alert(1)>"
PLACE = {"device": "cuda:0", "ranks": 2, "devices": 1, "local_ranks": 2}
OPTIONS = {"arch": "resnet18", "batch_size": 32, "precision": "float32"}
ABOUT = {"command": ["python", "imagenet_ddp.py"], "place": PLACE, "options": OPTIONS}
ABOUT |= {"data": "imagenet", "num_classes": 10, "image_size": 32, "steps_per_epoch": 9}
ABOUT |= {"global_batch": 64, "gradient_bytes": 46_758_000, "environment": {}}


def text(tag, content, *shape):
    """Returns the summary of a text, in a tensor that claims to have this shape."""
    made = TensorProto(dtype=STRING, string_val=[content.encode()])
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    value = Summary.Value(tag=f"{tag}/text_summary", tensor=made)
    value.metadata.plugin_data.plugin_name = "text"
    return Summary(value=[value])


def write_run(folder, about=None, wall=1e9, more=()):
    """Writes an event file of three epochs, with other values in its "about"; None takes one out.
    `more` summaries stand at its end. Returns its path."""
    folder.mkdir(parents=True)
    about = {name: each for name, each in (ABOUT | (about or {})).items() if each is not None}
    events = [Event(wall_time=1e9)]
    events.append(Event(wall_time=1e9, summary=text("about", json.dumps(about), 1)))
    for epoch in range(1, 4):
        for tag in "Top1/val", "Top1/train", "Throughput/train", "Loss/step":
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=10 * epoch)])
            events.append(Event(wall_time=wall + 100 * epoch, step=epoch, summary=summary))
    events += [Event(wall_time=2e9, step=9, summary=summary) for summary in more]
    path = folder / "events.out.tfevents.1.host.1.0"
    with open(path, "wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
    return path


def with_about(**changes):
    """Returns a way to write a run whose "about" has other values."""
    return functools.partial(write_run, about=changes)


def with_end(content, size):
    """Returns a way to write a run that ends with a text, or with what claims to be so many."""
    return functools.partial(write_run, more=[text("end", content, size)])


def replaced(make):
    """Returns a way to write a run whose event file is what make(path) puts in its place."""

    def write(folder):
        path = write_run(folder)
        path.unlink()
        make(path)

    return write


def beside(name, content):
    """Returns a way to write a file, of text or by content(path), in a folder of its own."""

    def write(folder):
        folder.mkdir(parents=True)
        make = content if callable(content) else functools.partial(Path.write_text, data=content)
        make(folder / name)

    return write


def benchmark(**changes):
    """Returns a way to write a benchmark in which something is changed."""
    rows = [{"name": "one", "values": [1.0, 2.0]}, {"name": "two", "values": [3.0]}]
    made = {"title": "A title", "unit": "s", "baseline": "one", "note": "", "rows": rows}
    return beside("it.json", json.dumps(made | {"about": {"command": ["a"]}} | changes))


def huge_record(path):
    """Writes the head of a record that claims 2**60 bytes."""
    size = struct.pack("<Q", 2**60)
    path.write_bytes(size + struct.pack("<I", masked_crc32c(size)) + 100 * b"\0")


def sparse(path):
    """Writes a file of 8 GiB that takes no room."""
    with open(path, "wb") as file:
        file.truncate(2**33)


ODD = {  # what is in a log or beside it, and how it is written
    "data that are a number": with_about(data=7),
    "an environment that is text": with_about(environment="x"),
    "10^400 cores": with_about(cores=10**400),
    "no place": with_about(place=None),
    "a place of no ranks": with_about(place=PLACE | {"ranks": 0}),
    "wall times that are no number": functools.partial(write_run, wall=float("nan")),
    "an end of 10^5 brackets": with_end(100_000 * "[", 1),
    "an end that claims 10^11 texts": with_end("{}", 10**11),
    "a record that claims 2**60 bytes": replaced(huge_record),
    "an event file that is a pipe": replaced(os.mkfifo),
    "a benchmark that is a pipe": beside("it.json", os.mkfifo),
    "a benchmark of 8 GiB": beside("it.json", sparse),
    "a benchmark of values that are none": benchmark(
        rows=[{"name": "one", "values": [float("nan")]}]
    ),
    "a benchmark whose rows lack columns": benchmark(
        title="Exchange of gradients", about={"command": ["odd-columns"]}
    ),
    "a name that is not UTF-8": lambda folder: write_run(folder / "\udcff"),
}
MARKUP = {  # names of runs, and how they are written: each is shown as the text that it is
    f"a name of HTML {IMAGE}": write_run,
    "a name with a heading\n\n## owned\n\n": write_run,
    "a command with a fence": with_about(command=["python", "x.py", f"```\n```\n{IMAGE}"]),
    "an architecture with cells": with_about(options=OPTIONS | {"arch": f"a | b | {IMAGE}"}),
    "a title of a benchmark": benchmark(title=f"x\n\n## owned\n\n{IMAGE}", note=IMAGE),
}
# Outside blocks of code, what must not be there.
RAW = r"<img|(?<!\\)\]\(javascript|(?m:^ *## owned)|\x1b"


def make_results(logs, *words):
    """Returns (status, output) of make_results.py on logs, status None where it stands still."""
    words = [sys.executable, ROOT / "make_results.py", logs, *words]
    try:
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=600)
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def write_logs(logs, kinds):
    """Writes two runs as they should be, and beside them those of `kinds`."""
    for ranks in 1, 2:
        write_run(logs / "good" / f"good run {ranks}", {"place": PLACE | {"ranks": ranks}})
    for what in kinds:
        folder = what if what in MARKUP else f"odd{[*ODD].index(what):03}"
        (ODD | MARKUP)[what](logs / "hostile" / folder)


def good_rows(page):
    """Returns the rows of the runs that are as they should be."""
    return [line for line in page.splitlines() if line.startswith("| good run ")]


def held(kinds, folder):
    """Returns whether the runs beside these kinds are shown as when alone, and it is only text."""
    pages = []
    for name, some in ("alone", []), ("beside", kinds):
        logs, out = folder / name / "logs", folder / name / "out"
        write_logs(logs, some)
        status, output = make_results(logs, "--out", out)
        if status != 0 or "Traceback" in output:
            return False
        pages.append((out / "RESULTS.md").read_text(encoding="utf-8"))
    _, full = make_results(logs, "--show", "all")
    page = pages[1] + "\n".join(line for line in full.splitlines() if ": warning: " not in line)
    prose = re.sub(r"(?ms)^(`{3,}).*?^\1$", "", page)
    plain = not re.search(RAW, prose) and "\x1b" not in page + output
    inside = {path.name for path in out.parent.iterdir()} == {"logs", "out"}
    shown = good_rows(pages[0]) == good_rows(pages[1]) and len(good_rows(pages[0])) == 2
    return shown and plain and inside


def hostile_logs(folder):
    """Returns [(what, whether it held)] of all kinds, together; where that fails, each alone."""
    kinds = [*ODD, *MARKUP]
    whole = held(kinds, folder / "all")
    found = [
        (what, whole or held([what], folder / f"alone{place}")) for place, what in enumerate(kinds)
    ]
    return [(what.encode("unicode_escape").decode(), each) for what, each in found]
