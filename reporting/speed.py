"""Images/s beside others': what the first screen says, and its figure."""

import re
import textwrap

import numpy as np

from reporting.report import same_as, significant
from reporting.text import escape

SPEED_NOTE = (
    "Bars in colour are this project's. Medians of rounds, in which all are measured in turn; "
    "*as fast as*: the ranges over the rounds overlap, or the medians round to 1.0 times. Batches "
    "of uint8 are normalised on the device, in the time of training. FFCV reads a file of its own, "
    "of JPEGs written anew."
)

# The rows of a figure; those that read other images, smaller or decoded before, are not among them.
LOADING = r"pytorch/examples|torchvision|timm|DALI|FFCV, full|this project(?!.*(pixels|raw))"
TRAINING = r"pytorch/examples|timm|imagenet_nd\.py"
HALF = "imagenet_nd.py --amp bfloat16 --channels-last"


def against(ours, theirs):
    """Returns how the values of a row compare with another's, in words that hold: how many times
    the median, or "as fast as" where the ranges overlap, or where the times round to 1.0."""
    times = f"{np.median(ours) / np.median(theirs):.1f}"
    overlap = min(ours) <= max(theirs) and min(theirs) <= max(ours)
    return "as fast as" if overlap or times == "1.0" else f"{times} times"


def find(benchmarks, begin, pattern):
    """Returns ({name: row} of those that match, the baseline's name, where) of the benchmark whose
    title begins so, ({}, "", "") where there is none."""
    for each in benchmarks:
        if each["title"].startswith(begin) and "rows" in each and not same_as(each):
            rows = {row["name"]: row for row in each["rows"] if re.search(pattern, row["name"])}
            about = each["about"]
            cores = (
                f"; {about['cores']} cores of {about.get('processor')}" if "cores" in about else ""
            )
            where = f"images/s, medians{cores}"
            return rows, each["baseline"], where
    return {}, "", ""


def bars_of(rows, base, is_ours):
    """Returns the bars of a panel, the fastest on top, those that were not measured last."""
    bars = []
    for name, row in rows.items():
        rate, text = 0, "not measured"
        if row["values"]:
            rate = np.median(row["values"])
            text = f"{significant(rate)}  ({rate / np.median(base):.1f} x)"
            text += f"  {row['batches']}" if row.get("batches") else ""
        name = name.replace(" reference preset", "").replace("Pillow", "without nvImageCodec")
        name = name.replace("full-size JPEGs", "JPEGs of quality 90")
        colour = "#21918c" if is_ours(name) else "#b0b0b0"
        bars.append((textwrap.fill(name, 28, break_on_hyphens=False), rate, colour, text))
    return sorted(bars, key=lambda bar: -bar[1])


def beside(ours, peers):
    """Returns how a row's values compare with those of {peer: row}."""
    parts = [f"{against(ours['values'], row['values'])} {peer}" for peer, row in peers.items()]
    return ", ".join(parts)


def panel(title, where, bars):
    """Returns a panel of bars, as draw() takes it."""
    title = textwrap.fill(title, 46, break_on_hyphens=False)
    return {"title": title, "xlabel": where, "ylabel": "", "lines": [], "bars": bars}


def loading(benchmarks):
    """Returns [(the panel of loading JPEGs, what it says in a sentence)], or []: beside those first
    whose batches are of the same type."""
    rows, base, where = find(benchmarks, "Data loading", LOADING)
    values = {name: row["values"] for name, row in rows.items()}
    if not (values.get("this project, folder") and values.get(base)):
        return []
    own, parts = rows["this project, folder"], []
    names = {
        "DALI": "NVIDIA DALI, CPU",
        "FFCV": "FFCV, full-size JPEGs",
        base: base,
        "timm": "timm",
    }
    peers = {peer: rows[name] for peer, name in names.items() if values.get(name)}
    kinds = sorted({row.get("batches", "") for row in peers.values()})
    for kind in sorted(kinds, key=lambda kind: kind != own.get("batches")):
        same = {peer: row for peer, row in peers.items() if row.get("batches", "") == kind}
        here = ", as here" if kind == own.get("batches") else ""
        parts.append(beside(own, same) + (f" ({kind} batches{here})" if kind else ""))
    claim = f"**Loading JPEGs: {escape(', '.join(parts))}**"
    if values.get("this project, folder, Pillow"):
        claim += f"; without nvImageCodec {beside(rows['this project, folder, Pillow'], peers)}"
    for peer in (peer for peer, name in names.items() if name in rows and peer not in peers):
        claim += f"; {peer} not measured"
    bars = bars_of(rows, values[base], lambda name: name.startswith("this project"))
    title = f"Loading JPEGs: {', '.join(parts).replace(' batches', '')}"
    return [(panel(title, where, bars), f"{claim} ({escape(where)}).")]


def training(benchmarks):
    """Returns [(the panel of training ResNet-18, what it says in a sentence)], or []: beside
    pytorch/examples in its precision first, then by the options that it lacks."""
    rows, base, where = find(benchmarks, "Training resnet18 on JPEGs", TRAINING)
    values = {name: row["values"] for name, row in rows.items()}
    plain, half = values.get("imagenet_nd.py"), values.get(HALF)
    if not (half and values.get(base)):
        return []
    peer, options = base.removesuffix("' loop"), HALF.removeprefix("imagenet_nd.py ")
    first = f"{against(plain, values[base])} {peer} in float32" if plain else ""
    times = against(half, values[base])
    times += "" if plain else f" {peer}"
    timm = next((row for name, row in rows.items() if "timm" in name and row["values"]), None)
    last = beside({"values": half}, {"timm": timm}) if timm else ""
    claim = [first, f"{times} by two options that it lacks ({options})"]
    claim += [f"{last} with the same"] if last else []
    short = [first, f"{times} in bfloat16", f"there {last}" if last else ""]
    title = f"Training ResNet-18: {', '.join(filter(None, short))}"
    bars = bars_of(rows, values[base], lambda name: name.startswith("imagenet"))
    claim = escape(", ".join(filter(None, claim)))
    claim = f"**Training ResNet-18 on JPEGs: {claim}** ({escape(where)})."
    return [(panel(title, where, bars), claim)]


def speed_panels(benchmarks):
    """Returns the panels of figures/speed."""
    return [axes for axes, _ in loading(benchmarks) + training(benchmarks)]


def speed_sentences(benchmarks):
    """Returns what they say, a Markdown line each."""
    return [claim for _, claim in loading(benchmarks) + training(benchmarks)]
