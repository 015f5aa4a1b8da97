"""Faults that runs must survive. Slow: short versions of chaos.py's trials, of which `make chaos`
runs all."""

import json
import random
import re
import signal
import time

import chaos
import psutil
import pytest
from conftest import BY_TORCHRUN, needs_bfloat16, needs_horovod
from torch.utils.tensorboard import SummaryWriter

pytestmark = pytest.mark.timeout(900)


def hold(rows):
    """Asserts that all rows of a trial hold, and that there are some."""
    try:
        rows = list(rows)
    except chaos.Skip as why:
        pytest.skip(str(why))
    assert rows and not [row for row in rows if not (row[2] or row[2] is None)]
    if skipped := [row for row in rows if row[2] is None]:
        pytest.skip(str(skipped))


@pytest.fixture
def begin(tmp_path):
    """Returns a function that starts a script in one of chaos' ways, with chaos' network."""

    def start(way, script, *options):
        words = [*chaos.start(way, script), *chaos.NET, "--epochs", 2, "--steps-per-epoch", 14]
        return chaos.Job([*words, "--checkpoint-minutes", 0.01, *options], tmp_path)

    yield start
    for job in chaos.Job.begun:
        job.end()


WAYS = [("plain", "imagenet_nd.py")]
OF_RANKS = [("own spawn", "imagenet_ddp.py"), *(("torchrun", script) for script in BY_TORCHRUN)]
WAYS += [pytest.param(*way, marks=pytest.mark.slow) for way in OF_RANKS]


@pytest.mark.parametrize(("way", "script"), WAYS)
def test_ended_killed_and_damaged_it_equals_the_uninterrupted_run(way, script, begin, tmp_path):
    """Ended by SIGTERM, gone on with, killed, its newest checkpoint damaged, gone on with."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    job = begin(way, script, "--log-dir", whole)
    assert job.wait() == 0, job.text()
    auto = ["--log-dir", cut, "--resume", "auto"]
    job = begin(way, script, *auto)
    job.wait_for("1/2  step 8 ")
    chaos.kill(psutil.Process(job.process.pid), signal.SIGTERM)
    assert job.wait() == (1 if way == "torchrun" else 143), job.text()  # torchrun has its own
    (marker,) = cut.glob("*/PREEMPTED")
    assert json.loads(marker.read_text())["why"] == "SIGTERM"
    saved, place = chaos.load(marker.parent / "checkpoint.pt"), json.loads(marker.read_text())
    saved, ended = ((each["epoch"], each["step"]) for each in (saved, place))
    assert saved in (ended, (ended[0] + 1, 0)) and ended >= (0, 8)  # the latter in validation

    job = begin(way, script, *auto)
    job.wait_for("2/2  step 5 ")
    assert "Resuming from" in job.text() and not marker.exists()
    chaos.kill(job.ranks()[1] if way != "plain" else psutil.Process(job.process.pid))
    began, status = time.monotonic(), job.wait()
    assert status in (1, -signal.SIGKILL), job.text()
    assert not job.left() and time.monotonic() < began + 60
    chaos.damage(marker.parent / "checkpoint.pt", "truncated", random.Random(0))

    job = begin(way, script, *auto)
    assert job.wait() == 0, job.text()
    assert re.search(r"skips .*/checkpoint.pt", job.text()) and not job.traceback()
    assert chaos.lost(whole, cut, damaged=True) == []


def test_what_a_log_lacks_or_has_otherwise_is_seen(tmp_path):
    points = {"whole": [("Lr", 1), ("Loss/val", 1), ("Top1/train", 2)], "cut": [("Lr", 1)]}
    points["cut"] += [("Top1/train", 3), ("Time/train", 2)]
    for folder, values in points.items():
        with SummaryWriter(tmp_path / folder / "run") as log:
            for tag, value in values:
                log.add_scalar(tag, value, 1)
    odd = ["Loss/val of 1", "Time/train of 1", "Top1/train of 1"]
    assert chaos.lost(tmp_path / "whole", tmp_path / "cut") == [
        "checkpoint.pt",
        "model_best.pt",
        *odd,
    ]


@pytest.mark.slow
def test_full_disk(tmp_path):
    hold(chaos.disk(tmp_path, ["full"], "plain"))


@pytest.mark.slow
def test_loader_that_is_stuck_ends_the_run(tmp_path):
    hold(chaos.frozen(tmp_path, [("imagenet_nd.py", "stuck loader worker", "training")], 1))


def test_the_ports_of_one_node_are_out_of_reach(begin):
    """Nothing of it can be connected to from another machine, where nobody asks who it is."""
    job = begin("own spawn", "imagenet_ddp.py")
    job.wait_for(chaos.GREETING)
    sockets = [each for process in job.processes() for each in process.net_connections()]
    listening = [each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN]
    assert listening and {*listening} == {"127.0.0.1"}


NEEDS = {"horovod": needs_horovod, "kills": needs_bfloat16, "omissions": needs_bfloat16}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=NEEDS.get(name, ()))
        for name in chaos.TRIALS
        if name not in ("nodes", "slurm")  # tests themselves
    ],
)
def test_trial(name):
    hold(chaos.attempt(name, short=True))
