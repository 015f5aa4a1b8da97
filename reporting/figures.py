"""The figures: each function returns a matplotlib figure, or None where no log has its data."""

import hashlib
import math
import re
import textwrap
import warnings

import matplotlib
import numpy as np
import PIL.Image
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from reporting.findings import PEERS, WAYS, complete, final, mean_final, size_of
from reporting.scaling import (
    baseline,
    by_script,
    efficiency,
    file_of,
    prediction_errors,
    study_scaling,
)
from reporting.tables import clock, device_word, rate_word, significant

# Told apart in grey and by the colour-blind.
DARK, TEAL, ORANGE, BLUE, GREEN, GREY = (
    "#440154",
    "#21918c",
    "#d95f02",
    "#3b528b",
    "#5ec962",
    "#777777",
)
MOST_NAMES = 16  # entries of a legend


def start(count, height=4.0):
    """Returns (a figure, its axes) of so many panels side by side, or two by two."""
    columns = min(2, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(6.2 * columns, height * rows), dpi=130, layout="constrained")
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(count)]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(alpha=0.25, linewidth=0.5)
    return figure, axes


def label(axes, xlabel, ylabel, title="", logx=False, logy=False, xticks=None):
    """Labels and scales axes; numbers in full on a logarithmic one."""
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_title(textwrap.fill(title, 54), loc="left", fontsize=11, fontweight="bold")
    for axis, wanted in (axes.xaxis, logx), (axes.yaxis, logy):
        if wanted:
            axes.set(**{f"{axis.axis_name}scale": "log"})
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1e4 else (1,)))
            axis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")
            axis.set_minor_locator(NullLocator())
    if xticks is not None:
        axes.set_xticks(xticks, [f"{tick:,}" for tick in xticks])
    elif xlabel in ("epoch", "step"):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def note(axes, x, y, text, at=(6, -12)):
    """Writes text beside a point."""
    axes.annotate(text, (x, y), xytext=at, textcoords="offset points", fontsize=9)


def legend(axes):
    """Names the lines of axes that have a label."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > MOST_NAMES:
        labels[MOST_NAMES - 1] = f"... and {len(labels) - MOST_NAMES + 1} more"
    if labels:
        axes.legend(handles[:MOST_NAMES], labels[:MOST_NAMES], fontsize=9, framealpha=0.6)


def shades(count):
    """Returns colours from dark to light."""
    picked = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, max(2, count)))
    return [matplotlib.colors.to_hex(each) for each in picked][:count]


def bars(axes, names, lengths, colours, texts, xlabel, title=""):
    """Draws bars, the first on top, with a text at the end of each."""
    drawn = axes.barh(range(len(names)), lengths, color=colours)
    axes.bar_label(drawn, texts, padding=4, fontsize=9)
    axes.set_yticks(range(len(names)), names)
    label(axes, xlabel, "", title)
    axes.tick_params(axis="y", length=0, labelsize=9)
    axes.set(xlim=(0, 1.4 * max(lengths)), xticks=[])
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    axes.invert_yaxis()


# -------------------------------------------------------------------------------- files of figures


def fingerprint(figure):
    """Returns what identifies a figure: its data to six digits, texts, colours and scales, on which
    all machines agree; not the fonts or the version of matplotlib that draw them."""
    content = [figure.get_size_inches().tolist()]
    for axes in figure.axes:
        content += [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()]
        content += [axes.get_xscale(), axes.get_yscale()]
        content += [getattr(axis.get_major_formatter(), "seq", "") for axis in (axes.xaxis, axes.yaxis)]
        for line in axes.lines:
            look = line.get_color(), line.get_linestyle(), line.get_marker(), line.get_label()
            content += [*look, digits_of(line.get_xdata()), digits_of(line.get_ydata())]
        for patch in axes.patches:
            content += [digits_of(patch.get_bbox().bounds), digits_of(patch.get_facecolor())]
        for collection in axes.collections:  # error bars, bands
            content += [digits_of(path.vertices) for path in collection.get_paths()]
        content += [(text.get_text(), digits_of(text.xy)) for text in axes.texts]
    return f"make_results.py {hashlib.sha256(repr(content).encode()).hexdigest()}"


def digits_of(values):
    """Returns numbers as text of six digits each."""
    return [f"{value:.6g}" for value in np.asarray(values, dtype=float).ravel()]


def read_fingerprint(path):
    """Returns the fingerprint that save() left in a PNG file, None if there is none."""
    try:
        with PIL.Image.open(path) as image:
            found = re.search(r"make_results\.py [0-9a-f]{64}", str(image.info.get("Description")))
    except OSError:
        return None
    return found and found[0]


@matplotlib.rc_context({"text.parse_math": False})
def save(figure, path):
    """Writes a figure with its fingerprint, if the file shows anything else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if read_fingerprint(path) != fingerprint(figure):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # of a name, that the font lacks
            figure.savefig(path, metadata={"Description": fingerprint(figure), "Software": None})


# ------------------------------------------------------------------------------------ any training


def style(runs):
    """Returns {run's name: (label of what differs between runs, look)}, the same in all panels."""
    parts = {
        "script": [run.script for run in runs],
        "arch": [run.arch for run in runs],
        "precision": [run.precision for run in runs],
        "devices": [f"{run.devices or '?'} {device_word([run], run.devices)}" for run in runs],
        "batch": [f"-b {run.batch or '?'}" for run in runs],
    }
    varying = [values for values in parts.values() if len(set(values)) > 1]
    labels = [" ".join(each).strip() for each in zip(*varying, strict=True)] or [""] * len(runs)
    colours, looks = shades(len(runs)), {}
    for place, (run, text) in enumerate(zip(runs, labels, strict=True)):
        text = text if text and labels.count(text) == 1 else run.name
        looks[run.name] = {"label": text[:100], "color": colours[place]}
    return looks


def curve(axes, look, x, y, **more):
    """Draws a run's curve; of one value a point."""
    axes.plot(x, y, **{"marker": "" if len(x) > 1 else "o", "linewidth": 1.5, **look, **more})


def study(runs, io=None):
    """Compares runs: what they reach over epochs and over time, how fast they are, what they read;
    `io` is a file system's counters."""
    looks, tags = style(runs), {"Top1": "top-1, %", "Accuracy": "accuracy, %"}
    tags |= {"Perplexity": "perplexity", "Loss": "loss"}
    panels = []  # (what draws it, the runs that it shows)
    for tag, name in tags.items():
        shown = [run for run in runs if run.learns and f"{tag}/val" in run.series]
        panels.append((over_epochs, shown, tag, name))
    judged = [run for run in runs if run.learns and run.measure in ("Top1", "Accuracy")]
    panels.append((over_time, judged))
    panels.append((rates, [run for run in runs if run.throughput and run.devices]))
    panels.append((waits, [run for run in runs if "Data/wait" in run.series]))
    panels.append((reads, [run for run in runs if "IO/read_MBps" in run.series]))
    panels = [each for each in panels if each[1]]
    models = [
        (scaling, f"{file_of(script, members) or 'all'}: ")
        for script, members in by_script(runs).items()
        if len({run.group for run in members}) == 1 and (scaling := study_scaling(members)[1])
    ]
    count = len(panels) + len(models) + (2 if io else 0)
    if not count:
        return None
    figure, axes = start(count, 3.4)
    for each, (draw, shown, *more) in zip(axes, panels, strict=False):
        draw(each, shown, looks, *more)
    legend(axes[0])
    for each, (scaling, begin) in zip(axes[len(panels) :], models, strict=False):
        draw_model(each, scaling, begin)
    if io:
        draw_io(axes[-2:], io)
    return figure


def over_epochs(axes, runs, looks, tag, name):
    """Draws a tag over epochs; training's is dashed."""
    for run in runs:
        for part, more in ("val", {}), ("train", {"linestyle": "--", "label": "_"}):
            if (series := run.series.get(f"{tag}/{part}")) is not None:
                curve(axes, looks[run.name], series.step, series.value, **more)
    label(axes, "epoch", f"{name} (dashed: training)")


def over_time(axes, runs, looks):
    """Draws validation's accuracy over training time, and the accuracy that is desired."""
    hours = max(run.training_seconds for run in runs) > 7200
    for run in runs:
        series = run.series[f"{run.measure}/val"]
        curve(axes, looks[run.name], series.seconds / (3600 if hours else 60), series.value)
    for desired in {run.desired for run in runs if run.desired}:
        axes.axhline(100 * desired, color=GREY, linewidth=1)
        note(axes, 0, 100 * desired, f"desired: {100 * desired:g} %", (2, 2))
    label(axes, "hours" if hours else "minutes", "validation accuracy, %")


def rates(axes, runs, looks):
    """Draws images/s against devices with what ideal scaling would give; bars where all have one
    number of devices."""
    sizes, rate = sorted({run.devices for run in runs}), rate_word(runs)
    if len(sizes) == 1:
        runs = runs[:100]
        names, means = [looks[run.name]["label"] for run in runs], [run.throughput[0] for run in runs]
        bars(axes, names, means, [looks[run.name]["color"] for run in runs], map("{:,.0f}".format, means), rate)
        return
    for group in {run.group for run in runs}:
        same = [run for run in runs if run.group == group]
        if base := baseline(same):
            span = np.array([base.devices, max(run.devices for run in same)])
            axes.plot(span, base.throughput[0] * span / base.devices, color=GREY, linestyle=":")
        for run in same:
            axes.plot(run.devices, run.throughput[0], marker="o", color=looks[run.name]["color"])
            if base and run is not base and len(runs) <= 40:
                note(axes, run.devices, run.throughput[0], f"{100 * efficiency(run, same):.0f} %")
    word = f"number of {device_word(runs)}"
    label(axes, word, f"{rate} (dotted: ideal)", logx=True, logy=True, xticks=sizes)


def waits(axes, runs, looks):
    """Draws the share of an epoch in which runs waited for data."""
    for run in runs:
        series = run.series["Data/wait"]
        curve(axes, looks[run.name], series.step, 100 * series.value)
    label(axes, "epoch", "waiting for data, % of the epoch")


def reads(axes, runs, looks):
    """Draws what runs read over time."""
    for run in runs:
        series = run.series["IO/read_MBps"]
        curve(axes, looks[run.name], series.seconds / 60, series.value)
    label(axes, "minutes", "read, MB/s")
    axes.set_ylim(bottom=0)


def draw_io(axes, io):
    """Draws a file system's bandwidth and reads/s over minutes."""
    (minutes, read), (others, calls) = io
    axes[0].plot(minutes, read / 1e9, color=DARK)
    label(axes[0], "minutes", "GB/s", f"{np.nanmax(read) / 1e9:.1f} GB/s are read at most")
    axes[1].plot(others, calls / 1e3, color=DARK)
    label(axes[1], "minutes", "1,000 reads/s", f"{np.nanmax(calls):,.0f} reads/s at most")
    for each in axes:
        each.set_ylim(bottom=0)


def io(counters):
    """A file system's counters."""
    figure, axes = start(2)
    draw_io(axes, counters)
    return figure


def model(scaling):
    """The scaling model of a study."""
    figure, (axes,) = start(1)
    draw_model(axes, scaling)
    return figure


def draw_model(axes, scaling, begin=""):
    """Draws a scaling model: its fits, their continuation by a decade, and its 95 % band."""
    fit, small, large, model = scaling
    runs = [*small, *large]
    sizes, word, last = sorted({run.devices for run in runs}), device_word(runs), runs[-1]
    strong = len({run.global_batch for run in runs}) == 1  # the same global batch for all
    most = min(10 * sizes[-1], last.global_batch) if strong else 10 * sizes[-1]
    x = np.geomspace(sizes[0], max(most, sizes[-1]), 60)
    images = last.global_batch / (x if strong else last.devices)
    y = images * x / model.predict(x, images)
    ideal = y[0] * x / x[0]
    errors = prediction_errors(fit, large)
    fitted = f"fitted on {small[0].devices} to {small[-1].devices}"
    axes.plot(x, images * x / fit.predict(x, images), color=TEAL, linestyle="--", label=fitted)
    axes.plot(x, y, color=TEAL, label="fitted on all")
    axes.plot(x, ideal, color=GREY, linestyle=":", label="ideal")
    points = [run.devices for run in runs], [run.throughput[0] for run in runs]
    axes.plot(*points, color=DARK, marker="o", linestyle="none", label="measured")
    ylabel = rate_word(runs)
    if model.spare > 1:  # Student's t of one spare run knows nothing
        width = np.maximum(model.limits(x, images), np.abs(errors).max())
        high = np.where(width < 1, y / (1 - np.minimum(width, 0.99)), np.inf)
        high = np.maximum(y, np.minimum(high, ideal))
        axes.fill_between(x, y / (1 + width), high, color=TEAL, alpha=0.15, linewidth=0)
        ylabel += " (shaded: 95 % band)"
    way = "high" if errors[-1] > 0 else "low"
    title = f"{begin}Fitted on up to {small[-1].devices} {word}, the model is "
    title += f"{100 * abs(errors[-1]):.0f} % too {way} on {sizes[-1]}"
    ticks = [2**n for n in range(11) if sizes[0] <= 2**n <= x[-1]]
    label(axes, word, ylabel, title, logx=True, logy=True, xticks=ticks)
    legend(axes)


# -------------------------------------------------------------------------------------- the cluster


def accuracy(cluster):
    """Validation top-1 of a cluster's runs over epochs, and over hours."""
    figure, axes = start(2)
    tops = [run.values("Top1/val").max() for run in cluster]
    first, *_, last = complete(cluster)
    for run, colour in zip(cluster, shades(len(cluster)), strict=True):
        series, name = run.series["Top1/val"], f"{run.devices} GPUs"
        axes[0].plot(series.step, series.value, color=colour, label=name)
        axes[1].plot(series.seconds / 3600, series.value, color=colour)
        hours = series.seconds.iat[-1] / 3600
        axes[1].annotate(
            str(run.devices),
            (hours, series.value.iat[-1]),
            xytext=(0, 5),
            textcoords="offset points",
            ha="center",
            color=colour,
            fontsize=9,
        )
    span = f"{cluster[0].devices} to {cluster[-1].devices} GPUs"
    title = f"{min(tops):.1f} to {max(tops):.1f} % top-1 on {span}"
    label(axes[0], "epoch", "validation top-1, %", title)
    legend(axes[0])
    hours = [run.training_seconds / 3600 for run in (last, first)]
    title = f"{last.devices} GPUs take {hours[0]:.1f} hours, {first.devices} take {hours[1]:.0f}"
    label(axes[1], "hours", "validation top-1, %", title, logx=True)
    return figure


def top1_top5(cluster):
    """Training's and validation's top-1 and top-5 on most and fewest GPUs."""
    figure, panels = start(2)
    ends = (cluster[0], DARK), (cluster[-1], ORANGE)
    for axes, top in zip(panels, ("Top1", "Top5"), strict=True):
        for run, colour in ends:
            for part, what, line in ("train", "training", "--"), ("val", "validation", "-"):
                series, name = run.series[f"{top}/{part}"], f"{run.devices} GPUs, {what}"
                axes.plot(series.step, series.value, color=colour, linestyle=line, label=name)
        name = top.replace("Top", "top-")
        best = [f"{run.values(f'{top}/val').max():.1f} % on {run.devices}" for run, _ in ends]
        label(axes, "epoch", f"{name}, %", f"{name}: {best[0]} GPUs, {best[1]}")
    legend(panels[0])
    return figure


def scaling(cluster):
    """Images/s and training time against the number of GPUs."""
    figure, (left, right) = start(2)
    base, last, sizes = cluster[0], cluster[-1], [run.devices for run in cluster]
    rates, spreads = zip(*(run.throughput for run in cluster), strict=True)
    ideal = [base.throughput[0] * size / base.devices for size in sizes]
    left.plot(sizes, ideal, color=GREY, linestyle=":", label="ideal")
    left.errorbar(sizes, rates, spreads, color=TEAL, marker="o", capsize=3, label="measured")
    for run in cluster[1:]:
        note(left, run.devices, run.throughput[0], f"{100 * efficiency(run, cluster):.0f} %")
    share = f"{100 * efficiency(last, cluster):.0f} % of ideal"
    title = f"{rates[-1]:,.0f} images/s on {sizes[-1]} GPUs, {share}"
    label(left, "GPUs", "images/s", title, logx=True, logy=True, xticks=sizes)
    legend(left)
    whole = complete(cluster)
    sizes, hours = [run.devices for run in whole], [run.training_seconds / 3600 for run in whole]
    right.plot(sizes, hours, color=TEAL, marker="o")
    for run, each in zip(whole, hours, strict=True):
        note(right, run.devices, each, clock(run.training_seconds), (6, 4))
    odd = [f"of {run.devices}, ended at epoch {run.epochs}" for run in cluster if run not in whole]
    xlabel = f"GPUs (not shown: {'; '.join(odd)})" if odd else "GPUs"
    title = f"{whole[-1].epochs} epochs in {clock(whole[-1].training_seconds)} on {sizes[-1]} GPUs"
    label(right, xlabel, "hours", title, logx=True, logy=True, xticks=sizes)
    return figure


# ------------------------------------------------------------------------- studies of this project


def parity(rows):
    """Differences of losses, step by step."""
    figure, (axes,) = start(1)
    for batchnorm, colour in (False, TEAL), (True, ORANGE):
        same = [row for row in rows if row["batchnorm"] == batchnorm]
        for row in same:
            name = f"{row['run'].arch}, BatchNorm" if batchnorm else row["run"].arch
            name = name if row is same[-1] else "_"
            axes.plot(row["steps"], np.maximum(row["apart"], 1e-9), color=colour, label=name)
    plain = [row for row in rows if not row["batchnorm"]]
    largest = max((max(row["apart"]) for row in plain), default=0)
    title = f"{len(plain)} ways, without BatchNorm: losses within {largest:.0e}"
    label(axes, "step", "relative difference", title, logy=True)
    legend(axes)
    return figure


def in_short(added):
    """Returns what was added to a recipe, or how many options where it is more than one."""
    count = added.count("--")
    return f"{count} options together" if count > 1 else added


def recipe(recipe):
    """What each component gains, and the accuracy of some runs over time."""
    figure, (left, right) = start(2)
    gains = recipe.gains | {"plain": [final(run) - recipe.base for run in recipe.plain]}
    names = sorted(gains, key=lambda added: np.mean(gains[added]))
    left.axvline(0, color=GREY, linestyle=":")
    for place, added in enumerate(names):  # a dot a seed
        left.plot(gains[added], [place] * len(gains[added]), "o", color=TEAL)
    left.set_yticks(range(len(names)), [in_short(added) for added in names])
    *_, best = recipe.gains
    title = f"{in_short(best)}: {np.mean(gains[best]):+.1f} points"
    label(left, "top-1 against plain, points", "", title)
    shown = {f"plain: {recipe.base:.1f} %": recipe.plain[0]}
    shown[f"{in_short(best)}: {mean_final(recipe.found[best]):.1f} %"] = recipe.found[best][0]
    shown |= {f"{size_of(run)}: {final(run):.1f} %": run for run in recipe.longer[:2]}
    for (name, run), colour in zip(shown.items(), (DARK, TEAL, ORANGE, BLUE), strict=False):
        series = run.series["Top1/val"]
        right.plot(series.seconds / 60, series.value, color=colour, label=name)
    highest = max(shown.values(), key=final)
    title = f"{final(highest):.1f} % in {highest.training_seconds / 60:.0f} minutes"
    label(right, "minutes of training", "validation top-1, %", title, logx=bool(recipe.longer))
    legend(right)
    return figure


def transfer(transfer):
    """What weights of other classes are worth, by images a class and over epochs."""
    figure, (left, right) = start(2)
    least, shots = min(transfer.few), [*transfer.few]
    for way, colour in zip(WAYS, (DARK, TEAL, ORANGE), strict=True):
        tests = [transfer.few[each][way].end["test_top1"] for each in shots]
        left.plot(shots, tests, color=colour, marker="o", label=way)
        series = transfer.few[least][way].series["Top1/val"]
        right.plot(series.step, series.value, color=colour)
    tests = {way: transfer.few[least][way].end["test_top1"] for way in WAYS}
    best = max(WAYS, key=tests.get)
    title = f"{least} images a class: {tests[best]:.0f} % {best}, {tests[WAYS[0]]:.0f} % {WAYS[0]}"
    label(left, "images a class", "top-1 on test/, %", title, logx=True, xticks=shots)
    label(right, "epoch", "validation top-1, %", f"{least} images a class, over epochs")
    legend(left)
    return figure


# ------------------------------------------------------------------------------------- benchmarks


def speed(speed, titles):
    """Images/s beside others; `titles` are the panels'."""
    figure, panels = start(len(speed), 3.4)
    for axes, (kind, each) in zip(panels, speed.items(), strict=True):
        rows = sorted(each.rows.values(), key=lambda row: -row["median"])
        # Those that read other images, smaller or decoded before, are left out.
        odd = r"pixels|raw" if kind == "loading" else r"_(dp|ddp|ddp_apex|horovod)\.py"
        rows = [row for row in rows if not re.search(odd, row["name"])]
        names, texts = [], []
        for row in rows:
            name = row["name"].replace(" reference preset", "")
            name = name.replace("Pillow", "without nvImageCodec")
            name = name.replace("full-size JPEGs", "JPEGs of quality 90")
            names.append(textwrap.fill(name, 28, break_on_hyphens=False))
            times = f"{row['median'] / each.base['median']:.1f} x"
            texts.append(f"{significant(row['median'])}  ({times})  {row.get('batches', '')}".strip())
        own = [re.match("this project|imagenet_", row["name"]) for row in rows]
        colours = [TEAL if mine else "#b0b0b0" for mine in own]
        medians = [row["median"] for row in rows]
        title = textwrap.fill(titles[kind], 46, break_on_hyphens=False)
        bars(axes, names, medians, colours, texts, f"images/s, medians; {each.where}", title)
    return figure


# Of ways to exchange gradients, and of schedules of a pipeline.
WAY_COLOURS = {"gather": ORANGE, "all_reduce": DARK, "async": BLUE, "bucket": TEAL, "ring": GREEN}
WAY_COLOURS |= {"ddp": GREY, "gpipe": DARK, "1f1b": TEAL}


def error_bars(rows, change=lambda value: value):
    """Returns how far the least and the largest value of rows are from their medians, (2, n)."""
    ends = [sorted((change(min(row["values"])), change(max(row["values"])))) for row in rows]
    return [
        [change(row["median"]) - low for row, (low, _) in zip(rows, ends, strict=True)],
        [high - change(row["median"]) for row, (_, high) in zip(rows, ends, strict=True)],
    ]


def exchange(exchange, cores):
    """Bytes and speed of ways to average gradients, against ranks."""
    figure, (left, right) = start(2)
    for place, (way, rows) in enumerate(exchange.rows.items()):
        ranks = np.array([int(row["ranks"]) for row in rows])
        look = {"color": WAY_COLOURS.get(way, GREY), "marker": "o", "label": way}
        left.plot(ranks, [row["busiest link, MB/step"] for row in rows], **look)
        ratios = [exchange.alone / row["median"] for row in rows]
        beside = ranks + 0.04 * place  # bars side by side
        spread = error_bars(rows, lambda value: exchange.alone / value)
        right.plot([1, *beside], [1, *ratios], **look)
        right.errorbar(beside, ratios, spread, fmt="none", ecolor=look["color"], capsize=3)
    busy = {way: rows[-1]["busiest link, MB/step"] for way, rows in exchange.rows.items()}
    least, ticks = min(busy, key=busy.get), ranks.tolist()
    title = f"gather: {busy['gather']:.0f} MB a step on one link, {least} {busy[least]:.0f}"
    label(left, "ranks", "busiest link, MB/step", title, xticks=ticks)
    left.set_ylim(bottom=0)
    legend(left)
    best = min(exchange.rows, key=lambda way: exchange.rows[way][-1]["median"])
    ratio = exchange.alone / exchange.rows[best][-1]["median"]
    title = f"{exchange.ranks} ranks on {cores} cores: {best} has {ratio:.2f} of one's"
    label(right, "ranks", "images/s, of one rank's", title, xticks=[1, *ticks])
    right.set_ylim(bottom=0)
    return figure


def ring(ranks=4):
    """The first turns of `_add_up_in_a_ring()` of imagenet_exchange.py, for docs/lessons.md: the
    gradients of which ranks each chunk is the sum of, and which chunk each rank sends."""
    chunks = [[[rank] for _ in range(ranks)] for rank in range(ranks)]  # the ranks that are in
    colours, (figure, panels) = ["#b0b0b0", GREEN, TEAL, DARK], start(ranks, 3.4)
    titles = ["each rank sends its own chunk", *["the sum so far"] * (ranks - 2)]
    titles += ["whole sums go round"]
    for turn, axes in enumerate(panels):
        before = [[list(within) for within in mine] for mine in chunks]
        for rank in range(ranks):
            for chunk, within in enumerate(before[rank]):
                colour = colours[len(within) * len(colours) // ranks - 1]
                axes.plot(chunk, -rank, marker="s", color=colour)
                note(axes, chunk, -rank, " + ".join(map(str, sorted(within))), (6, -3))
            sent = (rank - turn) % ranks
            begins = [-rank - 0.15] + ([0.85] if rank == ranks - 1 else [])  # to rank 0, from above
            for begin in begins:
                axes.plot([sent, sent], [begin, begin - 0.6], color=ORANGE)
                axes.plot(sent, begin - 0.6, marker="v", color=ORANGE)
            taken = (rank - turn - 1) % ranks
            own = before[rank][taken] if turn < ranks - 1 else []
            chunks[rank][taken] = before[rank - 1][taken] + own
        label(axes, "chunk", "", f"Turn {turn + 1} of {2 * (ranks - 1)}: {titles[turn]}")
        axes.set_xticks(range(ranks))
        axes.set_yticks([-rank for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
    return figure


def bubble(rows):
    """Idle time of pipeline stages against micro-batches."""
    figure, (axes,) = start(1)
    x = np.arange(1, 33)
    for stages, colour in (2, DARK), (4, BLUE), (8, GREY):
        idle = 100 * (stages - 1) / (x + stages - 1)
        line = "-" if stages == 2 else ":"
        axes.plot(x, idle, color=colour, linestyle=line, label=f"{stages} stages, formula")
    for place, way in enumerate(dict.fromkeys(row["way"] for row in rows)):
        mine = [row for row in rows if row["way"] == way]
        beside = [int(row["micro-batches"]) * 1.06**place for row in mine]
        medians, look = [row["median"] for row in mine], {"color": WAY_COLOURS.get(way, GREY)}
        axes.errorbar(beside, medians, error_bars(mine), fmt="o", capsize=3, **look)
        note(axes, beside[-1], medians[-1], way, (7, -3))
    ends = [pick(rows, key=lambda row: int(row["micro-batches"])) for pick in (min, max)]
    few, many = (f"{row['median']:.0f} % with {row['micro-batches']}" for row in ends)
    title = f"Idle time of two stages: {few}, {many} micro-batches"
    label(axes, "micro-batches", "idle, %", title, logx=True, xticks=[1, 2, 4, 8, 16, 32])
    axes.set_ylim(bottom=0)
    legend(axes)
    return figure
