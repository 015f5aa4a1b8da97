"""The claim of each script: what it has reached, or how fast it is, by the committed logs."""

import re
import textwrap
from pathlib import Path

import numpy as np

from reporting.draw import clock, device_word
from reporting.language import TITLES as OF_TEXT
from reporting.language import learned
from reporting.language import reached as reached_by_text
from reporting.parallel import TITLES, rows_of

MARK = "Measured: "


def claims(runs, benchmarks):
    """Returns {script: the lines in its docstring that say what was measured with it}; a script of
    which nothing was has none."""
    titles = {each["title"]: each for each in benchmarks if "rows" in each}
    found = {}
    for script, title, claim in [
        ("imagenet_exchange.py", TITLES["exchange"], sent),
        ("imagenet_fsdp.py", TITLES["memory"], held),
        ("imagenet_pipeline.py", TITLES["bubble"], idle),
        ("text_ddp.py", OF_TEXT["albert"], by_ranks),
        ("text_exchange.py", OF_TEXT["traffic"], carried),
        ("text_fsdp.py", OF_TEXT["gathers"], gathered),
        ("text_horovod.py", OF_TEXT["albert"], in_half),
        ("text_pipeline.py", OF_TEXT["stages"], cut),
    ]:
        rows = rows_of(benchmarks, title)
        text = claim(rows) if rows else ""
        found[script] = [(text, place(titles[title]))] if text else []
    found["text_nd.py"] = [(reached_by_text(run), where(run)) for run in learned(runs).values()]
    loops = [titles[title] for title in titles if re.match(r"Training \w+ on JPEGs", title)]
    images = {run.file for run in runs if run.file.startswith("imagenet_")}
    for script in sorted(images - {*found}):
        found[script] = reached(script, runs) + fast(script, loops)
    lines = {}
    for script, parts in found.items():
        if parts:
            claim = "; ".join([*dict(parts), *dict.fromkeys(where for _, where in parts)])
            lines[script] = textwrap.fill(f"{MARK}{claim}.", 100, break_on_hyphens=False)
    return lines


def where(run):
    """Returns where a run was trained."""
    cores = f"{run.about['cores']} cores of " if run.on_cpu and "cores" in run.about else ""
    return f"{cores}{run.about.get('device', 'a device not logged')}"


def place(benchmark):
    """Returns where a benchmark was measured."""
    about = benchmark["about"]
    return f"{about.get('cores')} cores of {about.get('processor')}"


def reached(script, runs):
    """Returns [(what the run of a script reached that trained on most images, of equals the
    quickest, where)], [] where there is none; runs of parity and lessons train too little."""
    wanted = {"data", "image_size", "steps_per_epoch", "device"}
    mine = [run for run in runs if run.learns and run.file == script]
    mine = [run for run in mine if "Top1/val" in run.series and wanted <= run.about.keys()]
    mine = [run for run in mine if not run.study.startswith(("parity", "lessons"))]
    if not mine:
        return []
    steps = [run.epochs * run.about["steps_per_epoch"] for run in mine]
    order = [
        (-each * run.global_batch, run.training_seconds)
        for run, each in zip(mine, steps, strict=True)
    ]
    run = mine[order.index(min(order))]
    what = f"{Path(run.about['data']).name} ({run.about['image_size']} pixels)"
    text = f"{run.arch} to {run.values('Top1/val')[-1]:.1f} % top-1 on {what}, {run.epochs} x "
    text += f"{run.about['steps_per_epoch']} steps in {clock(run.training_seconds)}"
    text += f", {run.devices} {device_word([run], run.devices)}" if run.devices > 1 else ""
    return [(text, where(run))]


def fast(script, benchmarks):
    """Returns [(images/s of a script's fastest row against the baseline's, where)], or []."""
    for each in benchmarks:
        rates = {row["name"]: np.median(row["values"]) for row in each["rows"] if row["values"]}
        mine = [name for name in rates if name.split()[0] == script]
        if mine and each["baseline"] in rates:
            best = max(mine, key=rates.get)
            arch, size = re.match(r"Training (\w+).* (\d+ pixels)", each["title"]).groups()
            half = " in bfloat16" if "bfloat16" in best else ""
            times = rates[best] / rates[each["baseline"]]
            text = f"{arch} at {size}: {rates[best]:.1f} images/s{half}, {times:.1f} times "
            return [(text + each["baseline"].removesuffix("' loop"), place(each))]
    return []


def sent(rows):
    """Returns what imagenet_exchange.py's ways send, on most ranks with the largest batch."""
    sizes = [(int(row["ranks"]), int(row["batch"])) for row in rows]
    most, batch = max(sizes)
    rows = [row for row, size in zip(rows, sizes, strict=True) if size == (most, batch)]
    busy = {row["way"]: row["busiest link, MB/step"] for row in rows if row["way"] != "ddp"}
    worst, best = max(busy, key=busy.get), min(busy, key=busy.get)
    text = f"{most} ranks that train resnet18 send {busy[worst]:.0f} MB a step over the busiest "
    return f"{text}link by {worst}, {busy[best]:.0f} MB by {best}"


def held(rows):
    """Returns what a rank holds under imagenet_fsdp.py, of the largest model on most ranks."""
    sizes = [(int(row["ranks"]), row["median"], row["name"]) for row in rows]
    ranks, whole, name = max(sizes)
    (shard,) = [size for _, size, other in sizes if other == name.replace("ddp", "fsdp")]
    text = f"of {name.split(',')[0]}'s weights, gradients and momentum each of {ranks} ranks holds "
    return f"{text}{shard:.1f} MB, under DDP {whole:.0f} MB"


def idle(rows):
    """Returns the idle time of imagenet_pipeline.py's stages, by fewest and most micro-batches."""
    found = [(int(row["micro-batches"]), -row["median"], row["way"]) for row in rows]
    (few, most, _), (many, least, way) = min(found), max(found)
    text = f"two stages of resnet18 idle {-most:.0f} % of the time with {few} micro-batch, "
    return f"{text}{-least:.0f} % with {many} ({way})"


def by_ranks(rows):
    """Returns what ranks of text_ddp.py gain, of the largest batch."""
    rows = [row for row in rows if (row["way"], row["precision"]) == ("ddp", "float32")]
    rates = {int(row["ranks"]): row["median"] for row in widest(rows)}
    if len(rates) < 2:
        return ""
    few, many = min(rates), max(rates)
    text = f"ALBERT, a batch of {widest(rows)[0]['batch']} each: {many} ranks that share the cores "
    gain = rates[many] / rates[few]
    return f"{text}train {rates[many]:.0f} sequences/s, {gain:.2f} times those of {few}"


def widest(rows):
    """Returns the rows of the largest batch."""
    largest = max((int(row["batch"]) for row in rows), default=0)
    return [row for row in rows if int(row["batch"]) == largest]


def in_half(rows):
    """Returns what text_horovod.py gains by an exchange in float16, of the smallest and the largest
    batch."""
    rows = [row for row in rows if row["way"] == "horovod"]
    sizes = sorted({int(row["batch"]) for row in rows})
    rates = {(int(row["batch"]), row["precision"]): row["median"] for row in rows}
    if not sizes or len(rates) < 2 * len(sizes):
        return ""
    times = [rates[size, "fp16 exchange"] / rates[size, "float32"] for size in sizes]
    text = f"ALBERT on {rows[0]['ranks']} ranks by --fp16-allreduce: {times[0]:.2f} times the "
    text += f"sequences/s at a batch of {sizes[0]}, {times[-1]:.2f} at {sizes[-1]}"
    return f"{text} ({rates[sizes[-1], 'float32']:.0f} in float32)"


def carried(rows):
    """Returns what text_exchange.py's ways send of bert-base's gradients."""
    rates = {row["name"]: row["median"] for row in rows}
    worst, best = max(rates, key=rates.get), min(rates, key=rates.get)
    text = f"{rows[0]['ranks']} ranks that train bert-base send {rates[worst]:,.0f} MB a step over "
    return f"{text}rank 0's link by {worst}, {rates[best]:,.0f} MB by {best}"


def gathered(rows):
    """Returns how often text_fsdp.py gathers what, blocks gathered again for backward()."""
    rows = [row for row in rows if ", not " not in row["name"]]
    parts = [
        f"{row['name'].split(',')[0]}'s {row['model, MB']:.0f} MB are gathered "
        f"{row['median']:.1f} times a step, in {row['gathers a step']} parts"
        for row in sorted(rows, key=lambda row: -row["median"])
    ]
    return "; ".join(parts)


def cut(rows):
    """Returns what text_pipeline.py's stages take, against one device."""
    times = {row["name"]: row["median"] for row in rows}
    apart = max(float(row["relative difference of losses"]) for row in rows)
    (stages,) = [row["name"] for row in rows if row["script"] == "text_pipeline.py"] or [""]
    if "one device" not in times or not stages:
        return ""
    text = f"a language model of two layers takes {times[stages]:.0f} ms a batch in {stages}, "
    return f"{text}{times['one device']:.0f} on one device; losses within {apart:.0e}"


def stale_claims(folder, wanted):
    """Returns what is wrong with each script in a folder whose docstring has another claim than
    {script: claim} has for it."""
    lines = []
    for path in sorted([*folder.glob("imagenet_*.py"), *folder.glob("text_*.py")]):
        _, docstring, *_ = f'{path.read_text(encoding="utf-8")}""""""'.split('"""')
        there = re.search(rf"(?ms)^{MARK}.*?(?=\n\s*\n|\Z)", docstring)
        there, claim = (there[0].strip() if there else ""), wanted.get(path.name, "")
        if there != claim:
            what = f"should be in its docstring:\n{claim}" if claim else "is in no log: take it out"
            lines.append(f"{path.name}: what was measured {what}")
    return lines
