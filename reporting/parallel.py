"""What ways to be parallel send, need and waste, as benchmarks/parallel.py has measured them."""

import numpy as np

from reporting.draw import chart
from reporting.report import digits, significant, table

COLOURS = {  # told apart in grey, and by the colour-blind
    "gather": "#d95f02",
    "all_reduce": "#440154",
    "async": "#3b528b",
    "bucket": "#21918c",
    "ring": "#5ec962",
    "ddp": "#777777",
    "gpipe": "#440154",
    "1f1b": "#21918c",
}


TITLES = {  # of the benchmarks, by the words that run them
    "exchange": "Exchange of gradients",
    "dtype": "Gradients sent in 16 bits",
    "memory": "Training state of a rank",
    "bubble": "Idle time of two pipeline stages",
}


def rows_of(benchmarks, title):
    """Returns the rows of a benchmark, each with its median; [] where there is none."""
    found = next((each["rows"] for each in benchmarks if each["title"] == title), [])
    return [{**row, "median": float(np.median(row["values"]))} for row in found if row["values"]]


def exchange_part(benchmarks, figures):
    """Returns the Markdown lines on what exchanging gradients takes, of the largest batch."""
    rows = rows_of(benchmarks, TITLES["exchange"])
    batch = max((int(row["batch"]) for row in rows), default=0)
    rows = [row for row in rows if int(row["batch"]) == batch]
    many = max((int(row["ranks"]) for row in rows), default=0)
    if many < 2:
        return []
    (about,) = (each["about"] for each in benchmarks if each["title"] == TITLES["exchange"])
    cores = about["cores"]
    (alone,) = [row["median"] for row in rows if row["ranks"] == "1"] or [None]
    cells, links, speeds = [], [], []
    several = sorted((row for row in rows if row["ranks"] != "1"), key=lambda r: int(r["ranks"]))
    for way in dict.fromkeys(row["way"] for row in rows if row["ranks"] != "1"):
        mine = [row for row in several if row["way"] == way]
        ranks = [int(row["ranks"]) for row in mine]
        look = {"label": way, "color": COLOURS[way], "marker": "o"}
        links.append({"x": ranks, "y": [row["busiest link, MB/step"] for row in mine], **look})
        if alone:
            ratios = [alone / row["median"] for row in mine]
            speeds.append({"x": [1, *ranks], "y": [1, *ratios], **look})
        last = mine[-1]
        cells.append([way, significant(last["busiest link, MB/step"])])
        cells[-1] += [significant(last["by formula, MB/step"])]
        cells[-1] += [significant(last["all ranks sent, MB/step"]), significant(last["median"])]
        cells[-1] += [digits(alone / last["median"] if alone else None, 2)]
    busy = {line["label"]: line["y"][-1] for line in links}
    least = min(busy, key=busy.get)
    title = f"gather: {busy.get('gather', 0):.0f} MB a step on one link, {least} {busy[least]:.0f}"
    ticks = sorted({x for line in links for x in line["x"]})
    axes = {"xlabel": "ranks", "xticks": ticks, "zero": True}
    charts = [{**axes, "title": title, "ylabel": "busiest link, MB/step", "lines": links}]
    if speeds:
        best = max(speeds, key=lambda line: line["y"][-1])
        title = f"{many} ranks on {cores} cores: {best['label']} has {best['y'][-1]:.2f} of one's"
        axes |= {"xticks": [1, *ticks]}
        charts += [{**axes, "title": title, "ylabel": "images/s, of one rank's", "lines": speeds}]
    figures["figures/page/exchange"] = chart(charts)
    header = ["way", "busiest link, MB/step", "by formula", "all ranks sent", "ms a step"]
    losses = [row["first losses"].split() for row in rows if int(row["ranks"]) == many]
    losses = np.array(losses, dtype=float)
    apart = float(np.max(np.ptp(losses, axis=0) / losses.min(axis=0)))
    note = (
        f"Gradients averaged by hand, `imagenet_exchange.py` on {many} ranks with a network card "
        f"each, {cores} cores in all, a global batch of {batch}. The first losses of all ways are "
        f"within {apart:.0e} of each other: they differ by the order of sums alone, which "
        "BatchNorm and ReLU amplify."
    )
    picture = ["![bytes and speed](figures/page/exchange.svg)", ""]
    return [note, "", *picture, *table([*header, "of one rank's images/s"], cells), ""]


def memory_part(benchmarks):
    """Returns the Markdown lines on a rank's training state."""
    rows = rows_of(benchmarks, TITLES["memory"])
    cells = [
        [row["name"], significant(row["median"]), significant(row["by formula, MB"])]
        for row in rows
    ]
    if not rows:
        return []
    note = (
        "What a rank holds of weights, gradients and momentum: 12 bytes a parameter in float32, "
        "under FSDP2 its share."
    )
    return [note, "", *table(["", "MB, largest rank", "by formula"], cells), ""]


def bubble_part(benchmarks, figures):
    """Returns the Markdown lines on the idle time of pipeline stages."""
    rows = rows_of(benchmarks, TITLES["bubble"])
    if not rows:
        return []
    axis = np.arange(1, 33)
    lines = []
    for way in dict.fromkeys(row["way"] for row in rows):
        mine = [row for row in rows if row["way"] == way]
        x = [int(row["micro-batches"]) for row in mine]
        spread = [
            [row["median"] - min(row["values"]) for row in mine],
            [max(row["values"]) - row["median"] for row in mine],
        ]
        y = [row["median"] for row in mine]
        look = {"label": "", "color": COLOURS[way], "marker": "o", "errors": spread}
        lines.append({"x": x, "y": y, "linestyle": "none", **look})
    for stages, colour in (2, "#440154"), (4, "#3b528b"), (8, "#777777"):
        idle = 100 * (stages - 1) / (axis + stages - 1)
        line = {"x": axis, "y": idle, "label": f"{stages} stages, formula", "color": colour}
        lines.append({**line, "linestyle": "-" if stages == 2 else ":"})
    few, many = (pick(rows, key=lambda row: int(row["micro-batches"])) for pick in (min, max))
    ends = [f"{row['median']:.0f} % with {row['micro-batches']}" for row in (few, many)]
    title = f"Idle time of two stages: {ends[0]}, {ends[1]} micro-batches"
    axes = {"title": title, "xlabel": "micro-batches", "ylabel": "idle, %", "lines": lines}
    axes |= {"logx": True, "xticks": [1, 2, 4, 8, 16, 32], "zero": True}
    figures["figures/page/bubble"] = chart([axes])
    note = (
        "Idle time of two stages, measured (gpipe dark, 1f1b light; bars from least to most), "
        "against (p - 1) / (m + p - 1) of p stages and m micro-batches; more stages by formula. "
        "Stages that compute at once on cores that share memory may slow each other, which leaves "
        "less idle time than the formula has."
    )
    return [note, "", "![idle time of stages](figures/page/bubble.svg)", ""]


def parallel_section(benchmarks, figures):
    """Returns the Markdown lines of the section; adds its figures."""
    lines = exchange_part(benchmarks, figures) + memory_part(benchmarks)
    lines += bubble_part(benchmarks, figures)
    return ["## How much it sends and needs", "", *lines] if lines else []
