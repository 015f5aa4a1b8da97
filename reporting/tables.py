"""Numbers and tables as Markdown, and what --show prints: studies, benchmarks and runs in full."""

import datetime
import html
import math
import re
import shlex
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd

from reporting.logs import NETWORK, PER_EPOCH
from reporting.scaling import by_script, efficiency, file_of, prediction_errors, study_scaling

FULL = "float32", "O0"  # precisions that others are compared with
HOLDS = {True: "yes", False: "no", None: "not tried"}  # whether a trial of faults passed


class Markdown(str):
    """Text that is Markdown already; all other text from logs is escaped."""


def escape(text):
    """Returns Markdown that shows a text as it is: no markup, HTML or cell of its own. Entities,
    since not every renderer takes a backslash before `<`; an underscore within a word is none."""
    if isinstance(text, Markdown):
        return text
    text = html.escape(str(text), quote=False)
    text = re.sub(r"[\\`*\[\]{}|#~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)
    return Markdown(re.sub(r"^(\d*)([-+=.)])(?=\s|[-=\s]*$)", r"\1\\\2", text))


def code(text):
    """Returns a text as code, or escaped where a renderer could see more than code in it."""
    return escape(text) if re.search("[`<&]", text) else Markdown(f"`{text}`")


def fence(lines):
    """Returns a block of shell commands, which no command can end."""
    longest = max(map(len, re.findall("`+", "\n".join(lines))), default=0)
    marks = "`" * max(3, longest + 1)
    return "\n".join([f"{marks}bash", *lines, marks])


def singular(text):
    """Returns a text in which no number 1 has a plural, as in "1 ranks"."""
    things = "core|device|epoch|file|GPU|image|node|part|rank|round|stage|step|thread|worker"
    return re.sub(rf"(?<![\w.,-])1 ({things})s\b", r"1 \1", text)


def digits(number, places=0, unit=""):
    """Returns a number as text, – for None."""
    return "–" if number is None or pd.isna(number) else f"{number:,.{places}f}{unit}"


def significant(number):
    """Returns a number as text, to three significant digits, all of them before the point."""
    size = math.floor(math.log10(abs(number))) if number else 0
    return digits(number, max(0, 2 - size))


def clock(seconds):
    """Returns seconds as h:mm:ss, – for None."""
    return "–" if seconds is None else str(datetime.timedelta(seconds=round(seconds)))


def table(rows):
    """Returns the Markdown table of a frame, or of dicts, without columns that are empty in all
    rows."""
    frame = pd.DataFrame(rows).fillna("–").astype(str)
    frame = frame.loc[:, (frame != "–").any()]
    lines = [[*frame.columns], *frame.to_numpy().tolist()]
    lines = [[escape(singular(cell)) for cell in line] for line in lines]
    lines.insert(1, ["---"] * len(frame.columns))
    return Markdown("\n".join("".join(f"| {cell} " for cell in line) + "|" for line in lines))


def device_word(runs, number=2):
    """Returns what the devices of runs are called, for so many of them."""
    kinds = {run.on_cpu for run in runs}
    word = "device" if len(kinds) > 1 else "process" if True in kinds else "GPU"
    return word if number == 1 else {"process": "processes"}.get(word, f"{word}s")


def rate_word(runs):
    """Returns what the throughput of runs counts."""
    kinds = {run.items for run in runs}
    return f"{kinds.pop() if len(kinds) == 1 else 'items'}/s"


# ------------------------------------------------------------------------------------ benchmarks


def benchmark_table(benchmark):
    """Returns the Markdown table of a benchmark, as benchmarks/common.py writes it: medians, their
    ratio to the baseline's, ranges, and the rows' own columns."""
    known = "name", "values", "median"
    rows, bases = [], [
        row for row in benchmark["rows"] if row["name"] == benchmark["baseline"] and row["values"]
    ]
    for row in benchmark["rows"]:
        values, median = row["values"], np.median(row["values"]) if row["values"] else None
        ends = [significant(each) for each in (min(values), max(values))] if values[1:] else []
        cells = {"": row["name"]}
        ratio = median / np.median(bases[0]["values"]) if bases and values else None
        cells["ratio"] = digits(ratio, 2)
        cells[benchmark["unit"]] = "–" if median is None else significant(median)
        cells["range"] = " to ".join(ends) or "–"
        for name, value in row.items():
            if name not in known:
                cells[name] = value if isinstance(value, str) else significant(value)
        rows.append({name: cell or "–" for name, cell in cells.items()} | {"": row["name"]})
    return table(rows)


def grid(benchmark, columns):
    """Returns the Markdown table of a benchmark's medians, by the last `columns` parts of its rows'
    names, as in "resnet18, 2 ranks"."""
    rows = defaultdict(dict)
    for row in benchmark["rows"]:
        parts = row["name"].split(", ")
        name, column = ", ".join(parts[:-columns]), ", ".join(parts[-columns:])
        rows[name][column] = "–" if row["median"] is None else significant(row["median"])
    return table([{"": name, **cells} for name, cells in rows.items()])


def benchmark_section(name, benchmark):
    """Returns the Markdown of a benchmark: its table, its facts, and how to repeat it."""
    about, facts = benchmark["about"], benchmark.get("facts", {})
    if "trials" in benchmark:
        rows = [row for rows in benchmark["trials"].values() for row in rows]
        rows = [{"trial": row[0], "outcome": row[1], "holds": HOLDS[row[2]]} for row in rows]
        shown = table(rows)
        ran = defaultdict(list)
        for trial, commit in benchmark["commits"].items():
            ran[commit].append(trial)
        facts = facts | {"at commit " + each: ", ".join(names) for each, names in ran.items()}
    else:
        shown = benchmark_table(benchmark)
    known = [f"{each} {value}" for each, value in {**facts, **about}.items() if each != "command"]
    command = fence([shlex.join(map(str, about["command"]))])
    title = f"### {escape(benchmark['title'])}"
    return [title, shown, command, escape("; ".join(known) + ".")]


# ------------------------------------------------------------------------------------------- runs


def last_and_best(run, tag, best=max, unit=""):
    """Returns a tag's last and best value as text."""
    values = run.values(tag)
    return f"{values[-1]:.2f} / {best(values):.2f}{unit}" if len(values) else "–"


def run_rows(runs):
    """Returns a row, {column: text}, for each of several runs; efficiency is against the base of
    those of the same group."""
    word, rate_name, rows = device_word(runs), rate_word(runs), []
    for run in runs:
        same = [each for each in runs if each.group == run.group and each.study == run.study]
        share = efficiency(run, same)
        epochs = digits(run.epochs)
        if run.steps_per_epoch and run.epochs:
            epochs += f" x {run.steps_per_epoch:,} steps"
        rate = f"{run.throughput[0]:,.0f}" if run.throughput else "–"
        if run.throughput and len(run.values("Throughput/train")) > 2:  # one alone has no spread
            rate += f" ± {run.throughput[1]:,.0f}"
        reached = clock(run.seconds_to_desired).replace("–", "not reached")
        goal = f"{reached} ({100 * run.desired:g} %)" if run.desired else "–"
        row = {"run": run.name, "study": run.study or "–"}
        row["what"] = ", ".join(each for each in (run.arch, run.data) if each) or "–"
        row |= {"hardware": run.hardware or "–", "script": run.script or "–"}
        row |= {word: digits(run.devices), "-b": digits(run.batch)}
        row |= {"global batch": digits(run.global_batch), "precision": run.precision or "–"}
        row |= {"epochs": epochs, rate_name: rate}
        base = min((each.devices for each in same if each.throughput and each.devices), default=0)
        row["speed-up"] = digits(share and share * run.devices / base, 2)
        row["efficiency"] = digits(share and 100 * share, 1, " %")
        row |= {"training time": clock(run.training_seconds), "time to desired accuracy": goal}
        row["val top-1, last / best, %"] = last_and_best(run, "Top1/val")
        row["val top-5, last / best, %"] = last_and_best(run, "Top5/val")
        row["accuracy, last / best"] = last_and_best(run, "Accuracy/val", max, " %")
        row["perplexity, last / best"] = last_and_best(run, "Perplexity/val", min)
        rows.append({**row, "ended": run.end.get("reason", "not logged")})
    return rows


def precision_table(runs):
    """Returns the Markdown table of images/s by precision, with the ratio to full precision; ""
    where each kind of run has one precision."""
    cells = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.throughput and run.precision:
            what = {"model": f"{run.arch} {run.script}".strip(), "data": run.data or "–"}
            what |= {"hardware": run.hardware or "–", device_word(runs): digits(run.devices)}
            what["batch"] = digits(run.batch)
            cells[tuple(what.items())][run.precision].append(run.throughput[0])
    if all(len(rates) < 2 for rates in cells.values()):
        return ""
    order = sorted({each for rates in cells.values() for each in rates})
    order.sort(key=lambda precision: precision not in FULL)
    rows = []
    for what, rates in cells.items():
        row, means = dict(what), {each: np.mean(rates[each]) for each in order if each in rates}
        full = next((means[each] for each in means if each in FULL), None)
        for each in order:
            ratio = f" ({means[each] / full:.2f})" if full and each in means else ""
            row[each] = f"{means[each]:,.0f}{ratio}" if each in means else "–"
        rows.append(row)
    return table(rows)


def within(value, limit, places):
    """Returns a value as text, to the digits that its 95 % limits leave: to at most so many decimal
    places, with the limit where it can be seen in them; or that it is not identified."""
    if value is None:
        return "–"
    if limit and limit >= abs(value):
        return "not identified"
    places = min(places, -math.floor(math.log10(limit))) if limit else places
    seen = f" ± {digits(round(limit, places), max(0, places))}" if round(limit, places) else ""
    return f"{digits(round(value, places), max(0, places))}{seen}"


def scaling_tables(scaling):
    """Returns the Markdown of a scaling model: its terms, and what it predicts."""
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
        row = {f"fitted on {word}": counts}
        row["compute, ms/image"] = within(1e3 * each.compute, 1e3 * compute, 3)
        row["volume, ms"] = within(1e3 * each.volume, 1e3 * volume, 2)
        limit = bandwidth and bandwidth * volume / each.volume
        row["bandwidth, GB/s"] = within(bandwidth, limit, 2)
        row["latency, µs/message"] = within(1e6 * each.latency, 1e6 * latency, 1)
        residual = digits(100 * each.spread, 1, " %") if each.spare > 1 else "–"
        fits.append({**row, "relative residual": residual})
    predicted = [
        {
            word: run.devices,
            "measured, images/s": digits(run.throughput[0]),
            "predicted, images/s": digits(run.throughput[0] * (1 + error)),
            "error": f"{100 * error:+.1f} %",
        }
        for run, error in zip(large, prediction_errors(fit, large), strict=True)
    ]
    note = "± is the 95 % limit by the residuals, as far as the model holds."
    told = f"Fitted on {small[0].devices} to {small[-1].devices} {word}, it predicts:"
    return [table(fits), note, told, table(predicted)]


def traffic_table(runs):
    """Returns the Markdown table of what runs read and sent, "" where it was not logged."""
    rows = []
    for run in runs:
        means = {"read, MB/s": "IO/read_MBps", "from disk, MB/s": "IO/disk_MBps"}
        means |= {"reads/s": "IO/read_iops", "sent, MB/step": NETWORK[0]}
        means |= {"received, MB/step": NETWORK[1], "expected, MB/step": NETWORK[2]}
        means = {name: run.mean(tag) for name, tag in means.items()}
        if not means["expected, MB/step"]:  # on a GPU, where these counters see little
            means |= {name: None for name in means if name.endswith("/step")}
        if any(mean is not None for mean in means.values()):
            rows.append({"run": run.name} | {name: digits(mean, 2) for name, mean in means.items()})
    return table(rows) if rows else ""


def study_section(name, runs):
    """Returns the Markdown of a study: its runs, their scaling models, precisions and traffic."""
    shown, most = [f"## Study {escape(name)}", table(run_rows(runs))], 0
    groups = defaultdict(list)
    for run in runs:
        groups[run.group].append(run)
    for group in groups.values():
        for script, members in by_script(group).items():
            sizes, scaling = study_scaling(members)
            most = max(most, len(sizes))
            title = f"Scaling model of {escape(file_of(script, members) or 'these')}:"
            shown += [title, *scaling_tables(scaling)] if scaling else []
    if most < 3:
        shown.append(
            "No scaling model: it takes three numbers of devices, each with cores of its own."
        )
    rest = {f"{rate_word(runs).capitalize()} by precision:": precision_table(runs)}
    traffic = "Means of what the first node's ranks read, and of all that its interfaces carried:"
    rest[traffic] = traffic_table(runs)
    return shown + [each for title, one in rest.items() if one for each in (title, one)]


def repeat(about):
    """Returns the command that started a run, from what it logged."""
    place, env, options = about["place"], about.get("environment") or {}, about.get("options", {})
    local, nodes = place["local_ranks"], place["ranks"] // place["local_ranks"]
    spawned = any(options.get(name) is not None for name in ("nproc_per_node", "world_size"))
    held, words = options.get("recipes") or {}, []
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
    """Returns the Markdown of one run: all that its log says about it, epoch by epoch."""
    shown = [f"### {escape(run.name)}"]
    if run.about:
        commands = [*dict.fromkeys(repeat(each) for each in run.starts)]
        left_out = "command", "options", "environment", "script"
        known = {name: value for name, value in run.about.items() if name not in left_out}
        known["starts"] = len(run.starts)
        options = ", ".join(f"{name}={value}" for name, value in run.options.items())
        shown += [fence(commands), pairs(known), f"Options: {code(options)}."]
    else:
        named = pairs(run.named) if run.named else "nothing"
        shown.append(f"Command, options, versions and hardware are not in the log. Name: {named}")
    shown += [f"At the end: {pairs(run.end)}"] if run.end else []
    tags = [tag for tag in [*PER_EPOCH, "Lr", "Data/wait"] if tag in run.series]
    if tags:
        columns = {tag: run.series[tag].set_index("step").value for tag in tags}
        values = pd.DataFrame(columns).map("{:.6g}".format).replace("nan", "–")
        values.insert(0, "epoch", values.index.map("{:g}".format))
        shown.append(table(values))
    return shown


def pairs(named):
    """Returns {name: value} as one escaped line."""
    texts = (
        f"{name} {round(value, 2) if isinstance(value, float) else value}"
        for name, value in named.items()
    )
    return escape("; ".join(texts) + ".")
