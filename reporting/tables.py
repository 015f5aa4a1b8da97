"""Numbers and tables as Markdown, and what --show prints: studies, benchmarks and runs in full."""

import datetime
import html
import json
import math
import re
from collections import defaultdict

import numpy as np
import pandas as pd

from reporting.logs import PER_EPOCH
from reporting.scaling import efficiency, prediction_errors, scaling_models

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


def digits(number, places=0, unit=""):
    """Returns a number as text, – for None."""
    return "–" if number is None else f"{number:,.{places}f}{unit}"


def significant(number):
    """Returns a number as text, to three significant digits, all of them before the point."""
    size = math.floor(math.log10(abs(number))) if number else 0
    return digits(number, max(0, 2 - size)) if number is not None else "–"


def clock(seconds):
    """Returns seconds as h:mm:ss, – for None."""
    return "–" if seconds is None else str(datetime.timedelta(seconds=round(seconds)))


def table(rows):
    """Returns the Markdown table of dicts, without columns that are empty in all rows."""
    frame = pd.DataFrame(rows).fillna("–").astype(str)
    frame = frame.loc[:, (frame != "–").any()]
    # A number 1 has no plural, as in "1 ranks".
    plural = r"(?<![\w.,-])1 (core|device|epoch|GPU|image|part|rank|round|step|thread|worker)s\b"
    lines = [[*frame.columns], *frame.to_numpy().tolist()]
    lines = [[escape(re.sub(plural, r"1 \1", cell)) for cell in line] for line in lines]
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


def benchmark_table(benchmark):
    """Returns the Markdown table of a benchmark, as benchmarks/common.py writes it: medians, their
    ratio to the baseline's, ranges, and the rows' own columns."""
    medians = {row["name"]: np.median(row["values"]) for row in benchmark["rows"] if row["values"]}
    base, rows = medians.get(benchmark["baseline"]), []
    for row in benchmark["rows"]:
        values, median = row["values"], medians.get(row["name"])
        ends = f"{significant(min(values))} to {significant(max(values))}" if values[1:] else "–"
        own = {each: row[each] for each in row if each not in ("name", "values", "median")}
        own = {
            each: own[each] if isinstance(own[each], str) else significant(own[each])
            for each in own
        }
        ratio = digits(median and base and median / base, 2)
        cells = {"ratio": ratio, benchmark["unit"]: significant(median), "range": ends, **own}
        rows.append({"": row["name"]} | {name: cell or "–" for name, cell in cells.items()})
    return table(rows)


def grid(benchmark, columns):
    """Returns the Markdown table of a benchmark's medians, by the last `columns` parts of its rows'
    names, as in "resnet18, 2 ranks"."""
    rows = defaultdict(dict)
    for row in benchmark["rows"]:
        parts = row["name"].split(", ")
        name, column = ", ".join(parts[:-columns]), ", ".join(parts[-columns:])
        rows[name][column] = significant(row["median"])
    return table([{"": name, **cells} for name, cells in rows.items()])


def runs_table(runs):
    """Returns the Markdown table of the runs of a study."""
    rows, columns = [], ["name", "arch", "data", "hardware", "script", "devices", "batch"]
    columns += ["global_batch", "precision", "epochs", "steps_per_epoch"]
    for run in runs:
        row = {name.replace("_", " "): vars(run)[name] or "–" for name in columns}
        row["devices"] = run.all_devices or row["devices"]
        share = efficiency(run, [each for each in runs if each.group == run.group])
        row[rate_word(runs)] = f"{run.rate:,.0f} ± {run.spread:,.0f}" if run.rate else "–"
        row["efficiency"] = digits(share and 100 * share, 1, " %")
        row["training time"] = clock(run.training_seconds)
        reached = clock(run.seconds_to_desired).replace("–", "not reached")
        row["desired"] = f"{100 * run.desired:g} % in {reached}" if run.desired else "–"
        best = {"Top1": max, "Top5": max, "Accuracy": max, "Perplexity": min}
        for tag, pick in best.items():
            values = run.values(f"{tag}/val")
            ends = f"{values[-1]:.2f} / {pick(values):.2f}" if len(values) else "–"
            row[f"val {tag.lower()}, last / best"] = ends
        rows.append({**row, "ended": run.end.get("reason", "–")})
    return table(rows)


# ------------------------------------------------------------------------------------------ --show


def in_full(name, runs, bench):
    """Returns the Markdown of a study, a benchmark or a run in full, or of "all" of them; "" where
    nothing has the name."""
    studies = defaultdict(list)
    for run in runs:
        studies[run.study or "runs"].append(run)
    sections = {each: (show_study, each, members) for each, members in studies.items()}
    sections |= {each: (show_benchmark, content) for each, content in bench.items()}
    sections |= {run.name: (show_run, run) for run in runs}
    wanted = sections if name == "all" else sections.keys() & {name}
    return "\n\n".join(part for each in wanted for part in sections[each][0](*sections[each][1:]))


def facts(content):
    """Returns what a log says in a block of code, which nothing in it can end."""
    lines = [f"{name}: {json.dumps(each, ensure_ascii=False)}" for name, each in content.items()]
    return "```\n" + "\n".join(lines).replace("`", "'") + "\n```"


def show_study(name, runs):
    """Returns the Markdown of a study: its runs, means of what they read and sent, their scaling
    models."""
    means = [{"run": run.name} for run in runs]
    for run, row in zip(runs, means, strict=True):
        for tag in (tag for tag in run.series if tag.startswith(("IO/", "Network/"))):
            row[tag] = significant(float(np.mean(run.values(tag))))
    shown = [f"## {escape(name)}", runs_table(runs)]
    shown += [table(means)] if any(len(row) > 1 for row in means) else []
    for script, scaling in scaling_models(runs):
        title = f"Scaling model of {escape(script or 'these runs')}:"
        shown += [title, *scaling_tables(scaling)]
    return shown


def scaling_tables(scaling):
    """Returns the Markdown of a scaling model: its terms with their 95 % limits, fitted on fewest
    devices and on all, and the error of what the first of them predicts."""
    fit, small, large, model = scaling
    fits, predicted = [], []
    for each, used in (fit, small), (model, [*small, *large]):
        row = {"fitted on devices": ", ".join(str(run.devices) for run in used)}
        for name, limit in zip(("compute", "volume", "latency"), each.terms_limits(), strict=True):
            known = f"{1e3 * vars(each)[name]:.4g} ± {1e3 * limit:.2g}"
            row[f"{name}, ms"] = known if limit < vars(each)[name] else "not identified"
        fits.append({**row, "relative residual": digits(100 * each.spread, 1, " %")})
    for run, error in zip(large, prediction_errors(fit, large), strict=True):
        row = {"devices": run.devices, "measured": digits(run.rate)}
        row["predicted"] = digits(run.rate * (1 + error))
        predicted.append({**row, "error": f"{100 * error:+.1f} %"})
    return [table(fits), table(predicted)]


def show_benchmark(content):
    """Returns the Markdown of a benchmark: its table, facts, command, versions and hardware."""
    if "trials" in content:
        rows = [row for rows in content["trials"].values() for row in rows]
        rows = [{"trial": row[0], "outcome": row[1], "passed": HOLDS[row[2]]} for row in rows]
        shown = table(rows)
    else:
        shown = benchmark_table(content)
    known = {**content.get("facts", {}), **content["about"], **content.get("commits", {})}
    return [f"## {escape(content['title'])}", shown, facts(known)]


def show_run(run):
    """Returns the Markdown of one run: all that its log says about it, epoch by epoch."""
    shown = [f"### {escape(run.name)}", *map(facts, run.starts), facts(run.end)]
    tags = [tag for tag in [*PER_EPOCH, "Lr", "Data/wait"] if tag in run.series]
    if tags:
        columns = {tag: run.series[tag].set_index("step").value for tag in tags}
        values = pd.DataFrame(columns).map("{:.6g}".format).replace("nan", "–")
        values.insert(0, "epoch", values.index.map("{:g}".format))
        shown.append(table(values))
    return shown
