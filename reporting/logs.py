"""Reads logs: event files and CSV exports of TensorBoard, benchmarks' JSON, a file system's CSVs."""

import dataclasses
import json
import math
import os
import re
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2
from tensorboard.util.tensor_util import make_ndarray

RUN_NAME = re.compile(
    r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_[^_]+_(?P<arch>.+)_gpux(?P<devices>\d+)_b(?P<batch>\d+)"
    r"_cpu(?P<workers>\d+)_opt(?P<precision>[^_]+)(_\d+)?$"
)
# A model of classes has accuracies, a language model a perplexity.
MEASURES = "Top1", "Top5", "Accuracy", "F1", "MCC", "Perplexity"
PER_EPOCH = [
    f"{tag}/{part}"
    for tag in ("Throughput", "Time", "Loss", *MEASURES)
    for part in ("train", "val")
]
NETWORK = [f"Network/{each}_MB_per_step" for each in ("sent", "received", "expected")]
# Nothing that a training logs is larger; a figure cannot be drawn of much larger numbers.
LARGEST_FILE, LARGEST_VALUE, LARGEST_TIME = 2**24, 1e30, 1e11  # bytes, any unit, seconds


class BadInput(Exception):
    """A mistake of the user, printed in one line; the exit status is 2."""


def visible(text):
    """Returns text in one line of at most 4,000 characters, with escapes such as \\x1b for what
    does not print."""
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= 4000 else f"{shown[:4000]}..."


def reason(error):
    """Returns what an exception says, in one short line."""
    return (str(error).splitlines() or [repr(error)])[0][:200]


def parse_json(text):
    """Returns what JSON holds, each string in it visible()."""
    if len(text) > LARGEST_FILE:
        raise ValueError(f"larger than {LARGEST_FILE >> 20} MiB")

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


def walk(path):
    """Yields the files of a folder, at any depth, in order, through links to folders too."""
    seen = set()
    for folder, inside, names in os.walk(path, followlinks=True):
        inside.sort()
        if os.path.realpath(folder) in seen:  # a link to a folder above, or a second one to it
            inside.clear()
            continue
        seen.add(os.path.realpath(folder))
        yield from (Path(folder, name) for name in sorted(names))


# ------------------------------------------------------------------------------------------- runs


@dataclasses.dataclass
class Run:
    """A training run, by its log; by its name where the log does not describe it."""

    name: str
    inside: tuple[str, ...]  # the folders of LOGS that it is in; the first one is its study
    series: dict[str, pd.DataFrame]  # {tag: step, value, seconds of training until then}
    starts: list[dict]  # what the script logged about itself at each start
    end: dict  # what it logged at its end
    facts: dict  # of study.json in the folder above, for logs that do not say it
    desired: float | None  # accuracy, a fraction

    def __post_init__(self):
        named = RUN_NAME.search(self.name.removesuffix(" (CSV)"))
        self.named = named = named.groupdict() if named else {}
        self.about = about = self.starts[-1] if self.starts else {}
        self.study = self.inside[0] if self.inside else ""
        self.resumed = (self.starts[0].get("resumed") if self.starts else None) or {}
        self.options = options = about.get("options", {})
        self.desired = options.get("desired_acc") or self.desired
        self.arch = str(options.get("arch") or named.get("arch", ""))
        self.file = Path(about["command"][1]).name if about else ""
        self.script = re.sub("^(imagenet|text)_", "", Path(self.file).stem)
        self.learns = not options.get("dummy")  # else its losses mean nothing
        tags = "Top1", "Accuracy", "Perplexity"
        self.measure = next((tag for tag in tags if f"{tag}/val" in self.series), None)
        self.items = "sequences" if self.measure in ("Accuracy", "Perplexity") else "images"
        place = about["place"] if about else {}
        self.on_cpu = place.get("device") == "cpu"
        # GPUs, or processes on the CPU.
        devices = place["ranks"] * place["devices"] if about else named.get("devices", 0)
        self.devices = int(devices) or None
        self.batch = int(options.get("batch_size") or named.get("batch", 0)) or None
        known = self.devices and self.batch and self.devices * self.batch
        self.global_batch = int(about.get("global_batch") or known or 0) or None
        self.steps_per_epoch = int(about.get("steps_per_epoch") or 0)
        cores, threads = about.get("cores"), about.get("threads")
        # Whether a node of CPUs had fewer cores than its processes have threads.
        self.crowded = bool(
            self.on_cpu and cores and threads and threads * place["local_ranks"] > cores
        )
        self.hardware = about.get("device") or self.facts.get("device", "")
        if self.on_cpu and cores and threads:
            plural = "s" if threads != 1 else ""
            self.hardware += f", {cores} cores, {threads} thread{plural} per process"
        self.precision = self._precision(place)
        self.data = self._data()
        self.group = self.arch, self.data, self.hardware, self.precision  # may be compared
        self.gradient_bytes = about.get("gradient_bytes") or self.facts.get("gradient_bytes")
        of_epochs = [self.series[tag] for tag in PER_EPOCH if tag in self.series]
        self.epochs = max((int(each.step.iat[-1]) for each in of_epochs), default=None)
        self.first_epoch = min((int(each.step.iat[0]) for each in of_epochs), default=1)
        before = self.resumed.get("seconds", 0)  # where another folder has what came before
        for each in self.series.values():
            each["seconds"] += before
        self.training_seconds = max((each.seconds.iat[-1] for each in of_epochs), default=None)
        rates = self.values("Throughput/train")
        rates = rates[1:] if len(rates) > 1 else rates
        # Mean and standard deviation of images/s, or sequences/s.
        self.throughput = (
            (rates.mean(), rates.std()) if len(rates) and rates.mean() > 0 else None
        )
        self.seconds_to_desired = self._seconds_to_desired()

    def _precision(self, place):
        level = place.get("precision") or self.options.get("precision")
        level = str(level or self.named.get("precision", ""))
        if level in ("O1", "O2", "O3") and self.options:
            half = self.options.get("half_dtype") or ("bfloat16" if self.on_cpu else "float16")
            return f"{level} {half}"
        return level

    def _data(self):
        """Returns what was trained on."""
        if not self.about.get("data"):
            return self.facts.get("data", "")
        path = Path(self.about["data"])
        name = path.name
        if task := self.options.get("task"):  # of text; a file, but for a demo
            name = path.parent.name if path.suffix in (".tsv", ".txt", ".bin") else name
            name = f"{task}: {name}"
        sizes = {"num_classes": "{} classes", "image_size": "{} pixels"}
        sizes |= {"vocabulary": "vocabulary {}"}
        known = [sizes[each].format(self.about[each]) for each in sizes if self.about.get(each)]
        return f"{name} ({', '.join(known)})" if known else name

    def _seconds_to_desired(self):
        """Returns the seconds until validation's accuracy was the desired one, or None."""
        if self.desired and self.measure in ("Top1", "Accuracy"):
            found = self.series[f"{self.measure}/val"]
            reached = found[found.value >= 100 * self.desired]
            return None if reached.empty else reached.seconds.iat[0]

    def values(self, tag):
        """Returns a tag's values, (n,), none where it was not logged."""
        return self.series[tag].value.to_numpy() if tag in self.series else np.array([])

    def mean(self, tag):
        """Returns the mean over a run of what is sampled now and then: over steps for what is
        counted per step, else over time; None where it was not logged."""
        if tag not in self.series:
            return None
        each = self.series[tag]
        spans = np.diff(each.seconds, prepend=self.resumed.get("seconds", 0))
        if tag in NETWORK:  # once an epoch, as the learning rate; older logs count in steps
            epochs = self.series["Lr"].step if "Lr" in self.series else []
            scale = 1 if each.step.isin(epochs).all() else self.steps_per_epoch
            spans = np.diff(each.step, prepend=self.resumed.get("epoch", 0) * scale)
        return np.average(each.value, weights=spans) if spans.sum() else None


def read_events(path):
    """Returns (points [tag, step, wall time, value, when the file began], texts [(tag, text)], a
    complaint or None) of an event file."""
    points, texts, began, intact = [], [], None, 0
    try:
        if not path.is_file():  # a pipe would be waited for
            raise OSError("it is no file")
        size = path.stat().st_size
        for record in RawEventFileLoader(str(path)).Load():
            intact += len(record) + 16  # a record's length and two checksums
            event = event_pb2.Event.FromString(record)
            began = event.wall_time if began is None else began
            for value in event.summary.value:
                text = value.tag.removesuffix("/text_summary")
                if value.WhichOneof("value") == "simple_value":
                    at = event.step, event.wall_time, value.simple_value, began
                    points.append((value.tag, *at))
                elif text in ("about", "end"):
                    if math.prod(each.size for each in value.tensor.tensor_shape.dim) != 1:
                        raise ValueError(f"{text} is not one text")  # it may claim any number
                    texts.append((text, make_ndarray(value.tensor).item().decode()))
    except Exception as error:  # of the libraries that decode it, any
        return points, texts, f"cannot be read further ({reason(error)})"
    if began is None:
        return points, texts, "empty, or damaged from the start: not used"
    cut = f"damaged or cut off after {intact} of {size} bytes: used up to there"
    return points, texts, cut if intact < size else None


def read_export(path, tag):
    """Returns what read_events() does of a CSV file that TensorBoard has exported."""
    try:
        read_text(path)
        frame = read_csv(path, ["step", "wall time", "value"])
        rows = frame.itertuples(index=False)
        return [(tag, *row, math.nan) for row in rows], [], None if len(frame) else "empty"
    except Exception as error:
        return [], [], f"cannot be read ({reason(error)})"


def read_csv(path, wanted):
    """Returns columns of a CSV file as a frame of numbers, without rows that lack one. Its
    separator is comma, semicolon, tab or bar; beside others than a comma, numbers may have a
    decimal comma."""
    header = read_text(path).partition("\n")[0]
    separator = max(",;\t|", key=header.count)
    frame = pd.read_csv(path, sep=separator, dtype=str, encoding="utf-8-sig", on_bad_lines="skip")
    frame.columns = [name.strip().lower() for name in frame.columns]
    if not set(wanted) <= set(frame.columns):
        raise ValueError(f"has no columns {', '.join(wanted)}")
    frame = frame[wanted].apply(lambda column: column.str.strip())
    if separator != ",":
        frame = frame.apply(lambda column: column.str.replace(",", "."))
    return frame if wanted[0] == "time" else frame.apply(pd.to_numeric, errors="coerce").dropna()


def stitch(points):
    """Returns {tag: frame of step, value, seconds} of points as read_events() has them.

    Of the values of a step, as restarts leave them, the latest counts. What is sampled now and
    then, at steps that restarts do not repeat, is dropped where newer samples came before. Seconds
    are those between the steps that count, or since the file began: neither pauses nor what was
    done twice.
    """
    names = ["tag", "step", "wall", "value", "began"]
    points = pd.DataFrame(points, columns=names).astype(dict.fromkeys(names[1:], float))
    possible = points.wall.between(0, LARGEST_TIME) & points.step.between(0, 1e15)
    possible &= points.value.abs() < LARGEST_VALUE
    points = points[possible].sort_values(["step", "wall"], kind="stable")
    found = {}
    for tag, each in points.groupby("tag"):
        each = each.drop_duplicates("step", keep="last")
        if tag not in PER_EPOCH:
            each = each[each.wall >= each.wall.cummax()]
        before = np.fmax(each.wall.cummax().shift(), each.began)
        spent = (each.wall - before).clip(lower=0)
        # An export does not say when the run began: take a usual epoch.
        spent = spent.fillna(spent.median()).fillna(0)
        columns = {"step": each.step, "value": each.value, "seconds": np.cumsum(spent.to_numpy())}
        found[tag] = pd.DataFrame(columns).reset_index(drop=True)
    return found


def parse_about(text):
    """Returns what a script logged about itself, from JSON in a block of code."""
    content = parse_json(text.strip("`json\n"))
    if isinstance(content.get("command"), str):  # in older logs a list of its words
        content["command"] = shlex.split(content["command"])
    return content


def find_runs(paths):
    """Yields (name, the folders above it in LOGS, its event files, its exports [(path, tag)])."""
    seen = set()
    for path in paths:
        if not path.is_dir():
            raise BadInput(f"{path}: there is no such folder")
        events, exports = {}, {}
        for file in walk(path):
            inside = tuple(map(visible, file.parent.relative_to(path).parts))
            export = re.fullmatch(r"run-(.+)-tag-(.+?)(?: \(\d+\))?\.csv", file.name)
            if os.path.realpath(file) in seen or not (export or "tfevents" in file.name):
                continue
            seen.add(os.path.realpath(file))
            if export:
                tag = export[2].replace("_", "/", 1)
                exports.setdefault((*inside, visible(export[1])), []).append((file, tag))
            else:
                events.setdefault((inside, visible(file.absolute().parent.name)), []).append(file)
        for (inside, name), files in events.items():
            yield name, inside[:-1], files, []
        for (*inside, name), files in exports.items():
            beside = any(each == tuple(inside) for each, _ in events)
            yield f"{name} (CSV)" if beside else name, tuple(inside), [], files


def read_runs(paths, desired=None):
    """Returns (all Runs under `paths`, in order, with names of their own; warnings). `desired` is
    the accuracy, a fraction, of runs that log none."""
    runs, warnings, facts = [], [], {}
    for name, inside, events, exports in find_runs(paths):
        folder = (events or [path for path, _ in exports])[0].parent
        above = folder.parent if events else folder
        try:
            if above not in facts:
                facts[above] = read_facts(above / "study.json")
            run, complaints = read_run(name, inside, events, exports, facts[above], desired)
            if (folder / "test.json").exists() and events:  # of tools/look.py classes --save
                test = parse_json(read_text(folder / "test.json"))
                run.end |= {f"test_{each}": float(test[each]) for each in ("top1", "top5", "loss")}
            warnings += complaints
            if run.series:
                runs.append(run)
            else:
                warnings.append(f"{folder}: {name} has no values: left out")
        except Exception as error:  # whatever one log does, the others are shown
            warnings.append(f"{folder}: {name} cannot be read ({reason(error)}): left out")
    names = Counter(run.name for run in runs)
    for run in runs:  # runs of one name get the folders they are in, then a number
        run.name = "/".join([*run.inside, run.name]) if names[run.name] > 1 else run.name
    names = Counter()
    for run in runs:
        names[run.name] += 1
        run.name += f" ({names[run.name]})" if names[run.name] > 1 else ""
    runs.sort(
        key=lambda run: (run.study, run.group, run.devices or 0, run.batch or 0)
        + (run.script != "nd", run.script, run.name)
    )
    return runs, warnings


def read_facts(path):
    """Returns what study.json says of the runs beside it, {} where there is none."""
    return parse_json(read_text(path)) if path.exists() else {}


def read_run(name, inside, events, exports, facts, desired):
    """Returns (the Run of these files, warnings)."""
    points, texts, warnings = [], [], []
    for path in sorted(events):
        more_points, more_texts, complaint = read_events(path)
        points, texts = points + more_points, texts + more_texts
        warnings += [f"{path}: {complaint}"] if complaint else []
    for path, tag in exports:
        more_points, _, complaint = read_export(path, tag)
        points += more_points
        warnings += [f"{path}: {complaint}"] if complaint else []
    starts, end = [], {}
    for tag, text in texts:
        if tag == "about":  # a run that goes on has not ended as it did before
            starts, end = [*starts, parse_about(text)], {}
        else:
            end = parse_about(text)
    run = Run(name, inside, stitch(points), starts, end, facts, desired)
    if run.series and not set(run.series) & set(PER_EPOCH):
        tags = ", ".join(sorted(run.series))
        warnings.append(f"{name}: of its tags, {tags}, none has a value an epoch as these scripts'")
    if run.first_epoch > 1 and not run.resumed:
        why = "and its times lack what came before"
        warnings.append(f"{name}: its log starts at epoch {run.first_epoch}, {why}")
    return run, warnings


# ------------------------------------------------------------- benchmarks, and a file system's CSVs


def read_benchmarks(paths):
    """Returns ({name: content} of all benchmarks under `paths`, as benchmarks/common.py and
    tests/chaos.py write them; warnings). Other JSON is another program's."""
    found, warnings = {}, []
    for path in paths:
        files = list(walk(path))
        of_runs = {file.parent for file in files if "tfevents" in file.name}
        for file in files:
            if file.suffix != ".json" or file.parent in of_runs:
                continue
            try:
                content = parse_json(read_text(file))
                if not isinstance(content, dict) or "title" not in content:
                    continue
                if "rows" in content:
                    content["rows"] = [with_median(row) for row in content["rows"]]
                if "rows" in content or "trials" in content:
                    found.setdefault(visible(file.stem), content)
            except Exception as error:  # whatever one file does, the others are shown
                warnings.append(f"{file}: damaged, or no benchmark ({reason(error)}): not used")
    return found, warnings


def with_median(row):
    """Returns a row of a benchmark with the median of its values; None where there are none."""
    values = np.array(row["values"], dtype=float)
    if not (np.abs(values) < LARGEST_VALUE).all():
        raise ValueError(f"{row['values']} are nothing measured")
    return {**row, "median": float(np.median(values)) if len(values) else None}


def read_io_csv(bandwidth, iops):
    """Returns [(minutes, bytes read per second), (minutes, reads per second)] of two exports of a
    monitoring system: columns "Time", as ISO, UTC unless it says otherwise, or seconds or
    milliseconds since 1970; and "Read"."""
    both = []
    for path in bandwidth, iops:
        try:
            frame = read_csv(path, ["time", "read"])
            seconds = pd.to_numeric(frame.time, errors="coerce")
            seconds = seconds.where(seconds < LARGEST_TIME, seconds / 1000)
            dates = pd.to_datetime(frame.time[seconds.isna()], utc=True, format="ISO8601")
            seconds = seconds.fillna((dates - pd.Timestamp(0, tz="UTC")).dt.total_seconds())
            empty = frame.read.isna() | frame.read.isin(["", "null", "undefined"])
            reads = pd.to_numeric(frame.read.mask(empty))
            if seconds.isna().any() or not reads.notna().any():
                raise ValueError("lacks values or times")
        except Exception as error:
            raise BadInput(f"--io-csv {path}: {reason(error)}") from error
        both.append((seconds.to_numpy(), reads.to_numpy()))
    first = min(times.min() for times, _ in both)
    return [((times - first) / 60, reads) for times, reads in both]


def read_study_io(paths):
    """Returns ({study: what read_io_csv() does} of bandwidth.csv and iops.csv beside its runs;
    warnings)."""
    found, warnings = {}, []
    for path in paths:
        for file in walk(path):
            if file.name == "bandwidth.csv":
                try:
                    found[visible(file.parent.name)] = read_io_csv(file, file.parent / "iops.csv")
                except BadInput as error:
                    warnings.append(str(error))
    return found, warnings
