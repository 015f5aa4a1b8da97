"""trainparts/launch/store_broadcast.py: rank 0's values and its end, for all ranks."""

import contextlib
import json
import os
import signal
import threading
import time
from types import SimpleNamespace
from unittest import mock

import pytest
import torch.distributed as dist

from trainparts import errors
from trainparts.launch import store_broadcast


@pytest.fixture
def group(monkeypatch):
    """group(*functions): runs each as a rank, in a thread, of one group; returns what they return
    or raise. group.store is the group's store."""
    own, store = threading.local(), dist.HashStore()
    monkeypatch.setattr(dist, "get_rank", lambda: own.rank)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)

    def run(*functions):
        monkeypatch.setattr(dist, "get_world_size", lambda: len(functions))
        results = [None] * len(functions)

        def be(rank):
            own.rank = rank
            try:
                results[rank] = functions[rank]()
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=be, args=[rank]) for rank in range(len(functions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        return results

    run.store = store
    return run


def ask(*values):
    """Returns a rank that broadcasts these, and returns what it gets."""
    return lambda: [store_broadcast.broadcast_value(value) for value in values]


def end(line="no.pt: no checkpoint", status=2, *values):
    """Returns a rank that ends, after it has broadcast values."""

    def run():
        ask(*values)()
        store_broadcast.broadcast_end(line, status)

    return run


@pytest.mark.parametrize(
    "value", [None, 0, 2**60, 0.1, "a\n\N{SNOWMAN}", [1, [2]], {"a": [None, True]}, "", [], {}]
)
def test_all_ranks_have_the_value_of_rank_0(value, group):
    assert group(ask(value), ask("mine"), ask(None)) == [[value]] * 3


def test_a_value_is_as_json_has_it_also_on_rank_0(group):
    sent = {"sizes": (1, 2), 3: float("inf")}
    assert group(ask(sent), ask(0)) == [[{"sizes": [1, 2], "3": float("inf")}]] * 2


def test_what_json_has_not_is_sent_to_nobody(group):
    assert isinstance(group(ask({1, 2}))[0], TypeError) and not group.store.check(["value 0"])


def test_values_come_in_their_order_however_late_a_rank_asks(group):
    read = threading.Event()

    def first():
        made = ask("one", "two")()
        read.set()
        return made

    def late():
        read.wait(60)
        return ask(0, 0)()

    assert group(first, late, ask(0, 0)) == [["one", "two"]] * 3


@pytest.mark.parametrize(("status", "kind"), [(1, errors.Fault), (2, errors.BadInput)])
def test_what_ends_rank_0_ends_all(status, kind, group):
    """Also those that have earlier values to read."""
    made = group(end("no.pt: no checkpoint", status, "earlier"), ask(0, 0), ask(0, 0))
    assert made[0] is None
    for error in made[1:]:
        assert type(error) is kind and str(error) == "no.pt: no checkpoint"


def test_rank_0_stays_until_the_others_know(group, monkeypatch):
    """Its store is gone with its end: those that come late read it before."""
    order, slept, sleep = [], [], time.sleep

    def wait(seconds):
        slept.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(store_broadcast, "time", SimpleNamespace(monotonic=int, sleep=wait))

    def first():
        end()()
        order.append("end")

    def late():
        while len(slept) < 5 and not order:
            sleep(0.01)
        order.append("late")
        return ask(0)()

    made = group(first, late, late)
    assert order == ["late", "late", "end"] and type(made[1]) is type(made[2]) is errors.BadInput


def test_rank_0_stays_no_longer_than_two_seconds_for_those_that_do_not_ask(group, monkeypatch):
    now, slept = [100.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += 0.5

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(store_broadcast, "time", clock)
    assert group(end(), lambda: None) == [None, None]
    assert now[0] == 102 and len(slept) == 4
    assert json.loads(group.store.get("value 0")) == {"error": "no.pt: no checkpoint", "status": 2}


def test_of_one_rank_nobody_is_waited_for(group, monkeypatch):
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=mock.Mock(side_effect=AssertionError))
    monkeypatch.setattr(store_broadcast, "time", clock)
    assert group(end("x", 1, "a value")) == [None]


def test_an_end_before_there_is_a_group_is_told_nobody(monkeypatch):
    assert not dist.is_initialized()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", None)
    store_broadcast.broadcast_end("x", 1)


def test_three_processes_of_a_group_agree_and_end(tmp_path):
    """By the store that has formed their group."""
    children = []
    for rank in range(3):
        if not (child := os.fork()):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(100)
            with contextlib.suppress(BaseException):
                store = dist.FileStore(str(tmp_path / "store"), 3)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
                said = [store_broadcast.broadcast_value(f"of rank {rank}")]
                if rank == 0:
                    store_broadcast.broadcast_end("a disk is full", 1)
                else:
                    try:
                        store_broadcast.broadcast_value("mine")
                    except errors.Fault as error:
                        said.append(str(error))
                (tmp_path / f"rank {rank}").write_text(json.dumps(said))
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    found = [json.loads((tmp_path / f"rank {rank}").read_text()) for rank in range(3)]
    assert found == [["of rank 0"], *[["of rank 0", "a disk is full"]] * 2]
