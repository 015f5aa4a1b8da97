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

from reporting.scaling import prediction_errors

CROWD = 40  # runs whose faint curves and labels would cover each other
OWN_FIGURES = 100  # runs, above which a run has no figure of its own
LABEL = 100  # characters of a label: a longer one leaves no room to draw in


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
        run.label = run.label[:LABEL]
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


def thin(x, y, most=300):
    """Returns x and y (n,), means over neighbours where there are more than `most`."""
    if len(x) <= most:
        return x, y
    starts = np.unique(np.linspace(0, len(x), most, endpoint=False).astype(int))
    counts = np.diff(np.append(starts, len(x)))
    return np.add.reduceat(x, starts) / counts, np.add.reduceat(y, starts) / counts


def curve(run, x, y, **look):
    """Returns a line of a run for draw()."""
    style = {**run.style, "marker": "" if len(x) > 1 else "o", "label": run.label, **look}
    return {"x": x, "y": y, **style}


def learning_curves(runs, tag):
    """Returns a tag's lines over epochs."""
    shown = [run for run in runs if tag in run.series and run.learns]
    return [curve(run, run.series[tag].steps, run.series[tag].values) for run in shown]


def panel(xlabel, ylabel, lines, **more):
    """Returns axes for draw(), None where there is nothing to show."""
    return {"xlabel": xlabel, "ylabel": ylabel, "lines": lines, **more} if lines else None


def over_time(runs, tag, unit):
    """Returns (lines of a tag over minutes, values divided by `unit`)."""
    lines = []
    for run in (run for run in runs if tag in run.series):
        series = run.series[tag]
        lines.append(curve(run, *thin(series.seconds / 60, series.values / unit)))
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


def clock(seconds):
    """Returns seconds as h:mm:ss, – for None."""
    return "–" if seconds is None else str(datetime.timedelta(seconds=round(seconds)))


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
    last, beyond = runs[-1], 10 * sizes[-1]  # a decade
    strong = len({run.global_batch for run in runs}) == 1  # the same global batch for all
    most = min(beyond, last.global_batch) if strong else beyond
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
SPEED_ROWS = (
    r"pytorch/examples|timm|DALI|torchvision|FFCV|(this project(?!.*(pixels|raw))|imagenet_nd\.py)"
)


def speed_panels(benchmarks):
    """Returns the panels of figures/speed for draw_speed(): images/s beside pytorch/examples'."""
    panels = []
    for begin, what in SPEED.items():
        for each in (each for each in benchmarks if each["title"].startswith(begin)):
            rates = {row["name"]: np.median(row["values"]) for row in each["rows"] if row["values"]}
            found = {name: re.search(SPEED_ROWS, name) for name in rates}
            bars = [(name, rates[name], bool(found[name][1])) for name in rates if found[name]]
            own = [rate for name, rate, ours in bars if ours and "shards" not in name]
            own = max(own, default=None)
            base = rates.get(each["baseline"])
            if own and base:
                timm = max((rate for name, rate, _ in bars if "timm" in name), default=None)
                plain = rates.get("imagenet_nd.py")  # by what pytorch/examples trains in
                alike = f" ({plain / base:.1f} times in float32)" if plain else ""
                title = f"{what}{alike}:\n{own / base:.1f} times pytorch/examples"
                title += f", {own / timm:.2f} times timm" if timm else ""
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
        names = [name.replace(" reference preset", "") for name in names]
        names = [name.replace(", ", ",\n", 1).replace(" --", "\n--", 1) for name in names]
        bars = axes.barh(names, rates, color=["#21918c" if own else "#b0b0b0" for own in ours])
        texts = [f"{rate:,.0f}  ({rate / each['base']:.1f} x)" for rate in rates]
        axes.bar_label(bars, texts, padding=4, fontsize=9)
        axes.set_title(each["title"], loc="left", fontsize=10.5, fontweight="bold")
        axes.set_xlabel(each["note"], loc="left", fontsize=8)
        axes.set_xlim(0, 1.25 * max(rates))
        axes.set_xticks([])
        axes.tick_params(axis="y", length=0, labelsize=9)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(f"{path}.png", metadata={"Description": mark, "Software": None})
    figure.savefig(f"{path}.svg", metadata={"Description": mark, "Date": None, "Creator": None})


@matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "", "text.parse_math": False})
def draw_chart(charts, path):
    """Draws charts side by side into path.png and path.svg: a title that says what is found, lines
    that are labelled at their ends, on white, which a dark page shows as a light one does."""
    mark, charts = fingerprint(charts), charts[:-1]
    figure = Figure(figsize=(6.2 * len(charts), 4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for place, each in enumerate(charts, 1):
        axes = figure.add_subplot(1, len(charts), place)
        axes.set_title(each["title"], loc="left", fontsize=11, fontweight="bold")
        axes.set_xlabel(each["xlabel"])
        axes.set_ylabel(each["ylabel"])
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        for axis, wanted in ((axes.xaxis, each.get("logx")), (axes.yaxis, each.get("logy"))):
            if wanted:
                axis.axes.set(**{f"{axis.axis_name}scale": "log"})
                axis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
                axis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")
                if line_range(each["lines"], axis.axis_name) > 1e4:
                    axis.set_major_locator(matplotlib.ticker.LogLocator())
                axis.set_minor_locator(matplotlib.ticker.NullLocator())
        for line in each["lines"]:
            look = {name: line[name] for name in ("color", "linestyle", "marker") if name in line}
            axes.plot(line["x"], line["y"], linewidth=1.5, markersize=5, **look)
            if "errors" in line:
                shape = {"fmt": "none", "ecolor": line["color"], "capsize": 3}
                axes.errorbar(line["x"], line["y"], line["errors"], **shape)
        if "xticks" in each:
            axes.set_xticks(each["xticks"], [f"{tick:,}" for tick in each["xticks"]])
        if "yticks" in each:
            axes.set_yticks(*zip(*each["yticks"], strict=True))
        elif each["xlabel"] in ("epoch", "step"):
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        if each.get("zero"):
            axes.set_ylim(bottom=0)
        for x, y, text in each.get("notes", []):
            shift = {"xytext": each.get("aside", (6, -12)), "textcoords": "offset points"}
            shift["fontsize"] = 8
            axes.annotate(text, (x, y), **shift)
        label_ends(figure, axes, each)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(f"{path}.png", metadata={"Description": mark, "Software": None})
    figure.savefig(f"{path}.svg", metadata={"Description": mark, "Date": None, "Creator": None})


def chart(charts):
    """Returns panels for draw_chart(), whose code is part of their fingerprint."""
    return [*charts, inspect.getsource(draw_chart) + inspect.getsource(label_ends)]


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


def draw_any(panels, path):
    """Draws a figure by the function whose code ends its panels, draw() where there is none."""
    code = panels[-1] if isinstance(panels[-1], str) else ""
    ways = {"def draw_speed(": draw_speed, "def draw_chart(": draw_chart}
    next((way for name, way in ways.items() if name in code), draw)(panels, path)


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
