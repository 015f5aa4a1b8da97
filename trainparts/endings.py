"""How a process ends: by signals, which a run handles between steps, by a timer, with its parent.

Use it in a loop that must save before it ends, and in processes that must not outlive another. The
functions change their process: its handlers, its timer, its limits.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from trainparts import standard_streams

__all__ = ["SIGNALS", "arm_timeout", "handle_signals", "on_signal"]

# Sent by launchers, by Ctrl-C, by Slurm and clouds, and by a terminal that closes.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


def handle_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    """Installs a handler of SIGNALS; what nohup makes this process ignore stays ignored. SIGCHLD is
    set to its default: PyTorch's handler of it would raise at any place when a loader process dies,
    and the loader's next batch raises as well."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for signum in SIGNALS:
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, handler)


def on_signal(signals: list[tuple[str, float]], signum: int, frame: FrameType | None) -> None:
    """Records a signal and when it came; a second Ctrl-C ends the process."""
    # Launchers forward a terminal's Ctrl-C, so the first one may arrive twice within a moment.
    name, now = signal.Signals(signum).name, time.monotonic()
    if name == "SIGINT" and any(now > at + 1 for each, at in signals if each == name):
        os._exit(130)
    signals.append((name, now))


def arm_timeout(seconds: float, *, compiles: bool = False) -> None:
    """Makes Python print its stacks and exit, unless this function is called again within `seconds`
    and half a minute, plus an hour if a graph `compiles`. With 0 seconds, there is no timer, and
    one that was started is cancelled."""
    # A rank that waits for another one waits in C, where Python's signal handlers do not run. The
    # group's own timeout, which comes half a minute earlier, raises an error; this one also ends
    # what hangs elsewhere: in reading data, or in a group without a timeout.
    if seconds:
        start_timer(seconds + 30 + (3600 if compiles else 0), int(time.monotonic()))
    else:
        faulthandler.cancel_dump_traceback_later()
        start_timer.cache_clear()  # or the same second's would not start again


@functools.lru_cache(maxsize=1)
def start_timer(seconds: float, now: int) -> None:
    """Starts faulthandler's timer again: a new thread, so once a second, not in each step."""
    # It prints first, and ends the process even if nobody reads that.
    file = standard_streams.descriptor_that_does_not_wait()
    faulthandler.dump_traceback_later(seconds, exit=True, file=file)


def end_with_parent(signum: int) -> None:
    """Asks Linux to send this process a signal when its parent ends."""
    with contextlib.suppress(OSError, AttributeError):  # another system
        ctypes.CDLL(None).prctl(1, signum)  # PR_SET_PDEATHSIG


def allow_open_files() -> None:
    """Raises the limit of open files as far as the system lets this process."""
    # Rank 0 has a connection to each rank, and a worker has open files.
    with contextlib.suppress(OSError, ValueError):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def end_process(status: int) -> NoReturn:
    """Ends this process and its loader workers at once; does not return."""
    for child in multiprocessing.active_children():  # loader workers ignore SIGTERM
        child.kill()
    standard_streams.deliver()
    # A normal exit would run the destructors of groups, which wait for ranks that are gone. The
    # launcher sees the status, or the others see a closed connection, and they end as well.
    os._exit(status)
