"""RESULTS.md as a page: what the logs say in sentences, tables and figures; the rest below."""

from collections import defaultdict

import matplotlib
import numpy as np

from reporting.draw import (
    OWN_FIGURES,
    chart,
    clock,
    efficiency,
    run_figure,
    speed_panels,
    style_runs,
)
from reporting.parallel import parallel_section
from reporting.report import (
    benchmark_section,
    digits,
    run_section,
    scaling_lines,
    study_section,
    table,
    unused,
)
from reporting.scaling import prediction_errors, study_scaling
from reporting.text import code, escape, image, reason
from reporting.training import recipe_section, transfer_section

# What benchmarks/chaos.py tries, in the words of a reader.
TRIALS = {
    "a rank, all ranks or the launcher killed, also while a file is written": (
        "kills",
        "restarts",
        "horovod",
        "syscalls",
    ),
    "SIGTERM, SIGINT, SIGUSR1, SIGKILL and Ctrl-C twice, to ranks and launchers": ("signals",),
    "processes that are stopped or stuck, in set-up and in training": (
        "frozen",
        "frozen_parallel",
    ),
    "checkpoints and indexes cut off, flipped, made by hand, hostile": ("files", "handmade"),
    "a full or read-only disk, limits of open files, processes, shared memory": ("disk", "limits"),
    "--resume auto after moves between folders, among a thousand runs, onto other data": (
        "progress",
        "many",
    ),
    "a stranger at the store; logs that nobody's training wrote": ("stranger", "logs"),
    "ranks with other data or options, a second run in the folder": ("differing", "two_runs"),
    "nodes lost, leaving, joining; Slurm's time limit and scancel": ("nodes", "slurm"),
}

SPEED_NOTE = (
    "Bars in colour are this project's. Medians of rounds, in which all are measured in turn; the "
    "appendix's tables say whose batches are uint8, and whose are normalised already."
)
MODEL = (
    "The model of a step (appendix, Methods), and its errors on larger sizes than it was fitted on:"
)


def cluster_runs(runs):
    """Returns the runs of the study with most GPUs, by number of GPUs; [] where none has three."""
    studies = {}
    for run in runs:
        whole = {"Top1/val", "Top5/val", "Top1/train", "Top5/train"} <= run.series.keys()
        if run.throughput and run.devices and not run.on_cpu and whole:
            studies.setdefault((run.study, run.group), {})[run.devices] = run
    best = max(studies.values(), key=lambda each: max(each), default={})
    return [best[size] for size in sorted(best)] if len(best) > 2 else []


def rates(benchmarks, title):
    """Returns ({row: median}, baseline, about) of the benchmark whose title begins so, if any."""
    for each in benchmarks:
        if each["title"].startswith(title) and "rows" in each:
            found = {row["name"]: np.median(row["values"]) for row in each["rows"] if row["values"]}
            return found, each["baseline"], each["about"]
    return {}, None, {}


def place_of(about):
    """Returns the Markdown of where a benchmark was measured."""
    return escape(f"{about.get('cores')} cores of {about.get('processor')}")


def sentences(cluster, benchmarks):
    """Returns the Markdown list of what the logs say, a line each; what is not logged is absent."""
    lines = []
    if cluster:
        first, last = cluster[0], cluster[-1]
        share = efficiency(last, first)
        gain = share * last.devices / first.devices
        lines.append(
            f"**{last.throughput[0]:,.0f} images/s**: "
            + escape(
                f"{last.arch} on {last.devices} {last.hardware}, {gain:.1f} times {first.devices} "
                f"of them, {100 * share:.0f} % of ideal ({last.data}, {last.precision})."
            )
        )
        best = max(cluster, key=lambda run: run.values("Top1/val").max())
        lines.append(
            f"**{best.values('Top1/val').max():.1f} % top-1**, the best of {best.epochs} epochs on "
            f"{best.devices} GPUs in {clock(best.training_seconds)} (h:m:s); "
            f"{last.values('Top1/val').max():.1f} % on {last.devices} in "
            f"{clock(last.training_seconds)}."
        )
    loaded, base, about = rates(benchmarks, "Data loading")
    own, dali = loaded.get("this project, folder"), loaded.get("NVIDIA DALI, CPU")
    if own and loaded.get(base):
        beside = f", {own / dali:.1f} times NVIDIA DALI's on the CPU" if dali else ""
        lines.append(
            f"**{own / loaded[base]:.1f} times the images/s of {escape(base)}** in loading plain "
            f"JPEGs{beside} ({place_of(about)})."
        )
    trained, base, about = rates(benchmarks, "Training resnet18 on JPEGs")
    own = max((trained[name] for name in trained if name.startswith("imagenet_")), default=None)
    if own and trained.get(base):
        timm = max((trained[name] for name in trained if "timm" in name), default=None)
        beside = f", {own / timm:.2f} times timm at its best" if timm else ""
        plain = trained.get("imagenet_nd.py")
        alike = f" ({plain / trained[base]:.1f} times in float32, as it trains)" if plain else ""
        lines.append(
            f"**{own / trained[base]:.1f} times the images/s of {escape(base)}** in training "
            f"ResNet-18 on them{alike}{beside} ({place_of(about)})."
        )
    if trials := count_trials(benchmarks):
        tried, held = (sum(each[place] for each in trials) for place in (1, 2))
        lines.append(
            f"**{held} of {tried} trials of faults hold**: kills, freezes, signals, damaged files, "
            "full disks, lost nodes."
        )
    return [f"- {line}" for line in lines]


def count_trials(benchmarks):
    """Returns [(kind, rows of benchmarks/chaos.py that were tried, those that hold)]."""
    kinds = [kind for each in benchmarks for kind in each.get("trials", {}).items()]
    holds = {name: [row[2] for row in rows if row[2] is not None] for name, rows in kinds}
    holds.pop("omissions", None)  # which try the comparison, not the runs
    return [(name, len(each), sum(each)) for name, each in holds.items()]


def trials_table(benchmarks):
    """Returns the Markdown table of faults: a row a kind, how many were tried and held."""
    kinds = {name: what for what, names in TRIALS.items() for name in names}
    sums = defaultdict(lambda: [0, 0])
    for name, tried, held in count_trials(benchmarks):
        of_kind = sums[kinds.get(name, name.replace("_", " "))]
        of_kind[:] = of_kind[0] + tried, of_kind[1] + held
    rows = [[what, *counts] for what, counts in sums.items()]
    return table(["what is done to runs", "trials", "hold"], rows) if rows else []


def shades(count):
    """Returns colours from dark to light, told apart in grey and by the colour-blind."""
    picked = matplotlib.colormaps["viridis"](np.linspace(0, 0.8, max(2, count)))
    return [matplotlib.colors.to_hex(each) for each in picked][:count]


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
    return chart(charts)


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
    return chart(charts)


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
    time = {**axes, "title": title, "ylabel": "hours", "lines": lines}
    return chart([rate, time])


def model_chart(scaling):
    """Returns the chart of a scaling model fitted on the smaller sizes, beside all measurements."""
    fit, small, large, _ = scaling
    runs = [*small, *large]
    sizes = sorted({run.devices for run in runs})
    axis = np.geomspace(sizes[0], sizes[-1], 50)
    images = runs[-1].global_batch / runs[-1].devices
    rate = images * axis / fit.predict(axis, images + 0 * axis)
    error = 100 * prediction_errors(fit, large)[-1]
    measured = [run.throughput[0] for run in runs]
    lines = [
        {"x": axis, "y": rate, "label": "model", "color": "#21918c"},
        {"x": sizes, "y": measured, "label": "measured", "color": "#440154"},
        {"x": axis, "y": rate[0] * axis / axis[0], "label": "ideal", "color": "#777777"},
    ]
    lines[1]["marker"], lines[1]["linestyle"], lines[2]["linestyle"] = "o", "none", ":"
    title = f"Fitted on up to {small[-1].devices} GPUs, the model is {abs(error):.0f} % too "
    title += f"{'high' if error > 0 else 'low'} on {sizes[-1]}"
    axes = {"title": title, "xlabel": "GPUs", "ylabel": "images/s", "lines": lines}
    return chart([{**axes, "logx": True, "logy": True, "xticks": sizes}])


def io_charts(io):
    """Returns the charts of a file system's bandwidth and reads/s over minutes."""
    (minutes, read), (others, calls) = io
    peak, most = np.nanmax(read) / 1e9, np.nanmax(calls)
    lines = [{"x": minutes, "y": read / 1e9, "label": "", "color": "#440154"}]
    rate = {"title": f"{peak:.1f} GB/s are read at most", "ylabel": "GB/s", "lines": lines}
    lines = [{"x": others, "y": calls / 1e3, "label": "", "color": "#440154"}]
    reads = {"title": f"{most:,.0f} reads/s at most", "ylabel": "1,000 reads/s", "lines": lines}
    return chart([{**each, "xlabel": "minutes", "zero": True} for each in (rate, reads)])


def parity_groups(runs):
    """Returns [(arch, reference run, other runs)] of the studies of parity: the reference is the
    one that began first."""
    groups = defaultdict(list)
    for run in runs:
        if run.study.startswith("parity") and "Loss/step" in run.series:
            groups[run.arch].append(run)
    ordered = {arch: sorted(members, key=lambda run: run.name) for arch, members in groups.items()}
    return [(arch, first, rest) for arch, (first, *rest) in sorted(ordered.items()) if rest]


def differences(run, reference):
    """Returns (steps, |difference of the losses| / the reference's) of the steps that both have."""
    ours, theirs = (dict(zip(*_points(each), strict=True)) for each in (run, reference))
    steps = sorted(ours.keys() & theirs.keys())
    return steps, [abs(ours[step] - theirs[step]) / abs(theirs[step]) for step in steps]


def _points(run):
    series = run.series["Loss/step"]
    return series.steps.tolist(), series.values.tolist()


def parity_section(runs, figures):
    """Returns the Markdown lines that set losses of scripts and ranks beside each other."""
    rows, lines, largest, ways = [], [], {}, 0
    for arch, reference, others in parity_groups(runs):
        batchnorm = not arch.startswith("vit")
        look = {"color": "#d95f02" if batchnorm else "#21918c"}
        for run in others:
            steps, found = differences(run, reference)
            if not found:
                continue
            ways += not batchnorm
            largest[batchnorm] = max(largest.get(batchnorm, 0), *found)
            lines.append({"x": steps, "y": np.maximum(found, 1e-9), "label": "", **look})
            place = run.about.get("place", {})  # stages of a pipeline share a batch
            shares = place["shares"] * place["devices"] if "shares" in place else run.devices
            parts = run.global_batch // (shares * run.batch)
            cells = [arch, f"imagenet_{run.script}.py", run.devices, run.batch, parts]
            rows.append([*cells, run.options.get("workers", "–"), f"{max(found):.1g}"])
        lines[-1]["label"] = f"{arch}, BatchNorm" if batchnorm else arch
    if not rows:
        return []
    title = f"{ways} ways, without BatchNorm: losses within {largest.get(False, 0):.0e}"
    axes = {"title": title, "xlabel": "step", "ylabel": "relative difference", "logy": True}
    figures["figures/page/parity"] = chart([{**axes, "lines": lines}])
    header = ["model", "script", "ranks", "-b", "parts", "-j", "largest relative difference"]
    note = (
        "The loss of each step, against the first run of the same model in one process: the same "
        "seed and global batch, divided otherwise. In BatchNorm each rank has the statistics of "
        "its own images, by design: so models that have it differ with the number of ranks. Equal "
        "losses are drawn at 1e-9."
    )
    picture = ["![differences of losses](figures/page/parity.svg)", ""]
    return ["## Same curve everywhere", "", note, "", *picture, *table(header, rows), ""]


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


def page(runs, benchmarks, ios, figures, speed):
    """Returns the Markdown lines of the first page; adds its figures. `speed` is the path of the
    bar chart of benchmarks, or None; `ios` are the studies' counters of file systems."""
    cluster = cluster_runs(runs)
    lines = sentences(cluster, benchmarks)
    lines += [""] if lines else []
    if speed:
        lines += ["## How fast", "", f"![images/s beside others]({speed}.svg)", ""]
        lines += [SPEED_NOTE, ""]
    components = recipe_section(runs, figures) + transfer_section(runs, figures)
    if cluster:
        facts = cluster[0].facts
        drawn = {"accuracy": accuracy_charts(cluster), "top1_top5": error_charts(cluster)}
        drawn["scaling"] = scaling_charts(cluster)
        if io := ios.get(cluster[0].study):
            drawn["io"] = io_charts(io)
        figures |= {f"figures/page/{name}": each for name, each in drawn.items()}
        name = f"{cluster[0].arch}, {cluster[0].data or 'data not logged'}"
        source = f" Source: {facts['source']}. {facts.get('what', '')}" if "source" in facts else ""
        lines += ["## How accurate", ""]
        lines += [escape(f"{name}; best epoch of each run below.{source}"), ""]
        lines += ["![top-1 over epochs and hours](figures/page/accuracy.svg)", ""]
        lines += ["![training and validation](figures/page/top1_top5.svg)", ""]
        lines += components
        lines += ["## How it scales", "", *cluster_table(cluster), ""]
        lines += [f"Efficiency is against {cluster[0].devices} GPUs. ± is the standard deviation "]
        lines[-1] += "over epochs without the first. Times are from the log's start to the last "
        lines[-1] += "epoch, without pauses."
        lines += ["", "![images/s and time against GPUs](figures/page/scaling.svg)", ""]
        if scaling := study_scaling(cluster)[1]:
            figures["figures/page/model"] = model_chart(scaling)
            lines += ["![the scaling model](figures/page/model.svg)", ""]
            lines += [MODEL, *scaling_lines(scaling)]
        if "io" in drawn:
            lines += [
                f"{escape(facts.get('io', 'What its file system delivered'))}:",
                "",
                "![reads over time](figures/page/io.svg)",
                "",
            ]
    elif components:
        lines += ["## How accurate", "", *components]
    lines += parity_section(runs, figures)
    if trials := trials_table(benchmarks):
        lines += ["## What it survives", "", *trials, ""]
        lines += ["Each row of each kind: appendix. `make chaos` repeats them.", ""]
    return lines + parallel_section(benchmarks, figures)


INTRODUCTION = """## Methods

Images/s are the mean and standard deviation over epochs, without the first where there are more.
Training time is wall time from the log's start to its last epoch, without pauses and the epochs
that a restart repeated. Speed-up and efficiency are against the run on the fewest devices in the
same table, of several the fastest. The scaling model of a step is
*compute x images + volume x 2(N-1)/N + latency x 2(N-1)*, of N devices; bandwidth is the gradients'
bytes over the volume's time. What the computation hides is not seen. It is fitted on the smaller
two thirds of the sizes, and its error on the larger is printed; processes that shared cores are
left out, since what they took from each other is no communication.
"""


def make_results(runs, warnings, io_csv, command, benchmarks=(), ios=None):
    """Returns (text of RESULTS.md, {path of a figure without suffix: its panels}); `ios` holds the
    file systems' counters of studies.

    Whatever logs hold, the others are shown: runs and benchmarks of which no page can be made,
    alone or beside others, are taken out of their lists, each with a warning.
    """

    def make(count):
        """Makes it of the first `count` runs and benchmarks."""
        some = benchmarks[: max(0, count - len(runs))]
        return _make(runs[:count], warnings, io_csv, command, some, ios or {})

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


def _make(runs, warnings, io_csv, command, benchmarks, ios):
    """Returns what make_results() does, of all that it is given."""
    style_runs(runs)
    studies = defaultdict(list)
    for run in runs:
        studies[run.study].append(run)
    figures = {}
    made = f"Made by {code(command)} from the logs; nothing here is written by hand."
    lines, speed = ["# Results", "", made, ""], speed_panels(benchmarks)
    if speed:
        figures["figures/speed"] = speed
    first = page(runs, benchmarks, ios, figures, "figures/speed" if speed else None)
    lines += first
    if first:
        lines += ["<details><summary><b>Appendix: methods, every study, benchmark and run</b>"]
        lines += ["</summary>", ""]
    lines += [INTRODUCTION]
    if len(studies) > 1:
        for study, members in sorted(studies.items()):
            name = study or "other"
            folder = unused("figures", name, figures)
            lines += study_section(f"Study {name}", members, folder, ios.get(study), figures)
    elif runs:
        lines += study_section("All runs", runs, "figures", io_csv, figures)
    lines += ["## Benchmarks", ""] if benchmarks else []
    for benchmark in benchmarks:
        lines += benchmark_section(benchmark)
    lines += ["## Runs", ""] if runs else []
    if len(runs) > OWN_FIGURES:
        lines += [f"More than {OWN_FIGURES} runs: none has a figure of its own.", ""]
    for run in runs:
        lines += run_section(run)
        panels = run_figure(run) if len(runs) <= OWN_FIGURES else []
        if panels:
            path = unused("figures/runs", run.name, figures)
            lines += [image(run.name, f"{path}.png"), ""]
            figures[path] = panels
    if warnings:
        lines += ["## Warnings", "", *(f"- {escape(warning)}" for warning in warnings), ""]
    lines += ["</details>", ""] if first else []
    return "\n".join(lines), figures
