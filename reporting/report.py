"""RESULTS.md: its sections and tables, and which figures stand where."""

import collections
import math
import os
import re
import shlex
from collections import defaultdict
from pathlib import Path

import numpy as np

from reporting.draw import (
    baseline,
    clock,
    device_word,
    efficiency,
    model_figure,
    study_figures,
)
from reporting.read import NETWORK, PER_EPOCH, read_text, walk
from reporting.scaling import by_script, prediction_errors, study_scaling
from reporting.text import Markdown, code, escape, fence, file_name, image, read_json, reason


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
        [cell if isinstance(cell, Markdown) else escape(str(cell)) for cell in line]
        for line in lines
    ]
    lines.insert(1, ["---"] * len(kept))
    return ["".join(f"| {cell} " for cell in line) + "|" for line in lines]


def digits(number, places=0, unit=""):
    """Returns a number as text, – for None."""
    return "–" if number is None else f"{number:,.{places}f}{unit}"


def anchor(text):
    """Returns the fragment by which a heading is linked, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def link(run):
    """Returns a link to the run's section, by the date and time in its name if there are any."""
    began = re.search(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d(?=_.*_gpux)", run.name)
    return Markdown(f"[{began[0] if began else escape(run.name)}](#{anchor(run.name)})")


def last_and_best(run, tag):
    """Returns a tag's last and best value as text."""
    values = run.values(tag)
    return f"{values[-1]:.2f} / {values.max():.2f}" if len(values) else "–"


def group_title(run):
    """Returns what the runs of a group share."""
    device = run.hardware or "hardware not logged"
    return ", ".join(each for each in (run.arch, run.data, device, run.precision) if each)


def group_table(runs):
    """Returns the Markdown table of runs that may be compared."""
    word = device_word(runs)
    header = ["run", "script", word, f"batch per {device_word(runs, 1)}"]
    header += ["global batch", "precision", "epochs", "images/s", "speed-up", "efficiency"]
    header += ["training time", "time to desired accuracy", "val top-1, last / best, %"]
    header += ["val top-5, last / best, %", "ended"]
    measured = [run for run in runs if run.throughput and run.devices]
    compared = len({run.devices for run in measured}) > 1
    base = baseline(measured) if compared else None
    rows = []
    for run in runs:
        share = efficiency(run, base) if base and run in measured else None
        speedup = share and share * run.devices / base.devices
        steps = run.about.get("steps_per_epoch")
        epochs = digits(run.epochs) + (f" x {steps:,} steps" if steps and run.epochs else "")
        goal = f" ({100 * run.desired:g} %)" if run.desired else ""
        reached = clock(run.seconds_to_desired)
        ended = run.end.get("reason", "not logged")
        rate = run.throughput and f"{run.throughput[0]:,.0f}"
        if rate and len(run.values("Throughput/train")) > 2:  # one value alone does not spread
            rate += f" ± {run.throughput[1]:,.0f}"
        row = [link(run), run.script or "–", digits(run.devices), digits(run.batch)]
        row += [digits(run.global_batch), run.precision or "–", epochs]
        row += [
            rate or "–",
            digits(speedup, 2),
            digits(share and 100 * share, 1, " %"),
            clock(run.training_seconds),
        ]
        row += [("not reached" if reached == "–" else reached) + goal if run.desired else "–"]
        row += [last_and_best(run, "Top1/val"), last_and_best(run, "Top5/val"), ended]
        rows.append(row)
    return table(header, rows)


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
    return ["Images/s, and how many times those of full precision:", "", *lines, ""]


FULL = {"float32", "O0"}


def precision_rank(precision):
    """Sorts full precision first."""
    return precision not in FULL, precision


def scaling_lines(scaling):
    """Returns the Markdown lines about a scaling model."""
    fit, small, large, model = scaling
    runs = [*small, *large]
    word, gradient_bytes = device_word(runs), runs[-1].gradient_bytes
    fits = []
    for each, used in (fit, small), (model, runs):
        counts = ", ".join(str(size) for size in sorted({run.devices for run in used}))
        bandwidth = gradient_bytes / each.volume / 1e9 if gradient_bytes and each.volume else None
        row = [counts, digits(1000 * each.compute, 3), digits(1000 * each.volume, 2)]
        row += [digits(bandwidth, 2), digits(1e6 * each.latency, 1)]
        fits.append([*row, digits(100 * each.spread, 1, " %") if each.spare else "–"])
    predicted = []
    for run, error in zip(large, prediction_errors(fit, large), strict=True):
        rates = [digits(run.throughput[0]), digits(run.throughput[0] * (1 + error))]
        predicted.append([run.devices, *rates, f"{100 * error:+.1f} %"])
    header = [f"fitted on {word}", "compute, ms/image", "volume, ms", "bandwidth, GB/s"]
    lines = table([*header, "latency, µs/message", "relative residual"], fits)
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
            rows.append([link(run), run.label, *cells, digits(ratio, 3)])
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


def benchmark_table(benchmark):
    """Returns the Markdown table of a benchmark, as benchmarks/common.py writes it."""
    rows, baseline = benchmark["rows"], benchmark["baseline"]
    medians = [np.median(row["values"]) if row["values"] else None for row in rows]
    base = dict(zip([row["name"] for row in rows], medians, strict=True)).get(baseline)
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


# Whether a trial of benchmarks/chaos.py holds what was promised.
HOLDS = {True: "yes", False: Markdown("**no**"), None: "not tried"}


def benchmark_section(benchmark):
    """Returns the Markdown lines of a benchmark: table, note, and how to repeat it."""
    about, lines = benchmark["about"], [f"### {escape(benchmark['title'])}", ""]
    if "trials" in benchmark:  # of benchmarks/chaos.py
        rows = [row for rows in benchmark["trials"].values() for row in rows]
        rows = [[what, became, HOLDS[holds]] for what, became, holds in rows]
        lines += table(["trial", "outcome", "holds"], rows)
        ran = collections.defaultdict(list)
        for name, commit in benchmark["commits"].items():
            ran[commit].append(name)
        ran = "; ".join(f"{commit}: {', '.join(names)}" for commit, names in ran.items())
        note = f"{benchmark['note']} Commits, and the trials that ran with them: {ran}."
        lines += ["", escape(note)]
    else:
        rounds = max(len(row["values"]) for row in benchmark["rows"])
        note = f"Medians of {rounds}; ratios to {benchmark['baseline']}. {benchmark['note']}"
        lines += [*benchmark_table(benchmark), "", escape(note)]
    lines += ["", *fence([shlex.join(about["command"])]), ""]
    known = [f"{name} {value}" for name, value in about.items() if name != "command" and value]
    return [*lines, f"{escape('; '.join(known))}.", ""]


def repeat(about):
    """Returns the command that started a run, from what it logged."""
    place, env, options = about["place"], about.get("environment", {}), about.get("options", {})
    local, nodes = place["local_ranks"], place["ranks"] // place["local_ranks"]
    spawned = any(options.get(name) is not None for name in ("nproc_per_node", "world_size"))
    words = [word for word in about["command"][1:] if not re.match("--local[-_]rank=", word)]
    start = ["python"]
    if "TORCHELASTIC_RUN_ID" in env:
        start = ["torchrun", f"--nproc_per_node={local}"]
        if nodes > 1:
            start += [f"--nnodes={nodes}", "--node_rank=NODE", "--master_addr=NODE_0"]
    elif Path(words[0]).name == "imagenet_horovod.py" and place["ranks"] > 1:
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
        names = ("device", "cores", "threads", "node", "system", "python", "torch", "torchvision")
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
    missing = [tag for tag in [*PER_EPOCH, "Lr"] if tag not in run.series]
    lines += ["", f"Not logged: {', '.join(missing)}."] if missing else []
    return [*lines, ""]


def unused(folder, name, figures):
    """Returns a path in a folder, which no figure has or is under."""
    path = f"{folder}/{file_name(name)}"
    while any(name == path or name.startswith(f"{path}/") for name in figures):
        path += "_"
    return path


# Studies that the page has sections of: the appendix only lists their runs.
ON_PAGE = ("parity", "recipe", "transfer")


def study_section(title, runs, folder, io_csv, figures):
    """Returns the Markdown lines of runs that one study compares; adds its figures."""
    lines, groups, most = [f"## {escape(title)}", ""], defaultdict(list), 0
    for run in runs:
        groups[run.group].append(run)
    for group in groups.values():
        lines += [f"**{escape(group_title(group[0]))}**", "", *group_table(group), ""]
        if runs[0].study.startswith(ON_PAGE):
            continue
        for script, members in by_script(group).items():
            sizes, scaling = study_scaling(members)
            most = max(most, len(sizes))
            of = f" of {escape(f'imagenet_{script}.py')}" if script else ""
            if scaling:
                name = f"scaling_model_{script}" if script else "scaling_model"
                path = unused(folder, name, figures)
                figures[path] = model_figure(scaling)
                lines += [f"Scaling model{of}:", *scaling_lines(scaling)]
                lines += [image("scaling model", f"{path}.png"), ""]
            elif len(sizes) > 1:
                why = f"it takes three sizes, and there are {' and '.join(map(str, sizes))}"
                if any(run.crowded for run in members):
                    why += "; step times of processes that share cores do not measure communication"
                lines += [f"Scaling model{of}: cannot be fitted, {why}.", ""]
    if runs[0].study.startswith(ON_PAGE):
        return lines
    if most < 2:
        lines += ["Scaling model: cannot be fitted, it takes runs of three sizes.", ""]
    lines += [*precision_table(runs), *traffic_table(runs)]
    absent = []
    for name, panels in study_figures(runs, io_csv).items():
        if panels:
            lines += [image(name, f"{folder}/{name}.png"), ""]
            figures[f"{folder}/{name}"] = panels
        else:
            absent.append(name)
    return lines + ([f"Not drawn, for want of values: {', '.join(absent)}.", ""] if absent else [])
