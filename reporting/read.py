"""Reads training logs: event files, CSV exports, compact CSV; a Run is what one of them says."""

import contextlib
import csv
import dataclasses
import datetime
import functools
import math
import os
import re
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2
from tensorboard.util.tensor_util import make_ndarray

from reporting.text import read_json, reason, visible

RUN_NAME = re.compile(
    r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_[^_]+_(?P<arch>.+)_gpux(?P<devices>\d+)_b(?P<batch>\d+)"
    r"_cpu(?P<workers>\d+)_opt(?P<precision>[^_]+)(_\d+)?$"
)
# What is measured of images, and of text: a language model has the last, of classes more than two
# have neither F1 nor MCC.
IMAGES, TEXT = ("Top1", "Top5"), ("Accuracy", "F1", "MCC", "Perplexity")
PER_EPOCH = [
    f"{tag}/{part}"
    for tag in ("Throughput", "Time", "Loss", *IMAGES, *TEXT)
    for part in ("train", "val")
]
NETWORK = [f"Network/{each}_MB_per_step" for each in ("sent", "received", "expected")]
KNOWN = {*PER_EPOCH, *NETWORK, "Lr", "Loss/step", "Data/wait", "Steps/skipped"}
KNOWN |= {f"IO/{each}" for each in ("read_MBps", "disk_MBps", "read_iops")}
# Of "about" and "end" what is used here: where it stands, it is of this type.
WRITTEN = {
    dict: "place environment options options.recipes resumed",
    str: "place.device device data options.arch options.precision options.half_dtype reason "
    "options.task "
    "environment.OMP_NUM_THREADS environment.IMAGENET_DIR environment.SLURM_STEP_NUM_TASKS",
    int: "place.ranks place.devices place.local_ranks place.shares place.data_ranks cores threads "
    "num_classes image_size steps_per_epoch global_batch device_batch options.batch_size "
    "vocabulary",
    (int, float): "gradient_bytes resumed.epoch resumed.seconds options.desired_acc options.lr "
    "options.budget_hours epochs test_top1 test_top5 test_loss",
}
# Beyond what any training logs; figures cannot be drawn of much larger numbers.
LARGEST_FILE, LARGEST_TEXT = 2**24, 2**20  # bytes of CSV or JSON; characters in an event file
LARGEST_NUMBER, LARGEST_TIME = 1e15, 1e11  # the latter in seconds


class BadInput(Exception):
    """The user's mistake, told in one line: what, where, what to do. Ends in exit status 2."""


@dataclasses.dataclass
class Series:
    """One tag's values, one for each step, in the order of steps; all are (n,) float64."""

    steps: np.ndarray
    values: np.ndarray
    seconds: np.ndarray  # of training until then, without the time between restarts


@dataclasses.dataclass
class Run:
    """One training run, read from its log."""

    name: str
    inside: tuple[str, ...]  # the folders of LOGS that it is in
    series: dict[str, Series]
    about: dict  # what the scripts log of themselves
    end: dict  # the same, at the end
    starts: list[dict]  # `about` of each start, of a run that was resumed in its folder
    named: dict  # what the name says
    desired: float | None = None  # accuracy, a fraction
    facts: dict = dataclasses.field(default_factory=dict)  # of study.json in the folder above
    label: str = ""  # in figures
    style: dict = dataclasses.field(default_factory=dict)  # the same in all figures

    @property
    def study(self):
        return self.inside[0] if self.inside else ""

    @property
    def resumed(self):
        """The epoch and seconds that it began with, if another folder has what came before."""
        return (self.starts[0].get("resumed") if self.starts else None) or {}

    @property
    def options(self):
        return self.about.get("options", {})

    @property
    def arch(self):
        return self.options.get("arch") or self.named.get("arch", "")

    @property
    def file(self):
        """The script's name, or nothing where it was not logged."""
        return Path(self.about.get("command", ["", ""])[1]).name

    @property
    def script(self):
        """nd, dp, ddp, ddp_apex, horovod, or nothing where it was not logged."""
        return re.sub("^(imagenet|text)_", "", Path(self.file).stem)

    @property
    def items(self):
        """What its batches are of."""
        return "sequences" if self.measure in TEXT else "images"

    @property
    def measure(self):
        """The tag that says best what it has reached, of validation; None where there is none."""
        tags = ("Top1", "Accuracy", "Perplexity")
        return next((tag for tag in tags if f"{tag}/val" in self.series), None)

    @property
    def devices(self):
        """GPUs, or processes on the CPU; None where neither log nor name tells."""
        if place := self.about.get("place"):
            return place["ranks"] * place["devices"]
        return int(self.named["devices"]) if self.named else None

    @property
    def batch(self):
        """Images or sequences per device per step; None where neither log nor name tells."""
        return self.options.get("batch_size") or int(self.named.get("batch", 0)) or None

    @property
    def global_batch(self):
        known = self.devices and self.batch
        return self.about.get("global_batch") or (self.devices * self.batch if known else None)

    @property
    def on_cpu(self):
        return self.about.get("place", {}).get("device") == "cpu"

    @property
    def crowded(self):
        """Whether a node of CPUs had fewer cores than its processes have threads."""
        if not self.on_cpu:
            return False
        threads = self.about.get("threads", 1) * self.about["place"]["local_ranks"]
        return threads > self.about.get("cores", threads)

    @property
    def precision(self):
        place = self.about.get("place", {})
        level = place.get("precision") or self.options.get("precision")
        level = level or self.named.get("precision", "")
        if level in ("O1", "O2", "O3") and self.options:
            half = self.options.get("half_dtype") or ("bfloat16" if self.on_cpu else "float16")
            return f"{level} {half}"
        return level

    @property
    def hardware(self):
        """The device, and on the CPU the cores of a node and the threads of a process."""
        device = self.about.get("device") or self.facts.get("device", "")
        cores, threads = self.about.get("cores"), self.about.get("threads")
        if not (self.on_cpu and cores and threads):
            return device
        plural = "s" if threads != 1 else ""
        return f"{device}, {cores} cores, {threads} thread{plural} per process"

    @property
    def data(self):
        """What was trained on."""
        if not self.about.get("data"):
            return self.facts.get("data", "")
        sizes = {"num_classes": "{} classes", "image_size": "{} pixels"}
        sizes |= {"vocabulary": "vocabulary {}"}
        known = [sizes[each].format(self.about[each]) for each in sizes if self.about.get(each)]
        path = Path(self.about["data"])
        name = path.name
        if task := self.options.get("task"):  # of text; a file, but for a demo
            name = path.parent.name if path.suffix in (".tsv", ".txt", ".bin") else name
            name = f"{task}: {name}"
        return f"{name} ({', '.join(known)})" if known else name

    @property
    def learns(self):
        """Whether its losses and accuracies mean anything."""
        return not self.options.get("dummy")

    @property
    def group(self):
        """Runs with the same may be compared."""
        return self.arch, self.data, self.hardware, self.precision

    @property
    def order(self):
        """What tables and colours sort by."""
        numbers = (self.devices or 0, self.batch or 0)
        return self.study, self.group, numbers, self.script != "nd", self.script, self.name

    @property
    def seconds_to_desired(self):
        """Seconds until validation's accuracy was the desired one; None if it never was."""
        if self.desired and self.measure in ("Top1", "Accuracy"):
            found = self.series[f"{self.measure}/val"]
            reached = found.values >= 100 * self.desired
            return found.seconds[reached.argmax()] if reached.any() else None

    @property
    def gradient_bytes(self):
        """What is all-reduced in a step; None where it cannot be known."""
        if "gradient_bytes" in self.about:
            return self.about["gradient_bytes"]
        parameters = count_parameters(self.arch)
        return parameters and parameters * (2 if self.precision in ("O2", "O3") else 4)

    @functools.cached_property
    def throughput(self):
        """(mean, standard deviation) of images/s, or sequences/s, over epochs without the first, if
        there are others; None where it was not logged."""
        values = self.values("Throughput/train")
        values = values[1:] if len(values) > 1 else values
        return (values.mean(), values.std()) if len(values) and values.mean() > 0 else None

    @property
    def epochs(self):
        """The last epoch that was logged."""
        return max((int(each.steps[-1]) for each in self.of_epochs), default=None)

    @property
    def of_epochs(self):
        """The series that have a value an epoch."""
        return [self.series[tag] for tag in PER_EPOCH if tag in self.series]

    @property
    def training_seconds(self):
        return max((each.seconds[-1] for each in self.of_epochs), default=None)

    def mean(self, tag):
        """Mean over a run of what was sampled now and then: over steps for what is counted per
        step, else over time; None where it was not logged."""
        if tag in self.series:
            each, before = self.series[tag], self.resumed
            if tag in NETWORK:
                # Logged once an epoch, as the learning rate; older logs count in steps.
                epochs = self.series["Lr"].steps if "Lr" in self.series else []
                by_step = not set(each.steps) <= set(epochs)
                scale = self.about.get("steps_per_epoch", 0) if by_step else 1
                spans = np.diff(each.steps, prepend=before.get("epoch", 0) * scale)
            else:
                spans = np.diff(each.seconds, prepend=before.get("seconds", 0))
            return np.average(each.values, weights=spans) if spans.sum() else None

    def values(self, tag):
        """Returns a tag's values, none where it was not logged."""
        return self.series[tag].values if tag in self.series else np.array([])


@functools.cache
def count_parameters(arch):
    """Returns the number of parameters of a torchvision classifier, None if it has no such.

    PyTorch is asked in a process of its own: its import takes more memory than a thousand runs.
    """
    program = (
        "import sys, torch, torchvision\n"
        "with torch.device('meta'):\n"
        "    model = torchvision.models.get_model(sys.argv[1])\n"
        "print(sum(each.numel() for each in model.parameters()))"
    )
    words = [sys.executable, "-c", program, arch]
    done = subprocess.run(words, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else None


def read_event_file(path, points, texts):
    """Adds a file's scalars to points[tag], as (step, wall time, value, when the file began), and
    what the scripts log of themselves to texts[tag]; returns a complaint, or None."""
    began, intact = None, 0
    try:
        if not path.is_file():  # a pipe would be waited for
            return "is no file: not used"
        size = path.stat().st_size
        for record in RawEventFileLoader(str(path)).Load():
            intact += len(record) + 16  # a record's length and two checksums
            event = event_pb2.Event.FromString(record)
            began = event.wall_time if began is None else began
            for value in event.summary.value:
                kind, plugin = value.WhichOneof("value"), value.metadata.plugin_data.plugin_name
                text = value.tag.removesuffix("/text_summary")
                if kind == "simple_value":
                    point = event.step, event.wall_time, value.simple_value, began
                    points[value.tag].append(point)
                elif kind == "tensor" and plugin == "scalars":  # as TensorFlow 2 writes them
                    number = float(only_value(value.tensor))
                    points[value.tag].append((event.step, event.wall_time, number, began))
                elif kind == "tensor" and plugin == "text" and text in ("about", "end"):
                    if text == "about":  # a run that goes on has not ended as it did before
                        texts.pop("end", None)
                    texts.setdefault(text, []).append(only_value(value.tensor).decode())
    except Exception as error:  # of the libraries that decode it, any
        return f"cannot be read further ({reason(error)})"
    if began is None:
        return "empty" if size == 0 else "damaged from the start: not used"
    if intact < size:
        return f"damaged or cut off after {intact} of {size} bytes: used up to there"
    return None


def only_value(tensor):
    """Returns what a tensor of one element holds; a few bytes can claim any number of them."""
    claimed = math.prod(each.size for each in tensor.tensor_shape.dim)
    if claimed != 1:
        raise ValueError(f"a tensor of {claimed} values, not of one")
    return make_ndarray(tensor).item()


def read_text(path):
    """Returns the text of a file, which is no pipe, and not too large to be of these programs."""
    if not path.is_file():
        raise OSError("it is no file")
    if path.stat().st_size > LARGEST_FILE:
        raise OSError(f"it is larger than {LARGEST_FILE >> 20} MiB")
    return path.read_text(encoding="utf-8-sig")


def read_csv(path, wanted):
    """Returns (rows of the `wanted` columns as text, a complaint or None).

    The separator is the header's own: comma, semicolon, tab or bar; where it is no comma, numbers
    may have a decimal comma.
    """
    try:
        lines = read_text(path).splitlines()
        separator = max(",;\t|", key=(lines or [""])[0].count)
        rows = [row for row in csv.reader(lines, delimiter=separator) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        return [], f"cannot be read ({error})"
    names = [name.strip().lower() for name in rows[0]] if rows else []
    if not set(wanted) <= set(names):
        return [], f"has no columns {', '.join(wanted)}: not used"
    places = [names.index(name) for name in wanted]
    point = "," if separator != "," else "\0"
    whole = [row for row in rows[1:] if len(row) >= len(names)]
    short = len(rows) - 1 - len(whole)
    complaint = f"{short} rows are cut off: not used" if short else None
    return [
        [row[place].strip().replace(point, ".") for place in places] for row in whole
    ], complaint


def read_export(path, points):
    """Adds a CSV export of TensorBoard to points, as (step, wall time, value, nan); returns a
    complaint, or None."""
    rows, complaint = read_csv(path, ["step", "wall time", "value"])
    added, wrong = [], []
    for row in rows:
        try:
            step, wall, value = map(float, row)
            added.append((int(step), wall, value, math.nan))
        except (ValueError, OverflowError):
            wrong.append(", ".join(row))
    points += added
    if wrong:
        complaint = f"{len(wrong)} rows, as {wrong[0][:80]}, are no numbers: not used"
    return complaint or (None if added else "empty")


def read_compact(path, points):
    """Adds a run as tools/convert_runs.py writes it to points[tag], as (epoch, seconds since the
    run began, value, 0); returns a complaint, or None."""
    try:
        rows = list(csv.DictReader(read_text(path).splitlines()))
        for row in rows:
            epoch, seconds = int(row.pop("epoch")), float(row.pop("seconds"))
            if not math.isfinite(seconds) or None in row or None in row.values():
                raise ValueError(f"the row of epoch {epoch} is cut off, or its time is no number")
            for tag, value in row.items():
                if value:
                    points[tag].append((epoch, seconds, float(value), 0.0))
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, ValueError, TypeError) as error:
        return f"cannot be read further ({type(error).__name__}: {error})"
    return None if rows else "empty"


def stitch(points, sampled=False):
    """Returns the Series of points (step, wall time, value, when its file began).

    Of the values of a step, as restarts leave them, the latest counts. What is sampled now and
    then, at steps that restarts do not repeat, is dropped where newer samples came before. Seconds
    are those between the steps that count, or since the file began: neither pauses nor what was
    done twice.
    """
    points = np.array(points, dtype=np.float64)
    points = points[np.lexsort((points[:, 1], points[:, 0]))]
    points = points[np.append(points[1:, 0] != points[:-1, 0], True)]
    if sampled:
        points = points[points[:, 1] >= np.maximum.accumulate(points[:, 1])]
    steps, walls, values, began = points.T
    before = np.append(began[0], np.maximum.accumulate(walls)[:-1])
    spent = np.maximum(walls - np.fmax(before, began), 0)  # NaN, of an export, yields to a number
    if math.isnan(spent[0]):  # an export does not say when the run began: take a usual epoch
        spent[0] = np.median(spent[1:]) if len(spent) > 1 else 0
    return Series(steps, values, np.cumsum(spent))


def find_logs(paths):
    """Returns {folder: (folders above it in LOGS, event files, {run: [(CSV export, tag)]})}."""
    logs, seen = {}, set()
    for path in paths:
        if not os.path.exists(path):
            raise BadInput(f"{path}: there is no such file or folder")
        for file in sorted(walk(path)):
            export = re.fullmatch(r"run-(.+)-tag-(.+?)(?: \(\d+\))?\.csv", file.name)
            compact = file.suffix == ".csv" and RUN_NAME.search(file.stem) and not export
            if not (export or compact or "tfevents" in file.name) or os.path.realpath(file) in seen:
                continue
            seen.add(os.path.realpath(file))
            inside = file.parent.relative_to(path).parts if path.is_dir() else ()
            inside = tuple(map(visible, inside))
            if compact:  # as if it lay in a folder of its name
                logs[file.with_suffix("").absolute()] = ((*inside, file.stem), [file], {})
                continue
            _, events, exports = logs.setdefault(file.parent.absolute(), (inside, [], {}))
            if export:
                tag = export[2].replace("_", "/", 1)
                exports.setdefault(export[1], []).append((file, tag))
            else:
                events.append(file)
    return join_exports(logs)


def join_exports(logs):
    """Returns find_logs()' folders; of sibling folders that hold other tags of the same runs, as
    where exports are sorted into a folder for each tag, it makes the folder above them."""
    siblings = defaultdict(list)
    for folder, (_, events, exports) in logs.items():
        if exports and not events:
            siblings[folder.parent].append(folder)
    for parent, folders in siblings.items():
        names = [name for folder in folders for name in logs[folder][2]]
        tags = [
            tag
            for folder in folders
            for tag in {tag for files in logs[folder][2].values() for _, tag in files}
        ]
        if len(set(tags)) == len(tags) and len(set(names)) < len(names):
            inside = logs[folders[0]][0][:-1]
            _, _, joined = logs.setdefault(parent, (inside, [], {}))
            for folder in folders:
                for name, files in logs.pop(folder)[2].items():
                    joined.setdefault(name, []).extend(files)
    return logs


def walk(path):
    """Yields the files of a folder, at any depth, through links to folders too; or the file."""
    if path.is_file():
        yield path
    folders, seen = [path], set()
    while folders:  # os.walk() would recurse
        folder = folders.pop()
        with contextlib.suppress(OSError):  # one that may not be read
            about = os.stat(folder)
            if (about.st_dev, about.st_ino) in seen:
                continue  # a link to a folder above, or a second one to it
            seen.add((about.st_dev, about.st_ino))
            for name in os.listdir(folder):
                found = os.path.join(folder, name)
                inside = os.path.isdir(found)
                folders += [found] if inside else []
                if not inside or name.startswith("events.out.tfevents."):
                    yield Path(found)


@functools.cache
def read_facts(folder):
    """Returns what study.json says of the runs in a folder, for logs that do not say it; or {}."""
    try:
        facts = read_json(read_text(folder / "study.json"))
        facts = facts if isinstance(facts, dict) else {}
        return {name: text for name, text in facts.items() if isinstance(text, str)}
    except (OSError, ValueError, RecursionError, MemoryError):
        return {}


def read_test(path, name, warnings):
    """Returns what `tools/look.py classes --part test --save` left beside a run, as `end` names it,
    where older scripts wrote it; {} where there is none. Adds to warnings."""
    try:
        if not path.exists():
            return {}
        content = read_json(read_text(path))
        found = {f"test_{what}": content[what] for what in ("top1", "top5", "loss")}
        check_text("end", found)
        return found
    except Exception as error:
        why = f"is not as tools/look.py writes it ({type(error).__name__}: {reason(error)})"
        warnings.append(f"{path}: the test of {name} {why}: not used")
        return {}


def read_runs(paths, desired=None):
    """Returns (all Runs under `paths`, sorted, with names of their own; warnings)."""
    runs, warnings = [], []
    for folder, (inside, events, exports) in find_logs(paths).items():
        found = {name: ([], files, inside) for name, files in exports.items()}
        if events:  # this folder is a run, and its CSV exports, if any, are others
            found = {f"{name} (CSV)": files for name, files in found.items()}
            found[folder.name] = (events, [], inside[:-1])
        for name, (event_files, csv_files, inside) in found.items():
            where = [*event_files, *(file for file, _ in csv_files)][0].parent
            try:
                run = read_run(visible(name), inside, event_files, csv_files, warnings)
                run.desired = run.options.get("desired_acc") or desired
                run.facts = read_facts(folder.parent)
                run.end |= read_test(folder / "test.json", run.name, warnings)
                if run.series:
                    runs.append(run)
                else:
                    warnings.append(f"{where}: {name} has no values: left out")
            except Exception as error:  # whatever one log does, the others are shown
                warnings.append(f"{where}: {name} cannot be read ({reason(error)}): left out")
    names = Counter(run.name for run in runs)
    for run in runs:  # runs of one name get the folders they are in, then a number
        if names[run.name] > 1:
            run.name = "/".join([*run.inside, run.name])
    names = Counter()
    for run in runs:
        names[run.name] += 1
        run.name += f" ({names[run.name]})" if names[run.name] > 1 else ""
    runs.sort(key=lambda run: run.order)
    return runs, warnings


def read_run(name, inside, event_files, csv_files, warnings):
    """Returns the Run of these files; adds to warnings."""
    points, texts = defaultdict(list), {}
    complaints = [
        (file, read_compact(file, points))
        if file.suffix == ".csv"
        else (file, read_event_file(file, points, texts))
        for file in event_files
    ]
    complaints += [(file, read_export(file, points[tag])) for file, tag in csv_files]
    warnings += [f"{file}: {complaint}" for file, complaint in complaints if complaint]
    return make_run(name, inside, points, texts, warnings)


def is_possible(point):
    """Returns whether a step, a wall time, a value and when its file began can be of a log."""
    step, wall, value, began = point
    times = 0 <= wall < LARGEST_TIME and (math.isnan(began) or 0 <= began < LARGEST_TIME)
    return times and 0 <= step < LARGEST_NUMBER and abs(value) < 1e30


def check_text(tag, content):
    """Raises an error where "about" or "end" is not as these scripts write it."""
    for kind, names in WRITTEN.items():
        for name in names.split():
            *folders, last = name.split(".")
            inside = content
            for folder in folders:
                inside = inside.get(folder) or {}
            value = inside.get(last)
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{name} is {value!r}")
            if isinstance(value, (int, float)) and not 0 <= value < LARGEST_NUMBER:
                raise ValueError(f"{name} is {value}")
    if tag == "about":
        place, command = content["place"], content["command"]
        if not min(place["ranks"], place["devices"], place["local_ranks"]) > 0:
            raise ValueError("a place of no ranks")
        if not (command[1] and all(isinstance(word, str) for word in command)):
            raise TypeError("a command of something else than words")


def make_run(name, inside, points, texts, warnings):
    """Returns the Run of points[tag] and texts; adds to warnings."""
    series, lost = {}, []
    for tag, of_tag in points.items():
        possible = [point for point in of_tag if is_possible(point)]
        if len(possible) < len(of_tag):
            lost.append(f"{len(of_tag) - len(possible)} values of {tag}")
        if possible:
            series[tag] = stitch(possible, sampled=tag not in PER_EPOCH)
    if lost:
        why = "are not finite, or out of range by their steps or times"
        warnings.append(f"{name}: {', '.join(lost)} {why}: left out")
    parsed = {"about": [], "end": []}
    for tag, contents in texts.items():
        for text in contents:
            try:
                if len(text) > LARGEST_TEXT:
                    raise ValueError(f"longer than {LARGEST_TEXT:,} characters")
                content = read_json(text.strip("`json\n"))
                if isinstance(content.get("command"), str):  # in older logs a list of its words
                    content["command"] = shlex.split(content["command"])
                check_text(tag, content)
                parsed[tag].append(content)
            except Exception as error:
                why = f"is not as these scripts write it ({reason(error)}): not used"
                warnings.append(f'{name}: its text "{tag}" {why}')
    if not set(series) & set(PER_EPOCH) and series:
        tags = ", ".join(sorted(series))
        warnings.append(f"{name}: of its tags, {tags}, none has a value an epoch as these scripts'")
    elif odd := ", ".join(sorted(set(series) - KNOWN)):
        warnings.append(f"{name}: tags that these scripts do not log are not used: {odd}")
    named, starts = RUN_NAME.search(name.removesuffix(" (CSV)")), parsed["about"]
    about, end = (starts or [{}])[-1], (parsed["end"] or [{}])[-1]
    run = Run(name, inside, series, about, end, starts, named.groupdict() if named else {})
    for each in series.values():
        each.seconds += run.resumed.get("seconds", 0)
    first = min((each.steps[0] for each in run.of_epochs), default=1)
    if first > 1 and not run.resumed:
        why = "and its times lack what came before"
        warnings.append(f"{name}: its log starts at epoch {first:.0f}, {why}")
    return run


def read_io_csv(bandwidth, iops):
    """Returns [(minutes, bytes read per second), (minutes, reads per second)] of two exports."""
    both = []
    for path in bandwidth, iops:
        rows, complaint = read_csv(path, ["time", "read"])
        try:
            times = np.array([read_time(time) for time, _ in rows])
            empty = ("", "null", "undefined")
            reads = np.array([float("nan" if read in empty else read) for _, read in rows])
        except (ValueError, OverflowError) as error:
            complaint = str(error)
        if complaint or not (np.isfinite(reads).any() and np.isfinite(times).all()):
            raise BadInput(f"--io-csv {path}: {complaint or 'lacks values or times'}")
        both.append((times, reads))
    first = min(times.min() for times, _ in both)
    return [((times - first) / 60, reads) for times, reads in both]


def read_study_io(paths):
    """Returns ({study: what read_io_csv() does} of io.csv, by convert_runs.py; warnings)."""
    found, warnings = {}, []
    for path in (path for each in paths for path in walk(each) if path.name == "io.csv"):
        rows, complaint = read_csv(path, ["minutes", "read mb/s", "reads/s"])
        try:
            columns = np.array(rows, dtype=np.float64).T
        except ValueError as error:
            complaint = str(error)
        if complaint or not len(rows) or not (np.abs(columns) < 1e30).all():
            warnings.append(
                f"{path}: {complaint or 'has no values, or some that are none'}: not used"
            )
        else:
            minutes, rates, reads = columns
            found[visible(path.parent.name)] = [(minutes, 1e6 * rates), (minutes, reads)]
    return found, warnings


def read_time(text):
    """Returns seconds since 1970 from an ISO time, UTC unless it says otherwise, or from seconds or
    milliseconds since then."""
    try:
        seconds = float(text)
    except ValueError:
        time = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
        return time.replace(tzinfo=time.tzinfo or datetime.timezone.utc).timestamp()
    return seconds / 1000 if seconds > 1e11 else seconds
