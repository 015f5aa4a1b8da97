"""The folder of a run: made, locked while the run lives, named after the time.

Use it so that no two processes write into one folder, on any host whose file system has locks, and
that no folder is made on a disk that is not mounted.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import time
from io import BufferedReader
from pathlib import Path

from trainparts import errors

__all__ = ["open_folder"]


def open_folder(folder: str | os.PathLike[str], *, option: str = "", new: bool = False) -> None:
    """Makes the folder of a run, but none above it, and locks it while this process lives. Errors
    name the `option` by which it was typed. Raises FileExistsError if it is to be `new` and is
    there, BadInput if the folder above it is missing, and Fault if another run
    writes there or if the disk does not answer."""
    folder = Path(folder)
    each, made, what = folder, [folder], f"{option} {folder}".strip()
    if folder.parent == Path("runs"):  # where folders are that nobody named
        made.insert(0, folder.parent)
    try:
        for each in made:
            if os.path.islink(each):
                os.stat(each)  # raises FileNotFoundError if what it leads to is missing
            each.mkdir(exist_ok=not (new and each == folder))
    except FileNotFoundError as error:
        if os.path.islink(error.filename):
            lost = f"{error.filename} leads to {os.path.realpath(error.filename)}, which is missing"
            raise errors.Fault(f"{lost}: mount its disk") from None
        # Or a disk that is not mounted would be taken for an empty one.
        missing = f"there is no folder {folder.parent}: mount its disk, or make it"
        raise errors.BadInput(f"{what}: {missing}") from None
    except (OSError, ValueError) as error:
        if new and each == folder and isinstance(error, FileExistsError):
            raise
        raise errors.storage_error(what, error, typed=True) from None
    lock_folder(folder.resolve())


@functools.cache  # a run locks its folder once
def lock_folder(folder: Path) -> BufferedReader:
    """Locks a folder while this process lives, since two runs would overwrite each other's files.
    Waits a minute for another run, which may be saving before it ends."""
    # The kernel's lock ends with the process, however that ends. A file that stands for a lock
    # stays after a kill, and on another host nobody can tell whether its process lives.
    try:
        # No link is followed, or a file elsewhere would be made and locked.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        lock = open(os.open(folder / ".lock", flags, 0o666), "rb")
    except OSError as error:
        raise errors.storage_error(folder / ".lock", error) from None
    # A loader worker that hangs in reading may outlive this process, and would hold the lock.
    os.register_at_fork(after_in_child=lock.close)
    until = time.monotonic() + 60
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > until:
                raise errors.Fault(f"{folder}: another run is writing there") from None
            time.sleep(0.5)
        except OSError as error:
            if errors.system_name(error) in ("EIO", "ESTALE", "ETIMEDOUT", "ENOTCONN"):
                raise errors.storage_error(folder / ".lock", error) from None
            # Lustre without -o flock, or NFS without its lock daemon, have no locks.
            cannot = f"{folder} cannot be locked ({error.strerror})"
            errors.LOG.warning("%s: start no other run there", cannot)
            return lock


def mark_preempted(folder: Path, why: str, epoch: int, step: int) -> None:
    """Writes the file that says that a signal, `why`, has ended the run in a folder, after so many
    epochs and steps of the next one: a launcher may replace the exit status."""
    marker = {"why": why, "epoch": epoch, "step": step}
    (folder / "PREEMPTED").write_text(json.dumps(marker) + "\n")


def new_folder(what: str) -> Path:
    """Makes and locks a folder in runs/, named after the time and `what` is trained, a word."""
    while True:
        date = time.strftime("%Y-%m-%d_%H-%M-%S", time.gmtime())
        folder = Path("runs") / f"{date}_{what}"
        try:
            open_folder(folder, new=True)
            return folder
        except FileExistsError:  # another run was started in this second
            time.sleep(1)
