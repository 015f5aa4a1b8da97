"""Checkpoints and logs of two runs compared, to the bit; checkpoints damaged and forged."""

import logging
import re
import zipfile

import torch
from conftest import events, load

logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it names the points that it purges


def damage_at_random(path, how, rng):
    """Truncates, empties or flips one bit of a file; other names of the same file keep theirs."""
    content = bytearray(path.read_bytes())
    if how == "emptied":
        content.clear()
    elif how == "truncated":
        del content[rng.randrange(1, len(content)) :]
    else:
        with zipfile.ZipFile(path) as archive:
            first = archive.start_dir if how == "flipped in the directory" else 0
        content[rng.randrange(first, len(content))] ^= 1 << rng.randrange(8)
    path.unlink()
    path.write_bytes(content)


def saved(folder, name="checkpoint.pt"):
    """Returns the newest checkpoint of this name in a run's folder, or one of runs, or None."""
    found = [*folder.glob(f"**/{name}")]
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


def differences(one, other, where=""):
    """Returns where two checkpoints differ, to the bit; times, traffic and options aside."""
    if isinstance(one, dict) and isinstance(other, dict):
        aside = r"args|seconds|traffic|waited"
        keys = [key for key in {**one, **other} if not re.fullmatch(aside, str(key))]
        pairs = [(one.get(key), other.get(key), f"{where}/{key}") for key in keys]
        return [each for pair in pairs for each in differences(*pair)]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [each for n, pair in pairs for each in differences(*pair, f"{where}/{n}")]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and torch.equal(one, other)
    else:
        same = type(one) is type(other) and one == other
    return [] if same else [where]


def logged(folder):
    """Returns {(tag, step): values} of all points that the runs in a folder have logged."""
    points = {}
    for run in {path.parent for path in folder.glob("**/*tfevents*")}:
        log = events(run)
        for tag in log.Tags()["scalars"]:
            for event in log.Scalars(tag):
                points.setdefault((tag, event.step), set()).add(event.value)
    return points


def lost(whole, cut, damaged=False):
    """Returns where the last and the best checkpoint of two folders of runs differ, and their logs:
    a point is missing, or logged with another value. What is timed differs, but is logged with one
    value, unless it is validation's, or the newest checkpoint was damaged after its epoch ended."""
    odd = []
    for name in "checkpoint.pt", "model_best.pt":
        paths = saved(whole, name), saved(cut, name)
        there = [load(path) if path else None for path in paths]
        odd += [f"{name}{each}" for each in differences(*there)] if any(there) else [name]
    points, found = logged(whole), logged(cut)
    for tag, step in sorted({**points, **found}):
        theirs, mine = points.get((tag, step), set()), found.get((tag, step), set())
        same = mine == theirs
        if re.match("Throughput|Time|Data|IO|Network", tag):
            many = damaged or tag in ("Throughput/val", "Time/val")
            same = theirs and mine and (many or len(mine) == 1)
        odd += [] if same else [f"{tag} of {step}"]
    return odd


def verdict(odd):
    """Returns an outcome in words: what lost() has found."""
    equal = "checkpoint.pt, model_best.pt and log equal to the uninterrupted run's to the bit"
    return f"{len(odd)} entries differ, as {', '.join(odd[:2])}" if odd else equal
