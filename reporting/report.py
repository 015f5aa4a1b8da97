"""Tables of runs and benchmarks, and their sections in full, as `--show` prints them."""

import math
import os
import re
import shlex
from collections import defaultdict
from pathlib import Path

import numpy as np

from reporting.draw import baseline, clock, device_word, efficiency, groups_of, rate_word
from reporting.read import IMAGES, NETWORK, PER_EPOCH, TEXT, read_text, walk
from reporting.scaling import by_script, file_of, prediction_errors, study_scaling
from reporting.text import Markdown, code, escape, fence, read_json, reason, singular

MOST = 13  # rows of a table on the page; --show prints all


def read_benchmarks(paths):
    """Returns (all benchmarks under `paths`, as benchmarks/common.py writes them; warnings).

    JSON that is whole and of another shape is another program's, and so is what lies beside event
    files, such as a profiler's trace.
    """
    benchmarks, warnings, seen = [], [], set()
    for path in paths:
        files = sorted(walk(path))
        of_runs = {file.parent for file in files if "tfevents" in file.name}
        for file in files:
            if file.suffix != ".json" or file.parent in of_runs or os.path.realpath(file) in seen:
                continue
            seen.add(os.path.realpath(file))
            try:
                content = read_json(read_text(file))
                shapes = {"title", "rows"}, {"title", "trials"}
                if isinstance(content, dict) and any(each <= set(content) for each in shapes):
                    if not isinstance(content["title"], str):
                        raise TypeError("its title is no text")
                    benchmark_section(content)  # an error where it is not as it should be
                    benchmarks.append({**content, "file": str(file)})
            except Exception as error:  # whatever one file does, the others are shown
                why = f"{type(error).__name__}: {reason(error)}"
                warnings.append(f"{file}: damaged, or no benchmark ({why}): not used")
    return benchmarks, warnings


def table(header, rows):
    """Returns a Markdown table, without the columns that are empty in all rows."""
    kept = [place for place in range(len(header)) if any(row[place] != "–" for row in rows)]
    lines = [[line[place] for place in kept] for line in (header, *rows)]
    lines = [
        [cell if isinstance(cell, Markdown) else escape(singular(str(cell))) for cell in line]
        for line in lines
    ]
    lines.insert(1, ["---"] * len(kept))
    return ["".join(f"| {cell} " for cell in line) + "|" for line in lines]


def digits(number, places=0, unit=""):
    """Returns a number as text, – for None."""
    return "–" if number is None else f"{number:,.{places}f}{unit}"


def last_and_best(run, tag):
    """Returns a tag's last and best value as text."""
    values = run.values(tag)
    return f"{values[-1]:.2f} / {values.max():.2f}" if len(values) else "–"


def group_title(run):
    """Returns what the runs of a group share."""
    device = run.hardware or "hardware not logged"
    return ", ".join(each for each in (run.arch, run.data, device, run.precision) if each)


# Of text, by its tag: how it is called, its unit, and which is best.
MEASURES = {"Accuracy": ("accuracy", " %", max), "Perplexity": ("perplexity", "", min)}


def measured_of_text(run):
    """Returns what a run has reached in validation as text, – where it is not of text."""
    if run.measure not in MEASURES:
        return "–"
    name, unit, best = MEASURES[run.measure]
    values = run.values(f"{run.measure}/val")
    return f"{name} {values[-1]:.2f} / {best(values):.2f}{unit}"


def group_rows(runs, word, rate_word):
    """Returns {header: cell} for each of runs that may be compared; `word` is of their devices, and
    `rate_word` of their throughput."""
    measured = [run for run in runs if run.throughput and run.devices]
    base = baseline(measured) if len({run.devices for run in measured}) > 1 else None
    rows = []
    for run in runs:
        share = efficiency(run, base) if base and run in measured else None
        speedup = share and share * run.devices / base.devices
        steps = run.about.get("steps_per_epoch")
        rate = run.throughput and f"{run.throughput[0]:,.0f}"
        if rate and len(run.values("Throughput/train")) > 2:  # one value alone does not spread
            rate += f" ± {run.throughput[1]:,.0f}"
        reached = clock(run.seconds_to_desired).replace("–", "not reached")
        row = {"run": run.name, "script": run.script or "–", word: digits(run.devices)}
        row |= {"-b": digits(run.batch), "global batch": digits(run.global_batch)}
        row["precision"] = run.precision or "–"
        row["epochs"] = digits(run.epochs)
        row["epochs"] += f" x {steps:,} steps" if steps and run.epochs else ""
        row |= {rate_word: rate or "–", "speed-up": digits(speedup, 2)}
        row["efficiency"] = digits(share and 100 * share, 1, " %")
        row["training time"] = clock(run.training_seconds)
        goal = f"{reached} ({100 * run.desired:g} %)" if run.desired else "–"
        row["time to desired accuracy"] = goal
        row["val top-1, last / best, %"] = last_and_best(run, "Top1/val")
        row["val top-5, last / best, %"] = last_and_best(run, "Top5/val")
        row["validation, last / best"] = measured_of_text(run)
        rows.append({**row, "ended": run.end.get("reason", "not logged")})
    return rows


def group_table(runs):
    """Returns the Markdown table of runs that may be compared."""
    rows = group_rows(runs, device_word(runs), rate_word(runs))
    return table([*rows[0]], [[*row.values()] for row in rows])


def runs_table(runs):
    """Returns the Markdown table of all runs, a row each."""
    word, rate, rows = device_word(runs), rate_word(runs), []
    brief = ["script", word, "-b", "precision", "epochs", rate, "efficiency", "training time"]
    brief += ["val top-1, last / best, %", "validation, last / best"]
    for members in groups_of(runs, study=True).values():
        what = ", ".join(each for each in (members[0].arch, members[0].data) if each) or "–"
        for run, row in zip(members, group_rows(members, word, rate), strict=True):
            rows.append([run.name, run.study or "–", what, *(row[name] for name in brief)])
    return table(["run", "study", "what", *brief], rows)


def precision_table(runs):
    """Returns the Markdown lines that set precisions side by side; none where there is one."""
    cells = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.throughput and run.precision:
            model = f"{run.arch} {run.script}".strip()
            sizes = digits(run.devices), digits(run.batch)
            what = (model, run.data or "–", run.hardware or "–", *sizes)
            cells[what][run.precision].append(run.throughput[0])
    if all(len(rates) < 2 for rates in cells.values()):
        return []
    precisions = sorted({each for row in cells.values() for each in row}, key=precision_rank)
    rows = []
    for what, rates in cells.items():
        means = {precision: np.mean(of_one) for precision, of_one in rates.items()}
        full = means.get(min(means, key=precision_rank)) if FULL & set(means) else None
        ratios = {each: f" ({means[each] / full:.2f})" if full else "" for each in means}
        shown = [
            f"{means[each]:,.0f}{ratios[each]}" if each in means else "–" for each in precisions
        ]
        rows.append([*what, *shown])
    lines = table(["model", "data", "hardware", device_word(runs), "batch", *precisions], rows)
    rate = rate_word(runs).capitalize()
    return [f"{rate}, and how many times those of full precision:", "", *lines, ""]


FULL = {"float32", "O0"}


def precision_rank(precision):
    """Sorts full precision first."""
    return precision not in FULL, precision


def within(value, limit, places):
    """Returns a value as text, to the digits that its 95 % limits leave: to at most so many decimal
    places, with the limit where it can be seen in them; or that it is not known at all."""
    if value is None:
        return "–"
    if limit and limit >= abs(value):
        return "not identified"
    places = min(places, -math.floor(math.log10(limit))) if limit else places
    seen = f" ± {digits(round(limit, places), max(0, places))}" if round(limit, places) else ""
    return f"{digits(round(value, places), max(0, places))}{seen}"


def scaling_lines(scaling):
    """Returns the Markdown lines about a scaling model."""
    fit, small, large, model = scaling
    runs = [*small, *large]
    word, gradient_bytes = device_word(runs), runs[-1].gradient_bytes
    fits = []
    for each, used in (fit, small), (model, runs):
        counts = ", ".join(str(size) for size in sorted({run.devices for run in used}))
        compute, volume, latency = each.terms_limits()
        bandwidth = None
        if gradient_bytes and volume < each.volume:
            bandwidth = gradient_bytes / each.volume / 1e9
        row = [counts, within(1e3 * each.compute, 1e3 * compute, 3)]
        row += [within(1e3 * each.volume, 1e3 * volume, 2)]
        row += [within(bandwidth, bandwidth and bandwidth * volume / each.volume, 2)]
        row += [within(1e6 * each.latency, 1e6 * latency, 1)]
        fits.append([*row, digits(100 * each.spread, 1, " %") if each.spare > 1 else "–"])
    predicted = []
    for run, error in zip(large, prediction_errors(fit, large), strict=True):
        rates = [digits(run.throughput[0]), digits(run.throughput[0] * (1 + error))]
        predicted.append([run.devices, *rates, f"{100 * error:+.1f} %"])
    header = [f"fitted on {word}", "compute, ms/image", "volume, ms", "bandwidth, GB/s"]
    lines = table([*header, "latency, µs/message", "relative residual"], fits)
    lines += ["", "± is the 95 % limit by the residuals, as far as the model holds."]
    lines += ["", f"Fitted on {small[0].devices} to {small[-1].devices} {word}, it predicts:", ""]
    header = [word, "measured, images/s", "predicted, images/s", "error"]
    lines = ["", *lines, *table(header, predicted), ""]
    return lines


def traffic_table(runs):
    """Returns the Markdown lines of what runs read and sent; none where it was not logged."""
    rows = []
    for run in runs:
        means = [run.mean(f"IO/{name}") for name in ("read_MBps", "disk_MBps", "read_iops")]
        sent, received, expected = (run.mean(tag) for tag in NETWORK)
        ratio = sent / expected if sent is not None and expected else None
        means += [sent, received, expected] if ratio else [None] * 3
        if any(mean is not None for mean in means):
            cells = [digits(mean, 2) for mean in means]
            rows.append([run.name, run.label, *cells, digits(ratio, 3)])
    header = ["run", "what", "read, MB/s", "from disk, MB/s", "reads/s", "sent, MB/step"]
    header += ["received, MB/step", "expected, MB/step", "sent / expected"]
    title = "Means of what the first node's ranks read, and of all that its interfaces carried:"
    return [title, "", *table(header, rows), ""] if rows else []


def significant(number):
    """Returns a number as text, to three significant digits, all of them before the point."""
    if number is not None and not abs(number) < 1e30:
        raise ValueError(f"{number} is nothing measured")
    size = math.floor(math.log10(abs(number))) if number else 0
    return digits(number, max(0, 2 - size))


def benchmark_table(benchmark, most=None):
    """Returns the Markdown table of a benchmark, as benchmarks/common.py writes it; of more rows
    than `most` a grid of medians, or the first."""
    rows, baseline = benchmark["rows"], benchmark["baseline"]
    medians = [np.median(row["values"]) if row["values"] else None for row in rows]
    base = dict(zip([row["name"] for row in rows], medians, strict=True)).get(baseline)
    if most and len(rows) > most:
        if grid := grid_table(rows, most):
            return grid
        rows, medians = rows[:most], medians[:most]
    further = dict.fromkeys(name for row in rows for name in row if name not in ("name", "values"))
    lines = []
    for row, median in zip(rows, medians, strict=True):
        values = row["values"]
        cells = [row["name"], digits(median / base if values and base else None, 2)]
        cells += [significant(median)]
        ends = significant(min(values, default=None)), significant(max(values, default=None))
        cells += [" to ".join(ends) if values[1:] else "–"]
        more = (row.get(name, "") for name in further)
        cells += [(each or "–") if isinstance(each, str) else significant(each) for each in more]
        lines.append(cells)
    return table(["", "ratio", benchmark["unit"], "range", *further], lines)


def grid_table(rows, most):
    """Returns the Markdown table of medians of rows that are named "A, X", "A, Y", "B, X" and so
    on, with as few columns as leave no more than `most` rows, if two to four do; else []."""
    names = [row["name"].split(", ") for row in rows]
    for last in range(1, min(map(len, names))):
        cells = defaultdict(dict)
        for name, row in zip(names, rows, strict=True):
            if row["values"]:
                median = significant(np.median(row["values"]))
                cells[", ".join(name[:-last])][", ".join(name[-last:])] = median
        columns = list(dict.fromkeys(column for each in cells.values() for column in each))
        whole = len(columns) * len(cells) == len(rows)
        if len(cells) <= most and 2 <= len(columns) <= 4 and whole:
            lines = [[name, *(each[column] for column in columns)] for name, each in cells.items()]
            return table(["", *columns], lines)
    return []


# Whether a trial of tests/chaos.py holds what was promised.
HOLDS = {True: "yes", False: Markdown("**no**"), None: "not tried"}


def same_as(benchmark):
    """Returns the title of the benchmark that this one repeats, its libraries held to fewer of the
    CPU's instructions; "" where it is none."""
    return benchmark["title"].rpartition(", held to ")[0]


def note_of(benchmark, ratios=True):
    """Returns what stands below a benchmark's table, which has ratios or not."""
    if "trials" in benchmark:
        return benchmark["note"]
    rounds = max(len(row["values"]) for row in benchmark["rows"])
    beside = f"; ratios to {singular(benchmark['baseline'])}" if ratios else ""
    return f"Medians of {rounds}{beside}. {benchmark['note']}"


def benchmark_section(benchmark):
    """Returns the Markdown lines of a benchmark: table, note, and how to repeat it."""
    about, lines = benchmark["about"], [f"### {escape(benchmark['title'])}", ""]
    note = note_of(benchmark)
    if "trials" in benchmark:  # of tests/chaos.py
        rows = [row for rows in benchmark["trials"].values() for row in rows]
        rows = [[what, became, HOLDS[holds]] for what, became, holds in rows]
        lines += table(["trial", "outcome", "holds"], rows)
        ran = defaultdict(list)
        for name, commit in benchmark["commits"].items():
            ran[commit].append(name)
        ran = "; ".join(f"{commit}: {', '.join(names)}" for commit, names in ran.items())
        note += f" Commits, and the trials that ran with them: {ran}."
    else:
        lines += benchmark_table(benchmark)
    lines += ["", escape(note), "", *fence([shlex.join(about["command"])]), ""]
    known = [f"{name} {value}" for name, value in about.items() if name != "command" and value]
    return [*lines, f"{escape('; '.join(known))}.", ""]


def repeat(about):
    """Returns the command that started a run, from what it logged."""
    place, env, options = about["place"], about.get("environment", {}), about.get("options", {})
    local, nodes = place["local_ranks"], place["ranks"] // place["local_ranks"]
    spawned = any(options.get(name) is not None for name in ("nproc_per_node", "world_size"))
    held, words = options.get("recipes", {}), []
    for word in about["command"][1:]:  # an option file by what it held: it may have changed since
        if not re.match("--local[-_]rank=", word):
            words += shlex.split(held[word]) if word in held else [word]
    start = ["python"]
    if "TORCHELASTIC_RUN_ID" in env:
        start = ["torchrun", f"--nproc_per_node={local}"]
        if nodes > 1:
            start += [f"--nnodes={nodes}", "--node_rank=NODE", "--master_addr=NODE_0"]
    elif Path(words[0]).name.endswith("_horovod.py") and place["ranks"] > 1:
        start = ["horovodrun", "-np", str(place["ranks"]), "python"]
    elif int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1 and not spawned:
        start = ["srun", f"--ntasks={place['ranks']}", f"--nodes={nodes}", "python"]
    names = ("OMP_NUM_THREADS", "IMAGENET_DIR")
    given = [f"{name}={shlex.quote(env[name])}" for name in names if name in env]
    return " ".join([*given, shlex.join([*start, *words])])


def run_section(run):
    """Returns the Markdown lines of one run: all that its log tells of it."""
    lines = [f"### {escape(run.name)}", ""]
    if about := run.about:
        place, commands = about["place"], [repeat(each) for each in run.starts]
        words = {device_word([run]): run.devices, "nodes": place["ranks"] // place["local_ranks"]}
        names = (
            "device",
            "cores",
            "threads",
            "node",
            "system",
            "python",
            "torch",
            "torchvision",
            "transformers",
        )
        words |= {name: about.get(name) for name in (*names, "cuda", "numpy", "PIL")}
        words |= {"seed": run.options.get("seed"), "commit": about.get("commit") or "not known"}
        known = "; ".join(f"{name} {value}" for name, value in words.items() if value is not None)
        options = ", ".join(f"{name}={value}" for name, value in run.options.items())
        lines += [*fence(dict.fromkeys(commands)), "", f"{escape(known)}.", ""]
        if len(commands) > 1:
            lines += [f"Started {len(commands)} times.", ""]
        lines += ["<details><summary>all options</summary>", "", code(options), "", "</details>"]
    else:
        lines += ["Arguments, versions, hardware and command: not in the log."]
        named = {"arch": run.arch, "GPUs": run.devices, "batch per GPU": run.batch}
        named |= {"loader processes": run.named.get("workers"), "precision": run.precision}
        if run.named:
            known = "; ".join(f"{name} {value}" for name, value in named.items())
            lines += ["", f"From its name: {escape(known)}."]
    if run.end:
        ended = (
            (name, round(value, 2) if isinstance(value, float) else value)
            for name, value in run.end.items()
        )
        ended = "; ".join(f"{name} {value}" for name, value in ended)
        lines += ["", f"At the end: {escape(ended)}."]
    others = IMAGES if run.items == "sequences" else TEXT
    wanted = [tag for tag in PER_EPOCH if tag.split("/")[0] not in (*others, "F1", "MCC")]
    wanted = [tag for tag in wanted if tag.split("/")[0] not in TEXT or run.measure in tag]
    missing = [tag for tag in [*wanted, "Lr"] if tag not in run.series]
    lines += ["", f"Not logged: {', '.join(missing)}."] if missing else []
    return [*lines, ""]


def epochs_table(run):
    """Returns the Markdown table of a run's values, a row an epoch."""
    tags = [tag for tag in [*PER_EPOCH, "Lr", "Data/wait"] if tag in run.series]
    values = {tag: dict(zip(run.series[tag].steps, run.values(tag), strict=True)) for tag in tags}
    steps = sorted({step for tag in tags for step in values[tag]})
    cells = [[values[tag].get(step) for tag in tags] for step in steps]
    rows = [["–" if value is None else f"{value:.6g}" for value in row] for row in cells]
    rows = [[f"{step:g}", *row] for step, row in zip(steps, rows, strict=True)]
    return [*table(["epoch", *tags], rows), ""] if rows else []


def study_section(title, runs):
    """Returns the Markdown lines of runs that one study compares."""
    lines, most = [f"## {escape(title)}", ""], 0
    for group in groups_of(runs).values():
        lines += [f"**{escape(group_title(group[0]))}**", "", *group_table(group), ""]
        for script, members in by_script(group).items():
            sizes, scaling = study_scaling(members)
            most = max(most, len(sizes))
            of = f" of {escape(file_of(script, members))}" if script else ""
            if scaling:
                lines += [f"Scaling model{of}:", *scaling_lines(scaling)]
            elif len(sizes) > 1:
                why = f"it takes three sizes, and there are {' and '.join(map(str, sizes))}"
                if any(run.crowded for run in members):
                    why += "; step times of processes that share cores do not measure communication"
                lines += [f"Scaling model{of}: cannot be fitted, {why}.", ""]
    if most < 2:
        lines += ["Scaling model: cannot be fitted, it takes runs of three sizes.", ""]
    return [*lines, *precision_table(runs), *traffic_table(runs)]
