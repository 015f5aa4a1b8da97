"""Figures: what is in them, as plain data, and how it is drawn."""

import datetime
import hashlib
import inspect
import json
import math
import re
import warnings
from collections import defaultdict
from pathlib import Path

import matplotlib
import matplotlib.colors
import matplotlib.ticker
import numpy as np
import PIL.Image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reporting.scaling import by_script, file_of, prediction_errors, study_scaling

CROWD = 40  # runs whose labels would cover each other
MOST_BARS, MOST_NAMES = 100, 16  # beyond which there are no bars, and a legend has no more entries
LABEL = 100  # characters of a label: a longer one leaves no room to draw in


def style_runs(runs):
    """Gives each run its label, of what differs between runs, and the look it has in all figures:
    colours darken evenly, and marks differ too, so that a grey print is readable."""
    parts = {
        "script": [run.script for run in runs],
        "arch": [run.arch for run in runs],
        "precision": [run.precision for run in runs],
        "devices": [f"{run.devices or '?'} {device_word([run], run.devices)}" for run in runs],
        "batch": [f"-b {run.batch or '?'}" for run in runs],
    }
    varying = [values for values in parts.values() if len(set(values)) > 1]
    labels = [" ".join(each).strip() for each in zip(*varying, strict=True)] or [""] * len(runs)
    colours, marks = shades(len(runs), 0.85), "os^Dv*XP"
    for place, (run, label) in enumerate(zip(runs, labels, strict=True)):
        run.label = (label if label and labels.count(label) == 1 else run.name)[:LABEL]
        run.style = {"color": colours[place], "marker": marks[place % len(marks)]}


def shades(count, lightest=0.8):
    """Returns colours from dark to light, told apart in grey and by the colour-blind."""
    picked = matplotlib.colormaps["viridis"](np.linspace(0, lightest, max(2, count)))
    return [matplotlib.colors.to_hex(each) for each in picked][:count]


def device_word(runs, number=2):
    """Returns what the devices of runs are called, for so many of them."""
    kinds = {run.on_cpu for run in runs}
    word = "device" if len(kinds) > 1 else "process" if True in kinds else "GPU"
    return word if number == 1 else {"process": "processes"}.get(word, f"{word}s")


def rate_word(runs):
    """Returns what the throughput of runs counts."""
    kinds = {run.items for run in runs}
    return f"{kinds.pop() if len(kinds) == 1 else 'items'}/s"


def thin(x, y, most=300):
    """Returns x and y (n,), means over neighbours where there are more than `most`."""
    if len(x) <= most:
        return x, y
    starts = np.unique(np.linspace(0, len(x), most, endpoint=False).astype(int))
    counts = np.diff(np.append(starts, len(x)))
    return np.add.reduceat(x, starts) / counts, np.add.reduceat(y, starts) / counts


def curve(run, x, y, **look):
    """Returns a line of a run for draw()."""
    style = {**run.style, "marker": "" if len(x) > 1 else run.style["marker"], "label": run.label}
    return {"x": x, "y": y, **style, **look}


def over_epochs(runs, tag, ylabel):
    """Returns the panel of a tag over epochs; training's, if there is such, is dashed."""
    lines = []
    for part, look in ("val", {}), ("train", {"linestyle": "--", "label": ""}):
        shown = [run for run in runs if f"{tag}/{part}" in run.series and run.learns]
        both = [(run, run.series[f"{tag}/{part}"]) for run in shown]
        lines += [curve(run, series.steps, series.values, **look) for run, series in both]
    return {"xlabel": "epoch", "ylabel": f"{ylabel} (dashed: training)", "lines": lines}


def groups_of(runs, study=False):
    """Returns {what they share: runs that may be compared}, of one study each if asked."""
    groups = defaultdict(list)
    for run in runs:
        groups[(run.study if study else "", run.group)].append(run)
    return groups


def rate_panel(runs):
    """Returns the panel of images/s against the number of devices, and what ideal scaling from the
    base run would give; bars where all have one number."""
    shown = [run for run in runs if run.devices and run.throughput]
    sizes = sorted({run.devices for run in shown})
    rate = rate_word(shown)
    panel, lines, notes = {"xlabel": rate, "ylabel": "", "lines": []}, [], []
    if len(sizes) == 1 and 1 < len(shown) <= MOST_BARS:
        looks = [(run.label, run.throughput[0], run.style["color"]) for run in shown]
        panel["bars"] = [(*look, f"{look[1]:,.0f}") for look in looks]
    if len(sizes) < 2:
        return panel
    for group in groups_of(shown).values():
        base = baseline(group)
        span = np.array([base.devices, max(run.devices for run in group)])
        style = {"color": "#888888", "linestyle": ":", "label": ""}
        lines.append({"x": span, "y": base.throughput[0] * span / base.devices, **style})
        for script in sorted({run.script for run in group}):
            same = [run for run in group if run.script == script]
            x, y = [run.devices for run in same], [run.throughput[0] for run in same]
            lines.append({"x": x, "y": y, "color": "#bbbbbb", "label": ""})
        for run in group:
            lines.append(curve(run, [run.devices], [run.throughput[0]]))
            if len(shown) <= CROWD and run is not base:
                share = f"{100 * efficiency(run, base):.0f} %"
                notes.append((run.devices, run.throughput[0], share))
    axes = {"notes": notes, "xticks": sizes, "logx": True, "logy": True, "lines": lines}
    word = f"number of {device_word(shown)}"
    return {"xlabel": word, "ylabel": f"{rate} (dotted: ideal)", **axes}


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


def clock(seconds):
    """Returns seconds as h:mm:ss, – for None."""
    return "–" if seconds is None else str(datetime.timedelta(seconds=round(seconds)))


def study_panels(runs, io):
    """Returns the panels of the figure that compares runs; `io` as io_panels() takes it."""
    longest = max((run.training_seconds or 0 for run in runs), default=0)
    unit, name = (3600, "hours") if longest > 7200 else (60, "minutes")
    judged = [run for run in runs if run.measure in ("Top1", "Accuracy")]
    right = "accuracy" if any(run.measure == "Accuracy" for run in judged) else "top-1"
    judged = [(run, run.series[f"{run.measure}/val"]) for run in judged if run.learns]
    lines = [curve(run, each.seconds / unit, each.values) for run, each in judged]
    desired = sorted({run.desired for run in runs if run.desired})
    reached = {"hlines": [(100 * each, f"desired: {100 * each:g} %") for each in desired]}
    reached |= {"xlabel": name, "ylabel": f"validation {right}, %", "lines": lines}
    waits = [(run, run.series["Data/wait"]) for run in runs if "Data/wait" in run.series]
    waits = [curve(run, each.steps, 100 * each.values) for run, each in waits]
    reads = [(run, run.series["IO/read_MBps"]) for run in runs if "IO/read_MBps" in run.series]
    reads = [curve(run, *thin(each.seconds / 60, each.values)) for run, each in reads]
    panels = [
        over_epochs(runs, "Top1", "top-1, %"),
        over_epochs(runs, "Top5", "top-5, %"),
        over_epochs(runs, "Accuracy", "accuracy, %"),
        over_epochs(runs, "MCC", "MCC"),
        over_epochs(runs, "Perplexity", "perplexity"),
        over_epochs(runs, "Loss", "loss"),
        reached,
        rate_panel(runs),
        {"xlabel": "epoch", "ylabel": "waiting for data, % of the epoch", "lines": waits},
        {"xlabel": "minutes", "ylabel": "read, MB/s", "lines": reads, "zero": True},
        *(io_panels(io) if io else []),
    ]
    for group in groups_of(runs).values():
        for script, members in by_script(group).items():
            if scaling := study_scaling(members)[1]:
                begin = f"{file_of(script, members)}: " if script else ""
                panels.append(model_panel(scaling, begin))
    panels = [each for each in panels if each["lines"] or each.get("bars")]
    for place, each in enumerate(panels):
        if "title" not in each:
            each["legend"] = place == 0
    return panels


def io_panels(io):
    """Returns the panels of a file system's bandwidth and reads/s over minutes."""
    (minutes, read), (others, calls) = io
    look = {"label": "", "color": "#440154"}
    rate = {"title": f"{np.nanmax(read) / 1e9:.1f} GB/s are read at most", "ylabel": "GB/s"}
    rate["lines"] = [{"x": minutes, "y": read / 1e9, **look}]
    reads = {"title": f"{np.nanmax(calls):,.0f} reads/s at most", "ylabel": "1,000 reads/s"}
    reads["lines"] = [{"x": others, "y": calls / 1e3, **look}]
    return [{**each, "xlabel": "minutes", "zero": True} for each in (rate, reads)]


def model_panel(scaling, begin=""):
    """Returns the panel of a scaling model: its fits, and their continuation with a band; its title
    begins so."""
    fit, small, large, model = scaling
    runs = [*small, *large]
    sizes = sorted({run.devices for run in runs})
    word = device_word(runs)
    last, beyond = runs[-1], 10 * sizes[-1]  # a decade
    strong = len({run.global_batch for run in runs}) == 1  # the same global batch for all
    most = min(beyond, last.global_batch) if strong else beyond
    axis = np.geomspace(sizes[0], max(most, sizes[-1]), 60)
    images = last.global_batch / (axis if strong else last.devices)
    y = images * axis / model.predict(axis, images)
    ideal = y[0] * axis / axis[0]
    errors = prediction_errors(fit, large)
    lines = [
        {"x": axis, "y": images * axis / fit.predict(axis, images), "linestyle": "--"},
        {"x": axis, "y": y, "label": "fitted on all"},
        {"x": axis, "y": ideal, "label": "ideal", "linestyle": ":", "color": "#777777"},
        {"x": [run.devices for run in runs], "y": [run.throughput[0] for run in runs]},
    ]
    lines[0]["label"] = f"fitted on {small[0].devices} to {small[-1].devices}"
    lines[3] |= {"label": "", "marker": "o", "linestyle": "none", "color": "#440154"}
    title = f"{begin}Fitted on up to {small[-1].devices} {word}, the model is "
    title += (
        f"{100 * abs(errors[-1]):.0f} % too {'high' if errors[-1] > 0 else 'low'} on {sizes[-1]}"
    )
    axes = {"title": title, "xlabel": word, "ylabel": rate_word(runs)}
    axes |= {"logx": True, "logy": True}
    axes |= {"xticks": [2**n for n in range(11) if sizes[0] <= 2**n <= axis[-1]]}
    axes["notes"] = [(last.devices, last.throughput[0], "measured")]
    if model.spare > 1:  # Student's t of one spare run knows nothing
        width = np.maximum(model.limits(axis, images), np.abs(errors).max())
        high = np.where(width < 1, y / (1 - np.minimum(width, 0.99)), np.inf)
        high = np.maximum(y, np.minimum(high, ideal))
        axes["band"] = {"x": axis, "low": y / (1 + width), "high": high}
        axes["ylabel"] += " (shaded: 95 % band)"
    return {**axes, "lines": [{"color": "#21918c", **line} for line in lines]}


def rounded(value):
    """Returns a figure's description with six digits a number, so that all machines agree on it."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, (float, np.floating)) else value


def fingerprint(panels):
    """Returns what identifies a figure's content: its data, and the code that draws it."""
    content = json.dumps(rounded(panels), sort_keys=True, default=int)
    content += "".join(map(inspect.getsource, (draw, draw_panel, draw_bars, label_ends)))
    return f"make_results.py {hashlib.sha256(content.encode()).hexdigest()}"


@matplotlib.rc_context({"text.parse_math": False})
def draw(panels, path):
    """Draws panels side by side, or two by two, into path.png: on white, which a dark page shows as
    a light one does."""
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    height = max([0.25 * len(each.get("bars", [])) for each in panels])
    height = max(height, 4 if rows == 1 and any(each["lines"] for each in panels) else 3.4)
    figure = Figure(figsize=(6.2 * columns, height * rows), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for place, each in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, place)
        axes.set_title(each.get("title", ""), loc="left", fontsize=11, fontweight="bold")
        axes.set_xlabel(each["xlabel"])
        axes.set_ylabel(each["ylabel"])
        axes.spines[["top", "right"]].set_visible(False)
        draw_bars(axes, each["bars"]) if each.get("bars") else draw_panel(figure, axes, each)
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # of a name, that the font lacks
        mark = {"Description": fingerprint(panels), "Software": None}
        figure.savefig(f"{path}.png", metadata=mark)


def draw_bars(axes, bars):
    """Draws bars of (name, length, colour, text at its end), the first on top."""
    names, lengths, colours, texts = zip(*bars, strict=True)
    drawn = axes.barh(range(len(bars)), lengths, color=colours)
    axes.bar_label(drawn, texts, padding=4, fontsize=9)
    axes.set_yticks(range(len(bars)), names)
    axes.tick_params(axis="y", length=0, labelsize=9)
    axes.set(xlim=(0, 1.4 * max(lengths)), xticks=[])
    axes.spines["bottom"].set_visible(False)
    axes.invert_yaxis()


def draw_panel(figure, axes, panel):
    """Draws lines, whose labels stand at their ends, or in a legend."""
    axes.grid(alpha=0.25, linewidth=0.5)
    for axis, wanted in ((axes.xaxis, panel.get("logx")), (axes.yaxis, panel.get("logy"))):
        if wanted:
            axes.set(**{f"{axis.axis_name}scale": "log"})
            steps = (1, 2, 5) if line_range(panel["lines"], axis.axis_name) < 1e4 else (1,)
            axis.set_major_locator(matplotlib.ticker.LogLocator(subs=steps))
            axis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")
            axis.set_minor_locator(matplotlib.ticker.NullLocator())
    if band := panel.get("band"):
        look = {"color": "#21918c", "alpha": 0.15, "linewidth": 0}
        axes.fill_between(band["x"], band["low"], band["high"], **look)
    for line in panel["lines"]:
        look = {name: line[name] for name in ("color", "linestyle", "marker") if name in line}
        look["label"] = line["label"] or None
        (drawn,) = axes.plot(line["x"], line["y"], linewidth=1.5, markersize=5, **look)
        drawn.set_in_layout(False)  # or a thousand lines are measured for nothing
        if "errors" in line:
            shape = {"fmt": "none", "ecolor": line["color"], "capsize": 3}
            axes.errorbar(line["x"], line["y"], line["errors"], **shape)
    for y, text in panel.get("hlines", []):
        axes.axhline(y, color="#888888", linewidth=1)
        axes.annotate(text, (0, y), xycoords=("axes fraction", "data"), va="bottom")
    if "xticks" in panel:
        axes.set_xticks(panel["xticks"], [f"{tick:,}" for tick in panel["xticks"]])
    elif panel["xlabel"] in ("epoch", "step"):
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    if "yticks" in panel:
        axes.set_yticks(*zip(*panel["yticks"], strict=True))
    if panel.get("zero"):
        axes.set_ylim(bottom=0)
    for x, y, text in panel.get("notes", []):
        shift = {"xytext": panel.get("aside", (6, -12)), "textcoords": "offset points"}
        axes.annotate(text, (x, y), fontsize=9, **shift)
    if "legend" not in panel:
        label_ends(figure, axes, panel)
    elif panel["legend"]:
        handles, labels = axes.get_legend_handles_labels()
        if len(labels) > MOST_NAMES:
            labels[MOST_NAMES - 1] = f"... and {len(labels) - MOST_NAMES + 1} more"
        if labels:
            axes.legend(handles[:MOST_NAMES], labels[:MOST_NAMES], fontsize=9, framealpha=0.6)


def line_range(lines, name):
    """Returns the largest over the smallest value of lines in x or y."""
    values = np.concatenate([np.asarray(line[name], dtype=np.float64) for line in lines])
    return values.max() / values.min()


def label_ends(figure, axes, chart):
    """Labels the lines of a chart: above their ends, or beside the axes, none over another."""
    lines = [line for line in chart["lines"] if line["label"]][::-1]  # from the lowest label up
    if not chart.get("listed"):  # else in the order of the lines, the first on top
        lines.sort(key=lambda one: one["y"][-1])
    figure.draw_without_rendering()
    ends = [axes.transData.transform((1, line["y"][-1]))[1] * 72 / figure.dpi for line in lines]
    places, high = [], 11  # points that a line of text takes
    for end in ends:
        places.append(max(end, places[-1] + high) if places else end)
    # Those that were pushed apart stay around where their lines end.
    lowered = max((new - old for new, old in zip(places, ends, strict=True)), default=0) / 2
    for line, place, end in zip(lines, places, ends, strict=True):
        look = {"color": line["color"], "fontsize": 9, "annotation_clip": False}
        look |= {"textcoords": "offset points"}
        if chart.get("above"):
            at = line["x"][-1], line["y"][-1]
            axes.annotate(line["label"], at, xytext=(0, 5), ha="center", **look)
        else:
            look |= {"xycoords": ("axes fraction", "data")}
            shift = (5, place - end - lowered - 3)
            axes.annotate(line["label"], (1, line["y"][-1]), xytext=shift, **look)


def read_fingerprint(path):
    """Returns the fingerprint that draw() left in a PNG file, None if there is none."""
    try:
        with PIL.Image.open(path) as image:
            found = re.search(r"make_results\.py [0-9a-f]{64}", str(image.info.get("Description")))
    except OSError:
        return None
    return found and found[0]


def is_stale(path, panels):
    """Returns whether path.png shows anything else than these panels."""
    return read_fingerprint(Path(f"{path}.png")) != fingerprint(panels)
