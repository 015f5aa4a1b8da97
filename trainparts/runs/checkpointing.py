"""Checkpoints of a run: the last three and the best one, written, found and compared with options.

Use it to save a run so that a kill at any time leaves an intact checkpoint, and to find the newest
intact one. What a checkpoint contains is the script's; these scripts' have METADATA and TENSORS.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import errno
import functools
import math
import os
import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypedDict, cast

import numpy as np
import torch
from torch import nn, serialization

from trainparts import errors, option_types, safe_files
from trainparts.runs import event_log, run_folder

__all__ = ["newest_checkpoint", "write_best", "write_newest"]

# The last three checkpoints, newest first, and the best one.
CHECKPOINTS = ("checkpoint.pt", "checkpoint-1.pt", "checkpoint-2.pt", "model_best.pt")
METADATA = set("epoch step partial global_batch peak_lr scaler seconds args".split())
TENSORS = {"state_dict", "optimizer", "ema"}
NEEDS = METADATA | TENSORS


class Metadata(TypedDict, total=False):
    """What a checkpoint says besides its tensors, as far as this package reads it; what the task
    says of its model is in it, too."""

    epoch: int  # epochs done
    step: int  # steps done in the next one
    partial: dict | None  # sums and clock of an epoch that is not over
    global_batch: int
    peak_lr: float
    scaler: dict[str, float]
    seconds: float  # trained so far
    args: dict[str, option_types.Value]
    not_default: dict[str, option_types.Value]
    trainparts: str  # version and digest of this package
    path: str  # of the file; this and what follows is load_checkpoint()'s
    in_place: bool  # whether it is of the run in --output-dir
    group: dict[str, float]  # of the optimizer: learning rate, and timm's count of steps
    logged: list[int]  # epochs in the log of that run, from 1
    end: dict[str, option_types.Value]  # what was logged when it ended


def write_newest(
    folder: str | os.PathLike[str], *, checkpoint: dict, keep_every: int | None = None
) -> None:
    """Writes {name: value} as the newest checkpoint of a folder, which keeps two older ones; every
    so many epochs also as one that stays, if its "step" is 0. Raises BadInput, as
    check_checkpoint() does, and Fault or BadInput if it cannot be written; the newest one is intact
    then."""
    check_checkpoint(checkpoint)
    folder = Path(folder)
    newest, second, third, _ = (folder / name for name in CHECKPOINTS)
    # Links, not renames: after a kill at any time, the newest intact file still has its name; and
    # an older one loses its name only to a link that could be made.
    for older, newer in (third, second), (second, newest):
        link = older.with_suffix(".tmp")
        with contextlib.suppress(OSError):  # no such file yet, or a file system without links
            link.unlink(missing_ok=True)
            os.link(newer, link)
            os.replace(link, older)
            link.unlink(missing_ok=True)  # nothing was replaced if both are one file
    save = functools.partial(torch.save, checkpoint)
    safe_files.write_atomically(newest, save=save)
    if keep_every and checkpoint["step"] == 0 and checkpoint["epoch"] % keep_every == 0:
        safe_files.write_atomically(folder / f"epoch-{checkpoint['epoch']}.pt", save=save)


def write_best(folder: str | os.PathLike[str], *, checkpoint: dict) -> None:
    """Writes {name: value} as the best checkpoint of a folder. Raises Fault or BadInput if it
    cannot, as write_newest() does; what was there is intact then."""
    check_checkpoint(checkpoint)
    save = functools.partial(torch.save, checkpoint)
    safe_files.write_atomically(Path(folder, CHECKPOINTS[-1]), save=save)


# What safe_files.load_file() reads.
CONTAINERS = (dict, collections.OrderedDict, collections.Counter, list, tuple, set)
VALUES = (torch.Tensor, nn.Parameter, bool, int, float, complex, str, bytes, bytearray, type(None))
VALUES += (np.float64, np.float32, torch.dtype, torch.device, torch.layout, torch.Size)


def check_checkpoint(value: safe_files.Content, *path: object) -> None:
    """Raises BadInput, which names the key, if a tensor in a checkpoint is not finite, or if it has
    an object that would be refused when it is read. `path` are the keys that lead to the value."""
    kind, why = type(value), ""
    if kind is argparse.Namespace:
        value, kind = vars(value), dict
    if isinstance(value, dict) and kind in CONTAINERS:
        for name, each in value.items():
            check_checkpoint(name, *path, name)
            check_checkpoint(each, *path, name)
    elif isinstance(value, list | tuple | set) and kind in CONTAINERS:
        for number, each in enumerate(value):
            check_checkpoint(each, *path, number)
    elif kind not in VALUES and kind not in serialization.get_safe_globals():
        why = f"is of the class {kind.__module__}.{kind.__qualname__}, which would be refused when "
        why += "it is read: save tensors, numbers, text, and dicts and lists of these"
    elif isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
        numbers = value.float() if value.element_size() == 1 else value  # float8 has no sum
        if value.is_meta:
            why = "is on the meta device, and has no values"
        elif not (numbers.sum().isfinite() or numbers.isfinite().all()):  # a sum may overflow
            why = "is not finite: lower the learning rate"
    if isinstance(value, torch.Tensor | collections.OrderedDict):
        for name, each in vars(value).items():  # its attributes are saved, too
            check_checkpoint(each, *path, name)
    if why:
        where = errors.printable(".".join(map(str, path)))
        what = f"{where} of the checkpoint" if path else "the checkpoint"
        raise errors.BadInput(f"{what} {why}; old checkpoints are intact")


def load_checkpoint(
    must_fit: Collection[str],
    *,
    output_dir: str | None,
    resume: str | None,
    evaluate: bool,
    start_epoch: int | None,
    optimizer: str,
    averages: bool,
) -> tuple[Metadata, dict] | tuple[None, None]:
    """Returns (metadata, tensors) of the checkpoint to go on from, or (None, None). Rank 0 calls it
    alone, because other nodes may have other disks. `must_fit` are names of what a checkpoint of
    this task says of its model; `averages` says whether the run has averages of its weights; the
    others are options of these names.

    A checkpoint is verified in these places: load_file() compares its checksums, and executes
    nothing; read_checkpoint() looks for METADATA and TENSORS; newest_checkpoint() falls back to an
    older one if one is damaged; this function tells other tasks' apart; check_resumed() compares
    options and check_model() the model; saved_pairs() compares names and shapes of all tensors
    before it changes one. write_newest() has refused weights that are not finite."""
    found = find_checkpoint(output_dir, resume, evaluate, start_epoch)
    if found is None:
        return None, None
    path, metadata, in_place = found
    own = {*must_fit} - {"arch", "model_options"}  # which other tasks have, too
    if own and not own & metadata.keys():
        raise errors.BadInput(f"{path} is a checkpoint of scripts for another task")
    tensors = {name: metadata.pop(name) for name in TENSORS}
    groups = tensors["optimizer"]["param_groups"]
    rate = max(group.get("lr", 0) / (group.get("lr_scale") or 1) for group in groups)
    # Evaluation needs no optimizer's state, and another optimizer cannot take it.
    if evaluate or optimizer != metadata["args"]["optimizer"]:
        tensors["optimizer"] = {"state": {}, "param_groups": [{}]}
    # Making the optimizer's state will change the rate, and the steps that timm's optimizers count,
    # so both are kept here.
    steps = tensors["optimizer"]["param_groups"][0].get("step", 0)
    metadata["group"] = {"lr": float(rate), "step": float(steps)}
    trained = metadata.pop("trained", None)  # of model_best.pt under --ema
    if averages and trained:
        tensors |= {"ema": tensors["state_dict"], "state_dict": trained}
    if evaluate and tensors["ema"]:  # as the run itself validates; counters stay integers
        dtypes = {name: weight.dtype for name, weight in tensors["state_dict"].items()}
        averaged = tensors["ema"].items()
        tensors["state_dict"] = {name: each.to(dtypes[name]) for name, each in averaged}
    # Without averages in the file, they begin at the weights.
    tensors["ema"] = (tensors["ema"] or tensors["state_dict"]) if averages else None
    metadata |= {"path": str(path), "in_place": in_place}
    if in_place:
        metadata["logged"], metadata["end"], _foreign = event_log.read_log(path.parent)
    return cast("Metadata", metadata), tensors


def find_checkpoint(
    output_dir: str | None, resume: str | None, evaluate: bool, start_epoch: int | None
) -> tuple[Path, dict, bool] | None:
    """Returns (path, checkpoint, whether it is of the run in --output-dir), or None to begin from
    scratch. A checkpoint in --output-dir takes precedence over --resume, so one command begins a
    run from a file, and resumes it however often it is typed. Unless `evaluate` is set, this
    function locks the folder --output-dir, which it makes if there is none."""
    if output_dir and not (evaluate and resume):
        folder = Path(output_dir)
        if not evaluate:
            # Locked before it is read: the run that holds it may be saving.
            run_folder.open_folder(folder, option="--output-dir")
        if newest := newest_checkpoint(folder, needs=NEEDS, option="--output-dir"):
            path, saved = newest
            if not evaluate:
                refuse_to_go_back(resume, start_epoch, path, saved)
            return path, saved, not evaluate
        if evaluate:
            raise errors.BadInput(f"--output-dir {folder} has no checkpoint")
        epochs, _end, foreign = event_log.read_log(folder)
        if foreign:  # of finished epochs too, since each is saved before it is logged
            has = f"a log of {len(epochs)} epochs" if epochs else "the log of something else"
            what = "move it back, or give another --output-dir"
            raise errors.BadInput(f"--output-dir {folder} has {has}, and no checkpoint: {what}")
    if not resume:
        return None
    path = Path(resume)
    if not (errors.look_at(path) and os.path.isdir(path)):
        return path, read_checkpoint(path), False
    if newest := newest_checkpoint(path, needs=NEEDS, option="--resume"):
        return *newest, False
    raise errors.BadInput(f"--resume {resume} has no checkpoint")


def newest_checkpoint(
    folder: str | os.PathLike[str], *, needs: Collection[str] = (), option: str = ""
) -> tuple[Path, dict] | None:
    """Returns (path, checkpoint) of the newest intact one in a folder, None if there is none: what
    write_newest() or write_best() wrote, with its tensors in host memory; nothing in it is
    executed. A damaged one, or one without the names that it `needs`, is skipped, and logged.
    Raises BadInput if none of them is intact, and Fault if one cannot be read now: a run must not
    resume from an older one, or start from scratch, because a disk does not answer. Errors name the
    `option` by which the folder was typed."""
    folder = Path(folder)
    what = f"{option} {folder}".strip()
    try:
        there = os.listdir(folder)
    except (OSError, ValueError) as error:
        there_is = os.path.isdir(folder) or os.path.islink(folder)
        wrong = not there_is or getattr(error, "errno", None) == errno.ELOOP
        raise errors.storage_error(what, error, typed=wrong) from None
    *last_three, best = CHECKPOINTS
    kept = [name for name in there if re.fullmatch(r"epoch-\d+\.pt", name)]
    kept.sort(key=lambda name: -int(name[6:-3]))
    found, damaged = [], 0
    for names in last_three, kept, [best]:  # of each kind the newest, by name: clocks may change
        for name in names:
            if name in there:
                try:
                    saved = read_checkpoint(folder / name, typed=False, needs=needs)
                    found.append((folder / name, saved))
                    break
                except errors.Damaged as error:
                    errors.LOG.warning("%s skips %s", what, error)
                    damaged += 1
        if found and found[0][0].name == CHECKPOINTS[0]:
            break  # the others are older
    if damaged and not found:
        raise errors.BadInput(f"{what}: none of its {damaged} checkpoints is intact")
    if not found:
        return None
    # Of those that are equally far, the first: of a loop that counts no epochs, the newest by name.
    return max(found, key=lambda each: (each[1].get("epoch", 0), each[1].get("step", 0)))


def refuse_to_go_back(resume: str | None, start_epoch: int | None, path: Path, saved: dict) -> None:
    """Raises BadInput if --resume or --start-epoch names an earlier state of the run in
    --output-dir than its checkpoint, `saved` in `path`. What began the run may be typed again."""
    folder, begin = path.parent, Path(resume or path)
    back = "to go back, give another --output-dir, and an older checkpoint as --resume"
    inside = begin.parent.resolve() == folder.resolve() and not begin.is_dir()
    newest = {(folder / CHECKPOINTS[0]).resolve(), path.resolve()}
    if inside and begin.resolve() not in newest and resume != saved["args"].get("resume"):
        raise errors.BadInput(f"--resume {begin}: {folder} resumes from {path.name}; {back}")
    if start_epoch not in (None, saved["args"].get("start_epoch")):
        at = f"{path} is of epoch {saved['epoch']}"
        raise errors.BadInput(f"--start-epoch {start_epoch}: {at}; {back}")
    if not inside and begin.resolve() != folder.resolve():
        errors.print_line(f"--resume {begin} is ignored: {folder} has checkpoints of its own")


def check_resumed(
    metadata: Metadata,
    must_fit: Collection[str],
    *,
    options: Mapping[str, option_types.Value],
    typed: Mapping[str, option_types.Value],
    global_batch: int,
    peak: float,
    base_batch: int | None,
) -> str:
    """Raises BadInput if a run would resume with other options than its checkpoint's. If the
    checkpoint is another run's, returns how the options differ, as text. `options` are those that
    define what is trained; `typed` has those of them that are not at their defaults. `peak` is the
    peak learning rate, and `base_batch` the batch that --base-lr is for, or None without that
    option."""
    rate = "peak learning rate"
    if math.isclose(peak, metadata["peak_lr"]):  # however it was typed
        peak = metadata["peak_lr"]
    mine = dict(options) | {"global_batch": global_batch, rate: peak}
    theirs = metadata["args"] | {
        "global_batch": metadata["global_batch"],
        rate: metadata["peak_lr"],
    }
    # An option that another script lacks has its default there.
    theirs |= dict.fromkeys(typed.keys() - theirs.keys())
    mine |= dict.fromkeys(metadata.get("not_default", {}).keys() - mine.keys())
    found = list_differences(theirs, mine)
    if found and metadata["in_place"]:
        folder = shlex.quote(str(Path(metadata["path"]).parent))
        if base_batch and peak != metadata["peak_lr"]:
            same = metadata["peak_lr"] * base_batch / metadata["global_batch"]
            found += f", which --base-lr {same!r} keeps"
        other = "give another --output-dir"
        if all(theirs.get(name) == mine[name] for name in must_fit if name in mine):
            weights = shlex.quote(metadata["path"])
            other += f", with --resume {folder} to begin there from this one"
            other += f", or --weights {weights} from its weights alone"
        raise errors.BadInput(
            f"--output-dir {folder} was trained with other options: {found}; {other}"
        )
    return found


def check_model(
    metadata: Metadata, must_fit: Collection[str], about: Mapping[str, option_types.Value]
) -> None:
    """Raises BadInput unless the checkpoint with this metadata and `about`, what a run says of its
    model, have the same values for the names in `must_fit`. Names that are empty in `about` are not
    compared."""
    mine = {name: about[name] for name in must_fit if about[name]}
    theirs = {name: metadata.get(name) for name in mine}
    if found := list_differences(theirs, mine):
        arch = theirs.get("arch")
        advice = f": type -a {arch}" if arch != mine.get("arch") else ""
        raise errors.BadInput(f"{metadata['path']} differs in {found}{advice}")


def where_to_resume(metadata: Metadata, global_batch: int, steps: int) -> tuple[int, int]:
    """Returns (epochs done, steps done in the next one) of a run that resumes from the checkpoint
    with this metadata, which may have been saved with another global batch; `steps` is the number
    of steps in an epoch. A checkpoint saved after an epoch's last step gives that epoch with all
    its steps done, since its validation comes next."""
    step = math.ceil(metadata["step"] * metadata["global_batch"] / global_batch)
    if step == 0:
        return metadata["epoch"] - 1, steps
    return metadata["epoch"], min(step, steps)


def check_epochs_left(metadata: Metadata, epochs: int, done: float) -> None:
    """Raises BadInput if a run that begins from the checkpoint with this metadata has no epoch left
    to train: so many are `done`, of `epochs`."""
    if done >= epochs:
        has = f"{metadata['path']} has {metadata['epoch']} of --epochs {epochs}"
        weights = f"--weights {shlex.quote(metadata['path'])}"
        advice = f"raise --epochs, or {weights} starts from its weights"
        raise errors.BadInput(f"nothing is left to train: {has}; {advice}")


def list_differences(theirs: Mapping[str, object], mine: Mapping[str, object]) -> str:
    """Returns how {name: value} of another run or rank differ from this one's, as text."""
    names = [name for name in mine if name in theirs and theirs[name] != mine[name]]
    found = (f"{name.replace('_', '-')} ({theirs[name]}, here {mine[name]})" for name in names)
    return ", ".join(found)[:500]


def read_checkpoint(path: Path, typed: bool = True, needs: Collection[str] = NEEDS) -> dict:
    """Returns a checkpoint that has the names in `needs`, by default one of these scripts; raises
    Damaged if the file is none, and Fault if it cannot be read now. `typed`: the path is one that
    the user has typed."""
    saved = safe_files.load_file(path, typed=typed)
    if not isinstance(saved, dict) or not {*needs} <= saved.keys():
        if needs != NEEDS:
            lacks = ", ".join(sorted({*needs} - {*(saved if isinstance(saved, dict) else ())}))
            why = f"it lacks {lacks}" if lacks else "it is no dict"
            raise errors.Damaged(f"{path} is not a checkpoint of this program: {why}")
        others = "--weights loads those of other projects"
        raise errors.Damaged(f"{path} is not a checkpoint of these scripts; {others}")
    return saved
