"""How ranks meet before they form a group: at one store, all of them, on addresses that they reach.

Use it in place of init_method="env://" where ranks may come late or be restarted, and where one
that does not come must end the others in one line.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NoReturn

import psutil
import torch.distributed as dist

from trainparts import endings, errors


@contextlib.contextmanager
def meet_ranks(
    rank: int, ranks: int, local_ranks: int, backend: str, wait: datetime.timedelta
) -> Generator[dist.Store]:
    """Waits until all `ranks` have come, of which `local_ranks` are on this node, and yields a
    store that they share. The `with` block forms their group with this backend. What is raised in
    the block or here becomes a Fault or a BadInput of one line. The process ends if the block takes
    longer than `wait` and 20 seconds, or, by a timer (endings.arm_timeout()), if the other ranks do
    not come."""

    def failed(why: str) -> str:
        """Returns a line that says what failed."""
        at = f"{backend} at {os.environ.get('MASTER_ADDR')} port {os.environ.get('MASTER_PORT')}"
        line = f"rank {rank} of {ranks} cannot form a group with the others by {at}: {why}"
        if backend == "gloo" and ranks > local_ranks:
            name = os.environ.get("GLOO_SOCKET_IFNAME", "that of this machine's name")
            line += f"; its interface is {name}: if that is wrong, export GLOO_SOCKET_IFNAME=NAME"
        return line

    def give_up() -> NoReturn:
        """Ends the process: gloo waits for ever for a rank that cannot reach this one."""
        errors.print_line(f"{Path(sys.argv[0]).name}: error: {failed('no answer')}", sys.stderr)
        os._exit(errors.Fault.status)

    lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if "WORLD_SIZE" in os.environ and lacking:
        raise errors.BadInput(
            f"WORLD_SIZE is set, but not {' and '.join(lacking)}: a launcher sets all; to train "
            "without one, unset RANK WORLD_SIZE"
        )
    timer = threading.Timer(wait.total_seconds() + 20, give_up)
    timer.daemon = True
    try:
        if "WORLD_SIZE" in os.environ:
            store, ends = open_store(rank, ranks, ranks == local_ranks, backend, wait)
            # As long for rank 0, which may come late, as for those that wait.
            endings.arm_timeout(wait.total_seconds())
            address = await_all(store, rank, ranks, wait, *ends)
        else:
            store, address = dist.HashStore(), "127.0.0.1"
        # gloo would listen at the address of this machine's name, which others cannot reach where
        # /etc/hosts has it as 127.0.1.1, as Debian and Ubuntu write it.
        for name, known in psutil.net_if_addrs().items():
            families = {each.family: each.address.partition("%")[0] for each in reversed(known)}
            if address in families.values():  # the first of its kind, which gloo would take
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        endings.arm_timeout(wait.total_seconds())
        timer.start()
        yield store
    except (OSError, RuntimeError, ArithmeticError, KeyError, ValueError, TypeError) as error:
        # A value that a launcher has set wrongly raises another type.
        transient = isinstance(error, OSError | RuntimeError) and dist.is_backend_available(backend)
        kind = errors.Fault if transient else errors.BadInput
        raise kind(failed(errors.first_line(error))) from None
    finally:
        timer.cancel()


def open_store(
    rank: int, ranks: int, here: bool, backend: str, wait: datetime.timedelta
) -> tuple[dist.Store, tuple[str, str]]:
    """Returns a store that all ranks of this start share, and the two IP addresses of a connection
    to rank 0: this machine's, rank 0's. `here`: all ranks are on this node. torchrun's own store
    survives a restart, with addresses of dead ranks in it. So rank 0 opens a new store, and leaves
    its port in torchrun's. The other ranks read the port again until somebody listens there,
    because it may still be that of an earlier start."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    launchers = None
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        try:
            socket.create_connection((host, port), 20).close()
        except OSError as error:  # it is there before the ranks are
            what = f"torchrun's store at {host} port {port} does not answer"
            gone = f"({errors.first_line(error)}): torchrun was killed, or its node is gone"
            raise errors.Fault(f"{what} {gone}") from None
        launchers, port = dist.TCPStore(host, port, timeout=wait), 0
    if here:  # no other machine connects
        host = "127.0.0.1"
    mine = f"{ranks} ranks and {backend}"  # others would wait for each other
    if rank == 0:
        both = not here and socket.has_dualstack_ipv6()  # IPv4 and IPv6
        listener = socket.create_server(
            (host if here else "", port),
            family=socket.AF_INET6 if both else socket.AF_INET,
            backlog=4096,
            dualstack_ipv6=both,
        )
        # By itself, TCPStore would listen on all addresses.
        store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, timeout=wait, master_listen_fd=listener.detach()
        )
        store.set("group", mine)
        if launchers:
            launchers.set("port", str(store.port))
        return store, ("127.0.0.1", "127.0.0.1")
    store, ends = None, ("", "")
    until, lengths = time.monotonic() + wait.total_seconds(), pauses(0.5)
    while store is None:
        time.sleep(next(lengths))
        last = time.monotonic() >= until
        # After a restart this may still be the port of the start before, where nobody listens.
        port = int(launchers.get("port")) if launchers else port
        # A plain socket first: TCPStore prints a stack where nobody listens, or no name is known.
        try:
            with socket.create_connection((host, port), 20) as connection:
                ends = connection.getsockname()[0], connection.getpeername()[0]
            store = dist.TCPStore(host, port, timeout=wait)
        except OSError:
            if last:
                raise
    if (theirs := store.get("group").decode()) != mine:
        raise errors.BadInput(f"rank {rank} expects {mine}, rank 0 {theirs}: start all ranks alike")
    return store, ends


def pauses(longest: float) -> Iterator[float]:
    """Yields the seconds to sleep before each next look for what may come at once, or late: 0.01,
    then twice as long each time, at most `longest`."""
    seconds = 0.01
    while True:
        yield seconds
        seconds = min(2 * seconds, longest)


def await_all(
    store: dist.Store,
    rank: int,
    ranks: int,
    wait: datetime.timedelta,
    here: str,
    at_rank_0: str,
) -> str:
    """Waits until all ranks have come; returns the address at which others reach this machine.
    `here` and `at_rank_0` are the addresses of a connection to rank 0."""
    loopback = "127.", "::1"
    if not here.startswith(loopback):
        store.set("address", at_rank_0)  # rank 0's machine may know itself by 127.0.1.1 alone
    store.set(f"rank {rank}", "here")
    if rank == 0:
        every = [f"rank {number}" for number in range(ranks)]
        until, lengths = time.monotonic() + wait.total_seconds(), pauses(0.1)
        while not store.check(every) and time.monotonic() < until:
            time.sleep(next(lengths))
        store.set("missing", ", ".join(name for name in every if not store.check([name])))
    store.wait(["missing"], wait + datetime.timedelta(seconds=20))  # rank 0 looks first
    if missing := store.get("missing").decode():
        if rank == 0:
            time.sleep(3)  # the others read it before this end closes the store
        ask = "is its node started, with a number of its own?"
        raise errors.Fault(f"{missing[:200]} did not come within --timeout: {ask}")
    if here.startswith(loopback) and store.check(["address"]):
        return store.get("address").decode()
    return here
