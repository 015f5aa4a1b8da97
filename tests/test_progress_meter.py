"""trainparts/progress_meter.py: what is counted, timed, printed and shown of an epoch's steps."""

import io
import os
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from trainparts import progress_meter

CPU = torch.device("cpu")


@pytest.fixture
def now(monkeypatch):
    """[seconds] of the clock."""
    now = [1000.0]
    monkeypatch.setattr(progress_meter.time, "perf_counter", lambda: now[0])
    return now


@pytest.fixture
def kernel(monkeypatch):
    """What the kernel has counted: bytes and calls that were read, bytes sent and received."""
    counts = np.array([1e9, 1e3, 1e12, 1e11])
    monkeypatch.setattr(progress_meter, "traffic", lambda device: counts.copy())
    return counts


def on_terminal(monkeypatch):
    """Has stderr be a terminal; returns the file that it is."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def step(images, waited=0.0, skipped=0, **more):
    return {"images": images, "waited": waited, "skipped": skipped, **more}


def test_rates_are_of_all_steps_so_far(now, kernel):
    meter = progress_meter.Meter("1/3", 64, "images", 0, CPU)
    for images, waited, skipped in (16, 0.5, 0), (16, 0.25, 1), (8, 0.25, 1), (0, 0.0, 0):
        meter.add(step(images, waited, skipped, top5=7))
    now[0] += 4
    kernel += [12e6, 20, 8e6, 2e6]
    meter.read_clock()
    now[0] += 50  # validation
    kernel += 1e9
    assert meter.steps == 4
    assert meter.rates() == {
        "Throughput": 10.0,
        "Time": 1.0,
        "Data/wait": 0.25,
        "Steps/skipped": 2,
        "IO/read_MBps": 3.0,
        "IO/read_iops": 5.0,
        "Network/sent_MB_per_step": 2.0,
        "Network/received_MB_per_step": 0.5,
    }
    assert meter.state == {
        "sums": {"images": 40, "waited": 1.0, "skipped": 2, "top5": 28},
        "seconds": 4.0,
        "traffic": [12e6, 20.0, 8e6, 2e6],
    }


def test_an_epoch_goes_on_where_it_was_interrupted(now, kernel):
    """Sums, seconds, steps and traffic are those of both starts, and none of what was between."""
    first = progress_meter.Meter("1/3", 64, "images", 0, CPU)
    first.add(step(30, 1.0, 1))
    now[0] += 6
    kernel += [6e6, 10, 4e6, 1e6]
    first.read_clock()
    saved, known = first.state, dict(first.state["sums"])
    now[0] += 1e6
    kernel[:] = [5, 6, 7, 8]  # of another process
    second = progress_meter.Meter("1/3", 64, "images", 0, CPU, steps=1, state=saved)
    assert second.state == saved
    second.add(step(10, 1.0, 0))
    now[0] += 2
    kernel += [2e6, 6, 2e6, 1e6]
    second.read_clock()
    assert second.rates() == {
        "Throughput": 5.0,
        "Time": 4.0,
        "Data/wait": 0.25,
        "Steps/skipped": 1,
        "IO/read_MBps": 1.0,
        "IO/read_iops": 2.0,
        "Network/sent_MB_per_step": 3.0,
        "Network/received_MB_per_step": 1.0,
    }
    assert saved["sums"] == known and saved["seconds"] == 6.0, "a checkpoint is not changed"


def test_an_epoch_whose_steps_were_all_trained_keeps_its_rates(now, kernel):
    """Without a step of its own, and without reading the clock again."""
    state = {"sums": step(32, 0.5), "seconds": 2.0, "traffic": [4e6, 8.0, 0.0, 0.0]}
    meter = progress_meter.Meter("1/3", 32, "images", 0, CPU, steps=4, state=state)
    now[0] += 77
    rates = meter.rates()
    assert (rates["Throughput"], rates["Time"], rates["Data/wait"]) == (16.0, 0.5, 0.25)
    assert (rates["IO/read_MBps"], rates["IO/read_iops"]) == (2.0, 4.0)


def test_what_is_not_counted_is_no_number(now, kernel):
    kernel[2:] = np.nan
    meter = progress_meter.Meter("1/3", 64, "images", 0, CPU)
    meter.add(step(1))
    now[0] += 1
    meter.read_clock()
    rates = meter.rates()
    for name in "sent", "received":
        assert np.isnan(rates[f"Network/{name}_MB_per_step"])
    assert rates["IO/read_MBps"] == 0 and rates["Throughput"] == 1


def test_no_step_is_no_division_by_zero(now, kernel):
    meter = progress_meter.Meter("val", 0, "images", 0, CPU)
    now[0] += 2
    meter.read_clock()
    rates = meter.rates()
    assert (rates["Throughput"], rates["Time"], rates["Steps/skipped"]) == (0, 2, 0)


def test_the_state_is_of_the_last_reading(now, kernel):
    """A checkpoint that is saved between two of them has what was counted by then."""
    meter = progress_meter.Meter("1/3", 64, "images", 0, CPU)
    assert meter.state == {"sums": {}, "seconds": 0.0, "traffic": [0.0] * 4}
    meter.add(step(8))
    now[0] += 1
    meter.read_clock()
    before = meter.state
    meter.add(step(8))
    now[0] += 1
    assert meter.state is before and before["sums"]["images"] == 8 and before["seconds"] == 1
    assert isinstance(before["traffic"], list) and type(before["sums"]) is dict, "JSON has it"


def test_progress_is_a_line_where_there_is_no_terminal(now, kernel, capsys):
    state = {"sums": step(1000, 1.0), "seconds": 1.0, "traffic": [0.0] * 4}
    meter = progress_meter.Meter(
        "3/90", 9000, "tokens", 0, CPU, 7, state | {"sums": {"tokens": 1000, "waited": 1.0}}
    )
    meter.add({"tokens": 5172, "waited": 0.5})
    now[0] += 3
    meter.show(9.0)
    meter.report(0.123456, "top-1 50.0 %, loss 2.346")
    assert capsys.readouterr() == (
        "3/90  step 8  loss 0.1235  mean: top-1 50.0 %, loss 2.346  1,543 tokens/s  wait 38 %\n",
        "",
    )


def test_progress_is_a_bar_on_a_terminal(now, kernel, monkeypatch, capsys):
    terminal = on_terminal(monkeypatch)
    meter = progress_meter.Meter("1/2", 64, "images", 0, CPU)
    meter.bar.mininterval = 0
    meter.add(step(32))
    meter.show(1.23456)
    meter.report(0.5, "no line beside the bar")
    assert capsys.readouterr().out == ""
    now[0] += 1
    meter.bar.refresh()
    shown = terminal.getvalue().split("\r")[-1]
    assert shown.startswith("1/2:  50% |") and "left, loss 1.235" in shown
    assert " images/s" in shown and len(shown) <= 79
    meter.bar.close()
    assert terminal.getvalue().rpartition("\r")[0].endswith(" "), "it is wiped out"


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_has_a_bar_that_goes_on_at_the_items(rank, monkeypatch):
    on_terminal(monkeypatch)
    state = {"sums": {"images": 48}, "seconds": 1.0, "traffic": [0.0] * 4}
    meter = progress_meter.Meter("1/2", 64, "images", rank, CPU, 3, state)
    assert meter.bar.disable == bool(rank) and (meter.title, meter.steps) == ("1/2", 3)
    if not rank:
        assert (meter.bar.n, meter.bar.total) == (48, 64)
        meter.add(step(8))
        assert meter.bar.n == 56
    meter.bar.close()


def test_a_closed_pipe_ends_no_run(monkeypatch, now, kernel):
    """Nor does it end what is timed."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    meter = progress_meter.Meter("1/2", 64, "images", 0, CPU)
    meter.add(step(8))
    now[0] += 1
    meter.report(1.0, "")


def test_traffic_is_what_the_kernel_counts(monkeypatch):
    """Bytes and calls of this process and its children; bytes sent, then received."""
    kernel = SimpleNamespace(
        bytes_sent=5, bytes_recv=7, packets_sent=11, packets_recv=13, errin=0, errout=0
    )
    net = type(progress_meter.psutil.net_io_counters())
    counted = net(**{name: getattr(kernel, name, 0) for name in net._fields})
    monkeypatch.setattr(progress_meter.psutil, "net_io_counters", lambda: counted)
    monkeypatch.setattr(progress_meter.os.path, "exists", lambda path: False)
    processes = []
    for chars, calls in (100, 1), (20, 2), (3, 4):
        io = SimpleNamespace(read_chars=chars, read_count=calls, read_bytes=0, write_chars=9)
        processes.append(mock.Mock(io_counters=lambda io=io: io))
    processes[0].children.return_value = processes[1:]
    monkeypatch.setattr(progress_meter.psutil, "Process", lambda: processes[0])
    assert progress_meter.traffic(CPU).tolist() == [123, 7, 5, 7]


def test_what_gpus_and_infiniband_send_is_not_counted(monkeypatch):
    """By NVLink and RDMA it passes the kernel's counters by: rather no number than a wrong one."""
    for device, infiniband in ("cpu", False), ("cpu", True), ("cuda", False):
        monkeypatch.setattr(os.path, "exists", lambda path, found=infiniband: found)
        sent = progress_meter.traffic(torch.device(device))[2:]
        counted = device == "cpu" and not infiniband
        assert all(sent >= 0) if counted else all(sent != sent)


@pytest.mark.parametrize("name", ["Process", "net_io_counters"])
@pytest.mark.parametrize("why", [AttributeError, PermissionError, progress_meter.psutil.Error])
def test_a_system_without_counters_has_no_numbers(name, why, monkeypatch):
    monkeypatch.setattr(progress_meter.os.path, "exists", lambda path: False)
    monkeypatch.setattr(progress_meter.psutil, name, mock.Mock(side_effect=why))
    found = progress_meter.traffic(CPU)
    assert found.shape == (4,) and found.dtype == np.float64
    assert np.isnan(found[:2]).all()
    assert np.isnan(found[2:]).all() == (name == "net_io_counters")


def test_what_is_read_counts_also_where_the_page_cache_has_it(tmp_path):
    """Of this process, and of a worker."""
    (tmp_path / "file").write_bytes(bytes(3_000_000))
    before = progress_meter.traffic(CPU)
    (tmp_path / "file").read_bytes()
    after = progress_meter.traffic(CPU)
    assert 3_000_000 <= after[0] - before[0] < 3_500_000 and 1 <= after[1] - before[1] < 500
    with subprocess.Popen(["cat", tmp_path / "file", "-"], stdin=-1, stdout=-1) as worker:
        worker.stdout.read(3_000_000)
        whole = progress_meter.traffic(CPU)
        worker.stdin.close()
    assert whole[0] - after[0] >= 3_000_000 + 3_000_000
