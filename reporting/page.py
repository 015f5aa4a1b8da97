"""RESULTS.md as a page: what the logs say in sentences, tables and figures, most needed first."""

import shlex
from collections import defaultdict
from pathlib import Path

import numpy as np

from reporting.draw import (
    clock,
    efficiency,
    io_panels,
    model_panel,
    shades,
    study_panels,
    style_runs,
)
from reporting.language import TITLES as OF_TEXT
from reporting.language import language_section
from reporting.parallel import TITLES, parallel_section
from reporting.report import (
    MOST,
    benchmark_section,
    benchmark_table,
    digits,
    epochs_table,
    note_of,
    precision_table,
    run_section,
    runs_table,
    same_as,
    study_section,
    table,
)
from reporting.scaling import study_scaling
from reporting.speed import SPEED_NOTE, speed_panels, speed_sentences
from reporting.text import code, escape, file_name, image, reason
from reporting.training import BY_PARTS, by_parts, recipe_section, transfer_section

# What tests/chaos.py tries, in the words of a reader.
TRIALS = {
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

LESSONS = "lessons_cpu"  # the study whose numbers stand in docs/lessons.md

# The benchmarks that the page has a section of.
SENT = [TITLES[kind] for kind in ("exchange", "memory", "bubble")]


def cluster_runs(runs):
    """Returns the runs of the study with most GPUs, by number of GPUs; [] where none has three."""
    studies = {}
    for run in runs:
        whole = {"Top1/val", "Top5/val", "Top1/train", "Top5/train"} <= run.series.keys()
        if run.throughput and run.devices and not run.on_cpu and whole:
            studies.setdefault((run.study, run.group), {})[run.devices] = run
    best = max(studies.values(), key=lambda each: max(each), default={})
    return [best[size] for size in sorted(best)] if len(best) > 2 else []


def sentences(cluster, benchmarks):
    """Returns the Markdown list of what the logs say, a line each; what is not logged is absent."""
    lines = []
    if cluster:
        first, last = cluster[0], cluster[-1]
        whose = f" ({escape(first.facts['whose'])})" if first.facts.get("whose") else ""
        share = efficiency(last, first)
        gain = share * last.devices / first.devices
        lines.append(
            f"**{last.throughput[0]:,.0f} images/s**{whose}: "
            + escape(
                f"{last.arch} on {last.devices} {last.hardware}, {gain:.1f} times {first.devices} "
                f"of them, {100 * share:.0f} % of ideal ({last.data}, {last.precision})."
            )
        )
        best = max(cluster, key=lambda run: run.values("Top1/val").max())
        lines.append(
            f"**{best.values('Top1/val').max():.1f} % top-1**{whose}, the best of {best.epochs} "
            f"epochs on {best.devices} GPUs in {clock(best.training_seconds)} (h:m:s); "
            f"{last.values('Top1/val').max():.1f} % on {last.devices} in "
            f"{clock(last.training_seconds)}."
        )
    lines += speed_sentences(benchmarks)
    if trials := count_trials(benchmarks):
        tried, held = (sum(each[place] for each in trials) for place in (1, 2))
        lines.append(
            f"**{held} of {tried} trials of faults hold**: kills, freezes, signals, damaged files, "
            "full disks, lost nodes."
        )
    return [f"- {line}" for line in lines]


def count_trials(benchmarks):
    """Returns [(kind, rows of tests/chaos.py that were tried, those that hold)]."""
    kinds = [kind for each in benchmarks for kind in each.get("trials", {}).items()]
    holds = {name: [row[2] for row in rows if row[2] is not None] for name, rows in kinds}
    holds.pop("omissions", None)  # which try the comparison, not the runs
    return [(name, len(each), sum(each)) for name, each in holds.items()]


def trials_table(benchmarks):
    """Returns the Markdown table of faults: a row a kind, how many were tried and held."""
    kinds = {name: what for what, names in TRIALS.items() for name in names.split()}
    sums = defaultdict(lambda: [0, 0])
    for name, tried, held in count_trials(benchmarks):
        of_kind = sums[kinds.get(name, name.replace("_", " "))]
        of_kind[:] = of_kind[0] + tried, of_kind[1] + held
    rows = [[what, *counts] for what, counts in sums.items()]
    return table(["what is done to runs", "trials", "hold"], rows) if rows else []


def accuracy_charts(cluster):
    """Returns the charts of validation's top-1 against epochs, and against hours."""
    charts, tops = [], [run.values("Top1/val").max() for run in cluster]
    whole = complete(cluster)
    first, last = whole[0], whole[-1]
    hours = [run.training_seconds / 3600 for run in (last, first)]
    span = f"{cluster[0].devices} to {cluster[-1].devices} GPUs"
    titles = (
        f"{min(tops):.1f} to {max(tops):.1f} % top-1 on {span}",
        f"{last.devices} GPUs take {hours[0]:.1f} hours, {first.devices} take {hours[1]:.0f}",
    )
    for title, xlabel in zip(titles, ("epoch", "hours"), strict=True):
        lines = []
        for run, colour in zip(cluster, shades(len(cluster)), strict=True):
            series = run.series["Top1/val"]
            x = series.steps if xlabel == "epoch" else series.seconds / 3600
            label = f"{run.devices} GPUs" if xlabel == "epoch" else str(run.devices)
            lines.append({"x": x, "y": series.values, "label": label, "color": colour})
        axes = {"title": title, "xlabel": xlabel, "ylabel": "validation top-1, %", "lines": lines}
        hourly = xlabel == "hours"
        charts.append({**axes, "logx": hourly, "above": hourly, "listed": not hourly})
    return charts


def error_charts(cluster):
    """Returns the charts of training's and validation's top-1 and top-5, most and fewest GPUs."""
    charts = []
    for top in ("Top1", "Top5"):
        lines = []
        for run, colour in zip((cluster[0], cluster[-1]), ("#440154", "#d95f02"), strict=True):
            for part, style in ("train", "--"), ("val", "-"):
                if (series := run.series.get(f"{top}/{part}")) is not None:
                    what = "training" if part == "train" else "validation"
                    label = f"{run.devices} GPUs, {what}"
                    line = {"x": series.steps, "y": series.values, "label": label}
                    lines.append({**line, "color": colour, "linestyle": style})
        name = top.replace("Top", "top-")
        val = [run.values(f"{top}/val").max() for run in (cluster[0], cluster[-1])]
        title = f"{name}: {val[0]:.1f} % on {cluster[0].devices} GPUs, {val[1]:.1f} % on "
        axes = {"title": f"{title}{cluster[-1].devices}", "xlabel": "epoch", "ylabel": f"{name}, %"}
        charts.append({**axes, "lines": lines})
    return charts


def complete(cluster):
    """Returns the runs with as many epochs as any."""
    return [run for run in cluster if run.epochs == max(each.epochs for each in cluster)]


def scaling_charts(cluster):
    """Returns the charts of images/s and of training time against the number of GPUs."""
    base, sizes = cluster[0], [run.devices for run in cluster]
    measured = [run.throughput[0] for run in cluster]
    ideal = [base.throughput[0] * size / base.devices for size in sizes]
    share = 100 * efficiency(cluster[-1], base)
    notes = [
        (run.devices, run.throughput[0], f"{100 * efficiency(run, base):.0f} %")
        for run in cluster[1:]
    ]
    errors = [run.throughput[1] for run in cluster]
    lines = [
        {"x": sizes, "y": ideal, "label": "ideal", "color": "#777777", "linestyle": ":"},
        {"x": sizes, "y": measured, "label": "measured", "color": "#21918c", "marker": "o"},
    ]
    lines[1]["errors"] = errors
    axes = {"xlabel": "GPUs", "logx": True, "logy": True, "xticks": sizes}
    title = f"{measured[-1]:,.0f} images/s on {sizes[-1]} GPUs, {share:.0f} % of ideal"
    rate = {**axes, "title": title, "ylabel": "images/s", "lines": lines, "notes": notes}
    whole = complete(cluster)
    hours = [run.training_seconds / 3600 for run in whole]
    sizes = [run.devices for run in whole]
    lines = [{"x": sizes, "y": hours, "label": "", "marker": "o", "color": "#21918c"}]
    texts = [clock(run.training_seconds) for run in whole]
    title = f"{whole[-1].epochs} epochs in {texts[-1]} on {sizes[-1]} GPUs"
    axes |= {"xticks": sizes, "notes": [*zip(sizes, hours, texts, strict=True)], "aside": (6, 4)}
    ended = [
        f"of {run.devices}, ended at epoch {run.epochs}" for run in cluster if run not in whole
    ]
    axes["xlabel"] += f" (not shown: {'; '.join(ended)})" if ended else ""
    time = {**axes, "title": title, "ylabel": "hours", "lines": lines}
    return [rate, time]


def parity_groups(runs):
    """Returns [(arch, reference run, other runs)] of the studies of parity: the reference is the
    first of those on the fewest devices."""
    groups = defaultdict(list)
    for run in runs:
        if run.study.startswith("parity") and "Loss/step" in run.series:
            groups[run.arch].append(run)
    ordered = {
        arch: sorted(members, key=lambda run: (run.devices, run.name))
        for arch, members in groups.items()
    }
    return [(arch, first, rest) for arch, (first, *rest) in sorted(ordered.items()) if rest]


def differences(run, reference):
    """Returns (steps, |difference of the losses| / the reference's) of the steps that both have."""
    ours, theirs = (dict(zip(*_points(each), strict=True)) for each in (run, reference))
    steps = sorted(ours.keys() & theirs.keys())
    return steps, [abs(ours[step] - theirs[step]) / abs(theirs[step]) for step in steps]


def _points(run):
    series = run.series["Loss/step"]
    return series.steps.tolist(), series.values.tolist()


def parity_section(runs, figures, full=False):
    """Returns the Markdown lines that set losses of scripts and ranks beside each other."""
    rows, lines, largest, ways = [], [], {}, 0
    for arch, reference, others in parity_groups(runs):
        batchnorm = reference.items == "images" and not arch.startswith("vit")
        look = {"color": "#d95f02" if batchnorm else "#21918c"}
        for run in others:
            steps, found = differences(run, reference)
            if not found:
                continue
            ways += not batchnorm
            largest[batchnorm] = max(largest.get(batchnorm, 0), *found)
            lines.append({"x": steps, "y": np.maximum(found, 1e-9), "label": "", **look})
            place = run.about.get("place", {})  # stages of a pipeline share a batch
            ranks = place.get("data_ranks", place.get("shares"))  # "shares" until November 2026
            devices = ranks * place["devices"] if ranks else run.devices
            batch = run.about.get("device_batch") or run.batch
            steps = run.global_batch // (devices * batch)
            cells = [arch, run.file, run.devices, batch, steps]
            cells += [run.options.get("workers", "–"), f"{max(found):.1g}"]
            rows.append((batchnorm, -max(found), cells))
        lines[-1]["label"] = f"{arch}, BatchNorm" if batchnorm else arch
    if not rows:
        return []
    # Without BatchNorm, and then the largest differences, first.
    rows = [cells for *_, cells in sorted(rows, key=lambda row: row[:2])]
    title = f"{ways} ways, without BatchNorm: losses within {largest.get(False, 0):.0e}"
    axes = {"title": title, "xlabel": "step", "ylabel": "relative difference", "logy": True}
    figures["figures/parity"] = [{**axes, "lines": lines}]
    header = ["model", "script", "ranks", "-b", "accumulated", "-j", "largest relative difference"]
    note = (
        "The loss of each step, against the first run of the same model in one process: the same "
        "seed and global batch, divided otherwise. In BatchNorm each rank has the statistics of "
        "its own images, by design: so models that have it differ with the number of ranks. Equal "
        "losses are drawn at 1e-9."
    )
    if len(rows) > MOST and not full:
        note += f" The {MOST} largest of {len(rows)}, those without BatchNorm first:"
    picture = ["![differences of losses](figures/parity.png)", ""]
    return [
        "## Same curve everywhere",
        "",
        note,
        "",
        *picture,
        *table(header, rows if full else rows[:MOST]),
        "",
    ]


def cluster_table(cluster):
    """Returns the Markdown table of the runs that the page shows."""
    rows = []
    for run in cluster:
        rate, spread = run.throughput
        share = efficiency(run, cluster[0])
        row = [run.devices, f"{rate:,.0f} ± {spread:,.0f}", digits(100 * share, 0, " %")]
        row += [run.epochs, clock(run.training_seconds)]
        row += [digits(run.values(tag).max(), 2) for tag in ("Top1/val", "Top5/val")]
        rows.append(row)
    header = ["GPUs", "images/s", "efficiency", "epochs", "time, h:m:s", "top-1, %", "top-5, %"]
    return table(header, rows)


def cluster_section(cluster, io, figures):
    """Returns the Markdown lines (on accuracy, on scaling) of the runs that the page shows."""
    facts = cluster[0].facts
    figures["figures/accuracy"] = accuracy_charts(cluster)
    figures["figures/top1_top5"] = error_charts(cluster)
    figures["figures/scaling"] = scaling_charts(cluster)
    name = f"{cluster[0].arch}, {cluster[0].data or 'data not logged'}"
    source = f" Source: {facts['source']}. {facts.get('what', '')}" if "source" in facts else ""
    accurate = [escape(f"{name}; best epoch of each run below.{source}"), ""]
    accurate += ["![top-1 over epochs and hours](figures/accuracy.png)", ""]
    accurate += ["![training and validation](figures/top1_top5.png)", ""]
    note = (
        f"Efficiency is against {cluster[0].devices} GPUs. ± is the standard deviation over epochs "
        "without the first. Times are from the log's start to the last epoch, without pauses."
    )
    scales = [*cluster_table(cluster), "", note, ""]
    scales += ["![images/s and time against GPUs](figures/scaling.png)", ""]
    if scaling := study_scaling(cluster)[1]:
        figures["figures/model"] = [model_panel(scaling)]
        scales += ["![the scaling model](figures/model.png)", ""]
    if io:
        figures["figures/io"] = io_panels(io)
        scales += [f"{escape(facts.get('io', 'What its file system delivered'))}:", ""]
        scales += ["![reads over time](figures/io.png)", ""]
    return accurate, scales


def page(runs, benchmarks, ios, figures, more):
    """Returns (Markdown lines on what a reader needs most, names of the studies and benchmarks that
    they show); adds their figures. `ios` are the studies' counters of file systems; more() adds to
    lines how what is so called is printed in full."""
    cluster, shown = cluster_runs(runs), set()
    files = {name_of(each): each for each in benchmarks}
    lines, accurate, scales = sentences(cluster, benchmarks), [], []
    lines += [""] if lines else []

    def whole(lines, names):
        """Returns the lines of a section, if there are any, and how to print all of it."""
        names = sorted(names) if lines else []
        shown.update(names)
        return more(lines, *names) if names else lines

    def studies(begin):
        return {run.study for run in runs if run.study.startswith(begin)}

    if speed := speed_panels(benchmarks):
        figures["figures/speed"] = speed
        picture = "![images/s beside others](figures/speed.png)"
        lines += ["## How fast", "", picture, "", SPEED_NOTE, ""]
    if cluster:
        study = cluster[0].study
        accurate, scales = cluster_section(cluster, ios.get(study), figures)
        scales = whole(scales, {study} - {""})
    accurate += whole(recipe_section(runs, figures), studies("recipe"))
    titles = [name for name in files if files[name]["title"] == BY_PARTS]
    accurate += whole(by_parts(benchmarks), titles)
    accurate += whole(transfer_section(runs, figures), studies("transfer_cpu"))
    lines += ["## How accurate", "", *accurate] if accurate else []
    lines += ["## How it scales", "", *scales] if scales else []
    lines += whole(parity_section(runs, figures), studies("parity"))
    if trials := trials_table(benchmarks):
        trials = ["## What it survives", "", *trials, "", "`make chaos` repeats them.", ""]
    lines += whole(trials, [name for name in files if "trials" in files[name]])
    titles = [name for name in files if files[name]["title"] in SENT]
    lines += whole(parallel_section(benchmarks, figures), titles)
    titles = [name for name in files if files[name]["title"] in OF_TEXT.values()]
    lines += whole(language_section(runs, benchmarks), [*studies("text"), *titles])
    lessons = ["## Lessons", "", "Runs of [docs/lessons.md](docs/lessons.md), on demo sets.", ""]
    return lines + whole(lessons if studies(LESSONS) else [], studies(LESSONS)), shown


METHODS = [
    "Images/s: mean and standard deviation over epochs, without the first where there are more.",
    "Training time: wall time from the log's start to its last epoch, without pauses and the "
    "epochs that a restart repeated.",
    "Speed-up and efficiency: against the run on the fewest devices of the same study, model, data,"
    " hardware and precision, of several the fastest.",
    "The scaling model of a step: *compute x images + volume x 2(N-1)/N + latency x 2(N-1)*, of N "
    "devices. What the computation hides is not seen. It is fitted on the smaller two thirds of "
    "the sizes; processes that shared cores are left out, since what they took from each other is "
    "no communication.",
    "Losses and accuracies are the logged values, never smoothed.",
]


def make_results(runs, warnings, io_csv, command, benchmarks=(), ios=None):
    """Returns (text of RESULTS.md, {path of a figure without suffix: its panels}, {name of a study,
    benchmark or run: its Markdown lines in full}); `ios` holds the file systems' counters of
    studies.

    Whatever logs hold, the others are shown: runs and benchmarks of which no page can be made,
    alone or beside others, are taken out of their lists, each with a warning.
    """
    ios = {**(ios or {}), **({"": io_csv} if io_csv else {})}

    def make(count):
        """Makes it of the first `count` runs and benchmarks."""
        some = benchmarks[: max(0, count - len(runs))]
        return _make(runs[:count], warnings, command, some, ios)

    while True:
        works, fails = 0, len(runs) + len(benchmarks)
        try:
            return make(fails)
        except Exception as raised:
            error = raised
        while fails - works > 1:
            middle = (works + fails) // 2
            try:
                make(middle)
                works = middle
            except Exception as raised:
                fails, error = middle, raised
        if fails == 0:  # it is none of them
            raise error
        if fails <= len(runs):
            name = runs.pop(fails - 1).name
        else:
            name = benchmarks.pop(fails - 1 - len(runs))["file"]
        why = f"{type(error).__name__}: {reason(error)}"
        warnings.append(f"{name}: cannot be shown ({why}): left out")


def name_of(benchmark):
    """Returns what a benchmark is called: its file, without suffix."""
    return Path(benchmark["file"]).stem


def _make(runs, warnings, command, benchmarks, ios):
    """Returns what make_results() does, of all that it is given."""
    studies, figures, sections = defaultdict(list), {}, defaultdict(list)
    for run in runs:
        studies[run.study].append(run)
    for members in studies.values():
        style_runs(members)

    def more(lines, *names):
        shown = ", ".join(code(f"{command} --show {shlex.quote(name)}") for name in names)
        shown = f"In full: {shown}."
        if lines[-2].startswith(("|", "!")):  # a table, a picture
            return [*lines, shown, ""]
        return [*lines[:-2], f"{lines[-2]} {shown}", ""]

    made = f"Made by {code(command)} from the logs; nothing here is written by hand."
    lines = ["# Results", "", made, ""]
    first, shown = page(runs, benchmarks, ios, figures, more)
    lines += [*first, "## Methods", "", *(f"- {each}" for each in METHODS), ""]
    for study, members in sorted(studies.items()):
        name = study or ("other" if studies.keys() - {""} else "runs")
        for full in recipe_section, transfer_section, parity_section:
            sections[name] += full(members, {}, full=True)
        sections[name] += study_section(f"Study {name}", members)
        if study not in shown:
            path = unused(name, figures)
            about = [f"## {escape(f'Study {name}' if study else 'All runs')}", ""]
            if panels := study_panels(members, ios.get(study)):
                figures[path] = panels
                about += [image(name, f"{path}.png"), ""]
            lines += more([*about, *precision_table(members)], name)
    lines += ["## Benchmarks", ""] if any(name_of(b) not in shown for b in benchmarks) else []
    for benchmark in benchmarks:
        name = name_of(benchmark)
        sections[name] += benchmark_section(benchmark)
        others = [each for each in benchmarks if is_held(each, benchmark)]
        if name not in shown and not any(is_held(benchmark, each) for each in benchmarks):
            names = [name, *map(name_of, others)]
            lines += more(benchmark_part(benchmark, others), *names)
    # Of a study with a section of its own, --show prints the runs.
    rest = [run for run in runs if not run.study or run.study not in shown]
    note = ["Those of sections above are printed by their `--show`.", ""] if rest != runs else []
    lines += more(["## Runs", "", *note, *runs_table(rest), ""], "NAME") if rest else []
    for run in runs:
        sections[run.name] += run_section(run)
    if warnings:
        lines += ["## Warnings", "", *(f"- {escape(warning)}" for warning in warnings), ""]
    return "\n".join(lines), figures, sections


def is_held(one, other):
    """Whether a benchmark is another one, held to fewer instructions, of which it has rows."""
    rows = [{row["name"] for row in each.get("rows", [])} for each in (one, other)]
    return same_as(one) == other["title"] and bool(rows[0] & rows[1])


def benchmark_part(benchmark, others):
    """Returns the Markdown lines of a benchmark on the page: its first rows, with the medians of
    `others`, which are the same held to fewer instructions, and its note."""
    rows, notes = [dict(row) for row in benchmark["rows"]], []
    for other in others:
        how = other["title"].removeprefix(f"{benchmark['title']}, ")
        medians = {row["name"]: np.median(row["values"]) for row in other["rows"] if row["values"]}
        for row in rows:
            row[f"{other['unit']}, {how}"] = float(medians.get(row["name"], 0)) or ""
        by = [f"{name}={value}" for name, value in other["about"].items() if name.isupper()]
        notes.append(
            f"{how[0].upper()}{how[1:]} by {' '.join(by)}; what has no switch is as it was."
        )
    lines = benchmark_table({**benchmark, "rows": rows}, MOST)
    note = " ".join([note_of(benchmark, "| ratio |" in lines[0]), *notes])
    return [f"### {escape(benchmark['title'])}", "", *lines, "", escape(note), ""]


def in_full(name, runs, sections):
    """Returns the Markdown lines of a study, a benchmark or a run in full, or of all of them."""
    lines, of_name = [], {run.name: run for run in runs}
    for each in [*sections] if name == "all" else [name]:
        lines += sections[each]
        lines += epochs_table(of_name[each]) if each in of_name else []
    return lines


def unused(name, figures):
    """Returns a figure's path, which no figure has."""
    path = f"figures/{file_name(name)}"
    while path in figures:
        path += "_"
    return path
