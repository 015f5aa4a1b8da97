"""Gives make_results.py logs that nobody's training wrote, and looks at what it makes of them.

Whatever one log holds, the program ends well, the others are shown with the numbers that they have
alone, and its text is only text. This is a trial for chaos.py, and a test.
"""

import functools
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.record_writer import RecordWriter

PROGRAM = [sys.executable, Path(__file__).resolve().parents[1] / "make_results.py"]
SCALARS, FLOAT, STRING = "scalars", 1, 7  # a plugin, and two of TensorFlow's types
IMAGE = "<img src=x onerror=alert(1)>"
NESTED = 100_000 * "["
PLACE = {"device": "cuda:0", "ranks": 2, "devices": 1, "local_ranks": 2}
OPTIONS = {"arch": "resnet18", "batch_size": 32, "precision": "float32"}
ABOUT = {"command": ["python", "imagenet_ddp.py"], "place": PLACE, "options": OPTIONS}
ABOUT |= {"data": "imagenet", "num_classes": 10, "image_size": 32, "steps_per_epoch": 9}
ABOUT |= {"global_batch": 64, "gradient_bytes": 46_758_000, "environment": {}}
EXPORT = "Wall time,Step,Value\n1000000100,1,10\n1000000200,2,20\n"


def tensor(tag, plugin, values, shape=(), kind=FLOAT):
    """Returns the summary of a tensor that claims to have this shape."""
    made = TensorProto(dtype=kind)
    (made.string_val if kind == STRING else made.float_val).extend(values)
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    value = Summary.Value(tag=tag, tensor=made)
    value.metadata.plugin_data.plugin_name = plugin
    return Summary(value=[value])


def write_run(folder, about=ABOUT, end=None, more=(), wall=1e9, value=10.0, first=1):
    """Writes an event file of three epochs; `more` summaries stand at its end. Returns its path."""
    folder.mkdir(parents=True)
    texts = {"about": about, "end": end} if end else {"about": about}
    texts = {
        tag: each if isinstance(each, str) else json.dumps(each) for tag, each in texts.items()
    }
    events = [Event(wall_time=1e9)]
    for tag, text in texts.items():
        summary = tensor(f"{tag}/text_summary", "text", [text.encode()], [1], STRING)
        events.append(Event(wall_time=1e9, summary=summary))
    for epoch in range(3):
        for tag in "Top1/val", "Top1/train", "Throughput/train", "Loss/step":
            of = [Summary.Value(tag=tag, simple_value=value * (epoch + 1))]
            at = {"wall_time": wall + 100 * (epoch + 1), "step": first + epoch}
            events.append(Event(**at, summary=Summary(value=of)))
    events += [Event(wall_time=2e9, step=9, summary=summary) for summary in more]
    path = folder / "events.out.tfevents.1.host.1.0"
    with open(path, "wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
    return path


def with_about(**changes):
    """Returns a way to write a run whose "about" has other values; of None, none."""
    changed = {name: each for name, each in (ABOUT | changes).items() if each is not None}
    return functools.partial(write_run, about=changed)


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
    "data that are a list": with_about(data=["x"]),
    "an environment that is text": with_about(environment="x"),
    "an environment of numbers": with_about(environment={"OMP_NUM_THREADS": 1}),
    "steps that are text": with_about(steps_per_epoch="9"),
    "classes that are a list": with_about(num_classes=[1]),
    "a global batch that is text": with_about(global_batch="64"),
    "10^400 cores": with_about(cores=10**400),
    "no place": with_about(place=None),
    "a place of no ranks": with_about(place=PLACE | {"ranks": 0}),
    "a command of numbers": with_about(command=[1, 2]),
    "options that are a list": with_about(options=[1]),
    "an architecture that is a list": with_about(options=OPTIONS | {"arch": ["x"]}),
    "a batch that is text": with_about(options=OPTIONS | {"batch_size": "x"}),
    "tasks of Slurm that are no number": with_about(environment={"SLURM_STEP_NUM_TASKS": "x"}),
    "an about of 10^5 brackets": functools.partial(write_run, about=NESTED),
    "an about of 2 MiB": with_about(note=2**21 * "x"),
    "an end of which the accuracy is text": functools.partial(write_run, end={"test_top1": "x"}),
    "wall times that are no number": functools.partial(write_run, wall=float("nan")),
    "wall times that are infinite": functools.partial(write_run, wall=float("inf")),
    "wall times of 1e300": functools.partial(write_run, wall=1e300),
    "steps of 2**62": functools.partial(write_run, first=2**62),
    "values of 1e38": functools.partial(write_run, value=1e38),
    "a tensor that claims 10^11 values": functools.partial(
        write_run, more=[tensor("Lr", SCALARS, [1], [10**11])]
    ),
    "a number that is text": functools.partial(
        write_run, more=[tensor("Lr", SCALARS, [b"x"], (), STRING)]
    ),
    "a record that claims 2**60 bytes": replaced(huge_record),
    "an event file that is a pipe": replaced(os.mkfifo),
    "an event file that is a folder": replaced(Path.mkdir),
    "an event file that links to itself": replaced(lambda path: path.symlink_to(path)),
    "an export that is a pipe": beside("run-x-tag-Lr.csv", os.mkfifo),
    "an export of 8 GiB": beside("run-x-tag-Lr.csv", sparse),
    "an export that is no text": beside("run-x-tag-Lr.csv", lambda path: path.write_bytes(b"\xff")),
    "an export with a step of 5,000 digits": beside(
        "run-x-tag-Lr.csv", f"Wall time,Step,Value\n1,{5000 * '9'},1\n"
    ),
    "counters that are a pipe": beside("io.csv", os.mkfifo),
    "a study.json of 10^5 brackets": beside("study.json", NESTED),
    "a benchmark of 10^5 brackets": beside("it.json", NESTED),
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
    "a name [x](javascript:alert(1))": write_run,
    "a name with a heading\n\n## owned\n\n": write_run,
    "a name with \x1b[31m for the terminal": write_run,
    "a name that is long " + 235 * "x": write_run,
    "a name of ..": beside("run-..-tag-Lr.csv", EXPORT),
    "a command with a fence": with_about(command=["python", "x.py", f"```\n```\n{IMAGE}"]),
    "an architecture with cells": with_about(options=OPTIONS | {"arch": f"a | b | {IMAGE}"}),
    "options with backticks": with_about(options=OPTIONS | {"x": f"`{IMAGE}`"}),
    "a title of a benchmark": benchmark(title=f"x\n\n## owned\n\n{IMAGE}", note=IMAGE),
}
# Outside blocks of code, what must not be there.
RAW = r"<img|(?<!\\)\]\(javascript|(?m:^ *## owned)|\x1b"


def run_program(program, logs, out):
    """Returns (status, output) of make_results.py on logs, status None where it stands still."""
    words = [*map(str, program), str(logs), "--out", str(out)]
    try:
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=600)
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def folder_name(what):
    """Returns what the folder of a kind is called."""
    return what if what in MARKUP else f"odd{[*ODD].index(what):03}"


def write_logs(logs, kinds):
    """Writes two runs as they should be, and beside them those of `kinds`."""
    for ranks in 1, 2:
        write_run(logs / "good" / f"good run {ranks}", ABOUT | {"place": PLACE | {"ranks": ranks}})
    for what in kinds:
        (ODD | MARKUP)[what](logs / "hostile" / folder_name(what))


def good_rows(page):
    """Returns the rows of the runs that are as they should be."""
    return [line for line in page.splitlines() if line.startswith("| good run ")]


def look(kinds, folder, program):
    """Returns {kind: whether the runs beside it are shown as when alone, and it is only text}."""
    pages = []
    for name, some in ("alone", []), ("beside", kinds):
        logs, out = folder / name / "logs", folder / name / "out"
        write_logs(logs, some)
        status, output = run_program(program, logs, out)
        if status != 0 or "Traceback" in output:
            return dict.fromkeys(kinds, False)
        pages.append((out / "RESULTS.md").read_text(encoding="utf-8"))
    _, full = run_program([*program, "--show", "all"], logs, out)
    page = pages[1] + "\n".join(line for line in full.splitlines() if ": warning: " not in line)
    text = re.sub(r"(?ms)^(`{3,}).*?^\1$", "", page)
    plain = not re.search(RAW, text) and "\x1b" not in page + output
    inside = {path.name for path in out.parent.iterdir()} == {"logs", "out"}
    shown = good_rows(pages[0]) == good_rows(pages[1]) and len(good_rows(pages[0])) == 2
    return dict.fromkeys(kinds, shown and plain and inside)


def hostile_logs(folder, program=PROGRAM):
    """Returns [(what, whether it held)] of all kinds, together; where that fails, each alone."""
    kinds = [*ODD, *MARKUP]
    found = look(kinds, folder / "all", program)
    if not any(found.values()):
        for place, what in enumerate(kinds):
            found |= look([what], folder / f"alone{place}", program)
    return [(what.encode("unicode_escape").decode(), held) for what, held in found.items()]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for what, held in hostile_logs(Path(folder)):
            print(f"{what}: {'holds' if held else 'DOES NOT HOLD'}")
