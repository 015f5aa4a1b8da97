"""Lines about a run for people: its batches, how to resume it, how to use less memory.

Use it to print, at the start and at the end of a run, what to type next.
"""

from __future__ import annotations

import shlex

from trainparts import package_digest


def about_batches(args, place, data, items, peak, usual, metadata):
    """Returns lines on batch sizes and the peak learning rate. `items` is the name of what is in a
    batch; `usual` are the defaults of --optimizer and --lr."""
    lines = []
    family = ("sgd", "nesterov", "lars")  # whose rates are many times those of Adam
    other = (usual["optimizer"] in family) != (args.optimizer in family)
    if other and args.lr == usual["lr"] and not args.base_lr:
        what = f"{usual['optimizer']}, not for {args.optimizer}: set --lr"
        lines.append(f"--lr {args.lr} is meant for {what}")
    typed = f"--base-lr {args.base_lr}" if args.base_lr else f"--lr {args.lr} {args.lr_scaling}"
    sizes = f"{data.device_batch} x {place.data_ranks * place.devices} x {data.accumulation_steps}"
    whose = ", the checkpoint's" if metadata and not args.global_batch else ""
    lines.append(
        f"{items} x devices x accumulated = {sizes} = global batch {data.global_batch}{whose}; "
        f"{typed} -> peak learning rate {peak:g}"
    )
    return lines


def about_resuming(args, epoch, step, steps, metadata):
    """Returns lines on a run that goes on after `epoch` epochs and `step` of `steps`."""
    lines, before = [], metadata["args"]["epochs"]
    if before != args.epochs:
        lines.append(
            f"--epochs {args.epochs}, before {before}: the learning rate follows the new one"
        )
    done, rest = divmod(epoch * steps + step, steps)
    after = f"{done} of {args.epochs} epochs" + f" and {rest} steps" * bool(rest)
    lines.append(f"Resuming {metadata['path']} after {after}")
    saved_by = metadata.get("trainparts", package_digest.IDENTITY)  # checkpoints before 0.2 lack it
    if saved_by != package_digest.IDENTITY:
        lines.append(f"It was saved with trainparts {saved_by}, this is {package_digest.IDENTITY}")
    if metadata["in_place"] and max(metadata["logged"], default=0) > epoch + 1:
        lines.append("The log has later epochs: they are trained again")
    return lines


def how_to_resume(args, folder):
    """Returns what to type to resume the run in a folder, in words."""
    if args.output_dir:
        return "the same command again resumes it"
    return f"to resume it, add to the command: --output-dir {shlex.quote(str(folder))}"


def with_less_memory(args, data, multiple, folder):
    """Returns what to add to the command to train the same curve in less memory, in words, or None
    if there is no smaller batch. `multiple` must divide a device's batch."""
    less = data.device_batch // 2 // multiple * multiple
    if not less:
        return None
    if args.evaluate:
        return f"add -b {less} to the command"
    words = [f"-b {less} --global-batch {data.global_batch}"]
    if args.accumulation != 1:  # it and --global-batch exclude each other
        words.append("--accumulation 1")
    if args.base_lr:  # of a batch of -b
        words.append(f"--base-lr {args.base_lr * less / args.batch_size!r}")
    if args.compile_mode != "default":  # the others cannot accumulate
        words.append("--compile-mode default")
    if folder:
        words.append(f"--output-dir {shlex.quote(str(folder))}")
    same = "the run resumes on the same curve, except for BatchNorm's statistics"
    return f"add to the command: {' '.join(words)}: {same}"


def why_over(args, epoch, step, steps, metadata):
    """Returns why the run in --output-dir, after `epoch` epochs and `step` of `steps`, has no more
    to train, and what to change to train longer, or None."""
    done = epoch + step / steps
    end = metadata.get("end") or {}  # without it, another run is begun
    if end.get("until") == ends_by(args) and end["epochs"] == done:
        ended = f"{end['reason']} after {round(done, 2):g}/{args.epochs} epochs"
        return f"{ended}; to train longer, change what ended it"
    if metadata["in_place"] and epoch >= args.epochs:
        return f"{round(done, 2):g} epochs are done; to train longer, raise --epochs {args.epochs}"
    return None


def ends_by(args):
    """Returns the options that decide when a run ends: if they are the same, it is over."""
    names = "epochs", "desired", "patience", "budget_hours", "best"
    return {name: getattr(args, name) for name in names}
