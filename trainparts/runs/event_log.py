"""The log of a run, TensorBoard's event files: begun without a gap or an overlap, and read back.

Use it to log what trained, on what, and to know of a folder which epochs its log has.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.summary_pb2 import Summary  # pyrefly: ignore  # has no types
from torch.utils.tensorboard import SummaryWriter

from trainparts import devices, errors, option_types, package_digest


def start_log(folder: Path, purge: int) -> SummaryWriter:
    """Returns the SummaryWriter of a run's folder, from which it removes what a killed run left.
    TensorBoard drops what was logged from step `purge` on, since that is logged again. Raises Fault
    or BadInput if the folder cannot be written, or if the clock is behind that of its last log."""
    try:
        for pattern in "checkpoint*.tmp", "model_best.tmp", "epoch-*.tmp", "PREEMPTED":
            for left in folder.glob(pattern):
                left.unlink(missing_ok=True)
        wait_for_clock(folder)
        threading.excepthook = print_exception_of_thread
        return SummaryWriter(folder, purge_step=purge)
    except (OSError, UnicodeError) as error:
        raise errors.storage_error(f"--output-dir {folder}", error) from None


def log_program(
    log: SummaryWriter, about: Mapping[str, option_types.Value], script: str, charts: Iterable[str]
) -> None:
    """Logs what is trained: `about`, of describe(), and the text of `script`, a path, and of this
    package. TensorBoard draws training and validation of each tag in `charts` in one chart."""
    log.add_text("about", f"```json\n{json.dumps(about, indent=1)}\n```")
    parts = package_digest.TEXTS
    texts = [Path(script).read_text(), *(parts[name] for name in parts if name.endswith(".py"))]
    log.add_text("script", "\n".join(f"```python\n{text}\n```" for text in texts))
    charts = {tag: ["Multiline", [f"{tag}/train", f"{tag}/val"]] for tag in charts}
    log.add_custom_scalars({"train and val": charts})


def log_epoch_values(log: SummaryWriter, values: Mapping[str, float], epoch: int) -> None:
    """Logs an epoch's values, {tag: value}, and returns when they are in the file. They are one
    record, which is read as a whole or, if a kill cuts it off, not at all: add_scalar() would write
    one for each."""
    scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    # pyrefly: ignore[missing-attribute]  # it is None in a closed writer alone
    log.file_writer.add_summary(Summary(value=scalars), epoch)
    log.flush()


def wait_for_clock(folder: Path) -> None:
    """Waits until the clock is past the last start of a log. TensorBoard reads logs in the order of
    their names, which have the second, and drops what a later one logs again. Raises Fault if that
    would take more than a minute."""
    seconds = [re.search(r"tfevents\.(\d{10})\.", path.name) for path in folder.glob("*tfevents*")]
    behind = max((int(found[1]) for found in seconds if found), default=0) + 1 - time.time()
    if behind > 60:
        raise errors.Fault(
            f"--output-dir {folder} was started {behind:.0f} s from now: set this clock"
        )
    time.sleep(max(0, behind))


def print_exception_of_thread(failed: threading.ExceptHookArgs) -> None:
    """Prints a thread's traceback, except for a thread of TensorBoard's: the next call that adds
    to the log raises its exception again, and that becomes one line."""
    if type(failed.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failed)


# A tag that each epoch has.
OF_EPOCHS = "Time/val"


def read_log(folder: Path) -> tuple[list[int], dict[str, option_types.Value], set[str]]:
    """Returns (epochs, end, tags) of a folder's log: the epochs, from 1, that it has; what a run
    logged last as its "end", or {}; and all tags but those that a run logs in its first steps.
    Raises Fault or BadInput if the log cannot be read."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # or it prints what it drops
    # TensorBoard takes a path whose last part has "tfevents" in it for a file, so this one ends
    # with a separator.
    log = EventAccumulator(f"{folder}{os.sep}", size_guidance={"scalars": 0, "tensors": 0})
    try:
        for name in os.listdir(folder):
            if "tfevents" in name:
                os.stat(folder / name)  # TensorBoard leaves out what it cannot look at
        log.Reload()
    except (OSError, UnicodeError) as error:
        raise errors.storage_error(f"the log in {folder} cannot be read", error) from None
    tags: dict[str, list[str]] = log.Tags()  # pyrefly: ignore[bad-assignment]  # of what it reads
    end = {}
    each_epoch = log.Scalars(OF_EPOCHS) if OF_EPOCHS in tags["scalars"] else []
    epochs = [event.step for event in each_epoch]
    if "end/text_summary" in tags["tensors"]:
        # Another program's may be anything.
        with contextlib.suppress(ValueError, IndexError, RecursionError):
            text = log.Tensors("end/text_summary")[-1].tensor_proto.string_val[0].decode()
            found = json.loads(text.strip("`json\n"))
            end = found if isinstance(found, dict) else {}
    texts = {f"{name}/text_summary" for name in ("about", "script", "end")}
    first = texts | {"Loss/step", "custom_scalars__config__"}
    return epochs, end, {*tags["scalars"], *tags["tensors"]} - first


def installed_packages() -> dict[str, str]:
    """Returns {name: version} of all packages that Python finds. importlib.metadata would parse
    the whole file of each, with its readme, which takes a quarter of a second."""
    found = {}
    for package in importlib.metadata.distributions():
        text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
        fields = dict(re.findall(r"(?m)^(Name|Version): *(.*\S)", text.partition("\n\n")[0]))
        if len(fields) == 2:
            found.setdefault(fields["Name"], fields["Version"])  # the first is imported
    return found


def describe(
    script: str,
    model: torch.nn.Module,
    device: torch.device,
    *,
    options: Mapping[str, option_types.Value],
    place: Mapping[str, object],
    sizes: Mapping[str, object],
    steps: int,
    source: str,
    metadata: Mapping[str, option_types.Value] | None,
) -> dict[str, option_types.Value]:
    """Returns what is needed to repeat a run of `script`, a path, and what make_results.py reads.
    That includes the integers among `sizes`, {name: value} of its model and data. `place` says
    which rank this is, `source` is the path of the data; `metadata` is that of the checkpoint from
    which the run resumes."""
    commit = ""
    with contextlib.suppress(OSError):  # no git
        folder = os.path.dirname(os.path.abspath(script))
        git = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=40"]
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    resumed = None
    if metadata:
        resumed = {name: metadata[name] for name in ("epoch", "step", "seconds")}
    return {
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "resumed": resumed,
        "options": dict(options),
        "steps_per_epoch": steps,
        "gradient_bytes": sum(w.nbytes for w in model.parameters() if w.requires_grad),
        "data": os.path.abspath(source),
        **{name: size for name, size in sizes.items() if type(size) is int},
        "place": dict(place) | {"device": str(device)},
        "device": devices.device_name(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,  # with its build
        "packages": installed_packages(),
        "commit": commit,
        "trainparts": package_digest.IDENTITY,
    }
