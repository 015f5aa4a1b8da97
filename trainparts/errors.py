"""What ends a program in one line: mistakes of its user (status 2) and faults (status 1).

Use it where an error of a file, of a library or of the user must become one line that says what,
where and what to do. It needs nothing else of this package, and all else may need it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

__all__ = ["BadInput", "Damaged", "Fault", "LOG", "first_line"]

LOG = logging.getLogger("trainparts")
"""What the package has to say that is no error; the scripts print it."""


class OneLine(Exception):
    """An exception whose text is one line: what cannot be printed, as of names, is escaped."""

    def __str__(self) -> str:
        return printable(super().__str__())


class BadInput(OneLine):
    """The user's mistake, in one line: what, where, what to do."""

    status = 2  # of the process


class Damaged(BadInput):
    """A file that was read as a whole, and is not what it should be."""


class Fault(OneLine):
    """Why training cannot continue, in one line."""

    status = 1


GONE, LIMIT = "another rank is gone", "raise a limit of `ulimit -a`"
MEMORY = "no memory: lower -b or -j"
SMALL = "the model cannot take this size of batch or input"
SOMETIMES = (
    "forward() uses a weight in some steps only: write find_unused_parameters=True in prepare()"
)
# What libraries say: the exit status, 2 if the user must change something, and what it means.
MEANINGS = {
    r"DataLoader worker \(pid": (1, "a loader worker died: out of memory? lower -j"),
    r"[Tt]imed? ?out": (1, "another rank did not answer within --timeout"),
    r"Connection (closed|re|was)|by peer|Broken pipe|shut down|to recv|process exited": (1, GONE),
    r"open files|temporarily unavailable|(new|watchdog) thread|File too large": (2, LIMIT),
    r"Permission denied": (2, "no permission for this file or folder"),
    r"deterministic": (2, "--deterministic: PyTorch cannot train this deterministically"),
    r"MemoryError|(out of|allocate) memory|calculation overflowed": (2, MEMORY),
    r"could not create a primitive(?! desc)": (2, MEMORY),  # oneDNN's
    r"unable to .*shared mem": (2, "too little shared memory: docker run --shm-size=8g, or -j 0"),
    r"No space left|Read-only file system|quota exceeded": (1, "logs cannot be written"),
    r"[Oo]utput size is too small|Kernel size can't|more than 1 value per": (2, SMALL),
    r"indivisible by patch|Wrong \w+ (height|width)|must match the size": (2, SMALL),
    r"doesn't match model|divisible by (patch|window)": (2, SMALL),
    r"is out of bounds|must be smaller than num_classes": (2, "the model has too few outputs"),
    r"finished reduction in the prior": (2, SOMETIMES),
}


def report_error(
    error: Exception, tell_others: Callable[[str, int], None] = lambda line, status: None
) -> int:
    """Prints why the process ends, with a traceback for a bug; returns the exit status. On rank 0
    `tell_others(line, status)` sends it to ranks that wait for this one."""
    rank = os.environ.get("RANK", "0")
    status, line = 1, None  # of a bug
    name = system_name(error)
    # TensorBoard's errors name no file. Connections are PyTorch's, whose errors are others.
    if isinstance(error, OSError) and name not in (None, *LIMITS):
        if not isinstance(error, ConnectionError):
            what = f"rank {rank}" if error.filename else f"rank {rank}: a log or another file"
            error = storage_error(what, error)
    if isinstance(error, BadInput | Fault):
        status, line = error.status, str(error)
    else:
        for pattern, (known, meaning) in MEANINGS.items():
            if re.search(pattern, f"{type(error).__name__}: {error}"):
                status, line = known, f"rank {rank}: {meaning} ({first_line(error)})"
                break
    told = line or f"rank {rank}: {first_line(error)}"
    if line and rank != "0":
        # Rank 0 prints the same. If the launcher ends this process meanwhile, one line appears.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(5)
    if line:
        # What a library says may have control characters, as in a file's name, which would break
        # the line, or send commands to a terminal.
        line = f"{Path(sys.argv[0]).name}: error: {printable(line)}"
    else:
        line = "".join(traceback.format_exception(error))
    print_line(line, sys.stderr)
    if rank == "0":
        tell_others(told, status)
    return status


# Storage errors that the user must fix: those of a path, if the user has typed it, and those of the
# system's limits. All others may pass by themselves, as when a server does not answer.
WRONG_PATH = "ENOENT ENOTDIR EISDIR EEXIST EACCES ENAMETOOLONG ELOOP EINVAL".split()
LIMITS = "EMFILE EFBIG EAGAIN ENOMEM".split()  # of files, of processes, of memory


def storage_error(
    what: str | os.PathLike[str], error: BaseException, typed: bool = False, advice: str = ""
) -> BadInput | Fault:
    """Returns the BadInput or Fault to raise for an error of reading or writing. An OSError becomes
    one or the other by these lists; a Fault stays what it is; any other exception is about what is
    in a file, and becomes a BadInput. `typed`: the path is one that the user has typed. `advice`,
    for the user, is added to a BadInput."""
    if isinstance(error, Fault):
        return error
    why = getattr(error, "strerror", None) or first_line(error)[:300]
    path = os.fsdecode(getattr(error, "filename", None) or "")
    if path not in str(what):
        why = f"{path}: {why}"
    name = system_name(error)
    if not isinstance(error, OSError) or name in (None, *LIMITS) or (typed and name in WRONG_PATH):
        return BadInput(f"{what}: {why}{advice}")
    return Fault(f"{what}: {why}")


def lfs_pointer(content: bytes) -> str:
    """Returns what to do, as text that follows a file's name, if this is what Git LFS leaves in the
    file's place until it is fetched; "" of any other content."""
    if content.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS: `git lfs pull` in its folder fetches the file"
    return ""


def system_name(error: BaseException) -> str | None:
    """Returns the name of a system call's error, such as "EIO", or None of another exception."""
    return errno.errorcode.get(getattr(error, "errno", None) or 0)


def look_at(path: str | os.PathLike[str]) -> os.stat_result | None:
    """Returns os.stat() of a path that was typed, None if there is no such path. os.path.exists()
    and isdir() say no as well if a disk does not answer, and then this raises Fault."""
    try:
        return os.stat(path)
    except ValueError:  # a NUL
        return None
    except OSError as error:
        failed = storage_error(path, error, typed=True)
        if isinstance(failed, BadInput):
            return None
        raise failed from None


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's text, or its type where there is no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def printable(text: str) -> str:
    """Returns a text in which what cannot be printed of it, as of files' names, is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class _Printer(logging.Handler):
    """Prints messages as the scripts print their lines."""

    def emit(self, record: logging.LogRecord) -> None:
        print_line(record.getMessage())


def print_log() -> None:
    """Prints what LOG is told, in place of what the process had arranged for it."""
    LOG.handlers[:], LOG.propagate = [_Printer()], False


def print_line(line: str, file: TextIO | None = None) -> None:
    """Prints a line; a failure, such as a closed pipe, does not end the run."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=file, flush=True)
