"""Lines about a run for people: its batches, how to resume it, how to use less memory.

Use it to print, at the start and at the end of a run, what to type next.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from trainparts import option_types, package_digest
from trainparts.runs import checkpointing


def about_rate(optimizer: str, lr: float, usual_optimizer: str, usual_lr: float) -> list[str]:
    """Returns a line if `lr` is the usual one, which is meant for an optimizer of the other family:
    the rates of SGD, Nesterov's and LARS are many times those of Adam and its kin."""
    family = ("sgd", "nesterov", "lars")
    if lr != usual_lr or (usual_optimizer in family) == (optimizer in family):
        return []
    return [f"--lr {lr} is meant for {usual_optimizer}, not for {optimizer}: set --lr"]


def about_resuming(
    metadata: checkpointing.Metadata, *, epochs: int, epoch: int, step: int, steps: int
) -> list[str]:
    """Returns lines on a run of `epochs` epochs that resumes from the checkpoint with this
    metadata, after `epoch` epochs and `step` of the `steps` in the next one."""
    lines, before = [], metadata["args"]["epochs"]
    if before != epochs:
        lines.append(f"--epochs {epochs}, before {before}: the learning rate follows the new one")
    done, rest = divmod(epoch * steps + step, steps)
    after = f"{done} of {epochs} epochs" + f" and {rest} steps" * bool(rest)
    lines.append(f"Resuming {metadata['path']} after {after}")
    saved_by = metadata.get("trainparts", package_digest.IDENTITY)  # checkpoints before 0.2 lack it
    if saved_by != package_digest.IDENTITY:
        lines.append(f"It was saved with trainparts {saved_by}, this is {package_digest.IDENTITY}")
    if metadata["in_place"] and max(metadata["logged"], default=0) > epoch + 1:
        lines.append("The log has later epochs: they are trained again")
    return lines


def about_folder(folder: Path, output_dir: str | None, resume: str | None) -> list[str]:
    """Returns lines, as a run begins, on its folder and on how to resume it; `output_dir` and
    `resume` are the options as they were typed, or None."""
    which = f": {folder}" if output_dir else " of this run"
    lines = [f"Logs and checkpoints{which}; {how_to_resume(output_dir, folder)}"]
    if resume and not output_dir:
        lines.insert(0, f"The same command again begins from {resume} again, in another folder")
    return lines


def how_to_resume(output_dir: str | None, folder: Path | None) -> str:
    """Returns what to type to resume the run in a folder, in words; `output_dir` is --output-dir as
    it was typed, or None."""
    if output_dir:
        return "the same command again resumes it"
    return f"to resume it, add to the command: --output-dir {shlex.quote(str(folder))}"


def with_smaller_batch(
    device_batch: int,
    global_batch: int,
    folder: Path | None,
    *,
    accumulation: int,
    base_lr: float | None,
    compile_mode: str,
) -> str:
    """Returns what to add to a command to train the same curve with a smaller batch of a device, in
    words. `accumulation` and `compile_mode` are the command's; `base_lr` is what --base-lr has to
    be with the smaller batch, or None without it."""
    words = [f"-b {device_batch} --global-batch {global_batch}"]
    if accumulation != 1:  # it and --global-batch exclude each other
        words.append("--accumulation 1")
    if base_lr:
        words.append(f"--base-lr {base_lr!r}")
    if compile_mode != "default":  # the others cannot accumulate
        words.append("--compile-mode default")
    if folder:
        words.append(f"--output-dir {shlex.quote(str(folder))}")
    same = "the run resumes on the same curve, except for BatchNorm's statistics"
    return f"add to the command: {' '.join(words)}: {same}"


def with_checkpointing(folder: Path | None) -> str:
    """Returns what to add to a command to train the same in less memory, in words."""
    words = ["--checkpoint-activations"]
    if folder:
        words.append(f"--output-dir {shlex.quote(str(folder))}")
    same = "the run resumes on the same curve, slower by a second forward pass"
    return f"add to the command: {' '.join(words)}: {same}"


def why_over(
    metadata: checkpointing.Metadata,
    until: dict[str, option_types.Value],
    *,
    epochs: int,
    epoch: int,
    step: int,
    steps: int,
) -> str | None:
    """Returns why the run in --output-dir, after `epoch` of `epochs` and `step` of `steps`, has no
    more to train, and what to change to train longer, or None. `metadata` is its checkpoint's,
    `until` has the options of run_options.ENDS_BY as they are now."""
    done = epoch + step / steps
    end = metadata.get("end") or {}  # without it, another run is begun
    if end.get("until") == until and end["epochs"] == done:
        ended = f"{end['reason']} ({round(done, 2):g}/{epochs} epochs)"
        return f"{ended}; to train longer, change what ended it"
    if metadata["in_place"] and epoch >= epochs:
        return f"{round(done, 2):g} epochs are done; to train longer, raise --epochs {epochs}"
    return None
