"""trainparts/launch/rendezvous.py: one store for all ranks, and what is said of those that fail."""

import contextlib
import datetime
import itertools
import os
import signal
import socket
import threading
import time
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from conftest import free_port

from trainparts import endings, errors
from trainparts.launch import rendezvous

WAIT = datetime.timedelta(seconds=60)
NOW = datetime.timedelta(seconds=0)
LOOPBACK = "127.0.0.1", "127.0.0.1"


@pytest.fixture(autouse=True)
def place(monkeypatch):
    """place(port=None, **variables): has a launcher say where ranks meet, for none has said it."""
    names = "WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_USE_AGENT_STORE GLOO_SOCKET_IFNAME"
    for name in names.split():
        monkeypatch.setenv(name, "")
        del os.environ[name]

    def place(port=None, **variables):
        port = free_port() if port is None else port
        known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} | variables
        for name, value in known.items():
            monkeypatch.setenv(name, value)
        return port

    return place


@pytest.fixture(autouse=True)
def slept(monkeypatch):
    """Has the part sleep for a fiftieth of its seconds; returns them."""
    slept, sleep = [], time.sleep

    def shorter(seconds):
        slept.append(seconds)
        sleep(seconds / 50)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=shorter)
    monkeypatch.setattr(rendezvous, "time", clock)
    return slept


@pytest.mark.parametrize(
    ("known", "lacking"),
    [
        ({}, "MASTER_ADDR and MASTER_PORT"),
        ({"MASTER_ADDR": "127.0.0.1"}, "MASTER_PORT"),
        ({"MASTER_PORT": "1234"}, "MASTER_ADDR"),
    ],
)
def test_a_launcher_s_variables_without_an_address(known, lacking, monkeypatch):
    """As a shell has them in which somebody has tried something."""
    for name, value in ({"RANK": "0", "WORLD_SIZE": "1"} | known).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.BadInput) as raised:
        rendezvous.meet_ranks(0, 1, 1, "gloo", NOW).__enter__()
    assert str(raised.value) == (
        f"WORLD_SIZE is set, but not {lacking}: a launcher sets all; to train without one, unset "
        "RANK WORLD_SIZE"
    )


def together(*calls):
    """Returns what these return or raise, each in a thread of its own."""
    results = [None] * len(calls)

    def keep(number, call):
        try:
            results[number] = call()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=keep, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


def opener(rank, ranks=2, here=True, backend="gloo", wait=WAIT):
    return lambda: rendezvous.open_store(rank, ranks, here, backend, wait)


def listens(host, port):
    """Returns whether somebody listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), 5):
        return True
    return False


def has_ipv6():
    """Returns whether this machine has an address of IPv6."""
    with contextlib.suppress(OSError):
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        return socket.has_dualstack_ipv6()
    return False


# ------------------------------------------------------------------------------------- open_store


@pytest.mark.parametrize("here", [True, False])
def test_ranks_share_a_store(here, place):
    place()
    made = together(*[opener(rank, 3, here) for rank in range(3)])
    stores = [store for store, _ in made]
    stores[1].set("from rank 1", "text")
    assert stores[0].get("from rank 1") == stores[2].get("from rank 1") == b"text"
    assert [ends for _, ends in made] == [LOOPBACK] * 3


@pytest.mark.parametrize("here", [True, False])
def test_only_ranks_of_several_nodes_can_be_reached_from_others(here, place):
    """The second loopback address stands for another machine."""
    port = place()
    store, ends = opener(0, here=here)()
    assert ends == LOOPBACK and listens("127.0.0.1", port)
    assert listens("127.0.0.2", port) == (not here)
    if has_ipv6() and not here:
        assert listens("::1", port), "IPv4 and IPv6"
    assert store.get("group") == b"2 ranks and gloo"


def test_ranks_of_one_node_meet_there_whatever_its_name(place):
    """It may be one that no server of names knows, or the address that others reach."""
    place(MASTER_ADDR="no.such.host.invalid")
    (_, ends), (_, others) = together(opener(0), opener(1))
    assert ends == others == LOOPBACK


def test_a_rank_waits_for_rank_0(place, slept, capfd):
    """Without the stack of C++ that PyTorch prints where nobody listens."""
    place()
    came = threading.Event()

    def late():
        while len(slept) < 3:
            time.sleep(0.01)
        came.set()
        return opener(0)()

    (first, _), (second, _) = together(late, opener(1))
    assert came.is_set() and slept[:3] == [0.01, 0.02, 0.04] and max(slept) <= 0.5
    first.set("here", "yes")
    assert second.get("here") == b"yes" and capfd.readouterr().err == ""


def test_a_rank_0_that_does_not_come_is_waited_for_no_longer(place, slept, capfd):
    place()
    with pytest.raises(ConnectionRefusedError):
        opener(1, wait=NOW)()
    assert slept == [0.01] and capfd.readouterr().err == ""


def test_a_name_that_is_not_known_is_asked_for_again(place, slept, monkeypatch):
    """A node may get its name only as its job starts."""
    place(MASTER_ADDR="node-1")
    asked = mock.Mock(side_effect=socket.gaierror(-2, "Name or service not known"))
    monkeypatch.setattr(rendezvous.socket, "create_connection", asked)
    with pytest.raises(socket.gaierror):
        opener(1, here=False, wait=datetime.timedelta(seconds=0.1))()
    assert asked.call_count == len(slept) >= 3
    assert asked.call_args.args[0][0] == "node-1"


def test_a_port_that_is_taken_is_an_error(place):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place(taken.getsockname()[1])
        with pytest.raises(OSError, match="Address already in use"):
            opener(0)()


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        ({"ranks": 3}, "rank 1 expects 3 ranks and gloo, rank 0 2 ranks and gloo"),
        ({"backend": "nccl"}, "rank 1 expects 2 ranks and nccl, rank 0 2 ranks and gloo"),
    ],
)
def test_ranks_that_were_not_started_alike_do_not_wait_for_each_other(theirs, why, place):
    place()
    made = together(opener(0), opener(1, **theirs))
    assert type(made[1]) is errors.BadInput
    assert str(made[1]) == f"{why}: start all ranks alike"


@pytest.fixture
def torchrun(place):
    """torchrun's own store, which ranks find by its variables."""
    store = dist.TCPStore("127.0.0.1", 0, None, True)
    place(store.port, TORCHELASTIC_USE_AGENT_STORE="True")
    return store


def test_ranks_of_torchrun_have_a_store_of_their_own(torchrun):
    """Whose port they find in torchrun's, which survives a restart."""
    (first, _), (second, _) = together(opener(0), opener(1))
    assert int(torchrun.get("port")) == first.port == second.port != torchrun.port
    second.set("here", "yes")
    assert first.get("here") == b"yes" and not torchrun.check(["here"])


def test_a_restarted_rank_reads_the_port_of_its_own_start(torchrun, slept):
    """torchrun's store still has that of the start before, where nobody listens any more."""
    torchrun.set("port", str(free_port()))

    def rank_0():
        while len(slept) < 2:
            time.sleep(0.01)
        return opener(0)()

    soon = datetime.timedelta(seconds=20)
    (first, _), (second, _) = together(rank_0, opener(1, wait=soon))
    first.set("here", "yes")
    assert second.get("here") == b"yes"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_torchrun_that_is_gone_is_said(rank, place):
    port = place(TORCHELASTIC_USE_AGENT_STORE="True")
    with pytest.raises(errors.Fault) as raised:
        opener(rank)()
    assert str(raised.value) == (
        f"torchrun's store at 127.0.0.1 port {port} does not answer "
        "([Errno 111] Connection refused): torchrun was killed, or its node is gone"
    )


# ------------------------------------------------------------------------------------------ pauses


def test_ranks_look_often_at_first_and_rarely_later():
    """Ranks of one start come within hundredths of a second; those of a queue's jobs, in hours."""
    lengths = [*itertools.islice(rendezvous.pauses(0.5), 9)]
    assert lengths == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5]


# -------------------------------------------------------------------------------------- await_all


def awaiter(store, rank, ranks, ends=LOOPBACK, wait=WAIT):
    return lambda: rendezvous.await_all(store, rank, ranks, wait, *ends)


def test_ranks_of_one_node_know_it_by_its_loopback_address():
    store = dist.HashStore()
    assert together(*[awaiter(store, rank, 3) for rank in range(3)]) == ["127.0.0.1"] * 3
    assert not store.check(["address"])
    assert awaiter(dist.HashStore(), 0, 1, ("::1", "::1"))() == "::1"


@pytest.mark.parametrize(("loopback", "first"), [("127.0.0.1", "10.0.0.1"), ("::1", "fe80::1")])
def test_rank_0s_node_learns_from_others_how_they_reach_it(loopback, first):
    """Its own name may lead to 127.0.1.1. Others have the address of their own connection."""
    other = first.replace("1", "7")
    ends = [(loopback, loopback)] * 2 + [(other, first)] * 2
    store = dist.HashStore()
    made = together(*[awaiter(store, rank, 4, ends[rank]) for rank in range(4)])
    assert made == [first, first, other, other]


def test_all_ranks_are_waited_for(slept):
    store, last = dist.HashStore(), []

    def late():
        while slept.count(0.1) < 3:  # looks, after quicker ones
            time.sleep(0.01)
        last.append(store.check(["missing"]))
        return awaiter(store, 1, 2)()

    assert together(awaiter(store, 0, 2), late) == ["127.0.0.1"] * 2
    assert last == [False], "none is missing yet"


def test_ranks_that_do_not_come_are_named_to_all_that_came(slept):
    """Rank 0 stays until the others have read it: with its end its store is gone."""
    store = dist.HashStore()

    def first():
        while not store.check(["rank 2"]):
            time.sleep(0.01)
        return awaiter(store, 0, 4, wait=NOW)()

    made = together(first, awaiter(store, 2, 4, wait=NOW))
    ask = "is its node started, with a number of its own?"
    for error in made:
        assert type(error) is errors.Fault
        assert str(error) == f"rank 1, rank 3 did not come within --timeout: {ask}"
    assert slept.count(3) == 1


def test_of_many_ranks_that_do_not_come_the_line_has_some():
    with pytest.raises(errors.Fault) as raised:
        awaiter(dist.HashStore(), 0, 2000, wait=NOW)()
    named = ", ".join(f"rank {number}" for number in range(1, 2000))[:200]
    assert str(raised.value).startswith(f"{named} did not come within --timeout: is its")


def test_rank_0_is_waited_for_a_little_longer_than_it_waits():
    store = mock.Mock(**{"get.return_value": b"", "check.return_value": False})
    assert awaiter(store, 1, 2)() == "127.0.0.1"
    store.wait.assert_called_once_with(["missing"], datetime.timedelta(seconds=80))


# ------------------------------------------------------------------------------------- meet_ranks

INTERFACES = {
    "lo": ["127.0.0.1", "::1"],
    "eth0": ["10.0.0.5", "10.0.0.6", "fe80::5%eth0"],
    "ib0": ["10.1.0.5"],
}


@pytest.fixture
def meeting(monkeypatch):
    """What meet_ranks() does: the timers it has made, and the seconds of arm_timeout(). The ranks
    have met at once, at `address`; the machine has INTERFACES."""
    made = SimpleNamespace(timers=[], armed=[], address="127.0.0.1", store=dist.HashStore())

    def make_timer(seconds, function):
        made.timers.append(mock.Mock(seconds=seconds, function=function))
        return made.timers[-1]

    monkeypatch.setattr(rendezvous, "threading", SimpleNamespace(Timer=make_timer))
    monkeypatch.setattr(endings, "arm_timeout", lambda *words: made.armed.append(words))
    monkeypatch.setattr(rendezvous, "open_store", lambda *words: (made.store, ("here", "there")))
    monkeypatch.setattr(rendezvous, "await_all", lambda *words: made.address)

    def known():
        kinds = socket.AF_INET, socket.AF_INET6
        return {
            name: [SimpleNamespace(family=kinds[":" in each], address=each) for each in addresses]
            for name, addresses in INTERFACES.items()
        }

    monkeypatch.setattr(rendezvous.psutil, "net_if_addrs", known)
    return made


def meet(rank=0, ranks=1, local_ranks=1, backend="gloo"):
    return rendezvous.meet_ranks(rank, ranks, local_ranks, backend, WAIT)


@pytest.mark.parametrize("launched", [False, True])
def test_the_group_has_its_time_once_all_have_come(launched, meeting, place):
    """As long for rank 0, which may come late. What ends a group that does not form is over once
    it has, or it would end the run in training."""
    if launched:
        place(WORLD_SIZE="2")
    with meet() as store:
        assert (store is meeting.store) == launched and isinstance(store, dist.HashStore)
        (timer,) = meeting.timers
        assert timer.seconds == 80 and timer.daemon is True
        timer.start.assert_called_once_with()
        assert not timer.cancel.called
    timer.cancel.assert_called_once_with()
    assert meeting.armed == [(60.0,)] * (1 + launched)


@pytest.mark.parametrize(
    ("address", "export", "interface"),
    [
        ("127.0.0.1", None, "lo"),
        ("::1", None, "lo"),
        ("10.0.0.5", None, "eth0"),
        ("fe80::5", None, "eth0"),
        ("10.1.0.5", None, "ib0"),
        ("10.0.0.6", None, None),  # gloo would take the first
        ("10.9.9.9", None, None),
        ("10.0.0.5", "ib0", "ib0"),
    ],
)
def test_gloo_listens_where_others_reach_it(address, export, interface, meeting, place):
    """Not at the address of the machine's name, unless an export says where."""
    place(WORLD_SIZE="2", **({"GLOO_SOCKET_IFNAME": export} if export else {}))
    meeting.address = address
    with meet():
        assert os.environ.get("GLOO_SOCKET_IFNAME") == interface
    os.environ.pop("GLOO_SOCKET_IFNAME", None)


NO_INTERFACE = "; its interface is that of this machine's name: if that is wrong, export "
NO_INTERFACE += "GLOO_SOCKET_IFNAME=NAME"


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (RuntimeError("connect failed\n at line 7"), errors.Fault, "connect failed"),
        (OSError(98, "Address already in use"), errors.Fault, "[Errno 98] Address already in use"),
        (dist.DistNetworkError("timed out"), errors.Fault, "timed out"),
        (OverflowError("port must be 0-65535."), errors.BadInput, "port must be 0-65535."),
        (KeyError("MASTER_ADDR"), errors.BadInput, "'MASTER_ADDR'"),
        (ValueError("no number"), errors.BadInput, "no number"),
        (TypeError("an integer is required"), errors.BadInput, "an integer is required"),
    ],
)
@pytest.mark.parametrize("where", ["in the block", "before it"])
def test_what_fails_is_a_line(error, kind, why, where, meeting, place, monkeypatch):
    place("99", WORLD_SIZE="4", MASTER_ADDR="node-1")
    meeting.address = "10.9.9.9"
    if where == "before it":
        monkeypatch.setattr(rendezvous, "open_store", mock.Mock(side_effect=error))
    with pytest.raises((errors.Fault, errors.BadInput)) as raised, meet(1, 4, 2):
        raise error
    line = f"rank 1 of 4 cannot form a group with the others by gloo at node-1 port 99: {why}"
    assert type(raised.value) is kind and str(raised.value) == line + NO_INTERFACE
    assert raised.value.__suppress_context__
    (timer,) = meeting.timers
    assert timer.cancel.called and timer.start.called == (where == "in the block")


@pytest.mark.parametrize(
    ("backend", "ranks", "local_ranks", "export", "more"),
    [
        ("gloo", 4, 4, None, ""),
        ("gloo", 4, 2, None, NO_INTERFACE),
        ("gloo", 4, 2, "ib0", NO_INTERFACE.replace("that of this machine's name", "ib0")),
        ("nccl", 4, 2, None, ""),
    ],
)
def test_the_interface_is_named_where_it_matters(
    backend, ranks, local_ranks, export, more, meeting, place
):
    place("99", WORLD_SIZE="4", **({"GLOO_SOCKET_IFNAME": export} if export else {}))
    meeting.address = "10.9.9.9"
    with pytest.raises((errors.Fault, errors.BadInput)) as raised:
        with meet(3, ranks, local_ranks, backend):
            raise RuntimeError("x")
    where = f"{backend} at 127.0.0.1 port 99"
    line = f"rank 3 of {ranks} cannot form a group with the others by {where}: x{more}"
    assert str(raised.value) == line


def test_a_backend_that_pytorch_has_not_is_the_user_s_mistake(meeting, place):
    place("99", WORLD_SIZE="2")
    assert not dist.is_backend_available("none-such")
    with pytest.raises(errors.BadInput, match="by none-such at"), meet(backend="none-such"):
        raise RuntimeError("x")


@pytest.mark.parametrize(
    "error", [errors.Fault("no answer"), errors.BadInput("x"), AttributeError("a bug")]
)
def test_what_says_enough_or_is_a_bug_stays_as_it_is(error, meeting):
    with pytest.raises(type(error)) as raised, meet():
        raise error
    assert raised.value is error and meeting.timers[0].cancel.called


def test_a_group_that_does_not_form_ends_the_process(meeting, place, monkeypatch, capsys):
    """gloo waits for ever, in C++, for a rank that cannot reach this one."""
    place("99", WORLD_SIZE="4")
    monkeypatch.setattr(rendezvous.sys, "argv", ["a folder/train.py"])
    monkeypatch.setattr(os, "_exit", ended := mock.Mock())
    with meet(2, 4, 4):
        meeting.timers[0].function()
    ended.assert_called_once_with(1)
    line = "rank 2 of 4 cannot form a group with the others by gloo at 127.0.0.1 port 99: no answer"
    assert capsys.readouterr() == ("", f"train.py: error: {line}\n")


def test_two_processes_form_a_group(place, tmp_path):
    place(WORLD_SIZE="2")
    children = []
    for rank in range(2):
        if not (child := os.fork()):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(100)
            with contextlib.suppress(BaseException):
                with rendezvous.meet_ranks(rank, 2, 2, "gloo", WAIT) as store:
                    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
                total = torch.tensor([rank + 1.0])
                dist.all_reduce(total)
                (tmp_path / f"rank {rank}").write_text(f"{total.item()}")
                dist.barrier()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    assert [(tmp_path / f"rank {rank}").read_text() for rank in range(2)] == ["3.0", "3.0"]
