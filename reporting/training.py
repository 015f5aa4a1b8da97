"""What this project's own training studies found: the recipe by component, and transfer."""

import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from reporting.draw import device_word
from reporting.report import MOST, digits, table
from reporting.text import escape

COLOURS = ("#440154", "#21918c", "#d95f02", "#3b528b")  # told apart in grey, by the colour-blind


# Options in which runs of a study differ though they train by the same recipe. What a recipe's file
# held is in the other options: the file may hold something else by now.
TUNED = {"lr", "seed", "log_dir", "dir", "resume", "local_rank", "recipes", "global_batch"}


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


def typed(name, value):
    """Returns an option as it is typed, or that it is not."""
    if value is False or value is None:
        return f"without --{name.replace('_', '-')}"
    number = "" if value is True else f" {value:g}" if isinstance(value, float) else f" {value}"
    return f"--{name.replace('_', '-')}{number}"


def mean_final(runs):
    """Returns the mean of final()."""
    return float(np.mean([final(run) for run in runs]))


def size_of(run):
    """Returns (epochs, pixels): runs with the same may be compared."""
    return run.epochs, run.about["image_size"]


def final(run):
    """Returns the validation top-1 of the last epoch, %."""
    return float(run.values("Top1/val")[-1])


def study_runs(runs, begin):
    """Returns the runs of the studies whose names begin so, of these scripts."""
    return [
        run
        for run in runs
        if run.study.startswith(begin)
        and {"Top1/val", "Loss/val"} <= run.series.keys()
        and {"steps_per_epoch", "image_size", "data"} <= run.about.keys()
        and "lr" in run.options
    ]


def in_short(added):
    """Returns what was added to a recipe, or how many options where it is more than one."""
    count = added.count("--")
    return f"{count} options together" if count > 1 else added


# What benchmarks/torchvision_recipe.py writes.
BY_PARTS = "torchvision's second recipe"


def by_parts(benchmarks):
    """Returns the Markdown lines on recipes by these scripts, and by torchvision's own parts."""
    for each in benchmarks:
        if each["title"] == BY_PARTS:
            found = []
            for row in each["rows"]:
                values = ", ".join(digits(value, 1) for value in row["values"])
                found.append(f"{row['name']}: {values} %")
            return [escape(f"{each['note']} {'; '.join(found)}."), ""]
    return []


def recipe_section(runs, figures, full=False):
    """Returns the Markdown lines on what each component of a recipe gains; adds its figure."""
    study = study_runs(runs, "recipe")
    usual = Counter(size_of(run) for run in study).most_common(1)
    others = [run for run in study if size_of(run) != usual[0][0]]
    found = recipes_of([run for run in study if run not in others])
    plain = found.pop("", [])
    if not plain or not found:
        return []
    base = mean_final(plain)
    gains = {added: [final(run) - base for run in same] for added, same in found.items()}
    order = sorted(gains, key=lambda added: np.mean(gains[added]))
    best = order[-1]
    drawn = gains | {"plain": [final(run) - base for run in plain]}  # how far its seeds are apart
    names = sorted(drawn, key=lambda added: np.mean(drawn[added]))
    places = range(len(names))
    dots = [(gain, place) for place, added in enumerate(names) for gain in drawn[added]]
    lines = [
        {"x": [0, 0], "y": [-0.5, len(names) - 0.5], "label": "", "color": "#777777"},
        {"x": [x for x, _ in dots], "y": [y for _, y in dots], "label": "", "color": "#21918c"},
    ]
    lines[0]["linestyle"], lines[1]["marker"], lines[1]["linestyle"] = ":", "o", "none"
    title = f"{in_short(best)}: {np.mean(gains[best]):+.1f} points"
    axes = {"title": title, "xlabel": "top-1 against plain, points", "ylabel": "", "lines": lines}
    axes["yticks"] = [*zip(places, map(in_short, names), strict=True)]
    shown = {"plain": plain[0], best: found[best][0]}
    longer = {f"{run.epochs} epochs, {run.about['image_size']} pixels": run for run in others}
    shown |= dict([*longer.items()][: len(COLOURS) - len(shown)])
    seeds, curves = {"plain": plain, best: found[best]}, []
    for (name, run), colour in zip(shown.items(), COLOURS, strict=False):
        series = run.series["Top1/val"]
        line = {"x": series.seconds / 60, "y": series.values, "color": colour}
        label = f"{in_short(name)}: {mean_final(seeds.get(name, [run])):.1f} %"
        curves.append({**line, "label": label})
    highest = max(curves, key=lambda line: line["y"][-1])
    times = {"title": f"{highest['y'][-1]:.1f} % in {highest['x'][-1]:.0f} minutes"}
    times |= {"xlabel": "minutes of training", "ylabel": "validation top-1, %", "lines": curves}
    times["logx"] = bool(longer)
    figures["figures/recipe"] = [axes, times]
    kept = sorted(order, key=lambda added: -abs(np.mean(gains[added])))
    if not full:  # what moves accuracy least is left out
        kept = kept[: MOST - 1 - len([*shown][2:])]
    ways = {"plain": plain, **{added: found[added] for added in reversed(order) if added in kept}}
    rows = [
        [added, same[0].options["lr"], len(same)]
        + [f"{mean_final(same):.2f}", f"{mean_final(same) - base:+.2f}"]
        for added, same in ways.items()
    ]
    for name, run in [*shown.items()][2:]:
        rows.append([f"{name}: {' '.join(run.options.get('recipes') or {})}".strip(": ")])
        rows[-1] += [run.options["lr"], 1, f"{final(run):.2f}", "–"]
    header = ["added to plain", "--lr", "seeds", "top-1, %", "gain, points"]
    one = plain[0]
    what = (
        f"{one.arch} on {one.data}, {one.epochs} epochs of {one.about['steps_per_epoch']} steps of "
        f"{one.global_batch} images: top-1 after the last epoch, by what is added to the plain "
        "recipe, at the learning rate that did best of those tried (an option file too, whatever "
        "sizes it names). In so short a training strong augmentation may lower accuracy. "
        f"{one.facts.get('what', '')}"
    ).strip()
    picture = ["![gains of components](figures/recipe.png)", ""]
    return ["### By component", "", escape(what), "", *picture, *table(header, rows), ""]


WAYS = ("from scratch", "fine-tuned", "last layer alone")


def way_of(run):
    """Returns which of WAYS a run has trained by."""
    return WAYS[2 if run.options.get("freeze") else 1 if run.options.get("weights") else 0]


def transfer_section(runs, figures, full=False):
    """Returns the Markdown lines on what weights of other classes are worth: transfer_cpu of
    benchmarks/studies.py."""
    study = [run for run in study_runs(runs, "transfer_cpu") if "epochs" in run.end]
    few, budget, before = defaultdict(dict), [], None
    for run in study:
        shots = re.fullmatch(r".*few(\d+)", run.about["data"])
        if Path(run.about["data"]).name == "before":
            before = run
        elif "test_top1" not in run.end:
            continue
        elif shots:
            few[int(shots[1])][way_of(run)] = run
        elif run.options.get("budget_hours"):
            budget.append(run)
    few = {shots: few[shots] for shots in sorted(few) if len(few[shots]) == len(WAYS)}
    if not few or not before:
        return []
    least, *_ = few
    one = few[least][WAYS[0]]
    tests = {way: [few[shots][way].end["test_top1"] for shots in few] for way in WAYS}
    lines = [
        {"x": [*few], "y": tests[way], "label": way, "color": colour, "marker": "o"}
        for way, colour in zip(WAYS, COLOURS, strict=False)
    ]
    best = max(WAYS, key=lambda way: tests[way][0])
    title = f"{least} images a class: {tests[best][0]:.0f} % {best}"
    title += f", {tests[WAYS[0]][0]:.0f} % {WAYS[0]}"
    axes = {"title": title, "xlabel": "images a class", "ylabel": "top-1 on test/, %"}
    axes |= {"lines": lines, "logx": True, "xticks": [*few]}
    curves = []
    for way, colour in zip(WAYS, COLOURS, strict=False):
        series = few[least][way].series["Top1/val"]
        curves.append({"x": series.steps, "y": series.values, "label": way, "color": colour})
    epochs = {"title": f"{least} images a class, over epochs", "xlabel": "epoch"}
    epochs |= {"ylabel": "validation top-1, %", "lines": curves}
    figures["figures/transfer"] = [axes, epochs]
    rows = [
        [f"{shots:,}", *(f"{tests[way][at]:.1f}" for way in WAYS)] for at, shots in enumerate(few)
    ]
    steps = one.epochs * one.about["steps_per_epoch"]
    note = (
        f"{one.arch}, trained on five classes of CIFAR-10 ({final(before):.1f} % in validation), "
        f"goes on with the other five, of which it has few images: top-1 on test/ after {steps} "
        f"steps of {one.global_batch} images, by the model with the least validation loss. "
        f"{one.facts.get('what', '')}"
    ).strip()
    picture = ["![accuracy by number of images](figures/transfer.png)", ""]
    lines = ["### By transfer", "", escape(note), "", *picture]
    return [*lines, *table(["images a class", *WAYS], rows), "", *budget_part(budget, full)]


def budget_part(runs, full):
    """Returns the Markdown lines on how far runs come in the same time, in full as a table."""
    runs = sorted(runs, key=lambda run: run.devices)
    if not runs:
        return []
    note = (
        "The same weights fine-tuned on all images of the other five classes for "
        f"{60 * runs[0].options['budget_hours']:.0f} minutes (`--budget-hours`), the learning rate "
        "by the square root of the global batch: "
    )
    if not full:
        ends = [
            f"{run.end['test_top1']:.2f} % on test/ after {digits(run.end['epochs'], 1)} epochs by "
            f"{run.devices} {device_word([run], run.devices)}"
            for run in runs
        ]
        return [f"{note}{', '.join(ends)}.", ""]
    header = ["ranks", "global batch", "images/s", "epochs", "least validation loss"]
    rows = []
    for run in runs:
        row = [run.devices, run.global_batch, f"{run.throughput[0]:,.0f}"]
        row += [digits(run.end["epochs"], 1), f"{run.values('Loss/val').min():.3f}"]
        rows.append([*row, f"{run.end['test_top1']:.2f}"])
    return [note.strip(), "", *table([*header, "top-1 on test/, %"], rows), ""]
