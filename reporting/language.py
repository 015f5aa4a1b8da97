"""What language models and classifiers of sentences send, gather and take, as benchmarks/text.py
has measured it, and what they learn."""

import numpy as np

from reporting.draw import clock
from reporting.report import digits, significant, table
from reporting.text import escape

TITLES = {  # of the benchmarks, by the words that run them
    "exchange": "BERT on RTE by each way to average gradients",
    "traffic": "Bytes of bert-base's gradients",
    "albert": "ALBERT by batch, precision and ranks",
    "gathers": "What FSDP2 gathers in a step",
    "stages": "A language model in two stages",
    "ngrams": "The demo's text by counts alone",
}


BESIDE = (
    "GLUE's files do not come with this repository: RTE is made up here, of as many rows, and of "
    "words as frequent as Zipf's law has them; other data are the scripts' demos. Load is how many "
    "processes the machine ran as a measurement began: bytes hold, ratios roughly, times less."
)


def find(benchmarks, kind):
    """Returns (rows that were measured, each with its median, the benchmark), or ([], {})."""
    for each in benchmarks:
        if each["title"] == TITLES[kind] and "rows" in each:
            rows = [row for row in each["rows"] if row["values"]]
            return [{**row, "median": float(np.median(row["values"]))} for row in rows], each
    return [], {}


def exchange_part(benchmarks):
    """Returns the Markdown lines on what a step takes by each way."""
    rows, benchmark = find(benchmarks, "exchange")
    if not rows:
        return []
    base = rows[0]["median"]
    apart = max(float(row["relative difference of losses"]) for row in rows)
    note = (
        f"{benchmark['note']} Losses of all {len(rows)} ways are within {apart:.0e} of each other."
    )
    cells = [
        [row["name"], digits(row["median"]), digits(row["median"] / base, 2)]
        + [significant(row["rank 0's link, MB/step"])]
        for row in rows
    ]
    header = ["way", "ms a step", f"of {rows[0]['name']}'s", "rank 0's link, MB/step"]
    return [escape(note), "", *table(header, cells), ""]


def traffic_part(benchmarks):
    """Returns the Markdown lines on the bytes of an epoch, observed and by formula."""
    rows, benchmark = find(benchmarks, "traffic")
    if not rows:
        return []
    begin = "GB an epoch at "
    batches = [name.removeprefix(begin) for name in rows[0] if name.startswith(begin)]
    cells = []
    for row in rows:
        pairs = [(row["median"], row["by formula, MB/step"])]
        pairs += [(row[f"{begin}{each}"], row[f"by formula at {each}"]) for each in batches]
        cells.append([row["name"], *(f"{seen:,.1f} ({wanted:,.1f})" for seen, wanted in pairs)])
    size = f"{1e6 * rows[0]['gradients, MB']:,.0f} bytes of gradients"
    note = f"{benchmark['note']} {size}; in brackets by formula, 2 (n - 1) / n times as much in a "
    note += "ring, n - 1 times through rank 0."
    header = ["way", "MB a step", *(f"GB an epoch at {each}" for each in batches)]
    return [escape(note), "", *table(header, cells), ""]


def albert_part(benchmarks):
    """Returns the Markdown lines on sequences/s by batch, precision and ranks."""
    rows, benchmark = find(benchmarks, "albert")
    if not rows:
        return []
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    found = {}
    for row in rows:
        way = row["way"], row["precision"], row["ranks"]
        found.setdefault(way, {})[row["batch"]] = row["median"]
    cells = []
    for way, rates in found.items():
        cells.append([*way, *(digits(rates.get(batch)) for batch in batches)])
    whys = {row["not measured"] for row in benchmark["rows"] if row.get("not measured")}
    note = " ".join(
        [f"Sequences/s. {benchmark['note']}", *(f"Not measured: {why}." for why in whys)]
    )
    header = ["way", "precision", "ranks", *(f"batch {batch}" for batch in batches)]
    return [escape(note), "", *table(header, cells), ""]


def gathers_part(benchmarks):
    """Returns the Markdown lines on what FSDP2 gathers."""
    rows, benchmark = find(benchmarks, "gathers")
    if not rows:
        return []
    parts = [
        f"{row['name'].replace(', ', ', its blocks ', 1)}: {row['gathers a step']} gathers, "
        f"{row['median']:.1f} times its {row['model, MB']:.1f} MB"
        for row in rows
    ]
    note = (
        "FSDP2 gathers a block whenever it is called, and before its backward pass, unless "
        "--no-reshard-after-forward keeps it. ALBERT's only block is called once a layer, so that "
        f"sharding it saves least and sends most. {benchmark['note']} {'; '.join(parts)}."
    )
    return [escape(note), ""]


def stages_part(benchmarks):
    """Returns the Markdown lines on a small language model in two stages."""
    rows, benchmark = find(benchmarks, "stages")
    if not rows:
        return []
    apart = max(float(row["relative difference of losses"]) for row in rows)
    found = ", ".join(f"{row['name']} {row['median']:.0f} ms" for row in rows)
    note = (
        f"A batch takes: {found}. {benchmark['note']} The largest relative difference is "
        f"{apart:.0e}: sums in another order, which SGD at a rate of 5 amplifies; the first losses "
        "are equal. The report's epoch took 48 s on one GPU and 4 s in two stages, \"over 10 "
        'times" faster: of 2,928 batches, and of 50. A batch took 16 ms, and 80.'
    )
    return [escape(note), ""]


def learned(runs, script="text_nd.py"):
    """Returns {task: the run of a script that trained on most sequences, or most quickly}."""
    mine = [run for run in runs if run.file == script and run.items == "sequences"]
    mine = [run for run in mine if run.options.get("task") and run.about.get("steps_per_epoch")]
    mine = [run for run in mine if run.epochs and not run.study.startswith("parity")]
    found = {}
    for run in mine:
        size = run.epochs * run.about["steps_per_epoch"] * (run.global_batch or 1)
        rank = -size, run.training_seconds
        if run.options["task"] not in found or rank < found[run.options["task"]][0]:
            found[run.options["task"]] = rank, run
    return {task: found[task][1] for task in sorted(found, reverse=True)}  # lm first


def reached(run):
    """Returns what a run has reached, and when, in words."""
    if run.measure == "Perplexity":
        loss = run.values("Loss/val").min()
        what = f"validation loss {loss:.2f} (perplexity {run.values('Perplexity/val').min():.1f})"
    else:
        what = f"{run.values('Accuracy/val').max():.1f} % validation accuracy"
    data = run.data.split(" (")[0].removeprefix("lm: ")
    return f"{run.arch} to {what} on {data} in {clock(run.training_seconds)}"


def learned_part(runs, benchmarks):
    """Returns the Markdown lines on what the demos are learned to, against counts."""
    found = [reached(run) for run in learned(runs).values()]
    rows, _ = find(benchmarks, "ngrams")
    if not (found and rows):
        return []
    counts = ", ".join(f"{row['median']:.2f} by {row['name']}s" for row in rows)
    note = escape(f"{'; '.join(found)}. By counts alone the text's loss is {counts}.")
    return [f"Without DIR `text_nd.py` trains {note}", ""]


def language_section(runs, benchmarks):
    """Returns the Markdown lines of the section."""
    lines = learned_part(runs, benchmarks) + exchange_part(benchmarks) + traffic_part(benchmarks)
    lines += albert_part(benchmarks) + gathers_part(benchmarks) + stages_part(benchmarks)
    return ["## Text", "", *([BESIDE, ""] if benchmarks else []), *lines] if lines else []
