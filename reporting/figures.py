"""The figures: what is in them, as pandas series, and how matplotlib draws it."""

import hashlib
import math
import re
import textwrap
import warnings

import matplotlib
import numpy as np
import pandas as pd
import PIL.Image
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from reporting import findings
from reporting.findings import (
    WAYS,
    at_equal_options,
    complete,
    final,
    rows_of,
)
from reporting.scaling import efficiency, prediction_errors
from reporting.tables import clock, device_word, rate_word, significant

# Told apart in grey and by the colour-blind.
DARK, TEAL, ORANGE, BLUE = "#440154", "#21918c", "#d95f02", "#3b528b"
GREY, LIGHT = "#777777", "#b0b0b0"


def panel(curves, title, xlabel, ylabel, **look):
    """Returns a panel for draw(), as data: curves {label: series}, of which those named "_..." are
    in no legend, and as needed their colors and styles, logx, logy, zero, xticks, yticks, notes
    [(x, y, text)], spans [(x, low, high, colour)], a band (x, low, high), or texts of bars; and a
    caption, which stands once below all panels."""
    curves = {name: pd.Series(each).astype(float) for name, each in curves.items()}
    return {"curves": curves, "title": title, "xlabel": xlabel, "ylabel": ylabel, **look}


def curve(run, tag, unit=None):
    """Returns a tag's values by step, or by training time in `unit` seconds."""
    series = run.series[tag]
    return pd.Series(series.value.array, series.seconds / unit if unit else series.step)


def shades(count):
    """Returns colours from dark to light."""
    picked = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, max(2, count)))
    return [matplotlib.colors.to_hex(each) for each in picked][:count]


def fingerprint(panels):
    """Returns what identifies a figure: its data to six digits, on which all machines agree, and
    what is written in it; not the fonts or the version of matplotlib that draw it."""

    def text(value):
        if isinstance(value, dict):
            return [(name, text(each)) for name, each in value.items()]
        if isinstance(value, pd.Series):
            return value.to_csv(float_format="%.6g")
        if isinstance(value, (list, tuple, np.ndarray)):
            return [text(each) for each in value]
        return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)

    return f"make_results.py {hashlib.sha256(repr(text(panels)).encode()).hexdigest()}"


def read_fingerprint(path):
    """Returns the fingerprint that draw() left in a PNG file, None if there is none."""
    try:
        with PIL.Image.open(path) as image:
            found = re.search(r"make_results\.py [0-9a-f]{64}", str(image.info.get("Description")))
    except OSError:
        return None
    return found and found[0]


@matplotlib.rc_context({"text.parse_math": False})
def draw(panels, path):
    """Draws panels side by side, or two by two, into a PNG file."""
    columns, rows = min(2, len(panels)), math.ceil(len(panels) / 2)
    size = 6.2 * columns, (4 if rows == 1 else 3.4) * rows
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    for number, each in enumerate(panels, 1):
        draw_panel(figure.add_subplot(rows, columns, number), each)
    if caption := next((each["caption"] for each in panels if each.get("caption")), ""):
        lines = textwrap.fill(caption, 85 * columns, break_on_hyphens=False)
        figure.supxlabel(lines, fontsize=9, color=GREY)
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # of a name, that the font lacks
        figure.savefig(path, metadata={"Description": fingerprint(panels), "Software": None})


def draw_panel(axes, panel):
    """Draws a panel."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel=panel["xlabel"], ylabel=panel["ylabel"])
    width = 46 if "texts" in panel else 54  # beside names of bars
    title = textwrap.fill(panel["title"], width, break_on_hyphens=False)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    colours = panel.get("colors") or shades(len(panel["curves"]))
    if "texts" in panel:  # bars, the first on top
        (lengths,) = panel["curves"].values()
        drawn = axes.barh(range(len(lengths)), lengths, color=colours)
        axes.bar_label(drawn, panel["texts"], padding=4, fontsize=9)
        names = [textwrap.fill(name[:100], 28, break_on_hyphens=False) for name in lengths.index]
        axes.set_yticks(range(len(names)), names, fontsize=9)
        axes.set(xlim=(0, 1.4 * lengths.max()), ylim=(len(names) - 0.5, -0.5), xticks=[])
        return
    axes.grid(alpha=0.25, linewidth=0.5)
    styles = panel.get("styles") or ["-"] * len(colours)
    for (name, each), colour, style in zip(panel["curves"].items(), colours, styles, strict=True):
        style = "o" if len(each) == 1 and style == "-" else style
        axes.plot(each.index, each, style, color=colour, label=name[:100], markersize=5)
    for x, low, high, colour in panel.get("spans", []):
        axes.vlines(x, low, high, color=colour)
    if "band" in panel:
        axes.fill_between(*panel["band"], color=TEAL, alpha=0.15, label="95 % band")
    for axis in (axes.xaxis, axes.yaxis):
        if panel.get(f"log{axis.axis_name}"):
            axes.set(**{f"{axis.axis_name}scale": "log"})
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1e4 else (1,)))
            axis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")
            axis.set_minor_locator(NullLocator())
    if panel.get("zero"):
        axes.set_ylim(bottom=0)
    if panel["xlabel"] in ("epoch", "step"):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if "xticks" in panel:
        axes.set_xticks(panel["xticks"], [f"{tick:,}" for tick in panel["xticks"]])
    if "yticks" in panel:
        axes.set_yticks(*panel["yticks"])
    for x, y, text in panel.get("notes", []):
        axes.annotate(text, (x, y), (6, -3), textcoords="offset points", fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    if labels:  # a legend of more names would cover the curves
        axes.legend(handles[:16], labels[:16], fontsize=9, framealpha=0.6)


# ------------------------------------------------------------------------------------ any training

OF_RUNS = [  # tag, what it is drawn against, how it is called; of training and of validation
    ("Top1/val", "epoch", "validation top-1, %"),
    ("Accuracy/val", "epoch", "validation accuracy, %"),
    ("Perplexity/val", "epoch", "validation perplexity"),
    ("Loss/val", "epoch", "validation loss"),
    ("Loss/train", "epoch", "training loss"),
    ("Top1/val", "minutes", "validation top-1, %"),
    ("Accuracy/val", "minutes", "validation accuracy, %"),
    ("Data/wait", "epoch", "waiting for data, share of the epoch"),
    ("IO/read_MBps", "minutes", "read, MB/s"),
]


def study(runs, counters=None):
    """Compares runs: what they reach over epochs and over time, what they wait for and read, how
    fast they are; `counters` are a file system's."""
    words = [
        [run.script, run.arch, run.precision, f"{run.devices} x -b {run.batch}"] for run in runs
    ]
    varying = [place for place in range(4) if len({each[place] for each in words}) > 1]
    names = [" ".join(each[place] for place in varying) for each in words]
    own = [run.name.removeprefix(f"{run.study}/") for run in runs]
    every = [
        (name if name and names.count(name) == 1 else folder, run, colour)
        for name, folder, run, colour in zip(names, own, runs, shades(len(runs)), strict=True)
    ]
    panels = []
    for tag, xlabel, ylabel in OF_RUNS:
        shown = [each for each in every if tag in each[1].series]
        shown = [each for each in shown if each[1].learns or tag.startswith(("Data", "IO"))]
        begin, unit = "_" if panels else "", 60 if xlabel == "minutes" else None  # one legend
        curves = {begin + name: curve(run, tag, unit) for name, run, _ in shown}
        colours = [colour for *_, colour in shown]
        panels += [panel(curves, "", xlabel, ylabel, colors=colours)] if shown else []
    if fast := [each for each in every if each[1].rate]:
        rates = pd.Series({name: run.rate for name, run, _ in fast})
        look = {"texts": [f"{rate:,.0f}" for rate in rates], "colors": [each[2] for each in fast]}
        panels.append(panel({"": rates}, "", rate_word(runs), "", **look))
    return panels + (io(counters) if counters else [])


def reached(runs):
    """What runs of a study reach over epochs and over time, for a page that has their speed in a
    table; all of study() if they log no accuracy."""
    panels = study(runs)
    names = "validation top-1, %", "validation accuracy, %"
    shown = [each for each in panels if each["ylabel"] in names]
    if [each["xlabel"] for each in shown] != ["epoch", "minutes"]:
        return panels
    over_epochs, over_time = shown
    ends = [values.iat[-1] for values in over_epochs["curves"].values()]
    over_epochs["title"] = f"{min(ends):.1f} to {max(ends):.1f} % after the last epoch"
    minutes = {name[1:]: values.index[-1] for name, values in over_time["curves"].items()}
    first, last = (pick(minutes, key=minutes.get) for pick in (min, max))
    took = f"{first} takes {minutes[first]:.1f} minutes"
    over_time["title"] = f"{took}, {last} {minutes[last]:.1f}" if first != last else took
    return shown


def io(counters):
    """A file system's bandwidth and reads/s over minutes."""
    (minutes, read), (others, calls) = counters
    most = findings.most_read(counters)
    rates, reads = pd.Series(read / 1e9, minutes), pd.Series(calls / 1e3, others)
    panels = [
        panel({"_": rates}, f"{most[0]:.1f} GB/s are read at most", "minutes", "GB/s", zero=True)
    ]
    title = f"{most[1]:,.0f} reads/s at most"
    return [*panels, panel({"_": reads}, title, "minutes", "1,000 reads/s")]


# -------------------------------------------------------------------------------------- the cluster


def model(scaling):
    """A scaling model: its fits, up to twice the largest measured size, and its 95 % band."""
    fit, small, large, model = scaling
    runs = sorted([*small, *large], key=lambda run: run.devices)
    least, last, word = runs[0].devices, runs[-1], device_word(runs)
    strong = len({run.global_batch for run in runs}) == 1  # the same global batch for all
    most = min(2 * last.devices, last.global_batch) if strong else 2 * last.devices
    x = np.geomspace(least, max(most, last.devices), 60)
    images = last.global_batch / (x if strong else last.devices)
    y, of_small = (images * x / each.predict(x, images) for each in (model, fit))
    ideal, errors = y[0] * x / x[0], prediction_errors(fit, large)
    curves = {f"fitted on {small[0].devices} to {small[-1].devices}": pd.Series(of_small, x)}
    curves |= {"fitted on all": pd.Series(y, x), "ideal": pd.Series(ideal, x)}
    curves["measured"] = pd.Series({run.devices: run.rate for run in runs})
    off = f"{100 * abs(errors[-1]):.0f} % too {'high' if errors[-1] > 0 else 'low'}"
    title = f"Fitted on up to {small[-1].devices} {word}, the model is {off} on {last.devices}"
    look = {"colors": [TEAL, TEAL, GREY, DARK], "styles": ["--", "-", ":", "o"]}
    look |= {"logx": True, "logy": True}
    look["xticks"] = [2**n for n in range(11) if least <= 2**n <= x[-1]]
    if model.spare > 1:  # Student's t of one spare run knows nothing
        width = np.maximum(model.limits(x, images), np.abs(errors).max())
        high = np.where(width < 1, y / (1 - np.minimum(width, 0.99)), np.inf)
        look["band"] = x, y / (1 + width), np.maximum(y, np.minimum(high, ideal))
    return [panel(curves, title, word, rate_word(runs), **look)]


def accuracy(cluster):
    """Validation top-1 of a cluster's runs over epochs, and over hours."""
    tops, whole = [final(run) for run in cluster], complete(cluster)
    epochs = {f"{run.devices} GPUs": curve(run, "Top1/val") for run in cluster}
    hours = {f"_{run.devices}": curve(run, "Top1/val", 3600) for run in cluster}
    span = f"{cluster[0].devices} to {cluster[-1].devices} GPUs"
    title = f"{min(tops):.1f} to {max(tops):.1f} % top-1 after the last epoch, on {span}"
    panels = [panel(epochs, title, "epoch", "validation top-1, %")]
    first, last = whole[0], whole[-1]
    title = f"{last.devices} GPUs take {last.training_seconds / 3600:.1f} hours"
    if first is not last:
        title += f", {first.devices} take {first.training_seconds / 3600:.0f}"
    return [*panels, panel(hours, title, "hours", "validation top-1, %", logx=True)]


def scaling(cluster):
    """Images/s and training time against the number of GPUs."""
    base, last, whole = cluster[0], cluster[-1], complete(cluster)
    curves = {
        "ideal": pd.Series(
            {run.devices: base.rate * run.devices / base.devices for run in cluster}
        ),
        "measured": pd.Series({run.devices: run.rate for run in cluster}),
    }
    shares = [(run, f"{100 * efficiency(run, cluster):.0f} %") for run in cluster]
    look = {"notes": [(run.devices, run.rate, share) for run, share in shares]}
    look |= {"colors": [GREY, TEAL], "styles": [":", "o-"], "logx": True, "logy": True}
    look["spans"] = [
        (run.devices, run.rate - run.spread, run.rate + run.spread, TEAL) for run in cluster
    ]
    title = f"{last.rate:,.0f} images/s on {last.devices} GPUs, {shares[-1][1]} of ideal"
    panels = [
        panel(curves, title, "GPUs", "images/s", xticks=[run.devices for run in cluster], **look)
    ]
    odd = [f"of {run.devices}, ended at epoch {run.epochs}" for run in cluster if run not in whole]
    xlabel = f"GPUs (not shown: {'; '.join(odd)})" if odd else "GPUs"
    hours = pd.Series({run.devices: run.training_seconds / 3600 for run in whole})
    times = [clock(run.training_seconds) for run in whole]
    look = {"notes": [*zip(hours.index, hours, times, strict=True)], "styles": ["o-"]}
    look |= {"colors": [TEAL], "logx": True, "logy": True, "xticks": [*hours.index]}
    title = f"{whole[-1].epochs} epochs in {times[-1]} on {whole[-1].devices} GPUs"
    return [*panels, panel({"_": hours}, title, xlabel, "hours", **look)]


# ------------------------------------------------------------------------- studies of this project


def parity(rows):
    """The largest difference of losses in each step, of models with and without BatchNorm."""
    curves, plain = {}, [row["largest"] for row in rows if not row["batchnorm"]]
    for batchnorm in False, True:
        some = [row for row in rows if row["batchnorm"] == batchnorm]
        for arch in dict.fromkeys(row["run"].arch for row in some):
            apart = [pd.Series(r["apart"], r["steps"]) for r in some if r["run"].arch == arch]
            name = f"{arch}{', BatchNorm' * batchnorm}"
            name += f", largest of {len(apart)} runs" * (len(apart) > 1)
            curves[name] = pd.concat(apart, axis=1).max(axis=1).clip(lower=1e-9)
    look = {"colors": [ORANGE if "BatchNorm" in name else TEAL for name in curves], "logy": True}
    title = f"{len(plain)} ways, without BatchNorm: losses within {max(plain, default=0):.0e}"
    return [panel(curves, title, "step", "relative difference", **look)]


def recipe(recipe):
    """What each component gains, a dot a seed."""
    gains = recipe.gains | {"plain": [final(run) - recipe.base for run in recipe.plain]}
    names = sorted(gains, key=lambda added: np.mean(gains[added]))
    short = {each: f"{each.count('--')} options together" for each in names if each.count("--") > 1}
    best, ticks = short.get(names[-1], names[-1]), [short.get(name, name) for name in names]
    dots = {"_0": pd.Series([-0.5, len(names) - 0.5], [0, 0])}  # a dot a seed
    dots |= {f"_{name}": pd.Series(place, gains[name]) for place, name in enumerate(names)}
    look = {"colors": [GREY] + [TEAL] * len(names), "styles": [":"] + ["o"] * len(names)}
    look["yticks"] = range(len(names)), ticks
    title = f"{best}: {np.mean(gains[names[-1]]):+.1f} points"
    return [panel(dots, title, "validation top-1 against plain, points", "", **look)]


def transfer(transfer):
    """What weights of other classes are worth, by images a class and over epochs."""
    least, colours = min(transfer.few), [DARK, TEAL, ORANGE]
    tests = {
        way: pd.Series({shots: runs[way].end["test_top1"] for shots, runs in transfer.few.items()})
        for way in WAYS
    }
    best = max(WAYS, key=lambda way: tests[way][least])
    ends = f"{tests[best][least]:.0f} % {best}, {tests[WAYS[0]][least]:.0f} % {WAYS[0]}"
    look = {"styles": ["o-"] * 3, "logx": True, "xticks": [*transfer.few], "colors": colours}
    title = f"{least} images a class: {ends}"
    panels = [panel(tests, title, "images a class", "top-1 on test/, %", **look)]
    curves = {f"_{way}": curve(transfer.few[least][way], "Top1/val") for way in WAYS}
    title = f"{least} images a class, over epochs"
    return [*panels, panel(curves, title, "epoch", "validation top-1, %", colors=colours)]


# ------------------------------------------------------------------------------------- benchmarks


def speed(bench):
    """Images/s of loading and of training beside others', of those that were measured."""
    panels = []
    if rows := rows_of(bench, "data_loading"):
        panels.append(loading_bars(rows, bench["data_loading"]))
    if pairs := at_equal_options(bench):
        panels.append(training_bars(pairs, bench))
    return panels


def brief(text):
    """Returns "2.7 x timm" for "2.7 times as fast as timm"."""
    return re.sub(" times as fast( as)?", " x", text)


def loading_bars(rows, benchmark):
    """Images/s of loading JPEGs, compared with batches of the same dtype first."""
    rates, texts, colours = {}, [], []
    for row in sorted(rows, key=lambda row: -row["median"]):
        if re.search("pixels|raw", row["name"]):  # other images, smaller or decoded before
            continue
        name = row["name"].replace("full-size JPEGs", "re-encoded JPEGs")
        name = name.replace(" reference preset", "").replace("Pillow", "without nvImageCodec")
        used = row.get("processor time, ms per image")
        parts = [significant(row["median"]), row.get("batches"), used and f"{used:.1f} ms"]
        rates[name] = row["median"]
        texts.append("  ".join(filter(None, parts)))
        colours.append(TEAL if name.startswith("this project") else LIGHT)
    compared = brief(findings.loading_headline(benchmark))
    title = ": ".join(filter(None, ["Loading JPEGs into uint8 batches", compared]))
    label = f"images/s, medians; ms: processor time per image; {findings.place(benchmark)}"
    return panel({"": rates}, title, label, "", texts=texts, colors=colours)


def training_bars(pairs, bench):
    """Images/s of training, each of this project's bars above the peer's with the same options."""
    rates, texts, benchmark = {}, [], bench["training_resnet18_jpegs"]
    for _, ours, theirs in pairs:
        compared = brief(findings.beside(benchmark, ours["name"], [theirs["name"]]))
        for row, more in (ours, f"  ({compared})"), (theirs, ""):
            precision = "" if "bfloat16" in row["name"] else ", float32"
            rates[row["name"] + precision] = row["median"]
            texts.append(significant(row["median"]) + more)
    title = f"Training ResNet-18 at equal options: {brief(findings.equal(bench))}"
    label = f"images/s, medians; {findings.place(benchmark)}"
    return panel({"": rates}, title, label, "", texts=texts, colors=[TEAL, LIGHT] * len(pairs))


WAY_COLOURS = {"gpipe": DARK, "1f1b": TEAL}  # of schedules of a pipeline


def bubble(rows):
    """Idle time of pipeline stages against micro-batches."""
    x, curves, frame = np.arange(1, 33), {}, pd.DataFrame(rows)
    look = {"logx": True, "xticks": [1, 2, 4, 8, 16, 32], "colors": [DARK, BLUE, LIGHT]}
    look |= {"styles": ["-", "--", "--"], "spans": []}
    for stages in (2, 4, 8):
        idle = 100 * (stages - 1) / (x + stages - 1)
        curves[f"{stages} stages, formula"] = pd.Series(idle, x)
    for place, (way, mine) in enumerate(frame.groupby("way", sort=False)):
        beside = mine["micro-batches"].astype(int) * 1.06**place  # bars side by side
        curves[f"2 stages, {way}"] = pd.Series(mine["median"].array, beside)
        look["colors"].append(WAY_COLOURS[way])
        look["styles"].append("o")
        for at, values in zip(beside, mine["values"], strict=True):
            look["spans"].append((at, min(values), max(values), WAY_COLOURS[way]))
    few, many = frame.iloc[0], frame.loc[frame["micro-batches"].astype(int).idxmax()]
    ends = [f"{row['median']:.0f} % with {row['micro-batches']}" for row in (few, many)]
    title = f"Idle time of two stages: {ends[0]}, {ends[1]} micro-batches"
    return [panel(curves, title, "micro-batches", "idle, %", **look)]
