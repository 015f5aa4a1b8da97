"""Malformed and malicious logs for make_results.py.

Whatever one log holds, the program ends well, shows the others with the numbers that they have
alone, and shows text as nothing but text. reporting/ treats each kind of log here differently.
"""

import functools
import json
import os
import re
import struct
import subprocess
import sys

from conftest import ROOT
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.record_writer import RecordWriter
from test_results import IMAGE, about, usual, write_run
from torch.utils.tensorboard import summary as torch_summary


def write(folder, began=1e9, **changes):
    """Writes a run of three epochs, with other values in its "about"; None takes one out."""
    content = {name: each for name, each in (about() | changes).items() if each is not None}
    return write_run(folder, usual(3), began, about=content)


def a_run(**changes):
    """Returns a way to write a run: write() with these arguments."""
    return functools.partial(write, **changes)


def with_end(content, size=1):
    """Returns a way to write a run that ends with a text, or with what claims to be so many."""
    summary = torch_summary.text("end", content)
    summary.value[0].tensor.tensor_shape.dim[0].size = size

    def write_both(folder):
        with open(write(folder), "ab") as file:
            RecordWriter(file).write(Event(wall_time=2e9, summary=summary).SerializeToString())

    return write_both


def replaced(make):
    """Returns a way to write a run whose event file is what make(path) puts in its place."""

    def write_other(folder):
        path = write(folder)
        path.unlink()
        make(path)

    return write_other


def json_file(make):
    """Returns a way to write a file of JSON by make(path), in a folder of its own."""

    def write_file(folder):
        folder.mkdir(parents=True)
        make(folder / "it.json")

    return write_file


def benchmark(**changes):
    """Returns a way to write a benchmark in which something is changed."""
    rows = [{"name": "one", "values": [1.0, 2.0]}, {"name": "two", "values": [3.0]}]
    made = {"title": "A title", "unit": "s", "baseline": "one", "note": "", "rows": rows}
    made |= {"about": {"command": ["a"]}} | changes
    return json_file(lambda path: path.write_text(json.dumps(made)))


def huge_record(path):
    """Writes the head of a record that claims 2**60 bytes."""
    size = struct.pack("<Q", 2**60)
    path.write_bytes(size + struct.pack("<I", masked_crc32c(size)) + 100 * b"\0")


def sparse(path):
    """Writes a file of 8 GiB that takes no room."""
    with open(path, "wb") as file:
        file.truncate(2**33)


ODD = {  # what is in a log or beside it, and how it is written
    "data that are a number": a_run(data=7),
    "an environment that is text": a_run(environment="x"),
    "10^400 cores": a_run(cores=10**400),
    "no place": a_run(place=None),
    "a place of no ranks": a_run(place=about()["place"] | {"ranks": 0}),
    "wall times that are no number": a_run(began=float("nan")),
    "an end of 10^5 brackets": with_end(100_000 * "["),
    "an end that claims 10^11 texts": with_end("{}", 10**11),
    "a record that claims 2**60 bytes": replaced(huge_record),
    "an event file that is a pipe": replaced(os.mkfifo),
    "a benchmark that is a pipe": json_file(os.mkfifo),
    "a benchmark of 8 GiB": json_file(sparse),
    "a benchmark of values that are none": benchmark(
        rows=[{"name": "one", "values": [float("nan")]}]
    ),
    "a benchmark whose rows lack columns": benchmark(
        title="Exchange of gradients", about={"command": ["odd-columns"]}
    ),
    "a name that is not UTF-8": lambda folder: write(folder / "\udcff"),
}
MARKUP = {  # names of runs, and how they are written: each is shown as the text that it is
    f"a name of HTML {IMAGE}": write,
    "a name with a heading\n\n## owned\n\n": write,
    "a command with a fence": a_run(command=["python", "x.py", f"```\n```\n{IMAGE}"]),
    "an architecture with cells": a_run(options={"arch": f"a | b | {IMAGE}"}),
    "a title of a benchmark": benchmark(title=f"x\n\n## owned\n\n{IMAGE}", note=IMAGE),
}
# Outside blocks of code, what must not be there.
RAW = r"<img|(?<!\\)\]\(javascript|(?m:^ *## owned)|\x1b"


def make_results(logs, *words):
    """Returns (status, output) of make_results.py on logs, status None if it hangs."""
    words = [sys.executable, ROOT / "make_results.py", logs, *words]
    try:
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=600)
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def write_logs(logs, kinds):
    """Writes two runs as they should be, and beside them those of `kinds`."""
    for ranks in 1, 2:
        write_run(logs / "good" / f"good run {ranks}", usual(3), about=about("ddp", ranks))
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
