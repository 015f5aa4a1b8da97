"""What logs say: the numbers of the page's sections, which RESULTS.md.j2 puts into sentences."""

import re
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import scipy.special

from reporting import peaks

WAYS = "from scratch", "fine-tuned", "last layer alone"
# Rows of benchmarks that the page compares.
OURS, HALF = "this project, folder", "imagenet_nd.py --amp bfloat16 --channels-last"
PYTORCH, PLAIN = "pytorch/examples", "pytorch/examples' loop"
UINT8, FLOAT32 = ["NVIDIA DALI, CPU", "FFCV, full-size JPEGs"], [PYTORCH, "timm"]
# Rows of training with the same options: of a peer, and what follows a script's name in its own.
PEERS = {
    "float32": (PLAIN, "", " --opt-level O0"),
    "bfloat16 and channels_last": (
        "timm's loop, bfloat16, channels_last",
        " --amp bfloat16 --channels-last",
        " --opt-level O1 --half-dtype bfloat16 --channels-last",
    ),
}


def best(run, tag="Top1/val"):
    """Returns the highest value of a measure, of an epoch that val/ itself has selected."""
    return float(run.values(tag).max())


def final(run, tag="Top1/val"):
    """Returns the value of a measure after the last epoch."""
    return float(run.values(tag)[-1])


def mean_final(runs):
    """Returns the mean of final()."""
    return float(np.mean([final(run) for run in runs]))


def size_of(run):
    """Returns a run's epochs and image size as text."""
    return f"{run.epochs} epochs, {run.about['image_size']} pixels"


def rows_of(bench, name):
    """Returns the rows of a benchmark that were measured, [] where there is no such benchmark."""
    return [row for row in bench.get(name, {}).get("rows", []) if row["values"]]


def gpu_rows(bench):
    """Returns the rows of training on a GPU that were measured, without the memory of CUDA graphs,
    of which PyTorch counts next to nothing."""
    return [
        {name: row[name] for name in row if "memory" not in name or "overhead" not in row["name"]}
        for row in rows_of(bench, "gpu")
    ]


def machine(about):
    """Returns on which GPU, and on what, something was measured, by which PyTorch, and when. The
    kernels of gVisor, which is 4.4.0 for all, and of Firecracker's machines tell a sandbox."""
    sandbox = re.search(r"-fc-|^Linux-4\.4\.0-", str(about.get("system", "")))
    where = f"{about.get('accelerator', 'a CPU')}{' in a sandbox' if sandbox else ''}"
    return f"{where}, PyTorch {about['torch'].partition('+')[0]}, {about['date']}"


def cores_to_feed(rows):
    """Returns {form of the images: cores} that a GPU keeps busy in its loader processes, of rows of
    gpu_loading.py: their processor time for an image x the images/s of synthetic images."""
    synthetic = [row["median"] for row in rows if row["name"] == "synthetic images"]
    used, found = "processor time of the loader, ms per image", {}
    fed = [row for row in rows if synthetic and used in row]
    for row in sorted(fed, key=lambda row: int(row["name"].rpartition(" ")[2])):
        found[row["name"].rpartition(", -j ")[0]] = row[used] / 1e3 * synthetic[0]
    return found


# ---------------------------------------------------------------------------------------- training


AIM = 95  # % top-1 on CIFAR-10, of recipes/cifar10-gpu.txt


def best_loss(run):
    """Returns the lowest validation loss, of an epoch that the validation itself selected."""
    return float(run.values("Loss/val").min())


def gpt_share(run):
    """Returns the share in % of the card's peak of a language model's training."""
    names = "layers", "hidden_size", "max_length"
    layers, width, length = (run.options[name] for name in names)
    flops = peaks.gpt_flops(layers, width, run.about["vocabulary"], length)
    return peaks.share_of_peak(run.rate * length, flops, run.about["device"])


def cluster_of(runs):
    """Returns the runs of the study with most GPUs, by number of GPUs; [] where none has three."""
    studies = defaultdict(dict)
    for run in runs:
        whole = {"Top1/val", "Top5/val", "Top1/train", "Top5/train"} <= run.series.keys()
        if run.rate and run.devices and not run.on_cpu and whole:
            studies[run.study, run.group][run.devices] = run
    best = max((each for each in studies.values() if len(each) > 2), key=max, default={})
    return [best[size] for size in sorted(best)]


def complete(cluster):
    """Returns the runs with as many epochs as any."""
    return [run for run in cluster if run.epochs == max(each.epochs for each in cluster)]


def parity_of(runs):
    """Returns, of the studies of parity, a row for each run but the first on the fewest devices of
    its model: {run, batchnorm, batch, accumulated, steps (n,), apart (n,), |difference of losses| /
    the reference's, and largest, the largest of these}, those without BatchNorm first."""
    groups, rows = defaultdict(list), []
    for run in sorted(runs, key=lambda run: (run.devices or 0, run.name)):
        if run.study.startswith("parity") and "Loss/step" in run.series:
            groups[run.arch].append(run.series["Loss/step"].set_index("step").value.rename(run))
    for arch, (reference, *others) in sorted(groups.items()):
        for losses in others:
            run, apart = losses.name, ((losses - reference).abs() / reference.abs()).dropna()
            place = run.about.get("place", {})  # stages of a pipeline share a batch
            ranks = place.get("data_ranks", place.get("shares"))  # "shares" until November 2026
            batch = run.about.get("device_batch") or run.batch
            parts = (ranks * place["devices"] if ranks else run.devices) * batch
            row = {"run": run, "batch": batch, "accumulated": run.global_batch // parts}
            row["batchnorm"] = run.items == "images" and not arch.startswith("vit")
            row |= {"steps": apart.index.to_numpy(), "apart": apart.to_numpy()}
            rows.append({**row, "largest": float(apart.max())})
    return sorted(rows, key=lambda row: (row["batchnorm"], -row["largest"]))


def study_runs(runs, begin):
    """Returns the runs of these scripts in the studies whose names begin so."""
    return [
        run
        for run in runs
        if run.study.startswith(begin)
        and {"Top1/val", "Loss/val"} <= run.series.keys()
        and {"steps_per_epoch", "image_size", "data"} <= run.about.keys()
        and "lr" in run.options
    ]


# Options in which runs of a study differ though they train by the same recipe. What a recipe's file
# held is in the other options: the file may hold something else by now. Logs until November 2026
# have log_dir, the folder above the run's.
TUNED = {"lr", "seed", "output_dir", "dir", "resume", "local_rank", "recipes", "global_batch"}
TUNED |= {"log_dir"}


def recipe_of(runs):
    """Returns what each component of a recipe gains, None where no study says it: `plain`, the runs
    of the plain recipe, which has what most runs have in each option, `base`, their mean top-1,
    `found` {what is added: runs}, in rising order, `gains` {what is added: points of each run}, and
    `longer`, the runs of other lengths or image sizes. Of the learning rates tried the one that did
    best counts; it has a run for each seed."""
    study, values, tried = study_runs(runs, "recipe"), defaultdict(list), defaultdict(list)
    size = Counter(map(size_of, study)).most_common(1)[0][0] if study else ""
    for run in (run for run in study if size_of(run) == size):
        for name in run.options.keys() - TUNED:  # older scripts had fewer options
            values[name].append(str(run.options[name]))
    usual = {name: Counter(values[name]).most_common(1)[0][0] for name in sorted(values)}
    for run in (run for run in study if size_of(run) == size):
        odd = [name for name in usual if str(run.options.get(name, usual[name])) != usual[name]]
        added = " ".join(typed(name, run.options[name]) for name in odd)
        tried[added, run.options["lr"]].append(run)
    found = {}
    for (added, _), same in sorted(tried.items(), key=lambda each: mean_final(each[1])):
        found.pop(added, None)  # at another learning rate, which did worse
        found[added] = same
    plain = found.pop("", [])
    if not (plain and found):
        return None
    base, longer = mean_final(plain), [run for run in study if size_of(run) != size]
    gains = {added: [final(run) - base for run in same] for added, same in found.items()}
    return SimpleNamespace(plain=plain, base=base, found=found, gains=gains, longer=longer)


def typed(name, value):
    """Returns an option as it is typed, or that it is not."""
    option = f"--{name.replace('_', '-')}"
    if value is False or value is None:
        return f"without {option}"
    number = f"{value:g}" if isinstance(value, float) else value
    return option if value is True else f"{option} {number}"


def transfer_of(runs):
    """Returns what weights of other classes are worth, by the study transfer_cpu, None where there
    is none: `few` {images a class: {way: run}}, `before`, the run that trained the weights, and
    `budget`, the runs that fine-tuned them in equal time."""
    few, budget, before = defaultdict(dict), [], None
    for run in study_runs(runs, "transfer_cpu"):
        shots = re.fullmatch(r".*few(\d+)", run.about["data"])
        if Path(run.about["data"]).name == "before":
            before = run
        elif shots and "test_top1" in run.end:
            way = 2 if run.options.get("freeze") else 1 if run.options.get("weights") else 0
            few[int(shots[1])][WAYS[way]] = run
        elif run.options.get("budget_hours") and "test_top1" in run.end:
            budget.append(run)
    few = {shots: few[shots] for shots in sorted(few) if len(few[shots]) == len(WAYS)}
    budget.sort(key=lambda run: run.devices)
    return SimpleNamespace(few=few, before=before, budget=budget) if few and before else None


def most_trained(runs, script, task=None):
    """Returns the run of a script that trained on most images or sequences, of equals the quickest;
    None where there is none. Runs of parity and lessons train too little."""
    mine = [
        (-run.epochs * run.steps_per_epoch * run.global_batch, run.training_seconds, run.name, run)
        for run in runs
        if run.file == script and run.options.get("task") == task and run.measure and run.learns
        if run.epochs and run.data and not run.study.startswith(("parity", "lessons"))
    ]
    return min(mine)[-1] if mine else None


# -------------------------------------------------------------------------------------- benchmarks


def against(ours, theirs):
    """Returns how the values of a row compare with another's, round by round: how many times as
    fast by the medians, or "as fast as" where these differ by at most 5 % and neither is ahead in
    the rounds by a one-sided sign test at 5 %."""
    ratio = float(np.median(ours) / np.median(theirs))
    signs = [np.sign(mine - other) for mine, other in zip(ours, theirs, strict=False)]
    wins = max(signs.count(1), signs.count(-1))
    ahead = scipy.special.bdtrc(wins - 1, len(signs), 0.5) < 0.05
    if abs(ratio - 1) <= 0.05 and not ahead:
        return "as fast as"
    return f"{ratio:.{2 if ratio < 1.1 else 1}f} times as fast as"


def beside(benchmark, ours, peers, more=""):
    """Returns how a row of a benchmark compares with those of `peers` that were measured, and
    `more` behind it; "" where none was."""
    values = {row["name"]: row["values"] for row in benchmark["rows"] if row["values"]}
    found = [peer for peer in peers if {ours, peer} <= values.keys()]
    text = ", ".join(f"{against(values[ours], values[peer])} {short(peer)}" for peer in found)
    return text and text + more


def loading(benchmark, ours=OURS, float32=FLOAT32):
    """Returns in words how loading JPEGs compares: with batches of the same dtype first."""
    parts = [beside(benchmark, ours, UINT8)]
    parts.append(beside(benchmark, ours, float32, ", whose batches are float32"))
    return "; ".join(filter(None, parts))


def loading_headline(benchmark):
    """Returns loading(), beside pytorch/examples alone, also without nvImageCodec."""
    text = loading(benchmark, OURS, [PYTORCH])
    pillow = beside(benchmark, f"{OURS}, Pillow", [PYTORCH]).removesuffix(f" as {PYTORCH}")
    return f"{text} ({pillow} without nvImageCodec)" if text and pillow else text


def short(peer):
    """Returns what a peer is called, whose row's name says more."""
    peer = peer.replace(", full-size JPEGs", " (re-encoded JPEGs)")
    return re.sub("^NVIDIA |, CPU$|'s? loop.*", "", peer)


def place(benchmark):
    """Returns where a benchmark was measured."""
    return f"{benchmark['about'].get('cores')} cores of {benchmark['about'].get('processor')}"


def median(benchmark, name):
    """Returns the median of a row of a benchmark, None where it has none."""
    return {row["name"]: row["median"] for row in benchmark["rows"]}.get(name)


def furthest(benchmark):
    """Returns the largest relative difference of losses of a benchmark's rows."""
    return max(float(row["relative difference of losses"]) for row in benchmark["rows"])


def formula_error(benchmark):
    """Returns how far the rows of a benchmark are from their formula at most, %."""
    return max(100 * abs(row["median"] / row["by formula, MB"] - 1) for row in benchmark["rows"])


def at_equal_options(bench, script="imagenet_nd.py", images="jpegs"):
    """Returns (options, the script's row, the peer's row) of training ResNet-18, for each of PEERS
    that was measured, and the script with the same options."""
    rows = {row["name"]: row for row in rows_of(bench, f"training_resnet18_{images}")}
    return [
        (options, rows[script + end], rows[peer])
        for options, (peer, *ends) in PEERS.items()
        for end in ends
        if {peer, script + end} <= rows.keys()
    ]


def equal(bench, images="jpegs"):
    """Returns in words how the rows of at_equal_options() compare."""
    benchmark = bench.get(f"training_resnet18_{images}")
    pairs = at_equal_options(bench, images=images)
    return ", ".join(
        beside(benchmark, ours["name"], [theirs["name"]], f" in {options}")
        for options, ours, theirs in pairs
    )


def where(run):
    """Returns where a run was trained."""
    cores = f"{run.about['cores']} cores of " if run.on_cpu and "cores" in run.about else ""
    return f"{cores}{run.about.get('device', 'a device not logged')}"


def whose(run):
    """Returns when and by whom a run was measured, and where it was published, as study.json says;
    "" where it says nothing."""
    year, by, source = (run.facts.get(name) for name in ("year", "by", "source"))
    if not (year or by or source):
        return ""
    words = ["measured", year and f"in {year}", by and f"by {by}", source and f"({source})"]
    text = " ".join(filter(None, words))
    return text if run.about else f"{text}; the scripts of today only read its logs"


def origins(runs):
    """Returns in sentences whose() runs are, and the notes that study.json has of them."""
    names = defaultdict(list)
    for run in runs:
        names[whose(run)].append(run.name)
    if len(names) == 1:
        sentences = [f"These runs were {said}." for said in names if said]
    else:
        sentences = [f"{', '.join(names[said])}: {said}." for said in names if said]
    notes = dict.fromkeys(f"{run.facts['note']}" for run in runs if run.facts.get("note"))
    return " ".join([*sentences, *notes])


def trials_of(bench):
    """Returns {kind, tried, passed} of each kind of trials of tests/chaos/."""
    kinds = [kind for each in bench.values() for kind in each.get("trials", {}).items()]
    passed = {name: [row[2] for row in rows if row[2] is not None] for name, rows in kinds}
    return [
        {"kind": name, "tried": len(each), "passed": sum(each)} for name, each in passed.items()
    ]


def passed(trials):
    """Returns how many trials passed, in words."""
    tried, held = (sum(each[name] for each in trials) for name in ("tried", "passed"))
    return f"All {tried}" if held == tried else f"{held} of {tried}"


def most_read(counters):
    """Returns the most GB/s and the most reads/s of a file system's counters."""
    (_, read), (_, calls) = counters
    return np.nanmax(read) / 1e9, np.nanmax(calls)


def exchange_of(bench):
    """Returns what exchanging gradients takes, None where it was not measured: `ways`, a frame of
    the rows of several ranks at the largest batch, with `speed` relative to one rank; `last`, those
    on most ranks, the fastest first; `fewest`, those on the fewest; `gradients` in MB; and `apart`
    {batch: how far the first losses of the ways are apart on most ranks, relative to the least of a
    step}."""
    rows = pd.DataFrame(rows_of(bench, "exchange"))
    if rows.empty:
        return None
    rows, apart = rows.astype({"ranks": int, "batch": int}), {}
    for batch, same in rows[rows.ranks == rows.ranks.max()].groupby("batch"):
        losses = np.array([text.split() for text in same["first losses"]], dtype=float)
        apart[batch] = (np.ptp(losses, axis=0) / losses.min(axis=0)).max()
    most = rows[rows.batch == rows.batch.max()]
    (alone,) = most[most.ranks == 1]["median"]
    ways = most[most.ranks > 1].assign(speed=alone / most["median"])
    last = ways[ways.ranks == ways.ranks.max()].sort_values("median").set_index("way")
    fewest = ways[ways.ranks == ways.ranks.min()].set_index("way")
    # By formula, gather's busiest link carries the gradients once from each of the other ranks.
    gradients = last["by formula, MB/step"]["gather"] / (rows.ranks.max() - 1)
    found = {"ways": ways, "last": last, "fewest": fewest, "gradients": gradients}
    return SimpleNamespace(**found, apart=apart)
