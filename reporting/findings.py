"""What logs say: the numbers of the page's sections, which the template puts into sentences."""

import dataclasses
import re
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from reporting.tables import clock, digits, significant

# What tests/chaos.py injects, by the names of its trials.
FAULTS = {
    "a rank, all ranks or the launcher killed, also while a file is written": "kills restarts "
    "horovod syscalls",
    "SIGTERM, SIGINT, SIGUSR1, SIGKILL and Ctrl-C twice, to ranks and launchers": "signals",
    "processes that are stopped or stuck, in set-up and in training": "frozen frozen_parallel",
    "checkpoints and indexes cut off, flipped, made by hand, hostile": "files handmade",
    "a full or read-only disk, limits of open files, processes, shared memory": "disk limits",
    "--resume auto after moves between folders, among a thousand runs, onto other data": "progress "
    "many",
    "a stranger at the store; logs that nobody's training wrote": "stranger logs",
    "ranks with other data or options, a second run in the folder": "differing two_runs",
    "nodes lost, leaving, joining; Slurm's time limit and scancel": "nodes slurm",
}


def final(run):
    """Returns the validation top-1 of the last epoch, %."""
    return float(run.values("Top1/val")[-1])


def mean_final(runs):
    """Returns the mean of final()."""
    return float(np.mean([final(run) for run in runs]))


def rows_of(bench, name):
    """Returns the rows of a benchmark that were measured, [] where there is no such benchmark."""
    return [row for row in bench.get(name, {}).get("rows", []) if row["values"]]


# ---------------------------------------------------------------------------------------- training


def cluster_of(runs):
    """Returns the runs of the study with most GPUs, by number of GPUs; [] where none has three."""
    studies = {}
    for run in runs:
        whole = {"Top1/val", "Top5/val", "Top1/train", "Top5/train"} <= run.series.keys()
        if run.throughput and run.devices and not run.on_cpu and whole:
            studies.setdefault((run.study, run.group), {})[run.devices] = run
    best = max(studies.values(), key=lambda each: max(each), default={})
    return [best[size] for size in sorted(best)] if len(best) > 2 else []


def complete(cluster):
    """Returns the runs with as many epochs as any."""
    return [run for run in cluster if run.epochs == max(each.epochs for each in cluster)]


def parity_of(runs):
    """Returns, of the studies of parity, a row for each run but the first on the fewest devices of
    its model: {run, batchnorm, steps (n,), apart (n,): |difference of losses| / the reference's},
    those without BatchNorm first, then the largest differences."""
    groups, rows = defaultdict(list), []
    for run in sorted(runs, key=lambda run: (run.devices or 0, run.name)):
        if run.study.startswith("parity") and "Loss/step" in run.series:
            groups[run.arch].append(run)
    for arch, (first, *others) in sorted(groups.items()):
        losses = first.series["Loss/step"].set_index("step").value
        for run in others:
            apart = run.series["Loss/step"].set_index("step").value - losses
            apart = (apart.abs() / losses.abs()).dropna()
            batchnorm = run.items == "images" and not arch.startswith("vit")
            if not len(apart):
                continue
            row = {"run": run, "batchnorm": batchnorm, "steps": apart.index.to_numpy()}
            place = run.about.get("place", {})  # stages of a pipeline share a batch
            ranks = place.get("data_ranks", place.get("shares"))  # "shares" until November 2026
            devices = ranks * place["devices"] if ranks else run.devices
            row["batch"] = run.about.get("device_batch") or run.batch
            row["accumulated"] = run.global_batch // (devices * row["batch"])
            rows.append({**row, "apart": apart.to_numpy()})
    return sorted(rows, key=lambda row: (row["batchnorm"], -max(row["apart"])))


def study_runs(runs, begin):
    """Returns the runs of these scripts in the studies whose names begin so."""
    return [
        run
        for run in runs
        if run.study.startswith(begin)
        and {"Top1/val", "Loss/val"} <= run.series.keys()
        and {"steps_per_epoch", "image_size", "data"} <= run.about.keys()
        and "lr" in run.options
    ]


# Options in which runs of a study differ though they train by the same recipe. What a recipe's file
# held is in the other options: the file may hold something else by now.
TUNED = {"lr", "seed", "log_dir", "dir", "resume", "local_rank", "recipes", "global_batch"}


def typed(name, value):
    """Returns an option as it is typed, or that it is not."""
    if value is False or value is None:
        return f"without --{name.replace('_', '-')}"
    number = "" if value is True else f" {value:g}" if isinstance(value, float) else f" {value}"
    return f"--{name.replace('_', '-')}{number}"


def recipes_of(runs):
    """Returns {what is added to the plain recipe: its runs}, those of the learning rate that did
    best, one for each seed; the plain recipe is what most runs of the study have in each option."""
    names = sorted(set().union(*(run.options for run in runs)) - TUNED)
    usual = {
        name: Counter(str(run.options[name]) for run in runs if name in run.options)
        for name in names
    }
    found = defaultdict(lambda: defaultdict(list))
    for run in runs:
        mine = [name for name in names if name in run.options]  # older scripts had fewer
        odd = [name for name in mine if str(run.options[name]) != usual[name].most_common(1)[0][0]]
        added = " ".join(typed(name, run.options[name]) for name in odd)
        found[added][run.options["lr"]].append(run)
    return {added: max(rates.values(), key=mean_final) for added, rates in found.items()}


def recipe_of(runs):
    """Returns the Recipe of the studies of recipes, None where there is none."""
    study = study_runs(runs, "recipe")
    sizes = Counter((run.epochs, run.about["image_size"]) for run in study).most_common(1)
    same = [run for run in study if (run.epochs, run.about["image_size"]) == sizes[0][0]]
    found = recipes_of(same)
    plain = found.pop("", [])
    if not (plain and found):
        return None
    base = mean_final(plain)
    gains = {added: [final(run) - base for run in found[added]] for added in found}
    gains = {added: gains[added] for added in sorted(gains, key=lambda added: np.mean(gains[added]))}
    longer = [run for run in study if run not in same]
    return Recipe(plain, base, found, gains, longer)


@dataclasses.dataclass
class Recipe:
    """What each component gains over the plain recipe."""

    plain: list  # its runs
    base: float  # their mean_final()
    found: dict  # {what is added: runs}
    gains: dict  # {what is added: points of each run}, in rising order
    longer: list  # runs of other lengths or image sizes

    def largest(self, most):
        """Returns {what is added: runs} of those that move accuracy most, the best first."""
        kept = sorted(self.gains, key=lambda added: -abs(np.mean(self.gains[added])))[:most]
        return {added: self.found[added] for added in reversed(self.gains) if added in kept}


def size_of(run):
    """Returns a run's epochs and image size as text."""
    return f"{run.epochs} epochs, {run.about['image_size']} pixels"


WAYS = "from scratch", "fine-tuned", "last layer alone"


def transfer_of(runs):
    """Returns what weights of other classes are worth, by the study transfer_cpu, None where there
    is none: `few` {images a class: {way: run}}, `before`, the run that trained the weights, and
    `budget`, the runs that fine-tuned them in equal time."""
    few, budget, before = defaultdict(dict), [], None
    for run in study_runs(runs, "transfer_cpu"):
        shots = re.fullmatch(r".*few(\d+)", run.about["data"])
        if Path(run.about["data"]).name == "before":
            before = run
        elif shots and "test_top1" in run.end:
            way = 2 if run.options.get("freeze") else 1 if run.options.get("weights") else 0
            few[int(shots[1])][WAYS[way]] = run
        elif run.options.get("budget_hours") and "test_top1" in run.end:
            budget.append(run)
    few = {shots: few[shots] for shots in sorted(few) if len(few[shots]) == len(WAYS)}
    budget.sort(key=lambda run: run.devices)
    return SimpleNamespace(few=few, before=before, budget=budget) if few and before else None


def learned_of(runs, script="text_nd.py"):
    """Returns {task: the run of a script that trained on most sequences, or most quickly}."""
    found = {}
    for run in runs:
        task = run.options.get("task")
        if run.file == script and task and run.epochs and not run.study.startswith("parity"):
            size = run.epochs * run.steps_per_epoch * (run.global_batch or 1)
            rank = -size, run.training_seconds
            if task not in found or rank < found[task][0]:
                found[task] = rank, run
    return {task: found[task][1] for task in sorted(found, reverse=True)}  # lm first


def reached(run):
    """Returns what a run of text has reached, and when, in words."""
    if run.measure == "Perplexity":
        what = f"validation loss {run.values('Loss/val').min():.2f} "
        what += f"(perplexity {run.values('Perplexity/val').min():.1f})"
    else:
        what = f"{run.values('Accuracy/val').max():.1f} % validation accuracy"
    data = run.data.split(" (")[0].removeprefix("lm: ")
    return f"{run.arch} to {what} on {data} in {clock(run.training_seconds)}"


def most_trained(runs, script):
    """Returns the run of a script that trained on most images, of equals the quickest; None where
    there is none. Runs of parity and lessons train too little."""
    mine = [
        run
        for run in study_runs(runs, "")
        if run.file == script and run.learns and not run.study.startswith(("parity", "lessons"))
    ]
    size = {run.name: run.epochs * run.steps_per_epoch * run.global_batch for run in mine}
    return min(mine, key=lambda run: (-size[run.name], run.training_seconds), default=None)


def fastest(speed, script):
    """Returns a script's fastest row of training on JPEGs, None where there is none."""
    rows = speed["training"].rows.values() if "training" in speed else []
    mine = [row for row in rows if row["name"].split()[0] == script]
    return max(mine, key=lambda row: row["median"], default=None)


def where(run):
    """Returns where a run was trained."""
    cores = f"{run.about['cores']} cores of " if run.on_cpu and "cores" in run.about else ""
    return f"{cores}{run.about.get('device', 'a device not logged')}"


# -------------------------------------------------------------------------------------- benchmarks


def trials_of(bench):
    """Returns [(kind of fault, how many were tried, how many passed)]. The trials "omissions" are
    of the comparison, not of the runs."""
    kinds = {name: what for what, names in FAULTS.items() for name in names.split()}
    sums = {}
    for each in bench.values():
        for name, rows in each.get("trials", {}).items():
            passed = [row[2] for row in rows if row[2] is not None]
            if name != "omissions":
                what = kinds.get(name, name.replace("_", " "))
                tried, held = sums.get(what, (0, 0))
                sums[what] = tried + len(passed), held + sum(passed)
    return [(what, *counts) for what, counts in sums.items()]


def against(ours, theirs):
    """Returns how the values of a row compare with another's, round by round: how many times the
    median, or "as fast as"."""
    times = f"{np.median(ours) / np.median(theirs):.1f}"
    overlap = min(ours) <= max(theirs) and min(theirs) <= max(ours)
    return "as fast as" if overlap or times == "1.0" else f"{times} times"


PEERS = {  # how a row of data_loading is called in sentences
    "NVIDIA DALI, CPU": "DALI",
    "FFCV, full-size JPEGs": "FFCV",
}


def speed_of(bench):
    """Returns {kind: rows {name: row}, baseline's row, what ours is compared with {row: peer}} of
    loading JPEGs and training on them, of the benchmarks that there are."""
    found = {}
    for kind, name in ("loading", "data_loading"), ("training", "training_resnet18_jpegs"):
        rows = {row["name"]: row for row in rows_of(bench, name)}
        if rows and bench[name]["baseline"] in rows:
            base = rows[bench[name]["baseline"]]
            found[kind] = Speed(rows, base, bench[name]["about"])
    return found


@dataclasses.dataclass
class Speed:
    """A benchmark of images/s beside others."""

    rows: dict  # {name: row}
    base: dict  # the row that ratios are to
    about: dict

    @property
    def where(self):
        return f"{self.about['cores']} cores of {self.about['processor']}"

    def times(self, ours, theirs):
        """Returns how a row compares with another, "" where one was not measured."""
        if ours in self.rows and theirs in self.rows:
            return against(self.rows[ours]["values"], self.rows[theirs]["values"])
        return ""

    def compare(self, ours, peers):
        """Returns how a row compares with others, in words."""
        called = {peer: PEERS.get(peer, peer.partition("'")[0]) for peer in peers}
        found = {called[peer]: self.times(ours, peer) for peer in peers}
        return ", ".join(f"{times} {peer}" for peer, times in found.items() if times)


def exchange_of(bench):
    """Returns what exchanging gradients takes by each way, None where it was not measured: `rows`
    {way: rows by ranks} of the largest batch, `ranks` and `batch`, the most of each, `alone`, one
    rank's ms a step, `gradients` in MB, and `apart` {batch: how far the first losses of the ways
    are apart on most ranks, relative to the least of a step}."""
    found = rows_of(bench, "exchange")
    several = [row for row in found if int(row["ranks"]) > 1]
    if not several:
        return None
    ranks = max(int(row["ranks"]) for row in several)
    batches = sorted({int(row["batch"]) for row in found}, reverse=True)
    apart = {}
    for batch in batches:
        losses = [
            row["first losses"].split()
            for row in several
            if (int(row["ranks"]), int(row["batch"])) == (ranks, batch)
        ]
        losses = np.array(losses, dtype=float)
        apart[batch] = float(np.max(np.ptp(losses, axis=0) / losses.min(axis=0)))
    ways = defaultdict(list)
    for row in sorted(several, key=lambda row: int(row["ranks"])):
        if int(row["batch"]) == batches[0]:
            ways[row["way"]].append(row)
    (alone,) = [row["median"] for row in found if (row["ranks"], int(row["batch"])) == ("1", batches[0])]
    # By formula, gather's busiest link carries the gradients once from each of the other ranks.
    busiest = {way: rows[-1]["busiest link, MB/step"] for way, rows in ways.items()}
    gradients = ways["gather"][-1]["by formula, MB/step"] / (ranks - 1)
    return SimpleNamespace(
        rows=ways,
        ranks=ranks,
        batch=batches[0],
        alone=alone,
        busiest=busiest,
        gradients=gradients,
        apart=apart,
    )
