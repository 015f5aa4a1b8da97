"""Turn training logs into figures/ and RESULTS.md: every figure and every number in them.

    python make_results.py logs                             # `make results`
    python make_results.py logs --check                     # is what stands there what logs/ give?
    python make_results.py runs --out my_results            # any runs of the imagenet_*.py
    python make_results.py LOGS --io-csv bandwidth.csv iops.csv --out FOLDER

LOGS are folders with TensorBoard's event files, or its CSV exports (run-RUN-tag-TAG.csv), at any
depth; a folder of event files is a run. What a run is, its log says ("about"), else its name, as in
Feb12_21-54-28_hal01_resnet50_gpux64_b208_cpu20_optO2. The folders in LOGS that hold runs are
studies, with figures of their own. JSON files that benchmarks/ wrote are tables of RESULTS.md.
Nothing else enters the results: no clock, no font, no machine.
"""

import argparse
import collections
import csv
import dataclasses
import datetime
import functools
import hashlib
import inspect
import json
import math
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections import Counter, defaultdict
from pathlib import Path

import matplotlib
import matplotlib.colors
import matplotlib.ticker
import numpy as np
import PIL.Image
import scipy.optimize
import scipy.stats
from google.protobuf.message import DecodeError
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2
from tensorboard.util.tensor_util import make_ndarray

RUN_NAME = re.compile(
    r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_[^_]+_(?P<arch>.+)_gpux(?P<devices>\d+)_b(?P<batch>\d+)"
    r"_cpu(?P<workers>\d+)_opt(?P<precision>[^_]+)(_\d+)?$"
)
PER_EPOCH = [
    f"{tag}/{part}"
    for tag in ("Throughput", "Time", "Loss", "Top1", "Top5")
    for part in ("train", "val")
]
NETWORK = [f"Network/{each}_MB_per_step" for each in ("sent", "received", "expected")]
CROWD = 40  # runs whose faint curves and labels would cover each other
OWN_FIGURES = 100  # runs, above which a run has no figure of its own


class BadInput(Exception):
    """The user's mistake, told in one line: what, where, what to do. Ends in exit status 2."""


# ---------------------------------------------------------------------------------------- reading


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
    def script(self):
        """nd, dp, ddp, ddp_apex, horovod, or nothing where it was not logged."""
        words = self.about.get("command", ["", ""])
        return Path(words[1]).stem.removeprefix("imagenet_")

    @property
    def devices(self):
        """GPUs, or processes on the CPU; None where neither log nor name tells."""
        if place := self.about.get("place"):
            return place["ranks"] * place["devices"]
        return int(self.named["devices"]) if self.named else None

    @property
    def batch(self):
        """Images per device per step; None where neither log nor name tells."""
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
        """Whether a node had fewer cores than its processes have threads."""
        threads = self.about.get("threads", 1) * self.about["place"]["local_ranks"]
        return threads > self.about.get("cores", threads)

    @property
    def precision(self):
        level = self.options.get("precision") or self.named.get("precision", "")
        if level in ("O1", "O2", "O3") and self.options:
            half = self.options.get("half_dtype") or ("bfloat16" if self.on_cpu else "float16")
            return f"{level} {half}"
        return level

    @property
    def hardware(self):
        """The device, and on the CPU the cores of a node and the threads of a process."""
        about = self.about
        if not (self.on_cpu and "cores" in about and "threads" in about):
            return about.get("device", "")
        cores, threads = about["cores"], about["threads"]
        plural = "s" if threads != 1 else ""
        return f"{about['device']}, {cores} cores, {threads} thread{plural} per process"

    @property
    def data(self):
        """What was trained on."""
        if not self.about.get("data"):
            return ""
        sizes = f"{self.about['num_classes']} classes, {self.about['image_size']} pixels"
        return f"{Path(self.about['data']).name} ({sizes})"

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
        """Seconds until validation's top-1 reached the desired accuracy; None if it did not."""
        top1 = self.series.get("Top1/val")
        if self.desired and top1 is not None:
            reached = top1.values >= 100 * self.desired
            return top1.seconds[reached.argmax()] if reached.any() else None

    @property
    def gradient_bytes(self):
        """What is all-reduced in a step; None where it cannot be known."""
        if "gradient_bytes" in self.about:
            return self.about["gradient_bytes"]
        parameters = count_parameters(self.arch)
        return parameters and parameters * (2 if self.precision in ("O2", "O3") else 4)

    @functools.cached_property
    def throughput(self):
        """(mean, standard deviation) of images/s over epochs without the first, if there are
        others; None where it was not logged."""
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
                    number = make_ndarray(value.tensor).item()
                    points[value.tag].append((event.step, event.wall_time, number, began))
                elif kind == "tensor" and plugin == "text" and text in ("about", "end"):
                    if text == "about":  # a run that goes on has not ended as it did before
                        texts.pop("end", None)
                    content = make_ndarray(value.tensor).ravel()[0].decode()
                    texts.setdefault(text, []).append(content)
    except (OSError, ValueError, IndexError, DecodeError) as error:
        return f"cannot be read further ({(str(error) or repr(error)).splitlines()[0]})"
    if began is None:
        return "empty" if size == 0 else "damaged from the start: not used"
    if intact < size:
        return f"damaged or cut off after {intact} of {size} bytes: used up to there"
    return None


def read_csv(path, wanted):
    """Returns (rows of the `wanted` columns as text, a complaint or None).

    The separator is the header's own: comma, semicolon, tab or bar; where it is no comma, numbers
    may have a decimal comma.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
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
        complaint = f"{len(wrong)} rows, as {wrong[0]}, are no numbers: not used"
    return complaint or (None if added else "empty")


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
        if not path.exists():
            raise BadInput(f"{path}: there is no such file or folder")
        for file in sorted(walk(path)):
            export = re.fullmatch(r"run-(.+)-tag-(.+?)(?: \(\d+\))?\.csv", file.name)
            if not (export or "tfevents" in file.name) or file.resolve() in seen:
                continue
            seen.add(file.resolve())
            inside = file.parent.relative_to(path).parts if path.is_dir() else ()
            _, events, exports = logs.setdefault(file.parent.absolute(), (inside, [], {}))
            if export:
                tag = export[2].replace("_", "/", 1)
                exports.setdefault(export[1], []).append((file, tag))
            else:
                events.append(file)
    return logs


def walk(path):
    """Yields the files of a folder, at any depth, through links to folders too; or the file."""
    folders = set()
    for folder, below, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in folders:  # a link to a folder above, or a second one to it
            below.clear()
        else:
            folders.add(real)
            yield from (Path(folder, name) for name in names)
    if path.is_file():
        yield path


def read_runs(paths, desired=None):
    """Returns (all Runs under `paths`, sorted, named and styled to tell them apart; warnings)."""
    runs, warnings = [], []
    for folder, (inside, events, exports) in find_logs(paths).items():
        found = {name: ([], files, inside) for name, files in exports.items()}
        if events:  # this folder is a run, and its CSV exports, if any, are others
            found = {f"{name} (CSV)": files for name, files in found.items()}
            found[folder.name] = (events, [], inside[:-1])
        for name, (event_files, csv_files, inside) in found.items():
            points, texts = defaultdict(list), {}
            complaints = [(file, read_event_file(file, points, texts)) for file in event_files]
            complaints += [(file, read_export(file, points[tag])) for file, tag in csv_files]
            warnings += [f"{file}: {complaint}" for file, complaint in complaints if complaint]
            run = make_run(name, inside, points, texts, warnings)
            run.desired = run.options.get("desired_acc") or desired
            if run.series:
                runs.append(run)
            else:
                where = complaints[0][0].parent
                warnings.append(f"{where}: {name} has no values: left out")
    names = Counter(run.name for run in runs)
    for run in runs:  # runs of one name get the folders they are in, then a number
        if names[run.name] > 1:
            run.name = "/".join([*run.inside, run.name])
    names = Counter()
    for run in runs:
        names[run.name] += 1
        run.name += f" ({names[run.name]})" if names[run.name] > 1 else ""
    runs.sort(key=lambda run: run.order)
    style_runs(runs)
    return runs, warnings


def read_benchmarks(paths):
    """Returns (all benchmarks under `paths`, as benchmarks/common.py writes them; warnings).

    JSON that is whole and of another shape is another program's, and so is what lies beside event
    files, such as a profiler's trace.
    """
    benchmarks, warnings, seen = [], [], set()
    for path in paths:
        files = sorted(walk(path))
        of_runs = {file.parent for file in files if "tfevents" in file.name}
        for file in files:
            if file.suffix != ".json" or file.parent in of_runs or file.resolve() in seen:
                continue
            seen.add(file.resolve())
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
                shapes = {"title", "rows"}, {"title", "trials"}
                if isinstance(content, dict) and any(each <= set(content) for each in shapes):
                    benchmark_section(content)  # an error where it is not as it should be
                    benchmarks.append(content)
            except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
                why = f"{type(error).__name__}: {error}".splitlines()[0]
                warnings.append(f"{file}: damaged, or no benchmark ({why}): not used")
    return benchmarks, warnings


def make_run(name, inside, points, texts, warnings):
    """Returns the Run of points[tag] and texts; adds to warnings."""
    series = {}
    for tag, of_tag in points.items():
        finite = [point for point in of_tag if math.isfinite(point[2])]
        if len(finite) < len(of_tag):
            lost = len(of_tag) - len(finite)
            warnings.append(f"{name}: {lost} values of {tag} are not finite: left out")
        if finite:
            series[tag] = stitch(finite, sampled=tag not in PER_EPOCH)
    parsed = {"about": [], "end": []}
    for tag, contents in texts.items():
        for text in contents:
            try:
                content = json.loads(text.strip("`json\n"))
                if tag == "about":  # an error where it is not as these scripts write it
                    place, _ = content["place"], content["command"][1]
                    place["ranks"] * place["devices"] // place["local_ranks"]
                dict(content, **content.get("options", {}))  # an error where these are no dicts
                parsed[tag].append(content)
            except (ValueError, LookupError, TypeError, AttributeError, ZeroDivisionError):
                why = "is not as these scripts write it: not used"
                warnings.append(f'{name}: its text "{tag}" {why}')
    if not set(series) & set(PER_EPOCH) and series:
        tags = ", ".join(sorted(series))
        warnings.append(f"{name}: of its tags, {tags}, none has a value an epoch as these scripts'")
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
        except ValueError as error:
            complaint = str(error)
        if complaint or not (np.isfinite(reads).any() and np.isfinite(times).all()):
            raise BadInput(f"--io-csv {path}: {complaint or 'lacks values or times'}")
        both.append((times, reads))
    first = min(times.min() for times, _ in both)
    return [((times - first) / 60, reads) for times, reads in both]


def read_time(text):
    """Returns seconds since 1970 from an ISO time, UTC unless it says otherwise, or from seconds or
    milliseconds since then."""
    try:
        seconds = float(text)
    except ValueError:
        time = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
        return time.replace(tzinfo=time.tzinfo or datetime.timezone.utc).timestamp()
    return seconds / 1000 if seconds > 1e11 else seconds


# ---------------------------------------------------------------------------------- scaling model


@dataclasses.dataclass
class ScalingModel:
    """Seconds of a step = compute x images + volume x 2 (N - 1) / N + latency x 2 (N - 1).

    N devices reduce gradients in a ring of 2 (N - 1) messages, which carry 2 (N - 1) / N times the
    gradients (Patarasuk and Yuan 2009); only what the computation does not hide is seen here.
    Fitted by least squares of the relative errors, none of the three below 0.
    """

    compute: float  # s per image of a device
    volume: float  # s to move one gradient's bytes
    latency: float  # s per message
    covariance: np.ndarray  # (3, 3) of the three, from the residuals
    spread: float  # standard deviation of a run's relative error
    spare: int  # runs beyond the parameters; with none, spread and covariance are 0

    def predict(self, devices, images):
        """Returns a step's seconds from devices and images per device."""
        return ring_terms(devices, images) @ [self.compute, self.volume, self.latency]

    def limits(self, devices, images):
        """Returns the 95 % prediction limits, a fraction of what is predicted (Draper and Smith
        1998, section 8.2); needs a spare run."""
        terms = ring_terms(devices, images)
        of_fit = np.einsum("ij,jk,ik->i", terms, self.covariance, terms)
        of_fit /= self.predict(devices, images) ** 2
        return scipy.stats.t.ppf(0.975, self.spare) * np.sqrt(self.spread**2 + of_fit)


def ring_terms(devices, images):
    """Returns the model's three terms, (n, 3)."""
    devices = np.asarray(devices, dtype=np.float64)
    hops = 2 * (devices - 1)
    return np.stack([images + 0 * devices, hops / devices, hops], axis=1)


def fit_scaling(runs):
    """Returns the ScalingModel of runs with two numbers of devices or more."""
    devices = np.array([run.devices for run in runs])
    images = np.array([run.global_batch / run.devices for run in runs])
    seconds = np.array([run.global_batch / run.throughput[0] for run in runs])
    terms = ring_terms(devices, images) / seconds[:, None]
    use = [0, 1, 2] if len(set(devices)) > 2 else [0, 1]  # two sizes cannot tell three terms apart
    scale = np.abs(terms).max(axis=0)
    fitted, _ = scipy.optimize.nnls(terms[:, use] / scale[use], np.ones(len(runs)))
    fitted[fitted < 1e-9] = 0  # of what they were scaled to: a rounding error, not a term
    found = np.zeros(3)
    found[use] = fitted / scale[use]
    active = found > 0
    spare = len(runs) - active.sum()
    errors = terms @ found - 1
    spread = math.sqrt(errors @ errors / spare) if spare else 0.0
    covariance = np.zeros((3, 3))
    part = terms[:, active] / scale[active]
    inverse = np.linalg.pinv(part.T @ part) / np.outer(scale[active], scale[active])
    covariance[np.ix_(active, active)] = spread**2 * inverse
    return ScalingModel(*found, covariance, spread, spare)


def study_scaling(runs):
    """Returns (sizes, None), or (sizes, (ScalingModel of the smaller runs, those runs, the larger
    runs, model of all)) where the runs have three sizes, numbers of devices, or more."""
    usable = [run for run in runs if run.throughput and run.global_batch]
    sizes = sorted({run.devices for run in usable})
    if len(sizes) < 3:
        return sizes, None
    limit = sizes[math.ceil(2 * len(sizes) / 3) - 1]
    small = [run for run in usable if run.devices <= limit]
    large = [run for run in usable if run.devices > limit]
    return sizes, (fit_scaling(small), small, large, fit_scaling(usable))


def by_script(runs):
    """Returns {script: runs} of those that reduce gradients between ranks; imagenet_nd.py, which
    has nobody to reduce with, is the start of all."""
    scripts = sorted({run.script for run in runs} - {"nd", "dp"})
    return {script: [run for run in runs if run.script in (script, "nd")] for script in scripts}


def prediction_errors(model, runs):
    """Returns the relative errors of the predicted throughputs of runs."""
    devices = [run.devices for run in runs]
    images = np.array([run.global_batch / run.devices for run in runs])
    seconds = model.predict(devices, images)
    batches = np.array([run.global_batch for run in runs])
    return batches / seconds / [run.throughput[0] for run in runs] - 1


# ---------------------------------------------------------------------------------------- figures

SMOOTHING = 0.6  # TensorBoard's own default
FEW_EPOCHS = 20  # whose moving average would lag too much


def style_runs(runs):
    """Gives each run its label, of what differs between runs, and the look it has in all figures:
    colours darken evenly, and lines and marks differ too, so that a grey print is readable."""
    parts = {
        "script": [run.script for run in runs],
        "arch": [run.arch for run in runs],
        "precision": [run.precision for run in runs],
        "devices": [f"{run.devices or '?'} {device_word([run], run.devices)}" for run in runs],
        "batch": [f"-b {run.batch or '?'}" for run in runs],
    }
    varying = [values for values in parts.values() if len(set(values)) > 1]
    labels = [" ".join(each).strip() for each in zip(*varying, strict=True)] or [""] * len(runs)
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, max(2, len(runs))))
    lines, marks = ["-", "--", "-.", ":"], "os^Dv*XP"
    for place, (run, label) in enumerate(zip(runs, labels, strict=True)):
        run.label = label if label and labels.count(label) == 1 else run.name
        run.style = {
            "color": matplotlib.colors.to_hex(shades[place]),
            "linestyle": lines[place % len(lines)],
            "marker": marks[place % len(marks)],
        }


def device_word(runs, number=2):
    """Returns what the devices of runs are called, for so many of them."""
    kinds = {run.on_cpu for run in runs}
    word = "device" if len(kinds) > 1 else "process" if True in kinds else "GPU"
    return word if number == 1 else {"process": "processes"}.get(word, f"{word}s")


def smooth(values):
    """Returns the exponential moving average of values (n,), debiased as TensorBoard does."""
    average, smoothed = 0.0, np.empty(len(values))
    for place, value in enumerate(values):
        average = SMOOTHING * average + (1 - SMOOTHING) * value
        smoothed[place] = average / (1 - SMOOTHING ** (place + 1))
    return smoothed


def thin(x, y, most=300):
    """Returns x and y (n,), means over neighbours where there are more than `most`."""
    if len(x) <= most:
        return x, y
    starts = np.unique(np.linspace(0, len(x), most, endpoint=False).astype(int))
    counts = np.diff(np.append(starts, len(x)))
    return np.add.reduceat(x, starts) / counts, np.add.reduceat(y, starts) / counts


def curve(run, x, y, **look):
    """Returns a line of a run for draw()."""
    style = {**run.style, "marker": "", "label": run.label, **look}
    return {"x": x, "y": y, **style}


def learning_curves(runs, tag):
    """Returns a tag's lines over epochs; those of many epochs smoothed, over the values themselves,
    faint, unless so many runs would cover each other."""
    lines = []
    for run in runs:
        if tag in run.series and run.learns:
            steps, values = run.series[tag].steps, run.series[tag].values
            if len(values) < FEW_EPOCHS:
                lines.append(curve(run, steps, values))
                continue
            if len(runs) <= CROWD:
                lines.append(curve(run, steps, values, label="", alpha=0.3))
            lines.append(curve(run, steps, smooth(values)))
    return lines


def panel(xlabel, ylabel, lines, **more):
    """Returns axes for draw(), None where there is nothing to show."""
    return {"xlabel": xlabel, "ylabel": ylabel, "lines": lines, **more} if lines else None


def over_time(runs, tag, unit):
    """Returns (lines of a tag over minutes, values divided by `unit`)."""
    lines = []
    for run in runs:
        for each in sorted(run.series):
            if each == tag or each.startswith(f"{tag}/node"):
                series = run.series[each]
                x, y = thin(series.seconds / 60, series.values / unit)
                node = each.removeprefix(tag).replace("/node", " node ")
                lines.append(curve(run, x, y, label=run.label + node))
    return lines


def by_devices(runs, value, ylabel, note, ideal=False):
    """Returns a panel of value(run) against the number of devices, with note(run, base) beside it,
    and what ideal scaling from the base run would give; bars where all have one number."""
    shown = [run for run in runs if run.devices and value(run)]
    sizes = sorted({run.devices for run in shown})
    if len(sizes) == 1 and len(shown) <= OWN_FIGURES:
        bars = [(run.label, value(run), run.style["color"]) for run in shown]
        return {"xlabel": ylabel, "ylabel": "", "bars": bars, "lines": []}
    lines, notes, groups = [], [], defaultdict(list)
    for run in shown:
        groups[run.group].append(run)
    for group in groups.values():
        base = baseline(group)
        span = np.array([base.devices, max(run.devices for run in group)])
        if ideal and span[0] < span[1]:
            style = {"color": "#888888", "linestyle": ":"}
            style["label"] = "" if any(line.get("label") == "ideal" for line in lines) else "ideal"
            lines.append({"x": span, "y": value(base) * span / base.devices, **style})
        for script in sorted({run.script for run in group}):
            same = [run for run in group if run.script == script]
            x, y = [run.devices for run in same], [value(run) for run in same]
            lines.append({"x": x, "y": y, "color": "#bbbbbb", "linestyle": "-"})
        for run in group:
            lines.append(curve(run, [run.devices], [value(run)], **run.style))
            if len(shown) <= CROWD:
                notes.append((run.devices, value(run), note(run, base)))
    axes = {"notes": notes, "xticks": sizes}
    return panel(f"number of {device_word(shown)}", ylabel, lines, **axes)


def baseline(runs):
    """Returns the run with the fewest devices, of several the fastest."""
    fewest = min(run.devices for run in runs)
    return max(
        (run for run in runs if run.devices == fewest),
        key=lambda run: run.throughput[0] if run.throughput else 0,
    )


def efficiency(run, base):
    """Returns a run's throughput per device over the base run's."""
    return run.throughput[0] / base.throughput[0] * base.devices / run.devices


def study_figures(runs, io_csv):
    """Returns {name: panels for draw(), [] for want of values} of the figures that compare runs."""
    figures = {}
    for top in "1", "5":
        for part, data in ("train", "training"), ("val", "validation"):
            lines = learning_curves(runs, f"Top{top}/{part}")
            figures[f"top{top}_{part}"] = [panel("epoch", f"{data} top-{top} accuracy, %", lines)]
    figures["loss"] = [
        panel("epoch", "training loss", learning_curves(runs, "Loss/train")),
        panel("epoch", "validation loss", learning_curves(runs, "Loss/val")),
    ]
    rate = by_devices(
        runs,
        lambda run: run.throughput and run.throughput[0],
        "images/s",
        lambda run, base: "" if run is base else f"{100 * efficiency(run, base):.0f} %",
        ideal=True,
    )
    figures["training_throughput"] = [rate]
    longest = max((run.training_seconds or 0 for run in runs), default=0)
    unit, name = (3600, "hours") if longest > 7200 else (60, "minutes")
    time = by_devices(
        runs,
        lambda run: run.training_seconds and run.training_seconds / unit,
        f"training time, {name}",
        lambda run, _: f"{clock(run.training_seconds)}, {run.epochs} epochs",
    )
    figures["training_time"] = [time]
    lines, desired = [], sorted({run.desired for run in runs if run.desired})
    for run in runs:
        if "Top1/val" in run.series and run.learns:
            series = run.series["Top1/val"]
            lines.append(curve(run, series.seconds / unit, series.values))
    accuracy = {"hlines": [(100 * each, f"desired: {100 * each:g} %") for each in desired]}
    axes = panel(name, "validation top-1 accuracy, %", lines, **accuracy)
    figures["time_to_accuracy"] = [axes]
    figures["IO"] = [io_panel(runs, io_csv)]
    waits = [
        curve(run, run.series["Data/wait"].steps, 100 * run.values("Data/wait"))
        for run in runs
        if "Data/wait" in run.series
    ]
    figures["data_wait"] = [panel("epoch", "waiting for data, % of the epoch", waits)]
    return {name: [each for each in panels if each] for name, panels in figures.items()}


def io_panel(runs, io_csv):
    """Returns the panel of read bandwidth (left) and read operations (right) over minutes."""
    if io_csv:
        (minutes, rates), (op_minutes, ops) = io_csv
        unit, name = (1e9, "GB/s") if np.nanmax(rates) >= 1e9 else (1e6, "MB/s")
        left = [{"x": minutes, "y": rates / unit, "label": "bandwidth", "color": "#3b528b"}]
        right = [{"x": op_minutes, "y": ops, "label": "IOPS", "color": "#aaaaaa"}]
        right[0]["linestyle"] = "--"
    else:
        largest = max((run.values("IO/read_MBps").max(initial=0) for run in runs), default=0)
        unit, name = (1000, "GB/s") if largest >= 1000 else (1, "MB/s")
        left = [{**line, "linestyle": "-"} for line in over_time(runs, "IO/read_MBps", unit)]
        looks = {"linestyle": "--", "label": "", "alpha": 0.6}
        right = [{**line, **looks} for line in over_time(runs, "IO/read_iops", 1)]
    twin = {"twin": right, "twin_ylabel": "read operations/s (dashed)"}
    return panel("minutes", f"read bandwidth, {name}", left, **twin)


def model_figure(scaling):
    """Returns the panels of a scaling model: its fit, and its continuation with a band."""
    fit, small, large, model = scaling
    runs = [*small, *large]
    sizes = sorted({run.devices for run in runs})
    last = runs[-1]
    strong = len({run.global_batch for run in runs}) == 1  # the same global batch for all
    most = min(1024, last.global_batch) if strong else 1024
    axis = np.geomspace(sizes[0], max(most, sizes[-1]), 60)
    images = last.global_batch / (axis if strong else last.devices)
    lines = []
    for each, label, style in (
        (fit, f"fitted on {sizes[0]} to {small[-1].devices}", "--"),
        (model, "fitted on all", "-"),
    ):
        y = images * axis / each.predict(axis, images)
        lines.append({"x": axis, "y": y, "label": label, "color": "#21918c", "linestyle": style})
    ideal, band = y[0] * axis / axis[0], None  # y is now that of all runs
    lines.append({"x": axis, "y": ideal, "label": "ideal", "color": "#888888", "linestyle": ":"})
    if model.spare > 1:  # Student's t of one spare run knows nothing
        errors = np.abs(prediction_errors(fit, large))
        width = np.maximum(model.limits(axis, images), errors.max())
        high = np.where(width < 1, y / (1 - np.minimum(width, 0.99)), np.inf)
        band = {"x": axis, "low": y / (1 + width), "high": np.maximum(y, np.minimum(high, ideal))}
        band["label"] = "95 % band, no narrower than the error on the larger runs"
    for run in runs:
        lines.append(curve(run, [run.devices], [run.throughput[0]], **run.style))
    ticks = [2**power for power in range(11) if sizes[0] <= 2**power <= axis[-1]]
    axes = {"xticks": ticks, "band": band}
    return [panel(f"number of {device_word(runs)}", "images/s", lines, **axes)]


def run_figure(run):
    """Returns the panels of one run's own figure."""
    colours = {"train": "#440154", "val": "#35b779"}

    def both(tag, **more):
        lines = []
        for part, style in (("train", "-"), ("val", "--")):
            if series := run.series.get(f"{tag}/{part}"):
                look = {"label": part, "color": colours[part], "linestyle": style, **more}
                lines.append(curve(run, series.steps, series.values, **look))
        return lines

    panels = [
        panel("epoch", "loss", both("Loss")),
        panel("epoch", "top-1 (thin: top-5), %", both("Top1") + both("Top5", label="", width=0.7)),
        panel("epoch", "images/s", both("Throughput")),
        io_panel([run], None),
    ]
    return [each for each in panels if each]


def rounded(value):
    """Returns a figure's description with six digits a number, so that all machines agree on it."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, (float, np.floating)) else value


def fingerprint(panels):
    """Returns what identifies a figure's content: its data, and the code that draws it."""
    content = json.dumps(rounded(panels), sort_keys=True, default=int) + inspect.getsource(draw)
    return f"make_results.py {hashlib.sha256(content.encode()).hexdigest()}"


@matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "", "text.parse_math": False})
def draw(panels, path):
    """Draws panels side by side, or two by two, into path.png and path.svg."""
    columns, most = min(2, len(panels)), 16  # entries of a legend
    rows = math.ceil(len(panels) / columns)
    height = max(4.6, *(0.25 * len(each.get("bars", [])) for each in panels), 0)
    figure = Figure(figsize=(7.5 * columns, height * rows), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    for place, each in enumerate(panels):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.set_xlabel(each["xlabel"])
        axes.set_ylabel(each["ylabel"])
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        sides = [(axes, each["lines"])]
        if each.get("twin"):
            twin = axes.twinx()
            twin.set_ylabel(each["twin_ylabel"])
            twin.spines["top"].set_visible(False)
            sides.append((twin, each["twin"]))
            for side, lines in sides:
                side.set_ylim(0, 1.05 * max(np.nanmax(line["y"]) for line in lines) or 1)
        if band := each.get("band"):
            look = {"color": "#21918c", "alpha": 0.15, "linewidth": 0, "label": band["label"]}
            axes.fill_between(band["x"], band["low"], band["high"], **look)
        for side, lines in sides:
            for line in lines:
                looks = ("color", "linestyle", "marker", "alpha", "label")
                look = {name: line[name] for name in looks if line.get(name) not in (None, "")}
                (drawn,) = side.plot(line["x"], line["y"], linewidth=line.get("width", 1.4), **look)
                drawn.set_in_layout(False)  # or a thousand lines are measured for nothing
        if bars := each.get("bars"):
            labels, lengths, colours = zip(*bars, strict=True)
            axes.barh(range(len(bars)), lengths, color=colours)
            axes.set_yticks(range(len(bars)), labels)
            axes.invert_yaxis()
        for y, text in each.get("hlines", []):
            axes.axhline(y, color="#888888", linewidth=1)
            axes.annotate(text, (0, y), xycoords=("axes fraction", "data"), va="bottom")
        for x, y, text in each.get("notes", []):
            axes.annotate(text, (x, y), xytext=(6, -11), textcoords="offset points", fontsize=8)
        if each["xlabel"] == "epoch":
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        if "xticks" in each:
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(each["xticks"], [str(tick) for tick in each["xticks"]])
            axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 3, 5, 7)))
            axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}" if y >= 1 else f"{y:g}")
            axes.minorticks_off()
        handles, labels = [], []
        for side, _ in sides:
            more = side.get_legend_handles_labels()
            handles, labels = handles + more[0], labels + more[1]
        if len(labels) > most:
            labels[most - 1] = f"... and {len(labels) - most + 1} more"
        if labels and (place == 0 or len(set(labels)) < 3):
            axes.legend(handles[:most], labels[:most], fontsize=8, framealpha=0.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = fingerprint(panels)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # of a name, that the font lacks
        figure.savefig(f"{path}.png", metadata={"Description": mark, "Software": None})
        figure.savefig(f"{path}.svg", metadata={"Description": mark, "Date": None, "Creator": None})


# The benchmarks that README.md's first screen shows, by how their titles begin; and of their rows
# those that read the same files.
SPEED = {
    "Data loading": "Loading JPEGs",
    "Training resnet18 on JPEGs": "Training ResNet-18 on JPEGs",
}
SPEED_ROWS = r"pytorch/examples|timm|DALI|(this project(?!.*(pixels|raw))|imagenet_nd\.py)"


def speed_panels(benchmarks):
    """Returns the panels of figures/speed for draw_speed(): images/s beside pytorch/examples'."""
    panels = []
    for begin, what in SPEED.items():
        for each in (each for each in benchmarks if each["title"].startswith(begin)):
            rates = {row["name"]: np.median(row["values"]) for row in each["rows"] if row["values"]}
            found = {name: re.search(SPEED_ROWS, name) for name in rates}
            bars = [(name, rates[name], bool(found[name][1])) for name in rates if found[name]]
            own = max((rate for _, rate, ours in bars if ours), default=None)
            base = rates.get(each["baseline"])
            if own and base:
                timm = max((rate for name, rate, _ in bars if "timm" in name), default=None)
                title = f"{what}:\n{own / base:.1f} times pytorch/examples"
                title += f", {own / timm:.1f} times timm" if timm else ""
                cores, processor = (each["about"].get(name) for name in ("cores", "processor"))
                note = f"{each['unit']}, medians; {cores} cores of {processor}"
                bars.sort(key=lambda bar: bar[1])
                panels.append({"title": title, "note": note, "base": base, "bars": bars})
    # The code that draws it is part of a figure's fingerprint.
    return panels and [*panels, inspect.getsource(draw_speed)]


@matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "", "text.parse_math": False})
def draw_speed(panels, path):
    """Draws bars side by side, each with its rate and its ratio, into path.png and path.svg: black
    on white, so that a dark page shows them as a light one does."""
    mark, panels = fingerprint(panels), panels[:-1]
    figure = Figure(figsize=(12, 3.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    for place, each in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        names, rates, ours = zip(*each["bars"], strict=True)
        names = [name.replace(", ", ",\n", 1).replace(" --", "\n--", 1) for name in names]
        bars = axes.barh(names, rates, color=["#21918c" if own else "#b0b0b0" for own in ours])
        texts = [f"{rate:,.0f}  ({rate / each['base']:.1f} x)" for rate in rates]
        axes.bar_label(bars, texts, padding=4, fontsize=9)
        axes.set_title(each["title"], loc="left", fontsize=12, fontweight="bold")
        axes.set_xlabel(each["note"], loc="left", fontsize=8)
        axes.set_xlim(0, 1.25 * max(rates))
        axes.set_xticks([])
        axes.tick_params(axis="y", length=0, labelsize=9)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(f"{path}.png", metadata={"Description": mark, "Software": None})
    figure.savefig(f"{path}.svg", metadata={"Description": mark, "Date": None, "Creator": None})


def read_fingerprint(path):
    """Returns the fingerprint that draw() left in a PNG or SVG file, None if there is none."""
    try:
        if path.suffix == ".png":
            with PIL.Image.open(path) as image:
                text = str(image.info.get("Description"))
        else:
            text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = re.search(r"make_results\.py [0-9a-f]{64}", text)
    return found and found[0]


def is_stale(path, panels):
    """Returns whether path.png or path.svg shows anything else than these panels."""
    mark = fingerprint(panels)
    return any(read_fingerprint(Path(f"{path}{kind}")) != mark for kind in (".png", ".svg"))


# ----------------------------------------------------------------------------------------- report


def table(header, rows):
    """Returns a Markdown table, without the columns that are empty in all rows."""
    kept = [place for place in range(len(header)) if any(row[place] != "–" for row in rows)]
    lines = [[header[place] for place in kept], ["---"] * len(kept)]
    lines += [[str(row[place]).replace("|", "\\|") for place in kept] for row in rows]
    return ["".join(f"| {cell} " for cell in line) + "|" for line in lines]


def digits(number, places=0, unit=""):
    """Returns a number as text, – for None."""
    return "–" if number is None else f"{number:,.{places}f}{unit}"


def clock(seconds):
    """Returns seconds as h:mm:ss, – for None."""
    return "–" if seconds is None else str(datetime.timedelta(seconds=round(seconds)))


def anchor(text):
    """Returns the fragment by which a heading is linked, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def link(run):
    """Returns a link to the run's section."""
    return f"[{run.name}](#{anchor(run.name)})"


def last_and_best(run, tag):
    """Returns a tag's last and best value as text."""
    values = run.values(tag)
    return f"{values[-1]:.2f} / {values.max():.2f}" if len(values) else "–"


def group_title(run):
    """Returns what the runs of a group share."""
    device = run.hardware or "hardware not logged"
    return ", ".join(each for each in (run.arch, run.data, device, run.precision) if each)


def group_table(runs):
    """Returns the Markdown table of runs that may be compared."""
    word = device_word(runs)
    header = ["run", "script", word, f"batch per {device_word(runs, 1)}"]
    header += ["global batch", "precision", "epochs", "images/s", "speed-up", "efficiency"]
    header += ["training time", "time to desired accuracy", "val top-1, last / best, %"]
    header += ["val top-5, last / best, %", "ended"]
    measured = [run for run in runs if run.throughput and run.devices]
    compared = len({run.devices for run in measured}) > 1
    base = baseline(measured) if compared else None
    rows = []
    for run in runs:
        share = efficiency(run, base) if base and run in measured else None
        speedup = share and share * run.devices / base.devices
        steps = run.about.get("steps_per_epoch")
        epochs = digits(run.epochs) + (f" x {steps:,} steps" if steps and run.epochs else "")
        goal = f" ({100 * run.desired:g} %)" if run.desired else ""
        reached = clock(run.seconds_to_desired)
        ended = run.end.get("reason", "not logged")
        rate = run.throughput and f"{run.throughput[0]:,.0f}"
        if rate and len(run.values("Throughput/train")) > 2:  # one value alone does not spread
            rate += f" ± {run.throughput[1]:,.0f}"
        row = [link(run), run.script or "–", digits(run.devices), digits(run.batch)]
        row += [digits(run.global_batch), run.precision or "–", epochs]
        row += [
            rate or "–",
            digits(speedup, 2),
            digits(share and 100 * share, 1, " %"),
            clock(run.training_seconds),
        ]
        row += [("not reached" if reached == "–" else reached) + goal if run.desired else "–"]
        row += [last_and_best(run, "Top1/val"), last_and_best(run, "Top5/val"), ended]
        rows.append(row)
    return table(header, rows)


def precision_table(runs):
    """Returns the Markdown lines that set precisions side by side; none where there is one."""
    cells = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.throughput and run.precision:
            model = f"{run.arch} {run.script}".strip()
            sizes = digits(run.devices), digits(run.batch)
            what = (model, run.data or "–", run.hardware or "–", *sizes)
            cells[what][run.precision].append(run.throughput[0])
    if all(len(rates) < 2 for rates in cells.values()):
        return []
    precisions = sorted({each for row in cells.values() for each in row}, key=precision_rank)
    rows = []
    for what, rates in cells.items():
        means = {precision: np.mean(of_one) for precision, of_one in rates.items()}
        full = means.get(min(means, key=precision_rank)) if FULL & set(means) else None
        ratios = {each: f" ({means[each] / full:.2f})" if full else "" for each in means}
        shown = [
            f"{means[each]:,.0f}{ratios[each]}" if each in means else "–" for each in precisions
        ]
        rows.append([*what, *shown])
    lines = table(["model", "data", "hardware", device_word(runs), "batch", *precisions], rows)
    return ["Images/s, and how many times those of full precision:", "", *lines, ""]


FULL = {"float32", "O0"}


def precision_rank(precision):
    """Sorts full precision first."""
    return precision not in FULL, precision


def scaling_lines(scaling):
    """Returns the Markdown lines about a scaling model."""
    fit, small, large, model = scaling
    runs = [*small, *large]
    word, gradient_bytes = device_word(runs), runs[-1].gradient_bytes
    fits = []
    for each, used in (fit, small), (model, runs):
        counts = ", ".join(str(size) for size in sorted({run.devices for run in used}))
        bandwidth = gradient_bytes / each.volume / 1e9 if gradient_bytes and each.volume else None
        row = [counts, digits(1000 * each.compute, 3), digits(1000 * each.volume, 2)]
        row += [digits(bandwidth, 2), digits(1e6 * each.latency, 1)]
        fits.append([*row, digits(100 * each.spread, 1, " %") if each.spare else "–"])
    predicted = []
    for run, error in zip(large, prediction_errors(fit, large), strict=True):
        rates = [digits(run.throughput[0]), digits(run.throughput[0] * (1 + error))]
        predicted.append([run.devices, *rates, f"{100 * error:+.1f} %"])
    header = [f"fitted on {word}", "compute, ms/image", "volume, ms", "bandwidth, GB/s"]
    lines = table([*header, "latency, µs/message", "relative residual"], fits)
    lines += ["", f"Fitted on {small[0].devices} to {small[-1].devices} {word}, it predicts:", ""]
    header = [word, "measured, images/s", "predicted, images/s", "error"]
    lines = ["", *lines, *table(header, predicted), ""]
    shared = [run.about for run in runs if run.on_cpu and run.crowded]
    if shared:
        cores = f"{shared[-1]['place']['local_ranks']} processes shared {shared[-1]['cores']} cores"
        lines += [f"{cores}: what they took from each other counts as communication here.", ""]
    return lines


def traffic_table(runs):
    """Returns the Markdown lines of what runs read and sent; none where it was not logged."""
    rows = []
    for run in runs:
        means = [run.mean(f"IO/{name}") for name in ("read_MBps", "disk_MBps", "read_iops")]
        sent, received, expected = (run.mean(tag) for tag in NETWORK)
        ratio = sent / expected if sent is not None and expected else None
        means += [sent, received, expected] if ratio else [None] * 3
        if any(mean is not None for mean in means):
            cells = [digits(mean, 2) for mean in means]
            rows.append([link(run), run.label, *cells, digits(ratio, 3)])
    header = ["run", "what", "read, MB/s", "from disk, MB/s", "reads/s", "sent, MB/step"]
    header += ["received, MB/step", "expected, MB/step", "sent / expected"]
    title = "Means of what the first node's ranks read, and of all that its interfaces carried:"
    return [title, "", *table(header, rows), ""] if rows else []


def significant(number):
    """Returns a number as text, to three significant digits, all of them before the point."""
    size = math.floor(math.log10(abs(number))) if number else 0
    return digits(number, max(0, 2 - size))


def benchmark_table(benchmark):
    """Returns the Markdown table of a benchmark, as benchmarks/common.py writes it."""
    rows, baseline = benchmark["rows"], benchmark["baseline"]
    medians = [np.median(row["values"]) if row["values"] else None for row in rows]
    base = dict(zip([row["name"] for row in rows], medians, strict=True)).get(baseline)
    further = dict.fromkeys(name for row in rows for name in row if name not in ("name", "values"))
    lines = []
    for row, median in zip(rows, medians, strict=True):
        values = row["values"]
        cells = [row["name"], digits(median / base if values and base else None, 2)]
        cells += [significant(median)]
        ends = significant(min(values, default=None)), significant(max(values, default=None))
        cells += [" to ".join(ends) if values[1:] else "–"]
        more = (row.get(name, "") for name in further)
        cells += [(each or "–") if isinstance(each, str) else significant(each) for each in more]
        lines.append(cells)
    return table(["", "ratio", benchmark["unit"], "range", *further], lines)


# Whether a trial of benchmarks/chaos.py holds what was promised.
HOLDS = {True: "yes", False: "**no**", None: "not tried"}


def benchmark_section(benchmark):
    """Returns the Markdown lines of a benchmark: table, note, and how to repeat it."""
    about, lines = benchmark["about"], [f"### {benchmark['title']}", ""]
    if "trials" in benchmark:  # of benchmarks/chaos.py
        rows = [row for rows in benchmark["trials"].values() for row in rows]
        rows = [[what, became, HOLDS[holds]] for what, became, holds in rows]
        lines += table(["trial", "outcome", "holds"], rows)
        ran = collections.defaultdict(list)
        for name, commit in benchmark["commits"].items():
            ran[commit].append(name)
        ran = "; ".join(f"{commit}: {', '.join(names)}" for commit, names in ran.items())
        lines += ["", f"{benchmark['note']} Commits, and the trials that ran with them: {ran}."]
    else:
        rounds = max(len(row["values"]) for row in benchmark["rows"])
        note = f"Medians of {rounds}; ratios to {benchmark['baseline']}. {benchmark['note']}"
        lines += [*benchmark_table(benchmark), "", note.strip()]
    lines += ["", "```bash", shlex.join(about["command"]), "```", ""]
    known = [f"{name} {value}" for name, value in about.items() if name != "command" and value]
    return [*lines, f"{'; '.join(known)}.", ""]


def repeat(about):
    """Returns the command that started a run, from what it logged."""
    place, env, options = about["place"], about.get("environment", {}), about.get("options", {})
    local, nodes = place["local_ranks"], place["ranks"] // place["local_ranks"]
    spawned = any(options.get(name) is not None for name in ("nproc_per_node", "world_size"))
    words = [word for word in about["command"][1:] if not re.match("--local[-_]rank=", word)]
    start = ["python"]
    if "TORCHELASTIC_RUN_ID" in env:
        start = ["torchrun", f"--nproc_per_node={local}"]
        if nodes > 1:
            start += [f"--nnodes={nodes}", "--node_rank=NODE", "--master_addr=NODE_0"]
    elif Path(words[0]).name == "imagenet_horovod.py" and place["ranks"] > 1:
        start = ["horovodrun", "-np", str(place["ranks"]), "python"]
    elif int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1 and not spawned:
        start = ["srun", f"--ntasks={place['ranks']}", f"--nodes={nodes}", "python"]
    names = ("OMP_NUM_THREADS", "IMAGENET_DIR")
    given = [f"{name}={shlex.quote(env[name])}" for name in names if name in env]
    return " ".join([*given, shlex.join([*start, *words])])


def run_section(run):
    """Returns the Markdown lines of one run: all that its log tells of it."""
    lines = [f"### {run.name}", ""]
    if about := run.about:
        place, commands = about["place"], [repeat(each) for each in run.starts]
        words = {device_word([run]): run.devices, "nodes": place["ranks"] // place["local_ranks"]}
        names = ("device", "cores", "threads", "node", "system", "python", "torch", "torchvision")
        words |= {name: about.get(name) for name in (*names, "cuda", "numpy", "PIL")}
        words |= {"seed": run.options.get("seed"), "commit": about.get("commit") or "not known"}
        known = "; ".join(f"{name} {value}" for name, value in words.items() if value is not None)
        options = ", ".join(f"{name}={value}" for name, value in run.options.items())
        lines += ["```bash", *dict.fromkeys(commands), "```", "", f"{known}.", ""]
        if len(commands) > 1:
            lines += [f"Started {len(commands)} times.", ""]
        lines += ["<details><summary>all options</summary>", "", f"`{options}`", "", "</details>"]
    else:
        lines += ["Arguments, versions, hardware and command: not in the log."]
        named = {"arch": run.arch, "GPUs": run.devices, "batch per GPU": run.batch}
        named |= {"loader processes": run.named.get("workers"), "precision": run.precision}
        if run.named:
            known = "; ".join(f"{name} {value}" for name, value in named.items())
            lines += ["", f"From its name: {known}."]
    missing = [tag for tag in [*PER_EPOCH, "Lr"] if tag not in run.series]
    lines += ["", f"Not logged: {', '.join(missing)}."] if missing else []
    return [*lines, ""]


INTRODUCTION = """# Results

Made by `{}` from the logs; nothing here is written by hand.

Curves of 20 epochs or more are moving averages (weight 0.6) over the values, faint, themselves.
Images/s are the mean and standard deviation over epochs, without the first where there are more.
Training time is wall time from the log's start to its last epoch, without pauses and the epochs
that a restart repeated. Speed-up and efficiency are against the run on the fewest devices in the
same table, of several the fastest. The scaling model of a step is
*compute x images + volume x 2(N-1)/N + latency x 2(N-1)*, of N devices; bandwidth is the gradients'
bytes over the volume's time. What the computation hides is not seen. It is fitted on the smaller
two thirds of the sizes, and its error on the larger is told.
"""


def make_results(runs, warnings, io_csv, command, benchmarks=()):
    """Returns (text of RESULTS.md, {path of a figure without suffix: its panels})."""
    studies = defaultdict(list)
    for run in runs:
        studies[run.study].append(run)
    figures, lines = {}, [INTRODUCTION.format(command)]
    if len(studies) > 1:
        together = {name: each for name, each in study_figures(runs, io_csv).items() if each}
        figures |= {f"figures/{name}": panels for name, panels in together.items()}
        links = ", ".join(f"[{name}](figures/{name}.png)" for name in together)
        lines += ["## All studies", "", f"Figures of all {len(runs)} runs: {links}.", ""]
        if io_csv:
            lines += ["![IO](figures/IO.png)", ""]
        for study, members in sorted(studies.items()):
            name = study or "other"
            folder = unused(f"figures/{name}", figures)
            lines += study_section(f"Study {name}", members, folder, None, figures)
    elif runs:
        lines += study_section("All runs", runs, "figures", io_csv, figures)
    lines += ["## Benchmarks", ""] if benchmarks else []
    if panels := speed_panels(benchmarks):
        path = unused("figures/speed", figures)
        figures[path] = panels
        lines += [f"![speed]({path}.png)", ""]
    for benchmark in benchmarks:
        lines += benchmark_section(benchmark)
    lines += ["## Runs", ""] if runs else []
    if len(runs) > OWN_FIGURES:
        lines += [f"More than {OWN_FIGURES} runs: none has a figure of its own.", ""]
    for run in runs:
        lines += run_section(run)
        panels = run_figure(run) if len(runs) <= OWN_FIGURES else []
        if panels:
            path = unused(f"figures/runs/{run.name.replace('/', '_')}", figures)
            lines += [f"![{run.name}]({path}.png)", ""]
            figures[path] = panels
    if warnings:
        lines += ["## Warnings", "", *(f"- {warning}" for warning in warnings), ""]
    return "\n".join(lines), figures


def unused(path, figures):
    """Returns a path as Markdown and all file systems take it, which no figure has or is under."""
    path = re.sub(r"[^\w./-]+", "_", path)
    while any(name == path or name.startswith(f"{path}/") for name in figures):
        path += "_"
    return path


def study_section(title, runs, folder, io_csv, figures):
    """Returns the Markdown lines of runs that one study compares; adds its figures."""
    lines, groups, most = [f"## {title}", ""], defaultdict(list), 0
    for run in runs:
        groups[run.group].append(run)
    for group in groups.values():
        lines += [f"**{group_title(group[0])}**", "", *group_table(group), ""]
        for script, members in by_script(group).items():
            sizes, scaling = study_scaling(members)
            most, of = max(most, len(sizes)), f" of imagenet_{script}.py" if script else ""
            if scaling:
                name = f"scaling_model_{script}" if script else "scaling_model"
                path = unused(f"{folder}/{name}", figures)
                figures[path] = model_figure(scaling)
                lines += [f"Scaling model{of}:", *scaling_lines(scaling)]
                lines += [f"![scaling model]({path}.png)", ""]
            elif len(sizes) > 1:
                why = f"it takes three sizes, and there are {' and '.join(map(str, sizes))}"
                lines += [f"Scaling model{of}: cannot be fitted, {why}.", ""]
    if most < 2:
        lines += ["Scaling model: cannot be fitted, it takes runs of three sizes.", ""]
    lines += [*precision_table(runs), *traffic_table(runs)]
    absent = []
    for name, panels in study_figures(runs, io_csv).items():
        if panels:
            lines += [f"![{name}]({folder}/{name}.png)", ""]
            figures[f"{folder}/{name}"] = panels
        else:
            absent.append(name)
    return lines + ([f"Not drawn, for want of values: {', '.join(absent)}.", ""] if absent else [])


# ------------------------------------------------------------------------------------------- main


def find_stale(text, figures, out):
    """Returns what in `out` is not what the logs give."""
    results = out / "RESULTS.md"
    same = results.exists() and results.read_text(encoding="utf-8") == text
    stale = [] if same else ["RESULTS.md"]
    stale += [name for name, panels in figures.items() if is_stale(out / name, panels)]
    return stale + [f"{path.relative_to(out)} (no longer made)" for path in left_over(figures, out)]


def left_over(figures, out):
    """Returns the figures in `out` that this program made and would not make now."""
    files = [path for suffix in ("png", "svg") for path in (out / "figures").rglob(f"*.{suffix}")]
    made = {out / f"{name}{suffix}" for name in figures for suffix in (".png", ".svg")}
    return sorted(path for path in files if path not in made and read_fingerprint(path))


def main():
    """Reads the logs; writes RESULTS.md and figures/, or with --check compares them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: error: {message}\n")
    add = parser.add_argument
    add("logs", nargs="+", type=Path, metavar="LOGS", help="folders of runs, at any depth")
    add("--out", type=Path, help="folder for RESULTS.md and figures/ (here)")
    csvs = {"nargs": 2, "type": Path, "metavar": ("BANDWIDTH", "IOPS")}
    add(
        "--io-csv", **csvs, help='a monitoring system\'s exports: "Time";"Read" in bytes/s; reads/s'
    )
    help_ = "fraction, as 0.75, for runs that log none"
    add("--desired-acc", type=float, metavar="FRACTION", help=help_)
    add(
        "--check", action="store_true", help="write nothing; status 1 if what stands there is stale"
    )
    args = parser.parse_args()
    try:
        if args.desired_acc is not None and not 0 < args.desired_acc <= 1:
            raise BadInput(f"--desired-acc {args.desired_acc} is not a fraction in (0, 1]")
        runs, warnings = read_runs(args.logs, args.desired_acc)
        benchmarks, more_warnings = read_benchmarks(args.logs)
        warnings += more_warnings
        if not (runs or benchmarks):
            where = ", ".join(map(str, args.logs))
            why = f" ({'; '.join(warnings)})" if warnings else ""
            wanted = "give folders of event files or of run-RUN-tag-TAG.csv"
            raise BadInput(f"no run with values under {where}{why}: {wanted}")
        io_csv = read_io_csv(*args.io_csv) if args.io_csv else None
    except BadInput as error:
        parser.error(error)
    for warning in warnings:
        print(f"{parser.prog}: warning: {warning}", file=sys.stderr)
    words = [str(path) for path in args.logs]
    words += ["--io-csv", *map(str, args.io_csv)] if args.io_csv else []
    words += ["--desired-acc", f"{args.desired_acc:g}"] if args.desired_acc else []
    command = shlex.join(["python", "make_results.py", *words])
    text, figures = make_results(runs, warnings, io_csv, command, benchmarks)
    out = args.out or Path(".")
    before = out / "RESULTS.md"
    if not (args.out or args.check) and before.exists():
        if f"`{command}`" not in before.read_text(encoding="utf-8"):
            parser.error("RESULTS.md here is of other logs: give --out FOLDER, or --out . if so")
    if args.check:
        if stale := find_stale(text, figures, out):
            parser.exit(1, f"stale, `make results` mends it: {', '.join(stale)}\n")
        print(f"RESULTS.md and {len(figures)} figures are what the logs give")
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, panels in figures.items():
            if is_stale(out / name, panels):
                (draw_speed if isinstance(panels[-1], str) else draw)(panels, out / name)
        for path in left_over(figures, out):
            path.unlink()
        (out / "RESULTS.md").write_text(text, encoding="utf-8")
    except OSError as error:
        parser.error(f"--out {out}: {error}")
    print(f"{out / 'RESULTS.md'} and {len(figures)} figures, from {len(runs)} runs")


if __name__ == "__main__":
    main()
