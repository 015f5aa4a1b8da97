"""Reads logs: event files of TensorBoard, benchmarks' JSON, a file system's counters."""

import glob
import io
import itertools
import json
import math
import os
import re
import shlex
from collections import Counter
from operator import itemgetter
from pathlib import Path

import numpy as np
import pandas as pd
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2
from tensorboard.util.tensor_util import make_ndarray

RUN_NAME = re.compile(  # of logs/v100_imagenet, which do not say what was trained
    r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_[^_]+_(?P<arch>.+)_gpux(?P<devices>\d+)"
    r"_b(?P<batch>\d+)_cpu(?P<workers>\d+)_opt(?P<precision>[^_]+)$"
)
MEASURES = "Top1", "Top5", "Accuracy", "F1", "MCC", "Perplexity"
PER_EPOCH = [
    f"{tag}/{part}"
    for tag in ("Throughput", "Time", "Loss", *MEASURES)
    for part in ("train", "val")
]
FACTS = "device", "data", "year", "by", "source", "note", "io"  # of study.json
# Beyond what any training logs; figures cannot be drawn of much larger numbers.
LARGEST_FILE, LARGEST_VALUE, LARGEST_TIME = 2**24, 1e30, 1e11  # bytes, any unit, seconds


class BadInput(Exception):
    """A mistake of the user, printed in one line; the exit status is 2."""


def visible(text):
    """Returns text in one line of at most 4,000 characters, what does not print escaped."""
    return (text if text.isprintable() else ascii(text)[1:-1])[:4000]


def parse_json(text):
    """Returns what JSON holds, each string in it visible()."""

    def clean(each):
        if isinstance(each, dict):
            return {visible(name): clean(value) for name, value in each.items()}
        if isinstance(each, list):
            return [clean(value) for value in each]
        return visible(each) if isinstance(each, str) else each

    return clean(json.loads(text))


def read_text(path):
    """Returns the text of a file that is neither a pipe nor larger than these programs write."""
    if not path.is_file() or path.stat().st_size > LARGEST_FILE:
        raise OSError(f"it is no file, or larger than {LARGEST_FILE >> 20} MiB")
    return path.read_text(encoding="utf-8-sig")


def walk(paths):
    """Yields (the folder of `paths` that it is in, path) of all files, each once, in order, through
    links to folders too."""
    seen = set()
    for root in paths:
        if not root.is_dir():
            raise BadInput(f"{root}: there is no such folder")
        for name in sorted(glob.glob("**/*", root_dir=root, recursive=True)):
            if (real := os.path.realpath(root / name)) not in seen:
                seen.add(real)
                yield root, root / name


# ------------------------------------------------------------------------------------------- runs


class Run:
    """A training run, by what its log says about it. Only a log that says nothing, like those of
    logs/v100_imagenet, is read by its folder's name."""

    def __init__(self, name, inside, series, starts, end, facts, desired):
        found = None if starts else RUN_NAME.search(name)
        named = found.groupdict() if found else {}
        about = starts[-1] if starts else {}
        options, place = about.get("options", {}), about["place"] if about else {}
        self.name, self.inside, self.study = name, inside, inside[0] if inside else ""
        self.series = series  # {tag: frame of step, value, seconds of training until then}
        self.starts, self.about, self.options, self.end = starts, about, options, end
        self.facts = facts  # of the nearest study.json, for what logs do not say
        self.arch = str(options.get("arch") or named.get("arch", ""))
        self.file = Path(about["command"][1]).name if about else ""
        self.script = re.sub("^(imagenet|text)_", "", Path(self.file).stem)
        self.learns = not options.get("dummy")  # else its losses mean nothing
        tags = "Top1", "Accuracy", "Perplexity"
        self.measure = next((tag for tag in tags if f"{tag}/val" in series), None)
        self.items = "sequences" if self.measure in ("Accuracy", "Perplexity") else "images"
        # GPUs, or processes on the CPU.
        devices = devices_of(place) if about else named.get("devices", 0)
        self.devices = int(devices) or None
        # (devices, batch of each) of the starts: a run may go on with others.
        sizes = [(devices_of(start["place"]), start.get("device_batch")) for start in starts]
        self.all_devices = ", then ".join(
            f"{n}" for n, _ in itertools.groupby(sizes, itemgetter(0))
        )
        self.batch = int(options.get("batch_size") or named.get("batch", 0)) or None
        known = self.devices and self.batch and self.devices * self.batch
        self.global_batch = int(about.get("global_batch") or known or 0) or None
        self.steps_per_epoch = int(about.get("steps_per_epoch") or 0)
        self.on_cpu = place.get("device") == "cpu"
        cores, threads = about.get("cores"), about.get("threads")
        on_cores = self.on_cpu and cores and threads
        # Whether a node has fewer cores than its processes have threads.
        self.crowded = bool(on_cores and threads * place["local_ranks"] > cores)
        self.hardware = about.get("device") or facts.get("device", "")
        if on_cores:
            plural = "s" if threads != 1 else ""
            self.hardware += f", {cores} cores, {threads} thread{plural} per process"
        level = place.get("precision") or options.get("precision") or named.get("precision", "")
        half = options.get("half_dtype") or ("bfloat16" if self.on_cpu else "float16")
        self.precision = (
            f"{level} {half}" if options and level in ("O1", "O2", "O3") else str(level)
        )
        self.data = data_of(about) if about.get("data") else facts.get("data", "")
        self.group = self.arch, self.data, self.hardware, self.precision  # may be compared
        for each in series.values():  # another folder may have what came before
            each["seconds"] += ((starts[0].get("resumed") if starts else None) or {}).get(
                "seconds", 0
            )
        of_epochs = [series[tag] for tag in PER_EPOCH if tag in series]
        self.epochs = max((int(each.step.iat[-1]) for each in of_epochs), default=None)
        self.training_seconds = max((each.seconds.iat[-1] for each in of_epochs), default=None)
        rates = series.get("Throughput/train", NO_VALUES)  # images/s, or sequences/s
        if len(set(sizes)) > 1:  # of the epochs that the last devices trained from their first step
            last = max(n for n in range(1, len(sizes)) if sizes[n] != sizes[n - 1])
            before = starts[last].get("resumed") or {}
            rates = rates[rates.step > before.get("epoch", 0) + bool(before.get("step"))]
        rates = rates.value.to_numpy()
        rates = rates[1:] if len(rates) > 1 else rates  # the first epoch starts slowly
        self.rate = float(rates.mean()) if len(rates) and rates.mean() > 0 else None
        self.spread = float(rates.std()) if self.rate else None
        typed = dict(options.get("desired") or ())  # {tag: value}; before: desired_acc alone
        percent = typed.get("Top1") or typed.get("Accuracy") or 0
        self.desired = percent / 100 or options.get("desired_acc") or desired  # a fraction
        self.seconds_to_desired = None
        if self.desired and self.measure in ("Top1", "Accuracy"):
            each = series[f"{self.measure}/val"]
            self.seconds_to_desired = next(
                iter(each.seconds[each.value >= round(100 * self.desired, 9)]), None
            )

    def values(self, tag):
        """Returns a tag's values, (n,), none where it was not logged."""
        return self.series[tag].value.to_numpy() if tag in self.series else np.array([])


NO_VALUES = pd.DataFrame({"step": [], "value": []})


def devices_of(place):
    """Returns the number of GPUs, or of processes on the CPU, of what a script logged of itself."""
    return place["ranks"] * place["devices"]


def data_of(about):
    """Returns what was trained on, in words."""
    path, task = Path(about["data"]), about.get("options", {}).get("task")
    # Data of text are a file, but for a demo.
    folder = path.parent if task and path.suffix in (".tsv", ".txt", ".bin") else path
    name = f"{task}: {folder.name}" if task else folder.name
    sizes = {"num_classes": "{} classes", "image_size": "{} pixels", "vocabulary": "vocabulary {}"}
    known = [text.format(about[each]) for each, text in sizes.items() if about.get(each)]
    return f"{name} ({', '.join(known)})" if known else name


def read_events(path):
    """Returns (points [tag, step, wall time, value, when the file began], texts [(tag, text)], a
    complaint or None) of an event file."""
    points, texts, began, intact = [], [], None, 0
    try:
        if not path.is_file():  # a pipe would be waited for
            raise OSError("it is no file")
        for record in RawEventFileLoader(str(path)).Load():
            intact += len(record) + 16  # a record's length and two checksums
            event = event_pb2.Event.FromString(record)
            began = event.wall_time if began is None else began
            for value in event.summary.value:
                text = value.tag.removesuffix("/text_summary")
                if value.WhichOneof("value") == "simple_value":
                    point = value.tag, event.step, event.wall_time, value.simple_value, began
                    points.append(point)
                elif text in ("about", "end"):
                    if math.prod(each.size for each in value.tensor.tensor_shape.dim) != 1:
                        raise ValueError(f"{text} is not one text")  # it may claim any number
                    texts.append((text, make_ndarray(value.tensor).item().decode()))
    except Exception as error:  # of the libraries that decode it, any
        return points, texts, f"cannot be read further ({error})"
    cut = f"damaged or cut off after {intact} of {path.stat().st_size} bytes: used up to there"
    return points, texts, cut if intact < path.stat().st_size or not intact else None


def stitch(points):
    """Returns {tag: frame of step, value, seconds} of points as read_events() has them.

    Of the values of a step, as restarts leave them, the latest counts. What is sampled now and
    then, at steps that restarts do not repeat, is dropped where newer samples came before. Seconds
    are those between the steps that count, or since the file began: neither pauses nor what was
    done twice.
    """
    rows, found = {}, {}
    for tag, *numbers in points:
        rows.setdefault(tag, []).append(numbers)
    for tag in sorted(rows):
        each = np.array(rows[tag], float)
        step, wall, value, _ = each.T
        possible = (0 <= wall) & (wall <= LARGEST_TIME) & (0 <= step) & (step <= 1e15)
        each = each[possible & (np.abs(value) < LARGEST_VALUE)]
        each = each[np.lexsort([each[:, 1], each[:, 0]])]  # by steps, and each step's by time
        if not len(each):
            continue
        each = each[np.append(each[1:, 0] != each[:-1, 0], True)]
        if tag not in PER_EPOCH:
            each = each[each[:, 1] >= np.maximum.accumulate(each[:, 1])]
        step, wall, value, began = each.T
        before = np.fmax(np.append(np.nan, np.maximum.accumulate(wall)[:-1]), began)
        seconds = np.cumsum(np.maximum(wall - before, 0))
        found[tag] = pd.DataFrame({"step": step, "value": value, "seconds": seconds})
    return found


def parse_about(text):
    """Returns what a script logged about itself, from JSON in a block of code."""
    content = parse_json(text.strip("`json\n")[:LARGEST_FILE])
    if isinstance(content.get("command"), str):  # in older logs a list of its words
        content["command"] = shlex.split(content["command"])
    return content


def read_runs(paths, desired=None):
    """Returns (all Runs under `paths`, in order, with names of their own; warnings). A folder of
    event files is a run. `desired` is the accuracy, a fraction, of runs that log none."""
    runs, warnings, folders = [], [], {}
    for root, file in walk(paths):
        if "tfevents" in file.name:
            folders.setdefault((root, file.parent), []).append(file)
    for (root, folder), files in folders.items():
        try:
            run, complaints = read_run(root, folder, files, desired)
            warnings += complaints
            if set(run.series) & {*PER_EPOCH, "Loss/step"}:
                runs.append(run)
            else:
                warnings.append(f"{folder}: has no tag of these scripts': left out")
        except Exception as error:  # whatever one log does, the others are shown
            warnings.append(f"{folder}: cannot be read ({error}): left out")
    names = Counter(run.name for run in runs)
    # Runs of one name get the folders that they are in, and so do all others of their studies:
    # names are what they are sorted by.
    shared = {run.study for run in runs if names[run.name] > 1}
    for run in runs:
        run.name = "/".join([*run.inside, run.name]) if run.study in shared else run.name
    order = ["study", "group", "devices", "batch", "script", "name"]
    runs.sort(
        key=lambda run: [
            vars(run)[name] or (0 if name in ("devices", "batch") else "") for name in order
        ]
    )
    return runs, warnings


def read_run(root, folder, files, desired):
    """Returns (the Run of event files in a folder, warnings)."""
    points, starts, end, warnings = [], [], {}, []
    for path in files:
        more, texts, complaint = read_events(path)
        points += more
        warnings += [f"{path}: {complaint}"] if complaint else []
        for tag, text in texts:
            content = parse_about(text)
            end = content if tag == "end" else {}  # a resumed run has not ended as it did before
            starts += [content] if tag == "about" else []
    facts, test = read_facts(root, folder), folder / "test.json"
    if test.exists():  # of tools/look.py classes --save
        test = parse_json(read_text(test))
        end |= {f"test_{name}": float(test[name]) for name in ("top1", "top5", "loss")}
    inside = tuple(map(visible, folder.relative_to(root).parts))
    name = visible(folder.absolute().name)
    return Run(name, inside[:-1], stitch(points), starts, end, facts, desired), warnings


def read_facts(root, folder):
    """Returns what the nearest study.json says of a run's folder: beside the run, or further up, to
    `root`, or above `root` if that is the run itself."""
    above = [folder, *folder.parents]
    places = [each / "study.json" for each in above[: max(2, above.index(root) + 1)]]
    nearest = next((path for path in places if path.exists()), None)
    content = parse_json(read_text(nearest)) if nearest else {}
    if not isinstance(content, dict):
        raise ValueError(f"{nearest} holds no object")
    facts = {name: content[name] for name in FACTS if content.get(name) is not None}
    if odd := [name for name in facts if type(facts[name]) not in (str, int)]:
        raise ValueError(f"{nearest}: {odd[0]} is no text or whole number")
    return facts


# ------------------------------------------------------------- benchmarks, and a file system's CSVs


def read_benchmarks(paths):
    """Returns ({name: content} of all benchmarks under `paths`, as benchmarks/common.py and
    tests/chaos/ write them; warnings). Other JSON is another program's."""
    found, warnings = {}, []
    for _, file in walk(paths):
        try:
            content = parse_json(read_text(file)) if file.suffix == ".json" else None
            if (
                isinstance(content, dict)
                and "title" in content
                and {"rows", "trials"} & content.keys()
            ):
                for row in content.get("rows", []):  # None where it was not measured
                    row["median"] = float(np.median(row["values"])) if row["values"] else None
                    if not all(abs(value) < LARGEST_VALUE for value in row["values"]):
                        raise ValueError(f"{row['values']} are nothing measured")
                found.setdefault(visible(file.stem), content)
        except Exception as error:  # whatever one file does, the others are shown
            warnings.append(f"{file}: damaged, or no benchmark ({error}): not used")
    return found, warnings


def read_io_csv(bandwidth, iops):
    """Returns [(minutes, bytes read per second), (minutes, reads per second)] of two exports of a
    monitoring system: columns "Time", as ISO, UTC unless it says otherwise, or seconds or
    milliseconds since 1970; and "Read". The separator is comma, semicolon, tab or bar; beside
    others than a comma, numbers may have a decimal comma."""
    both = []
    for path in bandwidth, iops:
        try:
            text = read_text(path)
            separator = max(",;\t|", key=text.partition("\n")[0].count)
            frame = pd.read_csv(io.StringIO(text), sep=separator, dtype=str)
            frame.columns = frame.columns.str.strip().str.lower()
            if separator != ",":
                frame = frame.apply(lambda column: column.str.replace(",", "."))
            seconds = pd.to_numeric(frame.time, errors="coerce")
            seconds = seconds.where(seconds < LARGEST_TIME, seconds / 1000)
            dates = pd.to_datetime(frame.time[seconds.isna()], utc=True, format="ISO8601")
            seconds = seconds.fillna((dates - pd.Timestamp(0, tz="UTC")).dt.total_seconds())
            reads = pd.to_numeric(frame.read.replace(["", "null", "undefined"], None))
            if seconds.isna().any() or not reads.notna().any():
                raise ValueError("it lacks values or times")
        except Exception as error:
            raise BadInput(
                f"{path}: no columns Time and Read as they should be ({error})"
            ) from error
        both.append((seconds.to_numpy(), reads.to_numpy()))
    first = min(times.min() for times, _ in both)
    return [((times - first) / 60, reads) for times, reads in both]


def read_study_io(paths):
    """Returns {study: what read_io_csv() does} of bandwidth.csv and iops.csv beside its runs."""
    found = [file for _, file in walk(paths) if file.name == "bandwidth.csv"]
    return {
        visible(each.parent.name): read_io_csv(each, each.with_name("iops.csv")) for each in found
    }
