"""What ways to be parallel send, need and waste, as benchmarks/parallel.py has measured them."""

import numpy as np

from reporting.report import MOST, digits, grid_table, significant, table
from reporting.text import escape

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


def spread_of_losses(rows, ranks):
    """Returns how far the first losses of the ways are apart, relative to the least of a step."""
    losses = [row["first losses"].split() for row in rows if int(row["ranks"]) == ranks]
    losses = np.array(losses, dtype=float)
    return float(np.max(np.ptp(losses, axis=0) / losses.min(axis=0)))


def ring_panels(ranks=4):
    """Returns the panels of the first turns of `_add_up_in_a_ring()`: what each rank's chunks are
    the sums of before a turn, and which chunk each rank sends to the next one in it."""
    chunks = [[[rank] for _ in range(ranks)] for rank in range(ranks)]  # the ranks that are in
    dark, panels = ["#b0b0b0", "#5ec962", "#21918c", "#440154"], []
    for turn in range(ranks):
        titles = ["each rank sends its own chunk", *["the sum so far"] * (ranks - 2)]
        title = [*titles, "whole sums go round"][turn]
        lines, notes, arrow = [], [], {"color": "#d95f02", "label": ""}
        for rank in range(ranks):
            for chunk, within in enumerate(chunks[rank]):
                look = {"color": dark[len(within) * len(dark) // ranks - 1], "marker": "s"}
                lines.append({"x": [chunk], "y": [-rank], "label": "", **look})
                notes.append((chunk, -rank, " + ".join(map(str, sorted(within)))))
            sent = (rank - turn) % ranks
            ends = [(-rank - 0.15, -rank - 0.75)]
            ends += [(0.85, 0.25)] if rank == ranks - 1 else []  # to rank 0, from above
            for begin, end in ends:
                lines.append({"x": [sent, sent], "y": [begin, end], **arrow})
                lines.append({"x": [sent], "y": [end], "marker": "v", **arrow})
        before = [[list(within) for within in mine] for mine in chunks]
        for rank in range(ranks):
            taken = (rank - turn - 1) % ranks
            received = before[rank - 1][taken]
            chunks[rank][taken] = received + before[rank][taken] * (turn < ranks - 1)
        axes = {"title": f"Turn {turn + 1} of {2 * (ranks - 1)}: {title}", "ylabel": ""}
        axes |= {"xlabel": "chunk", "xticks": [*range(ranks)], "legend": False}
        axes |= {"yticks": [(-rank, f"rank {rank}") for rank in range(ranks)], "aside": (6, -3)}
        panels.append({**axes, "lines": lines, "notes": notes})
    return panels


def exchange_part(benchmarks, figures):
    """Returns the Markdown lines on what exchanging gradients takes, of the largest batch."""
    rows = rows_of(benchmarks, TITLES["exchange"])
    sizes = sorted({int(row["batch"]) for row in rows}, reverse=True) or [0]
    of_size = {size: [row for row in rows if int(row["batch"]) == size] for size in sizes}
    batch, *smaller = sizes
    rows = of_size[batch]
    many = max((int(row["ranks"]) for row in rows), default=0)
    if many < 2:
        return []
    apart = [f"{spread_of_losses(of_size[size], many):.1e} with {size}" for size in smaller]
    others = f" ({', '.join(apart)})" if apart else ""
    (of,) = (each for each in benchmarks if each["title"] == TITLES["exchange"])
    cores = escape(str(of["about"]["cores"]))
    model = escape(of["note"].partition(";")[0])
    (alone,) = [row["median"] for row in rows if row["ranks"] == "1"] or [None]
    cells, links, speeds = [], [], []
    several = sorted((row for row in rows if row["ranks"] != "1"), key=lambda r: int(r["ranks"]))
    ways = dict.fromkeys(row["way"] for row in rows if row["ranks"] != "1")
    for place, way in enumerate(ways):
        mine = [row for row in several if row["way"] == way]
        ranks = [int(row["ranks"]) for row in mine]
        look = {"label": way, "color": COLOURS[way], "marker": "o"}
        links.append({"x": ranks, "y": [row["busiest link, MB/step"] for row in mine], **look})
        if alone:
            ratios = np.array([1, *(alone / row["median"] for row in mine)])
            below = ratios - [1, *(alone / max(row["values"]) for row in mine)]
            above = [1, *(alone / min(row["values"]) for row in mine)] - ratios
            beside = [1, *(size + 0.04 * place for size in ranks)]  # bars side by side
            speeds.append({"x": beside, "y": ratios, "errors": [below, above], **look})
        last = mine[-1]
        cells.append([way, significant(last["busiest link, MB/step"])])
        cells[-1] += [significant(last["by formula, MB/step"])]
        cells[-1] += [significant(last["all ranks sent, MB/step"]), significant(last["median"])]
        cells[-1] += [digits(alone / last["median"] if alone else None, 2)]
    busy = {line["label"]: line["y"][-1] for line in links}
    least = min(busy, key=busy.get)
    title = f"gather: {busy.get('gather', 0):.0f} MB a step on one link, {least} {busy[least]:.0f}"
    same = [line for line in links if line["y"][-1] < 1.02 * busy[least]]
    if len(same) > 1:  # they lie on each other
        for line in same:
            line["label"] = ""
        same[-1]["label"] = "all others" if len(same) < len(links) else "all ways"
    ticks = sorted({x for line in links for x in line["x"]})
    axes = {"xlabel": "ranks", "xticks": ticks, "zero": True}
    charts = [{**axes, "title": title, "ylabel": "busiest link, MB/step", "lines": links}]
    if speeds:
        best = max(speeds, key=lambda line: line["y"][-1])
        title = f"{many} ranks on {cores} cores: {best['label']} has {best['y'][-1]:.2f} of one's"
        axes |= {"xticks": [1, *ticks]}
        charts += [{**axes, "title": title, "ylabel": "images/s, of one rank's", "lines": speeds}]
    figures["figures/exchange"] = charts
    figures["figures/ring"] = ring_panels()  # of docs/lessons.md
    header = ["way", "busiest link, MB/step", "by formula", "all ranks sent", "ms a step"]
    most = {row["way"]: row for row in several if int(row["ranks"]) == many}
    size, why = "", ""
    if "gather" in most:  # by formula its link carries the gradients (ranks - 1) times
        sent = most["gather"]["by formula, MB/step"] / (many - 1)
        size = f" ({sent:.1f} MB of gradients, which `--list-tensors` lists)"
    if {"gather", "all_reduce"} <= most.keys():
        ahead = most["gather"]["median"] < most["all_reduce"]["median"]
        more = most["gather"]["busiest link, MB/step"] > most["all_reduce"]["busiest link, MB/step"]
        if ahead and more:
            why = (
                " gather sends most over one link, and is still faster than all_reduce: both send "
                "tensor by tensor, and wait for each message before the next; all_reduce's ring "
                f"has {2 * (many - 1)} in turn for each tensor, gather 2, to rank 0 and back. "
                "Between namespaces of one machine a wait costs more than bytes do."
            )
    note = (
        f"Gradients of {model}{size}, averaged by hand: `imagenet_exchange.py` on {many} ranks in "
        f"a network namespace each, on one machine of {cores} cores, a global batch of {batch}; "
        f"bars from least to most.{why} The first losses of all ways are within "
        f"{spread_of_losses(rows, many):.1e} of each other{others}: they differ by the order of "
        "sums alone, which BatchNorm and ReLU amplify, the more the fewer images a rank has."
    )
    picture = ["![bytes and speed](figures/exchange.png)", ""]
    return [note, "", *picture, *table([*header, "of one rank's images/s"], cells), ""]


def memory_part(benchmarks):
    """Returns the Markdown lines on a rank's training state."""
    rows = rows_of(benchmarks, TITLES["memory"])
    if not rows:
        return []
    apart = max(abs(row["median"] / row["by formula, MB"] - 1) for row in rows)
    note = (
        "MB that a rank holds of weights, gradients and momentum: 12 bytes a parameter in float32, "
        f"under FSDP2 its share, within {100 * apart:.1f} %."
    )
    return [note, "", *grid_table(rows, MOST), ""]


def bubble_part(benchmarks, figures):
    """Returns the Markdown lines on the idle time of pipeline stages."""
    rows = rows_of(benchmarks, TITLES["bubble"])
    if not rows:
        return []
    axis = np.arange(1, 33)
    lines, notes = [], []
    for place, way in enumerate(dict.fromkeys(row["way"] for row in rows)):
        mine = [row for row in rows if row["way"] == way]
        x = [int(row["micro-batches"]) * 1.06**place for row in mine]  # side by side
        spread = [
            [row["median"] - min(row["values"]) for row in mine],
            [max(row["values"]) - row["median"] for row in mine],
        ]
        y = [row["median"] for row in mine]
        notes.append((x[-1], y[-1], way))
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
    axes |= {"notes": notes, "aside": (7, -3)}
    figures["figures/bubble"] = [axes]
    note = (
        "Idle time of two stages, measured (bars from least to most), against (p - 1) / "
        "(m + p - 1) of p stages and m micro-batches; more stages by formula. Stages that compute "
        "at once on cores that share memory slow each other, which leaves less idle time than the "
        "formula has; what each micro-batch costs besides computing leaves more."
    )
    return [note, "", "![idle time of stages](figures/bubble.png)", ""]


def parallel_section(benchmarks, figures):
    """Returns the Markdown lines of the section; adds its figures."""
    lines = exchange_part(benchmarks, figures) + memory_part(benchmarks)
    lines += bubble_part(benchmarks, figures)
    return ["## How much it sends and needs", "", *lines] if lines else []
