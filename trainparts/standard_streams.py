"""Standard output and error that keep no process waiting for their reader.

Use it in a program that must go on, and end, though nobody reads what it prints: a paused `less`, a
terminal after Ctrl-S, a frozen ssh session, `tee` onto a disk that does not answer.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import io
import math
import os
import select
import socket
import stat
import sys
import termios
import time
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

from trainparts import errors

if TYPE_CHECKING:
    from typing_extensions import Buffer  # Python 3.12 has it in collections.abc

KEPT = 2**20  # bytes that are kept for a reader who has stopped; what comes after is left out
AT_THE_END = 10  # seconds that a process which ends waits for its reader


def never_wait() -> None:
    """Replaces sys.stdout and sys.stderr, where a pipe, a terminal or a socket is behind them, by
    streams that do not wait: what the reader does not take is kept, and written with what comes
    next, or by deliver(), which also runs at the exit. A daemon's missing stderr becomes /dev/null.
    What this package logs is printed to sys.stdout.
    """
    errors.print_log()
    sys.stderr = sys.stderr or open(os.devnull, "w")
    readers = {}  # of one pipe, as of `2>&1`, the order is kept
    for name in "stdout", "stderr":
        stream = getattr(sys, name)
        try:
            status = os.fstat(stream.fileno())
        except (AttributeError, OSError, ValueError):  # there is none, it is closed, or in memory
            continue
        ends = stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode) or stream.isatty()
        if ends and not _reader(stream):
            stream.flush()
            key = status.st_dev, status.st_ino, status.st_rdev
            reader = readers.setdefault(key, Reader(stream.fileno()))
            buffer = Stream(reader, stream.fileno())
            if not stream.write_through:  # as `python -u` has it
                buffer = io.BufferedWriter(buffer)
            how = stream.encoding, stream.errors, None, stream.line_buffering, stream.write_through
            setattr(sys, name, io.TextIOWrapper(cast(BinaryIO, buffer), *how))
    if readers:
        atexit.register(deliver)


def deliver(seconds: float = AT_THE_END) -> None:
    """Waits for the readers of sys.stdout and sys.stderr to take what is kept for them."""
    until = time.monotonic() + seconds
    for stream in sys.stdout, sys.stderr:
        if reader := _reader(stream):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
                while reader.kept and time.monotonic() < until:
                    reader.write()
                    time.sleep(0.01)


def descriptor_that_does_not_wait() -> int:
    """Returns a descriptor of stderr for C code. Where a write to stderr would wait, a write to
    this descriptor fails, except on a socket, for which the system has no such descriptor."""
    reader = _reader(sys.stderr)
    return reader.own if reader else sys.stderr.fileno()


def _reader(stream: TextIO) -> Reader | None:
    """Returns the Reader of a stream that never_wait() has made, None of another."""
    buffer = getattr(stream, "buffer", None)
    return getattr(getattr(buffer, "raw", buffer), "reader", None)


class Stream(io.RawIOBase):
    """What io.TextIOWrapper writes to: it takes all that it is given."""

    def __init__(self, reader: Reader, descriptor: int):
        self.reader, self.descriptor = reader, descriptor

    def write(self, written: Buffer) -> int:
        taken = bytes(written)
        self.reader.take(taken)
        return len(taken)

    def fileno(self) -> int:
        return self.descriptor

    def isatty(self) -> bool:
        return os.isatty(self.descriptor)

    def writable(self) -> bool:
        return True


class Reader:
    """The other end of a pipe, a terminal or a socket, and what is kept for it."""

    def __init__(self, descriptor: int):
        self.descriptor, self.socket, self.room = descriptor, None, math.inf
        self.kept, self.full, self.left_out = bytearray(), False, 0
        # O_NONBLOCK belongs to the open file, which other processes share: so it is opened again.
        # A socket cannot be, and a terminal of another user's may not.
        self.own, mode = descriptor, os.fstat(descriptor).st_mode
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(mode):
                self.socket = socket.socket(fileno=os.dup(descriptor))
            else:
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
                self.own = os.open(f"/proc/self/fd/{descriptor}", flags)
        # A quarter of a pipe stays free for a launcher that prints before it passes a signal on.
        with contextlib.suppress(OSError, AttributeError):
            self.room = fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ) * 3 // 4
        os.register_at_fork(after_in_child=self.kept.clear)  # or a child would write it, too

    def take(self, written: bytes) -> None:
        """Writes this, after what is kept; keeps what the reader does not take."""
        self.write()
        if self.full and not self.kept:
            self.kept += b"(%d lines were left out here: nobody read them)\n" % self.left_out
            self.full, self.left_out = False, 0
        if self.kept and len(self.kept) + len(written) > KEPT:
            self.full = True
        if self.full:
            self.left_out += written.count(b"\n")
        else:
            self.kept += written
            self.write()

    def write(self) -> None:
        """Writes what is kept until the reader takes no more."""
        try:
            while self.kept:
                del self.kept[: self.put(self.piece())]
        except BlockingIOError:
            pass

    def piece(self) -> bytes:
        """Returns the next bytes to write: as many whole lines of what is kept as a pipe takes at
        once, so that another process's lines do not come between. If there is no whole line,
        returns a part of one."""
        end = self.kept.rfind(b"\n", 0, select.PIPE_BUF) + 1
        return bytes(self.kept[: end or select.PIPE_BUF])

    def put(self, piece: bytes) -> int:
        """Writes some of a piece, and returns how many bytes; raises BlockingIOError rather than
        wait."""
        if self.socket:
            return self.socket.send(piece, socket.MSG_DONTWAIT)
        unread = unread_bytes(self.descriptor) if self.room < math.inf else 0
        if unread and unread + len(piece) > self.room:
            raise BlockingIOError
        if self.own == self.descriptor:  # its writes wait
            poll = select.poll()
            poll.register(self.own, select.POLLOUT)
            if not poll.poll(0):
                raise BlockingIOError
        return os.write(self.own, piece)


def unread_bytes(pipe: int) -> int:
    """Returns how many bytes are in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
